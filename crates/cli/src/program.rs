//! Finds PROGRAM as `execvp` would, and makes sure that the library will be in it.
//!
//! Farshore enters a program by `LD_PRELOAD`. Where the dynamic linker does not run, or ignores
//! that variable, the program would run without Farshore and nobody would know. So each such case
//! is refused before anything is started:
//!
//! - no dynamic linker: static programs (no `PT_INTERP`, static-pie among them);
//! - another one: musl's and others, whose libc the library was not built for;
//! - other machines: 32-bit programs, x32, other processors;
//! - programs that would gain rights: set-user-ID, set-group-ID, file capabilities. The kernel then
//!   sets `AT_SECURE`, and the linker drops `LD_PRELOAD`. The rule here is the kernel's: no rights
//!   are gained on a `nosuid` mount, under `no_new_privs`, or by one who has them already;
//! - files that are neither ELF nor a script.
//!
//! For a script (`#!`) the interpreter is what the kernel loads, so that is what is checked; an
//! interpreter may be a script too. What an interpreter starts later (`/usr/bin/env python3`) is
//! not looked at: it is a program that the program starts.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags};
use rustix::io::Errno;

use crate::elf::{self, Elf};
use crate::refusal::Refusal;

/// Scripts that may be run by scripts; the kernel allows one more.
const SCRIPT_LEVELS: usize = 4;
/// How much of a script's first line the kernel looks at.
const SCRIPT_HEAD: usize = 256;

/// The file that `execvp(name)` would execute.
///
/// # Errors
/// It is not there (127), or it is there and not executable (126).
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    find_in(name, std::env::var_os("PATH"))
}

fn find_in(name: &OsStr, path: Option<OsString>) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(Refusal::not_found("the program's name is empty: give a name or a path"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path);
    }
    // What execvp takes when there is no PATH at all.
    let search = path.unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for folder in search.as_bytes().split(|byte| *byte == b':') {
        let folder = if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) };
        let candidate = folder.join(name);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(refusal) if refusal.status == crate::refusal::NOT_EXECUTABLE => refused = refused.or(Some(refusal)),
            Err(_) => {}
        }
    }
    let shown = name.display();
    Err(refused.unwrap_or_else(|| {
        Refusal::not_found(format!("'{shown}' was not found in PATH: check the spelling, or give the program's path"))
    }))
}

/// Whether `path` can be executed, as far as its name, kind and mode go.
fn executable(path: &Path) -> Result<(), Refusal> {
    let shown = path.display();
    let data = match std::fs::metadata(path) {
        Ok(data) => data,
        Err(error) => {
            return Err(match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => {
                    Refusal::not_found(format!("'{shown}' does not exist: check the path"))
                }
                _ => {
                    Refusal::not_executable(format!("'{shown}' cannot be reached ({error}): check the rights of its directories"))
                }
            });
        }
    };
    if data.is_dir() {
        return Err(Refusal::not_executable(format!("'{shown}' is a directory: name a program in it")));
    }
    if !data.is_file() {
        return Err(Refusal::not_executable(format!("'{shown}' is not a regular file: name a program")));
    }
    match rustix::fs::access(path, Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(_) if mounted_with(path, StatVfsMountFlags::NOEXEC) => {
            Err(Refusal::not_executable(format!("'{shown}' lies on a file system that is mounted noexec: copy it elsewhere")))
        }
        Err(_) => {
            let mode = data.permissions().mode() & 0o7777;
            Err(Refusal::not_executable(format!("'{shown}' is not executable (its mode is {mode:04o}): chmod +x it")))
        }
    }
}

/// Whether `path` lies on a file system that is mounted with `flag`; `false` when that is not known.
pub fn mounted_with(path: &Path, flag: StatVfsMountFlags) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|about| about.f_flag.contains(flag))
}

/// Whether the program at `path`, which [`find`] found, will load the library.
///
/// # Errors
/// It will not, with the reason (125); a script's interpreter is missing (127) or not executable (126).
pub fn check(path: &Path) -> Result<(), Refusal> {
    let user = Rights::of_this_process();
    if user.real != user.effective {
        let ((uid, gid), (euid, egid)) = (user.real, user.effective);
        return Err(Refusal::cannot_start(format!(
            "farshore runs as user {uid} with the rights of another (user {euid}, groups {gid} and {egid}), and LD_PRELOAD is ignored then: run it without"
        )));
    }
    check_for(path, &user)
}

fn check_for(path: &Path, user: &Rights) -> Result<(), Refusal> {
    let mut file = path.to_path_buf();
    for _ in 0..=SCRIPT_LEVELS {
        let whose = if file == path {
            format!("'{}'", path.display())
        } else {
            format!("'{}', which runs the script '{}',", file.display(), path.display())
        };
        let mut opened = File::open(&file).map_err(|error| {
            Refusal::cannot_start(format!(
                "{whose} cannot be read ({error}), so it is not known whether it works with Farshore: chmod +r it"
            ))
        })?;
        let unreadable = |error: io::Error| {
            Refusal::cannot_start(format!("{whose} cannot be read ({error}): check the file system it lies on"))
        };
        let mut head = Vec::new();
        (&mut opened).take(SCRIPT_HEAD as u64).read_to_end(&mut head).map_err(unreadable)?;
        if head.starts_with(elf::MAGIC) {
            check_elf(&elf::parse(opened), &whose)?;
            let data = std::fs::metadata(&file).map_err(unreadable)?;
            return check_rights(&file, &data, user, &whose);
        }
        file = interpreter(&head).ok_or_else(|| {
            Refusal::cannot_start(format!(
                "{whose} is neither an ELF program nor a script that begins with '#!': give the program that runs it"
            ))
        })?;
        executable(&file).map_err(|refusal| Refusal {
            status: refusal.status,
            text: format!("the interpreter of the script '{}': {}", path.display(), refusal.text),
        })?;
    }
    let shown = path.display();
    Err(Refusal::cannot_start(format!(
        "'{shown}' is a script that is run by a script, and so on more than {SCRIPT_LEVELS} times: run its last interpreter yourself"
    )))
}

/// The interpreter named by a script's first line.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\0')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn check_elf(elf: &Elf, whose: &str) -> Result<(), Refusal> {
    let text = match elf {
        Elf::Damaged(why) => format!("{whose} is a damaged ELF file ({why}): install it again"),
        Elf::Not64Bit { machine } => {
            format!("{whose} is a 32-bit program ({machine}), Farshore runs 64-bit ones only: install its 64-bit build")
        }
        Elf::OtherMachine { machine } => {
            format!("{whose} is a program for {machine}, Farshore runs x86-64 ones only: install its x86-64 build")
        }
        Elf::NotAProgram { kind } => format!("{whose} is an ELF file but not a program ({kind}): name a program"),
        Elf::Program { interpreter: None } => {
            format!(
                "{whose} is a static program, which loads no library and so not Farshore's: use a dynamically linked build of it"
            )
        }
        Elf::Program { interpreter: Some(interpreter) } => return check_interpreter(interpreter, whose),
    };
    Err(Refusal::cannot_start(text))
}

/// Whether the dynamic linker is glibc's and is there.
fn check_interpreter(interpreter: &OsStr, whose: &str) -> Result<(), Refusal> {
    let path = Path::new(interpreter);
    let (shown, name) = (path.display(), path.file_name().unwrap_or_default().as_bytes());
    if name.starts_with(b"ld-musl") {
        return Err(Refusal::cannot_start(format!(
            "{whose} is linked with musl ('{shown}'), Farshore works with glibc only: use a glibc build of it"
        )));
    }
    if !name.starts_with(b"ld-linux-x86-64.so") {
        return Err(Refusal::cannot_start(format!(
            "{whose} is loaded by '{shown}', Farshore works with glibc's ld-linux-x86-64.so only: use a glibc build of it"
        )));
    }
    if !path.exists() {
        return Err(Refusal::not_found(format!(
            "{whose} needs the dynamic linker '{shown}', which does not exist: install glibc there"
        )));
    }
    Ok(())
}

/// What decides whether executing a file gains rights.
struct Rights {
    /// Real user and group.
    real: (u32, u32),
    /// Effective user and group.
    effective: (u32, u32),
    no_new_privs: bool,
}

impl Rights {
    fn of_this_process() -> Self {
        use rustix::process::{getegid, geteuid, getgid, getuid};
        Rights {
            real: (getuid().as_raw(), getgid().as_raw()),
            effective: (geteuid().as_raw(), getegid().as_raw()),
            no_new_privs: rustix::thread::no_new_privs().unwrap_or(false),
        }
    }
}

fn check_rights(file: &Path, data: &Metadata, user: &Rights, whose: &str) -> Result<(), Refusal> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o0010;
    if user.no_new_privs || mounted_with(file, StatVfsMountFlags::NOSUID) {
        return Ok(());
    }
    let mode = data.mode();
    let ignored = "and the system ignores LD_PRELOAD then";
    if mode & SETUID != 0 && data.uid() != user.real.0 {
        let owner = data.uid();
        return Err(Refusal::cannot_start(format!(
            "{whose} is set-user-ID (it runs with the rights of user {owner}), {ignored}: run farshore as user {owner}, or the program without it"
        )));
    }
    // Without the group's execute bit the set-group-ID bit means something else.
    if mode & SETGID != 0 && mode & GROUP_EXECUTE != 0 && data.gid() != user.real.1 {
        let owner = data.gid();
        return Err(Refusal::cannot_start(format!(
            "{whose} is set-group-ID (it runs with the rights of group {owner}), {ignored}: run farshore in group {owner}, or the program without it"
        )));
    }
    if user.real.0 != 0 && gains_capabilities(file) {
        return Err(Refusal::cannot_start(format!(
            "{whose} has file capabilities, {ignored}: run farshore as root, remove them with 'setcap -r', or run the program without it"
        )));
    }
    Ok(())
}

/// Whether `file` has capabilities that a user other than root gains by executing it.
fn gains_capabilities(file: &Path) -> bool {
    let mut value = [0_u8; 64];
    match rustix::fs::getxattr(file, c"security.capability", &mut value[..]) {
        Ok(length) => grants_capabilities(value.get(..length).unwrap_or(&value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
        // It has some, in a form that is not known here.
        Err(errno) => errno == Errno::RANGE,
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
    use super::*;
    use crate::refusal::{NOT_EXECUTABLE, NOT_FOUND};

    #[test]
    fn a_scripts_first_line_is_read_as_the_kernel_does() {
        let of = |head: &[u8]| interpreter(head).map(|path| path.into_os_string().into_string().expect("plain name"));
        assert_eq!(of(b"#!/bin/sh\n"), Some("/bin/sh".into()));
        assert_eq!(of(b"#! \t/bin/sh -e\nrest"), Some("/bin/sh".into()));
        assert_eq!(of(b"#!/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(of(b"#!\n/bin/sh"), None);
        assert_eq!(of(b"#!"), None);
        assert_eq!(of(b"echo hello\n"), None);
        assert_eq!(of(b""), None);
    }

    #[test]
    fn path_is_searched_like_execvp() {
        assert_eq!(find_in(OsStr::new("sh"), Some("/nonexistent:/bin".into())).expect("sh is there"), Path::new("/bin/sh"));
        assert_eq!(find_in(OsStr::new("sh"), None).expect("sh is there"), Path::new("/bin/sh"));
        assert_eq!(find_in(OsStr::new(""), None).unwrap_err().status, NOT_FOUND);
        assert_eq!(find_in(OsStr::new("no-such-program"), None).unwrap_err().status, NOT_FOUND);
        // A directory of that name is no program, and is remembered only when nothing better comes.
        assert_eq!(find_in(OsStr::new("bin"), Some("/usr".into())).unwrap_err().status, NOT_EXECUTABLE);
        assert_eq!(find_in(OsStr::new("/bin/sh/x"), None).unwrap_err().status, NOT_FOUND);
    }

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
        let Ok(sudo) = ["/usr/bin/su", "/bin/su", "/usr/bin/passwd"]
            .iter()
            .map(Path::new)
            .find(|path| std::fs::metadata(path).is_ok_and(|data| data.mode() & 0o4000 != 0 && data.uid() == 0))
            .ok_or(())
        else {
            println!("skipped: no set-user-ID program of root here");
            return;
        };
        let data = std::fs::metadata(sudo).expect("it was there");
        let user = |uid, no_new_privs| Rights { real: (uid, uid), effective: (uid, uid), no_new_privs };
        let gains = |user: &Rights| check_rights(sudo, &data, user, "it").is_err();
        if mounted_with(sudo, StatVfsMountFlags::NOSUID) {
            println!("skipped: {} lies on a nosuid mount", sudo.display());
            return;
        }
        assert!(gains(&user(65_534, false)));
        assert!(!gains(&user(65_534, true)));
        assert!(!gains(&user(0, false)));
    }
}
