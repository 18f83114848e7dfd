//! Loops: a part of the pages that a program goes through in order again and again stays in memory.
//!
//! Evicting pages in the order in which they came is the worst choice for a loop that is larger than memory: each page leaves
//! just before it is wanted, and none is ever found. If instead evictors leave a part alone, that part is found each time, and
//! only the rest goes round (the idea of bimodal insertion in processors' caches: Qureshi et al., Adaptive Insertion Policies,
//! ISCA 2007).
//!
//! # How a loop is detected
//!
//! Time is counted in pages that have left, in units of [`UNIT`]. A granule remembers when pages of it left. A stream that
//! fetches them again shows how long ago that was: the *distance* (Linux' refault distance, `mm/workingset.c`). Since pages leave
//! in order, a loop of `n` pages in `c` frames has the distance `n − c`. The distance stays the same while a part of the loop is
//! kept, because kept pages neither leave nor take part. So the policy can say, from distance and frames alone, which share of
//! the loop would fit ([`Policy::keep`]). A granule is in a loop when it has come back twice: one return may be a change of what
//! the program does. A hash of the granule's number says whether it is among those that are kept: the same ones in each round.
//!
//! # How much is kept
//!
//! Kept pages leave less room for all other pages, which must not come and go faster for it than they are used. Rescues show
//! whether they do: a rescued page had left and was wanted at once. When rescues are many, the room for loops is halved; else it
//! grows, up to 7/8 of memory.
//!
//! # When it ends
//!
//! * A kept granule is an ordinary one after [`KEPT_FOR`] memories full of pages have left. If the program still wants it, it
//!   comes back and is kept again.
//! * When no loop has been seen for half a memory full of pages, nothing is kept: the program does something else now.
//! * When an evictor finds nothing but kept granules, or besides them only pages that turn out to be unable to leave, kept
//!   granules are ordinary ones for a batch.
//!
//! All of this state is hints: words that any thread may change at any time. A wrong one costs reads.

use crate::stats::{Count, FaultKind, Stats};
use core::sync::atomic::Ordering;
use farshore_core::frames::Frames;
use farshore_core::seams::{Policy, Return};
use farshore_core::sync::Padded;
use farshore_core::sync::plain::{AtomicU32, AtomicU64};
use farshore_core::table::{Granule, GranuleRef};

/// Pages that leave in one unit of time.
pub(super) const UNIT: u64 = 64;
/// How many memories full of pages leave until a kept granule is an ordinary one.
const KEPT_FOR: u64 = 8;
/// Times that a granule comes back before it is taken to be in a loop.
const RETURNS: u8 = 2;
/// Room for loops, in sixteenths of memory: at the start, …
const ROOM_AT_FIRST: u32 = 8;
/// … and at most.
const ROOM_MAX: u32 = 14;
/// One rescue in this many pages that leave is too many.
const RESCUES_ONE_IN: u64 = 16;

/// What is known of loops.
#[derive(Debug)]
pub(crate) struct Loops {
    /// Now, in units of [`UNIT`]; never 0 once a page has left.
    now: Padded<AtomicU32>,
    /// When a loop was last seen.
    seen_at: Padded<AtomicU32>,
    /// Which share of that loop would fit into all of memory, in 65,536ths.
    fits: AtomicU32,
    /// Room for loops, in sixteenths of memory.
    room: AtomicU32,
    /// When the room was last judged, …
    judged_at: AtomicU32,
    /// … and how many rescues there had been.
    rescues: AtomicU64,
}

impl Default for Loops {
    fn default() -> Loops {
        Loops {
            now: Padded::default(),
            seen_at: Padded::default(),
            fits: AtomicU32::new(0),
            room: AtomicU32::new(ROOM_AT_FIRST),
            judged_at: AtomicU32::new(0),
            rescues: AtomicU64::new(0),
        }
    }
}

/// Units from `then` to `now`, which may lie on either side.
fn since(then: u32, now: u32) -> i32 {
    now.wrapping_sub(then).cast_signed()
}

/// The room for loops after some pages have left, and some of them were rescued.
fn judged(room: u32, left: u64, rescued: u64) -> u32 {
    if rescued * RESCUES_ONE_IN > left { room / 2 } else { (room + 1).min(ROOM_MAX) }
}

/// Whether a granule is among those that are kept, a share of `share` in 65,536ths. Uses the upper bits of a multiplication by
/// 2^64 / golden ratio, so that neighbours fall apart.
fn is_among(id: u64, share: u32) -> bool {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48 < u64::from(share)
}

fn in_units(frames: &Frames) -> i32 {
    (frames.limit() / UNIT).clamp(8, 1 << 24) as i32
}

impl Loops {
    /// The time as of the last batch: the exact time is a sum over all cores.
    pub(super) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// How many pages had left as of the last batch. Goes round.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        u64::from(self.now()) * UNIT
    }

    /// Another policy has the say: no part of a loop is kept until one comes back under it. A fault that has asked the policy
    /// before may still see to it that a part is kept, until no loop was seen for half a memory full of pages.
    pub(crate) fn forget(&self) {
        self.fits.store(0, Ordering::Relaxed);
    }

    /// Pages of `granule` leave.
    #[inline]
    pub(super) fn note_leaving(&self, granule: &Granule) {
        granule.left_at.store(self.now().max(1), Ordering::Relaxed);
    }

    /// A stream fetches pages of granule `g`. Called by faults.
    pub(crate) fn note_stream(&self, g: &Granule, policy: &impl Policy, frames: &Frames) {
        let left_at = g.left_at.load(Ordering::Relaxed);
        if left_at == 0 {
            return;
        }
        let now = self.now();
        let distance = since(left_at, now);
        // Counted once for each time that the granule left.
        if distance <= 0 {
            return;
        }
        g.left_at.store(0, Ordering::Relaxed);
        let fits = policy.keep(Return { distance: u64::from(distance.unsigned_abs()) * UNIT, frames: frames.limit() });
        let returns = if fits == 0 { 0 } else { (g.returns.load(Ordering::Relaxed) + 1).min(RETURNS) };
        g.returns.store(returns, Ordering::Relaxed);
        if returns < RETURNS {
            return;
        }
        g.loops_until.store(now.wrapping_add(KEPT_FOR as u32 * in_units(frames).unsigned_abs()).max(1), Ordering::Relaxed);
        if self.seen_at.load(Ordering::Relaxed) != now {
            self.seen_at.store(now, Ordering::Relaxed);
            self.fits.store(fits.into(), Ordering::Relaxed);
        }
    }

    /// Whether evictors pass a granule over.
    #[inline]
    pub(super) fn is_kept(&self, g: &GranuleRef<'_>, frames: &Frames) -> bool {
        let until = g.granule.loops_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let now = self.now();
        if since(now, until) <= 0 {
            g.granule.loops_until.store(0, Ordering::Relaxed);
            return false;
        }
        let share = self.fits.load(Ordering::Relaxed) * self.room.load(Ordering::Relaxed) / 16;
        is_among(g.id.0, share) && since(self.seen_at.load(Ordering::Relaxed), now) <= in_units(frames) / 2
    }

    /// Sets the time, and now and then judges the room for loops. Called by evictors, after a batch.
    #[inline]
    pub(super) fn judge(&self, stats: &Stats, frames: &Frames) {
        let (at, now) = (self.judged_at.load(Ordering::Relaxed), ((stats.total(Count::Evicted) / UNIT) as u32).max(1));
        self.now.store(now, Ordering::Relaxed);
        let left = since(at, now);
        if left < in_units(frames) / 8 || self.judged_at.compare_exchange(at, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let rescues = stats.faults(FaultKind::Rescue);
        let rescued = rescues.saturating_sub(self.rescues.swap(rescues, Ordering::Relaxed));
        let room = self.room.load(Ordering::Relaxed);
        self.room.store(judged(room, u64::from(left.unsigned_abs()) * UNIT, rescued), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::page::{GranuleId, Page};
    use farshore_core::seams::{Ahead, Came, Fetch, Prefetcher, Verdict};
    use farshore_core::table::PageTable;
    use farshore_core::word::Word;

    #[test]
    fn room_shrinks_fast_and_grows_slowly() {
        assert_eq!(judged(8, 1600, 100), 9);
        assert_eq!(judged(8, 1600, 101), 4);
        assert_eq!(judged(ROOM_MAX, 1600, 0), ROOM_MAX);
        assert_eq!(judged(1, 64, 64), 0);
        assert_eq!(judged(0, 64, 0), 1);
    }

    #[test]
    fn the_share_is_kept_and_those_of_a_smaller_one_are_among_it() {
        for share in [0, 6_553, 32_768, 57_344] {
            let kept = (0..10_000).filter(|&id| is_among(0x3f_0000 + id, share)).count();
            assert!(kept.abs_diff(share as usize * 10_000 / 65_536) < 100, "{kept} of {share}");
        }
        assert!((0..10_000).all(|id| !is_among(id, 10_000) || is_among(id, 20_000)));
    }

    #[test]
    fn time_goes_round() {
        assert_eq!(since(u32::MAX, 4), 5);
        assert_eq!(since(4, u32::MAX), -5);
    }

    /// Keeps a half of whatever comes back, if it comes back at all.
    struct Half;

    impl Policy for Half {
        type Prefetch = Half;
        fn prefetcher(&self) -> &Half {
            self
        }
        fn verdict(&self, _: Page, _: Word) -> Verdict {
            Verdict::Evict
        }
        fn chances(&self, _: Came) -> u8 {
            0
        }
        fn keep(&self, back: Return) -> u16 {
            assert!(back.distance > 0 && back.frames == 4096);
            u16::MAX
        }
    }

    impl Prefetcher for Half {
        fn fetch(&self, _: &dyn Fetch) -> Option<Ahead> {
            None
        }
    }

    #[test]
    fn a_granule_that_comes_back_twice_is_kept_until_loops_are_over() {
        let (loops, frames, stats) = (Loops::default(), Frames::new(4096, 1), Stats::new(1));
        let table = PageTable::new();
        let range = GranuleId(0x10_0000).range();
        table.add(range);
        let g = table.granule(range.start.granule()).unwrap();
        // 7/8 of what would fit: this granule is among them.
        loops.room.store(ROOM_MAX, Ordering::Relaxed);
        let leave = |pages: u64| {
            stats.add(0, Count::Evicted, pages);
            loops.judge(&stats, &frames);
        };
        leave(UNIT);
        for round in 0..2 {
            assert!(!loops.is_kept(&g, &frames), "it has come back {round} times");
            loops.note_leaving(g.granule);
            leave(2 * UNIT);
            loops.note_stream(g.granule, &Half, &frames);
            loops.note_stream(g.granule, &Half, &frames);
        }
        assert!(loops.is_kept(&g, &frames));
        // Another policy comes, and the first one again.
        loops.forget();
        assert!(!loops.is_kept(&g, &frames));
        loops.note_leaving(g.granule);
        leave(2 * UNIT);
        loops.note_stream(g.granule, &Half, &frames);
        assert!(loops.is_kept(&g, &frames));
        leave(frames.limit() / 2 + UNIT);
        assert!(!loops.is_kept(&g, &frames), "no loop was seen for half a memory full of pages");
    }
}
