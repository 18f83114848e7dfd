//! Cores that have no slots left ask other cores ([`super::owners`] says which core has which slots).
//!
//! # Asking
//!
//! A core asks for metadata only: the asker writes and reads the pages itself. The asker pushes its task. Then, until there is an
//! answer, it does two things in turn. It takes the owner's token if no thread has it, and serves that queue, its own task
//! included. And it serves its own queue. So it neither wakes nor waits for a thread that waits for a device. If the thread that
//! has the token does not go on (because it was stopped), the asker cancels the task; it also gives up a wait for its own token.
//! The evictor then has no slots *for now* ([`SlotMap::was_unanswered`]), puts its pages back, and tries again later.

use super::arrangement::SPACES_MAX;
use super::extent::extent_of;
use super::owners::{Fill, PATIENCE};
use super::{Run, SlotMap};
use crate::delegation::Node;
use crate::limits::EXTENT_SLOTS;
use crate::sync::{Ordering, spin_hint};
use crate::word::Slot;

/// The request of a task *Reserve*: how many slots, and in which space (0: any).
fn pack(want: u32, space: Option<usize>) -> u64 {
    u64::from(want) << 32 | space.map_or(0, |space| space as u64 + 1)
}

fn unpack(request: u64) -> (u32, Option<usize>) {
    const { assert!(SPACES_MAX < u32::MAX as usize) };
    ((request >> 32) as u32, (request as u32).checked_sub(1).map(|space| space as usize))
}

impl Run {
    /// The run as the answer to a task; 0: none.
    fn pack(run: Option<Run>) -> u64 {
        const { assert!(EXTENT_SLOTS < 1 << 16) };
        run.map_or(0, |run| run.first.number() << 16 | u64::from(run.len))
    }

    fn unpack(answer: u64) -> Option<Run> {
        Slot::new(answer >> 16).map(|first| Run { first, len: answer as u32 & 0xffff })
    }
}

impl SlotMap {
    /// With the token of `owner`: does what the core was asked for before, then `f`, then what has been asked for
    /// meanwhile.
    pub(super) fn with_token<R>(&self, owner: usize, looks: u32, f: impl FnOnce(&mut Fill) -> R) -> Option<R> {
        self.owners.all[owner].fill.try_with(looks, |fill| {
            self.serve(owner, fill);
            let result = f(fill);
            self.serve(owner, fill);
            result
        })
    }

    pub(super) fn link(&self, node: Node) -> &crate::sync::AtomicU32 {
        match extent_of(node, self.owners.tasks.last()) {
            Some(extent) => self.extent(extent).link(),
            None => self.owners.tasks.link(node),
        }
    }

    /// Takes the owner's queue: extents go on the list, tasks wait for their turn.
    pub(super) fn take_in(&self, owner: usize, fill: &mut Fill) {
        let mut node = self.owners.all[owner].queue.take(|node| self.link(node));
        let mut last = fill.tasks;
        while last != 0 && self.link(last).load(Ordering::Relaxed) != 0 {
            last = self.link(last).load(Ordering::Relaxed);
        }
        while node != 0 {
            let next = self.link(node).load(Ordering::Relaxed);
            if let Some(extent) = extent_of(node, self.owners.tasks.last()) {
                self.append(fill, extent);
            } else {
                self.link(node).store(0, Ordering::Relaxed);
                match last {
                    0 => fill.tasks = node,
                    last => self.link(last).store(node, Ordering::Relaxed),
                }
                last = node;
            }
            node = next;
        }
    }

    fn serve(&self, owner: usize, fill: &mut Fill) {
        loop {
            if fill.tasks == 0 {
                self.take_in(owner, fill);
            }
            let task = fill.tasks;
            if task == 0 {
                return;
            }
            // Read before the task ends: its asker may use the task again after that.
            fill.tasks = self.link(task).load(Ordering::Relaxed);
            let Some(request) = self.owners.tasks.begin(task) else { continue };
            let (want, space) = unpack(request);
            let run = self.find(owner, fill, want, space);
            if !self.owners.tasks.end(task, Run::pack(run))
                && let Some(run) = run
            {
                (0..u64::from(run.len)).for_each(|n| self.free(run.first.plus(n)));
            }
        }
    }

    /// Asks other cores, beginning with `helper`, which had slots the last time.
    pub(super) fn delegate(&self, me: usize, want: u32, space: Option<usize>, helper: usize) -> Option<Run> {
        let owners = &self.owners;
        let mut others = (u64::MAX >> (64 - owners.all.len())) & !(1 << me);
        loop {
            // A space that is being tried may belong to another core alone, and full cores leave it alone.
            let full = if space.is_some() { 0 } else { owners.full.load(Ordering::SeqCst) };
            let to = owners.choose(me, others & !full, helper)?;
            others &= !(1 << to);
            let answer = if self.delegates {
                self.ask(me, to, pack(want, space))
            } else {
                // With nothing in its hands: no two cores wait for each other.
                self.with_token(to, PATIENCE, |fill| self.find(to, fill, want, space)).ok_or(())
            };
            match answer {
                Ok(Some(run)) => {
                    // Only a hint: without it the next search begins where this one did.
                    let _ = owners.all[me].fill.try_with(0, |fill| fill.helper = to);
                    return Some(run);
                }
                Ok(None) => {}
                Err(()) => self.set_unanswered(me, true),
            }
        }
    }

    /// Asks `to` for slots; an error: that core does not answer.
    fn ask(&self, me: usize, to: usize, request: u64) -> Result<Option<Run>, ()> {
        let tasks = &self.owners.tasks;
        // Cancelled tasks are free again when their queue is served, which its owner may not do for a long time.
        let free_some = || self.with_token(to, 0, |_| tasks.post(me, request)).flatten();
        let asked = tasks.post(me, request).or_else(free_some).ok_or(())?;
        self.owners.all[me].asked.fetch_add(1, Ordering::Relaxed);
        self.owners.all[to].queue.push(asked.node(), tasks.link(asked.node()));
        for _ in 0..PATIENCE {
            let _ = self.with_token(to, 0, |_| ());
            if let Some(answer) = tasks.answer(asked) {
                return Ok(Run::unpack(answer));
            }
            if !self.owners.all[me].queue.is_empty() {
                let _ = self.with_token(me, 0, |_| ());
            }
            spin_hint();
        }
        tasks.cancel(asked).map(Run::unpack).ok_or(())
    }
}
