//! The calls that the matrix makes.

mod files;
mod kernels;
mod mounts;
mod names;
mod process;
mod set_up;
mod signals;
mod sockets;
mod time;
mod transfers;
mod waits;

use crate::call::Call;
use crate::generic;
use farshore_net::table::{COUNT, Kind, describe};

/// What prepares a call; why it cannot be made here.
type Prepare = Box<dyn Fn(&mut Call) -> Result<(), String>>;

/// One call.
pub struct Case {
    /// The table's name of the call.
    pub call: &'static str,
    /// What is special about this one.
    what: &'static str,
    /// Prepares it, as often as it is made.
    pub prepare: Prepare,
    /// An error that is what the call is for.
    pub succeeds_with: Option<i64>,
    /// Farshore refuses it: natively it is not made at all.
    pub refused: bool,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.title())
    }
}

impl Case {
    /// Name and peculiarity.
    pub fn title(&self) -> String {
        if self.what.is_empty() { self.call.to_string() } else { format!("{} ({})", self.call, self.what) }
    }
}

/// A list of cases that is being made.
#[derive(Default)]
pub struct Cases(Vec<Case>);

impl Cases {
    /// Adds a call.
    fn add(&mut self, call: &'static str, what: &'static str, prepare: impl Fn(&mut Call) -> Result<(), String> + 'static) {
        self.0.push(Case { call, what, prepare: Box::new(prepare), succeeds_with: None, refused: false });
    }
    /// The last call is meant to end with this error.
    fn meant(&mut self, errno: i32) {
        self.0.last_mut().expect("a case").succeeds_with = Some(-i64::from(errno));
    }
}

/// All calls with a set-up of their own. `apart`: also those that change what belongs to a namespace.
pub fn written(apart: bool) -> Vec<Case> {
    let mut cases = Cases::default();
    transfers::add(&mut cases);
    files::add(&mut cases);
    names::add(&mut cases);
    sockets::add(&mut cases);
    waits::add(&mut cases);
    time::add(&mut cases);
    signals::add(&mut cases);
    process::add(&mut cases);
    kernels::add(&mut cases);
    if apart {
        mounts::add(&mut cases);
    }
    cases.0
}

/// Calls that are not made by rule: they would wait for ever, change the machine, or succeed with another number each time.
const NOT_BY_RULE: &[&str] = &["poll", "sethostname", "setdomainname", "adjtimex", "time", "times"];

/// All calls: those with a set-up, and one by rule for each row that has rules.
pub fn all(apart: bool) -> Vec<Case> {
    let mut cases = written(apart);
    let left_out = |name: &str| crate::left_out::LEFT_OUT.iter().any(|(out, _)| *out == name) || NOT_BY_RULE.contains(&name);
    for nr in 0..COUNT as u64 {
        let Some(entry) = describe(nr).filter(|entry| !left_out(entry.name)) else { continue };
        let prepare: Prepare = match entry.kind {
            Kind::Pointers(rules) => Box::new(move |call| {
                generic::prepare(rules, call);
                Ok(())
            }),
            Kind::Refused(_) => Box::new(|call| {
                (0..6).for_each(|_| _ = call.room(64));
                Ok(())
            }),
            _ => continue,
        };
        cases.push(Case {
            call: entry.name,
            what: "by the table",
            prepare,
            succeeds_with: None,
            refused: matches!(entry.kind, Kind::Refused(_)),
        });
    }
    cases
}
