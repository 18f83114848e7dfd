//! What the kernel tells of a process, as text.
//!
//! A process may have any bytes in its name, and so may a file that it has mapped. Often it is the kernel that makes them so: it keeps
//! the first 15 bytes of a program's name, and a letter of two bytes may lie across that. What is wanted of such a file are its other
//! fields, so bytes that are no text are replaced, and the rest is read.

use std::io;

/// The file `/proc/PID/FILE` as text; bytes that are none become U+FFFD.
///
/// # Errors
/// There is no such process, or it may not be looked at.
pub fn told(pid: u32, file: &str) -> io::Result<String> {
    std::fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    #[test]
    fn a_process_with_any_bytes_in_its_name_is_told_of() {
        let folder = std::env::temp_dir().join(format!("farshore-process-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("it is new");
        let program = folder.join(OsStr::from_bytes(b"name \xff) Z"));
        std::fs::copy("/bin/sleep", &program).expect("there is room");
        let mut child = Command::new(&program).arg("1000").spawn().expect("it can be run");
        let texts = ["status", "stat", "maps"].map(|file| told(child.id(), file));
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
        std::fs::remove_dir_all(&folder).expect("it is this test's");
        let [status, stat, maps] = texts.map(|text| text.expect("it was there"));
        assert!(status.starts_with("Name:\tname \u{fffd}) Z\n") && status.contains("\nUid:\t"), "{status}");
        assert!(stat.contains("(name \u{fffd}) Z) "), "{stat}");
        assert!(maps.contains("/name \u{fffd}) Z\n"), "{maps}");
        // Beyond the kernel's largest process id.
        assert_eq!(told(2_000_000_000, "stat").expect_err("it is not there").kind(), io::ErrorKind::NotFound);
    }
}
