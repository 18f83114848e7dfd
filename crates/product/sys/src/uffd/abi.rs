//! The kernel's userfaultfd interface as of Linux 6.18, written out so that older headers do not matter.

/// `UFFDIO_*` request numbers: direction, size of the argument, type 0xAA, number.
const fn request(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xAA << 8 | number
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;

pub const USERFAULTFD_IOC_NEW: u64 = request(0, 0x00, 0);
pub const UFFDIO_API: u64 = request(READ_WRITE, 0x3F, size_of::<Api>());
pub const UFFDIO_REGISTER: u64 = request(READ_WRITE, 0x00, size_of::<Register>());
pub const UFFDIO_UNREGISTER: u64 = request(READ, 0x01, size_of::<Range>());
pub const UFFDIO_WAKE: u64 = request(READ, 0x02, size_of::<Range>());
pub const UFFDIO_COPY: u64 = request(READ_WRITE, 0x03, size_of::<Transfer>());
pub const UFFDIO_ZEROPAGE: u64 = request(READ_WRITE, 0x04, size_of::<ZeroPage>());
pub const UFFDIO_MOVE: u64 = request(READ_WRITE, 0x05, size_of::<Transfer>());
pub const UFFDIO_POISON: u64 = request(READ_WRITE, 0x08, size_of::<ZeroPage>());
pub const UFFDIO_WRITEPROTECT: u64 = request(READ_WRITE, 0x06, size_of::<WriteProtect>());

/// Bits of `Register::ioctls`: 1 << number of the request.
pub const RANGE_COPY: u64 = 1 << 0x03;
pub const RANGE_WRITEPROTECT: u64 = 1 << 0x06;

pub const API_VERSION: u64 = 0xAA;

pub const REGISTER_MODE_MISSING: u64 = 1 << 0;
pub const REGISTER_MODE_WP: u64 = 1 << 1;

pub const COPY_MODE_DONTWAKE: u64 = 1 << 0;
pub const COPY_MODE_WP: u64 = 1 << 1;
pub const ZEROPAGE_MODE_DONTWAKE: u64 = 1 << 0;
pub const MOVE_MODE_DONTWAKE: u64 = 1 << 0;
pub const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;
pub const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
pub const WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;

pub const EVENT_PAGEFAULT: u8 = 0x12;
pub const EVENT_REMOVE: u8 = 0x15;
pub const PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
pub const PAGEFAULT_FLAG_WP: u64 = 1 << 1;

/// Flags of userfaultfd(2).
pub const USER_MODE_ONLY: u64 = 1;
pub const O_CLOEXEC: u64 = 0o2000000;
pub const O_NONBLOCK: u64 = 0o4000;

#[repr(C)]
pub struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
pub struct Range {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
pub struct Register {
    pub range: Range,
    pub mode: u64,
    pub ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`, which are laid out alike. `done` is written by the kernel.
#[repr(C)]
pub struct Transfer {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    pub done: i64,
}

/// `struct uffdio_zeropage` and `struct uffdio_poison`, which are laid out alike.
#[repr(C)]
pub struct ZeroPage {
    pub range: Range,
    pub mode: u64,
    pub done: i64,
}

#[repr(C)]
pub struct WriteProtect {
    pub range: Range,
    pub mode: u64,
}

/// `struct uffd_msg` as far as page faults use it. Of a removal, `flags` is where it begins, and `address` where it ends.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawMessage {
    pub event: u8,
    pub _reserved: [u8; 7],
    pub flags: u64,
    pub address: u64,
    pub thread: u64,
}

const _: () = {
    // Request numbers as the kernel's headers expand them.
    assert!(UFFDIO_API == 0xc018_aa3f && UFFDIO_REGISTER == 0xc020_aa00 && UFFDIO_UNREGISTER == 0x8010_aa01);
    assert!(UFFDIO_COPY == 0xc028_aa03 && UFFDIO_MOVE == 0xc028_aa05 && UFFDIO_WRITEPROTECT == 0xc018_aa06);
    assert!(UFFDIO_POISON == 0xc020_aa08);
    assert!(USERFAULTFD_IOC_NEW == 0xaa00 && size_of::<RawMessage>() == 32);
};
