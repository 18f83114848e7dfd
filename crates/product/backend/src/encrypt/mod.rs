//! Wraps a backend so that the bytes it stores are noise to a reader without the key.
//!
//! # What is promised
//!
//! - The medium holds AES-256-XTS of each page, under a random key that exists in this process alone ([`Cipher`]). The tweak is
//!   the slot's number *as this wrapper is called with it*: equal pages in different slots differ.
//! - XTS is what disks are encrypted with, and has its limits: an observer who sees the medium at two moments sees which 16-byte
//!   blocks of a slot have changed. XTS holds no sum of its own. The engine's checksums are over plain bytes and in memory, so
//!   bytes that were changed on the medium, or put back from before, are detected when they are fetched.
//! - Everything in memory stays plain: pages, stages, buffers. A page is rescued from its stage without a cipher.
//!
//! # Writes
//!
//! A queue has *bounce memory* for all writes that it can have in flight: [`BOUNCE_PAGES`] pages a write, allocated with the
//! queue. A write is encrypted into its part of that memory when it starts, and the device reads the bounced copy. A write of
//! more pages goes in pieces, one after another, through the same part: the caller's pages stay readable until its completion.
//! The bounce memory is gone in a forked child (`MADV_WIPEONFORK`), whose queues are its own.
//!
//! # Reads
//!
//! Pages are decrypted in place, in the caller's buffer: no allocation, no lock.

mod cipher;
mod xts;

pub use cipher::{Cipher, CipherError};

use core::ptr::NonNull;
use farshore_core::seams::{
    Backend, CopyChange, FaultsSeen, FreeSlots, IoError, MemoryBudget, PageBuf, ReadBegun, Reads, Spaces, WriteQueue,
};
use farshore_core::slots::arrangement::SpaceSet;
use farshore_core::word::Slot;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of bounce memory for each write in flight: the engine's largest write.
pub const BOUNCE_PAGES: u32 = 64;

/// A placeholder until a write puts in its own slot.
const ANY: Slot = Slot::new(1).unwrap();

/// A backend whose medium holds encrypted pages.
#[derive(Debug)]
pub struct Encrypted<B> {
    inner: B,
    cipher: Arc<Cipher>,
    /// Bytes of bounce memory of all queues.
    bounce_bytes: Arc<AtomicU64>,
}

impl<B: Backend> Encrypted<B> {
    /// Wraps `inner`, which must be empty or hold pages that were written with this cipher.
    pub fn new(inner: B, cipher: Arc<Cipher>) -> Encrypted<B> {
        Encrypted { inner, cipher, bounce_bytes: Arc::new(AtomicU64::new(0)) }
    }

    /// The wrapped backend.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// The key.
    pub fn cipher(&self) -> &Arc<Cipher> {
        &self.cipher
    }

    /// Bounce memory of its queues now, in bytes.
    pub fn bounce_bytes(&self) -> u64 {
        self.bounce_bytes.load(Ordering::Relaxed)
    }
}

impl<B: Backend> Encrypted<B> {
    /// Decrypts pages that were read.
    fn decrypted(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        read?;
        (0..).zip(into).for_each(|(n, page)| self.cipher.decrypt(first.plus(n), page));
        Ok(())
    }
}

impl<B: Backend> Backend for Encrypted<B> {
    type Queue = EncryptedQueue<B::Queue>;

    fn queue(&self, depth: u32) -> Result<Self::Queue, IoError> {
        let depth = depth.max(1);
        let no_memory = |errno: Errno| IoError::Device(errno.raw_os_error());
        let bounce = Bounce::new(depth, Arc::clone(&self.bounce_bytes)).map_err(no_memory)?;
        let op = Op { first: ANY, pages: core::ptr::null(), count: 0, done: 0, piece: 0, tag: 0 };
        Ok(EncryptedQueue {
            inner: self.inner.queue(depth)?,
            bounce,
            cipher: Arc::clone(&self.cipher),
            ops: vec![op; depth as usize].into(),
            free: (0..depth).rev().collect(),
            ended: Vec::with_capacity(depth as usize),
        })
    }
}

impl<B: Backend> Reads for Encrypted<B> {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.inner.read(slot, into)?;
        self.cipher.decrypt(slot, into);
        Ok(())
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let read = self.inner.read_run(first, into);
        self.decrypted(first, into, read)
    }

    fn begin_read(&self, first: Slot, into: &mut [PageBuf]) -> ReadBegun {
        match self.inner.begin_read(first, into) {
            ReadBegun::Over(result) => ReadBegun::Over(self.decrypted(first, into, result)),
            begun => begun,
        }
    }

    fn finish_read(&self, first: Slot, into: &mut [PageBuf], read: Result<(), IoError>) -> Result<(), IoError> {
        let read = self.inner.finish_read(first, into, read);
        self.decrypted(first, into, read)
    }

    fn doubt(&self, slot: Slot) {
        self.inner.doubt(slot);
    }
}

impl<B: Backend> Spaces for Encrypted<B> {
    fn capacity(&self) -> Option<u64> {
        self.inner.capacity()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn spaces(&self) -> usize {
        self.inner.spaces()
    }

    fn capacity_of(&self, space: usize) -> Option<u64> {
        self.inner.capacity_of(space)
    }

    fn name_of(&self, slot: Slot) -> &str {
        self.inner.name_of(slot)
    }

    fn arrange(&self, first: u32, spaces: SpaceSet) {
        self.inner.arrange(first, spaces)
    }

    fn is_quiet(&self, is_there: &dyn Fn(Slot) -> bool) -> bool {
        self.inner.is_quiet(is_there)
    }

    fn shut_space(&self, space: usize) {
        self.inner.shut_space(space)
    }

    fn close_space(&self, space: usize) {
        self.inner.close_space(space)
    }

    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        self.inner.give_back(first, count)
    }

    fn keep(&self, free: &dyn FreeSlots) -> Option<u64> {
        self.inner.keep(free)
    }

    fn news(&self, tell: &mut dyn FnMut(&str, CopyChange)) {
        self.inner.news(tell);
    }
}

impl<B: Backend> MemoryBudget for Encrypted<B> {
    fn own_memory(&self) -> Option<u64> {
        self.inner.own_memory()
    }

    fn takes_memory(&self) -> bool {
        self.inner.takes_memory()
    }

    fn allow_memory(&self, bytes: u64) {
        self.inner.allow_memory(bytes);
    }
}

/// Bounce memory of a queue.
#[derive(Debug)]
struct Bounce {
    base: NonNull<PageBuf>,
    bytes: usize,
    counter: Arc<AtomicU64>,
}

// SAFETY: plain memory that the value owns; the queue that has it is used by one thread at a time.
unsafe impl Send for Bounce {}

impl Bounce {
    fn new(writes: u32, counter: Arc<AtomicU64>) -> Result<Bounce, Errno> {
        let bytes = writes as usize * BOUNCE_PAGES as usize * size_of::<PageBuf>();
        // Populated at once: a write must not wait for memory when memory is short.
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so nothing that exists is replaced.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let bounce = Bounce { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, bytes, counter };
        bounce.counter.fetch_add(bytes as u64, Ordering::Relaxed);
        // SAFETY: our own mapping, which holds nothing yet.
        unsafe { madvise(base, bytes, Advice::LinuxWipeOnFork) }?;
        Ok(bounce)
    }

    /// The part of write `index`: [`BOUNCE_PAGES`] pages.
    fn part(&self, index: u32) -> *mut PageBuf {
        // SAFETY: `index` is below the number of writes that the mapping was made for.
        unsafe { self.base.as_ptr().add((index * BOUNCE_PAGES) as usize) }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        // SAFETY: mapped by `new` with this length; the queue that used it is gone. An error would leave it mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A write in flight.
#[derive(Clone, Copy, Debug)]
struct Op {
    first: Slot,
    pages: *const PageBuf,
    count: u32,
    /// Pages that the device has acknowledged.
    done: u32,
    /// Pages that it has now.
    piece: u32,
    tag: u64,
}

/// Writes to an [`Encrypted`] backend.
#[derive(Debug)]
pub struct EncryptedQueue<Q> {
    /// Declared before the bounce memory, which the device may read until this has been dropped.
    inner: Q,
    bounce: Bounce,
    cipher: Arc<Cipher>,
    ops: Box<[Op]>,
    /// Ops without a write.
    free: Vec<u32>,
    /// Completions of the inner queue that we have not looked at; room for all.
    ended: Vec<(u32, Result<(), IoError>)>,
}

// SAFETY: the pointers in `ops` are to pages that may be read from any thread until their completion is reaped:
// `start_write`'s contract.
unsafe impl<Q: Send> Send for EncryptedQueue<Q> {}

impl<Q: WriteQueue> EncryptedQueue<Q> {
    /// Encrypts the next pages of a write and hands them to the inner queue.
    fn start_piece(&mut self, index: u32) -> Result<(), ()> {
        let op = &mut self.ops[index as usize];
        op.piece = (op.count - op.done).min(BOUNCE_PAGES);
        let first = op.first.plus(u64::from(op.done));
        let part = self.bounce.part(index);
        for n in 0..op.piece {
            // SAFETY: below `count`, so one of the caller's pages, which stay readable until the completion.
            let from = unsafe { op.pages.add((op.done + n) as usize) };
            // SAFETY: as above.
            let from = unsafe { &*from };
            // SAFETY: below `BOUNCE_PAGES`, so in this write's part of the bounce memory.
            let to = unsafe { part.add(n as usize) };
            // SAFETY: this write has no piece with the device, so no other user of its part exists.
            let to = unsafe { &mut *to };
            self.cipher.encrypt(first.plus(u64::from(n)), from, to);
        }
        // SAFETY: the part stays as it is until the inner completion: its next use is the next piece, after that completion.
        // The mapping outlives the inner queue, which is dropped first.
        unsafe { self.inner.start_write(first, part, op.piece, u64::from(index)) }
    }

    /// Takes completions of the inner queue. Returns whether a write has ended, and whether another piece was started.
    fn deliver(&mut self, done: &mut dyn FnMut(u64, Result<(), IoError>)) -> (bool, bool) {
        let (mut delivered, mut started) = (false, false);
        while let Some((index, mut result)) = self.ended.pop() {
            let op = &mut self.ops[index as usize];
            op.done += op.piece;
            if result.is_ok() && op.done < op.count {
                match self.start_piece(index) {
                    Ok(()) => {
                        started = true;
                        continue;
                    }
                    // The inner queue has room: this write has just ended there. If that should be wrong, the write must end all
                    // the same.
                    Err(()) => result = Err(IoError::Device(Errno::BUSY.raw_os_error())),
                }
            }
            self.free.push(index);
            delivered = true;
            done(self.ops[index as usize].tag, result);
        }
        (delivered, started)
    }
}

impl<Q: WriteQueue> WriteQueue for EncryptedQueue<Q> {
    unsafe fn start_write(&mut self, first: Slot, pages: *const PageBuf, count: u32, tag: u64) -> Result<(), ()> {
        let index = self.free.pop().ok_or(())?;
        self.ops[index as usize] = Op { first, pages, count, done: 0, piece: 0, tag };
        self.start_piece(index).inspect_err(|()| self.free.push(index))
    }

    fn reap(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        let mut wait = wait;
        loop {
            let ended = &mut self.ended;
            self.inner.reap(wait, &mut |tag, result| ended.push((tag as u32, result)));
            let (delivered, started) = self.deliver(done);
            wait &= !delivered && self.in_flight() > 0;
            if !wait && !started {
                return;
            }
        }
    }

    /// Waits once: a write of several pieces has then moved on, and the caller comes again.
    fn reap_within(&mut self, ns: u64, done: &mut dyn FnMut(u64, Result<(), IoError>)) {
        let ended = &mut self.ended;
        self.inner.reap_within(ns, &mut |tag, result| ended.push((tag as u32, result)));
        if let (_, true) = self.deliver(done) {
            // Hands the next piece to the device.
            self.reap(false, done);
        }
    }

    fn in_flight(&self) -> u32 {
        (self.ops.len() - self.free.len()) as u32
    }

    fn tend(&mut self, free: &dyn FreeSlots, faults: &FaultsSeen) {
        self.inner.tend(free, faults);
    }
}

#[cfg(test)]
mod tests;
