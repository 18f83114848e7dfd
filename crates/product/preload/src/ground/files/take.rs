//! How a mapping of a file becomes managed: the head of [`super`] has the picture.

use super::{DECLINED, LEASED, Open, Part, SIGNAL, Table, locks, map_file, with};
use crate::ground::runtime::Runtime;
use crate::ground::{parts, report, thread};
use core::sync::atomic::Ordering;
use farshore_backend::mapped;
use farshore_config::Options;
use farshore_core::limits::{FILE_PAGE_BITS, MAPPED_FILES, PAGE_SIZE};
use farshore_core::page::PageRange;
use farshore_core::table::PageTable;
use farshore_sys::fd::{self, Fd};
use farshore_sys::lease::{self, About};
use farshore_sys::raw::{Errno, getpid, nr, syscall};
use farshore_sys::vm::{self, map, prot};

const PAGE: u64 = PAGE_SIZE as u64;
const MAP_SHARED_VALIDATE: u64 = 3;
/// Flags of mappings that stay the kernel's: grows down, `MAP_DENYWRITE` and `MAP_EXECUTABLE` (the loader's, for libraries), locked,
/// huge, synchronous. Nor is what is mapped over other mappings taken: until it is registered other threads might touch it.
const UNWANTED: u64 = map::ANONYMOUS | map::FIXED | map::STACK | 0x100 | 0x800 | 0x1000 | 0x2000 | 0x40000 | 0x80000;

/// File systems of which every change goes by an open file, and that keep leases: ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, ZFS, overlayfs. Files of
/// a tmpfs are memory as it is, and others may change what a network has.
const FILE_SYSTEMS: [u64; 7] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1, 0x794c_7630];

/// Whether a `mmap` with these arguments is to be managed, as far as can be told before.
pub fn may_take(options: &Options, args: &[u64; 6]) -> bool {
    let [_, len, protection, flags, fd, offset] = *args;
    if !options.files || len < options.threshold.bytes() || flags & UNWANTED != 0 || !offset.is_multiple_of(PAGE) {
        return false;
    }
    let rights = match flags & 0xf {
        map::PRIVATE => prot::READ | prot::WRITE,
        // What is written to a shared mapping goes to the file.
        map::SHARED | MAP_SHARED_VALIDATE => prot::READ,
        _ => return false,
    };
    protection & prot::READ != 0
        && protection & !rights == 0
        && !DECLINED.load(Ordering::Relaxed)
        && is_of_the_kind(fd as i32).is_some_and(|about| about.size.saturating_sub(offset) >= options.threshold.bytes())
}

/// What is known of an open file, if its mappings may be managed.
fn is_of_the_kind(fd: i32) -> Option<About> {
    let about = lease::about(fd).ok()?;
    let is_ours = || {
        let user = rustix::process::geteuid().as_raw();
        user == 0 || user == about.owner
    };
    let plain = about.is_regular && !about.is_dax && is_ours();
    (plain && lease::file_system(fd).is_ok_and(|kind| FILE_SYSTEMS.contains(&kind))).then_some(about)
}

/// The kernel has just mapped a file at `start`, as `args` say, of which [`may_take`] has said that it may be managed: it is from now
/// on, as far as the file goes, if there is a lease. Under the address-space lock. Returns the pages that are managed.
pub fn take_over(runtime: &Runtime, start: u64, args: &[u64; 6]) -> Option<PageRange> {
    let [_, len, protection, flags, fd, offset] = *args;
    if DECLINED.load(Ordering::Relaxed) || thread::current().is_some_and(thread::Thread::is_guest) {
        return None;
    }
    let (part, own, comes) = with(|table| {
        let (file, came) = table.file(fd as i32)?;
        let open = table.files[file].as_ref()?;
        let (first, end, own) = (offset / PAGE, open.size.div_ceil(PAGE), open.fd.raw());
        let pages = end.saturating_sub(first).min(len.div_ceil(PAGE));
        let range = PageRange::covering(start, pages * PAGE);
        let shared = flags & 0xf != map::PRIVATE;
        let fits = pages > 0 && end >> FILE_PAGE_BITS == 0 && PageTable::covers(range);
        if !fits {
            table.close_unless_used(file);
        }
        fits.then_some((Part { range, file, first, shared, left: false, protection: Some(protection) }, own, came))
    })?;
    if comes {
        runtime.note_own_fds();
    }
    if !replace(runtime, &part, protection, own) {
        with(|table| table.close_unless_used(part.file));
        return None;
    }
    runtime.engine.manage_file(part.range, part.slot());
    let range = part.range;
    // What lies behind the end of the file is the kernel's, and of our description too: when all is handed back it is one mapping again.
    let behind = PageRange { start: range.end, end: PageRange::covering(start, len).end };
    if !behind.is_empty() && !map_file(&part, behind, protection, own) {
        report::abort(format_args!("the kernel does not map the end of a file again at {:?}", behind.start));
    }
    with(|table| table.enter(part));
    Some(range)
}

/// Anonymous memory, registered, takes the place of the kernel's mapping of the file. False: the mapping is the kernel's, as it was.
fn replace(runtime: &Runtime, part: &Part, protection: u64, own: i32) -> bool {
    let range = part.range;
    let flags = map::PRIVATE | map::ANONYMOUS | map::FIXED | map::NORESERVE;
    // SAFETY: over a mapping that was made just now, of which the program does not know yet.
    let answer = unsafe { syscall(nr::MMAP, [range.start.addr(), range.bytes(), protection, flags, u64::MAX, 0]) };
    let replaced = answer as u64 == range.start.addr();
    if replaced {
        // SAFETY: advice about memory that has just been mapped for the program.
        let _ = unsafe { vm::madvise(range.start.addr(), range.bytes(), vm::advice::NOHUGEPAGE) };
        // SAFETY: faults on it are served as soon as its pages have words, and no code knows the address before.
        if unsafe { runtime.engine.kernel.uffd().register(range.start.addr(), range.bytes()) }.is_ok() {
            return true;
        }
    }
    // An error does not say that nothing has changed.
    if !map_file(part, range, protection, own) {
        report::abort(format_args!(
            "a mapping of a file was taken over at {:?}, and the kernel does not give it back",
            range.start
        ));
    }
    false
}

impl Table {
    /// The number of the file that `fd` has open, with a lease; and whether a descriptor has come for it.
    fn file(&mut self, fd: i32) -> Option<(usize, bool)> {
        let about = is_of_the_kind(fd)?;
        let is_it = |open: &Option<Open>| open.as_ref().is_some_and(|open| open.id == about.id);
        if let Some(number) = self.files.iter().position(is_it) {
            let open = self.files[number].as_mut()?;
            if !open.leased {
                // Pages of it are left, and nothing else.
                lease::take(&open.fd, SIGNAL, getpid()).ok()?;
                (open.leased, open.size) = (true, lease::about(open.fd.raw()).ok()?.size);
                mapped::enter(number, open.fd.raw(), open.size, open.direct);
            }
            // While somebody waits for the file it is not taken anew.
            return lease::is_held(open.fd.raw()).then_some((number, false));
        }
        let number = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        if number >= MAPPED_FILES {
            return None;
        }
        self.close_what_was_kept();
        let (open, comes) = locks::unless_locked(fd, || self.open(fd, about.id)).flatten()?;
        mapped::enter(number, open.fd.raw(), open.size, open.direct);
        if number == self.files.len() {
            self.files.push(None);
        }
        self.files[number] = Some(open);
        Some((number, comes))
    }

    /// Opens the file that `fd` has open, with a lease; and whether a descriptor has come for it.
    fn open(&mut self, fd: i32, id: (u64, u64)) -> Option<(Open, bool)> {
        let (own, direct) = open_for_reading(fd)?;
        let (own, comes) = self.place(own);
        LEASED.store(true, Ordering::Relaxed);
        let leased = lease::take(&own, SIGNAL, getpid()).ok().and_then(|()| lease::about(own.raw()).ok());
        // The size is what it is from here on.
        match leased.filter(|now| now.id == id) {
            Some(now) => Some((Open { fd: own, leased: true, id, size: now.size, direct }, comes)),
            None => {
                self.park(own);
                None
            }
        }
    }

    /// The descriptor under a number that the program does not come across, and whether that number was not ours before.
    fn place(&mut self, fd: Fd) -> (Fd, bool) {
        let Some(parked) = self.parked.pop() else { return (parts::raise(fd), true) };
        match lease::take_number(fd, parked.into_raw()) {
            Ok(fd) => (fd, false),
            Err((fd, _)) => (parts::raise(fd), true),
        }
    }

    /// A file without pages goes.
    fn close_unless_used(&mut self, file: usize) {
        if !self.parts.iter().any(|part| part.file == file) {
            self.close(file);
        }
    }
}

/// A description of our own, and whether it reads past the page cache: some file systems say only when they read that they do not.
fn open_for_reading(fd: i32) -> Option<(Fd, bool)> {
    #[repr(align(4096))]
    struct Aligned([u8; PAGE_SIZE]);
    if let Ok(direct) = lease::open_again(fd, true) {
        let mut page = Box::new(Aligned([0; PAGE_SIZE]));
        if fd::pread(&direct, &mut page.0, 0) != Err(Errno::EINVAL) {
            return Some((direct, true));
        }
    }
    lease::open_again(fd, false).ok().map(|fd| (fd, false))
}
