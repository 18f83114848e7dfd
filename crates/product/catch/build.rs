//! Plans for the libc of the machine that builds (`src/patch.rs` uses them), as the file `sites.table`. The head of `farshore_sites::table` says what is in it.
//!
//! A build script is itself linked with that libc, so it finds the files among its own mappings. Where they have no build id, or there is no glibc, the table is
//! empty, and the library plans when a program starts.

use std::path::{Path, PathBuf};

/// Written anew by `ldconfig` when a library is installed. The file of a new libc may be older than the table for the old one.
const CACHE: &str = "/etc/ld.so.cache";

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names the directory"));
    std::fs::write(out.join("sites.table"), farshore_sites::installed::table()).expect("the directory is cargo's");
    println!("cargo:rerun-if-changed=build.rs");
    if Path::new(CACHE).exists() {
        println!("cargo:rerun-if-changed={CACHE}");
    }
    for file in farshore_sites::installed::files() {
        println!("cargo:rerun-if-changed={}", file.display());
    }
}
