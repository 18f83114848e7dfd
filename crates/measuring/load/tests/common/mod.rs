//! What the tests of several workloads share.

use std::process::Output;

use farshore_load::outcome::{Event, Outcome};

/// The phases and the outcome.
pub fn told(output: &Output) -> (Vec<String>, Outcome) {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut phases = Vec::new();
    for line in text.lines() {
        match Event::read(line) {
            Some(Event::Phase { name }) => phases.push(name),
            Some(Event::Outcome(outcome)) => return (phases, *outcome),
            None => panic!("{line}"),
        }
    }
    panic!("no outcome: {output:?}");
}
