//! Lists, timers and the dispatcher against models.
#![cfg(not(loom))]

#[path = "common/chain.rs"]
mod chain;

use chain::Chain;
use farshore_core::sync::Ordering;
use farshore_uthread::dispatch::{Dispatch, Policy};
use farshore_uthread::list::{Fifo, Free, Inbox};
use farshore_uthread::timers::Timers;
use farshore_uthread::wait::{Token, WaitWord};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

const COUNT: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    Take,
    Give,
    Post,
    Collect,
    Pop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![Just(Step::Take), Just(Step::Give), Just(Step::Post), Just(Step::Collect), Just(Step::Pop)]
}

#[derive(Clone, Debug)]
enum TimerStep {
    Set(u32, u64),
    Remove(u32),
    Expire(u64),
}

fn timer_step() -> impl Strategy<Value = TimerStep> {
    prop_oneof![
        3 => (0..COUNT, 0..100u64).prop_map(|(index, deadline)| TimerStep::Set(index, deadline)),
        1 => (0..COUNT).prop_map(TimerStep::Remove),
        1 => (0..100u64).prop_map(TimerStep::Expire),
    ]
}

#[derive(Clone, Debug)]
enum DispatchStep {
    Submit,
    Ask(usize),
    Withdraw(usize),
    Fetches(usize, u32),
    Work(usize),
}

fn dispatch_step(workers: usize) -> impl Strategy<Value = DispatchStep> {
    prop_oneof![
        Just(DispatchStep::Submit),
        (0..workers).prop_map(DispatchStep::Ask),
        (0..workers).prop_map(DispatchStep::Withdraw),
        (0..workers, 0..4u32).prop_map(|(worker, fetches)| DispatchStep::Fetches(worker, fetches)),
        (0..workers).prop_map(DispatchStep::Work),
    ]
}

proptest! {
    #[test]
    fn lists_keep_order_and_lose_nothing(steps in prop::collection::vec(step(), 1..200)) {
        let links = Chain::new(COUNT as usize);
        let (free, inbox, mut fifo) = (Free::default(), Inbox::default(), Fifo::default());
        (0..COUNT).for_each(|index| free.push(&links, index));
        let mut stack: Vec<u32> = (0..COUNT).collect();
        let (mut mine, mut posted, mut queue) = (Vec::new(), VecDeque::new(), VecDeque::new());
        for step in steps {
            match step {
                Step::Take => {
                    let taken = free.pop(&links);
                    prop_assert_eq!(taken, stack.pop());
                    mine.extend(taken);
                }
                Step::Give => if let Some(index) = mine.pop() {
                    free.push(&links, index);
                    stack.push(index);
                },
                Step::Post => if let Some(index) = mine.pop() {
                    inbox.push(&links, index);
                    posted.push_back(index);
                },
                Step::Collect => {
                    inbox.take(&links, &mut fifo);
                    queue.append(&mut posted);
                }
                Step::Pop => {
                    let popped = fifo.pop(&links);
                    prop_assert_eq!(popped, queue.pop_front());
                    mine.extend(popped);
                }
            }
            prop_assert_eq!(inbox.is_empty(), posted.is_empty());
            prop_assert_eq!(fifo.is_empty(), queue.is_empty());
        }
    }

    #[test]
    fn timers_are_a_sorted_set(steps in prop::collection::vec(timer_step(), 1..300)) {
        let words: Vec<_> = (0..COUNT).map(|_| WaitWord::default()).collect();
        let mut timers = Timers::new(COUNT as usize);
        let mut model: BTreeSet<(u64, u32)> = BTreeSet::new();
        for step in steps {
            match step {
                TimerStep::Set(index, deadline) => if !model.iter().any(|&(_, other)| other == index) {
                    timers.set(deadline, words[index as usize].arm(index));
                    model.insert((deadline, index));
                },
                TimerStep::Remove(index) => {
                    let before = model.len();
                    model.retain(|&(_, other)| other != index);
                    prop_assert_eq!(timers.remove(index), model.len() != before);
                }
                TimerStep::Expire(now) => {
                    let mut last = 0;
                    while let Some(token) = timers.expire(now) {
                        let &(deadline, _) = model.iter().find(|&&(_, index)| index == token.index()).expect("it was set");
                        prop_assert!(deadline <= now && deadline >= last);
                        last = deadline;
                        model.remove(&(deadline, token.index()));
                    }
                }
            }
            prop_assert_eq!(timers.next(), model.first().map(|&(deadline, _)| deadline));
        }
    }

    #[test]
    fn tokens_survive_as_numbers(index in 0..u32::MAX, waits in 1..50u32) {
        let word = WaitWord::default();
        let mut last = None;
        for _ in 0..waits {
            let token = word.arm(index);
            prop_assert_eq!(Token::from_raw(token.into_raw()), Some(token));
            prop_assert!(token.into_raw() < 1 << 62 && token.index() == index && last != Some(token));
            last = Some(token);
        }
        prop_assert_eq!(Token::from_raw(0), None);
        prop_assert_eq!(Token::from_raw(u64::MAX), None);
    }

    /// Algorithm 1: the oldest goes to the idle worker with the fewest fetches.
    #[test]
    fn the_dispatcher_follows_its_algorithm(steps in prop::collection::vec(dispatch_step(3), 1..200), fewest in any::<bool>()) {
        let policy = if fewest { Policy::FewestFetches } else { Policy::RoundRobin };
        let (links, dispatch) = (Chain::new(200), Dispatch::new(3, policy));
        let (mut pending, mut idle, mut fetches, mut cursor) = (VecDeque::new(), [false; 3], [0; 3], 0);
        let mut given: [VecDeque<u32>; 3] = Default::default();
        let mut number = 0;
        for step in steps {
            let mut woken = Vec::new();
            match step {
                DispatchStep::Submit => {
                    pending.push_back(number);
                    dispatch.submit(&links, number, |worker| woken.push(worker));
                    number += 1;
                }
                DispatchStep::Ask(worker) => {
                    idle[worker] = true;
                    dispatch.ask(&links, worker, |worker| woken.push(worker));
                }
                DispatchStep::Withdraw(worker) => {
                    idle[worker] = false;
                    dispatch.withdraw(worker);
                }
                DispatchStep::Fetches(worker, count) => {
                    fetches[worker] = count;
                    dispatch.desk(worker).fetches.store(count, Ordering::Relaxed);
                }
                DispatchStep::Work(worker) => {
                    let mut fresh = Fifo::default();
                    dispatch.desk(worker).fresh.take(&links, &mut fresh);
                    let got: Vec<_> = core::iter::from_fn(|| fresh.pop(&links)).collect();
                    prop_assert_eq!(got, given[worker].drain(..).collect::<Vec<_>>());
                }
            }
            let mut told = BTreeSet::new();
            while !pending.is_empty() {
                let candidates = (0..3).map(|i| (cursor + i) % 3).filter(|&worker| idle[worker]);
                let key = |&worker: &usize| if fewest { fetches[worker] } else { 0 };
                let Some(worker) = candidates.min_by_key(key) else { break };
                idle[worker] = false;
                given[worker].push_back(pending.pop_front().unwrap());
                cursor = (worker + 1) % 3;
                told.insert(worker);
            }
            prop_assert_eq!(woken, told.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(dispatch.has_waiting(), !pending.is_empty());
        }
    }
}
