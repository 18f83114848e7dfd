//! Checks that a device is not in use already. No option overrides them.
//!
//! The kernel refuses an exclusive open of a device that is mounted, swapped to or part of a volume, in whatever namespace. These
//! checks come before it so that Farshore can tell the reason, and for file systems that do not claim their device.

use super::refuse;
use crate::error::OpenError;
use rustix::fs::{FileType, Mode, OFlags, RawDir, major, makedev, minor, open, stat};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

/// Checks whether the block device at `path` may be looked at further.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    let about = stat(path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => refuse(path, "it does not exist: name another"),
        errno => OpenError::Io { doing: "look at the swap device", path: path.to_owned(), errno },
    })?;
    if FileType::from_raw_mode(about.st_mode) != FileType::BlockDevice {
        return Err(refuse(path, "it is not a block device: name one, or use dir: or file:"));
    }
    let device = about.st_rdev;
    let text = |place: &str| std::fs::read_to_string(place).unwrap_or_default();
    if let Some(place) = mounted_at(&text("/proc/self/mountinfo"), device, device_of) {
        return Err(refuse(path, format!("it is mounted at {place}: unmount it, or name another")));
    }
    if is_swap(&text("/proc/swaps"), device, device_of) {
        return Err(refuse(path, "Linux swaps to it: switch that off (swapoff), or name another"));
    }
    let place = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    if let Some(holder) = first_entry(&format!("{place}/holders")) {
        return Err(refuse(path, format!("{holder:?} is made of it: name that, or another")));
    }
    if text(&format!("{place}/ro")).trim() == "1" {
        return Err(refuse(path, "it is read-only: name another"));
    }
    Ok(())
}

/// One entry of a directory. Not read with libc, whose heap would be set up with the list: that is the program's heap, before it
/// can be managed.
fn first_entry(directory: &str) -> Option<String> {
    let directory = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut memory = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(directory, &mut memory);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_string_lossy();
        if !matches!(&*name, "." | "..") {
            return Some(name.into_owned());
        }
    }
    None
}

/// The number of the block device at a path.
fn device_of(path: &Path) -> Option<u64> {
    stat(path).ok().filter(|about| FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice).map(|about| about.st_rdev)
}

/// A path as the kernel writes it: blanks and the like as `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                whole.push(char::from(byte));
                whole.push_str(&part[3..]);
            }
            None => {
                whole.push('\\');
                whole.push_str(part);
            }
        }
    }
    whole.into()
}

/// Where `device` is mounted: by its number, or as the source of a mount by whatever name (Btrfs has numbers of its own).
fn mounted_at(mountinfo: &str, device: u64, device_of: impl Fn(&Path) -> Option<u64>) -> Option<&str> {
    let is_it = |line: &&str| {
        let number = line.split(' ').nth(2).and_then(|number| number.split_once(':'));
        let number = number.and_then(|(major, minor)| Some(makedev(major.parse().ok()?, minor.parse().ok()?)));
        let source = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').nth(1)).filter(|source| source.starts_with('/'));
        number == Some(device) || source.is_some_and(|source| device_of(&unescape(source)) == Some(device))
    };
    mountinfo.lines().find(is_it).map(|line| line.split(' ').nth(4).unwrap_or("a place"))
}

/// Whether `device` is in the list of what Linux swaps to.
fn is_swap(swaps: &str, device: u64, device_of: impl Fn(&Path) -> Option<u64>) -> bool {
    let paths = swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    paths.map(unescape).any(|path| device_of(&path) == Some(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 253:1 / / rw - ext4 /dev/root rw\n\
        30 22 0:40 /sub /data\\040x rw,relatime shared:1 - btrfs /dev/a\\040b rw\n\
        31 22 0:41 / /proc rw - proc proc rw\n\
        32 22 7:3 / /mnt rw master:2 - xfs /dev/gone rw\n";

    fn numbers(path: &Path) -> Option<u64> {
        let known = [("/dev/root", makedev(253, 1)), ("/dev/a b", makedev(8, 5)), ("/dev/sdb", makedev(8, 16))];
        known.iter().find(|(name, _)| Path::new(name) == path).map(|(_, number)| *number)
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let at = |major, minor| mounted_at(MOUNTS, makedev(major, minor), numbers);
        assert_eq!([at(253, 1), at(8, 5), at(7, 3), at(8, 6)], [Some("/"), Some("/data\\040x"), Some("/mnt"), None]);
        assert_eq!(mounted_at("", makedev(7, 3), numbers), None);
        assert_eq!(mounted_at("junk\n1 2 x:y\n", makedev(7, 3), numbers), None);
    }

    #[test]
    fn swaps_are_found_by_any_name() {
        let swaps = "Filename Type Size Used Priority\n/dev/a\\040b partition 1 0 -2\n/swapfile file 1 0 -3\n";
        assert!(is_swap(swaps, makedev(8, 5), numbers));
        assert!(!is_swap(swaps, makedev(8, 16), numbers) && !is_swap("", makedev(8, 5), numbers));
    }

    #[test]
    fn what_is_no_block_device_is_refused() {
        for (path, word) in [
            ("/dev/null", "not a block device"),
            ("/no/such", "does not exist"),
            ("/dev/null/x", "does not exist"),
            ("/", "not a block"),
        ] {
            let why = check(Path::new(path)).unwrap_err().to_string();
            assert!(why.contains(word) && why.contains(path) && !why.contains('\n'), "{why}");
        }
    }
}
