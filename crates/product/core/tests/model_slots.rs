//! The slot map against a set of slot numbers.
#![cfg(not(loom))]

use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::slots::SlotMap;
use farshore_core::word::Slot;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Op {
    Reserve(usize, u32),
    /// Frees one slot in use, found by going round.
    Free(usize),
    /// Frees every slot in use that leaves this remainder when divided by this number.
    FreeEvery(u64, u64),
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop_oneof![1u32..300, Just(1), Just(256), Just(u32::MAX), Just(0)]
            .prop_flat_map(|want| (0usize..6).prop_map(move |core| Op::Reserve(core, want))),
        2 => any::<usize>().prop_map(Op::Free),
        1 => (1u64..5, 0u64..5).prop_map(|(by, rest)| Op::FreeEvery(by, rest)),
    ]
}

fn slot(n: u64) -> Slot {
    Slot::new(n).expect("slot 0 is never handed out")
}

struct Model {
    map: SlotMap,
    used: BTreeSet<u64>,
    /// Slots that can be in use at once; `None`: as many as one likes.
    room: Option<u64>,
}

impl Model {
    fn reserve(&mut self, core: usize, want: u32) {
        let Some(run) = self.map.reserve_run(core, want) else {
            assert_eq!(Some(self.used.len() as u64), self.room, "a space that is not full said that it was");
            return;
        };
        assert!(run.len >= 1 && run.len <= want.max(1));
        let (first, last) = (run.first.number(), run.first.plus(u64::from(run.len) - 1).number());
        assert_eq!(first / EXTENT_SLOTS as u64, last / EXTENT_SLOTS as u64, "a run lies in one extent");
        for n in first..=last {
            assert!(self.used.insert(n), "slot {n} was handed out twice");
            self.map.set_sum(slot(n), n ^ 0x5555);
        }
        assert!(self.room.is_none_or(|room| last <= room));
    }

    fn free(&mut self, n: u64) {
        assert_eq!(self.map.sum(slot(n)), n ^ 0x5555);
        assert!(self.used.remove(&n));
        self.map.free(slot(n));
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Reserve(core, want) => self.reserve(core, want),
            Op::Free(at) if !self.used.is_empty() => {
                let n = *self.used.iter().nth(at % self.used.len()).unwrap();
                self.free(n);
            }
            Op::Free(_) => {}
            Op::FreeEvery(by, rest) => {
                let go: Vec<u64> = self.used.iter().copied().filter(|n| n % by == rest % by).collect();
                go.into_iter().for_each(|n| self.free(n));
            }
        }
        assert_eq!(self.map.live(), self.used.len() as u64);
        assert!(self.map.extent_bytes() / 4096 >= self.used.len() as u64);
        self.map.assert_valid();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence(
        cores in 1usize..5,
        extents in proptest::option::of(1u64..4),
        rest in 0u64..EXTENT_SLOTS as u64,
        ops in proptest::collection::vec(ops(), 1..if cfg!(miri) { 5 } else { 60 }),
    ) {
        let map = SlotMap::for_cores(extents.map(|e| e * EXTENT_SLOTS as u64 + rest), &[0, 1, 0, 1][..cores]);
        let room = extents.map(|e| e * EXTENT_SLOTS as u64 - 1);
        let mut model = Model { map, used: BTreeSet::new(), room };
        for op in ops {
            model.step(op);
        }
        // What is full can be emptied and filled again, to the last slot.
        if let Some(room) = room.filter(|_| !cfg!(miri)) {
            while (model.used.len() as u64) < room {
                model.reserve(model.used.len() % 5, 256);
            }
            model.reserve(1, 1);
            model.map.assert_valid();
        }
    }
}

#[test]
fn a_space_smaller_than_an_extent_is_always_full() {
    assert_eq!(SlotMap::new(Some(EXTENT_SLOTS as u64 - 1)).reserve_run(0, 1), None);
}

/// Evictors reserve while faults forfeit: nothing twice, nothing lost.
#[test]
fn threads_that_reserve_and_free() {
    // Less room than cores that want an extent each: they ask one another.
    for (cores, extents) in [(1, 4), (3, 8), (3, 1), (2, 2)] {
        reserve_and_free(cores, extents);
    }
}

fn reserve_and_free(cores: usize, extents: u64) {
    const ROUNDS: u32 = if cfg!(miri) { 4 } else { 2000 };
    let map = SlotMap::for_cores(Some(extents * EXTENT_SLOTS as u64), &vec![0; cores]);
    std::thread::scope(|threads| {
        for thread in 0..3u64 {
            let map = &map;
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let Some(run) = map.reserve_run(thread as usize, 1 + round % 40) else { continue };
                    let slots = (0..u64::from(run.len)).map(|i| run.first.plus(i));
                    slots.clone().for_each(|s| map.set_sum(s, thread));
                    slots.for_each(|s| {
                        assert_eq!(map.sum(s), thread, "{s:?} has two owners");
                        map.free(s);
                    });
                }
            });
        }
    });
    map.assert_valid();
    assert_eq!(map.live(), 0);
}
