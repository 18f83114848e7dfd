use proptest::prelude::*;
use rand::Rng;

use super::*;
use crate::result::{Access, DevicePoint, Figure, Verdict};
use farshore_load::outcome::Outcome;

fn all(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().copied().map(Some).collect()
}

/// Noise of a normal distribution with standard deviation 1, as the sum of twelve uniform numbers.
fn normal(random: &mut impl Rng) -> f64 {
    (0..12).map(|_| random.random_range(0.0..1.0)).sum::<f64>() - 6.0
}

fn lognormal(random: &mut impl Rng, median: f64, sigma: f64, rounds: usize) -> Vec<f64> {
    (0..rounds).map(|_| median * (sigma * normal(random)).exp()).collect()
}

#[test]
fn medians_and_ranges() {
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
    assert_eq!(spread(&[]), None);
}

#[test]
fn rounds_without_both_are_left_out() {
    let first = [Some(10.0), None, Some(30.0), Some(8.0), Some(0.0)];
    let other = [Some(5.0), Some(1.0), None, Some(4.0), Some(1.0)];
    let better = ratio(&first, &other, false).expect("two rounds");
    assert_eq!(better.rounds, [2.0, 2.0]);
    assert_eq!((better.median, better.low, better.high, better.confidence), (2.0, 2.0, 2.0, 0.95));
    let worse = ratio(&first, &other, true).expect("two rounds");
    assert_eq!(worse.rounds, [0.5, 0.5]);
    assert_eq!(ratio(&[None, Some(1.0)], &[Some(1.0), None], false), None);
}

#[test]
fn below_three_rounds_and_at_five_the_interval_is_the_range() {
    let two = ratio(&all(&[1.0, 3.0]), &all(&[1.0, 1.0]), false).expect("two rounds");
    assert_eq!((two.low, two.median, two.high), (1.0, 2.0, 3.0));
    let five = ratio(&all(&[1.0, 2.0, 3.0, 4.0, 5.0]), &all(&[1.0; 5]), false).expect("five rounds");
    assert_eq!((five.low, five.median, five.high), (1.0, 3.0, 5.0));
    let many: Vec<f64> = (1..=40).map(f64::from).collect();
    let many = ratio(&all(&many), &all(&[1.0; 40]), false).expect("forty rounds");
    assert!(many.low > 5.0 && many.high < 36.0, "{}..{}", many.low, many.high);
}

#[test]
fn unpaired_ratios() {
    assert_eq!(unpaired_ratio(&[], &[1.0]), None);
    assert_eq!(unpaired_ratio(&[1.0], &[0.0]), None);
    let few = unpaired_ratio(&[4.0, 6.0], &[1.0, 2.0]).expect("a ratio");
    assert_eq!((few.low, few.high), (2.0, 6.0));
    let same = unpaired_ratio(&[10.0, 11.0, 9.0, 10.0, 10.5], &[9.0, 10.0, 11.0, 10.2, 9.9]).expect("a ratio");
    assert_eq!(same.verdict(), Verdict::Same);
    let twice = unpaired_ratio(&[20.0, 22.0, 18.0, 20.0, 21.0], &[9.0, 10.0, 11.0, 10.2, 9.9]).expect("a ratio");
    assert!(twice.low > 1.5 && twice.high < 2.5, "{}..{}", twice.low, twice.high);
}

#[test]
fn a_comparison_with_itself_is_seldom_told_as_a_difference() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut held = 0;
    for _ in 0..400 {
        let (first, other) = (lognormal(&mut random, 1e6, 0.05, 5), lognormal(&mut random, 1e6, 0.05, 5));
        let ratio = ratio(&all(&first), &all(&other), false).expect("five rounds");
        held += u32::from(ratio.verdict() == Verdict::Same);
    }
    // 93.7 % by the head of the module; 5 standard deviations of 1.2 % below that.
    assert!(held >= 352, "{held} of 400");
    assert!(held < 400, "an interval that never misses says nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn scale_does_not_matter(
        first in proptest::collection::vec(1e-3_f64..1e9, 1..9),
        factors in proptest::collection::vec(0.5_f64..2.0, 9),
        power in -20_i32..20,
        less_is_better: bool,
    ) {
        // Powers of two, so that nothing is rounded.
        let scale = 2_f64.powi(power);
        let other: Vec<f64> = first.iter().zip(&factors).map(|(value, factor)| value * factor).collect();
        let scaled = |values: &[f64]| all(&values.iter().map(|value| value * scale).collect::<Vec<f64>>());
        prop_assert_eq!(
            ratio(&scaled(&first), &scaled(&other), less_is_better),
            ratio(&all(&first), &all(&other), less_is_better)
        );
    }

    #[test]
    fn equal_samples_are_equal(values in proptest::collection::vec(1e-3_f64..1e9, 1..9), less_is_better: bool) {
        let ratio = ratio(&all(&values), &all(&values), less_is_better).expect("rounds");
        prop_assert_eq!((ratio.low, ratio.median, ratio.high), (1.0, 1.0, 1.0));
        prop_assert_eq!(ratio.verdict(), Verdict::Same);
    }

    #[test]
    fn the_median_is_in_the_interval_and_the_interval_in_the_range(rounds in proptest::collection::vec(1e-2_f64..1e2, 1..12)) {
        let range = spread(&rounds).expect("rounds");
        let ones = vec![1.0; rounds.len()];
        for ratio in [ratio(&all(&rounds), &all(&ones), false), unpaired_ratio(&rounds, &ones)] {
            let ratio = ratio.expect("a ratio");
            prop_assert!(range.min <= ratio.low && ratio.low <= ratio.median);
            prop_assert!(ratio.median <= ratio.high && ratio.high <= range.max);
        }
    }

    #[test]
    fn a_fifth_slower_is_slower(seed: u64, less_is_better: bool) {
        // 5 % to each side at most: the worst round still has a ratio of 0.95 / (0.8 · 1.05) = 1.13.
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut series = |level: f64| -> Vec<f64> { (0..5).map(|_| level * random.random_range(0.95..1.05)).collect() };
        let (fast, slow) = if less_is_better { (series(0.8), series(1.0)) } else { (series(1.0), series(0.8)) };
        prop_assert_eq!(ratio(&all(&fast), &all(&slow), less_is_better).map(|ratio| ratio.verdict()), Some(Verdict::Slower));
        prop_assert_eq!(ratio(&all(&slow), &all(&fast), less_is_better).map(|ratio| ratio.verdict()), Some(Verdict::Faster));
    }
}

fn round(number: u32, figure: Option<f64>) -> Round {
    let counters =
        Counters { fetches: 900, other_faults: 100, pages_in: 1000, pages_out: 500, cpu_seconds: 2.0, ..Counters::default() };
    let measured =
        Counters { fetches: 300, other_faults: 100, pages_in: 400, pages_out: 200, cpu_seconds: 0.5, ..Counters::default() };
    let latency = Histogram { counts: vec![(100, 98), (200, u64::from(number) + 1)] };
    Round {
        number,
        place: 1,
        figure,
        wall_seconds: 10.0,
        user_seconds: 1.0,
        system_seconds: 2.0,
        peak_resident_bytes: 1 << 20,
        counters,
        measured: Some(measured),
        measured_seconds: 2.0,
        outcome: Some(Outcome { latency, ..Outcome::default() }),
        ..Round::default()
    }
}

fn target(label: &str, rounds: Vec<Round>) -> TargetResult {
    TargetResult { label: label.into(), kind: label.into(), rounds, ..TargetResult::default() }
}

fn device() -> Device {
    let point = |access, pages_per_second| DevicePoint { access, depth: 1, pages_per_second, latency: Histogram::default() };
    Device { file_bytes: 1 << 30, points: vec![point(Access::RandomRead, 1000.0), point(Access::RandomWrite, 500.0)] }
}

fn experiment(targets: Vec<TargetResult>) -> Experiment {
    let figure = Figure { name: "updates a second".into(), unit: "/s".into(), less_is_better: false };
    Experiment { workload: "random".into(), figure, targets, ..Experiment::default() }
}

#[test]
fn a_summary_of_the_good_rounds() {
    let mut broken = round(2, Some(5000.0));
    broken.wrong.push("killed".into());
    let mine = vec![round(1, Some(100.0)), round(2, Some(110.0)), round(3, Some(120.0))];
    let theirs = vec![round(1, Some(50.0)), broken, round(3, Some(40.0))];
    let mut experiment = experiment(vec![target("mine", mine), target("theirs", theirs), target("none", vec![round(1, None)])]);
    summarise(&mut experiment, Some(&device()), &|label| label == "mine");

    let [mine, theirs, none] = [0, 1, 2].map(|index| experiment.targets[index].summary.clone());
    let mine = mine.expect("a summary");
    assert_eq!(mine.figure, Spread { median: 110.0, min: 100.0, max: 120.0 });
    assert_eq!(mine.ratio, None);
    assert_eq!((mine.faults, mine.fetches, mine.fetches_per_second), (400, 300, 150.0));
    assert_eq!(mine.cpu_us_per_fault, 1250.0);
    assert_eq!((mine.cpu_seconds, mine.wall_seconds, mine.peak_resident_bytes), (3.0, 10.0, 1 << 20));
    // 200 pages a second of 1000, and 100 of 500.
    assert_eq!(mine.device_percent, Some(40.0));
    // 294 values of 100 and 9 of 200.
    assert_eq!(mine.latency.map(|latency| (latency.p50, latency.p90, latency.p99, latency.max)), Some((100, 100, 200, 200)));

    let theirs = theirs.expect("a summary");
    assert_eq!(theirs.ratio.map(|ratio| ratio.rounds), Some(vec![2.0, 3.0]), "rounds are matched by number");
    assert_eq!(theirs.device_percent, None);
    assert_eq!(none, None);
}

#[test]
fn without_a_measured_phase_the_whole_run_counts() {
    let mut whole = round(1, Some(4.0));
    whole.measured = None;
    let mut idle = round(1, Some(2.0));
    idle.measured = Some(Counters::default());
    let mut experiment = experiment(vec![target("whole", vec![whole]), target("idle", vec![idle])]);
    summarise(&mut experiment, None, &|_| true);
    let whole = experiment.targets[0].summary.clone().expect("a summary");
    assert_eq!((whole.faults, whole.fetches_per_second, whole.cpu_us_per_fault), (1000, 90.0, 2000.0));
    assert_eq!(whole.device_percent, None);
    let idle = experiment.targets[1].summary.clone().expect("a summary");
    assert_eq!((idle.faults, idle.fetches_per_second, idle.cpu_us_per_fault), (0, 0.0, 0.0));
    assert_eq!(idle.ratio.map(|ratio| ratio.median), Some(2.0));
}

#[test]
fn workloads_that_go_in_order() {
    let is = |workload: &str, words: &[&str]| {
        let arguments = words.iter().map(|word| (*word).to_string()).collect();
        goes_in_order(&Experiment { workload: workload.into(), arguments, ..Experiment::default() })
    };
    assert!(is("scan", &[]) && is("stress", &[]) && is("random", &["--run-length=512"]));
    assert!(!is("random", &["--run-length=1"]) && !is("random", &[]) && !is("kv", &[]));
}
