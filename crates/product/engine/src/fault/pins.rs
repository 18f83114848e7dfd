//! Pages under a system call.
//!
//! The kernel's own access to an absent or write-protected page fails with `EFAULT` when faults are delivered as signals.
//! So a page is pinned before the call (brought in, made writable if the kernel will write it, kept from eviction) and
//! unpinned after it. A pin is a count in the page word; it survives whatever the program does to the page meanwhile.

use crate::Engine;
use crate::fault::resolve::{Failure, Resolved};
use farshore_attach::{Event, FAULT_BY_CALL, FAULT_PROTECTED, FAULT_WRITE, Kind};
use farshore_core::page::{Access, Page};
use farshore_core::seams::{Clock, PageBuf, World};
use farshore_core::word::{BeginFault, Pin, State};

/// What came of [`Engine::pin`].
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinned {
    /// The page stays until [`Engine::unpin`].
    Held,
    /// The page is not managed: there is nothing to unpin.
    Foreign,
}

impl<W: World> Engine<W> {
    /// Pins `page` for the kernel's `access`.
    ///
    /// # Errors
    /// When the page cannot be brought in; it is not pinned then.
    pub fn pin(&self, page: Page, access: Access, core: usize, buffer: &mut [PageBuf]) -> Result<Pinned, Failure> {
        loop {
            let Some(at) = self.page(page) else { return Ok(Pinned::Foreign) };
            match at.word.pin(access) {
                Pin::Pinned => return Ok(Pinned::Held),
                Pin::Foreign => return Ok(Pinned::Foreign),
                Pin::Fault => {
                    let protected = access == Access::Write && at.word.load().state() == State::Resident;
                    let write = if access == Access::Write { FAULT_WRITE } else { 0 };
                    let now = self.clock.now_ns();
                    if self.is_wanted(Kind::Fault) {
                        let detail = FAULT_BY_CALL | write | if protected { FAULT_PROTECTED } else { 0 };
                        self.tell_event(&Event { detail, ns: now, ..Event::new(Kind::Fault, page.addr(), 1) });
                    }
                    if self.resolve_since(now, page, access, protected, core, buffer)? == Resolved::Foreign {
                        return Ok(Pinned::Foreign);
                    }
                }
            }
        }
    }

    /// Unpins a page that [`Engine::pin`] pinned.
    pub fn unpin(&self, page: Page) {
        // Even if the program has unmapped it since: the count is still in the word.
        if let Some(word) = self.table.word_for_unpin(page) {
            word.unpin();
        }
    }

    /// Runs `f` while we own `page`, which is absent: no other thread maps or evicts it meanwhile. False: the page is not
    /// absent, or another thread owns it, and `f` was not run.
    pub fn while_absent(&self, page: Page, core: usize, f: impl FnOnce()) -> bool {
        self.quiet.gate.enter(&self.futex, core);
        let ran = self.page(page).is_some_and(|at| match at.word.begin_fault(Access::Read, false) {
            BeginFault::Owned { was } => {
                let absent = was.state() != State::Resident;
                if absent {
                    f();
                }
                self.restore(page, at.word, was);
                absent
            }
            _ => false,
        });
        self.quiet.gate.leave(&self.futex, core);
        ran
    }

    /// Whether `page` is managed, in any state.
    pub fn is_managed(&self, page: Page) -> bool {
        self.page(page).is_some_and(|at| at.word.load().state() != State::Foreign)
    }

    /// Whether a memory call has the page's granule hidden at this moment: what an access finds is known only when the call is
    /// over.
    pub fn is_hidden(&self, page: Page) -> bool {
        self.table.granule_even_absent(page.granule()).is_some_and(|g| g.flags.is_hidden())
    }
}
