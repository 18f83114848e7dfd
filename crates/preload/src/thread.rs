//! What Farshore keeps for each thread of the program: pages to fetch into, a stack for
//! its signal handlers, and what the thread believes about its own signals.
//!
//! ```text
//!  ┌ guard ┬ stand-in stack (128 KiB) ┬ guard ┬ alternate signal stack (64 KiB) ┬ Thread ┬ fetched pages (64 KiB) ┐
//!  └ 4 KiB ┴──────────────────────────┴ 4 KiB ┴─────────────────────────────────┴────────┴────────────────────────┘
//! ```
//!
//! One mapping a thread, never managed, recycled through a free list. The stand-in takes the place of an alternate stack of
//! the program's that is too small for system calls by our way (`signals/altstack.rs`).

use crate::net::buffers::Held;
use crate::signals::pretended::Waiting;
use crate::signals::waits::Suspended;
use crate::unithreads::worker::Worker;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use farshore_engine::traits::PageBuf;
use farshore_sys::cpu;
use farshore_sys::lock::Mutex;
use farshore_sys::own::map_own;
use farshore_sys::raw::gettid;
use farshore_sys::signal::{self, AltStack, SigSet};
use farshore_sys::thread::Home;
use farshore_sys::tls;
use farshore_sys::vm;

const GUARD: usize = 4096;
const STACK: usize = 64 << 10;
const STAND_IN: usize = 128 << 10;
/// Where the record begins in its mapping.
const RECORD_AT: usize = GUARD + STAND_IN + GUARD + STACK;
/// Bytes for the record: whole pages, so that what is fetched lands on page boundaries.
const RECORD: usize = (size_of::<Thread>() + size_of::<Shared>()).next_multiple_of(4096);
/// Pages that one fetch brings at most: 256 KiB, at which SSDs come near to their sequential rate.
const FETCH_MAX: usize = 64;

/// One thread's record.
#[derive(Debug)]
#[repr(C)]
pub struct Thread {
    /// Where fetched pages land before they are mapped: [`FETCH_MAX`] pages behind the record.
    buffer: NonNull<PageBuf>,
    /// One of Farshore's own threads: it must not fault on managed memory, and its system calls are its own.
    pub internal: bool,
    /// It counts as one of the threads of the program's process ([`crate::process`]).
    pub counted: bool,
    /// Depth of `vfork`s that share this record: the child runs on the parent's thread pointer.
    pub vforked: u32,
    /// What other threads may look at.
    pub shared: &'static Shared,
    /// Signals of ours that wait for this thread, which it pretends to have blocked.
    pub waiting: Waiting,
    /// The thread is in a call that has a mask for its time.
    pub suspended: Option<Suspended>,
    /// The program's own alternate stack.
    pub program_stack: AltStack,
    /// Signal masks around [`crate::stack`]'s calls: all signals, and those of before.
    pub masks: [SigSet; 2],
    /// What the thread's calls have pinned.
    pub held: Held,
    /// Thread-local storage of ours, of a thread that `clone` has made without.
    pub storage: Option<Home>,
    /// Where the last fault was that was on nobody's memory when it was looked at, and was tried again ([`crate::fault`]); 0: nowhere.
    pub doubted: u64,
    /// It runs unithreads ([`crate::unithreads`]).
    pub worker: Option<&'static Worker>,
    /// It may make rings: it answers for the memory of its requests itself.
    pub rings: bool,
}

/// The part of a record that other threads read. It lies behind the record, so that nobody has an exclusive reference to it.
#[derive(Debug)]
pub struct Shared {
    /// The program's thread that has the record; 0: nobody, or a thread of ours.
    tid: AtomicU32,
    /// Signals that the program thinks it has blocked although they are not, because Farshore needs them.
    pretended: AtomicU64,
    /// Signals of ours that the thread waits for.
    awaited: AtomicU64,
    /// The state of its rights ([`crate::own_threads::rights`]).
    rights: AtomicU32,
    /// The next record that nobody has; under the lock of [`RECORDS`].
    next_free: AtomicPtr<Thread>,
    /// The record that was made before this one: all records are on one list, which only grows.
    made_before: AtomicPtr<Thread>,
}

impl Shared {
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
pub fn current() -> Option<&'static mut Thread> {
    // SAFETY: null, or what `adopt` stored: a record that only this thread uses until `leave`. (A vforked child shares it
    // with its parent, which sleeps meanwhile.) Callers keep the reference for short, non-overlapping uses.
    unsafe { tls::get().cast::<Thread>().as_mut() }
}

/// Whether the calling thread is one of Farshore's own.
pub fn is_internal() -> bool {
    current().is_some_and(|t| t.internal)
}

fn new_record() -> Option<NonNull<Thread>> {
    if let Some(record) = RECORDS.with(|records| {
        let first = records.free?;
        records.free = NonNull::new(shared_of(first).next_free.load(Ordering::Relaxed));
        Some(first)
    }) {
        return Some(record);
    }
    let base = map_own(RECORD_AT + RECORD + FETCH_MAX * size_of::<PageBuf>()).ok()?;
    for guard in [0, GUARD + STAND_IN] {
        // SAFETY: a page of the mapping that was just made, which nobody uses yet.
        let _ = unsafe { vm::mprotect((base.as_ptr() as usize + guard) as u64, GUARD as u64, vm::prot::NONE) };
    }
    // SAFETY: inside the mapping, which is page-aligned as Thread wants.
    let record = unsafe { base.add(RECORD_AT) }.cast::<Thread>();
    RECORDS.with(|records| {
        shared_of(record).made_before.store(address(records.last_made), Ordering::Relaxed);
        records.last_made = Some(record);
    });
    Some(record)
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
pub fn find(fits: impl Fn(&Shared) -> bool) -> Option<u32> {
    RECORDS.with(|records| {
        let mut next = records.last_made;
        while let Some(record) = next {
            let shared = shared_of(record);
            let tid = shared.tid.load(Ordering::Acquire);
            if tid != 0 && fits(shared) {
                return Some(tid);
            }
            next = NonNull::new(shared.made_before.load(Ordering::Relaxed));
        }
        None
    })
}

/// Calls `f` for each thread of the program. With all signals blocked.
pub fn each(f: impl Fn(&Shared)) {
    find(|shared| {
        f(shared);
        false
    });
}

impl Thread {
    /// The core on which it runs just now: whose frames it takes, and on whose list its pages come.
    pub fn core(&self) -> usize {
        cpu::current()
    }

    /// Where fetched pages land.
    pub fn buffer(&mut self) -> &mut [PageBuf] {
        // SAFETY: FETCH_MAX pages of the record's mapping, any bytes of which are pages; the record is borrowed for as long.
        unsafe { core::slice::from_raw_parts_mut(self.buffer.as_ptr(), FETCH_MAX) }
    }
}

/// Our alternate stack of a thread.
pub fn own_stack(record: &Thread) -> AltStack {
    AltStack { base: core::ptr::from_ref(record) as u64 - STACK as u64, flags: 0, size: STACK as u64 }
}

/// The stack that stands in for a small one of the program's.
pub fn stand_in(record: &Thread) -> AltStack {
    let base = core::ptr::from_ref(record) as u64 - (STAND_IN + GUARD + STACK) as u64;
    AltStack { base, flags: 0, size: STAND_IN as u64 }
}

/// Gives the calling thread a record and our alternate stack. With signals blocked, or before any handler can run.
pub fn adopt(internal: bool) -> Option<&'static mut Thread> {
    let record = new_record()?;
    let fresh = Thread {
        buffer: buffer_of(record),
        internal,
        counted: false,
        vforked: 0,
        shared: shared_of(record),
        waiting: Waiting::NONE,
        suspended: None,
        program_stack: AltStack::NONE,
        masks: [SigSet::ALL, SigSet::EMPTY],
        held: Held::new(),
        storage: None,
        doubted: 0,
        worker: None,
        rings: false,
    };
    // SAFETY: the record is writable memory of the right size and alignment that is this thread's alone.
    unsafe { record.write(fresh) };
    // SAFETY: valid until `leave`, which sets null.
    unsafe { tls::set(record.as_ptr().cast()) };
    let thread = current()?;
    use_own_stack(thread);
    thread.shared.pretend(SigSet::EMPTY);
    thread.shared.await_signals(SigSet::EMPTY);
    thread.shared.set_rights(0);
    thread.shared.tid.store(if internal { 0 } else { gettid() }, Ordering::Release);
    Some(thread)
}

/// Makes our alternate stack the thread's.
fn use_own_stack(thread: &Thread) {
    // SAFETY: 64 KiB of the record's mapping that nothing else uses, for as long as the record is the thread's.
    let _ = unsafe { signal::sigaltstack(Some(&own_stack(thread))) };
}

/// The thread ends: its record goes back. With signals blocked; the caller makes no more use of records.
pub fn leave() {
    let Some(thread) = current() else { return };
    thread.shared.tid.store(0, Ordering::Release);
    // SAFETY: no stack is safe memory.
    let _ = unsafe { signal::sigaltstack(Some(&AltStack::NONE)) };
    // SAFETY: null is always right.
    unsafe { tls::set(core::ptr::null_mut()) };
    let record = NonNull::from(thread);
    RECORDS.with(|records| {
        shared_of(record).next_free.store(address(records.free), Ordering::Relaxed);
        records.free = Some(record);
    });
}

/// Keeps the lists of records as they are, for the time of a fork.
pub fn hold_records() {
    RECORDS.acquire();
}

/// Ends that, in the parent.
pub fn let_records_go() {
    RECORDS.release();
}

/// In a forked child: the other threads' records are nobody's. Ends [`hold_records`].
pub fn others_are_gone() {
    RECORDS.release();
    let mine = NonNull::new(tls::get().cast::<Thread>());
    RECORDS.with(|records| {
        records.free = None;
        let mut next = records.last_made;
        while let Some(record) = next {
            let shared = shared_of(record);
            next = NonNull::new(shared.made_before.load(Ordering::Relaxed));
            shared.tid.store(if Some(record) == mine { gettid() } else { 0 }, Ordering::Release);
            if Some(record) != mine {
                shared.next_free.store(address(records.free), Ordering::Relaxed);
                records.free = Some(record);
            }
        }
    });
}
