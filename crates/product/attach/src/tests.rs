use super::*;
use crate::rings::{Asker, Listener, Taken, Taker, Teller};
use alloc::vec::Vec;
use proptest::prelude::*;

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn small() -> Vec<AtomicU64> {
    words(HEAD_WORDS + 4 * EVENT_WORDS + 4 * REQUEST_WORDS)
}

#[test]
fn a_full_ring_loses_events_and_counts_them() {
    let words = small();
    let memory = Memory::with_rings(&words, 4, 4);
    let (teller, mut listener) = (Teller::default(), Listener::new(&memory));
    let event = |n| Event::new(Kind::Fault, n, 1);
    for round in 0..5 {
        let told = (0..7).filter(|&n| teller.tell(&memory, &event(round * 10 + n), |_| {})).count();
        assert_eq!((told, teller.lost()), (4, 3 * (round + 1)));
        let heard: Vec<u64> = core::iter::from_fn(|| listener.take(&memory)).map(|event| event.address).collect();
        assert_eq!(heard, [0, 1, 2, 3].map(|n| round * 10 + n));
    }
}

#[test]
fn a_policy_that_sleeps_is_woken_but_not_all_the_time() {
    let words = small();
    let memory = Memory::with_rings(&words, 4, 4);
    let (teller, mut listener) = (Teller::default(), Listener::new(&memory));
    let at = |ns| Event { ns, ..Event::new(Kind::Fault, 0, 1) };
    let mut woken = 0;
    let mut tell = |ns| {
        teller.tell(&memory, &at(ns), |_| woken += 1);
        woken
    };
    assert_eq!(tell(50_000), 0, "it does not sleep");
    assert_eq!(listener.prepare(&memory), None, "there is an event");
    listener.take(&memory);
    assert!(listener.prepare(&memory).is_some());
    assert_eq!(tell(60_000), 1);
    listener.take(&memory);
    assert!(listener.prepare(&memory).is_some());
    assert_eq!((tell(60_001), tell(71_000)), (1, 2), "too soon, and later");
}

#[test]
fn requests_come_as_they_were_asked() {
    let words = small();
    let memory = Memory::with_rings(&words, 4, 4);
    let (mut asker, mut taker) = (Asker::new(&memory), Taker::default());
    let asked = [
        Wanted::Reclaim,
        Wanted::Prefetch,
        Wanted::Pin,
        Wanted::Unpin,
        Wanted::Protect { ns: 5 },
        Wanted::Look { tag: u32::MAX },
        Wanted::Scan { micros: u32::MAX, tag: 7 },
        Wanted::Expect { reuse: Reuse::Late },
        Wanted::Expect { reuse: Reuse::Next },
    ];
    for (n, wanted) in asked.into_iter().enumerate() {
        let request = Request { wanted, page: 7 + n as u64, pages: 1 + n as u64 };
        assert!(asker.ask(&memory, &request));
        assert_eq!(taker.take(&memory), Taken::Request(request));
        assert_eq!(taker.take(&memory), Taken::Nothing);
    }
    let request = Request { wanted: Wanted::Reclaim, page: 1, pages: 1 };
    assert_eq!((0..9).filter(|_| asker.ask(&memory, &request)).count(), 4, "a full ring takes no more");
}

#[test]
fn what_no_request_can_say_is_none() {
    for (kind, extra, is_one) in
        [(8, 3, true), (8, 4, false), (8, 1 << 32, false), (8, u64::MAX, false), (6, 1 << 32, false), (9, 0, false)]
    {
        assert_eq!(Request::of([kind, 4096, 1, extra]).is_some(), is_one, "{kind} {extra}");
    }
    for reuse in Reuse::ALL {
        assert_eq!(Reuse::of(reuse as u64), Some(reuse));
    }
}

#[test]
fn an_event_comes_as_it_was_told() {
    for kind in Kind::ALL {
        assert_eq!(Kind::of(kind as u8), Some(kind));
        assert!(EVERYTHING & kind.bit() != 0);
        let event = Event { kind, detail: 3, thread: u32::MAX, ns: 1, address: u64::MAX, pages: 2, more: [4, 5, 6] };
        assert_eq!(Event::of(event.words()), Some(event));
    }
    assert_eq!(Event::of([0; 7]), None);
    assert_eq!(EVERYTHING, Kind::ALL.iter().fold(0, |all, kind| all | kind.bit()));
}

#[test]
fn names_of_parameters_are_checked_on_both_sides() {
    let words = words(WORDS);
    let memory = Memory::new(&words);
    assert!(parameters::register(&memory, 0, "pages", -3) && parameters::register(&memory, 15, &"x".repeat(32), 4));
    assert_eq!(parameters::read(&memory, 0), Some(("pages".into(), -3)));
    assert_eq!(parameters::read(&memory, 15), Some(("x".repeat(32), 4)));
    for bad in ["", "A", "a b", &"x".repeat(33)] {
        assert!(!parameters::register(&memory, 1, bad, 0), "{bad}");
    }
    assert!(!parameters::register(&memory, 16, "x", 0));
    assert_eq!(parameters::read(&memory, 1), None);
    memory.head(word::PARAMETERS + 8).store(u64::from_le_bytes(*b"a\0b\0\0\0\0\0"), Ordering::Relaxed);
    assert_eq!(parameters::read(&memory, 1), None, "something behind the name");
}

#[test]
fn the_whole_is_pages() {
    assert_eq!(BYTES % 4096, 0);
}

proptest! {
    /// Whatever the policy writes, wherever and whenever: the library's end reads no place but the ring's, ends, and refuses
    /// what is no request.
    #[test]
    fn garbage_does_no_harm(writes in proptest::collection::vec((0..HEAD_WORDS + 4 * 12, any::<u64>(), 0..4u8), 0..200)) {
        let words = small();
        let memory = Memory::with_rings(&words, 4, 4);
        let (teller, mut taker) = (Teller::default(), Taker::default());
        for (at, value, then) in writes {
            words[at].store(value, Ordering::Relaxed);
            match then {
                0 => _ = teller.tell(&memory, &Event::new(Kind::Fault, 1, 1), |_| {}),
                1 => {
                    let before = (taker.taken, taker.bad);
                    match taker.take(&memory) {
                        Taken::Nothing => prop_assert_eq!((taker.taken, taker.bad), before),
                        Taken::Bad => prop_assert_eq!((taker.taken, taker.bad), (before.0 + 1, before.1 + 1)),
                        Taken::Request(request) => {
                            prop_assert!((1..=REQUEST_PAGES_MAX).contains(&request.pages));
                            prop_assert!(request.page + request.pages <= 1 << 35);
                        }
                    }
                }
                2 => _ = parameters::read(&memory, at % parameters::PARAMETERS),
                _ => {}
            }
        }
        // A policy that comes to its senses is served on: what it asks first may be passed over with the garbage.
        let request = Request { wanted: Wanted::Prefetch, page: 9, pages: 9 };
        let _ = Asker::new(&memory).ask(&memory, &request);
        memory.head(word::REQUESTS_ASKED).fetch_add(1, Ordering::Relaxed);
        while taker.take(&memory) != Taken::Nothing {}
        let mut asker = Asker::new(&memory);
        prop_assert!(asker.ask(&memory, &request));
        prop_assert_eq!(taker.take(&memory), Taken::Request(request));
    }
}

#[test]
fn an_event_is_about_as_many_pages_as_there_can_be() {
    let pages_of = |kind: Kind| Event::of([kind as u64, 1, 4096, u64::MAX, 0, 0, 0]).expect("the kind is known").pages;
    for kind in [Kind::Fault, Kind::Fetched, Kind::Evicted, Kind::Rescued, Kind::Pages, Kind::Scanned] {
        assert_eq!(pages_of(kind), 512, "{kind:?}");
    }
    assert_eq!((pages_of(Kind::Unmapped), pages_of(Kind::Limit)), (1 << 35, u64::MAX));
    assert_eq!(Event::of([u64::MAX, 1, 2, 3, 4, 5, 6]), None);
}
