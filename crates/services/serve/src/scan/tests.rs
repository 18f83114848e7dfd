use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use farshore_uthread::{Config, Runtime};

use super::*;
use crate::numbers::value;

fn store(items: u64, value_bytes: usize) -> Store {
    Store::new(items, value_bytes, &std::env::temp_dir()).unwrap()
}

fn total(keys: std::ops::Range<u64>) -> (u64, u64) {
    (keys.end - keys.start, keys.fold(0, |sum, key| sum.wrapping_add(value(key))))
}

fn request(number: u64, operation: u64, key: u64) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    for (place, word) in request.as_chunks_mut::<WORD>().0.iter_mut().zip([number, operation, key]) {
        *place = word.to_le_bytes();
    }
    request
}

#[test]
fn each_key_has_its_value_of_any_length() {
    // 1984 and less share pages, 2022 is LMDB's own limit; the largest have pages in a row.
    for bytes in [8, 16, 1024, 1984, 1992, 2016, 2024, 4072, 4096, 9000, 65_536] {
        let store = store(300, bytes);
        for key in 0..300 {
            assert_eq!(store.get(key), Some(value(key)), "{key} of {bytes} bytes");
        }
        assert_eq!(store.scan(0, 300), Some(total(0..300)), "{bytes} bytes");
        for key in [300, 301, u64::MAX] {
            assert_eq!((store.get(key), store.scan(key, 5)), (None, Some((0, 0))));
        }
    }
}

#[test]
fn more_than_a_transaction_holds() {
    let store = store(100_000, 64);
    assert_eq!(store.scan(0, u64::MAX), Some(total(0..100_000)));
    assert_eq!(store.scan(65_536, 100), Some(total(65_536..65_636)));
}

#[test]
fn a_store_of_one() {
    let store = store(1, 8);
    assert_eq!((store.get(0), store.get(1), store.scan(0, 100)), (Some(value(0)), None, Some((1, value(0)))));
}

#[test]
fn two_stores_at_a_time() {
    let stores = [10, 20].map(|items| store(items, 64));
    assert_eq!(stores.each_ref().map(|store| store.scan(0, 100)), [Some(total(0..10)), Some(total(0..20))]);
}

#[test]
fn scans_find_as_many_as_there_are() {
    let store = store(1000, 1024);
    for (key, most, end) in [(0, 1, 1), (7, 100, 107), (990, 100, 1000), (999, 1, 1000), (500, u64::MAX, 1000), (3, 0, 3)] {
        assert_eq!(store.scan(key, most), Some(total(key..end)), "{most} from {key} on");
    }
}

#[test]
fn requests_and_answers() {
    let scan = Scan::new(store(1000, 24), 900);
    let answer =
        |operation, key| scan.answer(&request(9, operation, key)).map(|words| [0, 1, 2, 3].map(|place| word(&words, place)));
    let found = |keys| {
        let (count, sum) = total(keys);
        Some([9, FOUND, count, sum])
    };
    assert_eq!(answer(0, 7), found(7..8));
    assert_eq!(answer(0, 999), found(999..1000));
    assert_eq!(answer(0, 1000), Some([9, NOT_FOUND, 0, 0]));
    assert_eq!(answer(1, 7), found(7..107), "100 where nothing is said");
    assert_eq!(answer(1, 950), found(950..1000));
    assert_eq!(answer(1 + (5 << 8), 7), found(7..12));
    assert_eq!(answer(1 + (900 << 8), 7), found(7..907), "as many as there may be");
    assert_eq!(answer(1 + (900 << 8), 990), found(990..1000));
    for more in [901, u64::MAX >> 8] {
        assert_eq!(answer(1 + (more << 8), 7), Some([9, TOO_MANY, 900, 0]), "one may not read all of it");
    }
    assert_eq!(answer(1, 1000), Some([9, NOT_FOUND, 0, 0]));
    for wrong in [2, 255, 1 << 8, u64::MAX] {
        assert_eq!(answer(wrong, 7), None, "operation {wrong:#x}");
    }
}

/// Unithreads that are switched away from in the midst of reads: see `memory::comes_from_far`.
#[test]
fn many_unithreads() {
    for workers in [1, 3] {
        let store = Arc::new(store(2000, 264));
        let runtime = Runtime::start(Config { workers, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
        let done = Arc::new([const { AtomicU64::new(0) }; 2]);
        for seed in 0..64 {
            let (store, done) = (store.clone(), done.clone());
            let work = move || {
                for step in 0..50 {
                    let key = value(seed * 100 + step) % 2000;
                    let end = 2000.min(key + 30);
                    let right = store.get(key) == Some(value(key)) && store.scan(key, 30) == Some(total(key..end));
                    done[usize::from(right)].fetch_add(1, Relaxed);
                }
            };
            drop(runtime.spawn(work).unwrap());
        }
        // Scans end early once the runtime is told to end.
        while done.iter().map(|count| count.load(Relaxed)).sum::<u64>() < 64 * 50 {
            std::thread::sleep(Duration::from_millis(1));
        }
        runtime.shutdown_within(Duration::from_secs(100)).unwrap();
        assert_eq!(done[1].load(Relaxed), 64 * 50);
    }
}

#[test]
fn what_cannot_be() {
    for (items, bytes) in [(u64::MAX, 8), (1 << 40, 65_536), (1 << 45, 8)] {
        assert!(matches!(Store::new(items, bytes, Path::new("/nowhere")), Err(Error::TooMany)), "{items} of {bytes}");
    }
    let error = Store::new(1, 8, Path::new("/nowhere")).unwrap_err();
    assert!(
        matches!(&error, Error::Directory(why) if why.kind() == io::ErrorKind::NotFound) && error.to_string().contains("--path")
    );
}
