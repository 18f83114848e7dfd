//! System calls as numbers, with the kernel's answer.

use std::arch::asm;

/// Six arguments.
pub type Args = [u64; 6];

/// How a call enters the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// By libc's own `syscall` instruction.
    Libc,
    /// By one in the program's text.
    Own,
}

/// Makes a call; the kernel's answer, negative for an error.
pub fn enter(entry: Entry, nr: u64, args: &Args) -> i64 {
    match entry {
        Entry::Own => {
            let result: i64;
            // SAFETY: the cases make calls whose effects they own; the kernel checks every address.
            unsafe {
                asm!(
                    "syscall", inlateout("rax") nr.cast_signed() => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
                    in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _,
                );
            }
            result
        }
        Entry::Libc => {
            // SAFETY: as above.
            let result = unsafe { libc::syscall(nr.cast_signed(), args[0], args[1], args[2], args[3], args[4], args[5]) };
            if result == -1 { -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { result }
        }
    }
}

/// A call of a set-up, by name: its result, or what went wrong.
pub fn sys(name: &str, args: &[u64]) -> Result<u64, String> {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let result = enter(Entry::Libc, number(name), &all);
    u64::try_from(result).map_err(|_| format!("{name}: {}", error_text(result)))
}

/// The number of a call.
pub fn number(name: &str) -> u64 {
    (0..farshore_net::table::COUNT as u64)
        .find(|&nr| farshore_net::table::describe(nr).is_some_and(|entry| entry.name == name))
        .unwrap_or_else(|| panic!("no call is named {name}"))
}

/// `EBADF` for -9.
pub fn error_text(result: i64) -> String {
    const NAMES: &[(i32, &str)] = &[
        (1, "EPERM"),
        (2, "ENOENT"),
        (3, "ESRCH"),
        (4, "EINTR"),
        (5, "EIO"),
        (6, "ENXIO"),
        (7, "E2BIG"),
        (9, "EBADF"),
        (10, "ECHILD"),
        (11, "EAGAIN"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (15, "ENOTBLK"),
        (16, "EBUSY"),
        (17, "EEXIST"),
        (18, "EXDEV"),
        (19, "ENODEV"),
        (20, "ENOTDIR"),
        (21, "EISDIR"),
        (22, "EINVAL"),
        (25, "ENOTTY"),
        (28, "ENOSPC"),
        (38, "ENOSYS"),
        (61, "ENODATA"),
        (75, "EOVERFLOW"),
        (95, "EOPNOTSUPP"),
        (97, "EAFNOSUPPORT"),
        (110, "ETIMEDOUT"),
    ];
    let errno = i32::try_from(-result).unwrap_or(0);
    NAMES.iter().find(|(number, _)| *number == errno).map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_string())
}

/// The address of a value for the kernel.
pub fn at<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).expose_provenance() as u64
}

/// The address of a value that the kernel changes.
pub fn at_mut<T: ?Sized>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).expose_provenance() as u64
}
