//! What the bytes of a text may be: `syscall` instructions, and jumps into windows. Megabytes are searched at the start of a program.

use super::{Code, SYSCALL, Text, Window};
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
};
use std::ops::Range;

/// Addresses inside of the windows that a direct jump or call may lead to, sorted. `is_none`: surely no instruction begins at an address.
pub(super) fn targets_inside(text: &Text<'_>, code: &mut Code, is_none: impl Fn(u64) -> bool) -> Vec<u64> {
    let spans = Spans::of(text, &code.choices);
    let decoded = |at: usize| {
        let address = text.start + at as u64;
        let next = code.decoded.partition_point(|function| function.start <= address);
        next > 0 && code.decoded[next - 1].contains(&address)
    };
    let mut targets = std::mem::take(&mut code.targets);
    targets.retain(|target| target.checked_sub(text.start).is_some_and(|at| spans.contain(at as usize)));
    let mut check = |at: usize, target: usize| {
        if spans.contain(target) && !decoded(at) && !is_none(text.start + at as u64) {
            targets.push(text.start + target as u64);
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
    fn of(text: &Text<'_>, choices: &[Window]) -> Spans {
        let span = |windows: &[Window]| {
            let start = windows.iter().map(|window| window.inside().start).min()?;
            let end = windows.iter().map(|window| window.inside().end).max()?;
            Some((start - text.start) as usize..(end - text.start) as usize)
        };
        let mut sorted: Vec<Range<usize>> = Code::choices_by_site(choices).filter_map(span).collect();
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

/// All that could be a call, a jump or an `xbegin` with four bytes of distance.
pub(super) fn far_jumps(bytes: &[u8], check: &mut impl FnMut(usize, usize)) {
    let mut far = |at: usize, distance: usize| {
        if let Some(&[a, b, c, d]) = bytes.get(distance..distance + 4) {
            check(at, (distance + 4).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize));
        }
    };
    let consider = |at: usize| match (bytes[at], bytes.get(at + 1)) {
        (0xe8 | 0xe9, _) => far(at, at + 1),
        (0x0f, Some(0x80..=0x8f)) | (0xc7, Some(0xf8)) => far(at, at + 2),
        _ => {}
    };
    each_match(bytes, is_far_jump, consider);
}

/// All that could be a short jump, a `loop` or a `jrcxz`.
pub(super) fn short_jumps(bytes: &[u8], sources: Range<usize>, check: &mut impl FnMut(usize, usize)) {
    let Some(part) = bytes.get(sources.clone()) else { return };
    each_match(part, is_short_jump, |offset| {
        let at = sources.start + offset;
        if let Some(&distance) = bytes.get(at + 1) {
            check(at, (at + 2).wrapping_add_signed(isize::from(distance as i8)));
        }
    });
}

/// Bytes that are looked at together: a bit each of a word.
const BLOCK: usize = 64;

/// Calls `found` for each offset at which `opens` finds what it looks for. Megabytes of text are searched at every start of
/// a program, so `opens` sees 16 bytes at a time, with those that follow each; and hits, which come at random, are taken from
/// a word with many of them, since the processor guesses wrong at the end of each word.
#[inline(always)]
pub(super) fn each_match(bytes: &[u8], opens: impl Fn(__m128i, __m128i) -> __m128i, mut found: impl FnMut(usize)) {
    let hits = |block: &[u8; BLOCK + 1]| {
        let mut hits = 0;
        for part in 0..BLOCK / 16 {
            // SAFETY: the block holds 16 bytes from there on.
            let here = unsafe { _mm_loadu_si128(block.as_ptr().wrapping_add(part * 16).cast()) };
            // SAFETY: and one more.
            let next = unsafe { _mm_loadu_si128(block.as_ptr().wrapping_add(part * 16 + 1).cast()) };
            // SAFETY: SSE2 is part of x86-64.
            let bits = unsafe { _mm_movemask_epi8(opens(here, next)) } as u64;
            hits |= bits << (part * 16);
        }
        hits
    };
    let mut each = |at: usize, mut hits: u64| {
        while hits != 0 {
            found(at + hits.trailing_zeros() as usize);
            hits &= hits - 1;
        }
    };
    let mut at = 0;
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        each(at, hits(block));
        at += BLOCK;
    }
    // What is left has 64 bytes at most; behind it are zeros, which are nobody's second byte.
    let rest = &bytes[at..];
    let mut block = [0; BLOCK + 1];
    block[..rest.len()].copy_from_slice(rest);
    let valid = 1_u64.checked_shl(rest.len() as u32).map_or(u64::MAX, |bit| bit - 1);
    each(at, hits(&block) & valid);
}

/// `0f 05`.
#[inline(always)]
pub(super) fn is_syscall(here: __m128i, next: __m128i) -> __m128i {
    both(equal(here, SYSCALL[0]), equal(next, SYSCALL[1]))
}

/// `e8`, `e9`; `0f 8x`; `c7 f8`.
#[inline(always)]
fn is_far_jump(here: __m128i, next: __m128i) -> __m128i {
    let conditional = both(equal(here, 0x0f), equal(masked(next, 0xf0), 0x80));
    let begin = both(equal(here, 0xc7), equal(next, 0xf8));
    either(equal(masked(here, 0xfe), 0xe8), either(conditional, begin))
}

/// `7x`, `e0` to `e3`, `eb`.
#[inline(always)]
fn is_short_jump(here: __m128i, _next: __m128i) -> __m128i {
    either(equal(masked(here, 0xf0), 0x70), either(equal(masked(here, 0xfc), 0xe0), equal(here, 0xeb)))
}

#[inline(always)]
fn equal(bytes: __m128i, byte: u8) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    let all = unsafe { _mm_set1_epi8(byte as i8) };
    // SAFETY: as above.
    unsafe { _mm_cmpeq_epi8(bytes, all) }
}

#[inline(always)]
fn masked(bytes: __m128i, mask: u8) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    let all = unsafe { _mm_set1_epi8(mask as i8) };
    // SAFETY: as above.
    unsafe { _mm_and_si128(bytes, all) }
}

#[inline(always)]
fn both(one: __m128i, other: __m128i) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_and_si128(one, other) }
}

#[inline(always)]
fn either(one: __m128i, other: __m128i) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_or_si128(one, other) }
}
