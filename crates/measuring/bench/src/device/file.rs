//! The file that is measured on: without a name where the file system can do that, written once all over, each page stamped with its number.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, OFlags};

use super::ring::{Buffer, Done, Kind, PAGE, Page};
use super::{INTERRUPTED, LARGE_PAGES, SEQUENTIAL_DEPTH};

/// File systems in memory: behind them is no device.
const IN_MEMORY: [(u64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

/// Opens a file of `pages` pages in `directory`, for O_DIRECT. It has no name when this returns.
///
/// # Errors
/// Why there is none, in one line.
pub(super) fn open(directory: &Path, pages: u64) -> Result<File, String> {
    let place = directory.display();
    let kind = rustix::fs::statfs(directory).map_err(|error| format!("cannot look at {place}: {error}"))?.f_type as u64;
    if let Some((_, name)) = IN_MEMORY.iter().find(|(magic, _)| *magic == kind) {
        return Err(format!("{place} is in memory ({name}): there is no device below it to measure"));
    }
    let file = nameless(directory).map_err(|error| match error.raw_os_error() {
        Some(22) => format!("the file system of {place} has no O_DIRECT: its device cannot be measured without the page cache"),
        _ => format!("cannot make a file in {place}: {error}"),
    })?;
    let bytes = pages * PAGE as u64;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(file),
        Err(error) => Err(format!("no room for {} MiB to measure the device on in {place}: {error}", bytes >> 20)),
    }
}

/// A file without a name, or one that loses it at once where the file system must have names.
fn nameless(directory: &Path) -> io::Result<File> {
    let options = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags((flags | OFlags::DIRECT).bits() as i32);
        options
    };
    match options(OFlags::TMPFILE).open(directory) {
        // EISDIR: before Linux 3.11. EOPNOTSUPP: the file system has none.
        Err(error) if [Some(21), Some(95)].contains(&error.raw_os_error()) => {}
        result => return result,
    }
    let path = directory.join(format!(".farshore-device-{}", std::process::id()));
    let file = options(OFlags::empty()).create_new(true).open(&path);
    // Also if it could not be opened: ext4 without O_DIRECT has made the name by then.
    match (file, std::fs::remove_file(&path)) {
        (Ok(file), Ok(())) => Ok(file),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Writes all pages, with data that no device can make smaller.
pub(super) fn fill(file: &File, pages: u64, stop: &AtomicBool) -> Result<(), String> {
    let told = |error: io::Error| format!("cannot write the file to measure the device on: {error}");
    let mut ring = super::ring(file, SEQUENTIAL_DEPTH)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(pages);
    let mut free: Vec<Buffer> = (0..SEQUENTIAL_DEPTH).map(|_| blank(LARGE_PAGES)).collect();
    let (mut next, mut done) = (0, Vec::new());
    while next < pages || ring.in_flight() > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(INTERRUPTED.into());
        }
        while next < pages
            && let Some(mut buffer) = free.pop()
        {
            buffer.truncate(usize::try_from(pages - next).unwrap_or(usize::MAX));
            noise(&mut buffer, &mut random);
            stamp(&mut buffer, next);
            let count = buffer.len() as u64;
            ring.start(Kind::Write, next, buffer).map_err(told)?;
            next += count;
        }
        ring.wait(&mut done).map_err(told)?;
        free.extend(done.drain(..).map(|done: Done| done.buffer));
    }
    drop(ring);
    // What the file system still has to write about the file must not fall into what is measured.
    file.sync_all().map_err(told)
}

/// A buffer of zeros.
pub(super) fn blank(pages: usize) -> Buffer {
    vec![Page([0; PAGE]); pages]
}

/// Fills a buffer with noise.
pub(super) fn noise(buffer: &mut Buffer, random: &mut Xoshiro256PlusPlus) {
    buffer.iter_mut().for_each(|page| random.fill_bytes(&mut page.0));
}

/// Writes its number into each page of a buffer that goes to `first` and on.
pub(super) fn stamp(buffer: &mut Buffer, first: u64) {
    for (page, number) in buffer.iter_mut().zip(first..) {
        page.0[..8].copy_from_slice(&number.to_le_bytes());
    }
}

/// Whether each page that was read from `first` on bears its number.
pub(super) fn check(buffer: &Buffer, first: u64) -> Result<(), String> {
    for (page, number) in buffer.iter().zip(first..) {
        let found = u64::from_le_bytes(std::array::from_fn(|index| page.0[index]));
        if found != number {
            return Err(format!("the device gave wrong data: page {number} came back with the mark {found:#x}"));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::ring::Ring;
    use super::*;

    /// A directory on a disk, where there is one.
    pub(in super::super) fn on_disk() -> tempfile::TempDir {
        let places = [Path::new("/var/tmp"), &std::env::temp_dir(), Path::new(env!("CARGO_MANIFEST_DIR"))];
        let place = places.into_iter().find(|place| open(place, 1).is_ok()).expect("a directory on a disk");
        tempfile::tempdir_in(place).expect("a directory")
    }

    fn names(directory: &Path) -> usize {
        std::fs::read_dir(directory).map_or(usize::MAX, Iterator::count)
    }

    #[test]
    fn the_file_has_no_name_and_is_as_large_as_wanted() {
        let directory = on_disk();
        let file = open(directory.path(), 300).expect("a file");
        assert_eq!(names(directory.path()), 0);
        fill(&file, 300, &AtomicBool::new(false)).expect("filled");
        assert_eq!(file.metadata().expect("metadata").len(), 300 * PAGE as u64);
        let mut ring = Ring::new(&file, 1).expect("a ring");
        ring.start(Kind::Read, 0, blank(300)).expect("started");
        let mut done = Vec::new();
        while done.is_empty() {
            ring.wait(&mut done).expect("read");
        }
        assert_eq!(check(&done[0].buffer, 0), Ok(()));
        assert!(check(&done[0].buffer, 1).is_err_and(|line| line.contains("page 1 came back with the mark 0x0")));
        assert_ne!(done[0].buffer[17].0[8..], done[0].buffer[18].0[8..]);
    }

    #[test]
    fn what_cannot_be_measured_says_why() {
        let line = open(Path::new("/dev/shm"), 1).expect_err("no device there");
        assert!(line.contains("in memory (tmpfs)"), "{line}");
        let line = open(Path::new("/nowhere/at/all"), 1).expect_err("no directory");
        assert!(line.contains("/nowhere/at/all"), "{line}");
        let directory = on_disk();
        let line = open(directory.path(), 1 << 42).expect_err("no room");
        assert!(line.starts_with("no room for"), "{line}");
        assert_eq!(names(directory.path()), 0);
    }

    #[test]
    fn a_stop_ends_the_filling() {
        let directory = on_disk();
        let file = open(directory.path(), 1 << 16).expect("a file");
        assert_eq!(fill(&file, 1 << 16, &AtomicBool::new(true)), Err(INTERRUPTED.into()));
    }
}
