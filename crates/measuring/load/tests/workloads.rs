//! `farshore-load` as others see it: options in, lines and an exit status out.

use std::process::{Command, Output};

use farshore_load::outcome::{Event, Outcome};

/// Each workload that needs nothing but memory, small and short.
const WORKLOADS: [&str; 23] = [
    "random --size 4M --seconds 0.3 --warmup 0.1",
    "random --size 4M --seconds 0.2 --warmup 0 --run-length 512 --mode read",
    "scan --size 4M",
    "scan --size 4M --mode update --passes 5",
    "hotset --size 8M --seconds 0.2 --warmup 0.1",
    "hotset --size 4M --seconds 0.2 --warmup 0.1 --mode read --hot-pages 1",
    "gups-move --size 8M --seconds 0.4 --warmup 0.1",
    "gups-move --size 1M --seconds 0.2 --warmup 0 --zipf 0 --first-region 50",
    "phase --size 16M",
    "stress --size 4M",
    "stress --size 5000K --passes 3",
    "kmers --size 4M --seconds 0.2 --warmup 0.1",
    "kmers --size 1M --seconds 0.1 --warmup 0",
    "images --size 8M",
    "images --size 8M --change flip --passes 1",
    "grid --size 4M --seconds 0.2 --warmup 0.1",
    "tree --size 4M --seconds 0.2 --warmup 0.1",
    "tree --size 4M --seconds 0.2 --warmup 0 --mode read",
    "signals --seconds 0.2 --warmup 0.1",
    "signals --seconds 0.2 --warmup 0.1 --processes",
    "reads --size 4M --seconds 0.2 --warmup 0.1 --writers 1",
    "reads --size 4M --seconds 0.2 --warmup 0 --delay 4000 --writers 2 --in-step",
    "reads --size 1M --seconds 0.1 --warmup 0",
];

fn start(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farshore-load"));
    command.args(line.split_whitespace()).env_remove("LOAD_BALLAST");
    command
}

fn run(line: &str) -> Output {
    start(line).output().unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The names of the phases that were told of, and the outcome.
fn events(line: &str) -> (Vec<String>, Outcome) {
    let output = run(&format!("--events {line}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}: {stderr}", output.status);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let mut phases = Vec::new();
    let mut outcome = None;
    for text in stdout.lines() {
        assert!(outcome.is_none(), "{line}: after the outcome: {text}");
        match Event::read(text) {
            Some(Event::Phase { name }) => phases.push(name),
            Some(Event::Outcome(told)) => outcome = Some(*told),
            None => panic!("{line}: not an event: {text}"),
        }
    }
    (phases, outcome.unwrap_or_else(|| panic!("{line}: no outcome")))
}

fn in_order(phases: &[&str]) -> bool {
    let order = ["fill", "warm-up", "measure", "map", "reduce", "verify"];
    let places: Vec<_> = phases.iter().map(|name| order.iter().position(|known| known == name)).collect();
    places.iter().all(Option::is_some) && places.windows(2).all(|pair| pair[0] < pair[1])
}

#[test]
fn each_workload_runs_and_tells_what_it_did() {
    for line in WORKLOADS {
        for threads in [1, 3] {
            let line = format!("{line} --threads {threads}");
            let (phases, outcome) = events(&line);
            let phases: Vec<_> = phases.iter().map(String::as_str).collect();
            assert!(phases.contains(&"measure") && in_order(&phases), "{line}: {phases:?}");

            let told: Vec<_> = outcome.phases.iter().map(|phase| phase.name.as_str()).collect();
            assert!(in_order(&told), "{line}: {told:?}");
            let without_parts: Vec<_> = told.iter().copied().filter(|name| !["map", "reduce"].contains(name)).collect();
            assert_eq!(without_parts, phases, "{line}");

            assert!(line.starts_with(&outcome.workload), "{line}: {outcome:?}");
            assert!(outcome.operations > 0 && outcome.seconds > 0.0 && outcome.data_bytes >= 1 << 20, "{line}: {outcome:?}");
            assert!(outcome.wrong.is_empty() && !outcome.verified.is_empty() && !outcome.unit.is_empty(), "{line}: {outcome:?}");
            assert_eq!(outcome.timeline.operations.iter().sum::<u64>(), outcome.operations, "{line}");
            let timed = outcome.latency.total();
            assert!(timed == outcome.operations || (outcome.workload == "phase" && timed == 0), "{line}: {outcome:?}");
            let measured = outcome.phases.iter().find(|phase| phase.name == "measure");
            assert_eq!(measured.map(|phase| phase.operations), Some(outcome.operations), "{line}");
        }
    }
}

#[test]
fn operations_are_those_that_were_asked_for() {
    let (_, scan) = events("scan --size 4M --passes 7 --threads 3");
    assert_eq!(scan.operations, 7 * 1024);
    assert_eq!(scan.bytes_per_operation, 4096);
    let (_, stress) = events("stress --size 4M --passes 3 --threads 2");
    assert_eq!(stress.operations, 2 * 3 * 1024);
    let (_, images) = events("images --size 8M --passes 3 --threads 2 --change flip");
    assert_eq!((images.operations, images.bytes_per_operation), (3 * 4, 2 * 640 * 480 * 3));
    let (_, random) = events("random --size 4M --run-length 16 --seconds 0.1 --warmup 0");
    assert_eq!(random.bytes_per_operation, 16 * 4096);
    let (_, phase) = events("phase --size 16M --threads 1");
    // A quarter of the memory in pairs of 8 bytes, each mapped and reduced.
    assert_eq!(phase.operations, 2 * (4 << 20) / 8);
}

#[test]
fn a_list_is_pythons() {
    for passes in [1, 3] {
        let (phases, list) = events(&format!("list --size 4M --passes {passes} --seed 3"));
        assert_eq!(phases, ["measure", "verify"]);
        let told: Vec<_> = list.phases.iter().map(|phase| (phase.name.as_str(), phase.operations)).collect();
        assert_eq!(told, [("measure", list.operations), ("verify", 0)]);
        let elements = (4 << 20) / 40;
        assert_eq!((list.operations, list.data_bytes), ((1 + passes) * elements, elements * 40), "{list:?}");
        assert_eq!(list.timeline.operations.iter().sum::<u64>(), list.operations);
        assert!(list.seconds > 0.0 && list.wrong.is_empty() && list.phases[0].minor_faults > 0, "{list:?}");
        assert_eq!(events("list --size 4M --passes 1 --seed 3").1.checksum, list.checksum);
        assert_ne!(events("list --size 4M --passes 1 --seed 4").1.checksum, list.checksum);
    }
    let output = run("list --size 4M");
    let stdout = String::from_utf8_lossy(&output.stdout);
    for part in ["list:", "elements/s", "measure", "verified  each of 104857 elements"] {
        assert!(stdout.contains(part) && output.status.success(), "{part:?} is not in\n{stdout}");
    }
    for (line, ballast, reason) in [("list --threads 2", "0", "leave out --threads"), ("list", "10", "LOAD_BALLAST does not go")]
    {
        let output = start(line).env("LOAD_BALLAST", ballast).output().unwrap_or_else(|error| panic!("{line}: {error}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(reason), "{line}: {stderr}");
    }
    let output = start("list --size 4M").env("PATH", "/nowhere").output().unwrap_or_else(|error| panic!("{error}"));
    assert!(
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("cannot start python3"),
        "{output:?}"
    );
}

#[test]
fn the_timeline_is_marked() {
    let (_, gups) = events("gups-move --size 4M --seconds 0.4 --warmup 0");
    assert_eq!(gups.timeline.step_seconds, 0.1);
    assert!(gups.timeline.operations.len() >= 4, "{:?}", gups.timeline);
    let [(second, what)] = gups.timeline.marks.as_slice() else { panic!("{:?}", gups.timeline) };
    assert!(*second >= 0.2 && what == "the hot set moves", "{second} {what}");
    let (_, phase) = events("phase --size 4M");
    let [(second, what)] = phase.timeline.marks.as_slice() else { panic!("{:?}", phase.timeline) };
    assert!(*second > 0.0 && *second < phase.seconds && what == "reduce begins", "{second} {what}");
}

#[test]
fn faults_of_the_measured_phase_are_told() {
    let (_, stress) = events("stress --size 16M --threads 2 --passes 1");
    let Some(measure) = stress.phases.iter().find(|phase| phase.name == "measure") else { panic!("{stress:?}") };
    // All memory is touched for the first time in it, by two threads; huge pages may make few faults of that.
    assert!(measure.minor_faults > 0, "{measure:?}");
    assert!(measure.faults_of_worst_thread > 0, "{measure:?}");
    assert!(measure.faults_of_worst_thread <= measure.minor_faults + measure.major_faults, "{measure:?}");
}

#[test]
fn the_same_seed_gives_the_same_checksum() {
    for line in [
        "scan --size 4M --mode update",
        "random --mode read --size 4M --seconds 0.05 --warmup 0",
        "phase --size 4M",
        "stress --size 4M",
        "images --size 8M",
        "images --size 8M --change flip",
        "grid --size 4M --seconds 0.05 --warmup 0",
        "tree --mode read --size 4M --seconds 0.05 --warmup 0",
    ] {
        let checksum = |more: &str| events(&format!("{line} {more}")).1.checksum;
        let first = checksum("--seed 5");
        assert!(!first.is_empty(), "{line}");
        assert_eq!(checksum("--seed 5"), first, "{line}");
        assert_ne!(checksum("--seed 6"), first, "{line}");
        if !line.starts_with("phase") {
            assert_eq!(checksum("--seed 5 --threads 3"), first, "{line}");
        }
    }
}

#[test]
fn more_threads_than_processors_work() {
    let (_, outcome) = events("random --size 4M --threads 200 --seconds 0.2 --warmup 0.05");
    assert!(outcome.operations > 0);
    let (_, outcome) = events("phase --size 4M --threads 200");
    assert!(outcome.wrong.is_empty());
}

#[test]
fn without_events_there_is_a_summary() {
    let output = run("scan --size 4M");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for part in ["scan:", "pages/s", "MiB/s", "p99.9", "fill", "measure", "verified  the sum of each of 3 passes"] {
        assert!(stdout.contains(part), "{part:?} is not in\n{stdout}");
    }
    assert!(!stdout.contains('{'), "{stdout}");
}

#[test]
fn wrong_options_are_refused() {
    for (line, reason) in [
        ("", "Usage"),
        ("nonsense", "nonsense"),
        ("random --size 1000K", "at least 1M"),
        ("scan --size 0", "at least 1M"),
        ("random --seconds 0", "--seconds 0 is too short"),
        ("random --run-length 513", "513"),
        ("scan --threads 0", "0"),
        ("scan --threads 1025", "1025"),
        ("stress --size 1M --threads 1024", "256 pages"),
        ("scan --passes x", "x"),
    ] {
        let output = run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(reason), "{line}: {stderr}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn what_cannot_run_says_why() {
    for (line, reason) in [
        ("scan --size 4000000T", "give less --size"),
        ("random --size 1M --run-length 512", "--run-length 512 is more than the 256 pages of 1M"),
        ("gups-move --size 4M --first-region 100", "--first-region 100 leaves no page"),
        ("images --size 8M --threads 7", "give more --size or fewer --threads"),
        ("phase --size 1M --threads 200", "give more --size or fewer --threads"),
    ] {
        let output = run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {stderr}");
        assert!(stderr.contains(reason) && stderr.lines().count() == 1, "{line}: {stderr}");
    }
}

#[test]
fn ballast_is_checked_and_takes_part() {
    for wrong in ["x", "-1", "100", "20%", ""] {
        let output = start("scan --size 1M").env("LOAD_BALLAST", wrong).output();
        let output = output.unwrap_or_else(|error| panic!("{wrong:?}: {error}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains("from 0 to 95"), "{wrong:?}: {stderr}");
    }
    let line = "--events random --size 1M --seconds 0.4 --warmup 0";
    let output = start(line).env("LOAD_BALLAST", "80").output().unwrap_or_else(|error| panic!("{line}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let Some(Event::Outcome(outcome)) = stdout.lines().last().and_then(Event::read) else { panic!("{stdout}") };
    // The pauses are in the latency of those operations that ran into them.
    assert!(outcome.latency.max() > Some(30_000_000), "{:?}", outcome.latency);
}

#[test]
fn help_has_examples_and_the_environment() {
    let help = run("--help");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success());
    for part in ["Examples:", "LOAD_BALLAST", "gups-move", "--events"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_noticed() {
    use std::process::Stdio;
    let child = start("--events scan --size 1M --passes 1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{error}"));
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot write to standard output"), "{stderr}");
}
