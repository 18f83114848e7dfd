//! Clocks and timers.

use super::Cases;
use super::set_up::keep;
use super::waits::time;
use crate::call::{Call, Structure};
use crate::kernel::{at, at_mut, sys};

pub fn add(cases: &mut Cases) {
    clocks(cases);
    timers(cases);
}

fn clocks(cases: &mut Cases) {
    cases.add("nanosleep", "", |call| {
        call.structure(time(0, 1000)).room(16);
        Ok(())
    });
    cases.add("nanosleep", "interrupted", |call| {
        super::signals::interrupted(call, 3_000);
        call.structure(time(1000, 0)).volatile_room(16);
        Ok(())
    });
    cases.meant(libc::EINTR);
    cases.add("clock_nanosleep", "", |call| {
        call.number(libc::CLOCK_MONOTONIC).number(0).structure(time(0, 1000)).room(16);
        Ok(())
    });
    cases.add("clock_nanosleep", "interrupted", |call| {
        super::signals::interrupted(call, 3_000);
        call.number(libc::CLOCK_MONOTONIC).number(0).structure(time(1000, 0)).volatile_room(16);
        Ok(())
    });
    cases.meant(libc::EINTR);
    cases.add("clock_gettime", "", |call| {
        call.number(libc::CLOCK_MONOTONIC).volatile_room(16);
        Ok(())
    });
    cases.add("clock_getres", "", |call| {
        call.number(libc::CLOCK_MONOTONIC).room(16);
        Ok(())
    });
    cases.add("clock_settime", "no such time", |call| {
        call.number(libc::CLOCK_REALTIME).structure(time(1000, 2_000_000_000));
        Ok(())
    });
    cases.add("settimeofday", "no such time", |call| {
        call.structure(time(1000, 2_000_000)).number(0);
        Ok(())
    });
    cases.add("gettimeofday", "", |call| {
        call.volatile_room(16).room(8);
        Ok(())
    });
    cases.add("time", "", |call| {
        call.volatile_room(8).returns_any();
        Ok(())
    });
    cases.add("times", "", |call| {
        call.volatile_room(32).returns_any();
        Ok(())
    });
    cases.add("adjtimex", "", |call| {
        call.input(&[0; 208]).volatile(0..208).returns_any();
        Ok(())
    });
    cases.add("clock_adjtime", "", |call| {
        call.number(libc::CLOCK_REALTIME).input(&[0; 208]).volatile(0..208).returns_any();
        Ok(())
    });
}

/// A timer that goes off never, and is deleted when the call is over.
fn timer(call: &mut Call) -> Result<u64, String> {
    let mut id = 0u32;
    // struct sigevent: SIGEV_NONE.
    let event = [0u64, 1 << 32, 0, 0, 0, 0, 0, 0];
    sys("timer_create", &[1, at(&event), at_mut(&mut id)])?;
    let id = u64::from(id);
    call.finally(move || _ = sys("timer_delete", &[id]));
    Ok(id)
}

/// In a thousand seconds, then every thousand.
fn setting() -> Structure {
    Structure::new().u64(1000).u64(0).u64(1000).u64(0)
}

fn timers(cases: &mut Cases) {
    cases.add("getitimer", "", |call| {
        call.number(libc::ITIMER_PROF).room(32);
        Ok(())
    });
    cases.add("setitimer", "", |call| {
        call.finally(|| _ = sys("setitimer", &[libc::ITIMER_VIRTUAL as u64, at(&[0u64; 4]), 0]));
        call.number(libc::ITIMER_VIRTUAL).structure(setting()).room(32);
        Ok(())
    });
    cases.add("timer_create", "", |call| {
        let event = Structure::new().u64(7).u32(libc::SIGUSR1 as u32).u32(libc::SIGEV_NONE as u32).zeros(48);
        call.number(libc::CLOCK_MONOTONIC).structure(event).volatile_room(4).after_with(|done| {
            let id = done.buffers[1].iter().rev().fold(0, |id, &byte| id << 8 | u64::from(byte));
            if done.result == 0 { format!("{:?}", sys("timer_delete", &[id])) } else { String::new() }
        });
        Ok(())
    });
    cases.add("timer_settime", "", |call| {
        let id = timer(call)?;
        call.number(id).number(0).structure(setting()).room(32).returns_any();
        Ok(())
    });
    cases.add("timer_gettime", "", |call| {
        let id = timer(call)?;
        call.number(id).room(32);
        Ok(())
    });
    cases.add("timerfd_settime", "", |call| {
        let fd = sys("timerfd_create", &[1, libc::TFD_CLOEXEC as u64])?;
        keep(call, fd)?;
        call.number(fd).number(0).structure(setting()).room(32);
        Ok(())
    });
    cases.add("timerfd_gettime", "", |call| {
        let fd = sys("timerfd_create", &[1, libc::TFD_CLOEXEC as u64])?;
        keep(call, fd)?;
        call.number(fd).room(32);
        Ok(())
    });
}
