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
//! `memcpy`, a program that has. What is mapped from the file (`.data`) stays the kernel's. Libraries that are loaded later map by calls, as
//! all else does.

use crate::ground::text;
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

const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_JMPREL: u64 = 23;
/// Relocations that put the address of another image's symbol somewhere.
const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

unsafe extern "C" {
    /// This library's own dynamic section.
    #[link_name = "_DYNAMIC"]
    static DYNAMIC: Dynamic;
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
        let called = called(own);
        images.retain(|image| !called.iter().any(|at| image.whole.contains(at)));
    }
    images.into_iter().flat_map(|image| image.arrays).collect()
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
    let whole = |end: u64| end.next_multiple_of(PAGE_SIZE as u64);
    let arrays: Vec<Range<u64>> = segments()
        .filter(|segment| segment.p_flags & libc::PF_W != 0)
        .map(|segment| whole(at(segment) + segment.p_filesz)..whole(at(segment) + segment.p_memsz))
        .filter(|array| array.end.saturating_sub(array.start) >= found.threshold)
        .collect();
    let (start, end) = (segments().map(at).min(), segments().map(|segment| at(segment) + segment.p_memsz).max());
    if let (Some(start), Some(end), false) = (start, end, arrays.is_empty()) {
        found.images.push(Image { whole: start..end, arrays });
    }
    0
}

/// The addresses to which this library's calls of others lead. It is bound as a whole when it is loaded (`-z now`). `own`: where it lies.
fn called(own: u64) -> Vec<u64> {
    let value = |wanted: u64| {
        let mut entry = &raw const DYNAMIC;
        loop {
            // SAFETY: the dynamic section, up to the entry that ends it.
            let Dynamic { tag, value } = unsafe { entry.read() };
            if tag == wanted || tag == DT_NULL {
                return value;
            }
            entry = entry.wrapping_add(1);
        }
    };
    let mut all = Vec::new();
    for (table, bytes) in [(value(DT_RELA), value(DT_RELASZ)), (value(DT_JMPREL), value(DT_PLTRELSZ))] {
        // Some dynamic linkers write addresses there, others leave what the file has.
        let table = if table < own { own + table } else { table };
        let count = if table == own { 0 } else { bytes as usize / size_of::<Relocation>() };
        // SAFETY: the table that the section names, with as many entries.
        let relocations = unsafe { core::slice::from_raw_parts(table as *const Relocation, count) };
        let names_other = |relocation: &&Relocation| {
            let kind = relocation.info as u32;
            matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) && relocation.info >> 32 != 0
        };
        // SAFETY: a word of this library's data, which the dynamic linker has filled in.
        all.extend(relocations.iter().filter(names_other).map(|relocation| unsafe { *((own + relocation.place) as *const u64) }));
    }
    all
}
