//! Committed transactions are as if one came after the other: a serial order is found from what each has read and written, and is played again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use farshore_uthread::{hold, yield_now};

use super::{in_unithreads, watched};
use crate::tpcc::random::Dice;
use crate::tpcc::records::{Place, Records, Row, Table, Version};
use crate::tpcc::transaction::Transaction;
use bytemuck::{Pod, Zeroable};

/// Two pages and three pieces of a read, all words of which are the same.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
struct Same([u64; 24]);

impl Row for Same {}

/// What a transaction has done.
struct Done {
    /// What was read of which version.
    reads: Vec<(Place, Version, u64)>,
    writes: Vec<(Place, u64)>,
    version: Version,
}

/// What transactions share.
struct Arena {
    records: Records,
    table: Table,
    done: Mutex<Vec<Done>>,
}

const RECORDS: u64 = 12;

fn arena() -> Arc<Arena> {
    let mut end = 0;
    let table = Table::new::<Same>(RECORDS * 100, &mut end).unwrap();
    Arc::new(Arena { records: Records::new(end).unwrap(), table, done: Mutex::new(Vec::new()) })
}

/// One transaction: reads some, writes some of those and some others. False: a conflict.
fn attempt(arena: &Arena, dice: &mut Dice, id: u64) -> bool {
    let mut transaction = Transaction::new(&arena.records);
    let (mut seen, mut writes) = (Vec::new(), BTreeMap::new());
    let place = |dice: &mut Dice| arena.table.at(dice.number(0, RECORDS - 1) * 100);
    let mut sum = id;
    for _ in 0..dice.number(0, 5) {
        let place = place(dice);
        let Same(words) = transaction.read(place);
        assert!(words.iter().all(|word| *word == words[0]), "a torn read: {words:?}");
        match writes.get(&place) {
            // What it has written itself it reads again.
            Some(own) => assert_eq!(words[0], *own),
            None => seen.push(words[0]),
        }
        sum = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(words[0]);
        if dice.one_in(2) {
            transaction.write(place, &Same([sum; 24]));
            writes.insert(place, sum);
        }
    }
    if dice.one_in(3) {
        let place = place(dice);
        transaction.write(place, &Same([sum ^ 1; 24]));
        writes.insert(place, sum ^ 1);
    }
    let (reads, written) = transaction.sets();
    assert_eq!((reads.len(), written.len()), (seen.len(), writes.len()));
    let Ok(version) = transaction.commit() else { return false };
    let reads = reads.iter().zip(seen).map(|((place, version), value)| (*place, *version, value)).collect();
    let done = Done { reads, writes: writes.into_iter().collect(), version };
    let _hold = hold();
    arena.done.lock().unwrap().push(done);
    true
}

/// Finds a serial order, and plays it again. How many transactions have written what another one has read.
fn verify(arena: &Arena) -> usize {
    let done = arena.done.lock().unwrap();
    // Who has written which version of a record.
    let mut writers: HashMap<Place, BTreeMap<Version, usize>> = HashMap::new();
    for (number, one) in done.iter().enumerate() {
        for (place, _) in &one.writes {
            let twice = writers.entry(*place).or_default().insert(one.version, number);
            assert_eq!(twice, None, "two have written the same version of a record");
        }
    }
    let mut after = vec![Vec::new(); done.len()];
    let mut before = vec![0; done.len()];
    let mut met = 0;
    let mut edge = |from: usize, to: usize| {
        if from != to {
            after[from].push(to);
            before[to] += 1;
        }
    };
    for versions in writers.values() {
        let all: Vec<usize> = versions.values().copied().collect();
        all.windows(2).for_each(|pair| edge(pair[0], pair[1]));
    }
    let none = BTreeMap::new();
    for (number, one) in done.iter().enumerate() {
        for (place, version, _) in &one.reads {
            let versions = writers.get(place).unwrap_or(&none);
            if *version != Version::NONE {
                edge(versions[version], number);
            }
            if let Some((_, next)) = versions.range((std::ops::Bound::Excluded(*version), std::ops::Bound::Unbounded)).next() {
                edge(number, *next);
                met += 1;
            }
        }
    }
    let mut ready: Vec<usize> = (0..done.len()).filter(|number| before[*number] == 0).collect();
    let (mut state, mut played) = (HashMap::new(), 0);
    while let Some(number) = ready.pop() {
        played += 1;
        for (place, _, value) in &done[number].reads {
            assert_eq!(state.get(place).copied().unwrap_or(0), *value, "not what a serial order has there");
        }
        state.extend(done[number].writes.iter().copied());
        for next in &after[number] {
            before[*next] -= 1;
            if before[*next] == 0 {
                ready.push(*next);
            }
        }
    }
    assert_eq!(played, done.len(), "there is no serial order: some have each come before the other");
    for (place, value) in state {
        assert_eq!(arena.records.read::<Same>(place).0, Same([value; 24]), "the last value");
    }
    met
}

/// Some committed transactions of a unithread or thread.
fn work(arena: &Arena, number: u64, count: u64) {
    let mut dice = Dice::new(number);
    for step in 0..count {
        while !attempt(arena, &mut dice, number * count + step) {
            yield_now();
        }
    }
}

#[test]
fn unithreads_are_serialisable() {
    for workers in [1, 3] {
        let arena = arena();
        let shared = arena.clone();
        in_unithreads(workers, 60, move |number| work(&shared, number, 60));
        assert_eq!(arena.done.lock().unwrap().len(), 3600);
        assert!(verify(&arena) > 100, "they hardly met");
        if workers == 1 {
            assert_eq!(arena.records.found_locked(), 0, "a unithread was switched away from with a lock");
        }
    }
}

#[test]
fn threads_are_serialisable() {
    let arena = arena();
    let shared = arena.clone();
    watched(move || {
        std::thread::scope(|scope| {
            for number in 0..4 {
                let arena = &shared;
                scope.spawn(move || work(arena, number, 10_000));
            }
        });
    });
    assert_eq!(arena.done.lock().unwrap().len(), 40_000);
    assert!(verify(&arena) > 100, "they hardly met");
}

/// What each has read the other one writes: not both can be.
#[test]
fn crossed_writes_are_a_conflict() {
    watched(crossed);
}

fn crossed() {
    let arena = arena();
    let (a, b) = (arena.table.at(0), arena.table.at(100));
    let mut one = Transaction::new(&arena.records);
    let mut other = Transaction::new(&arena.records);
    let _: Same = one.read(a);
    let _: Same = other.read(b);
    one.write(b, &Same([1; 24]));
    other.write(a, &Same([2; 24]));
    assert!(one.commit().is_ok());
    assert!(other.commit().is_err(), "b has changed since");
    assert_eq!(arena.records.read::<Same>(a), (Same([0; 24]), Version::NONE), "nothing of it has happened");
    // A row that was not there has come: a phantom.
    let mut one = Transaction::new(&arena.records);
    let _: Same = one.read(arena.table.at(200));
    one.write(a, &Same([3; 24]));
    let mut other = Transaction::new(&arena.records);
    other.write(arena.table.at(200), &Same([4; 24]));
    assert!(other.commit().is_ok() && one.commit().is_err());
}
