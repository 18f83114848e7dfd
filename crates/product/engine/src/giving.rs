//! Gives room on the disk back when it is no longer needed: room of slots that were freed, whole extents at a time.
//!
//! The drainer's thread does this while no space is drained: it may wait for a disk. It takes an extent out of circulation first
//! ([`SlotMap::take_out`](farshore_core::slots::SlotMap::take_out)), so that no page is given a slot there before the disk has
//! answered.
//!
//! # Not more often than useful
//!
//! Room that is given back and used again costs the disk twice. So
//!
//! * the thread begins only when twice the extents that the map needs for its slots (and [`Giving::keep`]) have room; then it
//!   goes on until only the needed ones are left, or none is idle;
//! * an extent must have been idle at two looks, and unused between them, [`Giving::pause_ns`] apart;
//! * slots are given out of extents that have room first.
//!
//! A backend that is still writing to an extent by itself (a pool's copy of a page that was freed meanwhile) says so, and the
//! extent's turn comes with a later look. On a device, the extent might belong to another process by the time that write lands.
//!
//! # Sleep
//!
//! After a look that leaves nothing for later, the thread sleeps until another thread says that slots may have come free
//! ([`Engine::wake_giver`]): memory calls, the watcher of transfers (faults that free slots make some), the end of a forked
//! child. A message that is lost costs a look, so messages are hints.
//!
//! A fork waits for the extent that is being given back, as for a fault: the thread is inside the gate.

use crate::Engine;
use crate::drain::Host;
use crate::health::Usage;
use crate::stats::Count;
use core::sync::atomic::Ordering;
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{Clock, Kernel, LATER, Spaces, World};
use farshore_core::slots::Idle;
use farshore_core::slots::arrangement::SpaceSet;
use farshore_core::sync::plain::{AtomicBool, AtomicU32, AtomicU64};

/// Extents that are always kept: 64 MiB.
pub const KEEP: u32 = 32;
/// The pause between two looks.
pub const PAUSE_NS: u64 = 2_000_000_000;
const EXTENT_BYTES: u64 = (EXTENT_SLOTS * PAGE_SIZE) as u64;

/// How room is given back.
#[derive(Debug)]
pub(crate) struct Giving {
    on: AtomicBool,
    keep: AtomicU32,
    pause_ns: AtomicU64,
    /// The thread sleeps until another thread says that slots have come free.
    asleep: AtomicBool,
}

impl Default for Giving {
    /// Gives nothing back, until [`Engine::give_room_back_from`].
    fn default() -> Giving {
        Giving {
            on: AtomicBool::new(false),
            keep: AtomicU32::new(KEEP),
            pause_ns: AtomicU64::new(PAUSE_NS),
            asleep: AtomicBool::new(false),
        }
    }
}

impl Giving {
    /// Extents that are kept beside those that are needed.
    fn keep(&self) -> u32 {
        self.keep.load(Ordering::Relaxed)
    }
}

/// What the thread remembers from look to look.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    next_ns: u64,
    /// There was too much room, and there is still something to be done about it.
    begun: bool,
    /// Spaces that have said that they cannot give room back.
    cannot: SpaceSet,
}

/// The outcome of giving an extent back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Given {
    Yes,
    No,
    /// The backend is writing there by itself.
    Later,
}

impl Looks {
    /// Another space may have the number.
    pub(crate) fn forget(&mut self, space: usize) {
        self.cannot = self.cannot.without(space);
    }
}

impl<W: World> Engine<W> {
    /// Room is given back from now on: with `keep` extents to spare ([`KEEP`]), after `pause_ns` of idleness ([`PAUSE_NS`]).
    pub fn give_room_back_from(&self, keep: u32, pause_ns: u64) {
        self.drainer.giving.keep.store(keep, Ordering::Relaxed);
        self.drainer.giving.pause_ns.store(pause_ns, Ordering::Relaxed);
        self.drainer.giving.on.store(true, Ordering::Release);
    }

    /// Slots may have come free. Called by any thread that may make a system call, and not in a fault.
    pub fn wake_giver(&self) {
        // The look before the swap: most calls find that the thread does not sleep, and leave the line as it is.
        if self.drainer.giving.asleep.load(Ordering::Relaxed)
            && self.surplus(false) > 0
            && self.drainer.giving.asleep.swap(false, Ordering::Relaxed)
        {
            self.drainer.wake(&self.futex);
        }
    }

    /// Extents that may be given back, now that this was begun, or is not.
    fn surplus(&self, begun: bool) -> u32 {
        let (roomy, needed, keep) = (self.slots.roomy_extents(), self.slots.extents_needed(), self.drainer.giving.keep());
        let surplus = roomy.saturating_sub(needed.saturating_add(keep));
        if begun || surplus > needed { surplus } else { 0 }
    }

    /// Checks whether something can be given back, if it is time to. Returns how long to sleep; `None`: until another thread
    /// wakes this one.
    pub(crate) fn give_room_back(&self, looks: &mut Looks, core: usize, stop: &AtomicBool, host: &mut dyn Host) -> Option<u64> {
        if !self.drainer.giving.on.load(Ordering::Acquire) {
            return None;
        }
        let now = self.clock.now_ns();
        if now < looks.next_ns {
            return Some(looks.next_ns - now);
        }
        // Stored first, so that a thread that frees slots after the look wakes us.
        self.drainer.giving.asleep.store(true, Ordering::Relaxed);
        let again = self.look_for_room(looks, core, stop, host);
        looks.begun = again;
        let pause = self.drainer.giving.pause_ns.load(Ordering::Relaxed);
        looks.next_ns = self.clock.now_ns() + pause;
        if again {
            self.drainer.giving.asleep.store(false, Ordering::Relaxed);
        }
        again.then_some(pause)
    }

    /// Whether there is something that can be given back at the next look.
    fn look_for_room(&self, looks: &mut Looks, core: usize, stop: &AtomicBool, host: &mut dyn Host) -> bool {
        let (mut left, mut again) = (self.surplus(looks.begun), false);
        for extent in self.slots.own_extents() {
            if left == 0 || stop.load(Ordering::Acquire) || !self.health.all_that_are(Usage::Draining).is_empty() {
                break;
            }
            match self.slots.look_whether_idle(extent) {
                Idle::No => {}
                Idle::Now => again = true,
                Idle::Rests => match self.give_extent(extent, looks, core, host) {
                    Given::Yes => left -= 1,
                    Given::Later => again = true,
                    Given::No => {}
                },
            }
        }
        again && left > 0
    }

    fn give_extent(&self, extent: u32, looks: &mut Looks, core: usize, host: &mut dyn Host) -> Given {
        self.quiet.gate.enter(&self.futex, core);
        let given = self.give_taken(extent, looks, core, host);
        self.quiet.gate.leave(&self.futex, core);
        host.serve();
        given
    }

    fn give_taken(&self, extent: u32, looks: &mut Looks, core: usize, host: &mut dyn Host) -> Given {
        let Some(first) = self.slots.take_out(extent) else { return Given::No };
        // The file of a space that has gone has no room.
        let gone = self.slots.space_of(first).is_none_or(|space| self.health.usage(space) == Usage::Absent);
        let space = self.slots.space_of(first).filter(|&space| !gone && !looks.cannot.contains(space));
        self.kernel.interleave();
        let answer = space.map(|space| {
            let transfer = self.transfer(first, core);
            let answer = self.backend.give_back(first, EXTENT_SLOTS as u32);
            self.transferred(transfer);
            (space, answer)
        });
        let given = matches!(answer, Some((_, Ok(()))));
        self.slots.put_back(extent, given || gone);
        if given {
            self.stats.add(core, Count::GivenBack, EXTENT_BYTES);
        }
        match answer {
            Some((_, Ok(()))) => Given::Yes,
            Some((_, Err(LATER))) => Given::Later,
            Some((space, Err(why))) => {
                looks.cannot = looks.cannot.with(space);
                host.cannot_give(space, why);
                Given::No
            }
            None => Given::No,
        }
    }
}
