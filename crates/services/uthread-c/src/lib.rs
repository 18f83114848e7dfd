//! `libfarshore_uthread.so`: the functions of `include/farshore_uthread.h`, which `farshore-uthread` has (`ffi.rs`), as a library for C programs.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

// Its functions with C names are this library's.
pub use unithreads as runtime;
