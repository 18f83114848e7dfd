//! The bytes of Redis' protocol (RESP2), and what pages are called there. No input or output here.
//!
//! Source: the protocol's [specification](https://redis.io/docs/latest/develop/reference/protocol-spec/). Requests are arrays of
//! strings. A reply begins with a line, and only what was asked for can follow it. Anything else is [`Violation`], which ends the
//! connection. `HELLO` is never sent, so a server sends nothing that was not asked for.

use core::net::IpAddr;
use rustix::io::Errno;

/// Hash slots of a Cluster.
pub(super) const HASH_SLOTS: usize = 16384;
/// Bytes of the longest line of a reply.
pub(super) const LINE_MAX: usize = 1024;
/// Bytes of the name of an extent's key.
pub(super) const KEY: usize = 36;
/// Bytes of the name of a page's field.
pub(super) const FIELD: usize = 12;

/// What a server says that it should not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

/// Where a server sends us. No host: the one that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) host: Option<IpAddr>,
    pub(super) port: u16,
}

/// Why a server does not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Another server has this hash slot.
    Moved(u16, At),
    /// Another server has this key, which is just being moved.
    Ask(At),
    /// Not now: it is starting, or the Cluster has no master there.
    Later,
    /// It has no room.
    Full,
    /// Never.
    Never(Errno),
}

/// How lines of replies begin.
pub(super) const KINDS: &[u8] = b"+-:$*";

/// The first line of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    Simple,
    Number(i64),
    Error(Refusal),
    /// So many bytes follow, and the end of a line; `None`: there is no such value.
    Bulk(Option<usize>),
    /// So many replies follow.
    Array(Option<usize>),
}

fn number(text: &[u8]) -> Result<i64, Violation> {
    let (digits, sign) = text.strip_prefix(b"-").map_or((text, 1), |digits| (digits, -1));
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Violation);
    }
    Ok(sign * digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

/// A length; −1: there is nothing.
fn length(text: &[u8]) -> Result<Option<usize>, Violation> {
    match number(text)? {
        -1 => Ok(None),
        len => usize::try_from(len).map(Some).map_err(|_| Violation),
    }
}

/// Reads the first line of a reply, which is without its end.
pub(super) fn head(line: &[u8]) -> Result<Head, Violation> {
    let (kind, rest) = line.split_first().ok_or(Violation)?;
    match kind {
        b'+' => Ok(Head::Simple),
        b':' => number(rest).map(Head::Number),
        b'$' => length(rest).map(Head::Bulk),
        b'*' => length(rest).map(Head::Array),
        b'-' => refusal(rest).map(Head::Error),
        _ => Err(Violation),
    }
}

fn refusal(text: &[u8]) -> Result<Refusal, Violation> {
    let mut words = text.split(|&byte| byte == b' ');
    let mut next = || words.next().unwrap_or_default();
    Ok(match next() {
        b"MOVED" => {
            let slot = number(next())?;
            let slot = u16::try_from(slot).ok().filter(|&slot| usize::from(slot) < HASH_SLOTS).ok_or(Violation)?;
            sent_to(next(), |at| Refusal::Moved(slot, at))?
        }
        b"ASK" => {
            next();
            sent_to(next(), Refusal::Ask)?
        }
        // READONLY: a master that has become a replica, and does not know yet who is the master.
        b"LOADING" | b"CLUSTERDOWN" | b"TRYAGAIN" | b"MASTERDOWN" | b"READONLY" | b"NOREPLICAS" | b"BUSY" => Refusal::Later,
        // Another user has all its connections; it cannot save, and takes no writes until it can.
        b"ERR" if text.starts_with(b"ERR max number of clients") => Refusal::Later,
        b"MISCONF" => Refusal::Later,
        b"OOM" => Refusal::Full,
        b"NOAUTH" | b"WRONGPASS" | b"NOPERM" | b"DENIED" => Refusal::Never(Errno::ACCESS),
        _ => Refusal::Never(Errno::IO),
    })
}

/// `HOST:PORT`; an address of the sixth version has no brackets.
fn sent_to(text: &[u8], make: impl FnOnce(At) -> Refusal) -> Result<Refusal, Violation> {
    let text = core::str::from_utf8(text).map_err(|_| Violation)?;
    let (host, port) = text.rsplit_once(':').ok_or(Violation)?;
    let port = port.parse().ok().filter(|&port| port != 0).ok_or(Violation)?;
    Ok(match host_of(host) {
        Ok(host) => make(At { host, port }),
        // A name, which nobody looks up here.
        Err(Violation) => Refusal::Never(Errno::HOSTUNREACH),
    })
}

/// The host of a server, as another server has it.
pub(super) fn host_of(text: &str) -> Result<Option<IpAddr>, Violation> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| Violation) }
}

/// A request, made in memory of the caller's.
#[derive(Debug)]
pub(super) struct Out<'b> {
    bytes: &'b mut [u8],
    len: usize,
}

impl<'b> Out<'b> {
    /// # Panics
    /// Its other methods do when the request is longer than `bytes`, which the caller has counted.
    pub(super) fn new(bytes: &'b mut [u8]) -> Out<'b> {
        Out { bytes, len: 0 }
    }

    pub(super) fn made(self) -> &'b [u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn line(&mut self, kind: u8, number: usize) {
        let mut text = [0; 20];
        self.put(&[kind]);
        self.put(decimal(number as u64, &mut text));
        self.put(b"\r\n");
    }

    /// A request of so many words.
    pub(super) fn words(&mut self, count: usize) {
        self.line(b'*', count);
    }

    pub(super) fn word(&mut self, bytes: &[u8]) {
        self.line(b'$', bytes.len());
        self.put(bytes);
        self.put(b"\r\n");
    }

    /// A whole request.
    pub(super) fn request(&mut self, words: &[&[u8]]) {
        self.words(words.len());
        words.iter().for_each(|word| self.word(word));
    }
}

/// The digits of a number.
pub(super) fn decimal(mut number: u64, text: &mut [u8; 20]) -> &[u8] {
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &text[at..];
        }
    }
}

fn hex(into: &mut [u8], number: u64) {
    for (n, digit) in into.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * n) & 15) as usize];
    }
}

/// The key of an extent, whose pages are its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: [u8; KEY],
    pub(super) hash_slot: u16,
}

/// The key of an extent of a run: `farshore:{RUN.EXTENT}`.
pub(super) fn key(run: u64, extent: u32) -> Key {
    let mut name = *b"farshore:{0000000000000000.00000000}";
    hex(&mut name[10..26], run);
    hex(&mut name[27..35], u64::from(extent));
    Key { name, hash_slot: crc16(&name[10..35]) & (HASH_SLOTS as u16 - 1) }
}

/// The field of a page of an extent, the `generation`th of its name: `PAGE.GENERATION`.
pub(super) fn field(page: u32, generation: u32) -> [u8; FIELD] {
    let mut name = [b'.'; FIELD];
    hex(&mut name[..3], u64::from(page));
    hex(&mut name[4..], u64::from(generation));
    name
}

/// CRC-16 of the XMODEM kind, by which a Cluster finds the hash slot of a key: of what stands in its braces.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, &byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| sum << 1 ^ if sum & 0x8000 != 0 { 0x1021 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn replies_are_read_and_others_are_violations() {
        for (line, want) in [
            (&b"+OK"[..], Head::Simple),
            (b":17", Head::Number(17)),
            (b":-3", Head::Number(-3)),
            (b"$4096", Head::Bulk(Some(4096))),
            (b"$-1", Head::Bulk(None)),
            (b"*0", Head::Array(Some(0))),
            (b"-OOM command not allowed", Head::Error(Refusal::Full)),
            (b"-LOADING Redis is loading", Head::Error(Refusal::Later)),
            (b"-CLUSTERDOWN The cluster is down", Head::Error(Refusal::Later)),
            (b"-READONLY You can't write", Head::Error(Refusal::Later)),
            (b"-ERR max number of clients reached", Head::Error(Refusal::Later)),
            (b"-MISCONF Redis is configured to save RDB snapshots", Head::Error(Refusal::Later)),
            (b"-ERR unknown command", Head::Error(Refusal::Never(Errno::IO))),
            (b"-NOAUTH Authentication required.", Head::Error(Refusal::Never(Errno::ACCESS))),
            (b"-WRONGTYPE Operation", Head::Error(Refusal::Never(Errno::IO))),
            (b"-", Head::Error(Refusal::Never(Errno::IO))),
        ] {
            assert_eq!(head(line), Ok(want), "{}", line.escape_ascii());
        }
        for wrong in
            [&b""[..], b":", b":1x", b"$-2", b"$", b"*99999999999999999999", b"$+1", b"%1", b">2", b"HTTP/1.1 400 Bad", b"\n"]
        {
            assert_eq!(head(wrong), Err(Violation), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn a_server_sends_us_to_another() {
        let at = |host: &str, port| At { host: host_of(host).unwrap(), port };
        for (line, want) in [
            (&b"-MOVED 3999 127.0.0.1:6381"[..], Refusal::Moved(3999, at("127.0.0.1", 6381))),
            (b"-MOVED 3999 ::1:6381", Refusal::Moved(3999, at("::1", 6381))),
            (b"-MOVED 16383 :6381", Refusal::Moved(16383, at("", 6381))),
            (b"-ASK 3999 10.0.0.1:6381", Refusal::Ask(at("10.0.0.1", 6381))),
            (b"-ASK 1 node-7:6381", Refusal::Never(Errno::HOSTUNREACH)),
            (b"-MOVED 1 ?:6381", Refusal::Never(Errno::HOSTUNREACH)),
        ] {
            assert_eq!(head(line), Ok(Head::Error(want)), "{}", line.escape_ascii());
        }
        for wrong in [
            &b"-MOVED"[..],
            b"-MOVED 16384 1.2.3.4:5",
            b"-MOVED -1 1.2.3.4:5",
            b"-ASK 1 1.2.3.4",
            b"-ASK 1 1.2.3.4:0",
            b"-ASK 1 1.2.3.4:65536",
        ] {
            assert_eq!(head(wrong), Err(Violation), "{}", wrong.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_much(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = head(&line);
            let mut named = b"-MOVED ".to_vec();
            named.extend(&line);
            let _ = head(&named);
        }
    }

    #[test]
    fn names_are_what_the_cluster_makes_of_them() {
        assert_eq!((crc16(b"123456789"), crc16(b"")), (0x31c3, 0));
        let key = key(0x0123_4567_89ab_cdef, 42);
        assert_eq!(&key.name, b"farshore:{0123456789abcdef.0000002a}");
        assert_eq!(key.hash_slot, crc16(b"0123456789abcdef.0000002a") % 16384);
        assert_eq!(&field(0x1ff, 0x10), b"1ff.00000010");
        // Extents go to all parts of a Cluster.
        let mut parts = [0; 8];
        (0..4096).for_each(|extent| parts[usize::from(super::key(7, extent).hash_slot) * 8 / HASH_SLOTS] += 1);
        assert!(parts.iter().all(|&part| (350..700).contains(&part)), "{parts:?}");
    }

    #[test]
    fn a_request_is_as_the_specification_has_it() {
        let mut memory = [0; 64];
        let mut out = Out::new(&mut memory);
        out.request(&[b"WAIT", b"1"]);
        out.word(b"");
        assert_eq!(out.made(), b"*2\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$0\r\n\r\n");
        let mut text = [0; 20];
        assert_eq!(decimal(0, &mut text), b"0");
        assert_eq!(decimal(u64::MAX, &mut text), b"18446744073709551615");
    }
}
