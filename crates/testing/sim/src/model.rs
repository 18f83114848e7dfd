//! What the program's memory must hold: the last stamp written to each page, whatever the engine did with the page.

use crate::kernel::ARENA;
use crate::rng::Rng;
use farshore_core::page::{Page, PageRange};
use farshore_core::word::{FilePage, Slot};

/// What a page is to the program.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No memory is there.
    #[default]
    None,
    /// Memory that the engine manages.
    Managed,
    /// Memory that the engine does not manage: another mapping, or locked.
    Plain,
}

/// What is expected of one page.
#[derive(Clone, Copy, Default, Debug)]
pub struct Expected {
    /// Its kind.
    pub kind: Kind,
    /// The last stamp; 0: zeros.
    pub stamp: u64,
    /// Goes up before and after a memory call that changes the page's memory; odd while the call is under way.
    pub call: u32,
    /// Goes up before and after a call that throws the bytes away.
    pub dropped: u32,
    /// The program may not touch it.
    pub no_access: bool,
    /// The stamp that the page has when its own bytes are thrown away: that of a page of a mapped file; 0: zeros.
    pub home: u64,
}

/// Stamps of a file's pages, which the program never writes: from here on, by the page's number.
const FILE_STAMPS: u64 = 1 << 40;

/// The stamp of the page of a file for which `slot` stands, if it does.
pub fn stamp_in_file(slot: Slot) -> Option<u64> {
    slot.of_file().map(|of| FILE_STAMPS + of.page)
}

/// The slot that stands for the page of a file that has this stamp.
pub fn slot_of_home(home: u64) -> Option<Slot> {
    FilePage { file: 0, page: home.checked_sub(FILE_STAMPS)? }.slot()
}

/// All pages.
#[derive(Debug)]
pub struct Model {
    pages: Vec<Expected>,
    /// Ranges that the program may use now.
    pub alive: Vec<PageRange>,
    next_stamp: u64,
}

impl Model {
    /// An arena without memory.
    pub fn new(pages: u64) -> Model {
        Model { pages: vec![Expected::default(); pages as usize], alive: Vec::new(), next_stamp: 1 }
    }

    /// What is expected of `page`.
    pub fn get(&self, page: Page) -> Expected {
        page.0.checked_sub(ARENA).and_then(|i| self.pages.get(i as usize)).copied().unwrap_or_default()
    }

    /// Changes what is expected of each page of `range`.
    pub fn change(&mut self, range: PageRange, mut how: impl FnMut(Page, &mut Expected)) {
        for page in range.iter() {
            if let Some(expected) = self.pages.get_mut((page.0 - ARENA) as usize) {
                how(page, expected);
            }
        }
    }

    /// A memory call begins or ends.
    pub fn call(&mut self, range: PageRange) {
        self.change(range, |_, e| e.call += 1);
    }

    /// A stamp that was never used.
    pub fn fresh_stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// Pages of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.pages.iter().filter(|e| e.kind == kind).count() as u64
    }

    /// Pages that the program may use.
    pub fn alive_pages(&self) -> u64 {
        self.alive.iter().map(|r| r.len()).sum()
    }

    /// Whether the program may use `page`, as far as it knows.
    pub fn is_alive(&self, page: Page) -> bool {
        self.alive.iter().any(|r| r.contains(page))
    }

    /// The program may use `range` from now on.
    pub fn add_alive(&mut self, range: PageRange) {
        self.alive.push(range);
    }

    /// The program must not use `range` any more.
    pub fn remove_alive(&mut self, range: PageRange) {
        let mut rest = Vec::new();
        for r in self.alive.drain(..) {
            let before = PageRange { start: r.start, end: Page(r.end.0.min(range.start.0)) };
            let after = PageRange { start: Page(r.start.0.max(range.end.0)), end: r.end };
            rest.extend([before, after].into_iter().filter(|p| !p.is_empty()));
        }
        self.alive = rest;
    }

    /// A part of a range that the program may use, of at most `len` pages.
    pub fn part(&self, rng: &mut Rng, len: u64) -> Option<PageRange> {
        if self.alive.is_empty() {
            return None;
        }
        let region = self.alive[rng.below(self.alive.len() as u64) as usize];
        let start = region.start.plus(rng.below(region.len()));
        let most = len.min(region.end.0 - start.0);
        Some(PageRange { start, end: start.plus(rng.between(1, most)) })
    }

    /// A free range of `len` pages.
    pub fn room(&self, rng: &mut Rng, len: u64) -> Option<PageRange> {
        for _ in 0..30 {
            let mut start = rng.below((self.pages.len() as u64).saturating_sub(len).max(1));
            // Right behind another region, or at a granule's start, or anywhere.
            if rng.below(3) == 0 && !self.alive.is_empty() {
                start = self.alive[rng.below(self.alive.len() as u64) as usize].end.0 - ARENA;
            } else if rng.below(3) == 0 {
                start = (start + ARENA) / 512 * 512;
                start = start.saturating_sub(ARENA);
            }
            let fits = start + len <= self.pages.len() as u64;
            let is_free = |e: &Expected| e.kind == Kind::None && e.call.is_multiple_of(2);
            if fits && self.pages[start as usize..(start + len) as usize].iter().all(is_free) {
                return Some(PageRange { start: Page(ARENA + start), end: Page(ARENA + start + len) });
            }
        }
        None
    }
}
