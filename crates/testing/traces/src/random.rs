//! The policy that everything is better than, or should be.

use farshore_random::Rng;
use farshore_replay::{Access, Model, Trace};

/// Any page leaves, by a fixed seed.
#[derive(Debug)]
pub struct Random {
    here: Vec<u32>,
    place: Vec<u32>,
    capacity: usize,
    rng: Rng,
}

impl Random {
    /// With so many pages of memory.
    pub fn new(trace: &Trace, capacity: usize) -> Random {
        Random { here: Vec::new(), place: vec![u32::MAX; trace.pages as usize], capacity, rng: Rng::new(7) }
    }

    /// Takes the page at this place out.
    fn take(&mut self, at: usize) {
        self.place[self.here.swap_remove(at) as usize] = u32::MAX;
        if let Some(&moved) = self.here.get(at) {
            self.place[moved as usize] = at as u32;
        }
    }
}

impl Model for Random {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        if self.place[page as usize] != u32::MAX {
            return true;
        }
        if self.here.len() == self.capacity {
            let leaves = self.rng.below(self.here.len() as u64) as usize;
            self.take(leaves);
        }
        self.place[page as usize] = self.here.len() as u32;
        self.here.push(page);
        false
    }

    fn forget(&mut self, page: u32) {
        if self.place[page as usize] != u32::MAX {
            self.take(self.place[page as usize] as usize);
        }
    }
}
