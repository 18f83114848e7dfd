//! Built-in prefetchers: they choose pages that come unasked.

mod majority;
mod sequential;
mod stride;
mod trail;

use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use farshore_core::seams::{Ahead, Fetch, Prefetcher};
use farshore_core::sync::plain::AtomicU8;
use majority::Majority;
use once_cell::race::OnceBox;
use sequential::Sequential;
use stride::Stride;

/// The built-in prefetchers by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuiltIn {
    /// Streams of neighbours.
    Sequential,
    /// Equal distances, region by region.
    Stride,
    /// The step that most of a core's last faults had.
    Majority,
    /// No page comes unasked.
    None,
}

impl BuiltIn {
    /// Every prefetcher, the default first.
    pub const ALL: [BuiltIn; 4] = [BuiltIn::Sequential, BuiltIn::Stride, BuiltIn::Majority, BuiltIn::None];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            BuiltIn::Sequential => "sequential",
            BuiltIn::Stride => "stride",
            BuiltIn::Majority => "majority",
            BuiltIn::None => "none",
        }
    }

    /// The prefetcher of this name.
    pub fn named(name: &str) -> Option<BuiltIn> {
        BuiltIn::ALL.into_iter().find(|prefetcher| prefetcher.name() == name)
    }
}

/// The prefetcher in force, and what those that were in force remember. The head of the crate says how the choice changes.
#[derive(Debug)]
pub struct Prefetchers {
    /// A place in [`BuiltIn::ALL`].
    now: AtomicU8,
    /// Made when it is first chosen; never taken away.
    stride: OnceBox<Stride>,
    /// The same.
    majority: OnceBox<Majority>,
}

impl Prefetchers {
    /// What a process begins with.
    pub(crate) fn new(prefetcher: BuiltIn) -> Prefetchers {
        let all = Prefetchers { now: AtomicU8::new(BuiltIn::None as u8), stride: OnceBox::new(), majority: OnceBox::new() };
        all.choose(prefetcher);
        all
    }

    pub(crate) fn now(&self) -> BuiltIn {
        // Acquire: pairs with the Release in `choose`.
        match self.now.load(Ordering::Acquire) {
            0 => BuiltIn::Sequential,
            1 => BuiltIn::Stride,
            2 => BuiltIn::Majority,
            _ => BuiltIn::None,
        }
    }

    pub(crate) fn choose(&self, prefetcher: BuiltIn) {
        match prefetcher {
            BuiltIn::Stride => drop(self.stride.get_or_init(Box::default)),
            BuiltIn::Majority => drop(self.majority.get_or_init(Box::default)),
            BuiltIn::Sequential | BuiltIn::None => {}
        }
        // Release: a fault that reads this finds the prefetcher made.
        self.now.store(prefetcher as u8, Ordering::Release);
    }
}

impl Prefetcher for Prefetchers {
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead> {
        match self.now() {
            BuiltIn::None => None,
            // The program knows better than a guess.
            _ if fetch.is_sequential() => Sequential.fetch(fetch),
            BuiltIn::Sequential => Sequential.fetch(fetch),
            BuiltIn::Stride => self.stride.get()?.fetch(fetch),
            BuiltIn::Majority => self.majority.get()?.fetch(fetch),
        }
    }
}

#[cfg(test)]
mod tests;
