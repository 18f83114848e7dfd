//! What is said to redis (RESP) and memcached (text protocol), and what they answer.
//!
//! [`answer`] looks at the bytes that have come so far and either finds a whole answer at their start, or needs more of them,
//! or finds what no such server says. It keeps nothing from one call to the next.

use farshore_load::workload::Server;

/// Bytes of a key's name: fixed.
pub const KEY: usize = 20;
/// An answer's line is not longer than this.
const LINE: usize = 8 << 10;
/// A value is not longer than this: four times the largest that is ever sent.
const VALUE: usize = 4 << 20;

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<'a> {
    /// To a GET.
    Value {
        /// The key that it is the value of, where the server says so.
        key: Option<&'a [u8]>,
        /// The value.
        value: &'a [u8],
    },
    /// To a GET of a key that is not there.
    Missing,
    /// To a SET.
    Stored,
    /// The server refuses: its words.
    Refused(&'a [u8]),
}

/// The name of a key.
#[must_use]
pub fn name(key: u64) -> [u8; KEY] {
    let mut name = *b"key:0000000000000000";
    for (place, digit) in name[4..].iter_mut().zip((0..16).rev()) {
        *place = b"0123456789abcdef"[(key >> (4 * digit) & 15) as usize];
    }
    name
}

/// Appends a GET.
pub fn get(server: Server, key: u64, to: &mut Vec<u8>) {
    match server {
        Server::Redis => {
            to.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
            bulk(&name(key), to);
        }
        Server::Memcached => {
            to.extend_from_slice(b"get ");
            to.extend_from_slice(&name(key));
            to.extend_from_slice(b"\r\n");
        }
    }
}

/// Appends a SET of a value of `size` bytes, which `write` appends.
pub fn set(server: Server, key: u64, size: usize, write: impl FnOnce(&mut Vec<u8>), to: &mut Vec<u8>) {
    match server {
        Server::Redis => {
            to.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
            bulk(&name(key), to);
            to.extend_from_slice(format!("${size}\r\n").as_bytes());
        }
        Server::Memcached => {
            to.extend_from_slice(b"set ");
            to.extend_from_slice(&name(key));
            to.extend_from_slice(format!(" 0 0 {size}\r\n").as_bytes());
        }
    }
    let start = to.len();
    write(to);
    debug_assert_eq!(to.len() - start, size);
    to.extend_from_slice(b"\r\n");
}

fn bulk(bytes: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    to.extend_from_slice(bytes);
    to.extend_from_slice(b"\r\n");
}

/// The answer that `bytes` begin with, and how many of them it has; `None` if it is not whole yet.
///
/// # Errors
/// If no server says that: what there is in place of an answer.
pub fn answer(server: Server, bytes: &[u8]) -> Result<Option<(Answer<'_>, usize)>, String> {
    let Some((line, rest)) = line(bytes)? else { return Ok(None) };
    match server {
        Server::Redis => resp(line, rest),
        Server::Memcached => text(line, rest),
    }
}

/// A line without its end, and how many bytes it has with it.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], Rest<'_>)>, String> {
    let Some(end) = bytes.iter().take(LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() < LINE { Ok(None) } else { Err(garbage(bytes)) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or_else(|| garbage(bytes))?;
    Ok(Some((line, Rest { bytes, used: end + 1 })))
}

/// What comes after a line.
#[derive(Clone, Copy)]
struct Rest<'a> {
    bytes: &'a [u8],
    used: usize,
}

impl<'a> Rest<'a> {
    /// The next `size` bytes, which `end` has to follow; and how many bytes there are then up to there.
    fn take(self, size: usize, end: &[u8]) -> Result<Option<(&'a [u8], usize)>, String> {
        let value_end = self.used + size;
        let all = value_end + end.len();
        let there = self.bytes.get(value_end..).unwrap_or_default();
        if !end.starts_with(&there[..there.len().min(end.len())]) {
            return Err(garbage(there));
        }
        Ok(self.bytes.get(self.used..value_end).filter(|_| self.bytes.len() >= all).map(|value| (value, all)))
    }
}

fn resp<'a>(line: &'a [u8], rest: Rest<'a>) -> Result<Option<(Answer<'a>, usize)>, String> {
    match line {
        b"+OK" => Ok(Some((Answer::Stored, rest.used))),
        b"$-1" => Ok(Some((Answer::Missing, rest.used))),
        [b'-', words @ ..] => Ok(Some((Answer::Refused(words), rest.used))),
        [b'$', size @ ..] => {
            let size = number(size).ok_or_else(|| garbage(line))?;
            let value = rest.take(size, b"\r\n")?;
            Ok(value.map(|(value, used)| (Answer::Value { key: None, value }, used)))
        }
        _ => Err(garbage(line)),
    }
}

fn text<'a>(line: &'a [u8], rest: Rest<'a>) -> Result<Option<(Answer<'a>, usize)>, String> {
    let refused = [&b"ERROR"[..], b"SERVER_ERROR", b"CLIENT_ERROR", b"NOT_STORED"];
    let mut words = line.split(|byte| *byte == b' ');
    match words.next().unwrap_or_default() {
        b"STORED" if line.len() == 6 => Ok(Some((Answer::Stored, rest.used))),
        b"END" if line.len() == 3 => Ok(Some((Answer::Missing, rest.used))),
        word if refused.contains(&word) => Ok(Some((Answer::Refused(line), rest.used))),
        b"VALUE" => {
            let (Some(key), Some(b"0"), Some(size), None) = (words.next(), words.next(), words.next(), words.next()) else {
                return Err(garbage(line));
            };
            let size = number(size).ok_or_else(|| garbage(line))?;
            let value = rest.take(size, b"\r\nEND\r\n")?;
            Ok(value.map(|(value, used)| (Answer::Value { key: Some(key), value }, used)))
        }
        _ => Err(garbage(line)),
    }
}

/// A length.
fn number(digits: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit))?;
    text.parse().ok().filter(|size| *size <= VALUE)
}

/// Says what came in place of an answer.
fn garbage(bytes: &[u8]) -> String {
    format!("the server says what is no answer: \"{}\"; is --server right?", quoted(bytes))
}

/// The beginning of what a server said, fit to be printed.
#[must_use]
pub fn quoted(bytes: &[u8]) -> String {
    const MOST: usize = 120;
    let dots = if bytes.len() > MOST { "…" } else { "" };
    format!("{}{dots}", bytes[..bytes.len().min(MOST)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Server::{Memcached, Redis};

    const OK: &[(Server, &[u8], Answer<'static>)] = &[
        (Redis, b"+OK\r\n", Answer::Stored),
        (Redis, b"$-1\r\n", Answer::Missing),
        (Redis, b"$0\r\n\r\n", Answer::Value { key: None, value: b"" }),
        (Redis, b"$11\r\nab\r\ncd\r\n$1\0\r\n", Answer::Value { key: None, value: b"ab\r\ncd\r\n$1\0" }),
        (Redis, b"-OOM command not allowed\r\n", Answer::Refused(b"OOM command not allowed")),
        (Redis, b"-LOADING Redis is loading\r\n", Answer::Refused(b"LOADING Redis is loading")),
        (Memcached, b"STORED\r\n", Answer::Stored),
        (Memcached, b"END\r\n", Answer::Missing),
        (Memcached, b"VALUE k 0 5\r\n\r\nEND\r\nEND\r\n", Answer::Value { key: Some(b"k"), value: b"\r\nEND" }),
        (Memcached, b"VALUE key:1 0 0\r\n\r\nEND\r\n", Answer::Value { key: Some(b"key:1"), value: b"" }),
        (
            Memcached,
            b"SERVER_ERROR out of memory storing object\r\n",
            Answer::Refused(b"SERVER_ERROR out of memory storing object"),
        ),
        (Memcached, b"CLIENT_ERROR bad data chunk\r\n", Answer::Refused(b"CLIENT_ERROR bad data chunk")),
        (Memcached, b"ERROR\r\n", Answer::Refused(b"ERROR")),
        (Memcached, b"NOT_STORED\r\n", Answer::Refused(b"NOT_STORED")),
    ];

    #[test]
    fn an_answer_is_found_when_it_is_whole_and_not_before() {
        for (server, bytes, wanted) in OK {
            for end in 0..bytes.len() {
                assert_eq!(answer(*server, &bytes[..end]), Ok(None), "{} of {}", end, bytes.escape_ascii());
            }
            assert_eq!(answer(*server, bytes), Ok(Some((*wanted, bytes.len()))));
            // What follows is not touched.
            let more = [bytes, &b"+OK\r\n"[..]].concat();
            assert_eq!(answer(*server, &more), Ok(Some((*wanted, bytes.len()))));
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let long = vec![b'-'; LINE];
        let garbage: &[(Server, &[u8])] = &[
            (Redis, b"\r\n"),
            (Redis, b"+PONG\r\n"),
            (Redis, b":1\r\n"),
            (Redis, b"*1\r\n$2\r\nab\r\n"),
            (Redis, b"STORED\r\n"),
            (Redis, b"HTTP/1.1 400 Bad Request\r\n"),
            (Redis, b"+OK\n"),
            (Redis, b"$\r\n"),
            (Redis, b"$-2\r\n"),
            (Redis, b"$+1\r\n"),
            (Redis, b"$99999999999999999999\r\n"),
            (Redis, b"$4194305\r\n"),
            (Redis, b"$2\r\nabc"),
            (Redis, b"$2\r\nab\rx"),
            (Redis, &long),
            (Memcached, b"+OK\r\n"),
            (Memcached, b"STORED x\r\n"),
            (Memcached, b"VALUE k 0\r\n"),
            (Memcached, b"VALUE k 0 x\r\n"),
            (Memcached, b"VALUE k 1 2\r\n"),
            (Memcached, b"VALUE k 0 2 77\r\n"),
            (Memcached, b"VALUE k 0 2\r\nab\r\nVALUE"),
            (Memcached, b"VALUE k 0 2\r\nabE"),
            (Memcached, b"\0\xff\n"),
        ];
        for (server, bytes) in garbage {
            let said = answer(*server, bytes);
            let Err(said) = said else { panic!("{}: {said:?}", bytes.escape_ascii()) };
            assert!(!said.contains('\n') && said.len() < 200, "{said}");
        }
    }

    #[test]
    fn requests_are_in_the_servers_language() {
        let mut bytes = Vec::new();
        get(Redis, 0x2a, &mut bytes);
        assert_eq!(bytes, b"*2\r\n$3\r\nGET\r\n$20\r\nkey:000000000000002a\r\n");
        bytes.clear();
        set(Redis, u64::MAX, 3, |to| to.extend(b"a\r\n"), &mut bytes);
        assert_eq!(bytes, b"*3\r\n$3\r\nSET\r\n$20\r\nkey:ffffffffffffffff\r\n$3\r\na\r\n\r\n");
        bytes.clear();
        get(Memcached, 0x0123_4567_89ab_cdef, &mut bytes);
        assert_eq!(bytes, b"get key:0123456789abcdef\r\n");
        bytes.clear();
        set(Memcached, 1, 2, |to| to.extend(b"ab"), &mut bytes);
        assert_eq!(bytes, b"set key:0000000000000001 0 0 2\r\nab\r\n");
    }
}
