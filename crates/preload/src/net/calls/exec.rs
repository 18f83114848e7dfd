//! `execve`, `execveat`: the strings are copied to memory that is not managed.
//!
//! The arguments of a large command lie on thousands of pages, and a successful call never comes back to unpin them.
//! (In a `vfork` child that would leave them pinned in the parent.) So nothing is pinned while the call runs:
//! [`ExecImage`] holds copies of the path, the arguments and the environment. After a failed call it is unmapped; after
//! a successful one the address space is gone, unless the caller was a `vfork` child: then the image is left in
//! the parent's memory. So each image is noted under its process's number while the call runs, and the parent, which goes
//! on when the call has succeeded, unmaps what its child has left ([`child_is_gone`]).

use super::super::buffers::scratch::{FAULT, Scratch};
use super::super::buffers::{Args, Memory, PinSet, errno, read_user, text_len};
use core::sync::atomic::{AtomicU64, Ordering};

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
        (self.scratch.addr(), self.scratch.size())
    }
}

/// An image of a call that is running, or was left by a `vfork` child.
///
/// Whoever has moved `pid` from 0 to its own number writes the other fields; they are read by the parent of that process
/// alone, which was asleep meanwhile (the kernel wakes it), or by the process itself.
pub(super) struct Note {
    pub(super) pid: AtomicU64,
    addr: AtomicU64,
    size: AtomicU64,
}

/// Calls at once. With more of them, what a `vfork` child leaves stays mapped.
const NOTES: usize = 64;
pub(super) static RUNNING: [Note; NOTES] =
    [const { Note { pid: AtomicU64::new(0), addr: AtomicU64::new(0), size: AtomicU64::new(0) } }; NOTES];

impl Note {
    pub(super) fn take(pid: u64, (addr, size): (u64, u64)) -> Option<&'static Note> {
        let free = |note: &&Note| note.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let note = RUNNING.iter().find(free)?;
        note.addr.store(addr, Ordering::Release);
        note.size.store(size, Ordering::Release);
        Some(note)
    }
    pub(super) fn give_back(&self) {
        self.pid.store(0, Ordering::Release);
    }
}

/// For the parent of a `vfork` child that has started its program or ended: unmaps what `execve` in the child left.
pub fn child_is_gone(mem: &impl Memory, pid: u64) {
    for note in RUNNING.iter().filter(|note| note.pid.load(Ordering::Acquire) == pid && pid != 0) {
        let (addr, size) = (note.addr.swap(0, Ordering::AcqRel), note.size.load(Ordering::Acquire));
        note.give_back();
        if addr != 0 {
            mem.raw(libc::SYS_munmap as u64, &[addr, size, 0, 0, 0, 0]);
        }
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
    let pid = mem.raw(libc::SYS_getpid as u64, &[0; 6]) as u64;
    let note = Note::take(pid, image.mapping());
    let result = mem.raw(nr, &args);
    if let Some(note) = note {
        note.give_back();
    }
    result
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
    if array == 0 {
        return Ok(size);
    }
    loop {
        let text = entry(mem, array, size.entries)?;
        if text == 0 {
            return Ok(size);
        }
        size.entries += 1;
        size.bytes += string_len(mem, text).unwrap_or(0);
        if size.bytes + size.entries * 8 > TOTAL_MAX {
            return Err(errno(libc::E2BIG));
        }
    }
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
