//! What a policy is.

use farshore_beside::{Event, Kind};

use crate::places::Mapping;
use crate::say::Say;

/// A parameter: its name, and what it is at first.
pub type Parameter = (&'static str, i64);

/// What a policy sees of its program, but for events.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'s> {
    /// `CLOCK_MONOTONIC`, ns.
    pub ns: u64,
    /// Pages of the memory limit.
    pub limit: u64,
    /// Pages that are in memory: a few hundredths of a second old.
    pub resident: u64,
    /// The values of its parameters, in the order in which it names them.
    pub parameters: &'s [i64],
}

impl Seen<'_> {
    /// The value of a parameter, at least `least`.
    pub fn at_least(&self, place: usize, least: u64) -> u64 {
        u64::try_from(self.parameters[place]).unwrap_or(0).max(least)
    }
}

/// A policy: it hears events in their order, and says what it wishes. It makes no system call and reads no clock.
pub trait Policy {
    /// The kinds of events that it hears.
    fn hears(&self) -> &'static [Kind];

    /// An event.
    fn hear(&mut self, event: &Event, seen: &Seen<'_>, say: &mut Say);

    /// The mappings of the program: at first, and when pages were mapped since.
    fn mapped(&mut self, _mappings: &[Mapping], _say: &mut Say) {}

    /// All that there was has been heard; called some 50 times a second besides.
    fn rest(&mut self, _seen: &Seen<'_>, _say: &mut Say) {}
}

/// The number of the page at an address.
pub fn page(address: u64) -> u64 {
    address / farshore_beside::PAGE
}
