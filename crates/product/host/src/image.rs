//! An ELF file in the new program's memory, as the kernel would have mapped it.

use crate::remote::Remote;
use crate::script::{Call, Script};
use core::ffi::CStr;
use core::ops::Range;
use farshore_sys::fd::{self, Fd};
use farshore_sys::raw::{Errno, nr};
use farshore_sys::vm::{map, prot};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::pod;

const PAGE: u64 = 4096;
/// Program headers that are looked at: the library has 12, glibc's dynamic linker 11.
const HEADERS: usize = 24;
/// Bytes that an image may take: more than any library.
const LARGEST: u64 = 1 << 30;
const O_CLOEXEC: u64 = 0o2_000_000;
/// A result that becomes an argument unchanged.
const AS_IT_IS: (u64, u64) = (0, u64::MAX);
const HEADER: usize = size_of::<ProgramHeader64<LE>>();

/// Where an image lies.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub base: u64,
    /// Where it begins to run.
    pub entry: u64,
    /// Its program headers, and their number.
    pub headers: u64,
    pub count: u64,
}

/// The file's program headers.
struct Headers {
    bytes: [u8; HEADERS * HEADER],
    count: usize,
    entry: u64,
    offset: u64,
}

impl Headers {
    fn read(file: &Fd) -> Result<Headers, Errno> {
        let mut header = [0; size_of::<FileHeader64<LE>>()];
        read_exactly(file, &mut header, 0)?;
        let (header, _) = pod::from_bytes::<FileHeader64<LE>>(&header).map_err(|()| Errno::EINVAL)?;
        let count = usize::from(header.e_phnum.get(LE));
        let is_image = header.e_ident.magic == elf::ELFMAG && header.e_type.get(LE) == elf::ET_DYN;
        if !is_image || count > HEADERS || usize::from(header.e_phentsize.get(LE)) != HEADER {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; HEADERS * HEADER];
        read_exactly(file, &mut bytes[..count * HEADER], header.e_phoff.get(LE))?;
        Ok(Headers { bytes, count, entry: header.e_entry.get(LE), offset: header.e_phoff.get(LE) })
    }

    /// Those that are mapped.
    fn loads(&self) -> impl Iterator<Item = ProgramHeader64<LE>> + '_ {
        let headers = self.bytes[..self.count * HEADER].chunks_exact(HEADER);
        let header = |bytes| pod::from_bytes::<ProgramHeader64<LE>>(bytes).ok().map(|(header, _)| *header);
        headers.filter_map(header).filter(|header| header.p_type.get(LE) == elf::PT_LOAD)
    }
}

fn read_exactly(file: &Fd, into: &mut [u8], offset: u64) -> Result<(), Errno> {
    match fd::pread(file, into, offset)? {
        length if length == into.len() => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// A file that can be mapped.
pub struct Plan {
    headers: Headers,
    /// Bytes of memory that it takes.
    pub length: u64,
}

/// What a script does to map a file.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    opened: Call,
    closed: Call,
}

impl Steps {
    /// The descriptor that the script has left open, if it has ended between.
    pub fn left_open(&self, script: &Script) -> Option<u64> {
        script.answer(self.opened)?.ok().filter(|_| script.answer(self.closed).is_none())
    }
}

impl Plan {
    /// How the file at `path` is mapped.
    ///
    /// # Errors
    /// It cannot be opened, or is no such image.
    pub fn read(path: &CStr) -> Result<Plan, Errno> {
        let headers = Headers::read(&fd::open(path, O_CLOEXEC)?)?;
        let end = |load: ProgramHeader64<LE>| load.p_vaddr.get(LE).saturating_add(load.p_memsz.get(LE));
        let length = headers.loads().map(end).max().unwrap_or(0);
        if length > LARGEST {
            return Err(Errno::EINVAL);
        }
        Ok(Plan { headers, length: length.next_multiple_of(PAGE) })
    }

    /// Where it lies when it is mapped at `base`.
    pub fn image(&self, base: u64) -> Image {
        // The headers are in the first part, which begins with the file.
        let Headers { entry, offset, count, .. } = self.headers;
        Image { base, entry: base + entry, headers: base + offset, count: count as u64 }
    }

    /// Adds to the script what maps the file at `base`, where there is other memory of as many bytes; the program has its name at `name`.
    ///
    /// # Errors
    /// It has too many parts.
    pub fn add_to(&self, script: &mut Script, step: &'static str, base: u64, name: u64) -> Result<Steps, Errno> {
        const AT_FDCWD: u64 = -100i64 as u64;
        if script.room() < 4 + 2 * self.headers.loads().count() {
            return Err(Errno::EINVAL);
        }
        // Between its parts there is nothing.
        script.push(step, nr::MPROTECT, [base, self.length, prot::NONE, 0, 0, 0]);
        let opened = script.push(step, nr::OPENAT, [AT_FDCWD, name, O_CLOEXEC, 0, 0, 0]);
        for part in self.headers.loads().map(|load| Part::of(&load)) {
            if part.behind > part.start {
                let at = [base + part.start, part.behind - part.start, part.rights, map::PRIVATE | map::FIXED, 0, part.offset];
                let call = script.push(step, nr::MMAP, at);
                script.take(call, 4, opened, AS_IT_IS);
            }
            if part.end > part.behind {
                let fixed = map::PRIVATE | map::ANONYMOUS | map::FIXED;
                script.push(step, nr::MMAP, [base + part.behind, part.end - part.behind, part.rights, fixed, u64::MAX, 0]);
            }
        }
        let closed = script.push(step, nr::CLOSE, [0; 6]);
        script.take(closed, 0, opened, AS_IT_IS);
        Ok(Steps { opened, closed })
    }

    /// Writes the zeros behind the bytes of the file, where it is mapped at `base`.
    ///
    /// # Errors
    /// A page cannot be had.
    pub fn write_zeros(&self, remote: &Remote, base: u64) -> Result<(), Errno> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        let mut parts = self.headers.loads().map(|load| Part::of(&load));
        parts.try_for_each(|Part { zeros, .. }| remote.write(base + zeros.start, &ZEROS[..(zeros.end - zeros.start) as usize]))
    }
}

/// A part of a file in memory: pages of the file from `start` to `behind`, and pages of zeros to `end`.
struct Part {
    start: u64,
    behind: u64,
    end: u64,
    offset: u64,
    rights: u64,
    /// Bytes of the last page of the file that are not the file's.
    zeros: Range<u64>,
}

impl Part {
    fn of(load: &ProgramHeader64<LE>) -> Part {
        let (address, offset) = (load.p_vaddr.get(LE), load.p_offset.get(LE));
        let (in_file, in_memory) = (address + load.p_filesz.get(LE), address + load.p_memsz.get(LE));
        let rights = [(elf::PF_R, prot::READ), (elf::PF_W, prot::WRITE), (elf::PF_X, prot::EXEC)];
        let flags = load.p_flags.get(LE);
        let rights = rights.iter().filter(|(flag, _)| flags & flag != 0).fold(prot::NONE, |all, (_, right)| all | right);
        let start = address & !(PAGE - 1);
        let behind = if in_file > address { in_file.next_multiple_of(PAGE) } else { start };
        let zeros = if in_file > address && in_memory > in_file { in_file..behind } else { 0..0 };
        Part { start, behind, end: in_memory.next_multiple_of(PAGE).max(behind), offset: offset & !(PAGE - 1), rights, zeros }
    }
}
