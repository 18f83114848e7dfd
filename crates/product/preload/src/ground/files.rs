//! Mappings of files that are managed (`--files`).
//!
//! Such a mapping is anonymous memory of Farshore's whose pages are read from the file ([`farshore_backend::mapped`],
//! `farshore_engine::files`). It shows what the file has as long as nobody changes the file, and a *read lease*
//! ([`farshore_sys::lease`]) sees to that:
//!
//! ```text
//!  mmap ─▶ the kernel's mapping ─▶ a lease? ─no────────────────────────────────────────────▶ it stays the kernel's
//!                                     │yes
//!                                     ▼
//!                        MANAGED (take.rs): anonymous memory over it, read from the file
//!                                     │  somebody opens the file for writing, or truncates it: the kernel makes him wait,
//!                                     │  and sends us a signal; or the program makes a call that only the kernel can serve
//!                                     ▼
//!                        HANDED BACK: the kernel's mapping of the file again ─▶ the lease is released
//! ```
//!
//! A page that the program has written (in a private mapping) has left the file: it stays managed memory when the rest is handed back.
//!
//! # What must hold
//!
//! 1. **No page is read from a file without a lease.** The lease comes before the first page is managed, and goes when the last page is
//!    the kernel's. A forked child takes leases of its own, and looks afterwards whether its parent's are still there: then nobody
//!    could write in between.
//! 2. **The signal is SIGSYS** ([`SIGNAL`]): threads of the program never have it blocked for long, and threads of ours always. So a
//!    thread of the program answers it, in the handler, with the address-space lock, which it cannot hold by then. No thread of
//!    ours is needed.
//! 3. **What the program may see is the same.** A call that does to a mapping of a file what it does not do to anonymous memory, and
//!    that we do not serve ourselves, has the pages handed back first (`memory`).
//!
//! All of this is used under the address-space lock; the mutex within it makes that safe.

mod take;

pub use take::{may_take, take_over};

use crate::ground::mappings::{Mapping, mappings};
use crate::ground::report;
use crate::ground::runtime::{Runtime, locked, runtime, uninterrupted};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_backend::mapped;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::word::{FilePage, Slot};
use farshore_sys::fd::{self, Fd};
use farshore_sys::lease;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{getpid, nr, syscall};
use farshore_sys::signal::{SIGSYS, SigInfo};
use farshore_sys::vm::map;

/// The signal by which the kernel says that somebody wants a file.
const SIGNAL: u32 = SIGSYS;

/// A file whose mappings are managed.
#[derive(Debug)]
struct Open {
    /// With the lease.
    fd: Fd,
    /// Device and number.
    id: (u64, u64),
    size: u64,
    direct: bool,
}

/// Managed pages that have the bytes of a file, unless the program has written them.
#[derive(Clone, Debug)]
struct Part {
    range: PageRange,
    file: usize,
    /// The page of the file that the first page has.
    first: u64,
    shared: bool,
}

impl Part {
    /// What of it lies in `range`.
    fn cut(&self, range: PageRange) -> Option<Part> {
        let (start, end) = (self.range.start.0.max(range.start.0), self.range.end.0.min(range.end.0));
        let first = self.first + start.saturating_sub(self.range.start.0);
        (start < end).then(|| Part { range: PageRange { start: Page(start), end: Page(end) }, first, ..self.clone() })
    }

    /// The slot that stands for its first page.
    fn slot(&self) -> Slot {
        match (FilePage { file: self.file, page: self.first }).slot() {
            Some(slot) => slot,
            None => unreachable!("{self:?} lies too far from the beginning of its file"),
        }
    }
}

#[derive(Debug)]
struct Table {
    /// By the number that slots have.
    files: Vec<Option<Open>>,
    /// In order.
    parts: Vec<Part>,
    /// Numbers of descriptors that files had. They stay ours, since the program has never had them: `/dev/null` has them meanwhile.
    parked: Vec<Fd>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { files: Vec::new(), parts: Vec::new(), parked: Vec::new() });
/// There may be managed pages of files. Written under the lock; without it a hint.
static SOME: AtomicBool = AtomicBool::new(false);
/// A lease was taken at some time.
static LEASED: AtomicBool = AtomicBool::new(false);
/// No more files are taken: a filter of the program may stop what that takes.
static DECLINED: AtomicBool = AtomicBool::new(false);

/// With all signals blocked: a handler of ours may come here too.
fn with<R>(f: impl FnOnce(&mut Table) -> R) -> R {
    uninterrupted(|| TABLE.with(f))
}

/// Whether some page of `range` is of a file. Exact under the address-space lock.
pub fn any(range: PageRange) -> bool {
    SOME.load(Ordering::Relaxed) && with(|table| table.parts.iter().any(|part| part.cut(range).is_some()))
}

/// Whether some page of `range` is of a mapping that is shared.
pub fn any_shared(range: PageRange) -> bool {
    SOME.load(Ordering::Relaxed) && with(|table| table.parts.iter().any(|part| part.shared && part.cut(range).is_some()))
}

/// Calls `each` for the longest pieces of `range` that are of one file, with the slot that stands for the first page, and of none.
/// Ends with the first answer that is an error.
pub fn each_piece(range: PageRange, mut each: impl FnMut(PageRange, Option<Slot>) -> i64) -> i64 {
    let parts = parts_in(range);
    let mut at = range.start;
    let ends = parts.iter().map(|part| (part.range, Some(part.slot()))).chain([(PageRange { start: range.end, end: range.end }, None)]);
    for (piece, slot) in ends {
        let before = PageRange { start: at, end: piece.start };
        for (piece, slot) in [(before, None), (piece, slot)].into_iter().filter(|(piece, _)| !piece.is_empty()) {
            let answer = each(piece, slot);
            if answer < 0 {
                return answer;
            }
        }
        at = piece.end;
    }
    0
}

fn parts_in(range: PageRange) -> Vec<Part> {
    if !SOME.load(Ordering::Relaxed) {
        return Vec::new();
    }
    with(|table| table.parts.iter().filter_map(|part| part.cut(range)).collect())
}

/// The descriptors that files have, or had.
pub fn descriptors() -> Vec<i32> {
    let parked = if LEASED.load(Ordering::Relaxed) { with(|table| table.parked.iter().map(Fd::raw).collect()) } else { Vec::new() };
    mapped::fds().chain(parked).collect()
}

/// `range` is no longer mapped, or something else is: the program or the kernel has it so.
pub fn forget(range: PageRange) {
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    with(|table| {
        let left = |part: Part| {
            let below = part.cut(PageRange { start: Page(0), end: range.start });
            let above = part.cut(PageRange { start: range.end, end: Page(u64::MAX) });
            [below, above].into_iter().flatten()
        };
        table.parts = core::mem::take(&mut table.parts).into_iter().flat_map(left).collect();
        for number in 0..table.files.len() {
            if !table.parts.iter().any(|part| part.file == number) {
                table.close(number, true);
            }
        }
        SOME.store(!table.parts.is_empty(), Ordering::Relaxed);
    });
}

impl Table {
    /// No page is of this file any more. `release`: the lease is released, whoever else has the description.
    fn close(&mut self, number: usize, release: bool) {
        let Some(open) = self.files.get_mut(number).and_then(Option::take) else { return };
        mapped::leave(number);
        if release {
            lease::release(open.fd.raw());
        }
        self.park(open.fd);
    }

    /// Closes a file. Its number gets another one, and stays ours.
    fn park(&mut self, fd: Fd) {
        let place = fd.into_raw();
        match fd::open(c"/dev/null", fd::O_RDONLY).map(|null| lease::take_number(null, place)) {
            Ok(Ok(parked)) => self.parked.push(parked),
            // SAFETY: taken out of the `Fd` just now.
            _ => drop(unsafe { Fd::from_raw(place) }),
        }
    }
}

/// A call has failed that may have unmapped a part of `range`: what is not managed any more is forgotten.
pub fn forget_unmanaged(runtime: &Runtime, range: PageRange) {
    for part in parts_in(range) {
        for page in part.range.iter().filter(|&page| !runtime.engine.is_managed(page)) {
            forget(PageRange { start: page, end: page.plus(1) });
        }
    }
}

/// Hands `range` back to the kernel, as far as it is of files: a call comes that only the kernel can serve. The program's descriptors of
/// the file may be closed by now; ours is not.
pub fn hand_back(runtime: &Runtime, range: PageRange) {
    let parts = parts_in(range);
    if parts.is_empty() {
        return;
    }
    let mappings = mappings();
    parts.iter().for_each(|part| hand_back_part(runtime, part, &mappings));
    forget(range);
}

/// Hands back everything, and takes no more files.
pub fn decline(runtime: &Runtime) {
    DECLINED.store(true, Ordering::Relaxed);
    hand_back(runtime, PageRange { start: Page(0), end: Page(u64::MAX) });
}

fn hand_back_part(runtime: &Runtime, part: &Part, mappings: &[Mapping]) {
    let fd = with(|table| table.files.get(part.file).and_then(Option::as_ref).map(|open| open.fd.raw()));
    let Some(fd) = fd else { unreachable!("{part:?} is of a file that is not open") };
    for mapping in mappings {
        let Some(piece) = part.cut(PageRange::covering(mapping.start, mapping.end - mapping.start)) else { continue };
        let give = |run: PageRange| map_file(&piece, run, mapping.protection(), fd);
        if runtime.engine.hand_back(piece.range, piece.shared, give) {
            continue;
        }
        // The process has as many mappings as it may have, say. What is private may show what the file had; what is shared may not.
        if piece.shared {
            report::abort(format_args!("a mapped file is to be written, and the kernel does not map it at {:?}", piece.range.start));
        }
        report::line(format_args!(
            "a mapped file may be written now; pages of the private mapping at {:?} that the program has not touched may show that, since the \
             kernel does not map it",
            piece.range.start
        ));
    }
}

/// Maps the file over `run`, which lies in `part`. Whether it could be done.
fn map_file(part: &Part, run: PageRange, protection: u64, fd: i32) -> bool {
    let kind = if part.shared { map::SHARED } else { map::PRIVATE };
    let offset = (part.first + (run.start.0 - part.range.start.0)) * PAGE_SIZE as u64;
    let args = [run.start.addr(), run.bytes(), protection, kind | map::FIXED, fd as u64, offset];
    // SAFETY: over pages of the program that have the same bytes, and that the caller has claimed.
    let answer = unsafe { syscall(nr::MMAP, args) };
    answer as u64 == run.start.addr()
}

/// Whether a SIGSYS that was sent may say that somebody wants a file. What it carried may be lost (`RLIMIT_SIGPENDING`).
pub fn is_wanted(info: &SigInfo) -> bool {
    /// `si_code` of a signal that a descriptor has sent.
    const SI_SIGIO: i32 = -5;
    if !LEASED.load(Ordering::Relaxed) {
        return false;
    }
    // A signal may come when its file is closed already. No program has its descriptors send this signal.
    info.code() == SI_SIGIO || (info.code() == 0 && info.sender_pid() == 0)
}

/// Answers it: hands back the files that somebody wants, in the handler, with all signals blocked.
pub fn answer() {
    let Some(runtime) = runtime() else { return };
    locked(runtime, |_| {
        let wanted = with(|table| {
            let is_wanted = |open: &Option<Open>| open.as_ref().is_some_and(|open| !lease::is_held(open.fd.raw()));
            (0..table.files.len()).filter(|&number| is_wanted(&table.files[number])).collect::<Vec<_>>()
        });
        wanted.into_iter().for_each(|number| hand_file_back(runtime, number));
    });
}

/// Hands back all mappings of a file, and releases the lease.
fn hand_file_back(runtime: &Runtime, number: usize) {
    let parts: Vec<Part> = with(|table| table.parts.iter().filter(|part| part.file == number).cloned().collect());
    let mappings = mappings();
    parts.iter().for_each(|part| hand_back_part(runtime, part, &mappings));
    parts.iter().for_each(|part| forget(part.range));
}

/// In a forked child, whose words and table are copies of its parent's, before it runs any code of the program: takes leases of its
/// own. `own_files`: its descriptors are its own.
pub fn begin_child(runtime: &Runtime, own_files: bool) {
    // A thread that was looking at it, without changing it, does not exist here.
    TABLE.reset();
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    let count = with(|table| table.files.len());
    for number in 0..count {
        if with(|table| table.renew(number, own_files)) {
            continue;
        }
        let parts: Vec<Part> = with(|table| table.parts.iter().filter(|part| part.file == number).cloned().collect());
        let mappings = mappings();
        parts.iter().for_each(|part| hand_back_part(runtime, part, &mappings));
        with(|table| {
            table.parts.retain(|part| part.file != number);
            // The lease is the parent's.
            if own_files {
                table.close(number, false);
            } else if let Some(open) = table.files[number].take() {
                mapped::leave(number);
                let _ = open.fd.into_raw();
            }
            SOME.store(!table.parts.is_empty(), Ordering::Relaxed);
        });
    }
}

impl Table {
    /// In a forked child: a description of its own, with a lease, takes the place of the parent's. False: it cannot be had, or
    /// somebody wants the file.
    fn renew(&mut self, number: usize, own_files: bool) -> bool {
        let Some(open) = self.files.get_mut(number).and_then(Option::as_mut) else { return true };
        let Ok(own) = lease::open_again(open.fd.raw(), open.direct) else { return false };
        let own = crate::ground::parts::raise(own);
        // The parent's lease is looked at last: if it is there still, there was no moment without one.
        if lease::take(&own, SIGNAL, getpid()).is_err() || !lease::is_held(open.fd.raw()) {
            return false;
        }
        mapped::enter(number, own.raw(), open.size, open.direct);
        let parents = core::mem::replace(&mut open.fd, own);
        if !own_files {
            let _ = parents.into_raw();
        }
        true
    }
}
