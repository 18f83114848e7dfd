//! The helper: waits for the exec, puts the library into the new program, ends.

use crate::berth::State;
use crate::image::{Image, Plan, Steps};
use crate::remote::{self, Event, Registers, Remote};
use crate::script::{self, Call, Failed, Script};
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

const ROOM_STEP: &str = "there is no room in its memory";
const LIBRARY_STEP: &str = "Farshore's library cannot be mapped";
const LOADER_STEP: &str = "glibc's dynamic linker cannot be mapped";

/// The library and its dynamic linker.
type Plans = [Result<Plan, Errno>; 2];

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
    // While the kernel executes the program.
    let library = CStr::from_bytes_until_nul(state.library()).unwrap_or_default();
    let plans = [library, LOADER].map(Plan::read);
    loop {
        match remote::wait() {
            (_, Event::Gone) => return,
            (process, Event::Exec) => return enter(process, state, &plans),
            (process, event) => remote::go_on(process, event),
        }
    }
}

/// The process is the new program.
fn enter(process: u32, state: &State, plans: &Plans) {
    // Where it is gone there is nothing left to be done.
    let Ok(mut remote) = Remote::new(process) else { return };
    match board(&mut remote, state, plans) {
        Ok(registers) => drop(remote.leave(&registers)),
        // It was killed.
        Err(Failed(_, Errno::ESRCH)) => {}
        Err(Failed(step, why)) => {
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

/// Puts the library there. Returns the registers with which its dynamic linker begins.
fn board(remote: &mut Remote, state: &State, plans: &Plans) -> Result<Registers, Failed> {
    let auxiliary = Auxiliary::read(remote).map_err(|why| Failed("its first stack cannot be read", why))?;
    if auxiliary.is_secure() {
        return Err(Failed("it gains rights", Errno::EPERM));
    }
    let gate = find_gate(remote, &auxiliary).map_err(|why| Failed("it has no vDSO by which calls can be made", why))?;
    remote.set_gate(gate);
    let [library, loader] = plans;
    let library = library.as_ref().map_err(|&why| Failed(LIBRARY_STEP, why))?;
    let loader = loader.as_ref().map_err(|&why| Failed(LOADER_STEP, why))?;
    let length = script::LENGTH + STACK + loader.length + library.length;
    // A page of it is executed before the library is there. What is not code loses that right as the script begins.
    let (all, anonymous) = (prot::READ | prot::WRITE | prot::EXEC, map::PRIVATE | map::ANONYMOUS | map::NORESERVE);
    let room = remote.call(nr::MMAP, [0, length, all, anonymous, u64::MAX, 0]).map_err(|why| Failed(ROOM_STEP, why))?;
    let mut work = Work::new(state, room, [library, loader]);
    let done = work.do_all(remote, auxiliary, state, [library, loader]);
    done.inspect_err(|_| {
        work.undo(remote);
        let _ = remote.call(nr::MUNMAP, [room, length, 0, 0, 0, 0]);
    })
}

/// What is done in the new program, and where in its memory. From `room` up: the script; the stack, which has the names at its upper
/// end; the dynamic linker; the library.
struct Work {
    room: u64,
    /// The names, at the upper end of the stack.
    texts: u64,
    /// Where the images lie.
    bases: [u64; 2],
    script: Script,
    /// What maps each image, as far as the script has got.
    files: [Option<Steps>; 2],
    /// The page behind the break.
    fence: Option<Call>,
}

impl Work {
    fn new(state: &State, room: u64, [_, loader]: [&Plan; 2]) -> Work {
        let stack_end = room + script::LENGTH + STACK;
        let texts = stack_end - (state.texts().len() as u64).next_multiple_of(16);
        let bases = [stack_end + loader.length, stack_end];
        Work { room, texts, bases, script: Script::new(room), files: [None; 2], fence: None }
    }

    fn do_all(
        &mut self,
        remote: &Remote,
        mut auxiliary: Auxiliary,
        state: &State,
        plans: [&Plan; 2],
    ) -> Result<Registers, Failed> {
        let stack = self.room + script::LENGTH;
        self.script.push(ROOM_STEP, nr::MPROTECT, [stack, STACK, prot::READ | prot::WRITE, 0, 0, 0]);
        let names = [self.texts, self.texts + state.library().len() as u64];
        let steps = [LIBRARY_STEP, LOADER_STEP];
        for (n, plan) in plans.into_iter().enumerate() {
            let added = plan.add_to(&mut self.script, steps[n], self.bases[n], names[n]);
            self.files[n] = Some(added.map_err(|why| Failed(steps[n], why))?);
        }
        self.raise_fence();
        self.script.run(remote, (self.texts, state.texts()))?;
        for (n, plan) in plans.into_iter().enumerate() {
            plan.write_zeros(remote, self.bases[n]).map_err(|why| Failed(steps[n], why))?;
        }
        let images = [plans[0].image(self.bases[0]), plans[1].image(self.bases[1])];
        let sp = self
            .lay_stack(remote, &mut auxiliary, images, state)
            .map_err(|why| Failed("the stack that its dynamic linker needs cannot be written", why))?;
        let Registers { cs, ss, eflags, .. } = remote.first;
        Ok(Registers { cs, ss, eflags, rip: images[1].entry, rsp: sp, ..Registers::default() })
    }

    /// Maps the page behind the break, if there is nothing yet.
    fn raise_fence(&mut self) {
        const FIXED_NOREPLACE: u64 = 0x10_0000;
        let flags = map::PRIVATE | map::ANONYMOUS | map::NORESERVE | FIXED_NOREPLACE;
        let end = self.script.push(ROOM_STEP, nr::BRK, [0; 6]);
        let fence = self.script.push(ROOM_STEP, nr::MMAP, [0, PAGE, prot::NONE, flags, u64::MAX, 0]);
        self.script.take(fence, 0, end, (PAGE - 1, !(PAGE - 1)));
        self.script.allow(fence, Errno::EEXIST);
        self.fence = Some(fence);
    }

    /// The page behind the break, if the script has mapped it.
    fn fence(&self) -> Option<u64> {
        self.script.answer(self.fence?)?.ok()
    }

    fn lay_stack(&self, remote: &Remote, auxiliary: &mut Auxiliary, images: [Image; 2], state: &State) -> Result<u64, Errno> {
        let [library, loader] = images;
        auxiliary.become_of(&library, &loader, self.texts)?;
        let ours = [
            (passed::ENTRY, remote.first.rip),
            (passed::STACK, remote.first.rsp),
            (passed::HELPER, getpid().into()),
            (passed::FENCE, self.fence().unwrap_or(0)),
            (passed::SCRIPT, self.room),
            (passed::REQUIRED, state.required().into()),
        ];
        ours.into_iter().try_for_each(|(kind, value)| auxiliary.set(kind, value))?;
        let environment = state.environment();
        let names = (state.texts().len() - environment.0.len()) as u64;
        stack::lay(remote, (self.texts, names), environment, auxiliary)
    }

    /// Takes back what the script has done outside of its room.
    fn undo(&self, remote: &Remote) {
        for descriptor in self.files.iter().flatten().filter_map(|steps| steps.left_open(&self.script)) {
            let _ = remote.call(nr::CLOSE, [descriptor, 0, 0, 0, 0, 0]);
        }
        if let Some(fence) = self.fence() {
            let _ = remote.call(nr::MUNMAP, [fence, PAGE, 0, 0, 0, 0]);
        }
    }
}

/// A `syscall` instruction in the program's memory: in its vDSO, which the kernel maps for every program.
pub fn find_gate(remote: &Remote, auxiliary: &Auxiliary) -> Result<u64, Errno> {
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
