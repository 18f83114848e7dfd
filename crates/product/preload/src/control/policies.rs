//! Policies that run beside the program: who has attached, and the thread that serves each.
//!
//! ```text
//!  policy ──"attach"──▶ control thread: a file in memory, sealed, mapped on a seat; a thread
//!         ◀──descriptor──┘
//!         ──requests──▶ farshore-policy ──▶ Engine::wish
//!         ◀──events──── threads of the program, evictors, … (Engine::tell)
//!         ──gone──────▶ control thread: ends the thread, takes the file out of the seat
//! ```
//!
//! The protocol is at the head of [`farshore_attach`]. What is read from the shared memory is never believed, and no thread of the
//! program waits for a policy. A policy that rings without a request makes its own thread of ours nap, so it wins no processor by that.
//! Threads of the program do wait for those of ours to end (before a call that wants one thread, or that gives rights up). So a thread that serves a policy looks
//! whether it is to end between any two requests, and between pieces of a large one.
//!
//! **A seat** is address space for the shared memory. It is mapped once and never given back: a thread that tells an event may have looked
//! at the seat just before the policy left. When one leaves, memory of nobody takes the place of the file. A forked child gets neither
//! (`MADV_DONTFORK`), and begins without policies.
//!
//! **Descriptors.** The file is made by the control thread, in its own table, and closed when it is sent. The program never has it.
//!
//! **Rights.** Who may attach is decided as for all of the control socket, and besides the policy must have all the groups and capabilities
//! of the program: it sees what the program does. When threads of ours end since the program gives rights up, so do attachments; a
//! policy may attach again.

use crate::ground::own_threads::{self, rights};
use crate::ground::runtime::Runtime;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farshore_attach::audience::SEATS as SEAT_COUNT;
use farshore_attach::rings::{Taken, Taker};
use farshore_attach::{
    BYTES, Event, Kind, Memory, PAGES_AN_ANSWER, Request, SCAN_PAGES_MAX, State, VERSION, WORDS, Wanted, parameters, word,
};
use farshore_config::control::Attachment;
use farshore_config::stats;
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::Clock as _;
use farshore_engine::scan::{Allowance, Scan};
use farshore_engine::wishes::Wish;
use farshore_sys::clock::sleep_ns;
use farshore_sys::fd::Fd;
use farshore_sys::futex::shared;
use farshore_sys::own::map_own;
use farshore_sys::raw::{Errno, getpid, syscall_result};
use farshore_sys::{signal, vm};

/// Requests that are taken before the state is told anew.
const ROUND: u32 = 256;
/// Pages of a request that are served before the thread looks whether it is to end.
const PIECE: u64 = 16 * GRANULE_PAGES as u64;
const _: () = assert!(SCAN_PAGES_MAX <= PIECE && PIECE.is_multiple_of(PAGES_AN_ANSWER));
/// How long the thread sleeps without a request, at most: then it tells the state anew. Ns.
const IDLE_NS: u64 = 20_000_000;
/// Scans of one policy that can be under way.
const SCANS_MOST: usize = 64;
/// How long one takes, at least (an evictor has to come to it) and at most (it holds a place among wishes); ns.
const SCAN_NS_LEAST: u64 = 1_000_000;
const SCAN_NS_MOST: u64 = 60_000_000_000;
/// How long it naps when it was woken for nothing, ns.
const NAP_NS: u64 = 200_000;

#[derive(Debug)]
struct Seat {
    /// Address of the memory; 0: there is none yet.
    base: AtomicU64,
    taken: AtomicBool,
    stop: AtomicBool,
    /// The thread that serves it.
    thread: AtomicU32,
    /// Events that were lost on this seat before.
    lost_before: AtomicU64,
    requests: AtomicU64,
    bad: AtomicU64,
    /// It has said when pages are expected to be used.
    expects: AtomicBool,
}

static SEATS: [Seat; SEAT_COUNT] = [const {
    Seat {
        base: AtomicU64::new(0),
        taken: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        thread: AtomicU32::new(0),
        lost_before: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        bad: AtomicU64::new(0),
        expects: AtomicBool::new(false),
    }
}; SEAT_COUNT];

/// A filter of the program stops what an attachment needs.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
const FORBIDDEN_SAYS: &str =
    "attach: a seccomp filter of this program stops what an attachment needs; attach before it is installed";

impl Seat {
    fn memory(&self) -> Option<Memory<'static>> {
        let base = self.base.load(Ordering::Acquire);
        if base == 0 {
            return None;
        }
        let words = core::ptr::with_exposed_provenance::<AtomicU64>(base as usize);
        // SAFETY: a mapping of that many bytes, readable and writable, page-aligned and never unmapped (`sit_down`). All accesses are
        // atomic, since another process may change it at any time; its file cannot shrink.
        Some(Memory::new(unsafe { core::slice::from_raw_parts(words, WORDS) }))
    }
}

/// A policy attaches. By the control thread.
///
/// # Errors
/// Why it cannot, in a line.
pub fn attach(runtime: &'static Runtime, version: u64) -> Result<Attachment, String> {
    if version != VERSION {
        return Err(format!(
            "attach version {version}: this Farshore speaks version {VERSION} of the protocol; use the policy's library of the same version"
        ));
    }
    if FORBIDDEN.load(Ordering::Acquire) {
        return Err(FORBIDDEN_SAYS.into());
    }
    let free = |seat: &Seat| seat.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let Some(seat) = SEATS.iter().position(free) else {
        return Err(format!("attach: {SEAT_COUNT} policies are attached already; end one of them"));
    };
    let made = sit_down(runtime, seat);
    if made.is_err() {
        clear(runtime, seat);
    }
    made
}

fn sit_down(runtime: &'static Runtime, number: usize) -> Result<Attachment, String> {
    let failed = |what: &str, why: Errno| format!("attach: {what} failed in the program ({why:?}); try again later");
    let (seat, engine) = (&SEATS[number], &runtime.engine);
    if seat.base.load(Ordering::Acquire) == 0 {
        let base = map_own(BYTES).map_err(|why| failed("mapping memory", why))?;
        seat.base.store(base.as_ptr().expose_provenance() as u64, Ordering::Release);
    }
    let file = make_file().map_err(|why| failed("making a file in memory", why))?;
    let at = seat.base.load(Ordering::Acquire);
    map_at(at, file.raw()).map_err(|why| failed("mapping memory", why))?;
    let Some(memory) = seat.memory() else { return Err("bug: a seat without memory".into()) };
    memory.begin();
    let first = engine.audience.open(number, memory, shared::wake);
    memory.head(word::FIRST_EVENT).store(first, Ordering::Relaxed);
    memory.head(word::EVENTS_TAKEN).store(first, Ordering::Relaxed);
    seat.lost_before.store(engine.audience.lost(number), Ordering::Relaxed);
    seat.requests.store(0, Ordering::Relaxed);
    seat.bad.store(0, Ordering::Relaxed);
    tell_state(runtime, number, &memory, 0);
    seat.stop.store(false, Ordering::Release);
    let thread = own_threads::make_policy(runtime, number)?;
    // SeqCst, as in `forbid`: that says so and looks for threads, and this notes the thread and looks whether it may be.
    seat.thread.swap(thread, Ordering::SeqCst);
    if FORBIDDEN.load(Ordering::SeqCst) {
        end_thread(seat);
        return Err(FORBIDDEN_SAYS.into());
    }
    Ok(Attachment { seat: number, version: VERSION, descriptor: file.into_raw(), bytes: BYTES as u64 })
}

/// A file of that size, which cannot change its size any more.
fn make_file() -> Result<Fd, Errno> {
    const MEMFD_CREATE: u64 = 319;
    const FTRUNCATE: u64 = 77;
    const FCNTL: u64 = 72;
    const CLOEXEC_ALLOW_SEALING: u64 = 3;
    const F_ADD_SEALS: u64 = 1033;
    const SEAL_SHRINK_GROW: u64 = 1 | 2 | 4;
    // SAFETY: the name is a C string.
    let raw = unsafe { syscall_result(MEMFD_CREATE, [c"farshore-policy".as_ptr() as u64, CLOEXEC_ALLOW_SEALING, 0, 0, 0, 0]) }?;
    // SAFETY: made just now for us.
    let file = unsafe { Fd::from_raw(raw as i32) };
    // SAFETY: no memory is involved.
    unsafe { syscall_result(FTRUNCATE, [file.raw() as u64, BYTES as u64, 0, 0, 0, 0]) }?;
    // SAFETY: no memory is involved.
    unsafe { syscall_result(FCNTL, [file.raw() as u64, F_ADD_SEALS, SEAL_SHRINK_GROW, 0, 0, 0]) }?;
    Ok(file)
}

/// Maps the file in a seat's place, for this process alone and all of it in memory.
fn map_at(base: u64, file: i32) -> Result<(), Errno> {
    const POPULATE: u64 = 0x8000;
    let len = BYTES as u64;
    let flags = vm::map::SHARED | vm::map::FIXED | POPULATE;
    // SAFETY: in place of memory of ours that is looked at as atomic words alone, whatever they hold.
    unsafe { vm::mmap(base, len, vm::prot::READ | vm::prot::WRITE, flags, file, 0) }?;
    // SAFETY: changes what a child gets.
    unsafe { vm::madvise(base, len, vm::advice::DONTFORK) }?;
    // SAFETY: changes nothing but a dump.
    let _ = unsafe { vm::madvise(base, len, vm::advice::DONTDUMP) };
    Ok(())
}

/// Puts memory of nobody in a seat's place, and frees the seat.
fn clear(runtime: &Runtime, number: usize) {
    let seat = &SEATS[number];
    runtime.engine.audience.want(number, 0);
    let base = seat.base.load(Ordering::Acquire);
    if base != 0 {
        let flags = vm::map::PRIVATE | vm::map::ANONYMOUS | vm::map::NORESERVE | vm::map::FIXED;
        // SAFETY: as in `map_at`; a thread that still tells an event writes it where nobody reads. If it fails, the file stays until
        // the next policy comes.
        let _ = unsafe { vm::mmap(base, BYTES as u64, vm::prot::READ | vm::prot::WRITE, flags, -1, 0) };
        // SAFETY: changes what a child gets, which knows of no seat.
        let _ = unsafe { vm::madvise(base, BYTES as u64, vm::advice::DONTFORK) };
    }
    if seat.expects.swap(false, Ordering::AcqRel) {
        runtime.engine.forget_expected();
    }
    seat.taken.store(false, Ordering::Release);
    if !SEATS.iter().any(|seat| seat.taken.load(Ordering::Acquire)) {
        runtime.engine.free_all();
    }
}

/// The policy on this seat is gone. By the control thread.
pub fn detach(runtime: &Runtime, number: usize) {
    let Some(seat) = SEATS.get(number).filter(|seat| seat.taken.load(Ordering::Acquire)) else { return };
    runtime.engine.audience.want(number, 0);
    end_thread(seat);
    clear(runtime, number);
}

/// Ends the thread of a seat, and comes back when the kernel does not know it any more: its memory is used again by the next one.
fn end_thread(seat: &Seat) {
    let thread = seat.thread.swap(0, Ordering::SeqCst);
    seat.stop.store(true, Ordering::Release);
    while thread != 0 && signal::tgkill(getpid(), thread, 0).is_ok() {
        if let Some(memory) = seat.memory() {
            shared::wake(memory.head(word::BELL));
        }
        sleep_ns(NAP_NS / 4);
    }
    rights::has_gone(thread);
}

/// A filter of the program stops what attachments need: none is made from now on.
pub fn refuse() {
    FORBIDDEN.swap(true, Ordering::SeqCst);
}

/// The same, and those that are there end: their threads are gone when this comes back. (A thread that ended by itself would leave its number behind, which may
/// soon be that of a thread of the program.) With all signals blocked.
pub fn forbid(runtime: &Runtime) {
    refuse();
    for (number, seat) in SEATS.iter().enumerate() {
        if seat.taken.load(Ordering::Acquire) {
            // The seat itself is cleared when the policy goes.
            runtime.engine.audience.want(number, 0);
            end_thread(seat);
        }
    }
}

/// In a forked child: no policy has attached. The seats' memory did not come along.
pub fn forget() {
    for seat in &SEATS {
        seat.base.store(0, Ordering::Release);
        seat.thread.store(0, Ordering::Release);
        seat.expects.store(false, Ordering::Release);
        seat.taken.store(false, Ordering::Release);
    }
}

/// The thread of a seat.
pub fn serve(runtime: &'static Runtime, number: usize) {
    let seat = &SEATS[number];
    let Some(memory) = seat.memory() else { return };
    let (mut taker, mut in_vain) = (Taker::default(), false);
    let mut scans = Scans { allowance: Allowance::new(runtime.engine.clock.now_ns()), under_way: Vec::with_capacity(SCANS_MOST) };
    let dropped_before = runtime.engine.dropped_wishes();
    let is_over = || [&seat.stop, &own_threads::STOP].iter().any(|over| over.load(Ordering::Acquire));
    while !is_over() {
        let bell = memory.head(word::BELL).load(Ordering::Acquire) as u32;
        runtime.engine.audience.want(number, memory.head(word::WANTED).load(Ordering::Relaxed) as u32);
        let mut served = 0;
        while served < ROUND && !is_over() {
            match taker.take(&memory) {
                Taken::Nothing => break,
                Taken::Bad => {}
                Taken::Request(request) => serve_one(runtime, number, &request, &mut scans, &is_over),
            }
            served += 1;
        }
        seat.requests.store(taker.taken, Ordering::Relaxed);
        seat.bad.store(taker.bad, Ordering::Relaxed);
        scans.settle(runtime);
        scans.end_due(runtime, number, runtime.engine.clock.now_ns());
        runtime.engine.kernel.samples().tend();
        tell_state(runtime, number, &memory, dropped_before);
        if served > 0 {
            in_vain = false;
            continue;
        }
        if in_vain {
            sleep_ns(NAP_NS);
        }
        in_vain = true;
        shared::wait_for(memory.head(word::BELL), bell, IDLE_NS.min(scans.next_due_ns(runtime.engine.clock.now_ns())));
    }
    scans.end_due(runtime, number, u64::MAX);
    // Nothing of it outlives the last policy. Another one that scans begins it again.
    runtime.engine.kernel.samples().rest();
    runtime.engine.audience.want(number, 0);
}

fn serve_one(runtime: &Runtime, number: usize, request: &Request, scans: &mut Scans, is_over: &dyn Fn() -> bool) {
    let end = Page(request.page + request.pages);
    let (mut from, mut goes_on) = (Page(request.page), true);
    while goes_on && from.0 < end.0 && !is_over() {
        let piece = PageRange { start: from, end: Page(end.0.min(from.0 + PIECE)) };
        goes_on = serve_piece(runtime, number, request.wanted, piece, scans);
        from = piece.end;
    }
}

/// Serves a piece of a request. False: the rest need not be served.
fn serve_piece(runtime: &Runtime, number: usize, wanted: Wanted, piece: PageRange, scans: &mut Scans) -> bool {
    let wish = match wanted {
        Wanted::Reclaim => Wish::Leave,
        Wanted::Prefetch => Wish::Come,
        Wanted::Pin => Wish::Stay,
        Wanted::Unpin => Wish::Free,
        Wanted::Protect { ns } => Wish::StayFor(ns),
        Wanted::Expect { reuse } => {
            // Before: whatever it has said is forgotten when it leaves.
            SEATS[number].expects.store(true, Ordering::Release);
            runtime.engine.expect(piece, reuse);
            return true;
        }
        Wanted::Look { tag } => return look(runtime, number, piece, tag),
        Wanted::Scan { micros, tag } => {
            // All of it: it is of fewer pages than a piece.
            scans.begin(runtime, number, piece, micros, tag);
            return true;
        }
    };
    runtime.engine.wish(piece, wish);
    true
}

/// Answers a policy. False: its ring is full.
fn answer(runtime: &Runtime, number: usize, event: Event) -> bool {
    let ns = runtime.engine.clock.now_ns();
    runtime.engine.audience.answer(number, &Event { ns, ..event })
}

/// A scan that a policy has asked for.
#[derive(Debug)]
struct Asked {
    scan: Scan,
    tag: u32,
    due_ns: u64,
}

/// The scans of one policy.
#[derive(Debug)]
struct Scans {
    allowance: Allowance,
    under_way: Vec<Asked>,
}

impl Scans {
    fn begin(&mut self, runtime: &Runtime, number: usize, range: PageRange, micros: u32, tag: u32) {
        let (engine, now) = (&runtime.engine, runtime.engine.clock.now_ns());
        let has_room = self.under_way.len() < SCANS_MOST;
        let ns = (u64::from(micros) * 1000).clamp(SCAN_NS_LEAST, SCAN_NS_MOST);
        if let Some(scan) = has_room.then(|| engine.begin_scan(range, ns, &mut self.allowance)).flatten() {
            self.under_way.push(Asked { scan, tag, due_ns: now + ns });
        } else {
            let refused = Event { thread: tag, detail: 1, ..Event::new(Kind::Scanned, range.start.addr(), range.len()) };
            answer(runtime, number, refused);
        }
    }

    /// What the kernel watches for those that have begun is watched from now on: at once for all of a round.
    fn settle(&mut self, runtime: &Runtime) {
        let Scans { allowance, under_way } = self;
        runtime.engine.settle_scans(under_way.iter_mut().map(|asked| &mut asked.scan), allowance);
    }

    /// Ends scans whose time is over, and tells what they have seen.
    fn end_due(&mut self, runtime: &Runtime, number: usize, now: u64) {
        let engine = &runtime.engine;
        let Scans { allowance, under_way } = self;
        under_way.retain(|asked| {
            if asked.due_ns > now {
                return true;
            }
            engine.end_scan(&asked.scan, allowance, |chunk, seen| {
                let more = [seen.looked, seen.accessed, seen.written];
                answer(
                    runtime,
                    number,
                    Event { thread: asked.tag, more, ..Event::new(Kind::Scanned, chunk.start.addr(), chunk.len()) },
                );
            });
            false
        });
    }

    /// When the next one is over, ns from now.
    fn next_due_ns(&self, now: u64) -> u64 {
        self.under_way.iter().map(|asked| asked.due_ns.saturating_sub(now)).min().unwrap_or(u64::MAX)
    }
}

/// Tells the states of pages, until the ring is full. Whether it is not.
fn look(runtime: &Runtime, number: usize, range: PageRange, tag: u32) -> bool {
    let mut from = range.start;
    while from.0 < range.end.0 {
        let count = PAGES_AN_ANSWER.min(range.end.0 - from.0);
        let mut more = [0; 3];
        for n in 0..count {
            let state = runtime.engine.page_state(from.plus(n)) as u64;
            more.iter_mut().enumerate().for_each(|(bit, plane)| *plane |= (state >> bit & 1) << n);
        }
        if !answer(runtime, number, Event { thread: tag, more, ..Event::new(Kind::Pages, from.addr(), count) }) {
            return false;
        }
        from = from.plus(count);
    }
    true
}

fn tell_state(runtime: &Runtime, number: usize, memory: &Memory<'_>, dropped_before: u64) {
    let (engine, seat) = (&runtime.engine, &SEATS[number]);
    let state = State {
        limit_bytes: engine.memory_limit(),
        resident_bytes: engine.resident_bytes(),
        faults: engine.stats.all_faults(),
        events_lost: engine.audience.lost(number) - seat.lost_before.load(Ordering::Relaxed),
        requests: seat.requests.load(Ordering::Relaxed),
        requests_bad: seat.bad.load(Ordering::Relaxed),
        pages_dropped: engine.dropped_wishes() - dropped_before,
    };
    state.store(memory);
}

/// Those who have attached, with their memory.
fn attached() -> impl Iterator<Item = (usize, &'static Seat, Memory<'static>)> {
    let taken = |(number, seat): (usize, &'static Seat)| {
        let there = seat.taken.load(Ordering::Acquire) && seat.thread.load(Ordering::Acquire) != 0;
        there.then(|| seat.memory().map(|memory| (number, seat, memory))).flatten()
    };
    SEATS.iter().enumerate().filter_map(taken)
}

/// What `farshore stat` tells of policies.
pub fn stats(runtime: &Runtime) -> Vec<stats::Attached> {
    let all = attached().map(|(number, seat, memory)| stats::Attached {
        events_lost: runtime.engine.audience.lost(number) - seat.lost_before.load(Ordering::Relaxed),
        requests: seat.requests.load(Ordering::Relaxed),
        requests_bad: seat.bad.load(Ordering::Relaxed),
        parameters: (0..parameters::PARAMETERS).filter_map(|index| parameters::read(&memory, index)).collect(),
    });
    all.collect()
}

/// Sets a parameter of this name of every policy that has one. `None`: none has.
///
/// # Errors
/// The value is no number.
pub fn set_parameter(runtime: &Runtime, name: &str, value: &str) -> Option<Result<(), String>> {
    let mut found = None;
    for (number, _, memory) in attached() {
        for index in 0..parameters::PARAMETERS {
            if parameters::read(&memory, index).is_some_and(|(is, _)| is == name) {
                let Ok(new) = value.parse::<i64>() else {
                    return Some(Err(format!("{name}={value}: a parameter of a policy is a whole number; give one")));
                };
                parameters::set(&memory, index, new);
                let event = Event { detail: index as u8, more: [new as u64, 0, 0], ..Event::new(Kind::Parameter, 0, 0) };
                answer(runtime, number, event);
                found = Some(Ok(()));
            }
        }
    }
    found
}
