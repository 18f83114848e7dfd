//! The optimum: the page that is touched again last makes room (Bélády, 1966; Mattson et al., 1970, prove that nobody reads less).

use crate::Trace;
use std::collections::BTreeSet;

/// How many pages are read back with this much memory, at the least.
pub fn reads(trace: &Trace, capacity: usize) -> u64 {
    assert!(capacity > 0);
    let never = u32::MAX;
    let mut next = vec![never; trace.accesses.len()];
    let mut last = vec![never; trace.pages as usize];
    for (at, access) in trace.accesses.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut last[access.page as usize], at as u32);
    }
    // Pages that are there, by when they are touched again.
    let mut here = BTreeSet::new();
    let mut seen = vec![false; trace.pages as usize];
    let mut reads = 0;
    for (at, access) in trace.accesses.iter().enumerate() {
        let before = std::mem::replace(&mut seen[access.page as usize], true);
        if !here.remove(&(at as u32, access.page)) {
            reads += u64::from(before);
            if here.len() == capacity {
                here.pop_last();
            }
        }
        // Pages that are never touched again have different places by their numbers.
        here.insert((next[at], access.page));
    }
    reads
}
