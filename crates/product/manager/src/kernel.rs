//! The engine's [`Kernel`] on shared memory of another process, the *client*.
//!
//! ```text
//!  in    UFFDIO_COPY into the client's mapping                  fills a hole of the file; wakes whoever waits
//!  out   UFFDIO_WRITEPROTECT of the client's mapping            one ranged call for a batch's pages of a granule
//!        pread from the file                                    copies the bytes to a stage
//!        fallocate(PUNCH_HOLE) of the file                      neighbours with one call; the pages leave all mappings
//! ```
//!
//! Everything else is the engine's, as in a program that runs under Farshore: page words, frames, stages, slots, evictors. A [`Page`] is a page of
//! the client's address space. It is *in memory* when the file has it, whether the client's page table does or not.
//!
//! # Invariants
//!
//! 1. **Whoever touches a page that is out waits.** A page that is out is a hole of the file, and the mapping is registered for missing pages. So the access faults to us,
//!    that of a thread and that of the kernel for it (`read(2)` into the memory, a virtual processor under KVM): it neither fails nor finds zeros. The kernel may leave zeros where a part of
//!    a huge page was punched; so memory with huge pages is refused, each punch is looked at, and what is not a hole is poisoned.
//! 2. **No byte changes between the copy and the punch.** An evictor owns a page from before it is protected until it is out. Protecting shared memory leaves the
//!    protection also where the page table has no entry (as a marker), and whatever takes an entry away leaves a marker: the kernel's reclaim, migration, the client's own
//!    `MADV_DONTNEED`. So from the protection on, each write through the mapping waits for a message, which waits for the owner.
//! 3. **A page comes back by a copy into a hole alone.** The kernel refuses to copy where the file has a page. So bytes that the client has are never replaced.
//! 4. **Whoever waits is woken.** Punching wakes nobody. But each who waits has a message in the queue; whoever looks at a message wakes when it is done with it.
//! 5. **A page that is clean is write-protected**: it came by a copy with protection, which stays as in 2.
//! 6. **What the client throws away is gone once.** A client may punch holes itself (a balloon does) and tells nobody. A page that is in memory as far as its word knows, and
//!    is a hole, is fresh memory: a fault finds that out before it is served, and an evictor before it punches. It looks for holes *after* the copy: if there is none, there was none before,
//!    since only we can fill one. So a page never leaves with other bytes than its slot has. Of a page that is out the client's hole changes nothing: it has the bytes that it had.
//! 7. **What is mapped is noted by the kernel**, for whoever takes over ([`farshore_engine::takeover`]).
//! 8. **A hole that was made is told from one that was there** by its page word alone. So files are marked before the first hole is made ([`crate::memory`]).
//!
//! # What they rest on
//!
//! The client reaches the memory by the mappings that it has handed over, and by nothing else: 1 and 2 do not hold for a second mapping, for another process that maps the
//! file (a `vhost-user` device), or for `write(2)` to it. A second mapping in the client itself is refused at the hand-over; the others cannot be seen.
//!
//! And the kernel must not write to a page that it has found before: a direct read (`O_DIRECT`), a registered buffer of io_uring or a passed-through device goes on writing to
//! the page that it took when it began, although a hole is in its place by then. From outside, such pages look as all others do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Kernel, KernelError, PageBuf, Protect};
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::{Uffd, UffdError};

use crate::memory::{Memory, PUNCHES};
use crate::seldom::Seldom;
use crate::state::State;

/// The page tables of the client, and its memory.
#[derive(Debug)]
pub struct SharedKernel {
    /// What a userfaultfd does is the same for whosever memory it is.
    client: LinuxKernel,
    memory: Memory,
    /// Pages that evictors have found to be thrown away, for [`SharedKernel::thrown_away`].
    found: Mutex<Vec<Page>>,
    /// There are some.
    some: Condvar,
    /// The last page that could not come because the client has nothing there: its number and 1, or 0.
    gone: AtomicU64,
    /// Where it is noted what was mapped, for whoever takes over.
    state: Option<&'static State>,
}

/// So many of them are remembered. More will be found again.
const FOUND_MAX: usize = 4096;

impl SharedKernel {
    /// For the memory that the client has registered, or will have registered, with this userfaultfd of its own. `state`: what outlives this process, if anything does.
    ///
    /// # Errors
    /// What opening `/proc/self/mem` answers.
    pub fn new(uffd: Uffd, memory: Memory, state: Option<&'static State>) -> Result<SharedKernel, Errno> {
        let client = LinuxKernel::new(uffd, true)?;
        let found = Mutex::new(Vec::with_capacity(FOUND_MAX));
        Ok(SharedKernel { client, memory, found, some: Condvar::new(), gone: AtomicU64::new(0), state })
    }

    /// The client's userfaultfd.
    pub fn uffd(&self) -> &Uffd {
        self.client.uffd()
    }

    /// The regions.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Waits for pages that evictors have found to be thrown away, and gives them. They are as they were.
    pub fn thrown_away(&self) -> Vec<Page> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        while found.is_empty() {
            found = self.some.wait(found).unwrap_or_else(PoisonError::into_inner);
        }
        found.drain(..).collect()
    }

    /// An evictor could not go on at the first of these: remembers those that are thrown away.
    fn note_thrown_away(&self, pages: &[Page]) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let room = FOUND_MAX - found.len();
        found.extend(pages.iter().filter(|page| self.memory.is_hole(**page)).take(room));
        if !found.is_empty() {
            self.some.notify_one();
        }
    }

    /// The last page that could not come because the client has nothing mapped and registered there, since this was asked before.
    pub fn take_gone(&self) -> Option<Page> {
        self.gone.swap(0, Ordering::Relaxed).checked_sub(1).map(Page)
    }

    /// A page has left, and the kernel keeps zeros in its place in the file: whoever needs it gets SIGBUS.
    fn close(&self, page: Page) {
        static SAID: Seldom = Seldom::new();
        SAID.tell(|| {
            format!(
                "the page at {:#x} of the client is lost, and whoever needs it gets SIGBUS: it was a part of a huge page that was in use, of which the kernel keeps zeros; \
                 give the virtual machine memory without huge pages",
                page.addr()
            )
        });
        for _ in 0..PUNCHES {
            // What is left of its protection would keep the poison out.
            let _ = self.uffd().unprotect(page.addr(), PAGE_SIZE as u64, false);
            if self.uffd().poison(page.addr(), PAGE_SIZE as u64) != Err(UffdError::Exists) {
                break;
            }
            // Somebody has touched the zeros meanwhile: out of the page table with them.
            let _ = self.memory.punch(&[page], &mut Vec::new());
        }
    }

    /// What a page that came to nothing tells about the client.
    fn note_gone(&self, page: Page, why: KernelError) {
        if why == KernelError::Gone {
            self.gone.store(page.0 + 1, Ordering::Relaxed);
        }
    }
}

impl SharedKernel {
    /// Maps a page from the stages of a manager that has ended: its memory has the note, as if a thread of its own had done it.
    ///
    /// # Errors
    /// As [`Kernel::map`].
    pub fn map_for(&self, left: &State, page: Page, bytes: &PageBuf) -> Result<(), KernelError> {
        let one = core::slice::from_ref(bytes);
        self.client.map_run_noted(left.first_note(), page, one, Protect::Writable).map(|_| ())
    }
}

impl Kernel for SharedKernel {
    fn is_outlived(&self) -> bool {
        true
    }

    fn map(&self, page: Page, bytes: &PageBuf, protect: Protect) -> Result<(), KernelError> {
        self.map_run(page, core::slice::from_ref(bytes), protect).map(|_| ()).inspect_err(|why| self.note_gone(page, *why))
    }

    fn map_run(&self, first: Page, bytes: &[PageBuf], protect: Protect) -> Result<u64, KernelError> {
        match self.state {
            Some(state) => self.client.map_run_noted(state.own_note(), first, bytes, protect),
            None => self.client.map_run(first, bytes, protect),
        }
    }

    fn forget_mapped(&self) {
        if let Some(state) = self.state {
            state.own_note().forget();
        }
    }

    fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError> {
        self.client.map_zeros(first, count)
    }

    fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        self.client.protect(range)
    }

    fn unprotect(&self, page: Page) -> Result<(), KernelError> {
        self.client.unprotect(page)
    }

    /// Whether the client itself may read it does not matter to its file.
    fn copy_out(&self, page: Page, into: &mut PageBuf, _readable: bool) -> Result<(), KernelError> {
        self.memory.read(page, into).inspect_err(|why| {
            // The client has made its file shorter.
            if *why == KernelError::Gone {
                self.note_thrown_away(&[page]);
            }
        })
    }

    fn unmap(&self, pages: &[Page]) -> Result<(), (usize, KernelError)> {
        static SAID: Seldom = Seldom::new();
        let mut stuck = Vec::new();
        let punched = self.memory.punch(pages, &mut stuck);
        stuck.into_iter().for_each(|page| self.close(page));
        punched.inspect_err(|&(done, why)| match why {
            // Where one was thrown away there are more: each of them would cost a batch.
            KernelError::Gone => self.note_thrown_away(&pages[done..]),
            KernelError::Again => {}
            why => SAID.tell(|| {
                format!("pages of the client cannot be taken out of memory ({why:?}): was its file sealed against writing, or given to another user?")
            }),
        })
    }

    fn current_thread(&self) -> u64 {
        self.client.current_thread()
    }

    fn step_aside(&self) {
        self.client.step_aside();
    }
}
