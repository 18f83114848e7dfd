//! What the bytes of a text may be: `syscall` instructions, and jumps into windows. Megabytes are searched when a program starts.

use crate::SYSCALL;
use crate::image::Text;
use crate::plan::Code;
use std::ops::Range;

/// Where a direct jump or call may lead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Target {
    /// To this address.
    pub(crate) to: u64,
    /// From this one, if it is one at all: bytes outside of the functions that were decoded. `None`: it is one.
    pub(crate) from: Option<u64>,
}

/// What leads, or may lead, into a window, sorted.
pub(crate) fn targets_inside(text: &Text<'_>, code: &mut Code) -> Vec<Target> {
    let spans = Spans::of(text, code);
    let decoded = |at: usize| {
        let address = text.start + at as u64;
        let next = code.decoded.partition_point(|function| function.start <= address);
        next > 0 && code.decoded[next - 1].contains(&address)
    };
    let is_inside = |target: &u64| target.checked_sub(text.start).is_some_and(|at| spans.contain(at as usize));
    let mut targets: Vec<Target> =
        code.targets.iter().filter(|target| is_inside(target)).map(|&to| Target { to, from: None }).collect();
    let mut check = |at: usize, target: usize| {
        if spans.contain(target) && !decoded(at) {
            targets.push(Target { to: text.start + target as u64, from: Some(text.start + at as u64) });
        }
    };
    far_jumps(text.bytes, &mut check);
    let mut done = 0;
    for span in &spans.sorted {
        let sources = span.start.saturating_sub(SHORT_JUMP).max(done)..(span.end + SHORT_JUMP).min(text.bytes.len());
        done = done.max(sources.end);
        short_jumps(text.bytes, sources, &mut check);
    }
    targets.sort_unstable();
    targets
}

/// Farther than a jump of two bytes leads, in either direction.
const SHORT_JUMP: usize = 130;
/// Bytes of text for each bit of [`Spans::near`].
const NEAR: usize = 64;

/// The insides of all windows of each site, as offsets into the text.
struct Spans {
    sorted: Vec<Range<usize>>,
    /// A bit for each piece of the text that some span touches: small enough to stay in the fastest cache.
    near: Vec<u64>,
}

impl Spans {
    fn of(text: &Text<'_>, code: &Code) -> Spans {
        let span = |choices: Range<usize>| {
            let choices = &code.choices[choices];
            let start = choices.iter().map(|choice| choice.inside().start).min()?;
            let end = choices.iter().map(|choice| choice.inside().end).max()?;
            Some((start - text.start) as usize..(end - text.start) as usize)
        };
        let mut sorted: Vec<Range<usize>> = code.sites.iter().filter_map(|site| span(site.choices.clone())).collect();
        sorted.sort_unstable_by_key(|span| span.start);
        let mut near = vec![0; text.bytes.len() / NEAR / 64 + 1];
        for piece in sorted.iter().flat_map(|span| span.start / NEAR..=span.end / NEAR) {
            near[piece / 64] |= 1 << (piece % 64);
        }
        Spans { sorted, near }
    }

    fn contain(&self, at: usize) -> bool {
        let piece = at / NEAR;
        if self.near.get(piece / 64).is_none_or(|bits| bits >> (piece % 64) & 1 == 0) {
            return false;
        }
        // Neighbours' spans may overlap, but none is longer than a few instructions.
        let next = self.sorted.partition_point(|span| span.start <= at);
        self.sorted[next.saturating_sub(8)..next].iter().any(|span| span.contains(&at))
    }
}

/// Whether there are the bytes of a `syscall`.
pub fn has_syscalls(bytes: &[u8]) -> bool {
    let mut found = false;
    each_syscall(bytes, |_| found = true);
    found
}

/// The offsets of all bytes that are a `syscall`.
pub(crate) fn each_syscall(bytes: &[u8], found: impl FnMut(usize)) {
    each_match(bytes, |here, next| (here == SYSCALL[0]) & (next == SYSCALL[1]), found);
}

/// All that could be a call, a jump or an `xbegin` with four bytes of distance.
pub(crate) fn far_jumps(bytes: &[u8], check: &mut impl FnMut(usize, usize)) {
    let opens =
        |here: u8, next: u8| (here & 0xfe == 0xe8) | ((here == 0x0f) & (next & 0xf0 == 0x80)) | ((here == 0xc7) & (next == 0xf8));
    each_match(bytes, opens, |at| {
        // A call or a jump has an opcode of one byte, the others two.
        let distance = at + 2 - usize::from(bytes[at] & 0xfe == 0xe8);
        if let Some(&[a, b, c, d]) = bytes.get(distance..distance + 4) {
            check(at, (distance + 4).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize));
        }
    });
}

/// All that could be a short jump, a `loop` or a `jrcxz`.
pub(crate) fn short_jumps(bytes: &[u8], sources: Range<usize>, check: &mut impl FnMut(usize, usize)) {
    let Some(part) = bytes.get(sources.clone()) else { return };
    let opens = |here: u8, _next: u8| (here & 0xf0 == 0x70) | (here & 0xfc == 0xe0) | (here == 0xeb);
    each_match(part, opens, |offset| {
        let at = sources.start + offset;
        if let Some(&distance) = bytes.get(at + 1) {
            check(at, (at + 2).wrapping_add_signed(isize::from(distance as i8)));
        }
    });
}

/// Bytes that are looked at together: a bit each of a word.
const BLOCK: usize = 64;
/// Hits that are put aside, but for those of one block.
const ASIDE: usize = 256;

/// Calls `found` for each offset at which `opens` finds what it looks for; it sees a byte and the one that follows. The compiler makes vectors of
/// the first loop, so `opens` must not branch (`|` and `&`, not `||` and `&&`). Hits come at random, and the processor would guess wrong at the
/// end of each block's. So they are put aside first, four of a block at least, and taken from there in one loop.
#[inline(always)]
pub(crate) fn each_match(bytes: &[u8], opens: impl Fn(u8, u8) -> bool, mut found: impl FnMut(usize)) {
    let hits = |block: &[u8; BLOCK + 1]| {
        let mut marks = [0_u8; BLOCK];
        for at in 0..BLOCK {
            marks[at] = u8::from(opens(block[at], block[at + 1]));
        }
        // Nothing, mostly, where calls are looked for.
        if marks.iter().fold(0, |any, mark| any | mark) == 0 {
            return 0;
        }
        let (eights, _) = marks.as_chunks::<8>();
        eights.iter().enumerate().fold(0_u64, |hits, (index, eight)| {
            // The lowest bit of each byte, side by side.
            let bits = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            hits | bits << (index * 8)
        })
    };
    let (mut aside, mut count) = ([0_usize; ASIDE + BLOCK], 0);
    let mut put = |at: usize, mut hits: u64| {
        if hits == 0 {
            return;
        }
        let first = count;
        count += hits.count_ones() as usize;
        for place in &mut aside[first..first + 4] {
            *place = at + hits.trailing_zeros() as usize;
            hits &= hits.wrapping_sub(1);
        }
        let mut next = first + 4;
        while hits != 0 {
            aside[next] = at + hits.trailing_zeros() as usize;
            hits &= hits - 1;
            next += 1;
        }
        if count >= ASIDE - 4 {
            aside[..count].iter().for_each(|&at| found(at));
            count = 0;
        }
    };
    let mut at = 0;
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        put(at, hits(block));
        at += BLOCK;
    }
    // What is left has 64 bytes at most; behind it are zeros, which are nobody's second byte.
    let rest = &bytes[at..];
    let mut block = [0; BLOCK + 1];
    block[..rest.len()].copy_from_slice(rest);
    let valid = 1_u64.checked_shl(rest.len() as u32).map_or(u64::MAX, |bit| bit - 1);
    put(at, hits(&block) & valid);
    aside[..count].iter().for_each(|&at| found(at));
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_random::Rng;

    #[test]
    fn the_far_search_agrees_with_a_plain_one() {
        let mut random = Rng::new(1);
        for length in [0, 1, 5, 15, 16, 17, 31, 63, 64, 65, 129, 400] {
            let choices = [0xe8, 0xe9, 0x0f, 0x85, 0xc7, 0xf8, 0x00, 0xff];
            let bytes: Vec<u8> = (0..length).map(|_| random.pick(&choices)).collect();
            let mut found = Vec::new();
            far_jumps(&bytes, &mut |at, target| found.push((at, target)));
            let plain = (0..length).filter_map(|at| {
                let distance = match (bytes[at], bytes.get(at + 1).copied().unwrap_or(0)) {
                    (0xe8 | 0xe9, _) => at + 1,
                    (0x0f, 0x80..=0x8f) | (0xc7, 0xf8) => at + 2,
                    _ => return None,
                };
                let displacement = i32::from_le_bytes(bytes.get(distance..distance + 4)?.try_into().ok()?);
                Some((at, (distance + 4).wrapping_add_signed(displacement as isize)))
            });
            assert_eq!(found, plain.collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_short_search_and_the_one_for_syscalls_agree_with_plain_ones() {
        let mut random = Rng::new(2);
        for length in [0, 1, 2, 15, 16, 17, 33, 63, 64, 65, 66, 128, 129, 400] {
            let choices = [0x6f, 0x70, 0x7f, 0x80, 0xe0, 0xe3, 0xe4, 0xeb, 0x0f, 0x05];
            let bytes: Vec<u8> = (0..length).map(|_| random.pick(&choices)).collect();
            let (mut found, mut sites) = (Vec::new(), Vec::new());
            let sources = length / 7..length - length / 9;
            short_jumps(&bytes, sources.clone(), &mut |at, target| found.push((at, target)));
            let plain = sources.filter_map(|at| {
                let distance = *bytes.get(at + 1)?;
                matches!(bytes[at], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
                    .then(|| (at, (at + 2).wrapping_add_signed(isize::from(distance as i8))))
            });
            assert_eq!(found, plain.collect::<Vec<_>>());
            each_syscall(&bytes, |at| sites.push(at));
            let plain = (0..length).filter(|&at| bytes.get(at..at + 2) == Some(&SYSCALL));
            assert_eq!(sites, plain.collect::<Vec<_>>());
            assert_eq!(has_syscalls(&bytes), !sites.is_empty());
        }
    }
}
