//! Where items lie: memory in slab pages, each cut into chunks of one size, so that neighbours are of a like size.
//!
//! An item is one chunk: a header of two words, the key, the value, each beginning at a word. Words are atomic and read and written without order:
//! the index tells when a chunk may be read (a pin) or written (a [`super::Draft`]), and no mistake there can be worse than a wrong byte.
//!
//! What is known of a chunk without a look at it lies beside, packed by slab page: its owner's hash, and its `mark`. A page of items is so touched
//! by requests that read or write an item there, and by nothing else: neither eviction nor deletion nor the free list (which is outside) fetches it.
//!
//! | mark | the chunk |
//! |---|---|
//! | 0 | has no item: free, or a draft |
//! | 1 | has an item that goes next, unless the index knows none there (it is about to come, or gone and pinned) |
//! | 2 … | has an item with so many chances less one |
//!
//! The clock: each class has a hand that goes round its chunks. It takes a chance from each item, and the first that has none is evicted. A look at
//! an item gives it its chances back: one store beside, and none if it has them all.
//!
//! A class that has no memory, or whose items have all been evicted since it last got some, takes a slab page from another (`drain`): its items are
//! evicted, and when the last chunk has come back it goes to the class that asks next.
//!
//! Locks here are [`Held`]: none is held across a look at an item.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::held::Held;
use crate::memory::Region;

/// Places are counted in so many bytes.
pub const UNIT: usize = 32;
/// The smallest chunk.
const CHUNK_MIN: usize = 64;
/// The smallest slab page.
const PAGE_MIN: usize = 1 << 20;
/// Bytes of an item before its key.
pub const HEADER: usize = 16;
/// The most memory: places are numbers of 32 bits.
pub const MEMORY_MAX: usize = UNIT << 32;
/// The mark of a new item, and of one that was looked at.
const MARK_NEW: u8 = 2;
const MARK_SEEN: u8 = 4;
/// So many chunks the hand passes before others may have the class.
const STRIDE: u32 = 64;
const WORD: usize = 8;
const NO_CLASS: u8 = u8::MAX;

/// Bytes that an item with such a key and value takes.
pub fn item_bytes(key: usize, value: usize) -> usize {
    HEADER + key.next_multiple_of(WORD) + value.next_multiple_of(WORD)
}

fn page_bytes(item_max: usize) -> usize {
    item_max.next_power_of_two().max(PAGE_MIN)
}

/// The least memory for items of at most `item_max`: two slab pages.
pub fn memory_min(item_max: usize) -> usize {
    2 * page_bytes(item_max)
}

/// What lies in front of an item's key.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Bytes of the key.
    pub key: usize,
    /// Bytes of the value.
    pub value: usize,
    /// The client's bits.
    pub flags: u32,
}

#[derive(Debug, Default)]
struct ClassState {
    free: Vec<u32>,
    pages: Vec<u32>,
    /// Chunks of the last page that were never used, from this one on.
    fresh: u32,
    hand: (usize, u32),
    /// Evictions since the class last got a page.
    evicted: u64,
    evicted_ever: u64,
    used: u64,
}

#[derive(Debug)]
struct Class {
    bytes: usize,
    chunks: u32,
    state: Held<ClassState>,
}

#[derive(Debug)]
struct Page {
    class: AtomicU8,
    /// Its chunks do not go to the free list, but back with the page.
    draining: AtomicU8,
    used: AtomicU32,
}

/// Of a class, for statistics.
#[derive(Clone, Copy, Debug)]
pub struct ClassView {
    /// Its number, from 1.
    pub number: usize,
    /// Bytes of a chunk.
    pub bytes: usize,
    /// Chunks of a slab page.
    pub chunks: u32,
    /// Slab pages.
    pub pages: usize,
    /// Chunks with an item.
    pub used: u64,
    /// Items evicted.
    pub evicted: u64,
}

/// All chunks.
#[derive(Debug)]
pub struct Slabs {
    words: Region<AtomicU64>,
    owners: Region<AtomicU32>,
    marks: Region<AtomicU8>,
    classes: Vec<Class>,
    pages: Vec<Page>,
    page_bytes: usize,
    /// Pages that belong to no class, and those that are on their way there.
    pool: Held<(Vec<u32>, Vec<u32>)>,
}

impl Slabs {
    /// Room for `memory` bytes of items of at most `item_max`.
    ///
    /// # Errors
    /// If the kernel does not give that much address space, or it is not between [`memory_min`] and [`MEMORY_MAX`].
    pub fn new(memory: usize, item_max: usize) -> io::Result<Slabs> {
        let page_bytes = page_bytes(item_max);
        let count = memory / page_bytes;
        if memory < memory_min(item_max) || memory > MEMORY_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut classes = Vec::new();
        let mut bytes = CHUNK_MIN;
        loop {
            // The last chunks of a page are larger rather than that a rest is left.
            let chunks = page_bytes / bytes;
            let bytes_even = (page_bytes / chunks) & !(UNIT - 1);
            classes.push(Class { bytes: bytes_even, chunks: chunks as u32, state: Held::default() });
            if chunks == 1 {
                break;
            }
            bytes = ((bytes_even + bytes_even / 4).next_multiple_of(UNIT)).min(page_bytes);
        }
        let beside = count * (page_bytes / CHUNK_MIN);
        let page = || Page { class: AtomicU8::new(NO_CLASS), draining: AtomicU8::new(0), used: AtomicU32::new(0) };
        Ok(Slabs {
            words: Region::new(count * page_bytes / WORD)?,
            owners: Region::new(beside)?,
            marks: Region::new(beside)?,
            classes,
            pages: (0..count).map(|_| page()).collect(),
            page_bytes,
            pool: Held::new(((0..count as u32).rev().collect(), Vec::new())),
        })
    }

    /// Bytes of all slab pages.
    pub fn memory(&self) -> usize {
        self.pages.len() * self.page_bytes
    }

    /// How many items there can be.
    pub fn items_max(&self) -> usize {
        self.memory() / CHUNK_MIN
    }

    /// The class for so many bytes.
    pub fn class_of(&self, bytes: usize) -> Option<usize> {
        let class = self.classes.partition_point(|class| class.bytes < bytes);
        (class < self.classes.len()).then_some(class)
    }

    /// The class, counted from 1, and the chunk's bytes of a place.
    pub fn class_at(&self, place: u32) -> (usize, usize) {
        let class = self.page(place).class.load(Relaxed);
        (usize::from(class) + 1, self.classes[usize::from(class)].bytes)
    }

    /// The classes that have memory.
    pub fn classes(&self) -> Vec<ClassView> {
        let mut views = Vec::with_capacity(self.classes.len());
        for (number, class) in self.classes.iter().enumerate() {
            let (pages, used, evicted) = class.state.with(|state| (state.pages.len(), state.used, state.evicted_ever));
            if pages > 0 || used > 0 {
                views.push(ClassView { number: number + 1, bytes: class.bytes, chunks: class.chunks, pages, used, evicted });
            }
        }
        views
    }

    fn units(&self) -> usize {
        self.page_bytes / UNIT
    }

    fn page(&self, place: u32) -> &Page {
        &self.pages[place as usize / self.units()]
    }

    /// Where the chunk's entries beside are.
    fn beside(&self, place: u32) -> usize {
        let (page, unit) = (place as usize / self.units(), place as usize % self.units());
        let class = &self.classes[usize::from(self.pages[page].class.load(Relaxed))];
        page * (self.page_bytes / CHUNK_MIN) + unit * UNIT / class.bytes
    }

    fn place(&self, page: u32, class: &Class, chunk: u32) -> u32 {
        (page as usize * self.units() + chunk as usize * class.bytes / UNIT) as u32
    }

    /// A chunk of `class` without an eviction, if there is one.
    pub fn take(&self, number: usize) -> Option<u32> {
        let class = &self.classes[number];
        let have = || {
            class.state.with(|state| {
                let place = state.free.pop().or_else(|| {
                    let page = *state.pages.last()?;
                    (state.fresh < class.chunks).then(|| {
                        state.fresh += 1;
                        self.place(page, class, state.fresh - 1)
                    })
                })?;
                state.used += 1;
                self.page(place).used.fetch_add(1, Relaxed);
                Some(place)
            })
        };
        have().or_else(|| {
            let page = self.pool.with(|(free, _)| free.pop())?;
            self.pages[page as usize].class.store(number as u8, Relaxed);
            class.state.with(|state| {
                // Another got one at the same time: the rest of that one is free.
                if let Some(last) = state.pages.last().copied() {
                    let rest = (state.fresh..class.chunks).map(|chunk| self.place(last, class, chunk));
                    state.free.extend(rest);
                }
                state.pages.push(page);
                state.fresh = 0;
                state.evicted = 0;
            });
            have()
        })
    }

    /// The next chunk of `class` whose item has no chances left, with its owner's hash. `None`: none was found among the next ones.
    pub fn next_victim(&self, number: usize) -> Option<(u32, u32)> {
        let class = &self.classes[number];
        class.state.with(|state| {
            for _ in 0..STRIDE {
                if state.pages.is_empty() {
                    return None;
                }
                let (mut at, mut chunk) = state.hand;
                if chunk >= class.chunks {
                    (at, chunk) = (at + 1, 0);
                }
                at %= state.pages.len();
                state.hand = (at, chunk + 1);
                let place = self.place(state.pages[at], class, chunk);
                let beside = self.beside(place);
                match self.marks[beside].load(Relaxed) {
                    0 => {}
                    1 => return Some((place, self.owners[beside].load(Relaxed))),
                    mark => self.marks[beside].store(mark - 1, Relaxed),
                }
            }
            None
        })
    }

    /// Counts an eviction from `class`.
    pub fn evicted(&self, number: usize) {
        self.classes[number].state.with(|state| {
            state.evicted += 1;
            state.evicted_ever += 1;
        });
    }

    /// Whether `class` should take memory from another one.
    pub fn is_starved(&self, number: usize) -> bool {
        let class = &self.classes[number];
        let (pages, evicted) = class.state.with(|state| (state.pages.len(), state.evicted));
        pages == 0 || evicted > pages as u64 * u64::from(class.chunks) * 2
    }

    /// Chooses a page for class `number` to take, which then drains, and gives its items one by one: places and owners' hashes, to be evicted.
    /// False: there is none to take.
    pub fn drain(&self, number: usize, mut evict: impl FnMut(u32, u32)) -> bool {
        let calm = |class: &Class| class.state.with(|state| (state.pages.len(), state.evicted));
        let mut best: Option<(usize, u64)> = None;
        for (other, class) in self.classes.iter().enumerate().filter(|(other, _)| *other != number) {
            let (pages, evicted) = calm(class);
            let pressure = evicted * 64 / (pages.max(1) as u64 * u64::from(class.chunks));
            if pages > 1 && best.is_none_or(|(_, least)| pressure < least) {
                best = Some((other, pressure));
            }
        }
        let (mine, _) = calm(&self.classes[number]);
        if best.is_none() && mine == 0 {
            best = (0..self.classes.len()).find(|other| calm(&self.classes[*other]).0 > 0).map(|other| (other, 0));
        }
        self.classes[number].state.with(|state| state.evicted = 0);
        let Some((other, _)) = best else { return self.sweep(&mut evict) };
        let class = &self.classes[other];
        let page = class.state.with(|state| {
            if state.pages.is_empty() {
                return None;
            }
            // Not the last: that one has the fresh chunks.
            let at = state.hand.0 % state.pages.len().saturating_sub(1).max(1);
            let page = state.pages.remove(at);
            if state.pages.is_empty() {
                state.fresh = class.chunks;
            }
            self.pages[page as usize].draining.store(1, Relaxed);
            state.free.retain(|place| *place as usize / self.units() != page as usize);
            state.hand = (at, 0);
            Some(page)
        });
        if let Some(page) = page {
            self.pool.with(|(_, draining)| draining.push(page));
        }
        self.sweep(&mut evict)
    }

    /// Evicts what is left in draining pages, and gives the empty ones to the next that asks.
    fn sweep(&self, evict: &mut impl FnMut(u32, u32)) -> bool {
        let draining = self.pool.with(|(_, draining)| draining.clone());
        for page in &draining {
            let class = &self.classes[usize::from(self.pages[*page as usize].class.load(Relaxed))];
            for chunk in 0..class.chunks {
                let place = self.place(*page, class, chunk);
                let beside = self.beside(place);
                if self.marks[beside].load(Relaxed) != 0 {
                    evict(place, self.owners[beside].load(Relaxed));
                }
            }
        }
        self.pool.with(|(free, draining)| {
            draining.retain(|page| {
                let state = &self.pages[*page as usize];
                let empty = state.used.load(Relaxed) == 0;
                if empty {
                    state.draining.store(0, Relaxed);
                    free.push(*page);
                }
                !empty
            });
            !free.is_empty()
        })
    }

    /// Gives a chunk back that has no item any more.
    pub fn give(&self, place: u32) {
        let page = self.page(place);
        let number = usize::from(page.class.load(Relaxed));
        self.marks[self.beside(place)].store(0, Relaxed);
        self.classes[number].state.with(|state| {
            state.used -= 1;
            if page.draining.load(Relaxed) == 0 {
                state.free.push(place);
            }
            // Last: an empty page may go to another class at once.
            page.used.fetch_sub(1, Relaxed);
        });
    }

    /// The chunk will have an item at once.
    pub fn own(&self, place: u32, hash: u32) {
        let beside = self.beside(place);
        self.owners[beside].store(hash, Relaxed);
        self.marks[beside].store(MARK_NEW, Relaxed);
    }

    /// Its item was looked at.
    #[inline]
    pub fn seen(&self, place: u32) {
        let mark = &self.marks[self.beside(place)];
        if mark.load(Relaxed) != MARK_SEEN {
            mark.store(MARK_SEEN, Relaxed);
        }
    }

    fn start(&self, place: u32) -> usize {
        place as usize * (UNIT / WORD)
    }

    /// Writes what lies in front of the key.
    pub fn set_head(&self, place: u32, head: Head) {
        let start = self.start(place);
        self.words[start].store(head.value as u64 | u64::from(head.flags) << 32, Relaxed);
        self.words[start + 1].store(head.key as u64, Relaxed);
    }

    /// Reads it.
    #[inline]
    pub fn head(&self, place: u32) -> Head {
        let start = self.start(place);
        let first = self.words[start].load(Relaxed);
        let key = self.words[start + 1].load(Relaxed) as usize;
        // Bounded, so that not even a reader without a pin could leave the chunk's page.
        Head { key: key.min(u8::MAX.into()), value: (first as u32 as usize).min(self.page_bytes), flags: (first >> 32) as u32 }
    }

    /// Where the key begins, in bytes.
    pub fn key_at(&self, place: u32) -> usize {
        place as usize * UNIT + HEADER
    }

    /// Where the value of an item with such a key begins, in bytes.
    pub fn value_at(&self, place: u32, key: usize) -> usize {
        self.key_at(place) + key.next_multiple_of(WORD)
    }

    /// Copies bytes out.
    pub fn read(&self, at: usize, mut out: &mut [u8]) {
        let mut word = at / WORD;
        let skew = at % WORD;
        if skew != 0 {
            let bytes = self.words[word].load(Relaxed).to_le_bytes();
            let length = out.len().min(WORD - skew);
            let (first, rest) = out.split_at_mut(length);
            first.copy_from_slice(&bytes[skew..skew + length]);
            out = rest;
            word += 1;
        }
        let (whole, rest) = out.as_chunks_mut::<WORD>();
        let last = word + whole.len();
        for (place, from) in whole.iter_mut().zip(&self.words[word..last]) {
            *place = from.load(Relaxed).to_le_bytes();
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&self.words[last].load(Relaxed).to_le_bytes()[..rest.len()]);
        }
    }

    /// Copies bytes in.
    pub fn write(&self, at: usize, mut from: &[u8]) {
        let mut word = at / WORD;
        let skew = at % WORD;
        if skew != 0 {
            let length = from.len().min(WORD - skew);
            self.patch(word, skew, &from[..length]);
            from = &from[length..];
            word += 1;
        }
        let (whole, rest) = from.as_chunks::<WORD>();
        let last = word + whole.len();
        for (bytes, place) in whole.iter().zip(&self.words[word..last]) {
            place.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        if !rest.is_empty() {
            self.patch(last, 0, rest);
        }
    }

    fn patch(&self, word: usize, skew: usize, from: &[u8]) {
        let mut bytes = self.words[word].load(Relaxed).to_le_bytes();
        bytes[skew..skew + from.len()].copy_from_slice(from);
        self.words[word].store(u64::from_le_bytes(bytes), Relaxed);
    }

    /// Whether these bytes lie there.
    pub fn equals(&self, at: usize, bytes: &[u8]) -> bool {
        let mut here = [0; 256];
        bytes.chunks(here.len()).enumerate().all(|(number, piece)| {
            let here = &mut here[..piece.len()];
            self.read(at + number * 256, here);
            here == piece
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_room_for_all_sizes() {
        let slabs = Slabs::new(16 << 20, 1 << 20).unwrap();
        for bytes in [1, 64, 65, 1000, 4096, 500_000, 1 << 20] {
            let class = &slabs.classes[slabs.class_of(bytes).unwrap()];
            assert!(class.bytes >= bytes && class.bytes.is_multiple_of(UNIT) && class.bytes >= CHUNK_MIN);
            assert!(class.bytes * class.chunks as usize <= 1 << 20);
        }
        assert!(slabs.class_of((1 << 20) + 1).is_none());
        assert!(Slabs::new(1 << 20, 1 << 20).is_err());
    }

    #[test]
    fn chunks_do_not_overlap_and_come_back() {
        let slabs = Slabs::new(2 << 20, 1 << 20).unwrap();
        let class = slabs.class_of(300).unwrap();
        let mut places = Vec::new();
        while let Some(place) = slabs.take(class) {
            slabs.write(slabs.key_at(place) + 3, &[places.len() as u8; 250]);
            places.push(place);
        }
        assert_eq!(places.len(), 2 * slabs.classes[class].chunks as usize);
        for (number, place) in places.iter().enumerate() {
            assert!(slabs.equals(slabs.key_at(*place) + 3, &[number as u8; 250]));
        }
        let other = slabs.class_of(5000).unwrap();
        assert!(slabs.take(other).is_none() && slabs.is_starved(other));
        places.iter().for_each(|place| slabs.give(*place));
        assert!(slabs.drain(other, |_, _| panic!("nothing is owned")));
        assert!(slabs.take(other).is_some());
        assert!(slabs.take(class).is_some());
    }

    #[test]
    fn bytes_at_any_offset() {
        let slabs = Slabs::new(2 << 20, 1 << 20).unwrap();
        let text: Vec<u8> = (1..=60).collect();
        for at in 0..20 {
            for length in 0..40 {
                slabs.write(100, &[0; 80]);
                slabs.write(100 + at, &text[..length]);
                let mut back = [9; 80];
                slabs.read(100, &mut back);
                assert!(back[..at].iter().chain(&back[at + length..]).all(|byte| *byte == 0));
                assert_eq!(back[at..at + length], text[..length]);
                assert!(slabs.equals(100 + at, &text[..length]));
            }
        }
    }
}
