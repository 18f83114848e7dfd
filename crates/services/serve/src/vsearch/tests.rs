use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use farshore_load::vectors::{Nearest, Vectors, distance, stride};
use farshore_uthread::{Config, Runtime, sleep};

use super::index::{Failed, Index};
use super::server::Server;
use super::stats::Count;

const DIMENSIONS: usize = 20;
const ITEMS: u32 = 1500;
const LISTS: usize = 24;

fn index(threads: usize) -> Index {
    Index::new(&Vectors::made(DIMENSIONS), ITEMS, LISTS, threads).unwrap()
}

fn vector(number: u64) -> Vec<f32> {
    let mut to = vec![0.0; stride(DIMENSIONS)];
    Vectors::made(DIMENSIONS).get(number, &mut to).unwrap();
    to
}

/// Queries that are none of the stored vectors.
fn queries(count: u64) -> Vec<Vec<f32>> {
    (0..count).map(|number| vector(u64::from(ITEMS) + number)).collect()
}

/// The nearest, by looking at all.
fn exact(stored: &[Vec<f32>], query: &[f32], most: usize) -> Vec<(f32, u32)> {
    let mut nearest = Nearest::new(most);
    stored.iter().zip(0..).for_each(|(stored, number)| nearest.offer(distance(query, stored), number));
    nearest.sorted()
}

fn stored() -> Vec<Vec<f32>> {
    (0..ITEMS.into()).map(vector).collect()
}

#[test]
fn all_lists_together_have_the_nearest() {
    let (index, stored) = (index(2), stored());
    for query in &queries(30) {
        for most in [1, 10, 100] {
            assert_eq!(index.search(query, most, LISTS), Ok(exact(&stored, query, most)));
        }
    }
    assert_eq!(index.verify(), Ok(ITEMS as usize));
    assert_eq!((index.counters.get(Count::Searches), index.counters.get(Count::Rows)), (90, 90 * u64::from(ITEMS)));
}

/// A search in some of the lists finds most of them, and more in more lists. What is found is as near as is said.
#[test]
fn recall_grows_with_the_lists_that_are_read() {
    let (index, stored, queries) = (index(2), stored(), queries(60));
    let found = |probes| {
        let mut found = 0;
        for query in &queries {
            let wanted = exact(&stored, query, 10);
            for (far, id) in index.search(query, 10, probes).unwrap() {
                assert_eq!(far.to_bits(), distance(query, &stored[id as usize]).to_bits());
                found += usize::from(far <= wanted[9].0);
            }
        }
        found as f64 / (10 * queries.len()) as f64
    };
    let recall = [1, 4, LISTS].map(found);
    assert!(recall[0] > 0.3 && recall[0] < recall[1] && recall[1] > 0.8 && recall[2] == 1.0, "{recall:?}");
}

#[test]
fn the_index_follows_from_the_vectors() {
    let (one, other) = (index(1), index(3));
    for query in &queries(40) {
        assert_eq!(one.search(query, 10, 3), other.search(query, 10, 3));
    }
}

#[test]
fn few_vectors() {
    for (items, lists) in [(1, 1), (7, 7), (30, 1)] {
        let index = Index::new(&Vectors::made(DIMENSIONS), items, lists, 2).unwrap();
        let found = index.search(&vector(99), 100, lists).unwrap();
        assert_eq!(found, exact(&stored()[..items as usize], &vector(99), 100), "{items} in {lists}");
    }
}

#[test]
fn what_is_damaged_is_no_answer() {
    let mut index = index(1);
    let words = index.rows().words().len() / ITEMS as usize;
    index.rows().words()[700 * words + 5] ^= 1 << 20;
    assert_eq!(index.verify(), Err(Failed::Damaged(700)));
    assert_eq!(index.search(&vector(3), 10, LISTS), Err(Failed::Damaged(700)));
    assert_eq!(index.counters.get(Count::Damaged), 2);
    // A centroid, and where a list begins or ends.
    for (list, word) in [(0, 9), (LISTS - 1, 20), (3, 0), (LISTS, 0)] {
        let mut index = self::index(1);
        let words = index.centroids().words().len() / (LISTS + 1);
        index.centroids().words()[list * words + word] ^= 1;
        assert_eq!(index.verify(), Err(Failed::Damaged(list)), "word {word} of list {list}");
        assert_eq!(index.search(&vector(3), 10, LISTS), Err(Failed::Damaged(list)));
    }
    let mut answers = Vec::new();
    let server = Server::new(index, LISTS, 1392);
    server.feed(&command(&vector(3), 10, ""), &mut answers, &mut |_| Ok(())).unwrap();
    assert!(answers.starts_with(b"-DAMAGED the vector or the centroid at place 700"), "{}", String::from_utf8_lossy(&answers));
}

/// Unithreads that are switched away from in the midst of searches: see `memory::comes_from_far`.
#[test]
fn many_unithreads() {
    const QUERIES: u64 = 40;
    for workers in [1, 3] {
        let index = Arc::new(index(2));
        let wanted: Vec<_> = queries(QUERIES).iter().map(|query| index.search(query, 10, 5)).collect();
        let all = Arc::new((queries(QUERIES), wanted));
        let runtime = Runtime::start(Config { workers, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
        let done = Arc::new([const { AtomicU64::new(0) }; 2]);
        for seed in 0..16 {
            let (index, all, done) = (index.clone(), all.clone(), done.clone());
            let work = move || {
                for step in 0..10 {
                    let at = (seed * 7 + step * 3) % QUERIES as usize;
                    let right = index.search(&all.0[at], 10, 5) == all.1[at];
                    done[usize::from(right)].fetch_add(1, Relaxed);
                }
            };
            drop(runtime.spawn(work).unwrap());
        }
        // Searches end early once the runtime is told to end.
        while done.iter().map(|count| count.load(Relaxed)).sum::<u64>() < 16 * 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        runtime.shutdown_within(Duration::from_secs(100)).unwrap();
        assert_eq!(done[1].load(Relaxed), 16 * 10);
    }
}

/// `FT.SEARCH` for so many; `more` are other words.
fn command(query: &[f32], most: usize, more: &str) -> Vec<u8> {
    let asked = format!("*=>[KNN {most} @v $q AS d]");
    let blob: Vec<u8> = query[..DIMENSIONS].iter().flat_map(|number| number.to_le_bytes()).collect();
    let words: Vec<&[u8]> = [&b"ft.search"[..], b"vectors", asked.as_bytes(), b"PARAMS", b"2", b"q", &blob]
        .into_iter()
        .chain(more.split_ascii_whitespace().map(str::as_bytes))
        .collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn answer(found: &[(f32, u32)]) -> String {
    let one = |(far, id): &(f32, u32)| {
        let (far, id) = (far.to_string(), id.to_string());
        format!("${}\r\n{id}\r\n*2\r\n$1\r\nd\r\n${}\r\n{far}\r\n", id.len(), far.len())
    };
    format!("*{}\r\n:{}\r\n", 1 + 2 * found.len(), found.len()) + &found.iter().map(one).collect::<String>()
}

/// What a connection is told, and whether it goes on.
fn told(server: &Server, input: &[u8]) -> (String, bool) {
    let mut answers = Vec::new();
    let (used, goes_on) = server.feed(input, &mut answers, &mut |_| Ok(())).unwrap();
    assert!(!goes_on || used == input.len());
    (String::from_utf8(answers).unwrap(), goes_on)
}

#[test]
fn searches_of_a_connection() {
    let (server, query) = (Server::new(index(1), LISTS, 1392), vector(5000));
    let found = exact(&stored(), &query, 12);
    assert_eq!(told(&server, &command(&query, 10, "")), (answer(&found[..10]), true));
    let both = [command(&query, 12, "LIMIT 0 100 RETURN 1 d"), command(&query, 2, "SORTBY d")].concat();
    assert_eq!(told(&server, &both).0, answer(&found) + &answer(&found[..2]));
    assert_eq!(
        told(&server, &command(&query, 3, "NOCONTENT LIMIT 1 1")).0,
        format!("*2\r\n:3\r\n${}\r\n{}\r\n", found[1].1.to_string().len(), found[1].1)
    );
    for (bad, says) in [
        (command(&query, 101, ""), "-ERR KNN: want 1 to 100"),
        (command(&query, 10, "FILTER x 1 2"), "-ERR unknown argument"),
        (command(&[f32::NAN; DIMENSIONS], 10, ""), "-ERR the vector has what is no finite number"),
        (command(&[1e19; DIMENSIONS], 10, ""), "-ERR the vector's numbers are too large"),
        (b"CLIENT REPLY OFF\r\n".to_vec(), "-ERR CLIENT REPLY is not understood"),
        (b"*7\r\n$9\r\nFT.SEARCH\r\n$7\r\nvectors\r\n$16\r\n*=>[KNN 3 @v $q]\r\n$6\r\nPARAMS\r\n$1\r\n2\r\n$1\r\nq\r\n$4\r\nabcd\r\n".to_vec(), "-ERR the vector must have 20 numbers"),
        (b"FT.SEARCH vectors *=>[KNN] PARAMS 2 q x\r\n".to_vec(), "-ERR the query must be"),
        (b"NONSENSE\r\n".to_vec(), "-ERR unknown command"),
        (vec![b'x'; 16 << 10], "-ERR Protocol error"),
    ] {
        let (said, _) = told(&server, &bad);
        assert!(said.starts_with(says) && said.ends_with("\r\n") && said.matches('\n').count() == 1, "{says}: {said:?}");
    }
}

#[test]
fn what_clients_ask_for_besides() {
    let server = Server::new(index(1), 3, 1392);
    for (asked, wanted, goes_on) in [
        ("PING", "+PONG\r\n", true),
        ("ping hi", "$2\r\nhi\r\n", true),
        ("CLIENT SETINFO LIB-NAME x", "+OK\r\n", true),
        ("COMMAND DOCS", "*0\r\n", true),
        ("FT._LIST", "*1\r\n$7\r\nvectors\r\n", true),
        ("VERIFY", "+OK 1500 vectors are as they were stored\r\n", true),
        ("HELLO 3", "-NOPROTO it speaks version 2 alone\r\n", true),
        ("QUIT", "+OK\r\n", false),
    ] {
        // VERIFY sends its answer at once.
        let mut sent = String::new();
        let mut keep = |answers: &mut Vec<u8>| {
            sent += std::str::from_utf8(answers).unwrap();
            answers.clear();
            Ok(())
        };
        let mut answers = Vec::new();
        let (_, goes) = server.feed(format!("{asked}\r\n").as_bytes(), &mut answers, &mut keep).unwrap();
        keep(&mut answers).unwrap();
        assert_eq!((sent.as_str(), goes), (wanted, goes_on), "{asked}");
    }
    let (info, described) = (told(&server, b"INFO\r\n").0, told(&server, b"FT.INFO vectors\r\n").0);
    assert!(
        info.contains("\r\nlists:24\r\n") && info.contains("\r\nsearches:0\r\n") && info.contains("\r\ndamaged:0\r\n"),
        "{info}"
    );
    assert!(
        described.starts_with("*14\r\n") && described.contains("\r\nL2\r\n") && described.matches('$').count() == 14,
        "{described}"
    );
    assert!(told(&server, b"HELLO\r\n").0.starts_with("*6\r\n$6\r\nserver\r\n"));
}

#[test]
fn answers_to_datagrams_have_a_limit() {
    let (server, query) = (Server::new(index(1), LISTS, 700), vector(5000));
    let datagram = |command: Vec<u8>| [b"\x011234567".to_vec(), command].concat();
    let told = |command| server.told(&datagram(command)).map(|told| String::from_utf8(told).unwrap());
    let found = exact(&stored(), &query, 5);
    assert_eq!(told(command(&query, 5, "")), Some(format!("\x011234567{}", answer(&found))));
    let searches = server.index().counters.get(Count::Searches);
    assert!(
        told(command(&query, 10, "")).is_some_and(|told| told.ends_with("-ERR the answer is too long for UDP: ask by TCP\r\n"))
    );
    assert_eq!(server.index().counters.get(Count::Searches), searches, "it was not done");
    // What is no search has no answer.
    for none in [
        b"VERIFY\r\n".to_vec(),
        b"INFO\r\n".to_vec(),
        b"*1\r\n".to_vec(),
        Vec::new(),
        [command(&query, 5, ""), b"x".to_vec()].concat(),
    ] {
        assert_eq!(told(none), None);
    }
    assert_eq!(server.told(b"1234567"), None);
}

#[test]
fn a_server_that_is_told_to_end_stops_looking() {
    let runtime = Runtime::start(Config { workers: 1, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
    let (server, (tell, hear)) = (Server::new(index(1), LISTS, 1392), std::sync::mpsc::channel());
    let (begins, begun) = std::sync::mpsc::channel();
    let connection = move || {
        begins.send(()).unwrap();
        while sleep(Duration::from_secs(1)).is_ok() {}
        let input = [b"VERIFY\r\n".to_vec(), command(&vector(5), 10, "")].concat();
        let mut answers = Vec::new();
        let fed = server.feed(&input, &mut answers, &mut |_| Ok(())).unwrap();
        tell.send((fed, answers)).unwrap();
    };
    drop(runtime.spawn(connection).unwrap());
    begun.recv().unwrap();
    runtime.shutdown_within(Duration::from_secs(100)).unwrap();
    let ((used, goes_on), answers) = hear.recv().unwrap();
    assert_eq!((used, goes_on, &*answers), (8, false, &b"-ERR the server is told to end\r\n"[..]));
}

#[test]
fn a_client_that_has_gone_gets_no_second_look() {
    let (server, mut sent) = (Server::new(index(1), LISTS, 1392), Vec::new());
    let gone = |answers: &mut Vec<u8>| {
        sent.push(std::mem::take(answers));
        Err(io::ErrorKind::BrokenPipe.into())
    };
    let fed = server.feed(&b"VERIFY\r\n".repeat(3), &mut Vec::new(), &mut { gone });
    assert_eq!(fed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(sent.len() == 1 && sent[0].starts_with(b"+OK 1500"), "{sent:?}");
}
