//! A fake engine over real memory and the real kernel, for tests.
//!
//! *Managed* memory is an arena of which all pages are absent (`PROT_NONE`) until they are pinned. Before each system
//! call every page that is not pinned is "evicted" again, and one that is pinned for reading only is made read-only: the
//! real kernel then answers `EFAULT` for each page that was forgotten. A touch by our own code makes the page present,
//! as the fault path would. After each successful call an oracle of its own ([`touched`]) lists the bytes that the
//! kernel has touched, and checks that each was asked for: this also catches forgotten locals, which lie on an
//! ordinary stack here but need not in a program.

// The set-up of a test is groups of libc calls that belong together, with one reason for all.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use super::careful::repair;
use super::{Access, Args, Memory, PAGE, PinSet, errno};
use crate::calls::seccomp::{Instruction, Program, first_stopped, own};
use farshore_core::page::Page;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const ARENA_PAGES: u64 = 1 << 19;

/// What the program itself may do with a page of the arena.
const ALLOWED: u8 = 0;
const FORBIDDEN: u8 = 1;
const READ_ONLY: u8 = 2;

struct Arena {
    base: u64,
    protection: Vec<AtomicU8>,
    next_page: AtomicU64,
}

static ARENA: OnceLock<Arena> = OnceLock::new();

fn protect(page: u64, count: u64, protection: i32) {
    // SAFETY: the pages belong to the arena; whoever accesses them is ready for a fault.
    let result = unsafe { libc::mprotect((page * PAGE) as *mut libc::c_void, (count * PAGE) as usize, protection) };
    assert_eq!(result, 0, "mprotect of the arena");
}

fn arena() -> &'static Arena {
    ARENA.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let len = (ARENA_PAGES * PAGE) as usize;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        install_handler();
        let protection = (0..ARENA_PAGES).map(|_| AtomicU8::new(ALLOWED)).collect();
        Arena { base: base as u64, protection, next_page: AtomicU64::new(0) }
    })
}

fn install_handler() {
    // SAFETY: zeros are a valid sigaction, and the handler has the signature that SA_SIGINFO wants.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and context.
    let (addr, context) = unsafe { ((*info).si_addr() as u64, &mut *context.cast::<libc::ucontext_t>()) };
    let writes = context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0;
    let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if let Some(arena) = ARENA.get()
        && let Some(page) = (addr / PAGE).checked_sub(arena.base / PAGE).filter(|page| *page < ARENA_PAGES)
    {
        match arena.protection[page as usize].load(Ordering::SeqCst) {
            ALLOWED => return protect(addr / PAGE, 1, libc::PROT_READ | libc::PROT_WRITE),
            READ_ONLY if !writes => return protect(addr / PAGE, 1, libc::PROT_READ),
            _ => {}
        }
    }
    match repair(*rip as u64) {
        Some(next) => *rip = next as i64,
        // SAFETY: a real crash: let it happen again without us.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

#[derive(Default)]
struct State {
    /// Pins by page: how many, and whether one of them writes.
    pinned: BTreeMap<u64, (u32, bool)>,
    /// What was asked for: by which set, address, bytes that were granted, access.
    asked: Vec<(usize, u64, u64, Access)>,
    /// Scratch mappings.
    scratch: Vec<(u64, u64)>,
    calls: Vec<(u64, Args, i64)>,
    /// What was to stop being managed: address and length.
    kept: Vec<(u64, u64)>,
    /// Devices for which all was to become the kernel's.
    surrendered: Vec<(u32, u32)>,
}

/// A piece of the arena with its pins. One thread.
pub struct Fake {
    first: u64,
    pages: u64,
    budget: u64,
    own: Vec<i32>,
    /// What it manages does not fit into the limit.
    is_full: bool,
    state: RefCell<State>,
}

impl Fake {
    /// `pages` absent pages, of which one call may pin `budget` bytes.
    pub fn new(pages: u64, budget: u64) -> Fake {
        let arena = arena();
        let at = arena.next_page.fetch_add(pages + 1, Ordering::SeqCst);
        assert!(at + pages < ARENA_PAGES, "the arena is used up");
        Fake { first: arena.base / PAGE + at, pages, budget, own: Vec::new(), is_full: false, state: RefCell::default() }
    }
    /// With Farshore descriptors.
    pub fn with_own(mut self, mut own: Vec<i32>) -> Fake {
        own.sort_unstable();
        self.own = own;
        self
    }
    /// Whose memory does not fit into the limit.
    pub fn full(mut self) -> Fake {
        self.is_full = true;
        self
    }
    /// Devices for which all was to become the kernel's.
    pub fn surrendered(&self) -> Vec<(u32, u32)> {
        self.state.borrow().surrendered.clone()
    }
    /// Address of the first managed byte.
    pub fn base(&self) -> u64 {
        self.first * PAGE
    }
    /// The program gives up its access to a page.
    pub fn forbid(&self, index: u64) {
        self.set_protection(index, FORBIDDEN);
    }
    /// The program may only read a page from now on.
    pub fn make_read_only(&self, index: u64) {
        self.set_protection(index, READ_ONLY);
    }
    fn set_protection(&self, index: u64, protection: u8) {
        let arena = arena();
        arena.protection[(self.first + index - arena.base / PAGE) as usize].store(protection, Ordering::SeqCst);
        protect(self.first + index, 1, libc::PROT_NONE);
    }
    /// Writes bytes as the program would.
    pub fn put(&self, addr: u64, bytes: &[u8]) {
        // SAFETY: the tests pass addresses in their arena or in their own buffers.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) }
    }
    /// Writes words.
    pub fn put_words(&self, addr: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.put(addr + index as u64 * 8, &word.to_ne_bytes());
        }
    }
    /// Reads bytes as the program would.
    pub fn get(&self, addr: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        // SAFETY: as in `put`.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), len as usize) }
        bytes
    }
    /// The system calls that were made: number, arguments, result.
    pub fn calls(&self) -> Vec<(u64, Args, i64)> {
        self.state.borrow().calls.clone()
    }
    /// What was to stop being managed: address and length.
    pub fn kept(&self) -> Vec<(u64, u64)> {
        self.state.borrow().kept.clone()
    }
    /// Makes a call through the table.
    pub fn call(&self, nr: i64, args: &[u64]) -> i64 {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let result = crate::calls::dispatch(self, nr as u64, &all).expect("a call of this part of the net");
        assert!(self.state.borrow().pinned.is_empty(), "pins are left after call {nr}");
        assert!(self.state.borrow().scratch.is_empty(), "scratch memory is left after call {nr}");
        result
    }
    fn is_managed(&self, page: u64) -> bool {
        (self.first..self.first + self.pages).contains(&page)
    }
    fn refuses(&self, page: u64, writes: bool) -> bool {
        let arena = arena();
        match arena.protection[(page - arena.base / PAGE) as usize].load(Ordering::SeqCst) {
            READ_ONLY => writes,
            protection => protection == FORBIDDEN,
        }
    }
    fn evict(&self, state: &State) {
        protect(self.first, self.pages, libc::PROT_NONE);
        for (&page, &(_, writes)) in &state.pinned {
            protect(page, 1, if writes { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ });
        }
    }
    fn check(&self, state: &State, nr: u64, args: &Args, result: i64) {
        for (addr, len, writes) in touched(nr, args, result) {
            for page in addr / PAGE..(addr + len).div_ceil(PAGE) {
                let (from, to) = (addr.max(page * PAGE), (addr + len).min((page + 1) * PAGE));
                let scratch = state.scratch.iter().any(|(at, len)| *at <= from && to <= at + len);
                let asked = state
                    .asked
                    .iter()
                    .any(|&(_, at, len, access)| at <= from && to <= at + len && (!writes || access == Access::Write));
                assert!(scratch || asked, "call {nr}({args:x?}) = {result} touched {from:#x}..{to:#x}, write: {writes}");
            }
        }
    }
}

impl Memory for Fake {
    fn pin(&self, pins: &mut PinSet, addr: u64, len: u64, access: Access) -> u64 {
        let mut state = self.state.borrow_mut();
        let writes = access == Access::Write;
        let mut safe = 0;
        while safe < len {
            let here = addr + safe;
            let page = here / PAGE;
            if self.is_managed(page) {
                if self.refuses(page, writes) {
                    break;
                }
                if !pins.contains(Page(page)) {
                    if (pins.pages() + 1) * PAGE > self.budget || !pins.push_page(Page(page)) {
                        break;
                    }
                    state.pinned.entry(page).or_default().0 += 1;
                }
                let entry = state.pinned.get_mut(&page).expect("a pinned page");
                entry.1 |= writes;
                protect(page, 1, if entry.1 { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ });
            }
            safe += (PAGE - here % PAGE).min(len - safe);
        }
        state.asked.push((std::ptr::from_ref(pins) as usize, addr, safe, access));
        safe
    }
    fn unpin(&self, pins: &mut PinSet) {
        let mut state = self.state.borrow_mut();
        for run in pins.runs() {
            for page in run.start.0..run.end.0 {
                let entry = state.pinned.get_mut(&page).expect("what is unpinned was pinned");
                entry.0 -= 1;
                if entry.0 == 0 {
                    state.pinned.remove(&page);
                }
            }
        }
        let set = std::ptr::from_ref(pins) as usize;
        state.asked.retain(|entry| entry.0 != set);
        pins.clear();
    }
    fn pin_longer(&self, addr: u64, len: u64, access: Access, most: u64, pages: &mut Vec<u64>) -> bool {
        let mut state = self.state.borrow_mut();
        let writes = access == Access::Write;
        for page in
            (addr / PAGE..(addr + len).div_ceil(PAGE)).filter(|&page| self.is_managed(page) && !self.refuses(page, writes))
        {
            if pages.len() as u64 == most {
                return false;
            }
            let entry = state.pinned.entry(page).or_default();
            entry.0 += 1;
            entry.1 |= writes;
            protect(page, 1, if entry.1 { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ });
            pages.push(page);
        }
        true
    }
    fn unpin_page(&self, page: u64) {
        let mut state = self.state.borrow_mut();
        let entry = state.pinned.get_mut(&page).expect("what is unpinned was pinned");
        entry.0 -= 1;
        if entry.0 == 0 {
            state.pinned.remove(&page);
        }
    }
    fn managed_pages(&self, addr: u64, len: u64) -> u64 {
        let state = self.state.borrow();
        let is_kept = |page| state.kept.iter().any(|&(at, len)| (at / PAGE..(at + len).div_ceil(PAGE)).contains(&page));
        (addr / PAGE..(addr + len).div_ceil(PAGE)).filter(|&page| self.is_managed(page) && !is_kept(page)).count() as u64
    }
    fn frames(&self) -> u64 {
        self.budget / PAGE * 4
    }
    fn keep(&self, addr: u64, len: u64) {
        self.state.borrow_mut().kept.push((addr, len));
    }
    fn surrender(&self, device: (u32, u32)) -> bool {
        let mut state = self.state.borrow_mut();
        state.surrendered.push(device);
        !self.is_full
    }
    fn raw_with_mask(&self, nr: u64, args: &Args, _wanted: u64) -> i64 {
        self.raw(nr, args)
    }
    fn own(&self, nr: u64, args: &Args) -> i64 {
        self.raw(nr, args)
    }
    fn raw(&self, nr: u64, args: &Args) -> i64 {
        self.evict(&self.state.borrow());
        // SAFETY: the tests make calls that only touch what they own.
        let result = match unsafe { libc::syscall(nr as i64, args[0], args[1], args[2], args[3], args[4], args[5]) } {
            -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().expect("an errno")),
            result => result,
        };
        let mut state = self.state.borrow_mut();
        match nr as i64 {
            libc::SYS_mmap if result > 0 => state.scratch.push((result as u64, args[1].next_multiple_of(PAGE))),
            libc::SYS_munmap => state.scratch.retain(|mapping| mapping.0 != args[0]),
            _ => {}
        }
        if result >= 0 {
            self.check(&state, nr, args, result);
        }
        state.calls.push((nr, *args, result));
        result
    }
    /// As the library does where no thread of ours is.
    fn set_filter(&self, filter: &[Instruction], _flags: u64, install: &mut dyn FnMut(u64) -> i64) -> i64 {
        match first_stopped(filter, &[own::ALWAYS, own::THREADS]) {
            Some(_) => errno(libc::EINVAL),
            None => install(&raw const *Box::leak(Box::new(Program::of(filter))) as u64),
        }
    }
    fn own_fds(&self) -> &[i32] {
        &self.own
    }
}

fn word(addr: u64) -> u64 {
    // SAFETY: the kernel has just read there, so it is readable or becomes so.
    unsafe { (addr as *const u64).read_unaligned() }
}

fn vectors(array: u64, count: u64, bytes: u64, writes: bool) -> Vec<(u64, u64, bool)> {
    let mut list = vec![(array, count * 16, false)];
    let mut left = bytes;
    for index in 0..count {
        let len = word(array + index * 16 + 8).min(left);
        list.push((word(array + index * 16), len, writes));
        left -= len;
    }
    list
}

fn message(header: u64, bytes: u64, receive: bool) -> Vec<(u64, u64, bool)> {
    let mut list = vec![(header, 56, receive)];
    list.push((word(header), word(header + 8) & 0xffff_ffff, receive));
    list.push((word(header + 32), word(header + 40), receive));
    list.extend(vectors(word(header + 16), word(header + 24), bytes, receive));
    list.retain(|range| range.0 != 0);
    list
}

fn text(addr: u64) -> (u64, u64, bool) {
    // SAFETY: the kernel has accepted the string.
    let len = unsafe { libc::strlen(addr as *const libc::c_char) };
    (addr, len as u64 + 1, false)
}

/// What the kernel must have touched in a successful call: address, bytes, whether it wrote. Made from the manual
/// pages, on purpose without the table.
fn touched(nr: u64, args: &Args, result: i64) -> Vec<(u64, u64, bool)> {
    let [a, b, c, d, e, f] = *args;
    let result = result as u64;
    let list = match nr as i64 {
        libc::SYS_read | libc::SYS_pread64 => vec![(b, result, true)],
        libc::SYS_write | libc::SYS_pwrite64 => vec![(b, result, false)],
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => vectors(b, c, result, true),
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => vectors(b, c, result, false),
        libc::SYS_recvfrom if d & libc::MSG_TRUNC as u64 != 0 => vec![],
        libc::SYS_recvfrom => vec![(b, result, true), (f, 4, true)],
        libc::SYS_sendto => vec![(b, result, false), (e, f, false)],
        libc::SYS_recvmsg if c & libc::MSG_TRUNC as u64 != 0 => message(b, 0, true),
        libc::SYS_recvmsg => message(b, result, true),
        libc::SYS_sendmsg => message(b, result, false),
        libc::SYS_sendmmsg | libc::SYS_recvmmsg => {
            let receive = nr as i64 == libc::SYS_recvmmsg;
            let one = |index| {
                let at = b + index * 64;
                let mut list = message(at, word(at + 56) & 0xffff_ffff, receive);
                list.push((at + 56, 4, true));
                list
            };
            (0..result).flat_map(one).collect()
        }
        libc::SYS_open | libc::SYS_access | libc::SYS_unlink => vec![text(a)],
        libc::SYS_stat => vec![text(a), (b, 144, true)],
        libc::SYS_fstat => vec![(b, 144, true)],
        libc::SYS_newfstatat => vec![text(b), (c, 144, true)],
        libc::SYS_statx => vec![text(b), (e, 256, true)],
        libc::SYS_rename | libc::SYS_symlink => vec![text(a), text(b)],
        libc::SYS_readlink => vec![text(a), (b, result, true)],
        libc::SYS_getcwd => vec![(a, result, true)],
        libc::SYS_getrandom => vec![(a, result, true)],
        libc::SYS_getdents64 => vec![(b, result, true)],
        libc::SYS_poll => vec![(a, b * 8, true)],
        libc::SYS_ppoll => vec![(a, b * 8, true), (c, 16, false), (d, e, false)],
        libc::SYS_select => {
            let bytes = a.div_ceil(64) * 8;
            vec![(b, bytes, true), (c, bytes, true), (d, bytes, true), (e, 16, true)]
        }
        libc::SYS_pselect6 => {
            let bytes = a.div_ceil(64) * 8;
            let mask = if f == 0 { (0, 0, false) } else { (word(f), word(f + 8), false) };
            vec![(b, bytes, true), (c, bytes, true), (d, bytes, true), (e, 16, true), (f, 16, false), mask]
        }
        libc::SYS_rt_sigsuspend => vec![(a, b, false)],
        libc::SYS_epoll_ctl => vec![(d, 12, false)],
        libc::SYS_epoll_wait => vec![(b, result * 12, true)],
        libc::SYS_epoll_pwait => vec![(b, result * 12, true), (e, f, false)],
        libc::SYS_epoll_pwait2 => vec![(b, result * 12, true), (d, 16, false), (e, f, false)],
        libc::SYS_nanosleep => vec![(a, 16, false)],
        libc::SYS_clock_nanosleep => vec![(c, 16, false)],
        libc::SYS_clock_gettime => vec![(b, 16, true)],
        libc::SYS_getsockopt => vec![(e, 4, true), (d, word(e) & 0xffff_ffff, true)],
        libc::SYS_setsockopt => vec![(d, e, false)],
        libc::SYS_getsockname | libc::SYS_accept => vec![(c, 4, true), (b, word(c) & 0xffff_ffff, true)],
        libc::SYS_bind | libc::SYS_connect => vec![(b, c, false)],
        libc::SYS_uname => vec![(a, 390, true)],
        libc::SYS_prlimit64 => vec![(c, 16, false), (d, 16, true)],
        libc::SYS_getgroups => vec![(b, if a == 0 { 0 } else { result * 4 }, true)],
        libc::SYS_sched_getaffinity => vec![(c, result, true)],
        libc::SYS_mincore => vec![(c, b.div_ceil(PAGE), true)],
        libc::SYS_capget => vec![(a, 8, false), (b, 24, true)],
        libc::SYS_process_vm_readv => [vectors(b, c, result, true), vec![(d, e * 16, false)]].concat(),
        libc::SYS_process_vm_writev => [vectors(b, c, result, false), vec![(d, e * 16, false)]].concat(),
        _ => vec![],
    };
    list.into_iter().filter(|range| range.0 != 0 && range.1 != 0).collect()
}
