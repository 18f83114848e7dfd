//! Keeps threads out of a section for a while, and waits until all are out. A fork copies the process while no thread
//! owns a page.
//!
//! # Why no thread is inside when [`Gate::close`] returns
//!
//! A thread that enters counts itself first, then looks whether the gate is closed, and goes out again if so. The thread that
//! closes the gate closes it first, then looks at the counts. Both are SeqCst, so one of the two sees the other. There is one
//! count a core, so that entering writes no line that other cores write.

use crate::limits::FRAME_CACHES;
use crate::sync::{AtomicU32, Futex, Ordering, Padded, both_sides};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The gate of one section.
#[derive(Debug)]
pub struct Gate {
    closed: Padded<AtomicU32>,
    /// Goes up when a thread leaves while the gate is closed.
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

    /// Enters the section; sleeps while the gate is closed.
    #[inline]
    pub fn enter<F: Futex>(&self, futex: &F, core: usize) {
        while !self.try_enter(futex, core) {
            // We count ourselves again only once the gate is open: each count that goes wakes the thread that closes it.
            while self.is_closed() {
                futex.wait(&self.closed, 1);
            }
        }
    }

    /// Enters the section, unless the gate is closed.
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

    /// Whether the gate is closed now.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst) != 0
    }

    /// Leaves the section.
    #[inline]
    pub fn leave<F: Futex>(&self, futex: &F, core: usize) {
        self.count(core).fetch_sub(1, Ordering::SeqCst);
        both_sides();
        if self.closed.load(Ordering::SeqCst) != 0 {
            self.left.fetch_add(1, Ordering::SeqCst);
            futex.wake_all(&self.left);
        }
    }

    /// Closes the gate and sleeps until no thread is inside. One thread at a time, which must not be inside itself.
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

    /// Opens the gate again.
    pub fn open<F: Futex>(&self, futex: &F) {
        self.closed.swap(0, Ordering::SeqCst);
        futex.wake_all(&self.closed);
    }
}
