//! ScaleSwap (Ahn, Yu, Lee, Son: A Scalable OS Swap System for All-Flash Swap Arrays).

mod spaces;

use super::Ours::{Percent, Times};
use super::Value::{Delegation, Delegations, Rate};
use super::{Across, Claim, Figure, Panel, Paper, Plot, Reference, Runs, Variant, Vary, only, term};
use crate::report::axis::Scale;

pub(super) const SCALESWAP: Paper =
    Paper { name: "ScaleSwap", title: "ScaleSwap: A Scalable OS Swap System for All-Flash Swap Arrays" };

/// All of them.
pub const FIGURES: &[&Figure] = &[&TWELVE, &THIRTEEN, &spaces::SIXTEEN, &SIX, &spaces::FULL_SPACES];

static TWELVE: Figure = Figure {
    name: "scaleswap-12",
    paper: &SCALESWAP,
    number: "Figure 12",
    title: "throughput over swap spaces, with and without cores that own theirs",
    there: "A stress program writes and reads 288 GB with 128 threads on 128 cores; 1 to 8 NVMe SSDs, 128 swap files.",
    here: "The same program over 96 MiB with 8 threads, half local. Spaces: 1 to 8 files of a file system in RAM (/dev/shm), which no disk holds up, with per-core lists and extents and without (--ablate partitions). Spaces with a rate: as many of RAM that answer after 4 µs and transfer 100 MiB/s each, as independent of each other as devices are. Files: 1 to 4 on the one disk that there is, against Linux swap on as many.",
    panels: &[
        Panel {
            key: "spaces",
            title: "Spaces in RAM",
            x: spaces::COUNT,
            runs: Runs::Load { line: STRESS, quick: QUICK, vary: Vary::Targets, variants: &[only(50.0, spaces)] },
            run_seconds: 0.6,
            ideal: None,
            plots: &[Plot {
                title: "Pages written and read",
                value: Rate,
                references: &[Reference {
                    system: "ScaleSwap",
                    section: "§5.2, Table 5",
                    says: "1.31, 2.34, 2.85 and 3.41 times Linux with 1, 2, 4 and 8 SSDs; 8.13 GB/s with per-core LRU lists alone, 14.81 GB/s with all",
                    points: &[],
                }],
            }],
        },
        spaces::RATED,
        Panel {
            key: "files",
            title: "Files on one disk",
            x: Across { label: "swap files", scale: Scale::Log2, points: &[1.0, 2.0, 4.0], quick: &[4.0] },
            runs: Runs::Load { line: STRESS, quick: QUICK, vary: Vary::Files, variants: &[only(50.0, files)] },
            run_seconds: 0.9,
            ideal: None,
            plots: &[Plot {
                title: "Pages written and read",
                value: Rate,
                references: &[
                    Reference {
                        system: "Linux", section: "§3.2", says: "about 4 GB/s whatever the number of SSDs", points: &[]
                    },
                    Reference {
                        system: "Linux and ScaleSwap",
                        section: "Table 2",
                        says: "of the processors' time with 1 SSD, Linux 0.2 % user and 14.49 % system, ScaleSwap 0.22 % and 9.23 %; with 8 SSDs, Linux 0.29 % and 92.41 %, ScaleSwap 1.07 % and 83.06 %",
                        points: &[],
                    },
                ],
            }],
        },
    ],
    claims: &[
        Claim {
            what: "what cores that own lists and extents give, 8 spaces",
            system: "ScaleSwap over ScaleSwap (LRU)",
            section: "Table 5",
            papers: Some(1.82),
            from: "computed: 14.81 over 8.13 GB/s; there the lists per core stay, here they go too",
            baseline: false,
            ours: Times(term("spaces", Rate, "farshore", 8.0), term("spaces", Rate, "without per-core lists and extents", 8.0)),
            why: "two cores have no lock to fight for: what 128 cores gain by not sharing cannot be seen here",
        },
        Claim {
            what: "what 8 spaces give over one",
            system: "ScaleSwap",
            section: "§5.2",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("spaces", Rate, "farshore", 8.0), term("spaces", Rate, "farshore", 1.0)),
            why: "one file in RAM is no bottleneck, as an SSD is",
        },
        spaces::RATED_CLAIM,
        Claim {
            what: "over Linux swap, 4 files on one disk",
            system: "ScaleSwap over Linux, 1 SSD",
            section: "§5.2",
            papers: Some(1.31),
            from: "",
            baseline: false,
            ours: Times(term("files", Rate, "farshore", 4.0), term("files", Rate, "Linux swap", 4.0)),
            why: "the disk is the bottleneck of both",
        },
    ],
};

const STRESS: &str = "stress --size 96M --threads 8 --passes 2";
const QUICK: &str = "stress --size 24M --threads 8 --passes 1";

static THIRTEEN: Figure = Figure {
    name: "scaleswap-13",
    paper: &SCALESWAP,
    number: "Figure 13",
    title: "memory-intensive applications over swap spaces",
    there: "BFS of 184 GB, visualization of DNA (640 GB), a Python list (256 GB), and images that are made grey and flipped (384 GB each), on 128 cores with 1 to 8 NVMe SSDs.",
    here: "Half local, 1 to 4 files on the one disk that there is. Breadth-first searches of a Kronecker graph with 2^19 vertices (76 MiB), two threads. In place of the visualization of DNA, the words of 16 letters in reads of a genome, counted in one table by two threads (64 MiB). A list of real Python's (64 MiB), filled and gone through twice. Pictures of 640 by 480 pixels (64 MiB with what is made of them), two threads, by code of ours.",
    panels: &[
        Panel {
            key: "bfs",
            title: "Breadth-first search, files on one disk",
            x: FILES,
            runs: Runs::Load {
                line: "bfs --scale 19 --threads 2 --trials 3",
                quick: "bfs --scale 17 --threads 2 --trials 1",
                vary: Vary::Files,
                variants: ALL_ON_DISK,
            },
            run_seconds: 2.0,
            ideal: None,
            plots: &[application(
                "Edges of searches",
                &[of_the_paper(
                    "2.4 times Linux with 8 SSDs; with one SSD similar; 23.29 % of the processors' time in user mode",
                )],
            )],
        },
        Panel {
            key: "kmers",
            title: "Words of DNA counted, files on one disk",
            x: FILES,
            runs: Runs::Load {
                line: "kmers --size 64M --threads 2 --seconds 1 --warmup 0.2",
                quick: "kmers --size 16M --threads 2 --seconds 0.3 --warmup 0.1",
                vary: Vary::Files,
                variants: ALL_ON_DISK,
            },
            run_seconds: 2.3,
            ideal: None,
            plots: &[application(
                "Words counted",
                &[of_the_paper(
                    "its visualization of DNA: 2.57 times Linux with 8 SSDs; with one SSD similar; 2.91 % of the processors' time in user mode",
                )],
            )],
        },
        Panel {
            key: "list",
            title: "A Python list, files on one disk",
            x: FILES,
            runs: Runs::Load {
                line: "list --size 64M --passes 2",
                quick: "list --size 24M --passes 1",
                vary: Vary::Files,
                variants: ALL_ON_DISK,
            },
            run_seconds: 2.0,
            ideal: None,
            plots: &[application(
                "Elements made and visited",
                &[of_the_paper(
                    "1.70 times Linux with 8 SSDs; with one SSD similar; 42.91 % of the processors' time in user mode",
                )],
            )],
        },
        Panel {
            key: "grey",
            title: "Pictures made grey, files on one disk",
            x: FILES,
            runs: Runs::Load {
                line: "images --size 64M --threads 2 --passes 3",
                quick: "images --size 24M --threads 2 --passes 1",
                vary: Vary::Files,
                variants: ALL_ON_DISK,
            },
            run_seconds: 1.4,
            ideal: None,
            plots: &[application(
                "Pictures made grey",
                &[of_the_paper(
                    "1.72 times Linux with 8 SSDs; with one SSD similar; 45.21 % of the processors' time in user mode",
                )],
            )],
        },
        Panel {
            key: "flip",
            title: "Pictures flipped, files on one disk",
            x: FILES,
            runs: Runs::Load {
                line: "images --change flip --size 64M --threads 2 --passes 3",
                quick: "images --change flip --size 24M --threads 2 --passes 1",
                vary: Vary::Files,
                variants: ALL_ON_DISK,
            },
            run_seconds: 1.4,
            ideal: None,
            plots: &[application(
                "Pictures flipped",
                &[of_the_paper(
                    "1.91 times Linux with 8 SSDs; with one SSD similar; 41.56 % of the processors' time in user mode",
                )],
            )],
        },
    ],
    claims: &[
        similar("BFS in percent of Linux swap, 4 files on one disk", "bfs"),
        similar("words of DNA in percent of Linux swap, 4 files on one disk", "kmers"),
        similar("a Python list in percent of Linux swap, 4 files on one disk", "list"),
        similar("pictures made grey in percent of Linux swap, 4 files on one disk", "grey"),
        similar("pictures flipped in percent of Linux swap, 4 files on one disk", "flip"),
        Claim {
            what: "what 4 files give over one, BFS",
            system: "ScaleSwap, 8 SSDs over one",
            section: "§5.3",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(term("bfs", Rate, "farshore", 4.0), term("bfs", Rate, "farshore", 1.0)),
            why: "all files are on the same disk",
        },
    ],
};

const FILES: Across = Across { label: "swap files", scale: Scale::Log2, points: &[1.0, 4.0], quick: &[4.0] };

const ALL_ON_DISK: &[Variant] = &[only(50.0, with_zswap)];

/// An application of figure 13, with what the paper says of it.
const fn application(title: &'static str, says: &'static [Reference]) -> Plot {
    Plot { title, value: Rate, references: says }
}

const fn of_the_paper(says: &'static str) -> Reference {
    Reference { system: "ScaleSwap", section: "§5.3", says, points: &[] }
}

/// What the paper says of one with one SSD.
const fn similar(what: &'static str, panel: &'static str) -> Claim {
    Claim {
        what,
        system: "ScaleSwap over Linux, 1 SSD",
        section: "§5.3",
        papers: Some(100.0),
        from: "the text says similar, of one SSD",
        baseline: false,
        ours: Percent(term(panel, Rate, "farshore", 4.0), term(panel, Rate, "Linux swap", 4.0)),
        why: "files on one disk are not devices: the disk is the bottleneck of both",
    }
}

fn spaces(count: f64) -> String {
    let swaps = "swap=dir:/dev/shm+".repeat(crate::paper::plan::whole(count) as usize);
    format!("farshore:{swaps}label=farshore,farshore:{swaps}ablate=partitions+label=without per-core lists and extents")
}

fn files(_: f64) -> String {
    "farshore,linux-swap:label=Linux swap".into()
}

fn with_zswap(_: f64) -> String {
    "farshore,linux-swap:label=Linux swap,zswap".into()
}

static SIX: Figure = Figure {
    name: "scaleswap-t6",
    paper: &SCALESWAP,
    number: "Table 6",
    title: "what it costs when cores have no room of their own",
    there: "The stress program with 0 to 96 of 128 swap files full: cores whose file is full ask others for room (delegation).",
    here: "The same program over 96 MiB with 8 threads, half local, on one file of the disk. A space that is full costs nothing here while another has room: any core takes that. Cores ask each other when all room is nearly used, so the file is made smaller, from four times to four thirds of what is out. Delegations and their time are Farshore's own counters.",
    panels: &[Panel {
        key: "room",
        title: "Less and less room",
        x: Across {
            label: "room for 48 MiB that are out, MiB",
            scale: Scale::Log2,
            points: &[64.0, 72.0, 96.0, 192.0],
            quick: &[64.0, 192.0],
        },
        runs: Runs::Load {
            line: STRESS,
            quick: "stress --size 96M --threads 8 --passes 1",
            vary: Vary::Targets,
            variants: &[only(50.0, room)],
        },
        run_seconds: 0.5,
        ideal: None,
        plots: &[
            Plot {
                title: "Pages written and read",
                value: Rate,
                references: &[Reference {
                    system: "ScaleSwap",
                    section: "Table 6",
                    says: "14.81, 13.93, 13.88, 13.33 and 12.48 GB/s with 0, 16, 32, 64 and 96 of 128 files full",
                    points: &[],
                }],
            },
            Plot {
                title: "Delegations",
                value: Delegations,
                references: &[Reference {
                    system: "ScaleSwap",
                    section: "Table 6",
                    says: "70,078,564 delegations in 52 s, 88,329,031 in 54, 104,703,628 in 55, 155,130,438 in 57 and 202,714,836 in 63; they took 2.102, 4.47, 5.974, 11.212 and 16.574 s in all",
                    points: &[],
                }],
            },
            Plot {
                title: "Mean time of a delegation",
                value: Delegation,
                references: &[Reference {
                    system: "ScaleSwap",
                    section: "Table 6",
                    says: "29.99, 50.60, 57.05, 72.27 and 81.76 ns",
                    points: &[],
                }],
            },
        ],
    }],
    claims: &[Claim {
        what: "throughput with the least room, in percent of that with the most",
        system: "ScaleSwap, 96 files full over none",
        section: "§5.7, Table 6",
        papers: Some(84.0),
        from: "the text says approximately 84 %; 12.48 over 14.81 GB/s in its table",
        baseline: false,
        ours: Percent(term("room", Rate, "farshore", 64.0), term("room", Rate, "farshore", 192.0)),
        why: "slots that come one by one from all cores lie apart on the disk, so that writes are short",
    }],
};

fn room(mebibytes: f64) -> String {
    format!(r"farshore:swap=dir\,size={mebibytes}M+label=farshore")
}
