//! Small mappings: private anonymous memory below the threshold.
//!
//! To manage a mapping takes two calls when it is made, and a fault for each of its pages. Below the threshold that is not worth it: nearly all
//! programs have a few such mappings, and no more. Some have all their memory in them (a collector that maps its heap in pieces of 16 KiB, stacks of
//! coroutines). So they are counted: when those that are there come to a part of the limit ([`most`]), all that are made from then on are
//! managed, for good. A process that wakes takes those over that are there; one that is awake leaves them.
//!
//! What nobody can touch counts as well (guards, and stacks of coroutines that are made so and opened by `mprotect`). The count may be too high: what a
//! file is mapped over stays counted. Then small mappings are managed sooner, which costs time and nothing else.

use crate::ground::ranges::Ranges;
use core::ops::Range;
use farshore_config::Options;

/// The small mappings of a process.
#[derive(Clone, Debug, Default)]
pub struct Small {
    there: Ranges,
    /// They have come to so much once.
    are_managed: bool,
}

impl Small {
    /// They are managed from now on.
    pub fn managed() -> Self {
        Small { there: Ranges::default(), are_managed: true }
    }

    /// Whether a new one is to be managed, in a process with these options.
    pub fn add_up(&self, options: &Options) -> bool {
        self.are_managed || self.there.bytes() >= most(options)
    }

    /// A new one, not managed: `start..end`, bytes.
    pub fn note(&mut self, start: u64, end: u64) {
        self.there.add(start, end);
    }

    /// What lay in `start..end` is not there any more.
    pub fn forget(&mut self, start: u64, end: u64) {
        self.there.remove(start, end);
    }

    /// What lay in `from` lies in `to` now, and in `from` too if `stays`.
    pub fn moved(&mut self, from: Range<u64>, to: Range<u64>, stays: bool) {
        let is_small = self.there.touches(from.start, from.end);
        if !stays {
            self.forget(from.start, from.end);
        }
        self.forget(to.start, to.end);
        if is_small {
            self.note(to.start, to.end);
        }
    }

    /// Those that are not managed.
    pub fn there(&self) -> &Ranges {
        &self.there
    }
}

/// How much of small mappings may be there besides the limit, bytes: a 32nd of it, and so little that a list of them stays short.
pub fn most(options: &Options) -> u64 {
    (options.memory.bytes() / 32).min(32 << 20)
}
