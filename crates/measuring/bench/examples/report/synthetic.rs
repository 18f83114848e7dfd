//! Results that nobody has measured: every kind of plot, every field, and what goes wrong. Made by formulas, the same each time.

use std::collections::BTreeMap;

use farshore_bench::result::{
    Access, Axis, Counters, Device, DevicePoint, Experiment, Figure, Machine, PaperPoint, Results, Round, SCHEMA, SweepPoint,
    TargetResult,
};
use farshore_bench::statistics;
use farshore_load::outcome::{Histogram, MEASURE, Outcome, Phase, Timeline};
use farshore_random::Rng;

/// A name that must come out as text, wherever it is shown.
pub const HOSTILE: &str = "farshore:policy=\"<script>document.title='broken'</script>\"&amp;";

const ROUNDS: u32 = 5;
const SECONDS: f64 = 6.0;

/// Numbers that look like chance, the same each time.
struct Chance(Rng);

impl Chance {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        f64::from(u32::try_from(self.0.bits() >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }

    /// Around 1.
    fn about(&mut self, spread: f64) -> f64 {
        1.0 + (self.next() - 0.5) * spread
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
fn count(value: f64) -> u64 {
    value.round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "small")]
fn float(value: u64) -> f64 {
    value as f64
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_string()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect()
}

/// Latencies around a median with a long tail, in ns.
fn histogram(total: u64, median_ns: f64, tail: f64) -> Histogram {
    // Shares of what is left, further and further out: 2^-1 at the median, then ever less, ever slower.
    let mut left = total;
    let mut counts = Vec::new();
    for step in 0..60_u32 {
        let nines = f64::from(step) / 8.0;
        let above = float(total) * 10f64.powf(-nines - 0.05);
        let here = left.saturating_sub(count(above));
        if here > 0 {
            counts.push((count(median_ns * (0.6 + 0.4 * nines / 0.3).min(1.0) * (1.0 + tail * nines.powi(2) / 4.0)), here));
            left -= here;
        }
    }
    if left > 0 {
        counts.push((count(median_ns * (2.0 + tail * 20.0)), left));
    }
    let mut sorted = Histogram::default();
    sorted.add(&Histogram { counts });
    sorted
}

/// How a target behaves.
struct Behaviour {
    label: &'static str,
    kind: &'static str,
    /// Operations a second of one thread without faults, and seconds for one that faults.
    rate: f64,
    fault_seconds: f64,
    /// Its share of the device's time that no other thread can use.
    serial: f64,
}

const TARGETS: [Behaviour; 4] = [
    Behaviour { label: "farshore", kind: "farshore", rate: 2.4e6, fault_seconds: 96e-6, serial: 0.02 },
    Behaviour { label: "linux-swap", kind: "linux-swap", rate: 2.5e6, fault_seconds: 128e-6, serial: 0.2 },
    Behaviour { label: "zram", kind: "zram", rate: 2.5e6, fault_seconds: 24e-6, serial: 0.35 },
    Behaviour { label: "native", kind: "native", rate: 2.5e6, fault_seconds: 0.0, serial: 0.0 },
];

/// A workload at a point: (local share, threads) → operations a second, faults an operation.
fn speed(target: &Behaviour, local: f64, threads: u32) -> (f64, f64) {
    let missing = if target.kind == "native" { 0.0 } else { (1.0 - local).max(0.0) };
    let threads = f64::from(threads);
    let waits = target.fault_seconds * missing;
    let together = threads / (1.0 / target.rate + waits * (1.0 + target.serial * (threads - 1.0)));
    (together.min(2.0 * target.rate), missing)
}

fn timeline(rate: f64, chance: &mut Chance, moves: bool) -> Timeline {
    let step = |index: u32| {
        let since = f64::from(index) - 30.0;
        let dip = if moves && since >= 0.0 { 1.0 - 0.75 * (-since / 9.0).exp() } else { 1.0 };
        count(rate * 0.1 * dip * chance.about(0.12))
    };
    let operations: Vec<u64> = (0..60).map(step).collect();
    let marks = if moves { vec![(3.0, "the hot set moves".to_string())] } else { vec![] };
    Timeline { step_seconds: 0.1, operations, marks }
}

fn outcome(workload: &str, rate: f64, missing: f64, target: &Behaviour, chance: &mut Chance) -> Outcome {
    let operations = count(rate * SECONDS);
    let fetches = count(float(operations) * missing);
    let phase = |name: &str, seconds: f64, faults: u64| Phase {
        name: name.into(),
        seconds,
        user_seconds: seconds * 0.8,
        system_seconds: seconds * 0.2,
        minor_faults: faults / 10,
        major_faults: faults,
        faults_of_worst_thread: faults / 7,
        operations,
    };
    let latency = if target.kind == "native" {
        histogram(operations.min(400_000), 420.0, 0.6)
    } else {
        histogram(operations.min(400_000), target.fault_seconds * 1e9, 2.0 + target.serial * 30.0)
    };
    Outcome {
        workload: workload.into(),
        unit: "update".into(),
        operations,
        seconds: SECONDS,
        bytes_per_operation: 4096,
        data_bytes: 512 << 20,
        latency,
        timeline: timeline(rate, chance, workload == "gups-move"),
        phases: vec![phase("fill", 0.4, 131_072), phase(MEASURE, SECONDS, fetches), phase("verify", 0.3, 65_536)],
        verified: "the sum of 67108864 words".into(),
        checksum: "5d41402abc4b2a76".into(),
        ..Outcome::default()
    }
}

fn round(
    number: u32,
    place: usize,
    workload: &str,
    target: &Behaviour,
    (local, threads): (f64, u32),
    chance: &mut Chance,
) -> Round {
    let (rate, missing) = speed(target, local, threads);
    let rate = rate * chance.about(0.08);
    let outcome = outcome(workload, rate, missing, target, chance);
    let fetches = count(float(outcome.operations) * missing);
    let counters = Counters {
        fetches,
        other_faults: 131_072,
        pages_in: fetches,
        pages_out: fetches * 9 / 10,
        cpu_seconds: 7.5,
        machine_cpu_seconds: 9.0,
    };
    Round {
        number,
        place: u32::try_from(place + 1).unwrap_or(1),
        figure: Some(float(outcome.operations) / outcome.seconds),
        wall_seconds: 6.9,
        user_seconds: 5.1,
        system_seconds: 2.4,
        machine_seconds: 9.1,
        peak_resident_bytes: 274 << 20,
        peak_limited_bytes: 256 << 20,
        counters,
        measured: Some(counters),
        measured_seconds: 6.01,
        output_sha256: "e3b0c44298fc1c149afbf4c8996fb924".into(),
        outcome: Some(outcome),
        stats: (target.kind == "farshore").then(|| serde_json::json!({"faults": fetches})),
        ..Default::default()
    }
}

fn experiment(
    name: &str,
    workload: &str,
    sweep: Option<(Axis, f64)>,
    (local, threads, files): (f64, u32, u32),
    chance: &mut Chance,
) -> Experiment {
    let mut targets: Vec<TargetResult> = Vec::new();
    for (place, target) in TARGETS.iter().enumerate() {
        let rounds: Vec<Round> =
            (1..=ROUNDS).map(|number| round(number, place, workload, target, (local, threads), chance)).collect();
        let settings = pairs(&[("memory", "256M"), ("swap", "dir:/var/tmp/bench")]);
        targets.push(TargetResult { label: target.label.into(), kind: target.kind.into(), settings, rounds, summary: None });
    }
    Experiment {
        name: name.into(),
        workload: workload.into(),
        arguments: words(&["farshore-load", workload, "--size=512M", &format!("--threads={threads}"), "--seconds=6", "--seed=1"]),
        data_bytes: 512 << 20,
        memory_bytes: count(local * f64::from(512 << 20)),
        pool_bytes: 0,
        threads,
        swap_files: files,
        sweep: sweep.map(|(axis, value)| SweepPoint { axis, value }),
        family: String::new(),
        paper: None,
        raised_bytes: 0,
        figure: Figure { name: "updates a second".into(), unit: "/s".into(), less_is_better: false },
        targets,
    }
}

/// What goes wrong: a target without a good round, one with some, one that cannot be named.
fn damaged(chance: &mut Chance) -> Experiment {
    let mut experiment = experiment("a run with damage", "random", None, (0.5, 2, 1), chance);
    experiment.targets[0].label = HOSTILE.into();
    experiment.targets[0].rounds[2]
        .outcome
        .iter_mut()
        .for_each(|outcome| outcome.generator_late = "the generator was late by up to 3 ms".into());
    experiment.targets[1].rounds[1].wrong = words(&["the sum is wrong: 3, not 4"]);
    experiment.targets[2].rounds.iter_mut().for_each(|round| round.wrong = words(&["ended by signal 9"]));
    experiment
}

/// A program of the user's own: it tells nothing but its wall time.
fn program(chance: &mut Chance) -> Experiment {
    let mut experiment = experiment("sort", "sort", None, (0.5, 1, 1), chance);
    experiment.arguments = words(&["sort", "--parallel=1", "-o", "/dev/null", "it's a file.txt"]);
    experiment.figure = Figure { name: "seconds".into(), unit: "s".into(), less_is_better: true };
    for (index, target) in experiment.targets.iter_mut().enumerate() {
        for round in &mut target.rounds {
            round.outcome = None;
            round.wall_seconds = [14.2, 19.5, 11.8, 9.6][index] * chance.about(0.1);
            round.figure = Some(round.wall_seconds);
            round.counters.fetches = 20_000;
            round.measured = None;
        }
    }
    experiment
}

fn device() -> Device {
    let point = |access, depth, pages_per_second, median_ns| DevicePoint {
        access,
        depth,
        pages_per_second,
        latency: histogram(20_000, median_ns, 1.2),
    };
    Device {
        file_bytes: 1 << 30,
        points: vec![
            point(Access::RandomRead, 1, 11_800.0, 81_000.0),
            point(Access::RandomRead, 32, 148_000.0, 203_000.0),
            point(Access::RandomWrite, 32, 96_000.0, 310_000.0),
            point(Access::RandomMixed, 32, 112_000.0, 270_000.0),
            point(Access::SequentialRead, 4, 410_000.0, 2_300_000.0),
            point(Access::SequentialWrite, 4, 290_000.0, 3_400_000.0),
        ],
    }
}

fn machine() -> Machine {
    Machine {
        host: "synthetic".into(),
        kernel: "6.18.0".into(),
        cpu: "A processor that nobody has built".into(),
        cpus: 2,
        memory_bytes: 24 << 30,
        nodes: 1,
        hypervisor: "none".into(),
        directory: "/var/tmp/bench".into(),
        filesystem: "ext4".into(),
        disk: "vda".into(),
        settings: pairs(&[("transparent_hugepage", "madvise"), ("swappiness", "60"), ("page-cluster", "3")]),
        other_swap: words(&["/dev/sda2"]),
        load: 0.07,
    }
}

/// All of it.
pub fn results() -> Results {
    let mut chance = Chance(Rng::new(1));
    let mut experiments = vec![
        experiment("random updates, 8 threads", "random", None, (0.5, 8, 1), &mut chance),
        experiment("moving hot set", "gups-move", None, (0.75, 2, 1), &mut chance),
        program(&mut chance),
        damaged(&mut chance),
    ];
    for percent in [100.0, 90.0, 75.0, 50.0, 25.0, 10.0] {
        experiments.push(experiment(
            &format!("random updates, {percent} % local"),
            "random",
            Some((Axis::Memory, percent)),
            (percent / 100.0, 2, 1),
            &mut chance,
        ));
    }
    for threads in [1, 2, 4, 8, 16, 32, 64] {
        experiments.push(experiment(
            "random updates over threads",
            "random",
            Some((Axis::Threads, f64::from(threads))),
            (0.5, threads, 1),
            &mut chance,
        ));
    }
    for files in [1, 2, 4, 8] {
        experiments.push(experiment(
            "random updates over files",
            "random",
            Some((Axis::Files, f64::from(files))),
            (0.5, 8, files),
            &mut chance,
        ));
    }
    let device = device();
    for experiment in &mut experiments {
        statistics::summarise(experiment, Some(&device), &|label| label.starts_with("farshore") || label == "linux-swap");
    }
    Results {
        schema: SCHEMA,
        version: "0.1.0".into(),
        date: "2026-11-21T09:30:00Z".into(),
        command: words(&[
            "farshore",
            "bench",
            "random",
            "--size",
            "512M",
            "--against",
            "farshore,linux-swap,zram,native",
            "--report",
            "out of the way",
        ]),
        machine: machine(),
        device: Some(device),
        experiments,
        skipped: pairs(&[("zswap", "this kernel has no zswap: it needs CONFIG_ZSWAP")]),
    }
}

/// The figure of a paper that [`paper`] has raw rows of.
pub const PAPER: &str = "mage-9-disk";

/// Raw rows of that figure: each of its points, the kernel's target with a bad round.
pub fn paper() -> Results {
    let mut chance = Chance(Rng::new(2));
    let mut experiments = Vec::new();
    for panel in ["pagerank", "grid"] {
        for far in [0.0, 10.0, 30.0, 50.0, 70.0, 90.0] {
            let name = format!("{PAPER}, {panel}, {far}");
            let mut experiment = experiment(&name, panel, None, (1.0 - far / 100.0, 2, 1), &mut chance);
            experiment.targets.retain(|target| target.label != "zram");
            experiment.targets[1].label = "Linux swap".into();
            experiment.targets[1].rounds[3].wrong = words(&["ended by signal 9"]);
            let point = PaperPoint {
                figure: PAPER.into(),
                panel: panel.into(),
                variant: String::new(),
                x: far,
                shown: far,
                quick: false,
            };
            experiment.paper = Some(point);
            experiments.push(experiment);
        }
    }
    let results = results();
    for experiment in &mut experiments {
        statistics::summarise(experiment, results.device.as_ref(), &|label| label != "native");
    }
    Results { command: words(&["farshore", "bench", "paper", PAPER]), experiments, skipped: BTreeMap::new(), ..results }
}
