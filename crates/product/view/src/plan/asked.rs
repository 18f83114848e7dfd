//! Looks at pages that are there, while nothing leaves by itself.
//!
//! A program whose phase fits the memory makes no faults, so nothing tells what it would do with less. So a few of its pages are asked to leave, any of them, and how long
//! each is then away says when it would have been used ([`super::looks`]). The page that is wanted again comes back as any other; one that is not was not missed.
//! While enough leaves by itself nobody is asked: that tells the same.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use farshore_beside::{Attachment, PAGE, Wanted};
use farshore_command::process::told;
use farshore_replay::sample::hash;

use super::watch::Watch;

/// How often pages are asked.
const EVERY: Duration = Duration::from_millis(60);
/// How many are to leave each time at least, if they may. Each costs the program a fault, and the evictor a flush for all of them …
const LEAVE: u64 = 8;
/// … and this part of the time at most: where a fetch takes long they are fewer.
const PART: f64 = 0.02;
/// How many are to leave in a part of the run that is told by itself. Such parts are short at first, so this many are some 400 a second in the first eight
/// seconds, and half of that in the next eight. (Twice as many made a Ruby program of seven seconds take 8 % longer.)
const LEAVE_A_SLICE: u64 = 48;
/// What a fetch takes until it is known, seconds.
const FETCH: f64 = 100e-6;
/// How many are asked at most for [`LEAVE`] that leave, of which some are not there.
const ASK_MOST: u64 = 128;
/// How often the program's mappings are read.
const MAPPINGS_EVERY: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Debug)]
pub struct Asker {
    /// Memory that pages may be in: first page, and how many there are in the pieces up to its end.
    pieces: Vec<(u64, u64)>,
    read: Option<Instant>,
    asked: Option<Instant>,
    /// How many are asked for [`LEAVE`] that leave.
    count: u64,
    /// How many were to leave of those that were asked last, and the part of one that may besides.
    leave: u64,
    rest: f64,
    /// What a fetch has taken of late, seconds.
    fetch: f64,
    /// What had left when they were asked: all, and those that were asked.
    left: (u64, u64),
    turn: u64,
}

impl Default for Asker {
    fn default() -> Asker {
        Asker {
            pieces: Vec::new(),
            read: None,
            asked: None,
            count: LEAVE,
            leave: LEAVE,
            rest: 0.0,
            fetch: FETCH,
            left: (0, 0),
            turn: 0,
        }
    }
}

impl Asker {
    /// Asks, if it is time to and the program is at its limit with nothing leaving by itself.
    pub fn ask(&mut self, pid: u32, attachment: &mut Attachment, watch: &mut Watch) {
        if self.asked.is_some_and(|asked| asked.elapsed() < EVERY) {
            return;
        }
        let (all, looked) = (watch.evicted, watch.looked_at);
        let (before, looked_before) = std::mem::replace(&mut self.left, (all, looked));
        let by_themselves = (all - looked).saturating_sub(before - looked_before);
        let found = looked - looked_before;
        let passed = self.asked.map_or(EVERY, |asked| asked.elapsed());
        self.asked = Some(Instant::now());
        let leave = (LEAVE_A_SLICE * EVERY.as_nanos() as u64 / watch.slice_ns().max(1)).max(LEAVE);
        // Until something leaves by itself everything fits, and a run in which nothing leaves says so.
        let needless = all == looked || by_themselves >= leave || watch.is_full();
        self.leave = if needless { 0 } else { self.next(found, passed.as_secs_f64(), watch.looks_read(), leave) };
        if self.leave == 0 {
            watch.ask(HashSet::new());
            return;
        }
        if self.read.is_none_or(|read| read.elapsed() >= MAPPINGS_EVERY) {
            self.read = Some(Instant::now());
            self.pieces = pieces(&told(pid, "maps").unwrap_or_default());
        }
        let pages: HashSet<u64> = (0..(self.count * self.leave).div_ceil(LEAVE)).filter_map(|_| self.any()).collect();
        let pages = pages.into_iter().filter(|page| attachment.ask(Wanted::Reclaim, page * PAGE, 1)).collect();
        watch.ask(pages);
    }

    /// So many fetches have taken all together so many seconds of the program's time.
    pub fn note_fetches(&mut self, count: u64, seconds: f64) {
        if count > 0 {
            self.fetch += (seconds.max(0.0) / count as f64 - self.fetch) / 4.0;
        }
    }

    /// How many are to leave now, at most `most`, so many seconds after others were asked, of which so many have left. `read`: the part that comes back by a read.
    fn next(&mut self, found: u64, passed: f64, read: f64, most: u64) -> u64 {
        if 2 * found < self.leave {
            self.count = (self.count * 2).min(ASK_MOST);
        } else if found > self.leave {
            self.count = (self.count / 2).max(LEAVE);
        }
        let may = (self.rest + PART * passed / (self.fetch * read).max(1e-6)).min(most as f64);
        self.rest = may.fract();
        may as u64
    }

    /// Any page of the pieces.
    fn any(&mut self) -> Option<u64> {
        let whole = self.pieces.last()?.1;
        self.turn += 1;
        let at = hash(self.turn) % whole.max(1);
        let piece = self.pieces.partition_point(|&(_, end)| end <= at);
        let begin = if piece > 0 { self.pieces[piece - 1].1 } else { 0 };
        Some(self.pieces.get(piece)?.0 + (at - begin))
    }
}

/// The private memory behind which no file is, by the text of `/proc/PID/maps`.
fn pieces(maps: &str) -> Vec<(u64, u64)> {
    let mut whole = 0;
    let of_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (edges, rights, _, device) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let (first, end) = edges.split_once('-')?;
        let (first, end) = (u64::from_str_radix(first, 16).ok()? / PAGE, u64::from_str_radix(end, 16).ok()? / PAGE);
        (rights == "rw-p" && device == "00:00" && end > first).then_some((first, end - first))
    };
    maps.lines()
        .filter_map(of_line)
        .map(|(first, pages)| {
            whole += pages;
            (first, whole)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_have_a_fiftieth_of_the_time_at_most() {
        for (fetch, least) in [(10e-6, 130.0), (1e-3, 15.0), (20e-3, 0.9), (1.0, 0.015)] {
            let mut asker = Asker::default();
            (0..100).for_each(|_| asker.note_fetches(2, 2.0 * fetch));
            let mut left = 0;
            for _ in 0..10_000 {
                let leave = asker.next(asker.leave, 0.06, 1.0, LEAVE);
                asker.leave = leave;
                left += leave;
            }
            let (a_second, part) = (left as f64 / 600.0, left as f64 * fetch / 600.0);
            assert!((least..134.0).contains(&a_second) && part <= 0.021, "{fetch}: {a_second} a second, {part}");
        }
        // Nearly all of them come back before they were written.
        let mut asker = Asker::default();
        (0..100).for_each(|_| asker.note_fetches(1, 20e-3));
        assert_eq!(asker.next(8, 0.06, 0.005, LEAVE), 8);
    }

    #[test]
    fn more_are_asked_where_few_are_there() {
        let mut asker = Asker::default();
        let mut asked = |founds: &[u64]| {
            for &found in founds {
                asker.leave = asker.next(found, 0.06, 1.0, LEAVE);
            }
            asker.count
        };
        assert_eq!([asked(&[8, 4, 8]), asked(&[3]), asked(&[0; 9]), asked(&[16]), asked(&[16; 9])], [8, 16, 128, 64, 8]);
    }

    #[test]
    fn pages_of_all_pieces_are_asked_alike() {
        let maps = "00001000-00003000 rw-p 00000000 00:00 0 \n\
                    00010000-00020000 rw-p 00000000 fe:00 12  /lib/x\n\
                    00030000-00040000 r--p 00000000 00:00 0 \n\
                    00100000-00106000 rw-p 00000000 00:00 0  [heap]\n\
                    nonsense\n";
        let mut asker = Asker { pieces: pieces(maps), ..Asker::default() };
        assert_eq!(asker.pieces, [(1, 2), (0x100, 8)]);
        let mut seen = std::collections::HashMap::<u64, u32>::new();
        (0..8000).for_each(|_| *seen.entry(asker.any().expect("there are pieces")).or_default() += 1);
        let mut pages: Vec<u64> = seen.keys().copied().collect();
        pages.sort_unstable();
        assert_eq!(pages, [1, 2, 0x100, 0x101, 0x102, 0x103, 0x104, 0x105]);
        assert!(seen.values().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(Asker::default().any(), None);
    }
}
