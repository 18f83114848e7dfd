//! The changes of a page word, each a compare-and-swap. The rules that they keep are at the head of [`word`](super).

use super::value::{GUESSED, PIN_ONE, PINS, PLACE_SHIFT, PROTECTED, RESCUED, STATE, TOP, TOP_SHIFT, WAITERS, WRITTEN};
use super::{
    BeginEvict, BeginFault, CHANCES_MAX, Claim, Collateral, Pin, Release, Released, Slot, Stage, StageStep, State, Word,
};
use crate::canary::{Canary, is_planted};
use crate::page::Access;
use crate::sync::{AtomicU64, Ordering};

/// A page word in its place.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicWord(AtomicU64);

impl AtomicWord {
    /// A word with a first value.
    pub fn new(word: Word) -> AtomicWord {
        AtomicWord(AtomicU64::new(word.0))
    }

    /// The word's value now. Acquire: pairs with the release in [`AtomicWord::release`], so that a thread that sees
    /// `Leaving` sees the bytes in the stage too.
    #[inline]
    pub fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// The one compare-and-swap loop: `next` says what to make of the word as it is.
    #[inline]
    fn change<T>(&self, mut next: impl FnMut(Word) -> Result<(Word, T), T>) -> T {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            match next(Word(now)) {
                Err(outcome) => return outcome,
                // AcqRel: the thread that takes a page sees all that its last owner did (pairs with the same operation
                // there), and publishes what it did itself before it releases the page.
                Ok((then, outcome)) => match self.0.compare_exchange_weak(now, then.0, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return outcome,
                    Err(seen) => now = seen,
                },
            }
        }
    }

    /// A thread touched the page and the kernel says that it could not. `protected` is whether the kernel found the page
    /// present (so that the page's protection caused the fault).
    pub fn begin_fault(&self, access: Access, protected: bool) -> BeginFault {
        self.change(|was| match was.state() {
            State::Foreign => Err(BeginFault::Foreign),
            State::Busy => Err(BeginFault::Wait),
            // The page was absent for the kernel a moment ago and is resident now: another thread brought it. Only a
            // write to a clean page still needs us, and the access finds that out by faulting again.
            State::Resident if !protected || access == Access::Read => Err(BeginFault::Satisfied),
            _ => Ok((was.in_hands(), BeginFault::Owned { was })),
        })
    }

    /// An evictor looks at the page. With `chances`, a page that has any loses one instead of being taken.
    pub fn begin_evict(&self, chances: bool) -> BeginEvict {
        self.change(|was| {
            if was.state() != State::Resident || was.pins() != 0 {
                Err(BeginEvict::Skip)
            } else if chances && was.chances() > 0 {
                Ok((Word(was.0 - (1 << TOP_SHIFT)), BeginEvict::PassedOver))
            } else {
                Ok((was.in_hands(), BeginEvict::Owned { was }))
            }
        })
    }

    /// An evictor is about to write-protect a range with this page in it, which is not a victim.
    pub fn expect_protection(&self) -> Collateral {
        self.change(|was| match was.state() {
            State::Busy => Err(Collateral::Avoid),
            // A clean page is write-protected already.
            State::Resident if was.slot().is_some() => Err(Collateral::Fine),
            // Pins first: a fault that ended while a range was being protected calls the page protected although it is
            // writable, and a thread that pinned it before that fault counts on its being writable.
            State::Resident if was.pins() != 0 => Err(Collateral::Avoid),
            State::Resident if was.protected() => Err(Collateral::Fine),
            State::Resident => Ok((Word(was.0 | PROTECTED), Collateral::Fine)),
            // An absent page: a thread that maps it meanwhile sees the granule's protection epoch move.
            _ => Err(Collateral::Fine),
        })
    }

    /// In a forked child, before any other thread can touch the page: sets the word to the page's state in the child. Nothing
    /// that the parent's threads were about to do with the page counts: no pins (but with `keep_pins`), no waiters, no chances.
    /// The kernel has dropped its write protection, so a resident page is dirty, and the slot that a clean one had is returned. A
    /// page that was leaving is in its slot: `slot_of` its stage, written before the fork.
    /// # Errors
    /// The word, when a thread owned the page or its bytes are in no slot: then the child cannot have the page.
    pub fn inherit(&self, keep_pins: bool, slot_of: impl Fn(Stage) -> Option<Slot>) -> Result<(State, Option<Slot>), Word> {
        let was = self.load();
        let (then, freed) = match was.state() {
            State::Untouched => (Word::UNTOUCHED, None),
            State::Foreign => (Word::FOREIGN, None),
            State::Resident => (Word(State::Resident as u64), was.slot()),
            State::Out => (Word(State::Out as u64 | was.place() << PLACE_SHIFT), None),
            State::Leaving => match was.stage().and_then(slot_of).filter(|_| was.written()) {
                Some(slot) => (Word(State::Out as u64 | slot.number() << PLACE_SHIFT), None),
                None => return Err(was),
            },
            State::Busy => return Err(was),
        };
        let pins = if keep_pins { was.0 & PINS } else { 0 };
        self.0.store(then.0 | pins, Ordering::Release);
        Ok((then.state(), freed))
    }

    /// In a forked child, of a page that is not there: pins are other threads', which the child has not.
    pub fn drop_pins(&self) {
        let now = self.load();
        if now.pins() != 0 {
            self.0.store(now.0 & !PINS, Ordering::Release);
        }
    }

    /// Copies another word's value, before any other thread can see this word.
    #[cfg(not(loom))]
    pub(crate) fn copy_from(&self, other: &AtomicWord) {
        self.0.store(other.0.load(Ordering::Acquire), Ordering::Release);
    }

    /// In a forked child: renews a pin that a call of this thread holds, which [`AtomicWord::inherit`] has dropped with the
    /// others'.
    pub fn pin_again(&self) {
        self.0.fetch_add(PIN_ONE, Ordering::AcqRel);
    }

    /// A memory call (munmap, madvise, mremap …) takes the page, so that no other thread can own it.
    pub fn claim(&self) -> Claim {
        self.change(|was| match was.state() {
            State::Foreign => Err(Claim::Foreign),
            State::Busy => Err(Claim::Wait),
            _ => Ok((was.in_hands(), Claim::Owned { was })),
        })
    }

    /// The word of a page that this thread claimed: as it was, but with the pins of now and without its chances.
    pub fn claimed(&self) -> Word {
        let now = self.0.load(Ordering::Acquire);
        debug_assert_eq!(Word(now).state(), State::Busy, "only a claimed page can be asked");
        Word(now & !(STATE | TOP | WAITERS) | now >> TOP_SHIFT)
    }

    /// The owner puts a page that it took back into the state that it found.
    pub fn restore(&self, was: Word) -> Released {
        self.change(|now| {
            debug_assert_eq!(now.state(), State::Busy, "only an owned page can be put back");
            let kept = was.0 & !(PINS | WAITERS);
            if is_planted(Canary::Word) && was.guessed() && was.protected() && now.pins() == 2 {
                return Ok((Word(kept), Released { wake: now.0 & WAITERS != 0 }));
            }
            Ok((Word(kept | now.0 & PINS), Released { wake: now.0 & WAITERS != 0 }))
        })
    }

    /// The owner moves the page out of `Busy`.
    pub fn release(&self, to: Release) -> Released {
        self.change(|now| {
            debug_assert_eq!(now.state(), State::Busy, "only an owned page can be released");
            // The page came from its stage just now, or did so before.
            let from_stage = now.0 >> TOP_SHIFT == State::Leaving as u64;
            let rescued = if from_stage { RESCUED } else { now.0 & RESCUED };
            let resident = |chances: u8| {
                debug_assert!(chances <= CHANCES_MAX, "{chances} chances");
                u64::from(chances.min(CHANCES_MAX)) << TOP_SHIFT | rescued
            };
            let then = match to {
                Release::Untouched => now.with(State::Untouched, 0, 0),
                Release::Foreign => now.with(State::Foreign, 0, 0),
                Release::Clean { slot, chances } => now.with(State::Resident, slot.number(), resident(chances)),
                Release::Dirty { chances, guessed, protected } => {
                    let guessed = if guessed { GUESSED } else { 0 };
                    let protected = if protected { PROTECTED } else { 0 };
                    now.with(State::Resident, 0, resident(chances) | guessed | protected)
                }
                Release::Leaving { stage, written } => {
                    now.with(State::Leaving, u64::from(stage.0), (now.0 & RESCUED) | if written { WRITTEN } else { 0 })
                }
                Release::Out { slot } => now.with(State::Out, slot.number(), 0),
            };
            Ok((then, Released { wake: now.0 & WAITERS != 0 }))
        })
    }

    /// The owner of a page that it is about to unmap says to which stage it has copied the bytes. Only whoever takes the memory over from a manager looks for that ([`Word::left`]): a page that is
    /// not there has left to its stage if its word says so, and was thrown away by the client if not. The next release, or [`AtomicWord::restore`], goes as if nothing had been said.
    pub fn take_to(&self, stage: Stage) {
        self.change(|now| {
            debug_assert_eq!(now.state(), State::Busy, "only an owned page can be taken away");
            let kept = now.0 & (WAITERS | RESCUED);
            Ok((now.with(State::Busy, u64::from(stage.0), kept | (State::Busy as u64) << TOP_SHIFT), ()))
        });
    }

    /// The owner of a page that was out says that it has mapped it, and that its bytes are nowhere else as far as it is concerned: as [`AtomicWord::take_to`].
    pub fn note_mapped(&self) {
        self.change(|now| {
            debug_assert_eq!(now.state(), State::Busy, "only an owned page can be mapped");
            let from_stage = if now.0 >> TOP_SHIFT == State::Leaving as u64 { RESCUED } else { 0 };
            Ok((Word(now.0 & !TOP | from_stage | (State::Resident as u64) << TOP_SHIFT), ()))
        });
    }

    /// The write of `stage` has been acknowledged: notes it in the word.
    pub fn stage_written(&self, stage: Stage) -> StageStep {
        self.change(|was| {
            if was.stage() == Some(stage) {
                Ok((Word(was.0 | WRITTEN), StageStep::Done))
            } else {
                Err(if was.held_in(stage) { StageStep::Held } else { StageStep::Gone })
            }
        })
    }

    /// The evictor needs the stage: from here on the page's bytes are in `slot` only.
    ///
    /// # Panics
    /// When the stage has not been written (rule 5): that would lose the page.
    pub fn retire_stage(&self, stage: Stage, slot: Slot) -> StageStep {
        self.change(|was| {
            if was.stage() == Some(stage) {
                assert!(was.written(), "page word {was:?} leaves its stage before it was written");
                Ok((was.with(State::Out, slot.number(), 0), StageStep::Done))
            } else {
                Err(if was.held_in(stage) { StageStep::Held } else { StageStep::Gone })
            }
        })
    }

    /// A system call is about to let the kernel touch the page.
    pub fn pin(&self, access: Access) -> Pin {
        self.change(|was| match was.state() {
            State::Foreign => Err(Pin::Foreign),
            State::Resident if was.may_be_accessed(access) => {
                assert!(was.pins() < 0xffff, "a page is pinned by 65,535 system calls at once");
                Ok((Word(was.0 + PIN_ONE), Pin::Pinned))
            }
            _ => Err(Pin::Fault),
        })
    }

    /// [`AtomicWord::pin`] for code that may neither panic nor call anything. Returns whether the page is pinned now. If not, ask
    /// that function.
    #[inline(always)]
    pub fn pin_quickly(&self, access: Access) -> bool {
        self.change(|was| {
            if was.0 & STATE == State::Resident as u64 && was.may_be_accessed(access) && was.pins() < 0x8000 {
                Ok((Word(was.0 + PIN_ONE), true))
            } else {
                Err(false)
            }
        })
    }

    /// Whether the page allows this access to a caller who has pinned it before, and has kept the pin since. Memory calls may have taken the
    /// page all the same; no evictor has. Acquire: as a pin.
    #[inline(always)]
    pub fn is_pinned_for(&self, access: Access) -> bool {
        let now = Word(self.0.load(Ordering::Acquire));
        now.0 & STATE == State::Resident as u64 && now.may_be_accessed(access) && now.pins() != 0
    }

    /// The system call is over.
    #[inline(always)]
    pub fn unpin(&self) {
        let before = Word(self.0.fetch_sub(PIN_ONE, Ordering::AcqRel));
        debug_assert!(before.pins() > 0, "{before:?} was unpinned more often than pinned");
    }

    /// Says that the caller is about to sleep until the page moves on. `false`: the page has moved on already.
    #[must_use]
    pub fn announce_waiter(&self) -> bool {
        self.change(|was| if was.state() != State::Busy { Err(false) } else { Ok((Word(was.0 | WAITERS), true)) })
    }

    /// Sets the word whatever it is, keeping pins. Only for a forked child, whose one thread inherited words of pages
    /// that threads of its parent owned.
    pub fn overwrite(&self, word: Word) {
        self.change(|was| Ok((Word(was.0 & PINS | word.0 & !PINS), ())))
    }

    /// Makes an untouched page foreign or the reverse, under the address-space lock, keeping pins. `false`: the page is
    /// in neither state, so we may not change it (rule 2), and it stays as it is.
    #[must_use]
    pub fn set_foreign(&self, foreign: bool) -> bool {
        self.change(|was| {
            if !matches!(was.state(), State::Untouched | State::Foreign) {
                return Err(false);
            }
            let state = if foreign { State::Foreign } else { State::Untouched };
            Ok((was.with(state, 0, 0), true))
        })
    }
}
