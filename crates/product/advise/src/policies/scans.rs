//! Which memory is used, by scans of a few pages of each piece of 2 MiB.
//!
//! ```text
//!  begin ─▶ a few pages of each piece, at random ─▶ scan ─▶ they leave
//!                                    touched in this interval ◀──┴──▶ not
//!                                    its fault tells              comes back at the end, unless the piece is cold
//! ```
//!
//! A scan takes pages away and tells soon after which have come back. Those that come back later in the interval have a fault of their own, which is
//! heard. So of all pages that were looked at in an interval it is known whether they were used in the rest of it, and what part of a piece was
//! used is estimated by those. A fault on any other page tells of use, too.
//!
//! Scans have a small part of a processor's time. What is refused is asked for again a little later; what was not looked at when an interval ends was too
//! much, and fewer pages of each piece are looked at in the next. Of a piece of which no page was looked at nothing is known.

use std::collections::{HashMap, HashSet};

use farshore_beside::{Event, Kind};

use super::dt::{Accesses, PIECE};
use crate::pages::{Resident, touched};
use crate::policy::page;
use crate::say::Say;

/// The most pages of a piece that may be looked at in an interval.
pub const LOOKS_MOST: i64 = 64;
/// Pages that are looked at at a time: as many as scans can be under way.
const AT_A_TIME: u64 = 64;
/// How long a scan takes at most, µs.
const SCAN_MICROS_MOST: u64 = 100_000;
/// What was refused is asked for again after so long, ns.
const HOLD_NS: u64 = 100_000_000;
/// Answers that have not come after so long were lost, ns.
const LOST_NS: u64 = 2_000_000_000;

/// See the head.
#[derive(Debug)]
pub struct Scans {
    /// Pages that are to be looked at.
    to_look: Vec<u64>,
    /// Pages that were asked for and not answered, and when that was last.
    awaited: u64,
    asked_ns: u64,
    /// When the next may be asked for.
    from_ns: u64,
    refused: bool,
    micros: u32,
    /// Pages of a piece that are looked at, at most.
    looks: u64,
    /// Pages that were looked at in this interval.
    looked: HashSet<u64>,
    /// Pages that were touched in it.
    touched: HashSet<u64>,
    random: u64,
}

impl Default for Scans {
    fn default() -> Scans {
        Scans {
            to_look: Vec::new(),
            awaited: 0,
            asked_ns: 0,
            from_ns: 0,
            refused: false,
            micros: 0,
            looks: LOOKS_MOST as u64,
            looked: HashSet::new(),
            touched: HashSet::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Scans {
    /// A number below `below`.
    fn below(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    fn shuffle(&mut self, pages: &mut [u64], first: usize) {
        for n in 0..first.min(pages.len()) {
            let other = n + self.below((pages.len() - n) as u64) as usize;
            pages.swap(n, other);
        }
    }
}

impl Accesses for Scans {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fault, Kind::Fetched, Kind::Rescued, Kind::Evicted, Kind::Unmapped, Kind::Pages, Kind::Scanned]
    }

    fn hear(&mut self, event: &Event) {
        self.touched.extend(touched(event));
        if event.kind == Kind::Scanned {
            let first = page(event.address);
            let pages = |bits: u64| (0..event.pages.min(64)).filter(move |n| bits >> n & 1 != 0).map(move |n| first + n);
            self.awaited = self.awaited.saturating_sub(event.pages);
            if event.detail == 0 {
                self.looked.extend(pages(event.more[0]));
                self.touched.extend(pages(event.more[1]));
            } else {
                self.refused = true;
                self.to_look.extend(first..first + event.pages.min(64));
            }
        }
    }

    fn begin(&mut self, ns: u64, looks: u64, resident: &Resident) {
        // All were looked at before, or not.
        let few = if self.to_look.is_empty() { self.looks * 2 } else { self.looks / 2 };
        self.looks = few.max(1).min(looks);
        self.micros = (ns / 4000).min(SCAN_MICROS_MOST) as u32;
        self.to_look.clear();
        let all: Vec<u64> = resident.of(0..u64::MAX).collect();
        let mut chosen = Vec::new();
        for piece in all.chunk_by(|a, b| a / PIECE == b / PIECE) {
            let (mut pages, few) = (piece.to_vec(), piece.len().min(self.looks as usize));
            self.shuffle(&mut pages, few);
            chosen.extend_from_slice(&pages[..few]);
        }
        let all = chosen.len();
        self.shuffle(&mut chosen, all);
        self.to_look = chosen;
    }

    fn ask(&mut self, now_ns: u64, say: &mut Say) {
        if std::mem::take(&mut self.refused) {
            self.from_ns = now_ns + HOLD_NS;
        }
        if self.awaited > 0 && now_ns.saturating_sub(self.asked_ns) >= LOST_NS {
            self.awaited = 0;
        }
        if now_ns < self.from_ns {
            return;
        }
        let room = AT_A_TIME.saturating_sub(self.awaited).min(self.to_look.len() as u64);
        if room > 0 {
            for page in self.to_look.split_off(self.to_look.len() - room as usize) {
                say.scan(self.micros, page);
            }
            self.awaited += room;
            self.asked_ns = now_ns;
        }
    }

    fn end(&mut self, resident: &Resident, stays: &dyn Fn(u64) -> bool, say: &mut Say) -> HashMap<u64, u64> {
        let (looked, touched) = (std::mem::take(&mut self.looked), std::mem::take(&mut self.touched));
        // Of each piece: pages that were looked at, those of them that were used, and others that were.
        let mut counts: HashMap<u64, [u64; 3]> = HashMap::new();
        for page in &looked {
            let count = counts.entry(page / PIECE).or_default();
            count[0] += 1;
            count[1] += u64::from(touched.contains(page));
        }
        touched.difference(&looked).for_each(|page| counts.entry(page / PIECE).or_default()[2] += 1);
        let away = looked.difference(&touched).copied().filter(|page| stays(page / PIECE) && !resident.has(*page)).collect();
        say.each(away, Say::come);
        let of_piece = |(piece, [looks, used, others]): (u64, [u64; 3])| {
            let there = resident.of(piece * PIECE..(piece + 1) * PIECE).count() as u64;
            let estimate = (there * used).div_ceil(looks.max(1)).max(used) + others;
            (piece, estimate.min(PIECE))
        };
        counts.into_iter().map(of_piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_beside::{PAGE, Wanted};

    fn resident(pages: u64) -> Resident {
        let mut resident = Resident::default();
        resident.hear(&Event::new(Kind::Fetched, 0, pages));
        resident
    }

    fn answer(page: u64, accessed: bool) -> Event {
        Event { more: [1, accessed.into(), 0], ..Event::new(Kind::Scanned, page * PAGE, 1) }
    }

    #[test]
    fn a_few_pages_of_each_piece_are_looked_at_and_few_at_a_time() {
        let (mut scans, mut say) = (Scans::default(), Say::default());
        scans.begin(1_000_000_000, 10, &resident(20 * PIECE));
        let mut asked = Vec::new();
        for ns in 1..=10 {
            scans.ask(ns, &mut say);
            let now: Vec<u64> = say.pages_of(Wanted::Scan { micros: 100_000, tag: 0 });
            assert!(now.len() as u64 <= AT_A_TIME);
            asked.extend(now.iter().copied());
            now.iter().for_each(|page| scans.hear(&answer(*page, false)));
        }
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.chunk_by(|a, b| a / PIECE == b / PIECE).map(<[u64]>::len).collect::<Vec<_>>(), [10; 20]);
        // Without answers no more are asked for, until they are lost.
        scans.begin(1_000_000_000, 10, &resident(20 * PIECE));
        scans.ask(20, &mut say);
        say.all();
        scans.ask(21, &mut say);
        assert_eq!(say.all(), []);
        scans.ask(20 + LOST_NS, &mut say);
        assert_eq!(say.all().iter().map(|wish| wish.pages).sum::<u64>(), AT_A_TIME);
        // Half as many, since not all were looked at; none, if that is wanted.
        scans.begin(1_000_000_000, 10, &resident(PIECE));
        assert_eq!(scans.to_look.len(), 5);
        scans.begin(1_000_000_000, 0, &resident(PIECE));
        assert_eq!(scans.to_look.len(), 0);
    }

    #[test]
    fn what_is_refused_is_asked_for_later() {
        let (mut scans, mut say) = (Scans::default(), Say::default());
        scans.begin(4_000_000, 1, &resident(1));
        scans.ask(5, &mut say);
        assert_eq!(say.pages_of(Wanted::Scan { micros: 1000, tag: 0 }), [0]);
        scans.hear(&Event { detail: 1, ..Event::new(Kind::Scanned, 0, 1) });
        scans.ask(6, &mut say);
        assert_eq!(say.all(), []);
        scans.ask(6 + HOLD_NS, &mut say);
        assert_eq!(say.all().len(), 1);
    }

    #[test]
    fn the_part_that_was_used_is_estimated_and_what_was_not_used_comes_back() {
        let (mut scans, mut say) = (Scans::default(), Say::default());
        let mut there = resident(4 * PIECE);
        for n in 0..4 {
            // Of piece 0 a quarter is used, of piece 1 nothing, of piece 2 one page, later.
            scans.hear(&answer(n, n == 0));
            scans.hear(&answer(PIECE + n, false));
            scans.hear(&answer(2 * PIECE + n, false));
            [n, PIECE + n, 2 * PIECE + n].into_iter().for_each(|page| there.remove(page));
        }
        there.touch(0);
        let late = Event::new(Kind::Fault, 2 * PIECE * PAGE, 1);
        scans.hear(&late);
        there.hear(&late);
        scans.hear(&Event::new(Kind::Fault, (3 * PIECE + 7) * PAGE, 1));
        let shown = scans.end(&there, &|piece| piece != 1, &mut say);
        // Three pages of piece 0 are away.
        assert_eq!(shown, HashMap::from([(0, 128), (1, 0), (2, 128), (3, 1)]));
        assert_eq!(say.pages_of(Wanted::Prefetch), [1, 2, 3, 2 * PIECE + 1, 2 * PIECE + 2, 2 * PIECE + 3]);
        assert_eq!(scans.end(&there, &|_| true, &mut say), HashMap::new(), "each interval for itself");
    }
}
