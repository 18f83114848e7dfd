//! What Farshore keeps for each thread of the program: pages to fetch into, stacks for
//! its system calls and its signal handlers, and what the thread believes about its own signals.
//!
//! ```text
//!  ┌ guard ┬ nested calls (64 KiB) ┬ guard ┬ calls (128 KiB) ┬ guard ┬ alternate signal stack (64 KiB) ┬ Thread ┬ fetched pages (256 KiB) ┐
//!  └ 4 KiB ┴───────────────────────┴ 4 KiB ┴─────────────────┴ 4 KiB ┴─────────────────────────────────┴────────┴─────────────────────────┘
//! ```
//!
//! One mapping a thread, never managed, recycled through a free list. The head of `catch/src/entry.rs` says what runs on the stack for calls.
//!
//! # Who may have a record
//!
//! [`current`] gives a shared reference, as often as one likes: to the thread's own code, and to a handler of ours that comes between any two instructions of it.
//! So all that changes in a [`Thread`] is in cells, which are read and written as a whole; nobody holds a reference into one. What is more than a word, and used with signals
//! that are not blocked, is changed with all blocked. The buffer for pages is lent by [`Thread::with_buffer`], to one borrower. What other
//! threads look at is in [`Shared`].

pub mod actions;
pub mod pending;

use crate::ground::net;
use crate::ground::report;
use crate::ground::sleeping;
use crate::ground::unithreads::worker::Worker;
use actions::Actions;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use farshore_catch::entry::{Trapped, asleep};
use farshore_core::halt::{Seat, State};
use farshore_core::seams::PageBuf;
use farshore_net::buffers::Held;
use farshore_sys::cpu;
use farshore_sys::lock::Mutex;
use farshore_sys::own::map_own;
use farshore_sys::raw::{getpid, gettid, nr};
use farshore_sys::signal::{self, AltStack, SigSet};
use farshore_sys::sud;
use farshore_sys::thread::Home;
use farshore_sys::tls;
use farshore_sys::vm;
use pending::{Deferred, Step, Suspended, Waiting};

const GUARD: usize = 4096;
const STACK: usize = 64 << 10;
/// A forked child begins here, and so does a process that wakes: 46 KiB are used by the library as it is installed, more without link-time optimization.
const NESTED: usize = 128 << 10;
const CALLS: usize = 128 << 10;
const NESTED_AT: usize = GUARD;
const CALLS_AT: usize = NESTED_AT + NESTED + GUARD;
const STACK_AT: usize = CALLS_AT + CALLS + GUARD;
/// Where the record begins in its mapping.
const RECORD_AT: usize = STACK_AT + STACK;
/// Bytes for the record: whole pages, so that what is fetched lands on page boundaries.
const RECORD: usize = (size_of::<Thread>() + size_of::<Shared>()).next_multiple_of(4096);
/// Pages that one fetch brings at most: 256 KiB, at which SSDs come near to their sequential rate.
const FETCH_MAX: usize = 64;

/// One thread's record.
#[repr(C)]
pub struct Thread {
    /// Where fetched pages land before they are mapped: [`FETCH_MAX`] pages behind the record.
    buffer: NonNull<PageBuf>,
    /// The buffer is in use.
    lent: Cell<bool>,
    /// One of Farshore's own threads: it must not fault on managed memory, and its system calls are its own.
    pub internal: bool,
    /// It counts as one of the threads of the program's process ([`crate::process`]).
    pub counted: Cell<bool>,
    /// Whose process it belongs to: a guest's ends without taking our threads with it, and what happens in it is not the program's.
    pub whose: Cell<Whose>,
    /// What other threads may look at.
    pub shared: &'static Shared,
    /// Signals of ours that wait for this thread, which it pretends to have blocked.
    pub waiting: Waiting,
    /// The thread is in a call that has a mask for its time.
    pub suspended: Cell<Option<Suspended>>,
    /// A signal for the program that has come in the middle of a call.
    pub deferred: Cell<Option<Deferred>>,
    /// A call that the thread makes at its own place.
    pub step: Cell<Option<Step>>,
    /// The process is dormant, or this thread has not got what it needs in one that is awake ([`crate::ground::sleeping`]).
    pub sleeps: Cell<bool>,
    /// Whether Syscall User Dispatch traps the thread's calls. The kernel reads it as long as the thread lives.
    pub selector: AtomicU8,
    /// The program's own alternate stack.
    pub program_stack: Cell<AltStack>,
    /// What the thread's calls have pinned.
    pub held: Held,
    /// Thread-local storage of ours, of a thread that `clone` has made without.
    pub storage: Cell<Option<Home>>,
    /// Where the last fault was that was on nobody's memory when it was looked at, and was tried again ([`crate::fault`]); 0: nowhere.
    pub doubted: Cell<u64>,
    /// The signal actions of its process, of a guest that has its own.
    pub actions: Cell<Option<&'static Actions>>,
    /// It runs unithreads ([`crate::ground::unithreads`]).
    pub worker: Cell<Option<&'static Worker>>,
    /// It may make rings: it answers for the memory of its requests itself.
    pub rings: Cell<bool>,
}

/// Who has a record.
///
/// The memory is that of one process, with the program's threads and ours. A process that was made with `CLONE_VM` is a *guest* in it: it has a
/// process id, signal actions and descriptors of its own, and may end, or be killed, while the memory goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The process that the memory belongs to.
    Owners,
    /// Another process.
    Guests,
    /// Another process' first thread, on its parent's thread pointer: the parent sleeps, and takes pointer and record back.
    Vforked,
}

/// The part of a record that other threads read. It lies behind the record, so that nobody has an exclusive reference to it.
#[derive(Debug)]
pub struct Shared {
    /// The program's thread that has the record; 0: nobody, a thread of ours, or one of a guest's.
    tid: AtomicU32,
    /// Signals that the program thinks it has blocked although they are not, because Farshore needs them.
    pretended: AtomicU64,
    /// Signals of ours that the thread waits for.
    awaited: AtomicU64,
    /// The state of its rights ([`crate::ground::own_threads::rights`]).
    rights: AtomicU32,
    /// A thread that ends, and has given the record back, still runs on one of its stacks.
    busy: AtomicU32,
    /// A vforked child has begun with the record, which its parent gives back.
    lent_to_child: AtomicBool,
    /// The next record that nobody has; under the lock of [`RECORDS`].
    next_free: AtomicPtr<Thread>,
    /// The record that was made before this one: all records are on one list, which only grows.
    made_before: AtomicPtr<Thread>,
    /// The guest whose first thread has the record: its process id, and 0 if none has it (or had it last).
    guest: AtomicU32,
    /// In which round it stands still.
    pub seat: Seat,
    /// Where something of ours lies on the program's stack then.
    pub near: AtomicU64,
    /// How many signals were sent to stop it that have not been taken.
    pub owed: AtomicU32,
    /// Behind which `syscall` of the program's it stands, if its call has ended with `EINTR`; 0: it does not.
    pub site: AtomicU64,
    /// The number of that call; [`NO_NUMBER`]: it is not known.
    pub number: AtomicU64,
    /// The top of the stack for its watched calls while the process is dormant; 0: it has none.
    asleep: AtomicU64,
    /// Its signal actions. The last field: memory that is touched by guests alone.
    actions: Actions,
}

impl Shared {
    /// The program's thread that has the record.
    pub fn tid(&self) -> Option<u32> {
        Some(self.tid.load(Ordering::Acquire)).filter(|&tid| tid != 0)
    }

    /// Which signals of ours the thread pretends to have blocked.
    pub fn pretended(&self) -> SigSet {
        SigSet(self.pretended.load(Ordering::Relaxed))
    }

    /// Changes that. By the thread itself.
    pub fn pretend(&self, set: SigSet) {
        self.pretended.store(set.0, Ordering::Relaxed);
    }

    /// Which signals of ours the thread waits for.
    pub fn awaited(&self) -> SigSet {
        SigSet(self.awaited.load(Ordering::Relaxed))
    }

    /// The state of its rights.
    pub fn rights(&self) -> u32 {
        self.rights.load(Ordering::Acquire)
    }

    /// Changes that.
    pub fn set_rights(&self, state: u32) {
        self.rights.store(state, Ordering::Release);
    }

    /// Changes that. By the thread itself.
    pub fn await_signals(&self, set: SigSet) {
        self.awaited.store(set.0, Ordering::Relaxed);
    }
}

/// See [`Shared::number`].
pub const NO_NUMBER: u64 = u64::MAX;

/// Records that nobody has, and all there are.
struct Records {
    free: Option<NonNull<Thread>>,
    last_made: Option<NonNull<Thread>>,
}
// SAFETY: the records on the list of free ones belong to nobody, of the others only `made_before` is used, which does not change; and
// the lists are only used under their mutex.
unsafe impl Send for Records {}

static RECORDS: Mutex<Records> = Mutex::new(Records { free: None, last_made: None });

/// This thread's record, if it has one.
#[inline(always)]
pub fn current() -> Option<&'static Thread> {
    // SAFETY: null, or what `adopt` stored: a record that only this thread uses until `leave`, and its handlers; both by shared references, as the module's head says. (A
    // vforked child has one of its own in its parent's place; the parent takes that back.)
    unsafe { tls::get().cast::<Thread>().as_ref() }
}

/// The same for code that may call nothing (`dispatch/quick.rs`).
#[inline(always)]
pub fn current_inlined() -> Option<&'static Thread> {
    // SAFETY: as in `current`.
    unsafe { tls::get_inlined().cast::<Thread>().as_ref() }
}

/// This thread's record. A thread that was made in a way that Farshore did not see gets one now; without memory for it the
/// program ends. With signals blocked.
#[inline]
pub fn current_or_new() -> &'static Thread {
    let Some(thread) = current().or_else(|| adopt(false)) else {
        report::abort(format_args!("no memory for the record of a thread"));
    };
    thread
}

/// Whether the calling thread belongs to another process than the memory ([`Whose`]).
pub fn is_guest() -> bool {
    current().is_some_and(Thread::is_guest)
}

/// Whether the calling thread is one of Farshore's own.
pub fn is_internal() -> bool {
    current().is_some_and(|t| t.internal)
}

/// A record that nobody has: the first of the free ones whose last thread is gone, or a new one.
fn new_record() -> Option<NonNull<Thread>> {
    if let Some(record) = RECORDS.with(take_free) {
        return Some(record);
    }
    let base = map_own(RECORD_AT + RECORD + FETCH_MAX * size_of::<PageBuf>()).ok()?;
    for guard in [NESTED_AT, CALLS_AT, STACK_AT].map(|stack| stack - GUARD) {
        // SAFETY: a page of the mapping that was just made, which nobody uses yet.
        let _ = unsafe { vm::mprotect((base.as_ptr() as usize + guard) as u64, GUARD as u64, vm::prot::NONE) };
    }
    // A debugger that looks at a core finds the way from a call to the program there.
    let calls = base.as_ptr() as u64 + CALLS_AT as u64;
    // SAFETY: changes nothing but the dump.
    let _ = unsafe { vm::madvise(calls, CALLS as u64, vm::advice::DODUMP) };
    // SAFETY: inside the mapping, which is page-aligned as Thread wants.
    let record = unsafe { base.add(RECORD_AT) }.cast::<Thread>();
    RECORDS.with(|records| {
        shared_of(record).made_before.store(address(records.last_made), Ordering::Relaxed);
        records.last_made = Some(record);
    });
    Some(record)
}

fn take_free(records: &mut Records) -> Option<NonNull<Thread>> {
    let (mut before, mut next) = (None, records.free);
    while let Some(record) = next {
        let shared = shared_of(record);
        next = NonNull::new(shared.next_free.load(Ordering::Relaxed));
        if shared.busy.load(Ordering::Acquire) == 0 {
            match before {
                None => records.free = next,
                Some(before) => shared_of(before).next_free.store(address(next), Ordering::Relaxed),
            }
            return Some(record);
        }
        before = Some(record);
    }
    None
}

fn put_free(records: &mut Records, record: NonNull<Thread>) {
    shared_of(record).next_free.store(address(records.free), Ordering::Relaxed);
    records.free = Some(record);
}

/// The top of a record's stack for calls, or for nested ones.
fn top_of(record: NonNull<Thread>, (at, bytes): (usize, usize)) -> u64 {
    let base = record.as_ptr() as u64 - RECORD_AT as u64;
    base + (at + bytes - size_of::<Trapped>()) as u64
}

const FOR_CALLS: (usize, usize) = (CALLS_AT, CALLS);
const FOR_NESTED: (usize, usize) = (NESTED_AT, NESTED);

/// The record with this stack for calls.
fn record_with(top: u64) -> Option<NonNull<Thread>> {
    let record = top + (RECORD_AT - CALLS_AT - CALLS + size_of::<Trapped>()) as u64;
    NonNull::new(core::ptr::with_exposed_provenance_mut(record as usize))
}

/// The top of a call stack that nobody has; 0: there is no memory. With all signals blocked.
#[unsafe(no_mangle)]
extern "C" fn farshore_take_stack() -> u64 {
    let Some(record) = new_record() else { return 0 };
    if sleeping::state() != State::Awake && !has_stack_for_watched_calls(record) {
        RECORDS.with(|records| put_free(records, record));
        return 0;
    }
    top_of(record, FOR_CALLS)
}

/// Whether there is memory for a stack for the watched calls of the thread that will have this record.
fn has_stack_for_watched_calls(record: NonNull<Thread>) -> bool {
    let place = &shared_of(record).asleep;
    place.load(Ordering::Relaxed) != 0 || asleep::new_stack().inspect(|&top| place.store(top, Ordering::Relaxed)).is_ok()
}

/// Gives one back that no thread runs on. With all signals blocked.
#[unsafe(no_mangle)]
extern "C" fn farshore_give_stack(top: u64) {
    if let Some(record) = record_with(top) {
        if shared_of(record).lent_to_child.swap(false, Ordering::AcqRel) {
            // SAFETY: a complete record (`adopt_record`), whose thread has left this memory: it has executed a program, has ended, or was killed.
            net::unpin_all(unsafe { record.as_ref() });
        }
        RECORDS.with(|records| put_free(records, record));
    }
}

/// Whether an address lies on the calling thread's stacks for calls.
#[unsafe(no_mangle)]
extern "C" fn farshore_on_call_stack(at: u64) -> bool {
    let own = current().is_some_and(|thread| {
        let base = core::ptr::from_ref(thread) as u64 - RECORD_AT as u64;
        (base + NESTED_AT as u64..base + (CALLS_AT + CALLS) as u64).contains(&at)
    });
    // One that a child has begun on, before it has its record.
    let top = tls::call_stack();
    own || (top != 0 && at <= top && top - at < CALLS as u64)
}

/// A thread that we have not seen begin makes a call.
#[unsafe(no_mangle)]
extern "C" fn farshore_begin_thread() {
    current_or_new();
}

/// Runs code of the program from within a call: the calls that it makes use another stack. With all signals blocked but those that faults raise.
pub fn nested<R>(f: impl FnOnce() -> R) -> R {
    let (top, deferred) = (tls::call_stack(), tls::deferred());
    if let Some(thread) = current().filter(|thread| !thread.internal) {
        tls::set_call_stack(top_of(NonNull::from(thread), FOR_NESTED));
    }
    tls::set_deferred(0);
    let result = f();
    tls::set_deferred(deferred);
    tls::set_call_stack(top);
    result
}

/// Whether the calling thread is in there.
pub fn is_nested() -> bool {
    current().is_some_and(|thread| top_of(NonNull::from(thread), FOR_NESTED) == tls::call_stack())
}

fn buffer_of(record: NonNull<Thread>) -> NonNull<PageBuf> {
    // SAFETY: the mapping has FETCH_MAX pages behind the record's (`new_record`), on a page boundary.
    unsafe { record.byte_add(RECORD) }.cast()
}

fn shared_of(record: NonNull<Thread>) -> &'static Shared {
    let behind = record.as_ptr().wrapping_add(1).cast::<Shared>();
    // SAFETY: the mapping has room for it behind the record (`RECORD`), zeros are a value, and records are never unmapped.
    unsafe { &*behind }
}

/// A link to a record.
fn address(record: Option<NonNull<Thread>>) -> *mut Thread {
    record.map_or(core::ptr::null_mut(), NonNull::as_ptr)
}

/// The id of a thread of the program for which `fits` is true. With all signals blocked.
pub fn find(fits: impl Fn(&'static Shared) -> bool) -> Option<u32> {
    find_record(|shared| Some(shared.tid.load(Ordering::Acquire)).filter(|&tid| tid != 0 && fits(shared)))
}

/// What `look` has found first. With all signals blocked.
fn find_record<R>(look: impl Fn(&'static Shared) -> Option<R>) -> Option<R> {
    RECORDS.with(|records| {
        let mut next = records.last_made;
        while let Some(record) = next {
            let shared = shared_of(record);
            if let Some(found) = look(shared) {
                return Some(found);
            }
            next = NonNull::new(shared.made_before.load(Ordering::Relaxed));
        }
        None
    })
}

/// Calls `f` for each thread of the program, whose record stays its own meanwhile. With all signals blocked.
pub fn each(f: impl Fn(&'static Shared)) {
    find(|shared| {
        f(shared);
        false
    });
}

impl core::fmt::Debug for Thread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Thread").field("internal", &self.internal).field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Thread {
    /// Whether it belongs to another process than the memory.
    pub fn is_guest(&self) -> bool {
        self.whose.get() != Whose::Owners
    }

    /// The core on which it runs just now: whose frames it takes, and on whose list its pages come.
    pub fn core(&self) -> usize {
        cpu::current()
    }

    /// Lends the memory where fetched pages land.
    #[inline]
    pub fn with_buffer<R>(&self, f: impl FnOnce(&mut [PageBuf]) -> R) -> R {
        if self.lent.replace(true) {
            report::abort(format_args!("bug: a thread fetches pages while it fetches others"));
        }
        // SAFETY: FETCH_MAX pages of the record's mapping, any bytes of which are pages; nobody else has them, as was just seen.
        let result = f(unsafe { core::slice::from_raw_parts_mut(self.buffer.as_ptr(), FETCH_MAX) });
        self.lent.set(false);
        result
    }
}

/// Our alternate stack of a thread.
pub fn own_stack(record: &Thread) -> AltStack {
    AltStack { base: core::ptr::from_ref(record) as u64 - STACK as u64, flags: 0, size: STACK as u64 }
}

/// Gives the calling thread a record and our stacks. With signals blocked, or before any handler can run.
pub fn adopt(internal: bool) -> Option<&'static Thread> {
    adopt_record(new_record()?, internal, Whose::Owners)
}

/// Gives the main thread of a dormant process a record, before the first other thread is made. False: there is no memory.
pub fn adopt_sleeper() -> bool {
    current().is_some() || adopt(false).is_some()
}

/// For a thread of a process that was dormant: gives it a record, if it has none, and our stacks; then calls `f`, on a stack of ours. The
/// program's alternate stack, on which it may be just now, becomes what the thread believes to have. What `f` gives; after an error the
/// thread is as before. `None`: there is no memory for a record, and `f` was not called.
pub fn stand_up<R, E>(f: impl FnOnce(&Thread) -> Result<R, E>) -> Option<Result<R, E>> {
    // SAFETY: asks only.
    let programs = unsafe { signal::sigaltstack(None) }.unwrap_or(AltStack::NONE);
    let had_one = current().is_some();
    let thread = current().or_else(|| adopt(false))?;
    let (mut f, mut result) = (Some(f), None);
    let mut work = || {
        // From here: the kernel changes nothing for a thread on the stack that it knows.
        use_own_stack(thread);
        thread.program_stack.set(if programs.flags & AltStack::DISABLE != 0 { AltStack::NONE } else { programs });
        result = f.take().map(|f| f(thread));
        if matches!(result, Some(Err(_))) {
            // SAFETY: what the program has set itself.
            let _ = unsafe { signal::sigaltstack(Some(&programs)) };
        }
    };
    let top = top_of(NonNull::from(thread), FOR_NESTED) & !15;
    // SAFETY: a stack of the thread's own that nothing else is on: no call is under way there.
    unsafe { on_stack(top, FOR_CALLS.1, &mut work) };
    match result {
        Some(Ok(_)) => thread.sleeps.set(false),
        Some(Err(_)) if !had_one => {
            // SAFETY: null is always right.
            unsafe { tls::set(core::ptr::null_mut()) };
            tls::set_call_stack(0);
        }
        _ => {}
    }
    result
}

/// Calls `f` on the stack that ends at `top`. A signal may have brought the thread here, whose handler runs on the stack for calls, of `bytes`: calls
/// that `f` makes, as libc's code does, are served below that handler's frames, and not on them.
///
/// # Safety
/// A stack that nothing else uses, with room for what `f` needs. `top` is a multiple of 16.
unsafe fn on_stack<F: FnMut()>(top: u64, bytes: usize, f: &mut F) {
    extern "C" fn call<F: FnMut()>(f: &mut F) {
        f();
    }
    let (calls, here): (u64, u64) = (tls::call_stack(), stack_pointer());
    let is_on_it = here < calls && calls - here < bytes as u64;
    if is_on_it {
        // Below this function's frame, and what it calls before and after `f`.
        tls::set_call_stack((here - BELOW - size_of::<Trapped>() as u64) & !15);
    }
    // SAFETY: the caller's promise; the callee is a C function, which keeps r12; and a panic in it ends the process.
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {call}",
            "mov rsp, r12",
            top = in(reg) top,
            call = in(reg) call::<F> as extern "C" fn(&mut F),
            in("rdi") core::ptr::from_mut(f),
            out("r12") _,
            clobber_abi("C"),
        );
    }
    if is_on_it {
        tls::set_call_stack(calls);
    }
}

/// More than the frame of a small function below the stack pointer of its caller, bytes.
const BELOW: u64 = 1024;

/// Of the calling function, whose frame lies above, or of one that has been compiled into it.
#[inline(always)]
fn stack_pointer() -> u64 {
    let here: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    here
}

/// The same as [`adopt`] for a new thread of the program, which runs on a record's stack for calls already.
pub fn adopt_on(stack: u64, whose: Whose) -> Option<&'static Thread> {
    adopt_record(record_with(stack)?, false, whose)
}

fn adopt_record(record: NonNull<Thread>, internal: bool, whose: Whose) -> Option<&'static Thread> {
    let held = Held::new();
    if whose == Whose::Guests {
        held.keep_nothing();
    }
    let fresh = Thread {
        buffer: buffer_of(record),
        lent: Cell::new(false),
        internal,
        counted: Cell::new(false),
        whose: Cell::new(whose),
        shared: shared_of(record),
        waiting: Waiting::new(),
        suspended: Cell::new(None),
        deferred: Cell::new(None),
        step: Cell::new(None),
        sleeps: Cell::new(!internal && sleeping::state() != State::Awake),
        selector: AtomicU8::new(sud::BLOCK),
        program_stack: Cell::new(AltStack::NONE),
        held,
        storage: Cell::new(None),
        doubted: Cell::new(0),
        actions: Cell::new(None),
        worker: Cell::new(None),
        rings: Cell::new(false),
    };
    // SAFETY: the record is writable memory of the right size and alignment that is this thread's alone.
    unsafe { record.write(fresh) };
    // SAFETY: valid until `leave`, which sets null.
    unsafe { tls::set(record.as_ptr().cast()) };
    if !internal {
        tls::set_call_stack(top_of(record, FOR_CALLS));
        tls::set_deferred(0);
    }
    let thread = current()?;
    if !thread.sleeps.get() {
        use_own_stack(thread);
    } else if tls::asleep_top() == 0 {
        // The handler that stops the thread runs where calls do when the process is awake.
        asleep::begin(thread.shared.asleep.load(Ordering::Relaxed), top_of(record, FOR_CALLS) & !15);
    }
    thread.shared.pretend(SigSet::EMPTY);
    thread.shared.await_signals(SigSet::EMPTY);
    thread.shared.set_rights(0);
    thread.shared.owed.store(0, Ordering::Relaxed);
    thread.shared.lent_to_child.store(whose == Whose::Vforked, Ordering::Release);
    let known = !internal && whose == Whose::Owners;
    thread.shared.tid.store(if known { gettid() } else { 0 }, Ordering::Release);
    Some(thread)
}

/// Makes our alternate stack the thread's.
fn use_own_stack(thread: &Thread) {
    // SAFETY: 64 KiB of the record's mapping that nothing else uses, for as long as the record is the thread's.
    let _ = unsafe { signal::sigaltstack(Some(&own_stack(thread))) };
}

/// The thread ends: its record goes back. With signals blocked; the caller makes no more use of records, and ends a thread of the program by [`exit`].
pub fn leave() -> Option<&'static Shared> {
    let thread = current()?;
    let shared = thread.shared;
    shared.tid.store(0, Ordering::Release);
    if !thread.sleeps.get() {
        // SAFETY: no stack is safe memory.
        let _ = unsafe { signal::sigaltstack(Some(&AltStack::NONE)) };
    }
    // SAFETY: null is always right.
    unsafe { tls::set(core::ptr::null_mut()) };
    if !thread.internal {
        // We run on its stack for calls until the very end.
        shared.busy.store(1, Ordering::Relaxed);
    }
    RECORDS.with(|records| put_free(records, NonNull::from(thread)));
    Some(shared)
}

/// Ends the calling thread, whose stack another one may have from then on. With all signals blocked.
pub fn exit(shared: Option<&'static Shared>, status: u64) -> ! {
    let nobody = AtomicU32::new(0);
    let busy = shared.map_or(&nobody, |shared| &shared.busy);
    // SAFETY: ends this thread; from the store on it touches no stack.
    unsafe {
        core::arch::asm!(
            "mov dword ptr [{busy}], 0",
            "syscall",
            "ud2",
            busy = in(reg) busy.as_ptr(),
            in("rax") nr::EXIT,
            in("rdi") status,
            options(noreturn),
        )
    }
}

/// The calling thread is the first of a guest, which has signal actions of its own: a copy of `parents`'. With all signals blocked.
pub fn begin_actions(thread: &Thread, parents: Option<&'static Actions>) {
    let pid = getpid();
    // A guest before it that had this id was killed.
    find_record(|shared| {
        let _ = shared.guest.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
        None::<()>
    });
    thread.shared.guest.store(pid, Ordering::Release);
    thread.actions.set(Some(actions::begin_own(&thread.shared.actions, parents)));
}

/// The calling thread is another one of a guest, and shares its actions. With all signals blocked.
pub fn share_actions(thread: &Thread) {
    let pid = getpid();
    thread.actions.set(find_record(|shared| (shared.guest.load(Ordering::Acquire) == pid).then_some(&shared.actions)));
}

/// Keeps the lists of records as they are, for the time of a fork.
pub fn hold_records() {
    RECORDS.acquire();
}

/// Ends that, in the parent.
pub fn let_records_go() {
    RECORDS.release();
}

/// In a forked child: the other threads' records are nobody's, and this thread's process has the memory. Ends [`hold_records`].
pub fn others_are_gone() {
    RECORDS.release();
    if let Some(thread) = current() {
        thread.whose.set(Whose::Owners);
    }
    let mine = NonNull::new(tls::get().cast::<Thread>());
    RECORDS.with(|records| {
        records.free = None;
        let mut next = records.last_made;
        while let Some(record) = next {
            let shared = shared_of(record);
            next = NonNull::new(shared.made_before.load(Ordering::Relaxed));
            shared.tid.store(if Some(record) == mine { gettid() } else { 0 }, Ordering::Release);
            shared.busy.store(0, Ordering::Relaxed);
            shared.lent_to_child.store(false, Ordering::Relaxed);
            // A child whose parent was in a call on another record's stack goes on there.
            if Some(record) != mine && top_of(record, FOR_CALLS) != tls::call_stack() {
                put_free(records, record);
            }
        }
    });
}
