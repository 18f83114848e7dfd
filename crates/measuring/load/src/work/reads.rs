//! `reads`: raw reads of pages, what a fault would cost if it cost nothing but its page's way.
//!
//! Each thread reads pages of a part of its own in order, one at a time: by `pread` past the page cache, from a file without a name, or from memory that answers
//! late (`--delay`), as Farshore's swap space `delay:` does: the bytes are copied, and the thread spins until the time is over.
//!
//! Meanwhile `--writers` threads write what nobody reads, 64 pages at a time as an evictor does: as fast as they can, or with `--in-step` no more pages than were
//! read, since in the long run a page leaves for each that comes. They are not measured.
//!
//! Verified: a word of each page that was read, and each word that the writers wrote last.

use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use farshore_load::outcome::Outcome;
use farshore_load::workload;
use nix::sys::uio::pwritev;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::memory::{Contents, Memory, PAGE, WORDS, generator, shard};
use crate::report::Report;
use crate::team::{self, Stage};
use crate::verify::Wrongs;

/// Pages that a writer writes at a time.
const BLOCK: usize = 64;
/// Blocks of a writer's own, which it writes in turn.
const BLOCKS: usize = 16;
/// A writer that is ahead of the readers looks again after so long.
const PAUSE: Duration = Duration::from_micros(50);

/// A page that a device takes and gives without copying it.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

impl Page {
    const EMPTY: Page = Page([0; PAGE]);

    fn word(&self, word: usize) -> u64 {
        let mut bytes = [0; size_of::<u64>()];
        bytes.copy_from_slice(&self.0[word * size_of::<u64>()..][..size_of::<u64>()]);
        u64::from_ne_bytes(bytes)
    }

    /// What page `number` of some contents is.
    fn fill(&mut self, contents: Contents, number: usize) {
        for (word, bytes) in self.0.chunks_exact_mut(size_of::<u64>()).enumerate() {
            bytes.copy_from_slice(&contents.word(number * WORDS + word).to_ne_bytes());
        }
    }
}

/// Where pages are.
enum Place {
    File(File),
    Late { memory: Memory, delay: Duration },
}

impl Place {
    /// For so many pages.
    fn new(args: &workload::Reads, pages: usize) -> Result<Place, String> {
        if let Some(ns) = args.delay {
            let size = farshore_load::size::Bytes((pages * PAGE) as u64);
            return Ok(Place::Late { memory: Memory::new(size)?, delay: Duration::from_nanos(ns) });
        }
        let directory = args.directory.display();
        let file = tempfile::tempfile_in(&args.directory);
        let file = file.map_err(|error| format!("cannot make a file in '{directory}': {error}; name another --directory"))?;
        let direct = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT));
        direct.map_err(|error| {
            format!("files in '{directory}' cannot be read past the page cache ({error}): name another --directory")
        })?;
        let long = file.set_len((pages * PAGE) as u64);
        long.map_err(|error| format!("a file in '{directory}' cannot have {pages} pages: {error}; give less --size"))?;
        Ok(Place::File(file))
    }

    /// Reads one page.
    fn read(&self, page: usize, into: &mut Page) -> Result<(), String> {
        match self {
            Place::File(file) => file
                .read_exact_at(&mut into.0, (page * PAGE) as u64)
                .map_err(|error| format!("page {page} cannot be read: {error}")),
            Place::Late { memory, delay } => {
                let due = Instant::now() + *delay;
                for (word, bytes) in memory.page(page).iter().zip(into.0.chunks_exact_mut(size_of::<u64>())) {
                    bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
                }
                spin_until(due);
                Ok(())
            }
        }
    }

    /// Writes neighbouring pages.
    fn write(&self, first: usize, pages: &[Page]) -> Result<(), String> {
        match self {
            Place::File(file) => {
                let cannot = |why: String| format!("{} pages from page {first} on cannot be written: {why}", pages.len());
                let slices: Vec<IoSlice> = pages.iter().map(|page| IoSlice::new(&page.0)).collect();
                let offset = i64::try_from(first * PAGE).map_err(|error| cannot(error.to_string()))?;
                match pwritev(file.as_fd(), &slices, offset) {
                    Ok(written) if written == pages.len() * PAGE => Ok(()),
                    Ok(written) => Err(cannot(format!("{written} bytes were; is the disk full?"))),
                    Err(errno) => Err(cannot(errno.to_string())),
                }
            }
            Place::Late { memory, delay } => {
                let due = Instant::now() + *delay;
                for (at, page) in (first..).zip(pages) {
                    memory.page(at).iter().enumerate().for_each(|(word, place)| place.store(page.word(word), Relaxed));
                }
                spin_until(due);
                Ok(())
            }
        }
    }
}

fn spin_until(due: Instant) {
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}

/// Runs it.
///
/// # Errors
/// If the file, memory or threads are not to be had, or a page cannot be read or written.
pub fn run(args: &workload::Reads, report: &mut Report) -> Result<Outcome, String> {
    let common = &args.common;
    let pages = usize::try_from(common.size.0).unwrap_or(usize::MAX) / PAGE;
    let written = args.writers as usize * BLOCKS * BLOCK;
    let place = Place::new(args, pages.saturating_add(written))?;
    let contents = Contents::new(common.seed);
    report.phase("fill");
    fill(&place, contents, pages)?;
    let shared = Shared { read: AtomicU64::new(0), written: AtomicU64::new(0), stop: AtomicBool::new(false) };
    let reader = |thread| Reader {
        place: &place,
        contents,
        random: generator(common.seed, thread),
        pages: shard(pages, common.threads as usize, thread),
        at: 0,
        page: Box::new(Page::EMPTY),
        read: (args.writers > 0).then_some(&shared.read),
        wrongs: Wrongs::default(),
    };
    let (measured, writers) = std::thread::scope(|scope| {
        let writer = |number: usize| {
            let first = pages + number * BLOCKS * BLOCK;
            let (place, shared) = (&place, &shared);
            let work = move || write(place, contents, first, args.in_step, shared);
            std::thread::Builder::new().name(format!("write-{number}")).spawn_scoped(scope, work)
        };
        let writers: Vec<_> = (0..args.writers as usize).map(writer).collect();
        let measured = team::timed(common, report, None, reader);
        shared.stop.store(true, Relaxed);
        let end = |writer: std::io::Result<std::thread::ScopedJoinHandle<_>>| match writer.map(|writer| writer.join()) {
            Ok(Ok(written)) => written,
            Ok(Err(_)) => Err("a writer panicked".into()),
            Err(error) => Err(format!("cannot start a writer: {error}; give fewer --writers")),
        };
        (measured, writers.into_iter().map(end).collect::<Result<Vec<_>, String>>())
    });
    let ((total, readers), writers) = (measured?, writers?);
    report.phase("verify");
    let mut wrongs = Wrongs::of(readers.into_iter().map(|reader| reader.wrongs));
    for (number, blocks) in writers.iter().enumerate() {
        wrongs.append(check(&place, contents, pages + number * BLOCKS * BLOCK, *blocks)?);
    }
    let blocks: u64 = writers.iter().sum();
    let verified = format!("a word of each of {} pages, and what was written last of {blocks} blocks", total.operations);
    let outcome =
        Outcome { unit: "read".into(), verified, wrong: wrongs.lines(), bytes_per_operation: PAGE as u64, ..Default::default() };
    Ok(super::measured(outcome, total))
}

fn fill(place: &Place, contents: Contents, pages: usize) -> Result<(), String> {
    let mut block = vec![Page::EMPTY; BLOCK];
    for first in (0..pages).step_by(BLOCK) {
        let count = BLOCK.min(pages - first);
        block.iter_mut().enumerate().for_each(|(at, page)| page.fill(contents, first + at));
        place.write(first, &block[..count])?;
    }
    Ok(())
}

/// What readers and writers know of each other.
struct Shared {
    /// Pages read, if there are writers, and those that writers have begun to write.
    read: AtomicU64,
    written: AtomicU64,
    stop: AtomicBool,
}

/// A thread that reads.
struct Reader<'a> {
    place: &'a Place,
    contents: Contents,
    random: Xoshiro256PlusPlus,
    /// Its part, and the next page of it.
    pages: Range<usize>,
    at: usize,
    page: Box<Page>,
    read: Option<&'a AtomicU64>,
    wrongs: Wrongs,
}

impl team::Worker for Reader<'_> {
    fn operate(&mut self, _: Stage) {
        let page = self.pages.start + self.at;
        self.at = (self.at + 1) % self.pages.len();
        if let Err(why) = self.place.read(page, &mut self.page) {
            return self.wrongs.add(|| why);
        }
        let word = self.random.random_range(0..WORDS);
        let index = page * WORDS + word;
        self.wrongs.expect(index, self.page.word(word), self.contents.word(index));
        if let Some(read) = self.read {
            read.fetch_add(1, Relaxed);
        }
    }
}

/// What a writer's block is when it is written for the `nth` time.
fn block_of(contents: Contents, first: usize, nth: u64, block: &mut [Page]) {
    let turn = contents.another(nth);
    // Making all of a block takes longer than writing it: its pages' first words tell it from others.
    for (at, page) in (first..).zip(block) {
        page.0[..size_of::<u64>()].copy_from_slice(&turn.word(at).to_ne_bytes());
    }
}

/// The page at which block `nth` of a writer begins.
fn begins(first: usize, nth: u64) -> usize {
    // A remainder, which is small.
    first + usize::try_from(nth % BLOCKS as u64).unwrap_or(0) * BLOCK
}

/// Writes blocks until it is told to stop, and gives back how many.
fn write(place: &Place, contents: Contents, first: usize, in_step: bool, shared: &Shared) -> Result<u64, String> {
    let mut block = vec![Page::EMPTY; BLOCK];
    let mut blocks = 0;
    while !shared.stop.load(Relaxed) {
        // Taken before it is written, so that writers together do no more than they may.
        let may = |written: u64| (written + BLOCK as u64 <= shared.read.load(Relaxed)).then_some(written + BLOCK as u64);
        if in_step && shared.written.fetch_update(Relaxed, Relaxed, may).is_err() {
            std::thread::sleep(PAUSE);
            continue;
        }
        let at = begins(first, blocks);
        block_of(contents, at, blocks, &mut block);
        place.write(at, &block)?;
        blocks += 1;
    }
    Ok(blocks)
}

/// Reads what a writer wrote last again.
fn check(place: &Place, contents: Contents, first: usize, blocks: u64) -> Result<Wrongs, String> {
    let mut wrongs = Wrongs::default();
    let (mut found, mut expected) = (Page::EMPTY, vec![Page::EMPTY; BLOCK]);
    for nth in blocks.saturating_sub(BLOCKS as u64)..blocks {
        let at = begins(first, nth);
        block_of(contents, at, nth, &mut expected);
        for (page, expected) in (at..).zip(&expected) {
            place.read(page, &mut found)?;
            (0..WORDS).for_each(|word| wrongs.expect(page * WORDS + word, found.word(word), expected.word(word)));
        }
    }
    Ok(wrongs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::Worker as _;

    fn args(delay: Option<u64>, directory: &std::path::Path) -> workload::Reads {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(subcommand)]
            workload: workload::Workload,
        }
        match Line::try_parse_from(["x", "reads"]).map(|line| line.workload) {
            Ok(workload::Workload::Reads(reads)) => workload::Reads { delay, directory: directory.into(), ..reads },
            other => panic!("{:?}", other.map_err(|error| error.to_string())),
        }
    }

    /// Both places, with 100 pages filled and room for as many.
    fn places() -> Vec<Place> {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let places = [Some(1000), None].map(|delay| Place::new(&args(delay, directory.path()), 2000).unwrap());
        places.iter().for_each(|place| fill(place, Contents::new(3), 100).unwrap());
        places.into()
    }

    #[test]
    fn what_was_filled_is_read_and_another_page_is_told() {
        for place in places() {
            let reader = |contents| Reader {
                place: &place,
                contents,
                random: generator(1, 0),
                pages: 90..100,
                at: 0,
                page: Box::new(Page::EMPTY),
                read: None,
                wrongs: Wrongs::default(),
            };
            let mut right = reader(Contents::new(3));
            (0..25).for_each(|_| right.operate(Stage::Measure));
            assert_eq!((right.at, right.wrongs.lines()), (5, vec![]));
            let mut wrong = reader(Contents::new(4));
            wrong.operate(Stage::Measure);
            assert!(wrong.wrongs.lines()[0].contains("of page 90 is 0x"));
        }
    }

    #[test]
    fn writers_in_step_write_what_was_read_and_no_more() {
        for place in places() {
            let shared = Shared { read: AtomicU64::new(200), written: AtomicU64::new(0), stop: AtomicBool::new(false) };
            let blocks = std::thread::scope(|scope| {
                let writer = scope.spawn(|| write(&place, Contents::new(3), 200, true, &shared));
                while shared.written.load(Relaxed) < 192 {
                    std::thread::yield_now();
                }
                shared.stop.store(true, Relaxed);
                writer.join().unwrap().unwrap()
            });
            assert_eq!((blocks, shared.written.load(Relaxed)), (3, 192));
            assert!(check(&place, Contents::new(3), 200, blocks).unwrap().is_empty());
            // One that was written over by another turn.
            assert_eq!(check(&place, Contents::new(3), 200, blocks + 1).unwrap().lines().last().unwrap(), "and 61 more");
            assert!(check(&place, Contents::new(5), 200, blocks).unwrap().lines()[0].contains("word 0 of page 200 is 0x"));
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_told() {
        let error = Place::new(&args(None, "/nowhere".as_ref()), 10).err().unwrap();
        assert!(error.contains("/nowhere") && error.contains("--directory"), "{error}");
    }
}
