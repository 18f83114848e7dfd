//! Our own heap as the global allocator of a whole test program.

use farshore_random::Rng;
use farshore_sys::alloc::{LARGE, OwnMemory, mapped_bytes};
use farshore_sys::pagemap::Pagemap;
use farshore_sys::raw::{getpid, gettid};
use farshore_sys::signal::{self, Action, How, SIGUSR1, SigInfo, SigSet, UContext};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static HEAP: OwnMemory = OwnMemory::new();

/// Allocates, resizes and frees blocks of all sizes, and checks that each keeps its bytes.
fn churn(seed: u64, rounds: u32) {
    let mut random = Rng::new(seed);
    let mut blocks: HashMap<u64, Vec<u8>> = HashMap::new();
    for _ in 0..rounds {
        let name = random.bits() % 64;
        let size = (random.bits() % (1 << (random.bits() % 19))) as usize;
        let filler = name as u8;
        match random.bits() % 4 {
            0 => drop(blocks.remove(&name)),
            1 => {
                let zeros = vec![0u8; size];
                assert!(zeros.iter().all(|byte| *byte == 0));
                blocks.insert(name, vec![filler; size]);
            }
            _ => {
                let block = blocks.entry(name).or_default();
                block.resize(size, filler);
                block.shrink_to_fit();
            }
        }
        if let Some(block) = blocks.get(&name) {
            assert!(block.iter().all(|byte| *byte == filler));
        }
    }
}

#[test]
fn threads_churn() {
    let threads: Vec<_> = (1..=4).map(|seed| std::thread::spawn(move || churn(seed, 20_000))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn large_zeroed_blocks_stay_untouched() {
    const SIZE: usize = 256 << 20;
    let layout = Layout::from_size_align(SIZE, 64).unwrap();
    // SAFETY: the layout is not empty.
    let block = unsafe { HEAP.alloc_zeroed(layout) };
    assert!(!block.is_null() && mapped_bytes() >= SIZE);
    let pagemap = Pagemap::open().unwrap();
    for offset in (0..SIZE).step_by(4 << 20) {
        assert!(!pagemap.entry((block.addr() + offset) as u64).unwrap().present(), "touched at {offset}");
    }
    // SAFETY: inside the block.
    assert_eq!(unsafe { block.wrapping_add(SIZE - 1).read() }, 0);
    // SAFETY: the block came from this heap with this layout.
    unsafe { HEAP.dealloc(block, layout) };
    assert!(!farshore_sys::vm::is_mapped(block.addr() as u64));
}

#[test]
fn alignments_and_sizes() {
    for align in [1, 16, 64, 4096, 1 << 16, 2 << 20] {
        for size in [0usize, 1, 100, 4096, LARGE - 1, LARGE, LARGE + 1, 3 << 20] {
            let layout = Layout::from_size_align(size.max(1), align).unwrap();
            // SAFETY: the layout is not empty.
            let block = unsafe { HEAP.alloc_zeroed(layout) };
            assert!(!block.is_null() && block.addr() % align == 0, "size {size} align {align}");
            // SAFETY: inside the block.
            unsafe { block.write_bytes(7, layout.size()) };
            for new in [size / 2 + 1, size * 2 + 1, LARGE + 5, 10] {
                let old = Layout::from_size_align(new, align).unwrap();
                // SAFETY: the layout is not empty.
                let other = unsafe { HEAP.alloc(layout) };
                // SAFETY: the block came from this heap with this layout.
                let bigger = unsafe { HEAP.realloc(other, layout, new) };
                assert!(!bigger.is_null() && bigger.addr() % align == 0);
                // SAFETY: as above, with the new size.
                unsafe { HEAP.dealloc(bigger, old) };
            }
            // SAFETY: inside the block.
            assert_eq!(unsafe { block.wrapping_add(layout.size() - 1).read() }, 7);
            // SAFETY: the block came from this heap with this layout.
            unsafe { HEAP.dealloc(block, layout) };
        }
    }
}

#[test]
fn growing_keeps_the_bytes() {
    let mut bytes = Vec::new();
    for i in 0..3_000_000u32 {
        bytes.push(i as u8);
    }
    assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    bytes.truncate(1000);
    bytes.shrink_to_fit();
    assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
}

static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);

/// A handler that allocates, as a program's handler does that makes a call we serve.
unsafe extern "C" fn allocate(_: i32, _: *mut SigInfo, _: *mut UContext) {
    drop(vec![1u8; 100]);
    INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_handler_never_finds_the_heap_held() {
    HEAP.expect_handlers();
    signal::sigprocmask(How::Unblock, SigSet::EMPTY.with(SIGUSR1));
    // SAFETY: the handler allocates, which this heap allows; nothing else of this program minds an interruption.
    unsafe { signal::sigaction(SIGUSR1, Some(&Action::new(allocate, 0, SigSet::EMPTY))) }.unwrap();
    let (process, thread) = (getpid(), gettid());
    let sender = std::thread::spawn(move || {
        // Signals that come while one is pending are one: how many interrupt is up to the scheduler.
        while INTERRUPTIONS.load(Ordering::Relaxed) < 200 {
            signal::tgkill(process, thread, SIGUSR1).unwrap();
            std::thread::yield_now();
        }
    });
    while !sender.is_finished() {
        churn(77, 500);
    }
    sender.join().unwrap();
    HEAP.hold(|| ());
}
