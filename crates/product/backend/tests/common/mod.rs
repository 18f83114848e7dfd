//! What the tests of this crate share.
#![allow(dead_code)]

use farshore_core::seams::{Backend, IoError, PageBuf, WriteQueue};
use farshore_core::word::Slot;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that is removed with what is in it.
pub struct Dir(pub PathBuf);

impl Dir {
    /// Below `parent`.
    pub fn below(parent: &Path) -> Dir {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("farshore-test-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }
    /// Where swap files go by default: mostly on a disk, while `/tmp` may be RAM.
    pub fn new() -> Dir {
        Dir::below(Path::new("/var/tmp"))
    }
    /// Names in it.
    pub fn names(&self) -> Vec<String> {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small file system in RAM, mounted for the test; `None` where the test may not mount.
pub struct Mount(pub Dir);

impl Mount {
    pub fn tmpfs(options: &str) -> Option<Mount> {
        let dir = Dir::new();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "farshore-test"]).arg(&dir.0).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Mount(dir)),
            _ => None,
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0.0).output();
    }
}

pub fn slot(n: u64) -> Slot {
    Slot::new(n).unwrap()
}

/// A page whose bytes tell the slot and the version.
pub fn page(slot: u64, version: u64) -> PageBuf {
    let mut page = PageBuf::ZERO;
    for (i, eight) in page.0.chunks_exact_mut(8).enumerate() {
        let value = (slot << 32 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 % 64) ^ i as u64;
        eight.copy_from_slice(&value.to_le_bytes());
    }
    page
}

/// Pages of neighbouring slots.
pub fn pages(first: u64, count: u32, version: u64) -> Vec<PageBuf> {
    (first..first + u64::from(count)).map(|n| page(n, version)).collect()
}

/// Writes and waits.
pub fn write<B: Backend>(queue: &mut B::Queue, first: u64, pages: &[PageBuf]) -> Result<(), IoError> {
    // SAFETY: `pages` is borrowed until the completion has been reaped, below.
    unsafe { queue.start_write(slot(first), pages.as_ptr(), pages.len() as u32, 77) }.unwrap();
    let mut end = None;
    queue.reap(true, &mut |tag, result| {
        assert_eq!(tag, 77);
        assert!(end.replace(result).is_none(), "two completions for one write");
    });
    assert_eq!(queue.in_flight(), 0);
    end.expect("reap(wait) brings a completion")
}

/// Reads one by one and all at once, and compares.
pub fn check<B: Backend>(backend: &B, first: u64, pages: &[PageBuf]) {
    let mut back = PageBuf::ZERO;
    for (n, page) in (first..).zip(pages) {
        backend.read(slot(n), &mut back).unwrap();
        assert!(back.0 == page.0, "slot {n} holds other bytes");
    }
    let mut run = vec![PageBuf([0xee; 4096]); pages.len()];
    backend.read_run(slot(first), &mut run).unwrap();
    for ((n, page), back) in (first..).zip(pages).zip(run) {
        assert!(back.0 == page.0, "slot {n}, read in a run, holds other bytes");
    }
}

/// Whether this user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
