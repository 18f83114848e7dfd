//! The way in for a dormant process. Its handlers are native: one may run on top of a call, and make calls itself.
//!
//! Each thread has one stack of ours, and at any time at most one of its calls *has* it. A call that finds the stack free takes it, by one
//! instruction. A call that finds it taken was made by a handler on top of another call (or on top of one that the program has
//! left by a jump): its frame lies where the thread is, below the red zone. The call that has taken the stack gives it back when
//! its frame is not needed any more: by the last instruction but one before the thread is back in the program.
//!
//! # Sites at which any call is made
//!
//! Of some sites nobody can tell the number before the call: `syscall(3)`, and since glibc 2.41 the two by which all calls go at which
//! a thread can be cancelled. What goes there may wait, and must not wait on our stack, on which handlers would run meanwhile. So the stub of such a site
//! leads to [`entry_of_any`], which looks the number up: what Farshore need not see is made at once, on the program's own stack, by a
//! `syscall` of its own behind the stub ([`natively`]), and all else goes the way above.
//!
//! A signal may find the thread there. Then the place says which call it is: numbers that a handler of ours must know have a
//! `syscall` each ([`TOLD_APART`]), all others share one. The number itself is in no register any more when the call has ended, and no
//! word in memory could keep it, since handlers make calls on top of calls. For the program's side of such a place see `edge`.

use super::super::patch::of_stub;
use super::super::stubs::STUB_HEAD;
use super::super::stubs::{STUB_SIZE, StubBytes};
use super::{Call, FRAME, RED_ZONE};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, Ordering};
use farshore_sys::by_thread;
use farshore_sys::own::Stack;
use farshore_sys::raw::Errno;
use farshore_sys::signal::{Reg, UContext};
use farshore_sys::tls;

/// Bytes of the stack. Native handlers run on it too, if they come in the middle of a call.
const BYTES: usize = 2 << 20;

unsafe extern "C" {
    fn farshore_entry_asleep();
    fn farshore_entry_of_any();
    fn farshore_entry_of_any_end();
    fn farshore_leave_asleep();
}

/// The address to which stubs lead.
pub fn entry() -> u64 {
    farshore_entry_asleep as *const () as u64
}

/// The address to which the stubs of those sites lead whose number is not known.
pub fn entry_of_any() -> u64 {
    farshore_entry_of_any as *const () as u64
}

/// Calls that end with `EINTR` as soon as any handler has run, or after a time, so that whoever interrupts them must know which they
/// are: read, write, poll, pause, select, nanosleep, accept, sendto, recvfrom, sendmsg, recvmsg, semop, msgsnd, msgrcv,
/// rt_sigtimedwait, rt_sigsuspend, futex, restart_syscall, semtimedop, clock_nanosleep, epoll_wait, pselect6, ppoll, epoll_pwait,
/// accept4, recvmmsg, sendmmsg, epoll_pwait2.
pub const TOLD_APART: [u64; 28] =
    [0, 1, 7, 34, 23, 35, 43, 44, 45, 46, 47, 65, 69, 70, 128, 130, 202, 219, 220, 230, 232, 270, 271, 281, 288, 299, 307, 441];

/// Bytes of a `syscall` and the short jump behind it.
const MADE: usize = 4;
/// Those in a piece of the size of a stub, with a stub's head before and the way out behind them.
const IN_PIECE: usize = 9;
/// Pieces behind the stub of a site.
pub const PIECES: usize = (TOLD_APART.len() + 1).div_ceil(IN_PIECE);

/// Where the `syscall` of the numbers told apart is, counted from the stub; the last one is for all others.
const fn at(index: usize) -> usize {
    (1 + index / IN_PIECE) * STUB_SIZE + STUB_HEAD + index % IN_PIECE * MADE
}

const _: () = assert!(at(TOLD_APART.len()) / MADE <= u8::MAX as usize && STUB_HEAD.is_multiple_of(MADE));

/// For each number 0, or where its `syscall` is, counted from the stub in units of [`MADE`]. So many that a number of 16 bits needs no check.
static NATIVELY: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

/// From now on calls with this number are made at once where they come by a site whose number is not known.
pub fn make_natively(number: u64) {
    let index = TOLD_APART.iter().position(|&other| other == number).unwrap_or(TOLD_APART.len());
    if let Some(place) = NATIVELY.get(number as usize) {
        place.store((at(index) / MADE) as u8, Ordering::Relaxed);
    }
}

/// One of the [`PIECES`] behind the stub with this head. Its own head is the same, for unwinders.
pub fn natively(head: &[u8; STUB_HEAD]) -> StubBytes {
    const OUT: usize = STUB_HEAD + IN_PIECE * MADE;
    let mut piece = [0xcc; STUB_SIZE];
    piece[..STUB_HEAD].copy_from_slice(head);
    for made in 0..IN_PIECE {
        let at = STUB_HEAD + made * MADE;
        // syscall; jmp OUT
        piece[at..at + MADE].copy_from_slice(&[0x0f, 0x05, 0xeb, (OUT - at - MADE) as u8]);
    }
    // mov rcx, [rip + resume]: as the kernel leaves it; jmp rcx
    const MOV: usize = 7;
    let resume = (STUB_HEAD as i32 - 8) - (OUT + MOV) as i32;
    piece[OUT..OUT + 3].copy_from_slice(&[0x48, 0x8b, 0x0d]);
    piece[OUT + 3..OUT + MOV].copy_from_slice(&resume.to_le_bytes());
    piece[OUT + MOV..OUT + MOV + 2].copy_from_slice(&[0xff, 0xe1]);
    piece
}

/// A thread that makes a call natively, or decides about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Native {
    /// Where that is in the program: at the `syscall`, if the call is to be made (again), or behind it.
    pub at: u64,
    /// It is to be made.
    pub to_be_made: bool,
    /// The call that has just ended, if it is one of [`TOLD_APART`].
    pub number: Option<u64>,
}

/// What stands at `distance` from the beginning of a stub, behind which there are pieces: whether a call is to be made, and the number of one that has
/// ended.
pub fn made_at(distance: u64) -> (bool, Option<u64>) {
    let is = |index: usize, behind: usize| distance == (at(index) + behind) as u64;
    let ended = (0..TOLD_APART.len()).find(|&index| is(index, 2)).map(|index| TOLD_APART[index]);
    ((0..PIECES * IN_PIECE).any(|index| is(index, 0)), ended)
}

/// Whether the thread with this context makes a call natively.
pub fn find_native(context: &UContext) -> Option<Native> {
    let rip = context.get(Reg::Rip);
    if (entry_of_any()..farshore_entry_of_any_end as *const () as u64).contains(&rip) {
        // The stub's head is where r11 leads.
        let patched = of_stub(context.get(Reg::R11))?;
        return Some(Native { at: patched.itself(), to_be_made: true, number: None });
    }
    let patched = of_stub(rip)?;
    let (to_be_made, number) = made_at(patched.behind_stub(rip)?);
    Some(Native { at: patched.to_program(rip), to_be_made, number })
}

/// A stack for the calls of a thread: its upper end. It is never unmapped.
///
/// # Errors
/// `ENOMEM`.
pub fn new_stack() -> Result<u64, Errno> {
    let stack = Stack::new(BYTES)?;
    let top = stack.top();
    core::mem::forget(stack);
    Ok(top)
}

/// The calling thread's calls are served on the stack that ends at `calls`, and the handler that stops it runs on the one that ends
/// at `handler`.
pub fn begin(calls: u64, handler: u64) {
    tls::set_asleep_handler(handler);
    tls::set_asleep_top(calls);
}

/// Ends the call, on its stack. From here on no waking would make it begin again.
pub fn leave(call: &mut Call) {
    if core::ptr::from_ref(call) as u64 + FRAME as u64 == tls::asleep_top() {
        tls::set_asleep_resume(call.resume);
        call.resume = farshore_leave_asleep as *const () as u64;
    }
}

global_asm!(
    ".pushsection .text.farshore_entry_asleep, \"ax\", @progbits",
    ".balign 32",
    ".hidden farshore_entry_asleep",
    ".globl farshore_entry_asleep",
    ".type farshore_entry_asleep, @function",
    "farshore_entry_asleep:",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 16, 2, 0x7b, 0",
    // As in the entry: no instruction changes the flags, and rcx alone is free. What comes to stand in the byte is the lowest byte
    // of its own distance from the thread pointer, which is never 0 (`sys/src/tls.rs`).
    "mov rcx, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("xchg byte ptr fs:[rcx], cl"),
    "movzx ecx, cl",
    "jrcxz 1f",
    "lea rcx, [rsp - {red_zone}]",
    "jmp farshore_entry_framed",
    "1: mov rcx, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("mov rcx, qword ptr fs:[rcx + {top}]"),
    "jmp farshore_entry_framed",
    ".cfi_endproc",
    ".size farshore_entry_asleep, . - farshore_entry_asleep",
    // No instruction here changes the flags either.
    ".hidden farshore_entry_of_any",
    ".globl farshore_entry_of_any",
    ".type farshore_entry_of_any, @function",
    ".balign 32",
    "farshore_entry_of_any:",
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_escape 0x10, 16, 2, 0x7b, 0",
    // The third and the fourth byte of the number, and its upper half: 0 in all numbers that there are.
    "mov ecx, eax",
    "bswap ecx",
    "movzx ecx, cx",
    "jrcxz 1f",
    "jmp farshore_entry_asleep",
    "1: mov rcx, rax",
    "bswap rcx",
    "mov ecx, ecx",
    "jrcxz 2f",
    "jmp farshore_entry_asleep",
    "2: lea rcx, [rip + {natively}]",
    "movzx ecx, byte ptr [rcx + rax]",
    "jrcxz 3f",
    "lea rcx, [r11 + rcx * {made}]",
    "jmp rcx",
    "3: jmp farshore_entry_asleep",
    ".cfi_endproc",
    ".size farshore_entry_of_any, . - farshore_entry_of_any",
    ".hidden farshore_entry_of_any_end",
    ".globl farshore_entry_of_any_end",
    "farshore_entry_of_any_end:",
    ".hidden farshore_leave_asleep",
    ".globl farshore_leave_asleep",
    ".type farshore_leave_asleep, @function",
    ".balign 16",
    "farshore_leave_asleep:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 0",
    ".cfi_undefined rip",
    // From the store on a handler may make a call that has the stack. (r11 is free: a system call destroys it.)
    "mov r11, qword ptr [rip + farshore_tls_asleep@gottpoff]",
    by_thread!("mov rcx, qword ptr fs:[r11 + {resume}]"),
    ".cfi_register rip, rcx",
    by_thread!("mov byte ptr fs:[r11], 0"),
    "jmp rcx",
    ".cfi_endproc",
    ".size farshore_leave_asleep, . - farshore_leave_asleep",
    ".popsection",
    top = const tls::ASLEEP_TOP_AT,
    resume = const tls::ASLEEP_RESUME_AT,
    red_zone = const RED_ZONE,
    natively = sym NATIVELY,
    made = const MADE,
);
