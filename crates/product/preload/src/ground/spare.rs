//! Memory calls of the program that reach mappings of ours among its own ([`super::apart`]): they find holes there.

use super::ranges::without;
use core::ops::Range;
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::raw::{Errno, nr};
use farshore_sys::vm::{self, map};

const PAGE: u64 = PAGE_SIZE as u64;
/// A `munmap` that ends beyond is refused by the kernel before it unmaps anything.
const PROGRAMS_END: u64 = 1 << 47;
const PKEY_MPROTECT: u64 = 329;

/// Bits of a word for the number of pages, below those for the first page's number.
const LENGTH_BITS: u32 = 29;

/// What stands for such a mapping: one word, so that no reader sees the start of one and the end of another. `None`: it does not fit.
pub fn word(base: u64, len: u64) -> Option<u64> {
    let (first, pages) = (base / PAGE, len.div_ceil(PAGE));
    (first < 1 << (64 - LENGTH_BITS) && pages < 1 << LENGTH_BITS).then_some(first << LENGTH_BITS | pages)
}

/// The bytes that a word stands for.
pub fn bytes(word: u64) -> Range<u64> {
    let (first, pages) = (word >> LENGTH_BITS, word & ((1 << LENGTH_BITS) - 1));
    first * PAGE..(first + pages) * PAGE
}

/// Does the memory call `number` by `call` if it reaches one of the mappings `among` the program's: around them. Its answer is the one of a hole. `None`: it
/// reaches none, and nothing was done.
pub fn spare(
    among: impl Iterator<Item = Range<u64>> + Clone,
    number: u64,
    args: &[u64; 6],
    call: impl Fn(u64, &[u64; 6]) -> i64,
) -> Option<i64> {
    let [addr, len, new_len, flags, target, _] = *args;
    // What the kernel will refuse, for it has no such addresses, reaches nothing.
    let range_of = |addr: u64, len: u64| {
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE)).unwrap_or(0);
        if addr.is_multiple_of(PAGE) { addr..end } else { 0..0 }
    };
    let reaches = |range: &Range<u64>| {
        !range.is_empty() && among.clone().any(|ours| ours.start < range.end && range.start < ours.end && !ours.is_empty())
    };
    let hole = -i64::from(Errno::ENOMEM.0);
    match number {
        nr::MUNMAP | nr::MPROTECT | nr::MADVISE | PKEY_MPROTECT => {
            let range = range_of(addr, len);
            if !reaches(&range) || (number == nr::MUNMAP && range.end > PROGRAMS_END) {
                return None;
            }
            let among: Vec<_> = among.clone().collect();
            let start = range.start;
            let mut parts = without(range, &among).into_iter();
            let do_part = |part: Range<u64>| {
                let [_, _, rest @ ..] = *args;
                call(number, &[part.start, part.end - part.start, rest[0], rest[1], rest[2], rest[3]])
            };
            let refused = match number {
                nr::MUNMAP | nr::MADVISE => parts.map(do_part).find(|&answer| answer != 0),
                // The kernel ends at the first hole.
                _ => parts.next().filter(|part| part.start == start).map(do_part).filter(|&answer| answer != 0),
            };
            Some(refused.unwrap_or(if number == nr::MUNMAP { 0 } else { hole }))
        }
        nr::MMAP => (flags & map::FIXED != 0 && reaches(&range_of(addr, len))).then_some(hole),
        // A call that makes a range shorter unmaps its end, whatever lies there.
        nr::MREMAP if flags & !vm::remap::MAYMOVE == 0 && !reaches(&range_of(addr, new_len)) && reaches(&range_of(addr, len)) => {
            let (stays, all) = (range_of(addr, new_len), range_of(addr, len));
            // Longer than the range, or of no length, it is what the kernel refuses.
            if stays.is_empty() || stays.end > all.end {
                return None;
            }
            let answer = call(nr::MREMAP, &[addr, new_len, new_len, flags, 0, 0]);
            if answer != addr.cast_signed() {
                return Some(answer);
            }
            let tail = without(stays.end..all.end, &among.collect::<Vec<_>>()).into_iter();
            let refused =
                tail.map(|part| call(nr::MUNMAP, &[part.start, part.end - part.start, 0, 0, 0, 0])).find(|&answer| answer != 0);
            Some(refused.unwrap_or(answer))
        }
        nr::MREMAP if reaches(&range_of(addr, len)) => Some(-i64::from(Errno::EFAULT.0)),
        nr::MREMAP => (flags & vm::remap::FIXED != 0 && reaches(&range_of(target, new_len))).then_some(hole),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const OURS: [Range<u64>; 2] = [0x5000..0x6000, 0x8000..0xa000];

    /// What is answered, and what the kernel was asked, as pages.
    fn of(number: u64, args: [u64; 6], kernel: i64) -> (Option<i64>, Vec<(u64, u64)>) {
        let asked = RefCell::new(Vec::new());
        let answer = spare(OURS.into_iter(), number, &args, |_, args| {
            asked.borrow_mut().push((args[0], args[1]));
            kernel
        });
        (answer, asked.into_inner())
    }

    #[test]
    fn calls_go_around_what_is_ours() {
        let around = vec![(0x4000, 0x1000), (0x6000, 0x2000), (0xa000, 0x1000)];
        assert_eq!(of(nr::MUNMAP, [0x4000, 0x7000, 0, 0, 0, 0], 0), (Some(0), around.clone()));
        assert_eq!(of(nr::MUNMAP, [0x4000, 0x6001, 0, 0, 0, 0], 0), (Some(0), around.clone()), "rounded up");
        assert_eq!(of(nr::MUNMAP, [0x5000, 0x1000, 0, 0, 0, 0], 0), (Some(0), vec![]));
        assert_eq!(of(nr::MUNMAP, [0x4000, 0x7000, 0, 0, 0, 0], -22), (Some(-22), vec![around[0]]));
        assert_eq!(of(nr::MADVISE, [0x4000, 0x7000, 4, 0, 0, 0], 0), (Some(-12), around));
        assert_eq!(of(nr::MPROTECT, [0x9000, 0x1000, 0, 0, 0, 0], 0), (Some(-12), vec![]));
    }

    #[test]
    fn protection_ends_at_the_first_hole() {
        assert_eq!(of(nr::MPROTECT, [0x4000, 0x7000, 0, 0, 0, 0], 0), (Some(-12), vec![(0x4000, 0x1000)]));
        assert_eq!(of(nr::MPROTECT, [0x4000, 0x7000, 0, 0, 0, 0], -13), (Some(-13), vec![(0x4000, 0x1000)]));
        assert_eq!(of(PKEY_MPROTECT, [0x5000, 0x6000, 0, 0, 0, 0], 0), (Some(-12), vec![]));
    }

    #[test]
    fn what_becomes_shorter_loses_its_end() {
        // The head is looked at, then what is not ours behind it goes.
        let asked = vec![(0x4000, 0x1000), (0x6000, 0x2000)];
        assert_eq!(
            of(nr::MREMAP, [0x4000, 0x4000, 0x1000, 0, 0, 0], 0),
            (Some(0), vec![asked[0]]),
            "any other answer is the kernel's"
        );
        let seen = RefCell::new(Vec::new());
        let answer = spare(OURS.into_iter(), nr::MREMAP, &[0x4000, 0x4000, 0x1000, 1, 0, 0], |number, args| {
            seen.borrow_mut().push((args[0], args[1]));
            if number == nr::MREMAP { 0x4000 } else { 0 }
        });
        assert_eq!((answer, seen.into_inner()), (Some(0x4000), asked));
        assert_eq!(of(nr::MREMAP, [0x5000, 0x3000, 0x1000, 1, 0, 0], 0).0, Some(-14), "the head is a hole");
        assert_eq!(of(nr::MREMAP, [0x4000, 0x4000, 0, 1, 0, 0], 0), (None, vec![]));
    }

    #[test]
    fn what_would_replace_ours_is_refused() {
        let fixed = map::FIXED | map::PRIVATE | map::ANONYMOUS;
        assert_eq!(of(nr::MMAP, [0x4000, 0x2000, 3, fixed, 0, 0], 0).0, Some(-12));
        assert_eq!(of(nr::MREMAP, [0x1000, 0x1000, 0x1000, 3, 0x9000, 0], 0).0, Some(-12));
        assert_eq!(of(nr::MREMAP, [0x4000, 0x2000, 0x3000, 1, 0, 0], 0).0, Some(-14), "its source is a hole");
    }

    #[test]
    fn other_calls_are_the_callers() {
        for (number, args) in [
            (nr::MUNMAP, [0x4000, 0x1000, 0, 0, 0, 0]),
            (nr::MUNMAP, [0x5001, 0x1000, 0, 0, 0, 0]),
            (nr::MUNMAP, [0x6000, 0x2000, 0, 0, 0, 0]),
            (nr::MUNMAP, [0xa000, u64::MAX, 0, 0, 0, 0]),
            (nr::MMAP, [0x4000, 0x2000, 3, map::PRIVATE, 0, 0]),
            (nr::MREMAP, [0x1000, 0x1000, 0x1000, 1, 0x9000, 0]),
            (nr::MUNMAP, [0x9000, 0, 0, 0, 0, 0]),
            (nr::MUNMAP, [0x4000, 1 << 47, 0, 0, 0, 0]),
            (nr::BRK, [0x9000, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(of(number, args, 0), (None, vec![]), "call {number} {args:x?}");
        }
    }

    #[test]
    fn a_word_stands_for_whole_pages() {
        assert_eq!(word(0x7fff_ffff_e000, 1).map(bytes), Some(0x7fff_ffff_e000..0x7fff_ffff_f000));
        assert_eq!(word(0x5000, 0x2001).map(bytes), Some(0x5000..0x8000));
        assert!(bytes(0).is_empty());
        assert_eq!(word(1 << 47, 1), None);
        assert_eq!(word(0x5000, 1 << 41), None);
    }
}
