//! Phases of a run: each begins with a line for whoever reads along, and ends with its figures.
//!
//! The protocol of the lines is that of [`farshore_load::outcome`]. A line goes out by one write(2) past every buffer,
//! so that its reader can take samples of its own at the moment at which the phase begins. A phase ends when the next
//! one begins, or with [`Report::finish`].

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use farshore_load::outcome::{Event, Phase};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Writes the marks of phases and keeps their figures.
#[derive(Debug)]
pub struct Report {
    /// Standard output without a buffer; `None`: no lines are wanted.
    events: Option<File>,
    phase: Option<Running>,
    part: Option<Running>,
    /// Parts of the phase that runs, those that have ended.
    parts: Vec<Phase>,
    phases: Vec<Phase>,
    /// The first line that could not be written.
    failed: Option<io::Error>,
}

impl Report {
    /// A report that writes lines on standard output if `events` says so.
    ///
    /// # Errors
    /// If standard output is not open.
    pub fn new(events: bool) -> Result<Self, String> {
        let open = || io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let events = events.then(open).transpose().map_err(|error| format!("standard output: {error}"))?;
        Ok(Report { events, phase: None, part: None, parts: Vec::new(), phases: Vec::new(), failed: None })
    }

    /// Whether it writes lines.
    pub fn has_events(&self) -> bool {
        self.events.is_some()
    }

    /// Ends the phase before, if there is one, and begins the phase `name`.
    pub fn phase(&mut self, name: &str) {
        self.end();
        self.event(&Event::Phase { name: name.into() });
        self.phase = Some(Running::start(name));
    }

    /// Adds to the operations of the phase that runs.
    pub fn operations(&mut self, operations: u64) {
        if let Some(phase) = &mut self.phase {
            phase.operations += operations;
        }
    }

    /// How many page faults, minor and major, one thread took in the phase that runs: the most of all calls is kept.
    pub fn worst_thread_faults(&mut self, faults: u64) {
        if let Some(phase) = &mut self.phase {
            phase.worst_faults = phase.worst_faults.max(faults);
        }
    }

    /// Begins a part of the phase that runs. It has figures like a phase, which come after those of the phase, but no line.
    pub fn part(&mut self, name: &str) {
        self.part = Some(Running::start(name));
    }

    /// Ends the part that runs; this many operations and, in one thread, at most this many faults were in it.
    pub fn end_part(&mut self, operations: u64, worst_faults: u64) {
        if let Some(part) = self.part.take() {
            self.parts.push(Running { operations, worst_faults, ..part }.end());
        }
    }

    /// Ends the last phase and returns all.
    ///
    /// # Errors
    /// If a line could not be written.
    pub fn finish(&mut self) -> Result<Vec<Phase>, String> {
        self.end();
        self.written()?;
        Ok(std::mem::take(&mut self.phases))
    }

    /// Writes a line, if lines are wanted.
    pub fn event(&mut self, event: &Event) {
        let Some(stdout) = &mut self.events else { return };
        if let Err(error) = stdout.write_all(event.line().as_bytes()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Whether all lines were written.
    ///
    /// # Errors
    /// If one was not.
    pub fn written(&mut self) -> Result<(), String> {
        self.failed.take().map_or(Ok(()), |error| Err(format!("cannot write to standard output: {error}")))
    }

    fn end(&mut self) {
        if let Some(phase) = self.phase.take() {
            self.phases.push(phase.end());
            self.phases.append(&mut self.parts);
        }
    }
}

/// A phase that has not ended.
#[derive(Debug)]
struct Running {
    name: String,
    start: Instant,
    used: Option<[Usage; 2]>,
    operations: u64,
    worst_faults: u64,
}

impl Running {
    fn start(name: &str) -> Self {
        let used = used();
        Running { name: name.into(), start: Instant::now(), used, operations: 0, worst_faults: 0 }
    }

    fn end(self) -> Phase {
        let seconds = self.start.elapsed().as_secs_f64();
        let now = used();
        let difference = |of: &dyn Fn(&Usage) -> f64| match (&self.used, &now) {
            (Some(then), Some(now)) => (now.iter().map(of).sum::<f64>() - then.iter().map(of).sum::<f64>()).max(0.0),
            _ => 0.0,
        };
        let count = |of: &dyn Fn(&Usage) -> u64| match (&self.used, &now) {
            (Some(then), Some(now)) => now.iter().map(of).sum::<u64>().saturating_sub(then.iter().map(of).sum()),
            _ => 0,
        };
        Phase {
            seconds,
            user_seconds: difference(&|usage| time(usage.user_time())),
            system_seconds: difference(&|usage| time(usage.system_time())),
            minor_faults: count(&|usage| usage.minor_page_faults().unsigned_abs()),
            major_faults: count(&|usage| usage.major_page_faults().unsigned_abs()),
            faults_of_worst_thread: self.worst_faults,
            operations: self.operations,
            name: self.name,
        }
    }
}

/// What the process and the children that it has waited for have used. getrusage(2) of these fails for wrong arguments alone.
fn used() -> Option<[Usage; 2]> {
    Some([getrusage(UsageWho::RUSAGE_SELF).ok()?, getrusage(UsageWho::RUSAGE_CHILDREN).ok()?])
}

// Processor time in seconds: no process lives for 2^53 of them.
#[expect(clippy::cast_precision_loss)]
fn time(value: TimeVal) -> f64 {
    value.tv_sec() as f64 + value.tv_usec() as f64 / 1e6
}

/// Page faults, minor and major, that the calling thread has taken since it started.
pub fn faults_of_this_thread() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return 0 };
    usage.minor_page_faults().unsigned_abs() + usage.major_page_faults().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn phases_come_in_order_with_their_parts_after_them() -> Result<(), String> {
        let mut report = Report::new(false)?;
        report.phase("fill");
        report.operations(3);
        report.operations(4);
        report.worst_thread_faults(9);
        report.worst_thread_faults(2);
        report.phase("measure");
        report.part("map");
        report.end_part(5, 6);
        report.part("reduce");
        report.end_part(7, 8);
        report.phase("verify");
        let phases = report.finish()?;
        let told: Vec<_> = phases.iter().map(|p| (p.name.as_str(), p.operations, p.faults_of_worst_thread)).collect();
        assert_eq!(told, [("fill", 7, 9), ("measure", 0, 0), ("map", 5, 6), ("reduce", 7, 8), ("verify", 0, 0)]);
        Ok(())
    }

    #[test]
    fn a_phase_counts_its_own_processor_time_and_faults() -> Result<(), String> {
        let mut report = Report::new(false)?;
        report.phase("touch");
        let touched = vec![1_u8; 8 << 20];
        let start = Instant::now();
        let mut spun = 0_u64;
        while start.elapsed() < Duration::from_millis(50) {
            spun = std::hint::black_box(spun + 1);
        }
        report.phase("rest");
        let phases = report.finish()?;
        assert_eq!(touched.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 8 << 20);
        assert!(phases[0].seconds >= 0.05);
        assert!(phases[0].user_seconds + phases[0].system_seconds > 0.0);
        assert!(phases[0].minor_faults > 0, "{phases:?}");
        Ok(())
    }
}
