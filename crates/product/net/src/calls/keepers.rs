//! Descriptors whose driver may keep the program's memory: pin it, and write to it after the call has returned.
//!
//! `cudaHostRegister`, GPU "userptr", RDMA's memory regions, vhost-vdpa, and whatever is written next: a driver takes pages by
//! `pin_user_pages` and gives them to a device. An evicted page leaves the device writing to a page that is nobody's. No list of requests is
//! complete, and what a request is about may lie behind any number of pointers. So it is the kind of the descriptor that decides:
//!
//! | descriptor | its requests |
//! |---|---|
//! | file, directory, block device, socket, pipe; terminal; the devices in [`KNOWN`] | end with the call: what they touch is pinned meanwhile (`commands.rs`, which refuses a few) |
//! | `anon_inode` (epoll, perf, timers, …) | the same for the types in [`ANONYMOUS`] |
//! | every other character device, and other requests of `anon_inode` | before the first request or write all of the program's memory becomes the kernel's, for good ([`Memory::surrender`]); or it is refused if that does not fit into the limit |
//!
//! Terminal requests (`0x54..`, without a size) and the ones that the kernel answers itself are let through everywhere: `isatty` is asked
//! of all sorts of descriptors.
//!
//! A `write` to such a device may be a request as well (RDMA). To ask at every write what the descriptor is would cost
//! too much. So descriptors are looked at when they come (opened, received, inherited), and writes only if one of them was of this kind.

use super::super::buffers::{Args, Memory, PinSet, Pins, errno, pin_local, read_user};
use super::super::table::{Flow, Transfer};
use super::super::transfer::kind::mode_and_device;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::fd;

/// Character devices that keep nothing: major number, and the minor ones (`None`: all).
///
/// Memory and random numbers; terminals; misc (mouse, watchdog, rtc, nvram, hwrng, tun, cuse, udev's input, microcode, hpet, fuse, kvm, device mapper,
/// loop, autofs, btrfs, snapshot); input; sound; frame buffers; video (`commands.rs` refuses its user pointers); USB file system (its
/// asynchronous requests are refused); i2c; ppp; msr and cpuid. Of KVM the request that makes a guest is refused.
const KNOWN: &[(u32, Option<&[u32]>)] = &[
    (1, None),
    (4, None),
    (5, None),
    (7, None),
    (10, Some(&[1, 130, 135, 144, 183, 184, 200, 203, 223, 227, 228, 229, 231, 232, 234, 235, 236, 237])),
    (13, None),
    (14, None),
    (29, None),
    (81, None),
    (89, None),
    (108, None),
    (116, None),
    (136, None),
    (137, None),
    (138, None),
    (139, None),
    (140, None),
    (141, None),
    (142, None),
    (143, None),
    (166, None),
    (188, None),
    (189, None),
    (202, None),
    (203, None),
    (204, None),
    (207, None),
    (216, None),
    (229, None),
];

/// Known devices that may hand memory to somebody by a request which is refused (`commands.rs`), unless nobody looked at it: KVM, video and USB.
const HAND_ON: &[(u32, Option<&[u32]>)] = &[(10, Some(&[232])), (81, None), (189, None)];

/// Types of requests that descriptors without a file have: timers and what all answer (`T`), perf (`$`), seccomp's listeners (`!`), epoll,
/// pidfd, file flags (`f`), sync files (`>`) and DMA buffers (`b`).
const ANONYMOUS: [u64; 8] = [0x54, 0x24, 0x21, 0x8a, 0xff, 0x66, 0x3e, 0x62];

/// A descriptor of this kind has come into the process.
static CAME: AtomicBool = AtomicBool::new(false);

/// Requests in rings may open such descriptors, and nobody looks.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether writes must be looked at.
#[inline(always)]
pub fn are_there() -> bool {
    CAME.load(Ordering::Relaxed) || REQUESTED.load(Ordering::Relaxed)
}

/// Requests in rings may open such devices.
pub(crate) fn requests_come() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Before a request in a ring writes to `fd`: whether it must not.
pub(crate) fn refuses_request(mem: &impl Memory, fd: u64) -> bool {
    keeper(mem, fd).is_some_and(|device| !mem.surrender(numbers(device)))
}

/// The numbers of a device.
fn numbers(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00))
}

/// Whether a character device of these numbers may keep memory.
fn may_keep(device: u32) -> bool {
    !is_among(KNOWN, device)
}

fn is_among(list: &[(u32, Option<&[u32]>)], device: u32) -> bool {
    let (major, minor) = numbers(device);
    list.iter().any(|(known, minors)| *known == major && minors.is_none_or(|minors| minors.contains(&minor)))
}

/// The device, if `fd` is a character device that may keep memory.
fn keeper(mem: &impl Memory, fd: u64) -> Option<u32> {
    let (mode, device) = mode_and_device(mem, fd)?;
    (mode & libc::S_IFMT == libc::S_IFCHR && may_keep(device)).then_some(device)
}

/// Before an `ioctl`: the error with which it is refused.
pub(super) fn before_request(mem: &impl Memory, fd: u64, request: u64) -> Option<i64> {
    if request >> 8 == 0x54 {
        return None;
    }
    let (mode, device) = mode_and_device(mem, fd)?;
    let keeps = match mode & libc::S_IFMT {
        libc::S_IFCHR => may_keep(device),
        0 => !ANONYMOUS.contains(&((request >> 8) & 0xff)),
        _ => false,
    };
    (keeps && !mem.surrender(numbers(device))).then_some(errno(libc::ENOTTY))
}

/// Before a transfer: the error with which it is refused.
#[inline]
pub(super) fn before_transfer(mem: &impl Memory, what: Transfer, fd: u64) -> Option<i64> {
    let writes = matches!(what, Transfer::Flat(Flow::Write) | Transfer::Vector(Flow::Write));
    if !writes || !are_there() {
        return None;
    }
    (!mem.surrender(numbers(keeper(mem, fd)?))).then_some(errno(libc::EIO))
}

/// A descriptor has come, with this mode and device.
pub(super) fn came_as(mode: u32, device: u32) {
    if mode & libc::S_IFMT == libc::S_IFCHR && may_keep(device) {
        CAME.store(true, Ordering::Relaxed);
    }
}

/// A descriptor has come.
fn came(mem: &impl Memory, fd: u64) {
    if !CAME.load(Ordering::Relaxed) && keeper(mem, fd).is_some() {
        CAME.store(true, Ordering::Relaxed);
    }
}

/// The descriptors in the control data of a message that was received, whose header is at `header`.
pub(super) fn came_by_message(mem: &impl Memory, header: u64) {
    const CONTROL: u64 = 32;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    if let Some([control, len]) = read_user::<[u64; 2]>(mem, &mut pins, header.wrapping_add(CONTROL)) {
        let (mut at, end) = (control, control.wrapping_add(len));
        // struct cmsghdr: length, level and type; the descriptors follow.
        while at.saturating_add(16) <= end {
            let Some([len, kind]) = read_user::<[u64; 2]>(mem, &mut pins, at) else { break };
            if kind == libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32 {
                let last = at.saturating_add(len).min(end);
                for place in (at + 16..last.saturating_sub(3)).step_by(4) {
                    read_user::<u32>(mem, &mut pins, place).into_iter().for_each(|fd| came(mem, fd.into()));
                }
            }
            if len < 16 {
                break;
            }
            at = at.saturating_add(len.next_multiple_of(8));
        }
    }
}

/// After a transfer: messages may have brought descriptors.
#[inline]
pub(super) fn after_transfer(mem: &impl Memory, what: Transfer, args: &Args, result: i64) {
    const MESSAGE: u64 = 64;
    match what {
        _ if result < 0 || are_there() => {}
        Transfer::RecvMsg => came_by_message(mem, args[1]),
        Transfer::RecvMany => (0..result as u64).for_each(|n| came_by_message(mem, args[1] + n * MESSAGE)),
        _ => {}
    }
}

/// Looks at the descriptors that the process was started with. At start-up.
pub fn look_at_inherited(mem: &impl Memory) {
    each_descriptor(mem, |fd| came(mem, fd));
}

/// Whether some driver may have been told about memory while nobody looked at requests: whether something is open that keeps what it is told about, or of whose
/// requests some are refused (`commands.rs`). When a dormant process wakes.
pub fn may_have_been_told(mem: &impl Memory) -> bool {
    let mut told = false;
    each_descriptor(mem, |fd| {
        told |= mode_and_device(mem, fd).is_some_and(|(mode, device)| match mode & libc::S_IFMT {
            libc::S_IFCHR => may_keep(device) || is_among(HAND_ON, device),
            0 => !is_plain_anonymous(mem, fd),
            _ => false,
        });
    });
    told
}

/// Whether a descriptor without a file is of a kind that keeps no memory.
fn is_plain_anonymous(mem: &impl Memory, fd: u64) -> bool {
    const KINDS: [&str; 15] = [
        "[eventpoll]",
        "[eventfd]",
        "[timerfd]",
        "[signalfd]",
        "inotify",
        "[pidfd]",
        "[fanotify]",
        "[perf_event]",
        "[landlock-ruleset]",
        "seccomp notify",
        "[fscontext]",
        "bpf-map",
        "bpf-prog",
        "bpf_link",
        "btf",
    ];
    let Ok(path) = std::ffi::CString::new(format!("/proc/self/fd/{fd}")) else { return false };
    let (mut name, mut set) = ([0u8; 64], PinSet::new());
    let mut pins = Pins::new(mem, &mut set);
    let addr = pin_local(mem, &mut pins, &mut name);
    let len = mem.own(libc::SYS_readlink as u64, &[path.as_ptr() as u64, addr, 64, 0, 0, 0]);
    let name = usize::try_from(len).ok().and_then(|len| core::str::from_utf8(name.get(..len)?).ok());
    name.and_then(|name| name.strip_prefix("anon_inode:")).is_some_and(|kind| KINDS.contains(&kind))
}

/// Calls `found` for each open descriptor.
fn each_descriptor(mem: &impl Memory, mut found: impl FnMut(u64)) {
    // Not by libc, which would begin its heap for that: below what will be managed.
    let Ok(folder) = fd::open(c"/proc/self/fd", fd::O_RDONLY) else { return };
    let (mut entries, mut set) = ([0u8; 4096], PinSet::new());
    let mut pins = Pins::new(mem, &mut set);
    loop {
        let addr = pin_local(mem, &mut pins, &mut entries);
        let got = mem.own(libc::SYS_getdents64 as u64, &[folder.raw() as u64, addr, 4096, 0, 0, 0]);
        pins.release();
        let Some(got) = usize::try_from(got).ok().filter(|&got| got > 0).and_then(|got| entries.get(..got)) else { return };
        fd::each_number(got, |fd| found(fd.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::buffers::fake::Fake;
    use super::*;

    #[test]
    fn all_descriptors_that_are_open_are_looked_at() {
        let fake = Fake::new(1, 1 << 16);
        // More than one call of the kernel tells of.
        let open: Vec<_> = (0..300).map(|_| std::fs::File::open("/dev/null").expect("/dev/null")).collect();
        look_at_inherited(&fake);
        for file in &open {
            let fd = std::os::fd::AsRawFd::as_raw_fd(file) as u64;
            assert!(fake.calls().iter().any(|call| call.0 == libc::SYS_fstat as u64 && call.1[0] == fd), "{fd}");
        }
    }

    #[test]
    fn devices_that_keep_nothing_are_known_by_their_numbers() {
        let device = |major: u32, minor: u32| (minor & 0xff) | major << 8 | (minor & 0xfff00) << 12;
        for (major, minor) in [(1, 3), (1, 9), (5, 2), (136, 7), (10, 200), (10, 232), (13, 64), (202, 1)] {
            assert!(!may_keep(device(major, minor)), "{major}:{minor}");
        }
        // Video cards, RDMA, NVIDIA's, vhost, VFIO, those with numbers that the kernel gives at run time.
        for (major, minor) in [(226, 128), (231, 192), (195, 255), (10, 238), (10, 196), (10, 259), (510, 0), (242, 70000)] {
            assert!(may_keep(device(major, minor)), "{major}:{minor}");
        }
        assert_eq!(numbers(device(242, 70000)), (242, 70000));
    }
}
