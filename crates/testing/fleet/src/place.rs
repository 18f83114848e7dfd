//! Where copies go.

use crate::draws::Draws;
use crate::part::{NodeId, Pages};
use serde::Serialize;

/// What chooses among the nodes that may have a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Any of them.
    Random,
    /// Two are drawn, and the one with more memory free is taken.
    TwoChoices,
    /// The next one in their order.
    RoundRobin,
}

impl Choice {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Choice::Random => "random",
            Choice::TwoChoices => "two choices",
            Choice::RoundRobin => "round robin",
        }
    }
}

/// What whoever places copies knows of a node.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The node.
    pub node: NodeId,
    /// Its rack.
    pub rack: usize,
    /// Its place in the round.
    pub turn: usize,
    /// Memory that is neither taken nor promised.
    pub free: Pages,
}

/// What places copies.
#[derive(Clone, Debug)]
pub struct Placer {
    choice: Choice,
    apart: bool,
    draws: Draws,
    next: usize,
}

impl Placer {
    /// With this choice; `apart`: copies are in different racks.
    #[must_use]
    pub fn new(choice: Choice, apart: bool, draws: Draws) -> Placer {
        Placer { choice, apart, draws, next: 0 }
    }

    /// A node for a copy of so many pages, beside copies on others. `None`: none has room.
    pub fn place(&mut self, offers: &[Offer], pages: Pages, others: &[(NodeId, usize)]) -> Option<NodeId> {
        let is_right = |offer: &&Offer| {
            offer.free >= pages && others.iter().all(|&(node, rack)| offer.node != node && !(self.apart && offer.rack == rack))
        };
        let right: Vec<&Offer> = offers.iter().filter(is_right).collect();
        if right.is_empty() {
            return None;
        }
        let first = self.draws.below(right.len());
        let chosen = match self.choice {
            Choice::Random => right[first],
            Choice::TwoChoices if right.len() == 1 => right[0],
            Choice::TwoChoices => {
                let second = (first + 1 + self.draws.below(right.len() - 1)) % right.len();
                if right[second].free > right[first].free { right[second] } else { right[first] }
            }
            Choice::RoundRobin => {
                // The first one from here on, or the first of all.
                let from_here = |offer: &&&Offer| (offer.turn < self.next, offer.turn);
                right.iter().min_by_key(from_here).unwrap_or(&right[0])
            }
        };
        self.next = chosen.turn + 1;
        Some(chosen.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(free: impl Fn(usize) -> Pages) -> Vec<Offer> {
        (0..12).map(|node| Offer { node, rack: node / 4, turn: node, free: free(node) }).collect()
    }

    fn placer(choice: Choice, apart: bool) -> Placer {
        Placer::new(choice, apart, Draws::new(3, 4))
    }

    #[test]
    fn no_copy_goes_beside_another_or_where_no_room_is() {
        for choice in [Choice::Random, Choice::TwoChoices, Choice::RoundRobin] {
            let mut any = placer(choice, false);
            let mut apart = placer(choice, true);
            for _ in 0..200 {
                let offers = offers(|node| if node == 7 { 9 } else { 10 });
                let node = any.place(&offers, 10, &[(3, 0)]).expect("there is room");
                assert!(node != 3 && node != 7);
                let node = apart.place(&offers, 10, &[(3, 0), (11, 2)]).expect("there is room");
                assert!([4, 5, 6].contains(&node));
            }
            assert_eq!(apart.place(&offers(|_| 10), 10, &[(0, 0), (4, 1), (8, 2)]), None);
            assert_eq!(any.place(&offers(|_| 10), 11, &[]), None);
        }
    }

    #[test]
    fn the_emptier_of_two_is_taken() {
        let mut counts = [0_u32; 12];
        let mut placer = placer(Choice::TwoChoices, false);
        (0..6600).for_each(|_| counts[placer.place(&offers(|node| 100 + node as Pages), 1, &[]).expect("there is room")] += 1);
        // Node n wins if the other one is before it: n of 66 pairs.
        for (node, &count) in counts.iter().enumerate() {
            assert!(count.abs_diff(node as u32 * 100) <= 200, "{counts:?}");
        }
        assert_eq!(counts[0], 0);
    }

    #[test]
    fn round_robin_goes_round() {
        let mut placer = placer(Choice::RoundRobin, false);
        let nodes: Vec<NodeId> = (0..14).filter_map(|_| placer.place(&offers(|_| 10), 1, &[])).collect();
        assert_eq!(nodes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1]);
    }
}
