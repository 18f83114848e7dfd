//! Threads that read ahead: they bring the pages that a prefetcher has asked for (`crate::prefetch`), while the program works on
//! those before, and those that are wished to come (`crate::wishes`).
//!
//! Such a thread treats a page as a fault treats pages that come along (`super::run`). It takes the page only if it is out and a
//! spare frame is there, maps it as old, and puts it back if anything goes wrong, which the page's own fault then reports. A
//! fault on a page that is on its way waits for it as it waits for another fault's page. The threads pass the gate as faults do, anew for
//! each read. So they own no page while the process forks, and a fork waits for one read of each, however many pages are wished to come.
//!
//! A page that is wished to come while it is still in its stage is brought back from there, without a read. A prefetcher's guess brings back
//! none: that the program brings a page back from its stage is how evictors see that it is used.

use crate::Engine;
use crate::health::Trouble;
use crate::stats::Count;
use crate::wishes::runs;
use core::sync::atomic::Ordering;
use farshore_attach::Kind;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::{Ahead, Came, Kernel, Policy, Reads};
use farshore_core::seams::{PageBuf, World};
use farshore_core::sync::plain::AtomicBool;
use farshore_core::word::{BeginFault, Slot, State};

/// Pages of a request that one read brings: taken by this thread, `step` pages apart, in slots side by side.
#[derive(Clone, Copy)]
struct Run {
    first: Page,
    step: u64,
    slot: Slot,
    count: usize,
}

impl Run {
    fn page(self, n: usize) -> Page {
        self.first.plus(self.step * n as u64)
    }
}

impl<W: World> Engine<W> {
    /// The loop of a thread that reads ahead: until `stop`, after [`Engine::wake_readers`]. `buffer` is for one read; the thread
    /// counts on `core`.
    pub fn read_ahead(&self, core: usize, buffer: &mut [PageBuf], stop: &AtomicBool) {
        loop {
            let prepared = self.requests.came().prepare();
            match self.requests.take() {
                Some(ahead) => self.bring_ahead(ahead, core, buffer),
                None if stop.load(Ordering::Acquire) => return,
                None if self.bring_wished(core, buffer) => {}
                None => self.requests.came().sleep(&self.futex, prepared, None),
            }
        }
    }

    /// There may be this many threads that read ahead ([`Requests`](crate::prefetch::Requests)).
    pub fn allow_readers(&self, most: u32) {
        self.requests.allow_readers(most);
    }

    /// Threads that read ahead.
    pub fn readers(&self) -> u32 {
        self.requests.readers()
    }

    /// Lets threads that read ahead look at `stop`.
    pub fn wake_readers(&self) {
        self.requests.came().signal(&self.futex);
    }

    /// Brings some pages of one granule that are wished to come. Those that are to leave go first, since that makes the frames.
    fn bring_wished(&self, core: usize, buffer: &mut [PageBuf]) -> bool {
        if self.wishes.any_leave() || !self.wishes.any_come() {
            return false;
        }
        let Some((granule, bits)) = self.wishes.take_coming() else { return false };
        for run in runs(granule, bits) {
            // First, since that needs no read, and their stages are needed again.
            self.quiet.gate.enter(&self.futex, core);
            self.bring_from_stages(run.first, run.pages.into(), core);
            self.quiet.gate.leave(&self.futex, core);
            self.bring_ahead(run, core, buffer);
        }
        true
    }

    /// Brings those of the pages that are in their stages, as long as there are spare frames. As old ones: nobody has used them.
    fn bring_from_stages(&self, first: Page, pages: u64, core: usize) {
        if self.ablated.rescue {
            return;
        }
        for page in (0..pages).map(|n| first.plus(n)) {
            let Some(at) = self.page(page).filter(|at| at.word.load().state() == State::Leaving) else { continue };
            if self.frames().take_spare(core, 1, self.budget.spare_mark()) == 0 {
                self.stats.add(core, Count::Missed, 1);
                break;
            }
            self.kernel.interleave();
            at.granule.touch();
            let came = match at.word.begin_fault(Access::Read, false) {
                BeginFault::Owned { was } => {
                    let leaving = was.state() == State::Leaving;
                    let chances = self.policy.chances(Came::Fetched);
                    let came = leaving && self.unstage(page, at, was, Access::Read, chances, core).is_ok();
                    if !came {
                        self.restore(page, at.word, was);
                    }
                    came
                }
                _ => false,
            };
            if came {
                self.stats.add(core, Count::Prefetched, 1);
                self.tell(Kind::Fetched, 1, page, 1);
            } else {
                self.give_frames(core, 1);
            }
        }
        self.nudge_evictors();
    }

    fn bring_ahead(&self, ahead: Ahead, core: usize, buffer: &mut [PageBuf]) {
        let step = u64::from(ahead.step.unsigned_abs());
        let last = u64::from(ahead.pages - 1) * step;
        // Upwards in any case, because slots go upwards.
        let first = match ahead.step {
            1.. => ahead.first,
            _ => Page(ahead.first.0.saturating_sub(last)),
        };
        let mut n = 0;
        while n < u64::from(ahead.pages) {
            let left = (u64::from(ahead.pages) - n).min(buffer.len() as u64);
            self.quiet.gate.enter(&self.futex, core);
            let run = self.claim_ahead(core, first.plus(n * step), step, left);
            if let Some(run) = run {
                self.bring_run(run, core, &mut buffer[..run.count]);
            }
            self.quiet.gate.leave(&self.futex, core);
            n += run.map_or(1, |run| run.count as u64);
        }
    }

    /// Takes the pages from `first` on, at most `most`, that lie side by side in swap space.
    fn claim_ahead(&self, core: usize, first: Page, step: u64, most: u64) -> Option<Run> {
        let slot_of = |page: Page| {
            let word = self.page(page)?.word.load();
            word.slot().filter(|_| word.state() == State::Out)
        };
        let slot = slot_of(first)?;
        let is_there = |&n: &u64| slot_of(first.plus(n * step)) == Some(slot.plus(n));
        let wanted = 1 + (1..most).take_while(is_there).count() as u64;
        let count = self.claim_each(core, wanted, |n| Some((first.plus((n - 1) * step), slot.plus(n - 1)))) as usize;
        self.nudge_evictors();
        (count > 0).then_some(Run { first, step, slot, count })
    }

    fn bring_run(&self, run: Run, core: usize, buffer: &mut [PageBuf]) {
        let transfer = self.transfer(run.slot, core);
        let read = self.backend.read_ahead(run.slot, buffer);
        self.transferred(transfer);
        if let Err(why) = read {
            self.note_trouble(core, Trouble::Read(run.slot, why));
            (0..run.count).for_each(|n| self.drop_run(run.page(n), core, run.slot.plus(n as u64), 1));
            return;
        }
        if run.step == 1 {
            let pages = PageRange { start: run.first, end: run.page(run.count) };
            for part in pages.by_granule() {
                let from = (part.start.0 - run.first.0) as usize;
                self.map_part(part.start, run.slot.plus(from as u64), core, &buffer[from..from + part.len() as usize]);
            }
        } else {
            (0..run.count).for_each(|n| self.map_part(run.page(n), run.slot.plus(n as u64), core, &buffer[n..=n]));
        }
    }

    /// Maps pages of one granule.
    fn map_part(&self, first: Page, slot: Slot, core: usize, bytes: &[PageBuf]) {
        let Some(at) = self.page(first) else { unreachable!("{first:?} vanished while it was owned") };
        self.map_run(first, core, at.granule, slot, bytes);
        self.list_granule(at.granule, first, core);
    }
}
