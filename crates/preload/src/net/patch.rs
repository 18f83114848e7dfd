//! Puts a jump over the `syscall` instructions of libc and the loader, so that their calls need no trap.
//!
//! Runs once, at start-up, while there is one thread. What cannot be patched with certainty stays as it is: Syscall User
//! Dispatch catches it, slower by microseconds. So every doubt below is settled by leaving the site alone.
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
//! 1. **Instructions are instructions.** Only functions that `.eh_frame` names are decoded, each from its first byte.
//!    One invalid instruction, and the function is left alone. So data in text is never taken for code.
//! 2. **Nobody jumps into a window.** The jumps of the decoded functions are known. The rest of the text is searched for
//!    direct jumps and calls at every byte offset, also where no instruction begins: that finds too many, never too few. A
//!    window into whose inside one leads is dropped. A function with an indirect jump (a `switch` table) is left alone:
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
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
};
use iced_x86::{Decoder, DecoderOptions, Encoder, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

mod sites;

pub(super) use sites::of_stub;
use sites::{Patched, remember};
pub use sites::{call_in_stub, to_stub};

/// Files whose text is patched: those whose name begins with one of these.
pub const DEFAULT_NAMES: &[&str] = &["libc.so.6", "libc-2.", "ld-linux-x86-64.so.2", "ld-2.", "libpthread"];

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

/// Patches the files whose names begin with one of `names`. Call [`super::entry::init`] before.
///
/// # Safety
/// Called once, while the process has one thread and no handler of a signal can run on it; what is put behind the entry
/// is ready to be called.
pub unsafe fn patch(names: &[&str]) -> PatchReport {
    let mut report = PatchReport::default();
    // SAFETY: once in a process, the caller says.
    let mut stubs = unsafe { Stubs::new() };
    let maps = read_maps();
    for image in images(&maps, names) {
        report.files += 1;
        for text in &image.texts {
            // SAFETY: a readable, executable mapping of a library, which is not unmapped while the process starts.
            let bytes = unsafe { std::slice::from_raw_parts(text.start as *const u8, (text.end - text.start) as usize) };
            let text = Text { start: text.start, bytes };
            let plans = plan(&text, &image.functions, &mut report);
            // SAFETY: one thread, the caller says; the plans are for this text, which is mapped where it says.
            unsafe { apply(&text, &plans, &mut stubs, &mut report) };
        }
    }
    report.left = report.restorers + report.indirect + report.windowless + report.unreachable + report.refused;
    report
}

// ---- what is mapped -----------------------------------------------------------------------------------------------

/// One line of `/proc/self/maps` that maps a file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    range: Range<u64>,
    permissions: &'a str,
    offset: u64,
    path: &'a str,
}

/// A library in memory.
struct Image {
    texts: Vec<Range<u64>>,
    functions: Functions,
}

/// `/proc/self/maps`, empty if it cannot be read.
fn read_maps() -> String {
    let mut bytes = Vec::new();
    // SAFETY: opens by a constant name.
    let fd = unsafe { raw(NR_OPEN, [c"/proc/self/maps".as_ptr() as u64, O_CLOEXEC, 0, 0, 0, 0]) };
    if fd < 0 {
        return String::new();
    }
    let mut piece = [0u8; 4096];
    loop {
        // SAFETY: writes at most the length of `piece`.
        let count = unsafe { raw(NR_READ, [fd as u64, piece.as_mut_ptr() as u64, piece.len() as u64, 0, 0, 0]) };
        if count <= 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..count as usize]);
    }
    // SAFETY: our own descriptor, not used after.
    unsafe { raw(NR_CLOSE, [fd as u64, 0, 0, 0, 0, 0]) };
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parse_mapping(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let path = words.nth(2)?.trim_start();
    path.starts_with('/').then_some(Mapping { range, permissions, offset, path })
}

fn images(maps: &str, names: &[&str]) -> Vec<Image> {
    let mappings: Vec<Mapping<'_>> = maps.lines().filter_map(parse_mapping).collect();
    let wanted = |mapping: &&Mapping<'_>| {
        let file = mapping.path.rsplit('/').next().unwrap_or("");
        mapping.offset == 0 && mapping.permissions.starts_with('r') && names.iter().any(|name| file.starts_with(name))
    };
    mappings.iter().filter(wanted).filter_map(|first| image(first, &mappings)).collect()
}

/// Reads the program headers of the library that begins at `first`.
fn image(first: &Mapping<'_>, mappings: &[Mapping<'_>]) -> Option<Image> {
    let mappings: Vec<&Mapping<'_>> = mappings.iter().filter(|mapping| mapping.path == first.path).collect();
    let memory = Memory { mappings };
    let base = first.range.start;
    if memory.bytes(base, 6)? != *b"\x7fELF\x02\x01" {
        return None;
    }
    let headers = base + memory.u64(base + 0x20)?;
    let (size, count) = (u64::from(memory.u16(base + 0x36)?), u64::from(memory.u16(base + 0x38)?));
    let (mut texts, mut table, mut bias) = (Vec::new(), None, None);
    for header in (0..count).map(|index| headers + index * size) {
        let (kind, flags) = (memory.u32(header)?, memory.u32(header + 4)?);
        let (address, length) = (memory.u64(header + 16)?, memory.u64(header + 32)?);
        let bias = *bias.get_or_insert_with(|| base.wrapping_sub(if kind == PT_LOAD { address & !0xfff } else { 0 }));
        let start = bias.wrapping_add(address);
        match kind {
            PT_LOAD if flags & PF_X != 0 && memory.executable(start, length) => texts.push(start..start + length),
            PT_GNU_EH_FRAME => table = Some(start),
            _ => {}
        }
    }
    let functions = Functions::read(&memory, table?, &texts)?;
    Some(Image { texts, functions })
}

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;

/// The memory of one library: reads what is mapped readable from its file, and nothing else.
struct Memory<'a> {
    mappings: Vec<&'a Mapping<'a>>,
}

impl Memory<'_> {
    fn mapped(&self, start: u64, length: u64, permissions: &str) -> bool {
        let inside = |mapping: &&Mapping<'_>| mapping.range.contains(&start) && mapping.range.end - start >= length;
        self.mappings.iter().any(|m| inside(m) && m.permissions.starts_with(permissions))
    }

    fn executable(&self, start: u64, length: u64) -> bool {
        length > 0 && self.mapped(start, length, "r-xp")
    }

    fn bytes(&self, start: u64, length: u64) -> Option<&[u8]> {
        // SAFETY: mapped readable from a file, and libraries are neither unmapped nor changed while the process starts.
        self.mapped(start, length, "r").then(|| unsafe { std::slice::from_raw_parts(start as *const u8, length as usize) })
    }

    fn u8(&self, at: u64) -> Option<u8> {
        self.bytes(at, 1).map(|bytes| bytes[0])
    }

    fn u16(&self, at: u64) -> Option<u16> {
        self.bytes(at, 2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at, 4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn i32(&self, at: u64) -> Option<i64> {
        self.u32(at).map(|value| i64::from(value as i32))
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at, 8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Where functions begin and end, from `.eh_frame_hdr`; those that contain the bytes of a `syscall`.
struct Functions(Vec<Range<u64>>);

/// Encodings of pointers in `.eh_frame` (`DW_EH_PE_`): 4 bytes unsigned; 4 bytes signed relative to the table; to itself.
const PE_UDATA4: u8 = 0x03;
const PE_DATAREL_SDATA4: u8 = 0x3b;
const PE_PCREL_SDATA4: u8 = 0x1b;

impl Functions {
    /// The functions of `texts` that the table names. Functions without the bytes of a `syscall` are of no interest, and are
    /// most of them: so the bytes are looked for first, and then the functions that they are in.
    fn read(memory: &Memory<'_>, table: u64, texts: &[Range<u64>]) -> Option<Functions> {
        let [version, _, count, entries] = *memory.bytes(table, 4)? else { return None };
        if (version, count, entries) != (1, PE_UDATA4, PE_DATAREL_SDATA4) {
            return None;
        }
        let count = u64::from(memory.u32(table + 8)?);
        // Function and description, in the order of functions.
        let (rows, _) = memory.bytes(table + 12, count * 8)?.as_chunks::<8>();
        let at = |word: &[u8]| {
            let offset = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
            table.wrapping_add_signed(i64::from(offset))
        };
        let mut functions: Vec<Range<u64>> = Vec::new();
        for text in texts {
            let Some(bytes) = memory.bytes(text.start, text.end - text.start) else { continue };
            each_match(bytes, is_syscall, |offset| {
                let site = text.start + offset as u64;
                let next = rows.partition_point(|row| at(row) <= site);
                let Some(row) = next.checked_sub(1).and_then(|last| rows.get(last)) else { return };
                let (start, entry) = (at(row), at(&row[4..]));
                if functions.last().is_some_and(|last| last.start == start) {
                    return;
                }
                let length = u64::from(memory.u32(entry + 12).unwrap_or(0));
                let holds = site + SYSCALL.len() as u64 <= start + length && memory.bytes(start, length).is_some();
                if holds && plain_entry(memory, entry, start) == Some(true) {
                    functions.push(start..start + length);
                }
            });
        }
        Some(Functions(functions))
    }
}

/// Whether the frame description at `entry` is for an ordinary function at `start`. `None`: it cannot be read.
fn plain_entry(memory: &Memory<'_>, entry: u64, start: u64) -> Option<bool> {
    let information = (entry + 4).checked_sub(u64::from(memory.u32(entry + 4)?))?;
    if memory.u32(information + 4)? != 0 {
        return None;
    }
    let mut at = information + 9;
    let mut augmentation = Vec::new();
    while let letter @ 1.. = memory.u8(at)? {
        augmentation.push(letter);
        at += 1;
    }
    let signal_frame = augmentation.contains(&b'S');
    if augmentation.first() != Some(&b'z') {
        return None;
    }
    // Behind the zero: code and data alignment, return column, length of what follows: one byte each in practice.
    let numbers = memory.bytes(at + 1, 4)?;
    if numbers.iter().any(|byte| byte & 0x80 != 0) {
        return None;
    }
    at += 5;
    for letter in &augmentation[1..] {
        match letter {
            b'R' => {
                let here = (entry + 8).wrapping_add_signed(memory.i32(entry + 8)?);
                return Some(memory.u8(at)? == PE_PCREL_SDATA4 && here == start && !signal_frame);
            }
            b'L' => at += 1,
            // A personality: its encoding and 4 bytes.
            b'P' if memory.u8(at)? & 0x0f == 0x0b => at += 5,
            b'S' => {}
            _ => return None,
        }
    }
    None
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
    /// Sites that may be patched, and the possible windows of each, the best first.
    sites: usize,
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
fn plan(text: &Text<'_>, functions: &Functions, report: &mut PatchReport) -> Vec<Window> {
    let mut code = Code::default();
    for function in &functions.0 {
        if let Some(bytes) = text.slice(function) {
            read_function(function, bytes, &mut code, report);
        }
    }
    let targets = targets_inside(text, &mut code);
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
    report.windowless += code.sites - chosen.len();
    chosen
}

/// Adds the sites of a function to `code`, and counts them.
fn read_function(function: &Range<u64>, bytes: &[u8], code: &mut Code, report: &mut PatchReport) {
    let mut decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
    let instructions = &mut code.instructions;
    instructions.clear();
    instructions.extend(decoder.iter());
    if instructions.iter().any(Instruction::is_invalid) {
        return;
    }
    code.decoded.push(function.clone());
    let direct = instructions.iter().filter(|i| matches!(i.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32));
    code.targets.extend(direct.map(Instruction::near_branch_target));
    let is_site = |index: &usize| instructions[*index].mnemonic() == Mnemonic::Syscall;
    let sites = (0..instructions.len()).filter(is_site);
    report.sites += sites.clone().count();
    if instructions.iter().any(|instruction| instruction.flow_control() == FlowControl::IndirectBranch) {
        report.indirect += sites.count();
        return;
    }
    for site in sites {
        if sets_sigreturn(&instructions[..site]) {
            report.restorers += 1;
        } else {
            code.sites += 1;
            code.choices.extend(SHAPES.iter().filter_map(|&shape| window(instructions, site, shape)));
        }
    }
}

/// Whether the last instruction sets `rax` to the number of `rt_sigreturn`.
fn sets_sigreturn(before: &[Instruction]) -> bool {
    before.last().is_some_and(|last| {
        last.mnemonic() == Mnemonic::Mov
            && last.op0_register().full_register() == Register::RAX
            && matches!(last.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64)
            && last.immediate(1) == 15
    })
}

/// The window of this shape, if it is long enough and all in it can be moved.
fn window(instructions: &[Instruction], site: usize, (before, after): (usize, usize)) -> Option<Window> {
    let first = site.checked_sub(before)?;
    let before = &instructions[first..site];
    let after = instructions.get(site + 1..=site + after)?;
    let end = after.last().unwrap_or(&instructions[site]).next_ip();
    let range = instructions[first].ip()..end;
    if range.end - range.start < JUMP_LENGTH as u64 || !before.iter().chain(after).all(is_movable) {
        return None;
    }
    Some(Window { range, site: instructions[site].next_ip() })
}

fn is_movable(instruction: &Instruction) -> bool {
    let changes_rsp = instruction.is_stack_instruction()
        || instruction.op0_kind() == OpKind::Register && instruction.op0_register().full_register() == Register::RSP
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op1_register().full_register() == Register::RSP;
    instruction.flow_control() == FlowControl::Next
        && !changes_rsp
        && !matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32 | Mnemonic::Syscall)
}

/// Addresses inside of the windows that a direct jump or call may lead to, sorted.
fn targets_inside(text: &Text<'_>, code: &mut Code) -> Vec<u64> {
    let spans = Spans::of(text, &code.choices);
    let decoded = |at: usize| {
        let address = text.start + at as u64;
        let next = code.decoded.partition_point(|function| function.start <= address);
        next > 0 && code.decoded[next - 1].contains(&address)
    };
    let mut targets = std::mem::take(&mut code.targets);
    targets.retain(|target| target.checked_sub(text.start).is_some_and(|at| spans.contain(at as usize)));
    let mut check = |at: usize, target: usize| {
        if spans.contain(target) && !decoded(at) {
            targets.push(text.start + target as u64);
        }
    };
    far_jumps(text.bytes, &mut check);
    let mut done = 0;
    for span in &spans.sorted {
        let sources = span.start.saturating_sub(SHORT_JUMP).max(done)..(span.end + SHORT_JUMP).min(text.bytes.len());
        done = done.max(sources.end);
        short_jumps(text.bytes, sources, &mut check);
    }
    targets.sort_unstable();
    targets
}

/// Farther than a jump of two bytes leads, in either direction.
const SHORT_JUMP: usize = 130;
/// Bytes of text for each bit of [`Spans::near`].
const NEAR: usize = 64;

/// The insides of all windows of each site, as offsets into the text.
struct Spans {
    sorted: Vec<Range<usize>>,
    /// A bit for each piece of the text that some span touches: small enough to stay in the fastest cache.
    near: Vec<u64>,
}

impl Spans {
    fn of(text: &Text<'_>, choices: &[Window]) -> Spans {
        let span = |windows: &[Window]| {
            let start = windows.iter().map(|window| window.inside().start).min()?;
            let end = windows.iter().map(|window| window.inside().end).max()?;
            Some((start - text.start) as usize..(end - text.start) as usize)
        };
        let mut sorted: Vec<Range<usize>> = Code::choices_by_site(choices).filter_map(span).collect();
        sorted.sort_unstable_by_key(|span| span.start);
        let mut near = vec![0; text.bytes.len() / NEAR / 64 + 1];
        for piece in sorted.iter().flat_map(|span| span.start / NEAR..=span.end / NEAR) {
            near[piece / 64] |= 1 << (piece % 64);
        }
        Spans { sorted, near }
    }

    fn contain(&self, at: usize) -> bool {
        let piece = at / NEAR;
        if self.near.get(piece / 64).is_none_or(|bits| bits >> (piece % 64) & 1 == 0) {
            return false;
        }
        // Neighbours' spans may overlap, but none is longer than a few instructions.
        let next = self.sorted.partition_point(|span| span.start <= at);
        self.sorted[next.saturating_sub(8)..next].iter().any(|span| span.contains(&at))
    }
}

/// All that could be a call, a jump or an `xbegin` with four bytes of distance.
fn far_jumps(bytes: &[u8], check: &mut impl FnMut(usize, usize)) {
    let mut far = |at: usize, distance: usize| {
        if let Some(&[a, b, c, d]) = bytes.get(distance..distance + 4) {
            check(at, (distance + 4).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize));
        }
    };
    let consider = |at: usize| match (bytes[at], bytes.get(at + 1)) {
        (0xe8 | 0xe9, _) => far(at, at + 1),
        (0x0f, Some(0x80..=0x8f)) | (0xc7, Some(0xf8)) => far(at, at + 2),
        _ => {}
    };
    each_match(bytes, is_far_jump, consider);
}

/// All that could be a short jump, a `loop` or a `jrcxz`.
fn short_jumps(bytes: &[u8], sources: Range<usize>, check: &mut impl FnMut(usize, usize)) {
    let Some(part) = bytes.get(sources.clone()) else { return };
    each_match(part, is_short_jump, |offset| {
        let at = sources.start + offset;
        if let Some(&distance) = bytes.get(at + 1) {
            check(at, (at + 2).wrapping_add_signed(isize::from(distance as i8)));
        }
    });
}

/// Bytes that are looked at together: a bit each of a word.
const BLOCK: usize = 64;

/// Calls `found` for each offset at which `opens` finds what it looks for. Megabytes of text are searched at every start of
/// a program, so `opens` sees 16 bytes at a time, with those that follow each; and hits, which come at random, are taken from
/// a word with many of them, since the processor guesses wrong at the end of each word.
#[inline(always)]
fn each_match(bytes: &[u8], opens: impl Fn(__m128i, __m128i) -> __m128i, mut found: impl FnMut(usize)) {
    let hits = |block: &[u8; BLOCK + 1]| {
        let mut hits = 0;
        for part in 0..BLOCK / 16 {
            // SAFETY: the block holds 16 bytes from there on.
            let here = unsafe { _mm_loadu_si128(block.as_ptr().wrapping_add(part * 16).cast()) };
            // SAFETY: and one more.
            let next = unsafe { _mm_loadu_si128(block.as_ptr().wrapping_add(part * 16 + 1).cast()) };
            // SAFETY: SSE2 is part of x86-64.
            let bits = unsafe { _mm_movemask_epi8(opens(here, next)) } as u64;
            hits |= bits << (part * 16);
        }
        hits
    };
    let mut each = |at: usize, mut hits: u64| {
        while hits != 0 {
            found(at + hits.trailing_zeros() as usize);
            hits &= hits - 1;
        }
    };
    let mut at = 0;
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        each(at, hits(block));
        at += BLOCK;
    }
    // What is left has 64 bytes at most; behind it are zeros, which are nobody's second byte.
    let rest = &bytes[at..];
    let mut block = [0; BLOCK + 1];
    block[..rest.len()].copy_from_slice(rest);
    let valid = 1_u64.checked_shl(rest.len() as u32).map_or(u64::MAX, |bit| bit - 1);
    each(at, hits(&block) & valid);
}

/// `0f 05`.
#[inline(always)]
fn is_syscall(here: __m128i, next: __m128i) -> __m128i {
    both(equal(here, SYSCALL[0]), equal(next, SYSCALL[1]))
}

/// `e8`, `e9`; `0f 8x`; `c7 f8`.
#[inline(always)]
fn is_far_jump(here: __m128i, next: __m128i) -> __m128i {
    let conditional = both(equal(here, 0x0f), equal(masked(next, 0xf0), 0x80));
    let begin = both(equal(here, 0xc7), equal(next, 0xf8));
    either(equal(masked(here, 0xfe), 0xe8), either(conditional, begin))
}

/// `7x`, `e0` to `e3`, `eb`.
#[inline(always)]
fn is_short_jump(here: __m128i, _next: __m128i) -> __m128i {
    either(equal(masked(here, 0xf0), 0x70), either(equal(masked(here, 0xfc), 0xe0), equal(here, 0xeb)))
}

#[inline(always)]
fn equal(bytes: __m128i, byte: u8) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    let all = unsafe { _mm_set1_epi8(byte as i8) };
    // SAFETY: as above.
    unsafe { _mm_cmpeq_epi8(bytes, all) }
}

#[inline(always)]
fn masked(bytes: __m128i, mask: u8) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    let all = unsafe { _mm_set1_epi8(mask as i8) };
    // SAFETY: as above.
    unsafe { _mm_and_si128(bytes, all) }
}

#[inline(always)]
fn both(one: __m128i, other: __m128i) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_and_si128(one, other) }
}

#[inline(always)]
fn either(one: __m128i, other: __m128i) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_or_si128(one, other) }
}

// ---- doing it -----------------------------------------------------------------------------------------------------

/// # Safety
/// As for [`patch`]; `windows` are of `whole`, which is mapped where it says.
unsafe fn apply(whole: &Text<'_>, windows: &[Window], stubs: &mut Stubs, report: &mut PatchReport) {
    let (Some(first), Some(last)) = (windows.iter().map(|w| w.range.start).min(), windows.iter().map(|w| w.range.end).max())
    else {
        return;
    };
    debug_assert!(whole.slice(&(first..last)).is_some());
    let text = first & !0xfff..(last + 0xfff) & !0xfff;
    let room = stubs::start()..stubs::start() + stubs::LENGTH;
    // SAFETY: nothing but stubs is in the room, and no site leads to one while it is not executable: below.
    let opened = unsafe { protect(&room, PROT_READ_WRITE) };
    if opened < 0 {
        report.refused += windows.len();
        report.refusal = opened;
        return;
    }
    let mut jumps = Vec::with_capacity(windows.len());
    for window in windows {
        match stubs.next_address().and_then(|address| Some((address, stub(whole, window, address)?))) {
            Some((address, bytes)) => {
                // SAFETY: the room was made writable above.
                unsafe { stubs.push(&bytes) };
                jumps.push((window, address));
            }
            None => report.unreachable += 1,
        }
    }
    // SAFETY: back to what it was.
    let closed = unsafe { protect(&room, PROT_READ_EXEC) };
    // SAFETY: more rights than before.
    let opened = if closed < 0 { closed } else { unsafe { protect(&text, PROT_ALL) } };
    if opened < 0 {
        report.refused += jumps.len();
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
fn stub(text: &Text<'_>, window: &Window, address: u64) -> Option<StubBytes> {
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
    writer.push_relative(&[0xe9], farshore_entry as *const () as u64)?;
    if window.site < window.range.end {
        writer.push_moved(text, window.site..window.range.end)?;
        writer.push_relative(&[0xe9], window.range.end)?;
    }
    Some(writer.bytes)
}

#[cfg(test)]
mod tests;
