//! Ranges of a call, cut into the longest runs of pages that are held alike.

use super::is_error;
use crate::ground::runtime::Runtime;
use farshore_core::page::{Page, PageRange};
use farshore_sys::raw::Errno;

/// What a page belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Farshore's.
    Managed,
    /// A guard in memory that is Farshore's (`MADV_GUARD_INSTALL`): no access is allowed until the guard is removed.
    Guarded,
    /// The kernel's, or there is no page.
    Others,
}

/// Whether any page of `range` is managed. A hint without the lock, exact under it.
pub fn any_managed(runtime: &Runtime, range: PageRange) -> bool {
    range.by_granule().any(|part| {
        runtime
            .engine
            .table
            .granule(part.start.granule())
            .is_some_and(|g| !g.granule.touched() || part.iter().any(|page| runtime.engine.is_managed(page)))
    })
}

/// Whether some pages of `range` are managed and some are others'. Under the lock.
pub fn mixed(runtime: &Runtime, range: PageRange) -> bool {
    let mut seen = [false; 2];
    each_run(runtime, range, |_, held| {
        seen[usize::from(held != Held::Others)] = true;
        0
    });
    seen == [true; 2]
}

/// Calls `each` for every run, in order, as the kernel walks its mappings: `ENOMEM` says that there is a hole, and the walk goes
/// on behind it; any other error ends the walk, and is the answer. Under the lock.
pub fn each_run(runtime: &Runtime, range: PageRange, each: impl FnMut(PageRange, Held) -> i64) -> i64 {
    let mut runs = Runs { run: PageRange { start: range.start, end: range.start }, held: None, answer: 0, ended: false, each };
    for part in range.by_granule() {
        let guards = runtime.engine.may_hold_guards(part.start);
        let whole = match runtime.engine.table.granule(part.start.granule()) {
            None if guards => None,
            None => Some(Held::Others),
            Some(g) if !g.granule.touched() => Some(Held::Managed),
            Some(_) => None,
        };
        match whole {
            Some(held) => runs.extend(part, held),
            None => part.iter().for_each(|page| {
                runs.extend(PageRange { start: page, end: page.plus(1) }, held(runtime, page));
            }),
        }
    }
    runs.end();
    runs.answer
}

fn held(runtime: &Runtime, page: Page) -> Held {
    if runtime.engine.is_managed(page) {
        Held::Managed
    } else if runtime.engine.is_guard(page) {
        Held::Guarded
    } else {
        Held::Others
    }
}

struct Runs<E> {
    run: PageRange,
    held: Option<Held>,
    answer: i64,
    ended: bool,
    each: E,
}

impl<E: FnMut(PageRange, Held) -> i64> Runs<E> {
    fn extend(&mut self, part: PageRange, held: Held) {
        if self.held != Some(held) {
            self.end();
            self.run.start = part.start;
            self.held = Some(held);
        }
        self.run.end = part.end;
    }

    fn end(&mut self) {
        let Some(held) = self.held.filter(|_| !self.ended) else { return };
        let answer = (self.each)(self.run, held);
        if is_error(answer) {
            self.answer = answer;
            self.ended = answer != -i64::from(Errno::ENOMEM.0);
        }
    }
}
