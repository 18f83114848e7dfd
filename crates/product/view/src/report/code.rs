//! Functions and lines of instructions, as a tree: mapping, function (with those that were inlined into it), line.
//!
//! The recording knows the instruction that faulted alone, not who called the function. Symbols come from the program's files as they are now; a file
//! that has changed since is told, and not believed.

use std::collections::{BTreeMap, HashMap};

use farshore_config::plain;

use super::names::{Answer, Asked};
use super::seen::{Instruction, Seen};

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
    /// Files of which names are missing, and why.
    pub without: BTreeMap<String, String>,
}

/// Instructions of a file, and the faults of each.
type Faults<'a> = Vec<(&'a Instruction, u64)>;

/// Finds out what instructions are. `ask` looks into a file.
pub fn flame(seen: &Seen, mut ask: impl FnMut(&Asked) -> Answer) -> Flame {
    let mut flame = Flame::default();
    let mut files = HashMap::<_, Faults>::new();
    for (at, &faults) in &seen.instructions {
        files.entry((at.name.as_str(), at.size, at.changed_ns)).or_default().push((at, faults));
    }
    // What faults most comes first: there is a time for all of them.
    let total = |all: &[(&Instruction, u64)]| all.iter().map(|(_, faults)| faults).sum::<u64>();
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|one, other| total(&other.1).cmp(&total(&one.1)).then(one.0.cmp(&other.0)));
    for ((name, size, changed_ns), mut all) in files {
        all.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.offset.cmp(&other.0.offset)));
        let offsets = all.iter().map(|(at, _)| at.offset).collect();
        let answer = match name.strip_prefix('/') {
            Some(_) => ask(&Asked { path: name.into(), size, changed_ns, offsets }),
            None => Answer { without: "it is no file".into(), ..Answer::default() },
        };
        let shown = if name.is_empty() { "[not known]".into() } else { plain(name) };
        for (at, faults) in all {
            let mut path = vec![shown.clone()];
            match answer.names.get(&at.offset) {
                Some(names) if !names.is_empty() => path.extend(names.iter().map(|name| plain(name))),
                _ => path.push(format!("{:#x}", at.offset)),
            }
            flame.root.add(&path, faults);
        }
        if !answer.without.is_empty() {
            flame.without.insert(shown, plain(&answer.without));
        }
    }
    if seen.instructions_more > 0 {
        flame.root.add(&["[too many to be told apart]".into()], seen.instructions_more);
    }
    if seen.by_calls > 0 {
        flame.root.add(&["[system calls]".into()], seen.by_calls);
    }
    flame
}
