//! What the machine says of its memory.

use crate::shapes::{Budget, Host, Pressure, Vm};

/// The machine now, with the budgets that those who run are in.
pub fn host(vms: &[Vm]) -> Host {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // Not there: a kernel without PSI.
    let pressure = std::fs::read_to_string("/proc/pressure/memory").ok();
    let mut budgets: Vec<Budget> = vms.iter().filter_map(|vm| vm.budget.clone()).collect();
    budgets.sort_by(|one, other| one.name.cmp(&other.name));
    budgets.dedup_by(|one, other| one.name == other.name);
    Host {
        version: env!("CARGO_PKG_VERSION").into(),
        user: rustix::process::geteuid().as_raw(),
        memory_bytes: bytes_of(&meminfo, "MemTotal:"),
        available_bytes: bytes_of(&meminfo, "MemAvailable:"),
        pressure: pressure.as_deref().and_then(pressure_in),
        budgets,
    }
}

fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib << 10)
}

fn pressure_in(text: &str) -> Option<Pressure> {
    let of = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10=")?.parse::<f64>().ok())
    };
    Some(Pressure { some_percent: of("some ")?, full_percent: of("full ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        assert_eq!(bytes_of("MemTotal:       16 kB\nMemAvailable:  8 kB\n", "MemAvailable:"), Some(8192));
        assert_eq!(bytes_of("", "MemTotal:"), None);
        let text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(pressure_in(text), Some(Pressure { some_percent: 1.5, full_percent: 0.25 }));
        assert_eq!(pressure_in("some avg10=x"), None);
    }
}
