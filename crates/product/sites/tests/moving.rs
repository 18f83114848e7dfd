//! Instructions that are moved by arithmetic are what iced's encoder would have made of them.

use farshore_sites::{SYSCALL, Window};
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Instruction, MemoryOperand, Register};
use proptest::prelude::*;

/// Instructions with an operand relative to `rip`, as compilers use them around calls; some with an immediate behind the distance.
fn instruction(kind: u8, target: u64, immediate: i32) -> Instruction {
    let memory = MemoryOperand::with_base_displ(Register::RIP, target as i64);
    let made = match kind % 7 {
        0 => Instruction::with2(Code::Mov_r64_rm64, Register::RDX, memory),
        1 => Instruction::with2(Code::Lea_r64_m, Register::RDI, memory),
        2 => Instruction::with2(Code::Mov_rm32_imm32, memory, immediate),
        3 => Instruction::with2(Code::Cmp_rm8_imm8, memory, immediate & 0x7f),
        4 => Instruction::with2(Code::Test_rm32_imm32, memory, immediate),
        5 => Instruction::with2(Code::Movups_xmm_xmmm128, Register::XMM3, memory),
        _ => Instruction::with2(Code::Or_rm64_imm32, memory, immediate),
    };
    made.expect("an instruction")
}

fn encoded(instruction: &Instruction, at: u64) -> Option<Vec<u8>> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, at).ok()?;
    Some(encoder.take_buffer())
}

/// `bytes` at `start` as iced moves them to `to`: decoded and encoded anew.
fn moved_by_iced(bytes: &[u8], start: u64, to: u64) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for instruction in &mut Decoder::with_ip(64, bytes, start, DecoderOptions::NONE) {
        all.extend(encoded(&instruction, to + all.len() as u64)?);
    }
    Some(all)
}

proptest! {
    #[test]
    fn as_the_encoder_does_it(
        kinds in prop::collection::vec((any::<u8>(), -0x7000_0000_i64..0x7000_0000, any::<i32>()), 1..3),
        behind in any::<bool>(),
        way in -0x9000_0000_i64..0x9000_0000,
    ) {
        let start = 0x7f00_1234_5678_u64;
        let mut others = Vec::new();
        let first = if behind { start + 2 } else { start };
        for &(kind, distance, immediate) in &kinds {
            let at = first + others.len() as u64;
            let one = instruction(kind, at.wrapping_add_signed(distance), immediate);
            others.extend(encoded(&one, at).expect("near enough"));
        }
        let code = if behind { [&SYSCALL[..], &others].concat() } else { [&others[..], &SYSCALL].concat() };
        prop_assume!(code.len() <= farshore_sites::WINDOW_MOST);
        let site = if behind { start + 2 } else { start + code.len() as u64 };
        let window = Window::decoded(start, &code, site, 1).expect("a window");
        prop_assert_eq!(window.fixups().len(), kinds.len());
        let part = first..first + others.len() as u64;
        let to = first.wrapping_add_signed(way);
        let moved = window.moved(part, to).map(|moved| moved.bytes().to_vec());
        prop_assert_eq!(moved, moved_by_iced(&others, first, to));
    }
}
