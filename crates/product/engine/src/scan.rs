//! Which pages a program uses, in two ways: the kernel watches them where they are, or a few are taken away, with the bytes kept, to see which come back.
//!
//! ```text
//!  begin_scan ─▶ Wishes (each page is looked at by one scan) ─▶ the kernel can watch it ─▶ it is marked        settle_scans ─▶ and watched from here on
//!                                                │ it cannot
//!                                                ▼
//!                an evictor: protect, copy to a stage, unmap ─▶ "it has left" is noted
//!                                    │ touched                │ not touched
//!                                    ▼                        ▼
//!                             rescued by its fault      stays in its stage, as any page that has left
//!  end_scan   ─▶ of the pages that have left: those that are back, or have left again, were accessed; those that are back, clean, and left
//!                once were not written. Of those that are watched: as the kernel tells, of pages that have not left
//! ```
//!
//! A process on a stock kernel cannot read the access bits of its page tables, unless it is root's and the kernel was built for it ([`Kernel::watch`]). Where the
//! processor takes samples of loads, they tell of a few pages that they are used, and of none that it is not. Otherwise a look costs what an eviction costs, and a rescue for each
//! page that is used. No page moves in a way of its own: a scan is a wish that pages leave
//! ([`crate::wishes`]), and the bytes are where the bytes of an evicted page are. A dirty page is written, as ever. A page that is not touched has left.
//!
//! What the kernel tells is a hint, as all of this. A page that is watched and of which nothing is heard ([`Use::Unknown`]) is not told of. "Not used" is said of pages alone
//! that have lain in one place from the mark to the end. Who splits a huge page
//! has the kernel forget, and says so (`Wishes::begin_cold`).
//!
//! What scans cost is bounded: [`Allowance`] lets them have [`SHARE`] of one processor's time, by what looks have cost lately.

use crate::stats::Count;
use crate::wishes::{Bits, Ended, NO_PAGES, Now};
use crate::{Engine, MEMORY_CALLS};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use farshore_attach::SCAN_PAGES_MAX as PAGES_MOST;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{GranuleId, Page, PageRange};
use farshore_core::seams::{Clock, Kernel, Use, Watched, World};
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
/// What it costs to have the kernel watch a page and tell of it, before that was measured, and at most; ns.
const WATCH_FIRST_NS: u64 = 5_000;
const WATCH_MOST_NS: u64 = 100_000;
/// What a flush of all TLBs costs the program: its threads find their way to pages anew; ns.
const FLUSH_NS: u64 = 20_000;
/// A kernel that cannot watch pages is asked again so much later: a right may have come, and asking costs next to nothing; ns.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// Pages of a scan are told of so many at a time.
const CHUNK: u64 = 64;
/// The most that is saved up, ns of scanning: enough for the largest scan when it costs most.
const SAVED_MOST_NS: u64 = 100_000_000;

/// What scans have cost.
#[derive(Debug)]
pub(crate) struct Scans {
    /// The eviction of one page, of late; ns.
    evict_ns: AtomicU64,
    /// A page that the kernel is asked to watch, of late; ns.
    watch_ns: AtomicU64,
    /// When the kernel is asked again whether it can watch pages.
    ask_again_ns: AtomicU64,
}

impl Default for Scans {
    fn default() -> Scans {
        Scans {
            evict_ns: AtomicU64::new(EVICT_FIRST_NS),
            watch_ns: AtomicU64::new(WATCH_FIRST_NS),
            ask_again_ns: AtomicU64::new(0),
        }
    }
}

/// Learns what a page costs from a batch of so many, which has taken `ns`.
fn learn(cost: &AtomicU64, ns: u64, pages: u64, most_ns: u64) {
    let Some(each) = ns.checked_div(pages) else { return };
    let (known, new) = (cost.load(Ordering::Relaxed), each.min(most_ns));
    // A batch of a few pages says less than a large one. Two threads that learn at once: one lesson is lost.
    let part = pages.min(16);
    cost.store((known * (64 - part) + new * part) / 64, Ordering::Relaxed);
}

impl Scans {
    /// A batch of so many pages has left in `ns`.
    pub(crate) fn note_cost(&self, ns: u64, pages: u64) {
        learn(&self.evict_ns, ns, pages, EVICT_MOST_NS);
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

    /// Spends `ns` that have been spent already, as far as there is as much.
    fn charge(&mut self, ns: u64) {
        self.saved_ns = self.saved_ns.saturating_sub(ns);
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

/// A bit for each page of a scan, [`CHUNK`] in a word.
type Plane = [u64; (PAGES_MOST / CHUNK) as usize];

/// A scan that is under way: some pages side by side, at most [`PAGES_MOST`].
#[derive(Debug)]
pub struct Scan {
    range: PageRange,
    /// The pages that it looks at, as bits of each granule.
    parts: [(GranuleId, Bits); 2],
    /// Those that the kernel watches, in ascending order.
    watched: Vec<Watched>,
    /// How many it was asked to watch.
    asked: u64,
    /// How long it took to have it do so, ns.
    watch_ns: u64,
    /// They are watched, as far as they can be.
    settled: bool,
    /// Pages that leave for it, or could.
    taken: Plane,
    cost: Cost,
}

/// What one page costs that leaves, ns.
#[derive(Clone, Copy, Debug)]
struct Cost {
    leaving: u64,
    coming: u64,
}

impl Cost {
    const fn both(self) -> u64 {
        self.leaving + self.coming
    }
}

/// Pages of two granules.
fn pages_in(parts: &[(GranuleId, Bits); 2]) -> impl Iterator<Item = Page> {
    parts.iter().flat_map(|(granule, bits)| {
        (0..GRANULE_PAGES).filter(move |n| bits[n / 64] >> (n % 64) & 1 != 0).map(move |n| granule.first().plus(n as u64))
    })
}

impl Scan {
    /// The bits of some of its pages.
    fn plane(&self, pages: impl Iterator<Item = Page>) -> Plane {
        let mut plane = Plane::default();
        for n in pages.map(|page| page.0 - self.range.start.0) {
            plane[(n / CHUNK) as usize] |= 1 << (n % CHUNK);
        }
        plane
    }
}

/// What is said of a page that a scan looks at: that it was looked at, accessed, perhaps written. `now`: its state, and whether its slot has its bytes; `left`, `again`:
/// it has left since the scan began, and more than once; `used`: what the kernel tells of it, if it watches it.
fn judge(now: Option<(State, bool)>, left: bool, again: bool, used: Option<Use>) -> [bool; 3] {
    match (now, used) {
        // It came back meanwhile; whether it was written then is not known.
        _ if again => [true, true, true],
        (Some((State::Resident, clean)), _) if left => [true, true, !clean],
        // A page that is watched has left for another reason, and may have been used before.
        (Some((State::Leaving | State::Out, _)), None) if left => [true, false, false],
        (Some((State::Resident, clean)), Some(Use::Used)) => [true, true, !clean],
        (Some((State::Resident, _)), Some(Use::Unused)) => [true, false, false],
        // It has not left for the scan, or was given up meanwhile, or is on its way, or the kernel does not know.
        _ => [false; 3],
    }
}

impl<W: World> Engine<W> {
    /// Begins to look for `ns` at the resident pages of `range`, but for those that another scan looks at, and spends what that may cost. `None`: there
    /// is not so much left. Some scans after this one, [`Engine::settle_scans`] is to follow.
    ///
    /// # Panics
    /// When they are more than [`PAGES_MOST`].
    pub fn begin_scan(&self, range: PageRange, ns: u64, allowance: &mut Allowance) -> Option<Scan> {
        assert!(range.len() <= PAGES_MOST, "a scan of {} pages", range.len());
        let now_ns = self.clock.now_ns();
        let cost = Cost { leaving: self.scans.evict_ns.load(Ordering::Relaxed) + WRITE_NS, coming: RESCUE_NS };
        let watch_ns = self.scans.watch_ns.load(Ordering::Relaxed);
        let may_watch = now_ns >= self.scans.ask_again_ns.load(Ordering::Relaxed);
        if !allowance.spend(now_ns, range.len() * if may_watch { watch_ns } else { cost.both() }) {
            return None;
        }
        let now = Now { ns: now_ns, is_gone: &|granule| self.is_gone(granule) };
        let (mut parts, mut alone) = ([(range.start.granule(), NO_PAGES); 2], true);
        for (part, place) in range.by_granule().zip(&mut parts) {
            let granule = part.start.granule();
            if self.table.granule(granule).is_some_and(|g| g.granule.touched()) {
                let begun = self.wishes.begin_scan(part, now);
                *place = (granule, begun.pages);
                alone &= begun.alone;
            }
        }
        let mut scan =
            Scan { range, parts, watched: Vec::new(), asked: 0, watch_ns: 0, settled: false, taken: Plane::default(), cost };
        if may_watch {
            let asked = self.watch(&mut scan, alone, ns);
            allowance.give_back((range.len() - asked.unwrap_or(0)) * watch_ns);
            if asked.is_some() {
                return self.take_rest(scan, now_ns, allowance);
            }
            if !allowance.spend(now_ns, range.len() * cost.both()) {
                self.give_up_scan(&scan);
                return None;
            }
        }
        scan.taken = scan.plane(range.iter());
        self.take_for_scan(&scan, &scan.parts);
        Some(scan)
    }

    /// Has the kernel watch the pages of a scan. How many it was asked of; `None`: it cannot.
    fn watch(&self, scan: &mut Scan, alone: bool, ns: u64) -> Option<u64> {
        let is_resident = |page: &Page| self.page(*page).is_some_and(|at| at.word.load().state() == State::Resident);
        let mut pages: Vec<Watched> = pages_in(&scan.parts).filter(is_resident).map(|page| Watched { page, mark: 0 }).collect();
        let (asked, began) = (pages.len() as u64, self.clock.now_ns());
        if asked > 0 && !self.kernel.watch(&mut pages, alone, ns) {
            self.scans.ask_again_ns.store(began + ASK_AGAIN_NS, Ordering::Relaxed);
            return None;
        }
        scan.watch_ns = self.clock.now_ns().saturating_sub(began);
        pages.retain(|watched| watched.mark != 0);
        (scan.watched, scan.asked) = (pages, asked);
        Some(asked)
    }

    /// The pages of a scan that are resident and that the kernel does not watch leave for it, if that can be paid.
    fn take_rest(&self, mut scan: Scan, now_ns: u64, allowance: &mut Allowance) -> Option<Scan> {
        let watched = scan.plane(scan.watched.iter().map(|watched| watched.page));
        let is_watched = |page: Page| {
            let n = page.0 - scan.range.start.0;
            watched[(n / CHUNK) as usize] >> (n % CHUNK) & 1 != 0
        };
        let mut rest = scan.parts.map(|(granule, _)| (granule, NO_PAGES));
        let mut count = 0;
        for page in pages_in(&scan.parts).filter(|&page| !is_watched(page)) {
            if self.page(page).is_some_and(|at| at.word.load().state() == State::Resident) {
                let (n, bit) = (page.index_in_granule() / 64, 1 << (page.index_in_granule() % 64));
                rest.iter_mut().filter(|(granule, _)| *granule == page.granule()).take(1).for_each(|(_, bits)| bits[n] |= bit);
                count += 1;
            }
        }
        if count == 0 {
            return Some(scan);
        }
        if allowance.spend(now_ns, count * scan.cost.both()) {
            scan.taken = scan.plane(pages_in(&rest));
            self.take_for_scan(&scan, &rest);
        } else if scan.watched.is_empty() {
            self.give_up_scan(&scan);
            return None;
        }
        Some(scan)
    }

    /// Pages of a scan leave for it.
    fn take_for_scan(&self, scan: &Scan, parts: &[(GranuleId, Bits); 2]) {
        debug_assert!(parts.iter().zip(&scan.parts).all(|(some, all)| some.0 == all.0));
        for (granule, bits) in parts.iter().filter(|(_, bits)| *bits != NO_PAGES) {
            self.wishes.take_away(*granule, bits);
        }
        if self.wishes.any_leave() {
            self.evictors.pace.wake(&self.futex);
        }
    }

    /// The scan has not begun after all.
    fn give_up_scan(&self, scan: &Scan) {
        for (granule, bits) in &scan.parts {
            self.wishes.end_scan(*granule, bits);
        }
    }

    /// What the kernel watches for these scans is watched from now on. One flush of the TLBs for all of them.
    pub fn settle_scans<'s>(&self, scans: impl Iterator<Item = &'s mut Scan>, allowance: &mut Allowance) {
        let mut watches = None;
        for scan in scans.filter(|scan| !scan.settled) {
            scan.settled = true;
            if !scan.watched.is_empty() && !*watches.get_or_insert_with(|| self.settle(allowance)) {
                scan.watched.iter_mut().for_each(|watched| watched.mark = 0);
            }
        }
    }

    fn settle(&self, allowance: &mut Allowance) -> bool {
        let began = self.clock.now_ns();
        let watches = self.kernel.settle();
        allowance.charge(self.clock.now_ns().saturating_sub(began) + FLUSH_NS);
        watches
    }

    /// Ends a scan, and tells what was seen of its first 64 pages, then the next, and so on. What it did not cost after all is given
    /// back.
    pub fn end_scan(&self, scan: &Scan, allowance: &mut Allowance, mut tell: impl FnMut(PageRange, Seen)) {
        let uses = self.uses(scan);
        // Between the kernel's answer and the end, so that one of the two knows of a page that was made cold meanwhile.
        let forgets = self.wishes.is_cooling();
        let ended = scan.parts.map(|(granule, bits)| (granule, self.wishes.end_scan(granule, &bits)));
        let watched = scan.plane(scan.watched.iter().map(|watched| watched.page));
        let (mut uses, mut from, mut saved) = (scan.watched.iter().zip(uses).peekable(), scan.range.start, 0);
        let mut used_of = |page: Page| {
            let (_, used) = uses.next_if(|(watched, _)| watched.page == page)?;
            Some(if forgets { Use::Unknown } else { used })
        };
        for (&watched, &taken) in watched.iter().zip(&scan.taken) {
            let chunk = PageRange { start: from, end: from.plus(CHUNK.min(scan.range.end.0 - from.0)) };
            if chunk.is_empty() {
                break;
            }
            let seen = self.seen(chunk, &ended, &mut used_of);
            saved += u64::from((taken & !seen.looked).count_ones()) * scan.cost.leaving;
            saved += u64::from((taken & !seen.accessed).count_ones()) * scan.cost.coming;
            self.stats.add(MEMORY_CALLS, Count::Watched, (seen.looked & watched).count_ones().into());
            self.stats.add(MEMORY_CALLS, Count::TakenAway, (seen.looked & !watched).count_ones().into());
            tell(chunk, seen);
            from = chunk.end;
        }
        allowance.give_back(saved);
    }

    /// What the kernel tells of the pages that it watches for a scan.
    fn uses(&self, scan: &Scan) -> Vec<Use> {
        let (mut uses, began) = (alloc::vec![Use::Unknown; scan.watched.len()], self.clock.now_ns());
        if scan.settled && !uses.is_empty() {
            self.kernel.uses(&scan.watched, &mut uses);
        }
        // Of those that it was asked to watch each has cost, also where it watches few.
        let took = self.clock.now_ns().saturating_sub(began) + scan.watch_ns;
        learn(&self.scans.watch_ns, took, scan.asked, WATCH_MOST_NS);
        uses
    }

    fn seen(&self, chunk: PageRange, ended: &[(GranuleId, Ended); 2], used_of: &mut impl FnMut(Page) -> Option<Use>) -> Seen {
        let mut seen = Seen::default();
        for page in chunk.iter() {
            let (n, shift) = (page.index_in_granule() / 64, page.index_in_granule() % 64);
            let has = |which: fn(&Ended) -> &Bits| {
                ended.iter().any(|(granule, ended)| *granule == page.granule() && which(ended)[n] >> shift & 1 != 0)
            };
            let used = used_of(page).map(|used| if has(|ended| &ended.unsure) { Use::Unknown } else { used });
            let (left, again) = (has(|ended| &ended.left), has(|ended| &ended.again));
            if !left && used.is_none() {
                continue;
            }
            let now = self.page(page).map(|at| at.word.load()).map(|word| (word.state(), word.slot().is_some()));
            let bit = 1 << (page.0 - chunk.start.0);
            let planes = [&mut seen.looked, &mut seen.accessed, &mut seen.written];
            for (plane, is) in planes.into_iter().zip(judge(now, left, again, used)) {
                *plane |= if is { bit } else { 0 };
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
        (0..100).for_each(|_| learn(&scans.watch_ns, 1_000 * 50, 50, WATCH_MOST_NS));
        assert!((1_000..1_100).contains(&scans.watch_ns.load(Ordering::Relaxed)));
    }

    #[test]
    fn a_page_is_told_as_unused_only_where_that_is_known() {
        let (here, clean, out, way) = (
            Some((State::Resident, false)),
            Some((State::Resident, true)),
            Some((State::Out, true)),
            Some((State::Leaving, true)),
        );
        const NOTHING: [bool; 3] = [false; 3];
        const UNUSED: [bool; 3] = [true, false, false];
        const READ: [bool; 3] = [true, true, false];
        const WRITTEN: [bool; 3] = [true, true, true];
        // Taken away.
        for (now, left, again, expected) in [
            (here, false, false, NOTHING),
            (here, true, false, WRITTEN),
            (clean, true, false, READ),
            (clean, true, true, WRITTEN),
            (out, true, false, UNUSED),
            (way, true, false, UNUSED),
            (out, true, true, WRITTEN),
            (out, false, false, NOTHING),
            (Some((State::Untouched, false)), true, false, NOTHING),
            (Some((State::Busy, true)), true, false, NOTHING),
            (None, true, false, NOTHING),
        ] {
            assert_eq!(judge(now, left, again, None), expected, "{now:?} left {left} again {again}");
        }
        // Watched.
        for (now, left, again, used, expected) in [
            (here, false, false, Use::Unused, UNUSED),
            (clean, false, false, Use::Unused, UNUSED),
            (here, false, false, Use::Used, WRITTEN),
            (clean, false, false, Use::Used, READ),
            (here, false, false, Use::Unknown, NOTHING),
            // By samples, and none came: whatever its word says.
            (clean, false, false, Use::Unknown, NOTHING),
            (out, true, false, Use::Unknown, NOTHING),
            // It has left meanwhile, after a use or not; or it is back.
            (out, true, false, Use::Unused, NOTHING),
            (way, true, false, Use::Used, NOTHING),
            (clean, true, false, Use::Unused, READ),
            (out, true, true, Use::Unused, WRITTEN),
            // It leaves just now.
            (way, false, false, Use::Unused, NOTHING),
            (Some((State::Busy, false)), false, false, Use::Unused, NOTHING),
            (Some((State::Foreign, false)), false, false, Use::Unused, NOTHING),
            (None, false, false, Use::Used, NOTHING),
        ] {
            assert_eq!(judge(now, left, again, Some(used)), expected, "{now:?} left {left} again {again} {used:?}");
        }
    }
}
