//! The page tables of x86-64, of four and five levels, as a processor walks them (Intel SDM volume 3, chapter 4).
//!
//! ```text
//!  root (CR3) ─▶ [PML5 ─▶] PML4 ─▶ PDPT ─▶ PD ─▶ PT ─▶ page of 4 KiB
//!                                    │       └─ a page of 2 MiB   (bit 7)
//!                                    └───────── a page of 1 GiB   (bit 7)
//! ```
//!
//! Levels are counted from the page: 1 is the table whose entries are pages of 4 KiB.

use crate::PAGE;

/// Memory of a guest, by its physical addresses.
pub trait Physical {
    /// The 8 bytes at an address that is a multiple of 8. `None`: there is no memory, or what is there cannot be had now.
    fn word(&mut self, at: u64) -> Option<u64>;
}

/// Entries of a table.
const ENTRIES: u64 = 512;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// The entry is a large page, at levels 2 and 3.
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
/// Address bits of an entry: no processor has more.
const ADDRESS: u64 = ((1 << 52) - 1) & !(PAGE - 1);

/// How a processor translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paging {
    root: u64,
    levels: u32,
    bits: u32,
}

/// What an address is mapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The physical address of the page's first byte.
    pub first: u64,
    /// The page's size: 4 KiB, 2 MiB or 1 GiB.
    pub bytes: u64,
    /// It may be written, by what all levels say.
    pub writable: bool,
    /// Programs may use it, not the kernel alone.
    pub user: bool,
    /// Instructions may be there.
    pub executable: bool,
}

/// Why an address has no translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// No processor would take it: its upper bits are not all the same.
    NotCanonical,
    /// The entry at this level is not present.
    Absent(u32),
    /// The entry at this level has bits that must be zero.
    Reserved(u32),
    /// The entry at this level cannot be read: it is outside of the guest's memory, or out of RAM.
    Unreadable(u32),
}

/// What an entry is.
enum Entry {
    Table(u64),
    Leaf(u64),
}

impl Paging {
    /// The tables that CR3 names, of 4 or 5 levels, on a processor whose physical addresses have `bits` bits.
    ///
    /// # Panics
    /// With other numbers of levels or bits than processors have (32 to 52).
    #[must_use]
    pub fn new(cr3: u64, levels: u32, bits: u32) -> Paging {
        assert!(matches!(levels, 4 | 5) && (32..=52).contains(&bits), "{levels} levels, {bits} bits");
        // The low bits say how tables are cached or which PCID they have, and bit 63 whether a load of CR3 keeps what is cached.
        Paging { root: cr3 & ADDRESS, levels, bits }
    }

    /// The physical address of the first table.
    #[must_use]
    pub fn root(self) -> u64 {
        self.root
    }

    /// The number of levels.
    #[must_use]
    pub fn levels(self) -> u32 {
        self.levels
    }

    /// Where the lower half of the addresses ends, which is the programs'.
    #[must_use]
    pub fn user_end(self) -> u64 {
        1 << (12 + 9 * self.levels - 1)
    }

    /// The same tables from another root: the kernel's copy, or the programs', where the guest's kernel isolates its tables (KPTI).
    #[must_use]
    pub fn with_root(self, root: u64) -> Paging {
        Paging { root: root & ADDRESS, ..self }
    }

    fn is_canonical(self, address: u64) -> bool {
        let upper = address >> (12 + 9 * self.levels - 1);
        upper == 0 || upper == u64::MAX >> (12 + 9 * self.levels - 1)
    }

    /// Reads an entry of a table of this level.
    fn entry(self, entry: u64, level: u32) -> Result<Entry, Stop> {
        if entry & PRESENT == 0 {
            return Err(Stop::Absent(level));
        }
        let at = entry & ADDRESS;
        if at >> self.bits != 0 {
            return Err(Stop::Reserved(level));
        }
        match level {
            1 => Ok(Entry::Leaf(at)),
            2 | 3 if entry & LARGE != 0 => {
                // Bit 12 is an attribute of the cache here.
                let first = at & !PAGE;
                if first.is_multiple_of(size_of_leaf(level)) { Ok(Entry::Leaf(first)) } else { Err(Stop::Reserved(level)) }
            }
            4 | 5 if entry & LARGE != 0 => Err(Stop::Reserved(level)),
            _ => Ok(Entry::Table(at)),
        }
    }

    /// Translates a virtual address: the page that has it. Reads as many words as there are levels at most.
    ///
    /// # Errors
    /// Why there is none.
    pub fn leaf(self, memory: &mut impl Physical, address: u64) -> Result<Leaf, Stop> {
        if !self.is_canonical(address) {
            return Err(Stop::NotCanonical);
        }
        let (mut table, mut all, mut none) = (self.root, WRITABLE | USER, 0);
        for level in (1..=self.levels).rev() {
            let word = memory.word(table + index(address, level) * 8).ok_or(Stop::Unreadable(level))?;
            all &= word;
            none |= word;
            match self.entry(word, level)? {
                Entry::Table(next) => table = next,
                Entry::Leaf(first) => return Ok(leaf(first, level, all, none)),
            }
        }
        unreachable!("an entry of level 1 is no table")
    }

    /// Translates a virtual address to a physical one.
    ///
    /// # Errors
    /// As [`Paging::leaf`].
    pub fn translate(self, memory: &mut impl Physical, address: u64) -> Result<u64, Stop> {
        self.leaf(memory, address).map(|leaf| leaf.first + address % leaf.bytes)
    }

    /// Goes through the programs' half from an address on, and tells each page that programs may use. It ends after about `words` reads, at most one table more. Returns where to go on; `None`: the half is done.
    pub fn scan(self, memory: &mut impl Physical, from: u64, words: u32, each: &mut dyn FnMut(u64, Leaf)) -> Option<u64> {
        let (mut at, mut left) = (from, i64::from(words));
        while at < self.user_end() {
            if left <= 0 {
                return Some(at);
            }
            at = self.scan_one(memory, at, &mut left, each);
        }
        None
    }

    /// The part of a scan that one entry above level 1 covers: returns where it ends.
    fn scan_one(self, memory: &mut impl Physical, at: u64, left: &mut i64, each: &mut dyn FnMut(u64, Leaf)) -> u64 {
        let (mut table, mut all, mut none) = (self.root, WRITABLE | USER, 0);
        for level in (2..=self.levels).rev() {
            let size = size_of_leaf(level);
            let end = (at & !(size - 1)) + size;
            *left -= 1;
            let Some(word) = memory.word(table + index(at, level) * 8) else {
                *left -= ENTRIES as i64;
                return end;
            };
            all &= word;
            none |= word;
            match self.entry(word, level) {
                // What only the kernel may use is of no program's run.
                Ok(_) if all & USER == 0 => return end,
                Ok(Entry::Table(next)) => table = next,
                Ok(Entry::Leaf(first)) => {
                    each(at & !(size - 1), leaf(first, level, all, none));
                    return end;
                }
                Err(_) => return end,
            }
        }
        let base = at & !(size_of_leaf(2) - 1);
        for n in index(at, 1)..ENTRIES {
            *left -= 1;
            // If one word of a table cannot be had, the others cannot.
            let Some(word) = memory.word(table + n * 8) else {
                *left -= ENTRIES as i64;
                break;
            };
            if let Ok(Entry::Leaf(first)) = self.entry(word, 1)
                && all & word & USER != 0
            {
                each(base + n * PAGE, leaf(first, 1, all & word, none | word));
            }
        }
        base + size_of_leaf(2)
    }
}

/// The place in a table of this level.
fn index(address: u64, level: u32) -> u64 {
    address >> (12 + 9 * (level - 1)) & (ENTRIES - 1)
}

/// What an entry of this level covers.
fn size_of_leaf(level: u32) -> u64 {
    PAGE << (9 * (level - 1))
}

fn leaf(first: u64, level: u32, all: u64, none: u64) -> Leaf {
    Leaf {
        first,
        bytes: size_of_leaf(level),
        writable: all & WRITABLE != 0,
        user: all & USER != 0,
        executable: none & NO_EXECUTE == 0,
    }
}

#[cfg(test)]
#[path = "paging_tests.rs"]
mod tests;
