//! `execve`, `execveat`: the strings are copied to memory that is not managed.
//!
//! The arguments of a large command lie on thousands of pages, and a successful call never comes back to unpin them.
//! (In a `vfork` child that would leave them pinned in the parent.) So nothing is pinned while the call runs:
//! [`ExecImage`] holds copies of the path, the arguments and the environment. After a failed call it is unmapped; after
//! a successful one the address space is gone, or, in a `vfork` child, the parent unmaps [`ExecImage::mapping`].

use super::super::buffers::scratch::{FAULT, Scratch};
use super::super::buffers::{Args, Memory, PinSet, errno, read_user, text_len};

/// Longest argument that the kernel accepts, with its zero byte.
const STRING_MAX: u64 = 128 << 10;
/// More than the kernel accepts in all (6 MiB), with the pointers.
const TOTAL_MAX: u64 = 16 << 20;

/// Copies of what `execve` reads.
#[derive(Debug)]
pub struct ExecImage<'m, M: Memory> {
    scratch: Scratch<'m, M>,
    /// The path to pass to the kernel.
    pub path: u64,
    /// The argument array to pass, 0 if the program gave none.
    pub argv: u64,
    /// The environment array to pass, 0 if the program gave none and nothing is added.
    pub envp: u64,
}

/// Bytes that an array of strings needs: entries (without the null at the end), and bytes of the strings.
#[derive(Clone, Copy, Default)]
struct Size {
    entries: u64,
    bytes: u64,
}

impl<'m, M: Memory> ExecImage<'m, M> {
    /// Copies path, arguments and environment, and adds the strings `extra` to the environment. A string that
    /// cannot be read keeps its pointer, so that the kernel answers `EFAULT`.
    ///
    /// # Errors
    /// A negative errno: `EFAULT` for an array that cannot be read, `E2BIG`, `ENOMEM`.
    pub fn new(mem: &'m M, path: u64, argv: u64, envp: u64, extra: &[&[u8]]) -> Result<Self, i64> {
        let path_len = string_len(mem, path).unwrap_or(0);
        let (args, env) = (measure(mem, argv)?, measure(mem, envp)?);
        let added: u64 = extra.iter().map(|text| text.len() as u64 + 1).sum();
        let args_array = (args.entries + 1) * 8;
        let env_array = (env.entries + extra.len() as u64 + 1) * 8;
        let len = args_array + env_array + path_len + args.bytes + env.bytes + added;
        let scratch = Scratch::new(mem, len)?;
        let mut writer = Writer { mem, scratch: &scratch, text: args_array + env_array };
        writer.array(argv, 0, args)?;
        let mut entry = writer.array(envp, args_array, env)?;
        for text in extra {
            writer.added(text, entry);
            entry += 8;
        }
        let path_copy = writer.string(path, path_len);
        let base = scratch.addr();
        let envp_used = envp != 0 || !extra.is_empty();
        Ok(ExecImage {
            path: path_copy,
            argv: if argv == 0 { 0 } else { base },
            envp: if envp_used { base + args_array } else { 0 },
            scratch,
        })
    }
    /// Address and length of the mapping that holds the copies.
    pub fn mapping(&self) -> (u64, u64) {
        (self.scratch.addr(), self.scratch.len())
    }
}

/// Makes an `execve` or `execveat` with copies of its strings; returns only if it fails.
pub fn call(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    // execveat has a directory first and flags last.
    let first = usize::from(nr == libc::SYS_execveat as u64);
    let image = match ExecImage::new(mem, args[first], args[first + 1], args[first + 2], &[]) {
        Ok(image) => image,
        Err(error) => return error,
    };
    let mut args = *args;
    args[first..first + 3].copy_from_slice(&[image.path, image.argv, image.envp]);
    mem.raw(nr, &args)
}

/// Bytes of a string with its zero byte (cut where the kernel refuses it); `None` if it cannot be read.
fn string_len(mem: &impl Memory, addr: u64) -> Option<u64> {
    if addr == 0 {
        return None;
    }
    let mut pins = PinSet::new();
    // One byte more than the kernel accepts, so that it refuses the copy as it would the original.
    let len = text_len(mem, &mut pins, addr, STRING_MAX + 1);
    mem.unpin(&mut pins);
    len
}

fn entry(mem: &impl Memory, array: u64, index: u64) -> Result<u64, i64> {
    let mut pins = PinSet::new();
    let value = read_user::<u64>(mem, &mut pins, array.wrapping_add(index * 8));
    mem.unpin(&mut pins);
    value.ok_or(FAULT)
}

fn measure(mem: &impl Memory, array: u64) -> Result<Size, i64> {
    let mut size = Size::default();
    while array != 0 {
        let text = entry(mem, array, size.entries)?;
        if text == 0 {
            break;
        }
        size.entries += 1;
        size.bytes += string_len(mem, text).unwrap_or(0);
        if size.bytes + size.entries * 8 > TOTAL_MAX {
            return Err(errno(libc::E2BIG));
        }
    }
    Ok(size)
}

/// Fills the image. Another thread may change the strings meanwhile: nothing is written beyond what was measured.
struct Writer<'s, 'm, M: Memory> {
    mem: &'m M,
    scratch: &'s Scratch<'m, M>,
    /// Where the next string goes.
    text: u64,
}

impl<M: Memory> Writer<'_, '_, M> {
    /// Copies an array and its strings to offset `at`; the offset after its last entry.
    fn array(&mut self, array: u64, at: u64, size: Size) -> Result<u64, i64> {
        let mut left = size.bytes;
        for index in 0..size.entries {
            let text = entry(self.mem, array, index)?;
            let len = string_len(self.mem, text).unwrap_or(0).min(left);
            left -= len;
            let copy = self.string(text, len);
            self.scratch.store(at + index * 8, copy);
        }
        Ok(at + size.entries * 8)
    }
    /// Copies a string of `len` bytes; the address of the copy, or of the original if it cannot be read.
    fn string(&mut self, text: u64, len: u64) -> u64 {
        if len == 0 || !self.scratch.copy_in(self.text, text, len) {
            return text;
        }
        let copy = self.scratch.addr() + self.text;
        self.text += len;
        copy
    }
    /// Copies a string of ours, with the entry for it at offset `at`.
    fn added(&mut self, text: &[u8], at: u64) {
        self.scratch.store(at, self.scratch.addr() + self.text);
        self.scratch.store_bytes(self.text, text);
        // Its zero byte is there already: the memory is fresh.
        self.text += text.len() as u64 + 1;
    }
}
