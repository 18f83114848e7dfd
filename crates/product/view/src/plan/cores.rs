//! What a program's threads waited for a core: time that is neither theirs nor their faults'.
//!
//! The kernel counts it for each thread (`/proc/PID/task/TID/schedstat`: nanoseconds on a core, nanoseconds of waiting for one, turns). Farshore's
//! own threads are left out.

use std::collections::HashMap;
use std::path::Path;

/// Names of threads that are not the program's: Farshore's, and the kernel's for io_uring.
const OTHERS: [&str; 2] = ["farshore-", "iou-wrk-"];

/// The waits for cores of one process.
#[derive(Debug, Default)]
pub struct Cores {
    /// What each thread had waited when it was looked at, nanoseconds.
    seen: HashMap<u32, u64>,
    waited_ns: u64,
}

impl Cores {
    /// Of a process that runs already: from now on.
    pub fn from_now(pid: u32) -> Cores {
        let mut cores = Cores::default();
        cores.look(pid);
        cores.waited_ns = 0;
        cores
    }

    /// Looks again; what the program's threads have waited so far, all together, nanoseconds. What a thread waits after the last look at it is not known.
    pub fn look(&mut self, pid: u32) -> u64 {
        let mut now = HashMap::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(thread), Some(waited)) = (thread, waited(&entry.path())) {
                self.waited_ns += waited.saturating_sub(self.seen.get(&thread).copied().unwrap_or(0));
                now.insert(thread, waited);
            }
        }
        self.seen = now;
        self.waited_ns
    }
}

/// What this thread has waited, if it is the program's and still there.
fn waited(task: &Path) -> Option<u64> {
    let name = std::fs::read(task.join("comm")).ok()?;
    if OTHERS.iter().any(|other| name.starts_with(other.as_bytes())) {
        return None;
    }
    std::fs::read_to_string(task.join("schedstat")).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_up_and_farshores_are_not() {
        let place = tempfile::tempdir().expect("a directory");
        let task = |name: &str, comm: &str, schedstat: &str| {
            let path = place.path().join(name);
            std::fs::create_dir(&path).expect("a new one");
            std::fs::write(path.join("comm"), comm).expect("room");
            std::fs::write(path.join("schedstat"), schedstat).expect("room");
            waited(&path)
        };
        assert_eq!(task("1", "sort\n", "500 70 3\n"), Some(70));
        assert_eq!(task("2", "farshore-evict0\n", "500 70 3\n"), None);
        assert_eq!(task("3", "iou-wrk-1\n", "500 70 3\n"), None);
        assert_eq!(task("4", "sort\n", ""), None);
        assert_eq!(waited(&place.path().join("5")), None);
    }
}
