//! Calls that the new program makes in one go: a list of them in its memory, and a piece of code that goes through the list.
//!
//! A call that the helper has the program make ([`Remote::call`]) costs three stops, and two processes that are woken for each. The piece
//! makes all calls of the list, and ends with one stop:
//!
//! ```text
//!  the script's page:  code ─▶ call | call | call | … | end
//!                              number, arguments, result         result of one ─▶ argument of another (a descriptor)
//! ```
//!
//! * A call that fails ends the list, but for an error that it may have. The helper reads what each call has answered.
//! * The stop is a breakpoint. For that the kernel takes SIGTRAP from what is blocked, and where the program has inherited that it is
//!   ignored, changes its action; the helper sets both as they were.
//! * A call that a filter makes a signal, and a page that cannot be had, end the list too ([`Remote::go_to_breakpoint`]).

use crate::remote::Remote;
use core::arch::global_asm;
use core::mem::offset_of;
use core::slice;
use farshore_sys::raw::{Errno, sort};

/// Bytes of a script in the program's memory.
pub const LENGTH: u64 = 4096;
/// Calls of a script: those of two images with four parts take 18.
const CALLS: usize = 35;
/// The number behind the last one.
const END: u64 = u64::MAX;
/// The result of a call that was not made. No call answers so.
const NOT_MADE: u64 = 1 << 63;
/// Answers from here up are errors.
const ERRORS: i32 = -4095;

const SIGTRAP: u64 = 5;
const RT_SIGACTION: u64 = 13;
const SIG_IGN: u64 = 1;

/// A call, as the piece of code knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Entry {
    nr: u64,
    args: [u64; 6],
    /// Where in the entry is the argument that another call's result makes: `(result + add) & mask`. 0: there is none.
    place: u64,
    /// Where in the list that result is.
    from: u64,
    add: u64,
    mask: u64,
    result: u64,
    /// An error that does not end the list, as the kernel answers it; 0: none.
    allowed: u64,
}

const UNUSED: Entry = Entry { nr: END, args: [0; 6], place: 0, from: 0, add: 0, mask: 0, result: NOT_MADE, allowed: 0 };

global_asm!(
    ".pushsection .text.farshore_script, \"ax\", @progbits",
    ".balign 16",
    ".hidden farshore_script, farshore_script_end",
    ".globl farshore_script, farshore_script_end",
    ".type farshore_script, @function",
    "farshore_script:",
    "lea rbp, [rip + farshore_script_end]",
    "mov rbx, rbp",
    "2:",
    "mov rax, [rbx + {nr}]",
    "cmp rax, -1",
    "je 5f",
    "mov rcx, [rbx + {place}]",
    "test rcx, rcx",
    "jz 3f",
    "mov rdx, [rbx + {from}]",
    "mov rdx, [rbp + rdx]",
    "add rdx, [rbx + {add}]",
    "and rdx, [rbx + {mask}]",
    "mov [rbx + rcx], rdx",
    "3:",
    "mov rdi, [rbx + {args}]",
    "mov rsi, [rbx + {args} + 8]",
    "mov rdx, [rbx + {args} + 16]",
    "mov r10, [rbx + {args} + 24]",
    "mov r8, [rbx + {args} + 32]",
    "mov r9, [rbx + {args} + 40]",
    "syscall",
    "mov [rbx + {result}], rax",
    "cmp rax, {errors}",
    "jb 4f",
    "cmp rax, [rbx + {allowed}]",
    "jne 5f",
    "4:",
    "add rbx, {entry}",
    "jmp 2b",
    "5:",
    "int3",
    ".balign 8",
    "farshore_script_end:",
    ".size farshore_script, . - farshore_script",
    ".popsection",
    nr = const offset_of!(Entry, nr),
    args = const offset_of!(Entry, args),
    place = const offset_of!(Entry, place),
    from = const offset_of!(Entry, from),
    add = const offset_of!(Entry, add),
    mask = const offset_of!(Entry, mask),
    result = const offset_of!(Entry, result),
    allowed = const offset_of!(Entry, allowed),
    entry = const size_of::<Entry>(),
    errors = const ERRORS,
);

unsafe extern "C" {
    #[link_name = "farshore_script"]
    static CODE: u8;
    #[link_name = "farshore_script_end"]
    static CODE_END: u8;
}

/// The piece of code, whose length is a multiple of 8.
fn code() -> &'static [u8] {
    let (start, end) = (&raw const CODE, &raw const CODE_END);
    // SAFETY: text of our own, between two of its symbols.
    unsafe { slice::from_raw_parts(start, end as usize - start as usize) }
}

/// A call of a script.
#[derive(Clone, Copy, Debug)]
pub struct Call(usize);

/// The step that has failed, and how.
#[derive(Clone, Copy, Debug)]
pub struct Failed(pub &'static str, pub Errno);

/// The calls, and the action of SIGTRAP, which the kernel writes behind them.
#[repr(C)]
#[derive(Debug)]
struct List {
    entries: [Entry; CALLS + 1],
    action: [u64; 4],
}

/// A list of calls.
#[derive(Debug)]
pub struct Script {
    list: List,
    steps: [&'static str; CALLS],
    count: usize,
    /// Where it lies in the program's memory.
    at: u64,
}

impl Script {
    /// An empty one, for the page `at` of the program's memory, which can be written and executed.
    pub fn new(at: u64) -> Script {
        let list = List { entries: [UNUSED; CALLS + 1], action: [0; 4] };
        let mut script = Script { list, steps: [""; CALLS], count: 0, at };
        let action = script.list_at() + offset_of!(List, action) as u64;
        script.push("its signals cannot be asked for", RT_SIGACTION, [SIGTRAP, 0, action, 8, 0, 0]);
        script
    }

    fn list_at(&self) -> u64 {
        self.at + code().len() as u64
    }

    /// Adds a call, which belongs to `step`.
    ///
    /// # Panics
    /// There are too many. ([`crate::image`] bounds them.)
    pub fn push(&mut self, step: &'static str, nr: u64, args: [u64; 6]) -> Call {
        let call = Call(self.count);
        self.list.entries[call.0] = Entry { nr, args, ..UNUSED };
        self.steps[call.0] = step;
        self.count += 1;
        call
    }

    /// Calls that there is room for.
    pub fn room(&self) -> usize {
        CALLS - self.count
    }

    /// The argument with this index will be what `from` has answered, as `change` would have it: a sum, and bits that stay.
    pub fn take(&mut self, call: Call, argument: usize, from: Call, (add, mask): (u64, u64)) {
        let place = offset_of!(Entry, args) + 8 * argument;
        let from = from.0 * size_of::<Entry>() + offset_of!(Entry, result);
        self.list.entries[call.0] = Entry { place: place as u64, from: from as u64, add, mask, ..self.list.entries[call.0] };
    }

    /// The call may fail so.
    pub fn allow(&mut self, call: Call, why: Errno) {
        self.list.entries[call.0].allowed = (-i64::from(why.0)) as u64;
    }

    /// What the call has answered; `None`: it was not made.
    pub fn answer(&self, call: Call) -> Option<Result<u64, Errno>> {
        Some(self.list.entries[call.0].result).filter(|&result| result != NOT_MADE).map(|result| sort(result as i64))
    }

    /// Has the program make the calls; `texts` are written before, to another place of its memory.
    ///
    /// # Errors
    /// The first call that has failed. Those before it were made.
    pub fn run(&mut self, remote: &Remote, (texts_at, texts): (u64, &[u8])) -> Result<(), Failed> {
        let begun = |why| Failed("there is no room in its memory", why);
        let list = self.list_at();
        let length = size_of::<List>();
        // SAFETY: words, all of which were written.
        let bytes = unsafe { slice::from_raw_parts(&raw const self.list as *const u8, length) };
        remote.write_all([(self.at, code()), (list, bytes), (texts_at, texts)]).map_err(begun)?;
        let stopped = remote.go_to_breakpoint(self.at);
        if let Err(Errno::ESRCH) = stopped {
            return stopped.map_err(begun);
        }
        // SAFETY: the same words, and any bytes are words.
        let bytes = unsafe { slice::from_raw_parts_mut(&raw mut self.list as *mut u8, length) };
        remote.read(list, bytes).map_err(begun)?;
        if self.list.action[0] == SIG_IGN {
            let action = list + offset_of!(List, action) as u64;
            remote.call(RT_SIGACTION, [SIGTRAP, action, 0, 8, 0, 0]).map_err(|why| Failed("its signals cannot be set", why))?;
        }
        for index in 0..self.count {
            let why = match self.answer(Call(index)) {
                Some(Err(why)) if self.list.entries[index].allowed != (-i64::from(why.0)) as u64 => why,
                Some(_) => continue,
                // The call before has answered, and this one has ended the list otherwise.
                None => stopped.err().unwrap_or(Errno::EFAULT),
            };
            return Err(Failed(self.steps[index], why));
        }
        stopped.map_err(begun)
    }
}

const _: () = assert!(size_of::<List>() + 256 <= LENGTH as usize);

#[cfg(test)]
mod tests;
