//! userfaultfd's ioctls: what each does, and each typed error.

mod common;

use common::{PAGE, copy, install_fixup, managed, map_pages, open, read, write};
use farshore_core::page::Page;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::{Features, OpenError, Uffd, UffdError, UffdOptions, kernel_features};
use farshore_sys::vm::{self, map, prot};

fn absent(addr: u64) -> bool {
    read(addr).is_err_and(|kind| !kind.present() && !kind.write())
}

fn protected(addr: u64) -> bool {
    write(addr, 1).is_err_and(|kind| kind.present() && kind.write())
}

#[test]
fn opening_tells_what_is_missing() {
    let there = kernel_features(UffdOptions::UPCALL).unwrap();
    assert!(there.contains(Features::SIGBUS.with(Features::WP)));
    let future = Features(1 << 60);
    let options = UffdOptions { required: Features::WP.with(future), ..UffdOptions::UPCALL };
    let why = Uffd::open(options).unwrap_err();
    assert_eq!(why, OpenError::Missing(future));
    assert!(why.to_string().contains("0x1000000000000000"), "{why}");
    let (_, on) = Uffd::open(UffdOptions { wanted: future, ..UffdOptions::UPCALL }).unwrap();
    assert_eq!(on, Features::WP.with(Features::SIGBUS));
    let (uffd, _) = Uffd::open(UffdOptions::UPCALL).unwrap();
    assert!(uffd.raise(700).unwrap().fd().raw() >= 700);
}

#[test]
fn registering() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = map_pages(4);
    let start = range.start.addr();
    assert_eq!(write(start, 5), Ok(()));
    // SAFETY: touched by guarded accesses only.
    unsafe { uffd.register(start, range.bytes()) }.unwrap();
    assert_eq!((read(start), write(start, 6)), (Ok(5), Ok(())), "pages that are there stay");
    assert!(absent(start + PAGE));
    let (other, _) = Uffd::open(UffdOptions::UPCALL).unwrap();
    // SAFETY: is refused.
    assert_eq!(unsafe { other.register(start, PAGE) }, Err(Errno::EBUSY));
    // SAFETY: is refused.
    assert_eq!(unsafe { uffd.register(start + 1, PAGE) }, Err(Errno::EINVAL));
    assert_eq!(copy(&uffd, range.start.plus(2), 9, true), Ok(()));
    uffd.unregister(start, range.bytes()).unwrap();
    assert_eq!(read(start + PAGE), Ok(0), "ordinary again");
    assert_eq!((read(start + 2 * PAGE), write(start + 2 * PAGE, 1)), (Ok(9), Ok(())), "no protection is left");
    assert_eq!(copy(&uffd, range.start.plus(3), 1, false), Err(UffdError::NotRegistered));
}

#[test]
fn memory_that_cannot_be_registered() {
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: new memory.
    let base = unsafe { vm::mmap(0, PAGE, prot::READ, map::PRIVATE, fd, 0) }.unwrap();
    // SAFETY: is refused.
    assert_eq!(unsafe { uffd.register(base, PAGE) }, Err(Errno::EINVAL));
    let range = map_pages(1);
    // SAFETY: nobody uses it.
    unsafe { vm::munmap(range.start.addr(), PAGE) }.unwrap();
    // SAFETY: is refused.
    assert!(unsafe { uffd.register(range.start.addr(), PAGE) }.is_err());
}

#[test]
fn poison_fails_accesses_until_something_takes_its_place() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, 4);
    let at = |n: u64| range.start.plus(n).addr();
    assert_eq!(uffd.poison(at(0), 2 * PAGE), Ok(()));
    assert!(read(at(0)).is_err() && read(at(1)).is_err());
    let null = std::fs::OpenOptions::new().read(true).open("/dev/zero").unwrap();
    // SAFETY: the kernel fails to write there.
    let answer = unsafe { farshore_sys::raw::syscall(0, [std::os::fd::AsRawFd::as_raw_fd(&null) as u64, at(0), PAGE, 0, 0, 0]) };
    assert_eq!(answer, -i64::from(Errno::EFAULT.0));
    // What is mapped takes its place …
    assert_eq!((copy(&uffd, range.start, 7, false), read(at(0))), (Ok(()), Ok(7)));
    // … and what is there is not poisoned.
    assert_eq!(uffd.poison(at(0), PAGE), Err(UffdError::Exists));
    // SAFETY: nobody needs the bytes.
    unsafe { vm::madvise(at(1), PAGE, vm::advice::DONTNEED) }.unwrap();
    assert!(absent(at(1)), "an ordinary absent page again");
    assert_eq!((copy(&uffd, range.start.plus(1), 8, true), read(at(1))), (Ok(()), Ok(8)));
}

#[test]
fn copying() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, 16);
    let at = |n: u64| range.start.plus(n).addr();
    assert_eq!(copy(&uffd, range.start, 1, false), Ok(()));
    assert_eq!(copy(&uffd, range.start, 2, false), Err(UffdError::Exists));
    assert_eq!(read(at(0)), Ok(1));
    assert_eq!(copy(&uffd, range.start.plus(1), 2, true), Ok(()));
    assert_eq!((read(at(1)), protected(at(1))), (Ok(2), true));
    // Several pages, stopped by one that is there: progress, then the reason.
    assert_eq!(copy(&uffd, range.start.plus(6), 3, false), Ok(()));
    let source = vec![4u8; 8 * PAGE as usize];
    let many = |n: u64, pages: u64| {
        // SAFETY: the source is ours.
        unsafe { uffd.copy(at(n), source.as_ptr() as u64, pages * PAGE, false, false) }
    };
    assert_eq!(many(3, 8), Err(UffdError::Again { done: 3 * PAGE }));
    assert_eq!(many(6, 5), Err(UffdError::Exists));
    assert_eq!((read(at(5)), read(at(6))), (Ok(4), Ok(3)));
    assert!(absent(at(7)));
    assert_eq!(many(7, 8), Ok(()));
    // Sources that cannot be read; targets that are nothing.
    // SAFETY: the kernel refuses to read there. (Above `vm.mmap_min_addr`: below it is no address at all to some kernels.)
    assert_eq!(unsafe { uffd.copy(at(15), 1 << 24, PAGE, false, false) }, Err(UffdError::BadAddress));
    assert_eq!(copy(&uffd, Page(16), 1, false), Err(UffdError::NotRegistered));
    // SAFETY: unaligned, refused.
    let odd = unsafe { uffd.copy(at(15) + 1, source.as_ptr() as u64, PAGE, false, false) };
    assert_eq!(odd, Err(UffdError::Other(Errno::EINVAL)));
}

#[test]
fn zeropages() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, 4);
    let at = |n: u64| range.start.plus(n).addr();
    assert_eq!(uffd.zeropage(at(0), 3 * PAGE, false), Ok(()));
    assert_eq!((read(at(2)), write(at(1), 7), read(at(1)), read(at(0))), (Ok(0), Ok(()), Ok(7), Ok(0)));
    assert!(absent(at(3)));
    assert_eq!(uffd.zeropage(at(2), PAGE, true), Err(UffdError::Exists));
}

#[test]
fn protecting() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, 8);
    let at = |n: u64| range.start.plus(n).addr();
    for n in [0, 2, 3] {
        assert_eq!(copy(&uffd, range.start.plus(n), n as u8, false), Ok(()));
    }
    assert_eq!(uffd.protect(at(0), 8 * PAGE), Ok(()));
    assert!(protected(at(0)) && protected(at(2)) && absent(at(1)));
    assert_eq!(uffd.unprotect(at(2), PAGE, false), Ok(()));
    assert_eq!((write(at(2), 9), protected(at(3))), (Ok(()), true));
    // Protection survives mprotect to PROT_NONE and back.
    // SAFETY: scratch memory.
    unsafe { vm::mprotect(at(3), PAGE, prot::NONE) }.unwrap();
    // SAFETY: scratch memory.
    unsafe { vm::mprotect(at(3), PAGE, prot::READ | prot::WRITE) }.unwrap();
    assert!(protected(at(3)));
    // DONTNEED takes page and protection away.
    // SAFETY: scratch memory.
    unsafe { vm::madvise(at(3), PAGE, vm::advice::DONTNEED) }.unwrap();
    assert!(absent(at(3)));
    let plain = map_pages(2);
    assert_eq!(uffd.protect(plain.start.addr(), PAGE), Err(UffdError::NotRegistered));
}

#[test]
fn moving() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    if !kernel_features(UffdOptions::UPCALL).unwrap().contains(Features::MOVE) {
        println!("skipped: this kernel has no UFFDIO_MOVE");
        return;
    }
    let (from, to) = (managed(&uffd, 8), managed(&uffd, 8));
    let (source, target) = (|n: u64| from.start.plus(n).addr(), |n: u64| to.start.plus(n).addr());
    for n in [0, 1, 3] {
        assert_eq!(copy(&uffd, from.start.plus(n), 10 + n as u8, true), Ok(()));
    }
    // SAFETY: scratch memory.
    let moving = |n: u64, pages: u64, holes: bool| unsafe { uffd.move_pages(target(n), source(n), pages * PAGE, holes, false) };
    assert_eq!(moving(0, 1, false), Ok(PAGE));
    assert!(absent(source(0)));
    assert_eq!((read(target(0)), write(target(0), 1)), (Ok(10), Ok(())), "a moved page is writable");
    assert_eq!(moving(5, 1, false), Err(UffdError::NotRegistered), "a hole at the source");
    assert_eq!(moving(1, 3, true), Ok(3 * PAGE), "holes passed over");
    assert_eq!((read(target(1)), read(target(3)), absent(target(2))), (Ok(11), Ok(13), true));
    assert_eq!(copy(&uffd, from.start, 1, false), Ok(()));
    assert_eq!(moving(0, 1, false), Err(UffdError::Exists));
    assert_eq!(read(source(0)), Ok(1), "what could not be moved stays");
    let plain = map_pages(1);
    // SAFETY: scratch memory.
    let outside = unsafe { uffd.move_pages(plain.start.addr(), source(0), PAGE, false, false) };
    assert!(outside.is_err(), "both ranges must be registered");
}

#[test]
fn filling_what_the_program_cannot_touch() {
    install_fixup();
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    for access in [prot::NONE, prot::READ] {
        let range = managed(&uffd, 2);
        // SAFETY: scratch memory.
        unsafe { vm::mprotect(range.start.addr(), range.bytes(), access) }.unwrap();
        assert_eq!(copy(&uffd, range.start, 5, false), Ok(()));
        assert_eq!(copy(&uffd, range.start.plus(1), 6, true), Ok(()));
        assert_eq!(uffd.protect(range.start.addr(), PAGE), Ok(()));
        // SAFETY: scratch memory.
        unsafe { vm::mprotect(range.start.addr(), range.bytes(), prot::READ | prot::WRITE) }.unwrap();
        assert!(protected(range.start.addr()) && protected(range.start.plus(1).addr()));
        assert_eq!((read(range.start.addr()), read(range.start.plus(1).addr())), (Ok(5), Ok(6)));
    }
}

#[test]
fn the_kernel_gets_efault_on_absent_pages() {
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, 1);
    let zero = farshore_sys::fd::open(c"/dev/zero", farshore_sys::fd::O_RDONLY).unwrap();
    let args = [zero.raw() as u64, range.start.addr(), PAGE, 0, 0, 0];
    // SAFETY: the kernel may write into scratch memory.
    let answer = unsafe { farshore_sys::raw::syscall_result(farshore_sys::raw::nr::READ, args) };
    assert_eq!(answer, Err(Errno::EFAULT));
}

#[test]
fn again_as_nobody() {
    common::again_as_nobody();
}
