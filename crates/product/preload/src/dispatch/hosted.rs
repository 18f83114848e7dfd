//! The library's entry where it is a program of its own beside a hosted one (the head of `farshore_host` has the whole way).
//!
//! Its dynamic linker has loaded libc and relocated the library, on a stack that the helper has laid. It comes here, and then
//! everything is as in a program that the library was preloaded to, but for this:
//!
//! * functions at load are run here, since the linker leaves those of the main program to its libc;
//! * our thread-local words go by `gs` ([`hosted`]), from before the first of them is used;
//! * libc is ours alone, so none of its calls is patched, but those that the program's file lists, as far as it does;
//! * nothing is dormant: calls that are not in libc cannot be seen otherwise;
//! * at the end the registers are as the kernel had made them for the program, and the program begins.

use crate::ground::report;
use crate::memory::statics::{self, Section};
use core::arch::global_asm;
use core::ffi::{c_char, c_int};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use farshore_host::{SCRIPT_LENGTH, passed, wait_for};
use farshore_sys::hosted;
use farshore_sys::raw::{getpid, nr, syscall};
use farshore_sys::signal::{SigInfo, SigSet};

unsafe extern "C" {
    #[link_name = "farshore_hosted_entry"]
    fn entry();
}

global_asm!(
    ".pushsection .text.farshore_hosted_entry, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_hosted_entry",
    ".globl farshore_hosted_entry",
    ".type farshore_hosted_entry, @function",
    "farshore_hosted_entry:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "mov rdi, rsp",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {begin}",
    // The program's first instruction and stack pointer. At the first instruction of a program all else is 0, but for rcx here.
    "mov rcx, rax",
    "mov rsp, rdx",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "pxor xmm\\n, xmm\\n",
    ".endr",
    ".irp register, eax,ebx,edx,esi,edi,r8d,r9d,r10d,r11d,r12d,r13d,r14d,r15d",
    "xor \\register, \\register",
    ".endr",
    "jmp rcx",
    ".cfi_endproc",
    ".size farshore_hosted_entry, . - farshore_hosted_entry",
    ".popsection",
    begin = sym begin,
);

/// Where the program begins: the assembly has it in two registers.
#[repr(C)]
struct Program {
    entry: u64,
    stack: u64,
}

/// What the program's auxiliary vector says of its program headers: address and number.
static HEADERS: AtomicPtr<libc::Elf64_Phdr> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The page behind the break.
static FENCE: AtomicU64 = AtomicU64::new(0);

/// Where the program begins; 0: it is not hosted.
static PROGRAM: AtomicU64 = AtomicU64::new(0);

type AtLoad = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char);

/// `stack` is as the helper has laid it (`farshore_host::stack`).
extern "C" fn begin(stack: *mut u64) -> Program {
    // SAFETY: a stack as the kernel would make it: the number of arguments first.
    let arguments = unsafe { stack.read() };
    let values = stack.wrapping_add(1);
    let environment = values.wrapping_add(arguments as usize + 1);
    let mut at = environment;
    // SAFETY: the list ends with null.
    while unsafe { at.read() } != 0 {
        at = at.wrapping_add(1);
    }
    let auxiliary = at.wrapping_add(1).cast::<[u64; 2]>();
    // SAFETY: the vector, which ends with an entry of kind 0.
    let find = |kind| (0..).map(|n| unsafe { auxiliary.wrapping_add(n).read() }).take_while(|e| e[0] != 0).find(|e| e[0] == kind);
    let [Some(entry), Some(program_stack), Some(helper)] = [passed::ENTRY, passed::STACK, passed::HELPER].map(find) else {
        report::line(format_args!("this is Farshore's library: 'farshore run -- PROGRAM' puts it into programs"));
        report::exit(125)
    };
    wait_for(helper[1] as u32);
    forget_end_of(helper[1] as u32);
    let value = |kind| find(kind).map_or(0, |entry| entry[1]);
    // SAFETY: nobody needs it any more.
    unsafe { syscall(nr::MUNMAP, [value(passed::SCRIPT), SCRIPT_LENGTH, 0, 0, 0, 0]) };
    HEADERS.store(core::ptr::with_exposed_provenance_mut(value(passed::HEADERS) as usize), Ordering::Release);
    COUNT.store(value(passed::COUNT) as usize, Ordering::Release);
    FENCE.store(value(passed::FENCE), Ordering::Release);
    PROGRAM.store(value(passed::PROGRAM), Ordering::Release);
    let program = Program { entry: entry[1], stack: program_stack[1] };
    // SAFETY: one thread, and nothing of ours has run.
    if let Err(why) = unsafe { hosted::begin() } {
        let required = value(passed::REQUIRED) != 0;
        let what = if required { "is not started (--require)" } else { "runs without Farshore" };
        report::line(format_args!("a static program {what}: the library's own text cannot be changed ({why:?})"));
        if required {
            report::exit(125);
        }
        release();
        return program;
    }
    let (first, count) = Section::own().functions_at_load();
    for n in 0..count {
        // SAFETY: the list of this library's functions at load.
        let function = unsafe { first.cast::<AtLoad>().wrapping_add(n).read() };
        function(arguments as c_int, values.cast(), environment.cast());
    }
    release();
    program
}

/// Takes back the SIGCHLD of the helper's end. It was made without, but the kernel sends one to a parent that has executed a program since, and it
/// would wait in a program that begins with the signal blocked.
fn forget_end_of(helper: u32) {
    const RT_SIGTIMEDWAIT: u64 = 128;
    const RT_SIGQUEUEINFO: u64 = 129;
    const SIGCHLD: u32 = 17;
    let set = SigSet::EMPTY.with(SIGCHLD);
    let (mut info, at_once) = (SigInfo::of_kernel(SIGCHLD), [0u64; 2]);
    let wait = [&raw const set as u64, &raw mut info as u64, &raw const at_once as u64, 8, 0, 0];
    // SAFETY: a set of eight bytes, a `siginfo` and a time, of ours.
    if unsafe { syscall(RT_SIGTIMEDWAIT, wait) } == i64::from(SIGCHLD) && info.sender_pid() != helper {
        // It waited before, for another child of the process.
        // SAFETY: the same `siginfo`, for this process.
        unsafe { syscall(RT_SIGQUEUEINFO, [getpid().into(), SIGCHLD.into(), &raw const info as u64, 0, 0, 0]) };
    }
}

/// Takes back what our libc has told the kernel, and the page behind the break.
fn release() {
    const SET_TID_ADDRESS: u64 = 218;
    const SET_ROBUST_LIST: u64 = 273;
    const ROBUST_LIST_HEAD: u64 = 24;
    let fence = FENCE.load(Ordering::Acquire);
    if fence != 0 {
        // SAFETY: our own page, on which nothing is.
        unsafe { syscall(nr::MUNMAP, [fence, 4096, 0, 0, 0, 0]) };
    }
    // SAFETY: a word of our libc's, which nobody uses from now on.
    unsafe { syscall(SET_TID_ADDRESS, [0; 6]) };
    // SAFETY: likewise.
    unsafe { syscall(SET_ROBUST_LIST, [0, ROBUST_LIST_HEAD, 0, 0, 0, 0]) };
    // SAFETY: the program begins; what of ours runs on its threads uses our own words.
    unsafe { hosted::release_libcs_pointer() };
}

/// An address in the program's text. `None`: the program is not hosted.
pub fn entry_of_program() -> Option<u64> {
    Some(PROGRAM.load(Ordering::Acquire)).filter(|&at| at != 0)
}

/// The program's static arrays of at least `threshold` bytes.
pub fn arrays(threshold: u64) -> Vec<Range<u64>> {
    let (headers, count) = (HEADERS.load(Ordering::Acquire), COUNT.load(Ordering::Acquire));
    if headers.is_null() {
        return Vec::new();
    }
    // SAFETY: the kernel has mapped that many program headers there.
    statics::of_program(unsafe { core::slice::from_raw_parts(headers, count) }, threshold)
}

/// A program names its dynamic linker. (What a helper maps is `farshore_host::LOADER`, which is the same.)
#[used]
#[unsafe(link_section = ".interp")]
static INTERPRETER: [u8; farshore_host::LOADER.count_bytes() + 1] = {
    let mut name = [0; farshore_host::LOADER.count_bytes() + 1];
    name.copy_from_slice(farshore_host::LOADER.to_bytes_with_nul());
    name
};

/// Keeps the entry, which nothing but the linker names.
#[used]
static ENTRY: unsafe extern "C" fn() = entry;
