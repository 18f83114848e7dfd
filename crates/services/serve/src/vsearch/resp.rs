//! Redis' protocol, RESP 2: bytes to words, and answers. No input or output.
//!
//! A command is an array of words, each with its length: `*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n`. Or it is a line of words with blanks between them, as one types it.

use std::fmt::{Display, Write};

/// Words that a command has at most.
pub const WORDS_MAX: usize = 64;
/// Bytes of a line: of a number, or of a command that is one.
const LINE_MAX: usize = 1024;

/// The words of a command.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    all: [&'a [u8]; WORDS_MAX],
    count: usize,
}

impl<'a> Words<'a> {
    /// All of them.
    pub fn all(&self) -> &[&'a [u8]] {
        &self.all[..self.count]
    }

    fn push(&mut self, word: &'a [u8]) -> Result<(), Wrong> {
        let place = self.all.get_mut(self.count).ok_or(Wrong("too many words"))?;
        *place = word;
        self.count += 1;
        Ok(())
    }
}

/// What is no command, and where the next one would begin is not known either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong(pub &'static str);

/// The command that `input` begins with, and how many bytes it has. `None`: it is not whole yet.
///
/// # Errors
/// It is none: the connection cannot go on.
pub fn parse(input: &[u8]) -> Result<Option<(Words<'_>, usize)>, Wrong> {
    let mut words = Words { all: [&[]; WORDS_MAX], count: 0 };
    let Some((line, mut used)) = line(input)? else { return Ok(None) };
    let Some(count) = line.strip_prefix(b"*") else {
        for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            words.push(word)?;
        }
        return Ok(Some((words, used)));
    };
    let count = number(count).ok_or(Wrong("invalid multibulk length"))?;
    if count > WORDS_MAX {
        return Err(Wrong("too many words"));
    }
    for _ in 0..count {
        let Some((line, after)) = self::line(&input[used..])? else { return Ok(None) };
        let length = line.strip_prefix(b"$").and_then(number).ok_or(Wrong("invalid bulk length"))?;
        let start = used + after;
        // The length is not larger than a billion.
        let Some(word) = input.get(start..start + length + 2) else { return Ok(None) };
        words.push(word.strip_suffix(b"\r\n").ok_or(Wrong("a word is longer than it says"))?)?;
        used = start + length + 2;
    }
    Ok(Some((words, used)))
}

/// The line that comes first, without its end, and its bytes with it.
fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, Wrong> {
    match input.iter().take(LINE_MAX).position(|byte| *byte == b'\n') {
        Some(end) => Ok(Some((input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]), end + 1))),
        None if input.len() < LINE_MAX => Ok(None),
        None => Err(Wrong("too long a line")),
    }
}

/// A number in decimal, of at most nine digits.
pub fn number(text: &[u8]) -> Option<usize> {
    let digits = (1..=9).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    digits.then(|| text.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

/// Answers, which are appended.
pub trait Answer {
    /// Something that is text, as it is.
    fn put(&mut self, what: impl Display);
    /// A line: all is well.
    fn simple(&mut self, what: impl Display);
    /// A line: it is not.
    fn error(&mut self, what: impl Display);
    /// A number.
    fn integer(&mut self, number: usize);
    /// So many parts follow.
    fn array(&mut self, count: usize);
    /// Bytes.
    fn bulk(&mut self, bytes: &[u8]);
}

/// What is appended goes into memory, which takes anything.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Answer for Vec<u8> {
    fn put(&mut self, what: impl Display) {
        let _ = write!(Text(self), "{what}");
    }

    fn simple(&mut self, what: impl Display) {
        self.put(format_args!("+{what}\r\n"));
    }

    fn error(&mut self, what: impl Display) {
        self.put(format_args!("-{what}\r\n"));
    }

    fn integer(&mut self, number: usize) {
        self.put(format_args!(":{number}\r\n"));
    }

    fn array(&mut self, count: usize) {
        self.put(format_args!("*{count}\r\n"));
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.put(format_args!("${}\r\n", bytes.len()));
        self.extend_from_slice(bytes);
        self.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a command, and its length.
    type Command<'a> = (Vec<&'a [u8]>, usize);

    fn words(input: &[u8]) -> Result<Option<Command<'_>>, Wrong> {
        Ok(parse(input)?.map(|(words, used)| (words.all().to_vec(), used)))
    }

    #[test]
    fn commands_of_both_kinds() {
        let whole: &[u8] = b"*3\r\n$4\r\nPING\r\n$0\r\n\r\n$3\r\na\r\n\r\n";
        let wanted: Vec<&[u8]> = vec![b"PING", b"", b"a\r\n"];
        assert_eq!(words(whole), Ok(Some((wanted.clone(), whole.len()))));
        assert_eq!(words(&[whole, &b"*1\r"[..]].concat()).map(|found| found.map(|(_, used)| used)), Ok(Some(whole.len())));
        for end in 0..whole.len() {
            assert_eq!(words(&whole[..end]), Ok(None), "{end}");
        }
        assert_eq!(words(b"  PING  hi \r\nx"), Ok(Some((vec![&b"PING"[..], b"hi"], 13))));
        assert_eq!(words(b"PING\n"), Ok(Some((vec![&b"PING"[..]], 5))));
        for (nothing, used) in [("\r\n", 2), ("*0\r\n", 4)] {
            assert_eq!(words(nothing.as_bytes()), Ok(Some((vec![], used))));
        }
    }

    #[test]
    fn what_is_no_command() {
        let long = "x".repeat(LINE_MAX);
        let many = "x ".repeat(WORDS_MAX + 1) + "\n";
        for wrong in [
            "*x\r\n",
            "*-1\r\n",
            "*65\r\n",
            "*9999999999\r\n",
            "*1\r\nPING\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n$x\r\n",
            "*1\r\n$4\r\nPINGER\r\n",
            &long,
            &many,
        ] {
            assert!(words(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers() {
        let mut all = Vec::new();
        all.simple("OK");
        all.error("ERR no");
        all.array(2);
        all.integer(7);
        all.bulk(b"a\nb");
        assert_eq!(all, b"+OK\r\n-ERR no\r\n*2\r\n:7\r\n$3\r\na\nb\r\n");
    }
}
