//! Looks at swap spaces before they are opened: what can be seen cheaply, without making a file.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farshore_config::{ConfigError, NbdExport, RedisKeys, ServerPlace, Size, SwapSpec};
use rustix::fs::Access;
use rustix::io::Errno;

use crate::refusal::Refusal;

/// With less room than this a space is as good as full.
pub const ROOM_MIN: Size = Size::mib(16);

/// How long an address of several is waited for.
const ANSWER: Duration = Duration::from_secs(2);

/// `spec` with an absolute path, so that it also holds for a program that changes its directory first; and with the address of a
/// server in place of its name, since the library in the program looks up none.
///
/// # Errors
/// The current directory is not known, or the server's name (125).
pub fn absolute(spec: SwapSpec) -> Result<SwapSpec, Refusal> {
    let whole = |path: PathBuf| {
        std::path::absolute(&path).map_err(|error| {
            let shown = path.display();
            Refusal::cannot_start(format!(
                "where '{shown}' lies is not known ({error}): give the swap space by its absolute path"
            ))
        })
    };
    let known = |server: ServerPlace| -> Result<ServerPlace, Refusal> {
        Ok(match server {
            ServerPlace::Unix(path) => ServerPlace::Unix(whole(path)?),
            ServerPlace::Tcp { host, port } => ServerPlace::Tcp { host: address(&host, port)?, port },
        })
    };
    Ok(match spec {
        SwapSpec::Dir(path) => SwapSpec::Dir(whole(path)?),
        SwapSpec::File { path, size } => SwapSpec::File { path: whole(path)?, size },
        SwapSpec::Dev { path, size, force } => SwapSpec::Dev { path: whole(path)?, size, force },
        SwapSpec::Nbd(export) => SwapSpec::Nbd(NbdExport { server: known(export.server)?, ..export }),
        SwapSpec::Redis(keys) => SwapSpec::Redis(RedisKeys {
            server: known(keys.server)?,
            password_file: keys.password_file.map(whole).transpose()?,
            ..keys
        }),
        SwapSpec::Mirror(copies) => {
            let known = SwapSpec::Mirror(copies.into_iter().map(absolute).collect::<Result<_, _>>()?);
            // Two names may be one place.
            known.to_string().parse().map_err(|error: ConfigError| Refusal::cannot_start(error.to_string()))?
        }
        other => other,
    })
}

/// The address of `host`, with the number of its link where it has one: of several, the first at which something answers.
fn address(host: &str, port: u16) -> Result<String, Refusal> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(host.to_owned());
    }
    let wrong = |why: String| {
        Refusal::cannot_start(format!("the server '{host}' of a swap space is not known ({why}): give its address"))
    };
    let found: Vec<_> = (host, port).to_socket_addrs().map_err(|error| wrong(error.to_string()))?.collect();
    let answers = |at: &&SocketAddr| found.len() == 1 || TcpStream::connect_timeout(at, ANSWER).is_ok();
    let chosen = found.iter().find(answers).or(found.first());
    let shown = |found: &SocketAddr| match found {
        SocketAddr::V6(found) if found.scope_id() != 0 => format!("{}%{}", found.ip(), found.scope_id()),
        found => found.ip().to_string(),
    };
    chosen.map(shown).ok_or_else(|| wrong("it has no address".into()))
}

/// Whether `spec` can be opened, as far as looking tells.
///
/// # Errors
/// What is wrong with it, and what to do (125).
pub fn check(spec: &SwapSpec) -> Result<(), Refusal> {
    match spec {
        SwapSpec::Dir(path) => check_folder(spec, path),
        SwapSpec::File { path, .. } => {
            check_file(spec, path)?;
            // A name without a directory in front lies in the current one.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            check_folder(spec, folder)
        }
        SwapSpec::Dev { path, .. } => check_device(spec, path),
        SwapSpec::Mirror(copies) => copies.iter().try_for_each(check),
        SwapSpec::Redis(RedisKeys { password_file: Some(path), .. }) => match std::fs::File::open(path) {
            Ok(_) => Ok(()),
            Err(error) => refuse(
                spec,
                &format!("the file with its password cannot be read ({error}): change its permissions, or name another"),
            ),
        },
        _ => Ok(()),
    }
}

fn refuse(spec: &SwapSpec, why: &str) -> Result<(), Refusal> {
    Err(Refusal::cannot_start(format!("cannot use the swap space '{spec}': {why}")))
}

fn check_folder(spec: &SwapSpec, folder: &Path) -> Result<(), Refusal> {
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Ok(data) if data.is_dir() => {}
        Ok(_) => return refuse(spec, &format!("'{shown}' is not a directory: name a directory on a disk with room")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return refuse(spec, &format!("the directory '{shown}' does not exist: make it, or name another"));
        }
        Err(error) => return refuse(spec, &format!("the directory '{shown}' cannot be reached ({error}): name another")),
    }
    if let Some(kind) = kernels_own(folder) {
        return refuse(
            spec,
            &format!(
                "the directory '{shown}' is of the kernel ({kind}), and no file can be made there: name a directory on a disk"
            ),
        );
    }
    match rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => {}
        Err(Errno::ROFS) => {
            return refuse(spec, &format!("the directory '{shown}' lies on a read-only file system: name another"));
        }
        Err(errno) => return refuse(spec, &format!("the directory '{shown}' is not writable for you ({errno}): name another")),
    }
    let Some(room) = room(folder).filter(|room| *room < ROOM_MIN.bytes()) else { return Ok(()) };
    let room = room >> 10;
    refuse(
        spec,
        &format!("the file system of '{shown}' is full ({room} KiB left, {ROOM_MIN} needed): make room, or name another"),
    )
}

/// File systems that show what the kernel knows, by their numbers in `statfs`. Root may write to their directories, as far as their modes tell.
const KERNELS_OWN: [(i64, &str); 9] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x6367_7270, "cgroup2"),
    (0x27_e0eb, "cgroup"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0x1cd1, "devpts"),
    (0xcafe_4a11, "bpf"),
];

/// What kind of file system of the kernel's a directory lies in, if it does.
fn kernels_own(folder: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(folder).ok()?.f_type;
    KERNELS_OWN.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

/// Whether it is free the library finds out, when it takes it.
fn check_device(spec: &SwapSpec, path: &Path) -> Result<(), Refusal> {
    match std::fs::metadata(path) {
        Ok(data) if data.file_type().is_block_device() => {}
        Ok(_) => return refuse(spec, "it is not a block device: name one, such as /dev/nvme0n1p3, or use dir: or file:"),
        Err(error) => return refuse(spec, &format!("it cannot be reached ({error}): name another")),
    }
    match rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(errno) => refuse(spec, &format!("you may not read and write it ({errno}): change its permissions, or name another")),
    }
}

fn check_file(spec: &SwapSpec, path: &Path) -> Result<(), Refusal> {
    let taken = |data: &Metadata| data.is_file() && data.len() > 0;
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.is_dir() => refuse(spec, "it is a directory: write dir: before it"),
        Ok(data) if data.file_type().is_block_device() => refuse(spec, "it is a block device: write dev: before it"),
        Ok(data) if taken(&data) => refuse(spec, "the file exists and is not empty: remove it, or name another"),
        _ => Ok(()),
    }
}

/// Bytes that an ordinary user may still write to the file system of `path`; `None` if it does not say.
pub fn room(path: &Path) -> Option<u64> {
    let about = rustix::fs::statvfs(path).ok()?;
    // Some file systems (of the kernel's own making) count nothing.
    (about.f_blocks > 0).then(|| about.f_bavail.saturating_mul(about.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_which_no_file_can_be_made_is_refused() {
        for (folder, kind) in [("/proc", "proc"), ("/proc/self/task", "proc"), ("/sys", "sysfs")] {
            let refusal = check(&SwapSpec::Dir(folder.into())).expect_err(folder);
            let part = format!("of the kernel ({kind}), and no file can be made there");
            assert!(refusal.text.contains(&part), "{}", refusal.text);
        }
        assert_eq!(kernels_own(&std::env::temp_dir()), None);
    }
}
