//! The client's memory is lent to other processes of its user (OVS, SPDK), which map it too: they are let in, their faults are served, and what they have locked stays ([`crate::lockers`]).
//!
//! ```text
//!  connection ─▶ same user, or root? ─▶ a place? ─▶ files and a table of locks go there ─▶ where it has mapped them, its userfaultfd
//!        ─▶ evictors know of it ─▶ registered, protected ─▶ kept for whoever takes over ─▶ ready
//!  fault ─▶ page: Engine::pin ─▶ writable in its mapping, if it writes ─▶ unpin ─▶ wake
//!  its end, its connection's, locks beyond what it may, a region that goes ─▶ cut off
//! ```
//!
//! Each has a thread, which serves its faults one after the other. A locker that is slow, or lies, holds up that thread alone.
//!
//! # Who may
//!
//! Who it is, the kernel says (`SO_PEERCRED`): the manager's own user, or root. What it gets is the memory itself, to be read and written, and a table of its own; of the manager it gets nothing. Files are opened for it anew, since
//! the manager's own descriptions have its lock.
//!
//! # When the manager is killed
//!
//! The keeper has each locker's connection, process, userfaultfd and table. The next manager reads from the table where the memory is mapped, and serves it before its first page leaves ([`take_over`]). Between the two nothing
//! leaves, so locks hold all the time.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use farshore_command::say::tell;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::seams::PageBuf;
use farshore_core::table::PageTable;
use farshore_core::word::State as PageState;
use farshore_engine::fault::pins::Pinned;
use farshore_map::table::{Mapped, State, Table};
use farshore_map::wire::{self, Came, DESCRIPTORS_MAX, Told};
use farshore_sys::cpu;
use farshore_sys::uffd::{Fault, Features, Message};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use crate::host::{Host, buffer, no_thread};
use crate::keeper::{Keeper, Kept};
use crate::lockers::{LOCKERS_MAX, Locker, Lockers, Part, parts};
use crate::memory::{Identity, Region, own_path};
use crate::process::{name, userfaultfd};
use crate::seldom::Seldom;
use crate::serve::{wait_for_room, wants_room};

const PAGE: u64 = PAGE_SIZE as u64;
/// How long each step of a process that is let in may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked what each has locked.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Messages of one read.
const MESSAGES: usize = 4;
/// Root.
const ROOT: u32 = 0;

fn lockers(host: &Host) -> &Lockers {
    host.engine.kernel.lockers()
}

/// Listens for processes that want the memory of process `client`.
///
/// # Errors
/// One line: there is no socket to be had, or no thread. The client is served all the same.
pub fn start(host: &'static Host, keeper: &'static Keeper, client: i32) -> Result<(), String> {
    let name = wire::socket_name(geteuid().as_raw(), client.unsigned_abs());
    let failed = |errno: Errno| format!("no socket '@{name}' ({errno})");
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    rustix::net::bind(&socket, &address).map_err(failed)?;
    rustix::net::listen(&socket, 16).map_err(failed)?;
    let accept = move || {
        loop {
            match rustix::net::accept_with(&socket, SocketFlags::CLOEXEC) {
                Ok(came) => welcome(host, keeper, came),
                // No descriptor or no memory is left: perhaps there will be.
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    thread::Builder::new().name("farshore-lend".into()).spawn(accept).map(drop).map_err(no_thread)
}

/// Lets a process in, on a thread of its own.
fn welcome(host: &'static Host, keeper: &'static Keeper, socket: OwnedFd) {
    let peer = getsockopt(&socket, PeerCredentials);
    let Ok(peer) = peer else { return };
    let refuse = |why: &str| {
        static SAID: Seldom = Seldom::new();
        let (process, user) = (peer.pid(), peer.uid());
        SAID.tell(|| format!("process {process} of user {user} does not get the memory: {why}"));
        _ = wire::refuse(socket.as_fd(), why);
    };
    let own = geteuid().as_raw();
    if ![own, ROOT].contains(&peer.uid()) {
        return refuse(&format!("only processes of user {own}, or of root, may have it mapped"));
    }
    let Some(number) = lockers(host).take_place() else {
        return refuse(&format!("{LOCKERS_MAX} processes have it mapped, and no more may"));
    };
    let process = peer.pid();
    let begun =
        thread::Builder::new().name("farshore-map".into()).spawn(move || match let_in(host, keeper, number, process, &socket) {
            Ok(locker) => {
                tell(&format!("process {process} ({}) has the memory mapped too", name(process)));
                attend(host, keeper, &locker);
            }
            Err(why) => {
                tell(&format!("process {process} does not get the memory: {why}"));
                _ = wire::refuse(socket.as_fd(), &why);
                _ = keeper.keep(Kept::Locker(number), &[]);
                lockers(host).give_place(number);
            }
        });
    if begun.is_err() {
        lockers(host).give_place(number);
    }
}

/// Gives a process the memory, and a table of locks; registers what it has mapped.
fn let_in(host: &'static Host, keeper: &Keeper, number: usize, process: i32, socket: &OwnedFd) -> Result<Arc<Locker>, String> {
    let failed = |errno: Errno| format!("its connection fails ({errno})");
    let end = Pid::from_raw(process).ok_or("it is in another PID namespace")?;
    let end = pidfd_open(end, PidfdFlags::empty()).map_err(|errno| format!("it has ended ({errno})"))?;
    [Timeout::Recv, Timeout::Send].iter().try_for_each(|one| set_socket_timeout(socket, *one, Some(PATIENCE))).map_err(failed)?;
    let next = || match wire::receive(socket.as_fd()).map_err(failed)? {
        Came::Numbers(numbers, descriptors) => Ok((numbers, descriptors)),
        Came::Refused(_) | Came::Closed => Err("it has closed the connection".to_owned()),
    };
    next()?;
    let regions = host.engine.kernel.memory().all();
    let (told, files) = told(&regions)?;
    let pages: Vec<PageRange> = regions.iter().map(|region| region.pages).collect();
    let table = Table::make(pages.iter().map(|pages| pages.len() as usize).sum());
    let table = table.map_err(|errno| format!("there is no memory for its locks ({errno})"))?;
    table.allow(crate::lockers::allowed(host.engine.memory_limit()));
    let mut descriptors = vec![table.as_fd()];
    descriptors.extend(files.iter().map(|file| file.as_fd()));
    wire::send(socket.as_fd(), &told, &descriptors).map_err(failed)?;
    let (mapped, descriptors) = next()?;
    let parts = parts(&pages, &mapped)?;
    let uffd = descriptors.into_iter().next().ok_or("it has sent no userfaultfd")?;
    let uffd = userfaultfd(uffd, Features::default())?;
    let socket = socket.try_clone().map_err(|error| format!("no descriptor is left ({error})"))?;
    let locker = Arc::new(Locker::new(number, (process, end), socket, uffd, table, parts));
    // Regions neither come nor go meanwhile, and the memory is not given back.
    let _space = host.in_one_hand();
    let now = host.engine.kernel.memory().all();
    let is_there = |pages: &PageRange| now.iter().any(|region| region.pages == *pages);
    if !pages.iter().all(is_there) {
        return Err("a part of the memory was taken away meanwhile".into());
    }
    locker.note();
    lockers(host).add(locker.clone());
    let begun = register(&locker).and_then(|()| {
        let kept = [locker.socket.as_fd(), locker.end.as_fd(), locker.uffd.fd().as_fd(), locker.table.as_fd()];
        keeper.keep(Kept::Locker(number), &kept)
    });
    let begun = begun.and_then(|()| {
        // Before it hears of it.
        locker.table.set_state(State::Served);
        wire::send(locker.socket.as_fd(), &[], &[]).map_err(failed)
    });
    match begun {
        Ok(()) => Ok(locker),
        Err(why) => {
            // It was told nothing: what it has mapped is its own affair, and its userfaultfd stays open there.
            lockers(host).cut_off(&locker);
            lockers(host).forget(&locker);
            Err(why)
        }
    }
}

/// What a process is told of the memory: numbers for each region, and files that were opened for it.
fn told(regions: &[Region]) -> Result<(Vec<u64>, Vec<OwnedFd>), String> {
    let (mut numbers, mut files, mut known) = (Vec::new(), Vec::new(), HashMap::<Identity, u64>::new());
    for region in regions {
        let file = match known.get(&region.backing.identity()) {
            Some(file) => *file,
            None => {
                let path = own_path(&region.backing.file());
                let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
                files.push(opened.map_err(|errno| format!("a file of the memory cannot be opened for it ({errno})"))?);
                let file = files.len() as u64 - 1;
                known.insert(region.backing.identity(), file);
                file
            }
        };
        let (address, bytes) = (region.pages.start.addr(), region.pages.bytes());
        numbers.extend(Told { address, bytes, offset: region.offset, file }.numbers());
    }
    if files.len() >= DESCRIPTORS_MAX {
        return Err(format!("the memory has {} files, which are too many to be sent", files.len()));
    }
    Ok((numbers, files))
}

/// Registers a locker's mapping, and write-protects all of it.
fn register(locker: &Locker) -> Result<(), String> {
    for Part { pages, at, .. } in locker.parts() {
        // SAFETY: the memory of another process, which has handed it over; each fault there is served from here on, or waits until the process ends.
        let registered = unsafe { locker.uffd.register(*at, pages.bytes()) };
        registered
            .map_err(|errno| format!("what it has mapped at {at:#x} cannot be registered with its userfaultfd ({errno})"))?;
    }
    match locker.protect_all() {
        Ok(true) => Ok(()),
        Ok(false) => Err("it has nothing mapped where it says".into()),
        Err(why) => Err(format!("what it has mapped cannot be write-protected ({why})")),
    }
}

/// Serves a locker until its end.
fn attend(host: &'static Host, keeper: &Keeper, locker: &Arc<Locker>) {
    let mut buffer = buffer();
    let why = loop {
        let mut wanted = [
            PollFd::new(&locker.end, PollFlags::IN),
            PollFd::new(&locker.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(locker.uffd.fd().as_fd(), PollFlags::IN),
        ];
        match poll(&mut wanted, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("a process that has the memory mapped cannot be waited for ({errno})"),
        }
        let [ended, closed, fault] = wanted.map(|one| !one.revents().is_empty());
        // Nothing comes over the connection any more but its end.
        if ended || closed {
            break None;
        }
        if let Some(has) = locker.look(host.engine.memory_limit()) {
            break Some(format!("it has locked {has} pages, more than it may"));
        }
        if let Some(why) = locker.failure() {
            break Some(why);
        }
        if fault {
            serve_some(host, locker, &mut buffer);
        }
    };
    end(host, keeper, locker, why);
}

/// A locker's end: of its own, or why it is cut off.
fn end(host: &Host, keeper: &Keeper, locker: &Arc<Locker>, why: Option<String>) {
    let lockers = lockers(host);
    let was_served = lockers.cut_off(locker);
    match &why {
        Some(why) => {
            if was_served {
                lockers.counts.cut_off.fetch_add(1, Ordering::Relaxed);
            }
            tell(&format!("process {} has the memory mapped, and is cut off: {why}; its locks hold no more", locker.process));
        }
        None => tell(&format!("process {} has the memory mapped no more", locker.process)),
    }
    wait_for_end(host, keeper, locker);
}

/// Keeps the userfaultfd of a locker that is served no more until nothing is mapped there, or its process has ended.
fn wait_for_end(host: &Host, keeper: &Keeper, locker: &Arc<Locker>) {
    while locker.protect_all() != Ok(false) {
        if poll(&mut [PollFd::new(&locker.end, PollFlags::IN)], Some(&Timespec { tv_sec: 1, tv_nsec: 0 })) == Ok(1) {
            break;
        }
    }
    _ = keeper.keep(Kept::Locker(locker.number), &[]);
    lockers(host).forget(locker);
    lockers(host).give_place(locker.number);
}

/// Serves the faults that are there.
fn serve_some(host: &Host, locker: &Locker, buffer: &mut [PageBuf]) {
    let mut messages = [Message::EMPTY; MESSAGES];
    match locker.uffd.read_messages_now(&mut messages) {
        Ok(count) => messages[..count].iter().filter_map(Message::fault).for_each(|fault| serve(host, locker, fault, buffer)),
        Err(farshore_sys::raw::Errno::EAGAIN | farshore_sys::raw::Errno::EINTR) => {}
        Err(why) => locker.fail(format!("its faults cannot be read ({why})")),
    }
}

fn serve(host: &Host, locker: &Locker, fault: Fault, buffer: &mut [PageBuf]) {
    let at = Page::containing(fault.address).addr();
    let Some(page) = locker.page_at(at) else { return };
    let access = if fault.write || fault.protected { Access::Write } else { Access::Read };
    if !fault.protected && host.state_of(page) == Some(PageState::Resident) {
        host.forget_thrown_away(page);
    }
    match host.engine.pin(page, access, cpu::current(), buffer) {
        Ok(Pinned::Held) => {
            if access == Access::Write
                && let Err(why) = locker.unprotect(at)
            {
                locker.fail(format!("a page cannot be made writable in its mapping ({why})"));
            }
            host.engine.unpin(page);
        }
        // The region goes, and it is about to be cut off.
        Ok(Pinned::Foreign) => return,
        Err(why) if wants_room(&why) => wait_for_room(&why),
        Err(why) => {
            static SAID: Seldom = Seldom::new();
            SAID.tell(|| {
                format!("the page at {:#x} of the client cannot be had for process {}: {why}", page.addr(), locker.process)
            });
            // Whatever is left of its protection would keep the poison out. It is not there: nobody writes to it.
            if !fault.protected {
                _ = locker.unprotect(at);
                _ = locker.uffd.poison(at, PAGE);
            }
        }
    }
    lockers(host).counts.faults.fetch_add(1, Ordering::Relaxed);
    _ = locker.uffd.wake(at, PAGE);
}

/// Takes the lockers over from a manager that was killed. No page leaves yet.
pub fn take_over(host: &'static Host, keeper: &'static Keeper) {
    for_each_kept(keeper, |number, locker| {
        let place = lockers(host);
        place.take_this_place(number);
        let Some(locker) = locker else { return };
        let regions = host.engine.kernel.memory().all();
        let is_there = |part: &Part| regions.iter().any(|region| region.pages == part.pages);
        let is_served = locker.table.state() == State::Served && locker.parts().iter().all(is_there);
        if is_served {
            place.add(locker.clone());
        } else {
            locker.table.set_state(State::CutOff);
            place.add_cut(locker.clone());
        }
        let begun = thread::Builder::new().name("farshore-map".into()).spawn({
            let locker = locker.clone();
            move || if is_served { attend(host, keeper, &locker) } else { wait_for_end(host, keeper, &locker) }
        });
        if let Err(why) = begun {
            tell(&no_thread(why));
            place.cut_off(&locker);
        }
    });
}

/// A manager was killed when all pages were back: its lockers go on without one.
pub fn set_free(keeper: &Keeper) {
    for_each_kept(keeper, |_, locker| {
        if let Some(locker) = locker {
            if locker.table.state() == State::Served {
                locker.table.set_state(State::Free);
            }
            locker.unregister();
        }
    });
}

/// Each locker that the keeper has, by its place. `None`: it is none that is understood. The keeper has its descriptors on, so whoever touches a page that is out there waits.
fn for_each_kept(keeper: &Keeper, mut each: impl FnMut(usize, Option<Arc<Locker>>)) {
    for number in 0..LOCKERS_MAX {
        let Ok(kept) = <[OwnedFd; 4]>::try_from(keeper.take(Kept::Locker(number))) else { continue };
        let process = getsockopt(&kept[0], PeerCredentials).map_or(0, |peer| peer.pid());
        let locker = kept_locker(number, process, kept).inspect_err(|why| {
            tell(&format!("process {process} has the memory mapped, and is not served any more: {why}"));
        });
        each(number, locker.ok());
    }
}

fn kept_locker(number: usize, process: i32, kept: [OwnedFd; 4]) -> Result<Arc<Locker>, String> {
    let [socket, end, uffd, table] = kept;
    let uffd = userfaultfd(uffd, Features::default())?;
    let table = Table::open(table).map_err(|errno| format!("its table cannot be mapped ({errno})"))?;
    let noted = table.noted();
    // Whoever has the table may have changed it.
    let pages_of = |one: &Mapped| {
        let start = Page::containing(one.address);
        PageRange { start, end: Page(start.0.saturating_add(one.bytes / PAGE)) }
    };
    let pages: Vec<PageRange> = noted.iter().map(pages_of).collect();
    if pages.iter().any(|pages| !PageTable::covers(*pages)) {
        return Err("its table has memory that cannot be".into());
    }
    let parts = parts(&pages, &noted.iter().map(|one| one.at).collect::<Vec<_>>())?;
    Ok(Arc::new(Locker::new(number, (process, end), socket, uffd, table, parts)))
}
