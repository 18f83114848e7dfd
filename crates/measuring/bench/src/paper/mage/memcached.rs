//! Figure 13: memcached at a fixed load over local memory, and over load with half of it local.

use super::super::Ours::Times;
use super::super::Value::{Quantile, Rate};
use super::super::{Across, Claim, Figure, Over, Panel, Plot, Reference, Runs, term};
use super::MAGE;
use crate::report::axis::Scale;

pub(super) static THIRTEEN: Figure = Figure {
    name: "mage-13",
    paper: &MAGE,
    number: "Figure 13",
    title: "memcached: 99th percentile over local memory, and over load",
    there: "Memcached with 21 million pairs and 24 threads, 99.8 % GETs and 0.2 % SETs, keys with Zipf popularity (0.99): first at half of what it takes with all data local (800 k/s), then over load with half of the data local.",
    here: "The unmodified memcached with four threads on one core, 48 MiB of values of 1 KiB, keys with the same popularity, GETs alone, by 64 TCP connections from the other core. Farshore's pages come from delay:4us; Linux cannot swap to that, its pages are on zram, in RAM. Percent are of the values: keys, headers and the index come on top.",
    panels: &[
        Panel {
            key: "local",
            title: "At half of what memcached takes with all data local",
            x: Across {
                label: "local memory, % of the data",
                scale: Scale::Linear,
                points: &[20.0, 50.0, 80.0, 100.0],
                quick: &[50.0],
            },
            runs: Runs::Served { line: LOCAL[0], quick: LOCAL[1], over: Over::LocalUnder(50) },
            run_seconds: 2.8,
            ideal: None,
            plots: &[Plot {
                title: "99th percentile",
                value: Quantile(0.99),
                references: &[Reference {
                    system: "MAGE-Lib, MAGE-Lnx",
                    section: "§6.3",
                    says: "at most 200 µs with 21 % more of the memory far than DiLOS and 36 % more than Hermit; MAGE-Lnx 160 µs with nearly 70 % far and 180 µs with 80 %",
                    points: &[],
                }],
            }],
        },
        Panel {
            key: "load",
            title: "With half of the data local",
            x: Across { label: "requests a second", scale: Scale::Linear, points: &[25.0, 50.0, 75.0, 100.0], quick: &[50.0] },
            runs: Runs::Served { line: LOAD[0], quick: LOAD[1], over: Over::Load },
            run_seconds: 2.8,
            ideal: None,
            plots: &[Plot {
                title: "99th percentile",
                value: Quantile(0.99),
                references: &[Reference {
                    system: "MAGE",
                    section: "§6.3",
                    says: "at most 200 µs at 0.64 M/s more than Hermit, and at 0.28 M/s more than DiLOS",
                    points: &[],
                }],
            }],
        },
    ],
    claims: &[
        Claim {
            what: "99th percentile over Linux at half of the load, 50 % local",
            system: "MAGE over existing systems",
            section: "§1",
            papers: Some(18.2),
            from: "computed: 94.5 % less, the most that the text has; it does not say at which share and load",
            baseline: false,
            ours: Times(term("local", P99, "memcached:4", 50.0), term("local", P99, "memcached-zram:4", 50.0)),
            why: TURNS,
        },
        Claim {
            what: "99th percentile over Linux at half of the load, 20 % local",
            system: "MAGE over Hermit",
            section: "§6.3",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("local", P99, "memcached:4", 20.0), term("local", P99, "memcached-zram:4", 20.0)),
            why: TURNS,
        },
        Claim {
            what: "highest throughput over Linux, 50 % local",
            system: "MAGE over Hermit",
            section: "§6.3",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("load-peak", Rate, "memcached:4", 0.0), term("load-peak", Rate, "memcached-zram:4", 0.0)),
            why: "a fault here costs a signal and a system call more than one in the kernel, and one core shows nothing of Linux' locks",
        },
    ],
};

const P99: super::super::Value = Quantile(0.99);
const TURNS: &str =
    "four threads share one core, so that a request also waits for the turns of others, and evictions take from the same cores";
const LOCAL: [&str; 2] = [
    "kv --data 48M --share 100 --value-size 1024 --transport tcp --outstanding 64 --swap delay:4us --seconds 1.2 --warmup 0.3 --reference memcached --mode memcached:4 --mode memcached-zram:4",
    "kv --data 24M --share 100 --value-size 1024 --transport tcp --outstanding 64 --swap delay:4us --seconds 0.4 --warmup 0.1 --reference memcached --mode memcached:4 --mode memcached-zram:4",
];
const LOAD: [&str; 2] = [
    "kv --data 48M --share 50 --phases throughput,latency --value-size 1024 --transport tcp --outstanding 64 --swap delay:4us --seconds 1.2 --warmup 0.3 --reference memcached --mode memcached:4 --mode memcached-zram:4",
    "kv --data 24M --share 50 --phases throughput,latency --value-size 1024 --transport tcp --outstanding 64 --swap delay:4us --seconds 0.4 --warmup 0.1 --reference memcached --mode memcached:4 --mode memcached-zram:4",
];
