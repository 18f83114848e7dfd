//! Copies that come back, and what they have missed.
//!
//! All of this is done by the one thread that keeps the space ([`Spaces::keep`](farshore_core::seams::Spaces::keep)), a little at a time, since nobody can fork
//! meanwhile.

use super::exchange::NoExchange;
use super::place::{AWAY, Copy};
use super::{LOOK_NS, Open, PAUSE_MAX_NS, Shared, locked};
use crate::any::{AnyBackend, AnyQueue};
use crate::sleep;
use core::sync::atomic::Ordering;
use farshore_core::copies::CopySet;
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::{Backend, IoError, PageBuf, Reads, Spaces, WriteQueue};
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
    stamp: Box<PageBuf>,
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

/// What has become of a run.
enum Copied {
    /// So many were copied; 0: nothing can be done about the first of them now.
    Run(usize),
    /// The copy that should have these many cannot read them.
    Unreadable(usize),
}

impl Repair {
    /// For the copies that are open, each of which gets its stamp. `partly`: as long as one does.
    ///
    /// # Errors
    /// The copy that cannot be written, and why.
    pub(super) fn new(shared: &Shared, partly: bool) -> Result<Repair, (usize, IoError)> {
        let mut stamp = Box::new(PageBuf::ZERO);
        let mut seed = [0; 32];
        // More than that it gives at once, or nothing.
        getrandom(&mut seed, GetRandomFlags::empty()).map_err(|errno| (0, IoError::Device(errno.raw_os_error())))?;
        stamp.0.chunks_exact_mut(seed.len()).for_each(|part| part.copy_from_slice(&seed));
        let mut repair = Repair {
            queues: shared.copies.iter().map(|_| None).collect(),
            pages: vec![PageBuf::ZERO; PAGES].into(),
            found: Box::new(PageBuf::ZERO),
            stamp,
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
            let place = Repair::stamp_of(&space, copy.is_remote());
            if place.is_some_and(|place| repair.look(n, &space, place) == Stamp::Wrong) {
                return Err((n, IoError::Device(Errno::NOTUNIQ.raw_os_error())));
            }
        }
        failed.filter(|_| shared.up() == 0).map_or(Ok(repair), Err)
    }

    /// The first use of a copy.
    fn begin(&mut self, shared: &Shared, copy: usize, space: &AnyBackend, remote: bool) -> Result<(), IoError> {
        self.queues[copy] = Some(space.queue(1)?);
        match Repair::stamp_of(space, remote) {
            Some(place) => self.put_stamp(shared, copy, place),
            None => Ok(()),
        }
    }

    /// The first use of a copy that comes to a place beside others. It may be one of them by another name: then its stamp has overwritten theirs, which is put back at
    /// once.
    ///
    /// # Errors
    /// It cannot be used, or is one of the others.
    pub(super) fn begin_beside(
        &mut self,
        shared: &Shared,
        place: usize,
        space: &AnyBackend,
        remote: bool,
    ) -> Result<(), NoExchange> {
        self.begin(shared, place, space, remote).map_err(NoExchange::Use)?;
        let others = shared.copies.iter().enumerate().filter(|(n, copy)| *n != place && copy.is_remote() && copy.is_up());
        let mut same = None;
        for (n, copy) in others {
            let Some(there) = copy.opened() else { continue };
            let Some(stamp) = Repair::stamp_of(&there, true) else { continue };
            // One that lost its stamp before is found out about by the next look.
            if self.look(n, &there, stamp) == Stamp::Wrong
                && self.found.0[0] == place as u8
                && self.found.0[1..] == self.stamp.0[1..]
            {
                // If that fails, the next look finds it wrong, and all is copied there again.
                let _ = self.put_stamp(shared, n, stamp);
                same = Some(copy.name());
            }
        }
        same.map_or(Ok(()), |name| Err(NoExchange::Same(name)))
    }

    /// A copy that is open is used from now on: by each queue, and by readers.
    ///
    /// # Errors
    /// A queue has no part for it. None has then.
    pub(super) fn install(&mut self, shared: &Shared, copy: usize, space: AnyBackend) -> Result<(), IoError> {
        // No queue is made meanwhile: it would lack the copy, and not be known.
        let all = locked(&shared.parts);
        if let Err(why) = all.iter().try_for_each(|parts| parts.give(copy, &space)) {
            all.iter().for_each(|parts| {
                parts.take_back(copy);
            });
            return Err(why);
        }
        shared.copies[copy].put(space);
        drop(all);
        shared.copies[copy].rise(sleep::now_ns());
        Ok(())
    }

    /// A copy that was taken away is used again: queues that were made meanwhile, or have given their part back, get one.
    ///
    /// # Errors
    /// A queue cannot have one.
    pub(super) fn supply(&self, shared: &Shared, copy: usize) -> Result<(), IoError> {
        let all = locked(&shared.parts);
        let Some(space) = shared.copies[copy].opened() else { return Ok(()) };
        all.iter().filter(|parts| !parts.has(copy)).try_for_each(|parts| parts.give(copy, &space))
    }

    /// Whether nothing of ours is in flight at a copy.
    pub(super) fn is_at_rest(&mut self, copy: usize) -> bool {
        self.queues[copy].as_mut().is_none_or(|queue| {
            queue.reap(false, &mut |_, _| {});
            queue.in_flight() == 0
        })
    }

    /// A copy has gone, or has not come: nothing is known of its place.
    pub(super) fn forget(&mut self, copy: usize) {
        self.queues[copy] = None;
        (self.next[copy], self.lost[copy], self.wrong[copy], self.not_before_ns[copy]) = (0, false, 0, 0);
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
            let _ = self.install(shared, n, space);
        }
    }

    /// Where the stamp of a copy lies, if it has one: the last of its slots.
    fn stamp_of(space: &AnyBackend, remote: bool) -> Option<Slot> {
        space.capacity().filter(|_| remote).and_then(|slots| Slot::new(slots - 1))
    }

    /// Puts the stamp on a copy.
    fn put_stamp(&mut self, shared: &Shared, copy: usize, place: Slot) -> Result<(), IoError> {
        if self.is_busy() {
            return Err(IoError::Device(Errno::BUSY.raw_os_error()));
        }
        self.pages[0].clone_from(&self.stamp);
        // Each copy has its own.
        self.pages[0].0[0] = copy as u8;
        self.write(shared, copy, place, 1)
    }

    /// Writes the first `count` of our pages to a copy, and waits. Nothing is in flight.
    fn write(&mut self, shared: &Shared, copy: usize, first: Slot, count: usize) -> Result<(), IoError> {
        let late = IoError::Device(Errno::TIMEDOUT.raw_os_error());
        let Some(queue) = &mut self.queues[copy] else { return Err(late) };
        let mut ended = None;
        // SAFETY: the pages live as long as the queue, which is dropped before them, and are not changed while any has something in flight: `turn` and `put_stamp` look at
        // that first.
        unsafe { queue.start_write(first, self.pages.as_ptr(), count as u32, 0) }.map_err(|()| late)?;
        let until = sleep::now_ns() + PATIENCE_NS;
        while queue.in_flight() > 0 && sleep::now_ns() < until {
            queue.reap_within(PATIENCE_NS, &mut |_, result| ended = Some(result));
        }
        if queue.in_flight() > 0 {
            // Before its slots are free for others: see `Copy::stuck`.
            shared.copies[copy].stuck.store(true, Ordering::Release);
        }
        ended.unwrap_or(Err(late))
    }

    fn look(&mut self, copy: usize, space: &AnyBackend, place: Slot) -> Stamp {
        for last in [false, true] {
            match space.read(place, &mut self.found) {
                Ok(()) if self.found.0[0] == copy as u8 && self.found.0[1..] == self.stamp.0[1..] => return Stamp::Right,
                // Once more: a bit may have turned on the way.
                Ok(()) | Err(IoError::Short) if !last => {}
                Ok(()) | Err(IoError::Short) => return Stamp::Wrong,
                Err(why) if last || super::is_lost(why) => return Stamp::Away,
                Err(_) => {}
            }
        }
        Stamp::Wrong
    }

    /// Looks at what is due, and copies a little if `repairs`: a forked child has its parent's copies, and leaves their queues alone. Returns after how many ns to
    /// come again.
    pub(super) fn turn(&mut self, shared: &Shared, repairs: bool) -> u64 {
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
            // Of one that did not come because its first write did not end in time.
            if !it.is_there() && self.queues[copy].is_some() && self.is_at_rest(copy) {
                self.forget(copy);
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
            match self.copy_some(shared, copy) {
                Ok(true) => again = again.min(REST_NS),
                Ok(false) => self.look_at_all(shared, copy),
                Err(why) => {
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
        let place = Repair::stamp_of(&space, it.is_remote());
        match place.map_or(Stamp::Right, |place| self.look(copy, &space, place)) {
            Stamp::Right => (self.lost[copy], self.wrong[copy]) = (false, 0),
            Stamp::Wrong => {
                // The stamp first. Were it put after the life is counted, the copy could be emptied once more before it is put, and have a right stamp and not what was
                // written in between. All is lost even if the stamp is not put: it may have been, and the answer lost.
                let put = place.filter(|_| repairs).map(|place| self.put_stamp(shared, copy, place));
                if repairs || !self.lost[copy] {
                    // The life first: a write that began before does not count (`MirrorQueue::finish`).
                    it.life.fetch_add(1, Ordering::SeqCst);
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
    fn copy_some(&mut self, shared: &Shared, copy: usize) -> Result<bool, IoError> {
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
                match self.copy_run(shared, copy, slot, end.min(slot + most as u64)) {
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

    /// Copies the run of stale slots from `slot` on, to `end` at most, and all from one copy.
    fn copy_run(&mut self, shared: &Shared, copy: usize, slot: u64, end: u64) -> Result<Copied, IoError> {
        shared.repairing.store(copy, Ordering::Release);
        let up = shared.up();
        let mut have: CopySet = up & !(1 << copy);
        let mut count = 0;
        while slot + (count as u64) < end {
            let Some(it) = shared.table.slot(slot + count as u64) else { break };
            let Some(stale) = it.begin_copy(copy, have) else { break };
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
