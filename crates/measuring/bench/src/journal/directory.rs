//! Work directories: made, opened and removed so that nobody who can write to the directory around them can lead us elsewhere.
//!
//! The name is looked up once, without following a link, and what was opened must be of our user alone. From there on everything is
//! reached from what was opened, not by its name again.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RawMode};
use rustix::io::Errno;

use super::owner::read_directory_name;
use crate::targets::tools;

/// What a directory is opened with.
const FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Refuses root a directory that another user could put elsewhere: one whose path, from the root directory on, leads through a directory that is not root's, or that
/// others can write to and take names out of (the sticky bit keeps them from that). What root makes there it uses by name: swap files, counters, sockets.
/// `directory` is canonical. Other users may work where they like: what they can be led to is their own.
///
/// # Errors
/// Which directory it is, and whose: one line.
pub fn trust(directory: &Path) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // From the root directory down: nobody but root can change what lies in one that was found good.
    let mut all: Vec<&Path> = directory.ancestors().collect();
    all.reverse();
    for path in all {
        let why = match rustix::fs::lstat(path) {
            Err(error) => format!("cannot be looked at ({})", tools::reason(&error.into())),
            Ok(about) if FileType::from_raw_mode(about.st_mode) != FileType::Directory => "is not a directory any more".into(),
            Ok(about) if about.st_uid != 0 => format!("belongs to user {}", about.st_uid),
            Ok(about) if about.st_mode & 0o022 != 0 && about.st_mode & 0o1000 == 0 => "can be written to by others".into(),
            Ok(_) => continue,
        };
        let (directory, path) = (directory.display(), path.display());
        return Err(format!(
            "root does not work in '{directory}': '{path}' {why}, who could lead root elsewhere: name a directory of root's by --dir, such as /var/tmp"
        ));
    }
    Ok(())
}

/// Makes a work directory and locks it: what is returned holds the lock.
pub fn make(path: &Path) -> std::io::Result<OwnedFd> {
    rustix::fs::mkdirat(CWD, path, Mode::RWXU)?;
    let opened = open(path).and_then(|opened| {
        let opened = opened.ok_or(Errno::PERM)?;
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            // Some file systems have no locks: then the process alone tells that it is alive.
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(opened),
            Err(error) => Err(error),
        }
    });
    if opened.is_err() {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR);
    }
    Ok(opened?)
}

/// Opens a work directory of this user's. `None`: there is none of that name that is ours alone.
pub fn open(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let user = rustix::process::geteuid().as_raw();
    if read_directory_name(path.file_name().unwrap_or(OsStr::new(""))).is_none_or(|owner| owner.uid != user) {
        return Ok(None);
    }
    let opened = match rustix::fs::openat(CWD, path, FLAGS, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error),
    };
    let about = rustix::fs::fstat(&opened)?;
    let is_ours = about.st_uid == user && about.st_mode & 0o022 == 0;
    Ok(is_ours.then_some(opened))
}

/// Whether a living process holds the directory's lock.
pub fn is_locked(opened: BorrowedFd<'_>) -> bool {
    rustix::fs::flock(opened, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

/// Removes a work directory and everything in it. Says whether it was there and ours.
pub fn remove(path: &Path) -> Result<bool, Errno> {
    let Some(opened) = open(path)? else { return Ok(false) };
    remove_contents(opened.as_fd())?;
    // Only an empty directory, or nothing, can be removed by this: at worst the name is another's empty directory by now.
    match rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Removes a file in a work directory. Says whether it was there.
pub fn remove_file(path: &Path) -> Result<bool, Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let Some(opened) = open(parent)? else { return Ok(false) };
    match rustix::fs::unlinkat(&opened, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove_contents(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let about = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // A symbolic link is removed, not followed.
        if FileType::from_raw_mode(about.st_mode as RawMode) == FileType::Directory {
            let inner = rustix::fs::openat(directory, name, FLAGS, Mode::empty())?;
            remove_contents(inner.as_fd())?;
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
        } else {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
        }
    }
    Ok(())
}
