//! The number of a call, as far as the instructions before it tell.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// `rt_sigreturn`.
const SIGRETURN: u64 = 15;

/// The number that an instruction loads into `rax`.
fn loads_number(instruction: &Instruction) -> Option<u64> {
    let is_rax = |register: Register| register.full_register() == Register::RAX;
    if instruction.op_count() < 2 || !is_rax(instruction.op0_register()) {
        return None;
    }
    let constant = matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64);
    match instruction.mnemonic() {
        Mnemonic::Mov if constant => Some(instruction.immediate(1)),
        Mnemonic::Xor if instruction.op1_register() == instruction.op0_register() => Some(0),
        _ => None,
    }
}

/// Whether it is one of those that load arguments, and surely does not change `rax`.
fn leaves_rax(instruction: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Lea, Mov, Movsx, Movsxd, Movzx, Nop, Or, Sar, Shl, Shr, Sub, Test, Xor};
    let known = matches!(
        instruction.mnemonic(),
        Add | And | Cmp | Lea | Mov | Movsx | Movsxd | Movzx | Nop | Or | Sar | Shl | Shr | Sub | Test | Xor
    );
    known && (instruction.op0_kind() != OpKind::Register || instruction.op0_register().full_register() != Register::RAX)
}

/// Whether the last instruction sets `rax` to the number of `rt_sigreturn`.
pub(crate) fn sets_sigreturn(before: &[Instruction]) -> bool {
    before.last().and_then(loads_number) == Some(SIGRETURN)
}

/// The number of the call at `site`, if the instructions right before it say so, and no jump of the function leads between them. (A jump by a table leads to where a
/// case begins, which loads what it needs.)
pub(crate) fn number_of(function: &[Instruction], site: usize, targets: &[u64]) -> Option<u64> {
    /// Instructions that load arguments come between.
    const FAR: usize = 16;
    for instruction in function[..site].iter().rev().take(FAR) {
        if targets.contains(&instruction.next_ip()) || instruction.flow_control() != FlowControl::Next {
            return None;
        }
        if let Some(number) = loads_number(instruction) {
            return Some(number);
        }
        if instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::EAX {
            return constant_in(function, instruction.op1_register());
        }
        if !leaves_rax(instruction) {
            return None;
        }
    }
    None
}

/// What a register holds wherever it is used, if the function loads one number into it and nothing else.
fn constant_in(function: &[Instruction], register: Register) -> Option<u64> {
    let is_it = |other: Register| other.full_register() == register.full_register();
    let (mut number, mut others) = (None, false);
    for instruction in function.iter().filter(|i| i.op0_kind() == OpKind::Register && is_it(i.op0_register())) {
        let constant = instruction.op_count() == 2 && instruction.op1_kind() == OpKind::Immediate32;
        match instruction.mnemonic() {
            Mnemonic::Mov if constant && number.is_none_or(|number| number == instruction.immediate(1)) => {
                number = Some(instruction.immediate(1));
            }
            // The caller's, which is kept.
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Cmp | Mnemonic::Test => {}
            _ => others = true,
        }
    }
    number.filter(|_| {
        register.is_gpr32() && !others && !matches!(register, Register::EAX | Register::ECX | Register::EDX | Register::R11D)
    })
}
