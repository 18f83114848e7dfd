//! From what a recording has, faults and pages that came and left, to a trace of accesses that policies can be run over.
//!
//! # What is known
//!
//! A process cannot read access bits. So an access is recorded where it faults, and of a page that is there nothing is known. But
//! of a page that is **away** all is known: nobody touched it from the moment at which it left until the fault that brought it
//! back. The trace of these accesses alone ([`Traces::known`]) is a part of the program's, and leaving accesses out never makes
//! the optimum read more (its choices for the whole are good for the part, too). So **the optimum over it is a lower bound**, for
//! any policy with any memory.
//!
//! # What is estimated
//!
//! A policy must also know which pages were used while they were there; else a page that is used all the time looks as if it were
//! used once. Each time that a page was away is a look at how it is used: pages leave for the evictors' reasons (or for a
//! scan's), not for the program's, so the time until the next access is that of a moment like any other. If accesses come at
//! random, a page's rate is most likely the number of its returns, divided by the time that it was away for them. A stay between
//! two such looks gets accesses by the rate that the look before it and the one behind it say (`Stay::expected`).
//!
//! Two looks say something else:
//!
//! * **In order.** A page that comes back from swap space behind the page that it came behind the last time, or behind its
//!   neighbour, is one of a loop. How long it was away says how large the loop is, and not how often the page is used: that is
//!   once a round, and a round takes the time from when it came last until it came now. If it stays for longer (the evictors keep
//!   a part of a loop), it was touched once each such time.
//! * **Rescued.** A page that is wanted a moment after it has left is used, in order or not. But if it is one of a loop and comes as
//!   regularly as the last time, the loop is a little larger than memory, and once a round it is.
//!
//! All accesses, known and estimated, are [`Traces::likely`]. How near policies come over it to what they do over the whole trace
//! is tested with traces that are known (`crates/testing/traces/tests/recorded.rs`).
//!
//! # What is assumed
//!
//! * Pages leave now and then, however they are used. The policy `second-chance` passes over those that come back soon, and while it does nobody sees how they are used: what is
//!   told of a recording under `fifo` is nearer.
//! * Pages that came unasked were used when they came.
//! * A page that nobody saw come or leave has no part: it takes no memory in the trace.
//!
//! # How large
//!
//! A recording may have any number of events. When more than [`ITEMS_MAX`] are kept, a part of memory is looked at alone, in
//! pieces of 2 MiB by their hash ([`Sample`]): policies are run with as large a part of the memory (Waldspurger et al., Cache
//! Modeling and Optimization using Miniature Simulations, ATC 2017). Of a program of a hundred MiB a few pieces are left, which
//! are more or less than their hashes say, and used more or less than others. So the part is that of the pieces that were heard
//! of, and a read stands for as many as there were pages that came, for one that did in the sample.

use crate::sample::{Sample, hash};
use crate::{Access, Trace};
use farshore_core::limits::{GRANULE_PAGES, GRANULE_SHIFT};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Events that are kept.
pub const ITEMS_MAX: usize = 1 << 20;
/// Pages of one event that are looked at. Evictors and prefetchers tell of fewer at a time; a file may say anything.
const PAGES_MAX: u64 = GRANULE_PAGES as u64;
/// Pieces of memory that are counted at most; where there are more, their hashes say well enough which part of them is looked at.
const PIECES_MAX: usize = 1 << 20;
/// Threads of which it is known what they touched last.
const THREADS_MAX: usize = 4096;
/// Accesses that are added to one stay at most, where they come at random: more of them would change no policy's mind.
const ADDED_MAX: f64 = 8.0;
/// What one look counts for that has shown an access.
const ALONE: f64 = 0.5;
/// Rounds of a loop that are added to one stay at most.
const ROUNDS_MAX: f64 = 256.0;
/// Accesses that are added at most; if there would be more, each is left out as often as it takes.
const ADDED_ALL_MAX: f64 = (1 << 22) as f64;

/// What was heard of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// A thread touched a page that was absent, or one that was there and write-protected.
    Fault {
        /// Whether the page was there.
        protected: bool,
        /// The thread; 0: not known.
        thread: u32,
        /// The instruction; 0: not known.
        instruction: u64,
    },
    /// They came from swap space by their fault.
    Fetched,
    /// They came from swap space, and no fault had asked for them.
    Unasked,
    /// They had left, and came back from RAM.
    Rescued,
    /// They left.
    Left,
    /// Their bytes were thrown away.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    ns: u64,
    page: u64,
    thread: u32,
    site: u16,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Fault,
    Protected,
    Fetched,
    Unasked,
    Rescued,
    Left,
    Gone,
}

/// A recording as it is heard.
#[derive(Debug)]
pub struct Recording {
    most: usize,
    items: Vec<Item>,
    sample: Sample,
    /// Pages of the sample that were heard of, and are not gone.
    pages: BTreeSet<u64>,
    /// All pieces that were heard of, whether they are in the sample or not, …
    pieces: HashSet<u64>,
    /// … and how many of their pages came from swap space.
    came: u64,
    now: u64,
}

impl Default for Recording {
    fn default() -> Recording {
        Recording::with(ITEMS_MAX)
    }
}

impl Recording {
    /// One that keeps so many events at most.
    pub fn with(most: usize) -> Recording {
        Recording {
            most,
            items: Vec::new(),
            sample: Sample::default(),
            pages: BTreeSet::new(),
            pieces: HashSet::new(),
            came: 0,
            now: 0,
        }
    }

    /// Something happened to pages. Threads write their events in an order that is nearly that of their times: a time before the
    /// last one is taken for the last one.
    pub fn hear(&mut self, ns: u64, heard: Heard, first: u64, pages: u64) {
        self.now = self.now.max(ns);
        let end = first.saturating_add(pages);
        let (what, thread, instruction) = match heard {
            Heard::Fault { protected, thread, instruction } => {
                (if protected { What::Protected } else { What::Fault }, thread, instruction)
            }
            Heard::Fetched => (What::Fetched, 0, 0),
            Heard::Unasked => (What::Unasked, 0, 0),
            Heard::Rescued => (What::Rescued, 0, 0),
            Heard::Left => (What::Left, 0, 0),
            Heard::Gone => {
                let gone: Vec<u64> = self.pages.range(first..end).copied().collect();
                for page in gone {
                    self.pages.remove(&page);
                    self.keep(Item { ns: self.now, page, thread: 0, site: 0, what: What::Gone });
                }
                return;
            }
        };
        // A place in the text is known by 16 bits of its hash: two that fall together are one to a policy that asks for it.
        let site = if instruction == 0 { 0 } else { (hash(instruction) >> 48) as u16 };
        let end = end.min(first.saturating_add(PAGES_MAX));
        if end > first && self.pieces.len() < PIECES_MAX {
            self.pieces.extend([first >> GRANULE_SHIFT, (end - 1) >> GRANULE_SHIFT]);
        }
        if matches!(what, What::Fetched | What::Unasked) {
            self.came += end - first;
        }
        for page in first..end {
            if self.sample.has(page >> GRANULE_SHIFT) {
                self.pages.insert(page);
                self.keep(Item { ns: self.now, page, thread, site, what });
            }
        }
    }

    fn keep(&mut self, item: Item) {
        self.items.push(item);
        if self.items.len() > self.most {
            // By more than one, so that it is not done again at once; but if all is in one piece of memory, nothing is left.
            while self.items.len() > self.most / 2 {
                self.sample.thin_out();
                let sample = self.sample;
                self.items.retain(|item| sample.has(item.page >> GRANULE_SHIFT));
            }
            let sample = self.sample;
            self.pages.retain(|page| sample.has(page >> GRANULE_SHIFT));
        }
    }

    /// The traces of what was heard.
    pub fn traces(self) -> Traces {
        let begun = self.items.first().map_or(0, |item| item.ns);
        let mut reader = Reader::new(numbers(&self.items), begun);
        self.items.iter().for_each(|item| reader.read(item));
        let count = |what| self.items.iter().filter(|item| item.what == what).count() as u64;
        let (unasked, came) = (count(What::Unasked), count(What::Unasked) + count(What::Fetched));
        let (rate, now) = (self.rate(), self.now);
        let weight = if came > 0 { self.came as f64 / came as f64 } else { 1.0 / rate };
        drop(self.items);
        reader.end(now, (rate, weight), unasked)
    }

    /// The part of memory that is in the sample.
    fn rate(&self) -> f64 {
        let kept = self.pieces.iter().filter(|&&piece| self.sample.has(piece)).count();
        let is_counted = kept > 0 && self.pieces.len() < PIECES_MAX;
        if is_counted { kept as f64 / self.pieces.len() as f64 } else { self.sample.rate() }
    }
}

/// A number for each page, in the order of their addresses. Neighbours stay neighbours, and no others become so.
fn numbers(items: &[Item]) -> HashMap<u64, u32> {
    let mut pages: Vec<u64> = items.iter().map(|item| item.page).collect();
    pages.sort_unstable();
    pages.dedup();
    let (mut before, mut number) = (None, 0_u32);
    let number_of = |page: u64| {
        number += before.replace(page).map_or(0, |before: u64| (page - before).min(2) as u32);
        (page, number)
    };
    pages.into_iter().map(number_of).collect()
}

/// What a recording tells of a program's accesses.
#[derive(Debug)]
pub struct Traces {
    /// The accesses that faulted.
    pub known: Trace,
    /// Those, pages that came unasked, and accesses that are estimated.
    pub likely: Trace,
    /// The part of memory that was looked at.
    pub rate: f64,
    /// How many pages came, for each one of that part.
    pub weight: f64,
    /// Pages that came unasked.
    pub unasked: u64,
    /// Accesses that are estimated.
    pub added: u64,
}

/// A time during which a page was there.
#[derive(Clone, Copy, Debug)]
struct Stay {
    page: u32,
    site: u16,
    /// Looks that have shown an access: that before it and that behind it.
    used: u8,
    from: u64,
    to: u64,
    /// How long these looks took.
    away: u64,
    /// It came in order, and so long after it had come before; 0: it did not.
    round: u64,
}

impl Stay {
    /// How many accesses there were besides the first one, as far as the looks tell.
    fn expected(&self) -> f64 {
        let there = (self.to - self.from) as f64;
        match (self.used, self.round) {
            (0, 0) => 0.0,
            (0 | 1, round @ 1..) => (there / round as f64).floor().min(ROUNDS_MAX),
            // One less than the returns: the mean of what two times tell is the rate then. Of one time it has none, and this is about its median.
            (used, _) => ((f64::from(used) - 1.0).max(ALONE) * there / (self.away as f64).max(1.0)).min(ADDED_MAX),
        }
    }

    /// Adds this part of them: once a round, or at random in equal parts of the stay.
    fn add(&self, part: f64, added: &mut Vec<(u64, Access)>) {
        let seed = hash(self.from ^ u64::from(self.page) << 40);
        let random = |n: u64| (hash(seed ^ n) >> 11) as f64 / (1_u64 << 53) as f64;
        let expected = self.expected();
        let goes_round = self.used < 2 && self.round > 0;
        let count = if goes_round { expected } else { (expected + random(0)).floor() };
        let each = (self.to - self.from) as f64 / count.max(1.0);
        for n in 0..count as u64 {
            let after =
                if goes_round { (n + 1).saturating_mul(self.round) } else { ((n as f64 + random(2 * n + 1)) * each) as u64 };
            if part >= 1.0 || random(2 * n + 2) < part {
                added.push((self.from.saturating_add(after), Access { page: self.page, site: self.site }));
            }
        }
    }
}

/// Where a page is, as far as it was heard.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    /// Nothing was heard of it.
    Unheard,
    /// It has no bytes.
    Nowhere,
    There,
    /// It left at this time.
    Away(u64),
}

#[derive(Clone, Copy, Debug)]
struct Page {
    number: u32,
    place: Place,
    /// Its last stay, and the one before.
    stay: Option<usize>,
    stay_before: Option<usize>,
    /// The page that its thread touched before it, the last time.
    behind: Option<u64>,
    /// How long the last look took, and the time from when it came before that look until it came behind it, in rounds of one.
    look: Option<(u64, u64)>,
    /// The last look was like the one before it.
    steady: bool,
    /// The access that brought it, as long as nothing was heard of where its bytes came from, and whether it is the first that was heard of the page.
    open: Option<(usize, bool)>,
}

/// Something in the traces.
#[derive(Clone, Copy, Debug)]
struct Point {
    ns: u64,
    access: Access,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A thread touched it.
    Touch,
    /// The same, and its bytes from before are gone.
    Anew,
    /// It came unasked.
    Unasked,
    Gone,
}

/// Goes through what was heard.
#[derive(Debug)]
struct Reader {
    pages: HashMap<u64, Page>,
    numbers: HashMap<u64, u32>,
    points: Vec<Point>,
    stays: Vec<Stay>,
    /// Pages that were away at the beginning, and those that were there, in the order in which they leave.
    out_at_first: Vec<u32>,
    there_at_first: Vec<u32>,
    /// What each thread touched last, and what came last of all.
    last: HashMap<u32, u64>,
    last_of_all: u64,
    begun: u64,
}

impl Reader {
    fn new(numbers: HashMap<u64, u32>, begun: u64) -> Reader {
        Reader {
            pages: HashMap::with_capacity(numbers.len()),
            numbers,
            points: Vec::new(),
            stays: Vec::new(),
            out_at_first: Vec::new(),
            there_at_first: Vec::new(),
            last: HashMap::new(),
            last_of_all: u64::MAX,
            begun,
        }
    }

    fn read(&mut self, item: &Item) {
        let number = self.numbers[&item.page];
        let unheard = Page {
            number,
            place: Place::Unheard,
            stay: None,
            stay_before: None,
            behind: None,
            look: None,
            steady: false,
            open: None,
        };
        let mut page = self.pages.get(&item.page).copied().unwrap_or(unheard);
        match item.what {
            What::Fault | What::Protected => self.touched(item, &mut page),
            What::Fetched | What::Rescued | What::Unasked => self.came(item, &mut page),
            What::Left => self.left(item, &mut page),
            What::Gone => {
                if page.place == Place::There {
                    self.end_stay(&page, item.ns);
                }
                self.point(item, &page, Kind::Gone);
                (page.place, page.open, page.stay, page.stay_before, page.look) = (Place::Nowhere, None, None, None, None);
            }
        }
        self.pages.insert(item.page, page);
    }

    fn point(&mut self, item: &Item, page: &Page, kind: Kind) {
        self.points.push(Point { ns: item.ns, access: Access { page: page.number, site: item.site }, kind });
    }

    fn touched(&mut self, item: &Item, page: &mut Page) {
        let last = self.last.get(&item.thread).copied();
        match page.place {
            Place::There => {}
            Place::Away(since) => {
                let is_near = |other: u64| other.abs_diff(item.page) == 1;
                let in_order = last.is_some() && last == page.behind || last.is_some_and(is_near) || is_near(self.last_of_all);
                self.comes_back(item, page, since, in_order);
                if !in_order {
                    self.is_used(page);
                }
                page.open = Some((self.points.len(), false));
            }
            Place::Unheard if item.what == What::Protected => {
                self.there_at_first.push(page.number);
                self.begin_stay(item, page, 0);
            }
            Place::Unheard | Place::Nowhere => {
                page.open = Some((self.points.len(), page.place == Place::Unheard));
                self.begin_stay(item, page, 0);
            }
        }
        page.behind = last;
        self.point(item, page, Kind::Touch);
        if self.last.len() >= THREADS_MAX {
            self.last.clear();
        }
        self.last.insert(item.thread, item.page);
        self.last_of_all = item.page;
    }

    fn came(&mut self, item: &Item, page: &mut Page) {
        match page.place {
            Place::There => {
                // By the fault that was heard before.
                if let Some((_, true)) = page.open.take() {
                    self.out_at_first.push(page.number);
                }
            }
            Place::Away(since) => {
                self.comes_back(item, page, since, item.what == What::Unasked);
                self.point(item, page, if item.what == What::Unasked { Kind::Unasked } else { Kind::Touch });
            }
            Place::Unheard | Place::Nowhere => {
                if page.place == Place::Unheard {
                    self.out_at_first.push(page.number);
                }
                self.begin_stay(item, page, 0);
                self.point(item, page, if item.what == What::Unasked { Kind::Unasked } else { Kind::Touch });
            }
        }
        if item.what == What::Rescued && !page.steady {
            self.is_used(page);
        }
        if item.what == What::Unasked {
            self.last_of_all = item.page;
        }
    }

    fn left(&mut self, item: &Item, page: &mut Page) {
        match page.place {
            Place::There => {
                // It came, and not from anywhere: what it had before was thrown away, if it had something.
                if let Some((at, false)) = page.open.take() {
                    self.points[at].kind = Kind::Anew;
                }
                page.open = None;
                self.end_stay(page, item.ns);
            }
            Place::Unheard => {
                self.there_at_first.push(page.number);
                let begun = Item { ns: self.begun, ..*item };
                self.begin_stay(&begun, page, 0);
                self.end_stay(page, item.ns);
            }
            // What was heard last of it was lost.
            Place::Nowhere | Place::Away(_) => {}
        }
        page.place = Place::Away(item.ns);
    }

    fn comes_back(&mut self, item: &Item, page: &mut Page, since: u64, in_order: bool) {
        let away = item.ns.saturating_sub(since);
        let mut round = 0;
        if let Some(before) = page.stay.map(|stay| &mut self.stays[stay]) {
            before.away += away;
            round = item.ns - before.from;
        }
        page.steady = false;
        if let Some((away_before, round_before)) = page.look.filter(|_| in_order) {
            let rounds = (round as f64 / round_before.max(1) as f64).round();
            let is_near = |one: f64, other: f64, by: f64| one <= other * by && other <= one * by;
            // Of a page that has stayed for several rounds the time that it is away may be another.
            let is_alike = rounds > 1.0 || is_near(away as f64, away_before as f64, 1.5);
            page.steady = rounds >= 1.0 && is_alike && is_near(round as f64, rounds * round_before as f64, 1.0 + 0.125 / rounds);
            if page.steady {
                round /= rounds as u64;
            }
        }
        page.look = Some((away, round));
        self.begin_stay(item, page, away);
        if let (true, Some(stay)) = (in_order, page.stay) {
            self.stays[stay].round = round;
        }
    }

    fn begin_stay(&mut self, item: &Item, page: &mut Page, away: u64) {
        page.stay_before = page.stay.replace(self.stays.len());
        page.place = Place::There;
        self.stays.push(Stay { page: page.number, site: item.site, used: 0, from: item.ns, to: item.ns, away, round: 0 });
    }

    fn end_stay(&mut self, page: &Page, ns: u64) {
        if let Some(stay) = page.stay {
            self.stays[stay].to = ns.max(self.stays[stay].from);
        }
    }

    /// The look that has just ended has shown an access; it is told once.
    fn is_used(&mut self, page: &mut Page) {
        if let (Some(before), Some(stay)) = (page.stay_before.take(), page.stay) {
            self.stays[before].used += 1;
            self.stays[stay].used += 1;
        }
    }

    fn end(mut self, now: u64, (rate, weight): (f64, f64), unasked: u64) -> Traces {
        for page in self.pages.values() {
            let Some(stay) = page.stay.map(|stay| &mut self.stays[stay]) else { continue };
            match page.place {
                Place::There => stay.to = now.max(stay.from),
                // A look without an access, so far.
                Place::Away(since) => stay.away += now.saturating_sub(since),
                Place::Unheard | Place::Nowhere => {}
            }
        }
        let mut added: Vec<(u64, Access)> = Vec::new();
        let part = ADDED_ALL_MAX / self.stays.iter().map(Stay::expected).sum::<f64>().max(1.0);
        self.stays.iter().for_each(|stay| stay.add(part, &mut added));
        added.sort_unstable_by_key(|&(ns, access)| (ns, access.page));
        let pages = self.numbers.values().max().map_or(1, |most| most + 1);
        let mut begin = Trace { name: "recorded", pages, ..Trace::default() };
        let at_first = self.out_at_first.iter().chain(&self.there_at_first);
        begin.accesses.extend(at_first.map(|&page| Access { page, site: 0 }));
        begin.from = begin.accesses.len();
        let (mut known, mut likely) = (begin.clone(), begin);
        let count = added.len() as u64;
        let mut added = added.into_iter().peekable();
        for point in &self.points {
            while let Some((_, access)) = added.next_if(|(ns, _)| *ns < point.ns) {
                likely.accesses.push(access);
            }
            for (trace, is_known) in [(&mut known, true), (&mut likely, false)] {
                if matches!(point.kind, Kind::Gone | Kind::Anew) {
                    trace.gone.push((trace.accesses.len(), point.access.page));
                }
                if matches!(point.kind, Kind::Touch | Kind::Anew) || point.kind == Kind::Unasked && !is_known {
                    trace.accesses.push(point.access);
                }
            }
        }
        likely.accesses.extend(added.map(|(_, access)| access));
        Traces { known, likely, rate, weight, unasked, added: count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT: Heard = Heard::Fault { protected: false, thread: 1, instruction: 7 };

    fn touched(trace: &Trace) -> Vec<u32> {
        trace.accesses[trace.from..].iter().map(|access| access.page).collect()
    }

    #[test]
    fn a_loop_is_touched_once_a_round() {
        // Four pages in turn, of which two fit.
        let mut recording = Recording::default();
        for n in 0..40_u64 {
            recording.hear(n * 10, FAULT, 100 + n % 4, 1);
            if n >= 4 {
                recording.hear(n * 10 + 1, Heard::Fetched, 100 + n % 4, 1);
            }
            if n >= 2 {
                recording.hear(n * 10 + 2, Heard::Left, 100 + (n - 2) % 4, 1);
            }
        }
        let traces = recording.traces();
        assert_eq!((traces.known.from, traces.known.pages), (0, 4));
        assert_eq!(touched(&traces.known), (0..40).map(|n| n % 4).collect::<Vec<u32>>());
        // The first return has none before it that it could be like.
        assert!(traces.known.gone.is_empty() && traces.added <= 2, "{}", traces.added);
    }

    #[test]
    fn what_is_kept_of_a_loop_is_touched_once_a_round() {
        // Ten pages in turn, of which all leave twice and two stay from then on; 9 rounds of 100.
        let mut recording = Recording::default();
        for n in 0..90_u64 {
            let (round, page) = (n / 10, n % 10);
            if round <= 2 || page < 8 {
                recording.hear(n * 10, FAULT, page, 1);
            }
            if round < 2 || page < 8 {
                recording.hear(n * 10 + 5, Heard::Left, page, 1);
            }
        }
        let traces = recording.traces();
        let count = |page| traces.likely.accesses.iter().filter(|access| access.page == page).count();
        // What was touched after the last event is not known.
        assert_eq!([count(3), count(8), count(9)], [9, 8, 8]);
        assert_eq!(traces.known.accesses.len(), 90 - 12);
    }

    #[test]
    fn a_page_that_is_rescued_is_used_while_it_is_there() {
        let mut recording = Recording::default();
        // It is there for a thousand, and away for ten, again and again; others come once.
        for n in 0..100_u64 {
            recording.hear(n * 1010, FAULT, 1, 1);
            if n > 0 {
                recording.hear(n * 1010 + 1, Heard::Rescued, 1, 1);
            }
            recording.hear(n * 1010 + 500, FAULT, 1000 + n * 10, 1);
            recording.hear(n * 1010 + 1000, Heard::Left, 1, 1);
        }
        let traces = recording.traces();
        assert_eq!(traces.known.accesses.len(), 200);
        // As many as are added to a stay at most; the last stay and the first have one look each.
        assert!((98 * 8..=100 * 8).contains(&traces.added), "{}", traces.added);
        assert_eq!(traces.likely.accesses.len() as u64, 200 + traces.added);
        // They come in the order of their times: of two others one is never far behind the other.
        let others: Vec<usize> = (0..traces.likely.accesses.len()).filter(|&n| traces.likely.accesses[n].page != 0).collect();
        assert!(others.windows(2).all(|pair| (2..=18).contains(&(pair[1] - pair[0]))), "{others:?}");
    }

    #[test]
    fn what_was_before_the_recording_is_no_first_touch() {
        let mut recording = Recording::default();
        // 1 was away, 2 was there and leaves, 3 was there and is written, 4 is new, 5 came unasked, 6 was away and nobody heard the fault.
        recording.hear(1, FAULT, 1, 1);
        recording.hear(2, Heard::Fetched, 1, 1);
        recording.hear(3, Heard::Left, 2, 1);
        recording.hear(4, Heard::Fault { protected: true, thread: 1, instruction: 0 }, 3, 1);
        recording.hear(5, FAULT, 4, 1);
        recording.hear(6, Heard::Left, 4, 1);
        recording.hear(7, Heard::Unasked, 5, 1);
        recording.hear(8, Heard::Fetched, 6, 1);
        let traces = recording.traces();
        let before = |trace: &Trace| trace.accesses[..trace.from].iter().map(|access| access.page + 1).collect::<Vec<_>>();
        assert_eq!((before(&traces.known), before(&traces.likely)), (vec![1, 5, 6, 2, 3], vec![1, 5, 6, 2, 3]));
        assert_eq!((touched(&traces.known), touched(&traces.likely)), (vec![0, 2, 3, 5], vec![0, 2, 3, 4, 5]));
        assert_eq!(traces.unasked, 1);
    }

    #[test]
    fn bytes_that_are_thrown_away_are_not_read_again() {
        let mut recording = Recording::default();
        let mut come = |ns, pages: core::ops::Range<u64>| {
            pages.clone().for_each(|page| recording.hear(ns, FAULT, page, 1));
            recording.hear(ns + 1, Heard::Left, pages.start, pages.end - pages.start);
        };
        come(1, 10..14);
        // Nothing is heard of where the bytes come from: they are zeros.
        come(5, 10..11);
        recording.hear(9, Heard::Gone, 0, u64::MAX);
        recording.hear(10, Heard::Gone, 0, u64::MAX);
        recording.hear(11, FAULT, 12, 1);
        let traces = recording.traces();
        assert_eq!(touched(&traces.known), [0, 1, 2, 3, 0, 2]);
        assert_eq!(traces.known.gone, [(4, 0), (5, 0), (5, 1), (5, 2), (5, 3)]);
    }

    #[test]
    fn a_sample_counts_for_the_part_that_it_is() {
        // 40 pieces, alike. By their hashes a quarter of them is looked at, which would be ten.
        let mut recording = Recording::with(1000);
        (0..4000).for_each(|n| recording.hear(n, Heard::Fetched, (7 + n % 40) << GRANULE_SHIFT, 1));
        let traces = recording.traces();
        assert_eq!((traces.likely.touched(), traces.rate, traces.weight), (6, 6.0 / 40.0, 4000.0 / 600.0));
    }

    #[test]
    fn of_an_event_no_more_is_looked_at_than_there_can_be() {
        let mut recording = Recording::default();
        (0..100).for_each(|n| recording.hear(n, Heard::Left, n << 20, u64::MAX));
        assert_eq!(recording.items.len(), 100 * 512);
    }

    #[test]
    fn a_recording_of_any_size_is_bounded() {
        let mut recording = Recording::with(10_000);
        for n in 0..200_000_u64 {
            recording.hear(n, FAULT, n << GRANULE_SHIFT, 1);
        }
        recording.hear(200_000, Heard::Left, 0, u64::MAX);
        recording.hear(200_001, Heard::Gone, 0, u64::MAX);
        let traces = recording.traces();
        let wanted = 200_000.0 * traces.rate;
        let count = touched(&traces.known).len() as f64;
        assert!(traces.rate < 0.05 && (count - wanted).abs() < wanted * 0.15, "{count}, {}", traces.rate);
        // All in one piece of memory: it is in the sample as a whole, or not at all.
        let mut recording = Recording::with(1000);
        (0..5000).for_each(|n| recording.hear(n, FAULT, n % 512, 1));
        let traces = recording.traces();
        assert!(traces.rate < 1.0 && traces.known.accesses.len() <= 1000, "{}", traces.rate);
    }
}
