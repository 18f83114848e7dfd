//! A key, and the pages encrypted with it.
//!
//! # Where the key lies
//!
//! ```text
//!  ┌ no access ┬ key and round keys: read-only, locked, not dumped ┬ no access ┐      one mapping a cipher, three pages
//!  └───────────┴───────────────────────────────────────────────────┴───────────┘
//! ```
//! The page is *made* writable, taken out of core dumps, locked → *filled* by the kernel's generator, which blocks until it has
//! been seeded → *expanded* in place → *read-only*, for good: a stray write of the program must not change the key, and reading
//! needs no lock. The pages without access stop code that reads on beyond a buffer beside the key. When the last owner drops the
//! cipher, the key is overwritten. At the end of a process no thread does that: threads may still be at work on pages, and the
//! kernel clears the memory before another process gets it.
//! before another process gets it.
//!
//! # fork
//! A child has the mapping too, out of dumps as before, and can read pages that its parent wrote. Locks are not inherited:
//! [`Cipher::lock`] locks the page again. Pages that the child writes itself belong under a key of its own, or two processes
//! would write different pages under the same key and number. If the parent makes the child's cipher before the fork, the
//! child can certainly lock as much as its parent could.
//! the child can certainly lock as much as its parent could.

use super::xts::{KEY_BYTES, Schedules};
use core::ptr::NonNull;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::PageBuf;
use farshore_core::word::Slot;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mlock, mmap_anonymous, mprotect, munmap};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use zeroize::Zeroize;

/// Why there is no key. Displays as one line: what failed, with which value, what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CipherError {
    /// There is no memory for the key.
    Memory(Errno),
    /// The kernel does not lock the memory.
    Lock {
        /// Its reason.
        errno: Errno,
        /// `RLIMIT_MEMLOCK`, in bytes; `None`: unlimited.
        limit: Option<u64>,
    },
    /// The kernel gives no random bytes.
    Random(Errno),
}

impl fmt::Display for CipherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CipherError::Memory(errno) => {
                write!(f, "--encrypt: no memory for the key ({errno}): raise the limit of address space (ulimit -v)")
            }
            CipherError::Lock { errno, limit } => {
                f.write_str("--encrypt: the key's memory (4 KiB) cannot be locked")?;
                match limit {
                    Some(bytes) => write!(f, " ({errno}, the limit is {} KiB): raise it with ulimit -l", bytes >> 10)?,
                    None => write!(f, " ({errno}): see whether the machine is out of memory")?,
                }
                f.write_str(", or run without --encrypt")
            }
            CipherError::Random(errno) => write!(
                f,
                "--encrypt: the kernel gives no random bytes for the key (getrandom: {errno}): allow the call, or run without --encrypt"
            ),
        }
    }
}

impl std::error::Error for CipherError {}

/// A random key that encrypts pages, each under its slot's number.
///
/// Threads use it at the same time without waiting for each other. After it was made it makes no system call, takes no
/// lock and allocates nothing; it uses up to 16 KiB of stack.
pub struct Cipher {
    /// The page in the middle.
    page: NonNull<Page>,
}

/// What lies in the locked page.
#[repr(C, align(4096))]
struct Page {
    schedules: Schedules,
    key: [u8; KEY_BYTES],
}

const _: () = assert!(size_of::<Page>() == PAGE_SIZE, "key and round keys fit into one page");

// SAFETY: the page is the cipher's own. It is read-only from the end of `new` until `drop`, which has exclusive access.
unsafe impl Send for Cipher {}
// SAFETY: as above.
unsafe impl Sync for Cipher {}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(AES-256-XTS)")
    }
}

impl Cipher {
    /// A new key from the kernel's generator. Blocks until that has been seeded, which on a running machine it has been.
    ///
    /// # Errors
    /// Memory cannot be had or locked, or there are no random bytes.
    pub fn new() -> Result<Cipher, CipherError> {
        Cipher::fill_with(|key| {
            let mut filled = 0;
            while filled < key.len() {
                match getrandom(&mut key[filled..], GetRandomFlags::empty()) {
                    Ok(count) => filled += count,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(CipherError::Random(errno)),
                }
            }
            Ok(())
        })
    }

    pub(super) fn fill_with(fill: impl FnOnce(&mut [u8; KEY_BYTES]) -> Result<(), CipherError>) -> Result<Cipher, CipherError> {
        let cipher = Cipher::map().map_err(CipherError::Memory)?;
        cipher.lock()?;
        let page = cipher.page.as_ptr();
        // SAFETY: a field of the page, which is mapped.
        let key = unsafe { &raw mut (*page).key };
        // SAFETY: zeros are a valid key; the page is writable, and no other code knows it yet.
        let key = unsafe { &mut *key };
        fill(key)?;
        // SAFETY: a field of the page, which is mapped.
        let schedules = unsafe { &raw mut (*page).schedules };
        // SAFETY: writable memory of this type that no other code knows yet, apart from the key.
        unsafe { Schedules::expand(key, schedules) };
        // The first round keys are the key, so it is not needed again.
        key.zeroize();
        cipher.protect(MprotectFlags::READ).map_err(CipherError::Memory)?;
        Ok(cipher)
    }

    /// Three pages of which the middle one can be written, full of zeros and out of core dumps.
    fn map() -> Result<Cipher, Errno> {
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), 3 * PAGE_SIZE, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        // SAFETY: within the mapping of three pages.
        let page = unsafe { base.byte_add(PAGE_SIZE) }.cast();
        let cipher = Cipher { page: NonNull::new(page).ok_or(Errno::NOMEM)? };
        cipher.protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        // SAFETY: a page of our own; nothing about its bytes changes.
        unsafe { madvise(page.cast(), PAGE_SIZE, Advice::LinuxDontDump) }?;
        Ok(cipher)
    }

    fn protect(&self, flags: MprotectFlags) -> Result<(), Errno> {
        // SAFETY: our own page. It becomes read-only when `new` has written everything, and writable when no other code
        // has it.
        unsafe { mprotect(self.page.as_ptr().cast(), PAGE_SIZE, flags) }
    }

    /// Locks the key's memory, so that the kernel does not swap it. [`Cipher::new`] has done that; it is needed again in
    /// a forked child and after the program's `munlockall`. One system call.
    ///
    /// # Errors
    /// [`CipherError::Lock`].
    pub fn lock(&self) -> Result<(), CipherError> {
        // SAFETY: a page of our own; nothing about its bytes changes.
        let locked = unsafe { mlock(self.page.as_ptr().cast(), PAGE_SIZE) };
        locked.map_err(|errno| CipherError::Lock { errno, limit: getrlimit(Resource::Memlock).current })
    }

    pub(super) fn schedules(&self) -> &Schedules {
        // SAFETY: a field of the page, which is mapped.
        let schedules = unsafe { &raw const (*self.page.as_ptr()).schedules };
        // SAFETY: `fill_with` wrote it before it gave the cipher away, and afterwards only `drop` writes it.
        unsafe { &*schedules }
    }

    /// Encrypts the page `from` for `slot`, into `to`.
    pub fn encrypt(&self, slot: Slot, from: &PageBuf, to: &mut PageBuf) {
        self.schedules().encrypt(slot.number(), from, to);
    }

    /// Decrypts in place a page that [`Cipher::encrypt`] made for `slot`. With another slot or another key the page becomes
    /// noise; the engine's checksum notices that.
    pub fn decrypt(&self, slot: Slot, page: &mut PageBuf) {
        self.schedules().decrypt(slot.number(), page);
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        if self.protect(MprotectFlags::READ | MprotectFlags::WRITE).is_ok() {
            // SAFETY: the page is mapped and writable, and we are its last user. Any bytes are valid, and nothing in the page has
            // a `drop` that does more than this.
            let bytes = unsafe { core::slice::from_raw_parts_mut(self.page.as_ptr().cast::<u64>(), PAGE_SIZE / 8) };
            bytes.zeroize();
        }
        // SAFETY: the first of the mapping's three pages.
        let base = unsafe { self.page.as_ptr().byte_sub(PAGE_SIZE) };
        // SAFETY: mapped by `map` with this length; the last user is gone. An error would leave it mapped, and wiped.
        let _ = unsafe { munmap(base.cast(), 3 * PAGE_SIZE) };
    }
}
