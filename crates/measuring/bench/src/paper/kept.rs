//! How much of a program's throughput is left with less memory, on as many cores as MAGE had: modelled ([`super::model`]) from the faults that programs had here.

use farshore_scale::{Load, Machine, System, systems};

use super::Ours::Level;
use super::Value::Kept;
use super::mage::MAGE;
use super::model::Run;
use super::{Across, Claim, Figure, Panel, Plot, Reference, Runs, term};
use crate::report::axis::Scale;

/// About how long a panel takes, in s.
const SECONDS: f64 = 15.0;
/// Threads of the paper, and evictors that keep pace with them.
const MANY: u32 = 48;
const ENOUGH: u32 = 8;

/// What a program did here with so much of its memory far: percent, ns that a thread computes between two faults, pages that come along with a hundred.
type Faults = (f64, u64, u32);

/// From `mage-9` and `mage-9-gap` of 2026-11-30, medians of five rounds: what two threads do natively in the time of an operation, by its faults.
const GRID: [Faults; 5] = [(10.0, 10_354, 2), (30.0, 3_663, 3), (50.0, 2_079, 4), (70.0, 824, 3), (90.0, 233, 6)];
const PAGERANK: [Faults; 5] =
    [(10.0, 283_243, 1_081), (30.0, 77_689, 1_357), (50.0, 51_591, 1_304), (70.0, 33_184, 1_004), (90.0, 23_568, 714)];
const BFS: [Faults; 5] = [(10.0, 62_735, 584), (30.0, 18_064, 887), (50.0, 12_813, 885), (70.0, 7_666, 615), (90.0, 4_940, 438)];

fn at(program: &[Faults], far: f64, others: &[System]) -> Vec<Run> {
    let found = program.iter().find(|(x, ..)| (x - far).abs() < 0.5);
    let &(_, think_ns, along_percent) = found.expect("a point that was measured");
    let load = |threads| Load { threads, think_ns, along_percent, evicts: true };
    let many = [systems::LOCAL, systems::IDEAL, systems::with_evictors(systems::FARSHORE, ENOUGH)];
    let many = many.iter().chain(others).map(|system| Run {
        variant: "48 threads",
        system: *system,
        machine: Machine::mage(),
        load: load(MANY),
    });
    let two = [systems::LOCAL, systems::with_evictors(systems::FARSHORE, 1)];
    let two = two.into_iter().map(|system| Run { variant: "two cores", system, machine: Machine::ours(2), load: load(2) });
    many.chain(two).collect()
}

fn grid(far: f64) -> Vec<Run> {
    at(&GRID, far, &[systems::MAGE, systems::DILOS, systems::HERMIT])
}

fn pagerank(far: f64) -> Vec<Run> {
    at(&PAGERANK, far, &[])
}

fn bfs(far: f64) -> Vec<Run> {
    at(&BFS, far, &[])
}

const FAR: Across = Across {
    label: "far memory, % of the data",
    scale: Scale::Linear,
    points: &[10.0, 30.0, 50.0, 70.0, 90.0],
    quick: &[50.0, 90.0],
};

const fn panel(key: &'static str, title: &'static str, runs: fn(f64) -> Vec<Run>, plots: &'static [Plot]) -> Panel {
    Panel { key, title, x: FAR, runs: Runs::Modelled(runs), run_seconds: SECONDS, ideal: None, plots }
}

const MEASURED: &str = "Farshore, measured on two cores";

static NINE: Figure = Figure {
    name: "mage-9-model",
    paper: &MAGE,
    number: "Figure 9, modelled",
    title: "throughput over far memory with 48 threads, by the faults that programs have here",
    there: "PageRank and XSBench with 48 threads on two sockets of 28 cores, 192 of 200 Gbit/s, 3.9 µs a page.",
    here: "The model. A thread computes between two faults for as long as one did here, with the pages that were read ahead there; with more threads each still has the faults of one of two. The ideal is MAGE's: a fault costs the page's way alone. What a page that is read ahead costs Farshore is fitted to PageRank at half of its memory on two cores; all else of the series \"two cores\" is a test of the model.",
    panels: &[
        panel(
            "grid",
            "XSBench-like",
            grid,
            &[Plot {
                title: "Throughput that is kept",
                value: Kept,
                references: &[
                    Reference {
                        system: "MAGE",
                        section: "§6.2",
                        says: "10 % less with 9 % far, 20 % less with about 20 %",
                        points: &[(9.0, 90.0), (20.0, 80.0)],
                    },
                    Reference {
                        system: MEASURED,
                        section: "mage-9",
                        says: "37.3, 21.7, 12.5, 5.5 and 1.7 %",
                        points: &[(10.0, 37.3), (30.0, 21.7), (50.0, 12.5), (70.0, 5.5), (90.0, 1.7)],
                    },
                ],
            }],
        ),
        panel(
            "pagerank",
            "PageRank",
            pagerank,
            &[Plot {
                title: "Throughput that is kept",
                value: Kept,
                references: &[
                    Reference {
                        system: "MAGE-Lib",
                        section: "§6.2",
                        says: "15 % less with 10 % far, 30 % less with 61 %, 56 % left with 90 %",
                        points: &[(10.0, 85.0), (61.0, 70.0), (90.0, 56.0)],
                    },
                    Reference {
                        system: MEASURED,
                        section: "mage-9",
                        says: "66.2, 49.9, 37.8, 30.5 and 28.9 %",
                        points: &[(10.0, 66.2), (30.0, 49.9), (50.0, 37.8), (70.0, 30.5), (90.0, 28.9)],
                    },
                ],
            }],
        ),
        panel(
            "bfs",
            "Breadth-first search",
            bfs,
            &[Plot {
                title: "Throughput that is kept",
                value: Kept,
                references: &[Reference {
                    system: MEASURED,
                    section: "mage-9-gap",
                    says: "44.4, 22.1, 17.8, 13.5 and 11.4 %",
                    points: &[(10.0, 44.4), (30.0, 22.1), (50.0, 17.8), (70.0, 13.5), (90.0, 11.4)],
                }],
            }],
        ),
    ],
    claims: &[
        Claim {
            what: "PageRank with 90 % far, kept",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(56.0),
            from: "",
            baseline: false,
            ours: Level(term("pagerank", Kept, "Farshore, 48 threads", 90.0)),
            why: "a page costs the kernel's signal and its copy",
        },
        measured("XSBench-like with 10 % far, two cores", "grid", 10.0, 37.3),
        measured("XSBench-like, half far, two cores", "grid", 50.0, 12.5),
        measured("PageRank with 10 % far, two cores", "pagerank", 10.0, 66.2),
        measured("PageRank with 90 % far, two cores", "pagerank", 90.0, 28.9),
        measured("breadth-first search, half far, two cores", "bfs", 50.0, 17.8),
    ],
};

/// What the model says of two cores, beside what was measured on them: to be above that is as wrong as to be below.
const fn measured(what: &'static str, panel: &'static str, far: f64, percent: f64) -> Claim {
    Claim {
        what,
        system: "Farshore, measured",
        section: "mage-9",
        papers: Some(percent),
        from: "",
        baseline: true,
        ours: Level(term(panel, Kept, "Farshore, two cores", far)),
        why: "faults that bring no page (first writes, rescues) are not in the model",
    }
}

/// All of them.
pub const FIGURES: &[&Figure] = &[&NINE];
