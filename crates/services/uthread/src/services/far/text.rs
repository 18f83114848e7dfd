//! Where no unithread is switched away from: inside of libc, the allocator, and the C++ library.
//!
//! These have locks and thread-local data of their own (the heap's arena and its cache for the thread, a `FILE`'s lock, the resolver's state, the loader's lock), which lie
//! in memory that may be far or lead to it. A unithread that waited for a page in there would leave them half changed, and locked, to the next one of its worker: a
//! hang, or a heap that is no heap. Programs in C call these functions everywhere and cannot be asked to put a `hold` around each. So whoever is inside of
//! them waits in place.
//!
//! # How it is seen
//!
//! The handler knows where the code was interrupted, and its stack. If the instruction lies in the text of one of these libraries, the function is one of theirs. If
//! one of them has called what was interrupted (`getaddrinfo` a module of its own, `fwrite` its `memcpy`, `qsort` the program's function), then its return address is on the stack, between the
//! stack pointer and the unithread's beginning. So each word there is compared to their text: with nothing missed, whatever was inlined or has no frame
//! pointer. What this costs is one pass over the part of the stack that is in use, some hundred words, against a fetch.
//!
//! It errs on one side only. A word can be there that is no return address any more (a large variable that was not written to lies where a call of `printf` was), or
//! that never was one (a pointer to `free`). Then the unithread waits in place: slower, never wrong. How often depends on the program: `examples/random` is switched away from at
//! every fetch, GETs on LMDB, whose cursor is such a variable, at a fourth of them. A program that holds around such calls by itself can do without
//! (`Config::guard_libc`), as `farshore-serve` does. To tell the two apart would take an unwinder in the handler.
//!
//! **What may be left half way.** Functions that have no state, and go through the program's memory, are where most waits begin: `memcpy`, `strlen` and the like, and `bsearch`, which
//! calls the program back. They are left out, by their extents, which the unwinder's tables tell. Where one of those is called by another
//! function of libc's, that one's return address is on the stack. A function that is missing here waits in place.
//!
//! **Why not interpose `malloc`.** That would be exact, and cover the heap alone: neither stdio nor the resolver, nor the calls that libc makes of its own `malloc`.
//!
//! # What it does not see
//!
//! - Code that is linked into the program itself or into this library: an allocator in Rust ([`crate::Allocator`]), `-static-libstdc++` (its exceptions are switched all the same).
//! - Libraries with locks and thread-local data of their own, other than those; and locks that the program holds itself, be they libc's (`pthread_mutex_lock`, `flockfile`):
//!   `hold`, or a lock that yields.
//! - Libraries that are loaded after the first runtime has started.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use std::sync::OnceLock;

/// The libraries are those that have these: the allocator, libc, threads, the loader, the resolver, the unwinder, C++ of either kind.
const HAVE: [&CStr; 12] = [
    c"malloc",
    c"fwrite",
    c"pthread_create",
    c"dlopen",
    c"__tls_get_addr",
    c"getaddrinfo",
    c"__res_nquery",
    c"_Unwind_RaiseException",
    c"__cxa_throw",
    c"_ZSt4cout",
    c"_ZNSt3__14coutE",
    c"_ZNSt3__15mutex4lockEv",
];

/// Functions of theirs that have no state.
const STATELESS: [&CStr; 33] = [
    c"memcpy",
    c"memmove",
    c"mempcpy",
    c"memset",
    c"memcmp",
    c"bcmp",
    c"memchr",
    c"memrchr",
    c"rawmemchr",
    c"memmem",
    c"memccpy",
    c"bzero",
    c"bcopy",
    c"strlen",
    c"strnlen",
    c"strcmp",
    c"strncmp",
    c"strcpy",
    c"strncpy",
    c"stpcpy",
    c"stpncpy",
    c"strcat",
    c"strncat",
    c"strchr",
    c"strchrnul",
    c"strrchr",
    c"strstr",
    c"strspn",
    c"strcspn",
    c"strpbrk",
    c"strcasecmp",
    c"strncasecmp",
    c"bsearch",
];

/// Of these glibc has several in a row, which jump into each other's ends: so much from where they begin is theirs. (Its forms for processors without `ERMS`.)
const FAMILIES: [(&CStr, usize); 2] = [(c"memmove", 3 << 10), (c"memset", 1 << 10)];
/// Text of one library at most, in pieces.
const PIECES: usize = 24;
/// No function of those above is longer.
const FUNCTION_MAX: usize = 16 << 10;

unsafe extern "C" {
    /// The unwinder's: where the function begins that has this instruction; null if it does not know.
    fn _Unwind_FindEnclosingFunction(instruction: *const c_void) -> *const c_void;
}

/// Ranges of addresses, in order.
#[derive(Clone, Debug)]
struct Ranges<const N: usize> {
    at: [(usize, usize); N],
    count: usize,
}

impl<const N: usize> Ranges<N> {
    const NONE: Ranges<N> = Ranges { at: [(0, 0); N], count: 0 };

    /// Adds one, if there is room.
    fn add(&mut self, range: Range<usize>) -> bool {
        let fits = self.count < N;
        if fits {
            self.at[self.count] = (range.start, range.end);
            self.count += 1;
        }
        fits
    }

    fn each(&self) -> &[(usize, usize)] {
        &self.at[..self.count]
    }

    fn contains(&self, address: usize) -> bool {
        self.each().iter().any(|&(start, end)| (start..end).contains(&address))
    }
}

/// In the program's own data, which is never far.
#[derive(Debug)]
struct Text {
    guarded: Ranges<PIECES>,
    /// From the first to the last of them, to tell most words apart by one comparison.
    all: Range<usize>,
    stateless: Ranges<{ STATELESS.len() + FAMILIES.len() }>,
}

static TEXT: OnceLock<Text> = OnceLock::new();

/// Finds the libraries; before there are unithreads.
pub(crate) fn find() {
    TEXT.get_or_init(Text::find);
}

/// In a signal handler: whether code that was interrupted at `instruction`, with this stack in use, is inside of one of the libraries.
pub(crate) fn is_on_stack(instruction: usize, stack: Range<usize>) -> bool {
    let Some(text) = TEXT.get() else { return true };
    let words = (stack.start.next_multiple_of(8)..stack.end).step_by(8);
    text.has(instruction)
        || words.map(core::ptr::with_exposed_provenance::<usize>).any(|word| {
            // SAFETY: in use, in the pool, which is mapped and not managed. Nobody writes to it while its code is interrupted.
            text.has(unsafe { word.read() })
        })
}

impl Text {
    fn find() -> Text {
        let mut text = Text { guarded: Ranges::NONE, all: 0..0, stateless: Ranges::NONE };
        // SAFETY: calls `look_at` with each object that is loaded, before it returns, and with the text.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut text).cast()) };
        let guarded = text.guarded.each().iter();
        text.all = guarded.clone().map(|range| range.0).min().unwrap_or(0)..guarded.map(|range| range.1).max().unwrap_or(0);
        for name in STATELESS {
            let start = address_of(name).filter(|&start| text.guarded.contains(start));
            start.and_then(function_at).map(|range| text.stateless.add(range));
        }
        for (name, bytes) in FAMILIES {
            let start = address_of(name).filter(|&start| text.guarded.contains(start));
            start.map(|start| text.stateless.add(start..start + bytes));
        }
        text
    }

    #[inline]
    fn has(&self, address: usize) -> bool {
        self.all.contains(&address) && self.guarded.contains(address) && !self.stateless.contains(address)
    }
}

fn address_of(name: &CStr) -> Option<usize> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then(|| found.addr())
}

/// From the beginning to the end of the function that begins at `start`.
fn function_at(start: usize) -> Option<Range<usize>> {
    // SAFETY: takes any address.
    let begins = |at: usize| unsafe { _Unwind_FindEnclosingFunction(core::ptr::without_provenance(at)) }.addr();
    // Addresses within a function are told apart by their beginning. (Of a return address it looks at the one before.)
    let inside = |at: usize| begins(at + 1) == start;
    if !inside(start) {
        return None;
    }
    let (mut last, mut after) = (start, start + FUNCTION_MAX);
    while after - last > 1 {
        let middle = last.midpoint(after);
        if inside(middle) { last = middle } else { after = middle }
    }
    Some(start..after)
}

/// Adds the text of an object if it is one of the libraries.
unsafe extern "C" fn look_at(object: *mut libc::dl_phdr_info, _bytes: usize, text: *mut c_void) -> c_int {
    // SAFETY: the loader's description.
    let object = unsafe { &*object };
    // SAFETY: what `find` has passed, which nobody else has meanwhile.
    let text = unsafe { &mut *text.cast::<Text>() };
    // SAFETY: so many headers, which are loaded.
    let headers = unsafe { core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let parts = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        (start..start + header.p_memsz as usize, header.p_flags & libc::PF_X != 0)
    });
    let has = |address: usize| parts.clone().any(|(range, _)| range.contains(&address));
    // The program itself has what is not to be seen, and so does what this code is in.
    let program = address_of_program();
    let is_ours = has(find as *const () as usize) || program.is_some_and(has);
    if !is_ours && HAVE.iter().filter_map(|name| address_of(name)).any(has) {
        for (range, _) in parts.filter(|&(_, runs)| runs) {
            if !text.guarded.add(range) {
                eprintln!("farshore-uthread: more than {PIECES} pieces of text: some libraries are not seen");
            }
        }
    }
    0
}

/// An address in the program: that of its headers.
fn address_of_program() -> Option<usize> {
    // SAFETY: a word of the auxiliary vector.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    (headers != 0).then_some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_stack(instruction: usize, words: &[usize]) -> bool {
        let words = words.as_ptr_range();
        is_on_stack(instruction, words.start.expose_provenance()..words.end.addr())
    }

    #[test]
    fn libc_is_seen_and_what_has_no_state_is_not() {
        find();
        let here = on_stack as *const () as usize;
        let [malloc, memcpy, qsort] = [c"malloc", c"memcpy", c"qsort"].map(|name| address_of(name).unwrap());
        assert!(!on_stack(here, &[0, 1, here, usize::MAX]));
        assert!(on_stack(malloc + 1, &[]) && on_stack(here, &[0, malloc + 9, 1]), "malloc");
        assert!(!on_stack(memcpy + 1, &[here, memcpy + 40]), "memcpy alone");
        assert!(on_stack(memcpy + 1, &[malloc + 7, here]), "memcpy of libc's");
        assert!(on_stack(here, &[here, 3, qsort + 20]), "what libc calls back");
    }

    #[test]
    fn each_stateless_function_has_an_end() {
        find();
        let text = TEXT.get().unwrap();
        for name in STATELESS {
            let Some(start) = address_of(name).filter(|&start| text.guarded.contains(start)) else { continue };
            let range = function_at(start).unwrap_or_else(|| panic!("{name:?} is not in the unwinder's tables"));
            assert!((2..8 << 10).contains(&range.len()), "{name:?} has {} bytes", range.len());
            assert!(!text.has(start) && !text.has(range.end - 1), "{name:?}");
        }
        let [malloc, free, fwrite] = [c"malloc", c"free", c"fwrite"].map(|name| address_of(name).unwrap());
        assert!([malloc, free, fwrite].into_iter().all(|address| text.has(address)));
    }
}
