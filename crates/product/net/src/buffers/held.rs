//! Which pages a thread has pinned, remembered outside of its stack.
//!
//! A call of a thread that began before we looked may be left by `siglongjmp`: its frame lies on the program's stack (`catch/src/entry.rs`). All others end. The
//! [`PinSet`] is then gone with the stack frame that it lived in, and its pages would stay
//! pinned for good. So each thread has [`Held`], in memory that is never on a program's stack: copies of the sets of its
//! calls, from which pages can be unpinned whose call is gone.
//!
//! # When a call is gone
//!
//! While a call is made its frame is intact, wherever its stack is: on the thread's own, on an alternate one, on one
//! that the program switches between. So a set in use carries a *ticket*, a word that is different for each set, and a call
//! is gone for certain when there is something else at that address. It is the only sign that is used. (That a frame lies
//! below the stack pointer says nothing: a signal handler that interrupted the call may run on another stack, at any address.)
//! A frame that was left and not yet overwritten is taken for a living one: its pages stay pinned until the stack grows
//! there again, or the thread ends.
//!
//! # Protocol
//!
//! Between any two instructions a signal handler may run on the same thread, make calls of its own, and leave by a jump or
//! come back; no other thread does, so an exchange need not lock the bus ([`exchange`]: 1 ns for 5). A slot's `state` is the ticket of the set that has it: the set's address, and in the bits that it does not
//! use a generation and the slot's number. Without an address the slot is free. All changes are one compare-and-swap:
//!
//! 1. **Take**: the ticket is written into the set first, then `state` moves from free to the ticket. Only the set that
//!    has the slot writes `granted`, `runs` and `len`, in this order.
//! 2. **Give back**: `len` becomes 0, `state` moves from the ticket to free, then the pages are unpinned. Whoever fails to
//!    move `state` has lost the pages to someone who will unpin them.
//! 3. **Sweep**, by a later call of the thread that finds a slot taken: as *give back*, for sets whose ticket is not at
//!    their address any more.
//!
//! # A buffer that stays pinned between calls
//!
//! A program that reads through one buffer pins the same page again and again, or the same two, and the two locked instructions of a pin and
//! its end are a third of what a small `read` costs. So a thread *keeps* the pins of one buffer ([`Held::keep`]): of that which two calls of
//! the quick way have used, with none by another buffer between them but such as borrow. The next call with that buffer *borrows* its pins ([`Held::borrow`]).
//!
//! * The count in the page word is there as for any pin, without a gap: evictors pass the page over. Memory calls do with it what they do
//!   with any pinned page, so the borrower looks whether the word still allows its access
//!   ([`AtomicWord::is_pinned_for`](farshore_core::word::AtomicWord::is_pinned_for)). That look is to a call what the
//!   compare-and-swap of a pin is to others: what a memory call does afterwards, it does under a call.
//! * The pins are this thread's alone to give up: it does so when it keeps another buffer ([`Held::keep`]), and when it ends
//!   ([`Held::release_all`]). Between [`Held::borrow`] and [`Held::give_back_kept`] it does not, since a handler of the program may make calls of its own on top.
//! * A thread of a guest, a process of its own in this memory, keeps none ([`Held::keep_nothing`]): its end is not seen here.
//! * At most [`share::KEEPERS`] threads keep one, so that what idle threads keep is little even of the smallest limit.
//! * Its pages are among those that are remembered ([`Held::each`]): a forked child pins them again.
//!
//! A jump out of the middle of these steps loses a few pins, and never unpins a page twice. A handler that forks in the middle leaves its
//! child pins that are remembered nowhere and will be taken off: so the steps are *announced* ([`Held::announce`]), and a child that
//! is forked meanwhile keeps every pin there is ([`Held::is_complete`]).

use super::pins::PinSet;
use super::{USER_END, careful, share};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};
use farshore_core::page::{Page, PageRange};

/// Sets that one thread can have in use: one or two for the call, as many for each handler on top. Beyond that, sets are not
/// remembered. The number of a slot is in the low bits of its state.
const SLOTS: usize = 8;
/// Runs of a set that are remembered. A set with more is not.
const RUNS: usize = 8;

const ADDRESS: u64 = USER_END - SLOTS as u64;
const _: () = assert!(SLOTS == align_of::<u64>(), "the bits for a slot's number are those that an address has for alignment");
/// What is added to the state of a free slot with each use. It wraps within the bits that `ADDRESS` leaves.
const GENERATION: u64 = USER_END;

/// A copy of a set in use.
#[derive(Debug)]
struct Slot {
    state: AtomicU64,
    len: AtomicU64,
    /// Grants of the set.
    granted: AtomicU64,
    /// Start and end, as page numbers.
    runs: [[AtomicU64; 2]; RUNS],
}

/// The sets that a thread's calls have in use. Used by that thread alone, and its signal handlers.
#[derive(Debug)]
pub struct Held {
    slots: [Slot; SLOTS],
    /// The last sweep has left a slot behind the first one taken. A hint: the first one is looked at by each call.
    more: AtomicBool,
    /// Calls, one inside the other, that are between pinning and remembering, or between forgetting and unpinning. Too high after a jump out
    /// of there, which costs forked children a few pins that stay.
    announced: AtomicU32,
    /// The buffer that is pinned between calls, by [`number`]; [`NONE`]: none is.
    kept: AtomicU64,
    /// A call goes by these pins. Set for good after a jump out of such a call: the thread keeps that buffer, and borrows it no more.
    borrowed: AtomicBool,
    /// The thread is one of those that may keep a buffer ([`share::may_keep`]).
    may_keep: AtomicBool,
    /// The buffer of the last call that had pinned all of it.
    last: AtomicU64,
}

/// No buffer has this number.
const NONE: u64 = u64::MAX;

/// One number for a buffer on one page or two.
#[inline(always)]
fn number(range: PageRange) -> u64 {
    range.start.0 << 1 | (range.end.0.wrapping_sub(range.start.0) >> 1 & 1)
}

/// What a number stands for.
#[inline(always)]
fn numbered(number: u64) -> PageRange {
    let start = number >> 1;
    PageRange { start: Page(start), end: Page(start + 1 + (number & 1)) }
}

const _: () = assert!(share::FREE == 2, "a buffer's number has a bit for one page or two");

/// What a set knows of its copy.
#[derive(Debug)]
pub struct Ticket {
    /// The slot's state while the set has it; 0: it has none.
    word: u64,
    slot: *const Slot,
}

impl Ticket {
    /// Of nothing.
    pub const NONE: Ticket = Ticket { word: 0, slot: core::ptr::null() };

    /// Gives back what was remembered; whether the pages are still the caller's to unpin.
    #[inline(always)]
    pub fn give_back(&mut self) -> bool {
        let word = core::mem::replace(&mut self.word, 0);
        if word == 0 {
            return true;
        }
        // SAFETY: a ticket with a word names a slot of a thread's record; records are never unmapped.
        let slot = unsafe { &*self.slot };
        slot.free(word)
    }
}

impl Default for Held {
    fn default() -> Held {
        Held::new()
    }
}

impl Held {
    /// Nothing is held.
    pub const fn new() -> Held {
        let mut slots = [const { Slot::numbered(0) }; SLOTS];
        let mut number = 1;
        while number < SLOTS {
            slots[number] = Slot::numbered(number as u64);
            number += 1;
        }
        Held {
            slots,
            more: AtomicBool::new(false),
            announced: AtomicU32::new(0),
            kept: AtomicU64::new(NONE),
            borrowed: AtomicBool::new(false),
            may_keep: AtomicBool::new(false),
            last: AtomicU64::new(NONE),
        }
    }

    /// Whether `range` is the buffer that the thread keeps pinned, and no call goes by these pins: one does now, until
    /// [`Held::give_back_kept`]. The caller looks at the pages' words before it relies on them.
    #[inline(always)]
    pub fn borrow(&self, range: PageRange) -> bool {
        if self.borrowed.load(Ordering::Relaxed) {
            return false;
        }
        // Before the look: a handler that comes between may keep another buffer, one that comes later does not.
        self.borrowed.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.kept.load(Ordering::Relaxed) == number(range) {
            return true;
        }
        self.give_back_kept();
        false
    }

    /// The call that has borrowed the kept buffer is over.
    #[inline(always)]
    pub fn give_back_kept(&self) {
        compiler_fence(Ordering::SeqCst);
        self.borrowed.store(false, Ordering::Relaxed);
    }

    /// A call on this buffer is over, all of which is pinned for it; announced, and not remembered any more. What the caller is to
    /// unpin: this buffer, or the one that was kept until now.
    #[inline(always)]
    pub fn keep(&self, range: PageRange) -> Option<PageRange> {
        let new = number(range);
        let again = self.last.load(Ordering::Relaxed) == new;
        self.last.store(new, Ordering::Relaxed);
        if !again || self.borrowed.load(Ordering::Relaxed) {
            return Some(range);
        }
        if !self.may_keep.load(Ordering::Relaxed) {
            if !share::may_keep() {
                return Some(range);
            }
            self.may_keep.store(true, Ordering::Relaxed);
        }
        let before = self.kept.load(Ordering::Relaxed);
        // A handler has kept another buffer meanwhile.
        if !exchange(&self.kept, before, new) {
            return Some(range);
        }
        (before != NONE).then_some(numbered(before))
    }

    /// The thread keeps no buffer, now or later: nobody would give its pins back.
    pub fn keep_nothing(&self) {
        self.borrowed.store(true, Ordering::Relaxed);
    }

    /// Whether the thread is one of those that may keep a buffer.
    pub fn is_keeper(&self) -> bool {
        self.may_keep.load(Ordering::Relaxed)
    }

    /// Pins are about to be made that are not remembered yet, or to be taken off that are not any more.
    #[inline(always)]
    pub fn announce(&self) {
        self.count(1);
    }

    /// All pins are remembered again.
    #[inline(always)]
    pub fn settle(&self) {
        self.count(u32::MAX);
    }

    #[inline(always)]
    fn count(&self, change: u32) {
        // Not one instruction: a handler that comes between leaves the number as it found it, or jumps.
        compiler_fence(Ordering::SeqCst);
        self.announced.store(self.announced.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Remembers what is in `set`. After each change of a set; it must not be moved until it was given back.
    ///
    /// `unpin` is called for pages of calls that are gone.
    #[inline]
    pub fn note(&self, set: &mut PinSet, unpin: impl FnMut(Page)) {
        if set.ticket.word == 0 {
            if set.is_empty() {
                return;
            }
            if self.slots[0].state.load(Ordering::Relaxed) & ADDRESS != 0 || self.more.load(Ordering::Relaxed) {
                self.sweep(unpin);
            }
            if !self.slots.iter().any(|slot| slot.take(&mut set.ticket)) {
                return;
            }
        }
        // SAFETY: a ticket with a word names a slot of a thread's record; records are never unmapped.
        let slot = unsafe { &*set.ticket.slot };
        slot.store(set.runs(), set.granted());
    }

    /// Gives back what `set` has remembered; whether its pages are still the set's to unpin.
    #[inline]
    pub fn give_back(set: &mut PinSet) -> bool {
        set.ticket.give_back()
    }

    /// Remembers one range without a set, in the simplest case: the first slot is free, and no other waits to be swept. Otherwise false,
    /// and nothing is remembered. `ticket` must not be moved until [`Ticket::give_back`].
    #[inline(always)]
    pub fn note_range(&self, ticket: &mut Ticket, range: PageRange) -> bool {
        let first = &self.slots[0];
        if self.more.load(Ordering::Relaxed) || !first.take(ticket) {
            return false;
        }
        first.store_range(range);
        true
    }

    /// Unpins the pages of calls that are gone.
    #[cold]
    fn sweep(&self, mut unpin: impl FnMut(Page)) {
        let mut more = false;
        for (number, slot) in self.slots.iter().enumerate() {
            let word = slot.state.load(Ordering::Acquire);
            if word & ADDRESS == 0 {
                continue;
            }
            if is_gone(word) {
                slot.release(word, &mut unpin);
            } else {
                more |= number > 0;
            }
        }
        self.more.store(more, Ordering::Relaxed);
    }

    /// Whether all that the thread's calls have pinned is remembered here: no set was too large, nor one too many. Asked by the thread
    /// itself, when a call of its own that pins nothing is under way.
    pub fn is_complete(&self) -> bool {
        let taken = |slot: &Slot| slot.state.load(Ordering::Acquire) & ADDRESS != 0;
        self.announced.load(Ordering::Relaxed) == 0
            && self.slots.iter().any(|slot| !taken(slot))
            && self.slots.iter().all(|slot| !taken(slot) || slot.len.load(Ordering::Acquire) > 0)
    }

    /// Calls `each` with every page that is remembered.
    pub fn each(&self, mut each: impl FnMut(Page)) {
        let kept = self.kept.load(Ordering::Relaxed);
        if kept != NONE {
            numbered(kept).iter().for_each(&mut each);
        }
        for slot in self.slots.iter().filter(|slot| slot.state.load(Ordering::Acquire) & ADDRESS != 0) {
            let count = (slot.len.load(Ordering::Acquire) as usize).min(RUNS);
            for run in &slot.runs[..count] {
                (run[0].load(Ordering::Relaxed)..run[1].load(Ordering::Relaxed)).for_each(|page| each(Page(page)));
            }
        }
    }

    /// Unpins everything: the thread ends.
    pub fn release_all(&self, mut unpin: impl FnMut(Page)) {
        let kept = self.kept.swap(NONE, Ordering::Relaxed);
        if kept != NONE {
            numbered(kept).iter().for_each(&mut unpin);
        }
        if self.may_keep.swap(false, Ordering::Relaxed) {
            share::keeps_no_more();
        }
        for slot in &self.slots {
            let word = slot.state.load(Ordering::Acquire);
            if word & ADDRESS != 0 {
                slot.release(word, &mut unpin);
            }
        }
    }
}

/// Whether the set with this ticket is gone from its address. Memory that cannot be read may be another stack of the
/// program's, closed for now: not gone.
fn is_gone(word: u64) -> bool {
    let mut found = 0u64;
    // SAFETY: `found` has room for eight bytes.
    let read = unsafe { careful::careful_copy((&raw mut found).cast(), word & ADDRESS, 8) };
    read && found != word
}

/// Puts `then` in place of `now`, unless something else is there: in one instruction, which a signal handler of this thread cannot
/// divide. Whether it did. Other threads do not use `state`.
#[inline(always)]
fn exchange(state: &AtomicU64, now: u64, then: u64) -> bool {
    let done: u8;
    // SAFETY: eight bytes that are ours to write. The compiler takes it for a change of any memory, so nothing moves across it.
    unsafe {
        asm!(
            "cmpxchg qword ptr [{state}], {then}", "sete {done}",
            state = in(reg) state.as_ptr(), then = in(reg) then, inout("rax") now => _, done = lateout(reg_byte) done, options(nostack)
        );
    }
    done != 0
}

impl Slot {
    const fn numbered(number: u64) -> Slot {
        let runs = [const { [const { AtomicU64::new(0) }; 2] }; RUNS];
        Slot { state: AtomicU64::new(number), len: AtomicU64::new(0), granted: AtomicU64::new(0), runs }
    }

    /// Gives a free slot to a set, or a range, with this ticket.
    #[inline(always)]
    fn take(&self, ticket: &mut Ticket) -> bool {
        let free = self.state.load(Ordering::Relaxed);
        let address = (&raw mut ticket.word).expose_provenance() as u64;
        if free & ADDRESS != 0 || address & !ADDRESS != 0 {
            return false;
        }
        let word = free | address;
        // Volatile, because a sweep looks at it, which the compiler does not see.
        // SAFETY: a field of the ticket.
        unsafe { (&raw mut ticket.word).write_volatile(word) };
        ticket.slot = self;
        if !exchange(&self.state, free, word) {
            ticket.word = 0;
            return false;
        }
        true
    }

    #[inline]
    fn store(&self, runs: &[PageRange], granted: u64) {
        self.granted.store(granted, Ordering::Relaxed);
        if runs.len() > RUNS {
            // Known to be too little: nothing is remembered.
            self.len.store(0, Ordering::Release);
            return;
        }
        for (run, at) in runs.iter().zip(&self.runs) {
            at[0].store(run.start.0, Ordering::Relaxed);
            at[1].store(run.end.0, Ordering::Relaxed);
        }
        self.len.store(runs.len() as u64, Ordering::Release);
    }

    /// As `store`, for one run without grants.
    #[inline(always)]
    fn store_range(&self, range: PageRange) {
        self.granted.store(0, Ordering::Relaxed);
        self.runs[0][0].store(range.start.0, Ordering::Relaxed);
        self.runs[0][1].store(range.end.0, Ordering::Relaxed);
        self.len.store(1, Ordering::Release);
    }

    /// Frees the slot if `word` still has it.
    #[inline(always)]
    fn free(&self, word: u64) -> bool {
        self.len.store(0, Ordering::Relaxed);
        let free = (word & !ADDRESS).wrapping_add(GENERATION);
        exchange(&self.state, word, free)
    }

    /// Frees the slot, unpins its pages and gives its grants back.
    fn release(&self, word: u64, unpin: &mut impl FnMut(Page)) {
        let granted = self.granted.load(Ordering::Relaxed);
        let count = (self.len.load(Ordering::Acquire) as usize).min(RUNS);
        let mut runs = [[0u64; 2]; RUNS];
        for (copy, run) in runs.iter_mut().zip(&self.runs).take(count) {
            *copy = [run[0].load(Ordering::Relaxed), run[1].load(Ordering::Relaxed)];
        }
        if self.free(word) {
            runs[..count].iter().flat_map(|&[start, end]| start..end).for_each(|page| unpin(Page(page)));
            share::give(granted);
        }
    }
}
