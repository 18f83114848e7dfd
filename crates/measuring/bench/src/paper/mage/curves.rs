//! Figure 15: the time of a fault over the rate of faults, against raw reads.

use super::super::Ours::{Percent, Times};
use super::super::Value::{Mean, Quantile, QuantileOverRate, Rate};
use super::super::{Across, Claim, Figure, Panel, Plot, Reference, Runs, Variant, Vary, only, term};
use super::{MAGE, THREADS, apart, faults_disk};

pub(super) static FIFTEEN: Figure = Figure {
    name: "mage-15",
    paper: &MAGE,
    number: "Figure 15",
    title: "the time of a fault over the rate of faults, against raw reads",
    there: "The sequential read of figure 14 under more and more load, against RDMA reads alone; beside those, four threads write by RDMA all the time, as many as there are evictors.",
    here: "Two passes over 96 MiB, 30 % local, none read ahead; more threads are more load. Raw reads are those of as many threads, page by page: of a file past the page cache, and of memory that answers after 4 µs, as delay:4us does. Beside them two threads write 64 pages at a time, since an evictor has as many writes on their way: all the time as in the paper, or in step, as many pages as are read, which is what faults need. Writes to memory take a processor's time here, where the paper's network card makes them.",
    panels: &[
        curve("network", "Sequential read, delay:4us", &[only(70.0, apart), ALWAYS_LATE, IN_STEP_LATE]),
        curve("disk", "Sequential read, disk", &[only(70.0, faults_disk), ALWAYS, IN_STEP]),
    ],
    claims: &[
        Claim {
            what: "99th percentile over raw reads, 16 threads, delay:4us",
            system: "MAGE-Lib over RDMA reads",
            section: "§6.4",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(
                term("network", Quantile(0.99), "farshore", 16.0),
                term("network", Quantile(0.99), "raw reads, writers always", 16.0),
            ),
            why: "there the tail of raw reads comes from a network that is full, here from threads that wait for a processor",
        },
        Claim {
            what: "mean time of a raw read in percent of that of an access, 2 threads (there 48), delay:4us",
            system: "MAGE-Lib, of a fault",
            section: "§6.4",
            papers: Some(66.2),
            from: "computed: 5.1 µs in the RDMA stack of 7.7 µs",
            baseline: false,
            ours: Percent(term("network", Mean, "farshore", 2.0), term("network", Mean, "raw reads, writers in step", 2.0)),
            why: "a fault is a signal and system calls of a stock kernel, which a raw read is not",
        },
        Claim {
            what: "pages read a second in percent of raw reads, 16 threads (there 48), delay:4us",
            system: "MAGE-Lib, of the network",
            section: "§6.4",
            papers: Some(94.0),
            from: "",
            baseline: false,
            ours: Percent(term("network", Rate, "farshore", 16.0), term("network", Rate, "raw reads, writers in step", 16.0)),
            why: "two processors are full long before a network would be",
        },
        Claim {
            what: "pages read a second in percent of raw reads, 16 threads (there 48), disk",
            system: "MAGE-Lib, of the network",
            section: "§6.4",
            papers: Some(94.0),
            from: "",
            baseline: false,
            ours: Percent(term("disk", Rate, "farshore", 16.0), term("disk", Rate, "raw reads, writers in step", 16.0)),
            why: "the disk is the bottleneck of both, and some accesses find their page in memory",
        },
        Claim {
            what: "99th percentile over raw reads, 16 threads, disk",
            system: "MAGE-Lib over RDMA reads",
            section: "§6.4",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(
                term("disk", Quantile(0.99), "farshore", 16.0),
                term("disk", Quantile(0.99), "raw reads, writers always", 16.0),
            ),
            why: "writers that never rest take more of the disk from raw reads than evictors do",
        },
    ],
};

const fn curve(key: &'static str, title: &'static str, variants: &'static [Variant]) -> Panel {
    const SAYS: &[Reference] = &[
        Reference {
            system: "MAGE-Lib, RDMA reads",
            section: "§6.4",
            says: "the tail of MAGE-Lib stays about the same under each load, that of RDMA reads alone has spikes (no digits in the text)",
            points: &[],
        },
        Reference {
            system: "MAGE-Lib",
            section: "§6.4",
            says: "181 of 192 Gbit/s (94 %) with 48 threads; a mean of 7.7 µs, of which 5.1 are spent in the RDMA stack; 99th percentile 12 µs (MAGE-Lnx 31, DiLOS 82, Hermit 255)",
            points: &[],
        },
    ];
    Panel {
        key,
        title,
        x: Across { quick: &[1.0, 16.0], ..THREADS },
        runs: Runs::Load {
            line: "scan --size 96M --passes 2",
            quick: "scan --size 24M --passes 1",
            vary: Vary::Threads,
            variants,
        },
        run_seconds: 2.2,
        ideal: None,
        plots: &[
            Plot { title: "99th percentile over the rate", value: QuantileOverRate(0.99), references: SAYS },
            Plot { title: "Median over the rate", value: QuantileOverRate(0.5), references: &[] },
            Plot { title: "Pages read", value: Rate, references: &[] },
        ],
    }
}

/// Raw reads, with these writers beside them.
const fn raw(key: &'static str, lines: [&'static str; 2]) -> Variant {
    Variant { key, far: 70.0, lifted: false, targets: natively, lines: Some(lines) }
}

const ALWAYS_LATE: Variant = raw(
    "writers always",
    [
        "reads --size 96M --delay 4000 --writers 2 --seconds 1 --warmup 0.2",
        "reads --size 24M --delay 4000 --writers 2 --seconds 0.3 --warmup 0.1",
    ],
);
const IN_STEP_LATE: Variant = raw(
    "writers in step",
    [
        "reads --size 96M --delay 4000 --writers 2 --in-step --seconds 1 --warmup 0.2",
        "reads --size 24M --delay 4000 --writers 2 --in-step --seconds 0.3 --warmup 0.1",
    ],
);
const ALWAYS: Variant = raw(
    "writers always",
    ["reads --size 96M --writers 2 --seconds 1 --warmup 0.2", "reads --size 24M --writers 2 --seconds 0.3 --warmup 0.1"],
);
const IN_STEP: Variant = raw(
    "writers in step",
    [
        "reads --size 96M --writers 2 --in-step --seconds 1 --warmup 0.2",
        "reads --size 24M --writers 2 --in-step --seconds 0.3 --warmup 0.1",
    ],
);

fn natively(_: f64) -> String {
    "native:label=raw reads".into()
}
