//! The NBD client against a server of the tests' own that loses connections, lies, and makes writes late.

mod hedge;
mod server;

use farshore_backend::AnyBackend;
use farshore_backend::mirror::exchange::{Alone, Leaving, NoExchange};
use farshore_backend::nbd::{NbdQueue, NbdSpace, Waits, set_patience};
use farshore_config::{NbdExport, SwapSpec};
use farshore_core::seams::{Backend, IoError, NoneFree, PageBuf, Reads, Spaces, WriteQueue};
use farshore_core::word::Slot;
use farshore_random::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::{Deed, GOOD, READ, Server, TRIM, WRITE};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

const MIB: usize = 1 << 20;

fn slot(n: u64) -> Slot {
    Slot::new(n).unwrap()
}

/// A page that tells its slot and version in each word.
fn page(slot: u64, version: u64) -> PageBuf {
    let mut page = PageBuf::ZERO;
    for (n, word) in page.0.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(slot << 40 ^ version << 16 ^ n as u64).to_le_bytes());
    }
    page
}

fn open(server: &Server) -> NbdSpace {
    NbdSpace::open(&server.uri().parse().unwrap(), Waits::Long, &mut |_| {}).unwrap()
}

fn refusal(uri: &str) -> String {
    let export: NbdExport = uri.parse().unwrap();
    NbdSpace::open(&export, Waits::Long, &mut |_| {}).unwrap_err().to_string()
}

fn write(queue: &mut NbdQueue, first: u64, pages: &[PageBuf]) -> Result<(), IoError> {
    // SAFETY: the pages outlive the completion, which is waited for.
    unsafe { queue.start_write(slot(first), pages.as_ptr(), pages.len() as u32, 1) }.unwrap();
    let mut result = None;
    while result.is_none() {
        queue.reap(true, &mut |_, ended| result = Some(ended));
    }
    result.unwrap()
}

/// Waits for a state.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 20, "it never comes: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn check(space: &NbdSpace, slot_number: u64, version: u64) {
    let mut got = PageBuf::ZERO;
    space.read(slot(slot_number), &mut got).unwrap();
    assert!(got.0 == page(slot_number, version).0, "slot {slot_number}, version {version}");
}

#[test]
fn what_goes_in_comes_out() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(16).unwrap();
    let pages: Vec<_> = (7..27).map(|n| page(n, 1)).collect();
    write(&mut queue, 7, &pages).unwrap();
    (7..27).for_each(|n| check(&space, n, 1));
    let mut run = vec![PageBuf::ZERO; 20];
    space.read_run(slot(7), &mut run).unwrap();
    assert!(run.iter().zip(&pages).all(|(got, want)| got.0 == want.0));
    assert_eq!((space.spaces(), space.capacity()), (1, Some(56 * 256)), "an eighth is kept");
    assert_eq!(write(&mut queue, 56 * 256 - 1, &pages[..2]), Err(IoError::Full));
    let mut none = PageBuf::ZERO;
    assert_eq!(space.read(slot(5000), &mut none), Err(IoError::Short), "never written");
}

#[test]
fn replies_come_in_any_order_and_to_many_threads() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(16).unwrap();
    let pages: Vec<_> = (512..1024).map(|n| page(n, 3)).collect();
    for part in 0..8 {
        write(&mut queue, 512 + part * 64, &pages[part as usize * 64..][..64]).unwrap();
    }
    let turn = AtomicU32::new(0);
    let busy = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&busy);
    // Every third read is answered after the next one, as long as there will be a next one.
    server.behave(move |command, _| {
        let late = command == READ && turn.fetch_add(1, SeqCst).is_multiple_of(3) && counted.load(SeqCst) > 4;
        if late { Deed::Later } else { Deed::Right }
    });
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (space, busy) = (&space, &busy);
            scope.spawn(move || {
                let mut random = Rng::new(thread);
                busy.fetch_add(1, SeqCst);
                for _ in 0..if thread < 4 { 3000 } else { 500 } {
                    let first = 512 + random.below(500);
                    let mut run = vec![PageBuf::ZERO; 1 + random.below(12) as usize];
                    space.read_run(slot(first), &mut run).unwrap();
                    assert!((first..).zip(&run).all(|(n, got)| got.0 == page(n, 3).0));
                }
                busy.fetch_sub(1, SeqCst);
                // Whoever still waits for a late answer gets it with the next.
                let mut more = PageBuf::ZERO;
                (0..200).for_each(|_| space.read(slot(512), &mut more).unwrap());
            });
        }
    });
}

/// Writers and readers while connections are lost at random; the server makes the writes of lost connections late, over what was
/// written there since.
#[test]
fn lost_connections_lose_nothing() {
    let server = Server::new(1024 * MIB);
    let space = open(&server);
    let random = std::sync::Mutex::new(Rng::new(1));
    let calm = Arc::new(AtomicBool::new(false));
    let is_calm = Arc::clone(&calm);
    server.behave(move |command, _| {
        let mut random = random.lock().unwrap();
        match random.below(60) {
            _ if is_calm.load(SeqCst) => Deed::Right,
            0 if command == WRITE => Deed::Drop(20 + random.below(60)),
            1 => Deed::Drop(0),
            2 if command == READ => Deed::Half,
            3 if command == READ => Deed::WrongMagic,
            4 => Deed::WrongCookie,
            _ => Deed::Right,
        }
    });
    let mut queue = space.queue(8).unwrap();
    let mut random = Rng::new(101);
    let mut versions: HashMap<u64, u64> = HashMap::new();
    for version in 1..100 {
        // Slots are written again and again, as the engine does with those that were freed.
        let runs: Vec<(u64, u64)> = (0..4).map(|n| (600 + n * 40 + random.below(8), 1 + random.below(20))).collect();
        let pages: Vec<Vec<PageBuf>> =
            runs.iter().map(|&(first, count)| (first..first + count).map(|n| page(n, version)).collect()).collect();
        for (tag, (run, pages)) in (0..).zip(runs.iter().zip(&pages)) {
            // SAFETY: the pages outlive the completions, which are waited for below.
            unsafe { queue.start_write(slot(run.0), pages.as_ptr(), pages.len() as u32, tag) }.unwrap();
        }
        while queue.in_flight() > 0 {
            queue.reap(true, &mut |_, result| assert_eq!(result, Ok(())));
        }
        versions.extend(runs.iter().flat_map(|&(first, count)| (first..first + count).map(|n| (n, version))));
        let known: Vec<_> = versions.iter().map(|(&n, &version)| (n, version)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (space, known) = (&space, &known);
                scope.spawn(move || known.iter().skip(thread).step_by(4).take(8).for_each(|&(n, v)| check(space, n, v)));
            }
        });
    }
    calm.store(true, SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(300));
    versions.iter().for_each(|(&n, &version)| check(&space, n, version));
    assert!(server.connections.load(SeqCst) > 10, "{}", server.connections.load(SeqCst));
}

#[test]
fn a_server_that_goes_away_for_a_while_is_waited_for() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 1)]).unwrap();
    server.away.store(true, SeqCst);
    server.cut_all();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| check(&space, 9, 1))).collect();
        // Meanwhile a write does not end, and no longer blocks than it may.
        let pages = [page(10, 1)];
        // SAFETY: the completion is waited for below.
        unsafe { queue.start_write(slot(10), pages.as_ptr(), 1, 5) }.unwrap();
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
fn errors_of_the_server_are_those_of_one_page() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 1, &[page(1, 1), page(2, 1)]).unwrap();
    server.behave(|command, offset| if command == READ && offset == 4096 { Deed::Error(5) } else { Deed::Right });
    let mut into = PageBuf::ZERO;
    assert_eq!(space.read(slot(1), &mut into), Err(IoError::Device(5)));
    check(&space, 2, 1);
    server.behave(|command, _| if command == WRITE { Deed::Error(28) } else { Deed::Right });
    assert_eq!(write(&mut queue, 3, &[page(3, 1)]), Err(IoError::Full));
    server.behave(|command, _| if command == WRITE { Deed::Error(1) } else { Deed::Right });
    assert_eq!(write(&mut queue, 3, &[page(3, 1)]), Err(IoError::Device(1)));
    server.behave(|_, _| Deed::Right);
    write(&mut queue, 3, &[page(3, 2)]).unwrap();
    check(&space, 3, 2);
}

#[test]
fn room_is_given_back() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 512, &[page(512, 1)]).unwrap();
    space.give_back(slot(512), 512).unwrap();
    assert_eq!(server.trims.load(SeqCst), 1);
    space.give_back(slot(1024), 512).unwrap();
    assert_eq!(server.trims.load(SeqCst), 1, "nothing was written there");
    write(&mut queue, 512, &[page(512, 2)]).unwrap();
    check(&space, 512, 2);
    // A trim that may come late: its places are not used again.
    server.behave(|command, _| if command == TRIM { Deed::Drop(0) } else { Deed::Right });
    assert!(space.give_back(slot(512), 512).is_err());
    server.behave(|_, _| Deed::Right);
    write(&mut queue, 512, &[page(512, 3)]).unwrap();
    server.memory.lock().unwrap()[..2 * MIB].fill(0);
    check(&space, 512, 3);
    assert!(space.give_back(slot(512), 512).is_err(), "a page lies elsewhere");
}

#[test]
fn what_cannot_be_used_is_refused_with_the_reason() {
    let server = Server::new(64 * MIB);
    let wrong = server.uri().replace("/x?", "/y?");
    assert!(refusal(&wrong).contains("no export of that name"), "{}", refusal(&wrong));
    let with = |flags: u16, block: u32, bytes: u64, part: &str| {
        server.flags.store(u32::from(flags), SeqCst);
        server.block.store(block, SeqCst);
        server.size.store(bytes, SeqCst);
        let why = refusal(&server.uri());
        assert!(why.contains(part) && why.contains(&server.uri()), "{why}");
    };
    with(GOOD | 2, 1, 64 << 20, "read-only");
    with(1, 1, 64 << 20, "CAN_MULTI_CONN");
    with(GOOD, 65536, 64 << 20, "blocks are larger");
    with(GOOD, 512, 3 << 20, "too small");
    server.size.store(64 << 20, SeqCst);
    *server.greeting.lock().unwrap() = Some(b"HTTP/1.1 400 Bad Request\r\n".to_vec());
    assert!(refusal(&server.uri()).contains("no NBD server"));
    *server.greeting.lock().unwrap() = None;
    server.memory.lock().unwrap()[1080..1082].copy_from_slice(&[0x53, 0xef]);
    assert!(refusal(&server.uri()).contains("ext4"));
    let forced = NbdSpace::open(&format!("{},force", server.uri()).parse().unwrap(), Waits::Long, &mut |_| {}).unwrap();
    drop(forced);
    server.memory.lock().unwrap()[1080] = 0;
    drop(open(&server));
    let gone = format!("{}-gone", server.uri());
    assert!(refusal(&gone).contains("no server can be reached"), "{}", refusal(&gone));
    assert!(refusal("nbd://localhost:1").contains("a name"));
    assert!(refusal("nbd://127.0.0.1:1").contains("no server can be reached"));
}

#[test]
fn another_export_under_the_old_name_is_not_used() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 1)]).unwrap();
    server.size.store(32 << 20, SeqCst);
    server.cut_all();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| check(&space, 9, 1));
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!reader.is_finished());
        server.size.store(64 << 20, SeqCst);
        reader.join().unwrap();
    });
}

/// A child's connections are made in faults, when the list of descriptors that the program cannot close is known already.
#[test]
fn a_forked_childs_connections_have_numbers_that_are_known() {
    let server = Server::new(64 * MIB);
    let spec = SwapSpec::Nbd(server.uri().parse().unwrap());
    let space = AnyBackend::open(&[spec], false, &mut |_| {}).unwrap();
    let mut queue = space.queue(4).unwrap();
    let pages = [page(9, 1)];
    // SAFETY: the page outlives the completion, which is waited for.
    unsafe { queue.start_write(slot(9), pages.as_ptr(), 1, 1) }.unwrap();
    queue.reap(true, &mut |_, result| assert_eq!(result, Ok(())));
    // As in a child; this process takes the part of both. What the child closes is no number of ours.
    let closed = space.take_rings();
    assert!(closed.len() == 1 && !space.fds().any(|fd| closed.contains(&fd)), "{closed:?}");
    drop(queue);
    space.forked(false);
    // It keeps one of its parent's connections, over which it never reads.
    until("one connection is left", || server.open() == 1);
    let known: Vec<i32> = space.fds().collect();
    let mut into = PageBuf::ZERO;
    for _ in 0..50 {
        space.read(slot(9), &mut into).unwrap();
        std::thread::yield_now();
    }
    assert!(space.fds().all(|fd| known.contains(&fd)), "{known:?}");
    // A queue that is made while the server is away.
    server.away.store(true, SeqCst);
    let mut late = space.queue(4).unwrap();
    let known: Vec<i32> = space.fds().collect();
    server.away.store(false, SeqCst);
    // SAFETY: as above.
    unsafe { late.start_write(slot(10), pages.as_ptr(), 1, 1) }.unwrap();
    late.reap(true, &mut |_, result| assert_eq!(result, Ok(())));
    assert!(space.fds().all(|fd| known.contains(&fd)), "{known:?}");
}

/// A server that takes connections and ends each at the first request.
#[test]
fn a_server_that_ends_each_connection_is_given_up() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 1)]).unwrap();
    server.behave(|command, _| if command == READ || command == WRITE { Deed::Drop(0) } else { Deed::Right });
    set_patience(50_000_000);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut into = PageBuf::ZERO;
                    tell.send(space.read(slot(9), &mut into)).unwrap();
                });
            }
        });
        tell.send(write(&mut queue, 10, &[page(10, 1)])).unwrap();
    });
    let results: Vec<_> = (0..9).map(|_| told.recv_timeout(std::time::Duration::from_secs(10))).collect();
    set_patience(10_000_000_000);
    assert!(results.iter().all(|result| matches!(result, Ok(Err(IoError::Device(_))))), "{results:?}");
    // Four lines for 600 ms, each again after 10 ms; and the queue's.
    assert!(server.connections.load(SeqCst) < 400, "{} connections", server.connections.load(SeqCst));
}

/// A process that ends in the middle of a write, which the server makes late: another process of the family has its own page there
/// by then.
#[test]
fn a_late_write_of_a_process_that_has_ended_hits_nobody() {
    let server = Server::new(64 * MIB);
    let (ended, other) = (open(&server), open(&server));
    let arrived = Arc::new(AtomicBool::new(false));
    let is_there = Arc::clone(&arrived);
    // The first one alone.
    server.behave(move |command, _| if command == WRITE && !is_there.swap(true, SeqCst) { Deed::Drop(500) } else { Deed::Right });
    let mut queue = ended.queue(4).unwrap();
    let pages = [page(9, 1)];
    // SAFETY: the page outlives the queue.
    unsafe { queue.start_write(slot(9), pages.as_ptr(), 1, 1) }.unwrap();
    while !arrived.load(SeqCst) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop((queue, ended));
    let mut queue = other.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 2)]).unwrap();
    let late = page(9, 1);
    let is_late = || server.memory.lock().unwrap().chunks_exact(4096).any(|bytes| *bytes == late.0);
    while !is_late() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    check(&other, 9, 2);
    // This process had both. It lets the first one's places alone by not using the export anew.
    let why = refusal(&server.uri());
    assert!(why.contains("writes that were lost on the way") && why.contains("name another"), "{why}");
}

/// Who has had the export a moment ago may have its name still: a process that ends, a child between fork and exec.
#[test]
fn an_export_that_is_just_being_let_go_is_waited_for() {
    let server = Server::new(64 * MIB);
    let export: NbdExport = server.uri().parse().unwrap();
    let name = format!("farshore-nbd-{:016x}", xxhash_rust::xxh3::xxh3_64(export.to_string().as_bytes()));
    let take = || {
        let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name).unwrap();
        std::os::unix::net::UnixDatagram::bind_addr(&address).unwrap()
    };
    let had = take();
    let lets_go = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(had);
    });
    drop(open(&server));
    lets_go.join().unwrap();
    let _keeps = take();
    let why = refusal(&server.uri());
    assert!(why.contains("another program under Farshore") && why.contains("until it ends"), "{why}");
}

/// A server that says something all the time, and never all that it was asked for.
#[test]
fn a_server_that_talks_and_does_not_answer_is_given_up() {
    for deed in [Deed::Stale, Deed::Drip] {
        let server = Server::new(64 * MIB);
        let space = open(&server);
        let mut queue = space.queue(4).unwrap();
        write(&mut queue, 9, &[page(9, 1)]).unwrap();
        server.behave(move |command, _| if command == READ { deed } else { Deed::Right });
        set_patience(50_000_000);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut into = PageBuf::ZERO;
            tell.send(space.read(slot(9), &mut into)).unwrap();
        });
        let result = told.recv_timeout(std::time::Duration::from_secs(10));
        set_patience(10_000_000_000);
        assert!(matches!(result, Ok(Err(IoError::Device(_)))), "{deed:?}: {result:?}");
    }
}

/// Some connections cannot be made again, others do well: the time of a later loss counts from then.
#[test]
fn a_line_that_stays_down_does_not_shorten_the_patience() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 1)]).unwrap();
    set_patience(100_000_000);
    // No more connections: this thread's own line stays down.
    server.away.store(true, SeqCst);
    server.cut_but(1);
    let since = std::time::Instant::now();
    while since.elapsed().as_millis() < 1500 {
        check(&space, 9, 1);
    }
    // The last one is lost too, for a moment.
    server.cut_all();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut into = PageBuf::ZERO;
            space.read(slot(9), &mut into)
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        server.away.store(false, SeqCst);
        let result = reader.join().unwrap();
        set_patience(10_000_000_000);
        assert_eq!(result, Ok(()));
    });
}

#[test]
fn a_server_that_tells_without_end_is_left() {
    let server = Server::new(64 * MIB);
    *server.endless.lock().unwrap() = true;
    let since = std::time::Instant::now();
    let (tell, told) = std::sync::mpsc::channel();
    let uri = server.uri();
    std::thread::spawn(move || tell.send(refusal(&uri)));
    let why = told.recv_timeout(std::time::Duration::from_secs(20)).expect("it hangs");
    assert!(why.contains("does not answer"), "{why} after {:?}", since.elapsed());
}

/// A server may forget an export that has no connection any more.
#[test]
fn a_connection_that_nobody_needs_is_made_again() {
    let server = Server::new(64 * MIB);
    let spec = SwapSpec::Nbd(server.uri().parse().unwrap());
    let space = AnyBackend::open(&[spec], true, &mut |_| {}).unwrap();
    let made = || server.connections.load(SeqCst);
    assert!(space.keep(&NoneFree).is_some_and(|ns| ns <= 20_000_000_000), "within the time that servers keep exports");
    assert_eq!((made(), server.open()), (4, 4), "all is well");
    // One is enough.
    server.cut_but(2);
    until("three are gone", || server.open() == 1);
    let _ = space.keep(&NoneFree);
    assert_eq!(made(), 4);
    server.cut_all();
    until("all are gone", || server.open() == 0);
    let _ = space.keep(&NoneFree);
    assert_eq!((made(), server.open()), (5, 1));
    // In a child, as soon as its parent's is lost.
    space.forked(false);
    let _ = space.keep(&NoneFree);
    assert_eq!((made(), server.open()), (5, 1));
    server.cut_all();
    until("the parent's is gone", || server.open() == 0);
    until("the child has its own", || space.keep(&NoneFree).is_some() && server.open() == 1);
}

/// The limit of descriptors may be lowered below the numbers of the connections.
#[test]
fn a_connection_is_made_again_below_a_lower_limit() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 1)]).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(150), maximum: before.maximum }).unwrap();
    server.cut_all();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        check(&space, 9, 1);
        write(&mut queue, 10, &[page(10, 1)]).unwrap();
        check(&space, 10, 1);
        tell.send(()).unwrap();
    });
    let done = told.recv_timeout(std::time::Duration::from_secs(20));
    setrlimit(Resource::Nofile, before).unwrap();
    done.expect("the connection is not made again");
}

/// A process that has this one's connections as copies, and is not told so: as a `vfork`ed child, it may not use the lines.
#[test]
fn another_process_reads_over_a_connection_of_its_own() {
    let server = Server::new(64 * MIB);
    let space = open(&server);
    let mut queue = space.queue(4).unwrap();
    write(&mut queue, 9, &[page(9, 1)]).unwrap();
    let before = server.connections.load(SeqCst);
    // SAFETY: the child makes system calls alone, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut into = PageBuf::ZERO;
        let right = space.read(slot(9), &mut into).is_ok() && into.0 == page(9, 1).0;
        // SAFETY: no code runs after it.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: `status` is written by the call alone.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((status, server.connections.load(SeqCst)), (0, before + 1));
    check(&space, 9, 1);
}

/// Two servers, and a mirror of them.
fn mirrored(servers: &[&Server]) -> AnyBackend {
    let copies = servers.iter().map(|server| server.uri().parse().unwrap()).collect();
    AnyBackend::open(&[SwapSpec::Mirror(copies)], false, &mut |_| {}).unwrap()
}

fn put(space: &AnyBackend, first: u64, version: u64, count: u64) {
    let mut queue = space.queue(4).unwrap();
    let pages: Vec<_> = (first..first + count).map(|n| page(n, version)).collect();
    // SAFETY: the pages outlive the completion, which is waited for.
    unsafe { queue.start_write(slot(first), pages.as_ptr(), pages.len() as u32, 1) }.unwrap();
    let mut result = None;
    while result.is_none() {
        queue.reap(true, &mut |_, ended| result = Some(ended));
    }
    assert_eq!(result, Some(Ok(())));
}

fn has(space: &AnyBackend, first: u64, version: u64, count: u64) {
    let mut run = vec![PageBuf::ZERO; count as usize];
    space.read_run(slot(first), &mut run).unwrap();
    assert!((first..).zip(&run).all(|(n, got)| got.0 == page(n, version).0), "slots from {first} on, version {version}");
}

/// Keeps the space until its copies are so.
fn keep_until(space: &AnyBackend, what: &str, is_so: impl Fn(bool, u64) -> bool) {
    until(what, || {
        let _ = space.keep(&NoneFree);
        space.mirror().unwrap().seen().all(|copy| is_so(copy.up, copy.stale))
    });
}

#[test]
fn a_server_that_comes_back_empty_gets_all_of_it_again() {
    let (one, other) = (Server::new(64 * MIB), Server::new(64 * MIB));
    let space = mirrored(&[&one, &other]);
    assert_eq!(space.capacity(), Some(54 * 256), "an eighth of it is kept, and an extent");
    put(&space, 7, 1, 50);
    put(&space, 5000, 1, 50);
    let mut told = Vec::new();
    for (round, lost) in (2..).zip([&one, &other, &one]) {
        lost.away.store(true, SeqCst);
        lost.cut_all();
        // Some of it is written while it is away.
        put(&space, 20, round, 10);
        has(&space, 7, 1, 13);
        has(&space, 20, round, 10);
        has(&space, 30, 1, 27);
        lost.memory.lock().unwrap().fill(0);
        lost.away.store(false, SeqCst);
        keep_until(&space, "it has all of it", |up, stale| up && stale == 0);
        space.news(&mut |name, change| told.push(format!("{name} {change}")));
        // What it says now is what it was given again.
        let kept = lost.memory.lock().unwrap();
        assert!(kept.chunks_exact(4096).any(|got| *got == page(7, 1).0));
        assert!(
            kept.chunks_exact(4096).any(|got| *got == page(20, round).0)
                && kept.chunks_exact(4096).any(|got| *got == page(5049, 1).0)
        );
    }
    assert_eq!(told.iter().filter(|line| line.contains("has lost its pages")).count(), 3, "{told:#?}");
}

#[test]
fn a_server_that_hangs_is_left_after_a_moment() {
    let (one, other) = (Server::new(64 * MIB), Server::new(64 * MIB));
    let space = mirrored(&[&one, &other]);
    put(&space, 7, 1, 50);
    let hangs = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&hangs);
    one.behave(move |_, _| if still.load(SeqCst) { Deed::Stale } else { Deed::Right });
    let since = std::time::Instant::now();
    for n in 0..200 {
        has(&space, 7 + n % 50, 1, 1);
    }
    put(&space, 30, 2, 20);
    let took = since.elapsed();
    // A second or two for the reads, as much for the writes that find it up, and none for those after.
    assert!(took.as_secs() < 20, "{took:?}");
    let _ = space.keep(&NoneFree);
    assert!(space.mirror().unwrap().seen().any(|copy| !copy.up && copy.stale > 0));
    has(&space, 30, 2, 20);
    hangs.store(false, SeqCst);
    keep_until(&space, "it has all of it", |up, stale| up && stale == 0);
    other.away.store(true, SeqCst);
    other.cut_all();
    has(&space, 7, 1, 23);
    has(&space, 30, 2, 20);
}

#[test]
fn a_copy_that_is_away_at_the_start_comes_later() {
    let (one, other) = (Server::new(64 * MIB), Server::new(64 * MIB));
    let spec = SwapSpec::Mirror([&one, &other].map(|server| server.uri().parse().unwrap()).to_vec());
    let open = |partly| AnyBackend::open_with(std::slice::from_ref(&spec), false, partly, None, &mut |_| {});
    one.away.store(true, SeqCst);
    assert!(open(false).is_err(), "a user is told");
    let space = open(true).unwrap();
    put(&space, 7, 1, 50);
    has(&space, 7, 1, 50);
    // A queue that was there before, and one that comes after.
    let mut early = space.queue(4).unwrap();
    one.away.store(false, SeqCst);
    keep_until(&space, "it has all of it", |up, stale| up && stale == 0);
    let page = [page(30, 2)];
    // SAFETY: the page outlives the completion.
    unsafe { early.start_write(slot(30), page.as_ptr(), 1, 1) }.unwrap();
    let mut ended = None;
    while ended.is_none() {
        early.reap(true, &mut |_, result| ended = Some(result));
    }
    put(&space, 40, 2, 5);
    assert!(space.mirror().unwrap().seen().all(|copy| copy.up && copy.stale == 0));
    other.away.store(true, SeqCst);
    other.cut_all();
    has(&space, 7, 1, 23);
    has(&space, 30, 2, 1);
    has(&space, 40, 2, 5);
    one.away.store(true, SeqCst);
    assert!(open(true).is_err(), "none is there");
}

#[test]
fn a_page_that_was_doubted_is_still_there_when_the_other_copy_is_gone() {
    set_patience(300_000_000);
    let (one, other) = (Server::new(64 * MIB), Server::new(64 * MIB));
    let space = mirrored(&[&one, &other]);
    put(&space, 7, 1, 1);
    // Each copy has served it once.
    let mut got = PageBuf::ZERO;
    while space.mirror().unwrap().seen().all(|copy| copy.stale == 0) {
        space.read(slot(7), &mut got).unwrap();
        space.doubt(slot(7));
    }
    let doubted = space.mirror().unwrap().seen().position(|copy| copy.stale == 1).unwrap();
    let kept = [&other, &one][doubted];
    kept.away.store(true, SeqCst);
    kept.cut_all();
    has(&space, 7, 1, 1);
}

/// Nobody forks here.
const ALONE: Alone<'_> = &|f| f();

/// What comes is there by another name: its stamp is put back, and the copy keeps what it has.
#[test]
fn a_server_that_is_one_of_the_copies_is_not_another_one() {
    let (one, other, third) = (Server::new(64 * MIB), Server::new(64 * MIB), Server::new(64 * MIB));
    let space = mirrored(&[&one, &other]);
    let mirror = space.mirror().unwrap();
    put(&space, 7, 1, 50);
    let alias = other.path.with_extension("alias");
    let _ = std::fs::remove_file(&alias);
    std::os::unix::fs::symlink(&other.path, &alias).unwrap();
    let again = other.uri().replace(other.path.to_str().unwrap(), alias.to_str().unwrap()).parse().unwrap();
    let why = mirror.add(&again, ALONE, &mut |_| {}).unwrap_err();
    std::fs::remove_file(&alias).unwrap();
    assert!(matches!(why, NoExchange::Same(_)) && why.to_string().contains(&other.uri()), "{why}");
    for _ in 0..4 {
        std::thread::sleep(std::time::Duration::from_millis(400));
        let _ = space.keep(&NoneFree);
        space.news(&mut |name, change| panic!("{name} {change}"));
    }
    assert_eq!(mirror.seen().map(|copy| (copy.up, copy.stale)).collect::<Vec<_>>(), [(true, 0), (true, 0)]);
    // Another one comes, and the first goes for good.
    let comes: SwapSpec = third.uri().parse().unwrap();
    mirror.add(&comes, ALONE, &mut |_| {}).unwrap();
    keep_until(&space, "it has all", |up, stale| up && stale == 0);
    let first: SwapSpec = one.uri().parse().unwrap();
    mirror.remove(&first, ALONE).unwrap();
    until("it is closed", || mirror.leave(&first, true, ALONE) == Leaving::Closed);
    for gone in [&one, &other] {
        gone.away.store(true, SeqCst);
        gone.cut_all();
    }
    has(&space, 7, 1, 50);
}

/// A write is lost on the way, and may be made at any time. Which places it would hit is known to the space that has gone.
#[test]
fn a_server_whose_writes_were_lost_does_not_come_again_by_any_name() {
    let (one, other, third) = (Server::new(64 * MIB), Server::new(64 * MIB), Server::new(64 * MIB));
    let space = mirrored(&[&one, &other]);
    let mirror = space.mirror().unwrap();
    put(&space, 7, 1, 50);
    let was_lost = AtomicBool::new(false);
    one.behave(move |command, _| if command == WRITE && !was_lost.swap(true, SeqCst) { Deed::Drop(500) } else { Deed::Right });
    put(&space, 20, 2, 10);
    mirror.add(&third.uri().parse().unwrap(), ALONE, &mut |_| {}).unwrap();
    keep_until(&space, "all have all", |up, stale| up && stale == 0);
    let goes: SwapSpec = one.uri().parse().unwrap();
    mirror.remove(&goes, ALONE).unwrap();
    until("it is closed", || mirror.leave(&goes, true, ALONE) == Leaving::Closed);
    let alias = one.path.with_extension("late-alias");
    let _ = std::fs::remove_file(&alias);
    std::os::unix::fs::symlink(&one.path, &alias).unwrap();
    let again = one.uri().replace(one.path.to_str().unwrap(), alias.to_str().unwrap());
    for name in [one.uri(), again] {
        let why = mirror.add(&name.parse().unwrap(), ALONE, &mut |_| {}).unwrap_err().to_string();
        assert!(why.contains(&name) && why.contains("writes that were lost on the way"), "{why}");
    }
    std::fs::remove_file(&alias).unwrap();
    // One that has lost none comes again.
    let goes: SwapSpec = third.uri().parse().unwrap();
    let (fourth, back) = (Server::new(64 * MIB), goes.clone());
    mirror.add(&fourth.uri().parse().unwrap(), ALONE, &mut |_| {}).unwrap();
    keep_until(&space, "all have all", |up, stale| up && stale == 0);
    mirror.remove(&goes, ALONE).unwrap();
    until("it is closed", || mirror.leave(&goes, true, ALONE) == Leaving::Closed);
    mirror.add(&back, ALONE, &mut |_| {}).unwrap();
    keep_until(&space, "all have all", |up, stale| up && stale == 0);
    has(&space, 7, 1, 13);
    has(&space, 20, 2, 10);
    has(&space, 30, 1, 27);
}

/// No request is made, and no connection, while nobody can fork; and queues are made while a server is waited for that does not answer.
#[test]
fn servers_are_waited_for_while_the_process_may_fork_and_queues_are_made() {
    let servers: Vec<_> = (0..3).map(|_| Server::new(64 * MIB)).collect();
    let space = mirrored(&[&servers[0], &servers[1]]);
    let mirror = space.mirror().unwrap();
    put(&space, 7, 1, 50);
    let is_alone = std::sync::Arc::new(AtomicBool::new(false));
    for server in &servers {
        let is_alone = is_alone.clone();
        server.behave(move |_, _| {
            assert!(!is_alone.load(SeqCst), "a server is asked while nobody can fork");
            server::Deed::Right
        });
    }
    let made = || servers.iter().map(|server| server.connections.load(SeqCst)).sum::<u32>();
    let alone = |f: &mut dyn FnMut()| {
        let before = made();
        is_alone.store(true, SeqCst);
        f();
        is_alone.store(false, SeqCst);
        assert_eq!(made(), before, "a connection is made while nobody can fork");
    };
    let third: SwapSpec = servers[2].uri().parse().unwrap();
    mirror.add(&third, &alone, &mut |_| {}).unwrap();
    keep_until(&space, "it has all", |up, stale| up && stale == 0);
    mirror.remove(&third, &alone).unwrap();
    // A queue that is made now has no part for it, and the server says nothing when it is to have one.
    let _queue = space.queue(4).unwrap();
    *servers[2].greeting.lock().unwrap() = Some(Vec::new());
    std::thread::scope(|scope| {
        let back = scope.spawn(|| mirror.take_back(&third, ALONE));
        let connections = made();
        until("it is asked for a connection", || made() > connections || back.is_finished());
        let other = space.queue(4).unwrap();
        assert!(!back.is_finished(), "a queue is not made before the server was given up");
        drop(other);
        assert_eq!(back.join().unwrap(), Ok(true));
    });
    *servers[2].greeting.lock().unwrap() = None;
    keep_until(&space, "it has all again", |up, stale| up && stale == 0);
    has(&space, 7, 1, 50);
}
