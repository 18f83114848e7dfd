//! What a program's events tell: which memory would have kept each page that came back, and which threads waited.

use std::collections::{BTreeMap, HashMap, HashSet};

use farshore_beside::{Event, FAULT_PROTECTED, Kind, PAGE, State};
use farshore_config::stats::Stats;
use farshore_core::limits::{batch_pages, high_watermark, stages_each};
use farshore_core::word::CHANCES_MAX;

use super::ghosts::{Ghosts, Return};
use super::looks::{Came, Fewer, Looks};

/// Threads are compared in pieces of the time, so that those that wait one after the other count together.
const WINDOW_NS: u64 = 50_000_000;
/// The program can write anything into the memory that it shares: no machine runs for so many ns, and none has so many bytes.
const LATEST_NS: u64 = 1 << 62;
const LARGEST: u64 = 1 << 52;

/// Faults that are remembered until they have ended: a few more than threads.
const FAULTS_BEGUN: usize = 4096;

/// The kinds of events that are wanted; faults, the first, not always.
pub const KINDS: [Kind; 5] = [Kind::Fault, Kind::Fetched, Kind::Evicted, Kind::Rescued, Kind::Unmapped];

/// What was heard.
#[derive(Debug, Default)]
pub struct Watch {
    ghosts: Ghosts,
    looks: Looks,
    /// Pages that were asked to leave for a look, and have not left: lately, and just before.
    asked: [HashSet<u64>; 2],
    /// How many left so, …
    pub looked_at: u64,
    /// … came back by a read, …
    pub looked_back: u64,
    /// … or before they were written.
    pub looked_rescued: u64,
    /// Returns by the bytes of pages in memory that would have kept the page: with less of it than that, it came by a read.
    pub needs: BTreeMap<u64, Returns>,
    /// Pages that came back, …
    pub fetched: u64,
    /// … of them those that nobody has seen leave, as far as the sample goes, …
    pub unseen: u64,
    /// … and the others of the sample.
    pub seen: u64,
    /// Pages that left.
    pub evicted: u64,
    /// Events that the ring has lost.
    pub lost: u64,
    /// Faults that have begun: their pages, and when.
    begun: HashMap<u64, u64>,
    /// Staging memory, which counts as resident and holds no page for long.
    staged: u64,
    window: Window,
    waited: f64,
    waited_longest: f64,
}

/// Pages that came back by a read.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Returns {
    /// All of them.
    pub pages: f64,
    /// Those that a fault waited for; the others came unasked.
    pub faults: f64,
}

#[derive(Debug, Default)]
struct Window {
    since_ns: u64,
    fetched: u64,
    threads: HashMap<u32, u64>,
}

impl Watch {
    /// What happened when the program had this state.
    pub fn hear(&mut self, event: &Event, state: &State) {
        let (first, pages, ns) = (event.address / PAGE, event.pages, event.ns.min(LATEST_NS));
        self.looks.at(ns, self.had(state) as f64 / PAGE as f64);
        match event.kind {
            Kind::Fault if event.detail & FAULT_PROTECTED == 0 => {
                if ns.saturating_sub(self.window.since_ns) > WINDOW_NS {
                    self.end_window(ns);
                }
                *self.window.threads.entry(event.thread).or_default() += 1;
                if self.begun.len() == FAULTS_BEGUN {
                    self.begun.clear();
                }
                self.begun.insert(first, ns);
            }
            Kind::Evicted => {
                self.evicted += pages;
                (first..first + pages).for_each(|page| {
                    let asked = self.asked.iter_mut().any(|asked| asked.remove(&page));
                    // A fault of before has ended, and not all faults are told.
                    self.begun.remove(&page);
                    self.looked_at += u64::from(asked);
                    self.ghosts.left(page);
                    self.looks.left(page, ns, asked);
                });
            }
            Kind::Rescued => {
                self.ghosts.came(first);
                self.begun.remove(&first);
                self.looked_rescued += u64::from(self.looks.came(first, ns, Came::Rescued, chances(event)));
            }
            Kind::Fetched => {
                let had = self.had(state);
                let how = if event.detail == 0 { Came::Asked } else { Came::Unasked };
                let given = if how == Came::Asked { chances(event) } else { 0 };
                let begun = self.begun.remove(&first).filter(|_| how == Came::Asked);
                if let Some(took) = begun.map(|begun| ns.saturating_sub(begun)) {
                    self.looks.waited(ns, took);
                }
                (first..first + pages).for_each(|page| {
                    // It would have been there.
                    if self.looks.came(page, ns, how, given) {
                        self.ghosts.came(page);
                        self.looked_back += 1;
                        return;
                    }
                    self.came(page, had, how);
                    self.fetched += 1;
                    self.window.fetched += 1;
                });
            }
            Kind::Unmapped => {
                self.ghosts.gone(first, pages);
                self.looks.gone(first, pages, ns);
            }
            _ => {}
        }
    }

    fn came(&mut self, page: u64, had: u64, how: Came) {
        match self.ghosts.came(page) {
            Return::Unsampled => {}
            Return::Unseen => self.unseen += 1,
            Return::Ghost { weight, above } => {
                self.seen += 1;
                let returns = self.needs.entry(rounded(had + (above + 1.0) as u64 * PAGE)).or_default();
                returns.pages += weight;
                returns.faults += if how == Came::Asked { weight } else { 0.0 };
            }
        }
    }

    /// What the program had in memory.
    fn had(&self, state: &State) -> u64 {
        state.resident_bytes.min(LARGEST).saturating_sub(self.staged)
    }

    /// Pages that came back by a read, whoever sent them away.
    pub fn returned(&self) -> u64 {
        self.fetched + self.looked_back
    }

    /// The part of looks that ends by a read: all of it until others end.
    pub fn looks_read(&self) -> f64 {
        (self.looked_back + 1) as f64 / (self.looked_back + self.looked_rescued + 1) as f64
    }

    /// Whether so many pages are looked at that no more need be asked.
    pub fn is_full(&self) -> bool {
        self.looks.is_full()
    }

    /// These pages have been asked to leave for a look, those of the time before the last one have had their time.
    pub fn ask(&mut self, pages: HashSet<u64>) {
        self.asked.swap(0, 1);
        self.asked[0] = pages;
    }

    /// How long a part of the run is that is told by itself, ns.
    pub fn slice_ns(&self) -> u64 {
        self.looks.slice_ns()
    }

    /// How much of a limit is for staging memory, by its counters.
    pub fn look(&mut self, stats: &Stats) {
        self.staged = staged(stats);
    }

    /// What less memory would have done to a run that ended with these counters.
    pub fn fewer(&self, stats: &Stats) -> Option<Fewer> {
        self.looks.fewer((room(stats) / PAGE) as f64, (staged(stats) / PAGE) as f64)
    }

    /// How long a fault took that waited for a page, seconds, on average.
    pub fn took(&self) -> Option<f64> {
        self.looks.took().map(|ns| ns / 1e9)
    }

    /// Memory that the program's pages that have left take, as far as it was heard.
    pub fn away(&self) -> u64 {
        (self.ghosts.pages() * PAGE as f64) as u64
    }

    /// The part of the pages that was looked at.
    pub fn rate(&self) -> f64 {
        self.ghosts.rate()
    }

    /// The part of all waits for pages that the thread had which waited longest: all in a program of one thread, a quarter in one whose four
    /// threads wait alike. System calls' waits are of no thread that is known, and count for the longest.
    pub fn longest(&mut self) -> f64 {
        self.end_window(0);
        if self.waited > 0.0 { self.waited_longest / self.waited } else { 1.0 }
    }

    fn end_window(&mut self, now_ns: u64) {
        let window = std::mem::replace(&mut self.window, Window { since_ns: now_ns, ..Window::default() });
        let all: u64 = window.threads.values().sum();
        if all > 0 && window.fetched > 0 {
            let calls = window.threads.get(&0).copied().unwrap_or(0);
            let longest = window.threads.iter().filter(|(thread, _)| **thread != 0).map(|(_, count)| *count).max().unwrap_or(0);
            self.waited += window.fetched as f64;
            self.waited_longest += window.fetched as f64 * (longest + calls) as f64 / all as f64;
        }
    }
}

/// Staging memory of a program with these counters.
pub fn staged(stats: &Stats) -> u64 {
    stats.memory_limit_bytes.saturating_sub((stats.frames.limit + stats.frames.debt) * PAGE)
}

/// What pages of the program a run with these counters had room for.
pub fn room(stats: &Stats) -> u64 {
    stats.memory_limit_bytes.saturating_sub(staged(stats) + stats.evictors.high_pages * PAGE)
}

/// The smallest limit that has room for so many bytes of pages. A run's staging memory is sized for its first limit, and so
/// is what evictors keep free: a run with another limit has others.
pub fn limit_for(room: u64, evictors: u64) -> u64 {
    let evictors = evictors.max(1);
    let taken = |limit: u64| {
        let pages = limit / PAGE;
        let batch = batch_pages(pages, evictors);
        let staged = stages_each(batch, pages, evictors) * evictors;
        (staged + high_watermark(batch, pages.saturating_sub(staged))) * PAGE
    };
    let (mut low, mut high) = (room, room * 2 + (64 << 20));
    while high > low + PAGE {
        let middle = low + (high - low) / 2;
        if middle.saturating_sub(taken(middle)) >= room { high = middle } else { low = middle }
    }
    high.next_multiple_of(PAGE)
}

/// How many times evictors pass over the page of an event. (The program can write any number.)
fn chances(event: &Event) -> u8 {
    event.more[0].min(CHANCES_MAX.into()) as u8
}

/// With eight significant bits, rounded up: so there are some thousand different ones at most.
fn rounded(bytes: u64) -> u64 {
    let unit = 1_u64 << (u64::BITS - bytes.leading_zeros()).saturating_sub(8).max(12);
    bytes.next_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, page: u64, pages: u64) -> Event {
        Event::new(kind, page * PAGE, pages)
    }

    #[test]
    fn a_loop_needs_all_of_its_pages() {
        // 1000 pages in turn, of which 400 fit.
        let mut watch = Watch::default();
        let state = State { limit_bytes: 400 * PAGE, resident_bytes: 400 * PAGE, ..State::default() };
        for n in 400..10_000_u64 {
            if n >= 1000 {
                watch.hear(&event(Kind::Fetched, n % 1000, 1), &state);
            }
            watch.hear(&event(Kind::Evicted, (n - 400) % 1000, 1), &state);
        }
        assert_eq!((watch.fetched, watch.unseen, watch.seen, watch.needs.len()), (9_000, 0, 9_000, 1));
        let need = *watch.needs.keys().next().expect("there is one");
        assert!((1000 * PAGE..1010 * PAGE).contains(&need), "{}", need / PAGE);
        assert_eq!(watch.away(), 600 * PAGE);
        // Of a program that has given back half of what it had.
        let state = State { resident_bytes: 200 * PAGE, ..state };
        watch.hear(&event(Kind::Fetched, 0, 1), &state);
        assert!(watch.needs.keys().next().is_some_and(|need| *need < 810 * PAGE));
    }

    #[test]
    fn a_limit_has_room_for_pages_and_for_what_farshore_takes() {
        // A GiB and two evictors: 1024 pages each of staging memory, two batches of 256 free.
        let gib = 1 << 30;
        assert!(limit_for(gib - (2 * 1024 + 512) * PAGE, 2).abs_diff(gib) <= 2 * PAGE);
        // 16 MiB: batches of 32.
        assert!(limit_for((16 << 20) - (6 * 32 + 64) * PAGE, 2).abs_diff(16 << 20) <= 16 * PAGE);
        assert_eq!(limit_for(64 << 20, 0), limit_for(64 << 20, 1));
    }

    #[test]
    fn the_thread_that_waits_longest_counts_by_pieces_of_time() {
        let mut watch = Watch::default();
        let fault = |thread, ms: u64, detail| Event { thread, detail, ns: ms * 1_000_000, ..event(Kind::Fault, 1, 1) };
        // Two threads alike, then each of them alone; a call; a write to a page that is there.
        for (thread, ms) in [(1, 1000), (2, 1001), (1, 1100), (1, 1101), (2, 1200), (0, 1201)] {
            watch.hear(&fault(thread, ms, 0), &State::default());
            watch.hear(&fault(3, ms, FAULT_PROTECTED), &State::default());
            watch.hear(&event(Kind::Fetched, ms, 1), &State::default());
        }
        assert_eq!(watch.longest(), 5.0 / 6.0);
        assert_eq!(Watch::default().longest(), 1.0);
    }

    #[test]
    fn a_fault_takes_from_its_beginning_to_its_page() {
        let mut watch = Watch::default();
        let at = |kind, page, us: u64, detail| Event { detail, ns: us * 1000, ..event(kind, page, 1) };
        let events = [
            at(Kind::Fault, 1, 100, 0),
            at(Kind::Fetched, 2, 130, 1),
            at(Kind::Fetched, 1, 140, 0),
            // Rescued; then it leaves, and its next fault is not told.
            at(Kind::Fault, 3, 200, 0),
            at(Kind::Rescued, 3, 205, 0),
            at(Kind::Fetched, 3, 900_000, 0),
            // A first touch; the page leaves, and comes back unheard.
            at(Kind::Fault, 4, 300, 0),
            at(Kind::Evicted, 4, 310, 0),
            at(Kind::Fetched, 4, 800_000, 0),
        ];
        events.iter().for_each(|event| watch.hear(event, &State::default()));
        assert!(watch.took().is_some_and(|took| (took - 40e-6).abs() < 1e-9), "{:?}", watch.took());
        assert_eq!(Watch::default().took(), None);
    }

    #[test]
    fn whatever_a_program_writes_there_is_borne() {
        let mut watch = Watch::default();
        let state = State { resident_bytes: u64::MAX, ..State::default() };
        for (kind, ns) in [(Kind::Evicted, 1), (Kind::Evicted, u64::MAX), (Kind::Fetched, u64::MAX), (Kind::Fetched, 2)] {
            watch.hear(&Event { ns, ..event(kind, 3, 1) }, &state);
        }
        watch.hear(&Event { ns: u64::MAX, ..event(Kind::Evicted, 4, 1) }, &state);
        watch.hear(&Event { ns: u64::MAX, ..event(Kind::Unmapped, 4, 1) }, &state);
        assert_eq!((watch.evicted, watch.fetched), (3, 2));
        assert!(watch.fewer(&Stats::default()).is_none());
    }

    #[test]
    fn sizes_are_few() {
        assert_eq!(
            [rounded(1), rounded(4096), rounded(1 << 30), rounded((1 << 30) + 1)],
            [4096, 4096, 1 << 30, (1 << 30) + (1 << 23)]
        );
    }
}
