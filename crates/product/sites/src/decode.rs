//! Instructions as bytes: how long each is, where it leads, and which register it writes.
//!
//! A start reads some thousand instructions, so this is a few rules, and no table is built first. It knows what compilers make of functions
//! that make calls: what works on general registers, on SSE's and on x87's. Of VEX it knows the length alone. All else is *unknown*: EVEX and XOP,
//! privileged instructions, and what no processor takes. Whoever reads a function with an unknown instruction leaves the function alone.
//!
//! `tests/decode.rs` compares with another disassembler: what is known here is valid there, as long, leads to the same place, and is
//! of the same kind.

/// Prefixes that came before the opcode.
mod prefix {
    /// Operands of 16 bits, or a part of the opcode.
    pub const SIZE: u8 = 1;
    /// Addresses of 32 bits.
    pub const ADDRESS: u8 = 2;
    pub const REPNE: u8 = 4;
    pub const REP: u8 = 8;
    pub const LOCK: u8 = 16;
}

/// Of `REX`: 64 bits; and the fourth bit of each field.
const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_B: u8 = 1;

/// Stands for the maps behind VEX.
const VEX: u8 = 4;

/// The longest instruction.
const LONGEST: usize = 15;

/// Where control goes behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next one.
    Next,
    /// To an address that is in the instruction, or on.
    Conditional,
    /// To an address that is in the instruction.
    Jump,
    /// To an address in a register or in memory.
    Indirect,
    /// Away, to come back.
    Call,
    /// Back.
    Return,
    /// To a handler.
    Trap,
}

/// What an instruction is, as far as somebody asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `mov`, between registers, memory and constants.
    Mov,
    /// `movzx`, `movsx`, `movsxd`.
    Extend,
    /// `lea`.
    Lea,
    /// `xor`.
    Xor,
    /// `add`, `or`, `and`, `sub`.
    Arithmetic,
    /// `cmp`, `test`.
    Compare,
    /// `shl`, `shr`, `sar`.
    Shift,
    /// `nop`, also the longer ones.
    Nop,
    /// `xchg`.
    Exchange,
    /// `push` of a general register or a constant.
    Push,
    /// `pop`.
    Pop,
    /// What else uses the stack: `call`, `ret`, `enter`, `leave`, flags.
    Stack,
    /// `syscall`.
    Syscall,
    /// `endbr64`, `endbr32`.
    Landing,
    /// `ud2`.
    Undefined,
    /// Any other.
    Other,
}

/// An instruction that is known.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// Where it begins.
    pub ip: u64,
    length: u8,
    prefixes: u8,
    /// 0: there is none.
    rex: u8,
    /// 0: opcodes of one byte; 1: behind `0f`; 2: `0f 38`; 3: `0f 3a`.
    map: u8,
    opcode: u8,
    modrm: u8,
    /// Where the distance from `rip` stands; 0: there is none.
    relative_at: u8,
    /// It may lead elsewhere than to the next one.
    leads: bool,
    /// The constant, or the distance of a jump, extended.
    constant: i64,
}

/// What is known of an opcode before its operands are: the bytes that follow, where it leads, and what must be looked at.
mod about {
    /// The operand's byte follows.
    pub const OPERAND: u16 = 1;
    /// So many bytes of a constant: the next three bits, and these sizes that prefixes decide.
    pub const CONSTANT: u32 = 1;
    pub const BY_SIZE: u16 = 5;
    pub const FULL: u16 = 6;
    pub const ADDRESS: u16 = 7;
    /// (No size is 3 otherwise.)
    pub const THREE: u16 = 3;
    /// There is such an opcode.
    pub const KNOWN: u16 = 1 << 4;
    /// It depends on its operand whether there is ([`Instruction::is_known`](super::Instruction)).
    pub const DOUBTFUL: u16 = 1 << 5;
    /// `test` of this group has a constant.
    pub const TESTS: u16 = 1 << 6;
    /// It leads elsewhere than to the next instruction, or may.
    pub const LEADS: u16 = 1 << 7;
}

/// By map and opcode.
static ABOUT: [[u16; 256]; 4] = {
    let mut all = [[0; 256]; 4];
    let mut at = 0;
    while at < 256 {
        let opcode = at as u8;
        all[0][at] = about_one(opcode);
        all[1][at] = about_two(opcode);
        all[2][at] = about::KNOWN | about::DOUBTFUL | about::OPERAND;
        all[3][at] = about::KNOWN | about::DOUBTFUL | about::OPERAND | 1 << about::CONSTANT;
        at += 1;
    }
    all
};

/// An opcode with this, and a constant of so many bytes or of this size.
const fn follows(operand: bool, constant: u16) -> u16 {
    about::KNOWN | (operand as u16 * about::OPERAND) | (constant << about::CONSTANT)
}

/// Of one byte.
const fn about_one(opcode: u8) -> u16 {
    use about::{ADDRESS, BY_SIZE, DOUBTFUL, FULL, LEADS, TESTS};
    let follows = match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => follows(true, 0),
            4 => follows(false, 1),
            5 => follows(false, BY_SIZE),
            _ => 0,
        },
        0x60..=0x62 | 0x82 | 0x9a | 0xc4 | 0xc5 | 0xce | 0xd4..=0xd6 | 0xea => 0,
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => follows(true, 0),
        0xf6 | 0xf7 => follows(true, 0) | TESTS,
        0x68 | 0xa9 => follows(false, BY_SIZE),
        0x69 | 0x81 | 0xc7 => follows(true, BY_SIZE),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => follows(true, 1),
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => follows(false, 1),
        0xa0..=0xa3 => follows(false, ADDRESS),
        0xb8..=0xbf => follows(false, FULL),
        0xc2 | 0xca => follows(false, 2),
        // `enter` has two constants, of which nobody asks.
        0xc8 => follows(false, about::THREE),
        0xe8 | 0xe9 => follows(false, 4),
        _ => follows(false, 0),
    };
    let doubtful = matches!(opcode, 0x8c..=0x8f | 0x90 | 0xc6 | 0xc7 | 0xd8..=0xdf | 0xfe | 0xff);
    let leads =
        matches!(opcode, 0x70..=0x7f | 0xc2 | 0xc3 | 0xc7 | 0xca..=0xcd | 0xcf | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb | 0xf1 | 0xff);
    follows | (doubtful as u16 * DOUBTFUL) | (leads as u16 * LEADS)
}

/// Behind `0f`.
const fn about_two(opcode: u8) -> u16 {
    use about::{DOUBTFUL, LEADS};
    let follows = match opcode {
        0x05 | 0x0b | 0x31 | 0x77 | 0xa0..=0xa2 | 0xa8 | 0xa9 | 0xc8..=0xcf => follows(false, 0),
        0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => follows(true, 1),
        0x80..=0x8f => follows(false, 4),
        _ => follows(true, 0),
    };
    let sure = matches!(opcode, 0x05 | 0x40..=0x4f | 0x80..=0x9f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf);
    let leads = matches!(opcode, 0x05 | 0x0b | 0x80..=0x8f);
    follows | (!sure as u16 * DOUBTFUL) | (leads as u16 * LEADS)
}

/// Behind a prefix of VEX. All of these have an operand, but for `vzeroupper`; and where it stands, a constant of one byte.
const fn about_vex(map: u8, opcode: u8) -> u16 {
    match (map, opcode) {
        (1, 0x77) => follows(false, 0),
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3, _) => follows(true, 1),
        _ => follows(true, 0),
    }
}

/// What the three bits say that are the operation of most arithmetic.
const fn kind_of(operation: u8) -> Kind {
    match operation {
        0 | 1 | 4 | 5 => Kind::Arithmetic,
        6 => Kind::Xor,
        7 => Kind::Compare,
        _ => Kind::Other,
    }
}

/// Bytes of one instruction, from its first.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.bytes.get(self.at..)?.first_chunk()?;
        self.at += N;
        Some(bytes)
    }
}

impl Instruction {
    /// The instruction at the beginning of `bytes`, which is at `ip`. `None`: it is not known, or not all there.
    #[inline(always)]
    pub fn decode(bytes: &[u8], ip: u64) -> Option<Instruction> {
        let mut reader = Reader { bytes: &bytes[..bytes.len().min(LONGEST)], at: 0 };
        let (mut prefixes, mut rex) = (0, 0);
        let first = loop {
            let byte = reader.next()?;
            match byte {
                0x66 => prefixes |= prefix::SIZE,
                0x67 => prefixes |= prefix::ADDRESS,
                0xf0 => prefixes |= prefix::LOCK,
                0xf2 => prefixes |= prefix::REPNE,
                0xf3 => prefixes |= prefix::REP,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
                0x40..=0x4f => {
                    rex = byte;
                    continue;
                }
                _ => break byte,
            }
            // It counts right before the opcode alone.
            rex = 0;
        };
        let mut vex = false;
        let (map, opcode) = match first {
            // Both of VEX' forms: nobody makes them with prefixes.
            0xc4 | 0xc5 if prefixes & !prefix::ADDRESS == 0 && rex == 0 => {
                vex = true;
                let map = if first == 0xc5 { 1 } else { reader.next()? & 0x1f };
                reader.next()?;
                match map {
                    1..=3 => (map, reader.next()?),
                    _ => return None,
                }
            }
            0x0f => match reader.next()? {
                0x38 => (2, reader.next()?),
                0x3a => (3, reader.next()?),
                opcode => (1, opcode),
            },
            opcode => (0, opcode),
        };
        // Which of them is part of the opcode would be the last; nobody makes both.
        if prefixes & prefix::REP != 0 && prefixes & prefix::REPNE != 0 {
            return None;
        }
        let about = if vex { about_vex(map, opcode) } else { ABOUT[usize::from(map & 3)][usize::from(opcode)] };
        let (mut modrm, mut relative_at) = (0, 0);
        if about & about::OPERAND != 0 {
            modrm = reader.next()?;
            let (mode, register) = (modrm >> 6, modrm & 7);
            if mode != 3 {
                if mode == 0 && register == 5 {
                    relative_at = reader.at as u8;
                }
                // An index and a base, and a base that is none.
                let far = register == 5 || register == 4 && reader.next()? & 7 == 5;
                reader.at += match mode {
                    0 if far => 4,
                    0 => 0,
                    1 => 1,
                    _ => 4,
                };
            }
        }
        let mut size = about >> about::CONSTANT & 7;
        // `test` alone has one.
        if about & about::TESTS != 0 && modrm >> 3 & 7 < 2 {
            size = if opcode == 0xf6 { 1 } else { about::BY_SIZE };
        }
        let small = prefixes & prefix::SIZE != 0 && rex & REX_W == 0;
        let constant = match size {
            0 => 0,
            1 => i64::from(i8::from_le_bytes(reader.take()?)),
            2 => i64::from(i16::from_le_bytes(reader.take()?)),
            about::THREE => {
                let [_, _, _] = reader.take()?;
                0
            }
            about::BY_SIZE | about::FULL if small => i64::from(i16::from_le_bytes(reader.take()?)),
            about::FULL if rex & REX_W != 0 => i64::from_le_bytes(reader.take()?),
            about::ADDRESS if prefixes & prefix::ADDRESS == 0 => i64::from_le_bytes(reader.take()?),
            _ => i64::from(i32::from_le_bytes(reader.take()?)),
        };
        if reader.at > reader.bytes.len() || about & about::KNOWN == 0 {
            return None;
        }
        let (length, leads) = (reader.at as u8, about & about::LEADS != 0);
        let map = if vex { VEX } else { map };
        let found = Instruction { ip, length, prefixes, rex, map, opcode, modrm, relative_at, leads, constant };
        let doubtful = !vex && (about & about::DOUBTFUL != 0 || prefixes & !prefix::ADDRESS != 0);
        (!doubtful || found.is_known()).then_some(found)
    }

    const fn has(self, prefix: u8) -> bool {
        self.prefixes & prefix != 0
    }

    /// The field of the operand's byte that names a register, or is part of the opcode.
    const fn field(self) -> u8 {
        self.modrm >> 3 & 7
    }

    /// Whether the operand that may be in memory is a register.
    const fn is_register(self) -> bool {
        self.modrm >> 6 == 3
    }

    /// The prefix that is part of an opcode of SSE, as a bit: none, `66`, `f3`, `f2`.
    const fn selected(self) -> u8 {
        match self.prefixes {
            p if p & prefix::REPNE != 0 => 8,
            p if p & prefix::REP != 0 => 4,
            p if p & prefix::SIZE != 0 => 2,
            _ => 1,
        }
    }

    #[inline(never)]
    fn is_known(self) -> bool {
        if self.has(prefix::LOCK) && !self.may_be_locked() {
            return false;
        }
        match self.map {
            0 => self.is_known_of_one(),
            1 => self.is_known_of_two(),
            2 => self.is_known_of_38(),
            _ => self.is_known_of_3a(),
        }
    }

    fn may_be_locked(self) -> bool {
        let field = self.field();
        let locked = match (self.map, self.opcode) {
            (0, 0x00..=0x37) => self.opcode & 7 < 2,
            (0, 0x80 | 0x81 | 0x83) => field != 7,
            (0, 0x86 | 0x87) | (1, 0xab | 0xb0 | 0xb1 | 0xb3 | 0xbb | 0xc0 | 0xc1) => true,
            (0, 0xf6 | 0xf7) => matches!(field, 2 | 3),
            (0, 0xfe | 0xff) => field < 2,
            (1, 0xba) => field > 4,
            (1, 0xc7) => field == 1,
            _ => false,
        };
        locked && !self.is_register()
    }

    fn is_known_of_one(self) -> bool {
        let (field, register) = (self.field(), self.is_register());
        match self.opcode {
            // Processors differ in what a size does to a jump.
            0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb | 0xc2 | 0xc3 => !self.has(prefix::SIZE) || self.rex & REX_W != 0,
            // Some take it for a `pause`.
            0x90 => !self.has(prefix::REP) || self.rex & REX_B == 0,
            0x8c => field < 6,
            0x8d => !register,
            0x8e => field < 6 && field != 1,
            0x8f | 0xc6 => field == 0,
            0xc7 => field == 0 || self.modrm == 0xf8 && !self.has(prefix::SIZE),
            0xd8..=0xdf => self.is_known_of_x87(),
            0xfe => field < 2,
            0xff => match field {
                0 | 1 => true,
                2 | 4 | 6 => !self.has(prefix::SIZE) || self.rex & REX_W != 0,
                _ => false,
            },
            _ => true,
        }
    }

    fn is_known_of_x87(self) -> bool {
        let (field, register, modrm) = (self.field(), self.is_register(), self.modrm);
        match (self.opcode, register) {
            (0xd9, false) => field != 1,
            (0xdb, false) => !matches!(field, 4 | 6),
            (0xdd, false) => field != 5,
            (_, false) | (0xd8, true) => true,
            (0xd9, true) => matches!(modrm, 0xc0..=0xd0 | 0xe0 | 0xe1 | 0xe4 | 0xe5 | 0xe8..=0xee | 0xf0..=0xff),
            (0xda, true) => field < 4 || modrm == 0xe9,
            (0xdb, true) => field < 4 || matches!(modrm, 0xe2 | 0xe3) || matches!(field, 5 | 6),
            (0xdc, true) => !matches!(field, 2 | 3),
            (0xdd, true) => matches!(field, 0 | 2..=5),
            (0xde, true) => field < 2 || modrm == 0xd9 || field > 3,
            (_, true) => modrm == 0xe0 || matches!(field, 5 | 6),
        }
    }

    fn is_known_of_two(self) -> bool {
        let (field, register, selected) = (self.field(), self.is_register(), self.selected());
        let (plain, packed) = (1, 3);
        let of = |allowed: u8| allowed & selected != 0;
        match self.opcode {
            0x05 | 0x0b | 0x31 | 0xa2 => true,
            0x01 => self.modrm == 0xd0 && of(plain) && !self.has(prefix::SIZE),
            0x10 | 0x11 | 0x51 | 0x58..=0x5a | 0x5c..=0x5f | 0x70 | 0xc2 => true,
            0x12 => of(12) || of(1) || of(2) && !register,
            0x13 | 0x17 | 0x2b => of(packed) && !register,
            0x14 | 0x15 | 0x28 | 0x29 | 0x2e | 0x2f | 0x54..=0x57 => of(packed),
            0x16 => of(5) || of(2) && !register,
            0x18 => field < 4 && !register,
            0x1e => of(4) && matches!(self.modrm, 0xfa | 0xfb) && self.prefixes == prefix::REP,
            0x1f => field == 0,
            0x2a | 0x2c | 0x2d | 0x40..=0x4f | 0x90..=0x9f | 0xa0 | 0xa1 | 0xa3..=0xa5 | 0xa8 | 0xa9 => true,
            0xab..=0xad | 0xaf..=0xb1 | 0xb3 | 0xb6 | 0xb7 | 0xbb..=0xbf | 0xc0 | 0xc1 | 0xc8..=0xcf => true,
            0x50 | 0xd7 | 0xf7 => of(packed) && register,
            0x52 | 0x53 => of(5),
            0x5b => of(7),
            0x60..=0x6b | 0x6e | 0x74..=0x76 => of(packed),
            0x6c | 0x6d => of(2),
            0x6f | 0x7e | 0x7f => of(7),
            0x71 | 0x72 => of(packed) && register && matches!(field, 2 | 4 | 6),
            0x73 => register && (of(packed) && matches!(field, 2 | 6) || of(2) && matches!(field, 3 | 7)),
            0x77 => of(plain),
            0x7c | 0x7d | 0xd0 => of(10),
            0x80..=0x8f => !self.has(prefix::SIZE) || self.rex & REX_W != 0,
            0xae if register => of(plain) && matches!(self.modrm, 0xe8 | 0xf0 | 0xf8),
            0xae => of(plain),
            0xb8 => of(4),
            0xba => field > 3,
            0xc3 => of(plain) && !register,
            0xc4 => of(packed),
            0xc5 => of(packed) && register,
            0xc6 => of(packed),
            0xc7 if register => of(packed) && field > 5,
            0xc7 => of(plain) && field == 1,
            0xd6 => of(2),
            0xe6 => of(14),
            0xe7 => of(packed) && !register,
            0xf0 => of(8) && !register,
            0xd1..=0xd5 | 0xd8..=0xe5 | 0xe8..=0xef | 0xf1..=0xf6 | 0xf8..=0xfe => of(packed),
            _ => false,
        }
    }

    fn is_known_of_38(self) -> bool {
        let selected = self.selected();
        match self.opcode {
            0x00..=0x0b | 0x1c..=0x1e => selected & 3 != 0,
            0x10 | 0x14 | 0x15 | 0x17 | 0x20..=0x25 | 0x28 | 0x29 | 0x2b | 0x30..=0x35 | 0x37..=0x41 | 0xdb..=0xdf => {
                selected == 2
            }
            0x2a => selected == 2 && !self.is_register(),
            0xf0 | 0xf1 => selected == 8 || selected & 3 != 0 && !self.is_register(),
            0xf6 => selected & 6 != 0,
            _ => false,
        }
    }

    fn is_known_of_3a(self) -> bool {
        match self.opcode {
            0x0f => self.selected() & 3 != 0,
            0x08..=0x0e | 0x14..=0x17 | 0x20..=0x22 | 0x40..=0x42 | 0x44 | 0x60..=0x63 | 0xdf => self.selected() == 2,
            _ => false,
        }
    }

    /// Bytes.
    pub const fn length(self) -> u64 {
        self.length as u64
    }

    /// Where the next one begins.
    pub const fn next_ip(self) -> u64 {
        self.ip.wrapping_add(self.length())
    }

    /// Whether control may go elsewhere than to the next one.
    #[inline]
    pub const fn leads(self) -> bool {
        self.leads
    }

    /// Where control goes.
    pub const fn flow(self) -> Flow {
        match (self.map, self.opcode) {
            _ if !self.leads => Flow::Next,
            (0, 0x70..=0x7f | 0xe0..=0xe3) | (1, 0x80..=0x8f) => Flow::Conditional,
            // `xbegin`.
            (0, 0xc7) if self.modrm == 0xf8 => Flow::Conditional,
            (0, 0xe9 | 0xeb) => Flow::Jump,
            (0, 0xff) if matches!(self.field(), 4 | 5) => Flow::Indirect,
            (0, 0xff) if matches!(self.field(), 2 | 3) => Flow::Call,
            (0, 0xe8) | (1, 0x05) => Flow::Call,
            (0, 0xc2 | 0xc3 | 0xca | 0xcb | 0xcf) => Flow::Return,
            (0, 0xcc | 0xcd | 0xf1) | (1, 0x0b) => Flow::Trap,
            _ => Flow::Next,
        }
    }

    /// The address in the instruction that control may go to.
    pub const fn target(self) -> Option<u64> {
        match (self.flow(), self.map, self.opcode) {
            (Flow::Conditional | Flow::Jump, ..) | (_, 0, 0xe8) => Some(self.next_ip().wrapping_add_signed(self.constant)),
            _ => None,
        }
    }

    /// What it is.
    pub const fn kind(self) -> Kind {
        match (self.map, self.opcode) {
            (0, 0x00..=0x3f) => kind_of(self.opcode >> 3 & 7),
            (0, 0x80 | 0x81 | 0x83) => kind_of(self.field()),
            (0, 0x84 | 0x85 | 0xa8 | 0xa9) => Kind::Compare,
            (0, 0xf6 | 0xf7) if self.field() < 2 => Kind::Compare,
            (0, 0x88..=0x8c | 0x8e | 0xa0..=0xa3 | 0xb0..=0xbf) => Kind::Mov,
            (0, 0xc6) => Kind::Mov,
            (0, 0xc7) if self.field() == 0 => Kind::Mov,
            (0, 0x63) | (1, 0xb6 | 0xb7 | 0xbe | 0xbf) => Kind::Extend,
            (0, 0x8d) => Kind::Lea,
            (0, 0xc0 | 0xc1 | 0xd0..=0xd3) if matches!(self.field(), 4 | 5 | 7) => Kind::Shift,
            (0, 0x90) if self.rex & REX_B == 0 => {
                if self.has(prefix::REP) {
                    Kind::Other
                } else {
                    Kind::Nop
                }
            }
            (1, 0x1f) => Kind::Nop,
            (0, 0x86 | 0x87 | 0x90..=0x97) => Kind::Exchange,
            (0, 0x50..=0x57 | 0x68 | 0x6a) => Kind::Push,
            (0, 0x58..=0x5f | 0x8f) => Kind::Pop,
            (0, 0x9c | 0x9d | 0xc2 | 0xc3 | 0xc8..=0xcb | 0xcf | 0xe8) | (1, 0xa0 | 0xa1 | 0xa8 | 0xa9) => Kind::Stack,
            (0, 0xff) => match self.field() {
                2 | 3 => Kind::Stack,
                6 => Kind::Push,
                _ => Kind::Other,
            },
            (1, 0x05) => Kind::Syscall,
            (1, 0x0b) => Kind::Undefined,
            (1, 0x1e) => Kind::Landing,
            _ => Kind::Other,
        }
    }

    /// Whether something in it depends on where it is: the offset of the distance to an operand in memory, 4 bytes.
    pub const fn relative_at(self) -> Option<usize> {
        if self.relative_at == 0 { None } else { Some(self.relative_at as usize) }
    }

    /// Whether the operand in memory is where the lower half of `rip` says.
    pub const fn is_relative_to_half(self) -> bool {
        self.relative_at != 0 && self.has(prefix::ADDRESS)
    }

    /// Whether nothing but its length is known: VEX. It is read past, and never moved.
    pub const fn is_vex(self) -> bool {
        self.map == VEX
    }

    /// Whether its operands have the size that they have without a prefix: 4 bytes where it is not one.
    const fn is_of_four(self) -> bool {
        self.rex & REX_W == 0 && !self.has(prefix::SIZE)
    }

    /// Whether the first operand has one byte, of instructions on general registers.
    const fn is_of_one(self) -> bool {
        match (self.map, self.opcode) {
            (0, 0x00..=0x3f | 0x80..=0x8a | 0xc0 | 0xc6 | 0xd0..=0xd3 | 0xf6 | 0xfe) => self.opcode & 1 == 0,
            (0, 0xb0..=0xb7) | (1, 0x90..=0x9f | 0xb0 | 0xc0) => true,
            _ => false,
        }
    }

    /// The number of the register that is the operand which may be in memory.
    const fn operand(self) -> Option<u8> {
        if self.is_register() { Some((self.rex & REX_B) << 3 | self.modrm & 7) } else { None }
    }

    /// The number of the register that the other field names.
    const fn other(self) -> u8 {
        (self.rex & REX_R) << 1 | self.field()
    }

    /// The number of the first operand, if that is a general register, or a part of one. (It is the one that is written, if any is.)
    pub fn first_register(self) -> Option<u8> {
        let embedded = Some((self.rex & REX_B) << 3 | self.opcode & 7);
        let (other, rax, rdx) = (Some(self.other()), Some(0), Some(2));
        let register = match (self.map, self.opcode) {
            (0, 0x00..=0x3f) => match self.opcode & 7 {
                0 | 1 => self.operand(),
                2 | 3 => other,
                _ => rax,
            },
            (0, 0x90) if self.rex & REX_B == 0 => None,
            (0, 0x50..=0x5f | 0x90..=0x97 | 0xb0..=0xbf) => embedded,
            (0, 0x63 | 0x69 | 0x6b | 0x8a | 0x8b | 0x8d) => other,
            (0, 0x8e) => None,
            (0, 0xc7) if self.flow() != Flow::Next => None,
            (0, 0x80..=0x8f | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe | 0xff) => self.operand(),
            (0, 0xa0 | 0xa1 | 0xa8 | 0xa9 | 0xac..=0xaf | 0xe4 | 0xe5 | 0xec | 0xed) => rax,
            (0, 0x6e | 0x6f | 0xee | 0xef) => rdx,
            // `fnstsw ax`
            (0, 0xdf) if self.modrm == 0xe0 => rax,
            (1, 0x2c | 0x2d) if self.selected() > 2 => other,
            (1, 0x40..=0x4f | 0x50 | 0xaf | 0xb6..=0xb8 | 0xbc..=0xbf | 0xc5 | 0xd7) => other,
            (1, 0x7e) if self.selected() < 4 => self.operand(),
            (1, 0x1f | 0x90..=0x9f | 0xa3..=0xa5 | 0xab..=0xad | 0xb0 | 0xb1 | 0xb3 | 0xba | 0xbb | 0xc0 | 0xc1 | 0xc7) => {
                self.operand()
            }
            (1, 0xc8..=0xcf) => embedded,
            (2, 0xf1) if self.selected() < 4 => None,
            (2, 0xf0 | 0xf1 | 0xf6) => other,
            (3, 0x14..=0x17) => self.operand(),
            _ => None,
        }?;
        Some(self.whole(register))
    }

    /// The number of the register that a number stands for: those of `ah` and its like are other ones.
    const fn whole(self, register: u8) -> u8 {
        if self.is_of_one() && self.rex == 0 && register > 3 { register - 4 } else { register }
    }

    /// The second operand of `xchg`, if it is a register.
    pub const fn exchanged(self) -> Option<u8> {
        match self.opcode {
            _ if self.map != 0 => None,
            0x86 | 0x87 => Some(self.whole(self.other())),
            0x90..=0x97 => Some(0),
            _ => None,
        }
    }

    /// The constant of four or eight bytes that it moves to its first operand.
    pub const fn moved_constant(self) -> Option<u64> {
        let moves = self.map == 0 && (self.opcode == 0xc7 && self.field() == 0 || matches!(self.opcode, 0xb8..=0xbf));
        match (moves, self.is_of_four()) {
            (true, true) => Some(self.constant as u32 as u64),
            (true, false) if self.rex & REX_W != 0 => Some(self.constant as u64),
            _ => None,
        }
    }

    /// The same, if it has four bytes.
    pub const fn moved_four(self) -> Option<u64> {
        if self.is_of_four() { self.moved_constant() } else { None }
    }

    /// The number of the register of which it moves four bytes to its first operand, which is one too.
    pub fn moved_register(self) -> Option<u8> {
        match (self.map, self.opcode, self.is_of_four()) {
            (0, 0x89, true) if self.is_register() => Some(self.other()),
            (0, 0x8b, true) => self.operand(),
            _ => None,
        }
    }

    /// Whether it makes its first operand, a whole register, zero: `xor` of it with itself.
    pub fn clears(self) -> bool {
        let whole = self.map == 0 && matches!(self.opcode, 0x31 | 0x33) && (self.is_of_four() || self.rex & REX_W != 0);
        whole && self.operand() == Some(self.other())
    }

    /// Whether it works on general registers, memory and flags alone, once.
    pub const fn is_general(self) -> bool {
        let repeated = self.has(prefix::REP | prefix::REPNE);
        match (self.map, self.opcode) {
            (0, 0x6c..=0x6f | 0x8c | 0x8e | 0x9b | 0xa4..=0xa7 | 0xaa..=0xaf | 0xd8..=0xdf) => false,
            (0, _) => !repeated,
            (1, 0xb8 | 0xbc | 0xbd) => true,
            (1, 0x05 | 0x0b | 0x18 | 0x1f | 0x31 | 0x40..=0x4f | 0x80..=0x9f | 0xa2..=0xa5 | 0xab..=0xad) => !repeated,
            (1, 0xaf..=0xb1 | 0xb3 | 0xb6 | 0xb7 | 0xba..=0xc1 | 0xc3 | 0xc7..=0xcf) => !repeated,
            (2, 0xf0 | 0xf1) => !repeated,
            _ => false,
        }
    }

    /// The highest number of a vector register in it, of an instruction on such registers and memory alone (or one general register). `None`: it is none of those that are
    /// known here, or works on MMX.
    pub fn highest_vector(self) -> Option<u8> {
        let vector = self.selected() > 1;
        let known = match (self.map, self.opcode) {
            (1, 0x10..=0x17 | 0x28 | 0x29 | 0x2e | 0x2f | 0x51..=0x5f | 0xc2 | 0xc6) => true,
            (1, 0x60..=0x70 | 0x74..=0x76 | 0x7c..=0x7f | 0xd0..=0xd6 | 0xd8..=0xef | 0xf1..=0xf6 | 0xf8..=0xfe) => vector,
            _ => false,
        };
        // The operand of a `movd` is general.
        let general = matches!(self.opcode, 0x6e) || self.opcode == 0x7e && self.selected() == 2;
        let operand = self.operand().filter(|_| !general).unwrap_or(0);
        known.then_some(self.other().max(operand))
    }
}

/// The instructions of a piece of code, one behind the other. `None` is the last: what comes is not known, or not all there.
#[derive(Clone, Debug)]
pub struct Instructions<'a> {
    rest: &'a [u8],
    ip: u64,
}

impl<'a> Instructions<'a> {
    /// Those of the code that begins at `ip`.
    pub const fn new(code: &'a [u8], ip: u64) -> Instructions<'a> {
        Instructions { rest: code, ip }
    }
}

impl Iterator for Instructions<'_> {
    type Item = Option<Instruction>;

    #[inline(always)]
    fn next(&mut self) -> Option<Option<Instruction>> {
        if self.rest.is_empty() {
            return None;
        }
        let found = Instruction::decode(self.rest, self.ip);
        let length = found.map_or(self.rest.len(), |instruction| usize::from(instruction.length));
        self.rest = &self.rest[length..];
        self.ip = self.ip.wrapping_add(length as u64);
        Some(found)
    }
}
