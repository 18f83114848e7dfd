//! Which address of a stub stands for which of the text that it was taken from. What the program sees of its own instruction pointer is as if there were no jumps: cancellation in
//! glibc since 2.41 looks whether it lies at a certain `syscall`.

use super::super::entry::asleep;
use super::super::stubs::{self, STUB_HEAD, STUB_SIZE};
use core::sync::atomic::{AtomicPtr, Ordering};
use farshore_sites::{JUMP_LENGTH, SYSCALL, Window};
use std::ops::Range;

/// A site with a jump over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Patched {
    window: Range<u64>,
    site: u64,
    stub: u64,
    /// How many pieces in which calls are made natively are behind the stub.
    pieces: usize,
}

/// Bytes of a stub's way into the entry: `lea` and `jmp`.
pub(super) const WAY_IN: u64 = 7 + JUMP_LENGTH as u64;

impl Patched {
    pub(super) fn new(window: &Window, stub: u64, pieces: usize) -> Patched {
        Patched { window: window.range.clone(), site: window.site, stub, pieces }
    }

    /// How far from the stub's beginning an address in the pieces behind it is.
    pub(in super::super) fn behind_stub(&self, at: u64) -> Option<u64> {
        let distance = at.wrapping_sub(self.stub);
        (STUB_SIZE as u64..((1 + self.pieces) * STUB_SIZE) as u64).contains(&distance).then_some(distance)
    }

    /// The address of the original `syscall`.
    pub(in super::super) fn itself(&self) -> u64 {
        self.site - SYSCALL.len() as u64
    }

    /// The stub's code, to which the jump leads.
    pub(super) fn code(&self) -> u64 {
        self.stub + STUB_HEAD as u64
    }

    /// Where the stub stands for the `syscall`: its way into the entry.
    pub(super) fn call(&self) -> u64 {
        self.code() + (self.itself() - self.window.start)
    }

    /// Where the program goes on behind the call.
    pub(super) fn resume(&self) -> u64 {
        if self.site < self.window.end { self.call() + WAY_IN } else { self.window.end }
    }

    /// Whether an address of the stub is behind the first instruction of its way into the entry.
    pub(in super::super) fn is_way_in(&self, at: u64) -> bool {
        self.call() < at && at < self.call() + WAY_IN
    }

    /// What stands for the address `at` of the stub, in the text that it was taken from.
    pub(in super::super) fn to_program(&self, at: u64) -> u64 {
        if let Some(distance) = self.behind_stub(at) {
            if asleep::made_at(distance).0 { self.itself() } else { self.site }
        } else if at <= self.call() {
            self.window.start + at.saturating_sub(self.code())
        } else if at < self.call() + WAY_IN {
            self.itself()
        } else {
            (self.site + (at - self.resume())).min(self.window.end)
        }
    }

    /// Where `at`, inside of the window, is in the stub.
    pub(super) fn to_stub(&self, at: u64) -> u64 {
        if at < self.site {
            self.code() + (at - self.window.start).min(self.call() - self.code())
        } else {
            self.resume() + (at - self.site)
        }
    }
}

/// All sites, in the order of their stubs, and in that of their windows. Made anew when more come; readers may be signal handlers.
#[derive(Debug, Default)]
struct Sites {
    by_stub: Vec<Patched>,
    by_window: Vec<Patched>,
}

static SITES: AtomicPtr<Sites> = AtomicPtr::new(core::ptr::null_mut());

fn sites() -> Option<&'static Sites> {
    // SAFETY: null, or what `remember` has leaked.
    unsafe { SITES.load(Ordering::Acquire).as_ref() }
}

pub(super) fn remember(more: Vec<Patched>) {
    let mut by_stub = sites().map_or_else(Vec::new, |sites| sites.by_stub.clone());
    by_stub.extend(more);
    by_stub.sort_unstable_by_key(|patched| patched.stub);
    let mut by_window = by_stub.clone();
    by_window.sort_unstable_by_key(|patched| patched.window.start);
    SITES.store(Box::into_raw(Box::new(Sites { by_stub, by_window })), Ordering::Release);
}

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Patched> {
    sites().into_iter().flat_map(|sites| &sites.by_stub)
}

/// The site whose stub an address lies in, or the pieces behind it.
pub(in super::super) fn of_stub(at: u64) -> Option<&'static Patched> {
    let (stub, sites) = (stubs::around(at)?, sites()?);
    let patched = &sites.by_stub[sites.by_stub.partition_point(|patched| patched.stub <= stub).checked_sub(1)?];
    (patched.stub == stub || patched.behind_stub(at).is_some()).then_some(patched)
}

/// Where to go on for an address that a jump lies over; `None`: none does.
pub fn to_stub(at: u64) -> Option<u64> {
    let sites = &sites()?.by_window;
    let patched = &sites[sites.partition_point(|patched| patched.window.start <= at).checked_sub(1)?];
    (patched.window.start < at && at < patched.window.end).then(|| patched.to_stub(at))
}

/// Where a call is made again that a stub has made: the stub's way in. `None`: the `syscall` is where it was.
pub fn call_in_stub(site: u64) -> Option<u64> {
    let sites = &sites()?.by_window;
    let patched = &sites[sites.partition_point(|patched| patched.window.start < site).checked_sub(1)?];
    (patched.site == site).then(|| patched.call())
}
