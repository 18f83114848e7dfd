//! The mappings of this process, as `/proc/self/maps` tells them.

use farshore_sys::vm::prot;

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
    let text = farshore_sys::fd::read_file(c"/proc/self/maps", 16 << 20).unwrap_or_default();
    text.split(|&b| b == b'\n').filter_map(|line| parse_mapping(core::str::from_utf8(line).ok()?)).collect()
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

/// Whether `len` bytes at `addr` are one piece of private anonymous memory that can be read and written.
pub fn is_private_anonymous(addr: u64, len: u64) -> bool {
    mappings().iter().any(|m| m.private && m.anonymous && m.readable_writable && m.start <= addr && addr + len <= m.end)
}
