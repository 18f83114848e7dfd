use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

fn pages(from: u64, count: u64) -> PageRange {
    PageRange { start: Page(from), end: Page(from + count) }
}

/// Nothing is gone.
fn at(ns: u64) -> Now<'static> {
    Now { ns, is_gone: &|_| false }
}

/// Begins a scan for which pages leave.
fn scan_away(wishes: &Wishes, part: PageRange, now: Now<'_>) -> Bits {
    let begun = wishes.begin_scan(part, now);
    wishes.take_away(part.start.granule(), &begun.pages);
    begun.pages
}

fn taken(which: Option<(GranuleId, Bits)>) -> Vec<u64> {
    let Some((granule, bits)) = which else { return Vec::new() };
    runs(granule, bits).flat_map(|run| (0..u64::from(run.pages)).map(move |n| run.first.0 + n)).collect()
}

#[test]
fn the_last_wish_about_a_page_counts() {
    let wishes = Wishes::default();
    assert!(!wishes.any_leave() && !wishes.any_come());
    assert!(wishes.wish(pages(512, 6), Wish::Leave, at(0)));
    assert!(wishes.wish(pages(514, 2), Wish::Come, at(0)));
    assert!(wishes.any_leave() && wishes.any_come());
    assert_eq!(taken(wishes.take_leaving()), [512, 513, 516, 517]);
    assert_eq!(taken(wishes.take_coming()), [514, 515]);
    assert!(!wishes.any_leave() && !wishes.any_come());
}

#[test]
fn pages_stay_until_they_are_freed_or_their_time_is_over() {
    let wishes = Wishes::default();
    wishes.wish(pages(3, 2), Wish::Stay, at(0));
    wishes.wish(pages(7, 1), Wish::StayFor(100), at(50));
    let staying = |now| taken(Some((GranuleId(0), wishes.staying(GranuleId(0), now))));
    assert_eq!(staying(149), [3, 4, 7]);
    assert_eq!(staying(150), [3, 4]);
    wishes.wish(pages(3, 1), Wish::Free, at(0));
    assert_eq!(staying(150), [4]);
    wishes.wish(pages(4, 1), Wish::Leave, at(0));
    assert_eq!(staying(150), [0; 0]);
    wishes.wish(pages(4, 1), Wish::Stay, at(0));
    assert!(!wishes.any_leave(), "it is to stay");
    wishes.free_all();
    assert!(!wishes.any_stay() && staying(0).is_empty());
}

#[test]
fn what_is_put_back_leaves_later_unless_it_is_wanted_meanwhile() {
    let wishes = Wishes::default();
    wishes.wish(pages(0, 4), Wish::Leave, at(0));
    let (granule, bits) = wishes.take_leaving().expect("wished for");
    wishes.wish(pages(1, 1), Wish::Come, at(0));
    wishes.wish(pages(2, 1), Wish::Stay, at(0));
    wishes.put_leaving(granule, &bits);
    assert_eq!(taken(wishes.take_leaving()), [0, 3]);
    assert_eq!(taken(wishes.take_coming()), [1]);
}

#[test]
fn a_scan_tells_which_pages_have_left_for_it() {
    let wishes = Wishes::default();
    let ended = |bits: &Bits| {
        let Ended { left, again, .. } = wishes.end_scan(GranuleId(0), bits);
        (taken(Some((GranuleId(0), left))), taken(Some((GranuleId(0), again))))
    };
    wishes.wish(pages(2, 1), Wish::Stay, at(0));
    wishes.wish(pages(5, 1), Wish::Come, at(0));
    let first = scan_away(&wishes, pages(0, 8), at(0));
    assert!(wishes.any_scan() && !wishes.any_come(), "the last wish counts");
    assert_eq!(taken(wishes.take_leaving()), [0, 1, 3, 4, 5, 6, 7], "one is to stay");
    // Another scan leaves to the first what it looks at.
    let second = scan_away(&wishes, pages(6, 4), at(0));
    assert_eq!(taken(wishes.take_leaving()), [8, 9]);
    wishes.note_left([1, 3, 4, 9, 512].map(Page).into_iter());
    wishes.note_left([3].map(Page).into_iter());
    assert_eq!(ended(&second), (vec![9], vec![]));
    assert_eq!(ended(&first), (vec![1, 3, 4], vec![3]));
    assert!(!wishes.any_scan());
    assert_eq!(ended(&first), (vec![], vec![]), "each once");
}

#[test]
fn pages_of_a_scan_stay_until_they_are_to_be_taken_away() {
    let wishes = Wishes::default();
    let Begun { pages: first, alone } = wishes.begin_scan(pages(0, 4), at(0));
    assert!(alone && wishes.any_scan() && !wishes.any_leave());
    let Begun { pages: second, alone } = wishes.begin_scan(pages(2, 4), at(0));
    assert!(!alone, "another scan looks at pages of the granule");
    assert!(wishes.begin_scan(pages(512, 1), at(0)).alone);
    assert_eq!(taken(Some((GranuleId(0), second))), [4, 5]);
    wishes.wish(pages(4, 1), Wish::Stay, at(0));
    wishes.take_away(GranuleId(0), &second);
    assert_eq!(taken(wishes.take_leaving()), [5], "one is to stay by now");
    // Pages that the kernel watches leave, and come back, for other reasons.
    wishes.note_left([1, 5].map(Page).into_iter());
    assert_eq!(taken(Some((GranuleId(0), wishes.end_scan(GranuleId(0), &first).left))), [1]);
    wishes.take_away(GranuleId(0), &first);
    assert!(!wishes.any_leave(), "it is over");
}

#[test]
fn a_scan_knows_what_it_is_not_sure_of() {
    let wishes = Wishes::default();
    let unsure = |bits: &Bits| taken(Some((GranuleId(0), wishes.end_scan(GranuleId(0), bits).unsure)));
    let before = wishes.begin_scan(pages(0, 2), at(0)).pages;
    wishes.begin_cold();
    let during = wishes.begin_scan(pages(4, 1), at(0)).pages;
    let ended = wishes.begin_scan(pages(6, 1), at(0)).pages;
    assert!(wishes.is_cooling());
    assert_eq!(unsure(&ended), [0; 0], "it ends meanwhile, and asks whether it is so");
    wishes.end_cold(GranuleId(0));
    assert!(!wishes.is_cooling());
    let after = wishes.begin_scan(pages(8, 1), at(0)).pages;
    assert_eq!([unsure(&before), unsure(&during), unsure(&after)], [vec![0, 1], vec![4], vec![]]);
    let again = wishes.begin_scan(pages(0, 2), at(0)).pages;
    assert_eq!(unsure(&again), [0; 0], "each scan for itself");
}

#[test]
fn the_end_of_a_scan_takes_no_other_wish_away() {
    let wishes = Wishes::default();
    let scan = scan_away(&wishes, pages(10, 4), at(0));
    wishes.wish(pages(11, 1), Wish::Leave, at(0));
    wishes.wish(pages(12, 1), Wish::Stay, at(0));
    wishes.wish(pages(20, 1), Wish::Leave, at(0));
    wishes.end_scan(GranuleId(0), &scan);
    assert_eq!(taken(wishes.take_leaving()), [11, 20], "what was to leave for the scan alone need not any more");
    // Nor does a wish give the place of a scan to another granule.
    let scan = scan_away(&wishes, pages(30, 2), at(0));
    wishes.wish(pages(31, 1), Wish::Come, at(0));
    assert_eq!((taken(wishes.take_leaving()), taken(wishes.take_coming())), (vec![30], vec![31]));
    wishes.note_left([30].map(Page).into_iter());
    (1..=WAYS as u64).for_each(|n| _ = wishes.wish(pages(n * BUCKETS as u64 * 512, 1), Wish::Leave, at(0)));
    assert_eq!(taken(Some((GranuleId(0), wishes.end_scan(GranuleId(0), &scan).left))), [30]);
}

#[test]
fn what_finds_no_room_is_dropped() {
    let wishes = Wishes::default();
    let far = |n: u64| pages(n * BUCKETS as u64 * 512, 1);
    assert_eq!((0..6).filter(|&n| wishes.wish(far(n), Wish::Leave, at(0))).count(), WAYS);
    assert_eq!(wishes.dropped.load(Ordering::Relaxed), 2);
    assert_eq!(
        (0..PLACES as u64 * 2).filter(|&n| wishes.wish(pages(n * 512, 1), Wish::Leave, at(0))).count() as u64,
        PLACES as u64
    );
    let mut all: Vec<u64> = core::iter::from_fn(|| wishes.take_leaving()).map(|(granule, _)| granule.0).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), PLACES, "each once");
}

#[test]
fn a_few_pages_come_at_a_time() {
    let wishes = Wishes::default();
    wishes.wish(pages(60, 200), Wish::Come, at(0));
    wishes.wish(pages(5000, 3), Wish::Come, at(0));
    let mut came = Vec::new();
    for count in [64, 64, 64, 8, 3] {
        assert!(wishes.any_come());
        let some = taken(wishes.take_coming());
        assert_eq!(some.len(), count);
        came.extend(some);
    }
    assert!(!wishes.any_come());
    assert!(came.into_iter().eq((60..260).chain(5000..5003)), "in their order, and those of one granule together");
}

/// Granules of one bucket.
fn crowd(n: u64) -> PageRange {
    pages(n * BUCKETS as u64 * 512, 1)
}

#[test]
fn what_is_over_takes_no_room() {
    let wishes = Wishes::default();
    (0..WAYS as u64).for_each(|n| assert!(wishes.wish(crowd(n), Wish::StayFor(100), at(0))));
    assert!(!wishes.wish(crowd(9), Wish::Leave, at(99)), "all are to stay still");
    assert!(wishes.wish(crowd(9), Wish::Leave, at(100)), "none is any more");
    assert_eq!(taken(wishes.take_leaving()), [crowd(9).start.0]);
}

#[test]
fn what_is_gone_takes_no_room() {
    let wishes = Wishes::default();
    let gone = crowd(1).start.granule();
    let now = Now { ns: 0, is_gone: &|granule| granule == gone };
    wishes.wish(crowd(0), Wish::Stay, now);
    [Wish::Stay, Wish::Leave, Wish::Come].into_iter().for_each(|wish| _ = wishes.wish(crowd(1), wish, now));
    (2..WAYS as u64).for_each(|n| _ = wishes.wish(crowd(n), Wish::Stay, now));
    assert!(wishes.wish(crowd(7), Wish::Stay, now), "one has made room");
    assert!(!wishes.any_leave() && !wishes.any_come(), "and nothing is left of it");
    assert!(!wishes.wish(crowd(8), Wish::Stay, now), "the others are there");
    let staying = |n| taken(Some((GranuleId(0), wishes.staying(crowd(n).start.granule(), 0)))).len();
    assert_eq!([0, 1, 2, 3, 7].map(staying), [1, 0, 1, 1, 1]);
}

#[test]
fn a_scan_of_what_is_gone_ends_as_any() {
    let wishes = Wishes::default();
    let now = Now { ns: 0, is_gone: &|_| true };
    let scan = scan_away(&wishes, pages(0, 4), now);
    wishes.note_left([Page(2)].into_iter());
    (1..=WAYS as u64).for_each(|n| _ = wishes.wish(crowd(n), Wish::Leave, now));
    assert!(wishes.any_scan(), "it is under way");
    assert_eq!(taken(Some((GranuleId(0), wishes.end_scan(GranuleId(0), &scan).left))), [2]);
    assert!(!wishes.any_scan());
}

#[test]
fn the_time_of_one_page_is_not_that_of_those_after_it() {
    let wishes = Wishes::default();
    let staying = |now| taken(Some((GranuleId(0), wishes.staying(GranuleId(0), now))));
    // Something else keeps the place.
    wishes.wish(pages(0, 1), Wish::Stay, at(0));
    wishes.wish(pages(1, 1), Wish::StayFor(u64::MAX), at(0));
    wishes.wish(pages(1, 1), Wish::Free, at(0));
    wishes.wish(pages(2, 1), Wish::StayFor(10), at(0));
    assert_eq!((staying(9), staying(10)), (vec![0, 2], vec![0]));
    // Nor does the next one make a page stay whose time is over.
    wishes.wish(pages(3, 1), Wish::StayFor(10), at(20));
    wishes.wish(pages(4, 1), Wish::StayFor(10), at(40));
    assert_eq!((staying(49), staying(50)), (vec![0, 4], vec![0]));
    wishes.wish(pages(5, 1), Wish::StayFor(u64::MAX), at(60));
    wishes.free_all();
    wishes.wish(pages(0, 1), Wish::Stay, at(60));
    wishes.wish(pages(6, 1), Wish::StayFor(10), at(60));
    assert_eq!((staying(69), staying(70)), (vec![0, 6], vec![0]));
}

proptest! {
    /// As a map from pages to what was wished last.
    #[test]
    fn as_a_map(steps in proptest::collection::vec((0..2000u64, 1..600u64, 0..6u8), 1..60)) {
        let (wishes, mut model) = (Wishes::default(), BTreeMap::new());
        let mut stay = BTreeMap::new();
        for (from, count, what) in steps {
            match what {
                0..=3 => {
                    let wish = [Wish::Leave, Wish::Come, Wish::Stay, Wish::Free][what as usize];
                    for part in pages(from, count).by_granule() {
                        prop_assert!(wishes.wish(part, wish, at(0)));
                    }
                    for page in from..from + count {
                        match wish {
                            Wish::Free => {
                                if model.get(&page) == Some(&Wish::Leave) {
                                    model.remove(&page);
                                }
                                stay.remove(&page);
                            }
                            Wish::Stay => {
                                model.remove(&page);
                                stay.insert(page, ());
                            }
                            Wish::Leave => {
                                model.insert(page, wish);
                                stay.remove(&page);
                            }
                            _ => _ = model.insert(page, wish),
                        }
                    }
                }
                _ => {
                    let (wish, got) = if what == 4 { (Wish::Leave, taken(wishes.take_leaving())) } else { (Wish::Come, taken(wishes.take_coming())) };
                    if got.is_empty() {
                        prop_assert!(model.values().all(|w| *w != wish));
                    }
                    for page in got {
                        prop_assert_eq!(model.remove(&page), Some(wish));
                    }
                }
            }
        }
        for granule in 0..6 {
            let mine: Vec<u64> = stay.keys().copied().filter(|page| page / 512 == granule).collect();
            prop_assert_eq!(taken(Some((GranuleId(granule), wishes.staying(GranuleId(granule), 0)))), mine);
        }
        prop_assert_eq!(wishes.any_leave(), model.values().any(|w| *w == Wish::Leave));
    }
}
