//! Options of `farshore bench uthread`.

use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use farshore_config::SwapSpec;
use farshore_load::rates::{Goal, Rates, rate};
use farshore_load::size::Bytes;

use crate::args::positive;

const AFTER: &str = "\
Examples:
  farshore bench uthread array
      yield, busy, block and Linux swap, with pages that take 10 us
  farshore bench uthread kv --swap dir:/mnt/nvme --results results
      a memcached whose values are on a disk
  farshore bench uthread scan --swap dir:/mnt/nvme
      an LMDB; 1 % of the requests read 100 values in a row
  farshore bench uthread tpcc --transport tcp --mode yield:1 --mode busy:1
      TPC-C, whose transactions leave their worker in the midst of their work
  farshore bench uthread vsearch --data 128M --outstanding 32 --mode yield:1 --mode busy:1
      the nearest vectors of a query: each request reads lists of hundreds of vectors in a row
  farshore bench uthread array --mode yield:1 --mode block:8,16 --phases throughput --rounds 3
      two modes, and how much they can do
  farshore bench uthread array --mode yield:2 --mode busy:2 --cores 2
      two workers each; needs a third core for the generator
  farshore bench uthread array --mode yield:2 --mode yield-rr:2 --cores 2
      what it gains to give requests to the worker with the fewest fetches under way
  farshore bench uthread kv --mode yield:1 --mode memcached:1,2 --mode memcached-swap:1,2 \\
          --swap dir:/var/tmp --transport tcp --phases capacity
      the highest rates with a 99th percentile of at most 1 ms
  farshore bench uthread switch
      what a switch between two unithreads costs

Modes:
  yield:N   N workers run other unithreads while a page comes
  busy:N    N workers spin until the page is there, and serve each request to its end
  preempt:N the same, but a request that has run for 5 us gives way to others where it can: at each
            value of a SCAN, each row of a transaction, each 16 vectors of a search
  block:N   N workers, which are OS threads, sleep until the page is there
  swap:N    the same without Farshore, in a memory cgroup with Linux swap on the disk of --dir,
            whatever --swap says (root)
  zram:N    the same with Linux swap on zram, whose pages come from RAM (root)
  memcached:N, memcached-swap:N, memcached-zram:N
            kv: the real memcached (from PATH) with N threads in place of farshore-serve, under
            farshore run, with Linux swap, and with Linux swap on zram. Use --transport tcp: its
            socket for datagrams holds 130 or so, and loses what comes while it is full
With -rr, as in yield-rr:N, idle workers get requests in turn (round robin), and not the one with
the fewest fetches; with -own, as in yield-own:N, workers send answers over UDP themselves, and no
thread for that does (no polling delegation); neither is for memcached. Of several numbers, a short
first pass finds the best one.
All workers share the cores of --cores.

Phases:
  throughput  closed loop: --outstanding requests are always under way; the ratios say how many
              times better the first mode is
  latency     open loop: requests come at the times of a Poisson process, at --at of the rate that
              the reference reached in the first phase. The figure is the 99.9th percentile (scan:
              of its GETs); a request without an answer counts as 1 s
  floor       the load of the latency phase for the first mode, with more memory than data: how much
              of the latency is the machine's
  local       the first phase once more with more memory than data, for yield, block and memcached
  capacity    open loop at rate after rate, --seconds each. The figure is the highest rate of
              --rates at which --target is met, 0 if none is. A rate that misses it is tried once
              more (scan: --target is for all requests)

All answers are checked: one that is wrong or comes twice makes the exit status 1.
Not for this: --against, --builds, --sweep, --memory, --pool, --swap-files.

Environment:
  FARSHORE_SERVE, FARSHORE_LOAD  farshore-serve and farshore-load, if they are not beside farshore";

/// `farshore bench uthread`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER, override_usage = "farshore bench uthread [array|kv|scan|tpcc|vsearch|switch] [OPTIONS]")]
pub struct UthreadArgs {
    /// The service; or what a switch costs
    #[arg(value_enum, default_value_t = What::Array)]
    pub what: What,
    /// How the server waits, and with how many workers: see Modes below; repeat for more, the first is set against the others
    /// [default: yield:1, busy:1, block:8,16,32,64 and swap:8,16,32]
    #[arg(long = "mode", value_name = "MODE:N[,N]...")]
    pub modes: Vec<Modes>,
    /// The server's data
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub data: Bytes,
    /// How much of --data may be local
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    pub share: Percent,
    /// Where the rest is, as for farshore run; repeat for more [default: delay:10us]
    #[arg(long = "swap", value_name = "SPEC", value_parser = swap)]
    pub swaps: Vec<String>,
    /// Measured seconds of a run
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = positive)]
    pub seconds: f64,
    /// Seconds of the same load before that
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = positive)]
    pub warmup: f64,
    /// Requests under way in the closed loop
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub outstanding: u32,
    /// Load of the latency phase: a share of the highest throughput of --reference
    #[arg(long, value_name = "PERCENT", default_value = "80%")]
    pub at: Percent,
    /// The mode whose throughput --at is a share of [default: busy; block if a swap space is on a disk]
    #[arg(long, value_enum, value_name = "MODE")]
    pub reference: Option<Wait>,
    /// Load of the latency phase in requests a second, in place of --at
    #[arg(long, value_name = "N", value_parser = rate, conflicts_with_all = ["at", "reference"])]
    pub rate: Option<f64>,
    /// What is measured
    #[arg(long, value_enum, value_name = "PHASE,...", value_delimiter = ',', default_values_t = [Phase::Throughput, Phase::Latency, Phase::Floor, Phase::Local])]
    pub phases: Vec<Phase>,
    /// Rates that the capacity phase looks through, in requests a second
    #[arg(long, value_name = "LOW..HIGH", default_value = "1000..200000")]
    pub rates: Rates,
    /// What the capacity phase wants: a percentile of the latency that is at most TIME
    #[arg(long, value_name = "PERCENTILE=TIME", default_value = "p99=1ms")]
    pub target: Goal,
    /// How requests travel
    #[arg(long, value_enum, default_value_t = Transport::Udp)]
    pub transport: Transport,
    /// array: bytes of an item
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=4096))]
    pub item_bytes: u16,
    /// kv, scan: bytes of a value; for scan a multiple of 8
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..=65536))]
    pub value_size: u32,
    /// Unithreads of the server: the most requests that it has under way
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub unithreads: u32,
    /// Have the server record what the time of requests over UDP goes to; rounds in --json tell it for four percentiles
    #[arg(long)]
    pub breakdown: bool,
    /// Cores for the server's workers; the generator gets the others. 0: nothing is bound
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cores: u16,
}

/// What is measured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// An array of numbers, uniform keys
    Array,
    /// A memcached, keys with Zipf popularity (0.99)
    Kv,
    /// An ordered store, LMDB, uniform keys: 99 % GET, 1 % SCAN of 100 values
    Scan,
    /// The database of TPC-C, a warehouse for each 100 MiB of --data: its five transactions
    Tpcc,
    /// The nearest vectors of a query, uniform: an inverted file with a list for each cell; recall is told
    Vsearch,
    /// A switch between two unithreads: no server
    Switch,
}

impl What {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            What::Array => "array",
            What::Kv => "kv",
            What::Scan => "scan",
            What::Tpcc => "tpcc",
            What::Vsearch => "vsearch",
            What::Switch => "switch",
        }
    }
}

/// What a worker does while a page comes.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Runs other unithreads
    Yield,
    /// Spins until it is there, and serves requests to their ends
    Busy,
    /// Spins, and long requests give way
    Preempt,
    /// Sleeps
    Block,
    /// Sleeps in the kernel: Linux swap
    Swap,
    /// The same with Linux swap on zram
    Zram,
    /// A thread of the real memcached, which sleeps
    Memcached,
    /// The same with Linux swap
    MemcachedSwap,
    /// The same with Linux swap on zram
    MemcachedZram,
}

impl Wait {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Wait::Yield => "yield",
            Wait::Busy => "busy",
            Wait::Preempt => "preempt",
            Wait::Block => "block",
            Wait::Swap => "swap",
            Wait::Zram => "zram",
            Wait::Memcached => "memcached",
            Wait::MemcachedSwap => "memcached-swap",
            Wait::MemcachedZram => "memcached-zram",
        }
    }

    /// Whether it is without Farshore.
    #[must_use]
    pub fn is_linux_swap(self) -> bool {
        matches!(self, Wait::Swap | Wait::Zram | Wait::MemcachedSwap | Wait::MemcachedZram)
    }

    /// Whether the server is the real memcached.
    #[must_use]
    pub fn is_memcached(self) -> bool {
        matches!(self, Wait::Memcached | Wait::MemcachedSwap | Wait::MemcachedZram)
    }
}

/// A part of the measurement.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Highest throughput
    Throughput,
    /// Latency at a share of it
    Latency,
    /// The same load with all data local
    Floor,
    /// All data local
    Local,
    /// Highest rate with a latency that is wanted
    Capacity,
}

/// How requests travel.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Datagrams
    Udp,
    /// Connections, as many as --outstanding
    Tcp,
}

impl Transport {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        }
    }
}

/// What the name of a mode ends in whose workers get requests in turn.
const IN_TURN: &str = "-rr";
/// And in whose workers send their answers themselves.
const OWN: &str = "-own";

/// A way to wait with a number of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    /// What they do.
    pub wait: Wait,
    /// Requests go to idle workers in turn, not to the one with the fewest fetches under way.
    pub in_turn: bool,
    /// Workers send answers over UDP themselves.
    pub own_replies: bool,
    /// How many there are.
    pub workers: u16,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = |has, suffix| if has { suffix } else { "" };
        write!(f, "{}{}{}:{}", self.wait.name(), suffix(self.in_turn, IN_TURN), suffix(self.own_replies, OWN), self.workers)
    }
}

/// One `--mode`: of several numbers the best counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Modes(pub Vec<Mode>);

impl FromStr for Modes {
    type Err = String;

    fn from_str(text: &str) -> Result<Modes, String> {
        let wrong = || {
            format!(
                "invalid mode {text:?}: write yield:N, busy:N, preempt:N, block:N,..., swap:N,..., zram:N,..., memcached:N,..., memcached-swap:N,... or memcached-zram:N,... with 1 to 64 workers, such as block:8,16, yield-rr:N or yield-own:N"
            )
        };
        let (name, numbers) = text.split_once(':').ok_or_else(wrong)?;
        let (name, own_replies) = name.strip_suffix(OWN).map_or((name, false), |name| (name, true));
        let (name, in_turn) = name.strip_suffix(IN_TURN).map_or((name, false), |name| (name, true));
        let wait = Wait::from_str(name, false).map_err(|_| wrong())?;
        if (in_turn || own_replies) && wait.is_memcached() {
            return Err(wrong());
        }
        let mode = |number: &str| match number.trim().parse() {
            Ok(workers @ 1..=64) => Ok(Mode { wait, in_turn, own_replies, workers }),
            _ => Err(wrong()),
        };
        numbers.split(',').map(mode).collect::<Result<_, _>>().map(Modes)
    }
}

/// A share, as a percentage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Percent(pub f64);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Percent, String> {
        match text.trim_end_matches('%').trim().parse::<f64>() {
            Ok(value) if (1.0..=100.0).contains(&value) => Ok(Percent(value)),
            _ => Err(format!("invalid percentage {text:?}: write a number from 1 to 100, such as 20%")),
        }
    }
}

impl Percent {
    /// That share of `whole`.
    #[must_use]
    pub fn of(self, whole: f64) -> f64 {
        whole * self.0 / 100.0
    }
}

/// Refuses what no swap space is.
fn swap(text: &str) -> Result<String, String> {
    text.parse::<SwapSpec>().map(|_| text.to_string()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read() {
        let modes = |text: &str| text.parse::<Modes>().map(|modes| modes.0.iter().map(Mode::to_string).collect::<Vec<_>>());
        assert_eq!(modes("yield:1"), Ok(vec!["yield:1".into()]));
        assert_eq!(modes("block:8, 16"), Ok(vec!["block:8".into(), "block:16".into()]));
        for suffixed in ["yield-rr:2", "yield-own:1", "busy-rr-own:2"] {
            assert_eq!(modes(suffixed), Ok(vec![suffixed.into()]));
        }
        assert_eq!(modes("zram:16"), Ok(vec!["zram:16".into()]));
        assert_eq!(modes("preempt:1"), Ok(vec!["preempt:1".into()]));
        assert_eq!(modes("memcached-swap:1,2"), Ok(vec!["memcached-swap:1".into(), "memcached-swap:2".into()]));
        assert_eq!(modes("memcached-zram:4"), Ok(vec!["memcached-zram:4".into()]));
        for wrong in [
            "",
            "yield",
            "yield:",
            "yield:0",
            "block:65",
            "block:8,",
            "sleep:1",
            "swap:x",
            "-rr:1",
            "yield-own-rr:1",
            "memcached-rr:1",
            "memcached-own:1",
        ] {
            assert!(modes(wrong).is_err_and(|why| why.contains("invalid mode") && why.lines().count() == 1), "{wrong:?}");
        }
    }

    #[test]
    fn percentages_and_swap_spaces_are_read() {
        assert_eq!(("20%".parse(), "12.5".parse(), "100 %".parse()), (Ok(Percent(20.0)), Ok(Percent(12.5)), Ok(Percent(100.0))));
        for wrong in ["", "0", "101%", "x", "NaN"] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong:?}");
        }
        assert!((Percent(20.0).of(50.0) - 10.0).abs() < 1e-9);
        assert!(swap("delay:10us").is_ok() && swap("tape:x").is_err());
    }
}
