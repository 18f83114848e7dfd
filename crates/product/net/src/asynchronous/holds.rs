//! The pages that requests in flight use.

use super::super::buffers::{Access, Memory, PAGE};
use super::TABLE;
use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Memory that the kernel will touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: Access,
}

/// Why a request's memory cannot be kept from eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// Others have pinned what may be pinned.
    ForNow,
    /// It is more than may be pinned at all.
    Ever,
}

/// Pages in flight.
pub(super) struct Holds {
    /// How many requests use a page. The page is pinned once.
    pages: BTreeMap<u64, u32>,
    /// Pages that are about to be pinned.
    reserved: u64,
    /// Pages that were handed over to the kernel, and are still mapped: the first of each run, and its end.
    kept: BTreeMap<u64, u64>,
    kept_pages: u64,
    /// Room that is used again: to allocate costs two system calls.
    spare: Vec<Vec<u64>>,
}

/// How many lists are kept for the next request.
const SPARE: usize = 256;

/// Of a limit of `frames`, how many pages may be pinned, and as many handed over.
const fn most(frames: u64) -> u64 {
    frames / 4
}

impl Holds {
    pub(super) const fn new() -> Holds {
        Holds { pages: BTreeMap::new(), reserved: 0, kept: BTreeMap::new(), kept_pages: 0, spare: Vec::new() }
    }

    /// One request less uses each of these pages.
    pub(super) fn release(&mut self, mem: &impl Memory, pages: &[u64]) {
        for &page in pages {
            if let Entry::Occupied(mut entry) = self.pages.entry(page) {
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                    mem.unpin_page(page);
                }
            }
        }
    }

    /// The same, and uses the list again.
    pub(super) fn end(&mut self, mem: &impl Memory, mut pages: Vec<u64>) {
        self.release(mem, &pages);
        if pages.capacity() > 0 && self.spare.len() < SPARE {
            pages.clear();
            self.spare.push(pages);
        }
    }

    /// Notes that a range of pages was handed over.
    pub(super) fn note_kept(&mut self, range: Range<u64>) {
        self.forget_kept(range.clone());
        self.kept_pages += range.end - range.start;
        self.kept.insert(range.start, range.end);
    }

    /// The range is unmapped: what was handed over in it counts no more.
    pub(super) fn forget_kept(&mut self, range: Range<u64>) {
        while let Some((&start, &end)) = self.kept.range(..range.end).next_back().filter(|&(_, &end)| end > range.start) {
            self.kept.remove(&start);
            self.kept_pages -= end - start;
            for part in [start..range.start, range.end..end] {
                if part.start < part.end {
                    self.kept_pages += part.end - part.start;
                    self.kept.insert(part.start, part.end);
                }
            }
            if start < range.start {
                break;
            }
        }
    }

    /// Those of a range of pages that are in flight.
    pub(super) fn among(&self, range: Range<u64>) -> Vec<u64> {
        self.pages.range(range).map(|(&page, _)| page).collect()
    }

    /// Pages that were handed over and are still mapped.
    #[cfg(test)]
    pub(super) fn kept_pages(&self) -> u64 {
        self.kept_pages
    }

    /// Whether nothing is pinned.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.reserved == 0
    }
}

/// How many bytes at `addr`, of a request for `len`, may be pinned at once: whole sectors, or all.
pub(super) fn part(mem: &impl Memory, addr: u64, len: u64) -> u64 {
    // Half of it: others may be in flight.
    let bytes = most(mem.frames()) / 2 * PAGE - addr % PAGE;
    len.min(bytes & !(PAGE - 1))
}

fn managed(mem: &impl Memory, spans: &[Span]) -> u64 {
    spans.iter().map(|span| mem.managed_pages(span.addr, span.len)).sum()
}

/// Pins the memory of a request. Returns its managed pages, which [`Holds::release`] gives back.
///
/// # Errors
/// Nothing is pinned then.
pub(super) fn admit(mem: &impl Memory, spans: &[Span]) -> Result<Vec<u64>, Full> {
    let need = managed(mem, spans);
    let mut pages = Vec::new();
    if need == 0 {
        return Ok(pages);
    }
    let most = most(mem.frames());
    if need > most {
        return Err(Full::Ever);
    }
    TABLE.with(|table| {
        let holds = &mut table.holds;
        if holds.pages.len() as u64 + holds.reserved + need > most {
            return Err(Full::ForNow);
        }
        holds.reserved += need;
        pages = holds.spare.pop().unwrap_or_default();
        Ok(())
    })?;
    // Pages are brought in here, with no lock held: only the gate of the ring, for which no owner of a page or frame waits.
    pages.reserve(need as usize);
    let all = spans.iter().all(|span| mem.pin_longer(span.addr, span.len, span.access, need, &mut pages));
    TABLE.with(|table| {
        table.holds.reserved -= need;
        for &page in &pages {
            let count = table.holds.pages.entry(page).or_default();
            *count += 1;
            if *count > 1 {
                mem.unpin_page(page);
            }
        }
        if all {
            Ok(())
        } else {
            // More became managed meanwhile.
            table.holds.end(mem, core::mem::take(&mut pages));
            Err(Full::ForNow)
        }
    })?;
    Ok(pages)
}

/// Hands memory over to the kernel for good. False: it is more than may be.
pub(super) fn keep(mem: &impl Memory, spans: &[Span]) -> bool {
    let need = managed(mem, spans);
    if need == 0 {
        return true;
    }
    let pages = |span: &Span| span.addr / PAGE..(span.addr + span.len).div_ceil(PAGE);
    let may = TABLE.with(|table| {
        let may = table.holds.kept_pages + need <= most(mem.frames());
        if may {
            let managed = spans.iter().filter(|span| mem.managed_pages(span.addr, span.len) > 0);
            managed.for_each(|span| table.holds.note_kept(pages(span)));
        }
        may
    });
    if may {
        spans.iter().filter(|span| span.len > 0).for_each(|span| mem.keep(span.addr, span.len));
    }
    // A page that could not be brought in is managed still, and could leave again.
    may && managed(mem, spans) == 0
}

/// Hands pages in flight over to the kernel for good, whatever may be. They stay pinned: the caller releases them, or their completions do.
pub(super) fn hand_over(mem: &impl Memory, pages: &[u64]) {
    if pages.is_empty() {
        return;
    }
    let mut pages = pages.to_vec();
    pages.sort_unstable();
    pages.dedup();
    for run in pages.chunk_by(|one, next| one + 1 == *next) {
        TABLE.with(|table| table.holds.note_kept(run[0]..run[0] + run.len() as u64));
        mem.keep(run[0] * PAGE, run.len() as u64 * PAGE);
    }
}

/// What is in flight, by the names that the program gave.
#[derive(Default)]
pub(super) struct Groups(BTreeMap<u64, Group>);

#[derive(Default)]
struct Group {
    requests: u32,
    pages: Vec<u64>,
}

impl Groups {
    pub(super) const fn new() -> Groups {
        Groups(BTreeMap::new())
    }

    /// A request of this name is about to be submitted.
    pub(super) fn begin(&mut self, name: u64, pages: Vec<u64>) {
        let group = self.0.entry(name).or_default();
        group.requests += 1;
        if group.pages.is_empty() {
            group.pages = pages;
        } else {
            group.pages.extend(pages);
        }
    }

    /// A request of this name has ended, or was not submitted. Pages that are not used any more.
    #[must_use]
    pub(super) fn end(&mut self, name: u64) -> Vec<u64> {
        let Entry::Occupied(mut entry) = self.0.entry(name) else { return Vec::new() };
        entry.get_mut().requests -= 1;
        if entry.get().requests > 0 {
            return Vec::new();
        }
        entry.remove().pages
    }

    /// Takes the pages of all, and forgets them.
    pub(super) fn take_all(&mut self, pages: &mut Vec<u64>) {
        core::mem::take(&mut self.0).into_values().for_each(|group| pages.extend(group.pages));
    }
}
