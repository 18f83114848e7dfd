//! Headroom: memory of the limit that holds no page of the program, which are stages and free frames. Where the program's data would nearly fit without it, evictors make do
//! with little.
//!
//! Headroom pays where more has to leave than it takes. Where less has to, headroom is itself why pages leave: the pages that it takes the place of are wanted again, come back through a stage or by a read, and
//! push out others. Linux, which has no stages and few free frames, leaves nearly all of such a program in memory.
//!
//! # When
//!
//! ```text
//!  out = data + headroom − limit          pages that cannot be in frames
//! ```
//!
//! Headroom becomes *lean* when two things are seen. Of as many pages as it takes, at least a half has come back while they left. And `out` would be an eighth with a lean one. It is *full* again when `out` is more
//! than a quarter of what it would be (the data or the limit have changed), when no fewer than half as many pages leave per second, or when faults often wait for a frame: then it did not help, and the next try is
//! later, at each failure twice as late.
//!
//! # How
//!
//! The law sets what rings should have. Each evictor follows with its own ring, in its step ([`Evictor::follow_headroom`]):
//!
//! * **Fewer stages.** It begins no batch until its ring is empty. Then it gives the memory of the stages back, and then they become frames. So stages and frames are never more than the limit. A ring that does
//!   not become empty (a device hangs, a page has nowhere to go) ends the try.
//! * **More stages.** They are set aside first, which leaves a debt of frames. When evictors have paid it, the ring takes them. It doubles at each step, so that a small ring has little to pay.
//!
//! What the user has said about batches and free frames goes before all of this.

use super::pipeline::{Evictor, Progress};
use crate::Engine;
use crate::stats::{Count, FaultKind};
use core::sync::atomic::Ordering;
use farshore_core::limits::{PAGE_SHIFT, high_watermark};
use farshore_core::seams::{Clock, Kernel, World};
use farshore_core::spin::SpinLock;
use farshore_core::sync::plain::AtomicBool;

/// Pages of a batch while headroom is lean: what few faults need until the next batch.
pub(super) const LEAN_BATCH: usize = 2;
/// Stages of one evictor then: a batch that is written, one that is selected.
const LEAN_STAGES: u32 = 2 * LEAN_BATCH as u32;
/// Free frames at which evictors start and stop then.
pub(crate) const LEAN_MARKS: (u64, u64) = (1, 2);
/// How long a try that did not help keeps the next one away, ns: at first …
const AGAIN_LEAST_NS: u64 = 1_000_000_000;
/// … and at most.
const AGAIN_MOST_NS: u64 = 256 * AGAIN_LEAST_NS;
/// For how long pages are counted at most, ns: those of a program that does little are forgotten, or it would seem that few leave when it does more.
const COUNTED_NS: u64 = 30_000_000_000;
/// Steps in which an evictor waits for its ring to become empty.
const STEPS_TO_EMPTY: u32 = 256;
/// For how long such a step waits for a write, ns.
const EMPTY_WAIT_NS: u64 = 1_000_000;

/// What the law goes by, in pages.
#[derive(Clone, Copy, Default, Debug)]
struct Standing {
    /// Pages of the program, wherever they are.
    has: u64,
    limit: u64,
    /// What headroom takes when it is full, …
    full: u64,
    /// … and when it is lean.
    lean: u64,
    /// Pages that have left until now, …
    left: u64,
    /// … pages that have come back, …
    back: u64,
    /// … and times that a fault found no frame.
    waits: u64,
}

impl Standing {
    fn out(&self, headroom: u64) -> u64 {
        (self.has + headroom).saturating_sub(self.limit)
    }

    /// Whether lean headroom would have at most one `part` of the pages out that full headroom has.
    fn is_one_in(&self, part: u64) -> bool {
        self.has > 0 && self.out(self.lean) * part <= self.out(self.full)
    }
}

/// When headroom is lean. Pure arithmetic.
#[derive(Debug)]
struct Law {
    lean: bool,
    /// Since when pages are counted, ns, and what had left and come back then.
    since_ns: u64,
    left: u64,
    back: u64,
    waits: u64,
    /// How many pages left per second before it became lean.
    rate: u64,
    not_before_ns: u64,
    again_ns: u64,
}

impl Law {
    const fn new() -> Law {
        Law { lean: false, since_ns: 0, left: 0, back: 0, waits: 0, rate: 0, not_before_ns: 0, again_ns: AGAIN_LEAST_NS }
    }

    fn count_from(&mut self, now: u64, of: &Standing) {
        (self.since_ns, self.left, self.back, self.waits) = (now, of.left, of.back, of.waits);
    }

    /// Whether headroom is to be lean from now on.
    fn decide(&mut self, now: u64, of: &Standing) -> bool {
        if self.lean && !of.is_one_in(4) {
            self.end(now);
        }
        let (left, back) = (of.left.wrapping_sub(self.left), of.back.wrapping_sub(self.back));
        let waits = of.waits.wrapping_sub(self.waits);
        if left < of.full {
            if self.since_ns == 0 || now > self.since_ns + COUNTED_NS {
                self.count_from(now, of);
            }
            return self.lean;
        }
        let rate = (u128::from(left) * 1_000_000_000 / u128::from(now.saturating_sub(self.since_ns).max(1))) as u64;
        self.count_from(now, of);
        if self.lean {
            if rate > self.rate / 2 || waits > back / 4 {
                self.end(now);
            } else {
                self.again_ns = AGAIN_LEAST_NS;
            }
        } else if now >= self.not_before_ns && back >= left / 2 && of.is_one_in(8) {
            (self.lean, self.rate) = (true, rate);
        }
        self.lean
    }

    /// It is full again; the next try is later.
    fn end(&mut self, now: u64) {
        self.lean = false;
        self.not_before_ns = now + self.again_ns;
        self.again_ns = (self.again_ns * 2).min(AGAIN_MOST_NS);
    }
}

/// The headroom of one engine.
#[derive(Debug)]
pub(crate) struct Headroom {
    /// What all see of the law.
    lean: AtomicBool,
    /// It is full for good.
    fixed: AtomicBool,
    law: SpinLock<Law>,
}

impl Headroom {
    pub(crate) fn new() -> Headroom {
        Headroom { lean: AtomicBool::new(false), fixed: AtomicBool::new(false), law: SpinLock::new(Law::new()) }
    }

    #[inline]
    pub(super) fn is_lean(&self) -> bool {
        self.lean.load(Ordering::Relaxed)
    }

    /// It is full from now on, for good: what the program has is not known (a forked child), or memory of stages cannot be given back.
    pub(crate) fn fix(&self) {
        self.fixed.store(true, Ordering::Relaxed);
    }
}

/// One evictor's part in it.
#[derive(Debug)]
pub(super) struct Following {
    /// Stages that are set aside for its ring: those that the ring has, and more while it grows.
    aside: u32,
    /// Steps that have waited for the ring to become empty.
    waited: u32,
}

impl Following {
    pub(super) fn new(stages: u32) -> Following {
        Following { aside: stages, waited: 0 }
    }
}

impl<W: World> Engine<W> {
    /// Decides whether headroom is lean. Called by an evictor, now and then.
    pub(super) fn judge_headroom(&self, now: u64) {
        let evictors = &self.evictors;
        let headroom = &evictors.pace.headroom;
        let is_fixed = headroom.fixed.load(Ordering::Relaxed)
            || self.ablated.rescue
            || self.ablated.headroom
            || self.ablated.batch.is_some()
            || evictors.pace.has_margin();
        let sizes = self.sizes();
        let lean_stages = u64::from(LEAN_STAGES) * (sizes.stages / sizes.stages_each as u64);
        let of = Standing {
            // Pages of mapped files are not among those that were touched.
            has: self
                .stats
                .has()
                .saturating_add_unsigned(self.stats.total(Count::Stocked))
                .max(0)
                .unsigned_abs()
                .max(self.frames().taken()),
            limit: self.memory_limit() >> PAGE_SHIFT,
            full: sizes.stages + high_watermark(evictors.pace.full_batch() as u64, sizes.frames),
            lean: lean_stages + LEAN_MARKS.1,
            left: self.stats.total(Count::Evicted),
            back: self.stats.faults(FaultKind::Rescue) + self.stats.faults(FaultKind::Fetch),
            waits: self.stats.total(Count::FrameWaits),
        };
        let was = headroom.is_lean();
        let lean = headroom.law.with(|law| {
            if is_fixed {
                law.lean = false;
                return false;
            }
            law.decide(now, &of)
        });
        if lean != was {
            self.set_headroom(lean);
        }
    }

    /// Whether evictors should be at work. With a lean headroom frames that cores keep are a large part of it, so those are given out before.
    pub(super) fn is_short_for_evictors(&self, started: bool) -> bool {
        let is_short = || self.budget.is_short(started);
        is_short() && !(self.evictors.pace.headroom.is_lean() && self.frames().empty_caches() && !is_short())
    }

    /// An evictor's ring does not become empty.
    fn refuse_headroom(&self, now: u64) {
        self.evictors.pace.headroom.law.with(|law| law.end(now));
        self.set_headroom(false);
    }

    /// Headroom is lean from now on, or is not, until the law has another opinion. (For the simulator; evictors go by the law.)
    pub fn force_headroom(&self, lean: bool) {
        self.evictors.pace.headroom.law.with(|law| law.lean = lean);
        self.set_headroom(lean);
    }

    fn set_headroom(&self, lean: bool) {
        self.evictors.pace.headroom.lean.store(lean, Ordering::Relaxed);
        self.budget.set_margin(|| self.evictors.pace.margin());
        // Those on standby have rings, too.
        self.evictors.pace.wake_all(&self.futex);
    }
}

impl<W: World> Evictor<'_, W> {
    /// Makes the ring as large as it should be. `Some`: it is to become empty first, and the step ends.
    pub(super) fn follow_headroom(&mut self) -> Option<Progress> {
        let engine = self.engine;
        let full = engine.sizes().stages_each as u32;
        let wanted = if engine.evictors.pace.headroom.is_lean() { LEAN_STAGES.min(full) } else { full };
        if wanted == self.ring.len() && wanted == self.following.aside {
            return None;
        }
        if wanted > self.ring.len() {
            self.grow(wanted);
            return None;
        }
        if self.settle() {
            self.shrink(wanted);
            return None;
        }
        self.following.waited += 1;
        if self.following.waited > STEPS_TO_EMPTY {
            self.following.waited = 0;
            engine.refuse_headroom(engine.clock.now_ns());
            return None;
        }
        if self.has_live() {
            self.reap_within(EMPTY_WAIT_NS);
        } else {
            // A thread has a page of it in its hands.
            engine.kernel.interleave();
            engine.kernel.step_aside();
        }
        Some(Progress::Worked)
    }

    /// The ring, which is empty, has `stages` from now on.
    fn shrink(&mut self, stages: u32) {
        let engine = self.engine;
        self.following.waited = 0;
        if !self.give_stages_back(stages) {
            engine.evictors.pace.headroom.fix();
            return engine.refuse_headroom(engine.clock.now_ns());
        }
        let fewer = self.ring.len() - stages;
        self.ring.resize(stages);
        engine.budget.give_stages(fewer.into(), (self.following.aside - stages).into(), engine.evictors.stages.ever_used());
        self.following.aside = stages;
        engine.divide_limit();
    }

    /// A step towards a ring of `stages`.
    fn grow(&mut self, stages: u32) {
        let engine = self.engine;
        let next = (2 * self.ring.len()).min(stages);
        if self.following.aside < next {
            engine.budget.set_aside((next - self.following.aside).into());
            self.following.aside = next;
            engine.divide_limit();
        }
        if engine.frames().debt() == 0 && self.unwrap() {
            engine.budget.take_stages((next - self.ring.len()).into(), engine.evictors.stages.ever_used());
            self.ring.resize(next);
        }
    }

    /// Frees stages until the window does not go round the ring's end. False: one of them cannot be freed now.
    fn unwrap(&mut self) -> bool {
        while !self.ring.is_in_one_piece() {
            let room = self.ring.room();
            if self.make_room(room + 1) <= room && !self.ring.is_in_one_piece() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const SECOND: u64 = 1_000_000_000;

    /// A program of so many pages with a limit of 32,768, of which headroom takes 2,048 or 10.
    struct Program {
        law: Law,
        now: u64,
        of: Standing,
    }

    impl Program {
        fn new(has: u64) -> Program {
            let of = Standing { has, limit: 32_768, full: 2_048, lean: 10, ..Standing::default() };
            let mut program = Program { law: Law::new(), now: SECOND, of };
            assert!(!program.goes_on(0, 0, 0));
            program
        }

        /// Within a tenth of a second so many pages have left, come back, and waited for frames.
        fn goes_on(&mut self, left: u64, back: u64, waits: u64) -> bool {
            self.now += SECOND / 10;
            (self.of.left, self.of.back, self.of.waits) = (self.of.left + left, self.of.back + back, self.of.waits + waits);
            self.law.decide(self.now, &self.of)
        }

        /// One whose headroom has just become lean, after 2,500 pages in a tenth of a second.
        fn lean(has: u64) -> Program {
            let mut program = Program::new(has);
            assert!(program.goes_on(2_500, 2_400, 0), "{has} pages");
            program
        }
    }

    #[test]
    fn headroom_is_lean_where_the_data_would_nearly_fit_without_it_and_pages_come_back() {
        for (has, back, lean) in [
            (32_768, 1_250, true),
            (32_768, 1_249, false),
            (33_049, 2_500, true),
            (33_050, 2_500, false),
            (31_000, 2_500, true),
            (0, 2_500, false),
        ] {
            assert_eq!(Program::new(has).goes_on(2_500, back, 0), lean, "{has} pages, {back} come back");
        }
        let mut program = Program::new(32_768);
        for _ in 0..3 {
            assert!(!program.goes_on(600, 600, 0), "fewer pages have left than headroom takes");
        }
        assert!(program.goes_on(600, 600, 0));
        // A few a second, for long, and then many: their rate is that of the many.
        let mut calm = Program::new(32_768);
        assert!((0..400).all(|_| !calm.goes_on(1, 1, 0)));
        assert!(calm.goes_on(5_000, 5_000, 0) && calm.law.rate > 500, "{} a second", calm.law.rate);
    }

    #[test]
    fn it_stays_lean_while_that_helps() {
        let mut program = Program::lean(32_768);
        for _ in 0..100 {
            assert!(program.goes_on(1_200, 1_200, 200), "12,000 pages a second in place of 25,000");
        }
        assert_eq!(program.law.again_ns, AGAIN_LEAST_NS);
    }

    #[test]
    fn it_is_full_again_where_more_data_came_or_lean_did_not_help() {
        let mut more = Program::lean(32_768);
        more.of.has = 33_500;
        assert!(!more.goes_on(0, 0, 0), "738 pages and 10 of 2,786");
        let mut smaller = Program::lean(32_768);
        smaller.of.limit = 32_000;
        assert!(!smaller.goes_on(0, 0, 0));
        assert!(!Program::lean(32_768).goes_on(2_500, 2_500, 0), "as many as before");
        let mut waits = Program::lean(32_768);
        assert!(waits.goes_on(1_100, 1_100, 200) && !waits.goes_on(1_100, 1_100, 400), "600 of 2,200 faults had to wait");
    }

    #[test]
    fn after_each_failure_the_next_try_is_twice_as_late() {
        let mut program = Program::new(32_768);
        let (mut at, mut tries) = (program.now, Vec::new());
        while tries.len() < 12 {
            if program.goes_on(2_500, 2_500, 0) {
                tries.push((program.now - at) / SECOND);
                at = program.now;
            }
        }
        assert_eq!(tries, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
    }
}
