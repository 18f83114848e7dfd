//! What `/proc` tells of processes and of the machine.

use std::fs;

/// What a process has used, its children that it waited for included.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Used {
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Page faults without.
    pub minor_faults: u64,
    /// Processor time in user mode and in the kernel, in seconds, to 10 ms.
    pub cpu_seconds: f64,
}

/// What process `pid` has used; all 0 if there is none. A process that has ended and was not waited for is still there.
#[must_use]
pub fn counters(pid: u32) -> Used {
    read_stat(&stat(pid)).unwrap_or_default()
}

/// When process `pid` was started, in ticks since the machine was; `None` if it is not there, or has ended and nobody has taken notice yet.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    let text = stat(pid);
    let fields = stat_fields(&text)?;
    if matches!(*fields.first()?, "Z" | "X") { None } else { fields.get(22 - 3)?.parse().ok() }
}

fn stat(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()
}

/// The fields of a process' `stat` from number 3 on. They come after the last bracket: the name may hold anything, brackets and spaces too.
fn stat_fields(text: &str) -> Option<Vec<&str>> {
    Some(text.rsplit_once(')')?.1.split_whitespace().collect())
}

fn read_stat(text: &str) -> Option<Used> {
    let fields = stat_fields(text)?;
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Used {
        minor_faults: field(10)? + field(11)?,
        major_faults: field(12)? + field(13)?,
        cpu_seconds: ticks(field(14)? + field(15)? + field(16)? + field(17)?),
    })
}

/// Largest resident memory of process `pid` so far, in bytes; 0 if it is not there.
#[must_use]
pub fn peak_resident_bytes(pid: u32) -> u64 {
    kilobytes(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(), "VmHWM:")
}

/// Memory that can be had without swapping, in bytes.
#[must_use]
pub fn available_memory_bytes() -> u64 {
    farshore_command::machine::available_memory().unwrap_or(0)
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Processor time that the whole machine has spent at work, in seconds: everything but idle and waiting for I/O, all
/// processors together.
#[must_use]
pub fn machine_cpu_seconds() -> f64 {
    read_machine(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn read_machine(text: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let times: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal guest guest_nice: guests are counted in user already.
    ticks(times.iter().enumerate().filter(|(index, _)| matches!(index, 0..=2 | 5..=6)).map(|(_, ticks)| ticks).sum())
}

/// Linux tells times to user space in hundredths of a second, on every architecture that we run on.
#[expect(clippy::cast_precision_loss)]
fn ticks(count: u64) -> f64 {
    count as f64 / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_name() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194304 100 20 3 4 500 60 7 8 20 0 1 0 999 0 0";
        assert_eq!(read_stat(text), Some(Used { minor_faults: 120, major_faults: 7, cpu_seconds: 5.75 }));
        assert_eq!(read_stat(""), None);
        assert_eq!(read_stat("42 (x) S 1"), None);
        assert!(counters(std::process::id()).minor_faults > 0);
        assert_eq!(counters(u32::MAX), Used::default());
    }

    #[test]
    fn the_machines_work_is_without_its_waiting() {
        assert!((read_machine("cpu  100 10 1 9999 9999 5 4 7 50 5\ncpu0 1 1 1\n") - 1.2).abs() < 1e-9);
        assert!(machine_cpu_seconds() > 0.0);
    }

    #[test]
    fn memory_is_read() {
        assert_eq!(kilobytes("VmPeak:\t 8 kB\nVmHWM:\t  12 kB\n", "VmHWM:"), 12 << 10);
        assert!(peak_resident_bytes(std::process::id()) > 1 << 20);
        assert!(available_memory_bytes() > 1 << 20);
    }
}
