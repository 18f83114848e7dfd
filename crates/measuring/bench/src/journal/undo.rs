//! The things that are made, and how each is undone: by the process that made it, or by a later one.
//!
//! Undoing looks first whether the thing is there and still ours, so it can be done at any moment, and twice.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::directory;
use crate::proc;
use crate::targets::{cgroup, setting, swap, tools, zram};

/// Something that must not stay behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Thing {
    /// The work directory, with all that is in it.
    Directory {
        /// Its whole path.
        path: PathBuf,
    },
    /// A file in the work directory.
    File {
        /// Its whole path.
        path: PathBuf,
    },
    /// A swap area that is switched on.
    Swap {
        /// The file or device.
        path: PathBuf,
        /// The zram device that it is; `None`: a file in the work directory.
        device: Option<zram::Id>,
    },
    /// A cgroup.
    Cgroup {
        /// Its folder.
        path: PathBuf,
    },
    /// A controller that a cgroup's children were given.
    Controller {
        /// The cgroup's folder.
        path: PathBuf,
        /// `memory`.
        controller: String,
    },
    /// A zram device is about to be added: which one, only the kernel knows.
    ZramIntent {
        /// The devices before.
        before: Vec<u32>,
    },
    /// A zram device.
    Zram {
        /// Which.
        device: zram::Id,
    },
    /// zram's module was loaded.
    ZramModule,
    /// A setting of the kernel's that was changed.
    Parameter {
        /// Its file.
        path: PathBuf,
        /// What it was.
        former: String,
        /// What it was set to.
        ours: String,
    },
    /// A process with a group of its own that runs under a target.
    Process {
        /// Its id, and its group's.
        pid: u32,
        /// When it was started ([`Thing::process`]).
        start_time: u64,
    },
}

impl Thing {
    /// A running process; `None` if it is gone.
    #[must_use]
    pub fn process(pid: u32) -> Option<Thing> {
        proc::start_time(pid).map(|start_time| Thing::Process { pid, start_time })
    }

    /// Whether it can still be there when the machine was started anew.
    #[must_use]
    pub fn outlives_the_boot(&self) -> bool {
        matches!(self, Thing::Directory { .. } | Thing::File { .. })
    }
}

/// Undoes a thing. Returns what it was, in words, if it was there.
///
/// # Errors
/// It is still there, or cannot be told from others': one line.
pub fn undo(thing: &Thing) -> Result<Option<String>, String> {
    match thing {
        Thing::Directory { path } => {
            let removed = directory::remove(path).map_err(|error| cannot("remove", path, error))?;
            Ok(removed.then(|| format!("work directory '{}'", path.display())))
        }
        Thing::File { path } => {
            let removed = directory::remove_file(path).map_err(|error| cannot("remove", path, error))?;
            Ok(removed.then(|| format!("file '{}'", path.display())))
        }
        Thing::Swap { path, device } => undo_swap(path, *device),
        Thing::Cgroup { path } => Ok(cgroup::remove(path)?.then(|| format!("cgroup '{}'", path.display()))),
        Thing::Controller { path, controller } => {
            let done = cgroup::disable(path, controller)?;
            let what = format!("'{controller}' in '{}/cgroup.subtree_control'", path.display());
            Ok(Some(if done { what } else { format!("{what} (not removed: others rely on it by now)") }))
        }
        Thing::ZramIntent { before } => Ok(perhaps_ours(before)),
        Thing::Zram { device } => {
            let was_there = device.is_still_there();
            if was_there && device.diskseq.is_none() && is_on(&PathBuf::from(format!("/dev/zram{}", device.number)))? {
                return Ok(Some(format!("zram{} is in use: whose it is cannot be told; it was left", device.number)));
            }
            zram::remove(*device)?;
            Ok(was_there.then(|| format!("device zram{}", device.number)))
        }
        Thing::ZramModule => zram::unload().map(|()| None),
        Thing::Parameter { path, former, ours } => {
            let differs = tools::read(path).is_ok_and(|value| value == *ours);
            setting::restore(path, former, ours)?;
            Ok(differs.then(|| format!("setting '{}': back to {former}", path.display())))
        }
        Thing::Process { pid, start_time } => Ok(end_process(*pid, *start_time).then(|| format!("process {pid} (ended)"))),
    }
}

/// Undoes things, the last one first. Returns those that are still there, in order, and why; `tell` is told what was there.
pub fn undo_all(things: &[Thing], mut tell: impl FnMut(String)) -> (Vec<Thing>, Vec<String>) {
    let (mut left, mut problems) = (Vec::new(), Vec::new());
    for thing in things.iter().rev() {
        match undo(thing) {
            Ok(what) => what.into_iter().for_each(&mut tell),
            Err(why) => {
                problems.push(why);
                left.push(thing.clone());
            }
        }
    }
    left.reverse();
    (left, problems)
}

fn cannot(what: &str, path: &Path, error: rustix::io::Errno) -> String {
    format!("cannot {what} '{}' ({})", path.display(), tools::reason(&error.into()))
}

fn is_on(path: &Path) -> Result<bool, String> {
    Ok(swap::active()?.iter().any(|area| area.path == path))
}

fn undo_swap(path: &Path, device: Option<zram::Id>) -> Result<Option<String>, String> {
    if !is_on(path)? {
        return Ok(None);
    }
    let is_ours = match device {
        Some(device) => device.is_still_there(),
        None => is_in_work_directory(path)?,
    };
    if !is_ours {
        return Ok(None);
    }
    swap::off(path)?;
    Ok(Some(format!("swap area '{}'", path.display())))
}

/// Whether the path's folder is a work directory of our user's.
fn is_in_work_directory(path: &Path) -> Result<bool, String> {
    let Some(folder) = path.parent() else { return Ok(false) };
    directory::open(folder).map(|opened| opened.is_some()).map_err(|error| cannot("open", folder, error))
}

fn perhaps_ours(before: &[u32]) -> Option<String> {
    let mut new = zram::present();
    new.retain(|number| !before.contains(number));
    let names: Vec<String> = new.iter().map(|number| format!("zram{number}")).collect();
    (!names.is_empty()).then(|| {
        let all = names.join(", ");
        format!("perhaps {all}, which cannot be told for certain: remove it by 'echo N > /sys/class/zram-control/hot_remove' if it is nobody's")
    })
}

/// Ends a process and its group, if it is still the same.
fn end_process(pid: u32, start_time: u64) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { return false };
    // Held, the number cannot become another's between the look and the end.
    let Ok(held) = rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty()) else { return false };
    if proc::start_time(pid) != Some(start_time) {
        return false;
    }
    let is_leader = rustix::process::getpgid(Some(id)) == Ok(id);
    if is_leader {
        let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
    }
    rustix::process::pidfd_send_signal(held, rustix::process::Signal::KILL).is_ok()
}
