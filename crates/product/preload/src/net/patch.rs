//! Puts a jump over the `syscall` instructions of libc and the loader, so that their calls need no trap.
//!
//! Runs while there is one thread: at start-up, and where a process is dormant first ([`crate::dormant`]) once for the calls that may wake it, and
//! for all others when it wakes. What cannot be patched with certainty stays as it is: Syscall User Dispatch catches it, slower by microseconds.
//! So every doubt below is settled by leaving the site alone.
//!
//! # A site
//!
//! A `syscall` has 2 bytes, the jump 5. A *window* of whole instructions around the `syscall` is moved into a stub
//! (`stubs.rs`) and the jump put in its place:
//!
//! ```text
//! libc, before:   mov eax, 39 | syscall | cmp rax, -4096 | ja error
//! libc, after:    mov eax, 39 | jmp stub; int3 ...       | ja error
//! stub:           site, resume; lea r11, [the two]; jmp farshore_entry; resume: cmp rax, -4096; jmp back
//! ```
//!
//! # What must hold
//!
//! 1. **Instructions are instructions.** Only functions that `.eh_frame` names are decoded, each from its first byte, up to the next one where
//!    the call lies behind what the description covers (`clone`).
//!    One invalid instruction, and the function is left alone. So data in text is never taken for code.
//! 2. **Nobody jumps into a window.** The jumps of the decoded functions are known. The rest of the text is searched for
//!    direct jumps and calls at every byte offset, also where no instruction begins: that finds too many, never too few. What is found in
//!    a function that can be decoded is one if an instruction begins there. A window into whose inside one leads is dropped. A function with an indirect jump (a `switch` table) is left alone:
//!    its targets are not known. Windows may begin at a target.
//! 3. **Moved instructions do the same elsewhere.** No jumps, calls, returns, landing pads, and none that change `rsp`, on
//!    which the stubs' unwind rule relies. Operands relative to `rip` are encoded anew; all else is copied byte by byte.
//! 4. **Whoever looks at the code finds it.** `rt_sigreturn`'s restorer is recognised by its bytes (unwinders) and runs on
//!    the bare signal frame, so it stays. Functions whose unwind information marks a signal frame stay.
//!
//! The sites of `clone`, `vfork` and `fork` are patched: the entry handles them exactly.
//!
//! The text is made writable *and* executable for the time of the patch, since this code calls into libc (`memcpy`). The
//! stubs' room is ours and is never both. If the kernel or a security module refuses, all is left to Syscall User Dispatch.

use super::entry::{farshore_entry, raw};
use super::stubs::{self, STUB_HEAD, STUB_SIZE, StubBytes, Stubs};
use iced_x86::{Decoder, DecoderOptions, Encoder, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

mod image;
mod search;
mod sites;

use image::{Functions, Mapping, image, images, is_named, parse_mapping, read_maps};
use search::{each_match, is_syscall, targets_inside};
pub(super) use sites::of_stub;
use sites::{Patched, remember};
pub use sites::{call_in_stub, to_stub};

/// Files whose text is patched: those whose name begins with one of these.
pub const DEFAULT_NAMES: &[&str] = &["libc.so.6", "libc-2.", "ld-linux-x86-64.so.2", "ld-2.", "libpthread"];

/// Where stubs lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the entry.
    Awake,
    /// To the entry of a dormant process.
    Asleep,
}

impl Way {
    fn entry(self) -> u64 {
        match self {
            Way::Awake => farshore_entry as *const () as u64,
            Way::Asleep => super::entry::asleep::entry(),
        }
    }
}

/// What [`patch`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PatchReport {
    /// `syscall` instructions found.
    pub sites: usize,
    /// Those that now jump to a stub.
    pub patched: usize,
    /// Those that are left to Syscall User Dispatch: the sum of the five below.
    pub left: usize,
    /// Left: restorers of signal handlers.
    pub restorers: usize,
    /// Left: in functions with indirect jumps.
    pub indirect: usize,
    /// Left: no window of movable instructions that nobody jumps into.
    pub windowless: usize,
    /// Left: farther than 2 GiB from the stubs, or no stub was free.
    pub unreachable: usize,
    /// Left: the kernel refused to make the text or the stubs writable.
    pub refused: usize,
    /// The kernel's reason for the last refusal, a negative errno; or 0.
    pub refusal: i64,
    /// Files that were looked at.
    pub files: usize,
    /// Not in [`PatchReport::sites`]: of calls that nobody wants to see.
    pub unwanted: usize,
    /// Bytes of a `syscall` in text of which it is not known what it is.
    pub unknown: usize,
    /// What is left although it is wanted: the numbers of calls that are not caught, [`ANY_NUMBER`] for one that is not known.
    pub escapes: Vec<u64>,
}

/// The number of a call of which nobody can tell before it is made.
pub const ANY_NUMBER: u64 = u64::MAX;

impl PatchReport {
    /// Adds one of the reasons why a site is left.
    fn leave(&mut self, reason: impl FnOnce(&mut PatchReport) -> &mut usize, numbers: &[u64]) {
        *reason(self) += numbers.len();
        self.escapes.extend(numbers);
    }
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const JUMP_LENGTH: usize = 5;
const INT3: u8 = 0xcc;
const NR_READ: u64 = 0;
const NR_OPEN: u64 = 2;
const NR_CLOSE: u64 = 3;
const NR_MPROTECT: u64 = 10;
const PROT_READ_WRITE: u64 = 3;
const PROT_READ_EXEC: u64 = 5;
const PROT_ALL: u64 = 7;
const O_CLOEXEC: u64 = 0o2_000_000;

/// Patches the calls that are `wanted`, by number, in the files whose names begin with one of `names`; a number that is not known before the call is
/// [`ANY_NUMBER`]. Call [`super::entry::init`] before. It may be called again for more.
///
/// # Safety
/// Called while the process has one thread and no handler of a signal can run on it; what is put behind the entry
/// is ready to be called.
pub unsafe fn patch(names: &[&str], wanted: &dyn Fn(u64) -> bool, way: Way) -> PatchReport {
    let mut report = PatchReport::default();
    if way == Way::Awake {
        // SAFETY: one thread, the caller says.
        unsafe { lead_all_to_entry() };
    }
    // SAFETY: one thread, the caller says, and this is the only place where they are used.
    let mut stubs = unsafe { Stubs::unused() };
    let maps = read_maps();
    for image in images(&maps, names) {
        report.files += 1;
        report.unknown += image.functions.unknown;
        for text in &image.texts {
            // SAFETY: a readable, executable mapping of a library, which is not unmapped while the process starts.
            let bytes = unsafe { std::slice::from_raw_parts(text.start as *const u8, (text.end - text.start) as usize) };
            let text = Text { start: text.start, bytes };
            let plans = plan(&text, &image.functions, wanted, &mut report);
            // SAFETY: one thread, the caller says; the plans are for this text, which is mapped where it says.
            unsafe { apply(&text, &plans, &mut stubs, way, &mut report) };
        }
    }
    report.left = report.restorers + report.indirect + report.windowless + report.unreachable + report.refused;
    report
}

/// Whether there are the bytes of a `syscall` in code: of a file that is being loaded nothing else can be read yet.
///
/// # Safety
/// Readable memory, which nobody takes away meanwhile.
pub unsafe fn has_syscalls(code: Range<u64>) -> bool {
    // SAFETY: this function's own condition.
    let bytes = unsafe { std::slice::from_raw_parts(code.start as *const u8, (code.end - code.start) as usize) };
    let mut found = false;
    each_match(bytes, is_syscall, |_| found = true);
    found
}

/// The number of the call whose `syscall` ends at `site`, in the text of a file; `None`: it is not known.
pub fn number_before(site: u64) -> Option<u64> {
    let maps = read_maps();
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(parse_mapping).collect();
    let text = mappings.iter().find(|mapping| mapping.range.contains(&site) && mapping.permissions.contains('x'))?;
    let first = mappings.iter().find(|first| first.path == text.path && first.offset == 0)?;
    let image = image(first, &mappings)?;
    let function = image.functions.all.iter().find(|function| function.start < site && site <= function.end)?;
    // SAFETY: readable text of a file; there is one thread.
    let bytes = unsafe { std::slice::from_raw_parts(function.start as *const u8, (function.end - function.start) as usize) };
    let instructions: Vec<Instruction> = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE).iter().collect();
    let at = instructions.iter().position(|i| i.next_ip() == site && i.mnemonic() == Mnemonic::Syscall)?;
    number_of(&instructions, at, &[])
}

/// Whether code may make one of these calls by an instruction of its own, in all that is mapped executable from files but the patched ones (`names`) and us. What may call first: its path.
pub fn others_may_call(names: &[&str], wanted: &dyn Fn(u64) -> bool) -> Option<String> {
    let maps = read_maps();
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(parse_mapping).collect();
    let own = stubs::start();
    let own = mappings.iter().find(|mapping| mapping.range.contains(&own)).map_or("", |own| own.path);
    let is_other = |path: &str| path != own && !is_named(path, names);
    let executable = |mapping: &&Mapping<'_>| mapping.permissions.contains('x') && is_other(mapping.path);
    let calls = |mapping: &&Mapping<'_>| {
        let first = mappings.iter().find(|first| first.path == mapping.path && first.offset == 0);
        first.is_none_or(|first| text_may_call(first, &mappings, wanted))
    };
    mappings.iter().filter(executable).find(calls).map(|mapping| mapping.path.to_owned())
}

fn text_may_call(first: &Mapping<'_>, mappings: &[Mapping<'_>], wanted: &dyn Fn(u64) -> bool) -> bool {
    let mut report = PatchReport::default();
    let Some(image) = image(first, mappings) else { return true };
    if image.functions.unknown > 0 {
        return true;
    }
    image.texts.iter().any(|text| {
        // SAFETY: a readable, executable mapping of a file that nobody unmaps meanwhile: there is one thread.
        let bytes = unsafe { std::slice::from_raw_parts(text.start as *const u8, (text.end - text.start) as usize) };
        let (text, mut code) = (Text { start: text.start, bytes }, Code::default());
        for function in image.functions.all.iter().filter(|function| text.slice(function).is_some()) {
            let bytes = text.slice(function).unwrap_or_default();
            if !read_function(function, bytes, &mut code, wanted, &mut report) {
                return true;
            }
        }
        report.sites > report.restorers
    })
}

// ---- what to do ---------------------------------------------------------------------------------------------------

/// An executable part of a library.
struct Text<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl Text<'_> {
    fn slice(&self, range: &Range<u64>) -> Option<&[u8]> {
        let start = range.start.checked_sub(self.start)? as usize;
        self.bytes.get(start..start.checked_add((range.end - range.start) as usize)?)
    }
}

/// Whole instructions around a `syscall`.
#[derive(Clone)]
struct Window {
    range: Range<u64>,
    /// Behind the `syscall`.
    site: u64,
    /// Number of the call, or [`ANY_NUMBER`].
    number: u64,
}

impl Window {
    /// Starts of instructions but the first: nobody may jump to these, nor into the middle of an instruction.
    fn inside(&self) -> Range<u64> {
        self.range.start + 1..self.range.end
    }
}

/// What the functions of a text say about it.
#[derive(Default)]
struct Code {
    /// Sites that may be patched: the number of each call, and the possible windows of each, the best first.
    sites: Vec<u64>,
    choices: Vec<Window>,
    /// Functions that were decoded, in order, and the targets of all jumps and calls in them.
    decoded: Vec<Range<u64>>,
    targets: Vec<u64>,
    /// Those of the function that is being read.
    instructions: Vec<Instruction>,
}

impl Code {
    /// The windows of each site that has any.
    fn choices_by_site(choices: &[Window]) -> impl Iterator<Item = &[Window]> {
        choices.chunk_by(|one, other| one.site == other.site)
    }
}

/// How many instructions before and after the `syscall`, the best first.
const SHAPES: [(usize, usize); 9] = [(0, 1), (1, 0), (0, 2), (1, 1), (2, 0), (0, 3), (1, 2), (2, 1), (3, 0)];

/// The windows to use in `text`.
fn plan(text: &Text<'_>, functions: &Functions, wanted: &dyn Fn(u64) -> bool, report: &mut PatchReport) -> Vec<Window> {
    let mut code = Code::default();
    for function in &functions.all {
        if let Some(bytes) = text.slice(function)
            && !read_function(function, bytes, &mut code, wanted, report)
        {
            report.unknown += 1;
        }
    }
    let targets = targets_inside(text, &mut code, |at| functions.is_inside_instruction(text, at));
    let mut chosen: Vec<Window> = Vec::new();
    for windows in Code::choices_by_site(&code.choices) {
        let free = |window: &&Window| {
            let hit = targets.partition_point(|&target| target < window.range.start + 1);
            let jumped_into = targets.get(hit).is_some_and(|target| window.inside().contains(target));
            // Sites of one function come in order, and functions do not overlap; so only the last can be in the way.
            let overlaps = chosen
                .iter()
                .rev()
                .take(4)
                .any(|other| other.range.start < window.range.end && window.range.start < other.range.end);
            !jumped_into && !overlaps
        };
        chosen.extend(windows.iter().find(free).cloned());
    }
    let mut without = code.sites;
    for window in &chosen {
        without.extract_if(.., |number| *number == window.number).next();
    }
    report.leave(|report| &mut report.windowless, &without);
    chosen
}

/// Adds the wanted sites of a function to `code`, and counts them. False: it cannot be read.
fn read_function(
    function: &Range<u64>,
    bytes: &[u8],
    code: &mut Code,
    wanted: &dyn Fn(u64) -> bool,
    report: &mut PatchReport,
) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
    let instructions = &mut code.instructions;
    instructions.clear();
    instructions.extend(decoder.iter());
    if instructions.iter().any(Instruction::is_invalid) {
        return false;
    }
    code.decoded.push(function.clone());
    let direct = instructions.iter().filter(|i| matches!(i.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32));
    let first_target = code.targets.len();
    code.targets.extend(direct.map(Instruction::near_branch_target));
    let sites = (0..instructions.len()).filter(|&index| instructions[index].mnemonic() == Mnemonic::Syscall);
    let is_indirect = instructions.iter().any(|instruction| instruction.flow_control() == FlowControl::IndirectBranch);
    for site in sites {
        if sets_sigreturn(&instructions[..site]) {
            report.sites += 1;
            report.restorers += 1;
            continue;
        }
        let number = number_of(instructions, site, &code.targets[first_target..]).unwrap_or(ANY_NUMBER);
        if !wanted(number) {
            report.unwanted += 1;
            continue;
        }
        report.sites += 1;
        if is_indirect {
            report.leave(|report| &mut report.indirect, &[number]);
        } else {
            code.sites.push(number);
            code.choices.extend(SHAPES.iter().filter_map(|&shape| window(instructions, site, number, shape)));
        }
    }
    true
}

/// The number that an instruction loads into `rax`.
fn loads_number(instruction: &Instruction) -> Option<u64> {
    let is_rax = |register: Register| register.full_register() == Register::RAX;
    if instruction.op_count() < 2 || !is_rax(instruction.op0_register()) {
        return None;
    }
    let constant = matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64);
    match instruction.mnemonic() {
        Mnemonic::Mov if constant => Some(instruction.immediate(1)),
        Mnemonic::Xor if instruction.op1_register() == instruction.op0_register() => Some(0),
        _ => None,
    }
}

/// Whether it is one of those that load arguments, and surely does not change `rax`.
fn leaves_rax(instruction: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Lea, Mov, Movsx, Movsxd, Movzx, Nop, Or, Sar, Shl, Shr, Sub, Test, Xor};
    let known = matches!(
        instruction.mnemonic(),
        Add | And | Cmp | Lea | Mov | Movsx | Movsxd | Movzx | Nop | Or | Sar | Shl | Shr | Sub | Test | Xor
    );
    known && (instruction.op0_kind() != OpKind::Register || instruction.op0_register().full_register() != Register::RAX)
}

/// Whether the last instruction sets `rax` to the number of `rt_sigreturn`.
fn sets_sigreturn(before: &[Instruction]) -> bool {
    before.last().and_then(loads_number) == Some(15)
}

/// The number of the call at `site`, if the instructions right before it say so, and no jump of the function leads between them. (A jump by a table leads to where a
/// case begins, which loads what it needs.)
fn number_of(function: &[Instruction], site: usize, targets: &[u64]) -> Option<u64> {
    /// Instructions that load arguments come between.
    const FAR: usize = 16;
    for instruction in function[..site].iter().rev().take(FAR) {
        if targets.contains(&instruction.next_ip()) || instruction.flow_control() != FlowControl::Next {
            return None;
        }
        if let Some(number) = loads_number(instruction) {
            return Some(number);
        }
        if instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::EAX {
            return constant_in(function, instruction.op1_register());
        }
        if !leaves_rax(instruction) {
            return None;
        }
    }
    None
}

/// What a register holds wherever it is used, if the function loads one number into it and nothing else.
fn constant_in(function: &[Instruction], register: Register) -> Option<u64> {
    let is_it = |other: Register| other.full_register() == register.full_register();
    let (mut number, mut others) = (None, false);
    for instruction in function.iter().filter(|i| i.op0_kind() == OpKind::Register && is_it(i.op0_register())) {
        let constant = instruction.op_count() == 2 && instruction.op1_kind() == OpKind::Immediate32;
        match instruction.mnemonic() {
            Mnemonic::Mov if constant && number.is_none_or(|number| number == instruction.immediate(1)) => {
                number = Some(instruction.immediate(1));
            }
            // The caller's, which is kept.
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Cmp | Mnemonic::Test => {}
            _ => others = true,
        }
    }
    number.filter(|_| {
        register.is_gpr32() && !others && !matches!(register, Register::EAX | Register::ECX | Register::EDX | Register::R11D)
    })
}

/// The window of this shape, if it is long enough and all in it can be moved.
fn window(instructions: &[Instruction], site: usize, number: u64, (before, after): (usize, usize)) -> Option<Window> {
    let first = site.checked_sub(before)?;
    let before = &instructions[first..site];
    let after = instructions.get(site + 1..=site + after)?;
    let end = after.last().unwrap_or(&instructions[site]).next_ip();
    let range = instructions[first].ip()..end;
    if range.end - range.start < JUMP_LENGTH as u64 || !before.iter().chain(after).all(is_movable) {
        return None;
    }
    Some(Window { range, site: instructions[site].next_ip(), number })
}

fn is_movable(instruction: &Instruction) -> bool {
    let changes_rsp = instruction.is_stack_instruction()
        || instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == Register::RSP
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op1_register().full_register() == Register::RSP;
    instruction.flow_control() == FlowControl::Next
        && !changes_rsp
        && !matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32 | Mnemonic::Syscall)
}

// ---- doing it -----------------------------------------------------------------------------------------------------

/// # Safety
/// As for [`patch`]; `windows` are of `whole`, which is mapped where it says.
unsafe fn apply(whole: &Text<'_>, windows: &[Window], stubs: &mut Stubs, way: Way, report: &mut PatchReport) {
    if windows.is_empty() {
        return;
    }
    debug_assert!(windows.iter().all(|window| whole.slice(&window.range).is_some()));
    // The whole of it: the kernel does not join mappings again of which a part was writable.
    let text = whole.start & !0xfff..(whole.start + whole.bytes.len() as u64 + 0xfff) & !0xfff;
    let room = stubs::start()..stubs::start() + stubs::LENGTH;
    // SAFETY: nothing but stubs is in the room, and no site leads to one while it is not executable: below.
    let opened = unsafe { protect(&room, PROT_READ_WRITE) };
    if opened < 0 {
        report.leave(|report| &mut report.refused, &windows.iter().map(|window| window.number).collect::<Vec<_>>());
        report.refusal = opened;
        return;
    }
    let mut jumps = Vec::with_capacity(windows.len());
    for window in windows {
        match stubs.next_address().and_then(|address| Some((address, stub(whole, window, address, way)?))) {
            Some((address, bytes)) => {
                // SAFETY: the room was made writable above.
                unsafe { stubs.push(&bytes) };
                jumps.push((window, address));
            }
            None => report.leave(|report| &mut report.unreachable, &[window.number]),
        }
    }
    // SAFETY: back to what it was.
    let closed = unsafe { protect(&room, PROT_READ_EXEC) };
    // SAFETY: more rights than before.
    let opened = if closed < 0 { closed } else { unsafe { protect(&text, PROT_ALL) } };
    if opened < 0 {
        report.leave(|report| &mut report.refused, &jumps.iter().map(|(window, _)| window.number).collect::<Vec<_>>());
        report.refusal = opened;
        return;
    }
    for (window, address) in &jumps {
        // SAFETY: writable now; one thread, which is not in this window; the stub is in place and executable.
        unsafe { write_jump(window, *address) };
    }
    remember(jumps.iter().map(|&(window, address)| Patched::new(window, address)));
    report.patched += jumps.len();
    // SAFETY: back to what it was.
    let closed = unsafe { protect(&text, PROT_READ_EXEC) };
    if closed < 0 {
        report.refusal = closed;
    }
}

/// The stubs that lead to the entry of a dormant process lead to the other one from now on.
///
/// # Panics
/// When the kernel does not let them be written, as it did at the start: the other way is for one thread.
///
/// # Safety
/// There is one thread, and it is not in a stub.
unsafe fn lead_all_to_entry() {
    let room = stubs::start()..stubs::start() + stubs::LENGTH;
    let jumps: Vec<u64> = sites::all().map(|patched| patched.call() + sites::WAY_IN - JUMP_LENGTH as u64).collect();
    if jumps.is_empty() {
        return;
    }
    // SAFETY: nothing but stubs is in the room, and the caller says that nobody is in one.
    let opened = unsafe { protect(&room, PROT_READ_WRITE) };
    assert!(opened >= 0, "stubs that were writable at the start cannot be written any more (error {})", -opened);
    for at in jumps {
        let way = distance(at + JUMP_LENGTH as u64, Way::Awake.entry()).to_le_bytes();
        // SAFETY: the distance of a jump in a stub, writable now. Both entries are in reach: they lie together.
        unsafe { ((at + 1) as *mut [u8; 4]).write(way) };
    }
    // SAFETY: back to what it was.
    unsafe { protect(&room, PROT_READ_EXEC) };
}

/// # Safety
/// Nobody needs the rights that are taken away.
unsafe fn protect(range: &Range<u64>, rights: u64) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { raw(NR_MPROTECT, [range.start, range.end - range.start, rights, 0, 0, 0]) }
}

/// # Safety
/// The window is writable, and no thread is in it.
unsafe fn write_jump(window: &Window, stub: u64) {
    let mut bytes = vec![INT3; (window.range.end - window.range.start) as usize];
    let start = window.range.start;
    bytes[0] = 0xe9;
    bytes[1..JUMP_LENGTH].copy_from_slice(&distance(start + JUMP_LENGTH as u64, stub + STUB_HEAD as u64).to_le_bytes());
    // SAFETY: the caller's promise; exactly the window is written.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, bytes.len()) };
}

/// From `next` to `target`. [`stub`] has checked that windows and stubs reach each other.
fn distance(next: u64, target: u64) -> i32 {
    target.wrapping_sub(next) as i64 as i32
}

/// Builds a stub's code.
struct Writer {
    bytes: StubBytes,
    length: usize,
    address: u64,
}

impl Writer {
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes.get_mut(self.length..self.length + bytes.len())?.copy_from_slice(bytes);
        self.length += bytes.len();
        Some(())
    }

    fn here(&self) -> u64 {
        self.address + self.length as u64
    }

    /// An instruction whose last four bytes are the way from its end to `target`.
    fn push_relative(&mut self, opcode: &[u8], target: u64) -> Option<()> {
        let next = self.here() + opcode.len() as u64 + 4;
        let displacement = i32::try_from(target.wrapping_sub(next) as i64).ok()?;
        self.push(opcode)?;
        self.push(&displacement.to_le_bytes())
    }

    /// The instructions of `range`, which begins and ends with whole ones.
    fn push_moved(&mut self, text: &Text<'_>, range: Range<u64>) -> Option<()> {
        let mut left = text.slice(&range)?;
        let mut decoder = Decoder::with_ip(64, left, range.start, DecoderOptions::NONE);
        for instruction in decoder.iter() {
            let (original, rest) = left.split_at_checked(instruction.len())?;
            left = rest;
            if instruction.is_ip_rel_memory_operand() {
                let mut encoder = Encoder::new(64);
                encoder.encode(&instruction, self.here()).ok()?;
                let moved = encoder.take_buffer();
                // Addresses in a stub and in its window are told from each other by their distance.
                if moved.len() != original.len() {
                    return None;
                }
                self.push(&moved)?;
            } else {
                self.push(original)?;
            }
        }
        Some(())
    }
}

/// The stub for `window` of `text` at `address`. `None`: out of reach, or too long.
fn stub(text: &Text<'_>, window: &Window, address: u64, way: Way) -> Option<StubBytes> {
    let mut writer = Writer { bytes: [INT3; STUB_SIZE], length: 0, address };
    // The jump to the stub is as far as the jump back, to within two stubs.
    i32::try_from((address.wrapping_sub(window.range.start) as i64).checked_add(0x1000)?).ok()?;
    writer.push(&window.site.to_le_bytes())?;
    writer.push(&[0; 8])?;
    writer.push_moved(text, window.range.start..window.site - SYSCALL.len() as u64)?;
    // Resume: the instructions after the call here, or libc at once if there are none.
    let place = Patched::new(window, address);
    writer.bytes[8..STUB_HEAD].copy_from_slice(&place.resume().to_le_bytes());
    debug_assert_eq!(writer.here(), place.call());
    writer.push_relative(&[0x4c, 0x8d, 0x1d], address)?;
    writer.push_relative(&[0xe9], way.entry())?;
    if window.site < window.range.end {
        writer.push_moved(text, window.site..window.range.end)?;
        writer.push_relative(&[0xe9], window.range.end)?;
    }
    Some(writer.bytes)
}

#[cfg(test)]
mod tests;
