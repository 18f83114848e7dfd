//! The processes of a family that share memory: `farshore run --shared-memory`.
//!
//! ```text
//!  a process maps shared memory ─▶ HAND: its userfaultfd, the file, the place ─▶ managed: it may be in RAM within the limit
//!    ├─▶ FORK ─▶ fork ─▶ the child, before it runs any code of the program: JOIN, with a userfaultfd of its own
//!    ├─▶ munmap and the like ─▶ HOLD, nobody makes calls on page tables ─▶ the call ─▶ DONE, and it is looked at what is left
//!    └─▶ it ends, or becomes another program: its connection ends, and it is forgotten
//!  the last of them has ended, and the first of the family: so does this process
//! ```
//!
//! All of them have the memory at the same addresses, since all have it from a `fork`: a page of theirs is one page of the engine. Two processes that map different memory at the same place are told apart by asking who
//! is there: the second is refused, and its memory stays the kernel's.
//!
//! # What always holds
//!
//! 1. What [`crate::clients`] says: whatever page table has the memory is known, and is protected with the others.
//! 2. **A process has no code of the program running while its memory is registered and not known here, or known and not registered.** A child waits for the answer to JOIN. Whoever changes its mappings waits for the answer to HOLD.
//! 3. **Memory is given up when nobody has it, and no child is expected.** A child has its parent's memory from the fork on, and is known from JOIN on. In between its parent may unmap it, or end: so a parent says
//!    FORK first, and a child has a descriptor of its parent's connection until it is known.
//! 4. **Only the family is served.** The first message of a connection has a number that the family alone has; and what it says of its memory is compared with what the kernel says, as of every client.
//! 5. **Each process keeps a descriptor of its userfaultfd.** If this process is killed, whoever needs a page that is out waits for ever, and never finds zeros. Nobody takes over.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use farshore_command::say::{amount, tell};
use farshore_config::{Options, SharedMemory};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::PageRange;
use farshore_sys::kernel::LinuxKernel;
use farshore_sys::uffd::{Features, Message, UffdError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown, recvmsg, send, shutdown};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::chosen::Choice;
use crate::clients::{Clients, Kin, serve_for};
use crate::control;
use crate::host::{Host, Swap, buffer, no_thread};
use crate::leave::leave_alone;
use crate::memory::Region;
use crate::process::{Process, userfaultfd};
use crate::regions::{Mapping, only_there, parts_mapped};
use crate::serve::{MESSAGES, serve};
use crate::session::open;
use crate::wire::Handed;

const PAGE: u64 = PAGE_SIZE as u64;
/// Bytes of a message: what, three numbers, and the two of the family.
const ASKED: usize = 48;
/// What a message asks for.
const HAND: u64 = 1;
const JOIN: u64 = 2;
const HOLD: u64 = 3;
const DONE: u64 = 4;
const FORK: u64 = 5;
const NO_FORK: u64 = 6;
/// What an answer says: no; yes; all memory is the kernel's again.
const REFUSED: u64 = 0;
const ACCEPTED: u64 = 1;
const LEFT: u64 = 2;
/// Descriptors that a process takes here at most, and the others.
const DESCRIPTORS_EACH: u64 = 8;
const DESCRIPTORS: u64 = 128;
/// How often it is looked whether a process has ended whose connection has.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What a process asks for.
struct Asked {
    what: u64,
    memory: Handed,
    token: [u64; 2],
    descriptors: Vec<OwnedFd>,
}

/// All that share memory.
struct Family {
    options: Options,
    shared: SharedMemory,
    /// The first process' number.
    first: i32,
    /// Their memory, once there is any.
    host: OnceLock<&'static Host>,
    making: Mutex<()>,
    /// Children that are about to come: forked, or about to be, and not yet known. One that was killed before it came stays among them, and then no memory is given up until the family ends.
    expected: AtomicI64,
    /// Connections, to tell that the memory is the kernel's again.
    sockets: Mutex<Vec<(u64, OwnedFd)>>,
    fewer: OwnedFd,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a family, until the last of those that have connected has ended, and `first` too, the process that the command became.
///
/// # Errors
/// One line: it cannot begin.
pub fn run(listener: UnixListener, first: OwnedFd, number: i32, options: Options) -> Result<(), String> {
    let shared = options.shared.clone().ok_or("no shared memory is to be managed")?;
    let signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1]).map_err(|why| format!("cannot listen for signals ({why})"))?;
    for ignored in [SIGPIPE, SIGXFSZ] {
        signal_hook::flag::register(ignored, Arc::new(AtomicBool::new(false)))
            .map_err(|why| format!("cannot ignore SIGPIPE and SIGXFSZ ({why})"))?;
    }
    // Each process takes some descriptors.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let fewer = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| format!("no descriptor is left ({errno})"))?;
    // The limit is one of its own; nothing else that is the program's concerns its manager.
    let options = Options {
        memory: shared.memory,
        slowdown: None,
        memory_min: None,
        budget: None,
        seat: None,
        family: None,
        stats: None,
        evictors: None,
        ..options
    };
    let family: &'static Family = Box::leak(Box::new(Family {
        options,
        shared,
        first: number,
        host: OnceLock::new(),
        making: Mutex::default(),
        expected: AtomicI64::new(0),
        sockets: Mutex::default(),
        fewer,
    }));
    let obeying = thread::Builder::new().name("farshore-signals".into());
    obeying.spawn(move || family.obey(signals)).map_err(no_thread)?;
    family.accept(&listener, &first);
    Ok(())
}

impl Family {
    /// Takes connections until the family has ended.
    fn accept(&'static self, listener: &UnixListener, first: &OwnedFd) {
        let mut has_ended = false;
        loop {
            if has_ended && locked(&self.sockets).is_empty() {
                return;
            }
            let mut wanted = vec![PollFd::new(listener, PollFlags::IN), PollFd::new(&self.fewer, PollFlags::IN)];
            wanted.extend((!has_ended).then(|| PollFd::new(first, PollFlags::IN)));
            match poll(&mut wanted, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => panic!("the family cannot be waited for ({errno})"),
            }
            let [comes, fewer, ended] = [0, 1, 2].map(|n| wanted.get(n).is_some_and(|fd| !fd.revents().is_empty()));
            has_ended |= ended;
            if fewer {
                let _ = rustix::io::read(&self.fewer, &mut [0; 8]);
            }
            match comes.then(|| listener.accept()) {
                Some(Ok((socket, _))) => self.welcome(socket.into()),
                // No descriptor is left for the moment.
                Some(Err(_)) => thread::sleep(Duration::from_millis(10)),
                None => {}
            }
        }
    }

    /// Starts the thread that serves a process.
    fn welcome(&'static self, socket: OwnedFd) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let Ok(other) = socket.try_clone() else { return };
        locked(&self.sockets).push((id, other));
        let attend = move || {
            if let Err(why) = self.attend(&socket) {
                tell(&why);
            }
            // For the process it ends now, whoever else has a descriptor of it.
            _ = shutdown(&socket, Shutdown::Both);
            locked(&self.sockets).retain(|(other, _)| *other != id);
            let _ = rustix::io::write(&self.fewer, &1_u64.to_ne_bytes());
        };
        if let Err(why) = thread::Builder::new().name("farshore-kin".into()).spawn(attend) {
            tell(&no_thread(why));
            locked(&self.sockets).retain(|(other, _)| *other != id);
        }
    }

    /// Does what signals say.
    fn obey(&self, mut signals: Signals) {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                self.host.get().inspect(|host| tell(&format!("shared memory: {}", host.line())));
                continue;
            }
            // No memory comes from here on, nor does a process: each waits for this process' end, or for the answer that it leaves.
            let making = locked(&self.making);
            let alone = self.host.get().map(|host| (host, host.in_one_hand()));
            match alone.as_ref().map_or(Ok(0), |(host, alone)| leave_alone(host, alone)) {
                Ok(bytes) => {
                    locked(&self.sockets).iter().for_each(|(_, socket)| answer(socket, LEFT));
                    tell(&format!("shared memory has no limit any more: {} of it are back", amount(bytes)));
                    std::process::exit(128 + signal);
                }
                Err(why) => tell(&format!("shared memory: {why}")),
            }
            drop(making);
        }
    }

    /// The engine, which is made for the first memory.
    fn host(&self) -> Result<&'static Host, String> {
        let _making = locked(&self.making);
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let host = Host::make(&self.options, Choice::new(&self.options, self.first, None)?, None, Swap::New)?;
        host.begin(&self.options)?;
        if let Err(why) = control::start(host, self.first) {
            tell(&format!("farshore stat and set do not reach the manager of shared memory ({why})"));
        }
        Ok(self.host.get_or_init(|| host))
    }

    /// Serves one process, from its first message to its end.
    fn attend(&self, socket: &OwnedFd) -> Result<(), String> {
        let Some(asked) = receive(socket)? else { return Ok(()) };
        if asked.token != self.shared.token {
            return Err("a process that is not of the family has connected: it is not served".into());
        }
        let process = Process::at(socket)?;
        let refused = |why: String| {
            answer(socket, REFUSED);
            format!("the shared memory of process {} stays in RAM, without a limit: {why}", process.number())
        };
        let (kin, host) = match asked.what {
            HAND => self.begin(&process, asked).map_err(refused)?,
            JOIN => self.join(&process, asked).map_err(refused)?,
            other => return Err(format!("process {} begins with message {other}", process.number())),
        };
        answer(socket, ACCEPTED);
        Served { family: self, host, kin, process, socket }.run();
        Ok(())
    }

    /// The page tables of a process, by the userfaultfd that it sends.
    fn kin(process: &Process, uffd: OwnedFd) -> Result<Arc<Kin>, String> {
        process.keeps(&uffd)?;
        let uffd = userfaultfd(uffd, Features::default())?;
        let failed = |errno: Errno| format!("its userfaultfd cannot be read without waiting ({errno})");
        // Another thread of it may take a message back, by being killed, between the look and the read.
        let flags = rustix::fs::fcntl_getfl(uffd.fd()).map_err(failed)?;
        rustix::fs::fcntl_setfl(uffd.fd(), flags | OFlags::NONBLOCK).map_err(failed)?;
        let kernel = LinuxKernel::new(uffd, true).map_err(|errno| format!("/proc/self/mem cannot be opened ({errno})"))?;
        Ok(Arc::new(Kin::new(kernel, process.number())))
    }

    /// A process hands its first memory over.
    fn begin(&self, process: &Process, mut asked: Asked) -> Result<(Arc<Kin>, &'static Host), String> {
        if asked.descriptors.len() != 2 {
            return Err("its userfaultfd and its file have not come along".into());
        }
        let kin = Family::kin(process, asked.descriptors.remove(0))?;
        let host = self.host()?;
        serve_for(kin.clone());
        host.engine.kernel.clients().alone().push(kin.clone());
        match hand_over(host, &kin, process, &asked) {
            Ok(()) => Ok((kin, host)),
            Err(why) => {
                host.engine.kernel.clients().alone().retain(|other| !Arc::ptr_eq(other, &kin));
                Err(why)
            }
        }
    }

    /// A child has what its parent has: whatever of the memory it has mapped, at the place where the others have it.
    fn join(&self, process: &Process, mut asked: Asked) -> Result<(Arc<Kin>, &'static Host), String> {
        if asked.descriptors.len() != 1 {
            return Err("its userfaultfd has not come along".into());
        }
        let kin = Family::kin(process, asked.descriptors.remove(0))?;
        let host = *self.host.get().ok_or("there is no shared memory yet")?;
        serve_for(kin.clone());
        // Memory neither comes nor goes meanwhile, and is not given back.
        let _space = host.in_one_hand();
        let regions = host.engine.kernel.memory().all();
        let mappings = process.mappings()?;
        let mut all = Vec::new();
        for region in &regions {
            let told = Handed { address: region.pages.start.addr(), bytes: region.pages.bytes(), offset: region.offset };
            for part in parts_mapped(&told, region.backing.identity(), &mappings) {
                let (address, bytes) = (part.start.addr(), part.bytes());
                all.push((Handed { address, bytes, offset: told.offset + address - told.address }, region.backing.identity()));
            }
        }
        only_there(&all, &mappings)?;
        let handed: Vec<Handed> = all.iter().map(|(handed, _)| *handed).collect();
        let mut others = host.engine.kernel.clients().alone();
        handed.iter().try_for_each(|part| {
            let failed = |why: &dyn std::fmt::Display| format!("{part}: it cannot be registered ({why})");
            kin.register(part.pages()).map_err(|errno| failed(&errno))?;
            // Whatever is out or clean must fault in its page table too.
            kin.protect_all(part.pages()).map_err(|why| failed(&format!("{why:?}")))
        })?;
        process.check_registered(&handed)?;
        kin.set_ranges(&others, handed.iter().map(Handed::pages).collect());
        others.push(kin.clone());
        drop(others);
        // Under the lock: whoever looks what nobody has finds this one expected, or known.
        self.expected.fetch_sub(1, Ordering::SeqCst);
        Ok((kin, host))
    }

    /// Whether there are descriptors for one process more, and some that are about to come.
    fn has_room(&self) -> bool {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let expected = u64::try_from(self.expected.load(Ordering::SeqCst)).unwrap_or(0);
        (locked(&self.sockets).len() as u64 + expected + 2) * DESCRIPTORS_EACH + DESCRIPTORS < most
    }

    /// What no process has any more, and none that is about to come, is given up.
    fn give_up_what_nobody_has(&self, host: &Host) {
        let alone = host.in_one_hand();
        let has = |kin: &Arc<Kin>, region: &Region| kin.ranges().iter().any(|range| !range.intersect(region.pages).is_empty());
        for region in host.engine.kernel.memory().all() {
            // Nobody can map it again: a child has what its parent has.
            let is_had = host.engine.kernel.clients().alone().iter().any(|kin| has(kin, &region));
            // In this order: a process that has it says so before it forks.
            if is_had || self.expected.load(Ordering::SeqCst) > 0 {
                continue;
            }
            if let Err(why) = host.drop_region_alone(region.pages, &alone) {
                tell(&format!("shared memory that nobody has any more: {why}"));
            }
        }
    }
}

/// Manages memory that a process has mapped: nobody else has it.
fn hand_over(host: &Host, kin: &Kin, process: &Process, asked: &Asked) -> Result<(), String> {
    let (handed, clients) = (asked.memory, host.engine.kernel.clients());
    let regions = open(process, &[handed], &host.engine.kernel.memory().all(), &asked.descriptors)?;
    let before = kin.ranges();
    let with = before.iter().copied().chain([handed.pages()]).collect();
    kin.set_ranges(&clients.alone(), with);
    host.take(regions, |_| process.check_registered(&[handed])).inspect_err(|_| kin.set_ranges(&clients.alone(), before))
}

/// What of `ranges` is still mapped as it was.
fn what_is_mapped(ranges: &[PageRange], regions: &[Region], mappings: &[Mapping]) -> Vec<PageRange> {
    let mapped = |range: &PageRange| {
        let region = regions.iter().find(|region| !region.pages.intersect(*range).is_empty());
        region.map_or_else(Vec::new, |region| {
            let (address, bytes) = (range.start.addr(), range.bytes());
            let offset = region.offset + address - region.pages.start.addr();
            parts_mapped(&Handed { address, bytes, offset }, region.backing.identity(), mappings)
        })
    };
    ranges.iter().flat_map(mapped).collect()
}

/// The parts of a range that do not lie in another one.
fn without(range: PageRange, gone: PageRange) -> impl Iterator<Item = PageRange> {
    let before = PageRange { start: range.start, end: range.end.min(gone.start) };
    let behind = PageRange { start: range.start.max(gone.end), end: range.end };
    [before, behind].into_iter().filter(|part| part.start < part.end)
}

/// A process that is served.
struct Served<'a> {
    family: &'a Family,
    host: &'static Host,
    kin: Arc<Kin>,
    process: Process,
    socket: &'a OwnedFd,
}

impl Served<'_> {
    fn clients(&self) -> &'static Clients {
        self.host.engine.kernel.clients()
    }

    /// Serves its faults and its messages until it has ended.
    fn run(&self) {
        let (mut messages, mut buffer) = ([Message::EMPTY; MESSAGES], buffer());
        let mut is_open = true;
        loop {
            let faults = self.kin.kernel.uffd().fd();
            let mut wanted = vec![PollFd::new(faults, PollFlags::IN)];
            wanted.extend(is_open.then(|| PollFd::new(self.socket, PollFlags::IN)));
            match poll(&mut wanted, if is_open { None } else { Some(&PAUSE) }) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => panic!("process {} cannot be waited for ({errno})", self.process.number()),
            }
            let has_asked = wanted.get(1).is_some_and(|socket| !socket.revents().is_empty());
            if !wanted[0].revents().is_empty()
                && let Ok(count) = self.kin.kernel.uffd().read_messages(&mut messages)
            {
                let faults = messages[..count].iter().filter_map(Message::fault);
                faults.for_each(|fault| serve(self.host, fault, &mut buffer));
            }
            if has_asked {
                is_open = self.listen();
            }
            if !is_open && self.has_ended() {
                break;
            }
        }
        self.clients().alone().retain(|kin| !Arc::ptr_eq(kin, &self.kin));
        self.family.give_up_what_nobody_has(self.host);
    }

    /// Does what it asks for. `false`: it has closed its connection.
    fn listen(&self) -> bool {
        let asked = match receive(self.socket) {
            Ok(Some(asked)) => asked,
            Ok(None) => return false,
            Err(why) => {
                tell(&format!("process {}: {why}", self.process.number()));
                return false;
            }
        };
        match asked.what {
            HAND if asked.descriptors.len() == 1 => match hand_over(self.host, &self.kin, &self.process, &asked) {
                Ok(()) => answer(self.socket, ACCEPTED),
                Err(why) => {
                    tell(&format!("shared memory of process {} stays in RAM, without a limit: {why}", self.process.number()));
                    answer(self.socket, REFUSED);
                }
            },
            HOLD => return self.hold(),
            FORK if self.family.has_room() => {
                self.family.expected.fetch_add(1, Ordering::SeqCst);
                answer(self.socket, ACCEPTED);
            }
            FORK => answer(self.socket, REFUSED),
            NO_FORK => {
                self.family.expected.fetch_sub(1, Ordering::SeqCst);
                self.family.give_up_what_nobody_has(self.host);
            }
            other => {
                tell(&format!("process {} sends message {other}, which says nothing here", self.process.number()));
                return false;
            }
        }
        true
    }

    /// It changes its mappings meanwhile. `false`: its connection has ended.
    fn hold(&self) -> bool {
        let regions = self.host.engine.kernel.memory().all();
        let before = self.kin.ranges();
        let alone = self.clients().alone();
        answer(self.socket, ACCEPTED);
        let done = match receive(self.socket) {
            Ok(Some(asked)) if asked.what == DONE => Some(asked.memory),
            _ => None,
        };
        // The kernel tells, also when a call has failed and has taken something away all the same. It tells nothing of a process whose first thread has ended, or that has become
        // another user's; then what the process says counts. One that says nothing has ended, and is found to have.
        let mappings = self.process.mappings().unwrap_or_default();
        let left: Vec<PageRange> = match &done {
            None => before.clone(),
            Some(gone) if mappings.is_empty() => before.iter().flat_map(|range| without(*range, gone.pages())).collect(),
            Some(_) => what_is_mapped(&before, &regions, &mappings),
        };
        self.kin.set_ranges(&alone, left);
        drop(alone);
        // Whoever waited where nothing is any more finds that out.
        before.into_iter().for_each(|range| self.kin.wake(range));
        self.family.give_up_what_nobody_has(self.host);
        done.is_some()
    }

    /// Whether its page tables are gone: it has ended, or become another program.
    fn has_ended(&self) -> bool {
        let one = self.kin.ranges().first().map(|range| PageRange { start: range.start, end: range.start.plus(1) });
        // Protection that is too much does no harm.
        one.is_none_or(|one| self.kin.kernel.uffd().protect(one.start.addr(), PAGE) == Err(UffdError::ProcessGone))
    }
}

fn answer(socket: &OwnedFd, what: u64) {
    let _ = send(socket, &what.to_le_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Waits for the next message. `None`: there will be none.
fn receive(socket: &OwnedFd) -> Result<Option<Asked>, String> {
    let (mut bytes, mut done, mut descriptors) = ([0_u8; ASKED], 0, Vec::new());
    while done < ASKED {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut bytes[done..])], &mut control, RecvFlags::CMSG_CLOEXEC);
        match got {
            Ok(got) if got.bytes > 0 => done += got.bytes,
            Ok(_) | Err(Errno::CONNRESET) => return Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(format!("its connection cannot be read ({errno})")),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
            }
        }
    }
    let (numbers, _) = bytes.as_chunks::<8>();
    let number = |n: usize| numbers.get(n).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let memory = Handed { address: number(1), bytes: number(2), offset: number(3) };
    Ok(Some(Asked { what: number(0), memory, token: [number(4), number(5)], descriptors }))
}
