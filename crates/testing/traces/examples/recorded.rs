//! How far the table that a recording gives is from the truth, for each workload: `cargo run --release -p farshore-traces --example recorded`;
//! `TRACES=hot,sort` for some of them.

use farshore_policy::{BuiltIn, prefetch};
use farshore_traces::told::{order, table};
use farshore_traces::{recorder, work};

fn main() {
    println!(
        "| workload | recorded with | memory | policies told, in terms of the truth | in the wrong order |\n|---|---|---:|---|---:|"
    );
    let only = std::env::var("TRACES").unwrap_or_default();
    for whole in work::all(1).into_iter().filter(|whole| only.is_empty() || only.split(',').any(|name| name == whole.name)) {
        for prefetcher in [prefetch::BuiltIn::None, prefetch::BuiltIn::Sequential] {
            let limit = whole.touched() / 2;
            let (recording, _) = recorder::recorded(&whole, limit, BuiltIn::SecondChance, prefetcher);
            let told = recording.traces();
            for (part, capacity) in [(50, limit / 2), (75, limit * 3 / 4), (100, limit), (150, limit * 3 / 2)] {
                let (truth, told_rows) = (table(&whole, capacity), table(&told.likely, capacity));
                let ratios: Vec<String> = truth
                    .iter()
                    .zip(&told_rows)
                    .map(|((name, truth), (_, told))| format!("{name} {:.2}", *told as f64 / (*truth).max(1) as f64))
                    .collect();
                let (_, wrong) = order(&whole, &told, capacity, &[]);
                println!("| {} | {} | {part} % | {} | {} |", whole.name, prefetcher.name(), ratios.join(", "), wrong.len());
            }
        }
    }
}
