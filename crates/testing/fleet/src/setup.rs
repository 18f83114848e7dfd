//! What is simulated.

use crate::link::Rate;
use crate::part::Pages;
use crate::place::Choice;
use serde::Serialize;

/// Microseconds.
pub type Time = u64;

/// A second.
pub const SECOND: Time = 1_000_000;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Pages of a GiB.
pub const GIB: Pages = (1 << 30) / PAGE;

/// A fleet, and how its copies are placed.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// Clients.
    pub clients: usize,
    /// Nodes, of which each rack has as many as the others.
    pub nodes: usize,
    /// Racks.
    pub racks: usize,
    /// Pages that a node has.
    pub memory: Pages,
    /// Far memory of a client, in the mean, in pages.
    pub need: Pages,
    /// The standard deviation of the logarithm of what clients need.
    pub skew: f64,
    /// Pages of a part that is placed by itself; none: a client's far memory is one part.
    pub part: Option<Pages>,
    /// Copies of each page.
    pub copies: usize,
    /// What places them.
    pub choice: Choice,
    /// Copies are in different racks.
    pub apart: bool,
    /// What a node's link carries in each direction, bytes a second.
    pub node_link: Rate,
    /// The same of a rack's.
    pub rack_link: Rate,
    /// The same of a client's.
    pub client_link: Rate,
    /// What a client copies to one of its copies, bytes a second at most.
    pub repair: Rate,
    /// After how long a node that is lost is replaced, µs.
    pub exchange: Time,
    /// In how long a client writes as many pages as it has out there, and reads as many, in seconds.
    pub rewrite: f64,
    /// After how long a client needs more or less, in the mean, in seconds.
    pub change: f64,
    /// How long a client runs, in the mean, in seconds; then another one comes.
    pub life: f64,
    /// How long the fleet runs before anything happens, µs.
    pub warm: Time,
    /// The seed.
    pub seed: u64,
    /// All is audited after so many events; what an event has touched, always.
    pub audit: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            clients: 1000,
            nodes: 100,
            racks: 10,
            memory: 256 * GIB,
            need: 6 * GIB,
            skew: 1.0,
            part: None,
            copies: 2,
            choice: Choice::TwoChoices,
            apart: true,
            node_link: 1192 << 20,
            rack_link: 5960 << 20,
            client_link: 1192 << 20,
            repair: 60 << 20,
            exchange: 120 * SECOND,
            rewrite: 600.0,
            change: 120.0,
            life: 1800.0,
            warm: 600 * SECOND,
            seed: 1,
            audit: 1000,
        }
    }
}

impl Setup {
    /// Why it cannot be simulated, if it cannot.
    #[must_use]
    pub fn wrong(&self) -> Option<String> {
        if self.clients == 0 || self.nodes == 0 || self.racks == 0 {
            return Some("a fleet has clients, nodes and racks".into());
        }
        if !self.nodes.is_multiple_of(self.racks) {
            return Some(format!("{} nodes cannot be divided among {} racks", self.nodes, self.racks));
        }
        let (places, needed) = if self.apart { (self.racks, "racks") } else { (self.nodes, "nodes") };
        if !(1..=3).contains(&self.copies) || places < self.copies + 2 {
            return Some(format!("{} copies need 1 to 3, and two {needed} more than copies", self.copies));
        }
        if self.memory == 0 || self.need == 0 || self.part == Some(0) || self.repair < PAGE {
            return Some("memory, need, part and repair are at least a page".into());
        }
        let links = [self.node_link, self.rack_link, self.client_link];
        if links.contains(&0) || ![self.rewrite, self.change, self.life].iter().all(|seconds| *seconds > 0.0) {
            return Some("links and times are above 0".into());
        }
        None
    }
}
