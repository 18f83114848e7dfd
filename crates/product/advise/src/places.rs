//! Which memory is meant: the mappings of a process, and files of hints about them.
//!
//! A line of a hint file is `stay WHAT` or `stream WHAT`; what follows a `#` is for readers. `WHAT` is one of
//!
//! | WHAT | the pages |
//! |---|---|
//! | `7f0012000000-7f0052000000` | from an address to another, in hexadecimal |
//! | `>=64M`, `<64M` | of writable private mappings of such a size |
//! | `[anon:edges]`, `[heap]`, `/path` | of mappings of this name |
//!
//! The first line that a page fits counts. Addresses at which nothing is mapped are no pages.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use farshore_command::process::bytes;
use farshore_command::regular;

use crate::policy::page;

/// A writable private mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its pages, by number.
    pub pages: Range<u64>,
    /// Its name; most have none.
    pub name: String,
}

/// The writable private mappings of a process; none if it has ended, or the kernel does not tell them in time.
pub fn mappings_of(pid: u32) -> Vec<Mapping> {
    mappings(&bytes(pid, "maps").unwrap_or_default())
}

/// Reads `/proc/PID/maps`. A name may be any bytes: those that are no text become U+FFFD.
fn mappings(maps: &[u8]) -> Vec<Mapping> {
    let text = String::from_utf8_lossy(maps);
    let of_line = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (range, rights) = (words.next()?, words.next()?);
        let name = words.nth(3).unwrap_or_default().trim().to_owned();
        let (first, end) = range.split_once('-')?;
        let address = |text: &str| u64::from_str_radix(text, 16).ok();
        let pages = page(address(first)?)..page(address(end)?);
        (rights == "rw-p").then_some(Mapping { pages, name })
    };
    text.lines().filter_map(of_line).collect()
}

/// Bytes of a hint file at most.
pub const MOST_BYTES: u64 = 1 << 20;

/// What is to become of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// They stay.
    Stay,
    /// They pass through a window.
    Stream,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum What {
    Addresses(Range<u64>),
    AtLeast(u64),
    Below(u64),
    Name(String),
}

/// What a hint file says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    lines: Vec<(Use, What)>,
}

impl Hints {
    /// Reads a hint file.
    ///
    /// # Errors
    /// It is no regular file of at most [`MOST_BYTES`], cannot be read, or a line is none: which, and why.
    pub fn of_file(path: &Path) -> Result<Hints, String> {
        let said = |why: std::io::Error| why.to_string();
        let (file, _) = regular::open(path).map_err(said)?;
        let mut text = String::new();
        file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(said)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(format!("it has more than {MOST_BYTES} bytes"));
        }
        Hints::read(&text)
    }

    /// Reads the text of a hint file.
    ///
    /// # Errors
    /// A line is none: which, and why.
    pub fn read(text: &str) -> Result<Hints, String> {
        let mut lines = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let (verb, what) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let verb = match verb {
                "stay" => Use::Stay,
                "stream" => Use::Stream,
                _ => return Err(format!("line {}: '{verb}' is neither 'stay' nor 'stream'", n + 1)),
            };
            let what = What::read(what.trim()).ok_or_else(|| {
                format!("line {}: '{}' is neither two addresses, nor a size after >= or <, nor a name", n + 1, what.trim())
            })?;
            lines.push((verb, what));
        }
        Ok(Hints { lines })
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The pages that hints are about, by what is to become of them, with the mappings as they are now: by their numbers, each page once.
    pub fn of(&self, mappings: &[Mapping]) -> Vec<(Range<u64>, Use)> {
        let mut found = BTreeMap::new();
        for (verb, what) in &self.lines {
            mappings.iter().for_each(|one| claim(&mut found, what.pages_of(one), *verb));
        }
        found.into_iter().map(|(first, (end, verb))| (first..end, verb)).collect()
    }
}

/// Adds what of `pages` is in no range yet. Ranges are by their first pages.
fn claim(found: &mut BTreeMap<u64, (u64, Use)>, pages: Range<u64>, verb: Use) {
    let mut first = found.range(..=pages.start).next_back().map_or(pages.start, |(_, before)| before.0.max(pages.start));
    while first < pages.end {
        let next = found.range(first..pages.end).next().map(|(&start, &(end, _))| (start, end));
        let (end, behind) = next.unwrap_or((pages.end, pages.end));
        if first < end {
            found.insert(first, (end, verb));
        }
        first = behind;
    }
}

impl What {
    fn read(text: &str) -> Option<What> {
        let size = |text: &str| {
            let text = text.trim();
            let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
            let shift = match unit {
                "" => 0,
                "K" => 10,
                "M" => 20,
                "G" => 30,
                "T" => 40,
                _ => return None,
            };
            digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(page)
        };
        if let Some(least) = text.strip_prefix(">=") {
            return size(least).map(What::AtLeast);
        }
        if let Some(most) = text.strip_prefix('<') {
            return size(most).map(What::Below);
        }
        let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok().map(page);
        if let Some((Some(first), Some(end))) = text.split_once('-').map(|(first, end)| (address(first), address(end))) {
            return (first < end).then_some(What::Addresses(first..end));
        }
        (text.starts_with('[') || text.starts_with('/')).then(|| What::Name(text.to_owned()))
    }

    /// The pages of a mapping that are meant; there may be none.
    fn pages_of(&self, mapping: &Mapping) -> Range<u64> {
        let Range { start, end } = mapping.pages;
        let all = match self {
            What::Addresses(range) => return start.max(range.start)..end.min(range.end),
            What::AtLeast(least) => end - start >= *least,
            What::Below(most) => end - start < *most,
            What::Name(name) => mapping.name == *name,
        };
        if all { start..end } else { start..start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
00400000-00500000 r-xp 00000000 08:01 12                                 /bin/x
00600000-00700000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0008000000 rw-p 00000000 00:00 0                          [anon:edges]
7f0009000000-7f0009100000 rw-p 00000000 00:00 0 
7f000a000000-7f000a100000 rw-s 00000000 00:05 9                          /dev/zero (deleted)
7f000b000000-7f000b001000 rw-p 00000000 08:01 13                         /tmp/\xff
";

    #[test]
    fn mappings_are_those_that_are_private_and_writable() {
        let all = mappings(MAPS);
        let names: Vec<&str> = all.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["[heap]", "[anon:edges]", "", "/tmp/\u{fffd}"]);
        assert_eq!(all[0].pages, 0x600..0x700);
    }

    #[test]
    fn hints_are_about_addresses_sizes_and_names() {
        let hints =
            Hints::read("# a graph\nstream [anon:edges] # its edges\nstay <2M\n\nstay 0x1000-3000\n").expect("well formed");
        let found = hints.of(&mappings(MAPS));
        let file = (0x7_f000_b000..0x7_f000_b001, Use::Stay);
        assert_eq!(found[..2], [(0x600..0x700, Use::Stay), (0x7_f000_0000..0x7_f000_8000, Use::Stream)]);
        assert_eq!(found[2..], [(0x7_f000_9000..0x7_f000_9100, Use::Stay), file], "nothing is mapped at 1000");
        assert_eq!(Hints::read("stream >=128M").expect("well formed").of(&mappings(MAPS)).len(), 1);
        assert!(Hints::read("#\n").expect("well formed").is_empty());
    }

    #[test]
    fn the_first_line_that_fits_counts_and_only_what_is_mapped() {
        let hints =
            Hints::read("stream 610000-620000\nstay 600000-640000\nstream [heap]\nstay 0-7ffffffff000").expect("well formed");
        let (stay, stream) = (|pages| (pages, Use::Stay), |pages| (pages, Use::Stream));
        let heap = [stay(0x600..0x610), stream(0x610..0x620), stay(0x620..0x640), stream(0x640..0x700)];
        let others = [stay(0x7_f000_0000..0x7_f000_8000), stay(0x7_f000_9000..0x7_f000_9100), stay(0x7_f000_b000..0x7_f000_b001)];
        assert_eq!(hints.of(&mappings(MAPS)), [&heap[..], &others[..]].concat());
        assert_eq!(hints.of(&[]), []);
    }

    #[test]
    fn only_a_regular_file_that_is_small_is_read() {
        let folder = std::env::temp_dir().join(format!("farshore-hints-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("it is new");
        let path = folder.join("hints");
        let refused = |path: &Path, part: &str| {
            let why = Hints::of_file(path).expect_err(part);
            assert!(why.contains(part), "{why}");
        };
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("it is new");
        refused(&path, "no regular file");
        std::fs::remove_file(&path).expect("it is there");
        refused(Path::new("/dev/zero"), "no regular file");
        refused(&folder, "no regular file");
        std::fs::write(&path, "#".repeat(MOST_BYTES as usize + 1)).expect("there is room");
        refused(&path, "more than 1048576 bytes");
        std::fs::write(&path, "#".repeat(MOST_BYTES as usize)).expect("there is room");
        assert!(Hints::of_file(&path).expect("it is small enough").is_empty());
        std::fs::remove_dir_all(&folder).expect("it is there");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, part) in [
            ("stay [a]\nleave [b]", "line 2: 'leave'"),
            ("stay", "line 1: ''"),
            ("stay 3000-1000", "'3000-1000'"),
            ("stay >=1Q", "'>=1Q'"),
            ("stay edges", "'edges'"),
            ("stay [a]\nstay >=17179869184G", "line 2: '>=17179869184G'"),
            ("stay <99999999999999999999", "line 1: '<9"),
        ] {
            let why = Hints::read(text).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
