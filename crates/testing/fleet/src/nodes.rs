//! Nodes, and their memory.

use crate::part::{NodeId, Pages, Room};

/// Whether a node is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It answers.
    Up,
    /// It does not, and will.
    Away,
    /// It goes: nothing is placed there.
    Leaving,
    /// It is not there, or not yet.
    Gone,
}

/// A memory node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it is.
    pub rack: usize,
    /// Whether it is there.
    pub state: State,
    /// Pages that it has.
    pub memory: Pages,
    /// Pages that are taken.
    pub used: Pages,
    /// Pages that will be, when each copy has all: what placement goes by, since copies that were just placed have nothing yet.
    pub promised: Pages,
}

impl Node {
    /// Memory that is neither taken nor promised.
    #[must_use]
    pub fn free(&self) -> Pages {
        self.memory.saturating_sub(self.used.max(self.promised))
    }
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Nodes(pub Vec<Node>);

impl Room for Nodes {
    fn take(&mut self, node: NodeId, pages: Pages) -> Pages {
        let node = &mut self.0[node];
        let got = pages.min(node.memory.saturating_sub(node.used));
        node.used += got;
        got
    }

    fn give(&mut self, node: NodeId, pages: Pages) {
        self.0[node].used -= pages;
    }
}

impl Nodes {
    /// Those that answer, or are leaving.
    pub fn there(&self) -> impl Iterator<Item = &Node> {
        self.0.iter().filter(|node| matches!(node.state, State::Up | State::Leaving))
    }

    /// The fullest node's pages, and the mean's.
    #[must_use]
    pub fn fullest(&self) -> (Pages, f64) {
        let (count, sum, most) =
            self.there().fold((0_u64, 0, 0), |(count, sum, most), node| (count + 1, sum + node.used, node.used.max(most)));
        (most, sum as f64 / count.max(1) as f64)
    }
}
