//! The mappings of this process, as `/proc/self/maps` tells them.

use farshore_sys::vm::prot;
use std::ffi::CString;

/// One line of `/proc/self/maps`.
#[derive(Debug)]
pub struct Mapping {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    private: bool,
    executable: bool,
    /// The program may read it.
    pub readable: bool,
    writable: bool,
    readable_writable: bool,
    /// Of no file, without a name.
    anonymous: bool,
    /// The heap, or with a name that the program gave.
    named: bool,
}

impl Mapping {
    /// What the program may do there, as `mmap` takes it.
    pub fn protection(&self) -> u64 {
        [(self.readable, prot::READ), (self.writable, prot::WRITE), (self.executable, prot::EXEC)]
            .into_iter()
            .map(|(may, bit)| if may { bit } else { prot::NONE })
            .sum()
    }

    /// Whether it is private memory of no file.
    pub fn may_be_managed(&self) -> bool {
        self.private && (self.anonymous || self.named)
    }
}

/// All mappings of this process.
pub fn mappings() -> Vec<Mapping> {
    mappings_in(&maps())
}

/// The text of `/proc/self/maps`.
pub fn maps() -> String {
    let text = farshore_sys::fd::read_file(c"/proc/self/maps", 16 << 20).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// The same by this text of `/proc/self/maps`.
pub fn mappings_in(maps: &str) -> Vec<Mapping> {
    maps.lines().filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    let name = fields.next();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        private: rights.get(3) == Some(&b'p'),
        executable: rights.get(2) == Some(&b'x'),
        readable: rights.first() == Some(&b'r'),
        writable: rights.get(1) == Some(&b'w'),
        readable_writable: rights.starts_with(b"rw"),
        anonymous: inode == "0" && name.is_none(),
        named: inode == "0" && name.is_some_and(|name| name == "[heap]" || name.starts_with("[anon:")),
    })
}

/// A private mapping of a file that the program may read and write, and not execute.
#[derive(Debug, PartialEq, Eq)]
pub struct OfFile {
    /// Bytes of memory.
    pub range: core::ops::Range<u64>,
    /// Where in the file it begins.
    pub offset: u64,
    /// Device and number of the file.
    pub id: (u64, u64),
    /// Its name, as the kernel tells it.
    pub path: CString,
}

/// All of them, by this text of `/proc/self/maps`.
pub fn of_files(maps: &str) -> Vec<OfFile> {
    maps.lines().filter_map(parse_of_file).collect()
}

fn parse_of_file(line: &str) -> Option<OfFile> {
    // The name is the rest of the line, and may have spaces.
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let offset = hexadecimal(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let path = fields.next()?.trim_start();
    (rights == "rw-p" && inode != 0 && path.starts_with('/')).then_some(())?;
    // As `lease::about` has it.
    let device = hexadecimal(major)? | hexadecimal(minor)? << 32;
    Some(OfFile { range: hexadecimal(start)?..hexadecimal(end)?, offset, id: (device, inode), path: CString::new(path).ok()? })
}

/// Whether `len` bytes at `addr` are one piece of private anonymous memory that can be read and written.
pub fn is_private_anonymous(addr: u64, len: u64) -> bool {
    mappings().iter().any(|m| m.private && m.anonymous && m.readable_writable && m.start <= addr && addr + len <= m.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_mappings_of_files_that_may_be_written() {
        let maps = "55d0-55d8 rw-p 00003000 08:10 77                     /usr/bin/a program (deleted)\n\
                    55d8-55e0 r--p 00003000 08:10 77                     /usr/bin/a\n\
                    55e0-55e8 rw-s 00003000 08:10 77                     /usr/bin/a\n\
                    55e8-55f0 rwxp 00003000 08:10 77                     /usr/bin/a\n\
                    55f0-55f8 rw-p 00000000 00:00 0                      [heap]\n\
                    55f8-5600 rw-p 00000000 00:00 0 \n\
                    5600-5608 rw-p 00000000 00:00 0                      /[aio] (deleted)\n";
        let path = c"/usr/bin/a program (deleted)".to_owned();
        let first = OfFile { range: 0x55d0..0x55d8, offset: 0x3000, id: (0x10_0000_0008, 77), path };
        assert_eq!(of_files(maps), [first]);
    }
}
