//! The counters, as the command reads them from a program's answer.

use super::assert_one_line;
use super::structured::Words;
use crate::bytes::Bytes;
use farshore_config::stats::{SCHEMA, Space, Stats};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// Fields and values of counters, some of which do not exist. The fields of each part stand among them.
static WORDS: LazyLock<Words> = LazyLock::new(|| {
    let counters = Stats { spaces: vec![Space::default()], ..Stats::default() };
    let mut keys = vec!["later".to_owned(), "a\nb".to_owned()];
    collect_keys(&serde_json::to_value(counters).unwrap_or_default(), &mut keys);
    Words::new(keys, &["", "sort", "upcall", "dir:/x", "a\n\"b\\"])
});

fn collect_keys(value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            keys.push(key.clone());
            collect_keys(value, keys);
        }),
        Value::Array(list) => list.iter().for_each(|value| collect_keys(value, keys)),
        _ => {}
    }
}

/// Reads counters with the fields that the input says. (Text is not tried: to read JSON is the business of a crate that we do
/// not test, and its many places would draw the fuzzer away from ours.)
pub fn run(input: &[u8]) {
    let mut fields = Map::new();
    WORDS.change(&mut Bytes(input), &mut fields);
    match Stats::from_json(&Value::Object(fields).to_string()) {
        Ok(stats) => {
            assert!(stats.schema <= SCHEMA);
            let line = stats.to_json_line();
            assert!(!line.contains('\n'));
            assert_eq!(Stats::from_json(&line).as_ref(), Ok(&stats));
            assert_eq!(Stats::from_json(&stats.to_json()), Ok(stats));
        }
        Err(error) => assert_one_line(&error),
    }
}
