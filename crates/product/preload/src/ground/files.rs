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
//! A page that the program has written (in a private mapping) is memory like any other, and stays so when the rest is handed back: it is
//! *left*. Of a left page the file is still known, because the page has the file's bytes again when the program throws its own away
//! (`MADV_DONTNEED`).
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
//! 4. **No descriptor of ours is closed while the program has record locks on its file**: they would go with it (`locks.rs`).
//!
//! All of this is used under the address-space lock; the mutex within it makes that safe.

mod locks;
mod take;

pub use locks::locking;
pub use take::{may_take, take_over};

use crate::ground::mappings::mappings;
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
    fd: Fd,
    /// With a lease, which we have not released. Without one only pages that are left are of it.
    leased: bool,
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
    /// The rest was handed back: these are pages that the program has written.
    left: bool,
    /// What the program may do there. `None`: a call has failed that may have changed it for a part.
    protection: Option<u64>,
}

/// What a piece of managed memory is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// No file.
    None,
    /// A file; the slot stands for the first page.
    File(Slot),
    /// Pages that are left of a mapping of a file.
    Left,
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
    /// Files that are done, and on which the program has record locks.
    kept: Vec<Fd>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { files: Vec::new(), parts: Vec::new(), parked: Vec::new(), kept: Vec::new() });
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

/// Whether some page of `range` can be handed back. Exact under the address-space lock.
pub fn any(range: PageRange) -> bool {
    parts_in(range).iter().any(|part| !part.left)
}

/// Whether some page of `range` is of a mapping that is shared.
pub fn any_shared(range: PageRange) -> bool {
    parts_in(range).iter().any(|part| part.shared)
}

/// Calls `each` for the longest pieces of `range` that are of one mapping of a file, or of none. Ends with the first answer that is an error.
pub fn each_piece(range: PageRange, mut each: impl FnMut(PageRange, Of) -> i64) -> i64 {
    let parts = parts_in(range);
    let mut at = range.start;
    let of = |part: &Part| (part.range, if part.left { Of::Left } else { Of::File(part.slot()) });
    for (piece, of) in parts.iter().map(of).chain([(PageRange { start: range.end, end: range.end }, Of::None)]) {
        let before = PageRange { start: at, end: piece.start };
        for (piece, of) in [(before, Of::None), (piece, of)].into_iter().filter(|(piece, _)| !piece.is_empty()) {
            let answer = each(piece, of);
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
    let parked = match LEASED.load(Ordering::Relaxed) {
        true => with(|table| table.parked.iter().chain(&table.kept).map(Fd::raw).collect()),
        false => Vec::new(),
    };
    mapped::fds().chain(parked).collect()
}

/// `range` is no longer mapped, or something else is: the program or the kernel has it so.
pub fn forget(range: PageRange) {
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    with(|table| {
        table.cut_out(range);
        table.close_what_is_done();
    });
}

impl Table {
    /// No part lies in `range` any more.
    fn cut_out(&mut self, range: PageRange) {
        let left = |part: Part| {
            let below = part.cut(PageRange { start: Page(0), end: range.start });
            let above = part.cut(PageRange { start: range.end, end: Page(u64::MAX) });
            [below, above].into_iter().flatten()
        };
        self.parts = core::mem::take(&mut self.parts).into_iter().flat_map(left).collect();
    }

    /// A part comes.
    fn enter(&mut self, part: Part) {
        let at = self.parts.partition_point(|other| other.range.start < part.range.start);
        self.parts.insert(at, part);
        SOME.store(true, Ordering::Relaxed);
    }

    /// Closes files that have no part any more.
    fn close_what_is_done(&mut self) {
        let is_done =
            |table: &Table, number: usize| table.files[number].is_some() && !table.parts.iter().any(|part| part.file == number);
        let done: Vec<usize> = (0..self.files.len()).filter(|&number| is_done(self, number)).collect();
        if !done.is_empty() {
            self.close_what_was_kept();
        }
        done.into_iter().for_each(|number| self.close(number));
        SOME.store(!self.parts.is_empty(), Ordering::Relaxed);
    }

    /// No page is of this file any more. Its lease is released, whoever else has the description (a child that is about to exec).
    fn close(&mut self, number: usize) {
        let Some(open) = self.files.get_mut(number).and_then(Option::take) else { return };
        mapped::leave(number);
        if open.leased {
            lease::release(open.fd.raw());
        }
        self.close_or_keep(open.fd);
    }

    /// Closes a file, unless the program has record locks on it.
    fn close_or_keep(&mut self, fd: Fd) {
        if DECLINED.load(Ordering::Relaxed) {
            // A filter may stop the calls that it takes. The file stays open, without a lease.
            self.parked.push(fd);
            return;
        }
        let (number, mut fd) = (fd.raw(), Some(fd));
        let _ = locks::unless_locked(number, || fd.take().into_iter().for_each(|fd| self.park(fd)));
        self.kept.extend(fd);
    }

    /// As far as the program has no record locks on them any more.
    fn close_what_was_kept(&mut self) {
        core::mem::take(&mut self.kept).into_iter().for_each(|fd| self.close_or_keep(fd));
    }

    /// Closes a file. Its number gets another one, and stays ours. The program has no record locks on it.
    fn park(&mut self, fd: Fd) {
        let place = fd.into_raw();
        match fd::open(c"/dev/null", fd::O_RDONLY).map(|null| lease::take_number(null, place)) {
            Ok(Ok(parked)) => self.parked.push(parked),
            // SAFETY: taken out of the `Fd` just now.
            _ => drop(unsafe { Fd::from_raw(place) }),
        }
    }
}

/// The program may do this with `range` from now on; `None`: a call has failed that may have changed it.
pub fn note_protection(range: PageRange, protection: Option<u64>) {
    let parts = parts_in(range);
    if !parts.is_empty() {
        with(|table| {
            table.cut_out(range);
            parts.into_iter().for_each(|part| table.enter(Part { protection, ..part }));
        });
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
    if parts.iter().any(|part| !part.left) {
        give(runtime, &parts);
    }
}

/// Hands these parts back, and keeps in mind what is left.
fn give(runtime: &Runtime, parts: &[Part]) {
    for part in parts.iter().filter(|part| !part.left) {
        if !give_part(runtime, part, part.shared) {
            // The process has as many mappings as it may have, say.
            report::abort(format_args!("a mapped file is to be the kernel's, which does not map it at {:?}", part.range.start));
        }
        // What is left first, so that the file is not closed in between.
        let mut left: Vec<Part> = Vec::new();
        for page in part.range.iter().filter(|&page| runtime.engine.is_managed(page)) {
            match left.last_mut().filter(|last| last.range.end == page) {
                Some(last) => last.range.end = page.plus(1),
                None => {
                    left.extend(part.cut(PageRange { start: page, end: page.plus(1) }).map(|part| Part { left: true, ..part }))
                }
            }
        }
        with(|table| {
            table.cut_out(part.range);
            left.into_iter().for_each(|part| table.enter(part));
            table.close_what_is_done();
        });
    }
}

/// The program throws away what it has written to pages that are left: they are the kernel's, as the pages around them.
pub fn discard_left(runtime: &Runtime, range: PageRange) -> bool {
    // A filter may stop the call that it takes.
    let may = !DECLINED.load(Ordering::Relaxed);
    let done = may && parts_in(range).iter().filter(|part| part.left).all(|part| give_part(runtime, part, true));
    if done {
        forget(range);
    }
    done
}

/// Hands back everything, and takes no more files.
pub fn decline(runtime: &Runtime) {
    hand_back(runtime, PageRange { start: Page(0), end: Page(u64::MAX) });
    DECLINED.store(true, Ordering::Relaxed);
}

/// Has the kernel map the file where the program has not written the pages; with `all` everywhere. False: something could not be
/// mapped.
fn give_part(runtime: &Runtime, part: &Part, all: bool) -> bool {
    let fd = with(|table| table.files.get(part.file).and_then(Option::as_ref).map(|open| open.fd.raw()));
    let Some(fd) = fd else { unreachable!("{part:?} is of a file that is not open") };
    let pieces = match part.protection {
        Some(protection) => vec![(part.clone(), protection)],
        None => ask_protection(part),
    };
    // Each, also after one that could not be mapped.
    pieces.into_iter().fold(true, |done, (piece, protection)| {
        runtime.engine.hand_back(piece.range, all, |run| map_file(&piece, run, protection, fd)) && done
    })
}

/// What the program may do with each piece of a part, as the kernel tells it.
fn ask_protection(part: &Part) -> Vec<(Part, u64)> {
    let pieces: Vec<_> = mappings()
        .iter()
        .filter_map(|mapping| {
            let piece = part.cut(PageRange::covering(mapping.start, mapping.end - mapping.start))?;
            Some((piece, mapping.protection()))
        })
        .collect();
    if pieces.iter().map(|(piece, _)| piece.range.len()).sum::<u64>() != part.range.len() {
        report::abort(format_args!(
            "/proc/self/maps does not tell what may be done at {:?}, where a file is mapped",
            part.range.start
        ));
    }
    pieces
}

/// Maps the file over `run`, which lies in `part` or behind it. Whether it could be done.
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
            let is_wanted = |open: &Option<Open>| open.as_ref().is_some_and(|open| open.leased && !lease::is_held(open.fd.raw()));
            (0..table.files.len()).filter(|&number| is_wanted(&table.files[number])).collect::<Vec<_>>()
        });
        wanted.into_iter().for_each(|number| hand_file_back(runtime, number));
    });
}

/// Hands back all mappings of a file, and releases the lease.
fn hand_file_back(runtime: &Runtime, number: usize) {
    let parts: Vec<Part> = with(|table| table.parts.iter().filter(|part| part.file == number).cloned().collect());
    give(runtime, &parts);
    with(|table| {
        if let Some(open) = table.files.get_mut(number).and_then(Option::as_mut) {
            open.leased = false;
            lease::release(open.fd.raw());
        }
    });
}

/// In a forked child, whose words and table are copies of its parent's, before it runs any code of the program: takes leases of its
/// own. `own_files`: its descriptors are its own.
pub fn begin_child(runtime: &Runtime, own_files: bool) {
    // A thread that was looking at it, without changing it, does not exist here.
    TABLE.reset();
    locks::begin_child();
    if !own_files {
        // What is opened and closed here is so in its parent.
        DECLINED.store(true, Ordering::Relaxed);
    }
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    let count = with(|table| table.files.len());
    for number in 0..count {
        if own_files && with(|table| table.renew(number)) {
            continue;
        }
        let parts: Vec<Part> = with(|table| {
            // The lease is the parent's.
            table.files[number].iter_mut().for_each(|open| open.leased = false);
            table.parts.iter().filter(|part| part.file == number).cloned().collect()
        });
        give(runtime, &parts);
    }
}

impl Table {
    /// In a forked child: a description of its own, with a lease, takes the place of the parent's. False: it cannot be had, or
    /// somebody wants the file.
    fn renew(&mut self, number: usize) -> bool {
        let Some(open) = self.files.get_mut(number).and_then(Option::as_mut).filter(|open| open.leased) else { return true };
        let Ok(own) = lease::open_again(open.fd.raw(), open.direct) else { return false };
        let own = crate::ground::parts::raise(own);
        // The parent's lease is looked at last: if it is there still, there was no moment without one.
        if lease::take(&own, SIGNAL, getpid()).is_err() || !lease::is_held(open.fd.raw()) {
            return false;
        }
        mapped::enter(number, own.raw(), open.size, open.direct);
        open.fd = own;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_a_part_has_its_own_page_of_the_file() {
        let range = |start, end| PageRange { start: Page(start), end: Page(end) };
        let part = Part { range: range(100, 200), file: 3, first: 7, shared: true, left: false, protection: Some(1) };
        let cut = |start, end| part.cut(range(start, end)).map(|piece| (piece.range.start.0, piece.range.end.0, piece.first));
        assert_eq!(cut(0, 1000), Some((100, 200, 7)));
        assert_eq!(cut(0, 101), Some((100, 101, 7)));
        assert_eq!(cut(150, 160), Some((150, 160, 57)));
        assert_eq!(cut(199, 300), Some((199, 200, 106)));
        assert_eq!((cut(0, 100), cut(200, 300), cut(150, 150)), (None, None, None));
        let slot = part.cut(range(150, 160)).map(|piece| piece.slot());
        assert_eq!(slot.and_then(Slot::of_file), Some(FilePage { file: 3, page: 57 }));
    }

    #[test]
    fn what_is_cut_out_of_the_table_leaves_the_ends() {
        let range = |start, end| PageRange { start: Page(start), end: Page(end) };
        let mut table = Table { files: Vec::new(), parts: Vec::new(), parked: Vec::new(), kept: Vec::new() };
        let part =
            |start, end, first| Part { range: range(start, end), file: 0, first, shared: false, left: false, protection: None };
        table.enter(part(300, 400, 0));
        table.enter(part(100, 200, 50));
        assert_eq!(table.parts.iter().map(|part| part.range.start.0).collect::<Vec<_>>(), [100, 300]);
        table.cut_out(range(150, 310));
        let left: Vec<_> = table.parts.iter().map(|part| (part.range.start.0, part.range.end.0, part.first)).collect();
        assert_eq!(left, [(100, 150, 50), (310, 400, 10)]);
        SOME.store(false, Ordering::Relaxed);
    }
}
