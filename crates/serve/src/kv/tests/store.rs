//! The store against a map, and what it does when memory is short and many threads use it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::kv::protocol::Mode;
use crate::kv::store::{Arithmetic, Changed, Commit, Count, Deleted, NoRoom, Outcome, START, Store};
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

/// Threads on the same few keys: each value is whole, and numbers count each step once.
#[test]
fn many_threads() {
    const KEYS: u32 = 40;
    const COUNTS: u64 = 3000;
    let store = Store::new(4 << 20, ITEM_MAX).unwrap();
    let over = AtomicBool::new(false);
    put(&store, b"number", b"0", how(Mode::Set), START);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|seed| {
                let (store, over) = (&store, &over);
                scope.spawn(move || {
                    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
                    for _ in 0..COUNTS {
                        let key = random.random_range(0..KEYS);
                        let length = 50 + (random.next_u32() % 4000) as usize;
                        let mut value = value_of(key, 0, length);
                        value[..4].copy_from_slice(&(length as u32).to_le_bytes());
                        match random.next_u32() % 4 {
                            0 => drop(put(store, &key.to_le_bytes(), &value, how(Mode::Set), START)),
                            1 => drop(put(store, &key.to_le_bytes(), &value, how(Mode::Replace), START)),
                            2 => drop(store.delete(&key.to_le_bytes(), None, START)),
                            _ => {
                                if let Some((value, _)) = get(store, &key.to_le_bytes(), START) {
                                    assert_eq!(value[..4], (value.len() as u32).to_le_bytes());
                                    assert_eq!(value[4..], value_of(key, 0, value.len())[4..]);
                                }
                            }
                        }
                        let what = Arithmetic { up: true, delta: 1, cas: 0, initial: Some(1) };
                        assert!(matches!(store.calculate(b"number", what, START, |_, _| {}), Changed::Done(_)));
                    }
                    over.store(true, Relaxed);
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    assert!(over.load(Relaxed));
    if store.counters.get(Count::Evictions) == 0 {
        let item = store.find(b"number", START, false).unwrap();
        let mut text = vec![0; item.length()];
        item.read(0, &mut text);
        assert_eq!(String::from_utf8(text).unwrap().trim_end(), (4 * COUNTS).to_string());
    }
}
