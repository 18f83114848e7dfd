//! Hedged reads: a read that is late at one server is sent to a second one too, and the first answer counts.
//!
//! ```text
//!  begin at the copy that is chosen, into the caller's buffer
//!    │ it ends in time ────────────────────────────────────────────▶ as any read
//!    ▼ late, and the budget allows it
//!  begin at another copy that has all the pages, into a spare place
//!    ├─ the first one ends ── the second is withdrawn ─────────────▶ from the first
//!    ├─ the second one ends ─ the first is withdrawn, and then
//!    │                        what the spare place has is copied ──▶ from the second
//!    └─ neither, or both fail ─────────────────────────────────────▶ an error, as before
//! ```
//!
//! # Invariants
//!
//! - **Two requests never have one buffer**, and each buffer stays borrowed by its request until that has ended or was withdrawn
//!   ([`Asked`](crate::nbd::Asked)): the compiler sees to that. What makes it true is in the protocol of [`line`](crate::nbd): from a withdrawn request on no answer is
//!   written anywhere, however late it comes, and whatever the slot, the buffer and the request's place are used for by then.
//! - **The copy that a page is from is the one that is said to have served it**, or the engine would doubt the other when the page's sum is wrong. (The sums lie in the
//!   engine, above the encryption. So the first answer counts, and not the first right one: where it is wrong, the engine doubts it and reads again.)
//! - **At most one page in [`SHARE`] is asked for twice**, and [`IN_ADVANCE`] pages more in all: a network that is slow everywhere does not get twice the load. Pages are
//!   counted, since they are what fills a network.
//!
//! # When a read is late
//!
//! After half as much again as 95 in 100 of that copy's reads of this size have taken of late, and never before [`LATE_LEAST_NS`]. By a higher share a copy that is slow
//! in one read of a hundred would seem to be as it always is.
//!
//! A copy that is slow with every read is asked now and then all the same, to see whether it still is. It is late by what the quickest copy's reads take: nobody waits for
//! it to find out. What such a read would have taken is not known then, but that it is more: it makes the copy slower in our eyes and never quicker.
//!
//! # Disks
//!
//! Only servers are asked so. A disk that hangs gives neither the thread nor its buffer back, so a read of a disk cannot be left, and one that is hedged by a disk could end
//! later than without.

use super::Shared;
use super::place::Opened;
use crate::any::AnyBackend;
use crate::file::bytes_of;
use crate::nbd::{Asked, End, NbdSpace, wait_for_any};
use crate::reserved::Reserved;
use crate::sleep;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use farshore_core::seams::{IoError, PageBuf, Reads};
use farshore_core::word::Slot;
use rustix::io::Errno;

/// One page in so many may be asked for twice …
const SHARE: u64 = 20;
/// … and so many before any was read, or after a time without late reads.
const IN_ADVANCE: u64 = PAGES as u64;
/// No read is late before this, in ns: the kernel's timers are no finer.
const LATE_LEAST_NS: u64 = 50_000;
/// A server that is given up after some time is late after this part of it.
const GIVE_UPS: u64 = 4;
/// Sizes of reads that are told apart: 1 page, 2, 4 …, and 64.
const SIZES: usize = 7;
/// What a read that takes longer than the percentile adds to it, and one that does not takes off, in parts of it. Where the two are in balance, 1 in 20 takes longer.
const STEP: u64 = 128;
const UP: u64 = 19;
/// Pages of the longest read that is hedged: the engine's longest.
const PAGES: usize = 64;
/// Reads that are hedged at a time. Others wait as they would without.
const SPARES: u32 = 16;

/// What the reads of a copy have taken of late, by their size: the 95th percentile, ns; 0: not known. Threads may overwrite what others have added.
#[derive(Debug, Default)]
pub(super) struct Late([AtomicU64; SIZES]);

impl Late {
    fn of(&self, pages: usize) -> &AtomicU64 {
        &self.0[(pages.max(1).ilog2() as usize).min(SIZES - 1)]
    }

    /// Nothing is known.
    pub(super) fn forget(&self) {
        self.0.iter().for_each(|usual| usual.store(0, Ordering::Relaxed));
    }

    /// After how many ns a read of so many pages is late.
    fn after(&self, pages: usize) -> Option<u64> {
        let usual = self.of(pages).load(Ordering::Relaxed);
        (usual != 0).then(|| (usual + usual / 2).max(LATE_LEAST_NS))
    }

    /// A read of so many pages would have taken more than that.
    pub(super) fn took_more(&self, pages: usize, ns: u64) {
        if ns > self.of(pages).load(Ordering::Relaxed) {
            self.took(pages, ns);
        }
    }

    /// A read of so many pages has taken so long.
    pub(super) fn took(&self, pages: usize, ns: u64) {
        let place = self.of(pages);
        let before = place.load(Ordering::Relaxed);
        let now = match before {
            0 => ns.saturating_mul(2),
            _ if ns > before => before.saturating_add((before / STEP).max(1).saturating_mul(UP)),
            _ => before - before / STEP,
        };
        place.store(now.max(1), Ordering::Relaxed);
    }
}

/// The budget of hedged reads, and the places for what second copies answer.
#[derive(Debug)]
pub(super) struct Hedges {
    /// Pages that may be asked for, in parts of a [`SHARE`]th.
    tokens: AtomicU64,
    spares: Reserved,
    /// A bit for each that is in use.
    taken: AtomicU32,
}

impl Hedges {
    /// The error has the bytes that are not to be had.
    pub(super) fn new() -> Result<Hedges, (u64, Errno)> {
        let bytes = u64::from(SPARES) * (PAGES * size_of::<PageBuf>()) as u64;
        let spares = Reserved::new(bytes).map_err(|errno| (bytes, errno))?;
        Ok(Hedges { tokens: AtomicU64::new(IN_ADVANCE * SHARE), spares, taken: AtomicU32::new(0) })
    }

    /// In a forked child: the threads that had places are its parent's.
    pub(super) fn forked(&self) {
        self.taken.store(0, Ordering::Release);
    }

    /// So many pages are read.
    fn earn(&self, pages: usize) {
        self.give(pages as u64);
    }

    fn give(&self, tokens: u64) {
        let more = |now: u64| (now < IN_ADVANCE * SHARE).then(|| (now + tokens).min(IN_ADVANCE * SHARE));
        // A change and not a store: what another thread spends meanwhile stays spent.
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether so many pages may be asked for twice; if so, they are counted.
    fn spend(&self, pages: usize) -> bool {
        let less = |now: u64| now.checked_sub(pages as u64 * SHARE);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// They were not asked for.
    fn refund(&self, pages: usize) {
        self.give(pages as u64 * SHARE);
    }

    /// A place for up to [`PAGES`] pages, if one is free.
    fn spare(&self) -> Option<Spare<'_>> {
        loop {
            let number = self.taken.load(Ordering::Relaxed).trailing_ones();
            if number >= SPARES {
                return None;
            }
            // Acquire: pairs with the Release of the one who had it before.
            if self.taken.fetch_or(1 << number, Ordering::Acquire) >> number & 1 == 0 {
                return Some(Spare { hedges: self, number });
            }
        }
    }
}

/// A place that this thread has.
struct Spare<'h> {
    hedges: &'h Hedges,
    number: u32,
}

impl Spare<'_> {
    fn pages(&mut self, count: usize) -> &mut [PageBuf] {
        assert!(count <= PAGES, "{count} pages do not fit");
        let first = self.hedges.spares.nth::<PageBuf>(self.number as usize * PAGES);
        // SAFETY: the place's `PAGES` pages lie within the mapping, which lives as long as `hedges`; any bytes are pages; the bit says that they are ours alone, and
        // the borrow of `self` that we hand them out once.
        unsafe { core::slice::from_raw_parts_mut(first, count) }
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next one.
        self.hedges.taken.fetch_and(!(1 << self.number), Ordering::Release);
    }
}

fn device(errno: Errno) -> IoError {
    IoError::Device(errno.raw_os_error())
}

impl Shared {
    /// Reads slots that copy `copy` has all of, whose space is held. Returns the copy that the pages are from.
    ///
    /// # Errors
    /// Of that copy: the pages may be on another one.
    pub(super) fn fetch(&self, copy: usize, space: &AnyBackend, first: Slot, into: &mut [PageBuf]) -> Result<usize, IoError> {
        let it = &self.copies[copy];
        self.hedges.earn(into.len());
        if let AnyBackend::Nbd(export) = space
            && let Some(late_ns) = self.late_after(copy, into.len())
            && let Some(read) = self.read_hedged(copy, export, late_ns, first, into)
        {
            return read;
        }
        let begun = sleep::now_ns();
        space.read_run(first, into)?;
        it.took(into.len(), sleep::now_ns() - begun);
        Ok(copy)
    }

    /// After how many ns a read of so many pages from that copy is late; `None`: not known.
    fn late_after(&self, copy: usize, pages: usize) -> Option<u64> {
        let up = self.up();
        let all = (0..self.copies.len()).filter(|&n| up >> n & 1 != 0);
        let quickest = all.min_by_key(|&n| self.copies[n].read_ns.load(Ordering::Relaxed)).filter(|&n| n != copy);
        [Some(copy), quickest].into_iter().flatten().filter_map(|n| self.copies[n].late.after(pages)).min()
    }

    /// As [`Shared::fetch`]. `None`: it takes more than a request, or the connection was lost.
    fn read_hedged(
        &self,
        copy: usize,
        export: &NbdSpace,
        late_ns: u64,
        first: Slot,
        into: &mut [PageBuf],
    ) -> Option<Result<usize, IoError>> {
        let (it, pages, begun) = (&self.copies[copy], into.len(), sleep::now_ns());
        let one = export.begin_request(first, into)?;
        wait_for_any(&[&one], begun + late_ns.min(export.give_up_ns() / GIVE_UPS));
        if one.ended().is_none()
            && let Some((other, space, mut spare)) = self.second(copy, first, pages)
        {
            let (them, since, place) = (&self.copies[other], sleep::now_ns(), spare.pages(pages));
            let ends = begin(&space, first, place).map(|two| {
                it.hedged.fetch_add(1, Ordering::Relaxed);
                wait_for_any(&[&one, &two], begun + export.give_up_ns());
                let ends = (one.ended(), two.ended());
                if ends == (None, None) {
                    two.give_up();
                }
                // The second is withdrawn here, unless it has ended: the place is ours again.
                ends
            });
            match ends {
                None => self.hedges.refund(pages),
                Some((None, None)) => {
                    one.give_up();
                    return Some(Err(device(Errno::TIMEDOUT)));
                }
                Some((Some(End::Done), end)) => self.has_ended(other, end, first, pages),
                Some((end, Some(End::Done))) => {
                    // Withdrawn as well: the buffer is ours.
                    drop(one);
                    bytes_of(into).copy_from_slice(bytes_of(place));
                    let now = sleep::now_ns();
                    it.hedged_won.fetch_add(1, Ordering::Relaxed);
                    it.took_more(pages, now - begun);
                    them.took(pages, now - since);
                    self.has_ended(copy, end, first, pages);
                    return Some(Ok(other));
                }
                Some((_, end)) => self.has_ended(other, end, first, pages),
            }
        }
        match one.wait() {
            End::Done => {
                it.took(pages, sleep::now_ns() - begun);
                Some(Ok(copy))
            }
            End::Failed(errno) => Some(Err(device(errno))),
            End::Lost | End::Unsent => None,
        }
    }

    /// A server other than `copy` that has all of these pages, and a place for them, if the budget allows it.
    fn second(&self, copy: usize, first: Slot, pages: usize) -> Option<(usize, Opened<'_>, Spare<'_>)> {
        if pages > PAGES {
            return None;
        }
        let able = self.up() & !(1 << copy);
        let others = (0..self.copies.len()).filter(|&n| able >> n & 1 != 0).filter_map(|n| Some((n, self.copies[n].held()?)));
        // Looked at while it is held: another copy may have come to its place.
        let is_able =
            |(n, space): &(usize, Opened<'_>)| matches!(**space, AnyBackend::Nbd(_)) && self.run_on(*n, first, pages) == pages;
        let fastest = |(n, _): &(usize, Opened<'_>)| self.copies[*n].read_ns.load(Ordering::Relaxed);
        let (other, space) = others.filter(is_able).min_by_key(fastest)?;
        let spare = self.hedges.spare()?;
        self.hedges.spend(pages).then_some((other, space, spare))
    }

    /// How a copy's part of a hedged read has ended, whose answer does not count. (A lost connection is for the next reader to find out about.)
    fn has_ended(&self, copy: usize, end: Option<End>, first: Slot, pages: usize) {
        if let Some(End::Failed(errno)) = end {
            self.copies[copy].failed(device(errno));
            // Which of several it is shows when each is read by itself.
            if pages == 1 {
                self.cannot_read(copy, first);
            }
        }
    }
}

/// Begins the read at a second server.
fn begin<'s, 'b>(space: &'s AnyBackend, first: Slot, place: &'b mut [PageBuf]) -> Option<Asked<'s, 'b>> {
    match space {
        AnyBackend::Nbd(export) => export.begin_request(first, place),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_twentieth_and_what_is_there_at_first() {
        let hedges = Hedges::new().unwrap();
        let mut spent = 0;
        for _ in 0..10_000 {
            hedges.earn(4);
            spent += if hedges.spend(4) { 4 } else { 0 };
        }
        let most = 40_000 / SHARE + IN_ADVANCE;
        assert!((most - 4..=most).contains(&spent), "{spent} of {most}");
        // A time without late reads gives no more than that.
        hedges.earn(1 << 20);
        let burst = (0..1000).filter(|_| hedges.spend(1)).count();
        assert_eq!(burst as u64, IN_ADVANCE);
        hedges.refund(3);
        assert_eq!((0..9).filter(|_| hedges.spend(1)).count(), 3);
    }

    #[test]
    fn no_token_is_spent_twice() {
        const EARNED: u64 = 4_000_000;
        let hedges = Hedges::new().unwrap();
        let over = AtomicU32::new(0);
        let spent = std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..EARNED).for_each(|_| hedges.earn(1));
                over.store(1, Ordering::Release);
            });
            let mut spent = 0;
            while over.load(Ordering::Acquire) == 0 {
                spent += u64::from(hedges.spend(1));
            }
            spent
        });
        assert!(spent <= EARNED / SHARE + IN_ADVANCE, "{spent}");
    }

    #[test]
    fn late_is_what_one_in_twenty_takes_and_half_of_it() {
        let mut random = farshore_random::Rng::new(3);
        let late = Late::default();
        assert_eq!(late.after(1), None, "nothing is known");
        // Evenly from 1 to 2 ms; of several pages ten times that.
        for _ in 0..20_000 {
            let ns = 1_000_000 + random.below(1_000_000);
            late.took(1, ns);
            late.took(8, 10 * ns);
        }
        // By the noise of the estimate, which goes up by 15 % in a step.
        let usual = [1, 8].map(|pages| late.after(pages).unwrap() * 2 / 3);
        assert!((1_600_000..2_300_000).contains(&usual[0]) && (16_000_000..23_000_000).contains(&usual[1]), "{usual:?}");
        assert_eq!(late.after(9), late.after(15));
        assert_eq!((late.after(16), late.after(64)), (None, None));
        // One in a hundred that takes long changes little.
        for n in 0..20_000 {
            late.took(1, if n % 100 == 0 { 100_000_000 } else { 1_000_000 + random.below(1_000_000) });
        }
        assert!(late.after(1).unwrap() < 4_000_000);
        // It follows, up and down, and has a floor.
        (0..200).for_each(|_| late.took(1, 50_000_000));
        assert!(late.after(1).unwrap() > 50_000_000);
        // Reads that were left tell that it is slow, and never that it is quick.
        let slow = late.after(1);
        (0..20_000).for_each(|_| late.took_more(1, 10_000));
        assert_eq!(late.after(1), slow);
        late.took_more(1, 1 << 40);
        assert!(late.after(1) > slow);
        (0..20_000).for_each(|_| late.took(1, 10_000));
        assert_eq!(late.after(1), Some(LATE_LEAST_NS));
    }

    #[test]
    fn a_place_has_one_owner() {
        let hedges = Hedges::new().unwrap();
        let mut all: Vec<_> = (0..SPARES).map(|_| hedges.spare().expect("one is free")).collect();
        assert!(hedges.spare().is_none());
        for (n, spare) in all.iter_mut().enumerate() {
            spare.pages(PAGES).iter_mut().for_each(|page| page.0.fill(n as u8));
        }
        for (n, spare) in all.iter_mut().enumerate() {
            assert!(spare.pages(PAGES).iter().all(|page| page.0.iter().all(|&byte| byte == n as u8)));
        }
        all.remove(5);
        assert_eq!(hedges.spare().map(|spare| spare.number), Some(5));
        // A child has none of the threads that have the others.
        std::mem::forget(all);
        assert!(hedges.spare().is_some());
        hedges.forked();
        let again: Vec<_> = (0..SPARES).map_while(|_| hedges.spare()).collect();
        assert_eq!(again.len(), SPARES as usize);
    }
}
