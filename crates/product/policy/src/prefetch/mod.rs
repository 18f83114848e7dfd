//! Built-in prefetchers: they choose pages that come unasked.

mod majority;
mod sequential;
mod stride;
mod trail;

use farshore_core::seams::{Ahead, Fetch, Prefetcher};
use majority::Majority;
use sequential::Sequential;
use stride::Stride;

/// The built-in prefetchers.
#[derive(Debug)]
pub enum BuiltIn {
    /// No page comes unasked.
    None,
    /// Streams of neighbours.
    Sequential(Sequential),
    /// Equal distances, region by region.
    Stride(Stride),
    /// The step that most of a core's last faults had.
    Majority(Majority),
}

impl BuiltIn {
    /// Every name, the default first.
    pub const NAMES: [&'static str; 4] = ["sequential", "stride", "majority", "none"];

    /// The prefetcher of this name.
    pub fn named(name: &str) -> Option<BuiltIn> {
        match name {
            "sequential" => Some(BuiltIn::Sequential(Sequential)),
            "stride" => Some(BuiltIn::Stride(Stride::default())),
            "majority" => Some(BuiltIn::Majority(Majority::default())),
            "none" => Some(BuiltIn::None),
            _ => None,
        }
    }
}

impl Prefetcher for BuiltIn {
    fn fetch(&self, fetch: &dyn Fetch) -> Option<Ahead> {
        match self {
            BuiltIn::None => None,
            BuiltIn::Sequential(sequential) => sequential.fetch(fetch),
            BuiltIn::Stride(stride) => stride.fetch(fetch),
            BuiltIn::Majority(majority) => majority.fetch(fetch),
        }
    }
}

#[cfg(test)]
mod tests;
