//! A memory cgroup of our own, version 2 where its memory controller is there, else version 1.
//!
//! # Where it is made
//!
//! As near as can be to the cgroup in which this command runs, so that whatever else limits it limits the program too.
//!
//! * **Version 1**: below our own cgroup; at the top of the hierarchy where /proc tells of one that is not visible (in a container).
//! * **Version 2**: processes may not be in a cgroup whose children have a memory controller (but for the root), so it is mostly our cgroup's
//!   sibling: the nearest ancestor that already gives its children the controller; else the nearest that can be made to. The latter is a
//!   change that others see: it is written down, and undone behind the run unless others have begun to rely on it.
//!
//! A fresh one for each run: what it has counted is of that run alone.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::targets::{swap, tools};

/// Each of our cgroups' names begins so; the process' id and start time follow.
pub const PREFIX: &str = "farshore-bench-";
/// How long ending what is in a cgroup, and removing it, is tried.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// Enters the cgroup and becomes the program.
const ENTER: &str = "echo $$ > \"$0\" && exec \"$@\"";
/// No limit, in version 2.
const UNLIMITED: &str = "max";

/// The two versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// A hierarchy for the memory controller alone.
    One,
    /// One hierarchy for all.
    Two,
}

/// A hierarchy that has the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// Where it is mounted.
    pub base: PathBuf,
    /// The cgroup in which this command runs, as a path within `base`.
    pub own: PathBuf,
    /// `memory`.
    pub controller: &'static str,
}

/// Where version 2 may be mounted, and version 1.
const BASES: ([&str; 2], &str) = (["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "/sys/fs/cgroup/memory");

impl Hierarchy {
    /// The hierarchy of this machine that has the memory controller.
    ///
    /// # Errors
    /// There is none.
    pub fn find() -> Result<Hierarchy, String> {
        let told = tools::read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        Hierarchy::find_among(&BASES.0.map(Path::new), Path::new(BASES.1), &told)
    }

    /// The same, where hierarchies may be at other places: `told` is what `/proc/self/cgroup` says.
    ///
    /// # Errors
    /// There is none.
    pub fn find_among(unified: &[&Path], memory: &Path, told: &str) -> Result<Hierarchy, String> {
        let controller = "memory";
        let has = |base: &&&Path| words_of(&base.join("cgroup.controllers")).iter().any(|word| word == controller);
        if let Some(base) = unified.iter().find(has) {
            return Ok(Hierarchy { version: Version::Two, base: base.to_path_buf(), own: own_of(told, ""), controller });
        }
        if memory.join("memory.limit_in_bytes").is_file() {
            return Ok(Hierarchy {
                version: Version::One,
                base: memory.to_path_buf(),
                own: own_of(told, controller),
                controller,
            });
        }
        Err(format!(
            "no memory cgroup: neither is 'memory' in '{}/cgroup.controllers', nor is there '{}': mount one, or start Linux with cgroup_enable=memory",
            unified.first().unwrap_or(&Path::new("")).display(),
            memory.display()
        ))
    }

    /// Our own cgroup and the ones above it, nearest first, as far as they are visible.
    fn ancestors(&self) -> Vec<PathBuf> {
        let all = self.own.ancestors().map(|part| self.base.join(part));
        let mut visible: Vec<PathBuf> = all.filter(|path| path.join("cgroup.procs").exists()).collect();
        if visible.is_empty() {
            visible.push(self.base.clone());
        }
        visible
    }

    /// Below which cgroup ours can be made, and whether it must be made to give its children the controller first.
    ///
    /// # Errors
    /// Below none.
    pub fn parent(&self) -> Result<Parent, String> {
        let ancestors = self.ancestors();
        if self.version == Version::One {
            return Ok(Parent { path: ancestors[0].clone(), enable: false });
        }
        let gives = |path: &&PathBuf| words_of(&path.join(CONTROL)).iter().any(|word| word == self.controller);
        if let Some(path) = ancestors.iter().find(gives) {
            return Ok(Parent { path: path.clone(), enable: false });
        }
        let can = |path: &&PathBuf| {
            // The root may have processes of its own, and has no type; in others they are in the way.
            let root = !path.join("cgroup.type").exists();
            let empty = words_of(&path.join("cgroup.procs")).is_empty();
            words_of(&path.join("cgroup.controllers")).iter().any(|word| word == self.controller) && (root || empty)
        };
        if let Some(path) = ancestors.iter().find(can) {
            return Ok(Parent { path: path.clone(), enable: true });
        }
        Err(format!(
            "no cgroup can be made with the {} controller: '{}' does not have it, and processes in the cgroups above keep it from being added",
            self.controller,
            self.base.join(CONTROL).display()
        ))
    }

    /// Makes the children of `parent` have the controller.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enable(&self, parent: &Path) -> Result<(), String> {
        tools::write(&parent.join(CONTROL), &format!("+{}", self.controller))
    }
}

/// Which controllers the children have.
const CONTROL: &str = "cgroup.subtree_control";

/// Where a cgroup can be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parent {
    /// Its parent.
    pub path: PathBuf,
    /// Whether the controller must be added to its `cgroup.subtree_control` first.
    pub enable: bool,
}

fn words_of(file: &Path) -> Vec<String> {
    tools::read(file).unwrap_or_default().split_whitespace().map(str::to_string).collect()
}

/// Our cgroup out of `/proc/self/cgroup`: the line `N:controllers:/path`; version 2's has no controllers. Relative.
fn own_of(told: &str, controller: &str) -> PathBuf {
    let path = told.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|word| word == controller).then_some(path)
    });
    // A path with ".." leads out of what is visible.
    let path = path.filter(|path| !path.split('/').any(|part| part == ".."));
    PathBuf::from(path.unwrap_or_default().trim_start_matches('/'))
}

/// Stops giving the children of `parent` the controller, unless others rely on it by now: a child with a limit, or another of our kind.
/// Says whether it was done.
///
/// # Errors
/// The kernel refuses.
pub fn disable(parent: &Path, controller: &str) -> Result<bool, String> {
    if !words_of(&parent.join(CONTROL)).iter().any(|word| word == controller) {
        return Ok(true);
    }
    let children = fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let relies = |child: PathBuf| {
        let ours = child.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
        child.is_dir() && (ours || tools::read(&child.join("memory.max")).is_ok_and(|limit| limit != UNLIMITED))
    };
    if children.into_iter().any(relies) {
        return Ok(false);
    }
    tools::write(&parent.join(CONTROL), &format!("-{controller}")).map(|()| true)
}

/// A cgroup of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cgroup {
    /// Its folder.
    pub path: PathBuf,
    version: Version,
}

impl Cgroup {
    /// One that is not made yet.
    #[must_use]
    pub fn at(path: PathBuf, version: Version) -> Cgroup {
        Cgroup { path, version }
    }

    /// Makes it, with a limit in bytes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn make(&self, limit: u64) -> Result<(), String> {
        fs::create_dir(&self.path)
            .map_err(|error| format!("cannot make the cgroup '{}' ({})", self.path.display(), tools::reason(&error)))?;
        self.set_limit(limit)
    }

    /// Gives it another limit, in bytes. The kernel makes it true before this returns.
    ///
    /// # Errors
    /// The kernel refuses, or cannot move enough out.
    pub fn set_limit(&self, limit: u64) -> Result<(), String> {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        tools::write(&self.path.join(file), &limit.to_string())
    }

    /// What it counts now, in bytes; 0 if it cannot be told.
    #[must_use]
    pub fn usage_bytes(&self) -> u64 {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// The number in its file of this name in version 1 or 2; 0 if it cannot be told.
    fn number(&self, one: &str, two: &str) -> u64 {
        let file = match self.version {
            Version::One => one,
            Version::Two => two,
        };
        tools::read(&self.path.join(file)).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The command that enters it and becomes `program`.
    #[must_use]
    pub fn command(&self, program: &[OsString]) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(ENTER).arg(self.path.join("cgroup.procs")).args(program);
        command
    }

    /// The most that it has counted, in bytes; 0 if the kernel does not tell (version 2 before Linux 5.19).
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    /// How many of its processes the kernel has killed because of the limit.
    #[must_use]
    pub fn killed(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        swap::value(&tools::read(&self.path.join(file)).unwrap_or_default(), "oom_kill")
    }
}

/// Whether a cgroup's name says that it is of our kind.
#[must_use]
pub fn is_named_as_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
}

/// Ends all processes in a cgroup of ours, and removes it. Says whether it was there.
///
/// # Errors
/// Its name is not of our kind, or it is still there.
pub fn remove(path: &Path) -> Result<bool, String> {
    if !is_named_as_ours(path) {
        return Err(format!("'{}' is no cgroup of ours", path.display()));
    }
    let until = Instant::now() + PATIENCE;
    let mut was_there = false;
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(was_there),
            Err(error) if Instant::now() > until => {
                return Err(format!("cannot remove the cgroup '{}' ({})", path.display(), tools::reason(&error)));
            }
            Err(_) => was_there = true,
        }
        empty(path);
        std::thread::sleep(PAUSE);
    }
}

/// Ends all processes in a cgroup of ours, which may take a moment to be gone. Says whether there were none.
pub fn empty(path: &Path) -> bool {
    let words = words_of(&path.join("cgroup.procs"));
    for word in &words {
        let Some(pid) = word.parse().ok().and_then(rustix::process::Pid::from_raw) else { continue };
        // The number may be another process' by now: hold it, look again, then end what is held.
        let Ok(held) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { continue };
        if words_of(&path.join("cgroup.procs")).contains(word) {
            let _ = rustix::process::pidfd_send_signal(held, rustix::process::Signal::KILL);
        }
    }
    words.is_empty()
}

#[cfg(test)]
#[path = "cgroup/tests.rs"]
mod tests;
