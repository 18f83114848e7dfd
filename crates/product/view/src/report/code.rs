//! Functions and lines of instructions, as a tree: mapping, function (with those that were inlined into it), line.
//!
//! The recording knows the instruction that faulted alone, not who called the function. Symbols come from the program's files as they are now; a file
//! that has changed since is told, and not believed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::{Object, ObjectSegment, ReadCache};

use super::seen::{Instruction, Seen};
use crate::record::maps::looked_at;

/// Functions inlined into each other that are shown.
const INLINED_MAX: usize = 16;
/// The largest file that symbols are looked up in.
const FILE_MAX: u64 = 8 << 30;

/// A node of the tree.
#[derive(Debug, Default)]
pub struct Node {
    /// Faults in it.
    pub faults: u64,
    /// What it consists of.
    pub parts: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, path: &[String], faults: u64) {
        let mut node = self;
        node.faults += faults;
        for name in path {
            node = node.parts.entry(name.clone()).or_default();
            node.faults += faults;
        }
    }
}

/// The tree, and what there is to say of it.
#[derive(Debug, Default)]
pub struct Flame {
    /// The program.
    pub root: Node,
    /// Files of which there are no names, and why.
    pub without: BTreeMap<String, String>,
}

/// Finds out what instructions are.
pub fn flame(seen: &Seen) -> Flame {
    let mut flame = Flame::default();
    let mut files: HashMap<(&str, u64, u64), Option<Symbols>> = HashMap::new();
    let mut all: Vec<(&Instruction, &u64)> = seen.instructions.iter().collect();
    all.sort_by(|one, other| one.0.name.cmp(&other.0.name).then(one.0.offset.cmp(&other.0.offset)));
    for (at, &faults) in all {
        let key = (at.name.as_str(), at.size, at.changed_ns);
        let symbols = files.entry(key).or_insert_with(|| match Symbols::of(at) {
            Ok(symbols) => Some(symbols),
            Err(why) => {
                flame.without.insert(at.name.clone(), why);
                None
            }
        });
        let name = if at.name.is_empty() { "[not known]" } else { &at.name };
        let mut path = vec![name.to_owned()];
        match symbols.as_ref().map(|symbols| symbols.of_offset(at.offset)) {
            Some(names) if !names.is_empty() => path.extend(names),
            _ => path.push(format!("{:#x}", at.offset)),
        }
        flame.root.add(&path, faults);
    }
    if seen.instructions_more > 0 {
        flame.root.add(&["[too many to be told apart]".into()], seen.instructions_more);
    }
    if seen.by_calls > 0 {
        flame.root.add(&["[system calls]".into()], seen.by_calls);
    }
    flame
}

/// The symbols of a file.
struct Symbols {
    loader: Loader,
    /// Where in memory which part of the file is: from, to, and the address of the first byte.
    segments: Vec<(u64, u64, u64)>,
}

impl Symbols {
    fn of(at: &Instruction) -> Result<Symbols, String> {
        let path = Path::new(&at.name);
        if !at.name.starts_with('/') {
            return Err("it is no file".into());
        }
        // A name may be anything, such as a pipe's: that is looked at before it is opened.
        let now = looked_at(at.name.as_bytes());
        if now == (0, 0) {
            return Err("it is not there any more".into());
        }
        if now != (at.size, at.changed_ns) {
            return Err("it has changed since".into());
        }
        if now.0 > FILE_MAX {
            return Err("it is too large".into());
        }
        let wrong = |why: &dyn std::fmt::Display| format!("it cannot be read ({why})");
        let cache = ReadCache::new(File::open(path).map_err(|why| wrong(&why))?);
        let object = object::File::parse(&cache).map_err(|why| wrong(&why))?;
        let segments = object.segments().map(|it| {
            let (from, length) = it.file_range();
            (from, from.saturating_add(length), it.address())
        });
        let segments = segments.collect();
        let place = debug_file(object.build_id().ok().flatten()).unwrap_or_else(|| path.into());
        let loader = Loader::new(place).map_err(|why| wrong(&why))?;
        Ok(Symbols { loader, segments })
    }

    /// Functions, the outermost first, and the line.
    fn of_offset(&self, offset: u64) -> Vec<String> {
        let Some((from, _, address)) = self.segments.iter().find(|(from, to, _)| (*from..*to).contains(&offset)) else {
            return Vec::new();
        };
        let address = address.wrapping_add(offset - from);
        let (mut names, mut line) = (Vec::new(), None);
        if let Ok(mut frames) = self.loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                if names.len() == INLINED_MAX {
                    break;
                }
                let place = frame.location.as_ref().and_then(|it| Some(format!("{}:{}", it.file?, it.line?)));
                // The innermost comes first, with the line of the instruction itself.
                if names.is_empty() {
                    line = place;
                }
                if let Some(function) = &frame.function {
                    names.push(function.demangle().map_or_else(|_| "?".into(), std::borrow::Cow::into_owned));
                }
            }
        }
        if names.is_empty() {
            names.extend(self.loader.find_symbol(address).map(|name| addr2line::demangle_auto(name.into(), None).into_owned()));
        }
        names.reverse();
        names.extend(line);
        names
    }
}

/// Where Debian and others install the debug information of a file with this build id, if it is there.
fn debug_file(id: Option<&[u8]>) -> Option<PathBuf> {
    let (first, rest) = id?.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    path.is_file().then_some(path)
}
