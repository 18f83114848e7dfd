//! Connections and datagrams: commands to answers.
//!
//! | command | answer |
//! |---|---|
//! | `FT.SEARCH vectors …` | the nearest vectors: [`super::query`] |
//! | `FT.INFO vectors`, `FT._LIST` | what the index is; its name |
//! | `VERIFY` | looks at all vectors; an error if one is not what was stored |
//! | `INFO` | what happened since the start |
//! | `PING`, `HELLO`, `CLIENT`, `COMMAND`, `SELECT 0`, `QUIT` | what clients ask for before and after |
//!
//! Commands of a connection are answered in order; a connection has two buffers of [`BUFFER`] bytes on its stack. A command must fit into one of them;
//! nothing more is read before the answers are sent.
//!
//! A datagram is 8 bytes that the client chooses and an `FT.SEARCH`; its answer is those 8 bytes and the answer. Its sender may be forged: what is none has no
//! answer, and one whose answer may be longer than `--max-udp-answer` is refused before anything is done.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use farshore_load::vectors::DIMENSIONS_MAX;
use farshore_uthread::net::Datagram;

use super::index::{Failed, Index};
use super::query::{self, INDEX, Search, Shown};
use super::resp::{self, Answer};
use super::stats::{Count, NAMES};
use crate::service::{BUFFER, Connections, NUMBER, Service, Stream};

/// Answers are sent when there are more bytes of them.
const ANSWERS: usize = BUFFER / 2;
/// Bytes that an answer has besides its vectors, or an error.
const NO_VECTORS: usize = 128;
/// Bytes of a vector's number and field in an answer, without the field's name: a distance has no more than 50 digits.
const VECTOR: usize = 17 + 4 + 7 + 57;

/// The service.
#[derive(Debug)]
pub struct Server {
    index: Index,
    /// Lists that a search reads that does not say how many.
    probes: usize,
    connections: Connections,
    /// Somebody looks at all vectors.
    verifies: AtomicBool,
    /// The longest answer to a datagram, without its number.
    max_udp_answer: usize,
}

impl Server {
    /// Around this index. A search reads `probes` lists if it does not say how many; answers to datagrams have at most `max_udp_answer` bytes.
    pub fn new(index: Index, probes: usize, max_udp_answer: usize) -> Server {
        Server { index, probes, connections: Connections::default(), verifies: AtomicBool::new(false), max_udp_answer }
    }

    /// The index.
    #[cfg(test)]
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The answer to a datagram, if it is one.
    pub(super) fn told(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        let (number, command) = datagram.split_first_chunk::<NUMBER>()?;
        let (words, used) = resp::parse(command).ok()??;
        let (name, words) = words.all().split_first().filter(|_| used == command.len())?;
        if !name.eq_ignore_ascii_case(b"FT.SEARCH") {
            return None;
        }
        let mut answer = number.to_vec();
        match query::parse(words) {
            Ok(search) if longest(&search) > self.max_udp_answer => {
                self.refuse("the answer is too long for UDP: ask by TCP", &mut answer)
            }
            // A datagram costs its sender nothing, who may be forged: no more work than the server's own measure.
            Ok(search) if search.probes.is_some_and(|probes| probes > self.probes) => {
                self.refuse(&format!("NPROBE: over UDP a search reads {} lists at most: ask by TCP", self.probes), &mut answer)
            }
            Ok(search) => {
                // Who asked is told.
                let _ = self.search(&search, &mut answer);
            }
            Err(wrong) => self.refuse(wrong, &mut answer),
        }
        Some(answer)
    }

    fn refuse(&self, why: &str, to: &mut Vec<u8>) {
        self.index.counters.add(Count::Refused);
        to.error(format_args!("ERR {why}"));
    }

    /// Appends the answer to a command. Whether the connection goes on.
    fn answer(&self, words: &[&[u8]], to: &mut Vec<u8>) -> bool {
        let Some((name, words)) = words.split_first() else { return true };
        let mut goes_on = true;
        match (&*name.to_ascii_uppercase(), words) {
            (b"FT.SEARCH", words) => match query::parse(words) {
                Ok(search) => goes_on = self.search(&search, to) != Err(Failed::Stopped),
                Err(wrong) => self.refuse(wrong, to),
            },
            (b"VERIFY", []) => goes_on = self.verify(to) != Err(Failed::Stopped),
            (b"FT.INFO", [INDEX]) => self.described(to),
            (b"FT._LIST", []) => {
                to.array(1);
                to.bulk(INDEX);
            }
            (b"INFO", _) => self.stats(to),
            (b"PING", []) => to.simple("PONG"),
            (b"PING", [word]) => to.bulk(word),
            (b"HELLO", [] | [b"2"]) => {
                to.array(6);
                [&b"server"[..], b"farshore-serve", b"version", env!("CARGO_PKG_VERSION").as_bytes(), b"proto"]
                    .iter()
                    .for_each(|word| to.bulk(word));
                to.integer(2);
            }
            (b"HELLO", _) => to.error("NOPROTO it speaks version 2 alone"),
            // Whoever asks for no answers must not be told OK and get some.
            (b"CLIENT", [what, ..]) if what.eq_ignore_ascii_case(b"REPLY") => self.refuse("CLIENT REPLY is not understood", to),
            (b"CLIENT", _) | (b"SELECT", [b"0"]) => to.simple("OK"),
            (b"COMMAND", _) => to.array(0),
            (b"QUIT", _) => {
                to.simple("OK");
                goes_on = false;
            }
            _ => {
                self.index.counters.add(Count::Refused);
                to.error("ERR unknown command, or wrong arguments");
            }
        }
        goes_on
    }

    fn search(&self, search: &Search<'_>, to: &mut Vec<u8>) -> Result<(), Failed> {
        let mut place = [0.0; DIMENSIONS_MAX];
        let query = &mut place[..self.index.stride()];
        let (numbers, rest) = search.vector.as_chunks();
        if !rest.is_empty() || numbers.len() != self.index.dimensions() {
            self.refuse(&format!("the vector must have {} numbers of 4 bytes (FLOAT32)", self.index.dimensions()), to);
            return Ok(());
        }
        query.iter_mut().zip(numbers).for_each(|(to, bytes)| *to = f32::from_le_bytes(*bytes));
        if query.iter().any(|number| !number.is_finite()) {
            self.refuse("the vector has what is no finite number", to);
            return Ok(());
        }
        // Distances are sums of squares, and those from far away would all be the same infinite one.
        if query.iter().map(|number| number * number).sum::<f32>() > f32::MAX / 4.0 {
            self.refuse("the vector's numbers are too large: the sum of their squares must be below 8e37", to);
            return Ok(());
        }
        let probes = search.probes.unwrap_or(self.probes);
        if !(1..=self.index.lists()).contains(&probes) {
            self.refuse(&format!("NPROBE: want 1 to {} lists", self.index.lists()), to);
            return Ok(());
        }
        let found = self.index.search(query, search.nearest, probes);
        match &found {
            Ok(found) => shown(search, found, to),
            Err(failed) => self.failed(*failed, to),
        }
        found.map(drop)
    }

    fn verify(&self, to: &mut Vec<u8>) -> Result<(), Failed> {
        if self.verifies.swap(true, SeqCst) {
            self.refuse("somebody verifies already: ask again when that is done", to);
            return Ok(());
        }
        let found = self.index.verify();
        self.verifies.store(false, SeqCst);
        match &found {
            Ok(count) => to.simple(format_args!("OK {count} vectors are as they were stored")),
            Err(failed) => self.failed(*failed, to),
        }
        found.map(drop)
    }

    fn failed(&self, failed: Failed, to: &mut Vec<u8>) {
        match failed {
            Failed::Damaged(place) => {
                to.error(format_args!("DAMAGED the vector or the centroid at place {place} is not what was stored there"))
            }
            Failed::Stopped => to.error("ERR the server is told to end"),
        }
    }

    fn described(&self, to: &mut Vec<u8>) {
        let index = &self.index;
        let numbers =
            [("num_docs", index.vectors()), ("dim", index.dimensions()), ("lists", index.lists()), ("probes", self.probes)];
        to.array(2 * numbers.len() + 6);
        [&b"index_name"[..], INDEX, b"type", b"FLOAT32", b"distance_metric", b"L2"].iter().for_each(|word| to.bulk(word));
        for (name, number) in numbers {
            to.bulk(name.as_bytes());
            to.bulk(number.to_string().as_bytes());
        }
    }

    fn stats(&self, to: &mut Vec<u8>) {
        let mut text = Vec::from(b"# vectors\r\n");
        let index = &self.index;
        let numbers =
            [("vectors", index.vectors()), ("dimensions", index.dimensions()), ("lists", index.lists()), ("probes", self.probes)];
        numbers.iter().for_each(|(name, number)| text.put(format_args!("{name}:{number}\r\n")));
        NAMES.iter().for_each(|(count, name)| text.put(format_args!("{name}:{}\r\n", index.counters.get(*count))));
        to.bulk(&text);
    }

    /// Answers whole commands of what has come. How many bytes are used up, and whether the connection goes on.
    pub(super) fn feed(
        &self,
        input: &[u8],
        answers: &mut Vec<u8>,
        flush: &mut impl FnMut(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<(usize, bool)> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match resp::parse(rest) {
                Ok(Some((words, length))) => {
                    used += length;
                    if !self.answer(words.all(), answers) {
                        return Ok((used, false));
                    }
                    // That takes long: between two of them a client that has gone is noticed.
                    let verified = words.all().first().is_some_and(|name| name.eq_ignore_ascii_case(b"VERIFY"));
                    if verified || answers.len() > ANSWERS {
                        flush(answers)?;
                    }
                }
                Ok(None) if rest.len() < BUFFER => return Ok((used, true)),
                wrong => {
                    let wrong = wrong.err().map_or("too long a command", |wrong| wrong.0);
                    self.refuse(&format!("Protocol error: {wrong}"), answers);
                    return Ok((used, false));
                }
            }
        }
    }
}

/// Bytes that the answer to a search may have.
fn longest(search: &Search<'_>) -> usize {
    let count = search.nearest.min(search.limit.1);
    let each = match &search.shown {
        Shown::Name | Shown::Nothing => VECTOR,
        Shown::Distance(name) => VECTOR + name.len(),
    };
    NO_VECTORS + count * each
}

/// How many were found; and of each its name, and what was asked for.
fn shown(search: &Search<'_>, found: &[(f32, u32)], to: &mut Vec<u8>) {
    let (out, most) = search.limit;
    let shown = found.iter().skip(out).take(most);
    let each = if search.shown == Shown::Name { 1 } else { 2 };
    to.array(1 + each * shown.len());
    to.integer(found.len());
    for (far, id) in shown {
        to.bulk(id.to_string().as_bytes());
        match &search.shown {
            Shown::Name => {}
            Shown::Nothing => to.array(0),
            Shown::Distance(name) => {
                to.array(2);
                to.bulk(name);
                to.bulk(far.to_string().as_bytes());
            }
        }
    }
}

impl Service for Server {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connection(&self, stream: &Stream) -> io::Result<()> {
        let mut input = [0; BUFFER];
        let mut output = [0; BUFFER];
        let mut answers = Vec::with_capacity(BUFFER);
        // What the kernel reads from lies on the stack, which is near.
        let mut flush = |answers: &mut Vec<u8>| {
            for piece in answers.chunks(BUFFER) {
                output[..piece.len()].copy_from_slice(piece);
                stream.write_all(&output[..piece.len()])?;
            }
            answers.clear();
            Ok(())
        };
        let mut have = 0;
        loop {
            let (used, goes_on) = self.feed(&input[..have], &mut answers, &mut flush)?;
            flush(&mut answers)?;
            if !goes_on {
                return Ok(());
            }
            input.copy_within(used..have, 0);
            have -= used;
            let read = stream.read(&mut input[have..])?;
            if read == 0 {
                return Ok(());
            }
            have += read;
        }
    }

    fn datagram(&self, mut datagram: Datagram<'_>) {
        let Some(told) = self.told(datagram.bytes()) else { return datagram.malformed() };
        let Some(place) = datagram.buffer().get_mut(..told.len()) else { return datagram.malformed() };
        place.copy_from_slice(&told);
        datagram.reply(told.len());
    }

    fn too_many(&self) -> &'static [u8] {
        b"-ERR max number of clients reached\r\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the longest possible fields come to.
    #[test]
    fn no_answer_is_longer_than_is_said() {
        let name = "n".repeat(64);
        let query = format!("*=>[KNN 100 @v $q AS {name}]");
        let words = ["vectors", &query, "PARAMS", "2", "q", "x", "LIMIT", "0", "100"].map(str::as_bytes);
        let search = query::parse(&words).unwrap();
        // The distances with the most digits: the largest, and the smallest.
        for far in [f32::MAX, f32::from_bits(1), f32::MIN_POSITIVE, 1.2345678e-38, f32::from_bits(0x007f_ffff)] {
            let (mut answer, found) = (Vec::new(), vec![(far, u32::MAX); 100]);
            shown(&search, &found, &mut answer);
            assert!(answer.len() <= longest(&search), "{}: {} of {}", far, answer.len(), longest(&search));
        }
        let (shown_by_name, limited) =
            (Search { shown: Shown::Name, ..search.clone() }, Search { limit: (0, 3), ..search.clone() });
        assert!(longest(&shown_by_name) < longest(&search) && longest(&limited) < longest(&search) / 20);
    }
}
