//! Which programs are virtual machines: a manager has the memory of a monitor's process, and answers in its place.

use std::io;

use farshore_command::process::{if_there, managed_by, told};

use crate::client::users_in;
use crate::programs::started;

/// A virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vm {
    /// The monitor's process; the manager's, if that is not known any more (a monitor that has made itself a daemon).
    pub pid: u32,
    /// When that process was started, in the kernel's ticks.
    pub started: u64,
    /// The manager, which answers.
    pub manager: u32,
    /// What the monitor was told to call it (`-name`), or what the kernel calls the monitor.
    pub name: String,
}

/// The virtual machine whose memory process `manager` has; none, if it has none. A process that only says so, and names one of another user, has none: else whoever ends,
/// or sets, what a list shows would be led to a process that has nothing to do with it.
///
/// # Errors
/// It is not known now, as the kernel does not tell it ([`farshore_command::process`]).
pub fn of_manager(manager: u32) -> io::Result<Option<Vm>> {
    let (Some(monitor), Some(own)) = (managed_by(manager)?, started(manager)?) else { return Ok(None) };
    // A process of this number that is younger than the manager is another one: the monitor has ended, or made itself a daemon.
    let its = started(monitor)?.filter(|started| *started <= own);
    if its.is_some() {
        let of = |pid| if_there(told(pid, "status"));
        let (Some(status), Some(its)) = (of(manager)?, of(monitor)?) else { return Ok(None) };
        if !may_manage(&status, &its) {
            return Ok(None);
        }
    }
    let line = if its.is_some() { if_there(told(monitor, "cmdline"))? } else { None }.unwrap_or_default();
    let words: Vec<&str> = line.split_terminator('\0').collect();
    let comm = |pid| told(pid, "comm").map(|name| name.trim_end().to_owned()).unwrap_or_default();
    let (pid, started) = its.filter(|_| !words.is_empty()).map_or((manager, own), |its| (monitor, its));
    let name = name_in(&words).map_or_else(|| comm(pid), Into::into);
    Ok(Some(Vm { pid, started, manager, name: farshore_config::plain(&name) }))
}

/// Whether the process of the first status is of no user that the one of the second is not, but for root.
fn may_manage(manager: &str, monitor: &str) -> bool {
    users_in(manager).is_subset(&users_in(monitor))
}

/// The name in a command line of QEMU's: `-name one`, `-name guest=one,debug-threads=on`.
#[must_use]
pub fn name_in<'w>(words: &[&'w str]) -> Option<&'w str> {
    let at = words.iter().position(|word| matches!(*word, "-name" | "--name"))?;
    let parts = words.get(at + 1)?;
    let first = parts.split(',').find_map(|part| part.strip_prefix("guest="));
    first.or_else(|| parts.split(',').next().filter(|part| !part.contains('='))).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_qemu_takes_for_one() {
        for (words, name) in [
            (&["qemu", "-m", "1G", "-name", "one"][..], Some("one")),
            (&["qemu", "-name", "debug-threads=on,guest=two"], Some("two")),
            (&["qemu", "--name", "guest=three,process=x"], Some("three")),
            (&["qemu", "-name", "four,process=x"], Some("four")),
            (&["qemu", "-name", "process=x"], None),
            (&["qemu", "-name"], None),
            (&["qemu", "-name", "guest="], None),
            (&["qemu"], None),
        ] {
            assert_eq!(name_in(words), name, "{words:?}");
        }
        assert_eq!(of_manager(std::process::id()).expect("it is told at once"), None);
    }

    #[test]
    fn a_manager_is_of_its_monitors_user() {
        let of = |users: &str| format!("Name:\tx\nUid:\t{users}\n");
        for (manager, monitor, may) in [
            ("5 5 5 5", "5 5 5 5", true),
            ("0 0 0 0", "5 5 5 5", true),
            ("5 5 5 5", "5 5 0 5", true),
            ("6 6 6 6", "5 5 5 5", false),
            ("5 6 5 5", "5 5 5 5", false),
            ("6 6 6 6", "0 0 0 0", false),
        ] {
            assert_eq!(may_manage(&of(manager), &of(monitor)), may, "{manager} of {monitor}");
        }
    }
}
