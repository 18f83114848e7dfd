//! Memory calls: mmap, munmap, mremap, madvise, mprotect, mlock, brk (ExtMem §3.1).
//!
//! What is managed: the heap, static arrays ([`statics`]), and anonymous private memory in mappings of at least the threshold, unless it
//! is a stack, locked or of huge pages; smaller ones, but those that are executable, when they add up ([`crate::ground::small`]). Every call does what the kernel does, through the kernel, under the address-space lock. What
//! was there before is claimed first, and given up only when the kernel has agreed (`farshore_engine::space`).
//!
//! Layers: below is the ground alone.
//!
//! Where the kernel refuses a call (a bad argument, no memory), the program gets the kernel's own error.

mod advice;
pub mod attributes;
mod locks;
mod runs;
pub mod statics;
pub mod surrender;

pub use runs::any_managed;

use crate::ground::lost::{self, Needed};
use crate::ground::mappings::Mapping;
use crate::ground::net::net;
use crate::ground::ranges::without;
use crate::ground::runtime::{Runtime, Space, locked};
use crate::ground::small::{self, Small};
use crate::ground::thread::Thread;
use crate::ground::{apart, files, own_threads, report, thread};
use core::ops::Range;
use farshore_config::Options;
use farshore_core::limits::{GRANULE_PAGES, PAGE_SIZE};
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::table::PageTable;
use farshore_net::asynchronous;
use farshore_sys::pagemap::{Entry, Pagemap};
use farshore_sys::raw::{Errno, nr, syscall};
use farshore_sys::vm::{self, map, prot};
use runs::{Held, each_run, mixed};

type Args = [u64; 6];

const MAP_DROPPABLE: u64 = 8;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_LOCKED: u64 = 0x2000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_NONBLOCK: u64 = 0x10000;
const MAP_HUGETLB: u64 = 0x40000;
const MAP_SYNC: u64 = 0x80000;
const MREMAP_MAYMOVE: u64 = vm::remap::MAYMOVE;
const MREMAP_FIXED: u64 = vm::remap::FIXED;
const MREMAP_DONTUNMAP: u64 = vm::remap::DONTUNMAP;
const MCL_ONFAULT: u64 = 4;
const MCL_ALL: u64 = 1 | 2 | MCL_ONFAULT;
const SHMAT: u64 = 30;
const SHM_REMAP: u64 = 0o40000;
const MSEAL: u64 = 462;
const PAGE: u64 = PAGE_SIZE as u64;
/// The end of the addresses that pages have words for.
const TABLE_END: u64 = 1 << 47;

/// The calls of this module, by number.
pub fn handles(number: u64) -> bool {
    matches!(
        number,
        nr::MMAP | nr::MPROTECT | nr::MUNMAP | nr::BRK | nr::MREMAP | nr::MADVISE | 149..=152 | 325 | 329 | SHMAT | MSEAL
    )
}

/// Does one of them, and returns the kernel's answer.
pub fn call(runtime: &Runtime, number: u64, args: &Args) -> i64 {
    tell_requests(number, args);
    let answer = change(runtime, number, args);
    if number == nr::MMAP && args[3] & map::ANONYMOUS == 0 && !is_error(answer) {
        asynchronous::mapped(net(), args[4], args[5], answer as u64, args[1].next_multiple_of(PAGE));
    }
    answer
}

/// Pages that requests in flight use may be about to go.
fn tell_requests(number: u64, args: &Args) {
    let [addr, len, what, flags, target, _] = *args;
    let before = |addr, len, stays| asynchronous::before_change(net(), addr, len, stays);
    match number {
        // What the kernel will refuse changes nothing.
        nr::MUNMAP if addr.is_multiple_of(PAGE) => before(addr, len, false),
        nr::MMAP if flags & map::FIXED != 0 && addr.is_multiple_of(PAGE) => before(addr, len, false),
        nr::MREMAP => {
            if flags & MREMAP_FIXED != 0 {
                before(target, what, false);
            }
            before(addr, len, true);
            if what < len || flags & MREMAP_MAYMOVE != 0 {
                before(addr, len, false);
            }
        }
        nr::MADVISE if advice::gives_up(what) => before(addr, len, true),
        // The length of what is attached is not known.
        SHMAT if addr != 0 && what & SHM_REMAP != 0 => before(addr, PAGE, false),
        _ => {}
    }
}

fn change(runtime: &Runtime, number: u64, args: &Args) -> i64 {
    match number {
        nr::MMAP => mmap(runtime, args),
        nr::MUNMAP => munmap(runtime, args),
        nr::MREMAP => mremap(runtime, args),
        nr::MADVISE => advice::madvise(runtime, args),
        // mprotect, pkey_mprotect
        nr::MPROTECT | 329 => mprotect(runtime, number, args),
        nr::BRK => brk(runtime, args),
        // mlock, mlock2
        149 | 325 => {
            // Pages are brought in under the lock.
            own_threads::ensure();
            locks::mlock(runtime, number, args)
        }
        // mlockall: not all managed memory can be resident, so the answer is the one of a low RLIMIT_MEMLOCK. For odd flags the
        // kernel answers.
        151 if args[0] & !MCL_ONFAULT != 0 && args[0] & !MCL_ALL == 0 => -i64::from(Errno::ENOMEM.0),
        SHMAT => shmat(runtime, args),
        MSEAL => mseal(runtime, args),
        152 => locks::munlockall(runtime, args),
        // munlock: what was locked stopped being managed.
        _ => raw(number, args),
    }
}

/// The program's call, of which our own mappings see nothing.
fn raw(number: u64, args: &Args) -> i64 {
    // SAFETY: the program's own call with its own arguments; the callers keep the page words in step.
    let call = |number, args: &Args| unsafe { syscall(number, *args) };
    apart::spared(number, args, call).unwrap_or_else(|| call(number, args))
}

/// Whether the kernel's answer is an error.
pub fn is_error(answer: i64) -> bool {
    (-4095..0).contains(&answer)
}

/// The pages of a call's range, if the kernel would accept the range at all.
fn pages(addr: u64, len: u64) -> Option<PageRange> {
    let end = addr.checked_add(len)?;
    (addr.is_multiple_of(PAGE) && len > 0 && end < TABLE_END).then(|| PageRange::covering(addr, len))
}

fn may_manage(runtime: &Runtime, args: &Args) -> bool {
    !surrender::is_done() && would_manage(&runtime.options, args)
}

/// Whether a `mmap` with these arguments gives memory that is managed in a process that manages memory, whatever small mappings come to.
pub fn would_manage(options: &Options, args: &Args) -> bool {
    args[1] >= options.threshold.bytes() && is_of_the_kind(args)
}

/// Whether a `mmap` with these arguments gives memory that is managed when small mappings add up. Not code: small pieces of it are the trampolines of a
/// runtime, which it calls all the time.
pub fn is_small(options: &Options, args: &Args) -> bool {
    (1..options.threshold.bytes()).contains(&args[1]) && is_of_the_kind(args) && args[2] & prot::EXEC == 0
}

/// Whether a `mmap` with these arguments gives private memory of no file that nobody else has plans for.
fn is_of_the_kind(args: &Args) -> bool {
    let flags = args[3];
    let unwanted = map::STACK | MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB | MAP_SYNC;
    flags & 0xf == map::PRIVATE && flags & map::ANONYMOUS != 0 && flags & unwanted == 0
}

/// Whether a `mmap` makes a mapping without properties that matter here; if it holds code, the code is in it from the start.
pub fn plain_mapping(args: &Args) -> bool {
    let [_, _, protection, flags, ..] = *args;
    let special = MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB | MAP_SYNC;
    flags & special == 0 && flags & 0xf != MAP_DROPPABLE && (protection & prot::EXEC == 0 || flags & map::ANONYMOUS == 0)
}

/// Registers `range`, which is mapped and not yet in use, and manages it. False: it stays the kernel's.
fn adopt(runtime: &Runtime, range: PageRange) -> bool {
    if surrender::is_done() || !PageTable::covers(range) {
        return false;
    }
    // A huge page cannot be evicted in halves. So huge pages come only through us, and we split them
    // (`farshore_engine::fault::huge`). SAFETY: advice about memory that has just been mapped for the program.
    let _ = unsafe { vm::madvise(range.start.addr(), range.bytes(), vm::advice::NOHUGEPAGE) };
    // SAFETY: faults on it are served from the next line on, and no code knows the address before.
    let registered = unsafe { runtime.engine.kernel.uffd().register(range.start.addr(), range.bytes()) };
    if registered.is_ok() {
        runtime.engine.manage(range);
    }
    registered.is_ok()
}

/// Takes over what is mapped already: what a dormant process has mapped, or what there is at the start. Of `ranges` (bytes) that is the private
/// anonymous memory, by the mappings that there are. Called by the only thread of the process that runs, before any goes on. `stacks`:
/// where code of ours, or the kernel's frame of a signal, lies on stacks of the program; what is around it stays the kernel's.
pub fn take_stock(
    runtime: &Runtime,
    pagemap: &Pagemap,
    mappings: &[Mapping],
    ranges: impl Iterator<Item = Range<u64>>,
    stacks: &[u64],
) {
    let core = thread::current().map_or(0, Thread::core);
    let mut ranges: Vec<Range<u64>> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    // If all of it can stay, its huge pages stay too.
    let fits = runtime.engine.would_fit(ranges.iter().map(|range| range.end - range.start).sum::<u64>() / PAGE);
    for mapping in mappings.iter().filter(|mapping| mapping.may_be_managed()) {
        let first = ranges.partition_point(|range| range.end <= mapping.start);
        let nears: Vec<_> = stacks.iter().filter(|&at| (mapping.start..mapping.end).contains(at)).map(|&at| near(at)).collect();
        for range in ranges.iter().skip(first).take_while(|range| range.start < mapping.end) {
            let (start, end) = (mapping.start.max(range.start), mapping.end.min(range.end));
            for Range { start, end } in without(start..end, &nears) {
                let part = PageRange::covering(start, end - start);
                if !fits {
                    split_huge_pages(part);
                }
                // A hint that the program gave before: see `set_apart`.
                raw(nr::MADVISE, &[part.start.addr(), part.bytes(), advice::NORMAL, 0, 0, 0]);
                if adopt(runtime, part) {
                    runtime.engine.note_huge(part);
                    let mut is_known = false;
                    each_present(pagemap, part, |run| {
                        if !is_known {
                            make_known(runtime, run.start);
                            is_known = true;
                        }
                        runtime.engine.take_stock(run, core);
                    });
                    if !mapping.readable {
                        runtime.engine.set_unreadable(part, true);
                    }
                }
            }
        }
    }
}

/// Has the kernel note that the mapping of a page that is there has anonymous pages. Of one that was only read it does not know: all that is there is the
/// common page of zeros, and a fork does not copy that. A forked child would have words that say that pages are there, and no pages.
fn make_known(runtime: &Runtime, page: Page) {
    // It notes that before it looks, and finds that the page is there.
    let answer = runtime.engine.kernel.uffd().zeropage(page.addr(), PAGE, false);
    debug_assert!(answer.is_err(), "{page:?} was there");
}

/// Bytes of a stack on either side of code of ours that wakes: below it our frames, and above it at most the kernel's frame of a
/// signal. All signals are blocked while that code runs, so it takes no fault.
const NEAR: u64 = 64 << 10;

/// What is around a place on a stack, in whole pages.
fn near(stack: u64) -> Range<u64> {
    let here = stack & !(PAGE - 1);
    here.saturating_sub(NEAR)..here.saturating_add(NEAR)
}

/// Tells the kernel that a part of each huge page is cold: the kernel then splits the page.
fn split_huge_pages(range: PageRange) {
    const COLD: u64 = 20;
    for granule in range.by_granule() {
        raw(nr::MADVISE, &[granule.start.addr(), PAGE, COLD, 0, 0, 0]);
    }
}

/// Calls `found` for each run of pages of `range` that have bytes, in memory or in Linux' own swap.
fn each_present(pagemap: &Pagemap, range: PageRange, mut found: impl FnMut(PageRange)) {
    for part in range.by_granule() {
        let mut entries = [Entry(0); GRANULE_PAGES];
        let Some(entries) = entries.get_mut(..part.len() as usize) else { continue };
        if let Err(why) = pagemap.entries(part.start.addr(), entries) {
            report::abort(format_args!("/proc/self/pagemap does not tell which pages are there ({why:?})"));
        }
        let mut at = part.start;
        for run in entries.chunk_by(|one, other| one.has_bytes() == other.has_bytes()) {
            let end = at.plus(run.len() as u64);
            if run[0].has_bytes() {
                found(PageRange { start: at, end });
            }
            at = end;
        }
    }
}

fn mmap(runtime: &Runtime, args: &Args) -> i64 {
    let [addr, len, _, flags, ..] = *args;
    let fixed = flags & map::FIXED != 0;
    let managed_before = fixed && pages(addr, len.next_multiple_of(PAGE)).is_some_and(|r| any_managed(runtime, r));
    if !surrender::is_done() && files::may_take(&runtime.options, args) {
        return map_file(runtime, args);
    }
    if flags & (MAP_GROWSDOWN | MAP_LOCKED) != 0 || flags & 0xf == MAP_DROPPABLE {
        attributes::note();
    }
    // A mapping that is too small to be worth managing stays managed where it replaces managed memory.
    let wanted = |len| may_manage(runtime, &[addr, len, args[2], flags, 0, 0]);
    if !wanted(if managed_before { u64::MAX } else { len }) {
        if managed_before {
            return locked(runtime, |_| over_managed(runtime, args, false));
        }
        let is_small = !surrender::is_done() && is_small(&runtime.options, args);
        if let Some(answer) = if is_small { small_mapping(runtime, args) } else { Some(unmanaged(runtime, args)) } {
            return answer;
        }
    }
    let mapped =
        locked(runtime, |_| over_managed(runtime, &[hint(addr, flags), args[1], args[2], args[3], args[4], args[5]], true));
    if !is_error(mapped) && flags & MAP_POPULATE != 0 {
        advice::bring_in(runtime, PageRange::covering(mapped as u64, len), Access::Write);
    }
    mapped
}

/// Maps what stays the kernel's, and replaces nothing that is managed.
fn unmanaged(runtime: &Runtime, args: &Args) -> i64 {
    let [addr, len, protection, flags, fd, offset] = *args;
    if flags & map::FIXED == 0 || flags & MAP_LOCKED != 0 {
        return raw(nr::MMAP, args);
    }
    // Under the lock: what it replaces must not become a mapping of ours before the kernel does it. What is to be brought in comes afterwards: a file
    // may be served by a thread of the program, which needs the lock (FUSE). For that reason locked memory goes without.
    let answer = locked(runtime, |_| raw(nr::MMAP, &[addr, len, protection, flags & !MAP_POPULATE, fd, offset]));
    if !is_error(answer) && flags & (MAP_POPULATE | MAP_NONBLOCK) == MAP_POPULATE {
        // As the kernel does it: private memory that may be written is written. What cannot be brought in is no error of this call.
        let is_written = flags & 0xf == map::PRIVATE && protection & prot::WRITE != 0;
        let what = if is_written { vm::advice::POPULATE_WRITE } else { vm::advice::POPULATE_READ };
        raw(nr::MADVISE, &[answer as u64, len, what, 0, 0, 0]);
    }
    answer
}

/// Maps a file whose mapping is to be managed. Where that cannot be, it stays the kernel's.
fn map_file(runtime: &Runtime, args: &Args) -> i64 {
    let [addr, len, protection, flags, fd, offset] = *args;
    let args = [hint(addr, flags), len, protection, flags & !MAP_POPULATE, fd, offset];
    let (answer, managed) = locked(runtime, |_| {
        let answer = raw(nr::MMAP, &args);
        (answer, if is_error(answer) { None } else { files::take_over(runtime, answer as u64, &args) })
    });
    if !is_error(answer) && flags & MAP_POPULATE != 0 {
        match managed {
            // To bring in more than stays would only take time.
            Some(range) if range.len() > runtime.engine.frames().limit() / 2 => {}
            Some(range) => {
                advice::bring_in(runtime, range, Access::Read);
            }
            // What cannot be brought in is no error of this call.
            None => {
                raw(nr::MADVISE, &[answer as u64, len, vm::advice::POPULATE_READ, 0, 0, 0]);
            }
        }
    }
    answer
}

/// Makes a small mapping that is not managed. `None`: small mappings have added up, so it is to be managed.
fn small_mapping(runtime: &Runtime, args: &Args) -> Option<i64> {
    locked(runtime, |space| {
        if space.small.add_up(&runtime.options) {
            space.small = Small::managed();
            return None;
        }
        let answer = raw(nr::MMAP, args);
        if !is_error(answer) {
            space.small.note(answer as u64, answer as u64 + args[1].next_multiple_of(PAGE));
        }
        Some(answer)
    })
}

/// The address at which the kernel is asked to map memory that will be managed. With five-level paging the kernel gives addresses
/// beyond the page table's 47 bits to a caller whose hint lies there; it may always choose another address.
pub fn hint(addr: u64, flags: u64) -> u64 {
    let fixed = flags & (map::FIXED | map::FIXED_NOREPLACE) != 0;
    if fixed || addr < TABLE_END { addr } else { 0 }
}

/// Maps; gives up what is managed at a fixed address; manages the result if `manage`.
fn over_managed(runtime: &Runtime, args: &Args, manage: bool) -> i64 {
    let [addr, len, protection, flags, fd, offset] = *args;
    let Some(bytes) = len.checked_next_multiple_of(PAGE) else { return raw(nr::MMAP, args) };
    let replaced = pages(addr, bytes).filter(|_| flags & map::FIXED != 0);
    if let Some(range) = replaced {
        runtime.engine.claim(range);
    }
    let flags = if manage { flags & !MAP_POPULATE } else { flags };
    let answer = raw(nr::MMAP, &[addr, len, protection, flags, fd, offset]);
    if let Some(range) = replaced {
        finish(runtime, range, answer);
    }
    if manage && !is_error(answer) {
        adopt(runtime, PageRange::covering(answer as u64, bytes));
    }
    answer
}

fn munmap(runtime: &Runtime, args: &Args) -> i64 {
    let Some(range) = args[1].checked_next_multiple_of(PAGE).and_then(|len| pages(args[0], len)) else {
        return raw(nr::MUNMAP, args);
    };
    locked(runtime, |space| {
        let answer = unmap_locked(runtime, range, || raw(nr::MUNMAP, args));
        if answer == 0 {
            space.small.forget(range.start.addr(), range.end.addr());
        }
        answer
    })
}

/// Claims the range, lets `call` unmap it, and finishes or puts the pages back.
fn unmap_locked(runtime: &Runtime, range: PageRange, call: impl FnOnce() -> i64) -> i64 {
    runtime.engine.claim(range);
    let answer = call();
    finish(runtime, range, answer);
    answer
}

/// A call that unmaps the claimed `range` has answered. An error does not say that nothing has changed. `mmap` of a file whose
/// driver refuses it, or without huge pages, and `mremap` beyond a limit fail after they have unmapped what was there.
fn finish(runtime: &Runtime, range: PageRange, answer: i64) {
    if is_error(answer) {
        runtime.engine.finish_refused(range);
        files::forget_unmanaged(runtime, range);
    } else {
        runtime.engine.finish_unmap(range);
        files::forget(range);
    }
}

fn brk(runtime: &Runtime, args: &Args) -> i64 {
    locked(runtime, |space| brk_locked(runtime, space, args[0]))
}

fn brk_locked(runtime: &Runtime, space: &mut Space, wanted: u64) -> i64 {
    let floor = Page::containing(space.heap_floor);
    let end_of = |brk: u64| Page(brk.div_ceil(PAGE).max(floor.0));
    let old = end_of(space.brk);
    // SAFETY: the program's own call; the words follow below.
    let call = |to: u64| unsafe { vm::brk(to) };
    if wanted != 0 && wanted < space.brk {
        let range = PageRange { start: end_of(wanted), end: old };
        if !range.is_empty() {
            runtime.engine.claim(range);
        }
        space.brk = call(wanted);
        if !range.is_empty() {
            if space.brk == wanted { runtime.engine.finish_unmap(range) } else { runtime.engine.unclaim(range) }
        }
        return space.brk as i64;
    }
    space.brk = call(wanted);
    let range = PageRange { start: old, end: end_of(space.brk) };
    if !range.is_empty() {
        adopt(runtime, range);
    }
    space.brk as i64
}

fn mprotect(runtime: &Runtime, number: u64, args: &Args) -> i64 {
    let range = args[1].checked_next_multiple_of(PAGE).and_then(|len| pages(args[0], len));
    if number != nr::MPROTECT {
        attributes::note();
    }
    let Some(range) = range.filter(|&r| any_managed(runtime, r)) else { return raw(number, args) };
    locked(runtime, |_| {
        // The kernel says whether a file may be run or written, and keys are its own.
        let is_odd = number != nr::MPROTECT || args[2] & !(prot::READ | prot::WRITE) != 0;
        if is_odd || (args[2] & prot::WRITE != 0 && files::any_shared(range)) {
            files::hand_back(runtime, range);
        }
        let readable = args[2] & prot::READ != 0;
        if !readable {
            runtime.engine.set_unreadable(range, true);
        }
        let answer = raw(number, args);
        if readable && !is_error(answer) {
            runtime.engine.set_unreadable(range, false);
        }
        files::note_protection(range, (!is_error(answer)).then_some(args[2]));
        answer
    })
}

/// Under the lock: hands over the managed parts of `range`, and its guards.
pub fn hand_over_managed(runtime: &Runtime, range: PageRange, fill: bool) -> i64 {
    files::hand_back(runtime, range);
    each_run(runtime, range, |run, held| match held {
        Held::Managed => hand_over(runtime, run, fill),
        Held::Guarded => match runtime.engine.kernel.uffd().unregister(run.start.addr(), run.bytes()) {
            Ok(()) => 0,
            Err(errno) => lost::fail(run.start, unregister_failed(errno)),
        },
        Held::Others => 0,
    })
}

/// For a `range` that the kernel will touch without a call: it stops being managed, with its bytes in memory.
pub fn keep(runtime: &Runtime, range: PageRange) {
    own_threads::ensure();
    locked(runtime, |_| hand_over_managed(runtime, range, true));
}

/// Serves shmat. With `SHM_REMAP` a shared segment takes the place of what is there.
fn shmat(runtime: &Runtime, args: &Args) -> i64 {
    const SHMCTL: u64 = 31;
    const IPC_STAT: u64 = 2;
    let [id, addr, flags, ..] = *args;
    if addr == 0 || flags & SHM_REMAP == 0 {
        return raw(SHMAT, args);
    }
    // struct shmid64_ds: the segment's size comes behind struct ipc64_perm, 48 bytes.
    let mut described = [0u64; 14];
    if is_error(raw(SHMCTL, &[id, IPC_STAT, described.as_mut_ptr() as u64, 0, 0, 0])) {
        // The size of the segment cannot be known. Without the right to read the segment, attaching it fails as well.
        return -i64::from(Errno::EACCES.0);
    }
    let size = described[6].checked_next_multiple_of(PAGE);
    let range = size.and_then(|size| pages(addr, size)).filter(|&r| any_managed(runtime, r));
    match range {
        Some(range) => locked(runtime, |_| unmap_locked(runtime, range, || raw(SHMAT, args))),
        None => raw(SHMAT, args),
    }
}

/// Serves mseal. Sealed memory could not be evicted (the kernel refuses to discard it while it is read-only), so managed memory
/// gets the answer of a kernel that has no such call.
fn mseal(runtime: &Runtime, args: &Args) -> i64 {
    let range = args[1].checked_next_multiple_of(PAGE).and_then(|len| pages(args[0], len));
    attributes::note();
    range.into_iter().for_each(|range| locked(runtime, |_| files::hand_back(runtime, range)));
    match range.filter(|&r| any_managed(runtime, r)) {
        Some(_) => -i64::from(Errno::ENOSYS.0),
        None => raw(MSEAL, args),
    }
}

/// Hands managed memory over to the kernel for good; `fill`: all of it, also pages that were never touched.
fn hand_over(runtime: &Runtime, run: PageRange, fill: bool) -> i64 {
    let Some(thread) = thread::current() else { return -i64::from(Errno::ENOMEM.0) };
    let claimed = thread.with_buffer(|buffer| runtime.engine.claim_resident(run, fill, thread.core(), buffer));
    if let Err(why) = claimed {
        lost::tell(runtime, run.start, why, Needed::ByCall);
        // The answer of mlock when a page cannot be had.
        return -i64::from(Errno::ENOMEM.0);
    }
    match runtime.engine.kernel.uffd().unregister(run.start.addr(), run.bytes()) {
        Ok(()) => {
            runtime.engine.hand_over(run);
            0
        }
        Err(errno) => lost::fail(run.start, unregister_failed(errno)),
    }
}

fn unregister_failed(errno: Errno) -> farshore_engine::fault::resolve::Failure {
    farshore_engine::fault::resolve::Failure::Kernel(farshore_core::seams::KernelError::Other(errno.0))
}

fn mremap(runtime: &Runtime, args: &Args) -> i64 {
    let [old, old_len, new_len, flags, target, _] = *args;
    let rounded = (old_len.checked_next_multiple_of(PAGE), new_len.checked_next_multiple_of(PAGE));
    let (Some(old_bytes), Some(new_bytes)) = rounded else { return raw(nr::MREMAP, args) };
    let from = pages(old, old_bytes);
    let onto = pages(target, new_bytes).filter(|_| flags & MREMAP_FIXED != 0);
    let managed = from.is_some_and(|r| any_managed(runtime, r));
    let covers = onto.is_some_and(|r| any_managed(runtime, r));
    let (Some(from), true) = (from, managed) else {
        return if covers {
            locked(runtime, |_| onto.map_or(0, |range| unmap_locked(runtime, range, || raw(nr::MREMAP, args))))
        } else {
            remap_unmanaged(runtime, args, old_bytes, new_bytes)
        };
    };
    if new_bytes == 0 {
        return raw(nr::MREMAP, args);
    }
    let only_shrinks = new_bytes <= from.bytes() && flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0;
    if !only_shrinks && files::any(from) {
        // A mapping of a file moves and grows with its file.
        locked(runtime, |_| files::hand_back(runtime, from));
        return mremap(runtime, args);
    }
    if flags & MREMAP_FIXED != 0 && target.saturating_add(new_bytes) >= TABLE_END {
        // Managed memory cannot move to addresses for which there are no page words. Without five-level paging there are no such
        // addresses, and the kernel's answer is this one.
        return -i64::from(Errno::EINVAL.0);
    }
    if onto.is_some_and(|onto| onto.start < from.end && from.start < onto.end) {
        // The kernel refuses that before it does anything.
        return raw(nr::MREMAP, args);
    }
    let serve = |may_bring_in: bool| {
        locked(runtime, |_| {
            let shrinks = new_bytes <= from.bytes() && flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0;
            // (A call that shrinks a range only takes its end away, whatever the range consists of.)
            if !shrinks && mixed(runtime, from) {
                return may_bring_in.then(|| remap_mixed(runtime, args, from, onto.filter(|_| covers)));
            }
            Some(remap(runtime, args, from, new_bytes, onto))
        })
    };
    let answer = serve(false).or_else(|| {
        // Pages may be brought in under the lock.
        own_threads::ensure();
        serve(true)
    });
    answer.unwrap_or(-i64::from(Errno::EFAULT.0))
}

/// Serves mremap, under the lock, for several mappings of which some are managed. One that was made before small mappings were managed may have grown
/// together with one that was made after: what is managed becomes the kernel's, if it is as little. Else the call is refused: Linux 6.17 would
/// move the first mapping and then stop at one with a userfaultfd.
fn remap_mixed(runtime: &Runtime, args: &Args, from: PageRange, onto: Option<PageRange>) -> i64 {
    let mut bytes = 0;
    each_run(runtime, from, |run, held| {
        bytes += if held == Held::Others { 0 } else { run.bytes() };
        0
    });
    if bytes > small::most(&runtime.options) {
        return -i64::from(Errno::EFAULT.0);
    }
    let answer = hand_over_managed(runtime, from, false);
    if is_error(answer) {
        return answer;
    }
    let call = || raw(nr::MREMAP, args);
    onto.map_or_else(call, |onto| unmap_locked(runtime, onto, call))
}

/// Serves mremap for a mapping that was too small to be managed and grows beyond the threshold: makes it a managed one with the
/// same bytes.
fn remap_unmanaged(runtime: &Runtime, args: &Args, old_bytes: u64, new_bytes: u64) -> i64 {
    let threshold = runtime.options.threshold.bytes();
    let [old, ..] = *args;
    let grows = old_bytes > 0 && old_bytes < threshold && new_bytes >= threshold && args[3] == MREMAP_MAYMOVE;
    if !grows || surrender::is_done() || !attributes::is_plain(old, old_bytes) {
        return locked(runtime, |space| {
            let answer = raw(nr::MREMAP, args);
            if !is_error(answer) {
                let to = answer as u64..answer as u64 + new_bytes;
                space.small.moved(old..old + old_bytes, to, args[3] & MREMAP_DONTUNMAP != 0);
            }
            answer
        });
    }
    let fresh = mmap(runtime, &[0, new_bytes, prot::READ | prot::WRITE, map::PRIVATE | map::ANONYMOUS, u64::MAX, 0]);
    if is_error(fresh) {
        return fresh;
    }
    // SAFETY: both are the program's: the old mapping is readable and writable private memory, just looked up, no other code
    // knows the new one. Faults on the new one are served on this thread as any other.
    if unsafe { farshore_sys::guarded::copy(fresh as *mut u8, old as *const u8, old_bytes as usize) }.is_err() {
        munmap(runtime, &[fresh as u64, new_bytes, 0, 0, 0, 0]);
        return raw(nr::MREMAP, args);
    }
    munmap(runtime, &[old, old_bytes, 0, 0, 0, 0]);
    fresh
}

/// Serves mremap under the lock; `from` holds managed pages.
fn remap(runtime: &Runtime, args: &Args, from: PageRange, new_bytes: u64, onto: Option<PageRange>) -> i64 {
    let [old, old_len, new_len, flags, target, _] = *args;
    let kept = PageRange::covering(old, new_bytes.min(from.bytes()));
    if flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) == 0 {
        if new_bytes <= from.bytes() {
            let tail = PageRange { start: kept.end, end: from.end };
            if tail.is_empty() {
                return raw(nr::MREMAP, args);
            }
            return unmap_locked(runtime, tail, || raw(nr::MREMAP, args));
        }
        // In place, if there is room: no page that is there changes.
        let answer = raw(nr::MREMAP, &[old, old_len, new_len, 0, 0, 0]);
        if !is_error(answer) {
            adopt(runtime, PageRange { start: from.end, end: Page(from.start.0 + new_bytes / PAGE) });
            return answer;
        }
        if flags & MREMAP_MAYMOVE == 0 || answer != -i64::from(Errno::ENOMEM.0) {
            return answer;
        }
    }
    let unreadable =
        from.by_granule().any(|part| runtime.engine.table.granule(part.start.granule()).is_some_and(|g| g.flags.is_unreadable()));
    runtime.engine.claim(from);
    if let Some(onto) = onto {
        runtime.engine.claim(onto);
    }
    set_apart(from, true);
    let answer = raw(nr::MREMAP, &[old, old_len, new_len, flags, target, 0]);
    if is_error(answer) || flags & MREMAP_DONTUNMAP != 0 {
        set_apart(from, false);
    }
    if is_error(answer) {
        // The kernel first unmaps the target, and then the part of the source that is too long.
        for range in [Some(from), onto].into_iter().flatten() {
            runtime.engine.finish_refused(range);
            files::forget_unmanaged(runtime, range);
        }
        return answer;
    }
    if let Some(onto) = onto {
        runtime.engine.finish_unmap(onto);
        files::forget(onto);
    }
    moved(runtime, from, kept, PageRange::covering(answer as u64, new_bytes), flags & MREMAP_DONTUNMAP != 0);
    if unreadable {
        runtime.engine.set_unreadable(PageRange::covering(answer as u64, new_bytes), true);
    }
    answer
}

/// Gives memory that is about to move an attribute that its neighbours do not have, or takes it away.
///
/// mremap drops the userfaultfd registration of the memory it has moved. It does so *after* it has merged the moved mapping with
/// a neighbour that looks the same, registration included. Then the neighbour is unregistered too, and its absent pages read as
/// zeros (seen on Linux 6.18). The kernel does not merge mappings with different attributes. No managed memory has this one at
/// other times: it would be the program's hint about reading ahead, which Farshore keeps to itself (`memory/advice.rs`).
fn set_apart(range: PageRange, apart: bool) {
    let what = if apart { advice::SEQUENTIAL } else { advice::NORMAL };
    raw(nr::MADVISE, &[range.start.addr(), range.bytes(), what, 0, 0, 0]);
}

/// Follows a move: the kernel has moved `kept` to the start of `to`, and userfaultfd does not follow by itself.
fn moved(runtime: &Runtime, from: PageRange, kept: PageRange, to: PageRange, old_stays: bool) {
    // SAFETY: faults are served as soon as the words are there, and no other code knows the new address yet.
    if unsafe { runtime.engine.kernel.uffd().register(to.start.addr(), to.bytes()) }.is_err() {
        // Absent pages could not fault any more: the program rather ends than reads zeros.
        crate::ground::report::abort(format_args!("memory that mremap moved to {:?} cannot be registered", to.start));
    }
    set_apart(to, false);
    runtime.engine.relocate(kept, to.start, old_stays);
    let (tail, grown) =
        (PageRange { start: kept.end, end: from.end }, PageRange { start: to.start.plus(kept.len()), end: to.end });
    if !tail.is_empty() {
        runtime.engine.finish_unmap(tail);
    }
    if !grown.is_empty() {
        runtime.engine.manage(grown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_managed_is_mapped_where_pages_have_words() {
        let high = TABLE_END + PAGE;
        assert_eq!(hint(high, map::PRIVATE | map::ANONYMOUS), 0);
        assert_eq!(hint(u64::MAX, map::PRIVATE | map::ANONYMOUS), 0, "a common way to ask for the highest");
        assert_eq!(hint(PAGE, map::PRIVATE), PAGE);
        assert_eq!(hint(high, map::FIXED), high, "there or nowhere: it stays the kernel's");
        assert!(!PageTable::covers(PageRange::covering(high, PAGE)));
        assert!(PageTable::covers(PageRange::covering(TABLE_END - PAGE, PAGE)));
        assert_eq!(pages(high, PAGE), None);
    }
}
