//! What kind of ELF file a program is.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};

/// How every ELF file begins.
pub const MAGIC: &[u8] = b"\x7fELF";

/// An ELF file, as far as starting it goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Elf {
    /// Not even its headers make sense.
    Damaged(String),
    /// A 32-bit file (i386, x32, …).
    Not64Bit {
        /// The processor's name.
        machine: String,
    },
    /// A 64-bit file for a processor other than x86-64.
    OtherMachine {
        /// The processor's name.
        machine: String,
    },
    /// An object file or a core dump.
    NotAProgram {
        /// What it is.
        kind: String,
    },
    /// A program or a shared library for x86-64.
    Program {
        /// The dynamic linker it asks for; `None` in a static program and in most libraries.
        interpreter: Option<OsString>,
    },
}

/// Reads the headers of `file`, which begins with [`MAGIC`].
pub fn parse(file: File) -> Elf {
    let data = ReadCache::new(file);
    match parse_data(&data) {
        Ok(elf) => elf,
        Err(why) => Elf::Damaged(why),
    }
}

fn parse_data<'data, R: ReadRef<'data>>(data: R) -> Result<Elf, String> {
    let ident = data.read_bytes_at(0, 20).map_err(|()| "it ends within its header".to_string())?;
    let (class, order) = (ident[4], ident[5]);
    let raw = [ident[18], ident[19]];
    let number = if order == elf::ELFDATA2MSB { u16::from_be_bytes(raw) } else { u16::from_le_bytes(raw) };
    let machine = machine_name(number);
    match class {
        elf::ELFCLASS32 => return Ok(Elf::Not64Bit { machine }),
        elf::ELFCLASS64 => {}
        _ => return Err(format!("its class is {class}")),
    }
    if number != elf::EM_X86_64 {
        return Ok(Elf::OtherMachine { machine });
    }
    let header = FileHeader64::<LittleEndian>::parse(data).map_err(|error| error.to_string())?;
    let endian = header.endian().map_err(|error| error.to_string())?;
    match header.e_type(endian) {
        elf::ET_EXEC | elf::ET_DYN => {}
        elf::ET_REL => return Ok(Elf::NotAProgram { kind: "an object file".into() }),
        elf::ET_CORE => return Ok(Elf::NotAProgram { kind: "a core dump".into() }),
        other => return Ok(Elf::NotAProgram { kind: format!("type {other}") }),
    }
    let mut interpreter = None;
    for segment in header.program_headers(endian, data).map_err(|error| error.to_string())? {
        if let Some(name) = segment.interpreter(endian, data).map_err(|error| error.to_string())? {
            interpreter = interpreter.or_else(|| Some(OsStr::from_bytes(name).to_os_string()));
        }
    }
    Ok(Elf::Program { interpreter })
}

fn machine_name(number: u16) -> String {
    let name = match number {
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
        _ => return format!("processor number {number}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64-bit header for `machine` of type `kind`, with one `PT_INTERP` segment that names `interpreter`.
    pub fn image(class: u8, machine: u16, kind: u16, interpreter: Option<&[u8]>) -> Vec<u8> {
        let mut bytes = vec![0_u8; 64];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..7].copy_from_slice(&[class, elf::ELFDATA2LSB, 1]);
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[20..24].copy_from_slice(&1_u32.to_le_bytes());
        bytes[52..54].copy_from_slice(&64_u16.to_le_bytes());
        let Some(name) = interpreter else { return bytes };
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        let mut segment = vec![0_u8; 56];
        segment[..4].copy_from_slice(&elf::PT_INTERP.to_le_bytes());
        segment[8..16].copy_from_slice(&120_u64.to_le_bytes());
        segment[32..40].copy_from_slice(&(name.len() as u64).to_le_bytes());
        bytes.extend(segment);
        bytes.extend(name);
        bytes
    }

    fn parsed(bytes: &[u8]) -> Elf {
        parse_data(bytes).unwrap_or_else(Elf::Damaged)
    }

    #[test]
    fn kinds_are_told_apart() {
        let program = image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_DYN, Some(b"/lib64/ld-linux-x86-64.so.2\0"));
        assert_eq!(parsed(&program), Elf::Program { interpreter: Some("/lib64/ld-linux-x86-64.so.2".into()) });
        let fixed = image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_EXEC, None);
        assert_eq!(parsed(&fixed), Elf::Program { interpreter: None });
        let small = image(elf::ELFCLASS32, elf::EM_386, elf::ET_EXEC, None);
        assert_eq!(parsed(&small), Elf::Not64Bit { machine: "i386".into() });
        let arm = image(elf::ELFCLASS64, elf::EM_AARCH64, elf::ET_DYN, None);
        assert_eq!(parsed(&arm), Elf::OtherMachine { machine: "AArch64".into() });
        let object = image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_REL, None);
        assert_eq!(parsed(&object), Elf::NotAProgram { kind: "an object file".into() });
    }

    /// Every shortened and every one-bit-off file ends in an answer, not in a crash.
    #[test]
    fn damaged_files_are_survived() {
        let program = image(elf::ELFCLASS64, elf::EM_X86_64, elf::ET_DYN, Some(b"/lib64/ld-linux-x86-64.so.2\0"));
        for length in 4..program.len() {
            let _ = parsed(&program[..length]);
        }
        assert!(matches!(parsed(&program[..10]), Elf::Damaged(_)));
        assert!(matches!(parsed(&program[..140]), Elf::Damaged(_)));
        for bit in 0..program.len() * 8 {
            let mut bytes = program.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = parsed(&bytes);
        }
    }
}
