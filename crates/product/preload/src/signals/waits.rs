//! Calls that wait with a mask of their own (`rt_sigsuspend`, `ppoll`, `pselect6`, `epoll_pwait`), or for signals (`rt_sigtimedwait`).
//!
//! A mask for the time of a call is set by the kernel, without [`OURS`]; what it says about those is pretended for as long. The kernel
//! writes the mask of before to the frame of a handler that ends the call. Here that is the mask with all signals blocked, in which
//! nothing can happen between the last look at what waits and the call; so the right one is noted in the thread's record
//! ([`Suspended`]), where the handler finds it.
//!
//! `rt_sigtimedwait` takes signals that are pending, and one of ours never is: its handler runs. So for the time of that call the kernel
//! blocks what it waits for. A signal for the process that the kernel gave to another thread comes here by
//! [`super::pretended::offer`].
//!
//! Both end with `EINTR` when a signal of ours comes that the program has blocked and so must not notice. They are made again then, with the
//! time that is left.

use super::{Args, pretended};
use crate::ground::net::net;
use crate::ground::own_threads::knock;
use crate::ground::runtime::{runtime, uninterrupted};
use crate::ground::thread;
use crate::ground::thread::pending::{OURS, Suspended};
use farshore_catch::entry::{self, EINTR};
use farshore_core::seams::Clock as _;
use farshore_net::buffers;
use farshore_sys::clock;
use farshore_sys::raw::Errno;
use farshore_sys::signal::{self, How, SigInfo, SigSet};

const EFAULT: i64 = -(Errno::EFAULT.0 as i64);
const RT_SIGTIMEDWAIT: u64 = 128;
const EPOLL_WAIT: u64 = 232;
const EPOLL_PWAIT: u64 = 281;
const EPOLL_PWAIT2: u64 = 441;
const SECOND: u64 = 1_000_000_000;

/// Makes `epoll_wait` or one of its like, without a mask. Where it ends with `EINTR` and no handler of the program is to run it is made again: to the kernel a signal that
/// the program ignores is not ignored while one of its threads is in a handler of ours, which blocks it, and it wakes another one.
pub fn again(number: u64, args: &Args) -> i64 {
    let mut args = *args;
    let end = epoll_end(number, &args);
    let mut left = [0u64; 2];
    loop {
        // SAFETY: the program's own call, whose memory the caller has pinned.
        let answer = unsafe { entry::for_program(number, &args) };
        if answer != EINTR || thread::current().is_none_or(|thread| thread.deferred.get().is_some()) {
            return answer;
        }
        if let Some(end) = end {
            set_epoll_rest(number, &mut args, end, &mut left);
        }
    }
}

/// Makes a call whose arguments name a mask for its time: `wanted` is what the program gave, and the arguments have it without [`OURS`].
pub fn with_mask(number: u64, args: &Args, wanted: SigSet) -> i64 {
    let mut args = *args;
    let end = epoll_end(number, &args);
    let mut left = [0u64; 2];
    // SAFETY: the program's own call, whose memory the caller has pinned.
    let call = |args: &Args| unsafe { entry::for_program(number, args) };
    if thread::current().is_none() {
        return call(&args);
    }
    loop {
        let before = signal::sigprocmask(How::Set, SigSet::ALL);
        let Some(thread) = thread::current() else { return EINTR };
        let saved = SigSet(before.0 & !OURS.0 | thread.shared.pretended().0);
        thread.suspended.set(Some(Suspended { saved, during: wanted }));
        // What waited and is not blocked now is pending from here on: the call ends at once.
        pretended::change(thread, SigSet(wanted.0 & OURS.0));
        let answer = call(&args);
        // Taken by a signal, if one has come for the program: all stay blocked until it is handled.
        if thread.suspended.take().is_none() {
            return answer;
        }
        pretended::change(thread, SigSet(saved.0 & OURS.0));
        signal::sigprocmask(How::Set, before);
        if answer != EINTR {
            return answer;
        }
        // `ppoll` and `pselect6` have told the program what is left, and read it again.
        if let Some(end) = end {
            set_epoll_rest(number, &mut args, end, &mut left);
        }
    }
}

/// By the monotonic clock, ns.
fn now() -> u64 {
    // To make a clock is to open a file.
    runtime().map_or_else(clock::by_syscall, |runtime| runtime.engine.clock.now_ns())
}

/// When a wait for events ends, by the monotonic clock, ns; `None`: never, or by a time that the kernel writes back.
fn epoll_end(number: u64, args: &Args) -> Option<u64> {
    match number {
        EPOLL_WAIT | EPOLL_PWAIT => {
            u64::try_from(args[3] as i32).ok().filter(|&ms| ms > 0).map(|ms| now().saturating_add(ms * (SECOND / 1000)))
        }
        EPOLL_PWAIT2 if args[3] != 0 => {
            let time = buffers::read_once::<[u64; 2]>(net(), args[3]);
            time.map(|[seconds, ns]| now().saturating_add(seconds.saturating_mul(SECOND)).saturating_add(ns))
        }
        _ => None,
    }
}

fn set_epoll_rest(number: u64, args: &mut Args, end: u64, left: &mut [u64; 2]) {
    let rest = end.saturating_sub(now());
    if number != EPOLL_PWAIT2 {
        args[3] = rest.div_ceil(SECOND / 1000).min(i32::MAX as u64);
    } else {
        *left = [rest / SECOND, rest % SECOND];
        args[3] = left.as_ptr() as u64;
    }
}

/// `rt_sigtimedwait`.
pub(super) fn timed_wait(args: &Args) -> i64 {
    let [set, info_at, timeout, size, ..] = *args;
    let wanted = match super::read::<u64>(set) {
        Some(bits) if size == 8 => bits,
        _ => return crate::ground::net::pinned(RT_SIGTIMEDWAIT, args),
    };
    if wanted & OURS.0 == 0 || thread::current().is_none() {
        return crate::ground::net::pinned(RT_SIGTIMEDWAIT, args);
    }
    let mut time = [0u64; 2];
    if timeout != 0 {
        match super::read::<[u64; 2]>(timeout) {
            Some([seconds, ns]) if seconds <= i64::MAX as u64 && ns < SECOND => time = [seconds, ns],
            Some(_) => return super::EINVAL,
            None => return EFAULT,
        }
    }
    let end = (timeout != 0).then(|| now().saturating_add(time[0].saturating_mul(SECOND)).saturating_add(time[1]));
    let mut found = SigInfo::of_kernel(0);
    let answer = loop {
        let rest = end.map(|end| end.saturating_sub(now())).map(|rest| [rest / SECOND, rest % SECOND]);
        // None: not for the program to notice.
        if let Some(answer) = wait_once(SigSet(wanted), rest, &mut found) {
            break answer;
        }
    };
    if answer > 0 && info_at != 0 && !super::write(info_at, &found.words()) { EFAULT } else { answer }
}

/// Waits for one of `wanted`, at most for `rest` (seconds, ns). `None`: something came that it must not notice.
fn wait_once(wanted: SigSet, rest: Option<[u64; 2]>, found: &mut SigInfo) -> Option<i64> {
    let before = signal::sigprocmask(How::Set, SigSet::ALL);
    let thread = thread::current()?;
    let ours = SigSet(wanted.0 & OURS.0);
    if let Some(info) = pretended::take_or_await(thread, ours) {
        signal::sigprocmask(How::Set, before);
        *found = info;
        return Some(info.signal().into());
    }
    signal::sigprocmask(How::Set, SigSet(before.0 | ours.0));
    let time = rest.as_ref().map_or(0, |time| time.as_ptr() as u64);
    let args = [&raw const wanted.0 as u64, core::ptr::from_mut(found) as u64, time, 8, 0, 0];
    // SAFETY: our own memory, which stays: the stack is not managed, or pinned for the time of the call.
    let answer = unsafe { entry::for_program(RT_SIGTIMEDWAIT, &args) };
    // A signal for the program, if one has come, has ended the wait; all stay blocked until it is handled.
    let interrupted = entry::edge::is_deferred();
    thread.shared.await_signals(SigSet::EMPTY);
    if !interrupted {
        signal::sigprocmask(How::Set, before);
    }
    if answer > 0 {
        if found.signal() as u32 == signal::SIGBUS && knock::is_knock(found) {
            uninterrupted(knock::answer);
            return None;
        }
        *found = pretended::collect(found)?;
    }
    (answer != EINTR || interrupted).then_some(answer)
}
