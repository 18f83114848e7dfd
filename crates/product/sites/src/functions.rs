//! Where functions begin and end: `.eh_frame_hdr` and `.eh_frame`.

use crate::SYSCALL;
use crate::decode::Instructions;
use crate::image::{Memory, Text};
use crate::search::each_syscall;
use std::borrow::Cow;
use std::ops::Range;

/// The functions that contain the bytes of a `syscall`, as `.eh_frame_hdr` names them.
#[derive(Default)]
pub(crate) struct Functions<'a> {
    pub(crate) all: Vec<Range<u64>>,
    /// Bytes of a `syscall` in no function.
    pub(crate) unknown: usize,
    pub(crate) begins: Begins<'a>,
}

/// Where all functions of the image begin, in order: distances from the table, each with that of its description.
#[derive(Default)]
pub(crate) struct Begins<'a> {
    pub(crate) rows: Cow<'a, [[u8; 8]]>,
    pub(crate) table: u64,
}

/// Encodings of pointers in `.eh_frame` (`DW_EH_PE_`): 4 bytes unsigned; 4 bytes signed relative to the table; to itself.
const PE_UDATA4: u8 = 0x03;
const PE_DATAREL_SDATA4: u8 = 0x3b;
const PE_PCREL_SDATA4: u8 = 0x1b;

/// Bytes that are decoded as one function, at most. Text that the table does not know lies behind a function that it knows. That is hundreds of megabytes in a program
/// that was compiled without unwind information, but for some libraries in it (Chromium).
pub(crate) const FUNCTION_MOST: u64 = 256 << 10;

impl<'a> Functions<'a> {
    /// The functions of `texts` that the table names. Functions without the bytes of a `syscall` are of no interest, and are
    /// most of them: so the bytes are looked for first, and then the functions that they are in.
    pub(crate) fn read(memory: &Memory<'_, 'a>, table: u64, texts: &[Range<u64>]) -> Option<Functions<'a>> {
        let [version, _, count, entries] = *memory.bytes(table, 4)? else { return None };
        if (version, count, entries) != (1, PE_UDATA4, PE_DATAREL_SDATA4) {
            return None;
        }
        let count = u64::from(memory.u32(table + 8)?);
        // Function and description, in the order of functions.
        let (rows, _) = memory.bytes(table + 12, count * 8)?.as_chunks::<8>();
        Some(Functions::of_rows(memory, Begins { rows: Cow::Borrowed(rows), table }, texts))
    }

    /// The same with rows that begin a table, or were made for one.
    pub(crate) fn of_rows(memory: &Memory<'_, 'a>, begins: Begins<'a>, texts: &[Range<u64>]) -> Functions<'a> {
        let mut functions = Functions { begins, ..Functions::default() };
        let Functions { all, unknown, begins: Begins { rows, table } } = &mut functions;
        let (rows, table) = (&rows[..], *table);
        let at = |word: &[u8]| {
            let offset = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
            table.wrapping_add_signed(i64::from(offset))
        };
        for text in texts {
            let Some(bytes) = memory.bytes(text.start, text.end - text.start) else { continue };
            each_syscall(bytes, |offset| {
                let site = text.start + offset as u64;
                let end = site + SYSCALL.len() as u64;
                let next = rows.partition_point(|row| at(row) <= site);
                let row = next.checked_sub(1).and_then(|last| rows.get(last));
                let Some((start, entry)) = row.map(|row| (at(row), at(&row[4..]))) else {
                    *unknown += 1;
                    return;
                };
                if all.last().is_some_and(|last| last.start == start && end <= last.end) {
                    return;
                }
                let named = u64::from(memory.u32(entry.wrapping_add(12)).unwrap_or(0));
                // The description of `clone` ends before its call: the rest, up to the next function, goes on where it ended.
                let behind = rows.get(next).map_or(text.end, |row| at(row)).saturating_sub(start);
                let length = if end <= start + named { named } else { behind };
                let holds = length <= FUNCTION_MOST && end <= start + length && memory.bytes(start, length).is_some();
                if holds && plain_entry(memory, entry, start) == Some(true) {
                    all.push(start..start + length);
                } else if !is_restorer(memory.bytes(site.wrapping_sub(RESTORES), RESTORES).unwrap_or_default()) {
                    *unknown += 1;
                }
            });
        }
        functions
    }

    /// Whether no instruction begins at `at`, which lies in a function that can be decoded so far.
    pub(crate) fn is_inside_instruction(&self, text: &Text<'_>, at: u64) -> bool {
        let Begins { rows, table } = &self.begins;
        let begins = |row: &[u8; 8]| table.wrapping_add_signed(i32::from_le_bytes([row[0], row[1], row[2], row[3]]).into());
        let next = rows.partition_point(|row| begins(row) <= at);
        let Some(start) = next.checked_sub(1).and_then(|row| rows.get(row)).map(begins) else { return false };
        if at - start >= FUNCTION_MOST {
            return false;
        }
        let end = rows.get(next).map_or(at, begins).max(at + 1);
        let Some(bytes) = text.slice(&(start..end)) else { return false };
        let around = Instructions::new(bytes, start).find(|instruction| instruction.is_none_or(|known| known.next_ip() > at));
        around.flatten().is_some_and(|instruction| instruction.ip != at)
    }
}

/// Length of the longer `mov rax, 15`.
const RESTORES: u64 = 7;

/// Whether a `syscall` behind these bytes is that of a signal handler's restorer: `mov rax, 15`.
pub(crate) fn is_restorer(before: &[u8]) -> bool {
    before.ends_with(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0]) || before.ends_with(&[0xb8, 15, 0, 0, 0])
}

/// Whether the frame description at `entry` is for an ordinary function at `start`. `None`: it cannot be read.
pub(crate) fn plain_entry(memory: &Memory<'_, '_>, entry: u64, start: u64) -> Option<bool> {
    let information = entry.checked_add(4)?.checked_sub(u64::from(memory.u32(entry + 4)?))?;
    if memory.u32(information + 4)? != 0 {
        return None;
    }
    let mut at = information + 9;
    // Not a vector: a static program has thousands of descriptions. No compiler makes more letters than `zPLRS`.
    let (mut letters, mut count) = ([0; 8], 0);
    while let letter @ 1.. = memory.u8(at)? {
        *letters.get_mut(count)? = letter;
        count += 1;
        at += 1;
    }
    let augmentation = &letters[..count];
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
                let here = (entry + 8).wrapping_add_signed(memory.i32(entry + 8)?.into());
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
