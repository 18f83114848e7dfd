//! The invariants: checked between any two steps for pages that no thread owns, and exactly while everything is quiet.

use crate::kernel::{Place, stamp_of};
use crate::model::{Expected, Kind, stamp_in_file};
use crate::world::{broken, world};
use crate::{Engine, Rig};
use farshore_core::page::{Page, PageRange};
use farshore_core::table::GranuleRef;
use farshore_core::word::{AtomicWord, Slot, State, Word};
use farshore_engine::stats::Count;
use farshore_engine::takeover::{Verdict, settle, verdict};
use std::collections::BTreeMap;

/// Which pages name a slot.
#[derive(Default)]
struct Slots(BTreeMap<u64, u64>);

impl Slots {
    /// `page` names `slot`: no other page may name it, and it holds the page's bytes.
    fn named(&mut self, page: Page, slot: Slot, stamp: u64) {
        if let Some(found) = stamp_in_file(slot) {
            // Of the file, which any number of pages may name.
            if found != stamp {
                broken(page.0, &format!("the file holds {found}, the program last wrote {stamp}"));
            }
            return;
        }
        if let Some(other) = self.0.insert(slot.number(), page.0) {
            broken(page.0, &format!("{slot:?} is also named by page {other:#x}"));
        }
        if world(|w| w.device.is_gone(slot)) {
            broken(page.0, &format!("{slot:?} is named, whose space has gone"));
        }
        let (acknowledged, found) = world(|w| {
            let content = w.device.content(slot);
            (content.acknowledged && !content.writing, content.bytes.as_deref().map(stamp_of))
        });
        if !acknowledged {
            broken(page.0, &format!("{slot:?} is named before its write was acknowledged"));
        }
        if found != Some(Some(stamp)) {
            broken(page.0, &format!("{slot:?} holds {found:?}, the program last wrote {stamp}"));
        }
    }
}

/// The sums of a look at all pages.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    resident: u64,
    busy: u64,
    slots: u64,
}

/// Checks every page that no thread owns and no memory call works on.
pub fn between_steps(rig: &Rig) {
    let _ = look(&rig.engine);
    let frames = rig.engine.frames();
    frames.assert_valid();
    let (resident, locking) = world(|w| {
        let locking = w.model.alive.iter().flat_map(|r| r.iter()).filter(|&p| w.model.get(p).call % 2 == 1).count() as u64;
        (w.memory.resident(), locking + w.taking_over)
    });
    // Pages that `mlock` is about to take out have given their frames back already; pages that are being taken over have
    // none yet.
    if resident > frames.taken() + locking {
        broken(0, &format!("{resident} pages are resident with {} frames", frames.taken()));
    }
    if frames.taken() > frames.limit() + frames.debt() {
        broken(
            0,
            &format!("{} frames are taken, the limit is {} and {} are owed", frames.taken(), frames.limit(), frames.debt()),
        );
    }
    if rig.engine.stats.total(Count::Synchronous) != 0 {
        broken(0, "a page was evicted by a thread that is not an evictor");
    }
}

/// Checks the invariants that hold exactly while no actor is in the middle of anything.
pub fn quiet(rig: &Rig) {
    between_steps(rig);
    let engine = &rig.engine;
    let sums = look(engine);
    if sums.busy > 0 {
        broken(0, &format!("{} pages are in somebody's hands, and nobody does anything", sums.busy));
    }
    let (resident, managed) = world(|w| (w.memory.resident(), w.model.count(Kind::Managed)));
    if resident != sums.resident || engine.frames().taken() != resident {
        let taken = engine.frames().taken();
        broken(0, &format!("{resident} pages are resident, {} words say so, {taken} frames are taken", sums.resident));
    }
    if engine.slots.live() != sums.slots {
        broken(0, &format!("{} slots are in use, {} are named: slots leak", engine.slots.live(), sums.slots));
    }
    let counted = engine.stats.managed();
    if counted != managed {
        broken(0, &format!("{counted} pages are counted as managed, {managed} are"));
    }
    engine.assert_valid_when_quiet();
    world(|w| w.counts.quiet_checks += 1);
}

fn look(engine: &Engine) -> Sums {
    let mut slots = Slots::default();
    let mut sums = Sums::default();
    for page in world(|w| w.memory.arena()).iter() {
        let expected = world(|w| w.model.get(page));
        let word = engine.table.page(page).map(|at| at.word.load());
        if expected.call % 2 == 1 {
            continue;
        }
        match (expected.kind, word.map(Word::state)) {
            (Kind::Managed, None | Some(State::Foreign)) => broken(page.0, "managed memory has no page word"),
            (Kind::Managed, Some(_)) => one(engine, page, expected, word.unwrap_or(Word::FOREIGN), &mut slots, &mut sums),
            // No thread may still own a page of memory that is gone: its granule comes back with the words that it has.
            (_, None) => sums.busy += u64::from(busy_though_absent(engine, page)),
            (_, Some(State::Foreign)) => {}
            // A fault on memory that is gone may still be about to find that out.
            (Kind::None, Some(State::Busy)) => sums.busy += 1,
            (kind, Some(_)) => broken(page.0, &format!("{kind:?} memory has the page word {:?}", word.unwrap_or(Word::FOREIGN))),
        }
    }
    sums.slots = slots.0.len() as u64;
    sums
}

fn busy_though_absent(engine: &Engine, page: Page) -> bool {
    let word_of = |g: GranuleRef<'_>| g.words[page.index_in_granule()].load();
    engine.table.granule_even_absent(page.granule()).is_some_and(|g| word_of(g).state() == State::Busy)
}

fn one(engine: &Engine, page: Page, expected: Expected, word: Word, slots: &mut Slots, sums: &mut Sums) {
    let place = world(|w| {
        let Place { bytes, protected, .. } = w.memory.place(page);
        (bytes.as_deref().map(stamp_of), *protected)
    });
    let (stamp, protected) = place;
    let absent = |what: &str| {
        if stamp.is_some() {
            broken(page.0, &format!("the page is mapped, and its word says {what}: {word:?}"));
        }
    };
    // What is being thrown away may be as it was.
    if world(|w| w.is_outlived()) && expected.dropped.is_multiple_of(2) {
        taken_over(engine, page, expected, word, place, slots);
    }
    match word.state() {
        State::Busy => sums.busy += 1,
        State::Untouched => {
            absent("untouched");
            if expected.stamp != 0 {
                broken(page.0, &format!("the page is untouched, and the program wrote {}", expected.stamp));
            }
        }
        State::Resident => {
            sums.resident += 1;
            if stamp != Some(Some(expected.stamp)) {
                broken(page.0, &format!("{word:?} holds {stamp:?}, the program last wrote {}", expected.stamp));
            }
            match word.slot() {
                Some(_) if !protected => broken(page.0, &format!("the page is clean and can be written: {word:?}")),
                Some(slot) => slots.named(page, slot, expected.stamp),
                None if protected && !word.protected() => {
                    broken(page.0, &format!("the page is write-protected and its word does not say so: {word:?}"))
                }
                None => {}
            }
        }
        State::Leaving => {
            absent("leaving");
            let Some(stage) = word.stage() else { broken(page.0, "leaving without a stage") };
            let stages = engine.stages();
            if stages.page(stage) != page {
                broken(page.0, &format!("{stage:?} thinks it has page {:?}", stages.page(stage)));
            }
            let held = stamp_of(stages.bytes(stage));
            if held != Some(expected.stamp) {
                broken(page.0, &format!("{stage:?} holds {held:?}, the program last wrote {}", expected.stamp));
            }
            match stages.slot(stage) {
                Some(slot) if word.written() => slots.named(page, slot, expected.stamp),
                Some(slot) if slot.is_of_file() => broken(page.0, &format!("{slot:?} is about to be written, and is a file's")),
                Some(slot) => {
                    if let Some(other) = slots.0.insert(slot.number(), page.0) {
                        broken(page.0, &format!("{slot:?} is also named by page {other:#x}"));
                    }
                }
                None => {}
            }
        }
        State::Out => {
            absent("out");
            match word.slot() {
                Some(slot) => slots.named(page, slot, expected.stamp),
                None => broken(page.0, "out without a slot"),
            }
        }
        State::Foreign => broken(page.0, "managed memory is foreign"),
    }
}

/// If all threads were killed now, whoever takes over finds each page with what the program last wrote. And what the program may have written since a page was mapped does not hide behind what it
/// was, should the program throw the page away.
fn taken_over(
    engine: &Engine,
    page: Page,
    expected: Expected,
    word: Word,
    place: (Option<Option<u64>>, bool),
    slots: &mut Slots,
) {
    let (stamp, protected) = place;
    let stages = engine.stages();
    let next = AtomicWord::new(word);
    if world(|w| w.noted.contains_key(&page.0)) {
        settle(&next);
    }
    let judge = |here: bool| verdict(next.load(), here, |stage| stages.claim(stage, page));
    let found = match judge(stamp.is_some()) {
        Verdict::Fresh => Some(0),
        Verdict::Here => stamp.flatten(),
        Verdict::InStage(stage) => stamp_of(stages.bytes(stage)),
        Verdict::Either(stage) => stamp.flatten().filter(|_| stamp == Some(stamp_of(stages.bytes(stage)))),
        // The slots of other words are looked at where those are.
        Verdict::InSlot(slot) if word.state() == State::Busy => {
            slots.named(page, slot, expected.stamp);
            return;
        }
        Verdict::InSlot(_) => return,
        Verdict::Lost => broken(page.0, &format!("{word:?} would be lost if all threads were killed now")),
    };
    if found != Some(expected.stamp) {
        let verdict = judge(stamp.is_some());
        broken(
            page.0,
            &format!(
                "{word:?} would be {verdict:?} ({found:?}) if all threads were killed now, the program last wrote {}",
                expected.stamp
            ),
        );
    }
    if stamp.is_some() && !protected && judge(false) != Verdict::Fresh {
        broken(
            page.0,
            &format!("{word:?} can be written, and would be {:?} if it were thrown away and all threads killed", judge(false)),
        );
    }
}

/// What a dump of a broken run shows of the engine.
pub fn dump(engine: &Engine, arena: PageRange) -> String {
    use std::fmt::Write;
    let mut text = format!("{:?}\nslots in use: {}\npages in somebody's hands:", engine.frames(), engine.slots.live());
    let mut counts = [0u64; 6];
    for page in arena.iter() {
        if let Some(word) = engine.table.page(page).map(|at| at.word.load()) {
            counts[word.state() as usize] += 1;
            if word.state() == State::Busy && counts[State::Busy as usize] <= 20 {
                let _ = write!(text, " {:#x}={word:?}", page.0);
            }
        }
    }
    let _ = write!(text, "\nstages that hold bytes, of how many:");
    let count = engine.sizes().stages as u32;
    for stage in (0..count).map(farshore_core::word::Stage) {
        let stages = engine.stages();
        if stages.vacancy(stage) == farshore_engine::evict::stage::Vacancy::Held && stages.slot(stage).is_some() {
            let word = engine.table.word_for_unpin(stages.page(stage)).map(|w| w.load());
            if word.is_none_or(|w| w.stage() != Some(stage) && w.state() != State::Out) {
                let _ = write!(text, " {}:{:#x}={word:?}", stage.0, stages.page(stage).0);
            }
        }
    }
    let _ = write!(text, " {count}\nuntouched, foreign, busy, resident, leaving, out: {counts:?}");
    text
}
