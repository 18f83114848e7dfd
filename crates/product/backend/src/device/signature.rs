//! What a device looks like: signatures of file systems, partition tables, arrays and volumes.
//!
//! The table is our own, since the check must work in every container: `libblkid` is not in each, and neither are udev's answers
//! (which are looked at too, where they exist). To refuse a device it is enough to know that it holds something, so a signature
//! of four bytes or more at its place counts; nothing is parsed. The table has what `blkid` and `wipefs` know and Linux of today
//! can make, and what other systems put on disks that users plug in. Signatures at the end of a device are those of arrays and of
//! the second partition table of GPT. A device that only looks like something is refused as well: `force` is there for that. If a
//! device bears none of these signatures and holds something all the same, it is up to the user to know, as for `mkswap`.

use rustix::fd::OwnedFd;
use rustix::fs::{major, minor, stat};
use rustix::io::{Errno, pread};
use std::path::Path;

/// From the start of the device, or from its end.
#[derive(Clone, Copy)]
enum Place {
    Start(usize),
    End(usize),
}
use Place::{End, Start};

/// Bytes that are read at the start: up to the last uberblock of ZFS' first label.
const HEAD: usize = 256 << 10;
/// Bytes that are read at the end.
const TAIL: usize = 132 << 10;

#[rustfmt::skip]
const SIGNATURES: &[(&str, Place, &[u8])] = &[
    ("an ext2, ext3 or ext4 file system", Start(1080), &[0x53, 0xef]),
    ("an XFS file system", Start(0), b"XFSB"),
    ("a Btrfs file system", Start(0x10040), b"_BHRfS_M"),
    ("a FAT file system", Start(54), b"FAT12   "), ("a FAT file system", Start(54), b"FAT16   "), ("a FAT file system", Start(82), b"FAT32   "),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an exFAT file system", Start(3), b"EXFAT   "),
    ("an F2FS file system", Start(1024), &[0x10, 0x20, 0xf5, 0xf2]),
    ("an ISO 9660 file system", Start(32769), b"CD001"),
    ("a UDF file system", Start(32769), b"BEA01"),
    ("a SquashFS file system", Start(0), b"hsqs"),
    ("an EROFS file system", Start(1024), &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("a JFS file system", Start(32768), b"JFS1"),
    ("a ReiserFS file system", Start(65588), b"ReIsEr"),
    ("a NILFS2 file system", Start(1030), &[0x34, 0x34]),
    ("an OCFS2 file system", Start(8192), b"OCFSV2"), ("an OCFS2 file system", Start(4096), b"OCFSV2"),
    ("a GFS2 file system", Start(65536), &[0x01, 0x16, 0x19, 0x70]),
    ("an HFS+ file system", Start(1024), b"H+\0\x04"), ("an HFS+ file system", Start(1024), b"HX\0\x05"),
    ("an APFS container", Start(32), b"NXSB"),
    ("Linux swap space", Start(4086), b"SWAPSPACE2"), ("Linux swap space", Start(8182), b"SWAPSPACE2"),
    ("Linux swap space", Start(16374), b"SWAPSPACE2"), ("Linux swap space", Start(65526), b"SWAPSPACE2"),
    ("Linux swap space", Start(4086), b"SWAP-SPACE"), ("a hibernated system", Start(4086), b"S1SUSPEND"),
    ("an LVM volume", Start(24), b"LVM2 001"), ("an LVM volume", Start(512 + 24), b"LVM2 001"),
    ("an LVM volume", Start(1024 + 24), b"LVM2 001"), ("an LVM volume", Start(1536 + 24), b"LVM2 001"),
    ("a part of a RAID array", Start(0), &[0xfc, 0x4e, 0x2b, 0xa9]), ("a part of a RAID array", Start(4096), &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a part of a RAID array", End(1024), b"Intel Raid ISM Cfg Sig. "), ("a part of a RAID array", End(512), &[0xde, 0x11, 0xde, 0x11]),
    ("an encrypted volume (LUKS)", Start(0), b"LUKS\xba\xbe"), ("an encrypted volume (LUKS)", Start(0x4000), b"SKUL\xba\xbe"),
    ("an encrypted volume (BitLocker)", Start(3), b"-FVE-FS-"),
    ("a bcache device", Start(4096 + 24), &[0xc6, 0x85, 0x73, 0xf6]),
    ("a Ceph device", Start(0), b"bluestore block device"),
    ("a DRBD device", End(4096 - 60), &[0x83, 0x74, 0x02, 0x67]), ("a DRBD device", End(4096 - 60), &[0x83, 0x74, 0x02, 0x6b]),
    ("a VDO device", Start(0), b"dmvdo001"), ("an integrity volume", Start(0), b"integrt\0"), ("a verity volume", Start(0), b"verity\0\0"),
    ("a partition table (GPT)", Start(512), b"EFI PART"), ("a partition table (GPT)", Start(4096), b"EFI PART"),
    ("a partition table (GPT)", End(512), b"EFI PART"), ("a partition table (GPT)", End(4096), b"EFI PART"),
    // This is also the boot sector of FAT, NTFS and others.
    ("a partition table (MBR) or a boot sector", Start(510), &[0x55, 0xaa]),
];

/// What the device holds; `None`: nothing that is known.
pub(super) fn find(device: &OwnedFd, bytes: u64) -> Result<Option<&'static str>, Errno> {
    let read = |offset: u64, most: usize| -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; most.min(bytes as usize)];
        let mut got = 0;
        while got < buffer.len() {
            match pread(device, &mut buffer[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        buffer.truncate(got);
        Ok(buffer)
    };
    find_by(bytes, read)
}

/// The same of whatever `read` reads, from an offset at most so many bytes. Offsets are multiples of a page if `bytes` is one.
pub(crate) fn find_by<E>(bytes: u64, mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>) -> Result<Option<&'static str>, E> {
    let (head, tail) = (read(0, HEAD)?, read(bytes.saturating_sub(TAIL as u64), TAIL)?);
    Ok(look(&head, &tail, bytes))
}

/// What the first and the last bytes of a device of this size look like.
fn look(head: &[u8], tail: &[u8], bytes: u64) -> Option<&'static str> {
    let has = |place: &Place, magic: &[u8]| match *place {
        Start(at) => head.get(at..).is_some_and(|rest| rest.starts_with(magic)),
        End(before) => tail.len().checked_sub(before).is_some_and(|at| tail[at..].starts_with(magic)),
    };
    let of_table = SIGNATURES.iter().find(|(_, place, magic)| has(place, magic)).map(|(what, ..)| *what);
    of_table
        .or_else(|| is_zfs(head).then_some("a part of a ZFS pool"))
        .or_else(|| is_old_raid(tail, bytes).then_some("a part of a RAID array"))
}

/// A ZFS uberblock, wherever in the ring of the first label, in either byte order.
fn is_zfs(head: &[u8]) -> bool {
    let is = |at: usize| {
        head.get(at..).is_some_and(|rest| {
            rest.starts_with(&0x00ba_b10c_u64.to_le_bytes()) || rest.starts_with(&0x00ba_b10c_u64.to_be_bytes())
        })
    };
    (128 << 10..HEAD).step_by(1024).any(is)
}

/// The superblock of Linux' RAID near the end: version 0.90 in the last whole 64 KiB but one, 1.0 at least 8 KiB before the end.
fn is_old_raid(tail: &[u8], bytes: u64) -> bool {
    let begin = bytes - tail.len() as u64;
    let places = [(bytes & !0xffff).checked_sub(0x10000), bytes.checked_sub(8192).map(|at| at & !0xfff)];
    let is = |at: u64| {
        at.checked_sub(begin)
            .and_then(|at| tail.get(at as usize..))
            .is_some_and(|rest| rest.starts_with(&[0xfc, 0x4e, 0x2b, 0xa9]))
    };
    places.into_iter().flatten().any(is)
}

/// What udev has found on the device, where udev runs.
pub(super) fn told_by_udev(path: &Path) -> Option<&'static str> {
    let device = stat(path).ok()?.st_rdev;
    let told = std::fs::read_to_string(format!("/run/udev/data/b{}:{}", major(device), minor(device))).ok()?;
    has_type(&told).then_some("a file system or a partition table, as udev says,")
}

fn has_type(told: &str) -> bool {
    let value = |line: &str| {
        ["E:ID_FS_TYPE=", "E:ID_PART_TABLE_TYPE="].iter().any(|key| line.strip_prefix(key).is_some_and(|value| !value.is_empty()))
    };
    told.lines().any(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = (64 << 20) + 12345 * 512;

    fn empty() -> (Vec<u8>, Vec<u8>) {
        (vec![0; HEAD], vec![0; TAIL])
    }

    #[test]
    fn every_signature_is_found_at_its_place_and_nowhere_else() {
        let (head, tail) = empty();
        assert_eq!(look(&head, &tail, BYTES), None);
        for (what, place, magic) in SIGNATURES {
            let (mut head, mut tail) = empty();
            let (buffer, at) = match place {
                Start(at) => (&mut head, *at),
                End(before) => (&mut tail, TAIL - before),
            };
            buffer[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(look(&head, &tail, BYTES), Some(*what));
            let (mut head, tail) = empty();
            head[at + 1..at + 1 + magic.len()].copy_from_slice(magic);
            assert_eq!(look(&head, &tail, BYTES), None, "{what} at {}", at + 1);
        }
    }

    #[test]
    fn rings_and_ends_are_searched() {
        for (at, bytes) in [(128 << 10, 0x00ba_b10c_u64.to_le_bytes()), (255 << 10, 0x00ba_b10c_u64.to_be_bytes())] {
            let (mut head, tail) = empty();
            head[at..at + 8].copy_from_slice(&bytes);
            assert_eq!(look(&head, &tail, BYTES), Some("a part of a ZFS pool"));
        }
        for at in [(BYTES & !0xffff) - 0x10000, (BYTES - 8192) & !0xfff] {
            let (head, mut tail) = empty();
            let at = (at - (BYTES - TAIL as u64)) as usize;
            tail[at..at + 4].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9]);
            assert_eq!(look(&head, &tail, BYTES), Some("a part of a RAID array"));
        }
        // A device that is smaller than the parts that are read.
        assert_eq!(look(&[0; 4096], &[0; 4096], 4096), None);
        assert_eq!(look(&[], &[], 0), None);
    }

    #[test]
    fn udev_is_understood() {
        assert!(has_type("S:disk/by-id/x\nE:ID_FS_TYPE=ext4\n") && has_type("E:ID_PART_TABLE_TYPE=gpt"));
        assert!(!has_type("E:ID_FS_TYPE=\nE:ID_FS_USAGE=other\n") && !has_type(""));
    }
}
