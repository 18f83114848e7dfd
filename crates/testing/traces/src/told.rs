//! What policies are told to read, from a recording, beside what they read.

use farshore_policy::{BuiltIn, prefetch};
use farshore_replay::recorded::Traces;
use farshore_replay::{Trace, engine, optimum, policies, reads};

/// By this factor two policies differ enough that a recording must order them.
const APART: f64 = 1.3;

/// What each policy reads: the engine, the models that a report has, and the optimum last.
#[must_use]
pub fn table(trace: &Trace, capacity: usize) -> Vec<(&'static str, u64)> {
    let engine = engine::reads(trace, capacity, BuiltIn::SecondChance, prefetch::BuiltIn::None).pages;
    let mut rows = vec![("Farshore", engine)];
    rows.extend(policies::general().map(|(name, make)| (name, reads(&mut *make(trace, capacity), trace))));
    rows.push(("Bélády", optimum::reads(trace, capacity)));
    rows
}

/// Both tables with so many pages, and all that is wrong with the order of those that a recording tells, but for policies that are left out.
#[must_use]
pub fn order(whole: &Trace, told: &Traces, capacity: usize, without: &[&str]) -> (String, Vec<String>) {
    let of = |trace| table(trace, capacity).into_iter().filter(|(name, _)| !without.contains(name)).collect::<Vec<_>>();
    let (truth, told) = (of(whole), of(&told.likely));
    let mut wrong = Vec::new();
    for (n, (name, reads)) in truth.iter().enumerate() {
        for (m, (other, more)) in truth.iter().enumerate() {
            let is_apart = *more as f64 > *reads as f64 * APART && more - reads > 100;
            if is_apart && told[n].1 >= told[m].1 {
                wrong.push(format!(
                    "{name} reads less than {other}: {reads} for {more}, and told are {} and {}",
                    told[n].1, told[m].1
                ));
            }
        }
    }
    let rows = truth.iter().zip(&told).map(|((name, truth), (_, told))| format!("{name} {truth} {told}"));
    (rows.collect::<Vec<_>>().join(", "), wrong)
}
