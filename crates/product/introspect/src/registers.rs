//! What the processors of a guest run, as QEMU's monitor tells it (`info registers -a`).
//!
//! It is a look now and then, and not the moment of a fault: which instruction has touched a page, and by which virtual address, a stock kernel tells nobody outside of the processor's own exit.

use crate::paging::Paging;

/// A virtual processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// How it translates.
    pub paging: Paging,
    /// Its instruction pointer.
    pub ip: u64,
    /// It runs a program of the guest, and not its kernel.
    pub in_program: bool,
    /// It waits for an interrupt.
    pub is_idle: bool,
}

/// Paging is on.
const CR0_PG: u64 = 1 << 31;
/// Entries of 8 bytes.
const CR4_PAE: u64 = 1 << 5;
/// Five levels.
const CR4_LA57: u64 = 1 << 12;
/// 64-bit mode is active.
const EFER_LMA: u64 = 1 << 10;
/// No guest has more processors that are looked at.
const PROCESSORS_MAX: usize = 1024;

/// The processors that translate by tables of 64-bit mode. Others (a guest that boots, or one of 32 bits) are left out.
#[must_use]
pub fn processors(text: &str) -> Vec<Processor> {
    let of = |part: &str| {
        let value = |name: &str, radix| {
            let word = part.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
            u64::from_str_radix(word, radix).ok()
        };
        let (cr0, cr3, cr4, efer) = (value("CR0", 16)?, value("CR3", 16)?, value("CR4", 16)?, value("EFER", 16)?);
        let is_long = cr0 & CR0_PG != 0 && cr4 & CR4_PAE != 0 && efer & EFER_LMA != 0;
        let levels = if cr4 & CR4_LA57 != 0 { 5 } else { 4 };
        is_long.then(|| Processor {
            // How many bits its addresses have is not told. What lies beyond is outside of its memory, and found to be.
            paging: Paging::new(cr3, levels, 52),
            ip: value("RIP", 16).unwrap_or(0),
            in_program: value("CPL", 10) == Some(3),
            is_idle: value("HLT", 10) == Some(1),
        })
    };
    text.split("CPU#").skip(1).take(PROCESSORS_MAX).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QEMU 7.2, what matters of it.
    const TOLD: &str = "\r\nCPU#0\r\nRAX=0000000000000000 RBX=ffffffff82a12940\r\nR8 =0000000000000001 R9 =0000000000000000\r\n\
RIP=00007f0011223344 RFL=00000246 [---Z-P-] CPL=3 II=0 A20=1 SMM=0 HLT=0\r\nES =0000 0000000000000000 ffffffff 00000000\r\n\
CR0=80050033 CR2=00007f01 CR3=0000000004c0a006 CR4=000006f0\r\nDR0=0 DR1=0\r\nEFER=0000000000000d01\r\n\
CPU#1\r\nRIP=ffffffff81c001aa RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\r\nCR0=80050033 CR2=0 CR3=0000000002a10000 CR4=000016f0\r\nEFER=0000000000000d01\r\n\
CPU#2\r\nEIP=0000fff0 EFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\r\nCR0=60000010 CR2=00000000 CR3=00000000 CR4=00000000\r\nEFER=0000000000000000\r\n";

    #[test]
    fn processors_in_64_bit_mode_are_told() {
        let found = processors(TOLD);
        let one = Processor { paging: Paging::new(0x4c0_a000, 4, 52), ip: 0x7f00_1122_3344, in_program: true, is_idle: false };
        let two =
            Processor { paging: Paging::new(0x2a1_0000, 5, 52), ip: 0xffff_ffff_81c0_01aa, in_program: false, is_idle: true };
        assert_eq!(found, [one, two], "the third one has not booted");
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_no_processor() {
        for end in 0..TOLD.find("EFER").expect("it is there") {
            assert!(processors(&TOLD[..end]).is_empty());
        }
        assert!(processors("unknown command: 'info'").is_empty());
        assert!(processors("CPU#0 CR0=zz CR3= CR4=6f0 EFER=d01").is_empty());
        assert_eq!(processors(&TOLD.repeat(2000)).len(), PROCESSORS_MAX - PROCESSORS_MAX / 3, "a bound");
    }
}
