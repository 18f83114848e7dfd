//! Finds the `syscall` instructions of an ELF image, and plans how a jump is put over each.
//!
//! A `syscall` has 2 bytes, a jump 5. So a *window* of whole instructions around the `syscall` is moved elsewhere, to a *stub*, and the
//! jump is put in its place (`catch/src/patch.rs` does that, and says how). This crate decides which windows there are. It works on bytes that its
//! caller hands in, and changes nothing.
//!
//! The library's build script plans for the libc of the machine that builds ([`installed`]), and puts the result into the library: a
//! [`Table`](table::Table), in which a plan is found by the image's build id. A library that meets another libc plans by itself, when a program starts, which takes
//! a millisecond or two. Both run [`Plan::of`], so both come to the same windows.
//!
//! # What must hold
//!
//! Every doubt is settled by leaving the site alone.
//!
//! 1. **Instructions are instructions.** Only functions that `.eh_frame` names are decoded (of programs without its table, those of [`listed`]), each from its first byte, up to the next one where
//!    the call lies behind what the description covers (`clone`).
//!    One instruction that is invalid, or not known here ([`decode`]), and the function is left alone. So data in text is never taken for code.
//! 2. **Nobody jumps into a window.** The jumps of the decoded functions are known. The rest of the text is searched for
//!    direct jumps and calls at every byte offset, also where no instruction begins: that finds too many, never too few. What is found in
//!    a function that can be decoded is one if an instruction begins there. A window into whose inside one leads is dropped. A function with an indirect jump (a `switch` table) is left alone:
//!    its targets are not known. Windows may begin at a target.
//! 3. **Moved instructions do the same elsewhere.** No jumps, calls, returns, landing pads, and none that change `rsp`, on
//!    which the stubs' unwind rule relies. An operand relative to `rip` is noted ([`Fixup`]), so that its distance can be changed; all else is copied byte by byte.
//! 4. **Whoever looks at the code finds it.** `rt_sigreturn`'s restorer is recognised by its bytes (unwinders) and runs on
//!    the bare signal frame, so it stays. Functions whose unwind information marks a signal frame stay.
//! 5. **A plan is for these bytes.** It is used for an image with the same build id, the same texts, and the same bytes in each window that is used
//!    ([`Image::agrees_with`]). A program's own build id stands for the rest of its text, as it does for debuggers.
#![forbid(unsafe_code)]

pub mod decode;
mod functions;
mod image;
pub mod installed;
mod listed;
mod numbers;
mod plan;
mod search;
pub mod table;
mod window;

pub use image::{Image, Part, section};
pub use plan::{Left, Plan};
pub use search::has_syscalls;
pub use window::{Fixup, WINDOW_MOST, Window};

/// Files whose text is patched: those whose name begins with one of these.
pub const NAMES: &[&str] = &["libc.so.6", "libc-2.", "ld-linux-x86-64.so.2", "ld-2.", "libpthread"];

/// The number of a call of which nobody can tell before it is made.
pub const ANY_NUMBER: u64 = u64::MAX;

/// The bytes of a `syscall`.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Bytes of the jump that is put over a window.
pub const JUMP_LENGTH: usize = 5;

/// Whether the file of this path is one whose name begins with one of `names`.
pub fn is_named(path: &str, names: &[&str]) -> bool {
    let file = path.rsplit('/').next().unwrap_or("");
    names.iter().any(|name| file.starts_with(name))
}
