//! While the gate is closed nobody is inside, and nobody stays outside for good.
#![cfg(loom)]

use farshore_core::gate::Gate;
use farshore_models::kernel::LoomFutex;
use farshore_models::{explore, must_die};
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

type World = Arc<(Gate, LoomFutex, AtomicU32)>;

fn inside(world: &World, core: usize) {
    world.2.fetch_add(1, Ordering::AcqRel);
    world.2.fetch_sub(1, Ordering::AcqRel);
    world.0.leave(&world.1, core);
}

/// Who does not sleep: looks whether it is open, between other things.
fn polls(world: &World, core: usize) {
    let (gate, futex, _) = &**world;
    while !gate.try_enter(futex, core) {
        while gate.is_closed() {
            thread::yield_now();
        }
    }
    inside(world, core);
}

/// Two looks at most: of two that yield to each other loom tries ever longer turns.
fn polls_and_sleeps(world: &World, core: usize) {
    let (gate, futex, _) = &**world;
    let is_in = (0..2).any(|_| {
        let is_in = gate.try_enter(futex, core);
        if !is_in {
            thread::yield_now();
        }
        is_in
    });
    if !is_in {
        gate.enter(futex, core);
    }
    inside(world, core);
}

fn sleeps(world: &World, core: usize) {
    world.0.enter(&world.1, core);
    inside(world, core);
}

fn close_and_open(world: &World) {
    let (gate, futex, inside) = &**world;
    gate.close(futex);
    assert_eq!(inside.fetch_add(0, Ordering::AcqRel), 0, "somebody is inside of a closed gate");
    gate.open(futex);
}

/// Each visitor on a core, and one who closes. In the end no count is left: closing again returns.
fn model_of(preemptions: usize, cores: usize, visitors: &'static [fn(&World, usize)]) {
    explore(preemptions, move || visit(cores, visitors));
}

fn visit(cores: usize, visitors: &[fn(&World, usize)]) {
    let world: World = Arc::new((Gate::new(cores), LoomFutex::new(), AtomicU32::new(0)));
    let mut all: Vec<_> = (0..)
        .zip(visitors)
        .map(|(core, &visitor)| {
            let world = Arc::clone(&world);
            thread::spawn(move || visitor(&world, core))
        })
        .collect();
    let closer = Arc::clone(&world);
    all.push(thread::spawn(move || close_and_open(&closer)));
    all.into_iter().for_each(|one| one.join().unwrap());
    close_and_open(&world);
}

#[test]
fn one_that_polls() {
    model_of(3, 1, &[polls]);
}

#[test]
fn two_that_poll_twice_on_two_cores() {
    model_of(2, 2, &[polls_and_sleeps, polls_and_sleeps]);
}

#[test]
fn one_that_polls_and_one_that_sleeps_on_one_core() {
    model_of(2, 1, &[polls, sleeps]);
}

/// Shows that the models notice: who is put aside with empty hands stays counted.
#[test]
fn canary_one_that_does_not_leave_is_caught() {
    must_die("canary_one_that_does_not_leave_is_caught", "deadlock", || {
        let forgets = |world: &World, core: usize| {
            if !world.0.try_enter(&world.1, core) {
                polls(world, core);
            }
        };
        visit(1, &[forgets]);
    });
}

/// Who looks first and counts itself then is inside of a gate that has closed in between.
#[test]
fn canary_one_that_looks_before_it_counts_is_caught() {
    must_die("canary_one_that_looks_before_it_counts_is_caught", "somebody is inside of a closed gate", || {
        let hasty = |world: &World, _core: usize| {
            if !world.0.is_closed() {
                world.2.fetch_add(1, Ordering::AcqRel);
                world.2.fetch_sub(1, Ordering::AcqRel);
            }
        };
        visit(1, &[hasty]);
    });
}
