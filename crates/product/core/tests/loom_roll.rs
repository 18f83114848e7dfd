//! Threads that begin, and the thread that waits for them: no wake-up is lost.
//!
//! As in a forked child: a thread of the program makes the first of ours, which makes the others and waits until all have begun.
#![cfg(loom)]

use farshore_core::roll::Roll;
use farshore_models::kernel::LoomFutex;
use farshore_models::{explore, must_die};
use loom::sync::Arc;
use loom::thread;

/// `early`: a thread is called before it is made.
fn begin(early: bool) {
    let shared = Arc::new((Roll::new(), LoomFutex::new()));
    if early {
        shared.0.call();
    }
    let ours = shared.clone();
    let first = thread::spawn(move || {
        let (roll, futex) = &*ours;
        roll.answer(futex);
        roll.call();
        let second = ours.clone();
        let second = thread::spawn(move || second.0.answer(&second.1));
        roll.wait(futex);
        second.join().unwrap();
    });
    if !early {
        shared.0.call();
    }
    first.join().unwrap();
    shared.0.wait(&shared.1);
}

#[test]
fn the_first_waits_for_all() {
    explore(3, || begin(true));
}

#[test]
fn canary_called_when_it_runs_already() {
    must_die("canary_called_when_it_runs_already", "deadlock", || begin(false));
}
