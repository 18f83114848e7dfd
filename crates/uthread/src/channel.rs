//! Bounded channels between unithreads, and between them and threads: first in, first out.
//!
//! The queue is behind a mutex, which a unithread has only while it [`crate::hold`]s: it is never switched away from with it. Who finds the queue
//! full or empty puts himself down as a waiter, gives the mutex back, and waits; who changes the queue wakes one waiter of the other side. A waiter
//! that was woken looks again, since another one may have been quicker.

use crate::api::{hold, wait_stoppable};
use crate::runtime::Shared;
use crate::wait::Token;
use crate::worker;
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
    Thread(Thread),
}

impl Waiter {
    /// Whether somebody was woken.
    fn wake(self) -> bool {
        match self {
            Waiter::Unithread(shared, token) => shared.complete(token, 0),
            Waiter::Thread(thread) => {
                thread.unpark();
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
                    if enter(Waiter::Thread(std::thread::current())) {
                        std::thread::park();
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
