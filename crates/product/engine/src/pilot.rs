//! The autopilot's law: which memory limit comes next, from what a program loses to faults. Pure arithmetic; who measures and carries
//! out is elsewhere.
//!
//! ```text
//!                    │ loses more than the target         │ loses clearly less
//!  ──────────────────┼────────────────────────────────────┼──────────────────────────────────────────────
//!  once              │ the last step is taken back        │ a step down: so many pages as may come back
//!  again, and full   │ 1/16 more, 1/8 more, then 1/4 each │ at the rate at which they leave
//!  not full          │ waits: what is there is not used   │ memory that nobody uses goes at once
//! ```
//!
//! * **The slowdown** is the time lost to faults by the time that the program's threads ran. A program that sleeps counts as running a
//!   twentieth of the time, so that one that wakes for a moment may lose a moment.
//! * **Steps down cost something even where there is too much memory**: pages that leave are partly hot, since nothing tells which are.
//!   These come back once. What a page that was taken has cost lately says how many are taken next. One bad look takes the last step
//!   back; only two in a row say that memory is short.
//! * **Pages leave at a rate at which they could come back.** They leave as they lie, so the hot ones may leave together after seconds of cold ones; and a
//!   program that goes round and round comes to what has left only with its next round. However long that is, if each page that has left in the meantime
//!   comes back in as long a time, the loss is [`RISK`] times what is left of the target. What a page costs that comes is learned.
//! * **What was too little is remembered** for 1 s, then 2 and so on up to 32 s where it proves so again: each try below the knee of a
//!   steep curve costs half a second of heavy loss. The first time says little: the hot pages that have just come back stay longer.
//! * **Three windows.** The short one (0.6 s) answers a program that needs more. The long one (10 s) and the longest (a minute) have to be below the target before
//!   anything is tried, so that tries, and phases that came unforeseen, take a part of the target and no more.
//! * **While the program grows nothing is taken away**: that memory would be wanted at once. And where it is full and touches fresh memory, it gets four times
//!   as much at once ([`grows`]): a limit that nobody uses costs nothing, and a program that builds its data has no time to wait for one.

/// Time between two looks, ns. One that finds a program growing ([`grows`]) comes sooner.
pub const LOOK_NS: u64 = 200_000_000;
/// How often, at most, whoever looks is told that evictors begin, ns.
const TOLD_NS: u64 = 20_000_000;
const FAST_NS: f64 = 0.6e9;
const SLOW_NS: f64 = 10e9;
const LONGEST_NS: f64 = 60e9;
const GROWTH_NS: f64 = 2e9;
/// How much of its limit a program touches between two looks that grows, and by how much it may grow until the next.
const GROWS: u64 = 64;
const GROWTH: u64 = 4;
/// How long, at least, the most that it had counts; twice that at most.
const MOST_NS: u64 = 10_000_000_000;
/// What a page that is taken away costs is learned over so long, from this on, which counts as much as so many pages.
const COST_NS: f64 = 3e9;
const COST_FIRST: f64 = 50_000.0;
const COST_PAGES: f64 = 64.0;
/// How much of what may still be lost a step may cost, as the last ones did.
const STEP_COST: f64 = 0.5;
/// How many times what may still be lost would be, if pages came back as fast as they leave.
const RISK: f64 = 3.0;
/// What a page costs that comes back is taken to be this, until so many have been seen.
const PAGE_FIRST: f64 = 50_000.0;
const PAGES_KNOWN: f64 = 64.0;
/// The most that one page counts as, ns.
const PAGE_MOST: f64 = 2e6;
/// Steps down, as a part of the limit.
const STEP_MIN: f64 = 1.0 / 2048.0;
const STEP_MAX: f64 = 1.0 / 12.0;
/// How much of the target may be lost where a step down is tried.
const CALM: f64 = 0.8;
/// How long a limit counts as too small.
const HOLD_MIN_NS: u64 = 1_000_000_000;
const HOLD_MAX_NS: u64 = 32_000_000_000;
/// A program counts as running at least this part of the time.
const RUNS_AT_LEAST: f64 = 0.05;
/// The same where it is asked what may leave at once.
const RISKS_AT_LEAST: f64 = 1.0;
/// Smaller changes are not worth a division of the limit; pages.
const CHANGE_MIN: u64 = 16;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Aim {
    /// Time lost, by time that the program runs.
    pub target: f64,
    /// The smallest limit, pages.
    pub least: u64,
    /// The largest limit, pages.
    pub most: u64,
}

/// What has happened since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Time that has passed, ns.
    pub wall_ns: u64,
    /// Time that threads have lost to faults, together.
    pub lost_ns: u64,
    /// Pages that came back from swap space; they are what the time was lost to, as a rule.
    pub came: u64,
    /// Processor time that they have had otherwise.
    pub ran_ns: u64,
    /// Pages by which they have grown ([`Growth`]).
    pub grown: u64,
    /// Pages in use now.
    pub in_use: u64,
    /// The limit now, pages.
    pub limit: u64,
    /// Whether the last limit has been reached.
    pub settled: bool,
}

/// Sums that fade.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    lost: f64,
    /// What it is lost for: time that the program ran, pages that were taken, or faults.
    by: f64,
    wall: f64,
}

impl Window {
    const EMPTY: Window = Window { lost: 0.0, by: 0.0, wall: 0.0 };

    fn add(&mut self, lost: f64, by: f64, wall: f64, length: f64) {
        let stays = length / (length + wall);
        self.lost = self.lost * stays + lost;
        self.by = self.by * stays + by;
        self.wall = self.wall * stays + wall;
    }

    fn slowdown(&self) -> f64 {
        if self.by > 0.0 { self.lost / self.by } else { 0.0 }
    }
}

/// A limit that was too small.
#[derive(Clone, Copy, Debug)]
struct TooSmall {
    pages: u64,
    until_ns: u64,
    hold_ns: u64,
}

/// The law, and what it remembers.
#[derive(Debug)]
pub struct Pilot {
    now_ns: u64,
    fast: Window,
    slow: Window,
    longest: Window,
    /// What was lost while pages were taken away.
    taken: Window,
    /// What was lost, by pages that came back.
    came: Window,
    /// Looks in a row with more lost than the target.
    over: u32,
    /// Pages that the last step took away.
    lowered: u64,
    too_small: Option<TooSmall>,
    /// Pages in use, as they were a while ago.
    used: f64,
}

impl Default for Pilot {
    fn default() -> Pilot {
        Pilot::new()
    }
}

impl Pilot {
    /// Nothing is known yet.
    pub const fn new() -> Pilot {
        let none = Window::EMPTY;
        Pilot {
            now_ns: 0,
            fast: none,
            slow: none,
            longest: none,
            taken: none,
            came: none,
            over: 0,
            lowered: 0,
            too_small: None,
            used: 0.0,
        }
    }

    /// The slowdown over the last ten seconds or so.
    pub fn slowdown(&self) -> f64 {
        self.slow.slowdown()
    }

    /// Looks, and says which limit comes next; `None`: it stays.
    pub fn look(&mut self, aim: Aim, look: Look) -> Option<u64> {
        let wall = (look.wall_ns as f64).max(1.0);
        let ran = (look.ran_ns as f64).max(wall * RUNS_AT_LEAST);
        // One fault that a disk has held for half a minute says no more than one that took all of this look.
        let lost = (look.lost_ns as f64).min(2.0 * (wall + ran));
        self.now_ns = self.now_ns.saturating_add(look.wall_ns);
        self.fast.add(lost, ran, wall, FAST_NS);
        self.slow.add(lost, ran, wall, SLOW_NS);
        self.longest.add(lost, ran, wall, LONGEST_NS);
        self.taken.add(lost, self.lowered as f64, wall, COST_NS);
        // Also where nothing came, so that it fades: a program that faults no more would be thought slow for ever. What one fault of a disk
        // that stood still has taken says nothing of the next, and what is lost without a page that came is a wait for memory.
        let came = look.came as f64;
        self.came.add(lost.min(came * PAGE_MOST), came, wall, SLOW_NS);
        let used = look.in_use as f64;
        let has_grown = used > self.used * 1.05;
        self.used += (used - self.used) * wall / (GROWTH_NS + wall);
        let next = if grows(look.grown, look.in_use, look.limit) {
            self.over = 0;
            Some(look.limit.saturating_mul(GROWTH))
        } else if lost / ran > aim.target && self.fast.slowdown() > aim.target {
            self.raise(look)
        } else {
            self.over = 0;
            let calm = [self.fast, self.slow, self.longest].iter().all(|window| window.slowdown() < aim.target * CALM);
            if calm && look.settled && !has_grown { self.lower(aim, look) } else { None }
        };
        // Whoever has set a limit outside of the bounds is brought back in.
        let next = next.unwrap_or(look.limit).clamp(aim.least.min(aim.most), aim.most);
        self.lowered = look.limit.saturating_sub(next);
        let counts = next.abs_diff(look.limit) >= CHANGE_MIN || !(aim.least..=aim.most).contains(&look.limit);
        (next != look.limit && counts).then_some(next)
    }

    /// Too much is lost.
    fn raise(&mut self, look: Look) -> Option<u64> {
        self.over = self.over.saturating_add(1);
        if self.over == 1 {
            return (self.lowered > 0).then(|| look.limit.saturating_add(self.lowered));
        }
        if !is_full(look) {
            return None;
        }
        self.taken = Window::EMPTY;
        self.note_too_small(look.limit);
        Some(look.limit.saturating_add(look.limit >> 6u32.saturating_sub(self.over).max(2)))
    }

    fn note_too_small(&mut self, pages: u64) {
        let known = self.too_small.filter(|it| it.pages.abs_diff(pages) < it.pages / 8);
        let hold_ns = match known {
            // The same shortage goes on.
            Some(it) if self.over > 2 => it.hold_ns,
            Some(it) => (it.hold_ns * 2).min(HOLD_MAX_NS),
            None => HOLD_MIN_NS,
        };
        self.too_small = Some(TooSmall { pages, until_ns: self.now_ns + hold_ns, hold_ns });
    }

    /// Little is lost.
    fn lower(&mut self, aim: Aim, look: Look) -> Option<u64> {
        let held = self.too_small.filter(|it| self.now_ns < it.until_ns);
        let guard = held.map_or(0, |it| it.pages + it.pages / 32);
        let next = if is_full(look) {
            let spare = aim.target - self.fast.slowdown();
            let may_lose = spare * STEP_COST * self.slow.by / self.slow.wall * look.wall_ns as f64;
            let cost = (self.taken.lost + COST_FIRST * COST_PAGES) / (self.taken.by + COST_PAGES);
            let (limit, pages) = (look.limit as f64, may_lose / cost);
            let pages = pages.min(self.risked(aim, look)).clamp(limit * STEP_MIN, limit * STEP_MAX);
            look.limit - (pages as u64).max(CHANGE_MIN).min(look.limit)
        } else {
            look.in_use + slack(look.in_use)
        };
        let next = next.max(guard);
        (next < look.limit).then_some(next)
    }

    /// Pages that may leave in a look though all of them may be hot: a part that was cold for long says nothing of the next one.
    fn risked(&self, aim: Aim, look: Look) -> f64 {
        let page = (self.came.lost + PAGE_FIRST * PAGES_KNOWN) / (self.came.by + PAGES_KNOWN);
        // Of one that sleeps nothing comes back meanwhile. When it wakes it loses a moment, once.
        let runs = (self.slow.by / self.slow.wall).max(RISKS_AT_LEAST);
        (aim.target - self.slow.slowdown()).max(0.0) * runs * look.wall_ns as f64 * RISK / page
    }
}

/// Pages that evictors keep free.
pub fn slack(pages: u64) -> u64 {
    (pages / 16).clamp(16, 512)
}

/// Whether a larger limit would be used.
pub fn is_full(look: Look) -> bool {
    fills(look.in_use, look.limit)
}

fn fills(in_use: u64, limit: u64) -> bool {
    in_use + slack(limit) * 5 / 4 + CHANGE_MIN >= limit
}

/// When looks come: each [`LOOK_NS`], and at once where a program grows. Evictors tell of that when they begin, if they are asked to.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    at_ns: u64,
    told_ns: u64,
}

impl Turn {
    /// The first look is now.
    pub const fn at(now_ns: u64) -> Turn {
        Turn { at_ns: now_ns, told_ns: 0 }
    }

    /// How long the next look may wait, ns; `None`: it is time, or the program `grows`. `tell`: evictors are to tell when they begin.
    pub fn wait(&mut self, now_ns: u64, grows: impl FnOnce() -> bool, tell: impl FnOnce()) -> Option<u64> {
        let soon = Some((self.at_ns + LOOK_NS).saturating_sub(now_ns)).filter(|&soon| soon > 0)?;
        if grows() {
            return None;
        }
        if now_ns.saturating_sub(self.told_ns) < TOLD_NS {
            return Some(soon.min(TOLD_NS));
        }
        self.told_ns = now_ns;
        tell();
        Some(soon)
    }

    /// A look begins. Returns how long ago the last one was, ns.
    pub fn begin(&mut self, now_ns: u64) -> u64 {
        let before = core::mem::replace(&mut self.at_ns, now_ns);
        now_ns.saturating_sub(before)
    }
}

/// What a program has touched first and not given up, and the most of that which it had lately. One that gives up as much as it takes does not grow, whether it
/// was looked at in between or not, and whether its pages were in memory when it gave them up.
///
/// The most is one of the last window of [`MOST_NS`] and of the one before, and does not fade: of a program that takes 4 MiB in seconds most looks see less than
/// the most, and one that had faded by a sixth of that would be passed, which a limit of 50 MiB answers with 200.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// The most of this window, and of the one before.
    most: i64,
    before: i64,
    /// How long this window has lasted, ns.
    lasts_ns: u64,
}

impl Growth {
    /// Of a program that has had nothing else than these pages. (A forked child may give up more than it has touched.)
    pub const fn of(has: i64) -> Growth {
        Growth { most: has, before: has, lasts_ns: 0 }
    }

    /// Pages that it has beyond the most.
    pub fn beyond(&self, has: i64) -> u64 {
        has.saturating_sub(self.most.max(self.before)).max(0) as u64
    }

    /// A look, so long after the last one, has found it with these pages. What it had before it gave much up counts for some seconds.
    pub fn note(&mut self, has: i64, wall_ns: u64) {
        if wall_ns >= MOST_NS {
            *self = Growth::of(has);
            return;
        }
        self.most = self.most.max(has);
        self.lasts_ns += wall_ns;
        if self.lasts_ns >= MOST_NS {
            *self = Growth { most: has, before: self.most, lasts_ns: 0 };
        }
    }
}

/// Whether a program builds its data, and has no room for them: so many pages are in use, and by so many it has grown since the last look. Then the next look
/// should not wait.
pub fn grows(grown: u64, in_use: u64, limit: u64) -> bool {
    fills(in_use, limit) && grown > limit / GROWS
}

#[cfg(test)]
#[path = "pilot_tests.rs"]
mod tests;
