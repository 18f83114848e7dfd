//! What the kernel keeps for each OS thread and a worker has to know: cores, signal mask, turns, shadow stack. Its clock, and its futex.
//!
//! A worker changes three of these for itself ([`pin`], [`block_signals`], [`ask_for_short_turns`]), and the kernel hands all three on to children and new
//! threads. [`Inherited`] is what they had before.

use crate::ground::error::Error;
use core::sync::atomic::AtomicU32;

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

/// The kernel's `struct sched_attr`.
#[repr(C)]
#[derive(Debug, Default)]
struct Turns {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Turns {
    /// This thread's. `None`: it has another policy, which stays the program's, or the kernel does not tell.
    fn now() -> Option<Turns> {
        let mut now = Turns { size: size_of::<Turns>() as u32, ..Turns::default() };
        // SAFETY: writes at most the size that is told.
        let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, now.size, 0) } == 0;
        (known && now.policy == libc::SCHED_OTHER as u32).then_some(now)
    }

    /// From now on this thread has turns of so many nanoseconds.
    fn change(mut self, slice: u64) {
        self.runtime = slice;
        // SAFETY: reads the structure.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const self, 0) };
    }
}

/// Asks the kernel for short turns on the processor: a thread that runs for microseconds and sleeps goes before one that runs for milliseconds, and gets no more in all. Linux 6.12; before that,
/// and where it may not be, nothing changes.
pub(crate) fn ask_for_short_turns() {
    const SLICE_NS: u64 = 100_000;
    if let Some(turns) = Turns::now() {
        turns.change(SLICE_NS);
    }
}

/// What of a thread's is handed on to what it starts.
pub(crate) struct Inherited {
    mask: libc::sigset_t,
    /// `None`: it cannot be told, and is left alone.
    cores: Option<libc::cpu_set_t>,
    slice: Option<u64>,
}

impl Inherited {
    /// This thread's, as it is now.
    pub(crate) fn now() -> Inherited {
        // SAFETY: an empty set.
        let mut mask: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: sets nothing, and writes to `mask`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, core::ptr::null(), &raw mut mask) };
        // SAFETY: a set of bits; all zero is the empty one.
        let mut cores: libc::cpu_set_t = unsafe { core::mem::zeroed() };
        // SAFETY: writes at most its size to `cores`.
        let told = unsafe { libc::sched_getaffinity(0, size_of_val(&cores), &raw mut cores) } == 0;
        Inherited { mask, cores: told.then_some(cores), slice: Turns::now().map(|turns| turns.runtime) }
    }

    /// Gives it to this thread. System calls alone, so it may be done in a forked child. What the kernel refuses (cores that are gone) stays as it is.
    pub(crate) fn give(&self) {
        if let (Some(turns), Some(slice)) = (Turns::now(), self.slice) {
            turns.change(slice);
        }
        if let Some(cores) = &self.cores {
            // SAFETY: reads the set.
            unsafe { libc::sched_setaffinity(0, size_of_val(cores), cores) };
        }
        // Last: a handler that has waited runs as it would have before.
        // SAFETY: reads the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, core::ptr::null_mut()) };
    }
}

impl core::fmt::Debug for Inherited {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inherited").field("slice", &self.slice).finish_non_exhaustive()
    }
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

/// Nanoseconds of the monotonic clock; never 0.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).max(1)
}

/// How far the real clock is ahead of the monotonic one, in ns.
pub(crate) fn real_ahead() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).saturating_sub(now())
}

/// Sleeps while `*word == expected`, for at most `ns` nanoseconds. May return early.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, ns: Option<u64>) {
    let time = ns.map(|ns| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word and a time of ours; whatever it answers, the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, expected, time) };
}

/// Wakes all threads that sleep on `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address alone is used, and it is the pool's or the runtime's.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, i32::MAX) };
}
