//! `sys-r`: SYS-R of Flexible Swapping, section 6.5. When a page is used again is estimated by what faults of the same instruction have shown; the page
//! that is due last leaves.
//!
//! There the policy is asked for each victim. Here it says in advance what it would answer ([`Reuse`]), and evictors choose by that when frames
//! are short: late pages first, while others are passed over.
//!
//! What it learns from is different, too. There a reuse distance is how many pages come between two times that one comes. But a page that is
//! there is used unseen, so of one that is used all the time that distance is as long as evictors leave it alone. Here it is how many pages
//! come between a page's leaving and its coming back: what it would have cost to keep it. A page that is used all the time comes back at once.
//!
//! A page that has left before has a distance of its own. The estimate is the mean of both, by their logarithms, since distances of one
//! instruction lie between 1 and the size of memory.

use std::collections::{HashMap, VecDeque};

use farshore_beside::{Event, Kind, Reuse};

use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// Pages that have left are remembered: so many at most.
const REMEMBERED: usize = 1 << 20;
/// Instructions that are remembered at most.
const INSTRUCTIONS: usize = 1 << 16;

/// `recent`: nothing is said of the pages that came last, so many of a thousand of the limit, since they are in use.
pub const PARAMETERS: &[Parameter] = &[("recent", 60, (1, 500))];

/// See the head.
#[derive(Debug, Default)]
pub struct SysR {
    /// Pages that have come so far: the time.
    now: u64,
    /// When each page left.
    left: HashMap<u64, u64>,
    /// The mean distance of each instruction's pages, as a logarithm.
    learned: HashMap<u64, f64>,
    /// Where the last fault was.
    instruction: u64,
    /// Pages that came last, with what is to be said of them.
    recent: VecDeque<(u64, Reuse)>,
}

/// When a page is expected that comes back after such a distance (a logarithm), with so many pages of memory.
fn reuse(distance: f64, limit: u64) -> Reuse {
    let part = distance.exp() / limit.max(1) as f64;
    if part >= 0.5 {
        Reuse::Late
    } else if part >= 0.25 {
        Reuse::Unknown
    } else if part >= 0.0625 {
        Reuse::Soon
    } else {
        Reuse::Next
    }
}

impl SysR {
    /// A page has come, or is about to, by the instruction of the last fault.
    fn comes(&mut self, page: u64, limit: u64) {
        self.now += 1;
        let own = self.left.remove(&page).map(|left| ((1 + self.now - left) as f64).ln());
        let learned = match (own, self.learned.get_mut(&self.instruction)) {
            (Some(own), Some(mean)) => {
                *mean += (own - *mean) / 8.0;
                Some(*mean)
            }
            (Some(own), None) => {
                if self.learned.len() == INSTRUCTIONS {
                    self.learned.clear();
                }
                self.learned.insert(self.instruction, own);
                Some(own)
            }
            (None, mean) => mean.copied(),
        };
        let estimate = learned.map(|learned| (learned + own.unwrap_or(learned)) / 2.0);
        self.recent.push_back((page, estimate.map_or(Reuse::Unknown, |distance| reuse(distance, limit))));
    }

    fn leaves(&mut self, page: u64) {
        if self.left.len() == REMEMBERED {
            let mut times: Vec<u64> = self.left.values().copied().collect();
            let (_, middle, _) = times.select_nth_unstable(REMEMBERED / 2);
            let middle = *middle;
            self.left.retain(|_, left| *left > middle);
        }
        self.left.insert(page, self.now);
    }
}

impl Policy for SysR {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fault, Kind::Fetched, Kind::Evicted, Kind::Unmapped]
    }

    fn hear(&mut self, event: &Event, seen: &Seen<'_>, _say: &mut Say) {
        /// A write to a page that is there.
        const PROTECTED: u8 = 2;
        let first = page(event.address);
        let pages = first..first + event.pages;
        match event.kind {
            Kind::Fault if event.detail & PROTECTED == 0 => {
                self.instruction = event.more[0];
                self.comes(first, seen.limit);
            }
            // What comes unasked comes for the code that has just faulted.
            Kind::Fetched if event.detail != 0 => pages.for_each(|page| self.comes(page, seen.limit)),
            Kind::Evicted => pages.for_each(|page| self.leaves(page)),
            Kind::Unmapped => pages.for_each(|page| _ = self.left.remove(&page)),
            _ => {}
        }
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        let most = (seen.limit * seen.value(0) / 1000) as usize;
        let told: Vec<(u64, Reuse)> = self.recent.drain(..self.recent.len().saturating_sub(most)).collect();
        // Also what is not known: an estimate of before may wait for the page.
        for which in Reuse::ALL {
            let pages = told.iter().filter(|(_, reuse)| *reuse == which).map(|(page, _)| *page).collect();
            say.each(pages, |say, page, pages| say.expect(which, page, pages));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    /// What was said last of each page.
    fn said(rig: &mut Rig) -> HashMap<u64, Reuse> {
        let mut last = HashMap::new();
        for wish in rig.say.all() {
            let Wanted::Expect { reuse } = wish.wanted else { panic!("{wish:?}") };
            (wish.page..wish.page + wish.pages).for_each(|page| _ = last.insert(page, reuse));
        }
        last
    }

    #[test]
    fn what_comes_back_late_leaves_first() {
        let mut rig = Rig::new(Box::new(SysR::default()), PARAMETERS);
        (rig.limit, rig.parameters[0]) = (1000, 1);
        // Instruction 2 goes round through 1600 pages of which 1000 fit; pages of instruction 1 come back at once.
        for round in 0..4 {
            for page in 0..1600 {
                rig.fault_by(10_000 + page, 2, 1);
                if round > 0 || page >= 1000 {
                    rig.of(Kind::Evicted, 10_000 + (page + 600) % 1600, 1);
                }
                if page % 100 == 0 {
                    rig.of(Kind::Evicted, page / 100, 1);
                    rig.fault_by(page / 100, 1, 1);
                }
            }
            rig.rest(1);
        }
        let said = said(&mut rig);
        assert!((0..15).all(|page| said[&page] == Reuse::Next), "{:?}", said[&3]);
        assert!((10_000..11_500).all(|page| said[&page] == Reuse::Late), "{:?}", said[&10_003]);
        // Of a page that has never left, what is known of its instruction is said.
        rig.fault_by(20_000, 2, 1);
        rig.fault_by(20_001, 1, 1);
        rig.fault_by(20_002, 3, 1);
        rig.fault_by(1, 9, 1);
        rig.rest(1);
        let said = self::said(&mut rig);
        assert_eq!([20_000, 20_001, 20_002].map(|page| said[&page]), [Reuse::Late, Reuse::Next, Reuse::Unknown]);
        assert!(!said.contains_key(&1), "it has only just come");
    }

    #[test]
    fn a_page_that_comes_back_at_once_is_soon_whatever_its_instruction_says() {
        let known = SysR { learned: HashMap::from([(7, 4000_f64.ln())]), instruction: 7, ..SysR::default() };
        let mut rig = Rig::new(Box::new(known), PARAMETERS);
        (rig.limit, rig.parameters[0]) = (8000, -1);
        rig.of(Kind::Evicted, 5, 1);
        rig.fault_by(5, 7, 1);
        (0..8).for_each(|n| rig.fault_by(100 + n, 7, 1));
        rig.rest(1);
        assert_eq!(said(&mut rig)[&5], Reuse::Next);
    }

    #[test]
    fn what_has_left_is_remembered_within_bounds() {
        let mut policy = SysR::default();
        for page in 0..REMEMBERED as u64 + 10 {
            policy.now += 1;
            policy.leaves(page);
        }
        assert!(policy.left.len() <= REMEMBERED && policy.left.contains_key(&(REMEMBERED as u64)));
        assert!(!policy.left.contains_key(&0), "the oldest are forgotten");
    }

    #[test]
    fn parts_of_memory_are_told_apart() {
        let of = |distance: f64| reuse(distance.ln(), 1600);
        assert_eq!([1.0, 99.0, 101.0, 399.0].map(of), [Reuse::Next, Reuse::Next, Reuse::Soon, Reuse::Soon]);
        assert_eq!([401.0, 799.0, 801.0, 1e9].map(of), [Reuse::Unknown, Reuse::Unknown, Reuse::Late, Reuse::Late]);
        assert_eq!(reuse(0.0, 0), Reuse::Late, "no limit is known yet");
    }
}
