//! The majority's trend: the next fault will do what most of the last faults near it did (Leap, ATC 2020, §4: "majority-based
//! prefetching").
//!
//! A core remembers its last 64 faults, each with its distance from the nearest one before it. Boyer and Moore's vote finds the
//! distance that more than half of the last 4 in the neighbourhood have; if none has, of the last 8, and so on. So a few faults
//! that do not belong to the trend do not end it, as they would end a stride.
//!
//! This departs from Leap in two points. In Leap the last faults of a process vote, wherever they were, so threads that take
//! turns, each with a step of its own, have no majority. Here only the faults in one neighbourhood vote on its trend. And pages
//! that were brought in time do not fault here (Leap sees them in the swap cache): at a marker, the trail's step is what counts.

use super::trail::{STEP_MAX, Trail};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::limits::FRAME_CACHES;
use farshore_core::page::Page;
use farshore_core::seams::{Ahead, Fetch, Prefetcher};
use farshore_core::sync::Padded;

/// Faults that a core remembers.
const HISTORY: usize = 64;
/// How many of the faults near by vote at first …
const VOTERS_MIN: usize = 4;
/// … and at last.
const VOTERS_MAX: usize = 32;
/// Trails that a core follows at a time.
const TRAILS: usize = 8;

/// See the head of the module.
#[derive(Debug)]
pub struct Majority {
    cores: Box<[Padded<Core>]>,
}

/// What a core remembers. Hints: threads that count on the same core may overwrite each other's faults.
#[derive(Debug)]
struct Core {
    /// The last faults, as a ring: [`Fault`].
    faults: [AtomicU64; HISTORY],
    /// Faults so far.
    count: AtomicU64,
    trails: [AtomicU64; TRAILS],
}

impl Default for Majority {
    fn default() -> Majority {
        let zero = || AtomicU64::new(0);
        let core = || Core { faults: core::array::from_fn(|_| zero()), count: zero(), trails: core::array::from_fn(|_| zero()) };
        // Built without the stack, which is small where a forked child begins.
        Majority { cores: (0..FRAME_CACHES).map(|_| Padded(core())).collect() }
    }
}

/// The step that more than half of `steps` have, if there is one (Boyer and Moore, 1981).
fn majority(steps: impl Iterator<Item = i64> + Clone) -> Option<i64> {
    let (mut candidate, mut lead, mut all) = (0, 0, 0);
    for step in steps.clone() {
        all += 1;
        match lead {
            0 => (candidate, lead) = (step, 1),
            _ if step == candidate => lead += 1,
            _ => lead -= 1,
        }
    }
    let votes = steps.filter(|&step| step == candidate).count();
    (2 * votes > all).then_some(candidate)
}

/// A fault, and its distance from the nearest one before it; 0: none was near.
#[derive(Clone, Copy)]
struct Fault {
    page: Page,
    step: i64,
}

impl Core {
    fn remember(&self, fault: Fault) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        let bits = fault.page.0 << 16 | u64::from(fault.step as i16 as u16);
        self.faults[count as usize % HISTORY].store(bits, Ordering::Relaxed);
    }

    /// The last faults near `page`, the last one first.
    fn near(&self, page: Page) -> impl Iterator<Item = Fault> {
        let count = self.count.load(Ordering::Relaxed) as usize;
        let back = (1..=HISTORY).map(move |back| self.faults[count.wrapping_sub(back) % HISTORY].load(Ordering::Relaxed));
        let faults = back.map(|bits| Fault { page: Page(bits >> 16), step: i64::from(bits as u16 as i16) });
        faults.filter(move |fault| page.0.abs_diff(fault.page.0) < STEP_MAX as u64)
    }

    /// The distance from the nearest of the last faults to `page`; 0: none is near.
    fn step_to(&self, page: Page) -> i64 {
        let steps = self.near(page).map(|fault| page.0.wrapping_sub(fault.page.0) as i64);
        steps.filter(|&step| step != 0).min_by_key(|step| step.abs()).unwrap_or(0)
    }

    /// The trend of the last faults near `page`.
    fn trend(&self, page: Page) -> Option<i64> {
        let (mut steps, mut count) = ([0; VOTERS_MAX], 0);
        for (place, fault) in steps.iter_mut().zip(self.near(page)) {
            *place = fault.step;
            count += 1;
        }
        let windows = core::iter::successors(Some(VOTERS_MIN), |voters| Some(2 * voters)).take_while(|&voters| voters <= count);
        windows.into_iter().find_map(|voters| majority(steps[..voters].iter().copied())).filter(|&step| step != 0)
    }
}

impl Prefetcher for Majority {
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead> {
        let page = fetch.page();
        let core = &self.cores[fetch.core() % FRAME_CACHES];
        let followed = core.trails.iter().enumerate().find_map(|(n, place)| {
            let trail = Trail::load(place)?;
            Some((n, trail, trail.steps_to(page)?))
        });
        let (place, trail, steps) = match followed {
            Some((n, trail, steps)) => {
                core.remember(Fault { page, step: trail.step });
                (n, trail, steps)
            }
            None => {
                core.remember(Fault { page, step: core.step_to(page) });
                // The oldest place, more or less: faults that go on with a trail are many more than those that begin one.
                let place = core.count.load(Ordering::Relaxed) as usize % TRAILS;
                (place, Trail::begin(page, core.trend(page)?), 0)
            }
        };
        let (trail, ahead) = trail.go_on(fetch, steps)?;
        trail.store(&core.trails[place]);
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::majority;

    #[test]
    fn more_than_half_is_a_majority() {
        let of = |steps: &[i64]| majority(steps.iter().copied());
        assert_eq!(of(&[3, 3, 1, 3]), Some(3));
        assert_eq!(of(&[3, 1, 3, 1]), None);
        assert_eq!(of(&[1, 2, 3, 4]), None);
        assert_eq!(of(&[9, 9, 5, 5, 5]), Some(5));
        assert_eq!(of(&[]), None);
    }
}
