//! Pages of a guest that come before they are touched, along runs of faults in its *virtual* addresses ([`farshore_introspect`]).
//!
//! ```text
//!  farshore-fault ──a fault──▶ ┌──────────────────────────────┐
//!                              │ farshore-guest               │
//!  farshore-vcpus ──CR3, and ─▶│ physical ▶ virtual ▶ run ▶   │──wishes that pages come──▶ engine, its threads that read ahead
//!   │    ▲   where memory lies │ next virtual ▶ physical      │
//!   ▼    │ "info registers -a" └──────────────────────────────┘
//!  QEMU's monitor                      │ reads page tables: from the memory's file, never by mapping it
//! ```
//!
//! # What is read, and what it changes
//!
//! Nothing is believed, and nothing is changed but which pages are in RAM: all that comes of this is a *wish* ([`farshore_engine::wishes`]). A page table that is in memory is read by `pread` from the file. If the
//! page was taken out just before, that reads a hole: zeros, which are no entry. A page table that is *out* is not waited for: it is wished to come, the question has no answer this time, and
//! that is counted (`tables_out`). The guest's own page tables are in use, so they are rarely out.
//!
//! # What a stock kernel cannot tell
//!
//! Not which instruction has touched a page, nor by which virtual address: KVM knows both when a processor leaves the guest, and gives neither to a userfaultfd. So CR3 is that of a look shortly before, and the virtual
//! address comes from the page tables of the address spaces that ran lately.

use std::collections::HashMap;
use std::io::Error;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use farshore_attach::PageState;
use farshore_command::say::tell;
use farshore_config::control::Translated;
use farshore_config::stats;
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{Clock as _, PageBuf};
use farshore_engine::wishes::Wish;
use farshore_introspect::guest::Guest;
use farshore_introspect::layout::Layout;
use farshore_introspect::linear::Follow;
use farshore_introspect::paging::{Leaf, Physical};
use farshore_introspect::registers::processors;

use crate::host::{Host, no_thread};
use crate::monitor::Monitor;
use crate::tap::{News, Way};

const PAGE: u64 = PAGE_SIZE as u64;
/// How often processors are looked at while there are faults, and how often it is looked whether there are some.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is asked where the guest's memory lies, while there are faults: firmware changes it, and what is plugged in.
const LAYOUT: Duration = Duration::from_secs(10);
/// How long a page table that was read is good enough. What the guest changes meanwhile is a wrong guess.
const FRESH_NS: u64 = 2_000_000;
/// Page tables that are kept so long, at most.
const TABLES_MAX: usize = 256;

/// Starts the threads that follow a client's guest, and what they go by: `monitor` is a connection to QEMU's.
///
/// # Errors
/// One line: there is no thread to be had.
pub fn start(host: &'static Host, monitor: Option<OwnedFd>) -> Result<(), String> {
    let Some(receiver) = host.tap.take_receiver() else { return Ok(()) };
    let follower = move || {
        let mut follower = Follower::new(host);
        receiver.iter().for_each(|news| follower.hear(news));
    };
    thread::Builder::new().name("farshore-guest".into()).spawn(follower).map_err(no_thread)?;
    if let Some(monitor) = monitor {
        host.tap.set_stats(stats::Guest::default());
        host.tap.set_monitor(true);
        host.tap.set_way(Way::Guest);
        let watch = move || {
            watch(host, monitor);
            host.tap.set_monitor(false);
        };
        thread::Builder::new().name("farshore-vcpus".into()).spawn(watch).map_err(no_thread)?;
    }
    Ok(())
}

/// Looks at the processors while there are faults, until QEMU has ended.
fn watch(host: &Host, connection: OwnedFd) {
    let ended = Monitor::new(connection).and_then(|mut monitor| Watcher::default().run(host, &mut monitor));
    // Where QEMU has ended, so has this process by then.
    thread::sleep(Duration::from_secs(1));
    if let Err(why) = ended {
        tell(&format!(
            "QEMU's monitor cannot be asked any more ({why}): pages do not come along the guest's addresses; choose another prefetcher ('farshore vm set VM prefetch=sequential')"
        ));
    }
}

/// What was asked of QEMU so far.
#[derive(Default)]
struct Watcher {
    /// Faults that there had been.
    heard: u64,
    /// Regions that there were, and for how long it is known where they lie.
    regions: usize,
    since: Duration,
    /// What cannot be followed was said.
    said: bool,
}

impl Watcher {
    fn run(mut self, host: &Host, monitor: &mut Monitor) -> Result<(), Error> {
        loop {
            let heard = host.tap.heard();
            if host.tap.way() == Way::Guest && heard != self.heard {
                self.look(host, monitor)?;
            }
            self.heard = heard;
            self.since = self.since.saturating_add(LOOK);
            monitor.rest(LOOK)?;
        }
    }

    fn look(&mut self, host: &Host, monitor: &mut Monitor) -> Result<(), Error> {
        let all = host.engine.kernel.memory().all();
        if (self.since >= LAYOUT || all.len() != self.regions)
            && let Some(text) = monitor.ask("info mtree -f")?
        {
            // A backend is mapped once, whole.
            let sizes: Vec<u64> = all.iter().map(|region| region.pages.bytes()).collect();
            let layout = Layout::of_mtree(&text, &sizes);
            self.say_if(layout.pieces().is_empty(), "where the guest's memory lies is not in what QEMU says ('info mtree -f')");
            let firsts = all.iter().map(|region| region.pages.start).collect();
            if host.tap.tell(News::Layout(layout, firsts)) {
                (self.regions, self.since) = (all.len(), Duration::ZERO);
            }
        }
        if let Some(text) = monitor.ask("info registers -a")? {
            self.say_if(!text.contains("CR3="), "what the guest's processors run is not in what QEMU says ('info registers -a')");
            host.tap.tell(News::Processors(processors(&text)));
        }
        Ok(())
    }

    /// Says once that the guest cannot be followed.
    fn say_if(&mut self, is_so: bool, what: &str) {
        if is_so && !self.said {
            self.said = true;
            tell(&format!(
                "{what}: pages do not come along the guest's addresses; is it a QEMU for x86-64 with memory of one backend?"
            ));
        }
    }
}

/// Where the guest's memory lies in the client.
#[derive(Default)]
struct Map {
    layout: Layout,
    /// The first page of each backend.
    firsts: Vec<Page>,
}

impl Map {
    /// The page of the client that has a guest-physical address.
    fn page(&self, physical: u64) -> Option<Page> {
        let (backend, offset) = self.layout.place(physical)?;
        Some(self.firsts.get(backend)?.plus(offset / PAGE))
    }
}

/// The guest's memory, as its page tables name it.
struct Reader {
    host: &'static Host,
    map: Rc<Map>,
    /// Page tables that were read since `read_ns`; none: it cannot be had now.
    tables: HashMap<Page, Option<Box<PageBuf>>>,
    read_ns: u64,
    tables_out: u64,
}

impl Reader {
    /// The guest-physical address of a page of the client.
    fn physical(&self, page: Page) -> Option<u64> {
        let region = self.host.engine.kernel.memory().region(page)?;
        let backend = self.map.firsts.iter().position(|first| *first == region.pages.start)?;
        self.map.layout.physical(backend, (page.0 - region.pages.start.0) * PAGE)
    }

    /// What was read some time ago is read anew.
    fn refresh(&mut self) {
        let now = self.host.engine.clock.now_ns();
        if now.saturating_sub(self.read_ns) > FRESH_NS || self.tables.len() > TABLES_MAX {
            self.tables.clear();
            self.read_ns = now;
        }
    }

    /// Reads a page that is in memory; one that is out is wished to come.
    fn read(&mut self, page: Page) -> Option<Box<PageBuf>> {
        let engine = &self.host.engine;
        match engine.page_state(page) {
            PageState::Clean | PageState::Dirty => {
                let mut bytes = Box::new(PageBuf::ZERO);
                engine.kernel.memory().read(page, &mut bytes).ok()?;
                Some(bytes)
            }
            PageState::Out | PageState::Leaving => {
                self.tables_out += 1;
                engine.wish(PageRange { start: page, end: page.plus(1) }, Wish::Come);
                None
            }
            PageState::Untouched | PageState::Foreign | PageState::Busy => None,
        }
    }
}

impl Physical for Reader {
    fn word(&mut self, at: u64) -> Option<u64> {
        let page = self.map.page(at)?;
        if !self.tables.contains_key(&page) {
            let bytes = self.read(page);
            self.tables.insert(page, bytes);
        }
        let bytes = self.tables.get(&page)?.as_ref()?;
        let place = (at % PAGE) as usize;
        bytes.0[place..].first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

/// Has a page come, if it is out. Whether it was.
fn come(host: &Host, page: Page) -> bool {
    let is_out = host.engine.page_state(page) == PageState::Out;
    if is_out {
        host.engine.wish(PageRange { start: page, end: page.plus(1) }, Wish::Come);
    }
    is_out
}

/// What the thread that follows knows.
struct Follower {
    reader: Reader,
    guest: Guest,
    /// The runs in the order of the client's memory ([`Way::Host`]), and what came of them.
    plain: Follow,
    wished: u64,
    used: u64,
}

impl Follower {
    fn new(host: &'static Host) -> Follower {
        let reader = Reader { host, map: Rc::default(), tables: HashMap::new(), read_ns: 0, tables_out: 0 };
        Follower { reader, guest: Guest::new(0), plain: Follow::default(), wished: 0, used: 0 }
    }

    fn hear(&mut self, news: News) {
        let host = self.reader.host;
        self.reader.refresh();
        match news {
            News::Layout(layout, firsts) => {
                self.guest.set_bytes(layout.bytes());
                self.reader.map = Rc::new(Map { layout, firsts });
            }
            News::Processors(processors) => self.guest.look(&mut self.reader, &processors),
            News::Fault(page) => match host.tap.way() {
                Way::Guest => self.follow(page),
                Way::Host => {
                    let (wished, used) = self.plain.touched(page.0, &mut |page| come(host, Page(page)));
                    (self.wished, self.used) = (self.wished + wished, self.used + used);
                }
                Way::Off => {}
            },
            News::Translate(address, answer) => {
                // Whoever has asked may have gone.
                let _ = answer.send(Ok(self.translate(address)));
            }
        }
        let counts = self.guest.counts();
        host.tap.set_stats(stats::Guest {
            address_spaces: self.guest.spaces() as u64,
            looks: self.guest.looks(),
            unheard: 0,
            asked: counts.asked,
            found: counts.found,
            stale: counts.stale,
            tables_out: self.reader.tables_out,
            prefetched: counts.wished + self.wished,
            used: counts.used + self.used,
        });
    }

    /// Follows the run that a page is of, in the guest's addresses.
    fn follow(&mut self, page: Page) {
        let Some(physical) = self.reader.physical(page) else { return };
        let host = self.reader.host;
        let now = host.engine.clock.now_ns();
        let map = self.reader.map.clone();
        let mut wish = |physical: u64| map.page(physical).is_some_and(|page| come(host, page));
        self.guest.touched(&mut self.reader, physical, now, &mut wish);
    }

    fn translate(&mut self, address: u64) -> Vec<Translated> {
        let found = self.guest.translate(&mut self.reader, address);
        let of = |(root, leaf): (u64, Leaf)| {
            let physical = leaf.first + address % leaf.bytes;
            let host = self.reader.map.page(physical).map(|page| page.addr() + physical % PAGE);
            Translated { root, physical, host, bytes: leaf.bytes }
        };
        found.into_iter().map(of).collect()
    }
}
