//! The policies, and their names.

mod csr;
mod dt;
mod ghost;
mod leap;
mod linear;
mod phases;
mod scans;
mod sys_r;
mod wsr;

use crate::places::Hints;
use crate::policy::{Parameter, Policy};

/// The most pages that a parameter may let come ahead of a fault: 256 MiB.
const AHEAD_MOST: i64 = 65_536;
/// The longest time of a parameter.
const DAY_MS: i64 = 86_400_000;

/// A policy that can be attached.
#[derive(Clone, Copy)]
pub struct Known {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, for the help.
    pub about: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Makes one.
    pub make: fn(Hints) -> Box<dyn Policy>,
}

/// All policies.
pub const ALL: [Known; 8] = [
    Known {
        name: "linear",
        about: "the next pages come behind each fault",
        parameters: linear::PARAMETERS,
        make: |_| Box::new(linear::Linear),
    },
    Known {
        name: "csr",
        about: "graphs: what is read at random stays, edges stream through a window",
        parameters: csr::PARAMETERS,
        make: |hints| Box::new(csr::Csr::new(hints)),
    },
    Known {
        name: "dt",
        about: "memory leaves that was not used for a threshold of intervals (dt-reclaimer)",
        parameters: dt::PARAMETERS,
        make: |_| Box::<dt::Dt>::default(),
    },
    Known {
        name: "sys-r",
        about: "pages are due as their code has shown: late ones leave first (SYS-R)",
        parameters: sys_r::PARAMETERS,
        make: |_| Box::<sys_r::SysR>::default(),
    },
    Known {
        name: "sys-agg",
        about: "when a phase begins, pages of the one before leave (SYS-Agg)",
        parameters: phases::PARAMETERS,
        make: |_| Box::<phases::Phases>::default(),
    },
    Known {
        name: "wsr",
        about: "what a lower limit drove out comes back when the limit is raised (WSR)",
        parameters: wsr::PARAMETERS,
        make: |_| Box::<wsr::Restore>::default(),
    },
    Known {
        name: "leap",
        about: "pages come by the stride that most of a thread's last faults have (Leap)",
        parameters: leap::PARAMETERS,
        make: |_| Box::<leap::Leap>::default(),
    },
    Known {
        name: "ghost",
        about: "pages that came once leave early, those that come back stay (S3-FIFO)",
        parameters: ghost::PARAMETERS,
        make: |_| Box::<ghost::Ghost>::default(),
    },
];

/// A policy with a program that is pretended.
#[cfg(test)]
pub mod testing {
    use super::*;
    use crate::policy::Seen;
    use crate::say::Say;
    use farshore_beside::{Event, Kind, PAGE};

    pub struct Rig {
        pub policy: Box<dyn Policy>,
        pub parameters: Vec<i64>,
        pub known: &'static [Parameter],
        pub say: Say,
        pub ns: u64,
        pub limit: u64,
        pub resident: u64,
    }

    impl Rig {
        pub fn new(policy: Box<dyn Policy>, known: &'static [Parameter]) -> Rig {
            let parameters = known.iter().map(|parameter| parameter.1).collect();
            Rig { policy, parameters, known, say: Say::default(), ns: 0, limit: 1000, resident: 900 }
        }

        pub fn hear(&mut self, event: Event) {
            assert!(self.policy.hears().contains(&event.kind), "it does not hear {:?}", event.kind);
            let seen =
                Seen { ns: self.ns, limit: self.limit, resident: self.resident, parameters: &self.parameters, known: self.known };
            self.policy.hear(&Event { ns: self.ns, ..event }, &seen, &mut self.say);
        }

        pub fn of(&mut self, kind: Kind, page: u64, pages: u64) {
            self.hear(Event::new(kind, page * PAGE, pages));
        }

        pub fn fault(&mut self, page: u64) {
            self.of(Kind::Fault, page, 1);
        }

        pub fn fault_by(&mut self, page: u64, instruction: u64, thread: u32) {
            self.hear(Event { thread, more: [instruction, 0, 0], ..Event::new(Kind::Fault, page * PAGE + 8, 1) });
        }

        pub fn rest(&mut self, ns: u64) {
            self.ns += ns;
            let seen =
                Seen { ns: self.ns, limit: self.limit, resident: self.resident, parameters: &self.parameters, known: self.known };
            self.policy.rest(&seen, &mut self.say);
        }
    }
}
