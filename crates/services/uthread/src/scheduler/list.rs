//! Lists of unithreads, by their numbers. A unithread has one link, so it is in at most one list, and no list allocates or can be full.
//!
//! | list | who puts in | who takes out | order |
//! |---|---|---|---|
//! | [`Inbox`] | any thread, also in a signal handler | its owner, all at once | first come first served |
//! | [`Fifo`] | its owner | its owner | first come first served |
//! | [`Free`] | any thread | any thread | last in first out: its stack is still in the cache, and few stacks are ever touched |
//!
//! *ABA.* An inbox is emptied as a whole: a push that succeeds although the list was taken and filled in between links to what is the head again. The
//! free list gives out single entries, so its head has a count of changes beside it, which would have to go round (2³²) within one pop.

use farshore_core::sync::{AtomicU32, AtomicU64, Ordering};

/// No unithread: the end of a list.
pub const NONE: u32 = u32::MAX;

/// Where the links lie.
pub trait Links {
    /// The link of unithread `index`.
    fn next(&self, index: u32) -> &AtomicU32;
}

/// Unithreads on their way to one owner.
#[derive(Debug)]
pub struct Inbox {
    head: AtomicU32,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { head: AtomicU32::new(NONE) }
    }
}

impl Inbox {
    /// Puts `index` in, which is in no list. Never waits for another thread that was interrupted.
    pub fn push(&self, links: &impl Links, index: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            links.next(index).store(head, Ordering::Relaxed);
            // Release: the owner, who takes the list with Acquire, sees the link and all that was done before.
            match self.head.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Moves everything to the end of `to`, oldest first. For the owner alone.
    pub fn take(&self, links: &impl Links, to: &mut Fifo) {
        if self.is_empty() {
            return;
        }
        // Acquire: partner of the Release in `push`. Each push is a read-modify-write, so older ones are seen too.
        let mut newest = self.head.swap(NONE, Ordering::Acquire);
        let mut oldest = NONE;
        while newest != NONE {
            let before = links.next(newest).load(Ordering::Relaxed);
            links.next(newest).store(oldest, Ordering::Relaxed);
            oldest = newest;
            newest = before;
        }
        to.append(links, oldest);
    }

    /// Whether there is nothing in it, as far as this thread has heard.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == NONE
    }
}

/// A queue of one owner.
#[derive(Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo { head: NONE, tail: NONE }
    }
}

impl Fifo {
    /// Puts `index` in, which is in no list.
    pub fn push(&mut self, links: &impl Links, index: u32) {
        links.next(index).store(NONE, Ordering::Relaxed);
        self.append(links, index);
    }

    /// Takes the oldest out.
    pub fn pop(&mut self, links: &impl Links) -> Option<u32> {
        let index = self.head;
        if index == NONE {
            return None;
        }
        self.head = links.next(index).load(Ordering::Relaxed);
        Some(index)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Adds a chain that ends in [`NONE`].
    fn append(&mut self, links: &impl Links, first: u32) {
        if first == NONE {
            return;
        }
        match self.head {
            NONE => self.head = first,
            _ => links.next(self.tail).store(first, Ordering::Relaxed),
        }
        let mut last = first;
        loop {
            match links.next(last).load(Ordering::Relaxed) {
                NONE => break,
                next => last = next,
            }
        }
        self.tail = last;
    }
}

/// Free entries: the head's number in the low half, the count of changes in the high one.
#[derive(Debug)]
pub struct Free {
    head: AtomicU64,
}

impl Default for Free {
    fn default() -> Free {
        Free { head: AtomicU64::new(u64::from(NONE)) }
    }
}

impl Free {
    /// Puts `index` in, which is in no list.
    pub fn push(&self, links: &impl Links, index: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            links.next(index).store(head as u32, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, with_count(head, index), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes one out.
    pub fn pop(&self, links: &impl Links) -> Option<u32> {
        // Acquire, here and below: partner of the Release in `push`, so that the link that is read is the one that was pushed.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = head as u32;
            if index == NONE {
                return None;
            }
            let next = links.next(index).load(Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, with_count(head, next), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }
}

fn with_count(before: u64, index: u32) -> u64 {
    (((before >> 32) + 1) << 32) | u64::from(index)
}
