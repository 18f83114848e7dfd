//! Comparisons that anyone can repeat: `farshore bench`.
//!
//! One program, run as it is under each of several *targets*, in turn, round by round. See [`result`] for what comes out.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`], [`run`], [`output`], [`place`] | the command line; what it makes happen; tables and files; how a file gets its place |
//! | [`plan`], [`canonical`], [`families`], [`check`] | what is to be run; the two sets; whether memory and disk suffice |
//! | [`targets`], [`journal`] | what a program is run under; what was made for that, so that it goes again |
//! | [`rounds`], [`measure`], [`child`], [`proc`] | targets in turn; one run; one process; `/proc` |
//! | [`uthread`] | services: the ways in which they can wait for far memory |
//! | [`paper`] | the papers' figures: what is run, what it is set against, their pages |
//! | [`session`] | one measurement from its journal to its results |
//! | [`device`], [`machine`] | what the disk can do at most; what machine this is |
//! | [`result`], [`statistics`] | the results' schema; medians, ratios and their intervals |
//! | [`table`], [`report`], [`compare`], [`progress`] | results for the terminal; for a browser; against older ones; what is going on |

pub mod args;
pub mod canonical;
pub mod check;
pub mod child;
pub mod compare;
pub mod device;
pub mod families;
pub mod journal;
pub mod machine;
pub mod measure;
pub mod output;
pub mod paper;
pub mod place;
pub mod plan;
pub mod proc;
pub mod progress;
pub mod report;
pub mod result;
pub mod rounds;
pub mod run;
pub mod session;
pub mod statistics;
pub mod table;
pub mod targets;
pub mod uthread;
