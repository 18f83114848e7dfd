//! Swap areas: files that are made for them, switched on before a run and off behind it. Areas that were on before are only
//! looked at, for a priority above theirs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::targets::tools;

/// Where swapon and swapoff come from.
const SWAPON_PACKAGE: &str = "util-linux or mount";
/// Where mkswap comes from.
const MKSWAP_PACKAGE: &str = "util-linux";
/// How long switching off is tried: while the last program is ending, its pages may not fit anywhere.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// Our areas' priority where no other is on. Linux uses the highest first, and equal ones in turn.
const PRIORITY: i32 = 100;
/// The highest that Linux knows.
const PRIORITY_MAX: i32 = 32767;
/// What a swap file is filled with: not zeros, which a layer below might leave out.
const FILLING: u8 = 0x5A;
/// How much is written at once, in bytes.
const PIECE: usize = 4 << 20;
/// btrfs by its number: swap files there must not be copied on write.
const BTRFS: u64 = 0x9123_683E;

/// An area that is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Active {
    /// Its file or device.
    pub path: PathBuf,
    /// Its priority.
    pub priority: i32,
}

/// The areas that are on.
///
/// # Errors
/// The kernel does not tell, as without swap support.
pub fn active() -> Result<Vec<Active>, String> {
    Ok(parse(&tools::read(Path::new("/proc/swaps"))?))
}

fn parse(text: &str) -> Vec<Active> {
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let path = PathBuf::from(unescaped(words.next()?));
        Some(Active { path, priority: words.next_back()?.parse().ok()? })
    };
    text.lines().skip(1).filter_map(area).collect()
}

/// `/a\040b` is "/a b".
fn unescaped(word: &str) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes)
}

/// A priority above that of all areas that are on.
///
/// # Errors
/// As [`active`].
pub fn priority() -> Result<i32, String> {
    let highest = active()?.iter().map(|area| area.priority).max();
    Ok(highest.map_or(PRIORITY, |highest| highest.saturating_add(1).clamp(PRIORITY, PRIORITY_MAX)))
}

/// Refuses if a tool is missing.
///
/// # Errors
/// Which tool, and its package.
pub fn need_tools() -> Result<(), String> {
    tools::need("mkswap", MKSWAP_PACKAGE)?;
    tools::need("swapon", SWAPON_PACKAGE)?;
    tools::need("swapoff", SWAPON_PACKAGE).map(|_| ())
}

/// Makes a swap file of so many bytes, each of its blocks written. `stop` ends it early.
///
/// # Errors
/// No room, or the user wants everything to end.
pub fn make_file(path: &Path, bytes: u64, stop: impl Fn() -> bool) -> Result<(), String> {
    let failed = |error: std::io::Error| {
        format!("cannot write the swap file '{}' of {} MiB ({})", path.display(), bytes >> 20, tools::reason(&error))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    if rustix::fs::fstatfs(file.as_fd()).is_ok_and(|about| u64::try_from(about.f_type) == Ok(BTRFS)) {
        // If it cannot be, swapon says so.
        let _ = rustix::fs::ioctl_setflags(file.as_fd(), rustix::fs::IFlags::NOCOW);
    }
    let piece = vec![FILLING; PIECE];
    let mut left = bytes;
    while left > 0 {
        if stop() {
            return Err("interrupted".to_string());
        }
        let count = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        file.write_all(&piece[..count]).map_err(failed)?;
        left -= count as u64;
    }
    file.sync_all().map_err(failed)?;
    make_area(path)
}

/// Writes a swap area's head on a file or device.
///
/// # Errors
/// What mkswap said.
pub fn make_area(path: &Path) -> Result<(), String> {
    tools::run("mkswap", MKSWAP_PACKAGE, &[path]).map(|_| ())
}

/// Switches an area on.
///
/// # Errors
/// What swapon said, such as for a file system that cannot hold swap files.
pub fn on(path: &Path, priority: i32) -> Result<(), String> {
    let priority = priority.to_string();
    let arguments = ["-p".as_ref(), priority.as_ref(), path.as_os_str()];
    tools::run("swapon", SWAPON_PACKAGE, &arguments).map(|_| ()).map_err(|why| {
        let hint = if fs::metadata(path).is_ok_and(|about| about.is_file()) {
            ": if its file system cannot hold swap files, name another directory"
        } else {
            ""
        };
        format!("{why}{hint}")
    })
}

/// Switches an area off, in several tries. One that is not on is left as it is.
///
/// # Errors
/// It is still on.
pub fn off(path: &Path) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        if !active()?.iter().any(|area| area.path == path) {
            return Ok(());
        }
        match tools::run("swapoff", SWAPON_PACKAGE, &[path]) {
            Ok(_) => return Ok(()),
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Pages that the whole machine has read from swap areas and written there, since it was started.
#[must_use]
pub fn traffic() -> (u64, u64) {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    (value(&text, "pswpin"), value(&text, "pswpout"))
}

/// A number out of lines of `name number`; 0 if it is not there.
#[must_use]
pub fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_areas_are_read() {
        let text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/zram1                              partition\t65532\t\t0\t\t100\n\
            /var/a\\040b\\134c\t\t\t\tfile\t\t65532\t\t0\t\t-2\n";
        let areas = parse(text);
        assert_eq!(areas[0], Active { path: "/dev/zram1".into(), priority: 100 });
        assert_eq!(areas[1], Active { path: "/var/a b\\c".into(), priority: -2 });
        assert_eq!(areas.len(), 2);
        assert_eq!(parse("Filename Type Size Used Priority"), []);
    }

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let text = "pswpin 12\npswpout 34\noom_kill 5\noom_kill_x 6";
        assert_eq!((value(text, "pswpin"), value(text, "pswpout"), value(text, "oom_kill"), value(text, "pswp")), (12, 34, 5, 0));
    }

    #[test]
    fn a_file_is_written_whole_and_ends_early_when_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("area");
        if need_tools().is_ok() {
            make_file(&path, 5 << 20, || false).unwrap();
            let about = fs::metadata(&path).unwrap();
            use std::os::unix::fs::MetadataExt;
            assert_eq!(about.len(), 5 << 20);
            assert!(about.blocks() * 512 >= 5 << 20, "{} blocks", about.blocks());
            assert!(make_file(&path, 1 << 20, || false).unwrap_err().contains("File exists"));
        }
        assert_eq!(make_file(&directory.path().join("other"), 1 << 20, || true).unwrap_err(), "interrupted");
    }
}
