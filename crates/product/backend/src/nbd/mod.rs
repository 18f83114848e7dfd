//! An export of an NBD server as swap space: memory or disks of another machine (`nbd://HOST:PORT/EXPORT`), or of a server on this
//! one (`nbd+unix:///EXPORT?socket=PATH`).
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | the protocol's bytes |
//! | [`connect`] | a connection, up to the first request |
//! | [`line`] | a connection that faults read over, many at a time; waiting for the first of two requests |
//! | [`queue`] | a connection that one evictor writes over |
//! | [`places`] | where on the export a slot lies; what a lost connection leaves behind |
//! | [`late`] | exports that a write may reach after they were let go |
//!
//! # What is promised
//!
//! - A write has ended when the server has acknowledged it. The server may keep it in its memory: swap space need not outlive its
//!   server.
//! - A lost connection is made again, and what was under way is sent again, for two minutes
//!   ([`set_patience`]). Then reads fail, each by
//!   itself, and writes leave their pages in memory. A server that comes back with its contents is used again. One that says
//!   something all the time, and not what it was asked for, is as one that is away.
//! - A space that nobody uses keeps a connection ([`Spaces::keep`]), and so does a forked child whose parent has ended: a server
//!   may forget an export that nobody is connected to.
//! - The server and the network are not trusted. The library encrypts the pages
//!   ([`encrypt`](crate::encrypt)), and the engine's sums, which are of plain bytes and stay here, tell pages that
//!   were changed, exchanged or put back from before. What a server says about lengths is checked before it is used. It does learn
//!   which slots are written and read, and when.
//! - The requests of a thread in a fault take no lock, allocate nothing and call no libc ([`line`] has the protocol).
//!
//! # One family on an export
//!
//! NBD has no way to claim an export. The processes of a family share one by regions ([`crate::device::regions`]), and keep other
//! families of this machine out by an abstract socket of its name. It is up to the user that no other machine writes there.
//!
//! Sockets of a server without `NBD_FLAG_CAN_MULTI_CONN` might not see each other's writes, so such an export is refused.

mod connect;
mod late;
mod line;
mod places;
mod queue;
mod wire;

pub(crate) use line::{Asked, End, wait_for_any};
pub use queue::NbdQueue;

use crate::device::{self, signature};
use crate::error::OpenError;
use crate::fd::FdList;
use crate::sleep;
use crate::socket;
use connect::{Failure, Peer};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use farshore_config::{NbdExport, SwapSpec};
use farshore_core::limits::{EXTENT_SLOTS, PAGE_SIZE};
use farshore_core::seams::{Backend, CANNOT, FreeSlots, IoError, MemoryBudget, PageBuf, Reads, Spaces};
use farshore_core::word::Slot;
use farshore_sys::cpu;
use farshore_sys::fd::Fd;
use farshore_sys::raw::getpid;
use late::{LATE, Mark};
use line::{Line, PAGES_MAX};
use places::Places;
use rustix::fd::{AsFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{About, Command, MULTI_CONN, READ_ONLY, SEND_TRIM};
use xxhash_rust::xxh3::xxh3_64;

/// How long a server that cannot be reached is waited for, unless [`set_patience`] says otherwise, in ns.
const GIVE_UP_NS: u64 = 120_000_000_000;
/// A server is waited for so many times as long as a transfer may take before its space counts as hanging.
const PATIENCES: u64 = 12;

static GIVE_UP: AtomicU64 = AtomicU64::new(GIVE_UP_NS);

/// A transfer may take this long before its space counts as hanging, in ns; a server that cannot be reached is waited for twelve times
/// as long.
pub fn set_patience(ns: u64) {
    GIVE_UP.store(ns.saturating_mul(PATIENCES), Ordering::Relaxed);
}

/// How long a server that cannot be reached is waited for where its pages are nowhere else, in ns.
pub(crate) fn give_up_ns() -> u64 {
    GIVE_UP.load(Ordering::Relaxed)
}

/// How long a server that is silent is waited for, where its pages are nowhere else, in ns.
const SILENCE_NS: u64 = 30_000_000_000;
/// The same until requests can be sent over a new connection.
const CONNECT_NS: u64 = 5_000_000_000;
/// Where others have the pages too, this part of the time must do: a second, where it is two minutes.
const SHORTER: u64 = 120;
/// … and not less than this, in ns: a server may be busy for a moment.
const SHORTEST_NS: u64 = 100_000_000;

/// How long a server is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// As long as there is hope: its pages are nowhere else.
    Long,
    /// For about a second: there are other copies.
    Short,
}

impl Waits {
    fn short(self, long: u64) -> u64 {
        match self {
            Waits::Long => long,
            Waits::Short => (give_up_ns() / SHORTER).max(SHORTEST_NS),
        }
    }

    /// Until requests fail, in ns.
    fn give_up_ns(self) -> u64 {
        self.short(give_up_ns())
    }

    /// The same where no connection can be made: other copies need not wait for a server that is started again.
    fn reach_ns(self) -> u64 {
        match self {
            Waits::Long => give_up_ns(),
            Waits::Short => self.give_up_ns() / 10,
        }
    }

    /// A server that says nothing for so long although it was asked something is given up, in ns.
    fn silence_ns(self) -> u64 {
        self.short(SILENCE_NS)
    }

    /// How long a server may take until requests can be sent, in ns.
    fn connect_ns(self) -> u64 {
        self.short(CONNECT_NS)
    }
}

/// How often a space looks whether it has a connection, while a server that cannot be reached is waited for; and the longest time
/// between two looks, in ns: a server keeps an export for two minutes or so ([`Spaces::keep`]).
const KEEPS: u64 = 6;
const KEEP_NS: u64 = 20_000_000_000;
/// Connections that faults read over.
const LINES: usize = 4;
/// Between two looks for a connection, in ns.
const PAUSE_NS: u64 = 2_000_000;
/// Between a guest's tries, in ns.
const GUEST_PAUSE_NS: u64 = 50_000_000;
/// A placeholder until a write puts in its own slot.
const ANY: Slot = Slot::new(1).unwrap();

/// What a space and its queues share.
#[derive(Debug)]
struct Shared {
    peer: Peer,
    about: About,
    places: Places,
    /// The sockets of queues.
    sockets: FdList,
}

impl Shared {
    /// One more connection to the same export.
    fn connect(&self) -> Result<Fd, Failure> {
        let (socket, about) = self.peer.connect()?;
        // Another export under the old name would be somebody else's data.
        if about.bytes == self.about.bytes && about.flags == self.about.flags { Ok(socket) } else { Err(Failure::Stranger) }
    }
}

/// A swap space on an NBD server.
#[derive(Debug)]
pub struct NbdSpace {
    shared: Arc<Shared>,
    lines: Box<[Line]>,
    name: String,
    /// The name of the export among those that this process has used.
    place: PathBuf,
    /// By what it is known under another name.
    mark: Mark,
    /// Since when no connection could be made; 0: there are some.
    down_ns: AtomicU64,
    /// The process whose descriptors the lines have.
    process: AtomicU32,
}

impl Drop for NbdSpace {
    fn drop(&mut self) {
        if self.shared.places.are_tainted() {
            LATE.note(&self.place, &self.mark);
        }
    }
}

fn refuse(export: &NbdExport, why: impl Into<String>) -> OpenError {
    OpenError::Server { export: export.to_string(), why: why.into() }
}

/// Checks whether an export can be swap space.
fn suits(export: &NbdExport, about: &About) -> Result<(), OpenError> {
    let why = if about.flags & READ_ONLY != 0 {
        "it is read-only: name another"
    } else if about.flags & MULTI_CONN == 0 {
        "its server does not promise that several connections see the same data (NBD_FLAG_CAN_MULTI_CONN): use another server, or \
         another of its modes (qemu-nbd: -e 0)"
    } else if about.block > PAGE_SIZE as u32 {
        "its blocks are larger than a page: name another"
    } else {
        return Ok(());
    };
    Err(refuse(export, why))
}

/// A socket whose name says that a family of this machine has the export.
fn claim(export: &NbdExport) -> Result<OwnedFd, OpenError> {
    let named = NbdExport { force: false, ..export.clone() };
    let name = format!("farshore-nbd-{:016x}", xxh3_64(named.to_string().as_bytes()));
    let failed = |errno| refuse(export, format!("it cannot be claimed ({errno})"));
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    for tries in 0.. {
        match bind(&socket, &address) {
            Ok(()) => return Ok(socket),
            // A process that has just ended, or a child between fork and exec, has it for a moment more.
            Err(Errno::ADDRINUSE) if tries < device::BUSY_TRIES => sleep::nap(device::BUSY_PAUSE_NS),
            Err(Errno::ADDRINUSE) => {
                let why = "another program under Farshore on this machine uses it (one that this program has started keeps what it began with until it ends): name another";
                return Err(refuse(export, why));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    unreachable!("the last try returns")
}

impl NbdSpace {
    /// Connects to a server. Called at start-up, and by a forked child's thread that may wait.
    ///
    /// # Errors
    /// The server cannot be reached or refuses, its export cannot be used, or holds something.
    pub fn open(export: &NbdExport, waits: Waits, notice: &mut dyn FnMut(&str)) -> Result<NbdSpace, OpenError> {
        let name = SwapSpec::Nbd(export.clone()).to_string();
        let peer = Peer {
            place: socket::place_of(&export.server).map_err(|why| refuse(export, why))?,
            export: export.name.as_bytes().into(),
            waits,
        };
        let (socket, about) = peer.connect().map_err(|why| refuse(export, why.to_string()))?;
        suits(export, &about)?;
        let bytes = about.bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        let lines: Box<[Line]> = (0..LINES).map(|_| Line::new(waits)).collect();
        let no_descriptor = |errno: Errno| refuse(export, format!("there is no descriptor for its connection ({errno})"));
        lines[0].put(socket).map_err(no_descriptor)?;
        // The name of the place is that of the list of claims too, so it has no option in it.
        let place = PathBuf::from(NbdExport { force: false, ..export.clone() }.to_string());
        let mut is_there = |offset: u64, is_it: &dyn Fn(&[u8]) -> bool| {
            let mut page = vec![0; PAGE_SIZE];
            let is_within = offset.checked_add(PAGE_SIZE as u64).is_some_and(|end| end <= bytes);
            is_within
                && matches!(lines[0].ask(Command::Read, offset, PAGE_SIZE as u32, Some(&mut page)), End::Done)
                && is_it(&page)
        };
        if LATE.has(&place, &mut is_there) {
            return Err(refuse(
                export,
                "this program has used it before, by this name or another, and writes that were lost on the way then may still arrive there; name another export",
            ));
        }
        let regions = device::share(&place, bytes, || {
            let claimed = claim(export)?;
            look(export, &lines[0], bytes, notice)?;
            Ok(claimed)
        })?;
        let no_memory = |errno| OpenError::NoMemory { bytes, errno };
        let places = Places::new(regions).map_err(no_memory)?;
        let places = places.ok_or_else(|| OpenError::TooSmall { what: name.clone(), bytes })?;
        let shared = Shared { peer, about, places, sockets: FdList::new() };
        // The others are made now too, not in the first faults. If the server takes no more, those must do.
        for line in &lines[1..] {
            let more = shared.connect().map_err(|why| refuse(export, format!("of {LINES} connections {why}")))?;
            line.put(more).map_err(no_descriptor)?;
        }
        Ok(NbdSpace {
            shared: Arc::new(shared),
            lines,
            name,
            place,
            mark: Mark::none(),
            down_ns: AtomicU64::new(0),
            process: AtomicU32::new(getpid()),
        })
    }

    /// Where on the export a slot lies, in bytes.
    pub(crate) fn offset_of(&self, slot: Slot) -> Option<u64> {
        self.shared.places.find(slot.number(), 1).ok().map(|piece| piece.offset)
    }

    /// This page is one that nobody else has. By what lies there the export is known if it comes under another name. Waits for the server.
    pub(crate) fn is_known_by(&self, slot: Slot) {
        let mut page = PageBuf::ZERO;
        if let Some(offset) = self.offset_of(slot)
            && self.read_raw(offset, &mut page.0).is_ok()
        {
            self.mark.set(offset, &page.0);
        }
    }

    /// Reads bytes of the export as they lie there, whosever they are.
    ///
    /// # Errors
    /// It does not have so many, or they cannot be read.
    pub(crate) fn read_raw(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        if offset.saturating_add(into.len() as u64) > self.shared.about.bytes {
            return Err(IoError::Short);
        }
        self.ask(Command::Read, offset, into.len() as u32, Some(into), false)
    }

    /// The descriptors of its connections, and those that stand for its claim.
    pub(crate) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let lines = self.lines.iter().filter_map(Line::fd);
        lines.chain(self.shared.sockets.iter()).chain(self.shared.places.regions().fd()).chain(device::fds())
    }

    /// The descriptors of its queues' connections, which are none of ours from now on.
    pub(crate) fn take_sockets(&self) -> Vec<RawFd> {
        self.shared.sockets.take()
    }

    /// In a forked child: the connections are the parent's, and the child makes its own when it reads. It keeps one of them open,
    /// since it may outlive its parent: a server may forget an export some time after its last connection. `shared`: the two have
    /// one table of descriptors, so none is closed.
    pub(crate) fn forked(&self, shared: bool) {
        let holds = if shared { None } else { socket::nowhere().ok() };
        let kept = self.lines.iter().position(Line::has_connection);
        for (n, line) in self.lines.iter().enumerate() {
            line.forked(shared, holds.as_ref().map(AsFd::as_fd), kept == Some(n));
        }
        self.down_ns.store(0, Ordering::Relaxed);
        self.process.store(getpid(), Ordering::Relaxed);
    }

    /// Reads as another process on this memory (`vfork`): its table of descriptors is a copy. What it would put under the numbers of
    /// the lines the threads of this process would not have, so it has a connection for itself.
    #[cold]
    fn read_as_guest(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let since = sleep::now_ns();
        loop {
            let fetched = self.shared.connect().and_then(|socket| {
                connect::fetch(socket.as_fd(), offset, into, sleep::now_ns() + self.shared.peer.waits.silence_ns())
            });
            match fetched {
                Ok(result) => return result.map_err(|errno| IoError::Device(errno.raw_os_error())),
                Err(_) if sleep::now_ns().saturating_sub(since) > self.shared.peer.waits.give_up_ns() => {
                    return Err(IoError::Device(Errno::TIMEDOUT.raw_os_error()));
                }
                Err(_) => sleep::nap(GUEST_PAUSE_NS),
            }
        }
    }

    /// Asks the server over some connection, again and again while none lasts.
    fn ask(&self, command: Command, offset: u64, len: u32, mut into: Option<&mut [u8]>, once: bool) -> Result<(), IoError> {
        let (own, waits) = (cpu::current(), self.shared.peer.waits);
        let mut lost = 0;
        loop {
            let count = self.lines.len();
            let up = (0..count).map(|n| &self.lines[(own + n) % count]).find(|line| line.is_up());
            // The own one first, if it can be had again.
            let line = up.filter(|_| self.lines[own % count].is_up()).or_else(|| self.mend(&self.lines[own % count])).or(up);
            // Each that cannot be made takes its time. Where others have the pages, one is enough to know.
            let rest = || self.lines.iter().filter(|_| waits == Waits::Long).find_map(|line| self.mend(line));
            let line = line.or_else(rest);
            let asked = sleep::now_ns();
            match line.map(|line| line.ask(command, offset, len, into.as_deref_mut())) {
                Some(end @ (End::Done | End::Failed(_))) => {
                    // A line that cannot be made again, while others can be used, says nothing of the server.
                    if self.down_ns.load(Ordering::Relaxed) != 0 {
                        self.down_ns.store(0, Ordering::Relaxed);
                    }
                    return if let End::Failed(errno) = end { Err(IoError::Device(errno.raw_os_error())) } else { Ok(()) };
                }
                Some(End::Lost) if once => return Err(IoError::Device(Errno::CONNRESET.raw_os_error())),
                // A server that can be reached, and then ends each connection or says nothing: as one that is away.
                Some(End::Lost) => {
                    let again = lost != 0;
                    if !again {
                        lost = asked;
                    }
                    if sleep::now_ns().saturating_sub(lost) > waits.give_up_ns() {
                        return Err(IoError::Device(Errno::CONNRESET.raw_os_error()));
                    }
                    if again {
                        sleep::nap(PAUSE_NS);
                    }
                }
                None if waits == Waits::Short => return Err(IoError::Device(Errno::TIMEDOUT.raw_os_error())),
                Some(End::Unsent) | None => {
                    let now = sleep::now_ns();
                    let since = self.down_ns.load(Ordering::Relaxed);
                    if line.is_none() && since != 0 && now.saturating_sub(since) > waits.give_up_ns() {
                        return Err(IoError::Device(Errno::TIMEDOUT.raw_os_error()));
                    }
                    sleep::nap(PAUSE_NS);
                }
            }
        }
    }

    /// The line, if it has a connection after a try to make one.
    fn mend<'s>(&'s self, line: &'s Line) -> Option<&'s Line> {
        match line.mend(&self.shared) {
            Some(_) => {
                let now = sleep::now_ns();
                let _ = self.down_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
                None
            }
            None if line.is_up() => {
                self.down_ns.store(0, Ordering::Relaxed);
                Some(line)
            }
            None => None,
        }
    }
}

/// Refuses an export that holds something, unless it may be lost.
fn look(export: &NbdExport, line: &Line, bytes: u64, notice: &mut dyn FnMut(&str)) -> Result<(), OpenError> {
    let failed = |end: End| match end {
        End::Failed(errno) => refuse(export, format!("it cannot be read ({errno}): name another")),
        _ => refuse(export, "the server ends the connection at the first read: look at its log"),
    };
    let mut read = |offset: u64, most: usize| -> Result<Vec<u8>, OpenError> {
        let mut buffer = vec![0; most.min((bytes - offset) as usize)];
        match line.ask(Command::Read, offset, buffer.len() as u32, Some(&mut buffer)) {
            End::Done => Ok(buffer),
            end => Err(failed(end)),
        }
    };
    let Some(what) = signature::find_by(bytes, &mut read)? else { return Ok(()) };
    if !export.force {
        return Err(refuse(
            export,
            format!("there is {what} on it, which would be lost: name another, or add ,force to lose it"),
        ));
    }
    notice(&format!("swap space {export} is used although there is {what} on it, which is lost"));
    Ok(())
}

/// A read over a connection that is up, which its caller need not wait for: a [mirror](super::mirror) waits for two copies.
impl NbdSpace {
    /// Begins a read of the slots from `first` on. `None`: it takes more than one request over a connection that is there ([`Reads::read_run`] does what is needed).
    pub(crate) fn begin_request<'s, 'b>(&'s self, first: Slot, into: &'b mut [PageBuf]) -> Option<Asked<'s, 'b>> {
        let (slot, pages) = (first.number(), into.len());
        let within = pages <= PAGES_MAX && slot % EXTENT_SLOTS as u64 + pages as u64 <= EXTENT_SLOTS as u64;
        if !within || getpid() != self.process.load(Ordering::Relaxed) {
            return None;
        }
        let piece = self.shared.places.find(slot, pages as u32).ok().filter(|piece| piece.pages as usize == pages)?;
        let (own, count) = (cpu::current(), self.lines.len());
        let line = (0..count).map(|n| &self.lines[(own + n) % count]).find(|line| line.is_up())?;
        let bytes = crate::file::bytes_of(into);
        let len = bytes.len() as u32;
        line.begin(Command::Read, piece.offset, len, Some(bytes)).filter(Asked::is_sent)
    }

    /// How long a request may take, in ns.
    pub(crate) fn give_up_ns(&self) -> u64 {
        self.shared.peer.waits.give_up_ns()
    }
}

impl Backend for NbdSpace {
    type Queue = NbdQueue;

    fn queue(&self, depth: u32) -> Result<NbdQueue, IoError> {
        NbdQueue::new(&self.shared, depth)
    }
}

impl Reads for NbdSpace {
    fn read(&self, slot: Slot, into: &mut PageBuf) -> Result<(), IoError> {
        self.read_run(slot, core::slice::from_mut(into))
    }

    fn read_run(&self, first: Slot, into: &mut [PageBuf]) -> Result<(), IoError> {
        let is_guest = getpid() != self.process.load(Ordering::Relaxed);
        let mut done = 0;
        while done < into.len() {
            let left = (into.len() - done).min(PAGES_MAX) as u32;
            let slot = first.number() + done as u64;
            // Within an extent.
            let left = left.min((EXTENT_SLOTS as u64 - slot % EXTENT_SLOTS as u64) as u32);
            let piece = self.shared.places.find(slot, left)?;
            let bytes = crate::file::bytes_of(&mut into[done..done + piece.pages as usize]);
            let len = bytes.len() as u32;
            if is_guest {
                self.read_as_guest(piece.offset, bytes)?;
            } else {
                self.ask(Command::Read, piece.offset, len, Some(bytes), false)?;
            }
            done += piece.pages as usize;
        }
        Ok(())
    }
}

impl Spaces for NbdSpace {
    fn capacity(&self) -> Option<u64> {
        Some(self.shared.places.slots())
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

    /// The server is told, if it wants to know; a whole region becomes free for the other processes of the family.
    fn give_back(&self, first: Slot, count: u32) -> Result<(), IoError> {
        let (places, slot) = (&self.shared.places, first.number());
        let offset = slot * PAGE_SIZE as u64;
        let Some(at) = places.regions().find(offset) else { return Ok(()) };
        if !places.are_plain(slot, count) {
            return Err(CANNOT);
        }
        let len = count * PAGE_SIZE as u32;
        let mut told = Err(CANNOT);
        if self.shared.about.flags & SEND_TRIM != 0 {
            // Tried once: a trim that comes late would take later pages away.
            told = self.ask(Command::Trim, at, len, None, true);
            if told == Err(IoError::Device(Errno::CONNRESET.raw_os_error())) {
                places.taint(slot, count);
                return told;
            }
        }
        if places.regions().give_back(offset, u64::from(len)) { Ok(()) } else { told }
    }

    /// A server may forget an export some time after its last connection (`farshore node --keep`). So one that was lost is made
    /// again although nobody needs it now.
    fn keep(&self, _free: &dyn FreeSlots) -> Option<u64> {
        self.lines.iter().for_each(Line::look);
        if !self.lines.iter().any(Line::has_connection) {
            // A server that is away is not waited for from now on: nobody needs it yet.
            let line = &self.lines[0];
            if line.mend(&self.shared).is_none() && line.is_up() {
                self.down_ns.store(0, Ordering::Relaxed);
            }
        }
        Some((give_up_ns() / KEEPS).min(KEEP_NS))
    }
}

impl MemoryBudget for NbdSpace {}

/// The path under which [`device`] knows an export: what [`device::handed`] hands on.
pub(crate) fn is_export(path: &Path) -> bool {
    path.to_str().is_some_and(|text| matches!(text.parse(), Ok(SwapSpec::Nbd(_))))
}
