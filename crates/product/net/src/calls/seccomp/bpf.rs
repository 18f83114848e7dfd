//! The classic BPF programs of `seccomp`, run with words that may be unknown.
//!
//! What is known of a call is its number, the architecture, and some of its arguments. Everything else is [`None`]: a
//! jump on it is followed both ways. A program is a list without loops, so this ends; a program that has too many ways gets a *no*.
//!
//! Source: `kernel/seccomp.c` (`seccomp_check_filter`) and `net/core/filter.c` (`bpf_check_classic`).

/// The kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instruction {
    pub(super) code: u16,
    pub(super) yes: u8,
    pub(super) no: u8,
    pub(super) k: u32,
}

/// A word that may be unknown.
type Word = Option<u32>;

const ARCH_X86_64: u32 = 0xc000_003e;
/// Bytes of `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
const DATA_BYTES: u32 = 64;
const ARGS_AT: u32 = 16;
const MEMORY: usize = 16;
/// Steps after which a filter counts as one that stops the call.
const STEPS_MAX: usize = 200_000;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ACTION: u32 = 0xffff_0000;

// Codes of instructions: class, size and mode or operation and source.
const LD_ABS: u16 = 0x20;
const LD_LEN: u16 = 0x80;
const LDX_LEN: u16 = 0x81;
const LD_IMM: u16 = 0x00;
const LDX_IMM: u16 = 0x01;
const LD_MEM: u16 = 0x60;
const LDX_MEM: u16 = 0x61;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;
const JA: u16 = 0x05;
const NEG: u16 = 0x84;
const CLASS: u16 = 0x07;
const CLASS_ALU: u16 = 0x04;
const CLASS_JMP: u16 = 0x05;
const SOURCE_X: u16 = 0x08;

/// Operations on the accumulator, by the upper half of the code.
const OPERATIONS: [u16; 9] = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0];
/// Jumps, as well: equal, greater, greater or equal, bits set.
const JUMPS: [u16; 4] = [0x10, 0x20, 0x30, 0x40];

/// Whether the kernel would accept the program, as far as we know its rules.
pub(super) fn is_valid(program: &[Instruction]) -> bool {
    let ends = program.last().is_some_and(|last| matches!(last.code, RET_K | RET_A));
    ends && program.iter().enumerate().all(|(at, instruction)| {
        let left = program.len() - at - 1;
        let Instruction { code, yes, no, k } = *instruction;
        match code {
            LD_ABS => k.is_multiple_of(4) && k < DATA_BYTES,
            LD_MEM | LDX_MEM | ST | STX => (k as usize) < MEMORY,
            LD_IMM | LDX_IMM | LD_LEN | LDX_LEN | RET_K | RET_A | TAX | TXA | NEG => true,
            JA => (k as usize) < left,
            _ => match (code & CLASS, code & !(CLASS | SOURCE_X), code & SOURCE_X) {
                (CLASS_JMP, jump, _) if JUMPS.contains(&jump) => usize::from(yes) < left && usize::from(no) < left,
                // Division by nothing, and shifts by more bits than there are.
                (CLASS_ALU, 0x30, 0) => k != 0,
                (CLASS_ALU, 0x60 | 0x70, 0) => k < 32,
                (CLASS_ALU, operation, _) => OPERATIONS.contains(&operation) && operation != 0x90,
                _ => false,
            },
        }
    })
}

/// Where a run is.
#[derive(Clone, Copy)]
struct State {
    at: usize,
    a: Word,
    x: Word,
    memory: [Word; MEMORY],
}

/// What an instruction comes to.
enum Next {
    Go(State),
    Either(State, State),
    Return(Word),
}

/// Whether a valid program lets every call with this number and these arguments pass (`None`: any), logged or not.
pub(super) fn always_allows(program: &[Instruction], nr: u32, args: &[Option<u64>; 6]) -> bool {
    always(program, nr, args, &|verdict| matches!(verdict & RET_ACTION, RET_ALLOW | RET_LOG))
}

/// Whether each such call passes or has an error, so that the thread goes on.
pub(super) fn always_returns(program: &[Instruction], nr: u32, args: &[Option<u64>; 6]) -> bool {
    always(program, nr, args, &|verdict| matches!(verdict & RET_ACTION, RET_ALLOW | RET_LOG | RET_ERRNO))
}

fn always(program: &[Instruction], nr: u32, args: &[Option<u64>; 6], is_fine: &dyn Fn(u32) -> bool) -> bool {
    // The memory is zero at first; the kernel makes sure that nothing is read that was not written.
    let mut ways = vec![State { at: 0, a: Some(0), x: Some(0), memory: [Some(0); MEMORY] }];
    for _ in 0..STEPS_MAX {
        let Some(state) = ways.pop() else { return true };
        let Some(&instruction) = program.get(state.at) else { return false };
        match step(state, instruction, nr, args) {
            Next::Go(state) => ways.push(state),
            Next::Either(one, other) => ways.extend([one, other]),
            Next::Return(Some(verdict)) if is_fine(verdict) => {}
            Next::Return(_) => return false,
        }
    }
    false
}

fn step(mut state: State, instruction: Instruction, nr: u32, args: &[Option<u64>; 6]) -> Next {
    let Instruction { code, yes, no, k } = instruction;
    state.at += 1;
    match code {
        LD_ABS => state.a = load(k, nr, args),
        LD_LEN => state.a = Some(DATA_BYTES),
        LDX_LEN => state.x = Some(DATA_BYTES),
        LD_IMM => state.a = Some(k),
        LDX_IMM => state.x = Some(k),
        LD_MEM => state.a = state.memory[k as usize % MEMORY],
        LDX_MEM => state.x = state.memory[k as usize % MEMORY],
        ST => state.memory[k as usize % MEMORY] = state.a,
        STX => state.memory[k as usize % MEMORY] = state.x,
        TAX => state.x = state.a,
        TXA => state.a = state.x,
        NEG => state.a = state.a.map(u32::wrapping_neg),
        RET_K => return Next::Return(Some(k)),
        RET_A => return Next::Return(state.a),
        JA => state.at += k as usize,
        _ => {
            let operand = if code & SOURCE_X != 0 { state.x } else { Some(k) };
            let operation = code & !(CLASS | SOURCE_X);
            if code & CLASS == CLASS_ALU {
                match calculate(operation, state.a, operand) {
                    Ok(result) => state.a = result,
                    // The kernel ends the program with 0.
                    Err(DividedByZero) => return Next::Return(Some(0)),
                }
            } else {
                return jump(state, operation, operand, usize::from(yes), usize::from(no));
            }
        }
    }
    Next::Go(state)
}

/// A word of `struct seccomp_data`.
fn load(offset: u32, nr: u32, args: &[Option<u64>; 6]) -> Word {
    match offset {
        0 => Some(nr),
        4 => Some(ARCH_X86_64),
        // The instruction pointer: somewhere in our text.
        8 | 12 => None,
        _ => {
            let arg = args[(offset - ARGS_AT) as usize / 8]?;
            Some(if offset.is_multiple_of(8) { arg as u32 } else { (arg >> 32) as u32 })
        }
    }
}

struct DividedByZero;

fn calculate(operation: u16, a: Word, operand: Word) -> Result<Word, DividedByZero> {
    // An unknown divisor may be zero, so nothing is certain of what comes.
    if operation == 0x30 && operand.is_none_or(|by| by == 0) {
        return Err(DividedByZero);
    }
    let (Some(a), Some(by)) = (a, operand) else { return Ok(None) };
    Ok(Some(match operation {
        0x00 => a.wrapping_add(by),
        0x10 => a.wrapping_sub(by),
        0x20 => a.wrapping_mul(by),
        0x30 => a / by,
        0x40 => a | by,
        0x50 => a & by,
        0x60 => a.wrapping_shl(by),
        0x70 => a.wrapping_shr(by),
        _ => a ^ by,
    }))
}

fn jump(state: State, operation: u16, operand: Word, yes: usize, no: usize) -> Next {
    let to = |offset: usize, a: Word| {
        let mut next = state;
        next.at += offset;
        next.a = a;
        next
    };
    let (Some(a), Some(by)) = (state.a, operand) else {
        // Where it was equal it is known.
        let equal = if operation == 0x10 && state.a.is_none() { operand } else { state.a };
        return Next::Either(to(yes, equal), to(no, state.a));
    };
    let taken = match operation {
        0x10 => a == by,
        0x20 => a > by,
        0x30 => a >= by,
        _ => a & by != 0,
    };
    Next::Go(to(if taken { yes } else { no }, state.a))
}
