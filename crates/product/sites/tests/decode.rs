//! What [`Instruction`] says of an encoding, iced says too.

use farshore_random::Rng;
use farshore_sites::decode::{Flow, Instruction, Kind};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

const IP: u64 = 0x7000_1000;

fn flow_of(other: &iced_x86::Instruction) -> Flow {
    match other.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::ConditionalBranch => Flow::Conditional,
        FlowControl::XbeginXabortXend if other.mnemonic() == Mnemonic::Xbegin => Flow::Conditional,
        FlowControl::UnconditionalBranch => Flow::Jump,
        FlowControl::IndirectBranch => Flow::Indirect,
        FlowControl::Call | FlowControl::IndirectCall => Flow::Call,
        FlowControl::Return => Flow::Return,
        _ => Flow::Trap,
    }
}

fn kind_of(other: &iced_x86::Instruction) -> Kind {
    use Mnemonic as M;
    match other.mnemonic() {
        M::Mov => Kind::Mov,
        M::Movzx | M::Movsx | M::Movsxd => Kind::Extend,
        M::Lea => Kind::Lea,
        M::Xor => Kind::Xor,
        M::Add | M::Or | M::And | M::Sub => Kind::Arithmetic,
        M::Cmp | M::Test => Kind::Compare,
        M::Shl | M::Shr | M::Sar => Kind::Shift,
        M::Nop => Kind::Nop,
        M::Xchg => Kind::Exchange,
        M::Push if other.op0_kind() != OpKind::Register || other.op0_register().is_gpr() => Kind::Push,
        M::Pop if other.op0_kind() != OpKind::Register || other.op0_register().is_gpr() => Kind::Pop,
        M::Syscall => Kind::Syscall,
        M::Endbr64 | M::Endbr32 => Kind::Landing,
        M::Ud2 => Kind::Undefined,
        _ if other.is_stack_instruction() => Kind::Stack,
        _ => Kind::Other,
    }
}

/// The general register, as its number.
fn number(register: Register) -> Option<u8> {
    register.is_gpr().then(|| register.full_register() as u8 - Register::RAX as u8)
}

/// What the two say differently of the encoding, if it is known here at all.
fn compare(bytes: &[u8]) -> Option<Vec<&'static str>> {
    let found = Instruction::decode(bytes, IP)?;
    let mut decoder = Decoder::with_ip(64, bytes, IP, DecoderOptions::NONE);
    let other = decoder.decode();
    if found.is_vex() {
        let is_wrong = !other.is_invalid() && found.length() != other.len() as u64;
        return Some(if is_wrong { vec!["its length"] } else { vec![] });
    }
    if other.is_invalid() {
        return Some(vec!["it is invalid"]);
    }
    let direct = matches!(other.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16);
    let has_first = other.op_count() > 0 && other.op0_kind() == OpKind::Register;
    let offsets = decoder.get_constant_offsets(&other);
    let relative = other.is_ip_rel_memory_operand().then(|| offsets.displacement_offset());
    let constants = [OpKind::Immediate32, OpKind::Immediate32to64, OpKind::Immediate64];
    let moved = other.mnemonic() == Mnemonic::Mov && constants.contains(&other.op1_kind());
    let registers = || (0..other.op_count()).filter(|&n| other.op_kind(n) == OpKind::Register).map(|n| other.op_register(n));
    let clears = other.mnemonic() == Mnemonic::Xor
        && other.op0_register() == other.op1_register()
        && (other.op0_register().is_gpr32() || other.op0_register().is_gpr64());
    let four = |register: Register| register.is_gpr32();
    let moves_four = other.mnemonic() == Mnemonic::Mov && four(other.op0_register()) && four(other.op1_register());
    let is_alone = |register: Register| register.is_gpr() || register.is_segment_register();
    let once = !other.is_string_instruction() && !other.has_rep_prefix();
    let up_to = |highest: u8| {
        move |register: Register| register.is_gpr() || register.is_xmm() && register as u8 - Register::XMM0 as u8 <= highest
    };
    let agreed = [
        ("its length", found.length() == other.len() as u64),
        ("where it leads", found.flow() == flow_of(&other)),
        ("its kind", found.kind() == kind_of(&other)),
        ("its target", found.target() == direct.then(|| other.near_branch_target())),
        ("its first register", found.first_register() == has_first.then(|| number(other.op0_register())).flatten()),
        ("a distance", found.relative_at() == relative),
        ("a distance from the lower half", found.is_relative_to_half() == (other.memory_base() == Register::EIP)),
        ("a constant", found.moved_constant() == moved.then(|| other.immediate(1))),
        (
            "a constant of four bytes",
            found.moved_four() == (moved && other.op1_kind() == OpKind::Immediate32).then(|| other.immediate(1)),
        ),
        ("whether it clears", found.clears() == clears),
        ("a register that is moved", found.moved_register() == moves_four.then(|| number(other.op1_register())).flatten()),
        ("the other register", found.kind() != Kind::Exchange || found.exchanged() == number(other.op1_register())),
        ("that it is general", !found.is_general() || once && registers().all(is_alone)),
        ("its vectors", found.highest_vector().is_none_or(|highest| registers().all(up_to(highest)))),
    ];
    Some(agreed.into_iter().filter(|(_, agreed)| !agreed).map(|(what, _)| what).collect())
}

/// Compares all of them, of which at least `least` must be known.
fn compare_all<B: AsRef<[u8]>>(encodings: impl Iterator<Item = B>, least: usize) {
    let (mut known, mut wrong) = (0, Vec::new());
    for encoding in encodings {
        let bytes = encoding.as_ref();
        if let Some(what) = compare(bytes) {
            known += 1;
            if !what.is_empty() && wrong.len() < 40 {
                let other = Decoder::with_ip(64, bytes, IP, DecoderOptions::NONE).decode();
                wrong.push(format!("{bytes:02x?} ({:?}): {}", other.code(), what.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "they differ in:\n{}", wrong.join("\n"));
    // So that it cannot pass by knowing nothing.
    assert!(known >= least, "{known} are known");
}

/// Prefixes, as they come before an opcode.
const PREFIXES: [&[u8]; 22] = [
    &[],
    &[0x66],
    &[0xf2],
    &[0xf3],
    &[0xf0],
    &[0x67],
    &[0x64],
    &[0x2e],
    &[0x40],
    &[0x41],
    &[0x44],
    &[0x48],
    &[0x4f],
    &[0x66, 0x48],
    &[0x66, 0x41],
    &[0xf3, 0x48],
    &[0xf2, 0x4d],
    &[0x66, 0xf2],
    &[0x66, 0xf3],
    &[0x48, 0x66],
    &[0xf0, 0x4c],
    &[0x67, 0x66, 0x64, 0x47],
];

#[test]
fn each_opcode_is_valid_as_long_and_of_the_same_kind() {
    // What follows is a number that no two of its bytes share, behind an index and a base.
    const REST: [[u8; 10]; 2] = [
        [0x25, 0x11, 0x92, 0x33, 0x44, 0x55, 0x66, 0x77, 0x08, 0x19],
        [0x8c, 0x11, 0x92, 0x33, 0x44, 0x55, 0x66, 0x77, 0x08, 0x19],
    ];
    let opcodes =
        [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a], &[0xc5, 0xf9], &[0xc5, 0xc1], &[0xc4, 0xe2, 0x7d], &[0xc4, 0xe3, 0xfd]];
    let heads = PREFIXES.into_iter().flat_map(|prefixes| opcodes.into_iter().map(move |map| [prefixes, map].concat()));
    let encodings = heads.flat_map(|head| {
        (0..=u16::MAX).flat_map(move |word| {
            let head = head.clone();
            REST.into_iter().map(move |rest| [&head[..], &word.to_be_bytes(), &rest].concat())
        })
    });
    compare_all(encodings, 4_000_000);
}

#[test]
fn bytes_at_random_are_instructions_or_unknown() {
    let mut random = Rng::new(1);
    let encodings = (0..2_000_000).map(|_| {
        let mut bytes = [0_u8; 17];
        random.fill(&mut bytes);
        bytes[..1 + random.below(16) as usize].to_vec()
    });
    compare_all(encodings, 500_000);
}
