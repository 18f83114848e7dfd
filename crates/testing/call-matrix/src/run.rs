//! Runs all cases in all ways.

use crate::call::{Arg, Call, Done, Returns, describe};
use crate::cases::Case;
use crate::kernel::{Args, Entry, enter, error_text, number, sys};
use crate::memory::{self, Ballast, Mapping, PageMap, State};
use crate::place::{CANARY, CANARY_BYTE, Placed, Plan, WAYS, Way};
use crate::{Options, cases, left_out};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A case, which of its buffers ends in nothing, and the call.
type Prepared = (usize, Option<usize>, Call);
/// A line for each.
type Lines = BTreeMap<(usize, Option<usize>), String>;

/// A call with its buffers in place, ready to be made.
struct Ready {
    /// Index of the case.
    case: usize,
    /// The buffer that ends in nothing.
    at_the_end: Option<usize>,
    call: Call,
    placed: Vec<Placed>,
    /// Contents of the buffers, with the addresses in them.
    contents: Vec<Vec<u8>>,
}

/// How often buffers' pages were in which state when a call was made.
#[derive(Clone, Copy, Default)]
struct Counts {
    calls: u64,
    pages: u64,
    absent: u64,
    protected: u64,
    present: u64,
    /// Calls that had an absent page and one that was there.
    mixed: u64,
}

/// What has been seen of the rows of the table.
#[derive(Default)]
struct Seen {
    succeeded: BTreeSet<&'static str>,
    failed: BTreeSet<&'static str>,
    skipped: BTreeMap<&'static str, String>,
}

struct Matrix<'o> {
    options: &'o Options,
    cases: Vec<Case>,
    ballast: Ballast,
    pagemap: PageMap,
    counts: BTreeMap<&'static str, Counts>,
    seen: Seen,
    /// Calls so far.
    made: u64,
}

/// Makes all calls and prints a line for each.
pub fn all(options: &Options) -> Result<(), String> {
    left_out::check()?;
    raise_limits();
    let mut cases = cases::all(options.apart);
    cases.retain(|case| case.title().contains(&options.only));
    let ballast = Ballast::new(options.ballast)?;
    let mut matrix =
        Matrix { options, cases, ballast, pagemap: PageMap::open()?, counts: BTreeMap::new(), seen: Seen::default(), made: 0 };
    for way in WAYS {
        let lines = if way == Way::Leaving { matrix.leaving()? } else { matrix.once(way)? };
        lines.iter().for_each(|line| println!("{line}"));
    }
    matrix.summary();
    if let Some(path) = &options.counts {
        std::fs::write(path, matrix.counts_text()).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// Many cases have their descriptors open at one time.
fn raise_limits() {
    let mut limit = [0u64; 2];
    if sys("prlimit64", &[0, 7, 0, memory_of(&mut limit)]).is_ok() {
        limit[0] = limit[1];
        let _ = sys("prlimit64", &[0, 7, memory_of(&mut limit), 0]);
    }
}

fn memory_of(words: &mut [u64; 2]) -> u64 {
    crate::kernel::at_mut(words)
}

impl Matrix<'_> {
    /// All cases while pages leave, round after round: lines that are the same each time are given once.
    fn leaving(&mut self) -> Result<Vec<String>, String> {
        let churn = self.ballast.churn();
        let mut all: Option<Vec<String>> = None;
        let mut result = Ok(());
        for round in 0..self.options.rounds {
            match self.once(Way::Leaving) {
                Ok(lines) => match &all {
                    None => all = Some(lines),
                    Some(first) => {
                        let other = first.iter().zip(&lines).find(|(a, b)| a != b);
                        if let Some((a, b)) = other {
                            result = Err(format!("round {round} differs from the first:\n  {b}\n  {a}"));
                        }
                    }
                },
                Err(why) => result = Err(why),
            }
            if result.is_err() {
                break;
            }
        }
        churn.stop()?;
        result.map(|()| all.unwrap_or_default())
    }

    /// All cases in one way: a line for each call, in the order of the cases.
    fn once(&mut self, way: Way) -> Result<Vec<String>, String> {
        let mut lines = Lines::new();
        let mut prepared = Vec::new();
        for case in 0..self.cases.len() {
            let variants = self.variants(case, way, &mut lines);
            prepared.extend(variants);
        }
        let mut prepared = prepared.into_iter().peekable();
        while prepared.peek().is_some() {
            let group = prepared.by_ref().take(way.at_once()).collect();
            self.make_all(way, group, &mut lines)?;
        }
        tidy();
        Ok(lines.into_values().collect())
    }

    /// Makes calls that were prepared: all are placed and pushed out before the first one.
    fn make_all(&mut self, way: Way, prepared: Vec<Prepared>, lines: &mut Lines) -> Result<(), String> {
        let (_mapping, ready) = self.place(way, prepared)?;
        let pages = || ready.iter().flat_map(|one| &one.placed).flat_map(|place| &place.managed);
        if way != Way::Resident && way != Way::Leaving {
            self.ballast.push();
        }
        if way == Way::Clean {
            // What is read and leaves unwritten teaches Farshore to map it write-protected.
            pages().for_each(|&at| memory::touch(at));
            self.ballast.push();
            pages().for_each(|&at| memory::touch(at));
        }
        // No fetch may bring the pages of the next call along.
        let order = shuffled(ready.len());
        let mut slots: Vec<Option<Ready>> = ready.into_iter().map(Some).collect();
        for index in order {
            if let Some(one) = slots[index].take() {
                let key = (one.case, one.at_the_end);
                let line = self.make(way, one)?;
                lines.insert(key, line);
            }
        }
        Ok(())
    }

    /// Prepares a case: once, or for each of its buffers if each shall lie at the end once.
    fn variants(&mut self, case: usize, way: Way, lines: &mut Lines) -> Vec<Prepared> {
        let mut prepared = Vec::new();
        let mut ends = vec![None];
        let mut next = 0;
        while next < ends.len() {
            let mut call = Call::new(format!("w{case:04}{next}"));
            if let Err(why) = (self.cases[case].prepare)(&mut call) {
                self.seen.skipped.insert(self.cases[case].call, why.clone());
                lines.insert((case, None), format!("{} {}: skipped: {why}", self.cases[case].title(), way.name()));
                return prepared;
            }
            if way == Way::End && next == 0 {
                ends = ends_of(call.buffers.len());
            }
            prepared.push((case, ends[next], call));
            next += 1;
        }
        prepared
    }

    /// Gives all buffers their memory and contents.
    fn place(&self, way: Way, prepared: Vec<Prepared>) -> Result<(Mapping, Vec<Ready>), String> {
        let plans: Vec<Vec<Plan>> = prepared
            .iter()
            .map(|(_, end, call)| {
                let plan = |(index, buffer)| Plan::new(buffer, way, *end == Some(index));
                call.buffers.iter().enumerate().map(plan).collect()
            })
            .collect();
        let mapping = Mapping::new(plans.iter().flatten().map(Plan::pages).sum())?;
        let mut page = 0;
        let mut ready = Vec::new();
        for ((case, at_the_end, call), plans) in prepared.into_iter().zip(&plans) {
            let mut placed = Vec::new();
            for (plan, buffer) in plans.iter().zip(&call.buffers) {
                placed.push(plan.carry_out(&mapping, page, buffer.bytes.len())?);
                page += plan.pages();
            }
            let contents = fill(&call, &placed);
            ready.push(Ready { case, at_the_end, call, placed, contents });
        }
        Ok((mapping, ready))
    }

    /// Makes one call; its line.
    fn make(&mut self, way: Way, ready: Ready) -> Result<String, String> {
        let Ready { case, at_the_end, mut call, placed, contents } = ready;
        let (name, title) = (self.cases[case].call, self.cases[case].title());
        let mut line = format!("{title} {}", way.name());
        if let Some(buffer) = at_the_end {
            _ = write!(line, " of {buffer}");
        }
        for before in std::mem::take(&mut call.before) {
            before().map_err(|why| format!("{title}: {why}"))?;
        }
        let mut args: Args = [0; 6];
        for (arg, place) in call.args.iter().zip(&mut args) {
            *place = match *arg {
                Arg::Number(value) => value,
                Arg::Buffer(index) => placed[index].addr,
            };
        }
        let (entry, nr) = (if case % 2 == 0 { Entry::Libc } else { Entry::Own }, number(name));
        self.set_pages(way, &placed)?;
        let refused = self.cases[case].refused;
        // Natively there is nothing to compare with.
        let made = self.options.managed || !refused;
        let result = if made { enter(entry, nr, &args) } else { -i64::from(libc::ENOSYS) };
        _ = write!(line, ": {}", result_text(&call, result, refused));
        for ((buffer, place), before) in call.buffers.iter().zip(&placed).zip(&contents) {
            _ = write!(line, " {}", after_text(buffer, place, before)?);
        }
        let done = Done { result, buffers: placed.iter().map(|place| memory::read(place.addr, place.exists)).collect() };
        // The last first: descriptors are closed when everything was looked at.
        for after in std::mem::take(&mut call.after).into_iter().rev() {
            let text = after(&done);
            if !text.is_empty() {
                _ = write!(line, " {text}");
            }
        }
        if result >= 0 || refused || self.cases[case].succeeds_with == Some(result) {
            self.seen.succeeded.insert(name);
        } else {
            self.seen.failed.insert(name);
        }
        Ok(line)
    }

    /// Brings pages into the state that the way wants, and counts what they are.
    fn set_pages(&mut self, way: Way, placed: &[Placed]) -> Result<(), String> {
        for place in placed {
            match way {
                Way::Half => memory::touch(place.addr),
                // Those that have left again meanwhile.
                Way::Clean => place.managed.iter().for_each(|&at| memory::touch(at)),
                Way::Resident => place.managed.iter().for_each(|&at| memory::dirty(at)),
                // Half of them leave by a write, the others are clean.
                Way::Leaving if self.made.is_multiple_of(2) => place.managed.iter().for_each(|&at| memory::dirty(at)),
                Way::Leaving => place.managed.iter().for_each(|&at| memory::touch(at)),
                _ => {}
            }
        }
        self.made += 1;
        if way == Way::Leaving && self.options.managed {
            // Pages leave some milliseconds after they came: the calls meet them at all moments of that.
            let step = if self.made.is_multiple_of(3) { 150 } else { 30 };
            let (start, time) = (std::time::Instant::now(), std::time::Duration::from_micros(self.made % 37 * step));
            while start.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        let counts = self.counts.entry(way.name()).or_default();
        let before = *counts;
        for &at in placed.iter().flat_map(|place| &place.managed) {
            counts.pages += 1;
            match self.pagemap.state(at)? {
                State::Absent => counts.absent += 1,
                State::Protected => counts.protected += 1,
                State::Present => counts.present += 1,
            }
        }
        counts.calls += u64::from(!placed.is_empty());
        let absent = counts.absent - before.absent;
        counts.mixed += u64::from(absent > 0 && absent < counts.pages - before.pages);
        Ok(())
    }

    /// Which rows were called with success, and which were not.
    fn summary(&self) {
        if !self.options.only.is_empty() {
            return;
        }
        let failed: Vec<_> = self.seen.failed.difference(&self.seen.succeeded).copied().collect();
        println!("rows whose calls succeeded: {}", self.seen.succeeded.len());
        println!("rows whose calls ended with an error: {}: {}", failed.len(), failed.join(" "));
        let called = |name: &str| self.seen.succeeded.contains(name) || self.seen.failed.contains(name);
        let skipped: Vec<_> = self.seen.skipped.iter().filter(|(name, _)| !called(name)).collect();
        println!("rows that cannot be called here: {}", skipped.len());
        skipped.iter().for_each(|(name, why)| println!("  {name}: {why}"));
        println!("rows left out: {}", left_out::LEFT_OUT.len());
        left_out::LEFT_OUT.iter().for_each(|(name, why)| println!("  {name}: {why}"));
        println!("rows without pointers: {}", left_out::without_pointers());
    }

    fn counts_text(&self) -> String {
        let lines: Vec<String> = self
            .counts
            .iter()
            .map(|(way, c)| {
                format!(
                    "\"{way}\": {{\"calls\": {}, \"pages\": {}, \"absent\": {}, \"protected\": {}, \"present\": {}, \"mixed\": {}}}",
                    c.calls, c.pages, c.absent, c.protected, c.present, c.mixed
                )
            })
            .collect();
        format!("{{{}}}\n", lines.join(",\n"))
    }
}

/// Which of so many buffers lie at the end, in turn: of many, the first, the last, and those around the number of pieces
/// that one call of Farshore's takes.
fn ends_of(buffers: usize) -> Vec<Option<usize>> {
    match buffers {
        0 => vec![None],
        1..=8 => (0..buffers).map(Some).collect(),
        _ => [0, 1, 62, 63, 64, buffers - 2, buffers - 1].into_iter().filter(|&index| index < buffers).map(Some).collect(),
    }
}

/// Writes contents and canaries; what each buffer holds.
fn fill(call: &Call, placed: &[Placed]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (buffer, place) in call.buffers.iter().zip(placed) {
        let mut bytes = buffer.bytes.clone();
        for &(offset, target) in &buffer.links {
            bytes[offset..offset + 8].copy_from_slice(&placed[target].addr.to_ne_bytes());
        }
        memory::write(place.addr - CANARY as u64, &[CANARY_BYTE; CANARY]);
        memory::write(place.addr, &bytes[..place.exists]);
        if place.behind {
            memory::write(place.addr + bytes.len() as u64, &[CANARY_BYTE; CANARY]);
        }
        all.push(bytes);
    }
    all
}

fn result_text(call: &Call, result: i64, refused: bool) -> String {
    match result {
        _ if refused => format!("refused{}", if result == -i64::from(libc::ENOSYS) { "" } else { ", BUT NOT SO" }),
        error if error < 0 => error_text(error),
        descriptor if call.returns == Returns::Descriptor => {
            // The case does not need it any more.
            let _ = sys("close", &[descriptor as u64]);
            "descriptor".into()
        }
        _ if call.returns == Returns::Any => "number".into(),
        number => number.to_string(),
    }
}

/// What a buffer holds after the call; an error if something else was written.
fn after_text(buffer: &crate::call::Buffer, place: &Placed, before: &[u8]) -> Result<String, String> {
    let now = memory::read(place.addr, place.exists);
    let canaries = [(place.addr - CANARY as u64, true), (place.addr + before.len() as u64, place.behind)];
    let intact = canaries.iter().all(|&(at, there)| !there || memory::read(at, CANARY) == [CANARY_BYTE; CANARY]);
    let mut text = if intact { String::new() } else { "OUT OF BOUNDS ".to_string() };
    if place.exists == before.len() {
        text += &describe(buffer, before, &now);
    } else {
        // What exists of it, as long as it has nothing that differs from run to run.
        let plain = buffer.links.is_empty() && buffer.volatile.is_empty();
        let unchanged = now == before[..place.exists];
        text += if unchanged { "=" } else { "!" };
        if plain {
            _ = write!(text, "{:016x}", crate::call::digest(&now));
        }
    }
    Ok(text)
}

/// The numbers below `count` in an order without neighbours, the same each time.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order
}

/// Removes what cases have made in the directory.
fn tidy() {
    let Ok(entries) = std::fs::read_dir(".") else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('w')) {
        // A mount is in the way of both until its case has taken it down; the driver removes the rest.
        if std::fs::remove_file(entry.path()).is_err() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
