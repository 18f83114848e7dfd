//! Poll delivery: handler threads read faults from the userfaultfd, serve them, and wake the threads that wait.
//!
//! Slower than the upcall by two context switches, but the kernel's own accesses are served too, where the
//! userfaultfd may do that.

use super::poison;
use crate::ground::runtime::Runtime;
use crate::ground::{lost, own_threads, report, thread};
use core::sync::atomic::Ordering;
use farshore_attach::{Event, FAULT_PROTECTED, FAULT_WRITE, Kind};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page};
use farshore_core::seams::Clock as _;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::Message;

/// Messages that one read takes. Few: what a handler has taken waits behind the fetches before it.
const MESSAGES: usize = 4;

/// A handler thread, until it is told to end.
pub fn run(runtime: &'static Runtime) {
    let Some(thread) = thread::current() else {
        report::abort(format_args!("a fault handler thread has no record"));
    };
    let uffd = runtime.engine.kernel.uffd();
    let mut messages = [Message::EMPTY; MESSAGES];
    while !own_threads::STOP_SERVING.load(Ordering::Acquire) {
        let got = match uffd.read_messages(&mut messages) {
            Ok(n) => n,
            Err(Errno::EAGAIN) => {
                let _ = uffd.wait_readable(-1);
                continue;
            }
            Err(Errno::EINTR) => continue,
            Err(why) => report::abort(format_args!("reading faults failed: {why:?}")),
        };
        for message in &messages[..got] {
            let Some(event) = message.fault() else { continue };
            let access = if event.write || event.protected { Access::Write } else { Access::Read };
            let page = Page::containing(event.address);
            if runtime.engine.is_wanted(Kind::Fault) {
                let write = if access == Access::Write { FAULT_WRITE } else { 0 };
                let detail = write | if event.protected { FAULT_PROTECTED } else { 0 };
                let ns = runtime.engine.clock.now_ns();
                runtime.engine.tell_event(&Event { detail, ns, ..Event::new(Kind::Fault, event.address, 1) });
            }
            let resolved =
                thread.with_buffer(|buffer| runtime.engine.resolve(page, access, event.protected, thread.core(), buffer));
            if let Err(why) = resolved {
                if event.protected {
                    // It is there, and cannot be made writable: no memory in the kernel.
                    lost::fail(page, why);
                }
                poison(runtime, page, thread.core(), why);
            }
            // Always: whether this call or another thread has resolved it, or nobody could and the access must be tried again.
            // Mapping wakes too, but only threads that already waited; somebody who came after that, for a page that looked
            // protected still, sleeps until its own message has been looked at.
            let _ = uffd.wake(page.addr(), PAGE_SIZE as u64);
        }
    }
}
