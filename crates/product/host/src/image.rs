//! An ELF file in the new program's memory, as the kernel would have mapped it.

use crate::remote::Remote;
use core::ffi::CStr;
use farshore_sys::fd::{self, Fd};
use farshore_sys::raw::{Errno, nr};
use farshore_sys::vm::{map, prot};
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::pod;

const PAGE: u64 = 4096;
/// Program headers that are looked at: the library has 12, glibc's dynamic linker 11.
const HEADERS: usize = 24;
const HEADER: usize = size_of::<ProgramHeader64<LE>>();

/// Where an image lies.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    pub base: u64,
    pub length: u64,
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

/// Maps the file at `path`, whose name the new program has at `name`.
///
/// # Errors
/// The file cannot be opened, is no such image, or there is no room. What was mapped until then is unmapped.
pub fn place(remote: &Remote, path: &CStr, name: u64) -> Result<Image, Errno> {
    const O_CLOEXEC: u64 = 0o2_000_000;
    const AT_FDCWD: u64 = -100i64 as u64;
    let headers = Headers::read(&fd::open(path, O_CLOEXEC)?)?;
    let file = remote.call(nr::OPENAT, [AT_FDCWD, name, O_CLOEXEC, 0, 0, 0])?;
    let placed = place_open(remote, &headers, file);
    remote.call(nr::CLOSE, [file, 0, 0, 0, 0, 0])?;
    placed
}

fn place_open(remote: &Remote, headers: &Headers, file: u64) -> Result<Image, Errno> {
    let end = |load: ProgramHeader64<LE>| load.p_vaddr.get(LE).saturating_add(load.p_memsz.get(LE));
    let length = headers.loads().map(end).max().unwrap_or(0).next_multiple_of(PAGE);
    let anywhere = map::PRIVATE | map::ANONYMOUS | map::NORESERVE;
    let base = remote.call(nr::MMAP, [0, length, prot::NONE, anywhere, u64::MAX, 0])?;
    let placed = headers.loads().try_for_each(|load| place_part(remote, base, &load, file));
    if let Err(why) = placed {
        remote.call(nr::MUNMAP, [base, length, 0, 0, 0, 0])?;
        return Err(why);
    }
    // The headers are in the first part, which begins with the file.
    Ok(Image { base, length, entry: base + headers.entry, headers: base + headers.offset, count: headers.count as u64 })
}

/// Maps a part: pages of the file, zeros behind its bytes, and pages of zeros.
fn place_part(remote: &Remote, base: u64, load: &ProgramHeader64<LE>, file: u64) -> Result<(), Errno> {
    let (address, offset) = (load.p_vaddr.get(LE), load.p_offset.get(LE));
    let (in_file, in_memory) = (address + load.p_filesz.get(LE), address + load.p_memsz.get(LE));
    let flags = load.p_flags.get(LE);
    let rights = [(elf::PF_R, prot::READ), (elf::PF_W, prot::WRITE), (elf::PF_X, prot::EXEC)];
    let rights = rights.iter().filter(|(flag, _)| flags & flag != 0).fold(prot::NONE, |all, (_, right)| all | right);
    let (start, mapped) = (address & !(PAGE - 1), in_file.next_multiple_of(PAGE));
    if in_file > address {
        let at = [base + start, mapped - start, rights, map::PRIVATE | map::FIXED, file, offset & !(PAGE - 1)];
        remote.call(nr::MMAP, at)?;
        if in_memory > in_file {
            const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
            remote.write(base + in_file, &ZEROS[..(mapped - in_file) as usize])?;
        }
    }
    let (behind, end) = (if in_file > address { mapped } else { start }, in_memory.next_multiple_of(PAGE));
    if end > behind {
        let fixed = map::PRIVATE | map::ANONYMOUS | map::FIXED;
        remote.call(nr::MMAP, [base + behind, end - behind, rights, fixed, u64::MAX, 0])?;
    }
    Ok(())
}
