//! Panics through frames whose unwinding touches memory that is absent, in several threads, with locks and channels.
//!
//!     panics BALLAST_MIB
//!
//! Prints the same natively and under Farshore.

use std::alloc::{Layout, alloc_zeroed};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;

static BALLAST: std::sync::OnceLock<&'static [AtomicU8]> = std::sync::OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

fn make_absent() {
    for byte in BALLAST.get().expect("there is ballast").iter().step_by(4096) {
        byte.fetch_add(1, Ordering::Relaxed);
    }
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// Words that are checked when they are dropped.
struct Block {
    salt: u64,
    words: Vec<u64>,
}

impl Block {
    fn new(salt: u64) -> Block {
        Block { salt, words: (0..20_000).map(|i| mix(salt ^ i)).collect() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let right = self.words.iter().enumerate().all(|(i, &word)| word == mix(self.salt ^ i as u64));
        if !right {
            eprintln!("failed: a wrong word in a drop");
            std::process::abort();
        }
        let sum = self.words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word));
        DROPPED.fetch_add(sum, Ordering::Relaxed);
    }
}

#[inline(never)]
fn descend(depth: u64) -> u64 {
    let block = Block::new(depth);
    if depth == 0 {
        make_absent();
        panic_any(Block::new(4711));
    }
    if depth % 5 == 0 {
        // Caught, looked at, and let go on.
        let caught = catch_unwind(|| descend(depth - 1)).expect_err("it always panics");
        make_absent();
        resume_unwind(caught);
    }
    descend(depth - 1) + block.words.len() as u64
}

fn attempt(depth: u64) -> u64 {
    let caught = catch_unwind(|| descend(depth)).expect_err("it always panics");
    make_absent();
    caught.downcast_ref::<Block>().map_or(0, |block| block.salt)
}

fn main() {
    let mib: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("usage: panics BALLAST_MIB");
    let layout = Layout::from_size_align(mib << 20, 4096).expect("a layout");
    // SAFETY: fresh memory that is never freed, of a size above 0; zeros are a value of every byte.
    let ballast = unsafe { std::slice::from_raw_parts(alloc_zeroed(layout).cast::<AtomicU8>(), mib << 20) };
    BALLAST.set(ballast).expect("once");
    std::panic::set_hook(Box::new(|_| {}));

    println!("main thread: {}", attempt(17));
    let threads: Vec<_> = (0..6).map(|i| thread::spawn(move || attempt(8 + i))).collect();
    let sum: u64 = threads.into_iter().map(|thread| thread.join().expect("it catches its panic")).sum();
    println!("threads: {sum}");

    let dead: Vec<_> = (0..6).map(|i| thread::spawn(move || descend(6 + i))).collect();
    let payloads = dead.into_iter().filter_map(|thread| thread.join().err()).filter(|p| p.is::<Block>()).count();
    println!("threads that died: {payloads}");

    let shared = Arc::new((Mutex::new(Block::new(9)), Condvar::new()));
    let poisons: Vec<_> = (0..3)
        .map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let _guard = shared.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                make_absent();
                panic!("with the lock held")
            })
        })
        .collect();
    let ended = poisons.into_iter().filter_map(|thread| thread.join().err()).count();
    println!("poisoned: {} after {ended}", shared.0.is_poisoned());

    let (sender, receiver) = mpsc::channel::<Block>();
    let producer = thread::spawn(move || {
        for salt in 0..40 {
            sender.send(Block::new(salt)).expect("somebody receives");
        }
        panic!("at the end")
    });
    let received = catch_unwind(AssertUnwindSafe(|| receiver.iter().map(|block| block.words[3]).fold(0, u64::wrapping_add)));
    println!("received: {:016x}, producer died: {}", received.unwrap_or(0), producer.join().is_err());
    drop(shared);
    println!("dropped: {:016x}", DROPPED.load(Ordering::Relaxed));
}
