//! Stubs of hand-made windows, and plans for this process' own libc. Running patched code is tested with programs.

use super::sites::WAY_IN;
use super::*;
use farshore_sites::{Fixup, Part};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

const MOV_EAX_39: [u8; 5] = [0xb8, 39, 0, 0, 0];

#[test]
fn a_stub_has_its_site_first_and_operands_that_still_fit() {
    // syscall; mov rdx, [rip + 0x10]
    let code = [&SYSCALL[..], &[0x48, 0x8b, 0x15, 0x10, 0, 0, 0]].concat();
    let start = stubs::start() - 0x10_0000;
    let window = Window::new(start, &code, start + 2, 0, &[Fixup { at: 5, next: 9 }]).expect("a window");
    let address = stubs::start() + STUB_SIZE as u64;
    let bytes = stub(&window, address, Way::Awake.entry()).expect("near enough");
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
    let window = |code: &[&[u8]]| Window::new(0x1000, &code.concat(), 0x1007, 0, &[]).expect("a window");
    let stub = stubs::start();
    let patched = Patched::new(&window(&[&MOV_EAX_39, &SYSCALL, &[0x90; 3]]), stub, 0);
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
    let short = Patched::new(&window(&[&MOV_EAX_39, &SYSCALL]), stub, 0);
    assert_eq!((short.resume(), short.to_program(short.call())), (0x1007, 0x1005));
}

#[test]
fn behind_the_stub_of_any_number_each_place_tells_its_call() {
    // syscall; nop; nop; nop
    let window = Window::new(0x1000, &[&SYSCALL[..], &[0x90; 3]].concat(), 0x1002, ANY_NUMBER, &[]).expect("a window");
    assert_eq!((Way::Asleep.of(&window), Way::Awake.of(&window).1), ((asleep::entry_of_any(), asleep::PIECES), 0));
    let stub_at = stubs::start();
    let patched = Patched::new(&window, stub_at, asleep::PIECES);
    let head: [u8; STUB_HEAD] = [0x1002u64.to_le_bytes(), patched.resume().to_le_bytes()].concat().try_into().expect("two words");
    let piece = asleep::natively(&head);
    assert_eq!(piece[..STUB_HEAD], head);
    let mut told = Vec::new();
    for number in 1..=asleep::PIECES as u64 {
        let start = stub_at + number * STUB_SIZE as u64;
        let code = start + STUB_HEAD as u64;
        let decoder = Decoder::with_ip(64, &piece[STUB_HEAD..], code, DecoderOptions::NONE);
        let code: Vec<Instruction> = decoder.into_iter().take_while(|i| i.mnemonic() != Mnemonic::Int3).collect();
        let (made, out) = code.split_at(code.len() - 2);
        // The way out: rcx becomes what the head says, as the kernel leaves it.
        assert_eq!((out[0].mnemonic(), out[0].ip_rel_memory_address()), (Mnemonic::Mov, start + 8));
        assert_eq!(out[1].mnemonic(), Mnemonic::Jmp);
        for pair in made.chunks(2) {
            assert_eq!((pair[0].mnemonic(), pair[1].near_branch_target()), (Mnemonic::Syscall, out[0].ip()));
            let distance = |i: &Instruction| patched.behind_stub(i.ip()).expect("behind it");
            assert_eq!(asleep::made_at(distance(&pair[0])), (true, None));
            let (to_be_made, ended) = asleep::made_at(distance(&pair[1]));
            assert!(!to_be_made);
            told.extend(ended);
            assert_eq!((patched.to_program(pair[0].ip()), patched.to_program(pair[1].ip())), (0x1000, 0x1002));
        }
        assert_eq!(patched.to_program(out[1].ip()), 0x1002);
    }
    assert_eq!(told, asleep::TOLD_APART);
    let all = stub_at + ((1 + asleep::PIECES) * STUB_SIZE) as u64;
    assert_eq!((patched.behind_stub(stub_at), patched.behind_stub(all)), (None, None));
}

#[test]
fn a_text_out_of_reach_has_no_stub() {
    let code = [&SYSCALL[..], &[0x48, 0x8d, 0x15, 0, 0, 0, 0]].concat();
    let window = Window::new(0x1000, &code, 0x1002, 0, &[Fixup { at: 5, next: 9 }]).expect("a window");
    assert!(stub(&window, 0x1_0000_0000, Way::Awake.entry()).is_none());
}

/// This process' own libc and loader; none where it is not linked with glibc.
fn libc_images() -> Vec<Image<'static>> {
    let images = Maps::read().images(DEFAULT_NAMES);
    if images.is_empty() {
        eprintln!("skipped: this test is not linked with glibc");
    }
    images
}

/// Some numbers: those of a dormant process are among them, and one that is not known.
fn some(number: u64) -> bool {
    number == ANY_NUMBER || number.is_multiple_of(3)
}

#[test]
fn libc_is_found_and_nearly_all_of_it_can_be_patched() {
    let images = libc_images();
    let mut report = PatchReport::default();
    let plans: Vec<Plan> = images.iter().filter_map(|image| plan_by_search(image, &|_| true)).collect();
    plans.iter().for_each(|plan| report.add(plan));
    let planned: usize = plans.iter().map(|plan| plan.windows.len()).sum();
    assert!(images.is_empty() || report.sites > 300, "{report:?}");
    assert!(planned * 100 >= report.sites * 90, "{planned} of {report:?}");
}

#[test]
fn the_table_says_of_this_libc_what_a_search_finds() {
    let wanted: [&dyn Fn(u64) -> bool; 3] = [&|_| true, &some, &|_| false];
    for image in libc_images() {
        for wanted in wanted {
            let by_search = plan_by_search(&image, wanted).expect("libc says where its functions are");
            let by_table = plan_by_table(&TABLE, &image, wanted).expect("the library was built on this machine");
            assert_eq!(by_table, by_search);
            assert!(by_table.windows.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
            let mut reports = [PatchReport::default(), PatchReport::default()];
            reports[0].add(&by_table);
            reports[1].add(&by_search);
            assert_eq!(reports[0], reports[1]);
        }
    }
}

/// A copy of an image, in which one byte may be changed.
struct Copied {
    base: u64,
    parts: Vec<(u64, Vec<u8>, bool)>,
}

impl Copied {
    fn of(path: &std::path::Path) -> Option<Copied> {
        let file = std::fs::read(path).ok()?;
        let image = Image::of_file(&file)?;
        let parts: Vec<_> = image.parts().iter().map(|part| (part.start, part.bytes.to_vec(), part.executable)).collect();
        Some(Copied { base: parts.first()?.0, parts })
    }

    fn image(&self) -> Image<'_> {
        let parts = self.parts.iter().map(|(start, bytes, executable)| Part { start: *start, bytes, executable: *executable });
        Image::new(self.base, parts.collect()).expect("it was one")
    }

    fn byte(&mut self, at: u64) -> &mut u8 {
        let (start, bytes, _) =
            self.parts.iter_mut().find(|(start, bytes, _)| (*start..start + bytes.len() as u64).contains(&at)).expect("in it");
        &mut bytes[(at - *start) as usize]
    }
}

#[test]
fn another_build_id_and_another_byte_in_a_window_have_the_image_searched() {
    let files = farshore_sites::installed::files();
    let Some(path) = files.iter().find(|path| farshore_sites::is_named(&path.to_string_lossy(), DEFAULT_NAMES)) else {
        return eprintln!("skipped: this test is not linked with glibc");
    };
    let mut copied = Copied::of(path).expect("an image");
    let known = |copied: &Copied, wanted: &dyn Fn(u64) -> bool| plan_by_table(&TABLE, &copied.image(), wanted);
    let plan = known(&copied, &|_| true).expect("the library was built on this machine");
    for window in &plan.windows {
        for at in window.range.clone() {
            let before = std::mem::replace(copied.byte(at), INT3);
            // A byte that is one already is no other.
            assert_eq!(known(&copied, &|_| true).is_some(), before == INT3, "{at:#x}");
            *copied.byte(at) = before;
        }
    }
    // A window that is not used is not looked at: its page need not even be there.
    let (one, other) =
        (&plan.windows[0], plan.windows.iter().find(|other| other.number != plan.windows[0].number).expect("another"));
    *copied.byte(one.site - 1) = INT3;
    assert!(known(&copied, &|number| number == other.number).is_some());
    assert!(known(&copied, &|number| number == one.number).is_none());
    // What the search makes of it: the site is gone, and nothing else.
    let searched = plan_by_search(&copied.image(), &|_| true).expect("functions");
    assert!(searched.windows.iter().all(|window| window.site != one.site));
    *copied.byte(one.site - 1) = SYSCALL[1];
    assert!(known(&copied, &|_| true).is_some());
    let id = copied.image().build_id().expect("in the table").to_vec();
    let part = copied.parts[0].1.windows(id.len()).position(|bytes| bytes == id).expect("in the first part");
    copied.parts[0].1[part] ^= 1;
    assert!(known(&copied, &|_| true).is_none());
}

#[test]
fn an_empty_table_knows_nothing() {
    for image in libc_images() {
        for table in [&farshore_sites::table::Writer::default().finish()[..], &[], &TABLE[..20]] {
            assert!(plan_by_table(table, &image, &|_| true).is_none());
        }
    }
}
