//! Names for the feature bits of userfaultfd.

/// A set of `UFFD_FEATURE_*` bits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

/// Names in the order of the bits, as of Linux 6.18.
const NAMES: [&str; 17] = [
    "PAGEFAULT_FLAG_WP",
    "EVENT_FORK",
    "EVENT_REMAP",
    "EVENT_REMOVE",
    "MISSING_HUGETLBFS",
    "MISSING_SHMEM",
    "EVENT_UNMAP",
    "SIGBUS",
    "THREAD_ID",
    "MINOR_HUGETLBFS",
    "MINOR_SHMEM",
    "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM",
    "WP_UNPOPULATED",
    "POISON",
    "WP_ASYNC",
    "MOVE",
];

impl Features {
    /// Write protection of anonymous memory.
    pub const WP: Features = Features(1 << 0);
    /// Messages about forks, moves, removals and unmappings, each of which the process waits for.
    pub const EVENTS: Features = Features(1 << 1 | 1 << 2 | 1 << 3 | 1 << 6);
    /// Messages about memory that the process throws away (`MADV_DONTNEED`, `MADV_REMOVE`); it waits until they are read.
    pub const EVENT_REMOVE: Features = Features(1 << 3);
    /// A fault raises SIGBUS in the faulting thread instead of sending a message.
    pub const SIGBUS: Features = Features(1 << 7);
    /// A message tells the faulting thread.
    pub const THREAD_ID: Features = Features(1 << 8);
    /// Fault addresses are told to the byte, not the page.
    pub const EXACT_ADDRESS: Features = Features(1 << 11);
    /// Write protection also of pages that are not there (yet).
    pub const WP_UNPOPULATED: Features = Features(1 << 13);
    /// `UFFDIO_POISON`.
    pub const POISON: Features = Features(1 << 14);
    /// Writes to protected pages go on without a fault and are only noted (for `PAGEMAP_SCAN`).
    pub const WP_ASYNC: Features = Features(1 << 15);
    /// `UFFDIO_MOVE`.
    pub const MOVE: Features = Features(1 << 16);

    /// Those that are in both.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
    /// Whether all of `other` are in it.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }
    /// Both.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
    /// Those of `self` that are not in `other`.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Bits that this program has no name for: a newer kernel (userfaultfd RWP, say).
    pub const fn unknown(self) -> u64 {
        self.0 >> NAMES.len() << NAMES.len()
    }
    /// The names of those that have one.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().enumerate().filter(move |(bit, _)| self.0 >> bit & 1 != 0).map(|(_, name)| *name)
    }
}

impl core::fmt::Display for Features {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut separator = "";
        for name in self.names() {
            write!(f, "{separator}{name}")?;
            separator = " ";
        }
        match self.unknown() {
            0 if self.is_empty() => f.write_str("none"),
            0 => Ok(()),
            bits => write!(f, "{separator}unknown bits {bits:#x}"),
        }
    }
}

impl core::fmt::Debug for Features {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Features({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_unknown_bits() {
        assert_eq!(Features::SIGBUS.with(Features::MOVE).to_string(), "SIGBUS MOVE");
        assert_eq!(Features(1 << 17).with(Features::MOVE).to_string(), "MOVE unknown bits 0x20000");
        assert_eq!((Features(1 << 16).unknown(), Features::default().to_string()), (0, "none".into()));
    }
}
