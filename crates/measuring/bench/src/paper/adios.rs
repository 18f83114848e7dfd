//! Adios (Yoon, Ok, Moon, Kwon: Adios to Busy-Waiting for Microsecond-scale Memory Disaggregation).
//!
//! | module | figures |
//! |---|---|
//! | `array` | an array with random indices: latency over load, throughput over local memory, who sends replies |
//! | `breakdown` | what a request's time goes to |
//! | `stores` | memcached, and an ordered store with scans; which worker gets a request |
//! | `databases` | TPC-C, and the nearest vectors |

mod array;
mod breakdown;
mod databases;
mod stores;

use super::{Across, Figure, Paper};
use crate::report::axis::Scale;

const ADIOS: Paper = Paper { name: "Adios", title: "Adios to Busy-Waiting for Microsecond-scale Memory Disaggregation" };

/// All of them.
pub const FIGURES: &[&Figure] = &[
    &array::SEVEN,
    &breakdown::SEVEN_C,
    &array::EIGHT,
    &array::NINE,
    &stores::TEN,
    &stores::TEN_SMALL,
    &stores::ELEVEN,
    &stores::DISPATCH,
    &databases::TWELVE,
    &databases::THIRTEEN,
];

/// In percent of the highest throughput of the reference, from little to more than it can do.
const LOADS: Across = Across {
    label: "requests a second that come",
    scale: Scale::Linear,
    points: &[10.0, 40.0, 80.0, 100.0, 120.0],
    quick: &[80.0],
};

const THERE: &str = "Eight workers, a dispatcher and a reclaimer on a Xeon of 2 GHz, 100 Gbit/s RDMA (2 to 3 µs a page), clients on a machine of their own, a fifth of the data local.";
const TAIL: &str =
    "the generator is on the same machine, and another program's burst on its two processors is in the tail of both";
