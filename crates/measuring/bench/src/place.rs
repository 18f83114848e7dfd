//! Files of results, put where they belong as a whole.
//!
//! A new file without a name that anybody could have guessed, made in the directory that was opened, and given its name there when it is complete. So nothing is ever written
//! through a link, or into a file that somebody else has open; and what was there stays until the new one is complete.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Error, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// Names that are tried before one is free.
const TRIES: u32 = 16;

/// A file that has not its name yet. Dropped before, it is gone.
#[derive(Debug)]
pub struct New {
    directory: OwnedFd,
    /// Its name for now.
    temporary: OsString,
    /// The name that it will have.
    name: OsString,
    file: File,
    complete: bool,
}

impl New {
    /// Begins a file that will be `path`.
    ///
    /// # Errors
    /// The directory cannot be written to, or what is there already is no regular file: a link, a device.
    pub fn begin(path: &Path) -> std::io::Result<New> {
        let name = path.file_name().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it names no file"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = openat(CWD, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
            Ok(about) if FileType::from_raw_mode(about.st_mode as RawMode) == FileType::RegularFile => {}
            Ok(_) => {
                return Err(Error::new(ErrorKind::InvalidInput, "what is there is no regular file, and links are not followed"));
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let mut temporary = OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{:016x}", RandomState::new().build_hasher().finish()));
            // As other programs' files: the umask takes away what it takes away.
            match openat(&directory, &temporary, flags, Mode::from_raw_mode(0o666)) {
                Ok(file) => return Ok(New { directory, temporary, name: name.into(), file: file.into(), complete: false }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Gives it its bytes and its name.
    fn complete(mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.complete {
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

/// Writes `path`, as a whole or not at all.
///
/// # Errors
/// As [`New::begin`]; or there is no room.
pub fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    New::begin(path)?.complete(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.json");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        drop(New::begin(&path).unwrap());
        assert_eq!((fs::read(&path).unwrap().as_slice(), names(directory.path())), (&b"two"[..], vec!["out.json".into()]));
        assert!(write(&directory.path().join("nowhere/out.json"), b"").is_err() && write(Path::new("/"), b"").is_err());
    }

    #[test]
    fn links_and_devices_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let precious = directory.path().join("precious");
        fs::write(&precious, "x").unwrap();
        let path = directory.path().join("out.json");
        // Where a name for the time being could be guessed, as it could once.
        symlink(&precious, directory.path().join("out.json.new")).unwrap();
        write(&path, b"one").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&precious, &path).unwrap();
        assert!(write(&path, b"two").unwrap_err().to_string().contains("links are not followed"));
        assert!(write(Path::new("/dev/null"), b"two").is_err());
        assert_eq!(fs::read(&precious).unwrap(), b"x");
        assert_eq!(names(directory.path()), ["out.json", "out.json.new", "precious"]);
    }
}
