//! The frames against one counter: how many are taken, under which limit.
#![cfg(not(loom))]

use farshore_core::frames::Frames;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Take(usize),
    TakeMany(usize, u64),
    TakeSpare(u64, u64),
    TakeBack(u64),
    Give(u64),
    SetLimit(u64),
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0usize..70).prop_map(Op::Take),
        2 => (0usize..70, 1u64..200).prop_map(|(core, n)| Op::TakeMany(core, n)),
        1 => (0u64..300, 0u64..100).prop_map(|(want, keep)| Op::TakeSpare(want, keep)),
        1 => (0u64..20).prop_map(Op::TakeBack),
        3 => (0u64..200).prop_map(Op::Give),
        2 => (0u64..600).prop_map(Op::SetLimit),
    ]
}

struct Model {
    frames: Frames,
    limit: u64,
    taken: u64,
    peak: u64,
    /// The most that there was of frames.
    most: u64,
}

impl Model {
    /// What is over the limit is debt, what is under it is free: the two are never there at once.
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.taken)
    }

    fn took(&mut self, n: u64) {
        self.taken += n;
        self.peak = self.peak.max(self.taken);
    }

    fn take(&mut self, core: usize) {
        let free = self.free();
        assert_eq!(self.frames.take(core), free > 0, "{free} frames are free");
        if free > 0 {
            self.took(1);
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Take(core) => self.take(core),
            Op::TakeMany(core, n) => (0..n).for_each(|_| self.take(core)),
            Op::TakeSpare(want, keep) => {
                let spare = self.frames.free_uncached().saturating_sub(keep);
                let got = self.frames.take_spare(want as usize, want, keep);
                assert_eq!(got, want.min(spare));
                self.took(got);
            }
            Op::TakeBack(n) => {
                self.frames.take_back(n as usize, n);
                self.took(n);
            }
            Op::Give(n) => {
                let n = n.min(self.taken);
                self.frames.give(n as usize, n);
                self.taken -= n;
            }
            Op::SetLimit(limit) => {
                self.frames.set_limit(limit);
                self.limit = limit;
            }
        }
        self.assert_equal();
    }

    fn assert_equal(&mut self) {
        self.frames.assert_valid();
        assert_eq!(self.frames.limit(), self.limit);
        assert_eq!(self.frames.taken(), self.taken);
        // What is cached may count, but never more than there was.
        self.most = self.most.max(self.frames.limit() + self.frames.debt());
        assert!((self.peak..=self.most).contains(&self.frames.taken_peak()));
        assert_eq!(self.frames.debt(), self.taken.saturating_sub(self.limit));
        assert!(self.frames.free_uncached() <= self.free());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence(
        limit in 0u64..600,
        caches in 0usize..70,
        ops in proptest::collection::vec(ops(), 1..if cfg!(miri) { 12 } else { 60 }),
    ) {
        let mut model = Model { frames: Frames::new(limit, caches), limit, taken: 0, peak: 0, most: 0 };
        for op in ops {
            model.step(op);
        }
        // All comes back, and all of it can be taken again.
        model.step(Op::Give(model.taken));
        model.step(Op::TakeMany(3, model.limit + 1));
        assert_eq!(model.taken, model.limit);
    }
}

/// Cores take and give while the limit goes up and down: no more than the highest limit is ever taken.
#[test]
fn threads_never_take_more_than_the_limit() {
    const ROUNDS: u64 = if cfg!(miri) { 30 } else { 50_000 };
    const HIGH: u64 = 100;
    let frames = Frames::new(HIGH, 2);
    std::thread::scope(|threads| {
        for core in 0..2 {
            let frames = &frames;
            threads.spawn(move || {
                let mut have = 0;
                for round in 0..ROUNDS {
                    if round % 7 < 4 {
                        have += u64::from(frames.take(core));
                    } else {
                        let n = (round % 5).min(have);
                        frames.give(core + 1, n);
                        have -= n;
                    }
                }
                frames.give(0, have);
            });
        }
        for round in 0..ROUNDS / 10 {
            frames.set_limit(if round % 2 == 0 { HIGH / 3 } else { HIGH });
        }
        frames.set_limit(HIGH);
    });
    frames.assert_valid();
    assert!(frames.taken_peak() <= HIGH, "{}", frames.taken_peak());
    assert_eq!((frames.taken(), frames.limit()), (0, HIGH));
}
