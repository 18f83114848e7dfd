//! Monotonic time.
//!
//! The vDSO answers in tens of nanoseconds where a system call takes hundreds, so it is used where it is a
//! plain function. It is not one when the kernel's clock source cannot be read in user space: then the
//! vDSO itself executes a `syscall` instruction, outside our text, which Syscall User Dispatch would
//! catch and hand back to us. [`MonotonicClock::new`] looks at the clock source and uses our own system call for
//! every source that is not known to be readable. (A source that the kernel gives up while the program runs, after
//! the boot's own checks of it, would bring such calls; the net then serves them like any call of the program.)

use crate::fd;
use crate::raw;
use farshore_core::seams::Clock;

const CLOCK_GETTIME: u64 = 228;
const CLOCK_MONOTONIC: u64 = 1;
const CLOCK_PROCESS_CPUTIME_ID: u64 = 2;
const SOURCE: &core::ffi::CStr = c"/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Clock sources that the x86-64 vDSO reads without entering the kernel.
const READABLE: [&[u8]; 3] = [b"tsc", b"kvm-clock", b"hyperv_clocksource_tsc_page"];

/// `CLOCK_MONOTONIC`. Reading it is async-signal-safe.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    vdso: bool,
}

impl MonotonicClock {
    /// Looks at the clock source (allocates, opens a file) and at the vDSO. To be called at start-up.
    pub fn new() -> MonotonicClock {
        let source = fd::read_file(SOURCE, 64).unwrap_or_default();
        let vdso = READABLE.contains(&source.trim_ascii());
        let clock = MonotonicClock { vdso };
        // The first reading makes rustix find the vDSO; later ones only load a pointer.
        clock.now_ns();
        clock
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        if !self.vdso {
            return by_syscall();
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// The same time, where no clock was made yet.
pub fn by_syscall() -> u64 {
    ask(CLOCK_MONOTONIC)
}

/// Processor time of all threads of the process so far, in ns.
pub fn of_process() -> u64 {
    ask(CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time of a thread of this process so far, in ns; 0: there is none of this number.
pub fn of_thread(tid: u32) -> u64 {
    // The kernel's numbers of clocks (`include/linux/posix-timers.h`): a thread's, by the scheduler.
    ask(i64::from(!(tid as i32) << 3 | 6) as u64)
}

fn ask(clock: u64) -> u64 {
    let mut now = [0u64; 2];
    // SAFETY: the kernel writes one timespec (two 64-bit numbers) into `now`. It leaves it alone where there is no such clock.
    let _ = unsafe { raw::syscall(CLOCK_GETTIME, [clock, now.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    now[0] * 1_000_000_000 + now[1]
}

/// Sleeps for `ns` nanoseconds, or until a signal.
pub fn sleep_ns(ns: u64) {
    const NANOSLEEP: u64 = 35;
    let time = [ns / 1_000_000_000, ns % 1_000_000_000];
    // SAFETY: the kernel reads one timespec from `time`, which lives through the call. Ending early is allowed.
    let _ = unsafe { raw::syscall(NANOSLEEP, [time.as_ptr() as u64, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_forward_and_both_ways_agree() {
        let clock = MonotonicClock::new();
        let (first, other) = (clock.now_ns(), by_syscall());
        sleep_ns(5_000_000);
        let second = clock.now_ns();
        assert!(second - first >= 5_000_000);
        assert!(other - first < 1_000_000_000 && first > 0);
    }

    #[test]
    fn a_thread_has_its_own_processor_time() {
        let busy = || (0..5_000_000u64).fold(0, |sum, n| core::hint::black_box(sum ^ n));
        let me = raw::gettid();
        let before = of_thread(me);
        busy();
        let mine = of_thread(me);
        std::thread::spawn(busy).join().unwrap();
        assert!(mine > before);
        assert!(of_process() >= mine);
        // The kernel numbers threads up to 2^22.
        assert_eq!(of_thread(0x00ff_ffff), 0);
    }
}
