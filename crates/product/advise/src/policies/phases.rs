//! `sys-agg`: the policy of Flexible Swapping, section 6.7, for programs that work in phases. When the rate of faults jumps, a phase begins: all that is
//! resident is old, and leaves a part at a time. What is touched meanwhile is of the new phase, and stays.
//!
//! There access bits take pages out of the old set. Here touches are seen where a page was away: a page that leaves and is used
//! comes back from RAM, and is not old any more.

use std::collections::VecDeque;

use farshore_beside::{Event, Kind};

use crate::pages::{OF_RESIDENT, Resident, touched};
use crate::policy::{Parameter, Policy, Seen};
use crate::say::Say;

/// Rates are looked at as often.
const TICK_NS: u64 = 100_000_000;
/// Slower rates than this do not begin a phase, faults in a tick.
const LEAST: f64 = 20.0;

/// `jump`: how many times the rate before. `part`: of a thousand old pages, how many leave in a second.
pub const PARAMETERS: &[Parameter] = &[("jump", 3, (1, 1000)), ("part", 250, (1, 1000))];

/// See the head.
#[derive(Debug, Default)]
pub struct Phases {
    resident: Resident,
    surveyed: bool,
    ticked_ns: u64,
    faults: u64,
    mean: f64,
    /// Pages of the phase before, the oldest first; none when no phase begins.
    old: VecDeque<u64>,
    /// How many leave in a tick.
    a_tick: usize,
    /// Pages that were touched since the phase began.
    young: std::collections::HashSet<u64>,
}

impl Phases {
    fn tick(&mut self, seen: &Seen<'_>) {
        let rate = std::mem::take(&mut self.faults) as f64;
        if self.old.is_empty() && rate > LEAST && rate > self.mean * seen.value(0) as f64 {
            self.young.clear();
            self.old = self.resident.oldest().collect();
            self.a_tick = self.old.len() * seen.value(1) as usize / 10_000 + 1;
        }
        self.mean += (rate - self.mean) / 16.0;
    }
}

impl Policy for Phases {
    fn hears(&self) -> &'static [Kind] {
        &OF_RESIDENT
    }

    fn hear(&mut self, event: &Event, _seen: &Seen<'_>, _say: &mut Say) {
        self.resident.hear(event);
        self.faults += u64::from(event.kind == Kind::Fault);
        if let Some(page) = touched(event).filter(|_| !self.old.is_empty()) {
            self.young.insert(page);
        }
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        if !std::mem::replace(&mut self.surveyed, true) {
            say.survey();
            self.ticked_ns = seen.ns;
        }
        if seen.ns.saturating_sub(self.ticked_ns) < TICK_NS {
            return;
        }
        self.ticked_ns = seen.ns;
        self.tick(seen);
        let mut pages = Vec::new();
        while pages.len() < self.a_tick
            && let Some(page) = self.old.pop_front()
        {
            if self.resident.has(page) && !self.young.contains(&page) {
                pages.push(page);
            }
        }
        say.each(pages, Say::leave);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    #[test]
    fn pages_of_the_phase_before_leave() {
        let mut rig = Rig::new(Box::new(Phases::default()), PARAMETERS);
        rig.parameters[1] = 1000;
        rig.rest(0);
        assert!(rig.say.take_survey());
        (0..300).for_each(|page| rig.fault(page));
        // The first faults of all are no phase's end: nothing is older.
        rig.rest(TICK_NS);
        rig.say.all();
        for _ in 0..60 {
            rig.fault(0);
            rig.rest(TICK_NS);
        }
        rig.say.all();
        (1000..1100).for_each(|page| rig.fault(page));
        rig.fault(7);
        let mut left = Vec::new();
        for _ in 0..12 {
            rig.rest(TICK_NS);
            left.extend(rig.say.pages_of(Wanted::Reclaim));
            // In use.
            rig.fault(9);
        }
        assert!(left.contains(&8) && left.contains(&299), "{left:?}");
        let young = left.iter().filter(|page| **page > 299).count();
        assert!(young < left.len() / 2, "old pages leave first: {left:?}");
        rig.rest(TICK_NS);
        assert_eq!(rig.say.pages_of(Wanted::Reclaim), [0; 0], "the phase has begun");
    }

    #[test]
    fn an_even_rate_is_one_phase() {
        let mut rig = Rig::new(Box::new(Phases::default()), PARAMETERS);
        let mut left = 0;
        for tick in 0..200 {
            (0..50).for_each(|page| rig.fault(tick * 50 + page));
            rig.rest(TICK_NS);
            // The first rates have nothing before them.
            let now = rig.say.pages_of(Wanted::Reclaim).len();
            left += if tick > 60 { now } else { 0 };
        }
        assert_eq!(left, 0);
    }
}
