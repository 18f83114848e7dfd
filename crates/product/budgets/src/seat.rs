//! A seat: a descriptor of the user's list, and the number of a line there. Who decides a family's limit looks through it.
//!
//! [`Seat::look`] is one look: it gets the hold of the list, reads what the others have, asks the [`Family`] what it is now, writes the family's own
//! line and has the limit set. If another process has the hold, the limit stays until the next look. What was seen is [`Told`] to the family, which
//! shows it.
//!
//! Before each use the descriptor is compared with the file that it was, so that a line is never written to another one.

use crate::law::{self, Other, Own, Share};
use crate::list::{Hold, Line, Name, now_ms};
use core::cell::Cell;
use farshore_config::{Seat as Handed, Size, stats};
use farshore_sys::clock::sleep_ns;
use farshore_sys::raw::getpid;
use rustix::fd::AsFd;
use rustix::fs::fstat;

const PAGE: u64 = 4096;
/// How often, and how long each time, the hold is waited for at the start, ns.
const TRIES: u32 = 20;
const PAUSE_NS: u64 = 10_000_000;
/// How long a size that a user has asked for may wait for its answer.
pub const ANSWERED_WITHIN_NS: u64 = 3_000_000_000;

/// What a look has found; pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// How large the budget is.
    pub size: u64,
    /// The family's own share.
    pub own: Share,
    /// What all families hold together.
    pub taken: u64,
    /// What they are never left with less than, together.
    pub leasts: u64,
    /// How many families there are.
    pub programs: u64,
}

impl Told {
    fn of(size: u64, own: &Share, others: &[Other]) -> Told {
        let sum = |own: u64, of: fn(&Share) -> u64| others.iter().fold(own, |sum, other| sum.saturating_add(of(&other.share)));
        Told {
            size,
            own: *own,
            taken: sum(own.held, |share| share.held),
            leasts: sum(own.least, |share| share.least),
            programs: others.len() as u64 + 1,
        }
    }

    /// As the counters tell of it.
    pub fn stats(&self, name: &str) -> stats::Budget {
        let Told { size, own, taken, leasts: _, programs } = *self;
        stats::Budget {
            name: name.into(),
            size_bytes: size * PAGE,
            share_bytes: own.held * PAGE,
            least_bytes: own.least * PAGE,
            wanted_bytes: own.wants * PAGE,
            need_ppm: own.need,
            taken_bytes: taken * PAGE,
            programs,
        }
    }

    /// Another size is asked for.
    ///
    /// # Errors
    /// One line: the families are never left with less than that.
    pub fn check(&self, size: Size) -> Result<(), String> {
        if size.bytes() / PAGE >= self.leasts {
            return Ok(());
        }
        Err(format!(
            "budget={size}: the programs in it ({}) are never left with less than {} together; give at least that",
            self.programs,
            Size(self.leasts * PAGE)
        ))
    }
}

/// Why another size is not set: the program is in no budget.
pub fn in_none(size: Size) -> String {
    format!("budget={size}: this program is in no budget: start it with --budget NAME={size}")
}

/// Why another size is not set: nobody has answered for [`ANSWERED_WITHIN_NS`].
pub fn unanswered(size: Size) -> String {
    format!(
        "budget={size}: the list of budgets could not be written within {} s, another program holds it or the one that decides here has no time: \
         try again",
        ANSWERED_WITHIN_NS / 1_000_000_000
    )
}

/// The family, as a look asks for it. All of it is called under the hold; numbers are pages.
pub trait Family {
    /// What it is now, if this process decides its limit. Asked under the hold: a process that was stopped before it may find that another
    /// one decides, and has set another limit.
    fn own(&self) -> Option<Own>;
    /// What it has, or may have.
    fn has(&self) -> u64;
    /// It has this limit from now on.
    fn set(&self, pages: u64);
    /// The size that a user has asked for; 0: none.
    fn asked(&self) -> u64;
    /// What was seen.
    fn tell(&self, told: &Told);
}

/// A seat, in a file that is open as long as this lives.
#[derive(Debug)]
pub struct Seat<F> {
    file: F,
    /// Which file that is: device and inode.
    identity: (u64, u64),
    line: u32,
    name: Name,
    /// How large the budget is, as it was last seen.
    size: Cell<u64>,
}

fn identity(file: &impl AsFd) -> Option<(u64, u64)> {
    fstat(file.as_fd()).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// What the list says, while the process has the hold.
struct Seen<'f> {
    hold: Hold<'f>,
    /// Of the others, with their numbers.
    lines: Vec<(u32, Line)>,
    others: Vec<Other>,
}

impl<F: AsFd> Seat<F> {
    /// The seat that was taken ([`crate::join`]) in the budget of this name, of `size` pages. `None`: the file cannot be looked at.
    pub fn new(file: F, handed: Handed, name: &str, size: u64) -> Option<Seat<F>> {
        let identity = identity(&file)?;
        Some(Seat { file, identity, line: handed.line, name: Name::new(name), size: Cell::new(size) })
    }

    /// Gives the file away.
    pub fn into_file(self) -> F {
        self.file
    }

    /// Gets the hold and reads, the size as well, which another program may have changed. `None`: another process has it, or the list cannot be
    /// read.
    fn read(&self, least: u64) -> Option<Seen<'_>> {
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

    /// Writes the family's line; whether it could be.
    fn write(&self, seen: &Seen<'_>, share: Share) -> bool {
        let line = Line { name: self.name, size: self.size.get(), pid: getpid(), looked_ms: now_ms(), share };
        seen.hold.write(self.line, &line).is_ok()
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

    /// The family begins: it takes what it may have at once. Returns what it has from then on, and what was seen; waits a moment for the hold, and without it
    /// the family has the least, which it has since it was let in.
    pub fn begin(&self, least: u64, most: u64) -> (u64, Option<Told>) {
        for _ in 0..TRIES {
            if let Some(seen) = self.read(least) {
                let share = Share { limit: least, held: least, least, wants: least, need: 0 };
                let pages = law::first(self.size.get(), &Own { share, most, keeps: true }, &seen.others);
                let more = Share { limit: pages, held: pages, wants: pages, ..share };
                let share = if self.write(&seen, more) { more } else { share };
                return (share.limit, Some(Told::of(self.size.get(), &share, &seen.others)));
            }
            sleep_ns(PAUSE_NS);
        }
        (least, None)
    }

    /// Looks: shares move by the law. Returns the size that was asked for, and is answered now.
    pub fn look(&self, least: u64, family: &impl Family) -> Option<u64> {
        let seen = self.read(least)?;
        let own = family.own()?;
        let (limit, least) = (own.share.limit, own.share.least);
        let asked = family.asked();
        if asked > 0 {
            self.set_size(&seen, least, asked);
        }
        let next = law::next(self.size.get(), &own, &seen.others);
        // Under the hold, which `seen` has. A lower limit comes first, so that less is held; a higher one when the line says so.
        if next < limit {
            family.set(next);
        }
        let held = if next < limit { family.has() } else { own.share.held };
        let share = Share { limit: next, held: held.max(next), ..own.share };
        let written = self.write(&seen, share);
        // Before the limit goes up: nobody is told of a share that is smaller than the limit.
        family.tell(&Told::of(self.size.get(), &share, &seen.others));
        if written && next > limit {
            family.set(next);
        }
        Some(asked)
    }

    /// The family is left with less than it had: `set` sets its limit, and says what its share is then. What is to be told, if the list could be had.
    pub fn give_back(&self, least: u64, set: impl FnOnce() -> Share) -> Option<Told> {
        let seen = self.read(least)?;
        let share = set();
        // If it cannot be written the others think that it has more.
        let _ = self.write(&seen, share);
        Some(Told::of(self.size.get(), &share, &seen.others))
    }
}
