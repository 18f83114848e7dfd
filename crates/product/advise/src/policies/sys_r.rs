//! `sys-r`: SYS-R of Flexible Swapping, section 6.5. A page's estimated reuse time is what faults by the same instruction have shown: how many pages
//! come between two times that one comes. The page whose time is farthest away, ahead or overdue, leaves.
//!
//! There the policy is asked for each victim. Here evictors choose when frames are short, so this policy is ahead of them: once memory is full,
//! it wishes one page to leave for each that comes, and a little more while evictors still find work of their own.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use farshore_beside::{Event, Kind};

use crate::pages::here;
use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// Pages that are remembered at most, besides those that are resident.
const REMEMBERED: usize = 1 << 20;
/// Pages that do not leave, since they have only just come.
const RECENT: usize = 64;
/// Instructions that are remembered at most.
const INSTRUCTIONS: usize = 1 << 16;

/// `spare`: the most pages of a thousand of the limit that it keeps free, so that evictors need not choose.
pub const PARAMETERS: &[Parameter] = &[("spare", 60, (0, 500))];

/// See the head.
#[derive(Debug, Default)]
pub struct SysR {
    /// When each resident page is due.
    due: HashMap<u64, i64>,
    order: BTreeSet<(i64, u64)>,
    /// Pages that came last: they are in use, whenever they are due next.
    recent: VecDeque<(u64, i64)>,
    /// When each page last came.
    came: HashMap<u64, i64>,
    /// The reuse distance of each instruction's pages.
    learned: HashMap<u64, f64>,
    /// Pages that have come so far: the time.
    now: i64,
    /// Where the last fault was.
    instruction: u64,
    /// Pages that are wished to leave, and have not yet.
    leaving: HashSet<u64>,
    full: Full,
}

/// How many pages memory holds before evictors choose for themselves.
#[derive(Debug, Default)]
pub struct Full {
    /// Resident pages when they first did so; 0: they have not yet.
    first: u64,
    less: u64,
}

impl Full {
    /// Evictors have chosen `pages` themselves, while `resident` were there.
    pub fn chose(&mut self, pages: u64, resident: u64) {
        if self.first == 0 {
            self.first = resident;
        }
        self.less += pages.div_ceil(8);
    }

    /// How many of `there` pages are too many.
    pub fn too_many(&mut self, there: u64, spare: u64) -> u64 {
        if self.first == 0 {
            return 0;
        }
        self.less = self.less.min(self.first * spare.min(500) / 1000);
        there.saturating_sub(self.first - self.less)
    }

    /// The limit is another.
    pub fn forget(&mut self) {
        *self = Full::default();
    }
}

impl SysR {
    fn put(&mut self, page: u64, due: i64) {
        self.take(page);
        self.due.insert(page, due);
        self.recent.push_back((page, due));
        while self.recent.len() > RECENT {
            let Some((page, due)) = self.recent.pop_front() else { break };
            if self.due.get(&page) == Some(&due) {
                self.order.insert((due, page));
            }
        }
    }

    fn take(&mut self, page: u64) -> bool {
        let due = self.due.remove(&page);
        due.is_some_and(|due| self.order.remove(&(due, page)))
    }

    /// A page has come, or is about to, by this instruction.
    fn comes(&mut self, page: u64, limit: u64) {
        let instruction = self.instruction;
        self.now += 1;
        if let Some(came) = self.came.insert(page, self.now) {
            let seen = (self.now - came) as f64;
            let mean = self.learned.entry(instruction).or_insert(seen);
            *mean += (seen - *mean) / 8.0;
        }
        if self.came.len() > REMEMBERED {
            let old = self.now - REMEMBERED as i64 / 2;
            self.came.retain(|_, came| *came > old);
        }
        if self.learned.len() > INSTRUCTIONS {
            self.learned.clear();
        }
        let distance = self.learned.get(&instruction).map_or(limit as i64, |distance| *distance as i64);
        self.put(page, self.now + distance);
    }

    /// The page that is due last, or overdue the longest.
    fn worst(&self) -> Option<u64> {
        let (first, last) = (self.order.first()?, self.order.last()?);
        Some(if (self.now - first.0).abs() > (last.0 - self.now).abs() { first.1 } else { last.1 })
    }
}

impl Policy for SysR {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fault, Kind::Fetched, Kind::Rescued, Kind::Evicted, Kind::Limit, Kind::Unmapped, Kind::Pages]
    }

    fn hear(&mut self, event: &Event, seen: &Seen<'_>, _say: &mut Say) {
        /// A write to a page that is there.
        const PROTECTED: u8 = 2;
        let first = page(event.address);
        match event.kind {
            Kind::Fault if event.detail & PROTECTED != 0 => {}
            Kind::Fault => {
                self.leaving.remove(&first);
                self.instruction = event.more[0];
                self.comes(first, seen.limit);
            }
            // What comes unasked comes for the code that has just faulted.
            Kind::Fetched => {
                for page in first..first + event.pages {
                    if !self.due.contains_key(&page) {
                        self.comes(page, seen.limit);
                    }
                }
            }
            Kind::Evicted => {
                let mut unwished = 0;
                for page in first..first + event.pages {
                    self.take(page);
                    unwished += u64::from(!self.leaving.remove(&page));
                }
                if unwished > 0 {
                    let there = self.due.len() as u64 + unwished + self.leaving.len() as u64;
                    self.full.chose(unwished, there);
                }
            }
            Kind::Limit => self.full.forget(),
            Kind::Unmapped => {
                for page in first..first + event.pages {
                    self.take(page);
                    self.leaving.remove(&page);
                    self.came.remove(&page);
                }
            }
            Kind::Pages => {
                for page in here(event) {
                    if !self.due.contains_key(&page) {
                        self.put(page, self.now + seen.limit as i64);
                    }
                }
            }
            _ => {}
        }
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        let too_many = self.full.too_many(self.due.len() as u64, seen.value(0));
        let mut pages = Vec::new();
        while (pages.len() as u64) < too_many
            && let Some(page) = self.worst()
        {
            self.take(page);
            self.leaving.insert(page);
            pages.push(page);
        }
        say.each(pages, Say::leave);
        // A wish of which nothing came, since the page was away already.
        if self.leaving.len() as u64 > seen.limit {
            self.leaving.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    #[test]
    fn the_page_leaves_that_is_due_last() {
        let mut rig = Rig::new(Box::new(SysR::default()), PARAMETERS);
        // Instruction 1 comes back to its pages soon, instruction 2 late.
        for round in 0..20 {
            (0..4).for_each(|page| rig.fault_by(page, 1, 1));
            rig.fault_by(100 + round % 10, 2, 1);
        }
        rig.rest(1);
        assert_eq!(rig.say.all(), [], "memory is not full");
        rig.of(Kind::Evicted, 500, 1);
        rig.fault_by(0, 1, 1);
        rig.fault_by(200, 2, 1);
        rig.fault_by(201, 2, 1);
        // Just come, so they stay.
        (0..RECENT as u64).for_each(|n| rig.fault_by(n % 4, 1, 1));
        rig.rest(1);
        let left = rig.say.pages_of(Wanted::Reclaim);
        assert!(left.len() == 1 && left[0] >= 100, "{left:?}");
        let before = left[0];
        rig.of(Kind::Evicted, before, 1);
        rig.rest(1);
        assert_eq!(rig.say.all(), [], "what it wished is no choice of the evictors");
    }

    #[test]
    fn it_makes_room_while_evictors_choose_themselves_and_not_without_end() {
        let mut full = Full::default();
        assert_eq!(full.too_many(1000, 60), 0);
        full.chose(8, 100);
        assert_eq!(full.too_many(100, 60), 1);
        (0..100).for_each(|_| full.chose(8, 100));
        assert_eq!((full.too_many(100, 60), full.too_many(90, 60)), (6, 0));
    }
}
