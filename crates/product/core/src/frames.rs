//! Frames: how much RAM managed pages may take, counted in three levels.
//!
//! A frame is a permission to have one page resident, not an address: the
//! kernel allocates the RAM when a page is mapped (`UFFDIO_COPY`, see
//! `docs/src/decisions/0001-pages-come-by-copy.md`), so identical frames need no
//! queue of identities and each level is a counter (MAGE §5.2 has lists here):
//!
//! 1. a **cache** a core: faults on that core take frames from it, with two adds on one line of the core's own;
//! 2. the **shared** level, refilled by evictors, drained by caches in batches;
//! 3. the **reserve**: frames of the limit that were never handed out.
//!
//! # Equation (`docs/src/internals/invariants.md`, 4)
//!
//! ```text
//! free (shared + reserve) + cached + taken = limit + debt
//! ```
//!
//! `debt` is what a lowered limit still has to get back: frames that are given back pay it first. *taken* is the sum of one count
//! a core, because a frame may be given back on another core than it was taken on. Every movement is an add or a compare-and-swap
//! on one counter each side, so the sum is exact whenever no thread is between the two sides.

use crate::limits::{FRAME_CACHE_BATCH, FRAME_CACHES};
use crate::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering, Padded};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The frames of one memory limit.
#[derive(Debug)]
pub struct Frames {
    limit: AtomicU64,
    /// The highest limit so far.
    limit_peak: AtomicU64,
    debt: Padded<AtomicI64>,
    reserve: Padded<AtomicU64>,
    shared: Padded<AtomicU64>,
    handed_out_peak: Padded<AtomicU64>,
    /// Frames that move at once to a core's cache; 1: caches stay empty.
    batch: u32,
    cores: Box<[Padded<Core>]>,
}

/// What one core writes.
#[derive(Debug)]
struct Core {
    /// Free frames.
    cache: AtomicU32,
    /// Frames taken on this core less frames given back on it: below 0 if more were given back.
    taken: AtomicI64,
}

/// Looks that [`Frames::counts`] takes until it sees both sides of the equation equal.
const LOOKS: usize = 256;

/// Where all frames of a limit are: the two sides of the equation at the module's head.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FrameCounts {
    /// The limit, in frames.
    pub limit: u64,
    /// What a lowered limit still has to get back.
    pub debt: u64,
    /// Free: shared level and reserve.
    pub free: u64,
    /// Free, in the cores' own caches.
    pub cached: u64,
    /// Frames that hold a page, or are about to.
    pub taken: u64,
}

impl FrameCounts {
    /// Frames that are counted nowhere: 0, except for those that other threads move at that moment. Below 0: too many are
    /// counted.
    pub fn missing(&self) -> i64 {
        (self.limit + self.debt).cast_signed() - (self.free + self.cached + self.taken).cast_signed()
    }
}

/// Takes up to `want` from a counter; returns how many it got.
fn draw(counter: &AtomicU64, want: u64) -> u64 {
    let mut now = counter.load(Ordering::Relaxed);
    loop {
        let got = want.min(now);
        if got == 0 {
            return 0;
        }
        // Relaxed would do for the count itself; AcqRel so that a frame's next user also
        // sees what its last user did to the page that it held.
        match counter.compare_exchange_weak(now, now - got, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return got,
            Err(seen) => now = seen,
        }
    }
}

impl Frames {
    /// All frames of `limit` in the reserve; `caches` cores get a cache each.
    pub fn new(limit: u64, caches: usize) -> Frames {
        let core = || Padded(Core { cache: AtomicU32::new(0), taken: AtomicI64::new(0) });
        Frames {
            limit: AtomicU64::new(limit),
            limit_peak: AtomicU64::new(limit),
            debt: Padded(AtomicI64::new(0)),
            reserve: Padded(AtomicU64::new(limit)),
            shared: Padded(AtomicU64::new(0)),
            handed_out_peak: Padded(AtomicU64::new(0)),
            batch: FRAME_CACHE_BATCH,
            cores: (0..caches.clamp(1, FRAME_CACHES)).map(|_| core()).collect::<Vec<_>>().into_boxed_slice(),
        }
    }

    /// Cores keep no free frames: each is taken from what all share ([`crate::ablated`]).
    #[must_use]
    pub fn without_caches(self) -> Frames {
        Frames { batch: 1, ..self }
    }

    fn core(&self, core: usize) -> &Core {
        &self.cores[core % self.cores.len()]
    }

    fn note_taken(&self, core: usize, n: u64) {
        self.core(core).taken.fetch_add(n as i64, Ordering::AcqRel);
    }

    /// To be called after frames have left the shared level or the reserve. At no other time can more frames be taken or cached
    /// than before.
    fn note_handed_out(&self) {
        // While the limit is being raised, the debt is counted with it for a moment.
        let out = self.handed_out().min(self.limit_peak.load(Ordering::Relaxed));
        if out > self.handed_out_peak.load(Ordering::Relaxed) {
            self.handed_out_peak.fetch_max(out, Ordering::Relaxed);
        }
    }

    fn handed_out(&self) -> u64 {
        (self.limit() + self.debt()).saturating_sub(self.free_uncached())
    }

    /// Takes one frame for a fault on `core`; `false` when there is none anywhere.
    #[must_use]
    pub fn take(&self, core: usize) -> bool {
        let cache = &self.core(core).cache;
        if take_cached(cache) {
            self.note_taken(core, 1);
            return true;
        }
        // Level 2, then 3: a batch. One frame of it is for us, the others go to the cache.
        let batch = u64::from(self.batch);
        let want = batch.min((self.free_uncached() / 8).max(1));
        let mut got = draw(&self.shared, want);
        if got == 0 {
            got = draw(&self.reserve, want);
        }
        if got > 0 {
            if got > 1 {
                cache.fetch_add(got as u32 - 1, Ordering::AcqRel);
            }
            self.note_taken(core, 1);
            self.note_handed_out();
            return true;
        }
        // No frame is shared: taking another core's last frame is better than waiting.
        if self.cores.iter().any(|core| take_cached(&core.cache)) {
            self.note_taken(core, 1);
            return true;
        }
        false
    }

    /// Takes up to `want` frames at once on `core` (prefetch, populate), never the last ones that faults may need.
    pub fn take_spare(&self, core: usize, want: u64, keep_free: u64) -> u64 {
        let spare = self.free_uncached().saturating_sub(keep_free);
        let want = want.min(spare);
        let mut got = draw(&self.shared, want);
        got += draw(&self.reserve, want - got);
        if got > 0 {
            self.note_taken(core, got);
            self.note_handed_out();
        }
        got
    }

    /// Takes `n` frames whether they are free or not: for pages that were handed over and come back because the call
    /// failed. Frames that are not free become debt.
    pub fn take_back(&self, core: usize, n: u64) {
        let mut short = n;
        short -= draw(&self.shared, short);
        short -= draw(&self.reserve, short);
        // Cached frames are free too. If they stayed cached beside a debt, they could still be taken beyond the limit.
        for core in &self.cores {
            while short > 0 && take_cached(&core.cache) {
                short -= 1;
            }
        }
        self.debt.fetch_add(short as i64, Ordering::AcqRel);
        self.note_taken(core, n);
        // This may exceed the limit.
        self.handed_out_peak.fetch_max(self.handed_out(), Ordering::Relaxed);
    }

    /// Gives `n` frames back on `core`: to the debt first, the rest to the shared level.
    pub fn give(&self, core: usize, n: u64) {
        if n == 0 {
            return;
        }
        self.core(core).taken.fetch_sub(n as i64, Ordering::AcqRel);
        self.refund(n);
    }

    fn refund(&self, mut n: u64) {
        let mut debt = self.debt.load(Ordering::Acquire);
        while debt > 0 {
            let pay = debt.min(n as i64);
            match self.debt.compare_exchange_weak(debt, debt - pay, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    n -= pay as u64;
                    break;
                }
                Err(seen) => debt = seen,
            }
        }
        self.shared.fetch_add(n, Ordering::AcqRel);
    }

    /// Changes the limit, in frames. Added frames are free at once. When the limit is lowered, free frames go at once and
    /// the rest becomes debt, which evictors work off.
    pub fn set_limit(&self, limit: u64) {
        self.limit_peak.fetch_max(limit, Ordering::Relaxed);
        let old = self.limit.swap(limit, Ordering::AcqRel);
        if limit > old {
            let grown = limit - old;
            // Forgive debt first: those frames were never given back.
            let mut debt = self.debt.load(Ordering::Acquire);
            let forgiven = loop {
                let forgive = debt.max(0).min(grown as i64);
                if forgive == 0 {
                    break 0;
                }
                match self.debt.compare_exchange_weak(debt, debt - forgive, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break forgive as u64,
                    Err(seen) => debt = seen,
                }
            };
            self.reserve.fetch_add(grown - forgiven, Ordering::AcqRel);
        } else {
            let mut less = old - limit;
            less -= draw(&self.reserve, less);
            less -= draw(&self.shared, less);
            for core in &self.cores {
                if less == 0 {
                    break;
                }
                let had = core.cache.swap(0, Ordering::AcqRel);
                let pay = less.min(u64::from(had));
                less -= pay;
                self.shared.fetch_add(u64::from(had) - pay, Ordering::AcqRel);
            }
            self.debt.fetch_add(less as i64, Ordering::AcqRel);
        }
    }

    /// The limit, in frames.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }
    /// Frames that are free and in no core's cache.
    pub fn free_uncached(&self) -> u64 {
        self.shared.load(Ordering::Acquire) + self.reserve.load(Ordering::Acquire)
    }
    /// Frames that a lowered limit still has to get back.
    pub fn debt(&self) -> u64 {
        self.debt.load(Ordering::Acquire).max(0) as u64
    }
    /// Frames that hold a page, or are about to.
    pub fn taken(&self) -> u64 {
        self.cores.iter().map(|core| core.taken.load(Ordering::Acquire)).sum::<i64>().max(0) as u64
    }
    /// The most frames that were ever taken at once, including a few that were only cached then. Never above the limit, plus what
    /// a lowered limit had to get back.
    pub fn taken_peak(&self) -> u64 {
        self.handed_out_peak.load(Ordering::Relaxed)
    }

    /// Frames that cores keep go to what all share. Returns whether there were any.
    pub fn empty_caches(&self) -> bool {
        let kept = self.cores.iter().map(|core| u64::from(core.cache.swap(0, Ordering::AcqRel))).sum();
        self.refund(kept);
        kept > 0
    }

    /// The most frames are counted anew from what is taken now.
    pub fn restart_peak(&self) {
        self.handed_out_peak.store(0, Ordering::Relaxed);
        self.note_handed_out();
    }

    /// Where the frames are, while other threads move them: the first of some looks at which none is missing, else the
    /// last look. A frame that was lost is missing at every look, and so at every call.
    pub fn counts(&self) -> FrameCounts {
        let mut counts = self.look();
        for _ in 1..LOOKS {
            if counts.missing() == 0 {
                break;
            }
            core::hint::spin_loop();
            counts = self.look();
        }
        counts
    }

    /// One look. Frames that other threads move meanwhile may be missing, or counted twice ([`FrameCounts::missing`]).
    pub fn look(&self) -> FrameCounts {
        let cached = self.cores.iter().map(|core| u64::from(core.cache.load(Ordering::Acquire))).sum();
        FrameCounts { limit: self.limit(), debt: self.debt(), free: self.free_uncached(), cached, taken: self.taken() }
    }

    /// Checks the equation of the module head. Only exact while no other thread moves frames.
    ///
    /// # Panics
    /// When a frame was lost or made.
    pub fn assert_valid(&self) {
        let FrameCounts { limit, debt, free, cached, taken } = self.look();
        assert_eq!(
            free + cached + taken,
            limit + debt,
            "free {free} + cached {cached} + taken {taken} = limit {limit} + debt {debt}"
        );
    }
}

fn take_cached(cache: &AtomicU32) -> bool {
    let mut now = cache.load(Ordering::Relaxed);
    while now > 0 {
        match cache.compare_exchange_weak(now, now - 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(seen) => now = seen,
        }
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_frame_can_be_taken_and_none_twice() {
        let f = Frames::new(1000, 4);
        for i in 0..1000 {
            assert!(f.take(i % 7), "frame {i}");
        }
        assert!(!f.take(0));
        f.assert_valid();
        f.give(0, 1000);
        f.assert_valid();
        assert_eq!(f.taken_peak(), 1000);
    }

    #[test]
    fn without_caches_no_frame_is_cached() {
        let all = |frames: Frames| {
            let taken = (0..1000).map(|i| (frames.take(i % 7), frames.look().cached));
            let (taken, cached): (Vec<bool>, Vec<u64>) = taken.unzip();
            frames.assert_valid();
            assert!(taken.iter().all(|&taken| taken) && !frames.take(0), "each frame is taken, and none twice");
            cached.iter().max().copied()
        };
        assert_eq!(all(Frames::new(1000, 4).without_caches()), Some(0));
        assert!(all(Frames::new(1000, 4)) > Some(20), "as a rule there are some");
    }

    #[test]
    fn a_lower_limit_is_paid_off_by_what_is_given() {
        let f = Frames::new(100, 2);
        for _ in 0..80 {
            assert!(f.take(0));
        }
        f.set_limit(50);
        f.assert_valid();
        assert_eq!((f.debt(), f.free_uncached()), (30, 0));
        f.give(1, 40);
        f.assert_valid();
        assert_eq!((f.debt(), f.free_uncached()), (0, 10));
        assert_eq!(f.counts().missing(), 0);
        f.set_limit(200);
        f.assert_valid();
        assert_eq!(f.free_uncached(), 160);
    }

    #[test]
    fn what_cores_keep_can_be_had() {
        let f = Frames::new(1000, 2);
        assert!(f.take(0) && f.take(1));
        assert!(f.look().cached > 20 && f.empty_caches());
        assert_eq!((f.look().cached, f.free_uncached()), (0, 998));
        assert!(!f.empty_caches());
        f.assert_valid();
        assert!((0..10).all(|_| f.take(0)));
        f.set_limit(12);
        f.restart_peak();
        assert_eq!(f.taken_peak(), 12);
        f.give(0, 8);
        f.restart_peak();
        assert!(f.take(1));
        assert_eq!(f.taken_peak(), 5);
    }

    #[test]
    fn growing_forgives_debt() {
        let f = Frames::new(100, 2);
        while f.take(0) {}
        f.set_limit(10);
        f.set_limit(95);
        assert_eq!(f.debt(), 5);
        f.assert_valid();
    }
}
