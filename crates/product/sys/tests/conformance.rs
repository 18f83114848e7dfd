//! The conformance suite on the real kernel, in each way it can be driven.

mod common;

use common::{Memory, install_fixup, managed, open};
use farshore_core::seams::HugePages;
use farshore_sys::conformance::{PAGES, run};
use farshore_sys::huge::Source;
use farshore_sys::kernel::{HugeWay, LinuxKernel};
use farshore_sys::pagemap::Pagemap;
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
fn with_huge_pages() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let Some(way) = huge_pages() else { return };
    let memory = Memory(managed(&uffd, PAGES));
    run(&LinuxKernel::new(uffd, false).unwrap().with_huge_pages(Some(way)), &memory);
}

#[test]
fn with_huge_pages_and_wakes() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let Some(way) = huge_pages() else { return };
    let memory = Memory(managed(&uffd, PAGES));
    run(&LinuxKernel::new(uffd, true).unwrap().with_huge_pages(Some(way)), &memory);
}

/// A source, whatever the kernel gives to whom; where it has no huge pages at all the pages are small, and the suite holds all the same.
fn huge_pages() -> Option<HugeWay> {
    let source = Source::with(HugePages::Asked);
    if source.is_none() {
        println!("skipped: this kernel has no transparent huge pages");
    }
    source.map(|source| HugeWay { source: Box::leak(Box::new(source)), pagemap: Pagemap::open().unwrap() })
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
