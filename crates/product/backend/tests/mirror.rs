//! Spaces that are kept several times: what one copy loses or makes wrong, the others have.

mod common;

use common::{check, page, pages, slot, write};
use farshore_backend::AnyBackend;
use farshore_backend::faulty::{FaultConfig, Kind};
use farshore_backend::mirror::Mirror;
use farshore_backend::ram::RamSpace;
use farshore_config::{Size, SwapSpec};
use farshore_core::seams::{Backend, CopyChange, IoError, LATER, NoneFree, PageBuf, Reads, Spaces};
use farshore_random::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BROKEN: IoError = IoError::Device(5);
const SPEC: SwapSpec = SwapSpec::Ram { compress: None, size: Some(Size::mib(32)) };

/// So many copies in RAM, each with a switch for faults.
fn mirror(copies: usize) -> Mirror {
    let open = |n, _: &SwapSpec, _: &mut dyn FnMut(&str)| {
        let ram = AnyBackend::Ram(RamSpace::open(Some(Size::mib(32)), None)?);
        Ok(ram.with_faults(&FaultConfig { seed: n as u64 + 1, ..FaultConfig::default() }))
    };
    Mirror::open(&vec![SPEC; copies], false, Box::new(open), &mut |_| {}).unwrap()
}

fn set(mirror: &Mirror, copy: usize, kind: Kind, rate: f64) {
    mirror.copies().nth(copy).unwrap().faults().expect("each has some").set_rate(kind, rate);
}

fn stale(mirror: &Mirror) -> Vec<u64> {
    mirror.seen().map(|copy| copy.stale).collect()
}

fn up(mirror: &Mirror) -> Vec<bool> {
    mirror.seen().map(|copy| copy.up).collect()
}

/// Keeps the space as its thread would, until something is so.
fn keep_until(mirror: &Mirror, what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 30, "it never comes: {what}; {:?} {:?}", up(mirror), stale(mirror));
        let again = mirror.keep(&NoneFree).expect("it wants to be called again");
        std::thread::sleep(Duration::from_nanos(again.min(20_000_000)));
    }
}

fn news(mirror: &Mirror) -> Vec<(usize, CopyChange)> {
    let names: Vec<_> = mirror.seen().map(|copy| copy.name.to_owned()).collect();
    let mut all = Vec::new();
    // The copies have one name here, so their order tells.
    mirror.news(&mut |name, change| all.push((names.iter().position(|it| it == name).unwrap(), change)));
    all
}

#[test]
fn each_copy_has_all_of_it() {
    for copies in [2, 3] {
        let mirror = mirror(copies);
        let mut queue = mirror.queue(4).unwrap();
        let all = pages(7, 40, 1);
        write::<Mirror>(&mut queue, 7, &all).unwrap();
        check(&mirror, 7, &all);
        mirror.copies().for_each(|copy| check(&*copy, 7, &all));
        assert_eq!((mirror.spaces(), mirror.capacity(), stale(&mirror)), (1, Some(32 << 8), vec![0; copies]));
        assert!(news(&mirror).is_empty());
    }
}

#[test]
fn what_a_copy_has_missed_is_copied_to_it() {
    let mirror = mirror(2);
    let mut queue = mirror.queue(4).unwrap();
    let (old, new) = (pages(7, 300, 1), pages(107, 100, 2));
    write::<Mirror>(&mut queue, 7, &old).unwrap();
    set(&mirror, 1, Kind::WriteError, 1.0);
    write::<Mirror>(&mut queue, 107, &new).unwrap();
    assert_eq!(stale(&mirror), [0, 100]);
    // Half of them and more were torn there.
    check(&mirror, 107, &new);
    for n in 0..4 {
        write::<Mirror>(&mut queue, 600 + n, &pages(600 + n, 1, 3)).unwrap();
    }
    assert_eq!((up(&mirror), news(&mirror)), (vec![true, false], vec![(0, CopyChange::Lost)]), "three errors in a row");
    set(&mirror, 1, Kind::WriteError, 0.0);
    keep_until(&mirror, "it is whole", || stale(&mirror) == [0, 0]);
    assert_eq!(news(&mirror), [(0, CopyChange::Back(0)), (0, CopyChange::Whole)]);
    set(&mirror, 0, Kind::ReadError, 1.0);
    check(&mirror, 7, &old[..100]);
    check(&mirror, 107, &new);
    check(&mirror, 207, &old[200..]);
    (0..4).for_each(|n| check(&mirror, 600 + n, &pages(600 + n, 1, 3)));
}

#[test]
fn a_copy_that_cannot_be_read_is_passed_by_and_written_again() {
    let mirror = mirror(2);
    let mut queue = mirror.queue(4).unwrap();
    let all = pages(7, 40, 1);
    write::<Mirror>(&mut queue, 7, &all).unwrap();
    for kind in [Kind::ReadError, Kind::ShortRead] {
        set(&mirror, 0, kind, 1.0);
        check(&mirror, 7, &all);
        set(&mirror, 0, kind, 0.0);
        keep_until(&mirror, "it is up and whole", || stale(&mirror) == [0, 0] && up(&mirror) == [true, true]);
    }
    set(&mirror, 1, Kind::ReadError, 1.0);
    check(&mirror, 7, &all);
}

#[test]
fn what_no_copy_takes_or_gives_is_an_error() {
    let mirror = mirror(2);
    let mut queue = mirror.queue(4).unwrap();
    (0..2).for_each(|copy| set(&mirror, copy, Kind::WriteError, 1.0));
    for n in 0..6 {
        assert_eq!(write::<Mirror>(&mut queue, 7 + n, &pages(7 + n, 1, 1)), Err(BROKEN), "the {n}th, up or down");
    }
    let mut into = PageBuf::ZERO;
    assert!(mirror.read(slot(7), &mut into).is_err(), "nobody has it");
    (0..2).for_each(|copy| set(&mirror, copy, Kind::WriteError, 0.0));
    write::<Mirror>(&mut queue, 7, &pages(7, 4, 2)).unwrap();
    check(&mirror, 7, &pages(7, 4, 2));
    (0..2).for_each(|copy| set(&mirror, copy, Kind::ReadError, 1.0));
    assert_eq!(mirror.read(slot(7), &mut into), Err(BROKEN));
    // The last copy is not given up for it.
    (0..2).for_each(|copy| set(&mirror, copy, Kind::ReadError, 0.0));
    check(&mirror, 7, &pages(7, 4, 2));
}

#[test]
fn a_full_copy_stays_and_is_repaired_when_it_has_room() {
    let mirror = mirror(2);
    let mut queue = mirror.queue(4).unwrap();
    set(&mirror, 1, Kind::Full, 1.0);
    (0..8).for_each(|n| write::<Mirror>(&mut queue, 1 + n, &pages(1 + n, 1, 1)).unwrap());
    assert_eq!((up(&mirror), stale(&mirror)), (vec![true, true], vec![0, 8]));
    set(&mirror, 1, Kind::Full, 0.0);
    keep_until(&mirror, "it is whole", || stale(&mirror) == [0, 0]);
}

/// As the engine does: a wrong page is doubted, and read again.
fn read_right(mirror: &Mirror, n: u64, version: u64) -> usize {
    let mut into = PageBuf::ZERO;
    for tries in 1..=3 {
        mirror.read(slot(n), &mut into).unwrap();
        if into.0 == page(n, version).0 {
            return tries;
        }
        mirror.doubt(slot(n));
    }
    panic!("slot {n} cannot be read")
}

#[test]
fn a_copy_that_lies_is_asked_no_more_for_that_page() {
    for copies in [2, 3] {
        let mirror = mirror(copies);
        let mut queue = mirror.queue(4).unwrap();
        write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
        (0..copies - 1).for_each(|copy| set(&mirror, copy, Kind::Corrupt, 1.0));
        (7..47).for_each(|n| assert!(read_right(&mirror, n, 1) <= copies));
        (7..47).for_each(|n| assert!(read_right(&mirror, n, 1) <= copies));
        let wrong: u64 = stale(&mirror).iter().sum();
        assert!(wrong > 0 && stale(&mirror)[copies - 1] == 0, "{:?}", stale(&mirror));
        (0..copies - 1).for_each(|copy| set(&mirror, copy, Kind::Corrupt, 0.0));
        keep_until(&mirror, "all are whole", || stale(&mirror).iter().all(|&stale| stale == 0));
        mirror.copies().for_each(|copy| check(&*copy, 7, &pages(7, 40, 1)));
    }
}

#[test]
fn the_last_copy_is_never_given_up() {
    let mirror = mirror(2);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 1, 1)).unwrap();
    (0..2).for_each(|copy| set(&mirror, copy, Kind::Corrupt, 1.0));
    let mut into = PageBuf::ZERO;
    for _ in 0..6 {
        mirror.read(slot(7), &mut into).unwrap();
        assert!(into.0 != page(7, 1).0);
        mirror.doubt(slot(7));
    }
    (0..2).for_each(|copy| set(&mirror, copy, Kind::Corrupt, 0.0));
    assert_eq!(read_right(&mirror, 7, 1), 1);
}

#[test]
fn freed_slots_are_not_repaired() {
    let mirror = mirror(2);
    let mut queue = mirror.queue(4).unwrap();
    set(&mirror, 1, Kind::Full, 1.0);
    write::<Mirror>(&mut queue, 512, &pages(512, 64, 1)).unwrap();
    assert_eq!(stale(&mirror), [0, 64]);
    assert_ne!(mirror.give_back(slot(512), 512), Err(LATER), "nobody repairs now");
    assert_eq!(stale(&mirror), [0, 0]);
}

/// Copies that fail and come back in turn, one at a time, while slots are written and read by several threads and repaired by another.
#[test]
fn one_copy_may_do_what_it_wants() {
    const THREADS: u64 = 3;
    let mirror = mirror(3);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mirror, over) = (&mirror, &over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let again = mirror.keep(&NoneFree).unwrap();
                std::thread::sleep(Duration::from_nanos(again.min(1_000_000)));
            }
        });
        let bad = scope.spawn(move || {
            let mut random = Rng::new(5);
            let kinds = [Kind::WriteError, Kind::ShortWrite, Kind::Full, Kind::ReadError, Kind::ShortRead, Kind::Delay];
            while !over.load(Ordering::Relaxed) {
                let (copy, kind) = (random.below(3) as usize, kinds[random.below(6) as usize]);
                set(mirror, copy, kind, [0.05, 0.5, 1.0][random.below(3) as usize]);
                std::thread::sleep(Duration::from_millis(random.below(40)));
                set(mirror, copy, kind, 0.0);
                // Pages that this copy alone has are copied before another one fails.
                let since = Instant::now();
                while stale(mirror).iter().any(|&stale| stale > 0) || up(mirror) != [true; 3] {
                    assert!(since.elapsed().as_secs() < 60, "{:?} {:?}", up(mirror), stale(mirror));
                    std::thread::sleep(Duration::from_millis(1));
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = Rng::new(thread);
                    let mut queue = mirror.queue(4).unwrap();
                    let mut versions = vec![0_u64; 800];
                    let begun = Instant::now();
                    while begun.elapsed().as_secs() < 6 {
                        let first = random.below(760);
                        let count = 1 + random.below(40);
                        let version = random.below(1 << 30) + 1;
                        // Slots of the threads lie side by side, in the same extents.
                        let at = |n: u64| 1 + n + 800 * thread;
                        if random.below(2) == 0 {
                            let some = pages(at(first), count as u32, version);
                            write::<Mirror>(&mut queue, at(first), &some).unwrap();
                            (first..first + count).for_each(|n| versions[n as usize] = version);
                        } else {
                            let known = (first..first + count).take_while(|&n| versions[n as usize] > 0).count();
                            let mut run = vec![PageBuf::ZERO; known];
                            if known > 0 {
                                mirror.read_run(slot(at(first)), &mut run).unwrap();
                            }
                            for (n, got) in (first..).zip(&run) {
                                assert!(got.0 == page(at(n), versions[n as usize]).0, "slot {} of thread {thread}", at(n));
                            }
                        }
                    }
                    (thread, versions)
                })
            })
            .collect();
        let all: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        bad.join().unwrap();
        // Each of them has all, in the end.
        for copy in 0..3 {
            [Kind::WriteError, Kind::ShortWrite, Kind::Full, Kind::ReadError, Kind::ShortRead, Kind::Delay]
                .into_iter()
                .for_each(|kind| set(mirror, copy, kind, 0.0));
        }
        keep_until(mirror, "all are whole", || stale(mirror).iter().all(|&stale| stale == 0) && up(mirror) == [true; 3]);
        for (thread, versions) in all {
            for (n, &version) in (0..).zip(&versions).filter(|(_, version)| **version > 0) {
                mirror.copies().for_each(|copy| check(&*copy, 1 + n + 800 * thread, &pages(1 + n + 800 * thread, 1, version)));
            }
        }
    });
}

/// Writes past the mirror.
fn write_behind(mirror: &Mirror, copy: usize, first: u64, pages: &[PageBuf]) {
    let copy = mirror.copies().nth(copy).unwrap();
    write::<AnyBackend>(&mut copy.queue(1).unwrap(), first, pages).unwrap();
}

#[test]
fn a_copy_that_takes_nothing_keeps_no_other_from_its_repair() {
    let mirror = mirror(3);
    let mut queue = mirror.queue(4).unwrap();
    set(&mirror, 0, Kind::Full, 1.0);
    set(&mirror, 1, Kind::WriteError, 1.0);
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    set(&mirror, 1, Kind::WriteError, 0.0);
    assert_eq!(stale(&mirror), [40, 40, 0]);
    keep_until(&mirror, "the second has it", || stale(&mirror)[1] == 0);
}

#[test]
fn a_page_that_its_source_cannot_read_keeps_no_other_from_its_repair() {
    let dir = common::Dir::new();
    let file = SwapSpec::File { path: dir.0.join("first"), size: Some(Size::mib(32)) };
    let open = |_, spec: &SwapSpec, notice: &mut dyn FnMut(&str)| match spec {
        SwapSpec::File { .. } => AnyBackend::open(core::slice::from_ref(spec), false, notice),
        _ => Ok(AnyBackend::Ram(RamSpace::open(Some(Size::mib(32)), None)?).with_faults(&FaultConfig::default())),
    };
    let mirror = Mirror::open(&[file, SPEC], false, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    set(&mirror, 1, Kind::Full, 1.0);
    write::<Mirror>(&mut queue, 512, &pages(512, 64, 1)).unwrap();
    set(&mirror, 1, Kind::Full, 0.0);
    // The last pages are gone.
    let fd = mirror.copies().next().and_then(|file| file.fds().next()).unwrap();
    std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}")).unwrap().set_len(552 << 12).unwrap();
    keep_until(&mirror, "all others have been copied", || stale(&mirror)[1] <= 24);
    assert_eq!((up(&mirror), stale(&mirror)), (vec![true, true], vec![0, 24]));
    check(&*mirror.copies().nth(1).unwrap(), 512, &pages(512, 40, 1));
}

#[test]
fn an_error_of_the_copy_that_is_left_is_not_the_end_of_the_page() {
    for kind in [Kind::ReadError, Kind::Corrupt] {
        for first in 0..2 {
            let mirror = mirror(2);
            let mut queue = mirror.queue(4).unwrap();
            write::<Mirror>(&mut queue, 7, &pages(7, 1, 1)).unwrap();
            // One is gone for good.
            (0..2).for_each(|_| set(&mirror, first, Kind::ReadError, 1.0));
            set(&mirror, first, Kind::WriteError, 1.0);
            (0..8).for_each(|n| write::<Mirror>(&mut queue, 600 + n, &pages(600 + n, 1, 3)).unwrap());
            assert!(!up(&mirror)[first]);
            set(&mirror, 1 - first, kind, 1.0);
            let mut into = PageBuf::ZERO;
            if mirror.read(slot(7), &mut into).is_ok() {
                mirror.doubt(slot(7));
            }
            set(&mirror, 1 - first, kind, 0.0);
            assert_eq!(mirror.read(slot(7), &mut into), Ok(()), "{kind:?} {first}");
            assert!(into.0 == page(7, 1).0);
        }
    }
}

/// As a memory node that is started again without what it had, while its stamp is on the way for the second time.
#[test]
fn a_copy_that_is_emptied_twice_gets_everything_again() {
    let specs: Vec<SwapSpec> = ["nbd://a", "nbd://b"].iter().map(|spec| spec.parse().unwrap()).collect();
    let open = |n, _: &SwapSpec, _: &mut dyn FnMut(&str)| {
        let ram = AnyBackend::Ram(RamSpace::open(Some(Size::mib(32)), None)?);
        Ok(ram.with_faults(&FaultConfig { seed: n as u64 + 1, delay_time: "1s".parse().unwrap(), ..FaultConfig::default() }))
    };
    let mirror = Mirror::open(&specs, false, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 4, 1)).unwrap();
    let place = mirror.copies().next().unwrap().capacity().unwrap() - 1;
    let empty = |first, count| write_behind(&mirror, 0, first, &vec![PageBuf::ZERO; count]);
    empty(7, 4);
    empty(place, 1);
    set(&mirror, 0, Kind::WriteDelay, 1.0);
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| mirror.keep(&NoneFree));
        std::thread::sleep(Duration::from_millis(300));
        set(&mirror, 0, Kind::WriteDelay, 0.0);
        write::<Mirror>(&mut queue, 100, &pages(100, 4, 1)).unwrap();
        empty(100, 4);
        keeper.join().unwrap();
    });
    keep_until(&mirror, "it is whole", || stale(&mirror) == [0, 0]);
    let copy = mirror.copies().next().unwrap();
    check(&*copy, 7, &pages(7, 4, 1));
    check(&*copy, 100, &pages(100, 4, 1));
}

/// As where a forked child or a program that is started finds one of its family's copies full.
#[test]
fn a_copy_that_has_no_room_for_its_stamp_is_left_alone_for_now() {
    let specs: Vec<SwapSpec> = ["nbd://a", "nbd://b"].iter().map(|spec| spec.parse().unwrap()).collect();
    let open = |n, _: &SwapSpec, _: &mut dyn FnMut(&str)| {
        let ram = AnyBackend::Ram(RamSpace::open(Some(Size::mib(32)), None)?);
        let rates = if n == 0 { vec![(Kind::Full, 1.0)] } else { Vec::new() };
        Ok(ram.with_faults(&FaultConfig { rates, ..FaultConfig::default() }))
    };
    assert!(Mirror::open(&specs, false, Box::new(open), &mut |_| {}).is_err(), "at the start it is refused");
    let mirror = Mirror::open(&specs, true, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 4, 1)).unwrap();
    assert_eq!((up(&mirror), stale(&mirror)), (vec![false, true], vec![4, 0]));
    mirror.keep(&NoneFree);
    check(&mirror, 7, &pages(7, 4, 1));
    set(&mirror, 0, Kind::Full, 0.0);
    keep_until(&mirror, "it is whole", || stale(&mirror) == [0, 0] && up(&mirror) == [true; 2]);
    check(&*mirror.copies().next().unwrap(), 7, &pages(7, 4, 1));
}

/// As a node that is started again every few seconds.
#[test]
fn a_copy_is_looked_at_each_second_however_often_it_was_emptied() {
    let specs: Vec<SwapSpec> = ["nbd://a", "nbd://b"].iter().map(|spec| spec.parse().unwrap()).collect();
    let open = |_, _: &SwapSpec, _: &mut dyn FnMut(&str)| Ok(AnyBackend::Ram(RamSpace::open(Some(Size::mib(32)), None)?));
    let mirror = Mirror::open(&specs, false, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 4, 1)).unwrap();
    let place = mirror.copies().next().unwrap().capacity().unwrap() - 1;
    for n in 0..7 {
        write_behind(&mirror, 0, place, &[PageBuf::ZERO]);
        news(&mirror);
        let since = Instant::now();
        let mut found = false;
        while !found {
            mirror.keep(&NoneFree);
            found = news(&mirror).iter().any(|news| matches!(news, (0, CopyChange::Replaced(_))));
            assert!(since.elapsed().as_secs() < 3, "it is not found the {n}th time");
            std::thread::sleep(Duration::from_millis(10));
        }
        keep_until(&mirror, "it is whole", || stale(&mirror) == [0, 0]);
        // It is right at the next look, also of a thread that gets little time.
        let since = Instant::now();
        while since.elapsed().as_millis() < 2_500 {
            mirror.keep(&NoneFree);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
