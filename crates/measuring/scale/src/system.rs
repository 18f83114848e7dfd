//! A system: the steps of a fault and of an eviction, and which locks all cores share. Times in ns.

/// What is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Which pages were used when.
    Lists,
    /// Frames of memory.
    Frames,
    /// Room in swap space.
    Space,
    /// The address space and its page tables.
    Tables,
    /// Handlers of signals.
    Signals,
}

/// All locks.
pub const LOCKS: [Lock; 5] = [Lock::Lists, Lock::Frames, Lock::Space, Lock::Tables, Lock::Signals];

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The core works.
    Work(u64),
    /// So long under a lock. One that is not shared costs this alone.
    Hold(Lock, u64),
    /// A frame is taken.
    Frame,
    /// A page is read.
    Read,
}

/// How pages leave.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    /// Threads that do nothing else, each with a core of its own where there are enough.
    pub evictors: u32,
    /// Their pages a batch.
    pub batch: u32,
    /// What each page takes, but for flush and write.
    pub page: &'static [Step],
    /// Flushes of a batch.
    pub flushes: u32,
    /// A batch's flush is not waited for before the next batch begins (MAGE §4.1).
    pub pipelined: bool,
    /// A batch's write is waited for before the next batch begins.
    pub waits_for_write: bool,
    /// A fault that finds no frame evicts so many pages itself. `None`: it waits.
    pub by_faults: Option<u32>,
}

/// A system.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Its name.
    pub name: &'static str,
    /// What a fault does.
    pub fault: &'static [Step],
    /// What a page that comes along with the one that is asked for costs its core. 0 where it is not known: such systems run loads with few of these pages alone.
    pub along_ns: u64,
    /// How pages leave.
    pub eviction: Eviction,
    /// Locks that all cores share. Of the others each core has its own.
    pub shared: &'static [Lock],
    /// A core's pages go to a device of its own, and not to any.
    pub own_device: bool,
}

/// What programs do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Threads, each on its core as long as there are some.
    pub threads: u32,
    /// What a thread computes between two faults.
    pub think_ns: u64,
    /// Pages that come along with a hundred that are asked for: what is read ahead.
    pub along_percent: u32,
    /// Pages leave, since there is no room for all.
    pub evicts: bool,
}
