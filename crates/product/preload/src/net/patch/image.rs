//! What is mapped, and where functions begin and end in it.

use super::search::{each_match, is_syscall};
use super::{NR_CLOSE, NR_OPEN, NR_READ, O_CLOEXEC, SYSCALL, Text, raw};
use iced_x86::{Decoder, DecoderOptions};
use std::ops::Range;

/// One line of `/proc/self/maps` that maps a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapping<'a> {
    pub(super) range: Range<u64>,
    pub(super) permissions: &'a str,
    pub(super) offset: u64,
    pub(super) path: &'a str,
}

/// A library in memory.
pub(super) struct Image {
    pub(super) texts: Vec<Range<u64>>,
    pub(super) functions: Functions,
}

/// `/proc/self/maps`, empty if it cannot be read.
pub(super) fn read_maps() -> String {
    let mut bytes = Vec::new();
    // SAFETY: opens by a constant name.
    let fd = unsafe { raw(NR_OPEN, [c"/proc/self/maps".as_ptr() as u64, O_CLOEXEC, 0, 0, 0, 0]) };
    if fd < 0 {
        return String::new();
    }
    let mut piece = [0u8; 4096];
    loop {
        // SAFETY: writes at most the length of `piece`.
        let count = unsafe { raw(NR_READ, [fd as u64, piece.as_mut_ptr() as u64, piece.len() as u64, 0, 0, 0]) };
        if count <= 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..count as usize]);
    }
    // SAFETY: our own descriptor, not used after.
    unsafe { raw(NR_CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn parse_mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let path = words.nth(2)?.trim_start();
    path.starts_with('/').then_some(Mapping { range, permissions, offset, path })
}

pub(super) fn is_named(path: &str, names: &[&str]) -> bool {
    let file = path.rsplit('/').next().unwrap_or("");
    names.iter().any(|name| file.starts_with(name))
}

pub(super) fn images(maps: &str, names: &[&str]) -> Vec<Image> {
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(parse_mapping).collect();
    let wanted =
        |mapping: &&Mapping<'_>| mapping.offset == 0 && mapping.permissions.starts_with('r') && is_named(mapping.path, names);
    mappings.iter().filter(wanted).filter_map(|first| image(first, &mappings)).collect()
}

/// Reads the program headers of the library that begins at `first`.
pub(super) fn image(first: &Mapping<'_>, mappings: &[Mapping<'_>]) -> Option<Image> {
    let mappings: Vec<&Mapping<'_>> = mappings.iter().filter(|mapping| mapping.path == first.path).collect();
    let memory = Memory { mappings };
    let base = first.range.start;
    if memory.bytes(base, 6)? != *b"\x7fELF\x02\x01" {
        return None;
    }
    let headers = base + memory.u64(base + 0x20)?;
    let (size, count) = (u64::from(memory.u16(base + 0x36)?), u64::from(memory.u16(base + 0x38)?));
    let (mut texts, mut table) = (Vec::new(), None);
    let all = || (0..count).map(|index| headers + index * size);
    let first_loaded = all().find(|&header| memory.u32(header) == Some(PT_LOAD))?;
    let bias = base.wrapping_sub(memory.u64(first_loaded + 16)? & !0xfff);
    for header in all() {
        let (kind, flags) = (memory.u32(header)?, memory.u32(header + 4)?);
        let (address, length) = (memory.u64(header + 16)?, memory.u64(header + 32)?);
        let start = bias.wrapping_add(address);
        match kind {
            PT_LOAD if flags & PF_X != 0 && memory.executable(start, length) => texts.push(start..start + length),
            PT_GNU_EH_FRAME => table = Some(start),
            _ => {}
        }
    }
    let functions = Functions::read(&memory, table?, &texts)?;
    Some(Image { texts, functions })
}

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;

/// The memory of one library: reads what is mapped readable from its file, and nothing else.
pub(super) struct Memory<'a> {
    mappings: Vec<&'a Mapping<'a>>,
}

impl Memory<'_> {
    fn mapped(&self, start: u64, length: u64, permissions: &str) -> bool {
        let inside = |mapping: &&Mapping<'_>| mapping.range.contains(&start) && mapping.range.end - start >= length;
        self.mappings.iter().any(|m| inside(m) && m.permissions.starts_with(permissions))
    }

    fn executable(&self, start: u64, length: u64) -> bool {
        length > 0 && self.mapped(start, length, "r-xp")
    }

    fn bytes(&self, start: u64, length: u64) -> Option<&[u8]> {
        // SAFETY: mapped readable from a file, and libraries are neither unmapped nor changed while the process starts.
        self.mapped(start, length, "r").then(|| unsafe { std::slice::from_raw_parts(start as *const u8, length as usize) })
    }

    fn u8(&self, at: u64) -> Option<u8> {
        self.bytes(at, 1).map(|bytes| bytes[0])
    }

    fn u16(&self, at: u64) -> Option<u16> {
        self.bytes(at, 2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at, 4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn i32(&self, at: u64) -> Option<i64> {
        self.u32(at).map(|value| i64::from(value as i32))
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at, 8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Where functions begin and end, from `.eh_frame_hdr`; those that contain the bytes of a `syscall`.
#[derive(Default)]
pub(super) struct Functions {
    pub(super) all: Vec<Range<u64>>,
    /// Bytes of a `syscall` in no function.
    pub(super) unknown: usize,
    /// Where all functions of the file begin, in order: distances from the table.
    pub(super) rows: &'static [[u8; 8]],
    pub(super) table: u64,
}

/// Encodings of pointers in `.eh_frame` (`DW_EH_PE_`): 4 bytes unsigned; 4 bytes signed relative to the table; to itself.
const PE_UDATA4: u8 = 0x03;
const PE_DATAREL_SDATA4: u8 = 0x3b;
const PE_PCREL_SDATA4: u8 = 0x1b;

impl Functions {
    /// The functions of `texts` that the table names. Functions without the bytes of a `syscall` are of no interest, and are
    /// most of them: so the bytes are looked for first, and then the functions that they are in.
    pub(super) fn read(memory: &Memory<'_>, table: u64, texts: &[Range<u64>]) -> Option<Functions> {
        let [version, _, count, entries] = *memory.bytes(table, 4)? else { return None };
        if (version, count, entries) != (1, PE_UDATA4, PE_DATAREL_SDATA4) {
            return None;
        }
        let count = u64::from(memory.u32(table + 8)?);
        // Function and description, in the order of functions.
        let (rows, _) = memory.bytes(table + 12, count * 8)?.as_chunks::<8>();
        let at = |word: &[u8]| {
            let offset = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
            table.wrapping_add_signed(i64::from(offset))
        };
        // SAFETY: mapped readable from a file, and libraries are neither unmapped nor changed while the process starts, which is as long as these are used.
        let rows_for_good = unsafe { std::slice::from_raw_parts(rows.as_ptr(), rows.len()) };
        let mut functions = Functions { rows: rows_for_good, table, ..Functions::default() };
        for text in texts {
            let Some(bytes) = memory.bytes(text.start, text.end - text.start) else { continue };
            each_match(bytes, is_syscall, |offset| {
                let site = text.start + offset as u64;
                let end = site + SYSCALL.len() as u64;
                let next = rows.partition_point(|row| at(row) <= site);
                let row = next.checked_sub(1).and_then(|last| rows.get(last));
                let Some((start, entry)) = row.map(|row| (at(row), at(&row[4..]))) else {
                    functions.unknown += 1;
                    return;
                };
                if functions.all.last().is_some_and(|last| last.start == start && end <= last.end) {
                    return;
                }
                let named = u64::from(memory.u32(entry + 12).unwrap_or(0));
                // The description of `clone` ends before its call: the rest, up to the next function, goes on where it ended.
                let behind = rows.get(next).map_or(text.end, |row| at(row)).saturating_sub(start);
                let length = if end <= start + named { named } else { behind };
                let holds = end <= start + length && memory.bytes(start, length).is_some();
                if holds && plain_entry(memory, entry, start) == Some(true) {
                    functions.all.push(start..start + length);
                } else if !is_restorer(&bytes[..offset]) {
                    functions.unknown += 1;
                }
            });
        }
        Some(functions)
    }
}

impl Functions {
    /// Whether no instruction begins at `at`, which lies in a function that can be decoded so far.
    pub(super) fn is_inside_instruction(&self, text: &Text<'_>, at: u64) -> bool {
        let begins = |row: &[u8; 8]| self.table.wrapping_add_signed(i32::from_le_bytes([row[0], row[1], row[2], row[3]]).into());
        let next = self.rows.partition_point(|row| begins(row) <= at);
        let Some(start) = next.checked_sub(1).and_then(|row| self.rows.get(row)).map(begins) else { return false };
        let end = self.rows.get(next).map_or(at, begins).max(at + 1);
        let Some(bytes) = text.slice(&(start..end)) else { return false };
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        let around = decoder.iter().find(|instruction| instruction.is_invalid() || instruction.next_ip() > at);
        around.is_some_and(|instruction| !instruction.is_invalid() && instruction.ip() != at)
    }
}

/// Whether a `syscall` behind these bytes is that of a signal handler's restorer: `mov rax, 15`.
pub(super) fn is_restorer(before: &[u8]) -> bool {
    before.ends_with(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0]) || before.ends_with(&[0xb8, 15, 0, 0, 0])
}

/// Whether the frame description at `entry` is for an ordinary function at `start`. `None`: it cannot be read.
pub(super) fn plain_entry(memory: &Memory<'_>, entry: u64, start: u64) -> Option<bool> {
    let information = (entry + 4).checked_sub(u64::from(memory.u32(entry + 4)?))?;
    if memory.u32(information + 4)? != 0 {
        return None;
    }
    let mut at = information + 9;
    let mut augmentation = Vec::new();
    while let letter @ 1.. = memory.u8(at)? {
        augmentation.push(letter);
        at += 1;
    }
    let signal_frame = augmentation.contains(&b'S');
    if augmentation.first() != Some(&b'z') {
        return None;
    }
    // Behind the zero: code and data alignment, return column, length of what follows: one byte each in practice.
    let numbers = memory.bytes(at + 1, 4)?;
    if numbers.iter().any(|byte| byte & 0x80 != 0) {
        return None;
    }
    at += 5;
    for letter in &augmentation[1..] {
        match letter {
            b'R' => {
                let here = (entry + 8).wrapping_add_signed(memory.i32(entry + 8)?);
                return Some(memory.u8(at)? == PE_PCREL_SDATA4 && here == start && !signal_frame);
            }
            b'L' => at += 1,
            // A personality: its encoding and 4 bytes.
            b'P' if memory.u8(at)? & 0x0f == 0x0b => at += 5,
            b'S' => {}
            _ => return None,
        }
    }
    None
}
