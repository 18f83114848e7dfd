//! The control socket: counters out, settings in, while the program runs.
//!
//! **Name.** The socket's name is *abstract*: `\0farshore-UID-PID`, where UID is the effective user at the start. A socket with a
//! name in a directory outlives `kill -9`. An abstract one is gone with its process, whatever ended the process, so nobody has to
//! tell a stale file from a live one. An abstract name has no mode bits, so both sides look at `SO_PEERCRED`. The server answers
//! only root and the user whose process this is at that moment (only root while the process could act as several users). The
//! client makes sure that the listener is the process it asked for, since anybody may bind a free abstract name. If somebody has
//! bound this one, the server adds a number to it that nobody could guess, and the client looks for the name in the kernel's list
//! of sockets. Abstract names belong to a network namespace: a program in another one (`unshare -n`, most containers) is reached
//! from inside only.
//!
//! **Protocol.** [`farshore_config::control`] has the requests and the answers, without a socket, so that they can be fuzzed.
//! This crate carries them.
//!
//! Limits: a request of 64 KiB (a longer one is answered by an error and ends the connection); 8 clients (a ninth is told so and
//! closed); 10 seconds for a client to complete a request and take its answer, unless it has attached a policy. While an answer waits to be taken, nothing more is
//! read from that client.
//!
//! **The thread's own descriptor table.** [`serve`] first leaves the program's descriptor table, and keeps only the listener in a
//! table of its own. So accepted connections never take a low number that the program expects to be free, the program cannot
//! close the listener, a forked child does not inherit it, and the thread holds no pipe of the program open. The price:
//! [`Target`]'s methods run where **no other descriptor exists**, not even 0 to 2. They may read files by path; they must not use
//! swap files, rings, event descriptors or the userfaultfd, but leave that to other threads (wake them by futex).
//!
//! The listener stays open in the program's table too, at a high number that the program cannot use: the control thread may end
//! and be made again, and while there is none the kernel tells the process of connections (`preload/src/ground/own_threads/knock.rs`).
//!
//! **System calls.** [`serve`] uses direct system calls only (rustix, `farshore_sys::raw`), since those of libc are caught on
//! behalf of the program. So this crate closes descriptors by hand: the drop of `std`'s `OwnedFd` calls libc. The loop
//! allocates; in the library that is Farshore's own memory.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod counters;

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

pub use farshore_config::control::Target;
use farshore_config::control::{Attachment, Change, Conversation, LINE_LIMIT, Set, Translated, error_line, socket_name};
use farshore_config::stats::Stats;
use farshore_sys::fd::Fd;
use farshore_sys::raw;

/// Clients at a time.
pub const CLIENT_LIMIT: usize = 8;
/// How long a client may take for one request and its answer, in milliseconds.
pub const CLIENT_TIMEOUT_MS: u64 = 10_000;
/// How long no connection is accepted after the kernel could not make one, in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 1_000;
/// Bytes taken from a client by one call.
const READ_PIECE: usize = 4096;

/// Makes the listening socket, which `exec` closes.
///
/// # Errors
/// One line: the kernel refuses a socket, or any name for it. The program can run without one.
pub fn listen() -> Result<Fd, String> {
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let name = socket_name(rustix::process::geteuid().as_raw(), pid);
    let failed = |what: &str, errno: Errno| {
        format!("no control socket '@{name}' ({what}: {errno}); 'farshore stat {pid}' and 'farshore set {pid}' will not work")
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| failed("socket", errno))?;
    let fd = own(fd);
    let bind = |name: &str| rustix::net::bind(borrow(&fd), &SocketAddrUnix::new_abstract_name(name.as_bytes())?);
    let bound = match bind(&name) {
        // Somebody else has bound the name. The command finds the other name in the kernel's list.
        Err(Errno::ADDRINUSE) => bind(&format!("{name}-{:016x}", random())),
        bound => bound,
    };
    bound.map_err(|errno| failed("bind", errno))?;
    rustix::net::listen(borrow(&fd), 16).map_err(|errno| failed("listen", errno))?;
    Ok(fd)
}

/// A number that nobody else knows.
fn random() -> u64 {
    const SYS_GETRANDOM: u64 = 318;
    let mut number = 0u64;
    let to = (&raw mut number).expose_provenance() as u64;
    // SAFETY: getrandom writes 8 bytes to `number`, which lives until after the call. If it fails, `number` is one that others
    // may guess: the name is then taken or free, like any other.
    unsafe { raw::syscall(SYS_GETRANDOM, [to, 8, 0, 0, 0, 0]) };
    number
}

/// Connects to the control socket of process `pid`, which `user` has started, and closes the connection at once: the connection
/// makes the process start its threads. It does not matter which process listens there.
pub fn knock(user: u32, pid: u32) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(fd) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return };
    let fd = own(fd);
    if let Ok(address) = SocketAddrUnix::new_abstract_name(socket_name(user, pid).as_bytes()) {
        let _ = rustix::net::connect(borrow(&fd), &address);
    }
}

/// Moves the calling thread out of the program's table of descriptors, with `listener` alone. If the kernel refuses that, the
/// thread stays.
pub fn leave_table(listener: RawFd) {
    own_descriptor_table(listener);
}

/// Serves the socket until `stop` is true and a signal comes. Runs on a thread of its own, after [`leave_table`]; `listener` is
/// what [`listen`] returned, and stays open for this thread whatever the program does.
pub fn serve(listener: RawFd, target: &'static dyn Target, stop: &AtomicBool) {
    let mut server = Server { listener: Some(listener), target, clients: Vec::new(), accept_after: 0 };
    while !stop.load(Ordering::Acquire) {
        server.turn();
    }
    for client in &server.clients {
        client.leave(target);
    }
}

/// Gives the calling thread a descriptor table that holds `keep` alone. Returns whether that worked.
fn own_descriptor_table(keep: RawFd) -> bool {
    const SYS_CLOSE_RANGE: u64 = 436;
    const CLOSE_RANGE_UNSHARE: u64 = 2;
    let Ok(keep) = u64::try_from(keep) else { return false };
    let close_range = |first: u64, last: u64, flags: u64| {
        // SAFETY: close_range takes three integers and no pointer. With UNSHARE it first gives this
        // thread a copy of the table, so that it closes nothing that another thread uses; the
        // second call follows only where the first has succeeded. The thread was made for this
        // server and owns no descriptor but `keep`, which is spared.
        unsafe { raw::syscall(SYS_CLOSE_RANGE, [first, last, flags, 0, 0, 0]) }
    };
    // The upper part first: it cannot be empty, so this call is sure to unshare the table.
    close_range(keep + 1, u64::from(u32::MAX), CLOSE_RANGE_UNSHARE) == 0 && (keep == 0 || close_range(0, keep - 1, 0) == 0)
}

/// Takes over `fd`: what is returned closes it by a direct system call.
fn own(fd: OwnedFd) -> Fd {
    // SAFETY: `fd` owned the descriptor and has given it up.
    unsafe { Fd::from_raw(fd.into_raw_fd()) }
}

/// `fd` for one of rustix's calls.
fn borrow(fd: &Fd) -> BorrowedFd<'_> {
    // SAFETY: `fd` owns the descriptor and closes it only when dropped.
    unsafe { BorrowedFd::borrow_raw(fd.raw()) }
}

/// Milliseconds of a clock that only goes forward.
fn now_ms() -> u64 {
    const SYS_CLOCK_GETTIME: u64 = 228;
    const CLOCK_MONOTONIC: u64 = 1;
    let mut time = [0_u64; 2];
    let to = (&raw mut time).expose_provenance() as u64;
    // SAFETY: clock_gettime writes two 64-bit numbers to `time`, which lives until after the call.
    unsafe { raw::syscall(SYS_CLOCK_GETTIME, [CLOCK_MONOTONIC, to, 0, 0, 0, 0]) };
    time[0] * 1_000 + time[1] / 1_000_000
}

struct Server {
    /// `None` when the listener has broken: nothing is accepted any more.
    listener: Option<RawFd>,
    target: &'static dyn Target,
    clients: Vec<Client>,
    /// No connection is accepted before this time.
    accept_after: u64,
}

impl Server {
    /// Waits for something to do, and does it.
    fn turn(&mut self) {
        let (now, target) = (now_ms(), self.target);
        self.clients.retain(|client| client.deadline > now || client.leave(target));
        let accepting = self.listener.filter(|_| now >= self.accept_after);
        let (heard, events) = self.wait(now, accepting);
        // Clients are served before new ones come: `events` goes with the list as it was polled.
        let mut events = events.into_iter();
        let later = now_ms();
        self.clients.retain_mut(|client| match events.next() {
            Some(flags) if !flags.is_empty() => client.serve(flags, target, later) || client.leave(target),
            _ => true,
        });
        if let Some(listener) = accepting
            && !heard.is_empty()
        {
            self.accept(listener, heard);
        }
    }

    /// What is ready: on the listener, and on each client in order.
    fn wait(&self, now: u64, accepting: Option<RawFd>) -> (PollFlags, Vec<PollFlags>) {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(CLIENT_LIMIT + 1);
        for client in &self.clients {
            let wish = if client.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(borrow(&client.fd), wish));
        }
        if let Some(listener) = accepting {
            // SAFETY: the listener stays open for this thread as long as it runs (see `serve`).
            let listener = unsafe { BorrowedFd::borrow_raw(listener) };
            fds.push(PollFd::from_borrowed_fd(listener, PollFlags::IN));
        }
        let paused = self.listener.is_some() && accepting.is_none();
        let next = self.clients.iter().map(|client| client.deadline).chain(paused.then_some(self.accept_after)).min();
        let limit = next.map(|at| Duration::from_millis(at.saturating_sub(now).max(1)));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return (PollFlags::empty(), Vec::new()),
            // The kernel is out of memory, or worse: do not burn the processor with trying again.
            Err(_) => {
                let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = rustix::thread::nanosleep(&pause);
                return (PollFlags::empty(), Vec::new());
            }
        }
        let mut flags: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let heard = if accepting.is_some() { flags.pop() } else { None };
        (heard.unwrap_or(PollFlags::empty()), flags)
    }

    fn accept(&mut self, listener: RawFd, heard: PollFlags) {
        if heard.intersects(PollFlags::NVAL | PollFlags::ERR) {
            self.listener = None;
            return;
        }
        // SAFETY: as in `wait`.
        let listener = unsafe { BorrowedFd::borrow_raw(listener) };
        let fd = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => own(fd),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(_) => {
                self.accept_after = now_ms() + ACCEPT_PAUSE_MS;
                return;
            }
        };
        let Some(ids @ [user, _]) = peer_ids(&fd) else { return };
        let owner = owner();
        if owner != Some(user) && user != 0 {
            let whose = owner.map_or("acts as several users".into(), |owner| format!("belongs to user {owner}"));
            let who = owner.filter(|&owner| owner != 0).map_or("root".into(), |owner| format!("user {owner} or root"));
            return refuse(&fd, &format!("this program {whose}, you are user {user}: ask as {who}"));
        }
        if self.clients.len() >= CLIENT_LIMIT {
            return refuse(&fd, &format!("{CLIENT_LIMIT} clients are connected already: try again later"));
        }
        let may_open = can_all_we_can(&fd, ids);
        self.clients.push(Client::new(fd, may_open, now_ms()));
    }
}

/// The user whose process this is, if the process can act as no other user. Where the program changes its user, this thread
/// changes too.
fn owner() -> Option<u32> {
    let [real, effective, saved] = raw::users();
    (real == effective && effective == saved).then_some(real)
}

/// The user and the group at the other end, as the kernel saw them when it connected.
fn peer_ids(fd: &Fd) -> Option<[u32; 2]> {
    const SO_PEERCRED: u64 = 17;
    // struct ucred { pid, uid, gid }. rustix's own type is of no use: there the process id may not be 0, but it is 0 for a peer
    // outside our process namespace.
    let mut credentials = [0_u32; 3];
    let got = peer_option(fd, SO_PEERCRED, &mut credentials);
    matches!(got, Ok(12)).then_some([credentials[1], credentials[2]])
}

/// Asks the socket about the other end. Returns how many bytes the answer has, or, as an error, how many it would need.
fn peer_option(fd: &Fd, option: u64, words: &mut [u32]) -> Result<u32, u32> {
    const SYS_GETSOCKOPT: u64 = 55;
    const SOL_SOCKET: u64 = 1;
    let mut length = u32::try_from(size_of_val(words)).unwrap_or(0);
    let Ok(socket) = u64::try_from(fd.raw()) else { return Err(0) };
    let to = words.as_mut_ptr().expose_provenance() as u64;
    let size = (&raw mut length).expose_provenance() as u64;
    // SAFETY: getsockopt writes at most `length` bytes to `words`, which are as many and aligned for
    // u32, and one u32 to `length`; both live until after the call.
    let status = unsafe { raw::syscall(SYS_GETSOCKOPT, [socket, SOL_SOCKET, option, to, size, 0]) };
    if status == 0 { Ok(length) } else { Err(length) }
}

/// Whether the client could itself do what this process does for it by opening a path: the client is root, or it has all our
/// groups and we have no capability. (A process may have more rights than its user: by file capabilities, by ambient ones, or by
/// groups that its user is no longer in.)
fn can_all_we_can(fd: &Fd, [user, group]: [u32; 2]) -> bool {
    if user == 0 {
        return true;
    }
    let theirs = peer_groups(fd);
    let has = |ours: &u32| *ours == group || theirs.contains(ours);
    !has_capabilities() && own_groups().iter().all(has)
}

fn peer_groups(fd: &Fd) -> Vec<u32> {
    const SO_PEERGROUPS: u64 = 59;
    let Err(bytes) = peer_option(fd, SO_PEERGROUPS, &mut []) else { return Vec::new() };
    let mut groups = vec![0; bytes as usize / 4];
    let got = peer_option(fd, SO_PEERGROUPS, &mut groups).unwrap_or(0);
    groups.truncate(got as usize / 4);
    groups
}

/// Every group that this process acts as, or can.
fn own_groups() -> Vec<u32> {
    const SYS_GETGROUPS: u64 = 115;
    const GROUPS_MAX: usize = 65536;
    let mut groups = vec![0_u32; GROUPS_MAX];
    let to = groups.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: getgroups writes at most `GROUPS_MAX` numbers there.
    let count = unsafe { raw::syscall(SYS_GETGROUPS, [GROUPS_MAX as u64, to, 0, 0, 0, 0]) };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups.extend(raw::groups());
    groups
}

fn has_capabilities() -> bool {
    const SYS_CAPGET: u64 = 125;
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable, of the lower and the upper half.
    let mut sets = [u32::MAX; 6];
    let [header, to] = [header.as_mut_ptr(), sets.as_mut_ptr()].map(|at| at.expose_provenance() as u64);
    // SAFETY: capget reads and writes two numbers, and writes six, both ours. If it fails, the sets stay full.
    unsafe { raw::syscall(SYS_CAPGET, [header, to, 0, 0, 0, 0]) };
    let [effective, permitted, _, upper_effective, upper_permitted, _] = sets;
    effective | permitted | upper_effective | upper_permitted != 0
}

/// The target for a client that could not itself open what this process can: nothing that takes a path.
struct WithoutPaths<'a>(&'a dyn Target);

impl Target for WithoutPaths<'_> {
    fn stats(&self) -> Stats {
        self.0.stats()
    }

    fn set(&self, key: &str, value: &str) -> Result<Set, String> {
        if key == "swap+" {
            return Err(format!(
                "{key}={value}: this process has capabilities or groups that you have not, and would open that place with them: ask as root"
            ));
        }
        self.0.set(key, value)
    }

    fn change(&self, id: u64) -> Result<Change, String> {
        self.0.change(id)
    }

    fn translate(&self, address: u64) -> Result<Vec<Translated>, String> {
        self.0.translate(address)
    }

    fn attach(&self, _version: u64) -> Result<Attachment, String> {
        Err("attach: this process has capabilities or groups that you have not, and a policy sees what it does: ask as root"
            .into())
    }
}

/// Tells a client that is turned away why. The caller closes the connection.
fn refuse(fd: &Fd, why: &str) {
    // A fresh connection has room for a line; where it has not, the client sees the end alone.
    let _ = rustix::net::send(borrow(fd), error_line(why).as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Sends bytes, and a descriptor with them.
fn send_with(fd: &Fd, bytes: &[u8], with: &Fd, flags: SendFlags) -> Result<usize, Errno> {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut more = SendAncillaryBuffer::new(&mut space);
    let descriptors = [borrow(with)];
    more.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(borrow(fd), &[std::io::IoSlice::new(bytes)], &mut more, flags)
}

struct Client {
    fd: Fd,
    /// See [`can_all_we_can`].
    may_open: bool,
    /// The requests that have come and are not answered yet.
    talk: Conversation,
    /// The answer being sent; nothing is read while there is one.
    output: Vec<u8>,
    /// How many bytes of `output` are sent.
    sent: usize,
    /// A descriptor that goes with the first byte of `output`.
    with: Option<Fd>,
    /// When the client is dropped, unless it completes a request before. A client with an attachment is not.
    deadline: u64,
}

/// How much of an answer is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    All,
    /// The rest goes when the client has taken some.
    Part,
}

impl Client {
    fn new(fd: Fd, may_open: bool, now: u64) -> Self {
        let deadline = now + CLIENT_TIMEOUT_MS;
        Client { fd, may_open, talk: Conversation::new(LINE_LIMIT), output: Vec::new(), sent: 0, with: None, deadline }
    }

    /// Acts on what poll said; whether the client stays.
    fn serve(&mut self, flags: PollFlags, target: &dyn Target, now: u64) -> bool {
        if flags.intersects(PollFlags::NVAL | PollFlags::ERR) {
            return false;
        }
        if self.output.is_empty() && !self.receive() {
            return false;
        }
        let without = WithoutPaths(target);
        let target: &dyn Target = if self.may_open { target } else { &without };
        // One answer at a time is made and sent; a client that does not take it makes no more.
        loop {
            if self.output.is_empty() {
                let before = self.talk.attachment();
                match self.talk.answer(target) {
                    Some(answer) => self.output = answer.into_bytes(),
                    None => return !self.talk.ended(),
                }
                if let (None, Some(made)) = (before, self.talk.attachment()) {
                    // SAFETY: `Target::attach` has made it in this thread's table, for whoever sends it.
                    self.with = Some(unsafe { Fd::from_raw(made.descriptor) });
                }
            }
            match self.flush() {
                Ok(Sent::All) if self.talk.attachment().is_some() => self.deadline = u64::MAX,
                Ok(Sent::All) => self.deadline = now + CLIENT_TIMEOUT_MS,
                Ok(Sent::Part) => return true,
                Err(()) => return false,
            }
        }
    }

    /// The client is dropped: so is its attachment. Returns that it does not stay.
    fn leave(&self, target: &dyn Target) -> bool {
        if let Some(made) = self.talk.attachment() {
            target.detach(made.seat);
        }
        false
    }

    /// Takes what has come; whether the client is still there. A client that only ended its own sending still gets the answers to
    /// its requests.
    fn receive(&mut self) -> bool {
        let mut piece = [0_u8; READ_PIECE];
        match rustix::net::recv(borrow(&self.fd), &mut piece, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                self.talk.end();
                true
            }
            Ok((count, _)) => {
                self.talk.take(piece.get(..count).unwrap_or(&piece));
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Sends as much of the answer as goes.
    fn flush(&mut self) -> Result<Sent, ()> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = match &self.with {
                Some(with) => send_with(&self.fd, rest, with, flags),
                None => rustix::net::send(borrow(&self.fd), rest, flags),
            };
            match sent {
                Ok(count) => {
                    self.sent += count;
                    self.with = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Sent::Part),
                Err(_) => return Err(()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(Sent::All)
    }
}
