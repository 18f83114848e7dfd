//! Many clients and many memory nodes, in a simulation from a seed: `make fleet-table`.
//!
//! A client keeps its far memory on one, two or three nodes, as `--swap mirror:(nbd://A,nbd://B)` does. Nodes are lost, away, started again, switched off, and join.
//! What is counted is in `docs/src/guide/fleet.md`.
//!
//! | module | what it does |
//! |---|---|
//! | [`part`] | the far memory of a client, or a part of it: which places have how many of its pages |
//! | [`place`] | which node gets a copy |
//! | [`nodes`] | nodes, and their memory |
//! | [`link`] | links, and how flows share them |
//! | [`fleet`] | all of it at one moment, and how it gets to the next; `clients` and `happen` are what clients and nodes do |
//! | [`audit`] | the laws, which are looked at with each event |
//! | [`scenario`] | what happens to a fleet, and what comes of it |
//! | [`balls`] | what theory says of placement |
//! | [`report`] | the tables |
//!
//! # What is as in the mirror
//!
//! - Writes go to all copies that are up, and at the pace of the slowest. Pages that a copy misses are stale there.
//! - A client copies 64 pages at a time to each copy that is behind, with a pause: some 60 MiB/s (`backend/src/mirror/repair.rs`). The bytes go through the client.
//! - A copy whose node is full has what fits, and is asked again each second.
//! - Nothing replaces a node by itself. Whoever runs the fleet exchanges the copies (`farshore set PID swap+=… swap-=…`), after [`setup::Setup::exchange`].
//! - A mirror has three places: of two copies the new one comes first, of three the old one goes first. One copy cannot be exchanged.
//! - A node that is started again has nothing, and gets all pages again.
//!
//! # What is simpler
//!
//! - Pages are counted, not kept: those of a part with the same places are one number, and writes hit them evenly.
//! - What a client needs changes in steps, whose bytes take no time on the links. What it reads and writes all the time does.
//! - A client has one space in Farshore. Parts that are placed each by itself are not built; a client repairs one of them at a time.
//! - Racks lose memory nodes, and no client. Clients hear at once that a node is lost, not after a second.
#![forbid(unsafe_code)]

pub mod audit;
pub mod balls;
mod clients;
pub mod draws;
pub mod fleet;
mod happen;
pub mod link;
pub mod nodes;
pub mod part;
pub mod place;
pub mod report;
pub mod scenario;
pub mod setup;
