//! `linear`: behind each fault the next pages come, by their addresses in the program (Flexible Swapping, section 6.6; ExtMem, section 3.4).

use farshore_beside::{Event, Kind};

use super::AHEAD_MOST;
use crate::policy::{Parameter, Policy, Seen, page};
use crate::say::Say;

/// See the head.
#[derive(Debug, Default)]
pub struct Linear;

pub const PARAMETERS: &[Parameter] = &[("ahead", 8, (1, AHEAD_MOST))];

impl Policy for Linear {
    fn hears(&self) -> &'static [Kind] {
        &[Kind::Fault]
    }

    fn hear(&mut self, event: &Event, seen: &Seen<'_>, say: &mut Say) {
        say.come(page(event.address) + 1, seen.value(0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Rig;
    use super::*;
    use farshore_beside::Wanted;

    #[test]
    fn the_next_pages_come() {
        let mut rig = Rig::new(Box::new(Linear), PARAMETERS);
        rig.fault(100);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), (101..109).collect::<Vec<_>>());
        rig.parameters[0] = -4;
        rig.fault(100);
        assert_eq!(rig.say.pages_of(Wanted::Prefetch), [101], "a parameter may be nonsense");
        rig.parameters[0] = i64::MAX;
        rig.fault(100);
        assert_eq!(rig.say.all()[0].pages, AHEAD_MOST as u64);
    }
}
