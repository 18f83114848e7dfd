//! ExtMem (Jalalian, Patel, Rezaei Hajidehi, Seltzer, Fedorova: Enabling Application-Aware Virtual Memory Management for Data-Intensive Applications).

use super::Ours::{Percent, Times};
use super::Value::{Mean, Rate, Seconds, Timeline};
use super::{Across, Claim, Figure, Panel, Paper, Plot, Reference, Runs, Variant, Vary, only, term};
use crate::report::axis::Scale;

const EXTMEM: Paper = Paper {
    name: "ExtMem",
    title: "ExtMem: Enabling Application-Aware Virtual Memory Management for Data-Intensive Applications",
};

/// All of them.
pub const FIGURES: &[&Figure] = &[&FOUR, &FIVE, &SIX, &SEVEN, &SIGNALS];

const THERE: &str = "Two sockets with 16 cores each, an NVMe SSD of 2.7 GB/s, Linux 5.15 with changes to userfaultfd and signals, 16 GB of data of which 8 are local.";

const THREADS: Across = Across { label: "threads", scale: Scale::Log2, points: &[1.0, 2.0, 4.0, 8.0, 16.0], quick: &[1.0, 8.0] };

fn disk(_: f64) -> String {
    "farshore,linux-swap:label=Linux swap".into()
}

static FOUR: Figure = Figure {
    name: "extmem-4",
    paper: &EXTMEM,
    number: "Figures 3 and 4",
    title: "what it costs to deliver a fault, over threads",
    there: "Minor faults of newly allocated memory: the mean time of one by userfaultfd's messages, by SIGBUS, by an upcall of a changed kernel, and in the kernel.",
    here: "A stock kernel has no upcalls, and a program that fits is not managed at all. So these are faults on pages that are in RAM set aside (--swap ram): a sequential read of 64 MiB, a tenth of them local, without prefetching, so that each page is a fault. SIGBUS is --fault upcall, messages are --fault poll; the kernel's own are faults on zram, which reads none ahead.",
    panels: &[Panel {
        key: "deliveries",
        title: "Mean time of a fault",
        x: THREADS,
        runs: Runs::Load {
            line: "scan --size 64M --passes 2",
            quick: "scan --size 48M --passes 1",
            vary: Vary::Threads,
            variants: &[only(90.0, deliveries)],
        },
        run_seconds: 0.6,
        ideal: None,
        plots: &[Plot {
            title: "Mean time of an access to an absent page",
            value: Mean,
            references: &[Reference {
                system: "ExtMem",
                section: "§4.1",
                says: "userfaultfd scales poorly, SIGBUS better but with a bottleneck, upcalls closely as the kernel's own faults (no digits in the text)",
                points: &[],
            }],
        }],
    }],
    claims: &[Claim {
        what: "a fault by SIGBUS over one by a message, 8 threads",
        system: "SIGBUS over userfaultfd",
        section: "§4.1",
        papers: None,
        from: "",
        baseline: false,
        ours: Times(term("deliveries", Mean, "SIGBUS", 8.0), term("deliveries", Mean, "messages", 8.0)),
        why: "on two processors a handler thread wakes on the one that the faulting thread has just left",
    }],
};

fn deliveries(_: f64) -> String {
    "farshore:swap=ram+prefetch=none+fault=upcall+label=SIGBUS,farshore:swap=ram+prefetch=none+fault=poll+label=messages,zram:readahead=none+label=Linux swap on zram".into()
}

static FIVE: Figure = Figure {
    name: "extmem-5",
    paper: &EXTMEM,
    number: "Figure 5",
    title: "updates of bytes at random, in order and of a hot set, over threads",
    there: THERE,
    here: "128 MiB on the disk, half of them local. At random by single pages, as the paper has it, and by runs of 512 neighbouring pages at a random place, as mmapbench's random access is: an update there is a run. The paper has the hot set over time alone, with eight threads.",
    panels: &[
        over_threads(
            "random",
            "At random, single pages",
            ["random --size 128M --seconds 1.2 --warmup 0.3", "random --size 24M --seconds 0.3 --warmup 0.1"],
        ),
        Panel {
            x: FEW_THREADS,
            ..over_threads(
                "runs",
                "At random, runs of 512 pages",
                [
                    "random --run-length 512 --size 128M --seconds 1.2 --warmup 0.3",
                    "random --run-length 512 --size 24M --seconds 0.3 --warmup 0.1",
                ],
            )
        },
        over_threads(
            "sequential",
            "In order",
            ["scan --mode update --size 96M --passes 2", "scan --mode update --size 24M --passes 1"],
        ),
        Panel {
            x: FEW_THREADS,
            ..over_threads(
                "hot",
                "90 % of the updates in 10 % of the pages",
                ["hotset --size 128M --seconds 1.2 --warmup 0.3", "hotset --size 24M --seconds 0.3 --warmup 0.1"],
            )
        },
    ],
    claims: &[
        Claim {
            what: "updates at random over Linux swap, 8 threads",
            system: "ExtMem-2Q over Linux",
            section: "§4.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("random", Rate, "farshore", 8.0), term("random", Rate, "Linux swap", 8.0)),
            why: "the same disk serves both, and with half of the data local it is the bottleneck",
        },
        Claim {
            what: "updates in order over Linux swap, 4 threads",
            system: "ExtMem over Linux",
            section: "§4.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("sequential", Rate, "farshore", 4.0), term("sequential", Rate, "Linux swap", 4.0)),
            why: "Linux reads ahead in order from the same disk, and both wait for it",
        },
        Claim {
            what: "updates of runs of 512 pages over Linux swap, 8 threads",
            system: "ExtMem over Linux, in order",
            section: "§4.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("runs", Rate, "farshore", 8.0), term("runs", Rate, "Linux swap", 8.0)),
            why: "a run is a stream of 2 MiB, long enough for both to read ahead in it and for both to read beyond it",
        },
        Claim {
            what: "updates of a hot set over Linux swap, 8 threads",
            system: "ExtMem-2Q over Linux",
            section: "§4.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("hot", Rate, "farshore", 8.0), term("hot", Rate, "Linux swap", 8.0)),
            why: "with half of the data local most of the hot set stays under both",
        },
    ],
};

const FEW_THREADS: Across = Across { points: &[1.0, 4.0, 8.0], quick: &[8.0], ..THREADS };

const fn over_threads(key: &'static str, title: &'static str, lines: [&'static str; 2]) -> Panel {
    Panel {
        key,
        title,
        x: Across { points: &[1.0, 2.0, 4.0, 8.0, 16.0], quick: &[4.0, 8.0], ..THREADS },
        runs: Runs::Load { line: lines[0], quick: lines[1], vary: Vary::Threads, variants: HALF_ON_DISK },
        run_seconds: 2.9,
        ideal: None,
        plots: &[Plot {
            title: "Operations",
            value: Rate,
            references: &[Reference {
                system: "ExtMem",
                section: "§4.2",
                says: "better than Linux in each pattern; in order it levels off at about four threads (no other digits in the text)",
                points: &[],
            }],
        }],
    }
}

static SIX: Figure = Figure {
    name: "extmem-6",
    paper: &EXTMEM,
    number: "Figure 6",
    title: "a hot set over time",
    there: "90 % of the updates go to 10 % of 16 GB, half of it local, eight threads.",
    here: "The same over 128 MiB on the disk.",
    panels: &[Panel {
        key: "hotset",
        title: "Hot set, half local, 8 threads",
        x: Across { label: "local memory, % of the data", scale: Scale::Linear, points: &[50.0], quick: &[50.0] },
        runs: Runs::Load {
            line: "hotset --size 128M --threads 8 --seconds 6 --warmup 0",
            quick: "hotset --size 24M --threads 8 --seconds 0.6 --warmup 0",
            vary: Vary::Targets,
            variants: HALF_ON_DISK,
        },
        run_seconds: 7.5,
        ideal: None,
        plots: &[Plot {
            title: "Updates over time",
            value: Timeline,
            references: &[Reference {
                system: "ExtMem",
                section: "§4.2",
                says: "both climb quickly and level off, ExtMem above Linux (no digits in the text)",
                points: &[],
            }],
        }],
    }],
    claims: &[Claim {
        what: "updates of a hot set over Linux swap",
        system: "ExtMem-2Q over Linux",
        section: "§4.2",
        papers: None,
        from: "",
        baseline: false,
        ours: Times(term("hotset", Rate, "farshore", 50.0), term("hotset", Rate, "Linux swap", 50.0)),
        why: "with half of the data local, cold pages are often clean, and Linux keeps their copy in its swap space and need not write them again",
    }],
};

const HALF_ON_DISK: &[Variant] = &[only(50.0, disk)];

static SEVEN: Figure = Figure {
    name: "extmem-7",
    paper: &EXTMEM,
    number: "Figure 7",
    title: "run time of PageRank",
    there: "Ten iterations of GAP's PageRank on the Twitter graph, half of it local: Linux, ExtMem with 2Q, ExtMem with a policy for CSR graphs, all in memory.",
    here: "Ten iterations on a Kronecker graph with 2^18 vertices (37 MiB), two threads, on the disk. There is no 2Q: Farshore's default policy, which was not made for graphs either, is set beside ExtMem with it. ExtMem's policy for graphs is csr, a process beside the program that learns which pages are edges; it is attached when the program begins, and brings pages itself (--prefetch none).",
    panels: &[Panel {
        key: "pagerank",
        title: "PageRank, ten iterations",
        x: Across { label: "far memory, % of the data", scale: Scale::Linear, points: &[25.0, 50.0, 75.0], quick: &[50.0] },
        runs: Runs::Load {
            line: "pagerank --scale 18 --threads 2 --iterations 10",
            quick: "pagerank --scale 17 --threads 2 --iterations 2",
            vary: Vary::Far,
            variants: &[only(0.0, ranked)],
        },
        run_seconds: 1.2,
        ideal: None,
        plots: &[Plot {
            title: "Run time",
            value: Seconds,
            references: &[Reference {
                system: "ExtMem-2QLRU, ExtMem-PR",
                section: "§4.3",
                says: "2QLRU a modest improvement over Linux (no digits); PR over 2 times as fast as Linux; slightly over twice the time of all in memory, at 50 % local",
                points: &[],
            }],
        }],
    }],
    claims: &[
        Claim {
            what: "PageRank over Linux swap, half local",
            system: "ExtMem-2QLRU over Linux",
            section: "§4.3",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("pagerank", Seconds, "farshore", 50.0), term("pagerank", Seconds, "Linux swap", 50.0)),
            why: "the graph's edges are a stream, which Linux reads ahead well, and both wait for the same disk",
        },
        Claim {
            what: "PageRank with the policy for graphs over Linux swap, half local",
            system: "ExtMem-PR over Linux",
            section: "§4.3",
            papers: Some(2.0),
            from: "the text says over 2 times",
            baseline: false,
            ours: Times(term("pagerank", Seconds, "farshore with csr", 50.0), term("pagerank", Seconds, "Linux swap", 50.0)),
            why: "the policy is a process of its own, which takes time of the two processors that the program works on",
        },
        Claim {
            what: "PageRank with the policy for graphs over Farshore's default, half local",
            system: "ExtMem-PR over ExtMem-2QLRU",
            section: "§4.3",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("pagerank", Seconds, "farshore with csr", 50.0), term("pagerank", Seconds, "farshore", 50.0)),
            why: "Farshore's own prefetcher finds the stream of edges, too",
        },
        Claim {
            what: "PageRank with the policy for graphs, in percent of the speed of all in memory, half local",
            system: "ExtMem-PR, of all in memory",
            section: "§4.3",
            papers: Some(50.0),
            from: "the text says slightly over twice the time",
            baseline: false,
            ours: Percent(term("pagerank", Seconds, "farshore with csr", 50.0), term("pagerank", Seconds, "native", 50.0)),
            why: "a graph of 37 MiB is gone through in milliseconds in memory, and a page from the disk takes as long as there",
        },
    ],
};

fn ranked(_: f64) -> String {
    "farshore,farshore:prefetch=none+attach=csr+label=farshore with csr,linux-swap:label=Linux swap,native".into()
}

static SIGNALS: Figure = Figure {
    name: "extmem-signals",
    paper: &EXTMEM,
    number: "§3.2.1",
    title: "the lock of signal handlers that all threads of a process share",
    there: "SIGBUS for each fault makes threads contend for the signal handlers of their process, so the paper gives each thread handlers of its own, in a changed kernel.",
    here: "A stock kernel. Threads of one process raise a signal and take it, again and again, and so pass the lock twice for each, as a fault by SIGBUS does; then as many processes with a thread each do, whose locks are their own. Nothing of Farshore's is in it. The model of many cores (farshore-cores) holds this lock for 75 ns in each of the two passes, and its cache line takes 180 ns to come from another core of this machine.",
    panels: &[
        signals(
            "threads",
            "Threads of one process",
            ["signals --size 16M --seconds 1 --warmup 0.2", "signals --size 16M --seconds 0.3 --warmup 0.1"],
        ),
        signals(
            "processes",
            "Processes with a thread each",
            [
                "signals --processes --size 16M --seconds 1 --warmup 0.2",
                "signals --processes --size 16M --seconds 0.3 --warmup 0.1",
            ],
        ),
    ],
    claims: &[
        Claim {
            what: "signals a second of 8 processes over those of 8 threads of one",
            system: "handlers of a thread's own over shared ones",
            section: "§3.2.1",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("processes", Rate, "native", 8.0), term("threads", Rate, "native", 8.0)),
            why: "two processors can only ever have two threads at the lock",
        },
        Claim {
            what: "signals a second of 2 threads of one process over those of one",
            system: "SIGBUS over threads",
            section: "§4.1",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("threads", Rate, "native", 2.0), term("threads", Rate, "native", 1.0)),
            why: "the lock is held for a small part of what a signal takes",
        },
    ],
};

const fn signals(key: &'static str, title: &'static str, lines: [&'static str; 2]) -> Panel {
    Panel {
        key,
        title,
        x: THREADS,
        runs: Runs::Load { line: lines[0], quick: lines[1], vary: Vary::Threads, variants: ALONE },
        run_seconds: 1.5,
        ideal: None,
        plots: &[
            Plot {
                title: "Signals raised and taken",
                value: Rate,
                references: &[Reference {
                    system: "ExtMem",
                    section: "§3.2.1",
                    says: "SIGBUS contends for the handlers of the process; handlers of each thread scale as upcalls do (no digits in the text)",
                    points: &[],
                }],
            },
            Plot { title: "Mean time of a signal", value: Mean, references: &[] },
        ],
    }
}

const ALONE: &[Variant] = &[only(0.0, alone)];

fn alone(_: f64) -> String {
    "native".into()
}
