//! Threads that make memory calls: mmap, munmap, madvise, mremap, mlock, mprotect, and changes of the limit. They take
//! the same steps as the shipped library, in the same order, under one address-space lock.

use crate::Rig;
use crate::kernel::set_stamp;
use crate::model::{Kind, slot_of_home, stamp_in_file};
use crate::program::{accept, between_things, fetch_buffer, progress};
use crate::sched::{maybe_switch, sleep_ns};
use crate::world::{World, broken, note, world};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{HugePages, PageBuf};
use farshore_core::word::{FilePage, Slot};
use farshore_engine::Reuse;
use farshore_engine::scan::Allowance;
use farshore_engine::wishes::Wish;
use std::rc::Rc;

pub(crate) fn lock() {
    loop {
        let got = world(|w| {
            if w.call_lock.is_none() {
                w.call_lock = Some(w.current);
            }
            w.call_lock == Some(w.current)
        });
        if got {
            return;
        }
        sleep_ns(3_000);
    }
}

pub(crate) fn unlock() {
    world(|w| {
        w.call_lock = None;
        w.counts.memory_calls += 1;
        progress(w);
    });
}

/// Whether the kernel refuses the call that is being made.
fn refused() -> bool {
    maybe_switch();
    world(|w| {
        let rate = w.rates.call_refused;
        let hit = w.rng.chance(rate);
        w.counts.injected += u64::from(hit);
        hit
    })
}

/// A thread that makes memory calls until the run ends. `core`: where its faults count.
pub fn caller(rig: &Rc<Rig>, core: usize) {
    let mut buffer = fetch_buffer();
    while !between_things() {
        let pause = world(|w| {
            let most = w.setup.call_pause;
            w.rng.between(1_000, most)
        });
        sleep_ns(pause);
        call(rig, core, &mut buffer);
    }
}

/// Any memory call, under the address-space lock.
pub fn call(rig: &Rc<Rig>, core: usize, buffer: &mut [PageBuf]) {
    lock();
    one_call(rig, core, buffer);
    unlock();
}

/// Maps or unmaps a whole granule.
fn churn(rig: &Rc<Rig>) {
    match world(|w| if w.rng.below(2) == 0 { None } else { w.model.part(&mut w.rng, 1) }) {
        None => map(rig, true),
        Some(page) => unmap(rig, page.start.granule().range()),
    }
}

fn one_call(rig: &Rc<Rig>, core: usize, buffer: &mut [PageBuf]) {
    if world(|w| w.setup.churn && w.rng.below(50) > 0) {
        return churn(rig);
    }
    let (kind, short) = world(|w| {
        let few = w.model.alive_pages() < w.setup.pages;
        let kind = if few && w.rng.below(2) == 0 { 0 } else { w.rng.below(13) };
        (kind, w.rng.pick(&[1, 4, 40, 300, 1300]))
    });
    let part = world(|w| w.model.part(&mut w.rng, short));
    match (kind, part) {
        (0, _) => map(rig, true),
        (1, _) => map(rig, false),
        (2, Some(range)) => unmap(rig, range),
        // Whole granules, with all regions that lie in them: these come and go by their flag.
        (3, Some(range)) => unmap(rig, world(|w| range.start.granule().range().intersect(w.memory.arena()))),
        (4..=6, Some(range)) => discard(rig, range),
        (7 | 8, Some(range)) => relocate(rig, range),
        (9, Some(range)) => keep(rig, range, world(|w| w.rng.below(2) == 0), core, buffer),
        (10, Some(range)) => protect(rig, range),
        (11, _) => {
            limit(rig);
            pace(rig);
            if let Some(range) = part {
                wish(rig, range);
            }
        }
        (12, Some(range)) => take_over(rig, range, core),
        (13, _) => map_file(rig),
        (14, Some(range)) => hand_back(rig, range),
        _ => {}
    }
}

/// What a policy beside the program, or `madvise`, would like: pages leave, come or stay meanwhile.
fn wish(rig: &Rc<Rig>, range: PageRange) {
    let (which, ns) = world(|w| (w.rng.below(12), w.rng.between(1_000, 1_000_000)));
    note("wish", range.start.0, which);
    match which {
        0..=1 => rig.engine.wish(range, Wish::Leave),
        2 => rig.engine.wish(range, Wish::Come),
        3 => rig.engine.wish(range, Wish::Stay),
        4 => rig.engine.wish(range, Wish::StayFor(ns)),
        5 => {
            rig.engine.free_all();
            rig.engine.forget_expected();
        }
        6..=7 => scan(rig, range, ns),
        8..=10 => {
            let reuse = Reuse::ALL[ns as usize % Reuse::ALL.len()];
            // Of one kind, of all pages: whatever is said of them must not keep evictors from their work.
            let range = if ns % 5 == 0 { world(|w| w.memory.arena()) } else { range };
            rig.engine.expect(range, reuse);
        }
        _ => rig.engine.make_old(range),
    }
}

/// A policy looks at which pages are used, and sees it after a while.
fn scan(rig: &Rc<Rig>, range: PageRange, ns: u64) {
    let few = PageRange { start: range.start, end: range.start.plus(range.len().min(512)) };
    let mut allowance = Allowance::new(0);
    allowance.give_back(u64::MAX / 2);
    let mut scans = [rig.engine.begin_scan(few, ns, &mut allowance), rig.engine.begin_scan(few, ns, &mut allowance)];
    rig.engine.settle_scans(scans.iter_mut().flatten(), &mut allowance);
    let begun = world(|w| w.counts.accesses);
    sleep_ns(ns);
    for scan in scans.into_iter().flatten() {
        let asked = world(|w| w.counts.accesses);
        rig.engine.end_scan(&scan, &mut allowance, |chunk, seen| {
            assert!(seen.accessed & !seen.looked == 0 && seen.written & !seen.accessed == 0, "{seen:?} of {chunk:?}");
            for page in chunk.iter().filter(|page| (seen.looked & !seen.accessed) >> (page.0 - chunk.start.0) & 1 != 0) {
                // One that is there was watched; others have left, maybe after a use.
                let used = |w: &World| w.memory.get(page).filter(|place| place.bytes.is_some()).map(|place| place.used_at);
                if world(|w| used(w).is_some_and(|used| begun < used && used <= asked)) {
                    broken(page.0, "a page that was used is told as unused");
                }
            }
        });
    }
}

/// Ends the program's use of `range` before a call changes it, unless this program races with its own calls.
fn retire(range: PageRange) {
    world(|w| {
        let racy = w.setup.racy && w.rng.chance(5000);
        if !racy {
            w.model.remove_alive(range);
        }
        w.model.call(range);
    });
}

/// The call on `range` is over; `alive`: whether the program may use the range.
fn restored(range: PageRange, alive: bool) {
    world(|w| {
        w.model.remove_alive(range);
        if alive {
            // Only existing pages: a range may span several regions and holes between them.
            for page in range.iter().filter(|&p| w.model.get(p).kind != Kind::None).collect::<Vec<_>>() {
                match w.model.alive.last_mut() {
                    Some(last) if last.end == page => last.end = page.plus(1),
                    _ => w.model.add_alive(PageRange { start: page, end: page.plus(1) }),
                }
            }
        }
        w.model.call(range);
    });
}

/// `mmap` of a region, managed or not.
pub fn map(rig: &Rc<Rig>, managed: bool) {
    let room = world(|w| {
        let len = match w.rng.below(4) {
            _ if w.setup.churn => 512,
            0 => w.rng.between(1, 16),
            1 => 512 * w.rng.between(1, 2),
            _ => w.rng.between(1, 700),
        };
        let len = if managed { len } else { len.min(20) };
        w.model.room(&mut w.rng, len)
    });
    let Some(range) = room else { return };
    note("mmap", range.start.0, range.len());
    world(|w| {
        w.model.call(range);
        w.memory.map(range, managed);
        let kind = if managed { Kind::Managed } else { Kind::Plain };
        // Some regions end in memory that no thread may touch yet, as glibc's arenas do.
        let closed = if managed && w.rng.below(4) == 0 { w.rng.below(range.len()) } else { 0 };
        let closed = PageRange { start: Page(range.end.0 - closed), end: range.end };
        w.memory.close(closed);
        w.model.change(range, |page, e| {
            e.kind = kind;
            e.stamp = 0;
            e.no_access = page >= closed.start;
        });
    });
    maybe_switch();
    if managed {
        rig.engine.manage(range);
    }
    restored(range, true);
}

/// `mmap` of a file, whose pages are managed.
fn map_file(rig: &Rc<Rig>) {
    let room = world(|w| {
        let len = if w.rng.below(3) == 0 { 512 } else { w.rng.between(1, 700) };
        w.model.room(&mut w.rng, len)
    });
    let Some(range) = room else { return };
    let first = world(|w| FilePage { file: 0, page: w.rng.below(1 << 20) }.slot());
    let Some(first) = first else { return };
    note("mmap of a file", range.start.0, range.len());
    world(|w| {
        w.model.call(range);
        w.memory.map(range, true);
        w.model.change(range, |page, e| {
            e.kind = Kind::Managed;
            e.no_access = false;
            e.home = stamp_in_file(first.plus(page.0 - range.start.0)).unwrap_or(0);
            e.stamp = e.home;
        });
    });
    maybe_switch();
    rig.engine.manage_file(range, first);
    restored(range, true);
}

/// The longest pieces of `range` that are of a file, in order, with the slot that stands for the first page, and those that are not.
fn pieces(range: PageRange) -> Vec<(PageRange, Option<Slot>)> {
    let mut pieces: Vec<(PageRange, Option<Slot>)> = Vec::new();
    for page in range.iter() {
        let slot = slot_of_home(world(|w| w.model.get(page).home));
        match pieces.last_mut() {
            Some((piece, first)) if first.map(|first| first.plus(piece.len())) == slot => piece.end = page.plus(1),
            _ => pieces.push((PageRange { start: page, end: page.plus(1) }, slot)),
        }
    }
    pieces
}

/// The file is to be written: what the program has not written becomes the kernel's own mapping of the file.
fn hand_back(rig: &Rc<Rig>, range: PageRange) {
    for (piece, _) in pieces(range).into_iter().filter(|(_, first)| first.is_some()) {
        note("hand back", piece.start.0, piece.len());
        world(|w| w.model.call(piece));
        rig.engine.hand_back(piece, false, |run| {
            if refused() {
                return false;
            }
            world(|w| {
                keeps_none(w, run);
                w.memory.unmap(run);
                w.memory.map(run, false);
                w.model.change(run, |_, e| e.kind = Kind::Plain);
                for page in run.iter() {
                    let expected = w.model.get(page);
                    if expected.stamp != expected.home {
                        broken(page.0, "a page that was written is given back as the file has it");
                    }
                    let place = w.memory.place(page);
                    place.no_access = expected.no_access;
                    let bytes = place.bytes.get_or_insert_with(|| Box::new(PageBuf::ZERO));
                    set_stamp(bytes, expected.home);
                    note("kernel maps the file", page.0, run.len());
                }
            });
            maybe_switch();
            true
        });
        // Of what is left, and of what was refused, the file is not followed any further.
        world(|w| w.model.change(piece, |_, e| e.home = if e.kind == Kind::Plain || e.stamp != e.home { 0 } else { e.home }));
        restored(piece, true);
    }
}

/// `munmap`.
pub fn unmap(rig: &Rc<Rig>, range: PageRange) {
    note("munmap", range.start.0, range.len());
    retire(range);
    rig.engine.claim(range);
    if refused() {
        // Some calls fail late: by then they have unmapped all of the range or a part.
        let some = world(|w| w.rng.below(range.len()));
        let gone = world(|w| w.rng.pick(&[0, 0, some, range.len()]));
        unmapped(PageRange { start: range.start, end: range.start.plus(gone) });
        rig.engine.finish_refused(range);
        restored(range, true);
        return;
    }
    world(|w| keeps_none(w, range));
    unmapped(range);
    maybe_switch();
    rig.engine.finish_unmap(range);
    restored(range, false);
}

/// The kernel unmaps.
fn unmapped(range: PageRange) {
    world(|w| {
        w.memory.unmap(range);
        range.iter().for_each(|p| note("kernel munmap", p.0, range.len()));
        w.model.change(range, |_, e| {
            e.kind = Kind::None;
            (e.stamp, e.home) = (0, 0);
            e.no_access = false;
        });
    });
}

/// `madvise(MADV_DONTNEED)`: the program goes on using the range.
fn discard(rig: &Rc<Rig>, range: PageRange) {
    note("madvise", range.start.0, range.len());
    world(|w| w.model.change(range, |_, e| e.dropped += 1));
    for (piece, first) in pieces(range) {
        let call = |part| {
            if refused() {
                return Err(());
            }
            world(|w| {
                keeps_none(w, part);
                w.memory.drop_bytes(part);
                part.iter().for_each(|p| note("kernel dontneed", p.0, part.len()));
                w.model.change(part, |_, e| e.stamp = e.home);
            });
            maybe_switch();
            Ok(())
        };
        let done = match first {
            None => rig.engine.discard(piece, call),
            Some(first) => rig.engine.discard_to_file(piece, first, call),
        };
        if done.is_err() {
            break;
        }
    }
    world(|w| w.model.change(range, |_, e| e.dropped += 1));
}

/// The kernel has done the call, and the engine hears of it at once, or when the thread has its processor back: evictors go on meanwhile.
fn linger() {
    maybe_switch();
    let ns = world(|w| if w.rng.below(4) == 0 { w.rng.between(1_000, 1_000_000) } else { 0 });
    if ns > 0 {
        sleep_ns(ns);
    }
}

/// A place for what moves (`old`) that memory had a moment ago, as with `MREMAP_FIXED`: between other pages of its granule, at which evictors may be at work.
fn hole(rig: &Rc<Rig>, old: PageRange) -> Option<PageRange> {
    let over = world(|w| if w.rng.below(2) == 0 { w.model.part(&mut w.rng, 2 * old.len()) } else { None })?;
    let new = PageRange { start: over.start, end: over.start.plus(old.len().min(over.len())) };
    if new.len() < old.len() || !new.intersect(old).is_empty() {
        return None;
    }
    unmap(rig, new);
    world(|w| new.iter().all(|page| w.model.get(page).kind == Kind::None)).then_some(new)
}

/// `mremap` to another place.
fn relocate(rig: &Rc<Rig>, old: PageRange) {
    hand_back(rig, old);
    if world(|w| old.iter().any(|page| w.model.get(page).home != 0)) {
        return;
    }
    let over = hole(rig, old);
    let plan = world(|w| {
        let movable = old.iter().all(|p| w.model.get(p).kind == Kind::Managed);
        let stays = w.rng.below(4) == 0;
        over.or_else(|| w.model.room(&mut w.rng, old.len())).filter(|_| movable).map(|new| (new, stays))
    });
    let Some((new, stays)) = plan else { return };
    note("mremap", old.start.0, new.start.0);
    retire(old);
    world(|w| w.model.call(new));
    rig.engine.claim(old);
    if refused() {
        rig.engine.finish_refused(old);
        restored(old, true);
        world(|w| w.model.call(new));
        return;
    }
    world(|w| {
        w.memory.relocate(old, new.start, stays);
        for page in old.iter() {
            let target = new.start.plus(page.0 - old.start.0);
            let was = w.model.get(page);
            note("kernel mremap from", page.0, target.0);
            note("kernel mremap to", target.0, page.0);
            let one = |p| PageRange { start: p, end: farshore_core::page::Page(p.0 + 1) };
            w.model.change(one(target), |_, e| (e.kind, e.stamp, e.no_access) = (was.kind, was.stamp, was.no_access));
            w.model.change(one(page), |_, e| {
                e.stamp = 0;
                e.kind = if stays { Kind::Managed } else { Kind::None };
                e.no_access &= stays;
            });
        }
    });
    linger();
    rig.engine.relocate(old, new.start, stays);
    restored(old, stays);
    restored(new, true);
}

/// `mlock` (`fill`: all pages are present afterwards), or a call after which the kernel alone manages the pages that exist: the
/// kernel keeps them, the engine forgets them.
fn keep(rig: &Rc<Rig>, range: PageRange, fill: bool, core: usize, buffer: &mut [PageBuf]) {
    // Reservations are large, and locked memory is brought in page by page.
    let range = if fill { PageRange { start: range.start, end: range.start.plus(range.len().min(40)) } } else { range };
    hand_back(rig, range);
    if world(|w| range.iter().any(|p| w.model.get(p).no_access || w.model.get(p).home != 0)) {
        return;
    }
    note(if fill { "mlock" } else { "leave to the kernel" }, range.start.0, range.len());
    world(|w| w.model.call(range));
    if let Err(why) = rig.engine.claim_resident(range, fill, core, buffer) {
        accept(rig, range.start, why);
        restored(range, true);
        return;
    }
    if refused() {
        rig.engine.unclaim_resident(range);
        restored(range, true);
        return;
    }
    world(|w| {
        w.memory.keep(range, fill);
        range.iter().for_each(|p| note("kernel keeps", p.0, range.len()));
        w.model.change(range, |_, e| {
            if e.kind == Kind::Managed {
                e.kind = Kind::Plain;
            }
        });
    });
    maybe_switch();
    rig.engine.hand_over(range);
    restored(range, true);
}

/// Memory that was the kernel's becomes managed with its present pages, as when a dormant process wakes.
fn take_over(rig: &Rc<Rig>, range: PageRange, core: usize) {
    let plain = world(|w| {
        let is_plain = |page: Page| w.model.get(page).kind == Kind::Plain;
        let start = range.iter().find(|&page| is_plain(page))?;
        let end = PageRange { start, end: range.end }.iter().find(|&page| !is_plain(page)).unwrap_or(range.end);
        Some(PageRange { start, end })
    });
    let Some(range) = plain else { return };
    note("take over", range.start.0, range.len());
    retire(range);
    let (present, closed) = world(|w| {
        w.memory.register(range);
        range.iter().for_each(|p| note("kernel registers", p.0, range.len()));
        w.model.change(range, |_, e| e.kind = Kind::Managed);
        let present: Vec<Page> = range.iter().filter(|&p| w.memory.get(p).is_some_and(|place| place.bytes.is_some())).collect();
        w.taking_over = present.len() as u64;
        if w.setup.huge != HugePages::Never {
            // The kernel has made huge pages of some of it, by its own rules.
            w.memory.join(range);
        }
        (present, range.iter().any(|page| w.model.get(page).no_access))
    });
    maybe_switch();
    rig.engine.manage(range);
    rig.engine.note_huge(range);
    maybe_switch();
    for run in present.chunk_by(|one, next| one.plus(1) == *next) {
        rig.engine.take_stock(PageRange { start: run[0], end: run[run.len() - 1].plus(1) }, core);
    }
    world(|w| w.taking_over = 0);
    if closed {
        rig.engine.set_unreadable(range, true);
    }
    restored(range, true);
}

/// `mprotect(PROT_NONE)`, or back.
fn protect(rig: &Rc<Rig>, range: PageRange) {
    let forbid = world(|w| !w.model.get(range.start).no_access);
    note(if forbid { "mprotect none" } else { "mprotect back" }, range.start.0, range.len());
    world(|w| w.model.call(range));
    if forbid {
        rig.engine.set_unreadable(range, true);
    }
    maybe_switch();
    world(|w| {
        w.memory.set_access(range, !forbid);
        w.model.change(range, |_, e| e.no_access = forbid && e.kind != Kind::None);
    });
    maybe_switch();
    if !forbid {
        rig.engine.set_unreadable(range, false);
    }
    world(|w| w.model.call(range));
}

/// Another memory limit.
pub fn limit(rig: &Rc<Rig>) {
    if world(|w| w.pausing || w.stopping) {
        // While the run is brought to rest, or at its end, the run has set the limit that it needs.
        return;
    }
    let bytes = world(|w| w.setup.memory * w.rng.between(5, 20) / 10);
    note("limit", 0, bytes);
    if let Err(least) = rig.engine.set_memory_limit(bytes) {
        assert!(bytes < least, "the limit {bytes} was refused though it is not below {least}");
        let _ = rig.engine.set_memory_limit(least);
    }
}

/// Fixes another part of the evictors' pace, or lets it adapt.
fn pace(rig: &Rc<Rig>) {
    let wanted = world(|w| w.setup.paces.then(|| crate::setup::draw_pace(&mut w.rng, w.setup.evictors)));
    if let Some(wanted) = wanted {
        note("pace", 0, u64::from(wanted.batch.unwrap_or(0)));
        rig.engine.fix_pace(wanted);
        // Also against what was just fixed, until an evictor looks.
        rig.engine.force_headroom(world(|w| w.rng.below(2) == 0));
    }
}

/// Checks that the RAM of memory that the program gives up is free.
fn keeps_none(w: &World, range: PageRange) {
    if let Some(page) = w.memory.keeps_ram(range).filter(|_| w.strict) {
        broken(page.0, "a part of a huge page goes that was not split: its RAM stays");
    }
}
