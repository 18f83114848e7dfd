//! Functions and lines of instructions, from the files of the program that was recorded.
//!
//! None of these files is believed. What they name is opened if it is a regular file; what is read or unpacked of them has a
//! limit; and a name is made one that can be shown. Time and memory that cannot be foreseen, such as that of a line table that
//! says more than it is long, are bounded by the process that this runs in ([`super::names`]). Whatever cannot be used is said,
//! and the rest is used: without debug information there is the table of symbols.
//!
//! | file | what it is for |
//! |---|---|
//! | the program, or a library | where its instructions are in memory; names, if it has them |
//! | `/usr/lib/debug/.build-id/…` | the same names, where a distribution has taken them out |
//! | `.dwp`, `.dwo` | what is not in the first, where the program was built with split debug information |

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::gimli::{AbbreviationsCacheStrategy, Dwarf, DwarfPackage, EndianSlice, RunTimeEndian, SectionId};
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use farshore_client::shown::bytes;
use farshore_command::regular;
use farshore_config::plain;
use object::read::elf::ElfFile64;
use object::{CompressionFormat, Endianness, Object, ObjectSection, ObjectSegment, SymbolMap, SymbolMapName};
use ruzstd::decoding::StreamingDecoder;

use crate::record::maps::as_looked_at;

/// Functions inlined into each other that are shown.
const INLINED_MAX: usize = 16;
/// Bytes of a name that are taken apart, and letters that are shown.
const NAME_MAX: usize = 4096;
const SHOWN_MAX: usize = 400;

/// What may be read for one file of the program, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All files together.
    pub read: u64,
    /// Sections that are unpacked, all together.
    pub unpacked: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { read: 1 << 30, unpacked: 1 << 30 }
    }
}

type Bytes = EndianSlice<'static, RunTimeEndian>;
type File = ElfFile64<'static, Endianness>;

/// The symbols of a file. What it is made from stays in memory until the process ends, which it does soon.
#[derive(Debug)]
pub struct Symbols {
    /// Where in memory which part of the file is: from, to, and the address of the first byte.
    segments: Vec<(u64, u64, u64)>,
    symbols: SymbolMap<SymbolMapName<'static>>,
    context: Option<Box<ContextOf>>,
    /// What of it could not be used, and why.
    notes: RefCell<Vec<String>>,
}

/// Debug information, and where the rest of it is.
struct ContextOf {
    context: Context<Bytes>,
    left: Left,
    /// The package beside the file, once it was looked for.
    package: OnceCell<Option<DwarfPackage<Bytes>>>,
    place: PathBuf,
}

impl std::fmt::Debug for ContextOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextOf").field("left", &self.left).field("place", &self.place).finish_non_exhaustive()
    }
}

/// What may still be read and unpacked.
#[derive(Debug)]
struct Left {
    read: Cell<u64>,
    unpacked: Cell<u64>,
    limits: Limits,
}

impl Left {
    /// All of a file.
    fn file(&self, path: &Path) -> Result<(&'static [u8], std::fs::Metadata), String> {
        let wrong = |why: std::io::Error| format!("it cannot be read: {why}");
        let (file, data) = regular::open(path).map_err(wrong)?;
        if data.len() > self.read.get() {
            return Err(format!(
                "it is too large: it has {}, and {} are read for one file",
                bytes(data.len()),
                bytes(self.limits.read)
            ));
        }
        let mut all = Vec::new();
        // Not more than was said, also if it grows meanwhile.
        file.take(data.len()).read_to_end(&mut all).map_err(wrong)?;
        self.read.set(self.read.get() - all.len() as u64);
        Ok((all.leak(), data))
    }

    /// A section; one that is not there is empty.
    fn section(&self, file: &File, name: &str) -> Result<&'static [u8], String> {
        let Some(section) = file.section_by_name(name) else { return Ok(&[]) };
        let wrong = |why: &dyn std::fmt::Display| format!("its section {name} cannot be read ({why})");
        let packed = section.compressed_data().map_err(|why| wrong(&why))?;
        if packed.format == CompressionFormat::None {
            return Ok(packed.data);
        }
        let size = packed.uncompressed_size;
        if size > self.unpacked.get() {
            return Err(format!(
                "its section {name} is too large: unpacked it has {}, and {} are unpacked for one file",
                bytes(size),
                bytes(self.limits.unpacked)
            ));
        }
        self.unpacked.set(self.unpacked.get() - size);
        if packed.format == CompressionFormat::Zstandard {
            return unpacked(packed.data, size).map(|all| &*all.leak()).map_err(|why| wrong(&why));
        }
        // It writes no more than the size, for which it has taken the memory.
        packed.decompress().map(|all| &*all.into_owned().leak()).map_err(|why| wrong(&why))
    }

    /// Debug information of an object, by the names that its sections have in a file of that kind.
    fn sections<'f>(
        &'f self,
        file: &'f File,
        name_of: fn(SectionId) -> Option<&'static str>,
    ) -> impl FnMut(SectionId) -> Result<Bytes, Wrong> + 'f {
        move |id| {
            let data = match name_of(id) {
                Some(name) if is_wanted(id) => self.section(file, name)?,
                _ => &[],
            };
            Ok(EndianSlice::new(data, endian(file)))
        }
    }
}

/// Why debug information cannot be used.
struct Wrong(String);

impl From<String> for Wrong {
    fn from(why: String) -> Wrong {
        Wrong(why)
    }
}

impl From<addr2line::gimli::Error> for Wrong {
    fn from(why: addr2line::gimli::Error) -> Wrong {
        Wrong(format!("its debug information is damaged ({why})"))
    }
}

/// Whether functions and lines need such a section. Others, which tell of variables, may be large.
fn is_wanted(id: SectionId) -> bool {
    use SectionId::{
        DebugAbbrev, DebugAddr, DebugAranges, DebugCuIndex, DebugInfo, DebugLine, DebugLineStr, DebugRanges, DebugRngLists,
        DebugStr, DebugStrOffsets, DebugTuIndex,
    };
    matches!(
        id,
        DebugAbbrev
            | DebugAddr
            | DebugAranges
            | DebugCuIndex
            | DebugInfo
            | DebugLine
            | DebugLineStr
            | DebugRanges
            | DebugRngLists
            | DebugStr
            | DebugStrOffsets
            | DebugTuIndex
    )
}

fn endian(file: &File) -> RunTimeEndian {
    if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// What such compressed bytes are, if they are so many.
fn unpacked(mut packed: &[u8], size: u64) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while !packed.is_empty() {
        let decoder = StreamingDecoder::new(&mut packed).map_err(|why| why.to_string())?;
        decoder.take(size - all.len() as u64 + 1).read_to_end(&mut all).map_err(|why| why.to_string())?;
        if all.len() as u64 > size {
            return Err("it has more bytes than it says".into());
        }
    }
    if (all.len() as u64) < size { Err("it has fewer bytes than it says".into()) } else { Ok(all) }
}

/// Reads a file as an object.
fn object(data: &'static [u8]) -> Result<File, String> {
    File::parse(data).map_err(|why| format!("it cannot be read: {why}"))
}

impl Symbols {
    /// Those of the file at `path`, if it still has this size and this time of its last change ([`crate::record::maps`]).
    ///
    /// # Errors
    /// Nothing of it can be used: why.
    pub fn of(path: &Path, was: (u64, u64), limits: Limits) -> Result<Symbols, String> {
        let left = Left { read: Cell::new(limits.read), unpacked: Cell::new(limits.unpacked), limits };
        let (data, now) = left.file(path).map_err(|why| match path.symlink_metadata() {
            Err(_) => "it is not there any more".into(),
            Ok(_) => why,
        })?;
        if as_looked_at(&now) != was {
            return Err("it has changed since".into());
        }
        let own = object(data)?;
        let segments = own.segments().map(|it| {
            let (from, length) = it.file_range();
            (from, from.saturating_add(length), it.address())
        });
        let segments = segments.collect();
        let mut notes = Vec::new();
        // What a distribution has taken out of it.
        let elsewhere = debug_file(own.build_id().ok().flatten()).and_then(|place| {
            let found = left.file(&place).and_then(|(data, _)| object(data));
            found.map_err(|why| notes.push(format!("{}: {why}", place.display()))).ok().map(|file| (file, place))
        });
        let (file, place) = elsewhere.unwrap_or_else(|| (own, path.into()));
        let symbols = file.symbol_map();
        let sections = Dwarf::load(left.sections(&file, |id| Some(id.name())));
        let context = sections.and_then(|mut sections| {
            sections.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
            Context::from_dwarf(sections).map_err(Wrong::from)
        });
        let context = match context {
            Ok(context) => Some(Box::new(ContextOf { context, left, package: OnceCell::new(), place })),
            Err(Wrong(why)) => {
                notes.push(why);
                None
            }
        };
        Ok(Symbols { segments, symbols, context, notes: RefCell::new(notes) })
    }

    /// What of it could not be used so far, and why.
    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().iter().map(|note| shown(note)).collect()
    }

    /// Functions, the outermost first, and the line, of what is at a place in the file. None: it has no names.
    pub fn of_offset(&self, offset: u64) -> Vec<String> {
        let Some((from, _, address)) = self.segments.iter().find(|(from, to, _)| (*from..*to).contains(&offset)) else {
            return Vec::new();
        };
        let address = address.wrapping_add(offset - from);
        let (mut names, mut line) = (Vec::new(), None);
        if let Some(context) = &self.context {
            (names, line) = context.of_address(address, &self.notes);
        }
        if names.is_empty() {
            names.extend(
                self.symbols
                    .get(address)
                    .map(|symbol| named(symbol.name(), |name| addr2line::demangle_auto(name.into(), None).into_owned())),
            );
        }
        names.reverse();
        names.extend(line);
        names
    }
}

/// A name as it is shown, after it was taken apart if it is not too long for that: some grow without bound.
fn named(name: &str, taken_apart: impl FnOnce(&str) -> String) -> String {
    if name.len() > NAME_MAX { shown(name) } else { shown(&taken_apart(name)) }
}

/// A text that somebody else has written: without characters that are obeyed, and not too long.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    plain(&short)
}

impl ContextOf {
    /// Functions, the innermost first, and the line of the instruction itself.
    fn of_address(&self, address: u64, notes: &RefCell<Vec<String>>) -> (Vec<String>, Option<String>) {
        let mut found = self.context.find_frames(address);
        let frames = loop {
            match found {
                LookupResult::Output(frames) => break frames,
                LookupResult::Load { load, continuation } => found = continuation.resume(self.rest(&load, notes)),
            }
        };
        let (mut names, mut line) = (Vec::new(), None);
        let Ok(mut frames) = frames else { return (names, line) };
        while let Ok(Some(frame)) = frames.next() {
            if names.len() == INLINED_MAX {
                break;
            }
            // The innermost comes first.
            if names.is_empty() {
                line = frame.location.as_ref().and_then(|it| Some(format!("{}:{}", shown(it.file?), it.line?)));
            }
            if let Some(function) = &frame.function {
                let name = function.raw_name().map(|name| {
                    let taken_apart = |_: &str| function.demangle().map_or_else(|_| "?".into(), std::borrow::Cow::into_owned);
                    named(&name, taken_apart)
                });
                names.push(name.unwrap_or_else(|_| "?".into()));
            }
        }
        (names, line)
    }

    /// What a unit of the program has in another file.
    fn rest(&self, load: &SplitDwarfLoad<Bytes>, notes: &RefCell<Vec<String>>) -> Option<Arc<Dwarf<Bytes>>> {
        let note = |place: &Path, why: String| {
            let note = format!("{}: {why}", place.display());
            let mut notes = notes.borrow_mut();
            // One is enough to know what to do, and there may be one for each file that it was built from.
            if notes.is_empty() {
                notes.push(note);
            }
        };
        let package = self.package.get_or_init(|| {
            let mut place = self.place.clone().into_os_string();
            place.push(".dwp");
            let place = PathBuf::from(place);
            place.symlink_metadata().ok()?;
            self.package(&place).map_err(|Wrong(why)| note(&place, why)).ok()
        });
        if let Some(unit) = package.as_ref().and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok().flatten()) {
            return Some(Arc::new(unit));
        }
        let path = |bytes: &Bytes| PathBuf::from(OsStr::from_bytes(bytes.slice()));
        let mut place = load.comp_dir.as_ref().map(path).unwrap_or_default();
        place.push(path(load.path.as_ref()?));
        self.unit(&place, load).map_err(|Wrong(why)| note(&place, why)).ok()
    }

    fn package(&self, place: &Path) -> Result<DwarfPackage<Bytes>, Wrong> {
        let (data, _) = self.left.file(place)?;
        let file = object(data)?;
        DwarfPackage::load(self.left.sections(&file, SectionId::dwo_name), EndianSlice::new(&[], endian(&file)))
    }

    fn unit(&self, place: &Path, load: &SplitDwarfLoad<Bytes>) -> Result<Arc<Dwarf<Bytes>>, Wrong> {
        let (data, _) = self.left.file(place)?;
        let file = object(data)?;
        let mut dwarf = Dwarf::load(self.left.sections(&file, SectionId::dwo_name))?;
        let head = dwarf.units().next()?.ok_or_else(|| Wrong("it has no debug information".into()))?;
        if dwarf.unit(head)?.dwo_id != Some(load.dwo_id) {
            return Err(Wrong("it is of another build".into()));
        }
        dwarf.make_dwo(&load.parent);
        Ok(Arc::new(dwarf))
    }
}

/// Where Debian and others install the debug information of a file with this build id, if something is there.
fn debug_file(id: Option<&[u8]>) -> Option<PathBuf> {
    let (first, rest) = id?.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    path.symlink_metadata().is_ok().then_some(path)
}

#[cfg(test)]
mod tests;
