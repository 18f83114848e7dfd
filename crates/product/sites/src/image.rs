//! An ELF image, as a file or as it is mapped: its texts, its build id, and where its unwind information is.

use crate::functions::Functions;
use crate::window::Window;
use std::ops::Range;

const MAGIC: [u8; 6] = *b"\x7fELF\x02\x01";
const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;
const PAGE: u64 = 4096;

/// Bytes of an image that lie together.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Address of the first.
    pub start: u64,
    /// They.
    pub bytes: &'a [u8],
    /// Whether they are code, which nobody writes.
    pub executable: bool,
}

/// A 64-bit ELF image. Nothing outside of its parts is read, whatever its headers say.
#[derive(Debug)]
pub struct Image<'a> {
    parts: Vec<Part<'a>>,
    /// What is added to the addresses in the file.
    bias: u64,
    texts: Vec<Range<u64>>,
    hides_text: bool,
    unwinding: Option<u64>,
    build_id: Option<&'a [u8]>,
}

/// A little-endian number of the first bytes.
macro_rules! number {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&self, at: u64) -> Option<$type> {
            self.bytes(at, size_of::<$type>() as u64)?.try_into().ok().map(<$type>::from_le_bytes)
        }
    };
}

/// Reads numbers by their addresses.
#[derive(Debug)]
pub(crate) struct Memory<'i, 'a>(pub(crate) &'i [Part<'a>]);

impl<'a> Memory<'_, 'a> {
    number!(u8, u8);
    number!(u16, u16);
    number!(u32, u32);
    number!(i32, i32);
    number!(u64, u64);

    pub(crate) fn bytes(&self, start: u64, length: u64) -> Option<&'a [u8]> {
        self.0.iter().find_map(|part| {
            let offset = start.checked_sub(part.start)?;
            part.bytes.get(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(length)?).ok()?)
        })
    }
}

impl<'a> Image<'a> {
    /// The image whose ELF header lies at `base`. `None`: there is none.
    pub fn new(base: u64, parts: Vec<Part<'a>>) -> Option<Image<'a>> {
        let image = Image { parts, bias: 0, texts: Vec::new(), hides_text: false, unwinding: None, build_id: None };
        let memory = Memory(&image.parts);
        if memory.bytes(base, 6)? != MAGIC {
            return None;
        }
        let headers = base.checked_add(memory.u64(base + 0x20)?)?;
        let (size, count) = (u64::from(memory.u16(base + 0x36)?), u64::from(memory.u16(base + 0x38)?));
        let all = || (0..count).map_while(|index| headers.checked_add(index * size));
        let first_loaded = all().find(|&header| memory.u32(header) == Some(PT_LOAD))?;
        let bias = base.wrapping_sub(memory.u64(first_loaded + 16)? & !(PAGE - 1));
        let (mut texts, mut hides_text, mut unwinding, mut build_id) = (Vec::new(), false, None, None);
        for header in all() {
            let (kind, flags) = (memory.u32(header)?, memory.u32(header + 4)?);
            let (address, length, align) = (memory.u64(header + 16)?, memory.u64(header + 32)?, memory.u64(header + 48)?);
            let start = bias.wrapping_add(address);
            match kind {
                PT_LOAD if flags & PF_X != 0 && length > 0 => match start.checked_add(length) {
                    Some(end) if image.is_executable(start, length) => texts.push(start..end),
                    _ => hides_text = true,
                },
                PT_GNU_EH_FRAME => unwinding = Some(start),
                PT_NOTE => build_id = build_id.or_else(|| find_build_id(memory.bytes(start, length)?, align)),
                _ => {}
            }
        }
        Some(Image { bias, texts, hides_text, unwinding, build_id, parts: image.parts })
    }

    /// The image that the loader would make of a file, at the addresses that are in it.
    pub fn of_file(file: &'a [u8]) -> Option<Image<'a>> {
        let whole = [Part { start: 0, bytes: file, executable: false }];
        let memory = Memory(&whole);
        if memory.bytes(0, HEADER)?[..6] != MAGIC {
            return None;
        }
        let (headers, count) = (memory.u64(0x20)?, u64::from(memory.u16(0x38)?));
        let mut parts = Vec::new();
        for header in (0..count).map_while(|index| headers.checked_add(index * PROGRAM_HEADER)) {
            if memory.u32(header)? == PT_LOAD {
                let (flags, offset) = (memory.u32(header + 4)?, memory.u64(header + 8)?);
                let (start, length) = (memory.u64(header + 16)?, memory.u64(header + 32)?);
                parts.push(Part { start, bytes: memory.bytes(offset, length)?, executable: flags & PF_X != 0 });
            }
        }
        Image::new(parts.first()?.start, parts)
    }

    fn is_executable(&self, start: u64, length: u64) -> bool {
        let holds = |part: &Part<'_>| {
            start
                .checked_sub(part.start)
                .and_then(|offset| offset.checked_add(length))
                .is_some_and(|end| end <= part.bytes.len() as u64)
        };
        self.parts.iter().any(|part| part.executable && holds(part))
    }

    pub(crate) fn memory(&self) -> Memory<'_, 'a> {
        Memory(&self.parts)
    }

    /// What it was made of.
    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// What is added to the addresses in the file, modulo 2^64.
    pub fn bias(&self) -> u64 {
        self.bias
    }

    /// Its code: addresses.
    pub fn texts(&self) -> &[Range<u64>] {
        &self.texts
    }

    /// Whether some code is not in the parts, or may be written: nobody can tell which calls it makes.
    pub fn hides_text(&self) -> bool {
        self.hides_text
    }

    /// What the linker has made of all that it has put into the image: the same for no other.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        self.build_id
    }

    /// Whether the bytes of the window are those that it was planned for.
    pub fn agrees_with(&self, window: &Window) -> bool {
        self.memory().bytes(window.range.start, window.range.end - window.range.start) == Some(window.bytes())
    }

    pub(crate) fn text(&self, range: &Range<u64>) -> Option<Text<'a>> {
        Some(Text { start: range.start, bytes: self.memory().bytes(range.start, range.end - range.start)? })
    }

    /// The functions that have the bytes of a `syscall`; `None`: nobody can tell.
    pub(crate) fn functions(&self) -> Option<Functions<'a>> {
        self.functions_of(&self.texts)
    }

    /// The same for parts of the texts.
    pub(crate) fn functions_of(&self, texts: &[Range<u64>]) -> Option<Functions<'a>> {
        Functions::read(&self.memory(), self.unwinding?, texts)
    }
}

/// An executable part of an image.
pub(crate) struct Text<'a> {
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Text<'a> {
    pub(crate) fn slice(&self, range: &Range<u64>) -> Option<&'a [u8]> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(range.end.checked_sub(range.start)?).ok()?)?)
    }
}

/// The build id among notes, which begin at multiples of `align`.
fn find_build_id(mut notes: &[u8], align: u64) -> Option<&[u8]> {
    let align = if align == 8 { 8 } else { 4 };
    let word = |bytes: &[u8], index: usize| Some(u32::from_le_bytes(*bytes.get(index * 4..)?.first_chunk()?));
    loop {
        let (name, length, kind) = (word(notes, 0)? as usize, word(notes, 1)? as usize, word(notes, 2)?);
        let start = 12_usize.checked_add(name)?.next_multiple_of(align);
        let end = start.checked_add(length)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12 + name)? == b"GNU\0" {
            return notes.get(start..end).filter(|id| !id.is_empty());
        }
        notes = notes.get(end.checked_next_multiple_of(align)?..)?;
    }
}

/// A section of a file.
#[derive(Clone, Copy)]
pub(crate) struct Section<'f> {
    /// Where it is loaded; 0: nowhere.
    pub(crate) address: u64,
    /// Where it is in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: &'f [u8],
}

/// The section of a file that has this name; `None`: there is none.
pub(crate) fn find_section<'f>(file: &'f [u8], name: &str) -> Option<Section<'f>> {
    let whole = [Part { start: 0, bytes: file, executable: false }];
    let memory = Memory(&whole);
    if memory.bytes(0, HEADER)?[..6] != MAGIC {
        return None;
    }
    let (headers, count, names) = (memory.u64(0x28)?, memory.u16(0x3c)?, memory.u16(0x3e)?);
    let header = |index: u16| headers.checked_add(u64::from(index) * SECTION_HEADER);
    let read = |header: u64| {
        let (address, offset) = (memory.u64(header + 0x10)?, memory.u64(header + 0x18)?);
        Some(Section { address, offset, bytes: memory.bytes(offset, memory.u64(header + 0x20)?)? })
    };
    let names = read(header(names)?)?.bytes;
    let is_it = |&header: &u64| {
        let start = memory.u32(header).and_then(|at| names.get(at as usize..));
        start.and_then(|start| start.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.first() == Some(&0))
    };
    (0..count).filter_map(header).find(is_it).and_then(read)
}

/// The bytes of the section of a file that has this name; `None`: there is none.
pub fn section<'f>(file: &'f [u8], name: &str) -> Option<&'f [u8]> {
    find_section(file, name).map(|section| section.bytes)
}
