//! The helper's memory: its stack, and all that it needs to know. One mapping, which it unmaps when it has done its work.

use crate::{Guest, LOADER};
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering};
use farshore_sys::own::map_own;
use farshore_sys::raw::{Errno, getpid, nr, syscall};

const STACK: usize = 64 << 10;
const LOADER_LENGTH: usize = LOADER.count_bytes() + 1;

/// What [`State::phase`] goes through: the helper may begin; it traces; or it does not, with the error in the lower bits.
const WAITING: u32 = 0;
const ALLOWED: u32 = 1;
pub const READY: u32 = 2;
pub const FAILED: u32 = 1 << 16;

/// At the lower end of the mapping.
#[repr(C)]
#[derive(Debug)]
pub struct State {
    /// Bytes of the mapping.
    pub length: usize,
    phase: AtomicU32,
    /// The process that makes the helper.
    pub parent: u32,
    /// The thread to be traced.
    pub tracee: AtomicU32,
    required: bool,
    /// Strings behind this structure: the library's path with a zero byte; its dynamic linker's, and those of the environment, likewise.
    library: usize,
    environment: usize,
    entries: usize,
}

impl State {
    fn text(&self, from: usize, length: usize) -> &[u8] {
        let start = core::ptr::from_ref(self).wrapping_add(1).cast::<u8>().wrapping_add(from);
        // SAFETY: `Berth::new` has written these bytes behind the structure, and nobody changes them.
        unsafe { slice::from_raw_parts(start, length) }
    }

    /// The library's path, with its zero byte.
    pub fn library(&self) -> &[u8] {
        self.text(0, self.library)
    }

    /// The strings of the environment, each with its zero byte, and their number; they are the last of [`State::texts`].
    pub fn environment(&self) -> (&[u8], usize) {
        (self.text(self.library + LOADER_LENGTH, self.environment), self.entries)
    }

    /// What the program needs of strings: the library's path, its dynamic linker's, the environment.
    pub fn texts(&self) -> &[u8] {
        self.text(0, self.library + LOADER_LENGTH + self.environment)
    }

    /// See [`Guest::required`].
    pub fn required(&self) -> bool {
        self.required
    }

    fn wait_while(&self, phase: u32) -> u32 {
        const FUTEX_WAIT: u64 = 0;
        loop {
            let now = self.phase.load(Ordering::Acquire);
            if now != phase {
                return now;
            }
            // SAFETY: sleeps while the word, which is in shared memory, is as it was.
            unsafe { syscall(nr::FUTEX, [self.phase.as_ptr() as u64, FUTEX_WAIT, phase.into(), 0, 0, 0]) };
        }
    }

    fn set(&self, phase: u32) {
        const FUTEX_WAKE: u64 = 1;
        self.phase.store(phase, Ordering::Release);
        // SAFETY: wakes who waits at the word.
        unsafe { syscall(nr::FUTEX, [self.phase.as_ptr() as u64, FUTEX_WAKE, 1, 0, 0, 0]) };
    }

    /// The helper: waits until the kernel has been told that it may trace.
    pub fn wait_until_allowed(&self) {
        self.wait_while(WAITING);
    }

    /// The helper: whether it traces.
    pub fn tell(&self, traces: Result<(), Errno>) {
        self.set(traces.map_or_else(|why| FAILED | why.0 as u32, |()| READY));
    }
}

/// Not unmapped when dropped: after an exec it is the helper's alone.
#[derive(Debug)]
pub struct Berth {
    base: NonNull<u8>,
    length: usize,
}

impl Berth {
    pub fn new(guest: &Guest<'_>) -> Result<Berth, Errno> {
        let library = guest.library.to_bytes_with_nul();
        let environment: usize = guest.environment.iter().map(|entry| entry.len() + 1).sum();
        let length = (size_of::<State>() + library.len() + LOADER_LENGTH + environment + STACK).next_multiple_of(4096);
        let base = map_own(length)?;
        let state = State {
            length,
            phase: AtomicU32::new(WAITING),
            parent: getpid(),
            tracee: AtomicU32::new(0),
            required: guest.required,
            library: library.len(),
            environment,
            entries: guest.environment.len(),
        };
        // SAFETY: fresh memory that is large enough, and aligned to a page.
        unsafe { base.cast::<State>().write(state) };
        let texts = base.as_ptr().wrapping_add(size_of::<State>());
        // SAFETY: the bytes behind the structure, which belong to nobody else yet.
        let mut texts = unsafe { slice::from_raw_parts_mut(texts, library.len() + LOADER_LENGTH + environment) };
        let mut push = |text: &[u8]| {
            let (to, rest) = core::mem::take(&mut texts).split_at_mut(text.len());
            to.copy_from_slice(text);
            texts = rest;
        };
        push(library);
        push(LOADER.to_bytes_with_nul());
        for entry in guest.environment {
            push(entry);
            push(b"\0");
        }
        Ok(Berth { base, length })
    }

    /// Address of the mapping.
    pub fn base(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The end of the helper's stack.
    pub fn stack_top(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.length)
    }

    pub fn state(&self) -> &State {
        // SAFETY: `new` has written it; what changes in it is atomic.
        unsafe { self.base.cast().as_ref() }
    }

    /// The helper may begin.
    pub fn allow(&self) {
        self.state().set(ALLOWED);
    }

    /// Waits until the helper traces, or has said why not.
    pub fn wait(&self) -> u32 {
        self.state().wait_while(ALLOWED)
    }

    /// There is no helper (any more).
    pub fn unmap(self) {
        // SAFETY: nobody uses the mapping.
        unsafe { syscall(nr::MUNMAP, [self.base(), self.length as u64, 0, 0, 0, 0]) };
    }
}
