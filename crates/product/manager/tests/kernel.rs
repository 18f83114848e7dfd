//! The conformance suite on shared memory: the engine may rely on it as on a program's own.

mod common;

use common::{PAGE, SelfMemory, backing, mapping, memfd, open, region};
use farshore_core::page::PageRange;
use farshore_core::seams::{Kernel as _, KernelError, PageBuf, Protect};
use farshore_manager::kernel::SharedKernel;
use farshore_manager::memory::Memory;
use farshore_manager::state::State;
use farshore_sys::conformance::{Fault, PAGES, Scratch, run};
use farshore_sys::uffd::{Note, UffdOptions};
use farshore_sys::vm::{self, prot};

struct Shared {
    range: PageRange,
    memory: SelfMemory,
}

impl Scratch for Shared {
    fn range(&self) -> PageRange {
        self.range
    }

    fn read(&self, addr: u64) -> Result<u8, Fault> {
        self.memory.read(addr).ok_or(Fault::Absent)
    }

    fn write(&self, addr: u64, byte: u8) -> Result<(), Fault> {
        match (self.memory.write(addr, byte), self.memory.read(addr)) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(Fault::Protected),
            (false, None) => Err(Fault::Absent),
        }
    }

    fn set_readable(&self, range: PageRange, readable: bool) {
        let access = if readable { prot::READ | prot::WRITE } else { prot::NONE };
        // SAFETY: scratch memory, which is touched by the kernel alone.
        unsafe { vm::mprotect(range.start.addr(), range.bytes(), access) }.expect("it is mapped");
    }

    fn unmap(&self, range: PageRange) {
        // SAFETY: as above.
        unsafe { vm::munmap(range.start.addr(), range.bytes()) }.expect("it is mapped");
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[test]
fn shared_memory_conforms() {
    // An access to what is not there is an error at once.
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    // Not from the file's beginning, so that a page's number and its place are different things.
    let (fd, offset) = (memfd(PAGES + 7), 7 * PAGE);
    let range = mapping(&fd, PAGES, offset);
    // SAFETY: touched by the kernel alone.
    unsafe { uffd.register(range.start.addr(), range.bytes()) }.expect("shared memory can be registered");
    let memory = Memory::default();
    memory.add(region(&backing(&fd), range, offset));
    let kernel = SharedKernel::new(uffd, memory, None).expect("/proc is mounted");
    run(&kernel, &Shared { range, memory: SelfMemory::open() });
}

#[test]
fn what_is_mapped_is_noted_until_it_is_forgotten() {
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let fd = memfd(PAGES);
    let range = mapping(&fd, PAGES, 0);
    // SAFETY: touched by the kernel alone.
    unsafe { uffd.register(range.start.addr(), range.bytes()) }.expect("shared memory can be registered");
    let memory = Memory::default();
    memory.add(region(&backing(&fd), range, 0));
    let state = State::make(1).expect("there is memory");
    let kernel = SharedKernel::new(uffd, memory, Some(state)).expect("/proc is mounted");
    let (page, bytes) = (|n| range.start.plus(n), vec![PageBuf::ZERO; 4]);
    let noted = || state.notes().filter_map(Note::mapped).collect::<Vec<_>>();
    let of = |from: u64, to: u64| vec![(page(from).addr(), page(to).addr())];
    assert_eq!((kernel.map_run(page(0), &bytes[..3], Protect::Writable), noted()), (Ok(3), of(0, 3)));
    // Before the next one, too.
    assert_eq!((kernel.map(page(6), &bytes[0], Protect::WriteProtected), noted()), (Ok(()), of(6, 7)));
    // A page that is there ends the run.
    assert_eq!((kernel.map_run(page(4), &bytes, Protect::Writable), noted()), (Ok(2), of(4, 6)));
    assert_eq!((kernel.map(page(6), &bytes[0], Protect::Writable), noted()), (Err(KernelError::Exists), vec![]));
    let there =
        std::thread::scope(|scope| scope.spawn(|| kernel.map(page(8), &bytes[0], Protect::Writable)).join().expect("it ends"));
    assert_eq!((there, noted()), (Ok(()), of(8, 9)));
    // Another thread's note is its own.
    kernel.forget_mapped();
    assert_eq!(noted(), of(8, 9));
    assert_eq!((kernel.map(page(10), &bytes[0], Protect::Writable), noted().len()), (Ok(()), 2));
    kernel.forget_mapped();
    assert_eq!(noted(), of(8, 9));
    // Who takes over has a note in what was left.
    assert_eq!(kernel.map_for(state, page(11), &bytes[0]), Ok(()));
    assert_eq!(state.first_note().mapped(), Some((page(11).addr(), page(12).addr())));
}
