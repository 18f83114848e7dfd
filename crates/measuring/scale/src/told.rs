//! What a run tells.

/// What a thread's time goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// Its own computing.
    Think,
    /// Steps of the fault.
    Work,
    /// Another actor has the core, or an interrupt.
    Core,
    /// A lock: which one.
    Lists,
    /// See [`crate::Lock`].
    Frames,
    /// See [`crate::Lock`].
    Space,
    /// See [`crate::Lock`].
    Tables,
    /// See [`crate::Lock`].
    Signals,
    /// No frame is free.
    NoFrame,
    /// A batch that the fault evicts itself: its steps, its flushes, its write.
    Evicts,
    /// The device is busy with others.
    Queue,
    /// The read.
    Read,
}

/// All causes, and what they are called.
pub const CAUSES: [(Cause, &str); 12] = [
    (Cause::Think, "computes"),
    (Cause::Work, "steps of the fault"),
    (Cause::Core, "core taken, interrupts"),
    (Cause::Lists, "lock of lists"),
    (Cause::Frames, "lock of frames"),
    (Cause::Space, "lock of swap space"),
    (Cause::Tables, "lock of tables"),
    (Cause::Signals, "lock of signals"),
    (Cause::NoFrame, "no free frame"),
    (Cause::Evicts, "evicts itself"),
    (Cause::Queue, "queue of the device"),
    (Cause::Read, "read"),
];

/// What a run tells.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// Faults that were counted.
    pub faults: u64,
    /// In so long, ns.
    pub ns: u64,
    /// How long each of them took, ns, ascending.
    pub latencies: Vec<u64>,
    /// Where the threads' time went, ns, as [`CAUSES`].
    pub spent: [u64; 12],
    /// Flushes, and how long they took from the first interrupt to the last answer, ns.
    pub flushes: u64,
    /// See above.
    pub flush_ns: u64,
    /// Batches that faults evicted themselves.
    pub by_faults: u64,
}

impl Told {
    /// Faults a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss)]
    pub fn rate(&self) -> f64 {
        self.faults as f64 / self.ns.max(1) as f64 * 1e9
    }

    /// A share of faults took no longer, ns.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn quantile(&self, share: f64) -> u64 {
        let at = (self.latencies.len() as f64 * share) as usize;
        self.latencies.get(at.min(self.latencies.len().saturating_sub(1))).copied().unwrap_or(0)
    }

    /// Parts of the threads' time, largest first.
    #[must_use]
    #[expect(clippy::cast_precision_loss)]
    pub fn shares(&self) -> Vec<(&'static str, f64)> {
        let all = self.spent.iter().sum::<u64>().max(1) as f64;
        let mut shares: Vec<_> = CAUSES.iter().zip(self.spent).map(|((_, name), ns)| (*name, ns as f64 / all)).collect();
        shares.sort_by(|one, other| other.1.total_cmp(&one.1));
        shares
    }
}
