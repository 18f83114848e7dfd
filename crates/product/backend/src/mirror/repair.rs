//! Copies that come back, and what they have missed.
//!
//! All of this is done by the one thread that keeps the space ([`Spaces::keep`](farshore_core::seams::Spaces::keep)), a little at a time, since nobody can fork
//! meanwhile.
//!
//! Slots that no page has any more, and no child reads, are not copied: they are forgotten. That is found out when the repair of the slot was begun: whoever takes it
//! after that for a page of its own finds the repair there, and says so ([`SlotCopies::end_unneeded`](farshore_core::copies::SlotCopies::end_unneeded)).

use super::exchange::NoExchange;
use super::place::{AWAY, Copy};
use super::site::Site;
use super::{LOOK_NS, Open, PAUSE_MAX_NS, Shared};
use crate::any::{AnyBackend, AnyQueue};
use crate::sleep;
use core::ops::Range;
use core::sync::atomic::Ordering;
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::{Backend, FreeSlots, IoError, PageBuf, Reads, Spaces, WriteQueue};
use farshore_core::word::Slot;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Pages that are copied at a time.
const PAGES: usize = 64;
/// The pause after them, in ns: some 60 MiB/s at most.
const REST_NS: u64 = 4_000_000;
/// How long a write of these is waited for, in ns. A server's queue gives up before; a disk may hang.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Pages that a source cannot read, after which the others of an extent wait for the next turn.
const UNREADABLE_MAX: u32 = 4;
/// The pause where a copy takes nothing now (it is full), in ns.
const REFUSED_NS: u64 = 1_000_000_000;

/// See the module's head.
pub(super) struct Repair {
    /// Writes to the copies, one at a time.
    queues: Box<[Option<AnyQueue>]>,
    pages: Box<[PageBuf]>,
    /// What the stamp is read into.
    found: Box<PageBuf>,
    /// The extent that is looked at next, for each copy.
    next: Box<[u64]>,
    /// Whose stamp is wrong, and all of whose slots are marked.
    lost: Box<[bool]>,
    /// How many times in a row a copy's stamp was wrong.
    wrong: Box<[u32]>,
    /// A repair of this copy was refused: none before this, ns.
    not_before_ns: Box<[u64]>,
}

impl core::fmt::Debug for Repair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Repair").field("next", &self.next).finish_non_exhaustive()
    }
}

/// What a copy's stamp says.
#[derive(PartialEq, Eq, Debug)]
enum Stamp {
    Right,
    Wrong,
    Away,
}

/// Bytes that no other run has.
///
/// # Errors
/// There are none to be had.
pub(super) fn new_stamp() -> Result<Box<PageBuf>, IoError> {
    let mut stamp = Box::new(PageBuf::ZERO);
    let mut seed = [0; 32];
    // More than that it gives at once, or nothing.
    getrandom(&mut seed, GetRandomFlags::empty()).map_err(|errno| IoError::Device(errno.raw_os_error()))?;
    stamp.0.chunks_exact_mut(seed.len()).for_each(|part| part.copy_from_slice(&seed));
    Ok(stamp)
}

/// Where the stamp of a copy lies, if it has one: the last of its slots.
fn stamp_of(space: &AnyBackend, remote: bool) -> Option<Slot> {
    space.capacity().filter(|_| remote).and_then(|slots| Slot::new(slots - 1))
}

/// Whether two spaces are one export by two names: the bytes of the one's stamp, which no other run has, are at the same place of the other.
fn are_one_export(there: &AnyBackend, other: &AnyBackend) -> bool {
    let (Some(at), Some(there), Some(other)) = (stamp_of(there, true), there.export(), other.export()) else { return false };
    let Some(offset) = there.offset_of(at) else { return false };
    let mut pages = Box::new([PageBuf::ZERO; 2]);
    let [ours, theirs] = &mut *pages;
    there.read_raw(offset, &mut ours.0).is_ok()
        && other.read_raw(offset, &mut theirs.0).is_ok()
        && ours.0 == theirs.0
        && ours.0.iter().any(|&byte| byte != 0)
}

/// Whether a page is the stamp of a copy: each has its own number in it.
fn is_stamp_of(shared: &Shared, copy: usize, page: &PageBuf) -> bool {
    page.0[0] == copy as u8 && page.0[1..] == shared.stamp.0[1..]
}

/// Looks at a copy's stamp.
fn look(shared: &Shared, copy: usize, space: &AnyBackend, place: Slot, found: &mut PageBuf) -> Stamp {
    for last in [false, true] {
        match space.read(place, found) {
            Ok(()) if is_stamp_of(shared, copy, found) => return Stamp::Right,
            // Once more: a bit may have turned on the way.
            Ok(()) | Err(IoError::Short) if !last => {}
            Ok(()) | Err(IoError::Short) => return Stamp::Wrong,
            Err(why) if last || super::is_lost(why) => return Stamp::Away,
            Err(_) => {}
        }
    }
    Stamp::Wrong
}

/// Writes pages by a queue that has nothing in flight, and waits.
///
/// # Safety
/// The pages stay as they are until the queue has nothing in flight.
unsafe fn write_and_wait(queue: &mut AnyQueue, first: Slot, pages: &[PageBuf]) -> Result<(), IoError> {
    let late = IoError::Device(Errno::TIMEDOUT.raw_os_error());
    let mut ended = None;
    // SAFETY: the caller keeps the pages as they are until the write has ended.
    unsafe { queue.start_write(first, pages.as_ptr(), pages.len() as u32, 0) }.map_err(|()| late)?;
    let until = sleep::now_ns() + PATIENCE_NS;
    while queue.in_flight() > 0 && sleep::now_ns() < until {
        queue.reap_within(PATIENCE_NS, &mut |_, result| ended = Some(result));
    }
    ended.unwrap_or(Err(late))
}

/// The first use of a copy that is to come to a place beside others, which nobody knows of yet. It may be one of them by another name: then its stamp has overwritten
/// theirs, which is put back at once. Returns the queue for its repair. Waits for servers, and holds nothing meanwhile that a fork would copy.
///
/// # Errors
/// It cannot be used, or is one of the others.
pub(super) fn try_out(shared: &Shared, place: usize, space: &AnyBackend, remote: bool) -> Result<AnyQueue, NoExchange> {
    let stamp = |copy: usize| {
        let mut page = shared.stamp.clone();
        page.0[0] = copy as u8;
        page
    };
    // First without a write: in a program whose relatives use servers too, the first place of the export that is ours by one name is a relative's by the other.
    for copy in
        shared.copies.iter().enumerate().filter(|(n, copy)| *n != place && copy.is_remote() && copy.is_up()).map(|(_, copy)| copy)
    {
        if copy.opened().is_some_and(|there| are_one_export(&there, space)) {
            return Err(NoExchange::Same(copy.name()));
        }
    }
    // Dropped behind the queue, which waits for its writes then.
    let own = stamp(place);
    let mut queue = space.queue(1).map_err(NoExchange::Use)?;
    let Some(at) = stamp_of(space, remote) else { return Ok(queue) };
    // SAFETY: `own` is not changed, and if the write does not end, the queue is dropped first.
    unsafe { write_and_wait(&mut queue, at, core::slice::from_ref(&own)) }.map_err(NoExchange::Use)?;
    space.export().into_iter().for_each(|export| export.is_known_by(at));
    let mut found = Box::new(PageBuf::ZERO);
    for (n, copy) in shared.copies.iter().enumerate().filter(|(n, copy)| *n != place && copy.is_remote() && copy.is_up()) {
        let Some(there) = copy.opened() else { continue };
        let Some(their) = stamp_of(&there, true) else { continue };
        // One that lost its stamp before is found out about by the next look.
        if look(shared, n, &there, their, &mut found) == Stamp::Wrong && is_stamp_of(shared, place, &found) {
            // By the queue that is here: it is the same place. If that fails, the next look finds it wrong, and all is copied there again.
            let theirs = stamp(n);
            // SAFETY: as above: a queue whose write does not end is dropped before the page.
            let _ = unsafe { write_and_wait(&mut queue, at, core::slice::from_ref(&theirs)) };
            drop(queue);
            return Err(NoExchange::Same(copy.name()));
        }
    }
    Ok(queue)
}

/// What has become of a run.
enum Copied {
    /// So many were copied; 0: nothing can be done about the first of them now.
    Run(usize),
    /// The copy that should have these many cannot read them.
    Unreadable(usize),
    /// Nobody needs the first of them.
    Unneeded,
}

impl Repair {
    /// For the copies that are open, each of which gets its stamp. `partly`: as long as one does.
    ///
    /// # Errors
    /// The copy that cannot be written, and why.
    pub(super) fn new(shared: &Shared, partly: bool) -> Result<Repair, (usize, IoError)> {
        let mut repair = Repair {
            queues: shared.copies.iter().map(|_| None).collect(),
            pages: vec![PageBuf::ZERO; PAGES].into(),
            found: Box::new(PageBuf::ZERO),
            next: vec![0; shared.copies.len()].into(),
            lost: vec![false; shared.copies.len()].into(),
            wrong: vec![0; shared.copies.len()].into(),
            not_before_ns: vec![0; shared.copies.len()].into(),
        };
        let mut failed = None;
        for (n, copy) in shared.copies.iter().enumerate() {
            let Some(space) = copy.opened() else { continue };
            if let Err(why) = repair.begin(shared, n, &space, copy.is_remote()) {
                if !partly {
                    return Err((n, why));
                }
                // It has no stamp, so it is asked for it, and gets one, before it is used.
                copy.fall();
                failed = Some((n, why));
            }
        }
        // Another copy may be the same server by another name, and have put its own stamp there.
        for (n, copy) in shared.copies.iter().enumerate().filter(|(_, copy)| copy.is_up()) {
            let Some(space) = copy.opened() else { continue };
            let place = stamp_of(&space, copy.is_remote());
            if place.is_some_and(|place| look(shared, n, &space, place, &mut repair.found) == Stamp::Wrong) {
                return Err((n, IoError::Device(Errno::NOTUNIQ.raw_os_error())));
            }
        }
        failed.filter(|_| shared.up() == 0).map_or(Ok(repair), Err)
    }

    /// The first use of a copy.
    fn begin(&mut self, shared: &Shared, copy: usize, space: &AnyBackend, remote: bool) -> Result<(), IoError> {
        self.queues[copy] = Some(space.queue(1)?);
        match stamp_of(space, remote) {
            Some(place) => self.put_stamp(shared, copy, space, place),
            None => Ok(()),
        }
    }

    /// A copy has come, and this is the queue for its repair.
    pub(super) fn begin_with(&mut self, copy: usize, queue: AnyQueue) {
        drop(self.forget(copy));
        self.queues[copy] = Some(queue);
    }

    /// Whether nothing of ours is in flight at a copy.
    pub(super) fn is_at_rest(&mut self, copy: usize) -> bool {
        self.queues[copy].as_mut().is_none_or(|queue| {
            queue.reap(false, &mut |_, _| {});
            queue.in_flight() == 0
        })
    }

    /// A copy has gone: nothing is known of its place. Returns the queue, for the caller to drop.
    pub(super) fn forget(&mut self, copy: usize) -> Option<AnyQueue> {
        (self.next[copy], self.lost[copy], self.wrong[copy], self.not_before_ns[copy]) = (0, false, 0, 0);
        self.queues[copy].take()
    }

    /// Opens a copy that was away until now, if it is there.
    pub(super) fn open_more(&mut self, shared: &Shared, slots: Option<u64>, open: &Open) {
        for (n, copy) in shared.copies.iter().enumerate().filter(|(_, copy)| copy.state() == AWAY) {
            let now = sleep::now_ns();
            if now < copy.due_ns.load(Ordering::Relaxed) {
                continue;
            }
            // Whatever comes of it.
            copy.wait(now, 2 * copy.pause_ns.load(Ordering::Relaxed));
            let Some(Ok(space)) = copy.spec().map(|spec| open(n, &spec, &mut |_| {})) else { continue };
            // It must have each slot that the others have. (Its stamp would lie among them.)
            if Copy::room(&space, copy.is_remote()).is_some_and(|room| slots.is_none_or(|slots| room < slots)) {
                continue;
            }
            if self.begin(shared, n, &space, copy.is_remote()).is_err() {
                self.queues[n] = None;
                continue;
            }
            copy.found_at(copy.spec().as_ref().and_then(Site::of));
            let _ = shared.install(n, space);
        }
    }

    /// Puts the stamp on a copy.
    fn put_stamp(&mut self, shared: &Shared, copy: usize, space: &AnyBackend, place: Slot) -> Result<(), IoError> {
        if self.is_busy() {
            return Err(IoError::Device(Errno::BUSY.raw_os_error()));
        }
        self.pages[0].clone_from(&shared.stamp);
        // Each copy has its own.
        self.pages[0].0[0] = copy as u8;
        self.write(shared, copy, place, 1)?;
        space.export().into_iter().for_each(|export| export.is_known_by(place));
        Ok(())
    }

    /// Writes the first `count` of our pages to a copy, and waits. Nothing is in flight.
    fn write(&mut self, shared: &Shared, copy: usize, first: Slot, count: usize) -> Result<(), IoError> {
        let late = IoError::Device(Errno::TIMEDOUT.raw_os_error());
        let Some(queue) = &mut self.queues[copy] else { return Err(late) };
        // SAFETY: the pages live as long as the queue, which is dropped before them, and are not changed while any has something in flight: `turn` and `put_stamp` look at
        // that first.
        let ended = unsafe { write_and_wait(queue, first, &self.pages[..count]) };
        if queue.in_flight() > 0 {
            // Before its slots are free for others: see `Copy::stuck`.
            shared.copies[copy].stuck.store(true, Ordering::Release);
        }
        ended
    }

    /// Looks at what is due, and copies a little if `repairs`: a forked child has its parent's copies, and leaves their queues alone. Returns after how many ns to
    /// come again.
    pub(super) fn turn(&mut self, shared: &Shared, repairs: bool, free: &dyn FreeSlots) -> u64 {
        let is_stuck = repairs && self.is_stuck(shared);
        let repairs = repairs && !is_stuck;
        let mut again = LOOK_NS;
        for (copy, it) in shared.copies.iter().enumerate() {
            let now = sleep::now_ns();
            let due = it.due_ns.load(Ordering::Relaxed);
            if now < due {
                again = again.min(due - now);
            } else if it.is_readable() && (!it.is_up() || it.is_remote()) {
                self.ask(shared, copy, repairs);
            }
        }
        // A stamp may be on its way still.
        if !repairs || self.is_busy() {
            return again;
        }
        let hurt = |copy: usize| shared.copies[copy].is_up() && shared.copies[copy].behind() > 0;
        for copy in (0..shared.copies.len()).filter(|&copy| hurt(copy)) {
            if sleep::now_ns() < self.not_before_ns[copy] {
                continue;
            }
            match self.copy_some(shared, copy, free) {
                Ok(true) => {
                    shared.copies[copy].found_room();
                    again = again.min(REST_NS);
                }
                Ok(false) => self.look_at_all(shared, copy),
                Err(why) => {
                    if why == IoError::Full {
                        shared.copies[copy].found_no_room();
                    }
                    shared.copies[copy].failed(why);
                    self.not_before_ns[copy] = sleep::now_ns() + REFUSED_NS;
                    if self.is_busy() {
                        break;
                    }
                }
            }
        }
        again
    }

    /// There are pages that the copy does not have, and no extent was said to have one: a writer that had begun before the copy came has not said so. All are looked at
    /// once more, now and then.
    fn look_at_all(&mut self, shared: &Shared, copy: usize) {
        let is_known = (0..shared.table.used()).any(|extent| shared.table.may_be_stale(extent, copy));
        if !is_known && shared.copies[copy].behind() > 0 {
            shared.table.note_all(copy);
            self.not_before_ns[copy] = sleep::now_ns() + REFUSED_NS;
        }
    }

    /// Whether our pages are those of a write that is waited for no more.
    fn is_busy(&self) -> bool {
        self.queues.iter().flatten().any(|queue| queue.in_flight() > 0)
    }

    /// Takes what has ended of such writes. Whether one has not.
    fn is_stuck(&mut self, shared: &Shared) -> bool {
        let mut any = false;
        for (copy, queue) in shared.copies.iter().zip(&mut self.queues).filter(|(copy, _)| copy.stuck.load(Ordering::Relaxed)) {
            let Some(queue) = queue else { continue };
            queue.reap(false, &mut |_, _| {});
            let is_stuck = queue.in_flight() > 0;
            copy.stuck.store(is_stuck, Ordering::Release);
            any |= is_stuck;
        }
        any
    }

    /// Asks a copy whether it is there, and has what it had.
    fn ask(&mut self, shared: &Shared, copy: usize, repairs: bool) {
        let it = &shared.copies[copy];
        it.due_ns.store(sleep::now_ns() + LOOK_NS, Ordering::Relaxed);
        let Some(space) = it.opened() else { return };
        let place = stamp_of(&space, it.is_remote());
        match place.map_or(Stamp::Right, |place| look(shared, copy, &space, place, &mut self.found)) {
            Stamp::Right => (self.lost[copy], self.wrong[copy]) = (false, 0),
            Stamp::Wrong => {
                // The stamp first. Were it put after the life is counted, the copy could be emptied once more before it is put, and have a right stamp and not what was
                // written in between. All is lost even if the stamp is not put: it may have been, and the answer lost.
                let put = place.filter(|_| repairs).map(|place| self.put_stamp(shared, copy, &space, place));
                if repairs || !self.lost[copy] {
                    // A write that began before does not count (`MirrorQueue::finish`).
                    shared.end_life(copy);
                    shared.lose(copy);
                }
                if !std::mem::replace(&mut self.lost[copy], true) {
                    it.replaced.store(true, Ordering::Relaxed);
                }
                // One whose stamp is wrong each time is asked less and less often.
                let pause = (LOOK_NS << self.wrong[copy].min(4)).min(PAUSE_MAX_NS);
                self.wrong[copy] = self.wrong[copy].saturating_add(1);
                it.due_ns.store(sleep::now_ns() + pause, Ordering::Relaxed);
                match put {
                    Some(Ok(())) => self.lost[copy] = false,
                    // Without a stamp nobody would see that it is emptied again.
                    Some(Err(_)) => return it.fall(),
                    None => {}
                }
            }
            Stamp::Away => {
                it.fall();
                // To find that out takes its time, for which nobody can fork.
                return it.wait(sleep::now_ns(), (2 * it.pause_ns.load(Ordering::Relaxed)).max(LOOK_NS));
            }
        }
        it.rise(sleep::now_ns());
    }

    /// Copies some of the pages that a copy does not have. Whether there were any.
    ///
    /// # Errors
    /// The copy does not take them.
    fn copy_some(&mut self, shared: &Shared, copy: usize, free: &dyn FreeSlots) -> Result<bool, IoError> {
        let used = shared.table.used();
        for _ in 0..used {
            let extent = self.next[copy] % used;
            if !shared.table.may_be_stale(extent, copy) {
                self.next[copy] = extent + 1;
                continue;
            }
            shared.table.look(extent, copy);
            let (mut any, mut left) = (false, false);
            let mut budget = PAGES;
            let (first, end) = (extent * EXTENT_SLOTS as u64, (extent + 1) * EXTENT_SLOTS as u64);
            let mut slot = first;
            // The slots before this one are read one by one: one of them cannot be read.
            let (mut singly, mut unreadable) = (first, 0);
            let mut result = Ok(());
            while slot < end {
                let is_stale = shared.table.slot(slot).is_some_and(|it| it.stale() >> copy & 1 != 0);
                if !is_stale {
                    slot += 1;
                    continue;
                }
                if budget == 0 || result.is_err() {
                    left = true;
                    break;
                }
                let most = if slot < singly { 1 } else { budget };
                match self.copy_run(shared, copy, slot..end.min(slot + most as u64), free) {
                    Ok(Copied::Unreadable(count)) if count > 1 => singly = slot + count as u64,
                    // It is being written, or no other copy has it, or can be read now.
                    Ok(copied @ (Copied::Unreadable(_) | Copied::Run(0))) => {
                        left = true;
                        slot += 1;
                        unreadable += u32::from(matches!(copied, Copied::Unreadable(_)));
                        // A disk may take long for each of them.
                        if unreadable == UNREADABLE_MAX {
                            break;
                        }
                    }
                    // Unless somebody has begun to write it, it is stale no more.
                    Ok(Copied::Unneeded) => {
                        left |= shared.table.slot(slot).is_some_and(|it| it.stale() >> copy & 1 != 0);
                        slot += 1;
                    }
                    Ok(Copied::Run(count)) => {
                        (any, budget) = (true, budget - count);
                        slot += count as u64;
                    }
                    Err(why) => result = Err(why),
                }
            }
            if left || result.is_err() {
                shared.table.note_stale(first, 1 << copy);
            }
            if budget > 0 {
                self.next[copy] = extent + 1;
            }
            result?;
            if any {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies the run of stale slots at the beginning of these, all from one copy.
    fn copy_run(&mut self, shared: &Shared, copy: usize, slots: Range<u64>, free: &dyn FreeSlots) -> Result<Copied, IoError> {
        shared.repairing.store(copy, Ordering::Release);
        let up = shared.up();
        let (slot, mut have) = (slots.start, up & !(1 << copy));
        let mut count = 0;
        for (n, number) in slots.enumerate() {
            let Some(it) = shared.table.slot(number) else { break };
            let Some(stale) = it.begin_copy(copy, have) else { break };
            // Asked only now: whoever takes the slot for a page from here on finds the repair.
            if free.unneeded_of(number & !63) >> (number & 63) & 1 != 0 {
                shared.count(number, it.end_unneeded());
                if n == 0 {
                    return Ok(Copied::Unneeded);
                }
                break;
            }
            have &= !stale;
            count += 1;
        }
        let (Some(first), true) = (Slot::new(slot), count > 0) else { return Ok(Copied::Run(0)) };
        let from = have.trailing_zeros() as usize;
        let source = shared.copies[from].held().ok_or(IoError::Short);
        let read = source.and_then(|source| source.read_run(first, &mut self.pages[..count]));
        match read {
            // The page, not the copy, where the others of a run can be read.
            Err(why) if super::is_lost(why) => shared.copies[from].failed(why),
            _ => {}
        }
        let written = read.is_ok().then(|| self.write(shared, copy, first, count));
        let done = written == Some(Ok(()));
        for n in 0..count as u64 {
            let it = shared.table.slot(slot + n);
            if it.is_some_and(|it| it.end_copy(copy, done)) {
                shared.copies[copy].turned(-1);
            }
        }
        match written {
            None => Ok(Copied::Unreadable(count)),
            Some(written) => written.map(|()| Copied::Run(count)),
        }
    }
}
