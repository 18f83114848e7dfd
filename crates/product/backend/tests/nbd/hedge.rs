//! Reads of a mirror that are late, and are sent to the other server too: answers that come when they are not wanted any more must come nowhere.

use super::server::{Deed, READ, Server, WRITE};
use super::{MIB, mirrored, page, put, slot, until};
use farshore_backend::AnyBackend;
use farshore_backend::mirror::Opened;
use farshore_core::seams::{NoneFree, PageBuf, ReadBegun, Reads, Spaces};
use farshore_random::Rng;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Slots that have pages, from [`FIRST`] on.
const SLOTS: u64 = 50;
const FIRST: u64 = 7;

/// Two servers, a mirror of them, and what is done to the next reads, in the order in which they come to either server. Others are answered as they should be.
struct Pair {
    servers: [Arc<Server>; 2],
    space: AnyBackend,
    next: Arc<Mutex<VecDeque<Deed>>>,
    /// The servers that reads came to.
    order: Arc<Mutex<Vec<usize>>>,
}

impl Pair {
    fn new() -> Pair {
        // One line of each server, so that a late answer is before the next one.
        let mut own = CpuSet::new();
        own.set(sched_getcpu());
        sched_setaffinity(None, &own).unwrap();
        let servers = [Server::new(64 * MIB), Server::new(64 * MIB)];
        let space = mirrored(&[&servers[0], &servers[1]]);
        put(&space, FIRST, 1, SLOTS);
        let pair = Pair { servers, space, next: Arc::default(), order: Arc::default() };
        for (number, server) in pair.servers.iter().enumerate() {
            let (next, order) = (Arc::clone(&pair.next), Arc::clone(&pair.order));
            server.behave(move |command, _| {
                if command != READ {
                    return Deed::Right;
                }
                order.lock().unwrap().push(number);
                next.lock().unwrap().pop_front().unwrap_or(Deed::Right)
            });
        }
        // Both are read now and then, so it is known what that takes, for each size.
        for pages in [1, 8] {
            (0..400).for_each(|n| pair.has(FIRST + n % 40, 1, pages));
        }
        pair
    }

    fn has(&self, first: u64, version: u64, count: u64) {
        super::has(&self.space, first, version, count);
    }

    /// What is done to the next reads. The budget allows it: others were read before.
    fn arm(&self, deeds: &[Deed]) {
        (0..200).for_each(|n| self.has(FIRST + 13 + n % 29, 1, 8));
        self.next.lock().unwrap().extend(deeds);
    }

    /// Reads that were hedged so far, and those that the second copy has won.
    fn hedged(&self) -> (u64, u64) {
        self.space.mirror().unwrap().seen().fold((0, 0), |sum, copy| (sum.0 + copy.hedged, sum.1 + copy.hedged_won))
    }

    fn stale(&self) -> Vec<u64> {
        self.space.mirror().unwrap().seen().map(|copy| copy.stale).collect()
    }

    /// The server that holds an answer back.
    fn holder(&self) -> usize {
        self.servers.iter().position(|server| server.held() > 0).expect("one of them does")
    }

    fn copy(&self, number: usize) -> Opened<'_> {
        self.space.mirror().unwrap().copies().nth(number).unwrap()
    }
}

fn filled(pages: usize) -> Vec<PageBuf> {
    vec![PageBuf([0xee; 4096]); pages]
}

fn is_filled(pages: &[PageBuf]) -> bool {
    pages.iter().all(|page| page.0.iter().all(|&byte| byte == 0xee))
}

/// The answer comes, whole or the rest of it, after the other one has won, after the buffer was used for something else, and after the slot was written anew.
#[test]
fn a_late_answer_comes_nowhere() {
    let pair = Pair::new();
    let mut version = 1;
    for pages in [1_usize, 8] {
        let whole = 16 + pages * 4096;
        let parts = [1, 16, 100, whole / 2, whole - 1].map(Deed::HeldAfter);
        for deed in [Deed::Held].into_iter().chain(parts) {
            let before = pair.hedged();
            pair.arm(&[deed]);
            let mut buffer = filled(pages);
            pair.space.read_run(slot(10), &mut buffer).unwrap();
            assert!((10..).zip(&buffer).all(|(n, got)| got.0 == page(n, version).0), "{deed:?} of {pages}");
            let after = pair.hedged();
            assert!(after.0 > before.0 && after.1 > before.1, "{deed:?}: {before:?} {after:?}");
            // The buffer is the caller's, and the slot has another page by now.
            buffer.clone_from_slice(&filled(pages));
            version += 1;
            put(&pair.space, 10, version, pages as u64);
            if pages == 1 {
                put(&pair.space, 11, version, 7);
            }
            let holder = pair.holder();
            pair.servers[holder].let_go();
            // What comes first on that line is the late answer.
            for _ in 0..3 {
                super::has(&pair.copy(holder), 10, version, pages as u64);
            }
            assert!(is_filled(&buffer), "{deed:?} of {pages}: the late answer has come into it");
            pair.has(10, version, pages as u64);
        }
    }
    assert_eq!(pair.stale(), [0, 0], "nobody was doubted");
}

/// More of them than a line has places for requests.
#[test]
fn a_server_that_never_answers_some_reads_keeps_nothing() {
    let pair = Pair::new();
    for round in 0..150 {
        pair.arm(&[Deed::Never]);
        let mut buffer = filled(1);
        pair.space.read_run(slot(FIRST + round % SLOTS), &mut buffer).unwrap();
        assert!(buffer[0].0 == page(FIRST + round % SLOTS, 1).0);
    }
    assert!(pair.hedged().1 >= 150, "{:?}", pair.hedged());
}

#[test]
fn whichever_comes_first_counts() {
    for case in ["the second", "the first", "the first is cut", "the second is cut"] {
        let pair = Pair::new();
        pair.arm(&[Deed::Held, Deed::Held]);
        let (before, at) = (pair.hedged().1, pair.order.lock().unwrap().len());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pair.has(10, 1, 1));
            until("both hold it", || pair.servers.iter().all(|server| server.held() == 1));
            let first = pair.order.lock().unwrap()[at];
            let (first, second) = (&pair.servers[first], &pair.servers[1 - first]);
            match case {
                "the second" => second.let_go(),
                "the first" => first.let_go(),
                "the first is cut" => {
                    first.cut_all();
                    second.let_go();
                }
                _ => {
                    second.cut_all();
                    first.let_go();
                }
            }
            reader.join().unwrap();
        });
        let won = pair.hedged().1 - before;
        assert_eq!(won, u64::from(matches!(case, "the second" | "the first is cut")), "{case}");
        pair.has(10, 1, 1);
    }
}

/// The engine's sum tells, and who is doubted then is the one that the bytes came from.
#[test]
fn the_copy_that_won_is_the_one_that_is_doubted() {
    let pair = Pair::new();
    for n in 10..14 {
        pair.arm(&[Deed::Held, Deed::Garbled]);
        let mut buffer = filled(1);
        pair.space.read(slot(n), &mut buffer[0]).unwrap();
        assert!(buffer[0].0 != page(n, 1).0, "the wrong answer came first");
        let (held, before) = (pair.holder(), pair.stale());
        pair.space.doubt(slot(n));
        let after = pair.stale();
        assert_eq!((after[held], after[1 - held]), (before[held], before[1 - held] + 1), "the {held}th was late");
        pair.servers[held].let_go();
        pair.has(n, 1, 1);
    }
}

/// The other server lacks one of the pages, as it is now, and has it as it was before.
#[test]
fn a_copy_that_does_not_have_the_page_is_not_asked() {
    let pair = Pair::new();
    let next = Arc::clone(&pair.next);
    pair.servers[1].behave(move |command, _| match command {
        WRITE => Deed::Error(28),
        _ => next.lock().unwrap().pop_front().unwrap_or(Deed::Right),
    });
    put(&pair.space, 10, 2, 1);
    assert_eq!(pair.stale(), [0, 1]);
    for (first, pages) in [(10, 1_usize), (10, 8)] {
        pair.arm(&[Deed::Held]);
        let mut buffer = filled(pages);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pair.space.read_run(slot(first), &mut buffer).unwrap());
            until("one holds it", || pair.servers.iter().any(|server| server.held() == 1));
            // Longer than any of these reads has taken.
            std::thread::sleep(Duration::from_millis(50));
            pair.servers[pair.holder()].let_go();
            reader.join().unwrap();
        });
        let version = |n| if n == 10 { 2 } else { 1 };
        assert!((first..).zip(&buffer).all(|(n, got)| got.0 == page(n, version(n)).0), "{pages} pages");
    }
    assert!(pair.servers.iter().all(|server| server.held() == 0));
}

/// Half of the answers are late, by what they were before.
#[test]
fn the_load_grows_by_a_twentieth_at_most() {
    const READS: u64 = 300;
    const PAGES: u64 = 8;
    let pair = Pair::new();
    let (random, came) = (Arc::new(Mutex::new(Rng::new(9))), Arc::new(AtomicU64::new(0)));
    for server in &pair.servers {
        let (random, came) = (Arc::clone(&random), Arc::clone(&came));
        server.behave(move |command, _| {
            if command != READ {
                return Deed::Right;
            }
            came.fetch_add(1, SeqCst);
            if random.lock().unwrap().below(2) == 0 { Deed::Late(20) } else { Deed::Right }
        });
    }
    let before = pair.hedged().0;
    (0..READS).for_each(|n| pair.has(FIRST + n % 40, 1, PAGES));
    let (reads, hedged) = (came.load(SeqCst), pair.hedged().0 - before);
    assert!(hedged > 0 && reads == READS + hedged, "{reads} requests for {READS} reads, of which {hedged} were hedged");
    // By pages, since they are what fills a network; and 64 of them in advance.
    assert!(hedged * PAGES <= READS * PAGES / 20 + 64, "{hedged} of {READS}");
}

#[test]
fn a_forked_childs_reads_are_hedged() {
    let pair = Pair::new();
    drop(pair.space.take_rings());
    pair.space.forked(false);
    assert_eq!(pair.hedged(), (0, 0), "they are its parent's");
    // It makes its connections when it reads.
    (0..200).for_each(|n| pair.has(FIRST + n % SLOTS, 1, 1));
    pair.arm(&[Deed::Held]);
    pair.has(10, 1, 1);
    assert!(pair.hedged().1 > 0);
    pair.servers[pair.holder()].let_go();
    pair.has(10, 1, 1);
}

/// As a unithread reads.
#[test]
fn a_read_that_another_thread_could_wait_for_is_hedged_too() {
    let pair = Pair::new();
    pair.arm(&[Deed::Held]);
    let mut buffer = filled(1);
    assert_eq!(pair.space.begin_read(slot(10), &mut buffer), ReadBegun::Over(Ok(())));
    assert!(buffer[0].0 == page(10, 1).0);
    pair.servers[pair.holder()].let_go();
}

/// Several threads, on all lines, over servers that are late, stop in the middle of an answer, and now and then do not answer at all. Slots are written and buffers used
/// for something else at once, and whatever comes into them then is noticed.
#[test]
fn no_answer_is_ever_where_it_should_not_be() {
    const THREADS: u64 = 6;
    let servers = [Server::new(64 * MIB), Server::new(64 * MIB)];
    let space = mirrored(&[&servers[0], &servers[1]]);
    for (n, server) in servers.iter().enumerate() {
        let random = Mutex::new(Rng::new(n as u64 + 1));
        server.behave(move |command, _| {
            let mut random = random.lock().unwrap();
            match random.below(400) {
                _ if command != READ => Deed::Right,
                0..8 => Deed::Late(1 + random.below(12)),
                8..16 => Deed::Stalled(1 + random.below(12)),
                16 => Deed::Never,
                _ => Deed::Right,
            }
        });
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (space, over) = (&space, &over);
        scope.spawn(move || {
            while !over.load(SeqCst) {
                let again = space.keep(&NoneFree).unwrap();
                std::thread::sleep(Duration::from_nanos(again.min(5_000_000)));
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Rng::new(100 + thread);
                    let mut versions = vec![0_u64; 400];
                    let begun = Instant::now();
                    let mut own = filled(64);
                    while begun.elapsed().as_secs() < 6 {
                        // Within an extent, as all writes are.
                        let at = |n: u64| 1 + n + 512 * thread;
                        let first = random.below(330);
                        let count = if random.below(3) == 0 { 1 + random.below(64) } else { 1 };
                        if random.below(8) == 0 {
                            let version = random.below(1 << 30) + 1;
                            put(space, at(first), version, count);
                            (first..first + count).for_each(|n| versions[n as usize] = version);
                            continue;
                        }
                        let known = (first..first + count).take_while(|&n| versions[n as usize] > 0).count();
                        let (buffer, rest) = own.split_at_mut(known);
                        if known > 0 {
                            space.read_run(slot(at(first)), buffer).unwrap();
                        }
                        for (n, got) in (first..).zip(&*buffer) {
                            assert!(got.0 == page(at(n), versions[n as usize]).0, "slot {} of thread {thread}", at(n));
                        }
                        assert!(is_filled(rest), "thread {thread}: beside what was read");
                        buffer.fill(PageBuf([0xee; 4096]));
                        if random.below(4) == 0 {
                            std::thread::sleep(Duration::from_micros(random.below(3000)));
                        }
                        assert!(is_filled(&own), "thread {thread}: a late answer");
                    }
                })
            })
            .collect();
        let all: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, SeqCst);
        all.into_iter().for_each(|worker| worker.unwrap());
    });
    let (hedged, won) = space.mirror().unwrap().seen().fold((0, 0), |sum, copy| (sum.0 + copy.hedged, sum.1 + copy.hedged_won));
    assert!(hedged > 0 && won > 0 && won <= hedged, "{won} of {hedged}");
}
