//! `list`: a list of Python's. This program becomes Python, and [`SCRIPT`] is the workload: it fills a list with numbers, each an object of its own, and goes through it.
//!
//! So what is measured is a real Python: its allocator, its counts of references, which write to each object that is looked at, and its list that grows. The script tells phases and
//! outcome as all workloads do; it checks each element and each pass's sum.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use farshore_load::workload;

use crate::record::Ballast;

/// The program.
const SCRIPT: &str = include_str!("list.py");
/// What runs it, found by `PATH`.
const PYTHON: &str = "python3";

/// What this program becomes: Python without the user's modules and settings.
fn command(args: &workload::List, events: bool) -> Command {
    let common = &args.common;
    let mut command = Command::new(PYTHON);
    command.args(["-I", "-S", "-c", SCRIPT, if events { "yes" } else { "no" }]);
    command.args([common.size.0, args.passes.into(), common.seed].map(|number| number.to_string()));
    command
}

/// What does not go with it.
///
/// # Errors
/// Several threads, or ballast: one line.
pub fn check(args: &workload::List) -> Result<(), String> {
    if args.common.threads != 1 {
        return Err("list has one thread: Python lets one work at a time; leave out --threads".into());
    }
    if Ballast::from_environment()? != Ballast::default() {
        return Err("LOAD_BALLAST does not go with list, which is a program in Python".into());
    }
    Ok(())
}

/// Becomes Python.
///
/// # Errors
/// It cannot be started: one line.
pub fn run(args: &workload::List, events: bool) -> Result<Infallible, String> {
    let error = command(args, events).exec();
    Err(format!("cannot start {PYTHON}, which list takes: {error}"))
}

#[cfg(test)]
mod tests {
    use farshore_load::outcome::{Event, Outcome};

    use super::*;

    /// What the script says, with something changed in it.
    fn outcome(script: &str) -> (i32, Outcome) {
        let done = Command::new(PYTHON).args(["-I", "-S", "-c", script, "yes", "1048576", "2", "7"]).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let Some(Event::Outcome(outcome)) = text.lines().last().and_then(Event::read) else { panic!("{text} {done:?}") };
        (done.status.code().unwrap(), *outcome)
    }

    #[test]
    fn what_a_list_has_is_checked() {
        let (status, good) = outcome(SCRIPT);
        assert_eq!((status, good.wrong.len(), good.operations), (0, 0, 3 * ((1 << 20) / 40)));
        let broken = |at: &str, then: &str| {
            assert_eq!(SCRIPT.matches(at).count(), 1, "{at}");
            outcome(&SCRIPT.replace(at, then))
        };
        // An element that changes behind the passes, one that a pass does not see, and one that is gone.
        let (status, changed) = broken("    begin(\"verify\")\n", "    begin(\"verify\")\n    numbers[77] += 1\n");
        assert_eq!((status, changed.wrong.len()), (1, 1), "{:?}", changed.wrong);
        assert!(changed.wrong[0].starts_with("element 77 is"), "{:?}", changed.wrong);
        let (_, missed) = broken("            total += value\n", "            total += value & ~1024\n");
        assert!(missed.wrong.len() == 2 && missed.wrong[0].starts_with("the sum of pass 0 is"), "{:?}", missed.wrong);
        let (_, gone) = broken("    begin(\"verify\")\n", "    begin(\"verify\")\n    numbers.pop()\n");
        assert!(gone.wrong[0].starts_with("the list has 26213 elements"), "{:?}", gone.wrong);
    }
}
