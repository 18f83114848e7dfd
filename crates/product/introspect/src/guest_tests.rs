//! A guest that is made in memory.

use std::collections::HashSet;

use super::*;
use crate::made::{ALL, Words};
use farshore_random::Rng;

const BYTES: u64 = 256 << 20;
const FIRST: u64 = 0x7e00_0000_0000;

fn runs(paging: Paging) -> Processor {
    Processor { paging, ip: 0, in_program: true, is_idle: false }
}

fn guest() -> Guest {
    Guest::new(BYTES)
}

/// Tables that map so many pages from `FIRST` on to physical ones in any order; the physical addresses, in the order of the virtual ones.
fn shuffled(memory: &mut Words, paging: Paging, pages: u64, seed: u64) -> Vec<u64> {
    let mut physical: Vec<u64> = (0..pages).map(|n| (64 << 20) + n * PAGE).collect();
    Rng::new(seed).shuffle(&mut physical);
    for (n, to) in physical.iter().enumerate() {
        memory.map(paging, FIRST + n as u64 * PAGE, *to, 1, ALL);
    }
    physical
}

/// Touches pages one behind the other; those that are out, of a guest of which all are, fault. How many faults there were.
fn go_through(guest: &mut Guest, memory: &mut Words, pages: &[u64]) -> usize {
    let (mut here, mut faults) = (HashSet::new(), 0);
    for page in pages {
        if here.insert(*page) {
            faults += 1;
        }
        // A page that was fetched before is write-protected: that is a fault too.
        guest.touched(memory, *page + 5, 1, &mut |wished| here.insert(wished));
    }
    faults
}

#[test]
fn a_run_in_shuffled_memory_is_followed_in_virtual_addresses_alone() {
    let (mut memory, paging) = (Words::new(BYTES), Paging::new(0x1000, 4, 52));
    let pages = shuffled(&mut memory, paging, 3000, 1);
    let mut guest = guest();
    guest.look(&mut memory, &[runs(paging)]);
    assert!(go_through(&mut guest, &mut memory, &pages) <= 3);
    let counts = guest.counts();
    assert_eq!((counts.asked, counts.found, counts.stale), (3000, 3000, 0));
    assert!(counts.used >= 2990 && counts.wished >= counts.used, "{counts:?}");
    // The same run in physical addresses.
    let (mut follow, mut used) = (Follow::default(), 0);
    pages.iter().for_each(|page| used += follow.touched(page / PAGE, &mut |_| true).1);
    assert!(used < 60, "{used}");
}

#[test]
fn tables_that_change_cost_wrong_guesses_and_nothing_else() {
    let (mut memory, paging) = (Words::new(BYTES), Paging::new(0x1000, 4, 52));
    let before = shuffled(&mut memory, paging, 500, 1);
    let mut guest = guest();
    guest.look(&mut memory, &[runs(paging)]);
    go_through(&mut guest, &mut memory, &before);
    let after = shuffled(&mut memory, paging, 500, 2);
    assert_ne!(before, after);
    let address = FIRST + 100 * PAGE;
    let mut found = |physical, ns| guest.touched(&mut memory, physical, ns, &mut |_| false).map(|(_, address)| address);
    assert_eq!(found(after[100], 1 << 30), Some(address), "it is looked for anew");
    assert_eq!(found(before[100], 2 << 30).filter(|found| *found == address), None, "what was seen is not true any more");
    assert!(guest.counts().stale > 0);
}

#[test]
fn each_address_space_has_its_own_runs() {
    let mut memory = Words::new(BYTES);
    let spaces = [0x1000, 0x3000].map(|root| Paging::new(root, 4, 52));
    let pages = spaces.map(|paging| shuffled(&mut memory, paging, 400, paging.root()));
    // The second one's memory is another part.
    let place = |n: usize| FIRST + n as u64 * PAGE;
    for (n, page) in pages[1].iter().enumerate() {
        memory.map(spaces[1], place(n), page + (32 << 20), 1, ALL);
    }
    let mut guest = guest();
    guest.look(&mut memory, &spaces.map(runs));
    let mut here = HashSet::new();
    for (n, (one, two)) in pages[0].iter().zip(&pages[1]).enumerate() {
        for (id, physical) in [(0, *one), (1, two + (32 << 20))] {
            let found = guest.touched(&mut memory, physical, 1, &mut |page| here.insert(page));
            assert_eq!(found, Some((id, place(n))));
        }
    }
    assert!(guest.counts().used > 780);
    let told = guest.translate(&mut memory, FIRST + 7);
    assert_eq!(
        told.iter().map(|(root, leaf)| (*root, leaf.first)).collect::<Vec<_>>(),
        [(0x1000, pages[0][0]), (0x3000, pages[1][0] + (32 << 20))]
    );
}

#[test]
fn two_roots_of_one_program_are_one_address_space() {
    let (mut memory, paging) = (Words::new(BYTES), Paging::new(0x2000, 4, 52));
    shuffled(&mut memory, paging, 10, 1);
    let other = paging.with_root(0x3000);
    for place in (0..4096).step_by(8) {
        let entry = memory.word(0x2000 + place).expect("it is memory");
        // The kernel's copy lets nobody execute the program's half.
        memory.words.insert(0x3000 + place, if entry == 0 { 0 } else { entry | 1 << 63 });
    }
    let mut guest = guest();
    guest.look(&mut memory, &[runs(paging), runs(other)]);
    assert_eq!(guest.spaces(), 1);
    guest.look(&mut memory, &[Processor { is_idle: true, ..runs(Paging::new(0x7000, 4, 52)) }]);
    assert_eq!(guest.spaces(), 1, "a processor that waits runs nothing");
    memory.words.insert(0x3000, 0x5000 | ALL);
    guest.look(&mut memory, &[runs(other)]);
    assert_eq!(guest.spaces(), 2, "they have come apart");
    let empty = [Paging::new(0x8000, 4, 52), Paging::new(0x9000, 4, 52)];
    guest.look(&mut memory, &empty.map(runs));
    assert_eq!(guest.spaces(), 4, "of two that have nothing, nothing is the same");
}

#[test]
fn what_is_known_and_read_is_bounded() {
    let mut memory = Words::new(BYTES);
    let mut guest = guest();
    for n in 0..100 {
        let paging = Paging::new(0x1000 + n * 2 * PAGE, 4, 52);
        memory.map(paging, FIRST, 5 << 20, 1, ALL);
        let idle = Processor { is_idle: true, ..runs(Paging::new(1 << 24, 4, 52)) };
        guest.look(&mut memory, &[runs(paging), idle]);
    }
    assert_eq!(guest.spaces(), SPACES);
    // Pages of the kernel's alone, all at the same moment: it is looked for them, but not for ever.
    let paging = Paging::new(0x1000, 4, 52);
    for n in 0..1000 {
        memory.map(paging, FIRST + (n << 21), n << 21, 1, ALL);
    }
    guest.look(&mut memory, &[runs(paging)]);
    memory.reads = 0;
    for n in 0..1000 {
        assert_eq!(guest.touched(&mut memory, (200 << 20) + n * PAGE, 5, &mut |_| true), None);
    }
    assert!(memory.reads < 2 * WORDS_SAVED, "{}", memory.reads);
    assert_eq!(guest.counts().found, 0);
}

#[test]
fn garbage_wishes_little_and_never_panics() {
    let mut random = Rng::new(4);
    let mut memory = Words::new(1 << 20);
    for _ in 0..50_000 {
        let at = random.below(1 << 17) * 8;
        let entry = (random.below(256) * PAGE) | ALL | (random.bits() << 63);
        memory.words.insert(at, entry);
    }
    let mut guest = guest();
    for n in 0..2000 {
        guest.look(&mut memory, &[runs(Paging::new(random.below(256) * PAGE, 4, 52))]);
        let mut wished = 0;
        guest.touched(&mut memory, random.below(1 << 20), n * 1_000_000, &mut |_| {
            wished += 1;
            true
        });
        assert!(wished <= 64);
        if n % 100 == 0 {
            guest.set_bytes(n << 20);
        }
        assert!(guest.translate(&mut memory, random.bits()).len() <= SPACES);
    }
}
