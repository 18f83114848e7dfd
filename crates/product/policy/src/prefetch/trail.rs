//! Code that `stride` and `majority` share: following faults that come at equal distances, once they are found.
//!
//! A trail leaves a marker (`farshore_core::seams`, prefetch) in front of each window that it asks for, as a stream of `sequential` does:
//!
//! ```text
//!  the fault here   asked for before          asked for now
//!  M ── s ── s ── s ── s ── M' ── s ── s ── s ── s ── s ── s ──
//! ```

use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::page::Page;
use farshore_core::seams::{Ahead, Fetch, PIECE_MAX};

/// The first window, in pages.
const WINDOW_MIN: u32 = 4;
/// The longest step. Beyond it two faults have nothing to do with each other.
pub(super) const STEP_MAX: i64 = 1 << 12;

/// Faults at equal distances: where the next one is due, and how far the trail goes on from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trail {
    /// The page of the fault that is due.
    pub(super) marker: Page,
    /// The distance from one page to the next; not 0.
    pub(super) step: i64,
    /// Pages behind the marker that were asked for.
    ahead: u32,
    window: u32,
}

const PAGE_BITS: u32 = 36;

impl Trail {
    /// A trail that begins with the fault on `page`.
    pub(super) fn begin(page: Page, step: i64) -> Trail {
        Trail { marker: page, step, ahead: 0, window: WINDOW_MIN / 2 }
    }

    /// The trail as it was stored, if there is one.
    pub(super) fn load(place: &AtomicU64) -> Option<Trail> {
        // Relaxed: a hint, which any other thread may have written.
        let bits = place.load(Ordering::Relaxed);
        let step = (bits >> PAGE_BITS & 0x3fff) as i64 - (1 << 13);
        let (ahead, window) = ((bits >> 50 & 0x3f) as u32, (bits >> 56 & 0x3f) as u32);
        (window != 0).then_some(Trail { marker: Page(bits & ((1 << PAGE_BITS) - 1)), step, ahead, window })
    }

    pub(super) fn store(self, place: &AtomicU64) {
        let step = (self.step + (1 << 13)) as u64 & 0x3fff;
        let bits = self.marker.0 & ((1 << PAGE_BITS) - 1)
            | step << PAGE_BITS
            | u64::from(self.ahead) << 50
            | u64::from(self.window) << 56;
        place.store(bits, Ordering::Relaxed);
    }

    /// Steps from the marker to `page`, if the page lies on the way that was asked for.
    pub(super) fn steps_to(self, page: Page) -> Option<u32> {
        let distance = page.0.wrapping_sub(self.marker.0) as i64;
        let steps = distance / self.step;
        (distance % self.step == 0 && (0..=i64::from(self.ahead) + 1).contains(&steps)).then_some(steps as u32)
    }

    /// The fault on `page` came, which lies `steps` from the marker. Returns the trail as it goes on, and the pages that
    /// are to be brought.
    ///
    /// At the marker the window doubles. A fault behind the marker says that the pages asked for did not come: the window
    /// stays.
    pub(super) fn go_on(self, fetch: &dyn Fetch, steps: u32) -> Option<(Trail, Ahead)> {
        let window = if steps == 0 { (2 * self.window).min(PIECE_MAX) } else { self.window };
        if steps == 0 {
            fetch.count_used(self.ahead);
        }
        let at = |from: Page, steps: i64| Some(Page(from.0.checked_add_signed(self.step.checked_mul(steps)?)?));
        let due = at(self.marker, i64::from(self.ahead.max(steps)) + 1)?;
        // A page that is resident there would not fault: the marker is the first page that will.
        let marker = (0..8).map_while(|n| at(due, n)).find(|&page| fetch.is_out(page))?;
        let ahead = Ahead { first: at(marker, 1)?, step: self.step as i32, pages: window };
        Some((Trail { marker, step: self.step, ahead: window, window }, ahead))
    }
}
