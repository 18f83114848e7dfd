//! Memory kept from children: `MADV_DONTFORK` (a child does not have it) and `MADV_WIPEONFORK` (a child has zeros there).
//!
//! Such memory stays managed. The kernel alone keeps the record of which memory it is, through every split, move and unmapping:
//! the flags of its mappings, in `/proc/self/smaps`. Before a fork [`ranges`] reads them, under the address-space lock, if such
//! advice was ever given to managed memory. In the child [`leave_out`] makes the page words true.

use crate::ground::runtime::TheEngine;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_core::page::{Page, PageRange};
use farshore_sys::fd;
use farshore_sys::raw::Errno;

/// Managed memory may be kept from children. A child inherits it.
static GIVEN: AtomicBool = AtomicBool::new(false);

/// The most that is read of `/proc/self/smaps`, bytes.
const SMAPS_MOST: usize = 64 << 20;

/// Managed memory that a child does not have as its parent has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Its pages.
    pub range: PageRange,
    /// It is there in the child, and reads as zeros. Else there is nothing.
    pub wiped: bool,
}

/// Notes that managed memory is kept from children from now on. False: this process cannot ask which, so such memory must not be
/// managed.
pub fn note() -> bool {
    let can_ask = fd::read_file(c"/proc/self/smaps", 1).is_ok();
    if can_ask {
        GIVEN.store(true, Ordering::Relaxed);
    }
    can_ask
}

/// Managed memory that a child would not have as its parent has it. Under the address-space lock.
///
/// # Errors
/// The kernel does not tell (all of) it: a child could not know what it has.
pub fn ranges() -> Result<Vec<Kept>, Errno> {
    if !GIVEN.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let text = fd::read_file(c"/proc/self/smaps", SMAPS_MOST)?;
    if text.len() >= SMAPS_MOST { Err(Errno::ENOMEM) } else { Ok(kept_in(&text)) }
}

/// The mappings with a userfaultfd in this text of `/proc/self/smaps` that are kept from children.
fn kept_in(smaps: &[u8]) -> Vec<Kept> {
    let mut range = None;
    let mut found = Vec::new();
    for line in smaps.split(|&byte| byte == b'\n') {
        // (A file's name need not be UTF-8.)
        let first = line.split(|&byte| byte == b' ').next().and_then(|first| core::str::from_utf8(first).ok());
        if first == Some("VmFlags:") {
            let has = |flag: &[u8]| line.split(|&byte| byte == b' ').any(|word| word == flag);
            // A child does not have memory with both kinds of advice.
            let (gone, wiped) = (has(b"dc"), has(b"wf"));
            if (gone || wiped) && (has(b"um") || has(b"uw")) {
                found.extend(range.take().map(|range| Kept { range, wiped: !gone }));
            }
        } else if let Some((start, end)) = first.and_then(|first| first.split_once('-'))
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            range = Some(PageRange::covering(start, end - start));
        }
    }
    found
}

/// The parts of `range` that are there in a child.
pub fn without_gone(range: PageRange, kept: &[Kept]) -> impl Iterator<Item = PageRange> {
    // In the order of addresses, as the kernel tells them.
    let mut gone = kept.iter().filter(move |kept| !kept.wiped && kept.range.start < range.end && range.start < kept.range.end);
    let mut at = Some(range.start);
    core::iter::from_fn(move || {
        loop {
            let start = at?;
            let (end, next) = match gone.next() {
                Some(kept) => (kept.range.start, Some(kept.range.end).filter(|&next| next < range.end)),
                None => (range.end, None),
            };
            at = next;
            if start < end {
                return Some(PageRange { start, end });
            }
        }
    })
}

/// In a forked child, before it runs any code of the program: what is gone is managed no more, and what is wiped is untouched.
/// Its slots are let go by the child, as after a memory call of its own: those of its parent stay held for its parent.
///
/// # Errors
/// The kernel's, where wiped memory cannot be registered.
pub fn leave_out(engine: &TheEngine, kept: &[Kept]) -> Result<(), Errno> {
    for &Kept { range, wiped } in kept {
        if wiped {
            // Also where guards were, which are wiped as well.
            // SAFETY: the child's engine serves faults on it before any code of the program runs.
            unsafe { engine.kernel.uffd().register(range.start.addr(), range.bytes()) }?;
            let Ok(()) = engine.discard(range, |_| Ok::<(), core::convert::Infallible>(()));
            manage_guards(engine, range);
        } else {
            engine.claim(range);
            engine.finish_unmap(range);
        }
    }
    Ok(())
}

/// Manages the pages of the registered `range` that held guards.
fn manage_guards(engine: &TheEngine, range: PageRange) {
    for part in range.by_granule() {
        match engine.table.granule(part.start.granule()) {
            None => engine.manage(part),
            Some(g) if !g.granule.touched() => {}
            Some(_) => {
                let guards = |page: &Page| !engine.is_managed(*page);
                part.iter().filter(guards).for_each(|page| engine.manage(PageRange { start: page, end: page.plus(1) }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange { start: Page(start), end: Page(end) }
    }

    #[test]
    fn flags_tell_what_is_kept_from_children() {
        let mapping = |start: u64, flags: &str| {
            format!(
                "{:x}-{:x} rw-p 00000000 00:00 0 [anon: dc um]\nSize: 64 kB\nVmFlags: {flags}\n",
                start << 12,
                (start + 16) << 12
            )
        };
        let smaps = [
            mapping(0x10, "rd wr mr mw me ac um uw "),
            mapping(0x20, "rd wr mr mw me dc ac um uw "),
            mapping(0x30, "rd wr mr mw me wf ac um uw "),
            mapping(0x40, "rd wr mr mw me dc wf ac uw "),
            mapping(0x50, "rd wr mr mw me dc ac "),
            mapping(0x60, "rd wr mr mw me wf ac "),
        ]
        .concat();
        let kept = |start, wiped| Kept { range: pages(start, start + 16), wiped };
        assert_eq!(kept_in(smaps.as_bytes()), [kept(0x20, false), kept(0x30, true), kept(0x40, false)]);
        assert_eq!(kept_in(b"\xff-\xfe\nVmFlags: dc um\n"), []);
    }

    #[test]
    fn what_is_left_is_all_but_what_is_gone() {
        let kept = [(2, 4, false), (5, 6, true), (6, 8, false), (8, 9, false)]
            .map(|(start, end, wiped)| Kept { range: pages(start, end), wiped });
        let left = |start, end| without_gone(pages(start, end), &kept).collect::<Vec<_>>();
        assert_eq!(left(0, 10), [pages(0, 2), pages(4, 6), pages(9, 10)]);
        assert_eq!(left(3, 7), [pages(4, 6)]);
        assert_eq!(left(6, 9), []);
        assert_eq!(left(0, 2), [pages(0, 2)]);
        assert_eq!(left(2, 3), []);
        assert_eq!(without_gone(pages(1, 9), &[]).collect::<Vec<_>>(), [pages(1, 9)]);
    }
}
