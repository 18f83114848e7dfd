//! Dormant until needed: a process does nothing but count its mappings until they could exceed the limit, or its share of one.
//!
//! ```text
//!               a mapping that could exceed the limit; a fork, an exec; a restriction;
//!               a call of which it is not known that it does no harm (watch.rs); unithreads
//!  DORMANT ───────────────────────────────────────────────────────────────▶ HALTED ─▶ AWAKE
//!     ▲                                                                      │  │ something that Farshore needs cannot be had
//!     └────────── a thread could not be stopped in time ─────────────────────┘  └──────▶ REFUSED
//! ```
//!
//! While the process is dormant Farshore has no userfaultfd, no thread and no Syscall User Dispatch in it, and two
//! signal handlers ([`called`]). The first process of a run has no descriptor either, unless it has a seat in a budget; a program that another one has started keeps two,
//! by which it is in its family (`family`). Calls that could close these are watched. Huge pages stay. Of the `syscall` instructions of libc and the loader, only those are patched
//! whose number is watched or not known before the call; all others are as they were. So a program that fits into its limit runs
//! as natively, with its threads.
//!
//! # What must hold
//!
//! 1. **One thread runs while the process wakes.** All others stand still ([`sleeping`]), in code of ours, with all signals blocked.
//!    So waking is start-up, later. There is one process on the memory: a call that would change that wakes the process first, and so
//!    does a call that makes a thread otherwise than libc does ([`is_plain_thread`]).
//! 2. **Every watched call is seen.** A program whose text outside of libc and the loader may make one by an instruction of its
//!    own (Go, sanitizers, what is compiled at run time) is awake from the start, or from when that text is mapped. So is a
//!    program of which a site cannot be patched.
//! 3. **What is there when it wakes is plain.** A call that would lock memory, have it wiped or dropped, give it a key, have
//!    it merged, make a ring, or open a device that keeps memory wakes the process first.
//! 4. **A call that wakes begins again**, on the call stack that the thread has got meanwhile ([`entry::go_on`]), and is served
//!    as any other. So does a call that has found the process halted.
//! 5. **A thread goes on where it would have been, natively.** Where a jump has come to lie over its place, it goes on in the stub. A
//!    call that the signal has ended is made again ([`called`]).
//!
//! # In a family
//!
//! A process that shares the limit begins with a small share of what is free, and takes more of that as it maps more. What is free
//! no process uses, so to take it needs nobody's help. When nothing is free it wakes, with the budget that it has by then, and
//! relatives give it more (`family::budget`).
//!
//! A watched call runs on a stack of ours, as in a process that is awake. But handlers of the program run natively, on top of
//! that stack, and may make watched calls themselves: the frames of those calls lie below ([`entry::asleep`]). Such a call may
//! wake the process: then the call that its handler has interrupted finds the process awake, and begins again as well
//! (`farshore_dispatch`).
//!
//! # Waking
//!
//! The process wakes with all signals blocked, on a stack of ours: the others are stopped, then come the steps of start-up
//! ([`crate::dispatch::start`]), then the stock is taken. What the program has mapped meanwhile, as far as it is still private anonymous
//! memory, is registered, and each page that is there becomes resident and dirty ([`Engine::take_stock`]). Huge pages are split, since
//! their halves must be able to leave. Then the others go on; each gives itself what a thread of an awake process has
//! ([`process::stand_up`]).
//!
//! Where waking fails (no descriptor is left, no userfaultfd is allowed any more) the program goes on with what fits: memory
//! beyond the limit is refused, as by a kernel that has none (`ENOMEM`; `EAGAIN` for a thread or a fork). Where a thread cannot be
//! stopped in time (it waits for a disk that does not answer, or a debugger holds it), a mapping is allowed beyond the limit, and the
//! next one tries again; other calls wait.
//!
//! [`Engine::take_stock`]: farshore_engine::Engine::take_stock

mod called;
mod watch;

use crate::dispatch::start::{self, Begun};
use crate::ground::net;
use crate::ground::ranges::{self, Ranges};
use crate::ground::runtime::uninterrupted;
use crate::ground::sleeping::{self, Stopped};
use crate::ground::small::Small;
use crate::ground::{count, files, mappings, parts, report, text, thread};
use crate::memory;
use crate::memory::{attributes, surrender};
use crate::{family, process, signals};
use farshore_backend::AnyBackend;
use farshore_backend::file::can_be_made;
use farshore_catch::entry::{self, Call};
use farshore_catch::patch;
use farshore_config::control::WAKER;
use farshore_config::{FaultMode, Options, SwapSpec};
use farshore_core::halt::{Round, State};
use farshore_core::limits::PAGE_SIZE;
use farshore_net::calls::keepers;
use farshore_sys::lock::Mutex;
use farshore_sys::pagemap::Pagemap;
use farshore_sys::raw::{Errno, nr, syscall};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::vm::{self, map, prot};
use watch::Need;

/// How long a mapping waits for threads that do not stop, ns. Then it is allowed beyond the limit.
const PATIENCE_NS: u64 = 1_000_000_000;

/// What a dormant process knows of itself.
struct Sleeper {
    begun: Begun,
    /// Mappings that would be managed if the process were awake.
    mapped: Ranges,
    /// What of them nobody can touch yet, and so does not count.
    reserved: Ranges,
    /// Mappings below the threshold. They count when they add up.
    small: Small,
    /// The break at the start, and now.
    heap: (u64, u64),
    /// What of the limit is there for the program's pages when the process wakes, bytes. Where it shares the limit: its share, so far.
    room: u64,
    /// What our handlers have taken the place of.
    called: called::Before,
}

impl Sleeper {
    /// Whether `more` bytes could be more than there is room for, and than the family has to give.
    fn exceeds(&mut self, more: u64) -> bool {
        let heap = self.heap.1.saturating_sub(self.heap.0);
        let small = if self.small.add_up(&self.begun.options) { self.small.there().bytes() } else { 0 };
        let counted = self.mapped.bytes().saturating_sub(self.reserved.bytes()).saturating_add(small);
        let beyond = counted.saturating_add(heap).saturating_add(more).saturating_sub(self.room);
        if beyond == 0 {
            return false;
        }
        let grows = family::grow(beyond);
        if grows {
            self.room += beyond;
        }
        !grows
    }

    /// `start..end` is unmapped, or something else is mapped there.
    fn forget(&mut self, start: u64, end: u64) {
        self.mapped.remove(start, end);
        self.reserved.remove(start, end);
        self.small.forget(start, end);
    }
}

/// Used with all signals blocked.
static SLEEPER: Mutex<Option<Sleeper>> = Mutex::new(None);

/// Runs `f` on the dormant process's state, with all signals blocked. `None`: the process is not dormant (any more).
fn with<R>(f: impl FnOnce(&mut Sleeper) -> R) -> Option<R> {
    // With all signals blocked, and its call not ended, this thread does not stand still: the process stays dormant meanwhile.
    uninterrupted(|| SLEEPER.with(|sleeper| sleeper.as_mut().filter(|_| sleeping::is_dormant()).map(f)))
}

/// Begins dormant, if the program can be: at start-up. Returns `begun` if it cannot.
///
/// # Errors
/// `begun`, with which start-up goes on.
pub fn begin(begun: Begun, maps: &patch::Maps) -> Result<(), Box<Begun>> {
    // Files with a name and devices belong to a run from its start to its end, so that no other takes them.
    let can_wait = |options: &Options| {
        options.family.as_ref().is_none_or(|family| family.devices.is_empty())
            && options.fault == FaultMode::Upcall
            && !options.trace
            && !options.memory_merge
            && options.swap.iter().all(|space| space.is_directory() || space.is_memory())
    };

    if !can_wait(&begun.options) || !start::has_one_task() {
        return Err(Box::new(begun));
    }
    let filtered = has_filter();
    let elsewhere = |number| watch::must_be_seen_elsewhere(number, filtered);
    if patch::others_may_call(maps, patch::DEFAULT_NAMES, &elsewhere) {
        return Err(Box::new(begun));
    }
    // A reason to refuse the program must show now.
    if parts::policy(&begun.options).is_err() || parts::open_uffd(&begun.options).is_err() || !can_be_had(&begun.options) {
        return Err(Box::new(begun));
    }
    let Ok(stack) = entry::asleep::new_stack() else { return Err(Box::new(begun)) };
    // Before calls are patched: what it keeps decides which must be seen.
    let share = match begun.options.family {
        Some(_) => family::join_asleep(&begun.options),
        None => {
            // Its seat in a budget.
            sleeping::keep(family::own_fds());
            Ok(None)
        }
    };
    let Ok(share) = share else { return Err(Box::new(begun)) };
    let mut room = share.unwrap_or_else(|| start::room(&begun.options));
    let mut mapped = Ranges::default();
    begun.statics.iter().for_each(|array| mapped.add(array.start, array.end));
    let beyond = mapped.bytes().saturating_sub(room);
    if beyond > 0 && !family::grow(beyond) {
        return Err(Box::new(begun));
    }
    room += beyond;
    // Patched calls are served on it from now on, also if the process does not become dormant.
    let Ok(()) = called::begin(stack) else { return Err(Box::new(begun)) };
    watch::unseen().for_each(entry::asleep::make_natively);
    // SAFETY: start-up: there is one thread, and the dispatcher passes every call on until the state changes; `maps` was read at
    // the start of ours.
    let report = unsafe { patch::patch(maps, patch::DEFAULT_NAMES, &watch::is_watched, patch::Way::Asleep) };
    if report.files < 2 || report.unknown > 0 || report.escapes.iter().any(|&number| watch::must_be_seen(number)) {
        return Err(Box::new(begun));
    }
    // Somebody may ask as soon as the handler is there, and it would find a process that does not sleep.
    let blocked = signal::sigprocmask(How::Block, SigSet::EMPTY.with(WAKER));
    let listens = match called::listen() {
        Ok(called) => {
            let can_stop = called.can_stop();
            let floor = begun.heap_floor;
            let sleeper = Sleeper {
                begun,
                mapped,
                reserved: Ranges::default(),
                small: Small::default(),
                heap: (floor, floor),
                room,
                called,
            };
            // A watched call that comes meanwhile finds that nothing is there to be woken yet.
            SLEEPER.with(|place| *place = Some(sleeper));
            sleeping::sleep(can_stop);
            Ok(())
        }
        Err(_) => Err(Box::new(begun)),
    };
    if !blocked.contains(WAKER) {
        signal::sigprocmask(How::Unblock, SigSet::EMPTY.with(WAKER));
    }
    listens
}

/// Whether the swap space can be had now, and the key that it may need. The command has looked at directories; a program that another one
/// starts may have other ones.
fn can_be_had(options: &Options) -> bool {
    let is_there = |space: &SwapSpec| if options.followed { can_be_made(space) } else { space.is_directory() };
    let is_seen = !options.encrypt && options.swap.iter().all(is_there);
    is_seen || AnyBackend::open_with(&options.swap, options.encrypt, options.followed, None, &mut |_| {}).is_ok()
}

/// Whether the process has a filter of system calls.
fn has_filter() -> bool {
    const PR_GET_SECCOMP: u64 = 21;
    // SAFETY: asks only. (A process in strict mode never comes here: it could not make this call.)
    unsafe { syscall(nr::PRCTL, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) != 0 }
}

/// Serves a call of a dormant process; `None`: the process is awake, or the thread that wakes it makes the call.
pub fn answer(call: &mut Call) -> Option<i64> {
    match sleeping::state() {
        State::Awake => None,
        State::Halted if sleeping::is_waker() => None,
        state => {
            if state == State::Halted {
                end_of_sleep(call);
            }
            let answer = serve(call);
            entry::asleep::leave(call);
            Some(answer)
        }
    }
}

/// A call has found that the process does not sleep: another thread wakes it, or has. The call begins again in the process that is
/// awake; returns where the process sleeps on.
#[cold]
fn end_of_sleep(call: &Call) {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    if sleeping::state() == State::Awake {
        signal::sigprocmask(How::Set, mask);
        begin_again(call);
    }
    if let Some(mask) = stand(mask, call.sp) {
        // SAFETY: the frame of a call that has done nothing, by its own thread, with all signals blocked.
        unsafe { entry::go_on(call, mask) }
    }
    signal::sigprocmask(How::Set, mask);
}

fn serve(call: &mut Call) -> i64 {
    let (number, args) = (call.nr, call.args);
    match watch::need_seen(number, &args) {
        Need::Nothing => {
            // SAFETY: the program's own call: nothing is managed.
            let answer = unsafe { entry::for_program(number, &args) };
            // A handler woke the process before the call was made, or made again; or another thread did.
            if answer == entry::AGAIN && sleeping::state() == State::Awake { begin_again(call) } else { answer }
        }
        Need::Mapped => loop {
            match with(|sleeper| mapped(sleeper, number, &args, false)) {
                Some(Some(answer)) => break answer,
                Some(None) => {}
                None => {
                    end_of_sleep(call);
                    continue;
                }
            }
            match wake_for(call, Some(PATIENCE_NS)) {
                // A mapping of a file is the kernel's as well.
                Unwoken::Refused if number == nr::MMAP && args[3] & map::ANONYMOUS == 0 => break raw(number, &args),
                Unwoken::Refused => break refuse(call),
                // This is not for ever: the next mapping wakes the process, if it can then.
                Unwoken::NotInTime => match with(|sleeper| mapped(sleeper, number, &args, true)) {
                    Some(Some(answer)) => break answer,
                    // Code that was mapped wakes the process, whatever it takes.
                    _ => break wake_at_all_costs(call),
                },
            }
        },
        Need::Question => loop {
            match with(|sleeper| tell_action(&sleeper.called, &args)) {
                Some(answer) => break answer,
                None => end_of_sleep(call),
            }
        },
        Need::Apart(start, len) if is_apart(start, start.saturating_add(len)) => raw(number, &args),
        Need::Refusal => net::pinned(number, &args),
        Need::Apart(..) | Need::Awake => wake_at_all_costs(call),
        Need::End => {
            if number == nr::EXIT && !count::has_one_thread() {
                process::exit_sleeping_thread(args[0]);
            }
            let tells = with(|sleeper| sleeper.begun.options.stats.is_some());
            if tells == Some(true) { wake_at_all_costs(call) } else { report::exit(args[0]) }
        }
    }
}

/// Flags of the clone by which libc makes a thread.
const PTHREAD: u64 = 0x3d_0f00;

/// Before a call that makes a thread or a process. 0, or the error with which it fails. `mask`: the program's; it is another one for
/// the moment, by which no other thread can stop this one.
#[unsafe(no_mangle)]
extern "C" fn farshore_before_first_clone(call: &mut Call, mask: SigSet) -> i64 {
    if sleeping::state() == State::Awake {
        return 0;
    }
    if sleeping::state() != State::Refused && sleeping::may_have_threads() && is_plain_thread(call, mask) {
        sleeping::makes_thread();
        return if uninterrupted(thread::adopt_sleeper) { 0 } else { -i64::from(Errno::EAGAIN.0) };
    }
    signal::sigprocmask(How::Set, mask);
    wake_at_all_costs(call)
}

/// Whether the call makes a thread as `pthread_create` does: with thread-local storage made by libc, with all signals blocked until it
/// runs, and on a stack that is not managed when the process wakes.
fn is_plain_thread(call: &Call, mask: SigSet) -> bool {
    const CLONE: u64 = 56;
    const CLONE3: u64 = 435;
    let (flags, low, top) = match call.nr {
        CLONE => (call.args[0] & 0xffff_ffff, call.args[1].saturating_sub(1), call.args[1]),
        CLONE3 => {
            // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls.
            let mut words = [0u64; 8];
            let bytes = size_of_val(&words) as u64;
            // SAFETY: as many bytes of ours; what cannot be read is no such call.
            let read = unsafe { net::farshore_read_program(words.as_mut_ptr().cast(), call.args[0], bytes) };
            let [flags, .., stack, size, _] = words;
            (if read && call.args[1] >= bytes { flags } else { 0 }, stack, stack.saturating_add(size))
        }
        _ => return false,
    };
    flags == PTHREAD && mask.contains(sleeping::SIGNAL) && is_apart(low, top)
}

/// Whether `start..end` (the stack of a thread that is about to begin, or what the kernel will write) is not managed when the process wakes. Pages of a small
/// mapping are left out, for good, of those that would be.
fn is_apart(start: u64, end: u64) -> bool {
    with(|sleeper| {
        let apart = !sleeper.mapped.touches(start, end) && (end <= sleeper.heap.0 || sleeper.heap.1 <= start);
        if apart {
            sleeper.small.forget(start & !(PAGE_SIZE as u64 - 1), end.next_multiple_of(PAGE_SIZE as u64));
        }
        apart
    }) == Some(true)
}

/// Begins the call again on the thread's call stack, which the thread has by now.
fn begin_again(call: &Call) -> ! {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    // SAFETY: the frame of a call that has done nothing, by its own thread.
    unsafe { entry::go_on(call, mask) }
}

/// Why a process was not woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unwoken {
    /// Something that it needs cannot be had.
    Refused,
    /// A thread did not stand still in time.
    NotInTime,
}

/// What became of an attempt to wake the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waking {
    /// The thread is one of an awake process, whose code is to have this mask.
    Awake(SigSet),
    /// The thread was one already.
    WasAwake,
    /// See [`Unwoken`].
    Not(Unwoken),
}

/// Wakes the process, and has the call begin again. Returns only where it cannot be woken.
#[cold]
fn wake_for(call: &mut Call, patience: Option<u64>) -> Unwoken {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    match wake(mask, call.sp, patience) {
        // SAFETY: as in `begin_again`. All signals are blocked since the call before.
        Waking::Awake(mask) => unsafe { entry::go_on(call, mask) },
        Waking::WasAwake => {
            signal::sigprocmask(How::Set, mask);
            begin_again(call)
        }
        Waking::Not(why) => {
            signal::sigprocmask(How::Set, mask);
            why
        }
    }
}

/// The same, however long it takes. Returns the error of a call that cannot do without.
fn wake_at_all_costs(call: &mut Call) -> i64 {
    while wake_for(call, None) == Unwoken::NotInTime {}
    refuse(call)
}

/// The answer to a call that needs the process awake where it cannot be woken.
fn refuse(call: &Call) -> i64 {
    match watch::need_of(call.nr, &call.args) {
        Need::End => report::exit(call.args[0]),
        // The break as it is: this call has no errors. SAFETY: asks only.
        _ if call.nr == nr::BRK => unsafe { vm::brk(0) as i64 },
        _ if watch::makes_a_thread(call.nr) => -i64::from(Errno::EAGAIN.0),
        _ => -i64::from(Errno::ENOMEM.0),
    }
}

/// Wakes a dormant process, from a function that the program has called.
pub fn wake_now() {
    if sleeping::state() != State::Awake {
        let mask = signal::sigprocmask(How::Set, SigSet::ALL);
        let here = core::ptr::from_ref(&mask) as u64;
        let after = match wake(mask, here, None) {
            Waking::Awake(mask) => mask,
            _ => mask,
        };
        signal::sigprocmask(How::Set, after);
    }
}

/// Wakes the process, with all signals blocked, for code that had the signal mask `mask`; something of ours lies at `stack` on
/// the program's stack.
fn wake(mask: SigSet, stack: u64, patience: Option<u64>) -> Waking {
    loop {
        match sleeping::state() {
            State::Awake => return Waking::WasAwake,
            State::Refused => return Waking::Not(Unwoken::Refused),
            State::Halted => {
                if let Some(mask) = stand(mask, stack) {
                    return Waking::Awake(mask);
                }
            }
            State::Dormant => {
                if let Some(round) = sleeping::begin() {
                    return rise(round, mask, stack, patience);
                }
            }
        }
    }
}

/// What a handler of ours finds that has stopped a thread.
struct Called {
    /// The process is awake now.
    awake: bool,
    /// The number of the call that it has ended.
    number: Option<u64>,
}

/// In a handler of ours that has interrupted code with this mask: the thread stands still for another one, or wakes the process if
/// `to_wake` says so. `site`: behind which `syscall` of the program's it stands, which has ended with `EINTR`.
fn called(to_wake: bool, mask: SigSet, context: u64, site: Option<u64>) -> Called {
    match sleeping::state() {
        State::Awake => report::abort(format_args!("bug: a thread has not stood still while the process woke")),
        State::Halted => {
            let (state, number) = sleeping::stand(context, site);
            let awake = state == State::Awake;
            if awake {
                process::stand_up(mask);
            }
            Called { awake, number }
        }
        // A round was given up before this thread could stand still; or somebody asks.
        State::Dormant | State::Refused => {
            // This must be read before a jump lies over it.
            let number = site.and_then(patch::number_before);
            let awake = to_wake && matches!(wake(mask, context, Some(PATIENCE_NS)), Waking::Awake(_));
            Called { awake, number }
        }
    }
}

/// The calling thread stands still while another one wakes the process. The mask that it goes on with; `None`: the process is still
/// dormant. With all signals blocked.
fn stand(mask: SigSet, stack: u64) -> Option<SigSet> {
    let (state, _) = sleeping::stand(stack, None);
    (state == State::Awake).then(|| process::stand_up(mask))
}

fn rise(round: Round, mask: SigSet, stack: u64, patience: Option<u64>) -> Waking {
    let stopped = sleeping::stop_others(round, patience);
    let others = sleeping::look_at_all(round, patch::numbers_before);
    let (state, waking) = match stopped {
        Stopped::NotInTime => (State::Dormant, Waking::Not(Unwoken::NotInTime)),
        Stopped::Unknown => refused("/proc/self/status cannot be read, which tells how many threads there are"),
        Stopped::All => {
            let stacks: Vec<u64> = others.into_iter().chain([stack]).collect();
            match rise_alone(mask, &stacks) {
                Ok(mask) => (State::Awake, Waking::Awake(mask)),
                Err(why) => refused(&why),
            }
        }
    };
    sleeping::end(round, state);
    waking
}

fn refused(why: &str) -> (State, Waking) {
    report::line(format_args!(
        "{why}; the program goes on with what fits its limit, without more threads, forks and other programs"
    ));
    (State::Refused, Waking::Not(Unwoken::Refused))
}

/// Wakes the process. No other thread runs, and all signals are blocked.
fn rise_alone(mask: SigSet, stacks: &[u64]) -> Result<SigSet, String> {
    // Libraries that waking calls set the program's errno. SAFETY: libc's own word of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let risen = SLEEPER.with(|sleeper| {
        let sleeper = sleeper.as_ref().ok_or("bug: nothing is known of a dormant process")?;
        let no_memory = || Err("no memory for the record of a thread".to_owned());
        thread::stand_up(|_| stand_up(sleeper, mask, stacks)).unwrap_or_else(no_memory)
    });
    // SAFETY: as above.
    unsafe { *errno = before };
    risen
}

/// Wakes the process, on a stack of ours, with a record of the thread.
fn stand_up(sleeper: &Sleeper, mask: SigSet, stacks: &[u64]) -> Result<SigSet, String> {
    let Sleeper { begun, mapped, small, heap, called, .. } = sleeper;
    // While it can be refused.
    let pagemap = Pagemap::open()
        .map_err(|why| format!("/proc/self/pagemap cannot be opened, which tells which pages are there ({why:?})"))?;
    called.put_back();
    let told = keepers::may_have_been_told(net::net());
    let runtime = start::rise(begun.clone(), mask)?;
    if told {
        surrender::from_the_beginning();
    } else {
        // Something may be mapped in the middle of the heap.
        let mut all = mapped.clone();
        if !begun.statics.is_empty() {
            let plain = attributes::plain_parts(&begun.statics);
            let peculiar = begun.statics.iter().flat_map(|array| ranges::without(array.clone(), &plain));
            peculiar.for_each(|part| all.remove(part.start, part.end));
        }
        all.add(heap.0.next_multiple_of(PAGE_SIZE as u64), heap.1.next_multiple_of(PAGE_SIZE as u64));
        let add_up = small.add_up(&begun.options);
        if add_up {
            small.there().iter().for_each(|range| all.add(range.start, range.end));
        }
        runtime.space.with(|space| space.small = if add_up { Small::managed() } else { small.clone() });
        memory::take_stock(runtime, &pagemap, &mappings::mappings(), all.iter(), stacks);
    }
    text::catch_calls();
    start::look_after(runtime);
    Ok(SigSet(mask.0 & !thread::pending::OURS.0))
}

/// Makes a call that changes mappings, with all signals blocked. `None`: the call must wake the process. `beyond`: more than there is
/// room for is allowed.
fn mapped(sleeper: &mut Sleeper, number: u64, args: &[u64; 6], beyond: bool) -> Option<i64> {
    let room = sleeper.room;
    if beyond {
        sleeper.room = u64::MAX;
    }
    let answer = match number {
        nr::MMAP => mmap(sleeper, args),
        nr::MUNMAP => munmap(sleeper, args),
        nr::MPROTECT => mprotect(sleeper, args),
        nr::MREMAP => mremap(sleeper, args),
        _ => brk(sleeper, args[0]),
    };
    sleeper.room = room;
    answer
}

fn munmap(sleeper: &mut Sleeper, args: &[u64; 6]) -> Option<i64> {
    let answer = raw(nr::MUNMAP, args);
    if answer == 0 {
        sleeper.forget(args[0], args[0].saturating_add(rounded(args[1])?));
    }
    Some(answer)
}

/// Memory that was reserved counts from when it can be touched (an allocator's arenas).
fn mprotect(sleeper: &mut Sleeper, args: &[u64; 6]) -> Option<i64> {
    let [start, len, protection, ..] = *args;
    let Some(end) = rounded(len).and_then(|bytes| start.checked_add(bytes)) else { return Some(raw(nr::MPROTECT, args)) };
    if protection == prot::NONE {
        // What is there already stays.
        return Some(raw(nr::MPROTECT, args));
    }
    // Small ones count from the start, but may exceed the room only now.
    let opens = sleeper.small.there().touches(start, end) && sleeper.small.add_up(&sleeper.begun.options);
    if opens && sleeper.exceeds(0) {
        return None;
    }
    let before = sleeper.reserved.bytes();
    let mut reserved = sleeper.reserved.clone();
    reserved.remove(start, end);
    if before != reserved.bytes() && sleeper.exceeds(before - reserved.bytes()) {
        return None;
    }
    let answer = raw(nr::MPROTECT, args);
    // A call that fails may have changed a part.
    sleeper.reserved = reserved;
    Some(answer)
}

/// Answers an `rt_sigaction` without a new action: with the action that the program would find natively.
fn tell_action(before: &called::Before, args: &[u64; 6]) -> i64 {
    let action = &before.action(args[0]);
    let answer = raw(nr::RT_SIGACTION, args);
    if answer == 0 && args[2] != 0 {
        let told = core::ptr::with_exposed_provenance_mut::<[u64; 4]>(args[2] as usize);
        // SAFETY: the kernel has just written an action there, for which the program has made room.
        unsafe { told.write_unaligned(signals::to_words(action)) };
    }
    answer
}

fn raw(number: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: the program's own call with its own arguments; nothing is managed.
    unsafe { syscall(number, *args) }
}

fn rounded(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE_SIZE as u64)
}

fn mmap(sleeper: &mut Sleeper, args: &[u64; 6]) -> Option<i64> {
    let [addr, len, protection, flags, ..] = *args;
    let fixed = flags & map::FIXED != 0;
    let Some(bytes) = rounded(len) else { return Some(raw(nr::MMAP, args)) };
    let counts = memory::would_manage(&sleeper.begun.options, args);
    let small = memory::is_small(&sleeper.begun.options, args);
    let reserves = protection == prot::NONE;
    if !reserves && (counts || small && sleeper.small.add_up(&sleeper.begun.options)) && sleeper.exceeds(bytes) {
        return None;
    }
    if sleeper.room != u64::MAX && files::may_take(&sleeper.begun.options, args) {
        // It is managed from the start: a mapping that the process has used already could not be taken over in one moment.
        return None;
    }
    let mut args = *args;
    if counts {
        args[0] = memory::hint(addr, flags);
    }
    let answer = raw(nr::MMAP, &args);
    if memory::is_error(answer) {
        return Some(answer);
    }
    let (start, end) = (answer as u64, answer as u64 + bytes);
    if protection & prot::EXEC != 0 && (protection & prot::READ == 0 || may_call(start, bytes, args[4], args[5])) {
        // It is mapped again when the process is awake, at the same place if the program has named one.
        if !fixed {
            raw(nr::MUNMAP, &[start, bytes, 0, 0, 0, 0]);
        }
        return None;
    }
    sleeper.forget(start, end);
    if counts {
        sleeper.mapped.add(start, end);
        if reserves {
            sleeper.reserved.add(start, end);
        }
    } else if small {
        sleeper.small.note(start, end);
    }
    Some(answer)
}

/// Whether the file text that was just mapped may make calls by instructions of its own. The mapping must be readable; the file
/// may end before it.
fn may_call(start: u64, bytes: u64, fd: u64, offset: u64) -> bool {
    const FSTAT: u64 = 5;
    let mut stat = [0u64; 18];
    // SAFETY: `struct stat`, of 144 bytes.
    let answer = unsafe { syscall(FSTAT, [fd, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    let size = if answer == 0 { stat[6] } else { 0 };
    let end = start + bytes.min(size.saturating_sub(offset).next_multiple_of(PAGE_SIZE as u64));
    // SAFETY: readable as far as the file goes.
    unsafe { patch::has_syscalls(start..end) }
}

fn mremap(sleeper: &mut Sleeper, args: &[u64; 6]) -> Option<i64> {
    let [old, old_len, new_len, ..] = *args;
    let (Some(old_bytes), Some(new_bytes)) = (rounded(old_len), rounded(new_len)) else { return Some(raw(nr::MREMAP, args)) };
    let old_end = old.checked_add(old_bytes)?;
    let threshold = sleeper.begun.options.threshold.bytes();
    if old < sleeper.heap.1 && sleeper.heap.0 < old_end {
        return None;
    }
    let counted = sleeper.mapped.touches(old, old_end);
    let counts = counted || old_bytes < threshold && new_bytes >= threshold;
    if counts && new_bytes > old_bytes && sleeper.exceeds(new_bytes - old_bytes) {
        return None;
    }
    let answer = raw(nr::MREMAP, args);
    if memory::is_error(answer) {
        return Some(answer);
    }
    let (start, end) = (answer as u64, answer as u64 + new_bytes);
    if counts {
        sleeper.forget(old, old_end);
        if counted || mappings::is_private_anonymous(start, new_bytes) {
            sleeper.mapped.add(start, end);
        }
    } else {
        sleeper.mapped.remove(start, end);
        sleeper.small.moved(old..old_end, start..end, args[3] & vm::remap::DONTUNMAP != 0);
    }
    Some(answer)
}

fn brk(sleeper: &mut Sleeper, wanted: u64) -> Option<i64> {
    if wanted > sleeper.heap.1 && sleeper.exceeds(wanted - sleeper.heap.1) {
        return None;
    }
    // SAFETY: the program's own call; nothing is managed.
    sleeper.heap.1 = unsafe { vm::brk(wanted) };
    Some(sleeper.heap.1 as i64)
}
