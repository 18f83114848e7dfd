//! The real memcached, as a server to be set against ours: its command line, where it listens, and its workers.
//!
//! It binds nothing to cores, and whom it starts inherits what it is bound to, the library's evictors too. So its workers are bound one by one when it
//! is ready, by their names: as in our servers, all other threads run anywhere.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use rustix::thread::{Pid, sched_setaffinity};

use super::cores;
use crate::targets::tools;

/// The program, and the package that has it.
const PROGRAM: &str = "memcached";
/// In its environment: the file to which it writes its ports when it listens.
pub const PORTS: &str = "MEMCACHED_PORT_FILENAME";
/// The name of its workers.
const WORKER: &str = "mc-worker";
/// It takes no less memory than this, in MiB.
const LEAST_MIB: u64 = 64;

/// What there is to know of one besides its command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memcached {
    /// The file with its ports.
    pub ports: PathBuf,
    /// The cores of its workers; empty: any.
    pub cores: Vec<usize>,
}

/// Refuses a machine that has none.
///
/// # Errors
/// What to install: one line.
pub fn need() -> Result<(), String> {
    tools::need(PROGRAM, PROGRAM).map(|_| ())
}

/// The command line of one with so many workers, and room for `memory_bytes` and `items` keys.
#[must_use]
pub fn words(workers: u16, (memory_bytes, items): (u64, u64), connections: u32, udp: bool) -> Vec<OsString> {
    let megabytes = memory_bytes.div_ceil(1 << 20).max(LEAST_MIB);
    let mut words = vec![
        PROGRAM.to_string(),
        // As root it wants a user to become.
        "--user=root".into(),
        "--listen=127.0.0.1".into(),
        // Any port that is free.
        "--port=-1".into(),
        format!("--threads={workers}"),
        format!("--memory-limit={megabytes}"),
        format!("--conn-limit={connections}"),
        format!("--extended=hashpower={}", hash_power(items)),
    ];
    words.extend(udp.then(|| "--udp-port=-1".into()));
    words.into_iter().map(OsString::from).collect()
}

/// Bits of its index, so that it need not grow: for that it goes through all keys in the background, which takes many seconds of the measured time
/// when most of them are far away (87,000 fetches for 131,072 keys).
fn hash_power(items: u64) -> u32 {
    items.next_power_of_two().ilog2().clamp(16, 32)
}

impl Memcached {
    /// Where it listens; `None`: it does not yet.
    #[must_use]
    pub fn address(&self, transport: &str) -> Option<String> {
        address(&fs::read_to_string(&self.ports).ok()?, transport)
    }

    /// Binds its workers.
    ///
    /// # Errors
    /// They cannot be told from its other threads, or not be bound: one line.
    pub fn bind(&self, process: u32) -> Result<(), String> {
        if self.cores.is_empty() {
            return Ok(());
        }
        let set = cores::set(&self.cores);
        let workers = workers(process);
        if workers.is_empty() {
            return Err(format!("no thread of {PROGRAM} is called {WORKER}: it is too old to be bound; --cores 0 binds nothing"));
        }
        let bind = |worker| sched_setaffinity(Some(worker), &set);
        workers.into_iter().try_for_each(bind).map_err(|error| {
            format!("cannot bind {PROGRAM} to cores {} ({error}): --cores 0 binds nothing", cores::list(&self.cores))
        })
    }
}

/// `udp:127.0.0.1:7000`, from the lines `TCP INET: 7001`, `UDP INET: 7000`.
fn address(told: &str, transport: &str) -> Option<String> {
    let line = format!("{} INET: ", transport.to_uppercase());
    let port: u16 = told.lines().find_map(|told| told.strip_prefix(&line)?.trim().parse().ok())?;
    Some(format!("{transport}:127.0.0.1:{port}"))
}

/// The threads of a process that are called so.
fn workers(process: u32) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().filter_map(Result::ok);
    let is_worker = |name: &String| name.trim() == WORKER;
    threads
        .filter(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| is_worker(&name)))
        .filter_map(|thread| Pid::from_raw(thread.file_name().to_str()?.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_command_line() {
        let words = words(4, (256 << 20, 131_072), 40, true);
        for word in
            ["memcached", "--threads=4", "--memory-limit=256", "--conn-limit=40", "--extended=hashpower=17", "--udp-port=-1"]
        {
            assert!(words.iter().any(|other| other == word), "{word}: {words:?}");
        }
        let words = super::words(1, (1, 131_073), 40, false);
        assert!(words.contains(&"--extended=hashpower=18".into()), "{words:?}");
        assert!(words.contains(&"--memory-limit=64".into()) && !words.contains(&"--udp-port=-1".into()), "{words:?}");
    }

    #[test]
    fn where_it_listens() {
        let told = "TCP INET: 38249\nUDP INET: 33099\n";
        assert_eq!(address(told, "tcp").as_deref(), Some("tcp:127.0.0.1:38249"));
        assert_eq!(address(told, "udp").as_deref(), Some("udp:127.0.0.1:33099"));
        assert_eq!((address("TCP INET: 1\n", "udp"), address("", "tcp")), (None, None));
        let nowhere = Memcached { ports: "/nowhere/ports".into(), cores: vec![] };
        assert_eq!(nowhere.address("tcp"), None);
    }

    #[test]
    fn only_what_has_workers_is_bound() {
        let this = std::process::id();
        let bound = |cores: &[usize]| Memcached { ports: PathBuf::new(), cores: cores.to_vec() }.bind(this);
        assert_eq!(bound(&[]), Ok(()));
        assert!(bound(&[0]).is_err_and(|why| why.contains("mc-worker")));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::Builder::new().name(WORKER.into()).spawn(move || wait.recv()).unwrap();
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while workers(this).is_empty() {
            assert!(std::time::Instant::now() < patience, "it has no name");
        }
        assert!(bound(&[rustix::thread::CpuSet::MAX_CPU - 1]).is_err_and(|why| why.contains("--cores")));
        drop(go);
        let _ = worker.join();
    }
}
