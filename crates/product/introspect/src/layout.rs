//! Which guest-physical address is which byte of the guest's memory.
//!
//! A machine's memory does not begin at 0 and go on to its end: QEMU leaves a hole below 4 GiB, for devices, and one for the old screen. How large it is depends on the kind of machine and on options. So it is not
//! guessed: QEMU's monitor tells it (`info mtree -f`), by the names of memory backends.

use crate::PAGE;
use std::collections::BTreeMap;

/// A part of the guest's memory that lies in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The guest-physical address of its first byte.
    pub physical: u64,
    /// The number of the backend, in the order in which [`Layout::of_mtree`] was given them.
    pub backend: usize,
    /// Its place in that backend's memory.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
}

/// The pieces, in order of physical addresses; no two overlap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    pieces: Vec<Piece>,
}

/// The most pieces that are kept.
const PIECES_MAX: usize = 4096;

impl Layout {
    /// A layout of these pieces. Those that overlap one before, are empty or are no whole pages are left out.
    #[must_use]
    pub fn new(mut pieces: Vec<Piece>) -> Layout {
        let whole = |piece: &Piece| {
            let ends = [piece.physical.checked_add(piece.bytes), piece.offset.checked_add(piece.bytes)];
            piece.bytes > 0
                && ends.iter().all(Option::is_some)
                && [piece.physical, piece.offset, piece.bytes].iter().all(|n| n % PAGE == 0)
        };
        pieces.retain(whole);
        pieces.sort_unstable_by_key(|piece| piece.physical);
        let mut end = 0;
        pieces.retain(|piece| {
            let fits = piece.physical >= end;
            if fits {
                end = piece.physical + piece.bytes;
            }
            fits
        });
        pieces.truncate(PIECES_MAX);
        Layout { pieces }
    }

    /// Reads what QEMU says to `info mtree -f`. `backends` has the sizes of the memory backends that are known, in bytes: a name belongs to the one whose size it has, if there is one such name and one such
    /// backend.
    ///
    /// ```text
    ///   0000000000000000-000000000009ffff (prio 0, ram): farshore
    ///   0000000000100000-000000000bffffff (prio 0, ram): farshore @0000000000100000 KVM
    /// ```
    #[must_use]
    pub fn of_mtree(text: &str, backends: &[u64]) -> Layout {
        // Of the address spaces the one that processors have; devices may see less.
        let views: Vec<&str> = text.split("FlatView #").collect();
        let is_memory = |view: &&&str| view.contains("AS \"memory\"");
        let view = views.iter().find(is_memory).copied().unwrap_or_default();
        let lines: Vec<Line<'_>> = view.lines().filter_map(Line::read).collect();
        let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
        for line in &lines {
            let end = ends.entry(line.name).or_default();
            *end = line.offset.saturating_add(line.bytes).max(*end);
        }
        let mut names: BTreeMap<u64, usize> = BTreeMap::new();
        ends.values().for_each(|size| *names.entry(*size).or_default() += 1);
        let of_name = |name: &str| {
            let size = *ends.get(name)?;
            let number = backends.iter().position(|bytes| *bytes == size)?;
            let is_only = names[&size] == 1 && backends.iter().filter(|bytes| **bytes == size).count() == 1;
            is_only.then_some(number)
        };
        let piece = |line: &Line<'_>| {
            let backend = of_name(line.name)?;
            Some(Piece { physical: line.physical, backend, offset: line.offset, bytes: line.bytes })
        };
        Layout::new(lines.iter().filter_map(piece).collect())
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// The backend and the place in it of a guest-physical address.
    #[must_use]
    pub fn place(&self, physical: u64) -> Option<(usize, u64)> {
        let behind = self.pieces.partition_point(|piece| piece.physical <= physical);
        let piece = self.pieces[..behind].last()?;
        let within = physical - piece.physical;
        (within < piece.bytes).then_some((piece.backend, piece.offset + within))
    }

    /// The guest-physical address of a place in a backend.
    #[must_use]
    pub fn physical(&self, backend: usize, offset: u64) -> Option<u64> {
        let has = |piece: &&Piece| piece.backend == backend && (piece.offset..piece.offset + piece.bytes).contains(&offset);
        self.pieces.iter().find(has).map(|piece| piece.physical + (offset - piece.offset))
    }
}

/// A line about memory.
struct Line<'t> {
    physical: u64,
    bytes: u64,
    name: &'t str,
    offset: u64,
}

impl<'t> Line<'t> {
    /// `None`: the line is about something else.
    fn read(line: &'t str) -> Option<Line<'t>> {
        let (range, rest) = line.trim().split_once(' ')?;
        let (first, last) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (physical, last) = (number(first)?, number(last)?);
        // `rom` is memory too, which is write-protected at this address.
        let (kind, named) = rest.split_once("): ")?;
        if !matches!(kind.rsplit(' ').next(), Some("ram" | "rom")) {
            return None;
        }
        let mut words = named.split_ascii_whitespace();
        let name = words.next()?;
        let offset = words.find_map(|word| word.strip_prefix('@'));
        let offset = offset.map_or(Some(0), number)?;
        Some(Line { physical, bytes: last.checked_sub(physical)?.checked_add(1)?, name, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QEMU 7.2, `-m 6G`.
    const TREE: &str = "FlatView #0\r\n AS \"I/O\", root: io\r\n Root memory region: io\r\n  0000000000000000-0000000000000007 (prio 0, i/o): dma-chan\r\n\r\n\
FlatView #1\r\n AS \"memory\", root: system\r\n AS \"cpu-memory-0\", root: system\r\n Root memory region: system\r\n\
  0000000000000000-000000000009ffff (prio 0, ram): farshore\r\n\
  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem\r\n\
  00000000000c0000-00000000000dffff (prio 0, rom): farshore @00000000000c0000\r\n\
  00000000000e0000-00000000000fffff (prio 0, rom): pc.bios @0000000000020000\r\n\
  0000000000100000-00000000bfffffff (prio 0, ram): farshore @0000000000100000 KVM\r\n\
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios\r\n\
  0000000100000000-00000001bfffffff (prio 0, ram): farshore @00000000c0000000\r\n";

    #[test]
    fn memory_below_and_above_the_hole_is_told_apart() {
        let layout = Layout::of_mtree(TREE, &[6 << 30]);
        assert_eq!(layout.pieces().len(), 4);
        for (physical, place) in [
            (0x1000, Some(0x1000)),
            (0x9_ffff, Some(0x9_ffff)),
            (0xa_0000, None),
            (0xc_8000, Some(0xc_8000)),
            (0xe_0000, None),
            (0xbfff_ffff, Some(0xbfff_ffff)),
            (0xc000_0000, None),
            (0x1_0000_0000, Some(0xc000_0000)),
            (0x1_bfff_ffff, Some(0x1_7fff_ffff)),
            (0x1_c000_0000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(layout.place(physical), place.map(|place| (0, place)), "{physical:#x}");
            if let Some(place) = place {
                assert_eq!(layout.physical(0, place), Some(physical));
            }
        }
        assert_eq!((layout.physical(0, 0xb_0000), layout.physical(1, 0x1000)), (None, None));
    }

    #[test]
    fn backends_are_told_by_their_sizes_alone_where_that_is_sure() {
        let more = format!("{TREE}  00000001c0000000-00000001cfffffff (prio 0, ram): more\r\n");
        let layout = Layout::of_mtree(&more, &[256 << 20, 6 << 30]);
        assert_eq!((layout.place(0x1000), layout.place(0x1_c000_1000)), (Some((1, 0x1000)), Some((0, 0x1000))));
        assert_eq!(Layout::of_mtree(&more, &[256 << 20, 256 << 20]).place(0x1_c000_1000), None, "which of the two?");
        let twice = format!("{more}  00000001d0000000-00000001dfffffff (prio 0, ram): other\r\n");
        assert_eq!(Layout::of_mtree(&twice, &[256 << 20, 6 << 30]).place(0x1_c000_1000), None);
        assert!(Layout::of_mtree(TREE, &[5 << 30]).pieces().is_empty());
    }

    #[test]
    fn what_is_no_line_about_memory_is_passed_over() {
        for text in [
            "",
            "FlatView #",
            "FlatView #0\n AS \"memory\"\n  zz-yy (prio 0, ram): farshore",
            "FlatView #0\n AS \"memory\"\n  0000000000002000-0000000000001fff (prio 0, ram): farshore",
            "FlatView #0\n AS \"memory\"\n  0000000000000000-ffffffffffffffff (prio 0, ram): farshore",
            "FlatView #0\n AS \"memory\"\n  0000000000000000-0000000000000fff (prio 0, ram): farshore @ffffffffffffffff",
            "unknown command: 'info'\n",
        ] {
            assert!(Layout::of_mtree(text, &[4096]).pieces().is_empty(), "{text}");
        }
        let piece = |physical, bytes| Piece { physical, backend: 0, offset: 0, bytes };
        let layout = Layout::new(vec![piece(0x2000, 0x2000), piece(0x1000, 0x2000), piece(0x8000, 0x100), piece(0x9000, 0)]);
        assert_eq!(layout.pieces(), [piece(0x1000, 0x2000)]);
    }
}
