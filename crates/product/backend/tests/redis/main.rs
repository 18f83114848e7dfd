//! The Redis client against servers of the tests' own, which lose connections, lie, send it elsewhere, and make writes late.

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod real;
mod server;

use common::{page, pages, slot};
use farshore_backend::nbd::set_patience;
use farshore_backend::redis::{RedisQueue, RedisSpace};
use farshore_core::seams::{Backend, IoError, NoneFree, PageBuf, Reads, Spaces, WriteQueue};
use farshore_random::Rng;
use server::{Deed, Server, error};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const EIO: IoError = IoError::Device(5);
const EACCES: IoError = IoError::Device(13);
const ENODATA: IoError = IoError::Device(61);
const EPROTO: IoError = IoError::Device(71);
const EBADMSG: IoError = IoError::Device(74);
const ETIMEDOUT: IoError = IoError::Device(110);

fn open_as(uri: &str) -> RedisSpace {
    RedisSpace::open(&uri.parse().unwrap(), &mut |_| {}).unwrap()
}

fn open(server: &Server) -> RedisSpace {
    open_as(&format!("{},size=64M", server.uri()))
}

fn refusal(uri: &str) -> String {
    RedisSpace::open(&uri.parse().unwrap(), &mut |_| {}).unwrap_err().to_string()
}

fn write(queue: &mut RedisQueue, first: u64, pages: &[PageBuf]) -> Result<(), IoError> {
    // SAFETY: the pages outlive the completion, which is waited for.
    unsafe { queue.start_write(slot(first), pages.as_ptr(), pages.len() as u32, 1) }.unwrap();
    let mut result = None;
    while result.is_none() {
        queue.reap(true, &mut |_, ended| result = Some(ended));
    }
    result.unwrap()
}

fn check(space: &RedisSpace, slot_number: u64, version: u64) {
    let mut got = PageBuf::ZERO;
    space.read(slot(slot_number), &mut got).unwrap();
    assert!(got.0 == page(slot_number, version).0, "slot {slot_number}, version {version}");
}

fn read_error(space: &RedisSpace, slot_number: u64) -> IoError {
    space.read(slot(slot_number), &mut PageBuf([0xee; 4096])).unwrap_err()
}

/// Says once what it is given; then it is right.
fn once(command: &'static str, deed: Deed) -> impl Fn(&str, &Vec<Vec<u8>>) -> Deed + Send + Sync {
    let said = AtomicBool::new(false);
    move |came, _| if came == command && !said.swap(true, SeqCst) { deed.clone() } else { Deed::Right }
}

#[test]
fn what_goes_in_comes_out() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(16).unwrap();
    for (first, count) in [(7, 20), (512, 512), (1500, 36)] {
        let batch = pages(first, count, 1);
        write(&mut queue, first, &batch).unwrap();
        common::check(&space, first, &batch);
    }
    write(&mut queue, 600, &pages(600, 3, 2)).unwrap();
    (599..604).for_each(|n| check(&space, n, if (600..603).contains(&n) { 2 } else { 1 }));
    assert_eq!((space.spaces(), space.capacity(), server.pages()), (1, Some(32 * 512), 568));
    assert_eq!(write(&mut queue, 32 * 512 - 1, &pages(1, 2, 1)), Err(IoError::Full));
    assert_eq!(read_error(&space, 5000), IoError::Short, "never written");
    assert!(server.expires.lock().unwrap().values().all(|&seconds| seconds == 3600));
    assert_eq!(server.expires.lock().unwrap().len(), server.hashes.lock().unwrap().len(), "each key has an end");
    // Another program at the same server has keys of its own.
    let other = open(&server);
    let mut others = other.queue(4).unwrap();
    write(&mut others, 600, &pages(600, 1, 9)).unwrap();
    check(&space, 600, 2);
    check(&other, 600, 9);
}

#[test]
fn what_a_server_says_decides() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    let batch = pages(40, 40, 1);
    write(&mut queue, 40, &batch).unwrap();
    for (text, end) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", Err(IoError::Full)),
        ("NOPERM this user has no permissions", Err(EACCES)),
        ("MISCONF Redis is configured to save", Ok(())),
        ("ERR max number of clients reached", Ok(())),
        ("ERR unknown command", Err(EIO)),
        ("MOVED 7 127.0.0.1:1", Err(EPROTO)),
        ("ASK 7 127.0.0.1:1", Err(EPROTO)),
        ("LOADING Redis is loading the dataset in memory", Ok(())),
        ("READONLY You can't write against a read only replica.", Ok(())),
        ("CLUSTERDOWN The cluster is down", Ok(())),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Ok(())),
    ] {
        server.behave(once("HSET", error(text)));
        assert_eq!(write(&mut queue, 40, &batch), end, "{text}");
        server.behave(once("EXPIRE", error(text)));
        assert_eq!(write(&mut queue, 40, &batch), end, "{text}");
        server.behave(once("HMGET", error(text)));
        let mut got = PageBuf::ZERO;
        assert_eq!(space.read(slot(41), &mut got), end, "{text}");
    }
    // The key has gone between the two.
    server.behave(once("EXPIRE", Deed::Say(b":0\r\n".to_vec())));
    write(&mut queue, 40, &batch).unwrap();
    common::check(&space, 40, &batch);
}

/// The fields of a key, and their values.
type Hash = HashMap<Vec<u8>, Vec<u8>>;

#[test]
fn a_page_that_is_not_there_is_an_error_and_no_zeros() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 40, &pages(40, 8, 1)).unwrap();
    let change = |change: &dyn Fn(&mut Hash)| change(server.hashes.lock().unwrap().values_mut().next().unwrap());
    let field = |n: u64| format!("{n:03x}.00000000").into_bytes();
    change(&|hash| drop(hash.remove(&field(41))));
    change(&|hash| hash.get_mut(&field(42)).unwrap().truncate(4095));
    change(&|hash| hash.get_mut(&field(43)).unwrap().push(0));
    change(&|hash| hash.get_mut(&field(44)).unwrap().clear());
    let errors = [41, 42, 43, 44].map(|n| read_error(&space, n));
    assert_eq!(errors, [ENODATA, EBADMSG, EBADMSG, EBADMSG]);
    let mut run = vec![PageBuf::ZERO; 8];
    assert!(space.read_run(slot(40), &mut run).is_err());
    [40, 45, 46, 47].iter().for_each(|&n| check(&space, n, 1));
    // The whole key has ended.
    server.hashes.lock().unwrap().clear();
    assert_eq!(read_error(&space, 40), ENODATA);
    write(&mut queue, 40, &pages(40, 1, 2)).unwrap();
    check(&space, 40, 2);
    assert_eq!(read_error(&space, 45), ENODATA);
}

/// Whatever it says, the connection is ended, and the next answer counts.
#[test]
fn a_server_that_talks_nonsense_is_asked_again() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    let batch = pages(40, 4, 1);
    write(&mut queue, 40, &batch).unwrap();
    let mut deep = b"*1\r\n".repeat(100_000);
    deep.extend(b"$-1\r\n");
    let nonsense: Vec<Vec<u8>> = vec![
        b"*0\r\n".to_vec(),
        b"*2\r\n$-1\r\n$-1\r\n".to_vec(),
        b"*-1\r\n".to_vec(),
        b"*1\r\n:1\r\n".to_vec(),
        b"*1\r\n$4096\r\nshort\r\n".to_vec(),
        b"*1\r\n$99999999999999999\r\n".to_vec(),
        b"*1\r\n$-2\r\n".to_vec(),
        b"+OK\r\n".to_vec(),
        b":1\r\n:1\r\n:1\r\n:1\r\n".to_vec(),
        b">3\r\n+invalidate\r\n".to_vec(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        b"-MOVED 99999 1.2.3.4:5\r\n".to_vec(),
        b"\r\n".to_vec(),
        b"\n".to_vec(),
        vec![b'-'; 1 << 20],
        vec![0; 1 << 20],
        deep,
    ];
    for what in nonsense {
        let shown = what[..what.len().min(30)].escape_ascii().to_string();
        for command in ["HMGET", "HSET", "EXPIRE"] {
            // Whoever is told half of a page waits for the rest: then the connection ends.
            let said = AtomicU32::new(0);
            let what = what.clone();
            server.behave(move |came, _| match said.load(SeqCst) {
                0 if came == command => {
                    said.store(1, SeqCst);
                    Deed::Say(what.clone())
                }
                1 => {
                    said.store(2, SeqCst);
                    Deed::Drop(0)
                }
                _ => Deed::Right,
            });
            if command == "HMGET" {
                std::thread::scope(|scope| {
                    let reader = scope.spawn(|| check(&space, 41, 1));
                    let since = Instant::now();
                    while !reader.is_finished() {
                        std::thread::sleep(Duration::from_millis(5));
                        if since.elapsed() > Duration::from_millis(200) {
                            server.cut_all();
                        }
                    }
                });
            } else if shown != ":1\\r\\n:1\\r\\n:1\\r\\n:1\\r\\n" {
                assert_eq!(write(&mut queue, 40, &batch), Ok(()), "{command}: {shown}");
            }
        }
    }
    server.behave(once("HMGET", Deed::More(b":1\r\n")));
    check(&space, 40, 1);
    server.behave(|_, _| Deed::Drip);
    common::check(&space, 40, &batch);
}

/// Writers and readers while connections are lost at random; the server makes what was under way late, over what was written since.
#[test]
fn lost_connections_lose_nothing() {
    let server = Server::new();
    let space = open(&server);
    let random = std::sync::Mutex::new(Rng::new(1));
    let calm = Arc::new(AtomicBool::new(false));
    let is_calm = Arc::clone(&calm);
    server.behave(move |command, _| {
        let mut random = random.lock().unwrap();
        match random.below(60) {
            _ if is_calm.load(SeqCst) => Deed::Right,
            0 if command != "HMGET" => Deed::Drop(20 + random.below(60)),
            1 => Deed::Drop(0),
            2 => Deed::Half,
            3 => error("LOADING"),
            _ => Deed::Right,
        }
    });
    let mut queue = space.queue(8).unwrap();
    let mut random = Rng::new(101);
    let mut versions: HashMap<u64, u64> = HashMap::new();
    for version in 1..100 {
        // Slots are written again and again, as the engine does with those that were freed.
        let runs: Vec<(u64, u64)> = (0..4).map(|n| (600 + n * 60 + random.below(8), 1 + random.below(40))).collect();
        let batches: Vec<Vec<PageBuf>> = runs.iter().map(|&(first, count)| pages(first, count as u32, version)).collect();
        for (tag, (run, batch)) in (0..).zip(runs.iter().zip(&batches)) {
            // SAFETY: the pages outlive the completions, which are waited for below.
            unsafe { queue.start_write(slot(run.0), batch.as_ptr(), batch.len() as u32, tag) }.unwrap();
        }
        while queue.in_flight() > 0 {
            queue.reap(true, &mut |_, result| assert_eq!(result, Ok(())));
        }
        versions.extend(runs.iter().flat_map(|&(first, count)| (first..first + count).map(|n| (n, version))));
        if version % 10 == 0 {
            // Some are no longer needed.
            let gone = 600 + random.below(200);
            let _ = space.give_back(slot(gone), 20);
            versions.retain(|n, _| !(gone..gone + 20).contains(n));
        }
        let known: Vec<_> = versions.iter().map(|(&n, &version)| (n, version)).collect();
        std::thread::scope(|scope| {
            for thread in 0..12 {
                let (space, known) = (&space, &known);
                scope.spawn(move || known.iter().skip(thread).step_by(12).take(3).for_each(|&(n, v)| check(space, n, v)));
            }
        });
    }
    calm.store(true, SeqCst);
    std::thread::sleep(Duration::from_millis(300));
    versions.iter().for_each(|(&n, &version)| check(&space, n, version));
    assert!(server.connections.load(SeqCst) > 30, "{}", server.connections.load(SeqCst));
}

#[test]
fn a_server_that_goes_away_for_a_while_is_waited_for() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &pages(9, 1, 1)).unwrap();
    server.away.store(true, SeqCst);
    server.cut_all();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..20).map(|_| scope.spawn(|| check(&space, 9, 1))).collect();
        // Meanwhile a write does not end, and no longer blocks than it may.
        let batch = pages(10, 1, 1);
        // SAFETY: the completion is waited for below.
        unsafe { queue.start_write(slot(10), batch.as_ptr(), 1, 5) }.unwrap();
        queue.reap_within(400_000_000, &mut |_, result| panic!("{result:?}"));
        server.away.store(false, SeqCst);
        let mut ended = false;
        while !ended {
            queue.reap(true, &mut |tag, result| ended = (tag, result) == (5, Ok(())));
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    check(&space, 10, 1);
}

#[test]
fn a_server_that_does_not_come_back_is_given_up() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &pages(9, 1, 1)).unwrap();
    // A second and a fifth.
    set_patience(100_000_000);
    for silent in [false, true] {
        server.away.store(!silent, SeqCst);
        server.cut_all();
        server.behave(move |_, _| if silent { Deed::Never } else { Deed::Right });
        let since = Instant::now();
        assert_eq!(read_error(&space, 9), ETIMEDOUT);
        assert_eq!(write(&mut queue, 10, &pages(10, 1, 1)), Err(ETIMEDOUT));
        assert!((1..15).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
        server.behave(|_, _| Deed::Right);
        server.away.store(false, SeqCst);
        write(&mut queue, 10, &pages(10, 1, 2)).unwrap();
        check(&space, 9, 1);
        check(&space, 10, 2);
    }
}

#[test]
fn what_is_given_back_is_gone() {
    let server = Server::new();
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 512, &pages(512, 512, 1)).unwrap();
    space.give_back(slot(600), 100).unwrap();
    assert_eq!((server.pages(), read_error(&space, 650)), (412, ENODATA));
    check(&space, 599, 1);
    write(&mut queue, 650, &pages(650, 1, 2)).unwrap();
    check(&space, 650, 2);
    space.give_back(slot(512), 512).unwrap();
    assert_eq!((server.pages(), server.hashes.lock().unwrap().len()), (0, 0));
    let before = server.count("HDEL");
    space.give_back(slot(512), 512).unwrap();
    assert_eq!(server.count("HDEL"), before, "there is nothing");
    // One that is lost on the way, and comes after the next page.
    write(&mut queue, 512, &pages(512, 2, 3)).unwrap();
    server.behave(once("HDEL", Deed::Drop(200)));
    assert!(space.give_back(slot(512), 1).is_err());
    write(&mut queue, 512, &pages(512, 1, 4)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    check(&space, 512, 4);
    check(&space, 513, 3);
}

#[test]
fn keys_are_renewed_while_nobody_uses_them() {
    let server = Server::new();
    let space = open_as(&format!("{},size=64M,expire=10s", server.uri()));
    let mut queue = space.queue(4).unwrap();
    for first in [8, 512, 9000] {
        write(&mut queue, first, &pages(first, 1, 1)).unwrap();
    }
    assert!(server.expires.lock().unwrap().values().all(|&seconds| seconds == 10));
    let before = server.count("EXPIRE");
    assert!(space.keep(&NoneFree).is_some_and(|ns| (1..=2_500_000_000).contains(&ns)));
    assert_eq!(server.count("EXPIRE"), before, "it is not time");
    std::thread::sleep(Duration::from_millis(2600));
    // One that is refused, as one that has moved, is asked for by itself.
    server.behave(once("EXPIRE", error("TRYAGAIN")));
    space.keep(&NoneFree);
    assert_eq!(server.count("EXPIRE"), before + 4);
    assert!(space.keep(&NoneFree).is_some_and(|ns| ns > 1_000_000_000));
    std::thread::sleep(Duration::from_millis(2600));
    // None can be renewed now, so all are a second later.
    server.behave(|command, _| if command == "EXPIRE" { error("ERR no") } else { Deed::Right });
    let again = space.keep(&NoneFree);
    assert!(again == Some(1_000_000_000), "{again:?}");
    server.behave(|_, _| Deed::Right);
    let before = server.count("EXPIRE");
    space.keep(&NoneFree);
    assert_eq!(server.count("EXPIRE"), before + 3);
    assert!(space.keep(&NoneFree).is_some_and(|ns| ns > 1_000_000_000));
}

#[test]
fn servers_that_cannot_be_used_are_refused() {
    let server = Server::new();
    let uri = server.uri();
    let change = |from: &str, to: &str| {
        let mut info = server.info.lock().unwrap();
        *info = info.replace(from, to);
    };
    for (good, bad, part) in [
        ("policy:noeviction", "policy:volatile-lru", "maxmemory-policy is volatile-lru"),
        ("role:master", "role:slave", "name its master"),
        ("loading:0", "loading:1", "still loading"),
        ("cluster_enabled:0", "cluster_enabled:1", "CLUSTER SLOTS"),
        ("role:", "rule:", "no Redis"),
    ] {
        change(good, bad);
        if part == "CLUSTER SLOTS" {
            *server.slots.lock().unwrap() = b"-ERR no\r\n".to_vec();
        }
        assert!(refusal(&uri).contains(part), "{}", refusal(&uri));
        change(bad, good);
    }
    for (deed, part) in [
        (Deed::Say(b"SSH-2.0-OpenSSH\r\n".to_vec()), "no Redis"),
        (Deed::Say(b"$999999999\r\n".to_vec()), "no Redis"),
        (error("NOAUTH Authentication required."), "password-file"),
        (error("LOADING Redis is loading"), "try again"),
        (Deed::Drop(0), "ends the connection"),
    ] {
        server.behave(move |_, _| deed.clone());
        assert!(refusal(&uri).contains(part), "{}", refusal(&uri));
    }
    server.behave(|_, _| Deed::Right);
    assert!(refusal(&format!("{uri},size=1M")).contains("too small"));
    assert!(refusal("redis://localhost").contains("give it the host's address"));
    assert!(refusal("redis+unix:///no/such/socket").contains("no server can be reached"));
    open_as(&uri);
}

#[test]
fn a_password_is_said_on_each_connection() {
    let server = Server::new();
    *server.password.lock().unwrap() = Some(b"open sesame".to_vec());
    let folder = common::Dir::new();
    let file = folder.0.join("password");
    assert!(refusal(&server.uri()).contains("password-file"));
    let uri = format!("{},size=64M,password-file={}", server.uri(), file.display());
    assert!(refusal(&uri).contains("cannot be read"));
    std::fs::write(&file, "close sesame\n").unwrap();
    assert!(refusal(&uri).contains("does not take the password"), "{}", refusal(&uri));
    std::fs::write(&file, "open sesame\n").unwrap();
    let space = open_as(&uri);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &pages(9, 1, 1)).unwrap();
    server.cut_all();
    std::fs::remove_file(&file).unwrap();
    check(&space, 9, 1);
    write(&mut queue, 9, &pages(9, 1, 2)).unwrap();
    check(&space, 9, 2);
    // As a process that was forked, and may not read the file, opens a space of its own.
    check(&space, 9, 2);
    drop(open_as(&uri));
}
