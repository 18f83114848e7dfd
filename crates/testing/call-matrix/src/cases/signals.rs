//! Signals.

use super::Cases;
use super::set_up::keep;
use super::waits::time;
use crate::call::{Call, Structure};
use crate::kernel::{at, sys};

/// Bit of a signal in a mask.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

extern "C" fn nothing(_signal: i32) {}

/// SIGALRM calls a handler that does nothing, and does not restart what it interrupts.
fn handle_alarms() -> Result<(), String> {
    // SAFETY: all zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: the handler does nothing.
    let done = unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err("sigaction".into()) }
}

/// The call is interrupted by a signal, after so many microseconds and then again and again.
pub fn interrupted(call: &mut Call, microseconds: u64) {
    call.before(move || {
        handle_alarms()?;
        let times = [0, microseconds, 0, microseconds];
        sys("setitimer", &[libc::ITIMER_REAL as u64, at(&times), 0]).map(|_| ())
    });
    call.finally(|| _ = sys("setitimer", &[libc::ITIMER_REAL as u64, at(&[0u64; 4]), 0]));
}

/// Blocks a signal for the time of the call.
fn blocked(call: &mut Call, signal: i32) {
    call.before(move || sys("rt_sigprocmask", &[libc::SIG_BLOCK as u64, at(&bit(signal)), 0, 8]).map(|_| ()));
    call.finally(move || {
        // What still waits is taken, so that it does not arrive.
        let nothing = [0u64; 2];
        while sys("rt_sigtimedwait", &[at(&bit(signal)), 0, at(&nothing), 8]).is_ok() {}
        let _ = sys("rt_sigprocmask", &[libc::SIG_UNBLOCK as u64, at(&bit(signal)), 0, 8]);
    });
}

/// A blocked signal that waits for this thread.
fn waiting(call: &mut Call, signal: i32) {
    blocked(call, signal);
    call.before(move || {
        let (process, thread) = (u64::from(std::process::id()), sys("gettid", &[])?);
        sys("tgkill", &[process, thread, signal as u64]).map(|_| ())
    });
}

/// `siginfo_t` as `sigqueue` makes it, with this value.
fn queued(signal: i32, value: u64) -> Structure {
    // SI_QUEUE; then the sender's process and user, and the value.
    Structure::new().u32(signal as u32).u32(0).u32(-1i32 as u32).u32(0).u32(1).u32(2).u64(value).zeros(96)
}

pub fn add(cases: &mut Cases) {
    masks(cases);
    waits(cases);
    sent(cases);
    descriptors(cases);
}

fn masks(cases: &mut Cases) {
    cases.add("rt_sigaction", "", |call| {
        // SIG_IGN for SIGUSR2, and what was before.
        call.finally(|| _ = sys("rt_sigaction", &[libc::SIGUSR2 as u64, at(&[0u64; 4]), 0, 8]));
        call.number(libc::SIGUSR2).structure(Structure::new().u64(1).u64(0).u64(0).u64(0)).room(32).number(8);
        Ok(())
    });
    cases.add("rt_sigaction", "no such signal", |call| {
        call.number(99).structure(Structure::new().u64(1).u64(0).u64(0).u64(0)).room(32).number(8);
        Ok(())
    });
    cases.add("rt_sigaction", "is asked", |call| {
        call.number(libc::SIGURG).number(0).room(32).number(8);
        Ok(())
    });
    cases.add("rt_sigprocmask", "", |call| {
        blocked(call, libc::SIGUSR2);
        call.number(libc::SIG_BLOCK).input(&bit(libc::SIGUSR2).to_ne_bytes()).room(8).number(8);
        Ok(())
    });
    cases.add("rt_sigprocmask", "another size", |call| {
        call.number(libc::SIG_BLOCK).input(&[0; 16]).room(16).number(16);
        Ok(())
    });
    cases.add("rt_sigpending", "", |call| {
        waiting(call, libc::SIGUSR2);
        call.room(8).number(8);
        Ok(())
    });
    cases.add("sigaltstack", "is asked", |call| {
        // Rust's own stack for overflows: its address differs.
        call.number(0).volatile_room(24);
        Ok(())
    });
    cases.add("sigaltstack", "too small", |call| {
        call.structure(Structure::new().u64(1 << 20).u32(0).u32(0).u64(100)).volatile_room(24);
        Ok(())
    });
}

fn waits(cases: &mut Cases) {
    cases.add("rt_sigtimedwait", "", |call| {
        waiting(call, libc::SIGUSR2);
        // Who has sent it differs.
        call.input(&bit(libc::SIGUSR2).to_ne_bytes()).room(128).volatile(16..24).structure(time(1, 0)).number(8);
        Ok(())
    });
    cases.add("rt_sigtimedwait", "too late", |call| {
        call.input(&bit(libc::SIGWINCH).to_ne_bytes()).room(128).structure(time(0, 1000)).number(8);
        Ok(())
    });
    cases.add("rt_sigsuspend", "", |call| {
        call.before(handle_alarms);
        waiting(call, libc::SIGALRM);
        call.input(&[0; 8]).number(8);
        Ok(())
    });
    cases.meant(libc::EINTR);
}

fn sent(cases: &mut Cases) {
    fn taken(signal: i32) -> String {
        let (mut info, now) = ([0u32; 32], [0u64; 2]);
        let got = sys("rt_sigtimedwait", &[at(&bit(signal)), crate::kernel::at_mut(&mut info), at(&now), 8]);
        format!("{got:?} {} {}", info[2] as i32, info[6])
    }
    cases.add("rt_sigqueueinfo", "", |call| {
        blocked(call, libc::SIGUSR1);
        call.after(|_| taken(libc::SIGUSR1));
        call.number(std::process::id()).number(libc::SIGUSR1).structure(queued(libc::SIGUSR1, 0x1234));
        Ok(())
    });
    cases.add("rt_tgsigqueueinfo", "", |call| {
        blocked(call, libc::SIGUSR1);
        call.after(|_| taken(libc::SIGUSR1));
        let thread = sys("gettid", &[])?;
        call.number(std::process::id()).number(thread).number(libc::SIGUSR1).structure(queued(libc::SIGUSR1, 0x1234));
        Ok(())
    });
    cases.add("pidfd_send_signal", "", |call| {
        blocked(call, libc::SIGUSR1);
        let fd = sys("pidfd_open", &[u64::from(std::process::id()), 0])?;
        keep(call, fd)?;
        call.after(|_| taken(libc::SIGUSR1));
        call.number(fd).number(libc::SIGUSR1).structure(queued(libc::SIGUSR1, 0x1234)).number(0);
        Ok(())
    });
}

fn descriptors(cases: &mut Cases) {
    cases.add("pidfd_getfd", "its own", |call| {
        let process = sys("pidfd_open", &[u64::from(std::process::id()), 0])?;
        keep(call, process)?;
        let fd = sys("signalfd4", &[u64::from(u32::MAX), at(&bit(libc::SIGUSR2)), 8, libc::SFD_CLOEXEC as u64])?;
        keep(call, fd)?;
        call.number(process).number(fd).number(0).returns_descriptor();
        Ok(())
    });
    for name in ["signalfd", "signalfd4"] {
        cases.add(name, "", |call| {
            call.number(-1).input(&bit(libc::SIGUSR2).to_ne_bytes()).number(8).number(libc::SFD_CLOEXEC).returns_descriptor();
            Ok(())
        });
    }
    cases.add("read", "signals", |call| {
        let fd = sys("signalfd4", &[u64::from(u32::MAX), at(&bit(libc::SIGUSR2)), 8, libc::SFD_CLOEXEC as u64])?;
        keep(call, fd)?;
        waiting(call, libc::SIGUSR2);
        call.number(fd).room(500).volatile(12..20).number(500);
        Ok(())
    });
}
