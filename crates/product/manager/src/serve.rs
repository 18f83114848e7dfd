//! Faults of the client: handler threads read the messages of its userfaultfd, and serve them.
//!
//! ```text
//!  message ─▶ not managed? ─yes──────────────────▶ whoever waits waits on: for the region that is about to come, or for ever
//!               │no
//!               ▼
//!             absent, but in memory as far as we know? ─▶ the client has thrown it away: fresh memory ([`Host::forget_thrown_away`])
//!               │
//!               ▼
//!             Engine::resolve ─▶ done ──────────▶ wake
//!               │ no room                         wake: it faults again, and waits again
//!               │ the page cannot be had          poison: SIGBUS for whoever needs it, or EFAULT for its system call
//! ```
//!
//! One thread at a time waits for messages. It takes a few, and another one waits before it serves them. (If all of them waited, each message would wake all.)

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use farshore_attach::{Event, FAULT_PROTECTED, FAULT_WRITE, Kind};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Clock as _, Kernel as _, KernelError, PageBuf};
use farshore_core::word::State;
use farshore_engine::fault::resolve::{Failure, Resolved};
use farshore_sys::cpu;
use farshore_sys::raw::Errno;
use farshore_sys::uffd::{Fault, Message, UffdError};

use crate::host::{Host, buffer, no_thread};
use crate::seldom::Seldom;
use crate::tap::Way;

/// Handler threads a core. Each waits for its own fetch, so several.
const HANDLERS_A_CORE: usize = 4;
/// Messages that one read takes. Few: what a handler has taken waits behind the fetches before it.
const MESSAGES: usize = 4;
/// How long a thread that finds no memory in the kernel pauses.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(10);

/// Held by the thread that waits for messages.
static TURN: Mutex<()> = Mutex::new(());

/// Starts the handler threads. They never end.
///
/// # Errors
/// One line: they cannot be had.
pub fn start(host: &'static Host) -> Result<(), String> {
    for _ in 0..(HANDLERS_A_CORE * host.cores).max(2) {
        thread::Builder::new().name("farshore-fault".into()).spawn(move || run(host)).map_err(no_thread)?;
    }
    Ok(())
}

/// A handler thread.
fn run(host: &'static Host) {
    let mut messages = [Message::EMPTY; MESSAGES];
    let mut buffer = buffer();
    loop {
        let got = {
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            host.uffd().read_messages(&mut messages)
        };
        match got {
            Ok(count) => {
                let faults = messages[..count].iter().filter_map(Message::fault);
                faults.for_each(|fault| serve(host, fault, &mut buffer));
            }
            Err(Errno::EINTR) => {}
            // Whether reads wait is a matter of the description, which the client has too: it has changed that.
            Err(Errno::EAGAIN) => _ = host.uffd().wait_readable(-1),
            Err(why) => panic!("the client's faults cannot be read ({why})"),
        }
    }
}

fn serve(host: &Host, fault: Fault, buffer: &mut [PageBuf]) {
    let (engine, page) = (&host.engine, Page::containing(fault.address));
    let access = if fault.write || fault.protected { Access::Write } else { Access::Read };
    if engine.is_wanted(Kind::Fault) {
        let write = if access == Access::Write { FAULT_WRITE } else { 0 };
        let detail = write | if fault.protected { FAULT_PROTECTED } else { 0 };
        engine.tell_event(&Event { detail, ns: engine.clock.now_ns(), ..Event::new(Kind::Fault, fault.address, 1) });
    }
    let is_followed = host.tap.way() != Way::Off;
    let state = (is_followed || !fault.protected).then(|| host.state_of(page)).flatten();
    // Before it is served, so that what is behind it comes meanwhile. A page that nobody has touched before is of no run that could come.
    if is_followed && (fault.protected || matches!(state, Some(State::Out | State::Leaving | State::Busy))) {
        host.tap.fault(page);
    }
    if !fault.protected && state == Some(State::Resident) {
        host.forget_thrown_away(page);
    }
    match engine.resolve(page, access, fault.protected, cpu::current(), buffer) {
        Ok(Resolved::Done) => {}
        Ok(Resolved::Foreign) => return stranger(page),
        Err(why) if wants_room(&why) => wait_for_room(&why),
        Err(why) if fault.protected => {
            // It is there, and cannot be made writable: nothing can be put in its place that would tell.
            static SAID: Seldom = Seldom::new();
            SAID.tell(|| format!("the page at {:#x} of the client stays write-protected: {why}", page.addr()));
            thread::sleep(NO_MEMORY_PAUSE);
        }
        Err(why) => lose(host, page, &why),
    }
    // Always: whether this call or another thread has resolved it, or the access must be made again to find out.
    let _ = host.uffd().wake(page.addr(), PAGE_SIZE as u64);
}

/// Whether a page cannot come for want of room alone: its bytes are safe, and it can come later.
#[must_use]
pub fn wants_room(why: &Failure) -> bool {
    matches!(why, Failure::NoFrames | Failure::Kernel(KernelError::NoMemory))
}

/// Says what a page waits for that [`wants_room`], and pauses.
pub fn wait_for_room(why: &Failure) {
    static SAID: Seldom = Seldom::new();
    SAID.tell(|| match why {
        Failure::Kernel(_) => format!(
            "a page of the client waits: {why}; make room on the machine, on the tmpfs that has its file, or in its control group"
        ),
        _ => format!("a page of the client waits: {why}"),
    });
    thread::sleep(NO_MEMORY_PAUSE);
}

/// A page cannot be had: whoever needs it gets SIGBUS, not other bytes.
pub fn lose(host: &Host, page: Page, why: &Failure) {
    static SAID: Seldom = Seldom::new();
    SAID.tell(|| format!("the page at {:#x} of the client is lost, and whoever needs it gets SIGBUS: {why}", page.addr()));
    let mut done = Ok(());
    host.engine.while_absent(page, cpu::current(), || {
        // What punching has left of its protection would keep the poison out.
        let _ = host.engine.kernel.unprotect(page);
        done = host.uffd().poison(page.addr(), PAGE_SIZE as u64);
    });
    match done {
        Ok(()) | Err(UffdError::Exists | UffdError::NotRegistered | UffdError::ProcessGone | UffdError::Again { .. }) => {}
        Err(error) => {
            static SAID: Seldom = Seldom::new();
            SAID.tell(|| {
                format!(
                    "the page at {:#x} of the client cannot be poisoned ({error}): whoever needs it waits for ever",
                    page.addr()
                )
            });
        }
    }
}

/// A fault where nothing was handed over.
fn stranger(page: Page) {
    static SAID: Seldom = Seldom::new();
    SAID.tell(|| {
        format!(
            "the client has touched {:#x}, which is registered and was not handed over: whoever has waits until it is",
            page.addr()
        )
    });
}
