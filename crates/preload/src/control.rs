//! The control socket: counters out, settings in, while the program runs.
//!
//! **Name.** The socket is *abstract*: `\0farshore-UID-PID`, where UID is the effective user at the
//! start. A socket with a name in a directory outlives `kill -9`; this one is gone with its process,
//! whatever ended it, and no stale file has to be told from a live one. An abstract name has no mode
//! bits, so both sides look at `SO_PEERCRED`: the server answers only root and the user whose process it is at that moment (nobody else while
//! it could act as several), and the client makes sure that the listener is the process it asked for, since
//! anybody may bind a free abstract name. Where somebody has, the socket's name goes on with a number that nobody could guess, and the client looks for it
//! in the kernel's list of sockets. Abstract names belong to a network namespace: a program in
//! another one (`unshare -n`, most containers) is reached from inside only.
//!
//! **Protocol.** [`farshore_config::control`]: what is asked, what is answered, without a socket, so that it can be fuzzed. Here is
//! what carries it.
//!
//! Limits: a request of 64 KiB (a longer one is answered by an error and ends the connection), 8
//! clients (one more is told so and closed), 10 seconds for a request to become complete and for its
//! answer to be taken. While an answer waits to be taken, nothing more is read from that client.
//!
//! **The thread's own descriptor table.** [`serve`] first leaves the program's descriptor table, and
//! keeps only the listener in its own. So accepted connections never take a low number that the
//! program expects to be free, the program cannot close the listener, a forked child does not
//! inherit it, and the thread holds no pipe of the program open. The price: [`Target`]'s methods
//! run where **no other descriptor exists**, not even 0 to 2. They may read files by path; they must
//! not use swap files, rings, event descriptors or the userfaultfd, but leave that to other threads
//! (wake them by futex).
//!
//! The listener stays open in the program's table too, at a high number that the program cannot use: the thread ends and is made again, and while it is
//! not there the kernel tells the process of connections ([`crate::own_threads::knock`]).
//!
//! **System calls.** [`serve`] uses direct system calls only (rustix, `farshore_sys::raw`), since
//! those of libc are caught on behalf of the program. That is why descriptors are closed by hand
//! here: the drop of `std`'s `OwnedFd` calls libc. The loop allocates, from Farshore's own memory.

use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

pub use farshore_config::control::Target;
use farshore_config::control::{Conversation, LINE_LIMIT, error_line, socket_name};
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
/// One line: the kernel refuses a socket, or any name for it. The program can run without.
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
        // Somebody was faster. The command finds the other name in the kernel's list.
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
    // SAFETY: getrandom writes 8 bytes to `number`, which lives until after the call. Should it fail, the name is taken, or free, like any other.
    unsafe { raw::syscall(SYS_GETRANDOM, [to, 8, 0, 0, 0, 0]) };
    number
}

/// Connects to the control socket of process `pid`, which `user` has started, and leaves again: that makes its threads. Whoever it is.
pub fn knock(user: u32, pid: u32) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(fd) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return };
    let fd = own(fd);
    if let Ok(address) = SocketAddrUnix::new_abstract_name(socket_name(user, pid).as_bytes()) {
        let _ = rustix::net::connect(borrow(&fd), &address);
    }
}

/// The calling thread leaves the program's table of descriptors, and keeps `listener` alone. Where the kernel refuses that, it stays.
pub fn leave_table(listener: RawFd) {
    own_descriptor_table(listener);
}

/// Serves the socket until `stop` is true and a signal comes. Runs on a thread of its own, after [`leave_table`]; `listener` is what
/// [`listen`] returned, and stays open for this thread whatever the program does.
pub fn serve(listener: RawFd, target: &'static dyn Target, stop: &AtomicBool) {
    let mut server = Server { listener: Some(listener), target, clients: Vec::new(), accept_after: 0 };
    while !stop.load(Ordering::Acquire) {
        server.turn();
    }
}

/// Gives the calling thread a descriptor table that holds `keep` alone. Whether it has it.
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
    // The upper part first: it cannot be empty, so the table is certainly unshared by it.
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
        let now = now_ms();
        self.clients.retain(|client| client.deadline > now);
        let accepting = self.listener.filter(|_| now >= self.accept_after);
        let (heard, events) = self.wait(now, accepting);
        // Clients are served before new ones come: `events` goes with the list as it was polled.
        let mut events = events.into_iter();
        let (target, later) = (self.target, now_ms());
        self.clients.retain_mut(|client| match events.next() {
            Some(flags) if !flags.is_empty() => client.serve(flags, target, later),
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
        let Some(user) = peer_user(&fd) else { return };
        let owner = owner();
        if owner != Some(user) && user != 0 {
            let whose = owner.map_or("acts as several users".into(), |owner| format!("belongs to user {owner}"));
            let who = owner.filter(|&owner| owner != 0).map_or("root".into(), |owner| format!("user {owner} or root"));
            return refuse(&fd, &format!("this program {whose}, you are user {user}: ask as {who}"));
        }
        if self.clients.len() >= CLIENT_LIMIT {
            return refuse(&fd, &format!("{CLIENT_LIMIT} clients are connected already: try again later"));
        }
        self.clients.push(Client::new(fd, now_ms()));
    }
}

/// The user whose process this is, if it can act as no other. The program's changes are made by this thread too.
fn owner() -> Option<u32> {
    let [real, effective, saved] = raw::users();
    (real == effective && effective == saved).then_some(real)
}

/// The user at the other end, as the kernel saw it when it connected.
fn peer_user(fd: &Fd) -> Option<u32> {
    const SYS_GETSOCKOPT: u64 = 55;
    const SOL_SOCKET: u64 = 1;
    const SO_PEERCRED: u64 = 17;
    // struct ucred { pid, uid, gid }. Not rustix's: its process id may not be 0, which it is for a
    // peer outside our process namespace.
    let mut credentials = [0_u32; 3];
    let mut length = 12_u32;
    let socket = u64::try_from(fd.raw()).ok()?;
    let to = (&raw mut credentials).expose_provenance() as u64;
    let size = (&raw mut length).expose_provenance() as u64;
    // SAFETY: getsockopt writes at most `length` = 12 bytes to `credentials`, which is as large and
    // aligned for u32, and one u32 to `length`; both live until after the call.
    let status = unsafe { raw::syscall(SYS_GETSOCKOPT, [socket, SOL_SOCKET, SO_PEERCRED, to, size, 0]) };
    (status == 0 && length == 12).then_some(credentials[1])
}

/// Tells a client that is not taken why. It is closed by the caller.
fn refuse(fd: &Fd, why: &str) {
    // A fresh connection has room for a line; where it has not, the client sees the end alone.
    let _ = rustix::net::send(borrow(fd), error_line(why).as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

struct Client {
    fd: Fd,
    /// What it has asked and is not answered yet.
    talk: Conversation,
    /// The answer being sent; nothing is read while there is one.
    output: Vec<u8>,
    /// How many bytes of `output` are sent.
    sent: usize,
    /// When the client is dropped, unless it completes a request before.
    deadline: u64,
}

impl Client {
    fn new(fd: Fd, now: u64) -> Self {
        let deadline = now + CLIENT_TIMEOUT_MS;
        Client { fd, talk: Conversation::new(LINE_LIMIT), output: Vec::new(), sent: 0, deadline }
    }

    /// Acts on what poll said; whether the client stays.
    fn serve(&mut self, flags: PollFlags, target: &dyn Target, now: u64) -> bool {
        if flags.intersects(PollFlags::NVAL | PollFlags::ERR) {
            return false;
        }
        if self.output.is_empty() && !self.receive() {
            return false;
        }
        // One answer at a time is made and sent; a client that does not take it makes no more.
        loop {
            if self.output.is_empty() {
                match self.talk.answer(target) {
                    Some(answer) => self.output = answer.into_bytes(),
                    None => return !self.talk.ended(),
                }
            }
            match self.flush() {
                Ok(true) => self.deadline = now + CLIENT_TIMEOUT_MS,
                Ok(false) => return true,
                Err(()) => return false,
            }
        }
    }

    /// Takes what has come; whether the client is still there. One that only ended its own sending
    /// still gets the answers to what it has sent.
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

    /// Sends as much of the answer as goes; whether all of it is sent.
    fn flush(&mut self) -> Result<bool, ()> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(borrow(&self.fd), rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }
}
