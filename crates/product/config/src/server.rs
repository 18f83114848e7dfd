//! Where a server is, in the address of a swap space.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str};
use std::fmt;
use std::path::PathBuf;

/// Bytes of the longest path of a socket (`sun_path`, with its end).
const SOCKET_MAX: usize = 107;

/// What is written as `%XX` in a name and in a path, so that it reads back. A comma begins an option.
pub(crate) const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b'&').add(b'+').add(b',').add(b'"');

/// How a server is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerPlace {
    /// By TCP. The library takes an address here, and no name: the command has looked the name up.
    Tcp {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// By a socket of this machine.
    Unix(PathBuf),
}

/// As [`by_tcp`] reads it, after the name of its kind.
pub(crate) fn write_tcp(f: &mut fmt::Formatter<'_>, kind: &str, host: &str, port: u16) -> fmt::Result {
    match host.contains(':') {
        true => write!(f, "{kind}://[{host}]:{port}"),
        false => write!(f, "{kind}://{host}:{port}"),
    }
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`; without a port the `usual` one.
pub(crate) fn by_tcp(text: &str, usual: u16) -> Result<ServerPlace, &'static str> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']').ok_or("a ] is missing after its address")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => usual,
        None => return Err("what follows its host is no port"),
        Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or("its port is not a number from 1 to 65535")?,
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.is_empty() || !host.chars().all(is_plain) {
        return Err("it names no host");
    }
    Ok(ServerPlace::Tcp { host: host.to_owned(), port })
}

/// What `%XX` stands for.
pub(crate) fn decode(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "it is not UTF-8")?;
    if text.contains('\0') { Err("it contains a zero byte") } else { Ok(text.into_owned()) }
}

/// The path of a socket, with what `%XX` stands for.
pub(crate) fn by_socket(text: &str) -> Result<ServerPlace, &'static str> {
    let socket = decode(text)?;
    if socket.is_empty() || socket.len() > SOCKET_MAX {
        return Err("the path of its socket is empty or longer than 107 bytes");
    }
    Ok(ServerPlace::Unix(socket.into()))
}
