//! The conformance suite on the real kernel, in each way it can be driven.

mod common;

use common::{Memory, install_fixup, managed, open};
use farshore_sys::conformance::{PAGES, run};
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::uffd::UffdOptions;
use farshore_sys::vm::{SelfAdvice, SelfMem};

#[test]
fn as_in_upcall_mode() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let memory = Memory(managed(&uffd, PAGES));
    run(&LinuxKernel::new(uffd, false).unwrap(), &memory);
}

#[test]
fn with_wakes() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let memory = Memory(managed(&uffd, PAGES));
    run(&LinuxKernel::new(uffd, true).unwrap(), &memory);
}

#[test]
fn without_process_madvise() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let memory = Memory(managed(&uffd, PAGES));
    let kernel = LinuxKernel::with_parts(uffd, SelfAdvice::one_by_one(), SelfMem::open().unwrap(), false);
    run(&kernel, &memory);
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
