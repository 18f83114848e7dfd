//! Probes of everything but userfaultfd.

use super::{Needed, Probe};
use crate::fd::{self, Fd};
use crate::idle;
use crate::pagemap::Pagemap;
use crate::raw::{self, Errno, nr};
use crate::samples;
use crate::sud;
use crate::vm::{self, SelfAdvice, SelfPidfd};
use alloc_crate::format;
use alloc_crate::string::{String, ToString};

/// The oldest kernel that has what is needed.
const OLDEST: (u32, u32) = (6, 8);

/// The first two numbers of a release like `6.18.44-arch1`.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn release() -> Result<String, Errno> {
    /// Bytes of one field of `struct utsname`, of which there are six; the release is the third.
    const FIELD: usize = 65;
    let mut names = [0u8; 6 * FIELD];
    // SAFETY: the kernel writes one struct utsname, which is as large as the buffer.
    unsafe { raw::syscall_result(nr::UNAME, [names.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) }?;
    let field = &names[2 * FIELD..3 * FIELD];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(FIELD);
    Ok(String::from_utf8_lossy(&field[..end]).into_owned())
}

/// The release of this kernel.
///
/// # Errors
/// Why Farshore does not run on it: it is older than what Farshore was tried on. (Some operations that such a kernel lacks are missed late, when
/// a program already runs, and none of them all the time: so the version decides.)
pub fn kernel_release() -> Result<String, String> {
    checked(release().map_err(|errno| format!("uname: {errno}"))?)
}

fn checked(release: String) -> Result<String, String> {
    if parse_release(&release).is_some_and(|version| version >= OLDEST) {
        return Ok(release);
    }
    Err(format!("{release} is older than {}.{}", OLDEST.0, OLDEST.1))
}

pub(super) fn kernel_version() -> Probe {
    Probe::new("kernel version", Needed::Required, kernel_release(), "use Linux 6.8 or newer")
}

pub(super) fn process_madvise() -> Probe {
    let result = if let Some(pidfd) = SelfAdvice::probe().pidfd() {
        Ok(match pidfd {
            SelfPidfd::Constant => "by PIDFD_SELF".to_string(),
            SelfPidfd::Open(_) => "by a pidfd".to_string(),
        })
    } else {
        Err(match SelfPidfd::open().and_then(|pidfd| vm::try_out(&pidfd)) {
            Ok(_) => "the kernel accepts it without doing it".to_string(),
            Err(errno) => errno.to_string(),
        })
    };
    let needed = Needed::Optional("evicted pages are unmapped one by one, with a TLB flush each: slower");
    Probe::new("process_madvise(DONTNEED) on oneself", needed, result, "use Linux 6.13 or newer (6.16 flushes once for all)")
}

pub(super) fn dispatch() -> Probe {
    let result = match sud::probe() {
        Ok(()) => Ok("a system call was caught".into()),
        Err(errno) => Err(errno.to_string()),
    };
    let advice = "use a kernel built with CONFIG_GENERIC_ENTRY (x86-64 since Linux 5.11); a sandbox must allow prctl(PR_SET_SYSCALL_USER_DISPATCH)";
    Probe::new("Syscall User Dispatch", Needed::Required, result, advice)
}

pub(super) fn io_uring() -> Probe {
    /// Bytes of `struct io_uring_params`, as 64-bit words.
    const PARAMS: usize = 120 / 8;
    let mut params = [0u64; PARAMS];
    // SAFETY: the kernel reads and writes one struct io_uring_params, which is as large as the buffer.
    let answer = unsafe { raw::syscall_result(nr::IO_URING_SETUP, [8, params.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    let result = match answer {
        Ok(raw) => {
            // SAFETY: the kernel has just made it for us. Dropped, and so the ring is gone.
            drop(unsafe { Fd::from_raw(raw as i32) });
            Ok("a ring was set up".into())
        }
        Err(errno) => Err(format!("io_uring_setup: {errno}{}", io_uring_setting())),
    };
    let advice = "as root: `sysctl kernel.io_uring_disabled=0`; in a container, allow io_uring_setup(2) in the seccomp profile";
    Probe::new("io_uring", Needed::Optional("pages are written by plain pwrite calls: slower"), result, advice)
}

/// The sysctl that forbids io_uring, if it is there and does.
fn io_uring_setting() -> &'static str {
    match fd::read_file(c"/proc/sys/kernel/io_uring_disabled", 16).unwrap_or_default().trim_ascii() {
        b"1" => "; kernel.io_uring_disabled is 1 (privileged users only)",
        b"2" => "; kernel.io_uring_disabled is 2 (nobody)",
        _ => "",
    }
}

pub(super) fn pagemap_scan() -> Probe {
    let result = match Pagemap::open().and_then(|pagemap| pagemap.probe()) {
        Ok(support) if support.written_and_present && support.written_alone => Ok("exact, alone and combined".into()),
        Ok(support) if support.written_alone => Ok("exact when asked for written pages alone; combined queries are not".into()),
        Ok(support) if support.written_and_present => {
            Ok("exact when combined with present; absent pages count as written alone".into())
        }
        Ok(support) => Err(format!("the kernel's answers are wrong: {support:?}")),
        Err(errno) => Err(errno.to_string()),
    };
    let needed = Needed::Optional("which pages were written is learned from faults alone");
    Probe::new("PAGEMAP_SCAN", needed, result, "use Linux 6.7 or newer with CONFIG_PROC_PAGE_MONITOR=y, and mount /proc")
}

/// How scans see which pages are used; always in some way.
pub(super) fn scans() -> Probe {
    let found = match idle::try_out() {
        Ok(()) => "idle page tracking, and sampled unmapping of pages that it does not know".into(),
        Err(why) => match samples::try_out() {
            Ok(source) => {
                format!("samples of loads ({source}) for pages that have some, and sampled unmapping of the others ({why})")
            }
            Err(no_samples) => format!("sampled unmapping ({why}; {no_samples})"),
        },
    };
    Probe::new("scans", Needed::Optional("policies do not see which pages are used"), Ok(found), "")
}

pub(super) fn open_files() -> Probe {
    const RLIMIT_NOFILE: u64 = 7;
    /// Farshore's own descriptors, with room for a large array of swap files.
    const ENOUGH: u64 = 256;
    let mut limit = [0u64; 2];
    let args = [0, RLIMIT_NOFILE, 0, limit.as_mut_ptr() as u64, 0, 0];
    // SAFETY: the kernel writes one struct rlimit64 (two 64-bit numbers) into `limit`.
    let result = match unsafe { raw::syscall_result(nr::PRLIMIT64, args) } {
        Ok(_) if limit[0] >= ENOUGH => Ok(format!("{} (at most {})", limit[0], limit[1])),
        Ok(_) => Err(format!("{} is too few, at least {ENOUGH} are good", limit[0])),
        Err(errno) => Err(format!("prlimit: {errno}")),
    };
    let needed = Needed::Optional("Farshore's files take numbers that the program may want");
    Probe::new("open files (RLIMIT_NOFILE)", needed, result, "`ulimit -n 1024` in the shell that starts Farshore")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        assert_eq!(parse_release("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_release("6.8-rc1"), Some((6, 8)));
        assert_eq!((parse_release("6"), parse_release("x.y")), (None, None));
        assert!(release().is_ok_and(|release| parse_release(&release).is_some()));
        assert_eq!(checked("6.1.0-50-cloud-amd64".into()), Err("6.1.0-50-cloud-amd64 is older than 6.8".into()));
        assert_eq!(checked("7.3.4+deb13-amd64".into()), Ok("7.3.4+deb13-amd64".into()));
    }
}
