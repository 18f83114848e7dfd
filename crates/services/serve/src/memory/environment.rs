//! Environments of LMDB's whose pages are ordinary memory.
//!
//! LMDB reads from a mapping of its file. A page of a file is the page cache's: neither Farshore nor the kernel's swap takes it away and brings it back.
//! So once a file is complete, its bytes are read into anonymous memory **at the very addresses of the mapping** ([`open_far`]). The environment is read
//! only, so its pages never change, and LMDB sees no difference. Then the file is made empty: its space is the disk's again.
//!
//! Environments have no locks (`NO_LOCK`): nobody else can reach their files, which are [`Unnamed`]; one thread writes them and closes
//! them before they are read. So readers have no table, and a transaction that reads is a few words of its own.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// Bytes that are read at a time: Farshore keeps what a system call writes to in RAM for as long as it lasts.
const PIECE: usize = 1 << 20;

/// A file without a name: nobody else can reach it, and nothing of it is left, however this program ends.
#[derive(Debug)]
pub struct Unnamed(File);

impl Unnamed {
    /// A new one, in a directory.
    ///
    /// # Errors
    /// It cannot be made there.
    pub fn new(directory: &Path) -> io::Result<Unnamed> {
        // It has a name for a moment, since not all file systems have `O_TMPFILE`.
        let (file, path) = nix::unistd::mkstemp(&directory.join("farshore-serve-XXXXXX"))?;
        fs::remove_file(path)?;
        Ok(Unnamed(file.into()))
    }

    /// By which LMDB, which wants a path, opens it.
    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string())
    }
}

/// A database, and its environment.
#[derive(Debug)]
pub struct Far {
    /// The environment.
    pub env: Env<WithoutTls>,
    /// Its only database.
    pub items: Database<'static, Bytes, Bytes>,
    /// Open for as long as the environment is: `heed` tells environments apart by their paths, and this one's has the descriptor's number.
    _file: Unnamed,
}

/// Opens a new file, to write to it. It has at most `bytes`, a multiple of pages. What is written need not survive this program.
///
/// # Errors
/// LMDB's.
pub fn create(file: &Unnamed, bytes: usize) -> heed::Result<Env<WithoutTls>> {
    open(file, bytes, EnvFlags::NO_SYNC)
}

/// Opens a file, which is complete and not open, of which `bytes` are used: to read it, from memory that may be far away.
///
/// # Errors
/// LMDB's, or if there is not so much memory.
pub fn open_far(file: Unnamed, bytes: usize) -> heed::Result<Far> {
    let env = open(&file, bytes, EnvFlags::READ_ONLY)?;
    let items = env.open_databases_and_commit(env.read_txn()?, |opener, txn| {
        opener.open_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let items = items.unwrap_commit().ok_or_else(missing)?;
    let inside = {
        let txn = env.read_txn()?;
        items.first(&txn)?.ok_or_else(missing)?.0.as_ptr().addr()
    };
    let mapping = mapping_of(inside, env.info().map_size)?;
    // SAFETY: all of it is a mapping of this file that the environment has made for itself. It is not known to anybody else yet, and its transactions have
    // ended: nobody borrows from it.
    unsafe { replace(mapping, &file.0) }?;
    file.0.set_len(0)?;
    Ok(Far { env, items, _file: file })
}

fn open(file: &Unnamed, bytes: usize, flags: EnvFlags) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(bytes);
    // SAFETY: NO_LOCK wants us to see to it that nobody reads what another one writes: the module's head. NO_SYNC risks what is written if the machine
    // fails, and READ_ONLY, NO_SUB_DIR and NO_READ_AHEAD nothing.
    unsafe { options.flags(flags | EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR | EnvFlags::NO_READ_AHEAD) };
    // SAFETY: the file must not be changed or cut by others while it is mapped: it has no name, so there are none. `open_far` cuts it when it is not
    // mapped any more.
    unsafe { options.open(file.path()) }
}

/// The pages of the file mapping of `bytes` in which the address `inside` lies. LMDB does not tell where it has mapped its file; the kernel does.
fn mapping_of(inside: usize, bytes: usize) -> io::Result<Range<usize>> {
    let wrong = || io::Error::other("the mapping of the file is not where it should be");
    let maps = fs::read_to_string("/proc/self/maps")?;
    let start = maps.lines().find_map(|line| {
        // address-address rights offset …
        let (start, rest) = line.split_once('-')?;
        let mut words = rest.split_ascii_whitespace();
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(words.next()?)?, number(words.nth(1)?)?);
        ((start..end).contains(&inside) && offset == 0 && end - start >= bytes).then_some(start)
    });
    start.map(|start| start..start + bytes).ok_or_else(wrong)
}

/// Puts anonymous memory with the file's bytes in the place of a mapping of that file, to be read alone.
///
/// # Safety
/// The pages of `mapping` are a mapping of the file from its begin on, and nobody borrows from it.
unsafe fn replace(mapping: Range<usize>, file: &File) -> io::Result<()> {
    let (start, length) = (std::ptr::without_provenance_mut::<c_void>(mapping.start), mapping.len());
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: it replaces what is mapped there, from which nobody borrows: the caller's duty.
    let at = unsafe { mmap_anonymous(start, length, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    // SAFETY: zeroes that can be written, at `length` new addresses of which nobody else knows.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), length) };
    for (number, piece) in bytes.chunks_mut(PIECE).enumerate() {
        file.read_exact_at(piece, (number * PIECE) as u64)?;
    }
    // SAFETY: the new mapping, to which nobody writes from here on.
    unsafe { mprotect(at, length, MprotectFlags::READ) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_anonymous_and_the_file_is_empty() {
        let directory = std::env::temp_dir();
        let file = Unnamed::new(&directory).unwrap();
        let env = create(&file, 1 << 20).unwrap();
        let made = env.create_databases_and_commit(env.write_txn().unwrap(), |opener, txn| {
            let items = opener.create_database::<Bytes, Bytes>(txn, None)?;
            items.put(txn, b"key", &[7; 9000])?;
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(()))
        });
        made.unwrap().unwrap_commit();
        let bytes = (env.info().last_page_number + 1) * 4096;
        env.prepare_for_closing().wait();
        let same = file.0.try_clone().unwrap();
        let far = open_far(file, bytes).unwrap();
        assert_eq!(same.metadata().unwrap().len(), 0);
        let txn = far.env.read_txn().unwrap();
        let value = far.items.get(&txn, b"key").unwrap().unwrap();
        assert!(value == [7; 9000], "all of it, over several pages");
        assert!(far.items.get(&txn, b"other").unwrap().is_none());
        // It is no mapping of a file any more.
        assert!(mapping_of(value.as_ptr().addr(), bytes).is_ok_and(|mapping| mapping.len() == bytes));
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.starts_with(&format!("{:x}-", mapping_of(value.as_ptr().addr(), bytes).unwrap().start)));
        assert!(line.is_some_and(|line| line.contains(" r--p ") && !line.contains('/')), "{line:?}");
    }

    #[test]
    fn where_no_file_can_be() {
        assert!(Unnamed::new(Path::new("/proc")).is_err());
        assert!(mapping_of(16, 4096).is_err());
    }
}
