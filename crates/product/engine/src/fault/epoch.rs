//! The fault's side of the protection epoch: whether an evictor may have write-protected a page while a fault mapped it writable.
//!
//! An evictor that protects pages of a granule makes the granule's epoch odd, looks at the words, calls the kernel, and makes the
//! epoch even (`evict::select` has the whole protocol). A fault takes its page, **then** reads the epoch, maps, and asks whether the
//! epoch [`has_moved`](Epoch::has_moved): if so, it says in the word that the page may be protected.

use core::sync::atomic::{Ordering, fence};
use farshore_core::canary::{Canary, is_planted};
use farshore_core::table::Granule;

/// A granule's protection epoch, as a fault has read it.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(u32);

impl Epoch {
    /// The epoch, read after the page was taken. The fence pairs with the evictor's, which stands between its raise of the epoch
    /// and its look at the page words: one of the two sees the other.
    #[inline]
    pub(super) fn of(granule: &Granule) -> Epoch {
        fence(Ordering::SeqCst);
        Epoch(granule.protection_epoch.load(Ordering::SeqCst))
    }

    /// Whether an evictor may ever have write-protected pages of the granule: for pages that were taken after they had come to be there.
    #[inline]
    pub(crate) fn has_ever_moved(granule: &Granule) -> bool {
        Epoch::of(granule).0 != 0
    }

    /// Whether an evictor may have write-protected pages of the granule since the epoch was read.
    #[inline]
    pub(super) fn has_moved(self, granule: &Granule) -> bool {
        !is_planted(Canary::Epoch) && (self.0 % 2 == 1 || Epoch::of(granule).0 != self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::page::GranuleId;
    use farshore_core::table::PageTable;

    #[test]
    fn an_evictor_at_work_before_or_meanwhile_is_noticed() {
        let (table, id) = (PageTable::new(), GranuleId(0x10_0000));
        table.add(id.range());
        let g = table.granule(id).expect("it was added").granule;
        let step = || g.protection_epoch.fetch_add(1, Ordering::SeqCst);
        assert!(!Epoch::has_ever_moved(g));
        assert!(!Epoch::of(g).has_moved(g));
        let before = Epoch::of(g);
        step();
        assert!(before.has_moved(g), "an evictor has begun");
        let between = Epoch::of(g);
        assert!(between.has_moved(g), "one was at work when it was read");
        step();
        assert!(before.has_moved(g) && between.has_moved(g) && !Epoch::of(g).has_moved(g));
        assert!(Epoch::has_ever_moved(g));
    }
}
