//! Which place of this machine a copy has. A directory, a file and a device may have several names: by two of them, two copies would lie on one disk.

use farshore_config::SwapSpec;
use rustix::fs::{FileType, stat};
use std::ffi::OsString;
use std::path::Path;

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Site {
    /// A directory: its file system, and its number there.
    Directory(u64, u64),
    /// A file in a directory. It loses its name when it is made.
    File(u64, u64, OsString),
    /// A device.
    Device(u64),
}

impl Site {
    /// `None`: it is no place of this machine, or nothing is there. May wait for a disk.
    pub(super) fn of(spec: &SwapSpec) -> Option<Site> {
        let directory = |path: &Path| stat(path).ok().map(|found| (found.st_dev, found.st_ino));
        match spec {
            SwapSpec::Dir(path) => directory(path).map(|(disk, number)| Site::Directory(disk, number)),
            SwapSpec::File { path, .. } => {
                let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
                let (disk, number) = directory(parent)?;
                Some(Site::File(disk, number, path.file_name()?.to_owned()))
            }
            SwapSpec::Dev { path, .. } => {
                let found = stat(path).ok()?;
                (FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice).then_some(Site::Device(found.st_rdev))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(spec: &str) -> Option<Site> {
        Site::of(&spec.parse().unwrap())
    }

    #[test]
    fn a_directory_is_known_by_each_of_its_names() {
        let place = std::env::temp_dir().join(format!("farshore-site-{}", std::process::id()));
        let there = place.display();
        for name in ["one", "other"] {
            std::fs::create_dir_all(place.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("one", place.join("link")).unwrap();
        let one = site(&format!("dir:{there}/one"));
        assert!(one.is_some());
        for name in ["one/", "link", "other/../one", "./one/."] {
            assert_eq!(site(&format!("dir:{there}/{name}")), one, "{name}");
        }
        assert_ne!(site(&format!("dir:{there}/other")), one);
        // A file is made there.
        let file = site(&format!("file:{there}/one/f,size=64M"));
        assert!(file.is_some() && file != one);
        assert_eq!(site(&format!("file:{there}/link/f")), file);
        assert_ne!(site(&format!("file:{there}/link/g")), file);
        for spec in [format!("dir:{there}/none"), "ram".to_owned(), "nbd://127.0.0.1".to_owned(), format!("dev:{there}/one")] {
            assert_eq!(site(&spec), None, "{spec}");
        }
        std::fs::remove_dir_all(&place).unwrap();
    }
}
