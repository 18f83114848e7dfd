//! Gives room back that is no longer needed: holes in files, `BLKDISCARD` on devices, whole extents.
//!
//! Called by the drainer's thread, which has taken the extent out of circulation: no thread reads or writes there meanwhile. A
//! piece of a device that is a region of its own becomes free for the other processes of the family, whether or not the device
//! can discard.

use super::{Files, Piece, io_error};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::seams::IoError;
use farshore_sys::fd::discard;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

impl Files {
    /// Gives back the `count` pages from `slot` on, which are no longer needed.
    pub(super) fn give_back(&self, slot: u64, count: u32) -> Result<(), IoError> {
        let mut done = 0;
        while done < count {
            let piece = self.piece(slot + u64::from(done), count - done);
            self.give_piece(piece)?;
            done += piece.pages;
        }
        Ok(())
    }

    fn give_piece(&self, piece: Piece) -> Result<(), IoError> {
        let (_writer, file) = self.places.writer(piece.file)?;
        let len = u64::from(piece.pages) * PAGE_SIZE as u64;
        let Some(regions) = self.places.regions(piece.file) else {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            loop {
                match fallocate(file, hole, piece.offset, len) {
                    Err(Errno::INTR) => {}
                    punched => return punched.map_err(io_error),
                }
            }
        };
        let Some(at) = regions.find(piece.offset) else { return Ok(()) };
        let discarded = discard(file, at, len).map_err(|why| IoError::Device(why.0));
        if regions.give_back(piece.offset, len) { Ok(()) } else { discarded }
    }
}
