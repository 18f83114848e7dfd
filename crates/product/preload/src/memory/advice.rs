//! madvise: bytes thrown away, guards, pages brought in.
//!
//! # Guards
//!
//! `MADV_GUARD_INSTALL` leaves a mark in the page table, at which an access ends in SIGSEGV (a system call in `EFAULT`). A copy
//! by userfaultfd would replace the mark. So a guarded page is not managed: faults on its neighbours, pins and prefetches leave
//! it alone, and the kernel answers for it. Its memory stays registered, so that the mapping stays one; the removal of the guard
//! makes the page managed again.

use super::runs::{Held, any_managed, each_run};
use super::{hand_over_managed, is_error, pages, raw};
use crate::ground::files::Of;
use crate::ground::lost::{self, Needed};
use crate::ground::runtime::{Runtime, locked, uninterrupted};
use crate::ground::{files, own_threads, thread, withheld};
use crate::memory::{attributes, surrender};
use farshore_core::order::Order;
use farshore_core::page::{Access, Page, PageRange};
use farshore_engine::fault::pins::Pinned;
use farshore_engine::wishes::Wish;
use farshore_sys::raw::{Errno, nr};
use farshore_sys::vm::advice;

const GUARD_INSTALL: u64 = 102;
const GUARD_REMOVE: u64 = 103;
/// Hints about reading ahead.
pub(super) const NORMAL: u64 = 0;
const RANDOM: u64 = 1;
pub(super) const SEQUENTIAL: u64 = 2;
const DONTFORK: u64 = 10;
const DOFORK: u64 = 11;
const WIPEONFORK: u64 = 18;
const KEEPONFORK: u64 = 19;
const DONTNEED_LOCKED: u64 = 24;
const COLLAPSE: u64 = 25;

const fn error(errno: Errno) -> i64 {
    -(errno.0 as i64)
}

/// Advice after which memory has other bytes, or cannot be accessed.
pub(super) fn gives_up(what: u64) -> bool {
    matches!(what, advice::DONTNEED | advice::FREE | DONTNEED_LOCKED | GUARD_INSTALL)
}

pub fn madvise(runtime: &Runtime, args: &[u64; 6]) -> i64 {
    let [addr, len, what, ..] = *args;
    let range = len.checked_next_multiple_of(super::PAGE).and_then(|len| pages(addr, len));
    if what == advice::MERGEABLE {
        // Managed memory is never merged (`net/calls/merging.rs`). Under the lock, since memory that is mapped there meanwhile
        // may become managed.
        let managed = |range: Option<PageRange>| range.is_some_and(|r| any_managed(runtime, r));
        return locked(runtime, |_| if managed(range) { 0 } else { raw(nr::MADVISE, args) });
    }
    if matches!(what, DONTFORK | WIPEONFORK | advice::DONTDUMP) {
        attributes::note();
    }
    // Guarded pages are not managed, and become managed when the guard is removed.
    let guards_too = matches!(what, GUARD_REMOVE | DONTFORK | WIPEONFORK);
    let ours = |r: &PageRange| any_managed(runtime, *r) || (guards_too && may_hold_guards(runtime, *r));
    let Some(range) = range.filter(ours) else { return raw(nr::MADVISE, args) };
    if !serves_files(what) && files::any(range) {
        locked(runtime, |_| files::hand_back(runtime, range));
        return madvise(runtime, args);
    }
    match what {
        advice::DONTNEED | advice::FREE | DONTNEED_LOCKED => {
            // The kernel may free such memory at once: MADV_FREE allows that.
            let kernels = if what == advice::FREE { advice::DONTNEED } else { what };
            locked(runtime, |_| each_run(runtime, range, |run, held| discard(runtime, run, held, what, kernels)))
        }
        GUARD_INSTALL => locked(runtime, |_| each_run(runtime, range, |run, held| install_guards(runtime, run, held))),
        GUARD_REMOVE => locked(runtime, |_| each_run(runtime, range, |run, held| remove_guards(runtime, run, held))),
        DONTFORK | WIPEONFORK => {
            if !withheld::note() {
                // A child could not know what it has, so such memory must not be managed. What was never touched stays so.
                own_threads::ensure();
                let handed = locked(runtime, |_| hand_over_managed(runtime, range, false));
                if is_error(handed) {
                    return handed;
                }
            }
            locked(runtime, |_| raw(nr::MADVISE, args))
        }
        // A fork that is under way has read what is kept from the child.
        DOFORK | KEEPONFORK => locked(runtime, |_| raw(nr::MADVISE, args)),
        advice::POPULATE_READ => populate(runtime, range, Access::Read, what),
        advice::POPULATE_WRITE => populate(runtime, range, Access::Write, what),
        advice::WILLNEED | advice::COLD | advice::PAGEOUT => hint(runtime, range, what),
        // Huge pages come by a first touch of ours (`farshore_engine::fault::huge`). The hints about reading ahead are for our
        // prefetcher; as the kernel's they mark memory that moves (`memory/mod.rs`).
        NORMAL | RANDOM | SEQUENTIAL | advice::HUGEPAGE | advice::NOHUGEPAGE | COLLAPSE => {
            let answer = locked(runtime, |_| {
                match what {
                    advice::HUGEPAGE | advice::NOHUGEPAGE => runtime.engine.advise_huge(range, what == advice::HUGEPAGE),
                    NORMAL => runtime.engine.advise_order(range, Order::Unknown),
                    RANDOM => runtime.engine.advise_order(range, Order::Random),
                    SEQUENTIAL => runtime.engine.advise_order(range, Order::Sequential),
                    _ => {}
                }
                each_run(runtime, range, |run, held| if held == Held::Others { advise(run, what) } else { 0 })
            });
            // The kernel makes huge pages of one mapping after the other, and a hole is no mapping.
            if what == COLLAPSE && answer == error(Errno::ENOMEM) { error(Errno::EINVAL) } else { answer }
        }
        _ => raw(nr::MADVISE, args),
    }
}

/// Where the program would like its pages to be: a wish as those of policies beside it (`farshore_engine::wishes`). The kernel, too, only begins to
/// read for `MADV_WILLNEED`; it writes at once for `MADV_PAGEOUT`, as far as it can, and here the evictors do it meanwhile.
fn hint(runtime: &Runtime, range: PageRange, what: u64) -> i64 {
    let engine = &runtime.engine;
    let answer = locked(runtime, |_| {
        each_run(runtime, range, |run, held| {
            match held {
                Held::Others => return advise(run, what),
                Held::Managed if what == advice::COLD => engine.make_old(run),
                Held::Managed => engine.wish(run, if what == advice::PAGEOUT { Wish::Leave } else { Wish::Come }),
                Held::Guarded => {}
            }
            0
        })
    });
    own_threads::ensure();
    answer
}

/// Whether this advice does to managed pages of files what it does natively. Otherwise the kernel gets the file back first.
fn serves_files(what: u64) -> bool {
    const DONTDUMP: u64 = advice::DONTDUMP;
    matches!(what, NORMAL | RANDOM | SEQUENTIAL | DONTNEED_LOCKED | DONTDUMP)
        || matches!(what, advice::WILLNEED | advice::DONTNEED | advice::FREE | advice::COLD | advice::PAGEOUT)
        || matches!(what, advice::HUGEPAGE | advice::NOHUGEPAGE | advice::DODUMP | advice::POPULATE_READ | advice::POPULATE_WRITE)
}

/// Gives this advice to the kernel.
fn advise(run: PageRange, what: u64) -> i64 {
    raw(nr::MADVISE, &[run.start.addr(), run.bytes(), what, 0, 0, 0])
}

fn may_hold_guards(runtime: &Runtime, range: PageRange) -> bool {
    range.by_granule().any(|part| runtime.engine.may_hold_guards(part.start))
}

fn discard(runtime: &Runtime, run: PageRange, held: Held, asked: u64, kernels: u64) -> i64 {
    if held != Held::Managed {
        return advise(run, asked);
    }
    let call = |part: PageRange| match advise(part, kernels) {
        answer if is_error(answer) => Err(answer),
        _ => Ok(()),
    };
    files::each_piece(run, |piece, of| {
        let done = match of {
            Of::None => runtime.engine.discard(piece, call),
            // Of files the kernel frees nothing at its leisure.
            _ if asked == advice::FREE => Err(error(Errno::EINVAL)),
            Of::File(first) => runtime.engine.discard_to_file(piece, first, call),
            Of::Left if files::discard_left(runtime, piece) => Ok(()),
            Of::Left => Err(error(Errno::ENOMEM)),
        };
        done.err().unwrap_or(0)
    })
}

fn install_guards(runtime: &Runtime, run: PageRange, held: Held) -> i64 {
    if held != Held::Managed {
        return advise(run, GUARD_INSTALL);
    }
    runtime.engine.claim(run);
    let answer = advise(run, GUARD_INSTALL);
    if is_error(answer) {
        runtime.engine.unclaim(run);
    } else {
        runtime.engine.finish_unmap(run);
        runtime.engine.note_guards(run);
    }
    answer
}

fn remove_guards(runtime: &Runtime, run: PageRange, held: Held) -> i64 {
    if held != Held::Guarded {
        return advise(run, GUARD_REMOVE);
    }
    if surrender::is_done() {
        // All of the memory is the kernel's by now.
        return match runtime.engine.kernel.uffd().unregister(run.start.addr(), run.bytes()) {
            Ok(()) => advise(run, GUARD_REMOVE),
            Err(errno) => error(errno),
        };
    }
    // The pages are managed before the guards go: a thread that touches such a page from then on finds it claimed, and waits.
    runtime.engine.manage(run);
    runtime.engine.claim(run);
    let answer = advise(run, GUARD_REMOVE);
    if is_error(answer) {
        runtime.engine.finish_unmap(run);
    } else {
        runtime.engine.unclaim(run);
    }
    answer
}

/// Brings pages in one after the other, as `MAP_POPULATE` does; the limit holds all the same.
pub fn bring_in(runtime: &Runtime, range: PageRange, access: Access) -> i64 {
    bring_each_in(runtime, range, access, |_| 0)
}

/// Serves `MADV_POPULATE_*`, which also checks whether the program may access the memory, and ends at the first page that it may
/// not.
fn populate(runtime: &Runtime, range: PageRange, access: Access, what: u64) -> i64 {
    bring_each_in(runtime, range, access, |page| advise(PageRange { start: page, end: page.plus(1) }, what))
}

/// Brings in one page after the other. Returns the first error of `then` or of a page, else 0.
fn bring_each_in(runtime: &Runtime, range: PageRange, access: Access, then: impl Fn(Page) -> i64) -> i64 {
    own_threads::ensure();
    range.iter().map(|page| bring_in_one(runtime, page, access, || then(page))).find(|&answer| is_error(answer)).unwrap_or(0)
}

/// Brings a page in, if it is managed, and calls `then`, by which the kernel answers, while the page cannot leave.
fn bring_in_one(runtime: &Runtime, page: Page, access: Access, then: impl Fn() -> i64) -> i64 {
    let answer = uninterrupted(|| {
        let Some(thread) = thread::current() else { return Ok(then()) };
        let pinned = thread.with_buffer(|buffer| runtime.engine.pin(page, access, thread.core(), buffer))?;
        let answer = then();
        if pinned == Pinned::Held {
            runtime.engine.unpin(page);
        }
        Ok(answer)
    });
    answer.unwrap_or_else(|why| {
        lost::tell(runtime, page, why, Needed::ByCall);
        error(Errno::EFAULT)
    })
}
