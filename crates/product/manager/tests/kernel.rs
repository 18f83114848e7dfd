//! The conformance suite on shared memory: the engine may rely on it as on a program's own.

mod common;

use common::{PAGE, SelfMemory, backing, mapping, memfd, open, region};
use farshore_core::page::PageRange;
use farshore_manager::kernel::SharedKernel;
use farshore_manager::memory::Memory;
use farshore_sys::conformance::{Fault, PAGES, Scratch, run};
use farshore_sys::uffd::UffdOptions;
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
