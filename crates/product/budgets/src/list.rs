//! The list of budgets: what a line is made of, and the hold under which lines are read and written.

use crate::law::{Other, Share};
use farshore_config::BUDGET_NAME_MAX;
use farshore_sys::clock;
use farshore_sys::fd::{claim_byte, is_byte_locked, release_byte};
use rustix::fd::BorrowedFd;
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use rustix::process::{Resource, getrlimit};

/// Families of one user that can be in budgets at a time.
pub const LINES: u32 = 256;
/// What a list begins with. Another arrangement gets another one.
const HEAD: &[u8] = b"farshore budget1";
const HEAD_BYTES: u64 = 128;
const LINE_BYTES: usize = 128;
/// How long the file is when all lines are in use, bytes.
pub const FILE_BYTES: u64 = HEAD_BYTES + LINES as u64 * LINE_BYTES as u64;
/// The byte whose lock is the hold: behind all that the file has.
const HOLD: u32 = 1 << 20;
/// The most that a number of pages counts as: what is read may be anything, and is added up.
const PAGES_MAX: u64 = 1 << 44;
/// A family that has not looked for so long is not waited for, ms.
const SILENT_MS: u64 = 2_000;

/// The name of a budget, filled up with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Name([u8; BUDGET_NAME_MAX]);

impl Name {
    /// The name; what is beyond the longest one is left out (and refused long before).
    pub fn new(name: &str) -> Name {
        let mut bytes = [0; BUDGET_NAME_MAX];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        Name(bytes)
    }
}

/// A line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// In which budget the family is.
    pub name: Name,
    /// Its size, pages.
    pub size: u64,
    /// A process of the family, for messages: what it was when the line was written.
    pub pid: u32,
    /// When the family looked last, ms.
    pub looked_ms: u64,
    /// What it has and wants.
    pub share: Share,
}

impl Line {
    fn to_bytes(self) -> [u8; LINE_BYTES] {
        let Line { name, size, pid, looked_ms, share } = self;
        let numbers = [size, share.limit, share.held, share.least, share.wants, share.need, looked_ms, u64::from(pid)];
        let mut bytes = [0; LINE_BYTES];
        let (front, back) = bytes.split_at_mut(BUDGET_NAME_MAX);
        front.copy_from_slice(&name.0);
        back.chunks_mut(8).zip(numbers).for_each(|(to, number)| to.copy_from_slice(&number.to_le_bytes()));
        bytes
    }

    /// Any bytes are a line.
    fn from_bytes(bytes: &[u8]) -> Line {
        let mut name = [0; BUDGET_NAME_MAX];
        name.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        let mut numbers = bytes.get(BUDGET_NAME_MAX..).unwrap_or_default().chunks_exact(8).map(|eight| {
            let mut number = [0; 8];
            number.copy_from_slice(eight);
            u64::from_le_bytes(number)
        });
        let mut number = |most: u64| numbers.next().unwrap_or(0).min(most);
        let (size, limit, held, least) = (number(PAGES_MAX), number(PAGES_MAX), number(PAGES_MAX), number(PAGES_MAX));
        let (wants, need, looked_ms, pid) = (number(PAGES_MAX), number(PAGES_MAX), number(u64::MAX), number(u32::MAX.into()));
        let share = Share { limit, held: held.max(limit), least, wants, need };
        Line { name: Name(name), size, pid: pid as u32, looked_ms, share }
    }

    /// As the law sees it.
    pub fn as_other(&self, now_ms: u64) -> Other {
        // A time ahead is noise, or of a family whose clock begins elsewhere (a time namespace): nobody would know when that one is silent.
        Other { share: self.share, looks: now_ms.abs_diff(self.looked_ms) < SILENT_MS }
    }
}

/// The time by which families look: that of the machine, ms.
pub fn now_ms() -> u64 {
    clock::by_syscall() / 1_000_000
}

/// The hold of a list: from when it was got until it is dropped this process alone reads and writes lines.
#[derive(Debug)]
pub struct Hold<'f> {
    file: BorrowedFd<'f>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        release_byte(self.file, HOLD);
    }
}

impl<'f> Hold<'f> {
    /// Gets the hold.
    ///
    /// # Errors
    /// `EAGAIN`: another process has it. It has it for some microseconds, unless it was stopped just then.
    pub fn get(file: BorrowedFd<'f>) -> Result<Hold<'f>, Errno> {
        match claim_byte(file, HOLD) {
            Ok(()) => Ok(Hold { file }),
            Err(why) => Err(Errno::from_raw_os_error(why.0)),
        }
    }

    /// Makes a list of a file that is new, and makes sure that any other is one.
    ///
    /// # Errors
    /// `EMEDIUMTYPE`: it is something else; or what the kernel answers.
    pub fn begin(&self) -> Result<(), Errno> {
        let mut head = [0; HEAD.len()];
        let got = retry_on_intr(|| pread(self.file, &mut head, 0))?;
        match &head[..got] {
            [] => self.put(HEAD, 0),
            read if read == HEAD => Ok(()),
            _ => Err(Errno::MEDIUMTYPE),
        }
    }

    /// All lines of this budget whose families are there, with their numbers. What a file lacks that was cut off is no line.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn lines(&self, name: Name) -> Result<Vec<(u32, Line)>, Errno> {
        let mut bytes = vec![0; LINES as usize * LINE_BYTES];
        let mut got = 0;
        while got < bytes.len() {
            match retry_on_intr(|| pread(self.file, &mut bytes[got..], HEAD_BYTES + got as u64))? {
                0 => break,
                more => got += more,
            }
        }
        let lines = bytes[..got].chunks_exact(LINE_BYTES).map(Line::from_bytes);
        Ok((0..).zip(lines).filter(|(number, line)| line.name == name && self.is_taken(*number)).collect())
    }

    /// Whether a family has this line.
    pub fn is_taken(&self, number: u32) -> bool {
        is_byte_locked(self.file, number)
    }

    /// Writes a line.
    ///
    /// # Errors
    /// `EFBIG`: the process may not make files that long (`RLIMIT_FSIZE`); or what the kernel answers: there is no memory for the file.
    pub fn write(&self, number: u32, line: &Line) -> Result<(), Errno> {
        self.put(&line.to_bytes(), HEAD_BYTES + u64::from(number) * LINE_BYTES as u64)
    }

    fn put(&self, bytes: &[u8], at: u64) -> Result<(), Errno> {
        // The kernel would refuse it by a signal that ends the program. The limit may be the program's own, which it has set for files of its own.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| at + bytes.len() as u64 > most) {
            return Err(Errno::FBIG);
        }
        let written = retry_on_intr(|| pwrite(self.file, bytes, at))?;
        if written == bytes.len() { Ok(()) } else { Err(Errno::NOSPC) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farshore_random::Rng;

    #[test]
    fn a_line_comes_back_and_any_bytes_are_one() {
        let share = Share { limit: 1, held: 2, least: 3, wants: 4, need: 5 };
        let line = Line { name: Name::new("jobs"), size: 6, pid: 7, looked_ms: 8, share };
        assert_eq!(Line::from_bytes(&line.to_bytes()), line);
        assert_eq!(Line::from_bytes(&[]), Line::default());
        let mut random = Rng::new(1);
        for _ in 0..1_000 {
            let mut bytes = [0; LINE_BYTES];
            random.fill(&mut bytes);
            let line = Line::from_bytes(&bytes);
            let Share { limit, held, least, wants, need } = line.share;
            assert!([line.size, limit, held, least, wants, need].iter().all(|&number| number <= PAGES_MAX) && limit <= held);
        }
    }

    #[test]
    fn a_family_looks_if_it_did_so_lately() {
        let looks = |looked_ms, now_ms| Line { looked_ms, ..Line::default() }.as_other(now_ms).looks;
        assert!(looks(5_000, 5_000) && looks(5_000, 6_999) && !looks(5_000, 7_000));
        // One that is written by another thread than the one that read the clock.
        assert!(looks(5_001, 5_000));
        assert!(!looks(u64::MAX, 5_000), "noise is not waited for for ever");
    }

    #[test]
    fn names_differ_up_to_the_longest() {
        let long = "x".repeat(BUDGET_NAME_MAX);
        assert!(
            Name::new(&long) != Name::new(&long[1..]) && Name::new("a") != Name::new("ab") && Name::new("") == Name::default()
        );
    }
}
