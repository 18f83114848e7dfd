//! Where cold pages go: `dir:/var/tmp`, `file:/srv/swap,size=8G`, `ram`, `delay:10us` …

use crate::delay::Delay;
use crate::error::ConfigError;
use crate::nbd::NbdExport;
use crate::redis::RedisKeys;
use crate::size::Size;
use crate::text::serde_as_text;
use farshore_core::canary::{Canary, is_planted};
use farshore_core::copies::COPIES_MAX;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The variable that names the directory for swap files when no `--swap` does.
pub const SWAP_DIR_VARIABLE: &str = "FARSHORE_SWAP_DIR";
/// The directory when the variable does not either.
pub const SWAP_DIR_DEFAULT: &str = "/var/tmp";

const VALID: &str = "write auto, dir:PATH, file:PATH[,size=SIZE], dev:PATH[,size=SIZE][,force], ram[:lz4|zstd|auto][,size=SIZE], nbd://HOST:PORT[/EXPORT], redis://HOST:PORT, mirror:(A,B) or delay:TIME[,rate=SIZE][,size=SIZE]";

/// How a pool in RAM compresses pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Fast.
    Lz4,
    /// Small.
    Zstd,
    /// Fast; and how much memory it is worth is decided while the program runs. It needs a space behind it.
    Auto,
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
    /// Memory of this machine that answers late, for measuring.
    Delay(Delay),
    /// An export of an NBD server, on another machine or this one.
    Nbd(NbdExport),
    /// Keys of a Redis or Valkey server, or of a Cluster.
    Redis(RedisKeys),
    /// Two or three of these, each of which has all pages.
    Mirror(Vec<SwapSpec>),
    /// A kind that comes later (Redis or NBD over TLS), by its whole address.
    Later(String),
}

impl SwapSpec {
    /// Whether this is a pool of compressed pages in RAM, which counts within the memory limit.
    pub fn is_pool(&self) -> bool {
        matches!(self, SwapSpec::Ram { compress: Some(_), .. })
    }

    /// Whether it decides how much memory it uses, and so makes no sense without a space behind it.
    pub fn is_adaptive(&self) -> bool {
        matches!(self, SwapSpec::Ram { compress: Some(Compression::Auto), .. })
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

    /// Whether it is a block device, or one of its copies is.
    pub fn is_device(&self) -> bool {
        self.copies().iter().any(|copy| matches!(copy, SwapSpec::Dev { .. }))
    }

    /// Whether it is memory of somebody else, who may be curious, or one of its copies is.
    pub fn is_remote(&self) -> bool {
        self.copies().iter().any(|copy| matches!(copy, SwapSpec::Nbd(_) | SwapSpec::Redis(_)))
    }

    /// Whether it can be one of the copies of a space that is kept several times.
    pub fn can_be_copy(&self) -> bool {
        !self.is_pool() && !matches!(self, SwapSpec::Mirror(_) | SwapSpec::Redis(_))
    }

    /// Where its pages lie: each of its copies, or itself.
    pub fn copies(&self) -> &[SwapSpec] {
        match self {
            SwapSpec::Mirror(copies) => copies,
            one => std::slice::from_ref(one),
        }
    }

    /// Checks whether this version can use the space.
    ///
    /// # Errors
    /// [`ConfigError::NotBuilt`] for the kinds that come later.
    pub fn check_supported(&self) -> Result<(), ConfigError> {
        match self {
            SwapSpec::Later(_) => Err(ConfigError::NotBuilt { spec: self.to_string() }),
            SwapSpec::Mirror(copies) => copies.iter().try_for_each(SwapSpec::check_supported),
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

/// The swap spaces of a run for which these were asked. `ram:auto` alone is before the default: what it finds worth more as plain pages goes to the disk.
///
/// # Errors
/// As [`default_swap`].
pub fn with_default(asked: Option<Vec<SwapSpec>>) -> Result<Vec<SwapSpec>, ConfigError> {
    match asked {
        Some(mut swap) => {
            if swap.len() == 1 && swap[0].is_adaptive() {
                swap.push(default_swap()?);
            }
            Ok(swap)
        }
        None => Ok(vec![default_swap()?]),
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
                    Some(Compression::Auto) => "ram:auto",
                })?;
                sized(f, size)
            }
            SwapSpec::Delay(delay) => write!(f, "delay:{delay}"),
            SwapSpec::Nbd(export) => export.fmt(f),
            SwapSpec::Redis(keys) => keys.fmt(f),
            SwapSpec::Mirror(copies) => {
                f.write_str("mirror:(")?;
                for (n, copy) in copies.iter().enumerate() {
                    write!(f, "{}{copy}", if n > 0 { "," } else { "" })?;
                }
                f.write_str(")")
            }
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

/// The copies of a space that is kept several times: what follows `mirror:`. A comma belongs to the copy before it, unless the name of a kind follows.
fn copies_of(value: &str, rest: &str) -> Result<Vec<SwapSpec>, ConfigError> {
    const KINDS: [&str; 13] = [
        "auto",
        "dir:",
        "file:",
        "dev:",
        "ram",
        "delay:",
        "nbd:",
        "nbd+unix:",
        "mirror:",
        "nbds",
        "redis://",
        "redis+unix:",
        "rediss",
    ];
    let wrong = |why: &str| ConfigError::value("swap space", value, format!("{why}; write mirror:(A,B) or mirror:(A,B,C)"));
    let inside = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let inside = inside.ok_or_else(|| wrong("its copies belong in parentheses"))?;
    let begins = |at: &usize| KINDS.iter().any(|kind| inside[at + 1..].starts_with(kind));
    let mut copies = Vec::new();
    let mut from = 0;
    for to in inside.match_indices(',').map(|(at, _)| at).filter(begins).chain([inside.len()]) {
        copies.push(inside[from..to].parse::<SwapSpec>()?);
        from = to + 1;
    }
    if !(2..=COPIES_MAX).contains(&copies.len()) {
        return Err(wrong("it needs two or three copies"));
    }
    if let Some(copy) = copies.iter().find(|copy| !copy.can_be_copy()) {
        return Err(wrong(&format!("{copy} cannot be one of the copies")));
    }
    let is_there =
        |n: usize| !copies[n].is_memory() && !matches!(copies[n], SwapSpec::Delay(_)) && copies[..n].contains(&copies[n]);
    match (1..copies.len()).find(|&n| is_there(n)) {
        Some(n) => Err(wrong(&format!("{} is there twice, and is lost at once", copies[n]))),
        None => Ok(copies),
    }
}

/// How the addresses of kinds begin that come later.
const LATER: [&str; 4] = ["rediss://", "rediss+unix://", "nbds://", "nbds+unix://"];

impl FromStr for SwapSpec {
    type Err = ConfigError;

    fn from_str(value: &str) -> Result<SwapSpec, ConfigError> {
        if LATER.iter().any(|begin| value.starts_with(begin)) {
            return Ok(SwapSpec::Later(value.to_owned()));
        }
        if NbdExport::is_meant(value) {
            return value.parse().map(SwapSpec::Nbd);
        }
        if RedisKeys::is_meant(value) {
            return value.parse().map(SwapSpec::Redis);
        }
        let (kind, rest) = match value.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (value, None),
        };
        match (kind, rest) {
            // The short name.
            _ if value.starts_with("auto,") => {
                Err(ConfigError::value("swap space", value, "'auto' finds its size itself; write auto, or ram:auto,size=SIZE"))
            }
            ("auto", None) => Ok(SwapSpec::Ram { compress: Some(Compression::Auto), size: None }),
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
            ("delay", Some(rest)) => Ok(SwapSpec::Delay(rest.parse()?)),
            ("mirror", Some(rest)) => Ok(SwapSpec::Mirror(copies_of(value, rest)?)),
            _ => match split_size(value)? {
                ("ram", size) => Ok(SwapSpec::Ram { compress: None, size }),
                ("ram:lz4", size) => Ok(SwapSpec::Ram { compress: Some(Compression::Lz4), size }),
                ("ram:zstd", size) => Ok(SwapSpec::Ram { compress: Some(Compression::Zstd), size }),
                ("ram:auto", size) => Ok(SwapSpec::Ram { compress: Some(Compression::Auto), size }),
                _ => Err(ConfigError::value("swap space", value, format!("its kind is not known; {VALID}"))),
            },
        }
    }
}

serde_as_text!(SwapSpec);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

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
            ("ram:auto", ram(Some(Compression::Auto), None)),
            ("ram:auto,size=64M", ram(Some(Compression::Auto), Some(Size::mib(64)))),
            ("delay:10us", SwapSpec::Delay(Delay::of(Time(10_000)))),
            (
                "delay:4us,rate=100M,size=8M",
                SwapSpec::Delay(Delay { time: Time(4_000), rate: Some(Size::mib(100)), size: Some(Size::mib(8)) }),
            ),
            ("nbd://node1:7000", SwapSpec::Nbd("nbd://node1:7000".parse().unwrap())),
            ("mirror:(ram,ram,size=64M)", SwapSpec::Mirror(vec![ram(None, None), ram(None, Some(Size::mib(64)))])),
            (
                "mirror:(nbd://node1:7000,file:/a,b,size=8G,dir:/x)",
                SwapSpec::Mirror(vec![
                    SwapSpec::Nbd("nbd://node1:7000".parse().unwrap()),
                    SwapSpec::File { path: "/a,b".into(), size: Some(Size::gib(8)) },
                    SwapSpec::Dir("/x".into()),
                ]),
            ),
            ("nbds://node1", SwapSpec::Later("nbds://node1".into())),
            ("redis://node1:7000,size=8G", SwapSpec::Redis("redis://node1:7000,size=8G".parse().unwrap())),
            ("rediss://localhost:6379/0", SwapSpec::Later("rediss://localhost:6379/0".into())),
        ] {
            assert_eq!(text.parse(), Ok(spec.clone()), "{text}");
            assert_eq!(spec.to_string(), text);
        }
        assert_eq!("auto".parse(), Ok(ram(Some(Compression::Auto), None)));
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
        for (text, part) in [
            ("file:/x,size=lots", "\"lots\""),
            ("ram,size=", "empty"),
            ("delay:10", "no unit"),
            ("delay:10us,rate=0", "below 1M"),
            ("auto,size=4G", "ram:auto,size="),
        ] {
            let error = text.parse::<SwapSpec>().expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn copies_that_make_no_sense_are_refused() {
        for (text, part) in [
            ("mirror:", "in parentheses"),
            ("mirror:(dir:/x", "in parentheses"),
            ("mirror:()", "its kind is not known"),
            ("mirror:(dir:/x)", "two or three"),
            ("mirror:(dir:/a,dir:/b,dir:/c,dir:/d)", "two or three"),
            ("mirror:(dir:/a,dir:/a)", "twice"),
            ("mirror:(nbd://a,dir:/x,nbd://a:10809)", "twice"),
            ("mirror:(file:/x\n\u{1b},file:/x\n\u{1b})", "file:/x\\n\\u{1b} is there twice"),
            ("mirror:(dir:/a,ram:lz4)", "cannot be one of the copies"),
            ("mirror:(dir:/a,redis://b,size=1G)", "redis://b:6379,size=1G cannot be one of the copies"),
            ("mirror:(dir:/a,mirror:(ram,ram))", "in parentheses"),
            ("mirror:(dir:/a,dir:)", "its path is empty"),
            ("mirror:(tape:/x,dir:/a)", "tape:/x"),
        ] {
            let error = text.parse::<SwapSpec>().expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains(char::is_control), "{text:?}: {error:?}");
        }
    }

    #[test]
    fn a_space_is_what_its_copies_are() {
        let both: SwapSpec = "mirror:(nbd://a,dev:/dev/x)".parse().unwrap();
        assert!(both.is_remote() && both.is_device() && !both.is_file() && !both.is_directory() && !both.is_pool());
        let near: SwapSpec = "mirror:(dir:/a,dir:/b)".parse().unwrap();
        assert!(!near.is_remote() && !near.is_device() && !near.is_directory() && near.copies().len() == 2);
        assert!(near.copies()[0].can_be_copy() && !near.can_be_copy());
        let error = "mirror:(dir:/a,nbds://b)".parse::<SwapSpec>().unwrap().check_supported().unwrap_err().to_string();
        assert!(error.contains("nbds://b"), "{error}");
    }

    #[test]
    fn what_comes_later_says_so() {
        for text in [
            "dir:/x",
            "file:/x",
            "ram",
            "ram,size=1G",
            "ram:lz4",
            "ram:zstd,size=1G",
            "delay:1us",
            "dev:/dev/x",
            "nbd://a",
            "redis://a",
        ] {
            assert_eq!(text.parse::<SwapSpec>().unwrap().check_supported(), Ok(()), "{text}");
        }
        for text in ["nbds://a:1", "rediss://a"] {
            let error = text.parse::<SwapSpec>().unwrap().check_supported().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "swap space {text:?} is not built yet; use dir:, file:, dev:, ram, ram:lz4, ram:zstd, ram:auto, nbd://, redis://, mirror: or delay:"
                )
            );
        }
    }
}
