//! What the unithreads of one service share: limits, counters, and how it ends.
//!
//! A service is one unithread that receives, and one for each connection or datagram. It ends in order:
//!
//! 1. [`Core::close`] says so and wakes the receiver, which receives no more.
//! 2. The receiver waits until nothing is under way ([`Core::wait_empty`]), and ends; a thread that joins it has seen the service's end.
//!
//! A receiver that has begun as many as it may waits until one of them has ended ([`Core::wait_room`]).
//!
//! Each side writes its word and reads the other's (`closing` or `under_way` against `waiter`), with SeqCst: at least one sees the other.

use super::limits::{Limits, Tally};
use crate::ground::error::Stopped;
use crate::scheduler::api::wait_stoppable;
use crate::scheduler::config::WaitMode;
use crate::scheduler::handle::Handle;
use crate::scheduler::wait::Token;
use crate::scheduler::worker;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Core {
    pub(super) handle: Handle,
    pub(super) limits: Limits,
    pub(super) tally: Tally,
    closing: AtomicBool,
    /// Connections, or requests of datagrams.
    under_way: AtomicU32,
    /// The token of the receiver's wait, in raw form; 0: it does not wait here.
    waiter: AtomicU64,
    /// It waits there for one to end.
    wants_room: AtomicBool,
}

impl Core {
    pub(super) fn new(handle: &Handle, limits: Limits) -> Core {
        Core {
            handle: handle.clone(),
            limits,
            tally: Tally::default(),
            closing: AtomicBool::new(false),
            under_way: AtomicU32::new(0),
            waiter: AtomicU64::new(0),
            wants_room: AtomicBool::new(false),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    pub(super) fn close(&self) {
        self.closing.store(true, SeqCst);
        self.wake();
    }

    pub(super) fn under_way(&self) -> u32 {
        self.under_way.load(SeqCst)
    }

    fn wake(&self) {
        // A receiver that has gone on by itself needs none.
        Token::from_raw(self.waiter.load(SeqCst)).map(|token| self.handle.shared.complete(token, 0));
    }

    /// The receiver waits for what `announce` makes its token known to, for [`Core::close`], or for the shutdown. `announce` is false: it has
    /// happened already.
    pub(super) fn wait(&self, announce: impl FnOnce(Token) -> bool) -> Result<(), Stopped> {
        let (worker, index) = worker::inside().expect("the receiver is a unithread");
        let waited = wait_stoppable(worker, index, |token| {
            self.waiter.store(token.into_raw(), SeqCst);
            if self.is_closing() || !announce(token) {
                self.handle.shared.complete(token, 0);
            }
        });
        self.waiter.store(0, SeqCst);
        waited
    }

    /// The receiver waits until fewer than `limit` are under way, for [`Core::close`], or for the shutdown.
    pub(super) fn wait_room(&self, limit: u32) -> Result<(), Stopped> {
        self.wants_room.store(true, SeqCst);
        let waited = self.wait(|_| self.under_way() >= limit);
        self.wants_room.store(false, SeqCst);
        waited
    }

    /// The receiver, which receives no more, waits until nothing is under way. A shutdown does not end this: it ends what is under way.
    pub(super) fn wait_empty(&self) {
        let (worker, index) = worker::inside().expect("the receiver is a unithread");
        // It may be the runtime that ends: the last one is to wake this one all the same.
        self.closing.store(true, SeqCst);
        while self.under_way() != 0 {
            let token = worker.shared.pool.unit(index).wait.arm(index);
            self.waiter.store(token.into_raw(), SeqCst);
            if self.under_way() != 0 {
                worker.wait(index, token, WaitMode::Yield);
            }
        }
        self.waiter.store(0, SeqCst);
    }
}

/// One connection or one datagram that is served, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Core>);

impl UnderWay {
    /// One more, for the receiver alone. `None`: there are `limit`.
    pub(super) fn enter(core: &Arc<Core>, limit: u32) -> Option<UnderWay> {
        // The receiver alone adds, so there cannot be more than it has seen.
        (core.under_way() < limit).then(|| {
            core.under_way.fetch_add(1, SeqCst);
            UnderWay(core.clone())
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // A wake for nothing does no harm, but costs.
        let was_last = self.0.under_way.fetch_sub(1, SeqCst) == 1;
        if (was_last && self.0.is_closing()) || self.0.wants_room.load(SeqCst) {
            self.0.wake();
        }
    }
}
