//! `farshore-load pagerank`, as it is called: graphs in memory and in files.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::told;
use farshore_load::outcome::{MEASURE, Outcome};
use farshore_load::workload::ENTRIES;

fn load(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_farshore-load");
    let command = Command::new("timeout").arg("120").arg(program).args(["--events", "pagerank"]).args(arguments).output();
    command.unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn good(arguments: &[&str]) -> Outcome {
    let output = load(arguments);
    assert!(output.status.success(), "{output:?}");
    let (_, outcome) = told(&output);
    assert_eq!(outcome.wrong, [""; 0]);
    outcome
}

/// What is said on stderr: one line.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = load(arguments);
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(status == 2 || said.lines().count() == 1, "{said}");
    said
}

#[test]
fn an_outcome_is_the_same_for_any_number_of_threads() {
    let output = load(&["--scale", "13", "--threads", "3", "--iterations", "4"]);
    let (phases, outcome) = told(&output);
    assert!(output.status.success());
    assert_eq!(phases, ["fill", MEASURE, "verify"]);
    assert_eq!((outcome.workload.as_str(), outcome.unit.as_str(), outcome.bytes_per_operation), ("pagerank", "edge", 4));
    assert!(outcome.seconds > 0.0 && !outcome.checksum.is_empty() && !outcome.verified.is_empty());
    // Of 2^13 * 16 edges some are loops or drawn twice; each of the others is gone through in both directions.
    let entries = outcome.operations / 4;
    assert!(entries < 2 << 17 && entries > 3 << 16, "{entries}");
    assert_eq!(outcome.data_bytes, 4 * entries + 8 * ((1 << 13) + 1) + (8 << 13));
    assert_eq!(outcome.timeline.operations.iter().sum::<u64>(), outcome.operations);
    let names: Vec<&str> = outcome.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, phases);
    assert_eq!(outcome.phases[1].operations, outcome.operations);
    for threads in ["1", "2", "8"] {
        let other = good(&["--scale", "13", "--threads", threads, "--iterations", "4"]);
        assert_eq!((other.checksum, other.operations), (outcome.checksum.clone(), outcome.operations));
    }
    assert_ne!(good(&["--scale", "13", "--seed", "2", "--iterations", "4"]).checksum, outcome.checksum);
    assert_ne!(good(&["--scale", "13", "--iterations", "3"]).checksum, outcome.checksum);
}

#[test]
fn entries_are_as_they_were_counted() {
    for (scale, entries) in ENTRIES.iter().filter(|(scale, _)| *scale <= 17) {
        assert_eq!(good(&["--scale", &scale.to_string(), "--iterations", "1"]).operations, *entries, "{scale}");
    }
}

#[test]
fn the_graph_is_the_largest_that_fits() {
    // 144 bytes a vertex at most: 2.25 MiB at scale 14, 4.5 MiB at scale 15.
    let outcome = good(&["--size", "4M", "--iterations", "1"]);
    assert_eq!(outcome.data_bytes, good(&["--scale", "14", "--iterations", "1"]).data_bytes);
    assert!(outcome.data_bytes <= 4 << 20, "{}", outcome.data_bytes);
    assert!(refused(&["--size", "1K"], 1).contains("--size"));
}

#[test]
fn a_graph_is_made_once_and_read_then() {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = directory.path().join("graph");
    let file = path.to_string_lossy();
    let options = ["--scale", "11", "--graph", &file];
    let made = load(&[&options[..], &["--only-graph"]].concat());
    assert!(made.status.success(), "{made:?}");
    let (phases, outcome) = told(&made);
    assert_eq!(phases, ["fill"]);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.data_bytes + 64, bytes.len() as u64);
    let checksum = good(&["--scale", "11"]).checksum;
    assert_eq!(good(&options).checksum, checksum);
    assert_eq!(good(&[&options[..], &["--threads", "2"]].concat()).checksum, checksum);
    assert_eq!(fs::read(&path).ok(), Some(bytes), "it is left as it was");
    assert!(refused(&["--scale", "12", "--graph", &file], 1).contains("scale 12"));
    assert!(refused(&["--scale", "11", "--seed", "5", "--graph", &file], 1).contains("seed 5"));
    refused(&["--scale", "11", "--only-graph"], 2);
}

#[test]
fn a_file_that_is_no_graph_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = directory.path().join("graph");
    let file = path.to_string_lossy();
    let options = ["--scale", "8", "--graph", &file];
    good(&options);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{error}"));
    let mut changed = bytes.clone();
    changed[4000] ^= 1;
    for (bytes, wanted) in
        [(&bytes[..bytes.len() / 2], "bytes"), (&changed, "damaged"), (b"#!/bin/sh\n", "graph"), (b"", "header")]
    {
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("{error}"));
        let said = refused(&options, 1);
        assert!(said.contains(&*file) && said.contains(wanted), "{said}");
        assert_eq!(fs::read(&path).ok().as_deref(), Some(bytes));
    }
    let said = refused(&["--scale", "8", "--graph", "/nowhere/at/all/graph"], 1);
    assert!(said.contains("/nowhere/at/all/graph"), "{said}");
    assert!(!Path::new("/nowhere").exists());
}
