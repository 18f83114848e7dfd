//! What a recording tells, counted.
//!
//! A file of any size and with any numbers takes bounded memory: places of memory become coarser when they are many, and of instructions, mappings and
//! threads beyond a number only how often is known.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use farshore_beside::{FAULT_PROTECTED, PAGE};
use farshore_config::plain;
use farshore_core::limits::GRANULE_PAGES;
use farshore_replay::recorded::{Heard, Recording};

use crate::plan::ghosts::{Ghosts, Return};
use crate::record::file::{End, Entry, Happened, Mapping, Reader, What};

/// Columns of what is shown over time.
pub const COLUMNS: usize = 200;
/// Rows of the heat map, more or less.
pub const ROWS: usize = 160;
/// Places of memory that are told apart.
const PLACES_MAX: usize = 1 << 16;
/// A place is at least so large: 64 KiB.
const PLACE_SHIFT: u32 = 16;
/// Bytes of mappings and their names that are kept, over all looks.
const MAPPINGS_MAX: usize = 64 << 20;
/// What a mapping takes beside its name, and a look beside its mappings.
const MAPPING_SIZE: usize = 128;
/// Instructions that are told apart.
const INSTRUCTIONS_MAX: usize = 1 << 15;
/// Names of mappings that have a line of their own.
const NAMES_MAX: usize = 4096;
/// Pages of an event of which each is looked at: more than a program tells of at a time, so that a small file is no long work.
const PAGES_MAX: u64 = GRANULE_PAGES as u64;
/// Limits that are kept.
const LIMITS_MAX: usize = 1000;
/// The detail of pages that came unasked.
const UNASKED: u8 = 1;
/// What memory is called that was there between two looks alone.
const BRIEFLY: &str = "[mapped briefly]";
/// What a thread's stack is called.
const STACK: &str = "[thread stack]";

/// One look at all mappings.
#[derive(Debug, Default)]
struct Look {
    ns: u64,
    mappings: Vec<Mapping>,
}

/// What there is in a file.
#[derive(Debug, Default)]
pub struct Found {
    /// Process and name.
    pub pid: u32,
    /// The name, whatever bytes it has.
    pub name: String,
    /// When it began, seconds since 1970.
    pub date: u64,
    /// From when on, ns, …
    pub from: u64,
    /// … to when.
    pub to: u64,
    /// Limits: when, and bytes.
    pub limits: Vec<(u64, u64)>,
    /// How often the program became another one.
    pub execs: u64,
    /// How it ended, if that was recorded.
    pub end: Option<End>,
    /// Why nothing more could be read.
    pub broken: String,
    /// The reader's own bounds that were reached.
    pub too_much: bool,
    looks: Vec<Look>,
    /// Places with faults, by their number: address and time of the first one.
    places: HashMap<u64, (u64, u64)>,
    shift: u32,
}

impl Found {
    /// Goes through the file for the first time.
    ///
    /// # Errors
    /// There is no program in it.
    pub fn of(mut reader: Reader<impl Read>) -> Result<Found, String> {
        let mut found = Found { shift: PLACE_SHIFT, ..Found::default() };
        let Some(Entry::Program { pid, ns, date, name }) = reader.take() else {
            return Err(if reader.broken.is_empty() { "it has no program".into() } else { reader.broken });
        };
        (found.pid, found.date, found.from, found.to) = (pid, date, ns, ns);
        found.name = plain(&String::from_utf8_lossy(&name));
        let (mut kept, mut attached) = (0, false);
        while let Some(entry) = reader.take() {
            match entry {
                Entry::Program { .. } => return Err("it has two programs".into()),
                Entry::Attached { ns, limit } => {
                    found.execs += u64::from(std::mem::replace(&mut attached, true));
                    found.limit(ns, limit);
                    found.until(ns);
                }
                Entry::Maps { ns } => {
                    found.until(ns);
                    kept += MAPPING_SIZE;
                    if kept < MAPPINGS_MAX {
                        found.looks.push(Look { ns, mappings: Vec::new() });
                    }
                }
                Entry::Mapping(mapping) => {
                    kept += MAPPING_SIZE + mapping.name.len();
                    if let Some(look) = found.looks.last_mut().filter(|_| kept < MAPPINGS_MAX) {
                        look.mappings.push(mapping);
                    }
                }
                Entry::Happened(it) => {
                    found.until(it.ns);
                    match it.what {
                        What::Fault => found.place(it.address, it.ns),
                        What::Limit => found.limit(it.ns, it.pages.saturating_mul(PAGE)),
                        _ => {}
                    }
                }
                Entry::Lost { ns, .. } => found.until(ns),
                Entry::End { ns, how } => {
                    found.until(ns);
                    found.end = Some(how);
                }
            }
        }
        (found.broken, found.too_much) = (reader.broken, kept >= MAPPINGS_MAX);
        for look in &mut found.looks {
            look.mappings.sort_by_key(|it| it.start);
        }
        Ok(found)
    }

    fn until(&mut self, ns: u64) {
        self.to = self.to.max(ns);
        // What happened a moment before the recorder could say that it was there.
        self.from = self.from.min(ns);
    }

    fn limit(&mut self, ns: u64, bytes: u64) {
        if self.limits.len() < LIMITS_MAX && self.limits.last().is_none_or(|(_, last)| *last != bytes) {
            self.limits.push((ns, bytes));
        }
    }

    fn place(&mut self, address: u64, ns: u64) {
        self.places.entry(address >> self.shift).or_insert((address, ns));
        while self.places.len() > PLACES_MAX {
            self.shift += 1;
            self.places = self.places.drain().map(|(place, first)| (place >> 1, first)).collect();
        }
    }

    /// The mapping of an address at a time: as it was looked at next or last.
    fn mapping(&self, address: u64, ns: u64) -> Option<(&Look, usize)> {
        let next = self.looks.partition_point(|look| look.ns < ns);
        // What has faulted was there: with the look before, unless it is too new for that.
        let order = [next.checked_sub(1), Some(next), next.checked_sub(2), Some(next + 1)];
        order.into_iter().flatten().filter_map(|at| self.looks.get(at)).find_map(|look| {
            let at = look.mappings.partition_point(|it| it.start <= address).checked_sub(1)?;
            (address < look.mappings[at].end).then_some((look, at))
        })
    }
}

/// What a mapping is called: its file, `[heap]` and the like, `[thread stack]`, or `[anonymous]`.
fn called(look: &Look, at: usize) -> String {
    let it = &look.mappings[at];
    if !it.name.is_empty() {
        return plain(&String::from_utf8_lossy(&it.name));
    }
    // glibc makes a thread's stack in one piece with a guard page in front, which nobody may touch: 4 KiB there are nothing else.
    let guard = at.checked_sub(1).map(|before| &look.mappings[before]);
    let is_stack = guard.is_some_and(|guard| guard.name.is_empty() && guard.end == it.start && guard.end - guard.start == PAGE);
    if is_stack { STACK.into() } else { "[anonymous]".into() }
}

/// A row of the heat map.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its first byte.
    pub start: u64,
    /// The byte behind it.
    pub end: u64,
    /// The mapping, or nothing where it is the same as in the row before.
    pub name: String,
    /// Faults by columns.
    pub cells: Vec<u32>,
}

/// What happened in a mapping.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Counts {
    /// Faults.
    pub faults: u64,
    /// Pages that came from swap space.
    pub fetched: u64,
    /// Pages that left.
    pub evicted: u64,
    /// Pages that came back from RAM.
    pub rescued: u64,
}

impl Counts {
    fn add(&mut self, it: &Happened) {
        let counter = match it.what {
            What::Fault => &mut self.faults,
            What::Fetched => &mut self.fetched,
            What::Evicted => &mut self.evicted,
            What::Rescued => &mut self.rescued,
            _ => return,
        };
        *counter = counter.saturating_add(it.pages);
    }
}

/// Where an instruction is.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Instruction {
    /// The file, `[vdso]` or the like; empty: not known.
    pub name: String,
    /// Where in the file; the address itself if there is none.
    pub offset: u64,
    /// The file as it was.
    pub size: u64,
    /// When it was changed last.
    pub changed_ns: u64,
}

/// All that is shown.
#[derive(Debug)]
pub struct Seen {
    /// What the first pass has found.
    pub found: Found,
    /// The heat map.
    pub rows: Vec<Row>,
    /// By mapping.
    pub mappings: BTreeMap<String, Counts>,
    /// All together.
    pub all: Counts,
    /// Over time.
    pub columns: Vec<Counts>,
    /// Events that were lost, over time, …
    pub lost_columns: Vec<u64>,
    /// … and in all.
    pub lost: u64,
    /// Faults by instruction, …
    pub instructions: HashMap<Instruction, u64>,
    /// … of those that were too many to be told apart, …
    pub instructions_more: u64,
    /// … and of none that is known.
    pub by_calls: u64,
    /// Faults by thread.
    pub threads: HashMap<u32, u64>,
    /// Returns by the binary logarithm of the pages that left between.
    pub distances: BTreeMap<u32, f64>,
    /// Pages that came back and were not seen leaving.
    pub unseen: u64,
    /// What policies can be run over.
    pub recording: Recording,
}

impl Seen {
    /// Goes through the file for the second time.
    pub fn of(mut reader: Reader<impl Read>, found: Found) -> Seen {
        let (rows, place_rows) = rows(&found);
        let mut seen = Seen {
            rows,
            mappings: BTreeMap::new(),
            all: Counts::default(),
            columns: vec![Counts::default(); COLUMNS],
            lost_columns: vec![0; COLUMNS],
            lost: 0,
            instructions: HashMap::new(),
            instructions_more: 0,
            by_calls: 0,
            threads: HashMap::new(),
            distances: BTreeMap::new(),
            unseen: 0,
            recording: Recording::default(),
            found,
        };
        let mut ghosts = Ghosts::default();
        while let Some(entry) = reader.take() {
            match entry {
                Entry::Happened(it) => {
                    seen.happened(&it, &place_rows);
                    seen.returns(&it, &mut ghosts);
                    seen.hear(&it);
                }
                Entry::Lost { ns, events } => {
                    let column = seen.column(ns);
                    seen.lost_columns[column] = seen.lost_columns[column].saturating_add(events);
                    seen.lost = seen.lost.saturating_add(events);
                }
                _ => {}
            }
        }
        seen
    }

    fn column(&self, ns: u64) -> usize {
        let (from, all) = (self.found.from, u128::from(self.found.to - self.found.from) + 1);
        // The file may have become another since the first pass.
        let passed = u128::from(ns.saturating_sub(from));
        ((passed * COLUMNS as u128 / all) as usize).min(COLUMNS - 1)
    }

    fn happened(&mut self, it: &Happened, place_rows: &HashMap<u64, usize>) {
        if !matches!(it.what, What::Fault | What::Fetched | What::Evicted | What::Rescued) {
            return;
        }
        let column = self.column(it.ns);
        self.columns[column].add(it);
        self.all.add(it);
        let mut name = self.found.mapping(it.address, it.ns).map_or_else(|| BRIEFLY.into(), |(look, at)| called(look, at));
        if self.mappings.len() >= NAMES_MAX && !self.mappings.contains_key(&name) {
            name = "[others]".into();
        }
        self.mappings.entry(name).or_default().add(it);
        if it.what != What::Fault {
            return;
        }
        if let Some(row) = place_rows.get(&(it.address >> self.found.shift)).and_then(|&row| self.rows.get_mut(row)) {
            row.cells[column] = row.cells[column].saturating_add(1);
        }
        if self.threads.len() < NAMES_MAX || self.threads.contains_key(&it.thread) {
            *self.threads.entry(it.thread).or_default() += 1;
        }
        if it.instruction == 0 {
            self.by_calls += 1;
            return;
        }
        let at = self.found.mapping(it.instruction, it.ns).map(|(look, at)| &look.mappings[at]);
        let instruction = at.map_or_else(
            || Instruction { offset: it.instruction, ..Instruction::default() },
            |mapping| {
                let is_file = mapping.name.starts_with(b"/");
                let offset = it.instruction - mapping.start;
                Instruction {
                    name: String::from_utf8_lossy(&mapping.name).into_owned(),
                    offset: if is_file { offset.wrapping_add(mapping.offset) } else { it.instruction },
                    size: mapping.size,
                    changed_ns: mapping.changed_ns,
                }
            },
        );
        if self.instructions.len() < INSTRUCTIONS_MAX || self.instructions.contains_key(&instruction) {
            *self.instructions.entry(instruction).or_default() += 1;
        } else {
            self.instructions_more += 1;
        }
    }

    fn hear(&mut self, it: &Happened) {
        let heard = match it.what {
            What::Fault => {
                let protected = it.detail & FAULT_PROTECTED != 0;
                Heard::Fault { protected, thread: it.thread, instruction: it.instruction }
            }
            What::Fetched if it.detail & UNASKED != 0 => Heard::Unasked,
            What::Fetched => Heard::Fetched,
            What::Rescued => Heard::Rescued,
            What::Evicted => Heard::Left,
            What::Unmapped => Heard::Gone,
            What::Limit | What::Mapped => return,
        };
        self.recording.hear(it.ns, heard, it.address / PAGE, it.pages);
    }

    fn returns(&mut self, it: &Happened, ghosts: &mut Ghosts) {
        let first = it.address / PAGE;
        let pages = first..first + it.pages.min(PAGES_MAX);
        match it.what {
            What::Evicted => pages.for_each(|page| ghosts.left(page)),
            What::Fetched | What::Rescued => {
                for page in pages {
                    match ghosts.came(page) {
                        Return::Unsampled => {}
                        Return::Unseen => self.unseen += 1,
                        Return::Ghost { weight, above } => {
                            *self.distances.entry((above as u64 + 1).ilog2()).or_default() += weight;
                        }
                    }
                }
            }
            What::Unmapped => ghosts.gone(first, it.pages),
            _ => {}
        }
    }
}

/// The rows of the heat map, and which one each place is in. Places in which nothing faulted are left out, and no row is of two mappings unless there are
/// too many.
fn rows(found: &Found) -> (Vec<Row>, HashMap<u64, usize>) {
    let mut places: Vec<u64> = found.places.keys().copied().collect();
    places.sort_unstable();
    // The first fault says what a place is.
    let name_of = |place: u64| {
        let (address, ns) = found.places[&place];
        found.mapping(address, ns).map_or_else(|| BRIEFLY.into(), |(look, at)| called(look, at))
    };
    let names: Vec<String> = places.iter().map(|&place| name_of(place)).collect();
    let apart = |n: usize| n == 0 || names[n] != names[n - 1] || places[n] != places[n - 1] + 1;
    let pieces = (0..places.len()).filter(|&n| apart(n)).count();
    let are_few = pieces <= ROWS / 2;
    let each = places.len().div_ceil(ROWS).max(1);
    let (mut rows, mut of_place, mut room) = (Vec::<Row>::new(), HashMap::new(), 0);
    for (n, &place) in places.iter().enumerate() {
        if room == 0 || are_few && apart(n) {
            let name = if n > 0 && names[n] == names[n - 1] { String::new() } else { names[n].clone() };
            rows.push(Row { start: place << found.shift, end: 0, name, cells: vec![0; COLUMNS] });
            room = each;
        }
        room -= 1;
        let at = rows.len() - 1;
        rows[at].end = (place << found.shift).saturating_add(1 << found.shift);
        of_place.insert(place, at);
    }
    (rows, of_place)
}
