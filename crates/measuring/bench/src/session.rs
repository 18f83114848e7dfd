//! One measurement: signals, the journal, the device, the comparisons, and everything taken down again.
//!
//! Whatever ends it (an error, Ctrl-C), what was measured until then is in the results.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};

use crate::args::{BenchArgs, DeviceArgs, What};
use crate::families::{Families, Kitchen};
use crate::journal::{self, Journal};
use crate::paper;
use crate::plan::Experiment;
use crate::progress::Progress;
use crate::result::{self, Machine, Results, SCHEMA};
use crate::rounds::Turns;
use crate::run::Failure;
use crate::targets::spec::Spec;
use crate::uthread::course::{Course, Maker, Rounds};
use crate::{check, device, output, statistics};

/// Seconds for each point of the device's limit.
const DEVICE_SECONDS: f64 = 1.0;
/// The file that the device is measured on, in bytes: large enough to leave a device's own cache behind, small enough to be written quickly.
const DEVICE_FILE: u64 = 512 << 20;

/// The flag that Ctrl-C sets, and which signal it was.
#[derive(Debug)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// Watches for them from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch() -> Result<Self, Failure> {
        let signals = Signals { stop: Arc::new(AtomicBool::new(false)), which: Arc::new(AtomicUsize::new(0)) };
        let watch = |signal: i32| {
            let number = usize::try_from(signal).unwrap_or(0);
            signal_hook::flag::register_usize(signal, signals.which.clone(), number)
                .and_then(|_| signal_hook::flag::register(signal, signals.stop.clone()))
                .map_err(|error| Failure::Failed(format!("cannot watch for signal {signal} ({error})")))
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            watch(signal)?;
        }
        // A reader that goes away must not end this before everything is taken down.
        signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Failure::Failed(format!("cannot watch for SIGPIPE ({error})")))?;
        Ok(signals)
    }

    /// Whether the user has ended it.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// 128 and the signal's number, as a shell tells it.
    #[must_use]
    pub fn status(&self) -> u8 {
        u8::try_from(128 + self.which.load(Ordering::Relaxed)).unwrap_or(130)
    }
}

/// Comparisons that follow from each other, or from what a run has shown.
#[derive(Clone, Copy, Debug)]
pub enum Series<'a> {
    /// There are none: the plan is all.
    Plain,
    /// Of services.
    Course(&'a Course),
    /// Of programs at parts of their peak.
    Families(&'a Families),
    /// Of a paper's figure.
    Paper(&'a paper::plan::Plan),
}

/// What a measurement is made with.
#[derive(Debug)]
pub struct Session<'a> {
    /// The command line.
    pub arguments: &'a BenchArgs,
    /// The `farshore` that targets use.
    pub farshore: &'a Path,
    /// `farshore-load`.
    pub load: &'a Path,
    /// Where swap files go.
    pub directory: &'a Path,
    /// The command line, for the results.
    pub words: Vec<String>,
    /// Ctrl-C.
    pub signals: &'a Signals,
    /// Results are written there after each comparison.
    pub json: Option<&'a Path>,
}

impl Session<'_> {
    /// Measures `plan`, or what `series` makes; the results, and whether it came to its end.
    ///
    /// # Errors
    /// It could not begin: one line.
    pub fn measure(
        &self,
        plan: &[Experiment],
        series: Series<'_>,
        machine: Machine,
    ) -> Result<(Results, Result<(), Failure>), Failure> {
        for line in journal::clean_up_after_others(self.directory) {
            output::tell(&line);
        }
        let journal = Journal::open(self.directory).map_err(Failure::Failed)?.ended_by(self.signals.stop.clone());
        let journal = Arc::new(journal);
        for experiment in plan {
            let uses_device = |target: &Spec| target.build(self.farshore, &journal).uses_device();
            check::check(experiment, self.device_file(), self.directory, &uses_device).map_err(Failure::Failed)?;
        }
        let arguments = self.arguments;
        let turns = Turns {
            load: self.load,
            farshore: self.farshore,
            journal: &journal,
            extra_bytes: arguments.extra.0,
            rounds: arguments.rounds(),
            warm_up_rounds: arguments.warm_up_rounds(),
            timeout: Duration::from_secs_f64(arguments.timeout),
            stop: &self.signals.stop,
        };
        let mut results = Results {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").into(),
            date: output::now(),
            command: self.words.clone(),
            machine,
            ..Results::default()
        };
        let mut progress = Progress::new();
        let ended = self.take_all(plan, series, &turns, &mut results, &mut progress);
        progress.finish();
        for line in journal.close() {
            output::tell(&line);
        }
        Ok((results, ended))
    }

    fn take_all(
        &self,
        plan: &[Experiment],
        series: Series<'_>,
        turns: &Turns<'_>,
        results: &mut Results,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        if matches!(series, Series::Plain) {
            plan.iter().for_each(|experiment| turns.announce(experiment, progress));
        }
        if let Some(seconds) = self.device_seconds(series) {
            let measured = device::measure(turns.journal.work(), self.device_file(), seconds, turns.stop, &mut |what| {
                progress.doing(&format!("device: {what}"))
            });
            match measured {
                Ok(device) => results.device = Some(device),
                Err(_) if self.signals.stopped() => return Ok(()),
                Err(why) if plan.is_empty() => return Err(Failure::Failed(why)),
                Err(why) => progress.say(&format!("the device was not measured: {why}")),
            }
        }
        let mut taker = Taker { json: self.json, turns, results, progress };
        match series {
            Series::Families(families) => families.run(&mut taker),
            Series::Paper(paper) => {
                paper.bound().iter().for_each(|line| taker.say(line));
                paper.run(&mut taker)
            }
            Series::Course(course) => {
                taker.say(&course.bound());
                course.run(&mut taker)
            }
            Series::Plain => {
                for experiment in plan {
                    if taker.take(experiment, turns)?.is_none() {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Bytes of the file that the device is measured on.
    fn device_file(&self) -> u64 {
        match &self.arguments.what {
            Some(What::Device(DeviceArgs { size, .. })) => size.0,
            _ if self.arguments.no_device => 0,
            _ => DEVICE_FILE,
        }
    }

    fn device_seconds(&self, series: Series<'_>) -> Option<f64> {
        match (&self.arguments.what, series) {
            (Some(What::Device(device)), _) => Some(device.seconds),
            _ if self.arguments.no_device => None,
            (_, Series::Paper(paper)) => paper.needs_device().then_some(DEVICE_SECONDS),
            _ => Some(DEVICE_SECONDS),
        }
    }
}

/// Makes comparisons, and puts what came of them into the results.
struct Taker<'a> {
    json: Option<&'a Path>,
    turns: &'a Turns<'a>,
    results: &'a mut Results,
    progress: &'a mut Progress,
}

impl Taker<'_> {
    /// `None`: the user has ended it.
    fn take(&mut self, experiment: &Experiment, turns: &Turns<'_>) -> Result<Option<result::Experiment>, Failure> {
        let stopped = || turns.stop.load(Ordering::Relaxed);
        if stopped() {
            return Ok(None);
        }
        let made = match turns.compare(experiment, self.progress) {
            Ok(made) => made,
            Err(_) if stopped() => return Ok(None),
            Err(why) => return Err(Failure::Failed(why)),
        };
        for (label, why) in &made.skipped {
            if self.results.skipped.insert(label.clone(), why.clone()).is_none() {
                self.progress.say(&format!("{label} is left out: {why}"));
            }
        }
        let mut experiment = made.experiment;
        statistics::summarise(&mut experiment, self.results.device.as_ref(), &|label| made.on_device.contains(label));
        self.results.experiments.push(experiment.clone());
        // After each, so that even a crash of the machine leaves the finished ones.
        output::write(self.results, self.json, None)?;
        Ok((!stopped()).then_some(experiment))
    }
}

impl Maker for Taker<'_> {
    fn make(&mut self, experiment: &Experiment, rounds: Rounds) -> Result<Option<result::Experiment>, Failure> {
        let turns = match rounds {
            Rounds::All => Turns { ..*self.turns },
            Rounds::One => Turns { rounds: 1, warm_up_rounds: 0, ..*self.turns },
        };
        turns.announce(experiment, self.progress);
        self.take(experiment, &turns)
    }

    fn say(&mut self, line: &str) {
        self.progress.say(line);
    }
}

impl Kitchen for Taker<'_> {
    fn directory(&self) -> &Path {
        self.turns.journal.work()
    }

    fn make_first(&mut self, name: &str, words: &[OsString]) -> Result<(), String> {
        self.turns.make_first(name, words, self.progress)
    }

    fn leave_out(&mut self, name: &str, why: &str) {
        self.progress.say(&format!("{name} is left out: {why}"));
        self.results.skipped.insert(name.to_string(), why.to_string());
    }
}
