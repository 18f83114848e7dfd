//! Options of `farshore-load open`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use farshore_load::rates::{Goal, Rates, rate, time};
use farshore_load::workload::{number, seconds};

use super::sizes::Sizes;
use super::target::Target;

/// Of vectors, as an option's range has it.
const DIMENSIONS_MAX: i64 = farshore_load::vectors::DIMENSIONS_MAX as i64;

/// `open`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Open {
    /// What the server does
    #[arg(value_enum)]
    pub service: Kind,
    /// Where it listens: udp:ADDRESS:PORT or tcp:ADDRESS:PORT
    pub target: Target,
    /// Allow a server that is not on this machine
    #[arg(long)]
    pub remote: bool,
    /// Requests a second, whatever the answers do
    #[arg(long, value_name = "N", default_value_t = 10_000.0, value_parser = rate)]
    pub rate: f64,
    /// Closed loop in place of --rate: N requests are under way always, each answer makes the next one leave
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "sweep"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub closed: Option<u32>,
    /// Find the highest rate of LOW..HIGH at which --target is met; each rate runs for --warmup and --seconds
    #[arg(long, value_name = "LOW..HIGH", conflicts_with = "rate", requires = "goal")]
    pub sweep: Option<Rates>,
    /// What --sweep wants, such as p99.9=1ms: that percentile of the latency is at most that; lost requests never were answered
    #[arg(long = "target", value_name = "PERCENTILE=TIME", id = "goal", requires = "sweep")]
    pub goal: Option<Goal>,
    /// A rate of --sweep has missed --target if it did so many times in a row: once may be another program's doing
    #[arg(long, value_name = "N", default_value_t = 1, requires = "sweep", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub tries: u32,
    /// Measured seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds of the same load before that
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub warmup: f64,
    /// Where the random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Threads of the generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Connections (UDP: sockets)
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub connections: u32,
    /// Items of the server: keys, length of the array, vectors, or (tpcc) warehouses
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub items: u64,
    /// Which keys are asked for: uniform, or zipf:EXPONENT
    #[arg(long, value_name = "DISTRIBUTION", default_value = "uniform", value_parser = keys)]
    pub keys: Keys,
    /// Shares of the operations, in percent or any other unit: get=90,set=10 (kv), get=99,scan=1 (scan); if not given all are GETs, and for tpcc neworder=45,payment=43,orderstatus=4,delivery=4,stocklevel=4; vsearch has one, search
    #[arg(long, value_name = "OPERATION=SHARE,...", value_parser = mix)]
    pub mix: Option<Mix>,
    /// kv: bytes of a key
    #[arg(long, value_name = "BYTES", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=250))]
    pub key_size: u32,
    /// kv: bytes of a value: N, LOW..HIGH (uniform), or SIZE=SHARE,SIZE=SHARE,...; each key has always the same size
    #[arg(long, value_name = "SIZES", default_value = "1024")]
    pub value_size: Sizes,
    /// kv: SET all keys first; values older than the newest one acknowledged (TCP), and missing ones, are wrong then
    #[arg(long)]
    pub fill: bool,
    /// kv: a key that is missing after --fill was evicted, which is not wrong
    #[arg(long)]
    pub allow_misses: bool,
    /// vsearch: numbers of a vector
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "file", value_parser = clap::value_parser!(u32).range(1..=DIMENSIONS_MAX))]
    pub dimensions: u32,
    /// vsearch: the server's vectors, and the queries behind them, are those of FILE.fvecs or FILE.bvecs
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// vsearch: different queries, from which --keys draws
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub queries: u32,
    /// vsearch: the first N queries have their nearest vectors found beforehand, by looking at all of them; recall is told of these
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub recall_of: u32,
    /// vsearch: how many of the nearest vectors are asked for
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub nearest: u32,
    /// vsearch: lists that a search reads [default: as the server was told]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub probes: Option<u32>,
    /// An answer that has not come after this time is lost
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub timeout: Duration,
    /// Requests under way at most, of all connections; those that would be more are not sent, and counted
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub window: u32,
    /// Do not sleep if the next request is due sooner than this; 0s where generator and server share a processor
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = time)]
    pub spin: Duration,
    /// A request that is sent this much after its time is late: the generator is too slow if 1 % of them are
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = time)]
    pub late: Duration,
    /// Exit status 3 if the generator was too slow
    #[arg(long)]
    pub strict: bool,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the latencies as lines: operation, percentile, microseconds, count (with --sweep: a line for each rate)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the latencies of all operations in HdrHistogram's percentile format, in microseconds
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    pub histogram: Option<PathBuf>,
    /// Draw the latency over percentiles (with --sweep: over rates), to FILE.svg or FILE.html
    #[arg(long, value_name = "FILE", value_parser = drawing)]
    pub plot: Option<PathBuf>,
}

/// A service.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An array of numbers: GET of an index
    Array,
    /// memcached's text protocol: GET and SET
    Kv,
    /// Ordered numbers: GET of a key, SCAN of 100 keys
    Scan,
    /// TPC-C: its five transactions
    Tpcc,
    /// The nearest vectors: Redis' FT.SEARCH
    Vsearch,
}

/// How keys are drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Keys {
    /// Each as often as any other.
    Uniform,
    /// The n-th most wanted in proportion to 1/n to this power.
    Zipf(f64),
}

/// Shares of the operations: (name, share).
#[derive(Clone, PartialEq, Debug)]
pub struct Mix(pub Vec<(String, f64)>);

fn keys(text: &str) -> Result<Keys, String> {
    match text.split_once(':') {
        None if text == "uniform" => Ok(Keys::Uniform),
        Some(("zipf", exponent)) => Ok(Keys::Zipf(number(exponent, "exponent", 0.0, 10.0)?)),
        _ => Err(format!("invalid keys {text:?}: write uniform, or zipf:EXPONENT such as zipf:0.99")),
    }
}

fn mix(text: &str) -> Result<Mix, String> {
    let wrong = || format!("invalid mix {text:?}: write OPERATION=SHARE,..., such as get=90,set=10");
    let part = |part: &str| {
        let (name, share) = part.split_once('=').ok_or_else(wrong)?;
        Ok::<_, String>((name.to_owned(), number(share, "share", 0.0, 1e9)?))
    };
    let parts: Vec<_> = text.split(',').map(part).collect::<Result<_, _>>()?;
    if parts.iter().map(|(_, share)| share).sum::<f64>() > 0.0 { Ok(Mix(parts)) } else { Err(wrong()) }
}

fn drawing(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|end| end.to_str()) {
        Some("svg" | "html") => Ok(path),
        _ => Err(format!("invalid file {text:?}: its name has to end in .svg or .html")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_mixes() {
        assert_eq!(keys("uniform"), Ok(Keys::Uniform));
        assert_eq!(keys("zipf:0.99"), Ok(Keys::Zipf(0.99)));
        assert!(keys("zipf").is_err() && keys("zipf:x").is_err() && keys("uniform:1").is_err());
        assert_eq!(mix("get=99,scan=1"), Ok(Mix(vec![("get".into(), 99.0), ("scan".into(), 1.0)])));
        assert!(mix("get").is_err() && mix("get=0").is_err() && mix("get=x").is_err() && mix("").is_err());
    }
}
