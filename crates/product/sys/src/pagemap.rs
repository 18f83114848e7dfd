//! Which pages are mapped and written, as the kernel sees them.
//!
//! [`Pagemap::scan`] is the `PAGEMAP_SCAN` ioctl (Linux 6.7). It walks faster than reading entries, but what it says of entries that
//! were never filled ("unpopulated") differs: *written* means "not write-protected by a userfaultfd", so that an absent page
//! counts as written, and kernels differ in when they report it. Linux 6.18 does for a query of [`Categories::WRITTEN`] alone; with
//! [`Categories::PRESENT`] its answers are exact. [`Pagemap::probe`] finds out what this kernel does. One entry at a time
//! ([`Pagemap::entry`]) is for tests.

use crate::fd::{self, Fd};
use crate::own::Own;
use crate::raw::{self, Errno, nr};
use crate::uffd::{Uffd, UffdOptions};

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArgument>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// What a page is: a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Categories(pub u64);

impl Categories {
    /// It is not write-protected by a userfaultfd: written since it was.
    pub const WRITTEN: Categories = Categories(1 << 1);
    /// It belongs to a file or shared memory.
    pub const FILE: Categories = Categories(1 << 2);
    /// It is mapped.
    pub const PRESENT: Categories = Categories(1 << 3);
    /// It is in Linux' own swap.
    pub const SWAPPED: Categories = Categories(1 << 4);
    /// It is the kernel's page of zeros.
    pub const ZERO: Categories = Categories(1 << 5);
    /// It is part of a huge page.
    pub const HUGE: Categories = Categories(1 << 6);

    /// Both.
    pub const fn with(self, other: Categories) -> Categories {
        Categories(self.0 | other.0)
    }
    /// Whether all of `other` are in it.
    pub const fn contains(self, other: Categories) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Neighbouring pages of the same categories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Those asked for that the pages have.
    pub categories: Categories,
}

/// What to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// Pages must have all of these.
    pub all: Categories,
    /// ... and at least one of these, if there are any.
    pub any: Categories,
    /// What the regions tell; pages that differ in it are different regions.
    pub report: Categories,
    /// Write-protects the pages found, in the same step (asynchronous write protection only).
    pub protect: bool,
}

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    inverted: u64,
    all: u64,
    any: u64,
    report: u64,
}

const FLAG_PROTECT: u64 = 1 << 0;

/// One entry of `/proc/self/pagemap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    /// It is mapped.
    pub const fn present(self) -> bool {
        self.0 >> 63 & 1 != 0
    }
    /// It is in Linux' own swap.
    pub const fn swapped(self) -> bool {
        self.0 >> 62 & 1 != 0
    }
    /// It is one of these.
    pub const fn has_bytes(self) -> bool {
        self.present() || self.swapped()
    }
    /// In which frame it lies, if it is mapped; 0 for who may not know.
    pub const fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
    /// Nobody else has its frame mapped.
    pub const fn exclusive(self) -> bool {
        self.0 >> 56 & 1 != 0
    }
    /// It belongs to a file or shared memory.
    pub const fn of_file(self) -> bool {
        self.0 >> 61 & 1 != 0
    }
    /// It is write-protected by a userfaultfd. Tests alone ask.
    pub const fn write_protected(self) -> bool {
        self.0 >> 57 & 1 != 0
    }
}

/// `/proc/self/pagemap`, kept open.
#[derive(Debug)]
pub struct Pagemap {
    fd: Fd,
}

/// What the kernel says of memory of which all is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Just the pages that are meant.
    Exact,
    /// Others, or not all of them.
    Wrong,
}

/// What [`Pagemap::probe`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanSupport {
    /// Asking for `WRITTEN` alone finds written pages and no absent ones.
    pub written_alone: bool,
    /// Asking for `WRITTEN` and `PRESENT` together finds just the written pages.
    pub written_and_present: bool,
    /// Asking for `PRESENT` finds just the mapped pages.
    pub present: bool,
}

impl Pagemap {
    /// Opens it. For start-up.
    ///
    /// # Errors
    /// What open(2) answers.
    pub fn open() -> Result<Pagemap, Errno> {
        Ok(Pagemap { fd: fd::open(c"/proc/self/pagemap", fd::O_RDONLY)? })
    }

    /// The same, opened by the caller.
    pub(crate) const fn of(fd: Fd) -> Pagemap {
        Pagemap { fd }
    }

    /// The same under a number from `lowest` on, if there is one.
    #[must_use]
    pub fn raise(self, lowest: i32) -> Pagemap {
        Pagemap { fd: self.fd.raise(lowest).unwrap_or_else(|(fd, _)| fd) }
    }

    /// Its descriptor.
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// The entry of the page that holds `addr`.
    ///
    /// # Errors
    /// What pread(2) answers; `EIO` past the end of the address space.
    pub fn entry(&self, addr: u64) -> Result<Entry, Errno> {
        let mut bytes = [0u8; 8];
        match fd::pread(&self.fd, &mut bytes, addr / 4096 * 8)? {
            8 => Ok(Entry(u64::from_ne_bytes(bytes))),
            _ => Err(Errno::EIO),
        }
    }

    /// The entries of the pages from `addr` on, as many as there is room for.
    ///
    /// # Errors
    /// What pread(2) answers; `EIO` past the end of the address space.
    pub fn entries(&self, addr: u64, entries: &mut [Entry]) -> Result<(), Errno> {
        let bytes = size_of_val(entries);
        // SAFETY: an entry is a number of 8 bytes, so all of them are bytes that may have any value; borrowed for the call alone.
        let room = unsafe { core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), bytes) };
        match fd::pread(&self.fd, room, addr / 4096 * 8)? {
            read if read == bytes => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    /// Finds pages of `start..end` that match. The regions found, and where the walk ended: before `end` if `regions` is full.
    ///
    /// # Errors
    /// `ENOTTY`: not in this kernel. `EINVAL`, `EPERM` (protecting memory that does not allow it).
    pub fn scan(&self, start: u64, end: u64, query: Query, regions: &mut [Region]) -> Result<(usize, u64), Errno> {
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags: if query.protect { FLAG_PROTECT } else { 0 },
            start,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: 0,
            inverted: 0,
            all: query.all.0,
            any: query.any.0,
            report: query.report.0,
        };
        // SAFETY: the struct is the request's; the kernel writes at most `vec_len` regions, which are plain numbers, into a
        // buffer that we hold exclusively. Protecting changes no byte.
        let found = unsafe { raw::syscall_result(nr::IOCTL, [self.fd.arg(), PAGEMAP_SCAN, &raw mut argument as u64, 0, 0, 0]) }?;
        Ok((found as usize, argument.walk_end))
    }

    /// Tries the ioctl on scratch memory with written, protected and absent pages, some in a page table that is not there at all.
    ///
    /// # Errors
    /// `ENOTTY`: not in this kernel. Failures to set up the scratch memory.
    pub fn probe(&self) -> Result<ScanSupport, Errno> {
        let (uffd, _) = Uffd::open(UffdOptions::UPCALL).map_err(|_| Errno::EOPNOTSUPP)?;
        let scratch = Own::new(8 << 20)?;
        let start = scratch.base().as_ptr() as u64;
        let end = start + scratch.len() as u64;
        // SAFETY: nobody but the lines below uses this memory, and they only touch it through the kernel.
        unsafe { uffd.register(start, scratch.len() as u64) }?;
        // In the second granule: a written page, a hole, a protected page. The last granules stay without a page table.
        let written = (start + (2 << 20)) & !0xf_ffff;
        let protected = written + 2 * 4096;
        let source = Own::new(4096)?;
        for (page, protect) in [(written, false), (protected, true)] {
            // SAFETY: the source is ours and nobody writes it.
            unsafe { uffd.copy(page, source.base().as_ptr() as u64, 4096, protect, false) }.map_err(|error| error.errno())?;
        }
        let ask = |all: Categories, expected: &[u64]| -> Result<Answer, Errno> {
            let mut regions = [Region::default(); 8];
            let query = Query { all, report: all, ..Query::default() };
            let (found, walked) = self.scan(start, end, query, &mut regions)?;
            let exact = regions[..found].iter().map(|region| (region.start, region.end));
            let exact = walked == end && exact.eq(expected.iter().map(|page| (*page, *page + 4096)));
            Ok(if exact { Answer::Exact } else { Answer::Wrong })
        };
        Ok(ScanSupport {
            written_alone: ask(Categories::WRITTEN, &[written])? == Answer::Exact,
            written_and_present: ask(Categories::WRITTEN.with(Categories::PRESENT), &[written])? == Answer::Exact,
            present: ask(Categories::PRESENT, &[written, protected])? == Answer::Exact,
        })
    }
}
