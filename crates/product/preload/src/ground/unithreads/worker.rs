//! The fetches of one worker.
//!
//! A fault that is under way is in one of three places, which say which thread takes it on:
//!
//! | it waits for | is in | taken on by |
//! |---|---|---|
//! | a read | the worker's ring | [`Worker::completed`] |
//! | a time | `due`, in order | [`Worker::tick`] |
//! | a frame, a page in other hands, the end of a fork | `polled`, first come first served | [`Worker::tick`] |
//!
//! All is the worker's thread's. The SIGBUS handler comes in between only where the scheduler says that it is not at work itself (`begin`), and a fault is never
//! raised in here: all of this memory is our own.

use super::resume;
use super::{Record, Table};
use crate::ground::report;
use crate::ground::runtime::{Runtime, runtime};
use crate::ground::thread::{self, Thread};
use core::cell::{Cell, RefCell};
use farshore_core::joint::{Desk, Scheduler};
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Clock, PageBuf};
use farshore_engine::fault::resolve::{Failure, Resolved};
use farshore_engine::fault::unwaited::{ALL_CAME, Unwaited, Wants};
use farshore_sys::raw::{Errno, syscall};
use farshore_sys::signal::{self, How, Reg, SigSet, UContext};
use std::collections::VecDeque;

/// Faults that one tick looks at.
const LOOKS: usize = 64;
/// How long to sleep in place before looking again, in ns.
const PATIENCE_NS: u64 = 100_000;

/// What became of a fault.
pub enum Way {
    /// It is over.
    Served(Result<Resolved, Failure>),
    /// The handler returns to the unithread's wait.
    Parked,
    /// The thread has to wait for it as any other.
    InPlace,
}

/// See the module's head.
#[derive(Debug)]
pub struct Worker {
    scheduler: Scheduler,
    table: &'static Table,
    desk: Desk,
    due: RefCell<VecDeque<(u64, u32)>>,
    polled: RefCell<VecDeque<u32>>,
    /// In `settle`, which must not begin again.
    settling: Cell<bool>,
}

impl Worker {
    pub fn new(scheduler: Scheduler, table: &'static Table) -> Worker {
        // Each unithread has one fault at most: nothing grows at work.
        let room = table.count as usize;
        Worker {
            scheduler,
            table,
            desk: Desk::new(),
            due: RefCell::new(VecDeque::with_capacity(room)),
            polled: RefCell::new(VecDeque::with_capacity(room)),
            settling: Cell::new(false),
        }
    }

    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    pub fn assert_idle(&self) {
        assert!(self.desk.under_way.get() == 0, "a worker ends with {} fetches under way", self.desk.under_way.get());
    }

    fn with<R>(&self, index: u32, f: impl FnOnce(&mut Record, &mut [PageBuf]) -> R) -> R {
        // SAFETY: by the worker's thread (module's head); what is run in here asks for no record.
        unsafe { self.table.with(index, f) }
    }

    /// In the SIGBUS handler: serves the fault, or begins to and has the unithread wait.
    pub fn serve(
        &self,
        runtime: &Runtime,
        thread: &Thread,
        page: Page,
        access: Access,
        protected: bool,
        context: &mut UContext,
    ) -> Way {
        // Our own code, which copies from or to the program's memory, may have something in its hands.
        if crate::ground::text::is_ours(context.get(Reg::Rip)) || !resume::can_save(context) {
            return Way::InPlace;
        }
        let (instruction, stack, mask) = (context.get(Reg::Rip), context.get(Reg::Rsp), context.mask().0);
        // SAFETY: `attach`'s condition.
        let token = unsafe { (self.scheduler.begin)(self.scheduler.worker, instruction, stack, mask) };
        if token == 0 {
            return Way::InPlace;
        }
        let index = self.unithread(token);
        let fault = Unwaited::new(page, access, protected, thread.core(), runtime.engine.clock.now_ns());
        let begun = self.with(index, |record, _| {
            if let Some(other) = record.page() {
                report::abort(format_args!("bug: unithread {index} touches {page:?} while it waits for {other:?}"));
            }
            let in_place = record.in_place.take() == Some(page);
            record.token = token;
            record.fault = if in_place { None } else { Some(fault) };
            !in_place
        });
        if !begun {
            return Way::InPlace;
        }
        match self.take_on(runtime, index, 0) {
            Some(served) => Way::Served(served),
            None => {
                self.desk.under_way.set(self.desk.under_way.get() + 1);
                resume::leave_to(context, token);
                Way::Parked
            }
        }
    }

    fn unithread(&self, token: u64) -> u32 {
        // SAFETY: `attach`'s condition.
        unsafe { (self.scheduler.unithread)(self.scheduler.worker, token) }
    }

    /// Takes a fault on. `None`: it waits, in its place.
    fn take_on(&self, runtime: &Runtime, index: u32, answer: i32) -> Option<Result<Resolved, Failure>> {
        self.with(index, |record, buffer| {
            let served = self.step(runtime, index, record.fault.as_mut()?, buffer, answer)?;
            record.fault = None;
            Some(served)
        })
    }

    fn step(
        &self,
        runtime: &Runtime,
        index: u32,
        fault: &mut Unwaited,
        buffer: &mut [PageBuf],
        mut answer: i32,
    ) -> Option<Result<Resolved, Failure>> {
        loop {
            match runtime.engine.go_on(fault, buffer, answer) {
                Wants::Served(result) => return Some(result),
                Wants::Read { fd, offset, into } => {
                    let pages = &mut buffer[into];
                    if self.begin_read(fd, offset, pages, index) {
                        return None;
                    }
                    answer = read_now(fd, offset, pages);
                }
                Wants::Due(ns) => {
                    self.put_due(ns, index);
                    return None;
                }
                Wants::Look => {
                    self.polled.borrow_mut().push_back(index);
                    self.note_polled();
                    return None;
                }
            }
        }
    }

    /// Whether the ring has taken the read.
    fn begin_read(&self, fd: i32, offset: u64, pages: &mut [PageBuf], index: u32) -> bool {
        let Scheduler { worker, read, .. } = self.scheduler;
        let bytes = size_of_val(pages) as u32;
        // SAFETY: `attach`'s condition; the pages stay until the completion, since the record waits for it.
        unsafe { read(worker, fd, offset, pages.as_mut_ptr().cast(), bytes, u64::from(index)) == 0 }
    }

    fn put_due(&self, ns: u64, index: u32) {
        let mut due = self.due.borrow_mut();
        // At the end as a rule: all fetches take as long.
        let place = due.iter().rposition(|&(other, _)| other <= ns).map_or(0, |before| before + 1);
        due.insert(place, (ns, index));
        self.desk.due_ns.set(due.front().map_or(u64::MAX, |&(first, _)| first));
    }

    fn note_polled(&self) {
        self.desk.polled.set(self.polled.borrow().len() as u32);
    }

    /// Takes a fault that was under way on; its unithread is ready when it is over.
    fn go_on(&self, runtime: &Runtime, index: u32, answer: i32) {
        let page = self.with(index, |record, _| record.page());
        let Some(served) = self.take_on(runtime, index, answer) else { return };
        self.desk.under_way.set(self.desk.under_way.get() - 1);
        // The access is made again. What could not be had is asked for in place then, which says why.
        let token = self.with(index, |record, _| {
            record.in_place = page.filter(|_| served.is_err());
            record.token
        });
        // SAFETY: `attach`'s condition.
        unsafe { (self.scheduler.complete)(self.scheduler.worker, token) };
    }

    /// A read of unithread `index`'s has ended.
    pub fn completed(&self, index: u32, result: i32) {
        if let Some(runtime) = runtime() {
            self.go_on(runtime, index, result);
        }
    }

    /// Takes on what waits for a time that is over, or for something that may have happened.
    pub fn tick(&self) {
        let Some(runtime) = runtime() else { return };
        let now = runtime.engine.clock.now_ns();
        while let Some(index) = self.next_due(now) {
            self.go_on(runtime, index, ALL_CAME);
        }
        let looks = self.polled.borrow().len().min(LOOKS);
        for _ in 0..looks {
            let Some(index) = self.polled.borrow_mut().pop_front() else { break };
            let may = self.with(index, |record, _| record.fault.as_ref().is_some_and(|fault| runtime.engine.may_go_on(fault)));
            if !may {
                self.polled.borrow_mut().push_back(index);
                continue;
            }
            let before = self.polled.borrow().len();
            self.go_on(runtime, index, 0);
            if self.polled.borrow().len() > before {
                // What the first wants is not there for the others either, most likely.
                break;
            }
        }
        self.note_polled();
    }

    fn next_due(&self, now: u64) -> Option<u32> {
        let mut due = self.due.borrow_mut();
        let first = due.front().is_some_and(|&(ns, _)| ns <= now).then(|| due.pop_front()).flatten();
        self.desk.due_ns.set(due.front().map_or(u64::MAX, |&(next, _)| next));
        first.map(|(_, index)| index)
    }

    /// Faults that others may wait for.
    fn owners(&self) -> u32 {
        self.desk.under_way.get() - self.desk.polled.get()
    }

    /// Ends the fetches that others may wait for: the thread is about to wait in the kernel, perhaps for one of them.
    #[inline]
    pub fn settle(&self) {
        if self.desk.under_way.get() != 0 && !self.settling.get() {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&self) {
        self.settling.set(true);
        // The scheduler makes system calls, and this may be one.
        let mask = signal::sigprocmask(How::Block, SigSet(!thread::pending::OURS.0));
        thread::nested(|| {
            while self.owners() > 0 {
                // SAFETY: `attach`'s condition.
                if unsafe { (self.scheduler.progress)(self.scheduler.worker, PATIENCE_NS) } == 0 {
                    // The scheduler's own system call: it never waits for long, and its fetches go on after it.
                    break;
                }
            }
        });
        signal::sigprocmask(How::Set, mask);
        self.settling.set(false);
    }

    /// A unithread waits for its token.
    pub fn park(&self, token: u64) {
        // SAFETY: `attach`'s condition.
        unsafe { (self.scheduler.park)(self.scheduler.worker, token) };
    }
}

/// The ring takes nothing: reads here and now.
fn read_now(fd: i32, offset: u64, into: &mut [PageBuf]) -> i32 {
    const PREAD64: u64 = 17;
    let bytes = size_of_val(into) as u64;
    // SAFETY: writes to the buffer, which is ours.
    let read = unsafe { syscall(PREAD64, [fd as u64, into.as_mut_ptr() as u64, bytes, offset, 0, 0]) };
    i32::try_from(read).unwrap_or(-Errno::EIO.0)
}
