//! Which processor the calling thread runs on: a hint, since it may run on another one a moment later.

use core::arch::asm;

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

#[cfg(test)]
mod tests {
    use crate::raw::syscall_result;

    const SCHED_SETAFFINITY: u64 = 203;
    const SCHED_GETAFFINITY: u64 = 204;

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
