//! What a thread's record keeps for the program's signals: data alone. What is done with it is in the layer `signals`.

use crate::ground::kept::Pages;
use core::cell::Cell;
use farshore_net::calls::NEEDED_SIGNALS;
use farshore_sys::signal::{Action, SIGBUS, SIGSEGV, SIGSYS, SigInfo, SigSet};

/// The signals that Farshore needs.
pub const OURS: SigSet = SigSet(NEEDED_SIGNALS);

/// Which of [`OURS`].
pub fn place(signal: u32) -> Option<usize> {
    match signal {
        SIGBUS => Some(0),
        SIGSEGV => Some(1),
        SIGSYS => Some(2),
        _ => None,
    }
}

/// Signals of ours that wait, one of each kind.
#[derive(Debug)]
pub struct Waiting([Cell<Option<SigInfo>>; 3]);

impl Waiting {
    /// None.
    pub const fn new() -> Waiting {
        Waiting([const { Cell::new(None) }; 3])
    }

    pub fn set(&self) -> SigSet {
        self.0.iter().filter_map(Cell::get).fold(SigSet::EMPTY, |set, info| set.with(info.signal() as u32))
    }

    /// Takes one of those that are wanted, that with the lowest number. With all signals blocked, as for all that changes it.
    pub fn take(&self, wanted: SigSet) -> Option<SigInfo> {
        self.0.iter().find(|w| w.get().is_some_and(|info| wanted.contains(info.signal() as u32)))?.take()
    }

    pub fn put(&self, info: &SigInfo) {
        if let Some(place) = place(info.signal() as u32) {
            let waits = &self.0[place];
            waits.set(waits.get().or(Some(*info)));
        }
    }

    pub fn clear(&self) {
        self.0.iter().for_each(|waits| waits.set(None));
    }
}

/// A call that has a mask for its time is under way.
#[derive(Clone, Copy, Debug)]
pub struct Suspended {
    /// What the program thinks blocked before and after.
    pub saved: SigSet,
    /// What it wants blocked meanwhile.
    pub during: SigSet,
}

/// A signal for the program that has come in the middle of a call.
#[derive(Clone, Copy, Debug)]
pub struct Deferred {
    pub signal: u32,
    pub action: Action,
    pub info: SigInfo,
    /// What the program had blocked before the call, and in it.
    pub masks: Suspended,
}

impl Deferred {
    /// The same, with another pretended mask of the code that it interrupts.
    pub fn going_back_to(self, pretended: SigSet) -> Deferred {
        let with = |mask: SigSet| SigSet(mask.0 & !OURS.0 | pretended.0);
        let Suspended { saved, during } = self.masks;
        Deferred { masks: Suspended { saved: with(saved), during: with(during) }, ..self }
    }
}

/// A thread makes a call at its place.
#[derive(Debug)]
pub struct Step {
    pub saved: SigSet,
    pub trapped_itself: bool,
    pub pages: Option<Pages>,
}
