//! The processes that came of one program by `fork` and `exec`: who is alive, and how much memory each may have.
//!
//! # The ledger
//!
//! One file in memory (`memfd`) that all processes of the family map, with a line for each process: a *member*. A process writes
//! the line of its child before it forks. A line is changed under the ledger's lock, or by its member alone.
//!
//! # Who is alive
//!
//! A member holds a lock on byte *n* of the file (an open file description lock), through a file description of its own that its
//! parent gave it at the fork. The kernel takes the lock away when the process ends or executes another program, whatever the
//! reason: `kill -9` as well. So no process has to report its end, and no end can be missed. A member looks after its own
//! children, and after those whose parent is gone.
//!
//! A process opens a new description by way of `/proc`. A program whose root directory no longer has a `/proc` can fork all the
//! same: then the child shares its parent's description, the parent looks whether the child's process is still there
//! ([`Tie::Description`]), and the parent's line counts as alive as long as such a child is.
//!
//! | state of a line | meaning |
//! |---|---|
//! | free | no process has it |
//! | alive | its lock is held |
//! | left | its lock is held, but the process belongs to another user now ([`leave`]): it reads slots of its relatives, and nothing that it does changes the ledger |
//! | gone | its process has ended, but one that it forked, or a descendant of that one, is alive: slots are still held for it |
//!
//! [`budget`] says how much memory each may have.
//!
//! When a line becomes free again its generation goes up. From this a parent knows that no process reads the slots any more that
//! it holds for that child ([`SlotMap::unshare`](farshore_core::slots::SlotMap::unshare)).
//!
//! Layers: below is the ground alone.

mod budget;
pub mod joint;
mod leave;
pub mod pilot;
#[cfg(test)]
mod tests;

pub use leave::{leave, may_leave};

use crate::ground::changes::Reader;
use crate::ground::own_threads;
use crate::ground::report;
use crate::ground::runtime::{Runtime, uninterrupted};
use crate::ground::sleeping;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use farshore_backend::device;
use farshore_config::{Handed, Options, stats};
use farshore_core::limits::{MEMORY_LIMIT_MIN, PAGE_SIZE};
use farshore_engine::Shape;
use farshore_sys::fd::{self, Fd};
use farshore_sys::lock::Mutex;
use farshore_sys::raw::{Errno, getpid, nr, syscall, syscall_result, users};
use rustix::fd::AsFd;

/// The most processes of a family. One more fork fails with `EAGAIN`.
const MEMBERS: usize = 16384;
const FREE: u32 = 0;
const ALIVE: u32 = 1;
const GONE: u32 = 2;
/// A line between *gone* and *free*, and before *alive*.
const BURYING: u32 = 3;
const COMING: u32 = 4;
const LEFT: u32 = 5;
/// The parent of a family's first process.
const NOBODY: u32 = u32::MAX;

/// Time between two looks: the shortest, after something has happened, and the longest, with relatives and without.
const TICK_MIN_NS: u64 = 20_000_000;
const TICK_MAX_NS: u64 = 1_000_000_000;
const TICK_ALONE_NS: u64 = 3_600_000_000_000;

/// One process.
#[repr(C)]
struct Member {
    state: AtomicU32,
    /// Line of the process that forked it.
    parent: AtomicU32,
    generation: AtomicU32,
    pid: AtomicU32,
    /// See [`budget`]; pages.
    budget: AtomicU64,
    /// See [`budget`]; pages.
    credit: AtomicU64,
    /// When it was short of frames; 0: it is not short. The time is from the machine's clock, which all processes share.
    hungry: AtomicU64,
    /// 1: it has a kin thread.
    awake: AtomicU32,
    /// Pages in use, where limits are chosen and the process is measured; 0: it is not.
    in_use: AtomicU64,
    /// The user in the name of its control socket, and 1 above 32 bits; 0: it has none.
    knocker: AtomicU64,
}

#[repr(C)]
struct Ledger {
    /// What all members may have together, pages.
    limit: AtomicU64,
    /// Goes up when all members are to look at once. Kin threads sleep on it.
    nudged: AtomicU32,
    /// How many lines were ever used.
    used: AtomicU32,
    /// See [`pilot`].
    board: pilot::Board,
    members: [Member; MEMBERS],
}

/// A child for which slots are held: its line, the line's generation, the share's number.
struct Heir {
    line: u32,
    generation: u32,
    share: u64,
    /// For a child whose lock does not end with its process: the process, which the parent looks for.
    tied: Option<(u32, Tie)>,
}

/// Why a child's lock outlives its process.
enum Tie {
    /// The child has the parent's table of descriptors, and in it the description by which it is alive.
    Table(#[allow(dead_code, reason = "held until it is dropped")] Fd),
    /// The child shares the description by which its parent is alive.
    Description,
}

impl Heir {
    fn shares_table(&self) -> bool {
        matches!(self.tied, Some((_, Tie::Table(_))))
    }

    fn reader(&self, family: u32) -> Reader {
        Reader { family, line: self.line, generation: self.generation }
    }

    /// Whether the process of a tied child is not there any more.
    fn has_ended(&self) -> bool {
        const SYS_KILL: u64 = 62;
        self.tied.as_ref().is_some_and(|(pid, _)| {
            // SAFETY: asks only.
            let asked = unsafe { syscall_result(SYS_KILL, [u64::from(*pid), 0, 0, 0, 0, 0]) };
            asked == Err(Errno::ESRCH)
        })
    }
}

/// What this process knows of its family.
struct Kin {
    /// How many families it was in before.
    number: u32,
    /// The ledger's file.
    file: Fd,
    /// The description by which this process is alive.
    alive: Fd,
    me: u32,
    /// Children for which slots are held.
    heirs: Vec<Heir>,
    /// The limit is shared.
    shares_limit: bool,
    /// The user to whom the family belongs.
    user: u32,
    seen: budget::Seen,
}

impl Kin {
    /// Closes what kept alive the lines of tied children whose processes have ended, so that the lines can be buried.
    fn release_ended(&mut self) {
        release_ended(&mut self.heirs, &self.alive);
    }
}

/// The same for a list of heirs, and the description by which their parent is alive.
fn release_ended(heirs: &mut [Heir], alive: &Fd) {
    for heir in heirs.iter_mut().filter(|heir| heir.has_ended()) {
        match heir.tied.take() {
            // Dropping the descriptor closes it: that was the last one of that description.
            Some((_, Tie::Table(_))) | None => {}
            // If that fails, the child's line stays as it is, and so do the slots held for it.
            Some((_, Tie::Description)) => {
                let _ = fd::unlock_byte(alive.as_fd(), heir.line);
            }
        }
    }
}

/// In a forked child: forgets what its parent holds for other children. The child's descriptors are copies in a copy of the
/// parent's table, or the table is the parent's.
fn forget_ties(heirs: &mut Vec<Heir>, closes: bool) {
    for heir in heirs.drain(..) {
        heir.tied.into_iter().filter(|_| !closes).for_each(core::mem::forget);
    }
}

/// Whether a forked child shares this process' table of descriptors, in this family or in one that it was in before.
pub fn has_tied() -> bool {
    let here = KIN.with(|kin| {
        let Some(kin) = kin else { return false };
        kin.release_ended();
        kin.heirs.iter().any(Heir::shares_table)
    });
    here || leave::has_tied()
}

static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
static KIN: Mutex<Option<Kin>> = Mutex::new(None);
/// The files of a ledger that no fork has needed yet, made while there is a `/proc`.
static PREPARED: Mutex<Option<Files>> = Mutex::new(None);

/// A ledger's file, and another description of it.
struct Files {
    file: Fd,
    alive: Fd,
}

impl Files {
    fn of(file: Fd) -> Result<Files, Errno> {
        let alive = describe(&file)?;
        Ok(Files { file, alive })
    }
}

/// A child that is about to be forked.
pub struct Child {
    line: u32,
    generation: u32,
    share: u64,
    /// `None`: it shares its parent's.
    alive: Option<Fd>,
}

impl Ledger {
    /// The lines that were ever used.
    fn used(&self) -> &[Member] {
        &self.members[..(self.used.load(Ordering::Acquire) as usize).min(MEMBERS)]
    }
}

fn ledger() -> Option<&'static Ledger> {
    // SAFETY: null, or the mapping that `begin` has made for good.
    unsafe { LEDGER.load(Ordering::Acquire).as_ref() }
}

/// Opens a description of the ledger's file by which a process is alive, under a high number. It does not allow writing, since it
/// stays with a process that leaves the family.
fn describe(file: &Fd) -> Result<Fd, Errno> {
    fd::describe(file.as_fd(), fd::O_RDONLY).map(crate::ground::parts::raise)
}

/// Start-up: makes what a family will need and cannot be made later, when the program may have another root directory.
pub fn prepare(options: &Options) -> Result<(), Errno> {
    if is_there() || PREPARED.with(|files| files.is_some()) {
        return Ok(());
    }
    let file = match &options.family {
        Some(handed) => take_over(handed.ledger)?,
        None => make_file()?,
    };
    let files = Files::of(file)?;
    PREPARED.with(|place| *place = Some(files));
    Ok(())
}

/// The process takes a line of the ledger, with no pages yet. `limit`: what a new family may have, pages.
fn join(options: &Options, limit: impl FnOnce() -> u64) -> Result<(), Errno> {
    let Some(Files { file, alive }) = PREPARED.with(Option::take) else { return Err(Errno::ENOMEM) };
    let ledger = map(&file)?;
    let is_new = options.family.is_none();
    if is_new {
        ledger.limit.store(limit(), Ordering::Release);
        ledger.board.take_over();
    }
    let line = enter(ledger, &alive, NOBODY)?;
    ledger.members[line as usize].pid.store(getpid(), Ordering::Relaxed);
    let shares_limit = !options.memory_per_process;
    let user = users()[0];
    let kin = Kin { number: 0, file, alive, me: line, heirs: Vec::new(), shares_limit, user, seen: budget::Seen::default() };
    if shares_limit && !is_new {
        // A process that is gone (as a rule the program that this process was before its exec) has nothing.
        while bury(ledger, &kin) {}
    }
    LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Release);
    KIN.with(|place| *place = Some(kin));
    Ok(())
}

/// A program that was started by one of the family begins dormant: it takes a line, with a share of what is free. Returns the share, in
/// bytes; `None`: it shares its limit with no other.
///
/// # Errors
/// What the kernel answers. The process can still begin awake.
pub fn join_asleep(options: &Options) -> Result<Option<u64>, Errno> {
    prepare(options)?;
    join(options, || 0)?;
    sleeping::keep(own_fds());
    let share = shares_limit().then(budget::first_share).flatten();
    pilot::doze();
    nudge();
    Ok(share.map(|pages| pages * PAGE_SIZE as u64))
}

/// A dormant process could need so many bytes more than its share: whether they are free, and its own from now on.
pub fn grow(bytes: u64) -> bool {
    shares_limit() && budget::grow(bytes.div_ceil(PAGE_SIZE as u64))
}

/// Makes the ledger, or joins the one that was handed on through an exec: at the start of a process whose children run under
/// Farshore, else before the first fork.
pub fn begin(runtime: &'static Runtime) -> Result<(), Errno> {
    if is_there() {
        return Ok(());
    }
    // Not its budget: what a lowered limit has yet to get back would be the family's for good.
    join(&runtime.options, || runtime.engine.memory_limit() / PAGE_SIZE as u64)?;
    take_part(runtime)
}

/// The process has a line, and an engine whose budget is on it from now on: at the end of [`begin`], or when a member wakes.
///
/// # Errors
/// Its kin thread cannot be made.
pub fn take_part(runtime: &'static Runtime) -> Result<(), Errno> {
    let (Some(ledger), Some(member)) = (ledger(), own_line()) else { return Err(Errno::ENOMEM) };
    if shares_limit() && runtime.options.family.is_some() {
        // What the others have is theirs for the moment.
        let own = member.budget.load(Ordering::Acquire);
        let (_, together) = ledger.together();
        let free = ledger.limit.load(Ordering::Acquire).saturating_sub(together);
        runtime.engine.set_budget((own + ledger.take_some(member, free / 2)).max(runtime.engine.floor()));
    }
    member.budget.store(runtime.engine.budget(), Ordering::Release);
    runtime.note_own_fds();
    name_socket();
    nudge();
    // Where the kin thread must be there from the start, the other threads are there already.
    if own_threads::are_there() { own_threads::start_kin() } else { Ok(()) }
}

/// Whether this process has a line.
pub fn is_there() -> bool {
    KIN.with(|kin| kin.is_some())
}

/// Notes under which name this process' control socket is, so that relatives that are short of memory can wake it.
pub fn name_socket() {
    let me = KIN.with(|kin| kin.as_ref().map(|kin| kin.me));
    if let (Some(me), Some(ledger), Some(user)) = (me, ledger(), own_threads::knock::owner()) {
        ledger.members[me as usize].knocker.store(1 << 32 | u64::from(user), Ordering::Release);
    }
}

/// This process' own line.
fn own_line() -> Option<&'static Member> {
    let me = KIN.with(|kin| kin.as_ref().map(|kin| kin.me))?;
    ledger()?.members.get(me as usize)
}

/// Notes that the process has no kin thread any more: it gives nothing back by itself, and relatives look after its children.
pub fn sleeps() {
    if let Some(line) = own_line() {
        line.awake.store(0, Ordering::Release);
    }
}

/// Whether the budget needs a kin thread however much memory is free: part of the budget counts as shared with the parent, and
/// the kernel's copies change that.
pub fn wants_kin() -> bool {
    own_line().is_some_and(|line| line.credit.load(Ordering::Acquire) > 0)
}

/// Gives a free line to the process that has `alive`.
fn enter(ledger: &Ledger, alive: &Fd, parent: u32) -> Result<u32, Errno> {
    let take = |m: &&Member| {
        m.state.load(Ordering::Relaxed) == FREE
            && m.state.compare_exchange(FREE, COMING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    for (line, member) in ledger.members.iter().enumerate().filter(|(_, member)| take(member)) {
        let line = line as u32;
        member.parent.store(parent, Ordering::Relaxed);
        member.awake.store(0, Ordering::Relaxed);
        for number in [&member.budget, &member.credit, &member.hungry, &member.knocker, &member.in_use] {
            number.store(0, Ordering::Relaxed);
        }
        member.pid.store(0, Ordering::Relaxed);
        ledger.used.fetch_max(line + 1, Ordering::AcqRel);
        let locked = match fd::is_byte_locked(alive.as_fd(), line) {
            true => Err(Errno::EAGAIN),
            false => fd::share_byte(alive.as_fd(), line),
        };
        member.state.store(if locked.is_ok() { ALIVE } else { FREE }, Ordering::Release);
        match locked {
            Ok(()) => return Ok(line),
            // A process that was forked at the wrong moment still has a copy of a description that was to be closed.
            Err(Errno::EAGAIN) => {}
            Err(why) => return Err(why),
        }
    }
    Err(Errno::EAGAIN)
}

/// A new file for a ledger.
fn make_file() -> Result<Fd, Errno> {
    const SYS_MEMFD_CREATE: u64 = 319;
    const SYS_FTRUNCATE: u64 = 77;
    const SYS_FCHMOD: u64 = 91;
    const MFD_CLOEXEC: u64 = 1;
    // SAFETY: the name is a C string.
    let raw = unsafe { syscall_result(SYS_MEMFD_CREATE, [c"farshore-family".as_ptr() as u64, MFD_CLOEXEC, 0, 0, 0, 0]) }?;
    // SAFETY: made just now for us.
    let file = crate::ground::parts::raise(unsafe { Fd::from_raw(raw as i32) });
    // SAFETY: no memory is involved.
    unsafe { syscall_result(SYS_FTRUNCATE, [file.raw() as u64, size_of::<Ledger>() as u64, 0, 0, 0, 0]) }?;
    // A process that has left the family has a descriptor for reading, and through `/proc` it could open one for writing. SAFETY:
    // no memory is involved.
    unsafe { syscall_result(SYS_FCHMOD, [file.raw() as u64, 0o644, 0, 0, 0, 0]) }?;
    Ok(file)
}

/// The ledger's descriptor as it came through the exec, under a number of ours and close-on-exec.
fn take_over(handed: i32) -> Result<Fd, Errno> {
    const F_GETFD: u64 = 1;
    // SAFETY: asks only.
    unsafe { syscall_result(nr::FCNTL, [handed as u64, F_GETFD, 0, 0, 0, 0]) }?;
    // SAFETY: the program before this one has left it open for us, and no other code knows it.
    Ok(crate::ground::parts::raise(unsafe { Fd::from_raw(handed) }))
}

const MAP_SHARED: u64 = 1;

fn map(file: &Fd) -> Result<&'static Ledger, Errno> {
    use farshore_sys::{own, vm};
    let bytes = size_of::<Ledger>() as u64;
    // SAFETY: new memory, at a place that the kernel chooses.
    let base = unsafe { vm::mmap(own::place(bytes), bytes, vm::prot::READ | vm::prot::WRITE, MAP_SHARED, file.raw(), 0) }?;
    // SAFETY: `bytes` bytes of a file of that length, never unmapped; all fields are atomics, for which any bytes are a value.
    Ok(unsafe { &*core::ptr::with_exposed_provenance::<Ledger>(base as usize) })
}

/// Before a fork, under the address-space lock and with the engine quiet: a line for the child, and slots held for it.
///
/// # Errors
/// `EAGAIN` when the family is too large, or what the kernel answers.
pub fn before_fork(runtime: &'static Runtime) -> Result<Child, Errno> {
    begin(runtime)?;
    let Some(ledger) = ledger() else { return Err(Errno::ENOMEM) };
    if !own_threads::has_kin() {
        KIN.with(|kin| kin.as_mut().map(|kin| look_after(runtime, ledger, kin)));
        if shares_limit() && !has_room_for_copy(runtime, ledger) {
            own_threads::start_kin()?;
        }
    }
    let counts_shared = own_threads::has_kin();
    // Before the lock, which it takes itself.
    let shape = child_shape(runtime);
    KIN.with(|kin| {
        let Some(kin) = kin else { return Err(Errno::ENOMEM) };
        kin.heirs.reserve(1);
        let alive = describe(&kin.file).ok();
        let line = match enter(ledger, alive.as_ref().unwrap_or(&kin.alive), kin.me) {
            // Processes that have ended keep their lines until some member looks.
            Err(Errno::EAGAIN) => {
                kin.release_ended();
                while bury(ledger, kin) {}
                enter(ledger, alive.as_ref().unwrap_or(&kin.alive), kin.me)
            }
            entered => entered,
        }?;
        let member = &ledger.members[line as usize];
        // Resident pages are shared by both.
        let shared = runtime.engine.frames().taken();
        member.credit.store(if counts_shared { shared } else { 0 }, Ordering::Release);
        member.budget.store(shared + shape.sizes().stages + 4 * shape.sizes().batch as u64, Ordering::Release);
        budget::start_counting(runtime, kin);
        let generation = member.generation.load(Ordering::Acquire);
        Ok(Child { line, generation, share: runtime.engine.slots.share(), alive })
    })
}

/// For a fork of a process without a kin thread: leaves room. Returns whether there is enough to count twice what the process shares
/// with the child: then no thread has to look after how much of it is still shared.
fn has_room_for_copy(runtime: &Runtime, ledger: &Ledger) -> bool {
    budget::leave_room(runtime, ledger);
    let limit = ledger.limit.load(Ordering::Acquire);
    ledger.together().1 + runtime.engine.in_use() + limit / 16 <= limit
}

/// Before a child that shares this process' memory, until it becomes another program: leaves that program room.
pub fn leave_room(runtime: &'static Runtime) {
    if own_threads::has_kin() || !shares_limit() {
        return;
    }
    if let Some(ledger) = ledger() {
        uninterrupted(|| runtime.space.with(|_| budget::leave_room(runtime, ledger)));
    }
}

/// How a forked child's engine is built: small where the limit is shared, since there may be many children, and most do little.
pub fn child_shape(runtime: &Runtime) -> Shape {
    // What was set since the start holds for children too, as far as they have room for it.
    let wanted = runtime.engine.paced().wanted;
    if runtime.options.memory_per_process {
        // Where the limit is chosen, stages are for the smallest one.
        let chosen = pilot::is_on().then_some(runtime.shape.memory);
        return Shape { memory: chosen.unwrap_or_else(|| runtime.engine.memory_limit()), wanted, ..runtime.shape };
    }
    let limit = ledger().map_or(0, |ledger| ledger.limit.load(Ordering::Acquire) * PAGE_SIZE as u64);
    // No larger than its parent's, whatever limit was set since: the limit sizes the engine's stages.
    let memory = (limit / 8).min(runtime.shape.memory).max(MEMORY_LIMIT_MIN);
    let evictors = if memory < 4 * MEMORY_LIMIT_MIN { 1 } else { runtime.shape.evictors.min(2) };
    Shape { memory, evictors, wanted, ..runtime.shape }
}

/// In the child: gives its engine the budget that the child's line has.
pub fn set_first_budget(engine: &crate::ground::runtime::TheEngine) {
    let line = KIN.with(|kin| kin.as_ref().filter(|kin| kin.shares_limit).map(|kin| kin.me));
    if let (Some(line), Some(ledger)) = (line, ledger()) {
        engine.set_budget(ledger.members[line as usize].budget.load(Ordering::Acquire));
    } else if let Some(most) = pilot::first_limit() {
        engine.set_budget(most);
    }
}

/// In the parent: the child has begun as process `pid`, or there is none (0). `closes`: the child has descriptors of its own.
pub fn in_parent(runtime: &Runtime, child: Child, pid: u32, closes: bool) {
    let Child { line, generation, share, alive } = child;
    if pid != 0 {
        joint::shares_table(closes);
        let tied = match alive {
            // Dropping it closes it.
            Some(_) if closes => None,
            // The two have one table of descriptors: closed here, it would be closed in the child.
            Some(alive) => Some((pid, Tie::Table(alive))),
            None => Some((pid, Tie::Description)),
        };
        KIN.with(|kin| {
            if let Some(kin) = kin {
                kin.heirs.push(Heir { line, generation, share, tied });
            }
        });
        nudge();
        return;
    }
    runtime.engine.slots.unshare(share);
    // First the lock: the next process that takes the line locks it anew.
    if alive.is_none() {
        let _ = KIN.with(|kin| kin.as_ref().map(|kin| fd::unlock_byte(kin.alive.as_fd(), line)));
    }
    drop(alive);
    if let Some(ledger) = ledger() {
        ledger.members[line as usize].state.store(FREE, Ordering::Release);
    }
}

/// In the child: it becomes the member that its parent has entered.
pub fn in_child(child: Child, closes: bool) {
    // Another thread may have been reading. (Changes are made under the address-space lock, which the fork held.)
    KIN.reset();
    PREPARED.reset();
    leave::in_child(closes);
    joint::in_child(closes);
    pilot::in_child();
    KIN.with(|kin| {
        let Some(kin) = kin else { return };
        if let Some(alive) = child.alive {
            let parents = core::mem::replace(&mut kin.alive, alive);
            if closes {
                drop(parents);
            } else {
                core::mem::forget(parents);
            }
        }
        kin.me = child.line;
        forget_ties(&mut kin.heirs, closes);
        kin.seen = budget::Seen::default();
    });
    if let Some(ledger) = ledger() {
        ledger.members[child.line as usize].pid.store(getpid(), Ordering::Relaxed);
    }
}

/// What the family hands to a program that this process becomes or starts.
pub fn handed() -> Option<Handed> {
    KIN.with(|kin| kin.as_ref().map(|kin| Handed { ledger: kin.file.raw(), devices: device::handed() }))
}

/// The family's descriptors in this process.
pub fn own_fds() -> Vec<i32> {
    let prepared = PREPARED.with(|files| files.as_ref().map(|files| [files.file.raw(), files.alive.raw()]));
    let mut all: Vec<i32> = prepared.into_iter().flatten().chain(leave::own_fds()).chain(joint::descriptor()).collect();
    KIN.with(|kin| all.extend(kin.iter().flat_map(|kin| [kin.file.raw(), kin.alive.raw()])));
    all
}

const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;

/// Tells all kin threads of the family to look at once, since something has happened.
pub fn nudge() {
    let Some(ledger) = ledger() else { return };
    ledger.nudged.fetch_add(1, Ordering::AcqRel);
    let word = &raw const ledger.nudged as u64;
    // SAFETY: wakes sleepers on a word that stays.
    let _ = unsafe { syscall(nr::FUTEX, [word, FUTEX_WAKE, i32::MAX as u64, 0, 0, 0]) };
}

/// Sleeps until [`nudge`] since `before` was read, at most `ns`.
fn sleep(ledger: &Ledger, before: u32, ns: u64) {
    let limit = [ns / 1_000_000_000, ns % 1_000_000_000];
    let word = &raw const ledger.nudged as u64;
    // SAFETY: the kernel reads the time, and a word that stays.
    let _ = unsafe { syscall(nr::FUTEX, [word, FUTEX_WAIT, u64::from(before), limit.as_ptr() as u64, 0, 0]) };
}

/// Runs the kin thread, until it is told to end.
pub fn run(runtime: &'static Runtime) {
    let Some(ledger) = ledger() else { report::abort(format_args!("bug: a kin thread without a family")) };
    let mut tick = TICK_MIN_NS;
    while !own_threads::STOP.load(Ordering::Acquire) {
        // The process may have another line since the last time.
        if let Some(line) = own_line() {
            line.awake.store(1, Ordering::Release);
        }
        let before = ledger.nudged.load(Ordering::Acquire);
        let changed = look(runtime);
        own_threads::join_kin(runtime);
        budget::wake_relatives(runtime, ledger);
        if pilot::is_on() {
            // A relative may have been told so just now.
            runtime.engine.wake_watcher();
        }
        let alone = ledger.together().0 <= 1;
        tick = match changed {
            true => TICK_MIN_NS,
            false if alone => TICK_ALONE_NS,
            false => (tick * 2).min(TICK_MAX_NS),
        };
        sleep(ledger, before, tick);
        if ledger.nudged.load(Ordering::Acquire) != before {
            tick = TICK_MIN_NS;
        }
    }
}

/// Sets another limit for the family, in bytes. `None`: this process shares its limit with no other.
///
/// # Errors
/// The least that can be set.
pub fn set_limit(runtime: &Runtime, bytes: u64) -> Option<Result<(), u64>> {
    let ledger = ledger()?;
    if !shares_limit() {
        return None;
    }
    let least = MEMORY_LIMIT_MIN.max(runtime.engine.floor() * PAGE_SIZE as u64);
    if bytes < least {
        return Some(Err(least));
    }
    ledger.limit.store(bytes / PAGE_SIZE as u64, Ordering::Release);
    if ledger.together().0 <= 1 {
        // At once, rather than when the kin thread comes to it.
        runtime.engine.set_budget(bytes / PAGE_SIZE as u64);
    }
    nudge();
    Some(Ok(()))
}

fn shares_limit() -> bool {
    KIN.with(|kin| kin.as_ref().is_some_and(|kin| kin.shares_limit))
}

/// What this process may have, in bytes; where it shares the limit, what its family may have together.
pub fn limit(runtime: &Runtime) -> u64 {
    match ledger().filter(|_| shares_limit()) {
        Some(ledger) => ledger.limit.load(Ordering::Acquire) * PAGE_SIZE as u64,
        None => runtime.engine.memory_limit(),
    }
}

/// What the statistics say about the family.
pub fn stats(runtime: &Runtime) -> stats::Family {
    let Some(ledger) = ledger().filter(|_| shares_limit()) else { return stats::Family::default() };
    let (processes, together) = ledger.together();
    stats::Family { own_limit_bytes: runtime.engine.memory_limit(), processes, memory_bytes: together * PAGE_SIZE as u64 }
}

/// Finds relatives that have ended. Returns whether anything has changed.
fn look(runtime: &Runtime) -> bool {
    let Some(ledger) = ledger() else { return false };
    // Under the address-space lock no fork is under way, and no other code copies what we hold.
    runtime.space.with(|_| KIN.with(|kin| kin.as_mut().is_some_and(|kin| look_after(runtime, ledger, kin))))
}

/// Processes that this one has forked, and that may read pages which it has written; and those whose children do. Those of families that it was in before, too.
pub fn readers(runtime: &Runtime) -> Vec<Reader> {
    let Some(ledger) = ledger() else { return Vec::new() };
    let living = |kin: &mut Kin| {
        kin.release_ended();
        while bury(ledger, kin) {}
        settle(runtime, &mut kin.heirs, |heir| has_another_generation(ledger, heir));
        leave::look(runtime);
        let mut all = leave::readers();
        all.extend(kin.heirs.iter().map(|heir| heir.reader(kin.number)));
        all
    };
    // As in `look`.
    runtime.space.with(|_| KIN.with(|kin| kin.as_mut().map_or_else(Vec::new, living)))
}

/// What [`look`] does, under both locks.
fn look_after(runtime: &Runtime, ledger: &Ledger, kin: &mut Kin) -> bool {
    kin.release_ended();
    let mut changed = bury(ledger, kin);
    if kin.shares_limit && own_threads::has_kin() {
        changed |= budget::balance(runtime, ledger, kin);
    }
    changed |= settle(runtime, &mut kin.heirs, |heir| has_another_generation(ledger, heir));
    changed | leave::look(runtime)
}

/// Whether the ledger says that an heir has ended, and all that it has forked.
fn has_another_generation(ledger: &Ledger, heir: &Heir) -> bool {
    ledger.members[heir.line as usize].generation.load(Ordering::Acquire) != heir.generation
}

/// Gives up the slots that are held for heirs that are not there any more. Returns whether there were any.
fn settle(runtime: &Runtime, heirs: &mut Vec<Heir>, is_over: impl Fn(&Heir) -> bool) -> bool {
    let before = heirs.len();
    heirs.retain(|heir| {
        let over = is_over(heir);
        if over {
            runtime.engine.slots.unshare(heir.share);
            runtime.engine.wake_giver();
        }
        !over
    });
    heirs.len() != before
}

/// A bit for each line.
struct Lines([u64; MEMBERS / 64]);

impl Lines {
    const NONE: Lines = Lines([0; MEMBERS / 64]);

    fn add(&mut self, line: usize) {
        if let Some(word) = self.0.get_mut(line / 64) {
            *word |= 1 << (line % 64);
        }
    }

    fn has(&self, line: usize) -> bool {
        self.0.get(line / 64).is_some_and(|word| word & 1 << (line % 64) != 0)
    }
}

/// Notes which of our children, and of those that have no parent any more, have ended. Returns whether anything has changed. A
/// line is free again when its process and all that it forked are gone.
#[inline(never)]
fn bury(ledger: &Ledger, kin: &Kin) -> bool {
    bury_where(ledger, kin.me, &mut |line| fd::is_byte_locked(kin.file.as_fd(), line))
}

/// See [`bury`]. `lives`: whether the lock of a line is held.
fn bury_where(ledger: &Ledger, me: u32, lives: &mut dyn FnMut(u32) -> bool) -> bool {
    let members = ledger.used();
    let state = |line: u32| members.get(line as usize).map_or(GONE, |m| m.state.load(Ordering::Acquire));
    let (mut changed, mut gone, mut parents) = (false, Lines::NONE, Lines::NONE);
    for (line, member) in members.iter().enumerate() {
        let parent = member.parent.load(Ordering::Relaxed);
        // This holds for the children of a process without a kin thread as well: nobody else would notice.
        let looks = state(parent) == ALIVE && members.get(parent as usize).is_some_and(|m| m.awake.load(Ordering::Acquire) != 0);
        let ours = line as u32 != me && (parent == me || !looks);
        let state = member.state.load(Ordering::Acquire);
        if (state == ALIVE || state == LEFT) && ours && !lives(line as u32) {
            // Another process may do the same first, with the same result.
            let _ = member.state.compare_exchange(state, GONE, Ordering::AcqRel, Ordering::Relaxed);
            changed = true;
        }
        if member.state.load(Ordering::Acquire) == GONE {
            gone.add(line);
        }
    }
    // Only now: a process that is gone forks no more, so all its children are seen. In all lines that there are now: it may have forked into one behind those of before.
    for member in ledger.used().iter().filter(|m| m.state.load(Ordering::Acquire) != FREE) {
        parents.add(member.parent.load(Ordering::Relaxed) as usize);
    }
    for (_, member) in members.iter().enumerate().filter(|&(line, _)| gone.has(line) && !parents.has(line)) {
        // The generation first: the process that takes the line anew finds the new one.
        if member.state.compare_exchange(GONE, BURYING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            member.generation.fetch_add(1, Ordering::AcqRel);
            member.state.store(FREE, Ordering::Release);
            changed = true;
        }
    }
    changed
}

/// Logs a line that a fork failed because of us.
pub fn refused(why: Errno) {
    report::line(format_args!("fork: no room for another process of the family ({why:?})"));
}
