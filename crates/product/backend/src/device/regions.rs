//! Which part of a device a layer's pages lie in.
//!
//! A device is divided into at most [`REGIONS_MAX`] regions of whole extents. A layer takes one when it first writes there: it
//! locks a byte of a file in memory, which all processes of the family have, with a description that is the layer's own (an open
//! file description lock). So the kernel frees the regions of a layer when the last process has closed that description: the
//! layer's own process and all that it has forked, which read there. `kill -9` is an end like any other.
//!
//! # No write comes late
//!
//! A write that a ring has begun may reach the device after the end of its process. So each ring has the description in its table
//! of files, beside the device, and the kernel gives that table back when the last of the ring's writes has ended. A thread that
//! writes without a ring keeps its process' descriptors open until the write has ended.
//!
//! Nothing holds a region for what a process has sent to a server: kernels and the network bring it there after the process' end.
//! So a region of an export *rests* ([`Regions::resting`]) when its layer has ended without giving it back. The file in memory has a
//! mark for each region: 0 before its first layer and after one that gave it back, [`IN_USE`] while and after a layer has it. The
//! layer that finds such a region without a lock writes the time there, and takes it when it has rested, or when there is no
//! other: the engine's sums tell what a late write has changed.
//!
//! # Protocol
//!
//! `table[n]` says where the layer's region `n` is, plus 1; 0: nowhere yet. The thread that claims the region writes it
//! ([`Regions::claim`]); it may make system calls. Any thread reads it, without a lock, once a page was written there. Several
//! threads may claim at a time: `mine` says which bytes the description has locked (it could lock them again), and the table
//! takes one answer only.

use crate::sleep;
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::IoError;
use farshore_sys::fd::{lock_byte, unlock_byte};
use farshore_sys::raw::Errno;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::{pread, pwrite};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Most regions of a device.
pub(crate) const REGIONS_MAX: u64 = 4096;
/// Bytes of the smallest region: an extent, within which each transfer stays.
const SMALLEST: u64 = (EXTENT_SLOTS * PAGE_SIZE) as u64;
const CLOSED: RawFd = -1;
/// The mark of a region that a layer has, or had when it ended.
const IN_USE: u64 = u64::MAX;

/// The regions of one layer on one device.
pub(crate) struct Regions {
    /// Bytes of a region.
    bytes: u64,
    table: Box<[AtomicU32]>,
    mine: Box<[AtomicBool]>,
    /// The region at which to look first.
    next: AtomicU32,
    /// The layer's description.
    claims: AtomicI32,
    /// How long a region rests, in ns.
    rest_ns: u64,
    /// Called when the description is closed.
    closed: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claimed = self.table.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
        f.debug_struct("Regions")
            .field("bytes", &self.bytes)
            .field("of", &self.table.len())
            .field("claimed", &claimed)
            .finish_non_exhaustive()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where in the file the mark of a region is.
fn mark_at(region: u32) -> u64 {
    u64::from(region) * size_of::<u64>() as u64
}

/// Bytes of a region of a device with this many bytes.
fn region_bytes(device: u64) -> u64 {
    device.div_ceil(REGIONS_MAX).next_power_of_two().max(SMALLEST)
}

impl Regions {
    /// The regions of a device with this many bytes, none of them claimed. `claims` is a description that no other layer
    /// has.
    pub(crate) fn new(device: u64, claims: OwnedFd, closed: impl Fn() + Send + Sync + 'static) -> Regions {
        let bytes = region_bytes(device);
        // Bytes left over at the end are not used: a region that is cut would end within a write.
        let count = (device / bytes) as usize;
        Regions {
            bytes,
            table: (0..count).map(|_| AtomicU32::new(0)).collect(),
            mine: (0..count).map(|_| AtomicBool::new(false)).collect(),
            next: AtomicU32::new(0),
            claims: AtomicI32::new(claims.into_raw_fd()),
            rest_ns: 0,
            closed: Box::new(closed),
        }
    }

    /// The same, where writes may come late: a region of a layer that has ended rests for this long, in ns.
    pub(crate) fn resting(mut self, rest_ns: u64) -> Regions {
        self.rest_ns = rest_ns;
        self
    }

    /// The description, for rings and for the list of our descriptors.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        Some(self.claims.load(Ordering::Acquire)).filter(|&fd| fd != CLOSED)
    }

    /// Bytes that all regions have together.
    pub(crate) fn whole(&self) -> u64 {
        self.table.len() as u64 * self.bytes
    }

    fn at(&self, offset: u64) -> Option<(&AtomicU32, u64)> {
        Some((self.table.get((offset / self.bytes) as usize)?, offset % self.bytes))
    }

    /// Where on the device the layer's byte `offset` lies, if its region was claimed.
    pub(crate) fn find(&self, offset: u64) -> Option<u64> {
        let (place, within) = self.at(offset)?;
        let region = place.load(Ordering::Acquire).checked_sub(1)?;
        Some(u64::from(region) * self.bytes + within)
    }

    /// As [`Regions::find`], but claims a region if there is none yet. For a thread that may make system calls.
    ///
    /// # Errors
    /// `Full` when all regions are taken.
    pub(crate) fn claim(&self, offset: u64) -> Result<u64, IoError> {
        let Some((place, within)) = self.at(offset) else { return Err(IoError::Full) };
        if place.load(Ordering::Acquire) == 0 {
            let region = self.take()?;
            // Release: pairs with `find`'s Acquire. If another thread was faster, its region counts, and this one goes
            // back.
            if place.compare_exchange(0, region + 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
                self.give(region);
            }
        }
        let region = place.load(Ordering::Acquire) - 1;
        Ok(u64::from(region) * self.bytes + within)
    }

    /// Claims a region that no layer has.
    fn take(&self) -> Result<u32, IoError> {
        let Some(fd) = self.fd() else { return Err(IoError::Device(Errno::EBADF.0)) };
        // SAFETY: open until `close`, before which the last thread has stopped beginning writes here.
        let claims = unsafe { BorrowedFd::borrow_raw(fd) };
        let rested = self.take_if(claims, |region| self.has_rested(claims, region))?;
        let taken = if rested.is_none() && self.rest_ns != 0 { self.take_if(claims, |_| true)? } else { rested };
        taken.ok_or(IoError::Full)
    }

    /// Claims a region that no layer has, of those that `suits` says may be had.
    fn take_if(&self, claims: BorrowedFd<'_>, suits: impl Fn(u32) -> bool) -> Result<Option<u32>, IoError> {
        let count = self.mine.len() as u32;
        let from = self.next.load(Ordering::Relaxed);
        for region in (0..count).map(|n| (from + n) % count) {
            // SeqCst is not needed: one swap decides which thread of this process may ask for the region.
            if self.mine[region as usize].swap(true, Ordering::AcqRel) {
                continue;
            }
            match lock_byte(claims, region) {
                Ok(()) if suits(region) => {
                    self.mark(claims, region, IN_USE);
                    self.next.store((region + 1) % count, Ordering::Relaxed);
                    return Ok(Some(region));
                }
                Ok(()) => self.unlock(claims, region),
                Err(why) => {
                    self.mine[region as usize].store(false, Ordering::Release);
                    if !matches!(why, Errno::EAGAIN | Errno::EACCES) {
                        return Err(IoError::Device(why.0));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether nothing that was sent to this region, of which we have the lock, is still on its way.
    fn has_rested(&self, claims: BorrowedFd<'_>, region: u32) -> bool {
        if self.rest_ns == 0 {
            return true;
        }
        let mut mark = [0; size_of::<u64>()];
        // Behind the end of the file nothing was marked yet.
        let _ = pread(claims, &mut mark[..], mark_at(region));
        let now = sleep::now_ns();
        match u64::from_ne_bytes(mark) {
            0 => true,
            IN_USE => {
                self.mark(claims, region, now);
                false
            }
            since => now.saturating_sub(since) >= self.rest_ns,
        }
    }

    /// Where it fails (a program may bound the length of its files), the region does not rest.
    fn mark(&self, claims: BorrowedFd<'_>, region: u32, mark: u64) {
        if self.rest_ns != 0 {
            let _ = pwrite(claims, &mark.to_ne_bytes(), mark_at(region));
        }
    }

    /// The layer no longer needs these bytes, and no thread reads or writes there. Returns whether that was a whole region, which
    /// any process of the family may have now.
    pub(crate) fn give_back(&self, offset: u64, len: u64) -> bool {
        let Some((place, 0)) = self.at(offset).filter(|_| len == self.bytes) else { return false };
        if let Some(region) = place.swap(0, Ordering::AcqRel).checked_sub(1) {
            self.give(region);
        }
        true
    }

    fn give(&self, region: u32) {
        if let Some(fd) = self.fd() {
            // SAFETY: as in `take`.
            let claims = unsafe { BorrowedFd::borrow_raw(fd) };
            self.mark(claims, region, 0);
            self.unlock(claims, region);
        }
    }

    fn unlock(&self, claims: BorrowedFd<'_>, region: u32) {
        if unlock_byte(claims, region).is_ok() {
            self.mine[region as usize].store(false, Ordering::Release);
        }
    }

    /// The layer no longer uses the device: its regions are free, unless a forked child has the description open.
    pub(crate) fn close(&self) {
        let fd = self.claims.swap(CLOSED, Ordering::AcqRel);
        if fd != CLOSED {
            // SAFETY: the descriptor is ours, and no thread writes here any more.
            unsafe { rustix::io::close(fd) };
            (self.closed)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_sys::fd::{O_RDWR, describe};
    use rustix::fd::{AsFd, FromRawFd};
    use rustix::fs::{MemfdFlags, memfd_create};

    const MIB: u64 = 1 << 20;

    /// Layers on one device, each with a description of its own.
    fn layers<const N: usize>(device: u64) -> [Regions; N] {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        core::array::from_fn(|_| {
            let own = describe(file.as_fd(), O_RDWR).unwrap();
            // SAFETY: given away by `into_raw`.
            Regions::new(device, unsafe { OwnedFd::from_raw_fd(own.into_raw()) }, || {})
        })
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        assert_eq!(
            [1, 2 * MIB, 8 << 30, (8 << 30) + 1, 1 << 40].map(region_bytes),
            [2 * MIB, 2 * MIB, 2 * MIB, 4 * MIB, 256 * MIB]
        );
        for device in (0..50).map(|n| (1u64 << 20) + n * n * n * 1_234_567_891) {
            assert!(device / region_bytes(device) <= REGIONS_MAX);
            assert_eq!(region_bytes(device) % SMALLEST, 0);
        }
    }

    #[test]
    fn layers_have_regions_of_their_own() {
        let [one, other] = layers(16 * MIB + 77);
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..4 {
            for layer in [&one, &other] {
                let offset = (7 - n) * 2 * MIB + 4096;
                assert_eq!(layer.find(offset), None);
                let at = layer.claim(offset).unwrap();
                assert_eq!((layer.find(offset), layer.claim(offset)), (Some(at), Ok(at)));
                assert!(at % (2 * MIB) == 4096 && at + 4096 < 16 * MIB && seen.insert(at), "{at}");
            }
        }
        assert_eq!(
            (one.claim(0), other.claim(0), one.claim(16 * MIB)),
            (Err(IoError::Full), Err(IoError::Full), Err(IoError::Full))
        );
        // One layer goes: its regions are free.
        one.close();
        assert!((0..4).all(|n| other.claim(n * 2 * MIB).is_ok_and(|at| seen.contains(&(at + 4096)))));
        assert_eq!(one.claim(0), Err(IoError::Device(Errno::EBADF.0)));
    }

    #[test]
    fn a_whole_region_that_was_given_back_is_anybodys() {
        let [one, other] = layers(4 * MIB);
        let places = [one.claim(0), one.claim(2 * MIB)];
        assert!(!one.give_back(0, 4096) && other.claim(0) == Err(IoError::Full));
        assert!(one.give_back(2 * MIB, 2 * MIB));
        assert_eq!((one.find(2 * MIB), one.find(0).map(Ok)), (None, Some(places[0])));
        assert_eq!((other.claim(0), one.claim(2 * MIB)), (places[1], Err(IoError::Full)));
    }

    #[test]
    fn a_description_that_a_child_has_keeps_the_regions() {
        let [one, other] = layers(4 * MIB);
        assert!(one.claim(0).is_ok() && one.claim(2 * MIB).is_ok());
        // As a fork duplicates it.
        // SAFETY: the descriptor is open.
        let childs = rustix::io::dup(unsafe { BorrowedFd::borrow_raw(one.fd().unwrap()) }).unwrap();
        one.close();
        assert_eq!(other.claim(0), Err(IoError::Full));
        drop(childs);
        assert!(other.claim(0).is_ok());
    }

    #[test]
    fn a_region_whose_layer_has_ended_rests() {
        let [one, other, third] = layers(8 * MIB).map(|layer| layer.resting(u64::MAX));
        let places = [one.claim(0).unwrap(), one.claim(2 * MIB).unwrap()];
        // One is given back, the other is not.
        assert!(one.give_back(0, 2 * MIB));
        one.close();
        let taken = [0, 1, 2].map(|n| other.claim(n * 2 * MIB).unwrap());
        assert!(taken.contains(&places[0]) && !taken.contains(&places[1]), "{places:?} {taken:?}");
        assert_eq!(other.claim(6 * MIB), Ok(places[1]), "there is no other");
        // Who has rested may be had as any other.
        other.close();
        let third = third.resting(1);
        assert_eq!(third.claim(0), Ok(0), "there is no other: they were just found");
        assert_eq!(third.claim(2 * MIB), Ok(2 * MIB));
    }

    #[test]
    fn threads_that_claim_at_a_time_agree() {
        let [layer, other] = layers(128 * MIB);
        let all: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let claim = || (0..32).map(|n| layer.claim(n * 2 * MIB).unwrap()).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|places| *places == all[0]));
        assert_eq!(all[0].iter().collect::<std::collections::BTreeSet<_>>().len(), 32);
        // Regions that were taken twice for one place were given back.
        assert!((0..32).all(|n| other.claim(n * 2 * MIB).is_ok()));
    }
}
