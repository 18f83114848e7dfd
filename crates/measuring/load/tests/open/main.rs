//! `farshore-load open` against servers that are right, lose, repeat, delay or falsify answers, or stand still.
//!
//! No test wants a time to be short: other work on the machine makes all of them longer.

mod servers;

use std::io::{Read, Write};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use servers::{Memcached, Server, array, cache, frames, scan, tcp, udp};

/// A run and the file of its `--json`.
struct Ran {
    output: Output,
    json: Value,
}

impl Ran {
    fn count(&self, name: &str) -> u64 {
        self.json[name].as_u64().or(self.json["all"][name].as_u64()).unwrap_or_else(|| panic!("no {name} in {}", self.json))
    }

    /// How many latencies were at least this.
    fn longer(&self, least: Duration) -> u64 {
        let bars = self.json["all"]["histogram"].as_array().cloned().unwrap_or_default();
        let of = |bar: &Value, place: usize| bar[place].as_u64().unwrap_or(0);
        bars.iter().filter(|bar| u128::from(of(bar, 0)) >= least.as_nanos()).map(|bar| of(bar, 1)).sum()
    }

    fn errors(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

fn command(words: &str) -> Command {
    let mut command = Command::new("timeout");
    // In the foreground it passes a signal on once; else to the command and to its process group, and two of them end it at once.
    command.args(["--foreground", "60", env!("CARGO_BIN_EXE_farshore-load"), "open"]).args(words.split_whitespace());
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{error}"))
}

/// Runs with `status` as exit status, and reads what it wrote.
fn run(status: i32, words: &str) -> Ran {
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = directory.path().join("json");
    let mut command = command(words);
    command.arg("--json").arg(&file);
    let output = output(command);
    assert_eq!(output.status.code(), Some(status), "{words}: {output:?}");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{words}: {error}"));
    Ran { output, json: serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}")) }
}

/// The line that says why it could not be run.
fn refused(status: i32, words: &str) -> String {
    let output = output(command(words));
    assert_eq!(output.status.code(), Some(status), "{words}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn right_array() -> Server {
    udp(|_, request, answer| answer(&array(request)))
}

/// How often a run is made again that the machine's other work has held up.
const TRIES: usize = 10;

/// A run of about `expected` requests (Poisson: six standard deviations), all of which were answered, once and rightly. Where the generator gets no processor some are not
/// sent, which it says, and where the server gets none the kernel drops datagrams: then there is another run. No answer is lost of one that came.
fn all_answered(words: &str, expected: f64) -> Ran {
    for _ in 0..TRIES {
        let ran = run(0, words);
        let [sent, unsent, lost] = ["sent", "unsent", "lost"].map(|name| ran.count(name));
        #[expect(clippy::cast_precision_loss)]
        let off = ((sent + unsent) as f64 - expected).abs();
        assert!(off < 6.0 * expected.sqrt(), "{sent} sent and {unsent} not, {expected} expected");
        assert_eq!([ran.count("answered") + lost, ran.count("misses"), ran.count("duplicates")], [sent, 0, 0]);
        assert!(lost == 0 || words.contains("udp:"), "{lost} lost");
        if (unsent, lost, ran.count("late_answers")) == (0, 0, 0) {
            return ran;
        }
    }
    panic!("{words}: in none of {TRIES} runs all were sent and answered");
}

#[test]
fn numbers_over_datagrams() {
    let server = right_array();
    for more in ["--connections 1", "--connections 6 --threads 2 --keys zipf:0.99", "--connections 4 --spin 0s"] {
        let words = format!("array {} --rate 2000 --seconds 0.5 --warmup 0.1 --timeout 20s {more}", server.target);
        let ran = all_answered(&words, 1000.0);
        let said = String::from_utf8_lossy(&ran.output.stdout).into_owned();
        for word in ["rate asked 2000/s", "p99.9", "lost 0", "lag"] {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
    }
}

#[test]
fn numbers_over_connections() {
    let server = tcp(frames::<16>(array));
    for more in ["--connections 1", "--connections 5 --threads 2"] {
        let words = format!("array {} --rate 4000 --seconds 0.5 --warmup 0.1 --timeout 20s {more}", server.target);
        all_answered(&words, 2000.0);
    }
    // Answers that come in pieces.
    let server = tcp(|mut stream| {
        let (mut request, mut rest) = ([0; 16], Vec::new());
        while stream.read_exact(&mut request).is_ok() {
            rest.extend_from_slice(&array(&request));
            let part = rest.len().min(13 + rest.len() % 7);
            if stream.write_all(&rest[..part]).is_err() {
                return;
            }
            rest.drain(..part);
            thread::sleep(Duration::from_micros(100));
            if stream.write_all(&rest).is_err() {
                return;
            }
            rest.clear();
        }
    });
    all_answered(&format!("array {} --rate 1000 --seconds 0.5 --warmup 0 --timeout 20s", server.target), 500.0);
}

#[test]
fn scans_and_gets() {
    let by_udp = udp(|_, request, answer| answer(&scan(request, 1000)));
    let by_tcp = tcp(frames::<24>(|request| scan(request, 1000)));
    for server in [&by_udp, &by_tcp] {
        let words = format!("scan {} --items 1000 --mix get=50,scan=50 --rate 2000 --seconds 0.5 --warmup 0", server.target);
        let ran = all_answered(&format!("{words} --timeout 20s"), 1000.0);
        let scans = ran.json["operations"][1]["answered"].as_u64().unwrap_or(0);
        assert!(ran.json["operations"][1]["name"] == "scan" && (350..650).contains(&scans), "{scans}");
    }
    let wrong = udp(|_, request, answer| {
        let mut bytes = scan(request, 1000);
        bytes[24] ^= 1;
        answer(&bytes);
    });
    let words = format!("scan {} --items 1000 --mix scan=1 --rate 500 --seconds 0.2 --warmup 0 --timeout 20s", wrong.target);
    assert!(run(1, &words).errors().contains("wrong values"));
}

#[test]
fn lost_datagrams_are_counted() {
    let dropped = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&dropped);
    let server = udp(move |number, request, answer| {
        if number % 10 == 9 {
            count.fetch_add(1, SeqCst);
        } else {
            answer(&array(request));
        }
    });
    for more in ["--rate 1000", "--closed 20"] {
        dropped.store(0, SeqCst);
        let ran = run(0, &format!("array {} --seconds 0.8 --warmup 0 --timeout 3s --connections 3 {more}", server.target));
        let lost = ran.count("lost");
        assert!(lost > 0 && lost == dropped.load(SeqCst), "{lost} lost, {} dropped", dropped.load(SeqCst));
        assert_eq!(ran.count("answered") + lost, ran.count("sent"));
        assert_eq!(ran.count("duplicates"), 0);
    }
}

#[test]
fn answers_that_come_twice_are_found() {
    let server = udp(|_, request, answer| {
        answer(&array(request));
        answer(&array(request));
    });
    let ran = run(1, &format!("array {} --rate 1000 --seconds 0.5 --warmup 0 --timeout 20s", server.target));
    // The last ones may come when nobody waits for them any more.
    let (answered, twice) = (ran.count("answered"), ran.count("duplicates"));
    assert!(twice <= answered && twice + 20 >= answered, "{answered} answered, {twice} twice");
    assert!(ran.errors().contains("came twice"), "{}", ran.errors());
}

#[test]
fn wrong_bytes_are_found() {
    let wrong = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&wrong);
    let server = udp(move |number, request, answer| {
        let mut bytes = array(request);
        if number % 100 == 50 {
            count.fetch_add(1, SeqCst);
            bytes[15] ^= 1;
        }
        answer(&bytes);
    });
    let ran = run(1, &format!("array {} --rate 1000 --seconds 0.5 --warmup 0 --timeout 20s", server.target));
    let wanted = format!("wrong values: {}; ", wrong.load(SeqCst));
    assert!(ran.errors().contains(&wanted) && ran.errors().contains("index "), "{wanted:?}: {}", ran.errors());
    let server = tcp(frames::<16>(|request| {
        let mut bytes = array(request);
        bytes[8] ^= u8::from(request[0] == 7);
        bytes
    }));
    let ran = run(1, &format!("array {} --rate 1000 --seconds 0.3 --warmup 0", server.target));
    assert!(ran.errors().contains("wrong values"), "{}", ran.errors());
}

#[test]
fn what_is_no_answer_is_found() {
    let server = udp(|number, request, answer| {
        let bytes = array(request);
        answer(if number % 50 == 10 { &bytes[..9] } else { &bytes });
    });
    let ran = run(1, &format!("array {} --rate 500 --seconds 0.5 --warmup 0 --timeout 100ms", server.target));
    assert!(ran.errors().contains("9 bytes is no answer"), "{}", ran.errors());
    let closes = tcp(|stream| {
        thread::sleep(Duration::from_millis(200));
        drop(stream);
    });
    let said = refused(1, &format!("array {} --rate 500 --seconds 30 --warmup 0", closes.target));
    assert!(said.contains("cannot") && said.contains(&closes.target) && said.contains("has the server ended?"), "{said}");
}

#[test]
fn late_answers_are_no_duplicates() {
    let mut held: Vec<Vec<u8>> = Vec::new();
    let server = udp(move |number, request, answer| {
        match number % 400 {
            // Held back until long after they were given up.
            0..10 => held.push(array(request)),
            399 => held.drain(..).for_each(|bytes| answer(&bytes)),
            _ => {}
        }
        if number % 400 >= 10 {
            answer(&array(request));
        }
    });
    // One socket: an answer goes to the sender of the last request.
    let words = format!("array {} --rate 1000 --seconds 1.5 --warmup 0 --timeout 100ms --connections 1", server.target);
    let ran = run(0, &words);
    let (lost, late) = (ran.count("lost"), ran.count("late_answers"));
    assert!(late > 0 && late <= lost, "{late} late, {lost} lost");
    assert_eq!(ran.count("duplicates"), 0);
}

#[test]
fn a_stall_is_seen_by_all_that_were_due_meanwhile() {
    let stall = Duration::from_millis(200);
    let serve = move |number, request: &[u8]| {
        if number == 500 {
            thread::sleep(stall);
        }
        array(request)
    };
    let by_udp = udp(move |number, request, answer| answer(&serve(number, request)));
    let number = AtomicU64::new(0);
    let by_tcp = tcp(frames::<16>(move |request| serve(number.fetch_add(1, SeqCst), request)));
    for server in [&by_udp, &by_tcp] {
        let words = format!("array {} --rate 1000 --seconds 1 --warmup 0 --connections 1 --timeout 10s", server.target);
        let ran = run(0, &words);
        // 1000 a second, for the part of the stall that is left when they come: 150 are due in the first 150 ms.
        let waited = ran.longer(Duration::from_millis(50));
        assert!(waited >= 80, "{waited} of {} waited", ran.count("answered"));
        assert!(ran.longer(Duration::from_millis(195)) >= 1);
    }
}

#[test]
fn latencies_include_the_queue() {
    // 2 ms for each, one after the other, 70 % busy: some wait for several others.
    let server = udp(|_, request, answer| {
        thread::sleep(Duration::from_millis(2));
        answer(&array(request));
    });
    let ran = run(0, &format!("array {} --rate 350 --seconds 1.5 --warmup 0 --connections 4 --timeout 20s", server.target));
    let answered = ran.count("answered");
    assert_eq!(ran.longer(Duration::from_micros(1990)), answered, "none is faster than the server");
    // Of M/D/1 at 0.7 about half wait for a whole service or more: at least an eighth do here.
    let queued = ran.longer(Duration::from_millis(4));
    assert!(queued * 8 > answered, "{queued} of {answered}");
}

#[test]
fn a_closed_loop_has_so_many_under_way() {
    let server = right_array();
    for closed in [1, 10] {
        let words = format!("array {} --closed {closed} --seconds 0.4 --warmup 0.1 --timeout 20s --threads 2", server.target);
        let ran = run(0, &words);
        assert!(ran.count("answered") > 20 && ran.count("lost") == 0, "{}", ran.json);
        assert!(ran.json["rate"].is_null() && ran.json["closed"] == closed);
    }
}

#[test]
fn memcached_over_both() {
    let Some(server) = Memcached::start() else { return };
    for (transport, sizes) in [("tcp", "16..4000"), ("udp", "100=9,5000=1"), ("tcp", "64=40,512=40,20000=1"), ("udp", "64")] {
        let words = format!("kv {transport}:{} --items 500 --fill --mix get=80,set=20 --keys zipf:0.9", server.address);
        let more = "--rate 2000 --seconds 0.5 --warmup 0.1 --timeout 20s --connections 4 --threads 2";
        let ran = all_answered(&format!("{words} --value-size {sizes} {more}"), 1000.0);
        assert!(ran.json["operations"][1]["answered"].as_u64() > Some(100), "{}", ran.json);
    }
    // What is there is known by any later run; what is not there is a miss, or wrong after all keys were SET.
    let words = format!("kv tcp:{} --rate 2000 --seconds 0.3 --warmup 0 --value-size 64", server.address);
    let ran = run(0, &format!("{words} --items 1000"));
    assert!(ran.count("misses") > 100 && ran.count("answered") > ran.count("misses"), "{}", ran.json);
    let ran = run(1, &format!("{words} --items 500 --key-size 20 --value-size 65").replace("--value-size 64 ", ""));
    assert!(ran.errors().contains("damaged values") && ran.errors().contains("64 bytes, not 65"), "{}", ran.errors());
}

#[test]
fn a_wrong_byte_of_a_value_is_found() {
    let server = tcp(|stream| {
        cache(stream, |get, value| {
            if get == 20 {
                value[37] ^= 0x40;
            }
        });
    });
    let words = format!("kv {} --items 1 --connections 1 --value-size 100", server.target);
    let ran = run(1, &format!("{words} --rate 1000 --seconds 0.4 --warmup 0 --mix get=1,set=1"));
    assert!(ran.errors().contains("damaged values: 1; key 0: byte 37 of 100"), "{}", ran.errors());
    let ran = run(1, &format!("{words} --rate 500 --seconds 0.2 --warmup 0 --fill"));
    // Each connection begins empty.
    assert!(ran.errors().contains("keys not there"), "{}", ran.errors());
    let ran = run(0, &format!("{words} --rate 500 --seconds 0.2 --warmup 0 --fill --allow-misses"));
    assert!(ran.count("misses") > 0 && ran.count("misses") == ran.count("answered"), "{}", ran.json);
}

#[test]
fn a_sweep_finds_a_rate() {
    let server = right_array();
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = |name: &str| directory.path().join(name);
    let files = format!("--csv {} --plot {}", file("csv").display(), file("plot.html").display());
    let words = format!("array {} --sweep 200..500 --seconds 0.2 --warmup 0 --timeout 20s {files}", server.target);
    let ran = run(0, &format!("{words} --target p50=20s"));
    assert_eq!((ran.json["best"].as_f64(), ran.json["steps"].as_array().map(Vec::len)), (Some(500.0), Some(4)));
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(text("csv").lines().count(), 5);
    assert!(text("plot.html").contains("<svg") && text("plot.html").contains("p50 wanted"));
    assert!(String::from_utf8_lossy(&ran.output.stdout).contains("best rate 500/s; no higher rate was asked for"));
    // Not even the lowest: whose fault that is depends on the machine.
    let output = output(command(&format!("{words} --target p50=1ns")));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("no rate from 200/s on was found") && said.contains("missed"), "{said}");
    let output = self::output(command(&format!("{words} --target p50=1ns --tries 3")));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.lines().filter(|line| line.contains("missed")).count(), 3, "{said}");
}

#[test]
fn files_and_their_forms() {
    let server = right_array();
    let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let file = |name: &str| directory.path().join(name).display().to_string();
    let files = format!("--csv {} --histogram {} --plot {}", file("csv"), file("hgrm"), file("plot.svg"));
    let ran = run(0, &format!("array {} --rate 1000 --seconds 0.3 --warmup 0 --timeout 20s {files}", server.target));
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{error}"));
    let lines = text("csv");
    let counts = lines.lines().filter(|line| line.starts_with("all,")).filter_map(|line| line.rsplit(',').next());
    let counts: u64 = counts.filter_map(|count| count.parse::<u64>().ok()).sum();
    assert_eq!(ran.count("answered"), counts);
    assert!(text("hgrm").contains("1/(1-Percentile)") && text("plot.svg").starts_with("<svg"));
}

#[test]
fn a_slow_generator_says_so() {
    let server = right_array();
    // No generator sends anything at its time to the nanosecond.
    let words = format!("array {} --rate 500 --seconds 0.3 --warmup 0 --late 0s --timeout 20s", server.target);
    for (status, more) in [(0, ""), (3, "--strict")] {
        let ran = run(status, &format!("{words} {more}"));
        let said = String::from_utf8_lossy(&ran.output.stdout).into_owned();
        assert!(said.contains("generator too slow: ") && said.contains("after their time"), "{said}");
    }
}

#[test]
fn what_a_slow_generator_did_not_send_is_not_forgotten() {
    let server = right_array();
    let words = format!("array {} --rate 20000000 --seconds 0.05 --warmup 0 --timeout 1s --strict", server.target);
    let ran = run(3, &words);
    let all = ran.count("sent") + ran.count("unsent");
    assert!(all.abs_diff(1_000_000) < 6000, "{all}");
    assert!(ran.count("unsent") > 0 && ran.json["sent_in_time"].as_f64() < Some(0.9), "{}", ran.count("unsent"));
}

#[test]
fn a_server_that_does_nothing_is_not_the_generators_fault() {
    let server = udp(|_, _, _| {});
    let ran = run(0, &format!("array {} --rate 2000 --seconds 0.5 --warmup 0 --timeout 2s --window 100", server.target));
    assert_eq!((ran.count("sent"), ran.count("lost"), ran.count("answered")), (100, 100, 0));
    assert!(ran.count("unsent") > 500, "{}", ran.json);
    let said = String::from_utf8_lossy(&ran.output.stdout).into_owned();
    assert!(said.contains("the server cannot keep up"), "{said}");
}

#[test]
fn it_ends_early_with_the_results_so_far() {
    let asked = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&asked);
    let server = udp(move |_, request, answer| {
        seen.fetch_add(1, SeqCst);
        answer(&array(request));
    });
    let mut command = command(&format!("array {} --rate 1000 --seconds 50 --warmup 0", server.target));
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{error}"));
    while asked.load(SeqCst) < 500 {
        assert!(matches!(child.try_wait(), Ok(None)), "it has ended after {asked:?} requests");
        thread::sleep(Duration::from_millis(5));
    }
    // timeout(1) passes it on.
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("ended early") && said.contains("p99.9") && output.status.success(), "{said}, {output:?}");
}

#[test]
fn what_is_refused() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let free = free.unwrap_or_else(|error| panic!("{error}"));
    for transport in ["udp", "tcp"] {
        let said = refused(1, &format!("array {transport}:{free} --seconds 0.5 --warmup 0"));
        assert!(said.contains(&free.to_string()) && said.contains("start the server first"), "{said}");
    }
    // Addresses that are for documentation.
    for target in ["udp:192.0.2.1:7000", "tcp:198.51.100.7:80", "tcp:[2001:db8::1]:80", "udp:example.invalid:80"] {
        let said = refused(1, &format!("array {target}"));
        assert!(said.contains("--remote") && said.lines().count() == 1, "{said}");
    }
    let here = "127.0.0.1:9";
    for (words, wanted) in [
        (format!("kv tcp:{here} --key-size 5 --items 1000000"), "--key-size 5 is too short"),
        (format!("kv udp:{here} --value-size 70000"), "does not fit into a datagram"),
        (format!("array udp:{here} --mix set=1"), "no operation \"set\""),
        (format!("array udp:{here} --fill"), "--fill is for kv"),
        (format!("array udp:{here} --threads 2 --connections 1"), "--connections"),
    ] {
        let said = refused(1, &words);
        assert!(said.contains(wanted), "{said}");
    }
    for words in [
        "array 127.0.0.1:9".to_owned(),
        format!("array udp:{here} --rate 0"),
        format!("array udp:{here} --sweep 1..2"),
        format!("array udp:{here} --target p50=1ms"),
        format!("array udp:{here} --tries 2"),
        format!("array udp:{here} --closed 3 --rate 5"),
        format!("array udp:{here} --plot x.png"),
        format!("kv tcp:{here} --value-size 5"),
    ] {
        refused(2, &words);
    }
}
