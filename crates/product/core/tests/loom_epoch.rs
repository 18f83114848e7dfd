//! The protection epoch: a range of pages is write-protected with one call while other threads fault in it.
//!
//! # The protocol
//!
//! (The engine's `evict::select` and `fault::resolve`.) Evictor, for one granule, which no other evictor has at the
//! time: victims `begin_evict` → **begin** (epoch odd) → other pages `expect_protection`, those that answer `Avoid`
//! stay out of the range → the kernel write-protects the range → **end** (epoch even) → copy the victims' bytes, unmap
//! them, release.
//!
//! Fault: `begin_fault` → read the epoch → map writable (or unprotect) → read the epoch → release as dirty, `protected`
//! when either reading is odd or they differ.
//!
//! Both sides write one word and then read the other's (the evictor: epoch, then page word; the fault: page word, then
//! epoch). At least one must see the other, so there is a `fence(SeqCst)` between the two on either side.
//!
//! # What must hold
//!
//! * A page that is pinned for writing is writable for the kernel, as long as it is pinned.
//! * No write is lost: what a thread wrote is in the page, or in the slot that the page went to.
#![cfg(loom)]

use farshore_core::page::{Access, Page};
use farshore_core::wait::WaitTable;
use farshore_core::word::{AtomicWord, BeginEvict, BeginFault, Claim, Collateral, Pin, Release, State, Word};
use farshore_models::explore;
use farshore_models::kernel::{KernelPage, LoomFutex, Mapping, slot};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

/// How a fault judges the epoch.
#[derive(Clone, Copy, PartialEq)]
enum Judge {
    /// Both readings, as the module head says.
    Both,
    /// The first reading only.
    First,
    /// Not at all: the canary.
    Never,
}

/// How the epoch tells that a range is being protected.
#[derive(Clone, Copy, PartialEq)]
enum Count {
    /// Odd while an evictor is at it: good for one evictor a granule.
    Parity,
    /// Evictors at it in the low half, ranges done in the high half: good for many.
    Evictors,
}

#[derive(Clone, Copy)]
struct Rules {
    judge: Judge,
    count: Count,
    fences: bool,
}

const RULES: Rules = Rules { judge: Judge::Both, count: Count::Parity, fences: true };

const EVICTORS: u32 = 0xffff;

/// One page, as we, the kernel and the swap space see it.
struct ModelPage {
    word: AtomicWord,
    kernel: KernelPage,
    slot: UnsafeCell<u32>,
}

struct Granule {
    rules: Rules,
    epoch: AtomicU32,
    pages: Vec<ModelPage>,
    waits: WaitTable,
    futex: LoomFutex,
}

// SAFETY: `slot` is touched by the owner of the page word only; loom's cell fails the model otherwise.
unsafe impl Sync for Granule {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Granule {}

/// What a page is at the start.
#[derive(Clone, Copy)]
enum Start {
    Out,
    Clean,
    Dirty,
}

/// A bit that every page starts with, so that a page that comes back empty is seen.
const FIRST: u32 = 1;

fn model_page(start: Start) -> ModelPage {
    let word = AtomicWord::new(Word::UNTOUCHED);
    assert!(matches!(word.claim(), Claim::Owned { .. }));
    let (mapped, writable) = match start {
        Start::Out => (false, false),
        Start::Clean => (true, false),
        Start::Dirty => (true, true),
    };
    let _ = word.release(match start {
        Start::Out => Release::Out { slot: slot(1) },
        Start::Clean => Release::Clean { slot: slot(1), chances: 0 },
        Start::Dirty => Release::Dirty { chances: 0, guessed: false, protected: false },
    });
    let bytes = if mapped { FIRST } else { 0 };
    ModelPage { word, kernel: KernelPage::new(Mapping { mapped, writable, bytes }), slot: UnsafeCell::new(FIRST) }
}

impl ModelPage {
    fn read_slot(&self) -> u32 {
        // SAFETY: the caller owns the page word, which loom's cell checks.
        self.slot.with(|p| unsafe { *p })
    }
    fn write_slot(&self, bytes: u32) {
        // SAFETY: as in `read_slot`.
        self.slot.with_mut(|p| unsafe { *p = bytes });
    }
}

impl Granule {
    fn new(rules: Rules, pages: &[Start]) -> Arc<Granule> {
        Arc::new(Granule {
            rules,
            epoch: AtomicU32::new(0),
            pages: pages.iter().map(|&p| model_page(p)).collect(),
            waits: WaitTable::new(),
            futex: LoomFutex::new(),
        })
    }

    fn fence(&self) {
        if self.rules.fences {
            fence(Ordering::SeqCst);
        }
    }

    /// One round of an evictor. Victims are pages that `victim` says yes to.
    fn evict(&self, victim: impl Fn(usize) -> bool) {
        let mut owned = Vec::new();
        let mut range = Vec::new();
        for page in self.pages.iter().enumerate().filter(|(i, _)| victim(*i)).map(|(_, page)| page) {
            if let BeginEvict::Owned { was } = page.word.begin_evict(false) {
                owned.push((page, was));
                range.push(page);
            }
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.fence();
        for page in self.pages.iter().enumerate().filter(|(i, _)| !victim(*i)).map(|(_, page)| page) {
            if page.word.expect_protection() == Collateral::Fine {
                range.push(page);
            }
        }
        // What is left out splits the range; within it the kernel goes page by page.
        for page in range {
            page.kernel.step(|k| k.writable = false);
        }
        let end = if self.rules.count == Count::Parity { 1 } else { EVICTORS };
        self.epoch.fetch_add(end, Ordering::AcqRel);
        for (page, was) in owned {
            let bytes = page.kernel.step(|k| k.bytes);
            if was.slot().is_none() {
                page.write_slot(bytes);
            }
            let lost = page.kernel.step(core::mem::take);
            assert_eq!(lost.bytes, bytes, "a write came in after the copy");
            self.release(page, Release::Out { slot: slot(1) });
        }
    }

    // All pages wait in one bucket: a wake-up too many does no harm.
    fn release(&self, page: &ModelPage, to: Release) {
        let outcome = page.word.release(to);
        self.waits.released(&self.futex, Page(0), outcome);
    }

    fn under_way(&self, epoch: u32) -> bool {
        match self.rules.count {
            Count::Parity => epoch % 2 == 1,
            Count::Evictors => epoch & EVICTORS != 0,
        }
    }

    fn judge(&self, before: u32, after: u32) -> bool {
        match self.rules.judge {
            Judge::Both => self.under_way(before) || before != after,
            Judge::First => self.under_way(before),
            Judge::Never => false,
        }
    }

    /// A write fault, from the word to the release.
    fn fault(&self, page: &ModelPage, protected: bool) {
        match page.word.begin_fault(Access::Write, protected) {
            BeginFault::Owned { was } => {
                self.fence();
                let before = self.epoch.load(Ordering::Acquire);
                if was.state() == State::Resident {
                    page.kernel.step(|k| k.writable = true);
                } else {
                    let bytes = page.read_slot();
                    page.kernel.step(|k| *k = Mapping { mapped: true, writable: true, bytes });
                }
                let after = self.epoch.load(Ordering::Acquire);
                let protected = self.judge(before, after);
                self.release(page, Release::Dirty { chances: 0, guessed: false, protected });
            }
            BeginFault::Wait => {
                if let Some(ticket) = self.waits.announce(Page(0), &page.word) {
                    self.waits.sleep(&self.futex, ticket);
                }
            }
            BeginFault::Satisfied => {}
            BeginFault::Foreign => unreachable!("nobody made it foreign"),
        }
    }

    /// The program writes.
    fn write(&self, page: usize, bit: u32) {
        let page = &self.pages[page];
        loop {
            let tried = page.kernel.step(|k| {
                if k.writable {
                    k.bytes |= bit;
                    Ok(())
                } else {
                    Err(k.mapped)
                }
            });
            match tried {
                Ok(()) => return,
                Err(protected) => self.fault(page, protected),
            }
        }
    }

    /// A system call writes: pin, let the kernel write, unpin.
    fn system_call(&self, page: usize, bit: u32) {
        let page = &self.pages[page];
        loop {
            match page.word.pin(Access::Write) {
                Pin::Pinned => break,
                Pin::Fault => {
                    self.fault(page, page.word.load().state() == State::Resident);
                    // While a range is being protected the fault cannot promise anything: try again.
                    if page.word.load().protected() {
                        thread::yield_now();
                    }
                }
                Pin::Foreign => unreachable!("nobody made it foreign"),
            }
        }
        for _ in 0..2 {
            page.kernel.step(|k| {
                assert!(k.mapped && k.writable, "a system call would have failed with EFAULT: {k:?}");
                k.bytes |= bit;
            });
        }
        page.word.unpin();
    }

    /// Two system calls of a thread that keeps its pin from the one to the other: the second looks at the word, and is made by the pin that
    /// is there. With `unpinned`, it gives the pin up in between and the second call takes the word's look for a pin all the same: the canary.
    fn two_calls_by_one_pin(&self, page: usize, bit: u32, unpinned: bool) {
        let page = &self.pages[page];
        while page.word.pin(Access::Write) != Pin::Pinned {
            self.fault(page, page.word.load().state() == State::Resident);
            if page.word.load().protected() {
                thread::yield_now();
            }
        }
        page.kernel.step(|k| assert!(k.mapped && k.writable, "a system call would have failed with EFAULT: {k:?}"));
        if unpinned {
            page.word.unpin();
        }
        thread::yield_now();
        let now = page.word.load();
        let looks_well = now.state() == State::Resident && now.slot().is_none() && !now.protected();
        if if unpinned { looks_well } else { page.word.is_pinned_for(Access::Write) } {
            for _ in 0..2 {
                page.kernel.step(|k| {
                    assert!(k.mapped && k.writable, "a system call would have failed with EFAULT: {k:?}");
                    k.bytes |= bit;
                });
            }
        } else {
            self.system_call(0, bit);
        }
        if !unpinned {
            page.word.unpin();
        }
    }

    /// Where the page's bytes are in the end must be all that was written.
    fn must_hold(&self, page: usize, bits: u32) {
        let page = &self.pages[page];
        let word = page.word.load();
        let bytes = match word.state() {
            State::Resident => page.kernel.step(|k| k.bytes),
            State::Out => page.read_slot(),
            _ => unreachable!("{word:?} after all threads ended"),
        };
        assert_eq!(bytes, FIRST | bits, "{word:?}");
        assert_eq!(word.pins(), 0);
    }
}

fn spawn(granule: &Arc<Granule>, act: impl FnOnce(&Granule) + 'static) -> thread::JoinHandle<()> {
    let granule = granule.clone();
    thread::spawn(move || act(&granule))
}

/// A system call writes to a page that an evictor protects as a neighbour, `rounds` times.
fn neighbour(rules: Rules, start: Start, rounds: u32) {
    explore(3, move || {
        let granule = Granule::new(rules, &[start]);
        let evictor = spawn(&granule, move |g| (0..rounds).for_each(|_| g.evict(|_| false)));
        let caller = spawn(&granule, |g| g.system_call(0, 2));
        [evictor, caller].into_iter().for_each(|t| t.join().unwrap());
        granule.must_hold(0, 2);
    });
}

#[test]
fn a_neighbour_that_is_out() {
    neighbour(RULES, Start::Out, 1);
}

#[test]
fn a_neighbour_that_is_clean() {
    neighbour(RULES, Start::Clean, 1);
}

#[test]
fn a_neighbour_that_is_dirty() {
    neighbour(RULES, Start::Dirty, 1);
}

#[test]
fn a_neighbour_in_two_rounds() {
    neighbour(RULES, Start::Out, 2);
}

/// A write fault that comes late, on a page that a system call has pinned since, may end while an evictor is at
/// work and so call the page protected. The next round must not believe that it may protect it.
fn late_fault(rules: Rules) {
    explore(3, move || {
        let granule = Granule::new(rules, &[Start::Dirty]);
        let page = &granule.pages[0];
        assert_eq!(page.word.pin(Access::Write), Pin::Pinned);
        let late = spawn(&granule, |g| g.fault(&g.pages[0], true));
        let evictor = spawn(&granule, |g| (0..2).for_each(|_| g.evict(|_| false)));
        [late, evictor].into_iter().for_each(|t| t.join().unwrap());
        page.kernel.step(|k| assert!(k.mapped && k.writable, "the system call would have failed with EFAULT: {k:?}"));
        page.word.unpin();
    });
}

#[test]
fn a_late_fault_on_a_pinned_page() {
    late_fault(RULES);
}

/// The page is the victim while these threads use it.
fn victim(preemptions: usize, rules: Rules, start: Start, users: &'static [fn(&Granule)], bits: u32) {
    explore(preemptions, move || {
        let granule = Granule::new(rules, &[start]);
        let mut threads = vec![spawn(&granule, |g| g.evict(|_| true))];
        threads.extend(users.iter().map(|user| spawn(&granule, user)));
        threads.into_iter().for_each(|t| t.join().unwrap());
        granule.must_hold(0, bits);
    });
}

const WRITE: fn(&Granule) = |g| g.write(0, 2);
const SYSTEM_CALL: fn(&Granule) = |g| g.system_call(0, 4);

#[test]
fn a_victim_loses_no_write_of_the_program() {
    for start in [Start::Out, Start::Clean, Start::Dirty] {
        victim(3, RULES, start, &[WRITE], 2);
    }
}

#[test]
fn a_victim_loses_no_write_of_a_system_call() {
    for start in [Start::Out, Start::Clean, Start::Dirty] {
        victim(3, RULES, start, &[SYSTEM_CALL], 4);
    }
}

#[test]
fn a_dirty_victim_that_both_write() {
    victim(2, RULES, Start::Dirty, &[WRITE, SYSTEM_CALL], 2 | 4);
}

#[test]
fn a_victim_and_its_neighbour() {
    explore(3, || {
        let granule = Granule::new(RULES, &[Start::Dirty, Start::Out]);
        let evictor = spawn(&granule, |g| g.evict(|i| i == 0));
        let caller = spawn(&granule, |g| {
            g.write(0, 2);
            g.system_call(1, 2);
        });
        [evictor, caller].into_iter().for_each(|t| t.join().unwrap());
        granule.must_hold(0, 2);
        granule.must_hold(1, 2);
    });
}

/// The pin outlives its call, while an evictor wants the page, or protects its neighbours, and a fault on it comes late.
fn kept(start: Start, is_victim: bool, late: bool, unpinned: bool) {
    explore(2, move || {
        let granule = Granule::new(RULES, &[start]);
        let mut threads = vec![spawn(&granule, move |g| (0..2).for_each(|_| g.evict(|_| is_victim)))];
        threads.push(spawn(&granule, move |g| g.two_calls_by_one_pin(0, 2, unpinned)));
        if late {
            threads.push(spawn(&granule, |g| g.fault(&g.pages[0], true)));
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        granule.must_hold(0, 2);
    });
}

#[test]
fn a_pin_that_outlives_its_call_is_as_good_for_the_next() {
    for start in [Start::Out, Start::Clean, Start::Dirty] {
        kept(start, true, false, false);
        kept(start, false, false, false);
    }
    kept(Start::Dirty, true, true, false);
    kept(Start::Dirty, false, true, false);
}

#[test]
#[should_panic(expected = "EFAULT")]
fn canary_a_look_at_the_word_without_a_pin_is_caught() {
    kept(Start::Dirty, true, false, true);
}

/// With the fences the first reading is enough; the second costs nothing and is kept for the day when it is not.
#[test]
fn the_first_reading_of_the_epoch_is_enough() {
    let rules = Rules { judge: Judge::First, ..RULES };
    neighbour(rules, Start::Out, 2);
    neighbour(rules, Start::Clean, 2);
}

/// Two evictors at work in one granule.
fn two_evictors(rules: Rules) {
    explore(3, move || {
        let granule = Granule::new(rules, &[Start::Out]);
        let evict = |g: &Granule| g.evict(|_| false);
        let caller = spawn(&granule, |g| g.system_call(0, 2));
        [spawn(&granule, evict), spawn(&granule, evict), caller].into_iter().for_each(|t| t.join().unwrap());
        granule.must_hold(0, 2);
    });
}

#[test]
fn two_evictors_in_one_granule_need_a_count() {
    two_evictors(Rules { count: Count::Evictors, ..RULES });
}

/// Two evictors make an odd epoch even again.
#[test]
#[should_panic(expected = "EFAULT")]
fn canary_two_evictors_with_a_parity_are_caught() {
    two_evictors(RULES);
}

#[test]
#[should_panic(expected = "EFAULT")]
fn canary_a_fault_that_ignores_the_epoch_is_caught() {
    neighbour(Rules { judge: Judge::Never, ..RULES }, Start::Out, 1);
}

#[test]
#[should_panic(expected = "EFAULT")]
fn canary_the_epoch_without_fences_is_caught() {
    neighbour(Rules { fences: false, ..RULES }, Start::Out, 1);
}
