//! Where a server of a command listens: a port, or a socket of its user's.

use std::io::ErrorKind;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::door::Stream;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || format!("invalid address {text:?}: write HOST:PORT such as 127.0.0.1:9275, or unix:PATH");
        match text.strip_prefix("unix:") {
            Some("") => Err(wrong()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => match text.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Address::Tcp(text.into())),
                _ => Err(wrong()),
            },
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// At a port.
    Tcp(TcpListener),
    /// At a path; with device and number of the socket's file.
    Unix(UnixListener, PathBuf, Option<(u64, u64)>),
}

impl Listener {
    /// Listens at an address. A socket that was left behind there, at which nobody listens any more, is replaced.
    ///
    /// # Errors
    /// One line: what cannot be had, and why.
    pub fn at(address: &Address) -> Result<Listener, String> {
        match address {
            Address::Tcp(text) => {
                let failed = |error: std::io::Error| {
                    format!("cannot listen at '{text}' ({error}): is the port free, and the host this one?")
                };
                let all: Vec<_> = text.to_socket_addrs().map_err(failed)?.collect();
                TcpListener::bind(&all[..]).map(Listener::Tcp).map_err(failed)
            }
            Address::Unix(path) => {
                let shown = path.display();
                // Of several that start at a time, one looks and listens after the other: else each would take away what another has just made.
                let _turn = turn(path);
                if is_left(path) {
                    std::fs::remove_file(path)
                        .map_err(|error| format!("cannot remove the socket that was left at '{shown}' ({error})"))?;
                }
                let failed = |error: std::io::Error| match error.kind() {
                    ErrorKind::AddrInUse => format!("'{shown}' is there already: give another path, or end who listens there"),
                    _ => format!("cannot listen at 'unix:{shown}' ({error}): check the directory and its rights"),
                };
                // For its user alone from the first moment on: the rights of a new socket are what the mask leaves.
                let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
                let bound = UnixListener::bind(path);
                rustix::process::umask(mask);
                let listener = bound.map_err(failed)?;
                debug_assert!(std::fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o177 == 0));
                Ok(Listener::Unix(listener, path.clone(), identity(path)))
            }
        }
    }

    /// A socket that listens, and was handed on to this process. Its path stays, as it is the one's who has made it.
    ///
    /// # Errors
    /// One line: it is no such socket.
    pub fn of(socket: OwnedFd) -> Result<Listener, String> {
        use rustix::net::sockopt;
        let failed = |why: &dyn std::fmt::Display| format!("a descriptor that was handed on is no socket that listens ({why})");
        if !sockopt::socket_acceptconn(&socket).map_err(|errno| failed(&errno))? {
            return Err(failed(&"nobody can connect to it"));
        }
        if sockopt::socket_type(&socket).map_err(|errno| failed(&errno))? != SocketType::STREAM {
            return Err(failed(&"it has no connections"));
        }
        match sockopt::socket_domain(&socket).map_err(|errno| failed(&errno))? {
            AddressFamily::UNIX => {
                let listener = UnixListener::from(socket);
                let address = listener.local_addr().ok();
                let path = address.and_then(|address| address.as_pathname().map(Path::to_owned));
                Ok(Listener::Unix(listener, path.unwrap_or_default(), None))
            }
            AddressFamily::INET | AddressFamily::INET6 => Ok(Listener::Tcp(socket.into())),
            _ => Err(failed(&"it is neither a Unix nor a TCP socket")),
        }
    }

    /// Takes a connection.
    pub(crate) fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener, ..) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    /// Taking a connection does not wait from now on.
    pub(crate) fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener, ..) => listener.set_nonblocking(true),
        }
    }

    /// Takes a socket's path away, before the process ends.
    pub fn remove(&self) {
        // Somebody may have removed it, and another process may listen there by now.
        if let Listener::Unix(_, path, is) = self
            && is.is_some()
            && identity(path) == *is
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, ..) => listener.as_fd(),
        }
    }
}

/// Tries to get one's turn at a folder, and how long from one try to the next.
const TURNS: (u32, Duration) = (100, Duration::from_millis(20));

/// Waits for one's turn among those that begin to listen in a folder. Not for ever: where others may open the folder, they may keep it. Without it, only who starts at the
/// same moment is in the way.
fn turn(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..TURNS.0 {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(TURNS.1),
            Err(_) => return None,
        }
    }
    None
}

/// Whether a socket lies there at which nobody listens any more. It is not waited for: one with so many connections that no other has room is somebody's, who may be stopped.
fn is_left(path: &Path) -> bool {
    let refused = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        connect(&socket, &SocketAddrUnix::new(path).ok()?).err()
    };
    std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket()) && refused() == Some(Errno::CONNREFUSED)
}

/// Device and number of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_another_stays() {
        let path = std::env::temp_dir().join(format!("farshore-listen-{}", std::process::id()));
        let at = Address::Unix(path.clone());
        let first = Listener::at(&at).expect("nobody listens there");
        std::fs::remove_file(&path).expect("it is there");
        let second = Listener::at(&at).expect("it is free again");
        first.remove();
        assert!(path.exists());
        second.remove();
        assert!(!path.exists());
    }

    #[test]
    fn of_several_that_start_one_listens() {
        let path = std::env::temp_dir().join(format!("farshore-listen-{}-several", std::process::id()));
        let at = Address::Unix(path.clone());
        for _ in 0..500 {
            // Left behind: it is dropped, and its file stays.
            drop(UnixListener::bind(&path).expect("it is free"));
            let start = std::sync::Barrier::new(4);
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let one = || {
                    start.wait();
                    Listener::at(&at)
                };
                let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                all.into_iter().filter_map(|one| one.join().expect("it ends").ok()).collect()
            });
            assert_eq!(listeners.len(), 1, "each took away what another had made");
            assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
            listeners[0].remove();
        }
    }

    #[test]
    fn who_takes_no_connection_keeps_nobody_waiting() {
        let path = std::env::temp_dir().join(format!("farshore-listen-{}-full", std::process::id()));
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("there is one");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).expect("it is short")).expect("it is free");
        rustix::net::listen(&socket, 0).expect("it may listen");
        let _in_its_queue = std::os::unix::net::UnixStream::connect(&path).expect("there is room for one");
        let at = Address::Unix(path.clone());
        let (said, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(Listener::at(&at).map(drop)));
        let why = told.recv_timeout(Duration::from_secs(30)).expect("it waits").expect_err("somebody listens there");
        assert!(why.contains("is there already"), "{why}");
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn addresses_are_read() {
        for text in ["127.0.0.1:9275", "[::1]:0", "localhost:80"] {
            assert_eq!(text.parse(), Ok(Address::Tcp(text.into())));
        }
        assert_eq!("unix:/run/x:1".parse(), Ok(Address::Unix("/run/x:1".into())));
        for text in ["", ":80", "localhost", "localhost:", "localhost:65536", "unix:", "9275"] {
            let why = text.parse::<Address>().unwrap_err();
            assert!(why.contains(&format!("{text:?}")) && why.contains("HOST:PORT"), "{why}");
        }
    }
}
