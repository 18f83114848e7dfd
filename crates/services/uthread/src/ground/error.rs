//! What can go wrong, and what to do then.

use core::fmt;

/// Why a runtime cannot start, or not be shut down.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A value of the configuration is refused.
    Config {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        want: &'static str,
    },
    /// The kernel refused something.
    System {
        /// What was tried, and what may help.
        what: &'static str,
        /// With which value.
        value: u64,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// Panics are to be reported, but the program is compiled with `panic = "abort"`, which ends it at a panic.
    CannotCatchPanics,
    /// The thread has a hardware shadow stack, which a switch of stacks would break.
    ShadowStack,
    /// A shutdown was asked for by a unithread of the same runtime, for which it would wait.
    FromInside,
    /// Time is over, and so many unithreads have not ended. Their workers go on.
    NotEnded(u32),
    /// A forked child has no workers that could end.
    Forked,
}

impl Error {
    /// The kernel's last answer to this thread.
    pub(crate) fn system(what: &'static str, value: u64) -> Error {
        Error::System { what, value, error: std::io::Error::last_os_error() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config { what, value, want } => write!(f, "{what} cannot be {value}: {want}"),
            Error::System { what, value, error } => write!(f, "{what}: {value}: {error}"),
            Error::CannotCatchPanics => {
                write!(
                    f,
                    "panics cannot be reported in a program that is compiled with panic = \"abort\": choose Panics::End, or panic = \"unwind\""
                )
            }
            Error::ShadowStack => write!(
                f,
                "this thread has a shadow stack, and stacks cannot be switched: start the program with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
            ),
            Error::FromInside => write!(f, "a unithread cannot wait for the end of its own runtime: shut it down from a thread"),
            Error::Forked => write!(f, "this is a forked child, which has no workers: it can exec or exit"),
            Error::NotEnded(left) => write!(f, "{left} unithreads have not ended in time"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Why no unithread was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpawnError {
    /// All of the pool's unithreads are in use: so many. Try again when one has ended, or configure more.
    Full(usize),
    /// What is to be moved to the stack has so many bytes: more than a quarter of the stack. Box it.
    TooLarge(usize),
    /// A request is longer than the request buffer.
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// The buffer's.
        room: usize,
    },
    /// The runtime is being shut down.
    Stopping,
    /// The caller is no unithread, so there is no runtime to spawn on: use a `Handle`.
    NotInside,
    /// This is a forked child, which has no workers.
    Forked,
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::Full(count) => write!(f, "all {count} unithreads are in use"),
            SpawnError::TooLarge(bytes) => write!(f, "{bytes} bytes are more than a quarter of a unithread's stack: box them"),
            SpawnError::TooLong { bytes, room } => {
                write!(f, "a request of {bytes} bytes is longer than the request buffer ({room}): configure more")
            }
            SpawnError::Stopping => write!(f, "the runtime is being shut down"),
            SpawnError::Forked => write!(f, "this is a forked child, which has no workers: it can exec or exit"),
            SpawnError::NotInside => write!(f, "not called by a unithread: spawn with a handle of the runtime"),
        }
    }
}

impl std::error::Error for SpawnError {}

/// The wait was ended early, because the runtime is being shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the runtime is being shut down")
    }
}

impl std::error::Error for Stopped {}
