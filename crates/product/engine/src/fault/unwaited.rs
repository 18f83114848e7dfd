//! A fault that no thread waits for: its thread does something else until the fault can go on (delivery *yield*; Adios,
//! section 3.2).
//!
//! The steps are those of every fault ([`super::resolve`]). What a step waits for is handed to the caller, who comes back with
//! [`Engine::go_on`] when it is there.
//!
//! ```text
//!  new ─▶ go_on ─▶ Gate ─────────── until it is open ──────┐
//!          │  ├──▶ Frame, Page ──── until `may_go_on` ─────┤ nothing is owned: the gate was left, the frame went back
//!          │  ├──▶ Read, Due ────── until it has come ─────┤ the page and a frame are owned, inside of the gate
//!          │  └──▶ Served                                  │
//!          └───────────────────────────────────────────────┘
//! ```
//!
//! A caller that has a fault at [`Wants::Read`] or [`Wants::Due`] keeps others waiting: threads that want the page, and a fork.
//! So the caller must come back when the read has ended, whatever else it does, and may not wait for either before that
//! ([`Unwaited::owns`]).

use super::resolve::{FRAME_PATIENCE_NS, Failure, Fault, Resolved, Step};
use crate::Engine;
use crate::health::Transfer;
use crate::stats::Count;
use core::ops::Range;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Clock, IoError, PageBuf, ReadBegun, Reads, World};
use farshore_core::wait::Ticket;
use farshore_core::word::Slot;

/// How often the caller asks the kernel for the same bytes, if a signal or an end of the file cuts its call off. What comes of
/// that is one read of the fault's, which counts for [`READ_TRIES`](super::resolve::READ_TRIES).
const CALL_TRIES: u32 = 3;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ECANCELED: i32 = 125;

/// One fault on its way.
#[derive(Debug)]
pub struct Unwaited {
    fault: Fault,
    at: At,
    since_ns: u64,
}

/// Where the fault is.
#[derive(Debug)]
enum At {
    /// Outside the gate, owning no page.
    Outside(Option<Blocked>),
    /// Inside the gate. The next step gets this result.
    Inside(Result<(), IoError>),
    /// Inside the gate, and a transfer is under way.
    Transfer(Under),
}

/// What keeps the fault outside.
#[derive(Clone, Copy, Debug)]
enum Blocked {
    Gate,
    Page(Ticket),
    Frame(u32),
    Write(u32),
}

/// A transfer of the `pages` slots from `slot` on: `done` of them are there, and the caller reads `asked` more. 0: no read
/// is under way yet.
#[derive(Debug)]
struct Under {
    slot: Slot,
    pages: usize,
    done: usize,
    asked: usize,
    tries: u32,
    noted: Transfer,
}

/// What a fault waits for.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wants {
    /// Nothing: the fault is over. The result is as from [`Engine::resolve`].
    Served(Result<Resolved, Failure>),
    /// That the caller reads these pages of the buffer from a file, and says how many bytes came.
    Read {
        /// The descriptor.
        fd: i32,
        /// Bytes from the file's beginning.
        offset: u64,
        /// Pages of the buffer.
        into: Range<usize>,
    },
    /// That the monotonic clock says this, in ns.
    Due(u64),
    /// That [`Engine::may_go_on`].
    Look,
}

impl Unwaited {
    /// A fault that has just arrived on `core`.
    pub fn new(page: Page, access: Access, protected: bool, core: usize, now_ns: u64) -> Unwaited {
        Unwaited { fault: Fault::new(page, access, protected, core, now_ns), at: At::Outside(None), since_ns: now_ns }
    }

    /// The page.
    pub fn page(&self) -> Page {
        self.fault.page
    }

    /// Whether others may wait for this fault: it owns a page, and is inside the gate.
    pub fn owns(&self) -> bool {
        !matches!(self.at, At::Outside(_))
    }
}

impl<W: World> Engine<W> {
    /// Takes a fault on until it waits for something. `answer` is looked at after [`Wants::Read`]: bytes read, or a negative
    /// errno. `buffer` is where the fault fetches to, the same at each call.
    pub fn go_on(&self, fault: &mut Unwaited, buffer: &mut [PageBuf], answer: i32) -> Wants {
        loop {
            let wants = match &mut fault.at {
                At::Outside(_) => self.go_in(fault),
                At::Inside(read) => {
                    let read = *read;
                    self.step_on(fault, buffer, read)
                }
                At::Transfer(under) if under.asked > 0 => match self.take_answer(under, buffer, answer) {
                    Some(result) => self.end_transfer(fault, result),
                    None => None,
                },
                At::Transfer(under) => match self.ask(under, buffer) {
                    Ok(wants) => Some(wants),
                    Err(result) => self.end_transfer(fault, result),
                },
            };
            if let Some(wants) = wants {
                return wants;
            }
        }
    }

    /// Whether a fault at [`Wants::Look`] may be able to go on.
    pub fn may_go_on(&self, fault: &Unwaited) -> bool {
        match fault.at {
            At::Outside(Some(Blocked::Gate)) => !self.quiet.gate.is_closed(),
            At::Outside(Some(Blocked::Page(ticket))) => self.waits.is_over(ticket),
            At::Outside(Some(Blocked::Frame(prepared))) => {
                self.budget.came().happened_since(prepared) || self.waited(fault) >= FRAME_PATIENCE_NS
            }
            At::Outside(Some(Blocked::Write(prepared))) => {
                self.evictors.written.happened_since(prepared) || self.waited(fault) >= FRAME_PATIENCE_NS
            }
            At::Outside(None) | At::Inside(_) | At::Transfer(_) => true,
        }
    }

    fn waited(&self, fault: &Unwaited) -> u64 {
        self.clock.now_ns().saturating_sub(fault.since_ns)
    }

    fn go_in(&self, fault: &mut Unwaited) -> Option<Wants> {
        if let At::Outside(Some(Blocked::Frame(_))) = fault.at {
            let waited = self.waited(fault);
            self.stats.add(fault.fault.core, Count::FrameWaitNs, waited);
            if waited >= FRAME_PATIENCE_NS {
                self.evictors.pace.raise_alarm(&self.futex);
            }
        }
        if let At::Outside(Some(Blocked::Page(_))) = fault.at {
            self.note_page_wait(fault.fault.core, self.waited(fault));
        }
        if let At::Outside(Some(Blocked::Write(_))) = fault.at {
            self.stats.add(fault.fault.core, Count::WriteWaitNs, self.waited(fault));
        }
        if self.quiet.gate.try_enter(&self.futex, fault.fault.core) {
            fault.at = At::Inside(Ok(()));
            return None;
        }
        fault.at = At::Outside(Some(Blocked::Gate));
        Some(Wants::Look)
    }

    fn step_on(&self, fault: &mut Unwaited, buffer: &mut [PageBuf], read: Result<(), IoError>) -> Option<Wants> {
        let (blocked, wants) = match self.step(&mut fault.fault, buffer, read) {
            Step::Read { slot, pages } => {
                let noted = self.transfer(slot, fault.fault.core);
                fault.at = At::Transfer(Under { slot, pages, done: 0, asked: 0, tries: 0, noted });
                return None;
            }
            Step::Done => (None, Wants::Served(Ok(Resolved::Done))),
            Step::Foreign => (None, Wants::Served(Ok(Resolved::Foreign))),
            Step::Failed(why) => (None, Wants::Served(Err(why))),
            Step::WaitPage(ticket) => (Some(Blocked::Page(ticket)), Wants::Look),
            Step::WaitFrame(prepared) => (Some(Blocked::Frame(prepared)), Wants::Look),
            Step::WaitWrite(prepared) => (Some(Blocked::Write(prepared)), Wants::Look),
        };
        fault.at = At::Outside(blocked);
        fault.since_ns = self.clock.now_ns();
        if is_planted(Canary::Aside) && wants == Wants::Look {
            return Some(wants);
        }
        self.quiet.gate.leave(&self.futex, fault.fault.core);
        Some(wants)
    }

    /// Begins to read the pages that are not there yet. `Err`: the transfer has ended with this result.
    fn ask(&self, under: &mut Under, buffer: &mut [PageBuf]) -> Result<Wants, Result<(), IoError>> {
        let rest = &mut buffer[under.done..under.pages];
        match self.backend.begin_read(under.slot.plus(under.done as u64), rest) {
            ReadBegun::Over(result) => Err(result),
            ReadBegun::File { fd, offset, pages } => {
                under.asked = pages;
                Ok(Wants::Read { fd, offset, into: under.done..under.done + pages })
            }
            ReadBegun::Due(ns) => {
                under.asked = rest.len();
                // The number of pages that will have been asked for, when the time has come.
                Ok(Wants::Due(ns))
            }
        }
    }

    /// The pages that were asked for have come, or not. Returns the result, if the whole transfer is over.
    fn take_answer(&self, under: &mut Under, buffer: &mut [PageBuf], answer: i32) -> Option<Result<(), IoError>> {
        let asked = core::mem::take(&mut under.asked);
        let answer = if is_planted(Canary::Part) && answer >= 0 { ALL_CAME } else { answer };
        let came = if answer >= 0 { (answer as usize / PAGE_SIZE).min(asked) } else { 0 };
        if came == 0 {
            under.tries += 1;
            let again = matches!(-answer, EINTR | EAGAIN | ECANCELED) || answer >= 0;
            if again && under.tries < CALL_TRIES {
                return None;
            }
            let why = if answer >= 0 { IoError::Short } else { IoError::Device(-answer) };
            let pages = under.done..under.done + asked;
            return Some(self.backend.finish_read(under.slot.plus(under.done as u64), &mut buffer[pages], Err(why)));
        }
        let pages = under.done..under.done + came;
        let made = self.backend.finish_read(under.slot.plus(under.done as u64), &mut buffer[pages], Ok(()));
        under.done += came;
        under.tries = 0;
        (made.is_err() || under.done == under.pages).then_some(made)
    }

    fn end_transfer(&self, fault: &mut Unwaited, result: Result<(), IoError>) -> Option<Wants> {
        if let At::Transfer(under) = core::mem::replace(&mut fault.at, At::Inside(result)) {
            self.transferred(under.noted);
        }
        None
    }
}

/// The caller's answer to [`Wants::Due`] when that time is over: all pages that were asked for are there.
pub const ALL_CAME: i32 = i32::MAX;
