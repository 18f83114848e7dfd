//! What a manager that was killed has left, page by page, and how the next one begins with it.
//!
//! The tables of a manager lie in memory that outlives it ([`farshore_core::room`]). At the moment of its death any of its threads may be anywhere. So what a page is follows from three things: its
//! word, whether its file has it, and whose bytes the stage has that the word names. **Here**: the file has the page. **Held**: a thread owned it. **Holds**: the stage says that it has this page's
//! bytes.
//!
//! | the word says | here | not here |
//! |---|---|---|
//! | fresh, held or not | it is the truth | fresh |
//! | mapped (clean or dirty), held or not | it is the truth | the client has thrown it away: fresh |
//! | in a stage | it is the truth | holds: from the slot if the word says *written*, else from the stage; else **lost** |
//! | in a stage, held | it is the truth | holds: from the stage; else its owner was done with it: fresh |
//! | in a slot, held or not | it is the truth | from the slot |
//! | leaves for a stage | holds: the two are compared; else **lost** | holds: from the stage; else **lost** |
//! | no such word | **lost** | **lost** |
//!
//! *The truth* is a page that is there: nobody puts bytes there but the client and we, and we only when nothing is there. It begins as a dirty one, whatever it was. *Fresh* is a page of zeros. A page
//! that leaves is protected until it is gone, so it is what its stage has: if it is not, the kernel has left zeros in its place. *Lost* are pages that only a bug can bring about: whoever needs one
//! gets SIGBUS, not other bytes.
//!
//! From the slot rather than from the stage: none of these pages may leave before all are there again, so each that comes back takes room which another one needs.
//!
//! # Why the words suffice
//!
//! 1. An evictor says in the word to which stage a page leaves, before it punches ([`AtomicWord::take_to`](farshore_core::word::AtomicWord::take_to)). A page that is gone and whose word does not say so
//!    was thrown away by the client.
//! 2. A stage loses its name before other bytes come into it ([`Stages::disown`]), and no stage is used again whose page was not mapped from it, or is in its slot.
//! 3. Who maps a page from a stage or slot can be killed after the kernel has made the copy, and before the word says so. The client may then write to the page, and throw it away. So the kernel itself
//!    notes the copy, in memory that outlives us, within the call, and before all else the words are told of such notes ([`settle`],
//!    [`Kernel::forget_mapped`](farshore_core::seams::Kernel::forget_mapped)).
//! 4. A slot that a word names is freed after the word has let go of it, so no other page's bytes come there. A slot whose write had not ended is given out no more: the kernel may still be writing.

use crate::Engine;
use crate::evict::stage::{Claim, Stages};
use farshore_core::page::{Page, PageRange};
use farshore_core::seams::{PageBuf, World};
use farshore_core::word::{AtomicWord, Left, Release, Slot, Stage, State, Word};

/// What a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Zeros.
    Fresh,
    /// What is in the file.
    Here,
    /// In this slot.
    InSlot(Slot),
    /// In this stage, and nowhere else.
    InStage(Stage),
    /// In the file, if the stage has the same; else in the stage.
    Either(Stage),
    /// It cannot be known.
    Lost,
}

/// What a page is (module head). `claim`: of the stage that the word names.
pub fn verdict(word: Word, here: bool, claim: impl Fn(Stage) -> Claim) -> Verdict {
    let Some((left, held)) = word.left() else { return Verdict::Lost };
    match left {
        Left::Leaves(stage) if claim(stage) != Claim::Holds => Verdict::Lost,
        Left::Leaves(stage) if here => Verdict::Either(stage),
        Left::Leaves(stage) => Verdict::InStage(stage),
        _ if here => Verdict::Here,
        Left::Fresh | Left::Mapped => Verdict::Fresh,
        Left::Stored(slot) => Verdict::InSlot(slot),
        Left::Staged(stage) => match claim(stage) {
            Claim::Holds => Verdict::InStage(stage),
            Claim::GivenUp | Claim::Another if held => Verdict::Fresh,
            Claim::GivenUp | Claim::Another => Verdict::Lost,
        },
    }
}

/// The kernel has noted that this page was mapped, by the thread that owned it: the word says so from now on. No note is left of a page that nobody owns.
pub fn settle(word: &AtomicWord) {
    if matches!(word.load().left(), Some((Left::Staged(_) | Left::Stored(_), true))) {
        word.note_mapped();
    }
}

/// Whether the bytes of a stage are those that its word promises. Of a page that was just leaving the checksum need not be known: its slot may have gone back.
pub fn is_whole<W: World>(word: Word, stages: &Stages, stage: Stage, sum_of: impl FnOnce(Slot) -> Option<u64>) -> bool {
    if matches!(word.left(), Some((Left::Leaves(_), _))) {
        return true;
    }
    stages.slot(stage).is_some_and(|slot| sum_of(slot) == Some(Engine::<W>::checksum(slot, stages.bytes(stage))))
}

/// The slot that has the bytes of a page in a stage, too: its write was acknowledged, and no thread had taken the page since, so the slot is the page's.
pub fn stored_too(word: Word, stages: &Stages, stage: Stage) -> Option<Slot> {
    (word.state() == State::Leaving && word.written()).then(|| stages.slot(stage))?
}

/// Brings a page back that is in a stage of the engine that has ended, as one of its own threads would have: if this process is killed too, the next one finds in the old word how far it came. `map`
/// copies the bytes into a hole.
///
/// # Errors
/// What `map` answers; then the page is where it was.
pub fn unstage<E>(
    word: &AtomicWord,
    stages: &Stages,
    stage: Stage,
    map: impl FnOnce(&PageBuf) -> Result<(), E>,
    forget_mapped: impl FnOnce(),
) -> Result<(), E> {
    word.overwrite(Word::held_in_stage(stage));
    map(stages.bytes(stage))?;
    word.note_mapped();
    forget_mapped();
    stages.vacate(stage, false);
    let _ = word.release(Release::Dirty { chances: 0, guessed: false, protected: true });
    Ok(())
}

/// How a page begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// Untouched.
    Fresh,
    /// Resident, and dirty; the client's mapping of it may be write-protected.
    Here,
    /// In this slot, which was taken over ([`SlotMap::take_over`](farshore_core::slots::SlotMap::take_over)).
    InSlot(Slot),
}

impl<W: World> Engine<W> {
    /// The pages of `range` have been managed since a moment ago, and nobody knows it yet: each begins as `how` says. Frames of resident pages are taken, whatever the limit.
    pub fn begin_with(&self, range: PageRange, core: usize, mut how: impl FnMut(Page) -> Begin) {
        for part in range.by_granule() {
            let Some(g) = self.table.granule(part.start.granule()) else { continue };
            let mut here = 0;
            for page in part.iter() {
                let to = match how(page) {
                    Begin::Fresh => continue,
                    Begin::Here => Release::Dirty { chances: 0, guessed: false, protected: true },
                    Begin::InSlot(slot) => Release::Out { slot },
                };
                here += u64::from(!matches!(to, Release::Out { .. }));
                g.granule.touch();
                if self.claim_page(page).is_some() {
                    self.release(page, &g.words[page.index_in_granule()], to);
                }
            }
            self.frames().take_back(core, here);
            if here > 0 {
                self.list_granule(g.granule, part.start, core);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Either, Fresh, Here, InSlot, InStage, Lost};
    use farshore_core::page::Access;
    use std::vec::Vec;

    const STAGE: Stage = Stage(3);

    fn slot() -> Slot {
        Slot::new(77).unwrap()
    }

    /// A word in each state that there is, and what it says.
    fn words() -> Vec<(&'static str, Word)> {
        let made = |changes: &dyn Fn(&AtomicWord)| {
            let word = AtomicWord::new(Word::UNTOUCHED);
            changes(&word);
            word.load()
        };
        let put = |word: &AtomicWord, to| {
            let _ = word.claim();
            let _ = word.release(to);
        };
        let dirty = Release::Dirty { chances: 1, guessed: false, protected: false };
        let clean = Release::Clean { slot: slot(), chances: 0 };
        let staged = Release::Leaving { stage: STAGE, written: false };
        let stored = Release::Out { slot: slot() };
        let held = |to: Release| made(&|word| (put(word, to), _ = word.begin_fault(Access::Write, true)).0);
        std::vec![
            ("fresh", Word::UNTOUCHED),
            ("fresh", Word::FOREIGN),
            ("fresh", made(&|word| _ = word.claim())),
            ("mapped", made(&|word| put(word, dirty))),
            ("mapped", made(&|word| put(word, clean))),
            ("mapped", held(dirty)),
            ("mapped", held(clean)),
            ("staged", made(&|word| put(word, staged))),
            ("staged", made(&|word| put(word, Release::Leaving { stage: STAGE, written: true }))),
            ("staged, held", held(staged)),
            ("stored", made(&|word| put(word, stored))),
            ("stored, held", held(stored)),
            ("leaves", made(&|word| (put(word, dirty), _ = word.claim(), word.take_to(STAGE)).0)),
            ("leaves", made(&|word| (put(word, clean), _ = word.claim(), word.take_to(STAGE)).0)),
            ("mapped", made(&|word| (put(word, stored), _ = word.claim(), word.note_mapped()).0)),
            ("mapped", made(&|word| (put(word, staged), _ = word.claim(), word.note_mapped()).0)),
        ]
    }

    /// The table of the module head, over all that there is: each word, whether the page is here, and what the stage says.
    #[test]
    fn each_page_is_what_the_table_says() {
        use Claim::{Another, GivenUp, Holds};
        for (name, word) in words() {
            for claim in [Holds, GivenUp, Another] {
                let now = |here| {
                    let asked = |stage| {
                        assert_eq!(stage, STAGE);
                        claim
                    };
                    verdict(word, here, asked)
                };
                let expected = match (name, claim) {
                    ("fresh" | "mapped", _) => (Here, Fresh),
                    ("staged" | "staged, held", Holds) => (Here, InStage(STAGE)),
                    ("staged", _) => (Here, Lost),
                    ("staged, held", _) => (Here, Fresh),
                    ("stored" | "stored, held", _) => (Here, InSlot(slot())),
                    ("leaves", Holds) => (Either(STAGE), InStage(STAGE)),
                    ("leaves", _) => (Lost, Lost),
                    other => panic!("{other:?}"),
                };
                assert_eq!((now(true), now(false)), expected, "{name} {word:?} {claim:?}");
            }
        }
    }

    #[test]
    fn a_copy_that_the_kernel_has_noted_counts() {
        for (name, word) in words() {
            let cell = AtomicWord::new(word);
            settle(&cell);
            if name.ends_with("held") {
                // What the client has thrown away since does not come back.
                assert_eq!(verdict(cell.load(), false, |_| Claim::Holds), Fresh, "{name}");
                assert_eq!(verdict(cell.load(), true, |_| Claim::Holds), Here, "{name}");
            } else {
                assert_eq!(cell.load(), word, "{name}");
            }
        }
    }

    /// A manager that is killed while it takes over: whatever the step, the next one comes to the same page.
    #[test]
    fn bringing_back_is_the_same_from_each_step_on() {
        let mut memory = std::vec![PageBuf::ZERO; 4];
        memory[STAGE.0 as usize].0.fill(9);
        // SAFETY: four pages, which outlive it.
        let stages = unsafe { Stages::new(memory.as_mut_ptr(), 4) };
        let page = Page(1000);
        for leaves in [false, true] {
            stages.hold(STAGE, page, Some(slot()));
            let word = AtomicWord::new(Word::UNTOUCHED);
            let _ = word.claim();
            if leaves {
                word.take_to(STAGE);
            } else {
                let _ = word.release(Release::Leaving { stage: STAGE, written: false });
            }
            let now = |here| verdict(word.load(), here, |stage| stages.claim(stage, page));
            // As the next one finds it if the kernel has noted the copy.
            let noted = |here| {
                let next = AtomicWord::new(word.load());
                settle(&next);
                verdict(next.load(), here, |stage| stages.claim(stage, page))
            };
            assert_eq!(now(false), InStage(STAGE));
            // There is no room: nothing has changed but that it is held.
            assert_eq!(unstage(&word, &stages, STAGE, |_| Err("no room"), || panic!("nothing was mapped")), Err("no room"));
            assert_eq!(now(false), InStage(STAGE));
            let map = |bytes: &PageBuf| {
                assert!(bytes.0.iter().all(|byte| *byte == 9));
                // Killed before the copy, and behind it: by then the client may have thrown the page away.
                assert_eq!(now(false), InStage(STAGE));
                assert_eq!((noted(true), noted(false)), (Here, Fresh));
                Ok::<(), ()>(())
            };
            let forget = || assert_eq!((now(true), now(false)), (Here, Fresh));
            assert_eq!(unstage(&word, &stages, STAGE, map, forget), Ok(()));
            assert_eq!((now(true), now(false)), (Here, Fresh));
        }
    }

    #[test]
    fn a_slot_counts_from_the_acknowledgement_until_a_thread_takes_the_page() {
        let mut memory = std::vec![PageBuf::ZERO; 4];
        // SAFETY: four pages, which outlive it.
        let stages = unsafe { Stages::new(memory.as_mut_ptr(), 4) };
        stages.hold(STAGE, Page(1000), Some(slot()));
        for (name, word) in words() {
            let expected = (name == "staged" && word.written()).then(slot);
            assert_eq!(stored_too(word, &stages, STAGE), expected, "{name} {word:?}");
        }
        let word = AtomicWord::new(Word::UNTOUCHED);
        let _ = word.claim();
        let _ = word.release(Release::Leaving { stage: STAGE, written: false });
        assert_eq!(stored_too(word.load(), &stages, STAGE), None, "its write is under way");
        let _ = word.stage_written(STAGE);
        assert_eq!(stored_too(word.load(), &stages, STAGE), Some(slot()));
        let _ = word.begin_fault(Access::Read, true);
        assert_eq!(stored_too(word.load(), &stages, STAGE), None, "somebody rescues it");
    }

    #[test]
    fn slots_of_writes_that_have_not_ended_are_known() {
        let mut memory = std::vec![PageBuf::ZERO; 4];
        // SAFETY: four pages, which outlive it.
        let stages = unsafe { Stages::new(memory.as_mut_ptr(), 4) };
        let slots = || stages.unsettled().map(Slot::number).collect::<Vec<_>>();
        for n in 0..4 {
            stages.hold(Stage(n), Page(500 + u64::from(n)), Slot::new(40 + u64::from(n)));
            stages.note_write(Stage(n), n > 0);
        }
        assert_eq!(slots(), [41, 42, 43]);
        stages.note_write(Stage(1), false);
        // Rescued while its write is under way, and written elsewhere since.
        stages.vacate(Stage(2), false);
        stages.set_slot(Stage(3), Slot::new(99));
        assert_eq!(slots(), [42, 99]);
        assert_eq!(stages.claim(Stage(2), Page(502)), Claim::GivenUp);
        stages.disown(Stage(2));
        assert_eq!(stages.claim(Stage(2), Page(502)), Claim::Another);
        assert_eq!((stages.claim(Stage(3), Page(503)), stages.claim(Stage(9), Page(503))), (Claim::Holds, Claim::Another));
    }
}
