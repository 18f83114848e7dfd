//! Finds `libfarshore.so`, and makes sure that the dynamic linker will load it: it only warns about
//! a preloaded library that it cannot use, and the program would run without Farshore.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use farshore_command::refusal::Refusal;
use farshore_launch::{Elf, FirstLibrary, Work};
use farshore_sys::fd;
use rustix::fs::StatVfsMountFlags;

use crate::program::mounted_with;

/// The library's file name.
pub const FILE_NAME: &str = "libfarshore.so";
/// Names another library file, for tests and unusual installations.
pub const VARIABLE: &str = "FARSHORE_LIBRARY";

/// Where the library is: what `$FARSHORE_LIBRARY` names, or else beside this command or in the
/// `lib` directory next to it.
///
/// # Errors
/// It is nowhere, or it cannot be preloaded (125).
pub fn find() -> Result<PathBuf, Refusal> {
    let path = farshore_command::library::find(FILE_NAME, VARIABLE)?;
    check(&path)?;
    Ok(path)
}

fn check(path: &Path) -> Result<(), Refusal> {
    let shown = path.display();
    let refuse = |why: &str| Err(Refusal::cannot_start(format!("the library '{shown}' {why}")));
    if path.to_str().is_none() {
        return refuse("has a path that is not UTF-8, in which options do not travel: install it elsewhere");
    }
    let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let file = match fd::open(&name, fd::O_RDONLY) {
        Ok(file) => file,
        Err(error) => return refuse(&format!("cannot be read ({error}): make it readable, or set {VARIABLE} to another")),
    };
    let mut buffer = vec![0; Work::BYTES];
    if !matches!(farshore_launch::headers(&file, &mut Work::new(&mut buffer)), Ok(Elf::Program { .. })) {
        return refuse("is not a shared library for x86-64: build and install it again");
    }
    if mounted_with(path, StatVfsMountFlags::NOEXEC) {
        return refuse("lies on a file system that is mounted noexec: install it elsewhere");
    }
    Ok(())
}

/// The value of `LD_PRELOAD` that loads `library` first, but for one that must be (`first`), and the value to give back to the program:
/// what the user had there, without this library (which is in it when farshore runs under farshore).
pub fn preload(library: &Path, first: &FirstLibrary, old: Option<&OsStr>) -> (OsString, Option<OsString>) {
    let words = old.unwrap_or_default().as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    let foreign =
        |word: &&[u8]| !word.is_empty() && Path::new(OsStr::from_bytes(word)).file_name() != Some(OsStr::new(FILE_NAME));
    let words: Vec<&[u8]> = words.filter(foreign).collect();
    let kept = OsStr::from_bytes(&words.join(&b':')).to_os_string();
    let mut value = OsStr::from_bytes(first.or_of(kept.as_bytes())).to_os_string();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library.as_os_str());
    if kept.is_empty() {
        return (value, None);
    }
    value.push(":");
    value.push(&kept);
    (value, Some(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_preload_is_kept_and_ours_comes_first_once() {
        let library = Path::new("/opt/libfarshore.so");
        let of = |old: Option<&str>| {
            let (value, kept) = preload(library, &FirstLibrary::NONE, old.map(OsStr::new));
            (value.into_string().expect("plain"), kept.map(|kept| kept.into_string().expect("plain")))
        };
        assert_eq!(of(None), ("/opt/libfarshore.so".into(), None));
        assert_eq!(of(Some("")), ("/opt/libfarshore.so".into(), None));
        assert_eq!(of(Some("/a.so b.so")), ("/opt/libfarshore.so:/a.so:b.so".into(), Some("/a.so:b.so".into())));
        assert_eq!(of(Some("/else/libfarshore.so:/a.so")), ("/opt/libfarshore.so:/a.so".into(), Some("/a.so".into())));
        assert_eq!(of(Some("/opt/libfarshore.so")), ("/opt/libfarshore.so".into(), None));
        // AddressSanitizer's runtime ends a program where another library is before it.
        let asan = "/usr/lib/libasan.so.8";
        assert_eq!(of(Some(asan)), (format!("{asan}:/opt/libfarshore.so:{asan}"), Some(asan.into())));
    }
}
