//! The budget that this family has together with other programs of its user (`--budget`): its seat, and how it looks.
//! [`farshore_budgets`] has the protocol between families, and the law.
//!
//! **The seat** is a descriptor of the user's list of budgets, and the number of a line there. `farshore run` has taken it. All processes
//! of the family have it open: forks inherit it, an exec hands it on. So the line ends with the last of them.
//!
//! **The one that decides** the family's limit ([`super::pilot`]) looks: it gets the hold of the list, reads what the others have, writes its
//! own line and sets the limit. If another process has the hold, the limit stays until the next look. What it has seen is on the
//! [board](Shown), where the others find it, and the control thread, which has none of the process' descriptors.
//!
//! **A process that changes its user for good** leaves the budget, which is in the hands of each process that has it open. It says so in a line on stderr.
//! It keeps the limit that it has, which counts there no more; what relatives have under the old user still does.
//!
//! Before each use the descriptor is compared with the file that it was, so that a line is never written to another one.

use super::take_over;
use crate::ground::report;
use crate::ground::runtime::{Runtime, uninterrupted};
use core::cell::Cell;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use farshore_budgets::law::{self, Other, Own, Share};
use farshore_budgets::list::{Hold, Line, Name, now_ms};
use farshore_config::{Options, Seat, Size, stats};
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::clock::sleep_ns;
use farshore_sys::fd::Fd;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{getpid, users};
use rustix::fd::AsFd as _;
use rustix::fs::fstat;

/// How often, and how long each time, the hold is waited for at the start, ns.
const TRIES: u32 = 20;
const PAUSE_NS: u64 = 10_000_000;
/// How long a new size waits for the process that decides, in such pauses.
const TAKEN_WITHIN: u32 = 300;

/// What a family knows of its budget; pages. Written by the process that decides, but for `asked`.
#[repr(C)]
pub(super) struct Shown {
    size: AtomicU64,
    held: AtomicU64,
    least: AtomicU64,
    wants: AtomicU64,
    /// Millionths.
    need: AtomicU64,
    /// Of all programs: what they hold, and what each is left with.
    taken: AtomicU64,
    leasts: AtomicU64,
    programs: AtomicU64,
    /// The size that a user has asked for; 0: none.
    asked: AtomicU64,
}

impl Shown {
    pub(super) const fn new() -> Shown {
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        Shown {
            size: zero(),
            held: zero(),
            least: zero(),
            wants: zero(),
            need: zero(),
            taken: zero(),
            leasts: zero(),
            programs: zero(),
            asked: zero(),
        }
    }

    /// What was seen by one process alone is what the family that begins with it knows.
    pub(super) fn take_over(&self, before: &Shown) {
        for (to, from) in self.all().into_iter().zip(before.all()) {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }

    fn all(&self) -> [&AtomicU64; 8] {
        [&self.size, &self.held, &self.least, &self.wants, &self.need, &self.taken, &self.leasts, &self.programs]
    }

    /// How large the budget is; `None`: nobody has looked yet.
    pub(super) fn size(&self) -> Option<u64> {
        Some(self.size.load(Ordering::Acquire)).filter(|&size| size > 0)
    }

    fn tell(&self, size: u64, own: &Share, others: &[Other]) {
        let sum = |own: u64, of: fn(&Share) -> u64| others.iter().fold(own, |sum, other| sum.saturating_add(of(&other.share)));
        let values = [
            size,
            own.held,
            own.least,
            own.wants,
            own.need,
            sum(own.held, |share| share.held),
            sum(own.least, |share| share.least),
            others.len() as u64 + 1,
        ];
        self.all().into_iter().zip(values).for_each(|(to, value)| to.store(value, Ordering::Release));
    }
}

/// The seat.
struct Place {
    file: Fd,
    /// Which file that is: device and inode.
    identity: (u64, u64),
    line: u32,
    name: Name,
    /// How large the budget is, as it was last seen; pages.
    size: Cell<u64>,
    /// The user whose list it is.
    user: u32,
    /// Another process has this table of descriptors: what is closed here is closed there.
    shares_table: bool,
}

static PLACE: Mutex<Option<Place>> = Mutex::new(None);
/// Its descriptor; -1: there is none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

fn identity(file: &Fd) -> Option<(u64, u64)> {
    fstat(file.as_fd()).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// What the list says, while the process has the hold.
struct Seen<'f> {
    hold: Hold<'f>,
    /// Of the others, with their numbers.
    lines: Vec<(u32, Line)>,
    others: Vec<Other>,
}

impl Place {
    /// Gets the hold and reads, the size as well, which another program may have changed. `None`: another process has it, or the list cannot be
    /// read.
    fn look(&self, least: u64) -> Option<Seen<'_>> {
        if identity(&self.file) != Some(self.identity) {
            return None;
        }
        let hold = Hold::get(self.file.as_fd()).ok()?;
        let mut lines = hold.lines(self.name).ok()?;
        // Another program that changes the size writes it to all lines; what stands in one alone is a mistake.
        let own = lines.iter().find(|(number, _)| *number == self.line).map(|(_, own)| own.size);
        if let Some(size) = own.filter(|&size| size >= least && lines.iter().all(|(_, line)| line.size == size)) {
            self.size.set(size);
        }
        lines.retain(|(number, _)| *number != self.line);
        let now_ms = now_ms();
        let others = lines.iter().map(|(_, line)| line.as_other(now_ms)).collect();
        Some(Seen { hold, lines, others })
    }

    fn own_line(&self, share: Share) -> Line {
        Line { name: self.name, size: self.size.get(), pid: getpid(), looked_ms: now_ms(), share }
    }

    /// Another size, for all, unless it is less than what they are never left with.
    fn set_size(&self, seen: &Seen<'_>, least: u64, size: u64) {
        let leasts = seen.others.iter().fold(least, |sum, other| sum.saturating_add(other.share.least));
        if size >= leasts {
            self.size.set(size);
            for (number, line) in &seen.lines {
                let _ = seen.hold.write(*number, &Line { size, ..*line });
            }
        }
    }
}

/// Start-up: the seat that was handed on becomes this process', under a number of ours.
///
/// # Errors
/// One line: it is not there.
pub fn adopt(options: &mut Options) -> Result<(), String> {
    let Some(budget) = &options.budget else {
        options.seat = None;
        return Ok(());
    };
    let lost = |why: &str| format!("--budget {budget}: {why}; start the program with farshore run, which takes a seat there");
    let seat = options.seat.ok_or_else(|| lost("no seat was handed on"))?;
    let file = take_over(seat.descriptor).map_err(|why| lost(&format!("the list of budgets was not handed on ({why:?})")))?;
    let identity = identity(&file).ok_or_else(|| lost("the list of budgets cannot be looked at"))?;
    options.seat = Some(Seat { descriptor: file.raw(), ..seat });
    let size = budget.size.map_or(0, |size| size.bytes() / PAGE_SIZE as u64);
    let name = Name::new(&budget.name);
    let (size, user, descriptor) = (Cell::new(size), users()[0], file.raw());
    let place = Place { file, identity, line: seat.line, name, size, user, shares_table: false };
    uninterrupted(|| PLACE.with(|it| *it = Some(place)));
    DESCRIPTOR.store(descriptor, Ordering::Release);
    Ok(())
}

/// The process runs without Farshore: it has no part in the budget.
pub fn forget() {
    DESCRIPTOR.store(-1, Ordering::Release);
    uninterrupted(|| PLACE.with(|place| *place = None));
}

/// Whether the family is in a budget.
pub fn is_in() -> bool {
    descriptor().is_some()
}

/// The seat's descriptor.
pub(super) fn descriptor() -> Option<i32> {
    Some(DESCRIPTOR.load(Ordering::Acquire)).filter(|&descriptor| descriptor >= 0)
}

/// In a forked child. `closes`: it has descriptors of its own.
pub(super) fn in_child(closes: bool) {
    // Another thread may have been looking.
    PLACE.reset();
    shares_table(closes);
}

/// A child was forked. `closes`: it has descriptors of its own.
pub(super) fn shares_table(closes: bool) {
    if !closes && is_in() {
        PLACE.with(|place| place.as_mut().map(|place| place.shares_table = true));
    }
}

/// After the user may have changed: leaves the budget if it is another user's now.
pub fn leave(runtime: &Runtime) {
    if !is_in() {
        return;
    }
    let users = users();
    let left = uninterrupted(|| PLACE.with(|place| place.take_if(|place| !users.contains(&place.user))));
    if let Some(place) = left {
        if place.shares_table {
            core::mem::forget(place.file);
        }
        DESCRIPTOR.store(-1, Ordering::Release);
        runtime.note_own_fds();
        let name = runtime.options.budget.as_ref().map_or("", |budget| &budget.name);
        report::line(format_args!(
            "process {} belongs to another user from now on, and leaves the budget {name}: its limit stays at {}, which counts there no more",
            getpid(),
            Size(super::limit(runtime))
        ));
    }
}

/// The first process of a run wakes: it takes what it may have at once. Pages; `None`: it is in no budget.
pub(super) fn begin(shown: &Shown, least: u64, most: u64) -> Option<u64> {
    uninterrupted(|| {
        PLACE.with(|place| {
            let place = place.as_ref()?;
            for _ in 0..TRIES {
                if let Some(seen) = place.look(least) {
                    return Some(begin_now(place, &seen, shown, least, most));
                }
                sleep_ns(PAUSE_NS);
            }
            // That much it has since `farshore run`.
            Some(least)
        })
    })
}

fn begin_now(place: &Place, seen: &Seen<'_>, shown: &Shown, least: u64, most: u64) -> u64 {
    let share = Share { limit: least, held: least, least, wants: least, need: 0 };
    let pages = law::first(place.size.get(), &Own { share, most, keeps: true }, &seen.others);
    let share = Share { limit: pages, held: pages, wants: pages, ..share };
    if seen.hold.write(place.line, &place.own_line(share)).is_err() {
        return least;
    }
    shown.tell(place.size.get(), &share, &seen.others);
    pages
}

/// Looks: shares move by the law. `own`: what the family is now, if this process decides its limit; `has`: what it has; `set` sets its limit. Pages.
pub(super) fn look(shown: &Shown, least: u64, own: impl FnOnce() -> Option<Own>, has: impl Fn() -> u64, set: impl Fn(u64)) {
    PLACE.with(|place| {
        let Some(place) = place.as_ref() else { return };
        let Some(seen) = place.look(least) else { return };
        // Only now, under the hold: a process that was stopped before it may find that another one decides, and has set another limit.
        let Some(own) = own() else { return };
        let (limit, least) = (own.share.limit, own.share.least);
        let asked = shown.asked.load(Ordering::Acquire);
        if asked > 0 {
            place.set_size(&seen, least, asked);
        }
        let next = law::next(place.size.get(), &own, &seen.others);
        // Under the hold, which `seen` has. A lower limit comes first, so that less is held; a higher one when the line says so.
        if next < limit {
            set(next);
        }
        let held = if next < limit { has() } else { own.share.held };
        let share = Share { limit: next, held: held.max(next), ..own.share };
        let written = seen.hold.write(place.line, &place.own_line(share)).is_ok();
        // Before the limit goes up: nobody is told of a share that is smaller than the limit.
        shown.tell(place.size.get(), &share, &seen.others);
        if written && next > limit {
            set(next);
        }
        // Behind it: whoever asked looks at the size then.
        let _ = shown.asked.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Relaxed);
    });
}

/// The family is left with less than it had: `set` sets its limit, and says what its share is then.
pub(super) fn give_back(shown: &Shown, least: u64, set: impl FnOnce() -> Share) {
    uninterrupted(|| {
        PLACE.with(|place| {
            let Some(place) = place.as_ref() else { return };
            let Some(seen) = place.look(least) else { return };
            let share = set();
            // If it cannot be written the others think that it has more.
            let _ = seen.hold.write(place.line, &place.own_line(share));
            shown.tell(place.size.get(), &share, &seen.others);
        });
    });
}

/// A user sets another size, for all programs of the budget. Waits until the process that decides has written it. By the control thread.
///
/// # Errors
/// One line: why it stays as it is.
pub(super) fn set_size(runtime: &Runtime, shown: &Shown, size: Size) -> Result<(), String> {
    if !is_in() {
        return Err(format!("budget={size}: this program is in no budget: start it with --budget NAME={size}"));
    }
    let pages = size.bytes() / PAGE_SIZE as u64;
    let too_small = || {
        let leasts = Size(shown.leasts.load(Ordering::Acquire) * PAGE_SIZE as u64);
        let programs = shown.programs.load(Ordering::Acquire);
        format!(
            "budget={size}: the programs in it ({programs}) are never left with less than {leasts} together; give at least that"
        )
    };
    if pages < shown.leasts.load(Ordering::Acquire) {
        return Err(too_small());
    }
    shown.asked.store(pages, Ordering::Release);
    runtime.engine.wake_watcher();
    super::nudge();
    for _ in 0..TAKEN_WITHIN {
        sleep_ns(PAUSE_NS);
        if shown.asked.load(Ordering::Acquire) != pages {
            return if shown.size() == Some(pages) { Ok(()) } else { Err(too_small()) };
        }
    }
    match shown.asked.compare_exchange(pages, 0, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Err(format!(
            "budget={size}: the list of budgets could not be written within {} s, another program holds it or the one that decides here has no time: \
             try again",
            u64::from(TAKEN_WITHIN) * PAUSE_NS / 1_000_000_000
        )),
        Err(_) => Ok(()),
    }
}

/// What the statistics say of it.
pub(super) fn stats(runtime: &Runtime, shown: &Shown) -> Option<stats::Budget> {
    let budget = runtime.options.budget.as_ref().filter(|_| is_in())?;
    let value = |number: &AtomicU64| number.load(Ordering::Acquire);
    let bytes = |number: &AtomicU64| value(number) * PAGE_SIZE as u64;
    Some(stats::Budget {
        name: budget.name.clone(),
        size_bytes: bytes(&shown.size),
        share_bytes: bytes(&shown.held),
        least_bytes: bytes(&shown.least),
        wanted_bytes: bytes(&shown.wants),
        need_ppm: value(&shown.need),
        taken_bytes: bytes(&shown.taken),
        programs: value(&shown.programs),
    })
}
