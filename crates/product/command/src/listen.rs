//! Where a server of a command listens: a port, or a socket of its user's.

use std::io::ErrorKind;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

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
                let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
                if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                    std::fs::remove_file(path)
                        .map_err(|error| format!("cannot remove the socket that was left at '{shown}' ({error})"))?;
                }
                let failed = |error: std::io::Error| match error.kind() {
                    ErrorKind::AddrInUse => format!("'{shown}' is there already: give another path, or end who listens there"),
                    _ => format!("cannot listen at 'unix:{shown}' ({error}): check the directory and its rights"),
                };
                // For its user alone from the first moment on: the rights of a new socket are what the mask leaves.
                let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
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
        use rustix::net::{AddressFamily, SocketType, sockopt};
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
