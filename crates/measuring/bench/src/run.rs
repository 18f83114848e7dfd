//! `farshore bench`: from the command line to tables and files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};

use crate::args::{BenchArgs, CanonicalArgs, DeviceArgs, FamiliesArgs, What};
use crate::families::{Families, Kitchen};
use crate::journal::{self, Journal};
use crate::plan::{self, Common, Experiment, Subject};
use crate::progress::Progress;
use crate::result::{self, Results, SCHEMA};
use crate::rounds::Turns;
use crate::targets::spec::{self, Spec};
use crate::uthread::course::{Course, Maker, Rounds};
use crate::{canonical, check, compare, device, machine, output, statistics, table, uthread};

/// What can be measured, for messages.
pub const THERE_IS: &str =
    "random, scan, hotset, gups-move, phase, pagerank, stress, grid, tree, kv, canonical, families, uthread or device";
/// What is compared where nothing is said.
const USUAL: &str = "farshore,linux-swap";
/// The server of `uthread`, and what says where it is.
const SERVE: (&str, &str) = ("farshore-serve", "FARSHORE_SERVE");
/// Seconds for each point of the device's limit.
const DEVICE_SECONDS: f64 = 1.0;
/// The file that the device is measured on, in bytes: large enough to leave a device's own cache behind, small enough to be written quickly.
const DEVICE_FILE: u64 = 512 << 20;

/// Why nothing, or not everything, was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The command line asks for what is not there.
    Usage(String),
    /// It could not be done.
    Failed(String),
}

/// The flag that Ctrl-C sets, and which signal it was.
struct Signals {
    stop: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    fn watch() -> Result<Self, Failure> {
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

    /// 128 and the signal's number, as a shell tells it.
    fn status(&self) -> u8 {
        u8::try_from(128 + self.which.load(Ordering::Relaxed)).unwrap_or(130)
    }
}

/// Does what the command line says. `farshore` is the command that targets use; `words` is the command line for the results.
///
/// # Errors
/// It cannot be done, in one line; what had been measured is written all the same.
pub fn bench(arguments: &BenchArgs, farshore: &Path, words: Vec<String>) -> Result<u8, Failure> {
    if let Some([old, new]) = arguments.compare.as_deref() {
        if arguments.what.is_some() {
            return Err(Failure::Usage("--compare reads two files and measures nothing: leave the workload out".into()));
        }
        return compare_files(old, new);
    }
    if matches!(&arguments.what, Some(What::Uthread(uthread)) if uthread.what == uthread::args::What::Switch) {
        return output::print(&uthread::switch_text()).map(|()| 0);
    }
    let course = course(arguments, farshore)?;
    let families = families(arguments)?;
    if let (Some(families), Some(What::Families(FamiliesArgs { list: true, .. }))) = (&families, &arguments.what) {
        return output::print(&families.list()).map(|()| 0);
    }
    let plan = match (&course, &families) {
        (Some(course), _) => course.needs(),
        (None, Some(families)) => families.needs().map_err(Failure::Failed)?,
        (None, None) => plan(arguments)?,
    };
    if let Some(What::Canonical(CanonicalArgs { list: true, .. })) = &arguments.what {
        return output::print(&list(&plan)).map(|()| 0);
    }
    let load = there(beside(farshore, "farshore-load", "FARSHORE_LOAD"), "FARSHORE_LOAD")?;
    let directory = swap_directory(arguments)?;
    let mut machine = machine::describe(&directory);
    if let Some(course) = &course {
        there(beside(farshore, SERVE.0, SERVE.1), SERVE.1)?;
        if course.has_memcached() {
            uthread::memcached::need().map_err(Failure::Failed)?;
        }
        machine.settings.insert("cores".into(), course.bound());
    }
    let report = arguments
        .results
        .as_ref()
        .map(|results| output::fresh(results, &format!("{}-{}", output::today(), machine::slug(&machine))));
    let report = report.as_deref().or(arguments.report.as_deref());
    output::check(arguments.json.as_deref(), report)?;
    if let Some(line) = as_root(arguments) {
        output::tell(&line);
    }
    let signals = Signals::watch()?;
    for line in journal::clean_up_after_others(&directory) {
        output::tell(&line);
    }
    let journal = Journal::open(&directory).map_err(Failure::Failed)?.ended_by(signals.stop.clone());
    let journal = Arc::new(journal);
    for experiment in &plan {
        let uses_device = |target: &Spec| target.build(farshore, &journal).uses_device();
        check::check(experiment, device_file(arguments), &directory, &uses_device).map_err(Failure::Failed)?;
    }
    let turns = Turns {
        load: &load,
        farshore,
        journal: &journal,
        extra_bytes: arguments.extra.0,
        rounds: arguments.rounds,
        warm_up_rounds: arguments.warm_up_rounds,
        timeout: Duration::from_secs_f64(arguments.timeout),
        stop: &signals.stop,
    };
    let mut results = Results {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        date: output::now(),
        command: words,
        machine,
        ..Results::default()
    };
    let mut progress = Progress::new();
    let series = (course.as_ref(), families.as_ref());
    let ended = measure(arguments, &plan, series, &turns, &mut results, &mut progress);
    progress.finish();
    for line in journal.close() {
        output::tell(&line);
    }
    // Also what was measured before an error or Ctrl-C: nothing is lost.
    output::write(&results, arguments.json.as_deref(), report)?;
    if let Some(path) = arguments.results.as_ref().and(report) {
        output::write_more(&results, path)?;
    }
    let went_wrong = results.experiments.iter().flat_map(|experiment| &experiment.targets).any(ours_went_wrong);
    let left_out = plan.iter().any(|experiment| ours_is_left_out(experiment, &results));
    output::print(&table::results(&results, output::colours(), output::width()))?;
    if let Some(path) = report {
        output::tell(&format!("the report is '{}'", path.join("index.html").display()));
    }
    ended?;
    if signals.stop.load(Ordering::Relaxed) {
        eprintln!("farshore: ended by a signal: what was measured so far is above");
        return Ok(signals.status());
    }
    Ok(u8::from(went_wrong || left_out))
}

/// What to say to somebody who has called us by `sudo` for the sake of swap and cgroups, with a program of his own.
fn as_root(arguments: &BenchArgs) -> Option<String> {
    let user = std::env::var("SUDO_UID").ok().filter(|user| user != "0" && rustix::process::geteuid().is_root())?;
    let before = targets(arguments).into_iter().find(|target| target.kind() == "command").map(|target| target.to_string());
    let program = arguments.program.first().map(|program| program.to_string_lossy().into_owned()).or(before)?;
    Some(format!(
        "'{program}' runs as root here, under every target, not as user {user}, who called sudo: what it may do is what root may"
    ))
}

/// A target of ours that cannot be had was asked for in vain; the kernel's need root, which is said and no error.
fn ours_is_left_out(experiment: &Experiment, results: &Results) -> bool {
    let labels = spec::labels(&experiment.targets);
    experiment.targets.iter().zip(labels).any(|(target, label)| !target.is_the_kernels() && results.skipped.contains_key(&label))
}

/// Only native runs and ours make the comparison fail: the kernel kills programs under a cgroup's limit now and then (out of memory while swap is half
/// empty), and that is a result, not an error of this tool. Wrong answers of a server of ours that lives are an error wherever it runs.
fn ours_went_wrong(target: &result::TargetResult) -> bool {
    let ours = matches!(target.kind.as_str(), "farshore" | "native");
    let answers = |round: &result::Round| {
        let told = round.outcome.as_ref().filter(|outcome| outcome.workload.starts_with("uthread"));
        told.is_some_and(|outcome| round.wrong == outcome.wrong)
    };
    target.rounds.iter().any(|round| !round.wrong.is_empty() && (ours || answers(round)))
}

fn measure(
    arguments: &BenchArgs,
    plan: &[Experiment],
    (course, families): (Option<&Course>, Option<&Families>),
    turns: &Turns<'_>,
    results: &mut Results,
    progress: &mut Progress,
) -> Result<(), Failure> {
    if course.is_none() && families.is_none() {
        plan.iter().for_each(|experiment| turns.announce(experiment, progress));
    }
    if let Some(seconds) = device_seconds(arguments) {
        let measured = device::measure(turns.journal.work(), device_file(arguments), seconds, turns.stop, &mut |what| {
            progress.doing(&format!("device: {what}"))
        });
        match measured {
            Ok(device) => results.device = Some(device),
            Err(_) if turns.stop.load(Ordering::Relaxed) => return Ok(()),
            Err(why) if plan.is_empty() => return Err(Failure::Failed(why)),
            Err(why) => progress.say(&format!("the device was not measured: {why}")),
        }
    }
    let mut taker = Taker { json: arguments.json.as_deref(), turns, results, progress };
    if let Some(families) = families {
        return families.run(&mut taker);
    }
    let Some(course) = course else {
        for experiment in plan {
            if taker.take(experiment, turns)?.is_none() {
                break;
            }
        }
        return Ok(());
    };
    taker.say(&course.bound());
    course.run(&mut taker)
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

/// Bytes of the file that the device is measured on.
fn device_file(arguments: &BenchArgs) -> u64 {
    match &arguments.what {
        Some(What::Device(DeviceArgs { size, .. })) => size.0,
        _ if arguments.no_device => 0,
        _ => DEVICE_FILE,
    }
}

fn device_seconds(arguments: &BenchArgs) -> Option<f64> {
    match &arguments.what {
        Some(What::Device(device)) => Some(device.seconds),
        _ if arguments.no_device => None,
        _ => Some(DEVICE_SECONDS),
    }
}

/// What is to be measured; nothing for `device`.
fn plan(arguments: &BenchArgs) -> Result<Vec<Experiment>, Failure> {
    let targets = targets(arguments);
    if let (Some(What::Canonical(canonical)), true) = (&arguments.what, arguments.program.is_empty()) {
        let sizes = [arguments.memory, arguments.pool, arguments.swap_size];
        if sizes.iter().any(Option::is_some) || arguments.sweep.is_some() || arguments.swap_files != 1 {
            return Err(Failure::Usage(
                "the canonical set has its own --memory, --pool, --swap-size, --swap-files and --sweep: leave them out".into(),
            ));
        }
        return canonical::experiments(canonical, &targets).map_err(Failure::Usage);
    }
    let usual = || spec::parse_list(USUAL).map_err(Failure::Usage);
    let common = Common::of(arguments, if targets.is_empty() { usual()? } else { targets });
    let subject = match (&arguments.what, arguments.program.is_empty()) {
        (Some(_), false) => {
            return Err(Failure::Usage("a workload and a PROGRAM are both given: give one of them".into()));
        }
        (Some(What::Device(_) | What::Canonical(_) | What::Families(_) | What::Uthread(_)), true) => return Ok(Vec::new()),
        (Some(What::Workload(workload)), true) => Subject::Workload(Box::new(workload.clone())),
        (None, false) => Subject::Program(arguments.program.clone()),
        (None, true) => {
            return Err(Failure::Usage(format!("nothing to measure: name a workload ({THERE_IS}), or a program behind --")));
        }
    };
    plan::experiments(&subject, &common, arguments.sweep.as_ref()).map_err(Failure::Usage)
}

/// What was asked for; nothing if nothing was.
fn targets(arguments: &BenchArgs) -> Vec<Spec> {
    let mut targets = Vec::new();
    if let Some([old, new]) = arguments.builds.as_deref() {
        // The new one first: the others are set against it.
        targets.push(Spec::of_build(new, "new"));
        targets.push(Spec::of_build(old, "old"));
    }
    targets.extend(arguments.against.iter().flat_map(|targets| targets.0.clone()));
    targets
}

fn list(plan: &[Experiment]) -> String {
    let line = |experiment: &Experiment| format!("{}: {}\n", experiment.name, spec::labels(&experiment.targets).join(", "));
    plan.iter().map(line).collect()
}

fn compare_files(old: &Path, new: &Path) -> Result<u8, Failure> {
    let (old, new) = (compare::load(old).map_err(Failure::Failed)?, compare::load(new).map_err(Failure::Failed)?);
    output::print(&compare::text(&compare::compare(&old, &new), output::colours(), output::width())).map(|()| 0)
}

/// The comparison of services, if that is what is asked for.
fn course(arguments: &BenchArgs, farshore: &Path) -> Result<Option<Course>, Failure> {
    let Some(What::Uthread(uthread)) = &arguments.what else { return Ok(None) };
    Course::new(uthread, arguments, beside(farshore, SERVE.0, SERVE.1)).map(Some).map_err(Failure::Usage)
}

/// The rows of families, if they are what is asked for.
fn families(arguments: &BenchArgs) -> Result<Option<Families>, Failure> {
    let Some(What::Families(families)) = &arguments.what else { return Ok(None) };
    let foreign = [
        ("--memory", arguments.memory.is_some()),
        ("--pool", arguments.pool.is_some()),
        ("--swap-size", arguments.swap_size.is_some()),
        ("--swap-files", arguments.swap_files != 1),
        ("--sweep", arguments.sweep.is_some()),
        ("a PROGRAM", !arguments.program.is_empty()),
    ];
    if let Some((option, _)) = foreign.iter().find(|(_, given)| *given) {
        return Err(Failure::Usage(format!(
            "families finds sizes and limits by itself: leave {option} out; --local says at which parts of the peak"
        )));
    }
    Families::new(families, &targets(arguments)).map(Some).map_err(Failure::Usage)
}

/// Another program of ours: where the environment says, else beside `farshore`.
fn beside(farshore: &Path, name: &str, variable: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| farshore.with_file_name(name), PathBuf::from)
}

fn there(path: PathBuf, variable: &str) -> Result<PathBuf, Failure> {
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::Failed(format!("'{}' is not there: build it (make build), or say by {variable} where it is", path.display())))
}

/// Where swap files go.
fn swap_directory(arguments: &BenchArgs) -> Result<PathBuf, Failure> {
    let given = arguments.dir.clone().or_else(|| std::env::var_os("FARSHORE_SWAP_DIR").map(PathBuf::from));
    let path = given.unwrap_or_else(|| "/var/tmp".into());
    let path = path.canonicalize().map_err(|error| {
        Failure::Failed(format!("cannot use the directory '{}' ({error}): name another by --dir", path.display()))
    })?;
    if path.is_dir() {
        Ok(path)
    } else {
        Err(Failure::Failed(format!("'{}' is not a directory: name one by --dir", path.display())))
    }
}
