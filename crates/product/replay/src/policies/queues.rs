//! Policies of queues.

use crate::lists::Lists;
use crate::{Access, Model, Trace};

/// The page that was touched least recently leaves.
pub struct Lru {
    lists: Lists,
    capacity: usize,
}

impl Lru {
    pub fn new(trace: &Trace, capacity: usize) -> Lru {
        Lru { lists: Lists::new(trace.pages, 1), capacity }
    }
}

impl Model for Lru {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        let here = self.lists.of(page).is_some();
        if !here && self.lists.len(0) == self.capacity {
            self.lists.pop(0);
        }
        self.lists.put(0, page);
        here
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
    }
}

/// The page that came first leaves.
pub struct Fifo {
    lists: Lists,
    capacity: usize,
}

impl Fifo {
    pub fn new(trace: &Trace, capacity: usize) -> Fifo {
        Fifo { lists: Lists::new(trace.pages, 1), capacity }
    }
}

impl Model for Fifo {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        if self.lists.of(page).is_some() {
            return true;
        }
        if self.lists.len(0) == self.capacity {
            self.lists.pop(0);
        }
        self.lists.put(0, page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
    }
}

/// S3-FIFO: a small queue in front of the main one, from which most pages that are touched once leave soon, and a queue of ghosts.
pub struct S3Fifo {
    lists: Lists,
    used: Vec<u8>,
    capacity: usize,
    small: usize,
}

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;

impl S3Fifo {
    pub fn new(trace: &Trace, capacity: usize) -> S3Fifo {
        let small = (capacity / 10).max(1);
        S3Fifo { lists: Lists::new(trace.pages, 3), used: vec![0; trace.pages as usize], capacity, small }
    }

    fn make_room(&mut self) {
        loop {
            if self.lists.len(SMALL) >= self.small || self.lists.is_empty(MAIN) {
                let Some(page) = self.lists.pop(SMALL) else { return };
                if self.used[page as usize] > 1 {
                    self.used[page as usize] = 0;
                    self.lists.put(MAIN, page);
                    continue;
                }
                self.lists.put(GHOSTS, page);
                if self.lists.len(GHOSTS) > self.capacity - self.small {
                    self.lists.pop(GHOSTS);
                }
                return;
            }
            let Some(page) = self.lists.pop(MAIN) else { return };
            if self.used[page as usize] == 0 {
                return;
            }
            self.used[page as usize] -= 1;
            self.lists.put(MAIN, page);
        }
    }
}

impl Model for S3Fifo {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        let was = self.lists.of(page);
        if matches!(was, Some(SMALL | MAIN)) {
            self.used[page as usize] = (self.used[page as usize] + 1).min(3);
            return true;
        }
        if self.lists.len(SMALL) + self.lists.len(MAIN) == self.capacity {
            self.make_room();
        }
        self.used[page as usize] = 0;
        self.lists.put(if was == Some(GHOSTS) { MAIN } else { SMALL }, page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
    }
}
