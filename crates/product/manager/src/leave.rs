//! The manager leaves: the client goes on without one.
//!
//! The client must not find a hole where a page was. So nothing is given up before everything is back:
//!
//! 1. There is room for the pages that are out, or the manager stays.
//! 2. The limit goes, and the evictors end: no page leaves any more.
//! 3. Each page that is out comes back, as if somebody needed it. Faults are served all the time. A page for which there is no room after all is waited for; one that the client
//!    has unmapped needs not come.
//! 4. The memory is no longer registered: holes are fresh memory again, and whoever waits is woken.
//! 5. The mark goes, and another manager may have the memory.

use farshore_command::machine::available_memory;
use farshore_command::say::{amount, tell};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page};
use farshore_core::word::State;
use farshore_sys::cpu;

use crate::host::{Host, buffer};
use crate::serve::{lose, wait_for_room, wants_room};

/// Gives the memory back, with all its pages. Returns how many bytes have come back.
///
/// # Errors
/// One line: there is no room for them, and nothing has changed. Or the mark stays.
pub fn leave(host: &Host) -> Result<u64, String> {
    let _alone = host.in_one_hand();
    let (engine, memory) = (&host.engine, host.engine.kernel.memory());
    let regions = memory.all();
    let pages = || regions.iter().flat_map(|region| region.pages.iter());
    let out = pages().filter(|page| is_out(host, *page)).count() as u64 * PAGE_SIZE as u64;
    if let Some(free) = available_memory().filter(|free| *free < out) {
        return Err(format!(
            "{} of its memory are out, and the machine has room for {}: the manager stays, as the client would not go on without these pages; \
             make room, and end the manager again",
            amount(out),
            amount(free)
        ));
    }
    engine.set_budget(engine.budget() + engine.stats.managed());
    host.stop_threads();
    let mut buffer = buffer();
    for page in pages() {
        while is_out(host, page) {
            engine.kernel.take_gone();
            match engine.resolve(page, Access::Read, false, cpu::current(), &mut buffer) {
                // The client has nothing there any more.
                Ok(_) if engine.kernel.take_gone() == Some(page) => break,
                // It is tried again: the kernel was busy with the address space.
                Ok(_) => {}
                Err(why) if wants_room(&why) => wait_for_room(&why),
                Err(why) => {
                    lose(host, page, &why);
                    break;
                }
            }
        }
    }
    // Should this process be killed from here on, whoever comes ends what it has begun.
    host.state.inspect(|state| state.set_given_back());
    for region in &regions {
        let (start, bytes) = (region.pages.start.addr(), region.pages.bytes());
        // A client that has unmapped it needs nothing more.
        if let Err(errno) = host.uffd().unregister(start, bytes) {
            tell(&format!("the {bytes} bytes at {start:#x} stay registered ({errno})"));
        }
    }
    memory.forget_marks().map_err(|errno| format!("the mark on its memory stays ({errno})"))?;
    Ok(out)
}

/// Whether a page has bytes that are not in the client's memory, or may be about to be.
fn is_out(host: &Host, page: Page) -> bool {
    matches!(host.state_of(page), Some(State::Out | State::Leaving | State::Busy))
}
