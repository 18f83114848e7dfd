//! Requests that end early although the queue of their ring is full.

use super::{For, run};
use crate::ground::os::now;
use crate::ground::ring::{CANCELLED, Kick};
use crate::scheduler::worker;
use crate::{Config, Runtime, yield_now};
use core::time::Duration;
use io_uring::{opcode, types};
use std::os::fd::AsRawFd;
use std::sync::mpsc;

/// The queue of the caller's worker is full, and the kernel takes nothing of it; or it takes it again.
fn refuse(refuses: bool) {
    let (worker, _) = worker::inside().unwrap();
    worker.with_ring(|ring| {
        ring.refuses = refuses;
        let nothing = opcode::Nop::new().build().user_data(CANCELLED);
        // SAFETY: it points to nothing.
        while refuses && unsafe { ring.push(&nothing) }.is_ok() {}
    });
}

/// A unithread waits for a peer who never comes; meanwhile, of the same worker, `meanwhile` runs. The outcome of the wait, if it ends.
fn waits(
    deadline: Option<Duration>,
    meanwhile: impl FnOnce() + Send + 'static,
) -> (Runtime, mpsc::Receiver<std::io::Result<usize>>) {
    let runtime = Runtime::start(Config { workers: 1, pin: false, ..Config::default() }).unwrap();
    let (tell, hear) = mpsc::channel();
    let (waits, waited) = mpsc::channel();
    let never = Kick::new().unwrap();
    drop(runtime.spawn(move || {
        let mut bytes = [0u8; 8];
        let request = opcode::Read::new(types::Fd(never.0.as_raw_fd()), bytes.as_mut_ptr(), 8).build();
        let deadline = deadline.map(|time| now() + time.as_nanos() as u64);
        waits.send(()).unwrap();
        // SAFETY: the bytes and the descriptor are there until it returns.
        let ended = unsafe { run(request, For::Peer(deadline)) };
        tell.send(ended).unwrap();
    }));
    waited.recv().unwrap();
    drop(runtime.spawn(meanwhile));
    (runtime, hear)
}

#[test]
fn a_deadline_comes_although_the_queue_was_full_when_it_was_over() {
    const DEADLINE: Duration = Duration::from_millis(20);
    let (runtime, hear) = waits(Some(DEADLINE), || {
        refuse(true);
        // The worker looks at its timers at each yield.
        let end = now() + 3 * DEADLINE.as_nanos() as u64;
        while now() < end {
            yield_now();
        }
        refuse(false);
    });
    let ended = hear.recv_timeout(Duration::from_secs(20)).expect("the deadline never comes");
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    runtime.shutdown().unwrap();
}

#[test]
fn a_shutdown_ends_requests_although_the_queue_was_full_when_it_was_asked_for() {
    let (full, filled) = mpsc::channel();
    let (runtime, hear) = waits(None, move || {
        refuse(true);
        full.send(()).unwrap();
        while !crate::stopping() {
            yield_now();
        }
        (0..100).for_each(|_| yield_now());
        refuse(false);
    });
    filled.recv().unwrap();
    let left = runtime.shutdown_within(Duration::from_secs(20));
    let ended = hear.try_recv().expect("the request does not end");
    assert_eq!(ended.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    left.unwrap();
}
