//! The net's table, buffers, transfers and calls, without the library around them: against the real kernel, on a fake
//! engine (`src/net/tests_fake.rs`) that takes every page away that was not pinned.
//!
//! The modules are included as they are, since a library that catches system calls cannot be linked into a test program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, unused_imports, reason = "only a part of each module is used here")]

#[path = "../src/net/buffers.rs"]
mod buffers;
#[path = "../src/net/calls.rs"]
mod calls;
#[path = "../src/report.rs"]
mod report;
#[path = "../src/net/table.rs"]
mod table;
#[path = "../src/net/transfer.rs"]
mod transfer;
