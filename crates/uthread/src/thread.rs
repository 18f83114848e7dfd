//! What the kernel keeps for each OS thread and a worker has to know: cores, signal mask, alternate stack, shadow stack.

use crate::error::Error;

/// The cores that this process may run on.
pub(crate) fn allowed_cores() -> Result<Vec<usize>, Error> {
    // SAFETY: a set of bits; all zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: writes at most its size to `set`.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Err(Error::system("cannot tell which cores may be used; more than 1,024 of them? pid", 0));
    }
    // SAFETY: the numbers are below the set's size.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Keeps this thread on `core`.
pub(crate) fn pin(core: usize) -> Result<(), Error> {
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the number came from such a set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: reads `set`.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(Error::system("cannot pin a worker to its core (Config::pin = false?)", core as u64)),
    }
}

/// Refuses a thread with a hardware shadow stack: a switch of stacks leaves it behind.
pub(crate) fn refuse_shadow_stack() -> Result<(), Error> {
    const ARCH_SHSTK_STATUS: libc::c_long = 0x5005;
    let mut status = 0u64;
    // SAFETY: writes eight bytes. Kernels without shadow stacks answer EINVAL.
    let answer = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &raw mut status) };
    if answer == 0 && status & 1 != 0 { Err(Error::ShadowStack) } else { Ok(()) }
}

/// Blocks signals of the program on this thread, but for those that its own code raises: a handler that runs on top of the scheduler could not wait for a page.
pub(crate) fn block_signals() {
    // SAFETY: an empty set, which is filled.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: writes to `set`.
    unsafe { libc::sigfillset(&raw mut set) };
    for raised in [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT] {
        // SAFETY: as above; a signal that there is.
        unsafe { libc::sigdelset(&raw mut set, raised) };
    }
    // SAFETY: reads `set`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, core::ptr::null_mut()) };
}

/// This thread's signal mask, as the kernel keeps it: bit n is signal n + 1.
pub(crate) fn mask() -> u64 {
    let mut mask = 0u64;
    let none = core::ptr::null::<u64>();
    // SAFETY: sets nothing, and writes eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, none, &raw mut mask, 8) };
    mask
}
