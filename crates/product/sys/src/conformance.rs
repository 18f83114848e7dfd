//! What the engine relies on in a `Kernel`, as a suite that runs on the real one and on the simulator's.
//!
//! Each case works on pages of its own, cut from one scratch range, and panics with the case's name when
//! the kernel under test behaves otherwise. **Not** covered, because the two may differ: errors for pages that the
//! engine never passes (unaligned, not the caller's), `NoMemory`, `Again`, and behaviour under concurrency (the sys tests and the simulator's own
//! seeds cover those).

use crate::clock;
use core::cell::Cell;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{HugePages, Kernel, KernelError, PageBuf, Protect};

/// How the program's access to a byte faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The page is not mapped.
    Absent,
    /// The page is write-protected.
    Protected,
}

/// Managed memory of the kernel under test, used as the program would.
pub trait Scratch {
    /// Registered memory, all absent, that starts at a granule's first page; at least [`PAGES`] pages.
    fn range(&self) -> PageRange;
    /// The program reads a byte.
    ///
    /// # Errors
    /// How it faults.
    fn read(&self, addr: u64) -> Result<u8, Fault>;
    /// The program writes a byte.
    ///
    /// # Errors
    /// How it faults.
    fn write(&self, addr: u64, byte: u8) -> Result<(), Fault>;
    /// The program changes a range's protection: to `PROT_NONE`, or back to readable and writable.
    fn set_readable(&self, range: PageRange, readable: bool);
    /// The program unmaps a range: nothing is there any more.
    fn unmap(&self, range: PageRange);
    /// Whether bytes stay when the program unmaps them, or may not read them: they are in a file.
    fn is_shared(&self) -> bool {
        false
    }
    /// Whether the kernel under test shows a process the bytes of its own unreadable memory: some show them to debuggers alone.
    fn shows_unreadable(&self) -> bool {
        true
    }
}

/// Pages that the suite uses.
pub const PAGES: u64 = 4096;
/// How often the suite asks for a huge page while the kernel has none free, and after which pauses: for a minute.
const HUGE_TRIES: u32 = 600;
const HUGE_PAUSE_NS: u64 = 100_000_000;

/// The kernel, its memory, and the next page that no case has used.
struct Suite<'a, K> {
    kernel: &'a K,
    memory: &'a dyn Scratch,
    next: Cell<u64>,
}

fn filled(byte: u8) -> PageBuf {
    PageBuf([byte; 4096])
}

impl<K: Kernel> Suite<'_, K> {
    /// `count` fresh pages, with a gap behind them.
    fn fresh(&self, count: u64) -> PageRange {
        let start = self.next.get();
        self.next.set(start + count + 1);
        assert!(start + count < PAGES, "conformance: raise PAGES");
        let first = self.memory.range().start.plus(start);
        PageRange { start: first, end: first.plus(count) }
    }
    /// Maps a page filled with `byte`.
    fn fill(&self, page: Page, byte: u8, protect: Protect) {
        assert_eq!(self.kernel.map(page, &filled(byte), protect), Ok(()), "map {page:?}");
    }
    fn read(&self, page: Page) -> Result<u8, Fault> {
        let (first, last) = (self.memory.read(page.addr()), self.memory.read(page.addr() + 4095));
        assert_eq!(first, last, "first and last byte of {page:?} differ");
        first
    }
    /// Writes the first byte.
    fn write(&self, page: Page, byte: u8) -> Result<(), Fault> {
        self.memory.write(page.addr(), byte)
    }
}

/// Runs every case.
///
/// # Panics
/// When the kernel under test does not conform.
pub fn run<K: Kernel>(kernel: &K, memory: &dyn Scratch) {
    let range = memory.range();
    assert!(range.len() >= PAGES && range.start.index_in_granule() == 0, "conformance: the scratch range does not serve");
    let suite = Suite { kernel, memory, next: Cell::new(0) };
    suite.absent_pages_fault();
    suite.map_writable();
    suite.map_twice_exists();
    suite.map_protected();
    suite.protect_range_keeps_holes();
    suite.protect_passes_over_foreign_memory();
    suite.protect_across_granules();
    suite.unprotect_absent_page();
    suite.unmap_throws_away();
    suite.unmap_many();
    suite.unmap_drops_protection();
    suite.unmap_stops_at_what_is_gone();
    suite.zeros();
    suite.runs();
    suite.zeros_stop_at_mapped_page();
    suite.zeros_stop_at_the_end();
    suite.zeros_across_protections();
    suite.copy_out();
    suite.copy_out_of_unreadable();
    suite.fill_unreadable();
    suite.gone();
    suite.huge();
    suite.threads_have_numbers();
}

impl<K: Kernel> Suite<'_, K> {
    fn absent_pages_fault(&self) {
        let page = self.fresh(1).start;
        assert_eq!(self.read(page), Err(Fault::Absent));
        assert_eq!(self.write(page, 1), Err(Fault::Absent));
        assert_eq!(self.read(page), Err(Fault::Absent), "a fault that is not served changes nothing");
    }

    fn map_writable(&self) {
        let page = self.fresh(1).start;
        self.fill(page, 5, Protect::Writable);
        assert_eq!(self.read(page), Ok(5));
        assert_eq!(self.write(page, 6), Ok(()));
        assert_eq!(self.memory.read(page.addr()), Ok(6));
        assert_eq!(self.read(page.plus(1)), Err(Fault::Absent), "the neighbour stays absent");
    }

    fn map_twice_exists(&self) {
        for protect in [Protect::Writable, Protect::WriteProtected] {
            let page = self.fresh(1).start;
            self.fill(page, 5, protect);
            for second in [Protect::Writable, Protect::WriteProtected] {
                assert_eq!(self.kernel.map(page, &filled(9), second), Err(KernelError::Exists));
            }
            assert_eq!(self.read(page), Ok(5), "the second map changes no byte");
            let writable = protect == Protect::Writable;
            assert_eq!(self.write(page, 5).is_ok(), writable, "the second map changes no protection");
        }
    }

    fn map_protected(&self) {
        let page = self.fresh(1).start;
        self.fill(page, 5, Protect::WriteProtected);
        assert_eq!((self.read(page), self.write(page, 1)), (Ok(5), Err(Fault::Protected)));
        assert_eq!(self.kernel.unprotect(page), Ok(()));
        assert_eq!((self.write(page, 5), self.read(page)), (Ok(()), Ok(5)));
        assert_eq!(self.kernel.unprotect(page), Ok(()), "unprotecting twice is allowed");
        assert_eq!(self.kernel.protect(PageRange { start: page, end: page.plus(1) }), Ok(()));
        assert_eq!((self.read(page), self.write(page, 1)), (Ok(5), Err(Fault::Protected)));
    }

    fn protect_range_keeps_holes(&self) {
        let range = self.fresh(16);
        for page in range.iter().step_by(2) {
            self.fill(page, 5, Protect::Writable);
        }
        assert_eq!(self.kernel.protect(range), Ok(()));
        for (n, page) in range.iter().enumerate() {
            if n % 2 == 0 {
                assert_eq!((self.read(page), self.write(page, 1)), (Ok(5), Err(Fault::Protected)));
            } else {
                assert_eq!(self.read(page), Err(Fault::Absent), "protecting fills no hole");
                self.fill(page, 7, Protect::Writable);
                assert_eq!((self.read(page), self.write(page, 7)), (Ok(7), Ok(())), "a hole takes no protection");
            }
        }
        assert_eq!(self.kernel.protect(PageRange { start: range.start, end: range.start }), Ok(()), "an empty range");
    }

    fn protect_passes_over_foreign_memory(&self) {
        let range = self.fresh(16);
        range.iter().for_each(|page| self.fill(page, 5, Protect::Writable));
        self.memory.unmap(PageRange { start: range.start.plus(5), end: range.start.plus(9) });
        assert_eq!(self.kernel.protect(range), Ok(()), "a part of the range is not managed");
        for n in (0..5).chain(9..16) {
            assert_eq!(self.write(range.start.plus(n), 1), Err(Fault::Protected), "page {n} of 16");
        }
    }

    fn protect_across_granules(&self) {
        let start = self.memory.range().start;
        // The pages at the border belong to no case: its neighbourhood is skipped.
        let border = start.plus(self.next.get()).granule().range().end;
        self.next.set(border.0 - start.0 + 9);
        let range = PageRange { start: Page(border.0 - 8), end: border.plus(8) };
        range.iter().for_each(|page| self.fill(page, 5, Protect::Writable));
        assert_eq!(self.kernel.protect(range), Ok(()));
        for page in range.iter() {
            assert_eq!(self.write(page, 1), Err(Fault::Protected));
        }
        // Protecting says nothing of pages outside.
        self.fill(range.end, 5, Protect::Writable);
        assert_eq!(self.write(range.end, 1), Ok(()));
        self.next.set(self.next.get() + 1);
    }

    fn unprotect_absent_page(&self) {
        let page = self.fresh(1).start;
        assert_eq!(self.kernel.unprotect(page), Ok(()));
        assert_eq!(self.read(page), Err(Fault::Absent));
    }

    fn unmap_throws_away(&self) {
        let page = self.fresh(1).start;
        self.fill(page, 5, Protect::Writable);
        assert_eq!(self.kernel.unmap(&[page]), Ok(()));
        assert_eq!(self.read(page), Err(Fault::Absent));
        if !self.memory.is_shared() {
            assert_eq!(self.kernel.unmap(&[page]), Ok(()), "an absent page can be unmapped");
        }
        assert_eq!(self.kernel.unmap(&[]), Ok(()), "no page at all");
        self.fill(page, 6, Protect::Writable);
        assert_eq!(self.read(page), Ok(6), "the old bytes are gone");
    }

    fn unmap_many(&self) {
        let range = self.fresh(300);
        range.iter().for_each(|page| self.fill(page, page.0 as u8, Protect::Writable));
        let leaves = |page: Page| page.0 % 5 != 2;
        // Neighbours and lone ones, in an order that is not sorted throughout.
        let (low, high) = (range.iter().take(150), range.iter().skip(150));
        let pages: alloc_crate::vec::Vec<Page> = high.chain(low).filter(|page| leaves(*page)).collect();
        assert_eq!(self.kernel.unmap(&pages), Ok(()));
        for page in range.iter() {
            let expected = if leaves(page) { Err(Fault::Absent) } else { Ok(page.0 as u8) };
            assert_eq!(self.read(page), expected, "page {} of 300", page.0 - range.start.0);
        }
    }

    fn unmap_drops_protection(&self) {
        let page = self.fresh(1).start;
        self.fill(page, 5, Protect::WriteProtected);
        assert_eq!(self.kernel.unmap(&[page]), Ok(()));
        assert_eq!(self.write(page, 1), Err(Fault::Absent));
        self.fill(page, 6, Protect::Writable);
        assert_eq!((self.read(page), self.write(page, 1)), (Ok(6), Ok(())));
    }

    fn unmap_stops_at_what_is_gone(&self) {
        if self.memory.is_shared() {
            // What leaves is the file's page, whether it is mapped or not.
            return;
        }
        let range = self.fresh(8);
        range.iter().for_each(|page| self.fill(page, 5, Protect::Writable));
        self.memory.unmap(PageRange { start: range.start.plus(3), end: range.start.plus(4) });
        let pages: alloc_crate::vec::Vec<Page> = range.iter().collect();
        assert_eq!(self.kernel.unmap(&pages), Err((3, KernelError::Gone)));
        for n in 0..3 {
            assert_eq!(self.read(range.start.plus(n)), Err(Fault::Absent), "pages before the one that is gone are unmapped");
        }
        // Whether later ones are unmapped is left open; the caller asks again for them.
        assert_eq!(self.kernel.unmap(&pages[4..]), Ok(()));
        for page in &pages[4..] {
            assert_eq!(self.read(*page), Err(Fault::Absent));
        }
    }

    /// Calls until all of `range` is mapped, as the engine does.
    fn map_all_zeros(&self, range: PageRange) {
        let mut done = 0;
        while done < range.len() {
            let got = self.kernel.map_zeros(range.start.plus(done), range.len() - done).expect("map_zeros");
            assert!(got >= 1 && got <= range.len() - done, "{got} pages of {}", range.len() - done);
            done += got;
        }
    }

    fn zeros(&self) {
        for count in [1, 3, 64, 65, 200] {
            let range = self.fresh(count);
            self.map_all_zeros(range);
            for page in range.iter() {
                assert_eq!((self.read(page), self.write(page, 1)), (Ok(0), Ok(())), "zeros are writable");
            }
            assert_eq!(self.read(range.end), Err(Fault::Absent), "no page too many");
        }
        // Each page has bytes of its own.
        let range = self.fresh(2);
        self.map_all_zeros(range);
        assert_eq!(self.write(range.start, 9), Ok(()));
        assert_eq!(self.read(range.start.plus(1)), Ok(0));
    }

    /// A run of pages, each with its bytes, all protected or none; one call stops at a page that is there.
    fn runs(&self) {
        for protect in [Protect::Writable, Protect::WriteProtected] {
            let range = self.fresh(40);
            let bytes: [PageBuf; 40] = core::array::from_fn(|n| filled(n as u8 + 1));
            self.fill(range.start.plus(9), 99, Protect::Writable);
            assert_eq!(self.kernel.map_run(range.start, &bytes[..20], protect), Ok(9));
            assert_eq!(self.kernel.map_run(range.start.plus(9), &bytes[9..20], protect), Err(KernelError::Exists));
            let mut done = 10;
            while done < 40 {
                done += self.kernel.map_run(range.start.plus(done), &bytes[done as usize..], protect).expect("map_run");
            }
            for (n, page) in range.iter().enumerate() {
                let expected = if n == 9 { 99 } else { n as u8 + 1 };
                assert_eq!(self.read(page), Ok(expected), "page {n}");
                let written = self.write(page, 7);
                assert_eq!(written.is_ok(), n == 9 || protect == Protect::Writable, "page {n}: {written:?}");
            }
        }
    }

    fn zeros_stop_at_mapped_page(&self) {
        let range = self.fresh(100);
        for at in [3, 70] {
            self.fill(range.start.plus(at), 5, Protect::Writable);
        }
        assert_eq!(self.kernel.map_zeros(range.start.plus(3), 10), Err(KernelError::Exists));
        assert_eq!(self.kernel.map_zeros(range.start, 100), Ok(3));
        assert_eq!(self.read(range.start.plus(4)), Err(Fault::Absent));
        // Across the largest piece that one call of the real kernel takes.
        let mut done = 4;
        while done < 70 {
            done += self.kernel.map_zeros(range.start.plus(done), 100 - done).expect("map_zeros");
        }
        assert_eq!((done, self.read(range.start.plus(70))), (70, Ok(5)));
        assert_eq!(self.read(range.start.plus(71)), Err(Fault::Absent));
    }

    fn zeros_stop_at_the_end(&self) {
        let range = self.fresh(8);
        self.memory.unmap(PageRange { start: range.start.plus(5), end: range.end });
        assert_eq!(self.kernel.map_zeros(range.start, 8), Ok(5));
        assert_eq!(self.read(range.start.plus(4)), Ok(0));
    }

    /// A change of protection cuts the mapping in two, which a range does not notice.
    fn zeros_across_protections(&self) {
        let range = self.fresh(32);
        let unreadable = PageRange { start: range.start.plus(7), end: range.start.plus(20) };
        self.memory.set_readable(unreadable, false);
        self.map_all_zeros(range);
        assert_eq!(self.kernel.protect(range), Ok(()));
        self.memory.set_readable(unreadable, true);
        for page in range.iter() {
            assert_eq!((self.read(page), self.write(page, 1)), (Ok(0), Err(Fault::Protected)));
        }
        let pages: alloc_crate::vec::Vec<Page> = range.iter().collect();
        self.memory.set_readable(unreadable, false);
        assert_eq!(self.kernel.unmap(&pages), Ok(()));
        self.memory.set_readable(unreadable, true);
        for page in range.iter() {
            assert_eq!(self.read(page), Err(Fault::Absent));
        }
    }

    fn copy_out(&self) {
        let page = self.fresh(1).start;
        let mut bytes = filled(5);
        bytes.0[1234] = 77;
        assert_eq!(self.kernel.map(page, &bytes, Protect::Writable), Ok(()));
        assert_eq!(self.write(page, 9), Ok(()));
        bytes.0[0] = 9;
        for _ in 0..2 {
            let mut copy = filled(0);
            assert_eq!(self.kernel.copy_out(page, &mut copy, true), Ok(()));
            assert!(copy.0 == bytes.0, "copy_out gives the page's bytes");
            // The second time from a protected page.
            assert_eq!(self.kernel.protect(PageRange { start: page, end: page.plus(1) }), Ok(()));
        }
        assert_eq!(self.write(page, 1), Err(Fault::Protected), "copying out changes no protection");
    }

    fn copy_out_of_unreadable(&self) {
        let range = self.fresh(1);
        self.fill(range.start, 5, Protect::WriteProtected);
        self.memory.set_readable(range, false);
        let mut copy = filled(0);
        if !self.memory.is_shared() {
            assert_eq!(self.kernel.copy_out(range.start, &mut copy, true), Err(KernelError::Gone));
        }
        let (answer, bytes) = if self.memory.shows_unreadable() { (Ok(()), 5) } else { (Err(KernelError::Refused), 0) };
        assert_eq!(self.kernel.copy_out(range.start, &mut copy, false), answer);
        assert!(copy.0 == [bytes; 4096], "the bytes of unreadable memory, or none");
        self.memory.set_readable(range, true);
        assert_eq!((self.read(range.start), self.write(range.start, 1)), (Ok(5), Err(Fault::Protected)));
    }

    fn fill_unreadable(&self) {
        let range = self.fresh(4);
        self.memory.set_readable(range, false);
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| range.start.plus(n));
        self.fill(a, 5, Protect::Writable);
        self.fill(b, 6, Protect::Writable);
        self.fill(c, 7, Protect::WriteProtected);
        assert_eq!(self.kernel.map_zeros(d, 1), Ok(1));
        assert_eq!(self.kernel.protect(PageRange { start: a, end: b }), Ok(()));
        assert_eq!(self.kernel.unprotect(c), Ok(()));
        assert_eq!(self.kernel.unmap(&[d]), Ok(()));
        self.memory.set_readable(range, true);
        assert_eq!((self.read(a), self.write(a, 1)), (Ok(5), Err(Fault::Protected)));
        assert_eq!((self.read(b), self.write(b, 1)), (Ok(6), Ok(())));
        assert_eq!((self.read(c), self.write(c, 1)), (Ok(7), Ok(())));
        assert_eq!(self.read(d), Err(Fault::Absent));
    }

    fn gone(&self) {
        let range = self.fresh(2);
        let page = range.start;
        self.fill(page, 5, Protect::Writable);
        self.memory.unmap(range);
        for page in range.iter() {
            assert_eq!(self.kernel.map(page, &filled(1), Protect::Writable), Err(KernelError::Gone));
            assert_eq!(self.kernel.map(page, &filled(1), Protect::WriteProtected), Err(KernelError::Gone));
            assert_eq!(self.kernel.map_zeros(page, 1), Err(KernelError::Gone));
            assert_eq!(self.kernel.protect(PageRange { start: page, end: page.plus(1) }), Err(KernelError::Gone));
            assert_eq!(self.kernel.unprotect(page), Err(KernelError::Gone));
            if !self.memory.is_shared() {
                assert_eq!(self.kernel.copy_out(page, &mut filled(0), true), Err(KernelError::Gone));
                assert_eq!(self.kernel.unmap(&[page]), Err((0, KernelError::Gone)));
            }
        }
        assert_eq!(self.kernel.protect(range), Err(KernelError::Gone));
    }

    /// Maps the granule that begins a range as a huge page. The kernel may have none free for a while, beside others who fill its memory.
    fn map_huge(&self, range: PageRange) -> Result<(), KernelError> {
        for _ in 0..HUGE_TRIES {
            let mapped = self.kernel.map_huge(range.start.granule());
            if mapped != Err(KernelError::Refused) {
                return mapped;
            }
            clock::sleep_ns(HUGE_PAUSE_NS);
        }
        panic!("the kernel has had no huge page free in {HUGE_TRIES} tries, {HUGE_PAUSE_NS} ns apart");
    }

    /// A granule that comes as one page is as many pages like any other, before it is split and after.
    fn huge(&self) {
        if self.kernel.huge_pages() == HugePages::Never {
            return;
        }
        const PAGES: u64 = GRANULE_PAGES as u64;
        let start = self.memory.range().start.plus(self.next.get()).plus(PAGES).granule().first();
        self.next.set(start.0 - self.memory.range().start.0);
        for split in [true, false] {
            let range = self.fresh(PAGES);
            self.next.set(self.next.get() - 1);
            let [a, b, c] = [0, 100, 511].map(|n| range.start.plus(n));
            assert_eq!(self.map_huge(range), Ok(()));
            for page in range.iter() {
                assert_eq!((self.read(page), self.write(page, page.0 as u8)), (Ok(0), Ok(())), "zeros are writable");
                self.memory.write(page.addr() + 4095, page.0 as u8).expect("writable");
            }
            assert_eq!(self.map_huge(range), Err(KernelError::Exists));
            assert_eq!(self.kernel.map(b, &filled(9), Protect::Writable), Err(KernelError::Exists));
            if split {
                self.kernel.split_huge(range.start.granule());
            }
            assert_eq!(self.kernel.protect(PageRange { start: b, end: b.plus(8) }), Ok(()));
            for page in range.iter() {
                let inside = (b..b.plus(8)).contains(&page);
                let written = self.write(page, page.0 as u8);
                assert_eq!((self.read(page), written.is_err()), (Ok(page.0 as u8), inside), "{page:?} of {range:?}");
            }
            assert_eq!(self.kernel.unprotect(b.plus(1)), Ok(()));
            assert_eq!(self.write(b.plus(1), b.0 as u8 + 1), Ok(()));
            if split {
                assert_eq!(self.kernel.unmap(&[a, b, c]), Ok(()));
                assert_eq!([a, b, c].map(|page| self.read(page)), [Err(Fault::Absent); 3]);
                assert_eq!(self.read(b.plus(1)), Ok(b.0 as u8 + 1), "the neighbours stay");
                self.fill(b, 7, Protect::WriteProtected);
                assert_eq!((self.read(b), self.write(b, 1)), (Ok(7), Err(Fault::Protected)));
                assert_eq!(self.map_huge(range), Err(KernelError::Exists), "a part of it is there");
                assert_eq!(self.read(a), Err(Fault::Absent), "then nothing comes");
            } else {
                let pages: alloc_crate::vec::Vec<Page> = range.iter().collect();
                assert_eq!(self.kernel.unmap(&pages), Ok(()));
                assert_eq!(self.read(c), Err(Fault::Absent));
                // Once more, over page tables that are there already.
                assert_eq!(self.map_huge(range), Ok(()));
                assert_eq!(self.read(c), Ok(0));
            }
        }
        // A mapping that ends within the granule.
        let range = self.fresh(PAGES);
        self.memory.unmap(PageRange { start: range.start.plus(300), end: range.end });
        assert!(self.kernel.map_huge(range.start.granule()).is_err());
        assert_eq!(self.read(range.start), Err(Fault::Absent), "nothing of it is there");
    }

    fn threads_have_numbers(&self) {
        assert_eq!(self.kernel.current_thread(), self.kernel.current_thread());
    }
}
