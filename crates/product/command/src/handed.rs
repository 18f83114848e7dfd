//! Descriptors that were handed on to this process by the one that started it.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::FdFlags;

use crate::refusal::Refusal;

/// The first descriptor that a service manager hands on (`sd_listen_fds(3)`).
const FIRST: i32 = 3;

/// A descriptor that was handed on to this process, by its number. No program that is started from here inherits it.
///
/// # Errors
/// It is not there.
pub fn adopt(number: i32) -> Result<OwnedFd, Refusal> {
    std::fs::symlink_metadata(format!("/proc/self/fd/{number}"))
        .map_err(|error| Refusal::failed(format!("descriptor {number} was not handed on ({error})")))?;
    // SAFETY: it is open; whoever started this process has left it open for it, and no other code here knows the number.
    let taken = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&taken, FdFlags::CLOEXEC)
        .map_err(|errno| Refusal::failed(format!("descriptor {number} cannot be kept ({errno})")))?;
    Ok(taken)
}

/// The sockets that a service manager has handed on (`LISTEN_FDS`), if they are for this process. Call it once.
///
/// # Errors
/// The variables are wrong, or a descriptor is not there.
pub fn sockets() -> Result<Vec<OwnedFd>, Refusal> {
    let of = |name: &str| std::env::var(name).ok();
    let count = numbers(of("LISTEN_PID"), of("LISTEN_FDS"), std::process::id()).map_err(Refusal::cannot_start)?;
    (FIRST..FIRST + count).map(adopt).collect()
}

/// How many there are, by what the variables say.
fn numbers(pid: Option<String>, count: Option<String>, own: u32) -> Result<i32, String> {
    match (pid, count) {
        // They are for a process that has started this one.
        (Some(pid), Some(_)) if pid.parse() != Ok(own) => Ok(0),
        (Some(_), Some(count)) => match count.parse() {
            Ok(count) if (0..=64).contains(&count) => Ok(count),
            _ => Err(format!("LISTEN_FDS is \"{count}\": it should be a number of sockets, at most 64, as systemd sets it")),
        },
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_others_is_left() {
        let of = |pid: Option<&str>, count: Option<&str>| numbers(pid.map(Into::into), count.map(Into::into), 7);
        assert_eq!((of(Some("7"), Some("2")), of(Some("8"), Some("2"))), (Ok(2), Ok(0)));
        assert_eq!((of(None, Some("2")), of(Some("7"), None), of(None, None)), (Ok(0), Ok(0), Ok(0)));
        for count in ["-1", "65", "x", ""] {
            assert!(of(Some("7"), Some(count)).unwrap_err().contains(&format!("LISTEN_FDS is {count:?}")));
        }
        assert!(adopt(900_000).unwrap_err().text.contains("was not handed on"));
    }
}
