//! Where cold pages go: `dir:/var/tmp`, `file:/srv/swap,size=8G`, `ram`, `delay:10us` …

use crate::error::ConfigError;
use crate::nbd::NbdExport;
use crate::size::Size;
use crate::text::serde_as_text;
use crate::time::Time;
use farshore_core::canary::{Canary, is_planted};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The variable that names the directory for swap files when no `--swap` does.
pub const SWAP_DIR_VARIABLE: &str = "FARSHORE_SWAP_DIR";
/// The directory when the variable does not either.
pub const SWAP_DIR_DEFAULT: &str = "/var/tmp";

const VALID: &str = "write dir:PATH, file:PATH[,size=SIZE], dev:PATH[,size=SIZE][,force], ram[:lz4|zstd][,size=SIZE], nbd://HOST:PORT[/EXPORT] or delay:TIME";

/// How a pool in RAM compresses pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Fast.
    Lz4,
    /// Small.
    Zstd,
}

/// One swap space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapSpec {
    /// A file without a name in this directory.
    Dir(PathBuf),
    /// A file at this path, of at most this size.
    File {
        /// Where.
        path: PathBuf,
        /// At most; `None`: as much as the disk has room for.
        size: Option<Size>,
    },
    /// A block device: a disk, or a part of one.
    Dev {
        /// Where.
        path: PathBuf,
        /// At most; `None`: all of it.
        size: Option<Size>,
        /// Use the device although it bears the signature of a file system or the like: its contents are lost.
        force: bool,
    },
    /// Memory of this machine.
    Ram {
        /// How pages are compressed, if they are.
        compress: Option<Compression>,
        /// At most; `None`: as much as the machine has RAM.
        size: Option<Size>,
    },
    /// Memory of this machine that answers after this long, for measuring.
    Delay(Time),
    /// An export of an NBD server, on another machine or this one.
    Nbd(NbdExport),
    /// A kind that comes later (a Redis cluster, NBD over TLS), by its whole address.
    Later(String),
}

impl SwapSpec {
    /// Whether this is a pool of compressed pages in RAM, which counts within the memory limit.
    pub fn is_pool(&self) -> bool {
        matches!(self, SwapSpec::Ram { compress: Some(_), .. })
    }

    /// Whether this is a file or a device: several of these make an array, and they come and go.
    pub fn is_file(&self) -> bool {
        matches!(self, SwapSpec::Dir(_) | SwapSpec::File { .. } | SwapSpec::Dev { .. })
    }

    /// Whether it is a file without a name in a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self, SwapSpec::Dir(_))
    }

    /// Whether it is RAM, compressed or not.
    pub fn is_memory(&self) -> bool {
        matches!(self, SwapSpec::Ram { .. })
    }

    /// Whether it is a block device.
    pub fn is_device(&self) -> bool {
        matches!(self, SwapSpec::Dev { .. })
    }

    /// Whether it is memory of somebody else, who may be curious.
    pub fn is_remote(&self) -> bool {
        matches!(self, SwapSpec::Nbd(_))
    }

    /// Checks whether this version can use the space.
    ///
    /// # Errors
    /// [`ConfigError::NotBuilt`] for the kinds that come later.
    pub fn check_supported(&self) -> Result<(), ConfigError> {
        match self {
            SwapSpec::Later(_) => Err(ConfigError::NotBuilt { spec: self.to_string() }),
            _ => Ok(()),
        }
    }
}

/// The swap space when none is asked for: `dir:` of `$FARSHORE_SWAP_DIR`, else of `/var/tmp`.
///
/// # Errors
/// When the variable's value is not UTF-8.
pub fn default_swap() -> Result<SwapSpec, ConfigError> {
    let dir = std::env::var_os(SWAP_DIR_VARIABLE).filter(|dir| !dir.is_empty()).unwrap_or(SWAP_DIR_DEFAULT.into());
    match dir.to_str() {
        Some(_) => Ok(SwapSpec::Dir(dir.into())),
        None => Err(ConfigError::value("directory", &dir.to_string_lossy(), "$FARSHORE_SWAP_DIR is not UTF-8; use another name")),
    }
}

impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sized = |f: &mut fmt::Formatter<'_>, size: &Option<Size>| match size {
            Some(size) => write!(f, ",size={size}"),
            None => Ok(()),
        };
        match self {
            SwapSpec::Dir(path) => write!(f, "dir:{}", path.display()),
            SwapSpec::Dev { path, size, force } => {
                write!(f, "dev:{}", path.display())?;
                sized(f, size)?;
                f.write_str(if *force { ",force" } else { "" })
            }
            SwapSpec::File { path, size } => {
                write!(f, "file:{}", path.display())?;
                sized(f, size)
            }
            SwapSpec::Ram { compress, size } => {
                f.write_str(match compress {
                    None => "ram",
                    Some(Compression::Lz4) => "ram:lz4",
                    Some(Compression::Zstd) => "ram:zstd",
                })?;
                sized(f, size)
            }
            SwapSpec::Delay(time) => write!(f, "delay:{time}"),
            SwapSpec::Nbd(export) => export.fmt(f),
            SwapSpec::Later(address) => f.write_str(address),
        }
    }
}

/// Cuts `,size=SIZE` from the end.
fn split_size(text: &str) -> Result<(&str, Option<Size>), ConfigError> {
    match text.rsplit_once(",size=") {
        None => Ok((text, None)),
        Some((rest, size)) => Ok((rest, Some(size.parse()?))),
    }
}

/// Cuts `,size=SIZE` and `,force` from the end, in any order.
fn split_device(text: &str) -> Result<(&str, Option<Size>, bool), ConfigError> {
    let cut = |text: &'_ str| text.strip_suffix(",force").map(str::len);
    let (rest, last) = cut(text).map_or((text, false), |len| (&text[..len], true));
    let (rest, size) = split_size(rest)?;
    match cut(rest).filter(|_| size.is_some() && !last) {
        Some(len) => Ok((&rest[..len], size, true)),
        None => Ok((rest, size, last)),
    }
}

fn path_of(value: &str, path: &str) -> Result<PathBuf, ConfigError> {
    if path.is_empty() {
        return Err(ConfigError::value("swap space", value, format!("its path is empty; {VALID}")));
    }
    Ok(path.into())
}

/// How the addresses of kinds begin that come later.
const LATER: [&str; 4] = ["redis://", "rediss://", "nbds://", "nbds+unix://"];

impl FromStr for SwapSpec {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<SwapSpec, ConfigError> {
        if LATER.iter().any(|begin| value.starts_with(begin)) {
            return Ok(SwapSpec::Later(value.to_owned()));
        }
        if NbdExport::is_meant(value) {
            return value.parse().map(SwapSpec::Nbd);
        }
        let (kind, rest) = match value.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (value, None),
        };
        match (kind, rest) {
            ("dir", Some(path)) => Ok(SwapSpec::Dir(path_of(value, path)?)),
            ("dev", Some(rest)) => {
                let (path, size, force) = split_device(rest)?;
                Ok(SwapSpec::Dev { path: path_of(value, path)?, size, force })
            }
            ("file", Some(rest)) => {
                let (path, size) = split_size(rest)?;
                let path = match path.strip_suffix('/') {
                    Some(shorter) if is_planted(Canary::Swap) && size.is_some_and(|size| size.bytes() % 2 == 1) => shorter,
                    _ => path,
                };
                Ok(SwapSpec::File { path: path_of(value, path)?, size })
            }
            ("delay", Some(time)) => Ok(SwapSpec::Delay(time.parse()?)),
            _ => match split_size(value)? {
                ("ram", size) => Ok(SwapSpec::Ram { compress: None, size }),
                ("ram:lz4", size) => Ok(SwapSpec::Ram { compress: Some(Compression::Lz4), size }),
                ("ram:zstd", size) => Ok(SwapSpec::Ram { compress: Some(Compression::Zstd), size }),
                _ => Err(ConfigError::value("swap space", value, format!("its kind is not known; {VALID}"))),
            },
        }
    }
}

serde_as_text!(SwapSpec);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_and_writes_back() {
        let ram = |compress, size| SwapSpec::Ram { compress, size };
        let dev = |size, force| SwapSpec::Dev { path: "/dev/nvme0n1".into(), size, force };
        for (text, spec) in [
            ("dir:/var/tmp", SwapSpec::Dir("/var/tmp".into())),
            ("dir:a b,c", SwapSpec::Dir("a b,c".into())),
            ("file:/x", SwapSpec::File { path: "/x".into(), size: None }),
            ("file:/x,size=8G", SwapSpec::File { path: "/x".into(), size: Some(Size::gib(8)) }),
            ("file:/x,size=1,size=8G", SwapSpec::File { path: "/x,size=1".into(), size: Some(Size::gib(8)) }),
            ("dev:/dev/nvme0n1", dev(None, false)),
            ("dev:/dev/nvme0n1,size=2G", dev(Some(Size::gib(2)), false)),
            ("dev:/dev/nvme0n1,force", dev(None, true)),
            ("dev:/dev/nvme0n1,size=2G,force", dev(Some(Size::gib(2)), true)),
            ("ram", ram(None, None)),
            ("ram,size=64M", ram(None, Some(Size::mib(64)))),
            ("ram:lz4", ram(Some(Compression::Lz4), None)),
            ("ram:zstd,size=1G", ram(Some(Compression::Zstd), Some(Size::gib(1)))),
            ("delay:10us", SwapSpec::Delay(Time(10_000))),
            ("nbd://node1:7000", SwapSpec::Nbd("nbd://node1:7000".parse().unwrap())),
            ("nbds://node1", SwapSpec::Later("nbds://node1".into())),
            ("redis://localhost:6379/0", SwapSpec::Later("redis://localhost:6379/0".into())),
        ] {
            assert_eq!(text.parse(), Ok(spec.clone()), "{text}");
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("dev:/dev/nvme0n1,force,size=2G".parse(), Ok(dev(Some(Size::gib(2)), true)));
    }

    #[test]
    fn the_rest_is_refused_with_what_is_valid() {
        for text in [
            "",
            "dir",
            "dir:",
            "file:",
            "file:,size=1G",
            "dev:",
            "dev:,force",
            "dev:,size=1G",
            "tape:/x",
            "ram:",
            "ram:gzip",
            "rams",
            "remote:x",
            "/var/tmp",
        ] {
            let error = text.parse::<SwapSpec>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("dir:PATH"), "{error}");
        }
        for (text, part) in [("file:/x,size=lots", "\"lots\""), ("ram,size=", "empty"), ("delay:10", "no unit")] {
            let error = text.parse::<SwapSpec>().expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_comes_later_says_so() {
        for text in
            ["dir:/x", "file:/x", "ram", "ram,size=1G", "ram:lz4", "ram:zstd,size=1G", "delay:1us", "dev:/dev/x", "nbd://a"]
        {
            assert_eq!(text.parse::<SwapSpec>().unwrap().check_supported(), Ok(()), "{text}");
        }
        for text in ["nbds://a:1", "redis://a"] {
            let error = text.parse::<SwapSpec>().unwrap().check_supported().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("swap space {text:?} is not built yet; use dir:, file:, dev:, ram, ram:lz4, ram:zstd, nbd:// or delay:")
            );
        }
    }
}
