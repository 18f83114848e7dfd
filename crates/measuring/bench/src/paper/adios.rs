//! Adios (Yoon, Ok, Moon, Kwon: Adios to Busy-Waiting for Microsecond-scale Memory Disaggregation).

use super::Ours::{Percent, Times};
use super::Value::{Quantile, Rate};
use super::{Across, Claim, Figure, Over, Panel, Paper, Plot, Reference, Runs, term};
use crate::report::axis::Scale;

const ADIOS: Paper = Paper { name: "Adios", title: "Adios to Busy-Waiting for Microsecond-scale Memory Disaggregation" };

/// All of them.
pub const FIGURES: &[&Figure] = &[&SEVEN, &EIGHT, &TEN, &ELEVEN];

const LOADS: Across = Across {
    label: "requests a second that come",
    scale: Scale::Linear,
    points: &[20.0, 40.0, 60.0, 80.0, 100.0, 120.0],
    quick: &[80.0],
};

const THERE: &str = "Eight workers, a dispatcher and a reclaimer on a Xeon of 2 GHz, 100 Gbit/s RDMA (2 to 3 µs a page), clients on a machine of their own, a fifth of the data local.";
const TAIL: &str =
    "the generator is on the same machine, and another program's burst on its two processors is in the tail of both";

static SEVEN: Figure = Figure {
    name: "adios-7",
    paper: &ADIOS,
    number: "Figure 7",
    title: "latency over load, an array with random indices",
    there: THERE,
    here: "One worker on one core, the generator on the other, over UDP. 128 MiB, a fifth local, on delay:10us; busy spins as DiLOS does, and block has 16 threads. Loads are percent of the highest throughput of busy, which is measured first.",
    panels: &[Panel {
        key: "array",
        title: "Array, delay:10us",
        x: LOADS,
        runs: Runs::Served {
            line: "array --data 128M --swap delay:10us --seconds 2 --warmup 0.5 --reference busy --mode yield:1 --mode busy:1 --mode block:16",
            quick: "array --data 32M --swap delay:10us --seconds 0.5 --warmup 0.1 --reference busy --mode yield:1 --mode busy:1 --mode block:16",
            over: Over::Load,
        },
        run_seconds: 3.3,
        ideal: None,
        plots: &[
            Plot {
                title: "99.9th percentile",
                value: Quantile(0.999),
                references: &[Reference {
                    system: "Adios",
                    section: "§5.1",
                    says: "2.83 times less than DiLOS at 1.3 M/s, where that begins to climb; highest throughput 2.11, 1.58 and 1.59 times that of Hermit, DiLOS, DiLOS-P",
                    points: &[],
                }],
            },
            Plot { title: "Median", value: Quantile(0.5), references: &[] },
            Plot { title: "Requests answered", value: Rate, references: &[] },
        ],
    }],
    claims: &[
        Claim {
            what: "highest throughput of yield over busy",
            system: "Adios over DiLOS",
            section: "§5.1",
            papers: Some(1.58),
            from: "",
            baseline: false,
            ours: Times(term("array-peak", Rate, "yield:1", 0.0), term("array-peak", Rate, "busy:1", 0.0)),
            why: "a switch and a reply cost a larger part of a request here than the wait for its page",
        },
        Claim {
            what: "99.9th percentile of yield over busy at 80 % of busy's throughput",
            system: "Adios over DiLOS at 1.3 of 1.5 M/s",
            section: "§5.1",
            papers: Some(2.83),
            from: "",
            baseline: false,
            ours: Times(term("array", Quantile(0.999), "yield:1", 80.0), term("array", Quantile(0.999), "busy:1", 80.0)),
            why: TAIL,
        },
        Claim {
            what: "highest throughput of yield over threads that block",
            system: "Adios over Hermit",
            section: "§5.1",
            papers: Some(2.11),
            from: "",
            baseline: false,
            ours: Times(term("array-peak", Rate, "yield:1", 0.0), term("array-peak", Rate, "block:16", 0.0)),
            why: "threads that block share one core, and the kernel's switch between them is cheap beside a page's 10 µs",
        },
    ],
};

static EIGHT: Figure = Figure {
    name: "adios-8",
    paper: &ADIOS,
    number: "Figure 8",
    title: "highest throughput over local memory",
    there: "The same array of 40 GB with 10 to 100 % local.",
    here: "The paper draws the 99th percentile of latency for each share of local memory, and its text has throughput. Here throughput is drawn, so the axes are not the paper's: the highest (256 requests are always under way) of one worker, 128 MiB on delay:10us.",
    panels: &[Panel {
        key: "local",
        title: "Array, delay:10us",
        x: Across {
            label: "local memory, % of the data",
            scale: Scale::Linear,
            points: &[10.0, 20.0, 40.0, 60.0, 80.0, 100.0],
            quick: &[10.0, 100.0],
        },
        runs: Runs::Served {
            line: "array --data 128M --swap delay:10us --seconds 2 --warmup 0.5 --reference busy --mode yield:1 --mode busy:1",
            quick: "array --data 64M --swap delay:10us --seconds 0.5 --warmup 0.1 --reference busy --mode yield:1 --mode busy:1",
            over: Over::Local,
        },
        run_seconds: 3.3,
        ideal: None,
        plots: &[Plot {
            title: "Highest throughput",
            value: Rate,
            references: &[
                Reference {
                    system: "Adios",
                    section: "§5.1",
                    says: "from 100 to 10 % local 25 % less throughput; with 10 % local about DiLOS's with 80 %",
                    points: &[],
                },
                Reference { system: "DiLOS", section: "§5.1", says: "from 100 to 10 % local 60 % less throughput", points: &[] },
            ],
        }],
    }],
    claims: &[
        Claim {
            what: "throughput with 10 % local, in percent of all local, yield",
            system: "Adios",
            section: "§5.1",
            papers: Some(75.0),
            from: "computed: a reduction of 25 %",
            baseline: false,
            ours: Percent(term("local", Rate, "yield:1", 10.0), term("local", Rate, "yield:1", 100.0)),
            why: "a fault costs the worker some 10 µs of its own here (signal, system calls), more than a request without one",
        },
        Claim {
            what: "throughput with 10 % local, in percent of all local, busy",
            system: "DiLOS",
            section: "§5.1",
            papers: Some(40.0),
            from: "computed: a degradation of 60 %",
            baseline: true,
            ours: Percent(term("local", Rate, "busy:1", 10.0), term("local", Rate, "busy:1", 100.0)),
            why: "a page takes 10 µs here and 2 to 3 µs there, and a fault costs more besides",
        },
        Claim {
            what: "yield over busy with 10 % local",
            system: "Adios over DiLOS",
            section: "§5.1",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("local", Rate, "yield:1", 10.0), term("local", Rate, "busy:1", 10.0)),
            why: "the worker's own cost of a fault is the larger part of it",
        },
    ],
};

static TEN: Figure = Figure {
    name: "adios-10",
    paper: &ADIOS,
    number: "Figure 10",
    title: "latency over load, memcached with values of 1 KiB",
    there: THERE,
    here: "A memcached of our own on unithreads, 64 MiB of values, keys with Zipf popularity, a fifth local, delay:10us, one worker on one core.",
    panels: &[Panel {
        key: "kv",
        title: "memcached, values of 1 KiB",
        x: Across { points: &[40.0, 60.0, 80.0, 100.0], quick: &[100.0], ..LOADS },
        runs: Runs::Served {
            line: "kv --data 64M --value-size 1024 --swap delay:10us --seconds 2 --warmup 0.5 --reference busy --mode yield:1 --mode busy:1 --mode block:16",
            quick: "kv --data 32M --value-size 1024 --swap delay:10us --seconds 0.5 --warmup 0.1 --reference busy --mode yield:1 --mode busy:1 --mode block:16",
            over: Over::Load,
        },
        run_seconds: 4.5,
        ideal: None,
        plots: &[
            Plot {
                title: "99.9th percentile of GETs",
                value: Quantile(0.999),
                references: &[Reference {
                    system: "Adios",
                    section: "§5.2",
                    says: "1.60 times less median and 5.18 times less 99.9th percentile than DiLOS at 730 k/s, 1.05 times the throughput; with 128 bytes, which are not here, 2.57 and 10.89 times less at 750 k/s, and 1.07 times",
                    points: &[],
                }],
            },
            Plot { title: "Median of GETs", value: Quantile(0.5), references: &[] },
        ],
    }],
    claims: &[
        Claim {
            what: "99.9th percentile of yield over busy at 100 % of busy's throughput",
            system: "Adios over DiLOS at 730 k/s",
            section: "§5.2",
            papers: Some(5.18),
            from: "",
            baseline: false,
            ours: Times(term("kv", Quantile(0.999), "yield:1", 100.0), term("kv", Quantile(0.999), "busy:1", 100.0)),
            why: TAIL,
        },
        Claim {
            what: "median of yield over busy at 100 % of busy's throughput",
            system: "Adios over DiLOS at 730 k/s",
            section: "§5.2",
            papers: Some(1.6),
            from: "",
            baseline: false,
            ours: Times(term("kv", Quantile(0.5), "yield:1", 100.0), term("kv", Quantile(0.5), "busy:1", 100.0)),
            why: TAIL,
        },
        Claim {
            what: "highest throughput of yield over busy",
            system: "Adios over DiLOS",
            section: "§5.2",
            papers: Some(1.05),
            from: "",
            baseline: false,
            ours: Times(term("kv-peak", Rate, "yield:1", 0.0), term("kv-peak", Rate, "busy:1", 0.0)),
            why: "popular keys are local, so few requests wait for a page at all",
        },
    ],
};

static ELEVEN: Figure = Figure {
    name: "adios-11",
    paper: &ADIOS,
    number: "Figure 11",
    title: "latency over load, an ordered store with 1 % scans",
    there: "RocksDB: 99 % GET, 1 % SCAN of 100 keys.",
    here: "LMDB on unithreads with the same mix, 64 MiB of values of 1 KiB, a fifth local, delay:10us, one worker on one core. Latencies are those of the GETs.",
    panels: &[Panel {
        key: "scan",
        title: "Ordered store, 1 % SCAN",
        x: Across { points: &[40.0, 60.0, 80.0, 100.0], quick: &[100.0], ..LOADS },
        runs: Runs::Served {
            line: "scan --data 64M --swap delay:10us --seconds 2 --warmup 0.5 --reference busy --mode yield:1 --mode busy:1 --mode block:16",
            quick: "scan --data 32M --swap delay:10us --seconds 0.5 --warmup 0.1 --reference busy --mode yield:1 --mode busy:1 --mode block:16",
            over: Over::Load,
        },
        run_seconds: 4.0,
        ideal: None,
        plots: &[
            Plot {
                title: "99.9th percentile of GETs",
                value: Quantile(0.999),
                references: &[Reference {
                    system: "Adios",
                    section: "§5.2",
                    says: "1.37 times less median and 7.61 times less 99.9th percentile of GETs than DiLOS at 490 k/s, 1.47 times the throughput; than DiLOS-P 1.33, 2.71 and 1.34",
                    points: &[],
                }],
            },
            Plot { title: "Median of GETs", value: Quantile(0.5), references: &[] },
        ],
    }],
    claims: &[
        Claim {
            what: "99.9th percentile of GETs, yield over busy at 100 % of busy's throughput",
            system: "Adios over DiLOS at 490 k/s",
            section: "§5.2",
            papers: Some(7.61),
            from: "",
            baseline: false,
            ours: Times(term("scan", Quantile(0.999), "yield:1", 100.0), term("scan", Quantile(0.999), "busy:1", 100.0)),
            why: TAIL,
        },
        Claim {
            what: "median of GETs, yield over busy at 100 % of busy's throughput",
            system: "Adios over DiLOS at 490 k/s",
            section: "§5.2",
            papers: Some(1.37),
            from: "",
            baseline: false,
            ours: Times(term("scan", Quantile(0.5), "yield:1", 100.0), term("scan", Quantile(0.5), "busy:1", 100.0)),
            why: TAIL,
        },
        Claim {
            what: "highest throughput of yield over busy",
            system: "Adios over DiLOS",
            section: "§5.2",
            papers: Some(1.47),
            from: "",
            baseline: false,
            ours: Times(term("scan-peak", Rate, "yield:1", 0.0), term("scan-peak", Rate, "busy:1", 0.0)),
            why: "a request spends most of its time in the store and in the network's code, which no way of waiting changes",
        },
    ],
};
