//! Where an NBD server is: `nbd://HOST[:PORT][/EXPORT]`, `nbd+unix:///[EXPORT]?socket=PATH`, as the protocol's own
//! [specification of addresses](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md) has them. `,force` at the end
//! allows an export that looks as if it held something.

use crate::error::ConfigError;
use crate::server::{self, ESCAPED, ServerPlace, decode};
use percent_encoding::utf8_percent_encode;
use std::fmt;
use std::str::FromStr;

/// The port of a server whose address names none.
pub const NBD_PORT: u16 = 10809;
/// Bytes of the longest name of an export (the protocol's limit).
pub const EXPORT_MAX: usize = 4096;

/// An export of an NBD server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdExport {
    /// Who has it.
    pub server: ServerPlace,
    /// Its name; often empty.
    pub name: String,
    /// Use the export although it bears the signature of a file system or the like: its contents are lost.
    pub force: bool,
}

impl NbdExport {
    /// Whether `text` is meant to be one.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with("nbd:") || text.starts_with("nbd+unix:")
    }
}

impl fmt::Display for NbdExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = utf8_percent_encode(&self.name, ESCAPED);
        match &self.server {
            ServerPlace::Tcp { host, port } => {
                server::write_tcp(f, "nbd", host, *port)?;
                if !self.name.is_empty() {
                    write!(f, "/{name}")?;
                }
            }
            ServerPlace::Unix(path) => {
                let path = path.to_string_lossy();
                write!(f, "nbd+unix:///{name}?socket={}", utf8_percent_encode(&path, ESCAPED))?;
            }
        }
        f.write_str(if self.force { ",force" } else { "" })
    }
}

/// A server by TCP: what follows `nbd://`.
fn by_tcp(rest: &str) -> Result<(ServerPlace, String), &'static str> {
    if rest.contains(['?', '#']) {
        return Err("it has a query, which only nbd+unix: takes");
    }
    let (at, name) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((server::by_tcp(at, NBD_PORT)?, decode(name)?))
}

/// A server by a socket: what follows `nbd+unix://`.
fn by_socket(rest: &str) -> Result<(ServerPlace, String), &'static str> {
    let path = rest.strip_prefix('/').ok_or("a third / belongs after nbd+unix:, before the name of the export")?;
    let (name, query) = path.split_once('?').ok_or("?socket=PATH is missing")?;
    let socket = query.strip_prefix("socket=").ok_or("?socket=PATH is missing")?;
    Ok((server::by_socket(socket)?, decode(name)?))
}

impl FromStr for NbdExport {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<NbdExport, ConfigError> {
        let (text, force) = value.strip_suffix(",force").map_or((value, false), |text| (text, true));
        let read = match (text.strip_prefix("nbd://"), text.strip_prefix("nbd+unix://")) {
            (Some(rest), _) => by_tcp(rest),
            (_, Some(rest)) => by_socket(rest),
            _ => Err("// is missing after its first colon"),
        };
        let read = read.and_then(|(server, name)| match name.len() {
            0..=EXPORT_MAX => Ok(NbdExport { server, name, force }),
            _ => Err("the name of its export is longer than 4096 bytes"),
        });
        read.map_err(|why| {
            ConfigError::value(
                "swap space",
                value,
                format!("{why}; write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, name: &str) -> NbdExport {
        NbdExport { server: ServerPlace::Tcp { host: host.into(), port }, name: name.into(), force: false }
    }

    fn unix(path: &str, name: &str) -> NbdExport {
        NbdExport { server: ServerPlace::Unix(path.into()), name: name.into(), force: false }
    }

    #[test]
    fn addresses_read_and_write_back() {
        for (text, whole, export) in [
            ("nbd://node1", "nbd://node1:10809", tcp("node1", 10809, "")),
            ("nbd://node1/", "nbd://node1:10809", tcp("node1", 10809, "")),
            ("nbd://10.0.0.7:7000/a", "nbd://10.0.0.7:7000/a", tcp("10.0.0.7", 7000, "a")),
            ("nbd://[fe80::1]:7000/a/b", "nbd://[fe80::1]:7000/a/b", tcp("fe80::1", 7000, "a/b")),
            ("nbd://h:1/a%20b%2C", "nbd://h:1/a%20b%2C", tcp("h", 1, "a b,")),
            ("nbd+unix:///?socket=/run/x", "nbd+unix:///?socket=/run/x", unix("/run/x", "")),
            ("nbd+unix:///a%3Fb?socket=/run/a%20x", "nbd+unix:///a%3Fb?socket=/run/a%20x", unix("/run/a x", "a?b")),
        ] {
            assert_eq!(text.parse(), Ok(export.clone()), "{text}");
            assert_eq!(export.to_string(), whole);
            assert_eq!(whole.parse(), Ok(export.clone()));
            let forced = NbdExport { force: true, ..export };
            assert_eq!(forced.to_string().parse(), Ok(forced.clone()));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("nbd:host", "// is missing"),
            ("nbd://", "no host"),
            ("nbd://:7000", "no host"),
            ("nbd://h:0", "its port"),
            ("nbd://h:99999", "its port"),
            ("nbd://[::1", "] is missing"),
            ("nbd://[::1]x", "no port"),
            ("nbd://a b", "no host"),
            ("nbd://h?socket=/x", "query"),
            ("nbd://h/%ff", "not UTF-8"),
            ("nbd+unix://host/x?socket=/y", "third /"),
            ("nbd+unix:///x", "?socket="),
            ("nbd+unix:///x?path=/y", "?socket="),
            ("nbd+unix:///x?socket=", "empty"),
            ("nbd+unix:///x?socket=/a%00b", "zero byte"),
        ] {
            let error = text.parse::<NbdExport>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains(&format!("{text:?}")) && error.contains("nbd://HOST"), "{error}");
        }
    }
}
