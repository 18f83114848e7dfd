//! The robust mutexes that a thread holds when it ends: what the kernel does for them, done before.
//!
//! The kernel walks the thread's list when the thread is gone, marks each mutex, and wakes a thread that waits for it. It stops at
//! the first page that is absent: while a thread ends it takes no faults, from a userfaultfd neither. So it is done here, where pages
//! can be brought. The kernel then finds nothing that is still the thread's.
//!
//! Between our mark and the thread's end another thread may have the mutex already. Nobody can tell: the thread does nothing with it any more.
//! Waiters of priority-inheriting mutexes are woken by the kernel, which keeps their list itself.
//!
//! Source: `exit_robust_list` and `handle_futex_death` in `kernel/futex/core.c`.

use crate::ground::net::net;
use farshore_core::page::Access;
use farshore_net::buffers::{self, Memory, PinSet, Pins, careful};
use farshore_sys::raw::gettid;

const GET_ROBUST_LIST: u64 = 274;
const FUTEX: u64 = 202;
const WAKE_SHARED: u64 = 1;
const WAITERS: u32 = 1 << 31;
const OWNER_DIED: u32 = 1 << 30;
const OWNER: u32 = OWNER_DIED - 1;
/// In the pointer to an entry: the mutex inherits priorities.
const INHERITS: u64 = 1;
/// Entries that the kernel looks at.
const ENTRIES_MAX: usize = 2048;

/// Marks the robust mutexes that the calling thread holds, and wakes the threads that wait for them. The thread is about to end; all signals
/// but those of faults are blocked.
pub fn give_up_all() {
    let (mut head, mut len) = (0u64, 0u64);
    let args = [0, &raw mut head as u64, &raw mut len as u64, 0, 0, 0];
    if net().own(GET_ROBUST_LIST, &args) != 0 || head == 0 {
        return;
    }
    let Some([first, offset, pending]) = read::<[u64; 3]>(head) else { return };
    let mut entry = first;
    for _ in 0..ENTRIES_MAX {
        if entry & !INHERITS == head {
            break;
        }
        // Read before the mutex is given up: its next owner puts it on a list of its own.
        let next = read::<u64>(entry & !INHERITS);
        let is_pending = entry & !INHERITS == pending & !INHERITS;
        if !is_pending && give_up(entry, offset, false).is_none() {
            return;
        }
        match next {
            Some(next) => entry = next,
            None => return,
        }
    }
    if pending & !INHERITS != 0 {
        give_up(pending, offset, true);
    }
}

/// One mutex. `None`: its word cannot be accessed.
fn give_up(entry: u64, offset: u64, is_pending: bool) -> Option<()> {
    let (word, inherits) = ((entry & !INHERITS).wrapping_add(offset), entry & INHERITS != 0);
    if !word.is_multiple_of(4) {
        return None;
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(net(), &mut set);
    buffers::pin_all(net(), &mut pins, word, 4, Access::Write);
    mark(word, inherits, is_pending, &mut pins)
}

fn mark(word: u64, inherits: bool, is_pending: bool, pins: &mut PinSet) -> Option<()> {
    let wake = || _ = net().own(FUTEX, &[word, WAKE_SHARED, 1, 0, 0, 0]);
    let mut value = buffers::read_user::<u32>(net(), pins, word)?;
    loop {
        let owner = value & OWNER;
        if is_pending && !inherits && owner == 0 {
            // It was unlocked, and the threads that wait may not have been told.
            wake();
            return Some(());
        }
        if owner != gettid() {
            return Some(());
        }
        let found = careful::careful_exchange(word, value, value & WAITERS | OWNER_DIED)?;
        if found == value {
            break;
        }
        value = found;
    }
    if !inherits && value & WAITERS != 0 {
        wake();
    }
    Some(())
}

/// A structure of the program; `None` if it cannot be read.
fn read<T: buffers::Plain>(addr: u64) -> Option<T> {
    buffers::read_once::<T>(net(), addr)
}
