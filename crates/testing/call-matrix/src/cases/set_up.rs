//! What cases prepare: files, pipes, sockets.

use crate::call::Call;
use crate::kernel::{at, at_mut, sys};

/// A descriptor that is closed when it is dropped.
#[derive(Debug)]
pub struct Fd(pub u64);

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = sys("close", &[self.0]);
    }
}

/// Bytes that show where they come from.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + index / 251 + 7) as u8).collect()
}

/// A new file of so many bytes of pattern, open for both, at offset 0.
pub fn file(call: &mut Call, what: &str, len: usize) -> Result<u64, String> {
    file_with(call, what, len, 0)
}

/// The same, with more flags for `open`.
pub fn file_with(call: &mut Call, what: &str, len: usize, flags: i32) -> Result<u64, String> {
    let name = call.name(what);
    std::fs::write(&name, pattern(len)).map_err(|error| format!("{what}: {error}"))?;
    open(call, &name, libc::O_RDWR | flags)
}

/// Opens by name; closed when the call is over.
pub fn open(call: &mut Call, name: &str, flags: i32) -> Result<u64, String> {
    let path = std::ffi::CString::new(name).map_err(|error| error.to_string())?;
    let fd = sys("openat", &[libc::AT_FDCWD as u64, path.as_ptr() as u64, (flags | libc::O_CLOEXEC) as u64, 0o600])?;
    keep(call, fd)
}

/// Closes a descriptor when the call is over.
pub fn keep(call: &mut Call, fd: u64) -> Result<u64, String> {
    call.keep(Fd(fd));
    Ok(fd)
}

/// The ends of a pipe with these bytes in it: the one to read from, and the other.
pub fn pipe(call: &mut Call, bytes: &[u8]) -> Result<[u64; 2], String> {
    let mut ends = [0u32; 2];
    sys("pipe2", &[at_mut(&mut ends), libc::O_CLOEXEC as u64])?;
    let ends = ends.map(u64::from);
    for fd in ends {
        call.keep(Fd(fd));
    }
    if !bytes.is_empty() {
        sys("write", &[ends[1], at(bytes), bytes.len() as u64])?;
    }
    Ok(ends)
}

/// Two sockets of the Unix domain that are connected.
pub fn pair(call: &mut Call, kind: i32) -> Result<[u64; 2], String> {
    let mut ends = [0u32; 2];
    sys("socketpair", &[libc::AF_UNIX as u64, (kind | libc::SOCK_CLOEXEC) as u64, 0, at_mut(&mut ends)])?;
    let ends = ends.map(u64::from);
    for fd in ends {
        call.keep(Fd(fd));
    }
    Ok(ends)
}

/// Sends bytes from a socket.
pub fn send(fd: u64, bytes: &[u8]) -> Result<(), String> {
    sys("sendto", &[fd, at(bytes), bytes.len() as u64, 0, 0, 0]).map(|_| ())
}

/// What can be read from a descriptor now, as text.
pub fn drained(fd: u64) -> impl FnOnce(i64) -> String {
    move |_| {
        let mut bytes = vec![0u8; 1 << 20];
        let flags = sys("fcntl", &[fd, libc::F_GETFL as u64]).unwrap_or(0);
        let _ = sys("fcntl", &[fd, libc::F_SETFL as u64, flags | libc::O_NONBLOCK as u64]);
        let mut len = 0;
        while let Ok(got @ 1..) = sys("read", &[fd, at_mut(&mut bytes[len..]), (bytes.len() - len) as u64]) {
            len += got as usize;
        }
        format!("[{len}:{:016x}]", crate::call::digest(&bytes[..len]))
    }
}

/// What a file of the call holds.
pub fn contents(call: &Call, what: &str) -> impl FnOnce(i64) -> String + use<> {
    let name = call.name(what);
    move |_| match std::fs::read(&name) {
        Ok(bytes) => format!("[{}:{:016x}]", bytes.len(), crate::call::digest(&bytes)),
        Err(error) => format!("[{:?}]", error.kind()),
    }
}

/// What a name of the call is: file, directory, link or nothing.
pub fn exists(call: &Call, what: &str) -> impl FnOnce(i64) -> String + use<> {
    let name = call.name(what);
    move |_| match std::fs::symlink_metadata(&name) {
        Ok(data) => {
            use std::os::unix::fs::{MetadataExt, PermissionsExt};
            format!("[{:?} {:o} {} links]", data.file_type(), data.permissions().mode(), data.nlink())
        }
        Err(error) => format!("[{:?}]", error.kind()),
    }
}

/// -100.
pub const HERE: i32 = libc::AT_FDCWD;
