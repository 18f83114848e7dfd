//! What each replacement policy would have read, as far as the recording tells. [`farshore_replay::recorded`] has what of it is
//! known, what is estimated, and how; the page says so beside the numbers.

use std::collections::BTreeMap;
use std::fmt::Write;

use farshore_beside::PAGE;
use farshore_client::shown::bytes;
use farshore_core::limits::MEMORY_LIMIT_MIN;
use farshore_policy::{BuiltIn, prefetch};
use farshore_replay::recorded::{Recording, Traces};
use farshore_replay::{Trace, engine, optimum, policies, reads};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::page::{LEFT, WIDTH, escaped, svg};
use super::seen::Seen;

/// Sizes of memory, in percent of the limit that the program had.
const PERCENT: [u64; 5] = [50, 75, 100, 150, 200];
/// Which of them is the limit itself.
const OWN: usize = 2;
/// Fewer pages than these tell nothing of a policy.
const PAGES_MIN: usize = 64;
/// The page doubts numbers that tell of the run itself so many times too much, or too little.
const DOUBT: f64 = 1.5;
/// Rows that the plot has.
const DRAWN: [&str; 4] = ["Farshore", "LRU", "S3-FIFO", OPTIMUM];
const OPTIMUM: &str = "Bélády";

/// A policy, and the pages that it would have read back with each size of memory; `None`: that cannot be told.
type Row = (&'static str, [Option<f64>; PERCENT.len()]);

/// What there is to say of policies.
#[derive(Debug)]
pub struct Policies {
    /// The limit that held for the longest time, bytes, and whether there were others.
    limit: u64,
    has_others: bool,
    /// Pages that were read in the run.
    fetched: u64,
    rows: Vec<Row>,
    /// Nobody could have read fewer with the limit.
    bound: u64,
    /// Accesses that the trace has, and how many of them are estimated.
    accesses: u64,
    added: u64,
    /// The part of memory that was looked at.
    rate: f64,
    lost: u64,
}

impl Policies {
    /// Runs all policies over what was heard.
    ///
    /// # Errors
    /// Why there is nothing to say.
    pub fn of(recording: Recording, seen: &Seen) -> Result<Policies, &'static str> {
        let Some((limit, has_others)) = longest_limit(&seen.found.limits, seen.found.to) else {
            return Err("the limit is not known");
        };
        if seen.all.fetched == 0 {
            return Err("no page came back from swap space: the limit was no hindrance, and no policy would have read anything");
        }
        let traces = recording.traces();
        let Traces { known, likely, rate, weight, unasked, added } = &traces;
        if likely.touched() < PAGES_MIN {
            let is_part = *rate < 1.0;
            return Err(if is_part {
                "the recording is so long that too small a part of the program's memory could be looked at: record it for a shorter time"
            } else {
                "too few pages were heard of"
            });
        }
        let pages = |percent: u64| (limit as f64 / 100.0 * percent as f64 / PAGE as f64 * rate) as usize;
        let sizes = PERCENT.map(pages);
        let row = |of: &dyn Fn(usize) -> Option<u64>| sizes.map(|size| of(size).map(|read| read as f64 * weight));
        // Where no page came unasked, both are what the run had: it had no prefetcher, or no use for one.
        let prefetchers = [("Farshore", prefetch::BuiltIn::Sequential), ("Farshore, --prefetch none", prefetch::BuiltIn::None)];
        let mut rows: Vec<Row> =
            prefetchers.map(|(name, prefetcher)| (name, row(&|size| of_engine(likely, size, prefetcher)))).into();
        if *unasked == 0 {
            rows[0] = ("Farshore", rows[1].1);
            rows.truncate(1);
        }
        rows.extend(
            policies::general().map(|(name, make)| {
                (name, row(&|size| bounded(likely, size).map(|size| reads(&mut *make(likely, size), likely))))
            }),
        );
        rows.push((OPTIMUM, row(&|size| bounded(likely, size).map(|size| optimum::reads(likely, size)))));
        let bound = bounded(known, sizes[OWN]).map_or(0, |size| optimum::reads(known, size)) as f64 * weight;
        let accesses = (likely.accesses.len() - likely.from) as u64;
        Ok(Policies {
            limit,
            has_others,
            fetched: seen.all.fetched,
            rows,
            bound: bound as u64,
            accesses,
            added: *added,
            rate: *rate,
            lost: seen.lost,
        })
    }

    /// So many percent of the limit, bytes.
    fn part(&self, percent: u64) -> u64 {
        (u128::from(self.limit) * u128::from(percent) / 100) as u64
    }

    /// Why the numbers are not to be trusted: what they say of the run itself is not what it was.
    fn doubt(&self) -> Option<String> {
        let told = self.rows.first().and_then(|(_, reads)| reads[OWN])?;
        let (told, was) = (told.max(1.0), self.fetched.max(1) as f64);
        (told > was * DOUBT || was > told * DOUBT).then(|| {
            format!("They are rough here: of the run itself they say that it read {told:.0} pages, and it read {}.", self.fetched)
        })
    }

    /// What is shown.
    pub fn section(&self) -> Markup {
        let estimated = self.added as f64 / self.accesses.max(1) as f64 * 100.0;
        html! {
            p {
                "Pages that each policy would have read back with so much memory, if the program had done the same. This run had "
                (bytes(self.limit)) " and read " (self.fetched) "."
            }
            @if self.has_others { p.note { "The limit changed; " (bytes(self.limit)) " is the one that held longest." } }
            @if let Some(doubt) = self.doubt() { p.note id="doubt" { (doubt) } }
            (self.table())
            (self.plot())
            p {
                "A recording has faults, and not what a program does with pages that are there. How often it used them is estimated by how soon each page was wanted again after it had left: "
                (format!("{estimated:.0} %")) " of the accesses that the policies were run over. Pages that came unasked count as used. So a small difference between two policies says nothing, and with less memory than the run had more depends on the estimate."
            }
            p {
                "One number is no estimate: with " (bytes(self.limit)) " "
                @if self.rate < 1.0 || self.lost > 0 { "about " (self.bound) } @else { (self.bound) }
                " pages had to be read by anybody, whatever the policy; that is what the best possible (Bélády) reads of the faults alone."
            }
            @if self.rate < 1.0 { p.quiet { "The recording is long: of its memory " (format!("{:.1} %", self.rate * 100.0)) " was looked at." } }
            p.quiet { "The rows of Farshore are its engine, which sees faults alone and takes its staging memory from the limit. The others see each access, and have all of the memory." }
        }
    }

    fn table(&self) -> Markup {
        let number = |read: Option<f64>| read.map_or_else(|| "–".into(), |read| format!("{read:.0}"));
        html! {
            div.scroll { table {
                thead { tr { th { "policy" } @for percent in PERCENT { th.number { (bytes(self.part(percent))) } } } }
                tbody { @for (name, reads) in &self.rows { tr {
                    th scope="row" { (name) @if *name == OPTIMUM { " (the optimum)" } }
                    @for read in reads { td.number { (number(*read)) } }
                } } }
            } }
        }
    }

    /// A few of the rows.
    fn plot(&self) -> Markup {
        const HEIGHT: f64 = 160.0;
        let drawn: Vec<&Row> = DRAWN.iter().filter_map(|name| self.rows.iter().find(|(of, _)| of == name)).collect();
        let most = drawn.iter().flat_map(|(_, reads)| reads.iter().flatten()).copied().fold(1.0, f64::max);
        let x_of = |n: usize| {
            LEFT + (PERCENT[n] - PERCENT[0]) as f64 / (PERCENT[PERCENT.len() - 1] - PERCENT[0]) as f64 * (WIDTH - LEFT - 60.0)
        };
        let mut inside = format!(
            r#"<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/><text class="label end" x="{:.1}" y="12">{most:.0}</text>"#,
            LEFT - 8.0
        );
        for (n, percent) in PERCENT.into_iter().enumerate() {
            let size = escaped(&bytes(self.part(percent)));
            let _ = write!(inside, r#"<text class="label" x="{:.1}" y="{:.1}">{size}</text>"#, x_of(n), HEIGHT + 16.0);
        }
        for (n, (name, reads)) in drawn.into_iter().enumerate() {
            let mut points = String::new();
            for (at, read) in reads.iter().enumerate().filter_map(|(at, read)| Some((at, (*read)?))) {
                let _ = write!(points, "{:.1},{:.1} ", x_of(at), HEIGHT - read / most * (HEIGHT - 6.0));
            }
            let (y, name) = (40.0 + n as f64 * 22.0, escaped(name));
            let _ = write!(
                inside,
                r#"<polyline class="series s{n}" points="{points}"/><line class="series s{n}" x1="0" x2="30" y1="{y}" y2="{y}"/><text class="label" x="38" y="{}">{name}</text>"#,
                y + 4.0
            );
        }
        svg(HEIGHT + 22.0, "Pages read by memory, for a few policies", &inside)
    }

    /// The same for scripts.
    pub fn data(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|(name, reads)| json!({"policy": name, "reads": reads})).collect();
        json!({
            "limit_bytes": self.limit, "reads": self.fetched, "at_least": self.bound,
            "bytes": PERCENT.map(|percent| self.part(percent)), "rows": rows,
            "accesses": self.accesses, "estimated": self.added, "sampled": self.rate, "doubt": self.doubt(),
        })
    }
}

/// The limit that held for the longest time, if there was one, and whether there were others.
fn longest_limit(limits: &[(u64, u64)], end: u64) -> Option<(u64, bool)> {
    let mut held = BTreeMap::<u64, u64>::new();
    for (n, (from, limit)) in limits.iter().enumerate() {
        let to = limits.get(n + 1).map_or(end, |(next, _)| *next);
        let time = held.entry(*limit).or_default();
        *time = time.saturating_add(to.saturating_sub(*from));
    }
    let has_others = held.len() > 1;
    held.into_iter().filter(|(limit, _)| *limit > 0).max_by_key(|(_, time)| *time).map(|(limit, _)| (limit, has_others))
}

/// A number of pages that a model can have: more than there are make no difference.
fn bounded(trace: &Trace, size: usize) -> Option<usize> {
    (size >= PAGES_MIN).then(|| size.min(trace.pages as usize + 1))
}

fn of_engine(trace: &Trace, size: usize, prefetcher: prefetch::BuiltIn) -> Option<u64> {
    let least = (MEMORY_LIMIT_MIN / PAGE) as usize;
    // With twice as many as there are nothing leaves, whatever it takes for itself.
    let size = size.min(2 * trace.pages as usize + 4 * least);
    (size >= least).then(|| engine::reads(trace, size, BuiltIn::SecondChance, prefetcher).pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::file::tests::file;
    use crate::record::file::{Entry, Happened, Reader, What};
    use crate::report::seen::Found;
    use farshore_replay::recorded::Heard;

    const LIMIT: u64 = 1024;

    fn seen(entries: &[Entry]) -> Seen {
        let file = file(entries);
        let found = Found::of(Reader::new(file.as_slice()).expect("it is one")).expect("it has a program");
        Seen::of(Reader::new(file.as_slice()).expect("it is one"), found)
    }

    fn recorded(happened: impl IntoIterator<Item = (What, u64)>) -> Vec<Entry> {
        let head =
            [Entry::Program { pid: 1, ns: 0, date: 0, name: b"x".to_vec() }, Entry::Attached { ns: 0, limit: LIMIT * PAGE }];
        let happened = happened.into_iter().enumerate().map(|(n, (what, page))| {
            let address = (1 << 30) + page * PAGE;
            Entry::Happened(Happened { what, detail: 0, ns: n as u64 * 1000, address, pages: 1, thread: 1, instruction: 7 })
        });
        head.into_iter().chain(happened).collect()
    }

    /// A loop of so many pages as first in, first out serves it.
    fn around(pages: u64, rounds: u64) -> impl Iterator<Item = (What, u64)> {
        (0..pages * rounds).flat_map(move |n| {
            let leaves = n.checked_sub(LIMIT).map(|n| (What::Evicted, n % pages));
            let comes = (n >= pages).then_some((What::Fetched, n % pages));
            [leaves, Some((What::Fault, n % pages)), comes].into_iter().flatten()
        })
    }

    fn policies(seen: &mut Seen) -> Result<Policies, &'static str> {
        Policies::of(std::mem::take(&mut seen.recording), seen)
    }

    #[test]
    fn of_a_loop_the_numbers_are_those_that_are_known() {
        let (pages, rounds) = (2048, 10);
        let told = policies(&mut seen(&recorded(around(pages, rounds)))).expect("there is something to say");
        assert_eq!((told.limit, told.has_others, told.fetched, told.rate), (LIMIT * PAGE, false, (rounds - 1) * pages, 1.0));
        let read = |name: &str| told.rows.iter().find(|(of, _)| *of == name).expect("it has a row").1;
        let all = ((rounds - 1) * pages) as f64;
        // All pages each time, until all of them fit; of the best a part stays.
        let is_near = |one: f64, other: f64| (one - other).abs() <= 8.0;
        for name in ["LRU", "FIFO", "CLOCK"] {
            let reads = read(name).map(|read| read.expect("it is told"));
            assert!(reads[..4].iter().all(|read| is_near(*read, all)) && reads[4] == 0.0, "{name}: {reads:?} of {all}");
        }
        let best = read("Bélády")[OWN].expect("it is told");
        assert!((0.45 * all..0.6 * all).contains(&best) && is_near(told.bound as f64, best), "{best} of {all}, {told:?}");
        let farshore = read("Farshore")[OWN].expect("it is told");
        assert!(farshore > best && farshore <= all, "{farshore}");
        assert_eq!(read("Farshore")[0], None, "less than any limit");
        assert_eq!(told.rows.last().map(|(name, _)| *name), Some("Bélády"));
        let data = told.data();
        assert_eq!((&data["bytes"][OWN], &data["reads"]), (&(LIMIT * PAGE).into(), &((rounds - 1) * pages).into()));
        assert!(told.section().into_string().contains("Bélády (the optimum)"));
    }

    #[test]
    fn what_the_numbers_do_not_fit_is_doubted() {
        // Pages that are fetched again and again, and nobody hears them leave.
        let happened = around(2048, 3).filter(|(what, page)| *what != What::Evicted || page % 2 == 0);
        let mut one = seen(&recorded(happened));
        one.all.fetched *= 4;
        let told = policies(&mut one).expect("there is something to say");
        assert!(told.section().into_string().contains("id=\"doubt\""), "{told:?}");
        assert!(told.data()["doubt"].is_string());
    }

    #[test]
    fn where_there_is_nothing_to_say_it_says_why() {
        let why = policies(&mut seen(&recorded((0..2000).map(|n| (What::Fault, n))))).expect_err("nothing was read");
        assert!(why.contains("no page came back"), "{why}");
        let why = policies(&mut seen(&recorded([(What::Fault, 1), (What::Fetched, 1)]))).expect_err("one page");
        assert!(why.contains("too few"), "{why}");
        let mut long = seen(&recorded(around(2048, 3)));
        long.recording = Recording::with(10);
        (0..100).for_each(|n| long.recording.hear(n, Heard::Fetched, n << 9, 1));
        let why = policies(&mut long).expect_err("ten pages of a hundred");
        assert!(why.contains("so long"), "{why}");
        let entries = recorded(around(2048, 3));
        let without: Vec<Entry> = entries.into_iter().filter(|entry| !matches!(entry, Entry::Attached { .. })).collect();
        assert_eq!(policies(&mut seen(&without)).expect_err("there is no limit"), "the limit is not known");
    }

    #[test]
    fn the_limit_is_the_one_that_held_longest() {
        let longest = |limits: &[(u64, u64)]| longest_limit(limits, 100);
        assert_eq!(longest(&[(0, 5)]), Some((5, false)));
        assert_eq!(longest(&[(0, 5), (30, 7), (60, 5)]), Some((5, true)));
        assert_eq!(longest(&[(0, 5), (60, 7), (70, 9), (90, 7)]), Some((5, true)));
        assert_eq!(longest(&[(0, 0)]), None);
        assert_eq!(longest(&[]), None);
    }
}
