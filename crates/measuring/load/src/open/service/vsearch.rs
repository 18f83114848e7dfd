//! `vsearch`: the nearest vectors of a query, as `FT.SEARCH` of Redis asks for them, in its protocol (RESP 2).
//!
//! Queries are the vectors after those that the server has ([`farshore_load::vectors`]), so each is known by its number, the key. Of an answer all is looked
//! at but whether nearer vectors are missing, which a search in a part of the lists may miss:
//!
//! - as many vectors as were asked for, each of which there is, none of them twice;
//! - each with the distance that it has, to the last bit, and the nearest first: so one wrong bit of any of them is seen;
//! - each time the same answer to the same query. What all answers come to is a number that two runs can be compared by, and that a vector would change
//!   which was not found because its bytes were wrong.
//!
//! What may be missed is told as *recall*: for the first queries the nearest are found beforehand, by looking at all vectors. A vector counts as found if
//! it is not farther than the last of these. Each of these queries is asked once before any is drawn: so the recall is that of all of them.
//!
//! Over UDP each datagram begins with the request's number, 8 bytes, little-endian.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use farshore_load::vectors::{Nearest, Vectors, distance, stride};

use crate::generator::protocol::{Checked, Header, Id, Protocol, Quality, Request};
use crate::open::args::Open;
use crate::open::target::Transport;
use crate::work::graph::joined;
use crate::work::scatter::mix2;

/// The operation.
pub const OPS: &[&str] = &["search"];
/// How an answer names the distance.
const DISTANCE: &str = "d";
const NUMBER: usize = 8;
/// No line of an answer is longer, and no part.
const PART_MAX: usize = 4096;

/// What is asked for, and what is known of the answers.
#[derive(Debug)]
pub struct Vsearch {
    vectors: Vectors,
    /// How many the server has.
    items: u32,
    nearest: usize,
    probes: Option<u32>,
    transport: Transport,
    stride: usize,
    /// All queries, one after the other.
    queries: Vec<f32>,
    /// The distance of the last of the nearest, for each of the first queries.
    farthest: Vec<f32>,
    /// How many requests there were.
    asked: AtomicU64,
    /// What the first answer to each query came to, and for the first queries how many of the nearest it had: see [`Seen`].
    seen: Vec<AtomicU64>,
}

/// The answer to a query, as a word: 0 before there was one. The low byte has how many of the nearest were found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(u64);

impl Seen {
    fn new(sum: u64, found: usize) -> Seen {
        Seen(((sum | 1 << 63) & !0xff) | u64::try_from(found).unwrap_or(0xff).min(0xff))
    }

    fn found(self) -> u64 {
        self.0 & 0xff
    }
}

/// Reads an answer from its begin on.
struct Reader<'a> {
    rest: &'a [u8],
}

/// Why a part cannot be read.
enum Cut {
    /// It is not whole yet.
    Short,
    /// It is no answer.
    Garbage(String),
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Result<&'a str, Cut> {
        let end = self.rest.iter().take(PART_MAX).position(|byte| *byte == b'\n');
        let Some(end) = end else {
            return Err(if self.rest.len() < PART_MAX { Cut::Short } else { garbage("a line without an end") });
        };
        let line = self.rest[..end].strip_suffix(b"\r").ok_or_else(|| garbage("a line with another end"))?;
        self.rest = &self.rest[end + 1..];
        str::from_utf8(line).map_err(|_| garbage("what is no text"))
    }

    fn number(&mut self, kind: char) -> Result<usize, Cut> {
        let line = self.line()?;
        let number = line.strip_prefix(kind).and_then(|number| number.parse().ok());
        number.ok_or_else(|| garbage(&format!("{line:?}, not {kind:?} and a number")))
    }

    fn text(&mut self) -> Result<&'a str, Cut> {
        let length = self.number('$')?;
        if length > PART_MAX {
            return Err(garbage("a part that is too long"));
        }
        let (text, rest) = self.rest.split_at_checked(length + 2).ok_or(Cut::Short)?;
        self.rest = rest;
        let text = text.strip_suffix(b"\r\n").ok_or_else(|| garbage("a part that goes on"))?;
        str::from_utf8(text).map_err(|_| garbage("what is no text"))
    }
}

fn garbage(what: &str) -> Cut {
    Cut::Garbage(what.into())
}

/// What was answered.
enum Answer {
    /// These, with their distances.
    Found(Vec<(f32, u32)>),
    /// An error.
    Refused(String),
}

/// Reads the answer that `bytes` begin with, and how many of them it has.
fn read(bytes: &[u8]) -> Result<(usize, Answer), Cut> {
    let mut reader = Reader { rest: bytes };
    let answer = if bytes.first() == Some(&b'-') {
        Answer::Refused(reader.line()?.to_owned())
    } else {
        let parts = reader.number('*')?;
        let count = reader.number(':')?;
        if Some(parts) != count.checked_mul(2).and_then(|parts| parts.checked_add(1)) {
            return Err(garbage("an answer whose parts are not what it says"));
        }
        let found = (0..count).map(|_| one(&mut reader)).collect::<Result<_, _>>()?;
        Answer::Found(found)
    };
    Ok((bytes.len() - reader.rest.len(), answer))
}

/// A vector that was found: its number, and the one field that was asked for.
fn one(reader: &mut Reader<'_>) -> Result<(f32, u32), Cut> {
    let number = reader.text()?.parse().map_err(|_| garbage("a vector whose name is no number"))?;
    if (reader.number('*')?, reader.text()?) != (2, DISTANCE) {
        return Err(garbage("other fields than the distance"));
    }
    let distance: f32 = reader.text()?.parse().map_err(|_| garbage("a distance that is no number"))?;
    Ok((distance, number))
}

impl Vsearch {
    /// As the options say. Finds the nearest of the first queries, which takes its time.
    ///
    /// # Errors
    /// If they do not go together, or a file cannot be read.
    pub fn new(args: &Open) -> Result<Self, String> {
        let wrong = |what: String| move |error: io::Error| format!("{what}: {error}");
        let vectors = match &args.file {
            Some(path) => Vectors::of_file(path).map_err(wrong(path.display().to_string()))?,
            None => Vectors::made(args.dimensions as usize),
        };
        let items = u32::try_from(args.items).map_err(|_| format!("--items {}: vsearch has at most {}", args.items, u32::MAX))?;
        let (queries, nearest) = (args.queries, args.nearest as usize);
        if let Some(count) = vectors.count()
            && count < u64::from(items) + u64::from(queries)
        {
            return Err(format!(
                "the file has {count} vectors, and --items {items} and --queries {queries} want as many together"
            ));
        }
        if nearest as u64 > u64::from(items) {
            return Err(format!("--nearest {nearest} is more than the {items} of --items"));
        }
        let stride = stride(vectors.dimensions());
        let mut all = vec![0.0; stride * queries as usize];
        for (number, query) in (u64::from(items)..).zip(all.chunks_exact_mut(stride)) {
            vectors.get(number, query).map_err(|error| error.to_string())?;
        }
        let known = &all[..stride * queries.min(args.recall_of) as usize];
        let farthest = farthest(&vectors, items, known, stride, nearest).map_err(|error| error.to_string())?;
        Ok(Vsearch {
            vectors,
            items,
            nearest,
            probes: args.probes,
            transport: args.target.transport,
            stride,
            queries: all,
            farthest,
            asked: AtomicU64::new(0),
            seen: (0..queries).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn query(&self, key: u64) -> (usize, &[f32]) {
        let number = usize::try_from(key).unwrap_or(0);
        (number, &self.queries[number * self.stride..][..self.stride])
    }

    /// What is wrong with the vectors that were found, if something is.
    fn found(&self, key: u64, found: &[(f32, u32)]) -> Result<(), (&'static str, String)> {
        let (number, query) = self.query(key);
        if found.len() != self.nearest {
            return Err(("wrong counts", format!("query {key}: {} vectors, not {}", found.len(), self.nearest)));
        }
        let mut stored = vec![0.0; self.stride];
        for (at, (far, vector)) in found.iter().enumerate() {
            let twice = found[..at].iter().any(|(_, other)| other == vector);
            if *vector >= self.items || twice {
                let what = if twice { "is there twice" } else { "is none of the server's" };
                return Err(("wrong vectors", format!("query {key}: vector {vector} {what}")));
            }
            if self.vectors.get(u64::from(*vector), &mut stored).is_err() {
                return Err(("vectors that cannot be read", format!("vector {vector} of the file")));
            }
            let wanted = distance(query, &stored);
            if wanted.to_bits() != far.to_bits() {
                return Err(("wrong distances", format!("query {key}: vector {vector} is {wanted} away, not {far}")));
            }
        }
        if !found.is_sorted_by(|one, next| one.0 <= next.0) {
            return Err(("wrong orders", format!("query {key}: the nearest are not first")));
        }
        let near = self.farthest.get(number).map_or(0, |last| found.iter().filter(|(far, _)| far <= last).count());
        let sum = found.iter().fold(key, |sum, (far, vector)| mix2(sum, u64::from(far.to_bits()) << 32 | u64::from(*vector)));
        let now = Seen::new(sum, near);
        match self.seen[number].compare_exchange(0, now.0, Relaxed, Relaxed) {
            Err(before) if Seen(before) != now => Err(("answers that changed", format!("query {key}: {found:?}"))),
            _ => Ok(()),
        }
    }
}

/// The distance of the last of the `nearest` among the first `items` vectors, for each query. As many threads look as there are processors.
fn farthest(vectors: &Vectors, items: u32, queries: &[f32], stride: usize, nearest: usize) -> io::Result<Vec<f32>> {
    let threads = u32::try_from(thread::available_parallelism().map_or(1, NonZero::get)).unwrap_or(1);
    let share = items.div_ceil(threads);
    let look = |part: u32| {
        let mut near: Vec<Nearest> = queries.chunks_exact(stride).map(|_| Nearest::new(nearest)).collect();
        let mut stored = vec![0.0; stride];
        let first = share.saturating_mul(part).min(items);
        for number in first..first.saturating_add(share).min(items) {
            vectors.get(u64::from(number), &mut stored)?;
            let queries = queries.chunks_exact(stride);
            near.iter_mut().zip(queries).for_each(|(near, query)| near.offer(distance(query, &stored), number));
        }
        Ok::<_, io::Error>(near)
    };
    let parts: Vec<Vec<Nearest>> = thread::scope(|scope| {
        let look = &look;
        let running: Vec<_> = (0..threads).map(|part| scope.spawn(move || look(part))).collect();
        running.into_iter().map(joined).collect::<io::Result<_>>()
    })?;
    let mut all: Vec<Nearest> = queries.chunks_exact(stride).map(|_| Nearest::new(nearest)).collect();
    for part in parts {
        for (all, near) in all.iter_mut().zip(part) {
            near.sorted().into_iter().for_each(|(far, number)| all.offer(far, number));
        }
    }
    Ok(all.into_iter().map(|near| near.sorted().last().map_or(0.0, |(far, _)| *far)).collect())
}

impl Protocol for Vsearch {
    fn request(&self, op: u8, key: u64) -> Request {
        let asked = self.asked.fetch_add(1, Relaxed);
        Request { op, key: if asked < self.farthest.len() as u64 { asked } else { key }, version: 0 }
    }

    fn write(&self, number: u64, request: &Request, to: &mut Vec<u8>) {
        if self.transport == Transport::Udp {
            to.extend_from_slice(&number.to_le_bytes());
        }
        let probes = self.probes.map_or_else(String::new, |probes| format!(" NPROBE {probes}"));
        let asked = format!("*=>[KNN {} @vector $q{probes} AS {DISTANCE}]", self.nearest);
        let limit = self.nearest.to_string();
        let query = &self.query(request.key).1[..self.vectors.dimensions()];
        let blob: Vec<u8> = query.iter().flat_map(|number| number.to_le_bytes()).collect();
        let words: [&[u8]; 15] = [
            b"FT.SEARCH",
            b"vectors",
            asked.as_bytes(),
            b"PARAMS",
            b"2",
            b"q",
            &blob,
            b"RETURN",
            b"1",
            DISTANCE.as_bytes(),
            b"LIMIT",
            b"0",
            limit.as_bytes(),
            b"DIALECT",
            b"2",
        ];
        to.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            to.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            to.extend_from_slice(word);
            to.extend_from_slice(b"\r\n");
        }
    }

    fn check(&self, _: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String> {
        let (used, answer) = match read(bytes) {
            Ok(whole) => whole,
            Err(Cut::Short) => return Ok(None),
            Err(Cut::Garbage(what)) => return Err(what),
        };
        let checked = match answer {
            Answer::Refused(what) => Err(("requests refused", what)),
            Answer::Found(found) => self.found(request.key, &found),
        };
        let checked = checked.map_or_else(|(kind, what)| Checked::Wrong(kind, what), |()| Checked::Right);
        Ok(Some((used, checked)))
    }

    fn header(&self, datagram: &[u8]) -> Option<Header> {
        let number = u64::from_le_bytes(*datagram.first_chunk()?);
        Some(Header { id: Id::Whole(number), part: 0, parts: 1, bytes: NUMBER })
    }

    fn quality(&self) -> Option<Quality> {
        let seen: Vec<Seen> = self.seen.iter().map(|seen| Seen(seen.load(Relaxed))).collect();
        let answered = |seen: &&Seen| seen.0 != 0;
        let known = seen.iter().take(self.farthest.len()).filter(answered);
        let (of, found) = known.fold((0_u64, 0), |(of, found), seen| (of + 1, found + seen.found()));
        #[expect(clippy::cast_precision_loss)] // Of a share.
        let recall = found as f64 / (of * self.nearest as u64).max(1) as f64;
        let all = seen.iter().enumerate().filter(|(_, seen)| seen.0 != 0);
        let sum = all.fold(0_u64, |sum, (number, seen)| sum.wrapping_add(mix2(number as u64, seen.0)));
        let queries = seen.iter().filter(answered).count() as u64;
        Some(Quality { nearest: self.nearest as u64, recall, of, queries, answers: format!("{sum:016x}") })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        open: Open,
    }

    fn vsearch(words: &str) -> Result<Vsearch, String> {
        let words = format!("load vsearch tcp:127.0.0.1:7000 --dimensions 20 --queries 8 --recall-of 4 {words}");
        Vsearch::new(&Options::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?.open)
    }

    fn good(more: &str) -> Vsearch {
        vsearch(&format!("--items 500 --nearest 3 {more}")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// All vectors, the nearest first.
    fn right(vsearch: &Vsearch, key: u64) -> Vec<(f32, u32)> {
        let mut stored = vec![0.0; vsearch.stride];
        let mut all: Vec<(f32, u32)> = (0..vsearch.items)
            .map(|number| {
                vsearch.vectors.get(number.into(), &mut stored).unwrap_or_else(|error| panic!("{error}"));
                (distance(vsearch.query(key).1, &stored), number)
            })
            .collect();
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        all
    }

    fn text(found: &[(f32, u32)]) -> String {
        let one = |(far, number): &(f32, u32)| {
            let (far, number) = (far.to_string(), number.to_string());
            format!("${}\r\n{number}\r\n*2\r\n$1\r\nd\r\n${}\r\n{far}\r\n", number.len(), far.len())
        };
        format!("*{}\r\n:{}\r\n", 1 + 2 * found.len(), found.len()) + &found.iter().map(one).collect::<String>()
    }

    fn kind(vsearch: &Vsearch, key: u64, answer: &str) -> &'static str {
        match vsearch.check(0, &Request { op: 0, key, version: 0 }, answer.as_bytes()) {
            Ok(Some((_, Checked::Wrong(kind, _)))) => kind,
            Ok(Some((used, Checked::Right))) if used == answer.len() => "right",
            Ok(None) => "not whole",
            _ => "garbage",
        }
    }

    #[test]
    fn requests_are_commands_of_redis() {
        let mut written = Vec::new();
        let vsearch = good("--probes 7");
        vsearch.write(9, &Request { op: 0, key: 2, version: 0 }, &mut written);
        let head = b"*15\r\n$9\r\nFT.SEARCH\r\n$7\r\nvectors\r\n$35\r\n*=>[KNN 3 @vector $q NPROBE 7 AS d]\r\n$6\r\nPARAMS\r\n$1\r\n2\r\n$1\r\nq\r\n$80\r\n";
        assert!(written.starts_with(head), "{}", String::from_utf8_lossy(&written));
        let blob = &written[head.len()..head.len() + 80];
        let sent: Vec<f32> = blob.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(sent, vsearch.query(2).1[..20]);
        let by_udp = Vsearch { transport: Transport::Udp, ..vsearch };
        written.clear();
        by_udp.write(9, &Request::default(), &mut written);
        assert!(written.starts_with(&[9, 0, 0, 0, 0, 0, 0, 0, b'*']));
    }

    #[test]
    fn queries_whose_recall_is_told_are_asked_first() {
        let vsearch = good("");
        let keys: Vec<u64> = (0..6).map(|_| vsearch.request(0, 7).key).collect();
        assert_eq!(keys, [0, 1, 2, 3, 7, 7]);
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_found() {
        let vsearch = good("");
        let all = right(&vsearch, 1);
        let found = &all[..3];
        let whole = text(found);
        for end in 0..whole.len() {
            assert_eq!(kind(&vsearch, 1, &whole[..end]), "not whole", "{end}");
        }
        type Change<'a> = &'a dyn Fn(&mut Vec<(f32, u32)>);
        let changed = |change: Change<'_>| {
            let mut found = found.to_vec();
            change(&mut found);
            kind(&vsearch, 1, &text(&found))
        };
        // One bit, of a vector or of its distance.
        assert_eq!(changed(&|found| found[1].0 = f32::from_bits(found[1].0.to_bits() ^ 1)), "wrong distances");
        assert_eq!(changed(&|found| found[1].1 ^= 1), "wrong distances");
        assert_eq!(changed(&|found| found.swap(0, 2)), "wrong orders");
        assert_eq!(changed(&|found| found[1] = found[0]), "wrong vectors");
        assert_eq!(changed(&|found| found[1].1 = 500), "wrong vectors");
        assert_eq!(changed(&|found| found.truncate(2)), "wrong counts");
        assert_eq!(changed(&|found| found.push(all[3])), "wrong counts");
        for garbage in [
            whole.replacen(":3", ":2", 1),
            whole.replacen("$1\r\nd", "$1\r\ne", 1),
            whole.replacen("*2", "*4", 1),
            "+OK\r\n".into(),
            "x".repeat(5000),
        ] {
            assert_eq!(kind(&vsearch, 1, &garbage), "garbage", "{garbage}");
        }
        assert_eq!(kind(&vsearch, 1, "-ERR no\r\n"), "requests refused");
        assert_eq!(vsearch.quality().map(|quality| quality.queries), Some(0), "nothing of that counts");
        assert_eq!(kind(&vsearch, 1, &whole), "right");
        assert_eq!(kind(&vsearch, 1, &whole), "right");
        // It may miss one, but then always.
        assert_eq!(changed(&|found| found[2] = all[4]), "answers that changed");
    }

    #[test]
    fn recall_and_what_answers_come_to() {
        let vsearch = good("");
        let quality = |vsearch: &Vsearch| vsearch.quality().unwrap_or_else(|| panic!("it has one"));
        let all = |key| right(&vsearch, key);
        assert_eq!(kind(&vsearch, 0, &text(&all(0)[..3])), "right");
        // Two of three, and a query of which nothing is known.
        assert_eq!(kind(&vsearch, 3, &text(&[all(3)[0], all(3)[2], all(3)[9]])), "right");
        assert_eq!(kind(&vsearch, 7, &text(&all(7)[5..8])), "right");
        let told = quality(&vsearch);
        assert_eq!((told.nearest, told.of, told.queries), (3, 2, 3));
        assert!((told.recall - 5.0 / 6.0).abs() < 1e-9, "{}", told.recall);
        // In another order they come to the same; with another vector they do not.
        let other = good("");
        for key in [7, 3, 0] {
            let found = match key {
                0 => all(0)[..3].to_vec(),
                3 => vec![all(3)[0], all(3)[2], all(3)[9]],
                _ => all(7)[5..8].to_vec(),
            };
            assert_eq!(kind(&other, key, &text(&found)), "right");
        }
        assert_eq!(quality(&other).answers, told.answers);
        let third = good("");
        assert_eq!(kind(&third, 0, &text(&all(0)[..3])), "right");
        assert_eq!(kind(&third, 3, &text(&[all(3)[0], all(3)[2], all(3)[9]])), "right");
        assert_eq!(kind(&third, 7, &text(&[all(7)[5], all(7)[6], all(7)[8]])), "right");
        assert_ne!(quality(&third).answers, told.answers);
    }

    #[test]
    fn options_that_do_not_go_together() {
        let short = tempfile::Builder::new().suffix(".bvecs").tempfile().unwrap_or_else(|error| panic!("{error}"));
        let vectors: Vec<u8> = (0..12).flat_map(|number| [2, 0, 0, 0, number, number]).collect();
        std::fs::write(short.path(), vectors).unwrap_or_else(|error| panic!("{error}"));
        for (words, says) in [
            ("--nearest 101", "invalid value"),
            ("--nearest 100 --items 50", "more than the 50"),
            ("--items 5000000000", "at most"),
        ] {
            assert!(vsearch(words).is_err_and(|said| said.contains(says)), "{words}");
        }
        let load = |words: &str| {
            let words = format!("load vsearch tcp:127.0.0.1:7000 --nearest 2 {words}");
            let options = Options::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?;
            Vsearch::new(&options.open)
        };
        let file = |more: &str| load(&format!("--queries 8 --file {} {more}", short.path().display()));
        assert!(file("--items 5").is_err_and(|said| said.contains("has 12 vectors")));
        assert!(file("--items 4").is_ok());
        assert!(file("--items 4 --dimensions 2").is_err_and(|said| said.contains("cannot be used with")));
        assert!(load("--items 4 --file /nowhere.bvecs").is_err_and(|said| said.contains("/nowhere.bvecs")));
    }
}
