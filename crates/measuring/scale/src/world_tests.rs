use super::*;
use crate::machine::{Far, Interrupts};
use crate::system::Eviction;
use crate::systems;

const NONE: Eviction =
    Eviction { evictors: 1, batch: 16, page: &[], flushes: 0, pipelined: false, waits_for_write: false, by_faults: None };

fn machine(cores: u32) -> Machine {
    Machine {
        cores,
        per_socket: 1_000,
        line_ns: [0, 0],
        interrupts: Interrupts { send_ns: 0, way_ns: [0, 0], handle_ns: 0 },
        far: Far { devices: 1, read_ns: 1_000, write_ns: 1_000, page_ns: 0, both_ways: true, spins: false },
    }
}

fn system(fault: &'static [Step], shared: &'static [Lock], eviction: Eviction) -> System {
    System { name: "test", fault, along_ns: 0, eviction, shared, own_device: false }
}

fn rate(machine: &Machine, system: &System, threads: u32, evicts: bool) -> f64 {
    run(machine, system, &Load { threads, think_ns: 1_000, along_percent: 0, evicts }, 1).rate()
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.02, "{found} for {wanted}");
}

#[test]
fn threads_that_share_nothing_do_as_much_each() {
    // 1 µs computed, 2 worked, 1 read.
    let system = system(&[Step::Work(2_000), Step::Frame, Step::Read], &[], NONE);
    for threads in [1, 2, 16] {
        near(rate(&machine(16), &system, threads, false), f64::from(threads) / 4e-6);
    }
    // Three of the four need a core.
    near(rate(&machine(1), &system, 8, false), 1.0 / 3e-6);
}

#[test]
fn a_lock_gives_no_more_than_it_can() {
    let alone = system(&[Step::Hold(Lock::Space, 500), Step::Frame, Step::Read], &[], NONE);
    let shared = System { shared: &[Lock::Space], ..alone };
    near(rate(&machine(64), &alone, 64, false), 64.0 / 2.5e-6);
    near(rate(&machine(64), &shared, 64, false), 1.0 / 500e-9);
    let travels = Machine { line_ns: [100, 300], ..machine(64) };
    near(rate(&travels, &shared, 64, false), 1.0 / 600e-9);
    // Half of the passes go to the other socket, or more: whoever comes is served.
    let two = Machine { per_socket: 32, ..travels };
    let found = rate(&two, &shared, 64, false);
    assert!(found < 0.95 / 600e-9 && found > 1.0 / 800e-9, "{found}");
    let told = run(&travels, &shared, &Load { threads: 64, think_ns: 1_000, along_percent: 0, evicts: false }, 1);
    assert_eq!(told.shares()[0].0, "lock of swap space");
}

#[test]
fn a_device_gives_no_more_than_it_can() {
    let system = system(&[Step::Frame, Step::Read], &[], NONE);
    let slow = |devices, both_ways| {
        let far = Far { devices, page_ns: 1_000, both_ways, ..machine(1).far };
        Machine { far, ..machine(64) }
    };
    near(rate(&slow(1, true), &system, 64, false), 1e6);
    let eight = rate(&slow(8, true), &System { own_device: true, ..system }, 64, false);
    near(eight, 8e6);
    // Pages that leave take half of what goes both ways.
    near(rate(&slow(1, true), &system, 64, true), 1e6);
    near(rate(&slow(1, false), &system, 64, true), 0.5e6);
}

#[test]
fn evictors_bound_what_faults_get() {
    // Four evictors that need 2 µs a page.
    let eviction = Eviction { evictors: 4, page: &[Step::Work(2_000)], ..NONE };
    let system = system(&[Step::Frame, Step::Read], &[], eviction);
    near(rate(&machine(64), &system, 32, true), 2e6);
    let told = run(&machine(64), &system, &Load { threads: 32, think_ns: 1_000, along_percent: 0, evicts: true }, 1);
    assert_eq!((told.shares()[0].0, told.by_faults), ("no free frame", 0));
    // When faults may, they do it themselves.
    let by_faults = System { eviction: Eviction { by_faults: Some(16), ..eviction }, ..system };
    let told = run(&machine(64), &by_faults, &Load { threads: 32, think_ns: 1_000, along_percent: 0, evicts: true }, 1);
    assert!(told.rate() > 4e6 && told.by_faults > 100, "{} {}", told.rate(), told.by_faults);
}

#[test]
fn a_flush_costs_each_core_and_is_hidden_by_a_pipeline() {
    let costs = Interrupts { send_ns: 100, way_ns: [500, 500], handle_ns: 200 };
    let of = |threads| {
        let mut world_machine = machine(64);
        world_machine.interrupts = costs;
        let eviction = Eviction { page: &[Step::Work(100)], flushes: 1, ..NONE };
        let system = system(&[Step::Frame, Step::Read], &[], eviction);
        let load = Load { threads, think_ns: 100_000, along_percent: 0, evicts: true };
        let told = run(&world_machine, &system, &load, 1);
        told.flush_ns / told.flushes
    };
    // The last of 7 is sent after 0.7 µs; to it, from it, and what it does.
    assert_eq!(of(7), 700 + 500 + 200 + 500);
    assert_eq!(of(63), 6_300 + 500 + 200 + 500);
    let in_turn = Eviction { page: &[Step::Work(10)], flushes: 1, ..NONE };
    let pipelined = Eviction { pipelined: true, ..in_turn };
    let far = Machine { interrupts: Interrupts { way_ns: [20_000, 20_000], ..costs }, ..machine(64) };
    let rates = [in_turn, pipelined].map(|eviction| rate(&far, &system(&[Step::Frame, Step::Read], &[], eviction), 32, true));
    assert!(rates[1] > 2.0 * rates[0], "{rates:?}");
}

#[test]
fn the_same_seed_gives_the_same() {
    let load = Load { threads: 24, think_ns: 200, along_percent: 0, evicts: true };
    let of = |seed| run(&Machine::mage(), &systems::HERMIT, &load, seed);
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
}

#[test]
fn time_is_spent_once() {
    // Threads without waits outside: what is spent is what passed, of each of them.
    let load = Load { threads: 8, think_ns: 500, along_percent: 0, evicts: true };
    for system in [systems::HERMIT, systems::DILOS, systems::MAGE, systems::FARSHORE, systems::LINUX] {
        let told = run(&Machine::mage(), &system, &load, 1);
        let spent: u64 = told.spent.iter().sum();
        let passed = told.ns * 8;
        assert!(spent.abs_diff(passed) < passed / 50, "{}: {spent} of {passed}", system.name);
    }
}

#[test]
#[should_panic(expected = "who evicts?")]
fn without_anybody_who_evicts_nothing_goes_on() {
    let system = system(&[Step::Frame, Step::Read], &[], Eviction { evictors: 0, ..NONE });
    let _ = run(&machine(2), &system, &Load { threads: 2, think_ns: 100, along_percent: 0, evicts: true }, 1);
}

/// What is fitted is what it is said to be fitted to.
#[test]
fn fitted_systems_have_the_digits_that_they_are_fitted_to() {
    let mage = |system: &System, evicts| {
        run(&Machine::mage(), system, &Load { threads: 48, think_ns: 200, along_percent: 0, evicts }, 1).rate()
    };
    let ideal = mage(&systems::IDEAL, false);
    let share = |system: &System, evicts| mage(system, evicts) / ideal * 100.0;
    for (system, alone, evicting) in [(systems::HERMIT, 20.0, 14.0), (systems::DILOS, 56.0, 30.0)] {
        let found = [share(&system, false), share(&system, true)];
        assert!((found[0] - alone).abs() < 2.0 && (found[1] - evicting).abs() < 2.0, "{}: {found:?}", system.name);
    }
    // As many pages leave as come, so twice the bytes.
    let bytes = |system| {
        run(&Machine::scaleswap(8), &system, &Load { threads: 128, think_ns: 500, along_percent: 0, evicts: true }, 1).rate()
            * 8192.0
            / 1e9
    };
    assert!((bytes(systems::LINUX) - 4.34).abs() < 0.3 && (bytes(systems::SCALESWAP_LISTS) - 8.13).abs() < 0.6);
    let here = |threads, evicts| {
        run(
            &Machine::ours(2),
            &systems::with_evictors(systems::FARSHORE, 1),
            &Load { threads, think_ns: 200, along_percent: 0, evicts },
            1,
        )
        .rate()
    };
    assert!(
        (here(1, false) / 95_600.0 - 1.0).abs() < 0.05 && (here(2, true) / 137_400.0 - 1.0).abs() < 0.05,
        "{} {}",
        here(1, false),
        here(2, true)
    );
}

#[test]
fn pages_come_along() {
    // 1 µs computed, 1 read, and 100 ns for each page that comes along: 2.5 of them, on the average.
    let alone = system(&[Step::Frame, Step::Read], &[], NONE);
    let system = System { along_ns: 100, ..alone };
    let load = |along_percent, evicts| Load { threads: 4, think_ns: 1_000, along_percent, evicts };
    near(run(&machine(8), &system, &load(250, false), 1).rate(), 4.0 / 2.25e-6);
    // They take their time at the device, too: 3.5 pages a fault, of 1 µs each.
    let slow = Machine { far: Far { page_ns: 1_000, ..machine(8).far }, ..machine(8) };
    near(run(&slow, &system, &load(250, false), 1).rate(), 1e6 / 3.5);
    // And as many must leave: an evictor that needs 2 µs a page bounds them.
    let evicted = System { eviction: Eviction { page: &[Step::Work(2_000)], ..NONE }, ..system };
    near(run(&machine(8), &evicted, &load(250, true), 1).rate(), 1e6 / 7.0);
}

#[test]
fn who_has_all_memory_only_computes() {
    let load = Load { threads: 2, think_ns: 1_000, along_percent: 0, evicts: true };
    near(run(&machine(2), &systems::LOCAL, &load, 1).rate(), 2e6);
}
