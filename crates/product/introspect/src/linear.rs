//! Runs of faults: pages that are touched one behind the other, up or down, or at the same distance each time, and which pages come next. (Flexible Swapping §6.6 asks for the next page at each fault; here a run
//! that goes on gets twice as many pages each time.)
//!
//! ```text
//!           last ├── asked for ──────────┤ ahead
//!   ─────────●───●───●───●───●───●───●───○───▶
//!            └ the fault that is here: when half of a window is left, the rest is asked for
//! ```
//!
//! Addresses are pages by number, whichever: virtual ones of an address space, or physical ones.

use std::collections::HashSet;

/// Runs that are followed at a time.
const RUNS: usize = 16;
/// The largest distance of a run's pages.
const STEP_MAX: i64 = 32;
/// Pages that a run may leave out and still goes on.
const GAP: i64 = 8;
/// The first window, in pages, and the largest.
const WINDOW: (u32, u32) = (4, 64);

/// Pages that are to come: `first`, and so on by `step`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The first page.
    pub first: u64,
    /// The distance to the next one.
    pub step: i64,
    /// How many.
    pub pages: u32,
}

impl Ask {
    /// The pages that there can be.
    pub fn pages(self) -> impl Iterator<Item = u64> {
        (0..i64::from(self.pages)).filter_map(move |n| self.first.checked_add_signed(n * self.step))
    }
}

/// What came of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Went {
    /// The pages behind the run's last one up to this one: it went over them. Empty: the fault begins a run.
    pub over: Option<Ask>,
    /// What is to come.
    pub ask: Option<Ask>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// The last page.
    last: i64,
    /// The distance; 0: there was one page.
    step: i64,
    /// How often it went on.
    went: u32,
    /// Pages behind `last` that were asked for, or gone over, in steps.
    ahead: i64,
    window: u32,
    /// When it went on last; 0: there is no run.
    when: u64,
}

impl Run {
    /// How many steps behind the last page this one is, if it is of the run.
    fn steps_to(&self, page: i64) -> Option<i64> {
        if self.when == 0 || self.step == 0 || (page - self.last) % self.step != 0 {
            return None;
        }
        let steps = (page - self.last) / self.step;
        (-GAP..=self.ahead + GAP).contains(&steps).then_some(steps)
    }

    /// The run has come to a page, `steps` further.
    fn go_on(&mut self, page: i64, steps: i64) -> Went {
        let over = Ask { first: (self.last + self.step).cast_unsigned(), step: self.step, pages: steps as u32 };
        self.last = page;
        self.ahead = (self.ahead - steps).max(0);
        self.went = self.went.saturating_add(1);
        // Two neighbours are a run; at another distance two may be chance.
        let is_sure = self.step.abs() == 1 || self.went > 1;
        let is_low = self.ahead <= i64::from(self.window / 2);
        let mut ask = None;
        if is_sure && is_low {
            self.window = (2 * self.window).clamp(WINDOW.0, WINDOW.1);
            let first = page + (self.ahead + 1) * self.step;
            let pages = (i64::from(self.window) - self.ahead) as u32;
            self.ahead = i64::from(self.window);
            ask = u64::try_from(first).ok().map(|first| Ask { first, step: self.step, pages });
        }
        Went { over: Some(over), ask }
    }
}

/// The runs of one address space.
#[derive(Debug, Default)]
pub struct Linear {
    runs: [Run; RUNS],
    now: u64,
}

impl Linear {
    /// A page was touched, by its number, which is below 2⁵².
    pub fn touched(&mut self, page: u64) -> Went {
        let page = (page & ((1 << 52) - 1)).cast_signed();
        self.now += 1;
        let now = self.now;
        let found = self.runs.iter_mut().find_map(|run| Some((run.steps_to(page)?, run)));
        if let Some((steps, run)) = found {
            run.when = now;
            // The last page once more (a read, then a write), or one that was overtaken.
            return if steps <= 0 { Went::default() } else { run.go_on(page, steps) };
        }
        let is_near = |run: &&mut Run| run.when != 0 && run.step == 0 && (page - run.last).abs() <= STEP_MAX;
        // The nearest: two runs that begin side by side are two.
        if let Some(run) = self.runs.iter_mut().filter(is_near).min_by_key(|run| (page - run.last).abs()) {
            run.when = now;
            if page == run.last {
                return Went::default();
            }
            run.step = page - run.last;
            return run.go_on(page, 1);
        }
        let oldest = self.runs.iter_mut().min_by_key(|run| run.when).expect("there are runs");
        *oldest = Run { last: page, when: now, ..Run::default() };
        Went::default()
    }
}

/// Pages that were asked for and not gone over yet, at most: runs that ended leave some.
const ASKED_MAX: usize = 4096;

/// The runs of an address space, and what became of what they have asked for.
#[derive(Debug, Default)]
pub struct Follow {
    linear: Linear,
    asked: HashSet<u64>,
    /// Pages that were wished of late, and how many of them were gone over.
    wished: u64,
    used: u64,
    /// Windows that were not asked for, since few of those before were used.
    left_out: u32,
}

/// Pages after which it is judged whether runs go on, and what is older counts half.
const JUDGED: u64 = 512;
/// One window of so many is asked for while less than a quarter is used: short runs at random would read twice what they need.
const TRIED_ONE_IN: u32 = 32;

impl Follow {
    /// A page was touched. `come` is asked to have a page come, and says whether that was wished: pages that are there need not. Returns how many pages were wished, and how many of
    /// those that were wished before the run has gone over now.
    pub fn touched(&mut self, page: u64, come: &mut dyn FnMut(u64) -> bool) -> (u64, u64) {
        let Went { over, ask } = self.linear.touched(page);
        let used = over.into_iter().flat_map(Ask::pages).filter(|page| self.asked.remove(page)).count() as u64;
        self.used += used;
        let mut wished = 0;
        let ask = ask.filter(|_| self.is_worth_it());
        for page in ask.into_iter().flat_map(Ask::pages) {
            if come(page) {
                wished += 1;
                if self.asked.len() >= ASKED_MAX {
                    self.asked.clear();
                }
                self.asked.insert(page);
            }
        }
        self.wished += wished;
        (wished, used)
    }

    /// Whether a window is asked for: not while runs end before what was asked for is used, but for a few that notice a change.
    fn is_worth_it(&mut self) -> bool {
        if self.wished >= 2 * JUDGED {
            (self.wished, self.used) = (self.wished / 2, self.used / 2);
        }
        if self.wished < JUDGED || 4 * self.used >= self.wished {
            return true;
        }
        self.left_out = (self.left_out + 1) % TRIED_ONE_IN;
        self.left_out == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_random::Rng;

    fn asked(linear: &mut Linear, pages: impl IntoIterator<Item = u64>) -> Vec<Vec<u64>> {
        let of = |page| linear.touched(page).ask.map_or_else(Vec::new, |ask| ask.pages().collect());
        pages.into_iter().map(of).collect()
    }

    #[test]
    fn a_run_is_asked_for_once_each_and_in_time() {
        for (step, from) in [(1, 1000), (-1, 9000), (3, 50), (-7, 90_000)] {
            let mut linear = Linear::default();
            let pages: Vec<u64> = (0..600).map(|n| from + step * n).map(i64::cast_unsigned).collect();
            let asked = asked(&mut linear, pages.iter().copied());
            let mut all: Vec<u64> = asked.concat();
            let begins = if step.abs() == 1 { 2 } else { 3 };
            assert!(asked[..begins - 1].iter().all(Vec::is_empty) && !asked[begins - 1].is_empty(), "{step}: {:?}", &asked[..4]);
            for (n, page) in pages.iter().enumerate().skip(begins) {
                assert!(asked[..n].iter().any(|some| some.contains(page)), "page {n} was not asked for before it is touched");
            }
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "none twice");
            assert!(count <= 600 + WINDOW.1 as usize, "no more than a window too many");
        }
    }

    #[test]
    fn several_runs_go_on_side_by_side() {
        let mut linear = Linear::default();
        for n in 0..200 {
            for stream in 0..8 {
                let ask = linear.touched(stream * 100_000 + n).ask;
                assert!(ask.is_none_or(|ask| ask.first / 100_000 == stream));
            }
        }
        let ahead = linear.runs.iter().filter(|run| run.window == WINDOW.1).count();
        assert_eq!(ahead, 8);
    }

    #[test]
    fn what_is_resident_or_comes_twice_does_not_end_a_run() {
        let mut linear = Linear::default();
        asked(&mut linear, 0..50);
        assert_eq!(linear.touched(49), Went::default());
        assert_eq!(linear.touched(47), Went::default(), "overtaken");
        let went = linear.touched(55);
        assert_eq!(went.over, Some(Ask { first: 50, step: 1, pages: 6 }));
        // Only the end of a window faults: all between was there.
        let end = 55 + linear.runs[0].ahead as u64 + 1;
        assert_eq!(linear.touched(end).ask.expect("it goes on").first, end + 1);
    }

    #[test]
    fn short_runs_at_random_are_left_alone_and_long_ones_are_found_again() {
        let mut rng = Rng::new(5);
        let mut follow = Follow::default();
        let mut wished = 0;
        for _ in 0..20_000 {
            let first = 8 * rng.below(1 << 30);
            wished += (first..first + 2).map(|page| follow.touched(page, &mut |_| true).0).sum::<u64>();
        }
        assert!(wished < 5_000, "{wished} pages were wished for 40,000 that were touched");
        let used: u64 = (0..60_000).map(|page| follow.touched(page, &mut |_| true).1).sum();
        assert!(used > 30_000, "{used} of 60,000 pages in order");
    }

    #[test]
    fn what_was_wished_and_gone_over_is_used() {
        let mut follow = Follow::default();
        let (mut wished, mut used) = (0, 0);
        for page in 0..100 {
            // Each third page is there.
            let counts = follow.touched(page, &mut |page| page % 3 != 0);
            (wished, used) = (wished + counts.0, used + counts.1);
        }
        // The first two, and those that are there, were never wished; behind the last one a window is.
        assert_eq!(used, (2..100).filter(|page| page % 3 != 0).count() as u64);
        assert!(wished > used && wished - used <= u64::from(WINDOW.1));
        for n in 0..1000 {
            for page in 0..3 {
                follow.touched(n * 10_000 + page, &mut |_| true);
            }
        }
        assert!(follow.asked.len() <= ASKED_MAX);
    }

    #[test]
    fn random_pages_are_no_run() {
        let (mut linear, mut random) = (Linear::default(), Rng::new(7));
        let pages: u32 = (0..20_000).filter_map(|_| linear.touched(random.below(1_000_000)).ask).map(|ask| ask.pages).sum();
        assert!(pages < 200, "{pages}");
    }

    #[test]
    fn the_ends_of_numbers_are_no_trouble() {
        let mut linear = Linear::default();
        for page in [u64::MAX, u64::MAX - 1, u64::MAX - 2, 2, 1, 0, 0, u64::MAX, 1 << 63, (1 << 63) - 1] {
            let ask = linear.touched(page).ask;
            ask.into_iter().for_each(|ask| assert!(ask.pages().count() <= WINDOW.1 as usize));
        }
        assert_eq!(Ask { first: 3, step: -2, pages: 5 }.pages().collect::<Vec<_>>(), [3, 1]);
    }
}
