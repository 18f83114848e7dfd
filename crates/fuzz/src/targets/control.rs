//! What a client sends on the control socket. Compared with answers that are made from a general JSON reader, line by
//! line, and with the same bytes cut into other pieces.

use super::structured;
use farshore_config::control::{Conversation, Setting, Target};
use farshore_config::stats::Stats;
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
    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        self.told.lock().expect("one thread").push((key.into(), value.into()));
        Setting::read(key, value).map(|_| ())
    }
}

/// An answer, in kinds.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    Counters,
    Done,
    Error,
}

/// Pieces of lines. Each byte of an input in this form is one.
const PIECES: &[&str] = &[
    "{\"op\":\"stat\"}\n",
    "{\"op\":\"set\",\"key\":\"memory\",\"value\":\"64M\"}\n",
    "{\"op\":\"set\",\"key\":\"memory\",\"value\":\"",
    "{\"op\":\"set\",\"key\":\"policy\",\"value\":\"fifo\"}\n",
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
    assert_eq!(answer, serde_json::json!({ "ok": true }));
    Answer::Done
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
            Some(None) => Answer::Counters,
            Some(Some((key, value))) => {
                told.push((key.clone(), value.clone()));
                let size = (key == "memory").then(|| value.parse::<farshore_config::Size>());
                if matches!(size, Some(Ok(_))) { Answer::Done } else { Answer::Error }
            }
            None => Answer::Error,
        });
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

/// `Some(None)`: the counters are asked for; `Some(Some((key, value)))`: a setting; `None`: neither.
fn request(pairs: &[(String, Value)]) -> Option<Option<(String, String)>> {
    let member = |name: &str| {
        let mut found = pairs.iter().filter(|(key, _)| key == name);
        let one = found.next()?.1.as_str();
        if found.next().is_some() { None } else { one }
    };
    match (member("op")?, pairs.len()) {
        ("stat", 1) => Some(None),
        ("set", 3) => Some(Some((member("key")?.to_owned(), member("value")?.to_owned()))),
        _ => None,
    }
}
