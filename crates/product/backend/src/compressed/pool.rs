//! The pool: where each slot's page lies, and in which order pages came.
//!
//! There is an entry for each slot, in a reserved mapping, so that a reader finds it without a lock: its word
//! ([`farshore_core::pooled`]) and its links. Pages that take memory are in a list by age. All operations but reading are under
//! one lock, which evictors alone take, for as long as it takes to copy a compressed page. Compressing and decompressing are done
//! without the lock.

mod age;
mod emptying;
mod tending;
mod worth;

pub use worth::Decided;
pub(super) use worth::Whose;

use super::COPIES;
use super::chunks::{Chunks, SPAN, UNIT};
use super::codec::{self, Decoder, Encoder, WORTH_IT};
use crate::reserved::{Reserved, spare_bytes};
use crate::sleep;
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
use worth::{Tag, Worth};

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

/// Where pages are compressed only to know whether they would become smaller, one in so many is.
const TRY_ONE_IN: u32 = 32;
/// Pages that the tier below has too, and that give their memory to one that comes.
const DROPPED_A_PUT: usize = 4;

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
    /// The same for pages that nobody needs.
    needless: u64,
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
    /// Nowhere, and the tier below may not take it yet: an older page of the slot is being copied there ([`Pool::is_copied`]).
    Later,
    /// Nowhere, and there is no tier below.
    Full,
}

/// Pages that one read has decompressed, and how long that took, ns.
#[derive(Clone, Copy, Default, Debug)]
pub struct Unpacked {
    pages: u64,
    ns: u64,
}

/// What has become of a page that was to be compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packed {
    /// It has so many bytes.
    Small(usize),
    /// It does not become smaller.
    Large,
    /// Nobody has tried, or not to keep it.
    Untried,
}

impl Packed {
    fn len(self) -> Option<usize> {
        match self {
            Packed::Small(len) => Some(len),
            Packed::Large | Packed::Untried => None,
        }
    }
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
    /// Decides how much memory it is worth, if it is to.
    pub(super) worth: Option<Worth>,
    /// What that rests on: a [`Tag`] for each slot.
    tags: Reserved,
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
        let is_adaptive = matches!(kind, Compression::Auto);
        let of_slot = size_of::<Entry>() as u64 + if is_adaptive { size_of::<Tag>() as u64 } else { 0 };
        let comfortable = (spare_bytes() / of_slot).max(fewest);
        let mut slots = slots.unwrap_or(SLOTS_MAX).min(SLOTS_MAX).min(comfortable);
        let tables = |slots: u64| {
            let tags = if is_adaptive { slots * size_of::<Tag>() as u64 } else { 1 };
            Ok((Reserved::new(slots * size_of::<Entry>() as u64)?, Reserved::new(tags)?, Reserved::new(slots.div_ceil(64) * 8)?))
        };
        let (index, tags, present) = loop {
            match tables(slots) {
                Ok(tables) => break tables,
                // There is a limit of the address space: pages of further slots are written past the pool.
                Err(_) if slots / 2 >= fewest => slots /= 2,
                Err(errno) => return Err(errno),
            }
        };
        let chunks = Chunks::new(memory.base(), bytes as usize)?;
        let worth = is_adaptive.then(|| Worth::new(bytes));
        Ok(Pool {
            decoder: Decoder::new(kind),
            kind,
            memory,
            index,
            present,
            slots: slots / EXTENT_SLOTS as u64 * EXTENT_SLOTS as u64,
            bytes,
            allowed: AtomicU64::new(if worth.is_some() { 0 } else { bytes }),
            touched: AtomicU64::new(0),
            state: SpinLock::new(State {
                chunks,
                oldest: NOBODY,
                newest: NOBODY,
                sweep: 0,
                end: 0,
                needless: 0,
                copying: 0,
                copies: Vec::with_capacity(COPIES * EVICTORS_MAX),
                pressed: false,
                moving: Vec::with_capacity(SPAN / UNIT),
            }),
            has_lower,
            lower_fails: AtomicBool::new(false),
            worth,
            tags,
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
        let tag = if self.worth.is_some() { size_of::<Tag>() as u64 } else { 0 };
        self.with(|state| state.end * (size_of::<Entry>() as u64 + tag) + state.end / 8 + state.chunks.mapped_bytes())
    }

    /// The pool may use this many bytes from now on; memory beyond that goes by and by.
    pub fn allow(&self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        let bytes = self.worth.as_ref().map_or(bytes, |worth| {
            worth.give(bytes);
            worth.bytes()
        });
        self.allowed.store(bytes, Ordering::Relaxed);
    }

    /// What was decided about how much memory the pool is worth, if that is decided.
    pub fn decided(&self) -> Option<Decided> {
        self.worth.as_ref().map(Worth::decided)
    }

    /// What decides about the pool's memory, and what it knows of the slot's page; `None`: nothing is decided.
    fn tagged(&self, slot: Slot) -> Option<(&Worth, &Tag)> {
        let worth = self.worth.as_ref().filter(|_| slot.number() < self.slots)?;
        // SAFETY: within the mapping, whose zeros are tags of pages of which nothing is known.
        Some((worth, unsafe { &*self.tags.nth::<Tag>(slot.number() as usize) }))
    }

    /// The pages of `count` slots are fetched: at once, or they were (`below`: from the tier below by one read, which took so many ns).
    pub fn come(&self, first: Slot, count: usize, below: Option<(u64, Whose)>) {
        let Some(worth) = &self.worth else { return };
        (0..count as u64).filter_map(|n| self.tagged(first.plus(n))).for_each(|(worth, tag)| worth.come(tag));
        if let Some((ns, whose)) = below {
            worth.note_below(count as u64, ns, whose);
        }
    }

    /// One read has brought so many compressed pages from here, within so many ns.
    pub fn note_here(&self, unpacked: Unpacked, whose: Whose) {
        if let Some(worth) = self.worth.as_ref().filter(|_| unpacked.pages > 0) {
            worth.note_here(unpacked.pages, unpacked.ns, whose);
        }
    }

    /// Whether the time that things take is of interest.
    pub fn is_adaptive(&self) -> bool {
        self.worth.is_some()
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

    /// Fetches a page. `None`: it is not in the pool. `Some(false)`: it cannot be decompressed. For any thread; takes no
    /// lock. Adds to `unpacked` what it took.
    pub fn read(&self, slot: Slot, into: &mut PageBuf, unpacked: &mut Unpacked) -> Option<bool> {
        let Some((worth, tag)) = self.tagged(slot) else { return Some(self.unpack(slot, into)?.1) };
        let began = sleep::now_ns();
        let (place, whole) = self.unpack(slot, into)?;
        worth.come(tag);
        if matches!(place, Place::Chunk { .. }) {
            unpacked.pages += 1;
            unpacked.ns += sleep::now_ns().saturating_sub(began);
        }
        Some(whole)
    }

    /// Where a page is, and whether it could be decompressed, without fetching it.
    fn unpack(&self, slot: Slot, into: &mut PageBuf) -> Option<(Place, bool)> {
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
        Some((place, whole))
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

    /// Whether a page of the slot is being copied to the tier below.
    pub fn is_copied(&self, slot: Slot) -> bool {
        self.entry(slot.number()).is_some_and(|entry| entry.word.is_copied())
    }

    /// Whether pages may take memory here now.
    pub fn is_open(&self) -> bool {
        self.worth.is_none() || self.allowed.load(Ordering::Relaxed) > 0
    }

    /// Stores a page for a slot; the page that the slot had before is gone. `may_keep`: it may take memory here.
    pub fn put(&self, slot: Slot, page: &PageBuf, may_keep: bool, encoder: &mut Encoder, small: &mut [u8; WORTH_IT]) -> Put {
        let Some(entry) = self.entry(slot.number()) else { return self.pass_on() };
        let repeated = codec::repeated(page);
        let packed = if repeated.is_some() { Packed::Untried } else { self.pack(slot, page, may_keep, encoder, small) };
        let compressed = packed.len();
        loop {
            let put = self.with(|state| {
                if !self.drop_page(state, slot.number(), entry) {
                    return None;
                }
                state.end = state.end.max(slot.number() + 1);
                if let Some((worth, tag)) = self.tagged(slot) {
                    tag.is_new();
                    worth.leave(tag);
                }
                if let Some(word) = repeated {
                    self.put_repeated(slot.number(), entry, word);
                    return Some(Put::Kept);
                }
                // While the slot below is being written, no other thread may write it.
                let may_pass = self.has_lower && !entry.word.is_copied();
                let bytes = match compressed {
                    Some(len) => &small[..len],
                    None if may_pass => return Some(Put::PassedOn),
                    None if !may_keep => return Some(Put::Later),
                    None => &page.0[..],
                };
                if !self.put_chunk(state, slot.number(), entry, bytes) {
                    return Some(if self.has_lower && !may_pass { Put::Later } else { Put::PassedOn });
                }
                Some(Put::Kept)
            });
            match put {
                Some(Put::PassedOn) => return self.pass_on(),
                Some(put) => {
                    if put == Put::Later {
                        self.counters.passed_on.fetch_add(1, Ordering::Relaxed);
                    }
                    return put;
                }
                // Another thread copies the old page, and is done with it in a moment.
                None => spin_hint(),
            }
        }
    }

    /// Compresses a page, if its memory may be worth it. (Where nothing may be in the pool, one page in [`TRY_ONE_IN`] is tried, to know what it would be.)
    fn pack(&self, slot: Slot, page: &PageBuf, may_keep: bool, encoder: &mut Encoder, small: &mut [u8; WORTH_IT]) -> Packed {
        let Some((worth, _)) = self.tagged(slot) else { return encoder.encode(page, small).map_or(Packed::Large, Packed::Small) };
        let is_of_use = may_keep && self.is_open();
        if !is_of_use && !encoder.is_turn(TRY_ONE_IN) {
            return Packed::Untried;
        }
        let began = sleep::now_ns();
        let packed = encoder.encode(page, small);
        worth.note_packed(packed, sleep::now_ns().saturating_sub(began));
        match packed {
            None => Packed::Large,
            Some(len) if is_of_use => Packed::Small(len),
            Some(_) => Packed::Untried,
        }
    }

    /// A page leaves whose bytes the slot has already, here or below: the pool may take a copy, if `is_right` and if it `may_keep` it. The slot stays the caller's
    /// meanwhile. (What the bytes are was checked when they were read, but whoever kept other ones would hide that a change was lost.)
    pub fn offer(
        &self,
        slot: Slot,
        page: &PageBuf,
        is_right: &mut dyn FnMut() -> bool,
        may_keep: bool,
        encoder: &mut Encoder,
        small: &mut [u8; WORTH_IT],
    ) {
        let (Some((worth, tag)), Some(entry)) = (self.tagged(slot), self.entry(slot.number())) else { return };
        let is_here = self.with(|state| {
            worth.leave(tag);
            let place = entry.word.place();
            if let Some(Place::Chunk { .. }) = place
                && self.links(slot.number() as u32).listed
            {
                // It was used since it came.
                self.unlist(state, slot.number() as u32);
                self.list(state, slot.number() as u32);
            }
            // While an older page of the slot is copied below, who knows what is there.
            place.is_some() || entry.word.is_copied()
        });
        if is_here {
            return;
        }
        let repeated = codec::repeated(page);
        let packed = if repeated.is_some() {
            Packed::Untried
        } else if tag.is_noise() {
            worth.note_noise();
            Packed::Untried
        } else {
            self.pack(slot, page, may_keep, encoder, small)
        };
        if matches!(packed, Packed::Large) {
            tag.set_noise();
        }
        if (repeated.is_none() && packed.len().is_none()) || !is_right() {
            return;
        }
        self.with(|state| {
            // The slot is the caller's, so nobody has put a page there since.
            debug_assert!(entry.word.place().is_none(), "slot {slot:?} has got a page");
            state.end = state.end.max(slot.number() + 1);
            tag.set_below();
            match (repeated, packed.len()) {
                (Some(word), _) => self.put_repeated(slot.number(), entry, word),
                (None, Some(len)) => _ = self.put_chunk(state, slot.number(), entry, &small[..len]),
                (None, None) => {}
            }
        });
    }

    /// Puts a page of one word in.
    fn put_repeated(&self, slot: u64, entry: &Entry, word: u64) {
        entry.extra.store(word, Ordering::Relaxed);
        self.put_in(slot, entry, Place::Repeated);
        self.counters.repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a page in, as the newest. False: there is no room.
    fn put_chunk(&self, state: &mut State, slot: u64, entry: &Entry, bytes: &[u8]) -> bool {
        let len = bytes.len() + owner_of(bytes.len());
        let mut at = self.take_chunk(state, len);
        for _ in 0..DROPPED_A_PUT {
            // While more is used than may be, none is to be had: spans must be empty first.
            let is_over = state.chunks.touched() > self.allowed.load(Ordering::Relaxed);
            if at.is_some() || is_over || !self.drop_oldest(state) {
                break;
            }
            at = self.take_chunk(state, len);
        }
        let Some(at) = at else {
            state.pressed = true;
            return false;
        };
        self.fill(at, slot, bytes);
        self.list(state, slot as u32);
        self.put_in(slot, entry, Place::Chunk { at, len: bytes.len() as u32 });
        self.counters.compressed_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        true
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
