//! mlock and munlockall.

use super::runs::{Held, any_managed, each_run};
use super::{Args, PAGE, hand_over_managed, is_error, pages, raw};
use crate::ground::files;
use crate::ground::report;
use crate::ground::runtime::{Runtime, locked};
use crate::memory::attributes;
use farshore_sys::fd;
use farshore_sys::raw::Errno;

const MLOCK2: u64 = 325;
const MLOCK_ONFAULT: u64 = 1;
const MUNLOCK: u64 = 150;
const MUNLOCKALL: u64 = 152;

/// Serves mlock. Locked memory is handed over to the kernel, and stays where it is. Before a page is brought in, the kernel is
/// asked whether it would lock so much (`RLIMIT_MEMLOCK`). If the memory to be locked, with what is locked already, exceeds
/// Farshore's limit, the call is refused, as `mlockall` is.
pub fn mlock(runtime: &Runtime, number: u64, args: &Args) -> i64 {
    attributes::note();
    let start = args[0] & !(PAGE - 1);
    let range = args[0].checked_add(args[1]).and_then(|end| pages(start, end.checked_next_multiple_of(PAGE)? - start));
    let Some(range) = range.filter(|&r| any_managed(runtime, r)) else { return raw(number, args) };
    let flags = if number == MLOCK2 { args[2] } else { 0 };
    let answer = locked(runtime, |space| {
        // What is locked is the file's own page.
        files::hand_back(runtime, range);
        // This locks pages that are there, and brings none in. Managed pages cannot stay locked: they could not be evicted.
        let allowed = raw(MLOCK2, &[args[0], args[1], flags | MLOCK_ONFAULT, 0, 0, 0]);
        let mut managed_pages = 0;
        each_run(runtime, range, |run, held| {
            if held != Held::Others {
                managed_pages += if held == Held::Managed { run.len() } else { 0 };
                raw(MUNLOCK, &[run.start.addr(), run.bytes(), 0, 0, 0, 0]);
            }
            0
        });
        if is_error(allowed) {
            return allowed;
        }
        let limit = runtime.engine.frames().limit();
        if space.locked + managed_pages > limit {
            // The program may have unlocked or unmapped some of it since.
            space.locked = locked_pages().map_or(space.locked, |now| now.min(space.locked));
        }
        if space.locked + managed_pages > limit {
            return -i64::from(Errno::ENOMEM.0);
        }
        let answer = hand_over_managed(runtime, range, flags & MLOCK_ONFAULT == 0);
        space.locked += if is_error(answer) { 0 } else { managed_pages };
        answer
    });
    if is_error(answer) { answer } else { raw(number, args) }
}

/// Pages of this process that are locked, as the kernel counts them.
fn locked_pages() -> Option<u64> {
    let text = fd::read_file(c"/proc/self/status", 1 << 16).ok()?;
    let text = core::str::from_utf8(&text).ok()?;
    let kib: u64 = text.lines().find_map(|line| line.strip_prefix("VmLck:"))?.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024 / PAGE)
}

/// Serves munlockall. Memory that the program had locked stopped being managed. The keys of `--encrypt`, which are ours, stay
/// locked.
pub fn munlockall(runtime: &Runtime, args: &Args) -> i64 {
    let answer = raw(MUNLOCKALL, args);
    if let Err(why) = runtime.engine.backend.lock_keys() {
        report::line(format_args!("the program has called munlockall and lowered its limit of locked memory; {why}"));
    }
    answer
}
