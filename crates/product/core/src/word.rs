//! The page word: everything that is true about one page, in 64 bits that have one order of changes.
//!
//! ```text
//!  63     61 60        24 23        8 7         6       5       4       3       2     0
//! ┌─────────┬────────────┬───────────┬─────────┬───────┬───────┬───────┬───────┬───────┐
//! │ chances │ place (37) │ pins (16) │protected│guessed│written│rescued│waiters│ state │
//! └─────────┴────────────┴───────────┴─────────┴───────┴───────┴───────┴───────┴───────┘
//! ```
//!
//! # States, and what `place` means in them
//!
//! | state | mapped | bytes are | `place` | which thread may move it on |
//! |---|---|---|---|---|
//! | `Untouched` | no | zero, by definition | 0 | any thread, by compare-and-swap |
//! | `Foreign` | – | not ours | 0 | the thread that holds the address-space lock |
//! | `Busy` | maybe | the owner knows | kept | **only its owner** |
//! | `Resident` | yes | in the page | slot, or 0 | any thread, by compare-and-swap |
//! | `Leaving` | no | in a stage | stage | any thread, by compare-and-swap |
//! | `Out` | no | in a slot | slot | any thread, by compare-and-swap |
//!
//! A page that is being fetched and a page that an evictor is copying are both `Busy`: one thread owns them. The word
//! need not tell the two apart, because only the owner acts on the difference; every other thread waits. (An `Untouched`
//! page in an absent granule of the table is not managed at all; see [`crate::table`].)
//!
//! # Rules
//!
//! 1. Every change is one compare-and-swap on the whole word (pins: one add), so there is one order of changes and each sees the
//!    one before.
//! 2. The thread that moved a word to `Busy` owns the page: only the owner maps, unmaps, protects or unprotects it, and only the
//!    owner moves the word out of `Busy`.
//! 3. `Resident` with a slot is **clean**: the slot holds the same bytes, and the kernel's page is write-protected (or the fault
//!    that would change it has not returned yet). `Resident` without a slot is **dirty**. There is no dirty bit that could
//!    disagree.
//! 4. A dirty page is writable for the kernel too, unless `protected` is set. An evictor write-protects a whole range with one
//!    call, including neighbours that stay. It sets `protected` on each *before* the call (see
//!    [`AtomicWord::expect_protection`]), so that a system call never meets a protection that the word did not announce.
//! 5. `Leaving` keeps the page's bytes in a stage. `written` says that the stage's slot holds them too. Only then may the evictor
//!    move the word to `Out`.
//! 6. `pins` counts system calls that are using the page. It can be raised in `Resident` only. While it is not 0 the evictor
//!    leaves the page alone. It survives every change of state, so an unpin is one subtraction whatever has happened to the page
//!    in between.
//! 7. `waiters` is set by a thread before it sleeps. The owner's release clears it, and must wake when it was set.
//! 8. The thread that takes a page leaves the old state in the top three bits. So a memory call can still put the page back when
//!    the kernel refuses the call ([`AtomicWord::claimed`]). And an evictor can tell that the bytes of a page that another thread
//!    owns are in a stage of the evictor's, which it must not reuse ([`StageStep::Held`]).
//! 9. `chances` of a resident page are how many times evictors still pass it over (a clock with counts). A page gets some when it
//!    comes, as the policy says, and each evictor that passes takes one. `rescued` says that the page came from a stage, and
//!    stays until the page's bytes are in a slot only: a page that is rescued again has been used all the time.

use crate::canary::{Canary, is_planted};
use crate::page::Access;
use crate::sync::{AtomicU64, Ordering};

const STATE: u64 = 0x7;
const WAITERS: u64 = 1 << 3;
const RESCUED: u64 = 1 << 4;
const WRITTEN: u64 = 1 << 5;
const GUESSED: u64 = 1 << 6;
const PROTECTED: u64 = 1 << 7;
const PINS_SHIFT: u32 = 8;
const PIN_ONE: u64 = 1 << PINS_SHIFT;
const PINS: u64 = 0xffff << PINS_SHIFT;
const PLACE_SHIFT: u32 = 24;
/// Where a `Busy` word keeps the state that its owner found, and a `Resident` one its chances. Places are below 2^37 (see
/// `limits`).
const TOP_SHIFT: u32 = 61;
const TOP: u64 = 0x7 << TOP_SHIFT;
/// The most chances that a page can have.
pub const CHANCES_MAX: u8 = 7;

/// State of a page. The numbers are the bits of the word; `Untouched` is 0 so that
/// fresh zeroed memory is a table of untouched pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Managed, never touched or discarded: reads as zeros.
    Untouched = 0,
    /// Not managed, in a granule that holds managed pages too: memory that is not ours, or a guard in ours.
    Foreign = 1,
    /// One thread owns the page.
    Busy = 2,
    /// Mapped.
    Resident = 3,
    /// Unmapped, bytes still in RAM (in a stage), perhaps being written.
    Leaving = 4,
    /// Unmapped, bytes in swap space only.
    Out = 5,
}

/// A place in swap space. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(core::num::NonZeroU64);

impl Slot {
    /// The slot with this number; `None` for 0, which means "no slot".
    pub const fn new(number: u64) -> Option<Slot> {
        match core::num::NonZeroU64::new(number) {
            Some(n) => Some(Slot(n)),
            None => None,
        }
    }
    /// The slot's number: byte offset in the swap space / 4096.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
    /// The slot `n` further on in the same extent.
    #[inline]
    pub const fn plus(self, n: u64) -> Slot {
        Slot(self.0.saturating_add(n))
    }
}

/// A page-sized piece of an evictor's staging memory, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stage(pub u32);

/// One value of a page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.state())?;
        if self.place() != 0 || self.state() == State::Leaving {
            write!(f, "@{}", self.place())?;
        }
        for (bit, name) in [
            (WAITERS, "+waiters"),
            (RESCUED, "+rescued"),
            (WRITTEN, "+written"),
            (GUESSED, "+guessed"),
            (PROTECTED, "+protected"),
        ] {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        if self.pins() != 0 {
            write!(f, "+{}pins", self.pins())?;
        }
        Ok(())
    }
}

impl Word {
    /// The word of a managed page that no thread has touched.
    pub const UNTOUCHED: Word = Word(State::Untouched as u64);
    /// The word of a page that is not ours.
    pub const FOREIGN: Word = Word(State::Foreign as u64);

    /// The page's state.
    #[inline]
    pub fn state(self) -> State {
        match self.0 & STATE {
            0 => State::Untouched,
            1 => State::Foreign,
            2 => State::Busy,
            3 => State::Resident,
            4 => State::Leaving,
            5 => State::Out,
            // Only this module writes words, and only with the six values above.
            _ => unreachable!("page word {:#x} has no such state", self.0),
        }
    }
    #[inline]
    fn place(self) -> u64 {
        (self.0 & !TOP) >> PLACE_SHIFT
    }
    /// Whether the kernel lets a resident page be accessed like this.
    #[inline(always)]
    fn may_be_accessed(self, access: Access) -> bool {
        access == Access::Read || (Slot::new(self.place()).is_none() && !self.protected())
    }
    /// The slot that holds the page's bytes: for an `Out` page always, for a `Resident` one when it is clean.
    #[inline]
    pub fn slot(self) -> Option<Slot> {
        match self.state() {
            State::Resident | State::Out => Slot::new(self.place()),
            _ => None,
        }
    }
    /// The stage that holds a `Leaving` page's bytes.
    #[inline]
    pub fn stage(self) -> Option<Stage> {
        (self.state() == State::Leaving).then_some(Stage(self.place() as u32))
    }
    /// Whether the stage's slot holds the bytes of a `Leaving` page.
    #[inline]
    pub fn written(self) -> bool {
        self.0 & WRITTEN != 0
    }
    /// How often evictors still pass a resident page over.
    #[inline]
    pub fn chances(self) -> u8 {
        if self.0 & STATE == State::Resident as u64 { (self.0 >> TOP_SHIFT) as u8 } else { 0 }
    }
    /// Whether the page came from a stage since its bytes were in a slot only.
    #[inline]
    pub fn rescued(self) -> bool {
        self.0 & RESCUED != 0
    }
    /// Whether a read fault mapped the page writable because its neighbours were all written.
    #[inline]
    pub fn guessed(self) -> bool {
        self.0 & GUESSED != 0
    }
    /// Whether the kernel's page may be write-protected although it is dirty.
    #[inline]
    pub fn protected(self) -> bool {
        self.0 & PROTECTED != 0
    }
    /// Number of system calls that use the page.
    #[inline]
    pub fn pins(self) -> u32 {
        ((self.0 & PINS) >> PINS_SHIFT) as u32
    }
    /// The word of the same page once a thread owns it.
    #[inline]
    fn in_hands(self) -> Word {
        Word(self.0 & !(STATE | TOP) | State::Busy as u64 | (self.state() as u64) << TOP_SHIFT)
    }
    /// Whether a thread owns the page and found its bytes in `stage`.
    #[inline]
    fn held_in(self, stage: Stage) -> bool {
        self.state() == State::Busy && self.0 >> TOP_SHIFT == State::Leaving as u64 && self.place() == u64::from(stage.0)
    }
    #[inline]
    fn with(self, state: State, place: u64, flags: u64) -> Word {
        Word((self.0 & PINS) | state as u64 | flags | (place << PLACE_SHIFT))
    }
}

/// What the owner turns a `Busy` page into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Managed and never touched: its bytes are zeros.
    Untouched,
    /// No longer ours.
    Foreign,
    /// Mapped, and `slot` holds the same bytes (the kernel's page is write-protected).
    Clean {
        /// The slot that holds the bytes too.
        slot: Slot,
        /// How often evictors pass it over, at most [`CHANCES_MAX`].
        chances: u8,
    },
    /// Mapped; the only copy of the bytes.
    Dirty {
        /// How often evictors pass it over, at most [`CHANCES_MAX`].
        chances: u8,
        /// Mapped writable on a guess.
        guessed: bool,
        /// The kernel's page may be write-protected all the same.
        protected: bool,
    },
    /// Unmapped, bytes in `stage`; `written` when the stage's slot has them already.
    Leaving {
        /// The stage that holds the bytes.
        stage: Stage,
        /// Whether the stage's slot holds them too.
        written: bool,
    },
    /// Unmapped, bytes in `slot` only.
    Out {
        /// The slot that holds the bytes.
        slot: Slot,
    },
}

/// Outcome of [`AtomicWord::begin_fault`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginFault {
    /// We own the page now; `was` says what to do about the fault.
    Owned {
        /// The word as it was.
        was: Word,
    },
    /// Another thread owns it: wait, then look again.
    Wait,
    /// The page is mapped in the way that the access needs: the fault is over.
    Satisfied,
    /// The page is not ours.
    Foreign,
}

/// Outcome of [`AtomicWord::begin_evict`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeginEvict {
    /// We own the page now.
    Owned {
        /// The word as it was: `Resident`.
        was: Word,
    },
    /// The page had a chance left, and has one fewer now.
    PassedOver,
    /// The page is pinned, owned by another thread, or not resident.
    Skip,
}

/// Outcome of [`AtomicWord::expect_protection`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collateral {
    /// The range may include the page.
    Fine,
    /// The page is pinned or owned by another thread: the range must leave it out.
    Avoid,
}

/// Outcome of [`AtomicWord::claim`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// We own the page now.
    Owned {
        /// The word as it was.
        was: Word,
    },
    /// Another thread owns it: wait, then look again.
    Wait,
    /// There is nothing to own: the page is not ours.
    Foreign,
}

/// Outcome of [`AtomicWord::pin`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Pinned: unpin it once.
    Pinned,
    /// The page has to be faulted in first, as a fault with the same access would do it.
    Fault,
    /// The page is not ours: nothing to do.
    Foreign,
}

/// Outcome of [`AtomicWord::release`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// Threads sleep until this page moves on: wake them.
    pub wake: bool,
}

/// Outcome of the changes that only the evictor that staged a page makes.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageStep {
    /// Done.
    Done,
    /// The page no longer has its bytes in this stage: rescued or discarded.
    Gone,
    /// Another thread owns the page and may be reading the stage, or may put the page back. Neither reuse the stage nor
    /// free its slot; look again later.
    Held,
}

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slot(n: u64) -> Slot {
        Slot::new(n).unwrap()
    }

    #[test]
    fn a_life() {
        let w = AtomicWord::new(Word::UNTOUCHED);
        assert!(matches!(w.begin_fault(Access::Write, false), BeginFault::Owned { was } if was == Word::UNTOUCHED));
        assert_eq!(w.begin_fault(Access::Read, false), BeginFault::Wait);
        assert!(w.announce_waiter());
        assert_eq!(w.release(Release::Dirty { chances: 1, guessed: false, protected: false }), Released { wake: true });
        assert_eq!(w.begin_evict(true), BeginEvict::PassedOver);
        assert!(matches!(w.begin_evict(true), BeginEvict::Owned { was } if was.slot().is_none()));
        assert_eq!(w.release(Release::Leaving { stage: Stage(7), written: false }), Released { wake: false });
        assert_eq!(w.stage_written(Stage(6)), StageStep::Gone);
        assert_eq!(w.stage_written(Stage(7)), StageStep::Done);
        assert_eq!(w.retire_stage(Stage(7), slot(99)), StageStep::Done);
        assert_eq!(w.load().slot(), Some(slot(99)));
        assert!(matches!(w.begin_fault(Access::Read, false), BeginFault::Owned { was } if was.slot() == Some(slot(99))));
        let _ = w.release(Release::Clean { slot: slot(99), chances: 1 });
        assert_eq!(w.begin_fault(Access::Read, false), BeginFault::Satisfied);
        assert!(matches!(w.begin_fault(Access::Write, true), BeginFault::Owned { .. }));
    }

    #[test]
    #[should_panic(expected = "before it was written")]
    fn a_stage_cannot_be_retired_before_it_is_written() {
        let w = AtomicWord::new(Word::UNTOUCHED);
        let _ = w.claim();
        let _ = w.release(Release::Leaving { stage: Stage(1), written: false });
        let _ = w.retire_stage(Stage(1), slot(1));
    }

    #[test]
    fn pins_keep_a_page_and_survive_everything() {
        let w = AtomicWord::new(Word::UNTOUCHED);
        assert_eq!(w.pin(Access::Read), Pin::Fault);
        let _ = w.claim();
        let _ = w.release(Release::Clean { slot: slot(3), chances: 0 });
        assert_eq!(w.pin(Access::Write), Pin::Fault, "a clean page must be made writable first");
        assert_eq!(w.pin(Access::Read), Pin::Pinned);
        assert_eq!(w.begin_evict(true), BeginEvict::Skip);
        assert!(matches!(w.claim(), Claim::Owned { .. }));
        let _ = w.release(Release::Foreign);
        assert_eq!(w.load().pins(), 1);
        w.unpin();
        assert_eq!(w.load(), Word::FOREIGN);
    }

    #[test]
    fn a_claimed_page_remembers_what_it_was() {
        let w = AtomicWord::new(Word::UNTOUCHED);
        let _ = w.claim();
        assert_eq!(w.claimed(), Word::UNTOUCHED);
        let _ = w.release(Release::Leaving { stage: Stage(5), written: true });
        let Claim::Owned { was } = w.claim() else { panic!() };
        assert_eq!(w.claimed(), was);
        let _ = w.restore(w.claimed());
        assert_eq!(w.load().stage(), Some(Stage(5)));
        assert!(w.load().written());
    }

    #[test]
    fn what_a_child_inherits() {
        let slot = Slot::new(9).unwrap();
        let word = |to: Release| {
            let w = AtomicWord::new(Word::UNTOUCHED);
            let _ = w.claim();
            let _ = w.release(to);
            w
        };
        let no_stage = |_: Stage| None;
        let clean = word(Release::Clean { slot, chances: 1 });
        assert_eq!(clean.pin(Access::Read), Pin::Pinned);
        assert_eq!(clean.inherit(false, no_stage), Ok((State::Resident, Some(slot))));
        assert_eq!((clean.load().slot(), clean.load().pins(), clean.load().chances()), (None, 0, 0));
        let dirty = word(Release::Dirty { chances: 0, guessed: true, protected: true });
        assert_eq!(dirty.inherit(false, no_stage), Ok((State::Resident, None)));
        assert!(!dirty.load().protected() && !dirty.load().guessed());
        let out = word(Release::Out { slot });
        assert_eq!((out.inherit(false, no_stage), out.load().slot()), (Ok((State::Out, None)), Some(slot)));
        let leaving = word(Release::Leaving { stage: Stage(3), written: true });
        assert_eq!(leaving.inherit(false, |s| Slot::new(u64::from(s.0) + 40)), Ok((State::Out, None)));
        assert_eq!(leaving.load().slot(), Slot::new(43));
        let unwritten = word(Release::Leaving { stage: Stage(3), written: false });
        assert!(unwritten.inherit(false, |_| Some(slot)).is_err());
        let busy = AtomicWord::new(Word::UNTOUCHED);
        let _ = busy.claim();
        assert!(busy.inherit(false, no_stage).is_err());
    }

    #[test]
    fn restore_keeps_what_happened_meanwhile() {
        let w = AtomicWord::new(Word::UNTOUCHED);
        let _ = w.claim();
        let _ = w.release(Release::Dirty { chances: 1, guessed: true, protected: false });
        assert_eq!(w.pin(Access::Write), Pin::Pinned);
        let Claim::Owned { was } = w.claim() else { panic!() };
        w.unpin();
        assert!(w.announce_waiter());
        assert!(w.restore(was).wake);
        assert_eq!(w.load().pins(), 0);
        assert!(w.load().chances() == 1 && w.load().guessed());
        assert!(matches!(w.begin_evict(false), BeginEvict::Owned { .. }));
    }
}
