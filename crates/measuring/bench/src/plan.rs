//! From a command line to experiments: what is run, how large, under which targets, and which figure of it is compared.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use farshore_load::size::Bytes;
use farshore_load::workload::{Kv, Mode, Server, Workload};

use crate::args::{BenchArgs, Sweep};
use crate::measure::{Program, Service};
use crate::result::{Axis, Figure, PaperPoint, Round, SweepPoint};
use crate::targets::spec::Spec;
use crate::uthread::args::What;
use crate::uthread::service::{Comparison, Load};

/// Swap space for a program of which nothing is known, in multiples of its local memory.
const SWAP_FACTOR: u64 = 4;
/// A server needs more than its values: keys, headers, tables. What swap space gets on top of the data, in eighths of it.
const OVERHEAD_EIGHTHS: u64 = 8;

/// What is compared in one experiment.
#[derive(Clone, PartialEq, Debug)]
pub enum Subject {
    /// A workload of ours.
    Workload(Box<Workload>),
    /// A program of the user's.
    Program(Vec<OsString>),
    /// A service of ours: each target has its own way to wait.
    Served(Box<Comparison>),
}

/// One comparison to be made.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// What it is called.
    pub name: String,
    /// What is run.
    pub subject: Subject,
    /// Local memory, in bytes.
    pub memory_bytes: u64,
    /// RAM for compressed pages, in bytes; 0: none was said.
    pub pool_bytes: u64,
    /// What swap space must hold, in bytes.
    pub swap_bytes: u64,
    /// Swap files.
    pub swap_files: u32,
    /// Where on a sweep this is.
    pub sweep: Option<SweepPoint>,
    /// What it is run under; the first is the reference.
    pub targets: Vec<Spec>,
    /// The row of `families` that it belongs to; empty: none.
    pub family: String,
    /// The figure of a paper that it is a point of.
    pub paper: Option<PaperPoint>,
    /// The limit from the start of the measured phase on, in bytes; `None`: the same as before it. For workloads alone.
    pub raised: Option<u64>,
}

/// What the experiments of one command line have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// Local memory, if it was given.
    pub memory: Option<Bytes>,
    /// RAM for compressed pages, if it was given.
    pub pool: Option<Bytes>,
    /// Swap space, if it was given.
    pub swap_size: Option<Bytes>,
    /// Swap files.
    pub swap_files: u32,
    /// The targets.
    pub targets: Vec<Spec>,
}

impl Common {
    /// As the command line has them.
    #[must_use]
    pub fn of(arguments: &BenchArgs, targets: Vec<Spec>) -> Self {
        let (memory, pool, swap_size) = (arguments.memory, arguments.pool, arguments.swap_size);
        Common { memory, pool, swap_size, swap_files: arguments.swap_files, targets }
    }
}

/// The experiments for `subject`: one, or one for each point of the sweep.
///
/// # Errors
/// What is missing or cannot be swept: one line.
pub fn experiments(subject: &Subject, common: &Common, sweep: Option<&Sweep>) -> Result<Vec<Experiment>, String> {
    let Some(sweep) = sweep else { return Ok(vec![experiment(subject.clone(), common, None)?]) };
    let point = |value: f64| {
        let mut subject = subject.clone();
        let mut common = common.clone();
        match (sweep.axis, &mut subject) {
            (Axis::Memory, Subject::Workload(workload)) => {
                common.memory = Some(Bytes(percent_of(workload.data_bytes(), value)));
            }
            (Axis::Threads, Subject::Workload(workload)) => workload.common_mut().threads = whole(value),
            (Axis::Files, _) => common.swap_files = whole(value),
            (Axis::Memory, Subject::Program(_)) => {
                let all = common.memory.ok_or("--sweep memory of a program: give what 100 % is by --memory")?;
                common.memory = Some(Bytes(percent_of(all.0, value)));
                common.swap_size = common.swap_size.or(Some(Bytes(all.0.saturating_mul(SWAP_FACTOR))));
            }
            (Axis::Memory | Axis::Threads, Subject::Served(_)) => return Err("uthread has no sweep".to_string()),
            (Axis::Threads, Subject::Program(_)) => {
                return Err("--sweep threads is for workloads: a program of your own has its own option for that".to_string());
            }
        }
        experiment(subject, &common, Some(SweepPoint { axis: sweep.axis, value }))
    };
    sweep.values.iter().map(|value| point(*value)).collect()
}

fn experiment(subject: Subject, common: &Common, sweep: Option<SweepPoint>) -> Result<Experiment, String> {
    let (memory_bytes, swap_bytes) = match &subject {
        Subject::Workload(workload) => {
            let data = workload.data_bytes();
            let memory = common.memory.map_or(data / 2, |memory| memory.0);
            (memory, common.swap_size.map_or(data.saturating_add(data / 8 * OVERHEAD_EIGHTHS), |size| size.0))
        }
        Subject::Program(_) | Subject::Served(_) => {
            let memory = common
                .memory
                .ok_or("--memory is missing: say how much of the program's data may be local, such as --memory 256M")?;
            (memory.0, common.swap_size.map_or(memory.0.saturating_mul(SWAP_FACTOR), |size| size.0))
        }
    };
    let name = name_of(&subject, memory_bytes, sweep.as_ref());
    Ok(Experiment {
        name,
        subject,
        memory_bytes,
        pool_bytes: common.pool.map_or(0, |pool| pool.0),
        swap_bytes,
        swap_files: common.swap_files,
        sweep,
        targets: common.targets.clone(),
        family: String::new(),
        paper: None,
        raised: None,
    })
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn percent_of(bytes: u64, percent: f64) -> u64 {
    (bytes as f64 * percent / 100.0) as u64
}

/// Values of sweeps were read as whole numbers in the range of u32.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(value: f64) -> u32 {
    value as u32
}

fn name_of(subject: &Subject, memory_bytes: u64, sweep: Option<&SweepPoint>) -> String {
    let plural = |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let what = match subject {
        Subject::Program(words) => words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        Subject::Served(comparison) => comparison.name(),
        Subject::Workload(workload) => {
            let common = workload.common();
            let kind = match workload.as_ref() {
                Workload::Random(random) if random.run_length > 1 => {
                    format!("random {} of {} pages", operation(random.mode), random.run_length)
                }
                Workload::Random(random) => format!("random {}", operation(random.mode)),
                Workload::Scan(scan) => format!("scan, {}", operation(scan.mode)),
                Workload::Kv(kv) => format!("kv {} at {:.0}/s", kv.server, kv.rate),
                other => other.name().to_string(),
            };
            let size = Bytes(workload.data_bytes() >> 20 << 20);
            format!("{kind}, {size}, {}", plural(common.threads, "thread"))
        }
    };
    let local = Bytes(memory_bytes >> 20 << 20);
    match sweep {
        Some(SweepPoint { axis: Axis::Memory, value }) => format!("{what}, {value} % local"),
        Some(SweepPoint { axis: Axis::Files, value }) => format!("{what}, {local} local, {}", plural(whole(*value), "file")),
        _ => format!("{what}, {local} local"),
    }
}

fn operation(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "reads",
        Mode::Update => "updates",
    }
}

impl Experiment {
    /// What of a run is compared.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let a_second = |what: &str| Figure { name: format!("{what} a second"), unit: "/s".into(), less_is_better: false };
        match &self.subject {
            Subject::Program(_) => Figure { name: "seconds".into(), unit: "s".into(), less_is_better: true },
            Subject::Served(comparison) => match comparison.load {
                Load::Closed(_) => a_second("requests"),
                Load::Open(rate) => {
                    let whose = if comparison.setting.what == What::Scan { "p99.9 latency of GETs" } else { "p99.9 latency" };
                    let name = format!("{whose} at {rate:.0} requests a second");
                    Figure { name, unit: "ns".into(), less_is_better: true }
                }
                Load::Search(_, goal) => {
                    a_second(&format!("most requests with {} of at most {:?} (0: none),", goal.percentile(), goal.most))
                }
            },
            Subject::Workload(workload) => match workload.as_ref() {
                Workload::Kv(_) => Figure { name: "p99 latency".into(), unit: "ns".into(), less_is_better: true },
                Workload::Random(random) => a_second(operation(random.mode)),
                Workload::Hotset(hotset) => a_second(operation(hotset.mode)),
                Workload::Tree(tree) => a_second(operation(tree.mode)),
                Workload::GupsMove(_) => a_second("updates"),
                Workload::Grid(_) => a_second("look-ups"),
                Workload::Kmers(_) => a_second("words"),
                Workload::Signals(_) => a_second("signals"),
                Workload::Reads(_) => a_second("reads"),
                Workload::List(_) => a_second("elements"),
                Workload::Images(_) => a_second("pictures"),
                Workload::Scan(_) | Workload::Stress(_) => a_second("pages"),
                Workload::Phase(_) => a_second("pairs"),
                Workload::Pagerank(_) | Workload::Bfs(_) | Workload::Cc(_) => a_second("edges"),
            },
        }
    }

    /// The figure of one run; `None` if the run has none.
    #[must_use]
    #[expect(clippy::cast_precision_loss)]
    pub fn figure_of(&self, round: &Round) -> Option<f64> {
        if let Subject::Program(_) = &self.subject {
            return Some(round.wall_seconds);
        }
        let outcome = round.outcome.as_ref()?;
        let latency = |share| outcome.latency.quantile(share).map(|latency| latency as f64);
        match &self.subject {
            Subject::Workload(workload) if matches!(**workload, Workload::Kv(_)) => latency(0.99),
            Subject::Served(comparison) if matches!(comparison.load, Load::Open(_)) => latency(0.999),
            Subject::Served(comparison) if matches!(comparison.load, Load::Search(..)) => Some(outcome.best_rate.unwrap_or(0.0)),
            _ if outcome.seconds > 0.0 => Some(outcome.operations as f64 / outcome.seconds),
            _ => None,
        }
    }

    /// Memory of its data, in bytes; 0 if not known.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        match &self.subject {
            Subject::Workload(workload) => workload.data_bytes(),
            Subject::Served(comparison) => comparison.setting.data_bytes,
            Subject::Program(_) => 0,
        }
    }

    /// Its threads; 0 if not known.
    #[must_use]
    pub fn threads(&self) -> u32 {
        match &self.subject {
            Subject::Workload(workload) => workload.common().threads,
            // Each target has its own.
            Subject::Program(_) | Subject::Served(_) => 0,
        }
    }

    /// The name of what is run.
    #[must_use]
    pub fn workload(&self) -> String {
        match &self.subject {
            Subject::Workload(workload) => workload.name().to_string(),
            Subject::Served(comparison) => format!("uthread {}", comparison.setting.what.name()),
            Subject::Program(words) => words.first().map_or(String::new(), |word| word.to_string_lossy().into_owned()),
        }
    }

    /// What is run in `directory` under the target with this index, with `load` for `farshore-load`. `number` is the round's: seeds differ from
    /// round to round, and are the same for all targets in one. Round 0 is the warm-up, which is shorter where it has no end of its own.
    #[must_use]
    pub fn program(&self, load: &Path, directory: &Path, number: u32, target: usize) -> Program {
        let workload = match &self.subject {
            Subject::Program(words) => return Program::Any(words.clone()),
            Subject::Served(comparison) => return Program::Served(Box::new(comparison.program(load, directory, number, target))),
            Subject::Workload(workload) => workload,
        };
        let mut workload = workload.as_ref().clone();
        let common = workload.common_mut();
        common.seed = common.seed.wrapping_add(u64::from(number.saturating_sub(1)));
        if number == 0 {
            common.seconds = common.seconds.min(1.0);
            common.warmup = 0.0;
        }
        match &mut workload {
            Workload::Kv(kv) => return service(load, directory, kv),
            Workload::Reads(reads) => reads.directory = directory.into(),
            Workload::Pagerank(_) | Workload::Bfs(_) | Workload::Cc(_) => {
                // One graph for all rounds: making it takes longer than working on it.
                let common = workload.common_mut();
                common.seed = common.seed.wrapping_sub(u64::from(number.saturating_sub(1)));
            }
            _ => {}
        }
        if let Some((graph, _)) = workload.graph_mut() {
            *graph = Some(graph_file(directory));
        }
        let words = events(load, &workload);
        match self.raised {
            Some(memory_bytes) => Program::Raised { words, memory_bytes },
            None => Program::Workload(words),
        }
    }

    /// What must be run once, natively, before the first round.
    #[must_use]
    pub fn preparation(&self, load: &Path, directory: &Path) -> Option<Vec<OsString>> {
        let Subject::Workload(workload) = &self.subject else { return None };
        let mut workload = workload.as_ref().clone();
        let (graph, only_graph) = workload.graph_mut()?;
        (*graph, *only_graph) = (Some(graph_file(directory)), true);
        Some(events(load, &workload))
    }
}

fn graph_file(directory: &Path) -> PathBuf {
    directory.join("graph")
}

fn events(load: &Path, workload: &Workload) -> Vec<OsString> {
    let arguments = workload.arguments().into_iter().map(OsString::from);
    [load.as_os_str().to_owned(), "--events".into()].into_iter().chain(arguments).collect()
}

/// The server that a `kv` run asks, as its users start it, but for what would write to disk.
fn service(load: &Path, directory: &Path, kv: &Kv) -> Program {
    let socket = directory.join("server");
    let path = socket.as_os_str();
    let server: Vec<OsString> = match kv.server {
        Server::Redis => {
            let words = ["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"];
            words.into_iter().map(OsString::from).chain([path.to_owned()]).collect()
        }
        Server::Memcached => {
            // Room for keys and headers too: it must not throw values away, or they could not be checked.
            let megabytes = (kv.common.size.0 >> 20).saturating_mul(2).max(64).to_string();
            // As root it wants a user to become.
            let words = ["memcached", "-u", "root", "-t", "4", "-I", "2m", "-m", &megabytes, "-s"];
            words.into_iter().map(OsString::from).chain([path.to_owned()]).collect()
        }
    };
    let kv = Kv { address: socket.to_string_lossy().into_owned(), ..kv.clone() };
    Program::Service(Service { server, socket, client: events(load, &Workload::Kv(kv)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        workload: Workload,
    }

    fn subject(line: &str) -> Subject {
        let line = Line::try_parse_from(std::iter::once("x").chain(line.split(' ')));
        Subject::Workload(Box::new(line.map_or_else(|error| panic!("{error}"), |line| line.workload)))
    }

    fn common(memory: Option<u64>) -> Common {
        Common { memory: memory.map(Bytes), pool: None, swap_size: None, swap_files: 1, targets: Vec::new() }
    }

    #[test]
    fn half_of_the_data_is_local_unless_said_otherwise() {
        let plan = experiments(&subject("random --size 512M --threads 8"), &common(None), None).unwrap();
        assert_eq!(plan[0].memory_bytes, 256 << 20);
        assert_eq!(plan[0].name, "random updates, 512M, 8 threads, 256M local");
        assert!(plan[0].swap_bytes >= 512 << 20);
        let plan = experiments(&subject("scan"), &common(Some(100 << 20)), None).unwrap();
        assert_eq!(plan[0].memory_bytes, 100 << 20);
    }

    #[test]
    fn a_sweep_changes_what_it_names() {
        let sweep = |axis, values: &[f64]| Sweep { axis, values: values.to_vec() };
        let memory =
            experiments(&subject("random --size 100M"), &common(None), Some(&sweep(Axis::Memory, &[100.0, 10.0]))).unwrap();
        assert_eq!(memory.iter().map(|point| point.memory_bytes >> 20).collect::<Vec<_>>(), [100, 10]);
        let threads = experiments(&subject("random"), &common(None), Some(&sweep(Axis::Threads, &[1.0, 64.0]))).unwrap();
        assert_eq!(threads.iter().map(Experiment::threads).collect::<Vec<_>>(), [1, 64]);
        let files = experiments(&subject("random"), &common(None), Some(&sweep(Axis::Files, &[8.0]))).unwrap();
        assert_eq!(files[0].swap_files, 8);
        let program = Subject::Program(vec!["sort".into()]);
        for axis in [Axis::Memory, Axis::Threads] {
            assert!(experiments(&program, &common(None), Some(&sweep(axis, &[1.0]))).is_err());
        }
        assert!(experiments(&program, &common(None), None).unwrap_err().contains("--memory"));
    }

    #[test]
    fn rounds_differ_in_their_seed_and_the_warm_up_is_short() {
        let plan = &experiments(&subject("random --seconds 6 --seed 5"), &common(None), None).unwrap()[0];
        let words = |number| match plan.program(Path::new("load"), Path::new("/d"), number, 0) {
            Program::Workload(words) => words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert!(words(1).contains(&"--seed=5".into()) && words(3).contains(&"--seed=7".into()));
        assert!(words(0).contains(&"--seconds=1".into()) && words(1).contains(&"--seconds=6".into()));
        let graph = &experiments(&subject("pagerank --seed 5"), &common(None), None).unwrap()[0];
        let Program::Workload(words) = graph.program(Path::new("load"), Path::new("/d"), 3, 0) else { panic!("no workload") };
        assert!(words.contains(&"--seed=5".into()) && words.contains(&"--graph=/d/graph".into()));
        assert!(graph.preparation(Path::new("load"), Path::new("/d")).unwrap().contains(&"--only-graph".into()));
    }
}
