//! ARC: recent pages and frequent ones share the memory, and ghosts of both say which should have had more.

use crate::lists::Lists;
use crate::{Access, Model, Trace};

const RECENT: usize = 0;
const FREQUENT: usize = 1;
const RECENT_GHOSTS: usize = 2;
const FREQUENT_GHOSTS: usize = 3;

/// As in the paper's Figure 4.
pub struct Arc {
    lists: Lists,
    capacity: usize,
    /// What the recent ones should have.
    target: usize,
}

impl Arc {
    pub fn new(trace: &Trace, capacity: usize) -> Arc {
        Arc { lists: Lists::new(trace.pages, 4), capacity, target: 0 }
    }

    fn replace(&mut self, in_frequent_ghosts: bool) {
        let recent = self.lists.len(RECENT);
        // There is room where bytes were thrown away.
        if recent + self.lists.len(FREQUENT) < self.capacity {
            return;
        }
        let from_recent = recent > 0 && (recent > self.target || (in_frequent_ghosts && recent == self.target));
        let (from, to) =
            if from_recent || self.lists.is_empty(FREQUENT) { (RECENT, RECENT_GHOSTS) } else { (FREQUENT, FREQUENT_GHOSTS) };
        if let Some(page) = self.lists.pop(from) {
            self.lists.put(to, page);
        }
    }
}

impl Model for Arc {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        let (recent, frequent) = (self.lists.len(RECENT_GHOSTS), self.lists.len(FREQUENT_GHOSTS));
        match self.lists.of(page) {
            Some(RECENT | FREQUENT) => {
                self.lists.put(FREQUENT, page);
                return true;
            }
            Some(RECENT_GHOSTS) => {
                self.target = (self.target + (frequent / recent.max(1)).max(1)).min(self.capacity);
                self.replace(false);
                self.lists.put(FREQUENT, page);
            }
            Some(_) => {
                self.target = self.target.saturating_sub((recent / frequent.max(1)).max(1));
                self.replace(true);
                self.lists.put(FREQUENT, page);
            }
            None => {
                let first = self.lists.len(RECENT) + recent;
                let all = first + self.lists.len(FREQUENT) + frequent;
                if first == self.capacity {
                    if self.lists.len(RECENT) < self.capacity {
                        self.lists.pop(RECENT_GHOSTS);
                        self.replace(false);
                    } else {
                        self.lists.pop(RECENT);
                    }
                } else if all >= self.capacity {
                    if all == 2 * self.capacity {
                        self.lists.pop(FREQUENT_GHOSTS);
                    }
                    self.replace(false);
                }
                self.lists.put(RECENT, page);
            }
        }
        false
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
    }
}
