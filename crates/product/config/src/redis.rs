//! Where a Redis or Valkey server, or a Cluster of them, is: `redis://HOST[:PORT]`, `redis+unix:///PATH`. After that, each behind a
//! comma: `size=SIZE`, `expire=TIME`, `password-file=PATH`.

use crate::error::ConfigError;
use crate::server::{self, ESCAPED, ServerPlace, decode};
use crate::size::Size;
use crate::time::Time;
use percent_encoding::utf8_percent_encode;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of a server whose address names none.
pub const REDIS_PORT: u16 = 6379;
/// After this time without its program, what a page takes is the server's again, unless `expire=` says otherwise.
pub const EXPIRE_DEFAULT: Time = Time(3_600_000_000_000);
/// The shortest and the longest of these times, in s: within the first a program must find time to renew it.
const EXPIRE_S: [u64; 2] = [10, 30_000_000];

/// Keys of a Redis or Valkey server, or of a Cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisKeys {
    /// The server, or one of the Cluster's.
    pub server: ServerPlace,
    /// A file with the password in its first line; with two lines, the user's name is the first.
    pub password_file: Option<PathBuf>,
    /// At most; `None`: what the server has room for.
    pub size: Option<Size>,
    /// How long the server keeps pages whose program has gone; `None`: [`EXPIRE_DEFAULT`].
    pub expire: Option<Time>,
}

impl RedisKeys {
    /// Whether `text` is meant to be one.
    pub(crate) fn is_meant(text: &str) -> bool {
        text.starts_with("redis:") || text.starts_with("redis+unix:")
    }

    /// How long the server keeps pages whose program has gone, in whole seconds.
    pub fn expire_s(&self) -> u64 {
        self.expire.unwrap_or(EXPIRE_DEFAULT).ns() / 1_000_000_000
    }
}

impl fmt::Display for RedisKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            ServerPlace::Tcp { host, port } => server::write_tcp(f, "redis", host, *port)?,
            ServerPlace::Unix(path) => write!(f, "redis+unix://{}", utf8_percent_encode(&path.to_string_lossy(), ESCAPED))?,
        }
        if let Some(size) = self.size {
            write!(f, ",size={size}")?;
        }
        if let Some(expire) = self.expire {
            write!(f, ",expire={expire}")?;
        }
        match &self.password_file {
            Some(path) => write!(f, ",password-file={}", utf8_percent_encode(&path.to_string_lossy(), ESCAPED)),
            None => Ok(()),
        }
    }
}

/// A server by TCP: what follows `redis://`.
fn by_tcp(rest: &str) -> Result<ServerPlace, &'static str> {
    if rest.contains('@') {
        return Err(
            "a password does not belong where each user of this machine can read it; write it into a file, and ,password-file=PATH",
        );
    }
    let (at, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !matches!(database, "" | "0") {
        return Err("only database 0 can be used");
    }
    server::by_tcp(at, REDIS_PORT)
}

fn expire_of(text: &str) -> Result<Time, ConfigError> {
    let time: Time = text.parse()?;
    let within = (EXPIRE_S[0]..=EXPIRE_S[1]).contains(&(time.ns() / 1_000_000_000)) && time.ns().is_multiple_of(1_000_000_000);
    if within {
        Ok(time)
    } else {
        Err(ConfigError::value("expire", text, "write whole seconds, from 10s on, up to 30000000s: expire=3600s"))
    }
}

impl FromStr for RedisKeys {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<RedisKeys, ConfigError> {
        let wrong = |why: &str| {
            ConfigError::value(
                "swap space",
                value,
                format!(
                    "{why}; write redis://HOST:PORT or redis+unix:///PATH, then ,size=SIZE, ,expire=TIME or ,password-file=PATH"
                ),
            )
        };
        let mut parts = value.split(',');
        let first = parts.next().unwrap_or_default();
        let server = match (first.strip_prefix("redis://"), first.strip_prefix("redis+unix://")) {
            (Some(rest), _) => by_tcp(rest),
            (_, Some(rest)) if rest.starts_with('/') => server::by_socket(rest),
            (_, Some(_)) => Err("a third / belongs after redis+unix:, before the path of its socket"),
            _ => Err("// is missing after its first colon"),
        };
        let mut keys = RedisKeys { server: server.map_err(wrong)?, password_file: None, size: None, expire: None };
        for part in parts {
            match part.split_once('=') {
                Some(("size", size)) if keys.size.is_none() => keys.size = Some(size.parse()?),
                Some(("expire", time)) if keys.expire.is_none() => keys.expire = Some(expire_of(time)?),
                Some(("password-file", path)) if !path.is_empty() && keys.password_file.is_none() => {
                    keys.password_file = Some(decode(path).map_err(wrong)?.into());
                }
                _ => return Err(wrong("what follows a comma in it is not known, empty, or there twice")),
            }
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> RedisKeys {
        let server = ServerPlace::Tcp { host: host.into(), port };
        RedisKeys { server, password_file: None, size: None, expire: None }
    }

    #[test]
    fn addresses_read_and_write_back() {
        let all = RedisKeys {
            password_file: Some("/etc/a, b".into()),
            size: Some(Size::gib(8)),
            expire: Some(Time(60_000_000_000)),
            ..tcp("10.0.0.7", 7000)
        };
        let unix = RedisKeys { server: ServerPlace::Unix("/run/a,b".into()), ..tcp("", 0) };
        for (text, whole, keys) in [
            ("redis://node1", "redis://node1:6379", tcp("node1", 6379)),
            ("redis://node1:7000/", "redis://node1:7000", tcp("node1", 7000)),
            ("redis://node1/0", "redis://node1:6379", tcp("node1", 6379)),
            ("redis://[fe80::1]:7000", "redis://[fe80::1]:7000", tcp("fe80::1", 7000)),
            ("redis+unix:///run/a%2Cb", "redis+unix:///run/a%2Cb", unix),
            (
                "redis://10.0.0.7:7000,password-file=/etc/a%2C%20b,size=8G,expire=60s",
                "redis://10.0.0.7:7000,size=8G,expire=60s,password-file=/etc/a%2C%20b",
                all,
            ),
        ] {
            assert_eq!(text.parse(), Ok(keys.clone()), "{text}");
            assert_eq!(keys.to_string(), whole);
            assert_eq!(whole.parse(), Ok(keys));
        }
        assert_eq!((tcp("a", 1).expire_s(), "redis://a,expire=90s".parse::<RedisKeys>().unwrap().expire_s()), (3600, 90));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("redis:host", "// is missing"),
            ("redis://", "no host"),
            ("redis://h:0", "its port"),
            ("redis://h/1", "database 0"),
            ("redis://:secret@h", "password-file=PATH"),
            ("redis://h,size", "not known"),
            ("redis://h,size=1G,size=2G", "twice"),
            ("redis://h,expire=10", "no unit"),
            ("redis://h,expire=9s", "from 10s on"),
            ("redis://h,expire=10500ms", "whole seconds"),
            ("redis://h,password-file=", "empty"),
            ("redis://h,force", "not known"),
            ("redis+unix://run/x", "third /"),
            ("redis+unix:///a%00b", "zero byte"),
        ] {
            let error = text.parse::<RedisKeys>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
