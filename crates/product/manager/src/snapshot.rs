//! A snapshot's file, and the parts of it that a guest needs first.
//!
//! # The working set
//!
//! What a guest touches in its first seconds is much the same each time that a snapshot is restored. So the first time it is written down, in the order of the touches; later times it is
//! read ahead (Ustiugov et al., REAP, ASPLOS 2021; Firecracker's own advice for handlers). The file is text, a line a run:
//!
//! ```text
//! farshore-working-set 1 536870912
//! 17301504 8192
//! 0 4096
//! ```
//!
//! The first line has the version and the bytes of the snapshot, each other one an offset in it and a length, in bytes. A file for a snapshot of another size is refused.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use farshore_core::limits::PAGE_SIZE;
use rustix::fs::Advice;

const PAGE: u64 = PAGE_SIZE as u64;
const HEAD: &str = "farshore-working-set 1";
/// The most runs of a file that is read.
const RUNS_MAX: usize = 1 << 20;
/// The most bytes of such a file: two numbers of at most 20 digits in each line.
const BYTES_MAX: u64 = 42 * (RUNS_MAX as u64 + 2);

/// A part of a snapshot: where it begins, and how long it is, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A snapshot's memory, in a file.
#[derive(Debug)]
pub struct Snapshot {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Snapshot {
    /// Opens it.
    ///
    /// # Errors
    /// One line: it cannot be read.
    pub fn open(path: &Path) -> Result<Snapshot, String> {
        let failed = |why: String| {
            format!("the snapshot '{}' cannot be read ({why}): name the file of the guest's memory", path.display())
        };
        let (file, bytes) = open_file(path).map_err(|error| failed(error.to_string()))?;
        Ok(Snapshot { file, path: path.into(), bytes })
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads all of `into` from an offset on.
    ///
    /// # Errors
    /// One line: it cannot.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        self.file.read_exact_at(into, offset).map_err(|error| {
            format!("{} bytes of the snapshot '{}' from {offset} on cannot be read ({error})", into.len(), self.path.display())
        })
    }

    /// Has the kernel read parts into its cache, each when its turn comes: it is told of all now. In a thread, since the disk's queue may be full.
    pub fn read_ahead(&self, parts: &[Part]) {
        let (Ok(file), parts) = (self.file.try_clone(), parts.to_vec()) else { return };
        let advise = move || {
            for part in parts {
                // Without it the part comes when it is read.
                let _ = rustix::fs::fadvise(&file, part.offset, std::num::NonZeroU64::new(part.bytes), Advice::WillNeed);
            }
        };
        let _ = std::thread::Builder::new().name("farshore-ahead".into()).spawn(advise);
    }
}

/// Opens a file, and says how many bytes it has. Something else (a pipe that nobody writes) is not waited for.
fn open_file(path: &Path) -> std::io::Result<(File, u64)> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let data = file.metadata()?;
    if data.is_file() { Ok((file, data.len())) } else { Err(std::io::Error::other("it is no file")) }
}

/// The text of a working set.
fn text_of(path: &Path) -> std::io::Result<String> {
    let (file, _) = open_file(path)?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        Err(std::io::Error::other(format!("it has more than {BYTES_MAX} bytes")))
    } else {
        Ok(text)
    }
}

/// Reads a working set for a snapshot of so many bytes. `None`: there is no such file yet.
///
/// # Errors
/// One line: it is of another snapshot, or cannot be read.
pub fn working_set(path: &Path, snapshot_bytes: u64) -> Result<Option<Vec<Part>>, String> {
    let text = match text_of(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("the working set '{}' cannot be read ({error}): name another file", path.display())),
    };
    parse(&text, snapshot_bytes)
        .map(Some)
        .map_err(|why| format!("the working set '{}' cannot be used ({why}): remove it, and it is written anew", path.display()))
}

fn parse(text: &str, snapshot_bytes: u64) -> Result<Vec<Part>, String> {
    let mut lines = text.lines();
    let head = lines.next().and_then(|line| line.strip_prefix(HEAD)).ok_or("it is no working set")?;
    let bytes: u64 = head.trim().parse().map_err(|_| format!("its first line says {:?} bytes", head.trim()))?;
    if bytes != snapshot_bytes {
        return Err(format!("it is of a snapshot of {bytes} bytes, not {snapshot_bytes}"));
    }
    let part = |line: &str| {
        let (offset, length) = line.split_once(' ')?;
        let part = Part { offset: offset.parse().ok()?, bytes: length.parse().ok()? };
        let fits = part.bytes > 0 && part.offset.checked_add(part.bytes)? <= snapshot_bytes;
        (fits && part.offset.is_multiple_of(PAGE) && part.bytes.is_multiple_of(PAGE)).then_some(part)
    };
    let parts: Vec<_> = lines.map(|line| part(line).ok_or_else(|| format!("the line {line:?}"))).collect::<Result<_, _>>()?;
    if parts.len() > RUNS_MAX { Err(format!("it has {} lines", parts.len())) } else { Ok(parts) }
}

/// Writes a working set, unless there is one by now. Parts that follow each other become one.
///
/// # Errors
/// One line: it cannot be written.
pub fn write_working_set(path: &Path, parts: &[Part], snapshot_bytes: u64) -> Result<(), String> {
    let mut text = format!("{HEAD} {snapshot_bytes}\n");
    let mut runs: Vec<Part> = Vec::new();
    for part in parts {
        match runs.last_mut() {
            Some(last) if last.offset + last.bytes == part.offset => last.bytes += part.bytes,
            _ => runs.push(*part),
        }
    }
    for run in runs.iter().take(RUNS_MAX) {
        let _ = writeln!(text, "{} {}", run.offset, run.bytes);
    }
    let failed = |error: std::io::Error| format!("the working set '{}' cannot be written ({error})", path.display());
    // Whole, or not there: several guests may be restored at a time, and each writes what it has seen.
    let name = path.file_name().ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
    let mut own = name.to_owned();
    own.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(own);
    let written = File::create_new(&beside).and_then(|mut file| file.write_all(text.as_bytes()));
    let linked = written.and_then(|()| match std::fs::hard_link(&beside, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    let _ = std::fs::remove_file(&beside);
    linked.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, bytes: u64) -> Part {
        Part { offset, bytes }
    }

    #[test]
    fn a_working_set_reads_back_and_is_written_once() {
        let path = std::env::temp_dir().join(format!("farshore-set-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        assert_eq!(working_set(&path, 1 << 20), Ok(None));
        let parts = [part(8192, 4096), part(12288, 4096), part(0, 4096)];
        write_working_set(&path, &parts, 1 << 20).expect("it can be written");
        assert_eq!(working_set(&path, 1 << 20), Ok(Some(vec![part(8192, 8192), part(0, 4096)])));
        write_working_set(&path, &parts[..1], 1 << 20).expect("it is left as it is");
        assert_eq!(working_set(&path, 1 << 20).map(|parts| parts.map(|parts| parts.len())), Ok(Some(2)));
        let of_another = working_set(&path, 2 << 20).expect_err("it has another size");
        assert!(of_another.contains("of 1048576 bytes, not 2097152") && of_another.contains("remove it"), "{of_another}");
        let folder = std::env::temp_dir();
        let others = std::fs::read_dir(&folder)
            .expect("it is there")
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("farshore-set-{}.", std::process::id())));
        assert_eq!(others.count(), 0);
        std::fs::remove_file(&path).expect("it is ours");
        assert!(write_working_set(Path::new("/no/such/folder/x"), &parts, 1).is_err_and(|why| why.contains("/no/such/folder/x")));
    }

    #[test]
    fn what_is_no_working_set_is_said() {
        for (text, part) in [
            ("", "no working set"),
            ("x\n", "no working set"),
            ("farshore-working-set 1 y\n", "\"y\" bytes"),
            ("farshore-working-set 1 8192\n0\n", "the line \"0\""),
            ("farshore-working-set 1 8192\n0 0\n", "the line \"0 0\""),
            ("farshore-working-set 1 8192\n0 100\n", "the line \"0 100\""),
            ("farshore-working-set 1 8192\n4096 8192\n", "the line"),
            ("farshore-working-set 1 8192\n18446744073709547520 4096\n", "the line"),
        ] {
            let why = parse(text, 8192).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
        assert_eq!(parse("farshore-working-set 1 8192\n4096 4096\n", 8192), Ok(vec![part(4096, 4096)]));
    }

    #[test]
    fn a_snapshot_is_a_file() {
        for path in ["/no/such/file", "/tmp", "/dev/null"] {
            let why = Snapshot::open(Path::new(path)).expect_err(path);
            assert!(why.contains(path) && !why.contains('\n'), "{why}");
        }
        let snapshot = Snapshot::open(Path::new("/proc/self/exe")).expect("it can be read");
        let mut bytes = [0; 4];
        assert_eq!((snapshot.read(0, &mut bytes), &bytes), (Ok(()), b"\x7fELF"));
        assert!(snapshot.read(snapshot.bytes() - 2, &mut bytes).is_err_and(|why| why.contains("4 bytes")));
    }
}
