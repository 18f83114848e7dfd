//! The budget that this family has together with other programs of its user (`--budget`): its seat, and how it looks.
//! [`farshore_budgets`] has the protocol between families, and the law.
//!
//! **The seat** is a descriptor of the user's list of budgets, and the number of a line there. `farshore run` has taken it. All processes
//! of the family have it open: forks inherit it, an exec hands it on. So the line ends with the last of them.
//!
//! **The one that decides** the family's limit ([`super::pilot`]) looks ([`Seat::look`]). What it has seen is on the [board](Shown), where the others
//! find it, and the control thread, which has none of the process' descriptors.
//!
//! **A process that changes its user for good** leaves the budget, which is in the hands of each process that has it open. It says so in a line on stderr.
//! It keeps the limit that it has, which counts there no more; what relatives have under the old user still does.

use super::take_over;
use crate::ground::report;
use crate::ground::runtime::{Runtime, uninterrupted};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use farshore_budgets::law::Share;
use farshore_budgets::seat::{self, Family, Seat, Told};
use farshore_config::{Options, Seat as Handed, Size, stats};
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::clock::sleep_ns;
use farshore_sys::fd::Fd;
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{getpid, users};

/// Between two looks whether a size that a user has asked for was taken, ns.
const PAUSE_NS: u64 = 10_000_000;

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

    pub(super) fn tell(&self, told: &Told) {
        let Told { size, own, taken, leasts, programs } = *told;
        let values = [size, own.held, own.least, own.wants, own.need, taken, leasts, programs];
        self.all().into_iter().zip(values).for_each(|(to, value)| to.store(value, Ordering::Release));
    }

    fn told(&self) -> Told {
        let [size, held, least, wants, need, taken, leasts, programs] = self.all().map(|number| number.load(Ordering::Acquire));
        Told { size, own: Share { limit: held, held, least, wants, need }, taken, leasts, programs }
    }

    /// The size that a user has asked for, and nobody has answered; 0: none.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }
}

/// Where the seat is.
struct Place {
    seat: Seat<Fd>,
    /// The user whose list it is.
    user: u32,
    /// Another process has this table of descriptors: what is closed here is closed there.
    shares_table: bool,
}

static PLACE: Mutex<Option<Place>> = Mutex::new(None);
/// Its descriptor; -1: there is none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

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
    let handed = options.seat.ok_or_else(|| lost("no seat was handed on"))?;
    let file = take_over(handed.descriptor).map_err(|why| lost(&format!("the list of budgets was not handed on ({why:?})")))?;
    let (descriptor, user) = (file.raw(), users()[0]);
    let size = budget.size.map_or(0, |size| size.bytes() / PAGE_SIZE as u64);
    let seat = Seat::new(file, handed, &budget.name, size).ok_or_else(|| lost("the list of budgets cannot be looked at"))?;
    options.seat = Some(Handed { descriptor, ..handed });
    let place = Place { seat, user, shares_table: false };
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
            core::mem::forget(place.seat.into_file());
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
            let (pages, told) = place.seat.begin(least, most);
            told.iter().for_each(|told| shown.tell(told));
            Some(pages)
        })
    })
}

/// Looks: shares move by the law ([`Seat::look`]).
pub(super) fn look(shown: &Shown, least: u64, family: &impl Family) {
    PLACE.with(|place| {
        let Some(asked) = place.as_ref().and_then(|place| place.seat.look(least, family)) else { return };
        // Behind it: whoever asked looks at the size then.
        let _ = shown.asked.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Relaxed);
    });
}

/// The family is left with less than it had: `set` sets its limit, and says what its share is then.
pub(super) fn give_back(shown: &Shown, least: u64, set: impl FnOnce() -> Share) {
    uninterrupted(|| {
        PLACE.with(|place| {
            let told = place.as_ref().and_then(|place| place.seat.give_back(least, set));
            told.iter().for_each(|told| shown.tell(told));
        });
    });
}

/// A user sets another size, for all programs of the budget. Waits until the process that decides has written it. By the control thread.
///
/// # Errors
/// One line: why it stays as it is.
pub(super) fn set_size(runtime: &Runtime, shown: &Shown, size: Size) -> Result<(), String> {
    if !is_in() {
        return Err(seat::in_none(size));
    }
    shown.told().check(size)?;
    let pages = size.bytes() / PAGE_SIZE as u64;
    shown.asked.store(pages, Ordering::Release);
    runtime.engine.wake_watcher();
    super::nudge();
    let answer = || if shown.size() == Some(pages) { Ok(()) } else { shown.told().check(size).and(Err(seat::unanswered(size))) };
    for _ in 0..seat::ANSWERED_WITHIN_NS / PAUSE_NS {
        sleep_ns(PAUSE_NS);
        if shown.asked.load(Ordering::Acquire) != pages {
            return answer();
        }
    }
    match shown.asked.compare_exchange(pages, 0, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Err(seat::unanswered(size)),
        Err(_) => answer(),
    }
}

/// What the statistics say of it.
pub(super) fn stats(runtime: &Runtime, shown: &Shown) -> Option<stats::Budget> {
    runtime.options.budget.as_ref().filter(|_| is_in()).map(|budget| shown.told().stats(&budget.name))
}
