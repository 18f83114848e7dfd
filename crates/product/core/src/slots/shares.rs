//! The map of slots in a fork: the slots that the parent holds for its children, and what a child begins with. The head of
//! [`super`] gives the rules that both keep.

use super::{SlotMap, WORDS};
use crate::limits::{EXTENT_SLOTS, EXTENTS_MAX};
use crate::sync::Ordering;
use alloc::vec::Vec;

/// Children whose slots are held separately. Further children use the last share.
pub(super) const SHARES_MAX: usize = 32;

/// Slots that one or more forked children may read.
#[derive(Debug)]
pub(super) struct Share {
    id: u64,
    /// Children that still exist.
    users: u32,
    /// Slots that were in use when the children began, by extent.
    held: Vec<[u64; WORDS]>,
}

impl SlotMap {
    /// A child is about to be forked: slots in use now are not given out again until [`SlotMap::unshare`] of the number that
    /// this returns. No slot may be reserved and not yet named by a page. Allocates.
    pub fn share(&self) -> u64 {
        let extents = self.extents.load(Ordering::Acquire);
        let mut held: Vec<[u64; WORDS]> = Vec::with_capacity((extents - self.base) as usize);
        held.extend((self.base..extents).map(|e| self.extent(e).in_use()));
        self.shared.store(true, Ordering::Relaxed);
        let id = self.alone(|shares| {
            for (e, bits) in (self.base..).zip(&held) {
                self.extent(e).held.iter().zip(bits).for_each(|(word, bits)| {
                    word.fetch_or(*bits, Ordering::Relaxed);
                });
            }
            if shares.len() < SHARES_MAX {
                let id = shares.last().map_or(1, |last| last.id + 1);
                shares.push(Share { id, users: 1, held: core::mem::take(&mut held) });
                return id;
            }
            // Holding some slots longer than necessary is better than a list without end.
            let last = &mut shares[SHARES_MAX - 1];
            last.users += 1;
            core::mem::swap(&mut last.held, &mut held);
            for (all, old) in last.held.iter_mut().zip(&held) {
                all.iter_mut().zip(old).for_each(|(all, old)| *all |= old);
            }
            last.id
        });
        // The memory that was replaced is freed here, outside of the lock.
        drop(held);
        id
    }

    /// A child is gone, and so are all its descendants.
    ///
    /// # Panics
    /// When there is no such share.
    pub fn unshare(&self, id: u64) {
        let gone = self.alone(|shares| {
            let at = shares.iter().position(|s| s.id == id).expect("a share ends once");
            shares[at].users -= 1;
            if shares[at].users > 0 {
                return None;
            }
            let gone = shares.remove(at);
            for (n, e) in (self.base..self.base + gone.held.len() as u32).enumerate() {
                for (i, word) in self.extent(e).held.iter().enumerate() {
                    let still = shares.iter().filter_map(|s| s.held.get(n)).fold(0, |all, bits| all | bits[i]);
                    word.store(still, Ordering::Relaxed);
                }
            }
            self.shared.store(!shares.is_empty(), Ordering::Relaxed);
            Some(gone)
        });
        // Slots that were held may be given out.
        self.owners.changed();
        // Memory is freed outside of the lock.
        drop(gone);
    }

    /// Children, or groups of them, for which slots are held.
    pub fn shares(&self) -> usize {
        self.alone(|shares| shares.len())
    }

    /// In a forked child: all extents become the base. New slots come behind, at most `capacity` of them (rounded down to
    /// whole extents). Returns the first slot of the child's own space.
    pub fn begin_own(&mut self, capacity: Option<u64>) -> u64 {
        self.reserved_in_base += u32::from(self.extents.load(Ordering::Relaxed) > self.base);
        self.base = self.extents.load(Ordering::Relaxed);
        let most = (EXTENTS_MAX as u32).saturating_sub(self.base);
        let own = capacity.map_or(most, |c| (c / EXTENT_SLOTS as u64).min(u64::from(most)) as u32);
        self.set_extents_max(self.base + own);
        self.inherited = self.inherited() + self.live();
        self.owners.begin_own();
        for e in 0..self.base {
            self.extent(e).held.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.shares.renew().clear();
        self.shared.store(false, Ordering::Relaxed);
        u64::from(self.base) * EXTENT_SLOTS as u64
    }

    /// A copy of the map, as `fork` makes one: for the simulator, where fork does not. The owner of the map does nothing
    /// meanwhile.
    #[must_use]
    pub fn duplicate(&self) -> SlotMap {
        let capacity = u64::from(self.extents_max.load(Ordering::Relaxed)) * EXTENT_SLOTS as u64;
        let mut copy = SlotMap::for_cores(Some(capacity), &alloc::vec![0; self.owners.all.len()]);
        copy.delegates = self.delegates;
        copy.base = self.base;
        copy.reserved_in_base = self.reserved_in_base;
        for index in 0..self.extents.load(Ordering::Acquire) {
            let from = self.extent(index);
            if copy.alone(|_| copy.grow_by_one(from.owner())).is_err() {
                break;
            }
            copy.extent(index).copy_from(from);
        }
        copy.owners.copy_from(&self.owners);
        copy.inherited = self.inherited;
        copy
    }
}
