//! What start-up takes out of the environment. The module is included as it is, since a library that catches system
//! calls cannot be linked into a test program.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, reason = "only a part of the module is used here")]

#[path = "../src/ground/environment.rs"]
mod environment;
