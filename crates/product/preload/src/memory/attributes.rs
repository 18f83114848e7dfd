//! Attributes that a program has given to mappings that are not managed: locked, wiped at a fork, left out of dumps, with a
//! protection key, …
//!
//! A small mapping that grows beyond the threshold is copied to a managed one (`memory/mod.rs`), which would lose such attributes. So
//! only a plain mapping is copied; the kernel grows all others. Attributes stand in `/proc/self/smaps`, for which the kernel
//! walks all page tables. So the file is read only once the program has given an attribute to a mapping.

use crate::ground::mappings::is_private_anonymous;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::fd;

/// Some mapping that is not managed may have an attribute.
static GIVEN: AtomicBool = AtomicBool::new(false);

/// The most that is read of `/proc/self/smaps`, bytes; a mapping behind that counts as not plain.
const SMAPS_MOST: usize = 64 << 20;

/// Flags of a mapping (`VmFlags`) that a plain one may have or lack: rights and accounting, hints about huge pages, merging and
/// reading ahead, and whether it was written to.
const HARMLESS: [&str; 13] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "hg", "nh", "mg", "sr", "rr", "sd"];

/// Of `arrays` (bytes), which were there before Farshore was, the parts whose mappings are plain: a constructor of a library may have given them attributes
/// that nobody has noted, or had the kernel merge their pages. None if the kernel does not tell.
pub fn plain_parts(arrays: &[Range<u64>]) -> Vec<Range<u64>> {
    let text = fd::read_file(c"/proc/self/smaps", SMAPS_MOST).unwrap_or_default();
    plain_in(&String::from_utf8_lossy(&text), arrays)
}

/// The same, by this text of `/proc/self/smaps`.
fn plain_in(smaps: &str, arrays: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut mapping, mut key, mut found) = (None, true, Vec::new());
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let Some((start, end)) = mapping.take() else { continue };
            if key && flags.split_ascii_whitespace().all(|flag| HARMLESS.contains(&flag) && flag != "mg") {
                let parts = arrays.iter().map(|array| array.start.max(start)..array.end.min(end));
                found.extend(parts.filter(|part| part.start < part.end));
            }
        } else if let Some(number) = line.strip_prefix("ProtectionKey:") {
            key = number.trim() == "0";
        } else if let Some(range) = addresses(line) {
            (mapping, key) = (Some(range), true);
        }
    }
    found
}

/// The addresses at the start of a line, if it begins what is told of a mapping.
fn addresses(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Notes that the program gives an attribute to a mapping that is not managed.
pub fn note() {
    GIVEN.store(true, Ordering::Relaxed);
}

/// Whether `len` bytes at `addr` are one piece of readable and writable private anonymous memory without any attribute that
/// counts.
pub fn is_plain(addr: u64, len: u64) -> bool {
    if !GIVEN.load(Ordering::Relaxed) {
        return is_private_anonymous(addr, len);
    }
    let text = fd::read_file(c"/proc/self/smaps", SMAPS_MOST).unwrap_or_default();
    is_private_anonymous(addr, len) && core::str::from_utf8(&text).is_ok_and(|text| has_no_attributes(text, addr))
}

/// Whether the mapping of `addr` in this text of `/proc/self/smaps` is without attributes.
fn has_no_attributes(smaps: &str, addr: u64) -> bool {
    let holds = |line: &str| addresses(line).map(|(start, end)| (start..end).contains(&addr));
    let mut lines = smaps.lines().skip_while(|line| holds(line) != Some(true)).skip(1);
    let mut key = true;
    // The line of flags is the last one about a mapping.
    let flags = lines.find_map(|line| {
        if let Some(number) = line.strip_prefix("ProtectionKey:") {
            key = number.trim() == "0";
        }
        line.strip_prefix("VmFlags:")
    });
    key && flags.is_some_and(|flags| flags.split_ascii_whitespace().all(|flag| HARMLESS.contains(&flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_plain_or_has_an_attribute() {
        let mapping = |start: u64, key: u32, flags: &str| {
            format!(
                "{start:x}-{:x} rw-p 00000000 00:00 0 \nSize: 64 kB\nTHPeligible: 0\nProtectionKey: {key}\nVmFlags: {flags}\n",
                start + 0x10000
            )
        };
        let smaps = [
            mapping(0x10000, 0, "rd wr mr mw me ac sd "),
            mapping(0x20000, 0, "rd wr mr mw me lo ac sd "),
            mapping(0x30000, 0, "rd wr mr mw me wf ac "),
            mapping(0x40000, 3, "rd wr mr mw me ac "),
            mapping(0x50000, 0, "rd wr mr mw me gd ac "),
            mapping(0x60000, 0, "rd wr mr mw me ac nh mg "),
        ]
        .concat();
        let plain: Vec<u64> = (1..8).filter(|n| has_no_attributes(&smaps, n * 0x10000 + 0x8000)).collect();
        assert_eq!(plain, [1, 6]);
        let parts = plain_in(&smaps, &[0x18000..0x38000, 0x58000..0x70000]);
        assert_eq!(parts, [Range { start: 0x18000, end: 0x20000 }], "pages of the last mapping may be merged");
    }
}
