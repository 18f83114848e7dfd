//! Meta commands: a key and flags, some with a token.

use super::line::{BAD_FORMAT, ERROR};
use super::number::{signed32, unsigned, unsigned32};
use super::{Body, Command, KEY_MAX, OPAQUE_MAX, Words, base64};

/// From so many words on there are too many flags.
const WORDS_MAX: usize = 20;
const DECODED_MAX: usize = 192;

/// A key, as it was written or decoded.
#[derive(Clone, Debug)]
pub enum Key<'a> {
    /// As it was written.
    Plain(&'a [u8]),
    /// Was written in base64.
    Binary {
        /// Room for the longest.
        bytes: [u8; DECODED_MAX],
        /// Bytes of it.
        length: usize,
    },
}

impl<'a> Key<'a> {
    fn decode(text: &[u8]) -> Option<Key<'a>> {
        let mut bytes = [0; DECODED_MAX];
        let length = base64::decode(text, &mut bytes);
        (length > 0).then_some(Key::Binary { bytes, length })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Key::Plain(bytes) => bytes,
            Key::Binary { bytes, length } => &bytes[..*length],
        }
    }

    /// It was written in base64.
    pub fn is_binary(&self) -> bool {
        matches!(self, Key::Binary { .. })
    }
}

/// A meta command.
#[derive(Clone, Debug)]
pub struct Meta<'a> {
    /// The key.
    pub key: Key<'a>,
    /// The flags in the order in which they came, each with its token.
    pub flags: Words<'a>,
    /// `q`: no answer that says nothing new.
    pub quiet: bool,
    /// `v`: with the value.
    pub value: bool,
    /// `u`: as if the item were not looked at.
    pub unseen: bool,
    /// `T`: when it shall expire.
    pub expires: Option<i32>,
    /// `N`: make the item if there is none, to expire then.
    pub vivify: Option<i32>,
    /// `R`: whoever comes first when it has less than this to live wins.
    pub recache: Option<i32>,
    /// `F`: the client's own bits.
    pub client_flags: u32,
    /// `C`: what must be there.
    pub cas: Option<u64>,
    /// `M`: the letter, or 0.
    pub mode: u8,
    /// `J`: the value of an item that is made.
    pub initial: u64,
    /// `D`: by how much.
    pub delta: u64,
    /// `I`: mark as stale.
    pub invalidate: bool,
}

impl<'a> Meta<'a> {
    fn new(key: &'a [u8], flags: Words<'a>) -> Meta<'a> {
        Meta {
            key: Key::Plain(key),
            flags,
            quiet: false,
            value: false,
            unseen: false,
            expires: None,
            vivify: None,
            recache: None,
            client_flags: 0,
            cas: None,
            mode: 0,
            initial: 0,
            delta: 1,
            invalidate: false,
        }
    }

    /// Reads the flags. A wrong token is told when all flags are known; an unknown or repeated flag at once.
    fn read(&mut self, key: &'a [u8]) -> Result<(), &'static str> {
        const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
        let mut seen = [false; 127];
        let (mut wrong, mut error) = (false, BAD_FORMAT);
        for flag in self.flags {
            let (letter, token) = (flag[0], &flag[1..]);
            match seen.get_mut(usize::from(letter)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err("CLIENT_ERROR duplicate flag"),
            }
            let mut time = |place: &mut Option<i32>| {
                *place = signed32(token);
                place.is_some() || {
                    error = BAD_TOKEN;
                    false
                }
            };
            let right = match letter {
                b'N' => time(&mut self.vivify),
                b'T' => time(&mut self.expires),
                b'R' => time(&mut self.recache),
                b'b' => match Key::decode(key) {
                    Some(key) => {
                        self.key = key;
                        true
                    }
                    None => {
                        error = "CLIENT_ERROR error decoding key";
                        false
                    }
                },
                b'F' => unsigned32(token).map(|flags| self.client_flags = flags).is_some(),
                b'C' => {
                    self.cas = unsigned(token);
                    if self.cas.is_none() {
                        error = BAD_TOKEN;
                    }
                    self.cas.is_some()
                }
                b'M' if token.len() == 1 => {
                    self.mode = token[0];
                    true
                }
                b'M' => {
                    error = "CLIENT_ERROR incorrect length for M token";
                    false
                }
                b'J' | b'D' => {
                    let place = if letter == b'J' { &mut self.initial } else { &mut self.delta };
                    let number = unsigned(token);
                    *place = number.unwrap_or_default();
                    if number.is_none() {
                        let initial = letter == b'J';
                        error = if initial {
                            "CLIENT_ERROR invalid numeric initial value"
                        } else {
                            "CLIENT_ERROR invalid numeric delta value"
                        };
                    }
                    number.is_some()
                }
                b'v' => set(&mut self.value),
                b'u' => set(&mut self.unseen),
                b'q' => set(&mut self.quiet),
                b'I' => set(&mut self.invalidate),
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => true,
                _ => return Err("CLIENT_ERROR invalid flag"),
            };
            wrong |= !right;
        }
        if wrong { Err(error) } else { Ok(()) }
    }

    fn opaque_fits(&self) -> Result<(), &'static str> {
        let fits = self.flags.clone().all(|flag| flag[0] != b'O' || flag.len() <= OPAQUE_MAX);
        if fits { Ok(()) } else { Err("CLIENT_ERROR opaque token too long") }
    }
}

fn set(flag: &mut bool) -> bool {
    *flag = true;
    true
}

fn refused<'a>(error: &'static str) -> (Command<'a>, Body) {
    (Command::Refused(error), Body::None)
}

/// Understands the arguments of the meta command with the name `m` and `letter`.
pub(super) fn parse<'a>(letter: u8, mut words: Words<'a>, all: &'a [u8]) -> (Command<'a>, Body) {
    let count = 1 + Words::new(all).take(WORDS_MAX + 4).count();
    let Some(key) = words.next() else { return refused(if letter == b'e' { BAD_FORMAT } else { ERROR }) };
    if key.len() > KEY_MAX {
        return refused(BAD_FORMAT);
    }
    match letter {
        b'e' => return debug(key, words),
        b's' if count == 2 => return refused(BAD_FORMAT),
        b'g' if count >= WORDS_MAX => return refused("CLIENT_ERROR options flags are too long"),
        _ if count >= WORDS_MAX => return refused("CLIENT_ERROR options flags too long"),
        _ => {}
    }
    if letter == b's' {
        return set_command(key, words);
    }
    let mut meta = Meta::new(key, words);
    if let Err(error) = meta.read(key) {
        return refused(if letter == b'g' { error } else { "CLIENT_ERROR invalid or duplicate flag" });
    }
    if letter == b'a' && !matches!(meta.mode, 0 | b'I' | b'+' | b'D' | b'-') {
        return refused("CLIENT_ERROR invalid mode for ma M token");
    }
    if let Err(error) = meta.opaque_fits() {
        return refused(error);
    }
    let command = match letter {
        b'g' => Command::MetaGet(meta),
        b'd' => Command::MetaDelete(meta),
        _ => Command::MetaArithmetic(meta),
    };
    (command, Body::None)
}

/// `ms`: once the length is known, the value is taken in whatever is wrong.
fn set_command<'a>(key: &'a [u8], mut words: Words<'a>) -> (Command<'a>, Body) {
    let length = words.next().and_then(signed32).and_then(|length| usize::try_from(length).ok());
    let Some(length) = length.filter(|length| *length <= i32::MAX as usize - 2) else { return refused(BAD_FORMAT) };
    let mut meta = Meta::new(key, words);
    let mode = |meta: &Meta<'_>| match meta.mode {
        0 | b'E' | b'A' | b'P' | b'R' | b'S' => Ok(()),
        _ => Err("CLIENT_ERROR invalid mode for ms M token"),
    };
    let checked = meta.read(key).and_then(|()| mode(&meta)).and_then(|()| meta.opaque_fits());
    match checked {
        Ok(()) => (Command::MetaSet(meta, length), Body::Value(length)),
        Err(error) => (Command::Refused(error), Body::Unwanted(length)),
    }
}

fn debug<'a>(key: &'a [u8], mut words: Words<'a>) -> (Command<'a>, Body) {
    let key = if words.next() == Some(b"b") { Key::decode(key) } else { Some(Key::Plain(key)) };
    key.map_or(refused(BAD_FORMAT), |key| (Command::MetaDebug(key), Body::None))
}
