//! Why a swap space cannot be used, in words for the user.

use crate::encrypt::CipherError;
use farshore_config::{ConfigError, Size};
use farshore_core::seams::IoError;
use farshore_core::slots::arrangement::SPACES_MAX;
use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;

/// Why a swap space cannot be opened. Displays as one line: what failed, with which value, what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The list of spaces is empty.
    NoSpace,
    /// A pool that decides how much memory it is worth is alone.
    NothingBehind,
    /// The directory is not there.
    Missing(PathBuf),
    /// The path is something other than a directory.
    NotDirectory(PathBuf),
    /// This user may not write there.
    NotWritable(PathBuf, Errno),
    /// A file with content is there already.
    FileExists {
        /// Its path.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The path is not a regular file: `a block device`, `a directory` …
    NotAFile {
        /// Its path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A block device cannot be used.
    Device {
        /// Its path.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// An export of a server cannot be used.
    Server {
        /// Its address.
        export: String,
        /// Why not, and what to do.
        why: String,
    },
    /// The disk has too little room.
    Full {
        /// A path on it.
        path: PathBuf,
        /// What is free, in bytes.
        free: u64,
    },
    /// The space is smaller than the smallest that can be used.
    TooSmall {
        /// The name of the space.
        what: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// This much memory cannot be reserved.
    NoMemory {
        /// How much, in bytes.
        bytes: u64,
        /// The kernel's reason.
        errno: Errno,
    },
    /// Spaces of kinds that cannot be used together.
    Mixed(String, String),
    /// A kind that comes later.
    Config(ConfigError),
    /// The space should be encrypted, and there is no key.
    Cipher(CipherError),
    /// `FARSHORE_FAULTY` cannot be read.
    Faulty(String),
    /// There are as many spaces as there can be.
    TooMany(usize),
    /// The kernel does not take the file for asynchronous writes.
    Ring {
        /// The name of the space.
        what: String,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The copies of a space cannot be used together.
    Copies {
        /// The space, or one of its copies.
        what: String,
        /// Why not.
        why: IoError,
    },
    /// Two copies of a space are one place by two names.
    OnePlace {
        /// The one.
        what: String,
        /// The other.
        there: String,
    },
    /// Anything else.
    Io {
        /// What the backend was doing.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// The smallest space: one extent, which is how slots are handed out.
pub const SMALLEST_BYTES: u64 = (farshore_core::limits::EXTENT_SLOTS * farshore_core::limits::PAGE_SIZE) as u64;

impl OpenError {
    /// What a write to a space ends with that could not be opened for this reason.
    pub(crate) fn for_writes(&self) -> IoError {
        let errno = match self {
            OpenError::Full { .. } => return IoError::Full,
            OpenError::Missing(_) => Errno::NOENT,
            OpenError::NotDirectory(_) => Errno::NOTDIR,
            OpenError::NotWritable(_, errno) | OpenError::Ring { errno, .. } | OpenError::Io { errno, .. } => *errno,
            _ => Errno::NXIO,
        };
        IoError::Device(errno.raw_os_error())
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let smallest = Size(SMALLEST_BYTES);
        match self {
            OpenError::NoSpace => f.write_str("no swap space is named: use --swap dir:PATH"),
            OpenError::NothingBehind => f.write_str("ram:auto weighs compressed RAM against the space behind it, and there is none: add --swap dir:PATH, or write ram:lz4"),
            OpenError::Missing(path) => {
                write!(f, "swap directory {path:?} does not exist: create it, or name another with --swap dir:PATH")
            }
            OpenError::NotDirectory(path) => {
                write!(f, "swap directory {path:?} is not a directory: name one with --swap dir:PATH, or use --swap file:PATH")
            }
            OpenError::NotWritable(path, errno) => {
                write!(f, "swap path {path:?} is not writable ({errno}): change its permissions, or name another with --swap")
            }
            OpenError::FileExists { path, bytes } => {
                write!(f, "swap file {path:?} exists and holds {bytes} bytes: remove it, or name another with --swap file:PATH")
            }
            OpenError::NotAFile { path, kind: kind @ "a block device" } => {
                write!(f, "swap file {path:?} is {kind}: write dev: instead of file:")
            }
            OpenError::NotAFile { path, kind } => {
                write!(f, "swap file {path:?} is {kind}: name a file that does not exist yet with --swap file:PATH")
            }
            OpenError::Device { path, why } => write!(f, "swap device {path:?} cannot be used: {why}"),
            OpenError::Server { export, why } => write!(f, "swap space {export:?} cannot be used: {why}"),
            OpenError::Full { path, free } => write!(
                f,
                "the disk of swap path {path:?} is full ({} KiB free, {smallest} needed at the least): make room, or name another with --swap",
                free >> 10
            ),
            OpenError::TooSmall { what, bytes } => {
                write!(f, "swap space {what:?} is too small ({} KiB): give it {smallest} or more", bytes >> 10)
            }
            OpenError::NoMemory { bytes, errno } => {
                write!(f, "{} of memory for swap space ram cannot be reserved ({errno}): name a smaller size=", Size(*bytes))
            }
            OpenError::Mixed(one, other) => write!(
                f,
                "swap spaces {one:?} and {other:?} cannot be used together: name several dir:, file: and dev: spaces, several of delay:, or one of another kind; \
                 one pool (ram:lz4, ram:zstd, ram:auto) may come before them"
            ),
            OpenError::Config(error) => error.fmt(f),
            OpenError::Cipher(error) => error.fmt(f),
            OpenError::Faulty(why) => write!(f, "FARSHORE_FAULTY: {why}"),
            OpenError::TooMany(count) => {
                write!(f, "{count} swap spaces are more than the {SPACES_MAX} that can be used: name fewer, on the fastest disks")
            }
            OpenError::Ring { what, errno } => {
                write!(f, "io_uring does not take the file of swap space {what:?} ({errno}): try again, or name another place")
            }
            OpenError::Copies { what, why } => {
                write!(f, "swap space {what} cannot be one of several copies ({why}): look at it, or name another")
            }
            OpenError::OnePlace { what, there } => {
                write!(f, "swap space {what} is the same place as {there}, by another name: name another for one of the two copies")
            }
            OpenError::Io { doing, path, errno } => {
                write!(f, "cannot {doing} {path:?} ({errno}): name another place with --swap")
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl From<ConfigError> for OpenError {
    fn from(error: ConfigError) -> OpenError {
        OpenError::Config(error)
    }
}

impl From<CipherError> for OpenError {
    fn from(error: CipherError) -> OpenError {
        OpenError::Cipher(error)
    }
}
