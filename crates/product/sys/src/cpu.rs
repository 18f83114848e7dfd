//! Which processor the calling thread runs on: a hint, since it may run on another one a moment later.

use core::arch::asm;

use crate::raw::{Errno, nr, syscall_result};

/// The selector whose limit the kernel keeps for this: processor in the low 12 bits, NUMA node above. The vDSO's `getcpu` reads it too.
const SELECTOR: u32 = 15 * 8 + 3;

/// The processor's index. No system call: it is asked at each fault.
#[inline]
pub fn current() -> usize {
    let mut limit: u32 = 0;
    // SAFETY: `lsl` reads a descriptor's limit and faults on none: for a selector that is not valid it leaves the register as it is.
    unsafe {
        asm!("lsl {limit:e}, {selector:e}", limit = inout(reg) limit, selector = in(reg) SELECTOR, options(nomem, nostack))
    };
    (limit & 0xfff) as usize
}

/// Words of a set of processors: 8192 of them, as many as the kernel can be built for.
const WORDS: usize = 128;

/// The processors on which the calling thread may run.
///
/// # Errors
/// What sched_getaffinity(2) answers.
fn allowed() -> Result<[u64; WORDS], Errno> {
    let mut set = [0u64; WORDS];
    let place = core::ptr::from_mut(&mut set).expose_provenance() as u64;
    // SAFETY: writes at most that many bytes there.
    unsafe { syscall_result(nr::SCHED_GETAFFINITY, [0, size_of_val(&set) as u64, place, 0, 0, 0]) }?;
    Ok(set)
}

/// Lets the calling thread run on one processor alone: the one with this number among those on which it may, counted round.
///
/// # Errors
/// What the kernel answers. It stays free then.
pub fn stay_on(number: usize) -> Result<(), Errno> {
    let all = allowed()?;
    let is_in = |core: &usize| all[core / 64] >> (core % 64) & 1 != 0;
    let count = all.iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1);
    let core = (0..WORDS * 64).filter(is_in).nth(number % count).unwrap_or(0);
    let mut one = [0u64; WORDS];
    one[core / 64] = 1 << (core % 64);
    let place = core::ptr::from_ref(&one).expose_provenance() as u64;
    // SAFETY: reads that many bytes.
    unsafe { syscall_result(nr::SCHED_SETAFFINITY, [0, size_of_val(&one) as u64, place, 0, 0, 0]) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHED_SETAFFINITY: u64 = nr::SCHED_SETAFFINITY;
    const SCHED_GETAFFINITY: u64 = nr::SCHED_GETAFFINITY;

    #[test]
    fn threads_stay_on_processors_of_their_own_as_far_as_they_go() {
        let places =
            |set: &[u64; WORDS]| (0..WORDS * 64).filter(|core| set[core / 64] >> (core % 64) & 1 != 0).collect::<Vec<_>>();
        let all = places(&allowed().unwrap());
        for number in 0..all.len() + 1 {
            let stayed = std::thread::spawn(move || stay_on(number).and_then(|()| allowed())).join().unwrap().unwrap();
            assert_eq!(places(&stayed), [all[number % all.len()]]);
        }
    }

    fn set(cores: &[u64; 16]) {
        // SAFETY: reads that many bytes.
        let done = unsafe { syscall_result(SCHED_SETAFFINITY, [0, size_of_val(cores) as u64, cores.as_ptr() as u64, 0, 0, 0]) };
        assert!(done.is_ok(), "a thread may choose among the processors on which it may run");
    }

    #[test]
    fn a_thread_that_may_run_on_one_processor_runs_there() {
        let mut all = [0u64; 16];
        // SAFETY: writes that many bytes.
        let got = unsafe { syscall_result(SCHED_GETAFFINITY, [0, size_of_val(&all) as u64, all.as_mut_ptr() as u64, 0, 0, 0]) };
        assert!(got.is_ok());
        for core in (0..1024).filter(|core| all[core / 64] >> (core % 64) & 1 != 0) {
            let mut one = [0; 16];
            one[core / 64] = 1 << (core % 64);
            set(&one);
            assert_eq!(super::current(), core);
        }
        set(&all);
    }
}
