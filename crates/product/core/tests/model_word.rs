//! The page word against a machine written down independently: any sequence of calls gives the outcome
//! and the state that the machine says.
#![cfg(not(loom))]

use farshore_models::word::{Machine, Op, Spec};
use proptest::prelude::*;

fn specs() -> impl Strategy<Value = Spec> {
    prop_oneof![
        Just(Spec::Untouched),
        Just(Spec::Foreign),
        (slots(), 0..8_u8).prop_map(|(slot, chances)| Spec::Clean { slot, chances }),
        (0..8_u8, any::<bool>(), any::<bool>()).prop_map(|(chances, guessed, protected)| Spec::Dirty {
            chances,
            guessed,
            protected
        }),
        (stages(), any::<bool>()).prop_map(|(stage, written)| Spec::Leaving { stage, written }),
        slots().prop_map(|slot| Spec::Out { slot }),
    ]
}

/// Few numbers, so that stages and slots meet, and the largest.
fn slots() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..4, Just((1 << 29) - 1)]
}

fn stages() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..3, Just(u32::MAX)]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (any::<bool>(), any::<bool>()).prop_map(|(write, protected)| Op::Fault { write, protected }),
        2 => any::<bool>().prop_map(|chances| Op::Evict { chances }),
        1 => Just(Op::ExpectProtection),
        1 => Just(Op::Claim),
        6 => specs().prop_map(Op::Release),
        1 => Just(Op::Restore),
        2 => stages().prop_map(Op::StageWritten),
        2 => (stages(), slots()).prop_map(|(stage, slot)| Op::RetireStage(stage, slot)),
        2 => any::<bool>().prop_map(|write| Op::Pin { write }),
        1 => Just(Op::Unpin),
        1 => Just(Op::Announce),
        1 => any::<bool>().prop_map(Op::SetForeign),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 5 } else { 4000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_calls(ops in proptest::collection::vec(ops(), 1..if cfg!(miri) { 30 } else { 80 })) {
        let mut machine = Machine::new();
        for op in ops {
            machine.step(op);
        }
    }
}
