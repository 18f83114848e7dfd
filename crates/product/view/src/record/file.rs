//! The file that `farshore record` writes and `farshore report` reads. `docs/src/reference/record-file.md` has its format.
//!
//! It is written in blocks, each complete in itself and with a checksum: what was written before somebody killed the recorder can be read.
//! Nothing of a file is believed: a length has a bound before memory is taken for it, and whatever is wrong ends the reading there.

use std::io::{ErrorKind, Read};

use xxhash_rust::xxh3::xxh3_64;

/// The first bytes.
pub const MAGIC: &[u8; 8] = b"farshrec";
/// The version of the format, in the four bytes behind them.
pub const VERSION: u32 = 1;
/// The longest block, bytes.
pub const BLOCK_MAX: usize = 1 << 20;
/// The longest name.
pub const NAME_MAX: usize = 4096;
/// Bytes of a block from which on it is written.
const BLOCK_FULL: usize = 64 << 10;

/// What happened to memory; the numbers are those of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum What {
    /// A thread touched a page that was absent or write-protected.
    Fault = 1,
    /// Pages came from swap space.
    Fetched = 2,
    /// Pages left.
    Evicted = 3,
    /// A page that had left came back from RAM.
    Rescued = 4,
    /// The limit changed: to so many pages.
    Limit = 5,
    /// Pages are managed.
    Mapped = 6,
    /// They are not any more.
    Unmapped = 7,
}

impl What {
    /// Every one.
    pub const ALL: [What; 7] =
        [What::Fault, What::Fetched, What::Evicted, What::Rescued, What::Limit, What::Mapped, What::Unmapped];
}

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Happened {
    /// What happened.
    pub what: What,
    /// As the event has it.
    pub detail: u8,
    /// When, ns of `CLOCK_MONOTONIC`.
    pub ns: u64,
    /// The first byte that it is about.
    pub address: u64,
    /// How many pages.
    pub pages: u64,
    /// The thread that faulted, or 0.
    pub thread: u32,
    /// The instruction that faulted, or 0.
    pub instruction: u64,
}

/// A mapping of the process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    /// Its first byte.
    pub start: u64,
    /// The first byte behind it.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Bit 0: it can be executed.
    pub flags: u8,
    /// The file's size when it was looked at, and …
    pub size: u64,
    /// … when it was changed last, ns since 1970; both 0 for what is no file.
    pub changed_ns: u64,
    /// The file, `[heap]` and the like, or nothing.
    pub name: Vec<u8>,
}

/// How a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum End {
    /// The program is over.
    Over = 1,
    /// Somebody has ended the recording.
    Stopped = 2,
}

/// An entry of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The program: the first entry.
    Program {
        /// Its process.
        pid: u32,
        /// When the recording began, ns of `CLOCK_MONOTONIC`, …
        ns: u64,
        /// … and seconds since 1970.
        date: u64,
        /// Its name, as the user has written it.
        name: Vec<u8>,
    },
    /// The recorder hears the program from now on: at the beginning, and again after each `execve`.
    Attached {
        /// When.
        ns: u64,
        /// The memory limit, bytes.
        limit: u64,
    },
    /// All mappings of the process are the next entries.
    Maps {
        /// When they were looked at.
        ns: u64,
    },
    /// One of them.
    Mapping(Mapping),
    /// An event.
    Happened(Happened),
    /// Since the last such entry so many events were lost.
    Lost {
        /// When that was noticed.
        ns: u64,
        /// How many.
        events: u64,
    },
    /// The last entry.
    End {
        /// When.
        ns: u64,
        /// How.
        how: End,
    },
}

/// What the next entry of a block is told in terms of.
#[derive(Clone, Copy, Default, Debug)]
struct Last {
    ns: u64,
    address: u64,
    instruction: u64,
}

const PROGRAM: u8 = 0x10;
const ATTACHED: u8 = 0x11;
const MAPS: u8 = 0x12;
const MAPPING: u8 = 0x13;
const LOST: u8 = 0x14;
const END: u8 = 0x15;

/// Makes blocks of entries.
#[derive(Debug, Default)]
pub struct Writer {
    block: Vec<u8>,
    last: Last,
}

impl Writer {
    /// What a file begins with.
    pub fn head() -> Vec<u8> {
        [MAGIC.as_slice(), &VERSION.to_le_bytes()].concat()
    }

    /// Adds an entry. Whether the block is to be taken now.
    pub fn put(&mut self, entry: &Entry) -> bool {
        match entry {
            Entry::Program { pid, ns, date, name } => {
                self.begin(PROGRAM, *ns);
                self.number(u64::from(*pid));
                self.number(*date);
                self.bytes(name);
            }
            Entry::Attached { ns, limit } => {
                self.begin(ATTACHED, *ns);
                self.number(*limit);
            }
            Entry::Maps { ns } => self.begin(MAPS, *ns),
            Entry::Mapping(it) => {
                self.block.push(MAPPING);
                self.address(it.start);
                self.number(it.end.wrapping_sub(it.start));
                self.number(it.offset);
                self.block.push(it.flags);
                self.number(it.size);
                self.number(it.changed_ns);
                self.bytes(&it.name);
            }
            Entry::Happened(it) => {
                self.begin(it.what as u8, it.ns);
                self.block.push(it.detail);
                self.address(it.address);
                if it.what == What::Fault {
                    self.number(u64::from(it.thread));
                    let from = std::mem::replace(&mut self.last.instruction, it.instruction);
                    self.difference(it.instruction, from);
                } else {
                    self.number(it.pages);
                }
            }
            Entry::Lost { ns, events } => {
                self.begin(LOST, *ns);
                self.number(*events);
            }
            Entry::End { ns, how } => {
                self.begin(END, *ns);
                self.block.push(*how as u8);
            }
        }
        self.block.len() >= BLOCK_FULL
    }

    /// The block as it is written, if there is something in it; the next entry begins another one.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let payload = std::mem::take(&mut self.block);
        self.last = Last::default();
        if payload.is_empty() {
            return None;
        }
        Some([&(payload.len() as u32).to_le_bytes(), &(xxh3_64(&payload) as u32).to_le_bytes(), payload.as_slice()].concat())
    }

    fn begin(&mut self, tag: u8, ns: u64) {
        self.block.push(tag);
        let from = std::mem::replace(&mut self.last.ns, ns);
        self.difference(ns, from);
    }

    fn address(&mut self, address: u64) {
        let from = std::mem::replace(&mut self.last.address, address);
        self.difference(address, from);
    }

    /// Small ones, up and down, are short.
    fn difference(&mut self, to: u64, from: u64) {
        let difference = to.wrapping_sub(from) as i64;
        self.number((difference << 1 ^ difference >> 63) as u64);
    }

    /// Seven bits a byte, the lowest first; the top bit says that more come.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.block.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.block.push(value as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(NAME_MAX)];
        self.number(bytes.len() as u64);
        self.block.extend_from_slice(bytes);
    }
}

/// Reads a file, entry by entry.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    block: Vec<u8>,
    at: usize,
    last: Last,
    read: u64,
    ended: bool,
    /// Why nothing more is read before its end; empty: the file is whole.
    pub broken: String,
}

impl<R: Read> Reader<R> {
    /// Begins with a file.
    ///
    /// # Errors
    /// It is none of ours, of another version, or cannot be read.
    pub fn new(mut source: R) -> Result<Reader<R>, String> {
        let mut head = [0; 12];
        let count = fill(&mut source, &mut head).map_err(|why| format!("it cannot be read ({why})"))?;
        let (magic, version) = head.split_at(8);
        if count < head.len() || magic != MAGIC {
            return Err("it was not written by 'farshore record'".into());
        }
        match u32::from_le_bytes([version[0], version[1], version[2], version[3]]) {
            VERSION => {}
            other => return Err(format!("it has version {other} of the format, and this farshore reads version {VERSION}")),
        }
        let read = head.len() as u64;
        Ok(Reader { source, block: Vec::new(), at: 0, last: Last::default(), read, ended: false, broken: String::new() })
    }

    /// The next entry. None: that was the last one, or [`Reader::broken`] says why nothing more can be read.
    pub fn take(&mut self) -> Option<Entry> {
        if !self.broken.is_empty() || self.ended {
            return None;
        }
        if self.at == self.block.len() {
            let begun = self.read;
            if let Err(why) = self.next_block() {
                self.broken = format!("{why} at byte {begun}");
                return None;
            }
        }
        let entry = self.entry();
        match &entry {
            None => self.broken = format!("an entry cannot be understood, before byte {}", self.read),
            Some(Entry::End { .. }) => self.ended = true,
            Some(_) => {}
        }
        entry
    }

    fn next_block(&mut self) -> Result<(), String> {
        let mut head = [0; 8];
        match fill(&mut self.source, &mut head).map_err(|why| format!("it cannot be read ({why})"))? {
            8 => {}
            _ => return Err("it is cut off".into()),
        }
        let [a, b, c, d, sum @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if !(1..=BLOCK_MAX).contains(&length) {
            return Err("it is damaged: there is no block".into());
        }
        self.block.resize(length, 0);
        if fill(&mut self.source, &mut self.block).map_err(|why| format!("it cannot be read ({why})"))? < length {
            return Err("it is cut off in the block".into());
        }
        if xxh3_64(&self.block) as u32 != u32::from_le_bytes(sum) {
            return Err("it is damaged: the checksum is wrong of the block".into());
        }
        (self.at, self.last) = (0, Last::default());
        self.read += (head.len() + length) as u64;
        Ok(())
    }

    fn entry(&mut self) -> Option<Entry> {
        let tag = self.byte()?;
        if tag == MAPPING {
            let start = self.address()?;
            let end = start.checked_add(self.number()?)?;
            let (offset, flags) = (self.number()?, self.byte()?);
            let (size, changed_ns) = (self.number()?, self.number()?);
            return Some(Entry::Mapping(Mapping { start, end, offset, flags, size, changed_ns, name: self.bytes()? }));
        }
        let ns = self.difference(self.last.ns)?;
        self.last.ns = ns;
        Some(match tag {
            PROGRAM => {
                let (pid, date) = (u32::try_from(self.number()?).ok()?, self.number()?);
                Entry::Program { pid, ns, date, name: self.bytes()? }
            }
            ATTACHED => Entry::Attached { ns, limit: self.number()? },
            MAPS => Entry::Maps { ns },
            LOST => Entry::Lost { ns, events: self.number()? },
            END => Entry::End {
                ns,
                how: match self.byte()? {
                    1 => End::Over,
                    2 => End::Stopped,
                    _ => return None,
                },
            },
            _ => {
                let what = What::ALL.into_iter().find(|&what| what as u8 == tag)?;
                let (detail, address) = (self.byte()?, self.address()?);
                let (mut pages, mut thread, mut instruction) = (1, 0, 0);
                if what == What::Fault {
                    thread = u32::try_from(self.number()?).ok()?;
                    instruction = self.difference(self.last.instruction)?;
                    self.last.instruction = instruction;
                } else {
                    pages = self.number()?;
                }
                Entry::Happened(Happened { what, detail, ns, address, pages, thread, instruction })
            }
        })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.block.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // The tenth byte has one bit.
                return (shift < 63 || bits <= 1).then_some(value);
            }
        }
        None
    }

    fn difference(&mut self, from: u64) -> Option<u64> {
        let number = self.number()?;
        Some(from.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg()))
    }

    fn address(&mut self) -> Option<u64> {
        self.last.address = self.difference(self.last.address)?;
        Some(self.last.address)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.number()?).ok().filter(|&length| length <= NAME_MAX)?;
        let bytes = self.block.get(self.at..self.at + length)?.to_vec();
        self.at += length;
        Some(bytes)
    }
}

/// Reads until the buffer is full or the file at its end; how many bytes.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match source.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(count)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Entries of every kind, with numbers at both ends.
    pub fn entries() -> Vec<Entry> {
        let happened = |what, ns, address| {
            let is_fault = what == What::Fault;
            let (pages, thread, instruction) = if is_fault { (1, 77, 0x55_5555_1234) } else { (u64::MAX, 0, 0) };
            Entry::Happened(Happened { what, detail: 3, ns, address, pages, thread, instruction })
        };
        let mut all = vec![
            Entry::Program { pid: 4242, ns: 1 << 40, date: 1_700_000_000, name: b"./a <b>&\xff".to_vec() },
            Entry::Attached { ns: (1 << 40) + 5, limit: 64 << 20 },
            Entry::Maps { ns: 7 },
            Entry::Mapping(Mapping {
                start: 0x55_5555_0000,
                end: 0x55_5556_0000,
                flags: 1,
                name: b"/bin/<x>".to_vec(),
                ..Mapping::default()
            }),
            Entry::Mapping(Mapping { start: 0, end: u64::MAX, offset: u64::MAX, size: u64::MAX, ..Mapping::default() }),
        ];
        all.extend(What::ALL.iter().enumerate().map(|(n, &what)| happened(what, n as u64 * 1000, u64::MAX >> (n * 9))));
        all.extend([Entry::Lost { ns: 3, events: u64::MAX }, Entry::End { ns: u64::MAX, how: End::Stopped }]);
        all
    }

    /// The file of these entries, a block for every three.
    pub fn file(entries: &[Entry]) -> Vec<u8> {
        let (mut writer, mut file) = (Writer::default(), Writer::head());
        for (n, entry) in entries.iter().enumerate() {
            writer.put(entry);
            if n % 3 == 2 {
                file.extend(writer.take().expect("there is an entry"));
            }
        }
        file.extend(writer.take().into_iter().flatten());
        file
    }

    fn read(bytes: &[u8]) -> (Vec<Entry>, String) {
        let mut reader = Reader::new(bytes).expect("the head is whole");
        let mut entries = Vec::new();
        while let Some(entry) = reader.take() {
            entries.push(entry);
        }
        (entries, reader.broken)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&file(&entries())), (entries(), String::new()));
        let mut writer = Writer::default();
        assert_eq!(writer.take(), None);
        let fault = entries()[5].clone();
        let until_full = (0..).take_while(|_| !writer.put(&fault)).count();
        assert!((BLOCK_FULL / 8..BLOCK_FULL).contains(&until_full), "{until_full} faults a block");
    }

    #[test]
    fn a_file_that_is_cut_off_is_read_up_to_there() {
        let (whole, all) = (file(&entries()), entries());
        for length in 12..whole.len() {
            let (some, broken) = read(&whole[..length]);
            assert!(all.starts_with(&some) && some.len() < all.len() && broken.contains("cut off"), "{length}: {broken}");
        }
        for length in 0..12 {
            assert!(Reader::new(&whole[..length]).is_err_and(|why| why.contains("not written by")), "{length}");
        }
    }

    #[test]
    fn no_flipped_bit_gives_another_entry() {
        let (whole, all) = (file(&entries()), entries());
        for bit in 0..whole.len() * 8 {
            let mut other = whole.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            match Reader::new(other.as_slice()) {
                Err(why) => assert!(bit < 12 * 8, "{bit}: {why}"),
                Ok(_) => {
                    let (some, broken) = read(&other);
                    assert!(all.starts_with(&some) && some.len() < all.len() && !broken.is_empty(), "bit {bit}: {broken}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_nonsense_end_the_reading() {
        let mut rng = 1_u64;
        for _ in 0..20_000 {
            let payload: Vec<u8> = (0..1 + rng % 40)
                .map(|_| {
                    rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Many small numbers, so that entries begin.
                    if rng >> 62 == 0 { (rng >> 40) as u8 } else { (rng >> 40) as u8 & 0x1f }
                })
                .collect();
            let mut bytes = Writer::head();
            bytes.extend((payload.len() as u32).to_le_bytes());
            bytes.extend((xxh3_64(&payload) as u32).to_le_bytes());
            bytes.extend(&payload);
            let (entries, broken) = read(&bytes);
            assert!(entries.len() <= payload.len());
            assert!(!broken.is_empty() || matches!(entries.last(), Some(Entry::End { .. })));
        }
        // A block of 4 GiB takes no memory.
        let mut bytes = Writer::head();
        bytes.extend([0xff; 8]);
        assert!(read(&bytes).1.contains("damaged"));
    }
}
