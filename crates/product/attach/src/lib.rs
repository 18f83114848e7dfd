//! Policies beside the program: the memory that a policy shares with a program under Farshore.
//!
//! A *policy* is a process of the program's user (or of root). It asks for an attachment at the control socket and gets one file in
//! memory (`memfd`), which both sides map:
//!
//! ```text
//!   word 0 ┌ head ────────────────────────────────────────────────────────────────┐ 4 KiB
//!          │ version, sizes · what the library says · what the policy says         │
//!      512 ├ events: a ring of 4096, 64 bytes each ────────────────────────────────┤ 256 KiB
//!          │ library ▶ policy: faults, pages that came and left, limit, mappings   │
//!    33280 ├ requests: a ring of 1024, 32 bytes each ──────────────────────────────┤ 32 KiB
//!          │ policy ▶ library: reclaim, prefetch, pin, protect, look, scan, expect │
//!          └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! All is 64-bit words of x86-64, changed by one atomic access each. This is version [`VERSION`] of the protocol; the head's word says
//! which version the library speaks, and an attachment that asks for another one is refused.
//!
//! # Attaching
//!
//! The policy sends the line `{"op":"attach","version":1}` to the control socket. The answer is
//! `{"ok":true,"version":1,"bytes":N}`, and the descriptor comes with it (`SCM_RIGHTS`). The attachment lasts as long as the
//! connection: when it closes, for whatever reason, the library takes its thread and its mapping back.
//!
//! # The head
//!
//! | word | written by | what |
//! |---|---|---|
//! | 0 … 6 | library | magic, version, bytes, first word and number of events, of requests |
//! | [`word::STATE`] … | library | limit, usage, faults, and what became of events and requests ([`State`]) |
//! | [`word::FIRST_EVENT`] | library | position of the first event of this attachment |
//! | [`word::EVENTS_TAKEN`] | policy | position behind the last event that was taken |
//! | [`word::WAITING`] | policy | not 0: the policy sleeps on `NEWS` |
//! | [`word::NEWS`] | library | goes up when the policy is woken (futex(2), shared) |
//! | [`word::REQUESTS_ASKED`] | policy | position behind the last request that was written |
//! | [`word::REQUESTS_TAKEN`] | library | position behind the last request that was taken |
//! | [`word::BELL`] | policy | goes up when there is something to read for the library, which sleeps on it (futex(2), shared) |
//! | [`word::WANTED`] | policy | which events it wants: a bit for each [`Kind`] |
//! | [`word::PARAMETERS`] … | both | names and values of the policy's parameters ([`parameters`]) |
//!
//! # The rings
//!
//! A *position* counts from 0 for ever; its place is the position modulo the number of entries.
//!
//! An **event** has its position + 1 in its first word, which is written last. So a policy takes the event at its position when
//! that word is there, and then says how far it is. Threads of the program write events side by side. A full ring **loses** the event
//! and counts it; no thread waits for a policy.
//!
//! A **request** is written before the position behind it.
//!
//! # Nothing that is read here is believed
//!
//! The library keeps its own positions. What it reads from this memory is how far the other side is (a wrong number loses
//! events or requests of that policy), which events are wanted (a bit each), and requests, each of which is copied before it is
//! looked at ([`Request::of`] refuses what is out of range). The file is sealed: it cannot shrink under the library.
//!
//! [`rings`] has both ends of both rings, for the library and for policies in Rust. [`audience`] is how the engine tells events. Policies in
//! Python and C have packages of their own (`policies/`), which know this protocol too.
#![no_std]

extern crate alloc;

pub mod audience;
pub mod parameters;
pub mod rings;

use farshore_core::limits::{GRANULE_PAGES, PAGE_SIZE};
use farshore_core::sync::{AtomicU64, Ordering};

/// The version of the protocol.
pub const VERSION: u64 = 1;
/// The head's first word: `farshpol`, as bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"farshpol");
/// Words of the head.
pub const HEAD_WORDS: usize = 512;
/// Entries of the ring of events; a power of two.
pub const EVENTS: usize = 4096;
/// Words of an event.
pub const EVENT_WORDS: usize = 8;
/// Entries of the ring of requests; a power of two.
pub const REQUESTS: usize = 1024;
/// Words of a request.
pub const REQUEST_WORDS: usize = 4;
/// Words in all.
pub const WORDS: usize = HEAD_WORDS + EVENTS * EVENT_WORDS + REQUESTS * REQUEST_WORDS;
/// Bytes in all; whole pages.
pub const BYTES: usize = WORDS * 8;
/// The most pages of one request: 4 GiB.
pub const REQUEST_PAGES_MAX: u64 = 1 << 20;
/// The most pages of one [`Wanted::Scan`].
pub const SCAN_PAGES_MAX: u64 = 512;
/// Pages that one answer to [`Wanted::Look`] or [`Wanted::Scan`] tells of.
pub const PAGES_AN_ANSWER: u64 = 64;

/// Places in the head, in words.
pub mod word {
    /// What the library says of itself.
    pub const STATE: usize = 16;
    /// See the crate's head.
    pub const FIRST_EVENT: usize = 32;
    /// See the crate's head.
    pub const EVENTS_TAKEN: usize = 40;
    /// See the crate's head.
    pub const WAITING: usize = 48;
    /// See the crate's head.
    pub const NEWS: usize = 56;
    /// See the crate's head.
    pub const REQUESTS_ASKED: usize = 64;
    /// See the crate's head.
    pub const REQUESTS_TAKEN: usize = 72;
    /// See the crate's head.
    pub const BELL: usize = 80;
    /// See the crate's head.
    pub const WANTED: usize = 88;
    /// See the crate's head.
    pub const PARAMETERS: usize = 128;
}

/// The shared memory, as one side sees it.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'m> {
    words: &'m [AtomicU64],
    events: usize,
    requests: usize,
}

impl<'m> Memory<'m> {
    /// The memory of an attachment. `words` are [`WORDS`].
    ///
    /// # Panics
    /// When there are fewer.
    pub fn new(words: &'m [AtomicU64]) -> Memory<'m> {
        Memory::with_rings(words, EVENTS, REQUESTS)
    }

    /// The same with rings of other sizes, powers of two: for models.
    ///
    /// # Panics
    /// When there are fewer words than that.
    pub fn with_rings(words: &'m [AtomicU64], events: usize, requests: usize) -> Memory<'m> {
        assert!(words.len() >= HEAD_WORDS + events * EVENT_WORDS + requests * REQUEST_WORDS);
        Memory { words, events, requests }
    }

    /// A word of the head.
    #[inline]
    pub fn head(&self, place: usize) -> &'m AtomicU64 {
        &self.words[place]
    }

    /// The words of the event at a position.
    #[inline]
    fn event(&self, at: u64) -> &'m [AtomicU64] {
        let from = HEAD_WORDS + (at as usize & (self.events - 1)) * EVENT_WORDS;
        &self.words[from..from + EVENT_WORDS]
    }

    /// The words of the request at a position.
    fn request(&self, at: u64) -> &'m [AtomicU64] {
        let from = HEAD_WORDS + self.events * EVENT_WORDS + (at as usize & (self.requests - 1)) * REQUEST_WORDS;
        &self.words[from..from + REQUEST_WORDS]
    }

    /// Writes what does not change: the library does, before the policy has the memory.
    pub fn begin(&self) {
        let requests_at = HEAD_WORDS + self.events * EVENT_WORDS;
        let bytes = self.words.len() * 8;
        let words =
            [MAGIC, VERSION, bytes as u64, HEAD_WORDS as u64, self.events as u64, requests_at as u64, self.requests as u64];
        for (place, value) in words.into_iter().enumerate() {
            self.head(place).store(value, Ordering::Relaxed);
        }
    }
}

/// What an event tells; the numbers are those of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A thread touched a page that is absent or write-protected. `address` is the byte, `thread` the thread, `more[0]` its instruction
    /// pointer; `detail` has [`FAULT_WRITE`], [`FAULT_PROTECTED`], [`FAULT_BY_CALL`]. Thread and instruction are 0 where they
    /// are not known (a page that a system call needs, poll mode).
    Fault = 1,
    /// Pages came from swap space. `detail`: 0 by their own faults, 1 unasked. `more[0]`: how many times evictors pass a page over that came by
    /// its own fault.
    Fetched = 2,
    /// Pages left. `detail`: 1 if they were clean, so that nothing is written.
    Evicted = 3,
    /// A page that had left came back from RAM, before its write was over: it is used. `more[0]`: how many times evictors pass it over.
    Rescued = 4,
    /// The memory limit is `pages` now.
    Limit = 5,
    /// Pages are managed from now on.
    Mapped = 6,
    /// Pages are not managed any more.
    Unmapped = 7,
    /// The answer to [`Wanted::Look`]: of the page `address` + n the bits n of `more[0]`, `more[1]` and `more[2]` are a
    /// [`PageState`], lowest first. `thread` is the request's tag.
    Pages = 8,
    /// The user has set parameter `detail` to the number `more[0]`, in two's complement.
    Parameter = 9,
    /// The answer to [`Wanted::Scan`], when its time is over: of the page `address` + n the bit n of `more[0]` says that it was looked at, of
    /// `more[1]` that it was accessed, of `more[2]` that it may have been written. `thread` is the request's tag. `detail` 1: the request was
    /// refused, and nothing was looked at.
    Scanned = 10,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 10] = [
        Kind::Fault,
        Kind::Fetched,
        Kind::Evicted,
        Kind::Rescued,
        Kind::Limit,
        Kind::Mapped,
        Kind::Unmapped,
        Kind::Pages,
        Kind::Parameter,
        Kind::Scanned,
    ];

    /// Its bit in [`word::WANTED`].
    #[inline]
    pub const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// The kind of this number.
    pub fn of(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|&kind| kind as u8 == number)
    }
}

/// All bits of [`word::WANTED`].
pub const EVERYTHING: u32 = 0x7fe;

/// The access was a write.
pub const FAULT_WRITE: u8 = 1;
/// The page was there, and write-protected.
pub const FAULT_PROTECTED: u8 = 2;
/// A system call needs the page.
pub const FAULT_BY_CALL: u8 = 4;

/// The addresses that a program can have end here.
const ADDRESSES: u64 = 1 << 47;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// By kind.
    pub detail: u8,
    /// By kind.
    pub thread: u32,
    /// When, in ns of `CLOCK_MONOTONIC`.
    pub ns: u64,
    /// The first byte that it is about.
    pub address: u64,
    /// How many pages it is about.
    pub pages: u64,
    /// By kind.
    pub more: [u64; 3],
}

impl Event {
    /// An event about pages.
    pub const fn new(kind: Kind, address: u64, pages: u64) -> Event {
        Event { kind, detail: 0, thread: 0, ns: 0, address, pages, more: [0; 3] }
    }

    fn words(&self) -> [u64; EVENT_WORDS - 1] {
        let first = self.kind as u64 | (self.detail as u64) << 8 | (self.thread as u64) << 32;
        [first, self.ns, self.address, self.pages, self.more[0], self.more[1], self.more[2]]
    }

    /// `None`: an event of a later version. The program can write anything into the memory that it shares, and policies go over the
    /// pages of an event one by one: so there are no more of them than the engine tells of at a time, or than there are addresses.
    fn of([first, ns, address, pages, more @ ..]: [u64; EVENT_WORDS - 1]) -> Option<Event> {
        let kind = Kind::of(first as u8)?;
        let most = match kind {
            Kind::Limit | Kind::Parameter => u64::MAX,
            Kind::Mapped | Kind::Unmapped => ADDRESSES / PAGE_SIZE as u64,
            Kind::Fault | Kind::Fetched | Kind::Evicted | Kind::Rescued | Kind::Pages | Kind::Scanned => GRANULE_PAGES as u64,
        };
        let pages = pages.min(most);
        Some(Event { kind, detail: (first >> 8) as u8, thread: (first >> 32) as u32, ns, address, pages, more })
    }
}

/// The state of a page, as an answer tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageState {
    /// Not managed.
    Foreign = 0,
    /// Managed, and never touched: it is zeros.
    Untouched = 1,
    /// In memory, and nowhere else.
    Dirty = 2,
    /// In memory, and in swap space.
    Clean = 3,
    /// Not mapped, its bytes still in RAM.
    Leaving = 4,
    /// In swap space alone.
    Out = 5,
    /// On its way, either way.
    Busy = 6,
}

/// What a request wants; the numbers are those of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// 1: that pages leave.
    Reclaim,
    /// 2: that pages come, if there is memory to spare.
    Prefetch,
    /// 3: that pages stay, as long as other pages can leave instead.
    Pin,
    /// 4: that they need not stay any more.
    Unpin,
    /// 5: that they stay for so many ns.
    Protect {
        /// How long.
        ns: u64,
    },
    /// 6: to know their states ([`Kind::Pages`]).
    Look {
        /// Comes back with the answers.
        tag: u32,
    },
    /// 7: to know which of them are used: the kernel watches them, or they leave, and after a while it is looked which have come back ([`Kind::Scanned`]). Of
    /// [`SCAN_PAGES_MAX`] pages at most. Scans have a hundredth of one processor's time; what is asked for
    /// beyond that, and beyond 64 scans at a time, is refused.
    Scan {
        /// The while, µs: from 1 ms to a minute.
        micros: u32,
        /// Comes back with the answers.
        tag: u32,
    },
    /// 8: nothing, but to say when the pages are expected to be used again. Evictors look it up when frames are short: late pages leave
    /// first, and others are passed over once or twice. An estimate is used up by that; all are gone when a policy that has made one
    /// leaves.
    Expect {
        /// When.
        reuse: Reuse,
    },
}

/// When a page is expected to be used again; the numbers are those of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reuse {
    /// Nothing is expected.
    Unknown = 0,
    /// Later than others: it leaves before them.
    Late = 1,
    /// Sooner than others: evictors pass it over once.
    Soon = 2,
    /// Sooner than those: evictors pass it over twice.
    Next = 3,
}

impl Reuse {
    /// All, by their numbers.
    pub const ALL: [Reuse; 4] = [Reuse::Unknown, Reuse::Late, Reuse::Soon, Reuse::Next];

    /// The one of this number.
    pub fn of(number: u64) -> Option<Reuse> {
        Reuse::ALL.into_iter().find(|&reuse| reuse as u64 == number)
    }
}

/// A request about pages side by side. A list is as many requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What is wanted.
    pub wanted: Wanted,
    /// The first page, by number.
    pub page: u64,
    /// How many, from 1 to [`REQUEST_PAGES_MAX`].
    pub pages: u64,
}

impl Request {
    fn words(&self) -> [u64; REQUEST_WORDS] {
        let (kind, extra) = match self.wanted {
            Wanted::Reclaim => (1, 0),
            Wanted::Prefetch => (2, 0),
            Wanted::Pin => (3, 0),
            Wanted::Unpin => (4, 0),
            Wanted::Protect { ns } => (5, ns),
            Wanted::Look { tag } => (6, u64::from(tag)),
            Wanted::Scan { micros, tag } => (7, u64::from(micros) << 32 | u64::from(tag)),
            Wanted::Expect { reuse } => (8, reuse as u64),
        };
        [kind, self.page << 12, self.pages, extra]
    }

    /// Reads a request from its words; `None`: it is none, or about what cannot be.
    pub fn of([kind, address, pages, extra]: [u64; REQUEST_WORDS]) -> Option<Request> {
        /// The addresses of programs end here.
        const END: u64 = 1 << 47;
        let wanted = match kind {
            1 => Wanted::Reclaim,
            2 => Wanted::Prefetch,
            3 => Wanted::Pin,
            4 => Wanted::Unpin,
            5 => Wanted::Protect { ns: extra },
            6 => Wanted::Look { tag: u32::try_from(extra).ok()? },
            7 if pages <= SCAN_PAGES_MAX => Wanted::Scan { micros: (extra >> 32) as u32, tag: extra as u32 },
            8 => Wanted::Expect { reuse: Reuse::of(extra)? },
            _ => return None,
        };
        let fits = address < END && (1..=REQUEST_PAGES_MAX).contains(&pages) && pages <= (END - address) >> 12;
        fits.then_some(Request { wanted, page: address >> 12, pages })
    }
}

/// What the library says of itself in the head, in this order from [`word::STATE`] on. A few hundredths of a second old while nothing is
/// asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The memory limit, bytes.
    pub limit_bytes: u64,
    /// Managed memory that is in RAM, bytes.
    pub resident_bytes: u64,
    /// Faults so far.
    pub faults: u64,
    /// Events that a full ring has lost.
    pub events_lost: u64,
    /// Requests that were taken.
    pub requests: u64,
    /// Of them, those that were none: [`Request::of`].
    pub requests_bad: u64,
    /// Pages of requests that were dropped, since too much was asked for at once.
    pub pages_dropped: u64,
}

impl State {
    /// Its words.
    pub const WORDS: usize = 7;

    /// Writes it into the head.
    pub fn store(&self, memory: &Memory<'_>) {
        let words = [
            self.limit_bytes,
            self.resident_bytes,
            self.faults,
            self.events_lost,
            self.requests,
            self.requests_bad,
            self.pages_dropped,
        ];
        for (n, value) in words.into_iter().enumerate() {
            memory.head(word::STATE + n).store(value, Ordering::Relaxed);
        }
    }

    /// Reads it from the head.
    pub fn load(memory: &Memory<'_>) -> State {
        let [limit_bytes, resident_bytes, faults, events_lost, requests, requests_bad, pages_dropped] =
            core::array::from_fn(|n| memory.head(word::STATE + n).load(Ordering::Relaxed));
        let _: [(); Self::WORDS] = [(); 7];
        State { limit_bytes, resident_bytes, faults, events_lost, requests, requests_bad, pages_dropped }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
