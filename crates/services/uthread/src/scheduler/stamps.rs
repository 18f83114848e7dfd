//! Time stamps of requests: what the time of each went to, from the network to its reply ([`Record`]). Only where `Config::breakdown` asks for it.
//!
//! ```text
//!  arrives   taken     first run        page wanted    page there   runs again     answered     reply sent
//!     ├ socket ┼ queue ────┼ run ──────────┼ page ─────────┼ again ─────┼ run ─────────┼ reply ────────┤
//! ```
//!
//! A request is in one state at a time. Each move to another one reads the clock once and adds the time since the last move to the part of the state that it leaves.
//! So the parts add up to the whole, and none is below 0.
//!
//! **Busy-waiting.** A worker whose mode is busy notes when it has spun for a page. A request that waited for the worker looks up how much of that wait was such
//! spinning. A worker remembers its last [`SPINS`] spins; of a wait that is longer than they reach back, those that are remembered count.
//!
//! **Who writes.** The owner of the unithread: its spawner, then its worker, then whoever completes its wait, then the heir. The lists between them order what
//! they write, as they do for the control block, so all accesses are Relaxed. A worker's spins are its own thread's. Records are written by the heir and the workers, each
//! to a place of its own; they are read when the runtime has ended.

use crate::ground::error::Error;
use crate::ground::os::now;
use crate::ground::own::OwnVec;
use crate::scheduler::record::{Breakdown, Record};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Spins that a worker remembers: a power of two.
const SPINS: usize = 4096;

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No request that is stamped. Memory that is zero says so.
    Unknown = 0,
    /// It waits for its first run.
    Queued = 1,
    /// It runs.
    Runs = 2,
    /// It waits for a page, or for a file.
    Page = 3,
    /// It waits for something else.
    Other = 4,
    /// What it has waited for is there, and it waits for its worker.
    Ready = 5,
    /// It has let others run, and waits for its worker.
    GaveWay = 6,
    /// It is answered, and the reply is on its way.
    Answered = 7,
}

impl State {
    fn of(word: u64) -> State {
        use State::{Answered, GaveWay, Other, Page, Queued, Ready, Runs, Unknown};
        const ALL: [State; 8] = [Unknown, Queued, Runs, Page, Other, Ready, GaveWay, Answered];
        ALL[word as usize % ALL.len()]
    }
}

/// Words of a note, besides a part for each state: the part's number is the state's.
const STATE: usize = 0;
const SINCE: usize = 8;
const ARRIVED: usize = 9;
const SOCKET: usize = 10;
const SPUN: usize = 11;
const PAGES: usize = 12;
/// A note: two lines of the cache.
type Note = [AtomicU64; 16];

/// A spin: when it began, when it ended, and how long the worker had spun by then, in ns.
type Spin = [AtomicU64; 3];

/// Words of a record.
const WORDS: usize = 12;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Stamps {
    notes: OwnVec<Note>,
    /// [`SPINS`] for each worker.
    spins: OwnVec<Spin>,
    /// How many spins each worker has noted.
    spun: OwnVec<[AtomicU64; 16]>,
    records: OwnVec<[AtomicU64; WORDS]>,
    /// Records that were written.
    written: AtomicU64,
}

impl Stamps {
    /// For so many unithreads and workers, with room for so many records.
    pub(crate) fn new(unithreads: usize, workers: usize, records: usize) -> Result<Stamps, Error> {
        Ok(Stamps {
            notes: OwnVec::words(unithreads)?,
            spins: OwnVec::words(workers * SPINS)?,
            spun: OwnVec::words(workers)?,
            records: OwnVec::words(records)?,
            written: AtomicU64::new(0),
        })
    }

    /// A request has been taken that came at `arrived`; its unithread is about to be queued.
    pub(crate) fn begin(&self, index: u32, arrived: u64) {
        self.begin_at(index, arrived, now());
    }

    /// Unithread `index` is none that serves a request.
    pub(crate) fn forget(&self, index: u32) {
        self.notes[index as usize][STATE].store(State::Unknown as u64, Relaxed);
    }

    /// Unithread `index` waits, for a page or for something else; it is about to say so in its wait word.
    pub(crate) fn waits(&self, index: u32, page: bool) {
        self.go(index, if page { State::Page } else { State::Other });
    }

    /// What it has waited for is there.
    pub(crate) fn ready(&self, index: u32) {
        self.go(index, State::Ready);
    }

    /// It lets others run.
    pub(crate) fn gives_way(&self, index: u32) {
        self.go(index, State::GaveWay);
    }

    /// It runs, on `worker`.
    pub(crate) fn runs(&self, index: u32, worker: usize) {
        if self.state(index) != State::Unknown {
            self.runs_at(index, worker, now());
        }
    }

    /// It has waited in place, and goes on. `spun`: its worker was busy with that.
    pub(crate) fn goes_on(&self, index: u32, worker: usize, spun: bool) {
        if self.state(index) != State::Unknown {
            let now = now();
            if spun && self.state(index) == State::Page {
                self.note_spin(worker, self.notes[index as usize][SINCE].load(Relaxed), now);
            }
            self.go_at(index, State::Runs, now);
        }
    }

    /// It has made its reply.
    pub(crate) fn answers(&self, index: u32) {
        self.go(index, State::Answered);
    }

    /// Its reply is sent. It may be that of no request that is stamped.
    pub(crate) fn ends(&self, index: u32) {
        if self.state(index) != State::Unknown {
            self.end_at(index, now());
        }
    }

    fn state(&self, index: u32) -> State {
        State::of(self.notes[index as usize][STATE].load(Relaxed))
    }

    fn go(&self, index: u32, to: State) {
        if self.state(index) != State::Unknown {
            self.go_at(index, to, now());
        }
    }

    fn begin_at(&self, index: u32, arrived: u64, taken: u64) {
        let note = &self.notes[index as usize];
        note.iter().for_each(|word| word.store(0, Relaxed));
        let arrived = arrived.min(taken);
        note[ARRIVED].store(arrived, Relaxed);
        note[SOCKET].store(taken - arrived, Relaxed);
        note[SINCE].store(taken, Relaxed);
        note[STATE].store(State::Queued as u64, Relaxed);
    }

    fn runs_at(&self, index: u32, worker: usize, now: u64) {
        let note = &self.notes[index as usize];
        let waited_since = match self.state(index) {
            State::Queued => Some(note[ARRIVED].load(Relaxed)),
            State::Ready | State::GaveWay => Some(note[SINCE].load(Relaxed)),
            _ => None,
        };
        if let Some(since) = waited_since {
            add(&note[SPUN], self.spun_since(worker, since));
        }
        self.go_at(index, State::Runs, now);
    }

    /// Moves from its state to another one.
    fn go_at(&self, index: u32, to: State, now: u64) {
        let note = &self.notes[index as usize];
        let (from, since) = (self.state(index), note[SINCE].load(Relaxed));
        // The clock of one core is not behind another's; if it were, a part would be short, and none below 0.
        let now = now.max(since);
        add(&note[from as usize], now - since);
        note[SINCE].store(now, Relaxed);
        if to == State::Page {
            add(&note[PAGES], 1);
        }
        // A worker that sends the reply itself waits for that in between.
        let to = if from == State::Answered { from } else { to };
        note[STATE].store(to as u64, Relaxed);
    }

    fn end_at(&self, index: u32, now: u64) {
        self.go_at(index, State::Answered, now);
        let note = &self.notes[index as usize];
        let part = |state: State| note[state as usize].load(Relaxed);
        let (arrived, ended) = (note[ARRIVED].load(Relaxed), note[SINCE].load(Relaxed));
        let record = Record {
            arrived,
            total: ended - arrived,
            socket: note[SOCKET].load(Relaxed),
            queue: part(State::Queued),
            run: part(State::Runs),
            page: part(State::Page),
            other: part(State::Other),
            again: part(State::Ready),
            gave_way: part(State::GaveWay),
            reply: part(State::Answered),
            spun: note[SPUN].load(Relaxed),
            pages: note[PAGES].load(Relaxed),
        };
        self.forget(index);
        let place = self.written.fetch_add(1, Relaxed) as usize % self.records.len();
        self.records[place].iter().zip(record.words()).for_each(|(at, word)| at.store(word, Relaxed));
    }

    /// A worker has spun for a page.
    fn note_spin(&self, worker: usize, from: u64, to: u64) {
        let count = self.spun[worker][0].load(Relaxed);
        let before = if count == 0 { 0 } else { self.spin(worker, count - 1)[2].load(Relaxed) };
        let to = to.max(from);
        for (at, word) in self.spin(worker, count).iter().zip([from, to, before + (to - from)]) {
            at.store(word, Relaxed);
        }
        self.spun[worker][0].store(count + 1, Relaxed);
    }

    fn spin(&self, worker: usize, number: u64) -> &Spin {
        &self.spins[worker * SPINS + number as usize % SPINS]
    }

    /// How long a worker has spun for pages since then, in ns.
    fn spun_since(&self, worker: usize, since: u64) -> u64 {
        let count = self.spun[worker][0].load(Relaxed);
        let (mut low, mut high) = (count.saturating_sub(SPINS as u64), count);
        // The first spin that ended later.
        while low < high {
            let middle = low.midpoint(high);
            if self.spin(worker, middle)[1].load(Relaxed) > since {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        if low == count {
            return 0;
        }
        let [from, to, by_then] = self.spin(worker, low).each_ref().map(|word| word.load(Relaxed));
        let all = self.spin(worker, count - 1)[2].load(Relaxed);
        all - by_then + (to - from.max(since))
    }

    /// What was recorded so far: the last requests, in the order in which they ended.
    pub(crate) fn breakdown(&self) -> Breakdown {
        let written = self.written.load(Relaxed);
        let kept = written.min(self.records.len() as u64);
        let read = |number: u64| {
            let place = number as usize % self.records.len();
            Record::of_words(self.records[place].each_ref().map(|word| word.load(Relaxed)))
        };
        Breakdown { records: (written - kept..written).map(read).collect(), dropped: written - kept }
    }
}

/// By the one thread that may write it.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed) + more, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(records: usize) -> Stamps {
        Stamps::new(4, 2, records).unwrap()
    }

    fn only(stamps: &Stamps) -> Record {
        let breakdown = stamps.breakdown();
        assert_eq!((breakdown.records.len(), breakdown.dropped), (1, 0));
        breakdown.records[0]
    }

    #[test]
    fn the_parts_of_a_request_are_those_of_its_states() {
        let stamps = stamps(8);
        stamps.begin_at(3, 100, 110);
        stamps.runs_at(3, 0, 130);
        for (to, at) in [
            (State::Page, 160),
            (State::Ready, 200),
            (State::Runs, 250),
            (State::GaveWay, 260),
            (State::Runs, 320),
            (State::Other, 325),
            (State::Ready, 400),
            (State::Runs, 401),
            (State::Page, 403),
            (State::Runs, 410),
            (State::Answered, 412),
            // A worker that sends the reply itself spins for the end of that.
            (State::Other, 415),
            (State::Runs, 420),
        ] {
            stamps.go_at(3, to, at);
        }
        stamps.end_at(3, 440);
        let wanted = Record {
            arrived: 100,
            total: 340,
            socket: 10,
            queue: 20,
            run: 30 + 10 + 5 + 2 + 2,
            page: 40 + 7,
            other: 75,
            again: 50 + 1,
            gave_way: 60,
            reply: 28,
            spun: 0,
            pages: 2,
        };
        assert_eq!(only(&stamps), wanted);
        assert_eq!(wanted.parts().iter().sum::<u64>(), wanted.total);
    }

    #[test]
    fn parts_add_up_whatever_happens_and_whatever_the_clock_says() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let stamps = stamps(1000);
        for number in 0..1000 {
            let index = number % 4;
            let mut now = 1000 + random(1000);
            // Some arrive after they were taken, as clocks tell.
            stamps.begin_at(index, now + random(50), now + 25);
            for _ in 0..random(20) {
                // Some steps back.
                now = now + random(100) - 10;
                match random(6) {
                    0 => stamps.runs_at(index, random(2) as usize, now),
                    1 => stamps.note_spin(random(2) as usize, now, now + random(40)),
                    state => stamps.go_at(index, State::of(state + 1), now),
                }
            }
            stamps.go_at(index, State::Answered, now);
            stamps.end_at(index, now + random(9));
        }
        let breakdown = stamps.breakdown();
        assert_eq!(breakdown.records.len(), 1000);
        for record in breakdown.records {
            assert_eq!(record.parts().iter().sum::<u64>(), record.total, "{record:?}");
            assert!(record.total < 1 << 20, "{record:?}");
        }
    }

    #[test]
    fn what_others_spun_for_is_a_part_of_the_wait() {
        let stamps = stamps(8);
        stamps.begin_at(0, 100, 250);
        // Before it came; half of it; whole; on another worker.
        for (worker, from, to) in [(0, 10, 90), (0, 80, 120), (0, 200, 300), (1, 100, 300)] {
            stamps.note_spin(worker, from, to);
        }
        stamps.runs_at(0, 0, 310);
        // Its own spin, while it waits for its page, is no part of its queue.
        stamps.go_at(0, State::Page, 320);
        stamps.note_spin(0, 320, 400);
        stamps.go_at(0, State::Runs, 400);
        stamps.go_at(0, State::GaveWay, 410);
        stamps.note_spin(0, 420, 430);
        stamps.runs_at(0, 0, 440);
        stamps.end_at(0, 450);
        let record = only(&stamps);
        assert_eq!((record.spun, record.page), (20 + 100 + 10, 80));
        assert_eq!((record.socket, record.queue, record.gave_way), (150, 60, 30));
    }

    #[test]
    fn the_last_spins_and_the_last_records_are_kept() {
        let stamps = stamps(3);
        for number in 0..SPINS as u64 * 2 {
            stamps.note_spin(1, number * 10, number * 10 + 4);
        }
        assert_eq!(stamps.spun_since(1, SPINS as u64 * 20 - 20), 8);
        assert_eq!(stamps.spun_since(1, 0), SPINS as u64 * 4, "as far as it is remembered");
        assert_eq!((stamps.spun_since(1, u64::MAX), stamps.spun_since(0, 0)), (0, 0));
        for number in 1..=5 {
            stamps.begin_at(0, number, number);
            stamps.end_at(0, number * 2);
        }
        let Breakdown { records, dropped } = stamps.breakdown();
        assert_eq!((records.iter().map(|record| record.arrived).collect::<Vec<_>>(), dropped), (vec![3, 4, 5], 2));
        assert!(records.iter().all(|record| record.total == record.arrived && record.queue == record.total));
    }

    #[test]
    fn a_unithread_without_a_request_leaves_nothing() {
        let stamps = stamps(8);
        stamps.waits(1, true);
        stamps.ready(1);
        stamps.runs(1, 0);
        stamps.goes_on(1, 0, true);
        stamps.gives_way(1);
        stamps.answers(1);
        stamps.ends(1);
        stamps.begin(2, 5);
        stamps.forget(2);
        stamps.ends(2);
        assert_eq!(stamps.breakdown(), Breakdown::default());
        assert_eq!(stamps.spun_since(0, 0), 0);
    }

    #[test]
    fn the_real_clock_is_read_at_each_move() {
        let stamps = stamps(8);
        stamps.begin(0, now().saturating_sub(1000));
        stamps.runs(0, 0);
        stamps.waits(0, true);
        stamps.goes_on(0, 0, true);
        stamps.answers(0);
        stamps.ends(0);
        let record = only(&stamps);
        assert!(record.socket >= 1000 && record.pages == 1 && record.spun == 0, "{record:?}");
        assert_eq!(record.parts().iter().sum::<u64>(), record.total);
        assert_eq!(stamps.spun_since(0, 0), record.page, "a spin for a page is the worker's, too");
    }
}
