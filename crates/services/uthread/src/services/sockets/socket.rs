//! What sockets of both kinds need.

use super::addr::{NAME_BYTES, Name};
use core::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The kernel's answer to a call.
fn check(answer: c_int) -> io::Result<c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A socket of `kind` that is bound to `address`. It blocks: a ring waits for what would block, where it answers `EAGAIN` for sockets that do not.
pub(super) fn bound(kind: c_int, address: SocketAddr) -> io::Result<OwnedFd> {
    let name = Name::of(address);
    // SAFETY: makes a descriptor.
    let fd = check(unsafe { libc::socket(name.family(), kind | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: fresh, and ours.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if kind == libc::SOCK_STREAM {
        set(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    // SAFETY: reads the name.
    check(unsafe { libc::bind(fd.as_raw_fd(), name.as_ptr(), name.bytes()) })?;
    Ok(fd)
}

/// Sets an option that is a number.
pub(super) fn set(fd: &OwnedFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let at = (&raw const value).cast();
    // SAFETY: reads the number.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, at, size_of::<c_int>() as u32) }).map(drop)
}

/// Of what the kernel counts for a socket: 9 numbers, the last of which are datagrams that found its buffer full (`SK_MEMINFO_DROPS`).
pub(super) fn overflowed(fd: &OwnedFd) -> io::Result<u64> {
    let mut numbers = [0u32; 9];
    let mut bytes = size_of_val(&numbers) as libc::socklen_t;
    let at = numbers.as_mut_ptr().cast();
    // SAFETY: writes at most `bytes` to the numbers, and to `bytes`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, at, &raw mut bytes) })?;
    Ok(numbers[8].into())
}

/// The address that the socket is bound to.
pub(super) fn local(fd: &OwnedFd) -> io::Result<SocketAddr> {
    named(|name, bytes| {
        // SAFETY: writes at most `bytes` to `name`, and to `bytes`.
        unsafe { libc::getsockname(fd.as_raw_fd(), name, bytes) }
    })
}

/// The address that it is connected to.
pub(super) fn peer(fd: &OwnedFd) -> io::Result<SocketAddr> {
    named(|name, bytes| {
        // SAFETY: as above.
        unsafe { libc::getpeername(fd.as_raw_fd(), name, bytes) }
    })
}

fn named(call: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> c_int) -> io::Result<SocketAddr> {
    let (mut name, mut bytes) = (Name::default(), NAME_BYTES as libc::socklen_t);
    check(call(name.as_mut_ptr(), &raw mut bytes))?;
    name.get().ok_or_else(strange)
}

/// The error for an address that is none of ours.
pub(super) fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an address of neither IPv4 nor IPv6")
}

/// Begins to listen.
pub(super) fn listen(fd: &OwnedFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: no memory.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Ends one direction or both, for all that have the socket. Those that wait for it are woken.
pub(super) fn shut(fd: BorrowedFd<'_>, how: c_int) -> io::Result<()> {
    // SAFETY: no memory.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), how) }).map(drop)
}
