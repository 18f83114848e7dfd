//! Commands to answers: one client's session, without input or output of its own.
//!
//! Bytes go in as they come and answers into a [`Replies`], which may wait for its peer in the midst of an answer: a value is copied piece by piece while
//! its item is pinned, so a client that does not read takes one buffer and one item, however much it asks for. A value that comes is written to its
//! item piece by piece likewise.

use std::io;

use super::meta::{self, MetaReply};
use super::protocol::{Command, Event, Mode, Parser, Store as StoreCommand, Words};
use super::reply::{Replies, Sink};
use super::server::Answers;
use super::stats;
use super::store::{Arithmetic, Changed, Clock, Commit, Count, Deleted, Draft, Item, NoRoom, Outcome, Store};
use crate::service::Connections;

/// The version that clients are told: that of the memcached whose answers these are.
pub const VERSION: &str = "1.6.18";

/// What all sessions share.
#[derive(Debug)]
pub struct Service {
    /// The items.
    pub store: Store,
    /// The time.
    pub clock: Clock,
    /// The longest `get`.
    pub line_max: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// Workers.
    pub workers: usize,
    /// Connections.
    pub connections: Connections,
    /// Answers over UDP.
    pub answers: Answers,
}

impl Service {
    /// Around these items; `answer_max` is the longest answer over UDP.
    pub fn new(store: Store, line_max: usize, connections_max: usize, workers: usize, answer_max: usize) -> Service {
        let answers = Answers::new(answer_max, store.memory());
        Service { store, clock: Clock::start(), line_max, connections_max, workers, connections: Connections::default(), answers }
    }
}

/// What becomes of the value that comes.
enum Pending<'s> {
    /// Nothing: it was refused.
    Nothing,
    /// It is stored.
    Store { draft: Draft<'s>, at: usize, how: Commit, answer: Answer },
}

enum Answer {
    Text { quiet: bool },
    Meta(MetaReply),
}

/// Whether a session goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It wants more bytes.
    More,
    /// It is over: the answers are sent, and the connection is closed.
    Close,
    /// As a datagram: what came is no command, and has no answer.
    Nonsense,
}

/// A client's session.
pub struct Session<'s> {
    service: &'s Service,
    parser: Parser,
    pending: Pending<'s>,
    /// Whether errors of whoever asks are answered.
    tells_errors: bool,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("parser", &self.parser).finish_non_exhaustive()
    }
}

impl<'s> Session<'s> {
    /// At its beginning.
    pub fn new(service: &'s Service) -> Session<'s> {
        Session { service, parser: Parser::new(service.line_max), pending: Pending::Nothing, tells_errors: true }
    }

    /// For one datagram. Its sender may be forged: what is no command ends it without an answer, as another server's answer would otherwise be answered,
    /// and that again. (No answer begins with a command: those are in small letters.)
    pub fn of_datagram(service: &'s Service) -> Session<'s> {
        Session { tells_errors: false, ..Session::new(service) }
    }

    /// Between two commands.
    pub fn is_between(&self) -> bool {
        self.parser.is_between()
    }

    /// Does what `input` says. How many bytes of it are used up: the rest must be there at the next call, before those that come.
    ///
    /// # Errors
    /// If no more answers can be sent.
    pub fn feed<S: Sink>(&mut self, input: &[u8], replies: &mut Replies<'_, S>) -> io::Result<(usize, Next)> {
        let mut used = 0;
        loop {
            let (bytes, event) = self.parser.next(&input[used..]);
            used += bytes;
            match event {
                Event::More => return Ok((used, Next::More)),
                Event::TooLong => return Ok((used, Next::Close)),
                Event::Command(Command::Quit) => return Ok((used, Next::Close)),
                Event::Command(Command::Refused(_)) if !self.tells_errors => return Ok((used, Next::Nonsense)),
                Event::Command(command) => self.command(command, replies)?,
                Event::Data(data) => {
                    if let Pending::Store { draft, at, .. } = &mut self.pending {
                        draft.write(*at, data);
                        *at += data.len();
                    }
                }
                Event::End { good } => self.end(good, replies)?,
            }
        }
    }

    fn command<S: Sink>(&mut self, command: Command<'_>, replies: &mut Replies<'_, S>) -> io::Result<()> {
        let now = self.service.clock.now();
        let store = &self.service.store;
        match command {
            Command::Get { keys, cas, touch } => self.get(keys, cas, touch, now, replies),
            Command::Store(command) => self.store(&command, now, replies),
            Command::MetaSet(meta, length) => {
                let key = meta.key.bytes();
                let (how, answer) = meta::commit(&meta, &self.service.clock, now);
                match store.draft(key, length, meta.client_flags) {
                    Ok(draft) => self.pending = Pending::Store { draft, at: 0, how, answer: Answer::Meta(answer) },
                    Err(error) => {
                        store.forget(key, now);
                        replies.line(no_room(error))?;
                    }
                }
                Ok(())
            }
            Command::Delete { key, quiet } => {
                let gone = store.delete(key, None, now) == Deleted::Gone;
                store.counters.add(if gone { Count::DeleteHits } else { Count::DeleteMisses });
                answer(quiet, if gone { "DELETED" } else { "NOT_FOUND" }, replies)
            }
            Command::Arithmetic { key, delta, up, quiet } => {
                let what = Arithmetic { up, delta, cas: 0, initial: None };
                let changed = store.calculate(key, what, now, |_, _| {});
                count_arithmetic(store, up, &changed);
                match changed {
                    Changed::Done(_) if quiet => Ok(()),
                    Changed::Done(change) => {
                        replies.put(change.value.bytes())?;
                        replies.put(b"\r\n")
                    }
                    Changed::Exists | Changed::NotFound => answer(quiet, "NOT_FOUND", replies),
                    Changed::NoNumber => answer(quiet, NO_NUMBER, replies),
                    Changed::NoRoom(_) => replies.line("SERVER_ERROR out of memory"),
                }
            }
            Command::Touch { key, expires, quiet } => {
                let touched = self.touch(key, self.service.clock.expires(expires, now), now).is_some();
                answer(quiet, if touched { "TOUCHED" } else { "NOT_FOUND" }, replies)
            }
            Command::Flush { delay, quiet } => {
                store.counters.add(Count::Flushes);
                store.flush(if delay > 0 { self.service.clock.expires(delay, now) } else { now }, now);
                answer(quiet, "OK", replies)
            }
            Command::Verbosity { quiet } => answer(quiet, "OK", replies),
            Command::Stats(words) => stats::answer(self.service, words, replies),
            Command::Version => {
                replies.put(b"VERSION ")?;
                replies.line(VERSION)
            }
            Command::MetaNothing => replies.line("MN"),
            Command::MetaGet(command) => meta::get(self.service, &command, now, replies),
            Command::MetaDelete(command) => meta::delete(self.service, &command, now, replies),
            Command::MetaArithmetic(command) => meta::arithmetic(self.service, &command, now, replies),
            Command::MetaDebug(key) => meta::debug(self.service, &key, now, replies),
            Command::Refused("") | Command::Quit => Ok(()),
            Command::Refused(error) => replies.line(error),
        }
    }

    fn get<S: Sink>(
        &self,
        keys: Words<'_>,
        cas: bool,
        touch: Option<i32>,
        now: u32,
        replies: &mut Replies<'_, S>,
    ) -> io::Result<()> {
        let store = &self.service.store;
        for key in keys {
            let item = match touch {
                Some(time) => self.touch(key, self.service.clock.expires(time, now), now),
                None => {
                    let found = store.find(key, now, true);
                    store.counters.add(Count::Gets);
                    match &found {
                        Ok(_) => store.counters.add(Count::GetHits),
                        Err(miss) => {
                            store.counters.add(Count::GetMisses);
                            miss.over.iter().for_each(|why| store.counters.add(*why));
                        }
                    }
                    found.ok()
                }
            };
            let Some(item) = item else { continue };
            replies.put(b"VALUE ")?;
            replies.put(key)?;
            replies.put(b" ")?;
            replies.number(item.flags().into())?;
            replies.put(b" ")?;
            replies.number(item.length() as u64)?;
            if cas {
                replies.put(b" ")?;
                replies.number(item.view.cas)?;
            }
            replies.put(b"\r\n")?;
            replies.fill(item.length(), |at, piece| item.read(at, piece))?;
            replies.put(b"\r\n")?;
        }
        replies.line("END")
    }

    fn touch(&self, key: &[u8], expires: u32, now: u32) -> Option<Item<'_>> {
        let store = &self.service.store;
        store.counters.add(Count::Touches);
        loop {
            let Ok(item) = store.find(key, now, true) else {
                store.counters.add(Count::TouchMisses);
                return None;
            };
            if store.edit(&item, |view| view.expires = expires).is_some() {
                store.counters.add(Count::TouchHits);
                return Some(item);
            }
        }
    }

    fn store<S: Sink>(&mut self, command: &StoreCommand<'_>, now: u32, replies: &mut Replies<'_, S>) -> io::Result<()> {
        let store = &self.service.store;
        let expires = self.service.clock.expires(command.expires, now);
        let how = Commit { mode: command.mode, cas: command.cas, expires, flags: 0, invalidate: false };
        self.pending = Pending::Nothing;
        match store.draft(command.key, command.length, command.flags) {
            Ok(draft) => {
                self.pending = Pending::Store { draft, at: 0, how, answer: Answer::Text { quiet: command.quiet } };
                Ok(())
            }
            Err(error) => {
                if command.mode == Mode::Set {
                    // What is there is not what the client believes.
                    store.forget(command.key, now);
                }
                answer(command.quiet && error == NoRoom::TooLarge, no_room(error), replies)
            }
        }
    }

    fn end<S: Sink>(&mut self, good: bool, replies: &mut Replies<'_, S>) -> io::Result<()> {
        let Pending::Store { draft, how, answer: to, .. } = std::mem::replace(&mut self.pending, Pending::Nothing) else {
            return Ok(());
        };
        if !good {
            let quiet = matches!(to, Answer::Text { quiet: true });
            return answer(quiet, "CLIENT_ERROR bad data chunk", replies);
        }
        let now = self.service.clock.now();
        match to {
            Answer::Text { quiet } => {
                let text = match self.service.store.commit(draft, how, now) {
                    Outcome::Stored(_) => "STORED",
                    Outcome::NotStored => "NOT_STORED",
                    Outcome::Exists => "EXISTS",
                    Outcome::NotFound => "NOT_FOUND",
                    Outcome::NoRoom(error) => no_room(error),
                };
                answer(quiet, text, replies)
            }
            Answer::Meta(reply) => reply.finish(&self.service.store, draft, how, now, replies),
        }
    }
}

/// What is no number.
pub(super) const NO_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

pub(super) fn no_room(error: NoRoom) -> &'static str {
    match error {
        NoRoom::TooLarge => "SERVER_ERROR object too large for cache",
        NoRoom::NoMemory => "SERVER_ERROR out of memory storing object",
    }
}

pub(super) fn count_arithmetic(store: &Store, up: bool, changed: &Changed) {
    let (hit, miss) = if up { (Count::IncrHits, Count::IncrMisses) } else { (Count::DecrHits, Count::DecrMisses) };
    match changed {
        Changed::Done(change) if !change.made => store.counters.add(hit),
        Changed::NotFound => store.counters.add(miss),
        _ => {}
    }
}

fn answer<S: Sink>(quiet: bool, text: &str, replies: &mut Replies<'_, S>) -> io::Result<()> {
    if quiet { Ok(()) } else { replies.line(text) }
}
