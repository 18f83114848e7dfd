//! Connections that threads in a fault ask over, each by one thread at a time.
//!
//! Replies come in the order of the requests, so a connection that several threads used at once would need a line of them. A server does
//! one request at a time anyway. So a thread takes a *seat* for one request, and who finds none waits until one is left.
//!
//! A seat is a descriptor's number, which it has from the start and keeps, so that the program cannot close it or get it; and a
//! connection under that number, to any of the servers. A thread prefers a seat that leads where it wants to go, and else changes where one leads.
//!
//! A thread has a seat only while it waits for the kernel, with signals blocked, and until a time that it has set.

use crate::sleep;
use crate::socket::{NO_FD, close, nowhere, replace};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use farshore_core::sync::Futex;
use farshore_sys::cpu;
use farshore_sys::fd::Fd;
use farshore_sys::futex::{self, KernelFutex};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{DupFlags, Errno, dup3};
use rustix::net::{Shutdown, shutdown};
use std::mem::ManuallyDrop;

/// It leads nowhere.
const NOWHERE: u8 = u8::MAX;
/// How long a thread waits for a seat before it looks around, in ns.
const LOOK_NS: u64 = 100_000_000;

#[derive(Debug)]
struct Seat {
    taken: AtomicBool,
    /// Changed by whoever has the seat, and where threads are not.
    fd: AtomicI32,
    /// The server that it leads to; the same.
    node: AtomicU8,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Seats {
    all: Box<[Seat]>,
    /// Goes up when one is left.
    left: AtomicU32,
    /// Threads that wait for one.
    waiting: AtomicU32,
}

/// A seat that this thread has.
#[derive(Debug)]
pub(super) struct Taken<'s> {
    seats: &'s Seats,
    seat: &'s Seat,
}

impl Seats {
    /// So many, which lead nowhere yet.
    pub(super) fn new(count: usize) -> Result<Seats, Errno> {
        let seat = |_| Seat { taken: AtomicBool::new(false), fd: AtomicI32::new(NO_FD), node: AtomicU8::new(NOWHERE) };
        let seats = Seats { all: (0..count).map(seat).collect(), left: AtomicU32::new(0), waiting: AtomicU32::new(0) };
        seats.all.iter().try_for_each(|seat| nowhere().and_then(|fd| replace(&seat.fd, fd)))?;
        Ok(seats)
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.all.iter().map(|seat| seat.fd.load(Ordering::Acquire)).filter(|&fd| fd != NO_FD)
    }

    fn try_take(&self, node: u8) -> Option<Taken<'_>> {
        let (own, count) = (cpu::current(), self.all.len());
        let take = |wanted: &dyn Fn(u8) -> bool| {
            let mut all = (0..count).map(|n| &self.all[(own + n) % count]);
            all.find(|seat| {
                // Acquire: all that the thread before us has done with it.
                let may = !seat.taken.load(Ordering::Relaxed) && wanted(seat.node.load(Ordering::Relaxed));
                may && !seat.taken.swap(true, Ordering::Acquire)
            })
        };
        let seat = take(&|leads| leads == node).or_else(|| take(&|leads| leads == NOWHERE)).or_else(|| take(&|_| true))?;
        Some(Taken { seats: self, seat })
    }

    /// A seat, if possible one that leads to `node`. `None`: there was none until the clock said `until`.
    pub(super) fn take(&self, node: u8, until: u64) -> Option<Taken<'_>> {
        loop {
            if let Some(taken) = self.try_take(node) {
                return Some(taken);
            }
            let left = self.left.load(Ordering::SeqCst);
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // SeqCst: whoever leaves a seat after this look sees that we wait, or we see what it has counted.
            let taken = self.try_take(node);
            let now = sleep::now_ns();
            if taken.is_none() && now < until {
                KernelFutex.wait_for(&self.left, left, LOOK_NS.min(until - now));
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if taken.is_some() || now >= until {
                return taken;
            }
        }
    }

    /// In a forked child, which has one thread: the connections are the parent's. `shared`: the descriptors are too, and stay open. The numbers
    /// stay ours, with a socket that leads nowhere.
    pub(super) fn forked(&self, shared: bool) {
        let holds = if shared { None } else { nowhere().ok() };
        for seat in &self.all {
            let fd = seat.fd.load(Ordering::Relaxed);
            if fd != NO_FD {
                // SAFETY: this process' copy of the parent's descriptor, which no thread here uses.
                let mut own = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
                let kept = holds.as_ref().is_some_and(|holds| dup3(holds.as_fd(), &mut own, DupFlags::CLOEXEC).is_ok());
                if shared {
                    seat.fd.store(NO_FD, Ordering::Release);
                } else if !kept {
                    close(&seat.fd);
                }
            }
            seat.node.store(NOWHERE, Ordering::Relaxed);
            seat.taken.store(false, Ordering::Release);
        }
        self.waiting.store(0, Ordering::SeqCst);
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.all.iter().for_each(|seat| close(&seat.fd));
    }
}

impl Taken<'_> {
    /// The connection, if it leads to `node`.
    pub(super) fn leads_to(&self, node: u8) -> Option<BorrowedFd<'_>> {
        let fd = self.seat.fd.load(Ordering::Relaxed);
        // SAFETY: ours while we have the seat, and open.
        (self.seat.node.load(Ordering::Relaxed) == node && fd != NO_FD).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// From now on it leads to `node`, by this connection.
    pub(super) fn lead(&self, socket: Fd, node: u8) -> Result<(), Errno> {
        self.seat.node.store(NOWHERE, Ordering::Relaxed);
        replace(&self.seat.fd, socket)?;
        self.seat.node.store(node, Ordering::Relaxed);
        Ok(())
    }

    /// The connection is of no use any more.
    pub(super) fn lose(&self) {
        let node = self.seat.node.load(Ordering::Relaxed);
        if let Some(socket) = self.leads_to(node) {
            let _ = shutdown(socket, Shutdown::Both);
        }
        self.seat.node.store(NOWHERE, Ordering::Relaxed);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // Release: pairs with the taker's Acquire.
        self.seat.taken.store(false, Ordering::Release);
        self.seats.left.fetch_add(1, Ordering::SeqCst);
        if self.seats.waiting.load(Ordering::SeqCst) > 0 {
            futex::wake(&self.seats.left, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;

    const LONG: u64 = 20_000_000_000;

    fn connection() -> Fd {
        Fd::from(OwnedFd::from(UnixStream::pair().unwrap().0))
    }

    #[test]
    fn a_seat_that_leads_there_is_preferred() {
        let seats = Seats::new(3).unwrap();
        let before: Vec<RawFd> = seats.fds().collect();
        assert_eq!(before.len(), 3);
        for node in [5, 6] {
            let taken = seats.take(node, 0).unwrap();
            assert!(taken.leads_to(node).is_none());
            taken.lead(connection(), node).unwrap();
            assert!(taken.leads_to(node).is_some());
        }
        let [five, six] = [5, 6].map(|node| seats.take(node, 0).unwrap());
        assert!(five.leads_to(5).is_some() && six.leads_to(6).is_some());
        five.lose();
        assert!(five.leads_to(5).is_none());
        let third = seats.take(6, 0).unwrap();
        assert!(third.leads_to(6).is_none() && seats.take(6, 0).is_none());
        drop((five, six, third));
        assert_eq!(seats.fds().collect::<Vec<_>>(), before, "the numbers stay");
        seats.forked(false);
        assert_eq!(seats.fds().collect::<Vec<_>>(), before, "in a child, too");
        assert!(seats.take(6, 0).unwrap().leads_to(6).is_none());
    }

    #[test]
    fn many_threads_have_few_seats() {
        let seats = Seats::new(2).unwrap();
        let (now, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..500 {
                        let taken = seats.take((n % 3) as u8, sleep::now_ns() + LONG).expect("it is left soon");
                        assert!(now.fetch_add(1, Ordering::SeqCst) < 2, "a seat has two threads");
                        if n % 50 == 0 {
                            sleep::nap(100_000);
                        }
                        now.fetch_sub(1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(turns.load(Ordering::SeqCst), 4000);
    }
}
