//! The guest's memory: which mapping is it, and what the manager has heard of.

use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use farshore_sys::uffd::{Features, OpenError, Uffd, UffdOptions};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

use crate::{past, wire};

/// Names the abstract socket at which the manager waits.
const VARIABLE: &str = "FARSHORE_VM";
/// What QEMU calls the file of a `memory-backend-memfd`.
const NAME: &[u8] = b"memory-backend-memfd";

/// Faults of shared memory, and write protection of it.
const SHARED: Features = Features(1 << 5 | 1 << 12);

/// A mapping of the guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Where it is.
    pub address: u64,
    /// How much, whole pages.
    pub bytes: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
    /// Its file.
    pub fd: i32,
}

/// Why something is refused: a line.
#[derive(Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Refused {
    /// This line.
    pub fn new(why: impl Into<String>) -> Refused {
        Refused(why.into())
    }
}

/// Why a manager has not done what it was asked for.
enum Unasked {
    /// It has closed the connection.
    Gone(Refused),
    Refused(Refused),
}

impl From<Unasked> for Refused {
    fn from(why: Unasked) -> Refused {
        match why {
            Unasked::Gone(why) | Unasked::Refused(why) => why,
        }
    }
}

fn refused(why: impl Into<String>) -> Refused {
    Refused::new(why)
}

/// The manager, once the first memory was handed over.
struct Manager {
    socket: OwnedFd,
    /// Held open, so that nobody who waits finds zeros when the manager has ended.
    _uffd: Uffd,
    /// Start and end of what it manages.
    regions: Vec<(u64, u64)>,
    /// Whose memory it is.
    process: u32,
}

static MANAGER: Mutex<Option<Manager>> = Mutex::new(None);
/// Whether there is one: other calls need not look.
static HAS_MANAGER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is at work here. What it allocates meanwhile may have an allocator map and unmap memory of its own.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The manager, and that this thread is at work with it.
struct Held(MutexGuard<'static, Option<Manager>>);

fn manager() -> Held {
    INSIDE.set(true);
    Held(MANAGER.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Held {
    /// It, if it is this process's, and not the one of the process that has forked it.
    fn own(&mut self) -> Option<&mut Manager> {
        self.0.as_mut().filter(|there| there.process == std::process::id())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Whether this process was started to have its guest's memory managed.
pub fn is_asked_for() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| std::env::var_os(VARIABLE).is_some())
}

/// Device and inode of the memory that QEMU has made by way of this library.
static MADE: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// A memfd was made. In a QEMU that has gone elsewhere (`-chroot`) there is no `/proc` to ask for its name later.
pub fn is_made(name: &CStr, fd: i32) {
    if fd < 0 || !name.to_bytes().starts_with(NAME) || !is_asked_for() {
        return;
    }
    if let Some(identity) = identity(fd) {
        MADE.lock().unwrap_or_else(PoisonError::into_inner).push(identity);
    }
}

fn identity(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: the caller's descriptor, which its own call names; the kernel answers that it is not open, if it is not.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a file is the memory of a guest, which is to be handed over.
pub fn is_memory(fd: i32) -> bool {
    if fd < 0 || !is_asked_for() {
        return false;
    }
    let is_made = |file| MADE.lock().unwrap_or_else(PoisonError::into_inner).contains(&file);
    identity(fd).is_some_and(is_made)
        || std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|name| name.as_os_str().as_bytes().strip_prefix(b"/memfd:").is_some_and(|name| name.starts_with(NAME)))
}

/// Hands a mapping over, and waits until it is managed.
///
/// # Errors
/// Why it is not.
pub fn hand_over(request: &Request) -> Result<(), Refused> {
    let Request { address, bytes, offset, fd } = *request;
    // SAFETY: the caller's descriptor, which its own call names; it is open until that returns.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut manager = manager();
    if let Some(there) = manager.own() {
        there.ask(&wire::add(address, bytes, offset), &[file])?;
        there.regions.push((address, address + bytes));
        return Ok(());
    }
    if let Some(why) = past::is_open_already() {
        return Err(why);
    }
    let socket = connect()?;
    let uffd = userfaultfd()?;
    let new = Manager { socket, _uffd: uffd, regions: vec![(address, address + bytes)], process: std::process::id() };
    let asked = wire::hand_over(address, bytes, offset);
    new.ask(&asked, &[new._uffd.fd().as_fd(), file])?;
    *manager.0 = Some(new);
    HAS_MANAGER.store(true, Ordering::Release);
    Ok(())
}

/// A part of the address space is about to be unmapped, or to become another mapping.
///
/// # Errors
/// It is a part of what the manager has, which goes as a whole or not at all.
pub fn leaves(address: u64, bytes: u64) -> Result<(), Refused> {
    if !HAS_MANAGER.load(Ordering::Acquire) || INSIDE.get() {
        return Ok(());
    }
    let mut manager = manager();
    let Some(there) = manager.own() else { return Ok(()) };
    // The kernel takes whole pages.
    let end = address.saturating_add(bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX));
    let touched = |(start, stop): &(u64, u64)| address < *stop && *start < end;
    if let Some((start, stop)) =
        there.regions.iter().copied().filter(touched).find(|(start, stop)| *start < address || end < *stop)
    {
        return Err(refused(format!(
            "the {bytes} bytes at {address:#x} are a part of the guest's memory ({start:#x} to {stop:#x}), which has a manager: it can be unmapped as a whole only"
        )));
    }
    let going: Vec<_> = there.regions.iter().copied().filter(touched).collect();
    for region in going {
        match there.ask(&wire::remove(region.0, region.1 - region.0), &[]) {
            // A manager that has given the memory back, or was killed, takes out none of it any more.
            Ok(()) | Err(Unasked::Gone(_)) => {}
            Err(Unasked::Refused(why)) => return Err(why),
        }
        there.regions.retain(|other| *other != region);
    }
    Ok(())
}

/// Whether a part of the address space has some of what the manager has.
pub fn is_managed(address: u64, bytes: u64) -> bool {
    if !HAS_MANAGER.load(Ordering::Acquire) || INSIDE.get() {
        return false;
    }
    let end = address.saturating_add(bytes);
    manager().own().is_some_and(|there| there.regions.iter().any(|(start, stop)| address < *stop && *start < end))
}

impl Manager {
    /// Asks for something, and waits until it is done.
    fn ask(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Unasked> {
        let gone = |errno: Errno| {
            let why = refused(format!(
                "the guest's memory has no manager any more ({errno}), so QEMU gets no memory besides: to have a limit again, end QEMU and start it anew"
            ));
            match errno {
                Errno::PIPE | Errno::CONNRESET => Unasked::Gone(why),
                _ => Unasked::Refused(why),
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Unasked::Refused(refused("too many files of the guest's memory for one message")));
        }
        // So few bytes go at once or not at all.
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(gone(errno)),
            }
        }
        let (mut answer, mut come) = ([0; wire::HEADER], 0);
        while come < answer.len() {
            match recv(&self.socket, &mut answer[come..], RecvFlags::empty()) {
                Ok((0, _)) => {
                    return Err(Unasked::Gone(refused(
                        "the guest's memory has no manager, which has said why; QEMU cannot have the memory",
                    )));
                }
                Ok((count, _)) => come += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(gone(errno)),
            }
        }
        if wire::is_done(answer) {
            Ok(())
        } else {
            Err(Unasked::Refused(refused(format!(
                "the manager has answered {answer:?}, which says nothing: is it of another version?"
            ))))
        }
    }
}

/// The connection to the manager, which must be of this user: another one could read the guest's memory.
fn connect() -> Result<OwnedFd, Refused> {
    let name = std::env::var_os(VARIABLE).unwrap_or_default();
    let failed = |error: std::io::Error| {
        refused(format!(
            "no manager waits for the guest's memory ({error}): start QEMU by 'farshore vm run', which has one for one QEMU"
        ))
    };
    let address = SocketAddr::from_abstract_name(name.as_bytes()).map_err(failed)?;
    let socket = UnixStream::connect_addr(&address).map_err(failed)?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(|errno| failed(errno.into()))?;
    let own = rustix::process::geteuid();
    if peer.uid != own {
        return Err(refused(format!(
            "user {} waits for the guest's memory in place of the manager, and not user {}: it is not handed over",
            peer.uid.as_raw(),
            own.as_raw()
        )));
    }
    Ok(socket.into())
}

/// One that also serves what the kernel needs for QEMU.
fn userfaultfd() -> Result<Uffd, Refused> {
    let options =
        UffdOptions { user_mode_only: false, required: Features::WP.with(SHARED), wanted: Features(0), nonblocking: true };
    match Uffd::open(options) {
        Ok((uffd, _)) => Ok(uffd),
        Err(OpenError::KernelFaultsNotPermitted) => Err(refused(
            "this user may not have the kernel's own accesses to the guest's memory served: as root, set 'sysctl vm.unprivileged_userfaultfd=1', \
             or give the user access to /dev/userfaultfd (setfacl -m u:USER:rw /dev/userfaultfd)",
        )),
        Err(why) => Err(refused(why.to_string())),
    }
}
