//! The rings between threads: no event and no request is torn, lost without a count, or read twice.
#![cfg(loom)]

use farshore_attach::rings::{Asker, Listener, Taken, Taker, Teller};
use farshore_attach::{EVENT_WORDS, Event, HEAD_WORDS, Kind, Memory, REQUEST_WORDS, Request, Wanted};
use farshore_core::sync::AtomicU64;
use farshore_models::explore;
use loom::sync::Arc;
use loom::thread;

fn words() -> Vec<AtomicU64> {
    (0..HEAD_WORDS + 2 * EVENT_WORDS + 2 * REQUEST_WORDS).map(|_| AtomicU64::new(0)).collect()
}

/// An event all of whose words say the same.
fn event(n: u64) -> Event {
    Event { kind: Kind::Fault, detail: 0, thread: n as u32, ns: n, address: n, pages: n, more: [n; 3] }
}

#[test]
fn two_tell_and_one_listens() {
    explore(2, || {
        let shared = Arc::new((words(), Teller::default()));
        let tell = |n: u64| {
            let shared = shared.clone();
            thread::spawn(move || {
                let memory = Memory::with_rings(&shared.0, 2, 2);
                u64::from(shared.1.tell(&memory, &event(n), |_| {})) + u64::from(shared.1.tell(&memory, &event(n + 10), |_| {}))
            })
        };
        let tellers = [tell(1), tell(2)];
        let memory = Memory::with_rings(&shared.0, 2, 2);
        let mut listener = Listener::new(&memory);
        let mut heard = Vec::new();
        heard.extend(listener.take(&memory));
        let told: u64 = tellers.into_iter().map(|teller| teller.join().unwrap()).sum();
        heard.extend(core::iter::from_fn(|| listener.take(&memory)));
        assert!(heard.iter().all(|heard| *heard == event(heard.ns)), "torn: {heard:?}");
        assert_eq!(heard.len() as u64, told);
        assert_eq!(told + shared.1.lost(), 4);
        let mut names: Vec<u64> = heard.iter().map(|heard| heard.ns).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), heard.len(), "twice");
    });
}

#[test]
fn requests_are_whole() {
    explore(3, || {
        let shared = Arc::new(words());
        let request = |n: u64| Request { wanted: Wanted::Protect { ns: n }, page: n, pages: n };
        let asking = shared.clone();
        let policy = thread::spawn(move || {
            let memory = Memory::with_rings(&asking, 2, 2);
            let mut asker = Asker::new(&memory);
            (1..=3).filter(|&n| asker.ask(&memory, &request(n))).count()
        });
        let memory = Memory::with_rings(&shared, 2, 2);
        let mut taker = Taker::default();
        let mut taken = Vec::new();
        let mut take = |taken: &mut Vec<Request>| match taker.take(&memory) {
            Taken::Request(request) => {
                taken.push(request);
                true
            }
            Taken::Nothing => false,
            Taken::Bad => panic!("a torn request"),
        };
        take(&mut taken);
        let asked = policy.join().unwrap();
        while take(&mut taken) {}
        assert_eq!(taken.len(), asked);
        assert!(taken.iter().enumerate().all(|(n, taken)| *taken == request(n as u64 + 1)) || asked < 3);
    });
}

/// A policy that says that it sleeps, and a thread that tells: the policy sees the event, or is woken.
#[test]
fn no_news_is_slept_through() {
    explore(3, || {
        let shared = Arc::new((words(), Teller::default()));
        let telling = shared.clone();
        let teller = thread::spawn(move || {
            let memory = Memory::with_rings(&telling.0, 2, 2);
            let mut woken = false;
            let at = Event { ns: 1 << 40, ..event(1) };
            telling.1.tell(&memory, &at, |_| woken = true);
            woken
        });
        let memory = Memory::with_rings(&shared.0, 2, 2);
        let sleeps = Listener::new(&memory).prepare(&memory).is_some();
        let woken = teller.join().unwrap();
        assert!(!sleeps || woken, "asleep for good");
    });
}
