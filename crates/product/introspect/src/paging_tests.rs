//! Tables that are made in memory, and garbage.

use super::*;
use crate::made::{ALL, Words};
use farshore_random::Rng;

fn of_levels(levels: u32) -> (Paging, Words) {
    (Paging::new(0x1000, levels, 46), Words::new(1 << 32))
}

#[test]
fn pages_of_every_size_are_found_in_both_halves() {
    for levels in [4, 5] {
        let (paging, mut memory) = of_levels(levels);
        let kernel = u64::MAX << (12 + 9 * levels - 1);
        memory.map(paging, 0x7fff_1234_5000, 0xabc_d000, 1, ALL | NO_EXECUTE);
        memory.map(paging, 0x4000_0000, 0x1_2340_0000 | PAGE, 2, PRESENT | USER | LARGE);
        memory.map(paging, kernel + (3 << 30), 5 << 30, 3, PRESENT | WRITABLE | LARGE);
        let page = |first, bytes, writable, user, executable| Ok(Leaf { first, bytes, writable, user, executable });
        assert_eq!(paging.leaf(&mut memory, 0x7fff_1234_5678), page(0xabc_d000, 4096, true, true, false));
        assert_eq!(paging.translate(&mut memory, 0x7fff_1234_5678), Ok(0xabc_d678));
        assert_eq!(paging.leaf(&mut memory, 0x4012_3456), page(0x1_2340_0000, 2 << 20, false, true, true));
        assert_eq!(paging.translate(&mut memory, 0x4012_3456), Ok(0x1_2352_3456), "bit 12 is no address");
        assert_eq!(paging.leaf(&mut memory, kernel + (3 << 30) + 7), page(5 << 30, 1 << 30, true, false, true));
        let before = memory.reads;
        assert_eq!(paging.translate(&mut memory, 0x7fff_1234_4000), Err(Stop::Absent(1)), "its neighbour is not there");
        assert_eq!(memory.reads - before, u64::from(levels));
    }
}

#[test]
fn a_large_bit_at_level_one_is_an_attribute() {
    let (paging, mut memory) = of_levels(4);
    memory.map(paging, 0x5000, 0x9000, 1, ALL | LARGE);
    assert_eq!(paging.translate(&mut memory, 0x5008), Ok(0x9008));
}

#[test]
fn what_a_processor_would_refuse_is_refused() {
    let (paging, mut memory) = of_levels(4);
    for address in [1 << 47, 0xffff_7fff_ffff_ffff, 1 << 63] {
        assert_eq!(paging.translate(&mut memory, address), Err(Stop::NotCanonical), "{address:#x}");
    }
    assert_ne!(Paging::new(0x1000, 5, 46).translate(&mut memory, 1 << 47), Err(Stop::NotCanonical));
    assert_eq!(memory.reads, 1, "nothing is read of an address that is none");
    memory.map(paging, 0x5000, 1 << 46, 1, ALL);
    assert_eq!(paging.translate(&mut memory, 0x5000), Err(Stop::Reserved(1)), "beyond 46 bits");
    memory.map(paging, 0x4000_0000, 0x20_2000, 2, ALL | LARGE);
    assert_eq!(paging.translate(&mut memory, 0x4000_0000), Err(Stop::Reserved(2)), "no multiple of 2 MiB");
    memory.map(paging, 1 << 40, 0, 4, ALL | LARGE);
    assert_eq!(paging.translate(&mut memory, 1 << 40), Err(Stop::Reserved(4)), "no pages of 512 GiB");
    memory.map(paging, 1 << 41, 1 << 33, 4, ALL);
    assert_eq!(paging.translate(&mut memory, 1 << 41), Err(Stop::Unreadable(3)), "a table outside of memory");
    assert_eq!(paging.with_root(1 << 40).translate(&mut memory, 0), Err(Stop::Unreadable(4)));
}

#[test]
fn low_bits_of_cr3_are_no_address() {
    let (paging, mut memory) = of_levels(4);
    memory.map(paging, 0x5000, 0x9000, 1, ALL);
    let with_pcid = Paging::new(1 << 63 | 0x1000 | 0x7f3, 4, 46);
    assert_eq!(with_pcid.translate(&mut memory, 0x5000), Ok(0x9000));
}

#[test]
fn a_scan_finds_what_programs_have_and_goes_on_where_it_was() {
    let (paging, mut memory) = of_levels(4);
    let mut there = vec![(0x5000, 0x9000, 4096), (0x4000_0000, 6 << 20, 2 << 20), (0x7fff_ffff_f000, 0xb000, 4096)];
    for &(address, to, bytes) in &there {
        let level = if bytes == 4096 { 1 } else { 2 };
        memory.map(paging, address, to, level, ALL | if level == 2 { LARGE } else { 0 });
    }
    for n in 0..600 {
        let (address, to) = (0x7e00_0000_0000 + n * PAGE, 0x80_0000 + (n * 7 % 600) * PAGE);
        memory.map(paging, address, to, 1, ALL);
        there.push((address, to, 4096));
    }
    // What the kernel alone may use: a page, a large one.
    memory.map(paging, 0x7000, 0xc000, 1, PRESENT | WRITABLE);
    memory.map(paging, 0x8000_0000, 8 << 20, 2, PRESENT | WRITABLE | LARGE);
    memory.map(paging, u64::MAX << 47, 0xd000, 1, ALL);
    there.sort_unstable();
    for words in [1, 700, 1 << 20] {
        let (mut found, mut from, mut calls) = (Vec::new(), Some(0), 0);
        while let Some(at) = from {
            let before = memory.reads;
            from = paging.scan(&mut memory, at, words, &mut |address, leaf| found.push((address, leaf.first, leaf.bytes)));
            assert!(memory.reads - before <= u64::from(words) + ENTRIES + 4, "{}", memory.reads - before);
            calls += 1;
        }
        assert_eq!(found, there, "neither the kernel's half nor its pages");
        assert_eq!(calls == 1, words > 700);
    }
}

#[test]
fn garbage_ends_and_never_panics() {
    let mut random = Rng::new(86);
    for turn in 0..200 {
        let mut memory = Words::new(if turn % 2 == 0 { 1 << 20 } else { 64 << 20 });
        for _ in 0..20_000 {
            // Tables that name each other and themselves, and anything else.
            let at = random.below(1 << 13) * 8;
            let entry = if random.below(4) == 0 { random.bits() } else { (random.below(16) * PAGE) | ALL };
            memory.words.insert(at, entry);
        }
        for levels in [4, 5] {
            let paging = Paging::new(random.bits(), levels, 32 + random.below(21) as u32);
            for paging in [paging, paging.with_root(random.below(16) * PAGE)] {
                let before = memory.reads;
                let _ = paging.leaf(&mut memory, random.bits());
                let _ = paging.translate(&mut memory, random.bits() >> 17);
                assert!(memory.reads - before <= 10);
                let (before, mut told) = (memory.reads, 0);
                let _ = paging.scan(&mut memory, random.bits() >> 17, 5000, &mut |_, _| told += 1);
                assert!(memory.reads - before <= 5000 + ENTRIES + 5 && told <= 5000 + ENTRIES);
            }
        }
    }
}

#[test]
fn a_table_that_names_itself_is_a_bounded_scan() {
    let (paging, mut memory) = of_levels(4);
    for n in 0..ENTRIES {
        memory.words.insert(0x1000 + n * 8, 0x1000 | ALL);
    }
    assert_eq!(paging.translate(&mut memory, 0x123_4567), Ok(0x1567), "the table is the page too");
    assert!(paging.scan(&mut memory, 0, 10_000, &mut |_, _| {}).is_some());
    assert!(memory.reads <= 10_000 + ENTRIES + 8);
}
