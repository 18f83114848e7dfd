//! The probes, alone in their process: they replace signal actions for moments, and the stack of a second test's thread would count among the mappings.

mod common;

use farshore_sys::probe::{Needed, probe_all};
use farshore_sys::signal::{self, current_mask};
use farshore_sys::{sud, vm};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn everything_is_tried_and_nothing_stays() {
    let actions = || {
        // SAFETY: reads only.
        [signal::SIGBUS, signal::SIGSYS].map(|number| unsafe { signal::sigaction(number, None) }.unwrap())
    };
    drop(probe_all());
    let before = (open_files(), actions(), current_mask());
    let maps = mappings();
    for round in 0..20 {
        let probes = probe_all();
        assert_eq!(probes.len(), 14);
        for probe in &probes {
            assert!(probe.result.is_err() || probe.advice.is_empty());
            if round == 0 {
                println!("{:40} {:?} {}", probe.name, probe.result, probe.advice);
            }
            if let (0, Err(why), Needed::Optional(instead)) = (round, &probe.result, probe.needed) {
                println!("skipped: {}: {why} ({instead})", probe.name);
            }
            assert!(!probe.is_fatal(), "this kernel cannot run Farshore: {probe:?}");
        }
    }
    assert_eq!((open_files(), actions(), current_mask()), before);
    assert!(mappings() <= maps + 2, "mappings are left behind");
    // The dispatch is off again: a call from outside the range goes through.
    assert_eq!(sud::probe(), Ok(()));
    // SAFETY: asks.
    assert!(unsafe { vm::brk(0) } > 0);
    assert!(std::fs::metadata("/").is_ok());
    common::again_as_nobody();
}
