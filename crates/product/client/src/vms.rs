//! Which programs are virtual machines: a manager has the memory of a monitor's process, and answers in its place.

use farshore_command::process::{managed_by, told};

use crate::programs::started;

/// A virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vm {
    /// The monitor's process; the manager's, if that is not known any more (a monitor that has made itself a daemon).
    pub pid: u32,
    /// The manager, which answers.
    pub manager: u32,
    /// What the monitor was told to call it (`-name`), or what the kernel calls the monitor.
    pub name: String,
}

/// The virtual machine whose memory process `manager` has; none, if it has none.
#[must_use]
pub fn of_manager(manager: u32) -> Option<Vm> {
    let monitor = managed_by(manager)?;
    // A process of this number that is younger than the manager is another one: the monitor has ended, or made itself a daemon.
    let is_it = started(monitor).zip(started(manager)).is_some_and(|(monitor, manager)| monitor <= manager);
    let line = if is_it { told(monitor, "cmdline").unwrap_or_default() } else { String::new() };
    let words: Vec<&str> = line.split_terminator('\0').collect();
    let comm = |pid| told(pid, "comm").map(|name| name.trim_end().to_owned()).unwrap_or_default();
    let pid = if words.is_empty() { manager } else { monitor };
    let name = name_in(&words).map_or_else(|| comm(pid), Into::into);
    Some(Vm { pid, manager, name: farshore_config::plain(&name) })
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
        assert_eq!(of_manager(std::process::id()), None);
    }
}
