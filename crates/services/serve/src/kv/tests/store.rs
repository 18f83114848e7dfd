//! The store against a map, and what it does when memory is short and many threads use it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::kv::protocol::Mode;
use crate::kv::store::{Arithmetic, Changed, Commit, Count, Deleted, NoRoom, Outcome, START, Store};
use farshore_uthread::{Config, Runtime};
use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const ITEM_MAX: usize = 1 << 20;

fn how(mode: Mode) -> Commit {
    Commit { mode, cas: 0, expires: 0, flags: 0, invalidate: false }
}

fn put(store: &Store, key: &[u8], value: &[u8], how: Commit, now: u32) -> Outcome {
    match store.draft(key, value.len(), 7) {
        Ok(mut draft) => {
            // In two pieces, as it comes from a socket.
            let (first, second) = value.split_at(value.len() / 3);
            draft.write(0, first);
            draft.write(first.len(), second);
            store.commit(draft, how, now)
        }
        Err(error) => Outcome::NoRoom(error),
    }
}

fn get(store: &Store, key: &[u8], now: u32) -> Option<(Vec<u8>, u64)> {
    let item = store.find(key, now, true).ok()?;
    let mut value = vec![0; item.length()];
    item.read(0, &mut value);
    assert_eq!(item.flags(), 7);
    Some((value, item.view.cas))
}

#[derive(Clone, Debug)]
enum Step {
    Put(Mode, u8, Vec<u8>, u32),
    Cas(u8, bool, Vec<u8>),
    Get(u8),
    Delete(u8),
    Touch(u8, u32),
    Count(u8, bool, u64),
    Flush(u32),
    Wait(u32),
}

#[derive(Clone, Debug)]
struct Known {
    value: Vec<u8>,
    expires: u32,
    cas: u64,
    used: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..24u8;
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..600),
        (0..u64::MAX).prop_map(|n| n.to_string().into_bytes()),
        (0..120u64).prop_map(|n| n.to_string().into_bytes())
    ];
    let mode = prop::sample::select(vec![Mode::Set, Mode::Add, Mode::Replace, Mode::Append, Mode::Prepend]);
    let life = prop_oneof![Just(0u32), 1..6u32];
    prop_oneof![
        6 => (mode, key.clone(), value.clone(), life.clone()).prop_map(|(mode, key, value, life)| Step::Put(mode, key, value, life)),
        2 => (key.clone(), any::<bool>(), value).prop_map(|(key, right, value)| Step::Cas(key, right, value)),
        4 => key.clone().prop_map(Step::Get),
        1 => key.clone().prop_map(Step::Delete),
        1 => (key.clone(), life).prop_map(|(key, life)| Step::Touch(key, life)),
        3 => (key, any::<bool>(), 0..200u64).prop_map(|(key, up, by)| Step::Count(key, up, by)),
        1 => (0..4u32).prop_map(Step::Flush),
        2 => (1..3u32).prop_map(Step::Wait),
    ]
}

/// A map that forgets as the store does.
#[derive(Default)]
struct Model {
    items: HashMap<u8, Known>,
    flushed: u32,
    flushed_cas: u64,
    flush_at: u32,
    now: u32,
}

impl Model {
    fn find(&mut self, key: u8) -> Option<&mut Known> {
        let (flushed, cas, at, now) = (self.flushed, self.flushed_cas, self.flush_at, self.now);
        let over = |known: &Known| {
            let expired = known.expires != 0 && known.expires <= now;
            expired || known.used <= flushed || known.cas < cas || (at != 0 && at <= now && known.used <= at)
        };
        if self.items.get(&key).is_some_and(over) {
            self.items.remove(&key);
        }
        self.items.get_mut(&key)
    }
}

fn check(store: &Store, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let now = model.now;
    let end = |life: u32| if life == 0 { 0 } else { now + life };
    match step {
        Step::Put(mode, key, value, life) => {
            let expires = end(*life);
            let done = put(store, &[*key], value, Commit { expires, ..how(*mode) }, now);
            let there = model.find(*key).cloned();
            let joined = match (mode, there) {
                (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => Some((value.clone(), expires)),
                (Mode::Append, Some(old)) => Some(([&old.value[..], value].concat(), old.expires)),
                (Mode::Prepend, Some(old)) => Some(([&value[..], &old.value].concat(), old.expires)),
                _ => None,
            };
            match (done, joined) {
                (Outcome::Stored(cas), Some((value, expires))) => {
                    model.items.insert(*key, Known { value, expires, cas, used: now });
                }
                (Outcome::NotStored, None) => {}
                (done, joined) => prop_assert!(false, "{done:?}, expected {joined:?}"),
            }
        }
        Step::Cas(key, right, value) => {
            let there = model.find(*key).map(|known| known.cas);
            let cas = if *right { there.unwrap_or(5) } else { u64::MAX };
            match (put(store, &[*key], value, Commit { cas, ..how(Mode::Cas) }, now), there) {
                (Outcome::Stored(new), Some(old)) => {
                    prop_assert!(*right && new > old);
                    model.items.insert(*key, Known { value: value.clone(), expires: 0, cas: new, used: now });
                }
                (Outcome::Exists, Some(_)) => prop_assert!(!right),
                (Outcome::NotFound, None) => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
        Step::Get(key) => {
            let known = model.find(*key).map(|known| {
                known.used = now;
                (known.value.clone(), known.cas)
            });
            prop_assert_eq!(get(store, &[*key], now), known);
        }
        Step::Delete(key) => {
            let there = model.find(*key).is_some();
            model.items.remove(key);
            prop_assert_eq!(store.delete(&[*key], None, now), if there { Deleted::Gone } else { Deleted::NotFound });
        }
        Step::Touch(key, life) => {
            let found = store.find(&[*key], now, false).ok();
            prop_assert_eq!(found.is_some(), model.find(*key).is_some());
            if let Some(item) = found {
                prop_assert!(store.edit(&item, |view| view.expires = end(*life)).is_some());
                model.items.get_mut(key).unwrap().expires = end(*life);
            }
        }
        Step::Count(key, up, by) => {
            let what = Arithmetic { up: *up, delta: *by, cas: 0, initial: None };
            let changed = store.calculate(&[*key], what, now, |_, _| {});
            let there = model.find(*key);
            let number = there.as_ref().and_then(|known| std::str::from_utf8(&known.value).ok()?.trim_end().parse::<u64>().ok());
            match (changed, there, number) {
                (Changed::Done(change), Some(known), Some(number)) => {
                    let new = if *up { number.wrapping_add(*by) } else { number.saturating_sub(*by) };
                    let mut digits = new.to_string().into_bytes();
                    prop_assert_eq!(change.value.bytes(), &digits[..]);
                    digits.resize(known.value.len().max(digits.len()), b' ');
                    known.value = digits;
                    (known.cas, known.used) = (change.view.cas, now);
                }
                (Changed::NotFound, None, _) => {}
                // The model's idea of a number is narrower than `strtoull`'s: what it does not know is made known.
                (Changed::Done(_), Some(_), None) => {
                    let (value, cas) = get(store, &[*key], now).unwrap();
                    let known = model.items.get_mut(key).unwrap();
                    (known.value, known.cas, known.used) = (value, cas, now);
                }
                (Changed::NoNumber, Some(_), None) => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
        Step::Flush(delay) => {
            store.flush(now + delay, now);
            let last = now + delay - 1;
            let before = std::mem::take(&mut model.flush_at);
            model.flushed = model.flushed.max(if before <= now { before } else { 0 });
            if last <= now {
                (model.flushed, model.flushed_cas) = (model.flushed.max(last), store.next_cas() - 1);
            } else {
                model.flush_at = last;
            }
        }
        Step::Wait(seconds) => model.now += seconds,
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn is_a_map_that_forgets(steps in prop::collection::vec(step(), 1..200)) {
        let store = Store::new(32 << 20, ITEM_MAX).unwrap();
        let mut model = Model { now: START, ..Model::default() };
        for step in &steps {
            check(&store, &mut model, step)?;
        }
        prop_assert_eq!(store.counters.get(Count::Evictions), 0);
    }
}

/// A value that tells its key, and whether it is whole.
fn value_of(key: u32, round: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (key ^ round ^ at.wrapping_mul(31)) as u8).collect()
}

#[test]
fn what_is_looked_at_stays_when_memory_is_short() {
    let store = Store::new(8 << 20, ITEM_MAX).unwrap();
    let key = |n: u32| n.to_le_bytes();
    for n in 0..100_000u32 {
        assert!(matches!(put(&store, &key(n), &value_of(n, 0, 200), how(Mode::Set), START), Outcome::Stored(_)));
        // A hundred of them are always in use.
        if n >= 100 {
            let hot = n % 100;
            assert_eq!(get(&store, &key(hot), START).expect("it is in use").0, value_of(hot, 0, 200));
        }
    }
    let left = (0..100_000).filter(|n| get(&store, &key(*n), START).is_some()).count();
    assert!(left * 256 > 6 << 20 && left * 224 < 8 << 20, "{left} items are left");
    assert_eq!(store.counters.get(Count::Evictions) as usize, 100_000 - left);
    assert_eq!(store.items(), left);
}

#[test]
fn memory_goes_to_the_sizes_that_need_it() {
    let store = Store::new(8 << 20, ITEM_MAX).unwrap();
    for (round, length) in [100usize, 3000, 100_000, 40, 500_000, 1000].into_iter().enumerate() {
        for n in 0..(16 << 20) / length as u32 {
            let done = put(&store, &n.to_le_bytes(), &value_of(n, round as u32, length), how(Mode::Set), START);
            assert!(matches!(done, Outcome::Stored(_)), "{length} bytes, number {n}: {done:?}");
            assert_eq!(get(&store, &n.to_le_bytes(), START).unwrap().0, value_of(n, round as u32, length));
        }
    }
    let pages: usize = store.classes().iter().map(|class| class.pages).sum();
    assert!(pages <= 8);
    assert_eq!(put(&store, b"k", &vec![0; ITEM_MAX], how(Mode::Set), START), Outcome::NoRoom(NoRoom::TooLarge));
}

#[test]
fn a_pinned_item_stays_as_it_was() {
    let store = Store::new(4 << 20, ITEM_MAX).unwrap();
    put(&store, b"k", &value_of(1, 1, 5000), how(Mode::Set), START);
    let item = store.find(b"k", START, true).unwrap();
    put(&store, b"k", b"new", how(Mode::Set), START);
    assert_eq!(store.delete(b"k", None, START), Deleted::Gone);
    for n in 0..20_000u32 {
        put(&store, &n.to_le_bytes(), &value_of(n, 2, 5000), how(Mode::Set), START);
    }
    let mut value = vec![0; 5000];
    item.read(0, &mut value);
    assert_eq!(value, value_of(1, 1, 5000));
    assert!(store.edit(&item, |_| ()).is_none(), "it is not the one that is found");
}

/// What one of many does to the same few keys: each value that it finds is whole, and a number counts each step once. How many items it was the first
/// to add, of one for each step.
fn work(store: &Store, seed: u64, steps: u64) -> u64 {
    let mut first = 0;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for step in 0..steps {
        let key = random.random_range(0..40u32).to_le_bytes();
        let length = 50 + (random.next_u32() % 4000) as usize;
        let mut value = value_of(u32::from_le_bytes(key), 0, length);
        value[..4].copy_from_slice(&(length as u32).to_le_bytes());
        match random.next_u32() % 6 {
            0 => drop(put(store, &key, &value, how(Mode::Set), START)),
            1 => drop(put(store, &key, &value, how(Mode::Add), START)),
            2 => drop(put(store, &key, &value, how(Mode::Replace), START)),
            3 => drop(store.delete(&key, None, START)),
            _ => {
                if let Some((value, _)) = get(store, &key, START) {
                    assert_eq!(value[..4], (value.len() as u32).to_le_bytes());
                    assert_eq!(value[4..], value_of(u32::from_le_bytes(key), 0, value.len())[4..]);
                }
            }
        }
        // Keys of its own, so that the index grows meanwhile.
        let own = (seed << 32 | step).to_le_bytes();
        assert!(matches!(put(store, &own, b"own", how(Mode::Set), START), Outcome::Stored(_)));
        assert_eq!(get(store, &own, START).map(|(value, _)| value).as_deref(), Some(&b"own"[..]));
        let what = Arithmetic { up: true, delta: 1, cas: 0, initial: None };
        assert!(matches!(store.calculate(b"number", what, START, |_, _| {}), Changed::Done(_)));
        match put(store, format!("add{step}").as_bytes(), b"added", how(Mode::Add), START) {
            Outcome::Stored(_) => first += 1,
            other => assert_eq!(other, Outcome::NotStored),
        }
    }
    first
}

fn counted(store: &Store) -> u64 {
    assert_eq!(store.counters.get(Count::Evictions), 0, "what was evicted may have been the number");
    let (text, _) = get(store, b"number", START).unwrap();
    String::from_utf8(text).unwrap().trim_end().parse().unwrap()
}

fn store_for_many() -> Arc<Store> {
    let store = Store::new(32 << 20, ITEM_MAX).unwrap();
    put(&store, b"number", b"0", how(Mode::Set), START);
    Arc::new(store)
}

#[test]
fn many_threads() {
    const STEPS: u64 = 2500;
    let store = store_for_many();
    let first: u64 = thread::scope(|scope| {
        let store = &store;
        let workers: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(store, seed, STEPS))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(first, STEPS);
    assert_eq!(counted(&store), 4 * STEPS);
}

/// The same by unithreads, which are switched away from at every other access to the store's memory: see `memory::region`.
#[test]
fn many_unithreads() {
    const UNITHREADS: u64 = 48;
    const STEPS: u64 = 120;
    for workers in [1, 3] {
        let store = store_for_many();
        let config = Config { workers, pin: false, stack_bytes: 256 << 10, ..Config::default() };
        let runtime = Runtime::start(config).unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let first = Arc::new(AtomicU64::new(0));
        for seed in 0..UNITHREADS {
            let (store, done, first) = (store.clone(), done.clone(), first.clone());
            let work = move || {
                first.fetch_add(work(&store, seed, STEPS), Relaxed);
                done.fetch_add(1, Relaxed);
            };
            drop(runtime.spawn(work).unwrap());
        }
        runtime.shutdown_within(Duration::from_secs(100)).unwrap();
        assert_eq!(done.load(Relaxed), UNITHREADS);
        assert_eq!(first.load(Relaxed), STEPS);
        assert_eq!(counted(&store), UNITHREADS * STEPS);
    }
}

/// Memory is short, and much of it is pinned by unithreads that are switched away from: what they read stays, and what is stored is stored.
#[test]
fn unithreads_in_little_memory() {
    let store = Arc::new(Store::new(4 << 20, ITEM_MAX).unwrap());
    let runtime = Runtime::start(Config { workers: 2, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    for seed in 0..32u64 {
        let (store, done) = (store.clone(), done.clone());
        let work = move || {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            for _ in 0..150 {
                let key = random.random_range(0..3000u32);
                // Of sizes that take memory from one another.
                let length = [100, 900, 12_000][(key % 3) as usize];
                if random.next_u32().is_multiple_of(2) {
                    let stored = put(&store, &key.to_le_bytes(), &value_of(key, 0, length), how(Mode::Set), START);
                    assert!(matches!(stored, Outcome::Stored(_)), "{stored:?}");
                } else if let Some((value, _)) = get(&store, &key.to_le_bytes(), START) {
                    assert!(value == value_of(key, 0, length));
                }
            }
            done.fetch_add(1, Relaxed);
        };
        drop(runtime.spawn(work).unwrap());
    }
    runtime.shutdown_within(Duration::from_secs(100)).unwrap();
    assert_eq!(done.load(Relaxed), 32);
    assert!(store.counters.get(Count::Evictions) > 0);
}
