//! The autopilot: the memory limit is chosen, so that the program loses about as much time to faults as it may
//! ([`farshore_engine::pilot`] has the law).
//!
//! Processes that share a limit have one [`Board`], in their ledger; a process that shares with no other has its own. Each process with
//! threads of Farshore's looks every 200 ms, by the thread that watches swap spaces: it adds to the board what it has lost and how long it
//! ran. One of them *decides*. It has put its line and the time on the board, and does so again at each look, by one
//! compare-and-swap before it sets a limit. One that has not looked for two seconds (it has ended, or is stopped) decides no more: the
//! next process that looks does. If there is none, the limit stays.
//!
//! The limit is set as `farshore set memory=` sets it. In a budget that several programs share ([`super::joint`]) what is chosen here is what the family
//! wants, and the budget says how much of it the family gets; a family without a target wants what it uses.

use super::joint::{self, Shown};
use super::{budget, ledger, nudge, own_line, set_limit, shares_limit};
use crate::ground::own_threads::rights;
use crate::ground::runtime::Runtime;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use farshore_budgets::law::{self, Loss, Own, Share};
use farshore_budgets::seat::{Family, Told};
use farshore_config::{MEMORY_MIN_CHOSEN, Options, Size, Slowdown, stats};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::Clock as _;
use farshore_engine::pilot::{Aim, Growth, LOOK_NS, Look, Pilot, Turn, grows, is_full, slack};
use farshore_engine::stats::{Count, FaultKind};
use farshore_sys::clock;
use farshore_sys::lock::Mutex;

/// Who decides and has not looked for so long decides no more, ns.
const SILENT_NS: u64 = 2_000_000_000;
/// The time of a look on the board, ns.
const TICK_NS: u64 = 1_000_000;
/// What the kernel takes to raise a fault's signal, and to come back from it: not in the fault's own time. See
/// `docs/src/decisions/costs.md`.
const SIGNAL_NS: u64 = 2_100;

/// What the processes that share a limit know of the autopilot.
#[repr(C)]
pub(super) struct Board {
    /// See [`Slowdown::ppm`]; 0: the limit stays.
    target: AtomicU32,
    /// Who decides (its line, and 1), and when it looked last, in ticks above 32 bits; 0: nobody yet.
    decides: AtomicU64,
    /// The limit that the user has set since, which ended this; pages, 0: none.
    fixed: AtomicU64,
    /// Bounds, pages.
    least: AtomicU64,
    most: AtomicU64,
    /// What all have lost, and how long they ran, ns.
    lost: AtomicU64,
    ran: AtomicU64,
    /// Faults of pages that had left.
    came: AtomicU64,
    /// Pages that were touched first and not given up: an `i64`.
    has: AtomicU64,
    /// In millionths.
    measured: AtomicU64,
    changes: AtomicU64,
    /// The budget that the family is in.
    joint: Shown,
}

impl Board {
    const fn new() -> Board {
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        Board {
            target: AtomicU32::new(0),
            decides: zero(),
            fixed: zero(),
            least: zero(),
            most: zero(),
            lost: zero(),
            ran: zero(),
            came: zero(),
            has: zero(),
            measured: zero(),
            changes: zero(),
            joint: Shown::new(),
        }
    }

    fn aim(&self) -> Option<Aim> {
        let target = self.target.load(Ordering::Acquire);
        let pages = |number: &AtomicU64| number.load(Ordering::Acquire);
        (target > 0).then(|| Aim { target: f64::from(target) / 1e6, least: pages(&self.least), most: self.most() })
    }

    /// `me` decides from now on, or still; false: another one does.
    fn claim(&self, me: u32, now_ns: u64) -> bool {
        let ticks = (now_ns / TICK_NS) as u32;
        let before = self.decides.load(Ordering::Acquire);
        let (who, since) = (before as u32, (before >> 32) as u32);
        let silent = u64::from(ticks.wrapping_sub(since)) * TICK_NS > SILENT_NS;
        if who != 0 && who != me + 1 && !silent {
            return false;
        }
        let now = u64::from(ticks) << 32 | u64::from(me + 1);
        self.decides.compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What was set for this process alone holds for the family that begins with it.
    pub(super) fn take_over(&self) {
        self.least.store(ALONE.least.load(Ordering::Acquire), Ordering::Release);
        self.most.store(ALONE.most.load(Ordering::Acquire), Ordering::Release);
        self.target.store(ALONE.target.load(Ordering::Acquire), Ordering::Release);
        // Counted on: whoever has decided goes on from there.
        self.has.store(ALONE.has.load(Ordering::Acquire), Ordering::Release);
        self.joint.take_over(&ALONE.joint);
    }

    /// The most that the family takes, pages.
    fn most(&self) -> u64 {
        let most = self.most.load(Ordering::Acquire);
        self.joint.size().filter(|_| joint::is_in()).map_or(most, |size| most.min(size))
    }
}

/// The board of a process that shares its limit with no other.
static ALONE: Board = Board::new();

/// What this process has seen.
struct Seen {
    turn: Turn,
    own: Sums,
    /// Of the board, when this process decides.
    all: Sums,
    decided: bool,
    pilot: Pilot,
    /// Pages that have left this process.
    evicted: u64,
    loss: Loss,
    /// Of this process, and of all.
    growth: Growth,
    all_growth: Growth,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

fn board() -> &'static Board {
    ledger().filter(|_| shares_limit()).map_or(&ALONE, |ledger| &ledger.board)
}

fn me() -> u32 {
    super::KIN.with(|kin| kin.as_ref().map_or(0, |kin| kin.me))
}

/// The start of a process that no relative has made: what the user asked for. Returns the limit that it begins with, in pages, where that is chosen.
pub fn begin(options: &Options) -> Option<u64> {
    ALONE.most.store(options.memory.bytes() / PAGE_SIZE as u64, Ordering::Release);
    ALONE.least.store(options.least_memory().bytes() / PAGE_SIZE as u64, Ordering::Release);
    ALONE.target.store(options.slowdown.map_or(0, Slowdown::ppm), Ordering::Release);
    let (least, most) = (ALONE.least.load(Ordering::Acquire), ALONE.most.load(Ordering::Acquire));
    // What a relative has started gets its part of the family's limit.
    let joint = if options.family.is_none() { joint::begin(&ALONE.joint, least, most) } else { None };
    joint.or(options.slowdown.map(|_| most))
}

/// In a forked child: it has lost nothing yet.
pub(super) fn in_child() {
    SEEN.reset();
}

/// What a forked child that shares its limit with no other begins with, in pages, where limits are chosen.
pub(super) fn first_limit() -> Option<u64> {
    is_on().then(|| board().most.load(Ordering::Acquire))
}

/// Whether limits are chosen.
pub fn is_on() -> bool {
    joint::is_in() || board().target.load(Ordering::Acquire) > 0
}

/// Whether this process needs threads by which it is measured, though it has memory enough: it has a part of the limit worth choosing.
pub fn wants_threads(runtime: &Runtime) -> bool {
    is_on() && (is_first(runtime) || runtime.engine.frames().taken() >= board().least.load(Ordering::Acquire) / 4)
}

/// Whether this process is the first of a run.
fn is_first(runtime: &Runtime) -> bool {
    runtime.first && runtime.options.family.is_none()
}

/// The limit is chosen from now on (`Some`), or stays as it is.
pub fn set(runtime: &Runtime, slowdown: Option<Slowdown>) {
    let board = board();
    if slowdown.is_some() {
        let least = (MEMORY_MIN_CHOSEN.bytes() / PAGE_SIZE as u64).min(board.most.load(Ordering::Acquire));
        let known = board.least.load(Ordering::Acquire);
        board.least.store(if known == 0 { least } else { known }.max(runtime.engine.floor()), Ordering::Release);
    }
    board.fixed.store(0, Ordering::Release);
    board.target.store(slowdown.map_or(0, Slowdown::ppm), Ordering::Release);
    runtime.engine.wake_watcher();
    nudge();
}

/// The user sets this limit: it stays, and no other one is chosen later that is larger.
///
/// # Errors
/// The least that can be set, in bytes; nothing has changed.
pub fn end_at(runtime: &Runtime, bytes: u64) -> Result<(), u64> {
    let board = board();
    let pages = bytes / PAGE_SIZE as u64;
    if joint::is_in() {
        return bound(runtime, board, pages);
    }
    // In this order: whoever decides looks behind each limit that it sets whether this one came meanwhile, and then sets this one (`change`).
    let fixed = board.fixed.swap(pages, Ordering::SeqCst);
    let target = board.target.swap(0, Ordering::SeqCst);
    let set = set_now(runtime, bytes);
    match set {
        Ok(()) => board.most.store(pages, Ordering::Release),
        Err(_) => {
            board.fixed.store(fixed, Ordering::Release);
            board.target.store(target, Ordering::Release);
        }
    }
    set
}

/// In a budget the limit that a user sets is the most that the family takes from it.
fn bound(runtime: &Runtime, board: &Board, pages: u64) -> Result<(), u64> {
    let least = least(runtime, board);
    if pages < least {
        return Err(least * PAGE_SIZE as u64);
    }
    // The process that decides sets it, at its next look: a limit that is set without the hold may be above what the family's line says by then.
    board.most.store(pages, Ordering::Release);
    board.target.store(0, Ordering::Release);
    runtime.engine.wake_watcher();
    nudge();
    Ok(())
}

/// The smallest limit that this family can have, pages.
fn least(runtime: &Runtime, board: &Board) -> u64 {
    board.least.load(Ordering::Acquire).max(runtime.engine.floor())
}

/// A user sets how large the budget is.
///
/// # Errors
/// One line: why it stays as it is.
pub fn set_budget(runtime: &Runtime, size: Size) -> Result<(), String> {
    joint::set_size(runtime, &board().joint, size)
}

fn set_now(runtime: &Runtime, bytes: u64) -> Result<(), u64> {
    set_limit(runtime, bytes).unwrap_or_else(|| runtime.engine.set_memory_limit(bytes))
}

/// What has happened in this process so far.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// Time lost to faults, ns.
    lost: u64,
    /// Processor time without Farshore's threads, ns.
    ran: u64,
    /// Pages that came back from swap space.
    came: u64,
    /// Pages that were touched first and not given up.
    has: i64,
}

impl Sums {
    fn of(runtime: &Runtime) -> Sums {
        let stats = &runtime.engine.stats;
        let signals = stats.all_faults().saturating_sub(stats.faults(FaultKind::Zero)) * SIGNAL_NS;
        // No limit changes what a first touch costs, unless it waits for memory.
        let touches = stats.total(Count::TouchNs);
        let ours: u64 = rights::threads().map(clock::of_thread).sum();
        Sums {
            lost: (stats.latency().total + signals).saturating_sub(touches),
            ran: clock::of_process().saturating_sub(ours),
            came: stats.total(Count::PagesIn),
            has: stats.has(),
        }
    }

    fn on(board: &Board) -> Sums {
        let read = |sum: &AtomicU64| sum.load(Ordering::Acquire);
        Sums { lost: read(&board.lost), ran: read(&board.ran), came: read(&board.came), has: read(&board.has).cast_signed() }
    }

    /// A thread of ours that has ended takes its time with it: never backwards.
    fn since(self, before: Sums) -> Sums {
        Sums {
            lost: self.lost.saturating_sub(before.lost),
            ran: self.ran.saturating_sub(before.ran),
            came: self.came.saturating_sub(before.came),
            has: self.has - before.has,
        }
    }

    fn add_to(self, board: &Board) {
        board.lost.fetch_add(self.lost, Ordering::AcqRel);
        board.ran.fetch_add(self.ran, Ordering::AcqRel);
        board.came.fetch_add(self.came, Ordering::AcqRel);
        // It may be less by now, and the sum wraps as the number does.
        board.has.fetch_add(self.has.cast_unsigned(), Ordering::AcqRel);
    }
}

impl Seen {
    /// How long the next look may wait, ns; `None`: it is time, or the program grows.
    fn wait(&mut self, runtime: &Runtime, now_ns: u64) -> Option<u64> {
        let growth = self.growth;
        let grows = || {
            let (in_use, limit, _) = memory(runtime);
            grows(growth.beyond(runtime.engine.stats.has()), in_use, limit)
        };
        self.turn.wait(now_ns, grows, || runtime.engine.tell_when_short())
    }
}

/// Looks, if it is time, and sets another limit. By the watcher. Returns when it is to look again, in ns; `None`: limits stay.
pub fn look(runtime: &'static Runtime) -> Option<u64> {
    let board = board();
    let aim = board.aim();
    if aim.is_none() && !joint::is_in() {
        SEEN.with(|seen| *seen = None);
        return None;
    }
    let now = runtime.engine.clock.now_ns();
    SEEN.with(|place| {
        if let Some(soon) = place.as_mut().and_then(|seen| seen.wait(runtime, now)) {
            return Some(soon);
        }
        let own = Sums::of(runtime);
        let Some(seen) = place else {
            let evicted = runtime.engine.stats.total(Count::Evicted);
            let (pilot, loss, all) = (Pilot::new(), Loss::NONE, Sums::on(board));
            let (growth, all_growth) = (Growth::of(own.has), Growth::of(all.has));
            *place = Some(Seen { turn: Turn::at(now), own, all, decided: false, pilot, evicted, loss, growth, all_growth });
            return Some(LOOK_NS);
        };
        let wall_ns = seen.turn.begin(now);
        own.since(seen.own).add_to(board);
        seen.own = own;
        seen.growth.note(own.has, wall_ns);
        if let Some(line) = own_line() {
            // What it does not give away is of no use to relatives that are short: a family that has no more than that is full.
            line.in_use.store(budget::kept(&runtime.engine), Ordering::Release);
        }
        if !board.claim(me(), now) {
            seen.decided = false;
            return Some(LOOK_NS);
        }
        let all = Sums::on(board);
        let Sums { lost: lost_ns, ran: ran_ns, came, has: _ } = all.since(seen.all);
        let grown = seen.all_growth.beyond(all.has);
        seen.all = all;
        seen.all_growth.note(all.has, wall_ns);
        if !seen.decided {
            // What others have decided before is not known here.
            (seen.decided, seen.pilot, seen.loss, seen.all_growth) = (true, Pilot::new(), Loss::NONE, Growth::of(all.has));
            return Some(LOOK_NS);
        }
        let (in_use, limit, settled) = memory(runtime);
        let look = Look { wall_ns, lost_ns, came, ran_ns, grown, in_use, limit, settled };
        let next = aim.and_then(|aim| seen.pilot.look(aim, look));
        if aim.is_some() {
            board.measured.store((seen.pilot.slowdown() * 1e6) as u64, Ordering::Release);
        }
        if joint::is_in() {
            seen.loss.add(lost_ns, ran_ns, wall_ns);
            let short = is_short(runtime, seen, now);
            let wants = match aim {
                Some(_) => next.unwrap_or(limit),
                None => law::wants(limit, in_use, slack(in_use), is_full(look), short),
            };
            let least = least(runtime, board);
            joint::look(&board.joint, least, &Asked { runtime, board, least, wants, loss: seen.loss });
        } else if let Some(pages) = next {
            change(runtime, board, pages);
        }
        Some(LOOK_NS)
    })
}

/// Whether pages had to leave for others since the last look, in any process of the family.
fn is_short(runtime: &Runtime, seen: &mut Seen, now_ns: u64) -> bool {
    let evicted = runtime.engine.stats.total(Count::Evicted);
    let own = runtime.engine.is_short() || evicted != seen.evicted;
    seen.evicted = evicted;
    own || ledger().filter(|_| shares_limit()).is_some_and(|ledger| ledger.is_short(None, now_ns))
}

/// This family, as its budget asks for it.
struct Asked<'a> {
    runtime: &'a Runtime,
    board: &'a Board,
    least: u64,
    wants: u64,
    loss: Loss,
}

impl Family for Asked<'_> {
    fn own(&self) -> Option<Own> {
        let Asked { runtime, board, least, wants, loss } = *self;
        let decides = board.claim(me(), runtime.engine.clock.now_ns());
        let most = board.most().max(least);
        let target = Some(board.target.load(Ordering::Acquire)).filter(|&target| target > 0);
        let limit = super::limit(runtime) / PAGE_SIZE as u64;
        let held = self.has().max(limit);
        let share = Share { limit, held, least, wants: wants.clamp(least, most), need: loss.need(target) };
        decides.then_some(Own { share, most, keeps: target.is_none() })
    }

    fn has(&self) -> u64 {
        has(self.runtime)
    }

    fn set(&self, pages: u64) {
        if set_now(self.runtime, pages * PAGE_SIZE as u64).is_ok() {
            self.board.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn asked(&self) -> u64 {
        self.board.joint.asked()
    }

    fn tell(&self, told: &Told) {
        self.board.joint.tell(told);
    }
}

/// In a budget a process begins dormant, after an exec. Where nobody of the family looks any more, it gives back what the family does not have:
/// nobody would do so later.
pub(super) fn doze() {
    let Some(ledger) = ledger().filter(|ledger| joint::is_in() && shares_limit() && !ledger.is_awake()) else { return };
    let board = &ledger.board;
    let least = board.least.load(Ordering::Acquire);
    let pages = least.max(ledger.together().1);
    if pages < ledger.limit.load(Ordering::Acquire) {
        joint::give_back(&board.joint, least, || {
            let limit = ledger.limit.fetch_min(pages, Ordering::AcqRel).min(pages);
            // Behind it: a relative that has woken meanwhile may have taken more before.
            Share { limit, held: limit.max(ledger.together().1), least, wants: limit, need: 0 }
        });
    }
}

/// What the processes that share the limit may have or still have, pages.
fn has(runtime: &Runtime) -> u64 {
    match ledger().filter(|_| shares_limit()).map(super::Ledger::together) {
        Some((2.., together)) => together,
        _ => runtime.engine.budget(),
    }
}

/// Pages in use, the limit, and whether the last limit has been reached: of all processes that share it.
fn memory(runtime: &Runtime) -> (u64, u64, bool) {
    let engine = &runtime.engine;
    match ledger().filter(|_| shares_limit()) {
        Some(ledger) => {
            let (processes, together) = ledger.together();
            let limit = ledger.limit.load(Ordering::Acquire);
            let settled = if processes <= 1 { engine.frames().debt() == 0 } else { together <= limit };
            (if processes <= 1 { engine.in_use() } else { ledger.in_use() }, limit, settled)
        }
        None => (engine.in_use(), engine.memory_limit() / PAGE_SIZE as u64, engine.frames().debt() == 0),
    }
}

fn change(runtime: &Runtime, board: &Board, pages: u64) {
    let bytes = pages.max(runtime.engine.floor()) * PAGE_SIZE as u64;
    // Somebody may have said meanwhile that the limit stays.
    if board.target.load(Ordering::Acquire) == 0 {
        return;
    }
    if set_now(runtime, bytes).is_ok() {
        board.changes.fetch_add(1, Ordering::Relaxed);
    }
    // Behind it: either this sees what the user has set (`end_at`), or the user's limit comes later than this one.
    fence(Ordering::SeqCst);
    let fixed = board.fixed.load(Ordering::SeqCst);
    if board.target.load(Ordering::SeqCst) == 0 && fixed != 0 {
        let _ = set_now(runtime, fixed * PAGE_SIZE as u64);
    }
}

/// What the statistics say of it.
pub fn stats(runtime: &Runtime) -> Option<stats::Autopilot> {
    let board = board();
    let target = board.target.load(Ordering::Acquire);
    let bytes = |pages: &AtomicU64| pages.load(Ordering::Acquire) * PAGE_SIZE as u64;
    (target > 0).then(|| stats::Autopilot {
        target_ppm: u64::from(target),
        measured_ppm: board.measured.load(Ordering::Acquire),
        limit_bytes: super::limit(runtime),
        // The least that was asked for, where the limit may be so large.
        least_bytes: bytes(&board.least).min(board.most() * PAGE_SIZE as u64),
        most_bytes: board.most() * PAGE_SIZE as u64,
        lost_ns: board.lost.load(Ordering::Acquire),
        ran_ns: board.ran.load(Ordering::Acquire),
        changes: board.changes.load(Ordering::Acquire),
        decides: board.decides.load(Ordering::Acquire) as u32 == me() + 1,
    })
}

/// What they say of the budget.
pub fn budget_stats(runtime: &Runtime) -> Option<stats::Budget> {
    joint::stats(runtime, &board().joint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_decides_until_it_is_silent() {
        let board = Board::new();
        let ms = |n: u64| n * TICK_NS;
        assert!(board.claim(3, ms(5_000)));
        assert!(!board.claim(4, ms(5_100)));
        assert!(board.claim(3, ms(6_900)));
        assert!(!board.claim(4, ms(8_900)), "it looked 2 s ago");
        assert!(board.claim(4, ms(8_901)));
        assert!(!board.claim(3, ms(8_902)), "it decides no more, though it is back");
        // The clock's lower part begins anew every 49 days.
        let wrap = ms(u64::from(u32::MAX) + 1);
        let board = Board::new();
        assert!(board.claim(1, wrap - ms(100)));
        assert!(!board.claim(2, wrap + ms(100)));
        assert!(board.claim(2, wrap + ms(1_901)));
    }
}
