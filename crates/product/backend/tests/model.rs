//! Random runs against a map of what each slot should hold. Not covered here: several queues at once, full
//! disks (tests/files.rs).

mod common;

use common::*;
use farshore_backend::AnyBackend;
use farshore_backend::encrypt::{Cipher, Encrypted};
use farshore_backend::faulty::{FaultConfig, Faulty, Kind};
use farshore_backend::file::{FileArray, FileOptions};
use farshore_backend::mirror::Mirror;
use farshore_backend::ram::RamSpace;
use farshore_config::{Size, SwapSpec, Time};
use farshore_core::seams::{Backend, IoError, NoneFree, PageBuf, Reads, Spaces, WriteQueue};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug)]
enum Op {
    Write { first: u64, count: u32 },
    Reap { wait: bool },
    Read { slot: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let write = (1u64..4000, prop_oneof![1u32..8, 200u32..=512]).prop_map(|(first, count)| Op::Write { first, count });
    let reap = any::<bool>().prop_map(|wait| Op::Reap { wait });
    let read = (1u64..4200).prop_map(|slot| Op::Read { slot });
    prop::collection::vec(prop_oneof![3 => write, 2 => reap, 4 => read], 1..60)
}

/// A write in flight, with the memory that it is made from.
struct Flight {
    first: u64,
    version: u64,
    pages: Vec<PageBuf>,
}

/// Runs `ops` as the engine would: no slot is in two transfers at once, none is read before it was written.
fn run<B: Backend>(backend: &B, depth: u32, ops: &[Op]) {
    let mut queue = backend.queue(depth).unwrap();
    let mut flights: HashMap<u64, Flight> = HashMap::new();
    let mut model: HashMap<u64, u64> = HashMap::new();
    let mut back = PageBuf::ZERO;
    let land = |queue: &mut B::Queue, flights: &mut HashMap<u64, Flight>, model: &mut HashMap<u64, u64>, wait| {
        let (before, mut seen) = (queue.in_flight(), 0);
        queue.reap(wait, &mut |tag, result| {
            assert_eq!(result, Ok(()));
            let flight = flights.remove(&tag).expect("one completion for each write");
            model.extend((flight.first..).take(flight.pages.len()).map(|slot| (slot, flight.version)));
            seen += 1;
        });
        assert!(!wait || before == 0 || seen > 0, "waited for nothing");
        assert_eq!(queue.in_flight(), before - seen);
    };
    for (version, op) in (1..).zip(ops) {
        let is_busy = |flights: &HashMap<u64, Flight>, first: u64, count: u64| {
            flights.values().any(|f| first < f.first + f.pages.len() as u64 && f.first < first + count)
        };
        match *op {
            Op::Write { first, count } => {
                while is_busy(&flights, first, count.into()) {
                    land(&mut queue, &mut flights, &mut model, true);
                }
                let flight = Flight { first, version, pages: pages(first, count, version) };
                // SAFETY: the pages stay in `flights` (their heap memory does not move) until the completion.
                match unsafe { queue.start_write(slot(first), flight.pages.as_ptr(), count, version) } {
                    Ok(()) => drop(flights.insert(version, flight)),
                    Err(()) => assert_eq!(queue.in_flight(), depth, "refused with room left"),
                }
            }
            Op::Reap { wait } => land(&mut queue, &mut flights, &mut model, wait),
            Op::Read { slot: n } => {
                while is_busy(&flights, n, 1) {
                    land(&mut queue, &mut flights, &mut model, true);
                }
                if let Some(version) = model.get(&n) {
                    backend.read(slot(n), &mut back).unwrap();
                    assert!(back.0 == page(n, *version).0, "slot {n} does not hold version {version}");
                }
            }
        }
        assert_eq!(queue.in_flight() as usize, flights.len());
    }
    while queue.in_flight() > 0 {
        land(&mut queue, &mut flights, &mut model, true);
    }
    for (&n, version) in &model {
        backend.read(slot(n), &mut back).unwrap();
        assert!(back.0 == page(n, *version).0, "slot {n} does not hold version {version}");
        if n % 61 != 0 {
            continue;
        }
        let run: Vec<PageBuf> = (n..n + 16).map_while(|m| model.get(&m).map(|version| page(m, *version))).collect();
        check(backend, n, &run);
    }
}

fn array(files: usize, options: FileOptions) -> (Dir, FileArray) {
    let dir = Dir::new();
    let specs = vec![SwapSpec::Dir(dir.0.clone()); files];
    let array = FileArray::open(&specs, options, &mut |_| {}).unwrap();
    (dir, array)
}

fn ram(latency: Option<Time>) -> RamSpace {
    RamSpace::open(Some(Size::mib(32)), latency).unwrap_or_else(|error| panic!("{error}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_keep_what_they_are_given(files in 1usize..5, depth in 1u32..9, direct: bool, uring: bool, ops in ops()) {
        let (_dir, array) = array(files, FileOptions { direct, uring, ..FileOptions::default() });
        run(&array, depth, &ops);
    }

    #[test]
    fn ram_keeps_what_it_is_given(depth in 1u32..9, delayed: bool, ops in ops()) {
        run(&ram(delayed.then_some(Time(20_000))), depth, &ops);
    }

    #[test]
    fn faulty_without_faults_changes_nothing(seed: u64, depth in 1u32..9, ops in ops()) {
        let (_dir, array) = array(2, FileOptions::default());
        run(&Faulty::new(array, &FaultConfig { seed, ..FaultConfig::default() }), depth, &ops);
    }

    #[test]
    fn encrypted_keeps_what_it_is_given(seed: u64, depth in 1u32..9, uring: bool, ops in ops()) {
        let (_dir, array) = array(2, FileOptions { uring, ..FileOptions::default() });
        let config = FaultConfig { seed, rates: vec![(Kind::Delay, 0.5)], delay_time: Time(50_000), ..FaultConfig::default() };
        run(&Encrypted::new(Faulty::new(array, &config), Arc::new(Cipher::new().unwrap())), depth, &ops);
    }

    /// One of the copies fails as it likes, while what it has missed is copied to it.
    #[test]
    fn mirrors_keep_what_they_are_given(seed: u64, depth in 1u32..9, bad in 0usize..2, rate in 0.0f64..1.0, ops in ops()) {
        let kinds = [Kind::WriteError, Kind::ShortWrite, Kind::ReadError, Kind::ShortRead, Kind::Full, Kind::Delay];
        let config = FaultConfig { seed, rates: kinds.map(|kind| (kind, rate)).into(), delay_time: Time(50_000), ..FaultConfig::default() };
        let spec = SwapSpec::Ram { compress: None, size: None };
        let open = move |n, _: &SwapSpec, _: &mut dyn FnMut(&str)| {
            Ok(if n == bad { AnyBackend::Ram(ram(None)).with_faults(&config) } else { AnyBackend::Ram(ram(Some(Time(20_000)))) })
        };
        let mirror = Mirror::open(&vec![spec; 2], false, Box::new(open), &mut |_| {}).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| while !over.load(Ordering::Relaxed) {
                let _ = mirror.keep(&NoneFree);
            });
            run(&mirror, depth, &ops);
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn delays_reorder_and_lose_nothing(seed: u64, depth in 1u32..9, ops in ops()) {
        let config = FaultConfig { seed, rates: vec![(Kind::Delay, 0.5)], delay_time: Time(50_000), ..FaultConfig::default() };
        run(&Faulty::new(AnyBackend::Ram(ram(None)), &config), depth, &ops);
    }
}

#[test]
fn each_kind_of_fault_strikes_at_its_rate_and_is_counted() {
    let space = Faulty::new(ram(None), &FaultConfig::default());
    let mut queue = space.queue(4).unwrap();
    let batch = pages(1, 8, 1);
    let mut back = PageBuf::ZERO;
    write::<Faulty<RamSpace>>(&mut queue, 1, &batch).unwrap();
    let expected =
        [(Kind::Full, Err(IoError::Full)), (Kind::WriteError, Err(IoError::Device(5))), (Kind::ShortWrite, Err(IoError::Short))];
    for (kind, end) in expected {
        space.set_rate(kind, 1.0);
        assert_eq!(write::<Faulty<RamSpace>>(&mut queue, 100, &batch), end);
        assert_eq!(write::<Faulty<RamSpace>>(&mut queue, 100, &batch[..1]), end);
        space.set_rate(kind, 0.0);
        assert_eq!(write::<Faulty<RamSpace>>(&mut queue, 100, &batch), Ok(()));
        assert_eq!(space.injected(kind), 2);
    }
    for (kind, end) in [(Kind::ReadError, IoError::Device(5)), (Kind::ShortRead, IoError::Short)] {
        space.set_rate(kind, 1.0);
        assert_eq!(space.read(slot(1), &mut back), Err(end));
        assert!(back.0 != batch[0].0, "an error leaves garbage, so that nobody uses it");
        space.set_rate(kind, 0.0);
    }
    space.set_rate(Kind::Corrupt, 1.0);
    space.read(slot(1), &mut back).unwrap();
    let bits: u32 = back.0.iter().zip(&batch[0].0).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((bits, space.injected(Kind::Corrupt)), (1, 1));
    space.set_rate(Kind::Corrupt, 0.25);
    let wrong = (0..4000).filter(|_| space.read(slot(1), &mut back).is_ok() && back.0 != batch[0].0).count();
    assert!((800..1200).contains(&wrong), "{wrong} of 4000 at a rate of 0.25");
    space.set_rate(Kind::Corrupt, 0.0);
    check(&space, 1, &batch);
}

#[test]
fn a_seed_decides() {
    let faults = |seed| {
        let config = FaultConfig { seed, rates: vec![(Kind::ReadError, 0.3)], ..FaultConfig::default() };
        let space = Faulty::new(ram(None), &config);
        let mut back = PageBuf::ZERO;
        (0..200).map(|_| space.read(slot(1), &mut back).is_err()).collect::<Vec<_>>()
    };
    assert_eq!(faults(1), faults(1));
    assert_ne!(faults(1), faults(2));
}
