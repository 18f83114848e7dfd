//! Block devices as swap space (`dev:PATH`).
//!
//! # One description for a family
//!
//! The kernel gives a device to one description alone (`O_EXCL`): no file system, no other swap and no other family can use it
//! meanwhile. So the processes of a family ([`Handed`](farshore_config::Handed)) share that description: a forked child inherits
//! it, and a program that is started gets it through its exec. It is in the list of this process ([`HELD`]) as long as a place of
//! an array uses it.
//!
//! # Regions
//!
//! Each layer (a process' own space, and the part of it that its forked children read) has pages of its own, which must not meet
//! those of another layer. So a layer takes *regions* of a device when it first writes there ([`regions`]). To an array, a device
//! looks like a sparse file on a disk that others write to as well.
//!
//! # What is refused
//!
//! See [`check`]. `force` overrides a signature ([`signature`]) and nothing else.

mod check;
pub(crate) mod regions;
pub(crate) mod signature;

use crate::error::OpenError;
use crate::fd::place_high;
use crate::sleep;
use farshore_config::HandedDevice;
use farshore_core::slots::arrangement::SPACES_MAX;
use farshore_sys::fd as sys_fd;
use regions::Regions;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{
    FileType, MemfdFlags, Mode, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, fstat, ioctl_blksszget, memfd_create, open, seek,
};
use rustix::io::{Errno, dup, pread};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How often a busy device is asked for again: the rings of a process that was killed are taken down a moment after its end.
pub(crate) const BUSY_TRIES: u32 = 50;
pub(crate) const BUSY_PAUSE_NS: u64 = 20_000_000;
/// How long what a process has sent to a server may be under way after its end, in ns. Longer than a network and a server that work
/// keep anything; a server that was stopped may keep it for as long as it likes.
const LATE_NS: u64 = 2_000_000_000;
/// Direct I/O of a page must be possible.
const SECTOR_MAX: u32 = farshore_core::limits::PAGE_SIZE as u32;

/// A device that this process' family has; or an export of a server ([`crate::nbd`]).
#[derive(Debug)]
struct Held {
    path: PathBuf,
    /// The device; of an export a socket whose name keeps other families out.
    device: OwnedFd,
    /// A file in memory with a byte for each region: the description that has locked the byte has the region.
    regions: OwnedFd,
    bytes: u64,
    /// Number of places that use it.
    users: AtomicU32,
}

/// The devices of this process. Filled and emptied by threads that may wait, one at a time (start-up, the drainer, a forked
/// child's first write); read by any thread.
static HELD: [AtomicPtr<Held>; SPACES_MAX] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SPACES_MAX];

fn all_held() -> impl Iterator<Item = &'static Held> {
    // SAFETY: null, or from Box::into_raw in `hold`. `let_go` empties the entry and keeps the memory.
    HELD.iter().filter_map(|entry| unsafe { entry.load(Ordering::Acquire).as_ref() })
}

fn hold(held: Held) -> Result<&'static Held, OpenError> {
    let path = held.path.clone();
    let held = Box::into_raw(Box::new(held));
    let put = |entry: &AtomicPtr<Held>| {
        entry.compare_exchange(core::ptr::null_mut(), held, Ordering::Release, Ordering::Relaxed).is_ok()
    };
    if HELD.iter().any(put) {
        // SAFETY: from Box::into_raw just now, and never freed.
        return Ok(unsafe { &*held });
    }
    // SAFETY: from Box::into_raw just now, and no other thread has seen it.
    drop(unsafe { Box::from_raw(held) });
    Err(refuse(&path, format!("this family has {SPACES_MAX} devices already")))
}

fn refuse(path: &Path, why: impl Into<String>) -> OpenError {
    OpenError::Device { path: path.to_owned(), why: why.into() }
}

/// A device, ready for use.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    pub(crate) regions: Regions,
    /// Bytes that may be used.
    pub(crate) bytes: u64,
}

/// Opens a device, or takes the one that the family has open. The device's contents are overwritten; `force` allows that if they
/// look like something.
pub(crate) fn open_device(path: &Path, force: bool, direct: bool, notice: &mut dyn FnMut(&str)) -> Result<Opened, OpenError> {
    let held = match all_held().find(|held| held.path == path) {
        Some(held) => held,
        None => hold(take(path, force, notice)?)?,
    };
    held.users.fetch_add(1, Ordering::AcqRel);
    describe(held, direct, notice).inspect_err(|_| let_go(held))
}

/// A space's own descriptors of a device.
fn describe(held: &'static Held, direct: bool, notice: &mut dyn FnMut(&str)) -> Result<Opened, OpenError> {
    let failed = |doing| move |errno| OpenError::Io { doing, path: held.path.clone(), errno };
    let fd = dup(&held.device).and_then(place_high).map_err(failed("find a free descriptor for the swap device"))?;
    let mut flags = fcntl_getfl(&fd).map_err(failed("look at the swap device"))?;
    flags.set(OFlags::DIRECT, direct);
    if fcntl_setfl(&fd, flags).is_err() {
        notice(&format!("swap device {:?} does not take direct I/O: the page cache may hold pages a second time", held.path));
    }
    Ok(Opened { fd, regions: regions_of(held)?, bytes: held.bytes })
}

/// The memory whose bytes stand for regions. It stays empty but for marks ([`regions`]): bytes behind the end can be locked too.
fn list_of_regions() -> Result<OwnedFd, Errno> {
    memfd_create("farshore-regions", MemfdFlags::CLOEXEC).and_then(place_high)
}

/// A layer's own view of the regions. The caller has counted it among the users.
fn regions_of(held: &'static Held) -> Result<Regions, OpenError> {
    let claims = sys_fd::describe(held.regions.as_fd(), sys_fd::O_RDWR).map_err(|errno| Errno::from_raw_os_error(errno.0));
    // SAFETY: opened just now, and given away by `into_raw`.
    let claims = claims.map(|claims| unsafe { OwnedFd::from_raw_fd(claims.into_raw()) });
    let doing = "claim a part of the swap space (is /proc mounted?)";
    let claims = claims.and_then(place_high).map_err(|errno| OpenError::Io { doing, path: held.path.clone(), errno })?;
    Ok(Regions::new(held.bytes, claims, move || let_go(held)))
}

/// A layer's view of the regions of something that is no device of this machine, of this many bytes. `take` makes a descriptor
/// that keeps other families out; it is called if this family does not have it yet.
pub(crate) fn share(path: &Path, bytes: u64, take: impl FnOnce() -> Result<OwnedFd, OpenError>) -> Result<Regions, OpenError> {
    let held = match all_held().find(|held| held.path == path) {
        // A server that has made it smaller or larger has another export under the old name.
        Some(held) if held.bytes != bytes => return Err(refuse(path, "it has another size than when this family took it")),
        Some(held) => held,
        None => {
            let device = take()?;
            let failed = |errno| OpenError::Io { doing: "make the list of regions of", path: path.to_owned(), errno };
            let device = place_high(device).map_err(failed)?;
            let regions = list_of_regions().map_err(failed)?;
            hold(Held { path: path.to_owned(), device, regions, bytes, users: AtomicU32::new(0) })?
        }
    };
    held.users.fetch_add(1, Ordering::AcqRel);
    regions_of(held).map(|regions| regions.resting(LATE_NS)).inspect_err(|_| let_go(held))
}

/// Takes a device that no other process uses.
fn take(path: &Path, force: bool, notice: &mut dyn FnMut(&str)) -> Result<Held, OpenError> {
    let failed = |doing| move |errno| OpenError::Io { doing, path: path.to_owned(), errno };
    check::check(path)?;
    let device = open_alone(path)?;
    let sector = ioctl_blksszget(&device).map_err(failed("ask for the sectors of"))?;
    if sector > SECTOR_MAX {
        return Err(refuse(
            path,
            format!("its sectors are of {sector} bytes, and at most {SECTOR_MAX} can be used: name another"),
        ));
    }
    let bytes = seek(&device, SeekFrom::End(0)).map_err(failed("ask for the size of"))?;
    if let Some(what) = signature::find(&device, bytes).map_err(failed("read"))?.or_else(|| signature::told_by_udev(path)) {
        if !force {
            return Err(refuse(
                path,
                format!("there is {what} on it, which would be lost: name another, or add ,force to lose it"),
            ));
        }
        notice(&format!("swap device {path:?} is used although there is {what} on it, which is lost"));
    }
    let regions = list_of_regions().map_err(failed("make the list of regions of"))?;
    Ok(Held {
        path: path.to_owned(),
        device: place_high(device).map_err(failed("raise the descriptor of"))?,
        regions,
        bytes,
        users: AtomicU32::new(0),
    })
}

/// Opens a device for this family alone.
fn open_alone(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    for tries in 0.. {
        match open(path, flags, Mode::empty()) {
            Ok(fd) => return Ok(fd),
            Err(Errno::BUSY) if tries < BUSY_TRIES => sleep::nap(BUSY_PAUSE_NS),
            Err(Errno::BUSY) => {
                let why = "it, or a part of it, is in use (by a file system, a volume, or another program under Farshore): name another";
                return Err(refuse(path, why));
            }
            Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => {
                return Err(OpenError::NotWritable(path.to_owned(), errno));
            }
            Err(errno) => return Err(OpenError::Io { doing: "open the swap device", path: path.to_owned(), errno }),
        }
    }
    unreachable!("the last try returns")
}

/// A place no longer uses the device.
fn let_go(held: &'static Held) {
    if held.users.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    for entry in &HELD {
        let is_it = core::ptr::eq(entry.load(Ordering::Acquire), held);
        if is_it && entry.swap(core::ptr::null_mut(), Ordering::AcqRel).cast_const() == core::ptr::from_ref(held) {
            for fd in [&held.device, &held.regions] {
                // SAFETY: no place uses it any more, and `held` is never dropped.
                unsafe { rustix::io::close(fd.as_raw_fd()) };
            }
        }
    }
}

/// Descriptors of devices that are not owned by one place of an array.
pub(crate) fn fds() -> impl Iterator<Item = RawFd> {
    all_held().flat_map(|held| [held.device.as_raw_fd(), held.regions.as_raw_fd()])
}

/// The devices that a program that is started gets, so that it can use them too.
pub fn handed() -> Vec<HandedDevice> {
    let hand = |held: &Held| HandedDevice {
        path: held.path.clone(),
        device: held.device.as_raw_fd(),
        regions: held.regions.as_raw_fd(),
        bytes: held.bytes,
    };
    all_held().map(hand).collect()
}

/// Called at the start of a program that got devices from the program that started it.
///
/// # Errors
/// When a device that was handed on is not there.
pub fn adopt(handed: &[HandedDevice]) -> Result<(), OpenError> {
    handed.iter().try_for_each(|handed| {
        let path = &handed.path;
        let failed = |errno| OpenError::Io { doing: "take over the swap device", path: path.clone(), errno };
        let take_over = |raw: RawFd| {
            // SAFETY: if the descriptor is not open, the call returns an error.
            let stat = fstat(unsafe { rustix::fd::BorrowedFd::borrow_raw(raw) })?;
            // SAFETY: the descriptor is open: the process that started this program left it so for us, and no other code
            // here knows it.
            Ok((place_high(unsafe { OwnedFd::from_raw_fd(raw) })?, FileType::from_raw_mode(stat.st_mode)))
        };
        let (device, kind) = take_over(handed.device).map_err(failed)?;
        let (regions, _) = take_over(handed.regions).map_err(failed)?;
        let bytes = match kind {
            FileType::BlockDevice => seek(&device, SeekFrom::End(0)).map_err(failed)?,
            FileType::Socket if crate::nbd::is_export(path) => handed.bytes,
            _ => return Err(failed(Errno::NOTBLK)),
        };
        let held = Held { path: path.clone(), device, regions, bytes, users: AtomicU32::new(0) };
        hold(held).map(drop)
    })
}

/// Checks whether a page can be read, before the first read that matters.
pub(crate) fn probe(fd: &OwnedFd) -> Result<(), Errno> {
    let mut page = farshore_core::seams::PageBuf::ZERO;
    match pread(fd, &mut page.0[..], 0)? {
        len if len == page.0.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}
