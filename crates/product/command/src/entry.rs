//! From C's `main` to an exit status.
//!
//! These commands start without the standard library's entry: that ignores SIGPIPE for good, opens `/dev/null` in place of
//! closed descriptors and installs signal handlers, and a program that is started by `farshore run` would find it so. As a
//! gift, `farshore stat PID | head` ends quietly.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

use crate::refusal::Refusal;

/// The words of the command line, the command's own name first.
///
/// # Safety
/// `count` and `arguments` are what C's `main` has got.
#[must_use]
pub unsafe fn words(count: c_int, arguments: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(count).unwrap_or(0);
    let word = |index| {
        // SAFETY: C promises `count` pointers in a row at `arguments`, and `index` is less.
        let place = unsafe { arguments.add(index) };
        // SAFETY: as above, so one can be read here.
        let word = unsafe { *place };
        // SAFETY: each points to a string that ends with a zero byte and stays for the process' life.
        let word = unsafe { CStr::from_ptr(word) };
        OsString::from_vec(word.to_bytes().to_vec())
    };
    (0..count).map(word).collect()
}

/// The exit status; why something was not done goes to stderr.
pub fn end(done: Result<u8, Refusal>) -> c_int {
    let status = done.unwrap_or_else(|refusal| {
        // Where stderr is closed, the status is all that is left to tell.
        let _ = writeln!(std::io::stderr(), "{refusal}");
        refusal.status
    });
    c_int::from(status)
}

/// Defines C's `main` of a command, which is this function of the words of the command line.
#[macro_export]
macro_rules! main {
    ($command:path) => {
        /// The C entry point.
        ///
        /// # Safety
        /// Called once by the C runtime, with the arguments as C promises them.
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn main(
            count: ::core::ffi::c_int,
            arguments: *const *const ::core::ffi::c_char,
        ) -> ::core::ffi::c_int {
            // SAFETY: they are what this has got.
            let words = unsafe { $crate::entry::words(count, arguments) };
            $crate::entry::end($command(words))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_arrive_as_they_are() {
        let given = [c"farshore", c"", c"a b", c"\xff--"];
        let pointers: Vec<*const c_char> = given.iter().map(|word| word.as_ptr()).collect();
        // SAFETY: four pointers to strings of this program.
        let words = unsafe { words(4, pointers.as_ptr()) };
        assert_eq!(words, given.map(|word| OsString::from_vec(word.to_bytes().to_vec())));
        // SAFETY: none is read.
        assert!(unsafe { super::words(0, pointers.as_ptr()) }.is_empty());
    }

    #[test]
    fn the_status_is_the_refusals() {
        assert_eq!((end(Ok(3)), end(Err(Refusal::not_found("this line is wanted")))), (3, 127));
    }
}
