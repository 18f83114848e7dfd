//! Filters of system calls that the program installs itself: `seccomp` and `prctl(PR_SET_SECCOMP)`.
//!
//! A filter holds for every call of a thread, also for Farshore's: the thread's faults are served on it. So Farshore first runs
//! the filter on each of its own calls ([`own`], [`farshore_net::calls::seccomp`]), with unknown arguments left open (`bpf`). If
//! the filter lets them all pass, the kernel installs it, so that it is as strong as natively. Otherwise it is refused with
//! `EINVAL`, as by a kernel without filters, and a line on stderr says which call it would stop.
//!
//! * **Threads of ours** must not be outside of a filter that the program is in. A filter of one thread among several is that
//!   thread's alone. A filter that leaves no thread of the program outside must let pass the calls of our threads too, or it is
//!   refused. Our threads get it by being made anew by a thread that has it ([`rights`]). Where it forbids new threads, they are
//!   made before it, and the kernel gives it to all threads (`SECCOMP_FILTER_FLAG_TSYNC`).
//! * A filter that stops what the control thread does is installed, and there is no control thread from then on: `farshore stat`
//!   gets no answer.
//! * A filter that stops what a forked child, or the start of a program, needs of us is installed all the same. From then on this
//!   process cannot fork (`EAGAIN`, with a line), or programs that it starts run without Farshore. Calls that may fail there count if the filter ends a thread for them.
//! * A filter that stops what an attachment of a policy needs is installed, and policies are gone from then on.
//! * A filter that stops the calls that bring huge pages in is installed, and pages are small from then on.
//! * A filter that stops the calls that see which pages are used is installed, and scans take pages away from then on. Samples of loads end with any filter.
//! * The strict mode allows only four calls, so it is always refused.
//!
//! The kernel gets Farshore's copy of the program's filter: the filter that was checked is the one that is installed. A filter
//! sees Farshore's text as the origin of calls, not the program's (`instruction_pointer`), and it sees the calls that Farshore
//! makes in place of the program's.

use crate::control::policies;
use crate::ground::net::net;
use crate::ground::own_threads::{self, rights};
use crate::ground::runtime::{locked, runtime, uninterrupted};
use crate::ground::{count, files, report, thread};
use core::sync::atomic::{AtomicBool, Ordering};
use farshore_config::SwapSpec;
use farshore_net::buffers::{Memory as _, errno};
use farshore_net::calls::seccomp::{
    FLAG_TSYNC, Instruction, Program, SET_MODE_FILTER, first_ended, first_stopped, own, own::Own,
};

/// A filter of this process stops what a forked child needs of Farshore.
static NO_FORKS: AtomicBool = AtomicBool::new(false);
/// A filter of this process stops what the start of a program under Farshore needs.
static NO_STARTS: AtomicBool = AtomicBool::new(false);

/// Whether a filter keeps this process from forking. If so, says it on stderr.
pub fn forbids_forks() -> bool {
    let forbids = NO_FORKS.load(Ordering::Relaxed);
    if forbids {
        report::line(format_args!(
            "a seccomp filter of this program stops calls that Farshore needs in a forked process: it cannot fork"
        ));
    }
    forbids
}

/// Whether a filter keeps programs that this process starts from running under Farshore.
pub fn forbids_starts() -> bool {
    NO_STARTS.load(Ordering::Relaxed)
}

/// Answers a request for the strict mode.
pub fn refuse_strict() -> i64 {
    report::line(format_args!(
        "seccomp: the strict mode is refused: it leaves no way to bring a page in; run the program without Farshore"
    ));
    errno(libc::EINVAL)
}

/// Serves the program's call to install a filter; `install` installs a copy.
pub fn set_filter(filter: &[Instruction], flags: u64, install: &mut dyn FnMut(u64) -> i64) -> i64 {
    let everywhere = flags & FLAG_TSYNC != 0;
    // A guest is a process of its own.
    let this = thread::current().filter(|thread| !thread.is_guest());
    let holds_for_ours = everywhere || this.is_none_or(|thread| uninterrupted(|| rights::would_be_left(thread)));
    // Faults make calls on sockets then. Such a space is there from the start to the end.
    let is_remote = runtime().is_some_and(|runtime| runtime.options.swap.iter().any(SwapSpec::is_remote));
    let remote: &[Own] = if is_remote { own::REMOTE } else { &[] };
    let everything = [own::ALWAYS, remote, if holds_for_ours { own::THREADS } else { &[] }];
    if let Some(stopped) = first_stopped(filter, &everything) {
        return refuse(stopped);
    }
    if let Some(runtime) = runtime() {
        // To take a file, or to give it back when it is to be written, takes calls that the filter may stop.
        locked(runtime, |_| files::decline(runtime));
    }
    if let (Some(_), Some(runtime)) = (first_stopped(filter, &[own::HUGE_PAGES]), runtime()) {
        // Pages become small before the filter holds for any thread.
        runtime.have_small_pages();
    }
    if let (Some(_), Some(runtime)) = (first_stopped(filter, &[own::WATCHES]), runtime()) {
        runtime.engine.kernel.tracking().give_up();
    }
    if let Some(runtime) = runtime().filter(|_| !thread::is_guest()) {
        // Whatever the filter says: who is in one is not sampled.
        uninterrupted(|| runtime.engine.kernel.samples().give_up());
    }
    let program = Program::of(filter);
    let Some(runtime) = runtime().filter(|_| holds_for_ours && this.is_some()) else {
        let answer = install(&raw const program as u64);
        if answer >= 0 {
            note_what_it_stops(filter);
            // Another thread of the program is outside of the filter, as Farshore's threads are.
            if let Some(runtime) = runtime() {
                uninterrupted(|| rights::has_filtered(runtime, false));
            }
        }
        return answer;
    };
    let silences = first_stopped(filter, &[own::CONTROL]).is_some();
    let stays = first_stopped(filter, &[own::FORKS]).is_some();
    if !stays && !everywhere {
        let answer = install(&raw const program as u64);
        if answer >= 0 {
            note_what_it_stops(filter);
            uninterrupted(|| {
                if silences {
                    own_threads::knock::be_silent();
                }
                rights::has_filtered(runtime, false);
            });
        }
        return answer;
    }
    let refused = || {
        report::line(format_args!(
            "seccomp: a filter is refused: it allows no new threads, and threads of Farshore's that are there cannot have it; install it for \
             all threads (SECCOMP_FILTER_FLAG_TSYNC)"
        ));
        errno(libc::EINVAL)
    };
    if !everywhere && !count::has_one_thread() {
        // Its other threads are in filters of their own.
        return refused();
    }
    if silences && !rights::can_be_made_again() && rights::has_threads() {
        return first_stopped(filter, &[own::CONTROL]).map_or(0, refuse);
    }
    if silences {
        // The thread must not be in the middle of anything when the filter comes.
        uninterrupted(|| {
            own_threads::stop(runtime);
            own_threads::knock::be_silent();
        });
    }
    if stays && !rights::make_last(runtime) {
        report::line(format_args!("seccomp: a filter is refused: it allows no new threads, and none can be made before it"));
        return errno(libc::EAGAIN);
    }
    if stays {
        own_threads::allow_readers(runtime, false);
    }
    if silences || first_stopped(filter, &[own::POLICIES]).is_some() {
        uninterrupted(|| policies::forbid(runtime));
    }
    const FLAG_NEW_LISTENER: u64 = 1 << 3;
    const FLAG_TSYNC_ESRCH: u64 = 1 << 4;
    // With a listener the answer is its descriptor, and a thread that cannot have the filter an error.
    let more = if flags & FLAG_NEW_LISTENER != 0 { FLAG_TSYNC_ESRCH } else { 0 };
    let flags = if everywhere { flags } else { flags | FLAG_TSYNC | more };
    let answer = net().raw(libc::SYS_seccomp as u64, &[SET_MODE_FILTER, flags, &raw const program as u64, 0, 0, 0]);
    let installed = answer == 0 || (answer > 0 && flags & FLAG_NEW_LISTENER != 0);
    if installed {
        note_what_it_stops(filter);
        uninterrupted(|| rights::has_filtered(runtime, true));
    } else if stays {
        own_threads::allow_readers(runtime, rights::can_be_made_again());
    }
    let failed_for_ours = !everywhere && !installed && (answer > 0 || answer == errno(libc::ESRCH));
    if failed_for_ours { refused() } else { answer }
}

fn refuse(stopped: &Own) -> i64 {
    report::line(format_args!(
        "seccomp: a filter is refused: it stops {} (call {}), which Farshore needs to {}; run the program without Farshore, or without \
         its sandbox",
        stopped.name, stopped.nr, stopped.purpose
    ));
    errno(libc::EINVAL)
}

fn note_what_it_stops(filter: &[Instruction]) {
    if first_stopped(filter, &[own::POLICIES]).is_some() {
        match runtime().filter(|_| !thread::is_guest()) {
            Some(runtime) => uninterrupted(|| policies::forbid(runtime)),
            None => policies::refuse(),
        }
    }
    let stops_forks = first_stopped(filter, &[own::THREADS, own::FORKS]).is_some();
    if stops_forks {
        rights::stop_new_threads();
    }
    if stops_forks || first_ended(filter, &[own::FORKS_TRIED]).is_some() {
        NO_FORKS.store(true, Ordering::Relaxed);
    }
    // A program that is started knows of no filter, and does whatever it can.
    let tried = [own::STARTS_TRIED, own::FORKS_TRIED, own::CONTROL, own::POLICIES, own::WATCHES, own::HUGE_PAGES];
    if stops_forks || first_stopped(filter, &[own::STARTS]).is_some() || first_ended(filter, &tried).is_some() {
        NO_STARTS.store(true, Ordering::Relaxed);
    }
}
