//! Ways past QEMU's page tables, which are closed while it has a guest whose memory is managed.
//!
//! The manager takes a page out in three steps: it protects the page, reads its bytes, and punches a hole. A processor that writes meanwhile faults. A disk that writes directly to the page
//! does not: the kernel has found the page before, and what the disk writes is lost with it.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::BorrowedFd;

use crate::guest::{self, Refused};

/// Devices that hold on to the pages of the guest's memory, or have them found where they were, and what begins their paths: those that are passed through (VFIO, vDPA), those that other machines
/// write through (RDMA), the graphics' own view of the memory, and memory that is encrypted with its physical address.
const DEVICES: &[&[u8]] = &[b"/dev/vfio/", b"/dev/iommu", b"/dev/vhost-vdpa", b"/dev/infiniband/", b"/dev/udmabuf", b"/dev/sev"];

/// Why a file is not opened, if it is not.
pub fn opens(name: &CStr, flags: c_int) -> Option<Refused> {
    let is_direct = flags & libc::O_DIRECT != 0 && flags & libc::O_PATH == 0;
    let is_device = DEVICES.iter().any(|begin| name.to_bytes().starts_with(begin));
    if !(is_direct || is_device) || !guest::is_asked_for() {
        return None;
    }
    let shown = name.to_string_lossy();
    Some(if is_device {
        Refused::new(format!(
            "'{shown}' is not opened: it holds on to pages of the guest's memory, and those are taken out and come back elsewhere; leave out the device that needs it"
        ))
    } else {
        direct(&shown)
    })
}

/// Why a file does not come to have direct I/O, if it does not.
pub fn becomes_direct(fd: c_int, flags: c_int) -> Option<Refused> {
    let is_direct = flags & libc::O_DIRECT != 0 && guest::is_asked_for();
    is_direct.then(|| direct(&name_of(fd)))
}

/// Why the memory is not handed over, if it is not: QEMU was started with a file that is open for direct I/O (`-add-fd`).
pub fn is_open_already() -> Option<Refused> {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    numbers.into_iter().find_map(|number| {
        // SAFETY: it was open a moment ago; should another thread have closed it, the kernel answers that it is not.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let is_direct = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
        // For a pipe it means something else.
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd).ok()?.st_mode);
        if !is_direct || !matches!(kind, rustix::fs::FileType::RegularFile | rustix::fs::FileType::BlockDevice) {
            return None;
        }
        Some(direct(&name_of(number)))
    })
}

/// What is open there, for a message.
fn name_of(fd: c_int) -> String {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default().to_string_lossy().into_owned()
}

fn direct(shown: &str) -> Refused {
    Refused::new(format!(
        "'{shown}' is not opened for direct I/O: what a disk writes to the guest's memory directly would be lost with a page that is just leaving; use cache=writeback \
         (cache.direct=off, no aio=native)"
    ))
}

/// Why a message is not sent, if it is not: it has the guest's memory for another process.
///
/// # Safety
/// `message` is null or one that `sendmsg(2)` takes.
pub unsafe fn sends_memory(message: *const libc::msghdr) -> Option<Refused> {
    // SAFETY: as the caller says.
    let message = unsafe { message.as_ref() }?;
    if message.msg_control.is_null() || message.msg_controllen == 0 || !guest::is_asked_for() {
        return None;
    }
    // SAFETY: its control data is there, as the caller says.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: within the control data, as these macros see to.
        let header = unsafe { at.read_unaligned() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: the same.
            let data: *const c_void = unsafe { libc::CMSG_DATA(at) }.cast();
            let count = (header.cmsg_len as usize).saturating_sub(data as usize - at as usize) / size_of::<c_int>();
            for number in 0..count {
                let place = data.cast::<c_int>().wrapping_add(number);
                // SAFETY: the header says that so many descriptors stand there.
                let fd = unsafe { place.read_unaligned() };
                if guest::is_memory(fd) {
                    return Some(Refused::new(
                        "the guest's memory is not given to another process (vhost-user): it would find zeros where a page is out; use a device of QEMU's own, or vhost=on",
                    ));
                }
            }
        }
        // SAFETY: the same.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    None
}
