//! Memory that the processes of a family share (`--shared-memory`): the library's end of what `farshore-manager` manages.
//!
//! ```text
//!  mmap(MAP_SHARED | MAP_ANONYMOUS) ─▶ a memfd in its place ─▶ HAND: userfaultfd, memfd, place ─▶ managed, or mapped plainly
//!  fork                             ─▶ FORK ─▶ the call ─▶ the child: a userfaultfd of its own, JOIN ─▶ code of the program
//!  munmap, mmap(MAP_FIXED), mremap  ─▶ HOLD ─▶ the call ─▶ DONE
//! ```
//!
//! The engine of this process knows nothing of this memory: its page words say that the pages are the kernel's. Faults there are messages to the manager, and whoever faults waits in the
//! kernel; so does a system call that touches a page that is out. The manager's head (`manager/src/kin.rs`) has the protocol's other end.
//!
//! # Invariants
//!
//! 1. **A place is managed before the program knows it**, or is mapped plainly. A child has joined before it runs code of the program, or it ends.
//! 2. **The kernel writes there only by way of the page table.** What keeps a page that it has found (direct reads, registered buffers, devices) would write to a page that has left. So from the first such memory on
//!    `O_DIRECT`, `io_uring`, devices that keep memory and writes to other processes' memory are refused ([`refusal`]), and with what is there already the memory is not managed.
//! 3. **All calls are made under the address-space lock**, with signals blocked: no fork is between HOLD and DONE.
//! 4. **A process that shares the memory of another one hands nothing over** (a vforked child): its descriptors end with it, and the memory does not.
//! 5. Whoever has ended the manager by force has everybody wait who needs a page that is out. Nobody finds zeros: this process keeps its userfaultfd open.

use crate::ground::net::net;
use crate::ground::runtime::{Runtime, runtime};
use crate::ground::{parts, report, thread};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use farshore_config::{Options, SharedMemory};
use farshore_core::limits::PAGE_SIZE;
use farshore_net::asynchronous;
use farshore_net::buffers::read_once;
use farshore_sys::fd::{self, Fd};
use farshore_sys::raw::{Errno, nr, syscall, syscall_result};
use farshore_sys::uffd::{Features, Uffd, UffdOptions};
use farshore_sys::vm::{self, map, prot};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recv, sendmsg, socket_with, sockopt,
};
use std::io::IoSlice;

type Args = [u64; 6];

const PAGE: u64 = PAGE_SIZE as u64;
/// What a message asks for; see `manager/src/kin.rs`.
const HAND: u64 = 1;
const JOIN: u64 = 2;
const HOLD: u64 = 3;
const DONE: u64 = 4;
const FORK: u64 = 5;
const NO_FORK: u64 = 6;
/// What an answer says.
const ACCEPTED: u64 = 1;
const LEFT: u64 = 2;

const MAP_SHARED: u64 = 1;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_LOCKED: u64 = 0x2000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_HUGETLB: u64 = 0x40000;
const MAP_SYNC: u64 = 0x80000;
const O_DIRECT: u64 = 0o40000;
const CLONE_NEWUSER: u64 = 0x1000_0000;
const CLONE_NEWNET: u64 = 0x4000_0000;

/// The connection to the manager, and this process' userfaultfd: descriptors, or -1.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static UFFD: AtomicI32 = AtomicI32::new(-1);
/// There is, or was, such memory in this process or one that it comes of.
static ANY: AtomicBool = AtomicBool::new(false);
/// No memory is handed over any more: something is in the way, or the manager has left.
static NO_MORE: AtomicBool = AtomicBool::new(false);
/// The manager has left: all such memory is the kernel's.
static LEFT_US: AtomicBool = AtomicBool::new(false);

/// Where a process has such memory; under the address-space lock. There may be less: a mapping that the kernel has taken away in a call that failed.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    ranges: Vec<Range<u64>>,
}

/// What the manager has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Yes,
    No,
    /// It has left, with everything back.
    Left,
    /// It is gone without that.
    Gone,
}

impl Shared {
    /// Whether some of these bytes are such memory.
    pub fn overlaps(&self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes);
        self.is_managed() && self.ranges.iter().any(|range| range.start < end && start < range.end)
    }

    fn is_managed(&self) -> bool {
        !self.ranges.is_empty() && !LEFT_US.load(Ordering::Relaxed)
    }

    fn forget(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        let cut = |range: &Range<u64>| {
            let before = range.start..range.end.min(start);
            let behind = range.start.max(end)..range.end;
            [before, behind].into_iter().filter(|part| part.start < part.end)
        };
        self.ranges = self.ranges.iter().flat_map(cut).collect();
    }

    /// Makes a call that may take away, or replace, what is mapped in this range. The manager touches no page table meanwhile.
    pub fn change(&mut self, start: u64, bytes: u64, call: impl FnOnce() -> i64) -> i64 {
        let bytes = bytes.next_multiple_of(PAGE);
        if !self.overlaps(start, bytes) {
            return call();
        }
        let held = ask(HOLD, 0..0);
        let answer = call();
        let is_done = !(-4095..0).contains(&answer);
        match held {
            Answer::Left => self.ranges.clear(),
            Answer::Yes => tell(DONE, if is_done { start..start + bytes } else { 0..0 }),
            // Nobody changes page tables any more.
            Answer::No | Answer::Gone => {}
        }
        if is_done {
            self.forget(start, bytes);
        }
        answer
    }

    /// Before a fork: a child is to be expected. `early`: addresses at which the kernel, or the first code in the child, writes before it can join; 0 is none.
    ///
    /// # Errors
    /// The fork cannot be: with `EINVAL` for such an address, or else with `EAGAIN` and a line.
    pub fn before_fork(&self, flags: u64, early: &[u64]) -> Result<Forking, Errno> {
        if !self.is_managed() {
            return Ok(Forking(false));
        }
        // There a child would not find the manager, or may not have its faults served.
        if flags & (CLONE_NEWNET | CLONE_NEWUSER) != 0 {
            return Err(Errno::EINVAL);
        }
        if early.iter().any(|&addr| addr != 0 && self.overlaps(addr.saturating_sub(8), 16)) {
            return Err(Errno::EINVAL);
        }
        if !is_open_to_manager() || userfaultfd().is_err() {
            report::line(format_args!(
                "fork: a child of this process could not have its shared memory managed, since the process has changed its user or its rights: \
                 it cannot fork; run the program without --shared-memory"
            ));
            return Err(Errno::EAGAIN);
        }
        match ask(FORK, 0..0) {
            Answer::Yes => Ok(Forking(true)),
            Answer::Left => Ok(Forking(false)),
            Answer::No => {
                report::line(format_args!(
                    "fork: the manager of shared memory has no descriptors left for another process: raise its limit (ulimit -n)"
                ));
                Err(Errno::EAGAIN)
            }
            Answer::Gone => {
                report::line(format_args!(
                    "fork: the manager of shared memory has ended, and pages of it are lost: a child could not have them"
                ));
                Err(Errno::EAGAIN)
            }
        }
    }

    /// In a forked child, before it runs code of the program: it has what its parent has. `own_files`: its descriptors are copies.
    ///
    /// # Errors
    /// One line: it cannot go on.
    pub fn in_child(&self, options: &Options, own_files: bool) -> Result<Shared, String> {
        let parents = [SOCKET.swap(-1, Ordering::Relaxed), UFFD.swap(-1, Ordering::Relaxed)];
        let joined = match (self.is_managed(), &options.shared) {
            (true, Some(shared)) => join(shared, parents[0]),
            _ => Ok(()),
        };
        if own_files {
            parents.into_iter().filter(|&number| number >= 0).for_each(close);
        }
        joined.map(|()| self.clone())
    }
}

/// A fork that was prepared.
#[derive(Debug)]
pub struct Forking(bool);

impl Forking {
    /// In the parent, when there is no child after all.
    pub fn failed(&self) {
        if self.0 {
            tell(NO_FORK, 0..0);
        }
    }
}

/// Whether there is, or was, such memory here. Then some calls are refused ([`refusal`]).
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Descriptors of ours, for the list of them.
pub fn descriptors() -> impl Iterator<Item = i32> {
    [&SOCKET, &UFFD].into_iter().map(|number| number.load(Ordering::Relaxed)).filter(|&number| number >= 0)
}

/// From now on memory is not handed over: the program restricts itself by a filter, which may stop the calls for it.
pub fn forbid() {
    NO_MORE.store(true, Ordering::Relaxed);
}

/// Whether a `mmap` with these arguments gives memory that is to be handed over.
pub fn may_take(options: &Options, args: &Args) -> bool {
    let [_, len, protection, flags, ..] = *args;
    let unwanted = map::FIXED | MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB | MAP_SYNC;
    options.shared.is_some()
        && flags & 0xf == MAP_SHARED
        && flags & map::ANONYMOUS != 0
        && flags & unwanted == 0
        && protection & (prot::WRITE | prot::EXEC) == prot::WRITE
        && len >= options.threshold.bytes()
        && !NO_MORE.load(Ordering::Relaxed)
}

/// Maps shared memory, and has it managed. `None`: it is to be mapped plainly. Under the address-space lock.
pub fn map(runtime: &Runtime, shared: &mut Shared, args: &Args) -> Option<i64> {
    let options = runtime.options.shared.as_ref()?;
    if NO_MORE.load(Ordering::Relaxed) || thread::is_guest() {
        return None;
    }
    let bytes = args[1].checked_next_multiple_of(PAGE).filter(|bytes| *bytes < 1 << 46)?;
    if rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some_and(|most| most < bytes) {
        // A file so long would end the program by a signal.
        return None;
    }
    let first = SOCKET.load(Ordering::Relaxed) < 0;
    if first && let Err(why) = begin(runtime, options) {
        return no_more(&why);
    }
    let memory = match memory(bytes) {
        Ok(memory) => memory,
        Err(why) => return no_more(&format!("no file for it can be made ({why})")),
    };
    let flags = args[3] & !(map::ANONYMOUS | MAP_POPULATE);
    // SAFETY: the program's own call but for the file, which is as what the kernel would map; it is not fixed.
    let place = match unsafe { vm::mmap(args[0], bytes, args[2], flags, memory.raw(), 0) } {
        Ok(place) => place,
        Err(errno) => return Some(-i64::from(errno.0)),
    };
    match hand_over(options, place..place + bytes, &memory, first) {
        Answer::Yes => {
            shared.ranges.push(place..place + bytes);
            ANY.store(true, Ordering::Relaxed);
            return Some(place as i64);
        }
        // It has told why.
        Answer::No => {}
        Answer::Left | Answer::Gone => forbid(),
    }
    // SAFETY: just mapped, and nobody knows it.
    let _ = unsafe { vm::munmap(place, bytes) };
    if first {
        [&SOCKET, &UFFD].into_iter().map(|number| number.swap(-1, Ordering::Relaxed)).for_each(close);
        runtime.note_own_fds();
    }
    None
}

fn no_more(why: &str) -> Option<i64> {
    forbid();
    report::line(format_args!("shared memory of this process stays in RAM, and --shared-memory does not limit it: {why}"));
    None
}

/// Before the first memory of this process: makes sure that nothing keeps pages, and connects.
fn begin(runtime: &Runtime, options: &SharedMemory) -> Result<(), String> {
    const PR_GET_SECCOMP: u64 = 21;
    // SAFETY: asks only.
    if unsafe { syscall(nr::PRCTL, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) } != 0 {
        return Err("a filter of system calls (seccomp) may stop what is needed for it".into());
    }
    if asynchronous::is_used() {
        return Err("io_uring or Linux AIO is in use, and may keep pages of it".into());
    }
    if let Some(number) = reads_directly(runtime) {
        return Err(format!("descriptor {number} is open with O_DIRECT, and such reads keep pages of it"));
    }
    let uffd = parts::raise_uffd(userfaultfd()?);
    let socket = connected(options).map_err(|errno| format!("its manager cannot be reached ({errno})"))?;
    UFFD.store(number_of(uffd), Ordering::Relaxed);
    SOCKET.store(socket.into_raw(), Ordering::Relaxed);
    runtime.note_own_fds();
    Ok(())
}

fn userfaultfd() -> Result<Uffd, String> {
    let required = Features::WP.with(Features::MISSING_SHMEM).with(Features::WP_SHMEM);
    let asked = UffdOptions { user_mode_only: false, required, wanted: Features(0), nonblocking: true };
    Uffd::open(asked).map(|(uffd, _)| uffd).map_err(|why| why.to_string())
}

/// The userfaultfd's descriptor, which stays open.
fn number_of(uffd: Uffd) -> i32 {
    core::mem::ManuallyDrop::new(uffd).fd().raw()
}

/// A descriptor of the program's that reads past the page cache, if it has one open.
fn reads_directly(runtime: &Runtime) -> Option<u32> {
    const F_GETFL: u64 = 3;
    let folder = fd::open(c"/proc/self/fd", fd::O_RDONLY).ok()?;
    let mut found = None;
    let look = |number: u32| {
        let own = runtime.own_fds().contains(&(number as i32));
        // SAFETY: asks only.
        let flags = unsafe { syscall(nr::FCNTL, [u64::from(number), F_GETFL, 0, 0, 0, 0]) };
        if !own && flags >= 0 && flags as u64 & O_DIRECT != 0 {
            found = Some(number);
        }
    };
    // What cannot be looked at may be such.
    fd::each_number_in(&folder, look).map_or(Some(u32::MAX), |()| found)
}

fn connected(options: &SharedMemory) -> Result<Fd, rustix::io::Errno> {
    // As a descriptor of our own at once: the standard library's would be closed through libc.
    let socket = Fd::from(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?);
    connect(&socket, &SocketAddrUnix::new_abstract_name(options.socket.as_bytes())?)?;
    // Somebody else may have taken the name of a manager that has ended.
    let manager = sockopt::socket_peercred(&socket)?.uid;
    if !manager.is_root() && manager != rustix::process::geteuid() && manager != rustix::process::getuid() {
        return Err(rustix::io::Errno::ACCESS);
    }
    Ok(parts::raise(socket))
}

/// A file for so many bytes, of which nobody else has a name.
fn memory(bytes: u64) -> Result<Fd, rustix::io::Errno> {
    let file = Fd::from(rustix::fs::memfd_create(c"farshore-shared", rustix::fs::MemfdFlags::CLOEXEC)?);
    rustix::fs::ftruncate(&file, bytes)?;
    Ok(file)
}

/// A descriptor of ours, for a call.
fn borrowed(number: i32) -> BorrowedFd<'static> {
    // SAFETY: ours, which nobody closes but `in_child` and `map`, under the lock.
    unsafe { BorrowedFd::borrow_raw(number) }
}

fn hand_over(options: &SharedMemory, range: Range<u64>, memory: &Fd, first: bool) -> Answer {
    let (socket, uffd) = (SOCKET.load(Ordering::Relaxed), UFFD.load(Ordering::Relaxed));
    let files = [borrowed(uffd), memory.as_fd()];
    match send(socket, HAND, range, options.token, if first { &files } else { &files[1..] }) {
        Ok(()) => answer(socket),
        Err(_) => left_or_gone(socket),
    }
}

/// A forked child makes itself known. `parents`: its copy of its parent's connection.
fn join(options: &SharedMemory, parents: i32) -> Result<(), String> {
    let uffd = parts::raise_uffd(userfaultfd().map_err(|why| format!("shared memory: {why}"))?);
    let answer = match connected(options) {
        Ok(socket) => {
            let number = socket.into_raw();
            SOCKET.store(number, Ordering::Relaxed);
            match send(number, JOIN, 0..0, options.token, &[uffd.fd().as_fd()]) {
                Ok(()) => answer(number),
                Err(_) => Answer::Gone,
            }
        }
        Err(_) => Answer::Gone,
    };
    UFFD.store(number_of(uffd), Ordering::Relaxed);
    // A manager that leaves says so to all whom it knows, and it has not known this process.
    match if answer == Answer::Gone { left_or_gone(parents) } else { answer } {
        Answer::Yes => Ok(()),
        Answer::Left => {
            LEFT_US.store(true, Ordering::Relaxed);
            forbid();
            Ok(())
        }
        Answer::No => Err("the manager of its shared memory has refused it, and has told why".into()),
        Answer::Gone => Err("the manager of its shared memory has ended".into()),
    }
}

/// Asks for something, and waits for the answer.
fn ask(what: u64, range: Range<u64>) -> Answer {
    let socket = SOCKET.load(Ordering::Relaxed);
    let answer = match send(socket, what, range, [0; 2], &[]) {
        Ok(()) => answer(socket),
        Err(_) => left_or_gone(socket),
    };
    if answer == Answer::Left {
        LEFT_US.store(true, Ordering::Relaxed);
        forbid();
    }
    answer
}

/// Says something to which there is no answer.
fn tell(what: u64, range: Range<u64>) {
    // One that is gone need not hear it.
    let _ = send(SOCKET.load(Ordering::Relaxed), what, range, [0; 2], &[]);
}

fn send(socket: i32, what: u64, range: Range<u64>, token: [u64; 2], files: &[BorrowedFd<'_>]) -> Result<(), rustix::io::Errno> {
    let words = [what, range.start, range.end - range.start, 0, token[0], token[1]];
    let mut bytes = [0; 48];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(rustix::io::Errno::NOMEM);
    }
    // So few bytes go at once or not at all.
    loop {
        match sendmsg(borrowed(socket), &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits for an answer. That the manager leaves stays in the stream: children look there.
fn answer(socket: i32) -> Answer {
    loop {
        let mut word = [0; 8];
        match recv(borrowed(socket), &mut word[..], RecvFlags::PEEK | RecvFlags::WAITALL) {
            Ok((8, _)) if u64::from_le_bytes(word) == LEFT => return Answer::Left,
            Ok((8, _)) => {
                let _ = recv(borrowed(socket), &mut word[..], RecvFlags::WAITALL);
                return if u64::from_le_bytes(word) == ACCEPTED { Answer::Yes } else { Answer::No };
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return Answer::Gone,
        }
    }
}

/// A connection has ended: whether the manager has left in order.
fn left_or_gone(socket: i32) -> Answer {
    let mut word = [0; 8];
    match recv(borrowed(socket), &mut word[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((8, _)) if u64::from_le_bytes(word) == LEFT => Answer::Left,
        _ => Answer::Gone,
    }
}

/// Whether the manager can look at a child of this process: it is root, or of the same user, whose processes are not hidden.
fn is_open_to_manager() -> bool {
    const PR_GET_DUMPABLE: u64 = 3;
    let Ok(manager) = sockopt::socket_peercred(borrowed(SOCKET.load(Ordering::Relaxed))) else { return false };
    // SAFETY: asks only.
    let is_dumpable = unsafe { syscall(nr::PRCTL, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0]) } == 1;
    manager.uid.is_root()
        || (is_dumpable && rustix::process::geteuid() == manager.uid && rustix::process::getuid() == manager.uid)
}

fn close(number: i32) {
    if number >= 0 {
        // SAFETY: a descriptor of ours that nobody uses any more.
        let _ = unsafe { syscall_result(nr::CLOSE, [number as u64, 0, 0, 0, 0, 0]) };
    }
}

/// A device that may keep memory is not to be used: what it keeps would leave all the same.
pub fn refuse_device((major, minor): (u32, u32)) {
    report::line(format_args!(
        "device {major}:{minor} may keep memory of the program: it is refused; run the program without --shared-memory"
    ));
}

/// The answer to a call that would have the kernel keep pages of such memory, or that such memory cannot have; `None`: it may be made. For calls that are not memory calls.
pub fn refusal(number: u64, args: &Args) -> Option<i64> {
    const OPEN: u64 = 2;
    const F_SETFL: u64 = 4;
    const UNSHARE: u64 = 272;
    const SETNS: u64 = 308;
    const PROCESS_VM_WRITEV: u64 = 311;
    const OPENAT2: u64 = 437;
    const MADV_REMOVE: u64 = 9;
    const MADV_GUARD_INSTALL: u64 = 102;
    const MADV_COLLAPSE: u64 = 25;
    let refused = |is: bool, errno: Errno| is.then(|| -i64::from(errno.0));
    match number {
        OPEN => refused(args[1] & O_DIRECT != 0, Errno::EINVAL),
        nr::OPENAT => refused(args[2] & O_DIRECT != 0, Errno::EINVAL),
        // struct open_how begins with the flags.
        OPENAT2 => refused(read_once::<u64>(net(), args[2]).is_some_and(|flags| flags & O_DIRECT != 0), Errno::EINVAL),
        nr::FCNTL => refused(args[1] as u32 as u64 == F_SETFL && args[2] & O_DIRECT != 0, Errno::EINVAL),
        nr::IO_URING_SETUP => Some(-i64::from(Errno::ENOSYS.0)),
        // Children find the manager by a socket whose name belongs to the network's namespace.
        UNSHARE => refused(args[0] & CLONE_NEWNET != 0, Errno::EPERM),
        SETNS => refused(args[1] as u32 == 0 || args[1] & CLONE_NEWNET != 0, Errno::EPERM),
        PROCESS_VM_WRITEV => Some(-i64::from(Errno::EPERM.0)),
        nr::PROCESS_MADVISE => refused(matches!(args[3], MADV_REMOVE | MADV_GUARD_INSTALL | MADV_COLLAPSE), Errno::EINVAL),
        _ => None,
    }
}

/// The answer to advice about such memory that is not the kernel's to follow; `None`: it is.
pub fn advice(shared: &Shared, args: &Args) -> Option<i64> {
    const MADV_REMOVE: u64 = 9;
    const MADV_COLLAPSE: u64 = 25;
    const MADV_GUARD_INSTALL: u64 = 102;
    const MADV_GUARD_REMOVE: u64 = 103;
    let [addr, len, what, ..] = *args;
    if !shared.overlaps(addr, len.max(1)) {
        return None;
    }
    match what {
        // A hole that is not the manager's.
        MADV_REMOVE => Some(-i64::from(Errno::EOPNOTSUPP.0)),
        // The kernel would try for ever where a page is protected (Linux 6.18).
        MADV_GUARD_INSTALL | MADV_GUARD_REMOVE | MADV_COLLAPSE => Some(-i64::from(Errno::EINVAL.0)),
        // No part of a huge page can leave.
        vm::advice::HUGEPAGE => Some(0),
        _ => None,
    }
}

/// Takes the address-space lock, and tells whether some of these bytes are such memory.
pub fn overlaps(start: u64, bytes: u64) -> bool {
    is_any()
        && runtime().is_some_and(|runtime| crate::ground::runtime::locked(runtime, |space| space.shared.overlaps(start, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_config::{Size, SwapSpec};

    #[test]
    fn what_is_taken() {
        let mut options = Options::new(Size::mib(64), SwapSpec::Dir("/x".into()));
        let wanted = [0, 1 << 20, prot::READ | prot::WRITE, MAP_SHARED | map::ANONYMOUS, u64::MAX, 0];
        assert!(!may_take(&options, &wanted), "nobody has asked for it");
        options.shared = Some(SharedMemory { memory: Size::mib(16), ..SharedMemory::default() });
        assert!(may_take(&options, &wanted));
        let with = |n: usize, value: u64| {
            let mut args = wanted;
            args[n] = value;
            may_take(&options, &args)
        };
        assert!(!with(1, 4096), "it is small");
        assert!(!with(2, prot::READ) && !with(2, prot::READ | prot::WRITE | prot::EXEC));
        for flags in [map::PRIVATE | map::ANONYMOUS, MAP_SHARED, 3 | map::ANONYMOUS] {
            assert!(!with(3, flags), "{flags:#x}");
        }
        for more in [map::FIXED, MAP_LOCKED, MAP_HUGETLB] {
            assert!(!with(3, wanted[3] | more), "{more:#x}");
        }
    }

    #[test]
    fn what_is_left_of_ranges() {
        let mut shared = Shared { ranges: vec![0x1000..0x9000, 0x20000..0x30000] };
        shared.forget(0x3000, 0x2000);
        assert_eq!(shared.ranges, [0x1000..0x3000, 0x5000..0x9000, 0x20000..0x30000]);
        shared.forget(0x8000, 0x20000);
        assert_eq!(shared.ranges, [0x1000..0x3000, 0x5000..0x8000, 0x28000..0x30000]);
        assert!(shared.overlaps(0x2fff, 1) && !shared.overlaps(0x3000, 0x2000) && shared.overlaps(0, u64::MAX));
        assert_eq!(shared.change(0x3000, 0x2000, || 7), 7, "nobody is asked where there is none");
    }

    #[test]
    fn which_advice_is_not_the_kernels() {
        let shared = Shared { ranges: vec![0x1000..0x9000, 0x20000..0x21000] };
        let of = |what| advice(&shared, &[0x2000, 0x1000, what, 0, 0, 0]);
        assert_eq!((of(vm::advice::HUGEPAGE), of(vm::advice::DONTNEED), of(vm::advice::COLD)), (Some(0), None, None));
        assert!([9, 25, 102].into_iter().all(|what| of(what).is_some_and(|answer| answer < 0)));
        assert_eq!(advice(&shared, &[0x9000, 0x1000, 9, 0, 0, 0]), None);
    }
}
