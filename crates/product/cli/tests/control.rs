//! The control socket, both ends: the library's server runs in this process, `farshore stat` and
//! `farshore set` ask it, and a client that does not keep to the protocol tries what it can.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use common::{farshore, farshore_as_nobody, outcome, refused};
use farshore_config::Size;
use farshore_config::control::{Change, LINE_LIMIT, Set};
use farshore_config::stats::Stats;
use farshore_random::Rng;
use farshore_socket::{self as control, CLIENT_LIMIT, Target};

struct Program {
    limit: AtomicU64,
    /// Changes that were begun, in hundreds, and questions about them.
    asked: AtomicU64,
}

static PROGRAM: Program = Program { limit: AtomicU64::new(256 << 20), asked: AtomicU64::new(0) };

impl Target for Program {
    fn stats(&self) -> Stats {
        Stats {
            program: "a test".into(),
            pid: std::process::id(),
            fault_mode: "upcall".into(),
            memory_limit_bytes: self.limit.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    fn set(&self, key: &str, value: &str) -> Result<Set, String> {
        if key == "swap+" {
            return Ok(Set::Begun(self.asked.fetch_add(100, Ordering::Relaxed) + 1));
        }
        if key != "memory" {
            return Err(format!("unknown key {key:?}: there is memory"));
        }
        let size: Size = value.parse().map_err(|error: farshore_config::ConfigError| error.to_string())?;
        self.limit.store(size.bytes(), Ordering::Relaxed);
        Ok(Set::Done)
    }

    /// The first is made at the third question; the next has failed.
    fn change(&self, id: u64) -> Result<Change, String> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        match id {
            1 if asked < 102 => Ok(Change::UnderWay(40)),
            1 => Ok(Change::Done),
            _ => Err(format!("change {id} has failed")),
        }
    }
}

/// How many sockets the program has.
fn sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.expect("it can be read").path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Starts the server once, as the library does; one test at a time talks to it.
fn server() -> MutexGuard<'static, ()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    STARTED.get_or_init(|| {
        let before = sockets();
        let listener = control::listen().expect("the name is free");
        let raw = listener.raw();
        let (left, has_left) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            static STOP: AtomicBool = AtomicBool::new(false);
            control::leave_table(raw);
            left.send(()).expect("somebody waits");
            control::serve(raw, &PROGRAM, &STOP);
        });
        has_left.recv().expect("the thread has begun");
        drop(listener);
        assert_eq!(sockets(), before, "the listener is the thread's alone");
    });
    turn
}

fn connect() -> UnixStream {
    let user = rustix::process::geteuid().as_raw();
    let address = SocketAddr::from_abstract_name(format!("farshore-{user}-{}", std::process::id())).expect("short name");
    let stream = UnixStream::connect_addr(&address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it is a socket");
    stream
}

/// Sends `bytes`, and returns the first line that comes back.
fn ask(bytes: &[u8]) -> String {
    let mut stream = connect();
    stream.write_all(bytes).expect("the server takes it");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer comes");
    line
}

#[test]
fn stat_shows_the_counters() {
    let _turn = server();
    let pid = std::process::id().to_string();
    let output = farshore().args(["stat", &pid]).output().expect("it starts");
    let (status, errors) = outcome(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(text.starts_with(&format!("a test (process {pid}), upcall")), "{text}");
    let output = farshore().args(["stat", "--json", &pid]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(Stats::from_json(&text).map(|stats| stats.pid), Ok(std::process::id()), "{text}");
}

#[test]
fn watching_shows_line_after_line() {
    let _turn = server();
    let pid = std::process::id().to_string();
    let mut command = farshore();
    command.args(["stat", "--json", "--watch", "0.1", &pid]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    let lines: Vec<String> = output.lines().take(3).map(|line| line.expect("it is text")).collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| Stats::from_json(line).is_ok()), "{lines:?}");
    // Its reader is gone now: it ends as other commands do, by SIGPIPE.
    let status = child.wait().expect("it is ours");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(13));
}

#[test]
fn set_changes_and_refuses() {
    let _turn = server();
    let pid = std::process::id().to_string();
    let status = farshore().args(["set", &pid, "memory=512M"]).status().expect("it starts");
    assert!(status.success());
    assert_eq!(PROGRAM.limit.load(Ordering::Relaxed), 512 << 20);
    refused(farshore().args(["set", &pid, "memory=64Q"]), 1, &[&pid, "\"64Q\""]);
    // In order, up to the first that is refused.
    refused(farshore().args(["set", &pid, "memory=128M", "speed=9", "memory=1G"]), 1, &["\"speed\"", "memory"]);
    assert_eq!(PROGRAM.limit.load(Ordering::Relaxed), 128 << 20);
}

#[test]
fn a_change_that_takes_its_time_is_waited_for() {
    let _turn = server();
    let pid = std::process::id().to_string();
    PROGRAM.asked.store(0, Ordering::Relaxed);
    let done = outcome(&farshore().args(["set", &pid, "swap+=dir:/x"]).output().expect("it starts"));
    assert_eq!(done, (0, String::new()));
    assert_eq!(PROGRAM.asked.load(Ordering::Relaxed), 103, "it was asked until it was made");
    refused(farshore().args(["set", &pid, "swap+=dir:/y", "memory=1G"]), 1, &[&pid, "has failed"]);
    assert_ne!(PROGRAM.limit.load(Ordering::Relaxed), 1 << 30);
}

#[test]
fn another_user_is_refused() {
    let _turn = server();
    let pid = std::process::id().to_string();
    for words in [&["stat", pid.as_str()][..], &["set", &pid, "memory=64M"]] {
        let Some(mut command) = farshore_as_nobody() else { return };
        refused(command.args(words), 1, &["belongs to user 0", "you are user 65534"]);
    }
}

#[test]
fn the_program_sees_no_descriptor_of_the_server() {
    let _turn = server();
    // Answers have come, so the server has accepted these and still holds them.
    let before = sockets();
    let mut streams: Vec<UnixStream> = (0..3).map(|_| connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"{\"op\":\"stat\"}\n").expect("the server takes it");
        BufReader::new(&*stream).read_line(&mut String::new()).expect("an answer comes");
    }
    // Our own ends alone.
    assert_eq!(sockets(), before + 3);
}

#[test]
fn nonsense_is_answered_and_survived() {
    let _turn = server();
    for line in [
        &b"\n"[..],
        b"hello\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"{\"op\":\"reboot\"}\n",
        b"{\"op\":7}\n",
        b"{\"op\":\"set\"}\n",
        b"{\"op\":\"set\",\"key\":\"memory\"}\n",
        b"{\"op\":\"set\",\"key\":\"memory\",\"value\":7}\n",
        b"{\"op\":\"set\",\"key\":\"memory\",\"value\":\"x\"}\n",
        b"{\"op\":\"stat\",\"more\":1}\n",
        b"{\"op\":\"stat\"} {\"op\":\"stat\"}\n",
        b"\xff\xfe\x00\n",
        b"{\"op\":\"\xff\"}\n",
    ] {
        let answer = ask(line);
        let value: serde_json::Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{answer:?}: {error}"));
        assert!(value["error"].is_string(), "{:?}: {answer}", String::from_utf8_lossy(line));
    }
    // As deep as the limit on a line allows.
    let deep = [vec![b'['; LINE_LIMIT - 1], b"\n".to_vec()].concat();
    assert!(ask(&deep).contains("error"));
    assert!(ask(b"{\"op\":\"stat\"}\n").contains("\"pid\""));
}

/// Bytes from a fixed generator, with line ends among them: never a crash, always lines of JSON back.
#[test]
fn random_bytes_are_survived() {
    let _turn = server();
    let mut random = Rng::new(1);
    for _ in 0..50 {
        let mut stream = connect();
        let bytes: Vec<u8> = (0..2_000).map(|_| random.pick(b"{}[]\":,\nopstatkeyvalue\\u0\xff\x00")).collect();
        stream.write_all(&bytes).expect("the server takes it");
        stream.shutdown(std::net::Shutdown::Write).expect("it is a socket");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("answers are text");
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(answers.lines().count(), lines);
        assert!(answers.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{answers}");
    }
}

#[test]
fn a_long_line_ends_the_connection() {
    let _turn = server();
    let mut stream = connect();
    // The server stops reading, so that the last bytes may not be taken.
    let _ = stream.write_all(&vec![b'x'; LINE_LIMIT * 2]);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("longer than 65536 bytes"), "{answer}");
    // One that is just as long as allowed is read to its end.
    let mut line = b"{\"op\":\"stat\"}".to_vec();
    line.resize(LINE_LIMIT, b' ');
    line.push(b'\n');
    assert!(ask(&line).contains("\"pid\""));
}

#[test]
fn requests_in_pieces_and_in_heaps_are_answered_in_order() {
    let _turn = server();
    let mut stream = connect();
    for byte in b"{\"op\":\"stat\"}\n" {
        stream.write_all(&[*byte]).expect("the server takes it");
    }
    let heap = "{\"op\":\"set\",\"key\":\"memory\",\"value\":\"64M\"}\n{\"op\":\"x\"}\n{\"op\":\"stat\"}\n".repeat(200);
    let mut writer = stream.try_clone().expect("it can be shared");
    let sender = std::thread::spawn(move || {
        writer.write_all(heap.as_bytes()).expect("the server takes it");
        writer.shutdown(std::net::Shutdown::Write).expect("it is a socket");
    });
    let lines: Vec<String> = BufReader::new(stream).lines().map(|line| line.expect("it is text")).collect();
    sender.join().expect("it has sent all");
    assert_eq!(lines.len(), 601);
    assert!(lines[0].contains("\"pid\""));
    for three in lines[1..].chunks(3) {
        assert_eq!(three[0], "{\"ok\":true}");
        assert!(three[1].contains("error") && three[2].contains("\"pid\""), "{three:?}");
    }
}

#[test]
fn clients_are_counted() {
    let _turn = server();
    let mut kept = Vec::new();
    for _ in 0..CLIENT_LIMIT {
        let mut stream = connect();
        stream.write_all(b"{\"op\":\"stat\"}\n").expect("the server takes it");
        BufReader::new(&stream).read_line(&mut String::new()).expect("an answer comes");
        kept.push(stream);
    }
    assert!(ask(b"").contains("8 clients are connected already"));
    let pid = std::process::id().to_string();
    refused(farshore().args(["stat", &pid]), 1, &["8 clients", "try again later"]);
    drop(kept);
    assert!(ask(b"{\"op\":\"stat\"}\n").contains("\"pid\""));
}

#[test]
fn a_silent_client_is_dropped() {
    let _turn = server();
    let start = Instant::now();
    let mut stream = connect();
    stream.write_all(b"{\"op\":").expect("the server takes it");
    let mut answer = Vec::new();
    assert_eq!(stream.read_to_end(&mut answer).expect("the end comes"), 0);
    let passed = start.elapsed();
    assert!(passed >= Duration::from_millis(control::CLIENT_TIMEOUT_MS - 100), "{passed:?}");
    assert!(passed < Duration::from_secs(18), "{passed:?}");
}

#[test]
fn where_the_name_is_taken_there_is_a_longer_one() {
    let _turn = server();
    let name = |listener: &farshore_sys::fd::Fd| {
        let address = nix::sys::socket::getsockname::<nix::sys::socket::UnixAddr>(listener.raw()).expect("it has a name");
        String::from_utf8(address.as_abstract().expect("an abstract one").to_vec()).expect("plain")
    };
    let (one, other) = (control::listen().expect("a socket"), control::listen().expect("a socket"));
    let taken = farshore_config::control::socket_name(rustix::process::geteuid().as_raw(), std::process::id());
    for longer in [name(&one), name(&other)] {
        let number = longer.strip_prefix(&format!("{taken}-")).expect("the name goes on");
        assert!(number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()), "{longer}");
    }
    assert_ne!(name(&one), name(&other));
}

/// A program that says of itself whatever it likes: what Python makes of `lines`, with `connection` from somebody who asks, whose question has been read.
/// `None`: there is no Python.
fn liar(lines: &str) -> Option<std::process::Child> {
    let script = format!(
        "import os, socket, sys, time\n\
         listener = socket.socket(socket.AF_UNIX)\n\
         listener.bind('\\0farshore-%d-%d' % (os.geteuid(), os.getpid()))\n\
         listener.listen(0)\n\
         print('ready', flush=True)\n\
         while True:\n    \
             connection = listener.accept()[0]\n    \
             try:\n        \
                 connection.recv(4096)\n        {}\n    \
             except OSError: pass\n",
        lines.replace('\n', "\n        ")
    );
    let mut command = std::process::Command::new("python3");
    let Ok(mut child) = command.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn() else {
        println!("skipped: there is no python3");
        return None;
    };
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it is text");
    assert_eq!(line, "ready\n");
    Some(child)
}

/// What `farshore stat` says of it. Killed, and told, if it is still waiting after a minute.
fn ask_the_liar(mut child: std::process::Child, words: &[&str]) -> (i32, String, String) {
    let pid = child.id().to_string();
    let mut command = farshore();
    command.args(["stat"]).args(words).arg(&pid).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut asking = command.spawn().expect("it starts");
    let until = Instant::now() + Duration::from_secs(60);
    while asking.try_wait().expect("it is ours").is_none() {
        if Instant::now() > until {
            let _ = (asking.kill(), child.kill(), child.wait());
            panic!("it is still held after a minute");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = asking.wait_with_output().expect("it has ended");
    let _ = (child.kill(), child.wait());
    let (status, errors) = outcome(&output);
    (status, String::from_utf8_lossy(&output.stdout).into_owned(), errors)
}

/// Whether a terminal would obey any of it.
fn is_obeyed(text: &str) -> bool {
    text.chars().any(|character| character != '\n' && (character.is_control() || character == '\u{202e}'))
}

#[test]
fn names_are_not_obeyed_by_a_terminal() {
    let answer = r#"connection.sendall(b'{"schema":1,"pid":1,"program":"x\\u001b]0;owned\\u0007\\u001b[2J\xc2\x9b2J\xe2\x80\xae","fault_mode":"\\u001b[31m",'
connection.sendall(b'"spaces":[{"name":"\\u001b[1m","state":"\\u001b[2m"}],"pool":{"name":"\\u001b[3m"}}\n')"#
        .replace("\",'\n", "\",')\n");
    for words in [&[][..], &["--json"]] {
        let Some(child) = liar(&answer) else { return };
        let (status, text, errors) = ask_the_liar(child, words);
        assert_eq!((status, errors.as_str()), (0, ""), "{text}");
        assert!(text.contains("owned") && !is_obeyed(&text), "{text:?}");
        if words == ["--json"] {
            let stats = Stats::from_json(&text).expect("it is still JSON");
            assert_eq!(stats.program, "x\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}");
        }
    }
    // Nor is what it says in place of an answer.
    let Some(child) = liar(r#"connection.sendall(b'{"error":"\\u001b[2J\\u202e"}\n')"#) else { return };
    let (status, _, errors) = ask_the_liar(child, &[]);
    assert!(status == 1 && errors.contains("u{1b}[2J") && !is_obeyed(errors.trim_end()), "{errors:?}");
}

#[test]
fn an_answer_byte_by_byte_holds_nobody() {
    // Two bytes a second, for as long as anybody listens.
    let Some(child) = liar("while True:\n    connection.sendall(b' ')\n    time.sleep(0.5)") else { return };
    let (status, _, errors) = ask_the_liar(child, &[]);
    assert!(status == 1 && errors.contains("did not answer within 10 seconds"), "{errors}");
}

#[test]
fn an_answer_without_an_end_holds_nobody() {
    let Some(child) = liar("while True: connection.sendall(b' ' * 65536)") else { return };
    let (status, _, errors) = ask_the_liar(child, &[]);
    assert!(status == 1 && errors.contains("more than 1024 KiB"), "{errors}");
}

#[test]
fn who_takes_no_connection_holds_nobody() {
    // One connection that is served for ever, and one that fills the queue.
    let Some(child) = liar("time.sleep(1000)") else { return };
    let user = rustix::process::geteuid().as_raw();
    let address = SocketAddr::from_abstract_name(format!("farshore-{user}-{}", child.id())).expect("short name");
    let first = UnixStream::connect_addr(&address).expect("it listens");
    (&first).write_all(b"x").expect("it takes it");
    let second = UnixStream::connect_addr(&address).expect("it listens");
    let (status, _, errors) = ask_the_liar(child, &[]);
    assert!(status == 1 && errors.contains("did not answer within 10 seconds"), "{errors}");
    drop((first, second));
}
