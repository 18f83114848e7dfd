//! The program's threads: they read and write pages, and make system calls whose buffers are pinned.

use crate::Rig;
use crate::kernel::{Touch, set_stamp, stamp_of};
use crate::model::{Expected, Kind};
use crate::sched::{maybe_switch, park, sleep_ns, switch};
use crate::world::{World, broken, note, world};
use farshore_core::page::{Access, Page};
use farshore_core::seams::{KernelError, PageBuf};
use farshore_engine::fault::pins;
use farshore_engine::fault::resolve::{Failure, Resolved};
use std::rc::Rc;

/// How many faults of one access in a row mean that something is wrong.
pub const FAULTS_MAX: u32 = 2000;
/// Virtual time for which a lack of room for writes explains a lack of frames.
const TROUBLE_NS: u64 = 8_000_000_000;

/// How an access ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It went through.
    Fine,
    /// The page went away meanwhile, or its fault failed for a good reason.
    GivenUp,
}

/// Where an actor's fetches land: one page, or several for streams.
pub fn fetch_buffer() -> Box<[PageBuf]> {
    let pages = world(|w| w.rng.pick(&[1, 4, 16]));
    vec![PageBuf::ZERO; pages].into()
}

/// Parks while the run pauses; true when the actor is to return.
pub fn between_things() -> bool {
    while world(|w| w.pausing && !w.stopping) {
        park();
    }
    world(|w| w.stopping)
}

/// Something came to an end.
pub fn progress(w: &mut World) {
    w.progress += 1;
    w.progress_at = w.now;
}

/// A thread of the program.
pub fn thread(rig: &Rc<Rig>, core: usize) {
    let mut buffer = fetch_buffer();
    let mut cursor = None;
    while !between_things() {
        let Some((page, access, call)) = world(|w| choose(w, &mut cursor)) else {
            sleep_ns(2_000);
            continue;
        };
        if call {
            pinned_call(rig, page, access, core, &mut buffer);
        } else {
            let _ = access_page(rig, page, access, core, &mut buffer);
        }
        maybe_switch();
    }
}

/// The next page, access, and whether a system call makes it: scans, a hot set, and anywhere.
pub fn choose(w: &mut World, cursor: &mut Option<Page>) -> Option<(Page, Access, bool)> {
    let anywhere = w.model.part(&mut w.rng, 1)?.start;
    let next = match w.rng.below(10) {
        0..=4 => cursor.map(|p| p.plus(1)).filter(|&p| w.model.is_alive(p)).unwrap_or(anywhere),
        5 => w.model.alive[0].start.plus(w.rng.below(w.model.alive[0].len().min(40))),
        _ => anywhere,
    };
    *cursor = Some(next);
    if w.model.get(next).no_access {
        return None;
    }
    let writes = w.setup.write_rate;
    let access = if w.rng.chance(writes) { Access::Write } else { Access::Read };
    Some((next, access, w.rng.chance(400)))
}

/// Whether a memory call took the page away (or the right to access it) since `before`.
fn went_away(before: Expected, page: Page) -> bool {
    let now = world(|w| w.model.get(page));
    before.call % 2 == 1 || now.call != before.call || now.no_access
}

/// What the access does when it goes through: a read must find the last stamp.
fn take_effect(w: &mut World, page: Page, access: Access) {
    let expected = w.model.get(page).stamp;
    let stamp = if access == Access::Write { w.model.fresh_stamp() } else { expected };
    w.counts.accesses += 1;
    let place = w.memory.place(page);
    (place.idle, place.used_at) = (false, w.counts.accesses);
    let Some(bytes) = place.bytes.as_deref_mut() else { broken(page.0, "a touch of nothing") };
    let found = stamp_of(bytes);
    if found != Some(expected) {
        broken(page.0, &format!("the program reads {found:?} and last wrote {expected}"));
    }
    if access == Access::Write {
        set_stamp(bytes, stamp);
        w.model.change(farshore_core::page::PageRange { start: page, end: page.plus(1) }, |_, e| e.stamp = stamp);
        note("write", page.0, stamp);
    } else {
        note("read", page.0, stamp);
    }
    progress(w);
}

/// The outcome of one attempt at an access.
#[derive(Clone, Copy, Debug)]
pub enum Tried {
    /// The access is over.
    Ended(Ended),
    /// The access faults.
    Fault {
        /// The page is present and write-protected.
        protected: bool,
    },
}

/// One attempt at an access that began when `before` was expected.
pub fn try_access(page: Page, access: Access, before: Expected) -> Tried {
    let touch = world(|w| {
        let touch = w.memory.touch(page, access);
        if touch == Touch::Fine {
            take_effect(w, page, access);
        }
        touch
    });
    match touch {
        Touch::Fine => Tried::Ended(Ended::Fine),
        Touch::Segv if went_away(before, page) => Tried::Ended(Ended::GivenUp),
        Touch::Segv => broken(page.0, "memory that the program has is not there"),
        Touch::Fault { protected } => Tried::Fault { protected },
    }
}

/// A fault was called foreign, as the signal handler learns it. Is the access wrong, or did the page stop being ours meanwhile?
/// True: the access is over.
pub fn is_over_when_foreign(page: Page, before: Expected) -> bool {
    if !went_away(before, page) {
        broken(page.0, "a fault on managed memory is called foreign");
    }
    switch();
    world(|w| w.model.get(page).kind == Kind::None)
}

/// One access by the program: faults are served as the signal handler serves them.
pub fn access_page(rig: &Rc<Rig>, page: Page, access: Access, core: usize, buffer: &mut [PageBuf]) -> Ended {
    let before = world(|w| w.model.get(page));
    for _ in 0..FAULTS_MAX {
        maybe_switch();
        let protected = match try_access(page, access, before) {
            Tried::Ended(how) => return how,
            Tried::Fault { protected } => protected,
        };
        maybe_switch();
        match rig.engine.resolve(page, access, protected, core, buffer) {
            Ok(Resolved::Done) => {}
            Ok(Resolved::Foreign) if is_over_when_foreign(page, before) => return Ended::GivenUp,
            Ok(Resolved::Foreign) => {}
            Err(why) => {
                accept(rig, page, why);
                return Ended::GivenUp;
            }
        }
    }
    broken(page.0, "an access faults for ever")
}

/// The access gets SIGBUS. Ends the run unless injected faults explain the failure.
pub fn accept(rig: &Rc<Rig>, page: Page, why: Failure) {
    must_be_explained(rig, page, why);
    note("SIGBUS", page.0, 0);
    world(|w| {
        w.counts.sigbus += 1;
        progress(w);
    });
}

/// Ends the run unless injected faults explain the failure.
pub fn must_be_explained(rig: &Rc<Rig>, page: Page, why: Failure) {
    let full = rig.swap_is_nearly_full();
    let explained = world(|w| {
        let actor = &w.actors[w.current];
        match why {
            Failure::Transfer(_) => actor.luck.bad_reads >= 3,
            Failure::Kernel(KernelError::NoMemory) => actor.luck.no_memory,
            Failure::Kernel(_) => false,
            Failure::NoFrames => full || w.rates.full || w.now.saturating_sub(w.trouble_at) < TROUBLE_NS,
        }
    });
    if !explained {
        broken(page.0, &format!("a fault fails without a reason: {why}"));
    }
}

/// Pages that a system call uses, and what was expected of each.
pub type Pinned = Vec<(Page, Expected)>;

/// A system call with a buffer of a few pages: pinned, used by the kernel at its leisure, unpinned.
pub fn pinned_call(rig: &Rc<Rig>, first: Page, access: Access, core: usize, buffer: &mut [PageBuf]) {
    let pinned = pin(rig, first, access, core, buffer);
    for _ in 0..world(|w| w.rng.below(12)) {
        switch();
    }
    use_and_unpin(rig, &pinned, access);
}

/// Pins a few pages from `first` on.
pub fn pin(rig: &Rc<Rig>, first: Page, access: Access, core: usize, buffer: &mut [PageBuf]) -> Pinned {
    let count = world(|w| w.rng.between(1, 8));
    let mut pinned = Pinned::new();
    for page in (0..count).map(|i| first.plus(i)) {
        let before = world(|w| w.model.get(page));
        if before.kind != Kind::Managed || before.no_access {
            break;
        }
        match rig.engine.pin(page, access, core, buffer) {
            Ok(pins::Pinned::Held) => pinned.push((page, before)),
            Ok(pins::Pinned::Foreign) if went_away(before, page) => break,
            Ok(pins::Pinned::Foreign) => broken(page.0, "managed memory is not pinned"),
            Err(why) => {
                accept(rig, page, why);
                break;
            }
        }
    }
    pinned
}

/// The kernel uses the pinned pages, and the call ends.
pub fn use_and_unpin(rig: &Rc<Rig>, pinned: &Pinned, access: Access) {
    for &(page, before) in pinned {
        kernel_uses(page, before, access);
        maybe_switch();
    }
    for &(page, _) in pinned {
        rig.engine.unpin(page);
        maybe_switch();
    }
    world(|w| {
        w.counts.pinned_calls += 1;
        progress(w);
    });
}

/// The kernel's own access to a pinned page: it must not fault, unless a memory call took the page away.
fn kernel_uses(page: Page, before: Expected, access: Access) {
    let gone = went_away(before, page) || before.dropped % 2 == 1 || world(|w| w.model.get(page).dropped) != before.dropped;
    world(|w| match w.memory.touch(page, access) {
        Touch::Fine => take_effect(w, page, access),
        _ if gone => {}
        touch => broken(page.0, &format!("a system call meets {touch:?} on a pinned page: EFAULT")),
    });
}
