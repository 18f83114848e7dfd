//! What the program has installed for each signal.
//!
//! The kernel starts one handler of ours ([`super::frame::on_signal`]) for every handler of the program, so what the program gave is
//! kept here: for all signals, also for [`super::OURS`], whose handlers the kernel never gets to know.
//!
//! Two locks. `SETTING` makes a change of the kernel's action and of the table one step; it is held across that system call, and never
//! taken by handlers. `TABLE` is held for a copy. Both with all signals blocked.

use farshore_sys::lock::Mutex;
use farshore_sys::signal::{Action, SigSet, flags};

/// Signals are numbered from 1 to 64.
pub(super) const SIGNALS: usize = 65;
pub(super) const SIG_DFL: u64 = 0;
pub(super) const SIG_IGN: u64 = 1;

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

static SETTING: Mutex<()> = Mutex::new(());
static TABLE: Mutex<[Entry; SIGNALS]> = Mutex::new([Entry { set: Action::DEFAULT, handler: Action::DEFAULT }; SIGNALS]);

/// Whether an action is a handler, not the default and not to be ignored.
pub(super) fn is_handler(action: &Action) -> bool {
    action.handler > SIG_IGN
}

/// Runs `f` while no other thread changes an action. With all signals blocked.
pub(super) fn setting<R>(f: impl FnOnce() -> R) -> R {
    SETTING.with(|()| f())
}

/// What was set for `signal` last. With all signals blocked.
pub(super) fn get(signal: u32) -> Action {
    TABLE.with(|table| table[signal as usize].set)
}

/// The handler that was set for `signal` last. With all signals blocked.
pub(super) fn last_handler(signal: u32) -> Action {
    TABLE.with(|table| table[signal as usize].handler)
}

/// Notes what was set, in the form in which it reads back; what was set before. With all signals blocked.
pub(super) fn put(signal: u32, action: Action) -> Action {
    let kept = Action { flags: action.flags & FLAGS, mask: SigSet(action.mask.0 & !UNBLOCKABLE.0), ..action };
    TABLE.with(|table| {
        let entry = &mut table[signal as usize];
        if is_handler(&kept) {
            entry.handler = kept;
        }
        core::mem::replace(&mut entry.set, kept)
    })
}

/// The action for a signal of [`super::OURS`] that is about to be delivered, which resets one that asks for it. With all signals
/// blocked.
pub(super) fn take(signal: u32) -> Action {
    TABLE.with(|table| {
        let set = &mut table[signal as usize].set;
        let action = *set;
        if action.flags & flags::RESETHAND != 0 && is_handler(&action) {
            set.handler = SIG_DFL;
        }
        action
    })
}

/// Keeps the table as it is, for the time of a fork.
pub(super) fn acquire() {
    SETTING.acquire();
    TABLE.acquire();
}

/// Ends that, in the parent or in the child.
pub(super) fn release() {
    TABLE.release();
    SETTING.release();
}
