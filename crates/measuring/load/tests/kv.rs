//! `farshore-load kv` against redis-server and memcached, where they are installed, and against a server that errs.

mod common;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::told;
use farshore_load::outcome::{MEASURE, Outcome};

fn load(arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_farshore-load");
    let words = ["120", program, "--events", "kv"];
    let command = Command::new("timeout").args(words).args(arguments.split_whitespace()).output();
    command.unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn good(arguments: &str) -> Outcome {
    let output = load(arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
    told(&output).1
}

/// The only line that says what was wrong, which has to contain `wanted`.
fn wrong(arguments: &str, wanted: &str) -> Outcome {
    let output = load(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments}: {output:?}");
    let outcome = told(&output).1;
    assert!(outcome.wrong.iter().any(|wrong| wrong.contains(wanted)), "{arguments}: {:?}", outcome.wrong);
    outcome
}

/// Nothing could be measured: the line on stderr.
fn refused(arguments: &str) -> String {
    let output = load(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments}: {output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

// Real servers.

/// A server that ends with its test, and by itself if the test does not come to that.
struct Real(Child);

impl Real {
    /// Starts `program` and waits until it listens on the socket; `None` if it is not installed.
    fn start(program: &str, arguments: &[&str], socket: &Path) -> Option<Real> {
        let installed = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if installed.is_err() {
            eprintln!("skipped: {program} is not installed");
            return None;
        }
        let command =
            Command::new("timeout").arg("150").arg(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Real(command.unwrap_or_else(|error| panic!("{program}: {error}")));
        let start = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            let ended = server.0.try_wait();
            assert!(matches!(ended, Ok(None)), "{program}: {ended:?}");
            assert!(start.elapsed() < Duration::from_secs(60), "{program} does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // timeout(1) passes SIGTERM on; SIGKILL would leave the server.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Place { directory: tempfile::tempdir().unwrap_or_else(|error| panic!("{error}")) }
    }

    fn socket(&self) -> String {
        self.directory.path().join("socket").to_string_lossy().into_owned()
    }

    fn redis(&self, memory: &str) -> Option<Real> {
        let directory = self.directory.path().to_string_lossy();
        let socket = self.socket();
        let files = ["--dir", &directory, "--save", "", "--appendonly", "no", "--port", "0", "--unixsocket", &socket];
        Real::start("redis-server", &[&files[..], &["--maxmemory", memory, "--daemonize", "no"]].concat(), Path::new(&socket))
    }

    fn memcached(&self, megabytes: &str, more: &[&str]) -> Option<Real> {
        let socket = self.socket();
        // Of use to root alone, which it refuses to run as otherwise.
        let options = ["-u", "root", "-s", &socket, "-m", megabytes, "-t", "2"];
        Real::start("memcached", &[&options[..], more].concat(), Path::new(&socket))
    }
}

fn a_whole_run(server: &str, socket: &str) {
    let options = format!("--server {server} --address {socket} --size 2M --rate 4000 --seconds 1 --warmup 0.3 --gets 70");
    let output = load(&format!("{options} --threads 2 --connections 5"));
    assert!(output.status.success(), "{output:?}");
    let (phases, outcome) = told(&output);
    assert_eq!(phases, ["fill", "warm-up", MEASURE, "verify"]);
    assert_eq!((outcome.workload.as_str(), outcome.unit.as_str(), outcome.data_bytes), ("kv", "request", 2 << 20));
    // 4000 a second: six standard deviations.
    assert!(outcome.operations.abs_diff(4000) < 380, "{}", outcome.operations);
    assert_eq!(outcome.latency.total(), outcome.operations);
    assert_eq!(outcome.timeline.operations.iter().sum::<u64>(), outcome.operations);
    assert!(outcome.seconds >= 1.0 && outcome.timeline.operations.len() >= 10);
    let phase = |name: &str| outcome.phases.iter().find(|phase| phase.name == name).map(|phase| phase.operations);
    assert_eq!((phase("fill"), phase(MEASURE), phase("verify")), (Some(2048), Some(outcome.operations), Some(2048)));
    assert!(outcome.verified.contains("2048 keys"), "{}", outcome.verified);
    // The schedule and the data do not depend on how they are dealt out.
    let other = good(&format!("{options} --threads 1 --connections 1"));
    assert_eq!((other.operations, &other.checksum), (outcome.operations, &outcome.checksum));
    let other = good(&format!("{options} --threads 3 --connections 20 --seed 2"));
    assert_ne!(other.checksum, outcome.checksum);
    // No warm-up, uniform keys, values of many reads.
    good(&format!(
        "--server {server} --address {socket} --size 8M --value-size 400000 --rate 100 --seconds 0.5 --warmup 0 --zipf 0 --gets 50"
    ));
    good(&format!("--server {server} --address {socket} --size 1K --value-size 64 --rate 500 --seconds 0.2 --warmup 0 --gets 0"));
}

#[test]
fn redis() {
    let place = Place::new();
    let Some(_server) = place.redis("64mb") else { return };
    a_whole_run("redis", &place.socket());
}

#[test]
fn memcached() {
    let place = Place::new();
    let Some(_server) = place.memcached("64", &[]) else { return };
    a_whole_run("memcached", &place.socket());
}

#[test]
fn redis_without_memory_says_so() {
    let place = Place::new();
    let Some(_server) = place.redis("4mb") else { return };
    let said = refused(&format!("--address {} --size 16M", place.socket()));
    assert!(said.contains("OOM") && said.contains("16384 keys"), "{said}");
}

#[test]
fn memcached_without_memory_says_so() {
    let place = Place::new();
    // -M: an error in place of evictions.
    let Some(_server) = place.memcached("4", &["-M"]) else { return };
    let said = refused(&format!("--server memcached --address {} --size 16M", place.socket()));
    assert!(said.contains("out of memory"), "{said}");
}

#[test]
fn evicted_keys_are_missed() {
    let place = Place::new();
    let Some(_server) = place.memcached("4", &[]) else { return };
    let line =
        format!("--server memcached --address {} --size 16M --rate 2000 --seconds 0.3 --warmup 0 --zipf 0", place.socket());
    let outcome = wrong(&line, "under load: keys not there");
    assert!(outcome.wrong.iter().any(|wrong| wrong.starts_with("reading back: keys not there")), "{:?}", outcome.wrong);
}

#[test]
fn the_other_servers_language_is_not_understood() {
    let place = Place::new();
    let Some(_server) = place.redis("64mb") else { return };
    let said = refused(&format!("--server memcached --address {} --size 64K", place.socket()));
    assert!(said.contains("no answer: \"-ERR") && said.contains("--server"), "{said}");
}

// A server that errs. It speaks RESP.

/// What it does wrong, once, at its 100th GET or SET after the keys were filled in, or from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A byte of a value.
    Damage,
    /// The value of another key.
    OtherKey,
    /// SETs are acknowledged and forgotten.
    Forget,
    /// A key is not there.
    Missing,
    Refuse,
    /// A number in place of a value.
    Garbage,
    /// An answer more.
    Twice,
    /// It closes the connection.
    Close,
    /// It closes the connection within an answer.
    CloseWithin,
    /// It stands still.
    Stall(Duration),
}

struct Erring {
    fault: Fault,
    keys: u64,
    requests: AtomicU64,
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

const KEYS: u64 = 50;

impl Erring {
    /// Starts it; the options to reach it.
    fn start(fault: Fault) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("{error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("{error}"));
        let server = Arc::new(Erring { fault, keys: KEYS, requests: AtomicU64::new(0), values: Mutex::default() });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = Arc::clone(&server);
                thread::spawn(move || server.serve(&stream));
            }
        });
        format!("--address {address} --size {} --value-size 100 --gets 60 --connections 4 --threads 2 --warmup 0", KEYS * 100)
    }

    /// Until the connection ends, from either side.
    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        while let Some(words) = words(&mut reader)? {
            let mut answer = self.answer(&words);
            if answer.last() != Some(&b'\n') {
                (&mut &*stream).write_all(&std::mem::take(&mut answer))?;
                return stream.shutdown(std::net::Shutdown::Both);
            }
            (&mut &*stream).write_all(&answer)?;
        }
        Ok(())
    }

    /// What it says; without an end if the connection is to be closed then.
    fn answer(&self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.requests.fetch_add(1, SeqCst);
        let (now, from_now) = (number == self.keys + 100, number >= self.keys + 100);
        let right = match words {
            [set, key, value] if set == b"SET" => {
                if !(self.fault == Fault::Forget && from_now) {
                    values.insert(key.clone(), value.clone());
                }
                b"+OK\r\n".to_vec()
            }
            [_, key] => bulk(values.get(key)),
            _ => b"-ERR unknown\r\n".to_vec(),
        };
        match self.fault {
            // Of the value, behind its length.
            Fault::Damage if from_now && right.len() > 50 => {
                right.iter().enumerate().map(|(n, byte)| byte ^ u8::from(n == 40)).collect()
            }
            Fault::OtherKey if from_now => {
                bulk(values.iter().find(|(key, _)| Some(*key) != words.get(1)).map(|(_, value)| value))
            }
            Fault::Missing if from_now && words.len() == 2 => bulk(None),
            Fault::Refuse if now => b"-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_vec(),
            Fault::Garbage if now => b":1\r\n".to_vec(),
            Fault::Twice if now => [&right[..], &right[..], &right[..]].concat(),
            Fault::Close if now => Vec::new(),
            Fault::CloseWithin if from_now && right.len() > 50 => right[..30].to_vec(),
            // With the lock: nobody gets an answer meanwhile.
            Fault::Stall(time) if now => {
                thread::sleep(time);
                right
            }
            _ => right,
        }
    }
}

fn bulk(value: Option<&Vec<u8>>) -> Vec<u8> {
    match value {
        Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
        None => b"$-1\r\n".to_vec(),
    }
}

/// A request; `None` at the end.
fn words(reader: &mut impl BufRead) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(count) = number(reader)? else { return Ok(None) };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word)?;
        word.truncate(length);
        words.push(word);
    }
    Ok(Some(words))
}

/// The number in a line behind its first letter.
fn number(reader: &mut impl BufRead) -> io::Result<Option<usize>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    line[1..].trim().parse().map(Some).map_err(io::Error::other)
}

#[test]
fn each_wrong_answer_is_found() {
    for (fault, wanted) in [
        (Fault::Damage, "under load: damaged values"),
        (Fault::OtherKey, "under load: values of other keys"),
        (Fault::Forget, "under load: values too old"),
        (Fault::Missing, "under load: keys not there"),
        (Fault::Refuse, "OOM command not allowed"),
        (Fault::Garbage, "no answer"),
    ] {
        let options = Erring::start(fault);
        wrong(&format!("{options} --rate 2000 --seconds 0.5"), wanted);
    }
}

#[test]
fn an_answer_too_many_is_found() {
    // All that follow are taken for those of the requests after their own.
    let options = Erring::start(Fault::Twice);
    let output = load(&format!("{options} --rate 2000 --seconds 0.5"));
    assert_eq!(output.status.code(), Some(1));
    assert!(!told(&output).1.wrong.is_empty());
}

#[test]
fn a_connection_that_breaks_ends_the_run_and_is_told() {
    for fault in [Fault::Close, Fault::CloseWithin] {
        let options = Erring::start(fault);
        let outcome = wrong(&format!("{options} --rate 2000 --seconds 60"), "broke with");
        // 120 000 would have been due.
        assert!(outcome.operations < 2000, "{fault:?}: {}", outcome.operations);
        assert_eq!(outcome.checksum, "");
    }
}

#[test]
fn a_stall_shows_in_all_requests_that_were_due_meanwhile() {
    let load = "--rate 1000 --seconds 1.5";
    let steady = good(&format!("{} {load}", Erring::start(Fault::None)));
    let stalled = good(&format!("{} {load}", Erring::start(Fault::Stall(Duration::from_millis(300)))));
    assert_eq!(stalled.operations, steady.operations, "none is left out, none is put off");
    assert_eq!(stalled.checksum, steady.checksum);
    // 300 of 1500 were due in the stall, 200 of them more than 100 ms before its end.
    let slow: u64 = stalled.latency.counts.iter().filter(|(ns, _)| *ns >= 100_000_000).map(|(_, count)| count).sum();
    assert!(slow >= 120, "{slow} of {}", stalled.operations);
    assert!(stalled.latency.quantile(0.99).is_some_and(|p99| p99 >= 100_000_000));
    assert!(stalled.latency.max().is_some_and(|max| max >= 290_000_000));
}

#[test]
fn where_nobody_listens_that_is_said() {
    let said = refused("--address /nowhere/at/all --size 64K");
    assert!(said.contains("/nowhere/at/all"), "{said}");
}
