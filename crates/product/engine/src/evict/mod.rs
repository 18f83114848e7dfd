//! The eviction path: frees frames, on threads of its own (MAGE §4.1).
//!
//! [`pipeline`] is one evictor, and `choose` which pages it takes. `Evictors` is what evictors share, and what other threads see of
//! them: each part states its protocol at the head of its module.
//!
//! | part | what it is |
//! |---|---|
//! | [`pace`] | which evictors are awake, and how hard evictors work; [`control`] decides it |
//! | [`partition`] | the lists that evictors take victims from |
//! | `hands` | from which end of a list |
//! | [`stage`] | the RAM in which victims wait |
//! | `loops` | which pages evictors leave alone because a program goes round |
//! | `refaults` | when pages left, for those that come back soon |
//! | `headroom` | when evictors make do with few stages and free frames |
//! | `obstacles` | why no page leaves |
mod choose;
pub mod control;
mod hands;
pub(crate) mod headroom;
pub(crate) mod loops;
mod obstacles;
pub mod pace;
pub mod partition;
pub mod pipeline;
pub(crate) mod refaults;
mod ring;
mod select;
pub mod stage;
mod writes;

use crate::Engine;
use core::sync::atomic::Ordering;
use farshore_core::seams::World;
use farshore_core::sync::plain::AtomicBool;
use farshore_core::wait::Event;
use hands::Hands;
use loops::Loops;
use obstacles::Obstacles;
use pace::Control;
use partition::Partitions;
use refaults::Refaults;
use stage::Stages;

/// What the evictors of one engine share.
#[derive(Debug)]
pub(crate) struct Evictors {
    pub(crate) pace: Control,
    pub(crate) lists: Partitions,
    hands: Hands,
    pub(crate) stages: Stages,
    pub(crate) loops: Loops,
    pub(crate) refaults: Refaults,
    pub(crate) obstacles: Obstacles,
    /// The watcher is to be woken when evictors begin, once.
    alarm: AtomicBool,
    /// Pages have left their stages. Signalled in experiments without rescues alone, where faults wait for that.
    pub(crate) written: Event,
}

impl Evictors {
    /// `lists`: how many, one for each core or evictor. `refaults`: for so many evictors.
    pub(crate) fn new(pace: Control, lists: usize, stages: Stages, refaults: Refaults) -> Evictors {
        Evictors {
            pace,
            lists: Partitions::new(lists),
            hands: Hands::default(),
            stages,
            loops: Loops::default(),
            refaults,
            obstacles: Obstacles::default(),
            alarm: AtomicBool::new(false),
            written: Event::new(),
        }
    }
}

impl<W: World> Engine<W> {
    /// The watcher is woken when evictors begin the next time.
    pub fn tell_when_short(&self) {
        self.evictors.alarm.store(true, Ordering::Release);
    }

    /// An evictor begins.
    fn note_begin(&self) {
        if self.evictors.alarm.load(Ordering::Relaxed) && self.evictors.alarm.swap(false, Ordering::AcqRel) {
            self.wake_watcher();
        }
    }
}
