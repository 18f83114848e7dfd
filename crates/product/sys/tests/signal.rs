//! Signals: actions, masks, alternate stacks, what a handler sees and changes, and leaving by our own `rt_sigreturn`.

use farshore_sys::own::Stack;
use farshore_sys::raw::{Errno, getpid, gettid};
use farshore_sys::signal::{self, Action, AltStack, How, Reg, SIGSEGV, SIGUSR1, SigInfo, SigSet, UContext, flags};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Signal actions belong to the process: one test at a time.
static ONE: Mutex<()> = Mutex::new(());
static SEEN: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

fn seen(n: usize) -> u64 {
    SEEN[n].load(Ordering::SeqCst)
}

fn note(n: usize, value: u64) {
    SEEN[n].store(value, Ordering::SeqCst);
}

unsafe extern "C" fn take_notes(number: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes valid structures.
    let info = unsafe { &*info };
    // SAFETY: as above; nobody else uses it meanwhile.
    let context = unsafe { &mut *context };
    note(0, number as u64);
    note(1, u64::from(info.sender_pid()));
    note(2, u64::from(info.from_kernel()));
    note(3, (&raw const number).addr() as u64);
    note(4, signal::current_mask().0);
    note(5, context.mask().0);
    context.set_mask(context.mask().with(SIGUSR1));
}

#[test]
fn a_signal_to_oneself() {
    let _one = ONE.lock().unwrap();
    let stack = Stack::new(64 << 10).unwrap();
    // SAFETY: the stack lives until it is reset below.
    let before = unsafe { signal::sigaltstack(Some(&stack.as_alt_stack())) }.unwrap();
    let mask = signal::sigprocmask(How::Unblock, SigSet::EMPTY.with(SIGUSR1));
    let action = Action::new(take_notes, flags::ONSTACK, SigSet::EMPTY.with(12));
    // SAFETY: the handler stores to atomics.
    let old = unsafe { signal::sigaction(SIGUSR1, Some(&action)) }.unwrap();
    // SAFETY: reads only.
    assert_eq!(unsafe { signal::sigaction(SIGUSR1, None) }, Ok(action));
    signal::tgkill(getpid(), gettid(), SIGUSR1).unwrap();
    assert_eq!((seen(0), seen(1), seen(2)), (u64::from(SIGUSR1), u64::from(getpid()), 0));
    assert!((stack.base()..stack.top()).contains(&seen(3)), "runs on the alternate stack");
    let inside = SigSet(seen(4));
    assert!(inside.contains(SIGUSR1) && inside.contains(12) && !SigSet(seen(5)).contains(SIGUSR1));
    let after = signal::sigprocmask(How::Set, mask);
    assert!(after.contains(SIGUSR1), "the handler's change of the mask holds");
    // SAFETY: puts back what was there.
    unsafe { signal::sigaction(SIGUSR1, Some(&old)) }.unwrap();
    // SAFETY: puts back what was there.
    let ours = unsafe { signal::sigaltstack(Some(&before)) }.unwrap();
    assert_eq!((ours.base, ours.size), (stack.base(), stack.len() as u64));
}

#[test]
fn errors() {
    // SAFETY: is refused.
    assert_eq!(unsafe { signal::sigaction(9, Some(&Action::DEFAULT)) }, Err(Errno::EINVAL));
    // SAFETY: is refused.
    assert_eq!(unsafe { signal::sigaltstack(Some(&AltStack { base: 4096, flags: 0, size: 16 })) }, Err(Errno::ENOMEM));
    assert_eq!(signal::tgkill(getpid(), 0x7fff_fff0, 0), Err(Errno::ESRCH));
    assert!(SigSet::ALL.without(7).contains(8) && !SigSet::ALL.without(7).contains(7));
}

/// Sends the interrupted code past its 2-byte faulting instruction, with a value in a register.
unsafe extern "C" fn step_over(_: i32, info: *mut SigInfo, context: *mut UContext) {
    // SAFETY: the kernel passes valid structures.
    let info = unsafe { &*info };
    // SAFETY: as above; nobody else uses it meanwhile.
    let context = unsafe { &mut *context };
    note(0, info.fault_address());
    note(1, context.cr2());
    note(2, context.fault_kind().0);
    note(3, context.get(Reg::R12));
    note(4, u64::from(context.is_page_fault() && info.from_kernel()));
    let next = context.get(Reg::Rip) + 3;
    // SAFETY: the instruction is 3 bytes long and the code goes on behind it.
    unsafe { context.set(Reg::Rip, next) };
    // SAFETY: rax is an output of the assembly.
    unsafe { context.set(Reg::Rax, 0xfeed) };
}

#[test]
fn a_handler_sees_and_changes_registers() {
    let _one = ONE.lock().unwrap();
    // SAFETY: the handler stores to atomics and changes what the assembly below expects.
    let old = unsafe { signal::sigaction(SIGSEGV, Some(&Action::new(step_over, flags::ONSTACK, SigSet::EMPTY))) }.unwrap();
    let result: u64;
    // SAFETY: the load faults at address 0x123, and the handler steps over it. r12 is kept.
    unsafe {
        std::arch::asm!(
            "mov r12, 0x5eed",
            "mov rax, qword ptr [rdi]", // 48 8b 07
            in("rdi") 0x123u64,
            out("rax") result,
            out("r12") _,
        );
    }
    // SAFETY: puts back what was there.
    unsafe { signal::sigaction(SIGSEGV, Some(&old)) }.unwrap();
    assert_eq!((result, seen(0), seen(1), seen(3), seen(4)), (0xfeed, 0x123, 0x123, 0x5eed, 1));
    assert_eq!(seen(2) & 3, 0, "absent, read");
}

/// Walks the stack out of the handler, through the signal frame, which our restorer's bytes make recognisable.
unsafe extern "C" fn walk(_: i32, _: *mut SigInfo, _: *mut UContext) {
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    note(0, u64::from(trace.contains("unwinds_through_the_frame")));
}

#[test]
fn unwinds_through_the_frame() {
    let _one = ONE.lock().unwrap();
    let mask = signal::sigprocmask(How::Unblock, SigSet::EMPTY.with(SIGUSR1));
    note(0, 7);
    // SAFETY: the handler allocates, which is sound since the signal comes where this test asks for it.
    let old = unsafe { signal::sigaction(SIGUSR1, Some(&Action::new(walk, 0, SigSet::EMPTY))) }.unwrap();
    signal::tgkill(getpid(), gettid(), SIGUSR1).unwrap();
    // SAFETY: puts back what was there.
    unsafe { signal::sigaction(SIGUSR1, Some(&old)) }.unwrap();
    signal::sigprocmask(How::Set, mask);
    assert_eq!(seen(0), 1);
}
