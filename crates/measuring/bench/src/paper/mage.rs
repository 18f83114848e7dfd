//! MAGE (Pan, Lala, Unal and others: Scalable Far Memory: Balancing Faults and Evictions).

mod curves;
mod mapreduce;
mod memcached;
mod parts;

use super::Ours::{Level, Percent, Times};
use super::Value::{Dip, Kept, PagesIn, Quantile, Rate, Recovery, Timeline};
use super::{Across, Claim, Figure, Latency, Panel, Paper, Plot, Reference, Runs, Variant, Vary, only, term};
use crate::report::axis::Scale;

pub(super) const MAGE: Paper = Paper { name: "MAGE", title: "Scalable Far Memory: Balancing Faults and Evictions" };

/// All of them.
pub const FIGURES: &[&Figure] = &[
    &FIVE,
    &NINE,
    &NINE_DISK,
    &NINE_GAP,
    &TEN,
    &ELEVEN,
    &mapreduce::TWELVE,
    &memcached::THIRTEEN,
    &FOURTEEN,
    &curves::FIFTEEN,
    &parts::SIXTEEN,
    &SEVENTEEN,
];

/// Its network, as it gives the latency of one read.
const NETWORK: Latency = Latency::Delay(4_000);

const THERE: &str = "Two servers with 28-core processors in each of two sockets, 200 Gbit/s RDMA (3.9 µs a page), 48 application threads, 15 to 20 GB of data.";

const FAR: Across = Across {
    label: "far memory, % of the data",
    scale: Scale::Linear,
    points: &[0.0, 10.0, 30.0, 50.0, 70.0, 90.0],
    quick: &[10.0, 50.0],
};

const THREADS: Across = Across { label: "threads", scale: Scale::Log2, points: &[1.0, 2.0, 4.0, 8.0, 16.0], quick: &[1.0, 8.0] };

fn network(_: f64) -> String {
    "farshore:swap=delay:4us+label=farshore,zram:label=Linux swap on zram,native".into()
}

fn disk(_: f64) -> String {
    "farshore,linux-swap:label=Linux swap,native".into()
}

static FIVE: Figure = Figure {
    name: "mage-5",
    paper: &MAGE,
    number: "Figure 5",
    title: "faults alone against faults with evictions, over threads",
    there: "A sequential read page by page, up to 48 threads: with all memory local and the pages evicted beforehand, and with half of it far and four evictors.",
    here: "Such a read of 192 MiB, each thread of pages of its own, without prefetching. Alone: the data are filled with a tenth of them local, then the limit is lifted before they are read, so pages come and none leave. With evictions: half local. Pages of delay:4us; Linux swap on zram, whose pages come from RAM too; it reads none ahead either.",
    panels: &[Panel {
        key: "read",
        title: "Sequential read",
        x: THREADS,
        runs: Runs::Load {
            line: "scan --size 192M --passes 1",
            quick: "scan --size 48M --passes 1",
            vary: Vary::Threads,
            variants: &[
                Variant { key: "faults alone", far: 90.0, lifted: true, targets: apart, lines: None },
                Variant { key: "with evictions", far: 50.0, lifted: false, targets: apart, lines: None },
            ],
        },
        run_seconds: 1.0,
        ideal: None,
        plots: &[Plot {
            title: "Pages that come",
            value: PagesIn,
            references: &[
                Reference {
                    system: "DiLOS",
                    section: "§3.2",
                    says: "faults alone reach 56 % of the ideal 5.83 M/s (24 threads and more), with evictions 30 %",
                    points: &[],
                },
                Reference {
                    system: "Hermit",
                    section: "§3.2",
                    says: "faults alone reach 20 % of the ideal, with evictions 14 %, and 10 % with more threads",
                    points: &[],
                },
            ],
        }],
    }],
    claims: &[
        Claim {
            what: "rate of faults that is left with evictions, 8 threads",
            system: "DiLOS",
            section: "§3.2",
            papers: Some(53.6),
            from: "computed: 30 % over 56 % of the ideal",
            baseline: false,
            ours: Percent(
                term("read", PagesIn, "farshore, with evictions", 8.0),
                term("read", PagesIn, "farshore, faults alone", 8.0),
            ),
            why: "with two processors an evictor takes from the same processors that fault, where there four cores had nothing else to do",
        },
        Claim {
            what: "rate of faults that is left with evictions in Linux, 8 threads",
            system: "Hermit",
            section: "§3.2",
            papers: Some(70.0),
            from: "computed: 14 % over 20 % of the ideal",
            baseline: true,
            ours: Percent(
                term("read", PagesIn, "Linux swap on zram, with evictions", 8.0),
                term("read", PagesIn, "Linux swap on zram, faults alone", 8.0),
            ),
            why: "zram compresses on the same processors, which costs evictions more than handing a page to a network card",
        },
        Claim {
            what: "rate of faults with evictions over Linux, 8 threads",
            system: "DiLOS over Hermit",
            section: "§3.2",
            papers: Some(2.14),
            from: "computed: 30 % over 14 % of the ideal",
            baseline: false,
            ours: Times(
                term("read", PagesIn, "farshore, with evictions", 8.0),
                term("read", PagesIn, "Linux swap on zram, with evictions", 8.0),
            ),
            why: "a fault here costs a signal and a system call more than one in the kernel, and two processors show nothing of locks that 48 threads fight for",
        },
    ],
};

fn apart(_: f64) -> String {
    "farshore:swap=delay:4us+prefetch=none+label=farshore,zram:readahead=none+label=Linux swap on zram".into()
}

const NINE_HERE: &str = "PageRank of a Kronecker graph with 2^20 vertices (136 MiB) and the look-ups of XSBench's unionised grid (192 MiB), two threads, by workloads of our own.";

const LIB_AND_LNX: &[Reference] = &[
    Reference {
        system: "MAGE-Lib",
        section: "§6.2",
        says: "15 % less at 10 % far memory, 30 % less at 61 %; 56 % are kept at 90 %",
        points: &[(10.0, 85.0), (61.0, 70.0), (90.0, 56.0)],
    },
    Reference {
        system: "MAGE-Lnx",
        section: "§6.2",
        says: "19 % less at 10 % far memory; 41 % are kept at 90 %",
        points: &[(10.0, 81.0), (90.0, 41.0)],
    },
    Reference { system: "Hermit", section: "§6.2", says: "74 % less at 10 % far memory", points: &[(10.0, 26.0)] },
    Reference { system: "DiLOS", section: "§6.2", says: "51 % less at 10 % far memory", points: &[(10.0, 49.0)] },
];
const XSBENCH: &[Reference] = &[
    Reference {
        system: "MAGE-Lib, MAGE-Lnx",
        section: "§6.2",
        says: "10 % less at 9 % far memory, 20 % less at about 20 %",
        points: &[(9.0, 90.0), (20.0, 80.0)],
    },
    Reference { system: "Hermit", section: "§3.1", says: "69 % less at 10 % far memory", points: &[(10.0, 31.0)] },
];

const fn over_far(
    key: &'static str,
    title: &'static str,
    lines: [&'static str; 2],
    variants: &'static [Variant],
    plots: &'static [Plot],
) -> Panel {
    Panel {
        key,
        title,
        x: FAR,
        runs: Runs::Load { line: lines[0], quick: lines[1], vary: Vary::Far, variants },
        run_seconds: 2.5,
        ideal: Some(NETWORK),
        plots,
    }
}

const KEPT: &str = "Throughput that is kept";
const PAGERANK_PLOTS: &[Plot] = &[Plot { title: KEPT, value: Kept, references: LIB_AND_LNX }];
const GRID_PLOTS: &[Plot] = &[Plot { title: KEPT, value: Kept, references: XSBENCH }];

const PAGERANK: [&str; 2] = ["pagerank --scale 20 --threads 2 --iterations 3", "pagerank --scale 17 --threads 2 --iterations 1"];
const GRID: [&str; 2] =
    ["grid --size 192M --threads 2 --seconds 1.5 --warmup 0.5", "grid --size 24M --threads 2 --seconds 0.3 --warmup 0.1"];

static NINE: Figure = Figure {
    name: "mage-9",
    paper: &MAGE,
    number: "Figures 3 and 9",
    title: "throughput over far memory, random access",
    there: THERE,
    here: NINE_HERE_NETWORK,
    panels: &[
        over_far("pagerank", "PageRank", PAGERANK, &[only(0.0, network)], PAGERANK_PLOTS),
        over_far("grid", "XSBench-like grid", GRID, &[only(0.0, network)], GRID_PLOTS),
    ],
    claims: &[
        Claim {
            what: "PageRank over Linux at 10 % far memory",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: Some(3.27),
            from: "computed: 85 % over 26 %, from drops of 15 and 74 %",
            baseline: false,
            ours: Times(term("pagerank", Kept, "farshore", 10.0), term("pagerank", Kept, "Linux swap on zram", 10.0)),
            why: "two threads do not make Linux' locks the bottleneck that they are with 48, and zram's pages come sooner than delay:4us gives them",
        },
        Claim {
            what: "throughput that is kept at 10 % far memory, PageRank",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(85.0),
            from: "computed: a drop of 15 %",
            baseline: false,
            ours: Level(term("pagerank", Kept, "farshore", 10.0)),
            why: NO_CORE,
        },
        Claim {
            what: "throughput that is kept at 90 % far memory, PageRank",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(56.0),
            from: "",
            baseline: false,
            ours: Level(term("pagerank", Kept, "farshore", 90.0)),
            why: NO_CORE,
        },
        Claim {
            what: "throughput that is kept at 10 % far memory (there 9 %), XSBench-like",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(90.0),
            from: "computed: a drop of 10 %",
            baseline: false,
            ours: Level(term("grid", Kept, "farshore", 10.0)),
            why: NO_CORE,
        },
        Claim {
            what: "XSBench-like over Linux at 10 % far memory (there 9 %)",
            system: "MAGE-Lib over Hermit",
            section: "§3.1, §6.2",
            papers: Some(2.9),
            from: "computed: 90 % at 9 % over 31 % at 10 %, from drops of 10 and 69 %",
            baseline: false,
            ours: Times(term("grid", Kept, "farshore", 10.0), term("grid", Kept, "Linux swap on zram", 10.0)),
            why: "two threads do not make Linux' locks the bottleneck that they are with 48",
        },
    ],
};

const NINE_HERE_NETWORK: &str = "PageRank of a Kronecker graph with 2^20 vertices (136 MiB) and the look-ups of XSBench's unionised grid (192 MiB), two threads, by workloads of our own. Farshore's pages come from delay:4us, as long as the paper's network takes. Linux cannot swap to that; its pages are on zram, in RAM.";
const NO_CORE: &str = "a fault is served by the processor that computes, in a signal handler, and the evictor runs on the same two processors; there evictors have cores of their own and faults stay in a kernel that is made for them";

static NINE_DISK: Figure = Figure {
    name: "mage-9-disk",
    paper: &MAGE,
    number: "Figures 3 and 9",
    title: "throughput over far memory, random access, on a disk",
    there: THERE,
    here: NINE_HERE,
    panels: &[
        Panel {
            ideal: Some(Latency::Device),
            ..over_far("pagerank", "PageRank, disk", PAGERANK, &[only(0.0, disk)], PAGERANK_PLOTS)
        },
        Panel {
            ideal: Some(Latency::Device),
            ..over_far("grid", "XSBench-like grid, disk", GRID, &[only(0.0, disk)], GRID_PLOTS)
        },
    ],
    claims: &[
        Claim {
            what: "PageRank over Linux swap at 10 % far memory, disk",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: Some(3.27),
            from: "computed: 85 % over 26 %, from drops of 15 and 74 %",
            baseline: false,
            ours: Times(term("pagerank", Kept, "farshore", 10.0), term("pagerank", Kept, "Linux swap", 10.0)),
            why: SAME_DISK,
        },
        Claim {
            what: "PageRank over Linux swap at 90 % far memory, disk",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("pagerank", Kept, "farshore", 90.0), term("pagerank", Kept, "Linux swap", 90.0)),
            why: SAME_DISK,
        },
        Claim {
            what: "XSBench-like over Linux swap at 10 % far memory (there 9 %), disk",
            system: "MAGE-Lib over Hermit",
            section: "§3.1, §6.2",
            papers: Some(2.9),
            from: "computed: 90 % at 9 % over 31 % at 10 %, from drops of 10 and 69 %",
            baseline: false,
            ours: Times(term("grid", Kept, "farshore", 10.0), term("grid", Kept, "Linux swap", 10.0)),
            why: SAME_DISK,
        },
        Claim {
            what: "throughput that is kept at 10 % far memory, PageRank, disk",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(85.0),
            from: "computed: a drop of 15 %",
            baseline: false,
            ours: Level(term("pagerank", Kept, "farshore", 10.0)),
            why: "a page of the disk takes tens of times longer than one of the paper's network",
        },
    ],
};

const SAME_DISK: &str = "both wait for the same disk, which is the bottleneck here and not the kernel's locks";

static NINE_GAP: Figure = Figure {
    name: "mage-9-gap",
    paper: &MAGE,
    number: "Figure 9",
    title: "throughput over far memory, two more kernels of GAP",
    there: THERE,
    here: "Of GAP's kernels the paper has PageRank alone. These are breadth-first search and connected components of the same graph, by workloads of our own, on delay:4us and zram. The paper's marks are those of PageRank, for the eye.",
    panels: &[
        over_far("bfs", "Breadth-first search", BFS, &[only(0.0, network)], PAGERANK_PLOTS),
        over_far("cc", "Connected components", CC, &[only(0.0, network)], PAGERANK_PLOTS),
    ],
    claims: &[
        Claim {
            what: "breadth-first search over Linux at 50 % far memory",
            system: "MAGE-Lib over Hermit, PageRank",
            section: "§6.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("bfs", Kept, "farshore", 50.0), term("bfs", Kept, "Linux swap on zram", 50.0)),
            why: OF_GAP,
        },
        Claim {
            what: "connected components over Linux at 50 % far memory",
            system: "MAGE-Lib over Hermit, PageRank",
            section: "§6.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("cc", Kept, "farshore", 50.0), term("cc", Kept, "Linux swap on zram", 50.0)),
            why: OF_GAP,
        },
    ],
};

const OF_GAP: &str =
    "two threads do not make Linux' locks the bottleneck that they are with 48, and zram has RAM beyond the limit";
const BFS: [&str; 2] = ["bfs --scale 20 --threads 2 --trials 3", "bfs --scale 17 --threads 2 --trials 1"];
const CC: [&str; 2] = ["cc --scale 20 --threads 2 --trials 1", "cc --scale 17 --threads 2 --trials 1"];

static TEN: Figure = Figure {
    name: "mage-10",
    paper: &MAGE,
    number: "Figures 4 and 10",
    title: "sequential scan with and without prefetching",
    there: THERE,
    here: "Three passes over 96 MiB by two threads, each over a part of its own. Pages of delay:4us and zram, and of the disk.",
    panels: &[
        Panel { x: SCANNED, ..over_far("network", "Scan, delay:4us", SCAN, &[only(0.0, scan_network)], SCAN_PLOTS) },
        Panel {
            x: SCANNED,
            ideal: Some(Latency::Device),
            ..over_far("disk", "Scan, disk", SCAN, &[only(0.0, scan_disk)], SCAN_PLOTS)
        },
    ],
    claims: &[
        Claim {
            what: "what prefetching gives at 10 % far memory",
            system: "MAGE-Lib with and without",
            section: "§6.2",
            papers: Some(1.38),
            from: "computed: 93.6 % over 68 %",
            baseline: false,
            ours: Times(term("network", Kept, "farshore", 10.0), term("network", Kept, "farshore without prefetching", 10.0)),
            why: "a part of a loop that does not fit stays local here, so that a tenth of far memory makes few faults with and without prefetching",
        },
        Claim {
            what: "throughput that is kept at 10 % far memory, with prefetching",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(93.6),
            from: "",
            baseline: false,
            ours: Level(term("network", Kept, "farshore", 10.0)),
            why: NO_CORE,
        },
        Claim {
            what: "throughput that is kept at 10 % far memory, without prefetching",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(68.0),
            from: "",
            baseline: false,
            ours: Level(term("network", Kept, "farshore without prefetching", 10.0)),
            why: NO_CORE,
        },
        Claim {
            what: "over Linux swap at 50 % far memory, disk, both with prefetching",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("disk", Kept, "farshore", 50.0), term("disk", Kept, "Linux swap", 50.0)),
            why: "both read ahead from the same disk in its order, which is the bottleneck",
        },
    ],
};

const SCANNED: Across = Across { points: &[0.0, 10.0, 50.0, 90.0], quick: &[10.0, 50.0], ..FAR };
const SCAN: [&str; 2] = ["scan --size 96M --threads 2 --passes 3", "scan --size 24M --threads 2 --passes 2"];
const SCAN_PLOTS: &[Plot] = &[Plot {
    title: KEPT,
    value: Kept,
    references: &[
        Reference {
            system: "MAGE-Lib",
            section: "§6.2",
            says: "93.6 % of the baseline at 10 % far memory",
            points: &[(10.0, 93.6)],
        },
        Reference {
            system: "MAGE-Lib without prefetching",
            section: "§6.2",
            says: "32 % less at 10 % far memory",
            points: &[(10.0, 68.0)],
        },
        Reference {
            system: "DiLOS, Hermit",
            section: "§6.2",
            says: "with prefetching 1.87 to 2.46 M/s, and 1.34 to 1.03 M/s",
            points: &[],
        },
    ],
}];

fn scan_network(_: f64) -> String {
    "farshore:swap=delay:4us+label=farshore,farshore:swap=delay:4us+prefetch=none+label=farshore without prefetching,zram:label=Linux swap on zram,native".into()
}

fn scan_disk(_: f64) -> String {
    "farshore,farshore:prefetch=none+label=farshore without prefetching,linux-swap:label=Linux swap,native".into()
}

static ELEVEN: Figure = Figure {
    name: "mage-11",
    paper: &MAGE,
    number: "Figure 11",
    title: "random updates whose region changes in mid-run, 85 % local",
    there: "GUPS with Zipf popularity over 32 GB: one region of 80 %, then the rest; 48 threads, the change after 10 s.",
    here: "The same over 128 MiB by two threads, the change after 3 s. Times scale with the data, so seconds are set against each other and not against the paper's. What a rate is set against is the rate before the change.",
    panels: &[
        moving("network", "Moving updates, delay:4us", &[only(15.0, moving_network)]),
        moving("disk", "Moving updates, disk", &[only(15.0, moving_disk)]),
    ],
    claims: &[
        Claim {
            what: "time until it is back, disk, Linux swap's over Farshore's",
            system: "Hermit and DiLOS over MAGE",
            section: "§6.2",
            papers: Some(1.43),
            from: "a lower bound, computed: a stall of over 2 s over a drop of 1.4 s",
            baseline: false,
            ours: Times(term("disk", Recovery, "farshore", 85.0), term("disk", Recovery, "Linux swap", 85.0)),
            why: "so little data come back within a few steps of the timeline under both",
        },
        Claim {
            what: "lowest rate after the change, in percent of the rate before, delay:4us",
            system: "MAGE",
            section: "§6.2",
            papers: Some(57.0),
            from: "computed: 0.4 over 0.7 M/s, which it recovers to; the text has no rate before the change",
            baseline: false,
            ours: Level(term("network", Dip, "farshore", 85.0)),
            why: "the new region is a larger part of what two processors can fetch in a tenth of a second",
        },
        Claim {
            what: "lowest rate after the change, disk, Farshore's over Linux swap's",
            system: "MAGE over Hermit and DiLOS",
            section: "§6.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("disk", Dip, "farshore", 85.0), term("disk", Dip, "Linux swap", 85.0)),
            why: "both wait for the same disk",
        },
    ],
};

const fn moving(key: &'static str, title: &'static str, variants: &'static [Variant]) -> Panel {
    Panel {
        key,
        title,
        x: Across { label: "local memory, % of the data", scale: Scale::Linear, points: &[85.0], quick: &[85.0] },
        runs: Runs::Load {
            line: "gups-move --size 128M --threads 2 --seconds 6 --warmup 1.5",
            quick: "gups-move --size 24M --threads 2 --seconds 1.6 --warmup 0.2",
            vary: Vary::Targets,
            variants,
        },
        run_seconds: 8.6,
        ideal: None,
        plots: &[Plot {
            title: "Updates over time",
            value: Timeline,
            references: &[
                Reference {
                    system: "MAGE",
                    section: "§6.2",
                    says: "0.4 M/s for 1.4 s after the change, then 0.7 M/s",
                    points: &[],
                },
                Reference { system: "Hermit, DiLOS", section: "§6.2", says: "nearly stall for over 2 s", points: &[] },
            ],
        }],
    }
}

fn moving_network(_: f64) -> String {
    "farshore:swap=delay:4us+label=farshore,zram:label=Linux swap on zram".into()
}

fn moving_disk(_: f64) -> String {
    "farshore,linux-swap:label=Linux swap".into()
}

static FOURTEEN: Figure = Figure {
    name: "mage-14",
    paper: &MAGE,
    number: "Figure 14",
    title: "rate and 99th percentile of faults over threads",
    there: "A sequential read of each thread's own memory without prefetching, 30 % local, 5.2 million faults, up to 48 threads.",
    here: "Two passes over 96 MiB, 30 % local. Linux reads no pages ahead either. That Farshore never evicts in a fault is checked in each run: one that did would not count.",
    panels: &[
        faults("network", "Sequential read, delay:4us", &[only(70.0, apart)]),
        faults("disk", "Sequential read, disk", &[only(70.0, faults_disk)]),
    ],
    claims: &[
        Claim {
            what: "99th percentile over Linux, 16 threads, delay:4us",
            system: "MAGE-Lib over Hermit",
            section: "§6.4",
            papers: Some(21.3),
            from: "computed: 255 over 12 µs",
            baseline: false,
            ours: Times(
                term("network", Quantile(0.99), "farshore", 16.0),
                term("network", Quantile(0.99), "Linux swap on zram", 16.0),
            ),
            why: WAITING,
        },
        Claim {
            what: "pages read a second over Linux, 16 threads, delay:4us",
            system: "MAGE-Lib over Hermit",
            section: "§6.4",
            papers: Some(7.1),
            from: "",
            baseline: false,
            ours: Times(term("network", Rate, "farshore", 16.0), term("network", Rate, "Linux swap on zram", 16.0)),
            why: "a fault here costs a signal and a system call more than one in the kernel, and two processors show nothing of Linux' locks",
        },
        Claim {
            what: "99th percentile over Linux swap, 16 threads, disk",
            system: "MAGE-Lib over Hermit",
            section: "§6.4",
            papers: Some(21.3),
            from: "computed: 255 over 12 µs",
            baseline: false,
            ours: Times(term("disk", Quantile(0.99), "farshore", 16.0), term("disk", Quantile(0.99), "Linux swap", 16.0)),
            why: WAITING,
        },
        Claim {
            what: "pages read a second over Linux swap, 16 threads, disk",
            system: "MAGE-Lib over Hermit",
            section: "§6.4",
            papers: Some(7.1),
            from: "",
            baseline: false,
            ours: Times(term("disk", Rate, "farshore", 16.0), term("disk", Rate, "Linux swap", 16.0)),
            why: "the disk is the bottleneck of both, and Linux reads it ahead in large pieces",
        },
    ],
};

const WAITING: &str =
    "with more threads than processors a thread's turn is part of its latency, and two processors show nothing of Linux' locks";

const fn faults(key: &'static str, title: &'static str, variants: &'static [Variant]) -> Panel {
    const SAYS: &[Reference] = &[
        Reference {
            system: "MAGE-Lib, MAGE-Lnx",
            section: "§6.4",
            says: "181 and 139 Gbit/s with 48 threads; 99th percentile 12 and 31 µs",
            points: &[],
        },
        Reference {
            system: "Hermit, DiLOS",
            section: "§6.4",
            says: "7.1 and 3.1 times less than MAGE-Lib; 99th percentile 255 and 82 µs",
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
            Plot { title: "Pages read", value: Rate, references: SAYS },
            Plot { title: "99th percentile", value: Quantile(0.99), references: &[] },
        ],
    }
}

fn faults_disk(_: f64) -> String {
    "farshore:prefetch=none+label=farshore,linux-swap:readahead=none+label=Linux swap".into()
}

static SEVENTEEN: Figure = Figure {
    name: "mage-17",
    paper: &MAGE,
    number: "Figure 17",
    title: "what each technique gives",
    there: "DiLOS as the baseline, then pipelined eviction, a partitioned LRU, and allocators in several layers, each on top of the last; 48 threads.",
    here: "Farshore without all three (--ablate pipeline,partitions,caches), then with one after the other in the same order, on delay:4us, two threads.",
    panels: &[
        Panel {
            x: TECHNIQUES,
            ideal: None,
            ..over_far("pagerank", "PageRank", PAGERANK, &[only(0.0, ablated)], TECHNIQUE_PLOTS)
        },
        Panel {
            x: TECHNIQUES,
            ideal: None,
            ..over_far("grid", "XSBench-like grid", GRID, &[only(0.0, ablated)], TECHNIQUE_PLOTS)
        },
    ],
    claims: &[
        Claim {
            what: "what pipelined eviction gives at 20 % far memory, PageRank",
            system: "MAGE-Lib, pipelined over the baseline",
            section: "§6.5",
            papers: Some(1.58),
            from: "",
            baseline: false,
            ours: Times(term("pagerank", Rate, "and pipelined", 20.0), term("pagerank", Rate, "none of them", 20.0)),
            why: ENOUGH,
        },
        Claim {
            what: "what pipelined eviction gives at 20 % far memory, XSBench-like",
            system: "MAGE-Lib, pipelined over the baseline",
            section: "§6.5",
            papers: Some(1.74),
            from: "",
            baseline: false,
            ours: Times(term("grid", Rate, "and pipelined", 20.0), term("grid", Rate, "none of them", 20.0)),
            why: ENOUGH,
        },
        Claim {
            what: "what partitions and caches give beyond it, XSBench-like, here at 20 % far memory",
            system: "MAGE-Lib, all over pipelined",
            section: "§6.5",
            papers: Some(1.1),
            from: "computed: about 10 % more; the text does not say at how much far memory",
            baseline: false,
            ours: Times(term("grid", Rate, "and caches: all", 20.0), term("grid", Rate, "and pipelined", 20.0)),
            why: "two threads hardly contend for what partitions and caches set apart",
        },
    ],
};

const ENOUGH: &str = "two threads do not fault faster than one evictor that waits for each batch can evict";

const TECHNIQUES: Across = Across { points: &[20.0, 50.0, 80.0], quick: &[20.0], ..FAR };
const TECHNIQUE_PLOTS: &[Plot] = &[Plot {
    title: "Throughput with more and more of the techniques",
    value: Rate,
    references: &[Reference {
        system: "MAGE-Lib",
        section: "§6.5",
        says: "pipelining 1.58 (GapBS) and 1.74 times (XSBench) at 20 % far memory; partitions and layers about 10 % more for XSBench, without saying at how much far memory",
        points: &[],
    }],
}];

fn ablated(_: f64) -> String {
    r"farshore:swap=delay:4us+label=and caches: all,farshore:swap=delay:4us+ablate=caches+label=and partitions,farshore:swap=delay:4us+ablate=partitions\,caches+label=and pipelined,farshore:swap=delay:4us+ablate=pipeline\,partitions\,caches+label=none of them".into()
}
