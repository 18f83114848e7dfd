//! What Farshore keeps for each thread of the program: pages to fetch into, a stack for
//! its signal handlers, and what the thread believes about its own signals.
//!
//! ```text
//!  ┌ guard ┬ alternate signal stack (64 KiB) ┬ Thread ┬ fetched pages (64 KiB) ┐     one mapping a thread, never managed,
//!  └ 4 KiB ┴─────────────────────────────────┴────────┴────────────────────────┘     recycled through a free list
//! ```

use crate::net::buffers::{Held, PinSet};
use crate::signals::pretended::Waiting;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use farshore_engine::traits::PageBuf;
use farshore_sys::lock::Mutex;
use farshore_sys::own::map_own;
use farshore_sys::signal::{self, AltStack, SigSet};
use farshore_sys::tls;
use farshore_sys::vm;

const GUARD: usize = 4096;
const STACK: usize = 64 << 10;
/// Bytes for the record: whole pages, so that what is fetched lands on page boundaries.
const RECORD: usize = size_of::<Thread>().next_multiple_of(4096);
/// Pages that one fetch brings at most: 64 KiB, which an SSD reads in little more time than one page.
const FETCH_MAX: usize = 16;

/// Pages that a fetch may bring: 1 with `--prefetch none`.
static FETCH_PAGES: AtomicUsize = AtomicUsize::new(1);

/// Lets fetches bring pages that belong to a stream.
pub fn fetch_streams() {
    FETCH_PAGES.store(FETCH_MAX, Ordering::Relaxed);
}

/// One thread's record.
#[derive(Debug)]
#[repr(C)]
pub struct Thread {
    /// Where fetched pages land before they are mapped: [`FETCH_MAX`] pages behind the record.
    buffer: NonNull<PageBuf>,
    /// One of Farshore's own threads: it must not fault on managed memory, and its system calls are its own.
    pub internal: bool,
    /// Number that spreads threads over frame caches and partitions.
    pub core: usize,
    /// Depth of `vfork`s that share this record: the child runs on the parent's thread pointer.
    pub vforked: u32,
    /// Signals that the program thinks it has blocked although they are not, because Farshore needs them.
    pub pretended_mask: SigSet,
    /// Signals that wait for this thread because of that.
    pub waiting: Waiting,
    /// The program's own alternate stack, if it has set one.
    pub program_stack: Option<AltStack>,
    /// Pages of that stack that are pinned while it is set.
    pub stack_pins: PinSet,
    /// What the thread's calls have pinned.
    pub held: Held,
    next_free: Option<NonNull<Thread>>,
}

struct FreeList(Option<NonNull<Thread>>);
// SAFETY: the records on the list belong to nobody, and the list is only used under its mutex.
unsafe impl Send for FreeList {}

static FREE: Mutex<FreeList> = Mutex::new(FreeList(None));
static NUMBER: AtomicU32 = AtomicU32::new(0);

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
    if let Some(record) = FREE.with(|list| {
        let first = list.0?;
        // SAFETY: on the list means: a valid record that nobody uses.
        list.0 = unsafe { first.as_ref() }.next_free;
        Some(first)
    }) {
        return Some(record);
    }
    let base = map_own(GUARD + STACK + RECORD + FETCH_MAX * size_of::<PageBuf>()).ok()?;
    // SAFETY: the first page of the mapping that was just made, which nobody uses yet.
    let _ = unsafe { vm::mprotect(base.as_ptr() as u64, GUARD as u64, vm::prot::NONE) };
    // SAFETY: inside the mapping, which is page-aligned as Thread wants.
    let record = unsafe { base.add(GUARD + STACK) }.cast::<Thread>();
    Some(record)
}

fn buffer_of(record: NonNull<Thread>) -> NonNull<PageBuf> {
    // SAFETY: the mapping has FETCH_MAX pages behind the record's (`new_record`), on a page boundary.
    unsafe { record.byte_add(RECORD) }.cast()
}

impl Thread {
    /// Where fetched pages land.
    pub fn buffer(&mut self) -> &mut [PageBuf] {
        // SAFETY: FETCH_MAX pages of the record's mapping, any bytes of which are pages; the record is borrowed for as long.
        unsafe { core::slice::from_raw_parts_mut(self.buffer.as_ptr(), FETCH_PAGES.load(Ordering::Relaxed)) }
    }
}

fn own_stack(record: &Thread) -> AltStack {
    AltStack { base: core::ptr::from_ref(record) as u64 - STACK as u64, flags: 0, size: STACK as u64 }
}

/// Gives the calling thread a record and our alternate stack. With signals blocked, or before any handler can run.
pub fn adopt(internal: bool) -> Option<&'static mut Thread> {
    let record = new_record()?;
    let fresh = Thread {
        buffer: buffer_of(record),
        internal,
        core: NUMBER.fetch_add(1, Ordering::Relaxed) as usize,
        vforked: 0,
        pretended_mask: SigSet::EMPTY,
        waiting: Waiting::NONE,
        program_stack: None,
        stack_pins: PinSet::new(),
        held: Held::new(),
        next_free: None,
    };
    // SAFETY: the record is writable memory of the right size and alignment that is this thread's alone.
    unsafe { record.write(fresh) };
    // SAFETY: valid until `leave`, which sets null.
    unsafe { tls::set(record.as_ptr().cast()) };
    let thread = current()?;
    use_own_stack(thread);
    Some(thread)
}

/// Makes our alternate stack the thread's.
pub fn use_own_stack(thread: &Thread) {
    // SAFETY: 64 KiB of the record's mapping that nothing else uses, for as long as the record is the thread's.
    let _ = unsafe { signal::sigaltstack(Some(&own_stack(thread))) };
}

/// The thread ends: its record goes back. With signals blocked; the caller makes no more use of records.
pub fn leave() {
    let Some(thread) = current() else { return };
    // SAFETY: no stack is safe memory.
    let _ = unsafe { signal::sigaltstack(Some(&AltStack::NONE)) };
    // SAFETY: null is always right.
    unsafe { tls::set(core::ptr::null_mut()) };
    let record = NonNull::from(thread);
    FREE.with(|list| {
        // SAFETY: the record is still ours: only `tls` named it.
        unsafe { (*record.as_ptr()).next_free = list.0 };
        list.0 = Some(record);
    });
}
