//! What is mapped from files.

use super::raw;
use farshore_sites::{Image, Part, is_named};
use std::ops::Range;

const NR_READ: u64 = 0;
const NR_CLOSE: u64 = 3;
const NR_OPENAT: u64 = 257;
const AT_FDCWD: i64 = -100;
const O_CLOEXEC: u64 = 0o2_000_000;

/// Rights of code that nobody writes.
const TEXT: &str = "r-xp";

/// One line of `/proc/self/maps` that maps a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapping<'a> {
    pub(super) range: Range<u64>,
    pub(super) permissions: &'a str,
    pub(super) offset: u64,
    pub(super) path: &'a str,
}

impl Mapping<'_> {
    fn is_executable(&self) -> bool {
        self.permissions.contains('x')
    }

    fn is_continued_by(&self, next: &Mapping<'_>) -> bool {
        let length = self.range.end - self.range.start;
        self.range.end == next.range.start
            && self.permissions == next.permissions
            && self.path == next.path
            && self.offset.checked_add(length) == Some(next.offset)
    }

    /// The bytes, if they can be read and nobody writes them.
    fn part(&self) -> Option<Part<'static>> {
        let length = (self.range.end - self.range.start) as usize;
        // SAFETY: mapped readable from a file. Nobody writes there while there is one thread but `patch`, which has done with the bytes by then; and libraries are
        // not unmapped while the process starts, which is as long as these are used.
        let bytes = || unsafe { std::slice::from_raw_parts(self.range.start as *const u8, length) };
        self.permissions.starts_with("r-").then(|| Part {
            start: self.range.start,
            bytes: bytes(),
            executable: self.permissions == TEXT,
        })
    }
}

/// `/proc/self/maps`, as it was at one moment; without lines if it cannot be read.
#[derive(Debug)]
pub struct Maps(String);

impl Maps {
    /// As it is now.
    pub fn read() -> Maps {
        // Not `open`, which nobody but us calls any more: filters may lack it.
        let args = [AT_FDCWD as u64, c"/proc/self/maps".as_ptr() as u64, O_CLOEXEC, 0, 0, 0];
        // SAFETY: opens by a constant name.
        let fd = unsafe { raw(NR_OPENAT, args) };
        if fd < 0 {
            return Maps(String::new());
        }
        // The kernel gives a page at a time, at most.
        const PIECE: usize = 4096;
        let mut bytes = Vec::with_capacity(2 * PIECE);
        loop {
            let length = bytes.len();
            bytes.resize(length + PIECE, 0);
            // SAFETY: writes at most the length of the piece.
            let count = unsafe { raw(NR_READ, [fd as u64, bytes[length..].as_mut_ptr() as u64, PIECE as u64, 0, 0, 0]) };
            bytes.truncate(length + count.max(0) as usize);
            if count <= 0 {
                break;
            }
        }
        // SAFETY: our own descriptor, not used after.
        unsafe { raw(NR_CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
        Maps(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Line by line.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// All mappings of files. What the kernel has cut into neighbours with the same rights is one again: so is code of which
    /// somebody has written a page.
    fn mappings(&self) -> Vec<Mapping<'_>> {
        let mut all: Vec<Mapping<'_>> = Vec::new();
        for next in self.0.lines().filter_map(parse_mapping) {
            match all.last_mut() {
                Some(last) if last.is_continued_by(&next) => last.range.end = next.range.end,
                _ => all.push(next),
            }
        }
        all
    }

    /// The executable mapping of a file that `at` lies in.
    pub fn text_around(&self, at: u64) -> Option<Range<u64>> {
        let lies_in = |mapping: &Mapping<'_>| mapping.range.contains(&at) && mapping.is_executable();
        self.mappings().into_iter().find(lies_in).map(|mapping| mapping.range)
    }

    /// The image whose text `at` lies in.
    pub(super) fn image_around(&self, at: u64) -> Option<Image<'static>> {
        let mappings = self.mappings();
        let text = mappings.iter().find(|mapping| mapping.range.contains(&at) && mapping.is_executable())?;
        image(first_of(text, &mappings)?, &mappings)
    }

    /// The images of the files whose names begin with one of `names`.
    pub(super) fn images(&self, names: &[&str]) -> Vec<Image<'static>> {
        let mappings = self.mappings();
        let is_first = |mapping: &&Mapping<'_>| mapping.offset == 0 && is_named(mapping.path, names);
        mappings.iter().filter(is_first).filter_map(|first| image(first, &mappings)).collect()
    }

    /// The images of all other files with code, but the one that `own` lies in. `None` for one that cannot be read, or whose code may be written.
    pub(super) fn others(&self, names: &[&str], own: u64) -> Vec<Option<Image<'static>>> {
        let mappings = self.mappings();
        let own = mappings.iter().find(|mapping| mapping.range.contains(&own)).map_or("", |own| own.path);
        let is_other = |mapping: &&Mapping<'_>| mapping.is_executable() && mapping.path != own && !is_named(mapping.path, names);
        let mut texts: Vec<_> =
            mappings.iter().filter(is_other).map(|text| first_of(text, &mappings).filter(|_| text.permissions == TEXT)).collect();
        texts.dedup();
        texts.into_iter().map(|first| image(first?, &mappings)).collect()
    }
}

/// The mapping that the image of `text` begins with: the same file may be mapped more than once (`dlmopen`).
fn first_of<'m, 'a>(text: &Mapping<'a>, mappings: &'m [Mapping<'a>]) -> Option<&'m Mapping<'a>> {
    let before = &mappings[..mappings.partition_point(|mapping| mapping.range.start <= text.range.start)];
    before.iter().rev().find(|first| first.path == text.path && first.offset == 0)
}

/// The image that begins with `first`.
fn image(first: &Mapping<'_>, mappings: &[Mapping<'_>]) -> Option<Image<'static>> {
    let parts = mappings.iter().filter(|mapping| mapping.path == first.path).filter_map(Mapping::part);
    Image::new(first.range.start, parts.collect())
}

pub(super) fn parse_mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let path = words.nth(2)?.trim_start();
    path.starts_with('/').then_some(Mapping { range, permissions, offset, path })
}

/// A file that is mapped to be read, whole.
pub(super) struct Mapped {
    start: u64,
    length: usize,
}

impl Mapped {
    /// `None`: it cannot be read.
    pub(super) fn of(path: &core::ffi::CStr) -> Option<Mapped> {
        const NR_LSEEK: u64 = 8;
        const NR_MMAP: u64 = 9;
        const SEEK_END: u64 = 2;
        const PROT_READ: u64 = 1;
        const MAP_PRIVATE: u64 = 2;
        // SAFETY: opens by a constant name.
        let fd = unsafe { raw(NR_OPENAT, [AT_FDCWD as u64, path.as_ptr() as u64, O_CLOEXEC, 0, 0, 0]) };
        if fd < 0 {
            return None;
        }
        // SAFETY: our own descriptor.
        let length = unsafe { raw(NR_LSEEK, [fd as u64, 0, SEEK_END, 0, 0, 0]) };
        // SAFETY: new memory.
        let start = unsafe { raw(NR_MMAP, [0, length.max(0) as u64, PROT_READ, MAP_PRIVATE, fd as u64, 0]) };
        // SAFETY: our own descriptor, not used after.
        unsafe { raw(NR_CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
        (length > 0 && start > 0).then_some(Mapped { start: start as u64, length: length as usize })
    }

    /// They. A file that becomes shorter meanwhile ends the process: it is the program that is being executed, which nobody can write.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, until it is dropped.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        const NR_MUNMAP: u64 = 11;
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { raw(NR_MUNMAP, [self.start, self.length as u64, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f00a000-7f00b000 r-xp 00002000 fe:00 123                        /usr/lib/libc.so.6";
        let mapping = parse_mapping(line).expect("a file");
        assert_eq!((mapping.range, mapping.permissions, mapping.offset), (0x7f00_a000..0x7f00_b000, "r-xp", 0x2000));
        assert_eq!(mapping.path, "/usr/lib/libc.so.6");
        assert_eq!(parse_mapping("7f00a000-7f00b000 rw-p 00000000 00:00 0 "), None);
        assert_eq!(parse_mapping("7ffc0000-7ffd0000 rw-p 00000000 00:00 0       [stack]"), None);
    }

    #[test]
    fn code_that_is_cut_into_mappings_is_one_text() {
        let line =
            |at: u64, rights: &str, offset: u64| format!("{at:x}000-{:x}000 {rights} {offset:x}000 fe:00 123 /l.so", at + 1);
        let whole = [line(1, "r--p", 0), line(2, "r-xp", 1), line(3, "r-xp", 2), line(4, "r-xp", 3)].join("\n");
        assert_eq!(Maps(whole).text_around(0x3000), Some(0x2000..0x5000));
        // A page that may still be written, and the same file a second time.
        let cut = [line(2, "r-xp", 1), line(3, "rwxp", 2), line(4, "r-xp", 3), line(5, "r-xp", 1)].join("\n");
        assert_eq!(Maps(cut.clone()).text_around(0x2800), Some(0x2000..0x3000));
        assert_eq!(Maps(cut).text_around(0x4800), Some(0x4000..0x5000));
    }

    #[test]
    fn a_file_that_is_mapped_twice_has_two_beginnings() {
        let line =
            |at: u64, rights: &str, offset: u64| format!("{at:x}000-{:x}000 {rights} {offset:x}000 fe:00 123 /l.so", at + 1);
        let maps = Maps([line(1, "r--p", 0), line(2, "r-xp", 1), line(5, "r--p", 0), line(6, "r-xp", 1)].join("\n"));
        let mappings = maps.mappings();
        let starts: Vec<u64> = mappings.iter().map(|text| first_of(text, &mappings).expect("there").range.start).collect();
        assert_eq!(starts, [0x1000, 0x1000, 0x5000, 0x5000]);
        assert_eq!((maps.text_around(0x6800), maps.text_around(0x4000)), (Some(0x6000..0x7000), None));
    }
}
