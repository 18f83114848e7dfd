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
//! The first line that a page fits counts.

use std::ops::Range;

use crate::policy::page;

/// A writable private mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its pages, by number.
    pub pages: Range<u64>,
    /// Its name; most have none.
    pub name: String,
}

/// Reads `/proc/PID/maps`.
pub fn mappings(text: &str) -> Vec<Mapping> {
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

    /// The pages that hints are about, by what is to become of them, with the mappings as they are now.
    pub fn of(&self, mappings: &[Mapping]) -> Vec<(Range<u64>, Use)> {
        let mut found = Vec::new();
        for (verb, what) in &self.lines {
            match what {
                What::Addresses(range) => found.push((range.clone(), *verb)),
                _ => found.extend(mappings.iter().filter(|one| what.fits(one)).map(|one| (one.pages.clone(), *verb))),
            }
        }
        found
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
            digits.parse::<u64>().ok()?.checked_shl(shift).map(page)
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

    fn fits(&self, mapping: &Mapping) -> bool {
        let pages = mapping.pages.end - mapping.pages.start;
        match self {
            What::Addresses(_) => false,
            What::AtLeast(least) => pages >= *least,
            What::Below(most) => pages < *most,
            What::Name(name) => mapping.name == *name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00500000 r-xp 00000000 08:01 12                                 /bin/x
00600000-00700000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0008000000 rw-p 00000000 00:00 0                          [anon:edges]
7f0009000000-7f0009100000 rw-p 00000000 00:00 0 
7f000a000000-7f000a100000 rw-s 00000000 00:05 9                          /dev/zero (deleted)
";

    #[test]
    fn mappings_are_those_that_are_private_and_writable() {
        let all = mappings(MAPS);
        let names: Vec<&str> = all.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["[heap]", "[anon:edges]", ""]);
        assert_eq!(all[0].pages, 0x600..0x700);
    }

    #[test]
    fn hints_are_about_addresses_sizes_and_names() {
        let hints =
            Hints::read("# a graph\nstream [anon:edges] # its edges\nstay <2M\n\nstay 0x1000-3000\n").expect("well formed");
        let found = hints.of(&mappings(MAPS));
        assert_eq!(found[0], (0x7_f000_0000..0x7_f000_8000, Use::Stream));
        assert_eq!(found[1..], [(0x600..0x700, Use::Stay), (0x7_f000_9000..0x7_f000_9100, Use::Stay), (1..3, Use::Stay)]);
        assert_eq!(Hints::read("stream >=128M").expect("well formed").of(&mappings(MAPS)).len(), 1);
        assert!(Hints::read("#\n").expect("well formed").is_empty());
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (text, part) in [
            ("stay [a]\nleave [b]", "line 2: 'leave'"),
            ("stay", "line 1: ''"),
            ("stay 3000-1000", "'3000-1000'"),
            ("stay >=1Q", "'>=1Q'"),
            ("stay edges", "'edges'"),
        ] {
            let why = Hints::read(text).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
