//! The protocol of the control socket, without the socket: bytes in, answers out.
//!
//! The library serves it on a socket (its `control` module), and the command asks. Requests and answers are JSON objects,
//! one a line. A connection may carry several requests, which are answered in order.
//!
//! | request | answer |
//! |---|---|
//! | `{"op":"stat"}` | the counters, as `--stats` writes them |
//! | `{"op":"set","key":"memory","value":"256M"}` | `{"ok":true}` |
//! | `{"op":"set","key":"swap+","value":"dir:/srv"}` | `{"ok":true,"change":7}`: the change has begun, as number 7 |
//! | `{"op":"change","id":7}` | `{"done":true}`, `{"done":false,"percent":42}`, or why it failed |
//! | `{"op":"attach","version":1}` | `{"ok":true,"version":1,"bytes":299008}`, and a descriptor: a policy is attached |
//! | `{"op":"translate","address":4096}` | `{"found":[{"root":…,"physical":…,"host":…,"bytes":4096}]}`: where a virtual machine's guest has this virtual address |
//! | anything else | `{"error":"…"}`, and the connection goes on |
//!
//! 1. Each line gets exactly one answer, in the order of the lines, however the bytes were cut on their way.
//! 2. An answer is one line that is a JSON object, whatever the request holds.
//! 3. A line that is longer than the limit gets an error, and is the last one that is read.
//! 4. The memory of a [`Conversation`] is bounded: the line limit, and the bytes that were taken at once since the last
//!    answer was asked for.

use crate::named::Named;
use crate::options::{POLICIES, PREFETCHERS};
use crate::pace::Knob;
use crate::size::Size;
use crate::slowdown::Slowdown;
use crate::stats::Stats;
use crate::swap::SwapSpec;
use farshore_core::canary::{Canary, is_planted};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Longest request, in bytes, without its end of line.
pub const LINE_LIMIT: usize = 64 * 1024;

/// The name of the (abstract) socket of a program, without the leading zero byte. `uid`: its effective user at the start.
pub fn socket_name(uid: u32, pid: u32) -> String {
    format!("farshore-{uid}-{pid}")
}

/// What the socket shows and changes.
pub trait Target: Sync {
    /// The counters now.
    fn stats(&self) -> Stats;
    /// Changes one setting; the error is a line for the user: what was wrong, with which value, and
    /// what to do.
    ///
    /// # Errors
    /// The key is unknown, or the value is refused.
    fn set(&self, key: &str, value: &str) -> Result<Set, String>;
    /// The state of a change that takes time.
    ///
    /// # Errors
    /// There is no change of this number, or it has failed: a line for the user.
    fn change(&self, id: u64) -> Result<Change, String>;
    /// A policy attaches, which speaks this version of the protocol.
    ///
    /// # Errors
    /// Why it cannot: a line for the user.
    fn attach(&self, version: u64) -> Result<Attachment, String> {
        Err(format!("attach version {version}: nothing can attach here"))
    }
    /// Where a virtual machine's guest has a virtual address, in each address space of it that is known.
    ///
    /// # Errors
    /// Why it cannot be told: a line for the user.
    fn translate(&self, address: u64) -> Result<Vec<Translated>, String> {
        Err(format!(
            "translate {address:#x}: this is no virtual machine whose page tables are looked at (farshore vm run --prefetch guest)"
        ))
    }
    /// The policy on this seat is gone.
    fn detach(&self, _seat: usize) {}
}

/// A policy that has attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// Which of those at a time.
    pub seat: usize,
    /// The version of the protocol.
    pub version: u64,
    /// The descriptor that goes to the policy. Whoever sends it closes it.
    pub descriptor: i32,
    /// Bytes of its file.
    pub bytes: u64,
}

/// Where one address space of a guest has a virtual address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Translated {
    /// The physical address of its first page table: what CR3 has.
    pub root: u64,
    /// The guest-physical address.
    pub physical: u64,
    /// The address in the virtual machine monitor's process; `null`: the guest has no memory at that physical address.
    pub host: Option<u64>,
    /// The size of the page that has it.
    pub bytes: u64,
}

/// The outcome of [`Target::set`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// The change is made.
    Done,
    /// The change has begun, under this number.
    Begun(u64),
}

/// How far a change is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The change is made.
    Done,
    /// This many per cent of it are done.
    UnderWay(u64),
}

/// What can be set while a program runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting {
    /// `memory`: the local memory.
    Memory(Size),
    /// `budget`: how large the budget is that this program shares with others.
    Budget(Size),
    /// `slowdown`: the local memory is chosen, so that no more than this is lost to faults; `None` for `off`.
    Slowdown(Option<Slowdown>),
    /// `swap+`: a swap space comes.
    AddSwap(SwapSpec),
    /// `swap-`: a swap space goes.
    RemoveSwap(SwapSpec),
    /// `evictors`, `batch`, `writes`: a number, or `None` for `auto`.
    Pace(Knob, Option<u32>),
    /// `policy`: which pages leave.
    Policy(Named),
    /// `prefetch`: which pages come unasked.
    Prefetch(Named),
}

impl Setting {
    /// Whether there is a setting of this name, whatever its value may be.
    pub fn is_known(key: &str) -> bool {
        ["memory", "budget", "slowdown", "swap+", "swap-", "policy", "prefetch"].contains(&key)
            || Knob::ALL.iter().any(|knob| knob.name() == key)
    }

    /// Reads `key=value`.
    ///
    /// # Errors
    /// There is no such key, or its value cannot be read: a line for the user.
    pub fn read(key: &str, value: &str) -> Result<Setting, String> {
        match key {
            "memory" => value.parse().map(Setting::Memory).map_err(|why| format!("memory={value}: {why}")),
            "budget" => value.parse().map(Setting::Budget).map_err(|why| format!("budget={value}: {why}")),
            "slowdown" if value == "off" => Ok(Setting::Slowdown(None)),
            "slowdown" => {
                value.parse().map(|it| Setting::Slowdown(Some(it))).map_err(|why| format!("slowdown={value}: {why}, or off"))
            }
            "swap+" => read_spec(key, value).map(Setting::AddSwap),
            "swap-" => read_spec(key, value).map(Setting::RemoveSwap),
            "policy" => read_name(key, value, "policy", POLICIES).map(Setting::Policy),
            "prefetch" => read_name(key, value, "prefetcher", PREFETCHERS).map(Setting::Prefetch),
            _ => match Knob::ALL.into_iter().find(|knob| knob.name() == key) {
                Some(knob) => knob.read(value).map(|number| Setting::Pace(knob, number)),
                None => Err(format!(
                    "{key}={value}: there is no setting {key:?}; there are memory=, slowdown=, budget=, swap+=, swap-=, policy=, prefetch=, evictors=, batch=, writes= and free="
                )),
            },
        }
    }
}

/// Reads a swap space that this version can use, with a path that means the same everywhere.
fn read_spec(key: &str, value: &str) -> Result<SwapSpec, String> {
    let spec: SwapSpec = value.parse().map_err(|why| format!("{key}={value}: {why}"))?;
    spec.check_supported().map_err(|why| format!("{key}={value}: {why}"))?;
    match &spec {
        SwapSpec::Dir(path) | SwapSpec::File { path, .. } | SwapSpec::Dev { path, .. } if !path.is_absolute() => Err(format!(
            "{key}={value}: '{}' is a relative path, and the program's directory may be another; give an absolute path",
            path.display()
        )),
        _ => Ok(spec),
    }
}

/// Reads one of the names that are built.
fn read_name(key: &str, value: &str, what: &'static str, known: &[(&str, &[&str])]) -> Result<Named, String> {
    let named: Named = value.parse().map_err(|why| format!("{key}={value}: {why}"))?;
    named.check(what, known).map_err(|why| format!("{key}={value}: {why}"))?;
    Ok(named)
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The counters. (With braces: a unit variant would let unknown fields pass.)
    Stat {},
    /// Change a setting.
    Set {
        /// Which.
        key: String,
        /// To what.
        value: String,
    },
    /// Ask for the state of a change.
    Change {
        /// Its number.
        id: u64,
    },
    /// Ask where a guest has a virtual address.
    Translate {
        /// The address.
        address: u64,
    },
    /// Attach a policy (`farshore-attach`).
    Attach {
        /// The version of the protocol.
        version: u64,
    },
}

impl Request {
    /// The request as a line, with its end.
    ///
    /// # Panics
    /// Never: strings always have a JSON form.
    pub fn to_line(&self) -> String {
        let mut text = serde_json::to_string(self).expect("strings have a JSON form");
        text.push('\n');
        text
    }

    /// Reads a request from a line without its end.
    fn read(line: &[u8]) -> Result<Request, String> {
        let bad = |why: &dyn std::fmt::Display| {
            format!(
                "bad request ({why}): send {{\"op\":\"stat\"}}, {{\"op\":\"set\",\"key\":…,\"value\":…}}, {{\"op\":\"change\",\"id\":…}}, \
                 {{\"op\":\"translate\",\"address\":…}} or {{\"op\":\"attach\",\"version\":…}}"
            )
        };
        // serde would take the members without their names, too: `["stat"]`.
        if !line.trim_ascii_start().starts_with(b"{") {
            return Err(bad(&"it is not a JSON object"));
        }
        let request = serde_json::from_slice(line).map_err(|error| bad(&error))?;
        if is_planted(Canary::Control) && line.iter().take_while(|byte| **byte == b'\t').count() == 3 {
            return Ok(Request::Stat {});
        }
        Ok(request)
    }
}

/// `{"error":why}` with its end of line.
pub fn error_line(why: &str) -> String {
    let mut text = serde_json::json!({ "error": why }).to_string();
    text.push('\n');
    text
}

/// The signal that asks a dormant program under Farshore to wake: `SIGURG`. Programs hardly use it, and a process without a
/// handler ignores it: if the program has become another one in the meantime, nothing happens.
pub const WAKER: u32 = 23;

/// One client's side of a connection: the bytes that it has sent and that are not answered yet.
#[derive(Debug)]
pub struct Conversation {
    input: VecDeque<u8>,
    limit: usize,
    ended: bool,
    attachment: Option<Attachment>,
}

impl Conversation {
    /// A connection on which nothing was sent yet. Lines of more than `limit` bytes are refused ([`LINE_LIMIT`] on the
    /// socket).
    pub const fn new(limit: usize) -> Conversation {
        Conversation { input: VecDeque::new(), limit, ended: false, attachment: None }
    }

    /// Takes bytes that have come. Call it when [`Conversation::answer`] has no further answer, so that little piles up.
    pub fn take(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.input.extend(bytes);
        }
    }

    /// The client sends no more. Requests that it has sent completely still get their answers.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Nothing more is read from the client: it has ended, or sent a line that is too long.
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// The attachment that this connection has: its descriptor goes with the answer that was given last, if that answer made it.
    pub const fn attachment(&self) -> Option<Attachment> {
        self.attachment
    }

    /// A policy attaches: one for each connection.
    fn attach(&mut self, target: &dyn Target, version: u64) -> String {
        if self.attachment.is_some() {
            return error_line("this connection has an attachment already: open another one");
        }
        match target.attach(version) {
            Ok(made) => {
                self.attachment = Some(made);
                format!("{{\"ok\":true,\"version\":{},\"bytes\":{}}}\n", made.version, made.bytes)
            }
            Err(why) => error_line(&why),
        }
    }

    /// The answer to the next complete request, with its end of line; `None` if there is none.
    pub fn answer(&mut self, target: &dyn Target) -> Option<String> {
        let end = self.input.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.input.len()) > self.limit {
            return Some(self.give_up());
        }
        let line: Vec<u8> = self.input.drain(..=end?).collect();
        Some(match Request::read(&line) {
            Ok(Request::Stat {}) => {
                let mut text = target.stats().to_json_line();
                text.push('\n');
                text
            }
            Ok(Request::Set { key, value }) => match target.set(&key, &value) {
                Ok(Set::Done) => "{\"ok\":true}\n".into(),
                Ok(Set::Begun(id)) => format!("{{\"ok\":true,\"change\":{id}}}\n"),
                Err(why) => error_line(&why),
            },
            Ok(Request::Change { id }) => match target.change(id) {
                Ok(Change::Done) => "{\"done\":true}\n".into(),
                Ok(Change::UnderWay(percent)) => format!("{{\"done\":false,\"percent\":{percent}}}\n"),
                Err(why) => error_line(&why),
            },
            Ok(Request::Translate { address }) => match target.translate(address) {
                Ok(found) => format!("{}\n", serde_json::json!({ "found": found })),
                Err(why) => error_line(&why),
            },
            Ok(Request::Attach { version }) => self.attach(target, version),
            Err(why) => error_line(&why),
        })
    }

    /// A line is too long: answers so, and reads no more.
    fn give_up(&mut self) -> String {
        self.input = VecDeque::new();
        self.ended = true;
        error_line(&format!("request longer than {} bytes: send one JSON object a line", self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Target for Nothing {
        fn stats(&self) -> Stats {
            Stats { pid: 7, ..Stats::default() }
        }
        fn set(&self, key: &str, value: &str) -> Result<Set, String> {
            Setting::read(key, value)
                .map(|setting| if matches!(setting, Setting::AddSwap(_)) { Set::Begun(7) } else { Set::Done })
        }
        fn attach(&self, version: u64) -> Result<Attachment, String> {
            if version == 1 { Ok(Attachment { seat: 3, version, descriptor: 9, bytes: 4096 }) } else { Err("which?".into()) }
        }
        fn change(&self, id: u64) -> Result<Change, String> {
            match id {
                7 => Ok(Change::UnderWay(42)),
                8 => Ok(Change::Done),
                _ => Err(format!("there is no change {id}")),
            }
        }
    }

    /// The answers to `bytes`, taken in pieces of `piece`.
    fn answers(bytes: &[u8], piece: usize) -> (Vec<String>, bool) {
        let mut talk = Conversation::new(100);
        let mut said = Vec::new();
        for part in bytes.chunks(piece) {
            talk.take(part);
            said.extend(std::iter::from_fn(|| talk.answer(&Nothing)));
        }
        (said, talk.ended())
    }

    #[test]
    fn each_line_gets_its_answer_however_it_was_cut() {
        let long = format!("{{\"op\":\"{}\"}}\n{{\"op\":\"stat\"}}\n", "x".repeat(100));
        let text = format!(
            "{}{}\n  \r\n{{\"op\":\"set\",\"key\":\"memroy\",\"value\":\"\"}}\nnonsense\n{long}",
            Request::Stat {}.to_line(),
            Request::Set { key: "memory".into(), value: "1G".into() }.to_line(),
        );
        for piece in [1, 7, 4096] {
            let (said, ended) = answers(text.as_bytes(), piece);
            assert_eq!(said.len(), 7, "{said:?}");
            assert!(said.iter().all(|line| line.ends_with('\n') && line.matches('\n').count() == 1));
            assert_eq!(Stats::from_json(&said[0]).map(|stats| stats.pid), Ok(7));
            assert_eq!(said[1], "{\"ok\":true}\n");
            for (line, part) in said[2..].iter().zip(["bad request", "bad request", "memroy", "bad request", "longer than 100"]) {
                assert!(line.starts_with("{\"error\":") && line.contains(part), "{line}");
            }
            assert!(ended, "what follows a line that is too long is not read");
        }
    }

    #[test]
    fn a_change_is_begun_and_asked_for() {
        let asked = [
            Request::Set { key: "swap+".into(), value: "dir:/srv".into() }.to_line(),
            Request::Change { id: 7 }.to_line(),
            Request::Change { id: 8 }.to_line(),
            Request::Change { id: 9 }.to_line(),
        ];
        let (said, _) = answers(asked.concat().as_bytes(), 4096);
        assert_eq!(said[..3], ["{\"ok\":true,\"change\":7}\n", "{\"done\":false,\"percent\":42}\n", "{\"done\":true}\n"]);
        assert!(said.len() == 4 && said[3].starts_with("{\"error\":"), "{said:?}");
    }

    #[test]
    fn swap_spaces_that_cannot_come_or_go_are_refused() {
        for (value, part) in [
            ("tape:/x", "tape:/x"),
            ("dir:srv", "absolute"),
            ("file:x,size=1G", "absolute"),
            ("rediss://a", "rediss://a"),
            ("", "\"\""),
        ] {
            for key in ["swap+", "swap-"] {
                let why = Setting::read(key, value).unwrap_err();
                assert!(why.starts_with(&format!("{key}={value}: ")) && why.contains(part) && !why.contains('\n'), "{why}");
            }
        }
        assert_eq!(Setting::read("swap-", "dir:/a b"), Ok(Setting::RemoveSwap(SwapSpec::Dir("/a b".into()))));
        assert!(Setting::read("swap", "dir:/x").unwrap_err().contains("swap+="));
    }

    #[test]
    fn a_value_that_is_refused_is_that_of_a_known_setting() {
        let keys =
            ["memory", "budget", "slowdown", "swap+", "swap-", "policy", "prefetch", "evictors", "batch", "writes", "free"];
        for key in keys {
            let why = Setting::read(key, "!").unwrap_err();
            assert!(Setting::is_known(key) && !why.contains("there is no setting"), "{why}");
        }
        for key in ["", "swap", "ahead", "Memory"] {
            assert!(!Setting::is_known(key) && Setting::read(key, "1").unwrap_err().contains("there is no setting"), "{key}");
        }
    }

    #[test]
    fn names_that_are_not_built_are_refused_with_those_that_are() {
        assert_eq!(Setting::read("policy", "fifo"), Ok(Setting::Policy(Named::new("fifo"))));
        assert_eq!(Setting::read("prefetch", "none"), Ok(Setting::Prefetch(Named::new("none"))));
        for (key, value, names) in [
            ("policy", "lru", "second-chance, fifo"),
            ("policy", "sequential", "second-chance, fifo"),
            ("prefetch", "oracle", "sequential, stride, majority, none"),
            ("policy", "", ""),
            ("prefetch", "none,depth=3", "depth"),
        ] {
            let why = Setting::read(key, value).unwrap_err();
            assert!(why.starts_with(&format!("{key}={value}: ")) && why.contains(names) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn only_what_the_table_says_is_a_request() {
        for line in [
            "{\"op\":\"change\"}",
            "{\"op\":\"change\",\"id\":\"7\"}",
            "{\"op\":\"change\",\"id\":-1}",
            "{\"op\":\"change\",\"id\":7,\"more\":1}",
            "{\"op\":\"stat\",\"more\":1}",
            "{\"op\":\"translate\"}",
            "{\"op\":\"translate\",\"address\":\"1000\"}",
            "{\"op\":\"attach\"}",
            "{\"op\":\"attach\",\"version\":-1}",
            "{\"op\":\"set\",\"key\":\"memory\"}",
            "{\"op\":\"set\",\"key\":\"memory\",\"value\":64}",
            "{\"op\":\"stat\"} {\"op\":\"stat\"}",
            "{}",
            "[\"stat\"]",
            "",
        ] {
            let (said, ended) = answers(format!("{line}\n").as_bytes(), 4096);
            assert!(said.len() == 1 && said[0].starts_with("{\"error\":") && !ended, "{line}: {said:?}");
        }
    }

    #[test]
    fn a_connection_attaches_once() {
        let mut talk = Conversation::new(100);
        for (version, said, attached) in [
            (2, "{\"error\":\"which?\"}\n", false),
            (1, "{\"ok\":true,\"version\":1,\"bytes\":4096}\n", true),
            (1, "{\"error\":\"this connection has an attachment already: open another one\"}\n", true),
        ] {
            talk.take(Request::Attach { version }.to_line().as_bytes());
            assert_eq!(talk.answer(&Nothing).as_deref(), Some(said));
            assert_eq!(talk.attachment().map(|made| made.seat), attached.then_some(3));
        }
    }

    #[test]
    fn an_address_is_translated_by_who_can() {
        struct Vm;
        impl Target for Vm {
            fn stats(&self) -> Stats {
                Stats::default()
            }
            fn set(&self, _: &str, _: &str) -> Result<Set, String> {
                Ok(Set::Done)
            }
            fn change(&self, _: u64) -> Result<Change, String> {
                Ok(Change::Done)
            }
            fn translate(&self, address: u64) -> Result<Vec<Translated>, String> {
                Ok(vec![Translated { root: 4096, physical: address + 1, host: None, bytes: 4096 }])
            }
        }
        let mut talk = Conversation::new(100);
        let line = Request::Translate { address: u64::MAX - 1 }.to_line();
        talk.take(line.as_bytes());
        let said = format!("{{\"found\":[{{\"bytes\":4096,\"host\":null,\"physical\":{},\"root\":4096}}]}}\n", u64::MAX);
        assert_eq!(talk.answer(&Vm), Some(said));
        talk.take(line.as_bytes());
        assert!(talk.answer(&Nothing).is_some_and(|answer| answer.contains("this is no virtual machine")));
    }

    #[test]
    fn an_unfinished_line_is_not_answered() {
        let mut talk = Conversation::new(100);
        talk.take(b"{\"op\":\"stat\"}");
        talk.end();
        assert_eq!(talk.answer(&Nothing), None);
        assert!(talk.ended());
    }
}
