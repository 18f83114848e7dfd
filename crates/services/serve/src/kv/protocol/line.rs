//! One line of the classic commands. The order of the checks is memcached's: it decides which error a line with two gets.

use super::number::{signed32, unsigned, unsigned32};
use super::{Body, Command, KEY_MAX, Mode, Store, meta};

/// Words of a line that memcached looks at; what follows them is for `get` alone.
const WORDS_MAX: usize = 23;

/// What a wrong command gets.
pub(super) const ERROR: &str = "ERROR";
/// What wrong arguments get.
pub(super) const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

/// The words of a line, which blanks separate.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// Of this text.
    pub fn new(text: &'a [u8]) -> Words<'a> {
        Words { rest: text }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.rest.iter().position(|byte| *byte != b' ')?;
        let word = &self.rest[start..];
        let length = word.iter().position(|byte| *byte == b' ').unwrap_or(word.len());
        self.rest = &word[length..];
        Some(&word[..length])
    }
}

/// The arguments of a line, as memcached counts them.
struct Line<'a> {
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
}

impl<'a> Line<'a> {
    fn new(text: &'a [u8]) -> Line<'a> {
        let mut line = Line { words: [&[]; WORDS_MAX], count: 0 };
        for word in Words::new(text).take(WORDS_MAX) {
            line.words[line.count] = word;
            line.count += 1;
        }
        line
    }

    fn says_quiet(&self) -> bool {
        self.words[self.count - 1] == b"noreply"
    }
}

fn refused<'a>(quiet: bool, error: &'static str) -> (Command<'a>, Body) {
    (Command::Refused(if quiet { "" } else { error }), Body::None)
}

/// Understands a line, without its end.
pub fn parse(text: &[u8]) -> (Command<'_>, Body) {
    let mut words = Words::new(text);
    let name = words.next().unwrap_or_default();
    match name {
        b"get" | b"bget" => return get(words, false),
        b"gets" => return get(words, true),
        b"gat" => return get_and_touch(words, false),
        b"gats" => return get_and_touch(words, true),
        b"mn" => return (Command::MetaNothing, Body::None),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => return meta::parse(name[1], words, &text[text.len() - words.rest.len()..]),
        b"stats" => return (Command::Stats(words), Body::None),
        b"version" => return (Command::Version, Body::None),
        b"quit" => return (Command::Quit, Body::None),
        b"shutdown" => return refused(false, "ERROR: shutdown not enabled"),
        _ => {}
    }
    let line = Line::new(text);
    match name {
        b"set" => store(&line, Mode::Set),
        b"add" => store(&line, Mode::Add),
        b"replace" => store(&line, Mode::Replace),
        b"append" => store(&line, Mode::Append),
        b"prepend" => store(&line, Mode::Prepend),
        b"cas" => store(&line, Mode::Cas),
        b"delete" => delete(&line),
        b"incr" => arithmetic(&line, true),
        b"decr" => arithmetic(&line, false),
        b"touch" => touch(&line),
        b"flush_all" => flush(&line),
        b"verbosity" => verbosity(&line),
        _ => refused(false, ERROR),
    }
}

fn get(keys: Words<'_>, cas: bool) -> (Command<'_>, Body) {
    get_with(keys, cas, None)
}

fn get_and_touch(mut words: Words<'_>, cas: bool) -> (Command<'_>, Body) {
    let Some(time) = words.next() else { return refused(false, ERROR) };
    match signed32(time) {
        // As memcached: no key is an answer without items.
        Some(time) if words.clone().next().is_none() => (Command::Get { keys: words, cas, touch: Some(time) }, Body::None),
        Some(time) => get_with(words, cas, Some(time)),
        None => refused(false, "CLIENT_ERROR invalid exptime argument"),
    }
}

fn get_with(keys: Words<'_>, cas: bool, touch: Option<i32>) -> (Command<'_>, Body) {
    let (mut some, mut fit) = (false, true);
    for key in keys {
        some = true;
        fit &= key.len() <= KEY_MAX;
    }
    match (some, fit) {
        (false, _) => refused(false, ERROR),
        (true, false) => refused(false, BAD_FORMAT),
        (true, true) => (Command::Get { keys, cas, touch }, Body::None),
    }
}

fn store<'a>(line: &Line<'a>, mode: Mode) -> (Command<'a>, Body) {
    let least = if mode == Mode::Cas { 6 } else { 5 };
    if line.count != least && line.count != least + 1 {
        return refused(false, ERROR);
    }
    let quiet = line.says_quiet();
    let key = line.words[1];
    let numbers = || {
        let flags = unsigned32(line.words[2])?;
        let expires = signed32(line.words[3])?;
        let length = usize::try_from(signed32(line.words[4])?).ok()?;
        let cas = if mode == Mode::Cas { unsigned(line.words[5])? } else { 0 };
        (key.len() <= KEY_MAX && length <= i32::MAX as usize - 2).then_some((flags, expires, length, cas))
    };
    let Some((flags, expires, length, cas)) = numbers() else { return refused(quiet, BAD_FORMAT) };
    (Command::Store(Store { mode, key, flags, expires, length, cas, quiet }), Body::Value(length))
}

fn delete<'a>(line: &Line<'a>) -> (Command<'a>, Body) {
    if !(2..=4).contains(&line.count) {
        return refused(false, ERROR);
    }
    let key = line.words[1];
    let mut quiet = false;
    if line.count > 2 {
        let zero = line.words[2] == b"0";
        quiet = line.says_quiet();
        if !(line.count == 3 && (zero || quiet) || line.count == 4 && zero && quiet) {
            return refused(quiet, "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
        }
    }
    if key.len() > KEY_MAX { refused(quiet, BAD_FORMAT) } else { (Command::Delete { key, quiet }, Body::None) }
}

fn arithmetic<'a>(line: &Line<'a>, up: bool) -> (Command<'a>, Body) {
    if line.count != 3 && line.count != 4 {
        return refused(false, ERROR);
    }
    let (quiet, key) = (line.says_quiet(), line.words[1]);
    match unsigned(line.words[2]) {
        _ if key.len() > KEY_MAX => refused(quiet, BAD_FORMAT),
        None => refused(quiet, "CLIENT_ERROR invalid numeric delta argument"),
        Some(delta) => (Command::Arithmetic { key, delta, up, quiet }, Body::None),
    }
}

fn touch<'a>(line: &Line<'a>) -> (Command<'a>, Body) {
    if line.count != 3 && line.count != 4 {
        return refused(false, ERROR);
    }
    let (quiet, key) = (line.says_quiet(), line.words[1]);
    match signed32(line.words[2]) {
        _ if key.len() > KEY_MAX => refused(quiet, BAD_FORMAT),
        None => refused(quiet, "CLIENT_ERROR invalid exptime argument"),
        Some(expires) => (Command::Touch { key, expires, quiet }, Body::None),
    }
}

fn flush<'a>(line: &Line<'a>) -> (Command<'a>, Body) {
    if line.count > 3 {
        return refused(false, ERROR);
    }
    let quiet = line.says_quiet();
    if line.count == if quiet { 2 } else { 1 } {
        return (Command::Flush { delay: 0, quiet }, Body::None);
    }
    match signed32(line.words[1]) {
        Some(delay) => (Command::Flush { delay, quiet }, Body::None),
        None => refused(quiet, "CLIENT_ERROR invalid exptime argument"),
    }
}

fn verbosity<'a>(line: &Line<'a>) -> (Command<'a>, Body) {
    if line.count != 2 && line.count != 3 {
        return refused(false, ERROR);
    }
    let quiet = line.says_quiet();
    if unsigned32(line.words[1]).is_none() {
        return refused(quiet, BAD_FORMAT);
    }
    (Command::Verbosity { quiet }, Body::None)
}
