//! `dt`: the dt-reclaimer of Flexible Swapping, section 5.4, after Google's far memory. Time is in intervals. A page that was not used in the last
//! *threshold* of them is cold, and leaves. The threshold is the least with which at most a given part of the working set would come back
//! in an interval, by a histogram of how many intervals lay between two uses of a page; it is smoothed.
//!
//! Where uses are known from is a trait, [`Accesses`]. [`Events`] knows only those for which a page had to be mapped. So a page that is used all
//! the time looks cold, leaves, and comes back at once, mostly from RAM; this is counted, and the threshold rises. Access bits would tell without.

use std::collections::{HashMap, HashSet};

use farshore_beside::{Event, Kind};

use super::DAY_MS;
use crate::pages::{OF_RESIDENT, Resident, touched};
use crate::policy::{Parameter, Policy, Seen};
use crate::say::Say;

/// Intervals that are told apart.
const LONGEST: usize = 64;

/// `interval_ms`; `promoted`: of a thousand pages of the working set, how many may come back in an interval.
pub const PARAMETERS: &[Parameter] = &[("interval_ms", 1000, (1, DAY_MS)), ("promoted", 20, (0, 1000))];

/// Which pages are used.
pub trait Accesses {
    /// An event that may tell of it.
    fn hear(&mut self, event: &Event);
    /// An interval is over: the pages that were used in it.
    fn used(&mut self) -> HashSet<u64>;
    /// What it has to ask for, so that it can tell of the interval that begins now.
    fn ask(&mut self, _say: &mut Say) {}
}

/// Uses for which a page had to be mapped.
#[derive(Debug, Default)]
pub struct Events {
    used: HashSet<u64>,
}

impl Accesses for Events {
    fn hear(&mut self, event: &Event) {
        self.used.extend(touched(event));
    }

    fn used(&mut self) -> HashSet<u64> {
        std::mem::take(&mut self.used)
    }
}

/// See the head.
pub struct Dt {
    accesses: Box<dyn Accesses>,
    resident: Resident,
    surveyed: bool,
    /// The interval in which each page was last used.
    seen: HashMap<u64, u32>,
    interval: u32,
    ended_ns: u64,
    /// How many intervals lay between two uses: pages, in eighths; older ones count less.
    distances: [u64; LONGEST + 1],
    /// Pages of the working set, in the same measure.
    working: u64,
    threshold: f64,
}

impl Dt {
    /// With this source of accesses.
    pub fn new(accesses: Box<dyn Accesses>) -> Dt {
        Dt {
            accesses,
            resident: Resident::default(),
            surveyed: false,
            seen: HashMap::new(),
            interval: 0,
            ended_ns: 0,
            distances: [0; LONGEST + 1],
            working: 0,
            threshold: LONGEST as f64,
        }
    }

    /// The least distance beyond which at most `promoted` of a thousand pages of the working set come back.
    fn proposed(&self, promoted: u64) -> usize {
        let mut back = 0;
        let too_many = (1..=LONGEST).rev().find(|&distance| {
            back += self.distances[distance];
            back * 1000 > self.working * promoted
        });
        too_many.map_or(1, |distance| distance + 1)
    }

    fn end_interval(&mut self, promoted: u64) -> Vec<u64> {
        self.interval += 1;
        let used = self.accesses.used();
        self.distances.iter_mut().for_each(|count| *count -= *count / 8);
        self.working -= self.working / 8;
        for page in &used {
            if let Some(before) = self.seen.insert(*page, self.interval) {
                self.distances[((self.interval - before) as usize).min(LONGEST)] += 8;
            }
        }
        // What is resident and what was used is the working set, whichever is more.
        self.working += 8 * self.resident.len().max(used.len() as u64);
        self.threshold = 0.75 * self.threshold + 0.25 * self.proposed(promoted) as f64;
        let mut cold = Vec::new();
        for page in self.resident.oldest() {
            let seen = *self.seen.entry(page).or_insert(self.interval);
            if f64::from(self.interval - seen) > self.threshold {
                cold.push(page);
            }
        }
        let old = self.interval.saturating_sub(4 * LONGEST as u32);
        self.seen.retain(|_, seen| *seen >= old);
        cold
    }
}

impl Policy for Dt {
    fn hears(&self) -> &'static [Kind] {
        &OF_RESIDENT
    }

    fn hear(&mut self, event: &Event, _seen: &Seen<'_>, _say: &mut Say) {
        self.resident.hear(event);
        self.accesses.hear(event);
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        if !std::mem::replace(&mut self.surveyed, true) {
            say.survey();
            self.accesses.ask(say);
            self.ended_ns = seen.ns;
        }
        if seen.ns.saturating_sub(self.ended_ns) < seen.value(0) * 1_000_000 {
            return;
        }
        self.ended_ns = seen.ns;
        let cold = self.end_interval(seen.value(1));
        say.each(cold, Say::leave);
        self.accesses.ask(say);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    const INTERVAL: u64 = 1_000_000_000;

    #[test]
    fn what_is_not_used_leaves_and_what_is_used_does_not() {
        let mut rig = Rig::new(Box::new(Dt::new(Box::<Events>::default())), PARAMETERS);
        rig.rest(0);
        assert!(rig.say.take_survey());
        (0..1000).for_each(|page| rig.fault(page));
        let mut left = Vec::new();
        for _ in 0..40 {
            (0..300).for_each(|page| rig.fault(page));
            rig.rest(INTERVAL);
            left.extend(rig.say.pages_of(Wanted::Reclaim));
        }
        left.sort_unstable();
        left.dedup();
        assert_eq!(left, (300..1000).collect::<Vec<_>>());
    }

    #[test]
    fn an_interval_that_is_nonsense_is_the_longest() {
        let mut rig = Rig::new(Box::new(Dt::new(Box::<Events>::default())), PARAMETERS);
        // A factor of a million makes it 0, if it wraps.
        rig.parameters[0] = 1 << 58;
        rig.rest(0);
        (0..10).for_each(|page| rig.fault(page));
        (0..200).for_each(|_| rig.rest(INTERVAL));
        assert_eq!(rig.say.pages_of(Wanted::Reclaim), [0; 0]);
    }

    #[test]
    fn pages_that_come_back_raise_the_threshold() {
        let mut dt = Dt::new(Box::<Events>::default());
        let fault = |dt: &mut Dt, page: u64| {
            let event = Event::new(Kind::Fault, page * 4096, 1);
            dt.resident.hear(&event);
            dt.accesses.hear(&event);
        };
        (0..1000).for_each(|page| fault(&mut dt, page));
        (0..40).for_each(|_| _ = dt.end_interval(20));
        assert!(dt.threshold < 2.0, "nothing comes back: {}", dt.threshold);
        // A tenth comes back after ten intervals, again and again.
        for round in 0..200 {
            (0..10).for_each(|n| fault(&mut dt, round % 10 * 10 + n));
            dt.end_interval(20);
        }
        assert_eq!(dt.proposed(20), 1, "a hundredth in an interval is fine");
        assert_eq!(dt.proposed(5), 11, "and too many if a two-hundredth is wanted");
    }
}
