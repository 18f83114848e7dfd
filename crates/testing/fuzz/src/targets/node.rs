//! What an NBD client sends to a memory node. In one form the bytes are the client's own: they do the same however they are
//! cut, and what waits to be sent is bounded. In the other they choose requests, compared with a plain array.

use crate::bytes::{Bits, Bytes};
use farshore_node::exports::{Exports, Rules};
use farshore_node::session::{Next, PIECE, Session, UNREAD_MAX};
use farshore_node::space::{Budget, Pages};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an export here: few pages, so that requests meet.
const SIZE: u64 = PAGES as u64 * PAGE;
const PAGES: usize = 10;
const PAGE: u64 = 4096;
/// Answers that one input may have, in bytes: reads of one byte of input have up to a megabyte.
const ANSWERS: usize = 4 << 20;

fn session(budget: u64, out: &mut Vec<u8>) -> Session {
    let rules = Rules { bytes: SIZE, most: 3, keep: Duration::ZERO, tokens: None, pages: Pages::Small };
    Session::new(Exports::new(rules, Arc::new(Budget::new(budget))), out)
}

/// Does what the input says, in one of two forms.
pub fn run(input: &[u8]) {
    match input.split_first() {
        Some((first, rest)) if first % 2 == 0 => cuts(usize::from(first / 2), rest),
        Some((first, rest)) => requests(*first, rest),
        None => {}
    }
}

/// Feeds all of `input`, in pieces of `cut` bytes; all answers, and whether the session has ended.
fn answers(input: &[u8], cut: usize) -> (Vec<u8>, bool) {
    // More than an export for each name: nothing is ever full here, where pieces would matter.
    let mut all = Vec::new();
    let mut session = session(64 * PAGES as u64, &mut all);
    let (mut out, mut kept) = (Vec::new(), Vec::new());
    for piece in input.chunks(cut) {
        kept.extend_from_slice(piece);
        loop {
            let mut rest = &kept[..];
            let next = session.feed(&mut rest, &mut out);
            let used = kept.len() - rest.len();
            kept.drain(..used);
            assert!(out.len() <= 2 * PIECE, "{} bytes wait to be sent", out.len());
            all.append(&mut out);
            if all.len() > ANSWERS {
                return (all, false);
            }
            match next {
                Next::Again | Next::Later => {}
                Next::Input => break,
                Next::End => return (all, true),
            }
        }
        assert!(kept.len() < UNREAD_MAX, "{} bytes wait for more", kept.len());
    }
    (all, false)
}

/// However the bytes come, the answers are the same.
fn cuts(cut: usize, input: &[u8]) {
    let (whole, ended) = answers(input, input.len().max(1));
    let (parts, parts_ended) = answers(input, cut + 1);
    let len = whole.len().min(ANSWERS);
    assert!(whole[..len] == parts[..parts.len().min(ANSWERS)], "other answers in pieces of {} bytes", cut + 1);
    assert!(whole.len() > ANSWERS || ended == parts_ended);
}

/// An export, as it ought to be.
struct Model {
    bytes: Vec<u8>,
    there: [bool; PAGES],
    /// Pages that may be there.
    most: usize,
}

const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

impl Model {
    /// The error of a request without data, or of a write.
    fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: Option<u8>) -> u32 {
        let known = match command {
            6 => 1 | 2 | 16,
            0 | 1 | 3 | 4 => 1,
            _ => return EINVAL,
        };
        if flags & !known != 0 {
            return EINVAL;
        }
        if command == 3 {
            return if (offset, len) == (0, 0) { 0 } else { EINVAL };
        }
        if len == 0 {
            return EINVAL;
        }
        let Some(end) = offset.checked_add(u64::from(len)).filter(|&end| end <= SIZE) else {
            return if matches!(command, 1 | 6) { ENOSPC } else { EINVAL };
        };
        let (first, last) = ((offset / PAGE) as usize, end.div_ceil(PAGE) as usize);
        let range = offset as usize..end as usize;
        if command == 1 || (command == 6 && flags & 2 != 0) {
            let have = self.there.iter().filter(|&&is| is).count();
            let new = self.there[first..last].iter().filter(|&&is| !is).count();
            if have + new > self.most {
                return ENOSPC;
            }
            self.there[first..last].fill(true);
            self.bytes[range].fill(data.unwrap_or(0));
        } else if command == 4 || command == 6 {
            self.bytes[range].fill(0);
            for page in first..last {
                if page as u64 * PAGE >= offset && (page as u64 + 1) * PAGE <= end {
                    self.there[page] = false;
                }
            }
        }
        0
    }
}

/// Requests by the input's choice, each compared with the model.
fn requests(first: u8, input: &[u8]) {
    let most = usize::from(first / 2) % (PAGES + 1);
    let mut model = Model { bytes: vec![0; SIZE as usize], there: [false; PAGES], most };
    let mut out = Vec::new();
    let mut session = session(most as u64, &mut out);
    let mut hello = &b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01a"[..];
    assert_eq!(session.feed(&mut hello, &mut out), Next::Input);
    let mut bytes = Bytes(input);
    let mut cookie = 0_u64;
    while let Some(byte) = bytes.byte() {
        let mut bits = Bits(byte);
        let command = [0, 1, 1, 4, 6, 6, 3, 5][usize::from(byte >> 5)];
        // FUA, no hole, one that is not known.
        let flags: u16 = bits.of([0, 1, 2, 3]) | if bits.bit() && bits.bit() { 8 } else { 0 };
        let mut number = || u64::from(bytes.byte().unwrap_or(0)) << 8 | u64::from(bytes.byte().unwrap_or(0));
        let (offset, len) = (number(), number() as u32 % 20_000);
        let offset = if bits.bit() { offset.wrapping_sub(300) } else { offset };
        let fill = bytes.byte().unwrap_or(1);
        cookie += 1;
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([&flags.to_be_bytes()[..], &u16::to_be_bytes(command), &cookie.to_be_bytes()].concat());
        request.extend([&offset.to_be_bytes()[..], &len.to_be_bytes()].concat());
        if command == 1 {
            request.resize(request.len() + len as usize, fill);
        }
        out.clear();
        let mut rest = &request[..];
        while matches!(session.feed(&mut rest, &mut out), Next::Again | Next::Later) {}
        assert!(rest.is_empty(), "a request is taken as a whole");
        let error = model.ask(command, flags, offset, len, (command == 1).then_some(fill));
        let mut expected = 0x6744_6698_u32.to_be_bytes().to_vec();
        expected.extend([&error.to_be_bytes()[..], &cookie.to_be_bytes()].concat());
        if command == 0 && error == 0 {
            expected.extend_from_slice(&model.bytes[offset as usize..][..len as usize]);
        }
        assert!(
            out == expected,
            "command {command}, flags {flags}, {len} bytes at {offset}: not as it ought to be (error {error})"
        );
    }
    // And all of it at the end, whatever was asked.
    let request = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 4], &[0; 16], &(SIZE as u32).to_be_bytes()].concat();
    out.clear();
    let mut rest = &request[..];
    while matches!(session.feed(&mut rest, &mut out), Next::Again | Next::Later) {}
    assert!(out[16..] == model.bytes, "the bytes are not as they ought to be");
}
