//! The libc of the machine that this runs on: the one that this very process is linked with.

use crate::table::Writer;
use crate::{Image, Plan};
use std::path::PathBuf;

/// The files of libc, the loader and whatever else this process is linked with, as they are mapped here. None where that is another libc than glibc, or in a static program.
pub fn files() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    let is_library = |path: &String| path.rsplit('/').next().is_some_and(|file| file.contains(".so"));
    let mut paths: Vec<PathBuf> = maps.lines().filter_map(path).filter(is_library).map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The table for them. A file without a build id is left out.
///
/// Libraries in which there is no call are in it as well: libgcc's has the bytes of a `syscall`, since it looks for them. Whether these are one
/// need not be found out at each start.
pub fn table() -> Vec<u8> {
    let mut table = Writer::default();
    for bytes in files().iter().filter_map(|path| std::fs::read(path).ok()) {
        let Some(image) = Image::of_file(&bytes) else { continue };
        let _ = Plan::of(&image).and_then(|plan| table.add(&image, &plan));
    }
    table.finish()
}
