//! Whose page tables the memory of a manager is in: those of one process, or of several that have it at the same addresses.
//!
//! A virtual machine monitor is alone with its memory. The processes of a family that were forked share theirs ([`crate::kin`]): each has a userfaultfd of its own, over its own mapping of
//! the same file. What is one call for one process is here one call for each.
//!
//! # Invariants, for several
//!
//! 1. **Each page that is out, clean or in an evictor's hands is write-protected in every page table.** An evictor protects it in all of them before it copies, and again when it is out ([`Clients::protect_again`]): a marker is left where the page table has no
//!    entry. A page that comes back does so in one of them; the markers of the others stay, so a write through any of them faults. A process that comes has all of its memory
//!    protected before it runs any code of the program.
//! 2. **Protection that is too much does no harm.** A page that was made writable for one process is protected in the others until they write; each of them has its own fault, served under the page's word.
//! 3. **A call is made only where the process has the memory.** The kernel does not look whose userfaultfd has registered the place that a call names: a process that has unmapped the memory may have
//!    memory of its own there. So a process says before it changes a mapping, and [`Kin::ranges`] changes while no other call is made ([`Clients::alone`]).
//! 4. **A page comes back where it can.** The process whose fault is served may have been killed. Then the bytes come by way of another one: they are the file's.

use std::cell::RefCell;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Kernel as _, KernelError, PageBuf, Protect};
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::{Note, Uffd, UffdError};

/// How long a thread pauses that cannot protect a page: the kernel has no memory for a page table.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    /// The process whose fault this thread serves.
    static SERVED: RefCell<Option<Arc<Kin>>> = const { RefCell::new(None) };
}

/// One of several processes that share memory.
#[derive(Debug)]
pub struct Kin {
    /// Its page tables, by the userfaultfd that it has sent.
    pub kernel: LinuxKernel,
    /// Its number.
    pub pid: i32,
    /// What of the memory it has.
    ranges: RwLock<Vec<PageRange>>,
}

impl Kin {
    /// A process that has none of the memory yet.
    #[must_use]
    pub fn new(kernel: LinuxKernel, pid: i32) -> Kin {
        Kin { kernel, pid, ranges: RwLock::default() }
    }

    fn uffd(&self) -> &Uffd {
        self.kernel.uffd()
    }

    /// What of the memory it has.
    pub fn ranges(&self) -> Vec<PageRange> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What of the memory it has from now on. While no other call is made.
    pub fn set_ranges(&self, _alone: &Alone<'_>, ranges: Vec<PageRange>) {
        *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = ranges;
    }

    /// The parts of a range that it has.
    fn parts(&self, range: PageRange) -> impl Iterator<Item = PageRange> {
        let parts: Vec<_> = self.ranges().into_iter().map(|own| own.intersect(range)).filter(|part| !part.is_empty()).collect();
        parts.into_iter()
    }

    fn has(&self, page: Page) -> bool {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner).iter().any(|range| range.contains(page))
    }

    /// Registers a range that it has mapped, for missing pages and write protection, and for nothing else.
    ///
    /// # Errors
    /// The kernel's.
    pub fn register(&self, range: PageRange) -> Result<(), Errno> {
        register(self.uffd(), range)
    }

    /// Protects all of a range, whether anything is there or not.
    ///
    /// # Errors
    /// `Gone`: it has nothing there.
    pub fn protect_all(&self, range: PageRange) -> Result<(), KernelError> {
        self.kernel.protect(range)
    }

    /// Wakes whoever waits in a range.
    pub fn wake(&self, range: PageRange) {
        let _ = self.uffd().wake(range.start.addr(), range.bytes());
    }
}

fn register(uffd: &Uffd, range: PageRange) -> Result<(), Errno> {
    let (start, bytes) = (range.start.addr(), range.bytes());
    // The kernel adds to what the client has registered it for, and faults of pages that are there (minor ones) are not served.
    let _ = uffd.unregister(start, bytes);
    // SAFETY: the memory of another process, which has handed it over; each fault there is served from here on.
    unsafe { uffd.register(start, bytes) }
}

/// Nobody else makes calls on the page tables, as long as it is there.
pub type Alone<'a> = RwLockWriteGuard<'a, Vec<Arc<Kin>>>;

/// The page tables that have the memory. There is one of it.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a manager has one, and the path of a fault one step less")]
pub enum Clients {
    /// One process', which has all of it.
    One(LinuxKernel),
    /// Several processes', by userfaultfds of their own.
    Many(RwLock<Vec<Arc<Kin>>>),
}

impl Clients {
    /// Of one process, by its userfaultfd.
    ///
    /// # Errors
    /// What opening `/proc/self/mem` answers.
    pub fn one(uffd: Uffd) -> Result<Clients, Errno> {
        LinuxKernel::new(uffd, true).map(Clients::One)
    }

    /// Of several, of whom none is there yet.
    #[must_use]
    pub fn many() -> Clients {
        Clients::Many(RwLock::default())
    }

    /// The one process' userfaultfd.
    ///
    /// # Panics
    /// There are several: a bug.
    pub fn uffd(&self) -> &Uffd {
        match self {
            Clients::One(kernel) => kernel.uffd(),
            Clients::Many(_) => unreachable!("several processes have no userfaultfd in common"),
        }
    }

    /// The others wait, and so does whoever evicts or fetches, until the guard goes.
    ///
    /// # Panics
    /// There is one: a bug.
    pub fn alone(&self) -> Alone<'_> {
        match self {
            Clients::One(_) => unreachable!("one process waits for no other"),
            Clients::Many(all) => all.write().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn all<'a>(all: &'a RwLock<Vec<Arc<Kin>>>) -> RwLockReadGuard<'a, Vec<Arc<Kin>>> {
        all.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `call` where the page is mapped: for the process whose fault is served, or else for the first that has it.
    fn somewhere<T>(
        all: &RwLock<Vec<Arc<Kin>>>,
        page: Page,
        call: impl Fn(&LinuxKernel) -> Result<T, KernelError>,
    ) -> Result<T, KernelError> {
        let all = Clients::all(all);
        let served = SERVED.with_borrow(Clone::clone);
        let others = all.iter().filter(|kin| !served.as_ref().is_some_and(|served| Arc::ptr_eq(served, kin)));
        let mut last = Err(KernelError::Gone);
        for kin in served.iter().chain(others).filter(|kin| kin.has(page)) {
            last = call(&kin.kernel);
            // It has ended. What is missing here is missing for all: the file is one.
            if !matches!(last, Err(KernelError::Gone)) {
                break;
            }
        }
        last
    }

    /// See [`farshore_core::seams::Kernel::map_run`]; with a note, where one is to be left ([`Uffd::copy_noted`]).
    ///
    /// # Errors
    /// As there.
    pub fn map_run(&self, note: Option<&Note>, first: Page, bytes: &[PageBuf], protect: Protect) -> Result<u64, KernelError> {
        match (self, note) {
            (Clients::One(kernel), Some(note)) => kernel.map_run_noted(note, first, bytes, protect),
            (Clients::One(kernel), None) => kernel.map_run(first, bytes, protect),
            // A run may go on where the process has nothing: one page is enough to go on with.
            (Clients::Many(all), _) => {
                let parts = |kernel: &LinuxKernel| kernel.map_run(first, bytes, protect);
                let one = |kernel: &LinuxKernel| kernel.map_run(first, &bytes[..1], protect);
                Clients::somewhere(all, first, parts).or_else(|why| match why {
                    KernelError::Gone if bytes.len() > 1 => Clients::somewhere(all, first, one),
                    why => Err(why),
                })
            }
        }
    }

    /// See [`farshore_core::seams::Kernel::map_zeros`].
    ///
    /// # Errors
    /// As there.
    pub fn map_zeros(&self, first: Page, count: u64) -> Result<u64, KernelError> {
        match self {
            Clients::One(kernel) => kernel.map_zeros(first, count),
            Clients::Many(all) => Clients::somewhere(all, first, |kernel| kernel.map_zeros(first, count)),
        }
    }

    /// See [`farshore_core::seams::Kernel::protect`]: in every page table.
    ///
    /// # Errors
    /// As there.
    pub fn protect(&self, range: PageRange) -> Result<(), KernelError> {
        match self {
            Clients::One(kernel) => kernel.protect(range),
            Clients::Many(all) => {
                for kin in Clients::all(all).iter() {
                    for part in kin.parts(range) {
                        match kin.kernel.protect(part) {
                            // It has ended, and writes no more.
                            Ok(()) | Err(KernelError::Gone) => {}
                            Err(why) => return Err(why),
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// Pages have left: leaves a marker for each of them in every page table of several.
    ///
    /// Punching keeps markers where it finds a page in a page table first. But a fault that had found the page in the file before, and maps it while it is being punched, has its
    /// entry taken away without one. One process has its next page by a copy, which is protected itself. With several, a page that another process brings back clean would be
    /// writable for the one without a marker, and its writes would be lost.
    pub fn protect_again(&self, pages: &[Page]) {
        if matches!(self, Clients::One(_)) {
            return;
        }
        for run in pages.chunk_by(|one, next| one.plus(1) == *next) {
            let range = PageRange { start: run[0], end: run[0].plus(run.len() as u64) };
            // They are out, and no one can have them before they are protected everywhere: there is no way back.
            while self.protect(range).is_err() {
                std::thread::sleep(NO_MEMORY_PAUSE);
            }
        }
    }

    /// See [`farshore_core::seams::Kernel::unprotect`]: in the page table of the process whose fault is served. The others find out by faults of their own.
    ///
    /// # Errors
    /// As there.
    pub fn unprotect(&self, page: Page) -> Result<(), KernelError> {
        match self {
            Clients::One(kernel) => kernel.unprotect(page),
            Clients::Many(all) => Clients::somewhere(all, page, |kernel| kernel.unprotect(page)),
        }
    }

    /// Puts poison where a page would be, in every page table: SIGBUS for whoever needs it.
    ///
    /// # Errors
    /// As [`Uffd::poison`]: the first of them, and those that have ended do not count.
    pub fn poison(&self, page: Page) -> Result<(), UffdError> {
        let bytes = PAGE_SIZE as u64;
        let of = |uffd: &Uffd| {
            // What is left of its protection would keep the poison out.
            let _ = uffd.unprotect(page.addr(), bytes, false);
            uffd.poison(page.addr(), bytes)
        };
        match self {
            Clients::One(kernel) => of(kernel.uffd()),
            Clients::Many(all) => {
                let of_each = |first: Result<(), UffdError>, kin: &Arc<Kin>| match of(kin.uffd()) {
                    Ok(()) | Err(UffdError::ProcessGone) => first,
                    Err(why) => first.and(Err(why)),
                };
                Clients::all(all).iter().filter(|kin| kin.has(page)).fold(Ok(()), of_each)
            }
        }
    }

    /// Wakes whoever waits in a range: of several processes those of the one whose faults this thread serves, or of all if it serves none. Each who waits has a message of its own, which
    /// is served for the process that it came from.
    pub fn wake(&self, range: PageRange) {
        match self {
            Clients::One(kernel) => _ = kernel.uffd().wake(range.start.addr(), range.bytes()),
            Clients::Many(all) => match SERVED.with_borrow(Clone::clone) {
                Some(kin) => kin.wake(range),
                None => Clients::all(all).iter().for_each(|kin| kin.parts(range).for_each(|part| kin.wake(part))),
            },
        }
    }

    /// Registers memory that the client has mapped.
    ///
    /// # Errors
    /// The kernel's.
    pub fn register(&self, range: PageRange) -> Result<(), Errno> {
        match self {
            Clients::One(kernel) => register(kernel.uffd(), range),
            Clients::Many(all) => {
                Clients::all(all).iter().try_for_each(|kin| kin.parts(range).try_for_each(|part| kin.register(part)))
            }
        }
    }

    /// Memory is registered no more: whoever waits there is woken, and finds what is there.
    ///
    /// # Errors
    /// The kernel's. Of several processes all are tried, and those that have ended do not count.
    pub fn unregister(&self, range: PageRange) -> Result<(), Errno> {
        let of = |uffd: &Uffd, part: PageRange| uffd.unregister(part.start.addr(), part.bytes());
        match self {
            Clients::One(kernel) => of(kernel.uffd(), range),
            Clients::Many(all) => {
                let mut first = Ok(());
                for kin in Clients::all(all).iter() {
                    for part in kin.parts(range) {
                        match of(kin.uffd(), part) {
                            Ok(()) | Err(Errno::ESRCH) => {}
                            Err(errno) => first = first.and(Err(errno)),
                        }
                    }
                }
                first
            }
        }
    }
}

/// This thread serves faults of this process from now on.
pub fn serve_for(kin: Arc<Kin>) {
    SERVED.set(Some(kin));
}
