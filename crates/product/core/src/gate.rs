//! Keeps threads out of a section for a while, and waits until all are out: a fork copies the process when no page is in
//! anybody's hands.
//!
//! # Why nobody is inside when [`Gate::close`] returns
//!
//! Who enters first counts itself, then looks whether the gate is closed, and goes out again if so. Who closes first closes,
//! then looks at the counts. Both are SeqCst: one of the two sees the other. The counts are one a core, so that entering writes
//! no line that others write.

use crate::limits::FRAME_CACHES;
use crate::sync::{AtomicU32, Futex, Ordering, Padded, both_sides};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The gate of one section.
#[derive(Debug)]
pub struct Gate {
    closed: Padded<AtomicU32>,
    /// Goes up when a thread leaves while it is closed.
    left: Padded<AtomicU32>,
    inside: Box<[Padded<AtomicU32>]>,
}

impl Gate {
    /// An open gate, with `cores` counts.
    pub fn new(cores: usize) -> Gate {
        let count = || Padded(AtomicU32::new(0));
        Gate {
            closed: count(),
            left: count(),
            inside: (0..cores.clamp(1, FRAME_CACHES)).map(|_| count()).collect::<Vec<_>>().into(),
        }
    }

    fn count(&self, core: usize) -> &AtomicU32 {
        &self.inside[core % self.inside.len()]
    }

    /// Goes in; sleeps while the gate is closed.
    #[inline]
    pub fn enter<F: Futex>(&self, futex: &F, core: usize) {
        while !self.try_enter(futex, core) {
            // Not counted again before it is open: each count that goes wakes who closes.
            while self.is_closed() {
                futex.wait(&self.closed, 1);
            }
        }
    }

    /// Goes in, unless the gate is closed.
    #[must_use]
    pub fn try_enter<F: Futex>(&self, futex: &F, core: usize) -> bool {
        self.count(core).fetch_add(1, Ordering::SeqCst);
        both_sides();
        let open = !self.is_closed();
        if !open {
            self.leave(futex, core);
        }
        open
    }

    /// Whether it is closed now.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) != 0
    }

    /// Goes out.
    #[inline]
    pub fn leave<F: Futex>(&self, futex: &F, core: usize) {
        self.count(core).fetch_sub(1, Ordering::SeqCst);
        both_sides();
        if self.closed.load(Ordering::SeqCst) != 0 {
            self.left.fetch_add(1, Ordering::SeqCst);
            futex.wake_all(&self.left);
        }
    }

    /// Closes the gate and sleeps until nobody is inside. By one thread at a time, which is not inside.
    pub fn close<F: Futex>(&self, futex: &F) {
        self.closed.swap(1, Ordering::SeqCst);
        both_sides();
        loop {
            let left = self.left.load(Ordering::SeqCst);
            if self.inside.iter().all(|count| count.load(Ordering::SeqCst) == 0) {
                return;
            }
            futex.wait(&self.left, left);
        }
    }

    /// Opens it again.
    pub fn open<F: Futex>(&self, futex: &F) {
        self.closed.swap(0, Ordering::SeqCst);
        futex.wake_all(&self.closed);
    }
}
