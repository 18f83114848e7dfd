//! Exports that were let go while a write might come late.
//!
//! Which of its places such a write would hit is known to the space that is gone ([`super::places`]). So the process does not use the export again. It is known by its name, and by
//! bytes that nobody else has ([`Mark`]): a server may have several names.
//!
//! No lock: a child that is forked at any moment can use the list.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Most exports that are listed. Where there are more, none is used any more.
const MOST: usize = 64;

/// The list of this process.
pub(super) static LATE: List = List::new();

/// By which bytes an export is known: where they lie, plus 1 (0: there are none), and their sum.
#[derive(Debug)]
pub(super) struct Mark {
    at: AtomicU64,
    sum: AtomicU64,
}

impl Mark {
    /// None is known.
    pub(super) const fn none() -> Mark {
        Mark { at: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    /// By the thread that keeps the space.
    pub(super) fn set(&self, offset: u64, bytes: &[u8]) {
        self.sum.store(xxh3_64(bytes), Ordering::Relaxed);
        self.at.store(offset + 1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Late {
    /// The sum of its name; 0: it is just being noted.
    name: AtomicU64,
    mark: Mark,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct List {
    exports: [Late; MOST],
    used: AtomicUsize,
}

/// Looks at a page of an export: whether what is told of its bytes is true.
pub(super) type Look<'l> = dyn FnMut(u64, &dyn Fn(&[u8]) -> bool) -> bool + 'l;

fn sum_of(name: &Path) -> u64 {
    xxh3_64(name.as_os_str().as_encoded_bytes()).max(1)
}

impl List {
    const fn new() -> List {
        List { exports: [const { Late { name: AtomicU64::new(0), mark: Mark::none() } }; MOST], used: AtomicUsize::new(0) }
    }

    pub(super) fn note(&self, name: &Path, mark: &Mark) {
        if let Some(late) = self.exports.get(self.used.fetch_add(1, Ordering::AcqRel)) {
            late.mark.sum.store(mark.sum.load(Ordering::Relaxed), Ordering::Relaxed);
            late.mark.at.store(mark.at.load(Ordering::Relaxed), Ordering::Relaxed);
            // Pairs with `has`.
            late.name.store(sum_of(name), Ordering::Release);
        }
    }

    /// Whether an export is one of these. `is_there`: reads a page at this offset, and says whether that function is true of it.
    pub(super) fn has(&self, name: &Path, is_there: &mut Look<'_>) -> bool {
        let used = self.used.load(Ordering::Acquire);
        let mut listed = self.exports.iter().take(used).filter(|late| late.name.load(Ordering::Acquire) != 0);
        used > MOST
            || listed.any(|late| {
                let (at, sum) = (late.mark.at.load(Ordering::Relaxed), late.mark.sum.load(Ordering::Relaxed));
                late.name.load(Ordering::Relaxed) == sum_of(name) || at != 0 && is_there(at - 1, &|bytes| xxh3_64(bytes) == sum)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_known_by_its_name_and_by_its_bytes() {
        let (list, page) = (List::new(), vec![7; 4096]);
        let has = |name: &str, there: u64, bytes: &[u8]| list.has(Path::new(name), &mut |at, f| at == there && f(bytes));
        assert!(!has("a", 0, &page));
        list.note(Path::new("a"), &Mark::none());
        assert!(has("a", 0, &[]) && !has("b", 0, &page), "without a mark by its name alone");
        let mark = Mark::none();
        mark.set(8192, &page);
        list.note(Path::new("b"), &mark);
        assert!(has("b", 0, &[]) && has("c", 8192, &page));
        assert!(!has("c", 4096, &page) && !has("c", 8192, &[8; 4096]));
    }

    #[test]
    fn where_there_are_too_many_none_is_used_again() {
        let list = List::new();
        let has = |name: &str| list.has(Path::new(name), &mut |_, _| false);
        (0..MOST).for_each(|n| list.note(Path::new(&n.to_string()), &Mark::none()));
        assert!(has("63") && !has("other"));
        list.note(Path::new("64"), &Mark::none());
        assert!(has("64") && has("other"));
    }
}
