//! Finds PROGRAM as `execvp` would, and makes sure that the library will be in it.
//!
//! What the library will not be in is refused before anything is started; `farshore_launch` has the rules. Here is
//! what the user is told.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use farshore_command::refusal::{NOT_EXECUTABLE, Refusal};
use farshore_launch::{Elf, FirstLibrary, Obstacle, Program, Rights, SCRIPTS_MAX, Work};
use rustix::fs::{Access, StatVfsMountFlags};

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
            Err(refusal) if refusal.status == NOT_EXECUTABLE => refused = refused.or(Some(refusal)),
            Err(_) => {}
        }
    }
    let shown = name.display();
    Err(refused.unwrap_or_else(|| {
        Refusal::not_found(format!("'{shown}' was not found in PATH: check the spelling, or give the program's path"))
    }))
}

/// Whether `path` can be executed, as far as its name, kind and mode go.
///
/// # Errors
/// It is not there (127), or it is there and not executable (126).
pub fn executable(path: &Path) -> Result<(), Refusal> {
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

/// How the library comes into a program.
#[derive(Debug)]
pub enum Way {
    /// Its dynamic linker loads it, after this one.
    Preloaded(FirstLibrary),
    /// A helper puts it there.
    Hosted,
}

/// Whether the program at `path`, which [`find`] found, will have the library, and how.
///
/// # Errors
/// It will not, with the reason (125); a script's interpreter is missing (127) or not executable (126).
pub fn check(path: &Path) -> Result<Way, Refusal> {
    let rights = Rights::of_this_thread();
    if rights.differ() {
        let ((uid, gid), (euid, egid)) = (rights.real, rights.effective);
        return Err(Refusal::cannot_start(format!(
            "farshore runs as user {uid} with the rights of another (user {euid}, groups {gid} and {egid}), and LD_PRELOAD is ignored then: run it without"
        )));
    }
    let mut buffer = vec![0; Work::BYTES];
    let mut work = Work::new(&mut buffer);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Refusal::not_found("the program's name has a zero byte"))?;
    match farshore_launch::check(&Program::at(&name), &rights, &mut work) {
        Ok(_) | Err(Obstacle::Command) => Ok(Way::Preloaded(work.first_library())),
        Err(obstacle) if obstacle.is_hosted() => Ok(Way::Hosted),
        Err(obstacle) => Err(refusal(path, obstacle, &work)),
    }
}

/// What the user is told. `work` knows which interpreter and which dynamic linker it is about.
fn refusal(path: &Path, obstacle: Obstacle, work: &Work<'_>) -> Refusal {
    let script = path.display();
    let interpreter = work.interpreter().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())));
    let whose = match interpreter {
        None => format!("'{script}'"),
        Some(interpreter) => format!("'{}', which runs the script '{script}',", interpreter.display()),
    };
    let system = |errno: farshore_sys::raw::Errno| io::Error::from_raw_os_error(errno.0);
    let ignored = "and the system ignores LD_PRELOAD then";
    let text = match obstacle {
        Obstacle::Missing(_) | Obstacle::NotAFile | Obstacle::NotExecutable(_) => {
            let (file, what) = match interpreter {
                None => (path, String::new()),
                Some(interpreter) => (interpreter, format!("the interpreter of the script '{script}': ")),
            };
            // What `find` has seen of the program itself has changed since.
            let gone = || Refusal::not_found(format!("'{}' was there and is not any more: check the path", file.display()));
            let Refusal { status, text } = executable(file).err().unwrap_or_else(gone);
            return Refusal { status, text: format!("{what}{text}") };
        }
        Obstacle::Unreadable(why) => {
            let why = system(why);
            format!("{whose} cannot be read ({why}), so it is not known whether it works with Farshore: chmod +r it")
        }
        Obstacle::Unknown => {
            format!("{whose} is neither an ELF program nor a script that begins with '#!': give the program that runs it")
        }
        Obstacle::Scripts => format!(
            "'{script}' is a script that is run by a script, and so on more than {SCRIPTS_MAX} times: run its last interpreter yourself"
        ),
        Obstacle::Elf(elf) => format!("{whose} {}", of_elf(elf)),
        Obstacle::LoaderMissing(_) => {
            let shown = OsStr::from_bytes(work.loader().to_bytes()).display();
            return Refusal::not_found(format!(
                "{whose} needs the dynamic linker '{shown}', which does not exist: install glibc there"
            ));
        }
        Obstacle::Command | Obstacle::Alone | Obstacle::Musl | Obstacle::Loader => unreachable!("it may be started"),
        Obstacle::Secure => format!("{whose} would run with other rights than the user's, {ignored}: run it without farshore"),
        Obstacle::SetUser(owner) => format!(
            "{whose} is set-user-ID (it runs with the rights of user {owner}), {ignored}: run farshore as user {owner}, or the program without it"
        ),
        Obstacle::SetGroup(owner) => format!(
            "{whose} is set-group-ID (it runs with the rights of group {owner}), {ignored}: run farshore in group {owner}, or the program without it"
        ),
        Obstacle::Regains => format!(
            "{whose} is static and regains capabilities that this process has given away, which Farshore's way into it would prevent: run farshore with them"
        ),
        Obstacle::Capabilities => format!(
            "{whose} has file capabilities, {ignored}: run farshore as root, remove them with 'setcap -r', or run the program without it"
        ),
    };
    Refusal::cannot_start(text)
}

fn of_elf(elf: Elf) -> String {
    match elf {
        Elf::Damaged(why) => format!("is a damaged ELF file ({why}): install it again"),
        Elf::Not64Bit(machine) => {
            format!("is a 32-bit program ({machine}), Farshore runs 64-bit ones only: install its 64-bit build")
        }
        Elf::OtherMachine(machine) => {
            format!("is a program for {machine}, Farshore runs x86-64 ones only: install its x86-64 build")
        }
        Elf::NotAProgram { kind } => {
            let kind = match kind {
                1 => "an object file".to_string(),
                4 => "a core dump".to_string(),
                other => format!("type {other}"),
            };
            format!("is an ELF file but not a program ({kind}): name a program")
        }
        Elf::Program { .. } => unreachable!("it may be started"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_command::refusal::NOT_FOUND;

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
}
