//! What events tell of resident pages. It is a guess: events can be lost, and a policy that attaches late has missed the first ones.

use std::collections::BTreeMap;
use std::ops::Range;

use farshore_beside::{Event, Kind};

use crate::policy::page;

/// A page was touched, and had to be mapped for that. (A fault on a page that is there and write-protected says that it is used, too.)
pub fn touched(event: &Event) -> Option<u64> {
    match event.kind {
        Kind::Fault | Kind::Rescued => Some(page(event.address)),
        Kind::Fetched if event.detail == 0 => Some(page(event.address)),
        _ => None,
    }
}

/// Pages that an answer about states says are in memory.
pub fn here(event: &Event) -> impl Iterator<Item = u64> {
    let first = page(event.address);
    // Dirty is 2 and clean is 3, by bits of the three words; 6 is on its way.
    let here = event.more[1] & !event.more[2];
    (0..event.pages.min(64)).filter(move |n| here >> n & 1 != 0).map(move |n| first + n)
}

/// Resident pages, in the order in which they were last touched.
#[derive(Debug, Default)]
pub struct Resident {
    when: BTreeMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    next: u64,
}

/// The events that [`Resident::hear`] understands.
pub const OF_RESIDENT: [Kind; 6] = [Kind::Fault, Kind::Fetched, Kind::Rescued, Kind::Evicted, Kind::Unmapped, Kind::Pages];

impl Resident {
    /// Hears of pages that come and go.
    pub fn hear(&mut self, event: &Event) {
        match event.kind {
            Kind::Fault | Kind::Rescued => self.touch(page(event.address)),
            Kind::Fetched => (0..event.pages).for_each(|n| self.touch(page(event.address) + n)),
            Kind::Evicted => (0..event.pages).for_each(|n| self.remove(page(event.address) + n)),
            Kind::Unmapped => {
                let gone: Vec<u64> = self.of(page(event.address)..page(event.address) + event.pages).collect();
                gone.into_iter().for_each(|page| self.remove(page));
            }
            Kind::Pages => here(event).for_each(|page| {
                if !self.when.contains_key(&page) {
                    self.touch(page);
                }
            }),
            _ => {}
        }
    }

    /// The page was touched just now.
    pub fn touch(&mut self, page: u64) {
        self.next += 1;
        if let Some(before) = self.when.insert(page, self.next) {
            self.order.remove(&before);
        }
        self.order.insert(self.next, page);
    }

    /// The page is gone.
    pub fn remove(&mut self, page: u64) {
        if let Some(before) = self.when.remove(&page) {
            self.order.remove(&before);
        }
    }

    /// How many.
    pub fn len(&self) -> u64 {
        self.when.len() as u64
    }

    /// Whether the page is there.
    pub fn has(&self, page: u64) -> bool {
        self.when.contains_key(&page)
    }

    /// Those in a range, by their numbers.
    pub fn of(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.when.range(range).map(|(&page, _)| page)
    }

    /// Those that were not touched for the longest first.
    pub fn oldest(&self) -> impl Iterator<Item = u64> {
        self.order.values().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_beside::PAGE;

    #[test]
    fn resident_pages_follow_the_events() {
        let mut resident = Resident::default();
        let event = |kind, first: u64, pages| Event::new(kind, first * PAGE + 5, pages);
        resident.hear(&event(Kind::Fault, 3, 1));
        resident.hear(&event(Kind::Fetched, 7, 2));
        resident.hear(&event(Kind::Rescued, 3, 1));
        assert_eq!(resident.oldest().collect::<Vec<_>>(), [7, 8, 3]);
        resident.hear(&event(Kind::Evicted, 8, 1));
        // 20 is dirty, 21 out, 22 clean, 23 busy.
        let states: [u64; 4] = [2, 5, 3, 6];
        let plane = |bit: u64| states.iter().enumerate().fold(0, |word, (n, state)| word | (state >> bit & 1) << n);
        resident.hear(&Event { more: [plane(0), plane(1), plane(2)], ..event(Kind::Pages, 20, 4) });
        assert_eq!(resident.oldest().collect::<Vec<_>>(), [7, 3, 20, 22]);
        resident.hear(&event(Kind::Unmapped, 0, 8));
        assert_eq!((resident.len(), resident.has(20), resident.has(3)), (2, true, false));
        assert_eq!((resident.of(0..22).collect::<Vec<_>>(), resident.of(0..u64::MAX).count()), (vec![20], 2));
    }
}
