//! Names for places in the program's address space.

use crate::limits::{GRANULE_PAGES, GRANULE_SHIFT, PAGE_SHIFT, PAGE_SIZE};

/// A page of the program's memory, by number (address / 4096).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u64);

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.addr())
    }
}

impl Page {
    /// The page that holds the byte at `addr`.
    #[inline]
    pub const fn containing(addr: u64) -> Page {
        Page(addr >> PAGE_SHIFT)
    }
    /// Address of the page's first byte.
    #[inline]
    pub const fn addr(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
    /// The granule that the page lies in.
    #[inline]
    pub const fn granule(self) -> GranuleId {
        GranuleId(self.0 >> GRANULE_SHIFT)
    }
    /// Index of the page within its granule, below 512.
    #[inline]
    pub const fn index_in_granule(self) -> usize {
        (self.0 as usize) & (GRANULE_PAGES - 1)
    }
    /// The page `n` pages further on.
    #[inline]
    pub const fn plus(self, n: u64) -> Page {
        Page(self.0 + n)
    }
}

/// 2 MiB of address space, by number (address / 2 MiB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GranuleId(pub u64);

impl GranuleId {
    /// First page of the granule.
    #[inline]
    pub const fn first(self) -> Page {
        Page(self.0 << GRANULE_SHIFT)
    }
    /// All pages of the granule.
    #[inline]
    pub const fn range(self) -> PageRange {
        PageRange { start: self.first(), end: Page((self.0 + 1) << GRANULE_SHIFT) }
    }
}

/// Pages from `start` up to, not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    /// First page.
    pub start: Page,
    /// One past the last page.
    pub end: Page,
}

impl PageRange {
    /// The pages that hold any of `len` bytes from `addr`. Empty for `len` 0; a
    /// range that would wrap past the end of the address space ends there.
    pub const fn covering(addr: u64, len: u64) -> PageRange {
        let start = addr >> PAGE_SHIFT;
        if len == 0 {
            return PageRange { start: Page(start), end: Page(start) };
        }
        let last = addr.saturating_add(len - 1) >> PAGE_SHIFT;
        PageRange { start: Page(start), end: Page(last + 1) }
    }
    /// The pages that lie wholly within `len` bytes from `addr`.
    pub const fn within(addr: u64, len: u64) -> PageRange {
        let start = addr.div_ceil(PAGE_SIZE as u64);
        let end = addr.saturating_add(len) >> PAGE_SHIFT;
        PageRange { start: Page(start), end: Page(if end < start { start } else { end }) }
    }
    /// Number of pages.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }
    /// Whether the range is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }
    /// Whether `page` is in the range.
    #[inline]
    pub const fn contains(self, page: Page) -> bool {
        self.start.0 <= page.0 && page.0 < self.end.0
    }
    /// Length of the range in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.len() << PAGE_SHIFT
    }
    /// The pages that are in both ranges.
    pub const fn intersect(self, other: PageRange) -> PageRange {
        let start = if self.start.0 > other.start.0 { self.start.0 } else { other.start.0 };
        let end = if self.end.0 < other.end.0 { self.end.0 } else { other.end.0 };
        PageRange { start: Page(start), end: Page(if end < start { start } else { end }) }
    }
    /// Each page in turn.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Page> {
        (self.start.0..self.end.0).map(Page)
    }
    /// The range cut at granule borders.
    pub fn by_granule(self) -> impl Iterator<Item = PageRange> {
        let (first, last) = if self.is_empty() { (1, 0) } else { (self.start.granule().0, Page(self.end.0 - 1).granule().0) };
        (first..=last).map(move |g| GranuleId(g).range().intersect(self))
    }
}

/// What a thread wanted to do with a page when it faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read it.
    Read,
    /// To write it.
    Write,
}
