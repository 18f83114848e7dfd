//! Which virtual page has a physical one: what was seen in page tables, kept in a table of a fixed size.
//!
//! An entry is what was true once. Whoever uses it looks into the page tables whether it still is. So nothing has to be taken out when the guest changes its tables: what is wrong is found out, and replaced by what
//! is seen next.

use std::collections::BTreeMap;

use crate::PAGE;
use crate::paging::Leaf;

/// Slots at most: 16 MiB, for 4 GiB of a guest. Beyond that pages take each other's places.
const SLOTS_MAX: u64 = 1 << 20;
/// Large pages at most.
const LARGE_MAX: usize = 1 << 14;
/// Bits of a slot's first word that have the number of the physical page, and 1.
const FRAME_BITS: u32 = 41;

/// An address space, by a number below 256.
pub type Id = u8;

/// See the head of the module.
#[derive(Debug)]
pub struct Reverse {
    /// The physical page and 1, the address space above it; the virtual page.
    slots: Box<[[u64; 2]]>,
    /// By the first physical byte: address space, first virtual byte, size.
    large: BTreeMap<u64, (Id, u64, u64)>,
}

impl Reverse {
    /// For a guest with this many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Reverse {
        let slots = (bytes / PAGE).clamp(1, SLOTS_MAX).next_power_of_two();
        Reverse { slots: vec![[0; 2]; slots as usize].into(), large: BTreeMap::new() }
    }

    fn slot(&mut self, physical: u64) -> &mut [u64; 2] {
        // Physical pages are numbered without gaps but for one, so that the pages of a guest that fits rarely meet.
        let place = (physical / PAGE) as usize & (self.slots.len() - 1);
        &mut self.slots[place]
    }

    /// A page table has this page of this address space at a virtual address.
    pub fn seen(&mut self, space: Id, address: u64, leaf: &Leaf) {
        if leaf.bytes == PAGE {
            let frame = (leaf.first / PAGE + 1) | u64::from(space) << FRAME_BITS;
            *self.slot(leaf.first) = [frame, address / PAGE];
            return;
        }
        if self.large.len() >= LARGE_MAX && !self.large.contains_key(&leaf.first) {
            self.large.clear();
        }
        self.large.insert(leaf.first, (space, address, leaf.bytes));
    }

    /// Where a physical page was seen: address space and virtual address.
    #[must_use]
    pub fn find(&mut self, physical: u64) -> Option<(Id, u64)> {
        let [frame, page] = *self.slot(physical);
        if frame & ((1 << FRAME_BITS) - 1) == physical / PAGE + 1 {
            return Some(((frame >> FRAME_BITS) as Id, page * PAGE));
        }
        let (first, &(space, address, bytes)) = self.large.range(..=physical).next_back()?;
        let within = physical - first;
        (within < bytes).then(|| (space, address + within / PAGE * PAGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(first: u64, bytes: u64) -> Leaf {
        Leaf { first, bytes, writable: true, user: true, executable: false }
    }

    #[test]
    fn the_last_that_was_seen_of_a_page_counts() {
        let mut reverse = Reverse::new(64 << 20);
        assert_eq!((reverse.find(0), reverse.find(0x5000), reverse.find(u64::MAX)), (None, None, None));
        reverse.seen(3, 0x7000_0000_1000, &leaf(0x5000, PAGE));
        reverse.seen(255, 0xff_ffff_ffff_f000, &leaf(0, PAGE));
        assert_eq!(reverse.find(0x5008), Some((3, 0x7000_0000_1000)));
        assert_eq!(reverse.find(0), Some((255, 0xff_ffff_ffff_f000)));
        reverse.seen(4, 0x9000, &leaf(0x5000, PAGE));
        assert_eq!(reverse.find(0x5000), Some((4, 0x9000)));
        assert_eq!(reverse.find(0x5000 + (64 << 20)), None, "another page of the same slot");
    }

    #[test]
    fn large_pages_have_all_their_parts() {
        let mut reverse = Reverse::new(1 << 40);
        assert_eq!(reverse.slots.len() as u64, SLOTS_MAX);
        reverse.seen(1, 0x4000_0000, &leaf(6 << 20, 2 << 20));
        assert_eq!(reverse.find((6 << 20) + 0x5123), Some((1, 0x4000_5000)));
        assert_eq!((reverse.find((6 << 20) - 1), reverse.find(8 << 20)), (None, None));
        for n in 0..3 * LARGE_MAX as u64 {
            reverse.seen(1, 0, &leaf(n << 21, 2 << 20));
        }
        assert!(reverse.large.len() <= LARGE_MAX);
    }
}
