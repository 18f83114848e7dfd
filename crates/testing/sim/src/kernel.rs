//! The program's page tables, as the simulated kernel keeps them.
//!
//! Plain state and plain operations, without chance or switching: [`crate::host`] adds these around them.

use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, GranuleId, Page, PageRange};
use farshore_core::seams::{KernelError, PageBuf, Protect};

/// Number of the first page of the arena: 5 granules before the end of a leaf of the page table, so that a run uses two.
pub const ARENA: u64 = (7 << 18) - 5 * 512;

/// Where a stamp is written in its page: both halves and both ends, so that a torn copy shows.
const STAMPS_AT: [usize; 4] = [0, 2040, 2048, 4088];

/// The stamp that a page holds; 0: zeros. `None`: the page is torn.
pub fn stamp_of(bytes: &PageBuf) -> Option<u64> {
    let at = |i: usize| u64::from_ne_bytes(bytes.0[i..i + 8].try_into().unwrap_or_default());
    let stamp = at(0);
    STAMPS_AT.iter().all(|&i| at(i) == stamp).then_some(stamp)
}

/// Writes a stamp into a page.
pub fn set_stamp(bytes: &mut PageBuf, stamp: u64) {
    for i in STAMPS_AT {
        bytes.0[i..i + 8].copy_from_slice(&stamp.to_ne_bytes());
    }
}

/// One page of the arena.
#[derive(Clone, Default, Debug)]
pub struct Place {
    /// There is memory here (a VMA).
    pub mapped: bool,
    /// The page is registered with the userfaultfd.
    pub registered: bool,
    /// The program may not touch it (`PROT_NONE`).
    pub no_access: bool,
    /// The page was so from the start, and evictors are not told.
    pub untold: bool,
    /// How often in a row a copy of such a page was refused.
    pub refusals: u32,
    /// The bytes, while the page is present.
    pub bytes: Option<Box<PageBuf>>,
    /// A write to the page faults although the page is present.
    pub protected: bool,
    /// Number of the huge page that the page is a part of; 0: of none.
    pub huge: u64,
    /// By what the kernel, which watches the page, knows it again; 0: it does not.
    pub mark: u64,
    /// It was not used since then.
    pub idle: bool,
    /// Accesses of the program so far, when it was used last.
    pub used_at: u64,
}

/// How an access ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// It goes through.
    Fine,
    /// userfaultfd raises SIGBUS; `protected`: for a present page.
    Fault {
        /// The page is present and write-protected.
        protected: bool,
    },
    /// There is no memory to touch.
    Segv,
}

/// All page tables of the program.
#[derive(Clone, Debug)]
pub struct Memory {
    places: Vec<Place>,
    /// Huge pages so far.
    huge_pages: u64,
}

impl Memory {
    /// `pages` pages without memory, from [`ARENA`] on.
    pub fn new(pages: u64) -> Memory {
        Memory { places: vec![Place::default(); pages as usize], huge_pages: 0 }
    }

    /// All pages.
    pub fn arena(&self) -> PageRange {
        PageRange { start: Page(ARENA), end: Page(ARENA + self.places.len() as u64) }
    }

    /// The page, if it lies in the arena.
    pub fn get(&self, page: Page) -> Option<&Place> {
        self.places.get(page.0.checked_sub(ARENA)? as usize)
    }

    /// As [`Memory::get`].
    pub fn get_mut(&mut self, page: Page) -> Option<&mut Place> {
        self.places.get_mut(page.0.checked_sub(ARENA)? as usize)
    }

    /// The place of a page that the caller knows to be in the arena.
    ///
    /// # Panics
    /// When the page is not in the arena.
    pub fn place(&mut self, page: Page) -> &mut Place {
        self.get_mut(page).expect("a page of the arena")
    }

    fn ours(&mut self, page: Page) -> Result<&mut Place, KernelError> {
        self.get_mut(page).filter(|p| p.mapped && p.registered).ok_or(KernelError::Gone)
    }

    /// `UFFDIO_COPY`.
    pub fn copy(&mut self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError> {
        let place = self.ours(page)?;
        if place.bytes.is_some() {
            return Err(KernelError::Exists);
        }
        place.bytes = Some(Box::new(bytes.clone()));
        place.protected = protect == Protect::WriteProtected;
        Ok(())
    }

    /// `UFFDIO_COPY` of zeros, up to the first page that is present or not ours. Returns how many, at least 1.
    pub fn zeros(&mut self, first: Page, count: u64) -> Result<u64, KernelError> {
        for i in 0..count {
            if let Err(why) = self.copy(first.plus(i), &PageBuf::ZERO, Protect::Writable) {
                return if i == 0 { Err(why) } else { Ok(i) };
            }
        }
        Ok(count)
    }

    /// A huge page of zeros, if all of the granule is absent and ours.
    pub fn huge(&mut self, granule: GranuleId) -> Result<(), KernelError> {
        for page in granule.range().iter() {
            if self.ours(page)?.bytes.is_some() {
                return Err(KernelError::Exists);
            }
        }
        for page in granule.range().iter() {
            self.copy(page, &PageBuf::ZERO, Protect::Writable)?;
        }
        self.join(granule.range());
        Ok(())
    }

    /// Makes huge pages of the granules of which all pages are present.
    pub fn join(&mut self, range: PageRange) {
        for part in range.by_granule().filter(|part| part.len() == GRANULE_PAGES as u64) {
            if part.iter().all(|page| self.get(page).is_some_and(|place| place.bytes.is_some())) {
                self.huge_pages += 1;
                part.iter().for_each(|page| self.place(page).huge = self.huge_pages);
            }
        }
    }

    /// Splits a huge page into small pages, wherever they are by now.
    pub fn split(&mut self, number: u64) {
        self.places.iter_mut().filter(|place| place.huge == number).for_each(|place| place.huge = 0);
    }

    /// Write-protects the pages of `range` that are present and ours; an error if no page in it is ours.
    pub fn protect(&mut self, range: PageRange) -> Result<(), KernelError> {
        let mut any = range.is_empty();
        for page in range.iter() {
            if let Ok(place) = self.ours(page) {
                any = true;
                place.protected |= place.bytes.is_some();
            }
        }
        if any { Ok(()) } else { Err(KernelError::Gone) }
    }

    /// Makes a page writable.
    pub fn unprotect(&mut self, page: Page) -> Result<(), KernelError> {
        self.ours(page)?.protected = false;
        Ok(())
    }

    /// How an access by the program (or the kernel for it) ends. Memory that is not registered is filled with zeros.
    pub fn touch(&mut self, page: Page, access: Access) -> Touch {
        let Some(place) = self.get_mut(page).filter(|p| p.mapped && !p.no_access) else { return Touch::Segv };
        if !place.registered {
            place.bytes.get_or_insert_with(|| Box::new(PageBuf::ZERO));
            return Touch::Fine;
        }
        match (&place.bytes, access) {
            (None, _) => Touch::Fault { protected: false },
            (Some(_), Access::Write) if place.protected => Touch::Fault { protected: true },
            _ => Touch::Fine,
        }
    }

    /// `mmap`: fresh memory, registered if it is to be managed.
    pub fn map(&mut self, range: PageRange, registered: bool) {
        for page in range.iter() {
            *self.place(page) = Place { mapped: true, registered, ..Place::default() };
        }
    }

    /// A managed page of `range` that is part of a huge page which has further parts elsewhere: when `range` goes, that page's
    /// RAM stays.
    pub fn keeps_ram(&self, range: PageRange) -> Option<Page> {
        let number = |page: Page| self.get(page).filter(|place| place.registered).map_or(0, |place| place.huge);
        let stays = |wanted: u64| {
            self.arena().iter().any(|page| !range.contains(page) && self.get(page).is_some_and(|place| place.huge == wanted))
        };
        let mut last = 0;
        range.iter().find(|&page| {
            let new = number(page) != 0 && number(page) != last;
            last = number(page);
            new && stays(last)
        })
    }

    /// `munmap`.
    pub fn unmap(&mut self, range: PageRange) {
        for page in range.iter() {
            *self.place(page) = Place::default();
        }
    }

    /// `madvise(MADV_DONTNEED)`.
    pub fn drop_bytes(&mut self, range: PageRange) {
        for page in range.iter() {
            let place = self.place(page);
            place.bytes = None;
            (place.protected, place.huge, place.mark) = (false, 0, 0);
        }
    }

    /// `mremap` without the old contents of `new`: bytes move, write protection does not (its registration is new).
    pub fn relocate(&mut self, old: PageRange, new: Page, old_stays: bool) {
        for page in old.iter() {
            let mut from = std::mem::take(self.place(page));
            if old_stays {
                let Place { registered, no_access, untold, .. } = from;
                *self.place(page) = Place { mapped: true, registered, no_access, untold, ..Place::default() };
            }
            from.protected = false;
            *self.place(new.plus(page.0 - old.start.0)) = from;
        }
    }

    /// Memory is no longer registered: no page is protected, and (`fill`, as `mlock` does) every page is present.
    pub fn keep(&mut self, range: PageRange, fill: bool) {
        for page in range.iter() {
            let place = self.place(page);
            place.registered = false;
            place.protected = false;
            if place.mapped && fill {
                place.bytes.get_or_insert_with(|| Box::new(PageBuf::ZERO));
            }
        }
    }

    /// Memory is registered from now on, with the bytes that it has.
    pub fn register(&mut self, range: PageRange) {
        for page in range.iter() {
            self.place(page).registered = true;
        }
    }

    /// Maps memory with `PROT_NONE`: no thread may touch it until `mprotect`.
    pub fn close(&mut self, range: PageRange) {
        for page in range.iter() {
            let place = self.place(page);
            (place.no_access, place.untold) = (true, true);
        }
    }

    /// `mprotect`.
    pub fn set_access(&mut self, range: PageRange, allowed: bool) {
        for page in range.iter() {
            let place = self.place(page);
            (place.no_access, place.untold) = (!allowed, false);
        }
    }

    /// A forked child's page tables: a copy, without write protection; registered anew at once.
    #[must_use]
    pub fn fork(&self) -> Memory {
        let mut copy = self.clone();
        copy.places.iter_mut().for_each(|place| place.protected = false);
        copy
    }

    /// Pages that are ours and present.
    pub fn resident(&self) -> u64 {
        self.places.iter().filter(|p| p.registered && p.bytes.is_some()).count() as u64
    }
}
