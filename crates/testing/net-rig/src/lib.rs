//! The net's entry and patches around a dispatcher that passes every call on: for tests of what catching a call
//! preserves, without an engine.
//!
//! What is under test is the crate `catch`, as `libfarshore.so` links it. `tests/entry.rs` preloads this library into
//! `tests/program`, which checks registers, signals, threads and unwinding. Environment: `NETTEST_MODE` is `patch` (sites
//! are patched), `sud` (Syscall User Dispatch), or `both`; without it nothing is caught. `table-search` and `search-table` are `patch` in two steps, as for a dormant
//! process: a part of the sites by the one way to a plan, the rest by the other.
//!
//! Two calls that Linux does not have are answered here, so that the program can steer the test: [`CALL_SPOIL`] and
//! [`CALL_SET_WAY`].
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod signals;

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use farshore_catch::entry::{self, Answer, Call, raw};
use farshore_catch::stubs;
use farshore_sys::signal::{SIGBUS, SIGSYS, SigSet, UContext};

/// Argument 0: what the dispatcher spoils before and after each call. 0: nothing; 1: xmm; 2: ymm; 3: zmm, masks, MXCSR.
pub const CALL_SPOIL: u64 = 0x7001;
/// Arguments: number, and which way calls with it take. 0: dispatched; 1: straight to the kernel; 2: the quick way, if it takes them.
pub const CALL_SET_WAY: u64 = 0x7003;

const NR_WRITE: u64 = 1;
const NR_RT_SIGACTION: u64 = 13;
const NR_RT_SIGPROCMASK: u64 = 14;
const NR_SIGALTSTACK: u64 = 131;
const NR_PRCTL: u64 = 157;
/// Every signal but SIGBUS and SIGSYS, which are never blocked.
const KEPT: u64 = !(1 << (SIGBUS - 1) | 1 << (SIGSYS - 1));

static SPOIL: AtomicU64 = AtomicU64::new(0);
static DISPATCH: AtomicBool = AtomicBool::new(false);
/// Our text, which Syscall User Dispatch spares: start and end.
static TEXT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn note(text: &str) {
    // SAFETY: the kernel reads `text`.
    unsafe { raw(NR_WRITE, [2, text.as_ptr() as u64, text.len() as u64, 0, 0, 0]) };
}

/// Overwrites what a compiler may use between calls. The program asks for no more than the processor has.
fn spoil() {
    let level = SPOIL.load(Relaxed);
    if level >= 1 {
        // SAFETY: the clobbers are declared.
        unsafe {
            asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "pcmpeqd xmm\\n, xmm\\n",
                ".endr",
                options(nostack, nomem),
                clobber_abi("C")
            );
        }
    }
    if level >= 2 {
        // SAFETY: the clobbers are declared; the program has seen AVX2.
        unsafe {
            asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vpcmpeqd ymm\\n, ymm\\n, ymm\\n",
                ".endr",
                options(nostack, nomem),
                clobber_abi("C")
            );
        }
    }
    if level >= 3 {
        let mxcsr: u32 = 0x1fbf;
        // SAFETY: the clobbers are declared; the program has seen AVX-512. Only flags of MXCSR change.
        unsafe {
            asm!(
                ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpternlogd zmm\\n, zmm\\n, zmm\\n, 255",
                ".endr",
                ".irp n, 0,1,2,3,4,5,6,7",
                "kxnorq k\\n, k\\n, k\\n",
                ".endr",
                "ldmxcsr [{}]",
                in(reg) &raw const mxcsr,
                options(nostack, readonly), clobber_abi("C")
            );
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn farshore_dispatch(call: &mut Call) -> i64 {
    spoil();
    let result = pass_on(call);
    spoil();
    result
}

/// Two of three calls are made; the third is left to the dispatcher. Spoils all that it may.
extern "C" fn quick(call: &[u64; 7]) -> Answer {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut answer = Answer { result: 0x7777, done: 0 };
    if !COUNT.fetch_add(1, Relaxed).is_multiple_of(3) {
        // SAFETY: the program's own call.
        answer = Answer { result: unsafe { raw(call[0], [call[1], call[2], call[3], call[4], call[5], call[6]]) }, done: 1 };
    }
    if SPOIL.load(Relaxed) >= 1 {
        // SAFETY: the clobbers are declared; the flags may be anything.
        unsafe {
            asm!(
                ".irp n, 0,1,2,3",
                "pcmpeqd xmm\\n, xmm\\n",
                ".endr",
                "mov rcx, -1", "mov rsi, -2", "mov rdi, -3", "mov r8, -4", "mov r9, -5", "mov r10, -6", "mov r11, -7", "cmp rcx, 1",
                out("rcx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, options(nostack, nomem),
            );
        }
    }
    answer
}

/// Makes the call, with our two signals kept out of every mask.
fn pass_on(call: &mut Call) -> i64 {
    let mut words = [0u64; 4];
    match call.nr {
        NR_RT_SIGPROCMASK if call.args[1] != 0 => {
            // SAFETY: the test program passes valid masks.
            words[0] = unsafe { *(call.args[1] as *const u64) } & KEPT;
            call.args[1] = words.as_ptr() as u64;
        }
        NR_RT_SIGACTION => return signals::set_action(&call.args),
        NR_SIGALTSTACK => return signals::set_stack(&call.args, call.sp),
        CALL_SPOIL => {
            SPOIL.store(call.args[0], Relaxed);
            return 0;
        }
        CALL_SET_WAY => {
            match call.args[1] {
                2 => entry::set_quick(call.args[0], quick),
                way => entry::set_plain(call.args[0], way == 1),
            }
            return 0;
        }
        _ => {}
    }
    core::hint::black_box(&words);
    // SAFETY: the program's own call.
    unsafe { entry::for_program(call.nr, &call.args) }
}

#[unsafe(no_mangle)]
extern "C" fn farshore_before_first_clone(_call: &mut Call) -> i64 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn farshore_before_clone(_flags: u64, _call: &Call) -> i64 {
    spoil();
    0
}

#[unsafe(no_mangle)]
extern "C" fn farshore_parent_after_clone(_flags: u64, _result: i64) {
    spoil();
}

#[unsafe(no_mangle)]
extern "C" fn farshore_child_started(flags: u64, _given: u64, stack: u64) {
    const CLONE_VM: u64 = 0x100;
    const CLONE_VFORK: u64 = 0x4000;
    const CLONE_SETTLS: u64 = 0x8_0000;
    spoil();
    if flags & (CLONE_VM | CLONE_VFORK | CLONE_SETTLS) == CLONE_VM {
        signals::storage_apart();
    }
    if flags & CLONE_VM != 0 {
        signals::begin_thread(stack);
    }
    catch_the_rest();
}

#[unsafe(no_mangle)]
extern "C" fn farshore_make_writable(_addr: u64, _len: u64) {}

/// # Safety
/// `to` has room for `len` bytes, and there are as many at `from`.
#[unsafe(no_mangle)]
unsafe extern "C" fn farshore_read_program(to: *mut u8, from: u64, len: u64) -> bool {
    if from == 0 {
        return false;
    }
    // SAFETY: this function's own condition.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to, len as usize) };
    true
}

#[unsafe(no_mangle)]
extern "C" fn farshore_before_sigreturn(context: &mut UContext, _sp: u64) {
    context.set_mask(SigSet(context.mask().0 & KEPT));
}

#[unsafe(no_mangle)]
extern "C" fn farshore_hold(_addr: u64, _len: u64, _pinned: &mut u64) -> bool {
    true
}

#[unsafe(no_mangle)]
extern "C" fn farshore_let_go(_addr: u64, _len: u64, _pinned: u64) {}

#[unsafe(no_mangle)]
extern "C" fn farshore_step_over(_context: *mut u8) -> bool {
    false
}

#[unsafe(no_mangle)]
extern "C" fn farshore_bad_frame(_context: *mut u8) {
    note("a signal frame that cannot be read\n");
}

#[unsafe(no_mangle)]
extern "C" fn farshore_foreign_sigsys(_info: *mut u8, _context: *mut u8) {
    note("a SIGSYS that nobody expects\n");
}

/// Switches Syscall User Dispatch on for the calling thread.
fn catch_the_rest() {
    const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
    if DISPATCH.load(Relaxed) {
        let (start, end) = (TEXT[0].load(Relaxed), TEXT[1].load(Relaxed));
        // SAFETY: the range is our text, and the handler is installed. Without a selector it is always on.
        let result = unsafe { raw(NR_PRCTL, [PR_SET_SYSCALL_USER_DISPATCH, 1, start, end - start, 0, 0]) };
        assert_eq!(result, 0, "Syscall User Dispatch");
    }
}

fn find_own_text() {
    let here = stubs::start();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let ranges = maps.lines().filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    for (start, end) in ranges.filter(|(start, end)| (*start..*end).contains(&here)) {
        TEXT[0].store(start, Relaxed);
        TEXT[1].store(end, Relaxed);
    }
}

/// Patches those that are wanted, by a search or by the table; how many.
fn patch(searched: bool, wanted: &dyn Fn(u64) -> bool) -> usize {
    use farshore_catch::patch::{DEFAULT_NAMES, Maps, Way, patch, patch_by};
    let maps = Maps::read();
    let report = if searched {
        // SAFETY: before the program's main there is one thread; the dispatcher is ready; nothing is unmapped meanwhile.
        unsafe { patch_by(&[], &maps, DEFAULT_NAMES, wanted, Way::Awake) }
    } else {
        // SAFETY: as above.
        unsafe { patch(&maps, DEFAULT_NAMES, wanted, Way::Awake) }
    };
    assert_eq!(report.searched, if searched { report.files } else { 0 }, "{report:?}");
    assert!(report.patched > report.sites / 2 && report.patched + report.left == report.sites, "{report:?}");
    report.patched
}

extern "C" fn at_load() {
    let mode = std::env::var("NETTEST_MODE");
    let (patches, dispatches) = match mode.as_deref() {
        Ok("patch" | "table-search" | "search-table") => (true, false),
        Ok("sud") => (false, true),
        Ok("both") => (true, true),
        _ => return,
    };
    entry::init().expect("a processor whose registers can be saved");
    find_own_text();
    DISPATCH.store(dispatches, Relaxed);
    signals::install();
    if dispatches {
        entry::edge::show_sites();
    }
    if patches {
        // Whether a part is searched first, and whether the rest is.
        let (first, rest) = match mode.as_deref() {
            Ok("table-search") => (Some(false), true),
            Ok("search-table") => (Some(true), false),
            _ => (None, false),
        };
        let mut patched = first.map_or(0, |searched| patch(searched, &|number| number.is_multiple_of(2)));
        patched += patch(rest, &|_| true);
        assert!(patched > 300, "{patched} sites");
    }
    catch_the_rest();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = at_load;
