//! Rings of io_uring.

use super::super::buffers::{Access, Args, Memory, PinSet, Pins, address, careful, errno, pin_all, pin_local, read_user, run};
use super::super::calls::descriptors::identity;
use super::super::calls::{NEEDED_SIGNALS, keepers};
use super::super::table::{Dir, Extent, Ptr};
use super::holds::{self, Full, Groups, Holds};
use super::request::{self, Request, Words};
use super::{TABLE, is_used, note_use, quietly, register};
use farshore_sys::lock::Mutex;

const SETUP: u64 = 425;
const ENTER: u64 = 426;
const REGISTER: u64 = 427;

/// `struct io_uring_params`, as 32-bit words: entries of both queues, flags, the thread's processor and idle time, features, the descriptor of another ring, three that
/// are reserved, then ten for where things are in each queue.
type Params = [u32; 30];
const SQ_ENTRIES: usize = 0;
const CQ_ENTRIES: usize = 1;
const FLAGS: usize = 2;
const FEATURES: usize = 5;
const OTHER: usize = 6;
const SQ: usize = 10;
const CQ: usize = 20;

// Flags of a ring.
const POLLED_QUEUE: u32 = 1 << 1;
const POLLING_PROCESSOR: u32 = 1 << 2;
const OTHER_WORKERS: u32 = 1 << 5;
const LARGE_SUBMISSIONS: u32 = 1 << 10;
const LARGE_COMPLETIONS: u32 = 1 << 11;
const NO_ARRAY: u32 = 1 << 16;
/// Those that are let through. Memory of the program for the queues (14) and what needs it (15), and what came after Linux 6.8 (from 17 on) are not.
const KNOWN: u32 = 0x1_3fff & !(POLLED_QUEUE | POLLING_PROCESSOR);

/// What the kernel can do and the program is told it cannot: the registration of rings by their own index (13), bundles (14), attributes of reads and writes (16).
pub(super) const HIDDEN_FEATURES: u32 = 1 << 13 | 1 << 14 | 1 << 16;

// Flags of `io_uring_enter`.
const GET_EVENTS: u64 = 1;
const EXTENDED: u64 = 1 << 3;
const REGISTERED: u64 = 1 << 4;
const EXTENDED_REGISTERED: u64 = 1 << 6;

/// A completion that is not the last of its request.
const MORE: u32 = 1 << 1;
/// Bytes of an entry of the queue of submissions.
const ENTRY: u64 = 64;

const EAGAIN: i64 = errno(libc::EAGAIN);
/// The answer for a descriptor that is no ring.
const NO_RING: i64 = errno(libc::EOPNOTSUPP);
const NOT_OPEN: i64 = errno(libc::EBADF);

/// What of a ring is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Both queues' heads, and the completions.
    Queues,
    /// The entries of submissions.
    Entries,
}

impl Part {
    /// What lies at an offset of a ring's descriptor.
    pub(super) const fn at(offset: u64) -> Option<Part> {
        match offset {
            0 | 0x800_0000 => Some(Part::Queues),
            0x1000_0000 => Some(Part::Entries),
            _ => None,
        }
    }
}

/// Room for a submission, which is used again: to allocate costs two system calls.
#[derive(Default)]
struct Room {
    spans: Vec<holds::Span>,
    entries: Vec<Planned>,
}

/// A ring of the program.
pub(super) struct Ring {
    /// Device and inode.
    pub(super) id: [u64; 2],
    /// Held for a submission.
    gate: &'static Mutex<Room>,
    params: Params,
    /// Where its parts are mapped: address and length, 0: nowhere.
    queues: (u64, u64),
    entries: (u64, u64),
    /// Completions that have been counted.
    seen: u32,
    /// Requests whose last completion has not been counted.
    in_flight: u64,
    /// Some of its requests have two completions.
    twice: bool,
    groups: Groups,
    /// Completions are not counted: the memory of requests is handed over.
    keeps: bool,
}

/// Reads the aligned 32-bit word at `addr` in one step, as a half of a 64-bit one.
pub(super) fn word(addr: u64) -> Option<u32> {
    let mut both = 0u64;
    // SAFETY: `both` has room for eight bytes; the source is memory of the program, which may be anything.
    let read = unsafe { careful::careful_copy((&raw mut both).cast(), addr & !7, 8) };
    read.then_some(if addr & 4 == 0 { both as u32 } else { (both >> 32) as u32 })
}

/// Reads words of a ring's memory.
pub(super) fn words<const N: usize>(addr: u64) -> Option<[u64; N]> {
    let mut words = [0u64; N];
    // SAFETY: room for as many bytes; the source is memory of the program, which may be anything.
    unsafe { careful::careful_copy((&raw mut words).cast(), addr, N * 8) }.then_some(words)
}

/// Puts bytes of ours into an entry of the queue of submissions.
fn store(addr: u64, bytes: &[u8]) -> bool {
    // SAFETY: memory of the program, which may be anything, and bytes of ours.
    unsafe { careful::careful_copy(addr as *mut u8, bytes.as_ptr() as u64, bytes.len()) }
}

impl Ring {
    fn flags(&self) -> u32 {
        self.params[FLAGS]
    }

    /// A field of the heads.
    fn field(&self, index: usize) -> Option<u32> {
        if self.queues.0 == 0 { None } else { word(self.queues.0 + u64::from(self.params[index])) }
    }

    /// Notes where a part is mapped. Of several places the newest counts.
    pub(super) fn mapped(&mut self, part: Part, addr: u64, len: u64) {
        match part {
            Part::Queues => self.queues = (addr, len),
            Part::Entries => self.entries = (addr, len),
        }
    }

    /// The program is about to unmap memory. Adds the pages of requests whose completions cannot be seen any more.
    pub(super) fn unmapped(&mut self, addr: u64, len: u64, given_up: &mut Vec<u64>) {
        let touches = |(start, bytes): (u64, u64)| start != 0 && start < addr.saturating_add(len) && addr < start + bytes;
        if touches(self.queues) {
            self.queues = (0, 0);
            if self.in_flight > 0 {
                self.stop_counting(given_up);
            }
        }
        if touches(self.entries) {
            self.entries = (0, 0);
        }
    }

    /// Completions are not counted any more. Adds the pages of what is in flight.
    fn stop_counting(&mut self, given_up: &mut Vec<u64>) {
        self.keeps = true;
        self.in_flight = 0;
        self.groups.take_all(given_up);
    }

    /// Counts the completions that have come since the last time. Whether there were any.
    pub(super) fn reap(&mut self, mem: &impl Memory, holds: &mut Holds) -> bool {
        if self.keeps || self.in_flight == 0 {
            return false;
        }
        let Some(tail) = self.field(CQ + 1) else { return false };
        let before = self.seen;
        // What is between was written before the tail: the kernel stores in this order, and x86 loads in the order of the program.
        while self.seen != tail && self.in_flight > 0 {
            let bytes = if self.flags() & LARGE_COMPLETIONS != 0 { 32 } else { 16 };
            let place = u64::from(self.seen & (self.params[CQ_ENTRIES] - 1));
            let Some([name, rest]) = words::<2>(self.queues.0 + u64::from(self.params[CQ + 5]) + place * bytes) else { break };
            self.seen = self.seen.wrapping_add(1);
            if (rest >> 32) as u32 & MORE == 0 {
                self.in_flight -= 1;
                holds.end(mem, self.groups.end(name));
            }
        }
        self.seen != before
    }

    /// The entry that comes `ahead` after the next that the kernel will take: its address, or `None` if its index leads nowhere. `None`: it cannot be known.
    fn entry_at(&self, head: u32, ahead: u32) -> Option<Option<u64>> {
        let place = head.wrapping_add(ahead) & (self.params[SQ_ENTRIES] - 1);
        let index = if self.flags() & NO_ARRAY != 0 {
            place
        } else {
            word(self.queues.0 + u64::from(self.params[SQ + 6]) + u64::from(place) * 4)?
        };
        let stride = if self.flags() & LARGE_SUBMISSIONS != 0 { 2 * ENTRY } else { ENTRY };
        if self.entries.0 == 0 {
            return None;
        }
        Some((index < self.params[SQ_ENTRIES]).then_some(self.entries.0 + u64::from(index) * stride))
    }
}

/// `io_uring_setup`, `io_uring_enter`, `io_uring_register`.
pub(in super::super) fn call(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    // A thread that answers for its requests itself, and for no others.
    if mem.may_have_rings() && (nr != ENTER || find(mem, args[0], |_| ()).is_none()) {
        return mem.raw(nr, args);
    }
    match nr {
        SETUP => setup(mem, args),
        REGISTER => {
            let known = find(mem, args[0], |_| ()).is_some();
            register::call(mem, args, known)
        }
        _ => enter(mem, args),
    }
}

/// Runs `f` with the ring behind a descriptor; `None`: it is none of this process.
fn find<R>(mem: &impl Memory, fd: u64, f: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    if !is_used() {
        return None;
    }
    let id = identity(mem, fd)?;
    with(id, f)
}

fn with<R>(id: [u64; 2], f: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    quietly(|| TABLE.with(|table| table.rings.iter_mut().find(|ring| ring.id == id).map(f)))
}

fn setup(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let bytes = size_of::<Params>() as u64;
    if !pin_all(mem, &mut pins, args[1], bytes, Access::Write) {
        return errno(libc::ENOMEM);
    }
    let Some(asked) = read_user::<Params>(mem, &mut pins, args[1]) else { return mem.raw(SETUP, args) };
    let polled = POLLED_QUEUE | POLLING_PROCESSOR;
    if asked[FLAGS] & !(KNOWN | polled) != 0 || asked[FLAGS] & polled == POLLING_PROCESSOR {
        return errno(libc::EINVAL);
    }
    if asked[FLAGS] & POLLED_QUEUE != 0 {
        // As without the right to it.
        return errno(libc::EPERM);
    }
    if asked[FLAGS] & OTHER_WORKERS != 0 && mem.own_fds().binary_search(&(asked[OTHER] as i32)).is_ok() {
        return errno(libc::EBADF);
    }
    let fd = mem.raw(SETUP, args);
    if fd < 0 {
        return fd;
    }
    let made = read_user::<Params>(mem, &mut pins, args[1]).zip(identity(mem, fd as u64));
    let Some((mut params, id)) = made else {
        mem.own(libc::SYS_close as u64, &[fd as u64, 0, 0, 0, 0, 0]);
        return errno(libc::EFAULT);
    };
    note_use(mem);
    let gate: &'static Mutex<Room> = Box::leak(Box::new(Mutex::new(Room::default())));
    let ring = Ring {
        id,
        gate,
        params,
        queues: (0, 0),
        entries: (0, 0),
        seen: 0,
        in_flight: 0,
        twice: false,
        groups: Groups::new(),
        keeps: false,
    };
    quietly(|| {
        TABLE.with(|table| {
            // Rings that were closed: nothing of them is mapped, or their number has come again.
            table.rings.retain(|old| old.id != id && (old.queues.0 != 0 || old.entries.0 != 0 || is_new(old)));
            table.rings.push(ring);
        });
    });
    params[FEATURES] &= !HIDDEN_FEATURES;
    super::super::buffers::write_user(mem, &mut pins, args[1], &params);
    fd
}

/// A ring of which nothing was ever mapped may be about to be.
fn is_new(ring: &Ring) -> bool {
    ring.seen == 0 && ring.in_flight == 0 && !ring.keeps
}

fn enter(mem: &impl Memory, args: &Args) -> i64 {
    let [fd, want, _, flags, ..] = *args;
    if flags & (REGISTERED | EXTENDED_REGISTERED) != 0 {
        return errno(libc::EINVAL);
    }
    let Some(id) = identity(mem, fd).filter(|_| is_used()) else { return mem_answer(mem, args) };
    let want = want as u32;
    let submitted = quietly(|| {
        let gate = TABLE.with(|table| table.rings.iter().find(|ring| ring.id == id).map(|ring| ring.gate))?;
        Some(if want == 0 { 0 } else { gate.with(|room| submit(mem, id, fd, want, room)) })
    });
    let Some(submitted) = submitted else { return mem_answer(mem, args) };
    // As the kernel, which does not wait then either.
    if submitted != i64::from(want) || (want > 0 && flags & GET_EVENTS == 0) {
        return submitted;
    }
    let waited = wait(mem, args);
    quietly(|| TABLE.with(|table| _ = table.reap(mem)));
    if submitted > 0 { submitted } else { waited }
}

/// The kernel's answer for a descriptor that is not open or no ring; no request of a ring that is not known comes through.
fn mem_answer(mem: &impl Memory, args: &Args) -> i64 {
    match mem.raw(ENTER, &[args[0], 0, 0, args[3] & !GET_EVENTS, 0, 0]) {
        0 => NO_RING,
        error => error,
    }
}

/// Whether a descriptor is a ring, of whatever process.
fn is_ring(mem: &impl Memory, fd: u64) -> bool {
    !matches!(mem.own(ENTER, &[fd, 0, 0, 0, 0, 0]), NO_RING | NOT_OPEN)
}

/// Waits for completions.
fn wait(mem: &impl Memory, args: &Args) -> i64 {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut args = *args;
    args[1] = 0;
    if args[3] & GET_EVENTS == 0 {
        return mem.raw(ENTER, &args);
    }
    // Mask and its size, the least time, and a time.
    let mut local = ([0u64; 3], 0u64);
    let mut wanted = None;
    let mut mask_at = (args[4], args[5]);
    if args[3] & EXTENDED != 0 && args[5] == 24 {
        pin_local(mem, &mut pins, &mut local);
        let Some(given) = read_user::<[u64; 3]>(mem, &mut pins, args[4]) else { return mem.raw(ENTER, &args) };
        pin_all(mem, &mut pins, given[2], 16, Access::Read);
        local.0 = given;
        mask_at = (given[0], u64::from(given[1] as u32));
    } else if args[3] & EXTENDED != 0 {
        mask_at = (0, 0);
    } else {
        pin_local(mem, &mut pins, &mut local);
    }
    if mask_at.0 != 0 && mask_at.1 == 8 {
        let Some(mask) = read_user::<u64>(mem, &mut pins, mask_at.0) else { return mem.raw(ENTER, &args) };
        wanted = Some(mask);
        local.1 = mask & !NEEDED_SIGNALS;
        let place = address(&mut local) + core::mem::offset_of!(([u64; 3], u64), 1) as u64;
        if args[3] & EXTENDED != 0 {
            local.0[0] = place;
        } else {
            args[4] = place;
        }
    }
    if args[3] & EXTENDED != 0 && args[5] == 24 {
        args[4] = address(&mut local) + core::mem::offset_of!(([u64; 3], u64), 0) as u64;
    }
    match wanted {
        Some(wanted) => mem.raw_with_mask(ENTER, &args, wanted),
        None => mem.raw_again(ENTER, &args),
    }
}

/// An entry that is about to be submitted.
struct Planned {
    name: u64,
    /// Places in it, and the words there that are others meanwhile.
    replaced: [Option<(u64, u64)>; 2],
    /// The completions of its ring were counted.
    counted: bool,
}

/// What is to be submitted next.
#[derive(Default)]
struct Plan {
    /// There was no room for what follows.
    full: bool,
    /// What follows has an index that leads nowhere: the kernel drops it, and ends.
    dropped: bool,
}

/// How long a submission waits for room while nothing completes, in steps.
const PATIENCE: u32 = 200;
/// A step, ns.
const STEP: u64 = 500_000;

/// Submits up to `want` entries. The gate is held.
fn submit(mem: &impl Memory, id: [u64; 2], fd: u64, want: u32, room: &mut Room) -> i64 {
    let (mut done, mut waited, mut may_keep) = (0i64, 0, false);
    loop {
        TABLE.with(|table| _ = table.reap(mem));
        let left = want - done as u32;
        room.entries.clear();
        let Some(plan) = plan(mem, id, left, may_keep, room) else { return if done > 0 { done } else { EAGAIN } };
        may_keep = false;
        let count = room.entries.len() as u64 + u64::from(plan.dropped);
        if count > 0 || !plan.full {
            let result = mem.own(ENTER, &[fd, count, 0, 0, 0, 0]);
            let taken = usize::try_from(result).unwrap_or(0);
            restore(&room.entries);
            withdraw(mem, id, room.entries.get(taken..).unwrap_or_default());
            done += taken as i64;
            if result < 0 {
                return if done > 0 { done } else { result };
            }
            if taken as u64 != count || !plan.full {
                return done;
            }
            waited = 0;
            continue;
        }
        if TABLE.with(|table| table.reap(mem)) {
            waited = 0;
        }
        waited += 1;
        if waited > PATIENCE {
            // Nothing completes, or not what would make room.
            may_keep = true;
            if waited > PATIENCE + 1 {
                return if done > 0 { done } else { EAGAIN };
            }
            continue;
        }
        // Completions may need the submitter in the kernel.
        mem.own(ENTER, &[fd, 0, 0, GET_EVENTS, 0, 0]);
        let mut time = [0u64, STEP];
        let mut set = PinSet::new();
        let mut pins = Pins::new(mem, &mut set);
        let at = pin_local(mem, &mut pins, &mut time);
        mem.own(libc::SYS_nanosleep as u64, &[at, 0, 0, 0, 0, 0]);
    }
}

/// Pins the memory of the next entries. `None`: the ring cannot be read.
fn plan(mem: &impl Memory, id: [u64; 2], want: u32, may_keep: bool, room: &mut Room) -> Option<Plan> {
    let mut plan = Plan::default();
    let ring = |f: &mut dyn FnMut(&mut Ring)| TABLE.with(|table| table.rings.iter_mut().find(|ring| ring.id == id).map(f));
    let mut state = None;
    ring(&mut |ring| state = ring.field(SQ).zip(ring.field(SQ + 1)))?;
    let Some((head, tail)) = state else {
        // Not mapped: nothing was put into it.
        return Some(plan);
    };
    let there = tail.wrapping_sub(head).min(want);
    // The first of the chain that the next entry belongs to.
    let mut chain = 0;
    let mut linked = false;
    for ahead in 0..there {
        let mut place = None;
        ring(&mut |ring| place = ring.entry_at(head, ahead))?;
        let Some(place) = place else { break };
        plan.dropped = place.is_none();
        let Some((place, words)) = place.and_then(|place| Some((place, words::<8>(place)?))) else { break };
        room.spans.clear();
        let mut request = request::look(mem, &words, core::mem::take(&mut room.spans));
        if !linked {
            chain = room.entries.len();
        }
        linked = request.linked;
        let planned = admit(mem, id, &mut request, &words, place, may_keep);
        room.spans = request.spans;
        match planned {
            Some(planned) => room.entries.push(planned),
            None => {
                let cut = room.entries.get(chain..).unwrap_or_default();
                restore(cut);
                withdraw(mem, id, cut);
                room.entries.truncate(chain);
                plan.full = true;
                break;
            }
        }
    }
    Some(plan)
}

/// The program finds its entries as it has written them.
fn restore(entries: &[Planned]) {
    for (place, was) in entries.iter().flat_map(|entry| entry.replaced).flatten() {
        store(place, &was.to_ne_bytes());
    }
}

/// Entries were not submitted.
fn withdraw(mem: &impl Memory, id: [u64; 2], entries: &[Planned]) {
    if entries.is_empty() {
        return;
    }
    TABLE.with(|table| {
        let Some(ring) = table.rings.iter_mut().find(|ring| ring.id == id) else { return };
        for entry in entries.iter().filter(|entry| entry.counted && !ring.keeps) {
            ring.in_flight = ring.in_flight.saturating_sub(1);
            table.holds.end(mem, ring.groups.end(entry.name));
        }
    });
}

/// Makes the memory of a request safe, and its entry what the kernel may see. `None`: there is no room for it.
fn admit(mem: &impl Memory, id: [u64; 2], request: &mut Request, words: &Words, place: u64, may_keep: bool) -> Option<Planned> {
    // WRITEV, WRITE
    let writes = matches!(words[0] as u8, 2 | 23) && words[0] >> 8 & 1 == 0;
    if writes && !request.refused && keepers::refuses_request(mem, words[0] >> 32) {
        request.refused = true;
    }
    // The completion in the other ring is no request's of that.
    request.refused |= request.to_ring && !stop_counting(mem, words[0] >> 32) && is_ring(mem, words[0] >> 32);
    if request.refused {
        request.spans.clear();
    }
    let spans = &request.spans;
    // Buffers that requests will share: whichever they take, and whenever.
    request.refused |= !holds::keep(mem, &request.kept);
    // Whether completions are counted from here on, too.
    let mut given_up = Vec::new();
    let keeps = TABLE.with(|table| {
        let Some(ring) = table.rings.iter_mut().find(|ring| ring.id == id) else { return true };
        ring.twice |= request.twice;
        let most = u64::from(ring.params[CQ_ENTRIES]) / if ring.twice { 2 } else { 1 };
        let beyond = ring.in_flight >= most;
        if !ring.keeps && !request.refused && (request.unbounded || beyond) {
            ring.stop_counting(&mut given_up);
        }
        ring.keeps
    });
    holds::hand_over(mem, &given_up);
    TABLE.with(|table| table.holds.release(mem, &given_up));
    let mut length = words[3];
    let pages = if keeps {
        if !holds::keep(mem, spans) {
            return None;
        }
        Vec::new()
    } else {
        match holds::admit(mem, spans) {
            Ok(pages) => pages,
            Err(why) if (why == Full::Ever || may_keep) && holds::keep(mem, spans) => Vec::new(),
            Err(Full::Ever) if request::may_be_cut(words[0] as u8) => {
                // It does a part, as where a signal comes.
                let part = holds::part(mem, words[2], length & u64::from(u32::MAX));
                length = length >> 32 << 32 | part;
                let shorter = [holds::Span { len: part, ..spans[0] }];
                let others = spans.get(1..).unwrap_or_default();
                holds::admit(mem, &[&shorter, others].concat()).ok()?
            }
            Err(_) => return None,
        }
    };
    let counted = !keeps;
    if counted {
        let mut given_up = Some(pages);
        TABLE.with(|table| {
            if let Some(ring) = table.rings.iter_mut().find(|ring| ring.id == id)
                && !ring.keeps
                && let Some(pages) = given_up.take()
            {
                if ring.in_flight == 0 {
                    // Nobody has looked while nothing was in flight.
                    ring.seen = ring.field(CQ + 1).unwrap_or(ring.seen);
                }
                ring.in_flight += 1;
                ring.groups.begin(request.user_data, pages);
            }
        });
        // The ring was given up by another thread meanwhile.
        let given_up = given_up.unwrap_or_default();
        holds::hand_over(mem, &given_up);
        TABLE.with(|table| table.holds.release(mem, &given_up));
    }
    let mut shown = words[0];
    if request.refused {
        shown |= 0xff;
    } else if request.own_descriptor {
        shown |= 0xffff_ffff << 32;
    }
    let put = |index: usize, word: u64| {
        let at = place + index as u64 * 8;
        (word != words[index]).then(|| {
            store(at, &word.to_ne_bytes());
            (at, words[index])
        })
    };
    let replaced = [put(0, shown), put(3, length)];
    Some(Planned { name: request.user_data, replaced, counted })
}

/// Pins what a rule of `io_uring_register` describes, and makes the call.
pub(super) fn registered(mem: &impl Memory, args: &Args, bytes: u64) -> i64 {
    let rule = Ptr { arg: 2, dir: Dir::Both, extent: Extent::Bytes(bytes as u32) };
    run(mem, REGISTER, args, &[rule])
}

/// Completions of this ring are not counted from here on. False: it is none of this process.
pub(super) fn stop_counting(mem: &impl Memory, fd: u64) -> bool {
    let mut given_up = Vec::new();
    let found = find(mem, fd, |ring| ring.stop_counting(&mut given_up)).is_some();
    quietly(|| {
        holds::hand_over(mem, &given_up);
        TABLE.with(|table| table.holds.release(mem, &given_up));
    });
    found
}
