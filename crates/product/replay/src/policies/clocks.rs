//! Policies that look at access bits.

use crate::lists::Lists;
use crate::{Access, Model, Trace};

/// A hand goes round; a page that was touched since it last came by stays for one more round.
pub struct Clock {
    lists: Lists,
    touched: Vec<bool>,
    capacity: usize,
}

impl Clock {
    pub fn new(trace: &Trace, capacity: usize) -> Clock {
        Clock { lists: Lists::new(trace.pages, 1), touched: vec![false; trace.pages as usize], capacity }
    }
}

impl Model for Clock {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        if self.lists.of(page).is_some() {
            self.touched[page as usize] = true;
            return true;
        }
        while self.lists.len(0) == self.capacity {
            let Some(oldest) = self.lists.pop(0) else { break };
            if std::mem::take(&mut self.touched[oldest as usize]) {
                self.lists.put(0, oldest);
            }
        }
        self.lists.put(0, page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
        self.touched[page as usize] = false;
    }
}

/// SIEVE: a hand goes from the oldest page to the newest, and takes the first that was not touched; pages do not move.
pub struct Sieve {
    lists: Lists,
    touched: Vec<bool>,
    hand: Option<u32>,
    capacity: usize,
}

impl Sieve {
    pub fn new(trace: &Trace, capacity: usize) -> Sieve {
        Sieve { lists: Lists::new(trace.pages, 1), touched: vec![false; trace.pages as usize], hand: None, capacity }
    }
}

impl Model for Sieve {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        if self.lists.of(page).is_some() {
            self.touched[page as usize] = true;
            return true;
        }
        if self.lists.len(0) == self.capacity {
            let mut at = self.hand.or(self.lists.back(0));
            while let Some(looked) = at.filter(|&page| self.touched[page as usize]) {
                self.touched[looked as usize] = false;
                at = self.lists.towards_front(looked).or(self.lists.back(0));
            }
            if let Some(leaves) = at {
                self.hand = self.lists.towards_front(leaves);
                self.lists.take(leaves);
            }
        }
        self.touched[page as usize] = false;
        self.lists.put(0, page);
        false
    }

    fn forget(&mut self, page: u32) {
        if self.hand == Some(page) {
            self.hand = self.lists.towards_front(page);
        }
        self.lists.take(page);
    }
}

/// 2Q-LRU: pages come on an inactive list. One that was touched when the scan meets it becomes active; active pages that were not go back as long as
/// more than half are active.
pub struct Active {
    lists: Lists,
    touched: Vec<bool>,
    capacity: usize,
}

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;

impl Active {
    pub fn new(trace: &Trace, capacity: usize) -> Active {
        Active { lists: Lists::new(trace.pages, 2), touched: vec![false; trace.pages as usize], capacity }
    }

    fn make_room(&mut self) {
        loop {
            while self.lists.len(ACTIVE) > self.lists.len(INACTIVE) {
                let Some(page) = self.lists.pop(ACTIVE) else { break };
                let to = if std::mem::take(&mut self.touched[page as usize]) { ACTIVE } else { INACTIVE };
                self.lists.put(to, page);
            }
            let Some(page) = self.lists.pop(INACTIVE) else { return };
            if !std::mem::take(&mut self.touched[page as usize]) {
                return;
            }
            self.lists.put(ACTIVE, page);
        }
    }
}

impl Model for Active {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        if self.lists.of(page).is_some() {
            self.touched[page as usize] = true;
            return true;
        }
        if self.lists.len(INACTIVE) + self.lists.len(ACTIVE) == self.capacity {
            self.make_room();
        }
        self.touched[page as usize] = false;
        self.lists.put(INACTIVE, page);
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
    }
}

/// Generations: pages come into the second youngest, a walk over all access bits begins a new one whenever fewer than three are left, and the oldest
/// leaves but for pages that were touched.
pub struct Generations {
    lists: Lists,
    touched: Vec<bool>,
    oldest: usize,
    youngest: usize,
    here: usize,
    capacity: usize,
}

/// Lists that generations go round.
const GENERATIONS: usize = 4;

impl Generations {
    pub fn new(trace: &Trace, capacity: usize) -> Generations {
        let lists = Lists::new(trace.pages, GENERATIONS);
        Generations { lists, touched: vec![false; trace.pages as usize], oldest: 0, youngest: 2, here: 0, capacity }
    }

    /// A new youngest generation, of all pages that were touched.
    fn age(&mut self) {
        self.youngest += 1;
        let all: Vec<u32> = (0..self.touched.len() as u32).filter(|&page| self.lists.of(page).is_some()).collect();
        for page in all {
            if std::mem::take(&mut self.touched[page as usize]) {
                self.lists.put(self.youngest % GENERATIONS, page);
            }
        }
    }

    fn make_room(&mut self) {
        loop {
            let oldest = self.oldest % GENERATIONS;
            match self.lists.pop(oldest) {
                Some(page) if std::mem::take(&mut self.touched[page as usize]) => {
                    self.lists.put(self.youngest % GENERATIONS, page);
                }
                Some(_) => return,
                None => {
                    self.oldest += 1;
                    if self.youngest - self.oldest < 2 {
                        self.age();
                    }
                }
            }
        }
    }
}

impl Model for Generations {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        if self.lists.of(page).is_some() {
            self.touched[page as usize] = true;
            return true;
        }
        if self.here == self.capacity {
            self.make_room();
            self.here -= 1;
        }
        self.here += 1;
        self.touched[page as usize] = false;
        self.lists.put((self.youngest - 1) % GENERATIONS, page);
        false
    }

    fn forget(&mut self, page: u32) {
        if self.lists.of(page).is_some() {
            self.lists.take(page);
            self.here -= 1;
        }
    }
}
