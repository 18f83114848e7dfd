//! Requests that complete many times (multishot): their completions queue up here until one unithread takes them.
//!
//! A token is good for one completion. So such a request has a feed in the ring instead, and the number of the feed in its `user_data`; the unithread
//! that reads the feed waits with a token as for anything else, and however many completions come meanwhile, one wakes it.

use crate::ground::error::Error;
use crate::ground::own::OwnVec;

/// In `user_data`: the rest is a feed's number. Tokens are below, the ring's own numbers have the bit above too.
const FEED: u64 = 1 << 62;

/// Feeds of one ring at a time.
const FEEDS_MAX: usize = 4096;

/// Whether a completion's `user_data` is one of a feed.
pub(crate) fn is_feed(user_data: u64) -> bool {
    user_data >> 62 == FEED >> 62
}

/// The `user_data` of requests of feed `number`.
pub(crate) fn user_data(number: u16) -> u64 {
    // No token has the raw form FEED + 1 or more.
    FEED + 1 + u64::from(number)
}

/// One completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

impl Arrival {
    /// The request goes on: more will come without another one.
    pub(crate) fn has_more(self) -> bool {
        io_uring::cqueue::more(self.flags)
    }

    /// The buffer that the kernel has taken for it.
    pub(crate) fn buffer(self) -> Option<u16> {
        io_uring::cqueue::buffer_select(self.flags)
    }
}

/// Completions that wait, oldest first, in a ring.
#[derive(Debug)]
pub(crate) struct Queue {
    at: OwnVec<Arrival>,
    first: usize,
    count: usize,
}

impl Queue {
    /// For at most `capacity` completions.
    pub(crate) fn new(capacity: usize) -> Result<Queue, Error> {
        let mut at = OwnVec::new(capacity)?;
        while at.push(Arrival { result: 0, flags: 0 }).is_ok() {}
        Ok(Queue { at, first: 0, count: 0 })
    }

    fn push(&mut self, arrival: Arrival) {
        let room = self.at.capacity();
        assert!(self.count < room, "more than {room} completions of one request wait");
        let place = (self.first + self.count) % room;
        self.at[place] = arrival;
        self.count += 1;
    }

    fn pop(&mut self) -> Option<Arrival> {
        let arrival = (self.count > 0).then(|| self.at[self.first])?;
        self.first = (self.first + 1) % self.at.capacity();
        self.count -= 1;
        Some(arrival)
    }
}

#[derive(Debug)]
struct Feed {
    arrived: Queue,
    /// The token of the waiter, in raw form; 0: there is none.
    waiter: u64,
}

/// The feeds of one ring, by their numbers.
#[derive(Debug)]
pub(crate) struct Feeds(OwnVec<Option<Feed>>);

impl Feeds {
    pub(crate) fn new() -> Result<Feeds, Error> {
        Ok(Feeds(OwnVec::new(FEEDS_MAX)?))
    }

    /// A new feed, whose completions queue up in `arrived`. That comes back if there are too many feeds.
    pub(crate) fn open(&mut self, arrived: Queue) -> Result<u16, Queue> {
        let number = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let feed = Some(Feed { arrived, waiter: 0 });
        if number < self.0.len() {
            self.0[number] = feed;
        } else if let Err(feed) = self.0.push(feed) {
            return Err(feed.expect("it was not taken").arrived);
        }
        Ok(number as u16)
    }

    /// The end of a feed, whose requests are all complete. What its completions were in, to be dropped where there is time.
    pub(crate) fn close(&mut self, number: u16) -> Queue {
        self.0[usize::from(number)].take().expect("an open feed").arrived
    }

    fn feed(&mut self, number: u16) -> &mut Feed {
        self.0[usize::from(number)].as_mut().expect("an open feed")
    }

    /// A completion has come. Returns the waiter's token, once.
    pub(crate) fn note(&mut self, user_data: u64, result: i32, flags: u32) -> Option<u64> {
        let feed = self.feed((user_data - FEED - 1) as u16);
        feed.arrived.push(Arrival { result, flags });
        Some(core::mem::take(&mut feed.waiter)).filter(|&waiter| waiter != 0)
    }

    /// The oldest completion that was not taken.
    pub(crate) fn take(&mut self, number: u16) -> Option<Arrival> {
        self.feed(number).arrived.pop()
    }

    /// The token that the next completion ends the wait of. False: there is one already, and nobody is put down.
    pub(crate) fn wait(&mut self, number: u16, token: u64) -> bool {
        let feed = self.feed(number);
        let none = feed.arrived.count == 0;
        feed.waiter = if none { token } else { 0 };
        none
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_queue_up_and_wake_once() {
        let mut feeds = Feeds::new().unwrap();
        let queue = || Queue::new(4).unwrap();
        let (a, b) = (feeds.open(queue()).unwrap(), feeds.open(queue()).unwrap());
        assert!(feeds.wait(b, 77));
        assert_eq!(feeds.note(user_data(a), 1, 0), None);
        assert_eq!(feeds.note(user_data(b), 2, 0), Some(77));
        assert_eq!(feeds.note(user_data(b), 3, 0), None);
        assert!(!feeds.wait(b, 78));
        let mut of_b = || feeds.take(b).map(|arrival| arrival.result);
        assert_eq!((of_b(), of_b(), of_b()), (Some(2), Some(3), None));
        drop(feeds.close(a));
        assert_eq!(feeds.open(queue()).unwrap(), a);
        assert_eq!(feeds.take(a), None);
    }

    #[test]
    fn numbers_of_feeds_are_nobody_elses() {
        use crate::scheduler::wait::Token;
        for number in [0, 1, u16::MAX] {
            assert!(is_feed(user_data(number)));
            assert_eq!(Token::from_raw(user_data(number)), None);
        }
        assert!(!is_feed(u64::MAX) && !is_feed(u64::MAX - 1) && !is_feed(u64::MAX >> 2));
    }
}
