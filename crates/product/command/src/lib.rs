//! What the commands `farshore` and `farshore-bench` share.
//!
//! To the user they are one command: `farshore bench …` becomes `farshore-bench`, as git runs its commands. So both begin,
//! refuse and end in the same way, and every line that they say begins with `farshore: `.
//!
//! | module | what it does |
//! |---|---|
//! | [`entry`] | from C's `main` to an exit status |
//! | [`usage`] | reads a command line; what clap would tell in several lines becomes one |
//! | [`refusal`] | errors and exit statuses |

pub mod entry;
pub mod refusal;
pub mod usage;

/// What `farshore bench` is for: a line of the help of both commands.
pub const BENCH_ABOUT: &str = "Compare Farshore with Linux swap, zram and others, in turn, in one run";
/// What `farshore` says to the command of `farshore bench` first: this and the path of itself, the command that is to be measured.
pub const CALLER: &str = "--farshore=";
