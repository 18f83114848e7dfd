//! Finds a file as `execve` and `execveat` do.

use crate::Obstacle;
use core::ffi::CStr;
use core::fmt::Write;
use farshore_sys::fd::{self, Fd};
use farshore_sys::raw::Errno;
use rustix::fs::{Access, FileType};

/// "Relative to the current directory", in place of a descriptor.
pub const AT_FDCWD: i32 = -100;
/// `execveat`: do not follow a symbolic link at the end of the path.
pub const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
/// `execveat`: with an empty path, the descriptor itself is the file.
pub const AT_EMPTY_PATH: u32 = 0x1000;

const O_PATH: u64 = 0o10_000_000;
const O_NOFOLLOW: u64 = 0o400_000;
const O_NONBLOCK: u64 = 0o4_000;
const O_NOCTTY: u64 = 0o400;

/// What an exec names.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What a relative path begins at: a descriptor, or [`AT_FDCWD`].
    pub directory: i32,
    /// The path.
    pub path: &'a CStr,
    /// Flags of `execveat`.
    pub flags: u32,
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl Place {
    /// Of the file at `path`.
    ///
    /// # Errors
    /// What stat(2) answers.
    pub fn of(path: &CStr) -> Result<Place, Errno> {
        let about = rustix::fs::stat(path).map_err(errno)?;
        Ok(Place { device: about.st_dev, inode: about.st_ino })
    }
}

impl<'a> Program<'a> {
    /// What `execve` names by `path`.
    pub const fn at(path: &'a CStr) -> Program<'a> {
        Program { directory: AT_FDCWD, path, flags: 0 }
    }

    /// Opens it for reading. What is no regular file is not opened: that could wait, or have effects.
    pub(crate) fn open(&self) -> Result<Fd, Obstacle> {
        let file = self.open_with(O_PATH).map_err(Obstacle::Missing)?;
        let about = rustix::fs::fstat(&file).map_err(|why| Obstacle::Missing(errno(why)))?;
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(Obstacle::NotAFile);
        }
        // If it is another file by now, the answer is about that: the kernel will look for itself too.
        self.open_with(fd::O_RDONLY | O_NONBLOCK | O_NOCTTY).map_err(Obstacle::Unreadable)
    }

    fn open_with(&self, flags: u64) -> Result<Fd, Errno> {
        if self.flags & AT_EMPTY_PATH != 0 && self.path.is_empty() {
            return again(self.directory, flags);
        }
        let link = if self.flags & AT_SYMLINK_NOFOLLOW != 0 { O_NOFOLLOW } else { 0 };
        fd::open_at(self.directory, self.path, flags | link)
    }
}

/// Opens the file behind a descriptor once more.
fn again(descriptor: i32, flags: u64) -> Result<Fd, Errno> {
    let mut path = Text { bytes: [0; 32], len: 0 };
    // "/proc/self/fd/" and at most eleven digits: there is room.
    let _ = write!(path, "/proc/self/fd/{descriptor}");
    fd::open_at(AT_FDCWD, CStr::from_bytes_until_nul(&path.bytes).unwrap_or_default(), flags)
}

struct Text {
    bytes: [u8; 32],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.len + text.len();
        // The last byte stays zero.
        if end >= self.bytes.len() {
            return Err(core::fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Whether a script's interpreter may be executed.
pub fn may_execute(path: &CStr) -> Result<(), Obstacle> {
    rustix::fs::access(path, Access::EXEC_OK).map_err(|why| Obstacle::NotExecutable(errno(why)))
}

pub fn errno(why: rustix::io::Errno) -> Errno {
    Errno(why.raw_os_error())
}
