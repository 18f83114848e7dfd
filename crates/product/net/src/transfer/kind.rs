//! What a descriptor is, as far as cutting a transfer depends on it.

use super::super::buffers::{Memory, PinSet, Pins, pin_local};

/// How a transfer may be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Bytes at positions, always ready: regular files, block devices, `/dev/zero`, `/dev/random`.
    Steady,
    /// A pipe or FIFO.
    Pipe,
    /// A terminal.
    Terminal,
    /// A stream socket whose bytes have no boundaries.
    Stream {
        /// TCP: `MSG_TRUNC` throws bytes away instead of storing them.
        tcp: bool,
    },
    /// A socket with message boundaries, or one that we do not know.
    Packets,
    /// Anything else: a device, an eventfd, …
    Whole,
    /// There is no such descriptor, or it is a directory.
    Refused,
}

/// `st_mode` and `st_rdev` in the kernel's `struct stat`, as 32-bit words.
const MODE_WORD: usize = 6;
const DEVICE_WORD: usize = 10;

/// What the kernel says of `fd`: `st_mode` and `st_rdev`. `None`: there is no such descriptor.
pub(in super::super) fn mode_and_device(mem: &impl Memory, fd: u64) -> Option<(u32, u32)> {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut stat = [0u32; 36];
    let addr = pin_local(mem, &mut pins, &mut stat);
    let result = mem.own(libc::SYS_fstat as u64, &[fd, addr, 0, 0, 0, 0]);
    (result >= 0).then_some((stat[MODE_WORD], stat[DEVICE_WORD]))
}

/// Asks the kernel what `fd` is.
pub(super) fn of(mem: &impl Memory, fd: u64) -> Kind {
    let Some((mode, device)) = mode_and_device(mem, fd) else { return Kind::Refused };
    match mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => Kind::Steady,
        libc::S_IFIFO => Kind::Pipe,
        libc::S_IFCHR => character_device(device),
        libc::S_IFSOCK => socket(mem, fd),
        libc::S_IFDIR => Kind::Refused,
        _ => Kind::Whole,
    }
}

fn character_device(device: u32) -> Kind {
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    match (major, minor) {
        // null, zero, full, random, urandom.
        (1, 3 | 5 | 7 | 8 | 9) => Kind::Steady,
        // Consoles and serial lines, /dev/tty and ptmx, pseudo-terminals, USB serial lines.
        (4 | 5 | 136..=143 | 166 | 188, _) => Kind::Terminal,
        _ => Kind::Whole,
    }
}

fn socket(mem: &impl Memory, fd: u64) -> Kind {
    let option = |name: i32| {
        let mut set = PinSet::new();
        let mut pins = Pins::new(mem, &mut set);
        // The value, then its length.
        let mut both = [0u32, 4];
        let addr = pin_local(mem, &mut pins, &mut both);
        let args = [fd, libc::SOL_SOCKET as u64, name as u64, addr, addr + 4, 0];
        let result = mem.own(libc::SYS_getsockopt as u64, &args);
        if result < 0 { -1 } else { both[0] as i32 }
    };
    if option(libc::SO_TYPE) != libc::SOCK_STREAM {
        return Kind::Packets;
    }
    // SCTP and others call themselves streams but have messages.
    match (option(libc::SO_DOMAIN), option(libc::SO_PROTOCOL)) {
        (libc::AF_UNIX | libc::AF_VSOCK, _) => Kind::Stream { tcp: false },
        (libc::AF_INET | libc::AF_INET6, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP) => Kind::Stream { tcp: true },
        _ => Kind::Packets,
    }
}
