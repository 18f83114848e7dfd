//! `farshore bench uthread`: the ways in which a service can wait for far memory.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | options: what they say, and what is refused |
//! | [`course`] | which comparisons are made, one after the other: a load may follow from the one before |
//! | [`service`] | the command lines of server and generator |
//! | [`memcached`] | the real memcached, as one more server |
//! | [`told`] | what the generator tells |
//! | [`cores`] | which thread runs where |
//!
//! A comparison is an experiment like any other ([`crate::rounds`]): modes take turns, round by round, each under its target. One run of a server with its
//! generator: `measure::served`.

pub mod args;
pub mod cores;
pub mod course;
pub mod memcached;
pub mod service;
pub mod told;

use farshore_uthread::cost;

/// What a switch between two unithreads costs, in a line.
#[must_use]
pub fn switch_text() -> String {
    let cost = cost::of_a_switch();
    format!("a switch from one unithread to another: {:.1} ns, {:.0} cycles\n", cost.ns, cost.cycles)
}
