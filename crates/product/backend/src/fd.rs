//! Descriptors under numbers that the program does not come across.

use farshore_sys::fd::Fd;
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicI32, Ordering};

/// How far below the program's limit of descriptors Farshore's descriptors lie: room for all that it opens.
const ROOM: u64 = 64;
/// The highest number we ask for. `fork` copies the table of descriptors up to the highest one in use, and a
/// limit may be a thousand million: at 4,096 that costs microseconds, and few programs name numbers above it.
const HIGHEST: u64 = 4096;

/// The same open file under a high number and close-on-exec, so that the program finds its own low numbers
/// as it would without us. The number is at or above the soft limit of descriptors less 64 (4,096 at
/// most); lower, if the kernel has none there. The old number is closed.
///
/// # Errors
/// `EMFILE` when no number at all is free.
pub fn place_high(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: an open descriptor, given away by `into_raw_fd`.
    let high = raise(unsafe { Fd::from_raw(fd.into_raw_fd()) })?;
    // SAFETY: as above, by `into_raw`.
    Ok(unsafe { OwnedFd::from_raw_fd(high.into_raw()) })
}

/// As [`place_high`], for a descriptor that is closed without libc: also for a thread in a fault.
///
/// # Errors
/// As [`place_high`].
pub(crate) fn raise(mut fd: Fd) -> Result<Fd, Errno> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST);
    let mut lowest = limit.min(HIGHEST).saturating_sub(ROOM);
    loop {
        match fd.raise(lowest as RawFd) {
            Ok(high) => return Ok(high),
            Err((same, errno)) => match Errno::from_raw_os_error(errno.0) {
                // EINVAL: the limit fell meanwhile.
                Errno::MFILE | Errno::INVAL if lowest > 0 => (fd, lowest) = (same, lowest / 2),
                errno => return Err(errno),
            },
        }
    }
}

/// Numbers of descriptors that come and go while other threads read the list.
#[derive(Debug)]
pub(crate) struct FdList<const MOST: usize = 32>([AtomicI32; MOST]);

impl<const MOST: usize> FdList<MOST> {
    const FREE: i32 = -1;

    pub(crate) fn new() -> Self {
        FdList([const { AtomicI32::new(Self::FREE) }; MOST])
    }

    /// Adds `fd`; `false` when the list is full.
    pub(crate) fn add(&self, fd: RawFd) -> bool {
        // Release pairs with the Acquire in `iter`: a thread that sees the number sees an open descriptor.
        self.0.iter().any(|e| e.compare_exchange(Self::FREE, fd, Ordering::Release, Ordering::Relaxed).is_ok())
    }

    pub(crate) fn remove(&self, fd: RawFd) {
        let _ = self.0.iter().any(|e| e.compare_exchange(fd, Self::FREE, Ordering::Release, Ordering::Relaxed).is_ok());
    }

    /// Takes all of them off the list.
    pub(crate) fn take(&self) -> Vec<RawFd> {
        let all = self.0.iter().map(|e| e.swap(Self::FREE, Ordering::AcqRel));
        all.filter(|&fd| fd != Self::FREE).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = RawFd> {
        self.0.iter().map(|e| e.load(Ordering::Acquire)).filter(|&fd| fd != Self::FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;
    use rustix::io::{FdFlags, fcntl_getfd};

    #[test]
    fn a_descriptor_moves_up_and_is_closed_on_exec() {
        let low: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let high = place_high(low).unwrap();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST).min(HIGHEST);
        assert!(high.as_raw_fd() as u64 >= limit - ROOM, "{high:?} of {limit}");
        assert!(fcntl_getfd(&high).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn the_list_holds_what_is_open() {
        let list = FdList::<32>::new();
        assert!((10..42).all(|fd| list.add(fd)));
        assert!(!list.add(42));
        list.remove(11);
        assert!(list.add(42));
        assert_eq!(list.iter().count(), 32);
        assert!(list.iter().all(|fd| fd != 11));
        assert_eq!((list.take().len(), list.iter().count()), (32, 0));
    }
}
