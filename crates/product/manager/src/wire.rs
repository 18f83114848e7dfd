//! What a client sends and hears, as bytes: no socket, no memory.
//!
//! Cloud Hypervisor has two proposals for how a virtual machine monitor hands its memory over. They are told apart by their first bytes:
//!
//! | form | request | answer |
//! |---|---|---|
//! | [`Form::Json`] | a length (`u32`, little endian) and so many bytes of JSON, which begin with `{` | one byte |
//! | [`Form::Binary`] | a header of 16 bytes, whose first two are a command, and so many bytes as its last eight say | a header of 16 bytes |
//! | [`Form::Firecracker`] | a list of JSON without a length, which begins with `[` | none |
//!
//! The third is Firecracker's, of a snapshot that is restored: its memory is to be filled ([`Request::Restore`]), by what [`crate::restore`] does.
//!
//! The first request hands memory over, with its userfaultfd as the first descriptor that comes along; files of the memory may follow. Later ones
//! add regions, or (in the binary form) take some away. A request that is refused gets no answer: the connection ends.
//!
//! Nothing that comes is believed: lengths are bounded before anything is kept, and numbers are checked by `crate::regions`.

use serde::Deserialize;

/// The most bytes of one request.
pub const REQUEST_MAX: usize = 1 << 20;
/// Bytes of a header of [`Form::Binary`].
const HEADER: usize = 16;
/// Bytes of a region there.
const REGION: usize = 48;
/// Commands there.
const HANDSHAKE: u16 = 0x0a;
const ADD_REGION: u16 = 0x0b;
const REMOVE_REGION: u16 = 0x0c;
/// The version that is known, of the JSON and of the binary form.
const JSON_VERSION: u64 = 0;
const BINARY_VERSION: u16 = 1;
/// Flags of a handshake: faults are ours to serve; each request wants an answer; files of the regions come along.
const MANAGED: u8 = 1;
const ACK_REQUIRED: u8 = 4;
const BACKING_FDS: u8 = 8;
/// Modes of a handshake.
const MODE_WP_ASYNC: u8 = 4;
const NOT_ASYNC: &str =
    "with WP_ASYNC nobody hears of writes to pages that are about to leave: hand the memory over with mode MISSING|WP";
/// The status of an answer: done. The type that follows it is 0: nothing but that.
const DONE: u16 = 1;

/// In which form a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Frames of JSON (pull request 8657 of Cloud Hypervisor).
    Json,
    /// Binary headers (pull request 8664).
    Binary,
    /// A bare list of JSON (`GuestRegionUffdMapping` of Firecracker).
    Firecracker,
}

/// A part of the client's memory, as the client tells it. Nothing of it is known to be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// Where it is in the client's address space.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
}

/// A part of memory that is to be filled from a snapshot, as the client tells it: [`Handed::offset`] is in the snapshot's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Where it is, and where its bytes are.
    pub memory: Handed,
    /// Bytes of its pages.
    pub page: u64,
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Manage this memory.
    HandOver(Vec<Handed>),
    /// Fill this memory as it is touched.
    Restore(Vec<Restored>),
    /// And this.
    Add(Handed),
    /// And this no more, which goes.
    Remove {
        /// Where it is in the client's address space.
        address: u64,
        /// Bytes.
        bytes: u64,
    },
}

/// Whether a request is all there.
#[derive(PartialEq, Eq, Debug)]
pub enum Read {
    /// More bytes must come.
    More,
    /// A request, its form, how many bytes it took, and whether an answer is wanted.
    All(Request, Form, usize, bool),
}

/// Reads the request that `input` begins with.
///
/// # Errors
/// One line: why this is none.
pub fn read(input: &[u8]) -> Result<Read, String> {
    match input {
        // The length of a frame may begin with any byte, so what stands behind it is looked at first.
        [_, _, _, _, b'{', ..] => read_json(input),
        [b'[', _, _, _, _, ..] => read_list(input),
        [a, b, _, _, _, ..] if [HANDSHAKE, ADD_REGION, REMOVE_REGION].contains(&u16::from_le_bytes([*a, *b])) => {
            read_binary(input)
        }
        [_, _, _, _, _, ..] => {
            Err("its first bytes are of no protocol that is known: neither Cloud Hypervisor's JSON nor its binary form".into())
        }
        _ => Ok(Read::More),
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame {
    Handoff { version: u64, mode: String, regions: Vec<JsonRegion> },
    AddRegion { region: JsonRegion },
}

#[derive(Deserialize)]
struct JsonRegion {
    host_virt_addr: u64,
    size: u64,
    backing_file_offset: u64,
}

impl From<JsonRegion> for Handed {
    fn from(region: JsonRegion) -> Handed {
        Handed { address: region.host_virt_addr, bytes: region.size, offset: region.backing_file_offset }
    }
}

fn read_json(input: &[u8]) -> Result<Read, String> {
    let Some((length, rest)) = input.split_first_chunk::<4>() else { return Ok(Read::More) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > REQUEST_MAX {
        return Err(format!("a request of {length} bytes is too long: at most {REQUEST_MAX}"));
    }
    let Some(text) = rest.get(..length) else { return Ok(Read::More) };
    let frame = serde_json::from_slice(text).map_err(|why| format!("its request cannot be read ({why})"))?;
    let request = match frame {
        Frame::Handoff { version, .. } if version != JSON_VERSION => {
            return Err(format!("version {version} of the protocol is not known: {JSON_VERSION} is"));
        }
        Frame::Handoff { mode, regions, .. } => {
            check_mode(&mode)?;
            Request::HandOver(regions.into_iter().map(Handed::from).collect())
        }
        Frame::AddRegion { region } => Request::Add(region.into()),
    };
    Ok(Read::All(request, Form::Json, 4 + length, true))
}

#[derive(Deserialize)]
struct ListedRegion {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    /// Bytes, as the next one, which goes in version 2.
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

fn read_list(input: &[u8]) -> Result<Read, String> {
    if input.len() > REQUEST_MAX {
        return Err(format!("a request of {} bytes is too long: at most {REQUEST_MAX}", input.len()));
    }
    let mut all = serde_json::Deserializer::from_slice(input).into_iter::<Vec<ListedRegion>>();
    let list = match all.next() {
        Some(Ok(list)) => list,
        Some(Err(why)) if !why.is_eof() => {
            return Err(format!("it speaks Firecracker's protocol, and its request cannot be read ({why})"));
        }
        _ => return Ok(Read::More),
    };
    let region = |it: ListedRegion| {
        let memory = Handed { address: it.base_host_virt_addr, bytes: it.size, offset: it.offset };
        match it.page_size.or(it.page_size_kib) {
            Some(page) => Ok(Restored { memory, page }),
            None => Err(format!("{memory}: the size of its pages is missing (page_size)")),
        }
    };
    let regions = list.into_iter().map(region).collect::<Result<_, _>>()?;
    Ok(Read::All(Request::Restore(regions), Form::Firecracker, all.byte_offset(), false))
}

/// What the memory is registered for is ours to say, but for one: whether writes to protected pages tell anybody cannot be changed later.
fn check_mode(mode: &str) -> Result<(), String> {
    for word in mode.split('|') {
        match word {
            "MISSING" | "WP" | "WP_UNPOPULATED" => {}
            "WP_ASYNC" => return Err(NOT_ASYNC.into()),
            other => return Err(format!("the mode {other:?} is not known: hand the memory over with mode MISSING|WP")),
        }
    }
    Ok(())
}

fn read_binary(input: &[u8]) -> Result<Read, String> {
    let Some((head, rest)) = input.split_first_chunk::<HEADER>() else { return Ok(Read::More) };
    let [c0, c1, v0, v1, flags, modes, r0, r1, length @ ..] = *head;
    let (command, length) = (u16::from_le_bytes([c0, c1]), u64::from_le_bytes(length));
    let Some(length) = usize::try_from(length).ok().filter(|length| *length <= REQUEST_MAX) else {
        return Err(format!("a request of {length} bytes is too long: at most {REQUEST_MAX}"));
    };
    let Some(body) = rest.get(..length) else { return Ok(Read::More) };
    let taken = HEADER + length;
    let regions = || {
        if length % REGION == 0 {
            return Ok(body.chunks_exact(REGION).map(binary_region).collect::<Vec<_>>());
        }
        Err(format!("{length} bytes are no whole number of regions, of {REGION} bytes each"))
    };
    match command {
        HANDSHAKE => {
            let (version, count) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([r0, r1]));
            if version != BINARY_VERSION {
                return Err(format!("version {version} of the protocol is not known: {BINARY_VERSION} is"));
            }
            if flags & !(MANAGED | ACK_REQUIRED | BACKING_FDS) != 0 {
                return Err(format!(
                    "the flags {flags:#x} of its handshake are not known: {MANAGED}, {ACK_REQUIRED} and {BACKING_FDS} are"
                ));
            }
            if flags & MANAGED == 0 {
                return Err(format!("it wants to fill its memory itself (flags {flags:#x}): a manager needs flag {MANAGED}"));
            }
            if modes & MODE_WP_ASYNC != 0 {
                return Err(NOT_ASYNC.into());
            }
            let regions = regions()?;
            if regions.len() != usize::from(count) {
                return Err(format!("its handshake says {count} regions, and has {}", regions.len()));
            }
            Ok(Read::All(Request::HandOver(regions), Form::Binary, taken, flags & ACK_REQUIRED != 0))
        }
        ADD_REGION => match regions()?[..] {
            [region] => Ok(Read::All(Request::Add(region), Form::Binary, taken, true)),
            ref other => Err(format!("a request adds one region, not {}", other.len())),
        },
        _ if length == 16 => {
            let request = Request::Remove { address: number(body, 0), bytes: number(body, 8) };
            Ok(Read::All(request, Form::Binary, taken, true))
        }
        _ => Err(format!("a request that takes a region away has 16 bytes behind its header, not {length}")),
    }
}

/// The number at a place, of 8 bytes.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn binary_region(bytes: &[u8]) -> Handed {
    // Address, size, offset in the device, size of a fault, protection and flags, offset in the file.
    Handed { address: number(bytes, 0), bytes: number(bytes, 8), offset: number(bytes, 40) }
}

impl Form {
    /// The answer to a request that was done.
    #[must_use]
    pub fn done(self) -> Vec<u8> {
        match self {
            Form::Json => vec![1],
            Form::Firecracker => Vec::new(),
            Form::Binary => {
                let mut answer = vec![0; HEADER];
                answer[..2].copy_from_slice(&DONE.to_le_bytes());
                answer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn header(command: u16, middle: [u8; 6], length: u64) -> Vec<u8> {
        [&command.to_le_bytes()[..], &middle, &length.to_le_bytes()].concat()
    }

    fn region(numbers: [u64; 6]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    const HANDOFF: &str = r#"{"type":"handoff","version":0,"vmm_pid":7,"mode":"MISSING|WP","regions":[
        {"guest_phys_addr":0,"host_virt_addr":140000000000000,"size":4096,"backing_file_offset":8192,"new":"x"}]}"#;
    const HANDED: Handed = Handed { address: 140_000_000_000_000, bytes: 4096, offset: 8192 };

    #[test]
    fn both_forms_say_the_same() {
        let text = json(HANDOFF);
        assert_eq!(read(&text), Ok(Read::All(Request::HandOver(vec![HANDED]), Form::Json, text.len(), true)));
        let body = region([HANDED.address, HANDED.bytes, 77, 4096, 0, HANDED.offset]);
        let shake = [header(HANDSHAKE, [1, 0, MANAGED | ACK_REQUIRED, 3, 1, 0], 48), body.clone()].concat();
        assert_eq!(read(&shake), Ok(Read::All(Request::HandOver(vec![HANDED]), Form::Binary, 64, true)));
        let add =
            json(r#"{"type":"add_region","region":{"host_virt_addr":140000000000000,"size":4096,"backing_file_offset":8192}}"#);
        assert_eq!(read(&add), Ok(Read::All(Request::Add(HANDED), Form::Json, add.len(), true)));
        let add = [header(ADD_REGION, [0; 6], 48), body].concat();
        assert_eq!(read(&add), Ok(Read::All(Request::Add(HANDED), Form::Binary, 64, true)));
        let remove =
            [header(REMOVE_REGION, [0; 6], 16), HANDED.address.to_le_bytes().into(), HANDED.bytes.to_le_bytes().into()].concat();
        let removed = Request::Remove { address: HANDED.address, bytes: HANDED.bytes };
        assert_eq!(read(&remove), Ok(Read::All(removed, Form::Binary, 32, true)));
        assert_eq!((Form::Json.done().len(), Form::Binary.done()[..4] == [1, 0, 0, 0], Form::Binary.done().len()), (1, true, 16));
    }

    /// As Firecracker 1.13 sends it.
    const LIST: &str = r#"[{"base_host_virt_addr":140000000000000,"size":8192,"offset":0,"page_size":4096,"page_size_kib":4096},
        {"base_host_virt_addr":150000000000000,"size":4194304,"offset":8192,"page_size":2097152,"page_size_kib":2097152}]"#;

    #[test]
    fn a_list_is_memory_that_is_to_be_filled() {
        let region = |address, bytes, offset, page| Restored { memory: Handed { address, bytes, offset }, page };
        let all = vec![region(140_000_000_000_000, 8192, 0, 4096), region(150_000_000_000_000, 4 << 20, 8192, 2 << 20)];
        assert_eq!(read(LIST.as_bytes()), Ok(Read::All(Request::Restore(all), Form::Firecracker, LIST.len(), false)));
        for end in 0..LIST.len() {
            assert_eq!(read(&LIST.as_bytes()[..end]), Ok(Read::More), "{end}");
        }
        let next =
            LIST.replace("\"page_size\":4096,\"page_size_kib\"", "\"page_size\"").replace(",\"page_size_kib\":2097152", "");
        assert!(
            matches!(read(next.as_bytes()), Ok(Read::All(Request::Restore(all), ..)) if all[0].page == 4096 && all[1].page == 2 << 20)
        );
    }

    #[test]
    fn a_request_comes_in_pieces_and_the_next_one_behind_it() {
        let handshake = [header(HANDSHAKE, [1, 0, MANAGED, 3, 1, 0], 48), region([1, 2, 3, 4, 5, 6])].concat();
        for whole in [json(HANDOFF), handshake] {
            for end in 0..whole.len() {
                assert_eq!(read(&whole[..end]), Ok(Read::More), "{end} of {} bytes", whole.len());
            }
            let two = [&whole[..], &whole].concat();
            assert!(matches!(read(&two), Ok(Read::All(_, _, taken, _)) if taken == whole.len()));
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_a_line() {
        let shake = |middle, length, body: &[u8]| [header(HANDSHAKE, middle, length), body.to_vec()].concat();
        let body = region([0; 6]);
        for (bytes, part) in [
            (b"[{\"base_host_virt_addr\":0}]".to_vec(), "cannot be read"),
            (LIST.replace("\"page_size\"", "\"page\"").replace("\"page_size_kib\"", "\"kib\"").into_bytes(), "page_size"),
            (LIST.replace("4096", "-1").into_bytes(), "cannot be read"),
            ([b"[", &vec![b' '; REQUEST_MAX][..]].concat(), "too long"),
            (b"GET / HTTP/1.1".to_vec(), "of no protocol"),
            (vec![0; 16], "of no protocol"),
            ([&u32::MAX.to_le_bytes()[..], b"{"].concat(), "too long"),
            (json("{}"), "cannot be read"),
            (json(r#"{"type":"detach"}"#), "cannot be read"),
            (json(&HANDOFF.replace("\"version\":0", "\"version\":1")), "version 1"),
            (json(&HANDOFF.replace("MISSING|WP", "MISSING|WP_ASYNC")), "WP_ASYNC"),
            (json(&HANDOFF.replace("MISSING|WP", "RWP")), "\"RWP\" is not known"),
            (json(&HANDOFF.replace("4096", "-1")), "cannot be read"),
            (json(&HANDOFF.replace("4096", "18446744073709551616")), "cannot be read"),
            (json(&HANDOFF.replace("}]}", "}]")), "cannot be read"),
            (shake([2, 0, MANAGED, 3, 0, 0], 0, &[]), "version 2"),
            (shake([1, 0, 0, 3, 0, 0], 0, &[]), "fill its memory itself"),
            (shake([1, 0, MANAGED | 2, 3, 0, 0], 0, &[]), "flags 0x3"),
            (shake([1, 0, MANAGED, MODE_WP_ASYNC, 0, 0], 0, &[]), "WP_ASYNC"),
            (shake([1, 0, MANAGED, 3, 2, 0], 48, &body), "says 2 regions, and has 1"),
            (shake([1, 0, MANAGED, 3, 1, 0], 47, &body), "no whole number"),
            (shake([1, 0, MANAGED, 3, 1, 0], u64::MAX, &body), "too long"),
            (header(ADD_REGION, [0; 6], 0), "one region, not 0"),
            (header(REMOVE_REGION, [0; 6], 0), "has 16 bytes behind its header, not 0"),
        ] {
            let why = read(&bytes).map(|read| panic!("{part}: {read:?}")).unwrap_err();
            assert!(why.contains(part) && !why.contains('\n'), "{part}: {why}");
        }
    }
}
