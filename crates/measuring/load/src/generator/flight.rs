//! Requests under way on one connection, by number.
//!
//! A ring of entries, the entry of request n at n modulo its length. It grows where an entry that is still waited for would be
//! overwritten. What was answered or given up stays until it is overwritten, so that an answer that comes late is told from
//! one that comes twice; of those that were overwritten it is known how many were given up and have not come yet.

use super::protocol::Request;

/// Entries at first.
const FIRST: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Empty,
    Waiting,
    Answered,
    Lost,
}

/// A request that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Its number on the connection, from 0.
    pub number: u64,
    /// When it was due, in ns since the start.
    pub due: u64,
    /// When it was sent.
    pub at: u64,
    /// What it asks for.
    pub request: Request,
}

/// What an answer is the answer to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// This request, which was waited for.
    Waiting(Sent),
    /// One that was given up.
    Late,
    /// One that was answered before.
    Duplicate,
    /// None that was sent.
    Unknown,
}

/// The requests.
#[derive(Clone, Debug)]
pub struct Flight {
    ring: Vec<(State, Sent)>,
    /// Length that it may grow to: a power of two.
    most: usize,
    /// Number of the next request.
    next: u64,
    /// Nothing before this is waited for.
    oldest: u64,
    /// Given up, overwritten, and not come.
    forgotten: u64,
}

impl Flight {
    /// None. `most` may be under way, or a few more.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let most = most.next_power_of_two();
        Flight { ring: vec![Default::default(); FIRST.min(most)], most, next: 0, oldest: 0, forgotten: 0 }
    }

    /// The number that the next one gets, if there is room for it.
    pub fn room(&mut self) -> Option<u64> {
        while self.ring[self.place(self.next)].0 == State::Waiting {
            if self.ring.len() >= self.most {
                return None;
            }
            self.grow();
        }
        Some(self.next)
    }

    /// The next one was sent; there is room for it.
    pub fn add(&mut self, due: u64, at: u64, request: Request) {
        let (number, place) = (self.next, self.place(self.next));
        self.forgotten += u64::from(self.ring[place].0 == State::Lost);
        self.ring[place] = (State::Waiting, Sent { number, due, at, request });
        self.next += 1;
    }

    /// The number below the next one that ends in these 16 bits.
    #[must_use]
    pub fn of_low_bits(&self, low: u16) -> u64 {
        let last = self.next.wrapping_sub(1);
        last.wrapping_sub(last.wrapping_sub(u64::from(low)) & 0xffff)
    }

    /// Whether this one is waited for.
    #[must_use]
    pub fn is_waiting(&self, number: u64) -> bool {
        let (state, sent) = &self.ring[self.place(number)];
        *state == State::Waiting && sent.number == number
    }

    /// The answer to this one came.
    pub fn answered(&mut self, number: u64) -> Match {
        if number >= self.next {
            return Match::Unknown;
        }
        let place = self.place(number);
        let (state, sent) = &mut self.ring[place];
        if sent.number != number || *state == State::Empty {
            let late = self.forgotten > 0;
            self.forgotten -= u64::from(late);
            return if late { Match::Late } else { Match::Duplicate };
        }
        match std::mem::replace(state, State::Answered) {
            State::Waiting => Match::Waiting(*sent),
            State::Lost => Match::Late,
            State::Answered | State::Empty => Match::Duplicate,
        }
    }

    /// The one that was sent first of those that are waited for.
    pub fn front(&mut self) -> Option<Sent> {
        while self.oldest < self.next {
            let (state, sent) = &self.ring[self.place(self.oldest)];
            if *state == State::Waiting && sent.number == self.oldest {
                return Some(*sent);
            }
            self.oldest += 1;
        }
        None
    }

    /// Gives up the first of those that are waited for, if it was sent before then.
    pub fn expire(&mut self, before: u64) -> Option<Sent> {
        let sent = self.front().filter(|sent| sent.at < before)?;
        let place = self.place(sent.number);
        self.ring[place].0 = State::Lost;
        Some(sent)
    }

    #[expect(clippy::cast_possible_truncation)] // Below the length.
    fn place(&self, number: u64) -> usize {
        (number & (self.ring.len() as u64 - 1)) as usize
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.ring);
        self.ring = vec![Default::default(); old.len() * 2];
        for entry in old {
            let place = self.place(entry.1.number);
            if entry.0 != State::Empty {
                self.ring[place] = entry;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(flight: &mut Flight, at: u64) -> u64 {
        let number = flight.room().unwrap_or_else(|| panic!("there is room"));
        flight.add(at, at, Request::default());
        number
    }

    fn waiting(answer: Match) -> bool {
        matches!(answer, Match::Waiting(_))
    }

    #[test]
    fn each_is_answered_once() {
        let mut flight = Flight::new(1 << 20);
        // Many more than at first, answered in another order.
        let numbers: Vec<u64> = (0..1000).map(|at| sent(&mut flight, at)).collect();
        for number in numbers.iter().rev() {
            assert!(flight.is_waiting(*number) && waiting(flight.answered(*number)));
            assert_eq!(flight.answered(*number), Match::Duplicate);
        }
        assert_eq!(flight.front(), None);
        assert_eq!(flight.answered(1000), Match::Unknown);
        // They are still known as answered, when they are not in the ring any more.
        (0..5000).for_each(|at| {
            let number = sent(&mut flight, at);
            assert!(waiting(flight.answered(number)));
        });
        assert_eq!(flight.answered(3), Match::Duplicate);
    }

    #[test]
    fn what_comes_late_is_late_once() {
        let mut flight = Flight::new(1 << 20);
        for at in 0..10 {
            sent(&mut flight, at);
        }
        assert!(waiting(flight.answered(1)));
        let lost: Vec<u64> = std::iter::from_fn(|| flight.expire(5)).map(|sent| sent.number).collect();
        assert_eq!(lost, [0, 2, 3, 4]);
        assert_eq!(
            (flight.answered(3), flight.answered(3), flight.answered(1)),
            (Match::Late, Match::Duplicate, Match::Duplicate)
        );
        assert!((5..10).all(|number| waiting(flight.answered(number))));
        for at in 0..2000 {
            let number = sent(&mut flight, at);
            flight.answered(number);
        }
        // Three were given up and have not come; which, is forgotten.
        let late = [0, 2, 4, 4].map(|number| flight.answered(number));
        assert_eq!(late, [Match::Late, Match::Late, Match::Late, Match::Duplicate]);
    }

    #[test]
    fn there_is_an_end_to_what_is_under_way() {
        let mut flight = Flight::new(300);
        for at in 0..512 {
            sent(&mut flight, at);
        }
        assert_eq!(flight.room(), None);
        assert!(waiting(flight.answered(7)));
        assert_eq!(flight.room(), None, "it is the place of the first that is needed");
        assert!(waiting(flight.answered(0)));
        assert_eq!(flight.room(), Some(512));
        assert_eq!(flight.front().map(|sent| sent.number), Some(1));
    }

    #[test]
    fn numbers_by_their_low_bits() {
        let mut flight = Flight::new(1 << 16);
        assert!(flight.of_low_bits(5) > u64::from(u32::MAX), "none was sent: {}", flight.of_low_bits(5));
        assert_eq!(flight.answered(flight.of_low_bits(5)), Match::Unknown);
        for at in 0..70_000 {
            let number = sent(&mut flight, at);
            assert_eq!(flight.of_low_bits(u16::try_from(number & 0xffff).unwrap_or(0)), number);
            flight.answered(number);
        }
        assert_eq!(flight.of_low_bits(0xffff), 0xffff);
        assert_eq!(flight.of_low_bits(5), 0x1_0005);
    }
}
