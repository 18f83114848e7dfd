//! Functions of a program as its file lists them, for programs without `.eh_frame_hdr`: most static ones.
//!
//! | the list | whose | what is searched for jumps into windows |
//! |---|---|---|
//! | `.gopclntab` | Go's linker | the functions themselves: a jump of Go's code leads within its function, or to the first byte of another |
//! | `.eh_frame` | C, C++, Rust | all of the text |
//! | `.symtab` | code without unwind information (musl) | all of the text |
//!
//! None of them is loaded with a table to search it by, so the caller hands in the whole file.

use crate::SYSCALL;
use crate::functions::{Begins, Functions, is_restorer, plain_entry};
use crate::image::{Image, Memory, Part, find_section};
use crate::search::each_syscall;
use std::borrow::Cow;
use std::ops::Range;

/// Text that is searched for calls of Go programs: the runtime comes first, then the package that makes calls for all others.
const GO_SEARCHED: usize = 4 << 20;
/// Text that is searched for jumps, at most: a search takes a millisecond for some 4 MiB.
const SEARCHED: u64 = 16 << 20;
const SYMBOL: usize = 24;
/// The type of functions among symbols.
const STT_FUNC: u8 = 2;

/// What each list says of the functions of `image` that have the bytes of a `syscall`; and whether jumps into them may come from elsewhere.
pub(crate) fn all<'i, 'a>(image: &'i Image<'a>, file: &'a [u8]) -> impl Iterator<Item = (Functions<'a>, bool)> + use<'i, 'a> {
    let text: u64 = image.texts().iter().map(|text| text.end - text.start).sum();
    (0..3).filter_map(move |list| {
        let functions = match list {
            0 => of_go(image, file),
            1 if text <= SEARCHED => of_frames(image, file),
            2 if text <= SEARCHED => of_symbols(image, file),
            _ => None,
        };
        Some((functions?, list != 0))
    })
}

/// Go: `internal/abi` and `runtime/symtab.go` of Go 1.18 and later. All distances are from the first byte of the text.
fn of_go<'a>(image: &Image<'a>, file: &'a [u8]) -> Option<Functions<'a>> {
    const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
    let table = find_section(file, ".gopclntab").or_else(|| find_section(file, ".data.rel.ro.gopclntab"))?;
    let whole = [Part { start: 0, bytes: file, executable: false }];
    let memory = Memory(&whole);
    let at = table.offset;
    let header = (memory.u32(at)?, memory.u8(at + 6)?, memory.u8(at + 7)?);
    if !MAGICS.contains(&header.0) || (header.1, header.2) != (1, 8) {
        return None;
    }
    let count = memory.u64(at + 8)?;
    let rows = at.checked_add(memory.u64(at + 64)?)?;
    let text = find_section(file, ".text")?;
    let begin = |row: u64| Some(text.address + u64::from(memory.u32(rows + row * 8)?));
    // The first row that begins behind an address.
    let behind = |address: u64| {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if begin(middle)? <= address { low = middle + 1 } else { high = middle }
        }
        Some(low)
    };
    let around = |address: u64| {
        let next = behind(address)?;
        Some(begin(next.checked_sub(1)?)?..begin(next)?)
    };
    // A program that C's linker has put together begins with C's code, and its text begins elsewhere.
    let entry = memory.u64(0x18)?;
    if around(entry)?.start != entry {
        return None;
    }
    let mut functions = Functions::default();
    let code = &text.bytes[..text.bytes.len().min(GO_SEARCHED)];
    each_syscall(code, |offset| {
        let site = text.address + offset as u64;
        let Some(function) = around(site).filter(|function| site + SYSCALL.len() as u64 <= function.end) else {
            return functions.unknown += 1;
        };
        let moved = image.bias().wrapping_add(function.start)..image.bias().wrapping_add(function.end);
        if functions.all.last() != Some(&moved) {
            functions.all.push(moved);
        }
    });
    // Of the rest nothing is known.
    functions.unknown += 1;
    Some(functions)
}

/// By the unwind information: what a linker would have put into `.eh_frame_hdr`.
fn of_frames<'a>(image: &Image<'a>, file: &'a [u8]) -> Option<Functions<'a>> {
    let section = find_section(file, ".eh_frame").filter(|section| section.address != 0)?;
    let memory = image.memory();
    let table = image.bias().wrapping_add(section.address);
    let distance = |to: u64| i32::try_from(to.wrapping_sub(table) as i64).ok().map(i32::to_le_bytes);
    let mut rows: Vec<(i32, [u8; 8])> = Vec::new();
    let (mut at, end) = (table, table.checked_add(section.bytes.len() as u64)?);
    while at + 8 <= end {
        let length = memory.u32(at)?;
        // The end, or entries of more than 4 GiB, which nobody makes.
        if length == 0 || length == u32::MAX {
            break;
        }
        if memory.u32(at + 4)? != 0 {
            let start = (at + 8).wrapping_add_signed(memory.i32(at + 8)?.into());
            if plain_entry(&memory, at, start).is_some() {
                let [begin, entry] = [distance(start)?, distance(at)?];
                let mut row = [0; 8];
                row[..4].copy_from_slice(&begin);
                row[4..].copy_from_slice(&entry);
                rows.push((i32::from_le_bytes(begin), row));
            }
        }
        at += u64::from(length) + 4;
    }
    rows.sort_unstable_by_key(|row| row.0);
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    Some(Functions::of_rows(&memory, Begins { rows: Cow::Owned(rows), table }, image.texts()))
}

/// By the symbols that are functions, from each to its end.
fn of_symbols<'a>(image: &Image<'a>, file: &'a [u8]) -> Option<Functions<'a>> {
    let symbols = find_section(file, ".symtab")?.bytes;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for symbol in symbols.chunks_exact(SYMBOL) {
        let word = |at: usize| symbol[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (value, size) = (word(8), word(16));
        if symbol[4] & 0xf == STT_FUNC && size != 0 {
            let start = image.bias().wrapping_add(value);
            ranges.push(start..start.checked_add(size)?);
        }
    }
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by_key(|range| range.start);
    let table = ranges.first()?.start;
    let row = |range: &Range<u64>| {
        let mut row = [0; 8];
        row[..4].copy_from_slice(&i32::try_from(range.start - table).ok()?.to_le_bytes());
        Some(row)
    };
    let rows: Vec<[u8; 8]> = ranges.iter().map(row).collect::<Option<_>>()?;
    let mut functions = Functions { begins: Begins { rows: Cow::Owned(rows), table }, ..Functions::default() };
    for text in image.texts() {
        let Some(bytes) = image.memory().bytes(text.start, text.end - text.start) else { continue };
        each_syscall(bytes, |offset| {
            let site = text.start + offset as u64;
            let next = ranges.partition_point(|range| range.start <= site);
            let function = next.checked_sub(1).map(|last| &ranges[last]).filter(|range| site + SYSCALL.len() as u64 <= range.end);
            match function {
                Some(function) if functions.all.last() != Some(function) => functions.all.push(function.clone()),
                Some(_) => {}
                None if is_restorer(&bytes[..offset]) => {}
                None => functions.unknown += 1,
            }
        });
    }
    Some(functions)
}
