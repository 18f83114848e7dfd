//! The options, as the library reads them from its environment.

use super::structured::{self, Words};
use super::{assert_one_line, text};
use farshore_config::{MEMORY_MIN, Options, Partial, Size, SwapSpec};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

/// Fields and values of options, some of which do not exist.
pub static WORDS: LazyLock<Words> = LazyLock::new(|| {
    Words::new(plain().keys().map(String::as_str).chain(["ledger", "memroy", "a\nb"]).map(str::to_owned), TEXTS)
});

const TEXTS: &[&str] = &[
    "64M",
    "4M",
    "4194303",
    "1.5G",
    "4K",
    "4095",
    "128K",
    "16777215T",
    "10us",
    "500ms",
    "584y",
    "dir:/x",
    "dir:a\n\"b\\",
    "file:/a,size=1G",
    "file:/b,size=3,size=7",
    "ram",
    "ram,size=1G",
    "ram:zstd",
    "delay:10us",
    "dev:/dev/x",
    "redis://a:7",
    "rediss://a",
    "upcall",
    "poll",
    "second-chance",
    "fifo",
    "fifo,a=1",
    "sequential",
    "none",
    "-",
    "",
    "/tmp/s",
    "relative",
    "\u{7f}\u{85}\u{1f600}",
];

/// The fields of options that are accepted.
fn plain() -> Map<String, Value> {
    match serde_json::to_value(Options::new(Size::mib(64), SwapSpec::Dir("/x".into()))) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("options are no object: {other:?}"),
    }
}

/// Reads the input as the JSON of `FARSHORE_OPTIONS`, or as changes to valid ones.
pub fn run(input: &[u8]) {
    let read = match structured::of(input) {
        Some(mut bytes) => {
            let mut fields = plain();
            WORDS.change(&mut bytes, &mut fields);
            Options::from_json(&Value::Object(fields).to_string())
        }
        None => Options::from_json(&text(input)),
    };
    match read {
        Ok(options) => assert_survives(&options),
        Err(error) => assert_one_line(&error),
    }
}

/// Valid options keep their limits, and are the same after a way through JSON, and through a config file.
pub fn assert_survives(options: &Options) {
    assert!(options.memory >= MEMORY_MIN && options.threshold >= Size::kib(4) && !options.swap.is_empty());
    for (number, range) in [(options.evictors, 1..=16), (options.batch, 8..=256), (options.writes, 1..=4)] {
        assert!(number.is_none_or(|n| range.contains(&n)));
    }
    assert_eq!(options.validate(), Ok(()));
    let json = options.to_json();
    assert!(!json.contains('\n'), "an environment variable of several lines: {json:?}");
    assert_eq!(Options::from_json(&json).as_ref(), Ok(options));
    let file = as_toml(&json);
    let read = Partial::from_toml(&file, Path::new("fuzz.toml")).and_then(Partial::finish);
    let mut read = read.unwrap_or_else(|error| panic!("{error}\n{file}"));
    // The file for the counters becomes absolute.
    assert_eq!(read.stats.is_some(), options.stats.is_some());
    read.stats.clone_from(&options.stats);
    (read.library, read.followed, read.family) = (options.library.clone(), options.followed, options.family.clone());
    (read.memory_merge, read.seat, read.monitor) = (options.memory_merge, options.seat, options.monitor);
    assert_eq!(&read, options, "{file}");
}

/// Options that a config file has not: they are between a program and those that it starts.
const NOT_IN_FILES: [&str; 6] = ["library", "followed", "family", "memory_merge", "seat", "monitor"];

/// A config file that says the same as this JSON object.
fn as_toml(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(Value::Object(mut options)) => {
            options.retain(|key, _| !NOT_IN_FILES.contains(&key.as_str()));
            // A limit that is chosen has a most; what the limit is cannot be said too.
            if options.get("slowdown").is_some_and(|it| !it.is_null())
                && let Some(most) = options.remove("memory")
            {
                options.insert("memory_max".into(), most);
            }
            object_as_toml(&options)
        }
        _ => panic!("options are no object: {json}"),
    }
}

/// A config file with these fields, but for those that are null.
pub fn object_as_toml(object: &Map<String, Value>) -> String {
    let mut file = String::new();
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        // As on the command line: `io-timeout`.
        let _ = writeln!(file, "{} = {}", key.replace('_', "-"), value_as_toml(value));
    }
    file
}

fn value_as_toml(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let escaped = text.chars().fold(String::new(), |mut escaped, c| {
                let _ = match c {
                    '"' | '\\' => write!(escaped, "\\{c}"),
                    c if c.is_control() => write!(escaped, "\\u{:04X}", u32::from(c)),
                    c => write!(escaped, "{c}"),
                };
                escaped
            });
            format!("\"{escaped}\"")
        }
        Value::Array(list) => format!("[{}]", list.iter().map(value_as_toml).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{key} = {}", value_as_toml(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
