//! Tools outside the process that want to hear what the engine does: debuggers, perf, bpftrace.

/// What such a tool can hear of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Traced {
    /// A thread touched a page that is absent or write-protected.
    Fault = 0,
    /// Pages came from swap space.
    Fetched = 1,
    /// Pages left.
    Evicted = 2,
    /// A page that had left came back from RAM.
    Rescued = 3,
}

impl Traced {
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// What a tool is told. It knows by itself which thread runs, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// The byte that was touched, or the first page.
    pub address: u64,
    /// How many pages.
    pub pages: u64,
    /// As the events of policies have it.
    pub detail: u64,
    /// Of a fault: the instruction's address; 0 if it is not known.
    pub instruction: u64,
}

/// How tools hear. Both functions run on the fault path: no locks, no allocation.
pub trait Tracer: Send + Sync + 'static {
    /// Whether somebody listens. It is asked at each fault, so it must cost next to nothing while nobody does.
    fn hears(what: Traced) -> bool;
    /// Tells those who listen.
    fn tell(what: Traced, told: &Told);
}

/// Nobody listens, and nothing of a tracer is built.
impl Tracer for () {
    #[inline(always)]
    fn hears(_: Traced) -> bool {
        false
    }
    #[inline(always)]
    fn tell(_: Traced, _: &Told) {}
}
