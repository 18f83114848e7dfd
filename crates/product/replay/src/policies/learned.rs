//! Policies that learn how long pages are away.

use crate::lists::Lists;
use crate::{Access, Model, Trace};
use std::collections::BTreeSet;

/// SYS-R: a fault's instruction says after how many faults its page will be wanted again, as it was for pages before; the page that is due last, or
/// overdue the longest, leaves. It sees faults alone.
pub struct SysR {
    /// When each page is due, if it is there.
    due: Vec<Option<i64>>,
    here: BTreeSet<(i64, u32)>,
    /// The fault at which a page last came.
    came: Vec<Option<i64>>,
    /// What was learned of each instruction.
    distance: Vec<Option<f64>>,
    now: i64,
    capacity: usize,
}

impl SysR {
    pub fn new(trace: &Trace, capacity: usize) -> SysR {
        let pages = trace.pages as usize;
        SysR {
            due: vec![None; pages],
            here: BTreeSet::new(),
            came: vec![None; pages],
            distance: vec![None; 1 << 16],
            now: 0,
            capacity,
        }
    }
}

impl Model for SysR {
    fn touch(&mut self, Access { page, site }: Access) -> bool {
        let at = page as usize;
        if self.due[at].is_some() {
            return true;
        }
        self.now += 1;
        let learned = &mut self.distance[usize::from(site)];
        if let Some(came) = self.came[at].replace(self.now) {
            let seen = (self.now - came) as f64;
            *learned = Some(learned.map_or(seen, |mean| mean + (seen - mean) / 8.0));
        }
        let due = self.now + learned.map_or(self.capacity as i64, |distance| distance as i64);
        if self.here.len() == self.capacity {
            let (first, last) = (self.here.first().copied(), self.here.last().copied());
            let [overdue, late] = [first, last].map(|page| page.map_or(0, |(due, _)| (due - self.now).abs()));
            let leaves = if overdue > late { first } else { last };
            if let Some(leaves) = leaves {
                self.here.remove(&leaves);
                self.due[leaves.1 as usize] = None;
            }
        }
        self.due[at] = Some(due);
        self.here.insert((due, page));
        false
    }

    fn forget(&mut self, page: u32) {
        if let Some(due) = self.due[page as usize].take() {
            self.here.remove(&(due, page));
        }
        self.came[page as usize] = None;
    }
}

/// dt-reclaimer: scans count in how many of them a page was not touched; pages that were not for a threshold of scans leave. The threshold is such that by
/// the histogram of such distances 2 % of the pages in use come back, and it is smoothed. What must leave besides is what was not touched for the
/// longest.
pub struct Threshold {
    lists: Lists,
    /// The scan in which each page was last seen.
    seen: Vec<u32>,
    touched: Vec<bool>,
    /// Distances, in scans, of pages that were touched again.
    distances: [u64; SCANS_MAX],
    /// Pages that were in use, in the same measure.
    in_use: u64,
    threshold: f64,
    scan: u32,
    accesses: usize,
    capacity: usize,
}

const SCANS_MAX: usize = 64;
/// Pages that may come back, in 1000ths of those in use.
const PROMOTED: u64 = 20;

impl Threshold {
    pub fn new(trace: &Trace, capacity: usize) -> Threshold {
        let pages = trace.pages as usize;
        Threshold {
            lists: Lists::new(trace.pages, 1),
            seen: vec![0; pages],
            touched: vec![false; pages],
            distances: [0; SCANS_MAX],
            in_use: 0,
            threshold: SCANS_MAX as f64,
            scan: 0,
            accesses: 0,
            capacity,
        }
    }

    fn look(&mut self) {
        self.scan += 1;
        // Older scans count for less.
        self.distances.iter_mut().for_each(|count| *count -= *count / 8);
        self.in_use -= self.in_use / 8;
        for page in 0..self.seen.len() {
            if std::mem::take(&mut self.touched[page]) {
                let distance = (self.scan - self.seen[page]) as usize;
                self.distances[distance.min(SCANS_MAX - 1)] += 8;
                self.seen[page] = self.scan;
                self.in_use += 8;
            }
        }
        let mut back = 0;
        let proposed = (1..SCANS_MAX).rev().find(|&distance| {
            back += self.distances[distance];
            back * 1000 > self.in_use * PROMOTED
        });
        let proposed = proposed.map_or(1, |distance| distance + 1) as f64;
        self.threshold = 0.75 * self.threshold + 0.25 * proposed;
        let is_cold = |seen: u32| f64::from(self.scan - seen) > self.threshold;
        while let Some(page) = self.lists.back(0).filter(|&page| is_cold(self.seen[page as usize])) {
            self.lists.take(page);
        }
    }
}

impl Model for Threshold {
    fn touch(&mut self, Access { page, .. }: Access) -> bool {
        self.accesses += 1;
        if self.accesses.is_multiple_of(2 * self.capacity) {
            self.look();
        }
        let here = self.lists.of(page).is_some();
        self.touched[page as usize] = true;
        if !here && self.lists.len(0) == self.capacity {
            self.lists.pop(0);
        }
        self.lists.put(0, page);
        here
    }

    fn forget(&mut self, page: u32) {
        self.lists.take(page);
        self.touched[page as usize] = false;
    }
}
