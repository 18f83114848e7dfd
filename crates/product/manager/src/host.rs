//! The engine of one client, and the threads that it has here.
//!
//! ```text
//!  fault handlers   the client's messages ─▶ Engine::resolve        (`crate::serve`)
//!  evictors         pages leave
//!  readers          pages come before they are asked for
//!  watcher          which swap spaces hang; makes readers
//!  forgetter        pages that the client has thrown away, as evictors find
//!  drainer          gives room in swap spaces back
//! ```
//!
//! All live as long as the process, which has one client. So the host is leaked, and nobody counts references.
//!
//! # Memory comes ([`Host::take`])
//!
//! A virtual machine may hand its memory over while it runs. All new regions are registered first: from then on no page comes to be there but by us. Then it is looked which pages the
//! files have. Only when nothing can fail any more are the pages managed: those that are there become resident, beyond the limit if they must, and evictors take what is too much.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farshore_backend::faulty::FaultConfig;
use farshore_backend::{AnyBackend, nbd};
use farshore_command::say::{amount, tell};
use farshore_config::Options;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::room::{Part, Room as _};
use farshore_core::seams::{CopyChange, IoError, PIECE_MAX, PageBuf, Spaces as _, World};
use farshore_core::sync::Ordering;
use farshore_core::sync::plain::AtomicBool;
use farshore_core::word::State;
use farshore_engine::drain::{Drained, Host as DrainHost};
use farshore_engine::evict::control::Wanted;
use farshore_engine::evict::pipeline::Evictor;
use farshore_engine::health::Watcher;
use farshore_engine::prefetch::Reader;
use farshore_engine::{Engine, Nodes, Shape, giving};
use farshore_policy::{BuiltIn, Chosen, prefetch};
use farshore_sys::clock::MonotonicClock;
use farshore_sys::cpu;
use farshore_sys::futex::KernelFutex;
use farshore_sys::own::map_own;
use farshore_sys::uffd::Uffd;
use farshore_sys::usdt::Usdt;

use crate::chosen::Choice;
use crate::kernel::SharedKernel;
use crate::memory::{Memory, Region};
use crate::state;
use crate::tap::Tap;

/// What the engine of a client works with.
#[derive(Debug)]
pub struct Beside;

impl World for Beside {
    type Kernel = SharedKernel;
    type Backend = AnyBackend;
    type Policy = Chosen;
    type Clock = MonotonicClock;
    type Futex = KernelFutex;
    type Tracer = Usdt;
}

/// Most threads that read ahead.
const READERS: u32 = 4;

/// Room for the pages of one fetch, of a thread.
pub fn buffer() -> Vec<PageBuf> {
    vec![PageBuf::ZERO; PIECE_MAX as usize + 1]
}

/// The engine of a client, and what goes with it.
#[derive(Debug)]
pub struct Host {
    /// Moves pages.
    pub engine: Engine<Beside>,
    /// The address-space lock: of memory calls, one is made at a time.
    space: Mutex<()>,
    /// Threads that are to end when the manager leaves.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// They are to.
    stop: AtomicBool,
    /// Cores of the machine.
    pub cores: usize,
    /// Evictors that it has.
    evictors: usize,
    /// How the limit is chosen, if it is.
    pub choice: Choice,
    /// What the thread that follows the guest's faults hears.
    pub tap: Tap,
    /// What outlives this process, if it can be replaced.
    pub state: Option<&'static state::State>,
}

/// Where pages go.
#[derive(Debug)]
pub enum Swap {
    /// To spaces that are made.
    New,
    /// To the files that a manager has left.
    Left(Vec<OwnedFd>),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that could not be made.
pub fn no_thread(why: std::io::Error) -> String {
    format!("no thread can be made ({why}): raise the limits of processes (ulimit -u, pids.max)")
}

impl Host {
    /// Makes the engine for a client with this userfaultfd. It has no memory yet, no threads, and serves no fault.
    ///
    /// # Errors
    /// One line: what cannot be had.
    pub fn make(options: &Options, choice: Choice, uffd: Uffd, swap: Swap) -> Result<&'static Host, String> {
        let faults: Option<FaultConfig> = AnyBackend::faults_asked().map_err(|why| why.to_string())?;
        let (faults, notice) = (faults.as_ref(), &mut |notice: &str| tell(notice));
        let backend = match swap {
            Swap::New => AnyBackend::open_with(&options.swap, options.encrypts(), false, faults, notice),
            Swap::Left(files) => AnyBackend::take_over(&options.swap, files, faults, notice),
        };
        let backend = backend.map_err(|why| why.to_string())?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let Options { evictors, batch, writes, free, .. } = *options;
        let wanted = Wanted { evictors, batch, writes, free };
        let shape = Shape::fitting(options.memory_at_start().bytes(), wanted, options.ablate.0, cores, Nodes::ONE);
        let prefetcher = prefetch::BuiltIn::named(&options.prefetch.name).unwrap_or(prefetch::BuiltIn::Sequential);
        let policy = Chosen::new(BuiltIn::SecondChance, prefetcher);
        let stages = shape.sizes().stages;
        // Whether somebody can take over when this process is killed depends on where pages go. That it cannot be now must not keep anybody from having their memory managed.
        let lasts = AnyBackend::can_be_taken_over(&options.swap, options.encrypts());
        let state =
            lasts.then(|| state::State::make(stages).inspect_err(|why| tell(&format!("{why}: this manager cannot be replaced"))));
        let state = state.and_then(Result::ok);
        let kernel = SharedKernel::new(uffd, Memory::default(), state)
            .map_err(|errno| format!("/proc/self/mem cannot be opened ({errno})"))?;
        let bytes = stages as usize * size_of::<PageBuf>();
        let no_space = |why: &dyn std::fmt::Display| format!("no address space for {bytes} bytes of staging memory ({why})");
        let (clock, futex) = (MonotonicClock::new(), KernelFutex);
        let engine = match state {
            None => {
                let staging = map_own(bytes).map_err(|why| no_space(&why))?.as_ptr().cast();
                // SAFETY: fresh memory of just this size, aligned to pages, that nobody else knows.
                unsafe { Engine::new(shape, kernel, backend, policy, clock, futex, staging) }
            }
            Some(state) => {
                let staging = state.room().part(Part::Stages, 0, bytes).ok_or_else(|| no_space(&"ENOMEM"))?.as_ptr().cast();
                // SAFETY: memory of just this size, aligned to pages, which was made for this engine; those who have a descriptor of it do not look as long as this process lives.
                let engine = unsafe { Engine::in_room(shape, kernel, backend, policy, clock, futex, staging, state.room()) };
                engine.ok_or_else(|| no_space(&"ENOMEM"))?
            }
        };
        let host: &'static Host = Box::leak(Box::new(Host {
            engine,
            state,
            space: Mutex::default(),
            threads: Mutex::default(),
            stop: AtomicBool::new(false),
            cores,
            evictors: shape.evictors,
            choice,
            tap: Tap::default(),
        }));
        host.choice.begin(&host.engine);
        Ok(host)
    }

    /// Starts evictors and what helps them: pages can leave from now on.
    ///
    /// # Errors
    /// One line: a thread cannot be had.
    pub fn begin(&'static self, options: &Options) -> Result<(), String> {
        let host = self;
        host.engine.allow_readers(READERS);
        host.engine.health.set_patience(options.io_timeout.ns());
        nbd::set_patience(options.io_timeout.ns());
        host.start_evictors(host.evictors)?;
        host.spawn("farshore-watch", move || host.watch())?;
        thread::Builder::new().name("farshore-forget".into()).spawn(move || host.forget()).map_err(no_thread)?;
        if host.engine.backend.gives_back() && options.trim {
            host.engine.give_room_back_from(giving::KEEP, giving::PAUSE_NS);
            let drain = move || host.engine.run_drainer(&mut buffer(), cpu::current(), &host.stop, &mut Here(host));
            host.spawn("farshore-drain", drain)?;
        }
        Ok(())
    }

    /// A thread that ends when the manager leaves.
    fn spawn(&'static self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
        let thread = thread::Builder::new().name(name.into()).spawn(work).map_err(no_thread)?;
        locked(&self.threads).push(thread);
        Ok(())
    }

    /// Starts all evictors, each of which makes its queue of writes on its own thread.
    fn start_evictors(&'static self, count: usize) -> Result<(), String> {
        let (ready, told) = std::sync::mpsc::channel::<Result<(), IoError>>();
        for id in 0..count {
            let ready = ready.clone();
            self.spawn(&format!("farshore-evict{id}"), move || match Evictor::new(id, &self.engine) {
                Ok(mut evictor) => {
                    // Whoever waits for it is still there.
                    let _ = ready.send(Ok(()));
                    drop(ready);
                    evictor.run(&self.stop);
                }
                Err(why) => _ = ready.send(Err(why)),
            })?;
        }
        drop(ready);
        let failed = told.iter().take(count).find_map(Result::err);
        failed.map_or(Ok(()), |why| Err(format!("the swap space has no write queue: {why}")))
    }

    fn watch(&'static self) {
        let told =
            &mut |news: farshore_engine::health::News| tell(&news.line(self.engine.backend.name_of(news.slot)).to_string());
        let made = &mut || {
            let core = cpu::current();
            match self.spawn("farshore-ahead", move || self.engine.read_ahead(core, &mut buffer(), &self.stop)) {
                Ok(()) => Reader::Made,
                Err(why) => {
                    tell(&format!("{why}: pages are fetched when they are needed"));
                    Reader::Never
                }
            }
        };
        let look = &mut || self.choice.look(&self.engine, &self.space);
        Watcher::new().run(&self.engine, &self.stop, told, made, look);
    }

    /// The thread that forgets what the client has thrown away, as evictors find it. It never ends.
    fn forget(&self) {
        loop {
            self.engine.kernel.thrown_away().into_iter().for_each(|page| self.forget_thrown_away(page));
        }
    }

    /// The client's userfaultfd.
    pub fn uffd(&self) -> &Uffd {
        self.engine.kernel.uffd()
    }

    /// Manages new regions, which were checked and overlap none that are there. `check` is asked when all are registered, and may still refuse them. Only then do pages leave: what else whoever takes
    /// over must have is kept by `check`, or before.
    ///
    /// # Errors
    /// One line: the kernel does not let us, or what `check` says. Then none of them is managed, nor registered.
    pub fn take(&self, regions: Vec<Region>, check: impl FnOnce(&[Region]) -> Result<(), String>) -> Result<(), String> {
        let _space = self.in_one_hand();
        let pages: Vec<PageRange> = regions.iter().map(|region| region.pages).collect();
        let expected = self.state.map_or(Ok(()), |state| regions.iter().try_for_each(|region| state.expect(region)));
        let there = expected.and_then(|()| self.register(&regions)).and_then(|there| {
            check(&regions)?;
            self.state.inspect(|state| pages.iter().for_each(|pages| state.manage(*pages)));
            Ok(there)
        });
        let there = there.inspect_err(|_| {
            // All its pages are there.
            pages.iter().for_each(|pages| _ = self.uffd().unregister(pages.start.addr(), pages.bytes()));
            self.state.inspect(|state| pages.iter().for_each(|pages| state.forget(*pages)));
        })?;
        for region in regions {
            let pages = region.pages;
            self.engine.kernel.memory().add(region);
            self.engine.manage(pages);
        }
        there.into_iter().for_each(|part| self.engine.take_stock(part, cpu::current()));
        if self.engine.is_short() {
            // A client that does nothing has no fault that would wake the evictors.
            self.engine.wake_all_threads();
        }
        for pages in pages {
            // Those who have touched it before it was managed, and were not served.
            let _ = self.uffd().wake(pages.start.addr(), pages.bytes());
        }
        Ok(())
    }

    /// Registers new regions; which parts of them are in memory.
    fn register(&self, regions: &[Region]) -> Result<Vec<PageRange>, String> {
        let mut there = Vec::new();
        for region in regions {
            let (start, bytes) = (region.pages.start.addr(), region.pages.bytes());
            // The kernel adds to what the client has registered it for, and faults of pages that are there (minor ones) are not served.
            let _ = self.uffd().unregister(start, bytes);
            // SAFETY: the memory of another process, which has handed it over; each fault there is served from here on.
            let registered = unsafe { self.uffd().register(start, bytes) };
            registered.map_err(|errno| {
                format!("the {bytes} bytes at {start:#x} cannot be registered with the userfaultfd ({errno}): is it the one of this process, and has it this memory?")
            })?;
            let parts = region.parts_in_memory();
            there.extend(parts.map_err(|errno| format!("which pages are in memory cannot be found out ({errno})"))?);
        }
        Ok(there)
    }

    /// Manages a region no more, whose memory the client takes away: what was out is given up.
    ///
    /// # Errors
    /// One line: it is no region.
    pub fn drop_region(&self, pages: PageRange) -> Result<(), String> {
        let _space = self.in_one_hand();
        let memory = self.engine.kernel.memory();
        if !memory.all().iter().any(|region| region.pages == pages) {
            return Err(format!("the {} bytes at {:#x} are no region that was handed over", pages.bytes(), pages.start.addr()));
        }
        // First: whoever takes over gives them up, too.
        self.state.inspect(|state| state.give_up(pages));
        self.engine.claim(pages);
        // Whoever waits there is woken, and finds what the client has made of it. A client that has unmapped it first is right, too.
        let _ = self.uffd().unregister(pages.start.addr(), pages.bytes());
        let removed = memory.remove(pages);
        self.engine.finish_unmap(pages);
        self.state.inspect(|state| state.forget(pages));
        removed.map_err(|errno| format!("the mark stays on the memory that it takes away ({errno})"))
    }

    /// Where a page is.
    pub fn state_of(&self, page: Page) -> Option<State> {
        self.engine.table.page(page).map(|at| at.word.load().state())
    }

    /// The client has thrown a page away that is in memory as far as we know (it has punched a hole, as a balloon does): it is fresh memory from now on. Nothing changes for one
    /// that is there.
    pub fn forget_thrown_away(&self, page: Page) {
        let memory = self.engine.kernel.memory();
        if !memory.is_hole(page) {
            return;
        }
        let _space = self.in_one_hand();
        let one = PageRange { start: page, end: page.plus(1) };
        // Once more, while it is ours alone: an evictor may have taken it out since, and then the hole is the evictor's.
        let is_thrown_away = |_: PageRange| {
            let word = self.engine.table.page(page).map(|at| at.word).filter(|word| word.load().state() == State::Busy);
            let was_there = word.is_some_and(|word| word.claimed().state() == State::Resident);
            if was_there && memory.is_hole(page) { Ok(()) } else { Err(()) }
        };
        // Where it is not so, nothing has changed.
        let _ = self.engine.discard(one, is_thrown_away);
    }

    /// Nobody makes a memory call, as long as the guard is there.
    pub fn in_one_hand(&self) -> MutexGuard<'_, ()> {
        locked(&self.space)
    }

    /// Ends evictors and what helps them, and waits for that: from then on no page leaves.
    pub fn stop_threads(&self) {
        self.stop.store(true, Ordering::SeqCst);
        // The lock is free while they end: the watcher may be about to add a reader, which finds that it is to stop.
        let threads = std::mem::take(&mut *locked(&self.threads));
        for thread in threads {
            while !thread.is_finished() {
                self.engine.wake_all_threads();
                thread::sleep(Duration::from_millis(1));
            }
            // One that has panicked has ended the process.
            let _ = thread.join();
        }
    }

    /// A line about the state.
    pub fn line(&self) -> String {
        use farshore_engine::stats::Count;
        let (engine, stats) = (&self.engine, &self.engine.stats);
        let pages = |what| stats.total(what);
        format!(
            "{} managed, {} of {} in RAM (at most {}); {} faults, {} pages evicted, {} written, {} read",
            amount(stats.managed() * PAGE_SIZE as u64),
            amount(engine.resident_bytes()),
            amount(engine.memory_limit()),
            amount(engine.resident_bytes_peak()),
            stats.all_faults(),
            pages(Count::Evicted),
            pages(Count::PagesOut),
            pages(Count::PagesIn),
        )
    }
}

/// The process, as the drainer sees it: it does not fork, and nobody asks for spaces to come or go.
struct Here(&'static Host);

impl DrainHost for Here {
    fn serve(&mut self) {}

    fn unreadable(&mut self, _space: usize, _pages: PageRange) {}

    fn ended(&mut self, _space: usize, _how: Drained) {}

    fn copy_changed(&mut self, copy: &str, change: CopyChange) {
        tell(&format!("swap space {copy}, one of several copies, {change}"));
    }

    fn cannot_give(&mut self, space: usize, why: IoError) {
        let files = self.0.engine.backend.files();
        let name = files.and_then(|files| files.spec_of(space)).map_or_else(String::new, |spec| format!(" {spec}"));
        tell(&format!("swap space{name} cannot give freed room back ({why}): it keeps it until the client ends"));
    }

    fn may_close(&mut self) -> bool {
        true
    }

    fn alone(&mut self, f: &mut dyn FnMut()) {
        f();
    }
}
