//! An array of numbers: requests have an index, and answers its number.

use super::{ADIOS, LOADS, TAIL, THERE};
use crate::paper::Ours::{Percent, Times};
use crate::paper::Value::{Quantile, Rate};
use crate::paper::{Across, Claim, Figure, Over, Panel, Plot, Reference, Runs, term};
use crate::report::axis::Scale;

pub(super) static SEVEN: Figure = Figure {
    name: "adios-7",
    paper: &ADIOS,
    number: "Figure 7",
    title: "latency over load, an array with random indices",
    there: THERE,
    here: "One worker on one core, the generator on the other, over UDP. 128 MiB, a fifth local, on delay:10us; busy spins as DiLOS does, block has 16 threads, and zram as many on Linux swap in RAM, without Farshore. DiLOS-P, which preempts long requests, is not here: a request waits for one page, and has nothing left to be preempted in. Loads are percent of the highest throughput of busy, which is measured first.",
    panels: &[Panel {
        key: "array",
        title: "Array, delay:10us",
        x: LOADS,
        runs: Runs::Served {
            line: "array --data 128M --swap delay:10us --seconds 1.5 --warmup 0.5 --reference busy --mode yield:1 --mode busy:1 --mode block:16 --mode zram:16",
            quick: "array --data 32M --swap delay:10us --seconds 0.5 --warmup 0.1 --reference busy --mode yield:1 --mode busy:1 --mode block:16 --mode zram:16",
            over: Over::Load,
        },
        run_seconds: 2.8,
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
        Claim {
            what: "highest throughput of yield over threads on Linux swap on zram",
            system: "Adios over Hermit",
            section: "§5.1",
            papers: Some(2.11),
            from: "",
            baseline: false,
            ours: Times(term("array-peak", Rate, "yield:1", 0.0), term("array-peak", Rate, "zram:16", 0.0)),
            why: "Hermit's pages come over the network, and those of zram from RAM, sooner than delay:10us gives them",
        },
    ],
};

pub(super) static EIGHT: Figure = Figure {
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

pub(super) static NINE: Figure = Figure {
    name: "adios-9",
    paper: &ADIOS,
    number: "Figure 9",
    title: "latency over load, replies that others send",
    there: THERE,
    here: "The array of adios-7. With yield a thread sends the replies that workers leave to it; with yield-own each worker sends by itself, and looks for the end of the send without end. Here that thread shares the worker's core or the generator's, and a send over 127.0.0.1 ends at once: it does all of the network's work itself. The paper's dispatcher has a core of its own, and its sends are a network card's. Loads are percent of the highest throughput of yield-own.",
    panels: &[Panel {
        key: "replies",
        title: "Array, delay:10us",
        x: LOADS,
        runs: Runs::Served {
            line: "array --data 128M --swap delay:10us --seconds 1.5 --warmup 0.5 --reference yield --mode yield-own:1 --mode yield:1",
            quick: "array --data 32M --swap delay:10us --seconds 0.5 --warmup 0.1 --reference yield --mode yield-own:1 --mode yield:1",
            over: Over::Load,
        },
        run_seconds: 2.8,
        ideal: None,
        plots: &[
            Plot {
                title: "99.9th percentile",
                value: Quantile(0.999),
                references: &[Reference {
                    system: "Adios",
                    section: "§5.1",
                    says: "8.05 times less 99.9th percentile at 1,749 k/s, the most that there is without delegation; 1.15 times the throughput",
                    points: &[],
                }],
            },
            Plot { title: "Median", value: Quantile(0.5), references: &[] },
            Plot { title: "Requests answered", value: Rate, references: &[] },
        ],
    }],
    claims: &[
        Claim {
            what: "highest throughput with replies delegated over without",
            system: "Adios with and without polling delegation",
            section: "§5.1",
            papers: Some(1.15),
            from: "",
            baseline: false,
            ours: Times(term("replies-peak", Rate, "yield:1", 0.0), term("replies-peak", Rate, "yield-own:1", 0.0)),
            why: "a send is the kernel's work here, whoever asks for it, and the thread that asks has no core of its own",
        },
        Claim {
            what: "99.9th percentile with replies delegated over without, at 100 % of the throughput without",
            system: "Adios with and without polling delegation at 1,749 k/s",
            section: "§5.1",
            papers: Some(8.05),
            from: "",
            baseline: false,
            ours: Times(
                term("replies", Quantile(0.999), "yield:1", 100.0),
                term("replies", Quantile(0.999), "yield-own:1", 100.0),
            ),
            why: TAIL,
        },
    ],
};
