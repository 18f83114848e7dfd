//! Whole instructions around a `syscall`, and how they are moved.

use crate::decode::Instruction;
use crate::{JUMP_LENGTH, SYSCALL};
use std::ops::Range;

/// Bytes of the longest window. A stub has room for it (`catch/src/patch.rs`).
pub const WINDOW_MOST: usize = 33;
/// Instructions in a window besides the `syscall`, at most.
const OTHERS: usize = 3;

/// Where a window has the distance from `rip` to an operand, 4 bytes: offsets into the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixup {
    /// Of the distance.
    pub at: u8,
    /// Of the next instruction, from which it is counted.
    pub next: u8,
}

/// Whole instructions around a `syscall`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Addresses.
    pub range: Range<u64>,
    /// The address behind the `syscall`.
    pub site: u64,
    /// Number of the call, or [`crate::ANY_NUMBER`].
    pub number: u64,
    bytes: [u8; WINDOW_MOST],
    fixups: [Fixup; OTHERS],
    fixed: u8,
}

impl Window {
    /// The window of these bytes at `start`, with its `syscall` ending at `site`. `None`: that makes no window.
    pub fn new(start: u64, bytes: &[u8], site: u64, number: u64, fixups: &[Fixup]) -> Option<Window> {
        let end = start.checked_add(bytes.len() as u64)?;
        let call = usize::try_from(site.checked_sub(start)?).ok()?.checked_sub(SYSCALL.len())?;
        let (length, behind) = (bytes.len(), call + SYSCALL.len());
        let is_inside = |fixup: &Fixup| {
            let (at, next) = (usize::from(fixup.at), usize::from(fixup.next));
            at + 4 <= next && (next <= call || at > behind && next <= length)
        };
        let is_window = length >= JUMP_LENGTH && bytes.get(call..behind)? == SYSCALL && fixups.iter().all(is_inside);
        let mut window = Window {
            range: start..end,
            site,
            number,
            bytes: [0; WINDOW_MOST],
            fixups: [Fixup::default(); OTHERS],
            fixed: fixups.len() as u8,
        };
        window.bytes.get_mut(..length)?.copy_from_slice(bytes);
        window.fixups.get_mut(..fixups.len())?.copy_from_slice(fixups);
        is_window.then_some(window)
    }

    /// The same, with the fix-ups that its instructions need.
    pub fn decoded(start: u64, bytes: &[u8], site: u64, number: u64) -> Option<Window> {
        let (mut fixups, mut count) = ([Fixup::default(); OTHERS], 0);
        let mut first = 0;
        while first < bytes.len() {
            let instruction = Instruction::decode(&bytes[first..], start + first as u64)?;
            let next = first + instruction.length() as usize;
            if let Some(at) = instruction.relative_at() {
                *fixups.get_mut(count)? = Fixup { at: u8::try_from(first + at).ok()?, next: u8::try_from(next).ok()? };
                count += 1;
            }
            first = next;
        }
        Window::new(start, bytes, site, number, &fixups[..count])
    }

    /// The program's own bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..(self.range.end - self.range.start) as usize]
    }

    /// In the order of the bytes.
    pub fn fixups(&self) -> &[Fixup] {
        &self.fixups[..self.fixed.into()]
    }

    /// The instructions of `part`, all of those before or behind the `syscall`, as they are at the address `to`. `None`: an operand is too far from there.
    pub fn moved(&self, part: Range<u64>, to: u64) -> Option<Moved> {
        let (first, end) = ((part.start - self.range.start) as usize, (part.end - self.range.start) as usize);
        let mut moved = Moved { bytes: self.bytes, first, end };
        let way = to.wrapping_sub(part.start) as i64;
        for fixup in self.fixups() {
            let at = usize::from(fixup.at);
            if (first..end).contains(&at) {
                let distance = moved.bytes.get_mut(at..)?.first_chunk_mut()?;
                let fixed = i64::from(i32::from_le_bytes(*distance)).checked_sub(way)?;
                *distance = i32::try_from(fixed).ok()?.to_le_bytes();
            }
        }
        Some(moved)
    }
}

/// Instructions that do elsewhere what they did where they were.
#[derive(Clone, Debug)]
pub struct Moved {
    bytes: [u8; WINDOW_MOST],
    first: usize,
    end: usize,
}

impl Moved {
    /// They.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.first..self.end]
    }
}
