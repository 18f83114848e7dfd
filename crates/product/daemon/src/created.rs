//! Virtual machines that were started here: `farshore vm run`, whose words a request gives.
//!
//! They are not the daemon's: they go on when it ends, and another daemon finds them by their managers. What this one knows besides is what they write, and how they have
//! ended. They write to a file without a name, and no pipe, since a pipe whose reader has ended kills who writes. Of that file the last part is kept.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farshore_client::programs;
use farshore_client::vms::name_in;
use farshore_config::{Budget, ServerPlace, Size, Slowdown, SwapSpec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use crate::shapes::{Create, Kind, Level, Output, Service, State, Vm};

/// The most that run at a time.
const RUNNING: usize = 256;
/// How many that have ended are remembered, and how long.
const ENDED: (usize, Duration) = (64, Duration::from_secs(600));
/// The most words of a command, and bytes of one.
const WORDS: (usize, usize) = (1024, 4096);
/// How long it is waited for that the memory of one is managed, or it fails.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// What is told of what one has written.
const TAIL: u64 = 8 << 10;
/// When more than this lies on the disk, all but some of it is thrown away.
const WRITTEN: u64 = 1 << 20;
/// How often it is looked for that.
const LOOK: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Why something was not done: a status of HTTP, and a line.
pub type No = (u16, String);

/// All that were started here.
#[derive(Debug, Default)]
pub struct Created {
    list: Mutex<Vec<Arc<One>>>,
}

/// One of them.
#[derive(Debug)]
pub struct One {
    /// Its process, which becomes the monitor.
    pub pid: u32,
    started: u64,
    name: String,
    process: OwnedFd,
    output: File,
    ended: Mutex<Option<(Instant, ExitStatus)>>,
    /// Its memory was managed at some look.
    was_managed: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Created {
    /// Starts one. Its memory is managed, as `is_managed` says, or it has failed, or this time has passed.
    ///
    /// # Errors
    /// What is wrong with the request, or why it cannot be started.
    pub fn start(
        &self,
        farshore: &Path,
        create: &Create,
        patience: Duration,
        is_managed: &dyn Fn(u32) -> bool,
    ) -> Result<Arc<One>, No> {
        let words = words(create).map_err(|why| (400, why))?;
        let mut list = locked(&self.list);
        if list.iter().filter(|one| one.ended().is_none()).count() >= RUNNING {
            return Err((503, format!("{RUNNING} virtual machines that were started here run already: end one of them")));
        }
        let output = file().map_err(|why| {
            (503, format!("there is no file for what it writes ({why}): is /var/tmp full, or not to be written?"))
        })?;
        let mut child = spawn(farshore, &words, &output)
            .map_err(|why| (503, format!("cannot run '{}' ({why}): is Farshore installed completely?", farshore.display())))?;
        let pid = child.id();
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let (Some(Ok(process)), Ok(Some(started))) = (process, programs::started(pid)) else {
            let _ = child.kill().and_then(|()| child.wait());
            return Err((503, "no descriptor for its process is to be had: raise the limits of open files".into()));
        };
        let line: Vec<&str> = create.command.iter().map(String::as_str).collect();
        let name = name_in(&line).unwrap_or_else(|| line[0].rsplit('/').next().unwrap_or_default());
        let one = Arc::new(One {
            pid,
            started,
            name: farshore_config::plain(name),
            process,
            output,
            ended: Mutex::new(None),
            was_managed: AtomicBool::new(false),
        });
        list.push(one.clone());
        drop(list);
        let its = one.clone();
        if std::thread::Builder::new().name("daemon-wait".into()).spawn(move || its.wait(&mut child)).is_err() {
            locked(&self.list).retain(|other| !Arc::ptr_eq(other, &one));
            one.signal(Signal::KILL).map_err(|why| (503, why))?;
            // Nobody else waits for it.
            let _ = waitid(WaitId::PidFd(one.process.as_fd()), WaitIdOptions::EXITED);
            return Err((503, "no thread for it is to be had: raise the limits of processes".into()));
        }
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = one.ended() {
                return Err((400, one.why(status)));
            }
            if is_managed(pid) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(one)
    }

    /// The one of this process, if it was started here and is remembered; of those that have ended the last.
    pub fn of(&self, pid: u32) -> Option<Arc<One>> {
        let list = locked(&self.list);
        list.iter().rev().find(|one| one.pid == pid).cloned()
    }

    /// Says of all that run which were started here, and adds those that have no manager yet or have ended.
    pub fn join(&self, vms: &mut Vec<Vm>) {
        let mut list = locked(&self.list);
        let mut ended = list.iter().filter(|one| one.ended().is_some()).count();
        list.retain(|one| {
            let old = locked(&one.ended).is_some_and(|(at, _)| at.elapsed() > ENDED.1 || ended > ENDED.0);
            ended -= usize::from(old);
            !old
        });
        for one in list.iter() {
            match vms.iter_mut().find(|vm| vm.pid == one.pid && vm.started == one.started) {
                Some(vm) => {
                    vm.created = true;
                    one.was_managed.store(true, Ordering::Relaxed);
                }
                None => vms.push(one.told()),
            }
        }
        vms.sort_by_key(|vm| vm.pid);
    }
}

impl One {
    /// How it has ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        locked(&self.ended).map(|(_, status)| status)
    }

    /// Whether it is the one of that process and start.
    pub fn is(&self, vm: &Vm) -> bool {
        self.pid == vm.pid && self.started == vm.started
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// One line: it has ended, or may not be sent one.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        pidfd_send_signal(&self.process, signal)
            .map_err(|errno| format!("process {} cannot be signalled ({errno}): has it ended?", self.pid))
    }

    /// What it has written last, and how it has ended.
    pub fn output(&self) -> Output {
        Output { text: self.tail(), ended: self.ended().map(how) }
    }

    fn tail(&self) -> String {
        let size = self.output.metadata().map_or(0, |data| data.len());
        let mut bytes = vec![0; usize::try_from(size.min(TAIL)).unwrap_or(0)];
        let got = self.output.read_at(&mut bytes, size.saturating_sub(TAIL)).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..got]).into_owned();
        // What was thrown away is zeros.
        text.trim_start_matches('\0').into()
    }

    /// What is told of one that is not among those that were looked at.
    fn told(&self) -> Vm {
        let (state, why) = match self.ended() {
            Some(status) => (State::Ended, how(status)),
            None if self.was_managed.load(Ordering::Relaxed) => {
                (State::Silent, "its manager has ended: see what it has written".into())
            }
            None => (State::Starting, "its memory is not managed yet".into()),
        };
        Vm {
            pid: self.pid,
            started: self.started,
            name: self.name.clone(),
            kind: Kind::Vm,
            manager: None,
            state,
            why: Some(why),
            created: true,
            level: None,
            limit_bytes: None,
            managed_bytes: None,
            resident_bytes: None,
            out_bytes: None,
            faults_per_second: None,
            evicted_per_second: None,
            stall: None,
            slowdown: None,
            budget: None,
            policy: None,
            prefetcher: None,
            parameters: std::collections::BTreeMap::new(),
        }
    }

    /// Why it has ended at once: the last line that it has written.
    fn why(&self, status: ExitStatus) -> String {
        let said = self.tail();
        match said.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => format!("{}: {}", how(status), farshore_config::plain(line.trim_start_matches("farshore: "))),
            None => how(status),
        }
    }

    /// Waits for its end, and keeps what it writes small meanwhile.
    fn wait(&self, child: &mut Child) {
        let over = |fd: &OwnedFd| poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&LOOK)).is_ok_and(|count| count > 0);
        while !over(&self.process) {
            self.trim();
        }
        if let Ok(status) = child.wait() {
            *locked(&self.ended) = Some((Instant::now(), status));
        }
    }

    /// Gives room on the disk back that the first part of what it has written takes.
    fn trim(&self) {
        let Ok(data) = self.output.metadata() else { return };
        if data.blocks() * 512 > WRITTEN {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(&self.output, flags, 0, data.len().saturating_sub(WRITTEN / 4));
        }
    }
}

/// How a process has ended, for people.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".into(),
    }
}

/// A file without a name, at whose end everybody writes.
fn file() -> std::io::Result<File> {
    let folder = std::env::var_os("FARSHORE_SWAP_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
    Ok(File::from(open(&folder, flags, Mode::RUSR | Mode::WUSR)?))
}

fn spawn(farshore: &Path, words: &[String], output: &File) -> std::io::Result<Child> {
    Command::new(farshore)
        .args(words)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_FDNAMES")
        // Ctrl-C at the daemon's terminal is for the daemon.
        .process_group(0)
        .spawn()
}

/// The words behind `farshore` for a request.
fn words(create: &Create) -> Result<Vec<String>, String> {
    let Some(first) = create.command.first().filter(|first| !first.is_empty()) else {
        return Err(
            "command is empty: write the monitor and its arguments, such as [\"qemu-system-x86_64\", \"-m\", \"4G\"]".into()
        );
    };
    if first.starts_with('-') {
        return Err(format!("command[0] is {first:?}: write the monitor first, such as qemu-system-x86_64"));
    }
    if create.command.len() > WORDS.0 {
        return Err(format!("command has {} words: at most {} can be", create.command.len(), WORDS.0));
    }
    if let Some(at) = create.command.iter().position(|word| word.len() > WORDS.1 || word.contains('\0')) {
        return Err(format!("command[{at}] is longer than {} bytes, or has a zero byte: leave it out", WORDS.1));
    }
    // Its first process would end at once, and with it what is known of it here: its number, its end, and by which process it is told to end.
    if let Some(at) = create.command.iter().position(|word| matches!(word.as_str(), "-daemonize" | "--daemonize")) {
        return Err(format!("command[{at}] is {:?}: leave it out, it goes on without a terminal anyway", create.command[at]));
    }
    let mut words = vec!["vm".into(), "run".into()];
    words.extend(service(&create.service)?);
    for (at, spec) in create.swap.iter().enumerate() {
        let parsed: SwapSpec = spec.parse().map_err(|why| format!("swap[{at}]: {why}"))?;
        parsed.check_supported().map_err(|why| format!("swap[{at}]: {why}"))?;
        if has_relative_path(&parsed) {
            return Err(format!("swap[{at}] is {spec:?}, a relative path: give an absolute one"));
        }
        words.extend(["--swap".into(), spec.clone()]);
    }
    if create.encrypt {
        words.push("--encrypt".into());
    }
    words.push("--".into());
    words.extend(create.command.iter().cloned());
    Ok(words)
}

/// Whether a swap space has a path that is meant from where the one stands who asks: this daemon stands elsewhere.
pub fn has_relative_path(spec: &SwapSpec) -> bool {
    let is_relative = |path: &Path| path.is_relative();
    match spec {
        SwapSpec::Dir(path) | SwapSpec::File { path, .. } | SwapSpec::Dev { path, .. } => is_relative(path),
        SwapSpec::Nbd(export) => matches!(&export.server, ServerPlace::Unix(path) if is_relative(path)),
        SwapSpec::Redis(keys) => {
            matches!(&keys.server, ServerPlace::Unix(path) if is_relative(path))
                || keys.password_file.as_deref().is_some_and(is_relative)
        }
        SwapSpec::Mirror(copies) => copies.iter().any(has_relative_path),
        _ => false,
    }
}

/// The options that a service level is.
fn service(service: &Service) -> Result<Vec<String>, String> {
    let Some(level) = service.level else { return Err("service.level is missing: write fixed, slowdown or budget".into()) };
    let (name, needs, takes): (_, _, &[&str]) = match level {
        Level::Fixed => ("fixed", "memory", &["memory"]),
        Level::Slowdown => ("slowdown", "slowdown", &["slowdown", "memory_min", "memory_max"]),
        Level::Budget => ("budget", "budget", &["budget", "memory", "memory_min", "slowdown"]),
    };
    let given = [
        ("memory", &service.memory),
        ("slowdown", &service.slowdown),
        ("budget", &service.budget),
        ("memory_min", &service.memory_min),
        ("memory_max", &service.memory_max),
    ];
    let mut words = Vec::new();
    for (key, value) in given {
        let Some(value) = value else {
            if key == needs {
                return Err(format!("service.{key} is missing: level {name} wants it"));
            }
            continue;
        };
        if !takes.contains(&key) {
            return Err(format!("service.{key} is {value:?}, and does not go with level {name}: leave it out"));
        }
        let wrong = |why: &dyn std::fmt::Display| format!("service.{key}: {why}");
        match key {
            "slowdown" => drop(value.parse::<Slowdown>().map_err(|why| wrong(&why))?),
            "budget" => drop(value.parse::<Budget>().map_err(|why| wrong(&why))?),
            _ => drop(value.parse::<Size>().map_err(|why| wrong(&why))?),
        }
        words.extend([format!("--{}", key.replace('_', "-")), value.clone()]);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(service: Service, command: &[&str]) -> Create {
        Create { command: command.iter().map(|word| (*word).into()).collect(), service, swap: Vec::new(), encrypt: false }
    }

    fn fixed() -> Service {
        Service { level: Some(Level::Fixed), memory: Some("64M".into()), ..Service::default() }
    }

    #[test]
    fn a_request_is_a_command_line() {
        let line = |create: &Create| words(create).expect("it is right").join(" ");
        assert_eq!(line(&create(fixed(), &["qemu", "-m", "1G"])), "vm run --memory 64M -- qemu -m 1G");
        let slowdown = Service {
            level: Some(Level::Slowdown),
            slowdown: Some("5%".into()),
            memory_min: Some("32M".into()),
            ..Service::default()
        };
        let all = Create { swap: vec!["dir:/var/tmp".into()], encrypt: true, ..create(slowdown, &["qemu"]) };
        assert_eq!(line(&all), "vm run --slowdown 5% --memory-min 32M --swap dir:/var/tmp --encrypt -- qemu");
        let budget = Service {
            level: Some(Level::Budget),
            budget: Some("guests=8G".into()),
            memory: Some("2G".into()),
            ..Service::default()
        };
        assert_eq!(line(&create(budget, &["qemu"])), "vm run --memory 2G --budget guests=8G -- qemu");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let of = |service: Service| words(&create(service, &["qemu"])).expect_err("it is wrong");
        let with = |change: fn(&mut Service)| {
            let mut service = fixed();
            change(&mut service);
            of(service)
        };
        for (why, part) in [
            (of(Service::default()), "service.level is missing"),
            (of(Service { memory: None, ..fixed() }), "service.memory is missing: level fixed wants it"),
            (with(|it| it.memory = Some("lots".into())), "service.memory: invalid size \"lots\""),
            (with(|it| it.slowdown = Some("5%".into())), "service.slowdown is \"5%\", and does not go with level fixed"),
            (
                of(Service { level: Some(Level::Slowdown), slowdown: Some("0".into()), ..Service::default() }),
                "service.slowdown: ",
            ),
            (of(Service { level: Some(Level::Budget), budget: Some("=".into()), ..Service::default() }), "service.budget: "),
            (words(&create(fixed(), &[])).expect_err("nothing"), "command is empty"),
            (words(&create(fixed(), &["-m"])).expect_err("an option"), "command[0] is \"-m\""),
            (words(&create(fixed(), &["qemu", "a\0b"])).expect_err("a zero"), "command[1]"),
            (words(&create(fixed(), &["x"; 2000])).expect_err("long"), "command has 2000 words"),
            (
                words(&Create { swap: vec!["tape:/x".into()], ..create(fixed(), &["qemu"]) }).expect_err("no swap"),
                "swap[0]: invalid swap space \"tape:/x\"",
            ),
            (
                words(&Create { swap: vec!["dir:/x".into(), "dir:x".into()], ..create(fixed(), &["qemu"]) })
                    .expect_err("relative"),
                "swap[1] is \"dir:x\", a relative path",
            ),
            (
                words(&create(fixed(), &["qemu", "-daemonize"])).expect_err("a daemon"),
                "command[1] is \"-daemonize\": leave it out",
            ),
        ] {
            assert!(why.contains(part) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn what_fails_at_once_says_why() {
        let created = Created::default();
        let (status, why) = created
            .start(Path::new("/bin/false"), &create(fixed(), &["qemu"]), PATIENCE, &|_| false)
            .map(|one| one.pid)
            .expect_err("it fails");
        assert_eq!((status, why.as_str()), (400, "it ended with status 1"));
        let (status, why) = created
            .start(Path::new("/no/such"), &create(fixed(), &["qemu"]), PATIENCE, &|_| false)
            .map(|one| one.pid)
            .expect_err("it is not there");
        assert!(status == 503 && why.contains("'/no/such'"), "{why}");
        let mut all = Vec::new();
        created.join(&mut all);
        assert_eq!((all.len(), all[0].state, all[0].name.as_str()), (1, State::Ended, "qemu"));
    }

    #[test]
    fn the_last_of_what_it_writes_is_kept() {
        let output = file().expect("there is a disk");
        use std::io::Write;
        let line = [b'x'; 4095].iter().chain(b"\n").copied().collect::<Vec<u8>>();
        (0..1024).for_each(|_| (&output).write_all(&line).expect("there is room"));
        (&output).write_all(b"the end\n").expect("there is room");
        let pid = Pid::from_raw(std::process::id() as i32).expect("it has one");
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("it is there");
        let one = One {
            pid: 1,
            started: 1,
            name: "x".into(),
            process,
            output,
            ended: Mutex::new(None),
            was_managed: AtomicBool::new(false),
        };
        let blocks = || one.output.metadata().expect("it is open").blocks() * 512;
        let before = blocks();
        one.trim();
        assert!(before > WRITTEN && blocks() < WRITTEN, "{before} to {}", blocks());
        assert_eq!(one.told().state, State::Starting);
        one.was_managed.store(true, Ordering::Relaxed);
        assert_eq!(one.told().state, State::Silent, "its manager has ended");
        let output = one.output();
        assert!(output.text.ends_with("x\nthe end\n") && output.text.len() as u64 == TAIL && output.ended.is_none());
    }
}
