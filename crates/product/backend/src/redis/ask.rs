//! A request, until a server has done it.
//!
//! ```text
//!            ┌─ MOVED: the table learns it ─┐   ┌─ ASK: once, after ASKING ─┐
//! the owner ─┴──────────▶ another ◀─────────┴───┘                           │
//!   │  ▲                     └──────────────────────────────────────────────┘
//!   │  └── not now, or the connection is lost: after a pause, of whoever has the hash slot then
//!   └──▶ done, or failed, or nobody has answered for too long
//! ```
//!
//! A request here may be made twice, or late: reads, renewals, and removals of names that nobody uses any more ([`super::fields`]).

use super::Shared;
use super::talk::Talk;
use super::wire::{Head, Refusal};
use crate::nbd::give_up_ns;
use crate::sleep;
use core::sync::atomic::Ordering;
use farshore_core::seams::IoError;
use farshore_sys::fd::Fd;
use farshore_sys::raw::getpid;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;

/// A server that is silent for so long is left, in ns: one that has nobody in its place; and one of a Cluster, which another server replaces.
const SILENCE_NS: u64 = 30_000_000_000;
const SILENCE_OF_MANY_NS: u64 = 5_000_000_000;
/// Until requests can be sent, in ns.
const CONNECT_NS: u64 = 5_000_000_000;
/// How long a server may take to say who has which hash slots, and how often that is asked, in ns.
const LEARN_NS: u64 = 1_000_000_000;
const LEARN_PAUSE_NS: u64 = 100_000_000;
/// Between two tries, in ns; the first ones are made at once.
const PAUSE_NS: u64 = 10_000_000;
pub(super) const AT_ONCE: u32 = 4;
/// One server that is in no Cluster sends us to another: whose that is, and whether it should know a password, nobody can tell.
pub(super) const ASTRAY: IoError = IoError::Device(Errno::PROTO.raw_os_error());

/// What a server has made of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Done,
    /// Nothing was done.
    Refused(Refusal),
    Failed(Errno),
}

/// How long a request is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    ns: u64,
    /// Not again when it was sent, and nobody knows what has become of it.
    once: bool,
}

impl Patience {
    /// As long as there is hope.
    pub(super) fn long() -> Patience {
        Patience { ns: give_up_ns(), once: false }
    }

    /// Also of a server that is away: who asks has other servers to ask.
    pub(super) fn once(ns: u64) -> Patience {
        Patience { once: true, ..Patience::within(ns) }
    }

    pub(super) fn within(ns: u64) -> Patience {
        Patience { ns: ns.min(give_up_ns()), once: false }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lost {
    pub(super) errno: Errno,
    /// The server may have the request.
    pub(super) sent: bool,
}

/// Takes the answer.
pub(super) type Take<'t> = dyn FnMut(&mut Talk<'_>) -> Result<Verdict, Errno> + 't;

impl Shared {
    /// A server that is silent for so long is left, in ns.
    pub(super) fn silence_ns(&self) -> u64 {
        give_up_ns().min(if self.is_cluster { SILENCE_OF_MANY_NS } else { SILENCE_NS })
    }

    /// A connection to a server, which knows who we are.
    pub(super) fn connect(&self, node: u8) -> Result<Fd, Errno> {
        let until = sleep::now_ns() + CONNECT_NS.min(give_up_ns());
        let socket = self.nodes.reach(node, until)?;
        if let Some(login) = &self.login {
            let mut talk = Talk::new(socket.as_fd(), until);
            talk.say(login.request())?;
            match talk.head()? {
                Head::Simple => {}
                Head::Error(Refusal::Later) => return Err(Errno::AGAIN),
                _ => return Err(Errno::ACCESS),
            }
        }
        Ok(socket)
    }

    /// Whether this is another process on our memory (`vfork`): its table of descriptors is a copy.
    fn is_guest(&self) -> bool {
        getpid() != self.process.load(Ordering::Relaxed)
    }

    /// Does `say` over a connection to `node` that this thread has for itself.
    pub(super) fn over<R>(&self, node: u8, until: u64, say: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>) -> Result<R, Lost> {
        let unsent = |errno| Lost { errno, sent: false };
        let sent = |errno| Lost { errno, sent: true };
        if self.is_guest() {
            // What it would put under a seat's number the threads of this process would not have.
            let socket = self.connect(node).map_err(unsent)?;
            return say(socket.as_fd()).map_err(sent);
        }
        let seat = self.seats.take(node, until).ok_or(unsent(Errno::TIMEDOUT))?;
        if seat.leads_to(node).is_none() {
            self.connect(node).and_then(|socket| seat.lead(socket, node)).map_err(unsent)?;
        }
        let socket = seat.leads_to(node).ok_or(unsent(Errno::BADF))?;
        let said = say(socket);
        if said.is_err() {
            seat.lose();
        }
        said.map_err(sent)
    }

    /// Asks one server, once.
    fn ask_one(&self, node: u8, asking: bool, request: &[u8], until: u64, take: &mut Take<'_>) -> Result<Verdict, Lost> {
        self.over(node, until, |socket| {
            let mut talk = Talk::new(socket, until);
            if asking {
                talk.say(b"*1\r\n$6\r\nASKING\r\n")?;
            }
            talk.say(request)?;
            if asking && !matches!(talk.head()?, Head::Simple) {
                return Err(Errno::PROTO);
            }
            let verdict = take(&mut talk)?;
            if talk.is_over() { Ok(verdict) } else { Err(Errno::PROTO) }
        })
    }

    /// Asks whoever has the hash slot.
    ///
    /// # Errors
    /// The server's, or that none has answered for too long.
    pub(super) fn ask(&self, hash_slot: u16, request: &[u8], patience: Patience, take: &mut Take<'_>) -> Result<(), IoError> {
        let since = sleep::now_ns();
        let mut sent_to = None;
        for turn in 0_u32.. {
            let (node, asking) = match sent_to.take() {
                Some((node, asking)) => (Some(node), asking),
                None => (self.nodes.owner(hash_slot), false),
            };
            let mut why = Errno::HOSTUNREACH;
            let mut down_ns = since;
            if let Some(node) = node {
                let until = sleep::now_ns() + self.silence_ns().min(patience.ns);
                match self.ask_one(node, asking, request, until, take) {
                    Ok(Verdict::Done) => {
                        self.nodes.note_up(node);
                        return Ok(());
                    }
                    Ok(Verdict::Failed(errno)) => {
                        // Has it the page no more, or the hash slot? The caller asks again.
                        self.refresh();
                        return Err(IoError::Device(errno.raw_os_error()));
                    }
                    Ok(Verdict::Refused(Refusal::Never(errno))) => return Err(IoError::Device(errno.raw_os_error())),
                    Ok(Verdict::Refused(Refusal::Full)) => return Err(IoError::Full),
                    Ok(Verdict::Refused(Refusal::Moved(..) | Refusal::Ask(_))) if !self.is_cluster => return Err(ASTRAY),
                    Ok(Verdict::Refused(Refusal::Moved(hash_slot, at))) => {
                        self.nodes.note_up(node);
                        if let Some(to) = self.nodes.at(at, node) {
                            self.nodes.set_owner(hash_slot, to);
                        }
                        why = Errno::LOOP;
                    }
                    Ok(Verdict::Refused(Refusal::Ask(at))) => {
                        self.nodes.note_up(node);
                        sent_to = self.nodes.at(at, node).map(|to| (to, true));
                        why = Errno::LOOP;
                    }
                    Ok(Verdict::Refused(Refusal::Later)) => {
                        down_ns = self.nodes.note_down(node);
                        why = Errno::AGAIN;
                    }
                    Err(lost) if lost.sent && patience.once => return Err(IoError::Device(lost.errno.raw_os_error())),
                    Err(lost) => {
                        down_ns = self.nodes.note_down(node);
                        why = lost.errno;
                    }
                }
            }
            let now = sleep::now_ns();
            // A server that has been away for long is not waited for by each thread anew. (A connection may be lost that was made before that, so not at once.)
            let is_gone = turn > 0 && now.saturating_sub(down_ns) >= give_up_ns();
            if is_gone || now.saturating_sub(since) >= patience.ns {
                return Err(IoError::Device(if why == Errno::ACCESS { why } else { Errno::TIMEDOUT }.raw_os_error()));
            }
            if why != Errno::LOOP {
                self.refresh();
            }
            if turn >= AT_ONCE || why == Errno::AGAIN {
                sleep::nap(PAUSE_NS);
            }
        }
        unreachable!("the loop has no end of its own")
    }

    /// Asks some server of the Cluster who has which hash slots, unless that was asked just now, or another thread does. (Not a guest: whoever ends it would
    /// leave the word that others wait for.)
    pub(super) fn refresh(&self) {
        if !self.is_cluster || self.is_guest() || self.refreshing.swap(true, Ordering::Acquire) {
            return;
        }
        if sleep::now_ns() >= self.refresh_ns.load(Ordering::Relaxed) {
            let count = self.nodes.count();
            // Another one each time: one that knows less than the others would be believed for ever.
            let first = self.refreshed.fetch_add(1, Ordering::Relaxed) % u32::from(count);
            let all = || (0..u32::from(count)).map(|n| ((first + n) % u32::from(count)) as u8);
            let learn = |node: u8| {
                let until = sleep::now_ns() + LEARN_NS;
                self.over(node, until, |socket| self.nodes.learn(&mut Talk::new(socket, until), node)).is_ok()
            };
            // Those first that have answered.
            let _ = all().filter(|&node| !self.nodes.is_down(node)).any(learn)
                || all().filter(|&node| self.nodes.is_down(node)).any(learn);
            self.refresh_ns.store(sleep::now_ns() + LEARN_PAUSE_NS, Ordering::Relaxed);
        }
        self.refreshing.store(false, Ordering::Release);
    }
}
