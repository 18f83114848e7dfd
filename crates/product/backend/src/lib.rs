//! Kinds of swap space.
//!
//! | module | what | for |
//! |---|---|---|
//! | [`file`] | one or several files without a name, striped | every day |
//! | [`device`] | block devices that a family shares; to [`file`] they are files | `dev:` |
//! | [`ram`] | memory of this machine, with a fixed latency if wanted | tests and measuring |
//! | [`compressed`] | a pool of compressed pages in RAM, in front of another space or alone | RAM is faster than a disk |
//! | [`nbd`] | an export of an NBD server | `nbd://`: memory of other machines |
//! | [`redis`] | keys of a Redis or Valkey server, or of a Cluster | `redis://`: the same |
//! | [`mirror`] | two or three of these, each of which has all pages | `mirror:`: what one loses the others have |
//! | [`faulty`] | wraps any of them and injects errors from a seed | tests |
//! | [`encrypt`] | wraps any of them, so that its medium holds noise | `--encrypt` |
//! | [`mapped`] | files that the program has mapped, read by their own pages | `--files` |
//! | [`any`] | the space that the user asked for | the library |
//!
//! # Rules of a backend
//!
//! 1. *Start-up* opens files, maps memory, sets rings up and may allocate. *Later* — [`read`] in a signal handler, the
//!    methods of a queue on an evictor — no code allocates, locks or calls libc: every system call is an instruction in
//!    our own text (rustix `linux_raw`, io-uring `direct-syscall`).
//! 2. A completion is delivered exactly once for each write that was started, whatever happens to the device or the ring.
//!    An error is never swallowed: operations that can be retried without harm (EINTR, a short transfer that moved) are
//!    retried here, and the engine decides about the others.
//! 3. Nothing stays behind, also after `kill -9`: a file has lost its name before its first page is written.
//! 4. Descriptors live above the numbers that programs use ([`place_high`]) and are close-on-exec.
//!
//! There is no backend that drops the pages it is given: the engine checks every page against its checksum, so such a
//! space could hold no page of a program. To measure the engine alone, use [`ram`].
//!
//! [`read`]: farshore_core::seams::Reads::read

pub mod any;
pub mod compressed;
pub mod device;
pub mod encrypt;
pub mod error;
pub mod faulty;
mod fd;
pub mod file;
pub mod layered;
pub mod mapped;
pub mod mirror;
pub mod nbd;
pub mod ram;
pub mod redis;
mod reserved;
mod sleep;
mod socket;

pub use any::AnyBackend;
pub use encrypt::Cipher;
pub use error::OpenError;
pub use fd::place_high;
