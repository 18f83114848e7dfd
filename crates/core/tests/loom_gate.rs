//! While the gate is closed nobody is inside, and nobody stays outside for good.
#![cfg(loom)]

mod common;

use common::{LoomFutex, explore};
use farshore_core::gate::Gate;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// `visitors` go in and out while another closes and opens. A count that is not atomic in effect shows who is inside with whom.
fn model(visitors: usize, cores: usize) {
    explore(if visitors > 1 { 2 } else { 3 }, move || {
        let world = Arc::new((Gate::new(cores), LoomFutex::new(), AtomicU32::new(0)));
        let mut all: Vec<_> = (0..visitors)
            .map(|core| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let (gate, futex, inside) = &*world;
                    gate.enter(futex, core);
                    inside.fetch_add(1, Ordering::AcqRel);
                    inside.fetch_sub(1, Ordering::AcqRel);
                    gate.leave(futex, core);
                })
            })
            .collect();
        let closer = Arc::clone(&world);
        all.push(thread::spawn(move || {
            let (gate, futex, inside) = &*closer;
            gate.close(futex);
            // Reads the newest value, as the copy of the process would.
            assert_eq!(inside.fetch_add(0, Ordering::AcqRel), 0, "somebody is inside of a closed gate");
            gate.open(futex);
        }));
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn one_visitor() {
    model(1, 1);
}

#[test]
fn two_visitors_of_two_cores() {
    model(2, 2);
}

#[test]
fn two_visitors_of_one_core() {
    model(2, 1);
}
