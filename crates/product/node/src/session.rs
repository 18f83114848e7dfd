//! One client's conversation: bytes come in, bytes go out. No input or output here, so that tests and the fuzzer can be clients.
//!
//! ```text
//!  greeting ─▶ Answer ─▶ Option ⇄ Data, Skip        negotiation, which the caller ends after a while
//!                          │ EXPORT_NAME, GO
//!                          ▼
//!                       Request ⇄ Read, Write, Zero  until the client ends it, or sends what is no request
//! ```
//!
//! What a session holds is bounded: [`Session::feed`] takes no more from its input than it can answer with about [`PIECE`]
//! bytes, and with [`WORK`], and goes on when these are sent and others have had their turn. A write goes to memory as its bytes come, a read is made as its bytes leave, and
//! neither is ever there as a whole.

use std::sync::Arc;

use crate::exports::{Entered, Exports, Refused};
use crate::wire::{self, Answer, Error, Piece, Request, Violation, command, option};
use farshore_core::canary::{Canary, is_planted};

/// Bytes of an answer that are made at a time. A session never has more than twice as many that wait to be sent.
pub const PIECE: usize = 256 << 10;
/// The most bytes that wait for more of them: an option, with its head.
pub const UNREAD_MAX: usize = wire::OPTION + wire::OPTION_MAX;
/// Bytes that are copied or made zeros at a time, about: a request of 28 bytes may ask for gigabytes of zeros.
pub const WORK: u64 = 1 << 20;
/// To look whether so many bytes are there costs as much as to copy one.
const LOOKED_AT: u64 = 64;
/// The two pages at the ends of a range of which only a part becomes zeros.
const ENDS: u64 = 2 * 4096;
/// The most bytes of a list of exports.
const LIST_MAX: usize = 64 << 10;

/// What a session wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// More bytes; what is left of those that it had belongs before them.
    Input,
    /// To be called again, when its answers so far are sent.
    Again,
    /// The same, after others have had their turn: it has done [`WORK`].
    Later,
    /// To be ended, when its answers are sent.
    End,
}

/// What clients have asked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Trims, and writes of zeros.
    pub trims: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Options that were refused because of their name: no token, or too many exports.
    pub refused: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.written_bytes += other.written_bytes;
        self.trims += other.trims;
        self.errors += other.errors;
        self.refused += other.refused;
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Waits for the answer to the greeting.
    Answer,
    /// Waits for an option's head.
    Option,
    /// Waits for an option's data.
    Data { option: u32, len: usize },
    /// Passes over data of an option that is too long.
    Skip { option: u32, left: u32 },
    /// Waits for a request's head.
    Request,
    /// Sends bytes.
    Read { offset: u64, left: u64 },
    /// Takes bytes; where it has failed, they go nowhere.
    Write { cookie: u64, offset: u64, left: u64, result: Result<(), Error> },
    /// Makes zeros.
    Zero { cookie: u64, offset: u64, left: u64, keep: bool },
}

/// A conversation.
#[derive(Debug)]
pub struct Session {
    state: State,
    exports: Arc<Exports>,
    entered: Option<Entered>,
    structured: bool,
    no_zeroes: bool,
    counts: Counts,
    /// Bytes of this turn, as [`WORK`] counts them.
    worked: u64,
}

/// The first `N` bytes of `input`, if there are as many.
fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*first)
}

/// The first `len` bytes.
fn cut<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = input.split_at(len);
    *input = rest;
    first
}

impl Session {
    /// A new one, which begins with what it puts into `out`.
    #[must_use]
    pub fn new(exports: Arc<Exports>, out: &mut Vec<u8>) -> Session {
        wire::greet(out);
        let (structured, no_zeroes) = (false, false);
        Session { state: State::Answer, exports, entered: None, structured, no_zeroes, counts: Counts::default(), worked: 0 }
    }

    /// Whether it has an export.
    #[must_use]
    pub fn is_in(&self) -> bool {
        self.entered.is_some()
    }

    /// What was asked for since the last call of this.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Takes bytes from the front of `input`, and appends answers to `out`.
    pub fn feed(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Next {
        self.worked = 0;
        loop {
            if out.len() >= PIECE {
                return Next::Again;
            }
            if self.worked >= WORK {
                return Next::Later;
            }
            match self.step(input, out) {
                Ok(None) => {}
                Ok(Some(next)) => return next,
                Err(Violation) => return Next::End,
            }
        }
    }

    fn step(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Option<Next>, Violation> {
        match self.state {
            State::Answer => {
                let Some(bytes) = take(input) else { return Ok(Some(Next::Input)) };
                self.no_zeroes = wire::answer(&bytes)?;
                self.state = State::Option;
            }
            State::Option => {
                let Some(head) = take(input) else { return Ok(Some(Next::Input)) };
                let (option, len) = wire::option(&head)?;
                self.state = match len as usize {
                    len @ 0..=wire::OPTION_MAX => State::Data { option, len },
                    // There is no way to refuse this one and go on.
                    _ if option == option::EXPORT_NAME => return Err(Violation),
                    _ => State::Skip { option, left: len },
                };
            }
            State::Data { option, len } => {
                if input.len() < len {
                    return Ok(Some(Next::Input));
                }
                self.state = State::Option;
                return self.negotiate(option, cut(input, len), out);
            }
            State::Skip { option, left } => {
                let count = (left as usize).min(input.len());
                cut(input, count);
                let left = left - count as u32;
                if left != 0 {
                    self.state = State::Skip { option, left };
                    return Ok(Some(Next::Input));
                }
                wire::reply(out, option, Answer::TooBig, b"no option is as long as this");
                self.state = State::Option;
            }
            State::Request => {
                let Some(head) = take(input) else { return Ok(Some(Next::Input)) };
                return Ok(self.begin(&wire::request(&head)?, out));
            }
            State::Read { offset, left } => {
                let len = left.min(PIECE as u64);
                self.worked += len;
                self.entered.as_ref().ok_or(Violation)?.space().read(offset, len, out);
                self.state = match left - len {
                    0 => State::Request,
                    left => State::Read { offset: offset + len, left },
                };
            }
            State::Write { cookie, offset, left, mut result } => {
                let count = left.min(input.len() as u64);
                if count == 0 {
                    return Ok(Some(Next::Input));
                }
                let bytes = cut(input, count as usize);
                self.worked += count;
                if result.is_ok() {
                    let space = self.entered.as_ref().ok_or(Violation)?.space();
                    result = space.write(offset, bytes).map_err(|_| Error::NoSpace);
                }
                self.state = State::Write { cookie, offset: offset.wrapping_add(count), left: left - count, result };
                if left == count {
                    self.finish(cookie, result, out);
                }
            }
            State::Zero { cookie, offset, left, keep } => {
                let len = left.min(WORK);
                // What goes as a whole costs the kernel little, but each part of a page is written.
                self.worked += if keep { len } else { len / LOOKED_AT + ENDS };
                let done = self.entered.as_ref().ok_or(Violation)?.space().zero(offset, len, keep);
                if done.is_err() || left == len {
                    self.finish(cookie, done.map_err(|_| Error::NoSpace), out);
                } else {
                    self.state = State::Zero { cookie, offset: offset + len, left: left - len, keep };
                }
            }
        }
        Ok(None)
    }

    /// An option, with all of its data.
    fn negotiate(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Option<Next>, Violation> {
        let mut reply = |answer, text: &str| wire::reply(out, option, answer, text.as_bytes());
        match option {
            option::EXPORT_NAME => {
                if data.len() > wire::NAME_MAX {
                    return Err(Violation);
                }
                self.enter(data).map_err(|_| Violation)?;
                wire::export(out, self.exports.rules().bytes, self.structured, self.no_zeroes);
            }
            option::ABORT => {
                reply(Answer::Done, "");
                return Ok(Some(Next::End));
            }
            option::LIST if !data.is_empty() => reply(Answer::Invalid, "a list is asked for without data"),
            option::LIST => match self.exports.names(LIST_MAX) {
                Some(Some(names)) => {
                    names.iter().for_each(|name| wire::listed(out, name));
                    wire::reply(out, option, Answer::Done, &[]);
                }
                Some(None) => reply(Answer::TooBig, "the names of all exports are too long for a list"),
                None => reply(Answer::Policy, "exports are not listed where names have tokens"),
            },
            option::STRUCTURED_REPLY if !data.is_empty() => reply(Answer::Invalid, "structured replies have no data"),
            option::STRUCTURED_REPLY => {
                self.structured = true;
                reply(Answer::Done, "");
            }
            option::INFO | option::GO => match wire::asked(data) {
                Err(answer) => reply(answer, "its lengths do not fit together, or the name has more than 4096 bytes"),
                Ok(asked) => {
                    let may = if option == option::GO { self.enter(asked.name) } else { self.exports.admit(asked.name) };
                    match may {
                        Ok(()) => {
                            wire::about(out, option, &asked, self.exports.rules().bytes, self.structured);
                            wire::reply(out, option, Answer::Done, &[]);
                        }
                        Err(why) => {
                            self.counts.refused += 1;
                            reply(Answer::Policy, told(why));
                        }
                    }
                }
            },
            _ => reply(Answer::Unsupported, "this option is not known here"),
        }
        Ok(None)
    }

    /// Takes an export, and waits for requests.
    fn enter(&mut self, name: &[u8]) -> Result<(), Refused> {
        self.entered = Some(self.exports.enter(name)?);
        self.state = State::Request;
        Ok(())
    }

    /// The reply to all requests but a read.
    fn finish(&mut self, cookie: u64, result: Result<(), Error>, out: &mut Vec<u8>) {
        self.counts.errors += u64::from(result.is_err());
        wire::simple(out, cookie, result);
        self.state = State::Request;
    }

    /// A request, of which the head is there.
    fn begin(&mut self, request: &Request, out: &mut Vec<u8>) -> Option<Next> {
        let &Request { flags, command, cookie, offset, len } = request;
        let space = self.entered.as_ref()?.space();
        let is_inside = space.has(offset, u64::from(len));
        let allowed = |known: u16| if flags & !known == 0 { Ok(()) } else { Err(Error::Invalid) };
        let some = if len == 0 { Err(Error::Invalid) } else { Ok(()) };
        let inside = |error| if is_inside { Ok(()) } else { Err(error) };
        let left = u64::from(len);
        if command == command::READ && self.structured {
            self.worked += left.min(wire::PAYLOAD_MAX.into()) / LOOKED_AT;
        }
        match command {
            command::READ => {
                let is_long = len > wire::PAYLOAD_MAX;
                let long = if flags & wire::ONE_PIECE == 0 { Error::Invalid } else { Error::Overflow };
                let known = if self.structured { wire::FUA | wire::ONE_PIECE } else { wire::FUA };
                let may = allowed(known).and(some).and(inside(Error::Invalid)).and(if is_long { Err(long) } else { Ok(()) });
                self.counts.reads += 1;
                match may {
                    Err(error) => {
                        self.counts.errors += 1;
                        match self.structured {
                            true => wire::structured(out, cookie, Piece::Failed(error)),
                            false => wire::simple(out, cookie, Err(error)),
                        }
                    }
                    Ok(()) if self.structured && space.is_hole(offset, left) => {
                        wire::structured(out, cookie, Piece::Hole(offset, len));
                    }
                    Ok(()) => {
                        self.counts.read_bytes += left;
                        match self.structured {
                            true => wire::structured(out, cookie, Piece::Data(offset, len)),
                            false => wire::simple(out, cookie, Ok(())),
                        }
                        self.state = State::Read { offset, left };
                    }
                }
            }
            command::WRITE => {
                let is_short = if len <= wire::PAYLOAD_MAX { Ok(()) } else { Err(Error::Invalid) };
                let result = allowed(wire::FUA).and(some).and(is_short).and(inside(Error::NoSpace));
                self.counts.writes += 1;
                self.counts.written_bytes += left;
                // The data of one that fails come all the same.
                match len {
                    0 => self.finish(cookie, result, out),
                    _ => self.state = State::Write { cookie, offset, left, result },
                }
            }
            command::TRIM | command::WRITE_ZEROES => {
                let (known, outside) = match command {
                    command::TRIM => (wire::FUA, Error::Invalid),
                    _ => (wire::FUA | wire::NO_HOLE | wire::FAST_ZERO, Error::NoSpace),
                };
                let wrong = is_planted(Canary::Node) && flags == wire::FUA && offset & 0xfff == 0x123;
                let keep = flags & wire::NO_HOLE != 0;
                self.counts.trims += 1;
                match allowed(known).and(some).and(inside(outside)) {
                    Ok(()) if !wrong => self.state = State::Zero { cookie, offset, left, keep },
                    result => self.finish(cookie, result, out),
                }
            }
            command::FLUSH => {
                // Nothing is ever under way here.
                let result = if offset == 0 && len == 0 { allowed(wire::FUA) } else { Err(Error::Invalid) };
                self.finish(cookie, result, out);
            }
            command::DISCONNECT => return Some(Next::End),
            _ => self.finish(cookie, Err(Error::Invalid), out),
        }
        None
    }
}

/// What a client is told whom the node refuses.
fn told(why: Refused) -> &'static str {
    match why {
        Refused::Stranger => "the name of the export has to begin with a token of this node: TOKEN/NAME",
        Refused::Many => {
            "this node has as many exports as it may have: wait until one has ended, or start it with more --exports"
        }
        Refused::Memory(_) => "this node has no memory for one more export",
    }
}
