//! The bytes of the NBD protocol, the server's side. No input or output here.
//!
//! Source: the protocol's [specification](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md), "fixed newstyle"
//! negotiation, simple and structured replies. Numbers are big-endian.

/// Bytes of what a client answers to the greeting.
pub(crate) const ANSWER: usize = 4;
/// Bytes at the head of an option.
pub(crate) const OPTION: usize = 16;
/// Bytes of a request, before the data of a write.
pub(crate) const REQUEST: usize = 28;
/// The most bytes of an option's data that are read: a name of 4096 bytes, and what is asked about it.
pub(crate) const OPTION_MAX: usize = 8192;
/// The longest name of an export, in bytes (the protocol's limit).
pub(crate) const NAME_MAX: usize = 4096;
/// The most bytes that a request may read or write: what every client may count on without asking.
pub(crate) const PAYLOAD_MAX: u32 = 32 << 20;
/// The smallest and the best block, in bytes.
const BLOCK_MIN: u32 = 1;
const BLOCK_BEST: u32 = 4096;

const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Flags of the greeting and of the client's answer.
const FIXED_NEWSTYLE: u32 = 1;
const NO_ZEROES: u32 = 2;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_BLOCK_SIZE: u16 = 3;

/// The flags of each export: FLUSH and FUA (there is nothing to wait for), TRIM, WRITE_ZEROES (always fast), several
/// connections that see the same.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 11;
/// And with structured replies: reads in one piece. They always are.
const SEND_DF: u16 = 1 << 7;

/// Flags of requests.
pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 1 << 1;
pub(crate) const ONE_PIECE: u16 = 1 << 2;
pub(crate) const FAST_ZERO: u16 = 1 << 4;

/// Why a request is not done, with the protocol's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Error {
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
}

/// What an option is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Answer {
    Done = 1,
    Server = 2,
    Info = 3,
    Unsupported = 1 << 31 | 1,
    Policy = 1 << 31 | 2,
    Invalid = 1 << 31 | 3,
    TooBig = 1 << 31 | 9,
}

/// Options that are known.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
}

/// Requests that are known.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
}

/// A client has sent what ends its connection: what follows cannot be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

fn put(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// The server's first words.
pub(crate) fn greet(out: &mut Vec<u8>) {
    put(out, &[&GREETING_MAGIC.to_be_bytes(), &OPTION_MAGIC.to_be_bytes(), &((FIXED_NEWSTYLE | NO_ZEROES) as u16).to_be_bytes()]);
}

/// The client's answer: whether it wants no zeros after [`export`].
pub(crate) fn answer(bytes: &[u8; ANSWER]) -> Result<bool, Violation> {
    let flags = u32::from_be_bytes(*bytes);
    // A client of the old newstyle could not understand what an unknown option is answered with.
    if flags & !(FIXED_NEWSTYLE | NO_ZEROES) != 0 || flags & FIXED_NEWSTYLE == 0 {
        return Err(Violation);
    }
    Ok(flags & NO_ZEROES != 0)
}

/// The head of an option: which, and how many bytes of data follow.
pub(crate) fn option(head: &[u8; OPTION]) -> Result<(u32, u32), Violation> {
    if u64_at(head, 0) == OPTION_MAGIC { Ok((u32_at(head, 8), u32_at(head, 12))) } else { Err(Violation) }
}

/// Answers an option.
pub(crate) fn reply(out: &mut Vec<u8>, option: u32, answer: Answer, data: &[u8]) {
    let head = [option, answer as u32, data.len() as u32].map(u32::to_be_bytes);
    put(out, &[&OPTION_REPLY_MAGIC.to_be_bytes(), &head[0], &head[1], &head[2], data]);
}

/// One export of a list.
pub(crate) fn listed(out: &mut Vec<u8>, name: &[u8]) {
    let data = [&(name.len() as u32).to_be_bytes()[..], name].concat();
    reply(out, option::LIST, Answer::Server, &data);
}

fn flags(structured: bool) -> u16 {
    if structured { FLAGS | SEND_DF } else { FLAGS }
}

/// What INFO and GO tell of an export; its name too if it is asked for.
pub(crate) fn about(out: &mut Vec<u8>, option: u32, asked: &Asked<'_>, bytes: u64, structured: bool) {
    let data = [&INFO_EXPORT.to_be_bytes()[..], &bytes.to_be_bytes(), &flags(structured).to_be_bytes()].concat();
    reply(out, option, Answer::Info, &data);
    let blocks = [BLOCK_MIN, BLOCK_BEST, PAYLOAD_MAX].map(u32::to_be_bytes).concat();
    reply(out, option, Answer::Info, &[&INFO_BLOCK_SIZE.to_be_bytes()[..], &blocks].concat());
    if asked.with_name {
        reply(out, option, Answer::Info, &[&INFO_NAME.to_be_bytes()[..], asked.name].concat());
    }
}

/// What EXPORT_NAME is answered with.
pub(crate) fn export(out: &mut Vec<u8>, bytes: u64, structured: bool, no_zeroes: bool) {
    put(out, &[&bytes.to_be_bytes(), &flags(structured).to_be_bytes(), if no_zeroes { &[] } else { &[0; 124] }]);
}

/// What INFO and GO ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) name: &'a [u8],
    with_name: bool,
}

/// Reads the data of INFO and GO.
pub(crate) fn asked(data: &[u8]) -> Result<Asked<'_>, Answer> {
    if data.len() < 6 {
        return Err(Answer::Invalid);
    }
    let len = u32_at(data, 0) as usize;
    // Short as the option is, so is what it says of itself: no sum here goes over.
    if len > data.len() - 6 {
        return Err(Answer::Invalid);
    }
    let (name, rest) = data[4..].split_at(len);
    let count = usize::from(u16_at(rest, 0));
    if rest.len() != 2 + 2 * count {
        return Err(Answer::Invalid);
    }
    if len > NAME_MAX {
        return Err(Answer::TooBig);
    }
    Ok(Asked { name, with_name: (0..count).any(|n| u16_at(rest, 2 + 2 * n) == INFO_NAME) })
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// What its reply repeats.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

pub(crate) fn request(head: &[u8; REQUEST]) -> Result<Request, Violation> {
    if u32_at(head, 0) != REQUEST_MAGIC {
        return Err(Violation);
    }
    Ok(Request {
        flags: u16_at(head, 4),
        command: u16_at(head, 6),
        cookie: u64_at(head, 8),
        offset: u64_at(head, 16),
        len: u32_at(head, 24),
    })
}

/// A simple reply; the data of a read follow it.
pub(crate) fn simple(out: &mut Vec<u8>, cookie: u64, result: Result<(), Error>) {
    let error = result.err().map_or(0, |error| error as u32);
    put(out, &[&SIMPLE_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()]);
}

/// What a structured reply to a read is: one piece always.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// So many bytes follow, which lie at this offset.
    Data(u64, u32),
    /// There are so many zeros at this offset.
    Hole(u64, u32),
    Failed(Error),
}

pub(crate) fn structured(out: &mut Vec<u8>, cookie: u64, piece: Piece) {
    const DONE: u16 = 1;
    let (kind, len): (u16, u32) = match piece {
        // The length of a request is below PAYLOAD_MAX, so the sum does not go over.
        Piece::Data(_, len) => (1, 8 + len),
        Piece::Hole(..) => (2, 12),
        Piece::Failed(_) => (1 << 15 | 1, 6),
    };
    put(out, &[&CHUNK_MAGIC.to_be_bytes(), &DONE.to_be_bytes(), &kind.to_be_bytes(), &cookie.to_be_bytes(), &len.to_be_bytes()]);
    match piece {
        Piece::Data(offset, _) => put(out, &[&offset.to_be_bytes()]),
        Piece::Hole(offset, len) => put(out, &[&offset.to_be_bytes(), &len.to_be_bytes()]),
        // No text behind it.
        Piece::Failed(error) => put(out, &[&(error as u32).to_be_bytes(), &[0, 0]]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_and_its_answer() {
        let mut out = Vec::new();
        greet(&mut out);
        assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!((answer(&[0, 0, 0, 3]), answer(&[0, 0, 0, 1])), (Ok(true), Ok(false)));
        for wrong in [[0, 0, 0, 0], [0, 0, 0, 2], [0, 0, 0, 5], [1, 0, 0, 3]] {
            assert_eq!(answer(&wrong), Err(Violation), "{wrong:?}");
        }
    }

    #[test]
    fn what_go_asks_for() {
        assert_eq!(asked(b"\0\0\0\x02ab\0\0"), Ok(Asked { name: b"ab", with_name: false }));
        assert_eq!(asked(b"\0\0\0\0\0\x02\0\x03\0\x01"), Ok(Asked { name: b"", with_name: true }));
        for wrong in [&b""[..], b"\0\0\0\0\0", b"\0\0\0\x01\0\0", b"\xff\xff\xff\xff\0\0", b"\0\0\0\0\0\x01", b"\0\0\0\0\0\0\0"] {
            assert_eq!(asked(wrong), Err(Answer::Invalid), "{wrong:?}");
        }
        let long = [&4097_u32.to_be_bytes()[..], &[b'x'; 4097], &[0, 0]].concat();
        assert_eq!(asked(&long), Err(Answer::TooBig));
    }

    #[test]
    fn requests_and_replies_are_as_the_specification_has_them() {
        let mut head = [0; REQUEST];
        head[..8].copy_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6]);
        head[15] = 9;
        head[22] = 0x10;
        head[26] = 0x20;
        let read = request(&head).expect("it is one");
        assert_eq!(read, Request { flags: FUA, command: command::WRITE_ZEROES, cookie: 9, offset: 0x1000, len: 0x2000 });
        head[0] = 0;
        assert_eq!(request(&head), Err(Violation));

        let mut out = Vec::new();
        simple(&mut out, 9, Err(Error::NoSpace));
        assert_eq!(out, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9]);
        out.clear();
        structured(&mut out, 9, Piece::Hole(4096, 512));
        assert_eq!(out[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 2]);
        assert_eq!(out[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0]);
        out.clear();
        structured(&mut out, 9, Piece::Failed(Error::Overflow));
        assert_eq!(out[6..8], [0x80, 1]);
        assert_eq!(out[16..], [0, 0, 0, 6, 0, 0, 0, 75, 0, 0]);
    }
}
