//! One limit for both: what a program has in RAM, and what the kernel has compressed of it.
//!
//! No limit counts what zram takes. So a thread looks at it while the program runs, and gives the program's cgroup the rest:
//!
//! ```text
//! limit = total - pool          looked at every 10 ms, written when it differs by 256 KiB or more
//! ```
//!
//! This settles. The kernel makes a smaller limit true by moving pages to the pool, which makes the pool larger, but by less than was moved, since
//! the pages are compressed. Where it does not settle the program does not fit: what is compressed leaves less than an eighth of the RAM ([`LEAST_PART`]).
//! Such a run is ended, since what it would show is another amount of RAM.
//!
//! Why so: decision 75.
//!
//! # What is not exact
//!
//! * Between two looks the program may move pages out; for so long the two together are larger. The most that was seen is among the settings.
//! * The kernel moves pages out in this thread when it writes a smaller limit. That work is not the program's, as that of kswapd is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cgroup::{self, Cgroup};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// A smaller difference is not worth a write, in bytes.
const STEP: u64 = 256 << 10;
/// Less than one part in so many of the RAM for pages as they are: the program does not fit.
const LEAST_PART: u64 = 8;

/// What was seen of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The most that pages as they are and the pool took together, in bytes.
    pub total_peak: u64,
    /// The most that the pool took, in bytes.
    pub pool_peak: u64,
    /// The pool left too little: the run was ended.
    pub does_not_fit: bool,
}

/// A thread that keeps the limit of a cgroup.
#[derive(Debug)]
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Keeper {
    /// Keeps the sum of what `cgroup` has and of `pool`, both in bytes, at `total`. The cgroup has `total` for its limit already.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(cgroup: Cgroup, total: u64, pool: impl Fn() -> u64 + Send + 'static) -> Result<Keeper, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("limit".into()).spawn(move || keep(&cgroup, total, pool, &stopped));
        let thread = thread.map_err(|error| format!("cannot start the thread that keeps the limit ({error})"))?;
        Ok(Keeper { stop, thread })
    }

    /// Ends the thread: what it has seen.
    #[must_use]
    pub fn end(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

fn keep(cgroup: &Cgroup, total: u64, pool: impl Fn() -> u64, stop: &AtomicBool) -> Seen {
    let (mut seen, mut limit) = (Seen::default(), total);
    while !stop.load(Ordering::Relaxed) {
        let taken = pool();
        seen.pool_peak = seen.pool_peak.max(taken);
        seen.total_peak = seen.total_peak.max(cgroup.usage_bytes().saturating_add(taken));
        let Some(wanted) = beside(total, taken) else {
            seen.does_not_fit = true;
            end_all(cgroup, stop);
            break;
        };
        // A limit that the kernel cannot make true at once is tried again at the next look.
        if wanted.abs_diff(limit) >= STEP && cgroup.set_limit(wanted).is_ok() {
            limit = wanted;
        }
        std::thread::park_timeout(PAUSE);
    }
    seen
}

/// Ends what is in the cgroup, and what has been forked there meanwhile, until there is nothing left or nobody wants it any more.
fn end_all(cgroup: &Cgroup, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) && !cgroup::empty(&cgroup.path) {
        std::thread::park_timeout(PAUSE);
    }
}

/// What a pool of this size leaves of `total`; `None` if that is too little.
fn beside(total: u64, pool: u64) -> Option<u64> {
    total.checked_sub(pool).filter(|left| *left >= total / LEAST_PART)
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::Version;
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    const MIB: u64 = 1 << 20;

    /// A folder that looks like a cgroup whose program has 10 MiB.
    fn cgroup(folder: &Path) -> Cgroup {
        for (file, text) in
            [("memory.current", (10 * MIB).to_string()), ("memory.max", "0".into()), ("cgroup.procs", String::new())]
        {
            fs::write(folder.join(file), text).unwrap();
        }
        Cgroup::at(PathBuf::from(folder), Version::Two)
    }

    fn wait_until(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !what() {
            assert!(Instant::now() < until, "it did not become so within 60 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_the_pool_takes_is_taken_from_the_limit() {
        assert_eq!(beside(80 * MIB, 0), Some(80 * MIB));
        assert_eq!(beside(80 * MIB, 70 * MIB), Some(10 * MIB));
        assert_eq!(beside(80 * MIB, 70 * MIB + 1), None);
        assert_eq!(beside(80 * MIB, 90 * MIB), None);
    }

    #[test]
    fn the_limit_follows_the_pool_down_and_up() {
        let folder = tempfile::tempdir().unwrap();
        let limit = || fs::read_to_string(folder.path().join("memory.max")).unwrap();
        let pool = Arc::new(std::sync::atomic::AtomicU64::new(30 * MIB));
        let told = Arc::clone(&pool);
        let keeper = Keeper::start(cgroup(folder.path()), 80 * MIB, move || told.load(Ordering::Relaxed)).unwrap();
        wait_until(|| limit() == (50 * MIB).to_string());
        pool.store(5 * MIB, Ordering::Relaxed);
        wait_until(|| limit() == (75 * MIB).to_string());
        let seen = keeper.end();
        assert_eq!(seen, Seen { total_peak: 40 * MIB, pool_peak: 30 * MIB, does_not_fit: false });
    }

    #[test]
    fn a_pool_that_leaves_too_little_ends_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(cgroup(folder.path()), 80 * MIB, || 75 * MIB).unwrap();
        wait_until(|| keeper.thread.is_finished());
        assert!(keeper.end().does_not_fit);
        assert_eq!(fs::read_to_string(folder.path().join("memory.max")).unwrap(), "0", "its limit is not changed any more");
    }

    #[test]
    fn what_a_run_has_forked_while_it_was_being_ended_is_ended_too() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = cgroup(folder.path());
        let sleep = || std::process::Command::new("sleep").arg("8").spawn().unwrap();
        let is_there =
            |child: &std::process::Child| fs::write(folder.path().join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        let was_ended = |child: &mut std::process::Child| !child.wait().unwrap().success();
        let (mut first, mut second) = (sleep(), sleep());
        is_there(&first);
        let keeper = Keeper::start(cgroup, 80 * MIB, || 75 * MIB).unwrap();
        assert!(was_ended(&mut first));
        is_there(&second);
        assert!(was_ended(&mut second), "it went on");
        assert!(keeper.end().does_not_fit);
    }
}
