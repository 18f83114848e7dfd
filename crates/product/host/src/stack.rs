//! First stacks: the one that the kernel has made for the program, and the one that the library's dynamic linker expects.
//!
//! From the stack pointer up: the number of arguments; pointers to them, and null; pointers to the environment, and null; pairs of
//! the auxiliary vector up to `AT_NULL` (x86-64 ABI, "Process Initialization").

use crate::passed;
use crate::remote::Remote;
use farshore_sys::raw::Errno;

const PAGE: u64 = 4096;
const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_SECURE: u64 = 23;
const AT_EXECFN: u64 = 31;
const AT_SYSINFO_EHDR: u64 = 33;
/// Entries that are kept: Linux 6.18 has 23.
const ENTRIES: usize = 40;

/// The auxiliary vector.
#[derive(Debug)]
pub struct Auxiliary {
    entries: [[u64; 2]; ENTRIES],
    count: usize,
    /// Pointer to the program's name, as its first argument has it. 0: it has no arguments.
    pub name: u64,
}

impl Auxiliary {
    /// Reads the vector from the first stack of the program.
    pub fn read(remote: &Remote) -> Result<Auxiliary, Errno> {
        let mut words = Words { remote, at: remote.first.rsp, bytes: [0; PAGE as usize], left: 0 };
        let arguments = words.next()?;
        let name = words.next()?;
        for _ in 0..arguments {
            words.next()?;
        }
        // (The null behind the arguments is the last of them that was read; without arguments it was the name.)
        while words.next()? != 0 {}
        let mut found = Auxiliary { entries: [[0; 2]; ENTRIES], count: 0, name };
        loop {
            let entry = [words.next()?, words.next()?];
            if entry[0] == AT_NULL {
                return Ok(found);
            }
            found.set(entry[0], entry[1])?;
        }
    }

    fn get(&self, kind: u64) -> Option<u64> {
        self.entries[..self.count].iter().find(|entry| entry[0] == kind).map(|entry| entry[1])
    }

    /// Where the vDSO is.
    pub fn vdso(&self) -> Option<u64> {
        self.get(AT_SYSINFO_EHDR)
    }

    /// Whether the program has more rights than its user.
    pub fn is_secure(&self) -> bool {
        self.get(AT_SECURE) != Some(0)
    }

    /// Changes an entry, or adds it.
    pub fn set(&mut self, kind: u64, value: u64) -> Result<(), Errno> {
        if let Some(entry) = self.entries[..self.count].iter_mut().find(|entry| entry[0] == kind) {
            entry[1] = value;
            return Ok(());
        }
        *self.entries.get_mut(self.count).ok_or(Errno::ENOMEM)? = [kind, value];
        self.count += 1;
        Ok(())
    }

    /// Makes the vector the library's: its headers, its entry, the place of its dynamic linker, its path.
    pub fn become_of(&mut self, library: &crate::image::Image, loader: &crate::image::Image, path: u64) -> Result<(), Errno> {
        for (kind, passed) in [(AT_PHDR, passed::HEADERS), (AT_PHNUM, passed::COUNT), (AT_ENTRY, passed::PROGRAM)] {
            self.set(passed, self.get(kind).unwrap_or(0))?;
        }
        let changes = [(AT_PHDR, library.headers), (AT_PHNUM, library.count), (AT_ENTRY, library.entry), (AT_BASE, loader.base)];
        changes.into_iter().try_for_each(|(kind, value)| self.set(kind, value))?;
        self.set(AT_EXECFN, path)
    }
}

/// Words of the program's stack, upwards.
struct Words<'r> {
    remote: &'r Remote,
    at: u64,
    bytes: [u8; PAGE as usize],
    /// Bytes that have been read and not given yet, at the end of `bytes`.
    left: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Result<u64, Errno> {
        if self.left == 0 {
            let length = (PAGE - self.at % PAGE) as usize;
            self.remote.read(self.at, &mut self.bytes[PAGE as usize - length..])?;
            self.left = length;
        }
        let from = PAGE as usize - self.left;
        let word = self.bytes[from..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        self.left -= 8;
        self.at += 8;
        Ok(word)
    }
}

/// Words of a stack at most: the auxiliary vector, and an environment of a few entries.
const WORDS: usize = 160;

/// Writes the stack of the library's dynamic linker below `texts`, at whose end the strings of the environment lie already; before them lie
/// `names` bytes of others. Returns the stack pointer.
///
/// # Errors
/// It has no room, or cannot be written.
pub fn lay(
    remote: &Remote,
    (texts, names): (u64, u64),
    environment: (&[u8], usize),
    auxiliary: &Auxiliary,
) -> Result<u64, Errno> {
    let (strings, count) = environment;
    // One argument and a null; the environment and a null; the vector and its end.
    let length = 3 + count + 1 + 2 * auxiliary.count + 2;
    let mut words = [0u64; WORDS];
    let words = words.get_mut(..length).ok_or(Errno::ENOMEM)?;
    (words[0], words[1]) = (1, auxiliary.name);
    let (entries, vector) = words[3..].split_at_mut(count + 1);
    let mut from = texts + names;
    for (entry, string) in entries.iter_mut().zip(strings.split_inclusive(|&byte| byte == 0)) {
        *entry = from;
        from += string.len() as u64;
    }
    vector.iter_mut().zip(auxiliary.entries[..auxiliary.count].iter().flatten()).for_each(|(word, value)| *word = *value);
    let sp = (texts - length as u64 * 8) & !15;
    // SAFETY: words are bytes.
    let bytes = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), length * 8) };
    remote.write(sp, bytes)?;
    Ok(sp)
}
