//! Counters. A core counts in lines of its own with relaxed adds; a reader sums them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use farshore_core::sync::Padded;
use farshore_core::sync::plain::AtomicU64;

/// Buckets of the latency histogram: 16 a power of two, from 1 ns to 2^40 ns (18 minutes).
const SUB: usize = 16;
const BUCKETS: usize = 41 * SUB;

/// What a fault turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Read from a slot.
    Fetch,
    /// Never touched: zeros.
    Zero,
    /// Its bytes were still in a stage.
    Rescue,
    /// Another thread brought the page, or was bringing it.
    Wait,
    /// It was mapped and write-protected.
    WriteProtect,
}

/// What else is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Pages evicted.
    Evicted,
    /// Of them, pages that needed no write.
    EvictedClean,
    /// Pages evicted that a forward hand has found, …
    FoundForward,
    /// … or a backward one.
    FoundBackward,
    /// Pages that came back of those that a forward hand has found, …
    BackForward,
    /// … or a backward one.
    BackBackward,
    /// Batches.
    Batches,
    /// Evictions on a thread that is not an evictor. Stays 0 (rule 1).
    Synchronous,
    /// Pages read from swap space.
    PagesIn,
    /// Of them, pages that came along with a fault on another.
    Prefetched,
    /// Of those, pages whose stream went on behind them.
    PrefetchUsed,
    /// Pages written to it.
    PagesOut,
    /// Reads and writes that failed or did not match their checksum.
    IoErrors,
    /// Bytes of swap space that were freed and given back.
    GivenBack,
    /// Resident pages that the program has given up.
    GivenUp,
    /// Pages that had left, or were leaving, when the program gave them up.
    GivenUpOut,
    /// Pages that it has touched first.
    Touched,
    /// Pages that had bytes before they were managed.
    Stocked,
    /// Times a fault found no frame and slept.
    FrameWaits,
    /// How long those waits were, all together, nanoseconds.
    FrameWaitNs,
    /// Pages that did not come along because no frame was spare.
    Missed,
    /// Granules whose first touch brought a huge page.
    HugeMapped,
    /// How often huge pages of a granule were split, because pages of it leave.
    HugeSplit,
    /// Pages that scans have looked at where they are, by what the kernel tells, or the processor.
    Watched,
    /// Pages that scans have taken away to look at them.
    TakenAway,
    /// Time of first touches, nanoseconds, without their waits ([`Stats::touch`]).
    TouchNs,
    /// Writes that devices were given.
    Writes,
    /// Times a fault met a page that is leaving, and waited until it was written: in experiments without rescues alone.
    WriteWaits,
    /// How long those waits were, all together, nanoseconds.
    WriteWaitNs,
    /// Times a fault met a page that another thread had in its hands, and slept.
    PageWaits,
    /// How long those waits were, all together, nanoseconds.
    PageWaitNs,
    /// How long cores that have asked others for slots took for that, nanoseconds.
    DelegateNs,
    /// Pages that evictors have copied into stages.
    CopiedOut,
    /// Pages that the kernel was given from their stages.
    Unstaged,
    /// Fetches whose parts were measured.
    Sampled,
    /// Of those, how long they took, nanoseconds: until frame and page were theirs …
    ClaimNs,
    /// … until the bytes were read …
    ReadNs,
    /// … until they were checked …
    CheckNs,
    /// … until the page was mapped …
    MapNs,
    /// … and for all else: pages that came along, the words, the lists.
    RestNs,
}

/// What a first touch that has waited takes otherwise.
const TOUCH_NS_MOST: u64 = 20_000;

const COUNTS: usize = Count::RestNs as usize + 1;

#[derive(Debug)]
struct PerCore {
    counts: [AtomicU64; COUNTS],
    kinds: [AtomicU64; 5],
    latency: [AtomicU64; BUCKETS],
    latency_max: AtomicU64,
    /// See [`Stats::used_peak`].
    used_peak: AtomicU64,
}

/// Counters of one engine.
#[derive(Debug)]
pub struct Stats {
    cores: Box<[Padded<PerCore>]>,
    /// Memory calls write these; faults read where the counters of their core are.
    managed: Padded<Managed>,
}

/// Pages managed now, and at most.
#[derive(Debug, Default)]
struct Managed {
    now: AtomicU64,
    peak: AtomicU64,
}

/// Percentiles of the time from a fault's arrival in the handler to its end, nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Median.
    pub p50: u64,
    /// 90 %.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// Longest.
    pub max: u64,
    /// All together; at most 7 % too much.
    pub total: u64,
}

fn bucket(ns: u64) -> usize {
    let log = 63 - (ns | 1).leading_zeros() as usize;
    let sub = if log >= 4 { (ns >> (log - 4)) as usize & (SUB - 1) } else { 0 };
    (log * SUB + sub).min(BUCKETS - 1)
}

/// The largest value that falls into bucket `b`.
fn bucket_top(b: usize) -> u64 {
    let (log, sub) = (b / SUB, b % SUB);
    if log < 4 { (2 << log) - 1 } else { ((SUB + sub + 1) as u64) << (log - 4) }
}

impl Stats {
    /// All zero, for this many cores.
    pub fn new(cores: usize) -> Stats {
        let per_core = || {
            Padded(PerCore {
                counts: core::array::from_fn(|_| AtomicU64::new(0)),
                kinds: core::array::from_fn(|_| AtomicU64::new(0)),
                latency: core::array::from_fn(|_| AtomicU64::new(0)),
                latency_max: AtomicU64::new(0),
                used_peak: AtomicU64::new(0),
            })
        };
        Stats {
            cores: (0..cores.clamp(1, 64)).map(|_| per_core()).collect::<Vec<_>>().into_boxed_slice(),
            managed: Padded::default(),
        }
    }

    fn core(&self, core: usize) -> &PerCore {
        &self.cores[core % self.cores.len()]
    }

    /// Adds `n` on `core`.
    pub fn add(&self, core: usize, what: Count, n: u64) {
        self.core(core).counts[what as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Faults of all kinds.
    pub fn all_faults(&self) -> u64 {
        self.cores.iter().flat_map(|core| &core.kinds).map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// How many on all cores.
    pub fn total(&self, what: Count) -> u64 {
        self.cores.iter().map(|core| core.counts[what as usize].load(Ordering::Relaxed)).sum()
    }

    /// Pages that the program has touched first, less those that it has given up, wherever they were then.
    pub fn has(&self) -> i64 {
        let gone = self.total(Count::GivenUp) + self.total(Count::GivenUpOut);
        self.total(Count::Touched).cast_signed() - gone.cast_signed()
    }

    /// A fault on `core` has ended after `ns` nanoseconds.
    pub fn fault(&self, core: usize, kind: FaultKind, ns: u64) {
        let mine = self.core(core);
        mine.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
        mine.latency[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        if ns > mine.latency_max.load(Ordering::Relaxed) {
            mine.latency_max.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// A first touch on `core` has ended after `ns` nanoseconds. If it has waited, what it took beyond some time was that.
    pub fn touch(&self, core: usize, ns: u64, waited: bool) {
        // As the sum of all latencies has it.
        let ns = bucket_top(bucket(ns));
        self.add(core, Count::TouchNs, if waited { ns.min(TOUCH_NS_MOST) } else { ns });
    }

    /// Faults of a kind.
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.cores.iter().map(|c| c.kinds[kind as usize].load(Ordering::Relaxed)).sum()
    }

    /// Pages became managed (positive) or stopped (negative).
    pub fn manage(&self, pages: i64) {
        let now = self.managed.now.fetch_add(pages as u64, Ordering::Relaxed).wrapping_add(pages as u64);
        if pages > 0 {
            self.managed.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Pages that are managed now.
    #[inline]
    pub fn managed(&self) -> u64 {
        self.managed.now.load(Ordering::Relaxed)
    }

    /// The most pages that ever were managed.
    pub fn managed_peak(&self) -> u64 {
        self.managed.peak.load(Ordering::Relaxed)
    }

    /// The evictor of a core has seen that so many pages have bytes, or fewer.
    pub(crate) fn note_used(&self, core: usize, pages: u64) {
        self.core(core).used_peak.fetch_max(pages, Ordering::Relaxed);
    }

    /// The most pages that had bytes at a time, or more, as evictors have seen it; 0: none has looked.
    pub fn used_peak(&self) -> u64 {
        let seen = self.cores.iter().map(|core| core.used_peak.load(Ordering::Relaxed)).max().unwrap_or(0);
        seen.min(self.managed_peak())
    }

    /// Percentiles of all faults so far.
    pub fn latency(&self) -> Latency {
        let sum = |b: usize| -> u64 { self.cores.iter().map(|c| c.latency[b].load(Ordering::Relaxed)).sum() };
        let counts: Vec<u64> = (0..BUCKETS).map(sum).collect();
        let total: u64 = counts.iter().sum();
        let max = self.cores.iter().map(|c| c.latency_max.load(Ordering::Relaxed)).max().unwrap_or(0);
        let at = |permille: u64| {
            let want = (total * permille).div_ceil(1000);
            let mut seen = 0;
            counts.iter().position(|c| {
                seen += c;
                seen >= want
            })
        };
        let value = |permille: u64| if total == 0 { 0 } else { at(permille).map_or(max, |b| bucket_top(b).min(max)) };
        let all = counts.iter().enumerate().fold(0u64, |all, (b, count)| all.saturating_add(count.saturating_mul(bucket_top(b))));
        Latency { p50: value(500), p90: value(900), p99: value(990), p999: value(999), max, total: all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_close() {
        let mut last = 0;
        for ns in (0..200u64).chain((8..40).map(|p| 1 << p)).chain((8..39).map(|p| 3 << p)) {
            let top = bucket_top(bucket(ns));
            assert!(top >= ns, "{ns} → {top}");
            assert!(top <= ns.max(16) + ns / 8 + 16, "{ns} → {top}");
            last = last.max(bucket(ns));
        }
        assert!(last < BUCKETS);
    }

    #[test]
    fn the_peak_of_managed_pages_stays() {
        let s = Stats::new(1);
        s.manage(512);
        s.manage(-500);
        s.manage(100);
        assert_eq!((s.managed(), s.managed_peak()), (112, 512));
    }

    #[test]
    fn percentiles() {
        let s = Stats::new(2);
        for i in 0..1000 {
            s.fault(i % 3, FaultKind::Fetch, if i < 990 { 1000 } else { 1_000_000 });
        }
        let l = s.latency();
        assert!((1000..1100).contains(&l.p50) && l.max == 1_000_000 && l.p999 >= 900_000, "{l:?}");
        assert!((10_990_000..11_800_000).contains(&l.total), "990 of 1 µs and ten of 1 ms: {l:?}");
        assert_eq!(s.faults(FaultKind::Fetch), 1000);
    }

    #[test]
    fn the_time_of_first_touches_is_without_their_waits() {
        let stats = Stats::new(1);
        for (ns, waited) in [(1_000_000, false), (3_000, true), (1_000_000, true)] {
            stats.fault(0, FaultKind::Zero, ns);
            stats.touch(0, ns, waited);
        }
        // What is left of the sum of all is the wait.
        let left = stats.latency().total - stats.total(Count::TouchNs);
        assert!((950_000..1_100_000).contains(&left), "{left}");
    }
}
