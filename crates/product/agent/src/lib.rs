//! `libfarshore_agent.so`: hands the memory of a guest over to a manager, from inside an unmodified QEMU.
//!
//! ```text
//!  QEMU maps its guest's memory: mmap(…, MAP_SHARED, memfd)
//!    └─▶ mmap of this library ─▶ the kernel maps it ─▶ hand-over: userfaultfd, file, address ─▶ the manager of `farshore vm run`
//!                                                        │ answered: QEMU goes on, with memory that is managed
//!                                                        └ refused: the mapping goes, and QEMU is told that it cannot have it
//! ```
//!
//! `farshore vm run` preloads it. The dynamic linker then takes `mmap`, `munmap` and what opens files from here for QEMU's own calls. All calls are passed on to the kernel as they are; those that
//! map or unmap the memory of a guest are told to the manager besides, in the binary form of Cloud Hypervisor's protocol ([`wire`]), before QEMU hears that they are done.
//!
//! # What always holds
//!
//! 1. **No guest runs unmanaged.** Memory that cannot be handed over is not mapped.
//! 2. **The userfaultfd outlives the manager.** It stays open here. If the manager is killed, whoever needs a page that is out waits for the next one, or for ever, and never finds zeros.
//! 3. **The manager hears before memory goes.** A mapping that was handed over is taken from the manager before it is unmapped, and only as a whole: nothing else is mapped over a part of it. It is neither moved, nor mapped a second time.
//! 4. **A child of QEMU's tells nothing**: it has the socket by inheritance, and none of the memory.
//! 5. **Nobody writes past QEMU's page tables** ([`past`]). A disk with direct I/O and a device that is passed through write to pages that the kernel has found before, and another process that maps the memory
//!    finds zeros where a page is out. So files are not opened for direct I/O, devices such as VFIO are not opened, and the memory's file goes to nobody else.
//!
//! Which mapping is a guest's memory is known by its file: a memfd with the name that QEMU gives those of `memory-backend-memfd`, seen when it is made, or found in `/proc`.

mod guest;
mod past;
mod wire;

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::io::Write as _;

use crate::guest::{Refused, Request};

/// What libc's `mmap` returns when it fails.
const FAILED: *mut c_void = libc::MAP_FAILED;

/// Maps memory, as the kernel does.
///
/// # Safety
/// As for `mmap(2)`: with `MAP_FIXED` whatever was there before is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's own call, to whom its conditions apply.
    let pass = || unsafe { libc::syscall(libc::SYS_mmap, address, bytes, prot, flags, fd, offset) as *mut c_void };
    if flags & libc::MAP_FIXED != 0
        && let Err(why) = guest::leaves(address as u64, bytes as u64)
    {
        return refuse(&why);
    }
    let is_shared = matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    if flags & libc::MAP_ANONYMOUS != 0 || prot == libc::PROT_NONE || !guest::is_memory(fd) {
        return pass();
    }
    if !is_shared || prot & libc::PROT_WRITE == 0 {
        return refuse(&Refused::new(
            "the guest's memory is not mapped privately, or only to be read: it would have no limit, and put zeros where a page is out; give the memory-backend-memfd share=on",
        ));
    }
    let there = pass();
    if there == FAILED {
        return FAILED;
    }
    let request = Request { address: there as u64, bytes: (bytes as u64).next_multiple_of(4096), offset: offset as u64, fd };
    match guest::hand_over(&request) {
        Ok(()) => there,
        Err(why) => {
            // SAFETY: the mapping that was just made, of which nobody knows yet.
            unsafe { libc::syscall(libc::SYS_munmap, there, bytes) };
            refuse(&why)
        }
    }
}

/// The same by the name under which a program with large files calls it. (A `long` has 64 bits here.)
///
/// # Safety
/// As for [`mmap`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { mmap(address, bytes, prot, flags, fd, offset) }
}

/// Unmaps memory, as the kernel does.
///
/// # Safety
/// As for `munmap(2)`: whatever is there is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: usize) -> c_int {
    match guest::leaves(address as u64, bytes as u64) {
        // SAFETY: the caller's own call, to whom its conditions apply.
        Ok(()) => unsafe { libc::syscall(libc::SYS_munmap, address, bytes) as c_int },
        Err(why) => {
            refuse(&why);
            -1
        }
    }
}

/// Gives the kernel advice. That the guest's memory should have huge pages is kept from it: no part of one can be taken out, and the manager would have to leave them in memory.
///
/// # Safety
/// As for `madvise(2)`: some advice takes what is there away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    if advice == libc::MADV_HUGEPAGE && guest::is_managed(address as u64, bytes as u64) {
        return 0;
    }
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) as c_int }
}

/// Moves a mapping, or changes its size, as the kernel does.
///
/// # Safety
/// As for `mremap(2)`: what was at either place is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(old: *mut c_void, old_bytes: usize, bytes: usize, flags: c_int, new: *mut c_void) -> *mut c_void {
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    // With no bytes it is mapped a second time.
    if guest::is_managed(old as u64, old_bytes.max(1) as u64) || is_fixed && guest::is_managed(new as u64, bytes as u64) {
        return refuse(&Refused::new("the guest's memory has a manager, so it is not moved, and keeps its size: unmap it first"));
    }
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { libc::syscall(libc::SYS_mremap, old, old_bytes, bytes, flags, new) as *mut c_void }
}

/// Makes a memfd, as the kernel does.
///
/// # Safety
/// As for `memfd_create(2)`: `name` is a string that ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the caller's own call, to whom its conditions apply.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name, flags) as c_int };
    if fd >= 0 {
        // SAFETY: the kernel has read it just now.
        guest::is_made(unsafe { CStr::from_ptr(name) }, fd);
    }
    fd
}

/// Opens a file, as the kernel does.
///
/// # Safety
/// As for `open(2)`: `path` is a string that ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// The same by its name for large files.
///
/// # Safety
/// As for [`open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// Opens a file, as the kernel does. (Callers that make no file pass no mode. Then what is in its place is the kernel's to ignore.)
///
/// # Safety
/// As for `openat(2)`: `path` is a string that ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's string, if it is one; the kernel looks at a wrong pointer itself.
    let name = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    if let Some(why) = name.and_then(|name| past::opens(name, flags)) {
        refuse(&why);
        return -1;
    }
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) as c_int }
}

/// The same by its name for large files.
///
/// # Safety
/// As for [`openat`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { openat(folder, path, flags, mode) }
}

/// Does what `fcntl(2)` does.
///
/// # Safety
/// As for `fcntl(2)`: `argument` is what the command takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if command == libc::F_SETFL
        && let Some(why) = past::becomes_direct(fd, argument as c_int)
    {
        refuse(&why);
        return -1;
    }
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) as c_int }
}

/// The same by its name for large files.
///
/// # Safety
/// As for [`fcntl`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { fcntl(fd, command, argument) }
}

/// Sends a message, as the kernel does.
///
/// # Safety
/// As for `sendmsg(2)`: `message` is one, with all that it points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's message, with its control data.
    if let Some(why) = unsafe { past::sends_memory(message) } {
        refuse(&why);
        return -1;
    }
    // SAFETY: the caller's own call, to whom its conditions apply.
    unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) as isize }
}

/// Says why a call is refused, and has it fail.
fn refuse(why: &Refused) -> *mut c_void {
    // Where nobody reads, nothing is said: QEMU must not end for it.
    _ = writeln!(std::io::stderr(), "farshore: {why}");
    // SAFETY: it takes nothing, and gives the place of this thread's number.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: libc's own place, which lives as long as this thread, and which nobody else writes to.
    unsafe { *place = libc::EACCES };
    FAILED
}
