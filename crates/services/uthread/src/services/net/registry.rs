//! The sockets of a service that its end has to wake.
//!
//! Who waits to accept or to read waits in the ring of some worker. `shutdown(SHUT_RD)` wakes it there from any thread: an accept fails, a read says
//! that no more comes. A descriptor is in here from before its first wait until before it is closed, so none is woken that is somebody else's by then.

use crate::scheduler::hold::hold;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<Sockets>);

#[derive(Debug, Default)]
struct Sockets {
    /// -1: free, and its number is in `free`.
    at: Vec<RawFd>,
    free: Vec<usize>,
    shut: bool,
}

impl Registry {
    fn with<R>(&self, work: impl FnOnce(&mut Sockets) -> R) -> R {
        // The hold goes last: nobody is switched away from with the lock.
        let _hold = hold();
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a socket in, and returns its number. `None`: all were shut, and so is what comes later.
    pub(super) fn enter(&self, socket: &impl AsFd) -> Option<usize> {
        let fd = socket.as_fd().as_raw_fd();
        self.with(|sockets| {
            if sockets.shut {
                return None;
            }
            let number = sockets.free.pop().unwrap_or_else(|| {
                sockets.at.push(-1);
                sockets.at.len() - 1
            });
            sockets.at[number] = fd;
            Some(number)
        })
    }

    /// Takes it out again. It may be closed then.
    pub(super) fn leave(&self, number: usize) {
        self.with(|sockets| {
            sockets.at[number] = -1;
            sockets.free.push(number);
        });
    }

    /// Wakes all that wait to accept or read, now and later.
    pub(super) fn shut_all(&self) {
        self.with(|sockets| {
            sockets.shut = true;
            for &fd in sockets.at.iter().filter(|&&fd| fd != -1) {
                // SAFETY: no memory. It is open, since it leaves before it is closed; a peer that is gone (ENOTCONN) has woken it already.
                unsafe { libc::shutdown(fd, libc::SHUT_RD) };
            }
        });
    }
}
