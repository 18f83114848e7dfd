//! What kind of ELF file a program is.

use crate::{Obstacle, PATH, Work};
use core::fmt;
use farshore_sys::fd::{self, Fd};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::pod;

/// How every ELF file begins.
pub const MAGIC: &[u8] = b"\x7fELF";
/// Bytes of an ELF header, and of a program header, in 64-bit files.
const HEADER: usize = size_of::<FileHeader64<LE>>();
const SEGMENT: usize = size_of::<ProgramHeader64<LE>>();
/// Room for the name of a library.
pub const FIRST: usize = 64;
/// Bytes of program headers that are read at once.
pub const TABLE: usize = 8 * SEGMENT;

/// An ELF file, as far as starting it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elf {
    /// Not even its headers make sense.
    Damaged(&'static str),
    /// A 32-bit file (i386, x32, …).
    Not64Bit(Machine),
    /// A 64-bit file for a processor other than x86-64.
    OtherMachine(Machine),
    /// An object file, a core dump, …
    NotAProgram {
        /// Its type.
        kind: u16,
    },
    /// A program or a shared library for x86-64.
    Program {
        /// It asks for a dynamic linker. Static programs and most libraries do not.
        dynamic: bool,
    },
}

/// A processor, by its number in ELF files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine(pub u16);

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            elf::EM_386 => "i386",
            elf::EM_X86_64 => "x86-64",
            elf::EM_ARM => "ARM",
            elf::EM_AARCH64 => "AArch64",
            elf::EM_RISCV => "RISC-V",
            elf::EM_PPC => "PowerPC",
            elf::EM_PPC64 => "64-bit PowerPC",
            elf::EM_S390 => "s390",
            elf::EM_MIPS => "MIPS",
            elf::EM_LOONGARCH => "LoongArch",
            other => return write!(f, "processor number {other}"),
        })
    }
}

/// Reads the headers of `file`; the name of the dynamic linker goes to `work`.
///
/// # Errors
/// [`Obstacle::Unreadable`].
pub fn headers(file: &Fd, work: &mut Work<'_>) -> Result<Elf, Obstacle> {
    let mut header = [0; HEADER];
    let length = read(file, &mut header, 0)?;
    let (offset, count) = match begin(&header[..length]) {
        Ok(table) => table,
        Err(elf) => return Ok(elf),
    };
    work.loader.fill(0);
    let mut dynamic = false;
    let (mut left, mut at) = (count, offset);
    while left > 0 && !dynamic {
        let bytes = left.min(TABLE / SEGMENT) * SEGMENT;
        if read(file, &mut work.table[..bytes], at)? < bytes {
            return Ok(Elf::Damaged("its program headers are cut off"));
        }
        let segments = work.table[..bytes].chunks_exact(SEGMENT).filter_map(segment);
        let found = segments.into_iter().find(|segment| segment.p_type.get(LE) == elf::PT_INTERP);
        if let Some(segment) = found {
            let (offset, length) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
            if let Err(why) = read_loader(file, work.loader, offset, length)? {
                return Ok(Elf::Damaged(why));
            }
            dynamic = true;
        }
        left -= bytes / SEGMENT;
        at += bytes as u64;
    }
    Ok(Elf::Program { dynamic })
}

/// The name that `file`, a program whose headers make sense, has for a runtime that must be the first library of a program ([`goes_first`]): to `into`, with a
/// zero byte at its end. Nothing, if it names none, or if what names its libraries makes no sense: then the linker will say so.
///
/// # Errors
/// [`Obstacle::Unreadable`].
pub fn first_library(file: &Fd, table: &mut [u8], into: &mut [u8; FIRST]) -> Result<(), Obstacle> {
    into.fill(0);
    let mut header = [0; HEADER];
    let length = read(file, &mut header, 0)?;
    let Ok((offset, count)) = begin(&header[..length]) else { return Ok(()) };
    let find = |table: &mut [u8], wanted: &mut dyn FnMut(&ProgramHeader64<LE>) -> bool| {
        for index in 0..count {
            let at = offset.saturating_add((index * SEGMENT) as u64);
            if read(file, &mut table[..SEGMENT], at)? < SEGMENT {
                return Ok(None);
            }
            if let Some(found) = segment(&table[..SEGMENT]).filter(&mut *wanted) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    let Some(dynamic) = find(table, &mut |s| s.p_type.get(LE) == elf::PT_DYNAMIC)? else { return Ok(()) };
    // Where the names are, then the names. A list as long as this is no program's.
    let entries = (dynamic.p_filesz.get(LE) / 16).min(4096);
    let mut names = None;
    for pass in 0..2 {
        for index in 0..entries {
            let mut entry = [0; 16];
            if read(file, &mut entry, dynamic.p_offset.get(LE).saturating_add(index * 16))? < 16 {
                return Ok(());
            }
            let [tag, value] = [0, 8].map(|at| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default()));
            match (tag, names) {
                (0, _) => break,
                (tag, _) if pass == 0 && tag == u64::from(elf::DT_STRTAB) => {
                    let holds = |s: &ProgramHeader64<LE>| {
                        let start = s.p_vaddr.get(LE);
                        s.p_type.get(LE) == elf::PT_LOAD && value >= start && value - start < s.p_filesz.get(LE)
                    };
                    let Some(load) = find(table, &mut |s| holds(s))? else { return Ok(()) };
                    names = Some(load.p_offset.get(LE).saturating_add(value - load.p_vaddr.get(LE)));
                }
                (tag, Some(names)) if pass == 1 && tag == u64::from(elf::DT_NEEDED) => {
                    let length = read(file, &mut into[..], names.saturating_add(value))?;
                    let end = into[..length].iter().position(|&byte| byte == 0);
                    if let Some(end) = end.filter(|&end| goes_first(&into[..end])) {
                        into[end..].fill(0);
                        return Ok(());
                    }
                    into.fill(0);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether a library wants to be the first that is loaded: AddressSanitizer's runtime as a shared library, GCC's or clang's. It ends a program where another is
/// before it. (Those of the other sanitizers do not look.)
pub fn goes_first(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    // What a preload cannot carry stays where it is.
    let plain = !path.iter().any(|byte| matches!(byte, b':' | b' ' | b'$'));
    plain
        && [&b"libasan.so"[..], b"libclang_rt.asan", b"libclang_rt.hwasan", b"libhwasan.so"]
            .iter()
            .any(|first| name.starts_with(first))
}

fn segment(bytes: &[u8]) -> Option<ProgramHeader64<LE>> {
    pod::from_bytes::<ProgramHeader64<LE>>(bytes).ok().map(|(segment, _)| *segment)
}

/// Reads until `into` is full or the file ends; how many bytes.
fn read(file: &Fd, into: &mut [u8], at: u64) -> Result<usize, Obstacle> {
    let mut done = 0;
    while done < into.len() {
        // Beyond what a file can have there is nothing to be read.
        let Some(place) = at.checked_add(done as u64).filter(|place| i64::try_from(*place).is_ok()) else { break };
        match fd::pread(file, &mut into[done..], place).map_err(Obstacle::Unreadable)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// As the kernel takes it: at least a letter, at most a path, a zero byte at its end.
fn read_loader(file: &Fd, into: &mut [u8], offset: u64, length: u64) -> Result<Result<(), &'static str>, Obstacle> {
    let Some(length) = usize::try_from(length).ok().filter(|length| (2..=PATH).contains(length)) else {
        return Ok(Err("its dynamic linker has no sensible name"));
    };
    let whole = read(file, &mut into[..length], offset)? == length && into[length - 1] == 0;
    Ok(if whole { Ok(()) } else { Err("the name of its dynamic linker is cut off") })
}

/// Where the program headers are, and how many; or what else the file is.
fn begin(bytes: &[u8]) -> Result<(u64, usize), Elf> {
    let (Some(ident), Some(&[low, high])) = (bytes.get(..16), bytes.get(18..20)) else {
        return Err(Elf::Damaged("it ends within its header"));
    };
    if !ident.starts_with(MAGIC) {
        return Err(Elf::Damaged("it does not begin as one"));
    }
    let (class, order) = (ident[4], ident[5]);
    let number = if order == elf::ELFDATA2MSB { u16::from_be_bytes([low, high]) } else { u16::from_le_bytes([low, high]) };
    match class {
        elf::ELFCLASS32 => return Err(Elf::Not64Bit(Machine(number))),
        elf::ELFCLASS64 => {}
        _ => return Err(Elf::Damaged("its class is neither 32 nor 64 bits")),
    }
    if number != elf::EM_X86_64 {
        return Err(Elf::OtherMachine(Machine(number)));
    }
    let Ok((header, _)) = pod::from_bytes::<FileHeader64<LE>>(bytes) else {
        return Err(Elf::Damaged("it ends within its header"));
    };
    match header.e_type.get(LE) {
        elf::ET_EXEC | elf::ET_DYN => {}
        kind => return Err(Elf::NotAProgram { kind }),
    }
    let (size, count) = (usize::from(header.e_phentsize.get(LE)), usize::from(header.e_phnum.get(LE)));
    if count > 0 && size != SEGMENT {
        return Err(Elf::Damaged("its program headers have another size"));
    }
    Ok((header.e_phoff.get(LE), count))
}
