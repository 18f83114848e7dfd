//! What a client sends on the control socket. Compared with answers that are made from a general JSON reader, line by
//! line, and with the same bytes cut into other pieces.

use super::structured;
use farshore_config::control::{Change, Conversation, Set, Setting, Target};
use farshore_config::stats::Stats;
use farshore_config::{POLICIES, PREFETCHERS};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::sync::{LazyLock, Mutex};

/// Longest line here, in bytes: short, so that inputs reach it.
const LIMIT: usize = 100;

/// A program that remembers what it was told.
#[derive(Default)]
struct Program {
    told: Mutex<Vec<(String, String)>>,
}

/// The answer with its counters, which are always the same.
static COUNTERS: LazyLock<String> = LazyLock::new(|| Program::default().stats().to_json_line() + "\n");

impl Target for Program {
    fn stats(&self) -> Stats {
        Stats { pid: 4242, program: "a \"b\"\n".into(), ..Stats::default() }
    }
    fn set(&self, key: &str, value: &str) -> Result<Set, String> {
        self.told.lock().expect("one thread").push((key.into(), value.into()));
        // A space comes as the change of as many bytes as its spec has.
        Setting::read(key, value).map(|setting| match setting {
            Setting::AddSwap(_) => Set::Begun(value.len() as u64),
            _ => Set::Done,
        })
    }
    fn change(&self, id: u64) -> Result<Change, String> {
        match id % 3 {
            0 => Ok(Change::Done),
            1 => Ok(Change::UnderWay(id)),
            _ => Err(format!("change {id} has failed")),
        }
    }
}

/// An answer, in kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Counters,
    Done,
    /// As a change of this number.
    Begun(u64),
    Changed,
    /// So many per cent.
    UnderWay(u64),
    Error,
}

/// Pieces of lines. Each byte of an input in this form is one.
const PIECES: &[&str] = &[
    "{\"op\":\"stat\"}\n",
    "{\"op\":\"set\",\"key\":\"memory\",\"value\":\"64M\"}\n",
    "{\"op\":\"set\",\"key\":\"memory\",\"value\":\"",
    "{\"op\":\"set\",\"key\":\"policy\",\"value\":\"fifo\"}\n",
    "{\"op\":\"set\",\"key\":\"swap+\",\"value\":\"dir:/",
    "{\"op\":\"set\",\"key\":\"swap-\",\"value\":\"file:/x,size=",
    "{\"op\":\"change\",\"id\":",
    "\"}\n",
    "\n",
    " ",
    "\t",
    "\r",
    "1",
    "G",
    "\\n",
    "\\u0031",
    "[\"stat\"]",
    "null",
    "{\"op\":",
    "\"key\":",
    ",",
    "}",
    "{\"op\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "{\"op\":\"set\",\"key\":\"prefetch\",\"value\":\"lru\"}\n",
];

/// Sends the input, or the pieces that it says, cut in several ways.
pub fn run(input: &[u8]) {
    let pieces = structured::of(input).map(|bytes| {
        let text = bytes.0.iter().map(|&byte| PIECES[usize::from(byte) % PIECES.len()]);
        text.collect::<String>().into_bytes()
    });
    let input = pieces.as_deref().unwrap_or(input);
    let expected = expected(input);
    // All at once, and in pieces of 1 to 40 bytes, by a number that depends on the input.
    let odd = input.iter().fold(7_usize, |sum, &byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte))) % 40 + 1;
    for piece in [usize::MAX, odd] {
        assert_eq!(talk(input, piece), expected, "in pieces of {piece}");
    }
}

/// What was answered, what the program was told, and whether nothing more is read.
type Outcome = (Vec<Answer>, Vec<(String, String)>, bool);

fn talk(input: &[u8], piece: usize) -> Outcome {
    let program = Program::default();
    let mut talk = Conversation::new(LIMIT);
    let mut answers = Vec::new();
    for part in input.chunks(piece.min(input.len().max(1))) {
        talk.take(part);
        while let Some(line) = talk.answer(&program) {
            answers.push(kind(&line));
        }
        if talk.ended() {
            break;
        }
    }
    (answers, program.told.into_inner().expect("one thread"), talk.ended())
}

fn kind(line: &str) -> Answer {
    assert_eq!(line.find('\n'), Some(line.len() - 1), "an answer is one line: {line:?}");
    if line == *COUNTERS {
        return Answer::Counters;
    }
    let answer: Value = serde_json::from_str(line).unwrap_or_else(|why| panic!("an answer is not JSON ({why}): {line:?}"));
    if let Some(why) = answer.get("error") {
        assert!(why.as_str().is_some_and(|why| !why.is_empty()), "an error says nothing: {line:?}");
        return Answer::Error;
    }
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let (json, kind) = match (number("change"), number("percent")) {
        (Some(id), _) => (serde_json::json!({ "ok": true, "change": id }), Answer::Begun(id)),
        (None, Some(percent)) => (serde_json::json!({ "done": false, "percent": percent }), Answer::UnderWay(percent)),
        (None, None) if answer.get("done").is_some() => (serde_json::json!({ "done": true }), Answer::Changed),
        (None, None) => (serde_json::json!({ "ok": true }), Answer::Done),
    };
    assert_eq!(answer, json);
    kind
}

/// What the documents say to these bytes.
fn expected(input: &[u8]) -> Outcome {
    let (mut answers, mut told) = (Vec::new(), Vec::new());
    let mut rest = input;
    loop {
        let end = rest.iter().position(|&byte| byte == b'\n');
        if end.unwrap_or(rest.len()) > LIMIT {
            answers.push(Answer::Error);
            return (answers, told, true);
        }
        let Some(end) = end else { return (answers, told, false) };
        let pairs = serde_json::from_slice::<Pairs>(&rest[..end]).map(|pairs| pairs.0).unwrap_or_default();
        rest = &rest[end + 1..];
        answers.push(match request(&pairs) {
            Some(Asked::Counters) => Answer::Counters,
            Some(Asked::Setting(key, value)) => {
                told.push((key.clone(), value.clone()));
                setting(&key, &value)
            }
            Some(Asked::Change(id)) => match id % 3 {
                0 => Answer::Changed,
                1 => Answer::UnderWay(id),
                _ => Answer::Error,
            },
            None => Answer::Error,
        });
    }
}

/// The answer to a setting.
fn setting(key: &str, value: &str) -> Answer {
    let size = |text: &str| text.parse::<farshore_config::Size>().is_ok();
    // What can be used in this version, by absolute paths.
    let by_path = |path: &str| path.starts_with('/');
    let in_ram = |text: &str| match text.split_once(",size=") {
        None => matches!(text, "ram" | "ram:lz4" | "ram:zstd"),
        Some((kind, bytes)) => matches!(kind, "ram" | "ram:lz4" | "ram:zstd") && size(bytes),
    };
    let is_spec = match value.split_once(':') {
        Some(("dir", path)) => by_path(path),
        Some(("file", rest)) => match rest.rsplit_once(",size=") {
            None => by_path(rest),
            Some((path, bytes)) => by_path(path) && size(bytes),
        },
        Some(("delay", rest)) => rest.parse::<farshore_config::Delay>().is_ok(),
        _ => in_ram(value),
    };
    match key {
        "memory" if size(value) => Answer::Done,
        "swap+" if is_spec => Answer::Begun(value.len() as u64),
        "swap-" if is_spec => Answer::Done,
        "policy" if POLICIES.iter().any(|(name, _)| *name == value.trim()) => Answer::Done,
        "prefetch" if PREFETCHERS.iter().any(|(name, _)| *name == value.trim()) => Answer::Done,
        _ => Answer::Error,
    }
}

/// The members of a JSON object, in order, with those that come twice.
#[derive(Default)]
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Pairs, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Pairs;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(Members)
    }
}

/// What a request asks for.
enum Asked {
    Counters,
    Setting(String, String),
    Change(u64),
}

fn request(pairs: &[(String, Value)]) -> Option<Asked> {
    let member = |name: &str| {
        let mut found = pairs.iter().filter(|(key, _)| key == name);
        let one = &found.next()?.1;
        if found.next().is_some() { None } else { Some(one) }
    };
    let text = |name: &str| member(name)?.as_str().map(str::to_owned);
    match (text("op")?.as_str(), pairs.len()) {
        ("stat", 1) => Some(Asked::Counters),
        ("set", 3) => Some(Asked::Setting(text("key")?, text("value")?)),
        ("change", 2) => Some(Asked::Change(member("id")?.as_u64()?)),
        _ => None,
    }
}
