//! Copies of a space that come and go while it is used.

mod common;

use common::{Dir, check, page, pages, slot, write};
use farshore_backend::AnyBackend;
use farshore_backend::faulty::{FaultConfig, Kind};
use farshore_backend::mirror::Mirror;
use farshore_backend::mirror::exchange::{Alone, Coming, Leaving, NoExchange};
use farshore_backend::ram::RamSpace;
use farshore_config::{Size, SwapSpec};
use farshore_core::seams::{Backend, CopyChange, FreeSlots, IoError, NoneFree, PageBuf, ReadBegun, Reads, Spaces, WriteQueue};
use farshore_random::Rng;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Nobody forks here.
const ALONE: Alone<'_> = &|f| f();

fn spec(name: &str) -> SwapSpec {
    SwapSpec::Dir(format!("/{name}").into())
}

/// RAM with a switch for faults: 32 MiB, or as many as the name has digits.
fn ram(spec: &SwapSpec) -> AnyBackend {
    let digits: String = spec.to_string().chars().filter(char::is_ascii_digit).collect();
    let size = Size::mib(digits.parse().unwrap_or(32));
    let ram = AnyBackend::Ram(RamSpace::open(Some(size), None).unwrap());
    ram.with_faults(&FaultConfig { delay_time: "300ms".parse().unwrap(), ..FaultConfig::default() })
}

fn mirror(names: &[&str]) -> Mirror {
    let specs: Vec<_> = names.iter().map(|name| spec(name)).collect();
    Mirror::open(&specs, false, Box::new(|_, spec, _| Ok(ram(spec))), &mut |_| {}).unwrap()
}

/// The place of a copy among those that are seen.
fn at(mirror: &Mirror, name: &str) -> usize {
    mirror.seen().position(|copy| copy.name == spec(name).to_string()).unwrap()
}

fn set(mirror: &Mirror, name: &str, kind: Kind, rate: f64) {
    mirror.copies().nth(at(mirror, name)).unwrap().faults().unwrap().set_rate(kind, rate);
}

fn names(mirror: &Mirror) -> Vec<String> {
    mirror.specs().iter().map(|spec| spec.to_string()[5..].to_owned()).collect()
}

fn keep_until(mirror: &Mirror, what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 60, "it never comes: {what}; {:?}", mirror.seen().collect::<Vec<_>>());
        let again = mirror.keep(&NoneFree).expect("it wants to be called again");
        std::thread::sleep(Duration::from_nanos(again.min(20_000_000)));
    }
}

fn add(mirror: &Mirror, name: &str) -> Result<(), NoExchange> {
    mirror.add(&spec(name), ALONE, &mut |_| {})
}

fn fill(mirror: &Mirror, name: &str) {
    add(mirror, name).unwrap();
    keep_until(mirror, "it is filled", || mirror.filled_percent(&spec(name)) == Some(100));
}

/// Takes a copy away, and waits until it is closed.
fn take(mirror: &Mirror, name: &str) {
    mirror.remove(&spec(name), ALONE).unwrap();
    let since = Instant::now();
    while mirror.leave(&spec(name), true, ALONE) != Leaving::Closed {
        assert!(since.elapsed().as_secs() < 60, "{name} is not closed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_copy_comes_and_the_first_ones_go() {
    let mirror = mirror(&["a", "b"]);
    let mut queue = mirror.queue(4).unwrap();
    let all = pages(7, 300, 1);
    write::<Mirror>(&mut queue, 7, &all).unwrap();
    write::<Mirror>(&mut queue, 2000, &all[..40]).unwrap();
    add(&mirror, "c").unwrap();
    assert_eq!(
        (names(&mirror).as_slice(), mirror.filled_percent(&spec("c"))),
        (["a", "b", "c"].map(String::from).as_slice(), Some(0))
    );
    assert_eq!(
        mirror.seen().map(|copy| (copy.up, copy.filling, copy.stale)).collect::<Vec<_>>(),
        [(true, false, 0), (true, false, 0), (true, true, 340)]
    );
    // What is written from now on goes there too.
    let late = pages(100, 20, 2);
    write::<Mirror>(&mut queue, 100, &late).unwrap();
    assert_eq!(mirror.seen().last().unwrap().stale, 320);
    assert_eq!(mirror.remove(&spec("a"), ALONE), Err(NoExchange::Lacks("dir:/c", 320)));
    keep_until(&mirror, "it is filled", || mirror.filled_percent(&spec("c")) == Some(100));
    assert!(mirror.seen().all(|copy| !copy.filling && copy.stale == 0));
    take(&mirror, "a");
    fill(&mirror, "d");
    take(&mirror, "b");
    assert_eq!((mirror.name(), names(&mirror).len(), mirror.seen().count()), ("mirror:(dir:/d,dir:/c)", 2, 2));
    for copy in mirror.copies() {
        check(&*copy, 7, &all[..93]);
        check(&*copy, 100, &late);
        check(&*copy, 120, &all[113..]);
        check(&*copy, 2000, &all[..40]);
    }
    // Each of the two is enough.
    for name in ["c", "d"] {
        set(&mirror, name, Kind::ReadError, 1.0);
        check(&mirror, 100, &late);
        check(&mirror, 2000, &all[..40]);
        set(&mirror, name, Kind::ReadError, 0.0);
    }
}

#[test]
fn what_cannot_come_or_go_is_refused() {
    let mirror = mirror(&["a", "b"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    assert_eq!(mirror.remove(&spec("a"), ALONE), Err(NoExchange::Two));
    assert_eq!(mirror.remove(&spec("x"), ALONE), Err(NoExchange::NoCopy("dir:/a, dir:/b".into())));
    assert_eq!(add(&mirror, "a"), Err(NoExchange::There));
    assert_eq!(add(&mirror, "c16"), Err(NoExchange::Small { bytes: 16 << 20, needed: Some(32 << 20) }));
    assert_eq!(mirror.add(&"ram:lz4".parse().unwrap(), ALONE, &mut |_| {}), Err(NoExchange::Pool));
    assert_eq!(names(&mirror).len(), 2);
    add(&mirror, "c64").unwrap();
    assert_eq!(add(&mirror, "d"), Err(NoExchange::Three));
    assert_eq!(add(&mirror, "c64"), Err(NoExchange::There));
    assert_eq!(mirror.remove(&spec("b"), ALONE), Err(NoExchange::Lacks("dir:/c64", 40)));
    // The one that is filled may go; the rest is as it was.
    take(&mirror, "c64");
    assert_eq!(names(&mirror), ["a", "b"]);
    fill(&mirror, "c64");
    set(&mirror, "b", Kind::WriteError, 1.0);
    (0..4).for_each(|n| write::<Mirror>(&mut queue, 600 + n, &pages(600 + n, 1, 3)).unwrap());
    assert_eq!(mirror.remove(&spec("a"), ALONE), Err(NoExchange::Down("dir:/b")));
    // One that is down goes, if the others have all.
    take(&mirror, "b");
    mirror.copies().for_each(|copy| check(&*copy, 7, &pages(7, 40, 1)));
    mirror.copies().for_each(|copy| check(&*copy, 600, &pages(600, 1, 3)));
    for why in [NoExchange::Two, NoExchange::Three, NoExchange::Down("dir:/b"), NoExchange::Lacks("dir:/b", 3)] {
        assert!(!why.to_string().contains('\n') && why.to_string().contains(';'), "{why}");
    }
}

/// The page that a copy alone has keeps it, also where it turned bad in another one after the look.
#[test]
fn a_copy_that_alone_has_a_page_stays() {
    let mirror = mirror(&["a", "b", "c"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    set(&mirror, "b", Kind::Full, 1.0);
    set(&mirror, "c", Kind::Full, 1.0);
    write::<Mirror>(&mut queue, 20, &pages(20, 1, 2)).unwrap();
    assert_eq!(mirror.remove(&spec("a"), ALONE), Err(NoExchange::Lacks("dir:/b", 1)));
    check(&mirror, 20, &pages(20, 1, 2));
    assert!(mirror.seen().all(|copy| copy.up && !copy.leaving));
    set(&mirror, "b", Kind::Full, 0.0);
    keep_until(&mirror, "the second has it", || mirror.seen().nth(1).unwrap().stale == 0);
    assert_eq!(mirror.remove(&spec("a"), ALONE), Err(NoExchange::Lacks("dir:/c", 1)));
    set(&mirror, "c", Kind::Full, 0.0);
    keep_until(&mirror, "all have it", || mirror.seen().all(|copy| copy.stale == 0));
    take(&mirror, "a");
    mirror.copies().for_each(|copy| check(&*copy, 20, &pages(20, 1, 2)));
}

#[test]
fn a_copy_that_goes_is_open_until_its_last_reader_has_left() {
    let mirror = mirror(&["a", "b", "c"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    // Each read takes its time. (Of a copy nothing is known before its first read, so some readers take each.)
    for name in ["a", "b", "c"] {
        set(&mirror, name, Kind::Delay, 1.0);
    }
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..64)
            .map(|n| {
                let mirror = &mirror;
                scope.spawn(move || {
                    let mut into = PageBuf::ZERO;
                    mirror.read(slot(7 + n % 40), &mut into).unwrap();
                    assert!(into.0 == page(7 + n % 40, 1).0);
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        mirror.remove(&spec("a"), ALONE).unwrap();
        assert_eq!(mirror.leave(&spec("a"), true, ALONE), Leaving::Used);
        assert!(mirror.seen().any(|copy| copy.leaving));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(
            (mirror.leave(&spec("a"), false, ALONE), mirror.leave(&spec("a"), true, ALONE)),
            (Leaving::Used, Leaving::Closed)
        );
    });
    assert_eq!(names(&mirror), ["b", "c"]);
}

#[test]
fn a_copy_that_was_taken_away_is_taken_back_as_an_empty_one() {
    let mirror = mirror(&["a", "b", "c"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    mirror.remove(&spec("a"), ALONE).unwrap();
    assert_eq!((mirror.remove(&spec("a"), ALONE), add(&mirror, "a")), (Err(NoExchange::Goes), Err(NoExchange::Goes)));
    write::<Mirror>(&mut queue, 20, &pages(20, 8, 2)).unwrap();
    let mut second = mirror.queue(4).unwrap();
    assert_eq!(mirror.leave(&spec("a"), false, ALONE), Leaving::Used);
    assert_eq!((mirror.take_back(&spec("b"), ALONE), mirror.take_back(&spec("a"), ALONE)), (Ok(false), Ok(true)));
    assert_eq!(mirror.seen().map(|copy| copy.stale).collect::<Vec<_>>(), [40, 0, 0]);
    write::<Mirror>(&mut second, 30, &pages(30, 4, 3)).unwrap();
    assert_eq!(mirror.seen().map(|copy| copy.stale).collect::<Vec<_>>(), [36, 0, 0], "its queue has a part for it");
    keep_until(&mirror, "it is filled", || mirror.filled_percent(&spec("a")) == Some(100));
    let copy = mirror.copies().next().unwrap();
    check(&*copy, 7, &pages(7, 13, 1));
    check(&*copy, 20, &pages(20, 8, 2));
    check(&*copy, 30, &pages(30, 4, 3));
}

/// Whoever reads by a descriptor in a way of his own holds nothing.
#[test]
fn a_file_that_was_lent_is_closed_when_all_faults_have_ended() {
    let dirs = [Dir::new(), Dir::new(), Dir::new()];
    let specs: Vec<_> = dirs.iter().map(|dir| SwapSpec::Dir(dir.0.clone())).collect();
    let open = |_, spec: &SwapSpec, notice: &mut dyn FnMut(&str)| AnyBackend::open(core::slice::from_ref(spec), false, notice);
    let mirror = Mirror::open(&specs, false, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    (0..200).for_each(|_| check(&mirror, 7, &pages(7, 40, 1)));
    let mut into = [PageBuf::ZERO];
    let lent = (0..200).find_map(|_| match mirror.begin_read(slot(7), &mut into) {
        ReadBegun::File { fd, .. } => mirror.copies().position(|copy| copy.fds().any(|its| its == fd)).map(|copy| (copy, fd)),
        _ => None,
    });
    let (copy, fd) = lent.expect("nobody reads by a descriptor");
    mirror.remove(&specs[copy], ALONE).unwrap();
    assert_eq!(mirror.leave(&specs[copy], true, ALONE), Leaving::Lent);
    let there = || std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    assert!(there().starts_with(&dirs[copy].0), "it is {}", there().display());
    mirror.faults_have_ended(&specs[copy]);
    assert_eq!(mirror.leave(&specs[copy], true, ALONE), Leaving::Closed);
    assert!(!there().starts_with(&dirs[copy].0), "{} is open still", there().display());
    check(&mirror, 7, &pages(7, 40, 1));
}

/// It is not known which copy it was: another read of the slot has noted another one meanwhile.
#[test]
fn a_read_by_a_descriptor_that_fails_is_held_against_no_other_copy() {
    let dirs = [Dir::new(), Dir::new()];
    let specs: Vec<_> = dirs.iter().map(|dir| SwapSpec::Dir(dir.0.clone())).collect();
    let open = |_, spec: &SwapSpec, notice: &mut dyn FnMut(&str)| AnyBackend::open(core::slice::from_ref(spec), false, notice);
    let mirror = Mirror::open(&specs, false, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 1, 1)).unwrap();
    (0..200).for_each(|_| check(&mirror, 7, &pages(7, 1, 1)));
    let mut tried = [0; 2];
    while tried.iter().any(|&times| times < 4) {
        let mut into = [PageBuf::ZERO];
        let ReadBegun::File { fd, .. } = mirror.begin_read(slot(7), &mut into) else { continue };
        let copy = mirror.copies().position(|copy| copy.fds().any(|its| its == fd)).unwrap();
        tried[copy] += 1;
        // Both copies are read meanwhile.
        (0..130).for_each(|_| check(&mirror, 7, &pages(7, 1, 1)));
        mirror.finish_read(slot(7), &mut into, Err(IoError::Device(5))).unwrap();
        assert!(into[0].0 == page(7, 1).0);
        let seen: Vec<_> = mirror.seen().map(|copy| (copy.up, copy.stale)).collect();
        assert_eq!(seen, [(true, 0), (true, 0)], "copy {copy} was lent, and another one is said to have failed");
    }
}

#[test]
fn a_copy_without_room_is_told_of() {
    let mirror = mirror(&["a", "b"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    add(&mirror, "c").unwrap();
    set(&mirror, "c", Kind::Full, 1.0);
    assert_eq!(mirror.coming(&spec("c")), Some(Coming::Filled));
    let mut told = Vec::new();
    let news = |told: &mut Vec<(String, CopyChange)>| mirror.news(&mut |copy, change| told.push((copy.to_owned(), change)));
    keep_until(&mirror, "it is said to be full", || mirror.coming(&spec("c")) == Some(Coming::Full(40)));
    assert!(mirror.seen().last().is_some_and(|copy| copy.up && copy.full && copy.stale == 40));
    (0..3).for_each(|_| news(&mut told));
    assert_eq!(told, [("dir:/c".to_owned(), CopyChange::Full(40))], "once");
    // It goes, or is filled when there is room.
    take(&mirror, "c");
    add(&mirror, "c").unwrap();
    set(&mirror, "c", Kind::Full, 1.0);
    keep_until(&mirror, "it is full again", || mirror.seen().last().unwrap().full);
    set(&mirror, "c", Kind::Full, 0.0);
    keep_until(&mirror, "it is filled", || mirror.coming(&spec("c")) == Some(Coming::Whole));
    assert!(mirror.seen().all(|copy| !copy.full && copy.stale == 0));
    mirror.news(&mut |_, _| {});
    // One that was there from the start.
    set(&mirror, "a", Kind::Full, 1.0);
    write::<Mirror>(&mut queue, 20, &pages(20, 8, 2)).unwrap();
    told.clear();
    keep_until(&mirror, "it is told", || mirror.seen().next().unwrap().full);
    news(&mut told);
    assert_eq!(told, [("dir:/a".to_owned(), CopyChange::Full(8))]);
}

/// Every slot from this one on that is no multiple of 3 has no page any more.
struct From(u64);

impl FreeSlots for From {
    fn free_of(&self, first: u64) -> u64 {
        (0..64).filter(|n| first + n >= self.0 && !(first + n).is_multiple_of(3)).fold(0, |bits, n| bits | 1 << n)
    }

    fn unneeded_of(&self, first: u64) -> u64 {
        self.free_of(first)
    }
}

#[test]
fn what_nobody_needs_is_not_copied() {
    let mirror = mirror(&["a", "b"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 300, 1)).unwrap();
    add(&mirror, "c").unwrap();
    let since = Instant::now();
    while mirror.coming(&spec("c")) != Some(Coming::Whole) {
        assert!(since.elapsed().as_secs() < 60, "{:?}", mirror.seen().collect::<Vec<_>>());
        let _ = mirror.keep(&From(50));
    }
    let copy = mirror.copies().last().unwrap();
    for n in 7..307 {
        let mut there = PageBuf::ZERO;
        copy.read(slot(n), &mut there).unwrap();
        let is_needed = n < 50 || n.is_multiple_of(3);
        assert_eq!(there.0 == page(n, 1).0, is_needed, "slot {n}");
        assert!(is_needed || there.0 == PageBuf::ZERO.0, "slot {n} was written there");
    }
    drop(copy);
    assert!(mirror.seen().all(|copy| copy.stale == 0));
    // What is used again is everywhere.
    write::<Mirror>(&mut queue, 100, &pages(100, 40, 2)).unwrap();
    take(&mirror, "a");
    mirror.copies().for_each(|copy| check(&*copy, 100, &pages(100, 40, 2)));
    mirror.copies().for_each(|copy| check(&*copy, 7, &pages(7, 43, 1)));
}

/// Nothing is opened or closed while nobody can fork.
#[test]
fn files_come_and_go_while_the_process_may_fork() {
    let dirs = [Dir::new(), Dir::new(), Dir::new()];
    let specs: Vec<_> = dirs.iter().map(|dir| SwapSpec::Dir(dir.0.clone())).collect();
    let is_alone = Arc::new(AtomicBool::new(false));
    let opening = Arc::clone(&is_alone);
    let open = move |_, spec: &SwapSpec, notice: &mut dyn FnMut(&str)| {
        assert!(!opening.load(Ordering::Relaxed), "a copy is opened while nobody can fork");
        AnyBackend::open(core::slice::from_ref(spec), false, notice)
    };
    let mirror = Mirror::open(&specs[..2], false, Box::new(open), &mut |_| {}).unwrap();
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 40, 1)).unwrap();
    let there = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        fds.filter(|file| dirs.iter().any(|dir| file.starts_with(&dir.0))).count()
    };
    let times = Cell::new(0);
    let alone = |f: &mut dyn FnMut()| {
        let before = there();
        is_alone.store(true, Ordering::Relaxed);
        f();
        is_alone.store(false, Ordering::Relaxed);
        times.set(times.get() + 1);
        assert_eq!(there(), before, "a file is opened or closed while nobody can fork");
    };
    mirror.add(&specs[2], &alone, &mut |_| {}).unwrap();
    assert_eq!((times.get(), there()), (1, 3));
    keep_until(&mirror, "it is filled", || mirror.coming(&specs[2]) == Some(Coming::Whole));
    mirror.remove(&specs[0], &alone).unwrap();
    while mirror.leave(&specs[0], true, &alone) != Leaving::Closed {
        mirror.faults_have_ended(&specs[0]);
    }
    assert_eq!((times.get() >= 4, there()), (true, 2));
    mirror.copies().for_each(|copy| check(&*copy, 7, &pages(7, 40, 1)));
}

#[test]
fn a_copy_that_fails_while_it_is_filled_is_filled_later_or_goes() {
    let mirror = mirror(&["a", "b"]);
    let mut queue = mirror.queue(4).unwrap();
    write::<Mirror>(&mut queue, 7, &pages(7, 400, 1)).unwrap();
    add(&mirror, "c").unwrap();
    set(&mirror, "c", Kind::WriteError, 1.0);
    keep_until(&mirror, "it is down", || !mirror.seen().last().unwrap().up);
    assert_eq!(mirror.remove(&spec("a"), ALONE), Err(NoExchange::Down("dir:/c")));
    set(&mirror, "c", Kind::WriteError, 0.0);
    keep_until(&mirror, "it is filled", || mirror.filled_percent(&spec("c")) == Some(100));
    take(&mirror, "b");
    add(&mirror, "d").unwrap();
    set(&mirror, "d", Kind::WriteError, 1.0);
    write::<Mirror>(&mut queue, 20, &pages(20, 8, 2)).unwrap();
    take(&mirror, "d");
    fill(&mirror, "d");
    mirror.copies().for_each(|copy| check(&*copy, 20, &pages(20, 8, 2)));
}

/// Copies come and go in turn while several threads write and read.
#[test]
fn copies_are_exchanged_under_load() {
    const THREADS: u64 = 3;
    let mirror = mirror(&["a", "b"]);
    let over = AtomicBool::new(false);
    let turns = std::thread::scope(|scope| {
        let (mirror, over) = (&mirror, &over);
        let exchanger = scope.spawn(move || {
            let (mut turns, mut there) = (0, ["a", "b", "c", "d"]);
            let mut random = Rng::new(3);
            let keep = || {
                let again = mirror.keep(&NoneFree).unwrap();
                std::thread::sleep(Duration::from_nanos(again.min(500_000)));
            };
            while !over.load(Ordering::Relaxed) {
                // Some of what is copied there fails.
                add(mirror, there[2]).unwrap();
                let rate = if turns % 2 == 0 { 0.2 } else { 0.0 };
                set(mirror, there[2], Kind::Full, rate);
                (0..random.below(20)).for_each(|_| keep());
                set(mirror, there[2], Kind::Full, 0.0);
                // As soon as it may go, it does.
                let goes = there[random.below(2) as usize];
                let since = Instant::now();
                loop {
                    match mirror.remove(&spec(goes), ALONE) {
                        Ok(()) => break,
                        Err(NoExchange::Lacks(..) | NoExchange::Down(_)) => keep(),
                        Err(why) => panic!("{why}"),
                    }
                    assert!(since.elapsed().as_secs() < 60, "{:?}", mirror.seen().collect::<Vec<_>>());
                }
                while mirror.leave(&spec(goes), true, ALONE) != Leaving::Closed {
                    keep();
                }
                let stays = if goes == there[0] { there[1] } else { there[0] };
                there = [stays, there[2], there[3], goes];
                turns += 1;
            }
            turns
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
                        let at = |n: u64| 1 + n + 800 * thread;
                        match random.below(8) {
                            // Evictors come and go too.
                            0 => queue = mirror.queue(4).unwrap(),
                            1..4 => {
                                let some = pages(at(first), count as u32, version);
                                // A write that only a copy that has just gone took ends with an error, as where none took it.
                                match write::<Mirror>(&mut queue, at(first), &some) {
                                    Ok(()) => (first..first + count).for_each(|n| versions[n as usize] = version),
                                    Err(_) => (first..first + count).for_each(|n| versions[n as usize] = 0),
                                }
                            }
                            _ => {
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
                    }
                    (thread, versions)
                })
            })
            .collect();
        let all: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        let turns = exchanger.join().unwrap();
        keep_until(mirror, "all are whole", || mirror.seen().all(|copy| copy.up && copy.stale == 0));
        for (thread, versions) in all {
            for (n, &version) in (0..).zip(&versions).filter(|(_, version)| **version > 0) {
                mirror.copies().for_each(|copy| check(&*copy, 1 + n + 800 * thread, &pages(1 + n + 800 * thread, 1, version)));
            }
        }
        turns
    });
    assert!(turns > 5, "{turns} exchanges");
}

/// A write had begun everywhere when the copy went: it ends there too, and does not count there.
#[test]
fn a_write_that_had_begun_does_not_count_where_a_copy_has_gone() {
    for others_fail in [false, true] {
        let mirror = mirror(&["a", "b", "c"]);
        let mut queue = mirror.queue(4).unwrap();
        write::<Mirror>(&mut queue, 7, &pages(7, 4, 1)).unwrap();
        set(&mirror, "a", Kind::WriteDelay, 1.0);
        if others_fail {
            ["b", "c"].iter().for_each(|name| set(&mirror, name, Kind::Full, 1.0));
        }
        let new = pages(7, 4, 2);
        // SAFETY: the pages outlive the completion, which is waited for.
        unsafe { queue.start_write(slot(7), new.as_ptr(), 4, 1) }.unwrap();
        queue.reap(false, &mut |_, _| panic!("it has ended already"));
        mirror.remove(&spec("a"), ALONE).unwrap();
        assert_eq!(mirror.leave(&spec("a"), true, ALONE), Leaving::Used, "a write is under way");
        let mut ended = None;
        queue.reap(true, &mut |_, result| ended = Some(result));
        assert_eq!(ended.map(|result| result.is_ok()), Some(!others_fail), "the copy that has gone alone has it");
        assert_eq!(mirror.seen().next().map(|copy| (copy.leaving, copy.stale)), Some((true, 4)));
        assert_eq!(mirror.leave(&spec("a"), true, ALONE), Leaving::Closed);
        if !others_fail {
            check(&mirror, 7, &new);
        }
    }
}
