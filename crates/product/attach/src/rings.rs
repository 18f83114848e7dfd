//! Both ends of both rings. The protocol is at the crate's head.

use crate::{Event, Memory, Request, word};
use farshore_core::sync::{AtomicU64, Ordering, Padded, both_sides};

/// How often a thread tries to get a place for an event, among others that do, until the event is lost.
const TRIES: u32 = 16;
/// A policy that sleeps is woken at most this often, ns: what is told meanwhile, it finds when it wakes next.
const WAKE_EVERY_NS: u64 = 10_000;

/// The library's end of events. Any thread tells; none waits.
#[derive(Debug)]
pub struct Teller {
    /// The next position: never read from the shared memory.
    next: Padded<AtomicU64>,
    lost: Padded<AtomicU64>,
    woken_ns: AtomicU64,
}

impl Default for Teller {
    fn default() -> Teller {
        Teller { next: Padded(AtomicU64::new(0)), lost: Padded(AtomicU64::new(0)), woken_ns: AtomicU64::new(0) }
    }
}

impl Teller {
    /// Position of the next event.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Events that were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Writes an event; `wake` wakes the policy, which sleeps on [`word::NEWS`]. False: it is lost, since the ring is full.
    pub fn tell(&self, memory: &Memory<'_>, event: &Event, wake: impl FnOnce(&AtomicU64)) -> bool {
        // Acquire: pairs with the release in `Listener::take`, which has read what is overwritten now.
        let taken = memory.head(word::EVENTS_TAKEN).load(Ordering::Acquire);
        let mut at = self.next.load(Ordering::Relaxed);
        let mut tries = 0;
        loop {
            // Whatever the policy has written there: too far behind (or far ahead) is a full ring.
            if at.wrapping_sub(taken) >= memory.events as u64 || tries == TRIES {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            match self.next.compare_exchange_weak(at, at + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => (at, tries) = (now, tries + 1),
            }
        }
        let [first, rest @ ..] = memory.event(at) else { unreachable!("an event has words") };
        for (place, value) in rest.iter().zip(event.words()) {
            place.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `Listener::take`. SeqCst: the policy says that it waits, then looks here; this
        // thread writes here, then looks whether the policy waits.
        first.swap(at + 1, Ordering::SeqCst);
        both_sides();
        if memory.head(word::WAITING).load(Ordering::SeqCst) != 0 {
            self.wake(memory, event.ns, wake);
        }
        true
    }

    #[cold]
    fn wake(&self, memory: &Memory<'_>, now_ns: u64, wake: impl FnOnce(&AtomicU64)) {
        let woken = self.woken_ns.load(Ordering::Relaxed);
        if now_ns.wrapping_sub(woken) < WAKE_EVERY_NS {
            return;
        }
        self.woken_ns.store(now_ns, Ordering::Relaxed);
        memory.head(word::WAITING).store(0, Ordering::Relaxed);
        let news = memory.head(word::NEWS);
        news.fetch_add(1, Ordering::Release);
        wake(news);
    }
}

/// The policy's end of events: one thread takes.
#[derive(Debug)]
pub struct Listener {
    next: u64,
}

impl Listener {
    /// Begins with the first event of the attachment.
    pub fn new(memory: &Memory<'_>) -> Listener {
        Listener { next: memory.head(word::FIRST_EVENT).load(Ordering::Relaxed) }
    }

    /// Whether there is an event.
    pub fn is_there(&self, memory: &Memory<'_>) -> bool {
        memory.event(self.next)[0].load(Ordering::SeqCst) == self.next + 1
    }

    /// Takes the next event; an event of a kind that this version does not know is passed over.
    pub fn take(&mut self, memory: &Memory<'_>) -> Option<Event> {
        loop {
            let [first, rest @ ..] = memory.event(self.next) else { unreachable!("an event has words") };
            // Acquire: pairs with the swap in `Teller::tell`.
            if first.load(Ordering::Acquire) != self.next + 1 {
                return None;
            }
            let event = Event::of(core::array::from_fn(|n| rest[n].load(Ordering::Relaxed)));
            self.next += 1;
            // Release: the words were read.
            memory.head(word::EVENTS_TAKEN).store(self.next, Ordering::Release);
            if event.is_some() {
                return event;
            }
        }
    }

    /// Says that the policy is about to sleep on [`word::NEWS`]. Returns the number to sleep on, unless there is an event already.
    pub fn prepare(&self, memory: &Memory<'_>) -> Option<u32> {
        let news = memory.head(word::NEWS).load(Ordering::Acquire) as u32;
        memory.head(word::WAITING).store(1, Ordering::SeqCst);
        both_sides();
        if self.is_there(memory) {
            memory.head(word::WAITING).store(0, Ordering::Relaxed);
            return None;
        }
        Some(news)
    }
}

/// The policy's end of requests: one thread asks.
#[derive(Debug)]
pub struct Asker {
    next: u64,
}

impl Asker {
    /// Goes on where requests of this attachment are.
    pub fn new(memory: &Memory<'_>) -> Asker {
        Asker { next: memory.head(word::REQUESTS_TAKEN).load(Ordering::Acquire) }
    }

    /// Writes a request; false: the ring is full. [`word::BELL`] is to be rung after the last of several.
    #[must_use]
    pub fn ask(&mut self, memory: &Memory<'_>, request: &Request) -> bool {
        // Acquire: pairs with the release in `Taker::take`.
        let taken = memory.head(word::REQUESTS_TAKEN).load(Ordering::Acquire);
        if self.next.wrapping_sub(taken) >= memory.requests as u64 {
            return false;
        }
        for (place, value) in memory.request(self.next).iter().zip(request.words()) {
            place.store(value, Ordering::Relaxed);
        }
        self.next += 1;
        // Release: pairs with the acquire in `Taker::take`.
        memory.head(word::REQUESTS_ASKED).store(self.next, Ordering::Release);
        true
    }
}

/// The library's end of requests: one thread takes.
#[derive(Debug, Default)]
pub struct Taker {
    /// The next position: never read from the shared memory.
    next: u64,
    /// Requests that were taken.
    pub taken: u64,
    /// Of them, those that were none.
    pub bad: u64,
}

/// What came of [`Taker::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// A request.
    Request(Request),
    /// Something that is none.
    Bad,
    /// There is nothing.
    Nothing,
}

impl Taker {
    /// Takes the next request.
    pub fn take(&mut self, memory: &Memory<'_>) -> Taken {
        // Acquire: pairs with the release in `Asker::ask`.
        let asked = memory.head(word::REQUESTS_ASKED).load(Ordering::Acquire);
        let there = asked.wrapping_sub(self.next);
        if there == 0 {
            return Taken::Nothing;
        }
        self.taken += 1;
        let request = if there > memory.requests as u64 {
            // No policy can have written so many: what is there is passed over.
            self.next = asked;
            None
        } else {
            let words = memory.request(self.next);
            // A copy of our own, which is checked and then used.
            let copy = core::array::from_fn(|n| words[n].load(Ordering::Relaxed));
            self.next = self.next.wrapping_add(1);
            Request::of(copy)
        };
        // Release: the words were read.
        memory.head(word::REQUESTS_TAKEN).store(self.next, Ordering::Release);
        if request.is_none() {
            self.bad += 1;
        }
        request.map_or(Taken::Bad, Taken::Request)
    }
}
