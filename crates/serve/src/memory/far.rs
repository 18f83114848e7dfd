//! Memory that is far away in earnest, for a test: a userfaultfd that raises SIGBUS, a handler that parks the unithread, a thread that brings pages, and
//! one that takes pages of items away while they are read.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use farshore_sys::uffd::{Uffd, UffdOptions};
use farshore_uthread::seam::{Base, HANDLER_FLAGS, Parking};
use farshore_uthread::wait::Token;
use farshore_uthread::{Config, Handle, Runtime};

use crate::kv::protocol::Mode;
use crate::kv::store::{Commit, Outcome, START, Store};

const PAGE: usize = 4096;
type Contents = HashMap<usize, Box<[u8; PAGE]>>;

/// What handler and threads share. There is one such test.
struct World {
    uffd: Uffd,
    handle: OnceLock<Handle>,
    requests: PipeWriter,
    ranges: Mutex<Vec<(usize, usize)>>,
    /// Pages that were taken away. Others that are absent are zeroes.
    away: Mutex<Contents>,
    parked: AtomicU64,
    in_place: AtomicU64,
}

static WORLD: OnceLock<World> = OnceLock::new();
static ZEROES: [u8; PAGE] = [0; PAGE];

thread_local! {
    /// This thread's new regions are far away.
    static FAR: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A region was made.
pub(super) fn made(start: usize, bytes: usize) {
    if let Some(world) = WORLD.get().filter(|_| FAR.get()) {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: a fresh mapping, whose faults the handler serves.
        unsafe { world.uffd.register(start as u64, bytes as u64) }.expect("anonymous memory");
        lock(&world.ranges).push((start, bytes));
    }
}

impl World {
    fn bring(&self, page: usize) {
        // Held until the page is there: who takes pages away waits.
        let away = lock(&self.away);
        let from = away.get(&page).map_or(&ZEROES, |page| page);
        // SAFETY: the range is registered; a page that is there already stays.
        let _ = unsafe { self.uffd.copy(page as u64, from.as_ptr().addr() as u64, PAGE as u64, false, false) };
    }

    /// Takes a page away that nobody writes.
    fn take_away(&self, page: usize) {
        let mut bytes = Box::new(ZEROES);
        // SAFETY: inside a mapping that outlives this, and other threads only read it; if it is absent the handler brings it.
        unsafe { std::ptr::copy_nonoverlapping(page as *const u8, bytes.as_mut_ptr(), PAGE) };
        let mut away = lock(&self.away);
        away.insert(page, bytes);
        // SAFETY: as above: who reads it takes a fault.
        unsafe { libc::madvise(page as *mut c_void, PAGE, libc::MADV_DONTNEED) };
    }
}

extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let world = WORLD.get().expect("set before any fault");
    // SAFETY: the second argument of a handler that runs.
    let info = unsafe { &*info };
    // SAFETY: SIGBUS has an address.
    let page = unsafe { info.si_addr() }.addr() & !(PAGE - 1);
    // SAFETY: the third argument of a handler that runs.
    let frame = unsafe { Base::of_frame(context) };
    match world.handle.get().and_then(|handle| Some((handle, handle.begin(Some(frame))?))) {
        Some((handle, token)) => {
            let mut message = [0u8; 16];
            message[..8].copy_from_slice(&page.to_ne_bytes());
            message[8..].copy_from_slice(&token.into_raw().to_ne_bytes());
            (&world.requests).write_all(&message).expect("the fetcher reads");
            world.parked.fetch_add(1, SeqCst);
            handle.park(token);
        }
        None => {
            world.in_place.fetch_add(1, SeqCst);
            world.bring(page);
        }
    }
}

fn fetcher(world: &World, mut requests: PipeReader) {
    let mut message = [0u8; 16];
    while requests.read_exact(&mut message).is_ok() {
        let (page, token) = message.split_at(8);
        world.bring(usize::from_ne_bytes(page.try_into().unwrap()));
        let token = Token::from_raw(u64::from_ne_bytes(token.try_into().unwrap())).expect("ours");
        world.handle.get().expect("its runtime lives while it waits").complete(token, 0);
    }
}

/// False: it cannot be had here, and that was said.
fn begin() -> bool {
    let uffd = match Uffd::open(UffdOptions::UPCALL) {
        Ok((uffd, _)) => uffd,
        Err(error) => {
            println!("skipped: {error}");
            return false;
        }
    };
    let (reader, requests) = pipe().unwrap();
    let (handle, parked, in_place) = (OnceLock::new(), AtomicU64::new(0), AtomicU64::new(0));
    let world = World { uffd, handle, requests, ranges: Mutex::default(), away: Mutex::default(), parked, in_place };
    assert!(WORLD.set(world).is_ok());
    // SAFETY: all zero is an action with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = HANDLER_FLAGS;
    // SAFETY: our handler keeps to what handlers may do.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) }, 0);
    thread::spawn(|| fetcher(WORLD.get().unwrap(), reader));
    true
}

const KEYS: u32 = 3000;

fn value(key: u32) -> Vec<u8> {
    (0..500 + key % 3000).map(|at| (at.wrapping_mul(7) ^ key) as u8).collect()
}

fn put(store: &Store, key: u32) {
    let value = value(key);
    let mut draft = store.draft(&key.to_le_bytes(), value.len(), 0).unwrap();
    draft.write(0, &value);
    let how = Commit { mode: Mode::Add, cas: 0, expires: 0, flags: 0, invalidate: false };
    assert!(matches!(store.commit(draft, how, START), Outcome::Stored(_)));
}

fn look(store: &Store, key: u32) {
    let item = store.find(&key.to_le_bytes(), START, true).expect("it was stored");
    let mut have = vec![0; item.length()];
    item.read(0, &mut have);
    assert!(have == value(key), "key {key}");
}

/// Runs `work` in unithreads, each with its number, and waits for them.
fn all(runtime: &Runtime, store: &Arc<Store>, work: fn(&Store, u32)) {
    let spawn = |number| {
        let store = store.clone();
        runtime.spawn(move || work(&store, number)).unwrap()
    };
    let handles: Vec<_> = (0..UNITHREADS).map(spawn).collect();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
}

const UNITHREADS: u32 = 40;

#[test]
fn a_store_that_is_far_away() {
    if !begin() {
        return;
    }
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(120));
        eprintln!("hung for 120 s");
        std::process::abort();
    });
    let world = WORLD.get().unwrap();
    FAR.set(true);
    let store = Arc::new(Store::new(16 << 20, 1 << 20).unwrap());
    FAR.set(false);
    let runtime = Runtime::start(Config { workers: 2, pin: false, stack_bytes: 256 << 10, ..Config::default() }).unwrap();
    assert!(world.handle.set(runtime.handle()).is_ok());

    // All is absent at first: index, items, and what is beside.
    all(&runtime, &store, |store, number| (number..KEYS).step_by(UNITHREADS as usize).for_each(|key| put(store, key)));
    let (parked, in_place) = (world.parked.load(SeqCst), world.in_place.load(SeqCst));
    assert!(parked > 1000, "{parked} parked, {in_place} in place");

    // Now pages of items go and come, while they are read and nobody writes them.
    let over = Arc::new(AtomicBool::new(false));
    let taker = {
        let over = over.clone();
        thread::spawn(move || {
            // The items' is the first region.
            let (start, bytes) = lock(&world.ranges)[0];
            let mut random = 1u64;
            while !over.load(SeqCst) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                world.take_away(start + (random >> 33) as usize % (bytes / PAGE) * PAGE);
            }
        })
    };
    let look_at_many = |store: &Store, number: u32| {
        for step in 0..400 {
            look(store, (number.wrapping_mul(977) + step * 7) % KEYS);
        }
    };
    // How often they meet depends on the machine.
    let met = || world.parked.load(SeqCst) > parked + 300;
    for _ in 0..100 {
        all(&runtime, &store, look_at_many);
        if met() {
            break;
        }
    }
    over.store(true, SeqCst);
    taker.join().unwrap();
    assert!(met(), "{} parked", world.parked.load(SeqCst) - parked);
    println!(
        "to store: {parked} parked, {in_place} in place; all: {} and {}",
        world.parked.load(SeqCst),
        world.in_place.load(SeqCst)
    );
    runtime.shutdown().unwrap();
}
