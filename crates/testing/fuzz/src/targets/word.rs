//! Calls on a page word, two bytes each: which, and with what.

use crate::bytes::{Bits, Bytes};
use farshore_models::word::{Machine, Op, Spec};

/// Few numbers, so that stages and slots meet, and the largest.
const SLOTS: [u64; 4] = [1, 2, 3, (1 << 29) - 1];
/// See [`SLOTS`].
const STAGES: [u32; 4] = [0, 1, 2, u32::MAX];

/// Makes the calls that the input says, each compared with the machine.
pub fn run(input: &[u8]) {
    let mut machine = Machine::new();
    let mut bytes = Bytes(input);
    while let Some(op) = next(&mut bytes) {
        machine.step(op);
    }
}

fn next(bytes: &mut Bytes<'_>) -> Option<Op> {
    let which = bytes.byte()?;
    let mut with = Bits(bytes.byte()?);
    Some(match which % 12 {
        0 => Op::Fault { write: with.bit(), protected: with.bit() },
        1 => Op::Evict { chances: with.bit() },
        2 => Op::ExpectProtection,
        3 => Op::Claim,
        4 => Op::Release(spec(with)),
        5 => Op::Restore,
        6 => Op::StageWritten(with.of(STAGES)),
        7 => Op::RetireStage(with.of(STAGES), with.of(SLOTS)),
        8 => Op::Pin { write: with.bit() },
        9 => Op::Unpin,
        10 => Op::Announce,
        _ => Op::SetForeign(with.bit()),
    })
}

fn spec(mut with: Bits) -> Spec {
    match with.0 % 6 {
        0 => Spec::Untouched,
        1 => Spec::Foreign,
        kind => {
            with.0 /= 6;
            match kind {
                2 => Spec::Clean { slot: with.of(SLOTS), chances: with.of([0, 1, 2, 7]) },
                3 => Spec::Dirty { chances: with.of([0, 1, 2, 7]), guessed: with.bit(), protected: with.bit() },
                4 => Spec::Leaving { stage: with.of(STAGES), written: with.bit() },
                _ => Spec::Out { slot: with.of(SLOTS) },
            }
        }
    }
}
