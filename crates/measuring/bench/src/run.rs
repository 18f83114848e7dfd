//! `farshore bench`: from the command line to tables and files.

mod paper;

use std::path::{Path, PathBuf};

use crate::args::{BenchArgs, CanonicalArgs, FamiliesArgs, What};
use crate::families::Families;
use crate::plan::{self, Common, Experiment, Subject};
use crate::result::{self, Results};
use crate::session::{Series, Session, Signals};
use crate::targets::spec::{self, Spec};
use crate::uthread::course::Course;
use crate::{canonical, compare, machine, output, table, uthread};

/// What can be measured, for messages.
pub const THERE_IS: &str = "random, scan, hotset, gups-move, phase, pagerank, bfs, cc, stress, grid, tree, kv, canonical, families, paper, uthread or device";
/// What is compared where nothing is said.
const USUAL: &str = "farshore,linux-swap";
/// The server of `uthread`, and what says where it is.
const SERVE: (&str, &str) = ("farshore-serve", "FARSHORE_SERVE");
/// Why nothing, or not everything, was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The command line asks for what is not there.
    Usage(String),
    /// It could not be done.
    Failed(String),
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
    if let Some(What::Paper(paper)) = &arguments.what {
        return paper::bench(arguments, paper, farshore, &words);
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
    let session = Session {
        arguments,
        farshore,
        load: &load,
        directory: &directory,
        words,
        signals: &signals,
        json: arguments.json.as_deref(),
    };
    let series = match (&course, &families) {
        (Some(course), _) => Series::Course(course),
        (None, Some(families)) => Series::Families(families),
        (None, None) => Series::Plain,
    };
    let (results, ended) = session.measure(&plan, series, machine)?;
    // Also what was measured before an error or Ctrl-C: nothing is lost.
    output::write(&results, arguments.json.as_deref(), report)?;
    if let Some(path) = arguments.results.as_ref().and(report) {
        output::write_more(&results, path)?;
    }
    let bad = is_bad(&plan, &results);
    output::print(&table::results(&results, output::colours(), output::width()))?;
    if let Some(path) = report {
        output::tell(&format!("the report is '{}'", path.join("index.html").display()));
    }
    ended?;
    if signals.stopped() {
        eprintln!("farshore: ended by a signal: what was measured so far is above");
        return Ok(signals.status());
    }
    Ok(u8::from(bad))
}

/// Whether a run of ours went wrong, or one that was asked for could not be had.
fn is_bad(plan: &[Experiment], results: &Results) -> bool {
    let went_wrong = results.experiments.iter().flat_map(|experiment| &experiment.targets).any(ours_went_wrong);
    went_wrong || plan.iter().any(|experiment| ours_is_left_out(experiment, results))
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
        (Some(What::Device(_) | What::Canonical(_) | What::Families(_) | What::Paper(_) | What::Uthread(_)), true) => {
            return Ok(Vec::new());
        }
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
