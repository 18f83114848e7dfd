//! Which of a partition's two hands finds the victims of a batch ([`super::partition`]).
//!
//! Nothing tells how recently a resident page was used, so the order in which pages came is all that there is to go by. It says different
//! things of the two reasons for which memory gets short:
//!
//! * **The program touches new memory.** It goes on to other data, and what came first is most likely done with. Its newest pages are in
//!   use, so the forward hand finds what leaves.
//! * **Pages come back.** The program goes over data that it had before. A hand that goes the same way as the program, as the forward one does in
//!   every loop, takes just what is wanted next. The backward hand goes against it, and meets it once in a round.
//!
//! So each batch makes room for one of the two: of all batches, as many are found by the backward hand as there are pages that come back
//! among those that come.
//!
//! That is where it begins. Then each hand is judged by what becomes of the pages that it finds: the optimum takes those that are wanted last (Bélády), so a hand
//! whose pages come back twice as often as the other's finds a quarter of the batches that it would. A granule remembers which hand has found pages of it last,
//! and all pages of it that come back count for that hand, whether a fault asked for them or not. Pages that a policy wishes away, or expects late, count for neither.

use super::loops::UNIT;
use super::partition::Hand;
use crate::Engine;
use crate::stats::{Count, FaultKind, Stats};
use core::sync::atomic::Ordering;
use farshore_core::frames::Frames;
use farshore_core::seams::World;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicU32, AtomicU64};
use farshore_core::table::Granule;

/// All batches.
const ALL: u64 = 256;
/// How often it is judged, in parts of a memory full of pages that have left.
const JUDGED: u64 = 64;
/// What was counts for so much less, in parts, each time that it is judged.
const FADES: u64 = 16;
/// One page in so many is taken to be new, and one to come back, whatever is counted: so each hand has a chance to do better.
const DOUBT: u64 = 128;

/// What comes, and what becomes of what has left, as of late.
#[derive(Debug, Default)]
pub(super) struct Hands {
    /// How many batches of [`ALL`] the backward hand finds.
    backward: Padded<AtomicU32>,
    /// When that was last judged, in the time of [`super::loops`].
    judged_at: AtomicU32,
    /// What the counters said then.
    seen: [AtomicU64; COUNTERS],
    /// Pages that the hands have found, …
    found: [AtomicU64; 2],
    /// … and that have come back; both fade.
    back: [AtomicU64; 2],
}

const COUNTERS: usize = 6;

/// The share of the backward hand, when so many new pages come and so many come back, and of what each hand has found `often` comes back, in 256ths.
fn judged(new: u64, back: u64, often: [u64; 2]) -> u64 {
    let doubt = (new + back).div_ceil(DOUBT);
    let weight = |causes: u64, other: u64| u128::from(causes + doubt) * u128::from(other * other);
    let forward = weight(new, often[Hand::Backward as usize]);
    let backward = weight(back, often[Hand::Forward as usize]);
    ((u128::from(ALL) * backward).checked_div(forward + backward).unwrap_or(0) as u64).clamp(1, ALL - 1)
}

/// How often pages come back, in 256ths, of which little is known while few were `found`.
fn often(found: u64, back: u64, few: u64) -> u64 {
    (256 * (back + few / 2) / (found + few).max(1)).clamp(1, 256)
}

impl Hands {
    /// Called by evictors after a batch, at this time of [`super::loops`].
    #[inline]
    pub(super) fn judge(&self, now: u32, stats: &Stats, frames: &Frames) {
        let at = self.judged_at.load(Ordering::Relaxed);
        let window = (frames.limit() / JUDGED).clamp(UNIT, 1 << 32);
        // An evictor may come with a time that another one's is past.
        if i64::from(now.wrapping_sub(at).cast_signed()) < (window / UNIT) as i64
            || self.judged_at.compare_exchange(at, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let now: [u64; COUNTERS] = [
            stats.total(Count::Touched) + stats.total(Count::Stocked),
            stats.total(Count::PagesIn) + stats.faults(FaultKind::Rescue),
            stats.total(Count::FoundForward),
            stats.total(Count::FoundBackward),
            stats.total(Count::BackForward),
            stats.total(Count::BackBackward),
        ];
        let mut since = [0; COUNTERS];
        for ((since, now), seen) in since.iter_mut().zip(now).zip(&self.seen) {
            *since = now.saturating_sub(seen.swap(now, Ordering::Relaxed));
        }
        let [new, back, found_forward, found_backward, back_forward, back_backward] = since;
        let faded = |sum: &AtomicU64, more: u64| {
            let now = sum.load(Ordering::Relaxed);
            let now = now - now / FADES + more;
            sum.store(now, Ordering::Relaxed);
            now
        };
        let often =
            |hand: usize, found: u64, back: u64| often(faded(&self.found[hand], found), faded(&self.back[hand], back), window);
        let often = [often(0, found_forward, back_forward), often(1, found_backward, back_backward)];
        if new + back > 0 {
            self.backward.store(judged(new, back, often) as u32, Ordering::Relaxed);
        }
    }

    /// Pages of `granule` leave. `with`: the hand that has found them, if one has.
    #[inline]
    pub(super) fn note_found(&self, granule: &Granule, with: Option<Hand>) {
        granule.found_by.store(with.map_or(0, |with| with as u8 + 1), Ordering::Relaxed);
    }

    /// The hand that finds the next batch of an evictor, which keeps `credit` from batch to batch.
    #[inline]
    pub(super) fn next(&self, credit: &mut u32) -> Hand {
        *credit += self.backward.load(Ordering::Relaxed);
        match credit.checked_sub(ALL as u32) {
            Some(rest) => {
                *credit = rest;
                Hand::Backward
            }
            None => Hand::Forward,
        }
    }
}

impl<W: World> Engine<W> {
    /// Pages of `granule` come back.
    #[inline]
    pub(crate) fn note_back(&self, granule: &Granule, core: usize, pages: u64) {
        if let Some(count) = found_by(granule) {
            self.stats.add(core, count, pages);
        }
    }
}

/// What counts pages of the granule that come back, if a hand has found them.
fn found_by(granule: &Granule) -> Option<Count> {
    const FORWARD: u8 = Hand::Forward as u8 + 1;
    const BACKWARD: u8 = Hand::Backward as u8 + 1;
    match granule.found_by.load(Ordering::Relaxed) {
        FORWARD => Some(Count::BackForward),
        BACKWARD => Some(Count::BackBackward),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u64 = 64 * 128;
    /// Pages that leave before it is judged.
    const WINDOW: u64 = FRAMES / JUDGED;

    /// What a program does while so many windows of pages leave, a page for each that comes: of every hundred so many are new, and of what each hand has found so many
    /// come back.
    struct Program {
        hands: Hands,
        stats: Stats,
        frames: Frames,
        left: u32,
        credit: u32,
    }

    impl Program {
        fn new() -> Program {
            Program { hands: Hands::default(), stats: Stats::new(1), frames: Frames::new(FRAMES, 1), left: 0, credit: 0 }
        }

        /// Returns how many of the last hundred batches the backward hand has found.
        fn goes_on(&mut self, windows: usize, new: u64, [forward, backward]: [u64; 2]) -> usize {
            let mut by = Vec::new();
            for _ in 0..windows {
                let with = self.hands.next(&mut self.credit);
                by.push(with);
                self.left += (WINDOW / UNIT) as u32;
                self.stats.add(0, if with == Hand::Forward { Count::FoundForward } else { Count::FoundBackward }, WINDOW);
                self.stats.add(0, Count::Touched, new * WINDOW / 100);
                self.stats.add(0, Count::BackForward, if with == Hand::Forward { forward * WINDOW / 100 } else { 0 });
                self.stats.add(0, Count::BackBackward, if with == Hand::Backward { backward * WINDOW / 100 } else { 0 });
                let back = if with == Hand::Forward { forward } else { backward };
                self.stats.add(0, Count::PagesIn, back * WINDOW / 100);
                self.hands.judge(self.left, &self.stats, &self.frames);
            }
            by[windows.saturating_sub(100)..].iter().filter(|&&by| by == Hand::Backward).count()
        }
    }

    #[test]
    fn new_memory_takes_the_place_of_what_came_first() {
        assert_eq!(Program::new().goes_on(100, 100, [0, 0]), 0);
    }

    #[test]
    fn pages_that_come_back_take_the_place_of_newer_ones() {
        let mut program = Program::new();
        program.goes_on(100, 100, [0, 0]);
        // All that left is wanted again, by whomever it was found.
        let backward = program.goes_on(200, 0, [100, 100]);
        assert!((97..100).contains(&backward), "{backward}: the forward hand has its chance now and then");
        let backward = program.goes_on(200, 50, [50, 50]);
        assert!((45..=55).contains(&backward), "{backward}");
    }

    #[test]
    fn the_hand_whose_pages_come_back_finds_fewer() {
        // What came first is not wanted again, and what came last is: a map has ended, and a reduction is on its way.
        let backward = Program::new().goes_on(200, 2, [2, 100]);
        assert!(backward <= 10, "{backward}");
        // The program goes round, and each page that came first is wanted at once.
        let backward = Program::new().goes_on(200, 60, [100, 10]);
        assert!(backward >= 80, "{backward}");
    }

    #[test]
    fn it_changes_its_mind() {
        let mut program = Program::new();
        for _ in 0..3 {
            assert!(program.goes_on(300, 2, [2, 100]) <= 10);
            assert!(program.goes_on(300, 2, [100, 20]) >= 90);
        }
    }

    #[test]
    fn it_is_judged_now_and_then_and_never_overflows() {
        let Program { hands, stats, frames, .. } = Program::new();
        let share = || hands.backward.load(Ordering::Relaxed);
        let window = (WINDOW / UNIT) as u32;
        stats.add(0, Count::PagesIn, 10);
        hands.judge(window - 1, &stats, &frames);
        assert_eq!(share(), 0);
        hands.judge(window, &stats, &frames);
        assert!(share() > 200);
        // Nothing comes, or an evictor is late.
        hands.judge(2 * window, &stats, &frames);
        stats.add(0, Count::Touched, 1000);
        hands.judge(2 * window - 1, &stats, &frames);
        assert!(share() > 200);
        hands.judge(3 * window, &stats, &frames);
        assert!(share() < 10);
        for often in [[1, 1], [1, 256], [256, 1], [256, 256]] {
            assert!(judged(0, 0, often) <= ALL && judged(1 << 40, 1 << 40, often) <= ALL);
        }
        assert!(judged(0, 1 << 40, [128, 128]) < ALL && judged(1 << 40, 0, [128, 128]) > 0, "each has a chance");
        assert_eq!((often(0, 0, 0), often(0, 0, 100), often(100, 1000, 100), often(1 << 40, 0, 100)), (1, 128, 256, 1));
    }

    #[test]
    fn a_granule_remembers_who_found_it() {
        let (hands, table) = (Hands::default(), farshore_core::table::PageTable::new());
        let range = farshore_core::page::GranuleId(0x10_0000).range();
        table.add(range);
        let granule = table.granule(range.start.granule()).unwrap().granule;
        assert_eq!(found_by(granule), None, "nothing has left");
        for (with, count) in [(Hand::Backward, Count::BackBackward), (Hand::Forward, Count::BackForward)] {
            hands.note_found(granule, Some(with));
            assert_eq!(found_by(granule), Some(count));
        }
        hands.note_found(granule, None);
        assert_eq!(found_by(granule), None, "a policy wished it");
    }
}
