//! Opens files that somebody else may have named or made: a pipe that nobody writes to, a terminal or a device in a file's place
//! keeps no command waiting, and is not touched. And writes beside such a file: a link that somebody has laid there leads to no
//! other file.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Opens a regular file for reading, and says what it is: the file that was opened, and not what lies at the path by then.
///
/// # Errors
/// It cannot be opened, or is something else ("it is no regular file").
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // To open some devices already does something.
    if !std::fs::metadata(path)?.is_file() {
        return Err(not_regular());
    }
    // Without the first flag a pipe waits for somebody who writes; without the second a terminal becomes that of this command.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(not_regular());
    }
    Ok((file, data))
}

/// Writes a file that is for its user alone. It takes the place of whatever has its name: nobody sees a part of it, and what a
/// link of that name leads to stays as it is. If it cannot be written, what was there stays.
///
/// # Errors
/// The directory or its disk does not take it, or the name is that of a directory.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(bytes).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

fn not_regular() -> io::Error {
    io::Error::other("it is no regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = std::env::temp_dir().join(format!("farshore-regular-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("it is new");
        let (pipe, file, link) = (folder.join("pipe"), folder.join("file"), folder.join("link"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe can be made");
        std::fs::write(&file, "text").expect("there is room");
        std::os::unix::fs::symlink(&file, &link).expect("links can be made");
        for other in [&pipe, &folder, Path::new("/dev/null")] {
            assert_eq!(open(other).expect_err("it is none").to_string(), "it is no regular file", "{}", other.display());
        }
        for one in [&file, &link] {
            assert_eq!(open(one).expect("it is one").1.len(), 4, "{}", one.display());
        }
        assert_eq!(open(&folder.join("none")).expect_err("it is not there").kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&folder).expect("it is this test's");
    }

    #[test]
    fn what_is_written_takes_the_place_of_a_link_and_is_for_its_user_alone() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = std::env::temp_dir().join(format!("farshore-replaced-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("it is new");
        let (other, page, place) = (folder.join("other"), folder.join("page"), folder.join("place"));
        std::fs::write(&other, "precious").expect("there is room");
        symlink(&other, &page).expect("links can be made");
        for text in ["one", "another"] {
            replace(&page, text.as_bytes()).expect("there is room");
            let is = page.symlink_metadata().expect("it is there");
            assert!(is.is_file() && is.permissions().mode() & 0o777 == 0o600, "{is:?}");
            assert_eq!(std::fs::read_to_string(&page).expect("it is there"), text);
        }
        assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "precious");
        // What cannot be written leaves nothing behind.
        std::fs::create_dir(&place).expect("it is new");
        replace(&place, b"x").expect_err("it is a directory");
        assert_eq!(std::fs::read_dir(&folder).expect("it is there").count(), 3);
        std::fs::remove_dir_all(&folder).expect("it is this test's");
    }
}
