//! A config file.

use super::options::{WORDS, assert_survives, object_as_toml};
use super::{assert_one_line, structured, text};
use farshore_config::{Partial, Size, SwapSpec};
use serde_json::Map;
use std::path::Path;

/// Reads the input as a config file, or as its fields.
pub fn run(input: &[u8]) {
    let text = match structured::of(input) {
        Some(mut bytes) => {
            let mut fields = Map::new();
            WORDS.change(&mut bytes, &mut fields);
            object_as_toml(&fields).into()
        }
        None => text(input),
    };
    let partial = match Partial::from_toml(&text, Path::new("fuzz.toml")) {
        Ok(partial) => partial,
        Err(error) => {
            assert_one_line(&error);
            let place = error.to_string();
            let line =
                place.strip_prefix("fuzz.toml:").and_then(|rest| rest.split(':').next()).and_then(|n| n.parse::<usize>().ok());
            let lines = text.matches('\n').count() + 1;
            assert!(line.is_some_and(|line| (1..=lines).contains(&line)), "a mistake in none of {lines} lines: {place}");
            return;
        }
    };
    // A layer on top of itself, or of nothing, is itself.
    assert_eq!(partial.clone().merge(partial.clone()), partial);
    assert_eq!(Partial::default().merge(partial.clone()), partial);
    assert_eq!(partial.clone().merge(Partial::default()), partial);
    // The least that is missing: without a size there are no options, without a space it would be the environment's.
    let least = Partial { memory: Some(Size::mib(64)), swap: Some(vec![SwapSpec::Dir("/x".into())]), ..Partial::default() };
    let full = least.merge(partial.clone());
    match full.finish() {
        Ok(options) => assert_survives(&options),
        Err(error) => assert_one_line(&error),
    }
    if partial.memory.is_none() && partial.slowdown.is_none() && partial.budget.is_none() {
        assert!(partial.finish().is_err());
    }
}
