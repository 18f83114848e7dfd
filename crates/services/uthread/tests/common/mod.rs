//! What the tests share.
#![allow(dead_code)]

pub mod net;

use core::time::Duration;
use farshore_uthread::{Config, Runtime};
use std::process::{Command, Output};

/// Ends this test program if it hangs.
pub fn watchdog() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(300));
            for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                let call = std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
                eprintln!("{:?}: {call}", task.file_name());
            }
            eprintln!("hung for 300 s");
            std::process::abort();
        });
    });
}

/// A runtime with `workers` workers.
pub fn runtime(workers: usize) -> Runtime {
    watchdog();
    Runtime::start(Config { workers, ..Config::default() }).unwrap()
}

const INSIDE: &str = "FARSHORE_TEST_INSIDE";

/// Runs `work` in a process of its own, which is test `name` of this program started again. What came of it; `None` inside.
pub fn in_child(name: &str, work: impl FnOnce()) -> Option<Output> {
    watchdog();
    if std::env::var_os(INSIDE).is_some() {
        work();
        return None;
    }
    let this = std::env::current_exe().unwrap();
    Some(Command::new(this).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap())
}
