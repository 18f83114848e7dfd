//! The wait of a unithread at an access, and the way back to it.
//!
//! ```text
//!  stack of the unithread      ▲ higher
//!   interrupted code ──────────┤ rsp as it was
//!   red zone           128 B   │ the interrupted function's
//!   rip, flags, 15 registers   │ written by the handler ([`leave_to`])
//!   extended state     ~2.7 KB │ `xsavec`: x87, vectors, masks
//!   farshore_resume's calls    │
//! ```
//!
//! The handler changes where the signal returns to; so the kernel has put back all other registers when `farshore_resume` begins, and no signal is blocked
//! that was not. It saves the extended state, lets the unithread wait, loads everything, and leaves by a `ret` that steps over the red zone. Nothing
//! is lost: general registers, flags, x87, MXCSR, vectors and masks (and r16 to r31 where the processor has them). The protection keys' register and
//! what the kernel keeps for a thread belong to the worker. Tiles (AMX) are 8 KiB: a unithread that uses them waits in place ([`can_save`]).

use crate::ground::report;
use core::arch::global_asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU32, Ordering};
use farshore_sys::raw::Errno;
use farshore_sys::signal::{Reg, UContext};

/// Components of the extended state that are saved: x87, SSE, AVX, masks, ZMM's upper halves, ZMM 16 to 31, r16 to r31.
const SAVED: u64 = 0b1110_0111 | 1 << 19;
const AVX: u64 = 1 << 2;
const TILES: u64 = 1 << 18;
/// The legacy area and the header of an area of `xsavec`.
const HEAD: usize = 512 + 64;
const RED_ZONE: u64 = 128;
/// General registers but rsp, flags and rip.
const WORDS: u64 = 17;

/// What of [`SAVED`] this processor and kernel have; 0: not looked at.
static COMPONENTS: AtomicU32 = AtomicU32::new(0);
/// Bytes of the area.
static AREA: AtomicU32 = AtomicU32::new(0);

global_asm!(
    ".pushsection .text.farshore_resume, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_resume",
    ".globl farshore_resume",
    ".type farshore_resume, @function",
    // rsp: the area, a multiple of 64. rdi: the token. esi: components. r13: the words. All but rsp are in the words.
    "farshore_resume:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "mov eax, esi",
    "xor edx, edx",
    "xsavec [rsp]",
    "mov rbx, rsp",
    "mov r12d, esi",
    "test esi, 4",
    "jz 2f",
    "vzeroupper",
    // Functions begin with an empty x87 stack. (The header tells whether it is in use.)
    "2: test byte ptr [rsp + 512], 1",
    "jz 3f",
    "fninit",
    "3: push 0x1f80",
    "ldmxcsr [rsp]",
    "mov rsp, rbx",
    "call {parked}",
    "mov eax, r12d",
    "xor edx, edx",
    "xrstor [rbx]",
    "mov rsp, r13",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rbp",
    "pop rbx",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "popfq",
    "ret {red_zone}",
    ".cfi_endproc",
    ".size farshore_resume, . - farshore_resume",
    ".popsection",
    parked = sym parked,
    red_zone = const RED_ZONE,
);

unsafe extern "C" {
    fn farshore_resume();
}

/// In the order in which they are loaded.
const ORDER: [Reg; 17] = [
    Reg::R15,
    Reg::R14,
    Reg::R13,
    Reg::R12,
    Reg::R11,
    Reg::R10,
    Reg::R9,
    Reg::R8,
    Reg::Rdi,
    Reg::Rsi,
    Reg::Rbp,
    Reg::Rbx,
    Reg::Rdx,
    Reg::Rcx,
    Reg::Rax,
    Reg::Rflags,
    Reg::Rip,
];

const _: () = assert!(ORDER.len() as u64 == WORDS);

/// Looks at what this processor has. Before the first wait.
///
/// # Errors
/// `ENOSYS` where the extended state cannot be saved in this way.
pub fn prepare() -> Result<(), Errno> {
    let features = __cpuid(1).ecx;
    let (xsave, osxsave) = (features >> 26 & 1, features >> 27 & 1);
    let more = __cpuid_count(0xd, 1).eax;
    let compacts = more >> 1 & 1;
    if xsave & osxsave & compacts == 0 {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: the kernel has switched it on (OSXSAVE).
    let components = unsafe { xcr(0) } & SAVED;
    let area = (2..64).filter(|bit| components >> bit & 1 != 0).fold(HEAD, |end, bit| {
        let part = __cpuid_count(0xd, bit);
        let from = if part.ecx & 2 != 0 { end.next_multiple_of(64) } else { end };
        from + part.eax as usize
    });
    AREA.store(area.next_multiple_of(64) as u32, Ordering::Relaxed);
    COMPONENTS.store(components as u32, Ordering::Release);
    debug_assert!(components & AVX == 0 || area > HEAD);
    Ok(())
}

#[target_feature(enable = "xsave")]
unsafe fn xcr(number: u32) -> u64 {
    // SAFETY: the caller has seen that it is there.
    unsafe { _xgetbv(number) }
}

/// Whether all that the interrupted code has in its registers is saved by [`leave_to`].
pub fn can_save(context: &UContext) -> bool {
    // Where the kernel says which components the frame has (`struct _fpx_sw_bytes`), and the header of the area.
    const MAGIC_AT: u64 = 464;
    const MAGIC: u32 = 0x4650_5853;
    let frame = context.fpstate();
    if frame == 0 {
        return false;
    }
    let at = |offset: u64| core::ptr::with_exposed_provenance::<u64>((frame + offset) as usize);
    // SAFETY: the kernel's frame of this signal has at least the legacy area of 512 bytes.
    let extended = unsafe { at(MAGIC_AT).cast::<u32>().read() } == MAGIC;
    // SAFETY: it says that the header follows.
    extended && unsafe { at(512).read() } & TILES == 0
}

/// Has the interrupted unithread wait for `token`, and then go on as it was.
pub fn leave_to(context: &mut UContext, token: u64) {
    let components = COMPONENTS.load(Ordering::Acquire);
    let words = context.get(Reg::Rsp) - RED_ZONE - WORDS * 8;
    for (n, register) in ORDER.into_iter().enumerate() {
        put(words + n as u64 * 8, context.get(register));
    }
    let area = (words - u64::from(AREA.load(Ordering::Relaxed))) & !63;
    // What `xsavec` leaves as it was of the header, `xrstor` wants to be 0.
    (512..HEAD as u64).step_by(8).for_each(|at| put(area + at, 0));
    const DIRECTION_TRAP_CHECK: u64 = 1 << 10 | 1 << 8 | 1 << 18;
    let flags = context.get(Reg::Rflags) & !DIRECTION_TRAP_CHECK;
    let goes_on = [
        (Reg::Rsp, area),
        (Reg::Rip, farshore_resume as *const () as u64),
        (Reg::Rdi, token),
        (Reg::Rsi, components.into()),
        (Reg::R13, words),
        (Reg::Rflags, flags),
    ];
    for (register, value) in goes_on {
        // SAFETY: `farshore_resume` begins like this, and puts back what was written down.
        unsafe { context.set(register, value) };
    }
}

/// Writes a word to the unithread's stack.
fn put(at: u64, value: u64) {
    // SAFETY: below the stack pointer of interrupted code and its red zone, where the scheduler has said that there is room (`begin`).
    unsafe { core::ptr::with_exposed_provenance_mut::<u64>(at as usize).write(value) };
}

/// Waits, on the unithread's stack.
extern "C" fn parked(token: u64) {
    match super::of_this_thread() {
        Some(worker) => worker.park(token),
        None => report::abort(format_args!("bug: a unithread waits on a thread that is no worker")),
    }
}
