//! Which pages a batch takes.
//!
//! 1. Pages that are wished to leave ([`crate::wishes`]), whether frames are short or not.
//! 2. When frames are short, pages that a policy expects to be used late ([`crate::expected`]).
//! 3. Pages that a hand comes by ([`super::partition`]), in turn one of two ([`super::hands`]). They pass over granules of a loop that stay ([`super::loops`]), pages that are wished
//!    to stay, and pages that are expected soon.
//!
//! Whatever the hands pass over leaves as any other page where nothing else is found. So nobody's wish or estimate stops a batch: what is
//! spent on passing pages over is bounded, by [`GRANULES_A_BATCH`] and [`WALKS_OVER_SOON`].

use super::partition::{Hand, time};
use super::pipeline::{Evictor, TRIAL_EVERY_NS, TRIAL_PAGES};
use super::select::Which;
use crate::expected::Marks;
use crate::wishes::{Bits, NO_PAGES};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::GranuleId;
use farshore_core::seams::{Clock, Policy, World};

/// Granules that one walk looks at, at most.
const GRANULES_A_BATCH: usize = 64;
/// Walks of one batch that may find nothing but pages that are expected soon. A walk that passes over all that it sees takes some 30 µs, and
/// each page that it passes over has one pass fewer.
const WALKS_OVER_SOON: usize = 16;

impl<W: World> Evictor<'_, W> {
    /// Fills `self.victims` with pages that are wished to leave ([`crate::wishes`]). What there is no room for leaves later.
    pub(super) fn select_wished(&mut self, room: usize) {
        let engine = self.engine;
        self.victims.clear();
        self.found = [0; 2];
        self.core = self.id;
        let dirty_max = self.dirty_allowed();
        for _ in 0..GRANULES_A_BATCH {
            let Some((granule, mut bits)) = engine.wishes.take_leaving() else { break };
            let Some(g) = engine.table.granule(granule) else { continue };
            let look = engine.select(&g, 0, room, dirty_max, Which::Wished(bits), &mut self.victims);
            engine.evictors.hands.note_found(g.granule, None);
            if look.next < GRANULE_PAGES {
                for (n, word) in bits.iter_mut().enumerate() {
                    let done = look.next.saturating_sub(n * 64).min(64);
                    *word &= u64::MAX.checked_shl(done as u32).unwrap_or(0);
                }
                engine.wishes.put_leaving(granule, &bits);
                break;
            }
        }
        if !engine.wishes.any_leave() && engine.wishes.any_come() {
            engine.wake_for_coming();
        }
        self.victims.sort_unstable_by_key(|v| (!v.dirty, v.page));
    }

    /// Fills `self.victims` when frames are short. Dirty victims come first.
    pub(super) fn select_batch(&mut self, room: usize) {
        let engine = self.engine;
        self.victims.clear();
        self.found = [0; 2];
        let dirty_max = self.dirty_allowed();
        // Pages that could not leave last time look like victims again.
        let keeping = self.empty_batches == 0;
        if keeping {
            self.select_late(room, dirty_max);
        }
        // A batch of a few pages costs as many flushes of the TLB as a full one.
        if self.victims.len() < room.div_ceil(2) {
            let with =
                if engine.policy.takes_newer_first() { engine.evictors.hands.next(&mut self.credit) } else { Hand::Forward };
            let mut walks = if keeping { WALKS_OVER_SOON } else { 0 };
            while walks > 0 && self.select_around(with, room, dirty_max, true) {
                walks -= 1;
            }
            if self.victims.is_empty() {
                self.select_around(with, room, dirty_max, false);
            }
        }
        self.victims.sort_unstable_by_key(|v| (!v.dirty, v.page));
    }

    /// Takes pages that are expected late, as far as there are. Pages that are wished to stay do.
    fn select_late(&mut self, room: usize, dirty_max: usize) {
        let engine = self.engine;
        for _ in 0..GRANULES_A_BATCH {
            if self.victims.len() >= room {
                break;
            }
            let Some((granule, late)) = engine.expected.take_late() else { break };
            let Some(g) = engine.table.granule(granule) else { continue };
            let stay = self.staying(granule);
            let late = core::array::from_fn(|n| late[n] & !stay[n]);
            self.core = self.id;
            let look = engine.select(&g, 0, room, dirty_max, Which::Late(late), &mut self.victims);
            engine.evictors.hands.note_found(g.granule, None);
            if look.next < GRANULE_PAGES {
                engine.expected.put_late(granule);
            }
        }
    }

    fn staying(&self, granule: GranuleId) -> Bits {
        let engine = self.engine;
        match engine.wishes.any_stay() {
            true => engine.wishes.staying(granule, engine.clock.now_ns()),
            false => NO_PAGES,
        }
    }

    /// Goes round the partitions, with this one of their hands, until one has victims: from the one whose oldest granule is the oldest, or whose hands are behind; partitions that this evictor looks after
    /// come before others' (MAGE §4.2.2, ScaleSwap §4.6). `keeping`: what is to be passed over is. Returns whether that is why it
    /// has found none in a partition: pages there are expected soon.
    fn select_around(&mut self, with: Hand, room: usize, dirty_max: usize, keeping: bool) -> bool {
        let (engine, first) = (self.engine, self.victims.len());
        // Evictors that are awake share the partitions of those on standby.
        let (place, awake) = engine.evictors.pace.place_of(self.id);
        let partitions = engine.evictors.lists.all();
        let now = time(engine.clock.now_ns());
        let foremost = self.turns.order(partitions, with, now, |at| at % awake == place);
        for nth in 0..partitions.len() {
            let at = self.turns.at(nth);
            let Some(walk) = partitions[at].walk(&engine.table, with, now, foremost) else { continue };
            let mut passed_soon = false;
            for _ in 0..GRANULES_A_BATCH {
                let Some((g, from)) = walk.hand() else { break };
                if keeping && engine.evictors.loops.is_kept(&g, engine.frames()) {
                    if walk.advance() {
                        continue;
                    }
                    break;
                }
                let stay = if keeping { self.staying(g.id) } else { NO_PAGES };
                let marks = if keeping { engine.expected.of(g.id) } else { Marks::NONE };
                let before = self.victims.len();
                let look = engine.select(&g, from, room, dirty_max, Which::AllBut { stay, marks }, &mut self.victims);
                if self.victims.len() > before {
                    self.found[with as usize] += self.victims.len() - before;
                    engine.evictors.hands.note_found(g.granule, Some(with));
                }
                passed_soon |= look.passed_soon;
                if look.next < GRANULE_PAGES {
                    walk.stay_at(look.next);
                    break;
                }
                if !look.populated && from == 0 {
                    walk.unlist();
                } else if !walk.advance() && self.victims.len() == first {
                    // The only granule of the list: a second pass finds the pages that just lost their chances.
                    continue;
                }
                if self.victims.len() >= room {
                    break;
                }
            }
            drop(walk);
            if self.victims.len() > first {
                self.core = if at % awake == place { at } else { self.id };
                return false;
            }
            if passed_soon {
                return true;
            }
        }
        false
    }

    /// Dirty pages that this batch may take: all, unless the space is full or its stages are for clean ones.
    fn dirty_allowed(&mut self) -> usize {
        let engine = self.engine;
        if self.clean_only {
            return 0;
        }
        if !engine.evictors.obstacles.is_full() {
            return usize::MAX;
        }
        let now = engine.clock.now_ns();
        if now < self.retry_at_ns {
            return 0;
        }
        self.retry_at_ns = now + TRIAL_EVERY_NS;
        TRIAL_PAGES
    }
}
