//! The library in programs that load none: static ones, and those of another libc than glibc.
//!
//! `LD_PRELOAD` means nothing to such a program. The kernel executes it as it is, under its own name, and a *helper* puts the
//! library beside it before its first instruction:
//!
//! ```text
//!  the process that executes                     the helper (a process on the same memory)
//!  clone(CLONE_VM) ────────────────────────────▶ PTRACE_SEIZE
//!  execve ── the kernel makes the new memory ──▶ PTRACE_EVENT_EXEC
//!    stands still                                one call made in the new program's name: room for all that comes
//!    makes the calls of a *script* by itself ───▶ a stack, the library, its dynamic linker (`script.rs`)
//!    │                                           what the linker expects on a first stack
//!    ◀────────────────────────────────────────── PTRACE_DETACH, and the helper ends
//!  the dynamic linker ▶ the library's entry (`preload/src/dispatch/hosted.rs`) ▶ the program's entry, as the kernel left it
//! ```
//!
//! The library is a program there, with a libc of its own, which the program knows nothing of. So that the two do not meet:
//!
//! * the library's thread-local words go by `gs` ([`farshore_sys::hosted`]);
//! * a page without rights behind the break keeps the library's libc from moving the program's heap, until the library takes
//!   the page away;
//! * what its libc has told the kernel about the thread (`set_tid_address`, `set_robust_list`) is taken back.
//!
//! # What must hold
//!
//! 1. **The helper touches nothing that the other process may change.** The executing thread may be a child of `vfork`, whose
//!    parent goes on as soon as the kernel has the new program. All that the helper needs is in its own mapping ([`Berth`]),
//!    which it unmaps itself; it allocates nothing, takes no lock and uses no thread-local.
//! 2. **The program runs with the library, or as it would have natively.** Where a step fails, what was mapped is unmapped and
//!    the program goes on; the helper writes why. While it works, the kernel would kill the program if the helper died
//!    (`PTRACE_O_EXITKILL`).
//! 3. **Nothing of the tracing stays.** Signals are blocked meanwhile and come afterwards. The one breakpoint may change the action of
//!    SIGTRAP, which is set back.
//!
//! Such a program must not gain rights by the exec: the kernel leaves out set-user-ID for a program that is traced. The caller
//! sees to that (`farshore_launch`).
#![no_std]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod berth;
mod helper;
mod image;
mod remote;
mod script;
mod stack;

use berth::{Berth, FAILED, READY};
use core::ffi::CStr;
use farshore_sys::raw::{Errno, gettid, nr, syscall, syscall_result};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::thread;

/// See [`passed::SCRIPT`].
pub const SCRIPT_LENGTH: u64 = script::LENGTH;

/// Auxiliary entries by which the helper tells the library where it is. No kernel uses these numbers.
pub mod passed {
    /// Where the program begins: the address of its first instruction, or of its dynamic linker's.
    pub const ENTRY: u64 = 0x4653_0001;
    /// The program's first stack pointer.
    pub const STACK: u64 = 0x4653_0002;
    /// The first instruction of the program itself, as natively `AT_ENTRY` says.
    pub const PROGRAM: u64 = 0x4653_0007;
    /// Not 0: without the library the program shall not run.
    pub const REQUIRED: u64 = 0x4653_0008;
    /// The program's headers in its memory, and their number, as natively `AT_PHDR` and `AT_PHNUM` say.
    pub const HEADERS: u64 = 0x4653_0005;
    /// See [`HEADERS`].
    pub const COUNT: u64 = 0x4653_0006;
    /// The helper's process number: a child that is to be waited for.
    pub const HELPER: u64 = 0x4653_0003;
    /// The page behind the break.
    pub const FENCE: u64 = 0x4653_0004;
    /// The page of the calls that put the library there, of [`crate::SCRIPT_LENGTH`] bytes. Nobody needs it any more.
    pub const SCRIPT: u64 = 0x4653_0009;
}

/// The dynamic linker that runs the library. The library was linked for it.
pub const LOADER: &CStr = c"/lib64/ld-linux-x86-64.so.2";

/// For the library's environment: its libc leaves `rseq`, of which a thread can have one, to the program's.
pub const TUNABLES: &[u8] = b"GLIBC_TUNABLES=glibc.pthread.rseq=0";

/// The variable by which tests have swap spaces inject faults. The library finds it in its own environment.
pub const FAULTS: &str = "FARSHORE_FAULTY";

/// What is put into a program.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// The library's path.
    pub library: &'a CStr,
    /// The environment that the library finds: `NAME=VALUE`.
    pub environment: &'a [&'a [u8]],
    /// Where the library cannot be put there, the program ends with status 125 instead of running natively.
    pub required: bool,
}

/// Makes an exec by `make`, whose program will have the library in it. Returns only if the call fails: its answer.
///
/// The program may run natively all the same, with a line on stderr, if the library cannot be put there.
///
/// # Errors
/// There can be no helper, for this reason, and `make` was not called.
pub fn execute(guest: &Guest<'_>, make: impl FnOnce() -> i64) -> Result<i64, Refused> {
    if has_children_elsewhere() {
        return Err(Refused(
            "its children will be in another process-id namespace, and a helper would be the first of them",
            Errno::EPERM,
        ));
    }
    if refuses_code() {
        return Err(Refused("its code cannot be changed (PR_SET_MDWE)", Errno::EACCES));
    }
    let berth = Berth::new(guest).map_err(|why| Refused("there is no memory for a helper", why))?;
    let before = signal::sigprocmask(How::Set, SigSet::ALL);
    let begun = begin(&berth);
    signal::sigprocmask(How::Set, before);
    let helper = match begun {
        Ok(helper) => helper,
        Err(why) => {
            berth.unmap();
            return Err(why);
        }
    };
    let answer = make();
    end(helper);
    allow_tracing_by(0);
    berth.unmap();
    Ok(answer)
}

/// Whether a child of this process would have its number from another namespace (`unshare`, `setns`). Without `/proc` nobody can tell.
fn has_children_elsewhere() -> bool {
    let [own, children] = [c"/proc/self/ns/pid", c"/proc/self/ns/pid_for_children"].map(|path| {
        const NEWFSTATAT: u64 = 262;
        const AT_FDCWD: u64 = -100i64 as u64;
        let mut about = [0u64; 18];
        // SAFETY: `struct stat`, of 144 bytes.
        let answer = unsafe { syscall(NEWFSTATAT, [AT_FDCWD, path.as_ptr() as u64, about.as_mut_ptr() as u64, 0, 0, 0]) };
        // Device and inode.
        (answer == 0).then_some([about[0], about[1]])
    });
    own.is_some() && own != children
}

/// Whether the new program's text cannot become writable and executable (Linux 6.3).
fn refuses_code() -> bool {
    const PR_GET_MDWE: u64 = 66;
    const REFUSE_EXEC_GAIN: i64 = 1;
    const NO_INHERIT: i64 = 2;
    // SAFETY: asks only.
    let flags = unsafe { syscall(nr::PRCTL, [PR_GET_MDWE, 0, 0, 0, 0, 0]) };
    flags > 0 && flags & REFUSE_EXEC_GAIN != 0 && flags & NO_INHERIT == 0
}

/// Why there is no helper.
#[derive(Clone, Copy, Debug)]
pub struct Refused(pub &'static str, pub Errno);

/// Starts the helper, and waits until it traces this thread.
fn begin(berth: &Berth) -> Result<u32, Refused> {
    const CLONE_VM: u64 = 0x100;
    berth.state().tracee.store(gettid(), core::sync::atomic::Ordering::Relaxed);
    // SAFETY: memory that nobody else uses, and that stays until the helper has ended, or unmaps it itself.
    let helper = unsafe { thread::start_on(CLONE_VM, berth.stack_top(), helper::run, berth.base()) };
    let helper = helper.map_err(|why| Refused("no helper can be started", why))?;
    // Where Yama wants to be asked (Debian's and Ubuntu's kernels).
    allow_tracing_by(helper);
    berth.allow();
    match berth.wait() {
        READY => Ok(helper),
        phase => {
            end(helper);
            allow_tracing_by(0);
            let why = Errno((phase & !FAILED) as i32);
            Err(Refused("its start cannot be traced, by which Farshore would enter it", why))
        }
    }
}

/// Lets a process trace this one; 0: nobody. Without Yama the kernel does not know the call, nor need it.
fn allow_tracing_by(process: u32) {
    const PR_SET_PTRACER: u64 = 0x5961_6d61;
    // SAFETY: changes who may trace this process.
    unsafe { syscall(nr::PRCTL, [PR_SET_PTRACER, process.into(), 0, 0, 0, 0]) };
}

/// Ends a helper whose exec has failed.
fn end(helper: u32) {
    const KILL: u64 = 62;
    const SIGKILL: u64 = 9;
    // SAFETY: a child of ours that nobody has waited for: the number is still its own.
    unsafe { syscall(KILL, [helper.into(), SIGKILL, 0, 0, 0, 0]) };
    wait_for(helper);
}

/// Waits until the helper, a child of the calling process, has ended.
pub fn wait_for(helper: u32) {
    const WAIT4: u64 = 61;
    const WALL: u64 = 0x4000_0000;
    // SAFETY: no status is asked for.
    while unsafe { syscall_result(WAIT4, [helper.into(), 0, WALL, 0, 0, 0]) } == Err(Errno::EINTR) {}
}
