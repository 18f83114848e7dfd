//! Threads and processes: what happens around clone, fork, exec and exit.
//!
//! | call | child's memory | child |
//! |---|---|---|
//! | `clone` of a thread | shared | gets a record, an alternate stack, and its system calls caught |
//! | `vfork`, `posix_spawn` | shared, parent sleeps | gets a record (in its parent's place: it runs on its thread pointer), system calls caught |
//! | `clone` of a process with `CLONE_VM` | shared | as a thread |
//! | `fork` | copied | see [`crate::process::fork`] |
//! | exec | new | under Farshore too, if it can be and `--no-follow` was not asked for ([`follow`]) |
//!
//! Layers: below are [`signals`] and [`family`], which a fork and an exec change too; `control`, which writes the counters at the
//! end and names the swap spaces for a child; and the ground.

pub mod filters;
mod fork;
mod robust;

use crate::control::counters;
use crate::ground::own_threads::{self, knock, rights};
use crate::ground::runtime::{Runtime, runtime, uninterrupted};
use crate::ground::thread::{Thread, Whose};
use crate::ground::{count, net, report, sleeping, text, thread, unithreads};
use crate::{family, signals};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_catch::entry::{self, Call};
use farshore_core::limits::PAGE_SIZE;
use farshore_net::buffers::{self, Memory as _};
use farshore_net::calls::follow::Starter;
use farshore_net::calls::{exec, follow};
use farshore_sys::hosted::is_hosted;
use farshore_sys::raw::{Errno, getpid, gettid, nr, syscall};
use farshore_sys::signal::{self, How, SigSet};
use farshore_sys::thread::Home;

type Args = [u64; 6];

const CLONE_VM: u64 = 0x100;
const CLONE_FILES: u64 = 0x400;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x10000;
const CLONE_SETTLS: u64 = 0x80000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const SYS_CLONE3: u64 = 435;
/// What is taken for the stack if a call names its top only.
const STACK_GUESS: u64 = 256 << 10;
/// Static thread-local storage lies between the stack's top and the thread pointer: at most so many bytes.
const TLS_MAX: u64 = 1 << 20;
/// What libc keeps behind the thread pointer, at least (glibc 2.36: 2,304 bytes).
const THREAD_BYTES: u64 = 2304;
const SYS_EXECVE: u64 = 59;
const SYS_EXECVEAT: u64 = 322;
const SYS_STAT: u64 = 4;
const SYS_LSTAT: u64 = 6;
const SYS_NEWFSTATAT: u64 = 262;
const SYS_STATX: u64 = 332;

/// What a new thread inherits: [`signals::inheritance`]'s bits, then this one for [`thread::Whose`], then the state of its rights.
const AS_GUEST: i64 = 1 << 3;
const FOR_RIGHTS: u32 = 4;
/// All of it.
const INHERITED: u32 = (1 << entry::GIVEN_BITS) - 1;

/// The counters have been written: at the first of several calls that end the process.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// The calls of this module, by number.
pub fn handles(number: u64) -> bool {
    report::ends(number) || matches!(number, SYS_EXECVE | SYS_EXECVEAT) || rights::may_change(number) || asks_for_status(number)
}

/// Does one of them. Not inlined: what `exec` needs of the stack would lie in the frame of every call.
#[inline(never)]
pub fn call(number: u64, args: &Args) -> i64 {
    match number {
        SYS_EXECVE | SYS_EXECVEAT => execute(number, args),
        nr::EXIT => exit_thread(args),
        _ if rights::may_change(number) => change_rights(number, args),
        _ => match path_of_status(number) {
            Some(path) => status(number, args, args[path]),
            None => exit_process(args),
        },
    }
}

/// A call that may change the rights of the calling thread: threads of ours never have more than the program.
fn change_rights(number: u64, args: &Args) -> i64 {
    let not_ours = thread::current().is_none_or(Thread::is_guest);
    let ready = match (rights::changes_user(number) && !not_ours).then(family::may_leave).transpose() {
        Ok(ready) => ready.flatten(),
        Err(why) => return -i64::from(why.0),
    };
    let answer = rights::change(number, args, || net::pinned(number, args), || order_rights(number, args));
    if let (0.., Some(ready), Some(runtime)) = (answer, ready, runtime()) {
        uninterrupted(|| family::leave(runtime, ready));
        family::name_socket();
    }
    if let (0.., false, Some(runtime)) = (answer, not_ours, runtime()) {
        family::joint::leave(runtime);
    }
    answer
}

/// Whether a call asks for the status of a file by its path. Nothing is to be done before it where there are no threads of ours.
pub const fn asks_for_status(number: u64) -> bool {
    path_of_status(number).is_some()
}

/// Which argument of such a call the path is.
const fn path_of_status(number: u64) -> Option<usize> {
    match number {
        SYS_STAT | SYS_LSTAT => Some(0),
        SYS_NEWFSTATAT | SYS_STATX => Some(1),
        _ => None,
    }
}

/// The status of a file. Sandboxes count the threads of their process so, by the links of `/proc/self/task`, and insist on one: ours end before
/// such a look of a program with one thread, as before a call that the kernel allows to one thread alone ([`rights`]).
fn status(number: u64, args: &Args, path: u64) -> i64 {
    let can_end = || rights::has_threads() && rights::can_be_made_again() && count::has_one_thread() && !thread::is_guest();
    let is_below = matches!(number, SYS_NEWFSTATAT | SYS_STATX) && args[0] as i32 >= 0;
    let Some(runtime) = runtime().filter(|_| can_end() && is_list_of_threads(path, is_below)) else {
        return net::pinned(number, args);
    };
    uninterrupted(|| own_threads::stop(runtime));
    let answer = net::pinned(number, args);
    own_threads::go_on(runtime);
    answer
}

/// Whether the program's string at `path` names a list of threads: `/proc/self/task`, or `self/task/` below a directory that is open (`is_below`).
fn is_list_of_threads(path: u64, is_below: bool) -> bool {
    // `/proc/4194304/task/` is the longest, with its zero; a string may end where memory does.
    let mut text = [0u8; 24];
    let first = (PAGE_SIZE - path as usize % PAGE_SIZE).min(text.len());
    let (head, rest) = text.split_at_mut(first);
    for (part, from) in [(head, path), (rest, path.wrapping_add(first as u64))] {
        // SAFETY: room for as many bytes as the part has.
        let read = unsafe { net::farshore_read_program(part.as_mut_ptr(), from, part.len() as u64) };
        if !read || part.contains(&0) {
            break;
        }
    }
    let Some(end) = text.iter().position(|&byte| byte == 0) else { return false };
    let name = text[..end].strip_suffix(b"/").unwrap_or(&text[..end]);
    match name.strip_prefix(b"/proc/") {
        Some(rest) => rest.ends_with(b"/task"),
        None => is_below && !name.starts_with(b"/") && (name == b"task" || name.ends_with(b"/task")),
    }
}

/// Threads of ours are told to make the same call.
fn order_rights(number: u64, args: &Args) {
    const SETGROUPS: u64 = 116;
    const CAPSET: u64 = 126;
    const GROUPS_MAX: usize = 65536;
    let copy = |from: u64, bytes: usize| {
        let mut words = vec![0u32; bytes.div_ceil(4)];
        // SAFETY: as many bytes as the kernel has just read there, to memory of ours that has room.
        let read = unsafe { net::farshore_read_program(words.as_mut_ptr().cast(), from, bytes as u64) };
        if !read {
            report::abort(format_args!("bug: what call {number} has read is gone"));
        }
        words
    };
    match number {
        SETGROUPS => {
            let groups = copy(args[1], (args[0] as usize).min(GROUPS_MAX) * 4);
            rights::order(number, [args[0], groups.as_ptr() as u64, 0, 0, 0, 0]);
        }
        CAPSET => {
            // For the calling thread itself: version, and no thread's number; then two or one set of three words.
            let mut header = copy(args[0], 8);
            let sets = if header.first() == Some(&0x1998_0330) { 1 } else { 2 };
            let data = copy(args[1], sets * 12);
            header[1] = 0;
            rights::order(number, [header.as_ptr() as u64, data.as_ptr() as u64, 0, 0, 0, 0]);
        }
        _ => rights::order(number, *args),
    }
}

fn execute(number: u64, args: &Args) -> i64 {
    // The process that the command became keeps the task of writing the counters, whatever program it becomes.
    let starter = |plan| Starter { plan, is_first: of_the_program().is_some(), filtered: filters::forbids_starts() };
    let prepared = match exec::prepare(net::net(), number, args, follow::plan().map(starter)) {
        Ok(prepared) => prepared,
        Err(error) => return error,
    };
    if let Some(runtime) = of_the_program().filter(|_| !prepared.is_followed() && can_exec(number, args)) {
        // The last moment to do it. `REPORTED` stays: should the exec fail, the counters go on.
        uninterrupted(|| counters::write_stats(runtime));
    }
    // A knock that came in the middle would find no handler. (The socket is not a guest's.)
    let own = thread::current().is_some_and(|t| !t.is_guest()) && !own_threads::are_there();
    if own {
        knock::disarm();
    }
    let mask = signals::before_exec();
    let answer = prepared.call(report::line);
    if own
        && knock::arm()
        && let Some(runtime) = runtime()
    {
        own_threads::ensure_now(runtime);
    }
    // It has failed, or we would not be here.
    signal::sigprocmask(How::Set, mask);
    answer
}

fn exit_thread(args: &Args) -> i64 {
    if thread::current().is_some_and(|t| t.counted.get()) && count::one_less() {
        // The status of the last thread is the process' natively too.
        robust::give_up_all();
        return exit_process(args);
    }
    let (mut storage, mut record) = (None, None);
    if thread::current().is_some_and(|t| t.whose.get() != Whose::Vforked) {
        // The list is the program's, and may be anything: what reads it needs its signals.
        signal::sigprocmask(How::Set, SigSet::ALL.without(signal::SIGBUS).without(signal::SIGSEGV));
        robust::give_up_all();
        signal::sigprocmask(How::Set, SigSet::ALL);
        if let Some(thread) = thread::current() {
            net::unpin_all(thread);
            storage = thread.storage.take();
        }
        if let Some(runtime) = runtime().filter(|_| !thread::is_guest()) {
            rights::are_left_by_this_thread(runtime);
        }
        record = thread::leave();
    }
    if let Some((addr, len)) = storage.map(|home| home.memory()) {
        // SAFETY: this thread's alone, which uses no thread-local storage any more.
        unsafe { syscall(nr::MUNMAP, [addr, len, 0, 0, 0, 0]) };
    }
    thread::exit(record, args[0])
}

/// Ends the calling thread in a dormant process, where others run. Returns if it is the last one.
pub fn exit_sleeping_thread(status: u64) {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    if count::one_less() {
        count::one_more();
        signal::sigprocmask(How::Set, mask);
        return;
    }
    if gettid() == getpid() {
        sleeping::main_leaves();
    }
    thread::exit(thread::leave(), status)
}

/// The calling thread stood still while another one woke the process: it gets what a thread of an awake process has. `mask` is the
/// program's. Returns the mask that the program's code is to have. With all signals blocked.
pub fn stand_up(mask: SigSet) -> SigSet {
    let risen = thread::stand_up(|thread| {
        thread.counted.set(true);
        signals::adopt_mask(thread, Some(mask));
        text::catch_calls();
        Ok::<_, core::convert::Infallible>(())
    });
    if risen.is_none() {
        report::abort(format_args!("bug: a thread of a dormant process has no record"));
    }
    SigSet(mask.0 & !thread::pending::OURS.0)
}

/// Whether the program to be executed is there: shells and libc try one directory after the other.
fn can_exec(number: u64, args: &Args) -> bool {
    const ACCESS: u64 = 21;
    const FACCESSAT: u64 = 269;
    const MAY_EXECUTE: u64 = 1;
    const AT_EMPTY_PATH: u64 = 0x1000;
    match number {
        SYS_EXECVE => net::pinned(ACCESS, &[args[0], MAY_EXECUTE, 0, 0, 0, 0]) == 0,
        _ => args[4] & AT_EMPTY_PATH != 0 || net::pinned(FACCESSAT, &[args[0], args[1], MAY_EXECUTE, 0, 0, 0]) == 0,
    }
}

fn exit_process(args: &Args) -> i64 {
    if let Some(runtime) = of_the_program().filter(|_| !REPORTED.swap(true, Ordering::AcqRel)) {
        // Where `--stats` says.
        uninterrupted(|| {
            counters::write_stats(runtime);
            counters::advise(runtime);
        });
    }
    report::exit(args[0])
}

/// The runtime, unless this is a child: one that shares the program's memory, or a fork.
fn of_the_program() -> Option<&'static Runtime> {
    runtime().filter(|r| !thread::is_guest() && r.first)
}

/// Before a call of the clone family.
#[unsafe(no_mangle)]
extern "C" fn farshore_before_clone(flags: u64, call: &Call) -> i64 {
    // Before all that waits for pages; and a vforked child's parent ends no fetch.
    unithreads::settle();
    net::pin_clone_words(call);
    if flags & CLONE_CHILD_CLEARTID != 0 {
        keep_end_word(call);
    }
    if flags & CLONE_VM == 0 {
        if filters::forbids_forks() {
            return -i64::from(Errno::EAGAIN.0);
        }
        // The child begins on it before it can serve a fault.
        keep_stack_local(flags, call);
        return fork::before(flags);
    }
    if flags & CLONE_VFORK == 0 {
        keep_stack_local(flags, call);
    }
    let guest = begins_as_guest(flags);
    if flags & CLONE_VFORK != 0
        && let Some(runtime) = runtime().filter(|_| !thread::is_guest())
    {
        family::leave_room(runtime);
    }
    if guest && let Some(runtime) = runtime() {
        own_threads::ensure_for_guest(runtime, flags & CLONE_VFORK != 0);
    } else if !guest {
        // Now, not when it begins: its parent may end before that.
        count::one_more();
    }
    let rights = thread::current().map_or(0, |thread| thread.shared.rights()) << FOR_RIGHTS & INHERITED;
    i64::from(rights) | if guest { AS_GUEST } else { 0 } | signals::inheritance()
}

/// Whether what a call with these flags makes, which shares the memory, is not of the process that it belongs to.
fn begins_as_guest(flags: u64) -> bool {
    flags & CLONE_THREAD == 0 || flags & CLONE_VFORK != 0 || thread::is_guest()
}

/// The word that the kernel clears when the new thread ends, and at which it wakes others, stops being managed: a thread that
/// ends takes no faults. (libc's lies in the thread's storage, which never is.)
fn keep_end_word(call: &Call) {
    let word = if call.nr == SYS_CLONE3 {
        // struct clone_args: flags, pidfd, child_tid.
        let words = buffers::read_once::<[u64; 3]>(net::net(), call.args[0]);
        words.map_or(0, |words| words[2])
    } else {
        call.args[3]
    };
    if word != 0 {
        net::net().keep(word, 4);
    }
}

/// A new thread's stack, and its thread-local storage above, stop being managed if the program has taken them from
/// managed memory (`pthread_attr_setstack`; libc's own stacks never are).
///
/// The thread runs on it before it has an alternate stack to take faults on, and Farshore's code with signals blocked;
/// and the kernel writes there at any time (`rseq`, the futex at the thread's end), without an error that we could mend.
fn keep_stack_local(flags: u64, call: &Call) {
    if runtime().is_none() {
        return;
    }
    let Some((start, end)) = stack_of(flags, call) else { return };
    net::net().keep(start, end - start);
}

/// Where a new thread's stack begins, and where its stack or thread-local storage ends.
fn stack_of(flags: u64, call: &Call) -> Option<(u64, u64)> {
    let (start, top, tls) = if call.nr == SYS_CLONE3 {
        // struct clone_args: stack, its size and the thread pointer are the words 5 to 7.
        let words = buffers::read_once::<[u64; 8]>(net::net(), call.args[0]);
        let [.., stack, size, tls] = words?;
        (stack, stack.checked_add(size)?, tls)
    } else {
        // The size is not told.
        (call.args[1].saturating_sub(STACK_GUESS), call.args[1], call.args[4])
    };
    let behind = flags & CLONE_SETTLS != 0 && (top..top.saturating_add(TLS_MAX)).contains(&tls);
    // Not further than what is surely the thread's: behind it may lie other memory of the program.
    let end = if behind { tls + THREAD_BYTES } else { top };
    (start < end).then_some((start, end))
}

/// In the parent, after the call. What was done before is undone by the same flags.
#[unsafe(no_mangle)]
extern "C" fn farshore_parent_after_clone(flags: u64, result: i64) {
    if flags & CLONE_VM == 0 {
        fork::parent_after(result);
    } else if flags & CLONE_VFORK == 0 {
        if result < 0 && !begins_as_guest(flags) {
            count::one_less();
        }
    } else if result > 0 {
        // The child has left this memory; the copies that its exec made have not.
        exec::child_is_gone(net::net(), result as u64);
        if flags & CLONE_FILES != 0 {
            follow::take_back(net::net());
        }
    }
}

/// A thread that was made without storage of its own has its parent's thread pointer, so it would take the parent's record for its own.
/// It gets a copy of the storage: `errno` and the like are its own then, and not, as natively, its parent's.
///
/// So does every thread of a hosted program: what the program's threads have of their own is not where our words are.
fn storage_apart() -> Option<Home> {
    let home = Home::new(0).ok()?;
    if is_hosted() {
        // SAFETY: fresh memory that is unmapped when the thread ends (`exit_thread`) or not at all.
        unsafe { home.move_in_hosted() }.ok()?;
        return Some(home);
    }
    // SAFETY: fresh memory that is unmapped when the thread ends (`exit_thread`) or not at all. Threads of libc's, and of ours, have that
    // much behind their pointer.
    unsafe { home.move_in(THREAD_BYTES as usize) }.ok()?;
    Some(home)
}

/// The calling thread, which shares its parent's memory, gets its record. `None`: there is no memory.
fn begin(flags: u64, given: u64, stack: u64) -> Option<()> {
    let guest = given & AS_GUEST as u64 != 0;
    let own_pointer = flags & CLONE_SETTLS != 0 && !is_hosted();
    // (With a thread pointer of its own it does not find its parent.) A parent that does not wait may have ended, and the storage to which
    // its child's pointer still leads may be gone.
    let waits = flags & CLONE_VFORK != 0 && !own_pointer;
    let parent = if waits { thread::current() } else { None };
    let parents = parent.and_then(|parent| parent.actions.get());
    let thread = if flags & CLONE_VFORK == 0 {
        let storage = if own_pointer { None } else { Some(storage_apart()?) };
        let thread = thread::adopt_on(stack, if guest { Whose::Guests } else { Whose::Owners })?;
        thread.storage.set(storage);
        thread
    } else {
        let thread = thread::adopt_on(stack, Whose::Vforked)?;
        if let Some(parent) = parent {
            // As the kernel: it keeps its parent's alternate stack.
            thread.program_stack.set(parent.program_stack.get());
            thread.rings.set(parent.rings.get());
        }
        thread
    };
    match (guest, flags & CLONE_SIGHAND != 0, flags & CLONE_THREAD != 0) {
        (false, ..) => {}
        (true, false, _) => thread::begin_actions(thread, parents),
        (true, true, true) => thread::share_actions(thread),
        (true, true, false) => thread.actions.set(parents),
    }
    thread.counted.set(!guest);
    thread.shared.set_rights(given as u32 >> FOR_RIGHTS);
    signals::inherit(thread, given);
    Some(())
}

/// In the child, before it runs any code of the program.
#[unsafe(no_mangle)]
extern "C" fn farshore_child_started(flags: u64, given: u64, stack: u64) {
    if flags & CLONE_VM == 0 {
        fork::child_started();
    } else if uninterrupted(|| begin(flags, given, stack)).is_none() {
        report::abort(format_args!("no memory for the record of a new thread"));
    }
    if flags & CLONE_CLEAR_SIGHAND != 0 {
        signals::clear_handlers();
    }
    if thread::current().is_some_and(|thread| thread.sleeps.get()) {
        // It has all signals blocked, and stands still as soon as it has not, if the process wakes meanwhile.
        return;
    }
    // A new thread starts without; so does a vforked child.
    text::catch_calls();
}
