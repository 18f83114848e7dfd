//! Which pages are used, by samples of loads and stores that the processor takes (PEBS of Intel's, IBS of AMD's): for whoever may count events of a process' own.
//!
//! ```text
//!  mark    each thread of the program ─perf_event_open─▶ a ring of its own ◀─ the kernel: time and address of a sample
//!          rings ─▶ the last two samples of each page, and two within a time as long as the scan ─▶ the page is watched
//!  noted   rings ─▶ a sample since the mark: used; none: unknown
//! ```
//!
//! No page moves, and nothing is asked of page tables. What follows from what a sample is:
//!
//! * **A sample proves a use, and the lack of one proves nothing.** So a page is never told as unused here. A page without samples is not watched: it is looked at in
//!   another way. What is lost (a full ring, a thread without one) costs looks and never truth.
//! * **Only pages that are likely to be sampled again are watched**, since of the others nothing would be heard. Samples are few: a page that has had two of them within a time
//!   as long as the scan will have one within the scan, as a rule.
//! * **The kernel keeps the rate.** It is asked for a number of samples a second (`RATE`), and chooses the period itself: what an event counts differs between processors.
//! * **A ring belongs to one thread**, since the kernel maps none that several threads fill. Threads are listed again and again; those of Farshore's own are left out, because an
//!   evictor reads what it takes away. Rings are locked memory, of which a user has little and the program may need what there is: no more than `RINGS_MOST` and a sixteenth of
//!   what may be locked. What the kernel refuses is not sampled.
//! * **No descriptor is kept.** The mapping alone keeps an event alive. So whoever unmaps the rings has ended all of it, on any thread. A forked child does not have the mappings.
//! * **What the program does alone.** The kernel's own accesses are not sampled, so what is in a ring are addresses that the program has used itself. IBS can do that since
//!   Linux 6.14, and is left alone before.
//! * **Nobody who is in a filter of system calls is sampled**: a filter that nobody has seen, one that was there before, may end a process that calls `perf_event_open`. So that is
//!   asked first, of the calling thread, by calls that scans make anyway. Threads that get a filter later say so ([`Samples::give_up`]).
//!
//! A ring lies in memory that the program could write. So nothing is believed of it: lengths are checked, and the place is Farshore's own note.
//!
//! Source: `include/uapi/linux/perf_event.h` of Linux, and `Documentation/ABI/testing/sysfs-bus-event_source-devices-{events,format}`.

use crate::clock;
use crate::fd::{self, Fd};
use crate::huge;
use crate::idle;
use crate::lock::Mutex;
use crate::own::{self, Own};
use crate::raw::{self, Errno, nr};
use crate::signal::tgkill;
use crate::vm::{self, map, prot};
use alloc_crate::boxed::Box;
use alloc_crate::format;
use alloc_crate::string::String;
use alloc_crate::vec::Vec;
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use farshore_core::page::Page;
use farshore_core::seams::{Use, Watched};

const DEVICES: &CStr = c"/sys/bus/event_source/devices";
const THREADS: &CStr = c"/proc/self/task";
const STATUS: &CStr = c"/proc/thread-self/status";

/// Samples for each second that a thread runs: of loads and stores together, where these are two events. A sample interrupts the thread for some microseconds; at 5 µs each this is
/// half a hundredth of its time.
const RATE: u64 = 1_000;
/// Where the kernel keeps the largest rate that it allows.
const RATE_MOST: &CStr = c"/proc/sys/kernel/perf_event_max_sample_rate";
/// Rings, at most, of two pages each: 1 MiB of locked memory.
const RINGS_MOST: usize = 128;
/// The part of `RLIMIT_MEMLOCK` that they take, at most. The kernel counts them, by user, with what io_uring and sends without copies keep in place, and refuses more of that.
const LOCKED_PART: u64 = 16;
/// Pages of a ring that have samples, behind the one that says where they begin. They hold 170, and are read each 20 ms while a policy is attached.
const RING_PAGES: u64 = 1;
/// Pages whose samples are remembered, 24 bytes each. Another page that falls into the same place takes it.
const PLACES: usize = 8_192;
/// Threads are listed again so much later, ns, and at least so many times later as long as that has taken.
const LIST_NS: u64 = 50_000_000;
const LIST_SHARE: u64 = 200;
/// Nothing is sampled any more when nobody has asked for so long, ns.
const REST_NS: u64 = 2_000_000_000;
const PAGE: u64 = 4096;
const RLIMIT_MEMLOCK: u64 = 8;

/// Why loads are not sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// The processor shows no event that this knows.
    NoEvent,
    /// The kernel's file cannot be opened, or is something else.
    File(idle::Lack),
    /// The kernel refuses the event.
    Refused(&'static str, Errno),
    /// A filter of system calls is there, or is about to be.
    Filter,
    /// Hardly any memory may be locked.
    Locked,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lack::NoEvent => f.write_str("the processor shows no samples of loads"),
            Lack::File(lack) => fmt::Display::fmt(lack, f),
            Lack::Refused(source, why @ (Errno::EACCES | Errno::EPERM)) => {
                write!(f, "samples of loads ({source}): {why}: CAP_PERFMON, or as root: `sysctl kernel.perf_event_paranoid=2`")
            }
            Lack::Refused(source, why) => write!(f, "samples of loads ({source}): {why}"),
            Lack::Filter => f.write_str("no samples of loads are taken of a process in a filter of system calls"),
            Lack::Locked => f.write_str("samples of loads: less than 128 KiB may be locked (RLIMIT_MEMLOCK): `ulimit -l 8192`"),
        }
    }
}

/// What is counted, in the words of `struct perf_event_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Event {
    /// Whose it is, for people.
    source: &'static str,
    /// The number of the device.
    device: u32,
    /// `config`, `config1`, `config2`.
    config: [u64; 3],
    /// How exact the address of the instruction has to be, and that `rate` is a rate.
    flags: u64,
    /// Samples a second; without [`FREQ`] one for so many events.
    rate: u64,
    /// An event that has to be counted beside it, or it does not work: that of loads, on some processors.
    beside: Option<[u64; 3]>,
}

const EXCLUDE_KERNEL: u64 = 1 << 5;
const FREQ: u64 = 1 << 10;
const PRECISE: u64 = 2 << 15;
const USE_CLOCKID: u64 = 1 << 25;

impl Event {
    /// An event that a device names.
    fn named(devices: &Fd, device: &str, name: &str) -> Option<Event> {
        let number = text(devices, &format!("{device}/type"))?.trim().parse().ok()?;
        let format_of = |term: &str| text(devices, &format!("{device}/format/{term}"));
        let config = |name: &str| terms(&text(devices, &format!("{device}/events/{name}"))?, format_of);
        // A device that names this one has loads that count beside it alone.
        let beside = if name == "mem-loads" { config("mem-loads-aux") } else { None };
        Some(Event { source: "PEBS", device: number, config: config(name)?, flags: FREQ | PRECISE, rate: RATE / 2, beside })
    }

    /// AMD's: each so many operations are looked at, of which the loads and stores have an address.
    fn of_ibs(devices: &Fd) -> Option<Event> {
        let number = text(devices, "ibs_op/type")?.trim().parse().ok()?;
        let format_of = |term: &str| text(devices, &format!("ibs_op/format/{term}"));
        // Operations are counted and not cycles, where it can; and the kernel leaves its own out.
        let counts = if format_of("cnt_ctl").is_some() { "cnt_ctl=1,swfilt=1" } else { "swfilt=1" };
        let config = terms(counts, format_of)?;
        Some(Event { source: "IBS", device: number, config, flags: FREQ, rate: RATE, beside: None })
    }

    /// `struct perf_event_attr`, of the fields that Linux 4.6 has.
    const fn attributes(&self, config: [u64; 3], samples: bool) -> [u64; 14] {
        const CLOCK_MONOTONIC: u64 = 1;
        const TIME_AND_ADDRESS: u64 = 1 << 2 | 1 << 3;
        let mut words = [0; 14];
        words[0] = self.device as u64 | (size_of::<[u64; 14]>() as u64) << 32;
        words[1] = config[0];
        words[5] = EXCLUDE_KERNEL | USE_CLOCKID;
        if samples {
            words[2] = self.rate;
            words[3] = TIME_AND_ADDRESS;
            words[5] |= self.flags;
        }
        words[7] = config[1];
        words[8] = config[2];
        words[11] = CLOCK_MONOTONIC << 32;
        words
    }

    /// Counts it for a thread from now on: its ring, and that of the event beside.
    fn open(&self, thread: u32) -> Result<(Ring, Option<Ring>), Errno> {
        let beside = self.beside.map(|config| perf_event_open(&self.attributes(config, false), thread, None)).transpose()?;
        let event = perf_event_open(&self.attributes(self.config, true), thread, beside.as_ref())?;
        // Descriptors are closed here, and the mappings keep both.
        Ok((Ring::map(&event, RING_PAGES)?, beside.map(|beside| Ring::map(&beside, 0)).transpose()?))
    }
}

fn perf_event_open(attributes: &[u64; 14], thread: u32, group: Option<&Fd>) -> Result<Fd, Errno> {
    const ANY_PROCESSOR: u64 = u64::MAX;
    const CLOEXEC: u64 = 1 << 3;
    let group = group.map_or(u64::MAX, Fd::arg);
    let args = [attributes.as_ptr() as u64, thread.into(), ANY_PROCESSOR, group, CLOEXEC, 0];
    // SAFETY: the kernel reads the words, as many as the first one says.
    let made = unsafe { raw::syscall_retry(nr::PERF_EVENT_OPEN, args) }?;
    // SAFETY: made just now for us.
    Ok(unsafe { Fd::from_raw(made as i32) })
}

/// A small file of a device, if it is there.
fn text(devices: &Fd, path: &str) -> Option<String> {
    let path = format!("{path}\0");
    let file = fd::open_at(devices.raw(), CStr::from_bytes_with_nul(path.as_bytes()).ok()?, fd::O_RDONLY).ok()?;
    String::from_utf8(fd::read_to_end(&file, 4096).ok()?).ok()
}

/// The words of an event as a device writes it down (`event=0xcd,umask=0x1,ldlat=3`), by how it says where each term lies. `None`: one is not known, or does not fit.
fn terms(text: &str, format_of: impl Fn(&str) -> Option<String>) -> Option<[u64; 3]> {
    let mut config = [0; 3];
    for term in text.trim().split(',') {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        lay_down(&format_of(name)?, value.ok()?, &mut config)?;
    }
    Some(config)
}

/// Puts a value where a format says (`config1:0-15`, `config:0-7,32-35`).
fn lay_down(format: &str, value: u64, config: &mut [u64; 3]) -> Option<()> {
    let (word, ranges) = format.trim().split_once(':')?;
    let word = match word {
        "config" => &mut config[0],
        "config1" => &mut config[1],
        "config2" => &mut config[2],
        _ => return None,
    };
    let mut rest = value;
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        let width = high.checked_sub(low).filter(|_| high < 64)? + 1;
        *word |= (rest & (u64::MAX >> (64 - width))) << low;
        rest = rest.checked_shr(width).unwrap_or(0);
    }
    (rest == 0).then_some(())
}

/// The events of a machine's devices.
fn choose(devices: &Fd) -> Result<Vec<Event>, Lack> {
    // A processor with two kinds of cores has a device for each; a thread is counted on either.
    let named = ["cpu", "cpu_core", "cpu_atom"]
        .into_iter()
        .flat_map(|device| ["mem-loads", "mem-stores"].into_iter().filter_map(move |name| Event::named(devices, device, name)));
    let mut events: Vec<Event> = named.collect();
    if events.is_empty() {
        events.extend(Event::of_ibs(devices));
    }
    if events.is_empty() { Err(Lack::NoEvent) } else { Ok(events) }
}

/// Those of this machine.
fn of_machine() -> Result<Vec<Event>, Lack> {
    let devices = match idle::open(DEVICES, O_DIRECTORY, idle::SYSFS) {
        Err(idle::Lack::File(_, Errno::ENOENT)) => return Err(Lack::NoEvent),
        devices => devices.map_err(Lack::File)?,
    };
    let mut events = choose(&devices)?;
    let most = fd::read_file(RATE_MOST, 32).ok().and_then(|most| String::from_utf8(most).ok()?.trim().parse().ok());
    events.iter_mut().for_each(|event| event.rate = event.rate.min(most.unwrap_or(u64::MAX)).max(1));
    Ok(events)
}

const O_DIRECTORY: u64 = 0o200_000;

/// How many rings there may be, where so many bytes may be locked.
fn rings_most(locked: u64) -> usize {
    let rings = locked / LOCKED_PART / ((1 + RING_PAGES) * PAGE);
    usize::try_from(rings).map_or(RINGS_MOST, |rings| rings.min(RINGS_MOST))
}

/// The threads of this process.
fn threads() -> Result<Vec<u32>, Lack> {
    let folder = idle::open(THREADS, O_DIRECTORY, idle::PROC).map_err(Lack::File)?;
    let mut found = Vec::new();
    fd::each_number_in(&folder, |thread| found.push(thread)).map_err(|why| Lack::File(idle::Lack::File(THREADS, why)))?;
    Ok(found)
}

/// Whether it is a worker of io_uring's, which runs the kernel's code alone. (A thread of the program that is named like one is not sampled.)
fn is_kernels(thread: u32) -> bool {
    let mut name = [0; 4];
    let comm = fd::open_formatted(format_args!("/proc/self/task/{thread}/comm"), fd::O_RDONLY);
    comm.and_then(|comm| fd::read(&comm, &mut name)).is_ok() && name == *b"iou-"
}

/// Whether the calling thread is in a filter of system calls.
fn is_filtered() -> Result<bool, Lack> {
    let lacks = |why| Lack::File(idle::Lack::File(STATUS, why));
    let file = idle::open(STATUS, fd::O_RDONLY, idle::PROC).map_err(Lack::File)?;
    let status = fd::read_to_end(&file, 1 << 20).map_err(lacks)?;
    let mode = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Seccomp:"));
    Ok(mode.is_some_and(|mode| mode.trim_ascii() != b"0"))
}

/// Where the kernel writes samples: a page that says how far they reach, and pages of them, a power of two, or none.
#[derive(Debug)]
struct Ring {
    base: u64,
    pages: u64,
    /// How far they were read.
    tail: u64,
    /// The process that has the mapping.
    process: u32,
}

impl Ring {
    /// Words of the first page: how far the kernel has written, and how far it was read.
    const HEAD: usize = 1024 / 8;
    const TAIL: usize = 1032 / 8;
    const DATA: usize = 4096 / 8;

    fn map(event: &Fd, pages: u64) -> Result<Ring, Errno> {
        let len = (1 + pages) * PAGE;
        // SAFETY: new memory: a hint replaces nothing.
        let base = unsafe { vm::mmap(own::place(len), len, prot::READ | prot::WRITE, map::SHARED, event.raw(), 0) }?;
        Ok(Ring { base, pages, tail: 0, process: raw::getpid() })
    }

    fn words(&self) -> &[AtomicU64] {
        let words = core::ptr::with_exposed_provenance::<AtomicU64>(self.base as usize);
        // SAFETY: a mapping of so many pages, which is there as long as this is (`Drop`), readable and writable. The kernel writes it meanwhile, so all accesses are atomic.
        unsafe { core::slice::from_raw_parts(words, (1 + self.pages) as usize * Ring::DATA) }
    }

    /// Takes out what has come: calls `found` with time and address of each sample. How much was lost.
    fn take(&mut self, found: &mut impl FnMut(u64, u64)) -> u64 {
        let (first, data) = self.words().split_at(Ring::DATA);
        // Acquire: the kernel has written all records before this.
        let head = first[Ring::HEAD].load(Ordering::Acquire);
        let lost = records(data, self.tail, head, found);
        // Release: they were read before the kernel may write in their place.
        first[Ring::TAIL].store(head, Ordering::Release);
        self.tail = head;
        lost
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A forked child has not got the mapping: something else may be in its place there.
        if raw::getpid() == self.process {
            // SAFETY: our own mapping, which nobody uses after this.
            let _ = unsafe { vm::munmap(self.base, (1 + self.pages) * PAGE) };
        }
    }
}

/// Reads the records from `tail` to `head`, which count bytes and never begin again, of a ring whose words are a power of two. What makes no sense ends it, and counts as lost.
fn records(data: &[AtomicU64], tail: u64, head: u64, found: &mut impl FnMut(u64, u64)) -> u64 {
    const LOST: u32 = 2;
    const SAMPLE: u32 = 9;
    let (words, mut at, mut lost) = (data.len() as u64, tail, 0u64);
    if head.wrapping_sub(tail) > words * 8 {
        return 1;
    }
    // A record may go on at the beginning of the ring. Its words never do, since all lengths are multiples of 8.
    let word = |at: u64| data[(at / 8 % words) as usize].load(Ordering::Relaxed);
    while at != head {
        let header = word(at);
        let (kind, size) = (header as u32, header >> 48);
        if size < 8 || !size.is_multiple_of(8) || size > head.wrapping_sub(at) {
            return lost.saturating_add(1);
        }
        match kind {
            SAMPLE if size >= 24 => found(word(at.wrapping_add(8)), word(at.wrapping_add(16))),
            LOST if size >= 24 => lost = lost.saturating_add(word(at.wrapping_add(16))),
            _ => {}
        }
        at = at.wrapping_add(size);
    }
    lost
}

/// The last two samples of a page.
#[derive(Clone, Copy, Default, Debug)]
struct Place {
    page: u64,
    last_ns: u64,
    before_ns: u64,
}

/// A thread, and what is counted of it: nothing, if the kernel refuses.
#[derive(Debug)]
struct Sampled {
    thread: u32,
    rings: Vec<Ring>,
}

/// Sampling that is under way.
#[derive(Debug)]
struct Sampling {
    events: Vec<Event>,
    threads: Vec<Sampled>,
    places: Vec<Place>,
    list_again_ns: u64,
    asked_ns: u64,
}

impl Sampling {
    fn new(events: Vec<Event>, now_ns: u64) -> Sampling {
        let places = alloc_crate::vec![Place::default(); PLACES];
        Sampling { events, threads: Vec::new(), places, list_again_ns: 0, asked_ns: now_ns }
    }

    /// Where the samples of a page are.
    fn place(page: Page) -> usize {
        // No two pages of 32 MiB of addresses share a place.
        ((page.0 ^ (page.0 / PLACES as u64) ^ (page.0 >> 27)) % PLACES as u64) as usize
    }

    /// Reads all rings. It is `now_ns`, by our clock.
    fn take(&mut self, now_ns: u64) {
        let places = &mut self.places;
        let mut found = |ns: u64, addr: u64| {
            // An operation that is neither load nor store has the address 0. And what is still to come was told by another clock: in a namespace of time ours may be behind
            // the kernel's, by which each sample would be later than each mark.
            if addr < PAGE || ns > now_ns {
                return;
            }
            let page = Page::containing(addr);
            let place = &mut places[Sampling::place(page)];
            if place.page != page.0 {
                *place = Place { page: page.0, ..Place::default() };
            }
            // Threads are read one after the other, so a sample may be older than the last one.
            if ns > place.last_ns {
                (place.before_ns, place.last_ns) = (place.last_ns, ns);
            } else if ns > place.before_ns {
                place.before_ns = ns;
            }
        };
        for ring in self.threads.iter_mut().flat_map(|sampled| &mut sampled.rings).filter(|ring| ring.pages > 0) {
            ring.take(&mut found);
        }
    }

    /// Samples the threads that there are now, but for those that are ours.
    fn list(&mut self, ours: fn(u32) -> bool) -> Result<(), Lack> {
        let began_ns = clock::by_syscall();
        if began_ns < self.list_again_ns {
            return Ok(());
        }
        let listed = threads().and_then(|there| self.follow(there, ours));
        let took_ns = clock::by_syscall().saturating_sub(began_ns);
        self.list_again_ns = began_ns + LIST_NS.max(took_ns * LIST_SHARE);
        listed
    }

    /// These threads are there.
    fn follow(&mut self, mut there: Vec<u32>, ours: fn(u32) -> bool) -> Result<(), Lack> {
        there.sort_unstable();
        self.threads.retain(|sampled| there.binary_search(&sampled.thread).is_ok() && !ours(sampled.thread));
        let mut rings: usize = self.threads.iter().map(|sampled| sampled.rings.len()).sum();
        let most = rings_most(huge::limit(RLIMIT_MEMLOCK));
        if rings > most {
            // The limit was lowered.
            self.threads.clear();
            rings = 0;
        }
        if most == 0 {
            return Err(Lack::Locked);
        }
        if rings >= most {
            return Ok(());
        }
        let mut known: Vec<u32> = self.threads.iter().map(|sampled| sampled.thread).collect();
        known.sort_unstable();
        there.retain(|thread| known.binary_search(thread).is_err() && !ours(*thread));
        // Where `/proc` is that of other numbers they are not those of our threads.
        for thread in there.into_iter().filter(|thread| tgkill(raw::getpid(), *thread, 0).is_ok() && !is_kernels(*thread)) {
            let (mut sampled, mut refused) = (Sampled { thread, rings: Vec::new() }, None);
            for event in &self.events {
                if rings + 1 + usize::from(event.beside.is_some()) > most {
                    break;
                }
                match event.open(thread) {
                    Ok((ring, beside)) => {
                        rings += 1 + usize::from(beside.is_some());
                        sampled.rings.extend([ring].into_iter().chain(beside));
                    }
                    // It has ended.
                    Err(Errno::ESRCH) => break,
                    Err(why) => refused = refused.or(Some(Lack::Refused(event.source, why))),
                }
            }
            self.threads.push(sampled);
            match refused {
                // All others it refuses too, and there may be thousands.
                Some(lack) if rings == 0 => return Err(lack),
                _ if rings >= most => break,
                _ => {}
            }
        }
        Ok(())
    }

    fn look_up(&self, page: Page) -> Option<&Place> {
        Some(&self.places[Sampling::place(page)]).filter(|place| place.page == page.0)
    }
}

/// A mark of a page that is watched here: the time. Idle page tracking sets no such bit.
const MARK: u64 = 1 << 62;

/// Whether pages are watched by samples.
pub(crate) fn are_marks(pages: &[Watched]) -> bool {
    pages.iter().any(|watched| watched.mark & MARK != 0)
}

/// Samples which pages this process uses.
#[derive(Debug)]
pub struct Samples {
    sampling: Mutex<Option<Box<Sampling>>>,
    /// There is some; changed with the lock.
    is_on: AtomicBool,
    given_up: AtomicBool,
    choose: fn() -> Result<Vec<Event>, Lack>,
    ours: fn(u32) -> bool,
}

impl Samples {
    /// Nothing is sampled until a page is to be watched, and never those threads that are `ours`.
    pub const fn new(ours: fn(u32) -> bool) -> Samples {
        Samples::by(of_machine, ours)
    }

    const fn by(choose: fn() -> Result<Vec<Event>, Lack>, ours: fn(u32) -> bool) -> Samples {
        Samples { sampling: Mutex::new(None), is_on: AtomicBool::new(false), given_up: AtomicBool::new(false), choose, ours }
    }

    /// Marks the pages that are likely to be sampled within `ns`: uses of them are seen from now on.
    ///
    /// # Errors
    /// Why there are no samples.
    pub fn mark(&self, pages: &mut [Watched], ns: u64) -> Result<(), Lack> {
        self.sampling.with(|place| {
            if self.given_up.load(Ordering::Acquire) {
                return Err(Lack::Filter);
            }
            let now_ns = clock::by_syscall();
            let mut sampling = match place.take() {
                Some(sampling) => sampling,
                // Before anything else: one that nobody has seen, of before an exec or a fork, may stop what comes now.
                None if is_filtered()? => return Err(Lack::Filter),
                None => Box::new(Sampling::new((self.choose)()?, now_ns)),
            };
            sampling.asked_ns = now_ns;
            sampling.take(now_ns);
            let listed = sampling.list(self.ours);
            if listed.is_ok() {
                for watched in &mut *pages {
                    let likely = |it: &Place| it.before_ns > 0 && now_ns.saturating_sub(it.before_ns) <= ns;
                    watched.mark = if sampling.look_up(watched.page).is_some_and(likely) { MARK | now_ns } else { 0 };
                }
                *place = Some(sampling);
            }
            self.is_on.store(place.is_some(), Ordering::Relaxed);
            listed
        })
    }

    /// Whether pages were used that were marked: never that they were not.
    pub fn noted(&self, pages: &[Watched], uses: &mut [Use]) {
        uses.fill(Use::Unknown);
        self.sampling.with(|place| {
            let Some(sampling) = place else { return };
            sampling.asked_ns = clock::by_syscall();
            sampling.take(sampling.asked_ns);
            for (watched, used) in pages.iter().zip(uses).filter(|(watched, _)| watched.mark & MARK != 0) {
                if sampling.look_up(watched.page).is_some_and(|it| it.last_ns > watched.mark & !MARK) {
                    *used = Use::Used;
                }
            }
        });
    }

    /// To be called again and again while pages may be watched: reads the rings before they are full, and ends it all when nobody has asked for a while.
    pub fn tend(&self) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        self.sampling.with(|place| {
            let now_ns = clock::by_syscall();
            match place {
                Some(sampling) if now_ns.saturating_sub(sampling.asked_ns) < REST_NS => sampling.take(now_ns),
                _ => self.end(place),
            }
        });
    }

    fn end(&self, place: &mut Option<Box<Sampling>>) {
        *place = None;
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Samples nothing, until pages are to be watched again.
    pub fn rest(&self) {
        self.sampling.with(|place| self.end(place));
    }

    /// Samples nothing any more: a filter is about to come.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.rest();
    }
}

/// Tries it on pages of our own. What takes the samples.
///
/// # Errors
/// Why there are none; the text says more where the kernel counts and none comes.
pub fn try_out() -> Result<&'static str, String> {
    use alloc_crate::string::ToString;
    const PAGES: usize = 4;
    const TRIES: usize = 200;
    let source = of_machine().map_err(|lack| lack.to_string())?[0].source;
    let samples = Samples::new(|_| false);
    let scratch = Own::new(PAGES * PAGE as usize).map_err(|why| why.to_string())?;
    let at = |n: usize| scratch.base().as_ptr().wrapping_add(n % (PAGES * PAGE as usize));
    let mut pages = [0; PAGES].map(|mark| Watched { page: Page(0), mark });
    pages.iter_mut().enumerate().for_each(|(n, watched)| watched.page = Page::containing(at(n * PAGE as usize) as u64));
    for _ in 0..TRIES {
        samples.mark(&mut pages, u64::MAX).map_err(|lack| lack.to_string())?;
        if pages.iter().any(|watched| watched.mark != 0) {
            return Ok(source);
        }
        let until = clock::by_syscall() + 1_000_000;
        while clock::by_syscall() < until {
            for n in (0..1 << 16).step_by(64) {
                // SAFETY: a byte of our own memory, which nobody else uses.
                unsafe { at(n).read_volatile() };
            }
        }
    }
    Err(format!("samples of loads ({source}): none comes"))
}

#[cfg(test)]
#[path = "samples_tests.rs"]
mod tests;
