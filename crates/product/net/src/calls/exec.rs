//! `execve`, `execveat`: the strings are copied to memory that is not managed, and the new program is put under Farshore.
//!
//! The arguments of a large command lie on thousands of pages, and a successful call never comes back to unpin them.
//! (In a `vfork` child that would leave them pinned in the parent.) So nothing is pinned while the call runs:
//! [`ExecImage`] holds copies of the path, the arguments and the environment. After a failed call it is unmapped; after
//! a successful one the address space is gone, unless the caller was a `vfork` child: then the image is left in
//! the parent's memory. So each image is noted under its process's number while the call runs, and the parent, which goes
//! on when the call has succeeded, unmaps what its child has left ([`child_is_gone`]).
//!
//! Where there is no memory for an image (`RLIMIT_AS`, which counts what Farshore has mapped for itself), the strings are
//! only made present, and the call is made again if one has left before the kernel came to it.
//!
//! Whether the new program runs under Farshore too, and with which environment, says [`super::follow`]. An exec
//! never fails because of that: if the kernel has no room for our variables, it gets the program's own environment.

use super::super::buffers::scratch::{FAULT, Scratch};
use super::super::buffers::{Args, Memory, PinSet, Pins, errno, read_once, text_len};
use super::follow::{self, Plan, Start, Starter};
use core::ffi::CStr;
use core::fmt::Arguments;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_host::Refused;

/// Longest argument that the kernel accepts, with its zero byte.
const STRING_MAX: u64 = 128 << 10;
/// More than the kernel accepts in all (6 MiB), with the pointers.
const TOTAL_MAX: u64 = 16 << 20;

/// Copies of what `execve` reads, and room for an environment of ours.
#[derive(Debug)]
pub struct ExecImage<'m, M: Memory> {
    scratch: Scratch<'m, M>,
    /// The path to pass to the kernel.
    pub path: u64,
    /// The argument array to pass, 0 if the program gave none.
    pub argv: u64,
    /// The environment array to pass, 0 if the program gave none.
    pub envp: u64,
    /// Entries of the environment.
    pub env_entries: u64,
    /// Bytes that the kernel will count: strings with their zero bytes, and pointers. More than there can be if one of the
    /// strings alone is too long for it.
    pub counted: u64,
    /// Where room of ours begins in the scratch memory.
    room: u64,
}

/// What an array of strings needs: entries (without the null at the end), and bytes of the strings.
#[derive(Clone, Copy, Default)]
struct Size {
    entries: u64,
    bytes: u64,
    /// Bytes of the longest string.
    longest: u64,
}

impl<'m, M: Memory> ExecImage<'m, M> {
    /// Copies path, arguments and environment. A string that cannot be read keeps its pointer, so that the kernel answers
    /// `EFAULT`. `room` says how many bytes of ours are wanted behind, from the entries and the bytes of the environment.
    ///
    /// # Errors
    /// A negative errno: `EFAULT` for an array that cannot be read, `E2BIG`, `ENOMEM`.
    pub fn new(mem: &'m M, path: u64, argv: u64, envp: u64, room: impl FnOnce(u64, u64) -> u64) -> Result<Self, i64> {
        let path_len = string_len(mem, path).unwrap_or(0);
        let (args, env) = (measure(mem, argv)?, measure(mem, envp)?);
        let args_array = (args.entries + 1) * 8;
        let env_array = (env.entries + 1) * 8;
        let own = (args_array + env_array + path_len + args.bytes + env.bytes).next_multiple_of(8);
        let scratch = Scratch::new(mem, own + room(env.entries, env.bytes))?;
        let mut writer = Writer { mem, scratch: &scratch, text: args_array + env_array };
        writer.array(argv, 0, args)?;
        writer.array(envp, args_array, env)?;
        let path_copy = writer.string(path, path_len);
        let base = scratch.addr();
        let pointers = (args.entries.max(1) + env.entries) * 8;
        Ok(ExecImage {
            path: path_copy,
            argv: if argv == 0 { 0 } else { base },
            envp: if envp == 0 { 0 } else { base + args_array },
            env_entries: env.entries,
            counted: if args.longest.max(env.longest) > STRING_MAX {
                u64::MAX
            } else {
                path_len + args.bytes + env.bytes + pointers
            },
            room: own,
            scratch,
        })
    }

    /// Address and length of the mapping that holds the copies.
    pub fn mapping(&self) -> (u64, u64) {
        (self.scratch.addr(), self.scratch.size())
    }

    /// What has been copied.
    pub fn copies(&self) -> Copies<'_> {
        let base = self.scratch.addr();
        // SAFETY: initialised bytes of our mapping, which nobody writes after `new`: the room begins behind them.
        Copies { base, bytes: unsafe { core::slice::from_raw_parts(base as *const u8, self.room as usize) } }
    }

    /// What has been copied; the room's address; and the room, which is zeros at first.
    pub fn with_room(&mut self) -> (Copies<'_>, u64, &mut [u8]) {
        let (addr, len) = (self.scratch.addr() + self.room, self.scratch.size() - self.room);
        // SAFETY: initialised bytes of our mapping; `copies` ends before them, and `self` is borrowed for as long.
        let room = unsafe { core::slice::from_raw_parts_mut(addr as *mut u8, len as usize) };
        (self.copies(), addr, room)
    }
}

/// Read-only view of copies.
#[derive(Clone, Copy, Debug)]
pub struct Copies<'i> {
    base: u64,
    bytes: &'i [u8],
}

impl<'i> Copies<'i> {
    /// The bytes from `addr` on; `None` if it is not in what has been copied: an original that could not be read.
    fn at(self, addr: u64) -> Option<&'i [u8]> {
        self.bytes.get(usize::try_from(addr.checked_sub(self.base)?).ok()?..)
    }

    /// The word at `addr`.
    pub fn word(self, addr: u64) -> Option<u64> {
        self.at(addr)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    }

    /// The string at `addr`.
    pub fn text(self, addr: u64) -> Option<&'i CStr> {
        CStr::from_bytes_until_nul(self.at(addr)?).ok()
    }
}

/// An image of a call that is running, or was left by a `vfork` child.
///
/// Whoever has moved `pid` from 0 to its own number writes the other fields; they are read by the parent of that process
/// alone, which was asleep meanwhile (the kernel wakes it), or by the process itself.
#[derive(Debug)]
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
            mem.own(libc::SYS_munmap as u64, &[addr, size, 0, 0, 0, 0]);
        }
    }
}

/// A call that only the kernel has still to make.
#[derive(Debug)]
pub struct Prepared<'m, M: Memory> {
    mem: &'m M,
    nr: u64,
    args: Args,
    /// `None`: there was no memory for it.
    image: Option<ExecImage<'m, M>>,
    note: Option<&'static Note>,
    start: Start,
}

/// Copies the strings of an `execve` or `execveat`, and decides how the new program starts. With a plan signals are
/// blocked meanwhile, but for those of faults.
///
/// # Errors
/// A negative errno, the result of the call.
pub fn prepare<'m, M: Memory>(mem: &'m M, nr: u64, args: &Args, starter: Option<Starter>) -> Result<Prepared<'m, M>, i64> {
    let first = first_argument(nr);
    let room = |entries, bytes| starter.map_or(0, |starter| starter.plan.room(entries, bytes));
    let copied = ExecImage::new(mem, args[first], args[first + 1], args[first + 2], room);
    // An array that cannot be read is for the kernel to refuse: it looks for the program first.
    let unreadable = copied.as_ref().is_err_and(|error| *error == FAULT);
    let mut image = match copied {
        Ok(image) => Some(image),
        Err(error) if unreadable || error == errno(libc::ENOMEM) => None,
        Err(error) => return Err(error),
    };
    let start = match (starter, &mut image) {
        (_, None) if unreadable => Start::Natively,
        (Some(starter), Some(image)) => {
            let (directory, flags) = if first == 1 { (args[0] as i32, args[4] as u32) } else { (follow::AT_FDCWD, 0) };
            starter.start(image, directory, flags)
        }
        (Some(starter), None) => starter.plan.strictly(Start::Unlike("there is no memory for copies of its arguments")),
        (None, _) => Start::Natively,
    };
    let pid = mem.own(libc::SYS_getpid as u64, &[0; 6]) as u64;
    let note = image.as_ref().and_then(|image| Note::take(pid, image.mapping()));
    Ok(Prepared { mem, nr, args: *args, image, note, start })
}

/// `execveat` has a directory first and flags last.
fn first_argument(nr: u64) -> usize {
    usize::from(nr == libc::SYS_execveat as u64)
}

impl<M: Memory> Prepared<'_, M> {
    /// Whether the new program will run under Farshore.
    pub fn is_followed(&self) -> bool {
        matches!(self.start, Start::Followed { .. } | Start::Hosted { .. })
    }

    /// Makes the call; returns only if it fails, with its result. `say` writes a line for the user.
    pub fn call(&self, say: impl Fn(Arguments<'_>)) -> i64 {
        match &self.start {
            Start::Natively => self.natively(),
            Start::Unlike(why) => {
                if self.exists() {
                    self.say("runs without Farshore", why, say);
                }
                self.natively()
            }
            // What is not there is for the kernel to refuse, with its own error.
            Start::Refused(why) if self.exists() => {
                self.say("is not started (--require)", why, say);
                errno(libc::EPERM)
            }
            Start::Refused(_) => self.natively(),
            Start::Hosted { .. } if !self.exists() => self.natively(),
            Start::Hosted { plan, options, handed } => {
                follow::hand_on(self.mem, handed, true);
                let answer = plan.host(options, || self.natively());
                follow::hand_on(self.mem, handed, false);
                answer.unwrap_or_else(|Refused(why, _)| {
                    if plan.requires() {
                        self.say("is not started (--require)", why, say);
                        return errno(libc::EPERM);
                    }
                    self.say("runs without Farshore", why, say);
                    self.natively()
                })
            }
            Start::Followed { envp, handed } => {
                follow::hand_on(self.mem, handed, true);
                let answer = self.kernel(*envp);
                follow::hand_on(self.mem, handed, false);
                if answer != errno(libc::E2BIG) {
                    return answer;
                }
                if self.image.as_ref().is_some_and(|image| image.counted < strings_limit(self.mem)) {
                    const NO_ROOM: &str = "its arguments and environment leave no room for Farshore's variables";
                    if follow::plan().is_some_and(Plan::requires) {
                        self.say("is not started (--require)", NO_ROOM, say);
                        return answer;
                    }
                    self.say("runs without Farshore", NO_ROOM, say);
                }
                self.natively()
            }
        }
    }

    fn say(&self, what: &str, why: &str, say: impl Fn(Arguments<'_>)) {
        let path = self.image.as_ref().and_then(|image| image.copies().text(image.path));
        let path = path.filter(|path| !path.is_empty()).unwrap_or(c"a program");
        say(format_args!("'{}' {what}: {why}", path.to_bytes().escape_ascii()));
    }

    fn natively(&self) -> i64 {
        match &self.image {
            Some(image) => self.kernel(image.envp),
            None => self.with_originals(),
        }
    }

    /// The call with copies, and this array for an environment.
    fn kernel(&self, envp: u64) -> i64 {
        let (first, mut args) = (first_argument(self.nr), self.args);
        if let Some(image) = &self.image {
            args[first..first + 3].copy_from_slice(&[image.path, image.argv, envp]);
        }
        self.mem.raw(self.nr, &args)
    }

    fn with_originals(&self) -> i64 {
        /// A wild pointer is the same error, each time.
        const TRIES: usize = 100;
        let first = first_argument(self.nr);
        let [path, argv, envp] = [self.args[first], self.args[first + 1], self.args[first + 2]];
        let mut answer = FAULT;
        for _ in 0..TRIES {
            // Reading makes them present. What cannot be read is for the kernel to refuse.
            let _ = (string_len(self.mem, path), measure(self.mem, argv), measure(self.mem, envp));
            answer = self.mem.raw(self.nr, &self.args);
            if answer != FAULT {
                break;
            }
        }
        answer
    }

    /// Whether the program is there: shells and libc try one directory after the other.
    fn exists(&self) -> bool {
        const SYS_FACCESSAT2: u64 = 439;
        const X_OK: u64 = 1;
        const LOOKUP_FLAGS: u64 = (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) as u64;
        let first = first_argument(self.nr);
        let (directory, flags) = if first == 1 { (self.args[0], self.args[4]) } else { (libc::AT_FDCWD as u64, 0) };
        let path = self.image.as_ref().map_or(self.args[first], |image| image.path);
        // Without a copy, for it to be present.
        let _ = string_len(self.mem, path);
        self.mem.own(SYS_FACCESSAT2, &[directory, path, X_OK, flags & LOOKUP_FLAGS, 0, 0]) == 0
    }
}

impl<M: Memory> Drop for Prepared<'_, M> {
    fn drop(&mut self) {
        if let Some(note) = self.note {
            note.give_back();
        }
    }
}

/// Bytes of strings and pointers that the kernel takes (`bprm_stack_limits`).
fn strings_limit(mem: &impl Memory) -> u64 {
    const LEAST: u64 = 128 << 10;
    const MOST: u64 = 6 << 20;
    let mut stack = [0_u64; 2];
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let place = super::super::buffers::pin_local(mem, &mut pins, &mut stack);
    let answer = mem.own(libc::SYS_prlimit64 as u64, &[0, libc::RLIMIT_STACK as u64, 0, place, 0, 0]);
    if answer == 0 { (stack[0] / 4).clamp(LEAST, MOST) } else { LEAST }
}

/// Makes an `execve` or `execveat` with copies of its strings, whatever the new program runs under; returns only if it fails.
pub fn call(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    prepare(mem, nr, args, None).map_or_else(|error| error, |prepared| prepared.call(|_| {}))
}

/// Bytes of a string with its zero byte (cut where the kernel refuses it); `None` if it cannot be read.
fn string_len(mem: &impl Memory, addr: u64) -> Option<u64> {
    if addr == 0 {
        return None;
    }
    // One byte more than the kernel accepts, so that it refuses the copy as it would the original.
    text_len(mem, &mut Pins::new(mem, &mut PinSet::new()), addr, STRING_MAX + 1)
}

fn entry(mem: &impl Memory, array: u64, index: u64) -> Result<u64, i64> {
    let value = read_once::<u64>(mem, array.wrapping_add(index * 8));
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
        let len = string_len(mem, text).unwrap_or(0);
        size.bytes += len;
        size.longest = size.longest.max(len);
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
    /// Copies an array and its strings to offset `at`.
    fn array(&mut self, array: u64, at: u64, size: Size) -> Result<(), i64> {
        let mut left = size.bytes;
        for index in 0..size.entries {
            let text = entry(self.mem, array, index)?;
            let len = string_len(self.mem, text).unwrap_or(0).min(left);
            left -= len;
            let copy = self.string(text, len);
            self.scratch.store(at + index * 8, copy);
        }
        Ok(())
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
}
