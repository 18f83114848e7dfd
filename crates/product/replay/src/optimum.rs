//! The optimum: the page that is touched again last makes room (Bélády, 1966; Mattson et al., 1970, prove that nobody reads less).

use crate::{Step, Trace};
use std::collections::BTreeSet;

/// How many pages are read back with this much memory, at the least.
///
/// # Panics
/// There is no memory.
pub fn reads(trace: &Trace, capacity: usize) -> u64 {
    assert!(capacity > 0);
    let never = u32::MAX;
    let next = next_touches(trace, never);
    // Pages that are there, by when they are touched again; and of each that.
    let mut here = BTreeSet::new();
    let mut due: Vec<Option<u32>> = vec![None; trace.pages as usize];
    let mut reads = 0;
    for step in trace.steps() {
        match step {
            Step::Touch { at, access, first } => {
                let page = access.page as usize;
                if !due[page].take().is_some_and(|when| here.remove(&(when, access.page))) {
                    reads += u64::from(at >= trace.from && !first);
                    if here.len() == capacity
                        && let Some((_, leaves)) = here.pop_last()
                    {
                        due[leaves as usize] = None;
                    }
                }
                // Pages that are never touched again have different places by their numbers.
                here.insert((next[at], access.page));
                due[page] = Some(next[at]);
            }
            Step::Gone(page) => {
                if let Some(when) = due[page as usize].take() {
                    here.remove(&(when, page));
                }
            }
        }
    }
    reads
}

/// Of each access, when its page is touched again with the bytes that it has.
fn next_touches(trace: &Trace, never: u32) -> Vec<u32> {
    let mut next = vec![never; trace.accesses.len()];
    let mut last = vec![never; trace.pages as usize];
    let mut gone = trace.gone.iter().rev().peekable();
    for (at, access) in trace.accesses.iter().enumerate().rev() {
        while let Some(&(_, page)) = gone.next_if(|(before, _)| *before > at) {
            last[page as usize] = never;
        }
        next[at] = std::mem::replace(&mut last[access.page as usize], at as u32);
    }
    next
}
