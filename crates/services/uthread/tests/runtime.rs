//! Unithreads on real workers: their lives, waits, panics and ends.
#![cfg(not(loom))]

mod common;

use common::{in_child, runtime, watchdog};
use core::time::Duration;
use farshore_uthread::channel::{self, RecvError, SendError};
use farshore_uthread::dispatch::Policy;
use farshore_uthread::{
    Config, Error, Panics, Runtime, SpawnError, Stopped, WaitMode, checkpoint, hold, io, is_unithread, sleep, spawn, stopping,
    worker_index, yield_now,
};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

#[test]
fn a_hundred_thousand_at_a_time() {
    watchdog();
    const COUNT: usize = 100_000;
    let runtime = Runtime::start(Config { workers: 2, unithreads: COUNT, stack_bytes: 16 << 10, ..Config::default() }).unwrap();
    let (arrived, go) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let task = |number: usize| {
        let (arrived, go) = (arrived.clone(), go.clone());
        move || {
            arrived.fetch_add(1, SeqCst);
            while !go.load(SeqCst) {
                sleep(Duration::from_millis(20)).unwrap();
            }
            number
        }
    };
    let tasks: Vec<_> = (0..COUNT).map(|number| runtime.spawn(task(number)).unwrap()).collect();
    assert_eq!(runtime.spawn(|| ()).unwrap_err(), SpawnError::Full(COUNT));
    while arrived.load(SeqCst) as usize != COUNT {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(runtime.handle().live() as usize, COUNT);
    go.store(true, SeqCst);
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.join().unwrap(), number);
    }
    assert_eq!(runtime.handle().unithreads_touched() as usize, COUNT);
    runtime.shutdown().unwrap();
}

#[test]
fn results_come_to_threads_and_unithreads() {
    let runtime = runtime(2);
    let sum = runtime.spawn(|| {
        assert!(is_unithread());
        let children: Vec<_> = (0..100u64).map(|i| spawn(move || vec![i; 3]).unwrap()).collect();
        children.into_iter().flat_map(|child| child.join().unwrap()).sum::<u64>()
    });
    assert_eq!(sum.unwrap().join().unwrap(), 3 * 4950);
    assert!(!is_unithread());
    assert_eq!(spawn(|| ()).unwrap_err(), SpawnError::NotInside);
}

#[test]
fn every_result_is_dropped_once() {
    struct Counted(Arc<AtomicU32>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicU32::new(0));
    let runtime = runtime(2);
    const ROUNDS: u32 = 3000;
    for round in 0..ROUNDS {
        let (captured, made) = (Counted(drops.clone()), Counted(drops.clone()));
        let task = loop {
            // The pool may be full of those that nobody joins.
            if runtime.handle().live() < 1000 {
                break runtime.spawn(move || (captured, made).1).unwrap();
            }
            std::thread::yield_now();
        };
        match round % 3 {
            0 => drop(task),
            1 => drop(task.join().unwrap()),
            // The result comes before the handle goes, or not: both happen.
            _ => {
                std::thread::yield_now();
                drop(task);
            }
        }
    }
    runtime.shutdown().unwrap();
    assert_eq!(drops.load(SeqCst), 2 * ROUNDS);
}

#[test]
fn thread_local_storage_stays() {
    thread_local!(static HERE: Cell<u64> = const { Cell::new(0) });
    let runtime = runtime(2);
    let task = || {
        let (place, worker) = (HERE.with(|cell| core::ptr::from_ref(cell).addr()), worker_index());
        for _ in 0..50 {
            yield_now();
            sleep(Duration::from_micros(10)).unwrap();
            assert_eq!(HERE.with(|cell| core::ptr::from_ref(cell).addr()), place);
            assert_eq!(worker_index(), worker);
        }
        HERE.set(HERE.get() + 1);
    };
    let tasks: Vec<_> = (0..100).map(|_| runtime.spawn(task).unwrap()).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

#[test]
fn what_is_too_large_or_too_long_is_refused() {
    let runtime = runtime(1);
    let large = [7u8; 17 << 10];
    assert_eq!(runtime.spawn(move || large.len()).unwrap_err(), SpawnError::TooLarge(17 << 10));
    let refused = runtime.handle().spawn_request(&[0; 2049], |_| ()).unwrap_err();
    assert_eq!(refused, SpawnError::TooLong { bytes: 2049, room: 2048 });
    let aligned = runtime.spawn(|| {
        #[repr(align(512))]
        struct Aligned(u8);
        let value = Aligned(3);
        assert_eq!((&raw const value).addr() % 512, 0);
        value.0
    });
    assert_eq!(aligned.unwrap().join().unwrap(), 3);
}

#[test]
fn bad_configurations_say_why() {
    let why = |config: Config| Runtime::start(config).unwrap_err().to_string();
    assert_eq!(why(Config { workers: 65, ..Config::default() }), "workers cannot be 65: 1 to 64, or 0 for one a core");
    assert_eq!(why(Config { unithreads: 0, ..Config::default() }), "unithreads cannot be 0: 1 to 16,777,216");
    let small = why(Config { stack_bytes: 8192, ..Config::default() });
    assert_eq!(small, "stack_bytes cannot be 8192: a multiple of 4,096, from 16,384 to 1 GiB");
    let guard = why(Config { guard_bytes: 100, ..Config::default() });
    assert_eq!(guard, "guard_bytes cannot be 100: a multiple of 4,096, from 4,096 to 1 GiB");
    let buffer = why(Config { buffer_bytes: 60 << 10, ..Config::default() });
    assert_eq!(buffer, "buffer_bytes cannot be 61440: 8,192 less than stack_bytes, or smaller");
}

#[test]
fn a_panic_ends_its_unithread_alone() {
    let runtime = runtime(1);
    let seven = std::hint::black_box(7);
    let panicked = runtime.spawn(move || -> u32 { panic!("on purpose {seven}") }).unwrap();
    let why = panicked.join().unwrap_err();
    assert_eq!(why.downcast_ref::<String>().unwrap(), "on purpose 7");
    assert_eq!(runtime.handle().panics(), 1);
    // A destructor that waits while a panic unwinds waits in place: the count of panics is the thread's.
    struct Waits;
    impl Drop for Waits {
        fn drop(&mut self) {
            yield_now();
            sleep(Duration::from_millis(1)).unwrap();
        }
    }
    let unwinds = runtime.spawn(|| {
        let _waits = Waits;
        panic!("on purpose");
    });
    let other = runtime.spawn(|| assert!(!std::thread::panicking())).unwrap();
    assert!(unwinds.unwrap().join().is_err());
    other.join().unwrap();
    assert_eq!(runtime.handle().panics(), 2);
}

#[test]
fn a_panic_ends_the_process_if_configured() {
    let ends = in_child("a_panic_ends_the_process_if_configured", || {
        let runtime = Runtime::start(Config { workers: 1, panics: Panics::End, ..Config::default() }).unwrap();
        let _ = runtime.spawn(|| panic!("on purpose")).unwrap().join();
        println!("went on");
    });
    let Some(ends) = ends else { return };
    assert_eq!(ends.status.signal(), Some(libc::SIGABRT));
    assert!(!String::from_utf8_lossy(&ends.stdout).contains("went on"));
    assert!(String::from_utf8_lossy(&ends.stderr).contains("the process ends (Panics::End)"));
}

/// Uses stack without end.
#[inline(never)]
#[allow(unconditional_recursion)]
fn deeper(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 64]);
    deeper(depth + 1) + here[(depth % 64) as usize]
}

#[test]
fn a_stack_that_overflows_meets_its_guard() {
    let ends = in_child("a_stack_that_overflows_meets_its_guard", || {
        let runtime = Runtime::start(Config { workers: 1, ..Config::default() }).unwrap();
        // A neighbour below, which is parked: its stack must not be touched.
        let _ = runtime.spawn(|| sleep(Duration::from_secs(1000))).unwrap();
        let _ = runtime.spawn(|| deeper(0)).unwrap().join();
        println!("went on");
    });
    let Some(ends) = ends else { return };
    assert_eq!(ends.status.signal(), Some(libc::SIGSEGV), "{ends:?}");
    assert!(!String::from_utf8_lossy(&ends.stdout).contains("went on"));
    let told = String::from_utf8_lossy(&ends.stderr);
    assert!(told.contains("unithread 1 has overflowed its stack of 65536 bytes"), "{told}");
}

#[test]
fn new_ones_get_a_turn_beside_those_that_yield_or_wake_each_other() {
    let runtime = runtime(1);
    let done = Arc::new(AtomicBool::new(false));
    let waits = done.clone();
    let yields = runtime.spawn(move || {
        while !waits.load(SeqCst) {
            yield_now();
        }
    });
    let (to, from) = channel::bounded(1);
    let (back, forth) = channel::bounded(1);
    let ping = runtime.spawn(move || while to.send(()).is_ok() && forth.recv().is_ok() {});
    let pong = runtime.spawn(move || {
        while from.recv().is_ok() {
            if back.send(()).is_err() {
                return;
            }
            if stopping() {
                return;
            }
        }
    });
    for _ in 0..10 {
        runtime.spawn(|| ()).unwrap().join().unwrap();
    }
    runtime.spawn(move || done.store(true, SeqCst)).unwrap().join().unwrap();
    yields.unwrap().join().unwrap();
    let _ = (ping.unwrap(), pong.unwrap());
    runtime.shutdown().unwrap();
}

#[test]
fn a_long_computation_gives_way_at_its_checkpoints() {
    watchdog();
    let runtime = Runtime::start(Config { workers: 1, slice: Duration::from_nanos(1), ..Config::default() }).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let waits = done.clone();
    let long = runtime.spawn(move || {
        while !waits.load(SeqCst) {
            checkpoint();
        }
    });
    runtime.spawn(move || done.store(true, SeqCst)).unwrap().join().unwrap();
    long.unwrap().join().unwrap();
}

#[test]
fn without_slices_a_long_computation_keeps_its_worker() {
    watchdog();
    let runtime = Runtime::start(Config { workers: 1, slice: Duration::MAX, ..Config::default() }).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let long = runtime.spawn({
        let (done, other) = (done.clone(), done.clone());
        move || {
            let other = spawn(move || other.store(true, SeqCst)).unwrap();
            let end = Instant::now() + Duration::from_millis(20);
            while Instant::now() < end {
                checkpoint();
            }
            let early = done.load(SeqCst);
            other.join().unwrap();
            early
        }
    });
    assert!(!long.unwrap().join().unwrap(), "it gave way");
    assert!(done.load(SeqCst));
}

#[test]
fn a_slice_begins_with_the_unithread_where_waits_are_a_part_of_it() {
    watchdog();
    for (wait, gives_way) in [(WaitMode::Yield, false), (WaitMode::Busy, true), (WaitMode::Block, true)] {
        let slice = Duration::from_millis(10);
        let runtime = Runtime::start(Config { workers: 1, slice, wait, ..Config::default() }).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let long = runtime.spawn(move || {
            let other = spawn({
                let done = done.clone();
                move || done.store(true, SeqCst)
            });
            // The first turn that it gives away it has back at once: a new one, itself, came last.
            for _ in 0..2 {
                std::thread::sleep(slice);
                checkpoint();
            }
            let early = done.load(SeqCst);
            other.unwrap().join().unwrap();
            early
        });
        assert_eq!(long.unwrap().join().unwrap(), gives_way, "{wait:?}");
    }
}

#[test]
fn channels_lose_nothing_and_keep_order() {
    let runtime = runtime(2);
    let (to, from) = channel::bounded::<(usize, u64)>(4);
    const SENDERS: usize = 8;
    const EACH: u64 = 2000;
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let to = to.clone();
            runtime.spawn(move || (0..EACH).for_each(|i| to.send((sender, i)).unwrap())).unwrap()
        })
        .collect();
    drop(to);
    let receive = |from: channel::Receiver<(usize, u64)>| {
        let (mut last, mut got) = ([None; SENDERS], 0u64);
        loop {
            match from.recv() {
                Ok((sender, i)) => {
                    assert!(last[sender] < Some(i), "out of order");
                    last[sender] = Some(i);
                    got += 1;
                }
                Err(error) => {
                    assert_eq!(error, RecvError::Closed);
                    return got;
                }
            }
        }
    };
    let receivers: Vec<_> = (0..3)
        .map(|_| {
            let from = from.clone();
            runtime.spawn(move || receive(from)).unwrap()
        })
        .collect();
    // A thread receives too.
    let mut got = receive(from);
    got += receivers.into_iter().map(|receiver| receiver.join().unwrap()).sum::<u64>();
    assert_eq!(got, SENDERS as u64 * EACH);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn a_channel_without_receivers_gives_the_message_back() {
    let (to, from) = channel::bounded(1);
    to.send(1).unwrap();
    assert_eq!(from.try_recv(), Some(1));
    assert_eq!(from.try_recv(), None);
    drop(from);
    assert_eq!(to.send(2), Err(SendError::Closed(2)));
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let runtime = runtime(1);
    // A sleep begins when its unithread does. Where the machine has others to run between two of them, their deadlines are in another order: again.
    for _ in 0..100 {
        let (to, from) = channel::bounded(16);
        let parent = runtime.spawn(move || {
            for ms in [40, 10, 30, 20] {
                let to = to.clone();
                drop(spawn(move || {
                    let began = std::time::Instant::now();
                    sleep(Duration::from_millis(ms)).unwrap();
                    to.send((ms, began)).unwrap();
                }));
            }
        });
        parent.unwrap().join().unwrap();
        let came: Vec<_> = core::iter::from_fn(|| from.recv().ok()).collect();
        let (first, last) = (came.iter().map(|one| one.1).min().unwrap(), came.iter().map(|one| one.1).max().unwrap());
        if last - first < Duration::from_millis(5) {
            let order: Vec<_> = came.iter().map(|one| one.0).collect();
            return assert_eq!(order, [10, 20, 30, 40]);
        }
    }
    panic!("four unithreads never began within 5 ms");
}

#[test]
fn a_shutdown_ends_all_that_waits() {
    let runtime = runtime(2);
    let (reader, _writer) = std::io::pipe().unwrap();
    let (to, from) = channel::bounded::<u8>(1);
    to.send(0).unwrap();
    let arrived = Arc::new(AtomicU32::new(0));
    let here = |arrived: &Arc<AtomicU32>| {
        let arrived = arrived.clone();
        move || arrived.fetch_add(1, SeqCst)
    };
    let (a, b, c, d) = (here(&arrived), here(&arrived), here(&arrived), here(&arrived));
    let sleeps = runtime.spawn(move || {
        a();
        sleep(Duration::from_secs(10_000))
    });
    let sends = runtime.spawn(move || {
        b();
        to.send(1)
    });
    let (_kept, nothing) = channel::bounded::<u8>(1);
    let receives = runtime.spawn(move || {
        c();
        nothing.recv()
    });
    let reads = runtime.spawn(move || {
        d();
        io::read(&reader, &mut [0; 8], u64::MAX).unwrap_err().raw_os_error()
    });
    let handle = runtime.handle();
    let joins = runtime.spawn(move || (sleeps.unwrap().join().unwrap(), stopping()));
    while arrived.load(SeqCst) != 4 {
        std::thread::yield_now();
    }
    runtime.shutdown().unwrap();
    assert_eq!(handle.live(), 0);
    assert_eq!(joins.unwrap().join().unwrap(), (Err(Stopped), true));
    assert_eq!(sends.unwrap().join().unwrap(), Err(SendError::Stopped(1)));
    assert_eq!(receives.unwrap().join().unwrap(), Err(RecvError::Stopped));
    assert_eq!(reads.unwrap().join().unwrap(), Some(libc::ECANCELED));
    assert_eq!(handle.spawn(|| ()).unwrap_err(), SpawnError::Stopping);
    drop(from);
}

#[test]
fn a_shutdown_that_takes_too_long_says_how_many_are_left() {
    let runtime = runtime(1);
    let go = Arc::new(AtomicBool::new(false));
    let waits = go.clone();
    let task = runtime.spawn(move || {
        while !waits.load(SeqCst) {
            yield_now();
        }
    });
    let left = runtime.shutdown_within(Duration::from_millis(20));
    assert!(matches!(left, Err(Error::NotEnded(1))), "{left:?}");
    go.store(true, SeqCst);
    task.unwrap().join().unwrap();
}

#[test]
fn a_unithread_cannot_shut_its_runtime_down() {
    let runtime = runtime(1);
    let (to, from) = channel::bounded::<Runtime>(1);
    let task = runtime.spawn(move || from.recv().unwrap().shutdown().unwrap_err().to_string()).unwrap();
    assert!(to.send(runtime).is_ok());
    assert!(task.join().unwrap().contains("shut it down from a thread"));
}

#[test]
fn a_unithread_that_drops_its_runtime_ends_the_process() {
    let ends = in_child("a_unithread_that_drops_its_runtime_ends_the_process", || {
        let runtime = Runtime::start(Config { workers: 1, ..Config::default() }).unwrap();
        let (to, from) = channel::bounded::<Runtime>(1);
        let task = runtime.spawn(move || drop(from.recv().unwrap())).unwrap();
        assert!(to.send(runtime).is_ok());
        let _ = task.join();
    });
    let Some(ends) = ends else { return };
    assert_eq!(ends.status.signal(), Some(libc::SIGABRT));
    assert!(String::from_utf8_lossy(&ends.stderr).contains("shut it down from a thread"), "{ends:?}");
}

#[test]
fn bytes_go_through_pipes_and_files() {
    let runtime = runtime(1);
    let (reader, writer) = std::io::pipe().unwrap();
    let reads = runtime.spawn(move || {
        let mut bytes = [0; 5];
        let got = io::read(&reader, &mut bytes, u64::MAX).unwrap();
        (got, bytes)
    });
    let writes = runtime.spawn(move || io::write(&writer, b"hello", u64::MAX).unwrap());
    assert_eq!(writes.unwrap().join().unwrap(), 5);
    assert_eq!(reads.unwrap().join().unwrap(), (5, *b"hello"));
    assert_eq!(io::read(std::io::stdin(), &mut [0], 0).unwrap_err().kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn a_wait_in_place_is_served_too() {
    let runtime = runtime(1);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let others = Arc::new(AtomicU64::new(0));
    let ran = others.clone();
    let task = runtime.spawn(move || {
        let other = spawn(move || ran.fetch_add(1, SeqCst)).unwrap();
        let _hold = hold();
        let got = io::read(&reader, &mut [0; 1], u64::MAX).unwrap();
        (got, other)
    });
    writer.write_all(b"x").unwrap();
    let (got, other) = task.unwrap().join().unwrap();
    assert_eq!((got, other.join().unwrap()), (1, 0));
}

#[test]
fn replies_are_sent_and_their_buffers_used_again() {
    watchdog();
    let runtime = Runtime::start(Config { workers: 2, unithreads: 4, policy: Policy::RoundRobin, ..Config::default() }).unwrap();
    let (mut client, server) = UnixStream::pair().unwrap();
    let server = Arc::new(OwnedFd::from(server));
    const REQUESTS: u32 = 2000;
    let handle = runtime.handle();
    let feeds = std::thread::spawn(move || {
        for number in 0..REQUESTS {
            // Each takes one of four buffers, and gives it back when its reply is sent.
            loop {
                let to = server.clone();
                let served = handle.spawn_request(&number.to_ne_bytes(), move |mut request| {
                    let number = u32::from_ne_bytes(request.bytes().try_into().unwrap());
                    request.buffer()[..4].copy_from_slice(&(number * 2).to_ne_bytes());
                    request.reply(to, 4);
                });
                match served {
                    Ok(()) => break,
                    Err(error) => assert_eq!(error, SpawnError::Full(4)),
                }
                std::thread::yield_now();
            }
        }
    });
    let mut seen = vec![false; REQUESTS as usize];
    for _ in 0..REQUESTS {
        let mut reply = [0; 4];
        client.read_exact(&mut reply).unwrap();
        let number = u32::from_ne_bytes(reply) as usize / 2;
        assert!(!core::mem::replace(&mut seen[number], true), "answered twice");
    }
    feeds.join().unwrap();
    runtime.shutdown().unwrap();
}

#[test]
fn a_reply_is_sent_although_its_unithread_panics_and_lets_its_socket_go() {
    let runtime = runtime(1);
    let (mut client, server) = UnixStream::pair().unwrap();
    let server = Arc::new(OwnedFd::from(server));
    for panics in [true, false] {
        let to = server.clone();
        let serve = move |request: farshore_uthread::Request<'_>| {
            request.reply(to, 5);
            assert!(!panics, "after the reply");
        };
        runtime.handle().spawn_request(b"hello", serve).unwrap();
        let mut reply = [0; 5];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"hello");
    }
    assert_eq!(runtime.handle().panics(), 1);
    runtime.shutdown().unwrap();
    assert_eq!(Arc::strong_count(&server), 1, "a reply that was sent keeps its socket");
}

#[test]
fn a_reply_to_a_peer_that_is_gone_is_counted() {
    let runtime = runtime(1);
    let (client, server) = UnixStream::pair().unwrap();
    drop(client);
    let to = Arc::new(OwnedFd::from(server));
    let handle = runtime.handle();
    let kept = to.clone();
    handle.spawn_request(b"x", move |request| request.reply(kept, 1)).unwrap();
    runtime.shutdown().unwrap();
    assert_eq!(handle.replies_failed(), 1);
    assert_eq!(Arc::strong_count(&to), 1, "the descriptor was given back");
}

#[test]
fn peers_that_take_no_reply_do_not_keep_a_shutdown() {
    let runtime = runtime(1);
    let (client, server) = UnixStream::pair().unwrap();
    let to = Arc::new(OwnedFd::from(server));
    let handle = runtime.handle();
    for _ in 0..1000 {
        let to = to.clone();
        handle.spawn_request(b"x", move |request| request.reply(to, 2048)).unwrap();
    }
    runtime.shutdown().unwrap();
    assert!(handle.replies_failed() > 0, "the peer's queue has no room for all");
    assert_eq!(Arc::strong_count(&to), 1, "the descriptor was given back");
    drop(client);
}
