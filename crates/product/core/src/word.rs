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
//!    A slot may stand for a page of a file that the program has mapped ([`FilePage`]): for the word it is a slot as any other, of
//!    which the bytes are there from the start, and which nobody writes or frees.
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

mod change;
mod value;

pub use change::AtomicWord;
pub use value::{CHANCES_MAX, FilePage, Left, Slot, Stage, State, Word};

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

#[cfg(all(test, not(loom)))]
mod tests;
