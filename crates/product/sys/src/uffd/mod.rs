//! userfaultfd: opening it, and its ioctls with typed results.
//!
//! # What the kernel's answers mean
//!
//! * `EEXIST`: a page is mapped there already. Of several pages the first was; had it been a later one, the answer is
//!   `EAGAIN` with the bytes done, and the next call for the rest gives the reason.
//! * `ENOENT`: there is no memory, or none that is registered here.
//! * `EAGAIN`: the address space is being changed, or only a part was done.
//! * `EBUSY` (`UFFDIO_MOVE` only): a page is pinned or shared with a forked child.
//! * `ESRCH`: the process whose memory it is has ended.
//!
//! Under `UFFD_USER_MODE_ONLY` (any user may open such a one) and with the SIGBUS feature, the kernel's own access to an absent
//! page fails with `EFAULT` instead of waiting.

mod abi;
mod features;

pub use features::Features;

use crate::fd::{self, Fd};
use crate::raw::{self, Errno, nr};
use abi::{Api, Range, RawMessage, Register, Transfer, WriteProtect, ZeroPage};
use core::sync::atomic::{AtomicU64, Ordering};

/// How to open a userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UffdOptions {
    /// Only faults of user code; needs no privilege. Without: the kernel's accesses are served too, which needs privilege
    /// or access to `/dev/userfaultfd`.
    pub user_mode_only: bool,
    /// Features that must be there, or opening fails.
    pub required: Features,
    /// Features that are switched on where they are.
    pub wanted: Features,
    /// Reading messages does not wait.
    pub nonblocking: bool,
}

impl UffdOptions {
    /// For the upcall mode: SIGBUS, write protection, exact addresses where there are; no privilege.
    pub const UPCALL: UffdOptions = UffdOptions {
        user_mode_only: true,
        required: Features::SIGBUS.with(Features::WP),
        wanted: Features::EXACT_ADDRESS.with(Features::MOVE),
        nonblocking: true,
    };
    /// For the poll mode: messages, also for the kernel's own accesses.
    pub const POLL: UffdOptions = UffdOptions {
        user_mode_only: false,
        required: Features::WP,
        wanted: Features::EXACT_ADDRESS.with(Features::MOVE),
        nonblocking: true,
    };
}

/// Why a userfaultfd could not be opened. The text says what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The kernel was built without it, or a sandbox hides it.
    NotAvailable,
    /// This user, or this sandbox, may not have one (of the kind that serves user code only).
    NotPermitted,
    /// This user may not have one that serves the kernel's own accesses.
    KernelFaultsNotPermitted,
    /// The kernel lacks features.
    Missing(Features),
    /// The call named failed.
    Failed(&'static str, Errno),
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OpenError::NotAvailable => f.write_str(
                "userfaultfd is not available (ENOSYS): the kernel needs CONFIG_USERFAULTFD, and a container's seccomp profile must allow userfaultfd(2), or the container have /dev/userfaultfd",
            ),
            OpenError::NotPermitted => f.write_str(
                "userfaultfd is not permitted (EPERM) even for user faults only: a seccomp profile or security module forbids it; allow userfaultfd(2) there, or give the container /dev/userfaultfd",
            ),
            OpenError::KernelFaultsNotPermitted => f.write_str(
                "a userfaultfd for kernel faults is not permitted: as root, set `sysctl vm.unprivileged_userfaultfd=1`, or give this user access to \
                 /dev/userfaultfd (chmod, chown), or grant CAP_SYS_PTRACE; or use `--fault upcall`, which needs none of these",
            ),
            OpenError::Missing(features) => {
                write!(f, "this kernel's userfaultfd lacks {features}: Linux 6.8 or newer with CONFIG_HAVE_ARCH_USERFAULTFD_WP is needed")
            }
            OpenError::Failed(what, errno) => write!(f, "{what} failed: {errno}"),
        }
    }
}

impl core::error::Error for OpenError {}

/// Why an operation on registered memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UffdError {
    /// A page is mapped there already.
    Exists,
    /// There is no memory there that is registered here; for a move, there is no page to move.
    NotRegistered,
    /// Try again. `done` bytes from the start on were done.
    Again {
        /// Bytes done.
        done: u64,
    },
    /// The page is pinned or shared with a forked child.
    Busy,
    /// The kernel (or the memory cgroup) has no memory.
    NoMemory,
    /// The source cannot be read.
    BadAddress,
    /// The process whose memory it is has ended.
    ProcessGone,
    /// Anything else.
    Other(Errno),
}

impl UffdError {
    /// The errno behind it.
    pub const fn errno(self) -> Errno {
        match self {
            UffdError::Exists => Errno::EEXIST,
            UffdError::NotRegistered => Errno::ENOENT,
            UffdError::Again { .. } => Errno::EAGAIN,
            UffdError::Busy => Errno::EBUSY,
            UffdError::NoMemory => Errno::ENOMEM,
            UffdError::BadAddress => Errno::EFAULT,
            UffdError::ProcessGone => Errno::ESRCH,
            UffdError::Other(errno) => errno,
        }
    }
    const fn new(errno: Errno, done: u64) -> UffdError {
        match errno {
            Errno::EEXIST => UffdError::Exists,
            Errno::ENOENT => UffdError::NotRegistered,
            Errno::EAGAIN => UffdError::Again { done },
            Errno::EBUSY => UffdError::Busy,
            Errno::ENOMEM => UffdError::NoMemory,
            Errno::EFAULT => UffdError::BadAddress,
            Errno::ESRCH => UffdError::ProcessGone,
            other => UffdError::Other(other),
        }
    }
}

impl core::fmt::Display for UffdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            UffdError::Again { done } => write!(f, "try again, {done} bytes done (EAGAIN)"),
            UffdError::NotRegistered => f.write_str("no such registered memory (ENOENT)"),
            other => write!(f, "{}", other.errno()),
        }
    }
}

impl core::error::Error for UffdError {}

/// A fault, as a handler thread reads it (poll mode).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where; to the byte with `EXACT_ADDRESS`, else the page's first byte.
    pub address: u64,
    /// It was a write.
    pub write: bool,
    /// The page is mapped and write-protected (else it is absent).
    pub protected: bool,
    /// The thread, with `THREAD_ID`; else 0.
    pub thread: u32,
}

/// Room for one message of the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Message(RawMessage);

impl Message {
    /// Room for a message.
    pub const EMPTY: Message = Message(RawMessage { event: 0, _reserved: [0; 7], flags: 0, address: 0, thread: 0 });

    /// The memory that it says is being thrown away: its first byte, and the one behind its last. `None` for other events.
    pub const fn removed(&self) -> Option<(u64, u64)> {
        if self.0.event == abi::EVENT_REMOVE { Some((self.0.flags, self.0.address)) } else { None }
    }

    /// The fault it tells of; `None` for other events.
    pub const fn fault(&self) -> Option<Fault> {
        if self.0.event != abi::EVENT_PAGEFAULT {
            return None;
        }
        Some(Fault {
            address: self.0.address,
            write: self.0.flags & abi::PAGEFAULT_FLAG_WRITE != 0,
            protected: self.0.flags & abi::PAGEFAULT_FLAG_WP != 0,
            thread: self.0.thread as u32,
        })
    }
}

/// An open userfaultfd. When the last descriptor is closed, its memory becomes ordinary: absent pages read as zeros.
#[derive(Debug)]
pub struct Uffd {
    fd: Fd,
}

/// How the kernel is asked for a userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// `userfaultfd(2)`.
    Call,
    /// The device `/dev/userfaultfd`: whoever may open it may have one. A container has it where the filter of its calls forbids the call.
    Device,
}

impl core::fmt::Display for Way {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Way::Call => "userfaultfd(2)",
            Way::Device => "/dev/userfaultfd",
        })
    }
}

/// Opens the descriptor: by the call, and where that is forbidden by the device.
fn open_fd(options: UffdOptions) -> Result<(Fd, Way), OpenError> {
    let nonblock = if options.nonblocking { abi::O_NONBLOCK } else { 0 };
    let mode = if options.user_mode_only { abi::USER_MODE_ONLY } else { 0 };
    // SAFETY: makes a descriptor, touches no memory.
    match unsafe { raw::syscall_result(nr::USERFAULTFD, [abi::O_CLOEXEC | nonblock | mode, 0, 0, 0, 0, 0]) } {
        // SAFETY: the kernel has just made it for us.
        Ok(raw) => Ok((unsafe { Fd::from_raw(raw as i32) }, Way::Call)),
        Err(Errno::ENOSYS) => open_by_device(nonblock | mode, OpenError::NotAvailable),
        Err(Errno::EPERM | Errno::EACCES) if options.user_mode_only => open_by_device(nonblock | mode, OpenError::NotPermitted),
        Err(Errno::EPERM | Errno::EACCES) => open_by_device(nonblock | mode, OpenError::KernelFaultsNotPermitted),
        Err(errno) => Err(OpenError::Failed("userfaultfd(2)", errno)),
    }
}

/// The same by the device. `why`: what keeps the call from it, which is said where there is no device for us either.
fn open_by_device(flags: u64, why: OpenError) -> Result<(Fd, Way), OpenError> {
    // A container's rule for devices answers EPERM.
    const NONE: [Errno; 4] = [Errno::EACCES, Errno::EPERM, Errno::ENOENT, Errno::ENODEV];
    let device = match fd::open(c"/dev/userfaultfd", fd::O_RDWR) {
        Ok(device) => device,
        Err(errno) if NONE.contains(&errno) => return Err(why),
        Err(errno) => return Err(OpenError::Failed("opening /dev/userfaultfd", errno)),
    };
    // SAFETY: makes a descriptor, touches no memory.
    let answer =
        unsafe { raw::syscall_result(nr::IOCTL, [device.arg(), abi::USERFAULTFD_IOC_NEW, abi::O_CLOEXEC | flags, 0, 0, 0]) };
    match answer {
        // SAFETY: the kernel has just made it for us.
        Ok(raw) => Ok((unsafe { Fd::from_raw(raw as i32) }, Way::Device)),
        Err(errno) => Err(OpenError::Failed("USERFAULTFD_IOC_NEW on /dev/userfaultfd", errno)),
    }
}

/// The handshake: asks for features, gets all that the kernel has.
fn api(fd: &Fd, features: Features) -> Result<Features, Errno> {
    let mut api = Api { api: abi::API_VERSION, features: features.0, ioctls: 0 };
    // SAFETY: the kernel reads and writes `api`, which is ours and as large as it expects.
    unsafe { raw::syscall_result(nr::IOCTL, [fd.arg(), abi::UFFDIO_API, &raw mut api as u64, 0, 0, 0]) }?;
    Ok(Features(api.features))
}

/// By which way there is a userfaultfd here.
///
/// # Errors
/// As [`Uffd::open`].
pub fn way(options: UffdOptions) -> Result<Way, OpenError> {
    open_fd(options).map(|(_, way)| way)
}

/// What the kernel's userfaultfd can do, without switching anything on.
///
/// # Errors
/// As [`Uffd::open`].
pub fn kernel_features(options: UffdOptions) -> Result<Features, OpenError> {
    // A descriptor shakes hands once only, so this takes one of its own.
    let (fd, _) = open_fd(options)?;
    api(&fd, Features::default()).map_err(|errno| OpenError::Failed("UFFDIO_API", errno))
}

impl Uffd {
    /// Opens one; the features that were switched on.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: UffdOptions) -> Result<(Uffd, Features), OpenError> {
        let all = options.required.with(options.wanted);
        let (fd, _) = open_fd(options)?;
        if api(&fd, all).is_ok() {
            return Ok((Uffd { fd }, all));
        }
        // The kernel does not have all of them, and takes none then. A descriptor shakes hands once only.
        drop(fd);
        let there = kernel_features(options)?;
        let missing = options.required.without(there);
        if !missing.is_empty() {
            return Err(OpenError::Missing(missing));
        }
        let on = Features(all.0 & there.0);
        let (fd, _) = open_fd(options)?;
        api(&fd, on).map_err(|errno| OpenError::Failed("UFFDIO_API", errno))?;
        Ok((Uffd { fd }, on))
    }

    /// Takes over one that another process has opened and has handed over: it goes on being about that process' memory, whoever has it.
    pub const fn adopt(fd: Fd) -> Uffd {
        Uffd { fd }
    }

    /// The descriptor.
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// The same userfaultfd under a number of at least `lowest`. See [`Fd::raise`].
    ///
    /// # Errors
    /// The userfaultfd as it was, and the reason.
    pub fn raise(self, lowest: i32) -> Result<Uffd, (Uffd, Errno)> {
        match self.fd.raise(lowest) {
            Ok(fd) => Ok(Uffd { fd }),
            Err((fd, errno)) => Err((Uffd { fd }, errno)),
        }
    }

    /// Calls the kernel with an argument struct of ours.
    ///
    /// # Safety
    /// `T` is the struct of `request`, and what the request does to memory is sound.
    unsafe fn ioctl<T>(&self, request: u64, argument: &mut T) -> Result<u64, Errno> {
        // SAFETY: the caller's promise; the argument is borrowed exclusively for the call.
        unsafe { raw::syscall_result(nr::IOCTL, [self.fd.arg(), request, &raw mut *argument as u64, 0, 0, 0]) }
    }

    /// Registers memory: absent pages and writes to protected pages fault to us from now on. Pages that are there stay.
    ///
    /// # Errors
    /// `EINVAL` for unaligned ranges or memory that cannot be registered (neither anonymous nor shared memory), `EBUSY` when another userfaultfd has
    /// it, `EPERM` for file mappings that may not be written, `EOPNOTSUPP` when it was registered but cannot be copied into or write-protected.
    ///
    /// # Safety
    /// Somebody serves the faults; without that, each access to an absent page raises SIGBUS or waits for ever.
    pub unsafe fn register(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mode = abi::REGISTER_MODE_MISSING | abi::REGISTER_MODE_WP;
        let mut argument = Register { range: Range { start, len }, mode, ioctls: 0 };
        // SAFETY: the struct is the request's. The caller answers for the faults to come.
        unsafe { self.ioctl(abi::UFFDIO_REGISTER, &mut argument) }?;
        let needed = abi::RANGE_COPY | abi::RANGE_WRITEPROTECT;
        if argument.ioctls & needed != needed {
            // What cannot be served must not stay registered.
            self.unregister(start, len)?;
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(())
    }

    /// Makes memory ordinary again: protected pages become writable, absent ones read as zeros.
    ///
    /// # Errors
    /// `EINVAL` for unaligned ranges or memory of a kind that cannot have been registered. Ordinary anonymous memory that was not registered is fine.
    pub fn unregister(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut argument = Range { start, len };
        // SAFETY: the struct is the request's. Every page that is mapped keeps its bytes.
        unsafe { self.ioctl(abi::UFFDIO_UNREGISTER, &mut argument) }.map(|_| ())
    }

    /// Maps `len` absent bytes at `dst` with a copy of those at `src`; with `protect` write-protected; with `wake` wakes who waits there.
    ///
    /// # Errors
    /// See the module's head. On [`UffdError::Again`] the first `done` bytes are mapped (and their waiters woken).
    ///
    /// # Safety
    /// Nobody relies on the bytes at `src` staying unread: they are initialised and not being written.
    pub unsafe fn copy(&self, dst: u64, src: u64, len: u64, protect: bool, wake: bool) -> Result<(), UffdError> {
        let mode = if protect { abi::COPY_MODE_WP } else { 0 } | if wake { 0 } else { abi::COPY_MODE_DONTWAKE };
        let mut argument = Transfer { dst, src, len, mode, done: 0 };
        // SAFETY: the struct is the request's; the kernel only fills pages that are absent. `src` is the caller's promise.
        let answer = unsafe { self.ioctl(abi::UFFDIO_COPY, &mut argument) };
        sort(answer, argument.done)
    }

    /// As [`Uffd::copy`], with a note in memory of the caller's that others have too: how many bytes the kernel has mapped is in there before anybody can stop this thread.
    ///
    /// # Errors
    /// As [`Uffd::copy`].
    ///
    /// # Safety
    /// As [`Uffd::copy`].
    pub unsafe fn copy_noted(
        &self,
        note: &Note,
        dst: u64,
        src: u64,
        len: u64,
        protect: bool,
        wake: bool,
    ) -> Result<(), UffdError> {
        let mode = if protect { abi::COPY_MODE_WP } else { 0 } | if wake { 0 } else { abi::COPY_MODE_DONTWAKE };
        // First that nothing is mapped: a reader must not take the last call's answer for this one's.
        note.forget();
        for (at, number) in [(1, src), (2, len), (3, mode), (0, dst)] {
            note.0[at].store(number, Ordering::SeqCst);
        }
        // SAFETY: the note is laid out as the request's struct, and atomic: others may read it meanwhile. `src` is the caller's promise.
        let answer =
            unsafe { raw::syscall_result(nr::IOCTL, [self.fd.arg(), abi::UFFDIO_COPY, note.0.as_ptr() as u64, 0, 0, 0]) };
        sort(answer, note.0[4].load(Ordering::SeqCst) as i64)
    }

    /// Maps absent memory at `dst` with a copy of `bytes`, whole pages, and wakes who waits there.
    ///
    /// # Errors
    /// As [`Uffd::copy`].
    pub fn fill(&self, dst: u64, bytes: &[u8]) -> Result<(), UffdError> {
        // SAFETY: the bytes are borrowed for the call, so nobody writes them.
        unsafe { self.copy(dst, bytes.as_ptr() as u64, bytes.len() as u64, false, true) }
    }

    /// Maps `len` absent bytes with the kernel's page of zeros (a first write makes a copy without a fault to us), which takes no memory. A program's pages of zeros come
    /// by [`Uffd::copy`] all the same: they are about to be written.
    ///
    /// # Errors
    /// As [`Uffd::copy`].
    pub fn zeropage(&self, start: u64, len: u64, wake: bool) -> Result<(), UffdError> {
        let mode = if wake { 0 } else { abi::ZEROPAGE_MODE_DONTWAKE };
        let mut argument = ZeroPage { range: Range { start, len }, mode, done: 0 };
        // SAFETY: the struct is the request's; the kernel only fills pages that are absent.
        let answer = unsafe { self.ioctl(abi::UFFDIO_ZEROPAGE, &mut argument) };
        sort(answer, argument.done)
    }

    /// Moves the pages at `src` to the absent ones at `dst`: both ranges registered here. With `allow_holes`, absent pages at `src` are passed over.
    /// Moved pages are writable. A page's second visit to the fault path costs a TLB flush on every core that runs this process.
    ///
    /// # Errors
    /// See the module's head; `NotRegistered` also for a hole at `src`.
    ///
    /// # Safety
    /// Who uses the bytes at `src` expects them to vanish.
    pub unsafe fn move_pages(&self, dst: u64, src: u64, len: u64, allow_holes: bool, wake: bool) -> Result<u64, UffdError> {
        let holes = if allow_holes { abi::MOVE_MODE_ALLOW_SRC_HOLES } else { 0 };
        let mode = holes | if wake { 0 } else { abi::MOVE_MODE_DONTWAKE };
        let mut argument = Transfer { dst, src, len, mode, done: 0 };
        // SAFETY: the struct is the request's; `dst` must be absent or the kernel refuses. `src` is the caller's promise.
        let answer = unsafe { self.ioctl(abi::UFFDIO_MOVE, &mut argument) };
        sort(answer, argument.done).map(|()| argument.done.max(0) as u64)
    }

    /// Write-protects the mapped pages of a range (absent ones stay absent and unprotected), with one TLB flush.
    ///
    /// # Errors
    /// `NotRegistered` when a part is not registered memory: what lies before that part has been protected.
    pub fn protect(&self, start: u64, len: u64) -> Result<(), UffdError> {
        self.write_protect(start, len, abi::WRITEPROTECT_MODE_WP)
    }

    /// Takes the protection away; with `wake`, wakes who waits there. As [`Uffd::protect`] otherwise.
    ///
    /// # Errors
    /// As [`Uffd::protect`].
    pub fn unprotect(&self, start: u64, len: u64, wake: bool) -> Result<(), UffdError> {
        self.write_protect(start, len, if wake { 0 } else { abi::WRITEPROTECT_MODE_DONTWAKE })
    }

    fn write_protect(&self, start: u64, len: u64, mode: u64) -> Result<(), UffdError> {
        let mut argument = WriteProtect { range: Range { start, len }, mode };
        // SAFETY: the struct is the request's; no byte of memory changes.
        let answer = unsafe { self.ioctl(abi::UFFDIO_WRITEPROTECT, &mut argument) };
        sort(answer, 0)
    }

    /// Makes accesses to absent pages fail from now on, with SIGBUS (`BUS_MCEERR_AR`) or `EFAULT`, until they are filled or thrown away
    /// (`MADV_DONTNEED`); wakes who waits there.
    ///
    /// # Errors
    /// As [`Uffd::copy`]; `Other(EINVAL)` from a kernel that cannot (before 6.6).
    pub fn poison(&self, start: u64, len: u64) -> Result<(), UffdError> {
        let mut argument = ZeroPage { range: Range { start, len }, mode: 0, done: 0 };
        // SAFETY: the struct is the request's; what is mapped stays as it is.
        let answer = unsafe { self.ioctl(abi::UFFDIO_POISON, &mut argument) };
        sort(answer, argument.done)
    }

    /// Wakes who waits for pages of a range.
    ///
    /// # Errors
    /// `EINVAL` for an unaligned range.
    pub fn wake(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut argument = Range { start, len };
        // SAFETY: the struct is the request's; woken threads fault again if there is still nothing.
        unsafe { self.ioctl(abi::UFFDIO_WAKE, &mut argument) }.map(|_| ())
    }

    /// Reads as many messages as there are and fit; how many.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and reading does not wait, `EINTR`.
    pub fn read_messages(&self, into: &mut [Message]) -> Result<usize, Errno> {
        let args = [self.fd.arg(), into.as_mut_ptr() as u64, size_of_val(into) as u64, 0, 0, 0];
        // SAFETY: the kernel writes whole messages into a buffer that we hold exclusively; every bit pattern is a `Message`.
        let bytes = unsafe { raw::syscall_result(nr::READ, args) }?;
        Ok(bytes as usize / size_of::<Message>())
    }

    /// The same, and does not wait in any case: whether the descriptor's reads wait is also up to the process that has handed it over.
    ///
    /// # Errors
    /// `EAGAIN` when there is none. A kernel that cannot be asked so (before 6.9) waits as the descriptor says.
    pub fn read_messages_now(&self, into: &mut [Message]) -> Result<usize, Errno> {
        const RWF_NOWAIT: u64 = 8;
        let part = [into.as_mut_ptr() as u64, size_of_val(into) as u64];
        let args = [self.fd.arg(), part.as_ptr() as u64, 1, u64::MAX, 0, RWF_NOWAIT];
        // SAFETY: the kernel reads one `struct iovec`, and writes whole messages into a buffer that we hold exclusively; every bit pattern is a `Message`.
        match unsafe { raw::syscall_result(nr::PREADV2, args) } {
            Ok(bytes) => Ok(bytes as usize / size_of::<Message>()),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.read_messages(into),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until there is a message, for at most `timeout_ms` (negative: for ever).
    ///
    /// # Errors
    /// `ENOMEM` and other failures of poll(2).
    pub fn wait_readable(&self, timeout_ms: i32) -> Result<Waited, Errno> {
        const POLLIN: u64 = 1;
        // struct pollfd: 32-bit descriptor, 16-bit wanted and returned events.
        let mut poll = self.fd.arg() & 0xffff_ffff | POLLIN << 32;
        let args = [&raw mut poll as u64, 1, timeout_ms as i64 as u64, 0, 0, 0];
        // SAFETY: the kernel reads and writes one 8-byte pollfd, which is ours.
        match unsafe { raw::syscall_result(nr::POLL, args) } {
            Ok(ready) if ready > 0 && poll >> 48 & POLLIN != 0 => Ok(Waited::Message),
            Ok(_) | Err(Errno::EINTR) => Ok(Waited::Nothing),
            Err(errno) => Err(errno),
        }
    }
}

/// What a wait for messages has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// There is a message, unless another thread reads it first.
    Message,
    /// The time is over, or a signal came.
    Nothing,
}

/// What [`Uffd::copy_noted`] has last done, laid out as the kernel's struct: where to, from where, how many bytes, how, and how many are mapped.
#[derive(Debug)]
#[repr(transparent)]
pub struct Note([AtomicU64; 5]);

const _: () = assert!(size_of::<Note>() == size_of::<Transfer>());

impl Note {
    /// Numbers of a note in memory.
    pub const NUMBERS: usize = 5;

    /// The note that these numbers are.
    pub fn of(numbers: &[AtomicU64; Note::NUMBERS]) -> &Note {
        // SAFETY: a transparent wrapper of just these.
        unsafe { &*(&raw const *numbers).cast() }
    }

    /// Nothing was mapped by the last call, as far as anybody needs to know.
    pub fn forget(&self) {
        self.0[4].store(0, Ordering::SeqCst);
    }

    /// What the last call has mapped: first byte and end.
    pub fn mapped(&self) -> Option<(u64, u64)> {
        let (start, bytes) = (self.0[0].load(Ordering::SeqCst), self.0[4].load(Ordering::SeqCst) as i64);
        (bytes > 0).then(|| (start, start.saturating_add(bytes.cast_unsigned())))
    }
}

/// The answer of a request that can do a part. A negative `done` repeats the errno.
const fn sort(answer: Result<u64, Errno>, done: i64) -> Result<(), UffdError> {
    match answer {
        Ok(_) => Ok(()),
        Err(errno) => Err(UffdError::new(errno, if done > 0 { done as u64 } else { 0 })),
    }
}
