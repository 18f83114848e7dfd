//! Strides: when two faults in a row within 8 MiB of addresses have the same distance, a third is expected (reference prediction
//! by region).
//!
//! Regions keep streams of several threads apart as long as the threads work in different places; `majority` is for threads that
//! do not. A step of one page is a stride too, but this prefetcher asks for pages one window ahead only, so for plain streams
//! `sequential` is better.

use super::trail::{STEP_MAX, Trail};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use farshore_core::page::Page;
use farshore_core::seams::{Ahead, Fetch, Prefetcher};

/// Pages of a region, as a power of two.
const REGION: u32 = 11;
/// Regions that are remembered; those that fall on one place push each other out.
const PLACES: usize = 256;

/// See the head of the module.
#[derive(Debug)]
pub struct Stride {
    places: Box<[Place]>,
}

#[derive(Debug)]
struct Place {
    /// The last fault, and the step to it: [`Step`].
    last: AtomicU64,
    /// The trail that was found.
    trail: AtomicU64,
}

/// The last fault of a region and its distance from the fault before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    page: Page,
    step: i64,
}

impl Step {
    fn load(place: &AtomicU64) -> Step {
        let bits = place.load(Ordering::Relaxed);
        Step { page: Page(bits >> 16), step: i64::from(bits as u16 as i16) }
    }

    fn store(self, place: &AtomicU64) {
        place.store(self.page.0 << 16 | u64::from(self.step as i16 as u16), Ordering::Relaxed);
    }
}

impl Default for Stride {
    fn default() -> Stride {
        let place = || Place { last: AtomicU64::new(0), trail: AtomicU64::new(0) };
        Stride { places: (0..PLACES).map(|_| place()).collect() }
    }
}

impl Stride {
    fn place(&self, page: Page) -> &Place {
        let hash = (page.0 >> REGION).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.places[hash as usize % PLACES]
    }
}

impl Prefetcher for Stride {
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead> {
        let page = fetch.page();
        let place = self.place(page);
        let found = Trail::load(&place.trail).and_then(|trail| Some((trail, trail.steps_to(page)?)));
        let (trail, steps) = match found {
            Some(found) => found,
            None => {
                let before = Step::load(&place.last);
                let step = page.0.wrapping_sub(before.page.0) as i64;
                let near = step != 0 && step.abs() < STEP_MAX && page.0 >> REGION == before.page.0 >> REGION;
                Step { page, step: if near { step } else { 0 } }.store(&place.last);
                if !near || step != before.step {
                    return None;
                }
                (Trail::begin(page, step), 0)
            }
        };
        let (trail, ahead) = trail.go_on(fetch, steps)?;
        // Stored where the fault on its marker will look for it.
        trail.store(&self.place(trail.marker).trail);
        Some(ahead)
    }
}
