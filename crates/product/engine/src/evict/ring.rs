//! The staging ring of one evictor: which of its stages come next, and which may be used again.
//!
//! ```text
//!   free ───▶│ tail … in use, oldest first … │◀─── free ── stray ── free
//!            └─────── the window ────────────┘
//! ```
//!
//! Stages are taken in order behind the window, so that a batch lies side by side in memory, and become free in order at the
//! window's tail. A stage whose write does not end (its device hangs) or has failed would hold up all that come after it. So it
//! is left behind as a *stray*, which the window steps over when it comes round.

use alloc::boxed::Box;
use alloc::vec::Vec;
use farshore_core::word::Stage;

/// What a stage of the ring is waiting for, as its evictor sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StageState {
    Free,
    Writing,
    /// No write in flight, and its slot has the bytes.
    Quiet,
    /// Its write failed.
    Failed,
}

/// The ring.
#[derive(Debug)]
pub(super) struct Ring {
    base: u32,
    /// Where the window begins.
    tail: u32,
    /// Stages of the window.
    used: u32,
    /// Stages outside the window that are not free.
    strays: u32,
    /// Stages that it has now; those beyond are free.
    len: u32,
    states: Box<[StageState]>,
}

impl Ring {
    /// A ring of `len` stages from `base` on.
    pub(super) fn new(base: u32, len: usize) -> Ring {
        Ring { base, tail: 0, used: 0, strays: 0, len: len as u32, states: alloc::vec![StageState::Free; len].into_boxed_slice() }
    }

    /// All stages, in the order of their memory.
    pub(super) fn stages(&self) -> impl Iterator<Item = Stage> + use<> {
        (self.base..self.base + self.len()).map(Stage)
    }

    /// Number of stages that it has now.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Whether the window does not go round the ring's end.
    pub(super) fn is_in_one_piece(&self) -> bool {
        self.tail + self.used <= self.len
    }

    /// It has the first `len` of its stages from now on. Fewer only while none is in use, and more while the window is in one piece.
    pub(super) fn resize(&mut self, len: u32) {
        let may = self.is_empty() || (len >= self.len && self.is_in_one_piece());
        assert!(may && len as usize <= self.states.len(), "resize to {len}: {} stages in use of {}", self.used, self.len);
        if self.used == 0 {
            self.tail = 0;
        }
        self.len = len;
    }

    fn at(&self, position: u32) -> Stage {
        Stage(self.base + position % self.len())
    }

    fn is_in_window(&self, stage: Stage) -> bool {
        (stage.0 - self.base + self.len() - self.tail) % self.len() < self.used
    }

    pub(super) fn state(&self, stage: Stage) -> StageState {
        self.states[(stage.0 - self.base) as usize]
    }

    /// Sets the state of a stage. Not for `Free`: see [`Ring::free`].
    pub(super) fn set(&mut self, stage: Stage, state: StageState) {
        debug_assert!(state != StageState::Free && self.state(stage) != StageState::Free, "{stage:?} is free");
        self.states[(stage.0 - self.base) as usize] = state;
    }

    /// The stage may be used again, once the window has passed it.
    pub(super) fn free(&mut self, stage: Stage) {
        debug_assert!(self.state(stage) != StageState::Free, "{stage:?} is free");
        self.states[(stage.0 - self.base) as usize] = StageState::Free;
        self.strays -= u32::from(!self.is_in_window(stage));
    }

    /// Number of stages that can be taken.
    pub(super) fn room(&self) -> usize {
        (self.len() - self.used - self.strays) as usize
    }

    /// Whether no stage is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0 && self.strays == 0
    }

    /// Whether any stage was left behind.
    pub(super) fn has_strays(&self) -> bool {
        self.strays > 0
    }

    /// Whether the stage was left behind.
    pub(super) fn is_stray(&self, stage: Stage) -> bool {
        self.state(stage) != StageState::Free && !self.is_in_window(stage)
    }

    /// The oldest stage of the window.
    pub(super) fn oldest(&self) -> Option<Stage> {
        (self.used > 0).then(|| self.at(self.tail))
    }

    /// Moves the window past its oldest stage, which is free, or becomes a stray.
    pub(super) fn pass_oldest(&mut self) {
        let stray = self.oldest().is_some_and(|stage| self.state(stage) != StageState::Free);
        self.strays += u32::from(stray);
        self.tail = (self.tail + 1) % self.len();
        self.used -= 1;
    }

    /// Writes the next `count` stages that can be taken into `places`; there must be [`Ring::room`].
    pub(super) fn next(&self, count: usize, places: &mut Vec<Stage>) {
        places.clear();
        let behind = (self.used..self.len()).map(|n| self.at(self.tail + n));
        places.extend(behind.filter(|&stage| self.state(stage) == StageState::Free).take(count));
    }

    /// Takes the first of `places` (as [`Ring::next`] gave them), each in a state.
    pub(super) fn take(&mut self, places: impl Iterator<Item = (Stage, StageState)>) {
        for (place, state) in places {
            while self.at(self.tail + self.used) != place {
                // The stage is a stray, which is in the window again.
                self.strays -= 1;
                self.used += 1;
            }
            self.used += 1;
            self.states[(place.0 - self.base) as usize] = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StageState::{Free, Quiet, Writing};
    use super::*;

    fn take(ring: &mut Ring, count: usize) -> Vec<u32> {
        let mut places = Vec::new();
        ring.next(count, &mut places);
        ring.take(places.iter().map(|&stage| (stage, Writing)));
        places.iter().map(|stage| stage.0).collect()
    }

    fn free_oldest(ring: &mut Ring) {
        let stage = ring.oldest().unwrap();
        ring.free(stage);
        ring.pass_oldest();
    }

    #[test]
    fn stages_come_round() {
        let mut ring = Ring::new(100, 6);
        assert_eq!(take(&mut ring, 4), [100, 101, 102, 103]);
        assert_eq!(ring.room(), 2);
        for _ in 0..3 {
            free_oldest(&mut ring);
        }
        assert_eq!(take(&mut ring, 5), [104, 105, 100, 101, 102]);
        assert_eq!((ring.room(), ring.oldest()), (0, Some(Stage(103))));
    }

    #[test]
    fn a_ring_becomes_smaller_when_it_is_empty_and_larger_in_one_piece() {
        let mut ring = Ring::new(10, 6);
        take(&mut ring, 4);
        (0..4).for_each(|_| free_oldest(&mut ring));
        ring.resize(2);
        assert_eq!((take(&mut ring, 2), ring.room(), ring.stages().count()), (alloc::vec![10, 11], 0, 2));
        free_oldest(&mut ring);
        assert_eq!(take(&mut ring, 1), [10]);
        assert!(!ring.is_in_one_piece(), "11, and 10 behind it");
        free_oldest(&mut ring);
        assert!(ring.is_in_one_piece());
        ring.resize(4);
        assert_eq!((take(&mut ring, 3), ring.room()), (alloc::vec![11, 12, 13], 0));
        // A stray stays where it is.
        ring.pass_oldest();
        (0..3).for_each(|_| free_oldest(&mut ring));
        ring.resize(6);
        assert!(ring.is_stray(Stage(10)) && !ring.is_empty());
        assert_eq!((ring.room(), take(&mut ring, 5)), (5, alloc::vec![11, 12, 13, 14, 15]));
    }

    #[test]
    #[should_panic(expected = "resize")]
    fn stages_in_use_are_not_given_up() {
        let mut ring = Ring::new(0, 6);
        take(&mut ring, 1);
        ring.resize(2);
    }

    #[test]
    fn what_hangs_is_stepped_over_until_it_ends() {
        let mut ring = Ring::new(0, 6);
        take(&mut ring, 4);
        free_oldest(&mut ring);
        ring.pass_oldest();
        assert!(ring.is_stray(Stage(1)) && ring.has_strays());
        free_oldest(&mut ring);
        assert_eq!(ring.room(), 4);
        assert_eq!(take(&mut ring, 4), [4, 5, 0, 2]);
        assert!(!ring.has_strays() && ring.room() == 0, "it is in the window again");
        // Its write ends while it is a stray: nothing to wait for when the tail comes to it.
        ring.set(Stage(1), Quiet);
        ring.free(Stage(1));
        for _ in 0..3 {
            free_oldest(&mut ring);
        }
        assert_eq!((ring.oldest(), ring.room()), (Some(Stage(0)), 3));
        free_oldest(&mut ring);
        assert_eq!(ring.state(ring.oldest().unwrap()), Free);
        ring.pass_oldest();
        assert_eq!((ring.oldest(), ring.room()), (Some(Stage(2)), 5));
        // A stage whose write ends outside the window.
        ring.pass_oldest();
        assert_eq!((ring.is_empty(), ring.room()), (false, 5));
        ring.free(Stage(2));
        assert!(ring.is_empty() && ring.room() == 6);
    }
}
