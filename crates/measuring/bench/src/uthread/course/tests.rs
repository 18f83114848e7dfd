use std::collections::VecDeque;

use clap::Parser;

use super::*;
use crate::args::What as Asked;
use crate::result::{Spread, Summary, TargetResult};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn course(line: &str) -> Result<Course, String> {
    let line = Line::try_parse_from(["x", "uthread"].into_iter().chain(line.split_whitespace()));
    let bench = line.unwrap_or_else(|error| panic!("{error}")).bench;
    let Some(Asked::Uthread(uthread)) = &bench.what else { panic!("something else") };
    // Cores are this machine's.
    let uthread = UthreadArgs { cores: 0, ..uthread.as_ref().clone() };
    Course::new(&uthread, &bench, "serve".into())
}

/// Answers each comparison with the figures that the modes have in it.
struct Made {
    figures: VecDeque<Vec<(&'static str, f64)>>,
    names: Vec<String>,
    rounds: Vec<Rounds>,
    labels: Vec<Vec<String>>,
    loads: Vec<Load>,
    memory: Vec<u64>,
    said: Vec<String>,
}

impl Made {
    fn new(figures: &[&[(&'static str, f64)]]) -> Made {
        let figures = figures.iter().map(|figures| figures.to_vec()).collect();
        Made { figures, names: vec![], rounds: vec![], labels: vec![], loads: vec![], memory: vec![], said: vec![] }
    }
}

impl Maker for Made {
    fn make(&mut self, experiment: &Experiment, rounds: Rounds) -> Result<Option<result::Experiment>, Failure> {
        let Subject::Served(comparison) = &experiment.subject else { panic!("something else") };
        self.names.push(experiment.name.clone());
        self.rounds.push(rounds);
        self.labels.push(crate::targets::spec::labels(&experiment.targets));
        self.loads.push(comparison.load);
        self.memory.push(experiment.memory_bytes);
        let Some(figures) = self.figures.pop_front() else { return Ok(None) };
        let target = |(label, median): &(&str, f64)| TargetResult {
            label: (*label).into(),
            summary: Some(Summary { figure: Spread { median: *median, min: 0.0, max: 0.0 }, ..Summary::default() }),
            ..TargetResult::default()
        };
        Ok(Some(result::Experiment { targets: figures.iter().map(target).collect(), ..Default::default() }))
    }

    fn say(&mut self, line: &str) {
        self.said.push(line.into());
    }
}

#[test]
fn the_best_number_goes_through_all_phases_and_the_load_follows_from_the_reference() {
    let course = course("array --mode yield:1 --mode busy:1 --mode block:8,16 --data 100M --share 20%").unwrap();
    let choice = [("block:8", 5000.0), ("block:16", 7000.0)];
    let first = [("yield:1", 100_000.0), ("busy:1", 20_000.0), ("block:16", 8000.0)];
    let mut made = Made::new(&[&choice, &first, &[], &[], &[]]);
    course.run(&mut made).unwrap();
    assert_eq!(made.rounds, [Rounds::One, Rounds::All, Rounds::All, Rounds::All, Rounds::All]);
    assert_eq!(made.labels[0], ["block:8", "block:16"]);
    assert_eq!(made.labels[1], ["yield:1", "busy:1", "block:16"]);
    assert_eq!(made.labels[3], ["yield:1"], "the floor");
    assert_eq!(made.labels[4], ["yield:1", "block:16"]);
    let (closed, open) = (Load::Closed(256), Load::Open(16_000.0));
    assert_eq!(made.loads, [closed, closed, open, open, closed], "80 % of busy's");
    assert!(made.memory[1] == 20 << 20 && made.memory[3..].iter().all(|&memory| memory > 100 << 20), "{:?}", made.memory);
    assert!(made.said[0].contains("block:16 is the best") && made.said[1].contains("16.0 k/s"), "{:?}", made.said);
    assert!(
        made.names[1].starts_with("uthread array, 100M, 20M local, delay:10us")
            && made.names[2].contains("80 % of the load of busy")
    );
}

#[test]
fn the_capacity_is_looked_for_last() {
    let line =
        "kv --mode yield:1 --mode memcached:1,2 --mode memcached-swap:4 --phases capacity --rates 500..9000 --target p99.9=2ms";
    let course = course(line).unwrap();
    assert!(course.has_memcached());
    let mut made = Made::new(&[&[("memcached:1", 5.0), ("memcached:2", 7.0)], &[]]);
    course.run(&mut made).unwrap();
    assert_eq!(made.labels, [vec!["memcached:1", "memcached:2"], vec!["yield:1", "memcached:2", "memcached-swap:4"]]);
    assert_eq!(made.loads[1], Load::Search("500..9000".parse().unwrap(), "p99.9=2ms".parse().unwrap()));
    assert!(made.names[1].ends_with("rates 500..9000"), "{}", made.names[1]);
    let figure = course.capacity(&[]).figure();
    assert!(!figure.less_is_better && figure.name.contains("p99.9 of at most 2ms"), "{figure:?}");
}

#[test]
fn modes_that_differ_in_dispatch_are_two() {
    let course = course("array --mode yield:2 --mode yield-rr:2 --phases throughput,latency").unwrap();
    let mut made = Made::new(&[&[("yield:2", 100.0), ("yield-rr:2", 200.0)], &[]]);
    course.run(&mut made).unwrap();
    assert_eq!(made.labels, [["yield:2", "yield-rr:2"]; 2]);
    assert_eq!(made.loads[1], Load::Open(80.0), "the first one's is the reference");
}

#[test]
fn linux_swap_is_on_the_disk_or_on_zram() {
    let kind = |text: &str| target(text.parse::<Modes>().unwrap().0[0], &["delay:10us".into()]).kind();
    assert_eq!(["yield:1", "swap:8", "zram:8"].map(kind), ["farshore", "linux-swap", "zram"]);
}

#[test]
fn what_could_not_be_measured_is_left_out() {
    let course = course("kv --mode yield:1 --mode swap:8,16 --phases throughput").unwrap();
    let mut made = Made::new(&[&[], &[("yield:1", 1.0)]]);
    course.run(&mut made).unwrap();
    assert_eq!(made.labels[1], ["yield:1"]);
    assert!(made.said[0].contains("swap:8, swap:16"), "{:?}", made.said);
    // Its load cannot be had from one that was not measured.
    let course = self::course("array --mode yield:1 --mode busy:1").unwrap();
    let mut made = Made::new(&[&[("yield:1", 1.0)]]);
    assert!(course.run(&mut made).is_err_and(|why| matches!(why, Failure::Failed(why) if why.contains("busy"))));
    // The user ends it.
    let mut made = Made::new(&[]);
    assert_eq!((course.run(&mut made), made.names.len()), (Ok(()), 1));
}

#[test]
fn the_reference_is_busy_or_on_a_disk_block() {
    let reference = |line: &str| course(line).map(|course| course.reference);
    assert_eq!(reference("array"), Ok(Wait::Busy));
    assert_eq!(reference("array --swap dir:/var/tmp"), Ok(Wait::Block));
    assert_eq!(reference("array --mode yield:1"), Ok(Wait::Yield));
    assert_eq!(reference("array --mode yield:1 --mode swap:4 --reference swap"), Ok(Wait::Swap));
    assert!(reference("array --mode yield:1 --reference busy").is_err());
}

#[test]
fn the_latency_of_an_ordered_store_is_that_of_its_gets() {
    let name = |line| course(line).unwrap().latency(&[], 1000.0).figure().name;
    assert!(name("scan").contains("p99.9 latency of GETs") && !name("kv").contains("GET"));
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (line, part) in [
        ("array --mode yield:1 --mode yield:1,2", "yield:1 is given twice"),
        ("array --against native", "--mode"),
        ("array --memory 5M", "--share"),
        ("array --sweep memory", "--sweep"),
        ("array --phases latency", "--rate"),
        ("array --phases floor", "--rate"),
        ("kv --data 100 --value-size 1024", "--data"),
        ("scan --data 100 --value-size 1024", "--data"),
        ("scan --value-size 1020", "--value-size 1020"),
        ("array --mode yield:1 --mode memcached:2", "memcached:2 is for kv"),
        ("scan --mode yield:1 --mode memcached:2", "memcached:2 is for kv"),
    ] {
        assert!(course(line).is_err_and(|why| why.contains(part) && why.lines().count() == 1), "{line}");
    }
    assert!(course("array --phases latency --rate 1000").is_ok());
    assert!(course("array").unwrap().needs().len() == 3);
}

#[test]
fn a_load_over_local_memory_is_a_share_of_what_all_local_take() {
    let line = "kv --mode memcached:2 --mode memcached-zram:2 --data 100M --reference memcached --transport tcp";
    let course = course(line).unwrap();
    let mut made = Made::new(&[&[("memcached:2", 20_000.0)], &[], &[]]);
    let marked = std::cell::RefCell::new(Vec::new());
    let mark = |experiment: Experiment, at: Option<f64>| {
        marked.borrow_mut().push(at);
        experiment
    };
    course.over_local_under(&mut made, &[30.0, 100.0], 50.0, &mark).unwrap();
    assert_eq!(marked.into_inner(), [None, Some(30.0), Some(100.0)]);
    assert_eq!(made.labels[0], ["memcached:2"], "of all local, Farshore's alone");
    assert_eq!(made.labels[1], ["memcached:2", "memcached-zram:2"]);
    assert_eq!(made.loads, [Load::Closed(256), Load::Open(10_000.0), Load::Open(10_000.0)]);
    assert!(made.memory[0] > 200 << 20 && made.memory[1] == 30 << 20 && made.memory[2] > 200 << 20, "{:?}", made.memory);
    assert!(course.has_memcached());
}
