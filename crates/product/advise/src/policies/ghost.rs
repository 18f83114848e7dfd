//! `ghost`: S3-FIFO by wishes (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023). Pages that come go through a small queue; at its
//! end they leave, so those that are used once do not push others out. A page that comes back while it is remembered stays for a time.
//!
//! A process does not see a second use of a page that is there. So leaving is the question: a page that leaves lies in RAM for a while, and a
//! rescue says that it is used. It then stays as if it had come back.

use std::collections::{HashMap, VecDeque};

use farshore_beside::{Event, Kind};

use super::DAY_MS;
use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// `small`: percent of the limit for pages that came once. `stay_ms`: how long a page that came back stays, at most.
pub const PARAMETERS: &[Parameter] = &[("small", 10, (1, 90)), ("stay_ms", 1000, (1, DAY_MS))];

/// See the head.
#[derive(Debug, Default)]
pub struct Ghost {
    /// Pages that came once, in their order, with the number of their coming.
    small: VecDeque<(u64, u64)>,
    /// The number of the coming that counts for a page of the small queue.
    queued: HashMap<u64, u64>,
    /// Pages that left, in their order, and the same by page.
    left: VecDeque<(u64, u64)>,
    ghosts: HashMap<u64, u64>,
    number: u64,
    /// Pages that came back since the last rest.
    back: Vec<u64>,
    /// Whether evictors work: without that nothing need leave.
    full: bool,
}

impl Ghost {
    fn leaves(&mut self, page: u64, most: u64) {
        self.number += 1;
        self.queued.remove(&page);
        self.ghosts.insert(page, self.number);
        self.left.push_back((page, self.number));
        while self.ghosts.len() as u64 > most || self.left.len() as u64 > 4 * most {
            let Some((page, number)) = self.left.pop_front() else { break };
            if self.ghosts.get(&page) == Some(&number) {
                self.ghosts.remove(&page);
            }
        }
    }

    fn comes(&mut self, page: u64) {
        if self.ghosts.remove(&page).is_some() {
            self.back.push(page);
            self.queued.remove(&page);
            return;
        }
        self.number += 1;
        self.queued.insert(page, self.number);
        self.small.push_back((page, self.number));
    }
}

impl Policy for Ghost {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fetched, Kind::Rescued, Kind::Evicted, Kind::Unmapped]
    }

    fn hear(&mut self, event: &Event, seen: &Seen<'_>, _say: &mut Say) {
        let first = page(event.address);
        match event.kind {
            // What came unasked was not used yet: it is neither.
            Kind::Fetched if event.detail != 0 => {}
            Kind::Fetched | Kind::Rescued => self.comes(first),
            Kind::Evicted => {
                self.full = true;
                (first..first + event.pages).for_each(|page| self.leaves(page, seen.limit));
            }
            _ => {
                for page in first..first + event.pages {
                    self.queued.remove(&page);
                    self.ghosts.remove(&page);
                }
            }
        }
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        let back = std::mem::take(&mut self.back);
        let ns = seen.value(1) * 1_000_000;
        say.each(back, |say, page, pages| say.stay_for(ns, page, pages));
        let most = (seen.limit * seen.value(0) / 100).max(1);
        let mut pages = Vec::new();
        while self.queued.len() as u64 > most
            && let Some((page, number)) = self.small.pop_front()
        {
            if self.queued.get(&page) == Some(&number) {
                self.queued.remove(&page);
                pages.push(page);
            }
        }
        if self.full {
            say.each(pages, Say::leave);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    #[test]
    fn pages_that_come_once_leave_and_those_that_come_back_stay() {
        let mut rig = Rig::new(Box::new(Ghost::default()), PARAMETERS);
        rig.of(Kind::Evicted, 5000, 3);
        // A scan, with two pages that were away in it.
        (0..150).for_each(|page| rig.of(Kind::Fetched, page, 1));
        rig.of(Kind::Fetched, 5001, 1);
        rig.rest(1);
        let all = rig.say.all();
        let of = |wanted: &dyn Fn(Wanted) -> bool| {
            let wishes = all.iter().filter(|wish| wanted(wish.wanted));
            wishes.flat_map(|wish| wish.page..wish.page + wish.pages).collect::<Vec<_>>()
        };
        assert_eq!(of(&|wanted| wanted == Wanted::Reclaim), (0..50).collect::<Vec<_>>(), "a tenth of 1000 pages came once");
        assert_eq!(of(&|wanted| matches!(wanted, Wanted::Protect { ns: 1_000_000_000 })), [5001]);
        // It leaves, and is used.
        rig.of(Kind::Evicted, 10, 1);
        rig.of(Kind::Rescued, 10, 1);
        rig.rest(1);
        assert_eq!(rig.say.all().len(), 1);
    }

    #[test]
    fn ghosts_are_as_many_as_pages_fit() {
        let mut ghost = Ghost::default();
        (0..100).for_each(|page| ghost.leaves(page, 10));
        assert_eq!(ghost.ghosts.len(), 10);
        (0..10).for_each(|_| ghost.leaves(3, 10));
        assert!(ghost.left.len() <= 40 && ghost.ghosts.contains_key(&3));
    }
}
