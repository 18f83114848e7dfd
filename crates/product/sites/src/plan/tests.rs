//! Planning on hand-made text.

use super::*;
use crate::SYSCALL;
use crate::functions::FUNCTION_MOST;

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

/// Where the text of [`elf`] begins.
const TEXT: usize = 0x1000;

/// An ELF file with a text, and a table of some functions of it: offset and length.
fn elf(text: &[u8], functions: &[(usize, u32)]) -> Vec<u8> {
    const TABLE: usize = 0x200;
    const FRAMES: usize = 0x400;
    let mut file = vec![0; TEXT];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    let word = |value: usize| (value as u64).to_le_bytes();
    let distance = |from: usize, to: usize| (to as i32 - from as i32).to_le_bytes();
    put(0, b"\x7fELF\x02\x01");
    put(0x20, &word(0x40));
    put(0x36, &[0x38, 0, 2, 0]);
    // All of the file, as code; and the table.
    for (at, kind, flags, start, length) in [(0x40, 1_u32, 5_u32, 0, TEXT + text.len()), (0x78, 0x6474_e550, 4, TABLE, 0x100)] {
        put(at, &kind.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        for field in [8, 16, 24] {
            put(at + field, &word(start));
        }
        put(at + 32, &word(length));
        put(at + 40, &word(length));
    }
    put(TABLE, &[1, 0x1b, 0x03, 0x3b]);
    put(TABLE + 8, &(functions.len() as u32).to_le_bytes());
    // What is in common: "zR", and distances from the place itself.
    put(FRAMES, &[20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b]);
    for (index, &(offset, length)) in functions.iter().enumerate() {
        let (row, entry) = (TABLE + 12 + index * 8, FRAMES + 24 + index * 24);
        put(row, &distance(TABLE, TEXT + offset));
        put(row + 4, &distance(TABLE, entry));
        put(entry, &20_u32.to_le_bytes());
        put(entry + 4, &distance(FRAMES, entry + 4));
        put(entry + 8, &distance(entry + 8, TEXT + offset));
        put(entry + 12, &length.to_le_bytes());
    }
    file.extend_from_slice(text);
    file
}

/// A text of `size` bytes that makes call 39, whose `syscall` ends at `end`.
fn text_with_call(size: usize, end: usize) -> Vec<u8> {
    let mut text = vec![0x90; size];
    text[end - 7..end].copy_from_slice(&[&MOV_EAX_39[..], &SYSCALL].concat());
    text
}

#[test]
fn text_that_no_table_knows_is_not_decoded_as_one_function() {
    // What lies behind a function is taken for its rest, where it is short.
    for (size, known) in
        [(0x1000, true), (FUNCTION_MOST as usize + 1, true), (FUNCTION_MOST as usize + 2, false), (9 << 20, false)]
    {
        let text = text_with_call(size, size - 1);
        let file = elf(&text, &[(0, 16), (size - 1, 1)]);
        let image = Image::of_file(&file).expect("an image");
        let functions = image.functions().expect("a table");
        assert_eq!((functions.all.len(), functions.unknown), (usize::from(known), usize::from(!known)), "{size:#x}");
        assert!(image.may_call(&|number| number == 39), "{size:#x}");
        assert_eq!(image.may_call(&|number| number == 40), !known, "{size:#x}");
        assert_eq!(image.number_before((TEXT + size - 1) as u64), known.then_some(39), "{size:#x}");
        let text = Text { start: TEXT as u64, bytes: &text };
        // The second byte of the number. So far it is decoded, whatever comes then.
        let at = size - 1 - 4;
        assert_eq!(functions.is_inside_instruction(&text, (TEXT + at) as u64), (at as u64) < FUNCTION_MOST, "{size:#x}");
    }
}

#[test]
fn calls_are_found_where_pieces_of_a_text_meet() {
    let border = PIECE as usize - TEXT;
    for end in border - 1..border + 8 {
        let text = text_with_call(3 << 20, end);
        let file = elf(&text, &[(0, 16), (end - 32, 64)]);
        let image = Image::of_file(&file).expect("an image");
        assert!(image.may_call(&|number| number == 39) && !image.may_call(&|number| number == 40), "{end:#x}");
    }
    // A restorer is none, wherever it is.
    for end in border - 1..border + 8 {
        let mut text = vec![0x90; 3 << 20];
        text[end - 9..end].copy_from_slice(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05]);
        let file = elf(&text, &[(0, 16)]);
        assert!(!Image::of_file(&file).expect("an image").may_call(&|_| true), "{end:#x}");
    }
}
