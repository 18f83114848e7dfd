//! The parser: what it makes of a stream does not depend on how the stream is cut, and no bytes make it panic.

use crate::kv::protocol::{Event, LINE_MAX, Parser};
use proptest::prelude::*;

const GET_MAX: usize = 8192;

/// All that comes out, as text; values whole.
fn events(pieces: &[&[u8]]) -> Vec<String> {
    let mut parser = Parser::new(GET_MAX);
    let (mut waiting, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let (used, event) = parser.next(&waiting);
            assert!(used <= waiting.len());
            match event {
                Event::More => {
                    waiting.drain(..used);
                    break;
                }
                Event::TooLong => {
                    out.push("too long".into());
                    return out;
                }
                Event::Data(data) => value.extend_from_slice(data),
                Event::End { good } => out.push(format!("{:?} {good}", std::mem::take(&mut value))),
                Event::Command(command) => out.push(format!("{command:?}")),
            }
            waiting.drain(..used);
        }
        // What is kept is a line without an end, and no longer than one may be.
        assert!(waiting.len() <= GET_MAX);
    }
    out
}

/// Cuts at these places, taken modulo what is left.
fn cut<'a>(mut stream: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for place in places {
        let (piece, rest) = stream.split_at(place % (stream.len() + 1));
        pieces.push(piece);
        stream = rest;
    }
    pieces.push(stream);
    pieces
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "get",
            "gets",
            "gat",
            "set",
            "add",
            "cas",
            "append",
            "delete",
            "incr",
            "touch",
            "flush_all",
            "stats",
            "mg",
            "ms",
            "md",
            "ma",
            "mn",
            "me",
            "noreply",
            "0",
            "1",
            "-1",
            "3",
            "12",
            "99999999999999999999",
            "key",
            "Zm9v",
            "b",
            "v",
            "k",
            "t",
            "q",
            "T30",
            "N0",
            "C1",
            "MS",
            "MX",
            "Oabc",
            "F5",
            "S3",
            "I",
        ])
        .prop_map(String::from),
        "[a-z0-9=]{1,40}",
        "k{249,252}",
    ]
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let end = prop::sample::select(vec!["\r\n", "\n", " \r\n", "\r\r\n"]);
    (prop::collection::vec(word(), 0..26), end).prop_map(|(words, end)| (words.join(" ") + end).into_bytes())
}

fn stored() -> impl Strategy<Value = Vec<u8>> {
    let head = prop::sample::select(vec!["set k 0 0 ", "cas k 1 2 ", "add k 0 0 ", "ms k "]);
    let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", "x\r\n", "\r", ""]);
    (head, prop::collection::vec(any::<u8>(), 0..60), end).prop_map(|(head, value, end)| {
        let tail = if head.starts_with("cas") { " 7" } else { "" };
        [format!("{head}{}{tail}\r\n", value.len()).as_bytes(), &value, end.as_bytes()].concat()
    })
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let long = (0..2 * GET_MAX, prop::sample::select(vec!["get ", "gets ", "set ", "  gat 0 "]))
        .prop_map(|(length, name)| [name.as_bytes(), &b"k ".repeat(length / 2), b"\r\n"].concat());
    let piece = prop_oneof![5 => line(), 3 => stored(), 1 => prop::collection::vec(any::<u8>(), 0..80), 1 => long];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_cut_gives_the_same(stream in stream(), places in prop::collection::vec(any::<usize>(), 0..20)) {
        prop_assert_eq!(events(&[&stream]), events(&cut(&stream, &places)));
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(events(&[&bytes]), events(&single));
    }
}

#[test]
fn byte_by_byte() {
    let stream = b"set k 1 2 3 noreply\r\nabc\r\nget k\r\nms k 0\r\n\r\nset k 0 0 1\r\nabc\r\nmn\r\n";
    let single: Vec<&[u8]> = stream.chunks(1).collect();
    let all = events(&single);
    assert_eq!(all, events(&[stream]));
    assert!(all.contains(&"[97, 98, 99] true".to_string()) && all.contains(&"[] true".to_string()));
    assert!(all.contains(&"[97] false".to_string()), "{all:?}");
}

#[test]
fn lines_have_limits() {
    let long = |name: &str, length: usize| [name.as_bytes(), &vec![b'k'; length]].concat();
    for (stream, too_long) in [
        (long("set ", LINE_MAX), true),
        (long("set ", LINE_MAX - 4), false),
        (long("get ", LINE_MAX), false),
        (long("gets ", GET_MAX - 5), false),
        (long("gets ", GET_MAX), true),
        (long(&" ".repeat(101), LINE_MAX), true),
    ] {
        assert_eq!(events(&[&stream]) == ["too long"], too_long, "{}", stream.len());
    }
}
