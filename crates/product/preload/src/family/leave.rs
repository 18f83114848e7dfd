//! A process that changes its user for good leaves its family.
//!
//! Each process of a family can change what the family shares: a process that can write the ledger sets the limit of all, and
//! says of others that they have ended. So a process that belongs to another user from now on (none of its user ids is the
//! family's) gets a family of its own before the call returns to the program:
//!
//! - its line says so (`LEFT`). Nothing but its end changes the line any more;
//! - where the ledger was mapped there is a new one, with this process alone; the old one's descriptor for writing is closed;
//! - it takes a part of the limit with it, which is its own limit: what it has, but at most an equal part; and half of what is
//!   free, but at most an eighth of the whole. What it shares with its parent counts for both from now on, since it can no longer
//!   say how much that still is;
//! - the description by which it is alive stays, for reading alone: the process still reads what its relatives had evicted when
//!   it was forked, and they read what it had. If it has children in the old family, it looks at their lines in a mapping that it
//!   cannot write. There may be nobody left who notes there that they have ended, so it looks at their locks as well.
//!
//! A process that is alone takes its family with it. A process that could go back to the family's user has that user's rights,
//! and stays.

use super::{FREE, Files, Heir, KIN, Kin, LEDGER, LEFT, Ledger, Lines, MAP_SHARED, NOBODY, enter, make_file, nudge, settle};
use crate::ground::changes::Reader;
use crate::ground::runtime::Runtime;
use core::sync::atomic::Ordering;
use farshore_sys::fd::{self, Fd};
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{Errno, getpid, users};
use farshore_sys::{own, vm};
use rustix::fd::AsFd;

const MAP_FIXED: u64 = 0x10;

/// What is left of a family that this process was in.
struct Former {
    /// As [`Kin::number`].
    number: u32,
    /// The description by which it is alive there.
    alive: Fd,
    /// Its children there.
    heirs: Vec<Heir>,
    /// The old ledger, for reading, while there are children.
    ledger: Option<&'static Ledger>,
}

static FORMERS: Mutex<Vec<Former>> = Mutex::new(Vec::new());

/// What a process needs in order to leave, made before it changes its user: then leaving cannot fail any more.
pub struct Ready(Files);

/// Before a call that may change the user: makes what it takes to leave the family; `None` if there is none to leave.
///
/// # Errors
/// `EAGAIN`: it cannot be made, so the call must fail.
pub fn may_leave() -> Result<Option<Ready>, Errno> {
    if KIN.with(|kin| kin.is_none()) {
        return Ok(None);
    }
    let files = make_file().and_then(|file| match Files::of(file) {
        Ok(files) => Ok(files),
        // There is no `/proc`, so the two share a description. Its lock is seen all the same (`is_byte_locked`), and stays as
        // long as a child has the ledger open.
        Err(_) => {
            let file = make_file()?;
            let alive = fd::duplicate(&file).map(crate::ground::parts::raise)?;
            Ok(Files { file, alive })
        }
    });
    files.map(|files| Some(Ready(files))).map_err(|_| Errno::EAGAIN)
}

/// After the user has been changed: leaves the family if it is another user's now. Called uninterrupted, and not under the
/// address-space lock.
pub fn leave(runtime: &Runtime, ready: Ready) {
    let left = runtime.space.with(|_| KIN.with(|kin| kin.as_mut().is_some_and(|kin| leave_now(runtime, kin, ready))));
    if left {
        runtime.note_own_fds();
        nudge();
    }
}

fn leave_now(runtime: &Runtime, kin: &mut Kin, Ready(files): Ready) -> bool {
    let users = users();
    let Some(ledger) = super::ledger().filter(|_| !users.contains(&kin.user)) else { return false };
    let bytes = size_of::<Ledger>() as u64;
    if ledger.together().0 <= 1 && kin.heirs.is_empty() {
        kin.user = users[0];
        return false;
    }
    let Files { file, alive } = files;
    let mut me = ledger.members[kin.me as usize].budget.load(Ordering::Acquire);
    if kin.shares_limit {
        me = part(runtime, ledger, kin.me);
    }
    ledger.members[kin.me as usize].state.store(LEFT, Ordering::Release);
    let nudged = ledger.nudged.load(Ordering::Acquire);
    nudge();

    let reader = || {
        // SAFETY: new memory, at a place that the kernel chooses.
        let base = unsafe { vm::mmap(own::place(bytes), bytes, vm::prot::READ, MAP_SHARED, kin.alive.raw(), 0) };
        // SAFETY: a mapping of a ledger's length, which `unmap` alone takes away; only loads are done on it.
        base.ok().map(|base| unsafe { &*core::ptr::with_exposed_provenance::<Ledger>(base as usize) })
    };
    let before = if kin.heirs.is_empty() { None } else { reader() };

    let place = core::ptr::from_ref(ledger) as u64;
    let rights = vm::prot::READ | vm::prot::WRITE;
    // SAFETY: the old ledger's mapping, of the same length, gives way in one step; what is there instead has a value for each of
    // its fields too, and code that looks there (`nudge`, the kin thread) means the ledger of its current family.
    let mapped = unsafe { vm::mmap(place, bytes, rights, MAP_SHARED | MAP_FIXED, file.raw(), 0) };
    if let Err(why) = mapped {
        crate::ground::report::abort(format_args!(
            "the program changes its user, and cannot leave the family of the one that it had ({why:?})"
        ));
    }
    // The kin thread may be about to sleep on the value that it has read in the old one.
    ledger.nudged.store(nudged.wrapping_add(2), Ordering::Release);
    ledger.limit.store(me, Ordering::Release);
    let line = match enter(ledger, &alive, NOBODY) {
        Ok(line) => line,
        Err(why) => crate::ground::report::abort(format_args!("bug: no place in a new family ({why:?})")),
    };
    ledger.members[line as usize].pid.store(getpid(), Ordering::Relaxed);
    ledger.members[line as usize].budget.store(me, Ordering::Release);
    debug_assert!(core::ptr::eq(LEDGER.load(Ordering::Acquire), ledger));

    let shares_limit = kin.shares_limit;
    let new = Kin {
        number: kin.number + 1,
        file,
        alive,
        me: line,
        heirs: Vec::new(),
        shares_limit,
        user: users[0],
        seen: super::budget::Seen::default(),
    };
    let old = core::mem::replace(kin, new);
    FORMERS.with(|formers| formers.push(Former { number: old.number, alive: old.alive, heirs: old.heirs, ledger: before }));
    if shares_limit {
        runtime.engine.set_budget(me);
    }
    true
}

/// The part of the limit that this process takes with it, pages: written to its line.
fn part(runtime: &Runtime, ledger: &Ledger, line: u32) -> u64 {
    let me = &ledger.members[line as usize];
    let limit = ledger.limit.load(Ordering::Acquire);
    let (processes, _) = ledger.together();
    let equal = (limit / processes.max(1)).max(runtime.engine.floor());
    let has = runtime.engine.budget().min(equal);
    me.credit.store(0, Ordering::Release);
    me.budget.store(has, Ordering::Release);
    let (_, together) = ledger.together();
    let more = (limit.saturating_sub(together) / 2).min(limit / 8);
    me.budget.store(has + more, Ordering::Release);
    has + more
}

fn unmap(ledger: &'static Ledger) {
    // SAFETY: a mapping of `leave_now`'s, which only its `Former` knew.
    let _ = unsafe { vm::munmap(core::ptr::from_ref(ledger) as u64, size_of::<Ledger>() as u64) };
}

/// Finds children in former families that have ended. Returns whether there were any. Under the address-space lock.
pub(super) fn look(runtime: &Runtime) -> bool {
    FORMERS.with(|formers| {
        let mut changed = false;
        for former in formers.iter_mut() {
            let Some(ledger) = former.ledger else { continue };
            super::release_ended(&mut former.heirs, &former.alive);
            let alive = &former.alive;
            let is_over = |heir: &Heir| super::has_another_generation(ledger, heir) || has_ended(ledger, alive, heir.line);
            changed |= settle(runtime, &mut former.heirs, is_over);
            if former.heirs.is_empty() {
                former.ledger.take().into_iter().for_each(unmap);
            }
        }
        changed
    })
}

/// Whether the process of a line has ended, and each that it has forked, and those. As `bury` finds it out, for a ledger that cannot be written.
#[inline(never)]
fn has_ended(ledger: &Ledger, alive: &Fd, line: u32) -> bool {
    has_ended_where(ledger, line, &mut |line| fd::is_byte_locked(alive.as_fd(), line))
}

/// See [`has_ended`]. `lives`: whether the lock of a line is held.
pub(super) fn has_ended_where(ledger: &Ledger, line: u32, lives: &mut dyn FnMut(u32) -> bool) -> bool {
    if lives(line) {
        return false;
    }
    let mut tree = Lines::NONE;
    tree.add(line as usize);
    loop {
        let mut has_grown = false;
        // Each time anew: one that has ended since may have forked into a line behind all that there were.
        let members = ledger.used();
        for (n, member) in members.iter().enumerate().filter(|(_, member)| member.state.load(Ordering::Acquire) != FREE) {
            if !tree.has(n) && tree.has(member.parent.load(Ordering::Relaxed) as usize) {
                if lives(n as u32) {
                    return false;
                }
                tree.add(n);
                has_grown = true;
            }
        }
        // A process that has ended forks no more. So its children are looked for once more when that is known of it.
        if !has_grown {
            return true;
        }
    }
}

/// Children in former families. [`look`] comes before.
pub(super) fn readers() -> Vec<Reader> {
    FORMERS.with(|formers| formers.iter().flat_map(|former| former.heirs.iter().map(|heir| heir.reader(former.number))).collect())
}

/// As [`super::has_tied`], for former families.
pub(super) fn has_tied() -> bool {
    FORMERS.with(|formers| {
        formers.iter_mut().any(|former| {
            super::release_ended(&mut former.heirs, &former.alive);
            former.heirs.iter().any(Heir::shares_table)
        })
    })
}

/// In a forked child: forgets what its parent holds for others.
pub(super) fn in_child(closes: bool) {
    FORMERS.reset();
    FORMERS.with(|formers| {
        for former in formers {
            super::forget_ties(&mut former.heirs, closes);
            former.ledger.take().into_iter().for_each(unmap);
        }
    });
}

/// Descriptors by which this process is alive for others.
pub(super) fn own_fds() -> Vec<i32> {
    FORMERS.with(|formers| formers.iter().map(|former| former.alive.raw()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alive_is_seen_where_file_and_lock_share_a_description() {
        let file = make_file().unwrap();
        let alive = fd::duplicate(&file).unwrap();
        fd::share_byte(alive.as_fd(), 3).unwrap();
        assert!(fd::is_byte_locked(file.as_fd(), 3) && !fd::is_byte_locked(file.as_fd(), 4));
    }
}
