//! Policies in Rust: a process beside a program under Farshore hears what happens to the program's memory, and says which pages it would
//! like to come, to leave or to stay. The guide's page about policies tells what can be heard and wished.
//!
//! ```no_run
//! use farshore_beside::{Kind, PAGE, Wanted};
//! let mut program = farshore_beside::attach(4242)?;
//! program.want(&[Kind::Fault]);
//! while let Some(event) = program.next() {
//!     program.ask(Wanted::Prefetch, event.address + PAGE, 8);
//! }
//! # Ok::<(), farshore_command::refusal::Refusal>(())
//! ```
//!
//! Who answers at once sleeps in [`Attachment::next`], and is woken by the program: a call of a thread that faults, every 10 µs at most. Who
//! only counts takes what is there ([`Attachment::take`]), sleeps by the clock, and costs the program no call at all.

mod memory;

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farshore_attach::rings::{Asker, Listener};
pub use farshore_attach::{Event, FAULT_PROTECTED, Kind, PageState, REQUEST_PAGES_MAX, Reuse, State, Wanted};
use farshore_attach::{Memory, REQUESTS, Request, VERSION, parameters, word};
use farshore_client::client::Client;
use farshore_command::refusal::Refusal;
use farshore_core::sync::Ordering;

use memory::Shared;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Numbers of pages end here, as addresses of programs do.
pub const PAGES: u64 = (1 << 47) / PAGE;
/// How long one sleep is: a policy that was just woken may not be woken again for the next event.
const SLEEP: Duration = Duration::from_millis(10);

/// Attaches to process `pid`. The attachment ends when it is dropped.
///
/// # Errors
/// There is no such process, it does not run under Farshore, it is another user's, or four policies have attached already.
pub fn attach(pid: u32) -> Result<Attachment, Refusal> {
    let (connection, descriptor) = Client::connect(pid)?.attach(VERSION)?;
    let failed = |what: &str, why: std::io::Error| {
        Refusal::failed(format!("process {pid}: {what} failed ({why}): is its Farshore another version?"))
    };
    connection.set_nonblocking(true).map_err(|why| failed("the connection", why))?;
    let shared = Shared::map(&descriptor).map_err(|why| failed("mapping what it shares", why))?;
    let memory = Memory::new(shared.words());
    let (listener, asker) = (Listener::new(&memory), Asker::new(&memory));
    Ok(Attachment { connection, listener, asker, registered: 0, shared })
}

/// A program that this policy has attached to.
#[derive(Debug)]
pub struct Attachment {
    connection: UnixStream,
    listener: Listener,
    asker: Asker,
    registered: usize,
    shared: Shared,
}

impl Attachment {
    fn memory(&self) -> Memory<'_> {
        Memory::new(self.shared.words())
    }

    /// Chooses the kinds of events that come from now on.
    pub fn want(&mut self, kinds: &[Kind]) {
        let bits = kinds.iter().fold(0, |bits, kind| bits | kind.bit());
        self.memory().head(word::WANTED).store(u64::from(bits), Ordering::Release);
        self.ring();
    }

    /// The next event, if there is one.
    pub fn take(&mut self) -> Option<Event> {
        let memory = Memory::new(self.shared.words());
        self.listener.take(&memory)
    }

    /// The next event, when it comes. None: the program is gone, or has ended the attachment.
    #[expect(clippy::should_implement_trait, reason = "an iterator would keep the attachment, which asks meanwhile")]
    pub fn next(&mut self) -> Option<Event> {
        while !self.wait(Duration::from_secs(1)) {
            if !self.is_there() {
                // What it said last.
                return self.take();
            }
        }
        self.take()
    }

    /// Sleeps until there is an event, or for that long. Whether there is one.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            let memory = self.memory();
            let Some(news) = self.listener.prepare(&memory) else { return true };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.is_there() {
                memory.head(word::WAITING).store(0, Ordering::Relaxed);
                return self.listener.is_there(&memory);
            }
            self.shared.sleep(word::NEWS, news, left.min(SLEEP));
        }
    }

    /// Whether the program is still attached to.
    pub fn is_there(&self) -> bool {
        use std::io::Read;
        match (&self.connection).read(&mut [0]) {
            Ok(count) => count != 0,
            Err(why) => matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Makes a wish about `pages` pages from the one of `address` on: all of it, or nothing. False: the ring of requests has no room for it
    /// now, or there can be no such pages. A request is of 4 GiB at most; one wish of more than 4 TiB never fits.
    pub fn ask(&mut self, wanted: Wanted, address: u64, pages: u64) -> bool {
        let memory = Memory::new(self.shared.words());
        let asked = ask(&mut self.asker, &memory, room(&memory), wanted, address / PAGE, pages);
        self.ring();
        asked
    }

    /// Limit, usage and counters of the program, a few hundredths of a second old.
    pub fn state(&self) -> State {
        State::load(&self.memory())
    }

    /// Registers a parameter, a whole number that `farshore stat` shows and `farshore set PID NAME=VALUE` changes. Its place for
    /// [`Attachment::parameter`]; none if the name is none, or there are 16 already.
    pub fn register(&mut self, name: &str, value: i64) -> Option<usize> {
        let place = self.registered;
        let done = parameters::register(&self.memory(), place, name, value);
        self.registered += usize::from(done);
        done.then_some(place)
    }

    /// The value of a parameter now.
    ///
    /// # Panics
    /// When it was not registered.
    pub fn parameter(&self, place: usize) -> i64 {
        assert!(place < self.registered, "parameter {place} of {}", self.registered);
        parameters::get(&self.memory(), place)
    }

    fn ring(&self) {
        self.memory().head(word::BELL).fetch_add(1, Ordering::Release);
        self.shared.wake(word::BELL);
    }
}

/// How many requests the ring has room for. The program only takes, so there is as much or more a moment later.
fn room(memory: &Memory<'_>) -> u64 {
    let taken = memory.head(word::REQUESTS_TAKEN).load(Ordering::Acquire);
    // This side alone writes it, with each request.
    let asked = memory.head(word::REQUESTS_ASKED).load(Ordering::Relaxed);
    (REQUESTS as u64).saturating_sub(asked.wrapping_sub(taken))
}

/// Writes the requests of one wish, all or none.
fn ask(asker: &mut Asker, memory: &Memory<'_>, room: u64, wanted: Wanted, page: u64, pages: u64) -> bool {
    let there_can_be = pages > 0 && page < PAGES && pages <= PAGES - page;
    if !there_can_be || pages.div_ceil(REQUEST_PAGES_MAX) > room {
        return false;
    }
    (page..page + pages).step_by(REQUEST_PAGES_MAX as usize).all(|first| {
        let part = (page + pages - first).min(REQUEST_PAGES_MAX);
        asker.ask(memory, &Request { wanted, page: first, pages: part })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_attach::WORDS;
    use farshore_attach::rings::{Taken, Taker};
    use farshore_core::sync::AtomicU64;

    #[test]
    fn a_wish_is_made_whole_or_not_at_all() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let memory = Memory::new(&words);
        let (mut asker, mut taker) = (Asker::new(&memory), Taker::default());
        let mut wish = |page, pages| ask(&mut asker, &memory, room(&memory), Wanted::Prefetch, page, pages);
        let none = |why: &str| assert_eq!(memory.head(word::REQUESTS_ASKED).load(Ordering::Relaxed), 0, "{why}");
        assert!(!wish(0, (REQUESTS as u64 + 1) * REQUEST_PAGES_MAX));
        none("it never fits");
        assert!(!wish(PAGES - 1, 2) && !wish(PAGES, 1) && !wish(7, 0) && !wish(7, u64::MAX));
        none("there can be no such pages");
        for n in 0..REQUESTS as u64 - 1 {
            assert!(wish(n, 1), "{n}");
        }
        assert!(!wish(5000, REQUEST_PAGES_MAX + 1), "there is room for its first part alone");
        assert!(wish(6000, 1) && !wish(6001, 1), "and nothing of it was written");
        let mut take = || match taker.take(&memory) {
            Taken::Request(request) => Some((request.page, request.pages)),
            other => panic!("{other:?}"),
        };
        assert_eq!((take(), take()), (Some((0, 1)), Some((1, 1))));
        assert!(wish(5000, REQUEST_PAGES_MAX + 1));
        let taken: Vec<_> = (0..REQUESTS).filter_map(|_| take()).collect();
        let last = [(6000, 1), (5000, REQUEST_PAGES_MAX), (5000 + REQUEST_PAGES_MAX, 1)];
        assert_eq!(taken[taken.len() - 3..], last);
    }
}
