//! Figure 12: a map-reduce whose phases want different memory.

use super::super::Ours::{Level, Times};
use super::super::Value::{self, PartKept};
use super::super::{Across, Claim, Figure, Panel, Plot, Reference, Runs, Variant, Vary, only, term};
use super::{FAR, MAGE, NO_CORE, SAME_DISK, THERE, disk, network};

pub(super) static TWELVE: Figure = Figure {
    name: "mage-12",
    paper: &MAGE,
    number: "Figure 12",
    title: "the map and the reduce phase of a map-reduce over far memory",
    there: THERE,
    here: "A map-reduce of our own over 384 MiB, two threads: map makes pairs of keys and values from the input (half of the memory) into buckets (a quarter), reduce adds them up by key (another quarter). So map wants three quarters of the memory, and reduce one half, the other one. The paper's Metis has 30 GB of Wikipedia. Throughput is that of each phase by its own time.",
    panels: &[
        phases("network", "Map-reduce, delay:4us", &[only(0.0, network)]),
        Panel { x: ON_DISK, ..phases("disk", "Map-reduce, disk", &[only(0.0, disk)]) },
    ],
    claims: &[
        Claim {
            what: "reduce over Linux at 20 % far memory",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: Some(2.21),
            from: "computed: 85.7 % over 38.7 %, from drops of 14.3 and 61.3 %",
            baseline: false,
            ours: Times(term("network", REDUCE, "farshore", 20.0), term("network", REDUCE, "Linux swap on zram", 20.0)),
            why: "two threads do not make Linux' locks the bottleneck that they are with 48, and zram compresses on the processors that reduce",
        },
        Claim {
            what: "throughput of reduce that is kept at 20 % far memory",
            system: "MAGE-Lib",
            section: "§6.2",
            papers: Some(85.7),
            from: "computed: a drop of 14.3 %",
            baseline: false,
            ours: Level(term("network", REDUCE, "farshore", 20.0)),
            why: NO_CORE,
        },
        Claim {
            what: "throughput of reduce that Linux keeps at 20 % far memory",
            system: "Hermit",
            section: "§6.2",
            papers: Some(38.7),
            from: "computed: a drop of 61.3 %",
            baseline: true,
            ours: Level(term("network", REDUCE, "Linux swap on zram", 20.0)),
            why: "two threads do not make Linux' locks the bottleneck that they are with 48",
        },
        Claim {
            what: "map over Linux at 50 % far memory",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("network", MAP, "farshore", 50.0), term("network", MAP, "Linux swap on zram", 50.0)),
            why: "map goes through its input in order, which prefetching sees here, and Linux reads nothing ahead from zram",
        },
        Claim {
            what: "reduce over Linux swap at 20 % far memory, disk",
            system: "MAGE-Lib over Hermit",
            section: "§6.2",
            papers: Some(2.21),
            from: "computed: 85.7 % over 38.7 %, from drops of 14.3 and 61.3 %",
            baseline: false,
            ours: Times(term("disk", REDUCE, "farshore", 20.0), term("disk", REDUCE, "Linux swap", 20.0)),
            why: SAME_DISK,
        },
    ],
};

const MAP: Value = PartKept("map");
const REDUCE: Value = PartKept("reduce");
const POINTS: Across = Across { points: &[0.0, 20.0, 50.0, 80.0], quick: &[20.0], ..FAR };
const ON_DISK: Across = Across { points: &[20.0, 50.0], quick: &[20.0], ..FAR };

const fn phases(key: &'static str, title: &'static str, variants: &'static [Variant]) -> Panel {
    Panel {
        key,
        title,
        x: POINTS,
        runs: Runs::Load {
            line: "phase --size 384M --threads 2",
            quick: "phase --size 24M --threads 2",
            vary: Vary::Far,
            variants,
        },
        run_seconds: 2.5,
        ideal: None,
        plots: &[
            Plot {
                title: "Throughput of map that is kept",
                value: MAP,
                references: &[Reference {
                    system: "MAGE-Lib, MAGE-Lnx",
                    section: "§6.2",
                    says: "near the baseline at 20 % far memory, as what map wants fits (no digits in the text)",
                    points: &[],
                }],
            },
            Plot {
                title: "Throughput of reduce that is kept",
                value: REDUCE,
                references: &[
                    Reference {
                        system: "MAGE-Lib",
                        section: "§6.2",
                        says: "14.3 % less after the change, at 20 % far memory",
                        points: &[(20.0, 85.7)],
                    },
                    Reference {
                        system: "DiLOS",
                        section: "§6.2",
                        says: "41.2 % less after the change, at 20 % far memory",
                        points: &[(20.0, 58.8)],
                    },
                    Reference {
                        system: "Hermit",
                        section: "§6.2",
                        says: "61.3 % less after the change, at 20 % far memory",
                        points: &[(20.0, 38.7)],
                    },
                ],
            },
        ],
    }
}
