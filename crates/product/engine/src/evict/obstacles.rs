//! Why no page leaves: there is no room for dirty ones, or evictors find nothing at all.
//!
//! Evictors set both flags and clear them; they are hints. A fault that has waited for a frame for a long time gives up only while
//! evictors are *starved*. An evictor that sees the space *full* takes clean pages only, except for a trial now and then. Both are
//! read often and written seldom: a flag that says already what it should is not written.

use core::sync::atomic::Ordering;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::AtomicBool;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Obstacles(Padded<Flags>);

#[derive(Debug, Default)]
struct Flags {
    space_full: AtomicBool,
    starved: AtomicBool,
}

fn clear(flag: &AtomicBool) {
    if flag.load(Ordering::Relaxed) {
        flag.store(false, Ordering::Relaxed);
    }
}

impl Obstacles {
    /// Whether writes fail because there is no room.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.0.space_full.load(Ordering::Relaxed)
    }

    /// There was no room for dirty pages.
    pub(super) fn note_full(&self) {
        self.0.space_full.store(true, Ordering::Relaxed);
    }

    /// There is room: a write has succeeded, or a space has come.
    #[inline]
    pub(crate) fn note_room(&self) {
        clear(&self.0.space_full);
    }

    /// Whether an evictor has found nothing to evict for whole rounds, and none has found something since.
    #[inline]
    pub(crate) fn is_starved(&self) -> bool {
        self.0.starved.load(Ordering::Relaxed)
    }

    /// An evictor has found nothing for whole rounds. `for_good`: no device hangs that may come back, so waiting does not help.
    pub(super) fn note_nothing(&self, for_good: bool) {
        self.0.starved.store(for_good, Ordering::Relaxed);
    }

    /// Pages have left.
    #[inline]
    pub(super) fn note_something(&self) {
        clear(&self.0.starved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_set_and_cleared_by_itself() {
        let obstacles = Obstacles::default();
        assert!(!obstacles.is_full() && !obstacles.is_starved());
        obstacles.note_full();
        obstacles.note_nothing(true);
        assert!(obstacles.is_full() && obstacles.is_starved());
        obstacles.note_room();
        assert!(!obstacles.is_full() && obstacles.is_starved());
        obstacles.note_nothing(false);
        assert!(!obstacles.is_starved(), "a device that hangs may come back");
        obstacles.note_nothing(true);
        obstacles.note_something();
        assert!(!obstacles.is_starved());
    }
}
