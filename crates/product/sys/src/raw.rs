//! The `syscall` instruction, and what it answers.

use core::arch::asm;

/// Numbers of the system calls that this crate makes (x86-64).
pub mod nr {
    #![allow(missing_docs)]
    pub const READ: u64 = 0;
    pub const CLOSE: u64 = 3;
    pub const POLL: u64 = 7;
    pub const MMAP: u64 = 9;
    pub const MPROTECT: u64 = 10;
    pub const MUNMAP: u64 = 11;
    pub const BRK: u64 = 12;
    pub const RT_SIGACTION: u64 = 13;
    pub const RT_SIGPROCMASK: u64 = 14;
    pub const IOCTL: u64 = 16;
    pub const PREAD64: u64 = 17;
    pub const PWRITE64: u64 = 18;
    pub const MREMAP: u64 = 25;
    pub const MINCORE: u64 = 27;
    pub const MADVISE: u64 = 28;
    pub const GETPID: u64 = 39;
    pub const EXIT: u64 = 60;
    pub const UNAME: u64 = 63;
    pub const FCNTL: u64 = 72;
    pub const GETUID: u64 = 102;
    pub const GETPPID: u64 = 110;
    pub const SIGALTSTACK: u64 = 131;
    pub const FSTATFS: u64 = 138;
    pub const PRCTL: u64 = 157;
    pub const GETTID: u64 = 186;
    pub const SCHED_YIELD: u64 = 24;
    pub const SCHED_SETAFFINITY: u64 = 203;
    pub const SCHED_GETAFFINITY: u64 = 204;
    pub const FUTEX: u64 = 202;
    pub const GETDENTS64: u64 = 217;
    pub const OPENAT: u64 = 257;
    pub const TGKILL: u64 = 234;
    pub const PERF_EVENT_OPEN: u64 = 298;
    pub const PRLIMIT64: u64 = 302;
    pub const KCMP: u64 = 312;
    pub const USERFAULTFD: u64 = 323;
    pub const PREADV2: u64 = 327;
    pub const IO_URING_SETUP: u64 = 425;
    pub const PIDFD_OPEN: u64 = 434;
    pub const PROCESS_MADVISE: u64 = 440;
    pub const CACHESTAT: u64 = 451;
}

/// An error of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Defines the constants of [`Errno`] and their names and texts in one table.
macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            /// The constant's name and what it means, for messages; `None` for numbers this crate never acts on.
            pub const fn describe(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($value => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "not permitted";
    ENOENT = 2, "does not exist";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted";
    EIO = 5, "I/O error";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory, or no memory mapped there";
    EACCES = 13, "access denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "busy";
    EEXIST = 17, "exists already";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument, or not known to this kernel";
    ENFILE = 23, "the system has too many open files";
    EMFILE = 24, "this process has too many open files";
    ENOTTY = 25, "not known to this kernel";
    ENOSPC = 28, "no space left";
    ENOSYS = 38, "system call not available";
    ETIMEDOUT = 110, "timed out";
    EOPNOTSUPP = 95, "not supported";
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.describe() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.describe() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl core::error::Error for Errno {}

/// Enters the kernel. The answer is the result, or minus the errno.
///
/// Inlined, so that the instruction lies in the caller's own text. The number is in `r12` too, which the kernel keeps: a signal handler that finds the call
/// interrupted can tell which one it was.
///
/// # Safety
/// Whatever the call does to memory, descriptors and threads must be sound here.
#[inline(always)]
pub unsafe fn syscall(nr: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller answers for what the call does. The instruction itself writes rax, rcx
    // (return address) and r11 (flags) and restores the flags; it does not touch the stack.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            in("r12") nr,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    result
}

/// Sorts an answer of the kernel into value and error.
#[inline(always)]
pub const fn sort(answer: i64) -> Result<u64, Errno> {
    // The kernel keeps -4095..=-1 for errors.
    if answer < 0 && answer >= -4095 { Err(Errno(-answer as i32)) } else { Ok(answer as u64) }
}

/// [`syscall`] with the answer sorted.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// As [`syscall`].
#[inline(always)]
pub unsafe fn syscall_result(nr: u64, args: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: the caller's promise is the same.
    sort(unsafe { syscall(nr, args) })
}

/// [`syscall_result`], called again while a signal interrupts it.
///
/// # Errors
/// What the kernel answers, but never `EINTR`.
///
/// # Safety
/// As [`syscall`].
#[inline(always)]
pub unsafe fn syscall_retry(nr: u64, args: [u64; 6]) -> Result<u64, Errno> {
    loop {
        // SAFETY: the caller's promise is the same.
        match unsafe { syscall_result(nr, args) } {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// The calling thread's user ids: real, effective, saved.
pub fn users() -> [u32; 3] {
    const GETRESUID: u64 = 118;
    three_ids(GETRESUID)
}

/// The real, effective and saved group of the calling thread.
pub fn groups() -> [u32; 3] {
    const GETRESGID: u64 = 120;
    three_ids(GETRESGID)
}

fn three_ids(number: u64) -> [u32; 3] {
    let mut ids = [0u32; 3];
    let [real, effective, saved] = &mut ids;
    let [real, effective, saved] = [real, effective, saved].map(|id| core::ptr::from_mut(id).expose_provenance() as u64);
    // SAFETY: `number` is one of the two calls above, for which the kernel writes three numbers there.
    let _ = unsafe { syscall(number, [real, effective, saved, 0, 0, 0]) };
    ids
}

/// The process id.
pub fn getpid() -> u32 {
    // SAFETY: reads a number, changes nothing.
    (unsafe { syscall(nr::GETPID, [0; 6]) }) as u32
}

/// Lets other threads that want it have the processor.
pub fn sched_yield() {
    // SAFETY: changes nothing of the process.
    unsafe { syscall(nr::SCHED_YIELD, [0; 6]) };
}

/// The id of this thread.
pub fn gettid() -> u32 {
    // SAFETY: reads a number, changes nothing.
    (unsafe { syscall(nr::GETTID, [0; 6]) }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_errors() {
        assert_eq!(getpid(), std::process::id());
        // SAFETY: closing a descriptor that cannot exist changes nothing.
        let answer = unsafe { syscall_result(nr::CLOSE, [u64::MAX, 0, 0, 0, 0, 0]) };
        assert_eq!(answer, Err(Errno::EBADF));
        assert_eq!(format!("{:?} {}", Errno::EBADF, Errno(77)), "EBADF errno 77");
    }

    #[test]
    fn large_values_are_not_errors() {
        assert_eq!(sort(-4096), Ok(-4096i64 as u64));
        assert_eq!(sort(-4095), Err(Errno(4095)));
        assert_eq!(sort(0), Ok(0));
    }
}
