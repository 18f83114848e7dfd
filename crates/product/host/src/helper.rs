//! The helper: waits for the exec, puts the library into the new program, ends.

use crate::berth::State;
use crate::image::{self, Image};
use crate::remote::{self, Event, Registers, Remote};
use crate::stack::{self, Auxiliary};
use crate::{LOADER, passed};
use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use farshore_sys::raw::{Errno, getpid, nr, syscall};
use farshore_sys::vm::{map, prot};

const PAGE: u64 = 4096;
/// Bytes of the stack on which the library begins.
const STACK: u64 = 1 << 20;
/// The most that is searched of the vDSO, bytes.
const VDSO: u64 = 4 * PAGE;

/// Why the library is not there: the step that failed, and how.
struct Why(&'static str, Errno);

/// The helper's code: with all signals blocked, on the stack of its berth.
pub extern "C" fn run(berth: u64) -> ! {
    // SAFETY: the state at the beginning of the berth, which is this process's from the exec on.
    let state = unsafe { &*core::ptr::with_exposed_provenance::<State>(berth as usize) };
    // Who executes may be killed at any moment: then nobody else ends the helper.
    if !dies_with(state.parent) {
        exit();
    }
    state.wait_until_allowed();
    let traces = remote::seize(state.tracee.load(Ordering::Relaxed));
    let begun = traces.is_ok();
    state.tell(traces);
    if !begun {
        // The berth is still the other process's, too, which unmaps it.
        exit();
    }
    serve(state);
    leave(berth, state.length as u64)
}

/// The kernel kills the helper when the thread that has made it ends; an exec is no end. False: it has ended already.
fn dies_with(parent: u32) -> bool {
    const PR_SET_PDEATHSIG: u64 = 1;
    const SIGKILL: u64 = 9;
    // SAFETY: concerns this process alone.
    unsafe { syscall(nr::PRCTL, [PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0]) };
    // SAFETY: asks only.
    unsafe { syscall(nr::GETPPID, [0; 6]) == i64::from(parent) }
}

fn exit() -> ! {
    loop {
        // SAFETY: ends this process, which has one thread.
        unsafe { syscall(nr::EXIT, [0; 6]) };
    }
}

/// Until the exec: lets the process do what it does.
fn serve(state: &State) {
    loop {
        match remote::wait() {
            (_, Event::Gone) => return,
            (process, Event::Exec) => return enter(process, state),
            (process, event) => remote::go_on(process, event),
        }
    }
}

/// The process is the new program.
fn enter(process: u32, state: &State) {
    // Where it is gone there is nothing left to be done.
    let Ok(mut remote) = Remote::new(process) else { return };
    match board(&mut remote, state) {
        Ok(registers) => drop(remote.leave(&registers)),
        // It was killed.
        Err(Why(_, Errno::ESRCH)) => {}
        Err(Why(step, why)) => {
            complain(state, step, why);
            if state.required() {
                const EXIT_GROUP: u64 = 231;
                const CANNOT_START: u64 = 125;
                let _ = remote.call(EXIT_GROUP, [CANNOT_START, 0, 0, 0, 0, 0]);
            }
            let first = remote.first;
            let _ = remote.leave(&first);
        }
    }
}

/// What was mapped so far, to be unmapped if the next step fails.
struct Mapped<'r> {
    remote: &'r Remote,
    ranges: [(u64, u64); 4],
}

impl Mapped<'_> {
    fn note(&mut self, start: u64, length: u64) {
        if let Some(free) = self.ranges.iter_mut().find(|range| range.1 == 0) {
            *free = (start, length);
        }
    }

    fn undo(&self) {
        for (start, length) in self.ranges.iter().filter(|range| range.1 != 0) {
            let _ = self.remote.call(nr::MUNMAP, [*start, *length, 0, 0, 0, 0]);
        }
    }
}

/// Puts the library there. Returns the registers with which its dynamic linker begins.
fn board(remote: &mut Remote, state: &State) -> Result<Registers, Why> {
    let auxiliary = Auxiliary::read(remote).map_err(|why| Why("its first stack cannot be read", why))?;
    if auxiliary.is_secure() {
        return Err(Why("it gains rights", Errno::EPERM));
    }
    let gate = find_gate(remote, &auxiliary).map_err(|why| Why("it has no vDSO by which calls can be made", why))?;
    remote.set_gate(gate);
    let mut mapped = Mapped { remote, ranges: [(0, 0); 4] };
    let prepared = prepare(&mut mapped, auxiliary, state);
    prepared.inspect_err(|_| mapped.undo())
}

fn prepare(mapped: &mut Mapped<'_>, mut auxiliary: Auxiliary, state: &State) -> Result<Registers, Why> {
    let remote = mapped.remote;
    let no_room = |why| Why("there is no room in its memory", why);
    let anonymous = map::PRIVATE | map::ANONYMOUS | map::NORESERVE;
    let room = remote.call(nr::MMAP, [0, STACK, prot::READ | prot::WRITE, anonymous, u64::MAX, 0]).map_err(no_room)?;
    mapped.note(room, STACK);
    // Names at the lower end, where they stay.
    let library_name = room;
    let loader_name = room + state.library().len() as u64;
    remote.write(library_name, state.library()).map_err(no_room)?;
    remote.write(loader_name, LOADER.to_bytes_with_nul()).map_err(no_room)?;
    let path = CStr::from_bytes_until_nul(state.library()).unwrap_or_default();
    let library = image::place(remote, path, library_name).map_err(|why| Why("Farshore's library cannot be mapped", why))?;
    mapped.note(library.base, library.length);
    let loader = image::place(remote, LOADER, loader_name).map_err(|why| Why("glibc's dynamic linker cannot be mapped", why))?;
    mapped.note(loader.base, loader.length);
    let fence = raise_fence(remote).map_err(no_room)?;
    if fence != 0 {
        mapped.note(fence, PAGE);
    }
    let sp = lay_stack(remote, room + STACK, &mut auxiliary, [library, loader], library_name, fence, state)
        .map_err(|why| Why("the stack that its dynamic linker needs cannot be written", why))?;
    let Registers { cs, ss, eflags, .. } = remote.first;
    Ok(Registers { cs, ss, eflags, rip: loader.entry, rsp: sp, ..Registers::default() })
}

fn lay_stack(
    remote: &Remote,
    top: u64,
    auxiliary: &mut Auxiliary,
    [library, loader]: [Image; 2],
    path: u64,
    fence: u64,
    state: &State,
) -> Result<u64, Errno> {
    auxiliary.become_of(&library, &loader, path)?;
    let ours = [
        (passed::ENTRY, remote.first.rip),
        (passed::STACK, remote.first.rsp),
        (passed::HELPER, getpid().into()),
        (passed::FENCE, fence),
        (passed::REQUIRED, state.required().into()),
    ];
    ours.into_iter().try_for_each(|(kind, value)| auxiliary.set(kind, value))?;
    stack::lay(remote, top, state.environment(), auxiliary)
}

/// Maps the page behind the break. 0: there is something already.
fn raise_fence(remote: &Remote) -> Result<u64, Errno> {
    const FIXED_NOREPLACE: u64 = 0x10_0000;
    let end = remote.call(nr::BRK, [0; 6])?.next_multiple_of(PAGE);
    let flags = map::PRIVATE | map::ANONYMOUS | map::NORESERVE | FIXED_NOREPLACE;
    match remote.call(nr::MMAP, [end, PAGE, prot::NONE, flags, u64::MAX, 0]) {
        Err(Errno::EEXIST) => Ok(0),
        answer => answer,
    }
}

/// A `syscall` instruction in the program's memory: in its vDSO, which the kernel maps for every program.
fn find_gate(remote: &Remote, auxiliary: &Auxiliary) -> Result<u64, Errno> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let start = auxiliary.vdso().ok_or(Errno::ENOENT)?;
    let mut page = [0; PAGE as usize];
    for at in (start..start + VDSO).step_by(PAGE as usize) {
        remote.read(at, &mut page)?;
        if let Some(place) = page.windows(2).position(|bytes| bytes == SYSCALL) {
            return Ok(at + place as u64);
        }
    }
    Err(Errno::ENOENT)
}

/// Writes a line to stderr, which is still what it was before the exec.
fn complain(state: &State, step: &str, why: Errno) {
    const WRITE: u64 = 1;
    let what = if state.required() { "is not started (--require)" } else { "runs without Farshore" };
    let (name, _) = why.describe().unwrap_or(("an error", ""));
    let parts = ["farshore: a static program ", what, ": ", step, " (", name, ")\n"];
    let mut line = [0u8; 256];
    let mut length = 0;
    for part in parts {
        let room = part.len().min(line.len() - length);
        line[length..length + room].copy_from_slice(&part.as_bytes()[..room]);
        length += room;
    }
    // SAFETY: the kernel reads our bytes.
    unsafe { syscall(WRITE, [2, line.as_ptr() as u64, length as u64, 0, 0, 0]) };
}

/// Unmaps the memory that the helper runs on, and ends it.
fn leave(berth: u64, length: u64) -> ! {
    // SAFETY: nobody else uses the mapping, and nothing is on the stack any more: registers have all.
    unsafe {
        asm!(
            "syscall",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            exit = const nr::EXIT,
            in("rax") nr::MUNMAP,
            in("rdi") berth,
            in("rsi") length,
            options(noreturn, nostack),
        );
    }
}
