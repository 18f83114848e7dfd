//! The unithreads' memory: one mapping, made at the start, in equal slots.
//!
//! ```text
//!  one slot                       ◀───────────────── stack_bytes ─────────────────▶
//!  ┌───────────────┬────────────────────────────┬───────────────┬────────────────┐
//!  │ guard         │ stack, grows down ◀──────  │ control block │ buffer         │  next slot's guard …
//!  └───────────────┴────────────────────────────┴───────────────┴────────────────┘
//! ```
//!
//! Stack, control block and buffer lie together (Adios, section 3.2), so that a small request touches one page. A stack that grows too far, and a
//! buffer that is written past its end, meet a guard and not a neighbour; behind the last slot there is one more guard. A guard is as large as a
//! usual stack, since C code without stack probes may step over a small one.
//!
//! **Memory of a unithread.** Addresses: `guard_bytes + stack_bytes`. RAM: the pages that it has touched, at least one (4 KiB); about three more
//! while it waits in a signal handler, since the frame holds all vector registers. Nothing is touched before it is first used, a slot that was used
//! is used again before a fresh one, and touched pages are kept: RAM follows the most unithreads that there were at a time.
//!
//! **Guards** are markers in the page table (`MADV_GUARD_INSTALL`, Linux 6.13). Before that they are mappings without access, two mappings a slot, of
//! which the kernel allows `vm.max_map_count` (65,530 by default) in a process.

use crate::ground::error::Error;
use crate::ground::own;
use crate::scheduler::exceptions::Exceptions;
use crate::scheduler::list::{Free, Links};
use crate::scheduler::wait::WaitWord;
use core::cell::Cell;
use core::ptr::NonNull;
use farshore_core::sync::{AtomicU32, AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Linux 6.13.
const MADV_GUARD_INSTALL: i32 = 102;
/// Unithreads at most: numbers of the free list and of tokens have 32 bits, and memory ends before.
pub const UNITHREADS_MAX: usize = 1 << 24;
/// The least that a stack needs: a signal frame with all vector registers (up to 3.5 KiB; 11 KiB with AMX tiles), a handler, and the program.
pub const STACK_MIN: usize = 16 << 10;

/// How large slots are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Slots.
    pub count: usize,
    /// Bytes of stack, control block and buffer together; a multiple of 4,096.
    pub stack_bytes: usize,
    /// Bytes of the guard below; a multiple of 4,096, at least one page.
    pub guard_bytes: usize,
    /// Bytes of the buffer, in which a service has a request.
    pub buffer_bytes: usize,
}

impl Shape {
    fn check(&self) -> Result<(), Error> {
        let refuse = |what, value: usize, want| Err(Error::Config { what, value: value as u64, want });
        if !(1..=UNITHREADS_MAX).contains(&self.count) {
            return refuse("unithreads", self.count, "1 to 16,777,216");
        }
        if !self.guard_bytes.is_multiple_of(PAGE) || !(PAGE..=1 << 30).contains(&self.guard_bytes) {
            return refuse("guard_bytes", self.guard_bytes, "a multiple of 4,096, from 4,096 to 1 GiB");
        }
        if !self.stack_bytes.is_multiple_of(PAGE) || !(STACK_MIN..=1 << 30).contains(&self.stack_bytes) {
            return refuse("stack_bytes", self.stack_bytes, "a multiple of 4,096, from 16,384 to 1 GiB");
        }
        if self.buffer_bytes > self.stack_bytes - STACK_MIN / 2 {
            return refuse("buffer_bytes", self.buffer_bytes, "8,192 less than stack_bytes, or smaller");
        }
        Ok(())
    }

    /// Bytes of addresses that one slot takes.
    pub fn slot_bytes(&self) -> usize {
        self.guard_bytes + self.stack_bytes
    }

    /// Bytes from the control block to the slot's end.
    fn tail_bytes(&self) -> usize {
        size_of::<Unit>() + self.buffer_bytes.next_multiple_of(align_of::<Unit>())
    }
}

/// What a unithread runs: reads its closure at `place` and leaves its result there.
pub type Entry = unsafe fn(place: *mut u8, unit: &Unit);

/// A unithread's control block. Zeroed memory is a valid one.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Unit {
    /// The link of the one list that it is in.
    pub(crate) next: AtomicU32,
    /// Running, ended, nobody's: see `life.rs`.
    pub(crate) life: AtomicU32,
    pub(crate) wait: WaitWord,
    /// Who joins: a token in its raw form, or `THREAD` of `life.rs`; 0: nobody yet.
    pub(crate) joiner: AtomicU64,
    /// The worker that it has begun on and stays on.
    pub(crate) home: AtomicU32,
    /// The wait that a shutdown ends early, as the token's raw form with `BY_RING` of `worker.rs`; 0: none. Read by its worker alone.
    pub(crate) stoppable: AtomicU64,
    // The rest is the spawner's until the unithread is in the queue, and its worker's thread's from then on: the lists order the two.
    /// Its stack pointer while it does not run.
    pub(crate) stack_pointer: Cell<usize>,
    pub(crate) entry: Cell<Option<Entry>>,
    /// Where its closure lies, and then its result, or what it leaves.
    pub(crate) place: Cell<usize>,
    /// `errno` while it does not run: it belongs to the unithread, though its address belongs to the worker.
    pub(crate) errno: Cell<i32>,
    /// Its C++ exceptions, likewise: see `exceptions.rs`.
    pub(crate) exceptions: Cell<Exceptions>,
    /// It has left something at `place`, for the heir: see `heir.rs`.
    pub(crate) has_left: Cell<bool>,
    /// When `checkpoint` first saw it in this turn, in nanoseconds; 0: not yet.
    pub(crate) slice_start: Cell<u64>,
}

// SAFETY: the cells have one owner at a time, as their comment says; all else is atomic.
unsafe impl Sync for Unit {}

/// All slots. Unmapped when it is dropped.
#[derive(Debug)]
pub struct Pool {
    base: NonNull<u8>,
    shape: Shape,
    free: Free,
    /// Slots below this number were used before.
    used: AtomicU32,
}

// SAFETY: memory that belongs to no thread; the lists say which thread may touch which slot.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Links for Pool {
    fn next(&self, index: u32) -> &AtomicU32 {
        &self.unit(index).next
    }
}

impl Pool {
    /// Maps all slots and sets their guards.
    pub fn new(shape: Shape) -> Result<Pool, Error> {
        shape.check()?;
        let bytes = shape.slot_bytes().checked_mul(shape.count).and_then(|all| all.checked_add(shape.guard_bytes));
        let bytes =
            bytes.ok_or(Error::Config { what: "unithreads", value: shape.count as u64, want: "fewer, or smaller ones" })?;
        let base = own::map(bytes, "cannot map the stacks (ulimit -v?)")?;
        let pool = Pool { base, shape, free: Free::default(), used: AtomicU32::new(0) };
        // A huge page would spread over many slots. No harm if the kernel has none.
        // SAFETY: advice for our own mapping.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
        pool.guard_all()?;
        Ok(pool)
    }

    fn guard_all(&self) -> Result<(), Error> {
        let guard = |at: *mut u8, by_marker: bool| {
            let (at, bytes) = (at.cast(), self.shape.guard_bytes);
            match by_marker {
                // SAFETY: our own mapping, a part that nobody uses.
                true => unsafe { libc::madvise(at, bytes, MADV_GUARD_INSTALL) },
                // SAFETY: as above.
                false => unsafe { libc::mprotect(at, bytes, libc::PROT_NONE) },
            }
        };
        // The first one tells whether the kernel knows markers (EINVAL: it does not).
        let by_marker = guard(self.base.as_ptr(), true) == 0;
        for slot in 0..=self.shape.count {
            let at = self.base.as_ptr().wrapping_add(slot * self.shape.slot_bytes());
            if guard(at, by_marker) != 0 {
                return Err(Error::system(
                    "cannot guard all stacks (fewer unithreads, or a higher vm.max_map_count)",
                    slot as u64,
                ));
            }
        }
        Ok(())
    }

    /// How large slots are.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// A slot that nobody uses, or `None` if all are in use.
    pub fn take(&self) -> Option<u32> {
        self.free.pop(self).or_else(|| self.take_fresh())
    }

    fn take_fresh(&self) -> Option<u32> {
        let more = |used: u32| ((used as usize) < self.shape.count).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
    }

    /// Gives back a slot that was taken. Nothing runs on its stack.
    pub fn give(&self, index: u32) {
        self.free.push(self, index);
    }

    /// Slots from this number on were never used.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    fn slot_end(&self, index: u32) -> *mut u8 {
        assert!((index as usize) < self.shape.count, "there is no unithread {index}");
        self.base.as_ptr().wrapping_add((index as usize + 1) * self.shape.slot_bytes())
    }

    /// The control block of slot `index`.
    #[inline]
    pub fn unit(&self, index: u32) -> &Unit {
        let at = self.slot_end(index).wrapping_sub(self.shape.tail_bytes()).cast::<Unit>();
        // SAFETY: inside the slot, aligned (slots end at pages, the tail is a multiple of the alignment), zeroed at first, which is a valid block,
        // and only ever used as one.
        unsafe { &*at }
    }

    /// The buffer of slot `index`.
    pub fn buffer(&self, index: u32) -> *mut u8 {
        let unit: *const Unit = self.unit(index);
        unit.wrapping_add(1).cast_mut().cast()
    }

    /// Whether `address` is in the slot of `index`: its stack, or its buffer.
    pub fn is_own(&self, index: u32, address: usize) -> bool {
        let end = self.slot_end(index).addr();
        (end - self.shape.stack_bytes..end).contains(&address)
    }

    /// The addresses of the stack of slot `index`: lowest, and the end.
    #[inline]
    pub fn stack(&self, index: u32) -> core::ops::Range<usize> {
        let end = self.slot_end(index).addr();
        end - self.shape.stack_bytes..end - self.shape.tail_bytes()
    }

    /// The end of the stack of slot `index`, to write to.
    pub fn stack_end(&self, index: u32) -> *mut u8 {
        self.slot_end(index).wrapping_sub(self.shape.tail_bytes())
    }

    /// The number of the slot whose guard has `address`.
    pub fn guard_at(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.base.as_ptr().addr())?;
        let slot = offset / self.shape.slot_bytes();
        (slot < self.shape.count && offset % self.shape.slot_bytes() < self.shape.guard_bytes).then_some(slot as u32)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let bytes = self.shape.slot_bytes() * self.shape.count + self.shape.guard_bytes;
        // SAFETY: our own mapping; nothing runs in a pool that is dropped.
        unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
    }
}
