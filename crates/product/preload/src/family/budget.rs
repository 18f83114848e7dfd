//! The limit that a family shares: how much of it each process has.
//!
//! A member's *budget* is what its engine may have, or still has: frames, stages, and what a lowered limit has yet to get back.
//! Each member looks after its own budget, from time to time and when another asks for it ([`balance`]). Budgets move; no page
//! does: a member whose budget shrinks evicts as under any lowered limit.
//!
//! | the family has | a member that is short of frames | one that is not |
//! |---|---|---|
//! | less than the limit | takes a part of what is free, at most half of its own budget | stays |
//! | just the limit | says that it is short | gives what it does not use, then an eighth of what it has above an equal part |
//! | more (processes have come, or the limit was lowered) | gives, if it has more than an equal part, a share of the excess | the same |
//!
//! No member gets less than its engine's floor.
//!
//! A member writes into its line what it takes, and then looks whether all fit: so of two that take the last pages at once none has them, and what
//! members have together is never more than the limit because of that ([`Ledger::take`]).
//!
//! # What a fork shares
//!
//! After a fork, parent and child share the resident pages. The child's line has their number as its *credit*, and the sum of
//! budgets may exceed the limit by that. The kernel copies a page when either writes to it; it tells nobody, but counts a minor
//! fault. So minor faults of both, and pages that either evicts or gives up, are taken off the credit, which is never more than
//! what is really shared. When either ends, the credit is 0.

use super::{ALIVE, Kin, LEFT, Ledger, Member};
use crate::ground::runtime::{Runtime, TheEngine};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::Clock as _;
use farshore_engine::stats::Count;
use farshore_sys::raw::syscall;

/// How long a member counts as short after it said so, ns.
const HUNGRY_NS: u64 = 300_000_000;
/// The least share of a dormant process, pages.
const SHARE_MIN: u64 = 256;
/// The least that is taken at once, pages.
const STEP_MIN: u64 = 64;

/// What this process has seen at its last look.
#[derive(Debug, Default)]
pub(super) struct Seen {
    minor_faults: u64,
    left: u64,
    evicted: u64,
}

/// Minor faults of this process so far.
fn minor_faults() -> u64 {
    const SYS_GETRUSAGE: u64 = 98;
    // struct rusage: two times of two words, then ru_maxrss, ru_ixrss, ru_idrss, ru_isrss, ru_minflt.
    let mut usage = [0u64; 18];
    // SAFETY: the kernel writes a structure of 144 bytes.
    let _ = unsafe { syscall(SYS_GETRUSAGE, [0, usage.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    usage[8]
}

fn take_off(credit: &AtomicU64, pages: u64) {
    let _ = credit.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(now.saturating_sub(pages)));
}

impl Ledger {
    fn alive(&self) -> impl Iterator<Item = (u32, &Member)> {
        (0..).zip(self.used()).filter(|(_, m)| matches!(m.state.load(Ordering::Acquire), ALIVE | LEFT))
    }

    /// How many members are alive, and their pages together, with shared pages counted once.
    pub(super) fn together(&self) -> (u64, u64) {
        self.alive().fold((0, 0u64), |(n, sum), (_, m)| {
            let pages = m.budget.load(Ordering::Acquire).saturating_sub(self.credit_of(m));
            (n + 1, sum + pages)
        })
    }

    /// Pages that members use together. One that is not measured uses all that it may.
    pub(super) fn in_use(&self) -> u64 {
        self.alive().fold(0, |sum, (_, m)| {
            let budget = m.budget.load(Ordering::Acquire);
            let used = Some(m.in_use.load(Ordering::Acquire)).filter(|&used| used > 0).unwrap_or(budget);
            sum + used.min(budget).saturating_sub(self.credit_of(m))
        })
    }

    /// Writes so many pages more into this member's line, if they are free now. By the member alone.
    pub(super) fn take(&self, member: &Member, pages: u64) -> bool {
        let has = member.budget.load(Ordering::Acquire);
        member.budget.store(has.saturating_add(pages), Ordering::Release);
        // Of two members at least one sees what the other has taken.
        fence(Ordering::SeqCst);
        let fits = self.together().1 <= self.limit.load(Ordering::Acquire);
        if !fits {
            member.budget.store(has, Ordering::Release);
        }
        fits
    }

    /// The same for up to so many pages. Returns how many it has taken: less where others take some at the same time.
    pub(super) fn take_some(&self, member: &Member, pages: u64) -> u64 {
        let parts = [1, 2, 4, 8].map(|part| pages / part);
        parts.into_iter().find(|&pages| pages > 0 && self.take(member, pages)).unwrap_or(0)
    }

    /// Whether a member has a kin thread.
    pub(super) fn is_awake(&self) -> bool {
        self.alive().any(|(_, m)| m.awake.load(Ordering::Acquire) != 0)
    }

    /// Whether a member was short lately, this one left out.
    pub(super) fn is_short(&self, but: Option<u32>, now_ns: u64) -> bool {
        self.alive().any(|(line, m)| {
            let since = m.hungry.load(Ordering::Acquire);
            Some(line) != but && since != 0 && now_ns.saturating_sub(since) < HUNGRY_NS
        })
    }

    /// Pages that a member shares with its parent; none when the parent is gone.
    fn credit_of(&self, member: &Member) -> u64 {
        let parent = self.used().get(member.parent.load(Ordering::Acquire) as usize);
        let alive = parent.is_some_and(|p| p.state.load(Ordering::Acquire) == ALIVE);
        if alive { member.credit.load(Ordering::Acquire) } else { 0 }
    }
}

/// Gives this process, which is dormant and has a new line, its share: half of what is free, but at most a sixteenth of the limit; and at
/// least what a small program maps, however little is free. In pages.
pub(super) fn first_share() -> Option<u64> {
    let (ledger, line) = (super::ledger()?, super::own_line()?);
    let limit = ledger.limit.load(Ordering::Acquire);
    let free = limit.saturating_sub(ledger.together().1);
    let share = (free / 2).min(limit / 16).max(SHARE_MIN);
    line.budget.store(share, Ordering::Release);
    Some(share)
}

/// Gives this process, which is dormant, so many pages more, if they are free, up to an eighth of the limit: what it maps counts, and it
/// gives nothing back while it is dormant.
pub(super) fn grow(pages: u64) -> bool {
    let (Some(ledger), Some(line)) = (super::ledger(), super::own_line()) else { return false };
    // Of a dormant process one thread at a time comes here.
    let has = line.budget.load(Ordering::Acquire).saturating_add(pages);
    has <= ledger.limit.load(Ordering::Acquire) / 8 && ledger.take(line, pages)
}

/// What a process does not give away while others are short, pages.
pub(super) fn kept(engine: &TheEngine) -> u64 {
    (engine.in_use() + STEP_MIN).max(engine.floor())
}

/// This process, which has no kin thread, may have most of the limit and use little of it: leaves the rest to others. Under the
/// address-space lock.
pub(super) fn leave_room(runtime: &Runtime, ledger: &Ledger) {
    let (engine, limit) = (&runtime.engine, ledger.limit.load(Ordering::Acquire));
    let wanted = (engine.in_use() + limit / 8).max(engine.floor());
    if wanted < engine.memory_limit() / PAGE_SIZE as u64 {
        engine.set_budget(wanted);
    }
    if let Some(line) = super::own_line() {
        line.budget.store(engine.budget(), Ordering::Release);
    }
}

/// Takes off the credits what may have been copied since the last look: so much less is shared with children and the parent.
fn settle_credits(runtime: &Runtime, ledger: &Ledger, kin: &mut Kin) {
    let stats = &runtime.engine.stats;
    let left = stats.total(Count::Evicted) + stats.total(Count::GivenUp);
    let faults = minor_faults();
    let gone = left.saturating_sub(kin.seen.left) + faults.saturating_sub(kin.seen.minor_faults);
    (kin.seen.left, kin.seen.minor_faults) = (left, faults);
    for (line, member) in ledger.alive() {
        if line == kin.me || member.parent.load(Ordering::Relaxed) == kin.me {
            take_off(&member.credit, gone);
        }
    }
}

/// Before a fork: from here on counts what this process does.
pub(super) fn start_counting(runtime: &Runtime, kin: &mut Kin) {
    let stats = &runtime.engine.stats;
    kin.seen.left = stats.total(Count::Evicted) + stats.total(Count::GivenUp);
    kin.seen.minor_faults = minor_faults();
}

/// The least budget of a relative, in pages, at which it is worth waking.
const WORTH_WAKING: u64 = 1024;
/// The least time between two wakings of a relative, ns.
const WAKE_EVERY_NS: u64 = 1_000_000_000;

/// This process is short and nothing of the limit is free. So it wakes relatives without a kin thread, which give back nothing by
/// themselves, by a connection to their control sockets ([`crate::ground::own_threads::knock`]). Called by the kin thread, which holds no
/// lock.
pub(super) fn wake_relatives(runtime: &Runtime, ledger: &Ledger) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = runtime.engine.clock.now_ns();
    let free = ledger.limit.load(Ordering::Acquire).saturating_sub(ledger.together().1);
    if !runtime.engine.is_short() || free >= STEP_MIN || now.saturating_sub(LAST.load(Ordering::Relaxed)) < WAKE_EVERY_NS {
        return;
    }
    LAST.store(now, Ordering::Relaxed);
    let asleep = |m: &Member| m.awake.load(Ordering::Acquire) == 0 && m.budget.load(Ordering::Acquire) >= WORTH_WAKING;
    for (_, member) in ledger.alive().filter(|(_, member)| asleep(member)) {
        let (knocker, pid) = (member.knocker.load(Ordering::Acquire), member.pid.load(Ordering::Acquire));
        if knocker != 0 {
            farshore_socket::knock(knocker as u32, pid);
        }
    }
}

/// Looks after this process' budget. Returns whether the budget, or what it counts, has changed.
pub(super) fn balance(runtime: &Runtime, ledger: &Ledger, kin: &mut Kin) -> bool {
    settle_credits(runtime, ledger, kin);
    let engine = &runtime.engine;
    let me = &ledger.members[kin.me as usize];
    let now = runtime.engine.clock.now_ns();
    let evicted = engine.stats.total(Count::Evicted);
    let short = engine.is_short() || evicted != kin.seen.evicted;
    kin.seen.evicted = evicted;
    let has = engine.budget();
    me.budget.store(has, Ordering::Release);
    me.hungry.store(if short { now } else { 0 }, Ordering::Release);
    let limit = ledger.limit.load(Ordering::Acquire);
    let (processes, together) = ledger.together();
    let fair = limit / processes.max(1);
    let others_short = ledger.is_short(Some(kin.me), now);
    let in_use = kept(engine);
    let wanted = if together > limit {
        let too_much = together - limit;
        // The next member that looks takes its part of what is left then.
        let spare = has.saturating_sub(if in_use < has { in_use.max(fair.min(has)) } else { fair.min(has) });
        has - spare.min(too_much.div_ceil(2).max(STEP_MIN))
    } else if short || processes == 1 {
        let free = limit - together;
        has + free.min(if processes == 1 { free } else { (has / 2).max(STEP_MIN) })
    } else if others_short && has > in_use {
        // Memory that is free in this process is of more use in the one that is short.
        in_use
    } else if others_short && has > fair {
        has - ((has - fair) / 8).max(STEP_MIN).min(has - fair)
    } else {
        has
    };
    let wanted = match wanted.max(engine.floor()) {
        more if more > has => has + ledger.take_some(me, more - has),
        // What it has above its limit is on its way already, and to ask for more than the limit would be to raise it.
        less if engine.frames().debt() == 0 && less < engine.memory_limit() / PAGE_SIZE as u64 => less,
        _ => has,
    };
    if wanted != has {
        engine.set_budget(wanted);
        me.budget.store(engine.budget(), Ordering::Release);
        return true;
    }
    short || engine.frames().debt() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};
    use std::sync::atomic::AtomicBool;

    /// A ledger with two members, for good.
    fn ledger(limit: u64) -> &'static Ledger {
        // SAFETY: the layout has a size.
        let place = unsafe { alloc_zeroed(Layout::new::<Ledger>()) }.cast::<Ledger>();
        // SAFETY: fresh memory of just this layout, for good; a ledger is atomic numbers, for which zeros are a value, as in a new file.
        let ledger: &'static Ledger = unsafe { place.as_ref() }.expect("there is memory");
        ledger.limit.store(limit, Ordering::Release);
        ledger.used.store(2, Ordering::Release);
        ledger.members[..2].iter().for_each(|member| member.state.store(ALIVE, Ordering::Release));
        ledger
    }

    #[test]
    fn what_is_free_is_taken_once() {
        let (ledger, over) = (ledger(100), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for member in &ledger.members[..2] {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let taken = ledger.take_some(member, 60);
                        // It uses them, until it gives them back.
                        member.in_use.store(taken, Ordering::Release);
                        fence(Ordering::SeqCst);
                        let all: u64 = ledger.members[..2].iter().map(|member| member.in_use.load(Ordering::Acquire)).sum();
                        over.fetch_or(all > 100, Ordering::Relaxed);
                        member.in_use.store(0, Ordering::Release);
                        member.budget.store(0, Ordering::Release);
                    }
                });
            }
        });
        assert!(!over.load(Ordering::Relaxed), "both had what was there for one");
        assert_eq!(ledger.together(), (2, 0), "nothing is lost");
        assert_eq!(
            [60, 60, 0].map(|pages| ledger.take_some(&ledger.members[0], pages)),
            [60, 30, 0],
            "a part, where not all is free"
        );
        assert!(ledger.take(&ledger.members[1], 10) && !ledger.take(&ledger.members[1], 1));
    }
}
