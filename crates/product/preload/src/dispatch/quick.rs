//! Reads and writes of a few bytes, without the cost of the whole entry.
//!
//! The entry ([`farshore_catch::entry`]) saves all vector registers, since what it calls may use any: 45 ns here, half of which
//! asks the processor which are in use. A `read` of 4 KiB from a pipe takes 300. So for the numbers in [`NUMBERS`] the assembly first
//! calls [`make`], which does the usual case: the buffer lies on at most two pages, which are there. All else it leaves alone, and
//! the call takes the way that every call can take.
//!
//! # What the code may do
//!
//! Of the vector registers the assembly saves the low halves of the first four for it. So it may use these alone, by instructions that
//! leave the upper halves be (no AVX), and call nothing. That is no promise of the compiler's: [`check`] looks at each instruction when the
//! program starts, and the quick way is taken only if it has found nothing ([`farshore_catch::entry::set_quick`]). The code has a section of its own for
//! that, and everything that it uses is inlined. It must not panic either, since that would be a call.
//! A build without optimisation never passes. The shipped one that does not says so on stderr, which the tests of real programs take for
//! a failure.

use crate::ground::runtime::{Runtime, runtime};
use crate::ground::thread;
use core::arch::asm;
use core::sync::atomic::Ordering;
use farshore_catch::entry::{AGAIN, Answer, EINTR};
use farshore_core::page::{Access, Page, PageRange};
use farshore_net::buffers::{Ticket, share};
use farshore_net::calls::keepers;
use farshore_sites::decode::{Flow, Instruction, Instructions, Kind};
use farshore_sys::{by_thread, tls};

/// `read`, `write`, `pread64`, `pwrite64`, `sendto`, `recvfrom`: descriptor, buffer, length.
pub const NUMBERS: [u64; 6] = [0, 1, 17, 18, 44, 45];
const SENDTO: u64 = 44;
const RECVFROM: u64 = 45;
/// Those by which the kernel reads from the buffer.
const OUTWARD: u64 = 1 << 1 | 1 << 18 | 1 << SENDTO;

const NOT_HERE: Answer = Answer { result: 0, done: 0 };

/// Makes the call if it is a simple one. `call` is its number and its six arguments.
#[unsafe(link_section = "farshore_quick")]
#[inline(never)]
pub extern "C" fn make(call: &[u64; 7]) -> Answer {
    let &[nr, fd, addr, len, a3, a4, a5] = call;
    // Beyond two pages a set of pins needs grants.
    let (first, last) = (Page::containing(addr), Page::containing(addr.wrapping_add(len).wrapping_sub(1)));
    if len == 0 || len > share::FREE * 4096 || last.0.wrapping_sub(first.0) >= share::FREE {
        return NOT_HERE;
    }
    // A worker of unithreads looks after its fetches before it may wait in the kernel. It does not wait when it wakes another one (an eventfd).
    if thread_of_unithreads(nr, len) {
        return NOT_HERE;
    }
    // A device may take a write for a request.
    if OUTWARD >> nr & 1 != 0 && keepers::are_there() {
        return NOT_HERE;
    }
    // An address to send to, or to put one.
    if (nr == SENDTO || nr == RECVFROM) && a4 | a5 != 0 {
        return NOT_HERE;
    }
    let (Some(runtime), Some(thread)) = (runtime(), thread::current_inlined()) else { return NOT_HERE };
    if !runtime.running.load(Ordering::Relaxed) || thread.internal || is_own(runtime, fd) {
        return NOT_HERE;
    }
    let access = if OUTWARD >> nr & 1 != 0 { Access::Read } else { Access::Write };
    let held = &thread.held;
    let buffer = PageRange { start: first, end: Page(last.0.wrapping_add(1)) };
    // The buffer that the thread keeps pinned: no count changes, and nothing need be remembered (net/src/buffers/held.rs).
    if held.borrow(buffer) {
        if is_there(runtime, first, access) && (first.0 == last.0 || is_there(runtime, last, access)) {
            // SAFETY: the program's own call; its buffer is pinned.
            let result = unsafe { for_program(nr, [fd, addr, len, a3, a4, a5]) };
            held.give_back_kept();
            return Answer { result, done: 1 };
        }
        held.give_back_kept();
    }
    let mut ticket = Ticket::NONE;
    held.announce();
    let pinned = pin(runtime, buffer, access);
    let remembered = match pinned {
        // Nothing of it is managed.
        Some(range) if range.start.0 == range.end.0 => true,
        Some(range) if held.note_range(&mut ticket, range) => true,
        Some(range) => {
            unpin(runtime, range);
            false
        }
        None => false,
    };
    held.settle();
    let (Some(pinned), true) = (pinned, remembered) else { return NOT_HERE };
    // SAFETY: the program's own call; its buffer is pinned, or not managed.
    let result = unsafe { for_program(nr, [fd, addr, len, a3, a4, a5]) };
    held.announce();
    if ticket.give_back() {
        // All of it, or what of it is managed.
        let all = pinned.start.0 == buffer.start.0 && pinned.end.0 == buffer.end.0;
        let unneeded = if all { held.keep(buffer) } else { Some(pinned) };
        if let Some(range) = unneeded {
            unpin(runtime, range);
        }
    }
    held.settle();
    Answer { result, done: 1 }
}

/// Whether the call may go by the pin that the thread has kept of this page.
#[inline(always)]
fn is_there(runtime: &Runtime, page: Page, access: Access) -> bool {
    runtime.engine.table.page(page).is_some_and(|at| at.word.is_pinned_for(access))
}

/// [`farshore_catch::entry::for_program`], here.
///
/// # Safety
/// What the call does to memory must be sound.
#[inline(always)]
unsafe fn for_program(nr: u64, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the kernel changes rax, rcx, r11 and what the call is defined to change, which the caller answers for. The section's entry
    // is as the head of catch/src/entry/edge.rs wants it.
    unsafe {
        asm!(
            "jmp 2f",
            "5:",
            "mov rax, {again}",
            "lea r11, [rip + 2f]",
            "cmp rcx, r11",
            "jne 4f",
            "mov rax, {eintr}",
            "jmp 4f",
            "2:",
            "mov r11, [rip + farshore_tls_slot@gottpoff]",
            by_thread!("cmp qword ptr fs:[r11 + {deferred}], 0"),
            "jne 5b",
            "syscall",
            "4:",
            ".pushsection farshore_not_made, \"aR\", @progbits",
            ".long 2b - ., 4b - ., 5b - .",
            ".popsection",
            inlateout("rax") nr => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            in("r12") nr,
            inout("rcx") 0u64 => _,
            out("r11") _,
            again = const AGAIN,
            eintr = const EINTR,
            deferred = const tls::DEFERRED_AT,
            options(nostack),
        );
    }
    result
}

#[inline(always)]
fn thread_of_unithreads(nr: u64, len: u64) -> bool {
    const WRITE: u64 = 1;
    thread::current_inlined().is_some_and(|thread| thread.worker.get().is_some()) && !(nr == WRITE && len == 8)
}

#[inline(always)]
fn is_own(runtime: &Runtime, fd: u64) -> bool {
    // Ours have the highest numbers; whether it is one of them is asked elsewhere.
    runtime.own_fds().first().is_none_or(|&lowest| fd as i32 >= lowest)
}

/// Pins a range of one or two pages; those that are pinned now, which lie side by side. `None`: not all could be, and none is.
#[inline(always)]
fn pin(runtime: &Runtime, range: PageRange, access: Access) -> Option<PageRange> {
    let mut pinned = PageRange { start: range.start, end: range.start };
    let mut page = range.start;
    while page.0 < range.end.0 {
        let next = Page(page.0.wrapping_add(1));
        if let Some(at) = runtime.engine.table.page(page) {
            if !at.word.pin_quickly(access) {
                unpin(runtime, pinned);
                return None;
            }
            if pinned.start.0 == pinned.end.0 {
                pinned.start = page;
            }
            pinned.end = next;
        }
        page = next;
    }
    Some(pinned)
}

#[inline(always)]
fn unpin(runtime: &Runtime, range: PageRange) {
    let mut page = range.start;
    while page.0 < range.end.0 {
        if let Some(word) = runtime.engine.table.word_for_unpin(page) {
            word.unpin();
        }
        page = Page(page.0.wrapping_add(1));
    }
}

unsafe extern "C" {
    /// The linker's names for the ends of the section.
    #[link_name = "__start_farshore_quick"]
    static START: u8;
    #[link_name = "__stop_farshore_quick"]
    static STOP: u8;
}

/// Looks at the code.
///
/// # Errors
/// The first instruction that it may not have.
pub fn check() -> Result<(), String> {
    let (start, stop) = (&raw const START as u64, &raw const STOP as u64);
    // SAFETY: the library's own text, between two symbols of the linker.
    let code = unsafe { core::slice::from_raw_parts(start as *const u8, (stop - start) as usize) };
    let mut at = 0;
    for instruction in Instructions::new(code, start) {
        let next = at + instruction.map_or(1, |known| known.length() as usize);
        if !instruction.is_some_and(|known| is_allowed(&known, start..stop)) {
            // Not as text: the names of all instructions would be in the library, 80 KiB that the loader goes through at each start.
            return Err(format!("an instruction ({:02x?}) at byte {at} of the quick way", &code[at..next]));
        }
        at = next;
    }
    Ok(())
}

/// The highest vector register that the assembly saves.
const SAVED: u8 = 3;

fn is_allowed(instruction: &Instruction, section: core::ops::Range<u64>) -> bool {
    let stays = match instruction.flow() {
        Flow::Next | Flow::Return => true,
        Flow::Conditional | Flow::Jump => instruction.target().is_some_and(|target| section.contains(&target)),
        Flow::Call => instruction.kind() == Kind::Syscall,
        // `ud2`, where the compiler knows that nothing comes.
        Flow::Trap => instruction.kind() == Kind::Undefined,
        Flow::Indirect => false,
    };
    stays && (instruction.is_general() || instruction.highest_vector().is_some_and(|highest| highest <= SAVED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(code: &[u8]) -> bool {
        Instruction::decode(code, 0x1000).is_some_and(|instruction| is_allowed(&instruction, 0x1000..0x1100))
    }

    #[test]
    fn what_would_spoil_a_register_or_leave_is_refused() {
        for code in [
            &[0x48, 0x89, 0xc3][..],         // mov rbx, rax
            &[0x0f, 0x57, 0xc0],             // xorps xmm0, xmm0
            &[0x0f, 0x11, 0x1c, 0x24],       // movups [rsp], xmm3
            &[0xf0, 0x48, 0x0f, 0xb1, 0x0f], // lock cmpxchg [rdi], rcx
            &[0x64, 0x48, 0x8b, 0x00],       // mov rax, fs:[rax]
            &[0x74, 0x10],                   // je +16
            &[0x0f, 0x05],                   // syscall
            &[0xc3],                         // ret
        ] {
            assert!(allowed(code), "{code:x?}");
        }
        for code in [
            &[0x0f, 0x57, 0xe4][..],               // xorps xmm4, xmm4
            &[0xc5, 0xf8, 0x57, 0xc0],             // vxorps xmm0, xmm0, xmm0
            &[0x62, 0xf1, 0x7c, 0x48, 0x57, 0xc0], // vxorps zmm0, zmm0, zmm0
            &[0xd9, 0xee],                         // fldz
            &[0x0f, 0xef, 0xc0],                   // pxor mm0, mm0
            &[0xe8, 0, 0, 0, 0],                   // call
            &[0xff, 0xd0],                         // call rax
            &[0xff, 0x25, 0, 0, 0, 0],             // jmp [rip]
            &[0xe9, 0, 1, 0, 0],                   // jmp out of the section
            &[0xf3, 0x48, 0xab],                   // rep stosq
            &[0xcc],                               // int3
        ] {
            assert!(!allowed(code), "{code:x?}");
        }
    }
}
