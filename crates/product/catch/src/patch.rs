//! Puts a jump over the `syscall` instructions of libc and the loader, so that their calls need no trap.
//!
//! Runs while there is one thread: at start-up, and where a process is dormant first (`preload/src/dispatch/dormant.rs`) once for the calls that may wake it, and
//! for all others when it wakes. What cannot be patched with certainty stays as it is: Syscall User Dispatch catches it, slower by microseconds.
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
//! Which windows there are says a plan of the crate `farshore_sites`, whose head has the rules: that instructions are instructions, that nobody jumps into a
//! window, and that what is moved does the same elsewhere.
//!
//! # Two ways to a plan
//!
//! - **By the table.** This library's build script (`build.rs`) makes the plans for the libc and the loader of the machine that builds. They are used for images with the
//!   same build id, if each window that is used has the bytes that it was planned for. No instruction is decoded at a start, and of the text only pages with such windows are touched.
//! - **By a search**, where an image is in no table, or a byte is another (a debugger's breakpoint): the same code plans when the program starts.
//!
//! Both plan for all sites, and leave out those of calls that are not wanted. So both patch the same.
//!
//! The sites of `clone`, `vfork` and `fork` are patched: the entry handles them exactly.
//!
//! The text is made writable *and* executable for the time of the patch, since this code calls into libc (`memcpy`). The
//! stubs' room is ours and is never both. If the kernel or a security module refuses, all is left to Syscall User Dispatch.

use super::entry::{asleep, farshore_entry, raw};
use super::stubs::{self, STUB_HEAD, STUB_SIZE, StubBytes, Stubs};
use farshore_sites::table::Table;
use farshore_sites::{Image, JUMP_LENGTH, Left, Plan, SYSCALL, WINDOW_MOST, Window};
use std::ops::Range;

mod maps;
mod sites;

pub use farshore_sites::{ANY_NUMBER, NAMES as DEFAULT_NAMES, is_named};
pub use maps::Maps;
pub(super) use sites::of_stub;
use sites::{Patched, remember};
pub use sites::{call_in_stub, to_stub};

/// The plans for the libc that was there when this library was built (`build.rs`).
#[used]
#[unsafe(link_section = "farshore_sites")]
static TABLE: [u8; include_bytes!(concat!(env!("OUT_DIR"), "/sites.table")).len()] =
    *include_bytes!(concat!(env!("OUT_DIR"), "/sites.table"));

// A stub has room for the longest window: behind its head the way in, the window without its `syscall`, and the jump back.
const _: () = assert!(STUB_HEAD + sites::WAY_IN as usize + WINDOW_MOST - SYSCALL.len() + JUMP_LENGTH <= STUB_SIZE);

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
            Way::Asleep => asleep::entry(),
        }
    }

    /// Where the stub of this window leads, and how many pieces are behind it.
    fn of(self, window: &Window) -> (u64, usize) {
        match self {
            Way::Asleep if window.number == ANY_NUMBER => (asleep::entry_of_any(), asleep::PIECES),
            way => (way.entry(), 0),
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
    /// Of these, those that are not in the table, or differ from it.
    pub searched: usize,
    /// Not in [`PatchReport::sites`]: of calls that nobody wants to see.
    pub unwanted: usize,
    /// Bytes of a `syscall` in text of which it is not known what it is.
    pub unknown: usize,
    /// What is left although it is wanted: the numbers of calls that are not caught, [`ANY_NUMBER`] for one that is not known.
    pub escapes: Vec<u64>,
}

impl PatchReport {
    fn add(&mut self, plan: &Plan) {
        self.files += 1;
        self.sites += plan.windows.len() + plan.left.len() + plan.restorers;
        self.restorers += plan.restorers;
        self.unwanted += plan.unwanted;
        self.unknown += plan.unknown;
        for &(reason, number) in &plan.left {
            match reason {
                Left::Indirect => self.leave(|report| &mut report.indirect, [number].into_iter()),
                Left::Windowless => self.leave(|report| &mut report.windowless, [number].into_iter()),
            }
        }
    }

    /// Adds one of the reasons why sites are left.
    fn leave(&mut self, reason: impl FnOnce(&mut PatchReport) -> &mut usize, numbers: impl ExactSizeIterator<Item = u64>) {
        *reason(self) += numbers.len();
        self.escapes.extend(numbers);
    }

    fn refuse(&mut self, why: i64, numbers: impl ExactSizeIterator<Item = u64>) {
        self.leave(|report| &mut report.refused, numbers);
        self.refusal = why;
    }
}

const INT3: u8 = 0xcc;
/// How far a jump leads, but for the size of the room and of a window.
const REACH: u64 = (1 << 31) - (1 << 20);
const NR_MPROTECT: u64 = 10;
const PROT_READ_WRITE: u64 = 3;
const PROT_READ_EXEC: u64 = 5;
const PROT_ALL: u64 = 7;

/// Patches the calls that are `wanted`, by number, in the files whose names begin with one of `names`; a number that is not known before the call is
/// [`ANY_NUMBER`]. Call [`super::entry::init`] before. It may be called again for more.
///
/// # Safety
/// Called while the process has one thread and no handler of a signal can run on it; what is put behind the entry
/// is ready to be called; files are mapped as `maps` says.
pub unsafe fn patch(maps: &Maps, names: &[&str], wanted: &dyn Fn(u64) -> bool, way: Way) -> PatchReport {
    // SAFETY: as the caller says.
    unsafe { patch_by(&TABLE, maps, names, wanted, way) }
}

/// The same with another table: an empty one has everything searched.
///
/// # Safety
/// As for [`patch`].
pub unsafe fn patch_by(table: &[u8], maps: &Maps, names: &[&str], wanted: &dyn Fn(u64) -> bool, way: Way) -> PatchReport {
    let mut report = PatchReport::default();
    if way == Way::Awake {
        // SAFETY: one thread, the caller says.
        unsafe { lead_all_to_entry() };
    }
    let mut work: Vec<(Range<u64>, Vec<Window>)> = Vec::new();
    for image in maps.images(names) {
        let known = plan_by_table(table, &image, wanted);
        report.searched += usize::from(known.is_none());
        let Some(plan) = known.or_else(|| plan_by_search(&image, wanted)) else { continue };
        report.add(&plan);
        work.extend(by_text(&image, plan.windows));
    }
    // SAFETY: one thread, the caller says, and this is the only place where they are used.
    let stubs = || Some(unsafe { Stubs::unused() });
    // SAFETY: one thread, the caller says; the windows are those of the texts that they are with, which are mapped there and not unmapped while the process starts.
    unsafe { apply(&work, stubs, way, &mut report) };
    report.sum_up();
    report
}

/// Patches the calls of a hosted program, whose text `at` lies in: those in functions that its file lists. Call [`super::entry::init`] before.
///
/// # Safety
/// As for [`patch`].
pub unsafe fn patch_program(maps: &Maps, at: u64) -> PatchReport {
    let mut report = PatchReport::default();
    let (Some(image), Some(file)) = (maps.image_around(at), maps::Mapped::of(c"/proc/self/exe")) else { return report };
    report.searched += 1;
    let Some(plan) = Plan::of_program(&image, file.bytes()) else { return report };
    report.add(&plan);
    let work: Vec<_> = by_text(&image, plan.windows).collect();
    // A program that the kernel has put near the library can use its room.
    let reaches = |text: &Range<u64>| [text.start, text.end].iter().all(|&at| at.abs_diff(stubs::start()) < REACH);
    let stubs = || match image.texts() {
        // SAFETY: one thread, the caller says, and this is the only place where they are used.
        texts if texts.iter().all(reaches) => Some(unsafe { Stubs::unused() }),
        // SAFETY: once, at start-up, the caller says.
        texts => unsafe { Stubs::near(texts.first()?.start, Way::Awake.entry()) },
    };
    // SAFETY: as in `patch_by`.
    unsafe { apply(&work, stubs, Way::Awake, &mut report) };
    report.sum_up();
    report
}

/// The windows of an image, with the text that each lies in.
fn by_text(image: &Image<'_>, mut windows: Vec<Window>) -> impl Iterator<Item = (Range<u64>, Vec<Window>)> {
    image.texts().iter().map(move |text| {
        let rest = windows.split_off(windows.partition_point(|window| window.range.start < text.end));
        (text.clone(), std::mem::replace(&mut windows, rest))
    })
}

impl PatchReport {
    fn sum_up(&mut self) {
        self.left = self.restorers + self.indirect + self.windowless + self.unreachable + self.refused;
    }
}

/// The plan that was made when this library was built, if it is for this image and no byte of a window differs. Sites that are patched already are left out.
fn plan_by_table(table: &[u8], image: &Image<'_>, wanted: &dyn Fn(u64) -> bool) -> Option<Plan> {
    let mut plan = Table::new(table)?.find(image.build_id()?)?.plan_for(image, wanted)?;
    plan.windows.retain(|window| call_in_stub(window.site).is_none());
    plan.windows.iter().all(|window| image.agrees_with(window)).then_some(plan)
}

/// The plan for what is mapped. Sites that are patched already have no `syscall` any more.
fn plan_by_search(image: &Image<'_>, wanted: &dyn Fn(u64) -> bool) -> Option<Plan> {
    Some(Plan::of(image)?.keep(wanted))
}

/// Whether there are the bytes of a `syscall` in code: of a file that is being loaded nothing else can be read yet.
///
/// # Safety
/// Readable memory, which nobody takes away meanwhile.
pub unsafe fn has_syscalls(code: Range<u64>) -> bool {
    // SAFETY: this function's own condition.
    let bytes = unsafe { std::slice::from_raw_parts(code.start as *const u8, (code.end - code.start) as usize) };
    farshore_sites::has_syscalls(bytes)
}

/// The number of the call whose `syscall` ends at `site`, in the text of a file; `None`: it is not known.
pub fn number_before(site: u64) -> Option<u64> {
    Maps::read().image_around(site)?.number_before(site)
}

/// The same for several places, each of which is looked at once.
pub fn numbers_before(sites: &[u64]) -> Vec<Option<u64>> {
    let mut known = std::collections::BTreeMap::new();
    let maps = Maps::read();
    let mut number = |site| *known.entry(site).or_insert_with(|| maps.image_around(site)?.number_before(site));
    sites.iter().map(|&site| number(site)).collect()
}

/// Whether code may make one of these calls by an instruction of its own, in all that is mapped executable from files but the patched ones (`names`) and us.
pub fn others_may_call(maps: &Maps, names: &[&str], wanted: &dyn Fn(u64) -> bool) -> bool {
    maps.others(names, stubs::start()).iter().any(|image| image.as_ref().is_none_or(|image| may_call(image, wanted)))
}

/// A breakpoint in it is no call, so its bytes are not compared.
fn may_call(image: &Image<'_>, wanted: &dyn Fn(u64) -> bool) -> bool {
    let known = || Table::new(&TABLE)?.find(image.build_id()?)?.plan_for(image, wanted);
    known().map_or_else(|| image.may_call(wanted), |plan| plan.may_call())
}

/// # Safety
/// As for [`patch`]; each text is mapped, and has the windows that are with it.
unsafe fn apply(work: &[(Range<u64>, Vec<Window>)], stubs: impl FnOnce() -> Option<Stubs>, way: Way, report: &mut PatchReport) {
    let count = work.iter().map(|(_, windows)| windows.len()).sum();
    if count == 0 {
        return;
    }
    let Some(mut stubs) = stubs() else {
        let numbers = |windows: &Vec<Window>| windows.iter().map(|window| window.number).collect::<Vec<_>>();
        return work.iter().for_each(|(_, windows)| report.leave(|report| &mut report.unreachable, numbers(windows).into_iter()));
    };
    let room = stubs.room();
    // SAFETY: nothing but stubs is in the room, and no site leads to one while it is not executable: below.
    let opened = unsafe { protect(&room, PROT_READ_WRITE) };
    if opened < 0 {
        return work.iter().for_each(|(_, windows)| report.refuse(opened, windows.iter().map(|window| window.number)));
    }
    let mut jumps: Vec<(&Range<u64>, &Window, Patched)> = Vec::with_capacity(count);
    for (text, window) in work.iter().flat_map(|(text, windows)| windows.iter().map(move |window| (text, window))) {
        let (entry, pieces) = way.of(window);
        match stubs
            .next_address(1 + pieces)
            .and_then(|address| Some((address, stub(window, address, stubs.gate().unwrap_or(entry))?)))
        {
            Some((address, bytes)) => {
                // SAFETY: the room was made writable above.
                unsafe { stubs.push(&bytes) };
                for _ in 0..pieces {
                    let head = bytes.first_chunk().expect("a stub is longer than its head");
                    // SAFETY: as above; there is room for all of them.
                    unsafe { stubs.push(&asleep::natively(head)) };
                }
                jumps.push((text, window, Patched::new(window, address, pieces)));
            }
            None => report.leave(|report| &mut report.unreachable, [window.number].into_iter()),
        }
    }
    // SAFETY: back to what it was.
    let closed = unsafe { protect(&room, PROT_READ_EXEC) };
    let mut done = Vec::with_capacity(jumps.len());
    for jumps in jumps.chunk_by(|one, other| one.0 == other.0) {
        // The whole of it: the kernel does not join mappings again of which a part was writable.
        let text = jumps[0].0.start & !0xfff..(jumps[0].0.end + 0xfff) & !0xfff;
        // SAFETY: more rights than before.
        let opened = if closed < 0 { closed } else { unsafe { protect(&text, PROT_ALL) } };
        if opened < 0 {
            report.refuse(opened, jumps.iter().map(|(_, window, _)| window.number));
            continue;
        }
        for (_, window, patched) in jumps {
            // SAFETY: writable now; one thread, which is not in this window; the stub is in place and executable.
            unsafe { write_jump(window, patched.code()) };
            done.push(patched.clone());
        }
        // SAFETY: back to what it was.
        let closed = unsafe { protect(&text, PROT_READ_EXEC) };
        if closed < 0 {
            report.refusal = closed;
        }
    }
    report.patched += done.len();
    remember(done);
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
unsafe fn write_jump(window: &Window, code: u64) {
    let mut bytes = [INT3; WINDOW_MOST];
    let start = window.range.start;
    bytes[0] = 0xe9;
    bytes[1..JUMP_LENGTH].copy_from_slice(&distance(start + JUMP_LENGTH as u64, code).to_le_bytes());
    let length = window.bytes().len();
    // SAFETY: the caller's promise; exactly the window is written.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, length) };
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
}

/// The stub for `window` at `address`, which leads to `entry`. `None`: out of reach.
fn stub(window: &Window, address: u64, entry: u64) -> Option<StubBytes> {
    let mut writer = Writer { bytes: [INT3; STUB_SIZE], length: 0, address };
    // The jump to the stub is as far as the jump back, to within two stubs.
    i32::try_from((address.wrapping_sub(window.range.start) as i64).checked_add(0x1000)?).ok()?;
    writer.push(&window.site.to_le_bytes())?;
    writer.push(&[0; 8])?;
    writer.push(window.moved(window.range.start..window.site - SYSCALL.len() as u64, writer.here())?.bytes())?;
    // Resume: the instructions after the call here, or libc at once if there are none.
    let place = Patched::new(window, address, 0);
    writer.bytes[8..STUB_HEAD].copy_from_slice(&place.resume().to_le_bytes());
    debug_assert_eq!(writer.here(), place.call());
    writer.push_relative(&[0x4c, 0x8d, 0x1d], address)?;
    writer.push_relative(&[0xe9], entry)?;
    if window.site < window.range.end {
        writer.push(window.moved(window.site..window.range.end, writer.here())?.bytes())?;
        writer.push_relative(&[0xe9], window.range.end)?;
    }
    Some(writer.bytes)
}

#[cfg(test)]
mod tests;
