//! All interleavings of what threads share: a wait and its completions, the lists, the sleep of a worker, the dispatcher.
#![cfg(loom)]

#[path = "common/chain.rs"]
mod chain;

use chain::Chain;
use farshore_models::explore;
use farshore_uthread::dispatch::{Dispatch, Policy};
use farshore_uthread::doze::Doze;
use farshore_uthread::lifetime::Lifetime;
use farshore_uthread::list::{Fifo, Free, Inbox};
use farshore_uthread::wait::{Complete, Park, WaitWord};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// An eventfd: kicks are remembered.
#[derive(Default)]
struct Kick {
    count: Mutex<u32>,
    kicked: Condvar,
}

impl Kick {
    fn kick(&self) {
        *self.count.lock().unwrap() += 1;
        self.kicked.notify_all();
    }

    fn sleep(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.kicked.wait(count).unwrap();
        }
        *count = 0;
    }
}

/// Two complete one wait: one of them wins, and makes it ready if it was parked. What the winner wrote before is seen.
#[test]
fn a_wait_is_completed_once() {
    explore(3, || {
        let shared = Arc::new((WaitWord::default(), [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let token = shared.0.arm(3);
        let completers: Vec<_> = (0..2)
            .map(|number| {
                let shared = shared.clone();
                thread::spawn(move || {
                    // SAFETY: each has its own.
                    shared.1[number].with_mut(|bytes| unsafe { *bytes = 7 });
                    shared.0.complete(token, number as i32)
                })
            })
            .collect();
        let parked = match shared.0.park(token) {
            Park::Stay(result) => {
                // SAFETY: the winner is done with it.
                assert_eq!(shared.1[result as usize].with(|bytes| unsafe { *bytes }), 7);
                false
            }
            Park::Leave => true,
        };
        let outcomes: Vec<_> = completers.into_iter().map(|thread| thread.join().unwrap()).collect();
        let winner = outcomes.iter().position(|&outcome| outcome != Complete::Stale).expect("one wins");
        assert_eq!(outcomes[1 - winner], Complete::Stale);
        assert_eq!(outcomes[winner], if parked { Complete::Resume } else { Complete::Noted });
        assert_eq!(shared.0.result(), Some(winner as i32));
    });
}

/// A completer that is late, with the token of a wait that is over, never ends the next one.
#[test]
fn a_late_token_changes_nothing() {
    explore(3, || {
        let word = Arc::new(WaitWord::default());
        let late = word.arm(0);
        let other = word.clone();
        let completer = thread::spawn(move || other.complete(late, 1));
        let token = word.arm(0);
        assert_eq!(word.result(), None);
        assert_eq!(word.park(token), Park::Leave);
        assert_eq!(word.complete(token, 2), Complete::Resume);
        assert_ne!(completer.join().unwrap(), Complete::Resume);
        assert_eq!(word.result(), Some(2));
    });
}

/// The worker sleeps until both have come; nobody is lost, and each comes once. A lost wake-up is a deadlock.
#[test]
fn no_completion_is_slept_through() {
    explore(3, || {
        let shared = Arc::new((Chain::new(2), Inbox::default(), Doze::default(), Kick::default()));
        let completers: Vec<_> = (0..2)
            .map(|index| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.push(&shared.0, index);
                    if shared.2.must_kick() {
                        shared.3.kick();
                    }
                })
            })
            .collect();
        let mut came = [0; 2];
        let mut ready = Fifo::default();
        while came != [1, 1] {
            shared.1.take(&shared.0, &mut ready);
            while let Some(index) = ready.pop(&shared.0) {
                came[index as usize] += 1;
            }
            if came == [1, 1] {
                break;
            }
            shared.2.begin();
            if shared.1.is_empty() {
                shared.3.sleep();
            }
            shared.2.end();
        }
        completers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// No slot is given to two at a time, also when slots come back in between (ABA).
#[test]
fn a_free_slot_is_taken_once() {
    explore(3, || {
        let shared = Arc::new((Chain::new(2), Free::default(), [UnsafeCell::new(()), UnsafeCell::new(())]));
        (0..2).for_each(|index| shared.1.push(&shared.0, index));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        if let Some(index) = shared.1.pop(&shared.0) {
                            // Loom panics if two have it at a time.
                            shared.2[index as usize].with_mut(|_| ());
                            shared.1.push(&shared.0, index);
                        }
                    }
                })
            })
            .collect();
        takers.into_iter().for_each(|thread| thread.join().unwrap());
        let left: Vec<_> = core::iter::from_fn(|| shared.1.pop(&shared.0)).collect();
        assert!(left == [0, 1] || left == [1, 0], "{left:?}");
    });
}

/// Two spawn, one worker asks and sleeps: each unithread comes to the worker once. A queue that nobody looks at again is a deadlock.
#[test]
fn nothing_stays_in_the_queue_while_a_worker_is_idle() {
    explore(2, || {
        let shared = Arc::new((Chain::new(2), Dispatch::new(1, Policy::FewestFetches), Doze::default(), Kick::default()));
        let wake = |shared: &(Chain, Dispatch, Doze, Kick)| {
            if shared.2.must_kick() {
                shared.3.kick();
            }
        };
        let spawners: Vec<_> = (0..2)
            .map(|index| {
                let shared = shared.clone();
                thread::spawn(move || shared.1.submit(&shared.0, index, |_| wake(&shared)))
            })
            .collect();
        let mut came = [0; 2];
        let mut fresh = Fifo::default();
        while came != [1, 1] {
            shared.1.ask(&shared.0, 0, |_| wake(&shared));
            shared.1.desk(0).fresh.take(&shared.0, &mut fresh);
            let mut any = false;
            while let Some(index) = fresh.pop(&shared.0) {
                came[index as usize] += 1;
                any = true;
            }
            if any {
                shared.1.withdraw(0);
                continue;
            }
            shared.2.begin();
            if shared.1.desk(0).fresh.is_empty() {
                shared.3.sleep();
            }
            shared.2.end();
        }
        spawners.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!shared.1.has_waiting());
    });
}

/// The queue's order is the order in which its entries came, whoever dispatches.
#[test]
fn first_come_first_served() {
    explore(2, || {
        let shared = Arc::new((Chain::new(2), Dispatch::new(1, Policy::RoundRobin)));
        let other = shared.clone();
        let spawner = thread::spawn(move || {
            other.1.submit(&other.0, 0, |_| ());
            other.1.submit(&other.0, 1, |_| ());
        });
        let mut order = Vec::new();
        let mut fresh = Fifo::default();
        shared.1.ask(&shared.0, 0, |_| ());
        spawner.join().unwrap();
        loop {
            shared.1.desk(0).fresh.take(&shared.0, &mut fresh);
            order.extend(core::iter::from_fn(|| fresh.pop(&shared.0)));
            if order.len() == 2 {
                break;
            }
            shared.1.ask(&shared.0, 0, |_| ());
        }
        assert_eq!(order, [0, 1]);
    });
}

/// What the threads of a runtime share that has one worker and one unithread, which waits for a page.
#[derive(Default)]
struct Ending {
    lifetime: Lifetime,
    wait: WaitWord,
    chain: Chain,
    inbox: Inbox,
    doze: Doze,
    kick: Kick,
    /// Where the one who stops sleeps.
    over: Kick,
    page: UnsafeCell<u32>,
}

impl Ending {
    fn wake_worker(&self) {
        if self.doze.must_kick() {
            self.kick.kick();
        }
    }

    /// The worker's loop, as `worker.rs` has it. How often the unithread went on.
    fn work(&self, mut went_on: u32) -> u32 {
        let mut ready = Fifo::default();
        let mut stopped = false;
        loop {
            stopped |= self.lifetime.is_stopping();
            self.inbox.take(&self.chain, &mut ready);
            if ready.pop(&self.chain).is_some() {
                self.go_on();
                went_on += 1;
            }
            if self.lifetime.has_ended() {
                return went_on;
            }
            self.doze.begin();
            if self.inbox.is_empty() && !self.lifetime.has_ended() && (stopped || !self.lifetime.is_stopping()) {
                self.kick.sleep();
            }
            self.doze.end();
        }
    }

    /// The unithread finds its page, and ends.
    fn go_on(&self) {
        // SAFETY: the thread that brought it is done with it.
        assert_eq!(self.page.with(|page| unsafe { *page }), 7, "it went on without its page");
        self.end_one();
    }

    fn end_one(&self) {
        if self.lifetime.dismiss() {
            self.over.kick();
            self.wake_worker();
        }
    }
}

/// A runtime is stopped while a unithread's page is on its way: it gets the page and goes on, once; then all end. Who sleeps on is a deadlock.
#[test]
fn a_fetch_that_is_outstanding_ends_before_the_runtime() {
    explore(3, || {
        let shared = Arc::new(Ending { chain: Chain::new(1), ..Ending::default() });
        assert!(shared.lifetime.admit());
        let token = shared.wait.arm(0);
        let fetching = shared.clone();
        let fetch = thread::spawn(move || {
            // SAFETY: nobody looks before it is completed.
            fetching.page.with_mut(|page| unsafe { *page = 7 });
            if fetching.wait.complete(token, 0) == Complete::Resume {
                fetching.inbox.push(&fetching.chain, 0);
            }
            fetching.wake_worker();
        });
        let stopping = shared.clone();
        let stop = thread::spawn(move || {
            stopping.lifetime.stop();
            stopping.wake_worker();
            while stopping.lifetime.live() != 0 {
                stopping.over.sleep();
            }
            stopping.wake_worker();
            assert!(!stopping.lifetime.admit(), "one is spawned after the end");
            stopping.end_one();
        });
        let at_once = match shared.wait.park(token) {
            Park::Stay(_) => {
                shared.go_on();
                1
            }
            Park::Leave => 0,
        };
        assert_eq!(shared.work(at_once), 1);
        fetch.join().unwrap();
        stop.join().unwrap();
    });
}
