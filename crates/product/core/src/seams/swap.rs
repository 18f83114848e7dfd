//! Swap space: where pages are that are not in memory.

use super::PageBuf;
use crate::slots::SlotMap;
use crate::slots::arrangement::SpaceSet;
use crate::word::Slot;

/// Why a backend could not do what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// There is no room for more data (a full disk): other writes fail too, reads work.
    Full,
    /// An error from the device, by errno.
    Device(i32),
    /// The device transferred fewer bytes than asked for.
    Short,
}

/// The answer of a backend that cannot give room back (`EOPNOTSUPP`).
pub const CANNOT: IoError = IoError::Device(95);
/// The answer of a backend that cannot give room back now because it is writing there itself. The caller may ask
/// again. No device answers so: 0 is no error. (One may answer `EAGAIN` for ever, and that is an error of the device.)
pub const LATER: IoError = IoError::Device(0);

impl core::fmt::Display for IoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            IoError::Full => f.write_str("no space left"),
            IoError::Device(errno) => write!(f, "I/O error (errno {errno})"),
            IoError::Short => f.write_str("short transfer"),
        }
    }
}

/// How a read that no thread blocks on goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBegun {
    /// The read has ended.
    Over(Result<(), IoError>),
    /// The caller reads this many pages from this place of a file into the buffer, in a way of its own: at least one, and none
    /// that was not asked for.
    File {
        /// The descriptor. It stays open until the read has ended.
        fd: i32,
        /// Bytes from the file's beginning.
        offset: u64,
        /// Pages.
        pages: usize,
    },
    /// The read has ended when the monotonic clock says this, in ns.
    Due(u64),
}

/// Reads pages back: what faults, readers and the drainer need.
///
/// Slots are page-sized and numbered from 0; slot `n` is `n * 4096` bytes into the space. The engine never reads a slot whose
/// write has not been acknowledged.
pub trait Reads: Send + Sync {
    /// Reads one page. Blocks. Called in a signal handler: no locks that a thread
    /// may hold while it faults, no allocation.
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError>;
    /// Reads the neighbouring slots from `first` on, one page each; all of them or an error. As [`Reads::read`] otherwise.
    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        (0..).zip(into).try_for_each(|(n, page)| self.read(first.plus(n), page))
    }
    /// As [`Reads::read_run`], for pages that are read ahead of their use: no thread of the program waits for this read.
    fn read_ahead(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        self.read_run(first, into)
    }
    /// Begins a read of the neighbouring slots from `first` on, for a caller that does something else meanwhile. The caller
    /// passes what it has read itself to [`Reads::finish_read`]. `into` stays where it is until the read has ended. As
    /// [`Reads::read`] otherwise.
    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        ReadBegun::Over(self.read_run(first, into))
    }
    /// The caller has read the slots from `first` on, as [`Reads::begin_read`] told it to, with this result. Turns the bytes that
    /// came into pages.
    fn finish_read(&self, _first: Slot, _into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        read
    }
    /// The caller has found that the bytes of `slot` that it was given last are wrong, and may read it again: a space that has it elsewhere too takes it from there
    /// then. One caller at a time uses a slot.
    fn doubt(&self, _slot: Slot) {}
}

/// What has become of one of the copies of a space that is kept several times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyChange {
    /// It does not answer, or fails: it is left alone for now.
    Lost,
    /// It answers, and lacks so many pages.
    Back(u64),
    /// It answers, and has lost what it had: so many pages.
    Replaced(u64),
    /// It has all pages again.
    Whole,
    /// It has no room: so many pages are not there.
    Full(u64),
}

impl core::fmt::Display for CopyChange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CopyChange::Lost => f.write_str("does not answer, or fails: the others have its pages, and it is asked again"),
            CopyChange::Back(0) => f.write_str("is back"),
            CopyChange::Back(pages) => write!(f, "is back: {pages} pages that it has missed are copied to it"),
            CopyChange::Replaced(0) => f.write_str("has lost its pages, and has them again"),
            CopyChange::Replaced(pages) => write!(f, "has lost its pages: {pages} are copied to it again"),
            CopyChange::Whole => f.write_str("has all pages again"),
            CopyChange::Full(pages) => {
                write!(f, "has no room for {pages} pages, which the others have: make room there, or exchange it (farshore set)")
            }
        }
    }
}

/// The spaces that slots lie in, each of which fails by itself: what the slot map, the watcher of failures and the drainer need.
pub trait Spaces: Send + Sync {
    /// Slots that the space can hold; `None`: as many as the disk has room for.
    fn capacity(&self) -> Option<u64>;
    /// The name of the space in messages: `file:/var/tmp`.
    fn name(&self) -> &str;
    /// Number of spaces that fail independently (the files of an array), at least 1. Extents of 512 slots go round them,
    /// until [`Spaces::arrange`].
    fn spaces(&self) -> usize;
    /// Slots that one of the spaces can hold, in whole extents; `None`: as many as its disk has room for.
    fn capacity_of(&self, space: usize) -> Option<u64>;
    /// The name, in messages, of the space that `slot` lies in.
    fn name_of(&self, slot: Slot) -> &str;
    /// From now on the extents from `first` on, of which no slot has been used, go round these spaces
    /// ([`Arrangements`](crate::slots::arrangement::Arrangements)): one space has come, or goes. One thread at a time.
    fn arrange(&self, _first: u32, _spaces: SpaceSet) {}
    /// Whether none of the writes that the backend makes by itself (a pool's copy to the tier below) is under way to a slot of
    /// these. For slots that no longer have a page the answer stays true, because such a write begins only to a slot that has
    /// one.
    fn is_quiet(&self, _is_there: &dyn Fn(Slot) -> bool) -> bool {
        true
    }
    /// `space` is empty and quiet ([`Spaces::is_quiet`]), and none of its slots is given out any more. From now on no transfer
    /// begins there. Waits for threads that write there without a ring.
    fn shut_space(&self, _space: usize) {}
    /// The neighbouring slots from `first` on, within an extent, have no page, so the medium need not keep their bytes. No caller
    /// reads or writes them meanwhile. A backend that may be writing there by itself answers [`LATER`], and begins no such write
    /// until the slots have pages again. Blocks: for a thread that may wait.
    ///
    /// # Errors
    /// [`LATER`], [`CANNOT`], or the reason why it failed. The slots may hold any bytes then, too.
    fn give_back(&self, _first: Slot, _count: u32) -> Result<(), IoError> {
        Err(CANNOT)
    }
    /// Releases what a space that was shut had. Its pages can no longer be read.
    fn close_space(&self, _space: usize) {}
    /// What keeps the pages where they are although nobody reads or writes them: a server may forget those of a client that has
    /// left it. Returns after how many ns it wants to be called again; `None`: nothing is to be done. Blocks: for a thread that may
    /// wait. `free`: which slots have no page.
    fn keep(&self, _free: &dyn FreeSlots) -> Option<u64> {
        None
    }
    /// Calls `tell` with the name of each copy with which something has happened since the last call, and what. A forked child's space calls nobody: its
    /// parent has copies at the same places.
    fn news(&self, _tell: &mut dyn FnMut(&str, CopyChange)) {}
}

/// RAM that a kind of swap space keeps pages in: what the thread that divides the memory limit needs.
pub trait MemoryBudget: Send + Sync {
    /// RAM in which the space keeps pages, in bytes. It is taken from the memory limit. A page that is written to the space adds
    /// a page at most. `None`: the space keeps pages elsewhere.
    fn own_memory(&self) -> Option<u64> {
        None
    }
    /// Whether pages that are written from now on may add to it. If not, [`WriteQueue::may_keep`] holds for those whose write begins after that changed.
    fn takes_memory(&self) -> bool {
        self.own_memory().is_some()
    }
    /// Sets the most that [`MemoryBudget::own_memory`] may be from now on.
    fn allow_memory(&self, _bytes: u64) {}
}

/// A kind of swap space. The engine never writes a slot that is being read or written.
pub trait Backend: Reads + Spaces + MemoryBudget {
    /// What an evictor writes through. One thread uses a queue at a time.
    type Queue: WriteQueue;
    /// A queue for up to `depth` writes in flight.
    fn queue(&self, depth: u32) -> Result<Self::Queue, IoError>;
}

/// What evictors know of faults that a space does not see: sums since the start, and how it is now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultsSeen {
    /// Pages that came back from their stages, without a read.
    pub rescued: u64,
    /// Stages: as many pages of those that left last can come back so.
    pub stages: u64,
    /// How long faults have waited for pages that another thread was bringing, ns.
    pub waited_ns: u64,
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
    /// (The pages lie in staging memory that outlives the queue. The evictor does not reuse a stage before its
    /// completion.)
    #[allow(clippy::result_unit_err)]
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()>;
    /// Hands the writes that were started to the device, and calls `done` for each completion that has arrived. With
    /// `wait`, blocks until at least one has arrived (unless nothing is in flight).
    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>));
    /// As [`WriteQueue::reap`] with `wait`, but gives up after about `ns` nanoseconds: a device may hang.
    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>));
    /// Writes in flight.
    fn in_flight(&self) -> u32;
    /// Whether a space that keeps pages in RAM may keep those of the next calls: their frames are withheld until it was counted. Else it writes them to where they
    /// take none; one that has no such place keeps them all the same.
    fn may_keep(&mut self, _may: bool) {}
    /// Whether the space wants to know of pages that leave although their slots have them ([`WriteQueue::offer`]).
    fn takes_clean(&self) -> bool {
        false
    }
    /// The page of a slot leaves; the slot has its bytes, and is the caller's until this returns. A space may keep a copy where it can be read sooner, if the bytes
    /// are those of the slot: `is_right` looks, which costs as much as a checksum.
    fn offer(&mut self, _slot: Slot, _page: &PageBuf, _is_right: &mut dyn FnMut() -> bool) {}
    /// Work that the space does on the side, once a batch.
    fn tend(&mut self, _free: &dyn FreeSlots, _faults: &FaultsSeen) {}
}

/// Which slots have no page.
pub trait FreeSlots {
    /// A bit for each of the 64 slots from `first` on, a multiple of 64: set if the slot has no page, until the next
    /// write to it.
    fn free_of(&self, first: u64) -> u64;

    /// The same, where no forked child may read the slot either.
    fn unneeded_of(&self, first: u64) -> u64;

    /// Whether this slot has no page.
    fn is_free(&self, slot: Slot) -> bool {
        self.free_of(slot.number() & !63) >> (slot.number() & 63) & 1 != 0
    }
}

impl FreeSlots for SlotMap {
    fn free_of(&self, first: u64) -> u64 {
        SlotMap::free_of(self, first)
    }

    fn unneeded_of(&self, first: u64) -> u64 {
        SlotMap::unneeded_of(self, first)
    }
}

/// All slots have pages: for a space of which nobody keeps account.
#[derive(Clone, Copy, Debug)]
pub struct NoneFree;

impl FreeSlots for NoneFree {
    fn free_of(&self, _first: u64) -> u64 {
        0
    }

    fn unneeded_of(&self, _first: u64) -> u64 {
        0
    }
}
