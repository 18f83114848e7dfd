//! Prints the table of `docs/src/guide/replacement.md`: pages read back by each policy, in terms of the optimum.

use farshore_policy::{BuiltIn, prefetch};
use farshore_replay::{Trace, engine, optimum, reads};
use farshore_traces::{models, work};

/// A row of the engine that ships: its name, the two that it is to use, and what is counted.
type Ours = (&'static str, BuiltIn, prefetch::BuiltIn, fn(engine::Read) -> u64);

const OURS: [Ours; 4] = [
    ("**Farshore's default**", BuiltIn::SecondChance, prefetch::BuiltIn::Sequential, |read| read.pages),
    ("the same, faults alone", BuiltIn::SecondChance, prefetch::BuiltIn::Sequential, |read| read.faults),
    ("Farshore, `--prefetch none`", BuiltIn::SecondChance, prefetch::BuiltIn::None, |read| read.pages),
    ("Farshore, `fifo`, `none`", BuiltIn::Fifo, prefetch::BuiltIn::None, |read| read.pages),
];

/// What one policy reads in each trace.
type Row = (&'static str, Vec<u64>);

fn rows(traces: &[Trace], percent: usize) -> Vec<Row> {
    let capacity = |trace: &Trace| trace.touched() * percent / 100;
    let ours = OURS.iter().map(|&(name, policy, prefetcher, of)| {
        (name, traces.iter().map(|trace| of(engine::reads(trace, capacity(trace), policy, prefetcher))).collect())
    });
    let told = traces.iter().map(|trace| engine::reads_told(trace, capacity(trace)).pages).collect();
    let models = models()
        .into_iter()
        .map(|(name, make)| (name, traces.iter().map(|trace| reads(&mut *make(trace, capacity(trace)), trace)).collect()));
    let best = ("Bélády", traces.iter().map(|trace| optimum::reads(trace, capacity(trace))).collect());
    ours.chain([("Farshore, told the future, `none`", told)]).chain(models).chain([best]).collect()
}

fn main() {
    let traces = work::all(1);
    println!("| workload | pages | accesses |\n|---|---:|---:|");
    for trace in &traces {
        println!("| {} | {} | {} |", trace.name, trace.touched(), trace.accesses.len());
    }
    let mut worst: Vec<(&str, f64)> = Vec::new();
    for percent in [25, 50, 75] {
        let names: Vec<&str> = traces.iter().map(|trace| trace.name).collect();
        println!(
            "\n{percent} % of its pages:\n\n| policy | {} | worst |\n|---|{}",
            names.join(" | "),
            "---:|".repeat(names.len() + 1)
        );
        let rows = rows(&traces, percent);
        let Some((last, models)) = rows.split_last() else { return };
        for (name, reads) in models {
            // Where the optimum reads nothing there is no ratio.
            let ratio = |&(&reads, &best): &(&u64, &u64)| (best > 0).then(|| reads as f64 / best as f64);
            let both = || reads.iter().zip(&last.1);
            let most = both().filter_map(|row| ratio(&row)).fold(0.0, f64::max);
            let cell = |row: (&u64, &u64)| ratio(&row).map_or_else(|| format!("+{}", row.0), |ratio| format!("{ratio:.2}"));
            let cells: Vec<String> = both().map(cell).collect();
            println!("| {name} | {} | {most:.2} |", cells.join(" | "));
            match worst.iter_mut().find(|(of, _)| of == name) {
                Some((_, so_far)) => *so_far = so_far.max(most),
                None => worst.push((name, most)),
            }
        }
        let cells: Vec<String> = last.1.iter().map(u64::to_string).collect();
        println!("| {}, pages read | {} | |", last.0, cells.join(" | "));
    }
    let dgemm = [work::dgemm(1)];
    let rows = rows(&dgemm, 80);
    let lru = rows.iter().find(|(name, _)| *name == "LRU").map_or(1, |(_, reads)| reads[0]);
    println!(
        "\nOf {}, {} pages, in 80 % of them:\n\n| policy | pages read | of LRU's |\n|---|---:|---:|",
        dgemm[0].name,
        dgemm[0].touched()
    );
    for (name, reads) in &rows {
        println!("| {name} | {} | {:.2} |", reads[0], reads[0] as f64 / lru as f64);
    }
    let within: Vec<&str> = worst.iter().filter(|(_, most)| *most <= 1.25).map(|(name, _)| *name).collect();
    println!("\nWithin 1.25 of the optimum in every row: {}.", if within.is_empty() { "none".into() } else { within.join(", ") });
}
