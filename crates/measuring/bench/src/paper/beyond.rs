//! What no machine here can show: 48 threads on MAGE's network, 128 cores on ScaleSwap's SSDs, and where Farshore ends. All of it is modelled ([`super::model`]).

use farshore_scale::{Load, Machine, System, systems};

use super::Ours::{Level, Percent, Times};
use super::Value::{Mean, Quantile, Rate};
use super::mage::MAGE;
use super::model::Run;
use super::scaleswap::SCALESWAP;
use super::{Across, Claim, Figure, Panel, Paper, Plot, Reference, Runs, term};
use crate::report::axis::Scale;

/// All of them.
pub const FIGURES: &[&Figure] = &[&FIVE, &EIGHTEEN, &TWELVE, &CORES, &HERE];

const FARSHORE: Paper = Paper { name: "Farshore", title: "What was measured here, and where Farshore ends" };

/// About how long a panel takes, in s.
const SECONDS: f64 = 15.0;
/// A thread of these figures computes so little between two faults, ns: MAGE's four threads come to 0.81 M faults/s with 4.7 µs each (§6.5).
const THINKS_NS: u64 = 200;
/// Evictors that keep pace with 48 threads.
const ENOUGH: u32 = 8;
const MANY: u32 = 32;

const ALONE: &str = "faults alone";
const EVICTING: &str = "with evictions";

fn load(threads: f64, evicts: bool) -> Load {
    Load { threads: super::plan::whole(threads), think_ns: THINKS_NS, along_percent: 0, evicts }
}

/// Each of these systems, without and with evictions.
fn both(machine: Machine, threads: f64, systems: &[System]) -> Vec<Run> {
    [(ALONE, false), (EVICTING, true)]
        .into_iter()
        .flat_map(|(variant, evicts)| {
            systems.iter().map(move |system| Run { variant, system: *system, machine, load: load(threads, evicts) })
        })
        .collect()
}

/// Each of MAGE's systems and Farshore, on its machine.
fn of_mage(threads: f64, evicts: bool) -> Vec<Run> {
    let farshore = systems::with_evictors(systems::FARSHORE, ENOUGH);
    let all = [systems::IDEAL, systems::MAGE, systems::DILOS, systems::HERMIT, farshore];
    all.into_iter().map(|system| Run { variant: "", system, machine: Machine::mage(), load: load(threads, evicts) }).collect()
}

fn alone(threads: f64) -> Vec<Run> {
    of_mage(threads, false)
}

fn evicting(threads: f64) -> Vec<Run> {
    of_mage(threads, true)
}

const TO_48: Across =
    Across { label: "threads", scale: Scale::Log2, points: &[1.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0], quick: &[4.0, 48.0] };

static FIVE: Figure = Figure {
    name: "mage-5-model",
    paper: &MAGE,
    number: "Figures 5 and 14, modelled",
    title: "faults alone against faults with evictions, up to 48 threads",
    there: "A sequential read page by page, up to 48 threads on two sockets of 28 cores, 192 of 200 Gbit/s: 5.83 M pages/s.",
    here: "The model, with that network. Two costs of Hermit and two of DiLOS are fitted to the four shares of §3.2, so these agree by design; all else follows. MAGE-Lib has its own digits of §6.4. Farshore has the costs of a virtual machine here, several times those of bare metal, and eight evictors.",
    panels: &[
        Panel {
            key: "evicting",
            title: "Faults with evictions",
            x: TO_48,
            runs: Runs::Modelled(evicting),
            run_seconds: SECONDS,
            ideal: None,
            plots: &[
                Plot {
                    title: "Pages that come",
                    value: Rate,
                    references: &[
                        Reference {
                            system: "MAGE-Lib",
                            section: "§6.4",
                            says: "94 % of 192 Gbit/s with 48 threads; 3.1 times DiLOS, 7.1 times Hermit",
                            points: &[(48.0, 5_480_000.0)],
                        },
                        Reference { system: "DiLOS", section: "§3.2", says: "30 % of 5.83 M/s", points: &[(48.0, 1_749_000.0)] },
                        Reference {
                            system: "Hermit",
                            section: "§3.2",
                            says: "14 % of 5.83 M/s, 10 % with more threads",
                            points: &[(24.0, 816_000.0), (48.0, 583_000.0)],
                        },
                        Reference {
                            system: "MAGE, DiLOS",
                            section: "§6.5",
                            says: "0.81 M/s with four threads",
                            points: &[(4.0, 810_000.0)],
                        },
                    ],
                },
                Plot {
                    title: "A fault",
                    value: Quantile(0.99),
                    references: &[Reference {
                        system: "Hermit, DiLOS, MAGE-Lib",
                        section: "§6.4",
                        says: "255, 82 and 12 µs with 48 threads",
                        points: &[(48.0, 255_000.0), (48.0, 82_000.0), (48.0, 12_000.0)],
                    }],
                },
            ],
        },
        Panel {
            key: "alone",
            title: "Faults alone",
            x: TO_48,
            runs: Runs::Modelled(alone),
            run_seconds: SECONDS,
            ideal: None,
            plots: &[Plot {
                title: "Pages that come",
                value: Rate,
                references: &[
                    Reference { system: "DiLOS", section: "§3.2", says: "56 % of 5.83 M/s", points: &[(48.0, 3_265_000.0)] },
                    Reference { system: "Hermit", section: "§3.2", says: "20 % of 5.83 M/s", points: &[(48.0, 1_166_000.0)] },
                ],
            }],
        },
    ],
    claims: &[
        Claim {
            what: "with evictions, of the ideal, 48 threads",
            system: "MAGE-Lib",
            section: "§6.4",
            papers: Some(94.0),
            from: "",
            baseline: false,
            ours: Percent(term("evicting", Rate, "MAGE-Lib", 48.0), term("evicting", Rate, "ideal", 48.0)),
            why: "the model's network has no congestion of its own, where there 5.1 of 7.7 µs were spent in it",
        },
        Claim {
            what: "with evictions, 48 threads",
            system: "MAGE-Lib over DiLOS",
            section: "§6.4",
            papers: Some(3.1),
            from: "",
            baseline: false,
            ours: Times(term("evicting", Rate, "MAGE-Lib", 48.0), term("evicting", Rate, "DiLOS", 48.0)),
            why: "DiLOS is fitted to §3.2 and this is §6.4, which has it at another rate",
        },
        Claim {
            what: "with evictions, 48 threads",
            system: "MAGE-Lib over Hermit",
            section: "§6.4",
            papers: Some(7.1),
            from: "",
            baseline: false,
            ours: Times(term("evicting", Rate, "MAGE-Lib", 48.0), term("evicting", Rate, "Hermit", 48.0)),
            why: "locks of the model are queues; those of a kernel get slower when many wait",
        },
        Claim {
            what: "with evictions, of the ideal, 48 threads",
            system: "Hermit",
            section: "§3.2",
            papers: Some(10.0),
            from: "",
            baseline: true,
            ours: Percent(term("evicting", Rate, "Hermit", 48.0), term("evicting", Rate, "ideal", 48.0)),
            why: "there faults evict when evictors cannot keep pace, and their flushes take 27 µs; in the model the swap allocator's lock holds the faults back before that",
        },
        Claim {
            what: "mean time of a fault, 48 threads",
            system: "MAGE-Lib",
            section: "§6.4",
            papers: Some(7_700.0),
            from: "",
            baseline: false,
            ours: Level(term("evicting", Mean, "MAGE-Lib", 48.0)),
            why: "with as many threads and as many pages a second it follows from them",
        },
        Claim {
            what: "99th percentile of a fault, 48 threads",
            system: "MAGE-Lib",
            section: "§6.4",
            papers: Some(12_000.0),
            from: "",
            baseline: false,
            ours: Level(term("evicting", Quantile(0.99), "MAGE-Lib", 48.0)),
            why: "costs vary by a tenth in the model, and by more on a machine",
        },
        Claim {
            what: "with evictions, 48 threads",
            system: "Farshore over Hermit",
            section: "§3.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("evicting", Rate, "Farshore", 48.0), term("evicting", Rate, "Hermit", 48.0)),
            why: "nobody has run Farshore on such a machine",
        },
    ],
};

fn batches(batch: f64) -> Vec<Run> {
    let of = |system: System| {
        let mut system = system;
        system.eviction.batch = super::plan::whole(batch);
        Run { variant: "", system, machine: Machine::mage(), load: load(48.0, true) }
    };
    vec![of(systems::MAGE), of(systems::MAGE_IN_TURN), of(systems::with_evictors(systems::FARSHORE, ENOUGH))]
}

static EIGHTEEN: Figure = Figure {
    name: "mage-18-model",
    paper: &MAGE,
    number: "Figure 18a, modelled",
    title: "pages of a batch, with flushes that are waited for and without",
    there: "PageRank with 48 threads, four evictors.",
    here: "The model's sequential read with 48 threads. No call of a stock kernel returns before its flush, so Farshore's evictors wait for that; for writes they do not.",
    panels: &[Panel {
        key: "batch",
        title: "Pages of a batch",
        x: Across {
            label: "pages of a batch",
            scale: Scale::Log2,
            points: &[1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0],
            quick: &[64.0, 256.0],
        },
        runs: Runs::Modelled(batches),
        run_seconds: SECONDS,
        ideal: None,
        plots: &[Plot {
            title: "Pages that come",
            value: Rate,
            references: &[Reference {
                system: "MAGE-Lib",
                section: "§6.5",
                says: "best with 128 and 256 pages; more gives nothing; in turn, with 64, 60 % of the network and 40 % of evictors' time in flushes",
                points: &[],
            }],
        }],
    }],
    claims: &[
        Claim {
            what: "a pipeline with 256 pages over batches of 64 in turn",
            system: "MAGE-Lib",
            section: "§6.5",
            papers: Some(1.57),
            from: "computed: 94 % of the network (§6.4) over 60 %",
            baseline: false,
            ours: Times(term("batch", Rate, "MAGE-Lib", 256.0), term("batch", Rate, "MAGE-Lib, in turn", 64.0)),
            why: "60 % is of a workload that computes, 94 % of one that does not",
        },
        Claim {
            what: "256 pages over 64",
            system: "MAGE-Lib",
            section: "§6.5",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("batch", Rate, "MAGE-Lib", 256.0), term("batch", Rate, "MAGE-Lib", 64.0)),
            why: "its text says that 64 begin to show the flush",
        },
        Claim {
            what: "256 pages over 64",
            system: "Farshore",
            section: "§6.5",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("batch", Rate, "Farshore", 256.0), term("batch", Rate, "Farshore", 64.0)),
            why: "two flushes a batch, each waited for",
        },
    ],
};

/// ScaleSwap's machine: Linux, ScaleSwap in its two steps, and Farshore with and without what belongs to a core.
fn arrays(devices: u32, threads: u32) -> Vec<Run> {
    let machine = Machine::scaleswap(devices);
    let load = Load { threads, think_ns: 500, along_percent: 0, evicts: true };
    let evictors = (threads / 8).max(1);
    [
        systems::SCALESWAP,
        systems::SCALESWAP_LISTS,
        systems::LINUX,
        systems::with_evictors(systems::FARSHORE, evictors),
        systems::with_evictors(systems::FARSHORE_SHARED, evictors),
    ]
    .into_iter()
    .map(|system| Run { variant: "", system, machine, load })
    .collect()
}

fn over_devices(devices: f64) -> Vec<Run> {
    arrays(super::plan::whole(devices), 128)
}

fn over_cores(cores: f64) -> Vec<Run> {
    arrays(8, super::plan::whole(cores))
}

static TWELVE: Figure = Figure {
    name: "scaleswap-12-model",
    paper: &SCALESWAP,
    number: "Figure 12, modelled",
    title: "eight independent SSDs and 128 cores, with and without what belongs to a core",
    there: "A stress program writes and reads 288 GB with 128 threads on 128 cores; 1 to 8 NVMe SSDs, 128 swap files.",
    here: "The model, with the rates of the SSDs together that the paper measured with FIO (§3.2). Two costs of Linux are fitted: its list's lock and its allocator's (Table 5). A page that comes is one that leaves. Farshore has an evictor for eight threads.",
    panels: &[
        Panel {
            key: "ssds",
            title: "128 threads",
            x: Across { label: "SSDs", scale: Scale::Log2, points: &[1.0, 2.0, 4.0, 8.0], quick: &[8.0] },
            runs: Runs::Modelled(over_devices),
            run_seconds: SECONDS,
            ideal: None,
            plots: &[Plot {
                title: "Pages that come, and as many that leave",
                value: Rate,
                references: &[Reference {
                    system: "ScaleSwap",
                    section: "§5.2, Table 5",
                    says: "1.31, 2.34, 2.85 and 3.41 times Linux with 1, 2, 4 and 8 SSDs; 8.13 GB/s with per-core LRU lists alone, 14.81 GB/s with all",
                    points: &[],
                }],
            }],
        },
        Panel {
            key: "cores",
            title: "Eight SSDs",
            x: Across {
                label: "cores, each with a thread",
                scale: Scale::Log2,
                points: &[1.0, 4.0, 16.0, 32.0, 64.0, 128.0],
                quick: &[32.0, 128.0],
            },
            runs: Runs::Modelled(over_cores),
            run_seconds: SECONDS,
            ideal: None,
            plots: &[Plot {
                title: "Pages that come, and as many that leave",
                value: Rate,
                references: &[Reference {
                    system: "Linux",
                    section: "§5.2",
                    says: "no more with more than 32 cores",
                    points: &[],
                }],
            }],
        },
    ],
    claims: &[
        Claim {
            what: "spaces and lists of each core over shared ones, 8 SSDs, 128 cores",
            system: "Farshore",
            section: "§5.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("ssds", Rate, "Farshore", 8.0), term("ssds", Rate, "Farshore, all shared", 8.0)),
            why: "who reads from any SSD waits behind whatever batch is written there",
        },
        Claim {
            what: "over Linux, 8 SSDs",
            system: "ScaleSwap",
            section: "§5.2",
            papers: Some(3.41),
            from: "",
            baseline: false,
            ours: Times(term("ssds", Rate, "ScaleSwap", 8.0), term("ssds", Rate, "Linux", 8.0)),
            why: "the model's SSDs give 11.2 GB/s together, as FIO's mixture did; the stress program writes first and reads later, and comes to 14.81",
        },
        Claim {
            what: "over Linux, 2 SSDs",
            system: "ScaleSwap",
            section: "§5.2",
            papers: Some(2.34),
            from: "",
            baseline: false,
            ours: Times(term("ssds", Rate, "ScaleSwap", 2.0), term("ssds", Rate, "Linux", 2.0)),
            why: "Linux had 4 GB/s with two SSDs, which is two thirds of what they give",
        },
        Claim {
            what: "what a core's own spaces add to its own lists, 8 SSDs",
            system: "ScaleSwap over ScaleSwap (LRU)",
            section: "Table 5",
            papers: Some(1.82),
            from: "computed: 14.81 over 8.13 GB/s",
            baseline: false,
            ours: Times(term("ssds", Rate, "ScaleSwap", 8.0), term("ssds", Rate, "ScaleSwap, lists alone", 8.0)),
            why: "the model's SSDs end soon behind the allocator's lock",
        },
        Claim {
            what: "128 cores over 32",
            system: "ScaleSwap",
            section: "§5.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("cores", Rate, "ScaleSwap", 128.0), term("cores", Rate, "ScaleSwap", 32.0)),
            why: "its text says that it grows linearly with cores",
        },
    ],
};

fn endless(cores: f64) -> Vec<Run> {
    let evictors = (super::plan::whole(cores) / 4).clamp(1, MANY);
    let of = |system: System| {
        let system = systems::with_evictors(system, evictors);
        Run { variant: "", system, machine: Machine::endless(super::plan::whole(cores) + evictors), load: load(cores, true) }
    };
    [systems::FARSHORE, systems::FARSHORE_SHARED, systems::MAGE, systems::DILOS, systems::HERMIT].into_iter().map(of).collect()
}

static CORES: Figure = Figure {
    name: "farshore-cores",
    paper: &FARSHORE,
    number: "modelled",
    title: "what stops each system, up to 128 cores, if far memory does not",
    there: "Nobody has measured this: far memory that takes 3.9 µs and any number of pages.",
    here: "The model, with an evictor for four threads, 32 at most, on cores of their own, and sockets of 64 cores. What the threads' time goes to is in the table below the plot.",
    panels: &[Panel {
        key: "cores",
        title: "Far memory without end",
        x: Across {
            label: "threads, each with a core",
            scale: Scale::Log2,
            points: &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0],
            quick: &[1.0, 64.0],
        },
        runs: Runs::Modelled(endless),
        run_seconds: SECONDS,
        ideal: None,
        plots: &[Plot {
            title: "Pages that come",
            value: Rate,
            references: &[Reference {
                system: "the kernel",
                section: "costs.md",
                says: "a signal takes the lock of the process' handlers twice, some 75 ns each",
                points: &[],
            }],
        }],
    }],
    claims: &[
        Claim {
            what: "64 cores over one",
            system: "Farshore",
            section: "mage-5",
            papers: Some(64.0),
            from: "the text says nothing: as many times as there are cores",
            baseline: false,
            ours: Times(term("cores", Rate, "Farshore", 64.0), term("cores", Rate, "Farshore", 1.0)),
            why: "all threads of a process share the lock of its signal handlers, which each fault takes twice on a stock kernel",
        },
        Claim {
            what: "128 cores over 64",
            system: "Farshore",
            section: "mage-5",
            papers: Some(2.0),
            from: "the text says nothing: as many times as there are cores",
            baseline: false,
            ours: Times(term("cores", Rate, "Farshore", 128.0), term("cores", Rate, "Farshore", 64.0)),
            why: "the lock's cache line comes from the other socket half of the time",
        },
    ],
};

fn two_cores(threads: f64) -> Vec<Run> {
    both(Machine::ours(2), threads, &[systems::with_evictors(systems::FARSHORE, 1)])
}

static HERE: Figure = Figure {
    name: "farshore-here",
    paper: &FARSHORE,
    number: "modelled",
    title: "the model on the two cores that there are, against what was measured there",
    there: "mage-5 on two cores, 2026-11-30: five rounds, medians.",
    here: "The model with the same two cores, pages of delay:4us and one evictor. Two costs are fitted: to faults alone with one thread, and to evictions with two; all else follows.",
    panels: &[Panel {
        key: "read",
        title: "Sequential read on two cores",
        x: Across { label: "threads", scale: Scale::Log2, points: &[1.0, 2.0, 4.0, 8.0, 16.0], quick: &[1.0, 2.0] },
        runs: Runs::Modelled(two_cores),
        run_seconds: SECONDS,
        ideal: None,
        plots: &[Plot {
            title: "Pages that come",
            value: Rate,
            references: &[
                Reference {
                    system: "Farshore, faults alone",
                    section: "mage-5",
                    says: "95,600, 176,400, 183,600, 190,400 and 259,300 pages/s",
                    points: &[(1.0, 95_600.0), (2.0, 176_400.0), (4.0, 183_600.0), (8.0, 190_400.0), (16.0, 259_300.0)],
                },
                Reference {
                    system: "Farshore, with evictions",
                    section: "mage-5",
                    says: "94,900, 137,400, 146,900, 145,000 and 153,700 pages/s",
                    points: &[(1.0, 94_900.0), (2.0, 137_400.0), (4.0, 146_900.0), (8.0, 145_000.0), (16.0, 153_700.0)],
                },
            ],
        }],
    }],
    claims: &[
        Claim {
            what: "faults alone, two threads",
            system: "Farshore, measured",
            section: "mage-5",
            papers: Some(176_400.0),
            from: "",
            baseline: true,
            ours: Level(term("read", Rate, "Farshore, faults alone", 2.0)),
            why: "the kernel's work in the background is not in the model",
        },
        Claim {
            what: "with evictions, one thread",
            system: "Farshore, measured",
            section: "mage-5",
            papers: Some(94_900.0),
            from: "",
            baseline: true,
            ours: Level(term("read", Rate, "Farshore, with evictions", 1.0)),
            why: "the evictor has the other core",
        },
        Claim {
            what: "with evictions, four threads",
            system: "Farshore, measured",
            section: "mage-5",
            papers: Some(146_900.0),
            from: "",
            baseline: true,
            ours: Level(term("read", Rate, "Farshore, with evictions", 4.0)),
            why: "actors of a core take turns at each step in the model, and time slices on a machine",
        },
        Claim {
            what: "with evictions, 16 threads",
            system: "Farshore, measured",
            section: "mage-5",
            papers: Some(153_700.0),
            from: "",
            baseline: true,
            ours: Level(term("read", Rate, "Farshore, with evictions", 16.0)),
            why: "of threads that wait for the same page one reads it",
        },
        Claim {
            what: "faults alone, 16 threads",
            system: "Farshore, measured",
            section: "mage-5",
            papers: Some(259_300.0),
            from: "",
            baseline: true,
            ours: Level(term("read", Rate, "Farshore, faults alone", 16.0)),
            why: "where threads wait for a core, one that waits 4 µs for its page may leave it to them; in the model it keeps it",
        },
    ],
};
