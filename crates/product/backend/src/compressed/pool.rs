//! The pool: where each slot's page lies, and in which order pages came.
//!
//! There is an entry for each slot, in a reserved mapping, so that a reader finds it without a lock: its word
//! ([`farshore_core::pooled`]) and its links. Pages that take memory are in a list by age. All operations but reading are under
//! one lock, which evictors alone take, for as long as it takes to copy a compressed page. Compressing and decompressing are done
//! without the lock.

mod age;
mod emptying;
mod tending;

use super::COPIES;
use super::chunks::{Chunks, SPAN, UNIT};
use super::codec::{self, Decoder, Encoder, WORTH_IT};
use crate::reserved::Reserved;
use age::{Links, NOBODY};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use farshore_config::Compression;
use farshore_core::limits::{EVICTORS_MAX, EXTENT_SLOTS, EXTENTS_MAX, PAGE_SIZE};
use farshore_core::pooled::{Place, PooledWord};
use farshore_core::seams::PageBuf;
use farshore_core::spin::SpinLock;
use farshore_core::sync::spin_hint;
use farshore_core::word::Slot;
use rustix::io::Errno;

/// Most slots that entries are reserved for.
const SLOTS_MAX: u64 = (EXTENTS_MAX * EXTENT_SLOTS) as u64;
/// Fewest slots, for each page that the pool would hold uncompressed.
const SLOTS_A_PAGE: u64 = 2;
/// A chunk begins with the number of the slot whose page it holds, so that the page can be moved.
const OWNER: usize = 8;

/// Bytes for the owner of a chunk that holds `len` bytes: none if the page is whole, which fills a chunk of the largest size.
/// Such chunks are not moved.
fn owner_of(len: usize) -> usize {
    if len < PAGE_SIZE { OWNER } else { 0 }
}

/// The entry of one slot.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    word: PooledWord,
    /// For a chunk: [`Links`]. For a repeated word: the word.
    extra: AtomicU64,
}

const _: () = assert!(SLOTS_MAX < 1 << 31);

/// State under the lock.
#[derive(Debug)]
struct State {
    chunks: Chunks,
    oldest: u32,
    newest: u32,
    /// The group of 64 slots that the next sweep begins at; and one slot behind the last that ever had a page.
    sweep: u64,
    end: u64,
    /// Bytes of pages whose copies are under way: half of their size each, as a guess.
    copying: u64,
    /// The first slots of copies that are under way, and how many follow. From before the first look at their pages until the
    /// tier below has answered.
    copies: Vec<(u64, u32)>,
    /// There was no room for a page since the last copies began.
    pressed: bool,
    /// Chunks of a span that is being emptied.
    moving: Vec<u64>,
}

/// Counts of what has gone through the pool.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages that are here now.
    pub pages: AtomicU64,
    /// Of them, those of one word.
    pub repeated: AtomicU64,
    /// Bytes that they were compressed to.
    pub compressed_bytes: AtomicU64,
    /// Pages that were not worth compressing, or for which there was no room.
    pub passed_on: AtomicU64,
    /// Pages that were moved to the tier below.
    pub moved: AtomicU64,
}

/// Where a page went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// Into the pool.
    Kept,
    /// Nowhere: the tier below may take it.
    PassedOn,
    /// Nowhere, and the tier below may not take it now either.
    Full,
}

/// Compressed pages.
#[derive(Debug)]
pub struct Pool {
    decoder: Decoder,
    kind: Compression,
    memory: Reserved,
    index: Reserved,
    /// A bit for each slot: set if it has a page here.
    present: Reserved,
    slots: u64,
    bytes: u64,
    /// Bytes that may be used now; at most `bytes`.
    allowed: AtomicU64,
    /// Bytes that have memory.
    touched: AtomicU64,
    state: SpinLock<State>,
    /// A space under the pool takes the pages that the pool has no room for.
    has_lower: bool,
    /// The last copy to that space failed.
    lower_fails: AtomicBool,
    /// Counts of what has gone through the pool.
    pub counters: Counters,
}

impl Pool {
    /// A pool of at most `bytes` (rounded down to whole spans, at least one), for slots below `slots`, or as many as address
    /// space can be had for.
    ///
    /// # Errors
    /// When the address space cannot be reserved.
    pub fn new(kind: Compression, bytes: u64, slots: Option<u64>, has_lower: bool) -> Result<Pool, Errno> {
        let bytes = (bytes / SPAN as u64).max(1) * SPAN as u64;
        let memory = Reserved::new(bytes)?;
        let fewest = (SLOTS_A_PAGE * bytes / PAGE_SIZE as u64).max(EXTENT_SLOTS as u64).min(SLOTS_MAX);
        let mut slots = slots.unwrap_or(SLOTS_MAX).min(SLOTS_MAX);
        let index = loop {
            match Reserved::new(slots * size_of::<Entry>() as u64) {
                Ok(index) => break index,
                // There is a limit of the address space: pages of further slots are written past the pool.
                Err(_) if slots / 2 >= fewest => slots /= 2,
                Err(errno) => return Err(errno),
            }
        };
        let chunks = Chunks::new(memory.base(), bytes as usize)?;
        Ok(Pool {
            decoder: Decoder::new(kind),
            kind,
            memory,
            index,
            present: Reserved::new(slots.div_ceil(64) * 8)?,
            slots: slots / EXTENT_SLOTS as u64 * EXTENT_SLOTS as u64,
            bytes,
            allowed: AtomicU64::new(bytes),
            touched: AtomicU64::new(0),
            state: SpinLock::new(State {
                chunks,
                oldest: NOBODY,
                newest: NOBODY,
                sweep: 0,
                end: 0,
                copying: 0,
                copies: Vec::with_capacity(COPIES * EVICTORS_MAX),
                pressed: false,
                moving: Vec::with_capacity(SPAN / UNIT),
            }),
            has_lower,
            lower_fails: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Slots that the pool has entries for: a whole number of extents.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// How pages are compressed.
    pub fn kind(&self) -> Compression {
        self.kind
    }

    /// The most bytes that the pool may use, and how many it uses now.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes, self.touched.load(Ordering::Relaxed))
    }

    /// Memory for entries, of slots that ever had a page, in bytes.
    pub fn mapped_bytes(&self) -> u64 {
        self.with(|state| state.end * size_of::<Entry>() as u64 + state.end / 8 + state.chunks.mapped_bytes())
    }

    /// The pool may use this many bytes from now on; memory beyond that goes by and by.
    pub fn allow(&self, bytes: u64) {
        self.allowed.store(bytes.min(self.bytes), Ordering::Relaxed);
    }

    /// Sets whether the tier below refuses pages, as the last copy to it showed.
    pub fn set_lower_fails(&self, fails: bool) {
        self.lower_fails.store(fails, Ordering::Relaxed);
    }

    fn entry(&self, slot: u64) -> Option<&Entry> {
        if slot >= self.slots {
            return None;
        }
        // SAFETY: within the mapping, whose zeros are entries without a page.
        Some(unsafe { &*self.index.nth::<Entry>(slot as usize) })
    }

    /// Runs `f` under the lock.
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.state.with(|state| {
            let result = f(state);
            self.touched.store(state.chunks.touched(), Ordering::Relaxed);
            result
        })
    }

    /// Reads a page. `None`: it is not in the pool. `Some(false)`: it cannot be decompressed. For any thread; takes no
    /// lock.
    pub fn read(&self, slot: Slot, into: &mut PageBuf) -> Option<bool> {
        let entry = self.entry(slot.number())?;
        let place = entry.word.pin()?;
        let whole = match place {
            Place::Repeated => {
                codec::repeat(entry.extra.load(Ordering::Relaxed), into);
                true
            }
            Place::Chunk { at, len } => {
                // SAFETY: it was written before the entry named it, and stays as it is while the entry is pinned.
                let bytes = unsafe { core::slice::from_raw_parts(self.bytes_at(at, len as usize), len as usize) };
                if len as usize == PAGE_SIZE {
                    into.0.copy_from_slice(bytes);
                    true
                } else {
                    self.decoder.decode(bytes, into)
                }
            }
        };
        entry.word.unpin();
        Some(whole)
    }

    /// Whether a page is here, at this moment. A page that is not here does not come back.
    pub fn has(&self, slot: Slot) -> bool {
        self.entry(slot.number()).is_some_and(|entry| {
            let here = entry.word.pin().is_some();
            if here {
                entry.word.unpin();
            }
            here
        })
    }

    /// Stores a page for a slot; the page that the slot had before is gone.
    pub fn put(&self, slot: Slot, page: &PageBuf, encoder: &mut Encoder, small: &mut [u8; WORTH_IT]) -> Put {
        let Some(entry) = self.entry(slot.number()) else { return self.pass_on() };
        let repeated = codec::repeated(page);
        let compressed = if repeated.is_some() { None } else { encoder.encode(page, small) };
        loop {
            let put = self.with(|state| {
                if !self.drop_page(state, slot.number(), entry) {
                    return None;
                }
                state.end = state.end.max(slot.number() + 1);
                if let Some(word) = repeated {
                    entry.extra.store(word, Ordering::Relaxed);
                    self.put_in(slot.number(), entry, Place::Repeated);
                    self.counters.repeated.fetch_add(1, Ordering::Relaxed);
                    return Some(Put::Kept);
                }
                // While the slot below is being written, no other thread may write it.
                let may_pass = self.has_lower && !entry.word.is_copied();
                let bytes = match compressed {
                    Some(len) => &small[..len],
                    None if may_pass => return Some(Put::PassedOn),
                    None => &page.0[..],
                };
                let Some(at) = self.take_chunk(state, bytes.len() + owner_of(bytes.len())) else {
                    state.pressed = true;
                    return Some(if may_pass { Put::PassedOn } else { Put::Full });
                };
                self.fill(at, slot.number(), bytes);
                self.list(state, slot.number() as u32);
                self.put_in(slot.number(), entry, Place::Chunk { at, len: bytes.len() as u32 });
                self.counters.compressed_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Some(Put::Kept)
            });
            match put {
                Some(Put::PassedOn) => return self.pass_on(),
                Some(put) => return put,
                // Another thread copies the old page, and is done with it in a moment.
                None => spin_hint(),
            }
        }
    }

    /// Where the bytes of a chunk begin, behind its owner.
    fn bytes_at(&self, at: u64, len: usize) -> *mut u8 {
        // SAFETY: within a chunk of the pool, which is large enough for both.
        unsafe { self.memory.base().add(at as usize * UNIT + owner_of(len)) }
    }

    /// Writes a chunk that no other thread uses.
    fn fill(&self, at: u64, owner: u64, bytes: &[u8]) {
        let to = self.bytes_at(at, bytes.len());
        if owner_of(bytes.len()) > 0 {
            // SAFETY: room for it is before the bytes, aligned to a unit.
            let place = unsafe { to.sub(OWNER) };
            // SAFETY: as above; the chunk is the caller's.
            unsafe { place.cast::<u64>().write(owner) };
        }
        // SAFETY: the chunk is the caller's and as large as the bytes, which lie elsewhere.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn pass_on(&self) -> Put {
        if !self.has_lower {
            return Put::Full;
        }
        self.counters.passed_on.fetch_add(1, Ordering::Relaxed);
        Put::PassedOn
    }

    /// Takes out the slot's page. False while a thread reads it.
    fn drop_page(&self, state: &mut State, slot: u64, entry: &Entry) -> bool {
        if entry.word.place().is_none() {
            return true;
        }
        match entry.word.take() {
            Some(place) => {
                self.forget(state, slot, entry, place);
                true
            }
            None => false,
        }
    }

    /// Frees the memory of a page that was taken out.
    fn forget(&self, state: &mut State, slot: u64, entry: &Entry, place: Place) {
        self.counters.pages.fetch_sub(1, Ordering::Relaxed);
        self.present(slot / 64).fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
        match place {
            Place::Repeated => _ = self.counters.repeated.fetch_sub(1, Ordering::Relaxed),
            Place::Chunk { at, len } => {
                self.counters.compressed_bytes.fetch_sub(u64::from(len), Ordering::Relaxed);
                if Links::decode(entry.extra.load(Ordering::Relaxed)).listed {
                    self.unlist(state, slot as u32);
                }
                state.chunks.give(at, self.allowed.load(Ordering::Relaxed));
            }
        }
    }

    /// The word with a bit for each of 64 slots: set if the slot has a page here. Under the lock.
    fn present(&self, word: u64) -> &AtomicU64 {
        // SAFETY: within the mapping, whose zeros say that there are none.
        unsafe { &*self.present.nth::<AtomicU64>(word as usize) }
    }

    /// A new page of a slot. Under the lock.
    fn put_in(&self, slot: u64, entry: &Entry, place: Place) {
        entry.word.put(place);
        self.counters.pages.fetch_add(1, Ordering::Relaxed);
        self.present(slot / 64).fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    /// Checks lists and counts. Only while no other thread uses the pool.
    ///
    /// # Panics
    /// When they disagree.
    #[cfg(test)]
    pub fn assert_valid(&self) {
        self.with(|state| {
            let (mut pages, mut repeated, mut bytes, mut chunks) = (0, 0, 0, 0);
            for number in 0..state.end {
                let place = self.entry(number).and_then(|entry| entry.word.place());
                assert_eq!(
                    place.is_some(),
                    self.present(number / 64).load(Ordering::Relaxed) >> (number % 64) & 1 != 0,
                    "{number}"
                );
                match place {
                    Some(Place::Chunk { len, .. }) => {
                        bytes += u64::from(len);
                        chunks += 1;
                    }
                    Some(Place::Repeated) => repeated += 1,
                    None => {}
                }
            }
            pages += chunks + repeated;
            let (mut at, mut seen, mut before) = (state.oldest, 0, NOBODY);
            while at != NOBODY {
                let links = self.links(at);
                assert!(links.listed && links.older == before, "{at}: {links:?}");
                (before, at, seen) = (at, links.newer, seen + 1);
            }
            assert_eq!((before, seen), (state.newest, chunks), "the list by age");
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let counters = &self.counters;
            assert_eq!(
                (pages, repeated, bytes),
                (load(&counters.pages), load(&counters.repeated), load(&counters.compressed_bytes))
            );
            assert!(state.chunks.held() >= bytes && state.copying == 0 && state.copies.is_empty());
        });
    }
}
