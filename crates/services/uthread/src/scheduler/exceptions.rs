//! C++ exceptions belong to a unithread, not to its worker.
//!
//! The C++ library has two words for each thread: the exceptions that handlers have caught and not left yet, the last one first, and how many were thrown and
//! not caught yet (`__cxa_eh_globals`; the Itanium C++ ABI, exception handling, section 2.2.2, says so, and both libstdc++ and libc++abi have them like this). What
//! `throw;` throws again and where the end of a handler goes are in there. So a unithread that is switched away from inside a handler, and another one that catches, must
//! not have them in common. They are put aside and back with each switch, as `errno` is: four moves. Where no C++ library is loaded when the worker begins,
//! nothing is done.
//!
//! Unwinding itself has all of its state on the stack.

use crate::ground::library::Kept;
use core::arch::global_asm;
use core::ffi::c_void;

/// The two words. Zero: there is none.
pub(crate) type Exceptions = [usize; 2];

// A weak reference, which stable Rust has no word for. It has a second effect: what a program is linked to refers to the function, so a linker exports it from
// a program that has its C++ library inside (`-static-libstdc++`).
global_asm!(
    ".pushsection .text.farshore_uthread_exceptions,\"ax\",@progbits",
    ".weak __cxa_get_globals",
    ".hidden farshore_uthread_cxa",
    ".globl farshore_uthread_cxa",
    ".type farshore_uthread_cxa,@function",
    "farshore_uthread_cxa:",
    "endbr64",
    "mov rax, [rip + __cxa_get_globals@GOTPCREL]",
    "ret",
    ".size farshore_uthread_cxa, . - farshore_uthread_cxa",
    ".popsection",
);

unsafe extern "C" {
    /// The address of `__cxa_get_globals`, or null.
    safe fn farshore_uthread_cxa() -> *mut c_void;
}

/// The words of one thread, or null.
#[derive(Debug)]
pub(crate) struct OfThread(*mut Exceptions);

impl OfThread {
    /// Those of the calling thread.
    pub(crate) fn find() -> OfThread {
        let mut found = farshore_uthread_cxa();
        if found.is_null() {
            // A library that was loaded after this one.
            // SAFETY: looks a name up.
            found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_get_globals".as_ptr()) };
        }
        if found.is_null() {
            return OfThread(core::ptr::null_mut());
        }
        // SAFETY: its type in the ABI.
        let of_thread = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut Exceptions>(found) };
        // SAFETY: may be called at any time; it gives the thread's own words, which stay where they are.
        OfThread(unsafe { of_thread() })
    }

    /// Keeps them in their place: a library that was loaded late has its thread-local data in the heap.
    pub(crate) fn keep(&self) -> std::io::Result<Option<Kept>> {
        let words = self.0.cast_const().cast();
        (!self.0.is_null()).then(|| Kept::new(words, size_of::<Exceptions>(), true)).transpose()
    }

    /// By that thread.
    #[inline]
    pub(crate) fn get(&self) -> Exceptions {
        if self.0.is_null() {
            return Exceptions::default();
        }
        // SAFETY: two words that this thread has for as long as it lives.
        unsafe { self.0.read() }
    }

    /// By that thread.
    #[inline]
    pub(crate) fn set(&self, to: Exceptions) {
        if !self.0.is_null() {
            // SAFETY: as above.
            unsafe { self.0.write(to) };
        }
    }
}
