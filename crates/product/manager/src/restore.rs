//! Memory of a guest that is restored from a snapshot: each page comes when it is touched.
//!
//! A virtual machine monitor that restores a snapshot (Firecracker) hands the guest's memory over before it has any, with a userfaultfd that tells of missing pages, and runs the guest at
//! once. This fills each page from the snapshot's file when somebody touches it; what the guest needs in its first seconds is read ahead ([`crate::snapshot`]). Pages stay then: private
//! memory of another process cannot be taken out without its help.
//!
//! # Protocol
//!
//! **One thread** reads the messages, and does what each says before it reads the next. A page that the guest throws away (a balloon, `MADV_DONTNEED`) is zeros from then on, and not what the
//! snapshot has: the kernel tells of it first ([`Message::removed`]), holds the thread that throws away until this was read, and refuses to fill anything meanwhile. So a fill that is
//! refused reads the messages first, and then looks at the page again.
//!
//! Of several messages those are heard first, for the same reason.
//!
//! ```text
//!  absent ──touched, or read ahead──▶ there ──thrown away──▶ gone ──touched──▶ there (zeros)
//!     └─────────────────thrown away────────────────────────▶
//! ```
//!
//! A page that is *there* and faults was filled since its message was made, or was thrown away and nobody told (the userfaultfd has no such events): zeros are right for the second, and are
//! refused for the first.
//!
//! Pages of zeros in the snapshot become the kernel's page of zeros, which takes no memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farshore_command::machine::available_memory;
use farshore_command::say::{amount, tell};
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::uffd::{Features, Message, Uffd, UffdError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::low_level::pipe;

use crate::connection::Connection;
use crate::process::{Process, userfaultfd};
use crate::regions::check;
use crate::seldom::Seldom;
use crate::snapshot::{self, Part, Snapshot};
use crate::wire::{Handed, Request, Restored};

const PAGE: u64 = PAGE_SIZE as u64;
const HUGE: u64 = 2 << 20;
/// What a guest touches for so long is its working set.
const RECORD: Duration = Duration::from_secs(10);
/// Bytes that are read ahead at a time, between two looks at the messages.
const PIECE: u64 = 128 << 10;
/// Messages that one read takes.
const MESSAGES: usize = 16;
/// How often a page is tried, while memory is thrown away, before others are looked after.
const TRIES: usize = 64;
/// Between two tries where the kernel has no memory.
const PAUSE: Duration = Duration::from_millis(10);

/// What guests are restored from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// The file of the guest's memory.
    pub snapshot: PathBuf,
    /// The file of its working set: read if it is there, else written.
    pub working_set: Option<PathBuf>,
}

/// What a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    There,
    Gone,
}

/// A region of the guest's memory.
#[derive(Debug)]
struct Region {
    memory: Handed,
    page: u64,
    states: Box<[State]>,
}

impl Region {
    fn address(&self, page: usize) -> u64 {
        self.memory.address + page as u64 * self.page
    }

    fn offset(&self, page: usize) -> u64 {
        self.memory.offset + page as u64 * self.page
    }

    fn end(&self) -> u64 {
        self.memory.address + self.memory.bytes
    }
}

/// How many pages have come, and how; in bytes.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    touched: u64,
    ahead: u64,
    zeros: u64,
    thrown_away: u64,
    faults: u64,
}

/// Why the guest is served no more.
enum Over {
    /// Its process has ended.
    Ended,
    /// All is there, and it goes on by itself; the signal that has ended this.
    Left(i32),
}

/// What has become of a page that was to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Filled {
    /// It is there, or whoever touches it gets SIGBUS, or there is no such memory any more.
    Done,
    /// The guest throws so much away that the kernel refuses it again and again. Others are looked after first.
    Busy,
    /// The kernel has no memory for it now.
    NoMemory,
    /// It is lost, and cannot be poisoned.
    Never,
}

/// A guest on its way.
struct Guest {
    number: i32,
    uffd: Uffd,
    snapshot: Snapshot,
    regions: Vec<Region>,
    buffer: Box<[u8]>,
    /// Parts of the snapshot that are to come before anybody asks.
    ahead: VecDeque<Part>,
    /// What was touched, in this order; `None`: nobody wants to know.
    touched: Option<Vec<Part>>,
    /// A page is lost and not poisoned: without this process it would be zeros.
    must_stay: bool,
    counts: Counts,
}

/// Checks what is to be filled.
fn regions_of(all: &[Restored], snapshot: &Snapshot) -> Result<Vec<Region>, String> {
    let handed: Vec<Handed> = all.iter().map(|it| it.memory).collect();
    check(&handed, &[])?;
    // What is kept of each page is bounded by that.
    let bytes: u64 = handed.iter().map(|it| it.bytes).sum();
    if bytes > snapshot.bytes() {
        return Err(format!("its regions have {bytes} bytes in all: the snapshot has only {} bytes", snapshot.bytes()));
    }
    let region = |it: &Restored| {
        let Restored { memory, page } = *it;
        if ![PAGE, HUGE].contains(&page) {
            return Err(format!("{memory}: pages of {page} bytes are not known: 4096 and 2097152 are"));
        }
        if [memory.address, memory.bytes].iter().any(|number| number % page != 0) {
            return Err(format!("{memory}: address and size must be multiples of its pages of {page} bytes"));
        }
        if memory.offset + memory.bytes > snapshot.bytes() {
            return Err(format!("{memory}: the snapshot has only {} bytes", snapshot.bytes()));
        }
        Ok(Region { memory, page, states: vec![State::Absent; (memory.bytes / page) as usize].into() })
    };
    all.iter().map(region).collect()
}

/// Serves the guest whose monitor is at the other end of a socket, until its process has ended. Returns the exit status.
///
/// # Errors
/// One line: it hands nothing over that could be filled. It was told nothing, and its connection is closed.
pub fn run(socket: OwnedFd, source: &Source) -> Result<u8, String> {
    let signals = Told::new()?;
    let process = Process::behind(&socket)?;
    let mut connection = Connection::new(socket);
    let first = connection.first()?;
    let Request::Restore(all) = first.request else {
        return Err("it speaks Cloud Hypervisor's protocol: start a manager with --protocol cloud-hypervisor for it".into());
    };
    let uffd = first.descriptors.into_iter().next().ok_or("no userfaultfd came along with its memory")?;
    process.keeps(&uffd)?;
    let uffd = userfaultfd(uffd, Features::EVENT_REMOVE)?;
    let snapshot = Snapshot::open(&source.snapshot)?;
    let regions = regions_of(&all, &snapshot)?;
    process.check_told(&all)?;
    let handed: Vec<Handed> = all.iter().map(|it| it.memory).collect();
    let set = source.working_set.as_deref().map(|path| snapshot::working_set(path, snapshot.bytes())).transpose()?;
    let (set, records) = match set {
        Some(Some(set)) => (set, false),
        Some(None) => (Vec::new(), true),
        None => (Vec::new(), false),
    };
    let bytes: u64 = handed.iter().map(|it| it.bytes).sum();
    tell(&format!(
        "process {} restores {} from {} (manager {})",
        process.number(),
        amount(bytes),
        source.snapshot.display(),
        std::process::id()
    ));
    snapshot.read_ahead(&set);
    let largest = regions.iter().map(|region| region.page).max().unwrap_or(PAGE).max(PIECE);
    let mut guest = Guest {
        number: process.number(),
        uffd,
        snapshot,
        regions,
        buffer: vec![0; largest as usize].into(),
        ahead: set.into(),
        touched: records.then(Vec::new),
        must_stay: false,
        counts: Counts::default(),
    };
    // The connection stays open, though nothing more comes: its end says nothing.
    let over = guest.serve(&process, &signals, source);
    drop(connection);
    match over {
        Over::Ended => {
            guest.write_touched(source);
            tell(&format!("process {} has ended: {}", guest.number, guest.line()));
            Ok(0)
        }
        Over::Left(signal) => {
            tell(&format!("process {} goes on without a manager: all of its memory is there", guest.number));
            Ok(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
        }
    }
}

/// Signals, for a thread that waits for other things too.
struct Told {
    pipe: UnixStream,
    asked: Arc<AtomicBool>,
    /// The signal that ends this, or 0.
    ends: Arc<AtomicUsize>,
}

impl Told {
    fn new() -> Result<Told, String> {
        let failed = |why: std::io::Error| format!("cannot listen for signals ({why})");
        let (pipe, theirs) = UnixStream::pair().map_err(failed)?;
        pipe.set_nonblocking(true).map_err(failed)?;
        let (asked, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false))).map_err(failed)?;
        signal_hook::flag::register(SIGUSR1, asked.clone()).map_err(failed)?;
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            signal_hook::flag::register_usize(signal, ends.clone(), signal.unsigned_abs() as usize).map_err(failed)?;
        }
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1] {
            pipe::register(signal, theirs.try_clone().map_err(failed)?).map_err(failed)?;
        }
        Ok(Told { pipe, asked, ends })
    }

    /// Empties the pipe.
    fn take(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.pipe, &mut bytes).is_ok_and(|count| count > 0) {}
    }
}

impl Guest {
    /// Serves faults, and reads ahead where there are none, until it is over.
    fn serve(&mut self, process: &Process, signals: &Told, source: &Source) -> Over {
        let begun = Instant::now();
        let mut leaves = 0;
        loop {
            let works = !self.ahead.is_empty() || leaves != 0;
            let left = self.touched.is_some().then(|| RECORD.saturating_sub(begun.elapsed()));
            let time = match (works, left) {
                (true, _) => Some(Duration::ZERO),
                (false, left) => left,
            };
            let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
            let (uffd, pipe) = (self.uffd.fd().as_fd(), signals.pipe.as_fd());
            let mut wanted = [uffd, process.end(), pipe].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let _ = poll(&mut wanted, time.as_ref());
            let came = [0, 1, 2].map(|n| !wanted[n].revents().is_empty());
            if wanted[0].revents().contains(PollFlags::ERR) {
                // Its process has the same description, and has made reads wait, of which the kernel's poll(2) will not tell.
                let _ = rustix::fs::fcntl_getfl(uffd).and_then(|flags| rustix::fs::fcntl_setfl(uffd, flags | OFlags::NONBLOCK));
            }
            if came[1] {
                return Over::Ended;
            }
            if came[2] {
                signals.take();
                if signals.asked.swap(false, Ordering::Relaxed) {
                    tell(&format!("process {}: {}", self.number, self.line()));
                }
                if let Some(signal) = self.begin_to_leave(signals.ends.swap(0, Ordering::Relaxed) as i32) {
                    leaves = signal;
                }
            }
            if left.is_some_and(|left| left.is_zero()) {
                self.write_touched(source);
            }
            if came[0] {
                self.take_messages();
            }
            // A guest that is never quiet does not keep this from its end.
            if came[0] && leaves == 0 {
                continue;
            }
            if let Some(part) = self.ahead.pop_front() {
                self.read_ahead(part, leaves != 0);
            } else if leaves != 0 && self.must_stay {
                tell(&format!(
                    "process {}: a page of it is lost and cannot be poisoned: the manager stays, or it would be zeros",
                    self.number
                ));
                leaves = 0;
            } else if leaves != 0 {
                self.let_go();
                return Over::Left(leaves);
            }
        }
    }

    /// Makes the memory ordinary again. Threads that throw some of it away wait for their messages to be read, and would wait for ever: the guest has the userfaultfd too.
    fn let_go(&mut self) {
        for region in &self.regions {
            let _ = self.uffd.unregister(region.memory.address, region.memory.bytes);
        }
        // From now on nobody begins to wait. The kernel refuses to fill anything, registered or not, until the last of those who do has gone on.
        let Some(first) = self.regions.first().map(|region| region.memory.address) else { return };
        while let Err(UffdError::Again { .. }) = self.uffd.zeropage(first, PAGE, true) {
            self.take_removals();
        }
    }

    /// A signal has asked for the end: all that is absent is to come first. Returns the signal, if there is room for that.
    fn begin_to_leave(&mut self, signal: i32) -> Option<i32> {
        if signal == 0 {
            return None;
        }
        let absent = |region: &Region| region.states.iter().filter(|state| **state == State::Absent).count() as u64 * region.page;
        let missing: u64 = self.regions.iter().map(absent).sum();
        if let Some(free) = available_memory().filter(|free| *free < missing) {
            tell(&format!(
                "process {}: {} of its memory are still in the snapshot, and the machine has room for {}: the manager stays, as the guest would not go on without them; make room, and \
                 end the manager again",
                self.number,
                amount(missing),
                amount(free)
            ));
            return None;
        }
        self.ahead =
            self.regions.iter().map(|region| Part { offset: region.memory.offset, bytes: region.memory.bytes }).collect();
        Some(signal)
    }

    /// Does what messages say that are there: those of one read, so that other things are looked at too while a guest has always more.
    fn take_messages(&mut self) {
        let mut messages = [Message::EMPTY; MESSAGES];
        let Ok(count) = self.uffd.read_messages_now(&mut messages) else { return };
        // Once its message was read, memory may be gone at any moment: so nothing is filled before all that were read were heard. The kernel fills nothing while others wait.
        let removed = messages[..count].iter().filter_map(Message::removed);
        removed.for_each(|(start, end)| self.thrown_away(start, end));
        let faults = messages[..count].iter().filter_map(Message::fault);
        faults.for_each(|fault| self.touch(fault.address));
    }

    /// The guest throws this away.
    fn thrown_away(&mut self, start: u64, end: u64) {
        for region in &mut self.regions {
            let (from, to) = (start.max(region.memory.address), end.min(region.end()));
            if from >= to {
                continue;
            }
            let at = |address: u64| ((address - region.memory.address) / region.page) as usize;
            for state in &mut region.states[at(from)..at(to - 1) + 1] {
                *state = State::Gone;
            }
            self.counts.thrown_away += to - from;
        }
    }

    /// Somebody waits for the page at this address.
    fn touch(&mut self, address: u64) {
        self.counts.faults += 1;
        let found = self.regions.iter().position(|region| region.memory.address <= address && address < region.end());
        let Some(n) = found else {
            static SAID: Seldom = Seldom::new();
            return SAID
                .tell(|| format!("the guest has touched {address:#x}, which was not handed over: whoever has waits for ever"));
        };
        let page = ((address - self.regions[n].memory.address) / self.regions[n].page) as usize;
        let absent = self.regions[n].states[page] == State::Absent;
        let filled = self.fill(n, page);
        if filled == Filled::Never {
            return;
        }
        if filled == Filled::NoMemory {
            std::thread::sleep(PAUSE);
        }
        let region = &self.regions[n];
        if absent && region.states[page] == State::There {
            let part = Part { offset: region.offset(page), bytes: region.page };
            self.touched.iter_mut().for_each(|touched| touched.push(part));
            self.counts.touched += part.bytes;
        }
        // Also if the page was there before, or is not yet: whoever waits looks again, and sends another message.
        let _ = self.uffd.wake(region.address(page), region.page);
    }

    /// Fills pages of a part of the snapshot, a piece of it, and puts the rest back. `all`: it must come, also if there is no memory for it now.
    fn read_ahead(&mut self, part: Part, all: bool) {
        let now = part.bytes.min(PIECE.max(self.largest_at(part.offset)));
        if now < part.bytes {
            self.ahead.push_front(Part { offset: part.offset + now, bytes: part.bytes - now });
        }
        for n in 0..self.regions.len() {
            let region = &self.regions[n];
            let (from, to) =
                (part.offset.max(region.memory.offset), (part.offset + now).min(region.memory.offset + region.memory.bytes));
            if from >= to {
                continue;
            }
            let first = ((from - region.memory.offset) / region.page) as usize;
            let last = ((to - 1 - region.memory.offset) / region.page) as usize;
            for page in first..=last {
                if self.regions[n].states[page] != State::Absent {
                    continue;
                }
                match self.fill(n, page) {
                    Filled::Done if self.regions[n].states[page] == State::There => self.counts.ahead += self.regions[n].page,
                    Filled::Done | Filled::Never => {}
                    // Memory is for those who ask.
                    Filled::NoMemory if !all => return self.ahead.clear(),
                    later => {
                        if later == Filled::NoMemory {
                            std::thread::sleep(PAUSE);
                        }
                        return self.ahead.push_front(Part { offset: part.offset, bytes: now });
                    }
                }
            }
        }
    }

    /// The bytes of a page at this offset of the snapshot.
    fn largest_at(&self, offset: u64) -> u64 {
        let has = |region: &&Region| region.memory.offset <= offset && offset < region.memory.offset + region.memory.bytes;
        self.regions.iter().filter(has).map(|region| region.page).max().unwrap_or(PAGE)
    }

    /// Puts the page's bytes there: from the snapshot, or zeros if it has been there before.
    fn fill(&mut self, n: usize, page: usize) -> Filled {
        for _ in 0..TRIES {
            let region = &self.regions[n];
            let (address, size) = (region.address(page), region.page as usize);
            let bytes = &mut self.buffer[..size];
            let mut zeros = true;
            if region.states[page] == State::Absent {
                if let Err(why) = self.snapshot.read(region.offset(page), bytes) {
                    return self.lose(n, page, &why);
                }
                zeros = bytes.iter().all(|byte| *byte == 0);
            } else {
                bytes.fill(0);
            }
            let filled = match zeros && size as u64 == PAGE {
                // Memory for which the kernel has no such page is filled with bytes that are.
                true => match self.uffd.zeropage(address, PAGE, true) {
                    Err(UffdError::Other(_)) => self.uffd.fill(address, bytes),
                    done => done,
                },
                false => self.uffd.fill(address, bytes),
            };
            match filled {
                Ok(()) => {
                    self.counts.zeros += if zeros { size as u64 } else { 0 };
                    self.regions[n].states[page] = State::There;
                    return Filled::Done;
                }
                Err(UffdError::Exists) => {
                    self.regions[n].states[page] = State::There;
                    return Filled::Done;
                }
                // Something is being thrown away: its message comes first, and may be about this page.
                Err(UffdError::Again { .. }) => self.take_removals(),
                Err(UffdError::NoMemory) => {
                    static SAID: Seldom = Seldom::new();
                    SAID.tell(|| "a page of the guest waits: the kernel has no memory for it; make room on the machine, or in its control group".into());
                    return Filled::NoMemory;
                }
                // It has unmapped it, or has ended.
                Err(UffdError::NotRegistered | UffdError::ProcessGone) => return Filled::Done,
                Err(why) => return self.lose(n, page, &format!("it cannot be filled ({why})")),
            }
        }
        Filled::Busy
    }

    /// Reads messages, and does what those about memory that is thrown away say. Faults among them are served afterwards, by those who wait being woken: each looks
    /// again, and sends another one.
    fn take_removals(&mut self) {
        let mut messages = [Message::EMPTY; MESSAGES];
        let mut waiting: Vec<u64> = Vec::new();
        if let Ok(count) = self.uffd.read_messages_now(&mut messages) {
            for message in &messages[..count] {
                match (message.removed(), message.fault()) {
                    (Some((start, end)), _) => self.thrown_away(start, end),
                    (None, Some(fault)) => waiting.push(fault.address),
                    (None, None) => {}
                }
            }
        }
        for address in waiting {
            let _ = self.uffd.wake(address & !(PAGE - 1), PAGE);
        }
        std::thread::yield_now();
    }

    /// A page cannot be had: whoever needs it gets SIGBUS, not other bytes.
    fn lose(&mut self, n: usize, page: usize, why: &str) -> Filled {
        let (address, size) = (self.regions[n].address(page), self.regions[n].page);
        static SAID: Seldom = Seldom::new();
        SAID.tell(|| format!("the page at {address:#x} of the guest is lost, and whoever needs it gets SIGBUS: {why}"));
        match self.uffd.poison(address, size) {
            Ok(()) | Err(UffdError::Exists | UffdError::NotRegistered | UffdError::ProcessGone) => Filled::Done,
            // Until it is poisoned it would be zeros for a guest that goes on alone.
            Err(UffdError::Again { .. }) => {
                self.take_removals();
                Filled::Busy
            }
            Err(UffdError::NoMemory) => Filled::NoMemory,
            Err(error) => {
                static SAID: Seldom = Seldom::new();
                SAID.tell(|| {
                    format!("the page at {address:#x} of the guest cannot be poisoned ({error}): whoever needs it waits for ever")
                });
                self.must_stay = true;
                Filled::Never
            }
        }
    }

    /// What was touched is the working set.
    fn write_touched(&mut self, source: &Source) {
        let (Some(touched), Some(path)) = (self.touched.take(), &source.working_set) else { return };
        match snapshot::write_working_set(path, &touched, self.snapshot.bytes()) {
            Ok(()) => tell(&format!("process {}: its working set is in {}", self.number, path.display())),
            Err(why) => tell(&format!("process {}: {why}", self.number)),
        }
    }

    fn line(&self) -> String {
        let Counts { touched, ahead, zeros, thrown_away, faults } = self.counts;
        format!(
            "{} came as they were touched ({faults} faults), {} were read ahead; {} of these were zeros; {} were thrown away",
            amount(touched),
            amount(ahead),
            amount(zeros),
            amount(thrown_away)
        )
    }
}
