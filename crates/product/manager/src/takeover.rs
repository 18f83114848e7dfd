//! A manager takes the memory over from one that was killed.
//!
//! ```text
//!  what is kept ─▶ an engine of its own, with no page ─▶ words, stages and files of the last one: what is each page? ─▶ its tables are the ones that count ─▶ pages leave and come, whoever waits is woken
//!                  └──────────────── a manager that is killed here is as if it had never been ─────────────────────┘
//! ```
//!
//! The client waits meanwhile where it needs a page that is out, and works on where it does not. It may throw pages away, and write to those that are there.
//!
//! 1. What the kernel has noted of the dead one's copies comes into its words ([`farshore_engine::takeover::settle`]).
//! 2. Each page gets a verdict ([`farshore_engine::takeover`]). Pages that were in stages and not written yet are brought back at once, beyond the limit if they must be; evictors take them out again. For
//!    a page of which there is no room, this waits.
//! 3. Slots whose writes may still be under way are barred for good.
//! 4. The keeper gets the new tables in place of the old ones. Only then may a page leave, or be written.
//!
//! A request that was under way is not answered: the connection ends, and with it the way to add regions.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use farshore_command::say::{amount, tell};
use farshore_core::limits::PAGE_SIZE;
use farshore_core::page::{Page, PageRange};
use farshore_core::room::{Part, Room as _};
use farshore_core::seams::{Kernel as _, KernelError, PageBuf};
use farshore_core::slots::LeftSums;
use farshore_core::table::PageTable;
use farshore_core::word::{AtomicWord, Slot, Stage};
use farshore_engine::evict::stage::Stages;
use farshore_engine::fault::resolve::Failure;
use farshore_engine::takeover::{Begin, Verdict, is_whole, settle, stored_too, unstage, verdict};
use farshore_sys::cpu;
use farshore_sys::uffd::Note;
use rustix::io::Errno;

use crate::host::{Beside, Host};
use crate::keeper::{Keeper, Kept};
use crate::memory::{Backing, Identity, Region};
use crate::seldom::Seldom;
use crate::serve::wait_for_room;
use crate::state::{Noted, State};

/// What a manager has left.
#[derive(Debug)]
pub struct Left {
    state: &'static State,
    regions: Vec<Region>,
    given_up: Vec<Noted>,
    table: PageTable,
    stages: Stages,
    sums: LeftSums,
}

/// What came of the pages.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    here: u64,
    in_slots: u64,
    from_stages: u64,
    lost: u64,
}

impl Left {
    /// Finds everything, in what the keeper has.
    ///
    /// # Errors
    /// One line: what is not there, or not understood.
    pub fn find(tables: OwnedFd, keeper: &Keeper) -> Result<Left, String> {
        let state = State::left(tables)?;
        let (given_up, kept): (Vec<Noted>, Vec<Noted>) = state.regions().into_iter().partition(|region| region.given_up);
        let mut files: HashMap<Identity, Arc<Backing>> = HashMap::new();
        let mut regions = Vec::new();
        for noted in kept {
            let (device, inode) = noted.file;
            if !PageTable::covers(noted.pages) {
                return Err(format!("a region at page {:#x} cannot be one", noted.pages.start.0));
            }
            let backing = match files.get(&noted.file) {
                Some(backing) => backing.clone(),
                None => {
                    let file = keeper.take_one(Kept::Memory(device, inode));
                    let file =
                        file.ok_or_else(|| format!("the file of the region at {:#x} was not kept", noted.pages.start.addr()))?;
                    let backing = Backing::left(file).map_err(|errno| format!("a file of its memory is no file ({errno})"))?;
                    Arc::new(backing)
                }
            };
            files.insert(noted.file, backing.clone());
            regions.push(Region { pages: noted.pages, backing, offset: noted.offset });
        }
        let table = PageTable::in_room(Some(state.room()));
        regions.iter().for_each(|region| table.recall(region.pages));
        let count = state.stages() as usize;
        let no_space = || format!("no address space for {count} stages");
        let memory = state.room().part(Part::Stages, 0, count * PAGE_SIZE).ok_or_else(no_space)?;
        // SAFETY: as many pages as the engine had that has ended, mapped for as long as this process lives. Nobody writes them any more.
        let stages = unsafe { Stages::in_room(memory.as_ptr().cast(), count, state.room()) }.ok_or_else(no_space)?;
        Ok(Left { state, regions, given_up, table, stages, sums: LeftSums::new(state.room()) })
    }

    /// What outlived it.
    pub fn state(&self) -> &'static State {
        self.state
    }

    /// The word of a page of a region.
    fn word(&self, page: Page) -> &AtomicWord {
        self.table.word_for_unpin(page).unwrap_or_else(|| unreachable!("{page:?} is of no region"))
    }

    /// The words say what the kernel has noted.
    fn settle_notes(&self) {
        for note in self.state.notes() {
            if let Some((start, end)) = note.mapped() {
                let mapped = PageRange { start: Page::containing(start), end: Page::containing(end) };
                mapped.iter().filter(|page| self.regions.iter().any(|region| region.pages.contains(*page))).for_each(|page| {
                    settle(self.word(page));
                });
            }
        }
        // Only now: until here each of them counts.
        self.state.notes().for_each(Note::forget);
    }

    /// Takes the memory over, for a host that has none and no threads yet. From the end of this on, what counts is the host's.
    ///
    /// # Errors
    /// One line: it cannot be, and nothing has changed.
    pub fn take_over(self, host: &Host, keeper: &Keeper) -> Result<(), String> {
        let began = std::time::Instant::now();
        let new = host.state.ok_or("there is no memory for tables that outlive this manager")?;
        self.settle_notes();
        let gone: Vec<Backing> = self.given_up.iter().filter_map(|noted| self.give_up(*noted, host, keeper)).collect();
        let (mut counts, core) = (Counts::default(), cpu::current());
        let mut buffer = vec![PageBuf::ZERO; 1];
        for region in &self.regions {
            new.add(region)?;
            let parts = region.parts_in_memory();
            let parts = parts.map_err(|errno| format!("which pages are in memory cannot be found out ({errno})"))?;
            host.engine.kernel.memory().add(region.clone());
            host.engine.manage(region.pages);
            let mut parts = parts.into_iter().peekable();
            host.engine.begin_with(region.pages, core, |page| {
                while parts.next_if(|part| part.end <= page).is_some() {}
                let here = parts.peek().is_some_and(|part| part.contains(page));
                self.judge(host, page, here, &mut buffer[0], &mut counts)
            });
        }
        let mut barred = 0;
        for slot in self.state.barred().chain(self.stages.unsettled()) {
            // One that a page has is no such slot: its write had ended before the page could be there alone.
            if host.engine.slots.take_over(slot, 0) {
                barred += 1;
                if !new.bar(slot) {
                    return Err("too many slots are barred: too many managers were killed".into());
                }
            }
        }
        host.engine.slots.taken_over();
        new.follow(self.state);
        let times = new.takeovers();
        self.state.limit().into_iter().for_each(|bytes| _ = host.choice.end_at(&host.engine, bytes));
        keeper.keep(Kept::Tables, &[new.file()])?;
        // Only now: as long as the old tables count, the next one would take it from whoever has it by then.
        for backing in gone {
            let (device, inode) = backing.identity();
            keeper.keep(Kept::Memory(device, inode), &[])?;
            backing.unlock();
        }
        self.state.empty();
        let bytes = |pages: u64| amount(pages * PAGE_SIZE as u64);
        tell(&format!(
            "takeover {times}: {} in RAM, {} of which from stages, {} in swap space, {barred} slots barred, {} pages lost; {} ms",
            bytes(counts.here),
            bytes(counts.from_stages),
            bytes(counts.in_slots),
            counts.lost,
            began.elapsed().as_millis()
        ));
        Ok(())
    }

    /// Ends what the last one had begun: a region that the client gives up, or has back; or that it was handing over.
    /// Gives its file, if that has no other region.
    fn give_up(&self, noted: Noted, host: &Host, keeper: &Keeper) -> Option<Backing> {
        // The client may have unmapped it.
        let _ = host.uffd().unregister(noted.pages.start.addr(), noted.pages.bytes());
        if self.regions.iter().any(|region| region.backing.identity() == noted.file) {
            return None;
        }
        let file = keeper.take_one(Kept::Memory(noted.file.0, noted.file.1))?;
        let stays = |errno: &Errno| tell(&format!("the mark stays on memory that the client has taken away ({errno})"));
        let backing = Backing::left(file).inspect_err(stays).ok()?;
        _ = backing.give_up().inspect_err(stays);
        Some(backing)
    }

    /// Finds out what a page is, and brings it about.
    fn judge(&self, host: &Host, page: Page, here: bool, buffer: &mut PageBuf, counts: &mut Counts) -> Begin {
        let word = self.word(page);
        let is = verdict(word.load(), here, |stage| self.stages.claim(stage, page));
        match is {
            Verdict::Fresh => Begin::Fresh,
            Verdict::Here => {
                counts.here += 1;
                Begin::Here
            }
            Verdict::InSlot(slot) => match self.sums.of(slot).filter(|sum| host.engine.slots.take_over(slot, *sum)) {
                Some(_) => {
                    counts.in_slots += 1;
                    Begin::InSlot(slot)
                }
                None => self.lose(host, page, counts, &format!("slot {} is another page's, or none", slot.number())),
            },
            Verdict::InStage(stage) => self.bring_back(host, page, word, stage, counts),
            Verdict::Either(stage) => {
                let same = host.engine.kernel.memory().read(page, buffer).is_ok() && buffer.0 == self.stages.bytes(stage).0;
                if same {
                    counts.here += 1;
                    return Begin::Here;
                }
                // The kernel has zeroed it, and could not take it out.
                let _ = host.engine.kernel.memory().punch(&[page], &mut Vec::new());
                self.bring_back(host, page, word, stage, counts)
            }
            Verdict::Lost => self.lose(host, page, counts, &format!("its word is {:?}", word.load().left())),
        }
    }

    fn bring_back(&self, host: &Host, page: Page, word: &AtomicWord, stage: Stage, counts: &mut Counts) -> Begin {
        let sum_of = |slot: Slot| self.sums.of(slot);
        if !is_whole::<Beside>(word.load(), &self.stages, stage, sum_of) {
            return self.lose(host, page, counts, "its stage has other bytes");
        }
        let too = stored_too(word.load(), &self.stages, stage);
        if let Some(slot) = too
            && self.sums.of(slot).is_some_and(|sum| host.engine.slots.take_over(slot, sum))
        {
            counts.in_slots += 1;
            return Begin::InSlot(slot);
        }
        loop {
            let map = |bytes: &PageBuf| host.engine.kernel.map_for(self.state, page, bytes);
            match unstage(word, &self.stages, stage, map, || self.state.first_note().forget()) {
                Ok(()) => {
                    (counts.here, counts.from_stages) = (counts.here + 1, counts.from_stages + 1);
                    return Begin::Here;
                }
                // The client has written to the file itself.
                Err(KernelError::Exists) => {
                    counts.here += 1;
                    return Begin::Here;
                }
                Err(KernelError::Again) => std::thread::yield_now(),
                Err(KernelError::NoMemory) => wait_for_room(&Failure::Kernel(KernelError::NoMemory)),
                // The client has unmapped it.
                Err(KernelError::Gone) => return Begin::Fresh,
                Err(why) => return self.lose(host, page, counts, &format!("it cannot be mapped ({why:?})")),
            }
        }
    }

    /// A page cannot be had: whoever needs it gets SIGBUS, not other bytes.
    fn lose(&self, host: &Host, page: Page, counts: &mut Counts, why: &str) -> Begin {
        static SAID: Seldom = Seldom::new();
        SAID.tell(|| format!("the page at {:#x} of the client is lost, and whoever needs it gets SIGBUS: {why}", page.addr()));
        counts.lost += 1;
        let _ = host.engine.kernel.memory().punch(&[page], &mut Vec::new());
        let _ = host.engine.kernel.unprotect(page);
        let _ = host.uffd().poison(page.addr(), PAGE_SIZE as u64);
        Begin::Fresh
    }
}

/// Wakes whoever waits anywhere in the client's memory: each faults again, and is served now.
pub fn wake(host: &Host) {
    for region in host.engine.kernel.memory().all() {
        let _ = host.uffd().wake(region.pages.start.addr(), region.pages.bytes());
    }
}
