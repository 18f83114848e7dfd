//! Record locks (`fcntl`, POSIX) that this process has on a file, as the kernel tells of them.
//!
//! They belong to the table of descriptors, and all of them on a file go when *any* descriptor of the file is closed. Locks of open file descriptions
//! (`F_OFD_SETLK`) and `flock` do not.

use crate::fd::{self, Fd};
use crate::lease;
use crate::raw::Errno;

/// Whether this thread's descriptors have such locks on the file with this device and number ([`lease::About::id`]).
///
/// # Errors
/// What opening and reading `/proc/thread-self` answers: then it is not known.
pub fn has_locks(id: (u64, u64)) -> Result<bool, Errno> {
    let folder = fd::open(c"/proc/thread-self/fd", fd::O_RDONLY)?;
    let mut found = Ok(false);
    fd::each_number_in(&folder, |number| {
        if found == Ok(false) && lease::about(number as i32).is_ok_and(|about| about.id == id) {
            found = made_by(number);
        }
    })?;
    found
}

/// Whether locks were made by this descriptor.
fn made_by(number: u32) -> Result<bool, Errno> {
    match fd::open_formatted(format_args!("/proc/thread-self/fdinfo/{number}"), fd::O_RDONLY) {
        Ok(told) => tells_of_a_lock(&told),
        // It is closed by now, and its locks went with it.
        Err(Errno::ENOENT) => Ok(false),
        Err(why) => Err(why),
    }
}

fn tells_of_a_lock(told: &Fd) -> Result<bool, Errno> {
    const WORD: &[u8] = b"POSIX";
    let (mut bytes, mut kept) = ([0u8; 512], 0);
    loop {
        let got = fd::read(told, &mut bytes[kept..])?;
        let all = kept + got;
        if bytes[..all].windows(WORD.len()).any(|part| part == WORD) || got == 0 {
            return Ok(got != 0);
        }
        // The word may lie across two pieces.
        kept = all.min(WORD.len() - 1);
        bytes.copy_within(all - kept..all, 0);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::raw;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_lock_is_told_of_as_long_as_it_is_there() {
        let path = std::env::temp_dir().join(format!("farshore-record-{}", std::process::id()));
        let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let id = lease::about(file.as_raw_fd()).unwrap().id;
        // Many others, so that the folder comes in pieces.
        let others: Vec<_> = (0..200).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let last = file.try_clone().unwrap();
        let lock = |start: u64, kind: u64| {
            const F_SETLK: u64 = 6;
            // struct flock: kind and from where, start, length, process.
            let asked = [kind, start, 1, 0];
            // SAFETY: the kernel reads the structure.
            unsafe { raw::syscall_result(raw::nr::FCNTL, [file.as_raw_fd() as u64, F_SETLK, asked.as_ptr() as u64, 0, 0, 0]) }
                .unwrap();
        };
        assert_eq!(has_locks(id), Ok(false));
        lock(0, 0);
        assert_eq!(has_locks(id), Ok(true));
        assert_eq!(has_locks((id.0, id.1 + 1)), Ok(false));
        // More than one read tells of.
        (1..40).for_each(|n| lock(2 * n, 1));
        assert_eq!(has_locks(id), Ok(true));
        drop(last);
        assert_eq!(has_locks(id), Ok(false), "a close of another descriptor takes them away");
        drop(others);
    }
}
