//! A guest's memory for tests: words that are there, and page tables that are made in it.

use std::collections::HashMap;

use crate::PAGE;
use crate::paging::{Paging, Physical};

/// Memory of some words; all else of the first `bytes` bytes is zeros.
#[derive(Default, Debug)]
pub(crate) struct Words {
    /// The words.
    pub(crate) words: HashMap<u64, u64>,
    /// How much memory there is.
    pub(crate) bytes: u64,
    /// How often it was read.
    pub(crate) reads: u64,
    next: u64,
}

impl Physical for Words {
    fn word(&mut self, at: u64) -> Option<u64> {
        assert_eq!(at % 8, 0);
        self.reads += 1;
        (at < self.bytes).then(|| self.words.get(&at).copied().unwrap_or(0))
    }
}

/// An entry is there, may be written and used by programs.
pub(crate) const ALL: u64 = 7;

impl Words {
    /// Memory of zeros.
    pub(crate) fn new(bytes: u64) -> Words {
        Words { bytes, next: 0x10_0000, ..Words::default() }
    }

    fn table(&mut self) -> u64 {
        self.next += PAGE;
        self.next
    }

    /// Maps a page of a level, with these bits in its own entry.
    pub(crate) fn map(&mut self, paging: Paging, address: u64, to: u64, level: u32, bits: u64) {
        let mut table = paging.root();
        for above in ((level + 1)..=paging.levels()).rev() {
            let place = table + place(address, above) * 8;
            let entry = self.words.get(&place).copied().unwrap_or(0);
            table = if entry & 1 != 0 { entry & !(PAGE - 1) } else { self.table() };
            self.words.insert(place, table | ALL);
        }
        self.words.insert(table + place(address, level) * 8, to | bits);
    }
}

/// The place in a table of this level.
fn place(address: u64, level: u32) -> u64 {
    address >> (12 + 9 * (level - 1)) & 511
}
