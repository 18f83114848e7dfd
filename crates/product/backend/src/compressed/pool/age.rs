//! Pages that take memory, by age: a list through their entries.

use super::{Pool, State};
use core::sync::atomic::Ordering;

/// No slot: 0 is never given out.
pub(super) const NOBODY: u32 = 0;

/// Neighbours by age.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) listed: bool,
    pub(super) older: u32,
    pub(super) newer: u32,
}

impl Links {
    pub(super) const NONE: Links = Links { listed: false, older: NOBODY, newer: NOBODY };

    // Slot numbers have 29 bits.
    pub(super) fn encode(self) -> u64 {
        u64::from(self.listed) << 63 | u64::from(self.older) << 31 | u64::from(self.newer)
    }

    pub(super) fn decode(word: u64) -> Links {
        let part = |shift: u32| (word >> shift & ((1 << 31) - 1)) as u32;
        Links { listed: word >> 63 != 0, older: part(31), newer: part(0) }
    }
}

impl Pool {
    pub(super) fn links(&self, slot: u32) -> Links {
        self.entry(u64::from(slot)).map_or(Links::NONE, |entry| Links::decode(entry.extra.load(Ordering::Relaxed)))
    }

    pub(super) fn set_links(&self, slot: u32, links: Links) {
        if let Some(entry) = self.entry(u64::from(slot)) {
            entry.extra.store(links.encode(), Ordering::Relaxed);
        }
    }

    /// The slot's page becomes the newest. (Slot 0 is never given out, so it stands for "no slot".)
    pub(super) fn list(&self, state: &mut State, slot: u32) {
        let older = core::mem::replace(&mut state.newest, slot);
        self.set_links(slot, Links { listed: true, older, newer: NOBODY });
        match older {
            NOBODY => state.oldest = slot,
            older => self.set_links(older, Links { newer: slot, ..self.links(older) }),
        }
    }

    pub(super) fn unlist(&self, state: &mut State, slot: u32) {
        let Links { older, newer, .. } = self.links(slot);
        match older {
            NOBODY => state.oldest = newer,
            older => self.set_links(older, Links { newer, ..self.links(older) }),
        }
        match newer {
            NOBODY => state.newest = older,
            newer => self.set_links(newer, Links { older, ..self.links(newer) }),
        }
        self.set_links(slot, Links::NONE);
    }
}
