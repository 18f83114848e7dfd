//! The index: a hash table that grows bucket by bucket (linear hashing), and whose bucket is a page.
//!
//! ```text
//!  hash ─▶ bucket (4 KiB): lock, version │ 123 tags of a byte │ 123 entries of 32 bytes ─▶ place of the item
//!                └ link ─▶ overflow bucket, for the few that are full
//! ```
//!
//! All that changes about an item after it was stored is in its entry: when it expires, when it was used, its unique number, its flags, and how many
//! hold it (pins). The item itself is written once. So looking an item up touches one page of the index; a caller that wants no more than that is done.
//!
//! # Locking
//!
//! Each bucket has a lock, in the same page, and the page may be far away. So [`Index::lock`] first looks at the page without anything held: there
//! the unithread is switched away from until the page has come. Then it [`hold`]s, and takes the lock by one try. What is done under it is a moment's
//! work in that page. The holder is not switched away from, so on its own worker nobody ever finds the lock taken, and other workers give way and try
//! again. If the page is evicted within that moment the holder waits in place: rare, slow, and right, since whoever brings the page needs no lock of
//! ours. Nobody takes a second lock while it has one, other than a [`super::held::Held`], under which nothing is waited for.
//!
//! # Growth
//!
//! There are `n` buckets, 2ᵏ ≤ n < 2ᵏ⁺¹. A hash belongs to bucket `hash mod 2ᵏ⁺¹` if there is one, else to `hash mod 2ᵏ`. Growth adds bucket `n` and moves
//! to it what belongs there from bucket `n - 2ᵏ`, under that one's lock; `n` is raised before the lock is given back. Nobody finds bucket `n` earlier, and
//! who waited for the lock with the old `n` looks again after it has it ([`Index::lock`]).

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use bytemuck::Zeroable;
use farshore_uthread::{Hold, hold, yield_now};

use super::held::Held;
use crate::memory::Region;

/// Entries of a bucket.
const SLOTS: usize = 123;
/// Items for each bucket, on average, at which the table grows.
const FILL: usize = 80;
/// Buckets at the beginning.
const BUCKETS_MIN: usize = 16;
/// The tag of an entry that is not found any more, but is pinned.
const DEAD: u8 = 1;

/// An item, as the index knows it. Changed under its bucket's lock alone.
#[repr(C)]
#[derive(Debug, Zeroable)]
pub struct Entry {
    /// Of the key.
    hash: AtomicU64,
    /// The unique number.
    cas: AtomicU64,
    /// Of the item.
    place: AtomicU32,
    /// The second from which on it is not there any more; 0: never.
    expires: AtomicU32,
    /// The second in which it was last looked at.
    used: AtomicU32,
    /// Pins in the low half, flags in the high one.
    state: AtomicU32,
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The unique number.
    pub cas: u64,
    /// The second from which on it is not there any more; 0: never.
    pub expires: u32,
    /// The second in which it was last looked at.
    pub used: u32,
    /// See [`super::flag`].
    pub flags: u16,
}

impl Entry {
    /// What it says.
    pub fn view(&self) -> View {
        View {
            cas: self.cas.load(Relaxed),
            expires: self.expires.load(Relaxed),
            used: self.used.load(Relaxed),
            flags: (self.state.load(Relaxed) >> 16) as u16,
        }
    }

    /// Lets it say this.
    pub fn set_view(&self, view: View) {
        self.cas.store(view.cas, Relaxed);
        self.expires.store(view.expires, Relaxed);
        self.used.store(view.used, Relaxed);
        self.state.store(u32::from(view.flags) << 16 | u32::from(self.pins()), Relaxed);
    }

    /// The item's place.
    pub fn place(&self) -> u32 {
        self.place.load(Relaxed)
    }

    fn pins(&self) -> u16 {
        self.state.load(Relaxed) as u16
    }

    /// Nobody holds it.
    pub fn is_free(&self) -> bool {
        self.pins() == 0
    }

    /// One more holds it; false: that cannot be counted.
    pub fn pin(&self) -> bool {
        let room = self.pins() < u16::MAX;
        if room {
            self.state.store(self.state.load(Relaxed) + 1, Relaxed);
        }
        room
    }
}

#[repr(C, align(4096))]
#[derive(Debug, Zeroable)]
struct Bucket {
    lock: AtomicU32,
    /// Raised with each entry that comes or goes, or gets another number.
    version: AtomicU32,
    /// 1 + the number of the overflow bucket, or 0.
    link: AtomicU32,
    spare: AtomicU32,
    more: [AtomicU64; 2],
    tags: [AtomicU64; 16],
    entries: [Entry; SLOTS],
}

const _: () = assert!(size_of::<Bucket>() == 4096 && size_of::<Entry>() == 32);

impl Bucket {
    fn tag(&self, slot: usize) -> u8 {
        (self.tags[slot / 8].load(Relaxed) >> (slot % 8 * 8)) as u8
    }

    fn set_tag(&self, slot: usize, tag: u8) {
        let word = &self.tags[slot / 8];
        let shift = slot % 8 * 8;
        word.store(word.load(Relaxed) & !(0xff << shift) | u64::from(tag) << shift, Relaxed);
    }

    /// Slots with this tag.
    fn slots(&self, tag: u8) -> impl Iterator<Item = usize> + '_ {
        const LOW: u64 = 0x0101_0101_0101_0101;
        self.tags.iter().enumerate().flat_map(move |(number, word)| {
            // Bytes that are equal become 0, and the high bit of a 0 is found; bytes above a 0 may be found wrongly, and are looked at.
            let differ = word.load(Relaxed) ^ (LOW * u64::from(tag));
            let mut found = differ.wrapping_sub(LOW) & !differ & (LOW << 7);
            std::iter::from_fn(move || {
                let slot = (found != 0).then(|| number * 8 + found.trailing_zeros() as usize / 8)?;
                found &= found - 1;
                Some(slot)
            })
            .filter(move |slot| *slot < SLOTS && self.tag(*slot) == tag)
        })
    }

    fn copy_from(&self, slot: usize, tag: u8, entry: &Entry) {
        let place = &self.entries[slot];
        place.hash.store(entry.hash.load(Relaxed), Relaxed);
        place.place.store(entry.place(), Relaxed);
        place.state.store(entry.state.load(Relaxed), Relaxed);
        place.set_view(entry.view());
        self.set_tag(slot, tag);
    }
}

fn tag_of(hash: u64) -> u8 {
    // Bits that buckets are not told apart by until there are 2²⁵ of them.
    (hash >> 25) as u8 | 0x80
}

/// Which state of which bucket was seen: as long as it is the same, what was found there is still so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    bucket: usize,
    version: u32,
}

/// See the module's head.
#[derive(Debug)]
pub struct Index {
    buckets: Region<Bucket>,
    overflow: Region<Bucket>,
    /// Overflow buckets that are free, and the first that was never used.
    spare: Held<(Vec<u32>, u32)>,
    count: AtomicUsize,
    items: AtomicUsize,
    growing: AtomicU32,
}

impl Index {
    /// For at most so many items.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn new(items_max: usize) -> io::Result<Index> {
        let buckets = (items_max / FILL + 1).next_power_of_two().max(BUCKETS_MIN);
        Ok(Index {
            buckets: Region::new(buckets)?,
            overflow: Region::new(buckets)?,
            spare: Held::default(),
            count: AtomicUsize::new(BUCKETS_MIN),
            items: AtomicUsize::new(0),
            growing: AtomicU32::new(0),
        })
    }

    /// Items that can be found.
    pub fn items(&self) -> usize {
        self.items.load(Relaxed)
    }

    /// Buckets that there are.
    pub fn buckets(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn bucket_of(&self, hash: u64) -> usize {
        let count = self.count.load(Acquire);
        let low = 1usize << count.ilog2();
        let hash = hash as usize;
        if hash & (low * 2 - 1) < count { hash & (low * 2 - 1) } else { hash & (low - 1) }
    }

    /// Locks the bucket of a hash.
    #[inline]
    pub fn lock(&self, hash: u64) -> Locked<'_> {
        loop {
            let number = self.bucket_of(hash);
            if let Some(locked) = self.try_lock(number)
                && self.bucket_of(hash) == number
            {
                return locked;
            }
            // Not held any more: the other worker's unithread is done in a moment.
            yield_now();
        }
    }

    fn try_lock(&self, number: usize) -> Option<Locked<'_>> {
        let first = &self.buckets[number];
        // Brings the page, and that of an overflow bucket, before anything is held.
        let mut link = first.link.load(Relaxed);
        while let Some(next) = link.checked_sub(1).and_then(|next| self.overflow.get(next as usize)) {
            link = next.link.load(Relaxed);
        }
        let held = hold();
        let mine = first.lock.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        mine.then(|| Locked { index: self, first, number, _held: held })
    }

    /// Grows by a bucket if there are many items for those that there are. Nothing may be locked.
    pub fn grow(&self) {
        let count = self.count.load(Relaxed);
        if self.items() <= count * FILL || count == self.buckets.len() || self.growing.swap(1, Acquire) != 0 {
            return;
        }
        let count = self.count.load(Relaxed);
        if count < self.buckets.len() {
            // Brings the new page.
            self.buckets[count].lock.store(0, Relaxed);
            let from = count - (1 << count.ilog2());
            let locked = loop {
                match self.try_lock(from) {
                    Some(locked) => break locked,
                    None => yield_now(),
                }
            };
            locked.split(count);
            self.count.store(count + 1, Release);
        }
        self.growing.store(0, Release);
    }

    fn take_overflow(&self) -> Option<u32> {
        self.spare.with(|(free, fresh)| {
            free.pop().or_else(|| {
                let number = *fresh;
                (self.overflow.len() > number as usize).then(|| {
                    *fresh += 1;
                    number
                })
            })
        })
    }
}

/// A place in a locked bucket.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    bucket: &'a Bucket,
    at: usize,
}

impl<'a> Slot<'a> {
    /// What is there.
    pub fn entry(self) -> &'a Entry {
        &self.bucket.entries[self.at]
    }
}

/// A locked bucket.
#[derive(Debug)]
pub struct Locked<'a> {
    index: &'a Index,
    first: &'a Bucket,
    number: usize,
    _held: Hold,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.first.lock.store(0, Release);
    }
}

impl<'a> Locked<'a> {
    /// What it is like now.
    pub fn seen(&self) -> Seen {
        Seen { bucket: self.number, version: self.first.version.load(Relaxed) }
    }

    /// Something was changed.
    pub fn change(&self) {
        self.first.version.store(self.first.version.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn chain(&self) -> impl Iterator<Item = &'a Bucket> + use<'a> {
        let index = self.index;
        std::iter::successors(Some(self.first), move |bucket| {
            let link = bucket.link.load(Relaxed).checked_sub(1)?;
            Some(&index.overflow[link as usize])
        })
    }

    /// The first entry that can be found, has this hash, and is `wanted`.
    pub fn find(&self, hash: u64, mut wanted: impl FnMut(&Entry) -> bool) -> Option<Slot<'a>> {
        let tag = tag_of(hash);
        let mut slots = self.chain().flat_map(|bucket| bucket.slots(tag).map(move |at| Slot { bucket, at }));
        slots.find(|slot| slot.entry().hash.load(Relaxed) == hash && wanted(slot.entry()))
    }

    /// The entry of an item that is at this place; whether it can still be found.
    pub fn find_place(&self, hash: u64, place: u32) -> Option<(Slot<'a>, bool)> {
        [(tag_of(hash), true), (DEAD, false)].into_iter().find_map(|(tag, live)| {
            let mut slots = self.chain().flat_map(|bucket| bucket.slots(tag).map(move |at| Slot { bucket, at }));
            slots.find(|slot| slot.entry().place() == place).map(|slot| (slot, live))
        })
    }

    /// An item comes. False: there is no room.
    pub fn insert(&self, hash: u64, place: u32, view: View) -> bool {
        let free = self.chain().find_map(|bucket| bucket.slots(0).next().map(|at| Slot { bucket, at }));
        let Some(slot) = free.or_else(|| self.extend()) else { return false };
        let entry = slot.entry();
        entry.hash.store(hash, Relaxed);
        entry.place.store(place, Relaxed);
        entry.state.store(0, Relaxed);
        entry.set_view(view);
        slot.bucket.set_tag(slot.at, tag_of(hash));
        self.index.items.fetch_add(1, Relaxed);
        self.change();
        true
    }

    fn extend(&self) -> Option<Slot<'a>> {
        let number = self.index.take_overflow()?;
        let bucket = &self.index.overflow[number as usize];
        self.chain().last()?.link.store(number + 1, Relaxed);
        Some(Slot { bucket, at: 0 })
    }

    /// An item goes: it is not found any more. True: nobody holds it, and its chunk is the caller's. Else it belongs to the thread that unpins it last.
    #[must_use]
    pub fn remove(&self, slot: Slot<'_>) -> bool {
        let free = slot.entry().pins() == 0;
        slot.bucket.set_tag(slot.at, if free { 0 } else { DEAD });
        self.index.items.fetch_sub(1, Relaxed);
        self.change();
        free
    }

    /// One less holds it. True: it was the last, and the item was removed before: its chunk is the caller's.
    #[must_use]
    pub fn unpin(&self, slot: Slot<'_>, live: bool) -> bool {
        let entry = slot.entry();
        debug_assert!(entry.pins() > 0);
        entry.state.store(entry.state.load(Relaxed) - 1, Relaxed);
        let free = !live && entry.pins() == 0;
        if free {
            slot.bucket.set_tag(slot.at, 0);
        }
        free
    }

    /// Moves what belongs to bucket `new`, which is empty and known to nobody, and packs the rest.
    fn split(&self, new: usize) {
        let mask = (1usize << (usize::BITS - new.leading_zeros())) - 1;
        let target = &self.index.buckets[new];
        let (mut to, mut at) = (target, 0);
        for bucket in self.chain() {
            for slot in 0..SLOTS {
                let tag = bucket.tag(slot);
                let entry = &bucket.entries[slot];
                if tag == 0 || entry.hash.load(Relaxed) as usize & mask != new {
                    continue;
                }
                if at == SLOTS {
                    // More than a bucket full, all of which belong to the new one.
                    let Some(number) = self.index.take_overflow() else { continue };
                    to.link.store(number + 1, Relaxed);
                    (to, at) = (&self.index.overflow[number as usize], 0);
                }
                to.copy_from(at, tag, entry);
                at += 1;
                bucket.set_tag(slot, 0);
            }
        }
        self.pack();
        self.change();
        target.version.store(self.first.version.load(Relaxed), Relaxed);
    }

    /// Moves entries from overflow buckets to where there is room, and gives empty ones back.
    fn pack(&self) {
        while let Some(link) = self.first.link.load(Relaxed).checked_sub(1) {
            let bucket = &self.index.overflow[link as usize];
            for slot in 0..SLOTS {
                let tag = bucket.tag(slot);
                if tag == 0 {
                    continue;
                }
                let Some(free) = self.first.slots(0).next() else { return };
                self.first.copy_from(free, tag, &bucket.entries[slot]);
                bucket.set_tag(slot, 0);
            }
            self.first.link.store(bucket.link.swap(0, Relaxed), Relaxed);
            self.index.spare.with(|(free, _)| free.push(link));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_finds_all() {
        let index = Index::new(100_000).unwrap();
        let hash = |n: u32| u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        for n in 0..60_000 {
            let view = View { cas: n.into(), ..View::default() };
            assert!(index.lock(hash(n)).insert(hash(n), n, view));
            index.grow();
        }
        assert!(index.buckets() > 700 && index.items() == 60_000);
        for n in 0..60_000 {
            let locked = index.lock(hash(n));
            let slot = locked.find(hash(n), |_| true).unwrap();
            assert_eq!((slot.entry().place(), slot.entry().view().cas), (n, n.into()));
            assert!(locked.find_place(hash(n), n).unwrap().1);
            assert!(locked.find(hash(n + 60_000), |_| true).is_none());
            if n % 2 == 0 {
                assert!(locked.remove(slot));
                assert!(locked.find(hash(n), |_| true).is_none());
            }
        }
        assert_eq!(index.items(), 30_000);
    }

    #[test]
    fn full_buckets_overflow_and_are_packed() {
        let index = Index::new(100_000).unwrap();
        // All in bucket 5 of 16; half of them belong to 21 later.
        let hash = |n: u32| u64::from(n) << 4 | 5;
        for n in 0..300 {
            assert!(index.lock(5).insert(hash(n), n, View::default()));
        }
        for _ in 0..5_000 {
            index.items.fetch_add(1, Relaxed);
            index.grow();
        }
        assert!(index.buckets() > 32);
        for n in 0..300 {
            assert!(index.lock(hash(n)).find(hash(n), |entry| entry.place() == n).is_some());
        }
    }

    #[test]
    fn a_pinned_entry_stays_until_it_is_unpinned() {
        let index = Index::new(1000).unwrap();
        assert!(index.lock(7).insert(7, 70, View::default()));
        let locked = index.lock(7);
        let slot = locked.find(7, |_| true).unwrap();
        assert!(slot.entry().pin() && slot.entry().pin());
        let seen = locked.seen();
        assert!(!locked.remove(slot));
        assert_ne!(locked.seen(), seen);
        assert!(locked.find(7, |_| true).is_none());
        let (slot, live) = locked.find_place(7, 70).unwrap();
        assert!(!live && !locked.unpin(slot, live) && locked.unpin(slot, live));
        assert!(locked.find_place(7, 70).is_none());
    }
}
