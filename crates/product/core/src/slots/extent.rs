//! One extent: 512 slots. Its owner takes them; any thread frees them.
//!
//! # Which thread writes which line
//!
//! A slot is in use when its bit in `taken` differs from its bit in `freed`. The owner flips the first when it takes the slot,
//! and the thread that forfeits the slot flips the second. So a fault on any core writes no line that the owner writes when it
//! reserves. `live` = `reserved` − `freed` of the two counts, each on the line of its bits.
//!
//! # In which order a thread looks
//!
//! *taken, then freed*, to decide that a slot is free: while the slot is in use its owner leaves `taken` alone, so it was free at
//! some moment between the two looks. (In the other order, the slot may have been freed and taken again between the looks, and
//! look free.) *freed, then taken* for counts that must not be too low.
//!
//! # Away
//!
//! An extent that its owner does not need for now is *away*, with the number of slots in use at which it comes back. A thread
//! that frees a slot looks at that number after it has counted the slot. The owner sends the extent away first, and looks at the
//! count then. The thread that finds the count low enough, and is the first to change `away`, puts the extent back. So the extent
//! is in one place, and never forgotten.

use super::giving::Room;
use crate::canary::{Canary, is_planted};
use crate::delegation::Node;
use crate::limits::EXTENT_SLOTS;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded, both_sides};

pub(super) const WORDS: usize = EXTENT_SLOTS / 64;

/// `away` of an extent that its owner fills or has on its list, or that is on its way there.
const AT_HAND: u32 = 0;
/// `away` of an extent that comes back when its owner looks for it, and not before.
const SHELVED: u32 = u32::MAX;

/// Written by the owner, or by the thread that has the owner's token.
struct Taken {
    bits: [AtomicU64; WORDS],
    count: AtomicU32,
    room: Room,
}

/// Written by other threads.
struct Freed {
    bits: [AtomicU64; WORDS],
    count: AtomicU32,
    away: AtomicU32,
    /// Link of the owner's list, or of its queue.
    link: AtomicU32,
}

pub(super) struct Extent {
    taken: Padded<Taken>,
    freed: Padded<Freed>,
    /// Written before the extent can be seen, and never again.
    owner: u32,
    /// Which extent it is, and 2; 1: none yet. Memory that was never an extent has 0 here. As `owner`.
    number: u32,
    /// The last time, in its space's count, that the disk was full and had no room for a slot of it; 0: never.
    pub(super) barred: crate::sync::plain::AtomicU32,
    /// Bit set: a forked child may read the slot. Changed under the lock of `shares`.
    pub(super) held: [AtomicU64; WORDS],
    /// Checksum of the page in each slot.
    pub(super) sums: [AtomicU64; EXTENT_SLOTS],
}

/// A slot's bit in its word.
fn bit(i: usize) -> u64 {
    1 << (i % 64)
}

impl Extent {
    pub(super) fn new() -> Extent {
        let words = || core::array::from_fn(|_| AtomicU64::new(0));
        let number = || AtomicU32::new(0);
        Extent {
            taken: Padded(Taken { bits: words(), count: number(), room: Room::new() }),
            freed: Padded(Freed { bits: words(), count: number(), away: AtomicU32::new(SHELVED), link: number() }),
            owner: 0,
            number: 1,
            barred: crate::sync::plain::AtomicU32::new(0),
            held: words(),
            sums: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// To be called before any other thread sees the extent.
    pub(super) fn set_owner(&mut self, owner: usize) {
        self.owner = owner as u32;
    }

    /// As [`Extent::set_owner`].
    pub(super) fn set_number(&mut self, number: u32) {
        self.number = number + 2;
    }

    /// Which extent it is. `Err`: none, and whether it was made.
    pub(super) fn number(&self) -> Result<u32, bool> {
        self.number.checked_sub(2).ok_or(self.number == 1)
    }

    pub(super) fn owner(&self) -> usize {
        self.owner as usize
    }

    /// Whether the extent takes room on the disk.
    pub(super) fn room(&self) -> &Room {
        &self.taken.room
    }

    pub(super) fn link(&self) -> &AtomicU32 {
        &self.freed.link
    }

    /// Slots in use; never too few (module head).
    pub(super) fn live(&self) -> u32 {
        let freed = self.freed.count.load(Ordering::SeqCst);
        self.taken.count.load(Ordering::SeqCst).wrapping_sub(freed)
    }

    /// Bit set: no page has the slot, or none had it for a moment. Acquire: the thread that takes the slot comes after
    /// the thread that freed it.
    pub(super) fn free_word(&self, word: usize) -> u64 {
        let taken = self.taken.bits[word].load(Ordering::Acquire);
        !(taken ^ self.freed.bits[word].load(Ordering::Acquire))
    }

    pub(super) fn in_use(&self) -> [u64; WORDS] {
        core::array::from_fn(|word| !self.free_word(word))
    }

    /// The slots that cannot be given out: in use here, or held for a child.
    pub(super) fn unavailable(&self) -> u32 {
        let word = |i: usize| !self.free_word(i) | self.held[i].load(Ordering::Relaxed);
        (0..WORDS).map(|i| word(i).count_ones()).sum()
    }

    /// Takes the first run of free slots at or after `from`. By the owner.
    pub(super) fn take_run(&self, from: usize, want: u32) -> Option<(usize, u32)> {
        let is_free = |i: usize| {
            let held = if is_planted(Canary::Share) { 0 } else { self.held[i / 64].load(Ordering::Relaxed) };
            self.free_word(i / 64) & !held & bit(i) != 0
        };
        let at = (from..EXTENT_SLOTS).find(|&i| is_free(i))?;
        // Only the owner takes, so what it saw free stays free.
        let len = (at..EXTENT_SLOTS).take(want as usize).take_while(|&i| is_free(i)).count();
        self.turn_taken(at, len as u32);
        Some((at, len as u32))
    }

    /// Takes `len` slots from `at` on, which are free. By the owner.
    pub(super) fn turn_taken(&self, at: usize, len: u32) {
        for word in at / 64..(at + len as usize).div_ceil(64) {
            self.taken.bits[word].fetch_xor(part(word, at, len), Ordering::AcqRel);
        }
        self.taken.count.fetch_add(len, Ordering::SeqCst);
    }

    /// Frees `len` slots from `at` on, which are in use. Whether the extent is to come back to its owner now: the caller puts it
    /// back.
    #[must_use]
    pub(super) fn turn_freed(&self, at: usize, len: u32) -> bool {
        for word in at / 64..(at + len as usize).div_ceil(64) {
            let bits = part(word, at, len);
            // Looked at first: from the change below on, the owner may take the slots again.
            let taken = if cfg!(debug_assertions) { self.taken.bits[word].load(Ordering::Acquire) } else { 0 };
            let before = self.freed.bits[word].fetch_xor(bits, Ordering::AcqRel);
            debug_assert!((taken ^ before) & bits == bits, "one of {len} slots from {at} on in an extent was freed twice");
        }
        let freed = self.freed.count.fetch_add(len, Ordering::SeqCst).wrapping_add(len);
        both_sides();
        let away = self.freed.away.load(Ordering::SeqCst);
        if away == AT_HAND || away == SHELVED {
            return false;
        }
        let live = self.taken.count.load(Ordering::SeqCst).wrapping_sub(freed);
        live < away && self.bring(away)
    }

    /// From now on the extent comes back when `most` or fewer slots are in use. Whether it does so at once, and so is at hand
    /// again. For the owner, while the extent is at hand.
    #[must_use]
    pub(super) fn send_away(&self, most: u32) -> bool {
        self.freed.away.swap(most + 1, Ordering::SeqCst);
        both_sides();
        self.live() <= most && self.bring(most + 1)
    }

    /// The extent comes back when its owner looks for it. For the owner, while the extent is at hand.
    pub(super) fn shelve(&self) {
        self.freed.away.store(SHELVED, Ordering::SeqCst);
    }

    /// The owner looks for the extent. `Some`: it is at hand now, and was not before; the value says whether it had been
    /// shelved.
    pub(super) fn fetch(&self) -> Option<bool> {
        let away = self.freed.away.load(Ordering::SeqCst);
        (away != AT_HAND && self.bring(away)).then_some(away == SHELVED)
    }

    fn bring(&self, from: u32) -> bool {
        self.freed.away.compare_exchange(from, AT_HAND, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Becomes a copy of `other`. No thread uses either meanwhile.
    pub(super) fn copy_from(&self, other: &Extent) {
        let sides = [(&other.taken.bits, &self.taken.bits), (&other.freed.bits, &self.freed.bits), (&other.held, &self.held)];
        let words = sides.into_iter().flat_map(|(from, to)| from.iter().zip(to)).chain(other.sums.iter().zip(&self.sums));
        words.for_each(|(from, to)| to.store(from.load(Ordering::Acquire), Ordering::Release));
        for (from, to) in [(&other.taken.count, &self.taken.count), (&other.freed.count, &self.freed.count)] {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }

    /// # Panics
    /// When counts and bits disagree.
    pub(super) fn assert_valid(&self, index: u32) {
        let in_use: u32 = self.in_use().iter().map(|word| word.count_ones()).sum();
        assert_eq!(in_use, self.live(), "extent {index}");
    }
}

/// The bits of `word` for the `len` slots from `at` on.
fn part(word: usize, at: usize, len: u32) -> u64 {
    let first = word * 64;
    let from = at.max(first) - first;
    let to = (at + len as usize).min(first + 64) - first;
    (u64::MAX >> (64 - (to - from))) << from
}

/// The number of an extent in a queue; extents are numbered behind tasks.
pub(super) fn node_of(extent: u32, last_task: Node) -> Node {
    last_task + 1 + extent
}

/// The extent of a node; `None`: the node is a task.
pub(super) fn extent_of(node: Node, last_task: Node) -> Option<u32> {
    (node > last_task).then(|| node - last_task - 1)
}
