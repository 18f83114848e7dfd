//! `kv`: GET and SET in memcached's text protocol.
//!
//! A value begins with its version and a number that follows from key and version; all its other bytes follow from that. So each
//! value says which one it is, and has to be that to the last byte, whichever run has written it. After `--fill` its version
//! is bounded as well: not newer than the newest that was sent, and over TCP, where all SETs of a key go over one
//! connection, not older than the newest that was acknowledged when it was asked for.
//!
//! Over UDP each datagram begins with a header of 8 bytes: number of the request (16 bits), part, parts, 0, big-endian. An answer
//! may have several parts; a request has one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use farshore_load::workload::Server;

use crate::generator::protocol::{Checked, Header, Id, Protocol, Request};
use crate::open::args::Open;
use crate::open::sizes::Sizes;
use crate::open::target::Transport;
use crate::work::kv::data::Versions;
use crate::work::kv::protocol::{self, Answer, quoted};
use crate::work::scatter::{mix, mix2};

/// Number of the operation SET.
pub const SET: u8 = 1;
/// Bytes of a header over UDP.
const HEADER: usize = 8;
/// A request over UDP has to fit into a datagram.
const MOST_DATAGRAM: usize = 60_000;

/// What is in the server.
#[derive(Debug)]
pub struct Kv {
    key_size: usize,
    sizes: Sizes,
    versions: Versions,
    transport: Transport,
    /// All keys were SET by this program.
    filled: bool,
    /// A key may be missing all the same.
    allow_misses: bool,
    /// Whether what was acknowledged bounds what may be found.
    ordered: AtomicBool,
}

impl Kv {
    /// As the options say.
    ///
    /// # Errors
    /// If they do not go together.
    pub fn new(args: &Open) -> Result<Self, String> {
        let items = args.items;
        let digits = (items - 1).max(1).ilog10() + 1;
        if args.key_size <= digits {
            return Err(format!("--key-size {} is too short for {items} keys: give at least {}", args.key_size, digits + 1));
        }
        if items < u64::from(args.connections) {
            return Err(format!("--items {items} is less than one for each of {} connections: give more", args.connections));
        }
        let transport = args.target.transport;
        if transport == Transport::Udp && args.value_size.most() > MOST_DATAGRAM {
            return Err(format!("--value-size {} does not fit into a datagram: use tcp:", args.value_size));
        }
        let too_many = |_| format!("cannot keep account of {items} keys: give less --items");
        Ok(Kv {
            key_size: args.key_size as usize,
            sizes: args.value_size.clone(),
            versions: Versions::new(usize::try_from(items).map_err(too_many)?),
            transport,
            filled: args.fill,
            allow_misses: args.allow_misses,
            ordered: AtomicBool::new(args.fill && transport == Transport::Tcp),
        })
    }

    /// Appends the name of a key.
    fn name(&self, key: u64, to: &mut Vec<u8>) {
        let start = to.len();
        to.resize(start + self.key_size, b'0');
        to[start] = b'k';
        let mut rest = key;
        for digit in to[start + 1..].iter_mut().rev() {
            *digit = b"0123456789"[usize::try_from(rest % 10).unwrap_or(0)];
            rest /= 10;
        }
    }

    fn is_name(&self, key: u64, name: &[u8]) -> bool {
        let mut wanted = Vec::with_capacity(self.key_size);
        self.name(key, &mut wanted);
        name == wanted
    }

    /// What is wrong with a value.
    fn value(&self, request: &Request, value: &[u8]) -> Checked {
        let key = request.key;
        let damaged = |what| Checked::Wrong("damaged values", format!("key {key}: {what}"));
        let size = self.sizes.of(key);
        if value.len() != size {
            return damaged(format!("it has {} bytes, not {size}", value.len()));
        }
        let version = u64::from_le_bytes(std::array::from_fn(|n| value[n]));
        if let Some(place) = differs(key, version, value) {
            return damaged(format!("byte {place} of {size} is not that of version {version}"));
        }
        if self.filled && version > u64::from(self.versions.newest(key)) {
            return Checked::Wrong("values never sent", format!("key {key}: version {version}"));
        }
        if self.ordered.load(Relaxed) && version < u64::from(request.version) {
            let least = request.version;
            let what = format!("key {key}: version {version}, though {least} was acknowledged before it was asked for");
            return Checked::Wrong("values too old", what);
        }
        Checked::Right
    }

    fn answer(&self, request: &Request, answer: &Answer<'_>) -> Checked {
        let key = request.key;
        match (request.op, answer) {
            (SET, Answer::Stored) => {
                self.versions.acknowledge(key, request.version);
                Checked::Right
            }
            (0, Answer::Value { key: name, value }) => match name {
                Some(name) if !self.is_name(key, name) => {
                    Checked::Wrong("values of other keys", format!("key {key}: {}", quoted(name)))
                }
                _ => self.value(request, value),
            },
            (0, Answer::Missing) if self.filled && !self.allow_misses => Checked::Wrong(
                "keys not there",
                format!("key {key}, which was SET: has the server evicted it (--allow-misses), or lost it?"),
            ),
            (0, Answer::Missing) => Checked::Miss,
            (_, Answer::Refused(words)) => Checked::Wrong("requests refused", format!("key {key}: {}", quoted(words))),
            _ => Checked::Wrong("answers of the wrong kind", format!("key {key}")),
        }
    }
}

impl Protocol for Kv {
    fn request(&self, op: u8, key: u64) -> Request {
        let version = if op == SET { self.versions.send(key) } else { self.versions.least(key) };
        Request { op, key, version }
    }

    fn write(&self, number: u64, request: &Request, to: &mut Vec<u8>) {
        if self.transport == Transport::Udp {
            let [.., high, low] = number.to_be_bytes();
            to.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
        }
        to.extend_from_slice(if request.op == SET { b"set " } else { b"get " });
        self.name(request.key, to);
        if request.op == SET {
            let size = self.sizes.of(request.key);
            to.extend_from_slice(format!(" 0 0 {size}\r\n").as_bytes());
            write_value(request.key, u64::from(request.version), size, to);
        }
        to.extend_from_slice(b"\r\n");
    }

    fn check(&self, _: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String> {
        let answer = protocol::answer(Server::Memcached, bytes)?;
        Ok(answer.map(|(answer, used)| (used, self.answer(request, &answer))))
    }

    fn header(&self, datagram: &[u8]) -> Option<Header> {
        let head: &[u8; HEADER] = datagram.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (part, parts) = (word(2), word(4));
        (part < parts).then_some(Header { id: Id::Low(word(0)), part, parts, bytes: HEADER })
    }

    fn owns_keys(&self, op: u8) -> bool {
        op == SET
    }

    fn left_open(&self) {
        self.ordered.store(false, Relaxed);
    }
}

/// The words of a value after its version.
fn words(key: u64, version: u64) -> impl Iterator<Item = u64> {
    let check = mix2(mix2(0x6b76, key), version);
    std::iter::once(check).chain((1..).map(move |n: u64| mix(check.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))))
}

fn write_value(key: u64, version: u64, size: usize, to: &mut Vec<u8>) {
    let end = to.len() + size;
    to.extend_from_slice(&version.to_le_bytes());
    for word in words(key, version).take((size - 8).div_ceil(8)) {
        to.extend_from_slice(&word.to_le_bytes());
    }
    to.truncate(end);
}

/// The first byte of a value that is wrong.
fn differs(key: u64, version: u64, value: &[u8]) -> Option<usize> {
    let rest = value.get(8..)?;
    rest.chunks(8).zip(words(key, version)).enumerate().find_map(|(n, (is, should))| {
        let should = should.to_le_bytes();
        let place = is.iter().zip(should).position(|(is, should)| *is != should)?;
        Some(8 + 8 * n + place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(transport: Transport) -> Kv {
        Kv {
            key_size: 12,
            sizes: "16..99".parse().unwrap_or_else(|error| panic!("{error}")),
            versions: Versions::new(1000),
            transport,
            filled: true,
            allow_misses: false,
            ordered: AtomicBool::new(true),
        }
    }

    fn answer(name: &[u8], value: &[u8]) -> Vec<u8> {
        let head = format!("VALUE {} 0 {}\r\n", name.escape_ascii(), value.len());
        [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
    }

    fn kind(checked: Result<Option<(usize, Checked)>, String>) -> &'static str {
        match checked {
            Ok(Some((_, Checked::Wrong(kind, _)))) => kind,
            Ok(Some((_, Checked::Right))) => "right",
            Ok(Some((_, Checked::Miss))) => "miss",
            Ok(None) => "not whole",
            Err(_) => "garbage",
        }
    }

    #[test]
    fn a_value_is_right_as_itself_alone() {
        let kv = kv(Transport::Tcp);
        for key in 0..100 {
            let set = kv.request(SET, key);
            let mut written = Vec::new();
            kv.write(0, &set, &mut written);
            assert_eq!(kind(kv.check(0, &set, b"STORED\r\n")), "right");
            let size = kv.sizes.of(key);
            let value = &written[written.len() - 2 - size..written.len() - 2];
            let name = format!("k{key:011}");
            assert!(written.starts_with(format!("set {name} 0 0 {size}\r\n").as_bytes()));
            let get = kv.request(0, key);
            let check = |name: &str, value: &[u8]| kind(kv.check(0, &get, &answer(name.as_bytes(), value)));
            assert_eq!(check(&name, value), "right");
            assert_eq!(check(&format!("k{:011}", key + 1), value), "values of other keys");
            assert_eq!(check(&name, &value[1..]), "damaged values");
            for place in 0..size {
                let mut wrong = value.to_vec();
                wrong[place] ^= 0x20;
                assert_eq!(check(&name, &wrong), "damaged values", "{place}");
            }
        }
    }

    #[test]
    fn versions_have_bounds() {
        let kv = kv(Transport::Tcp);
        let value = |version| {
            let mut value = Vec::new();
            write_value(7, version, kv.sizes.of(7), &mut value);
            answer(b"k00000000007", &value)
        };
        let sets: Vec<Request> = (0..3).map(|_| kv.request(SET, 7)).collect();
        kv.check(0, &sets[1], b"STORED\r\n").unwrap_or_else(|error| panic!("{error}"));
        let get = kv.request(0, 7);
        let kinds = [1, 2, 3, 4].map(|version| kind(kv.check(0, &get, &value(version))));
        assert_eq!(kinds, ["values too old", "right", "right", "values never sent"]);
        kv.left_open();
        assert_eq!(kind(kv.check(0, &get, &value(1))), "right");
        assert_eq!(kind(kv.check(0, &get, b"END\r\n")), "keys not there");
        assert_eq!(kind(kv.check(0, &get, b"STORED\r\n")), "answers of the wrong kind");
        assert_eq!(kind(kv.check(0, &get, b"SERVER_ERROR out of memory\r\n")), "requests refused");
        assert_eq!(kind(kv.check(0, &get, b"HTTP/1.1\r\n")), "garbage");
        assert_eq!(kind(kv.check(0, &get, &value(2)[..20])), "not whole");
    }

    #[test]
    fn headers_of_datagrams() {
        let kv = kv(Transport::Udp);
        let mut written = Vec::new();
        kv.write(0x1_2345, &kv.request(0, 1), &mut written);
        assert!(written.starts_with(&[0x23, 0x45, 0, 0, 0, 1, 0, 0]) && written.ends_with(b"get k00000000001\r\n"));
        let header = kv.header(&[0x23, 0x45, 0, 1, 0, 3, 0, 0, b'x']);
        assert_eq!(header, Some(Header { id: Id::Low(0x2345), part: 1, parts: 3, bytes: 8 }));
        assert!(kv.header(&[0, 0, 0, 3, 0, 3, 0, 0]).is_none() && kv.header(&[0; 7]).is_none());
    }
}
