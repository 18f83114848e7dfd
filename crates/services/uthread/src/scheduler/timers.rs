//! A worker's timers: a binary heap in memory that is there from the start.
//!
//! A unithread sleeps at most once at a time, so a place for each unithread of the pool is enough and nothing is ever allocated. `place[index]` tells
//! where in the heap a unithread's timer is, so that one that is not needed any more goes at once and does not linger until its time.
//!
//! | step | cost |
//! |---|---|
//! | next deadline | O(1) |
//! | set, remove, take the next | O(log n) |

use crate::scheduler::wait::Token;

const NOWHERE: u32 = u32::MAX;

/// See the module's head. Deadlines are nanoseconds of any one clock.
#[derive(Debug)]
pub struct Timers {
    heap: Vec<(u64, Token)>,
    place: Vec<u32>,
}

impl Timers {
    /// For unithreads with numbers below `capacity`.
    pub fn new(capacity: usize) -> Timers {
        Timers { heap: Vec::with_capacity(capacity), place: vec![NOWHERE; capacity] }
    }

    /// Keeps its memory in its place.
    #[cfg(not(loom))]
    pub(crate) fn keep(&self) -> std::io::Result<[crate::ground::library::Kept; 2]> {
        let heap =
            crate::ground::library::Kept::new(self.heap.as_ptr().cast(), self.heap.capacity() * size_of::<(u64, Token)>(), true)?;
        Ok([heap, crate::ground::library::Kept::all(&self.place)?])
    }

    /// Sets the timer of the token's unithread, which has none.
    pub fn set(&mut self, deadline: u64, token: Token) {
        let index = token.index() as usize;
        assert!(self.place[index] == NOWHERE, "unithread {index} has a timer already");
        self.place[index] = self.heap.len() as u32;
        self.heap.push((deadline, token));
        self.up(self.heap.len() - 1);
    }

    /// Removes the timer of unithread `index`. Whether it had one.
    pub fn remove(&mut self, index: u32) -> bool {
        let at = self.place[index as usize];
        if at == NOWHERE {
            return false;
        }
        self.take(at as usize);
        true
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<u64> {
        self.heap.first().map(|&(deadline, _)| deadline)
    }

    /// Takes a timer out whose deadline is not after `now`, the earliest first.
    pub fn expire(&mut self, now: u64) -> Option<Token> {
        (self.next()? <= now).then(|| self.take(0))
    }

    fn take(&mut self, at: usize) -> Token {
        let last = self.heap.len() - 1;
        self.swap(at, last);
        let (_, token) = self.heap.pop().expect("a timer has a place in the heap");
        self.place[token.index() as usize] = NOWHERE;
        if at < last {
            self.down(at);
            self.up(at);
        }
        token
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].0 <= self.heap[at].0 {
                return;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else { return };
            if self.heap[at].0 <= self.heap[least].0 {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            self.place[self.heap[at].1.index() as usize] = at as u32;
        }
    }
}
