//! Rows that the matrix does not call, and a check that it and the table agree.

use crate::{cases, generic};
use farshore_net::table::{COUNT, Kind, describe};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const REQUESTS: &str = "makes requests that go on after it: tests/programs/asynchronous";

/// Calls with pointers that are not made, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("clone", "makes a process or thread: tests/programs/syscalls (spawn, fork, threads)"),
    ("reboot", "with the right it would"),
    ("kexec_load", "with the right it would load another kernel"),
    ("kexec_file_load", "with the right it would load another kernel"),
    ("swapon", "belongs to the whole machine"),
    ("swapoff", "belongs to the whole machine"),
    ("acct", "belongs to the whole machine"),
    ("io_setup", REQUESTS),
    ("io_destroy", REQUESTS),
    ("io_getevents", REQUESTS),
    ("io_submit", REQUESTS),
    ("io_cancel", REQUESTS),
    ("io_pgetevents", REQUESTS),
    ("io_uring_setup", REQUESTS),
    ("io_uring_enter", REQUESTS),
    ("io_uring_register", REQUESTS),
];

fn left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|(out, _)| *out == name)
}

/// Whether the matrix has to call a row: it has pointers, or is refused.
fn has_pointers(name: &str, kind: &Kind) -> bool {
    // Calls that other code looks after, and have addresses at most.
    const ADDRESSES_ONLY: &[&str] = &[
        "mmap",
        "mprotect",
        "munmap",
        "brk",
        "mremap",
        "madvise",
        "mlock",
        "munlock",
        "mlockall",
        "munlockall",
        "mlock2",
        "pkey_mprotect",
        "mseal",
        "shmat",
        "rt_sigreturn",
        "fork",
        "vfork",
        "exit",
        "exit_group",
        "close",
        "dup",
        "dup2",
        "dup3",
        "close_range",
    ];
    match kind {
        Kind::NoPointers | Kind::Passed(_) | Kind::Gone => false,
        _ => !ADDRESSES_ONLY.contains(&name),
    }
}

/// How many rows have no pointers.
pub fn without_pointers() -> usize {
    rows().filter(|(name, kind)| !has_pointers(name, kind)).count()
}

fn rows() -> impl Iterator<Item = (&'static str, &'static Kind)> {
    (0..COUNT as u64).filter_map(|nr| describe(nr).map(|entry| (entry.name, &entry.kind)))
}

/// Every row that has a pointer is called by a case or by a generic call, or is left out, and not both; the list of rows.
pub fn check() -> Result<String, String> {
    let with_case: BTreeSet<_> = cases::written(true).iter().map(|case| case.call).collect();
    let mut text = String::new();
    for (name, kind) in rows() {
        let called = with_case.contains(name) || generic::can_call(kind);
        let what = match (has_pointers(name, kind), left_out(name)) {
            (true, true) if with_case.contains(name) => return Err(format!("{name} is left out, and has a case")),
            (true, true) => "left out",
            (true, false) if !called => return Err(format!("{name} has pointers, but no case")),
            (true, false) => "called",
            (false, true) => return Err(format!("{name} is left out, but has no pointers")),
            (false, false) => "no pointers",
        };
        _ = writeln!(text, "{name}: {what}");
    }
    match LEFT_OUT.iter().find(|(name, _)| rows().all(|(row, _)| row != *name)) {
        Some((name, _)) => Err(format!("{name} is left out, but not in the table")),
        None => Ok(text),
    }
}
