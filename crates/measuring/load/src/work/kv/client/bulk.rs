//! All keys, one after the other, as fast as the server answers: with so many requests under way that it is never idle,
//! and not so many that it has to keep them anywhere.

use std::time::Instant;

use super::connection::Connection;
use super::{Poller, READ, Shared, Wrongs};

/// Requests under way on a connection.
const WINDOW: usize = 64;
/// Bytes of values under way on a connection.
const WINDOW_BYTES: usize = 1 << 20;

/// What is done to each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// SET. The first answer that is wrong ends it.
    Fill,
    /// GET and check.
    ReadBack,
}

/// One thread's part: all keys of its connections, of which the first has the number `first` of all `count`.
///
/// # Errors
/// If a connection breaks, the server is silent for longer than the patience, or a SET was refused.
pub fn pass(shared: &Shared, pass: Pass, connections: &mut [Connection], first: usize, count: usize) -> Result<Wrongs, String> {
    let mut poller = Poller::new().map_err(|error| format!("epoll: {error}"))?;
    let window = WINDOW.min((WINDOW_BYTES / shared.values.size).max(1));
    let mut lanes = Vec::with_capacity(connections.len());
    for (number, connection) in connections.iter_mut().enumerate() {
        poller.add(&*connection, number, false).map_err(|error| format!("epoll: {error}"))?;
        let keys = (first + number..shared.versions.keys()).step_by(count);
        lanes.push(Lane { connection, keys, writing: false });
    }
    let (mut space, mut scratch, mut wrong) = (vec![0; READ], Vec::new(), Wrongs::default());
    let mut ready: Vec<usize> = (0..lanes.len()).collect();
    let mut left = lanes.len();
    let mut heard = Instant::now();
    while left > 0 {
        for number in ready.drain(..) {
            let lane = &mut lanes[number];
            lane.connection.receive(shared, &mut space, |pending, answer| {
                shared.check(&pending, &answer, &mut scratch, &mut wrong);
                heard = Instant::now();
            })?;
            lane.send(shared, pass, window)?;
            left -= usize::from(lane.finished(&poller, number)?);
        }
        if pass == Pass::Fill && !wrong.is_empty() {
            return Err(format!(
                "{}: does the server have memory for {} keys?",
                wrong.lines("fill").join("; "),
                shared.versions.keys()
            ));
        }
        let rest = shared.patience.checked_sub(heard.elapsed());
        let rest = rest.ok_or_else(|| format!("the server has answered nothing for {:?}", shared.patience))?;
        if left > 0 {
            poller.wait(rest, |number| ready.push(number)).map_err(|error| format!("epoll: {error}"))?;
        }
    }
    Ok(wrong)
}

/// A connection and the keys that it has left.
struct Lane<'a> {
    connection: &'a mut Connection,
    keys: std::iter::StepBy<std::ops::Range<usize>>,
    /// Whether the poller says when the socket takes more.
    writing: bool,
}

impl Lane<'_> {
    /// Sends as many requests as may be under way.
    fn send(&mut self, shared: &Shared, pass: Pass, window: usize) -> Result<(), String> {
        while self.connection.pending() < window {
            let Some(key) = self.keys.next() else { break };
            match pass {
                Pass::Fill => self.connection.set(shared, key as u64, 0),
                Pass::ReadBack => self.connection.get(shared, key as u64, 0),
            }
        }
        self.connection.flush()
    }

    /// Tells the poller what is waited for; whether nothing is.
    fn finished(&mut self, poller: &Poller, number: usize) -> Result<bool, String> {
        let finished = self.keys.len() == 0 && self.connection.pending() == 0;
        let writing = self.connection.unsent() > 0;
        let told = if finished {
            poller.remove(&*self.connection)
        } else if writing != self.writing {
            self.writing = writing;
            poller.change(&*self.connection, number, writing)
        } else {
            Ok(())
        };
        told.map_err(|error| format!("epoll: {error}"))?;
        Ok(finished)
    }
}
