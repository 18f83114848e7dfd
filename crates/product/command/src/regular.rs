//! Opens files that somebody else may have named or made: a pipe that nobody writes to, a terminal or a device in a file's place
//! keeps no command waiting, and is not touched.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
}
