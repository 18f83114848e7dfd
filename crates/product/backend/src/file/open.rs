//! Makes a swap file and finds out how it can be used.

use super::FileOptions;
use super::limit::{Raised, lengthen};
use crate::device::{self, regions::Regions};
use crate::error::{OpenError, SMALLEST_BYTES};
use crate::fd::place_high;
use farshore_config::{Size, SwapSpec};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::PageBuf;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxFlags, fchmod, fcntl_getfl, fcntl_setfl, fstatfs, fstatvfs, ftruncate, lstat,
    open as open_file, stat, statx, unlink,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::{Resource, getrlimit};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// File systems that are RAM: `TMPFS_MAGIC`, `RAMFS_MAGIC`.
const RAM_MAGICS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

const READ_WRITE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file, ready for use.
pub(super) struct Opened {
    pub fd: OwnedFd,
    /// Bytes that the file may hold; `None`: as many as the disk has room for.
    pub limit: Option<u64>,
    /// For a device: which parts of it are this space's.
    pub regions: Option<Regions>,
}

/// Opens a device.
fn open_device(
    spec: &SwapSpec,
    path: &Path,
    size: Option<Size>,
    force: bool,
    direct: bool,
    notice: &mut dyn FnMut(&str),
) -> Result<Opened, OpenError> {
    let opened = device::open_device(path, force, direct, notice)?;
    device::probe(&opened.fd).map_err(|errno| OpenError::Io {
        doing: "read a page of the swap device",
        path: path.to_owned(),
        errno,
    })?;
    let whole = opened.regions.whole();
    if let Some(size) = size.filter(|size| size.bytes() > opened.bytes) {
        notice(&format!("swap space {spec} may use {size}, but the device has only {}M", opened.bytes >> 20));
    }
    let limit = size.map_or(whole, |size| size.bytes().min(whole));
    Ok(Opened { fd: opened.fd, limit: Some(limit), regions: Some(opened.regions) })
}

/// Makes the file of a `dir:` or `file:` space, or opens the device of a `dev:` one.
pub(super) fn open(spec: &SwapSpec, options: FileOptions, notice: &mut dyn FnMut(&str)) -> Result<Opened, OpenError> {
    let (path, fd, size) = match spec {
        SwapSpec::Dir(path) => (path, in_directory(path, options.nameless)?, None),
        SwapSpec::File { path, size } => (path, at_path(path)?, *size),
        SwapSpec::Dev { path, size, force } => return open_device(spec, path, *size, *force, options.direct, notice),
        other => {
            other.check_supported()?;
            return Err(OpenError::Mixed(other.to_string(), "dir:".to_owned()));
        }
    };
    let failed = |doing, errno| OpenError::Io { doing, path: path.clone(), errno };
    let fd = place_high(fd).map_err(|errno| failed("find a free descriptor for the swap file at", errno))?;
    // Whatever the umask and the directory's default ACL made of the mode: only the owner may use the file.
    fchmod(&fd, READ_WRITE).map_err(|errno| failed("set the mode of the swap file at", errno))?;
    check_room(path, fd.as_fd(), size, notice)?;
    let raised = Raised::new();
    let limit = limit_of(spec, size, notice)?;
    choose_direct(path, fd.as_fd(), options.direct, notice)?;
    if raised.is_raised() {
        lengthen(&fd);
    }
    Ok(Opened { fd, limit, regions: None })
}

/// Takes a file over that was made for this space by a process that has ended: it is as that one has set it.
pub(super) fn take_over(spec: &SwapSpec, fd: OwnedFd, notice: &mut dyn FnMut(&str)) -> Result<Opened, OpenError> {
    let (path, size) = match spec {
        SwapSpec::Dir(path) => (path, None),
        SwapSpec::File { path, size } => (path, *size),
        other => return Err(OpenError::Mixed(other.to_string(), "dir:".to_owned())),
    };
    let failed = |errno| OpenError::Io { doing: "take over the swap file at", path: path.clone(), errno };
    let fd = place_high(fd).map_err(failed)?;
    let raised = Raised::new();
    let limit = limit_of(spec, size, notice)?;
    if raised.is_raised() {
        lengthen(&fd);
    }
    Ok(Opened { fd, limit, regions: None })
}

/// Whether a file can be made in the directory of this space: it is made, and closed.
pub fn can_be_made(spec: &SwapSpec) -> bool {
    matches!(spec, SwapSpec::Dir(path) if in_directory(path, true).is_ok())
}

/// The error for an errno from opening or making a file in `dir`.
fn classify(dir: &Path, errno: Errno) -> OpenError {
    match errno {
        Errno::NOENT => OpenError::Missing(dir.to_owned()),
        Errno::NOTDIR => OpenError::NotDirectory(dir.to_owned()),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => OpenError::NotWritable(dir.to_owned(), errno),
        Errno::NOSPC | Errno::DQUOT => OpenError::Full { path: dir.to_owned(), free: 0 },
        errno => OpenError::Io { doing: "make a swap file in", path: dir.to_owned(), errno },
    }
}

/// A file in `dir` that has no name.
fn in_directory(dir: &Path, nameless: bool) -> Result<OwnedFd, OpenError> {
    if nameless {
        // EXCL: the file can never be given a name.
        let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        match open_file(dir, flags, READ_WRITE) {
            Ok(fd) => return Ok(fd),
            // The file system cannot do it (NFS, FUSE, vfat …); EISDIR: the kernel does not know the flag either.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {}
            Err(errno) => return Err(classify(dir, errno)),
        }
    }
    // If a name is taken, another one is tried. Names are random, so that no other process can take them all.
    for _ in 0..16 {
        match make_and_unlink(&dir.join(random_name())) {
            Err(Errno::EXIST) => {}
            other => return other.map_err(|errno| classify(dir, errno)),
        }
    }
    Err(classify(dir, Errno::EXIST))
}

fn random_name() -> String {
    let mut bytes = [0u8; 12];
    // If the kernel's pool is not ready, the bytes stay zeros and O_EXCL decides. That does no harm: EXIST is an error,
    // and a file is never shared.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::NONBLOCK);
    let mut name = String::from(".farshore-");
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Makes `path`, which must not exist, and takes its name away.
fn make_and_unlink(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = open_file(path, flags, READ_WRITE)?;
    unlink(path)?;
    Ok(fd)
}

/// A file at `path`, which loses its name at once. An empty file there makes way.
fn at_path(path: &Path) -> Result<OwnedFd, OpenError> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    match make_and_unlink(path) {
        Ok(fd) => return Ok(fd),
        Err(Errno::EXIST) => check_replaceable(path)?,
        Err(errno) => return Err(classify(&parent, errno)),
    }
    // Opening the old file would keep descriptors valid that other processes may have of it: a new file has none.
    match unlink(path) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(classify(&parent, errno)),
    }
    make_and_unlink(path).map_err(|errno| classify(&parent, errno))
}

/// Checks that the path may be replaced: only an empty file may be removed.
fn check_replaceable(path: &Path) -> Result<(), OpenError> {
    let failed = |errno| OpenError::Io { doing: "look at the swap file", path: path.to_owned(), errno };
    let link = lstat(path).map_err(failed)?;
    if FileType::from_raw_mode(link.st_mode) == FileType::RegularFile {
        return match link.st_size {
            0 => Ok(()),
            bytes => Err(OpenError::FileExists { path: path.to_owned(), bytes: bytes as u64 }),
        };
    }
    // Follows a link to name its target: /dev/disk/by-id is full of links to block devices.
    let kind = match stat(path).map(|target| FileType::from_raw_mode(target.st_mode)) {
        Ok(FileType::BlockDevice) => "a block device",
        Ok(FileType::Directory) => "a directory",
        _ if FileType::from_raw_mode(link.st_mode) == FileType::Symlink => "a symbolic link",
        _ => "no regular file",
    };
    Err(OpenError::NotAFile { path: path.to_owned(), kind })
}

/// Whether the disk has room for the smallest space, and for the size that was asked for.
fn check_room(path: &Path, fd: BorrowedFd<'_>, size: Option<Size>, notice: &mut dyn FnMut(&str)) -> Result<(), OpenError> {
    // A file system that does not tell its room, or has no bound (tmpfs with size=0), is tested by the first write.
    let Ok(room) = fstatvfs(fd) else { return Ok(()) };
    if room.f_blocks == 0 {
        return Ok(());
    }
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free < SMALLEST_BYTES {
        return Err(OpenError::Full { path: path.to_owned(), free });
    }
    if let Some(size) = size.filter(|size| size.bytes() > free) {
        notice(&format!("swap file {path:?} may grow to {size}, but its disk has only {}M free", free >> 20));
    }
    Ok(())
}

/// How much the file may hold: the size in the spec, and the process' limit of file sizes, as far as that cannot be
/// raised.
fn limit_of(spec: &SwapSpec, size: Option<Size>, notice: &mut dyn FnMut(&str)) -> Result<Option<u64>, OpenError> {
    let size = size.map(Size::bytes);
    let Some(allowed) = getrlimit(Resource::Fsize).current else { return Ok(size) };
    if size.is_some_and(|size| size <= allowed) {
        return Ok(size);
    }
    if allowed < SMALLEST_BYTES {
        let what = format!("{spec}, for which ulimit -f allows {} KiB", allowed >> 10);
        return Err(OpenError::TooSmall { what, bytes: allowed });
    }
    notice(&format!("swap space {spec} is limited to {}M by the limit of file sizes (ulimit -f)", allowed >> 20));
    Ok(Some(allowed))
}

/// Sets whether I/O is direct, which it is if that works: the file system says so, or a page is written and read.
fn choose_direct(path: &Path, fd: BorrowedFd<'_>, wanted: bool, notice: &mut dyn FnMut(&str)) -> Result<(), OpenError> {
    let failed = |errno| match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => OpenError::Full { path: path.to_owned(), free: 0 },
        errno => OpenError::Io { doing: "write and read back a page of the swap file at", path: path.to_owned(), errno },
    };
    let is_ram = fstatfs(fd).is_ok_and(|fs| RAM_MAGICS.contains(&(fs.f_type as u64)));
    let can_be = wanted && !is_ram && set_direct(fd, true).is_ok();
    if can_be && says_direct(fd) {
        return Ok(());
    }
    let direct = can_be && probe(fd).is_ok();
    if !direct {
        set_direct(fd, false).map_err(failed)?;
        probe(fd).map_err(failed)?;
    }
    if is_ram {
        notice(&format!(
            "swap path {path:?} is on a file system in RAM: what goes there frees no memory, and I/O is buffered; \
             a directory on a disk is better"
        ));
    } else if wanted && !direct {
        notice(&format!(
            "swap path {path:?} is on a file system without direct I/O: I/O is buffered, and the page cache may \
             hold pages a second time"
        ));
    }
    ftruncate(fd, 0).map_err(failed)
}

/// Whether the file system says that this file can have direct I/O of pages (`STATX_DIOALIGN`, Linux 6.1). To try it takes 0.1 ms on a disk that does
/// nothing else, and ten where others use it, at each start.
fn says_direct(fd: BorrowedFd<'_>) -> bool {
    let is_page = |align: u32| (1..=PAGE_SIZE as u32).contains(&align);
    statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).is_ok_and(|about| {
        about.stx_mask & StatxFlags::DIOALIGN.bits() != 0
            && is_page(about.stx_dio_mem_align)
            && is_page(about.stx_dio_offset_align)
    })
}

fn set_direct(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, on);
    fcntl_setfl(fd, flags)
}

/// Writes one page and reads it back.
fn probe(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let pattern = PageBuf(core::array::from_fn(|i| ((i * 31) >> 3) as u8));
    let mut back = PageBuf::ZERO;
    let wrote = retry(|| pwrite(fd, &pattern.0, 0))?;
    let read = retry(|| pread(fd, &mut back.0[..], 0))?;
    if wrote == pattern.0.len() && read == wrote && back.0 == pattern.0 { Ok(()) } else { Err(Errno::IO) }
}

fn retry(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
