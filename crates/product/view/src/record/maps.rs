//! The mappings of a process, as `/proc/PID/maps` tells them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use farshore_command::process::{PATIENCE, ask, bytes};

use super::file::{Mapping, NAME_MAX};

/// How long after a look the next one comes, after a change and without one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// A look may take this part of the time.
const SHARE: u32 = 20;

/// Looks at them again and again.
#[derive(Debug)]
pub struct Looks {
    pid: u32,
    before: Vec<u8>,
    files: HashMap<Vec<u8>, (u64, u64)>,
    changed: bool,
    next: (Instant, Instant),
}

impl Looks {
    /// Of this process.
    pub fn new(pid: u32) -> Looks {
        let now = Instant::now();
        Looks { pid, before: Vec::new(), files: HashMap::new(), changed: false, next: (now, now) }
    }

    /// Something was mapped or unmapped, as it was heard.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// The mappings, if it is time to look and they are others than before.
    pub fn look(&mut self, at_once: bool) -> Option<Vec<Mapping>> {
        let begun = Instant::now();
        if !at_once && begun < if self.changed { self.next.0 } else { self.next.1 } {
            return None;
        }
        self.changed = false;
        let text = bytes(self.pid, "maps").unwrap_or_default();
        let taken = begun.elapsed();
        self.next = (begun + PAUSES.0.max(taken * SHARE), begun + PAUSES.1.max(taken * SHARE));
        // One that has just ended has none.
        if text.is_empty() || text == self.before {
            return None;
        }
        let mut mappings: Vec<Mapping> = text.split(|&byte| byte == b'\n').filter_map(of_line).collect();
        for it in mappings.iter_mut().filter(|it| it.name.starts_with(b"/")) {
            (it.size, it.changed_ns) = *self.files.entry(it.name.clone()).or_insert_with(|| looked_at(self.pid, &it.name));
        }
        self.before = text;
        Some(mappings)
    }
}

/// Size and last change of a file that this process has mapped; zeros if it cannot be looked at, or its file system does not answer.
fn looked_at(pid: u32, name: &[u8]) -> (u64, u64) {
    let path = OsStr::from_bytes(name).to_owned();
    let data = ask(pid, PATIENCE, move || std::fs::metadata(path)).ok().filter(std::fs::Metadata::is_file);
    data.as_ref().map_or((0, 0), as_looked_at)
}

/// Size and last change of a file, ns since 1970, as recordings have them.
pub fn as_looked_at(it: &std::fs::Metadata) -> (u64, u64) {
    (it.size(), it.mtime().wrapping_mul(1_000_000_000).wrapping_add(it.mtime_nsec()) as u64)
}

/// A line of the file: `start-end rwxp offset device inode name`.
fn of_line(line: &[u8]) -> Option<Mapping> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (start, end) = word()?.split_once('-')?;
    let (rights, offset, _, _) = (word()?, word()?, word()?, word()?);
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let name = words.next().unwrap_or_default().trim_ascii_start();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        flags: u8::from(rights.contains('x')),
        name: name[..name.len().min(NAME_MAX)].to_vec(),
        ..Mapping::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whatever_the_name() {
        let line = b"7f10-7f20 r-xp 00001000 08:01 42                         /a b/\xff c";
        let it = of_line(line).expect("it is one");
        assert_eq!(
            (it.start, it.end, it.offset, it.flags, it.name.as_slice()),
            (0x7f10, 0x7f20, 0x1000, 1, b"/a b/\xff c".as_slice())
        );
        assert_eq!(of_line(b"7f10-7f20 rw-p 00000000 00:00 0 ").map(|it| it.name), Some(Vec::new()));
        for none in [b"".as_slice(), b"7f10", b"7f10-7f20 rw-p", b"x-y rw-p 0 0 0 n"] {
            assert_eq!(of_line(none), None);
        }
    }

    #[test]
    fn a_look_tells_what_is_new_alone() {
        let mut looks = Looks::new(std::process::id());
        let all = looks.look(true).expect("it has mappings");
        let own = std::env::current_exe().expect("it is there").into_os_string().into_encoded_bytes();
        assert!(all.iter().any(|it| it.name == own && it.flags == 1 && it.size > 0 && it.changed_ns > 0));
        // Not before its time.
        assert_eq!(looks.look(false), None);
        assert_eq!(Looks::new(u32::MAX).look(true), None);
    }
}
