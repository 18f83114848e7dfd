//! The equation of the frames under all interleavings: no frame is lost or made, none is taken beyond the limit.
#![cfg(loom)]

use farshore_core::frames::Frames;
use farshore_models::explore;
use loom::sync::Arc;
use loom::thread;

fn spawn<R: 'static>(frames: &Arc<Frames>, act: impl FnOnce(&Frames) -> R + 'static) -> thread::JoinHandle<R> {
    let frames = frames.clone();
    thread::spawn(move || act(&frames))
}

#[test]
fn two_takers_share_what_there_is() {
    explore(3, || {
        let frames = Arc::new(Frames::new(1, 2));
        let takers = [spawn(&frames, |f| f.take(0)), spawn(&frames, |f| f.take(1))];
        let got = takers.map(|t| t.join().unwrap());
        assert_eq!(got.iter().filter(|&&took| took).count(), 1, "one frame, one taker");
        frames.assert_valid();
        assert_eq!(frames.taken(), 1);
    });
}

/// Sixteen frames make a cache of two, so that one taker takes what the other has cached.
#[test]
fn batches_and_the_other_core_s_cache() {
    explore(3, || {
        let frames = Arc::new(Frames::new(16, 2));
        assert_eq!(frames.take_spare(0, u64::MAX, 16), 0);
        let takers = [spawn(&frames, |f| f.take(0)), spawn(&frames, |f| f.take(1))];
        assert!(takers.map(|t| t.join().unwrap()).iter().all(|&took| took));
        frames.assert_valid();
        assert_eq!(frames.taken(), 2);
    });
}

#[test]
fn a_last_cached_frame_goes_to_one_taker() {
    explore(3, || {
        let frames = Arc::new(Frames::new(16, 2));
        assert!(frames.take(0), "and the other of the batch is cached");
        assert_eq!(frames.take_spare(0, u64::MAX, 0), 14);
        let takers = [spawn(&frames, |f| f.take(0)), spawn(&frames, |f| f.take(1))];
        let got = takers.map(|t| t.join().unwrap());
        assert_eq!(got.iter().filter(|&&took| took).count(), 1);
        frames.assert_valid();
        assert_eq!(frames.taken(), 16);
    });
}

/// Nothing taken may ever be more than the highest limit in force during the test.
#[test]
fn take_give_and_a_lower_limit() {
    explore(3, || {
        let frames = Arc::new(Frames::new(2, 1));
        assert!(frames.take(0));
        let taker = spawn(&frames, |f| f.take(0));
        let giver = spawn(&frames, |f| f.give(1, 1));
        frames.set_limit(1);
        let took = taker.join().unwrap();
        giver.join().unwrap();
        frames.assert_valid();
        assert_eq!(frames.taken(), u64::from(took));
        assert!(frames.taken_peak() <= 2);
        frames.give(1, frames.taken());
        frames.assert_valid();
        assert_eq!((frames.debt(), frames.taken()), (0, 0));
        assert_eq!(frames.free_uncached(), 1, "all of the new limit is free and no more");
    });
}

#[test]
fn take_give_and_a_higher_limit() {
    explore(3, || {
        let frames = Arc::new(Frames::new(2, 1));
        assert!(frames.take(0) && frames.take(0));
        frames.set_limit(1);
        assert_eq!(frames.debt(), 1);
        let taker = spawn(&frames, |f| f.take(0));
        let giver = spawn(&frames, |f| f.give(1, 1));
        frames.set_limit(3);
        let took = taker.join().unwrap();
        giver.join().unwrap();
        frames.assert_valid();
        assert_eq!(frames.debt(), 0);
        assert_eq!(frames.taken(), 1 + u64::from(took));
    });
}

#[test]
fn two_changes_of_the_limit_at_once() {
    explore(3, || {
        let frames = Arc::new(Frames::new(4, 1));
        assert!(frames.take(0) && frames.take(0));
        let lower = spawn(&frames, |f| f.set_limit(1));
        frames.set_limit(6);
        lower.join().unwrap();
        frames.assert_valid();
        assert!([1, 6].contains(&frames.limit()));
        frames.give(1, 2);
        frames.assert_valid();
    });
}
