//! One client, from its connection to its end.
//!
//! ```text
//!  connection ─▶ first request ─▶ checked ─▶ managed ─▶ answer ─▶ more regions ⋯ ─▶ the client's process has ended
//!                   │ wrong          │                              │ wrong             ▼
//!                   └────────────────┴─▶ a line, no answer, the     └─▶ a line, no      this process ends, and all that was the client's with it
//!                                        connection ends                answer
//! ```
//!
//! The client's *process* is what counts, not its connection: a connection that ends takes the way to add regions with it, and no more. Memory that was handed over is served until the
//! process has ended, or this one is told to end and gives it back.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use farshore_backend::file::FileArray;
use farshore_command::say::{amount, tell};
use farshore_config::Options;
use farshore_core::limits::PAGE_SIZE;
use farshore_sys::uffd::Features;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::ahead;
use crate::chosen::Choice;
use crate::connection::{Came, Connection, Next};
use crate::control;
use crate::host::{Host, Swap};
use crate::keeper::{Keeper, Kept};
use crate::leave::leave;
use crate::memory::{Backing, Identity, Region};
use crate::process::{Process, userfaultfd};
use crate::regions::{check, file_of, only_there};
use crate::serve;
use crate::takeover::{Left, wake};
use crate::wire::{Handed, Request};

/// Serves the client of a keeper, until its process has ended: one that hands its memory over, or one whose manager was killed. `list`: where the client has a seat, if its memory is a share of a budget.
/// `monitor`: a connection to QEMU's monitor, if there is one.
///
/// # Errors
/// One line: it hands nothing over that could be managed. It was told nothing, and its connection is closed.
pub fn run(keeper: &'static Keeper, options: &Options, list: Option<OwnedFd>, monitor: Option<OwnedFd>) -> Result<(), String> {
    let signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1]).map_err(|why| format!("cannot listen for signals ({why})"))?;
    // The second comes where a file would be longer than a limit allows, which the call tells too.
    for ignored in [SIGPIPE, SIGXFSZ] {
        signal_hook::flag::register(ignored, Arc::new(AtomicBool::new(false)))
            .map_err(|why| format!("cannot ignore SIGPIPE and SIGXFSZ ({why})"))?;
    }
    keeper.obeys();
    let socket = keeper.take_one(Kept::Connection).ok_or("its keeper has no connection")?;
    let process = Process::kept(&socket, keeper.take_one(Kept::Client).ok_or("its keeper has no client")?)?;
    let given = Given { options, list, monitor, signals, socket };
    match keeper.take_one(Kept::Tables) {
        Some(tables) => go_on(keeper, given, &process, tables),
        None => begin(keeper, given, &process),
    }
}

/// What a manager is started with, beside its client.
struct Given<'g> {
    options: &'g Options,
    /// Where the client has a seat, if its memory is a share of a budget.
    list: Option<OwnedFd>,
    /// A connection to QEMU's monitor.
    monitor: Option<OwnedFd>,
    signals: Signals,
    socket: OwnedFd,
}

/// Serves a client that hands its memory over.
fn begin(keeper: &'static Keeper, given: Given<'_>, process: &Process) -> Result<(), String> {
    let Given { options, list, monitor, signals, socket } = given;
    let mut connection = Connection::new(socket);
    let first = connection.first()?;
    let handed = match first.request {
        Request::HandOver(handed) => handed,
        Request::Restore(_) => {
            return Err("it speaks Firecracker's protocol: start a manager with --protocol firecracker for it".into());
        }
        _ => return Err("it changes regions before it has handed any memory over".into()),
    };
    let mut descriptors = first.descriptors.into_iter();
    let uffd = descriptors.next().ok_or("no userfaultfd came along with its memory")?;
    process.keeps(&uffd)?;
    let uffd = userfaultfd(uffd, Features::default())?;
    let regions = open(process, &handed, &[], descriptors.as_slice())?;
    drop(descriptors);
    let choice = Choice::new(options, process.number(), list)?;
    let host = Host::make(options, choice, uffd, Swap::New)?;
    host.begin(options)?;
    let check = |regions: &[Region]| {
        process.check_registered(&handed)?;
        let Some(state) = host.state else { return Ok(()) };
        // As long as it has no answer, the client's connection is to end with this process.
        state.set_under_way(true);
        leave_to(keeper, regions)?;
        keeper.keep(Kept::Uffd, &[host.uffd().fd().as_fd()])?;
        let swap: Vec<_> = host.engine.backend.files().into_iter().flat_map(FileArray::borrow).collect();
        keeper.keep(Kept::Swap, &swap)?;
        // Last: from now on somebody takes over if this process is killed.
        keeper.keep(Kept::Tables, &[state.file()])
    };
    host.take(regions, check)?;
    serve_with(host, signals, process, monitor)?;
    first.answer.into_iter().for_each(|form| connection.answer(form));
    host.state.inspect(|state| state.set_under_way(connection.has_more()));
    let bytes = host.engine.stats.managed() * PAGE_SIZE as u64;
    tell(&format!(
        "process {} has handed over {} of memory, of which {} may be in RAM (manager {})",
        process.number(),
        amount(bytes),
        amount(host.engine.memory_limit()),
        std::process::id()
    ));
    attend(keeper, host, process, Some(connection));
    tell(&format!("process {} has ended: {}", process.number(), host.line()));
    Ok(())
}

/// Goes on where another manager was killed, which has left these tables.
fn go_on(keeper: &'static Keeper, given: Given<'_>, process: &Process, tables: OwnedFd) -> Result<(), String> {
    let Given { options, list, monitor, signals, socket } = given;
    let left = Left::find(tables, keeper)?;
    let uffd = keeper.take_one(Kept::Uffd).ok_or("the userfaultfd was not kept")?;
    let uffd = userfaultfd(uffd, Features::default())?;
    let choice = Choice::new(options, process.number(), list)?;
    let host = Host::make(options, choice, uffd, Swap::Left(keeper.take(Kept::Swap)))?;
    let (under_way, is_given_back) = (left.state().is_under_way(), left.state().is_given_back());
    let times = left.state().takeovers() + 1;
    left.take_over(host, keeper)?;
    if is_given_back {
        tell(&format!(
            "process {} goes on without a manager: its memory was back when the last one was killed",
            process.number()
        ));
        return Ok(());
    }
    host.begin(options)?;
    serve_with(host, signals, process, monitor)?;
    wake(host);
    host.engine.wake_all_threads();
    // Of a request that has not come whole, or was not answered, nobody knows how far it came.
    // A client that is told nothing of its request must be told that it is told nothing: it ends here, and not with this function.
    let connection = Some(Connection::new(socket)).filter(|_| !under_way);
    tell(&format!(
        "process {} goes on with another manager (manager {}, takeover {times}): {}",
        process.number(),
        std::process::id(),
        host.line()
    ));
    attend(keeper, host, process, connection);
    tell(&format!("process {} has ended: {}", process.number(), host.line()));
    Ok(())
}

/// Starts what serves a client: faults, signals, questions.
fn serve_with(host: &'static Host, signals: Signals, process: &Process, monitor: Option<OwnedFd>) -> Result<(), String> {
    serve::start(host)?;
    ahead::start(host, monitor)?;
    obey(signals, host, process.number())?;
    if let Err(why) = control::start(host, process.number()) {
        tell(&format!("process {}: farshore stat and set do not reach its manager ({why})", process.number()));
    }
    Ok(())
}

/// Leaves the files of regions to whoever takes over, before any page of them is taken out.
fn leave_to(keeper: &Keeper, regions: &[Region]) -> Result<(), String> {
    for region in regions {
        let (device, inode) = region.backing.identity();
        keeper.keep(Kept::Memory(device, inode), &[region.backing.file()])?;
    }
    Ok(())
}

/// Checks regions against what the kernel says of the process, and opens their files. `there`: regions that it has handed over before.
fn open(process: &Process, new: &[Handed], there: &[Region], passed: &[OwnedFd]) -> Result<Vec<Region>, String> {
    let pages: Vec<_> = there.iter().map(|region| region.pages).collect();
    check(new, &pages)?;
    let mappings = process.mappings()?;
    let identities = new.iter().map(|region| file_of(region, &mappings)).collect::<Result<Vec<_>, _>>()?;
    let told =
        |region: &Region| Handed { address: region.pages.start.addr(), bytes: region.pages.bytes(), offset: region.offset };
    let before = there.iter().map(|region| (told(region), region.backing.identity()));
    let all: Vec<_> = before.chain(new.iter().copied().zip(identities.iter().copied())).collect();
    only_there(&all, &mappings)?;
    let mut files: HashMap<Identity, Arc<Backing>> =
        there.iter().map(|region| (region.backing.identity(), region.backing.clone())).collect();
    let mut regions: Vec<Region> = Vec::new();
    for (handed, identity) in new.iter().zip(identities) {
        let backing = match files.get(&identity) {
            Some(backing) => backing.clone(),
            None => Arc::new(process.open(handed, identity, passed)?),
        };
        files.insert(identity, backing.clone());
        let region = Region { pages: handed.pages(), backing, offset: handed.offset };
        if regions.iter().chain(there).any(|other| other.shares_with(&region)) {
            return Err(format!("{handed}: its bytes are those of another region"));
        }
        regions.push(region);
    }
    Ok(regions)
}

/// Waits for the client's end, and takes what it adds until then.
fn attend(keeper: &Keeper, host: &'static Host, process: &Process, mut connection: Option<Connection>) {
    // What came right behind the first request was read with it.
    let mut has_come = connection.as_ref().is_some_and(Connection::has_more);
    loop {
        let is_read = connection.is_some() && has_come;
        if is_read {
            host.state.inspect(|state| state.set_under_way(true));
        }
        if let Some(open) = connection.as_mut().filter(|_| has_come)
            && let Err(why) = listen(keeper, host, process, open)
        {
            if let Some(why) = why {
                tell(&format!("process {}: {why}; its memory is managed on, its connection is closed", process.number()));
            }
            connection = None;
        }
        if is_read {
            let more = connection.as_ref().is_none_or(Connection::has_more);
            host.state.inspect(|state| state.set_under_way(more));
        }
        has_come = false;
        let mut wanted = vec![PollFd::from_borrowed_fd(process.end(), PollFlags::IN)];
        wanted.extend(connection.as_ref().map(|connection| PollFd::new(connection, PollFlags::IN)));
        match poll(&mut wanted, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => panic!("the client cannot be waited for ({errno})"),
        }
        if !wanted[0].revents().is_empty() {
            return;
        }
        has_come = wanted.get(1).is_some_and(|socket| !socket.revents().is_empty());
    }
}

/// Does what has come over the connection. `Err`: it ends, and why if that is not the client's wish.
fn listen(keeper: &Keeper, host: &'static Host, process: &Process, connection: &mut Connection) -> Result<(), Option<String>> {
    loop {
        match connection.look().map_err(Some)? {
            Next::Came(came) => {
                let answer = came.answer;
                change(keeper, host, process, came).map_err(Some)?;
                answer.into_iter().for_each(|form| connection.answer(form));
            }
            Next::Nothing => return Ok(()),
            Next::Closed => return Err(None),
        }
        if !connection.has_more() {
            return Ok(());
        }
    }
}

/// The files of all regions.
fn identities(host: &Host) -> HashSet<Identity> {
    host.engine.kernel.memory().all().iter().map(|region| region.backing.identity()).collect()
}

/// Does what a request behind the first asks for.
fn change(keeper: &Keeper, host: &'static Host, process: &Process, came: Came) -> Result<(), String> {
    let (what, bytes) = match came.request {
        Request::HandOver(_) | Request::Restore(_) => return Err("it hands its memory over a second time".into()),
        Request::Add(handed) => {
            let regions = open(process, &[handed], &host.engine.kernel.memory().all(), &came.descriptors)?;
            let check = |regions: &[Region]| {
                process.check_registered(&[handed])?;
                if host.state.is_some() { leave_to(keeper, regions) } else { Ok(()) }
            };
            host.take(regions, check)?;
            ("added", handed.bytes)
        }
        Request::Remove { address, bytes } => {
            let region = Handed { address, bytes, offset: 0 };
            check(&[region], &[])?;
            let before = host.engine.kernel.memory().all();
            host.drop_region(region.pages())?;
            // What nobody has any more must not stay because it is kept, nor stay locked until its keeper has heard of it.
            let there = identities(host);
            for Region { backing, .. } in before.iter().filter(|region| !there.contains(&region.backing.identity())) {
                let (device, inode) = backing.identity();
                keeper.keep(Kept::Memory(device, inode), &[])?;
                backing.unlock();
            }
            ("taken away", bytes)
        }
    };
    tell(&format!("process {} has {what} {}", process.number(), amount(bytes)));
    Ok(())
}

/// Starts the thread that does what signals say.
fn obey(mut signals: Signals, host: &'static Host, client: i32) -> Result<(), String> {
    let obeyed = move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                tell(&format!("process {client}: {}", host.line()));
                continue;
            }
            match leave(host) {
                Ok(bytes) => {
                    tell(&format!("process {client} goes on without a manager: {} of its memory are back", amount(bytes)));
                    std::process::exit(128 + signal);
                }
                Err(why) => tell(&format!("process {client}: {why}")),
            }
        }
    };
    let spawned = std::thread::Builder::new().name("farshore-signals".into()).spawn(obeyed);
    spawned.map(drop).map_err(|why| format!("no thread can be made ({why})"))
}
