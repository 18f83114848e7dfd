//! `dt`: the dt-reclaimer of Flexible Swapping, section 5.4, after Google's far memory. Time is in intervals. A piece of memory that was not used in the
//! last *threshold* of them is cold, and its pages leave. The threshold is the least with which at most a given part of the working set would come back
//! in an interval, by a histogram of how many intervals lay between two uses of a piece; it is smoothed.
//!
//! There access bits tell of each page. Here a trait, [`Accesses`], tells of pieces of [`PIECE`] pages, and [`Scans`] is what implements it: it looks at
//! a few pages of each.

use std::collections::HashMap;

use farshore_beside::{Event, Kind};

use super::DAY_MS;
use super::scans::{LOOKS_MOST, Scans};
use crate::pages::Resident;
use crate::policy::{Parameter, Policy, Seen};
use crate::say::Say;

/// Pages of a piece of memory: 2 MiB.
pub const PIECE: u64 = 512;
/// Intervals that are told apart.
const LONGEST: usize = 64;

/// `interval_ms`; `promoted`: of a thousand pages of the working set, how many may come back in an interval; `looks`: pages of 2 MiB that are looked at in
/// an interval, at most (0: what is used is known by faults alone).
pub const PARAMETERS: &[Parameter] =
    &[("interval_ms", 1000, (1, DAY_MS)), ("promoted", 20, (0, 1000)), ("looks", 4, (0, LOOKS_MOST))];

/// Which memory is used.
pub trait Accesses {
    /// The kinds of events that it hears.
    fn hears(&self) -> &'static [Kind];
    /// An event that may tell of it.
    fn hear(&mut self, event: &Event);
    /// An interval of `ns` begins, in which up to `looks` pages of each piece may be looked at.
    fn begin(&mut self, ns: u64, looks: u64, resident: &Resident);
    /// Asks what it has to know; called some 50 times a second.
    fn ask(&mut self, now_ns: u64, say: &mut Say);
    /// The interval is over: of the pieces of which it is known, how many pages were used in it. What was sent away for it and not used comes
    /// back, where `stays` says that the piece does.
    fn end(&mut self, resident: &Resident, stays: &dyn Fn(u64) -> bool, say: &mut Say) -> HashMap<u64, u64>;
}

/// See the head.
pub struct Dt {
    accesses: Box<dyn Accesses>,
    resident: Resident,
    surveyed: bool,
    /// For how many intervals each piece was not used.
    idle: HashMap<u64, u32>,
    ended_ns: u64,
    /// How many intervals lay between two uses: pages, in eighths; older ones count less.
    distances: [u64; LONGEST + 1],
    /// Pages of the working set, in the same measure.
    working: u64,
    threshold: f64,
}

impl Default for Dt {
    fn default() -> Dt {
        Dt::new(Box::<Scans>::default())
    }
}

fn is_cold(idle: &HashMap<u64, u32>, threshold: f64, piece: u64) -> bool {
    idle.get(&piece).is_some_and(|idle| f64::from(*idle) > threshold)
}

impl Dt {
    /// With this source of accesses.
    pub fn new(accesses: Box<dyn Accesses>) -> Dt {
        Dt {
            accesses,
            resident: Resident::default(),
            surveyed: false,
            idle: HashMap::new(),
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

    /// An interval is over. Which pages are cold.
    fn end_interval(&mut self, promoted: u64, say: &mut Say) -> Vec<u64> {
        let (idle, threshold) = (&self.idle, self.threshold);
        let shown = self.accesses.end(&self.resident, &|piece| !is_cold(idle, threshold, piece), say);
        self.distances.iter_mut().for_each(|count| *count -= *count / 8);
        self.working -= self.working / 8;
        // What is away, and of which nothing was heard, was not used.
        let is_away = |piece: u64| self.resident.of(piece * PIECE..(piece + 1) * PIECE).next().is_none();
        self.idle
            .iter_mut()
            .filter(|(piece, _)| !shown.contains_key(*piece) && is_away(**piece))
            .for_each(|(_, idle)| *idle += 1);
        for (&piece, &used) in &shown {
            let known = self.idle.insert(piece, 0);
            match known {
                Some(idle) if used > 0 => self.distances[(idle as usize + 1).min(LONGEST)] += 8 * used,
                Some(idle) => _ = self.idle.insert(piece, idle + 1),
                None => {}
            }
        }
        // What is resident and what was used is the working set, whichever is more.
        self.working += 8 * self.resident.len().max(shown.values().sum());
        self.threshold = 0.75 * self.threshold + 0.25 * self.proposed(promoted) as f64;
        self.idle.retain(|_, idle| *idle <= 4 * LONGEST as u32);
        self.resident.of(0..u64::MAX).filter(|page| is_cold(&self.idle, self.threshold, page / PIECE)).collect()
    }
}

impl Policy for Dt {
    fn hears(&self) -> &'static [Kind] {
        self.accesses.hears()
    }

    fn hear(&mut self, event: &Event, _seen: &Seen<'_>, _say: &mut Say) {
        self.resident.hear(event);
        self.accesses.hear(event);
    }

    fn rest(&mut self, seen: &Seen<'_>, say: &mut Say) {
        let (interval_ns, looks) = (seen.value(0) * 1_000_000, seen.value(2));
        if !std::mem::replace(&mut self.surveyed, true) {
            say.survey();
            self.accesses.begin(interval_ns, looks, &self.resident);
            self.ended_ns = seen.ns;
        }
        if seen.ns.saturating_sub(self.ended_ns) >= interval_ns {
            self.ended_ns = seen.ns;
            let cold = self.end_interval(seen.value(1), say);
            say.each(cold, Say::leave);
            self.accesses.begin(interval_ns, looks, &self.resident);
        }
        self.accesses.ask(seen.ns, say);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use crate::pages::OF_RESIDENT;
    use farshore_beside::{PAGE, Wanted};
    use std::cell::RefCell;
    use std::rc::Rc;

    const INTERVAL: u64 = 1_000_000_000;

    /// Says what it is told to.
    #[derive(Default)]
    struct Told(Rc<RefCell<HashMap<u64, u64>>>);

    impl Accesses for Told {
        fn hears(&self) -> &'static [Kind] {
            &OF_RESIDENT
        }
        fn hear(&mut self, _: &Event) {}
        fn begin(&mut self, _: u64, _: u64, _: &Resident) {}
        fn ask(&mut self, _: u64, _: &mut Say) {}
        fn end(&mut self, _: &Resident, _: &dyn Fn(u64) -> bool, _: &mut Say) -> HashMap<u64, u64> {
            self.0.take()
        }
    }

    #[test]
    fn what_comes_back_raises_the_threshold() {
        let shown = Rc::new(RefCell::new(HashMap::new()));
        let mut dt = Dt::new(Box::new(Told(Rc::clone(&shown))));
        let mut say = Say::default();
        dt.resident.hear(&Event::new(Kind::Fetched, 0, 10 * PIECE));
        let mut interval = |dt: &mut Dt, used: &dyn Fn(u64) -> u64| {
            *shown.borrow_mut() = (0..10).map(|piece| (piece, used(piece))).collect();
            dt.end_interval(20, &mut say)
        };
        (0..40).for_each(|_| _ = interval(&mut dt, &|piece| u64::from(piece == 0) * PIECE));
        assert!(dt.threshold < 2.1, "one piece is used all the time, the others never: {}", dt.threshold);
        assert_eq!(interval(&mut dt, &|piece| u64::from(piece == 0)), (PIECE..10 * PIECE).collect::<Vec<_>>());
        // 51 pages of a piece of their own in each interval, each piece every tenth: a hundredth of the working set.
        (0..200).for_each(|n| _ = interval(&mut dt, &|piece| u64::from(piece == n % 10) * 51));
        assert_eq!(dt.proposed(20), 1, "a hundredth in an interval is fine");
        assert_eq!(dt.proposed(5), 11, "and too many if a two-hundredth is wanted");
    }

    #[test]
    fn an_interval_that_is_nonsense_is_the_longest() {
        let mut rig = Rig::new(Box::new(Dt::default()), PARAMETERS);
        // A factor of a million makes it 0, if it wraps.
        rig.parameters[0] = 1 << 58;
        rig.rest(0);
        (0..10).for_each(|page| rig.fault(page));
        (0..200).for_each(|_| rig.rest(INTERVAL));
        assert_eq!(rig.say.pages_of(Wanted::Reclaim), [0; 0]);
    }

    /// A program of so many pieces, whose first ones are hot, as it would answer: a page that is looked at leaves, and comes back if it is hot.
    fn beside(pieces: u64, hot: u64, refuses: bool) -> (Vec<u64>, Vec<u64>) {
        let mut rig = Rig::new(Box::new(Dt::default()), PARAMETERS);
        rig.rest(0);
        assert!(rig.say.take_survey());
        rig.of(Kind::Fetched, 0, pieces * PIECE);
        let (mut left, mut looks) = (Vec::new(), Vec::new());
        for _ in 0..60 * 50 {
            rig.rest(INTERVAL / 50);
            let mut seen = 0;
            for wish in rig.say.all() {
                for page in wish.page..wish.page + wish.pages {
                    match wish.wanted {
                        Wanted::Scan { .. } => {
                            // It has its share of the time.
                            seen += 1;
                            let refused = refuses && seen > 2;
                            let more = if refused { [0; 3] } else { [1, u64::from(page < hot * PIECE), 0] };
                            if !refused {
                                looks.push(page);
                                rig.of(Kind::Evicted, page, 1);
                                if more[1] != 0 {
                                    rig.fault(page);
                                }
                            }
                            rig.hear(Event { detail: refused.into(), more, ..Event::new(Kind::Scanned, page * PAGE, 1) });
                        }
                        Wanted::Reclaim => {
                            left.push(page);
                            rig.of(Kind::Evicted, page, 1);
                        }
                        Wanted::Prefetch => rig.hear(Event { detail: 1, ..Event::new(Kind::Fetched, page * PAGE, 1) }),
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        (left, looks)
    }

    #[test]
    fn what_is_not_used_leaves_and_what_is_used_does_not() {
        let (left, looks) = beside(20, 5, false);
        // A page that was looked at last has left for that.
        let gone =
            |from: u64, to: u64| left.iter().chain(&looks).filter(|page| (from * PIECE..to * PIECE).contains(page)).count();
        assert!(left.iter().all(|page| *page >= 5 * PIECE), "a hot page leaves");
        let mut all: Vec<u64> = left.iter().chain(&looks).copied().filter(|page| *page >= 5 * PIECE).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len() as u64, 15 * PIECE, "all that is cold is gone");
        assert!(gone(0, 5) > 100, "hot pages are looked at");
    }

    #[test]
    fn it_looks_at_less_if_more_is_refused() {
        let (left, looks) = beside(60, 12, true);
        assert!(left.iter().all(|page| *page >= 12 * PIECE), "a hot page leaves");
        assert!(left.len() as u64 > 40 * PIECE, "{} pages leave, by {} looks", left.len(), looks.len());
    }
}
