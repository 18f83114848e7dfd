//! Whether a program gains rights when it is executed.

use crate::Obstacle;
use crate::open::errno;
use farshore_sys::fd::Fd;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, capability_is_in_bounding_set};

/// What decides whether executing a file gains rights.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// Real user and group.
    pub real: (u32, u32),
    /// Effective user and group.
    pub effective: (u32, u32),
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privs: bool,
}

impl Rights {
    /// Of the calling thread.
    pub fn of_this_thread() -> Rights {
        Rights {
            real: (getuid().as_raw(), getgid().as_raw()),
            effective: (geteuid().as_raw(), getegid().as_raw()),
            no_new_privs: rustix::thread::no_new_privs().unwrap_or(false),
        }
    }

    /// Whether every program ignores `LD_PRELOAD`, because this process has other rights than its user's.
    pub fn differ(&self) -> bool {
        self.real != self.effective
    }

    /// Whether a program gains capabilities by being executed, since root has given some away: the kernel leaves that out for a program that is
    /// traced by one without `CAP_SYS_PTRACE` (capabilities(7), "Capabilities and execution of programs by root").
    pub(crate) fn regains_capabilities(&self) -> bool {
        let is_root = self.real.0 == 0 || self.effective.0 == 0;
        let Some(sets) = is_root.then(|| rustix::thread::capabilities(None).ok()).flatten() else { return false };
        let keeps = rustix::thread::capabilities_secure_bits().is_ok_and(|bits| bits.contains(CapabilitiesSecureBits::NO_ROOT));
        !sets.effective.contains(CapabilitySet::SYS_PTRACE)
            && !keeps
            && (CapabilitySet::all() - sets.permitted).iter().any(|one| capability_is_in_bounding_set(one).unwrap_or(false))
    }

    /// Whether the program in `file` runs with these rights and no others.
    pub(crate) fn check(&self, file: &Fd) -> Result<(), Obstacle> {
        const SETUID: u32 = 0o4000;
        const SETGID: u32 = 0o2000;
        const GROUP_EXECUTE: u32 = 0o0010;
        let unreadable = |why| Obstacle::Unreadable(errno(why));
        let about = rustix::fs::fstat(file).map_err(unreadable)?;
        let mode = about.st_mode;
        // Without the group's execute bit the set-group-ID bit means something else.
        let set_user = mode & SETUID != 0 && about.st_uid != self.real.0;
        let set_group = mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE && about.st_gid != self.real.1;
        let obstacle = if set_user {
            Obstacle::SetUser(about.st_uid)
        } else if set_group {
            Obstacle::SetGroup(about.st_gid)
        } else if self.real.0 != 0 && gains_capabilities(file) {
            Obstacle::Capabilities
        } else {
            return Ok(());
        };
        if self.no_new_privs || is_on_nosuid_mount(file) { Ok(()) } else { Err(obstacle) }
    }
}

/// `false` where that is not known.
fn is_on_nosuid_mount(file: &Fd) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOSUID))
}

/// Whether `file` has capabilities that a user other than root gains by executing it.
fn gains_capabilities(file: &Fd) -> bool {
    let mut value = [0_u8; 64];
    match rustix::fs::fgetxattr(file, c"security.capability", &mut value[..]) {
        Ok(length) => grants_capabilities(value.get(..length).unwrap_or(&value)),
        // It has some, in a form that is not known here.
        Err(why) => why == Errno::RANGE,
    }
}

/// Reads the attribute `security.capability`: a word with the effective flag, then pairs of
/// (permitted, inheritable) words. Inheritable ones alone grant nothing to a process without.
fn grants_capabilities(value: &[u8]) -> bool {
    let word = |index: usize| {
        let bytes = value.get(index * 4..index * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let effective = word(0).is_some_and(|flags| flags & 1 != 0);
    let permitted = word(1).unwrap_or(0) | word(3).unwrap_or(0);
    effective || permitted != 0
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::Program;
    use std::println;
    use std::vec::Vec;

    #[test]
    fn capabilities_that_grant_nothing_are_told_from_those_that_do() {
        let attribute = |words: [u32; 5]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        assert!(grants_capabilities(&attribute([0x0200_0001, 1 << 10, 0, 0, 0])));
        assert!(grants_capabilities(&attribute([0x0200_0000, 1 << 10, 0, 0, 0])));
        assert!(grants_capabilities(&attribute([0x0200_0000, 0, 0, 1, 0])));
        assert!(!grants_capabilities(&attribute([0x0200_0000, 0, 1 << 10, 0, 1])));
        assert!(!grants_capabilities(&[]));
    }

    #[test]
    fn rights_are_gained_by_the_kernels_rule() {
        let candidates = [c"/usr/bin/su", c"/bin/su", c"/usr/bin/passwd"];
        let is_setuid = |file: &Fd| rustix::fs::fstat(file).is_ok_and(|about| about.st_mode & 0o4000 != 0 && about.st_uid == 0);
        let found = candidates.iter().filter_map(|path| Program::at(path).open().ok()).find(is_setuid);
        let Some(file) = found.filter(|file| !is_on_nosuid_mount(file)) else {
            println!("skipped: no set-user-ID program of root here, or on a nosuid mount");
            return;
        };
        let user = |uid, no_new_privs| Rights { real: (uid, uid), effective: (uid, uid), no_new_privs };
        assert_eq!(user(65_534, false).check(&file), Err(Obstacle::SetUser(0)));
        assert_eq!(user(65_534, true).check(&file), Ok(()));
        assert_eq!(user(0, false).check(&file), Ok(()));
    }
}
