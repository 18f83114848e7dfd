//! Contexts of Linux AIO.

use super::super::buffers::{
    Access, Args, Memory, PinSet, Pins, address, errno, pin_dir, pin_local, read_once, read_user, run, run_by, write_once,
};
use super::super::calls::{NEEDED_SIGNALS, keepers};
use super::super::table::{Dir, Extent, Ptr};
use super::holds::{self, Full, Groups, Holds, Span};
use super::ring::{word, words};
use super::{TABLE, note_use, quietly};

const SETUP: u64 = 206;
const DESTROY: u64 = 207;
const GET_EVENTS: u64 = 208;
const SUBMIT: u64 = 209;
const CANCEL: u64 = 210;

/// `struct iocb`: what comes back, key and flags, what to do, where, with how much, at which position, a reserved word, flags and a descriptor to tell.
type Control = [u64; 8];
/// Its bytes.
const CONTROL: u64 = 64;
/// Flag: a descriptor is told.
const TELLS: u32 = 1;

// What to do.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;

/// `struct aio_ring`: id, number of events, head, tail, …; 32 bytes, then events of as many.
const HEAD: u64 = 32;
const EVENT: u64 = 32;

/// A context: its id is the address of its queue, in memory that the kernel has mapped.
pub(super) struct Context {
    id: u64,
    /// Events that the queue has room for.
    places: u32,
    /// The place of the first event that has not been counted.
    seen: u32,
    in_flight: u64,
    groups: Groups,
}

impl Context {
    /// Counts the completions that have come since the last time. Whether there were any.
    ///
    /// There is room in the queue for all requests in flight, always: so no event is overwritten that was not counted, as long as events are counted before others are
    /// submitted.
    pub(super) fn reap(&mut self, mem: &impl Memory, holds: &mut Holds) -> bool {
        if self.in_flight == 0 {
            return false;
        }
        let Some(tail) = word(self.id + 12).filter(|&tail| tail < self.places) else { return false };
        let before = self.seen;
        while self.seen != tail && self.in_flight > 0 {
            let Some([_, name]) = words::<2>(self.id + HEAD + u64::from(self.seen) * EVENT) else { break };
            self.seen = (self.seen + 1) % self.places;
            self.in_flight -= 1;
            holds.end(mem, self.groups.end(name));
        }
        self.seen != before
    }
}

/// `io_setup`, `io_destroy`, `io_submit`, `io_cancel`, `io_getevents`, `io_pgetevents`.
pub(in super::super) fn call(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    match nr {
        SETUP => setup(mem, args),
        DESTROY => destroy(mem, args),
        SUBMIT => submit(mem, args),
        CANCEL => {
            const RULES: [Ptr; 2] = [pointer(1, Dir::Both, CONTROL as u32), pointer(2, Dir::Both, EVENT as u32)];
            run(mem, nr, args, &RULES)
        }
        _ => {
            let answer = events(mem, nr, args);
            quietly(|| TABLE.with(|table| _ = table.reap(mem)));
            answer
        }
    }
}

const fn pointer(arg: u8, dir: Dir, bytes: u32) -> Ptr {
    Ptr { arg, dir, extent: Extent::Bytes(bytes) }
}

fn setup(mem: &impl Memory, args: &Args) -> i64 {
    const RULES: [Ptr; 1] = [pointer(1, Dir::Both, 8)];
    let answer = run(mem, SETUP, args, &RULES);
    if answer != 0 {
        return answer;
    }
    note_use(mem);
    let Some(id) = read_once::<u64>(mem, args[1]) else { return answer };
    let (Some(places), Some(seen)) = (word(id + 4), word(id + 12)) else { return answer };
    quietly(|| {
        TABLE.with(|table| {
            table.contexts.retain(|old| old.id != id);
            table.contexts.push(Context { id, places, seen, in_flight: 0, groups: Groups::new() });
        });
    });
    0
}

fn destroy(mem: &impl Memory, args: &Args) -> i64 {
    // What has come is counted: nothing can be read there afterwards.
    quietly(|| TABLE.with(|table| _ = table.reap(mem)));
    let answer = mem.raw(DESTROY, args);
    if answer == 0 {
        // The kernel has waited for all requests.
        quietly(|| {
            TABLE.with(|table| {
                let mut pages = Vec::new();
                table
                    .contexts
                    .iter_mut()
                    .filter(|context| context.id == args[0])
                    .for_each(|context| context.groups.take_all(&mut pages));
                table.contexts.retain(|context| context.id != args[0]);
                table.holds.release(mem, &pages);
            });
        });
    }
    answer
}

fn events(mem: &impl Memory, nr: u64, args: &Args) -> i64 {
    const RULES: [Ptr; 2] = [
        Ptr { arg: 3, dir: Dir::Out, extent: Extent::Counted { by: 2, unit: EVENT as u32, plus: 0, cap: u64::MAX, int: false } },
        pointer(4, Dir::In, 16),
    ];
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut args = *args;
    // Mask and its size; and the mask.
    let mut local = [0u64; 3];
    let mut wanted = None;
    if nr != GET_EVENTS && args[5] != 0 {
        pin_local(mem, &mut pins, &mut local);
        pin_dir(mem, &mut pins, args[5], 16, Dir::In);
        if let Some([mask_at, bytes]) = read_user::<[u64; 2]>(mem, &mut pins, args[5]) {
            if mask_at != 0 && bytes == 8 {
                wanted = read_user::<u64>(mem, &mut pins, mask_at);
            }
            let place = address(&mut local);
            let mask = if wanted.is_some() { place + 16 } else { mask_at };
            local = [mask, bytes, wanted.unwrap_or(0) & !NEEDED_SIGNALS];
            args[5] = address(&mut local);
        }
    }
    run_by(mem, &mut pins, &args, &RULES, |args| match wanted {
        Some(wanted) => mem.raw_with_mask(nr, args, wanted),
        None => mem.raw_again(nr, args),
    })
}

/// Most requests that are planned at once.
const BATCH: u64 = 256;
/// How long a submission waits for room while nothing completes, in steps.
const PATIENCE: u32 = 200;
/// A step, ns.
const STEP: u64 = 500_000;

/// A request that may be submitted.
#[derive(Clone, Copy)]
struct Ready {
    name: u64,
    /// How many bytes the program has asked for, if the kernel sees fewer.
    length: Option<u64>,
}

/// Where the length is in a request.
const LENGTH_AT: u64 = 32;

/// What becomes of a request.
enum Planned {
    /// It may be submitted.
    Ready(Ready),
    /// There is no room.
    Full,
    /// The call ends before it, with this error if it is the first.
    Ends(i64),
}

fn submit(mem: &impl Memory, args: &Args) -> i64 {
    let [id, count, array, ..] = *args;
    if !is_known(id) {
        // One that another process has made is none to the kernel either.
        return errno(libc::EINVAL);
    }
    if count.cast_signed() <= 0 {
        return mem.raw(SUBMIT, args);
    }
    let (mut done, mut waited) = (0u64, 0);
    loop {
        quietly(|| TABLE.with(|table| _ = table.reap(mem)));
        let mut names = Vec::new();
        let mut end = None;
        for n in done..count.min(done + BATCH) {
            match plan(mem, id, array.wrapping_add(n * 8), waited > PATIENCE) {
                Planned::Ready(ready) => names.push(ready),
                other => {
                    end = Some(other);
                    break;
                }
            }
        }
        if !names.is_empty() {
            let (offered, answer) = submit_planned(mem, id, array.wrapping_add(done * 8), &names);
            let taken = u64::try_from(answer).unwrap_or(0);
            withdraw(mem, id, names.get(taken as usize..).unwrap_or_default());
            done += taken;
            if answer < 0 {
                return if done > 0 { done as i64 } else { answer };
            }
            if taken < offered || done == count {
                return done as i64;
            }
            waited = 0;
            if offered < names.len() as u64 {
                continue;
            }
        }
        match end {
            None => {}
            Some(Planned::Ends(error)) => return if done > 0 { done as i64 } else { error },
            // A caller goes on with the rest when something has completed.
            Some(_) if done > 0 => return done as i64,
            Some(_) if waited > PATIENCE => return errno(libc::EAGAIN),
            Some(_) if quietly(|| TABLE.with(|table| table.reap(mem))) => {}
            Some(_) => {
                waited += 1;
                pause(mem);
            }
        }
    }
}

fn pause(mem: &impl Memory) {
    let mut time = [0u64, STEP];
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let at = pin_local(mem, &mut pins, &mut time);
    mem.own(libc::SYS_nanosleep as u64, &[at, 0, 0, 0, 0, 0]);
}

fn is_known(id: u64) -> bool {
    quietly(|| TABLE.with(|table| table.contexts.iter().any(|context| context.id == id)))
}

/// The kernel reads the array and the requests, and writes a key into each: how many found room for that, and its answer.
fn submit_planned(mem: &impl Memory, id: u64, array: u64, names: &[Ready]) -> (u64, i64) {
    let mut set = PinSet::new();
    let mut pins = Pins::new(mem, &mut set);
    let mut count = 0;
    pin_dir(mem, &mut pins, array, names.len() as u64 * 8, Dir::In);
    for ready in names {
        if !pin_dir(mem, &mut pins, ready.name, CONTROL, Dir::Both) {
            break;
        }
        count += 1;
    }
    // At least one finds room.
    let count = count.max(1);
    let answer = mem.raw(SUBMIT, &[id, count, array, 0, 0, 0]);
    pins.release();
    for (name, length) in names.iter().filter_map(|ready| Some((ready.name, ready.length?))) {
        write_once(mem, name + LENGTH_AT, &length);
    }
    (count, answer)
}

/// Requests were not submitted.
fn withdraw(mem: &impl Memory, id: u64, names: &[Ready]) {
    if names.is_empty() {
        return;
    }
    quietly(|| {
        TABLE.with(|table| {
            let Some(context) = table.contexts.iter_mut().find(|context| context.id == id) else { return };
            for ready in names {
                context.in_flight = context.in_flight.saturating_sub(1);
                table.holds.end(mem, context.groups.end(ready.name));
            }
        });
    });
}

/// Pins the memory of the request to which the word at `place` points.
fn plan(mem: &impl Memory, id: u64, place: u64, may_keep: bool) -> Planned {
    let fault = Planned::Ends(errno(libc::EFAULT));
    let Some(name) = read_once::<u64>(mem, place) else { return fault };
    let Some(control) = read_once::<Control>(mem, name) else { return fault };
    let [_, _, what, addr, len, _, _, flags] = control;
    let (code, fd) = (what as u16, (what >> 32) as i32);
    let own = |fd: i32| mem.own_fds().binary_search(&fd).is_ok();
    if own(fd) || (flags as u32 & TELLS != 0 && own((flags >> 32) as i32)) {
        return Planned::Ends(errno(libc::EBADF));
    }
    let writes = matches!(code, PWRITE | PWRITEV);
    if writes && keepers::refuses_request(mem, fd as u64) {
        return Planned::Ends(errno(libc::EINVAL));
    }
    let access = if writes { Access::Read } else { Access::Write };
    let spans = match code {
        PREAD | PWRITE => vec![Span { addr, len: super::super::buffers::clip(addr, len.min(1 << 31)), access }],
        PREADV | PWRITEV => super::request::vectors(mem, addr, len, access),
        // fsync, fdatasync, poll, nothing; what the kernel does not know it refuses.
        _ => Vec::new(),
    };
    quietly(|| {
        let mut length = None;
        let pages = match holds::admit(mem, &spans) {
            Ok(pages) => pages,
            Err(why) if (why == Full::Ever || may_keep) && holds::keep(mem, &spans) => Vec::new(),
            Err(Full::Ever) if matches!(code, PREAD | PWRITE) => {
                // It does a part, as where a signal comes.
                let part = holds::part(mem, addr, len);
                let Ok(pages) = holds::admit(mem, &[Span { addr, len: part, access }]) else { return Planned::Full };
                if !write_once(mem, name + LENGTH_AT, &part) {
                    TABLE.with(|table| table.holds.release(mem, &pages));
                    return fault;
                }
                length = Some(len);
                pages
            }
            Err(Full::Ever) => return Planned::Ends(errno(libc::EAGAIN)),
            Err(Full::ForNow) => return Planned::Full,
        };
        TABLE.with(|table| {
            let Some(context) = table.contexts.iter_mut().find(|context| context.id == id) else {
                table.holds.release(mem, &pages);
                return Planned::Ends(errno(libc::EINVAL));
            };
            if context.in_flight == 0 {
                context.seen = word(id + 12).filter(|&tail| tail < context.places).unwrap_or(context.seen);
            }
            context.in_flight += 1;
            context.groups.begin(name, pages);
            Planned::Ready(Ready { name, length })
        })
    })
}
