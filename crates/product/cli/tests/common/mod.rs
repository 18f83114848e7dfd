//! What the tests of the command share.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The built command, without anything of the caller's environment that it reads.
pub fn farshore() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_farshore")))
}

/// The same as an ordinary user; `None` (and a line that says so) where that cannot be.
pub fn farshore_as_nobody() -> Option<Command> {
    let mut probe = as_nobody(Path::new(env!("CARGO_BIN_EXE_farshore")))?;
    let runs = probe.arg("--version").output().is_ok_and(|output| output.status.success());
    if !runs {
        println!("skipped: the built command cannot be reached by user 65534 (build in a directory that others may enter)");
        return None;
    }
    as_nobody(Path::new(env!("CARGO_BIN_EXE_farshore"))).map(clean)
}

fn as_nobody(program: &Path) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(program);
    Some(command)
}

/// `command` without anything of the caller's environment that the command reads, and with nothing to read.
pub fn clean(mut command: Command) -> Command {
    for name in ["FARSHORE_LIBRARY", "FARSHORE_OPTIONS", "FARSHORE_OLD_PRELOAD", "FARSHORE_SWAP_DIR", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// A shared library that does no harm when it is preloaded: the C library, which is there anyway.
/// The command is tested with it where it does not matter what the library does.
pub fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libc.so"));
    PathBuf::from(path.expect("this test is linked with libc.so"))
}

/// The real library; `None` (and a line that says so) where it is not built.
pub fn real_library() -> Option<PathBuf> {
    let named = std::env::var_os("FARSHORE_LIBRARY").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_BIN_EXE_farshore")).with_file_name("libfarshore.so");
    let found = named.into_iter().chain([beside]).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: libfarshore.so is not built");
    }
    found
}

/// The exit status and what went to stderr.
pub fn outcome(output: &Output) -> (i32, String) {
    let status = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
    (status, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Asserts that `command` is refused with `status` by one line of stderr that holds `parts`.
#[track_caller]
pub fn refused(command: &mut Command, status: i32, parts: &[&str]) {
    let output = command.output().expect("the command starts");
    let (got, text) = outcome(&output);
    assert_eq!(got, status, "{command:?}: {text}");
    assert!(output.stdout.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(text.starts_with("farshore: ") && text.ends_with('\n'), "{command:?}: {text:?}");
    assert_eq!(text.lines().count(), 1, "{command:?}: {text:?}");
    for part in parts {
        assert!(text.contains(part), "{command:?}: {part:?} is not in {text:?}");
    }
}

/// A directory that everybody may enter, removed at the end.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// A fresh one.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farshore-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("the temporary directory is writable");
        let folder = Folder(path);
        folder.set_mode("", 0o755);
        folder
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file with a mode.
    pub fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        std::fs::write(self.path(name), bytes).expect("it can be written");
        self.set_mode(name, mode);
        self.path(name)
    }

    /// Changes the mode of the file `name`.
    pub fn set_mode(&self, name: &str, mode: u32) {
        let path = if name.is_empty() { self.0.clone() } else { self.path(name) };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An ELF file of 64 bytes and, with `interpreter`, one `PT_INTERP` segment.
pub fn elf(class: u8, machine: u16, kind: u16, interpreter: Option<&str>) -> Vec<u8> {
    let mut bytes = vec![0_u8; 64];
    bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
    bytes[16..18].copy_from_slice(&kind.to_le_bytes());
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[20] = 1;
    bytes[52] = 64;
    let Some(name) = interpreter else { return bytes };
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = 1;
    let mut segment = [0_u8; 56];
    segment[0] = 3;
    segment[8] = 120;
    segment[32] = u8::try_from(name.len() + 1).expect("a short name");
    bytes.extend(segment);
    bytes.extend(name.bytes().chain([0]));
    bytes
}

/// `farshore run --memory 64M` with `options`, for `program`.
pub fn run(options: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = farshore();
    command.args(["run", "--memory", "64M"]).args(options).arg("--").arg(program);
    command
}
