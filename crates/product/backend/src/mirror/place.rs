//! A place for a copy: what is there, whether it answers, what it lacks.
//!
//! # Copies come and go
//!
//! ```text
//!            ┌─ opened ─▶ OPEN ── it goes ──▶ GOING ── no page is in it alone ──▶ GONE ── nobody uses it, closed ──▶ EMPTY
//!   EMPTY ──▶│             ▲  ▲                 │                                   │
//!            └─ AWAY ──────┘  └── a page is ────┘                                   │
//!                                └───────────────── called off ─────────────────────┘
//! ```
//!
//! A copy that is GOING takes no write that begins from then on. One that is GONE is read by nobody who begins from then on. Whoever uses what is there holds the
//! place's lock for reading ([`Copy::held`]), which is taken without waiting; the one thread that empties a place tries for the lock now and then, until it has it.
//! The one thread that keeps the space makes all changes. It takes the lock for writing while nobody can fork: a child would find it taken for ever.

use super::hedge::Late;
use super::site::Site;
use super::{LOCK_NAP_NS, PAUSE_MAX_NS, PAUSE_NS, SMOOTH, STREAK, is_lost, locked};
use crate::any::AnyBackend;
use crate::sleep;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use farshore_config::SwapSpec;
use farshore_core::limits::EXTENT_SLOTS;
use farshore_core::seams::{IoError, Spaces};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::fstat;
use std::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

pub(super) const EMPTY: u8 = 0;
pub(super) const AWAY: u8 = 1;
pub(super) const OPEN: u8 = 2;
pub(super) const GOING: u8 = 3;
pub(super) const GONE: u8 = 4;

/// What is at a place.
#[derive(Debug)]
pub(super) struct Held {
    spec: SwapSpec,
    /// Names are told from anywhere and at any time, so that of a copy which has gone stays: some bytes for each that ever came.
    name: &'static str,
    /// Where it is, if that is a place of this machine.
    site: Option<Site>,
    /// `None`: it could not be opened yet.
    space: Option<AnyBackend>,
}

/// A copy's space, which stays open as long as this is there.
#[derive(Debug)]
pub struct Opened<'c>(RwLockReadGuard<'c, Option<Held>>);

impl Deref for Opened<'_> {
    type Target = AnyBackend;

    fn deref(&self) -> &AnyBackend {
        match self.0.as_ref().and_then(|held| held.space.as_ref()) {
            Some(space) => space,
            None => unreachable!("a copy was closed while it was held"),
        }
    }
}

/// Files that are just being closed, while the process may fork: a child closes its own. Changed while it cannot.
#[derive(Debug, Default)]
pub(super) struct Closing(Mutex<Vec<(RawFd, u64, u64)>>);

/// Which file a descriptor is of.
fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: asks about a number, whatever it is by now.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

impl Closing {
    pub(super) fn note(&self, fds: impl Iterator<Item = RawFd>) {
        let named = fds.filter_map(|fd| identity(fd).map(|(dev, ino)| (fd, dev, ino)));
        locked(&self.0).extend(named);
    }

    pub(super) fn forget(&self) {
        locked(&self.0).clear();
    }

    /// In a forked child. The number may be another file's by now, which is left alone.
    pub(super) fn close(&self) {
        for (fd, ..) in locked(&self.0).drain(..).filter(|&(fd, dev, ino)| identity(fd) == Some((dev, ino))) {
            // SAFETY: the child's copy of a descriptor of its parent's, which nobody uses.
            unsafe { rustix::io::close(fd) };
        }
    }
}

/// Whether a place was emptied.
#[derive(Debug)]
pub(super) enum Taken {
    /// What was there.
    Yes(Option<AnyBackend>),
    /// Somebody uses it.
    Used,
    /// Somebody may read by its descriptor still.
    Lent,
}

/// A place.
#[derive(Debug)]
pub(super) struct Copy {
    held: RwLock<Option<Held>>,
    state: AtomicU8,
    /// It may be started again without what it had, so it has a stamp.
    remote: AtomicBool,
    down: AtomicBool,
    streak: AtomicU32,
    /// What a read takes of late, ns; 0: not known.
    pub(super) read_ns: AtomicU64,
    pub(super) late: Late,
    /// Reads of it that were late and sent to another copy too, and those of them that the other one answered first.
    pub(super) hedged: AtomicU64,
    pub(super) hedged_won: AtomicU64,
    /// Slots that have a page which it does not have.
    stale: AtomicU64,
    /// How many times it has lost what it had, or was taken away. A write that began before counts for nothing.
    pub(super) life: AtomicU32,
    /// A write for its repair does not end. Nothing else is written to it until it does: it could come later.
    pub(super) stuck: AtomicBool,
    /// Somebody reads by its descriptor in a way of his own, or has, and nobody knows when that ends. Until somebody does, it is not closed.
    lent: AtomicBool,
    /// It has come while the program ran, and did not have all pages yet.
    pub(super) filling: AtomicBool,
    /// So many pages it did not have when it came.
    pub(super) lacked: AtomicU64,
    /// Since when it has had no room for what was to be copied to it, ns; 0: it has room.
    full_ns: AtomicU64,
    /// When it is asked next, how long the pause before that was, and since when it is up, ns.
    pub(super) due_ns: AtomicU64,
    pub(super) pause_ns: AtomicU64,
    rose_ns: AtomicU64,
    /// It was whole when somebody was told last; and it was down.
    pub(super) told_whole: AtomicBool,
    pub(super) told_down: AtomicBool,
    pub(super) told_full: AtomicBool,
    /// It has lost what it had, and nobody was told.
    pub(super) replaced: AtomicBool,
}

impl Copy {
    /// A place without a copy.
    pub(super) fn empty() -> Copy {
        Copy {
            held: RwLock::new(None),
            state: AtomicU8::new(EMPTY),
            remote: AtomicBool::new(false),
            down: AtomicBool::new(true),
            streak: AtomicU32::new(0),
            read_ns: AtomicU64::new(0),
            late: Late::default(),
            hedged: AtomicU64::new(0),
            hedged_won: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            life: AtomicU32::new(0),
            stuck: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            filling: AtomicBool::new(false),
            lacked: AtomicU64::new(0),
            full_ns: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
            rose_ns: AtomicU64::new(0),
            told_whole: AtomicBool::new(true),
            told_down: AtomicBool::new(false),
            told_full: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
        }
    }

    /// A copy is to be here. It is away until [`Copy::put`].
    pub(super) fn expect(&self, spec: &SwapSpec, site: Option<Site>) {
        let held = Held { spec: spec.clone(), name: spec.to_string().leak(), site, space: None };
        self.remote.store(spec.is_remote(), Ordering::Relaxed);
        *self.changed() = Some(held);
        self.state.store(AWAY, Ordering::SeqCst);
    }

    /// What was expected here is open: it is read and written from now on, once it is up.
    pub(super) fn put(&self, space: AnyBackend) {
        if let Some(held) = self.changed().as_mut() {
            held.space = Some(space);
        }
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// Where it is. While nobody can fork.
    pub(super) fn found_at(&self, site: Option<Site>) {
        if let Some(held) = self.changed().as_mut() {
            held.site = site;
        }
    }

    /// Whether it is at this place.
    pub(super) fn is_at(&self, site: Option<&Site>) -> bool {
        site.is_some() && self.looked().as_ref().is_some_and(|held| held.site.as_ref() == site)
    }

    /// The lock for changes, where nobody uses what is there but for its name.
    fn changed(&self) -> RwLockWriteGuard<'_, Option<Held>> {
        loop {
            match self.held.try_write() {
                Ok(held) => return held,
                Err(TryLockError::Poisoned(held)) => return held.into_inner(),
                // Nobody sleeps in the lock: that would go through libc, and keep readers out.
                Err(TryLockError::WouldBlock) => sleep::nap(LOCK_NAP_NS),
            }
        }
    }

    /// Changes the state. By the one thread that may.
    pub(super) fn set_state(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }

    /// Somebody who holds it reads by its descriptor, and will hold it no more before he has.
    pub(super) fn lend(&self) {
        if !self.lent.load(Ordering::Relaxed) {
            self.lent.store(true, Ordering::Relaxed);
        }
    }

    /// All who have read by its descriptor have ended, and nobody begins to, since it is GONE.
    pub(super) fn give_back(&self) {
        self.lent.store(false, Ordering::Relaxed);
    }

    /// Empties the place, if nobody uses it. What was there is for the caller to close. All that was noted of it is forgotten, but for the slots that are stale: those
    /// of a place without a copy are.
    pub(super) fn take(&self) -> Taken {
        let Ok(mut place) = self.held.try_write() else { return Taken::Used };
        // The lock shows what was lent under it.
        if self.lent.load(Ordering::Relaxed) {
            return Taken::Lent;
        }
        let none = Copy::empty();
        self.down.store(true, Ordering::Release);
        self.state.store(EMPTY, Ordering::SeqCst);
        let held = place.take();
        drop(place);
        let numbers = [
            (&self.read_ns, &none.read_ns),
            (&self.hedged, &none.hedged),
            (&self.hedged_won, &none.hedged_won),
            (&self.due_ns, &none.due_ns),
            (&self.pause_ns, &none.pause_ns),
            (&self.rose_ns, &none.rose_ns),
            (&self.lacked, &none.lacked),
            (&self.full_ns, &none.full_ns),
        ];
        numbers.iter().for_each(|(here, none)| here.store(none.load(Ordering::Relaxed), Ordering::Relaxed));
        let marks = [
            (&self.remote, &none.remote),
            (&self.stuck, &none.stuck),
            (&self.filling, &none.filling),
            (&self.told_whole, &none.told_whole),
            (&self.told_down, &none.told_down),
            (&self.told_full, &none.told_full),
            (&self.replaced, &none.replaced),
        ];
        marks.iter().for_each(|(here, none)| here.store(none.load(Ordering::Relaxed), Ordering::Relaxed));
        self.streak.store(0, Ordering::Relaxed);
        self.late.forget();
        Taken::Yes(held.and_then(|held| held.space))
    }

    /// What was to be copied to it has found no room.
    pub(super) fn found_no_room(&self) {
        if self.full_ns.load(Ordering::Relaxed) == 0 {
            self.full_ns.store(sleep::now_ns().max(1), Ordering::Relaxed);
        }
    }

    /// Some of it has.
    pub(super) fn found_room(&self) {
        if self.full_ns.load(Ordering::Relaxed) != 0 {
            self.full_ns.store(0, Ordering::Relaxed);
        }
    }

    /// For how many ns it has had no room for what it lacks; 0: it has room, or lacks nothing.
    pub(super) fn full_for_ns(&self) -> u64 {
        match self.full_ns.load(Ordering::Relaxed) {
            0 => 0,
            _ if self.behind() == 0 => 0,
            since => sleep::now_ns().saturating_sub(since).max(1),
        }
    }

    /// Its space, if it may be read and written.
    pub(super) fn held(&self) -> Option<Opened<'_>> {
        if self.is_readable() { self.opened() } else { None }
    }

    /// Its space, as long as it is open.
    pub(super) fn opened(&self) -> Option<Opened<'_>> {
        // Whoever has the lock for writing makes it another copy's place. Nobody has a page there.
        let held = self.held.try_read().ok()?;
        held.as_ref().is_some_and(|held| held.space.is_some()).then_some(Opened(held))
    }

    /// From what it is made, if a copy is here.
    pub(super) fn spec(&self) -> Option<SwapSpec> {
        self.looked().as_ref().map(|held| held.spec.clone())
    }

    /// What is here, for a thread that may wait: another one has the lock for a moment at most.
    fn looked(&self) -> RwLockReadGuard<'_, Option<Held>> {
        loop {
            match self.held.try_read() {
                Ok(held) => return held,
                Err(TryLockError::Poisoned(held)) => return held.into_inner(),
                Err(TryLockError::WouldBlock) => sleep::nap(LOCK_NAP_NS),
            }
        }
    }

    /// Its name; nothing where no copy is.
    pub(super) fn name(&self) -> &'static str {
        self.looked().as_ref().map_or("", |held| held.name)
    }

    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::SeqCst)
    }

    pub(super) fn is_remote(&self) -> bool {
        self.remote.load(Ordering::Relaxed)
    }

    /// The slots that it has for pages: those of a remote one but for the extent of its stamp.
    pub(super) fn room(space: &AnyBackend, remote: bool) -> Option<u64> {
        let stamp = if remote { EXTENT_SLOTS as u64 } else { 0 };
        space.capacity().map(|slots| slots.saturating_sub(stamp))
    }

    pub(super) fn is_readable(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), OPEN | GOING)
    }

    pub(super) fn is_there(&self) -> bool {
        self.state() != EMPTY
    }

    /// It was taken away, and is not closed yet.
    pub(super) fn is_leaving(&self) -> bool {
        self.state() == GONE
    }

    /// Whether new writes go there too, if it is up.
    pub(super) fn takes_writes(&self) -> bool {
        self.state() == OPEN
    }

    pub(super) fn is_up(&self) -> bool {
        !self.down.load(Ordering::Acquire) && self.is_readable()
    }

    /// It has answered.
    pub(super) fn works(&self) {
        if self.streak.load(Ordering::Relaxed) != 0 {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// It has not done what it was asked to.
    pub(super) fn failed(&self, why: IoError) {
        if why == IoError::Full {
            return;
        }
        if is_lost(why) || self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= STREAK {
            self.fall();
        }
    }

    /// It is down from now on: for longer each time, until it has been up for a while.
    pub(super) fn fall(&self) {
        let now = sleep::now_ns();
        if !self.down.swap(true, Ordering::AcqRel) {
            let lasted = now.saturating_sub(self.rose_ns.load(Ordering::Relaxed)) > PAUSE_MAX_NS;
            self.wait(now, if lasted { PAUSE_NS } else { 2 * self.pause_ns.load(Ordering::Relaxed) });
        }
    }

    /// It is asked again after this pause.
    pub(super) fn wait(&self, now: u64, pause: u64) {
        let pause = pause.clamp(PAUSE_NS, PAUSE_MAX_NS);
        self.pause_ns.store(pause, Ordering::Relaxed);
        self.due_ns.store(now + pause, Ordering::Relaxed);
    }

    /// It is up.
    pub(super) fn rise(&self, now: u64) {
        self.works();
        if self.down.load(Ordering::Acquire) {
            self.rose_ns.store(now, Ordering::Relaxed);
            self.down.store(false, Ordering::Release);
        }
    }

    /// A read of so many pages would have taken more than that: it was left.
    pub(super) fn took_more(&self, pages: usize, ns: u64) {
        self.late.took_more(pages, ns);
        if ns > self.read_ns.load(Ordering::Relaxed) {
            self.note_read(ns);
        }
    }

    /// A read of so many pages has taken so long.
    pub(super) fn took(&self, pages: usize, ns: u64) {
        self.late.took(pages, ns);
        self.note_read(ns);
    }

    fn note_read(&self, ns: u64) {
        let before = self.read_ns.load(Ordering::Relaxed);
        let now = if before == 0 { ns } else { before - before / SMOOTH + ns / SMOOTH };
        self.read_ns.store(now.max(1), Ordering::Relaxed);
    }

    /// Slots whose pages it does not have. (Two threads may count one in either order.)
    pub(super) fn behind(&self) -> u64 {
        self.stale.load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// So many more slots are stale; or fewer.
    pub(super) fn turned(&self, more: i64) {
        self.stale.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
    }
}
