//! Memory for the tables of an engine, and for some numbers, that outlives the process: a memfd of which others have a descriptor too.
//!
//! ```text
//!  0          numbers, as whoever has it likes
//!  1 GiB      claims: whose bytes are in each stage          (a part of [`farshore_core::room`] each)
//!  1 TiB      stages
//!  16 TiB     extents
//!  32 TiB     leaves, by address
//! ```
//!
//! The file is sparse: what nobody has written takes no memory. Places are fixed, so whoever has the file finds everything without a word about it.

use crate::fd::Fd;
use crate::raw::Errno;
use crate::vm::{self, advice, map, prot};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use farshore_core::limits::{EXTENTS_MAX, PAGE_SIZE};
use farshore_core::room::{Part, Room};

/// How many numbers there are.
pub const NUMBERS: usize = 1 << 25;
const CLAIMS: u64 = 1 << 30;
const STAGES: u64 = 1 << 40;
const EXTENTS: u64 = 1 << 44;
const LEAVES: u64 = 1 << 45;
/// Bytes of the file, none of which is there at first.
pub const SIZE: u64 = 1 << 46;
/// The most bytes of an extent.
const EXTENT: usize = 8192;
/// Address space of all extents. Some that were made beforehand are never used.
const ALL_EXTENTS: u64 = (2 * EXTENTS_MAX * EXTENT) as u64;

const _: () = assert!(NUMBERS as u64 * 8 <= CLAIMS && EXTENTS + ALL_EXTENTS <= LEAVES);

/// The memory.
#[derive(Debug)]
pub struct Lasting {
    file: Fd,
    numbers: NonNull<u8>,
    extents: AtomicPtr<u8>,
}

// SAFETY: the mapping lives as long as the process, and what is in it is reached through atomics, or by the rules of `Room`.
unsafe impl Send for Lasting {}
// SAFETY: as for Send.
unsafe impl Sync for Lasting {}

/// Maps a part of the file, for as long as the process lives.
fn map_part(file: &Fd, offset: u64, bytes: u64) -> Result<NonNull<u8>, Errno> {
    let bytes = bytes.next_multiple_of(PAGE_SIZE as u64);
    // SAFETY: new memory, at a place that the kernel chooses.
    let base = unsafe { vm::mmap(0, bytes, prot::READ | prot::WRITE, map::SHARED | map::NORESERVE, file.raw(), offset) }?;
    // SAFETY: changes nothing but core dumps. May be refused by a sandbox, which does no harm.
    let _ = unsafe { vm::madvise(base, bytes, advice::DONTDUMP) };
    // Tables are sparse: where shared memory may have huge pages (shmem_enabled), each number would take 2 MiB.
    // SAFETY: as above. Refused by a kernel that has no huge pages.
    let _ = unsafe { vm::madvise(base, bytes, advice::NOHUGEPAGE) };
    NonNull::new(core::ptr::with_exposed_provenance_mut(base as usize)).ok_or(Errno::ENOMEM)
}

impl Lasting {
    /// The memory of this file, a memfd of [`SIZE`] bytes that nobody makes shorter.
    ///
    /// # Errors
    /// There is no address space.
    pub fn new(file: Fd) -> Result<Lasting, Errno> {
        let numbers = map_part(&file, 0, (NUMBERS * 8) as u64)?;
        Ok(Lasting { file, numbers, extents: AtomicPtr::new(core::ptr::null_mut()) })
    }

    /// The file.
    pub fn file(&self) -> &Fd {
        &self.file
    }

    /// The numbers, all of them 0 at first.
    pub fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: mapped by `new` with this length, aligned to pages, never unmapped; any bytes are atomic numbers.
        unsafe { core::slice::from_raw_parts(self.numbers.as_ptr().cast(), NUMBERS) }
    }
}

// SAFETY: the parts lie apart: claims and stages below the next area (checked), extents by number, leaves by address. Mappings are of pages, and stay. An extent's place is a multiple of its size.
unsafe impl Room for Lasting {
    fn part(&self, part: Part, number: u64, bytes: usize) -> Option<NonNull<u8>> {
        let (start, end) = match part {
            Part::Claims => (CLAIMS, STAGES),
            Part::Stages => (STAGES, EXTENTS),
            Part::Extent => (EXTENTS, EXTENTS + ALL_EXTENTS),
            Part::Leaf => (LEAVES, SIZE),
        };
        let bytes = bytes as u64;
        let offset = start.checked_add(number.checked_mul(bytes)?).filter(|offset| offset.saturating_add(bytes) <= end)?;
        if part != Part::Extent {
            return map_part(&self.file, offset, bytes).ok();
        }
        let mut all = self.extents.load(Ordering::Acquire);
        if all.is_null() {
            let fresh = map_part(&self.file, EXTENTS, ALL_EXTENTS).ok()?.as_ptr();
            // If another thread was faster, ours stays mapped, which takes nothing but addresses.
            all = match self.extents.compare_exchange(all, fresh, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => fresh,
                Err(other) => other,
            };
        }
        NonNull::new(all.wrapping_add((offset - EXTENTS) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_core::page::{Page, PageRange};
    use farshore_core::slots::{LeftSums, SlotMap};
    use farshore_core::table::PageTable;
    use farshore_core::word::{Claim, Left, Release, Slot};
    use rustix::fd::OwnedFd;

    fn memory() -> OwnedFd {
        let file = rustix::fs::memfd_create("tables", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, SIZE).unwrap();
        file
    }

    fn mapped(file: &OwnedFd) -> &'static Lasting {
        alloc_crate::boxed::Box::leak(alloc_crate::boxed::Box::new(Lasting::new(file.try_clone().unwrap().into()).unwrap()))
    }

    #[test]
    fn tables_take_no_huge_pages() {
        let file = memory();
        let first = mapped(&file);
        let number = first.numbers().as_ptr().addr();
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = text.split("VmFlags:").zip(text.split("VmFlags:").skip(1));
        let flags = mapping.filter(|(before, _)| before.lines().any(|line| line.starts_with(&format!("{number:x}-"))));
        let flags: Vec<_> = flags.map(|(_, flags)| flags.lines().next().unwrap().to_owned()).collect();
        assert!(flags.len() == 1 && flags[0].split(' ').any(|flag| flag == "nh"), "{flags:?}");
    }

    #[test]
    fn words_and_sums_are_found_again() {
        let file = memory();
        // At both ends of the address space.
        let ranges =
            [(1000, 2100), ((1 << 35) - 600, 1 << 35)].map(|(start, end)| PageRange { start: Page(start), end: Page(end) });
        let first = mapped(&file);
        let (table, mut slots) = (PageTable::in_room(Some(first)), SlotMap::new(None));
        slots.set_room(Some(first));
        let run = slots.reserve_run(0, 3).unwrap();
        slots.set_sum(run.first, 4711);
        for range in ranges {
            table.add(range);
            let word = table.page(range.start).unwrap().word;
            assert!(matches!(word.claim(), Claim::Owned { .. }));
            let _ = word.release(Release::Out { slot: run.first });
        }
        first.numbers()[7].store(99, Ordering::Relaxed);
        let stages = first.part(Part::Stages, 0, 3 * PAGE_SIZE).unwrap();
        // SAFETY: three pages.
        unsafe { stages.as_ptr().write_bytes(5, 3 * PAGE_SIZE) };

        let next = mapped(&file);
        let table = PageTable::in_room(Some(next));
        for range in ranges {
            assert!(table.word_for_unpin(range.start).is_none());
            table.recall(range);
            assert_eq!(table.word_for_unpin(range.start).unwrap().load().left(), Some((Left::Stored(run.first), false)));
            assert_eq!(table.word_for_unpin(range.start.plus(1)).unwrap().load().left(), Some((Left::Fresh, false)));
        }
        assert_eq!(LeftSums::new(next).of(run.first), Some(4711));
        assert_eq!(LeftSums::new(next).of(Slot::new(1 << 20).unwrap()), None);
        assert_eq!(next.numbers()[7].load(Ordering::Relaxed), 99);
        let stages = next.part(Part::Stages, 0, 3 * PAGE_SIZE).unwrap();
        // SAFETY: within three pages.
        assert_eq!(unsafe { stages.as_ptr().wrapping_add(2 * PAGE_SIZE + 9).read() }, 5);
        assert!(next.part(Part::Stages, 0, (EXTENTS - STAGES) as usize + PAGE_SIZE).is_none(), "no part reaches into another");
    }
}
