//! What kind of ELF file a program is.

use crate::{Obstacle, PATH, Work};
use core::fmt;
use core::ops::ControlFlow;
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
/// Bytes of an entry of the list that names a program's libraries; of what is read of it at once; of the longest list that a program has.
const ENTRY: usize = 16;
const PIECE: usize = 32 * ENTRY;
const LIST: u64 = 4096 * ENTRY as u64;

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

impl Machine {
    /// Whether x86-64 processors run its programs: those of 32 bits are i386's, or x32's.
    pub fn is_x86(self) -> bool {
        matches!(self.0, elf::EM_386 | elf::EM_X86_64)
    }
}

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

/// The note in the command's file that says what it is, whatever its name is: owner, no description, type 1.
#[repr(C, align(4))]
#[derive(Debug)]
pub struct Mark {
    lengths: [u32; 2],
    kind: u32,
    owner: [u8; 12],
}

impl Mark {
    /// It; for a section `.note.farshore`.
    pub const COMMAND: Mark = Mark { lengths: [9, 0], kind: 1, owner: *b"Farshore\0\0\0\0" };

    /// As it is in the file.
    fn bytes() -> [u8; size_of::<Mark>()] {
        let mut bytes = [0; size_of::<Mark>()];
        let Mark { lengths: [owner, description], kind, owner: name } = Mark::COMMAND;
        for (to, word) in bytes.chunks_exact_mut(4).zip([owner, description, kind]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes[12..].copy_from_slice(&name);
        bytes
    }
}

/// The most that is read of a program's notes, bytes.
const NOTES: usize = 512;

/// What the notes of a program say of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marked {
    /// [`Mark::COMMAND`] is among them.
    Command,
    /// It is not: some other program.
    Other,
}

/// Looks for [`Mark::COMMAND`] among the notes of `file`, a program whose headers make sense.
///
/// # Errors
/// [`Obstacle::Unreadable`].
pub fn marked(file: &Fd, table: &mut [u8]) -> Result<Marked, Obstacle> {
    let mut header = [0; HEADER];
    let length = read(file, &mut header, 0)?;
    let Ok(segments) = begin(&header[..length]) else { return Ok(Marked::Other) };
    let has_mark = |segment: &ProgramHeader64<LE>| {
        let mut notes = [0; NOTES];
        let length = usize::try_from(segment.p_filesz.get(LE)).unwrap_or(NOTES).min(NOTES);
        segment.p_type.get(LE) == elf::PT_NOTE
            && read(file, &mut notes[..length], segment.p_offset.get(LE))
                .is_ok_and(|length| notes[..length].windows(size_of::<Mark>()).step_by(4).any(|note| note == Mark::bytes()))
    };
    Ok(match find(file, table, segments, &has_mark)? {
        Ok(Some(_)) => Marked::Command,
        Ok(None) | Err(_) => Marked::Other,
    })
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
    let found = match find(file, work.table, (offset, count), &|segment| segment.p_type.get(LE) == elf::PT_INTERP)? {
        Ok(found) => found,
        Err(damaged) => return Ok(damaged),
    };
    let Some(segment) = found else { return Ok(Elf::Program { dynamic: false }) };
    Ok(match read_loader(file, work.loader, segment.p_offset.get(LE), segment.p_filesz.get(LE))? {
        Ok(()) => Elf::Program { dynamic: true },
        Err(why) => Elf::Damaged(why),
    })
}

/// The first of `count` segments from `offset` on that is `wanted`, if there is one. As many as `table` takes are read at a time.
fn find(
    file: &Fd,
    table: &mut [u8],
    (offset, count): (u64, usize),
    wanted: &dyn Fn(&ProgramHeader64<LE>) -> bool,
) -> Result<Result<Option<ProgramHeader64<LE>>, Elf>, Obstacle> {
    let (mut left, mut at) = (count, offset);
    while left > 0 {
        let bytes = left.min(table.len() / SEGMENT) * SEGMENT;
        if read(file, &mut table[..bytes], at)? < bytes {
            return Ok(Err(Elf::Damaged("its program headers are cut off")));
        }
        if let Some(found) = table[..bytes].chunks_exact(SEGMENT).filter_map(segment).find(wanted) {
            return Ok(Ok(Some(found)));
        }
        left -= bytes / SEGMENT;
        at = at.saturating_add(bytes as u64);
    }
    Ok(Ok(None))
}

/// The name that `file`, a program whose headers make sense, has for a runtime that must be the first library of a program ([`goes_first`]): to `into`, with a
/// zero byte at its end. Nothing, if it names none, or if what names its libraries makes no sense: then the linker will say so. Whether it names any
/// library, or may.
///
/// # Errors
/// [`Obstacle::Unreadable`].
pub fn first_library(file: &Fd, table: &mut [u8], into: &mut [u8; FIRST]) -> Result<bool, Obstacle> {
    into.fill(0);
    let mut header = [0; HEADER];
    let length = read(file, &mut header, 0)?;
    let Ok(segments) = begin(&header[..length]) else { return Ok(true) };
    let is_list = |segment: &ProgramHeader64<LE>| segment.p_type.get(LE) == elf::PT_DYNAMIC;
    let Ok(Some(list)) = find(file, table, segments, &is_list)? else { return Ok(true) };
    let (mut names, mut any) = (None, false);
    each_entry(file, &list, &mut |tag, value| {
        any |= tag == u64::from(elf::DT_NEEDED);
        names = if tag == u64::from(elf::DT_STRTAB) { Some(value) } else { names };
        Ok(ControlFlow::Continue(()))
    })?;
    // Where the names will be in memory, and so where they are in the file.
    let Some(address) = names else { return Ok(any) };
    let holds = |segment: &ProgramHeader64<LE>| {
        let start = segment.p_vaddr.get(LE);
        segment.p_type.get(LE) == elf::PT_LOAD && address >= start && address - start < segment.p_filesz.get(LE)
    };
    let Ok(Some(load)) = find(file, table, segments, &holds)? else { return Ok(any) };
    let names = load.p_offset.get(LE).saturating_add(address - load.p_vaddr.get(LE));
    each_entry(file, &list, &mut |tag, value| {
        if tag != u64::from(elf::DT_NEEDED) {
            return Ok(ControlFlow::Continue(()));
        }
        let length = read(file, &mut into[..], names.saturating_add(value))?;
        let end = into[..length].iter().position(|&byte| byte == 0).filter(|&end| goes_first(&into[..end]));
        into[end.unwrap_or(0)..].fill(0);
        Ok(if end.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(any)
}

/// Gives tag and value of each entry of the list that names a program's libraries to `look`, up to the list's end or until that breaks off.
fn each_entry(
    file: &Fd,
    list: &ProgramHeader64<LE>,
    look: &mut dyn FnMut(u64, u64) -> Result<ControlFlow<()>, Obstacle>,
) -> Result<(), Obstacle> {
    let mut piece = [0; PIECE];
    let (mut left, mut at) = (list.p_filesz.get(LE).min(LIST), list.p_offset.get(LE));
    while left >= ENTRY as u64 {
        let wanted = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let length = read(file, &mut piece[..wanted], at)?;
        for entry in piece[..length].chunks_exact(ENTRY) {
            let [tag, value] = [0, 8].map(|at| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default()));
            if tag == 0 || look(tag, value)?.is_break() {
                return Ok(());
            }
        }
        if length < wanted {
            break;
        }
        left -= wanted as u64;
        at = at.saturating_add(wanted as u64);
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
