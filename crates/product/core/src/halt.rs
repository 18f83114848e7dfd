//! All threads of a process stand still while one of them changes what they run on: a dormant process wakes.
//!
//! ```text
//!  the one that halts                                    each other thread
//!  begin: DORMANT ─▶ HALTED, a new round                 interrupted by a signal, or at a watched call:
//!  tell each thread; look again when one arrives         stand: its seat says which round it stands in
//!  all stand ─▶ change what they run on                  sleeps while the state is that of the round
//!  end: another state, all wake                          goes on by the new state
//! ```
//!
//! The state and the number of the round are one word. So a thread that stands has stood in *this* round: a seat of a round that was
//! given up (a thread could not be stopped in time) does not count in the next one. The one that halts finds out by itself which
//! threads there are, and looks at the seat of each.

use crate::sync::{AtomicU32, Futex, Ordering};

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Its memory is managed.
    Awake,
    /// Nothing is managed yet.
    Dormant,
    /// One thread changes that, the others stand still.
    Halted,
    /// Nothing can be managed.
    Refused,
}

const KIND: u32 = 3;
const ROUND: u32 = KIND + 1;

impl State {
    const fn bits(self) -> u32 {
        match self {
            State::Awake => 0,
            State::Dormant => 1,
            State::Halted => 2,
            State::Refused => 3,
        }
    }

    const fn of(word: u32) -> State {
        match word & KIND {
            0 => State::Awake,
            1 => State::Dormant,
            2 => State::Halted,
            _ => State::Refused,
        }
    }
}

/// Where a thread says in which round it stands.
#[derive(Debug)]
pub struct Seat(AtomicU32);

impl Seat {
    /// The seat of a thread that has never stood.
    #[cfg(not(loom))]
    pub const fn new() -> Seat {
        Seat(AtomicU32::new(0))
    }

    /// The seat of a thread that has never stood.
    #[cfg(loom)]
    pub fn new() -> Seat {
        Seat(AtomicU32::new(0))
    }
}

impl Default for Seat {
    fn default() -> Seat {
        Seat::new()
    }
}

/// A round, for the thread that halts the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round(u32);

/// The process, as its threads see it.
#[derive(Debug)]
pub struct Halt {
    /// State and round.
    word: AtomicU32,
    /// Goes up when a thread arrives.
    arrivals: AtomicU32,
}

impl Halt {
    /// Of a process that is awake.
    #[cfg(not(loom))]
    pub const fn new() -> Halt {
        Halt { word: AtomicU32::new(0), arrivals: AtomicU32::new(0) }
    }

    /// Of a process that is awake.
    #[cfg(loom)]
    pub fn new() -> Halt {
        Halt { word: AtomicU32::new(0), arrivals: AtomicU32::new(0) }
    }

    /// The state now.
    pub fn state(&self) -> State {
        // Acquire: whoever sees the process awake sees what was changed before.
        State::of(self.word.load(Ordering::Acquire))
    }

    /// The process is dormant from now on. At its start.
    pub fn sleep(&self) {
        self.word.store(State::Dormant.bits(), Ordering::Release);
    }

    /// Begins a round, in a dormant process. `None`: it is not dormant, or another thread was faster.
    pub fn begin(&self) -> Option<Round> {
        let before = self.word.load(Ordering::Acquire);
        let halted = (before & !KIND).wrapping_add(ROUND) | State::Halted.bits();
        let begun = State::of(before) == State::Dormant
            && self.word.compare_exchange(before, halted, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        begun.then_some(Round(halted))
    }

    /// The calling thread stands still, in its seat, as long as the process is halted. Returns the state that it goes on by.
    pub fn stand(&self, seat: &Seat, futex: &impl Futex) -> State {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if State::of(word) != State::Halted {
                return State::of(word);
            }
            // Release: the one that halts sees all that this thread has done.
            seat.0.store(word, Ordering::Release);
            self.arrivals.fetch_add(1, Ordering::AcqRel);
            futex.wake_all(&self.arrivals);
            // A round may end and the next one begin while this thread wakes up: then the word has changed, and it arrives again.
            while self.word.load(Ordering::Acquire) == word {
                futex.wait(&self.word, word);
            }
        }
    }

    /// How many have arrived so far: to be read before the seats are looked at.
    pub fn arrivals(&self) -> u32 {
        self.arrivals.load(Ordering::Acquire)
    }

    /// Sleeps until one more has arrived than [`Halt::arrivals`] has told, for at most `timeout_ns` nanoseconds.
    pub fn await_arrival(&self, arrivals: u32, timeout_ns: u64, futex: &impl Futex) {
        futex.wait_for(&self.arrivals, arrivals, timeout_ns);
    }

    /// Whether the thread of `seat` stands still in this round.
    pub fn stands(&self, seat: &Seat, round: Round) -> bool {
        // Acquire: see `stand`.
        seat.0.load(Ordering::Acquire) == round.0
    }

    /// Ends the round; all go on by `state`, which is not [`State::Halted`].
    pub fn end(&self, round: Round, state: State, futex: &impl Futex) {
        debug_assert!(state != State::Halted);
        self.word.swap(round.0 & !KIND | state.bits(), Ordering::AcqRel);
        futex.wake_all(&self.word);
    }
}

impl Default for Halt {
    fn default() -> Halt {
        Halt::new()
    }
}
