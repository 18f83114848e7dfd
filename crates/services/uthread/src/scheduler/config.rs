//! How a runtime is made.

use crate::scheduler::dispatch::Policy;
use core::time::Duration;

/// How a unithread waits for a fetch or a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WaitMode {
    /// The worker runs other unithreads meanwhile.
    #[default]
    Yield,
    /// The worker sleeps. To compare with.
    Block,
    /// The worker looks for the completion without end, as systems before Adios do. To compare with.
    Busy,
}

/// Who sends the replies of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replies {
    /// A thread that does nothing else, when the unithread has ended.
    #[default]
    Delegated,
    /// For datagrams the worker, which looks for the end of the send without end, as systems do without polling delegation. To compare with. Replies on connections are
    /// delegated as before.
    Own,
}

/// What happens when a unithread panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Panics {
    /// It is reported: by the panic hook on stderr, to the thread that joins it, and in [`crate::Handle::panics`]. The process goes on. Refused where panics cannot be
    /// caught (`panic = "abort"`).
    Report,
    /// It is reported on stderr, and the process is aborted.
    End,
}

/// How a runtime is made. The default has a worker for each core, and 4,096 unithreads with 64 KiB each.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workers, 1 to 64; 0: one for each core that the process may use.
    pub workers: usize,
    /// Unithreads that there can be at a time, 1 to 2²⁴.
    pub unithreads: usize,
    /// Bytes of stack, control block and request buffer of one unithread together; a multiple of 4,096, at least 16,384. What is touched takes RAM,
    /// the rest addresses alone.
    pub stack_bytes: usize,
    /// Bytes of addresses without memory between two unithreads; a multiple of 4,096.
    pub guard_bytes: usize,
    /// Bytes of the request buffer; a multiple of 4,096 less what the control block takes wastes nothing.
    pub buffer_bytes: usize,
    /// Each worker stays on a core of its own.
    pub pin: bool,
    /// Which idle worker gets a new unithread.
    pub policy: Policy,
    /// How unithreads wait for fetches.
    pub wait: WaitMode,
    /// Who sends replies.
    pub replies: Replies,
    /// How long a worker whose unithreads all wait looks for completions before it sleeps. A worker without fetches under way sleeps at once.
    pub poll: Duration,
    /// After so long a unithread gives way in [`crate::checkpoint`], if others want to run. It counts from the first checkpoint; where waits are in place, and so a part of
    /// it, from when the unithread was resumed. [`Duration::MAX`]: never.
    pub slice: Duration,
    /// What happens at a panic.
    pub panics: Panics,
    /// What the time of datagrams' requests goes to is recorded, and kept for the last so many ([`crate::Handle::breakdown`]). 0: nothing is recorded.
    pub breakdown: usize,
    /// Unithreads wait in place inside of libc, the allocator and the C++ library, which have locks and thread-local data. Without this the program holds
    /// ([`crate::hold`], [`crate::Allocator`]) around each call of theirs that may touch far memory. That is exact, whereas this takes what an earlier call has left on
    /// the stack for a call: code with large variables that it does not write to may wait in place often.
    pub guard_libc: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            workers: 0,
            unithreads: 4096,
            stack_bytes: 64 << 10,
            guard_bytes: 64 << 10,
            buffer_bytes: 2048,
            pin: true,
            policy: Policy::FewestFetches,
            wait: WaitMode::Yield,
            replies: Replies::Delegated,
            poll: Duration::ZERO,
            slice: Duration::from_micros(100),
            panics: if cfg!(panic = "abort") { Panics::End } else { Panics::Report },
            breakdown: 0,
            guard_libc: true,
        }
    }
}
