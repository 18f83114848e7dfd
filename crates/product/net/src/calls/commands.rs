//! Calls whose pointers depend on a command: `ioctl`, `prctl`, `ptrace`, `bpf`, `keyctl`, socket options, …
//!
//! Where the layout is known it is followed. Where it is not, [`guess`] pins what could be meant: an argument
//! that is no pointer is not pinned, and a page too many does no harm.

use super::super::buffers::{
    Access, Args, IoVec, Memory, PAGE, PinSet, Pins, errno, guess, pin_all, pin_dir, read_once, read_user, run_with, text_len,
    write_once,
};
use super::super::table::{Dir, Extent, Flow, Ptr};
use farshore_sys::hosted::is_hosted;

/// Most words of a structure in which pointers are looked for.
const WORDS_MAX: u64 = 64;

/// Pins `len` bytes behind each word of a structure that could be a pointer.
fn guess_inside(mem: &impl Memory, pins: &mut PinSet, addr: u64, bytes: u64, len: u64) {
    if addr < PAGE {
        return;
    }
    for index in 0..(bytes / 8).min(WORDS_MAX) {
        let Some(word) = read_user::<u64>(mem, pins, addr.wrapping_add(index * 8)) else { return };
        guess(mem, pins, word, len);
    }
}

/// Pins the filter program of a `struct sock_fprog`.
fn pin_filter(mem: &impl Memory, pins: &mut PinSet, addr: u64) {
    if let Some([count, program]) = read_user::<[u64; 2]>(mem, pins, addr) {
        pin_all(mem, pins, program, (count & 0xffff) * 8, Access::Read);
    }
}

// `ioctl` requests: direction, size, type and number.
const fn request_size(request: u64) -> u64 {
    (request >> 16) & 0x3fff
}
const fn request_type(request: u64) -> u64 {
    (request >> 8) & 0xff
}
/// Bytes pinned for a request that does not say its size.
const IOCTL_BYTES: u64 = 256;
const SIOCGIFCONF: u64 = 0x8912;
const SG_IO: u64 = 0x2285;
const FS_IOC_FIEMAP: u64 = 0xc020_660b;
const FIDEDUPERANGE: u64 = 0xc018_9436;

const ETHERNET_MAX: u64 = 64 << 10;
const FILTER_MAX: u64 = 4096 * 8;

/// Requests of known devices that hand the program's memory to a guest or a device, which then touch it at any time: KVM_CREATE_VM,
/// USERFAULTFD_IOC_NEW, USBDEVFS_SUBMITURB. What unknown devices keep, `keepers.rs` says.
const IOCTLS_REFUSED: [u64; 3] = [0xae01, 0xaa00, 0x8038_550a];
/// DIAG_IOCSREG of tracefs' `user_events_data`: the kernel sets a bit at an address while a tracer listens.
const USER_EVENTS_REGISTER: u64 = 0xc008_2a00;
/// Video capture: VIDIOC_REQBUFS and VIDIOC_CREATE_BUFS name at byte 8 whose memory the device shall write to.
const VIDIOC_BUFFERS: [u64; 2] = [0xc014_5608, 0xc100_565c];
const V4L2_MEMORY_USERPTR: u32 = 2;
/// NVMe pass-through: ADMIN_CMD, IO_CMD, and both with a 64-bit result.
const NVME_COMMANDS: [u64; 4] = [0xc048_4e41, 0xc048_4e43, 0xc050_4e47, 0xc050_4e48];

/// `ioctl`.
pub(super) fn ioctl(mem: &impl Memory, args: &Args) -> i64 {
    let (request, arg) = (args[1] & 0xffff_ffff, args[2]);
    if IOCTLS_REFUSED.contains(&request) {
        return errno(libc::ENOSYS);
    }
    if let Some(refused) = super::keepers::before_request(mem, args[0], request) {
        return refused;
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    if request == USER_EVENTS_REGISTER {
        keep_enable_word(mem, arg);
    }
    if VIDIOC_BUFFERS.contains(&request) && read_user::<u32>(mem, &mut pins, arg.wrapping_add(8)) == Some(V4L2_MEMORY_USERPTR) {
        // As a driver that knows other kinds only.
        return errno(libc::EINVAL);
    }
    if arg >= PAGE {
        // Without direction bits there is no size, or it is not one.
        let size = if request >> 30 == 0 { 0 } else { request_size(request) };
        guess(mem, &mut pins, arg, size.max(IOCTL_BYTES));
        ioctl_inside(mem, &mut pins, request, arg, size);
    }
    mem.raw(libc::SYS_ioctl as u64, args)
}

/// `struct user_reg` has the address at byte 8.
#[cold]
#[inline(never)]
fn keep_enable_word(mem: &impl Memory, arg: u64) {
    let word = read_once::<u64>(mem, arg.wrapping_add(8));
    word.into_iter().for_each(|word| mem.keep(word, 8));
}

/// Pins what pointers inside the structure lead to.
fn ioctl_inside(mem: &impl Memory, pins: &mut PinSet, request: u64, arg: u64, size: u64) {
    match (request, request_type(request)) {
        (SIOCGIFCONF, _) => {
            if let Some([len, buffer]) = read_user::<[u64; 2]>(mem, pins, arg) {
                guess(mem, pins, buffer, len & 0x7fff_ffff);
            }
        }
        (SG_IO, _) => {
            // Length at byte 12; data, command and sense buffer at 16, 24 and 32.
            if let Some(header) = read_user::<[u64; 5]>(mem, pins, arg) {
                guess(mem, pins, header[2], header[1] >> 32);
                guess(mem, pins, header[3], 256);
                guess(mem, pins, header[4], 256);
            }
        }
        // A count, 24 and 16 bytes into the header, of extents of 56 and 32 bytes after it.
        (FS_IOC_FIEMAP, _) => {
            let count = read_user::<u32>(mem, pins, arg + 24).unwrap_or(0);
            guess(mem, pins, arg, 32 + u64::from(count) * 56);
        }
        (FIDEDUPERANGE, _) => {
            let count = read_user::<u32>(mem, pins, arg + 16).unwrap_or(0);
            guess(mem, pins, arg, 24 + u64::from(count & 0xffff) * 32);
        }
        (request, _) if NVME_COMMANDS.contains(&request) => {
            // Addresses of metadata and data at 16 and 24, their lengths at 32 and 36.
            if let Some(command) = read_user::<[u64; 5]>(mem, pins, arg) {
                guess(mem, pins, command[2], command[4] & 0xffff_ffff);
                guess(mem, pins, command[3], command[4] >> 32);
            }
        }
        // Terminals and file flags have no pointers inside.
        (_, 0x54 | 0x66) => {}
        // Network interfaces (`struct ifreq`): data at 16, of many sizes.
        (_, 0x89 | 0x8b) => guess_inside(mem, pins, arg, 40, ETHERNET_MAX),
        // Consoles: fonts and their maps.
        (_, 0x4b) => guess_inside(mem, pins, arg, 64, 1 << 16),
        // Sound: frames of unknown size.
        (_, 0x41) => guess_inside(mem, pins, arg, size, 1 << 16),
        // Without a size: what older structures have at most.
        _ if size == 0 => guess_inside(mem, pins, arg, 64, PAGE),
        _ => guess_inside(mem, pins, arg, size, PAGE),
    }
}

const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SET_VMA: u64 = 0x5356_4d41;
const PR_GET_AUXV: u64 = 0x4155_5856;

/// `prctl`.
pub(super) fn prctl(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    match args[0] & 0xffff_ffff {
        // The net itself is built on it. A kernel without it answers so.
        PR_SET_SYSCALL_USER_DISPATCH => return errno(libc::EINVAL),
        option if option == libc::PR_SET_SECCOMP as u64 => return super::seccomp::by_prctl(mem, args),
        super::merging::SET => return super::merging::set(mem, args),
        super::merging::GET => return super::merging::get(mem, args),
        option if option == libc::PR_SET_NAME as u64 => {
            text_len(mem, &mut pins, args[1], 16);
        }
        option if option == libc::PR_SET_MM as u64 => {
            guess(mem, &mut pins, args[2], PAGE);
            guess_inside(mem, &mut pins, args[2], 128, PAGE);
        }
        PR_SET_VMA if args[4] != 0 => {
            text_len(mem, &mut pins, args[4], 256);
        }
        PR_GET_AUXV => guess(mem, &mut pins, args[1], args[2].min(PAGE)),
        // The others answer through a number behind an argument, or have only numbers.
        _ => {
            guess(mem, &mut pins, args[1], 256);
            guess(mem, &mut pins, args[4], 8);
        }
    }
    mem.raw(libc::SYS_prctl as u64, args)
}

/// `arch_prctl`: `ARCH_SET_GS` and `ARCH_SET_FS` give an address to a register, the others answer behind a pointer.
///
/// Of a hosted program the other register, which is 0 natively, is Farshore's: the program sees 0 and may set nothing else.
pub(super) fn arch_prctl(mem: &impl Memory, args: &Args) -> i64 {
    const ARCH_SET_GS: u64 = 0x1001;
    const ARCH_GET_GS: u64 = 0x1004;
    if is_hosted() && args[0] == ARCH_SET_GS {
        return if args[1] == 0 { 0 } else { errno(libc::EPERM) };
    }
    if is_hosted() && args[0] == ARCH_GET_GS {
        return if write_once(mem, args[1], &0u64) { 0 } else { errno(libc::EFAULT) };
    }
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    if !matches!(args[0], 0x1001 | 0x1002) {
        guess(mem, &mut pins, args[1], 8);
    }
    mem.raw(libc::SYS_arch_prctl as u64, args)
}

/// `ptrace`: this side's data; the other process's memory is reached by the kernel in its own way.
pub(super) fn ptrace(mem: &impl Memory, args: &Args) -> i64 {
    const PTRACE_GETREGSET: u64 = 0x4204;
    const PTRACE_SETREGSET: u64 = 0x4205;
    const PTRACE_PEEKSIGINFO: u64 = 0x4209;
    const PTRACE_SECCOMP_GET_FILTER: u64 = 0x420c;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    match args[0] {
        // TRACEME, POKE…, CONT, KILL, SINGLESTEP, ATTACH, DETACH, SYSCALL: numbers.
        0 | 4..=9 | 16 | 17 | 24 => {}
        PTRACE_GETREGSET | PTRACE_SETREGSET => {
            guess(mem, &mut pins, args[3], 16);
            if let Some(iov) = read_user::<IoVec>(mem, &mut pins, args[3]) {
                guess(mem, &mut pins, iov.addr, iov.len.min(1 << 16));
            }
        }
        PTRACE_PEEKSIGINFO => {
            guess(mem, &mut pins, args[2], 16);
            guess(mem, &mut pins, args[3], 1 << 16);
        }
        PTRACE_SECCOMP_GET_FILTER => guess(mem, &mut pins, args[3], FILTER_MAX),
        _ => guess(mem, &mut pins, args[3], PAGE),
    }
    mem.raw(libc::SYS_ptrace as u64, args)
}

/// `bpf`: the structure, and what its pointers lead to.
pub(super) fn bpf(mem: &impl Memory, args: &Args) -> i64 {
    const BPF_PROG_LOAD: u64 = 5;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let size = u64::from(args[2] as u32).min(PAGE);
    guess(mem, &mut pins, args[1], size);
    if args[0] == BPF_PROG_LOAD {
        // Instructions: count at byte 4, pointer at 8. Log buffer: size at byte 28, pointer at 32.
        if let Some(attr) = read_user::<[u64; 5]>(mem, &mut pins, args[1]) {
            guess(mem, &mut pins, attr[1], (attr[0] >> 32) * 8);
            guess(mem, &mut pins, attr[4], attr[3] >> 32);
        }
    }
    guess_inside(mem, &mut pins, args[1], size, PAGE);
    mem.raw(libc::SYS_bpf as u64, args)
}

/// `keyctl`.
pub(super) fn keyctl(mem: &impl Memory, args: &Args) -> i64 {
    const INSTANTIATE_IOV: u64 = 20;
    const CAPABILITIES: u64 = 31;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    for arg in &args[1..5] {
        guess(mem, &mut pins, *arg, PAGE);
    }
    match args[0] {
        // UPDATE, DESCRIBE, READ, INSTANTIATE, GET_SECURITY, DH_COMPUTE: buffer and length.
        2 | 6 | 11 | 12 | 17 | 23 => guess(mem, &mut pins, args[2], args[3].min(1 << 20)),
        CAPABILITIES => guess(mem, &mut pins, args[1], args[2].min(PAGE)),
        INSTANTIATE_IOV => {
            for index in 0..args[3].min(1024) {
                let Some(iov) = read_user::<IoVec>(mem, &mut pins, args[2].wrapping_add(index * 16)) else { break };
                guess(mem, &mut pins, iov.addr, iov.len.min(1 << 20));
            }
        }
        // DH_COMPUTE's and the key operations' parameters have pointers inside.
        24..=28 => guess_inside(mem, &mut pins, args[1], 32, PAGE),
        _ => {}
    }
    mem.raw(libc::SYS_keyctl as u64, args)
}

/// `fsconfig`: the value is a string, bytes or nothing, by command.
pub(super) fn fsconfig(mem: &impl Memory, args: &Args) -> i64 {
    const KEY: Ptr = Ptr { arg: 2, dir: Dir::In, extent: Extent::Text };
    const VALUE: Ptr = Ptr { arg: 3, dir: Dir::In, extent: Extent::Text };
    const BYTES: Extent = Extent::Counted { by: 4, unit: 1, plus: 0, cap: 1 << 20, int: true };
    let nr = libc::SYS_fsconfig as u64;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    match args[1] as u32 {
        1 | 3 | 4 => run_with(mem, &mut pins, nr, args, &[KEY, VALUE]),
        2 => run_with(mem, &mut pins, nr, args, &[KEY, Ptr { arg: 3, dir: Dir::In, extent: BYTES }]),
        _ => run_with(mem, &mut pins, nr, args, &[KEY]),
    }
}

/// `semctl`: the last argument is a number or a pointer, by command.
pub(super) fn semctl(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    match args[2] & 0xff {
        // IPC_SET, IPC_STAT, IPC_INFO, SEM_STAT, SEM_INFO, SEM_STAT_ANY.
        1..=3 | 18..=20 => guess(mem, &mut pins, args[3], 256),
        // GETALL, SETALL: a set has at most 32000 semaphores of two bytes.
        13 | 17 => guess(mem, &mut pins, args[3], 64_000),
        _ => {}
    }
    mem.raw(libc::SYS_semctl as u64, args)
}

/// `mq_notify`: `struct sigevent`, which with `SIGEV_THREAD` leads to a cookie of 32 bytes.
pub(super) fn mq_notify(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    pin_all(mem, &mut pins, args[1], 64, Access::Read);
    if args[1] != 0
        && let Some([value, kind]) = read_user::<[u64; 2]>(mem, &mut pins, args[1])
        && kind >> 32 == libc::SIGEV_THREAD as u64
    {
        guess(mem, &mut pins, value, 32);
    }
    mem.raw(libc::SYS_mq_notify as u64, args)
}

/// `setsockopt`.
pub(super) fn set_socket_option(mem: &impl Memory, args: &Args) -> i64 {
    const SO_ATTACH_REUSEPORT_CBPF: i32 = 51;
    const VALUE: Ptr =
        Ptr { arg: 3, dir: Dir::In, extent: Extent::Counted { by: 4, unit: 1, plus: 0, cap: u64::MAX, int: true } };
    const SOL_XDP: i32 = 283;
    const XDP_UMEM_REG: i32 = 4;
    const SOL_RDS: i32 = 276;
    const RDS_GET_MR: i32 = 2;
    const RDS_GET_MR_FOR_DEST: i32 = 7;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    match (args[1] as i32, args[2] as i32) {
        // A network card would write there at any time. As a socket that is not of this kind.
        (SOL_XDP, XDP_UMEM_REG) | (SOL_RDS, RDS_GET_MR | RDS_GET_MR_FOR_DEST) => return errno(libc::ENOPROTOOPT),
        // Tables of packet filters, for IPv4, IPv6 and bridges: a pointer to counters at 88 or behind it.
        (libc::IPPROTO_IP | libc::IPPROTO_IPV6, 64 | 65 | 128..=131) => guess_inside(mem, &mut pins, args[3], 128, 1 << 16),
        _ => {}
    }
    let filter = [libc::SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF].contains(&(args[2] as i32));
    if filter && args[1] as i32 == libc::SOL_SOCKET && args[3] != 0 {
        pin_filter(mem, &mut pins, args[3]);
    }
    run_with(mem, &mut pins, libc::SYS_setsockopt as u64, args, &[VALUE])
}

/// `getsockopt`.
pub(super) fn get_socket_option(mem: &impl Memory, args: &Args) -> i64 {
    const TCP_ZEROCOPY_RECEIVE: i32 = 35;
    const VALUE: Ptr = Ptr { arg: 3, dir: Dir::Both, extent: Extent::Behind { by: 4, cap: 1 << 20 } };
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    match (args[1] as i32, args[2] as i32) {
        // The length counts instructions of eight bytes.
        (libc::SOL_SOCKET, libc::SO_GET_FILTER) => {
            let count = read_user::<u32>(mem, &mut pins, args[4]).unwrap_or(0);
            guess(mem, &mut pins, args[3], u64::from(count.min(1 << 16)) * 8);
        }
        (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) => guess_inside(mem, &mut pins, args[3], 64, PAGE),
        _ => {}
    }
    run_with(mem, &mut pins, libc::SYS_getsockopt as u64, args, &[VALUE])
}

/// `setxattrat`, `getxattrat`: `struct xattr_args` has a pointer to the value, and its size.
pub(super) fn xattr_at(mem: &impl Memory, flow: Flow, nr: u64, args: &Args) -> i64 {
    const RULES: [Ptr; 3] = [
        Ptr { arg: 1, dir: Dir::In, extent: Extent::Text },
        Ptr { arg: 3, dir: Dir::In, extent: Extent::Text },
        Ptr { arg: 4, dir: Dir::In, extent: Extent::Counted { by: 5, unit: 1, plus: 0, cap: PAGE, int: false } },
    ];
    const XATTR_MAX: u64 = 65536;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    if args[4] != 0
        && let Some([value, size]) = read_user::<[u64; 2]>(mem, &mut pins, args[4])
    {
        let dir = if flow == Flow::Read { Dir::Out } else { Dir::In };
        pin_dir(mem, &mut pins, value, (size & 0xffff_ffff).min(XATTR_MAX), dir);
    }
    run_with(mem, &mut pins, nr, args, &RULES)
}

/// `kexec_load`: segments of 32 bytes, each with a buffer.
pub(super) fn kexec_load(mem: &impl Memory, args: &Args) -> i64 {
    const SEGMENTS_MAX: u64 = 16;
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    for index in 0..args[1].min(SEGMENTS_MAX) {
        let Some(segment) = read_user::<[u64; 2]>(mem, &mut pins, args[2].wrapping_add(index * 32)) else { break };
        guess(mem, &mut pins, segment[0], segment[1]);
    }
    mem.raw(libc::SYS_kexec_load as u64, args)
}
