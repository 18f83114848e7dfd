//! What single changes of a page word do. `tests/model_word.rs` has all of them in any order.

use super::*;
use crate::page::Access;

fn slot(n: u64) -> Slot {
    Slot::new(n).unwrap()
}

#[test]
fn a_life() {
    let w = AtomicWord::new(Word::UNTOUCHED);
    assert!(matches!(w.begin_fault(Access::Write, false), BeginFault::Owned { was } if was == Word::UNTOUCHED));
    assert_eq!(w.begin_fault(Access::Read, false), BeginFault::Wait);
    assert!(w.announce_waiter());
    assert_eq!(w.release(Release::Dirty { chances: 1, guessed: false, protected: false }), Released { wake: true });
    assert_eq!(w.begin_evict(true), BeginEvict::PassedOver);
    assert!(matches!(w.begin_evict(true), BeginEvict::Owned { was } if was.slot().is_none()));
    assert_eq!(w.release(Release::Leaving { stage: Stage(7), written: false }), Released { wake: false });
    assert_eq!(w.stage_written(Stage(6)), StageStep::Gone);
    assert_eq!(w.stage_written(Stage(7)), StageStep::Done);
    assert_eq!(w.retire_stage(Stage(7), slot(99)), StageStep::Done);
    assert_eq!(w.load().slot(), Some(slot(99)));
    assert!(matches!(w.begin_fault(Access::Read, false), BeginFault::Owned { was } if was.slot() == Some(slot(99))));
    let _ = w.release(Release::Clean { slot: slot(99), chances: 1 });
    assert_eq!(w.begin_fault(Access::Read, false), BeginFault::Satisfied);
    assert!(matches!(w.begin_fault(Access::Write, true), BeginFault::Owned { .. }));
}

#[test]
#[should_panic(expected = "before it was written")]
fn a_stage_cannot_be_retired_before_it_is_written() {
    let w = AtomicWord::new(Word::UNTOUCHED);
    let _ = w.claim();
    let _ = w.release(Release::Leaving { stage: Stage(1), written: false });
    let _ = w.retire_stage(Stage(1), slot(1));
}

#[test]
fn pins_keep_a_page_and_survive_everything() {
    let w = AtomicWord::new(Word::UNTOUCHED);
    assert_eq!(w.pin(Access::Read), Pin::Fault);
    let _ = w.claim();
    let _ = w.release(Release::Clean { slot: slot(3), chances: 0 });
    assert_eq!(w.pin(Access::Write), Pin::Fault, "a clean page must be made writable first");
    assert_eq!(w.pin(Access::Read), Pin::Pinned);
    assert_eq!(w.begin_evict(true), BeginEvict::Skip);
    assert!(matches!(w.claim(), Claim::Owned { .. }));
    let _ = w.release(Release::Foreign);
    assert_eq!(w.load().pins(), 1);
    w.unpin();
    assert_eq!(w.load(), Word::FOREIGN);
}

#[test]
fn a_claimed_page_remembers_what_it_was() {
    let w = AtomicWord::new(Word::UNTOUCHED);
    let _ = w.claim();
    assert_eq!(w.claimed(), Word::UNTOUCHED);
    let _ = w.release(Release::Leaving { stage: Stage(5), written: true });
    let Claim::Owned { was } = w.claim() else { panic!() };
    assert_eq!(w.claimed(), was);
    let _ = w.restore(w.claimed());
    assert_eq!(w.load().stage(), Some(Stage(5)));
    assert!(w.load().written());
}

#[test]
fn what_a_child_inherits() {
    let slot = Slot::new(9).unwrap();
    let word = |to: Release| {
        let w = AtomicWord::new(Word::UNTOUCHED);
        let _ = w.claim();
        let _ = w.release(to);
        w
    };
    let no_stage = |_: Stage| None;
    let clean = word(Release::Clean { slot, chances: 1 });
    assert_eq!(clean.pin(Access::Read), Pin::Pinned);
    assert_eq!(clean.inherit(false, no_stage), Ok((State::Resident, Some(slot))));
    assert_eq!((clean.load().slot(), clean.load().pins(), clean.load().chances()), (None, 0, 0));
    let dirty = word(Release::Dirty { chances: 0, guessed: true, protected: true });
    assert_eq!(dirty.inherit(false, no_stage), Ok((State::Resident, None)));
    assert!(!dirty.load().protected() && !dirty.load().guessed());
    let out = word(Release::Out { slot });
    assert_eq!((out.inherit(false, no_stage), out.load().slot()), (Ok((State::Out, None)), Some(slot)));
    let leaving = word(Release::Leaving { stage: Stage(3), written: true });
    assert_eq!(leaving.inherit(false, |s| Slot::new(u64::from(s.0) + 40)), Ok((State::Out, None)));
    assert_eq!(leaving.load().slot(), Slot::new(43));
    let unwritten = word(Release::Leaving { stage: Stage(3), written: false });
    assert!(unwritten.inherit(false, |_| Some(slot)).is_err());
    let busy = AtomicWord::new(Word::UNTOUCHED);
    let _ = busy.claim();
    assert!(busy.inherit(false, no_stage).is_err());
}

#[test]
fn restore_keeps_what_happened_meanwhile() {
    let w = AtomicWord::new(Word::UNTOUCHED);
    let _ = w.claim();
    let _ = w.release(Release::Dirty { chances: 1, guessed: true, protected: false });
    assert_eq!(w.pin(Access::Write), Pin::Pinned);
    let Claim::Owned { was } = w.claim() else { panic!() };
    w.unpin();
    assert!(w.announce_waiter());
    assert!(w.restore(was).wake);
    assert_eq!(w.load().pins(), 0);
    assert!(w.load().chances() == 1 && w.load().guessed());
    assert!(matches!(w.begin_evict(false), BeginEvict::Owned { .. }));
}

#[test]
fn pages_of_files_are_slots_that_swap_space_does_not_reach() {
    use crate::limits::{EXTENT_SLOTS, EXTENTS_MAX, FILE_PAGE_BITS, MAPPED_FILES};
    for (file, page) in [(0, 0), (0, 1), (MAPPED_FILES - 1, 7), (3, (1 << FILE_PAGE_BITS) - 1)] {
        let of = FilePage { file, page };
        let slot = of.slot().unwrap();
        assert_eq!(slot.of_file(), Some(of));
        assert!(slot.is_of_file() && slot.number() < 1 << 37);
        let w = AtomicWord::new(Word::UNTOUCHED);
        let _ = w.claim();
        let _ = w.release(Release::Out { slot });
        assert_eq!(w.load().slot(), Some(slot));
    }
    assert_eq!(FilePage { file: MAPPED_FILES, page: 0 }.slot(), None);
    assert_eq!(FilePage { file: 0, page: 1 << FILE_PAGE_BITS }.slot(), None);
    let last = slot(EXTENTS_MAX as u64 * EXTENT_SLOTS as u64 - 1);
    assert!(last.of_file().is_none() && !last.is_of_file());
}

#[test]
fn what_a_page_was_is_in_its_word_whenever_its_engine_ends() {
    let w = AtomicWord::new(Word::UNTOUCHED);
    let left = || w.load().left().unwrap();
    assert_eq!(left(), (Left::Fresh, false));
    let _ = w.begin_fault(Access::Write, false);
    assert_eq!(left(), (Left::Fresh, true));
    let _ = w.release(Release::Dirty { chances: 3, guessed: true, protected: true });
    assert_eq!(left(), (Left::Mapped, false));
    let _ = w.claim();
    assert_eq!(left(), (Left::Mapped, true));
    assert!(w.announce_waiter());
    w.take_to(Stage(9));
    assert_eq!(left(), (Left::Leaves(Stage(9)), true));
    assert_eq!(w.stage_written(Stage(9)), StageStep::Gone, "it has not left yet");
    assert_eq!(w.release(Release::Leaving { stage: Stage(9), written: false }), Released { wake: true });
    assert_eq!(left(), (Left::Staged(Stage(9)), false));
    let _ = w.begin_fault(Access::Write, false);
    assert_eq!(left(), (Left::Staged(Stage(9)), true));
    w.note_mapped();
    assert_eq!(left(), (Left::Mapped, true));
    let _ = w.release(Release::Clean { slot: slot(5), chances: 0 });
    assert!(w.load().rescued(), "as without the note");
    let BeginEvict::Owned { was } = w.begin_evict(false) else { panic!("it has no chances") };
    w.take_to(Stage(2));
    // The kernel has refused.
    let _ = w.restore(was);
    assert_eq!((w.load(), left()), (was, (Left::Mapped, false)));
    let _ = w.begin_evict(false);
    w.take_to(Stage(2));
    let _ = w.release(Release::Leaving { stage: Stage(2), written: true });
    let _ = w.retire_stage(Stage(2), slot(5));
    let _ = w.begin_fault(Access::Read, false);
    assert_eq!(left(), (Left::Stored(slot(5)), true));
    let _ = w.release(Release::Foreign);
    assert_eq!(left(), (Left::Fresh, false));
}

#[test]
fn what_no_engine_leaves_is_known() {
    // Of every state and every state before it: what names no place, and what is no state.
    let all = (0..8_u64).flat_map(|state| (0..8_u64).map(move |top| state | top << 61));
    let known = all.filter(|&bits| Word(bits).left().is_some()).count();
    // Untouched, foreign, resident, leaving whatever their top bits are; of busy ones those of a state but `Out`, which names no slot here.
    assert_eq!(known, 4 * 8 + 5);
    assert_eq!(Word(State::Leaving as u64 | 1 << (24 + 33)).left(), None, "no stage has such a number");
}
