//! The pool as evictors and faults use it, against a map of what each slot holds.

use super::*;
use crate::faulty::{FaultConfig, Faulty, Kind};
use crate::ram::RamSpace;
use farshore_config::Time;
use farshore_core::seams::NoneFree;
use farshore_random::{Rng, mix};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;

/// The smallest pool there is: 2 MiB.
const SMALL: Size = Size::mib(2);
const SLOTS: u64 = 2048;

fn slot(number: u64) -> Slot {
    Slot::new(number).expect("slot 0 means no slot")
}

/// Pages of all sorts: one word repeated, half noise, all noise.
fn page(number: u64, version: u64) -> PageBuf {
    let mut random = Rng::new(mix(number) ^ version);
    let mut page = PageBuf::ZERO;
    let noise = match (number / 7 + version) % 5 {
        0 => {
            codec::repeat(random.bits(), &mut page);
            0
        }
        1 => 4096,
        n => 500 * n as usize,
    };
    random.fill(&mut page.0[..noise]);
    page
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        near: u64,
        count: u64,
        queue: usize,
    },
    Free {
        near: u64,
        count: u64,
    },
    Read {
        near: u64,
        count: u64,
    },
    Tend {
        queue: usize,
    },
    /// Pages leave whose slots have them.
    Offer {
        near: u64,
        count: u64,
        queue: usize,
    },
    /// So many sixteenths are worth it from now on.
    Worth {
        units: u64,
    },
    Reap {
        queue: usize,
        wait: bool,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let write = (1..SLOTS, 1u64..64, 0usize..2).prop_map(|(near, count, queue)| Op::Write { near, count, queue });
    let free = (1..SLOTS, 1u64..128).prop_map(|(near, count)| Op::Free { near, count });
    let read = (1..SLOTS, 1u64..16).prop_map(|(near, count)| Op::Read { near, count });
    let tend = (0usize..2).prop_map(|queue| Op::Tend { queue });
    let offer = (1..SLOTS, 1u64..64, 0usize..2).prop_map(|(near, count, queue)| Op::Offer { near, count, queue });
    let worth = (0u64..15).prop_map(|units| Op::Worth { units });
    let reap = (0usize..2, any::<bool>()).prop_map(|(queue, wait)| Op::Reap { queue, wait });
    prop::collection::vec(prop_oneof![5 => write, 2 => free, 3 => read, 3 => tend, 2 => reap, 2 => offer, 1 => worth], 1..200)
}

/// What the engine knows about the slots' contents.
#[derive(Default)]
struct Model {
    /// The version that each slot was last written with.
    holds: HashMap<u64, u64>,
    /// Slots that are being written.
    busy: HashMap<u64, ()>,
    flights: HashMap<u64, (u64, u64, Vec<PageBuf>)>,
    failed: usize,
}

/// The free slots, as the engine reports them.
struct Unused<'m>(&'m RefCell<Model>);

impl FreeSlots for Unused<'_> {
    fn free_of(&self, first: u64) -> u64 {
        (0..64).filter(|n| self.0.borrow().is_unused(first + n)).fold(0, |bits, n| bits | 1 << n)
    }

    fn unneeded_of(&self, first: u64) -> u64 {
        self.free_of(first)
    }
}

impl Model {
    fn is_unused(&self, number: u64) -> bool {
        !self.holds.contains_key(&number) && !self.busy.contains_key(&number)
    }

    fn landed(&mut self, tag: u64, result: Result<(), IoError>) {
        let (first, version, pages) = self.flights.remove(&tag).expect("one completion for each write");
        for number in first..first + pages.len() as u64 {
            self.busy.remove(&number);
            if result.is_ok() {
                self.holds.insert(number, version);
            }
        }
        self.failed += usize::from(result.is_err());
    }
}

/// Runs `ops` as evictors and faults would; returns the model at the end.
fn run(backend: &Compressed, ops: &[Op]) -> Model {
    let model = RefCell::new(Model::default());
    let mut queues = [backend.queue(3).unwrap(), backend.queue(3).unwrap()];
    let check = |number: u64| {
        let mut back = PageBuf::ZERO;
        backend.read(slot(number), &mut back).unwrap();
        assert!(back.0 == page(number, model.borrow().holds[&number]).0, "slot {number}");
    };
    for (version, op) in (1..).zip(ops) {
        match *op {
            Op::Write { near, count, queue } => {
                let free = |number: &u64| model.borrow().is_unused(*number);
                let Some(first) = (near..SLOTS).find(|number| free(number)) else { continue };
                let count = (first..(first + count).min(SLOTS)).take_while(|number| free(number)).count() as u64;
                let pages: Vec<PageBuf> = (first..first + count).map(|number| page(number, version)).collect();
                // SAFETY: the pages stay in the model until the completion; their heap memory does not move.
                if unsafe { queues[queue].start_write(slot(first), pages.as_ptr(), count as u32, version) }.is_ok() {
                    let mut model = model.borrow_mut();
                    model.busy.extend((first..first + count).map(|number| (number, ())));
                    model.flights.insert(version, (first, version, pages));
                }
            }
            Op::Free { near, count } => (near..near + count).for_each(|number| _ = model.borrow_mut().holds.remove(&number)),
            Op::Read { near, count } => {
                let known: Vec<u64> =
                    (near..SLOTS).filter(|number| model.borrow().holds.contains_key(number)).take(count as usize).collect();
                known.iter().for_each(|&number| check(number));
                let run =
                    known.iter().zip(known.first().copied().unwrap_or(0)..).take_while(|(number, n)| **number == *n).count();
                let mut back = vec![PageBuf::ZERO; run];
                if run > 0 {
                    backend.read_run(slot(known[0]), &mut back).unwrap();
                }
                for (number, back) in known.iter().zip(&back) {
                    assert!(back.0 == page(*number, model.borrow().holds[number]).0, "slot {number} in a run");
                }
            }
            Op::Offer { near, count, queue } => {
                let held = |number: &u64| model.borrow().holds.get(number).copied();
                for number in (near..SLOTS).filter(|number| held(number).is_some()).take(count as usize) {
                    queues[queue].offer(slot(number), &page(number, held(&number).unwrap_or(0)), &mut || true);
                }
            }
            Op::Worth { units } => {
                if let Some(worth) = &backend.pool.worth {
                    worth.set_units(units);
                    backend.allow_memory(2 << 20);
                }
            }
            Op::Tend { queue } => queues[queue].tend(&Unused(&model), &FaultsSeen::default()),
            Op::Reap { queue, wait } => queues[queue].reap(wait, &mut |tag, result| model.borrow_mut().landed(tag, result)),
        }
    }
    for queue in &mut queues {
        while queue.in_flight() > 0 {
            queue.reap(true, &mut |tag, result| model.borrow_mut().landed(tag, result));
        }
    }
    assert!(model.borrow().flights.is_empty());
    let known: Vec<u64> = model.borrow().holds.keys().copied().collect();
    known.into_iter().for_each(check);
    backend.pool.assert_valid();
    for _ in 0..SLOTS / 512 {
        queues[0].tend(&Unused(&model), &FaultsSeen::default());
    }
    drop(queues);
    backend.pool.assert_valid();
    assert!(backend.counters().pages.load(core::sync::atomic::Ordering::Relaxed) <= model.borrow().holds.len() as u64);
    model.into_inner()
}

fn ram(latency: Option<Time>) -> AnyBackend {
    AnyBackend::Ram(RamSpace::open(Some(Size::mib(8)), latency).unwrap())
}

fn kind() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::Lz4), Just(Compression::Zstd)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn alone(kind in kind(), ops in ops()) {
        let pool = Compressed::open(kind, Some(Size::mib(16)), None).unwrap();
        prop_assert_eq!(run(&pool, &ops).failed, 0);
    }

    #[test]
    fn alone_and_too_small(kind in kind(), ops in ops()) {
        let pool = Compressed::open(kind, Some(SMALL), None).unwrap();
        run(&pool, &ops);
    }

    #[test]
    fn over_another_space(kind in kind(), delayed: bool, allowed in 0u64..32, ops in ops()) {
        let pool = Compressed::open(kind, Some(SMALL), Some(ram(delayed.then_some(Time(20_000))))).unwrap();
        pool.allow_memory(allowed << 16);
        prop_assert_eq!(run(&pool, &ops).failed, 0);
    }

    #[test]
    fn as_large_as_it_is_worth(delayed: bool, ops in ops()) {
        let pool = Compressed::open(Compression::Auto, Some(SMALL), Some(ram(delayed.then_some(Time(20_000))))).unwrap();
        prop_assert_eq!(run(&pool, &ops).failed, 0);
    }

    #[test]
    fn as_large_as_it_is_worth_over_a_space_that_fails(seed: u64, ops in ops()) {
        let rates = vec![(Kind::WriteError, 0.2), (Kind::Full, 0.1), (Kind::ShortWrite, 0.1), (Kind::Delay, 0.3)];
        let config = FaultConfig { seed, rates, delay_time: Time(20_000), ..FaultConfig::default() };
        let lower = AnyBackend::Faulty(Box::new(Faulty::new(ram(None), &config)));
        run(&Compressed::open(Compression::Auto, Some(SMALL), Some(lower)).unwrap(), &ops);
    }

    #[test]
    fn over_a_space_that_fails(kind in kind(), seed: u64, ops in ops()) {
        let rates = vec![(Kind::WriteError, 0.2), (Kind::Full, 0.1), (Kind::ShortWrite, 0.1), (Kind::Delay, 0.3)];
        let config = FaultConfig { seed, rates, delay_time: Time(20_000), ..FaultConfig::default() };
        let lower = AnyBackend::Faulty(Box::new(Faulty::new(ram(None), &config)));
        let pool = Compressed::open(kind, Some(SMALL), Some(lower)).unwrap();
        pool.allow_memory(8 << 16);
        run(&pool, &ops);
    }
}

#[test]
fn the_oldest_move_to_the_tier_below_when_it_is_full() {
    let pool = Compressed::open(Compression::Lz4, Some(SMALL), Some(ram(None))).unwrap();
    let mut queue = pool.queue(4).unwrap();
    // The pages are compressed to a quarter: two thirds of them fill the memory that the pool may use.
    pool.allow_memory(1 << 20);
    for first in (1..1537).step_by(32) {
        let pages: Vec<PageBuf> = (first..first + 32).map(half).collect();
        written(&mut queue, first, &pages);
        queue.tend(&NoneFree, &FaultsSeen::default());
    }
    let counters = pool.counters();
    assert!(count(&counters.moved) > 0 && count(&counters.pages) > 0, "{counters:?}");
    assert_eq!(pool.pool.read(slot(1), &mut PageBuf([0; 4096]), &mut Unpacked::default()), None, "the oldest is below");
    assert_eq!(pool.pool.read(slot(1536), &mut PageBuf([0; 4096]), &mut Unpacked::default()), Some(true), "the newest is here");
    for number in 1..1537 {
        let mut back = PageBuf::ZERO;
        pool.read(slot(number), &mut back).unwrap();
        assert!(back.0 == half(number).0, "slot {number}");
    }
    drop(queue);
    pool.pool.assert_valid();
}

#[test]
fn memory_goes_back_when_less_is_allowed_while_pages_come() {
    let pool = Compressed::open(Compression::Lz4, Some(SMALL), Some(ram(None))).unwrap();
    let mut queue = pool.queue(4).unwrap();
    // The same 1024 slots over and over. Half of them fill the memory that may be used at first, and a batch has more than are
    // moved below after it.
    let mut rounds = |count: u64| {
        for first in (0..count).flat_map(|_| (1..1025).step_by(128)) {
            let pages: Vec<PageBuf> = (first..first + 128).map(half).collect();
            written(&mut queue, first, &pages);
            queue.tend(&NoneFree, &FaultsSeen::default());
        }
    };
    pool.allow_memory(1 << 20);
    rounds(2);
    assert!(pool.bytes().1 > 1 << 19, "{} bytes are used", pool.bytes().1);
    pool.allow_memory(256 << 10);
    rounds(20);
    assert!(pool.bytes().1 <= 256 << 10, "{} bytes are used where {} may be", pool.bytes().1, 256 << 10);
    for number in 1..1025 {
        let mut back = PageBuf::ZERO;
        pool.read(slot(number), &mut back).unwrap();
        assert!(back.0 == half(number).0, "slot {number}");
    }
}

#[test]
fn what_is_below_too_goes_without_a_write() {
    let (pool, mut queue) = worth(0);
    let pages: Vec<PageBuf> = (1..513).map(half).collect();
    // Worth nothing at first: all go below.
    (0..512).step_by(32).for_each(|first| written(&mut queue, 1 + first as u64, &pages[first..first + 32]));
    assert_eq!((count(&pool.counters().pages), pool.bytes().1), (0, 0));
    set_worth(&pool, 12);
    let offer = |queue: &mut CompressedQueue| (1..513).for_each(|n| queue.offer(slot(n), &half(n), &mut || true));
    offer(&mut queue);
    assert!(count(&pool.counters().pages) >= 500, "{:?}", pool.counters());
    // What is fetched is dropped; and what is offered once more is there already, or comes back.
    let mut back = PageBuf::ZERO;
    (1..257).for_each(|n| pool.read(slot(n), &mut back).unwrap());
    queue.tend(&NoneFree, &FaultsSeen::default());
    assert!((200..=257).contains(&count(&pool.counters().pages)), "{:?}", pool.counters());
    offer(&mut queue);
    // Worth nothing again.
    set_worth(&pool, 0);
    (0..4).for_each(|_| queue.tend(&NoneFree, &FaultsSeen::default()));
    assert_eq!((count(&pool.counters().pages), count(&pool.counters().moved), queue.copies_under_way()), (0, 0, 0));
    for n in 1..513 {
        pool.read(slot(n), &mut back).unwrap();
        assert!(back.0 == half(n).0, "slot {n}");
    }
    drop(queue);
    pool.pool.assert_valid();
}

/// Writes pages side by side, and waits.
fn written(queue: &mut CompressedQueue, first: u64, pages: &[PageBuf]) {
    // SAFETY: the pages live until the completion is reaped below.
    unsafe { queue.start_write(slot(first), pages.as_ptr(), pages.len() as u32, 1) }.unwrap();
    let mut done = 0;
    while done == 0 {
        queue.reap(true, &mut |_, result| {
            assert_eq!(result, Ok(()));
            done += 1;
        });
    }
}

/// A pool that is worth so many units of 2 MiB.
fn worth(units: u64) -> (Compressed, CompressedQueue) {
    let pool = Compressed::open(Compression::Auto, Some(SMALL), Some(ram(None))).unwrap();
    let queue = pool.queue(4).unwrap();
    set_worth(&pool, units);
    (pool, queue)
}

fn set_worth(pool: &Compressed, units: u64) {
    pool.pool.worth.as_ref().unwrap().set_units(units);
    pool.allow_memory(2 << 20);
}

/// A page that shrinks to a half or less.
fn half(number: u64) -> PageBuf {
    page(number, (2 + 5 * number - number / 7 % 5) % 5 + 5)
}

fn count(counter: &core::sync::atomic::AtomicU64) -> u64 {
    counter.load(core::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_copy_to_the_tier_below_is_no_fetch() {
    let (pool, mut queue) = worth(4);
    for first in (1..1025).step_by(32) {
        written(&mut queue, first, &(first..first + 32).map(half).collect::<Vec<_>>());
        queue.tend(&NoneFree, &FaultsSeen::default());
    }
    let fetches = || pool.pool.worth.as_ref().unwrap().fetches();
    assert!(count(&pool.counters().moved) > 0 && fetches() == 0, "{:?}, {} fetches", pool.counters(), fetches());
    pool.read(slot(1), &mut PageBuf([0; 4096])).unwrap();
    assert_eq!(fetches(), 1);
}

#[test]
fn what_is_below_too_is_not_written_there_again() {
    let (pool, mut queue) = worth(0);
    let pages: Vec<PageBuf> = (1..33).map(half).collect();
    written(&mut queue, 1, &pages);
    set_worth(&pool, 14);
    // Every other page is nowhere else, and older; those between them are below too.
    (1..33).step_by(2).for_each(|n| written(&mut queue, n, core::slice::from_ref(&pages[n as usize - 1])));
    (2..33).step_by(2).for_each(|n| queue.offer(slot(n), &half(n), &mut || true));
    assert_eq!(count(&pool.counters().pages), 32);
    set_worth(&pool, 0);
    for _ in 0..40 {
        queue.tend(&NoneFree, &FaultsSeen::default());
        while queue.in_flight() > 0 {
            queue.reap(true, &mut |_, _| {});
        }
    }
    assert_eq!((count(&pool.counters().pages), count(&pool.counters().moved)), (0, 16), "{:?}", pool.counters());
}

#[test]
fn a_page_without_room_and_a_smaller_pool_take_few_others_away() {
    let (pool, mut queue) = worth(0);
    let pages: Vec<PageBuf> = (1..1025).map(half).collect();
    (1..1025).step_by(128).for_each(|first| written(&mut queue, first, &pages[first as usize - 1..first as usize + 127]));
    set_worth(&pool, 8);
    (1..1025).for_each(|n| queue.offer(slot(n), &half(n), &mut || true));
    // So full that there is no room for some.
    let before = count(&pool.counters().pages);
    assert!((400..1000).contains(&before), "{:?}", pool.counters());
    (0..10).for_each(|_| queue.tend(&NoneFree, &FaultsSeen::default()));
    let after = count(&pool.counters().pages);
    assert!(after >= before * 3 / 4, "{after} of {before} pages are left");
    // An eighth less.
    set_worth(&pool, 7);
    (0..50).for_each(|_| queue.tend(&NoneFree, &FaultsSeen::default()));
    let (_, used) = pool.bytes();
    assert!(used <= 7 << 17, "{used} bytes are used");
    assert!(count(&pool.counters().pages) >= before * 5 / 8, "{} of {before} pages are left", count(&pool.counters().pages));
}

#[test]
fn pages_whose_frames_were_not_withheld_take_no_memory() {
    let (pool, mut queue) = worth(0);
    assert!(!pool.takes_memory(), "it is worth nothing");
    set_worth(&pool, 12);
    assert!(pool.takes_memory());
    let pages: Vec<PageBuf> = (1..33).map(half).collect();
    queue.may_keep(false);
    written(&mut queue, 1, &pages);
    (1..33).for_each(|n| queue.offer(slot(n), &half(n), &mut || true));
    assert_eq!((count(&pool.counters().pages), pool.bytes().1), (0, 0), "{:?}", pool.counters());
    queue.may_keep(true);
    written(&mut queue, 1, &pages[..16]);
    (17..33).for_each(|n| queue.offer(slot(n), &half(n), &mut || n % 2 == 0));
    assert_eq!(count(&pool.counters().pages), 24, "of those that are offered, the half that is right: {:?}", pool.counters());
    let mut back = PageBuf::ZERO;
    for n in 1..33 {
        pool.read(slot(n), &mut back).unwrap();
        assert!(back.0 == half(n).0, "slot {n}");
    }
}

#[test]
fn what_was_noise_says_nothing_of_the_next_page() {
    let (pool, mut queue) = worth(14);
    let noise = page(7, 0);
    queue.offer(slot(5), &noise, &mut || true);
    assert_eq!(count(&pool.counters().pages), 0);
    written(&mut queue, 5, &[half(5)]);
    assert_eq!(count(&pool.counters().pages), 1, "{:?}", pool.counters());
}

#[test]
fn sizes_have_limits() {
    assert!(matches!(Compressed::open(Compression::Lz4, Some(Size::kib(4)), None), Err(OpenError::TooSmall { .. })));
    let pool = Compressed::open(Compression::Zstd, Some(Size::mib(64)), None).unwrap();
    assert_eq!((pool.name(), pool.spaces(), pool.bytes()), ("ram:zstd,size=64M", 1, (64 << 20, 0)));
}

/// A pool over a file whose writes are acknowledged a second later, with the oldest of its pages, in extent 1 and behind, on
/// their way there.
fn copying() -> (Compressed, CompressedQueue) {
    copying_from(512)
}

/// The same, with pages of the slots from `first` on.
fn copying_from(first: u64) -> (Compressed, CompressedQueue) {
    let spec = SwapSpec::Dir(std::env::temp_dir());
    let file = AnyBackend::open_with(&[spec], false, false, None, &mut |_| {}).unwrap();
    let slow = FaultConfig { rates: vec![(Kind::Delay, 1.0)], delay_time: Time(1_000_000_000), ..FaultConfig::default() };
    let pool = Compressed::open(Compression::Lz4, Some(SMALL), Some(file.with_faults(&slow))).unwrap();
    let mut queue = pool.queue(4).unwrap();
    let pages: Vec<PageBuf> = (first..first + 200).map(half).collect();
    // SAFETY: the pages live until the completion is reaped below.
    unsafe { queue.start_write(slot(first), pages.as_ptr(), 200, 1) }.unwrap();
    let mut done = 0;
    while done == 0 {
        queue.reap(true, &mut |_, _| done += 1);
    }
    assert!(queue.copies_under_way() == 0 && pool.pool.has(slot(first)));
    // The pool has more than it may use by now.
    pool.allow_memory(2 << 16);
    queue.tend(&NoneFree, &FaultsSeen::default());
    assert!(queue.copies_under_way() > 0);
    (pool, queue)
}

/// Slots 512 to 1023, and slots elsewhere.
const IN_EXTENT_1: &dyn Fn(Slot) -> bool = &|slot| slot.number() / 512 == 1;
const ELSEWHERE: &dyn Fn(Slot) -> bool = &|slot| slot.number() / 512 != 1;

#[test]
fn room_is_not_given_back_while_a_copy_is_on_its_way_there() {
    let (pool, mut queue) = copying();
    // All pages of the extent were freed meanwhile, and the engine has taken it out: its slots look used.
    assert_eq!(pool.give_back(slot(512), 512), Err(LATER));
    assert!(!pool.is_quiet(IN_EXTENT_1) && pool.is_quiet(ELSEWHERE));
    // Another extent may go.
    assert_eq!(pool.give_back(slot(1024), 512), Ok(()));
    while queue.in_flight() > 0 {
        queue.reap(true, &mut |_, _| {});
    }
    assert!(pool.is_quiet(IN_EXTENT_1));
    assert_eq!(pool.give_back(slot(512), 512), Ok(()));
    pool.pool.assert_valid();
}

/// The bytes that the space below has of a slot.
fn below(pool: &Compressed, at: u64) -> PageBuf {
    let mut page = PageBuf::ZERO;
    pool.lower().expect("there is a file").read(slot(at), &mut page).unwrap();
    page
}

#[test]
fn a_page_whose_slot_is_being_copied_to_waits_for_the_copy() {
    let (pool, mut queue) = copying();
    assert!(pool.pool.is_copied(slot(512)), "the oldest is copied first");
    let pages = [512, 900].map(|at| half(at + 7));
    for (page, at) in pages.iter().zip([512, 900]) {
        // SAFETY: the pages live until the completions are reaped below.
        unsafe { queue.start_write(slot(at), page, 1, at) }.unwrap();
    }
    // Neither of them has room here.
    assert_eq!((queue.waiting.len(), queue.in_flight()), (1, 2 + queue.copies_under_way() as u32));
    let mut ends = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(true, &mut |tag, result| ends.push((tag, result)));
        assert!(
            !pool.pool.is_copied(slot(512)) || ends.iter().all(|&(tag, _)| tag != 512),
            "it was written while it was copied to"
        );
    }
    ends.sort_unstable_by_key(|&(tag, _)| tag);
    assert_eq!(ends, [(512, Ok(())), (900, Ok(()))]);
    assert!(below(&pool, 512).0 == pages[0].0 && below(&pool, 900).0 == pages[1].0);
    pool.pool.assert_valid();
}

#[test]
fn a_page_waits_for_the_copy_of_another_evictor_which_tells_nobody() {
    let (pool, mut copying) = copying();
    let mut queue = pool.queue(4).unwrap();
    let page = half(519);
    // SAFETY: the page lives until the completion is reaped below.
    unsafe { queue.start_write(slot(512), &raw const page, 1, 7) }.unwrap();
    assert_eq!((queue.waiting.len(), queue.in_flight()), (1, 1));
    let mut ends = Vec::new();
    queue.reap_within(1_000_000, &mut |tag, result| ends.push((tag, result)));
    assert!(ends.is_empty(), "the other evictor has not looked after its copy yet");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while copying.in_flight() > 0 {
                copying.reap(true, &mut |_, _| {});
            }
        });
        queue.reap(true, &mut |tag, result| ends.push((tag, result)));
    });
    assert_eq!(ends, [(7, Ok(()))]);
    assert!(below(&pool, 512).0 == page.0);
    pool.pool.assert_valid();
}

#[test]
fn a_write_around_slots_that_are_being_copied_to_leaves_them_alone() {
    let (pool, mut queue) = copying_from(520);
    let behind = (520..720).find(|&at| !pool.pool.is_copied(slot(at))).expect("not all are copied at once");
    assert!((521..600).contains(&behind), "copies up to {behind}");
    let pages: Vec<PageBuf> = (519..600).map(|at| half(at + 7)).collect();
    // SAFETY: the pages live until the completion is reaped below.
    unsafe { queue.start_write(slot(519), pages.as_ptr(), 81, 1) }.unwrap();
    assert!(queue.waiting.iter().map(|waiting| waiting.slot).eq((520..behind).map(slot)), "{:?}", queue.waiting);
    let mut end = None;
    while queue.in_flight() > 0 {
        queue.reap(true, &mut |_, result| end = Some(result));
    }
    assert_eq!(end, Some(Ok(())));
    for at in 519..600 {
        assert!(below(&pool, at).0 == half(at + 7).0, "slot {at}");
    }
    pool.pool.assert_valid();
}

#[test]
fn no_copy_begins_to_what_is_being_given_back() {
    let (pool, mut queue) = copying();
    while queue.in_flight() > 0 {
        queue.reap(true, &mut |_, _| {});
    }
    assert!(pool.counters().pages.load(core::sync::atomic::Ordering::Relaxed) > 64, "there is more to copy");
    assert_eq!(pool.give_back(slot(512), 512), Ok(()));
    // The extent is still taken out. Whichever pages the pool wants to get rid of, these are not among them.
    pool.allow_memory(0);
    queue.tend(&NoneFree, &FaultsSeen::default());
    assert_eq!((queue.copies_under_way(), pool.is_quiet(IN_EXTENT_1)), (0, true));
    assert_eq!(pool.counters().pages.load(core::sync::atomic::Ordering::Relaxed), 0);
    pool.pool.assert_valid();
}
