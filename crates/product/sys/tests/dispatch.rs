//! What may run after start-up makes no call through libc: under Syscall User Dispatch that spares this program's own text
//! alone, as it will be for `libfarshore.so`, none of it is caught, while a call of libc is.

mod common;

use common::{PAGE, managed, open};
use farshore_core::page::PageRange;
use farshore_core::seams::{Clock, Kernel, PageBuf, Protect};
use farshore_core::sync::{AtomicU32, Futex};
use farshore_sys::alloc::OwnMemory;
use farshore_sys::clock::MonotonicClock;
use farshore_sys::futex::KernelFutex;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::own::{Own, Stack};
use farshore_sys::pagemap::Pagemap;
use farshore_sys::signal::{self, Action, Reg, SIGSYS, SigInfo, SigSet, UContext, flags};
use farshore_sys::uffd::{Message, UffdOptions};
use farshore_sys::{raw, sud, tls};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

static CAUGHT: AtomicU64 = AtomicU64::new(0);
static SELECTOR: AtomicU8 = AtomicU8::new(sud::ALLOW);

/// Counts a caught call and carries it out.
unsafe extern "C" fn carry_out(_: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes valid structures.
    let info = unsafe { &*info };
    // SAFETY: as above; nobody else uses it meanwhile.
    let context = unsafe { &mut *context };
    assert_eq!(info.code(), signal::SYS_USER_DISPATCH);
    assert_eq!((info.call_number() as u64, info.call_address()), (context.get(Reg::Rax), context.get(Reg::Rip)));
    CAUGHT.fetch_add(1, Ordering::SeqCst);
    let args = [Reg::Rdi, Reg::Rsi, Reg::Rdx, Reg::R10, Reg::R8, Reg::R9].map(|register| context.get(register));
    // SAFETY: the call that the program wanted.
    let answer = unsafe { raw::syscall(info.call_number() as u64, args) };
    // SAFETY: rax is where the program expects the answer.
    unsafe { context.set(Reg::Rax, answer as u64) };
}

/// The mapping that this program's code lies in.
fn own_text() -> (u64, u64) {
    let here = own_text as *const () as u64;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).unwrap());
        if (start..end).contains(&here) {
            return (start, end - start);
        }
    }
    unreachable!("this code lies in no mapping");
}

/// One of everything.
fn use_everything(kernel: &LinuxKernel, range: PageRange, clock: &MonotonicClock, heap: &OwnMemory) {
    let first = range.start;
    let before = clock.now_ns();
    for page in range.iter().take(8) {
        kernel.map(page, &PageBuf::ZERO, Protect::WriteProtected).unwrap();
    }
    kernel.map_zeros(first.plus(8), 8).unwrap();
    kernel.unprotect(first).unwrap();
    kernel.protect(range).unwrap();
    let mut bytes = PageBuf::ZERO;
    kernel.copy_out(first, &mut bytes, true).unwrap();
    kernel.copy_out(first, &mut bytes, false).unwrap();
    kernel.unmap(&[first, first.plus(1), first.plus(5)]).unwrap();
    kernel.uffd().wake(first.addr(), PAGE).unwrap();
    assert!(kernel.uffd().read_messages(&mut [Message::EMPTY]).is_err());
    assert_eq!((kernel.current_thread(), tls::get()), (tls::thread_pointer(), std::ptr::null_mut()));
    let word = AtomicU32::new(0);
    KernelFutex.wait_for(&word, 0, 1000);
    KernelFutex.wake_all(&word);
    for size in [100, 10 << 20] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the layout is not empty.
        let block = unsafe { heap.alloc_zeroed(layout) };
        // SAFETY: the block came from this heap with this layout.
        unsafe { heap.dealloc(block, layout) };
    }
    drop((Own::new(5000).unwrap(), Stack::new(5000).unwrap()));
    let pagemap = Pagemap::open().unwrap();
    assert!(pagemap.entry(first.plus(2).addr()).unwrap().present());
    signal::sigprocmask(signal::How::Block, SigSet::EMPTY);
    assert!(clock.now_ns() > before);
}

#[test]
fn nothing_of_ours_is_caught() {
    let Some(uffd) = open(UffdOptions::UPCALL) else { return };
    let range = managed(&uffd, 16);
    let (kernel, clock, heap) = (LinuxKernel::new(uffd, false).unwrap(), MonotonicClock::new(), OwnMemory::new());
    let action = Action::new(carry_out, flags::ONSTACK | flags::NODEFER, SigSet::EMPTY);
    // SAFETY: the handler carries the call out, and leaves through the restorer, which is in our text.
    unsafe { signal::sigaction(SIGSYS, Some(&action)) }.unwrap();
    let (start, len) = own_text();
    // SAFETY: the selector is a static; the handler is installed.
    if let Err(errno) = unsafe { sud::enable(start, len, &SELECTOR) } {
        return println!("skipped: Syscall User Dispatch: {errno}");
    }
    SELECTOR.store(sud::BLOCK, Ordering::SeqCst);
    use_everything(&kernel, range, &clock, &heap);
    let ours = CAUGHT.load(Ordering::SeqCst);
    let there = std::path::Path::new("/").exists();
    let all = CAUGHT.load(Ordering::SeqCst);
    SELECTOR.store(sud::ALLOW, Ordering::SeqCst);
    sud::disable().unwrap();
    assert_eq!(ours, 0, "a call of ours goes through libc (or the vDSO)");
    assert!(there && all > 0, "a call of libc is caught");
}
