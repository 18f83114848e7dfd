//! Workloads as traces of accesses, and what replacement policies ([`farshore_replay`]) make of them: `make policies-table`.

pub mod random;
pub mod recorder;
pub mod told;
pub mod work;

use farshore_replay::policies::{ALL, Make};

/// All models by name: those that are there for users too, and one that chooses at random.
#[must_use]
pub fn models() -> Vec<(&'static str, Make)> {
    let (textbooks, others) = ALL.split_at(3);
    let random: (_, Make) = ("random", |trace, capacity| Box::new(random::Random::new(trace, capacity)));
    [textbooks, &[random], others].concat()
}
