//! Static arrays: data of the program and of its libraries that is in no file (`.bss`).
//!
//! The dynamic linker has mapped them before Farshore starts, so no call tells of them. The program headers do: behind the bytes that a
//! segment has in its file, up to the segment's end, whole pages are anonymous. What lies behind the end is somebody else's, though the
//! kernel may show both as one mapping: the storage of the main thread, for one.
//!
//! # What is left out
//!
//! Data that Farshore's own code uses: nobody serves the faults of Farshore's threads, or of its handlers. So libc, the dynamic linker and
//! Farshore are left out, and so is **every image to which a function that Farshore calls leads**: a sanitizer's runtime that has its own
//! `memcpy`, a program that has. Variables of libraries that the program has a copy of (`R_X86_64_COPY`: `environ`, `stderr`) are left out with
//! their pages, because libc uses the copy. What is mapped from the file (`.data`) stays the kernel's. Libraries that are loaded later map by
//! calls, as all else does.

use crate::ground::{ranges, text};
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use farshore_catch::patch;
use farshore_core::limits::PAGE_SIZE;

/// An entry of a dynamic section: `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    place: u64,
    info: u64,
    _addend: i64,
}

impl Relocation {
    fn kind(&self) -> u32 {
        self.info as u32
    }

    fn symbol(&self) -> u64 {
        self.info >> 32
    }
}

const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
const DT_INIT_ARRAY: u64 = 25;
const DT_INIT_ARRAYSZ: u64 = 27;
/// Relocations that put the address of another image's symbol somewhere.
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;
/// The one that copies another image's variable.
const R_X86_64_COPY: u32 = 5;

unsafe extern "C" {
    /// This library's own dynamic section.
    #[link_name = "_DYNAMIC"]
    static DYNAMIC: Dynamic;
}

/// An image's dynamic section.
pub struct Section {
    base: u64,
    first: *const Dynamic,
}

impl Section {
    /// This library's own.
    pub fn own() -> Section {
        Section { base: text::base(), first: &raw const DYNAMIC }
    }

    /// The functions that are run when the image is loaded: their first, and their number.
    pub fn functions_at_load(&self) -> (*const u64, usize) {
        let first = self.address(DT_INIT_ARRAY) as *const u64;
        (first, self.value(DT_INIT_ARRAYSZ) as usize / size_of::<u64>())
    }

    /// The value of the first entry with this tag; 0: there is none.
    fn value(&self, wanted: u64) -> u64 {
        let mut entry = self.first;
        loop {
            // SAFETY: an image's dynamic section, up to the entry that ends it.
            let Dynamic { tag, value } = unsafe { entry.read() };
            if tag == wanted {
                return value;
            }
            if tag == DT_NULL {
                return 0;
            }
            entry = entry.wrapping_add(1);
        }
    }

    /// The same for an address. Some dynamic linkers write addresses there, others leave what the file has.
    fn address(&self, wanted: u64) -> u64 {
        match self.value(wanted) {
            0 => 0,
            value if value < self.base => self.base + value,
            value => value,
        }
    }

    /// All relocations.
    fn relocations(&self) -> impl Iterator<Item = &'static Relocation> {
        [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)].into_iter().flat_map(|(table, bytes)| {
            let table = self.address(table);
            let count = if table == 0 { 0 } else { self.value(bytes) as usize / size_of::<Relocation>() };
            let table = if table == 0 { core::ptr::dangling() } else { table as *const Relocation };
            // SAFETY: the table that the section names, with as many entries, in an image that is never unloaded while this looks.
            unsafe { core::slice::from_raw_parts(table, count) }.iter()
        })
    }

    /// The pages of variables that were copied into this image.
    fn copies(&self) -> Vec<Range<u64>> {
        let symbols = self.address(DT_SYMTAB) as *const libc::Elf64_Sym;
        let copied = self.relocations().filter(|relocation| relocation.kind() == R_X86_64_COPY);
        let pages = |relocation: &Relocation| {
            let start = self.base + relocation.place;
            // SAFETY: an entry of the table that the relocation's number is for.
            let bytes = unsafe { (*symbols.wrapping_add(relocation.symbol() as usize)).st_size };
            start & !(PAGE_SIZE as u64 - 1)..(start + bytes).next_multiple_of(PAGE_SIZE as u64)
        };
        copied.map(pages).collect()
    }

    /// Addresses in other images that this one uses. (It is bound as a whole when it is loaded: `-z now`.)
    fn used(&self) -> Vec<u64> {
        let names_other = |relocation: &&Relocation| {
            matches!(relocation.kind(), R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) && relocation.symbol() != 0
        };
        let place = |relocation: &Relocation| (self.base + relocation.place) as *const u64;
        // SAFETY: a word of the image's data, which the dynamic linker has filled in.
        self.relocations().filter(names_other).map(|relocation| unsafe { *place(relocation) }).collect()
    }
}

struct Image {
    /// From the first segment to the end of the last, bytes.
    whole: Range<u64>,
    arrays: Vec<Range<u64>>,
}

struct Found {
    /// The least that counts, bytes.
    threshold: u64,
    /// Where this library lies.
    own: u64,
    images: Vec<Image>,
}

/// Where static arrays lie of at least `threshold` bytes: whole pages, in bytes. At start-up.
pub fn arrays(threshold: u64) -> Vec<Range<u64>> {
    let mut found = Found { threshold, own: 0, images: Vec::new() };
    // SAFETY: `add` gets what it expects: an image at a time, and this value.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut found).cast()) };
    let Found { own, mut images, .. } = found;
    if !images.is_empty() {
        let used = Section { base: own, first: &raw const DYNAMIC }.used();
        images.retain(|image| !used.iter().any(|at| image.whole.contains(at)));
    }
    images.into_iter().flat_map(|image| image.arrays).collect()
}

/// The same for one program, by its program headers. Nothing of ours uses its data.
pub fn of_program(headers: &[libc::Elf64_Phdr], threshold: u64) -> Vec<Range<u64>> {
    let itself = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let base = itself.map_or(0, |header| (headers.as_ptr() as u64).wrapping_sub(header.p_vaddr));
    zeros_of(headers, base, threshold).collect()
}

/// What of an image's segments that can be written is in no file, as far as that is `threshold` bytes or more.
fn zeros_of(headers: &[libc::Elf64_Phdr], base: u64, threshold: u64) -> impl Iterator<Item = Range<u64>> {
    let whole = |end: u64| end.next_multiple_of(PAGE_SIZE as u64);
    (headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0))
        .map(move |segment| whole(base + segment.p_vaddr + segment.p_filesz)..whole(base + segment.p_vaddr + segment.p_memsz))
        .filter(move |array| array.end.saturating_sub(array.start) >= threshold)
}

/// Looks at an image that is loaded.
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker's, valid during this call.
    let info = unsafe { &*info };
    // SAFETY: the value of `arrays`, which nobody else looks at during this call.
    let found = unsafe { &mut *found.cast::<Found>() };
    // SAFETY: the image's program headers, of which the dynamic linker knows the number.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: a C string, if it is not null.
    let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    let segments = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let at = |segment: &libc::Elf64_Phdr| info.dlpi_addr + segment.p_vaddr;
    if segments().any(|segment| text::is_ours(at(segment))) {
        found.own = info.dlpi_addr;
        return 0;
    }
    if patch::is_named(&name.to_string_lossy(), patch::DEFAULT_NAMES) {
        return 0;
    }
    let is_large = |array: &Range<u64>| array.end.saturating_sub(array.start) >= found.threshold;
    let mut arrays: Vec<Range<u64>> = zeros_of(headers, info.dlpi_addr, found.threshold).collect();
    if let (false, Some(dynamic)) = (arrays.is_empty(), headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)) {
        let copies = Section { base: info.dlpi_addr, first: at(dynamic) as *const Dynamic }.copies();
        arrays = arrays.into_iter().flat_map(|array| ranges::without(array, &copies)).filter(is_large).collect();
    }
    let (start, end) = (segments().map(at).min(), segments().map(|segment| at(segment) + segment.p_memsz).max());
    if let (Some(start), Some(end), false) = (start, end, arrays.is_empty()) {
        found.images.push(Image { whole: start..end, arrays });
    }
    0
}
