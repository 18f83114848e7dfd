//! The same random commands to a session here and to a real memcached, whose answers must be the same bytes.
//!
//! Both begin empty and count unique numbers from 1, so these are compared too. Times are so far away, or so near, that it does not matter in which second
//! a command is done; the seconds since a use and the remains of a life are compared only where they cannot differ.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::kv::protocol::base64;
use crate::kv::reply::Replies;
use crate::kv::session::{Next, Service, Session};
use crate::kv::store::Store;

const COMMANDS: usize = 6000;
const PATIENCE: Duration = Duration::from_secs(10);

/// A memcached that ends with the test.
struct Memcached {
    child: Child,
    stream: TcpStream,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Memcached {
    /// `None`: it is not installed, and that was said.
    fn start() -> Option<Memcached> {
        let until = Instant::now() + PATIENCE;
        let (mut child, mut address) = Memcached::spawn()?;
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "memcached does not answer: {error}"),
            }
            if child.try_wait().unwrap().is_some() {
                // Somebody else has the port.
                (child, address) = Memcached::spawn()?;
            }
            thread::sleep(Duration::from_millis(20));
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut memcached = Memcached { child, stream };
        let version = memcached.ask(b"version\r\n");
        if version != b"VERSION 1.6.18\r\n" {
            println!("skipped: this memcached is another: {}", version.escape_ascii());
            return None;
        }
        Some(memcached)
    }

    fn spawn() -> Option<(Child, SocketAddr)> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("memcached");
        // Without its maintainer, which holds items now and then: then an `incr` makes a new one.
        command.args(["-o", "no_modern", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "256", "-u", "root", "-p"]);
        command.arg(address.port().to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some((child, address)),
            Err(error) => {
                println!("skipped: memcached cannot be started: {error}");
                None
            }
        }
    }

    /// The answer to a command, up to that of the `mn` that follows it.
    fn ask(&mut self, command: &[u8]) -> Vec<u8> {
        self.stream.write_all(&[command, b"mn\r\n"].concat()).unwrap();
        let (mut answer, mut piece) = (Vec::new(), [0; 65536]);
        while !(answer.ends_with(b"MN\r\n") && (answer.len() == 4 || answer[answer.len() - 5] == b'\n')) {
            let bytes = self.stream.read(&mut piece).unwrap_or_else(|error| {
                panic!("no end of the answer to {}: {}: {error}", command.escape_ascii(), answer.escape_ascii())
            });
            assert_ne!(bytes, 0, "memcached has closed the connection after {}", command.escape_ascii());
            answer.extend_from_slice(&piece[..bytes]);
        }
        answer.truncate(answer.len() - 4);
        answer
    }
}

/// The answer here.
fn ask(session: &mut Session<'_>, command: &[u8], random: &mut impl Rng) -> Vec<u8> {
    // A small buffer, and pieces: what does not fit goes on.
    let mut buffer = [0; 300];
    let mut replies = Replies::new(&mut buffer, Vec::new());
    let (mut waiting, mut rest) = (Vec::new(), command);
    loop {
        let (used, next) = session.feed(&waiting, &mut replies).unwrap();
        assert_eq!(next, Next::More);
        waiting.drain(..used);
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(random.random_range(1..=rest.len()));
        waiting.extend_from_slice(now);
        rest = later;
    }
    assert!(waiting.is_empty() && session.is_between());
    replies.finish().unwrap()
}

struct Maker<R> {
    random: R,
    cas: u64,
}

impl<R: Rng> Maker<R> {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of.choose(&mut self.random).unwrap()
    }

    fn often(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn key(&mut self) -> String {
        match self.random.random_range(0..60) {
            0 => "k".repeat(self.random.random_range(248..253)),
            1 => "\x01\tq".into(),
            2 => "\u{e9}\u{fc}".into(),
            n => format!("key{}", n % 9),
        }
    }

    fn short_key(&mut self) -> String {
        let key = self.key();
        if key.len() > 250 { "key1".into() } else { key }
    }

    fn number(&mut self) -> String {
        match self.random.random_range(0..14) {
            0 => "-1".into(),
            1 => "x".into(),
            // No larger: for 2⁶³ and more memcached looks for a sign in whatever lies behind the number in memory.
            2 => "1099511627776".into(),
            3 => "18446744073709551616".into(),
            4 => "4294967296".into(),
            5 => "+5".into(),
            6 => "12x".into(),
            7 => "-0".into(),
            _ => self.random.random_range(0..300u32).to_string(),
        }
    }

    /// Never, at once, or in an hour.
    fn time(&mut self) -> &'static str {
        self.one(&["0", "0", "0", "0", "-1", "3600", "3600", "2592001", "1", "99999999999", "4294967296", "abc", "-99"])
            .replace_one()
    }

    fn cas(&mut self) -> u64 {
        match self.random.random_range(0..4) {
            0 => 0,
            1 => self.random.random_range(0..self.cas + 5),
            _ => self.cas,
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.random.random_range(0..12) {
            0..5 => self.random.random_range(0..2000u64).to_string().into_bytes(),
            5 => b"1099511627770".to_vec(),
            6 => b"5 tail".to_vec(),
            // With ends of lines: a refused one is read as commands, and a long line is one of the known differences, as is a byte 0.
            7 => b"xxxxxxxxxxxxxxx\n".repeat(self.random.random_range(0..400)),
            8 => Vec::new(),
            9 => b"\r\nEND\r\n".to_vec(),
            _ => (0..self.random.random_range(0..80)).map(|_| self.random.random_range(1..=255)).collect(),
        }
    }

    fn with_value(&mut self, head: String, tail: &str) -> Vec<u8> {
        let value = self.value();
        let length = match self.random.random_range(0..60) {
            0 if !value.is_empty() => value.len() - 1,
            _ => value.len(),
        };
        [format!("{head} {length}{tail}\r\n").as_bytes(), &value, b"\r\n"].concat()
    }

    fn quiet(&mut self) -> &'static str {
        if self.often(15) { " noreply" } else { "" }
    }

    fn classic(&mut self) -> Vec<u8> {
        let key = self.key();
        let line = match self.random.random_range(0..30) {
            0..9 => {
                let name = self.one(&["set", "set", "set", "add", "replace", "append", "prepend"]);
                let flags = self.number();
                let (time, quiet) = (self.time(), self.quiet());
                return self.with_value(format!("{name} {key} {flags} {time}"), quiet);
            }
            9..11 => {
                let (cas, quiet) = (self.cas(), self.quiet());
                return self.with_value(format!("cas {key} 3 0"), &format!(" {cas}{quiet}"));
            }
            11..16 => {
                let mut line = self.one(&["get", "gets", "get ", "bget"]).to_string();
                for _ in 0..self.random.random_range(0..30) / 4 {
                    // Behind others, one that is too long: memcached has looked at the others then.
                    line += &format!(" {}", self.short_key());
                }
                line
            }
            16..18 => format!("{} {} {key} {}", self.one(&["gat", "gats"]), self.time(), self.short_key()),
            18..20 => format!("delete {key}{}{}", self.one(&["", "", "", " 0", " 5", " 0 x"]), self.quiet()),
            20..25 => format!("{} {key} {}{}", self.one(&["incr", "decr"]), self.number(), self.quiet()),
            25..27 => format!("touch {key} {}{}", self.time(), self.quiet()),
            27 if self.often(20) => format!("flush_all{}{}", self.one(&["", " 0", " -1", " x"]), self.quiet()),
            28 => format!("verbosity{}{}", self.one(&["", " 1", " x", " 1 2 3"]), self.quiet()),
            _ => self
                .one(&[
                    "",
                    " ",
                    "x",
                    "nonsense key",
                    "version",
                    "GET key1",
                    "get",
                    "set key1 0 0",
                    "incr key1",
                    "touch key1",
                    "stats nonsense",
                ])
                .into(),
        };
        [line.as_bytes(), if self.often(10) { b"\n" } else { b"\r\n" }].concat()
    }

    /// Flags of a meta command: some of these, each once, except where an error is wanted.
    fn flags(&mut self, letters: &str) -> String {
        let mut text = String::new();
        let mut left: Vec<char> = letters.chars().collect();
        for _ in 0..self.random.random_range(0..6) {
            if left.is_empty() {
                break;
            }
            let at = self.random.random_range(0..left.len());
            // Of others memcached finds out when it has done half of the work.
            let too_long = letters.contains('I') && self.often(3);
            let letter = if self.often(1) { left[at] } else { left.swap_remove(at) };
            text += &format!(" {letter}");
            match letter {
                'T' | 'N' => text += self.time(),
                'R' => text += self.one(&["0", "30", "7200", "x"]),
                'C' => text += &self.cas().to_string(),
                'F' | 'D' | 'J' => text += &self.number(),
                'O' => text += &"o".repeat(self.random.random_range(0..31) + if too_long { 10 } else { 0 }),
                'P' | 'L' => text += "/some/where",
                _ => {}
            }
        }
        if self.often(2) {
            text += self.one(&[" !", " y", " T", " ~"]);
        }
        text
    }

    fn meta(&mut self) -> Vec<u8> {
        let mut key = self.key();
        let mut binary = "";
        if self.often(15) {
            let mut text = Vec::new();
            base64::encode(key.as_bytes(), |four| text.extend(four));
            key = String::from_utf8(text).unwrap();
            binary = " b";
        }
        let line = match self.random.random_range(0..20) {
            0..7 => format!("mg {key}{binary}{}", self.flags("cfkOqsuvhTNRtPL")),
            7..12 => {
                let mode = if self.often(40) { self.one(&[" MS", " ME", " MA", " MP", " MR", " MX", " M", " MSS"]) } else { "" };
                // Appended to, a key forgets that it is binary in one of both only.
                let binary = if mode.is_empty() { binary } else { "" };
                let key = if binary.is_empty() { self.key() } else { key };
                let tail = format!("{binary}{mode}{}", self.flags("ckOqTCFIPL"));
                return self.with_value(format!("ms {key}"), &tail);
            }
            12..15 => format!("md {key}{binary}{}", self.flags("CIkOqT")),
            15..19 => {
                let mode = if self.often(50) { self.one(&[" MI", " M+", " MD", " M-", " M?", " M"]) } else { "" };
                // Without T: where a number gets longer, memcached sets it on the item that goes.
                format!("ma {key}{binary}{mode}{}", self.flags("NJDCqtcvkO"))
            }
            _ => self.one(&["mg", "ms key1", "md", "ma", "mx key1", "me", "me none", "mg *** b"]).into(),
        };
        [line.as_bytes(), b"\r\n"].concat()
    }
}

trait One {
    fn replace_one(self) -> &'static str;
}

impl One for &'static str {
    /// An item that expires in a second may do so in another one's middle.
    fn replace_one(self) -> &'static str {
        if self == "1" { "-1" } else { self }
    }
}

/// The time left of an hour may differ by the seconds that the test takes.
fn without_seconds(answer: &[u8]) -> Vec<u8> {
    let text = answer.escape_ascii().to_string();
    let mut words: Vec<String> = text.split(' ').map(String::from).collect();
    for word in &mut words {
        let end = word.find('\\').unwrap_or(word.len());
        let number = word[..end].strip_prefix('t').and_then(|number| number.parse::<u32>().ok());
        if let Some(number) = number.filter(|number| *number > 7000 || (3000..=3600).contains(number)) {
            word.replace_range(..end, if number > 7000 { "t(over)" } else { "t(3600)" });
        }
    }
    words.join(" ").into_bytes()
}

fn compare(seed: u64) {
    let Some(mut memcached) = Memcached::start() else { return };
    let service = Service::new(Store::new(256 << 20, 1 << 20).unwrap(), 65536, 10, 1, 1392);
    let mut session = Session::new(&service);
    let mut maker = Maker { random: Xoshiro256PlusPlus::seed_from_u64(seed), cas: 1 };
    let mut cut = Xoshiro256PlusPlus::seed_from_u64(seed + 1);
    let mut before: Vec<String> = Vec::new();
    for number in 0..COMMANDS {
        let command = if maker.often(50) { maker.classic() } else { maker.meta() };
        let theirs = without_seconds(&memcached.ask(&command));
        let ours = without_seconds(&ask(&mut session, &command, &mut cut));
        before.push(format!("{} -> {}", command.escape_ascii(), String::from_utf8_lossy(&theirs)));
        let recent = || {
            before[before.len().saturating_sub(12)..]
                .iter()
                .map(|line| &line[..line.floor_char_boundary(200)])
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(
            theirs == ours,
            "seed {seed}, command {number}:\n{}\n\nthey: {}\nwe:   {}",
            recent(),
            String::from_utf8_lossy(&theirs),
            String::from_utf8_lossy(&ours)
        );
        if maker.often(30) {
            // A number to compare with, of some key.
            let key = maker.key();
            let answer = memcached.ask(format!("mg {key} c u\r\n").as_bytes());
            let ours = ask(&mut session, format!("mg {key} c u\r\n").as_bytes(), &mut cut);
            assert_eq!(
                answer.escape_ascii().to_string(),
                ours.escape_ascii().to_string(),
                "seed {seed}, command {number}:\n{}",
                recent()
            );
            let number = answer.strip_prefix(b"HD c").and_then(|rest| rest.split(|byte| !byte.is_ascii_digit()).next());
            if let Some(number) = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()) {
                maker.cas = number;
            }
        }
    }
}

#[test]
fn answers_are_those_of_memcached() {
    for seed in 1..=8 {
        compare(seed);
    }
}
