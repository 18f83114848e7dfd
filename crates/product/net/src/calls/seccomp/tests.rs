//! Filters against the list of our own calls, without installing one.

use super::bpf::{self, Instruction};
use super::{first_stopped, own};

const fn at(code: u16, yes: u8, no: u8, k: u32) -> Instruction {
    Instruction { code, yes, no, k }
}
const fn load(k: u32) -> Instruction {
    at(0x20, 0, 0, k)
}
const fn is(k: u32, yes: u8, no: u8) -> Instruction {
    at(0x15, yes, no, k)
}
const fn give(k: u32) -> Instruction {
    at(0x06, 0, 0, k)
}
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ERRNO: u32 = 0x0005_0001;
const KILL: u32 = 0x8000_0000;

const ANY: [Option<u64>; 6] = [None; 6];

#[test]
fn a_filter_that_denies_another_call_stops_none_of_ours() {
    let filter = [load(4), is(0xc000_003e, 1, 0), give(KILL), load(0), is(110, 0, 1), give(ERRNO), give(ALLOW)];
    assert!(bpf::is_valid(&filter));
    let all = [own::ALWAYS, own::THREADS, own::CONTROL, own::FORKS, own::STARTS];
    assert!(first_stopped(&filter, &all).is_none());
    assert!(!bpf::always_allows(&filter, 110, &ANY));
}

#[test]
fn logging_is_allowing_and_everything_else_is_not() {
    for (verdict, allows) in
        [(ALLOW, true), (LOG | 7, true), (ERRNO, false), (KILL, false), (0, false), (0x0003_0000, false), (0x7fc0_0000, false)]
    {
        assert_eq!(bpf::always_allows(&[give(verdict)], 9, &ANY), allows, "{verdict:#x}");
    }
}

#[test]
fn an_error_ends_nobody() {
    for (verdict, ends) in
        [(ALLOW, false), (LOG, false), (ERRNO, false), (KILL, true), (0, true), (0x0003_0000, true), (0x7fc0_0000, true)]
    {
        let filter = [load(0), is(217, 0, 1), give(verdict), give(ALLOW)];
        let ended =
            [own::STARTS_TRIED, own::FORKS_TRIED].map(|calls| super::first_ended(&filter, &[calls]).map(|call| call.name));
        assert_eq!(ended, [ends.then_some("getdents64"), None], "{verdict:#x}");
    }
}

#[test]
fn each_of_our_calls_is_looked_at() {
    for call in own::ALWAYS {
        let filter = [load(0), is(call.nr, 0, 1), give(ERRNO), give(ALLOW)];
        assert_eq!(first_stopped(&filter, &[own::ALWAYS]).map(|stopped| stopped.nr), Some(call.nr));
    }
}

#[test]
fn arguments_decide_where_they_are_known() {
    // write: only to descriptors 1 and 2.
    let filter = [load(0), is(1, 0, 4), load(16), is(1, 2, 0), is(2, 1, 0), give(ERRNO), give(ALLOW)];
    assert!(bpf::is_valid(&filter));
    assert!(first_stopped(&filter, &[own::ALWAYS]).is_none());
    assert_eq!(first_stopped(&filter, &[own::CONTROL]).map(|stopped| stopped.name), Some("write"));
    // No executable memory: mmap and mprotect with bit 2 in the third argument.
    let filter = [load(0), is(9, 1, 0), is(10, 0, 2), load(32), at(0x45, 1, 0, 4), give(ALLOW), give(ERRNO)];
    assert!(bpf::is_valid(&filter));
    assert!(first_stopped(&filter, &[own::ALWAYS]).is_none());
    assert!(!bpf::always_allows(&filter, 9, &ANY));
    // The upper half of an argument is its own word.
    let upper = [load(20), is(0, 0, 1), give(ALLOW), give(ERRNO)];
    assert!(bpf::always_allows(&upper, 1, &[Some(5), None, None, None, None, None]));
    assert!(!bpf::always_allows(&upper, 1, &[Some(1 << 32), None, None, None, None, None]));
}

#[test]
fn where_a_call_comes_from_is_unknown() {
    let filter = [load(8), at(0x25, 0, 1, 0x1000), give(ALLOW), give(ERRNO)];
    assert!(!bpf::always_allows(&filter, 0, &ANY));
}

#[test]
fn arithmetic_and_memory() {
    // ((nr * 2 + 6) >> 1) ^ 3 in memory, compared by X.
    let filter = [
        load(0),
        at(0x24, 0, 0, 2),
        at(0x04, 0, 0, 6),
        at(0x74, 0, 0, 1),
        at(0xa4, 0, 0, 3),
        at(0x02, 0, 0, 15),
        at(0x00, 0, 0, 9),
        at(0x61, 0, 0, 15),
        at(0x1d, 0, 1, 0),
        give(ALLOW),
        give(ERRNO),
    ];
    assert!(bpf::is_valid(&filter));
    // 7: (7 + 3) ^ 3 = 9.
    assert!(bpf::always_allows(&filter, 7, &ANY) && !bpf::always_allows(&filter, 8, &ANY));
    let divided = [load(0), at(0x01, 0, 0, 0), at(0x3c, 0, 0, 0), give(ALLOW)];
    assert!(!bpf::always_allows(&divided, 7, &ANY));
}

#[test]
fn what_the_kernel_refuses_is_not_valid() {
    let bad: [&[Instruction]; 9] = [
        &[load(0)],
        &[load(3), give(ALLOW)],
        &[load(64), give(ALLOW)],
        &[is(1, 0, 1), give(ALLOW)],
        &[at(0x05, 0, 0, 9), give(ALLOW)],
        &[at(0x34, 0, 0, 0), give(ALLOW)],
        &[at(0x30, 0, 0, 0), give(ALLOW)],
        &[at(0x02, 0, 0, 16), give(ALLOW)],
        &[at(0x94, 0, 0, 3), give(ALLOW)],
    ];
    for program in bad {
        assert!(!bpf::is_valid(program), "{program:?}");
    }
}

#[test]
fn too_many_ways_count_as_a_no() {
    // Each of 40 jumps on an unknown word has two ways to the next instruction.
    let mut filter = vec![load(16)];
    filter.extend((0..40).map(|k| at(0x25, 0, 0, k)));
    filter.push(give(ALLOW));
    assert!(bpf::is_valid(&filter));
    assert!(!bpf::always_allows(&filter, 1, &ANY));
}
