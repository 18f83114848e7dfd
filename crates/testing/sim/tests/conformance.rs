//! The suite that the real kernel passes, on the simulated one. (The same cases run in `farshore-sys` on Linux.)

use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::HugePages;
use farshore_sim::host::SimKernel;
use farshore_sim::kernel::{ARENA, Touch};
use farshore_sim::setup::Wish;
use farshore_sim::world::{World, add_actor, begin, end, world};
use farshore_sys::conformance::{Fault, PAGES, Scratch, run};

struct Memory;

impl Memory {
    fn touch(addr: u64, access: Access) -> Result<(), Fault> {
        match world(|w| w.memory.touch(Page::containing(addr), access)) {
            Touch::Fine => Ok(()),
            Touch::Fault { protected: false } => Err(Fault::Absent),
            Touch::Fault { protected: true } => Err(Fault::Protected),
            Touch::Segv => panic!("the suite touches {addr:#x}, where nothing is"),
        }
    }

    fn byte(addr: u64, change: impl FnOnce(&mut u8)) -> u8 {
        world(|w| {
            let bytes = w.memory.place(Page::containing(addr)).bytes.as_mut().expect("touched just now");
            let byte = &mut bytes.0[addr as usize % 4096];
            change(byte);
            *byte
        })
    }
}

impl Scratch for Memory {
    fn range(&self) -> PageRange {
        PageRange { start: Page(ARENA), end: Page(ARENA + PAGES) }
    }
    fn read(&self, addr: u64) -> Result<u8, Fault> {
        Memory::touch(addr, Access::Read).map(|()| Memory::byte(addr, |_| ()))
    }
    fn write(&self, addr: u64, byte: u8) -> Result<(), Fault> {
        Memory::touch(addr, Access::Write).map(|()| {
            let _ = Memory::byte(addr, |b| *b = byte);
        })
    }
    fn set_readable(&self, range: PageRange, readable: bool) {
        world(|w| w.memory.set_access(range, readable));
    }
    fn unmap(&self, range: PageRange) {
        world(|w| w.memory.unmap(range));
    }
}

#[test]
fn the_simulated_kernel_conforms() {
    let mut setup = Wish { seed: 1, steps: 1, pages: Some(PAGES), ..Wish::default() }.setup();
    setup.switch_rate = 0;
    setup.huge = HugePages::Always;
    begin(World::new(setup));
    world(|w| w.strict = false);
    add_actor("suite".into());
    world(|w| w.memory.map(Memory.range(), true));
    run(&SimKernel, &Memory);
    end();
}
