//! Seconds, as memcached counts them: from a little before the server's start, so that 0 can mean never and 1 is long ago.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The second in which servers start.
pub const START: u32 = 4;
/// A time of more than this is no span but a date.
const SPAN_MAX: i32 = 60 * 60 * 24 * 30;
/// A time that has passed.
const PAST: u32 = 1;

/// The clock of a server.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// The Unix time of second 0.
    epoch: i64,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64);
        Clock { start: Instant::now(), epoch: unix - i64::from(START) }
    }

    /// The second that it is.
    pub fn now(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX).saturating_add(START)
    }

    /// The Unix time of that.
    pub fn unix(&self, second: u32) -> i64 {
        self.epoch + i64::from(second)
    }

    /// What a client's time means at second `now`: 0 is never, a negative one has passed, up to 30 days are a span, and what is more is a date.
    pub fn expires(&self, time: i32, now: u32) -> u32 {
        match time {
            0 => 0,
            ..0 => PAST,
            1..=SPAN_MAX => now.saturating_add(time as u32),
            _ => u32::try_from(i64::from(time) - self.epoch).unwrap_or(PAST).max(PAST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_clients_write_them() {
        let clock = Clock { start: Instant::now(), epoch: 1_700_000_000 };
        assert_eq!(clock.expires(0, 50), 0);
        assert_eq!(clock.expires(-1, 50), 1);
        assert_eq!(clock.expires(30, 50), 80);
        assert_eq!(clock.expires(SPAN_MAX, 50), 50 + SPAN_MAX as u32);
        assert_eq!(clock.expires(SPAN_MAX + 1, 50), 1);
        assert_eq!(clock.expires(1_700_000_100, 50), 100);
        assert_eq!(clock.unix(clock.now()), 1_700_000_000 + i64::from(clock.now()));
    }
}
