//! Which pages a program uses, found by taking a few away and looking which come back: sampled unmapping, with the bytes kept.
//!
//! ```text
//!  begin_scan ─▶ Wishes ─▶ an evictor: protect, copy to a stage, unmap ─▶ "it has left" is noted
//!                                    │ touched                │ not touched
//!                                    ▼                        ▼
//!                             rescued by its fault      stays in its stage, as any page that has left
//!  end_scan   ─▶ of the pages that have left: those that are back, or have left again, were accessed; those that are back, clean, and left
//!                once were not written
//! ```
//!
//! A process on a stock kernel cannot read the access bits of its page tables. So a look costs what an eviction costs, and a rescue for
//! each page that is used. No page moves in a way of its own: a scan is a wish that pages leave ([`crate::wishes`]), and the bytes are
//! where the bytes of an evicted page are. A dirty page is written, as ever. A page that is not touched has left.
//!
//! What scans cost is bounded: [`Allowance`] lets them have [`SHARE`] of one processor's time, by what looks have cost lately.

use crate::Engine;
use crate::wishes::{Bits, Ended, NO_PAGES, Now};
use core::sync::atomic::Ordering;
use farshore_attach::SCAN_PAGES_MAX as PAGES_MOST;
use farshore_core::page::{GranuleId, PageRange};
use farshore_core::seams::{Clock, World};
use farshore_core::sync::plain::AtomicU64;
use farshore_core::word::State;

/// Scans have one part in so many of a processor's time.
pub const SHARE: u64 = 100;
/// What a page costs besides its eviction, if it is used: the fault that brings it back, with its signal; ns.
const RESCUE_NS: u64 = 10_000;
/// What it costs besides the batch that it left with: the wake-up, and the write of a dirty page; ns. (On a virtual machine with 2 cores the evictor's
/// thread had 25 to 60 µs for a page of such a batch.)
const WRITE_NS: u64 = 20_000;
/// What an eviction costs before one was measured, and at most, for one page; ns.
const EVICT_FIRST_NS: u64 = 10_000;
const EVICT_MOST_NS: u64 = 100_000;
/// The most that is saved up, ns of scanning: enough for the largest scan when it costs most.
const SAVED_MOST_NS: u64 = 100_000_000;

/// What scans have cost.
#[derive(Debug)]
pub(crate) struct Scans {
    /// The eviction of one page, of late; ns.
    evict_ns: AtomicU64,
}

impl Default for Scans {
    fn default() -> Scans {
        Scans { evict_ns: AtomicU64::new(EVICT_FIRST_NS) }
    }
}

impl Scans {
    /// A batch of so many pages has left in `ns`.
    pub(crate) fn note_cost(&self, ns: u64, pages: u64) {
        let Some(each) = ns.checked_div(pages) else { return };
        let (known, new) = (self.evict_ns.load(Ordering::Relaxed), each.min(EVICT_MOST_NS));
        // A batch of a few pages says less than a large one. Two evictors that learn at once: one lesson is lost.
        let part = pages.min(16);
        self.evict_ns.store((known * (64 - part) + new * part) / 64, Ordering::Relaxed);
    }
}

/// What one scanner may still spend.
#[derive(Debug)]
pub struct Allowance {
    saved_ns: u64,
    at_ns: u64,
}

impl Allowance {
    /// From `now_ns` on.
    pub fn new(now_ns: u64) -> Allowance {
        Allowance { saved_ns: 0, at_ns: now_ns }
    }

    /// Spends `ns`, if there is as much. What time has brought is saved, up to a most.
    fn spend(&mut self, now_ns: u64, ns: u64) -> bool {
        let more = now_ns.saturating_sub(self.at_ns) / SHARE;
        self.at_ns += more * SHARE;
        self.saved_ns = (self.saved_ns + more).min(SAVED_MOST_NS);
        let fits = ns <= self.saved_ns;
        if fits {
            self.saved_ns -= ns;
        }
        fits
    }

    /// Gives back what was not spent after all.
    pub fn give_back(&mut self, ns: u64) {
        self.saved_ns = (self.saved_ns + ns).min(SAVED_MOST_NS);
    }
}

/// What a scan has seen of up to 64 pages side by side, a bit each, the first one's lowest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Pages that were looked at. Of others (absent, pinned, locked, on their way, used by a system call) nothing is known.
    pub looked: u64,
    /// Of them, those that were accessed. A page that came along with a neighbour counts as such.
    pub accessed: u64,
    /// Of those, the ones that may have been written; others certainly were not.
    pub written: u64,
}

/// A scan that is under way: some pages side by side, at most [`PAGES_MOST`].
#[derive(Debug)]
pub struct Scan {
    range: PageRange,
    /// The pages that it looks at, as bits of each granule.
    parts: [(GranuleId, Bits); 2],
    cost: Cost,
}

/// What one page costs, ns.
#[derive(Clone, Copy, Debug)]
struct Cost {
    leaving: u64,
    coming: u64,
}

impl<W: World> Engine<W> {
    /// Begins to look at the resident pages of `range`, but for those that another scan looks at, and spends what that may cost. `None`: there
    /// is not so much left.
    ///
    /// # Panics
    /// When they are more than [`PAGES_MOST`].
    pub fn begin_scan(&self, range: PageRange, allowance: &mut Allowance) -> Option<Scan> {
        assert!(range.len() <= PAGES_MOST, "a scan of {} pages", range.len());
        let cost = Cost { leaving: self.scans.evict_ns.load(Ordering::Relaxed) + WRITE_NS, coming: RESCUE_NS };
        if !allowance.spend(self.clock.now_ns(), range.len() * (cost.leaving + cost.coming)) {
            return None;
        }
        let now = Now { ns: self.clock.now_ns(), is_gone: &|granule| self.is_gone(granule) };
        let mut parts = [(range.start.granule(), NO_PAGES); 2];
        for (part, place) in range.by_granule().zip(&mut parts) {
            let touched = |granule| self.table.granule(granule).is_some_and(|g| g.granule.touched());
            let granule = part.start.granule();
            *place = (granule, if touched(granule) { self.wishes.begin_scan(part, now) } else { NO_PAGES });
        }
        if parts.iter().any(|(_, bits)| *bits != NO_PAGES) {
            self.evictors.pace.wake(&self.futex);
        }
        Some(Scan { range, parts, cost })
    }

    /// Ends a scan, and tells what was seen of its first 64 pages, then the next, and so on. What it did not cost after all is given
    /// back.
    pub fn end_scan(&self, scan: &Scan, allowance: &mut Allowance, mut tell: impl FnMut(PageRange, Seen)) {
        let ended = scan.parts.map(|(granule, bits)| (granule, self.wishes.end_scan(granule, &bits)));
        let (mut from, mut saved) = (scan.range.start, 0);
        while from.0 < scan.range.end.0 {
            let chunk = PageRange { start: from, end: from.plus(64.min(scan.range.end.0 - from.0)) };
            let seen = self.seen(chunk, &ended);
            saved += (chunk.len() - u64::from(seen.looked.count_ones())) * scan.cost.leaving;
            saved += (chunk.len() - u64::from(seen.accessed.count_ones())) * scan.cost.coming;
            tell(chunk, seen);
            from = chunk.end;
        }
        allowance.give_back(saved);
    }

    fn seen(&self, chunk: PageRange, ended: &[(GranuleId, Ended); 2]) -> Seen {
        let mut seen = Seen::default();
        for page in chunk.iter() {
            let (n, shift) = (page.index_in_granule() / 64, page.index_in_granule() % 64);
            let has = |which: fn(&Ended) -> &Bits| {
                ended.iter().any(|(granule, ended)| *granule == page.granule() && which(ended)[n] >> shift & 1 != 0)
            };
            if !has(|ended| &ended.left) {
                continue;
            }
            let bit = 1 << (page.0 - chunk.start.0);
            let state = self.page(page).map(|at| at.word.load());
            let (looked, accessed, written) = match state.map(|word| (word.state(), word.slot())) {
                // It came back meanwhile; whether it was written then is not known.
                _ if has(|ended| &ended.again) => (true, true, true),
                Some((State::Resident, slot)) => (true, true, slot.is_none()),
                Some((State::Leaving | State::Out, _)) => (true, false, false),
                // Given up meanwhile, or on its way.
                Some((State::Untouched | State::Foreign | State::Busy, _)) | None => (false, false, false),
            };
            for (which, is) in [(&mut seen.looked, looked), (&mut seen.accessed, accessed), (&mut seen.written, written)] {
                *which |= if is { bit } else { 0 };
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scans_have_their_share_of_the_time_and_no_more() {
        let second = 1_000_000_000;
        let mut allowance = Allowance::new(0);
        while allowance.spend(0, 30_000) {}
        let mut looked = 0;
        for now in (0..=10 * second).step_by(1_000_000) {
            looked += u64::from(allowance.spend(now, 30_000));
        }
        assert!((3_300..=3_334).contains(&looked), "{looked} looks of 30 µs in a hundredth of ten seconds");
        // What an idle hour has saved is spent in a moment of a stated length.
        let saved = (0..).take_while(|_| allowance.spend(3600 * second, 30_000)).count() as u64;
        assert_eq!(saved, SAVED_MOST_NS / 30_000);
        allowance.give_back(u64::MAX / 2);
        assert!(allowance.spend(3600 * second, SAVED_MOST_NS) && !allowance.spend(3600 * second, 1));
    }

    #[test]
    fn the_cost_of_a_look_is_learned() {
        let scans = Scans::default();
        (0..100).for_each(|_| scans.note_cost(3_000 * 50, 50));
        assert!((3_000..3_100).contains(&scans.evict_ns.load(Ordering::Relaxed)));
        scans.note_cost(30_000_000_000, 1);
        assert!(scans.evict_ns.load(Ordering::Relaxed) < 5_000, "a disk that stood still once");
        scans.note_cost(7, 0);
    }
}
