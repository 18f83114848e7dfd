//! memcached's text protocol, without input or output: bytes in, commands out. Nothing is allocated, and commands borrow from the bytes.
//!
//! ```text
//!  bytes ─▶ Parser ─▶ Command          a line
//!                     Data, Data, End  the value of the storage command before them, as it comes
//! ```
//!
//! The [`Parser`] is told what has come and says how much of that it has used; the rest is shown to it again, with more behind it. What it makes of
//! a stream does not depend on how the stream is cut. The answers, and what of a wrong line is answered at all, are memcached 1.6.18's, which the
//! differential test asks. Known differences:
//!
//! - A line of more than [`LINE_MAX`] bytes that is no `get` or `gets` ends the connection wherever it is cut; memcached takes it if it comes in one
//!   piece. Those two may be as long as the server's own limit.
//! - A wrong key in a `get` of many does not take back the answers to commands before it.
//! - A byte 0 in a line is a byte like others.

pub mod base64;
mod line;
mod meta;
pub mod number;
pub mod udp;

pub use line::{Words, parse};
pub use meta::{Key, Meta};

/// The longest key.
pub const KEY_MAX: usize = 250;
/// The longest line that is no `get` or `gets`.
pub const LINE_MAX: usize = 2048;
/// The longest token that is copied back.
pub const OPAQUE_MAX: usize = 32;

/// What a storage command does with what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Stores.
    Set,
    /// Stores if there is nothing.
    Add,
    /// Stores if there is something.
    Replace,
    /// Puts the value behind what is there.
    Append,
    /// Puts the value in front of what is there.
    Prepend,
    /// Stores if what is there is still the same.
    Cas,
}

/// A storage command, whose value follows.
#[derive(Clone, Debug)]
pub struct Store<'a> {
    /// What it does with what is there.
    pub mode: Mode,
    /// The key.
    pub key: &'a [u8],
    /// The client's own bits.
    pub flags: u32,
    /// When it expires, as it was written.
    pub expires: i32,
    /// Bytes of the value.
    pub length: usize,
    /// What must be there for [`Mode::Cas`].
    pub cas: u64,
    /// Without an answer.
    pub quiet: bool,
}

/// A line, understood.
#[derive(Clone, Debug)]
pub enum Command<'a> {
    /// get, gets, gat, gats: the items of these keys.
    Get {
        /// At least one, none too long.
        keys: Words<'a>,
        /// With their unique numbers.
        cas: bool,
        /// They shall expire then.
        touch: Option<i32>,
    },
    /// set, add, replace, append, prepend, cas.
    Store(Store<'a>),
    /// delete.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Without an answer.
        quiet: bool,
    },
    /// incr, decr.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// By how much.
        delta: u64,
        /// incr.
        up: bool,
        /// Without an answer.
        quiet: bool,
    },
    /// touch.
    Touch {
        /// The key.
        key: &'a [u8],
        /// When it shall expire.
        expires: i32,
        /// Without an answer.
        quiet: bool,
    },
    /// flush_all.
    Flush {
        /// When.
        delay: i32,
        /// Without an answer.
        quiet: bool,
    },
    /// verbosity, which has no effect.
    Verbosity {
        /// Without an answer.
        quiet: bool,
    },
    /// stats.
    Stats(Words<'a>),
    /// version.
    Version,
    /// quit.
    Quit,
    /// mn.
    MetaNothing,
    /// mg.
    MetaGet(Meta<'a>),
    /// ms, and the bytes of its value.
    MetaSet(Meta<'a>, usize),
    /// md.
    MetaDelete(Meta<'a>),
    /// ma.
    MetaArithmetic(Meta<'a>),
    /// me.
    MetaDebug(Key<'a>),
    /// Not understood: the answer, unless the command wants none.
    Refused(&'static str),
}

/// What comes out of a [`Parser`]. A command is large where a decoded key is in it: it is on the stack for a moment.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant)]
pub enum Event<'a> {
    /// It needs more bytes.
    More,
    /// A line.
    Command(Command<'a>),
    /// Some bytes of the value of the storage command before.
    Data(&'a [u8]),
    /// The value is at its end, and what follows it is as it should be, or not.
    End {
        /// As it should be.
        good: bool,
    },
    /// The line is too long: nothing that follows can be understood.
    TooLong,
}

/// What comes behind a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// The next line.
    None,
    /// A value of so many bytes, and the end of a line.
    Value(usize),
    /// The same, which nobody wants.
    Unwanted(usize),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// In a line; so many bytes of it are known to have no end.
    Line(usize),
    /// So many bytes of a value are to come.
    Value(usize),
    /// So many of the two bytes behind a value have come, and were right.
    Behind(u8, bool),
    /// So many bytes are to be dropped.
    Drop(usize),
}

/// Makes commands of bytes.
#[derive(Clone, Debug)]
pub struct Parser {
    state: State,
    get_max: usize,
}

impl Parser {
    /// Of a stream at its beginning; a `get` may have `get_max` bytes.
    pub fn new(get_max: usize) -> Parser {
        Parser { state: State::Line(0), get_max: get_max.max(LINE_MAX) }
    }

    /// Between two commands: nothing has been begun.
    pub fn is_between(&self) -> bool {
        matches!(self.state, State::Line(0))
    }

    /// What comes next in `input`, and how many bytes of it are used up. The others must be there at the next call, before those that come.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> (usize, Event<'a>) {
        match self.state {
            State::Line(known) => self.line(input, known),
            State::Value(0) => {
                self.state = State::Behind(0, true);
                self.next(input)
            }
            _ if input.is_empty() => (0, Event::More),
            State::Value(left) => {
                let piece = &input[..left.min(input.len())];
                self.state = State::Value(left - piece.len());
                (piece.len(), Event::Data(piece))
            }
            State::Behind(have, good) => self.behind(input, have, good),
            State::Drop(left) => {
                let used = left.min(input.len());
                self.state = if used == left { State::Line(0) } else { State::Drop(left - used) };
                let (more, event) = self.next(&input[used..]);
                (used + more, event)
            }
        }
    }

    fn line<'a>(&mut self, input: &'a [u8], known: usize) -> (usize, Event<'a>) {
        let known = known.min(input.len());
        let end = input[known..].iter().position(|byte| *byte == b'\n').map(|at| known + at);
        let length = end.unwrap_or(input.len());
        if length > LINE_MAX && (length > self.get_max || !may_be_long(input)) {
            return (0, Event::TooLong);
        }
        let Some(end) = end else {
            self.state = State::Line(input.len());
            return (0, Event::More);
        };
        // As memcached: a line of `\r` alone keeps it.
        let length = if end > 1 && input[end - 1] == b'\r' { end - 1 } else { end };
        let (command, body) = parse(&input[..length]);
        self.state = match body {
            Body::None => State::Line(0),
            Body::Value(length) => State::Value(length),
            Body::Unwanted(length) => State::Drop(length.saturating_add(2)),
        };
        (end + 1, Event::Command(command))
    }

    fn behind<'a>(&mut self, input: &'a [u8], have: u8, good: bool) -> (usize, Event<'a>) {
        let (mut have, mut good, mut used) = (have, good, 0);
        for byte in input.iter().take(2 - usize::from(have)) {
            good &= *byte == b"\r\n"[usize::from(have)];
            have += 1;
            used += 1;
        }
        if have < 2 {
            self.state = State::Behind(have, good);
            return (used, Event::More);
        }
        self.state = State::Line(0);
        (used, Event::End { good })
    }
}

/// Whether a line is a `get` of many keys.
fn may_be_long(line: &[u8]) -> bool {
    let Some(spaces) = line.iter().take(101).position(|byte| *byte != b' ') else { return false };
    line[spaces..].starts_with(b"get ") || line[spaces..].starts_with(b"gets ")
}
