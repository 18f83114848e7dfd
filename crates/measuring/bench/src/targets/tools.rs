//! The system's tools, and small files of the kernel's. Every error is one line that names the tool or the file.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where administrators' tools are, though a PATH may leave it out.
const MORE_PLACES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Finds a tool in PATH, and where administrators' tools are.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(MORE_PLACES.map(PathBuf::from));
    // An empty word of PATH is the current directory: not a place to take tools from.
    places.filter(|place| place.is_absolute()).map(|place| place.join(name)).find(|file| is_executable(file))
}

/// Whether this is a file that may be executed by somebody.
#[must_use]
pub fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// Finds a tool.
///
/// # Errors
/// It is not there: the package that has it is named.
pub fn need(name: &str, package: &str) -> Result<PathBuf, String> {
    find(name).ok_or_else(|| format!("'{name}' is not there: install the package {package}"))
}

/// Runs a tool and returns what it printed. It leads a process group of its own: Ctrl-C on the terminal is not for it.
///
/// # Errors
/// It is not there, or failed: what it said.
pub fn run<S: AsRef<OsStr>>(name: &str, package: &str, arguments: &[S]) -> Result<String, String> {
    let mut command = Command::new(need(name, package)?);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let done = command.output().map_err(|error| format!("cannot start '{name}' ({error})"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = one_line(&String::from_utf8_lossy(&done.stderr));
    let said = said.strip_prefix(&format!("{name}: ")).unwrap_or(&said);
    Err(if said.is_empty() { format!("{name} failed ({})", done.status) } else { format!("{name}: {said}") })
}

/// The lines of a message as one.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Reads a file of the kernel's, without the white space around.
///
/// # Errors
/// It cannot be read.
pub fn read(file: &Path) -> Result<String, String> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().to_string()),
        Err(error) => Err(format!("cannot read '{}' ({})", file.display(), reason(&error))),
    }
}

/// Writes to a file of the kernel's.
///
/// # Errors
/// It cannot be written, such as in a container where /sys is read-only.
pub fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("cannot write {text:?} to '{}' ({})", file.display(), reason(&error)))
}

/// The system's words for an error, without its number.
#[must_use]
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

/// Refuses everybody but root.
///
/// # Errors
/// This process is not root's.
pub fn need_root(what: &str) -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(format!("root is needed: {what}; start it by sudo, or as root"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_and_their_errors_told() {
        assert!(find("sh").is_some_and(|path| is_executable(&path)));
        assert_eq!(need("no-such-tool", "nothing").unwrap_err(), "'no-such-tool' is not there: install the package nothing");
        assert_eq!(run("sh", "dash", &["-c", "echo yes"]).unwrap(), "yes\n");
        assert_eq!(run("sh", "dash", &["-c", "echo one >&2; echo two >&2; exit 3"]).unwrap_err(), "sh: one; two");
        assert_eq!(run("sh", "dash", &["-c", "exit 3"]).unwrap_err(), "sh failed (exit status: 3)");
    }

    #[test]
    fn files_are_named_in_errors() {
        let missing = Path::new("/proc/nothing/here");
        assert_eq!(read(missing).unwrap_err(), "cannot read '/proc/nothing/here' (No such file or directory)");
        assert_eq!(write(missing, "Y").unwrap_err(), "cannot write \"Y\" to '/proc/nothing/here' (No such file or directory)");
    }
}
