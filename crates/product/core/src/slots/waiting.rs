//! The extents of a core that wait to be filled, in the order in which they got room. The others are away ([`super::extent`]) or
//! shelved.
//!
//! All access is under the core's token ([`super::owners`]).

use super::extent::{extent_of, node_of};
use super::owners::Fill;
use super::{SLACK, SlotMap};
use crate::limits::EXTENT_SLOTS;
use crate::sync::Ordering;

/// A third: an extent with this many slots in use, or fewer, is worth filling again while there is room enough.
pub(super) const ROOMY: u32 = EXTENT_SLOTS as u32 / SLACK;
/// The same bound while every free slot counts.
pub(super) const NOT_FULL: u32 = EXTENT_SLOTS as u32 - 1;

impl Fill {
    /// An extent with this many slots in use, or fewer, is worth filling.
    fn worth_filling(&self) -> u32 {
        if self.tight { NOT_FULL } else { ROOMY }
    }
}

impl SlotMap {
    /// New extents: those that may be given out go on the list, except for the last, which is to be filled now if it may.
    pub(super) fn adopt(&self, owner: usize, fill: &mut Fill, new: core::ops::Range<u32>) -> Option<u32> {
        let last = new.end.checked_sub(1)?;
        fill.roomless += new.len() as u64;
        for index in new.filter(|&index| self.is_allowed(index)) {
            // The other extents were made shelved, and stay so.
            let _ = self.extent(index).fetch();
            fill.usable += 1;
            // They are filled in the order of their numbers, so they count as having room from now on.
            self.note_use(owner, fill, self.extent(index).room());
            if index != last {
                self.append(fill, index);
            }
        }
        Some(last)
    }

    /// Takes the first extent on the list that has at most this many slots in use. Those before it go away.
    pub(super) fn oldest_with(&self, fill: &mut Fill, most: u32) -> Option<u32> {
        while let Some(index) = extent_of(fill.oldest, self.owners.tasks.last()) {
            fill.oldest = self.extent(index).link().load(Ordering::Relaxed);
            if fill.tight && fill.left_for_last == Some(index) {
                fill.left_for_last = None;
                self.append(fill, index);
                continue;
            }
            if self.is_allowed(index) && self.used(index) <= most && self.is_listed(fill, index) {
                return Some(index);
            }
            self.put_away(fill, index);
        }
        None
    }

    pub(super) fn append(&self, fill: &mut Fill, index: u32) {
        let node = node_of(index, self.owners.tasks.last());
        self.extent(index).link().store(0, Ordering::Relaxed);
        match fill.oldest {
            0 => fill.oldest = node,
            _ => self.link(fill.newest).store(node, Ordering::Relaxed),
        }
        fill.newest = node;
    }

    pub(super) fn used(&self, index: u32) -> u32 {
        let extent = self.extent(index);
        if self.shared.load(Ordering::Relaxed) { extent.unavailable() } else { extent.live() }
    }

    /// Whether an extent belongs on the list rather than on the shelf, which is for extents that have no room and are not used.
    /// (In the very first extent, a slot always counts as in use.) The code that fills extents and the code that puts them away
    /// must agree on this, or an extent would go round for ever.
    fn is_listed(&self, fill: &Fill, index: u32) -> bool {
        let extent = self.extent(index);
        fill.tight || extent.room().is_there() || extent.live() > 0
    }

    /// Puts an own extent away that is at hand and that the core has no use for now.
    pub(super) fn put_away(&self, fill: &mut Fill, index: u32) {
        let extent = self.extent(index);
        let most = fill.worth_filling();
        let live = extent.live();
        // Slots that are held for children do not come back when slots are freed.
        let most = if live <= most && self.used(index) > most { live.checked_sub(1) } else { Some(most) };
        match most.filter(|_| self.is_listed(fill, index) && self.is_allowed(index)) {
            Some(most) if extent.send_away(most) => self.append(fill, index),
            Some(_) => {}
            None => {
                extent.shelve();
                fill.usable -= 1;
                fill.shelf_is_empty &= extent.room().is_there();
            }
        }
    }

    /// Something is allowed that was not, or the other way round, or room has become tight: gives every own extent that is away
    /// its new place.
    pub(super) fn look_through(&self, owner: usize, fill: &mut Fill) {
        fill.shelf_is_empty = false;
        for index in self.base..self.extents.load(Ordering::Acquire) {
            let extent = self.extent(index);
            if extent.owner() != owner {
                continue;
            }
            let Some(was_shelved) = extent.fetch() else { continue };
            fill.usable += u64::from(was_shelved);
            if self.is_allowed(index) && self.used(index) <= fill.worth_filling() {
                self.append(fill, index);
            } else {
                self.put_away(fill, index);
            }
        }
    }
}
