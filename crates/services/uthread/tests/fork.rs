//! Children of unithreads: a forked child leaves its parent's rings alone, and has what a thread of the program has.
#![cfg(not(loom))]

mod common;

use farshore_uthread::{Config, Error, Runtime, SpawnError, as_before, io, sleep, spawn};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

/// Long, since machines are busy: a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Runtime::start(Config { workers: 1, ..Config::default() }).unwrap()
}

/// Forks. The child's number, or `None` in the child.
fn fork() -> Option<i32> {
    // SAFETY: the child does what these tests are about, and has no other threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    (child > 0).then_some(child)
}

/// The same without libc, of which no handler runs in the child.
fn fork_by_hand() -> Option<i32> {
    // SAFETY: as above.
    let child = unsafe { libc::syscall(libc::SYS_fork) } as i32;
    assert!(child >= 0, "cannot fork");
    (child > 0).then_some(child)
}

/// Waits for a child's end. Its exit status, if it has ended by itself.
fn status_of(child: i32) -> Option<i32> {
    let mut status = 0;
    let end = std::time::Instant::now() + LONG;
    loop {
        // SAFETY: writes to `status`.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if std::time::Instant::now() > end => {
                // SAFETY: our own child, which was not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child does not end");
            }
            0 => std::thread::sleep(Duration::from_millis(1)),
            _ => return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        }
    }
}

/// Runs `work` in a child that a unithread forks; its exit status, where what `work` returns is the status of a wrong one.
fn in_child(work: impl FnOnce() -> i32 + Send + 'static) -> Option<i32> {
    let runtime = runtime();
    let forked = runtime.spawn(move || {
        fork().or_else(|| {
            let wrong = work();
            if wrong != 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(wrong) };
            }
            None
        })
    });
    let child = forked.unwrap().join().unwrap().expect("the parent is here");
    let status = status_of(child);
    runtime.shutdown().unwrap();
    status
}

#[test]
fn a_child_that_returns_from_its_unithread_takes_nothing_of_its_parents() {
    const BYTES: usize = 20_000;
    common::watchdog();
    let runtime = runtime();
    let (reader, writer) = std::io::pipe().unwrap();
    let (tell, hear) = mpsc::channel();
    drop(runtime.spawn(move || {
        let (reader, mut came, mut buffer) = (OwnedFd::from(reader), 0, [0; 10]);
        while came < BYTES {
            came += io::read(&reader, &mut buffer, u64::MAX).unwrap();
        }
        tell.send(came).unwrap();
    }));
    let forks = [fork as fn() -> Option<i32>, fork_by_hand, fork];
    let children = forks.map(|fork| runtime.spawn(fork).unwrap().join().unwrap().expect("the parent is here"));
    let writing = std::thread::spawn(move || {
        let mut writer = File::from(OwnedFd::from(writer));
        for _ in 0..BYTES / 10 {
            writer.write_all(&[7; 10]).unwrap();
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    let came = hear.recv_timeout(LONG);
    for child in children {
        if came.is_err() {
            // SAFETY: our own child, which was not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        assert_eq!(status_of(child), Some(0), "as a thread's end, of which it is the last");
    }
    assert_eq!(came, Ok(BYTES), "somebody else took bytes");
    writing.join().unwrap();
    runtime.shutdown().unwrap();
}

/// What a thread hands on: signal mask, cores.
fn inherited() -> (u64, Vec<usize>) {
    let mut mask = 0u64;
    // SAFETY: sets nothing, and writes eight bytes.
    let told = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, core::ptr::null::<u64>(), &raw mut mask, 8) };
    // SAFETY: a set of bits.
    let mut cores: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: writes at most its size.
    let told_too = unsafe { libc::sched_getaffinity(0, size_of_val(&cores), &raw mut cores) };
    assert_eq!((told, told_too), (0, 0));
    // SAFETY: numbers below the set's size.
    (mask, (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &cores) }).collect())
}

#[test]
fn a_child_has_the_signals_and_the_cores_of_the_thread_that_started_the_runtime() {
    common::watchdog();
    let before = inherited();
    let wanted = before.clone();
    assert_eq!(in_child(move || i32::from(inherited() != wanted)), Some(0));
    let runtime = runtime();
    let seen = runtime.spawn(|| (inherited(), as_before(inherited), inherited())).unwrap().join().unwrap();
    assert_eq!(seen.1, before, "as before");
    assert!(seen.0 == seen.2 && seen.0.0 != before.0 && seen.0.1.len() == 1, "a worker's: {seen:?}");
    assert_eq!(as_before(inherited), before, "on a thread");
    runtime.shutdown().unwrap();
}

#[test]
fn a_child_is_told_that_it_has_no_workers() {
    common::watchdog();
    let status = in_child(|| {
        let right = [
            matches!(spawn(|| ()), Err(SpawnError::NotInside)),
            sleep(Duration::from_millis(1)).is_ok(),
            !farshore_uthread::is_unithread(),
            io::read(File::open("/dev/null").unwrap(), &mut [0], 0).is_err(),
        ];
        right.iter().position(|right| !right).map_or(0, |wrong| wrong as i32 + 1)
    });
    assert_eq!(status, Some(0));
    assert_eq!(in_child(|| panic!("a child's panic")), Some(101));

    // One that a thread has forked, which has the runtime's handles.
    let runtime = runtime();
    let Some(child) = fork() else {
        let refused = matches!(runtime.handle().spawn(|| ()), Err(SpawnError::Forked));
        let ended = matches!(runtime.shutdown_within(LONG), Err(Error::Forked));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!refused) + 2 * i32::from(!ended)) };
    };
    assert_eq!(status_of(child), Some(0));
    runtime.shutdown().unwrap();
}
