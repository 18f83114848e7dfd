//! What a policy is.

use farshore_beside::{Event, Kind};

use crate::places::Mapping;
use crate::say::Say;

/// A parameter: its name, what it is at first, and what it may be, the least and the most. None is below 0.
pub type Parameter = (&'static str, i64, (i64, i64));

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
    /// What they may be.
    pub known: &'s [Parameter],
}

impl Seen<'_> {
    /// The value of a parameter. What is out of its range counts as the nearest that is not: a user may set any number.
    pub fn value(&self, place: usize) -> u64 {
        let (least, most) = self.known[place].2;
        self.parameters[place].clamp(least, most) as u64
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
