//! What happens to nodes, and what is done about it.

use crate::fleet::{Event, Fleet, PartId};
use crate::nodes::State;
use crate::part::{Copy, NodeId, Pages, Part};
use crate::scenario::Step;
use crate::setup::{SECOND, Time};

/// How long a node takes to start again, µs.
const RESTART: Time = 5 * SECOND;
/// When no node could be found for a copy, another one is looked for after this, µs.
const AGAIN: Time = 10 * SECOND;

impl Fleet {
    /// The parts with a copy on a node, and where.
    fn on(&self, node: NodeId) -> Vec<(PartId, usize)> {
        let place = |part: &Part| part.places.iter().position(|copy| copy.is_some_and(|copy| copy.node == node));
        (0..self.parts.len()).filter_map(|id| Some((id, place(&self.parts[id].part)?))).collect()
    }

    /// Something is done to a node now.
    pub(crate) fn happens(&mut self, step: Step) {
        self.began.get_or_insert(self.now);
        match step {
            Step::Lose(node) => self.lose(node),
            Step::LoseRack(rack) => {
                let of_it = |node: &NodeId| self.nodes.0[*node].rack == rack && self.nodes.0[*node].state != State::Gone;
                (0..self.nodes.0.len()).filter(of_it).collect::<Vec<_>>().into_iter().for_each(|node| self.lose(node));
            }
            Step::Away(node) => self.away(node, false),
            Step::Restart(node) => {
                self.away(node, true);
                self.at(self.now + RESTART, Event::Happens(Step::Back(node)));
            }
            Step::Back(node) => self.back(node),
            Step::Drain(node) => self.drain(node),
            Step::Join(node) => self.nodes.0[node].state = State::Up,
            Step::Fill(node) => self.move_to(node),
        }
    }

    /// A node is lost for good.
    fn lose(&mut self, node: NodeId) {
        self.nodes.0[node].state = State::Gone;
        self.books.taken += self.nodes.0[node].used;
        for (id, place) in self.on(node) {
            self.reckon(id);
            self.hit(id);
            self.drop_copy(id, place);
            self.parts[id].mend_at = Some(self.now + self.setup.exchange);
            self.settle(id);
        }
        self.at(self.now + self.setup.exchange, Event::Mend);
    }

    /// A node does not answer, and has lost all that it had, or not.
    fn away(&mut self, node: NodeId, is_empty: bool) {
        self.nodes.0[node].state = State::Away;
        if is_empty {
            self.books.taken += self.nodes.0[node].used;
        }
        for (id, place) in self.on(node) {
            self.reckon(id);
            self.hit(id);
            let before = self.parts[id].part.clone();
            if let Some(copy) = &mut self.parts[id].part.places[place] {
                copy.up = false;
            }
            if is_empty {
                let lost = self.parts[id].part.empty(place, &mut self.nodes);
                self.lost(id, &before, place, lost);
            }
            self.settle(id);
        }
    }

    /// A node answers again.
    fn back(&mut self, node: NodeId) {
        self.nodes.0[node].state = State::Up;
        let there = self.on(node);
        for &(id, place) in &there {
            self.reckon(id);
            self.parts[id].part.back(place, &mut self.nodes);
            self.settle(id);
        }
        // Programs that have lost pages are started again.
        for (id, _) in there {
            if self.parts[id].part.pages() == 0 && !self.parts[id].gone {
                self.follow(self.parts[id].client);
            }
        }
    }

    /// Pages are lost, or not.
    pub(crate) fn lost(&mut self, id: PartId, before: &Part, place: usize, lost: Pages) {
        crate::audit::loss(before, place, lost).unwrap_or_else(|why| panic!("part {id}: {why}"));
        self.books.lost += lost;
        let client = self.parts[id].client;
        self.clients[client].lost += lost;
    }

    /// A node is to be switched off: each copy there is exchanged for another one (`farshore set PID swap+=… swap-=…`). A single space cannot be exchanged.
    fn drain(&mut self, node: NodeId) {
        self.nodes.0[node].state = State::Leaving;
        for (id, place) in self.on(node) {
            self.exchange(id, place, None);
        }
    }

    /// Exchanges a copy. With two, the new one comes first; where all places are taken, the old one goes first.
    fn exchange(&mut self, id: PartId, place: usize, to: Option<NodeId>) {
        if self.setup.copies == 1 {
            return;
        }
        self.reckon(id);
        self.hit(id);
        if self.parts[id].part.places.iter().all(Option::is_some) {
            self.drop_copy(id, place);
        } else if let Some(copy) = &mut self.parts[id].part.places[place] {
            copy.leaving = true;
        }
        self.mend(id, to);
        self.settle(id);
    }

    /// The copies that were lost long enough ago are replaced, and what was lost with them is made anew.
    pub(crate) fn mend_due(&mut self) {
        for id in 0..self.parts.len() {
            if self.parts[id].mend_at.is_some_and(|at| at <= self.now) && !self.parts[id].gone {
                self.reckon(id);
                self.mend(id, None);
                self.settle(id);
                self.follow(self.parts[id].client);
            }
        }
    }

    /// Finds nodes for the copies that a part lacks.
    fn mend(&mut self, id: PartId, to: Option<NodeId>) {
        self.parts[id].mend_at = None;
        loop {
            let part = &self.parts[id].part;
            if part.set(|copy| !copy.leaving).count_ones() as usize >= self.setup.copies {
                return;
            }
            // A copy that goes is in nobody's way but its node's.
            let beside = |copy: &Copy| (copy.node, if copy.leaving { usize::MAX } else { self.nodes.0[copy.node].rack });
            let others: Vec<(NodeId, usize)> = part.places.iter().flatten().map(beside).collect();
            let pages = self.parts[id].promised;
            let node = to.or_else(|| self.placer.place(&self.offers(), pages, &others));
            let free = self.parts[id].part.places.iter().position(Option::is_none);
            let Some((node, place)) = node.zip(free) else {
                self.parts[id].mend_at = Some(self.now + AGAIN);
                self.at(self.now + AGAIN, Event::Mend);
                return;
            };
            self.parts[id].part.places[place] = Some(Copy::new(node));
            self.promise(id, node, true);
        }
    }

    /// A copy that was exchanged goes, when the others have all.
    pub(crate) fn finish_exchange(&mut self, id: PartId) {
        let part = &self.parts[id].part;
        let leaving = part.set(|copy| copy.leaving);
        if leaving != 0 && part.is_whole(self.setup.copies) {
            crate::part::members(leaving).for_each(|place| self.drop_copy(id, place));
        }
    }

    /// A node that has joined gets copies of others, until it has what the mean of all has.
    fn move_to(&mut self, node: NodeId) {
        let up: Vec<Pages> = self.nodes.0.iter().filter(|node| node.state == State::Up).map(|node| node.promised).collect();
        let mean = up.iter().sum::<Pages>() / up.len().max(1) as Pages;
        let rack = self.nodes.0[node].rack;
        let mut ids: Vec<PartId> = (0..self.parts.len()).filter(|&id| !self.parts[id].gone).collect();
        crate::draws::Draws::new(self.setup.seed, 2).shuffle(&mut ids);
        for id in ids {
            let kept = &self.parts[id];
            let copies = || kept.part.places.iter().flatten();
            let is_settled = kept.part.is_whole(self.setup.copies) && copies().count() == self.setup.copies;
            if !is_settled || self.nodes.0[node].promised + kept.promised > mean || copies().any(|copy| copy.node == node) {
                continue;
            }
            let is_in_the_way = |place: usize| {
                kept.part
                    .places
                    .iter()
                    .enumerate()
                    .any(|(n, copy)| n != place && copy.is_some_and(|copy| self.nodes.0[copy.node].rack == rack))
            };
            // Of its copies, the one on the fullest node that may go.
            let fullness = |place: &usize| kept.part.places[*place].map(|copy| self.nodes.0[copy.node].promised);
            let from = (0..kept.part.places.len())
                .filter(|place| fullness(place).is_some_and(|promised| promised > mean))
                .filter(|&place| !self.setup.apart || !is_in_the_way(place))
                .max_by_key(fullness);
            if let Some(place) = from {
                self.exchange(id, place, Some(node));
            }
        }
    }
}
