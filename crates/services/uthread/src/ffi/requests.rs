//! Requests for C programs: the functions of the header that say *server*, *request* or *reply*.
//!
//! A server of datagrams is a [`UdpServer`], one of connections a [`TcpServer`]. The function in C gets a pointer to a [`CRequest`], which lies on the stack of the
//! unithread that serves it, and is nobody's when that function returns.

use super::{or_default, refusal, running, told};
use crate::Handle;
use crate::ground::error::Error;
use crate::scheduler::worker;
use crate::services::net::{Connection, Counts, Datagram, Frame, Limits, Next, TcpListener, TcpServer, UdpServer, UdpSocket};
use crate::services::sockets::addr::Name;
use core::ffi::{c_int, c_void};
use core::time::Duration;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of a reply that go through the stack at a time, where the kernel may not read them from where they are.
const PIECE: usize = 2048;

/// How long the request is that the bytes begin with.
type FrameOf = unsafe extern "C" fn(*const c_void, usize, *mut c_void) -> i64;
/// Serves a request.
type Serve = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// `struct farshore_uthread_limits`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct CLimits {
    connections: u32,
    requests: u32,
    request_bytes: u64,
    idle: u64,
}

impl CLimits {
    /// Zeros are defaults, of a runtime with such request buffers.
    fn limits(&self, buffer_bytes: usize) -> Limits {
        let default = Limits::default();
        let number = |value: u32, default: u32| if value == 0 { default } else { value };
        Limits {
            connections: number(self.connections, default.connections),
            request_bytes: or_default(self.request_bytes, default.request_bytes.min(buffer_bytes)),
            idle: if self.idle == 0 { default.idle } else { Duration::from_nanos(self.idle) },
            requests_in_flight: number(self.requests, default.requests_in_flight),
        }
    }
}

/// `struct farshore_uthread_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CCounts {
    accepted: u64,
    refused: u64,
    accept_failed: u64,
    open: u64,
    received: u64,
    dropped: u64,
    overflowed: u64,
    too_long: u64,
    malformed: u64,
    timed_out: u64,
    send_failed: u64,
    receive_failed: u64,
}

impl From<Counts> for CCounts {
    fn from(counts: Counts) -> CCounts {
        CCounts {
            accepted: counts.accepted,
            refused: counts.refused,
            accept_failed: counts.accept_failed,
            open: counts.open,
            received: counts.received,
            dropped: counts.dropped,
            overflowed: counts.overflowed,
            too_long: counts.too_long,
            malformed: counts.malformed,
            timed_out: counts.timed_out,
            send_failed: counts.send_failed,
            receive_failed: counts.receive_failed,
        }
    }
}

/// What the program has given to serve requests with.
#[derive(Clone, Copy, Debug)]
struct Program {
    serve: Serve,
    argument: *mut c_void,
}
// SAFETY: the functions may be called on any thread, and what the argument points to is the program's business: the header says so.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// `farshore_uthread_request_t`.
#[derive(Debug)]
enum CRequest<'r, 'a> {
    Datagram {
        datagram: &'r mut Datagram<'a>,
        reply: Option<usize>,
        malformed: bool,
    },
    /// `last`: the connection ends behind this request; `failed`: nothing can be sent any more.
    OfConnection {
        connection: &'r Connection<'a>,
        last: bool,
        failed: bool,
    },
}

/// `farshore_uthread_server_t`.
#[derive(Debug)]
struct CServer {
    handle: Handle,
    running: Running,
}

#[derive(Debug)]
enum Running {
    Datagrams(UdpServer),
    Connections(TcpServer),
}

impl Running {
    fn counts(&self) -> Counts {
        match self {
            Running::Datagrams(server) => server.counts(),
            Running::Connections(server) => server.counts(),
        }
    }

    fn join(self) -> Counts {
        match self {
            Running::Datagrams(server) => server.join(),
            Running::Connections(server) => server.join(),
        }
    }
}

impl Program {
    fn call(self, request: &mut CRequest<'_, '_>) {
        // SAFETY: the request lives until the call returns; the rest is the duty of who has started the server.
        unsafe { (self.serve)(core::ptr::from_mut(request).cast(), self.argument) };
    }

    fn serve_datagram(self, mut datagram: Datagram<'_>) {
        let mut request = CRequest::Datagram { datagram: &mut datagram, reply: None, malformed: false };
        self.call(&mut request);
        match request {
            CRequest::Datagram { malformed: true, .. } => datagram.malformed(),
            CRequest::Datagram { reply: Some(bytes), .. } => datagram.reply(bytes),
            _ => {}
        }
    }

    fn serve_connection(self, connection: &mut Connection<'_>, frame: FrameOf) -> io::Result<()> {
        let frame = |bytes: &[u8]| {
            // SAFETY: the bytes are borrowed for the call; the rest is the duty of who has started the server.
            match unsafe { frame(bytes.as_ptr().cast(), bytes.len(), self.argument) } {
                ..0 => Frame::Malformed,
                whole if (1..=bytes.len() as i64).contains(&whole) => Frame::Whole(whole as usize),
                _ => Frame::More,
            }
        };
        // Parts of a reply leave as they come.
        connection.stream().set_nodelay(true)?;
        while connection.receive(frame)? == Next::Request {
            let mut request = CRequest::OfConnection { connection, last: false, failed: false };
            self.call(&mut request);
            if matches!(request, CRequest::OfConnection { last: true, .. } | CRequest::OfConnection { failed: true, .. }) {
                break;
            }
        }
        Ok(())
    }
}

/// An option of a socket that is a number.
fn option(fd: BorrowedFd<'_>, name: c_int) -> io::Result<c_int> {
    let (mut value, mut bytes) = (0, size_of::<c_int>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: writes at most `bytes` to the number, and to `bytes`.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, at, &raw mut bytes) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor of our own of the program's socket, if it is of that kind and can be served.
fn own(fd: c_int, kind: c_int) -> io::Result<OwnedFd> {
    let invalid = |errno| io::Error::from_raw_os_error(errno);
    if fd < 0 {
        return Err(invalid(libc::EBADF));
    }
    // SAFETY: not -1, and open for the call: the caller's duty. If it is not, the calls say so.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let (is, family) = (option(fd, libc::SO_TYPE)?, option(fd, libc::SO_DOMAIN)?);
    if ![libc::AF_INET, libc::AF_INET6].contains(&family) {
        return Err(invalid(libc::EAFNOSUPPORT));
    }
    if is != kind || (kind == libc::SOCK_STREAM && option(fd, libc::SO_ACCEPTCONN)? == 0) {
        return Err(invalid(libc::EINVAL));
    }
    fd.try_clone_to_owned()
}

/// The flags of the open socket, with or without `O_NONBLOCK`: the ring waits for what would block, where it answers `EAGAIN` for sockets that do not.
fn set_flags(fd: c_int, flags: c_int) -> io::Result<()> {
    // SAFETY: no memory.
    if unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts a server, and gives the program its handle.
///
/// # Safety
/// `server` may be written to; `limits` is null or points to limits.
unsafe fn start(
    server: *mut *mut c_void,
    fd: c_int,
    kind: c_int,
    limits: *const CLimits,
    begin: impl FnOnce(&Handle, OwnedFd, Limits) -> Result<Running, Error>,
) -> c_int {
    let socket = match own(fd, kind) {
        Ok(socket) => socket,
        Err(error) => return refusal(&error),
    };
    let Some(handle) = running().filter(|handle| handle.shared.is_here()) else { return -libc::ESHUTDOWN };
    // SAFETY: the caller's duty.
    let limits = unsafe { limits.as_ref() }.copied().unwrap_or_default().limits(handle.shared.config.buffer_bytes);
    // SAFETY: no memory.
    let flags = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) };
    if let Err(error) = set_flags(socket.as_raw_fd(), flags & !libc::O_NONBLOCK) {
        return refusal(&error);
    }
    match begin(&handle, socket, limits) {
        Ok(running) => {
            // SAFETY: the caller's duty.
            unsafe { server.write(Box::into_raw(Box::new(CServer { handle, running })).cast()) };
            0
        }
        Err(error) => {
            // As it was.
            let _ = set_flags(fd, flags);
            told(&error)
        }
    }
}

/// See the header.
///
/// # Safety
/// `server` may be written to, `limits` is null or points to limits; `serve` may be called with `argument` on any thread until the server has been stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_serve_datagrams(
    server: *mut *mut c_void,
    fd: c_int,
    limits: *const CLimits,
    serve: Option<Serve>,
    argument: *mut c_void,
) -> c_int {
    let Some(serve) = serve else { return -libc::EINVAL };
    let program = Program { serve, argument };
    let begin = |handle: &Handle, socket, limits| {
        let serve = move |datagram: Datagram<'_>| program.serve_datagram(datagram);
        UdpServer::start(handle, UdpSocket::from(socket), limits, serve).map(Running::Datagrams)
    };
    // SAFETY: the caller's duty.
    unsafe { start(server, fd, libc::SOCK_DGRAM, limits, begin) }
}

/// See the header.
///
/// # Safety
/// As [`farshore_uthread_serve_datagrams`], and of `frame` as of `serve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_serve_connections(
    server: *mut *mut c_void,
    fd: c_int,
    limits: *const CLimits,
    frame: Option<FrameOf>,
    serve: Option<Serve>,
    argument: *mut c_void,
) -> c_int {
    let (Some(frame), Some(serve)) = (frame, serve) else { return -libc::EINVAL };
    let program = Program { serve, argument };
    let begin = |handle: &Handle, socket, limits| {
        let serve = move |connection: &mut Connection<'_>| program.serve_connection(connection, frame);
        TcpServer::start(handle, TcpListener::from(socket), limits, serve).map(Running::Connections)
    };
    // SAFETY: the caller's duty.
    unsafe { start(server, fd, libc::SOCK_STREAM, limits, begin) }
}

/// See the header.
///
/// # Safety
/// `server` came from a function above and was not stopped; `counts` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_server_counts(server: *mut c_void, counts: *mut CCounts) {
    // SAFETY: the caller's duty.
    let server = unsafe { &*server.cast::<CServer>() };
    // SAFETY: the caller's duty.
    unsafe { counts.write(server.running.counts().into()) };
}

/// See the header.
///
/// # Safety
/// `server` came from a function above and was not stopped; `counts` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_server_stop(server: *mut c_void, counts: *mut CCounts) -> c_int {
    // SAFETY: the caller's duty.
    let is_here = unsafe { &*server.cast::<CServer>() }.handle.shared.is_here();
    if !is_here {
        // It is the parent's.
        return -libc::ESHUTDOWN;
    }
    // SAFETY: made by `start`, and used up here.
    let counted = unsafe { Box::from_raw(server.cast::<CServer>()) }.running.join();
    if !counts.is_null() {
        // SAFETY: the caller's duty.
        unsafe { counts.write(counted.into()) };
    }
    0
}

/// The request that a function of the program's was called with.
///
/// # Safety
/// It is that request, and the function has not returned; nobody else has it.
unsafe fn served<'p>(request: *mut c_void) -> &'p mut CRequest<'p, 'p> {
    // SAFETY: the caller's duty. Its lifetimes are no longer than it is.
    unsafe { &mut *request.cast::<CRequest<'p, 'p>>() }
}

/// See the header.
///
/// # Safety
/// The request is the caller's; `count` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_request_bytes(request: *mut c_void, count: *mut usize) -> *const c_void {
    // SAFETY: the caller's duty.
    let bytes = match unsafe { served(request) } {
        CRequest::Datagram { datagram, .. } => datagram.bytes(),
        CRequest::OfConnection { connection, .. } => connection.request(),
    };
    // SAFETY: the caller's duty.
    unsafe { count.write(bytes.len()) };
    bytes.as_ptr().cast()
}

/// See the header.
///
/// # Safety
/// The request is the caller's; `peer` has room for as many bytes as `bytes` says, which may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_request_peer(
    request: *mut c_void,
    peer: *mut libc::sockaddr,
    bytes: *mut libc::socklen_t,
) {
    // SAFETY: the caller's duty.
    let name = Name::of(match unsafe { served(request) } {
        CRequest::Datagram { datagram, .. } => datagram.peer(),
        CRequest::OfConnection { connection, .. } => connection.peer(),
    });
    // SAFETY: the caller's duty.
    let room = unsafe { bytes.replace(name.bytes()) };
    // SAFETY: there is room, and the name is as long.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr().cast::<u8>(), peer.cast(), room.min(name.bytes()) as usize) };
}

/// See the header.
///
/// # Safety
/// The request is the caller's; `bytes` has `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_reply(request: *mut c_void, bytes: *const c_void, count: usize) -> c_int {
    let bytes = bytes.cast::<u8>();
    // SAFETY: the caller's duty.
    match unsafe { served(request) } {
        CRequest::Datagram { reply: Some(_), .. } => -libc::EALREADY,
        CRequest::Datagram { datagram, reply, .. } => {
            let buffer = datagram.buffer();
            if count > buffer.len() {
                return -libc::EMSGSIZE;
            }
            // SAFETY: that many bytes there, says the caller, and here; they may be a part of the request.
            unsafe { core::ptr::copy(bytes, buffer.as_mut_ptr(), count) };
            *reply = Some(count);
            0
        }
        CRequest::OfConnection { failed: true, .. } => -libc::EPIPE,
        CRequest::OfConnection { connection, failed, .. } => {
            // SAFETY: the caller's duty.
            match unsafe { send(connection, bytes, count) } {
                Ok(()) => 0,
                Err(error) => {
                    *failed = true;
                    if error.kind() == io::ErrorKind::TimedOut { -libc::ETIMEDOUT } else { refusal(&error) }
                }
            }
        }
    }
}

/// Sends bytes of the program's, wherever they are.
///
/// # Safety
/// `bytes` has `count` bytes.
unsafe fn send(connection: &Connection<'_>, bytes: *const u8, count: usize) -> io::Result<()> {
    let is_own = |at: usize| worker::inside().is_some_and(|(worker, index)| worker.shared.pool.is_own(index, at));
    if count > 0 && is_own(bytes.addr()) && is_own(bytes.addr() + count - 1) {
        // SAFETY: that many bytes, says the caller; the stack and the request buffer are no managed memory.
        return connection.send(unsafe { core::slice::from_raw_parts(bytes, count) });
    }
    let mut piece = [0; PIECE];
    for at in (0..count).step_by(PIECE) {
        let some = PIECE.min(count - at);
        // SAFETY: within the caller's bytes, and within the piece, which is ours.
        unsafe { core::ptr::copy_nonoverlapping(bytes.wrapping_add(at), piece.as_mut_ptr(), some) };
        connection.send(&piece[..some])?;
    }
    Ok(())
}

/// See the header.
///
/// # Safety
/// The request is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_request_malformed(request: *mut c_void) {
    // SAFETY: the caller's duty.
    match unsafe { served(request) } {
        CRequest::Datagram { malformed, .. } => *malformed = true,
        CRequest::OfConnection { connection, last, .. } => {
            connection.malformed();
            *last = true;
        }
    }
}

/// See the header.
///
/// # Safety
/// The request is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farshore_uthread_request_last(request: *mut c_void) {
    // SAFETY: the caller's duty.
    if let CRequest::OfConnection { last, .. } = unsafe { served(request) } {
        *last = true;
    }
}
