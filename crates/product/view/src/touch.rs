//! The program that `farshore doctor --measure` runs under Farshore, with a swap space that is asked about: it touches pages of which most are out, and says
//! how long that took.
//!
//! Called as [`COMMAND`], with the MiB that it is to have. It writes each page (half of it bytes that no compressor makes smaller), so that most must leave; it
//! reads all in order; then it reads pages at random, with one thread and with eight. Each page that it reads must be the one that it wrote. It prints one
//! [`Touched`] as JSON.

use std::ffi::OsString;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farshore_command::refusal::Refusal;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What this command is called with to be such a program.
pub const COMMAND: &str = "touch-pages";
const PAGE: usize = 4096;
/// Words of a page.
const WORDS: usize = PAGE / 8;
/// How long pages are read at random, by one thread and by all.
const TIME: Duration = Duration::from_secs(1);
/// An access that takes so long was a fault. One of a page that is there takes a tenth of it, with the look at the clock.
const FAULT: Duration = Duration::from_nanos(1500);
const THREADS: u64 = 8;

/// What was measured.
#[derive(Serialize, Debug)]
struct Touched {
    /// Bytes written a second, the first time.
    written: f64,
    /// Bytes read a second, in order.
    in_order: f64,
    /// Faults of one thread, in ns: the median, and what 99 of 100 stayed below. 0 where there were none.
    median_ns: u64,
    high_ns: u64,
    /// Faults a second, of one thread and of eight.
    one: f64,
    eight: f64,
}

/// Touches pages, and prints what that took.
///
/// # Errors
/// There is no number of MiB, or a page is not as it was left.
pub fn touch(words: &[OsString]) -> Result<u8, Refusal> {
    let mib = words.first().and_then(|word| word.to_str()?.parse::<usize>().ok()).filter(|mib| (1..=1 << 20).contains(mib));
    let mib =
        mib.ok_or_else(|| Refusal::cannot_start(format!("{COMMAND} is for 'farshore doctor': it takes a number of MiB")))?;
    let touched = measure(mib << 20, TIME).map_err(|page| Refusal::failed(format!("page {page} is not as it was left")))?;
    let text = serde_json::to_string(&touched).map_err(|error| Refusal::failed(error.to_string()))?;
    crate::print(&(text + "\n")).map(|()| 0)
}

/// What is in a word of a page: noise in the first half, nothing in the other.
fn word(page: usize, at: usize) -> u64 {
    if at < WORDS / 2 { xxh3_64_with_seed(&page.to_ne_bytes(), at as u64) } else { 0 }
}

/// `Err`: the number of a page that is wrong.
fn measure(bytes: usize, time: Duration) -> Result<Touched, usize> {
    let mut memory = vec![[0_u64; WORDS]; bytes / PAGE];
    let begun = Instant::now();
    for (page, words) in memory.iter_mut().enumerate() {
        words.iter_mut().enumerate().take(WORDS / 2).for_each(|(at, it)| *it = word(page, at));
    }
    let written = bytes as f64 / begun.elapsed().as_secs_f64();
    let memory = &*black_box(memory);
    let begun = Instant::now();
    for (page, words) in memory.iter().enumerate() {
        is_right(words, page)?;
    }
    let in_order = bytes as f64 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut faults = at_random(memory, 0, begun + time)?;
    let one = faults.len() as f64 / begun.elapsed().as_secs_f64();
    faults.sort_unstable();
    let part = |of_thousand: usize| faults.get(faults.len() * of_thousand / 1000).map_or(0, |it| it.as_nanos() as u64);
    let (median_ns, high_ns) = (part(500), part(990));
    let (begun, all, wrong) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let (all, wrong) = (&all, &wrong);
            scope.spawn(move || match at_random(memory, seed, begun + time) {
                Ok(faults) => all.fetch_add(faults.len() as u64, Ordering::Relaxed),
                Err(page) => wrong.swap(page as u64, Ordering::Relaxed),
            });
        }
    });
    let eight = all.into_inner() as f64 / begun.elapsed().as_secs_f64();
    match wrong.into_inner() {
        u64::MAX => Ok(Touched { written, in_order, median_ns, high_ns, one, eight }),
        page => Err(page as usize),
    }
}

fn is_right(words: &[u64; WORDS], page: usize) -> Result<(), usize> {
    let at = page % WORDS;
    if black_box(words[at]) == word(page, at) { Ok(()) } else { Err(page) }
}

/// Reads pages at random until then; the times of those that took as long as a fault.
fn at_random(memory: &[[u64; WORDS]], seed: u64, until: Instant) -> Result<Vec<Duration>, usize> {
    let mut faults = Vec::new();
    for number in 0_u64.. {
        let page = (xxh3_64_with_seed(&number.to_ne_bytes(), seed) % memory.len() as u64) as usize;
        let begun = Instant::now();
        is_right(&memory[page], page)?;
        let took = begun.elapsed();
        if took >= FAULT {
            faults.push(took);
        }
        if begun >= until {
            break;
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_it_took() {
        let touched = measure(1 << 20, Duration::from_millis(20)).expect("memory keeps its bytes");
        assert!(touched.written > 0.0 && touched.in_order > 0.0, "{touched:?}");
        assert!(touched.median_ns <= touched.high_ns, "{touched:?}");
    }

    #[test]
    fn a_page_that_is_another_is_noticed() {
        let mut memory = vec![[0_u64; WORDS]; 4];
        for (page, words) in memory.iter_mut().enumerate() {
            words.iter_mut().enumerate().for_each(|(at, it)| *it = word(page, at));
        }
        assert_eq!((0..4).map(|page| is_right(&memory[page], page)).collect::<Result<Vec<()>, usize>>(), Ok(vec![(); 4]));
        memory.swap(1, 2);
        assert_eq!(is_right(&memory[1], 1), Err(1));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for words in [vec![], vec!["many".into()], vec!["0".into()]] {
            assert!(touch(&words).is_err_and(|refusal| refusal.text.contains("number of MiB")), "{words:?}");
        }
    }
}
