//! Spaces that are full, spaces that are as independent as devices, and the comparison with ExtMem.

use super::super::Ours::{Percent, Times};
use super::super::Value::{Delegation, Delegations, Over, Rate};
use super::super::{Across, Claim, Figure, Panel, Plot, Reference, Runs, Vary, only, term};
use super::{QUICK, SCALESWAP, STRESS};
use crate::report::axis::Scale;

/// Spaces of the experiments.
const SPACES: u32 = 8;
/// Room in all of them together, in MiB, where it is little: 48 MiB are out.
const ROOM: u32 = 64;
/// A space that is full from its first pages on: the smallest that there is, in MiB.
const FULL: u32 = 2;
/// What a space transfers, a second.
const PACE: &str = "rate=100M";

pub(super) static FULL_SPACES: Figure = Figure {
    name: "scaleswap-t6-spaces",
    paper: &SCALESWAP,
    number: "Table 6",
    title: "what it costs when some of the swap spaces are full",
    there: "The stress program with 128 swap files on 8 SSDs, of which 0 to 96 are full: cores whose file is full ask others for room (delegation). The SSDs stay as fast as they were.",
    here: "The same program over 96 MiB with 8 threads, half local, on 8 spaces of RAM that answer after 4 µs, 0 to 7 of them of 2 MiB, which the first pages fill. Farshore's cores own parts of all spaces, where the paper's own a file each. Much room: the others have no bound, and 100 MiB/s each, so that a full space takes its rate with it. Little room: all spaces together have some 64 MiB whatever their number, without a rate, so that cores must ask each other. Delegations and their time are Farshore's own counters, over the whole run.",
    panels: &[
        Panel {
            key: "much",
            title: "Much room, 100 MiB/s a space",
            x: FULL_ONES,
            runs: Runs::Load { line: STRESS, quick: QUICK, vary: Vary::Targets, variants: &[only(50.0, much)] },
            run_seconds: 1.5,
            ideal: None,
            plots: &[Plot { title: "Pages written and read", value: Rate, references: THROUGHPUT }],
        },
        Panel {
            key: "little",
            title: "Little room, no rate",
            x: FULL_ONES,
            runs: Runs::Load {
                line: STRESS,
                quick: "stress --size 96M --threads 8 --passes 1",
                vary: Vary::Targets,
                variants: &[only(50.0, little)],
            },
            run_seconds: 0.8,
            ideal: None,
            plots: &[
                Plot { title: "Pages written and read", value: Rate, references: THROUGHPUT },
                Plot { title: "Delegations", value: Delegations, references: DELEGATIONS },
                Plot { title: "Mean time of a delegation", value: Delegation, references: TIMES },
            ],
        },
    ],
    claims: &[
        Claim {
            what: "throughput with 6 of 8 spaces full, in percent of that with none, little room",
            system: "ScaleSwap, 96 of 128 files full over none",
            section: "§5.7, Table 6",
            papers: Some(84.0),
            from: "the text says approximately 84 %; 12.48 over 14.81 GB/s in its table",
            baseline: false,
            ours: Percent(term("little", Rate, "farshore", 6.0), term("little", Rate, "farshore", 0.0)),
            why: "a core here has room in all spaces, so a space that is full makes it ask only when all room is nearly used",
        },
        Claim {
            what: "throughput with 4 of 8 spaces full, in percent of that with none, little room",
            system: "ScaleSwap, 64 of 128 files full over none",
            section: "Table 6",
            papers: Some(90.0),
            from: "computed: 13.33 over 14.81 GB/s",
            baseline: false,
            ours: Percent(term("little", Rate, "farshore", 4.0), term("little", Rate, "farshore", 0.0)),
            why: "a core here has room in all spaces, so a space that is full makes it ask only when all room is nearly used",
        },
        Claim {
            what: "throughput with 6 of 8 spaces full, in percent of that with none, 100 MiB/s a space",
            system: "ScaleSwap, 96 of 128 files full over none",
            section: "§5.7, Table 6",
            papers: Some(84.0),
            from: "the text says approximately 84 %; 12.48 over 14.81 GB/s in its table",
            baseline: false,
            ours: Percent(term("much", Rate, "farshore", 6.0), term("much", Rate, "farshore", 0.0)),
            why: "a full file there leaves its SSD to the others, a full space here takes its rate with it: two spaces have a quarter of what eight have",
        },
        Claim {
            what: "what cores that own lists and extents give with 6 of 8 spaces full, little room",
            system: "ScaleSwap, cores over a shared swap map",
            section: "§5.6",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("little", Rate, "farshore", 6.0), term("little", Rate, SHARED, 6.0)),
            why: "two cores have no lock to fight for",
        },
    ],
};

const SHARED: &str = "without per-core lists and extents";

const FULL_ONES: Across =
    Across { label: "full spaces of 8", scale: Scale::Linear, points: &[0.0, 1.0, 2.0, 4.0, 6.0, 7.0], quick: &[0.0, 6.0] };

const THROUGHPUT: &[Reference] = &[Reference {
    system: "ScaleSwap",
    section: "Table 6",
    says: "14.81, 13.93, 13.88, 13.33 and 12.48 GB/s with 0, 16, 32, 64 and 96 of 128 files full (here 0, 1, 2, 4 and 6 of 8)",
    points: &[],
}];
const DELEGATIONS: &[Reference] = &[Reference {
    system: "ScaleSwap",
    section: "Table 6",
    says: "70,078,564 delegations in 52 s, 88,329,031 in 54, 104,703,628 in 55, 155,130,438 in 57 and 202,714,836 in 63; there reads ask too, here only who wants room",
    points: &[],
}];
const TIMES: &[Reference] =
    &[Reference { system: "ScaleSwap", section: "Table 6", says: "29.99, 50.60, 57.05, 72.27 and 81.76 ns", points: &[] }];

/// Targets with all these spaces: cores with lists and extents of their own, and with shared ones.
fn both(swaps: &str) -> String {
    format!("farshore:{swaps}label=farshore,farshore:{swaps}ablate=partitions+label={SHARED}")
}

/// Spaces of this kind, as options of a target.
fn some(count: u32, kind: &str) -> String {
    format!("swap={kind}+").repeat(count as usize)
}

fn much(full: f64) -> String {
    let full = super::super::plan::whole(full);
    both(&(some(full, &format!(r"delay:4us\,{PACE}\,size={FULL}M")) + &some(SPACES - full, &format!(r"delay:4us\,{PACE}"))))
}

fn little(full: f64) -> String {
    let full = super::super::plan::whole(full);
    // Whole extents of 2 MiB: what does not go into them is given to all.
    let each = (ROOM - FULL * full).div_ceil(SPACES - full).next_multiple_of(2);
    both(&(some(full, &format!(r"delay:4us\,size={FULL}M")) + &some(SPACES - full, &format!(r"delay:4us\,size={each}M"))))
}

/// What [`super::TWELVE`] has of spaces with a rate each.
pub(super) const RATED: Panel = Panel {
    key: "rated",
    title: "Spaces of 100 MiB/s each",
    x: COUNT,
    runs: Runs::Load { line: STRESS, quick: QUICK, vary: Vary::Targets, variants: &[only(50.0, rated)] },
    run_seconds: 1.5,
    ideal: None,
    plots: &[Plot {
        title: "Pages written and read",
        value: Rate,
        references: &[Reference {
            system: "ScaleSwap",
            section: "§3.2, §5.2",
            says: "1.31, 2.34, 2.85 and 3.41 times Linux, which has about 4 GB/s whatever the number of SSDs, with 1, 2, 4 and 8 of them",
            points: &[],
        }],
    }],
};

/// How many spaces there are.
pub(super) const COUNT: Across =
    Across { label: "swap spaces", scale: Scale::Log2, points: &[1.0, 2.0, 4.0, 8.0], quick: &[1.0, 8.0] };

fn rated(count: f64) -> String {
    both(&some(super::super::plan::whole(count), &format!(r"delay:4us\,{PACE}")))
}

/// What [`super::TWELVE`] claims of them.
pub(super) const RATED_CLAIM: Claim = Claim {
    what: "what 8 spaces give over one, 100 MiB/s each",
    system: "ScaleSwap, 8 SSDs over one",
    section: "§3.2, §5.2",
    papers: Some(2.6),
    from: "computed: 3.41 over 1.31 times Linux, which has about the same whatever the number of SSDs",
    baseline: false,
    ours: Times(term("rated", Rate, "farshore", 8.0), term("rated", Rate, "farshore", 1.0)),
    why: "two processors fault and evict less than eight spaces could transfer",
};

pub(super) static SIXTEEN: Figure = Figure {
    name: "scaleswap-16",
    paper: &SCALESWAP,
    number: "Figure 16",
    title: "against ExtMem, over swap spaces and over threads",
    there: "mmapbench with 128 threads over 1 to 8 NVMe SSDs, and with 1 to 128 threads over 8 of them, under ScaleSwap and ExtMem.",
    here: "Updates of single pages at random in 96 MiB, half local, on 1 to 8 spaces of RAM that answer after 4 µs and transfer 100 MiB/s each. ExtMem is not here: in its place Farshore does what ExtMem's text says that it does (one evictor, one list, protecting and unmapping a page at a time). So what is the same in both, such as the price of a signal, is in neither number. The circle is ExtMem's place as ScaleSwap published it.",
    panels: &[
        Panel {
            key: "spaces",
            title: "8 threads over spaces",
            x: COUNT,
            runs: Runs::Load {
                line: "random --size 96M --threads 8 --seconds 1 --warmup 0.3",
                quick: "random --size 24M --threads 8 --seconds 0.3 --warmup 0.1",
                vary: Vary::Targets,
                variants: &[only(50.0, against)],
            },
            run_seconds: 2.3,
            ideal: None,
            plots: &[
                Plot { title: "Updates", value: Rate, references: &[] },
                Plot {
                    title: "Over one evictor that takes a page at a time",
                    value: Over(ONE_BY_ONE),
                    references: &[Reference {
                        system: "ScaleSwap over ExtMem",
                        section: "§5.5",
                        says: "up to 5.02 times as many operations a second with 8 SSDs; ExtMem shows almost no improvement as SSDs are added",
                        points: &[(8.0, 5.02)],
                    }],
                },
            ],
        },
        Panel {
            key: "threads",
            title: "8 spaces over threads",
            x: Across { label: "threads", scale: Scale::Log2, points: &[1.0, 2.0, 4.0, 8.0, 16.0], quick: &[1.0, 8.0] },
            runs: Runs::Load {
                line: "random --size 96M --seconds 1 --warmup 0.3",
                quick: "random --size 24M --seconds 0.3 --warmup 0.1",
                vary: Vary::Threads,
                variants: &[only(50.0, against_on_all)],
            },
            run_seconds: 2.3,
            ideal: None,
            plots: &[Plot {
                title: "Updates",
                value: Rate,
                references: &[Reference {
                    system: "ScaleSwap, ExtMem",
                    section: "§5.5",
                    says: "both scale up to 16 threads; beyond 32 ExtMem saturates or drops, ScaleSwap goes on to 128",
                    points: &[],
                }],
            }],
        },
    ],
    claims: &[
        Claim {
            what: "over one evictor that takes a page at a time, 8 spaces",
            system: "ScaleSwap over ExtMem, 8 SSDs",
            section: "§5.5",
            papers: Some(5.02),
            from: "the text says up to 5.02 times",
            baseline: false,
            ours: Times(term("spaces", Rate, "farshore", 8.0), term("spaces", Rate, ONE_BY_ONE, 8.0)),
            why: "128 threads wait for ExtMem's lock of the address space, where two processors have two",
        },
        Claim {
            what: "what 8 spaces give over one",
            system: "ScaleSwap",
            section: "§5.5",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("spaces", Rate, "farshore", 8.0), term("spaces", Rate, "farshore", 1.0)),
            why: "two processors fault and evict less than eight spaces could transfer",
        },
        Claim {
            what: "8 spaces in percent of one, one evictor that takes a page at a time",
            system: "ExtMem, 8 SSDs over one",
            section: "§5.5",
            papers: Some(100.0),
            from: "the text says almost no improvement",
            baseline: true,
            ours: Percent(term("spaces", Rate, ONE_BY_ONE, 8.0), term("spaces", Rate, ONE_BY_ONE, 1.0)),
            why: "one space of 100 MiB/s is slower than an SSD, so that it is the bottleneck even of slow evictions",
        },
        Claim {
            what: "16 threads over one, 8 spaces",
            system: "ScaleSwap and ExtMem",
            section: "§5.5",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("threads", Rate, "farshore", 16.0), term("threads", Rate, "farshore", 1.0)),
            why: "two processors can only ever run two of the threads",
        },
    ],
};

const ONE_BY_ONE: &str = "one evictor page by page";

fn against(count: f64) -> String {
    let swaps = some(super::super::plan::whole(count), &format!(r"delay:4us\,{PACE}"));
    format!(
        r"farshore:{swaps}label=farshore,farshore:{swaps}evictors=1+ablate=pipeline\,partitions\,write-runs\,batch=1+label={ONE_BY_ONE}"
    )
}

fn against_on_all(_: f64) -> String {
    against(f64::from(SPACES))
}
