//! What a client says of its memory, against limits and against what the kernel says of the client.
//!
//! A wrong address would have us protect and fill memory that is something else, and a wrong offset would punch holes into other pages' bytes. So nothing is believed: the
//! kernel's list of the client's mappings must have each region, as a shared mapping of one file at just this place, and no other mapping of the same bytes.

use std::fmt;

use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::table::PageTable;

use crate::memory::Identity;
use crate::wire::{Handed, Restored};

const PAGE: u64 = PAGE_SIZE as u64;
/// The most regions of a client.
pub const REGIONS_MAX: usize = 1024;

impl fmt::Display for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Handed { address, bytes, offset } = self;
        write!(f, "the region of {bytes} bytes at {address:#x} (offset {offset:#x})")
    }
}

impl Handed {
    /// Its pages, once it was checked.
    #[must_use]
    pub fn pages(&self) -> PageRange {
        let start = Page::containing(self.address);
        PageRange { start, end: start.plus(self.bytes / PAGE) }
    }
}

/// Checks new regions for themselves, and beside those that the client has handed over before.
///
/// # Errors
/// One line: which one is wrong, and why.
pub fn check(new: &[Handed], there: &[PageRange]) -> Result<(), String> {
    if new.is_empty() {
        return Err("it hands no region over".into());
    }
    if new.len() + there.len() > REGIONS_MAX {
        return Err(format!("{} regions are too many: at most {REGIONS_MAX}", new.len() + there.len()));
    }
    for (number, region) in new.iter().enumerate() {
        let wrong = |why: &str| Err(format!("{region}: {why}"));
        if region.bytes == 0 {
            return wrong("it is empty");
        }
        if [region.address, region.bytes, region.offset].iter().any(|number| number % PAGE != 0) {
            return wrong("address, size and offset must be multiples of 4096");
        }
        if region.address.checked_add(region.bytes).is_none() || !PageTable::covers(region.pages()) {
            return wrong("it reaches beyond the addresses that a process can have (47 bits)");
        }
        if region.offset.checked_add(region.bytes).is_none_or(|end| i64::try_from(end).is_err()) {
            return wrong("it reaches beyond the bytes that a file can have");
        }
        let mut others = new[..number].iter().map(Handed::pages).chain(there.iter().copied());
        if others.any(|other| !other.intersect(region.pages()).is_empty()) {
            return wrong("it overlaps another region");
        }
    }
    Ok(())
}

/// A mapping of the client, as `/proc/PID/maps` tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    start: u64,
    end: u64,
    shared: bool,
    writable: bool,
    offset: u64,
    /// Which file; `None`: it is of no file.
    file: Option<Identity>,
}

impl Mapping {
    /// Reads a line of `/proc/PID/maps`.
    #[must_use]
    pub fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?.as_bytes();
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = rustix::fs::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let inode: u64 = fields.next()?.parse().ok()?;
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            shared: rights.get(3) == Some(&b's'),
            writable: rights.get(1) == Some(&b'w'),
            offset,
            file: (inode != 0).then_some((device, inode)),
        })
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

/// Finds the file of a region that [`check`] has accepted, and makes sure that the client has it mapped as it says.
///
/// # Errors
/// One line: what the client has there in its place.
pub fn file_of(region: &Handed, mappings: &[Mapping]) -> Result<Identity, String> {
    let wrong = |why: String| Err(format!("{region}: {why}"));
    let end = region.address + region.bytes;
    let (mut at, mut file) = (region.address, None);
    for mapping in mappings.iter().filter(|mapping| mapping.overlaps(region.address, end)) {
        if mapping.start > at {
            break;
        }
        let Some(its) = mapping.file.filter(|_| mapping.shared) else {
            return wrong(format!(
                "its process has private memory at {at:#x}: only shared memory (a memfd, shared=on) can be managed"
            ));
        };
        if !mapping.writable {
            return wrong(format!("its process may not write at {at:#x}"));
        }
        let offset = mapping.offset + (at - mapping.start);
        if offset != region.offset + (at - region.address) || file.is_some_and(|file| file != its) {
            return wrong(format!("its process has another part of a file, or another file, at {at:#x} (offset {offset:#x})"));
        }
        file = Some(its);
        at = mapping.end.min(end);
    }
    match file {
        Some(file) if at == end => Ok(file),
        _ => wrong(format!("its process has nothing at {at:#x}")),
    }
}

/// Makes sure that regions are registered, by what `/proc/PID/smaps` tells of the process that has connected (the userfaultfd may be another one's), and that none of them has huge
/// pages or is to get some.
///
/// # Errors
/// One line: which one, and why.
pub fn check_registered(regions: &[Handed], smaps: &str) -> Result<(), String> {
    let mut region = None;
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            region = regions.iter().find(|region| mapping.overlaps(region.address, region.address + region.bytes));
        }
        let (Some(region), Some((key, value))) = (region, line.split_once(':')) else { continue };
        let mut words = value.split_ascii_whitespace();
        match key {
            "ShmemPmdMapped" | "FilePmdMapped" if words.next().is_some_and(|kilobytes| kilobytes != "0") => {
                return Err(format!("{region}: it has huge pages, of which no part can be taken out safely: make it without"));
            }
            "THPeligible" if words.next().is_some_and(|is| is != "0") => {
                return Err(format!(
                    "{region}: the kernel may give it huge pages, of which no part can be taken out safely: do not ask for them (MADV_HUGEPAGE)"
                ));
            }
            // Missing and protected pages are told.
            "VmFlags" if ["um", "uw"].iter().any(|flag| !words.clone().any(|word| word == *flag)) => {
                return Err(format!(
                    "{region}: its userfaultfd is not the one of the process that has connected, of which this is not registered"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes sure that all of the regions is registered, for missing pages at least, and has pages of the size that was said, by what `/proc/PID/smaps` tells of the process that has connected: memory that is filled alone, where
/// huge pages do no harm.
///
/// # Errors
/// One line: which one is not.
pub fn check_told(regions: &[Restored], smaps: &str) -> Result<(), String> {
    let mut told = vec![0; regions.len()];
    let mut at = None;
    for line in smaps.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            at = Some(mapping);
        }
        if let (Some(mapping), Some(kilobytes)) = (&at, line.strip_prefix("KernelPageSize:")) {
            let has = kilobytes
                .trim()
                .strip_suffix(" kB")
                .and_then(|number| number.parse::<u64>().ok())
                .map_or(0, |number| number << 10);
            let inside = |memory: &Handed| mapping.overlaps(memory.address, memory.address + memory.bytes);
            if let Some(Restored { memory, page }) = regions.iter().find(|it| inside(&it.memory) && it.page != has) {
                return Err(format!("{memory}: its pages have {has} bytes in its process, not {page}: say so (page_size)"));
            }
        }
        let Some(flags) = line.strip_prefix("VmFlags:") else { continue };
        let Some(mapping) = at.take().filter(|_| flags.split_ascii_whitespace().any(|flag| flag == "um")) else { continue };
        for (told, Restored { memory, .. }) in told.iter_mut().zip(regions) {
            let (start, end) = (mapping.start.max(memory.address), mapping.end.min(memory.address + memory.bytes));
            *told += end.saturating_sub(start);
        }
    }
    match regions.iter().zip(told).find(|(region, told)| region.memory.bytes != *told) {
        Some((Restored { memory, .. }, told)) => Err(format!(
            "{memory}: only {told} bytes of it are registered (UFFDIO_REGISTER, missing pages) in the process that has connected"
        )),
        None => Ok(()),
    }
}

/// Makes sure that the client reaches its memory by the regions alone.
///
/// # Errors
/// One line: where it has it a second time.
pub fn only_there(regions: &[(Handed, Identity)], mappings: &[Mapping]) -> Result<(), String> {
    for mapping in mappings {
        for (region, file) in regions {
            let of_region = |offset: u64| region.offset <= offset && offset < region.offset + region.bytes;
            let length = mapping.end - mapping.start;
            let has_bytes = mapping.file == Some(*file)
                && (of_region(mapping.offset) || (mapping.offset < region.offset && region.offset < mapping.offset + length));
            let is_the_region = mapping.overlaps(region.address, region.address + region.bytes);
            if has_bytes && !is_the_region && !is_another(mapping, regions) {
                return Err(format!(
                    "{region}: its process has these bytes mapped a second time, at {:#x}, where nobody would hear of what it does: hand over every mapping once",
                    mapping.start
                ));
            }
        }
    }
    Ok(())
}

/// Whether a mapping lies in the regions, and so was looked at by [`file_of`].
fn is_another(mapping: &Mapping, regions: &[(Handed, Identity)]) -> bool {
    let mut at = mapping.start;
    // Regions need not be in order.
    while let Some((region, _)) = regions.iter().find(|(region, _)| region.address <= at && at < region.address + region.bytes) {
        at = region.address + region.bytes;
        if at >= mapping.end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const AT: u64 = 0x7f00_0000_0000;

    fn handed(address: u64, bytes: u64, offset: u64) -> Handed {
        Handed { address, bytes, offset }
    }

    fn maps(text: &str) -> Vec<Mapping> {
        text.lines().map(|line| Mapping::parse(line).expect("it is a line")).collect()
    }

    #[test]
    fn sizes_and_places() {
        let good = handed(AT, MIB, 0);
        assert_eq!(check(&[good, handed(AT + MIB, MIB, MIB)], &[handed(AT - MIB, MIB, 0).pages()]), Ok(()));
        for (regions, there, part) in [
            (vec![], vec![], "no region"),
            (vec![handed(AT, 0, 0)], vec![], "empty"),
            (vec![handed(AT + 1, MIB, 0)], vec![], "multiples of 4096"),
            (vec![handed(AT, MIB + 1, 0)], vec![], "multiples of 4096"),
            (vec![handed(AT, MIB, 512)], vec![], "multiples of 4096"),
            (vec![handed(u64::MAX - 4095, 8192, 0)], vec![], "beyond the addresses"),
            (vec![handed(1 << 47, MIB, 0)], vec![], "beyond the addresses"),
            (vec![handed((1 << 47) - 4096, 8192, 0)], vec![], "beyond the addresses"),
            (vec![handed(AT, MIB, u64::MAX - 4095)], vec![], "beyond the bytes"),
            (vec![handed(AT, MIB, i64::MAX as u64 - 4095)], vec![], "beyond the bytes"),
            (vec![good, handed(AT + MIB - 4096, MIB, MIB)], vec![], "overlaps"),
            (vec![good], vec![good.pages()], "overlaps"),
            ((0..=REGIONS_MAX as u64).map(|n| handed(AT + n * MIB, MIB, n * MIB)).collect(), vec![], "too many"),
        ] {
            let why = check(&regions, &there).map(|()| panic!("{part}")).unwrap_err();
            assert!(why.contains(part) && !why.contains('\n'), "{part}: {why}");
        }
    }

    /// A memfd of 3 MiB at `AT`, cut in two by a change of protection, and other things around it.
    const MAPS: &str = "\
7effffe00000-7f0000000000 rw-p 00000000 00:00 0\n\
7f0000000000-7f0000100000 rw-s 00000000 00:01 4711 /memfd:ram (deleted)\n\
7f0000100000-7f0000300000 rw-s 00100000 00:01 4711 /memfd:ram (deleted)\n\
7f0000300000-7f0000400000 rw-s 00300000 00:01 4712 /memfd:other (deleted)\n\
7f0000500000-7f0000600000 r--s 00000000 00:01 4713 /memfd:firmware (deleted)\n\
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]";

    #[test]
    fn the_kernel_has_the_last_word() {
        let mappings = maps(MAPS);
        let ram = (rustix::fs::makedev(0, 1), 4711);
        assert_eq!(file_of(&handed(AT, 3 * MIB, 0), &mappings), Ok(ram));
        assert_eq!(file_of(&handed(AT + 4096, 2 * MIB, 4096), &mappings), Ok(ram));
        for (region, part) in [
            (handed(AT, 3 * MIB, 4096), "another part"),
            (handed(AT, 4 * MIB, 0), "another part of a file, or another file, at 0x7f0000300000"),
            (handed(AT + 3 * MIB, 2 * MIB, 3 * MIB), "nothing at 0x7f0000400000"),
            (handed(AT + 4 * MIB, MIB, 0), "nothing at 0x7f0000400000"),
            (handed(AT - MIB, 2 * MIB, 0), "private memory"),
            (handed(AT + 5 * MIB, MIB, 0), "may not write"),
        ] {
            let why = file_of(&region, &mappings).map(|_| panic!("{part}")).unwrap_err();
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn a_second_mapping_is_found() {
        let ram = (rustix::fs::makedev(0, 1), 4711);
        let whole = [(handed(AT, 3 * MIB, 0), ram)];
        assert_eq!(only_there(&whole, &maps(MAPS)), Ok(()));
        // Handed over in two parts.
        let parts = [(handed(AT + MIB, 2 * MIB, MIB), ram), (handed(AT, MIB, 0), ram)];
        assert_eq!(only_there(&parts, &maps(MAPS)), Ok(()));
        // Of a memory of which a part is handed over, the rest is nobody's affair.
        assert_eq!(only_there(&parts[..1], &maps(MAPS)), Ok(()));
        for second in [
            "7f1000000000-7f1000100000 rw-s 00200000 00:01 4711 /memfd:ram (deleted)",
            "7f1000000000-7f1000001000 r--s 002ff000 00:01 4711 /memfd:ram (deleted)",
            "7f1000000000-7f1000100000 rw-p 00000000 00:01 4711 /memfd:ram (deleted)",
        ] {
            let why = only_there(&whole, &maps(&format!("{MAPS}\n{second}"))).unwrap_err();
            assert!(why.contains("a second time, at 0x7f1000000000"), "{why}");
        }
        let elsewhere = "7f1000000000-7f1000100000 rw-s 00300000 00:01 4711 /memfd:ram (deleted)";
        assert_eq!(only_there(&whole, &maps(&format!("{MAPS}\n{elsewhere}"))), Ok(()), "bytes that are not handed over");
    }

    #[test]
    fn what_is_registered_is_this_process_memory() {
        let ram = "7f0000000000-7f0000100000 rw-s 00000000 00:01 4711 /memfd:ram (deleted)";
        let smaps = |mapped: &str, eligible: &str, flags: &str| {
            let rest = |mapped: &str, eligible: &str, flags: &str| {
                format!(
                    "Size:  1024 kB\nShmemPmdMapped:  {mapped} kB\nFilePmdMapped:  0 kB\nTHPeligible:  {eligible}\nVmFlags: {flags}\n"
                )
            };
            let other = "7effffe00000-7f0000000000 rw-s 00000000 00:01 4710 /memfd:other (deleted)\n";
            format!("{other}{}{ram}\n{}", rest("2048", "1", "rd wr sh"), rest(mapped, eligible, flags))
        };
        let region = [handed(AT, MIB, 0)];
        assert_eq!(check_registered(&region, &smaps("0", "0", "rd wr sh mr mw me ms um uw sd")), Ok(()));
        for (mapped, eligible, flags, part) in [
            ("0", "0", "rd wr sh sd", "is not the one of the process"),
            ("0", "0", "rd wr sh um sd", "is not the one of the process"),
            ("0", "1", "rd wr sh um uw", "may give it huge pages"),
            ("2048", "0", "rd wr sh um uw", "it has huge pages"),
        ] {
            let why = check_registered(&region, &smaps(mapped, eligible, flags)).unwrap_err();
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn what_is_to_be_filled_is_registered_as_a_whole() {
        let smaps = |flags: [&str; 3]| {
            let at = [(0x7f00_0000_0000_u64, MIB / 2), (0x7f00_0008_0000, MIB / 4), (0x7f00_000c_0000, MIB)];
            let one = |((start, bytes), flags): ((u64, u64), &str)| {
                format!(
                    "{start:x}-{:x} rw-p 00000000 00:00 0\nKernelPageSize:        4 kB\nTHPeligible:  1\nVmFlags: {flags}\n",
                    start + bytes
                )
            };
            at.into_iter().zip(flags).map(one).collect::<String>()
        };
        let region = |bytes, page| [Restored { memory: handed(AT, bytes, 0), page }];
        let told = |flags| check_told(&region(MIB, PAGE), &smaps(flags));
        assert_eq!(told(["rd wr um", "um", "um hg"]), Ok(()), "in three mappings, of which the last one is larger");
        assert!(told(["rd wr um", "rd wr", "um"]).is_err_and(|why| why.contains("only 786432 bytes")));
        assert!(told(["uw", "uw", "uw"]).is_err_and(|why| why.contains("only 0 bytes")));
        assert!(check_told(&region(4 * MIB, PAGE), &smaps(["um"; 3])).is_err(), "it ends before");
        assert!(
            check_told(&region(MIB, 2 * MIB), &smaps(["um"; 3]))
                .is_err_and(|why| why.contains("4096 bytes in its process, not 2097152"))
        );
    }

    #[test]
    fn lines_of_mappings() {
        assert_eq!(maps("1000-2000 rw-s 0000a000 fe:1f 12 /x y z")[0].file, Some((rustix::fs::makedev(0xfe, 0x1f), 12)));
        assert_eq!(maps("1000-2000 ---p 00000000 00:00 0")[0].file, None);
        for line in ["", "x", "1000 rw-p 0 00:00 0", "1000-2000 rw-p 0 0000 0", "1000-2000 rw-p 0 00:00"] {
            assert_eq!(Mapping::parse(line), None, "{line}");
        }
    }
}
