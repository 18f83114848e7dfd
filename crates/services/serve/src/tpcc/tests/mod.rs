//! Transactions that disturb each other, and the conditions that must hold all the same.

mod conditions;
mod mix;
mod serial;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use farshore_uthread::{Config, Runtime};

use super::database::{Database, Scale};
use super::populate::populate;

/// Little, so that much meets.
const SMALL: Scale = Scale { warehouses: 2, customers: 60, items: 200, orders: 3000 };

fn small() -> Database {
    populate(SMALL, 7).unwrap()
}

/// Runs it, and fails if it hangs.
fn watched(work: impl FnOnce() + Send + 'static) {
    let (tell, hear) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        tell.send(()).unwrap();
    });
    let heard = hear.recv_timeout(Duration::from_secs(100));
    assert_ne!(heard, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

/// Runs `work` with each number below `count`, in a unithread each, on so many workers. In tests every other access to records is one at which others
/// run: see `memory::comes_from_far`.
fn in_unithreads(workers: usize, count: u64, work: impl Fn(u64) + Send + Sync + 'static) {
    let runtime = Runtime::start(Config { workers, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
    let (work, done) = (Arc::new(work), Arc::new(AtomicU64::new(0)));
    for number in 0..count {
        let (work, done) = (work.clone(), done.clone());
        let one = move || {
            work(number);
            done.fetch_add(1, Relaxed);
        };
        drop(runtime.spawn(one).unwrap());
    }
    // A watchdog: only a hang takes so long.
    for _ in 0..100_000 {
        if done.load(Relaxed) == count || runtime.handle().panics() > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(done.load(Relaxed), count, "not all unithreads came to their end");
    runtime.shutdown_within(Duration::from_secs(100)).unwrap();
}
