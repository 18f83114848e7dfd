//! What the time of a request goes to, at four percentiles.

use super::{ADIOS, THERE};
use crate::paper::Ours::Times;
use crate::paper::Value::{RequestPart, RequestParts};
use crate::paper::{Across, Claim, Figure, Over, Panel, Plot, Reference, Runs, term};
use crate::report::axis::Scale;

const PANEL: &str = "parts";
/// Percent of the highest throughput of busy.
const LOAD: f64 = 80.0;

const FEW: &str =
    "a request in a thousand decides the 99.9th percentile, and so does another program's burst on the two processors";

pub(super) static SEVEN_C: Figure = Figure {
    name: "adios-7c",
    paper: &ADIOS,
    number: "Figures 2(c) and 7(c)",
    title: "what the time of a request goes to, at four percentiles",
    there: THERE,
    here: "The array of adios-7 at 80 % of the highest throughput of busy, which is measured first. The server stamps each request, from when the kernel had its datagram until the reply was sent: waits for the worker (in the socket, in the queue, and for its turn once a page was there), the time in which it ran, waits for its own pages, and the reply, which a thread sends. The worker of busy notes when it spins for a page, and of a wait for the worker that is marked in which it did. A bar has the means of the requests around a percentile: of half a percent of all to both sides, and around P99.9 of half a thousandth. That the kernel says when a datagram came, and the stamps, cost the server some of its throughput.",
    panels: &[Panel {
        key: PANEL,
        title: "Array, delay:10us",
        x: Across { label: "requests a second that come", scale: Scale::Linear, points: &[LOAD], quick: &[LOAD] },
        runs: Runs::Served {
            line: "array --data 128M --swap delay:10us --seconds 3 --warmup 0.5 --breakdown --reference busy --mode busy:1 --mode yield:1",
            quick: "array --data 32M --swap delay:10us --seconds 1 --warmup 0.2 --breakdown --reference busy --mode busy:1 --mode yield:1",
            over: Over::Load,
        },
        run_seconds: 4.5,
        ideal: None,
        plots: &[Plot {
            title: "Time of a request by part",
            value: RequestParts,
            references: &[
                Reference {
                    system: "DiLOS",
                    section: "§2.1",
                    says: "at 1.3 M/s no RDMA at P10, and more than half of all at P50; P99 is 5 times P50, and P99.9 more than 5 times P99, most of it queueing; busy-waiting in that is negligible at P10 and P50 and dominant at P99 and P99.9",
                    points: &[],
                },
                Reference {
                    system: "DiLOS",
                    section: "§5.1",
                    says: "without queueing, local accesses take 1.7 Kcycles (0.85 µs), and remote ones 10.6 Kcycles (5.3 µs)",
                    points: &[],
                },
                Reference {
                    system: "Adios",
                    section: "§5.1",
                    says: "at 1.3 M/s busy-waiting has disappeared, and queueing is 16.3 times (P99) and 36.8 times (P99.9) less than that of DiLOS",
                    points: &[],
                },
            ],
        }],
    }],
    claims: &[
        Claim {
            what: "waits for the worker at P99.9, busy over yield",
            system: "queueing, DiLOS over Adios",
            section: "§5.1",
            papers: Some(36.8),
            from: "",
            baseline: false,
            ours: Times(of("yield:1", "queue", 0.999), of("busy:1", "queue", 0.999)),
            why: FEW,
        },
        Claim {
            what: "waits for the worker at P99, busy over yield",
            system: "queueing, DiLOS over Adios",
            section: "§5.1",
            papers: Some(16.3),
            from: "",
            baseline: false,
            ours: Times(of("yield:1", "queue", 0.99), of("busy:1", "queue", 0.99)),
            why: "one worker has the queue here, and eight there: with one, requests queue sooner in both modes",
        },
        Claim {
            what: "of these waits of busy at P99.9, those in which the worker spins over all others",
            system: "DiLOS, busy-waiting is dominant",
            section: "§2.1",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(of("busy:1", "unspun", 0.999), of("busy:1", "spun", 0.999)),
            why: "a fault costs the worker some 10 µs of its own here (signal, system calls), in which it does not spin, and the page takes as long",
        },
        Claim {
            what: "of these waits of busy at P99, those in which the worker spins over all others",
            system: "DiLOS, busy-waiting is dominant",
            section: "§2.1",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(of("busy:1", "unspun", 0.99), of("busy:1", "spun", 0.99)),
            why: "a fault costs the worker some 10 µs of its own here (signal, system calls), in which it does not spin, and the page takes as long",
        },
        Claim {
            what: "time of busy at P50, its own pages over all else",
            system: "DiLOS, RDMA is more than half",
            section: "§2.1",
            papers: None,
            from: "",
            baseline: false,
            ours: Times(of("busy:1", "but-page", 0.5), of("busy:1", "page", 0.5)),
            why: "one worker has the queue here, and eight there: with one, requests queue sooner in both modes",
        },
        Claim {
            what: "time of busy, P99 over P50",
            system: "DiLOS",
            section: "§2.1",
            papers: Some(5.0),
            from: "",
            baseline: false,
            ours: Times(of("busy:1", "all", 0.5), of("busy:1", "all", 0.99)),
            why: FEW,
        },
        Claim {
            what: "time of busy, P99.9 over P99",
            system: "DiLOS",
            section: "§2.1",
            papers: Some(5.0),
            from: "the text says more than 5",
            baseline: false,
            ours: Times(of("busy:1", "all", 0.99), of("busy:1", "all", 0.999)),
            why: FEW,
        },
    ],
};

const fn of(series: &'static str, part: &'static str, share: f64) -> crate::paper::Term {
    term(PANEL, RequestPart(part, share), series, LOAD)
}
