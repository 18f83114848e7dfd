//! The heart: a unithread is switched away from inside a SIGBUS handler, on its own stack, and resumed later, as if nothing had been.
//!
//! Memory is registered with a userfaultfd that raises SIGBUS. The handler sends page and token to a thread, which fills pages in another order than
//! they were asked for, and completes the tokens. Another thread throws pages away meanwhile, so that there is always something to fetch.
#![cfg(not(loom))]

mod common;

use core::arch::asm;
use core::ffi::{c_int, c_void};
use farshore_sys::uffd::{Uffd, UffdOptions};
use farshore_uthread::seam::{Base, HANDLER_FLAGS, Parking};
use farshore_uthread::wait::Token;
use farshore_uthread::{Config, Handle, Runtime, WaitMode, hold, spawn, yield_now};
use std::io::{PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// What the handler needs. One test at a time has it.
struct World {
    handle: RwLock<Option<Handle>>,
    base: usize,
    uffd: Uffd,
    requests: PipeWriter,
    /// What the pages hold: made before, since a handler's stack may be small.
    contents: Vec<[u64; PAGE / 8]>,
    parked: AtomicU64,
    in_place: AtomicU64,
}

static WORLD: OnceLock<World> = OnceLock::new();
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn word_of(page: usize, word: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl World {
    fn fill(&self, page: usize) {
        let words = &self.contents[page];
        // SAFETY: the range is ours and registered; a page that is there already stays.
        let _ =
            unsafe { self.uffd.copy((self.base + page * PAGE) as u64, words.as_ptr().addr() as u64, PAGE as u64, false, false) };
    }

    fn discard(&self, page: usize) {
        // SAFETY: our own mapping; its readers take a fault.
        unsafe { libc::madvise((self.base + page * PAGE) as *mut c_void, PAGE, libc::MADV_DONTNEED) };
    }

    fn read(&self, page: usize, word: usize) -> u64 {
        // SAFETY: inside the mapping, which is never unmapped; absent pages come by a fault.
        unsafe { ((self.base + page * PAGE + word * 8) as *const u64).read_volatile() }
    }

    fn touch(&self, page: usize) {
        let got = self.read(page, page % 512);
        assert_eq!(got, word_of(page, page % 512), "page {page}");
    }
}

extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let world = WORLD.get().expect("set before any fault");
    // SAFETY: the second argument of a handler that runs.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS has an address.
    let address = unsafe { info.si_addr() }.addr();
    let page = address.wrapping_sub(world.base) / PAGE;
    if page >= PAGES {
        std::process::abort();
    }
    // It is only written between tests.
    let handle = world.handle.try_read().ok().and_then(|handle| handle.clone());
    // SAFETY: the third argument of a handler that runs.
    let frame = unsafe { Base::of_frame(context) };
    match handle.as_ref().and_then(|handle| Some((handle, handle.begin(Some(frame))?))) {
        Some((handle, token)) => {
            let mut message = [0u8; 16];
            message[..8].copy_from_slice(&(page as u64).to_ne_bytes());
            message[8..].copy_from_slice(&token.into_raw().to_ne_bytes());
            (&world.requests).write_all(&message).expect("the fetcher reads");
            world.parked.fetch_add(1, SeqCst);
            assert_eq!(handle.park(token), page as i32, "another wait's result");
        }
        None => {
            world.in_place.fetch_add(1, SeqCst);
            world.fill(page);
        }
    }
}

fn fetcher(world: &World, mut requests: impl Read) {
    let mut buffer = [0u8; 16 * 64];
    loop {
        let bytes = requests.read(&mut buffer).expect("a pipe");
        // Sixteen bytes are written at once, so they are read as a whole. The last one asked for comes first.
        for message in buffer[..bytes].chunks(16).rev() {
            let page = u64::from_ne_bytes(message[..8].try_into().unwrap()) as usize;
            let token = Token::from_raw(u64::from_ne_bytes(message[8..].try_into().unwrap())).expect("ours");
            world.fill(page);
            let handle = world.handle.read().unwrap().clone().expect("its runtime lives while it waits");
            assert!(handle.complete(token, page as i32), "a wait was over before its fetch");
            assert!(!handle.complete(token, -1), "completed twice");
        }
    }
}

/// The world for one test, or why there is none.
fn world() -> Option<(&'static World, MutexGuard<'static, ()>)> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if WORLD.get().is_none() {
        let uffd = match Uffd::open(UffdOptions::UPCALL) {
            Ok((uffd, _)) => uffd,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the handler serves it.
        unsafe { uffd.register(base.addr() as u64, (PAGES * PAGE) as u64) }.expect("anonymous memory");
        let (reader, requests) = std::io::pipe().unwrap();
        let contents = (0..PAGES).map(|page| core::array::from_fn(|word| word_of(page, word))).collect();
        let (handle, parked, in_place) = (RwLock::new(None), AtomicU64::new(0), AtomicU64::new(0));
        let world = World { handle, base: base.addr(), uffd, requests, contents, parked, in_place };
        assert!(WORLD.set(world).is_ok());
        install(libc::SIGBUS, on_sigbus as *const () as usize, HANDLER_FLAGS);
        common::watchdog();
        std::thread::spawn(|| fetcher(WORLD.get().unwrap(), reader));
    }
    let world = WORLD.get().unwrap();
    (0..PAGES).for_each(|page| world.discard(page));
    world.parked.store(0, SeqCst);
    world.in_place.store(0, SeqCst);
    Some((world, turn))
}

fn install(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: all zero is an action with an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: our handlers keep to what handlers may do.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) }, 0);
}

/// Runs a test on a runtime of its own.
fn with_runtime(world: &World, config: Config, test: impl FnOnce(&Runtime)) {
    let runtime = Runtime::start(config).unwrap();
    *world.handle.write().unwrap() = Some(runtime.handle());
    test(&runtime);
    runtime.shutdown().unwrap();
    *world.handle.write().unwrap() = None;
}

fn one_worker() -> Config {
    Config { workers: 1, unithreads: 256, ..Config::default() }
}

/// A thread that discards pages until it is dropped.
struct Discarder(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Discarder {
    fn start(world: &'static World) -> Discarder {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while !stopped.load(SeqCst) {
                (0..PAGES).for_each(|page| world.discard(page));
                std::thread::yield_now();
            }
        };
        Discarder(stop, Some(std::thread::spawn(work)))
    }
}

impl Drop for Discarder {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        self.1.take().unwrap().join().unwrap();
    }
}

#[test]
fn one_waits_while_others_run() {
    let Some((world, _turn)) = world() else { return };
    with_runtime(world, one_worker(), |runtime| {
        let tasks: Vec<_> = (0..PAGES).map(|page| runtime.spawn(move || world.touch(page)).unwrap()).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    });
    assert_eq!((world.parked.load(SeqCst), world.in_place.load(SeqCst)), (PAGES as u64, 0));
}

#[test]
fn many_faults_on_several_workers_while_pages_go() {
    let Some((world, _turn)) = world() else { return };
    for mode in [WaitMode::Yield, WaitMode::Block, WaitMode::Busy] {
        let config = Config { workers: 2, unithreads: 256, wait: mode, pin: false, ..Config::default() };
        with_runtime(world, config, |runtime| {
            let _discarder = Discarder::start(world);
            let work = |task: usize| {
                move || {
                    let mut sum = 0.0;
                    for round in 0..200 {
                        let page = (task * 31 + round * 7) % PAGES;
                        // Floating point state lives across the fault.
                        sum += (round as f64).sqrt();
                        world.touch(page);
                    }
                    sum
                }
            };
            let expected: f64 = (0..200).map(|round| f64::from(round).sqrt()).sum();
            let tasks: Vec<_> = (0..64).map(|task| runtime.spawn(work(task)).unwrap()).collect();
            for task in tasks {
                assert_eq!(task.join().unwrap(), expected, "{mode:?}");
            }
        });
    }
    assert!(world.parked.load(SeqCst) >= PAGES as u64);
}

/// Loads all vector registers with `pattern`, touches `address`, and returns what they hold then, and the flags.
fn through_registers(pattern: &[u64; 64], address: usize) -> ([u64; 64], u64) {
    let mut after = [0u64; 64];
    let flags: u64;
    // SAFETY: reads the pattern and `address`, writes `after`; all that it changes is declared. The carry and direction flags are back as the ABI wants them.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{from}]", "vmovdqu ymm1, [{from} + 32]", "vmovdqu ymm2, [{from} + 64]", "vmovdqu ymm3, [{from} + 96]",
            "vmovdqu ymm4, [{from} + 128]", "vmovdqu ymm5, [{from} + 160]", "vmovdqu ymm6, [{from} + 192]", "vmovdqu ymm7, [{from} + 224]",
            "vmovdqu ymm8, [{from} + 256]", "vmovdqu ymm9, [{from} + 288]", "vmovdqu ymm10, [{from} + 320]", "vmovdqu ymm11, [{from} + 352]",
            "vmovdqu ymm12, [{from} + 384]", "vmovdqu ymm13, [{from} + 416]", "vmovdqu ymm14, [{from} + 448]", "vmovdqu ymm15, [{from} + 480]",
            // In the red zone, which the kernel spares.
            "stc",
            "std",
            "mov {flags}, [{address}]",
            "pushfq",
            "cld",
            "pop {flags}",
            "vmovdqu [{to}], ymm0", "vmovdqu [{to} + 32], ymm1", "vmovdqu [{to} + 64], ymm2", "vmovdqu [{to} + 96], ymm3",
            "vmovdqu [{to} + 128], ymm4", "vmovdqu [{to} + 160], ymm5", "vmovdqu [{to} + 192], ymm6", "vmovdqu [{to} + 224], ymm7",
            "vmovdqu [{to} + 256], ymm8", "vmovdqu [{to} + 288], ymm9", "vmovdqu [{to} + 320], ymm10", "vmovdqu [{to} + 352], ymm11",
            "vmovdqu [{to} + 384], ymm12", "vmovdqu [{to} + 416], ymm13", "vmovdqu [{to} + 448], ymm14", "vmovdqu [{to} + 480], ymm15",
            "vzeroupper",
            from = in(reg) pattern.as_ptr(), to = in(reg) after.as_mut_ptr(), address = in(reg) address, flags = out(reg) flags,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    (after, flags)
}

#[test]
fn every_register_is_as_it_was() {
    let Some((world, _turn)) = world() else { return };
    if !std::arch::is_x86_feature_detected!("avx") {
        println!("skipped: this processor has no AVX");
        return;
    }
    with_runtime(world, one_worker(), |runtime| {
        let work = |page: usize| {
            move || {
                let pattern: [u64; 64] = core::array::from_fn(|i| word_of(page + 1000, i));
                for _ in 0..20 {
                    world.discard(page);
                    let (after, flags) = through_registers(&pattern, world.base + page * PAGE);
                    assert_eq!(after, pattern);
                    assert_eq!(flags & 0x401, 0x401, "carry and direction flag");
                }
            }
        };
        let tasks: Vec<_> = (0..PAGES).map(|page| runtime.spawn(work(page)).unwrap()).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    });
    assert_eq!(world.parked.load(SeqCst), PAGES as u64 * 20);
}

#[test]
fn errno_belongs_to_the_unithread() {
    let Some((world, _turn)) = world() else { return };
    with_runtime(world, one_worker(), |runtime| {
        let work = |page: usize| {
            move || {
                // SAFETY: this worker's errno, whose address stays.
                let errno = unsafe { libc::__errno_location() };
                // SAFETY: as above.
                unsafe { *errno = page as i32 + 1 };
                world.touch(page);
                // SAFETY: as above.
                assert_eq!(unsafe { *errno }, page as i32 + 1);
            }
        };
        let tasks: Vec<_> = (0..PAGES).map(|page| runtime.spawn(work(page)).unwrap()).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    });
    assert_eq!(world.parked.load(SeqCst), PAGES as u64);
}

/// Runs `work` in one unithread, with a second one that is ready to run; whether the fault in it was waited for in place.
fn waits_in_place(world: &'static World, work: impl FnOnce() + Send + 'static) -> bool {
    with_runtime(world, one_worker(), |runtime| {
        runtime.spawn(work).unwrap().join().unwrap();
    });
    let counts = (world.parked.load(SeqCst), world.in_place.load(SeqCst));
    assert!(counts == (0, 1) || counts == (1, 0), "one fault, not {counts:?}");
    counts == (0, 1)
}

#[test]
fn who_holds_waits_in_place() {
    let Some((world, _turn)) = world() else { return };
    assert!(waits_in_place(world, || {
        let _hold = hold();
        world.touch(1);
    }));
}

#[test]
fn who_has_blocked_signals_waits_in_place() {
    let Some((world, _turn)) = world() else { return };
    assert!(waits_in_place(world, || {
        let change = |how| {
            // SAFETY: all zero is the empty set.
            let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
            // SAFETY: our own set.
            unsafe { libc::sigaddset(&raw mut set, libc::SIGUSR2) };
            // SAFETY: reads it.
            assert_eq!(unsafe { libc::pthread_sigmask(how, &raw const set, core::ptr::null_mut()) }, 0);
        };
        change(libc::SIG_BLOCK);
        world.touch(2);
        change(libc::SIG_UNBLOCK);
    }));
}

extern "C" fn touches(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    WORLD.get().unwrap().touch(3);
}

fn raise_in(world: &'static World, flags: c_int) -> bool {
    install(libc::SIGUSR1, touches as *const () as usize, libc::SA_SIGINFO | flags);
    waits_in_place(world, || {
        // SAFETY: a signal with a handler, to this thread.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
    })
}

#[test]
fn a_handler_on_the_alternate_stack_waits_in_place() {
    let Some((world, _turn)) = world() else { return };
    // Rust gives its threads an alternate stack. NODEFER: its mask is the worker's, so that the stack alone is the reason.
    assert!(raise_in(world, libc::SA_ONSTACK | libc::SA_NODEFER));
}

#[test]
fn a_handler_that_blocks_its_signal_waits_in_place() {
    let Some((world, _turn)) = world() else { return };
    assert!(raise_in(world, 0));
}

#[test]
fn a_handler_inside_a_handler_is_switched_away_from() {
    let Some((world, _turn)) = world() else { return };
    assert!(!raise_in(world, libc::SA_NODEFER));
}

#[test]
fn threads_that_are_no_workers_wait_in_place() {
    let Some((world, _turn)) = world() else { return };
    world.touch(5);
    assert_eq!(world.in_place.load(SeqCst), 1);
}

#[test]
fn what_is_yielded_and_spawned_goes_on_beside_faults() {
    let Some((world, _turn)) = world() else { return };
    with_runtime(world, one_worker(), |runtime| {
        let _discarder = Discarder::start(world);
        let parent = runtime.spawn(move || {
            let child = |page: usize| {
                spawn(move || {
                    for _ in 0..20 {
                        world.touch(page);
                        yield_now();
                    }
                })
                .unwrap()
            };
            let children: Vec<_> = (0..32).map(child).collect();
            children.into_iter().for_each(|child| child.join().unwrap());
        });
        parent.unwrap().join().unwrap();
    });
}
