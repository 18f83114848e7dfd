//! `wsr`: what a lower limit drove out comes back when the limit is raised (Flexible Swapping, section 6.8): a working set that is restored by reading
//! ahead does not come back fault by fault.
//!
//! The set is what was resident when the limit fell: what is then seen in memory, and what leaves from then on. It comes back in the order of
//! its use, the most recent first, in portions; between two of them the limit and what is resident are looked at again.

use std::collections::HashMap;

use farshore_beside::{Event, Kind};

use crate::pages::{here, touched};
use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// How often pages that have not come are asked for.
const ROUNDS: u32 = 12;
const ROUND_NS: u64 = 250_000_000;
/// `portion`: pages that are asked for at a time.
pub const PARAMETERS: &[Parameter] = &[("portion", 2048, (1, 1_000_000))];

/// See the head.
#[derive(Debug, Default)]
pub struct Restore {
    limit: u64,
    squeezed: bool,
    /// The working set, with when each page was last known to be used.
    saved: HashMap<u64, u64>,
    /// What is still to come, the next last.
    to_come: Vec<u64>,
    clock: u64,
    /// How often it was asked for what has not come yet, and when that is asked for again.
    rounds: u32,
    again_ns: u64,
}

impl Restore {
    fn limit_is(&mut self, limit: u64, say: &mut Say) {
        let before = std::mem::replace(&mut self.limit, limit);
        if before == 0 || limit == before {
            return;
        }
        if limit < before {
            if !self.squeezed {
                self.saved.clear();
            }
            self.squeezed = true;
            self.to_come.clear();
            say.survey();
        } else if self.squeezed {
            self.squeezed = false;
            self.rounds = ROUNDS;
            self.again_ns = 0;
        }
    }

    /// What has not come is asked for: there was no room for it, or it was on its way out.
    fn ask_for_the_rest(&mut self, ns: u64) {
        self.rounds -= 1;
        self.again_ns = ns + ROUND_NS;
        let mut order: Vec<(u64, u64)> = self.saved.iter().map(|(&page, &used)| (used, page)).collect();
        order.sort_unstable();
        self.to_come = order.into_iter().map(|(_, page)| page).collect();
    }
}

impl Policy for Restore {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Limit, Kind::Evicted, Kind::Fetched, Kind::Rescued, Kind::Unmapped, Kind::Pages]
    }

    fn hear(&mut self, event: &Event, _seen: &Seen<'_>, say: &mut Say) {
        self.clock += 1;
        let first = page(event.address);
        match event.kind {
            Kind::Limit => self.limit_is(event.pages, say),
            // What leaves in a squeeze was there before it, or has come in it.
            Kind::Evicted if self.squeezed => {
                (first..first + event.pages).for_each(|page| _ = self.saved.entry(page).or_insert(self.clock));
            }
            Kind::Pages if self.squeezed => here(event).for_each(|page| _ = self.saved.entry(page).or_insert(self.clock)),
            Kind::Unmapped => {
                let end = first + event.pages;
                self.saved.retain(|page, _| !(first..end).contains(page));
                self.to_come.retain(|page| !(first..end).contains(page));
            }
            // It is back.
            Kind::Fetched if !self.squeezed => (first..first + event.pages).for_each(|page| _ = self.saved.remove(&page)),
            Kind::Rescued if !self.squeezed => _ = self.saved.remove(&first),
            _ => {
                if let Some(page) = touched(event).filter(|_| self.squeezed) {
                    self.saved.insert(page, self.clock);
                }
            }
        }
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        if self.limit == 0 {
            self.limit = seen.limit;
        }
        if self.to_come.is_empty() && self.rounds > 0 && seen.ns >= self.again_ns {
            self.ask_for_the_rest(seen.ns);
        }
        if self.to_come.is_empty() {
            return;
        }
        // An eighth of the limit is for pages that are on their way. What the program's state says of the limit may be older than the event.
        let room = (self.limit - self.limit / 8).saturating_sub(seen.resident);
        let count = seen.value(0).min(room).min(self.to_come.len() as u64) as usize;
        let portion = self.to_come.split_off(self.to_come.len() - count);
        say.each(portion, Say::come);
        if room == 0 {
            self.to_come.clear();
            self.rounds = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    fn squeezed() -> Rig {
        let mut rig = Rig::new(Box::new(Restore::default()), PARAMETERS);
        rig.parameters[0] = 3;
        rig.rest(1);
        rig.of(Kind::Evicted, 1, 1);
        rig.of(Kind::Limit, 0, 500);
        assert!(rig.say.take_survey());
        (10..18).for_each(|page| rig.of(Kind::Evicted, page, 1));
        rig.of(Kind::Fetched, 11, 1);
        (rig.limit, rig.resident) = (500, 400);
        rig
    }

    #[test]
    fn what_left_in_a_squeeze_comes_back_the_latest_first() {
        let mut rig = squeezed();
        rig.rest(1);
        assert_eq!(rig.say.all(), [], "not before the limit is raised");
        rig.of(Kind::Limit, 0, 1000);
        rig.limit = 1000;
        let mut came = Vec::new();
        for _ in 0..4 {
            rig.rest(1);
            came.push(rig.say.pages_of(Wanted::Prefetch));
        }
        assert_eq!(came, [vec![11, 16, 17], vec![13, 14, 15], vec![10, 12], vec![]]);
        // What has not come is asked for again.
        rig.of(Kind::Fetched, 10, 5);
        rig.of(Kind::Rescued, 16, 1);
        rig.rest(ROUND_NS);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), [15, 17]);
    }

    #[test]
    fn no_more_comes_than_fits() {
        let mut rig = squeezed();
        rig.of(Kind::Unmapped, 16, 2);
        rig.of(Kind::Limit, 0, 1000);
        (rig.limit, rig.resident) = (1000, 873);
        rig.rest(1);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), [11, 15], "two frames are left");
        rig.resident = 880;
        rig.rest(1);
        rig.resident = 0;
        rig.rest(1);
        assert_eq!(rig.say.all(), [], "once it is full it is over");
    }
}
