//! What the program has installed for each signal.
//!
//! The kernel starts one handler of ours (`on_signal` in `signals/frame.rs`) for every handler of the program, so what the program gave is
//! kept here: for all signals, also for [`OURS`](super::pending::OURS), whose handlers the kernel never gets to know.
//!
//! Two locks. One makes a change of the kernel's action and of the table one step; it is held across that system call, and never
//! taken by handlers. The other is held for a copy. Both with all signals blocked.
//!
//! A guest ([`thread::Whose`]) has actions of its own in the kernel, unless it was made with `CLONE_SIGHAND`. So it has a table of its own ([`begin_own`]), in
//! the record of its first thread.

use crate::ground::thread;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::lock::Mutex;
use farshore_sys::signal::{Action, SigSet, flags};

/// Signals are numbered from 1 to 64.
pub const SIGNALS: usize = 65;
pub const SIG_DFL: u64 = 0;
pub const SIG_IGN: u64 = 1;

/// The flags that the kernel keeps; others read back as 0.
const FLAGS: u64 =
    0x1 | 0x2 | 0x800 | flags::SIGINFO | flags::RESTORER | flags::ONSTACK | flags::RESTART | flags::NODEFER | flags::RESETHAND;
const UNBLOCKABLE: SigSet = SigSet::EMPTY.with(9).with(19);

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What was set last.
    set: Action,
    /// The last one that was a handler: a signal may have been on its way to it when it was replaced.
    handler: Action,
}

/// The actions of one process. Zeros are one, in which all are the default.
#[derive(Debug)]
pub struct Actions {
    setting: Mutex<()>,
    table: Mutex<[Entry; SIGNALS]>,
    /// See `signals/steps.rs`.
    pub trap_taken: AtomicBool,
}

/// Those of the process that the memory belongs to.
static OWNERS: Actions = Actions {
    setting: Mutex::new(()),
    table: Mutex::new([Entry { set: Action::DEFAULT, handler: Action::DEFAULT }; SIGNALS]),
    trap_taken: AtomicBool::new(false),
};

/// Those of the calling thread's process.
pub fn mine() -> &'static Actions {
    thread::current().and_then(|thread| thread.actions.get()).unwrap_or(&OWNERS)
}

/// The calling thread is the first of a guest: it has a copy of its parent's actions in `place`. With all signals blocked.
pub fn begin_own(place: &'static Actions, parents: Option<&'static Actions>) -> &'static Actions {
    let parents = parents.unwrap_or(&OWNERS);
    let copy = parents.table.with(|table| *table);
    // Whoever had the place may have been killed with a lock.
    place.setting.reset();
    place.table.reset();
    place.table.with(|table| *table = copy);
    place.trap_taken.store(parents.trap_taken.load(Ordering::Acquire), Ordering::Release);
    place
}

/// In a forked child: the memory, and so the table, are its process' own.
pub fn become_owners() {
    let Some(own) = thread::current().and_then(|thread| thread.actions.take()) else { return };
    let copy = own.table.with(|table| *table);
    OWNERS.table.with(|table| *table = copy);
    OWNERS.trap_taken.store(own.trap_taken.load(Ordering::Acquire), Ordering::Release);
}

/// Whether an action is a handler, not the default and not to be ignored.
pub fn is_handler(action: &Action) -> bool {
    action.handler > SIG_IGN
}

/// Runs `f` while no other thread changes an action. With all signals blocked.
pub fn setting<R>(f: impl FnOnce() -> R) -> R {
    mine().setting.with(|()| f())
}

/// What was set for `signal` last. With all signals blocked.
pub fn get(signal: u32) -> Action {
    mine().table.with(|table| table[signal as usize].set)
}

/// The handler that was set for `signal` last. With all signals blocked.
pub fn last_handler(signal: u32) -> Action {
    mine().table.with(|table| table[signal as usize].handler)
}

/// Notes what was set, in the form in which it reads back; what was set before. With all signals blocked.
pub fn put(signal: u32, action: Action) -> Action {
    let kept = Action { flags: action.flags & FLAGS, mask: SigSet(action.mask.0 & !UNBLOCKABLE.0), ..action };
    mine().table.with(|table| {
        let entry = &mut table[signal as usize];
        if is_handler(&kept) {
            entry.handler = kept;
        }
        core::mem::replace(&mut entry.set, kept)
    })
}

/// The action for a signal of [`OURS`](super::pending::OURS) that is about to be delivered, which resets one that asks for it. With all signals
/// blocked.
pub fn take(signal: u32) -> Action {
    mine().table.with(|table| {
        let set = &mut table[signal as usize].set;
        let action = *set;
        if action.flags & flags::RESETHAND != 0 && is_handler(&action) {
            set.handler = SIG_DFL;
        }
        action
    })
}

/// Keeps the tables as they are, for the time of a fork: a guest's child has the owner's too.
pub fn acquire() {
    each(|actions| {
        actions.setting.acquire();
        actions.table.acquire();
    });
}

/// Ends that, in the parent or in the child.
pub fn release() {
    each(|actions| {
        actions.table.release();
        actions.setting.release();
    });
}

fn each(f: impl Fn(&Actions)) {
    f(&OWNERS);
    if !core::ptr::eq(mine(), &OWNERS) {
        f(mine());
    }
}
