//! Keys of a Redis or Valkey server, or of a Cluster of them, as swap space: `redis://HOST:PORT`, `redis+unix:///PATH`.
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | the protocol's bytes, and what pages are called |
//! | [`talk`] | a request and its reply |
//! | [`nodes`] | the servers that are known, and which hash slots they have |
//! | [`seats`] | connections that faults read over, each by one thread at a time |
//! | [`ask`] | a request, until a server has done it: wherever it is sent, whatever is lost |
//! | [`fields`] | the name of a slot's page; what a lost connection leaves behind |
//! | [`queue`] | the connections that one evictor writes over |
//! | [`check`] | whether a server can be used |
//!
//! # What is promised
//!
//! - A write has ended when the master has acknowledged it, and a replica too where the Cluster has one (`WAIT 1`), or has said for some seconds that it has none. So a master that is lost takes no page with
//!   it. A Cluster that says that a master has no replica left is believed, and its pages are on that master alone.
//! - What a lost connection has left open is asked again, of whoever is the master then, for two minutes ([`crate::nbd::set_patience`]). Then reads fail,
//!   each by itself, and writes leave their pages in memory.
//! - A page that is missing, or has another length, is an error of that page. One that was changed, exchanged or put back from before the engine's sums
//!   tell. Pages are encrypted, as those on any server ([`encrypt`](crate::encrypt)).
//! - Whatever happens to its programs, a server has its memory back: each key ends an hour (`expire=`) after the last that was heard of its program. A
//!   thread renews them four times in that time ([`Spaces::keep`]), also while the program sleeps.
//! - The requests of a thread in a fault take no lock, allocate nothing and call no libc.
//!
//! # Many programs at a server
//!
//! Each layer (a process' own space, and the part of it that its forked children read) has a random number in the names of its keys. So nothing is claimed,
//! programs need not know of each other, and what is said of a layer that has ended changes nothing.

mod ask;
mod check;
mod fields;
mod nodes;
mod queue;
mod seats;
mod talk;
mod wire;

pub use queue::RedisQueue;

use crate::error::OpenError;
use crate::fd::FdList;
use crate::ram::machine_bytes;
use crate::reserved;
use crate::sleep;
use crate::socket;
use ask::{Patience, Verdict};
use check::Login;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use farshore_config::{RedisKeys, Size, SwapSpec};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{Backend, FreeSlots, IoError, MemoryBudget, PageBuf, Reads, Spaces};
use farshore_core::word::Slot;
use farshore_sys::raw::getpid;
use fields::Fields;
use nodes::Nodes;
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::ClockId;
use rustix::time::clock_gettime;
use seats::Seats;
use std::sync::Arc;
use talk::Talk;
use wire::{FIELD, Head, KEY, Out, decimal};

/// Pages of the longest read: a request of 1.3 KiB, on the stack.
const READ_MAX: usize = 64;
/// Bytes of the request for so many pages.
const REQUEST_MAX: usize = 128 + READ_MAX * (FIELD + 8);
/// Bytes of the longest value that is passed over where a page belongs.
const VALUE_MAX: usize = 1 << 20;
/// Seats, of one server; of a Cluster; and of one with many masters.
const SEATS: usize = 8;
const SEATS_OF_MANY: usize = 16;
const SEATS_MAX: usize = 32;
/// Masters that are no longer few.
const FEW: usize = 4;
/// Descriptors of all queues.
const SOCKETS_MAX: usize = 256;
/// Where no size is given, so much room is counted on at least, in bytes; and so many times the machine's RAM.
const ROOM_MIN: u64 = 64 << 30;
const ROOM_TIMES: u64 = 4;
/// Keys are renewed so many times before they would end.
const RENEWALS: u64 = 4;
/// Keys that are renewed at a time, and with one round trip: a fork waits for that. Until the next ones, in ns; until the next look, at most.
const RENEWED_AT_ONCE: usize = 256;
const RENEWED_TOGETHER: usize = u32::BITS as usize;
const RENEW_PAUSE_NS: u64 = 10_000_000;
const KEEP_NS: u64 = 20_000_000_000;
/// How long a renewal or a removal that fails is tried, in ns, and until the next pass over all keys when one has failed. There is another one.
const RENEW_NS: u64 = 1_000_000_000;

/// What a space and its queues share.
#[derive(Debug)]
struct Shared {
    nodes: Nodes,
    seats: Seats,
    fields: Fields,
    /// Who we are, if the server wants to know.
    login: Option<Login>,
    /// The layer's number.
    run: u64,
    is_cluster: bool,
    /// How long a key stays, in s.
    expire_s: u64,
    /// The sockets of queues.
    sockets: FdList<SOCKETS_MAX>,
    /// A thread asks who has which hash slots.
    refreshing: AtomicBool,
    /// When that may be asked again, and how often it was.
    refresh_ns: AtomicU64,
    refreshed: AtomicU32,
    /// The process whose descriptors the seats have.
    process: AtomicU32,
}

/// A swap space on a Redis or Valkey server, or on a Cluster.
#[derive(Debug)]
pub struct RedisSpace {
    shared: Arc<Shared>,
    name: String,
    /// When all keys were renewed last, and the pass that is under way began, in ns since the machine's start.
    renewed_ns: AtomicU64,
    begun_ns: AtomicU64,
    /// The next extent of that pass; 0: there is none under way.
    renewing: AtomicU32,
    /// Some of its keys could not be renewed; servers that did not answer then, a bit each.
    missed: AtomicBool,
    silent: AtomicU64,
}

fn refuse(keys: &RedisKeys, why: impl Into<String>) -> OpenError {
    OpenError::Server { export: keys.to_string(), why: why.into() }
}

/// Now, in ns since the machine's start: goes on while it is suspended, as the servers' clocks do.
fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl RedisSpace {
    /// Connects to a server. Called at start-up, and by a forked child's thread that may wait.
    ///
    /// # Errors
    /// The server cannot be reached or used, or one of its Cluster.
    pub fn open(keys: &RedisKeys, notice: &mut dyn FnMut(&str)) -> Result<RedisSpace, OpenError> {
        let name = SwapSpec::Redis(keys.clone()).to_string();
        let seed = socket::place_of(&keys.server).map_err(|why| refuse(keys, why))?;
        let login = keys.password_file.as_deref().map(check::login).transpose().map_err(|why| refuse(keys, why))?;
        let wanted = keys.size.map_or_else(|| (machine_bytes() * ROOM_TIMES).max(ROOM_MIN), Size::bytes);
        let extent = (EXTENT_SLOTS * PAGE_SIZE) as u64;
        if wanted < 2 * extent {
            return Err(OpenError::TooSmall { what: name, bytes: wanted });
        }
        let fields =
            reserved::largest(wanted, keys.size.is_none(), |bytes| Fields::new((bytes / extent).min(u64::from(u32::MAX))))?;
        let no_descriptor = |errno: Errno| refuse(keys, format!("there is no descriptor for its connections ({errno})"));
        let mut run = [0; 8];
        getrandom(&mut run, GetRandomFlags::empty())
            .map_err(|errno| refuse(keys, format!("the kernel gives no random bytes ({errno})")))?;
        let mut shared = Shared {
            nodes: Nodes::new(seed),
            seats: Seats::new(SEATS).map_err(no_descriptor)?,
            fields,
            login,
            run: u64::from_ne_bytes(run),
            is_cluster: false,
            expire_s: keys.expire_s(),
            sockets: FdList::new(),
            refreshing: AtomicBool::new(false),
            refresh_ns: AtomicU64::new(0),
            refreshed: AtomicU32::new(0),
            process: AtomicU32::new(getpid()),
        };
        if let Some(masters) = check::check(&mut shared, notice).map_err(|why| refuse(keys, why))? {
            shared.seats = Seats::new(if masters <= FEW { SEATS_OF_MANY } else { SEATS_MAX }).map_err(no_descriptor)?;
        }
        // The clock finds the kernel's page for it at its first use: that should be now, and not in a signal handler.
        let now = boot_ns();
        Ok(RedisSpace {
            shared: Arc::new(shared),
            name,
            renewed_ns: AtomicU64::new(now),
            begun_ns: AtomicU64::new(now),
            renewing: AtomicU32::new(0),
            missed: AtomicBool::new(false),
            silent: AtomicU64::new(0),
        })
    }

    /// The descriptors of its connections.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        self.shared.seats.fds().chain(self.shared.sockets.iter())
    }

    /// The descriptors of its queues' connections, which are none of ours from now on.
    pub(crate) fn take_sockets(&self) -> Vec<RawFd> {
        self.shared.sockets.take()
    }

    /// In a forked child: the connections are the parent's, and the child makes its own when it reads. `shared`: the two have one table of descriptors,
    /// so none is closed.
    pub(crate) fn forked(&self, shared: bool) {
        self.shared.seats.forked(shared);
        self.shared.nodes.forked();
        self.shared.refreshing.store(false, Ordering::Relaxed);
        self.shared.process.store(getpid(), Ordering::Relaxed);
    }

    /// Reads pages of one extent, as many as one request asks for.
    fn read_part(&self, slot: u64, into: &mut [PageBuf]) -> Result<(), IoError> {
        let shared = &*self.shared;
        let extent = (slot / EXTENT_SLOTS as u64) as u32;
        if !shared.fields.is_used(extent) {
            return Err(IoError::Short);
        }
        let key = wire::key(shared.run, extent);
        let mut memory = [0; REQUEST_MAX];
        let mut request = Out::new(&mut memory);
        request.words(2 + into.len());
        request.word(b"HMGET");
        request.word(&key.name);
        (slot..).zip(&*into).for_each(|(slot, _)| request.word(&shared.fields.name(slot)));
        shared.ask(key.hash_slot, request.made(), Patience::long(), &mut |talk| pages(talk, into))
    }

    /// Removes the pages of slots of one extent, as many as one request names. Tried once: a removal that comes late would take later pages away.
    fn remove_part(&self, slot: u64, count: u32) -> Result<(), IoError> {
        let shared = &*self.shared;
        let key = wire::key(shared.run, (slot / EXTENT_SLOTS as u64) as u32);
        let mut memory = [0; REQUEST_MAX];
        let mut request = Out::new(&mut memory);
        request.words(2 + count as usize);
        request.word(b"HDEL");
        request.word(&key.name);
        (slot..slot + u64::from(count)).for_each(|slot| request.word(&shared.fields.name(slot)));
        let told = shared.ask(key.hash_slot, request.made(), Patience::once(RENEW_NS), &mut number);
        if told.is_err() {
            shared.fields.taint(slot, count);
        }
        told
    }

    /// Lets the key of an extent stay for its time again.
    fn renew(&self, extent: u32) -> Result<(), IoError> {
        let shared = &*self.shared;
        let key = wire::key(shared.run, extent);
        let (mut memory, mut text) = ([0; 128], [0; 20]);
        let mut request = Out::new(&mut memory);
        request.request(&[b"EXPIRE", &key.name, decimal(shared.expire_s, &mut text)]);
        shared.ask(key.hash_slot, request.made(), Patience::within(RENEW_NS), &mut number)
    }

    /// Lets the keys of these extents stay for their time again: those of one server with few round trips. Returns whether all are. A server that is away is
    /// not waited for by each of its keys: the others' would end meanwhile.
    fn renew_all(&self, extents: &[u32]) -> bool {
        let shared = &*self.shared;
        // As the table is now: a key that changes hands meanwhile would be passed over by both.
        let mut owners = [None; RENEWED_AT_ONCE];
        let owner = |&extent: &u32| shared.nodes.owner(wire::key(shared.run, extent).hash_slot);
        owners.iter_mut().zip(extents).for_each(|(place, extent)| *place = owner(extent));
        let owners = &owners[..extents.len()];
        let mut all = !owners.contains(&None);
        for node in 0..shared.nodes.count() {
            let mut of =
                extents.iter().zip(owners).filter(|(_, owner)| **owner == Some(node)).map(|(extent, _)| *extent).peekable();
            while of.peek().is_some() {
                if self.silent.load(Ordering::Relaxed) & 1 << node != 0 {
                    all = false;
                    break;
                }
                let mut some = [0; RENEWED_TOGETHER];
                let count = some.iter_mut().zip(&mut of).map(|(place, extent)| *place = extent).count();
                match self.renew_together(node, &some[..count]) {
                    // One that has moved, or is just moving: whoever has it is found.
                    Ok(refused) => {
                        for n in (0..count).filter(|n| refused & 1 << n != 0) {
                            all &= self.renew(some[n]).is_ok();
                        }
                    }
                    Err(_) => {
                        all = false;
                        shared.nodes.note_down(node);
                        self.silent.fetch_or(1 << node, Ordering::Relaxed);
                    }
                }
            }
        }
        all
    }

    /// The same for some keys that one server should have. Returns which of them it refused, a bit each.
    fn renew_together(&self, node: u8, extents: &[u32]) -> Result<u32, Errno> {
        let shared = &*self.shared;
        let (mut memory, mut text) = ([0; RENEWED_TOGETHER * (KEY + 64)], [0; 20]);
        let mut request = Out::new(&mut memory);
        let seconds = decimal(shared.expire_s, &mut text);
        for &extent in extents {
            request.request(&[b"EXPIRE", &wire::key(shared.run, extent).name, seconds]);
        }
        let until = sleep::now_ns() + RENEW_NS;
        let told = shared.over(node, until, |socket| {
            let mut talk = Talk::new(socket, until);
            talk.say(request.made())?;
            let mut refused = 0;
            for n in 0..extents.len() {
                match talk.head()? {
                    Head::Number(_) => {}
                    Head::Error(_) => refused |= 1 << n,
                    _ => return Err(Errno::PROTO),
                }
            }
            if talk.is_over() { Ok(refused) } else { Err(Errno::PROTO) }
        });
        told.map_err(|lost| lost.errno)
    }

    /// Renews some of the keys, if it is time. Returns when there is more to do, in ns.
    fn renew_some(&self) -> u64 {
        let part_ns = self.shared.expire_s * 1_000_000_000 / RENEWALS;
        let now = boot_ns();
        let mut extent = self.renewing.load(Ordering::Relaxed);
        if extent == 0 {
            let age = now.saturating_sub(self.renewed_ns.load(Ordering::Relaxed));
            if age < part_ns {
                return part_ns - age;
            }
            self.begun_ns.store(now, Ordering::Relaxed);
            self.missed.store(false, Ordering::Relaxed);
            self.silent.store(0, Ordering::Relaxed);
        }
        let (mut some, mut count, extents) = ([0; RENEWED_AT_ONCE], 0, self.shared.fields.extents());
        while extent < extents && count < RENEWED_AT_ONCE {
            if self.shared.fields.is_used(extent) {
                some[count] = extent;
                count += 1;
            }
            extent += 1;
        }
        if !self.renew_all(&some[..count]) {
            self.missed.store(true, Ordering::Relaxed);
        }
        let is_over = extent == extents;
        self.renewing.store(if is_over { 0 } else { extent }, Ordering::Relaxed);
        match (is_over, self.missed.load(Ordering::Relaxed)) {
            (true, false) => self.renewed_ns.store(self.begun_ns.load(Ordering::Relaxed), Ordering::Relaxed),
            // Those whose server was away are tried again; the others' time has begun anew.
            (true, true) => return RENEW_NS,
            _ => {}
        }
        RENEW_PAUSE_NS
    }
}

/// Takes the pages that were asked for.
fn pages(talk: &mut Talk<'_>, into: &mut [PageBuf]) -> Result<Verdict, Errno> {
    match talk.head()? {
        Head::Array(Some(count)) if count == into.len() => {}
        Head::Error(refusal) => return Ok(Verdict::Refused(refusal)),
        _ => return Err(Errno::PROTO),
    }
    let mut verdict = Verdict::Done;
    for page in into {
        match talk.head()? {
            Head::Bulk(Some(PAGE_SIZE)) => talk.value(&mut page.0)?,
            // Its key has ended, or a server has lost it.
            Head::Bulk(None) => verdict = Verdict::Failed(Errno::NODATA),
            Head::Bulk(Some(len)) if len <= VALUE_MAX => {
                talk.pass(len)?;
                verdict = Verdict::Failed(Errno::BADMSG);
            }
            _ => return Err(Errno::PROTO),
        }
    }
    Ok(verdict)
}

/// Takes a number, whatever it is.
fn number(talk: &mut Talk<'_>) -> Result<Verdict, Errno> {
    match talk.head()? {
        Head::Number(_) => Ok(Verdict::Done),
        Head::Error(refusal) => Ok(Verdict::Refused(refusal)),
        _ => Err(Errno::PROTO),
    }
}

/// How many of `count` slots from `slot` on, within their extent, one request is for.
fn part(slot: u64, count: usize) -> usize {
    count.min(READ_MAX).min(EXTENT_SLOTS - (slot % EXTENT_SLOTS as u64) as usize)
}

impl Backend for RedisSpace {
    type Queue = RedisQueue;

    fn queue(&self, depth: u32) -> Result<RedisQueue, IoError> {
        RedisQueue::new(&self.shared, depth)
    }
}

impl Reads for RedisSpace {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_run(slot, core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let mut done = 0;
        while done < into.len() {
            let slot = first.number() + done as u64;
            let some = part(slot, into.len() - done);
            self.read_part(slot, &mut into[done..done + some])?;
            done += some;
        }
        Ok(())
    }

    /// A server that was replaced, and does not know yet, may have a page from before: the caller asks again, of whoever has it now.
    fn doubt(&self, _slot: Slot) {
        self.shared.refresh();
    }
}

impl Spaces for RedisSpace {
    fn capacity(&self) -> Option<u64> {
        Some(self.shared.fields.slots())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn spaces(&self) -> usize {
        1
    }

    fn capacity_of(&self, _space: usize) -> Option<u64> {
        self.capacity()
    }

    fn name_of(&self, _slot: Slot) -> &str {
        self.name()
    }

    /// A key without fields is none any more.
    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        let (mut slot, end) = (first.number(), first.number() + u64::from(count));
        let extent = (slot / EXTENT_SLOTS as u64) as u32;
        if !self.shared.fields.is_used(extent) {
            return Ok(());
        }
        let mut told = Ok(());
        while slot < end {
            let some = part(slot, (end - slot) as usize) as u32;
            told = told.and(self.remove_part(slot, some));
            slot += u64::from(some);
        }
        if count as usize == EXTENT_SLOTS && told.is_ok() {
            self.shared.fields.leave(extent);
        }
        told
    }

    fn keep(&self, _free: &dyn FreeSlots) -> Option<u64> {
        // Replicas come and go too.
        self.shared.refresh();
        Some(self.renew_some().min(KEEP_NS))
    }
}

impl MemoryBudget for RedisSpace {}
