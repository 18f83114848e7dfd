//! The bytes of the NBD protocol: what is sent, and what is made of the answers. No input or output here.
//!
//! Source: the protocol's [specification](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md), "fixed newstyle"
//! negotiation with `NBD_OPT_GO`, simple replies. Numbers are big-endian. What a server sends is checked against what the
//! protocol allows; anything else is [`Violation`], which ends the connection.

use farshore_config::EXPORT_MAX;
use rustix::io::Errno;

/// Bytes of a request, before the data of a write.
pub(super) const REQUEST: usize = 28;
/// Bytes of a reply, before the data of a read.
pub(super) const REPLY: usize = 16;
/// Bytes of the server's first words.
pub(super) const GREETING: usize = 18;
/// Bytes at the head of an answer to an option.
pub(super) const OPTION_REPLY: usize = 20;
/// The most bytes of our option: its head, the export's name, and what we want to know.
pub(super) const GO_MAX: usize = 16 + 4 + EXPORT_MAX + 2 + 2;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Flags of the server's greeting, which the client's answer repeats.
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPT_GO: u32 = 7;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
/// Set in the type of an answer that refuses.
const REP_ERROR: u32 = 1 << 31;

/// Flags of an export.
pub(super) const READ_ONLY: u16 = 1 << 1;
pub(super) const SEND_TRIM: u16 = 1 << 5;
pub(super) const MULTI_CONN: u16 = 1 << 8;

/// What is asked of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Trim = 4,
}

/// The server has sent what the protocol does not allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Violation;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// A request for `len` bytes from `offset` on. The server repeats `cookie`.
pub(super) fn request(command: Command, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..28].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// The head of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    pub(super) cookie: u64,
    /// Why the server did not do it.
    pub(super) result: Result<(), Errno>,
}

pub(super) fn reply(bytes: &[u8; REPLY]) -> Result<Reply, Violation> {
    if u32_at(bytes, 0) != REPLY_MAGIC {
        return Err(Violation);
    }
    Ok(Reply { cookie: u64_at(bytes, 8), result: error(u32_at(bytes, 4)) })
}

/// The protocol's errors have the numbers of Linux; one that it does not know counts as EINVAL, it says.
fn error(code: u32) -> Result<(), Errno> {
    Err(match code {
        0 => return Ok(()),
        1 => Errno::PERM,
        5 => Errno::IO,
        12 => Errno::NOMEM,
        28 => Errno::NOSPC,
        75 => Errno::OVERFLOW,
        95 => Errno::OPNOTSUPP,
        108 => Errno::SHUTDOWN,
        _ => Errno::INVAL,
    })
}

/// What we answer to the greeting.
pub(super) fn answer(greeting: &[u8; GREETING]) -> Result<[u8; 4], Violation> {
    let flags = u16_at(greeting, 16);
    if u64_at(greeting, 0) != GREETING_MAGIC || u64_at(greeting, 8) != OPTION_MAGIC || flags & FIXED_NEWSTYLE == 0 {
        return Err(Violation);
    }
    Ok(u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())
}

/// The option that asks for `export`, in front of `memory`. Returns its length.
///
/// # Panics
/// When the name is longer than [`EXPORT_MAX`], which no address allows.
pub(super) fn go(export: &[u8], memory: &mut [u8; GO_MAX]) -> usize {
    let data = 4 + export.len() + 2 + 2;
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&OPTION_MAGIC.to_be_bytes());
    put(&OPT_GO.to_be_bytes());
    put(&(data as u32).to_be_bytes());
    put(&(export.len() as u32).to_be_bytes());
    put(export);
    put(&1_u16.to_be_bytes());
    put(&INFO_BLOCK_SIZE.to_be_bytes());
    at
}

/// What an answer to our option is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OptionReply {
    /// Something about the export: so many bytes follow.
    Info(u32),
    /// The export is ours, and requests may be sent.
    Ready,
    /// The server refuses, for this reason of the protocol's; so many bytes of text follow.
    Refused(u32, u32),
}

pub(super) fn option_reply(head: &[u8; OPTION_REPLY]) -> Result<OptionReply, Violation> {
    if u64_at(head, 0) != OPTION_REPLY_MAGIC || u32_at(head, 8) != OPT_GO {
        return Err(Violation);
    }
    let (kind, len) = (u32_at(head, 12), u32_at(head, 16));
    match kind {
        REP_ACK if len == 0 => Ok(OptionReply::Ready),
        REP_INFO => Ok(OptionReply::Info(len)),
        kind if kind & REP_ERROR != 0 => Ok(OptionReply::Refused(kind & !REP_ERROR, len)),
        _ => Err(Violation),
    }
}

/// Why a server refuses, in words.
pub(super) fn refusal(reason: u32) -> &'static str {
    match reason {
        1 => "it does not know the option NBD_OPT_GO: its version is too old",
        2 => "its rules forbid it: it may want a token before the name of the export, or have no room for one more",
        3 => "it finds our request wrong",
        5 => "it wants TLS, which is not built yet",
        6 => "it has no export of that name: name another after the last /",
        7 => "it is shutting down",
        8 => "its blocks are larger than a page",
        _ => "it gives a reason that this version does not know",
    }
}

/// What is known of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct About {
    pub(super) bytes: u64,
    pub(super) flags: u16,
    /// The smallest block that the server reads and writes, in bytes; 0: it said nothing.
    pub(super) block: u32,
    /// The export's own line has come.
    pub(super) told: bool,
}

impl About {
    /// Takes what follows an [`OptionReply::Info`].
    pub(super) fn learn(&mut self, info: &[u8]) -> Result<(), Violation> {
        if info.len() < 2 {
            return Err(Violation);
        }
        match (u16_at(info, 0), info.len()) {
            (INFO_EXPORT, 12) => {
                (self.bytes, self.flags, self.told) = (u64_at(info, 2), u16_at(info, 10), true);
                Ok(())
            }
            (INFO_EXPORT, _) => Err(Violation),
            (INFO_BLOCK_SIZE, 14) => {
                self.block = u32_at(info, 2);
                Ok(())
            }
            (INFO_BLOCK_SIZE, _) => Err(Violation),
            // A server may tell more than it was asked for.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_the_specification_has_it() {
        let bytes = request(Command::Write, 0x0102_0304_0506_0708, 0x1000, 0x2000);
        assert_eq!(bytes[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0]);
    }

    #[test]
    fn replies_are_read_and_others_are_violations() {
        let mut bytes = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(reply(&bytes), Ok(Reply { cookie: 9, result: Err(Errno::NOSPC) }));
        bytes[7] = 0;
        assert_eq!(reply(&bytes), Ok(Reply { cookie: 9, result: Ok(()) }));
        bytes[4] = 0xff;
        assert_eq!(reply(&bytes).unwrap().result, Err(Errno::INVAL));
        bytes[0] = 0x66;
        assert_eq!(reply(&bytes), Err(Violation));
    }

    #[test]
    fn a_greeting_of_another_kind_is_a_violation() {
        let mut greeting = [0; GREETING];
        greeting[..16].copy_from_slice(b"NBDMAGICIHAVEOPT");
        greeting[17] = 3;
        assert_eq!(answer(&greeting), Ok([0, 0, 0, 3]));
        greeting[17] = 0xfd;
        assert_eq!(answer(&greeting), Ok([0, 0, 0, 1]), "we repeat what we know");
        greeting[17] = 2;
        assert_eq!(answer(&greeting), Err(Violation));
        greeting[..16].copy_from_slice(b"HTTP/1.1 400 Bad");
        assert_eq!(answer(&greeting), Err(Violation));
    }

    #[test]
    fn the_option_and_its_answers() {
        let mut memory = [0; GO_MAX];
        let len = go(b"ab", &mut memory);
        assert_eq!(&memory[..8], b"IHAVEOPT");
        assert_eq!(memory[8..len], [0, 0, 0, 7, 0, 0, 0, 10, 0, 0, 0, 2, b'a', b'b', 0, 1, 0, 3]);
        assert_eq!(go(&[b'x'; EXPORT_MAX], &mut memory), GO_MAX);

        let mut head = [0; OPTION_REPLY];
        head[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        head[11] = 7;
        head[15] = 1;
        assert_eq!(option_reply(&head), Ok(OptionReply::Ready));
        head[19] = 1;
        assert_eq!(option_reply(&head), Err(Violation), "an acknowledgement has no data");
        head[15] = 3;
        assert_eq!(option_reply(&head), Ok(OptionReply::Info(1)));
        (head[12], head[15]) = (0x80, 6);
        assert_eq!(option_reply(&head), Ok(OptionReply::Refused(6, 1)));
        head[11] = 1;
        assert_eq!(option_reply(&head), Err(Violation));
    }

    #[test]
    fn what_a_server_tells_of_an_export() {
        let mut about = About::default();
        about.learn(&[0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 1, 0x21]).unwrap();
        about.learn(&[0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]).unwrap();
        about.learn(&[0, 1, b'n']).unwrap();
        assert_eq!(about, About { bytes: 2 << 20, flags: 0x121, block: 512, told: true });
        for wrong in [&[0_u8][..], &[0, 0, 1], &[0, 3, 0, 0]] {
            assert_eq!(about.learn(wrong), Err(Violation), "{wrong:?}");
        }
    }
}
