//! The poll mode: handler threads read faults and wake the threads that wait; the kernel's own accesses wait too.

mod common;

use common::{PAGE, copy, managed, open, pointer};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Kernel, KernelError, Protect};
use farshore_sys::fd::{self, O_RDONLY};
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::{Message, UffdError, UffdOptions, Waited};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGES: u64 = 64;

/// Serves faults until told to stop; how many it saw, and the most it read at once.
fn serve(kernel: &LinuxKernel, range: PageRange, stop: &AtomicBool, seen: &AtomicU64) -> usize {
    let mut messages = [Message::EMPTY; 16];
    let mut most = 0;
    while !stop.load(Ordering::Relaxed) {
        if kernel.uffd().wait_readable(20).unwrap() == Waited::Nothing {
            continue;
        }
        let count = match kernel.uffd().read_messages(&mut messages) {
            Ok(count) => count,
            Err(Errno::EAGAIN) => continue, // the other handler was faster
            Err(errno) => panic!("{errno}"),
        };
        most = most.max(count);
        for message in &messages[..count] {
            let fault = message.fault().expect("only faults were asked for");
            let page = Page::containing(fault.address);
            assert!(range.contains(page));
            seen.fetch_add(1, Ordering::Relaxed);
            if fault.protected {
                assert!(fault.write);
                assert_eq!(kernel.unprotect(page), Ok(()));
                kernel.uffd().wake(page.addr(), 4096).unwrap();
                continue;
            }
            let protect = if fault.write { Protect::Writable } else { Protect::WriteProtected };
            match kernel.map(page, &common::filled(page.0 as u8), protect) {
                Ok(()) | Err(KernelError::Exists) => kernel.uffd().wake(page.addr(), 4096).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }
    most
}

/// What the program does: threads that read and write every page, and system calls on absent ones.
fn program(kernel: &LinuxKernel, range: PageRange) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                for i in 0..PAGES {
                    let page = range.start.plus((i + 16 * thread) % PAGES);
                    // SAFETY: managed memory; faults are served.
                    let byte = unsafe { pointer(page.addr() + thread).read_volatile() };
                    assert_eq!(byte, page.0 as u8);
                    // SAFETY: as above; the same value.
                    unsafe { pointer(page.addr() + thread).write_volatile(byte) };
                }
            });
        }
    });
    // The kernel writes into absent and into protected pages, and reads from absent ones.
    let pages: Vec<Page> = range.iter().take(8).collect();
    kernel.unmap(&pages).unwrap();
    kernel.protect(PageRange { start: range.start.plus(8), end: range.start.plus(16) }).unwrap();
    let zero = fd::open(c"/dev/zero", O_RDONLY).unwrap();
    // SAFETY: managed memory of this test that nobody else uses now.
    let buffer = unsafe { std::slice::from_raw_parts_mut(pointer(range.start.addr()), 16 * PAGE as usize) };
    assert_eq!(fd::read(&zero, buffer), Ok(16 * PAGE as usize), "no EFAULT, no short count");
    assert!(buffer.iter().all(|byte| *byte == 0));
    kernel.unmap(&pages).unwrap();
    let mut file = std::fs::File::create("/dev/null").unwrap();
    std::io::Write::write_all(&mut file, buffer).unwrap();
    // SAFETY: managed memory; faults are served.
    let byte = unsafe { pointer(range.start.addr()).read_volatile() };
    assert_eq!(byte, range.start.0 as u8);
}

#[test]
fn threads_and_system_calls_wait() {
    let Some(uffd) = open(UffdOptions::POLL) else { return };
    let range = managed(&uffd, PAGES);
    let kernel = &LinuxKernel::new(uffd, true).unwrap();
    let (stop, seen) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let handlers = [(); 2].map(|()| scope.spawn(move || serve(kernel, range, stop, seen)));
        program(kernel, range);
        stop.store(true, Ordering::Relaxed);
        let most: Vec<_> = handlers.into_iter().map(|handler| handler.join().unwrap()).collect();
        println!("{} faults, at most {most:?} at once", seen.load(Ordering::Relaxed));
    });
    assert!(seen.load(Ordering::Relaxed) >= PAGES);
}

#[test]
fn a_wait_ends_by_wake_alone() {
    let Some(uffd) = open(UffdOptions::POLL) else { return };
    let range = managed(&uffd, 1);
    let addr = range.start.addr();
    std::thread::scope(|scope| {
        // SAFETY: managed memory; the fault is served below.
        let reader = scope.spawn(move || unsafe { pointer(addr).read_volatile() });
        assert_eq!(uffd.wait_readable(5000), Ok(Waited::Message));
        assert_eq!(uffd.read_messages(&mut [Message::EMPTY; 4]), Ok(1));
        // Filled in without waking: the reader sleeps on.
        let bytes = common::filled(3);
        // SAFETY: the source is ours.
        unsafe { uffd.copy(addr, bytes.0.as_ptr() as u64, PAGE, false, false) }.unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!reader.is_finished());
        uffd.wake(addr, PAGE).unwrap();
        assert_eq!(reader.join().unwrap(), 3);
    });
    assert_eq!(uffd.read_messages(&mut [Message::EMPTY; 4]), Err(Errno::EAGAIN));
    assert_eq!(copy(&uffd, range.start, 1, false), Err(UffdError::Exists));
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
