//! In which order the program says that it will use a part of a granule (`MADV_SEQUENTIAL`, `MADV_RANDOM`).
//!
//! One part of each granule is known. It is a hint: of advice about several parts of one granule the last counts, unless the parts touch
//! and agree.

use crate::limits::GRANULE_PAGES;
use crate::page::PageRange;
use crate::sync::{AtomicU32, Ordering};

/// The order of accesses that the program has told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Order {
    /// It has told nothing (`MADV_NORMAL`).
    Unknown = 0,
    /// One page after the other, upwards, and each once.
    Sequential = 1,
    /// None that could be guessed.
    Random = 2,
}

/// The part of one granule with an [`Order`]: the order, its first page and the page behind its last, as one word. 0: there is no such part.
#[derive(Debug)]
pub struct Ordered(AtomicU32);

const PLACE_BITS: u32 = 10;
const _: () = assert!(GRANULE_PAGES < 1 << PLACE_BITS);

fn pack(order: Order, from: u32, to: u32) -> u32 {
    if order == Order::Unknown || from >= to { 0 } else { (order as u32) << (2 * PLACE_BITS) | from << PLACE_BITS | to }
}

fn unpack(word: u32) -> (Order, u32, u32) {
    let place = |shift: u32| word >> shift & ((1 << PLACE_BITS) - 1);
    let order = match word >> (2 * PLACE_BITS) {
        0 => Order::Unknown,
        1 => Order::Sequential,
        _ => Order::Random,
    };
    (order, place(PLACE_BITS), place(0))
}

impl Ordered {
    /// Notes advice about `part`, which lies in this granule.
    pub fn advise(&self, part: PageRange, order: Order) {
        let from = part.start.index_in_granule() as u32;
        let to = from + part.len() as u32;
        // Relaxed: a hint, and nothing goes with it. Of memory that nobody has advised anything about, nothing is written.
        if order == Order::Unknown && self.0.load(Ordering::Relaxed) == 0 {
            return;
        }
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            let (was, start, end) = unpack(now);
            let touches = from <= end && start <= to;
            Some(match order {
                Order::Unknown if !touches => now,
                // What is left of the part, where something is left; of two pieces the longer one.
                Order::Unknown if from.saturating_sub(start) >= end.saturating_sub(to) => pack(was, start, end.min(from)),
                Order::Unknown => pack(was, start.max(to), end),
                _ if was == order && touches => pack(order, from.min(start), to.max(end)),
                _ => pack(order, from, to),
            })
        });
    }

    /// The order of the page with this number in the granule.
    #[inline]
    pub fn of(&self, index: usize) -> Order {
        match self.0.load(Ordering::Relaxed) {
            0 => Order::Unknown,
            word => match unpack(word) {
                (order, from, to) if (from as usize..to as usize).contains(&index) => order,
                _ => Order::Unknown,
            },
        }
    }

    /// The granule is not managed any more.
    pub fn forget(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::page::Page;

    fn part(from: u64, to: u64) -> PageRange {
        PageRange { start: Page(512 + from), end: Page(512 + to) }
    }

    fn known(of: &Ordered, order: Order) -> Option<(usize, usize)> {
        let has = |n: &usize| of.of(*n) == order;
        let from = (0..GRANULE_PAGES).find(has)?;
        let to = (0..GRANULE_PAGES).rfind(has)? + 1;
        assert!((from..to).all(|n| has(&n)), "it has a hole");
        Some((from, to))
    }

    #[test]
    fn advice_covers_its_own_pages() {
        let of = Ordered(AtomicU32::new(0));
        assert_eq!((of.of(0), of.of(511)), (Order::Unknown, Order::Unknown));
        of.advise(part(0, 512), Order::Sequential);
        assert_eq!(known(&of, Order::Sequential), Some((0, 512)));
        of.advise(part(500, 512), Order::Unknown);
        assert_eq!(known(&of, Order::Sequential), Some((0, 500)));
        of.advise(part(0, 10), Order::Unknown);
        assert_eq!(known(&of, Order::Sequential), Some((10, 500)));
        of.advise(part(20, 30), Order::Unknown);
        assert_eq!(known(&of, Order::Sequential), Some((30, 500)), "the longer piece stays");
        of.advise(part(500, 512), Order::Sequential);
        assert_eq!(known(&of, Order::Sequential), Some((30, 512)));
        of.advise(part(3, 4), Order::Unknown);
        assert_eq!(known(&of, Order::Sequential), Some((30, 512)));
        of.advise(part(3, 4), Order::Random);
        assert_eq!((known(&of, Order::Random), known(&of, Order::Sequential)), (Some((3, 4)), None));
        of.advise(part(0, 512), Order::Unknown);
        assert_eq!((known(&of, Order::Random), known(&of, Order::Sequential)), (None, None));
    }
}
