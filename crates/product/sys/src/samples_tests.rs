use super::*;
use crate::vm::advice;
use core::sync::atomic::AtomicU32;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Barrier, Mutex as StdMutex, MutexGuard, PoisonError};

const NONE: [u64; 0] = [];

/// Page faults as the event: their addresses are known, each is a sample, and every machine has them.
const FAULTS: Event = Event { source: "faults", device: 1, config: [2, 0, 0], flags: 0, rate: 1, beside: None };

/// Files of devices: name and text. The folder, which is removed again at the end.
struct Devices {
    path: std::path::PathBuf,
    folder: Fd,
}

impl Devices {
    fn new(name: &str, files: &[(&str, &str)]) -> Devices {
        let path = std::env::temp_dir().join(format!("samples-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (file, text) in files {
            let file = path.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let at = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        Devices { folder: fd::open(&at, O_DIRECTORY).unwrap(), path }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn said(text: &str, formats: &[(&str, &str)]) -> Option<[u64; 3]> {
    let formats: BTreeMap<_, _> = formats.iter().copied().collect();
    terms(text, |term| formats.get(term).map(|format| (*format).into()))
}

#[test]
fn events_are_read_as_devices_write_them() {
    let intel = [("event", "config:0-7\n"), ("umask", "config:8-15\n"), ("ldlat", "config1:0-15\n"), ("inv", "config:23\n")];
    assert_eq!(said("event=0xcd,umask=0x1,ldlat=3\n", &intel), Some([0x1cd, 3, 0]));
    assert_eq!(said("event=0xd0,umask=0x82\n", &intel), Some([0x82d0, 0, 0]));
    assert_eq!(said("event=0x0b,umask=0x10,ldlat=3\n", &intel), Some([0x100b, 3, 0]), "Nehalem");
    assert_eq!(said("event=3,inv", &intel), Some([3 | 1 << 23, 0, 0]), "a term without a value is 1");
    let parts = [("event", "config:0-7\n"), ("umask", "config:8-15,40-47\n")];
    assert_eq!(said("event=0xd0,umask=0x1282\n", &parts), Some([0x82d0 | 0x12 << 40, 0, 0]));
    let amd = [("event", "config:0-7,32-35\n"), ("cnt_ctl", "config:19\n"), ("swfilt", "config2:0\n"), ("all", "config2:0-63")];
    assert_eq!(said("event=0x1ac", &amd), Some([0xac | 1 << 32, 0, 0]));
    assert_eq!(said("cnt_ctl=1,swfilt=1", &amd), Some([1 << 19, 0, 1]));
    assert_eq!(said("all=0xffffffffffffffff", &amd), Some([0, 0, u64::MAX]));
    for wrong in
        ["", "\n", "event", ",", "event=", "event=0x", "event=-1", "event=x", "other=1", "event=0x100", "event=1,", "event=1=2"]
    {
        let expected = (wrong == "event").then_some([1, 0, 0]);
        assert_eq!(said(wrong, &intel), expected, "{wrong:?}");
    }
    for wrong in ["", "config", "config:", "config3:0-7", "config:0-64", "config:7-0", "config:-1", "config:0-7,", "config:a-b"] {
        assert_eq!(said("event=1", &[("event", wrong)]), None, "{wrong:?}");
    }
}

const INTEL: [(&str, &str); 6] = [
    ("cpu/type", "4\n"),
    ("cpu/format/event", "config:0-7\n"),
    ("cpu/format/umask", "config:8-15\n"),
    ("cpu/format/ldlat", "config1:0-15\n"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
    ("cpu/events/mem-stores", "event=0xd0,umask=0x82\n"),
];

#[test]
fn the_best_event_of_a_machine_is_chosen() {
    let intel = Devices::new("intel", &INTEL);
    let event = |config| Event { source: "PEBS", device: 4, config, flags: FREQ | PRECISE, rate: RATE / 2, beside: None };
    assert_eq!(choose(&intel.folder), Ok(vec![event([0x1cd, 3, 0]), event([0x82d0, 0, 0])]));

    // Two kinds of cores, of which one wants another event counted beside.
    let hybrid = Devices::new(
        "hybrid",
        &[
            ("cpu_core/type", "4\n"),
            ("cpu_core/format/event", "config:0-7\n"),
            ("cpu_core/format/umask", "config:8-15\n"),
            ("cpu_core/format/ldlat", "config1:0-15\n"),
            ("cpu_core/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("cpu_core/events/mem-loads-aux", "event=0x03,umask=0x82\n"),
            ("cpu_atom/type", "10\n"),
            ("cpu_atom/format/event", "config:0-7\n"),
            ("cpu_atom/format/umask", "config:8-15\n"),
            ("cpu_atom/format/ldlat", "config1:0-15\n"),
            ("cpu_atom/events/mem-loads", "event=0xd0,umask=0x5,ldlat=3\n"),
            ("cpu_atom/events/mem-stores", "event=0xd0,umask=0x6\n"),
        ],
    );
    let on_core = Event { beside: Some([0x8203, 0, 0]), ..event([0x1cd, 3, 0]) };
    let on_atom = |config| Event { device: 10, ..event(config) };
    assert_eq!(choose(&hybrid.folder), Ok(vec![on_core, on_atom([0x5d0, 3, 0]), on_atom([0x6d0, 0, 0])]));

    let ibs = [("cpu/type", "4\n"), ("ibs_op/type", "11\n"), ("ibs_op/format/cnt_ctl", "config:19\n")];
    let filtered = Devices::new("ibs", &[&ibs[..], &[("ibs_op/format/swfilt", "config2:0\n")]].concat());
    let expected = Event { source: "IBS", device: 11, config: [1 << 19, 0, 1], flags: FREQ, rate: RATE, beside: None };
    assert_eq!(choose(&filtered.folder), Ok(vec![expected]));
    // It would show what the kernel does.
    let old = Devices::new("old-ibs", &ibs);
    assert_eq!(choose(&old.folder), Err(Lack::NoEvent));
    let virtual_machine =
        Devices::new("none", &[("software/type", "1\n"), ("cpu/type", "4\n"), ("cpu/format/event", "config:0-7\n")]);
    assert_eq!(choose(&virtual_machine.folder), Err(Lack::NoEvent));
    // An event with a term that nobody explains is none.
    let odd = Devices::new("odd", &[("cpu/type", "4\n"), ("cpu/events/mem-loads", "event=0xcd,new=1\n")]);
    assert_eq!(choose(&odd.folder), Err(Lack::NoEvent));
}

#[test]
fn the_kernel_gets_the_words_that_it_knows() {
    let words =
        Event { beside: None, ..choose(&Devices::new("words", &INTEL).folder).unwrap()[0] }.attributes([0x1cd, 3, 7], true);
    assert_eq!(words[..4], [4 | 112 << 32, 0x1cd, RATE / 2, 1 << 2 | 1 << 3]);
    assert_eq!(words[5], 1 << 5 | 1 << 10 | 2 << 15 | 1 << 25, "not the kernel's; a rate; exact; with a clock that is named");
    assert_eq!((words[7], words[8], words[11] >> 32), (3, 7, 1));
    assert_eq!(words.iter().filter(|word| **word != 0).count(), 8, "nothing else");
}

/// Words of a ring, with records from `at` on, which may go on at its beginning.
fn ring_with(words: usize, at: u64, records: &[&[u64]]) -> (Vec<AtomicU64>, u64) {
    let data: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(u64::MAX)).collect();
    let all = records.concat();
    for (n, word) in all.iter().enumerate() {
        data[(at as usize / 8 + n) % words].store(*word, Ordering::Relaxed);
    }
    (data, at.wrapping_add(all.len() as u64 * 8))
}

const fn header(kind: u32, size: u64) -> u64 {
    kind as u64 | 0x4002 << 32 | size << 48
}

fn read(data: &[AtomicU64], tail: u64, head: u64) -> (Vec<(u64, u64)>, u64) {
    let mut found = Vec::new();
    let lost = records(data, tail, head, &mut |ns, addr| found.push((ns, addr)));
    (found, lost)
}

#[test]
fn records_are_read_wherever_they_lie() {
    let samples: [&[u64]; 5] = [
        &[header(9, 24), 1, 0x1000],
        // More than was asked for, of another kind, and a message of loss.
        &[header(9, 32), 2, 0x2000, 77],
        &[header(3, 16), 5],
        &[header(2, 24), 9, 41],
        &[header(9, 24), 3, 0x3000],
    ];
    // At each place of a small ring, and where the count of bytes begins anew.
    for at in (0..40 * 8).step_by(8).chain([u64::MAX - 7, u64::MAX - 31, u64::MAX - 63]) {
        let (data, head) = ring_with(32, at, &samples);
        assert_eq!(read(&data, at, head), (vec![(1, 0x1000), (2, 0x2000), (3, 0x3000)], 41), "from {at:#x}");
        assert_eq!(read(&data, head, head), (vec![], 0));
    }
}

#[test]
fn nothing_is_believed_of_a_ring() {
    let good: &[u64] = &[header(9, 24), 1, 0x1000];
    for (bad, what) in [
        ([header(9, 0), 2, 2], "no length"),
        ([header(9, 4), 2, 2], "shorter than its head"),
        ([header(9, 20), 2, 2], "words in parts"),
        ([header(9, 32), 2, 2], "beyond what was written"),
        ([header(9, 0xfff8), 2, 2], "longer than the ring"),
    ] {
        let (data, head) = ring_with(32, 64, &[good, &bad]);
        assert_eq!(read(&data, 64, head), (vec![(1, 0x1000)], 1), "{what}");
    }
    // A sample without an address, and a loss without a number.
    let (data, head) = ring_with(32, 0, &[&[header(9, 16), 1], &[header(2, 8)], good]);
    assert_eq!(read(&data, 0, head), (vec![(1, 0x1000)], 0));
    let (data, head) = ring_with(32, 0, &[&[header(2, 24), 0, u64::MAX], &[header(2, 24), 0, 9]]);
    assert_eq!(read(&data, 0, head), (vec![], u64::MAX));
    // The place makes no sense.
    let (data, head) = ring_with(32, 0, &[good]);
    for head in [head - 4, head + 256, 33 * 8, u64::MAX, u64::MAX - 7] {
        let (found, lost) = read(&data, 0, head);
        assert!(found.len() <= 1 && lost == 1, "{head:#x}: {found:?}, {lost}");
    }
    assert_eq!(read(&data, 24, 0).1, 1, "backwards");
    assert_eq!(read(&[], 0, 8), (vec![], 1));
    // Whatever it holds, it comes to an end.
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..20_000 {
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 20
        };
        let data: Vec<AtomicU64> =
            (0..16).map(|_| AtomicU64::new(header((next() % 12) as u32, next() % 5 * 8) | (next() % 2))).collect();
        let (tail, written) = (next(), next() % 200);
        assert!(read(&data, tail, tail + written).0.len() <= 16);
    }
}

/// Pages of scratch memory that are not there until they are touched.
struct Scratch(Own, u64);

impl Scratch {
    fn new(pages: u64) -> Scratch {
        let own = Own::new((pages * PAGE) as usize).unwrap();
        // SAFETY: changes no byte.
        let _ = unsafe { vm::madvise(own.base().as_ptr() as u64, pages * PAGE, advice::NOHUGEPAGE) };
        Scratch(own, pages)
    }
    fn page(&self, n: u64) -> Page {
        Page::containing(self.0.base().as_ptr() as u64).plus(n)
    }
    fn touch(&self, n: u64) {
        // SAFETY: a byte of the test's own memory.
        unsafe { self.0.base().as_ptr().wrapping_add((n * PAGE) as usize).write_volatile(1) };
    }
    /// None is there any more.
    fn clear(&self) {
        // SAFETY: memory of the test, whose bytes nobody needs.
        unsafe { vm::madvise(self.0.base().as_ptr() as u64, self.1 * PAGE, advice::DONTNEED) }.unwrap();
    }
    fn of(&self, found: &BTreeSet<u64>) -> Vec<u64> {
        let first = self.page(0).0;
        found.range(first..first + self.1).map(|page| page - first).collect()
    }
}

/// Tests that count faults come one after the other: after a fork each write faults once more.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: StdMutex<()> = StdMutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Faults of a thread. `None`: it may not be, which is said.
fn faults_of(thread: u32) -> Option<Ring> {
    // One for each thread of each test, and some to spare.
    if rings_most(huge::limit(RLIMIT_MEMLOCK)) < 48 {
        println!("skipped: samples of loads: less than 6 MiB may be locked (RLIMIT_MEMLOCK)");
        return None;
    }
    match FAULTS.open(thread) {
        Ok((ring, _)) => Some(ring),
        Err(why) => {
            println!("skipped: {}", Lack::Refused(FAULTS.source, why));
            None
        }
    }
}

/// The pages that a ring tells of, and how much was lost.
fn taken(ring: &mut Ring) -> (BTreeSet<u64>, u64) {
    let (mut found, mut latest_ns) = (BTreeSet::new(), 0);
    let lost = ring.take(&mut |ns, addr| {
        found.insert(addr / PAGE);
        latest_ns = ns.max(latest_ns);
    });
    // By the clock that is asked for: the kernel's own begins elsewhere.
    assert!(latest_ns < clock::by_syscall() + 1_000_000, "a sample of {latest_ns}");
    (found, lost)
}

#[test]
fn a_ring_tells_what_a_thread_has_touched_again_and_again() {
    let _alone = alone();
    let Some(mut ring) = faults_of(raw::gettid()) else { return };
    let scratch = Scratch::new(100);
    // Of a ring for 170 samples it goes around many times.
    for round in 0..20 {
        scratch.clear();
        taken(&mut ring);
        (round..100).for_each(|n| scratch.touch(n));
        let (found, lost) = taken(&mut ring);
        assert_eq!((scratch.of(&found), lost), ((round..100).collect(), 0), "round {round}");
        // What is there is no fault.
        (round..100).for_each(|n| scratch.touch(n));
        assert_eq!(scratch.of(&taken(&mut ring).0), NONE);
    }
}

#[test]
fn what_a_full_ring_has_lost_is_counted() {
    let _alone = alone();
    let Some(mut ring) = faults_of(raw::gettid()) else { return };
    let scratch = Scratch::new(500);
    taken(&mut ring);
    (0..400).for_each(|n| scratch.touch(n));
    let (first, _) = taken(&mut ring);
    let first = scratch.of(&first);
    assert!((100..=170).contains(&first.len()), "{} samples in a ring", first.len());
    assert!(first.iter().copied().eq(0..first.len() as u64), "the first ones: {first:?}");
    (400..500).for_each(|n| scratch.touch(n));
    let (then, lost) = taken(&mut ring);
    assert_eq!(scratch.of(&then), (400..500).collect::<Vec<_>>(), "it goes on");
    let missing = 400 - first.len() as u64;
    assert!((missing..missing + 50).contains(&lost), "{lost} are said to be lost, and {missing} are missing");
}

#[test]
fn an_event_may_need_another_beside_it() {
    let _alone = alone();
    let both = Event { beside: Some([3, 0, 0]), ..FAULTS };
    let Some(_) = faults_of(raw::gettid()) else { return };
    let (mut ring, beside) = both.open(raw::gettid()).unwrap();
    let scratch = Scratch::new(10);
    (0..10).for_each(|n| scratch.touch(n));
    assert_eq!(scratch.of(&taken(&mut ring).0).len(), 10, "both descriptors are closed");
    assert_eq!(beside.map(|beside| beside.pages), Some(0));
}

#[test]
fn each_thread_has_a_ring_of_its_own() {
    let _alone = alone();
    const THREADS: u64 = 3;
    let Some(_) = faults_of(raw::gettid()) else { return };
    let (barrier, scratch) = (Barrier::new(THREADS as usize + 1), Scratch::new(THREADS * 32));
    std::thread::scope(|scope| {
        let (barrier, scratch) = (&barrier, &scratch);
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    barrier.wait();
                    barrier.wait();
                    (thread * 32..(thread + 1) * 32).for_each(|n| scratch.touch(n));
                    barrier.wait();
                    barrier.wait();
                })
            })
            .collect();
        barrier.wait();
        let mut sampling = Sampling::new(vec![FAULTS], 0);
        let listed = sampling.list(|_| false);
        barrier.wait();
        barrier.wait();
        let threads: BTreeSet<u32> = sampling.threads.iter().map(|sampled| sampled.thread).collect();
        let found: Vec<_> =
            sampling.threads.iter_mut().flat_map(|sampled| &mut sampled.rings).map(|ring| taken(ring).0).collect();
        barrier.wait();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        match listed {
            Err(lack) => println!("skipped: {lack}"),
            Ok(()) => {
                assert!(threads.len() as u64 > THREADS && threads.contains(&raw::gettid()), "{threads:?}");
                let mut seen: Vec<Vec<u64>> = found.iter().map(|found| scratch.of(found)).filter(|of| !of.is_empty()).collect();
                seen.sort();
                assert_eq!(seen, (0..THREADS).map(|n| (n * 32..(n + 1) * 32).collect()).collect::<Vec<Vec<_>>>());
                // They have ended, and their rings go as soon as the kernel does not know them any more. (Other tests may have begun threads meanwhile.)
                let mut left = threads.clone();
                for _ in 0..1000 {
                    sampling.list_again_ns = 0;
                    sampling.list(|_| false).unwrap();
                    left = sampling.threads.iter().map(|sampled| sampled.thread).collect();
                    if threads.difference(&left).count() as u64 >= THREADS {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                assert!(
                    left.contains(&raw::gettid()) && threads.difference(&left).count() as u64 >= THREADS,
                    "{threads:?}: {left:?}"
                );
            }
        }
    });
}

#[test]
fn rings_are_bounded() {
    let _alone = alone();
    let Some(_) = faults_of(raw::gettid()) else { return };
    let mut sampling = Sampling::new(vec![FAULTS; RINGS_MOST + 20], 0);
    // What the kernel refuses beyond what it allows to lock is no error while there is something.
    assert_eq!(sampling.list(|_| false), Ok(()));
    let rings: usize = sampling.threads.iter().map(|sampled| sampled.rings.len()).sum();
    assert!((1..=RINGS_MOST).contains(&rings), "{rings} rings");
    let mut pairs = Sampling::new(vec![Event { beside: Some([3, 0, 0]), ..FAULTS }; RINGS_MOST], 0);
    assert_eq!(pairs.list(|_| false), Ok(()));
    assert!(pairs.threads.iter().map(|sampled| sampled.rings.len()).sum::<usize>() <= RINGS_MOST);
    // The kernel counts them with what io_uring and sends without copies lock: of that the program needs all but a little.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let locked = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
    let locked = locked.split_whitespace().next().unwrap().parse().unwrap_or(u64::MAX);
    assert!(rings as u64 * 2 * PAGE <= locked / LOCKED_PART, "{rings} rings of {locked} bytes that may be locked");
}

/// Sets how much may be locked, as far as that is allowed. Returns how much it was.
fn allow_to_lock(bytes: u64) -> u64 {
    let (mut old, at) = ([0u64; 2], |limits: &mut [u64; 2]| limits.as_mut_ptr().expose_provenance() as u64);
    // SAFETY: the kernel writes two numbers.
    unsafe { raw::syscall_result(nr::PRLIMIT64, [0, RLIMIT_MEMLOCK, 0, at(&mut old), 0, 0]) }.unwrap();
    let mut new = [bytes.min(old[1]), old[1]];
    // SAFETY: the kernel reads two numbers.
    unsafe { raw::syscall_result(nr::PRLIMIT64, [0, RLIMIT_MEMLOCK, at(&mut new), 0, 0, 0]) }.unwrap();
    old[0]
}

#[test]
fn rings_go_when_less_may_be_locked() {
    let _alone = alone();
    let Some(_) = faults_of(raw::gettid()) else { return };
    let mut sampling = Sampling::new(vec![FAULTS; 4], 0);
    let mut rings = |locked: u64| {
        let before = allow_to_lock(locked);
        sampling.list_again_ns = 0;
        let listed = sampling.list(|thread| thread != raw::gettid());
        allow_to_lock(before);
        (listed, sampling.threads.iter().map(|sampled| sampled.rings.len()).sum::<usize>())
    };
    assert_eq!(rings(u64::MAX), (Ok(()), 4));
    assert_eq!(rings(3 * LOCKED_PART * 2 * PAGE), (Ok(()), 3), "three of four");
    assert_eq!(rings(65_536), (Err(Lack::Locked), 0));
}

#[test]
fn what_is_refused_of_one_thread_is_not_asked_of_all() {
    let _alone = alone();
    let Some(_) = faults_of(raw::gettid()) else { return };
    let barrier = Barrier::new(5);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| barrier.wait())).collect();
        let mut sampling = Sampling::new(vec![Event { device: u32::MAX, ..FAULTS }], 0);
        let listed = sampling.list(|_| false);
        barrier.wait();
        workers.into_iter().for_each(|worker| _ = worker.join().unwrap());
        assert!(matches!(listed, Err(Lack::Refused("faults", _))), "{listed:?}");
        assert_eq!(sampling.threads.len(), 1, "each is asked of, once a second while a policy scans");
    });
}

#[test]
fn rings_are_as_many_as_may_be_locked() {
    let rings = [0, 65_536, 131_071, 131_072, 8 << 20, 16 << 20, 17 << 20, u64::MAX].map(rings_most);
    assert_eq!(rings, [0, 0, 0, 1, 64, 128, 128, 128]);
}

/// The thread that the test below samples.
static ONLY: AtomicU32 = AtomicU32::new(0);

#[test]
fn a_page_with_samples_is_watched_and_no_page_is_told_as_unused() {
    let _alone = alone();
    const SECOND: u64 = 1_000_000_000;
    ONLY.store(raw::gettid(), Ordering::Relaxed);
    let samples = Samples::by(|| Ok(vec![FAULTS]), |thread| thread != ONLY.load(Ordering::Relaxed));
    let scratch = Scratch::new(8);
    let mut pages: Vec<Watched> = (0..8).map(|n| Watched { page: scratch.page(n), mark: 7 }).collect();
    let marked = |pages: &[Watched]| -> Vec<u64> { (0..8).filter(|n| pages[*n as usize].mark != 0).collect() };
    let touch = |which: &[u64]| {
        scratch.clear();
        which.iter().for_each(|n| scratch.touch(*n));
    };
    let used = |samples: &Samples, pages: &[Watched]| -> Vec<u64> {
        let mut uses = vec![Use::Unused; 8];
        samples.noted(pages, &mut uses);
        assert!(!uses.contains(&Use::Unused), "{uses:?}");
        (0..8).filter(|n| uses[*n as usize] == Use::Used).collect()
    };
    if let Err(lack) = samples.mark(&mut pages, SECOND) {
        return println!("skipped: {lack}");
    }
    assert_eq!(marked(&pages), NONE, "nothing is known yet");
    touch(&[1, 2, 3]);
    samples.mark(&mut pages, 60 * SECOND).unwrap();
    assert_eq!(marked(&pages), NONE, "one sample promises no other");
    touch(&[2, 3, 4]);
    std::thread::scope(|scope| {
        // Another thread, which is not to be sampled.
        scope.spawn(|| touch(&[1, 2, 3, 4, 5]));
    });
    samples.mark(&mut pages, 60 * SECOND).unwrap();
    assert_eq!(marked(&pages), [2, 3]);
    assert!(are_marks(&pages));
    assert_eq!(used(&samples, &pages), NONE, "not since they are watched");
    touch(&[3, 6]);
    assert_eq!(used(&samples, &pages), [3]);
    assert_eq!(used(&samples, &pages), [3], "whoever asks changes nothing");
    // Two samples, but longer ago than the scan is long.
    std::thread::sleep(std::time::Duration::from_millis(5));
    samples.mark(&mut pages, 1_000_000).unwrap();
    assert_eq!((marked(&pages), are_marks(&pages)), (vec![], false));
    // Nothing stays, and it begins again.
    samples.mark(&mut pages, 60 * SECOND).unwrap();
    assert_eq!(marked(&pages), [2, 3]);
    samples.tend();
    assert!(samples.is_on.load(Ordering::Relaxed), "it was asked just now");
    samples.sampling.with(|place| place.as_mut().unwrap().asked_ns = 1);
    samples.tend();
    assert!(samples.sampling.with(|place| place.is_none()), "nobody has asked for long");
    assert_eq!(used(&samples, &pages), NONE, "marks of before say nothing");
    samples.mark(&mut pages, 60 * SECOND).unwrap();
    assert_eq!((marked(&pages), samples.is_on.load(Ordering::Relaxed)), (vec![], true));
    samples.give_up();
    assert_eq!(samples.mark(&mut pages, SECOND), Err(Lack::Filter));
    assert!(samples.sampling.with(|place| place.is_none()) && !samples.is_on.load(Ordering::Relaxed));
}

#[test]
fn samples_of_another_clock_are_none() {
    let _alone = alone();
    const SECOND: u64 = 1_000_000_000;
    ONLY.store(raw::gettid(), Ordering::Relaxed);
    let Some(_) = faults_of(raw::gettid()) else { return };
    let (mut sampling, scratch) = (Sampling::new(vec![FAULTS], 0), Scratch::new(1));
    sampling.list(|thread| thread != ONLY.load(Ordering::Relaxed)).unwrap();
    // As in a namespace of time whose clock is a second behind the kernel's.
    for (behind_ns, is_known) in [(SECOND, false), (0, true)] {
        scratch.clear();
        scratch.touch(0);
        sampling.take(clock::by_syscall() - behind_ns);
        assert_eq!(sampling.look_up(scratch.page(0)).is_some(), is_known, "{behind_ns} ns behind");
    }
}

#[test]
fn a_forked_child_has_no_ring_and_harms_nothing() {
    let _alone = alone();
    const FORK: u64 = 57;
    const WAIT4: u64 = 61;
    const EXIT_GROUP: u64 = 231;
    let Some(ring) = faults_of(raw::gettid()) else { return };
    let base = ring.base;
    assert!(vm::is_mapped(base));
    // SAFETY: the child makes system calls of its own alone, and ends.
    let child = unsafe { raw::syscall_result(FORK, [0; 6]) }.unwrap();
    if child == 0 {
        let has_none = !vm::is_mapped(base);
        let (flags, access) = (map::PRIVATE | map::ANONYMOUS | map::FIXED, prot::READ | prot::WRITE);
        // SAFETY: nothing is there, as was seen.
        let own = has_none && unsafe { vm::mmap(base, PAGE, access, flags, -1, 0) }.is_ok();
        drop(ring);
        let status = u64::from(!(own && vm::is_mapped(base)));
        loop {
            // SAFETY: ends the child.
            unsafe { raw::syscall(EXIT_GROUP, [status, 0, 0, 0, 0, 0]) };
        }
    }
    let mut status = 1u32;
    // SAFETY: the kernel writes one number.
    unsafe { raw::syscall_retry(WAIT4, [child, (&raw mut status).expose_provenance() as u64, 0, 0, 0, 0]) }.unwrap();
    assert_eq!(status, 0, "the child has the ring, or has unmapped what lay in its place");
    assert!(vm::is_mapped(base));
    drop(ring);
    assert!(!vm::is_mapped(base));
}

/// Puts the calling thread in a filter: these calls have an error.
fn forbid(calls: &[u64]) {
    const PR_SET_SECCOMP: u64 = 22;
    const PR_SET_NO_NEW_PRIVS: u64 = 38;
    const FILTER: u64 = 2;
    const EUCLEAN: u64 = 117;
    // struct sock_filter: the number of the call is loaded, and compared with each; the last two words answer.
    let error = 0x06 | (0x5_0000 | EUCLEAN) << 32;
    let compared = calls.iter().zip((0..calls.len() as u64).rev()).map(|(call, left)| 0x15 | (left + 1) << 16 | call << 32);
    let filter: Vec<u64> = [0x20].into_iter().chain(compared).chain([0x06 | 0x7fff_0000 << 32, error]).collect();
    let program = [filter.len() as u64, filter.as_ptr().expose_provenance() as u64];
    let at = program.as_ptr().expose_provenance() as u64;
    // SAFETY: no memory is involved.
    unsafe { raw::syscall_result(nr::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0]) }.unwrap();
    // SAFETY: the kernel reads what the thread has made just now.
    unsafe { raw::syscall_result(nr::PRCTL, [PR_SET_SECCOMP, FILTER, at, 0, 0, 0]) }.unwrap();
}

#[test]
fn who_is_in_a_filter_makes_no_call_that_it_may_stop() {
    let _alone = alone();
    let lack = std::thread::spawn(|| {
        forbid(&[nr::GETDENTS64, nr::PERF_EVENT_OPEN]);
        Samples::by(|| Ok(vec![FAULTS]), |_| false).mark(&mut [], 1)
    });
    assert_eq!(lack.join().unwrap(), Err(Lack::Filter));
}

#[test]
fn threads_and_filters_are_seen() {
    assert!(threads().unwrap().contains(&raw::gettid()));
    assert!(is_filtered().is_ok());
    // The kernel's workers are left out, by their names.
    let worker = std::thread::Builder::new().name("iou-wrk-1".into()).spawn(|| is_kernels(raw::gettid()));
    assert_eq!((worker.unwrap().join().unwrap(), is_kernels(raw::gettid()), is_kernels(u32::MAX)), (true, false, false));
}

#[test]
fn lacks_say_what_is_missing() {
    let says = |lack: Lack| lack.to_string();
    assert_eq!(says(Lack::NoEvent), "the processor shows no samples of loads");
    assert!(
        says(Lack::Refused("PEBS", Errno::EACCES)).contains("PEBS")
            && says(Lack::Refused("PEBS", Errno::EACCES)).contains("CAP_PERFMON")
    );
    assert_eq!(says(Lack::Refused("IBS", Errno::EINVAL)), format!("samples of loads (IBS): {}", Errno::EINVAL));
    assert!(says(Lack::Filter).contains("filter") && says(Lack::Locked).contains("RLIMIT_MEMLOCK"));
    // Whatever this machine has, it is said in a line.
    match try_out() {
        Ok(source) => assert!(["PEBS", "IBS"].contains(&source)),
        Err(why) => assert!(why.contains("samples of loads"), "{why}"),
    }
}
