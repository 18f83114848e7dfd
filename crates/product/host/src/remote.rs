//! The new program, which stands still: its memory, its registers, and calls in its name.

use core::cell::Cell;
use core::mem::MaybeUninit;
use farshore_sys::raw::{Errno, sort, syscall_result, syscall_retry};

const PTRACE: u64 = 101;
const WAIT4: u64 = 61;
const READV: u64 = 310;
const WRITEV: u64 = 311;

const PTRACE_CONT: u64 = 7;
const PTRACE_GETREGS: u64 = 12;
const PTRACE_SETREGS: u64 = 13;
const PTRACE_DETACH: u64 = 17;
const PTRACE_SYSCALL: u64 = 24;
const PTRACE_SETOPTIONS: u64 = 0x4200;
const PTRACE_SEIZE: u64 = 0x4206;
const PTRACE_LISTEN: u64 = 0x4208;
const PTRACE_GETSIGMASK: u64 = 0x420a;
const PTRACE_SETSIGMASK: u64 = 0x420b;

const O_TRACESYSGOOD: u64 = 1;
const O_TRACEEXEC: u64 = 1 << 4;
const O_EXITKILL: u64 = 1 << 20;
const EVENT_EXEC: u32 = 4;
const EVENT_STOP: u32 = 128;
const WALL: u64 = 0x4000_0000;
const SIGTRAP: u32 = 5;
/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU.
const STOPS: [u32; 4] = [19, 20, 21, 22];
/// How a stop at a call looks.
const AT_CALL: u32 = SIGTRAP | 0x80;

/// `struct user_regs_struct`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// What a wait has told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It has become the new program.
    Exec,
    /// It is before or behind a call.
    Call,
    /// A signal is about to be delivered.
    Signal(u32),
    /// It was stopped as by SIGSTOP, with the rest of its process.
    Stopped,
    /// It was continued by SIGCONT.
    Continued,
    /// It is gone.
    Gone,
}

/// The process that is traced.
#[derive(Debug)]
pub struct Remote {
    process: u32,
    /// Registers as the kernel has made them for the new program.
    pub first: Registers,
    mask: u64,
    /// Address of a `syscall` instruction.
    gate: u64,
    /// A signal that could not be blocked, and is to come when the process goes on: SIGSTOP. 0: none.
    kept: Cell<u32>,
}

fn ptrace(request: u64, process: u32, addr: u64, data: u64) -> Result<u64, Errno> {
    // SAFETY: the callers' requests write to memory of this process only what is said there.
    unsafe { syscall_result(PTRACE, [request, process.into(), addr, data, 0, 0]) }
}

/// Begins to trace a thread. It goes on.
pub fn seize(thread: u32) -> Result<(), Errno> {
    ptrace(PTRACE_SEIZE, thread, 0, O_TRACEEXEC).map(drop)
}

/// Waits for what the traced process does: its number (which an exec may change), and what.
pub fn wait() -> (u32, Event) {
    let mut status = 0u32;
    // SAFETY: the kernel writes the status.
    let answer = unsafe { syscall_retry(WAIT4, [u64::MAX, &raw mut status as u64, WALL, 0, 0, 0]) };
    let Ok(process) = answer else { return (0, Event::Gone) };
    let (signal, event) = (status >> 8 & 0xff, status >> 16);
    let event = match (status & 0xff, event) {
        (0x7f, EVENT_EXEC) => Event::Exec,
        (0x7f, EVENT_STOP) if STOPS.contains(&signal) => Event::Stopped,
        (0x7f, EVENT_STOP) => Event::Continued,
        (0x7f, _) if signal == AT_CALL => Event::Call,
        (0x7f, _) => Event::Signal(signal),
        _ => Event::Gone,
    };
    (process as u32, event)
}

/// Lets it go on until the next event, with the signal that it was about to get.
pub fn go_on(process: u32, event: Event) {
    // It may be gone by now; the next wait will tell.
    let _ = match event {
        Event::Stopped => ptrace(PTRACE_LISTEN, process, 0, 0),
        Event::Signal(signal) => ptrace(PTRACE_CONT, process, 0, signal.into()),
        _ => ptrace(PTRACE_CONT, process, 0, 0),
    };
}

impl Remote {
    /// Takes hold of a process that has just become the new program.
    pub fn new(process: u32) -> Result<Remote, Errno> {
        ptrace(PTRACE_SETOPTIONS, process, 0, O_EXITKILL | O_TRACESYSGOOD)?;
        let mut mask = 0u64;
        ptrace(PTRACE_GETSIGMASK, process, 8, &raw mut mask as u64)?;
        let mut remote = Remote { process, first: Registers::default(), mask, gate: 0, kept: Cell::new(0) };
        remote.block_signals()?;
        // Out of the exec.
        remote.go_to_call()?;
        remote.first = remote.registers()?;
        Ok(remote)
    }

    /// Calls go by the `syscall` instruction at `gate` from now on.
    pub fn set_gate(&mut self, gate: u64) {
        self.gate = gate;
    }

    fn registers(&self) -> Result<Registers, Errno> {
        let mut registers = Registers::default();
        ptrace(PTRACE_GETREGS, self.process, 0, &raw mut registers as u64)?;
        Ok(registers)
    }

    fn set_registers(&self, registers: &Registers) -> Result<(), Errno> {
        ptrace(PTRACE_SETREGS, self.process, 0, core::ptr::from_ref(registers) as u64).map(drop)
    }

    fn go_to_call(&self) -> Result<(), Errno> {
        self.go_to(PTRACE_SYSCALL, Event::Call)
    }

    /// Lets it go on, by a request of ptrace, until this happens.
    fn go_to(&self, request: u64, wanted: Event) -> Result<(), Errno> {
        const SIGSTOP: u32 = 19;
        loop {
            ptrace(request, self.process, 0, 0)?;
            let event = loop {
                match wait() {
                    (process, event) if process == self.process => break event,
                    (0, _) => break Event::Gone,
                    _ => {}
                }
            };
            match event {
                event if event == wanted => return Ok(()),
                Event::Gone => return Err(Errno::ESRCH),
                Event::Signal(SIGSTOP) | Event::Stopped => self.kept.set(SIGSTOP),
                // All others are blocked. So this one is the kernel's, for what the process has just done.
                Event::Signal(_) => return Err(Errno::EFAULT),
                // As natively SIGCONT takes back a SIGSTOP that has not stopped anything yet.
                Event::Continued => self.kept.set(0),
                Event::Call | Event::Exec => {}
            }
        }
    }

    fn block_signals(&self) -> Result<(), Errno> {
        let all = u64::MAX;
        ptrace(PTRACE_SETSIGMASK, self.process, 8, &raw const all as u64).map(drop)
    }

    /// Makes a call in the program's name.
    pub fn call(&self, nr: u64, args: [u64; 6]) -> Result<u64, Errno> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let none = u64::MAX;
        self.set_registers(&Registers { rax: nr, rdi, rsi, rdx, r10, r8, r9, rip: self.gate, orig_rax: none, ..self.first })?;
        self.go_to_call()?;
        self.go_to_call()?;
        sort(self.registers()?.rax as i64)
    }

    /// Lets it run from `at`, with all signals blocked, until the next breakpoint.
    ///
    /// # Errors
    /// It is gone; or the kernel has answered what it did with another signal (`EFAULT`).
    pub fn go_to_breakpoint(&self, at: u64) -> Result<(), Errno> {
        self.set_registers(&Registers { rip: at, orig_rax: u64::MAX, ..self.first })?;
        let stopped = self.go_to(PTRACE_CONT, Event::Signal(SIGTRAP));
        // The kernel takes the signal from those that are blocked.
        self.block_signals()?;
        stopped
    }

    /// Reads bytes of the program.
    pub fn read(&self, from: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.transfer(READV, [(from, into.as_mut_ptr() as u64, into.len())])
    }

    /// Writes bytes of the program.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.write_all([(to, bytes)])
    }

    /// Writes bytes at several places.
    pub fn write_all<const N: usize>(&self, parts: [(u64, &[u8]); N]) -> Result<(), Errno> {
        self.transfer(WRITEV, parts.map(|(to, bytes)| (to, bytes.as_ptr() as u64, bytes.len())))
    }

    /// `parts`: where there, where here, and how many bytes.
    fn transfer<const N: usize>(&self, nr: u64, parts: [(u64, u64, usize); N]) -> Result<(), Errno> {
        let length = parts.iter().map(|part| part.2 as u64).sum();
        if length == 0 {
            return Ok(());
        }
        let here = MaybeUninit::new(parts.map(|(_, here, length)| [here, length as u64]));
        let there = MaybeUninit::new(parts.map(|(there, _, length)| [there, length as u64]));
        let args = [self.process.into(), here.as_ptr() as u64, N as u64, there.as_ptr() as u64, N as u64, 0];
        // SAFETY: `read` and `write_all` give the kernel slices of ours of that length, to be written or read.
        let done = unsafe { syscall_result(nr, args) }?;
        if done == length { Ok(()) } else { Err(Errno::EFAULT) }
    }

    /// Lets the process go on by itself, with these registers.
    pub fn leave(&self, registers: &Registers) -> Result<(), Errno> {
        self.set_registers(&Registers { orig_rax: u64::MAX, ..*registers })?;
        ptrace(PTRACE_SETSIGMASK, self.process, 8, &raw const self.mask as u64)?;
        ptrace(PTRACE_DETACH, self.process, 0, self.kept.get().into()).map(drop)
    }
}
