//! Planning on hand-made text and on this process' own libc. Running patched code is tested with programs.

use super::search::{each_match, far_jumps, is_syscall, short_jumps};
use super::sites::WAY_IN;
use super::*;

const MOV_EAX_39: [u8; 5] = [0xb8, 39, 0, 0, 0];
const CMP_RAX: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];

/// Plans for one function at `start`, with `rest` behind it in the text.
fn plan_of(start: u64, function: &[&[u8]], rest: &[u8]) -> (Vec<Window>, PatchReport, Vec<u8>) {
    let mut bytes = function.concat();
    let end = start + bytes.len() as u64;
    bytes.extend_from_slice(rest);
    let mut report = PatchReport::default();
    let functions = Functions { all: std::iter::once(start..end).collect(), ..Functions::default() };
    let plans = plan(&Text { start, bytes: &bytes }, &functions, &|_| true, &mut report);
    (plans, report, bytes)
}

fn offsets(windows: &[Window]) -> Vec<(u64, u64)> {
    windows.iter().map(|window| (window.range.start - 0x1000, window.range.end - 0x1000)).collect()
}

#[test]
fn a_wrapper_gives_up_its_compare() {
    let (plans, report, _) = plan_of(0x1000, &[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0x77, 0x01, 0xc3, 0xc3]], &[]);
    assert_eq!(offsets(&plans), [(5, 13)]);
    assert_eq!((report.sites, plans[0].site), (1, 0x1007));
}

#[test]
fn what_ends_after_the_call_gives_up_what_comes_before() {
    let (plans, ..) = plan_of(0x1000, &[&MOV_EAX_39, &SYSCALL, &[0xc3]], &[]);
    assert_eq!(offsets(&plans), [(0, 7)]);
}

#[test]
fn a_jump_to_the_compare_moves_the_window() {
    // jmp to the cmp: the window behind is out, the one before is not.
    let (plans, ..) = plan_of(0x1000, &[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xc3, 0xeb, 0xf7]], &[]);
    assert_eq!(offsets(&plans), [(0, 7)]);
}

#[test]
fn a_jump_from_elsewhere_counts_even_where_no_function_is() {
    // Behind the function: e9, to the cmp and to the syscall; and one that is no jump at all but could be.
    let to = |target: i32, next: i32| [&[0xe9][..], &(target - next).to_le_bytes()].concat();
    let function: [&[u8]; 4] = [&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xc3]];
    let (plans, ..) = plan_of(0x1000, &function, &to(7, 14 + 5));
    assert_eq!(offsets(&plans), [(0, 7)]);
    let (plans, report, _) = plan_of(0x1000, &function, &[to(7, 14 + 5), to(5, 19 + 5)].concat());
    assert_eq!((plans.len(), report.windowless), (0, 1));
    let (plans, ..) = plan_of(0x1000, &function, &[0xff, 0x15, 0x74, 0xf6]);
    assert_eq!(offsets(&plans), [(0, 7)]);
}

#[test]
fn what_may_not_move_stays() {
    let cases: [(&str, &[&[u8]]); 5] = [
        ("pop", &[&[0x5f], &SYSCALL, &[0x57, 0x57, 0x57]]),
        ("rsp", &[&[0x48, 0x83, 0xec, 0x08], &SYSCALL, &[0xc3]]),
        ("call", &[&[0xe8, 0, 0, 0, 0], &SYSCALL, &[0xc3]]),
        ("landing pad", &[&[0xf3, 0x0f, 0x1e, 0xfa], &SYSCALL, &[0xc3]]),
        ("too short", &[&[0x90], &SYSCALL, &[0xc3]]),
    ];
    for (name, function) in cases {
        let (plans, report, _) = plan_of(0x1000, function, &[]);
        assert_eq!((plans.len(), report.sites, report.windowless), (0, 1, 1), "{name}");
    }
}

#[test]
fn restorers_switches_and_data_stay() {
    let (plans, report, _) = plan_of(0x1000, &[&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &SYSCALL, &[0x90; 8]], &[]);
    assert_eq!((plans.len(), report.restorers), (0, 1));
    // jmp rax
    let (plans, report, _) = plan_of(0x1000, &[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0xff, 0xe0]], &[]);
    assert_eq!((plans.len(), report.indirect), (0, 1));
    // 06 is no instruction in 64-bit mode.
    let (plans, report, _) = plan_of(0x1000, &[&MOV_EAX_39, &SYSCALL, &CMP_RAX, &[0x06]], &[]);
    assert_eq!((plans.len(), report.sites), (0, 0));
}

#[test]
fn two_calls_do_not_share_bytes() {
    let (plans, report, _) = plan_of(0x1000, &[&SYSCALL, &MOV_EAX_39, &SYSCALL, &[0xc3]], &[]);
    assert_eq!(offsets(&plans), [(0, 7)]);
    assert_eq!((report.sites, report.windowless), (2, 1));
}

#[test]
fn a_stub_has_its_site_first_and_operands_that_still_fit() {
    // syscall; mov rdx, [rip + 0x10]; ret. The moved instruction is encoded at the stub's address.
    let function: [&[u8]; 3] = [&SYSCALL, &[0x48, 0x8b, 0x15, 0x10, 0, 0, 0], &[0xc3]];
    let start = stubs::start() - 0x10_0000;
    let (plans, _, bytes) = plan_of(start, &function, &[]);
    let address = stubs::start() + STUB_SIZE as u64;
    let bytes = stub(&Text { start, bytes: &bytes }, &plans[0], address, Way::Awake).expect("near enough");
    assert_eq!(bytes[..8], (start + 2).to_le_bytes());
    let code: Vec<Instruction> =
        Decoder::with_ip(64, &bytes[STUB_HEAD..], address + STUB_HEAD as u64, DecoderOptions::NONE).into_iter().take(4).collect();
    assert_eq!(bytes[8..16], code[2].ip().to_le_bytes());
    assert_eq!(code[0].ip_rel_memory_address(), address);
    assert_eq!(code[1].near_branch_target(), farshore_entry as *const () as u64);
    assert_eq!((code[2].mnemonic(), code[2].ip_rel_memory_address()), (Mnemonic::Mov, start + 9 + 0x10));
    assert_eq!(code[3].near_branch_target(), start + 9);
}

#[test]
fn each_address_of_a_stub_stands_for_one_of_the_window() {
    // mov eax, 39; syscall; nop; nop; nop: the window is all of it.
    let window = Window { range: 0x1000..0x100a, site: 0x1007, number: 0 };
    let stub = stubs::start();
    let patched = Patched::new(&window, stub);
    let (code, call) = (stub + STUB_HEAD as u64, stub + STUB_HEAD as u64 + 5);
    assert_eq!((patched.call(), patched.resume()), (call, call + WAY_IN));
    for (in_stub, in_program) in
        [(code, 0x1000), (call, 0x1005), (call + 7, 0x1005), (call + WAY_IN, 0x1007), (call + WAY_IN + 2, 0x1009)]
    {
        assert_eq!(patched.to_program(in_stub), in_program, "{:#x}", in_stub - code);
    }
    // The jump back is behind the last instruction.
    assert_eq!(patched.to_program(call + WAY_IN + 3), 0x100a);
    for (in_program, in_stub) in [(0x1005, call), (0x1007, call + WAY_IN), (0x1009, call + WAY_IN + 2)] {
        assert_eq!(patched.to_stub(in_program), in_stub, "{in_program:#x}");
    }
    assert!(patched.is_way_in(call + 7) && !patched.is_way_in(call) && !patched.is_way_in(patched.resume()));
    // Nothing is moved behind the call: it goes on where the window ends.
    let short = Patched::new(&Window { range: 0x1000..0x1007, site: 0x1007, number: 0 }, stub);
    assert_eq!((short.resume(), short.to_program(short.call())), (0x1007, 0x1005));
}

#[test]
fn a_text_out_of_reach_has_no_stub() {
    let (plans, _, bytes) = plan_of(0x1000, &[&SYSCALL, &[0x48, 0x8d, 0x15, 0, 0, 0, 0], &[0xc3]], &[]);
    assert!(stub(&Text { start: 0x1000, bytes: &bytes }, &plans[0], 0x1_0000_0000, Way::Awake).is_none());
}

#[test]
fn the_far_search_agrees_with_a_plain_one() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for length in [0, 1, 5, 15, 16, 17, 31, 63, 64, 65, 129, 400] {
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            [0xe8, 0xe9, 0x0f, 0x85, 0xc7, 0xf8, 0x00, 0xff][(seed >> 32) as usize % 8]
        };
        let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        let mut found = Vec::new();
        far_jumps(&bytes, &mut |at, target| found.push((at, target)));
        let plain = (0..length).filter_map(|at| {
            let distance = match (bytes[at], bytes.get(at + 1).copied().unwrap_or(0)) {
                (0xe8 | 0xe9, _) => at + 1,
                (0x0f, 0x80..=0x8f) | (0xc7, 0xf8) => at + 2,
                _ => return None,
            };
            let displacement = i32::from_le_bytes(bytes.get(distance..distance + 4)?.try_into().ok()?);
            Some((at, (distance + 4).wrapping_add_signed(displacement as isize)))
        });
        assert_eq!(found, plain.collect::<Vec<_>>());
    }
}

#[test]
fn the_short_search_and_the_one_for_syscalls_agree_with_plain_ones() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for length in [0, 1, 2, 15, 16, 17, 33, 63, 64, 65, 66, 128, 129, 400] {
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            [0x6f, 0x70, 0x7f, 0x80, 0xe0, 0xe3, 0xe4, 0xeb, 0x0f, 0x05][(seed >> 32) as usize % 10]
        };
        let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        let (mut found, mut sites) = (Vec::new(), Vec::new());
        let sources = length / 7..length - length / 9;
        short_jumps(&bytes, sources.clone(), &mut |at, target| found.push((at, target)));
        let plain = sources.filter_map(|at| {
            let distance = *bytes.get(at + 1)?;
            matches!(bytes[at], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
                .then(|| (at, (at + 2).wrapping_add_signed(isize::from(distance as i8))))
        });
        assert_eq!(found, plain.collect::<Vec<_>>());
        each_match(&bytes, is_syscall, |at| sites.push(at));
        let plain = (0..length).filter(|&at| bytes.get(at..at + 2) == Some(&SYSCALL));
        assert_eq!(sites, plain.collect::<Vec<_>>());
    }
}

#[test]
fn libc_is_found_and_nearly_all_of_it_can_be_patched() {
    let maps = read_maps();
    let images = images(&maps, DEFAULT_NAMES);
    if images.is_empty() {
        eprintln!("skipped: this test is not linked with glibc");
        return;
    }
    let (mut report, mut planned) = (PatchReport::default(), 0);
    for image in &images {
        for text in &image.texts {
            // SAFETY: mapped text of a library.
            let bytes = unsafe { std::slice::from_raw_parts(text.start as *const u8, (text.end - text.start) as usize) };
            planned += plan(&Text { start: text.start, bytes }, &image.functions, &|_| true, &mut report).len();
        }
    }
    assert!(report.sites > 300, "{report:?}");
    assert!(planned * 100 > report.sites * 90, "{planned} of {report:?}");
}

#[test]
fn lines_of_maps_are_read() {
    let line = "7f00a000-7f00b000 r-xp 00002000 fe:00 123                        /usr/lib/libc.so.6";
    let mapping = parse_mapping(line).expect("a file");
    assert_eq!((mapping.range, mapping.permissions, mapping.offset), (0x7f00_a000..0x7f00_b000, "r-xp", 0x2000));
    assert_eq!(mapping.path, "/usr/lib/libc.so.6");
    assert_eq!(parse_mapping("7f00a000-7f00b000 rw-p 00000000 00:00 0 "), None);
    assert_eq!(parse_mapping("7ffc0000-7ffd0000 rw-p 00000000 00:00 0       [stack]"), None);
}
