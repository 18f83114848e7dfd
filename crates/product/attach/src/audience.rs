//! How the engine tells events: to every policy that wants them, and to nobody at the cost of one load.

use crate::rings::Teller;
use crate::{EVERYTHING, Event, Kind, Memory};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU32};
use farshore_core::sync::{AtomicU64, Ordering};

/// Policies at a time.
pub const SEATS: usize = 4;

/// What a policy is told by. Once made it stays, for the next policy on this seat: a thread that looked at it just before the seat
/// was left may still write.
#[derive(Debug)]
struct Stand {
    memory: Memory<'static>,
    teller: Teller,
    wake: fn(&AtomicU64),
}

#[derive(Debug)]
struct Seat {
    wanted: AtomicU32,
    stand: AtomicPtr<Stand>,
}

/// Who listens.
#[derive(Debug)]
pub struct Audience {
    /// What anybody wants: a bit for each [`Kind`].
    wanted: AtomicU32,
    seats: [Seat; SEATS],
}

impl Default for Audience {
    fn default() -> Audience {
        let seat = || Seat { wanted: AtomicU32::new(0), stand: AtomicPtr::new(core::ptr::null_mut()) };
        Audience { wanted: AtomicU32::new(0), seats: core::array::from_fn(|_| seat()) }
    }
}

impl Seat {
    fn stand(&self) -> Option<&'static Stand> {
        // SAFETY: null, or a box that `Audience::open` has leaked, and which nobody changes or frees. Acquire: pairs with the
        // release there.
        unsafe { self.stand.load(Ordering::Acquire).as_ref() }
    }
}

impl Audience {
    /// Whether somebody wants events of this kind.
    #[inline]
    pub fn wants(&self, kind: Kind) -> bool {
        self.wanted.load(Ordering::Relaxed) & kind.bit() != 0
    }

    /// Whether anybody wants anything.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Tells an event to all who want it.
    #[inline(never)]
    pub fn tell(&self, event: &Event) {
        for seat in &self.seats {
            if seat.wanted.load(Ordering::Relaxed) & event.kind.bit() != 0
                && let Some(stand) = seat.stand()
            {
                stand.teller.tell(&stand.memory, event, stand.wake);
            }
        }
    }

    /// Tells an event to one policy, whatever it wants. False: its ring is full.
    pub fn answer(&self, seat: usize, event: &Event) -> bool {
        self.seats[seat].stand().is_some_and(|stand| stand.teller.tell(&stand.memory, event, stand.wake))
    }

    /// A policy sits down. `memory` is that of this seat, the same each time, with the file of this attachment in it; `wake` wakes who
    /// sleeps on a word of it. Returns the position of its first event.
    pub fn open(&self, seat: usize, memory: Memory<'static>, wake: fn(&AtomicU64)) -> u64 {
        let seat = &self.seats[seat];
        let stand = seat.stand().unwrap_or_else(|| {
            let stand = Box::leak(Box::new(Stand { memory, teller: Teller::default(), wake }));
            seat.stand.store(stand, Ordering::Release);
            stand
        });
        stand.teller.next()
    }

    /// A policy on `seat` wants these events; 0 when it has left.
    pub fn want(&self, seat: usize, wanted: u32) {
        let wanted = wanted & EVERYTHING;
        if self.seats[seat].wanted.swap(wanted, Ordering::Relaxed) != wanted {
            // Each that changes its own computes all anew: the last has seen the changes before.
            let all = || self.seats.iter().fold(0, |all, seat| all | seat.wanted.load(Ordering::SeqCst));
            let mut now = all();
            while self.wanted.swap(now, Ordering::SeqCst) != now || all() != now {
                now = all();
            }
        }
    }

    /// Events that the policy on `seat`, and those before it, have lost.
    pub fn lost(&self, seat: usize) -> u64 {
        self.seats[seat].stand().map_or(0, |stand| stand.teller.lost())
    }
}
