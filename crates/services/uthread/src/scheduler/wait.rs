//! The wait of one unithread: armed, parked, completed, with the result, in one 64-bit word.
//!
//! ```text
//!            arm              park
//!  IDLE ───────────▶ ARMED ───────────▶ PARKED           63      32 31     2 1 0
//!   ▲  ▲               │ complete          │ complete    ┌─────────┬────────┬───┐
//!   │  └── arm ────────┼──────── DONE ◀────┘             │ result  │ number │ s │
//!   └ zeroed memory    └───────────▶ ▲                   └─────────┴────────┴───┘
//! ```
//!
//! - [`WaitWord::arm`] and [`WaitWord::park`] are the unithread's own, and run on its worker's thread. [`WaitWord::complete`] is anybody's, from any
//!   thread and from a signal handler: it is one compare-and-swap loop.
//! - Who moves the word from `PARKED` to `DONE` makes the unithread ready, and is the only one to do so: it cannot be in two lists. Moved from
//!   `ARMED`, the unithread has not left yet, and `park` tells it not to.
//! - A [`Token`] is good for one wait: its number is in the word. A token of a wait that is over changes nothing ([`Complete::Stale`]), until 2³⁰ waits
//!   of the same unithread later.
//! - `park` may say `PARKED` before the context is saved: a unithread is resumed by its own worker alone, whose thread is still busy with saving it.

use farshore_core::sync::{AtomicU64, Ordering};

const STATE: u64 = 3;
const IDLE: u64 = 0;
const ARMED: u64 = 1;
const PARKED: u64 = 2;
const DONE: u64 = 3;
const NUMBER_BITS: u32 = 30;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// The right to complete one wait of one unithread. May be sent anywhere; what was completed once, or is over, is not completed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(u64);

impl Token {
    /// The token of wait `number` of unithread `index`.
    fn new(index: u32, number: u64) -> Token {
        Token((u64::from(index) << NUMBER_BITS) | number)
    }

    /// As a number, never 0 and below 2⁶²: for `user_data` of a completion queue.
    pub fn into_raw(self) -> u64 {
        self.0 + 1
    }

    /// The inverse of [`Token::into_raw`]. `None` for a number that it never gives.
    pub fn from_raw(raw: u64) -> Option<Token> {
        raw.checked_sub(1).filter(|token| token >> (32 + NUMBER_BITS) == 0).map(Token)
    }

    /// The unithread's number in its pool.
    pub fn index(self) -> u32 {
        (self.0 >> NUMBER_BITS) as u32
    }

    fn number(self) -> u64 {
        self.0 & NUMBER
    }
}

/// What came of [`WaitWord::complete`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Complete {
    /// It was parked: the caller makes it ready.
    Resume,
    /// It had not left yet, and will not.
    Noted,
    /// That wait was over. Nothing was changed.
    Stale,
}

/// What came of [`WaitWord::park`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Park {
    /// The caller switches away now.
    Leave,
    /// Completed meanwhile, with this result.
    Stay(i32),
}

/// See the module's head. Zeroed memory is a valid word.
#[derive(Debug)]
pub struct WaitWord(AtomicU64);

impl Default for WaitWord {
    fn default() -> WaitWord {
        WaitWord(AtomicU64::new(IDLE))
    }
}

impl WaitWord {
    /// Begins the next wait of unithread `index`, whose word this is. A wait that was armed before and not waited for is over.
    pub fn arm(&self, index: u32) -> Token {
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(before & STATE != PARKED, "a parked unithread cannot arm");
        let number = ((before >> 2) + 1) & NUMBER;
        // A swap, not a store: a completer of the wait before, which is late, has either changed the word or fails now. Relaxed: the token reaches others by
        // some other way, which orders it.
        self.0.swap((number << 2) | ARMED, Ordering::Relaxed);
        Token::new(index, number)
    }

    /// The unithread is about to switch away.
    pub fn park(&self, token: Token) -> Park {
        let armed = (token.number() << 2) | ARMED;
        // Acquire at failure: what the completer did before is seen.
        match self.0.compare_exchange(armed, (token.number() << 2) | PARKED, Ordering::Release, Ordering::Acquire) {
            Ok(_) => Park::Leave,
            Err(done) => Park::Stay(result_of(done)),
        }
    }

    /// The result, once there is one: for a unithread that waits in place, and for one that was resumed.
    pub fn result(&self) -> Option<i32> {
        // Acquire: partner of the Release in `complete`.
        let word = self.0.load(Ordering::Acquire);
        (word & STATE == DONE).then(|| result_of(word))
    }

    /// Ends the wait of `token`.
    pub fn complete(&self, token: Token, result: i32) -> Complete {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let outcome = match word & STATE {
                _ if (word >> 2) & NUMBER != token.number() => return Complete::Stale,
                ARMED => Complete::Noted,
                PARKED => Complete::Resume,
                _ => return Complete::Stale,
            };
            let done = (u64::from(result as u32) << 32) | (token.number() << 2) | DONE;
            // Release: what was done before the completion is seen by the unithread.
            match self.0.compare_exchange_weak(word, done, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(now) => word = now,
            }
        }
    }
}

fn result_of(word: u64) -> i32 {
    debug_assert!(word & STATE == DONE, "no result in {word:#x}");
    (word >> 32) as u32 as i32
}
