//! Address space, vectored advice, `/proc/self/mem`, guarded accesses, the page map.

mod common;

use common::{PAGE, copy, install_fixup, managed, map_pages, open, pointer, read, write};
use farshore_sys::guarded;
use farshore_sys::pagemap::{Categories, Pagemap, Query, Region};
use farshore_sys::raw::Errno;
use farshore_sys::uffd::UffdOptions;
use farshore_sys::vm::{self, AdviseError, Range, SelfAdvice, SelfMem, advice, map, prot, remap};

#[test]
fn mapping_and_remapping() {
    install_fixup();
    let range = map_pages(4);
    let start = range.start.addr();
    assert_eq!(write(start, 7), Ok(()));
    // SAFETY: scratch memory.
    unsafe { vm::mprotect(start, PAGE, prot::READ) }.unwrap();
    assert_eq!(read(start), Ok(7));
    assert!(write(start, 8).is_err_and(|kind| kind.present() && kind.write()));
    // SAFETY: scratch memory.
    unsafe { vm::mprotect(start, PAGE, prot::READ | prot::WRITE) }.unwrap();
    let target = map_pages(8).start.addr();
    // SAFETY: scratch memory.
    let moved = unsafe { vm::mremap(start, PAGE, 2 * PAGE, remap::MAYMOVE | remap::FIXED, target) };
    assert_eq!((moved, read(target), vm::is_mapped(start)), (Ok(target), Ok(7), false));
    assert!(read(start).is_err_and(|kind| !kind.present()));
    let flags = map::PRIVATE | map::ANONYMOUS | map::FIXED_NOREPLACE;
    // SAFETY: is refused.
    assert_eq!(unsafe { vm::mmap(target, PAGE, prot::READ, flags, -1, 0) }, Err(Errno::EEXIST));
    // SAFETY: asks.
    let end = unsafe { vm::brk(0) };
    // SAFETY: moves nothing: the end stays where it is.
    assert_eq!(unsafe { vm::brk(end) }, end);
}

#[test]
fn advising_scattered_pages() {
    install_fixup();
    let ways = [SelfAdvice::probe(), SelfAdvice::one_by_one()];
    if !ways[0].is_vectored() {
        println!("skipped: process_madvise(DONTNEED) on oneself is not in this kernel");
    }
    for way in ways {
        // More than one call takes.
        let range = map_pages(2500);
        range.iter().for_each(|page| assert_eq!(write(page.addr(), 5), Ok(())));
        let ranges: Vec<Range> = range.iter().step_by(2).map(|page| Range { addr: page.addr(), len: PAGE }).collect();
        // SAFETY: scratch memory.
        assert_eq!(unsafe { way.advise(&ranges, advice::DONTNEED) }, Ok(()));
        for (n, page) in range.iter().enumerate() {
            assert_eq!(read(page.addr()), Ok(if n % 2 == 0 { 0 } else { 5 }), "page {n}");
        }
        // SAFETY: scratch memory.
        assert_eq!(unsafe { way.advise(&[], advice::DONTNEED) }, Ok(()));
    }
}

#[test]
fn advice_stops_at_a_hole() {
    install_fixup();
    for way in [SelfAdvice::probe(), SelfAdvice::one_by_one()] {
        for hole in [0u64, 3, 7] {
            let range = map_pages(8);
            range.iter().for_each(|page| assert_eq!(write(page.addr(), 5), Ok(())));
            // SAFETY: scratch memory.
            unsafe { vm::munmap(range.start.plus(hole).addr(), PAGE) }.unwrap();
            let ranges: Vec<Range> = range.iter().map(|page| Range { addr: page.addr(), len: PAGE }).collect();
            // SAFETY: scratch memory.
            let answer = unsafe { way.advise(&ranges, advice::DONTNEED) };
            assert_eq!(answer, Err(AdviseError { done: hole as usize, errno: Errno::ENOMEM }));
            for page in range.iter().take(hole as usize) {
                assert_eq!(read(page.addr()), Ok(0));
            }
        }
    }
}

#[test]
fn memory_that_cannot_be_read() {
    install_fixup();
    let memory = SelfMem::open().unwrap();
    let range = map_pages(2);
    assert_eq!((write(range.start.addr(), 5), write(range.start.addr() + PAGE, 6)), (Ok(()), Ok(())));
    // SAFETY: scratch memory.
    unsafe { vm::mprotect(range.start.addr(), 2 * PAGE, prot::NONE) }.unwrap();
    assert!(read(range.start.addr()).is_err());
    let mut bytes = [0u8; 8];
    // Since Linux 6.12 a kernel may be built to show it to debuggers alone, as Debian's newest are.
    let wanted = if common::shows_unreadable() { (Ok(()), [0, 0, 0, 0, 6, 0, 0, 0]) } else { (Err(Errno::EIO), [0; 8]) };
    assert_eq!((memory.read(range.start.addr() + PAGE - 4, &mut bytes), bytes), wanted);
    // SAFETY: scratch memory.
    unsafe { vm::munmap(range.start.addr() + PAGE, PAGE) }.unwrap();
    assert!(memory.read(range.start.addr() + PAGE - 4, &mut bytes).is_err());
}

#[test]
fn guarded_copies() {
    install_fixup();
    let range = map_pages(3);
    let start = range.start.addr();
    for i in 0..PAGE {
        assert_eq!(write(start + i, i as u8), Ok(()));
    }
    let mut into = vec![0u8; 2 * PAGE as usize];
    let mut get = |from: u64, bytes: usize| {
        // SAFETY: `into` is ours; the source is scratch memory.
        unsafe { guarded::copy(into.as_mut_ptr(), pointer(from), bytes) }.map(|()| into[..bytes].to_vec())
    };
    assert_eq!(get(start + 1, 5), Ok(vec![1, 2, 3, 4, 5]));
    assert_eq!(get(start, 0), Ok(vec![]));
    // SAFETY: scratch memory.
    unsafe { vm::munmap(start + PAGE, PAGE) }.unwrap();
    assert!(get(start + PAGE - 3, 6).is_err_and(|kind| !kind.present() && !kind.write()));
    assert!(get(16, 1).is_err(), "a wild pointer");
    // An address that is no address raises SIGSEGV without a page fault.
    assert!(get(1 << 60, 1).is_err());
    let bytes = [9u8; 6];
    // SAFETY: the target is scratch memory.
    let fault = unsafe { guarded::copy(pointer(start + PAGE - 3), bytes.as_ptr(), 6) }.unwrap_err();
    assert!(fault.write() && read(start + PAGE - 1) == Ok(9));
}

#[test]
fn page_map() {
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let pagemap = Pagemap::open().unwrap();
    let range = managed(&uffd, 16);
    copy(&uffd, range.start, 1, false).unwrap();
    copy(&uffd, range.start.plus(2), 1, true).unwrap();
    let entry = |n: u64| pagemap.entry(range.start.plus(n).addr()).unwrap();
    assert!(entry(0).present() && !entry(0).write_protected());
    assert!(!entry(1).present() && !entry(1).write_protected() && !entry(1).swapped());
    assert!(entry(2).present() && entry(2).write_protected());
    match pagemap.probe() {
        Ok(support) => println!("{support:?}"),
        Err(errno) => return println!("skipped: PAGEMAP_SCAN: {errno}"),
    }
    let query = Query { all: Categories::PRESENT, report: Categories::PRESENT.with(Categories::WRITTEN), ..Query::default() };
    let mut regions = [Region::default(); 4];
    let (start, end) = (range.start.addr(), range.end.addr());
    let (found, walked) = pagemap.scan(start, end, query, &mut regions).unwrap();
    let both = Categories::PRESENT.with(Categories::WRITTEN);
    let expected = [
        Region { start, end: start + PAGE, categories: both },
        Region { start: start + 2 * PAGE, end: start + 3 * PAGE, categories: Categories::PRESENT },
    ];
    assert_eq!((&regions[..found], walked), (&expected[..], end));
    // Too little room: the walk tells where it stopped, and can go on.
    let (found, walked) = pagemap.scan(start, end, query, &mut regions[..1]).unwrap();
    assert!(found == 1 && walked > start && walked <= start + 2 * PAGE);
    assert_eq!(pagemap.scan(walked, end, query, &mut regions[..1]).unwrap().0, 1);
    assert_eq!(regions[0], expected[1]);
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
