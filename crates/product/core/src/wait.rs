//! Waiting until another thread has moved a page on.
//!
//! Page words have 64 bits and a futex has 32, so threads sleep on the *side table*: one bucket for each hash of pages,
//! whose number goes up at every wake.
//!
//! # Why no wake-up is lost
//!
//! The waiter reads the bucket's number, then sets `waiters` in the word (which
//! fails if the page has moved on), then sleeps while the number is unchanged.
//! The owner clears `waiters` in the compare-and-swap that releases the page, then
//! raises the number, then wakes. If the release came before the waiter's announcement, the announcement fails. If the
//! release came after it, the number goes up after the waiter read it, so the sleep ends or does not begin.

use crate::limits::WAIT_BUCKETS;
use crate::page::Page;
use crate::sync::{AtomicU32, Futex, Ordering, Padded};
use crate::word::{AtomicWord, Released};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The side table.
#[derive(Debug)]
pub struct WaitTable {
    buckets: Box<[Padded<AtomicU32>]>,
}

/// What a thread needs to sleep on a page: the bucket, and the bucket's number before the thread looked at the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Ticket {
    bucket: usize,
    number: u32,
}

impl Default for WaitTable {
    fn default() -> Self {
        WaitTable::new()
    }
}

impl WaitTable {
    /// An empty table.
    pub fn new() -> WaitTable {
        WaitTable { buckets: (0..WAIT_BUCKETS).map(|_| Padded(AtomicU32::new(0))).collect::<Vec<_>>().into_boxed_slice() }
    }

    fn bucket(page: Page) -> usize {
        // Fibonacci hashing: neighbours land far apart.
        (page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % WAIT_BUCKETS
    }

    /// Announces that this thread will sleep until `page` moves on. `None`: the page has moved on already.
    pub fn announce(&self, page: Page, word: &AtomicWord) -> Option<Ticket> {
        let bucket = Self::bucket(page);
        let number = self.buckets[bucket].load(Ordering::Acquire);
        word.announce_waiter().then_some(Ticket { bucket, number })
    }

    /// Sleeps until the ticket's page may have moved on.
    pub fn sleep<F: Futex>(&self, futex: &F, ticket: Ticket) {
        futex.wait(&self.buckets[ticket.bucket], ticket.number);
    }

    /// Whether a sleep on this ticket would end at once.
    pub fn is_over(&self, ticket: Ticket) -> bool {
        self.buckets[ticket.bucket].load(Ordering::Acquire) != ticket.number
    }

    /// To be called when the owner has released `page`: wakes the threads that announced themselves.
    pub fn released<F: Futex>(&self, futex: &F, page: Page, outcome: Released) {
        if outcome.wake {
            let bucket = &self.buckets[Self::bucket(page)];
            bucket.fetch_add(1, Ordering::AcqRel);
            futex.wake_all(bucket);
        }
    }
}

/// An event that threads sleep on until it happens: frames came free, work arrived.
#[derive(Debug, Default)]
pub struct Event {
    number: Padded<AtomicU32>,
    sleepers: Padded<AtomicU32>,
}

impl Event {
    /// An event that has not happened.
    pub fn new() -> Event {
        Event { number: Padded(AtomicU32::new(0)), sleepers: Padded(AtomicU32::new(0)) }
    }

    /// Reads the number to sleep on. Look at the condition *after* this call.
    pub fn prepare(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Sleeps unless the event has happened since [`Event::prepare`].
    pub fn sleep<F: Futex>(&self, futex: &F, prepared: u32, timeout_ns: Option<u64>) {
        // SeqCst on both sides: our add comes before the futex looks at the number, and the signaller's change of the
        // number before its load of `sleepers`. Were either pair reordered, the signaller could skip the wake that we
        // sleep for.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        match timeout_ns {
            None => futex.wait(&self.number, prepared),
            Some(ns) => futex.wait_for(&self.number, prepared, ns),
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the event has happened since [`Event::prepare`].
    pub fn happened_since(&self, prepared: u32) -> bool {
        self.number.load(Ordering::SeqCst) != prepared
    }

    /// Number of threads that sleep on the event now.
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::SeqCst)
    }

    /// The event happened: wakes every sleeper. One add when no thread sleeps.
    pub fn signal<F: Futex>(&self, futex: &F) {
        self.number.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            futex.wake_all(&self.number);
        }
    }
}
