//! Signals without libc: actions, masks, alternate stacks, and what a handler may look at.
//!
//! All layouts are the **kernel's** (libc's `sigaction`, `sigset_t` and `ucontext_t` differ: a mask of ours has 64 bits).
//!
//! # Leaving a handler
//!
//! A handler returns into the *restorer*, which makes the `rt_sigreturn` call. libc's restorer lies in
//! libc's text, where Syscall User Dispatch would catch it, so [`Action::new`] names our own. Its bytes are exactly
//! `48 c7 c0 0f 00 00 00 0f 05`, and a `nop` comes before them: debuggers and C++'s unwinder recognise a signal frame by these
//! bytes, and look one byte before the return address for a function. gdb looks at the bytes only if the symbol there has
//! `sigaction` in its name.

use crate::raw::{self, Errno, nr};
use core::arch::global_asm;

global_asm!(
    ".pushsection .text.farshore_sigaction_restorer,\"ax\",@progbits",
    ".balign 16",
    "nop",
    ".globl farshore_sigaction_restorer",
    ".hidden farshore_sigaction_restorer",
    ".type farshore_sigaction_restorer,@function",
    "farshore_sigaction_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00", // mov rax, 15
    "syscall",
    ".size farshore_sigaction_restorer, . - farshore_sigaction_restorer",
    ".popsection",
);

unsafe extern "C" {
    fn farshore_sigaction_restorer();
}

/// Bytes of [`restorer`]'s code.
pub const RESTORER_LEN: u64 = 9;

/// Address of our own `rt_sigreturn`.
pub fn restorer() -> u64 {
    farshore_sigaction_restorer as *const () as u64
}

/// Signal numbers that Farshore deals with.
pub const SIGSEGV: u32 = 11;
/// See [`SIGSEGV`]: a fault on a managed page.
pub const SIGBUS: u32 = 7;
/// See [`SIGSEGV`]: a system call that Syscall User Dispatch caught.
pub const SIGSYS: u32 = 31;
/// See [`SIGSEGV`]: for tests.
pub const SIGUSR1: u32 = 10;

/// `si_code` of a SIGBUS for an address that cannot be served: what a userfaultfd raises.
pub const BUS_ADRERR: i32 = 2;
/// `si_code` of a SIGBUS for a page that is poisoned: by broken memory, or by `UFFDIO_POISON`.
pub const BUS_MCEERR_AR: i32 = 4;
/// `si_code` of a SIGSYS raised by Syscall User Dispatch.
pub const SYS_USER_DISPATCH: i32 = 2;

/// A set of signals, as the kernel keeps it: bit `n - 1` is signal `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct SigSet(pub u64);

impl SigSet {
    /// No signal.
    pub const EMPTY: SigSet = SigSet(0);
    /// Every signal. (The kernel never blocks SIGKILL and SIGSTOP.)
    pub const ALL: SigSet = SigSet(u64::MAX);

    /// Whether `signal` (1 to 64) is in it.
    pub const fn contains(self, signal: u32) -> bool {
        self.0 & SigSet::bit(signal) != 0
    }
    /// With `signal`.
    pub const fn with(self, signal: u32) -> SigSet {
        SigSet(self.0 | SigSet::bit(signal))
    }
    /// Without `signal`.
    pub const fn without(self, signal: u32) -> SigSet {
        SigSet(self.0 & !SigSet::bit(signal))
    }
    /// Without all of `others`.
    pub const fn minus(self, others: SigSet) -> SigSet {
        SigSet(self.0 & !others.0)
    }
    const fn bit(signal: u32) -> u64 {
        1 << ((signal - 1) & 63)
    }
}

/// Flags of [`Action`].
pub mod flags {
    #![allow(missing_docs)]
    pub const SIGINFO: u64 = 0x4;
    pub const RESTORER: u64 = 0x0400_0000;
    pub const ONSTACK: u64 = 0x0800_0000;
    pub const RESTART: u64 = 0x1000_0000;
    pub const NODEFER: u64 = 0x4000_0000;
    pub const RESETHAND: u64 = 0x8000_0000;
}

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Action {
    /// Address of the handler; 0 is the default, 1 ignores.
    pub handler: u64,
    /// See [`flags`].
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Blocked while the handler runs, besides the signal itself.
    pub mask: SigSet,
}

/// What a handler gets: signal, information, saved context.
pub type Handler = unsafe extern "C" fn(signal: i32, info: *mut SigInfo, context: *mut UContext);

impl Action {
    /// The kernel's default.
    pub const DEFAULT: Action = Action { handler: 0, flags: 0, restorer: 0, mask: SigSet::EMPTY };

    /// An action that calls `handler` with `SA_SIGINFO`, `extra` [`flags`] and our restorer.
    pub fn new(handler: Handler, extra: u64, mask: SigSet) -> Action {
        Action {
            handler: handler as *const () as u64,
            flags: flags::SIGINFO | flags::RESTORER | extra,
            restorer: restorer(),
            mask,
        }
    }
}

/// Bytes of the kernel's signal set.
const SIGSET_BYTES: u64 = 8;

/// Reads and, if `new` is given, replaces the action of `signal`; the action before.
///
/// # Errors
/// `EINVAL` for a signal that does not exist or cannot be caught.
///
/// # Safety
/// A new handler must be async-signal-safe and fit [`Handler`] (or libc's two kinds, as its flags say).
pub unsafe fn sigaction(signal: u32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::DEFAULT;
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    let args = [u64::from(signal), new as u64, &raw mut old as u64, SIGSET_BYTES, 0, 0];
    // SAFETY: `new` is null or borrowed, `old` is ours and as large as the kernel's struct. What
    // the new handler does is the caller's promise.
    unsafe { raw::syscall_result(nr::RT_SIGACTION, args) }?;
    Ok(old)
}

/// How [`sigprocmask`] changes the mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Adds the set.
    Block,
    /// Takes the set away.
    Unblock,
    /// Replaces the mask.
    Set,
}

/// Changes this thread's signal mask; the mask before.
pub fn sigprocmask(how: How, set: SigSet) -> SigSet {
    let how = match how {
        How::Block => 0,
        How::Unblock => 1,
        How::Set => 2,
    };
    let mut old = SigSet::EMPTY;
    let args = [how, &raw const set as u64, &raw mut old as u64, SIGSET_BYTES, 0, 0];
    // SAFETY: both sets are ours and 8 bytes. The call cannot fail with valid arguments. Which signals
    // a thread takes is not a matter of memory safety.
    let _ = unsafe { raw::syscall(nr::RT_SIGPROCMASK, args) };
    old
}

/// This thread's signal mask.
pub fn current_mask() -> SigSet {
    sigprocmask(How::Block, SigSet::EMPTY)
}

/// The kernel's `stack_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct AltStack {
    /// Lowest address.
    pub base: u64,
    /// 0, or [`AltStack::DISABLE`].
    pub flags: i32,
    /// Bytes.
    pub size: u64,
}

impl AltStack {
    /// There is no alternate stack.
    pub const DISABLE: i32 = 2;
    /// (Answer only.) This thread runs on it now.
    pub const ON_STACK: i32 = 1;
    /// None.
    pub const NONE: AltStack = AltStack { base: 0, flags: AltStack::DISABLE, size: 0 };
}

/// Reads and, if `new` is given, replaces this thread's alternate signal stack; the one before.
///
/// # Errors
/// `EPERM` while the thread runs on it, `ENOMEM` when it is too small.
///
/// # Safety
/// The new stack is writable memory that nothing else uses, for as long as it is set.
pub unsafe fn sigaltstack(new: Option<&AltStack>) -> Result<AltStack, Errno> {
    let mut old = AltStack::NONE;
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `new` is null or borrowed, `old` is ours. The memory is the caller's promise.
    unsafe { raw::syscall_result(nr::SIGALTSTACK, [new as u64, &raw mut old as u64, 0, 0, 0, 0]) }?;
    Ok(old)
}

/// Sends `signal` to one thread of one process.
///
/// # Errors
/// `ESRCH` when there is no such thread, `EPERM`, `EINVAL`.
pub fn tgkill(pid: u32, tid: u32, signal: u32) -> Result<(), Errno> {
    // SAFETY: passes three numbers; what a signal does is defined by its handler, which was installed under its own promise.
    unsafe { raw::syscall_result(nr::TGKILL, [pid.into(), tid.into(), signal.into(), 0, 0, 0]) }.map(|_| ())
}

/// Sends `info` to thread `tid` of the own process `pid`: it arrives with all that it carries.
///
/// # Errors
/// `EPERM` when it says that a process or the kernel sent it (a code of 0 or above, or `tgkill`'s) and is not for the calling thread;
/// `EAGAIN` when too many signals are queued; `ESRCH`.
pub fn queue_again(pid: u32, tid: u32, info: &SigInfo) -> Result<(), Errno> {
    const RT_TGSIGQUEUEINFO: u64 = 297;
    let args = [pid.into(), tid.into(), info.signal as u64, core::ptr::from_ref(info) as u64, 0, 0];
    // SAFETY: the kernel reads the 128 bytes of `info`; what a signal does is defined by its handler.
    unsafe { raw::syscall_result(RT_TGSIGQUEUEINFO, args) }.map(|_| ())
}

/// The kernel's `siginfo_t` (128 bytes).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct SigInfo {
    signal: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    fields: [u64; 14],
}

/// `si_code` of a signal that the kernel raised without saying more.
const SI_KERNEL: i32 = 0x80;

impl SigInfo {
    /// What the kernel gives a handler of `signal` when it raises it without saying more.
    pub const fn of_kernel(signal: u32) -> SigInfo {
        SigInfo { signal: signal as i32, errno: 0, code: SI_KERNEL, _pad: 0, fields: [0; 14] }
    }

    /// What the kernel gives a handler of SIGBUS for an access to `address` that cannot be served: as when a page cannot be swapped in.
    pub const fn of_bad_access(address: u64) -> SigInfo {
        let mut fields = [0; 14];
        fields[0] = address;
        SigInfo { signal: SIGBUS as i32, errno: 0, code: BUS_ADRERR, _pad: 0, fields }
    }

    /// One that a process queues for `signal` with a code of its own, below 0. It carries nothing else.
    pub const fn queued(signal: u32, code: i32) -> SigInfo {
        SigInfo { signal: signal as i32, errno: 0, code, _pad: 0, fields: [0; 14] }
    }

    /// All of it, as words.
    pub const fn words(&self) -> [u64; 16] {
        // SAFETY: both have 128 bytes, and every byte of a SigInfo is initialised: it has no padding.
        unsafe { core::mem::transmute::<SigInfo, [u64; 16]>(*self) }
    }

    /// Signal number.
    pub const fn signal(&self) -> i32 {
        self.signal
    }
    /// `si_errno`.
    pub const fn errno(&self) -> i32 {
        self.errno
    }
    /// Why it was raised: above 0 the kernel did, else a process sent it.
    pub const fn code(&self) -> i32 {
        self.code
    }
    /// Whether it was sent to one thread, not to the process.
    pub const fn to_thread(&self) -> bool {
        const SI_TKILL: i32 = -6;
        self.code == SI_TKILL
    }
    /// Whether a fault or trap of this thread raised it, not a process.
    pub const fn from_kernel(&self) -> bool {
        self.code > 0
    }
    /// The address that faulted (SIGBUS, SIGSEGV). A userfaultfd without `EXACT_ADDRESS` gives the page's first byte.
    pub const fn fault_address(&self) -> u64 {
        self.fields[0]
    }
    /// Address after the instruction (SIGSYS). Tests alone ask.
    pub const fn call_address(&self) -> u64 {
        self.fields[0]
    }
    /// Number of the system call (SIGSYS).
    pub const fn call_number(&self) -> i32 {
        self.fields[1] as i32
    }
    /// Architecture of the system call as `AUDIT_ARCH_*` (SIGSYS).
    pub const fn call_arch(&self) -> u32 {
        (self.fields[1] >> 32) as u32
    }
    /// The descriptor that sent it, when one did (`F_SETSIG`).
    pub const fn descriptor(&self) -> i32 {
        self.fields[1] as i32
    }
    /// Process that sent it, when one did.
    pub const fn sender_pid(&self) -> u32 {
        self.fields[0] as u32
    }
}

/// General registers, in the order of the kernel's `sigcontext`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
#[repr(usize)]
pub enum Reg {
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    Rdi,
    Rsi,
    Rbp,
    Rbx,
    Rdx,
    Rax,
    Rcx,
    Rsp,
    Rip,
    Rflags,
}

const REG_ERR: usize = 19;
const REG_TRAP: usize = 20;
const REG_CR2: usize = 22;
const REG_FPSTATE: usize = 23;

/// The fault's kind, from the page-fault error code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultKind(pub u64);

impl FaultKind {
    /// The page was mapped: the access was forbidden (with a userfaultfd: the page is write-protected).
    pub const fn present(self) -> bool {
        self.0 & 1 != 0
    }
    /// A write, not a read.
    pub const fn write(self) -> bool {
        self.0 & 2 != 0
    }
    /// An instruction fetch.
    pub const fn execute(self) -> bool {
        self.0 & 16 != 0
    }
}

/// The kernel's `struct ucontext`, on the stack below a handler's frame. Changes take effect when the handler returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UContext {
    flags: u64,
    link: u64,
    stack: AltStack,
    registers: [u64; 32],
    mask: SigSet,
}

const _: () = {
    // The offsets that the kernel's headers give.
    assert!(size_of::<SigInfo>() == 128 && core::mem::offset_of!(SigInfo, fields) == 16);
    assert!(core::mem::offset_of!(UContext, registers) == 40);
    assert!(core::mem::offset_of!(UContext, mask) == 296);
    assert!(size_of::<Action>() == 32 && size_of::<AltStack>() == 24);
};

impl UContext {
    /// A register as the interrupted code had it.
    pub const fn get(&self, register: Reg) -> u64 {
        self.registers[register as usize]
    }

    /// Changes a register of the interrupted code.
    ///
    /// # Safety
    /// The interrupted code must be sound when it goes on with this value.
    pub const unsafe fn set(&mut self, register: Reg, value: u64) {
        self.registers[register as usize] = value;
    }

    /// The page fault's kind. Only of use when the signal was raised by a page fault ([`UContext::is_page_fault`]).
    pub const fn fault_kind(&self) -> FaultKind {
        FaultKind(self.registers[REG_ERR])
    }

    /// Whether the processor's last trap in this context was a page fault. Tests alone ask.
    pub const fn is_page_fault(&self) -> bool {
        self.registers[REG_TRAP] == 14
    }

    /// The exact address of the last page fault (CR2). Tests alone ask.
    pub const fn cr2(&self) -> u64 {
        self.registers[REG_CR2]
    }

    /// Address of the saved floating-point state, 0 if there is none.
    pub const fn fpstate(&self) -> u64 {
        self.registers[REG_FPSTATE]
    }

    /// Names another floating-point state.
    pub const fn set_fpstate(&mut self, at: u64) {
        self.registers[REG_FPSTATE] = at;
    }

    /// The mask that comes back when the handler returns.
    pub const fn mask(&self) -> SigSet {
        self.mask
    }

    /// Changes the mask that comes back when the handler returns.
    pub const fn set_mask(&mut self, mask: SigSet) {
        self.mask = mask;
    }

    /// The alternate stack's settings, which come back when the handler returns.
    pub const fn alt_stack(&self) -> AltStack {
        self.stack
    }

    /// Changes them.
    pub const fn set_alt_stack(&mut self, stack: AltStack) {
        self.stack = stack;
    }
}
