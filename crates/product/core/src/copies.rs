//! Which of its copies hold a slot's page: one word for each slot of a space that is kept more than once.
//!
//! A copy may be away for a while. What is written meanwhile it does not have: its slots are *stale*, until somebody copies them from another
//! one. That may happen at any time, also when the program writes the slot, so the two have to agree.
//!
//! # Protocol
//!
//! The engine has one transfer of a slot under way at a time. So a writer is alone, but for the one who repairs.
//!
//! ```text
//!  writer                                           who repairs (one thread a space)
//!  begin_write   WRITING, HAS                       begin_copy   only where it is stale, and nobody is WRITING: COPYING
//!    COPYING too? SPOILED, and the copy that is     reads it from a copy that is not stale, writes it
//!    repaired is left out                           end_copy     COPYING goes; stale no more, unless it is SPOILED
//!  end_write     stale where it was not written
//! ```
//!
//! So a copy of a slot never has two writes under way, and what was copied counts only if nobody has written the slot since. Readers
//! take any copy that is not stale.
//!
//! A reader notes which copy it has taken ([`SlotCopies::served`]). If the bytes turn out to be wrong, that copy is stale, and *in doubt*
//! ([`SlotCopies::doubt`]): it did have the page, and may have it still, since a bit may have turned on the way. Where it is the last, those that were in doubt
//! before it are asked again; and so they are where the others are gone ([`SlotCopies::trust`]).
//!
//! # Copies that come and go
//!
//! A number without a copy is stale in each slot that has a page, since no write was its. So a copy that comes is stale everywhere, and the repair fills it as one that
//! was away. One that goes takes no write that begins from then on, its *life* ends, and it is made stale slot by slot where the ones that stay have the page
//! ([`SlotCopies::retire`]). A write that began before finds the life ended when it ends, and does not count that copy.
//!
//! ```text
//!  writer, at the end                                 who ends a copy's life
//!  counts: on its way                                 the life is another one
//!  end_write for each slot, but for copies            waits until no writer is on its way that was when it looked
//!    whose life is another one than at the start      retire, or lose, for each slot
//!  counts: at rest
//! ```
//!
//! Each of the two stores first and looks then, with a `SeqCst` fence between. So a writer that does not see the new life has ended before the slots are gone through, and no copy is right
//! for an instant that has not got the page. (A repair might take it from there just then.)

use crate::sync::{AtomicU16, Ordering};

/// The most copies of a space.
pub const COPIES_MAX: usize = 3;

/// Copies, a bit each.
pub type CopySet = u8;

const ALL: u16 = (1 << COPIES_MAX) - 1;
const HAS: u16 = 1 << 3;
const WRITING: u16 = 1 << 4;
const COPYING: u16 = 1 << 5;
const SPOILED: u16 = 1 << 6;
const SERVED_AT: u32 = 7;
const SERVED: u16 = 3 << SERVED_AT;
/// A bit for each copy that is stale because it was in doubt.
const DOUBT_AT: u32 = 9;
const DOUBTS: u16 = ALL << DOUBT_AT;

/// The copies of `word` that are in doubt.
const fn doubted(word: u16) -> u16 {
    word >> DOUBT_AT & ALL
}

/// One slot. Zeros: it has no page.
#[derive(Debug, Default)]
pub struct SlotCopies(AtomicU16);

/// How the stale copies of a slot have changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turned {
    /// Those that are stale now, and were not.
    pub stale: CopySet,
    /// Those that were, and are not.
    pub right: CopySet,
}

impl Turned {
    fn between(before: u16, now: u16) -> Turned {
        Turned { stale: (now & !before & ALL) as CopySet, right: (before & !now & ALL) as CopySet }
    }
}

impl SlotCopies {
    /// A slot without a page.
    #[must_use]
    pub fn new() -> SlotCopies {
        SlotCopies(AtomicU16::new(0))
    }

    /// Changes the word; the word before, and after.
    fn change(&self, to: impl Fn(u16) -> Option<u16>) -> Result<(u16, u16), u16> {
        let mut before = self.0.load(Ordering::Acquire);
        loop {
            let now = to(before).ok_or(before)?;
            match self.0.compare_exchange(before, now, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok((before, now)),
                Err(other) => before = other,
            }
        }
    }

    /// As [`SlotCopies::change`], where nothing is in the way.
    fn turn(&self, to: impl Fn(u16) -> u16) -> (u16, u16) {
        match self.change(|word| Some(to(word))) {
            Ok(both) => both,
            Err(word) => (word, word),
        }
    }

    /// The copies that do not have the page.
    #[must_use]
    pub fn stale(&self) -> CopySet {
        (self.0.load(Ordering::Acquire) & ALL) as CopySet
    }

    /// Whether the slot has a page.
    #[must_use]
    pub fn has_page(&self) -> bool {
        self.0.load(Ordering::Acquire) & HAS != 0
    }

    /// A page is about to be written. Returns whether the slot is being repaired: the copy that it is repaired in is left out.
    #[must_use]
    pub fn begin_write(&self) -> bool {
        let (before, _) = self.turn(|word| word | HAS | WRITING | if word & COPYING != 0 { SPOILED } else { 0 });
        before & COPYING != 0
    }

    /// It was written, by these copies.
    pub fn end_write(&self, right: CopySet) -> Turned {
        let stale = !u16::from(right) & ALL;
        let (before, now) = self.turn(|word| word & !(ALL | WRITING | SERVED | DOUBTS) | stale);
        Turned::between(before, now)
    }

    /// These copies have lost what they had.
    pub fn lose(&self, copies: CopySet) -> Turned {
        let lost = u16::from(copies) & ALL;
        let (before, now) = self.turn(|word| if word & HAS != 0 { word & !(lost << DOUBT_AT) | lost } else { word });
        Turned::between(before, now)
    }

    /// Copy `copy` is taken away: it counts no more for this slot. `None`: it does, since one of `staying` does not have the page which it has. A write that is
    /// under way is the writer's business, who looks at the copy's life when it ends.
    pub fn retire(&self, copy: usize, staying: CopySet) -> Option<Turned> {
        let turned = self.change(|word| {
            if word & HAS == 0 {
                return Some(word);
            }
            let is_needed = word >> copy & 1 == 0 && word & WRITING == 0 && u16::from(staying) & word & ALL != 0;
            (!is_needed).then_some(word & !(1 << copy << DOUBT_AT) | 1 << copy)
        });
        turned.ok().map(|(before, now)| Turned::between(before, now))
    }

    /// Whether copy `copy` has the page, and one of `staying` does not.
    #[must_use]
    pub fn needs(&self, copy: usize, staying: CopySet) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & HAS != 0 && word & WRITING == 0 && word >> copy & 1 == 0 && u16::from(staying) & word & ALL != 0
    }

    /// Begins a repair of copy `to`. Returns the copies that are stale: the page comes from another. `None`: there is nothing to repair, nothing to repair it
    /// from, or the slot is being written.
    #[must_use]
    pub fn begin_copy(&self, to: usize, copies: CopySet) -> Option<CopySet> {
        let (before, _) = self
            .change(|word| {
                let is_free = word & (WRITING | COPYING) == 0;
                let has_source = u16::from(copies) & !word & ALL != 0;
                (is_free && has_source && word >> to & 1 != 0).then_some(word & !SPOILED | COPYING)
            })
            .ok()?;
        Some((before & ALL) as CopySet)
    }

    /// The repair of copy `to` has ended; `done`: the copy has the page that the others had. Returns whether it has the slot's page.
    pub fn end_copy(&self, to: usize, done: bool) -> bool {
        let (before, now) = self.turn(|word| {
            let right = if done && word & SPOILED == 0 { 1 << to } else { 0 };
            word & !(COPYING | SPOILED | right | right << DOUBT_AT)
        });
        before & !now & 1 << to != 0
    }

    /// The repair that was begun finds that nobody needs what the slot has, since it began: the slot is as one that was never written. One that somebody has begun to
    /// write since is left alone. Returns how the copies have changed.
    pub fn end_unneeded(&self) -> Turned {
        let (before, now) = self.turn(|word| if word & SPOILED != 0 { word & !(COPYING | SPOILED) } else { 0 });
        Turned::between(before, now)
    }

    /// The slot has no page any more. `None`: it is being repaired, so not yet.
    pub fn forget(&self) -> Option<Turned> {
        let forgotten = self.change(|word| (word & (COPYING | WRITING) == 0).then_some(0)).ok()?;
        Some(Turned::between(forgotten.0, forgotten.1))
    }

    /// A reader has its page from this copy.
    pub fn served(&self, copy: usize) {
        let served = (copy as u16 + 1) << SERVED_AT;
        if self.0.load(Ordering::Relaxed) & SERVED != served {
            self.turn(|word| word & !SERVED | served);
        }
    }

    /// The copy that has served the last reader, if nobody has written since.
    #[must_use]
    pub fn server(&self) -> Option<usize> {
        usize::from((self.0.load(Ordering::Acquire) & SERVED) >> SERVED_AT).checked_sub(1)
    }

    /// What the last reader has got was wrong: the copy that it came from is stale, unless no other is left of `copies`. If all others are in doubt, they take its
    /// place. A repair that is under way does not count, since it may come from there.
    pub fn doubt(&self, copies: CopySet) -> Turned {
        let (before, now) = self.turn(|word| {
            let Some(copy) = ((word & SERVED) >> SERVED_AT).checked_sub(1) else { return word };
            let others = u16::from(copies) & ALL & !(1 << copy);
            // A copy that is being written by a repair is read by nobody.
            let again = if word & COPYING == 0 { others & doubted(word) } else { 0 };
            let spoiled = if word & COPYING != 0 { SPOILED } else { 0 };
            // Only what it had can be there still: it may have been taken away meanwhile, and another copy have its number.
            let had = if word >> copy & 1 == 0 { 1 << copy << DOUBT_AT } else { 0 };
            let wrong = 1 << copy | had;
            if others & !word != 0 {
                word | wrong | spoiled
            } else if again != 0 {
                word & !(again | again << DOUBT_AT) | wrong
            } else {
                word | spoiled
            }
        });
        Turned::between(before, now)
    }

    /// The copies that were right are gone: those in doubt are asked again; `all`: those too that are stale for another reason, where somebody else may have
    /// repaired them.
    pub fn trust(&self, all: bool) -> Turned {
        let (before, now) = self.turn(|word| {
            let again = if word & COPYING != 0 {
                0
            } else if all {
                word & ALL
            } else {
                doubted(word)
            };
            word & !(again | again << DOUBT_AT)
        });
        Turned::between(before, now)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const BOTH: CopySet = 0b11;

    #[test]
    fn what_a_copy_has_missed_is_stale_until_it_is_repaired() {
        let slot = SlotCopies::new();
        assert!(!slot.begin_write());
        assert_eq!(slot.end_write(0b01), Turned { stale: 0b110, right: 0 });
        assert_eq!((slot.begin_copy(0, BOTH), slot.begin_copy(1, BOTH)), (None, Some(0b110)));
        assert_eq!((slot.begin_copy(1, BOTH), slot.forget()), (None, None), "one at a time");
        assert!(slot.end_copy(1, true));
        assert_eq!(slot.stale(), 0b100);
        assert_eq!(slot.forget(), Some(Turned { stale: 0, right: 0b100 }));
        assert_eq!(slot.lose(0b10), Turned { stale: 0, right: 0 }, "there is no page to lose");
    }

    #[test]
    fn a_repair_that_fails_or_is_overtaken_does_not_count() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b01);
        assert!(slot.begin_copy(1, BOTH).is_some() && !slot.end_copy(1, false));
        assert!(slot.begin_copy(1, BOTH).is_some());
        assert!(slot.begin_write(), "whoever writes now must leave it out");
        slot.end_write(0b01);
        assert!(slot.begin_write(), "and the next one too");
        assert!(!slot.end_copy(1, true));
        slot.end_write(0b01);
        assert_eq!(slot.stale() & BOTH, 0b10);
        assert!(slot.begin_copy(1, BOTH).is_some() && slot.end_copy(1, true), "the next repair is one of its own");
    }

    #[test]
    fn a_slot_that_is_written_is_not_repaired() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b01);
        let _ = slot.begin_write();
        assert_eq!(slot.begin_copy(1, BOTH), None);
        slot.end_write(0b10);
        assert_eq!(slot.begin_copy(0, BOTH), Some(0b101));
    }

    #[test]
    fn what_was_copied_from_a_copy_that_is_wrong_does_not_count() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b01);
        slot.served(0);
        assert!(slot.begin_copy(1, BOTH).is_some());
        assert_eq!(slot.doubt(BOTH), Turned { stale: 0, right: 0 }, "it is the last");
        assert!(!slot.end_copy(1, true));
        assert_eq!(slot.stale() & BOTH, 0b10);
    }

    #[test]
    fn a_copy_goes_where_all_that_stay_have_the_page() {
        let slot = SlotCopies::new();
        assert_eq!((slot.retire(0, 0b110), slot.needs(0, 0b110)), (Some(turned(0, 0)), false), "there is no page");
        let _ = slot.begin_write();
        slot.end_write(0b011);
        assert_eq!((slot.retire(0, 0b110), slot.needs(0, 0b110)), (None, true), "the third does not have it");
        assert_eq!((slot.retire(2, 0b011), slot.needs(2, 0b011)), (Some(turned(0, 0)), false), "nobody misses that one");
        assert!(slot.begin_copy(2, 0b111).is_some() && slot.end_copy(2, true));
        assert!(!slot.needs(0, 0b110));
        let _ = slot.begin_write();
        slot.end_write(0b001);
        let _ = slot.begin_write();
        assert_eq!(slot.retire(0, 0b110), Some(turned(0b001, 0)), "the write decides");
        slot.end_write(0b110);
        assert_eq!((slot.stale(), slot.retire(0, 0b110)), (0b001, Some(turned(0, 0))));
    }

    #[test]
    fn who_comes_after_a_copy_that_was_doubted_is_not_trusted_for_it() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b111);
        slot.served(0);
        assert_eq!(slot.retire(0, 0b110), Some(turned(0b001, 0)));
        // Another one has its number now, and the reader finds out late.
        assert_eq!((slot.doubt(0b111), slot.trust(false)), (turned(0, 0), turned(0, 0)));
        assert_eq!(slot.stale(), 0b001);
    }

    #[test]
    fn what_nobody_needs_is_forgotten_unless_somebody_writes() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b001);
        assert!(slot.begin_copy(1, BOTH).is_some());
        assert_eq!((slot.end_unneeded(), slot.has_page(), slot.stale()), (turned(0, 0b110), false, 0));
        let _ = slot.begin_write();
        slot.end_write(0b001);
        assert!(slot.begin_copy(1, BOTH).is_some());
        assert!(slot.begin_write());
        assert_eq!((slot.end_unneeded(), slot.has_page()), (turned(0, 0), true), "it is being written");
        slot.end_write(0b100);
        assert_eq!((slot.stale(), slot.begin_copy(1, 0b111)), (0b011, Some(0b011)));
        assert!(slot.end_copy(1, true));
    }

    #[test]
    fn what_no_copy_has_is_repaired_from_none() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0);
        assert_eq!(slot.begin_copy(0, BOTH), None);
    }

    const fn turned(stale: CopySet, right: CopySet) -> Turned {
        Turned { stale, right }
    }

    #[test]
    fn a_copy_that_served_wrong_bytes_is_asked_after_the_others() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b111);
        assert_eq!(slot.doubt(0b111), turned(0, 0), "nobody has read it");
        slot.served(2);
        assert_eq!((slot.server(), slot.doubt(0b111), slot.doubt(0b111)), (Some(2), turned(0b100, 0), turned(0, 0)));
        slot.served(0);
        assert_eq!((slot.doubt(0b111), slot.stale()), (turned(0b001, 0), 0b101));
        slot.served(1);
        assert_eq!((slot.doubt(0b111), slot.stale()), (turned(0b010, 0b101), 0b010), "the others once more");
        let _ = slot.begin_write();
        slot.end_write(0b111);
        assert_eq!((slot.server(), slot.stale()), (None, 0), "a new page, of which nothing bad is known");
    }

    #[test]
    fn only_what_a_copy_had_is_trusted_again() {
        let slot = SlotCopies::new();
        let _ = slot.begin_write();
        slot.end_write(0b011);
        slot.served(0);
        assert_eq!((slot.doubt(0b111), slot.trust(false)), (turned(0b001, 0), turned(0, 0b001)));
        assert_eq!((slot.stale(), slot.trust(false)), (0b100, turned(0, 0)), "the third has never had it");
        slot.served(0);
        slot.doubt(0b111);
        slot.lose(0b001);
        assert_eq!((slot.trust(false), slot.stale()), (turned(0, 0), 0b101), "it is lost for sure");
        assert_eq!(slot.trust(true), turned(0, 0b101));
        slot.served(0);
        slot.doubt(0b111);
        assert!(slot.begin_copy(0, 0b111).is_some());
        assert_eq!(slot.trust(true), turned(0, 0), "it is being written");
    }
}
