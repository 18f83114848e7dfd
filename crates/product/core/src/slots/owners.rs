//! Each core has extents of its own, which it fills. Cores ask each other for slots when their own extents are full (ScaleSwap
//! §4.4, §4.5).
//!
//! # What a core has
//!
//! Each extent says which core owns it. One extent is being filled. Those with room wait in a list, in the order in which they
//! got it. All others are away ([`super::extent`]). This state is in [`Fill`], which belongs to the thread that has the core's
//! **token**. As a rule that is the evictor of this core, which reserves a run for each batch and writes lines that no other core
//! writes. (The state belongs to a token and not to a thread, since the evictor may be waiting for its device just then.)
//!
//! A thread that frees a slot, in a fault on any core, writes the lines for freed slots alone: the extent's, and the owner's
//! count. When that makes an extent worth filling, the extent goes back through its owner's queue: as the task *Free*, whose node
//! is in the extent, so that a signal handler can post it.
//!
//! # Which slots
//!
//! 1. slots behind the last run, in the extent that is being filled;
//! 2. while two thirds of the core's room are free: slots of the extent that has waited longest with a third or less in use (why:
//!    *Room* in `docs/src/decisions/0006-slots-side-by-side.md`);
//! 3. slots of an extent whose room was given back ([`super::giving`]);
//! 4. slots of a new extent;
//! 5. slots of any own extent that has some;
//! 6. slots of another core, of the same NUMA node first: the task *Reserve*.
//!
//! No step searches. A core does not look again at what cannot have changed. An extent that may not be given out is *shelved*.
//! That the space cannot grow is remembered until what is allowed changes (`changes` counts that). A core that is full says so in
//! a word that all cores read (`full`).
//!
//! The list is in [`super::waiting`]; how cores ask each other is in [`super::asking`].

use super::extent::{Extent, node_of};
use super::waiting::{NOT_FULL, ROOMY};
use super::{NoGrowth, Run, SLACK, SlotMap};
use crate::delegation::{Node, Queue, Tasks};
use crate::limits::EXTENT_SLOTS;
use crate::spin::SpinLock;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Padded, fence};
use crate::word::Slot;
use alloc::boxed::Box;

/// Cores that have extents of their own, one bit of a word each. Cores beyond this number share by remainder.
pub const OWNERS_MAX: usize = crate::limits::FRAME_CACHES;
/// How often a core looks for an answer, or at a token that another thread has, before it goes on without: far longer than any
/// work under a token takes, unless the other thread does not run.
pub(super) const PATIENCE: u32 = if cfg!(loom) {
    12
} else if cfg!(miri) {
    2_000
} else {
    100_000
};

/// State that belongs to the thread that has a core's token.
#[derive(Debug, Default)]
pub(super) struct Fill {
    /// The extent that is being filled, and the slot in it to continue at.
    pub(super) current: Option<(u32, usize)>,
    /// Extents with room, oldest first, as nodes; 0: none.
    pub(super) oldest: Node,
    pub(super) newest: Node,
    /// Tasks that wait for their turn, in the order in which they came.
    pub(super) tasks: Node,
    /// Own extents that are not on the shelf.
    pub(super) usable: u64,
    /// Own extents without room on the disk.
    pub(super) roomless: u64,
    /// The extent that was being filled when something changed. It comes behind all others, once, when every free slot
    /// counts.
    pub(super) left_for_last: Option<u32>,
    /// No extent on the shelf can be given out, as far as is known.
    pub(super) shelf_is_empty: bool,
    /// The value of `changes` when the extents were last looked through.
    looked_at: u64,
    /// The map could not grow then.
    stuck: bool,
    /// There is so little room that every free slot counts.
    pub(super) tight: bool,
    /// The core that had slots last.
    pub(super) helper: usize,
}

/// Counts of slots that came back: written by threads that free slots.
#[derive(Debug, Default)]
pub(super) struct Returned {
    /// Slots of own extents.
    own: AtomicU64,
    /// Slots of extents of the base.
    base: AtomicU64,
}

/// What a core owns.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) fill: Padded<SpinLock<Fill>>,
    /// Slots of own extents that were taken. Written under the token.
    pub(super) taken: Padded<AtomicU64>,
    /// Own extents that take room on the disk. Written under the token.
    pub(super) roomy: Padded<AtomicU32>,
    returned: Padded<Returned>,
    pub(super) queue: Padded<Queue>,
    /// The last reservation had to go on without an answer. Written by the thread that reserves, when the value changes.
    unanswered: Padded<AtomicBool>,
    /// Times the core has asked another for slots. In the line of what its evictor writes alone.
    pub(super) asked: crate::sync::plain::AtomicU64,
}

/// What all owners share: read by all cores, written when something changes that concerns all.
#[derive(Debug)]
pub(super) struct Owners {
    pub(super) all: Box<[Owner]>,
    pub(super) tasks: Tasks,
    /// A bit for each owner that has no room.
    pub(super) full: Padded<AtomicU64>,
    /// How often the set of what may be given out has changed.
    changes: Padded<AtomicU64>,
    /// For each owner, a bit for each owner on the same NUMA node.
    near: Box<[u64]>,
}

impl Fill {
    pub(super) fn is_filling(&self, index: u32) -> bool {
        self.current.is_some_and(|(current, _)| current == index)
    }
}

impl Owners {
    /// An owner for each entry of `nodes`, which says on which NUMA node the core is.
    pub(super) fn new(nodes: &[usize]) -> Owners {
        let nodes = &nodes[..nodes.len().min(OWNERS_MAX)];
        let owner = || Owner {
            fill: Padded(SpinLock::new(Fill::default())),
            taken: Padded(AtomicU64::new(0)),
            roomy: Padded(AtomicU32::new(0)),
            returned: Padded(Returned { own: AtomicU64::new(0), base: AtomicU64::new(0) }),
            queue: Padded(Queue::new()),
            unanswered: Padded(AtomicBool::new(false)),
            asked: crate::sync::plain::AtomicU64::new(0),
        };
        let near = |node: &usize| (0..nodes.len()).filter(|&other| nodes[other] == *node).fold(0, |all, other| all | 1 << other);
        Owners {
            all: nodes.iter().map(|_| owner()).collect(),
            tasks: Tasks::new(nodes.len()),
            full: Padded(AtomicU64::new(0)),
            changes: Padded(AtomicU64::new(0)),
            near: nodes.iter().map(near).collect(),
        }
    }

    /// In a forked child: slots that all extents had count as the base's.
    pub(super) fn begin_own(&mut self) {
        for owner in &mut self.all {
            *owner.fill.0.renew() = Fill::default();
            for count in [&*owner.taken, &owner.returned.own, &owner.returned.base] {
                count.store(0, Ordering::Relaxed);
            }
            owner.roomy.store(0, Ordering::Relaxed);
            owner.queue.0 = Queue::new();
        }
        self.tasks.forget();
        self.changed();
    }

    /// Slots may be given out that could not be before, or the other way round.
    pub(super) fn changed(&self) {
        // Counted first: a core that finds itself full before it has seen the change says so before this, or looks again.
        self.changes.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.full.store(0, Ordering::SeqCst);
    }

    /// Slots in use in own extents; never too few.
    pub(super) fn live(&self) -> u64 {
        let freed: u64 = self.all.iter().map(|owner| owner.returned.own.load(Ordering::Acquire)).sum();
        self.all.iter().map(|owner| owner.taken.load(Ordering::Acquire)).sum::<u64>().saturating_sub(freed)
    }

    /// Slots of the base that were freed here.
    pub(super) fn freed_in_base(&self) -> u64 {
        self.all.iter().map(|owner| owner.returned.base.load(Ordering::Relaxed)).sum()
    }

    /// Becomes a copy of `other`. The map's extents are looked for when they are needed.
    pub(super) fn copy_from(&self, other: &Owners) {
        for (to, from) in self.all.iter().zip(&other.all) {
            let counts =
                [(&*from.taken, &*to.taken), (&from.returned.own, &to.returned.own), (&from.returned.base, &to.returned.base)];
            counts.into_iter().for_each(|(from, to)| to.store(from.load(Ordering::Acquire), Ordering::Release));
        }
        self.changed();
    }

    fn note_full(&self, owner: usize) {
        self.full.fetch_or(1 << owner, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn note_room(&self, owner: usize) {
        if self.full.load(Ordering::SeqCst) >> owner & 1 != 0 {
            self.full.fetch_and(!(1 << owner), Ordering::SeqCst);
        }
    }

    /// Which of the cores in `open` the core `me` asks first: one on its own node if there is one, going round from
    /// `from` on.
    pub(super) fn choose(&self, me: usize, open: u64, from: usize) -> Option<usize> {
        let near = open & self.near[me];
        let among = if near != 0 { near } else { open };
        let after = among & (u64::MAX << from);
        Some(if after != 0 { after } else { among }.trailing_zeros() as usize).filter(|_| among != 0)
    }
}

impl SlotMap {
    /// Reserves up to `want` neighbouring slots for `core`: its own, or those of another core. `None`: there are none, or none
    /// can be had at the moment ([`SlotMap::was_unanswered`]).
    pub fn reserve_run(&self, core: usize, want: u32) -> Option<Run> {
        self.reserve(core, want, None)
    }

    /// As [`SlotMap::reserve_run`], in one space, even if the map leaves that space alone: to see whether the space works
    /// (again). Slots that were never used come before those that were, since overwriting may work where there is no room
    /// for more.
    pub fn reserve_run_in(&self, core: usize, space: usize, want: u32) -> Option<Run> {
        self.reserve(core, want, Some(space))
    }

    /// Whether the last reservation for `core` found that another core did not answer. The reservation may then have failed
    /// although there is room.
    pub fn was_unanswered(&self, core: usize) -> bool {
        self.owner(core).unanswered.load(Ordering::Relaxed)
    }

    /// How often `core` has asked another for slots.
    pub fn asked(&self, core: usize) -> u64 {
        self.owner(core).asked.load(Ordering::Relaxed)
    }

    /// How often cores have asked others for slots, all together.
    pub fn all_asked(&self) -> u64 {
        self.owners.all.iter().map(|owner| owner.asked.load(Ordering::Relaxed)).sum()
    }

    /// In how many parts slots and granules are, one a core.
    pub fn cores(&self) -> usize {
        self.owners.all.len()
    }

    fn owner(&self, core: usize) -> &Owner {
        &self.owners.all[core % self.owners.all.len()]
    }

    pub(super) fn set_unanswered(&self, me: usize, now: bool) {
        let unanswered = &self.owner(me).unanswered;
        if unanswered.load(Ordering::Relaxed) != now {
            unanswered.store(now, Ordering::Relaxed);
        }
    }

    fn reserve(&self, core: usize, want: u32, space: Option<usize>) -> Option<Run> {
        let me = core % self.owners.all.len();
        let want = want.clamp(1, EXTENT_SLOTS as u32);
        self.set_unanswered(me, false);
        match self.with_token(me, PATIENCE, |fill| (self.find(me, fill, want, space), fill.helper)) {
            Some((Some(run), _)) => Some(run),
            Some((None, helper)) => self.delegate(me, want, space, helper),
            None => {
                self.set_unanswered(me, true);
                None
            }
        }
    }

    /// Finds slots of the core's own, as the module head says.
    pub(super) fn find(&self, owner: usize, fill: &mut Fill, want: u32, space: Option<usize>) -> Option<Run> {
        if let Some(space) = space {
            return self.find_in(owner, fill, space, want);
        }
        loop {
            let changes = self.owners.changes.load(Ordering::SeqCst);
            let found = self.fill(owner, fill, want);
            if found.is_some() {
                return found;
            }
            self.owners.note_full(owner);
            // One of the two sees the other: we say that we are full, then look; the other thread puts an extent into the queue,
            // or allows something, then looks whether we are full.
            if self.owners.all[owner].queue.is_empty() && self.owners.changes.load(Ordering::SeqCst) == changes {
                return None;
            }
            self.owners.note_room(owner);
            self.take_in(owner, fill);
        }
    }

    fn fill(&self, owner: usize, fill: &mut Fill, want: u32) -> Option<Run> {
        loop {
            let changes = self.owners.changes.load(Ordering::SeqCst);
            if fill.looked_at != changes {
                (fill.looked_at, fill.stuck, fill.tight) = (changes, false, false);
                self.look_through(owner, fill);
                // Behind all others: if the disk is full, this extent may be the one that has no room.
                if let Some((index, _)) = fill.current.take() {
                    fill.left_for_last = Some(index);
                    self.put_away(fill, index);
                }
            }
            let Some((index, from)) = fill.current else {
                fill.current = Some((self.next_extent(owner, fill)?, 0));
                continue;
            };
            if self.is_allowed(index)
                && let Some((at, len)) = self.extent(index).take_run(from, want)
            {
                fill.current = Some((index, at + len as usize));
                match self.count_run(owner, fill, index, at, len) {
                    Some(run) => return Some(run),
                    None => continue,
                }
            }
            fill.current = None;
            self.put_away(fill, index);
        }
    }

    /// Counts slots of an extent that were just taken. `None`: they went back, since their space was closed just then.
    fn count_run(&self, owner: usize, fill: &mut Fill, index: u32, at: usize, len: u32) -> Option<Run> {
        self.note_use(owner, fill, self.extent(index).room());
        if self.closed_meanwhile(index, at, len) {
            return None;
        }
        self.owners.all[owner].taken.fetch_add(u64::from(len), Ordering::Relaxed);
        Some(Run { first: Slot::new(u64::from(index) * EXTENT_SLOTS as u64 + at as u64)?, len })
    }

    /// The extent to fill next.
    fn next_extent(&self, owner: usize, fill: &mut Fill) -> Option<u32> {
        let it = &self.owners.all[owner];
        let live = it.taken.load(Ordering::Relaxed) - it.returned.own.load(Ordering::Relaxed);
        let room = fill.usable * EXTENT_SLOTS as u64;
        // Two thirds of the room are free. So some extent is at most a third full, and the one that has waited longest is emptier
        // still.
        if !fill.tight
            && live * u64::from(SLACK) <= room
            && let Some(extent) = self.oldest_with(fill, ROOMY)
        {
            return Some(extent);
        }
        if let Some(extent) = self.take_from_shelf(owner, fill) {
            return Some(extent);
        }
        if !fill.stuck {
            match self.grow(owner) {
                Ok(new) => {
                    fill.tight = false;
                    return self.adopt(owner, fill, new);
                }
                Err(why) => fill.stuck = why == NoGrowth::NoRoom,
            }
        }
        if !fill.tight {
            fill.tight = true;
            self.look_through(owner, fill);
        }
        self.oldest_with(fill, NOT_FULL)
    }

    /// Finds own slots in one space, whatever is allowed there.
    fn find_in(&self, owner: usize, fill: &mut Fill, space: usize, want: u32) -> Option<Run> {
        if self.is_closed(space) {
            return None;
        }
        let own = || self.extents_in(space).filter(|&index| self.extent(index).owner() == owner);
        let unused = own().last().filter(|&index| self.extent(index).unavailable() == 0);
        let room = || own().filter(|&index| self.extent(index).unavailable() < EXTENT_SLOTS as u32).last();
        let mut grown = || {
            let last = self.grow_in(owner, space).and_then(|new| self.adopt(owner, fill, new))?;
            if self.is_allowed(last) {
                self.append(fill, last);
            }
            Some(last)
        };
        let index = unused.or_else(&mut grown).or_else(room)?;
        let (at, len) = self.extent(index).take_run(0, want)?;
        self.count_run(owner, fill, index, at, len)
    }

    /// The bytes in `slot` are no longer needed. No read or write of it may be in flight. (A page of a mapped file is the file's, and
    /// was never given out.)
    pub fn free(&self, slot: Slot) {
        if slot.is_of_file() {
            return;
        }
        let (index, at) = super::locate(slot);
        let extent = self.extent(index);
        let comes_back = extent.turn_freed(at, 1);
        let owner = &self.owners.all[extent.owner()];
        if index < self.base {
            owner.returned.base.fetch_add(1, Ordering::Relaxed);
            return;
        }
        owner.returned.own.fetch_add(1, Ordering::Release);
        if comes_back {
            self.send_back(index, extent);
        }
    }

    /// Frees all slots of an own extent, which were taken at one time.
    pub(super) fn free_all_of(&self, index: u32) {
        let extent = self.extent(index);
        let comes_back = extent.turn_freed(0, EXTENT_SLOTS as u32);
        self.owners.all[extent.owner()].returned.own.fetch_add(EXTENT_SLOTS as u64, Ordering::Release);
        if comes_back {
            self.send_back(index, extent);
        }
    }

    /// Posts the task *Free*: the extent is worth filling again.
    pub(super) fn send_back(&self, index: u32, extent: &Extent) {
        self.owners.all[extent.owner()].queue.push(node_of(index, self.owners.tasks.last()), extent.link());
        fence(Ordering::SeqCst);
        self.owners.note_room(extent.owner());
    }

    /// Checks that each core's counts agree with its extents. Exact only while no other thread uses the map.
    pub(super) fn assert_owners_valid(&self) {
        for (number, owner) in self.owners.all.iter().enumerate() {
            let own = (self.base..self.extents.load(Ordering::Acquire)).filter(|&index| self.extent(index).owner() == number);
            // No page has the very first slot, which counts as in use.
            let live: u64 = own.map(|index| u64::from(self.extent(index).live()) - u64::from(index == self.base)).sum();
            let counted = owner.taken.load(Ordering::Acquire) - owner.returned.own.load(Ordering::Acquire);
            assert_eq!(live, counted, "slots of core {number}");
        }
    }
}
