//! Which memory is in RAM, piece by piece, and when: what the kernel says of each page (`/proc/PID/pagemap`).
//!
//! The program is not asked, and pays nothing but that the kernel walks its page tables, a few milliseconds for a gibibyte each second. That is done as long as somebody
//! asks for it: the first request for a process begins, and [`KEPT`] after the last one it ends. A page that is there and was not one look before has *come*.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farshore_client::kinds::{Managed, managed};
use farshore_client::programs;
use farshore_command::process::ask;

use crate::shapes::{Heat, Look, Piece};

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the kernel may take for a look.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long looks go on after the last request.
const KEPT: Duration = Duration::from_secs(60);
/// Looks that are kept.
const LOOKS: usize = 120;
/// From one look at the mappings to the next.
const MAPPINGS: u32 = 10;
/// Processes that are looked at, at a time.
const PROCESSES: usize = 8;
/// About how many pieces the memory is cut into, and the most.
const PIECES: (u64, usize) = (64, 192);
/// The smallest piece.
const PIECE_MIN: u64 = 64 << 10;
/// The most pages of a look; of larger memory, a part is looked at.
const PAGES: u64 = 1 << 21;
/// Pages that are looked at or left out together.
const RUN: u64 = 512;
const PAGE: u64 = 4096;
/// The bit of a page that is in RAM.
const PRESENT: u64 = 1 << 63;

/// What is looked at.
#[derive(Debug, Default)]
pub struct Heats {
    all: Arc<Mutex<HashMap<(u32, u64), Watched>>>,
}

#[derive(Debug)]
struct Watched {
    asked: Instant,
    pieces: Vec<Piece>,
    looks: VecDeque<(Instant, Counts)>,
    failed: Option<String>,
}

/// Of each piece, by its first byte: pages in RAM, and pages that have come.
type Counts = BTreeMap<u64, (u32, u32)>;
/// Of each piece, by its first byte: which of its pages were in RAM.
type Bits = HashMap<u64, Vec<u64>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heats {
    /// What looks at a process have seen. The first time nothing, and looks begin.
    ///
    /// # Errors
    /// A status and a line: too many are looked at, or the kernel lets nobody look.
    pub fn of(&self, pid: u32, started: u64) -> Result<Heat, (u16, String)> {
        let mut all = locked(&self.all);
        let now = Instant::now();
        if let Some(watched) = all.get_mut(&(pid, started)) {
            watched.asked = now;
            if let Some(why) = &watched.failed {
                return Err((409, why.clone()));
            }
            return Ok(watched.heat(now));
        }
        if all.len() >= PROCESSES {
            return Err((
                503,
                format!("the memory of {PROCESSES} processes is looked at already: come again in {} s", KEPT.as_secs()),
            ));
        }
        let begun = Watched { asked: now, pieces: Vec::new(), looks: VecDeque::new(), failed: None };
        all.insert((pid, started), begun);
        drop(all);
        let theirs = self.all.clone();
        let spawned = std::thread::Builder::new().name("daemon-heat".into()).spawn(move || look(&theirs, pid, started));
        if spawned.is_err() {
            locked(&self.all).remove(&(pid, started));
            return Err((503, "no thread is to be had for it: raise the limits of processes".into()));
        }
        Ok(Heat { pieces: Vec::new(), looks: Vec::new() })
    }
}

impl Watched {
    fn heat(&self, now: Instant) -> Heat {
        let looks = self.looks.iter().map(|(at, counts)| {
            // A piece that was not there then had nothing.
            let of = |piece: &Piece| counts.get(&piece.start).copied().unwrap_or_default();
            let age = now.saturating_duration_since(*at);
            Look {
                age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
                resident: self.pieces.iter().map(|piece| of(piece).0).collect(),
                came: self.pieces.iter().map(|piece| of(piece).1).collect(),
            }
        });
        Heat { pieces: self.pieces.clone(), looks: looks.collect() }
    }
}

/// Looks at a process until nobody asks any more, or it has ended.
fn look(all: &Mutex<HashMap<(u32, u64), Watched>>, pid: u32, started: u64) {
    let (mut before, mut pieces, mut size, mut number) = (Bits::new(), Vec::new(), 0, 0);
    loop {
        let began = Instant::now();
        if number % MAPPINGS == 0
            && let Some(managed) = managed(pid, PATIENCE)
        {
            // A piece keeps its size, so that what was seen of it before is of the same memory.
            let wanted = size_of(&managed);
            if size == 0 || wanted > 2 * size || wanted < size / 4 {
                (size, before) = (wanted, Bits::new());
            }
            pieces = cut(&managed, size);
        }
        number += 1;
        let (looked_at, known) = (pieces.clone(), std::mem::take(&mut before));
        let seen = ask(pid, PATIENCE, move || seen(pid, &looked_at, &known)).map(|(counts, now)| {
            before = now;
            counts
        });
        let mut all = locked(all);
        let Some(watched) = all.get_mut(&(pid, started)) else { return };
        if watched.asked.elapsed() > KEPT || programs::started(pid).is_ok_and(|it| it != Some(started)) {
            all.remove(&(pid, started));
            return;
        }
        match seen {
            Ok(counts) => {
                watched.pieces.clone_from(&pieces);
                watched.looks.push_back((began, counts));
                while watched.looks.len() > LOOKS {
                    watched.looks.pop_front();
                }
                watched.failed = None;
            }
            Err(why) => {
                watched.failed =
                    Some(format!("the memory of process {pid} cannot be looked at ({why}): ask as its user, or as root"))
            }
        }
        drop(all);
        std::thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
    }
}

/// How large a piece is, for so much memory.
fn size_of(managed: &[Managed]) -> u64 {
    let bytes: u64 = managed.iter().map(|one| one.end - one.start).sum();
    (bytes / PIECES.0).next_power_of_two().max(PIECE_MIN)
}

/// Cuts memory into pieces that begin at multiples of a size; of too many, the largest.
fn cut(managed: &[Managed], size: u64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for one in managed {
        let mut at = one.start;
        while at < one.end {
            let end = one.end.min((at / size + 1) * size);
            pieces.push(Piece { start: at, bytes: end - at, name: farshore_config::plain(&one.name), pages: 0 });
            at = end;
        }
    }
    if pieces.len() > PIECES.1 {
        pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
        pieces.truncate(PIECES.1);
        pieces.sort_by_key(|piece| piece.start);
    }
    // Of those that are left: what is not looked at counts for nothing.
    let every = every(&pieces);
    for piece in &mut pieces {
        let looked_at: u64 = runs(piece.start, piece.start + piece.bytes, every).map(|(_, pages)| pages).sum();
        piece.pages = u32::try_from(looked_at).unwrap_or(u32::MAX);
    }
    pieces
}

/// Of so many runs of pages, one is looked at.
fn every(pieces: &[Piece]) -> u64 {
    let pages: u64 = pieces.iter().map(|piece| piece.bytes / PAGE).sum();
    pages.div_ceil(PAGES).max(1)
}

/// The runs of pages between two addresses that are looked at: each of so many. First page and number of pages.
fn runs(start: u64, end: u64, every: u64) -> impl Iterator<Item = (u64, u64)> {
    let (first, last) = (start / PAGE, end / PAGE);
    (first..last).step_by(RUN as usize * every as usize).map(move |at| (at, RUN.min(last - at)))
}

/// Looks at all pieces once: what was there before, and is now.
fn seen(pid: u32, pieces: &[Piece], before: &Bits) -> std::io::Result<(Counts, Bits)> {
    let file = File::open(format!("/proc/{pid}/pagemap"))?;
    let every = every(pieces);
    let mut counts = Counts::new();
    let mut bytes = vec![0; RUN as usize * 8];
    let mut now = Bits::new();
    for piece in pieces {
        let mut bits = Vec::new();
        for (first, count) in runs(piece.start, piece.start + piece.bytes, every) {
            let wanted = &mut bytes[..count as usize * 8];
            let got = file.read_at(wanted, first * 8)?;
            let entries = wanted[..got].chunks_exact(8).map(|entry| entry.try_into().map_or(0, u64::from_le_bytes));
            let present: Vec<bool> = entries.map(|entry| entry & PRESENT != 0).collect();
            bits.extend(present.chunks(64).map(|some| some.iter().rev().fold(0_u64, |bits, is| bits << 1 | u64::from(*is))));
        }
        let ones = |bits: &mut dyn Iterator<Item = u64>| bits.map(u64::count_ones).sum::<u32>();
        let resident = ones(&mut bits.iter().copied());
        let came = before.get(&piece.start).filter(|old| old.len() == bits.len());
        let came = came.map_or(0, |old| ones(&mut bits.iter().zip(old).map(|(new, old)| new & !old)));
        counts.insert(piece.start, (resident, came));
        now.insert(piece.start, bits);
    }
    Ok((counts, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(start: u64, pages: u64) -> Managed {
        Managed { start, end: start + pages * PAGE, name: "[heap]".into() }
    }

    #[test]
    fn memory_is_cut_at_multiples() {
        let all = [memory(0x7000, 40), memory(0x100_0000, 1)];
        assert_eq!(size_of(&all), PIECE_MIN);
        let pieces: Vec<_> = cut(&all, PIECE_MIN).iter().map(|piece| (piece.start, piece.bytes / PAGE, piece.pages)).collect();
        assert_eq!(pieces, [(0x7000, 9, 9), (0x1_0000, 16, 16), (0x2_0000, 15, 15), (0x100_0000, 1, 1)]);
        let large = [memory(0, 1 << 22)];
        assert_eq!((size_of(&large), cut(&large, size_of(&large)).len()), (256 << 20, 64));
        assert_eq!(cut(&large, size_of(&large)).iter().map(|piece| u64::from(piece.pages)).sum::<u64>(), PAGES, "half of it");
        // 16 GiB in a thousand pieces, of which 3 GiB are shown: what is told to be looked at is what is looked at.
        let scattered: Vec<_> = (0..1000).map(|at| memory(at << 25, 4096)).collect();
        let pieces = cut(&scattered, size_of(&scattered));
        assert_eq!((pieces.len(), pieces.iter().map(|piece| u64::from(piece.pages)).sum::<u64>()), (PIECES.1, 192 * 4096));
        let many: Vec<_> = (0..1000).map(|at| memory(at << 24, 1 + at % 7)).collect();
        let pieces = cut(&many, PIECE_MIN);
        assert!(pieces.len() == PIECES.1 && pieces.is_sorted_by_key(|piece| piece.start));
    }

    #[test]
    fn pages_that_come_are_told() {
        let pages = 256;
        let mut mine = vec![0_u8; (pages + 2) * PAGE as usize];
        let first = (mine.as_ptr() as u64).next_multiple_of(PAGE);
        let offset = (first - mine.as_ptr() as u64) as usize;
        let pieces = [Piece { start: first, bytes: pages as u64 * PAGE, name: String::new(), pages: pages as u32 }];
        let mut bits = Bits::new();
        let pid = std::process::id();
        let mut look = || {
            let (counts, now) = seen(pid, &pieces, &bits).expect("one may look at oneself");
            bits = now;
            counts[&first]
        };
        let before = look();
        for page in (0..pages).step_by(2) {
            mine[offset + page * PAGE as usize] = 1;
        }
        let after = look();
        assert_eq!(before.1, 0, "there was no look before");
        assert_eq!(after.0 - before.0, after.1, "{before:?} to {after:?}");
        // The kernel may have brought more at once, in large pages.
        assert!(after.0 as usize >= pages / 2, "{after:?}");
        assert_eq!(look(), (after.0, 0));
        std::hint::black_box(mine);
        assert!(seen(u32::MAX, &pieces, &Bits::new()).is_err());
    }
}
