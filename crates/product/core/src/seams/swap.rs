//! Swap space: where pages are that are not in memory.

use super::PageBuf;
use crate::slots::SlotMap;
use crate::slots::arrangement::SpaceSet;
use crate::word::Slot;

/// Why a backend could not do what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// There is no room for more data (a full disk): other writes fail as well, reads work.
    Full,
    /// An error of the device, by errno.
    Device(i32),
    /// Fewer bytes than asked for.
    Short,
}

/// What a backend answers that cannot give room back (`EOPNOTSUPP`).
pub const CANNOT: IoError = IoError::Device(95);
/// What a backend answers that cannot give room back now, since it is writing there by itself (`EAGAIN`): it may be asked again.
pub const LATER: IoError = IoError::Device(11);

impl core::fmt::Display for IoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            IoError::Full => f.write_str("no space left"),
            IoError::Device(errno) => write!(f, "I/O error (errno {errno})"),
            IoError::Short => f.write_str("short transfer"),
        }
    }
}

/// How a read that nobody waits for goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBegun {
    /// It has ended.
    Over(Result<(), IoError>),
    /// The caller reads so many pages, one at least and none that was not asked for, from this place of a file into the buffer, in a way of its own.
    File {
        /// The descriptor. It stays open until the read has ended.
        fd: i32,
        /// Bytes from the file's beginning.
        offset: u64,
        /// Pages.
        pages: usize,
    },
    /// It has ended when the monotonic clock says this, in ns.
    Due(u64),
}

/// Reads pages back: what faults, readers and the drainer need.
///
/// Slots are page-sized and numbered from 0; slot `n` is `n * 4096` bytes into the space. The engine never reads a slot whose write has not been
/// acknowledged.
pub trait Reads: Send + Sync {
    /// Reads one page. Blocks. Called in a signal handler: no locks that a thread
    /// may hold while it faults, no allocation.
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError>;
    /// Reads the neighbouring slots from `first` on, one page each; all of them or an error. As [`Reads::read`] otherwise.
    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        (0..).zip(into).try_for_each(|(n, page)| self.read(first.plus(n), page))
    }
    /// Begins a read of the neighbouring slots from `first` on, for a caller that does something else meanwhile. What the caller has read of them is handed to
    /// [`Reads::finish_read`]. `into` stays where it is until the read has ended. As [`Reads::read`] otherwise.
    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        ReadBegun::Over(self.read_run(first, into))
    }
    /// The caller has read the slots from `first` on, as [`Reads::begin_read`] has told it, with this result: makes pages of what came.
    fn finish_read(&self, _first: Slot, _into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        read
    }
}

/// The spaces that slots lie in, each of which fails by itself: what the slot map, the watcher of failures and the drainer need.
pub trait Spaces: Send + Sync {
    /// Slots that the space can hold; `None`: as many as the disk has room for.
    fn capacity(&self) -> Option<u64>;
    /// How the space is called in messages: `file:/var/tmp`.
    fn name(&self) -> &str;
    /// Spaces that fail each by itself (the files of an array), at least 1. Extents of 512 slots go round them, until
    /// [`Spaces::arrange`].
    fn spaces(&self) -> usize;
    /// Slots that one of them can hold, in whole extents; `None`: as many as its disk has room for.
    fn capacity_of(&self, space: usize) -> Option<u64>;
    /// How the one that `slot` lies in is called in messages.
    fn name_of(&self, slot: Slot) -> &str;
    /// Extents from `first` on, of which no slot was used yet, go round these spaces
    /// ([`Arrangements`](crate::slots::arrangement::Arrangements)): one has come, or goes. By one thread at a time.
    fn arrange(&self, _first: u32, _spaces: SpaceSet) {}
    /// Whether no write that the backend makes by itself (a pool's copy to what is below it) is under way to a slot of these. Of slots that have no page
    /// any more the answer stays true: such a write begins only to a slot that has one.
    fn is_quiet(&self, _is_there: &dyn Fn(Slot) -> bool) -> bool {
        true
    }
    /// `space` is empty and quiet ([`Spaces::is_quiet`]), and none of its slots is given out any more: no transfer begins there from now on. Waits for
    /// threads that write there without a ring.
    fn shut_space(&self, _space: usize) {}
    /// The neighbouring slots from `first` on, within an extent, have no page: the medium need not keep what it has there. Nobody above reads or writes
    /// them meanwhile; a backend that may be writing there by itself answers [`LATER`], and begins no such write until they have pages again. Blocks, by a
    /// thread that may wait.
    ///
    /// # Errors
    /// [`LATER`], [`CANNOT`], or why else it did not work. What the slots hold is anything then, too.
    fn give_back(&self, _first: Slot, _count: u32) -> Result<(), IoError> {
        Err(CANNOT)
    }
    /// Gives back what a space had that was shut. A page of it can be read no more.
    fn close_space(&self, _space: usize) {}
}

/// RAM that a kind of swap space keeps pages in: what divides the memory limit needs.
pub trait MemoryBudget: Send + Sync {
    /// RAM in which the space keeps pages, in bytes: it is taken from the memory limit. A page that is written to it adds a page at most. `None`: it
    /// keeps them elsewhere.
    fn own_memory(&self) -> Option<u64> {
        None
    }
    /// The most that it may be from now on.
    fn allow_memory(&self, _bytes: u64) {}
}

/// A kind of swap space. The engine never writes a slot that is being read or written.
pub trait Backend: Reads + Spaces + MemoryBudget {
    /// What an evictor writes through. One thread uses a queue at a time.
    type Queue: WriteQueue;
    /// A queue for up to `depth` writes in flight.
    fn queue(&self, depth: u32) -> Result<Self::Queue, IoError>;
}

/// Asynchronous writes to one backend. Completions come in any order.
pub trait WriteQueue: Send {
    /// Starts writing `pages` to neighbouring slots from `first` on.
    ///
    /// # Errors
    /// `Err(())` when `depth` writes are in flight: reap first.
    ///
    /// # Safety
    /// The memory of `pages` must stay as it is until the completion for `tag` has been reaped.
    /// (They lie in staging memory that outlives the queue; the evictor does not reuse a stage before.)
    #[allow(clippy::result_unit_err)]
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()>;
    /// Hands what was started to the device, and calls `done` for each completion there is; with `wait`,
    /// blocks until there is at least one (unless nothing is in flight).
    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>));
    /// As [`WriteQueue::reap`] with `wait`, but gives up after about `ns` nanoseconds: a device may hang.
    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>));
    /// Writes in flight.
    fn in_flight(&self) -> u32;
    /// What the space does on the side, once a batch.
    fn tend(&mut self, _free: &dyn FreeSlots) {}
}

/// Which slots have no page.
pub trait FreeSlots {
    /// Of the 64 slots from `first`, a multiple of 64, on: a bit for each that has none, until the next write to it.
    fn free_of(&self, first: u64) -> u64;

    /// Whether this one has none.
    fn is_free(&self, slot: Slot) -> bool {
        self.free_of(slot.number() & !63) >> (slot.number() & 63) & 1 != 0
    }
}

impl FreeSlots for SlotMap {
    fn free_of(&self, first: u64) -> u64 {
        SlotMap::free_of(self, first)
    }
}
