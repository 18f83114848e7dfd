//! Unithreads that read, or read and write, words at random places of a large array, each of which is checked: `random MODE MIB UNITHREADS SECONDS [WORKERS] [update]`,
//! with MODE `yield`, `busy` or `block`. With the library loaded and less memory than the array, most touches wait for a page.

use core::sync::atomic::{AtomicU64, Ordering};
use farshore_uthread::{Config, Runtime, WaitMode};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WORDS: usize = 512;

/// What word `word` of the array says before it is written.
fn expected(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xffff
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize, default: usize| args.get(n).map_or(default, |text| text.parse().expect("a number"));
    let wait = match args.get(1).map(String::as_str) {
        Some("yield") | None => WaitMode::Yield,
        Some("busy") => WaitMode::Busy,
        Some("block") => WaitMode::Block,
        Some(other) => panic!("{other}: not a mode"),
    };
    let (mib, unithreads, seconds, workers) = (number(2, 64), number(3, 64), number(4, 5), number(5, 1));
    let update = args.get(6).is_some_and(|text| text == "update");
    let pages = mib << 8;
    let array: Arc<[AtomicU64]> = (0..(pages * WORDS) as u64).map(|word| AtomicU64::new(expected(word))).collect();

    let pin = wait != WaitMode::Block || workers <= 2;
    let poll = Duration::from_micros(number(7, 0) as u64);
    let runtime =
        Runtime::start(Config { workers, unithreads: unithreads.max(16), wait, pin, poll, ..Config::default() }).unwrap();
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds as u64);
    let work = |seed: u64| {
        let array = array.clone();
        move || {
            let (mut state, mut done, mut worst) = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1, 0u64, Duration::ZERO);
            let mut now = Instant::now();
            while now < end {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let word = (state % pages as u64) * WORDS as u64 + (state >> 40) % WORDS as u64;
                let at = &array[word as usize];
                let found = if update { at.fetch_add(1, Ordering::Relaxed) } else { at.load(Ordering::Relaxed) };
                assert!(found & !0xffff == expected(word), "word {word}: {found:x}");
                done += 1;
                let then = Instant::now();
                worst = worst.max(then - now);
                now = then;
            }
            (done, worst)
        }
    };
    let threads: Vec<_> = (1..=unithreads as u64).map(|seed| runtime.spawn(work(seed)).unwrap()).collect();
    let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let time = start.elapsed().as_secs_f64();
    let done: u64 = ends.iter().map(|end| end.0).sum();
    let worst = ends.iter().map(|end| end.1).max().unwrap();
    if update {
        let added: u64 = (0u64..).zip(array.iter()).map(|(word, at)| at.load(Ordering::Relaxed) - expected(word)).sum();
        assert_eq!(added, done, "updates were lost, or made twice");
    }
    let left = runtime.handle().pages_waited_for();
    println!("{:.0} a second, {done} in all, worst {:.2} ms, {left} times left", done as f64 / time, worst.as_secs_f64() * 1e3);
    runtime.shutdown().unwrap();
}
