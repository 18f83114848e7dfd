//! Bounded channels between unithreads, and between them and threads: first in, first out.
//!
//! The queue is behind a mutex, which a unithread has only while it [`crate::hold`]s: it is never switched away from with it. Who finds the queue
//! full or empty puts itself down as a waiter, gives the mutex back, and waits; the one that changes the queue wakes one waiter of the other side. A waiter
//! that was woken looks again, since another one may have been quicker.
//!
//! Whoever waits is on the list once, and comes back when he was taken off it, not before: on the list twice he would take two wakes, of which the second is
//! another waiter's. A unithread's token sees to that. A thread's `park` returns for other reasons too (an `unpark` of somebody else's that was left over), so a
//! thread has a word besides, and parks until that says so.

use crate::scheduler::api::wait_stoppable;
use crate::scheduler::hold::hold;
use crate::scheduler::shared::Shared;
use crate::scheduler::wait::Token;
use crate::scheduler::worker;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

/// Why nothing was sent; the message comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError<T> {
    /// All receivers are gone.
    Closed(T),
    /// The runtime is being shut down.
    Stopped(T),
}

/// Why nothing was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvError {
    /// The queue is empty, and all senders are gone.
    Closed,
    /// The queue is empty, and the runtime is being shut down.
    Stopped,
}

enum Waiter {
    Unithread(Arc<Shared>, Token),
    Thread(Arc<Parked>),
}

/// A thread that waits.
struct Parked {
    thread: Thread,
    /// It was taken off the list.
    woken: AtomicBool,
}

impl Parked {
    fn this() -> Arc<Parked> {
        Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(false) })
    }

    fn wake(&self) {
        // Release: the list that it was taken off; partner: `wait`.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }

    fn wait(&self) {
        while !self.woken.load(Ordering::Acquire) {
            std::thread::park();
        }
    }
}

impl Waiter {
    /// Whether somebody was woken.
    fn wake(self) -> bool {
        match self {
            Waiter::Unithread(shared, token) => shared.complete(token, 0),
            Waiter::Thread(parked) => {
                parked.wake();
                true
            }
        }
    }
}

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    receivers: usize,
    full: VecDeque<Waiter>,
    empty: VecDeque<Waiter>,
}

struct Channel<T> {
    state: Mutex<State<T>>,
    capacity: usize,
}

/// Which waiters.
#[derive(Clone, Copy)]
enum Side {
    Full,
    Empty,
}

impl<T> State<T> {
    fn waiters(&mut self, side: Side) -> &mut VecDeque<Waiter> {
        match side {
            Side::Full => &mut self.full,
            Side::Empty => &mut self.empty,
        }
    }

    fn wake_one(&mut self, side: Side) {
        while let Some(waiter) = self.waiters(side).pop_front() {
            if waiter.wake() {
                return;
            }
        }
    }

    fn wake_all(&mut self, side: Side) {
        for waiter in self.waiters(side).drain(..) {
            // One that has gone on by itself needs none.
            let _ = waiter.wake();
        }
    }
}

impl<T> Channel<T> {
    /// Changes the state. Nothing of the program's runs in `change`.
    fn with<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        // The hold goes last.
        let _hold = hold();
        let mut state: MutexGuard<'_, _> = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state)
    }

    /// Waits until `step` gives something, which it is asked for under the lock. `None`: the runtime is being shut down.
    fn wait<R>(&self, side: Side, mut step: impl FnMut(&mut State<T>) -> Option<R>) -> Option<R> {
        loop {
            if let Some(done) = self.with(&mut step) {
                return Some(done);
            }
            let mut done = None;
            // Looked at again together with the entry, so that no wake is lost in between.
            let mut enter = |waiter: Waiter| {
                self.with(|state| {
                    done = step(state);
                    if done.is_none() {
                        state.waiters(side).push_back(waiter);
                    }
                    done.is_none()
                })
            };
            match worker::inside() {
                Some((worker, index)) => {
                    let shared = &worker.shared;
                    let waited = wait_stoppable(worker, index, |token| {
                        if !enter(Waiter::Unithread(shared.clone(), token)) {
                            shared.complete(token, 0);
                        }
                    });
                    if waited.is_err() && done.is_none() {
                        return None;
                    }
                }
                None => {
                    let parked = Parked::this();
                    if enter(Waiter::Thread(parked.clone())) {
                        parked.wait();
                    }
                }
            }
            if done.is_some() {
                return done;
            }
        }
    }
}

/// The sending end. Clones send to the same channel.
pub struct Sender<T>(Arc<Channel<T>>);
/// The receiving end. Clones receive from the same channel, each message once.
pub struct Receiver<T>(Arc<Channel<T>>);

/// A channel that keeps at most `capacity` messages, at least 1. Their room is allocated here.
pub fn bounded<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel keeps at least one message");
    let (full, empty) = (VecDeque::with_capacity(16), VecDeque::with_capacity(16));
    let state = State { queue: VecDeque::with_capacity(capacity), senders: 1, receivers: 1, full, empty };
    let channel = Arc::new(Channel { state: Mutex::new(state), capacity });
    (Sender(channel.clone()), Receiver(channel))
}

impl<T: Send> Sender<T> {
    /// Sends, and waits for room before.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut message = Some(message);
        let sent = self.0.wait(Side::Full, |state| {
            if state.receivers == 0 {
                return Some(false);
            }
            if state.queue.len() == self.0.capacity {
                return None;
            }
            state.queue.extend(message.take());
            state.wake_one(Side::Empty);
            Some(true)
        });
        match (sent, message) {
            (Some(false), Some(message)) => Err(SendError::Closed(message)),
            (None, Some(message)) => Err(SendError::Stopped(message)),
            _ => Ok(()),
        }
    }
}

impl<T: Send> Receiver<T> {
    /// Receives, and waits for a message before.
    pub fn recv(&self) -> Result<T, RecvError> {
        let received = self.0.wait(Side::Empty, |state| match state.queue.pop_front() {
            Some(message) => {
                state.wake_one(Side::Full);
                Some(Ok(message))
            }
            None => (state.senders == 0).then_some(Err(RecvError::Closed)),
        });
        received.unwrap_or(Err(RecvError::Stopped))
    }

    /// Receives what is there.
    pub fn try_recv(&self) -> Option<T> {
        self.0.with(|state| {
            let message = state.queue.pop_front()?;
            state.wake_one(Side::Full);
            Some(message)
        })
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.with(|state| state.senders += 1);
        Sender(self.0.clone())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.0.with(|state| state.receivers += 1);
        Receiver(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.senders -= 1;
            if state.senders == 0 {
                state.wake_all(Side::Empty);
            }
        });
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.receivers -= 1;
            if state.receivers == 0 {
                state.wake_all(Side::Full);
            }
        });
    }
}

impl<T> core::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.0.capacity).finish_non_exhaustive()
    }
}

impl<T> core::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Receiver").field("capacity", &self.0.capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// Until so many wait for a message.
    fn until_waiting(channel: &Channel<u32>, count: usize) {
        while channel.with(|state| state.empty.len()) < count {
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_that_was_unparked_for_nothing_is_on_the_list_once() {
        let (sender, receiver) = bounded(8);
        let (tell, hear) = mpsc::channel();
        let receive = |unparked: bool| {
            let (receiver, tell) = (receiver.clone(), tell.clone());
            thread::spawn(move || {
                if unparked {
                    // Left over by something else that this thread once waited for.
                    thread::current().unpark();
                }
                let received = receiver.recv();
                tell.send(received).unwrap();
            })
        };
        let first = receive(true);
        until_waiting(&receiver.0, 1);
        // Time for the token to be used up; what is asserted does not depend on it.
        thread::sleep(Duration::from_millis(50));
        let second = receive(false);
        until_waiting(&receiver.0, 2);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(receiver.0.with(|state| state.empty.len()), 2, "two wait");
        // One of two messages is left to whom it wakes: both are received.
        for message in [1, 2] {
            sender.send(message).unwrap();
        }
        let mut came: Vec<_> = (0..2).map(|_| hear.recv_timeout(Duration::from_secs(20)).expect("a wake is lost")).collect();
        came.sort_by_key(|message| message.unwrap());
        assert_eq!(came, [Ok(1), Ok(2)]);
        first.join().unwrap();
        second.join().unwrap();
    }
}
