//! A policy that knows what its program's memory is for.

use super::queues::Lru;
use crate::lists::Lists;
use crate::{Access, Model, Trace};

/// Pages that are streamed over pass through a window; all other memory is for the rest, of which the least recently touched leaves. Without such pages it
/// is LRU.
pub enum Graph {
    Plain(Lru),
    Windowed { lists: Lists, streamed: core::ops::Range<u32>, window: usize, capacity: usize },
}

const STAY: usize = 0;
const PASS: usize = 1;
/// The window, at least: pages that are on their way while others are worked on.
const WINDOW: usize = 16;

impl Graph {
    pub fn new(trace: &Trace, capacity: usize) -> Graph {
        if trace.streamed.is_empty() {
            return Graph::Plain(Lru::new(trace, capacity));
        }
        let window = WINDOW.min(capacity.div_ceil(2));
        Graph::Windowed { lists: Lists::new(trace.pages, 2), streamed: trace.streamed.clone(), window, capacity }
    }
}

impl Model for Graph {
    fn touch(&mut self, access: Access) -> bool {
        let Graph::Windowed { lists, streamed, window, capacity } = self else {
            let Graph::Plain(plain) = self else { unreachable!("the one or the other") };
            return plain.touch(access);
        };
        let here = lists.of(access.page).is_some();
        let passes = streamed.contains(&access.page);
        if !here && lists.len(STAY) + lists.len(PASS) == *capacity {
            let from = if lists.len(PASS) >= *window || lists.is_empty(STAY) { PASS } else { STAY };
            lists.pop(from);
        }
        lists.put(if passes { PASS } else { STAY }, access.page);
        here
    }

    fn forget(&mut self, page: u32) {
        match self {
            Graph::Plain(plain) => plain.forget(page),
            Graph::Windowed { lists, .. } => lists.take(page),
        }
    }
}
