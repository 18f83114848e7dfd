//! Services of datagrams, against sockets of threads on 127.0.0.1.
#![cfg(not(loom))]

mod common;

use common::in_child;
use common::net::{Random, here, runtime, until, watchdog};
use core::time::Duration;
use farshore_uthread::net::{Datagram, Limits, UdpServer, UdpSocket};
use farshore_uthread::{Config, Replies, Runtime, channel, sleep, yield_now};
use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket as Plain};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

fn server<S>(runtime: &Runtime, limits: Limits, service: S) -> UdpServer
where
    S: Fn(Datagram<'_>) + Send + Sync + 'static,
{
    UdpServer::start(&runtime.handle(), UdpSocket::bind(here()).unwrap(), limits, service).unwrap()
}

/// So many are sent of which nothing is known yet: the kernel's queues, of the service and of the peer, have room for them.
const WINDOW: u64 = 32;

/// Answers with what came; what begins with 0xff is malformed.
fn echo(datagram: Datagram<'_>) {
    match datagram.bytes() {
        [0xff, ..] => datagram.malformed(),
        bytes => {
            let length = bytes.len();
            datagram.reply(length);
        }
    }
}

/// How often the thread of replies has slept.
fn sleeps_of_the_heir() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named =
        |task: &std::path::PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "unireplies");
    let status = tasks.filter(named).map(|task| std::fs::read_to_string(task.join("status")).unwrap());
    let count = |status: String| {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
    };
    status.map(|status| count(status).unwrap()).sum()
}

#[test]
fn workers_send_datagrams_themselves_if_they_are_told_to() {
    // In a process of its own: other tests' runtimes have threads of that name.
    let ends = in_child("workers_send_datagrams_themselves_if_they_are_told_to", who_sends);
    assert!(ends.is_none_or(|ends| ends.status.success()));
}

fn who_sends() {
    for replies in [Replies::Own, Replies::Delegated] {
        let runtime = Runtime::start(Config { workers: 1, replies, ..Config::default() }).unwrap();
        let server = server(&runtime, Limits::default(), echo);
        let peer = Plain::bind(here()).unwrap();
        peer.connect(server.local_addr().unwrap()).unwrap();
        let ask = |number: u64| {
            let mut bytes = [0; 100];
            peer.send(&number.to_le_bytes()).unwrap();
            assert_eq!((peer.recv(&mut bytes).unwrap(), &bytes[..8]), (8, &number.to_le_bytes()[..]));
        };
        ask(0);
        let before = sleeps_of_the_heir();
        (1..=100).for_each(ask);
        let slept = sleeps_of_the_heir() - before;
        assert_eq!((slept < 10, server.counts().received), (replies == Replies::Own, 101), "{replies:?}: {slept}");
        assert_eq!(runtime.handle().replies_failed(), 0);
        server.join();
        runtime.shutdown().unwrap();
    }
}

/// Takes the answers that come to a socket.
struct Answers {
    done: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: thread::JoinHandle<Vec<u64>>,
}

impl Answers {
    fn take(socket: Plain) -> Answers {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (end, counts) = (done.clone(), count.clone());
        let thread = thread::spawn(move || {
            let (mut numbers, mut bytes) = (Vec::new(), [0; 4096]);
            loop {
                match socket.recv(&mut bytes) {
                    Ok(length) => {
                        numbers.extend(bytes[..length].first_chunk().map(|&number| u64::from_be_bytes(number)));
                        counts.fetch_add(1, SeqCst);
                    }
                    Err(_) if end.load(SeqCst) => return numbers,
                    Err(_) => {}
                }
            }
        });
        Answers { done, count, thread }
    }

    /// Waits until of `sent` datagrams few are left of which nothing is known.
    fn keep_up(&self, sent: u64, server: &UdpServer) {
        until(|| {
            let counts = server.counts();
            sent - self.count.load(SeqCst) - counts.dropped - counts.too_long - counts.malformed < WINDOW
        });
    }

    /// How many came, and the first bytes of each that has eight or more.
    fn end(self) -> (u64, Vec<u64>) {
        self.done.store(true, SeqCst);
        let numbers = self.thread.join().unwrap();
        (self.count.load(SeqCst), numbers)
    }
}

#[test]
fn ten_thousand_of_all_sizes() {
    const COUNT: u64 = 10_000;
    let runtime = runtime(2);
    let server = server(&runtime, Limits { request_bytes: 1000, ..Limits::default() }, echo);
    let address = server.local_addr().unwrap();
    let peer = Plain::bind(here()).unwrap();
    let answers = Answers::take(peer.try_clone().unwrap());
    let mut random = Random(1);
    let (mut long, mut malformed, mut numbers) = (0, 0, HashSet::new());
    for number in 0..COUNT {
        let length = [0, 1, 999, 1000, 1001, 1100, random.below(1200)][random.below(7)];
        let mut bytes = random.bytes(length);
        if let Some(place) = bytes.first_chunk_mut() {
            *place = number.to_be_bytes();
        }
        let bad = length > 0 && random.below(10) == 0;
        if bad {
            bytes[0] = 0xff;
        } else if let Some(first) = bytes.first_mut() {
            *first = 0;
        }
        long += u64::from(length > 1000);
        malformed += u64::from(bad && length <= 1000);
        if !bad && (8..=1000).contains(&length) {
            numbers.insert(number);
        }
        answers.keep_up(number, &server);
        peer.send_to(&bytes, address).unwrap();
    }
    until(|| server.counts().received == COUNT);
    let counts = server.join();
    // Replies are sent when their unithreads have ended.
    runtime.shutdown().unwrap();
    let (count, seen) = answers.end();
    assert_eq!((counts.received, counts.too_long, counts.malformed), (COUNT, long, malformed));
    assert_eq!((counts.receive_failed, counts.send_failed), (0, 0));
    assert_eq!(count, COUNT - long - malformed - counts.dropped);
    let different: HashSet<u64> = seen.iter().copied().collect();
    assert_eq!(different.len(), seen.len(), "answered twice");
    assert!(different.is_subset(&numbers), "answered what was not asked");
    assert!(counts.dropped > 0 || different == numbers, "not all were answered");
}

/// Sends more than there is room for. All are answered or counted; how many were dropped.
fn overload(config: Config, limits: Limits) -> u64 {
    watchdog();
    const COUNT: u64 = 2000;
    let runtime = Runtime::start(config).unwrap();
    let server = server(&runtime, limits, |datagram| {
        let _ = sleep(Duration::from_micros(200));
        echo(datagram);
    });
    let address = server.local_addr().unwrap();
    let peer = Plain::bind(here()).unwrap();
    let answers = Answers::take(peer.try_clone().unwrap());
    for number in 0..COUNT {
        answers.keep_up(number, &server);
        peer.send_to(&number.to_be_bytes(), address).unwrap();
    }
    until(|| server.counts().received == COUNT);
    let counts = server.join();
    // Replies are sent when their unithreads have ended.
    runtime.shutdown().unwrap();
    let (count, _) = answers.end();
    assert_eq!(count + counts.dropped, COUNT, "{counts:?}");
    counts.dropped
}

#[test]
fn what_finds_no_unithread_is_dropped_and_counted() {
    let dropped = overload(Config { workers: 1, unithreads: 4, ..Config::default() }, Limits::default());
    assert!(dropped > 0, "there was room for all");
}

#[test]
fn what_is_beyond_the_limit_waits() {
    let dropped = overload(Config { workers: 2, ..Config::default() }, Limits { requests_in_flight: 2, ..Limits::default() });
    assert_eq!(dropped, 0);
}

#[test]
fn what_the_sockets_buffer_has_no_room_for_is_counted() {
    const COUNT: u64 = 4000;
    watchdog();
    let runtime = Runtime::start(Config { workers: 1, ..Config::default() }).unwrap();
    let socket = UdpSocket::bind(here()).unwrap();
    socket.set_receive_buffer(8 << 10).unwrap();
    let go = Arc::new(AtomicBool::new(false));
    let waits = go.clone();
    let limits = Limits { requests_in_flight: 1, ..Limits::default() };
    let server = UdpServer::start(&runtime.handle(), socket, limits, move |datagram: Datagram<'_>| {
        until(|| waits.load(SeqCst) || sleep(Duration::from_micros(100)).is_err());
        echo(datagram);
    });
    let server = server.unwrap();
    let peer = Plain::bind(here()).unwrap();
    for number in 0..COUNT {
        peer.send_to(&number.to_be_bytes(), server.local_addr().unwrap()).unwrap();
    }
    assert!(server.counts().overflowed > 0, "{:?}", server.counts());
    go.store(true, SeqCst);
    until(|| server.counts().received + server.counts().overflowed == COUNT);
    assert_eq!(server.join().dropped, 0);
    runtime.shutdown().unwrap();
}

/// Datagrams that wait for room when the service is stopped are dropped and counted, so that it ends.
#[test]
fn a_full_service_can_be_stopped() {
    watchdog();
    let runtime = Runtime::start(Config { workers: 1, ..Config::default() }).unwrap();
    let go = Arc::new(AtomicBool::new(false));
    let waits = go.clone();
    let server = server(&runtime, Limits { requests_in_flight: 1, ..Limits::default() }, move |datagram| {
        until(|| waits.load(SeqCst) || sleep(Duration::from_micros(100)).is_err());
        echo(datagram);
    });
    let peer = Plain::bind(here()).unwrap();
    for number in 0..20_u64 {
        peer.send_to(&number.to_be_bytes(), server.local_addr().unwrap()).unwrap();
    }
    until(|| server.counts().received == 1);
    server.stop();
    until(|| server.counts().dropped > 0);
    assert_eq!(server.under_way(), 1);
    go.store(true, SeqCst);
    let counts = server.join();
    assert_eq!(counts.received, counts.dropped + 1, "{counts:?}");
    runtime.shutdown().unwrap();
}

#[test]
fn buffers_that_run_out_lose_nothing() {
    watchdog();
    // Buffers of this length are 16.
    const LONG: usize = 40_000;
    const COUNT: u8 = 100;
    let config = Config { workers: 1, buffer_bytes: LONG, ..Config::default() };
    let runtime = Runtime::start(config).unwrap();
    let server = server(&runtime, Limits { request_bytes: LONG, ..Limits::default() }, echo);
    let address = server.local_addr().unwrap();
    let peer = Plain::bind(here()).unwrap();
    for _ in 0..3 {
        // The worker is busy while they come.
        let go = Arc::new(AtomicBool::new(false));
        let waits = go.clone();
        let spins = runtime.spawn(move || until(|| waits.load(SeqCst))).unwrap();
        for number in 0..COUNT {
            peer.send_to(&[number], address).unwrap();
        }
        go.store(true, SeqCst);
        spins.join().unwrap();
        let mut seen = [false; COUNT as usize];
        for _ in 0..COUNT {
            let mut byte = [0];
            assert_eq!(peer.recv(&mut byte).unwrap(), 1);
            assert!(!core::mem::replace(&mut seen[usize::from(byte[0])], true), "answered twice");
        }
    }
    let bytes = Random(3).bytes(LONG);
    peer.send_to(&bytes, address).unwrap();
    let mut back = vec![0; LONG + 1];
    assert_eq!(peer.recv(&mut back).unwrap(), LONG);
    assert!(back[..LONG] == bytes, "other bytes came back");
    let counts = server.join();
    assert_eq!((counts.dropped, counts.receive_failed), (0, 0));
    runtime.shutdown().unwrap();
}

#[test]
fn requests_under_way_are_answered_at_the_end() {
    let runtime = runtime(2);
    let (go, wait) = channel::bounded::<()>(8);
    let server = server(&runtime, Limits::default(), move |datagram| {
        wait.recv().unwrap();
        echo(datagram);
    });
    let peer = Plain::bind(here()).unwrap();
    for number in 0..8 {
        peer.send_to(&[number], server.local_addr().unwrap()).unwrap();
    }
    until(|| server.under_way() == 8);
    let address = server.local_addr().unwrap();
    server.stop();
    let joins = thread::spawn(move || server.join());
    // It receives no more, sooner or later; what is under way goes on.
    (0..8).for_each(|_| go.send(()).unwrap());
    let counts = joins.join().unwrap();
    let mut got: Vec<u8> = (0..8)
        .map(|_| {
            let mut byte = [0];
            assert_eq!(peer.recv_from(&mut byte).unwrap(), (1, address));
            byte[0]
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((counts.received, counts.dropped), (8, 0));
    runtime.shutdown().unwrap();
}

#[test]
fn services_come_and_go_on_one_runtime() {
    let runtime = runtime(2);
    for round in 0..50u8 {
        let servers = [(); 3].map(|()| server(&runtime, Limits::default(), echo));
        let peer = Plain::bind(here()).unwrap();
        for server in &servers {
            let address = server.local_addr().unwrap();
            peer.send_to(&[round], address).unwrap();
            let mut byte = [0];
            assert_eq!(peer.recv_from(&mut byte).unwrap(), (1, address));
            assert_eq!(byte, [round]);
        }
        let [first, second, third] = servers;
        // Joined, dropped, and joined by a unithread.
        assert_eq!(first.join().received, 1);
        drop(second);
        assert_eq!(runtime.spawn(move || third.join().received).unwrap().join().unwrap(), 1);
    }
    until(|| runtime.handle().live() == 0);
    runtime.shutdown().unwrap();
}

#[test]
fn a_reply_that_cannot_be_sent_is_counted() {
    watchdog();
    // Longer than a datagram can be.
    let config = Config { workers: 1, unithreads: 16, stack_bytes: 128 << 10, buffer_bytes: 70_000, ..Config::default() };
    let runtime = Runtime::start(config).unwrap();
    let server = server(&runtime, Limits::default(), |datagram| match datagram.bytes() {
        [0] => datagram.reply(70_000),
        _ => datagram.reply(60_000),
    });
    let peer = Plain::bind(here()).unwrap();
    peer.send_to(&[0], server.local_addr().unwrap()).unwrap();
    peer.send_to(&[1], server.local_addr().unwrap()).unwrap();
    assert_eq!(peer.recv(&mut [0; 65536]).unwrap(), 60_000);
    until(|| server.counts().send_failed == 1);
    assert_eq!(runtime.handle().replies_failed(), 1);
    assert_eq!(server.join().dropped, 0);
    runtime.shutdown().unwrap();
}

#[test]
fn a_panic_of_a_service_ends_one_request() {
    let runtime = runtime(1);
    let server = server(&runtime, Limits { requests_in_flight: 1, ..Limits::default() }, |datagram| {
        assert!(datagram.bytes() != b"bad", "on purpose");
        echo(datagram);
    });
    let peer = Plain::bind(here()).unwrap();
    peer.send_to(b"bad", server.local_addr().unwrap()).unwrap();
    until(|| runtime.handle().panics() == 1 && server.under_way() == 0);
    peer.send_to(b"good", server.local_addr().unwrap()).unwrap();
    assert_eq!(peer.recv(&mut [0; 8]).unwrap(), 4);
    drop(server);
    runtime.shutdown().unwrap();
}

/// What a service panics with may panic again when it is dropped.
#[test]
fn a_panic_in_a_panics_payload_ends_one_request() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's");
        }
    }
    let runtime = runtime(1);
    let server = server(&runtime, Limits { requests_in_flight: 1, ..Limits::default() }, |datagram| {
        if datagram.bytes() == b"bad" {
            std::panic::panic_any(Bomb);
        }
        echo(datagram);
    });
    let peer = Plain::bind(here()).unwrap();
    peer.send_to(b"bad", server.local_addr().unwrap()).unwrap();
    until(|| runtime.handle().panics() == 2 && server.under_way() == 0);
    peer.send_to(b"good", server.local_addr().unwrap()).unwrap();
    assert_eq!(peer.recv(&mut [0; 8]).unwrap(), 4);
    drop(server);
    runtime.shutdown().unwrap();
}

#[test]
fn addresses_of_ipv6_are_answered() {
    let Ok(socket) = UdpSocket::bind("[::1]:0".parse().unwrap()) else {
        println!("skipped: no IPv6 on this machine");
        return;
    };
    let runtime = runtime(1);
    let server = UdpServer::start(&runtime.handle(), socket, Limits::default(), echo).unwrap();
    let peer = Plain::bind("[::1]:0".parse::<SocketAddr>().unwrap()).unwrap();
    peer.send_to(b"six", server.local_addr().unwrap()).unwrap();
    assert_eq!(peer.recv_from(&mut [0; 8]).unwrap(), (3, server.local_addr().unwrap()));
    drop(server);
    runtime.shutdown().unwrap();
}

#[test]
fn a_shutdown_ends_two_thousand_receives() {
    let runtime = runtime(2);
    let socket = Arc::new(UdpSocket::bind(here()).unwrap());
    let began = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..2000)
        .map(|_| {
            let (socket, began) = (socket.clone(), began.clone());
            let receives = move || {
                began.fetch_add(1, SeqCst);
                socket.recv_from(&mut [0; 8]).unwrap_err().raw_os_error()
            };
            runtime.spawn(receives).unwrap()
        })
        .collect();
    until(|| began.load(SeqCst) == 2000);
    runtime.shutdown().unwrap();
    for task in tasks {
        assert_eq!(task.join().unwrap(), Some(libc::ECANCELED));
    }
}

#[test]
fn what_the_time_of_requests_goes_to_is_recorded_and_adds_up() {
    watchdog();
    let pause = Duration::from_millis(20);
    for replies in [Replies::Delegated, Replies::Own] {
        let runtime = Runtime::start(Config { workers: 1, replies, breakdown: 64, ..Config::default() }).unwrap();
        let (tell, go) = std::sync::mpsc::channel::<()>();
        let go = std::sync::Mutex::new(go);
        let serve = move |datagram: Datagram<'_>| {
            match datagram.bytes().first() {
                // The worker's thread waits, as one does that spins for a page.
                Some(b'w') => go.lock().unwrap().recv().unwrap(),
                Some(b's') => drop(sleep(pause)),
                Some(b'y') => yield_now(),
                // No answer, no record.
                _ => return,
            }
            echo(datagram);
        };
        let server = server(&runtime, Limits::default(), serve);
        let peer = Plain::bind(here()).unwrap();
        peer.connect(server.local_addr().unwrap()).unwrap();
        let answer = || peer.recv(&mut [0; 9]).unwrap();
        for request in [b"s", b"y", b"-", b"y"] {
            peer.send(request).unwrap();
            if request != b"-" {
                answer();
            }
        }
        // Waits with the worker; those that come behind it wait for the worker, in the socket.
        for request in [b"w", b"y", b"y"] {
            peer.send(request).unwrap();
            thread::sleep(pause);
        }
        tell.send(()).unwrap();
        (0..3).for_each(|_| assert_eq!(answer(), 1));
        server.join();
        let handle = runtime.handle();
        runtime.shutdown().unwrap();
        let breakdown = handle.breakdown().unwrap();
        let records = &breakdown.records;
        assert_eq!((records.len(), breakdown.dropped), (6, 0), "{replies:?}: {records:?}");
        for record in records {
            assert_eq!(record.parts().iter().sum::<u64>(), record.total, "{replies:?}: {record:?}");
            assert!(record.run > 0 && record.reply > 0 && record.pages == 0 && record.spun == 0, "{replies:?}: {record:?}");
        }
        let pause = pause.as_nanos() as u64;
        assert!(records[0].other >= pause && records[0].again > 0, "{replies:?}: a sleep: {:?}", records[0]);
        assert!(records[1].other == 0 && records[1].gave_way > 0, "{replies:?}: gave way: {:?}", records[1]);
        // In the order in which they came, which the kernel tells.
        let mut last = records[3..].to_vec();
        last.sort_by_key(|record| record.arrived);
        for (record, pauses) in last.iter().zip([0, 2, 1]) {
            let waited = record.socket + record.queue;
            let is_so = if pauses == 0 { record.run >= 3 * pause } else { waited >= pauses * pause };
            assert!(is_so, "{replies:?}: {pauses} pauses: {last:?}");
        }
    }
    let plain = Runtime::start(Config { workers: 1, ..Config::default() }).unwrap();
    assert_eq!(plain.handle().breakdown(), None);
    plain.shutdown().unwrap();
}
