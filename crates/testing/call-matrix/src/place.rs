//! Where a call's buffers lie, and in what state their pages are.

use crate::call::Buffer;
use crate::memory::{Mapping, PAGE, Part};

/// Bytes of pattern before and after each buffer, which must not change.
pub const CANARY: usize = 64;
/// The pattern.
pub const CANARY_BYTE: u8 = 0xc7;

/// Where the buffers of a call lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In managed memory that has just been written.
    Resident,
    /// In managed memory that is out.
    Absent,
    /// On two managed pages, of which the first has come back and the second is out.
    Half,
    /// Across the end of managed memory that is out: the rest is ordinary.
    EdgeOut,
    /// The other way round.
    EdgeIn,
    /// One of the buffers across the end of managed memory that is out, and nothing behind.
    End,
    /// In managed memory that was out and has been read: clean, and write-protected.
    Clean,
    /// In managed memory, while another thread pushes it out.
    Leaving,
}

/// All of them.
pub const WAYS: [Way; 8] = [Way::Resident, Way::Absent, Way::Half, Way::EdgeOut, Way::EdgeIn, Way::End, Way::Clean, Way::Leaving];

impl Way {
    /// As the output says it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Resident => "resident",
            Way::Absent => "absent",
            Way::Half => "half",
            Way::EdgeOut => "edge-out",
            Way::EdgeIn => "edge-in",
            Way::End => "end",
            Way::Clean => "clean",
            Way::Leaving => "leaving",
        }
    }
    /// How many calls are prepared and placed at one time. Few where pages shall be write-protected: all of them are brought
    /// in before the first call, and must fit the limit.
    pub fn at_once(self) -> usize {
        if self == Way::Clean { 40 } else { usize::MAX }
    }
}

/// What lies on one side of the place where a buffer is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Managed,
    Other(Part),
}

/// Where one buffer goes: computed before there is memory for it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pages before the place where it is divided, and behind.
    pages: [usize; 2],
    /// What is put in, if it is not managed.
    other: [Option<Part>; 2],
    /// Bytes before the division.
    before: usize,
    /// Whether there is memory for a canary behind.
    behind: bool,
}

/// Where one buffer is.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its first byte.
    pub addr: u64,
    /// Bytes of it that exist: less than its length where it ends in nothing.
    pub exists: usize,
    /// Managed pages that it touches: an address in each.
    pub managed: Vec<u64>,
    /// Whether the canary behind it exists.
    pub behind: bool,
}

impl Plan {
    /// For a buffer. `at_the_end`: this is the one that way [`Way::End`] is about.
    pub fn new(buffer: &Buffer, way: Way, at_the_end: bool) -> Plan {
        let sides = match way {
            Way::EdgeOut => [Side::Managed, Side::Other(Part::Ordinary)],
            Way::EdgeIn => [Side::Other(Part::Ordinary), Side::Managed],
            Way::End if at_the_end => [Side::Managed, Side::Other(Part::Hole)],
            _ => [Side::Managed, Side::Managed],
        };
        let len = buffer.bytes.len();
        // What cannot be divided, such as a futex word, begins at the division; at the end of everything it ends there.
        let middle = len / 2 / buffer.align * buffer.align;
        let divided = matches!(way, Way::Half | Way::EdgeOut | Way::EdgeIn | Way::End | Way::Clean | Way::Leaving);
        let before = match way {
            Way::End if at_the_end && middle == 0 => len,
            // Begins on the first page, and ends where it ends.
            _ if !divided => PAGE - CANARY.next_multiple_of(buffer.align).min(PAGE),
            _ => middle,
        };
        let other = sides.map(|side| if let Side::Other(part) = side { Some(part) } else { None });
        let pages = [(before + CANARY).div_ceil(PAGE), (len.saturating_sub(before) + CANARY).div_ceil(PAGE)];
        Plan { pages, other, before, behind: other[1] != Some(Part::Hole) }
    }
    /// Pages that it needs.
    pub fn pages(&self) -> usize {
        self.pages[0] + self.pages[1]
    }
    /// Gives it the pages of `mapping` from `page` on.
    pub fn carry_out(&self, mapping: &Mapping, page: usize, len: usize) -> Result<Placed, String> {
        let [first, second] = self.pages;
        for (at, count, other) in [(page, first, self.other[0]), (page + first, second, self.other[1])] {
            if let Some(part) = other {
                mapping.replace(at, count, part)?;
            }
        }
        let division = mapping.start() + ((page + first) * PAGE) as u64;
        let addr = division - self.before as u64;
        let exists = if self.behind { len } else { len.min(self.before) };
        let size = PAGE as u64;
        let managed = (addr / size..(addr + len.max(1) as u64).div_ceil(size))
            .map(|number| (number * size).max(addr))
            .filter(|&at| self.other[usize::from(at >= division)].is_none())
            .collect();
        Ok(Placed { addr, exists, managed, behind: self.behind })
    }
}
