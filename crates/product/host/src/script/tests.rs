//! Scripts in a program that has just been executed: `cat`, which tells afterwards what is left of the tracing.

extern crate std;

use super::*;
use crate::remote::{self, Event};
use farshore_sys::raw::{nr, syscall, syscall_result};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::string::String;

const STEP: &str = "the step";
const GETPID: u64 = 39;
const READ_WRITE_EXECUTE: u64 = 7;
const PRIVATE_ANONYMOUS: u64 = 0x22;

fn pipe() -> [OwnedFd; 2] {
    const PIPE2: u64 = 293;
    let mut ends = [0i32; 2];
    // SAFETY: writes two numbers.
    unsafe { syscall_result(PIPE2, [ends.as_mut_ptr() as u64, 0, 0, 0, 0, 0]) }.expect("a pipe");
    // SAFETY: nobody else has them.
    ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) })
}

/// `cat /proc/self/status`, which stands still at its first instruction, with a page for a script.
struct Cat {
    remote: Remote,
    page: u64,
    output: File,
}

impl Cat {
    fn begin(trap_ignored: bool) -> Cat {
        const FORK: u64 = 57;
        const DUP2: u64 = 33;
        const READ: u64 = 0;
        const WRITE: u64 = 1;
        let ([go, begin], [output, input]) = (pipe(), pipe());
        let mut byte = 0u8;
        let arguments = [c"/bin/cat".as_ptr(), c"/proc/self/status".as_ptr(), core::ptr::null()];
        // SAFETY: the child makes system calls alone, until it is another program.
        let child = unsafe { syscall(FORK, [0; 6]) };
        if child == 0 {
            let ignore = [SIG_IGN, 0, 0, 0];
            let action = if trap_ignored { ignore.as_ptr() as u64 } else { 0 };
            let calls = [
                (READ, [go.as_raw_fd() as u64, &raw mut byte as u64, 1, 0, 0, 0]),
                (DUP2, [input.as_raw_fd() as u64, 1, 0, 0, 0, 0]),
                (RT_SIGACTION, [SIGTRAP, action, 0, 8, 0, 0]),
                (59, [arguments[0] as u64, arguments.as_ptr() as u64, 0, 0, 0, 0]),
                (nr::EXIT, [99, 0, 0, 0, 0, 0]),
            ];
            for (number, args) in calls {
                // SAFETY: reads and writes what is named above.
                unsafe { syscall(number, args) };
            }
        }
        remote::seize(child as u32).expect("a child can be traced");
        // SAFETY: reads the byte.
        unsafe { syscall(WRITE, [begin.as_raw_fd() as u64, &raw const byte as u64, 1, 0, 0, 0]) };
        assert_eq!(remote::wait(), (child as u32, Event::Exec));
        let mut remote = Remote::new(child as u32).expect("it stands still");
        let auxiliary = crate::stack::Auxiliary::read(&remote).expect("a first stack");
        remote.set_gate(crate::helper::find_gate(&remote, &auxiliary).expect("a vDSO"));
        let page = [0, LENGTH, READ_WRITE_EXECUTE, PRIVATE_ANONYMOUS, u64::MAX, 0];
        let page = remote.call(nr::MMAP, page).expect("a page");
        Cat { remote, page, output: File::from(output) }
    }

    /// What it prints, of its lines the one that begins so: a number.
    fn status(mut self, line: &str) -> u64 {
        let first = self.remote.first;
        self.remote.leave(&first).expect("it goes on");
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("what it prints");
        assert_eq!(remote::wait().1, Event::Gone);
        let value = text.lines().find_map(|found| found.strip_prefix(line)).expect("the line");
        u64::from_str_radix(value.trim(), 16).expect("a number")
    }
}

#[test]
fn answers_become_arguments() {
    let cat = Cat::begin(false);
    let mut script = Script::new(cat.page);
    let text = cat.page + LENGTH - 16;
    let opened = script.push(STEP, nr::OPENAT, [u64::MAX, text, 0, 0, 0, 0]);
    let closed = script.push(STEP, nr::CLOSE, [0; 6]);
    script.take(closed, 0, opened, (0, u64::MAX));
    let end = script.push(STEP, nr::BRK, [0; 6]);
    let behind = script.push(STEP, nr::MMAP, [0, 4096, 0, PRIVATE_ANONYMOUS, u64::MAX, 0]);
    script.take(behind, 0, end, (4096 + 4095, !4095));
    script.run(&cat.remote, (text, b"/dev/null\0")).expect("all are made");
    let answers = [opened, closed, end, behind].map(|call| script.answer(call).expect("made").expect("done"));
    assert!(answers[0] > 2 && answers[1] == 0, "{answers:x?}");
    assert_eq!(answers[3], (answers[2] + 4096 + 4095) & !4095);
    assert_eq!(cat.status("SigBlk:"), 0);
}

#[test]
fn the_call_that_fails_ends_the_list_and_is_told() {
    let cat = Cat::begin(false);
    let mut script = Script::new(cat.page);
    let allowed = script.push("another step", nr::CLOSE, [u64::MAX, 0, 0, 0, 0, 0]);
    script.allow(allowed, Errno::EBADF);
    let before = script.push("a step before", GETPID, [0; 6]);
    let failed = script.push(STEP, nr::CLOSE, [u64::MAX, 0, 0, 0, 0, 0]);
    script.allow(failed, Errno::EEXIST);
    let after = script.push("a step after", GETPID, [0; 6]);
    let told = script.run(&cat.remote, (cat.page, b"")).map_err(|Failed(step, why)| (step, why));
    assert_eq!(told, Err((STEP, Errno::EBADF)));
    assert_eq!(script.answer(allowed), Some(Err(Errno::EBADF)));
    assert!(script.answer(before).is_some_and(|answer| answer.is_ok()));
    assert_eq!(script.answer(after), None);
    assert_eq!(cat.status("SigBlk:"), 0);
}

#[test]
fn a_signal_ends_the_list() {
    let cat = Cat::begin(false);
    let mut script = Script::new(cat.page);
    // Its own code is taken away from under it.
    let last = script.push(STEP, nr::MPROTECT, [cat.page, LENGTH, 3, 0, 0, 0]);
    let after = script.push("a step after", GETPID, [0; 6]);
    let told = script.run(&cat.remote, (cat.page, b"")).map_err(|Failed(step, why)| (step, why));
    assert_eq!(told, Err((STEP, Errno::EFAULT)));
    assert_eq!((script.answer(last), script.answer(after)), (None, None));
    assert_eq!(cat.status("SigBlk:"), 0);
}

#[test]
fn an_ignored_signal_stays_ignored() {
    for ignored in [false, true] {
        let cat = Cat::begin(ignored);
        Script::new(cat.page)
            .run(&cat.remote, (cat.page, b""))
            .map_err(|Failed(step, why)| (step, why))
            .expect("nothing to fail");
        assert_eq!(cat.status("SigIgn:") >> (SIGTRAP - 1) & 1, u64::from(ignored));
    }
}
