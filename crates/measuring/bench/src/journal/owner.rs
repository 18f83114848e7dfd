//! Whose a journal is, whether its process lives, and the directory of root's journals.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{NEW, PREFIX, Record};
use crate::proc;
use crate::targets::tools;

/// A process, so that no other can be taken for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Its user.
    pub uid: u32,
    /// Its id.
    pub pid: u32,
    /// When it was started: field 22 of its `stat`, in ticks since the machine was.
    pub start_time: u64,
    /// Which of its journals.
    pub number: u32,
    /// Which start of the machine.
    pub boot_id: String,
    /// In which namespace the id is valid.
    pub pid_namespace: String,
}

/// What has become of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It is there.
    Alive,
    /// It is gone.
    Dead,
    /// It was started in another container: nothing can be said from here.
    Unknown,
}

impl Owner {
    /// This process, for its journal of that number.
    ///
    /// # Errors
    /// /proc is not there.
    pub fn this(number: u32) -> Result<Owner, String> {
        let pid = std::process::id();
        let start_time = proc::start_time(pid).ok_or_else(|| format!("cannot read '/proc/{pid}/stat': mount /proc"))?;
        let uid = rustix::process::geteuid().as_raw();
        Ok(Owner { uid, pid, start_time, number, boot_id: boot_id(), pid_namespace: pid_namespace() })
    }

    /// What has become of it.
    #[must_use]
    pub fn life(&self) -> Life {
        if !self.is_of_this_boot() {
            return Life::Dead;
        }
        if self.pid_namespace != pid_namespace() {
            return Life::Unknown;
        }
        if proc::start_time(self.pid) == Some(self.start_time) { Life::Alive } else { Life::Dead }
    }

    /// Whether the machine has not been started anew since.
    #[must_use]
    pub fn is_of_this_boot(&self) -> bool {
        self.boot_id == boot_id()
    }

    /// The name of its work directory.
    #[must_use]
    pub fn directory_name(&self) -> String {
        format!("{PREFIX}{}-{}-{}-{}", self.uid, self.pid, self.start_time, self.number)
    }
}

/// Whose a work directory is by its name: user, process id, start time and number. Which start of the machine, the name does not tell: this
/// one is taken.
pub fn read_directory_name(name: &OsStr) -> Option<Owner> {
    let mut parts = name.to_str()?.strip_prefix(PREFIX)?.split('-');
    let mut next = || parts.next()?.parse::<u64>().ok();
    let (uid, pid, start_time, number) = (next()?, next()?, next()?, next()?);
    let owner = Owner {
        uid: u32::try_from(uid).ok()?,
        pid: u32::try_from(pid).ok()?,
        start_time,
        number: u32::try_from(number).ok()?,
        boot_id: boot_id(),
        pid_namespace: pid_namespace(),
    };
    // "+1" and "01" are numbers too, but not names that we give.
    (name == owner.directory_name().as_str()).then_some(owner)
}

fn boot_id() -> String {
    tools::read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default()
}

fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The directory of root's journals.
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    opened: OwnedFd,
}

/// Opens it, and makes it where it is missing.
///
/// # Errors
/// It cannot be made, or others than root can write to it.
pub fn open_run(path: &Path) -> Result<Run, String> {
    match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(format!("cannot make '{}' ({})", path.display(), tools::reason(&error.into()))),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let opened = opened.map_err(|error| format!("cannot open '{}' ({})", path.display(), tools::reason(&error.into())))?;
    let about = rustix::fs::fstat(&opened).map_err(|error| format!("'{}': {error}", path.display()))?;
    if about.st_uid != rustix::process::geteuid().as_raw() || about.st_mode & 0o077 != 0 {
        return Err(format!(
            "'{}' is not a directory of root's alone: remove it, or run 'chown root' and 'chmod 700' on it",
            path.display()
        ));
    }
    Ok(Run { path: path.to_path_buf(), opened })
}

impl Run {
    /// A process' journal.
    pub fn file(&self, owner: &Owner) -> PathBuf {
        self.path.join(format!("{}-{}-{}.json", owner.pid, owner.start_time, owner.number))
    }

    /// Keeps other processes from looking around at the same time, until what is returned is dropped.
    ///
    /// # Errors
    /// The file system has no locks.
    pub fn lock(&self) -> Result<Lock<'_>, String> {
        rustix::fs::flock(self.opened.as_fd(), FlockOperation::LockExclusive)
            .map_err(|error| format!("cannot lock '{}' ({})", self.path.display(), tools::reason(&error.into())))?;
        Ok(Lock(self))
    }

    /// All journals that can be read.
    pub fn records(&self) -> Vec<(PathBuf, Record)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().filter_map(Result::ok);
        let record = |path: PathBuf| {
            if path.extension() != Some(OsStr::new("json")) {
                return None;
            }
            let record: Record = serde_json::from_str(&fs::read_to_string(&path).ok()?).ok()?;
            // A journal by a name that is not its own is none of ours.
            (path == self.file(&record.owner)).then_some((path, record))
        };
        entries.filter_map(|entry| record(entry.path())).collect()
    }

    /// Removes what processes that are gone have only begun to write.
    pub fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().filter_map(Result::ok) {
            let name = entry.file_name();
            let numbers = || {
                let mut parts = name.to_str()?.strip_suffix(NEW)?.strip_suffix(".json")?.split('-');
                Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
            };
            if numbers().is_some_and(|(pid, start)| proc::start_time(pid) != Some(start)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Keeps a [`Run`] locked.
#[derive(Debug)]
pub struct Lock<'a>(&'a Run);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0.opened.as_fd(), FlockOperation::Unlock);
    }
}
