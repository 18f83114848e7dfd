//! A recorder beside the engine that ships: what it would hear while the engine goes through a trace, and no more than that.

use std::cell::{Cell, RefCell};

use farshore_core::page::Page;
use farshore_core::seams::{Told, Traced, Tracer};
use farshore_policy::{BuiltIn, prefetch};
use farshore_replay::recorded::{Heard, Recording};
use farshore_replay::{Trace, engine};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
    static HEARD: RefCell<Vec<(u64, Heard, u64, u64)>> = const { RefCell::new(Vec::new()) };
}

/// What the engine tells on this thread.
struct Ear;

impl Tracer for Ear {
    fn hears(what: Traced) -> bool {
        what != Traced::Fault
    }
    fn tell(what: Traced, told: &Told) {
        let heard = match what {
            Traced::Fetched if told.detail == 1 => Heard::Unasked,
            Traced::Fetched => Heard::Fetched,
            Traced::Evicted => Heard::Left,
            Traced::Rescued => Heard::Rescued,
            Traced::Fault => return,
        };
        note(heard, told.address, told.pages);
    }
}

fn note(heard: Heard, address: u64, pages: u64) {
    HEARD.with_borrow_mut(|all| all.push((NOW.get(), heard, Page::containing(address).0, pages)));
}

/// Runs a trace with a limit of so many pages, an access a microsecond, and records it. Says what was read, too.
#[must_use]
pub fn recorded(trace: &Trace, limit: usize, policy: BuiltIn, prefetcher: prefetch::BuiltIn) -> (Recording, engine::Read) {
    let mut fault = |at: usize, address| {
        NOW.set(at as u64 * 1000);
        let instruction = u64::from(trace.accesses[at].site) + 1;
        note(Heard::Fault { protected: false, thread: 1, instruction }, address, 1);
    };
    let read = engine::heard::<Ear>(trace, limit, policy, prefetcher, &mut fault);
    let mut recording = Recording::default();
    for (ns, heard, first, pages) in HEARD.take() {
        recording.hear(ns, heard, first, pages);
    }
    (recording, read)
}
