//! Files of memory: what is there, what is taken out, and the mark.

mod common;

use common::{PAGE, backing, mapping, memfd, region};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{KernelError, PageBuf};
use farshore_manager::memory::{Backing, Memory, own_path};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat};
use rustix::io::pwrite;

fn pages(start: u64, end: u64) -> PageRange {
    PageRange { start: Page(start), end: Page(end) }
}

/// Takes pages out of memory, which all go.
fn punch(memory: &Memory, pages: &[Page]) -> Result<(), (usize, KernelError)> {
    let mut stuck = Vec::new();
    let done = memory.punch(pages, &mut stuck);
    assert_eq!(stuck, []);
    done
}

#[test]
fn what_is_there_is_found_and_taken_out() {
    let fd = memfd(64);
    let memory = Memory::default();
    let file = backing(&fd);
    // Two regions, the second before the first in the address space.
    let (high, low) = (region(&file, pages(1000, 1016), 0), region(&file, pages(500, 532), 16 * PAGE));
    for n in [3, 4, 5, 15, 16, 47] {
        pwrite(&fd, &[n as u8; PAGE as usize], n * PAGE).expect("there is memory");
    }
    assert_eq!(high.parts_in_memory().expect("it can be looked at"), [pages(1003, 1006), pages(1015, 1016)]);
    assert_eq!(low.parts_in_memory().expect("it can be looked at"), [pages(500, 501), pages(531, 532)]);
    memory.add(high.clone());
    memory.add(low.clone());
    let mut bytes = PageBuf::ZERO;
    for (page, byte) in [(1003, 3), (1015, 15), (500, 16), (531, 47), (501, 0)] {
        assert_eq!((memory.read(Page(page), &mut bytes), bytes.0 == [byte; PAGE as usize]), (Ok(()), true), "page {page}");
    }
    assert!([1003, 500, 531].iter().all(|page| !memory.is_hole(Page(*page))) && memory.is_hole(Page(501)));
    assert_eq!(low.parts_in_memory().expect("it can be looked at").len(), 2, "a look brings nothing");
    // Pages that are neighbours in the address space alone, and the other way round.
    assert_eq!(punch(&memory, &[1003, 1004, 1015, 500].map(Page)), Ok(()));
    assert_eq!(high.parts_in_memory().expect("it can be looked at"), [pages(1005, 1006)]);
    assert_eq!(low.parts_in_memory().expect("it can be looked at"), [pages(531, 532)]);
    assert_eq!(punch(&memory, &[1005, 999, 531].map(Page)), Err((1, KernelError::Gone)), "a page of no region");
    assert_eq!(punch(&memory, &[1005, 531].map(Page)), Err((0, KernelError::Gone)), "one that was thrown away");
    for n in [8, 9, 11] {
        pwrite(&fd, &[n as u8; PAGE as usize], n * PAGE).expect("there is memory");
    }
    assert_eq!(punch(&memory, &[1008, 1009, 1010, 1011].map(Page)), Err((2, KernelError::Gone)), "in the middle of a run");
    assert_eq!(high.parts_in_memory().expect("it can be looked at"), [pages(1011, 1012)]);
    assert!(!memory.is_hole(Page(531)) && memory.is_hole(Page(1005)));
    assert_eq!((memory.read(Page(532), &mut bytes), memory.is_hole(Page(532))), (Err(KernelError::Gone), false));
    // What was allocated and not yet touched is in memory, beside pages that were touched, and leaves.
    rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 20 * PAGE, 8 * PAGE).expect("there is memory");
    pwrite(&fd, &[22; PAGE as usize], 22 * PAGE).expect("there is memory");
    assert_eq!(low.parts_in_memory().expect("it can be looked at"), [pages(504, 512), pages(531, 532)]);
    assert!(!memory.is_hole(Page(504)) && memory.is_hole(Page(503)));
    assert_eq!(punch(&memory, &[503, 504].map(Page)), Err((0, KernelError::Gone)));
    assert_eq!(
        punch(&memory, &[510, 511, 512].map(Page)),
        Err((2, KernelError::Gone)),
        "they are there, and the third is a hole"
    );
    assert_eq!(punch(&memory, &[504, 505, 506, 507].map(Page)), Ok(()));
    assert_eq!(low.parts_in_memory().expect("it can be looked at"), [pages(508, 510), pages(531, 532)]);
    // The client makes it shorter.
    rustix::fs::ftruncate(&fd, 20 * PAGE).expect("it is its own");
    assert_eq!(memory.read(Page(531), &mut bytes), Err(KernelError::Gone));
}

#[test]
fn files_that_cannot_be_managed() {
    let refused = |path: &std::path::Path| Backing::open(path).map(|_| panic!("{}", path.display())).unwrap_err();
    assert!(refused(std::path::Path::new("/proc/self/exe")).contains("cannot be opened"));
    let place = std::env::temp_dir().join(format!("farshore-memory-{}", std::process::id()));
    std::fs::write(&place, [0; PAGE as usize]).expect("there is room");
    let is_shared_memory = rustix::fs::statfs(&place).expect("it is there").f_type == 0x0102_1994;
    if !is_shared_memory {
        assert!(refused(&place).contains("not shared memory"));
    }
    std::fs::remove_file(&place).expect("it is there");
    let sealed = rustix::fs::memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("it can be made");
    fcntl_add_seals(&sealed, SealFlags::FUTURE_WRITE).expect("it may be");
    assert!(refused(&own_path(&sealed)).contains("sealed"));
    let grown = rustix::fs::memfd_create("grown", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("it can be made");
    fcntl_add_seals(&grown, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("it may be");
    assert!(Backing::open(&own_path(&grown)).is_ok(), "its size is the client's affair");
    match rustix::fs::memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
        Ok(huge) => assert!(refused(&own_path(&huge)).contains("huge pages")),
        Err(errno) => println!("skipped: a memfd of huge pages cannot be made ({errno})"),
    }
}

#[test]
fn one_manager_at_a_time_and_none_after_one_that_was_lost() {
    let fd = memfd(8);
    let (memory, range) = (Memory::default(), mapping(&fd, 8, 0));
    let mode = || fstat(&fd).expect("it is open").st_mode & 0o7777;
    let before = mode();
    pwrite(&fd, b"a page", 0).expect("there is memory");
    memory.add(region(&backing(&fd), range, 0));
    let second = Backing::open(&own_path(&fd)).unwrap_err();
    assert!(second.contains("has a manager already"), "{second}");
    assert_eq!(mode(), before, "nothing was taken out yet");
    drop(memory);
    let memory = Memory::default();
    memory.add(region(&backing(&fd), range, 0));
    assert_eq!(punch(&memory, &[range.start]), Ok(()));
    assert_eq!(mode(), before | 0o1000);
    // It ends, and the page is lost.
    drop(memory);
    let late = Backing::open(&own_path(&fd)).unwrap_err();
    assert!(late.contains("a manager that has ended"), "{late}");
}

#[test]
fn the_mark_goes_when_all_pages_are_back() {
    let fd = memfd(8);
    let memory = Memory::default();
    memory.add(region(&backing(&fd), pages(64, 72), 0));
    let mode = || fstat(&fd).expect("it is open").st_mode & 0o7777;
    let before = mode();
    pwrite(&fd, &[7; 2 * PAGE as usize], 0).expect("there is memory");
    assert_eq!(punch(&memory, &[64, 65].map(Page)), Ok(()));
    assert_ne!(mode(), before);
    memory.forget_marks().expect("it is ours");
    assert_eq!(mode(), before);
    // Or when the last region of the file goes.
    pwrite(&fd, &[7; 2 * PAGE as usize], 0).expect("there is memory");
    let file = memory.all()[0].backing.clone();
    memory.remove(pages(64, 72)).expect("it is ours");
    memory.add(region(&file, pages(64, 68), 0));
    memory.add(region(&file, pages(80, 84), 4 * PAGE));
    assert_eq!(punch(&memory, &[64, 65].map(Page)), Ok(()));
    memory.remove(pages(64, 68)).expect("it is ours");
    assert_ne!(mode(), before, "the other one has holes of its own");
    memory.remove(pages(80, 84)).expect("it is ours");
    assert_eq!((mode(), memory.all().len()), (before, 0));
    drop((file, memory));
    assert!(Backing::open(&own_path(&fd)).is_ok());
}
