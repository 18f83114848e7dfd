//! The items in memory, and what can be done with one, each time as one step.
//!
//! ```text
//!  key ─ hash ─▶ index: one page ─ place ─▶ slabs: the item, mostly one page
//!                  pin, unpin                 key, value: written once, then only read
//! ```
//!
//! Any access to index or items may be one to a page that is far away, at which the unithread is switched away from. So:
//!
//! - **A look-up** locks a bucket for a moment (`index`, which says why nobody waits long for it), finds an entry with the key's whole hash, and
//!   *pins* it. Everything else is done without a lock: the key is compared, which fetches the item's page, and the value is copied to wherever it is
//!   wanted, in pieces, even while a peer takes its time. The pin goes when the [`Item`] is dropped. So a GET touches a page of the index and the pages
//!   of the item, and while it waits for either, no other unithread waits for it.
//! - **An item is written once**, as a [`Draft`] that nobody else knows, and is then published in the index. To change it is to publish another one.
//!   What changes otherwise (when it expires, was used, its number, its flags) is in the index.
//! - **A pinned item stays.** Who deletes, replaces or evicts it makes its entry dead: it is not found any more, and whoever drops the last pin frees
//!   the chunk. So a reader sees the item as it was when it was found, and nobody ever waits for readers.
//! - **A read, then a write that depends on it** (cas, add, append, incr …) is tried: the look-up notes the bucket's version ([`index::Seen`]), and the
//!   step is taken under the lock only if the version is still the same; if not, all is done again. A version changes with each entry that comes or
//!   goes, so of two that disturb each other one has got on.
//! - **A plain set looks at nothing**: it removes whatever has the same hash of 64 bits, and its own item comes. Should that have been another key's,
//!   then that one was evicted, which a cache may do at any time; and a page that is far away is not fetched to be overwritten.
//!
//! Memory is bounded by the slabs; what is over it is evicted (`slabs` has the clock, whose bits are beside the index and not in the items). Items that
//! have expired or were flushed go when they are found, or when the clock comes to them.

mod count;
mod held;
mod index;
mod ops;
mod slabs;
mod time;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use farshore_uthread::yield_now;

pub use count::{Count, Counters, NAMES};
pub use held::Held;
pub use index::View;
pub use ops::{Arithmetic, Change, Changed, Commit, Deleted, Outcome};
pub use slabs::{ClassView, HEADER, MEMORY_MAX, item_bytes, memory_min};
pub use time::{Clock, START};

use index::{Index, Locked, Seen};
use slabs::{Head, Slabs};

/// What is known of an item beside its bytes.
pub mod flag {
    /// Somebody has asked for it.
    pub const FETCHED: u16 = 1;
    /// It is not what it should be any more.
    pub const STALE: u16 = 2;
    /// Somebody was told to make it anew.
    pub const WON: u16 = 4;
    /// Its key is shown in base64.
    pub const BINARY: u16 = 8;
}

/// After so many fruitless looks for a victim there is no memory.
const EVICT_TRIES: usize = 4096;

/// Of these, every so many another class is asked for memory.
const DRAIN_EVERY: usize = 64;

/// Why there is no memory for an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// It is larger than any may be.
    TooLarge,
    /// All that could be evicted is in use.
    NoMemory,
}

/// What is over by a flush. What once was stays so, whatever flush comes later.
#[derive(Debug, Default)]
struct Flush {
    /// What was last used until this second.
    past: AtomicU32,
    /// What has a lower number.
    cas: AtomicU64,
    /// What was last used until this second, but only from then on. 0: none.
    at: AtomicU32,
}

/// All items. See the module's head.
#[derive(Debug)]
pub struct Store {
    index: Index,
    slabs: Slabs,
    hasher: RandomState,
    item_max: usize,
    last_cas: AtomicU64,
    flush: Flush,
    /// What happened.
    pub counters: Counters,
}

impl Store {
    /// For `memory` bytes of items, each of at most `item_max` with its key.
    ///
    /// # Errors
    /// If the kernel does not give that much address space, or the sizes do not fit.
    pub fn new(memory: usize, item_max: usize) -> io::Result<Store> {
        let slabs = Slabs::new(memory, item_max)?;
        let index = Index::new(slabs.items_max())?;
        Ok(Store {
            index,
            slabs,
            hasher: RandomState::new(),
            item_max,
            last_cas: AtomicU64::new(0),
            flush: Flush::default(),
            counters: Counters::default(),
        })
    }

    /// Bytes that items may take.
    pub fn memory(&self) -> usize {
        self.slabs.memory()
    }

    /// The largest item.
    pub fn item_max(&self) -> usize {
        self.item_max
    }

    /// Items that there are, with those that are over and were not found yet.
    pub fn items(&self) -> usize {
        self.index.items()
    }

    /// Buckets of the index.
    pub fn buckets(&self) -> usize {
        self.index.buckets()
    }

    /// The slab classes in use.
    pub fn classes(&self) -> Vec<ClassView> {
        self.slabs.classes()
    }

    /// The next unique number.
    pub fn next_cas(&self) -> u64 {
        self.last_cas.fetch_add(1, Relaxed) + 1
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Why an item is not there any more, if so.
    fn over(&self, view: View, now: u32) -> Option<Count> {
        if view.expires != 0 && view.expires <= now {
            return Some(Count::GetExpired);
        }
        let at = self.flush.at.load(Relaxed);
        let flushed = view.used <= self.flush.past.load(Relaxed)
            || view.cas < self.flush.cas.load(Relaxed)
            || (at != 0 && at <= now && view.used <= at);
        flushed.then_some(Count::GetFlushed)
    }

    /// Lets all items be over that there are at second `at`, which is `now` or later. One that was to come is forgotten.
    pub fn flush(&self, at: u32, now: u32) {
        let flush = &self.flush;
        let last = at.max(now) - 1;
        let before = flush.at.swap(if last > now { last } else { 0 }, Relaxed);
        if before <= now {
            flush.past.fetch_max(before, Relaxed);
        }
        if last <= now {
            flush.past.fetch_max(last, Relaxed);
            flush.cas.store(self.next_cas(), Relaxed);
        }
    }

    /// Looks `key` up. `look`: that counts as a use. An error says what the index was like where it is not.
    pub fn find(&self, key: &[u8], now: u32, look: bool) -> Result<Item<'_>, Miss> {
        let hash = self.hash(key);
        // Other keys with the same hash: practically never. They stay pinned, so that no new item takes their place meanwhile.
        let mut others: Vec<Item<'_>> = Vec::new();
        loop {
            let locked = self.index.lock(hash);
            let slot = locked.find(hash, |entry| others.iter().all(|other| other.place != entry.place()));
            let Some(slot) = slot else {
                return Err(Miss { seen: locked.seen(), over: None });
            };
            let (entry, place) = (slot.entry(), slot.entry().place());
            let view = entry.view();
            if let Some(why) = self.over(view, now) {
                let free = self.remove(&locked, slot);
                let seen = locked.seen();
                drop(locked);
                self.free_if(free);
                self.counters.add(Count::Reclaimed);
                return Err(Miss { seen, over: Some(why) });
            }
            if !entry.pin() {
                drop(locked);
                yield_now();
                continue;
            }
            if look {
                entry.set_view(View { used: now, flags: view.flags | flag::FETCHED, ..view });
            }
            let seen = locked.seen();
            drop(locked);
            let mut item = Item { store: self, hash, place, seen, view, head: Head { key: 0, value: 0, flags: 0 } };
            item.head = self.slabs.head(place);
            if item.head.key == key.len() && self.slabs.equals(self.slabs.key_at(place), key) {
                if look {
                    self.slabs.seen(place);
                }
                return Ok(item);
            }
            others.push(item);
        }
    }

    /// Removes an entry. The chunk that is free now, if it is.
    fn remove(&self, locked: &Locked<'_>, slot: index::Slot<'_>) -> Option<u32> {
        let place = slot.entry().place();
        locked.remove(slot).then_some(place)
    }

    fn free_if(&self, place: Option<u32>) {
        if let Some(place) = place {
            self.slabs.give(place);
        }
    }

    /// Memory for a new item, which its value can be written to.
    pub fn draft(&self, key: &[u8], value: usize, flags: u32) -> Result<Draft<'_>, NoRoom> {
        let bytes = item_bytes(key.len(), value);
        let class = self.slabs.class_of(bytes).filter(|_| bytes <= self.item_max);
        let Some(class) = class else {
            self.counters.add(Count::TooLarge);
            return Err(NoRoom::TooLarge);
        };
        let Some(place) = self.take(class) else {
            self.counters.add(Count::NoMemory);
            return Err(NoRoom::NoMemory);
        };
        let draft = Draft { store: self, hash: self.hash(key), place, head: Head { key: key.len(), value, flags } };
        self.slabs.set_head(place, draft.head);
        self.slabs.write(self.slabs.key_at(place), key);
        Ok(draft)
    }

    /// A chunk: a free one, or one whose item is evicted.
    fn take(&self, class: usize) -> Option<u32> {
        for number in 0..EVICT_TRIES {
            if let Some(place) = self.slabs.take(class) {
                return Some(place);
            }
            // Not each time: what could not be evicted then is pinned for a while.
            if number % DRAIN_EVERY == 0 && self.slabs.is_starved(class) {
                let drained = self.slabs.drain(class, |place, hash| {
                    self.evict(place, hash);
                });
                if drained {
                    continue;
                }
            }
            if let Some((place, hash)) = self.slabs.next_victim(class)
                && self.evict(place, hash)
            {
                self.slabs.evicted(class);
            } else {
                yield_now();
            }
        }
        None
    }

    /// Evicts the item at `place`, unless there is none any more or it is pinned. Only the index is touched.
    fn evict(&self, place: u32, hash: u32) -> bool {
        let locked = self.index.lock(hash.into());
        let found = locked.find_place(hash.into(), place);
        let Some((slot, _)) = found.filter(|(slot, live)| *live && slot.entry().is_free()) else { return false };
        let fetched = slot.entry().view().flags & flag::FETCHED != 0;
        let free = self.remove(&locked, slot);
        drop(locked);
        self.free_if(free);
        self.counters.add(Count::Evictions);
        if !fetched {
            self.counters.add(Count::EvictedUnfetched);
        }
        true
    }

    /// Publishes a draft whatever there is: see the module's head.
    fn set(&self, draft: Draft<'_>, view: View) -> Option<u64> {
        self.slabs.own(draft.place, draft.hash as u32);
        let locked = self.index.lock(draft.hash);
        while let Some(slot) = locked.find(draft.hash, |_| true) {
            let free = self.remove(&locked, slot);
            self.free_if(free);
        }
        let cas = self.insert(&locked, draft, view);
        drop(locked);
        self.index.grow();
        cas
    }

    /// Publishes a draft in the place of `old`, or of nothing, if nothing has changed since that was `seen`.
    fn publish<'s>(&'s self, draft: Draft<'s>, view: View, seen: Seen, old: Option<&Item<'_>>) -> Published<'s> {
        // Before anything is locked: what is beside may be far away. The clock, should it come by, finds no such item in the index.
        self.slabs.own(draft.place, draft.hash as u32);
        let locked = self.index.lock(draft.hash);
        if locked.seen() != seen {
            return Published::Changed(draft);
        }
        if let Some(old) = old {
            let Some((slot, true)) = locked.find_place(old.hash, old.place) else { return Published::Changed(draft) };
            let free = self.remove(&locked, slot);
            debug_assert!(free.is_none(), "the caller has pinned it");
        }
        let cas = self.insert(&locked, draft, view);
        drop(locked);
        self.index.grow();
        cas.map_or(Published::NoRoom, Published::Done)
    }

    /// Its unique number, if there is room for it.
    fn insert(&self, locked: &Locked<'_>, draft: Draft<'_>, view: View) -> Option<u64> {
        let cas = self.next_cas();
        if !locked.insert(draft.hash, draft.place, View { cas, ..view }) {
            return None;
        }
        // The chunk is the index's now.
        std::mem::forget(draft);
        self.counters.add(Count::Items);
        Some(cas)
    }

    /// Changes what is known of an item beside its bytes. `None`: it is not the one that is found any more.
    pub fn edit<R>(&self, item: &Item<'_>, change: impl FnOnce(&mut View) -> R) -> Option<R> {
        let locked = self.index.lock(item.hash);
        let (slot, true) = locked.find_place(item.hash, item.place)? else { return None };
        let mut view = slot.entry().view();
        let result = change(&mut view);
        slot.entry().set_view(view);
        locked.change();
        Some(result)
    }
}

/// Where nothing was found.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    seen: Seen,
    /// There was something that is over.
    pub over: Option<Count>,
}

enum Published<'s> {
    Done(u64),
    Changed(Draft<'s>),
    NoRoom,
}

/// A pinned item.
#[derive(Debug)]
pub struct Item<'s> {
    store: &'s Store,
    hash: u64,
    place: u32,
    seen: Seen,
    head: Head,
    /// What was known of it before it was looked at.
    pub view: View,
}

impl Item<'_> {
    /// Bytes of its value.
    pub fn length(&self) -> usize {
        self.head.value
    }

    /// The client's bits.
    pub fn flags(&self) -> u32 {
        self.head.flags
    }

    /// Copies from its value, which must have that much from there on.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.head.value);
        self.store.slabs.read(self.store.slabs.value_at(self.place, self.head.key) + at, out);
    }

    /// The number of its slab class.
    pub fn class(&self) -> usize {
        self.store.slabs.class_at(self.place).0
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        item_bytes(self.head.key, self.head.value)
    }
}

impl Drop for Item<'_> {
    fn drop(&mut self) {
        let locked = self.store.index.lock(self.hash);
        let found = locked.find_place(self.hash, self.place);
        debug_assert!(found.is_some(), "a pinned entry stays");
        let Some((slot, live)) = found else { return };
        let free = locked.unpin(slot, live);
        drop(locked);
        self.store.free_if(free.then_some(self.place));
    }
}

/// An item that is being made, and that nobody else knows. Dropped, it is gone.
#[derive(Debug)]
pub struct Draft<'s> {
    store: &'s Store,
    hash: u64,
    place: u32,
    head: Head,
}

impl Draft<'_> {
    /// Bytes of its value.
    pub fn length(&self) -> usize {
        self.head.value
    }

    /// Writes to its value, which must have that much from there on.
    pub fn write(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.head.value);
        self.store.slabs.write(self.store.slabs.value_at(self.place, self.head.key) + at, from);
    }

    /// Copies its key out.
    pub fn key<'b>(&self, into: &'b mut [u8; 256]) -> &'b [u8] {
        let key = &mut into[..self.head.key];
        self.store.slabs.read(self.store.slabs.key_at(self.place), key);
        key
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.store.slabs.give(self.place);
    }
}
