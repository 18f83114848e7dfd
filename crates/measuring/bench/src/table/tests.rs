use farshore_load::outcome::{Histogram, Outcome, Timeline};

use super::*;
use crate::result::{Access, Axis, Figure, Percentiles, Ratio, Round, Spread, Summary, SweepPoint, TargetResult};

fn rate() -> Figure {
    Figure { name: "updates a second".into(), unit: "/s".into(), less_is_better: false }
}

fn round(number: u32, wrong: &str) -> Round {
    let wrong = if wrong.is_empty() { Vec::new() } else { vec![wrong.to_string()] };
    Round { number, figure: wrong.is_empty().then_some(1.0), wrong, ..Round::default() }
}

fn target(label: &str, median: f64, ratio: Option<(f64, f64, f64)>) -> TargetResult {
    let summary = Summary {
        figure: Spread { median, min: median * 0.98, max: median * 1.02 },
        latency: Some(Percentiles { p50: 3900, p90: 120_000, p99: 1_200_000, p999: 2_000_000, max: 31_000_000 }),
        ratio: ratio.map(|(low, median, high)| Ratio { median, low, high, confidence: 0.95, rounds: vec![median; 5] }),
        faults: 1_234_567,
        fetches: 1_000_000,
        fetches_per_second: 166_000.0,
        cpu_us_per_fault: 9.81,
        cpu_seconds: 12.3,
        wall_seconds: 8.5,
        peak_resident_bytes: 262 << 20,
        device_percent: Some(87.3),
    };
    let rounds = (1..=5).map(|number| round(number, "")).collect();
    TargetResult { label: label.into(), kind: label.into(), rounds, summary: Some(summary), ..TargetResult::default() }
}

fn three_targets() -> Experiment {
    let swap = target("linux-swap", 123_000.0, Some((1.31, 1.34, 1.6)));
    let mut zram = target("zram", 400_000.0, Some((0.38, 0.41, 0.44)));
    zram.rounds[2] = round(3, "killed by signal 9");
    let mut broken = target("zswap", 1.0, None);
    broken.summary = None;
    broken.rounds = vec![round(1, "killed by signal 9"), round(2, "killed by signal 9"), round(3, "exit status 1")];
    Experiment {
        name: "random updates, 512M, 8 threads, 256M local".into(),
        workload: "random".into(),
        figure: rate(),
        targets: vec![target("farshore", 165_000.0, None), swap, zram, broken],
        ..Experiment::default()
    }
}

#[test]
fn an_experiment_on_a_wide_terminal() {
    let text = experiment(&three_targets(), false, 200);
    let wanted = "\
random updates, 512M, 8 threads, 256M local: updates a second, 5 rounds
target       median        range      p50      p99    p99.9      max  faults  fetches/s  CPU/fault  device  farshore is         target is
farshore    165 k/s  162–168 k/s  3.90 µs  1.20 ms  2.00 ms  31.0 ms  1.23 M      166 k    9.81 µs    87 %
linux-swap  123 k/s  121–125 k/s  3.90 µs  1.20 ms  2.00 ms  31.0 ms  1.23 M      166 k    9.81 µs    87 %  1.34 × (1.31–1.60)  slower
zram        400 k/s  392–408 k/s  3.90 µs  1.20 ms  2.00 ms  31.0 ms  1.23 M      166 k    9.81 µs    87 %  0.41 × (0.38–0.44)  faster
zswap        failed
";
    assert_eq!(text.lines().take(6).map(|line| line.to_string() + "\n").collect::<String>(), wanted, "{text}");
    let notes: Vec<&str> = text.lines().skip(6).collect();
    let wanted = [
        "zram: left out, round 3: killed by signal 9",
        "zswap: failed, round 3: exit status 1",
        "zswap: failed, rounds 1, 2: killed by signal 9",
    ];
    assert_eq!(notes, wanted);
    assert!(text.lines().all(|line| unicode_width::UnicodeWidthStr::width(line) <= WIDEST));
    assert!(!text.contains('\x1b'));
    assert!(experiment(&three_targets(), true, 200).contains("\x1b[31mslower\x1b[0m"));
}

#[test]
fn narrow_terminals_get_less_of_it() {
    let mut lost = std::collections::BTreeSet::new();
    let titles = |width| {
        let text = experiment(&three_targets(), false, width);
        text.lines()
            .nth(1)
            .map(|line| line.split("  ").map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect::<Vec<_>>())
    };
    let mut before = titles(140).unwrap_or_default();
    for width in (40..140).rev() {
        let now = titles(width).unwrap_or_default();
        assert!(now.iter().all(|title| before.contains(title)), "{now:?} was {before:?}");
        lost.extend(before.iter().filter(|title| !now.contains(title)).cloned());
        before = now;
    }
    assert_eq!(before, ["target", "median", "farshore is"]);
    assert!(lost.contains("device") && lost.contains("p99") && lost.contains("target is"), "{lost:?}");
    // 80 columns hold what matters most.
    assert_eq!(titles(80).unwrap_or_default(), ["target", "median", "p99", "CPU/fault", "device", "farshore is", "target is"]);
}

#[test]
fn columns_without_content_are_not_there() {
    let mut alone = three_targets();
    alone.targets.truncate(1);
    alone.targets[0].summary.as_mut().expect("a summary").latency = None;
    let text = experiment(&alone, false, 140);
    assert!(!text.contains("p99") && !text.contains("target is"), "{text}");
    alone.targets[0].summary = None;
    alone.targets[0].rounds.clear();
    assert!(experiment(&alone, false, 140).contains("not run"));
}

#[test]
fn the_time_to_recover_is_told() {
    let mut moved = Experiment { workload: "gups-move".into(), ..three_targets() };
    let after = |slow: usize| [vec![100; 4], vec![10; slow], vec![100; 16 - slow]].concat();
    for (slow, round) in [2, 4, 3].into_iter().zip(&mut moved.targets[0].rounds) {
        let marks = vec![(0.4, "the hot set moves".to_string())];
        let timeline = Timeline { step_seconds: 0.1, operations: after(slow), marks };
        round.outcome = Some(Outcome { timeline, ..Outcome::default() });
    }
    let text = experiment(&moved, false, 140);
    assert!(
        text.contains("farshore: the hot set moves: back at 90 % of the rate at the end after 300 ms (200 ms–400 ms)\n"),
        "{text}"
    );
}

#[test]
fn late_load_is_told() {
    let mut late = three_targets();
    let outcome = Outcome { generator_late: "3 % of the requests went out late".into(), ..Outcome::default() };
    late.targets[0].rounds[1].outcome = Some(outcome);
    assert!(experiment(&late, false, 140).contains("farshore: late load, round 2: 3 % of the requests went out late\n"));
}

fn sweep() -> Vec<Experiment> {
    let at = |value: f64, median: f64| Experiment {
        name: format!("random updates, {value} % local"),
        workload: "random".into(),
        sweep: Some(SweepPoint { axis: Axis::Memory, value }),
        figure: rate(),
        targets: vec![target("farshore", median, None), target("linux-swap", median / 2.0, Some((1.9, 2.0, 2.1)))],
        ..Experiment::default()
    };
    vec![at(100.0, 1e6), at(40.0, 2e5)]
}

fn machine() -> Machine {
    Machine {
        kernel: "6.18.44".into(),
        cpu: "AMD EPYC".into(),
        cpus: 2,
        nodes: 1,
        memory_bytes: 24 << 30,
        filesystem: "ext4".into(),
        disk: "vda".into(),
        directory: "/var/tmp".into(),
        settings: BTreeMap::from([("swappiness".to_string(), "60".to_string())]),
        ..Machine::default()
    }
}

#[test]
fn a_sweep_is_one_table_within_all_results() {
    let device = Device {
        file_bytes: 1 << 30,
        points: vec![DevicePoint {
            access: Access::RandomRead,
            depth: 32,
            pages_per_second: 51_200.0,
            latency: Histogram { counts: vec![(600_000, 99), (900_000, 1)] },
        }],
    };
    let skipped = BTreeMap::from([("zram".to_string(), "needs root: run it as root".to_string())]);
    let all = Results { machine: machine(), device: Some(device), experiments: sweep(), skipped, ..Results::default() };
    let text = results(&all, false, 100);
    assert!(
        text.starts_with(
            "AMD EPYC, 2 processors, 1 node, 24 GiB of RAM, Linux 6.18.44\next4 on vda in /var/tmp, load 0.00\nswappiness 60\n\n"
        ),
        "{text}"
    );
    assert!(text.contains("4 KiB random reads         32   51.2 k    200  600 µs  600 µs  900 µs  900 µs\n"), "{text}");
    assert!(text.contains("random updates, over local memory: updates a second, 5 rounds\n"), "{text}");
    let firsts: Vec<&str> =
        text.lines().filter_map(|line| line.trim_start().split("  ").next()).filter(|word| word.ends_with('%')).collect();
    assert_eq!(firsts, ["40 %", "100 %"], "{text}");
    assert!(text.ends_with("\nzram was left out: needs root: run it as root\n"), "{text}");
    assert_eq!(results(&Results::default(), true, 80), "");
}

#[test]
fn in_markdown() {
    let mut experiments = vec![three_targets()];
    experiments[0].targets[1].label = "a|b".into();
    experiments.extend(sweep());
    let all = Results { machine: machine(), experiments, ..Results::default() };
    let text = markdown(&all);
    let mut lines = text.lines().skip_while(|line| !line.starts_with('|'));
    assert_eq!(lines.next().map(|line| line.matches('|').count()), Some(10));
    assert_eq!(lines.next(), Some("| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: |"));
    let first =
        "| random updates, 512M, 8 threads, 256M local | farshore | 165 k/s |  |  | 3.90 µs / 1.20 ms | 1.23 M | 9.81 | 87 % |";
    assert_eq!(lines.next(), Some(first));
    assert!(text.contains("|  | a\\|b | 123 k/s | 1.34 × (1.31–1.60) | slower | "), "{text}");
    assert!(text.contains("|  | zswap | failed |  |  |  |  |  |  |\n"), "{text}");
    assert!(text.contains("| random updates, local memory 40 % | farshore | 200 k/s |"), "{text}");
    assert!(text.contains("\n- random updates, 512M, 8 threads, 256M local: zswap: failed, round 3: exit status 1\n"), "{text}");
}
