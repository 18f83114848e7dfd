//! What an `open` has brought: a device that may keep memory ([`super::keepers`]), or a switch that is refused.
//!
//! `/proc/PID/clear_refs` begins a look at which pages are written from then on ("soft-dirty", read from `/proc/PID/pagemap`; Boehm's collector
//! has a mode that does so). A page that was written and has left is absent there, and absent pages count as clean; one that
//! comes back is a new page, and counts as written. So it cannot be opened: `EACCES`, as where the kernel is hardened, and programs take
//! another way.

use super::super::buffers::{Memory, PinSet, Pins, errno, pin_local};
use super::super::transfer::kind::mode_and_device;

/// The mode of `clear_refs`: its owner may write, nobody may read.
const WRITE_ONLY: u32 = libc::S_IFREG | 0o200;

/// `open`, `creat`, `openat`, `open_by_handle_at`, `openat2`, `pidfd_getfd`.
pub(super) fn brings_a_descriptor(nr: u64) -> bool {
    matches!(nr, 2 | 85 | 257 | 304 | 437 | 438)
}

/// Looks at a descriptor that has just come; the call's result.
pub(super) fn look(mem: &impl Memory, fd: u64) -> i64 {
    if let Some((mode, device)) = mode_and_device(mem, fd) {
        super::keepers::came_as(mode, device);
        if mode == WRITE_ONLY && is_clear_refs(mem, fd) {
            mem.own(libc::SYS_close as u64, &[fd, 0, 0, 0, 0, 0]);
            return errno(libc::EACCES);
        }
    }
    fd as i64
}

/// Whether a file that is write-only is `clear_refs` of some process, under whatever name it was opened.
fn is_clear_refs(mem: &impl Memory, fd: u64) -> bool {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    const NAME: &[u8] = b"/clear_refs";
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    // struct statfs begins with the type.
    let mut system = [0u64; 15];
    let addr = pin_local(mem, &mut pins, &mut system);
    let known = mem.own(libc::SYS_fstatfs as u64, &[fd, addr, 0, 0, 0, 0]) == 0 && system[0] == PROC_SUPER_MAGIC;
    pins.release();
    if !known {
        return false;
    }
    // "/proc/self/fd/" and up to ten digits; the name behind it.
    let mut texts = ([0u8; 32], [0u8; 256]);
    texts.0[..14].copy_from_slice(b"/proc/self/fd/");
    let digits = (fd as u32).checked_ilog10().unwrap_or(0) + 1;
    (0..digits).for_each(|n| texts.0[(13 + digits - n) as usize] = b'0' + (fd as u32 / 10u32.pow(n) % 10) as u8);
    let path = pin_local(mem, &mut pins, &mut texts);
    let room = path + core::mem::offset_of!(([u8; 32], [u8; 256]), 1) as u64;
    let len = mem.own(libc::SYS_readlink as u64, &[path, room, 256, 0, 0, 0]);
    // Without a /proc in its place nobody can tell.
    len < 0 || texts.1.get(..len as usize).is_none_or(|name| name.ends_with(NAME))
}
