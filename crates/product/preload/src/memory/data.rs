//! Arrays with initial values (`.data`) become managed, when the process starts or wakes.
//!
//! They lie in private mappings of the program's file, which the kernel registers with no userfaultfd. So anonymous memory takes their place,
//! a piece of at most a granule at a time, while no thread of the program runs:
//!
//! 1. the bytes of the piece are copied to memory of ours, by the kernel: a page that cannot be read (its file is shorter now) is an error, no signal;
//! 2. anonymous memory comes at the same addresses, is registered, and is managed, untouched;
//! 3. each page that is not all zeros is pinned, which makes it present as a fault does, and filled. So pages leave meanwhile, and the limit holds.
//!
//! To the program such memory is a private mapping of which it has written every page: that is what the kernel makes of one that
//! is written, too. The file stays known ([`crate::ground::files`], *left*): pages that the program throws away (`MADV_DONTNEED`) have the
//! bytes of the file again, and are the kernel's. No lease is needed, since no page is read from the file later.
//!
//! What is left out is in the head of [`super::statics`]. So is a mapping whose file cannot be opened any more, or is another one; one with
//! attributes; and one on which a thread stands. A piece that cannot be copied or registered stays the kernel's, and so does what is behind it.

use super::{adopt, near, raw, surrender};
use crate::ground::mappings::{OfFile, of_files};
use crate::ground::net::net;
use crate::ground::runtime::Runtime;
use crate::ground::{files, report};
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;
use farshore_core::limits::{GRANULE_SIZE, PAGE_SIZE};
use farshore_core::page::{Access, PageRange};
use farshore_core::table::PageTable;
use farshore_net::buffers::{self, PinSet, Pins};
use farshore_sys::fd::{self, Fd};
use farshore_sys::lease;
use farshore_sys::own::map_own;
use farshore_sys::raw::nr;
use farshore_sys::vm::{self, map, prot};

const READ_WRITE: u64 = prot::READ | prot::WRITE;

/// Where the bytes of a piece are meanwhile.
struct Room<'r> {
    /// `/proc/self/mem`.
    memory: Fd,
    bytes: &'r mut [u8],
}

/// Takes over what there is of `data` (bytes, of plain mappings), by this text of `/proc/self/maps`. By the only thread of the program that runs. `stacks`: as
/// for [`super::take_stock`].
pub fn take_over(runtime: &Runtime, maps: &str, data: &[Range<u64>], stacks: &[u64]) {
    if data.is_empty() || surrender::is_done() {
        return;
    }
    let (Ok(memory), Ok(at)) = (fd::open(c"/proc/self/mem", fd::O_RDONLY), map_own(GRANULE_SIZE)) else { return };
    // SAFETY: mapped just now, for this alone, and unmapped below, when nobody has the slice any more.
    let mut room = Room { memory, bytes: unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), GRANULE_SIZE) } };
    let threshold = runtime.options.threshold.bytes();
    for mapping in of_files(maps) {
        for part in data {
            let range = part.start.max(mapping.range.start)..part.end.min(mapping.range.end);
            let is_large = range.end.saturating_sub(range.start) >= threshold;
            let has_stack = || stacks.iter().map(|&at| near(at)).any(|near| near.start < range.end && range.start < near.end);
            if is_large && !has_stack() {
                take(runtime, &mapping, PageRange::covering(range.start, range.end - range.start), &mut room);
            }
        }
    }
    // SAFETY: mapped above, and used by nobody any more.
    let _ = unsafe { vm::munmap(at.as_ptr() as u64, GRANULE_SIZE as u64) };
}

fn take(runtime: &Runtime, mapping: &OfFile, range: PageRange, room: &mut Room<'_>) {
    let Ok(file) = fd::open(&mapping.path, fd::O_RDONLY | fd::O_NONBLOCK) else { return };
    let is_it = lease::about(file.raw()).is_ok_and(|about| about.id == mapping.id && about.is_regular);
    let offset_of = |piece: PageRange| mapping.offset + piece.start.addr() - mapping.range.start;
    // The table has a descriptor of its own.
    let Some(own) = is_it.then(|| fd::duplicate(&file).ok()).flatten() else { return };
    if !PageTable::covers(range) || !files::enter_left(runtime, range, offset_of(range) / PAGE_SIZE as u64, READ_WRITE, own) {
        return;
    }
    for piece in range.by_granule() {
        if !take_piece(runtime, piece, offset_of(piece), &file, room) {
            return files::forget(PageRange { start: piece.start, end: range.end });
        }
    }
}

/// False: the piece is the kernel's, as it was.
fn take_piece(runtime: &Runtime, piece: PageRange, offset: u64, file: &Fd, room: &mut Room<'_>) -> bool {
    let bytes = &mut room.bytes[..piece.bytes() as usize];
    if fd::pread(&room.memory, bytes, piece.start.addr()) != Ok(bytes.len()) {
        return false;
    }
    let pages = || piece.iter().zip(bytes.chunks_exact(PAGE_SIZE));
    let map_here = |flags, fd, offset| {
        let flags = map::PRIVATE | map::FIXED | flags;
        raw(nr::MMAP, &[piece.start.addr(), piece.bytes(), READ_WRITE, flags, fd, offset]) as u64 == piece.start.addr()
    };
    if !map_here(map::ANONYMOUS | map::NORESERVE, u64::MAX, 0) || !adopt(runtime, piece) {
        // An error does not say that nothing has changed.
        if !map_here(0, file.raw() as u64, offset) {
            report::abort(format_args!("the kernel does not give data of the program back at {:?}", piece.start));
        }
        // SAFETY: as below, and no page is managed.
        pages().for_each(|(page, bytes)| unsafe { fill(page.addr(), bytes) });
        return false;
    }
    for (page, bytes) in pages().filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0)) {
        let mut set = PinSet::new();
        let mut pins = Pins::new(net(), &mut set);
        if !buffers::pin_all(net(), &mut pins, page.addr(), PAGE_SIZE as u64, Access::Write) {
            // Why was said.
            report::abort(format_args!("data of the program at {page:?} has no place any more"));
        }
        // SAFETY: a page of the program's, which nobody else uses now. It is present and stays so, since it is pinned.
        unsafe { fill(page.addr(), bytes) };
    }
    true
}

/// # Safety
/// A page that can be written lies at `at`, whose bytes nobody else uses.
unsafe fn fill(at: u64, bytes: &[u8]) {
    // SAFETY: the caller's promise; `bytes` are ours, and a page at most.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), with_exposed_provenance_mut::<u8>(at as usize), bytes.len()) };
}
