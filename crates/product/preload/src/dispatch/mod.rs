//! The net: every system call of the program passes here. This is the highest layer: it ties the others together, and starts
//! them ([`start`], [`dormant`]).
//!
//! ```text
//!  a patched `syscall` of libc ─▶ stub ─┐
//!                                       ├─▶ entry (saves registers) ─▶ dispatch ─┬─ memory calls   (crate::memory)
//!  any other `syscall` ─SIGSYS─▶ entry ─┘                                        ├─ signal calls   (crate::signals)
//!                                                                                ├─ exec and exit  (crate::process)
//!                                                                                └─ the rest: pin what the kernel will
//!                                                                                   touch, call, unpin  (farshore_net)
//! ```
//!
//! The crate `catch` catches the calls. The crate `net` says of each which memory it touches, and has the odd ones. Here memory is
//! pinned for it (`impl Memory for Net`). [`quick`] is a shorter way for small reads and writes.
//!
//! What lower layers need from above is said here too: [`above`], and [`unithreads`] for a scheduler in the program.

mod above;
mod dormant;
mod hosted;
mod limits;
mod quick;
mod start;
mod unithreads;

use crate::ground::files;
use crate::ground::lost::{self, Needed};
use crate::ground::net::{Net, net, pinned};
use crate::ground::runtime::{Runtime, runtime, uninterrupted};
use crate::ground::{own_threads, report, sleeping, thread};
use crate::memory::{self, surrender};
use crate::process::{self, filters};
use crate::signals;
use core::sync::atomic::Ordering;
use farshore_catch::entry::{self, Call};
use farshore_core::limits::GRANULE_PAGES;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::word::{AtomicWord, Pin};
use farshore_engine::fault::pins::Pinned;
use farshore_net::buffers::{Args, Held, Memory, PinSet, share};
use farshore_net::calls::{self, seccomp::Instruction};
use farshore_net::table;
use farshore_sys::raw::syscall;
use farshore_sys::signal::{self, How, SigSet};

/// The part of Farshore that serves a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    Memory,
    Signals,
    Process,
    Limits,
    Rest,
}

pub fn server(number: u64) -> Server {
    if memory::handles(number) {
        Server::Memory
    } else if signals::handles(number) {
        Server::Signals
    } else if process::handles(number) {
        Server::Process
    } else if limits::handles(number) {
        Server::Limits
    } else {
        Server::Rest
    }
}

/// Serves one system call.
#[unsafe(no_mangle)]
extern "C" fn farshore_dispatch(call: &mut Call) -> i64 {
    let (number, args) = (call.nr, &call.args);
    // Before the program runs, and on our own threads, the kernel gets a call as it is.
    let Some(runtime) = runtime().filter(|r| r.running.load(Ordering::Relaxed) && !thread::is_internal()) else {
        let args = *args;
        return dormant::answer(call).unwrap_or_else(|| net().own(number, &args));
    };
    if !entry::is_on_call_stack(call) {
        begin_on_call_stack(call);
    }
    crate::ground::unithreads::settle();
    let server = server(number);
    if server != Server::Rest
        && let Some(entry) = table::lookup(number)
    {
        return match calls::descriptors::hide(net(), entry, args) {
            Ok(shown) => change(runtime, server, number, shown.as_ref().unwrap_or(args), call.sp),
            Err(refused) => refused,
        };
    }
    pinned(number, args)
}

/// Begins a call again that began before its thread had a call stack: the thread was there before Farshore, or its process was
/// dormant.
#[cold]
fn begin_on_call_stack(call: &Call) -> ! {
    let mask = signal::sigprocmask(How::Set, SigSet::ALL);
    thread::current_or_new();
    // SAFETY: the frame of a call that has done nothing, by its own thread, which has a call stack and is not on it.
    unsafe { entry::go_on(call, mask) }
}

/// Makes a call that changes memory, signals, processes or limits, for code with the stack pointer `sp`.
fn change(runtime: &'static Runtime, server: Server, number: u64, args: &Args, sp: u64) -> i64 {
    match server {
        Server::Memory => memory::call(runtime, number, args),
        Server::Signals => signals::handle(number, args, sp),
        Server::Process => process::call(number, args),
        Server::Limits => limits::set(number, args),
        Server::Rest => pinned(number, args),
    }
}

/// Lets the calls that neither touch memory nor need a look at their arguments go straight to the kernel. At start-up.
pub fn mark_plain_calls() {
    // These only wait, and must go on when a signal of ours comes (`own_threads::knock`): pause, and restart_syscall, which other
    // waits become then.
    const WAITS: [u64; 2] = [34, 219];
    for number in (0..table::COUNT as u64).filter(|number| server(*number) == Server::Rest && !WAITS.contains(number)) {
        if table::describe(number)
            .is_some_and(|entry| entry.kind == table::Kind::NoPointers && entry.descriptors | entry.perhaps == 0)
        {
            entry::set_plain(number, true);
        }
    }
}

/// Lets small reads and writes take the quick way, if the compiler has compiled it as it must be. At start-up.
pub fn mark_quick_calls() {
    match quick::check() {
        Ok(()) => quick::NUMBERS.iter().for_each(|&number| entry::set_quick(number, quick::make)),
        // A build without optimisation never has it so.
        Err(_) if cfg!(debug_assertions) => {}
        Err(why) => report::line(format_args!("reads and writes are slower than they should be: the compiler has put {why}")),
    }
}

impl Net {
    /// Pins the pages of `range` and adds them to `pins`. Returns the address up to which that went; `None`: all of it.
    #[inline]
    fn pin_range(&self, runtime: &Runtime, pins: &mut PinSet, range: PageRange, access: Access) -> Option<u64> {
        let mut page = range.start;
        while page < range.end {
            let Some(at) = runtime.engine.table.page(page) else {
                page = Page((page.0 / GRANULE_PAGES as u64 + 1) * GRANULE_PAGES as u64);
                continue;
            };
            let again = !pins.is_empty() && pins.contains(page);
            if !again && !may_grow(runtime, pins, PageRange { start: page, end: range.end }) {
                return Some(page.addr());
            }
            let pinned = match at.word.pin(access) {
                Pin::Pinned => true,
                Pin::Foreign => false,
                Pin::Fault => bring(runtime, page, access),
            };
            if pinned && (again || !pins.push_page(page)) {
                runtime.engine.unpin(page);
                if !again {
                    return Some(page.addr());
                }
            }
            page = page.plus(1);
        }
        None
    }
}

impl Memory for Net {
    #[inline]
    fn pin(&self, pins: &mut PinSet, addr: u64, len: u64, access: Access) -> u64 {
        let Some(runtime) = runtime() else { return len };
        let range = PageRange::covering(addr, len);
        let held = thread::current().map(|thread| &thread.held);
        held.inspect(|held| held.announce());
        let end = self.pin_range(runtime, pins, range, access);
        if let Some(held) = held {
            held.note(pins, |page| runtime.engine.unpin(page));
            held.settle();
        }
        end.map_or(len, |end| end.saturating_sub(addr))
    }

    fn unpin(&self, pins: &mut PinSet) {
        if pins.is_empty() && pins.granted() == 0 {
            return;
        }
        let held = thread::current().map(|thread| &thread.held);
        held.inspect(|held| held.announce());
        if Held::give_back(pins)
            && let Some(runtime) = runtime()
        {
            pins.runs().iter().flat_map(|run| run.iter()).for_each(|page| runtime.engine.unpin(page));
            pins.give_grants();
        }
        pins.clear();
        held.inspect(|held| held.settle());
    }

    fn pin_longer(&self, addr: u64, len: u64, access: Access, most: u64, pages: &mut Vec<u64>) -> bool {
        let Some(runtime) = runtime() else { return true };
        each_managed(runtime, PageRange::covering(addr, len), |page, word| {
            if pages.len() as u64 >= most {
                return false;
            }
            let pinned = |access| match word.pin(access) {
                Pin::Pinned => true,
                Pin::Foreign => false,
                Pin::Fault => bring(runtime, page, access),
            };
            // What the program may only read the kernel cannot write.
            if pinned(access) || (access == Access::Write && pinned(Access::Read)) {
                pages.push(page.0);
            }
            true
        })
    }

    fn unpin_page(&self, page: u64) {
        if let Some(runtime) = runtime() {
            runtime.engine.unpin(Page(page));
        }
    }

    fn managed_pages(&self, addr: u64, len: u64) -> u64 {
        let mut count = 0;
        if let Some(runtime) = runtime().filter(|_| len > 0) {
            each_managed(runtime, PageRange::covering(addr, len), |page, _| {
                count += u64::from(runtime.engine.is_managed(page));
                true
            });
        }
        count
    }

    fn frames(&self) -> u64 {
        runtime().map_or(u64::MAX, |runtime| runtime.engine.frames().limit())
    }

    fn keep(&self, addr: u64, len: u64) {
        let range = PageRange::covering(addr, len);
        if let Some(runtime) = runtime().filter(|r| memory::any_managed(r, range)) {
            memory::keep(runtime, range);
        }
    }

    fn set_filter(&self, filter: &[Instruction], flags: u64, install: &mut dyn FnMut(u64) -> i64) -> i64 {
        filters::set_filter(filter, flags, install)
    }

    fn refuse_strict_mode(&self) -> i64 {
        filters::refuse_strict()
    }

    fn lock_record(&self, call: &mut dyn FnMut() -> i64) -> i64 {
        if runtime().is_some_and(|runtime| runtime.options.files) { files::locking(call) } else { call() }
    }

    fn surrender(&self, device: (u32, u32)) -> bool {
        runtime().is_none_or(|runtime| surrender::all(runtime, device))
    }

    #[inline]
    fn raw(&self, nr: u64, args: &Args) -> i64 {
        // SAFETY: the program's own call; the memory that it names is pinned or the program's to answer for.
        unsafe { entry::for_program(nr, args) }
    }

    fn own(&self, nr: u64, args: &Args) -> i64 {
        // SAFETY: a call that the net makes besides: it names memory of ours.
        unsafe { syscall(nr, *args) }
    }

    fn raw_with_mask(&self, nr: u64, args: &Args, wanted: u64) -> i64 {
        signals::waits::with_mask(nr, args, SigSet(wanted))
    }

    fn raw_again(&self, nr: u64, args: &Args) -> i64 {
        signals::waits::again(nr, args)
    }

    fn own_fds(&self) -> &[i32] {
        runtime().map_or_else(sleeping::kept, |r| r.own_fds())
    }

    fn requests_come(&self) {
        entry::set_plain(unithreads::IO_URING_ENTER, false);
    }

    fn may_have_rings(&self) -> bool {
        thread::current().is_some_and(|thread| thread.rings.get())
    }
}

/// Calls `each` for every page of a range that may be managed, until it answers false. Whether it never did.
fn each_managed(runtime: &Runtime, range: PageRange, mut each: impl FnMut(Page, &AtomicWord) -> bool) -> bool {
    let mut page = range.start;
    while page < range.end {
        page = match runtime.engine.table.page(page) {
            Some(at) if !each(page, at.word) => return false,
            Some(_) => page.plus(1),
            None => Page((page.0 / GRANULE_PAGES as u64 + 1) * GRANULE_PAGES as u64),
        };
    }
    true
}

/// Pages that one call may pin: a sixteenth of the limit.
fn budget(runtime: &Runtime) -> u64 {
    (runtime.engine.frames().limit() / 16).clamp(16, 1024)
}

/// Whether `pins` may have one more page, the first of `rest`.
#[inline]
fn may_grow(runtime: &Runtime, pins: &mut PinSet, rest: PageRange) -> bool {
    if pins.pages() < share::FREE {
        return true;
    }
    let budget = budget(runtime);
    pins.pages() < budget && pins.may_grow(rest.len().min(budget - pins.pages()), share::most(runtime.engine.frames().limit()))
}

/// Brings a page in and pins it. Signals are blocked: a handler of the program must not run while we own the page.
#[cold]
fn bring(runtime: &Runtime, page: Page, access: Access) -> bool {
    own_threads::ensure();
    let answer = uninterrupted(|| match thread::current().or_else(|| thread::adopt(false)) {
        Some(thread) => thread.with_buffer(|buffer| runtime.engine.pin(page, access, thread.core(), buffer)),
        None => Ok(Pinned::Foreign),
    });
    match answer {
        Ok(pinned) => pinned == Pinned::Held,
        // The call finds the page absent: EFAULT, as when the kernel cannot swap a page in.
        Err(why) => {
            lost::tell(runtime, page, why, Needed::ByCall);
            false
        }
    }
}
