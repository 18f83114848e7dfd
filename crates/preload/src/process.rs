//! Threads and processes: what happens around clone, fork, exec and exit.
//!
//! | call | child's memory | child |
//! |---|---|---|
//! | `clone` of a thread | shared | gets a record, an alternate stack, and its system calls caught |
//! | `vfork`, `posix_spawn` | shared, parent sleeps | uses the parent's record (it runs on its thread pointer), system calls caught |
//! | `fork` | copied | see [`crate::fork`] |
//! | exec | new | an ordinary program: Farshore's variables were taken out of the environment at the start |

use crate::net::entry::Call;
use crate::runtime::{runtime, uninterrupted};
use crate::{fork, net, report, signals, start, thread};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_sys::raw::{nr, syscall};
use farshore_sys::signal::{self, How, SigSet};

type Args = [u64; 6];

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const SYS_EXECVE: u64 = 59;
const SYS_EXECVEAT: u64 = 322;

/// The counters have been written: at the first of several calls that end the process.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// The calls of this module, by number.
pub fn handles(number: u64) -> bool {
    report::ends(number) || matches!(number, SYS_EXECVE | SYS_EXECVEAT)
}

/// Does one of them.
pub fn call(number: u64, args: &Args) -> i64 {
    match number {
        SYS_EXECVE | SYS_EXECVEAT => exec(number, args),
        nr::EXIT => exit_thread(args),
        _ => exit_process(args),
    }
}

fn exec(number: u64, args: &Args) -> i64 {
    let mask = signals::before_exec();
    let answer = net::pinned(number, args);
    // It has failed, or we would not be here.
    signal::sigprocmask(How::Set, mask);
    answer
}

fn exit_thread(args: &Args) -> i64 {
    if thread::current().is_some_and(|t| t.vforked == 0) {
        signal::sigprocmask(How::Set, SigSet::ALL);
        net::touch_robust_list();
        if let Some(thread) = thread::current() {
            net::unpin_stack(thread);
        }
        thread::leave();
    }
    // SAFETY: ends this thread.
    unsafe { syscall(nr::EXIT, *args) }
}

fn exit_process(args: &Args) -> i64 {
    if thread::current().is_none_or(|t| t.vforked == 0) {
        report_once();
    }
    report::exit(args[0])
}

/// Writes the counters where `--stats` says.
fn report_once() {
    let Some(runtime) = runtime() else { return };
    if runtime.forked.load(Ordering::Acquire) || REPORTED.swap(true, Ordering::AcqRel) {
        return;
    }
    uninterrupted(|| start::write_stats(runtime));
}

/// Before a call of the clone family.
#[unsafe(no_mangle)]
extern "C" fn farshore_before_clone(flags: u64, call: &Call) -> i64 {
    net::pin_clone_words(call);
    if flags & CLONE_VM == 0 {
        fork::before();
    } else if flags & CLONE_VFORK != 0
        && let Some(thread) = thread::current()
    {
        thread.vforked += 1;
    }
    0
}

/// In the parent, after the call.
#[unsafe(no_mangle)]
extern "C" fn farshore_parent_after_clone(_result: i64) {
    if fork::is_pending() {
        fork::parent_after();
    } else if let Some(thread) = thread::current()
        && thread.vforked > 0
    {
        thread.vforked -= 1;
    }
}

/// In the child, before it runs any code of the program.
#[unsafe(no_mangle)]
extern "C" fn farshore_child_started(flags: u64) {
    if flags & CLONE_VM == 0 {
        fork::child_started();
    } else if flags & CLONE_VFORK == 0 {
        let adopted = uninterrupted(|| thread::adopt(false).is_some());
        if !adopted {
            report::abort(format_args!("no memory for the record of a new thread"));
        }
    }
    // A new thread starts without; so does a vforked child.
    start::catch_system_calls();
}
