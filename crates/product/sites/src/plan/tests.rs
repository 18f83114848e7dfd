//! Planning on hand-made text.

use super::*;
use crate::SYSCALL;

const MOV_EAX_39: [u8; 5] = [0xb8, 39, 0, 0, 0];
const CMP_RAX: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];

/// Plans for one function at 0x1000, with `rest` behind it in the text.
fn plan_of(function: &[&[u8]], rest: &[u8]) -> Plan {
    let mut bytes = function.concat();
    let end = 0x1000 + bytes.len() as u64;
    bytes.extend_from_slice(rest);
    let functions = Functions { all: std::iter::once(0x1000..end).collect(), ..Functions::default() };
    let mut plan = Plan::default();
    plan.add(&Text { start: 0x1000, bytes: &bytes }, &functions, true);
    plan
}

fn offsets(plan: &Plan) -> Vec<(u64, u64)> {
    plan.windows.iter().map(|window| (window.range.start - 0x1000, window.range.end - 0x1000)).collect()
}

#[test]
fn a_wrapper_gives_up_its_compare() {
    let plan = plan_of(&[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0x77, 0x01, 0xc3, 0xc3]], &[]);
    assert_eq!(offsets(&plan), [(5, 13)]);
    assert_eq!((plan.windows[0].site, plan.windows[0].number), (0x1007, 39));
}

#[test]
fn what_ends_after_the_call_gives_up_what_comes_before() {
    assert_eq!(offsets(&plan_of(&[&MOV_EAX_39, &SYSCALL, &[0xc3]], &[])), [(0, 7)]);
}

#[test]
fn a_jump_to_the_compare_moves_the_window() {
    // jmp to the cmp: the window behind is out, the one before is not.
    assert_eq!(offsets(&plan_of(&[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xc3, 0xeb, 0xf7]], &[])), [(0, 7)]);
}

#[test]
fn a_jump_from_elsewhere_counts_even_where_no_function_is() {
    // Behind the function: e9, to the cmp and to the syscall; and one that is no jump at all but could be.
    let to = |target: i32, next: i32| [&[0xe9][..], &(target - next).to_le_bytes()].concat();
    let function: [&[u8]; 4] = [&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xc3]];
    assert_eq!(offsets(&plan_of(&function, &to(7, 14 + 5))), [(0, 7)]);
    let plan = plan_of(&function, &[to(7, 14 + 5), to(5, 19 + 5)].concat());
    assert_eq!((plan.windows.len(), &plan.left[..]), (0, &[(Left::Windowless, 39)][..]));
    assert_eq!(offsets(&plan_of(&function, &[0xff, 0x15, 0x74, 0xf6])), [(0, 7)]);
}

#[test]
fn what_may_not_move_stays() {
    let cases: [(&str, &[&[u8]]); 6] = [
        ("pop", &[&[0x5f], &SYSCALL, &[0x57, 0x57, 0x57]]),
        ("rsp", &[&[0x48, 0x83, 0xec, 0x08], &SYSCALL, &[0xc3]]),
        ("call", &[&[0xe8, 0, 0, 0, 0], &SYSCALL, &[0xc3]]),
        ("landing pad", &[&[0xf3, 0x0f, 0x1e, 0xfa], &SYSCALL, &[0xc3]]),
        ("relative to eip", &[&[0x67, 0x8b, 0x15, 0, 0, 0, 0], &SYSCALL, &[0xc3]]),
        ("too short", &[&[0x90], &SYSCALL, &[0xc3]]),
    ];
    for (name, function) in cases {
        let plan = plan_of(function, &[]);
        assert_eq!((plan.windows.len(), &plan.left[..]), (0, &[(Left::Windowless, ANY_NUMBER)][..]), "{name}");
    }
}

#[test]
fn restorers_switches_and_data_stay() {
    let plan = plan_of(&[&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &SYSCALL, &[0x90; 8]], &[]);
    assert_eq!((plan.windows.len(), plan.left.len(), plan.restorers), (0, 0, 1));
    // jmp rax
    let plan = plan_of(&[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xff, 0xe0]], &[]);
    assert_eq!((plan.windows.len(), &plan.left[..]), (0, &[(Left::Indirect, 39)][..]));
    // 06 is no instruction in 64-bit mode.
    let plan = plan_of(&[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0x06]], &[]);
    assert_eq!(plan, Plan { unknown: 1, ..Plan::default() });
}

#[test]
fn two_calls_do_not_share_bytes() {
    let plan = plan_of(&[&SYSCALL, &MOV_EAX_39, &SYSCALL, &[0xc3]], &[]);
    assert_eq!(offsets(&plan), [(0, 7)]);
    assert_eq!(plan.left.len(), 1);
}

#[test]
fn only_calls_that_are_wanted_are_kept() {
    let plan = plan_of(&[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xc3]], &[]);
    assert_eq!(plan.clone().keep(&|number| number == 39), plan);
    assert!(plan.may_call());
    let none = plan.keep(&|number| number == 40);
    assert_eq!(none, Plan { unwanted: 1, ..Plan::default() });
    assert!(!none.may_call());
}
