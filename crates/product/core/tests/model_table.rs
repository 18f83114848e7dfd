//! The table of page words against a set of page numbers.
#![cfg(not(loom))]

use farshore_core::limits::{GRANULE_PAGES, LEAF_GRANULES};
use farshore_core::page::{Access, Page, PageRange};
use farshore_core::table::PageTable;
use farshore_core::word::{BeginFault, Claim, Release, State};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Granules that the models use; they lie across the border of two leaves.
const GRANULES: u64 = if cfg!(miri) { 3 } else { 5 };
const FIRST: u64 = (LEAF_GRANULES as u64 - 2) * GRANULE_PAGES as u64;
const PAGES: u64 = GRANULES * GRANULE_PAGES as u64;

/// Managed pages, and whether each has been touched.
type Model = BTreeMap<u64, bool>;

#[derive(Clone, Debug)]
enum Op {
    Add(PageRange),
    Remove(PageRange),
    Touch(u64),
}

/// Ranges that begin and end at granule borders, near them or anywhere.
fn ranges() -> impl Strategy<Value = PageRange> {
    let ends = prop_oneof![
        (0..=GRANULES).prop_map(|g| g * GRANULE_PAGES as u64),
        (0..=GRANULES, -2i64..=2).prop_map(|(g, by)| (g * GRANULE_PAGES as u64).saturating_add_signed(by).min(PAGES)),
        0..=PAGES,
    ]
    .boxed();
    (ends.clone(), ends).prop_map(|(a, b)| PageRange { start: Page(FIRST + a.min(b)), end: Page(FIRST + a.max(b)) })
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => ranges().prop_map(Op::Add),
        2 => ranges().prop_map(Op::Remove),
        1 => (0..PAGES).prop_map(|p| Op::Touch(FIRST + p)),
    ]
}

/// Adds the parts of `range` that are not managed yet, as a memory call does that maps over something old.
fn add(table: &PageTable, model: &mut Model, range: PageRange) {
    let mut start = None;
    for page in range.start.0..=range.end.0 {
        let free = page < range.end.0 && !model.contains_key(&page);
        match (start, free) {
            (None, true) => start = Some(page),
            (Some(from), false) => {
                table.add(PageRange { start: Page(from), end: Page(page) });
                start = None;
            }
            _ => {}
        }
    }
    for page in range.iter() {
        model.entry(page.0).or_insert(false);
    }
}

/// Takes the pages of `range` as a memory call does: each touched one is claimed and released, then the range goes.
fn remove(table: &PageTable, model: &mut Model, range: PageRange) {
    for part in range.by_granule() {
        let to = if part.len() == GRANULE_PAGES as u64 { Release::Untouched } else { Release::Foreign };
        for page in part.iter() {
            if model.remove(&page.0) == Some(true) {
                let word = table.page(page).expect("a touched page is managed").word;
                assert!(matches!(word.claim(), Claim::Owned { .. }));
                let _ = word.release(to);
            }
        }
    }
    table.remove(range);
}

fn touch(table: &PageTable, model: &mut Model, page: u64) {
    let Some(found) = table.page(Page(page)) else {
        assert!(!model.contains_key(&page));
        return;
    };
    found.granule.touch();
    assert!(found.granule.touched());
    match found.word.begin_fault(Access::Write, false) {
        BeginFault::Owned { .. } => {
            assert_eq!(model.insert(page, true), Some(false));
            let _ = found.word.release(Release::Dirty { chances: 1, guessed: false, protected: false });
        }
        BeginFault::Satisfied => assert_eq!(model.get(&page), Some(&true)),
        BeginFault::Foreign => assert!(!model.contains_key(&page)),
        BeginFault::Wait => unreachable!("there is one thread"),
    }
}

fn assert_equal(table: &PageTable, model: &Model) {
    // One page beyond on either side. Miri is slow: it looks at every 61st page and at those around borders.
    let looked_at = |page: &u64| !cfg!(miri) || page.is_multiple_of(61) || (page + 2) % GRANULE_PAGES as u64 <= 4;
    for page in (FIRST - 1..=FIRST + PAGES).filter(looked_at) {
        let state = table.page(Page(page)).map(|found| found.word.load().state()).filter(|&s| s != State::Foreign);
        let expected = model.get(&page).map(|&touched| if touched { State::Resident } else { State::Untouched });
        assert_eq!(state, expected, "page {page} of {FIRST} + {PAGES}");
    }
    for granule in FIRST / GRANULE_PAGES as u64..FIRST / GRANULE_PAGES as u64 + GRANULES {
        let id = farshore_core::page::GranuleId(granule);
        let touched = id.range().iter().any(|p| model.get(&p.0) == Some(&true));
        if touched {
            assert!(table.granule(id).is_some_and(|g| g.granule.touched()), "granule {granule} forgot that it was touched");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_memory_calls(ops in proptest::collection::vec(ops(), 1..if cfg!(miri) { 5 } else { 30 })) {
        let table = PageTable::new();
        let mut model = Model::new();
        for op in ops {
            match op {
                Op::Add(range) => add(&table, &mut model, range),
                Op::Remove(range) => remove(&table, &mut model, range),
                Op::Touch(page) => touch(&table, &mut model, page),
            }
            if !cfg!(miri) {
                assert_equal(&table, &model);
            }
        }
        assert_equal(&table, &model);
    }
}

/// A granule that was managed in part goes as a whole and comes back as a whole.
#[test]
fn a_partly_managed_granule_comes_back_whole() {
    let table = PageTable::new();
    let (granule, next) = (FIRST, FIRST + GRANULE_PAGES as u64);
    table.add(PageRange { start: Page(granule), end: Page(granule + 10) });
    table.remove(PageRange { start: Page(granule), end: Page(next) });
    assert!(table.page(Page(granule)).is_none());
    table.add(PageRange { start: Page(granule), end: Page(next) });
    for page in granule..next {
        assert_eq!(table.page(Page(page)).unwrap().word.load().state(), State::Untouched, "page {page}");
    }
}

/// Threads look at a leaf while it is made: they see none of it or all of it.
#[test]
fn a_leaf_is_published_whole() {
    let table = PageTable::new();
    let pages = GRANULE_PAGES as u64;
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                for page in [FIRST, FIRST + 7, FIRST + pages - 1] {
                    while table.page(Page(page)).is_none() {
                        std::thread::yield_now();
                    }
                    let state = table.page(Page(page)).unwrap().word.load().state();
                    let part = page < FIRST + 8;
                    assert_eq!(state, if part { State::Untouched } else { State::Foreign });
                }
            });
        }
        table.add(PageRange { start: Page(FIRST), end: Page(FIRST + 8) });
    });
}

/// Two threads that make the same leaf end up with one.
#[test]
fn two_threads_make_one_leaf() {
    let table = PageTable::new();
    let pages = GRANULE_PAGES as u64;
    std::thread::scope(|threads| {
        for granule in 0..2 {
            let table = &table;
            let start = FIRST + granule * pages;
            threads.spawn(move || table.add(PageRange { start: Page(start), end: Page(start + pages) }));
        }
    });
    assert!((FIRST..FIRST + 2 * pages).all(|page| table.page(Page(page)).is_some()));
}

#[test]
fn ranges_are_cut_at_granule_borders_and_nowhere_else() {
    let range = PageRange { start: Page(FIRST + 5), end: Page(FIRST + 2 * GRANULE_PAGES as u64 + 1) };
    let parts: Vec<PageRange> = range.by_granule().collect();
    assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [GRANULE_PAGES as u64 - 5, GRANULE_PAGES as u64, 1]);
    assert!(parts.windows(2).all(|p| p[0].end == p[1].start));
    assert_eq!(PageRange { start: Page(7), end: Page(7) }.by_granule().count(), 0);
}
