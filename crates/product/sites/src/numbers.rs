//! The number of a call, as far as the instructions before it tell.

use crate::decode::{Flow, Instruction, Kind};
use crate::plan::Function;

/// `rt_sigreturn`.
const SIGRETURN: u64 = 15;

/// Numbers of registers, as instructions have them.
const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const R11: u8 = 11;

/// The number that an instruction loads into `rax`.
fn loads_number(instruction: &Instruction) -> Option<u64> {
    if instruction.first_register() != Some(RAX) {
        return None;
    }
    if instruction.clears() { Some(0) } else { instruction.moved_constant() }
}

/// Whether it is one of those that load arguments, and surely does not change `rax`.
fn leaves_rax(instruction: &Instruction) -> bool {
    use Kind::{Arithmetic, Compare, Extend, Lea, Mov, Nop, Shift, Xor};
    let known = matches!(instruction.kind(), Arithmetic | Compare | Extend | Lea | Mov | Nop | Shift | Xor);
    known && instruction.first_register() != Some(RAX)
}

/// Whether the instruction before this one sets `rax` to the number of `rt_sigreturn`.
pub(crate) fn sets_sigreturn(function: &Function<'_>, site: usize) -> bool {
    let before = site.checked_sub(1).and_then(|before| function.get(before));
    before.as_ref().and_then(loads_number) == Some(SIGRETURN)
}

/// The number of the call at `site`, if the instructions right before it say so, and no jump of the function leads between them. (A jump by a table leads to where a
/// case begins, which loads what it needs.)
pub(crate) fn number_of(function: &Function<'_>, site: usize, targets: &[u64]) -> Option<u64> {
    /// Instructions that load arguments come between.
    const FAR: usize = 16;
    for index in (0..site).rev().take(FAR) {
        let instruction = &function.get(index)?;
        if targets.contains(&instruction.next_ip()) || instruction.flow() != Flow::Next {
            return None;
        }
        if let Some(number) = loads_number(instruction) {
            return Some(number);
        }
        if instruction.first_register() == Some(RAX)
            && let Some(register) = instruction.moved_register()
        {
            return constant_in(function, register);
        }
        if !leaves_rax(instruction) {
            return None;
        }
    }
    None
}

/// What a register holds wherever it is used, if the function loads one number into it and nothing else.
fn constant_in(function: &Function<'_>, register: u8) -> Option<u64> {
    let (mut number, mut others) = (None, matches!(register, RAX | RCX | RDX | R11));
    // Which registers one of VEX writes is not known.
    others |= function.all().any(|instruction| instruction.is_vex());
    for instruction in function.all().filter(|instruction| instruction.first_register() == Some(register)) {
        match (instruction.moved_four(), instruction.kind()) {
            (Some(moved), _) if number.is_none_or(|number| number == moved) => number = Some(moved),
            // The caller's, which is kept.
            (_, Kind::Push | Kind::Pop | Kind::Compare) => {}
            _ => others = true,
        }
    }
    number.filter(|_| !others)
}
