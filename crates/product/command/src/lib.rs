//! What the commands `farshore`, `farshore-bench`, `farshore-node`, `farshore-manager` and `farshore-view` share.
//!
//! To the user they are one command: `farshore bench …` becomes `farshore-bench`, and `farshore top …` becomes `farshore-view`, as git runs
//! its commands. So all begin, refuse and end in the same way, and every line that they say begins with `farshore: `.
//!
//! | module | what it does |
//! |---|---|
//! | [`entry`] | from C's `main` to an exit status |
//! | [`usage`] | reads a command line; what clap would tell in several lines becomes one |
//! | [`refusal`] | errors and exit statuses |
//! | [`library`] | finds what is preloaded |
//! | [`listen`] | where a server of theirs listens |
//! | [`http`] | requests and answers of servers that speak HTTP |
//! | [`door`] | takes their connections, and lets nobody starve the others |
//! | [`token`] | who may come in where everybody can knock |
//! | [`handed`] | descriptors that were handed on to this process |
//! | `page` (a feature) | the pages that they write |
//! | [`regular`] | opens files that somebody else has named |
//! | [`say`] | what servers say on stderr |
//! | [`swap`] | looks at swap spaces before they are opened |
//! | [`machine`] | what is asked of the machine |
//! | [`process`] | what the kernel tells of a process |

pub mod door;
pub mod entry;
pub mod handed;
pub mod http;
pub mod library;
pub mod listen;
pub mod machine;
#[cfg(feature = "page")]
pub mod page;
pub mod process;
pub mod refusal;
pub mod regular;
pub mod say;
pub mod swap;
pub mod token;
pub mod usage;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What `farshore top` is for: a line of the help of both commands.
pub const TOP_ABOUT: &str = "Show all running programs, again and again: memory, faults, time spent waiting";
/// What `farshore metrics` is for: a line of the help of both commands.
pub const METRICS_ABOUT: &str = "Give the counters of all running programs to Prometheus";
/// What `farshore node` is for: a line of the help of both commands.
pub const NODE_ABOUT: &str = "Give RAM of this machine to programs of others, by NBD";
/// What `farshore manage` is for: a line of the help of both commands.
pub const MANAGE_ABOUT: &str = "Manage the memory of virtual machines that hand it over";
/// What `farshore vm` is for: a line of the help of both commands.
pub const VM_ABOUT: &str = "Run virtual machines in less memory than their guests have, list and steer them";
/// What `farshore daemon` is for: a line of the help of both commands.
pub const DAEMON_ABOUT: &str = "Watch and steer virtual machines and programs by an HTTP API and a web page";
/// What `farshore plan` is for: a line of the help of both commands.
pub const PLAN_ABOUT: &str = "Tell how much memory a program needs: how long it takes with more and with less";
/// What `farshore record` is for: a line of the help of both commands.
pub const RECORD_ABOUT: &str = "Write what happens to a program's memory to a file: faults, pages that come and leave";
/// What `farshore report` is for: a line of the help of both commands.
pub const REPORT_ABOUT: &str = "Make a page of a recording: which memory and which code faulted when";
/// What `farshore policy` is for: a line of the help of both commands.
pub const POLICY_ABOUT: &str = "Attach a policy to a running program: which pages come, leave and stay";
/// What `farshore bench` is for: a line of the help of both commands.
pub const BENCH_ABOUT: &str = "Compare Farshore with Linux swap, zram and others, in turn, in one run";
/// What `farshore` says first to a command that it becomes: this and the path of itself.
pub const CALLER: &str = "--farshore=";

/// The `farshore` that has become this command, and what is left of the words without this command's name.
#[must_use]
pub fn without_caller(words: Vec<OsString>) -> (Option<PathBuf>, Vec<OsString>) {
    let mut words = words.into_iter().skip(1).peekable();
    let path = |word: &OsString| word.as_bytes().strip_prefix(CALLER.as_bytes()).map(<[u8]>::to_vec);
    let farshore = words.peek().and_then(path).map(|path| PathBuf::from(OsString::from_vec(path)));
    if farshore.is_some() {
        words.next();
    }
    (farshore, words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_is_told_once_and_first() {
        let of = |words: &[&str]| without_caller(words.iter().map(OsString::from).collect());
        let rest = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(of(&["farshore-bench", "random", "--size", "1G"]), (None, rest(&["random", "--size", "1G"])));
        assert_eq!(of(&["farshore-bench", "--farshore=/a b", "random"]), (Some("/a b".into()), rest(&["random"])));
        assert_eq!(of(&["x", "random", "--farshore=/a"]), (None, rest(&["random", "--farshore=/a"])));
        assert_eq!(of(&["x", "--farshore=/a", "--farshore=/b"]), (Some("/a".into()), rest(&["--farshore=/b"])));
        assert_eq!((of(&["x"]), of(&[])), ((None, Vec::new()), (None, Vec::new())));
    }
}
