//! Figures 6 and 16: what a fault's time goes to.

use super::super::Ours::Level;
use super::super::Value::{self, FaultPart, FaultParts};
use super::super::{Across, Claim, Figure, Panel, Plot, Reference, Runs, Vary, only, term};
use super::{MAGE, THREADS};

pub(super) static SIXTEEN: Figure = Figure {
    name: "mage-16",
    paper: &MAGE,
    number: "Figures 6 and 16",
    title: "what the time of a fault goes to, over threads",
    there: "A sequential read page by page with evictions, 24 and 48 threads: the mean time of a fault by component.",
    here: "Two passes over 96 MiB, 30 % local, without prefetching, pages of delay:4us. Farshore's counters have the parts inside the handler, of one fetch in sixteen, and of those alone that wait for nothing but their read. They are of the whole run, filling and checking too. All is what the program sees in its measured time: the time of its accesses over its fetches. What is left of all is the kernel's way to the handler and back, waits for other threads' pages and for frames, and time in which the thread had no processor: with more threads than processors, that most of all. Where the parts come to more than all, it has no mark.",
    panels: &[Panel {
        key: "parts",
        title: "Mean time of a fetch by part, delay:4us",
        x: Across { points: &[1.0, 2.0, 4.0, 8.0], quick: &[2.0, 8.0], ..THREADS },
        runs: Runs::Load {
            line: "scan --size 96M --passes 2",
            quick: "scan --size 24M --passes 1",
            vary: Vary::Threads,
            variants: &[only(70.0, alone)],
        },
        run_seconds: 2.2,
        ideal: None,
        plots: &[Plot {
            title: "Mean time of a fetch, all and by part",
            value: FaultParts,
            references: &[
                Reference {
                    system: "MAGE-Lib",
                    section: "§6.4",
                    says: "7.7 µs with 48 threads, 5.1 µs of it in the network's stack; page accounting 0.2 µs, memory circulation 0.5 µs, and no TLB flush",
                    points: &[],
                },
                Reference {
                    system: "without partitions and the staging allocator",
                    section: "§6.4",
                    says: "page accounting 2.1 µs and memory circulation 2.4 µs",
                    points: &[],
                },
            ],
        }],
    }],
    claims: &[
        Claim {
            what: "page and frame of a fetch, 2 threads (there 48)",
            system: "MAGE-Lib",
            section: "§6.4",
            papers: Some(700.0),
            from: "computed: 0.2 µs of page accounting and 0.5 µs of memory circulation",
            baseline: false,
            ours: Level(term("parts", CLAIM, "farshore", 2.0)),
            why: "two threads do not contend for lists and frames as 48 do",
        },
        Claim {
            what: "page and frame of a fetch, 8 threads (there 48)",
            system: "MAGE without them",
            section: "§6.4",
            papers: Some(4_500.0),
            from: "computed: 2.1 µs of page accounting and 2.4 µs of memory circulation",
            baseline: false,
            ours: Level(term("parts", CLAIM, "farshore", 8.0)),
            why: "eight threads on two processors do not contend for lists and frames as 48 do",
        },
        Claim {
            what: "mean time of a fetch, 2 threads (there 48)",
            system: "MAGE-Lib",
            section: "§6.4",
            papers: Some(7_700.0),
            from: "",
            baseline: false,
            ours: Level(term("parts", FaultPart("all"), "farshore", 2.0)),
            why: "the signal to the handler and the system calls in it are none of MAGE's, and an evictor takes turns on the same two processors",
        },
    ],
};

const CLAIM: Value = FaultPart("claim");

fn alone(_: f64) -> String {
    "farshore:swap=delay:4us+prefetch=none+label=farshore".into()
}
