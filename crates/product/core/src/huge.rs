//! What is known of huge pages in a granule: whether the granule may be mapped as one, and whether the kernel may hold its pages
//! as parts of huge pages.

use crate::sync::{AtomicU32, Ordering};

/// The program has asked for huge pages (`MADV_HUGEPAGE`) …
const ASKED: u32 = 1;
/// … or does not want them (`MADV_NOHUGEPAGE`), or the kernel did not give one …
const UNWANTED: u32 = 2;
/// … and the kernel may hold the pages of the granule as one huge page …
const CAME: u32 = 4;
/// … or some of them as parts of huge pages that reach beyond it.
const PARTS: u32 = 8;
/// One of the threads that split them.
const SPLITTER: u32 = 16;

/// What is known of huge pages in one granule.
#[derive(Debug)]
pub struct Huge(AtomicU32);

impl Huge {
    /// The program asks for huge pages here, or wants none.
    pub fn advise(&self, wanted: bool) {
        let (set, clear) = if wanted { (ASKED, UNWANTED) } else { (UNWANTED, ASKED) };
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now & !clear | set));
    }

    /// Whether a first touch may map the granule as a huge page. `unasked`: also where the program has said nothing.
    pub fn is_wanted(&self, unasked: bool) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & UNWANTED == 0 && (unasked || now & ASKED != 0)
    }

    /// From now on the kernel may hold the granule as one huge page. To be called before a page of it is released as resident, so
    /// that the evictor that takes the page (an acquire) sees this.
    pub fn came(&self) {
        self.0.fetch_or(CAME, Ordering::Relaxed);
    }

    /// The same for some of its pages, as parts of huge pages that reach beyond the granule.
    pub fn parts_came(&self) {
        self.0.fetch_or(PARTS, Ordering::Relaxed);
    }

    /// Whether the kernel may hold pages of the granule in one of these ways.
    pub fn may_be(&self) -> bool {
        self.0.load(Ordering::Relaxed) & (CAME | PARTS) != 0
    }

    /// Whether the kernel may keep RAM of the granule after all of the granule has gone.
    pub fn may_reach_beyond(&self) -> bool {
        self.0.load(Ordering::Relaxed) & PARTS != 0
    }

    /// Whether the caller, who owns a page of the granule, must split what is huge here, and then call [`Huge::end_split`]. If
    /// another thread is splitting already, both of them split, since neither's pages may leave before. `stays`: not all of it
    /// can be split, so it must be split again next time.
    pub fn begin_split(&self, stays: bool) -> bool {
        let begin = |now: u32| {
            let is_huge = now & (CAME | PARTS) != 0 || now >= SPLITTER;
            is_huge.then_some((if stays { now } else { now & !(CAME | PARTS) }) + SPLITTER)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begin).is_ok()
    }

    /// The caller has split the huge pages.
    pub fn end_split(&self) {
        self.0.fetch_sub(SPLITTER, Ordering::Relaxed);
    }

    /// The granule's memory is gone.
    pub(crate) fn forget(&self) {
        self.0.fetch_and(!(ASKED | UNWANTED | CAME | PARTS), Ordering::Relaxed);
    }

    /// Copies the state of another granule, while no thread splits anything.
    pub(crate) fn copy_from(&self, other: &Huge) {
        self.0.store(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_split_and_forgotten() {
        let huge = Huge(AtomicU32::new(0));
        assert_eq!([false, true].map(|unasked| huge.is_wanted(unasked)), [false, true]);
        huge.advise(true);
        assert!(huge.is_wanted(false));
        huge.advise(false);
        assert!(!huge.is_wanted(true));

        assert!(!huge.begin_split(false), "none came");
        huge.came();
        assert!(huge.begin_split(false) && !huge.may_be());
        assert!(huge.begin_split(false), "whose pages are to leave meanwhile splits it too");
        huge.end_split();
        assert!(huge.begin_split(false));
        huge.end_split();
        huge.end_split();
        assert!(!huge.begin_split(false));
        huge.came();
        assert!(huge.begin_split(true));
        huge.end_split();
        assert!(huge.may_be(), "what is shared is split again next time");
        huge.forget();
        assert!(!huge.may_be() && huge.is_wanted(true) && !huge.is_wanted(false));
    }
}
