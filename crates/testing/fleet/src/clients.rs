//! Clients: programs that start, need more or less memory, and end.

use crate::fleet::{ClientId, Event, Fleet, Kept, PartId};
use crate::part::{Copy, Pages};
use crate::setup::{GIB, SECOND, Time};

/// The standard deviation of the logarithm by which what a client needs changes.
const SWING: f64 = 0.3;
/// A client needs between a part and a multiple of the mean.
const LEAST: f64 = 1.0 / 64.0;
const MOST: f64 = 16.0;

fn after(seconds: f64) -> Time {
    ((seconds * SECOND as f64) as Time).max(1)
}

impl Fleet {
    /// A client's program starts.
    pub(crate) fn start(&mut self, client: ClientId) {
        let (mean, skew) = (self.setup.need as f64, self.setup.skew);
        let it = &mut self.clients[client];
        it.base = mean * it.draws.skewed(skew).clamp(LEAST, MOST);
        it.life += 1;
        let next = after(it.draws.exponential(self.setup.life));
        self.at(self.now + next, Event::Renew(client));
        self.change(client);
    }

    /// A program ends, and another one starts.
    pub(crate) fn renew(&mut self, client: ClientId) {
        for id in std::mem::take(&mut self.clients[client].parts) {
            self.remove(id);
        }
        self.repair_next(client);
        self.start(client);
    }

    /// A client needs more or less than before.
    pub(crate) fn change(&mut self, client: ClientId) {
        let it = &mut self.clients[client];
        it.need = ((it.base * it.draws.skewed(SWING)) as Pages).max(1);
        let (next, life) = (after(it.draws.exponential(self.setup.change)), it.life);
        self.at(self.now + next, Event::Change(client, life));
        self.follow(client);
    }

    /// A client's parts become as large as what it needs.
    pub(crate) fn follow(&mut self, client: ClientId) {
        let pages: Pages = self.clients[client].parts.iter().map(|&id| self.parts[id].part.pages()).sum();
        let need = self.clients[client].need;
        if need >= pages { self.fill(client, need - pages) } else { self.shrink(client, pages - need) }
    }

    /// More pages: first in the parts that are there. What finds no room stays with the client, which asks again at its next change.
    fn fill(&mut self, client: ClientId, mut pages: Pages) {
        let most = self.setup.part.unwrap_or(Pages::MAX);
        for id in self.clients[client].parts.clone() {
            let some = pages.min(most - self.parts[id].part.pages().min(most));
            if some > 0 {
                self.reckon(id);
                let rest = self.parts[id].part.grow(some, &mut self.nodes);
                self.books.born += some - rest;
                pages -= some - rest;
                self.settle(id);
            }
        }
        while pages > 0 && (self.setup.part.is_some() || self.clients[client].parts.is_empty()) {
            let some = pages.min(most);
            let Some(id) = self.place(client, some) else { return };
            let rest = self.parts[id].part.grow(some, &mut self.nodes);
            self.books.born += some - rest;
            pages -= some - rest;
            self.settle(id);
            // Nodes have promised more than they have: the next part fares no better.
            if rest > 0 {
                return;
            }
        }
    }

    /// A new part for so many pages, without a page.
    fn place(&mut self, client: ClientId, pages: Pages) -> Option<PartId> {
        let mut kept = Kept { client, since: self.now, share: 1.0, ..Kept::default() };
        let mut others = Vec::new();
        let offers = self.offers();
        for place in 0..self.setup.copies {
            let node = self.placer.place(&offers, pages, &others)?;
            others.push((node, self.nodes.0[node].rack));
            kept.part.places[place] = Some(Copy::new(node));
        }
        let id = self.unused.pop().unwrap_or_else(|| {
            self.parts.push(Kept::default());
            self.parts.len() - 1
        });
        self.parts[id].become_new(kept);
        self.clients[client].parts.push(id);
        Some(id)
    }

    /// Fewer pages: of the last parts.
    fn shrink(&mut self, client: ClientId, mut pages: Pages) {
        while pages > 0 {
            let Some(&id) = self.clients[client].parts.last() else { return };
            let there = self.parts[id].part.pages();
            if there <= pages && self.clients[client].parts.len() > 1 {
                self.clients[client].parts.pop();
                self.remove(id);
                pages -= there;
                continue;
            }
            let some = pages.min(there);
            self.reckon(id);
            self.parts[id].part.shrink(some, &mut self.nodes);
            self.books.freed += some;
            self.settle(id);
            return;
        }
    }

    /// A part is given up, with all of its pages. Its client does not have it any more.
    fn remove(&mut self, id: PartId) {
        self.reckon(id);
        self.books.freed += self.parts[id].part.pages();
        self.parts[id].gone = true;
        self.parts[id].part.have = Default::default();
        for place in 0..self.parts[id].part.places.len() {
            self.drop_copy(id, place);
        }
        self.settle(id);
        self.parts[id].mend_at = None;
        self.unused.push(id);
    }

    /// A copy goes, with all that it has.
    pub(crate) fn drop_copy(&mut self, id: PartId, place: usize) {
        let Some(copy) = self.parts[id].part.places[place] else { return };
        self.promise(id, copy.node, false);
        let before = self.parts[id].part.clone();
        let lost = self.parts[id].part.leave(place, &mut self.nodes);
        self.lost(id, &before, place, lost);
    }

    /// Pages that clients need and that found no room, in GiB.
    #[must_use]
    pub fn homeless(&self) -> f64 {
        let of = |client: &crate::fleet::Client| {
            let pages: Pages = client.parts.iter().map(|&id| self.parts[id].part.pages()).sum();
            client.need - pages.min(client.need)
        };
        self.clients.iter().map(of).sum::<Pages>() as f64 / GIB as f64
    }
}
