//! `farshore-serve`: servers whose data may be far away.
//!
//! Exit status 0: told to end; 1: it could not be run; 2: wrong options.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use farshore_config::{ConfigError, Size};
use farshore_load::vectors::{DIMENSIONS_MAX, Vectors};
use farshore_serve::array::Array;
use farshore_serve::kv::session;
use farshore_serve::kv::store::{MEMORY_MAX, Store, memory_min};
use farshore_serve::scan::{self, Scan};
use farshore_serve::service::{self, Options};
use farshore_serve::tpcc::database::{Database, ORDERS_MAX, Scale, WAREHOUSES_MAX};
use farshore_serve::tpcc::populate::populate;
use farshore_serve::tpcc::server::Server;
use farshore_serve::vsearch;
use farshore_serve::vsearch::index::{Error, Index, LISTS_MAX, usual_lists};

#[global_allocator]
static HEAP: farshore_uthread::Allocator = farshore_uthread::Allocator;

const AFTER_HELP: &str = "\
Examples:
  farshore-serve kv --memory 4G
      a memcached on 127.0.0.1:11211
  farshore-serve kv --listen 127.0.0.1:0 --udp 127.0.0.1:0
      on ports that the kernel chooses: see the line on stderr
  farshore run --memory 1G -- farshore-serve kv --memory 4G
      4 GiB of items in 1 GiB of RAM
  farshore-serve array --items 16M --item-bytes 256
      4 GiB of numbers
  farshore-serve scan --items 4M
      4 GiB of values in the order of their keys, in an LMDB
  farshore-serve tpcc --warehouses 10
      the database of TPC-C, with its five transactions
  farshore-serve vsearch --items 1M
      500 MiB of vectors, of which the nearest are found, in the protocol of Redis

When it is ready it says so on stderr, with its addresses. SIGTERM and SIGINT end it.

Exit status: 0 if it was told to end, 1 if it could not be run, 2 for wrong options.";

const KV_HELP: &str = "\
Examples:
  farshore-serve kv --memory 4G --workers 2               4 GiB of items, besides the index
  farshore-serve kv --max-item 8M --max-connections 100   larger items for fewer clients
  farshore-serve kv --wait block                          for comparison: a worker sleeps for a page

It speaks memcached's text protocol, classic and meta. There is no binary protocol and no
authentication: whoever reaches its address can read and write everything. Over UDP the sender may
be forged, so what is no command gets no answer, and a long answer is refused (--max-udp-answer).
--memory is for items; their index takes some 50 bytes for each, on top.";

const ARRAY_HELP: &str = "\
Examples:
  farshore-serve array --items 1M --item-bytes 4096 --udp 127.0.0.1:7000

Requests and answers are two little-endian words of 8 bytes: a number that the client chooses, and
the index, or its value.";

const SCAN_HELP: &str = "\
Examples:
  farshore-serve scan --items 1M --value-bytes 1024 --udp 127.0.0.1:7000
  farshore-serve scan --items 4M --path /mnt/nvme         its first file needs room for a moment
  farshore run --memory 1G -- farshore-serve scan --items 4M
                                                          4 GiB of values in 1 GiB of RAM

A request has three little-endian words of 8 bytes: a number that the client chooses, the
operation, and a key from 0 on. Operations are 0, GET; and 1, SCAN, plus 256 times how many values
it wants, where 0 stands for 100. An answer has four words: that number; a status (0 found, 1 not
found, 2 more than --max-scan); how many values were found, or, for status 2, may be asked for; and
their sum.";

const TPCC_HELP: &str = "\
Examples:
  farshore-serve tpcc --warehouses 10 --workers 2         1 GiB of rows
  farshore run --memory 200M -- farshore-serve tpcc --warehouses 10
                                                          the same in a fifth of it
  farshore-load open tpcc tcp:127.0.0.1:11211 --items 10  load for 10 warehouses
  printf 'check\\r\\nquit\\r\\n' | nc 127.0.0.1 11211        are the conditions so?

A request is a line, and so is its answer, which begins with OK, ROLLBACK, BROKEN or ERROR:
  neworder W D C ITEM:SUPPLIER:QUANTITY ...      5 to 15 items; ROLLBACK if one is not there
  payment W D CUSTOMER_W CUSTOMER_D WHO CENTS    WHO: a number, or a last name
  orderstatus W D WHO
  delivery W CARRIER
  stocklevel W D THRESHOLD
  check    the consistency conditions of the specification; nothing else is done meanwhile
  stats    what happened since the start
  quit
Over UDP a datagram is 8 bytes that the client chooses, and a line; check, stats and quit are not
understood there. The sender may be forged, so a request is refused whose answer may be long
(--max-udp-answer): orderstatus and neworder may have some 850 bytes. There is no authentication.
The rows are in memory alone: they end with the server.";

const VSEARCH_HELP: &str = "\
Examples:
  farshore-serve vsearch --items 1M --workers 2           made vectors; some 512 bytes each
  farshore-serve vsearch --file sift_base.fvecs --items 1000000
                                                          those of a file
  farshore run --memory 100M -- farshore-serve vsearch --items 1M
                                                          the same in a fifth of it
  farshore-load open vsearch tcp:127.0.0.1:11211 --items 1048576 --rate 500
                                                          load, which tells the recall
  redis-cli -p 11211 info                                 what happened

It is an inverted file of whole vectors (Faiss: IVFFlat) with Euclidean distances, and speaks the
protocol of Redis, version 2. A search is
  FT.SEARCH vectors '*=>[KNN 10 @vector $q AS d]' PARAMS 2 q BYTES DIALECT 2
where BYTES are the little-endian numbers of 4 bytes (FLOAT32) of the query. It answers with how
many were found, at most 100, and for each its number and the square of its distance, the nearest
first.
NPROBE n behind $q reads n lists in place of --probes. LIMIT, RETURN, NOCONTENT, and SORTBY the
distance are understood; filters are not. Other commands:
  VERIFY           looks at all vectors: is each what was stored?
  INFO             what happened since the start
  FT.INFO vectors  what the index is
Over UDP a datagram is 8 bytes that the client chooses, and an FT.SEARCH of at most 2040 bytes;
the sender may be forged, so one whose answer may be long is refused (--max-udp-answer). There is no
authentication. Vectors are there from the start: none is added or taken away.";

/// Servers on unithreads, whose data may be far away
#[derive(Parser, Debug)]
#[command(name = "farshore-serve", version, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    service: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// A memcached
    #[command(after_help = KV_HELP)]
    Kv(Kv),
    /// An array: index to value
    #[command(after_help = ARRAY_HELP)]
    Array(ArrayOptions),
    /// An ordered store, LMDB: GET of a key, SCAN of many
    #[command(after_help = SCAN_HELP)]
    Scan(ScanOptions),
    /// The database of TPC-C: its five transactions
    #[command(after_help = TPCC_HELP)]
    Tpcc(TpccOptions),
    /// The nearest vectors of a query: Redis' FT.SEARCH
    #[command(after_help = VSEARCH_HELP)]
    Vsearch(VsearchOptions),
}

#[derive(Args, Debug)]
struct Kv {
    #[command(flatten)]
    common: Options,
    /// Memory for items; the least recently used ones go when it is full
    #[arg(short, long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    memory: usize,
    /// The largest item, with its key
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size)]
    max_item: usize,
    /// The longest line of a get of many keys
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size)]
    max_line: usize,
    /// The longest answer over UDP, whose sender may be forged; longer ones are refused. What is given is one datagram
    #[arg(long, value_name = "SIZE", default_value = "1392", value_parser = size)]
    max_udp_answer: usize,
}

#[derive(Args, Debug)]
struct ArrayOptions {
    #[command(flatten)]
    common: Options,
    /// Items
    #[arg(long, value_name = "N", default_value = "1M", value_parser = size)]
    items: usize,
    /// Bytes of an item: a multiple of 8, 64 to 4096
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=4096))]
    item_bytes: u16,
}

#[derive(Args, Debug)]
struct ScanOptions {
    #[command(flatten)]
    common: Options,
    /// Items: the keys are 0 to N-1
    #[arg(long, value_name = "N", default_value = "1M", value_parser = size)]
    items: usize,
    /// Bytes of a value: a multiple of 8, 8 to 65536
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    value_bytes: u32,
    /// Values that one SCAN may ask for; more is refused
    #[arg(long, value_name = "N", default_value = "10000", value_parser = size)]
    max_scan: usize,
    /// Directory for the file that the items are first written to; it has no name, and is empty before the server is ready [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct TpccOptions {
    #[command(flatten)]
    common: Options,
    /// Warehouses: some 100 MiB each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=WAREHOUSES_MAX))]
    warehouses: u64,
    /// Orders for which each district has room, the first 3,000 among them: 1 KiB each, once they are there. Ten times as many payments have room in a warehouse
    #[arg(long, value_name = "N", default_value = "1M", value_parser = size)]
    orders: usize,
    /// Where the random numbers of the first rows start
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The longest answer over UDP, whose sender may be forged; requests that may have a longer one are refused
    #[arg(long, value_name = "SIZE", default_value = "1392", value_parser = size)]
    max_udp_answer: usize,
}

#[derive(Args, Debug)]
struct VsearchOptions {
    #[command(flatten)]
    common: Options,
    /// Vectors: so many are made, or are the first ones of --file
    #[arg(long, value_name = "N", default_value = "100K", value_parser = size)]
    items: usize,
    /// Numbers of a vector that is made
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "file", value_parser = clap::value_parser!(u32).range(1..=DIMENSIONS_MAX as i64))]
    dimensions: u32,
    /// Take the vectors of FILE.fvecs or FILE.bvecs, as TEXMEX gives them away; it is read three times, must not change meanwhile, and is not needed any more when the server is ready
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Lists into which the vectors are divided [default: the square root of --items]
    #[arg(long, value_name = "N", value_parser = size)]
    lists: Option<usize>,
    /// Lists that a search reads: with more of them it finds more of the nearest, and takes longer [default: 8, or all if there are fewer]
    #[arg(long, value_name = "N", value_parser = size)]
    probes: Option<usize>,
    /// The longest answer over UDP, whose sender may be forged, at most 2040 bytes; searches that may have a longer one are refused there, and those that want to read more lists than --probes
    #[arg(long, value_name = "SIZE", default_value = "1392", value_parser = size)]
    max_udp_answer: usize,
}

/// Lists that a search of vectors reads.
const PROBES: usize = 8;
/// Room for the first orders of a district, and some more.
const ORDERS_MIN: u64 = 4096;

/// A size such as `512M`, more than 0.
fn size(text: &str) -> Result<usize, String> {
    let Size(bytes) = text.parse().map_err(|error: ConfigError| error.to_string())?;
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(|| format!("invalid size {text:?}: it must be more than 0"))
}

fn wrong(error: impl std::fmt::Display) -> ! {
    Arguments::command().error(ErrorKind::ValueValidation, error).exit()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.service {
        Command::Kv(options) => kv(options),
        Command::Array(options) => array(options),
        Command::Scan(options) => scan(options),
        Command::Tpcc(options) => tpcc(options),
        Command::Vsearch(options) => vsearch(options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("farshore-serve: {error}");
            ExitCode::from(1)
        }
    }
}

fn kv(options: &Kv) -> Result<(), String> {
    if !(1024..=1 << 30).contains(&options.max_item) {
        wrong(format!("--max-item {}: want 1K to 1G", options.max_item));
    }
    let least = memory_min(options.max_item);
    if !(least..=MEMORY_MAX).contains(&options.memory) {
        let mega = |bytes: usize| bytes >> 20;
        wrong(format!("--memory {}: want {}M, for items of --max-item, to {}M", options.memory, mega(least), mega(MEMORY_MAX)));
    }
    let store = Store::new(options.memory, options.max_item).map_err(|error| {
        format!("--memory {}: the kernel refuses the addresses (see ulimit -v and vm.overcommit_memory): {error}", options.memory)
    })?;
    let common = &options.common;
    let service = session::Service::new(
        store,
        options.max_line,
        common.max_connections as usize,
        common.workers.into(),
        options.max_udp_answer,
    );
    service::run(common, Arc::new(service))
}

fn array(options: &ArrayOptions) -> Result<(), String> {
    if !options.item_bytes.is_multiple_of(8) {
        wrong(format!("--item-bytes {}: want a multiple of 8", options.item_bytes));
    }
    let array = Array::new(options.items, options.item_bytes.into())
        .map_err(|error| format!("--items {} --item-bytes {}: {error}", options.items, options.item_bytes))?;
    service::run(&options.common, Arc::new(array))
}

fn scan(options: &ScanOptions) -> Result<(), String> {
    let ScanOptions { common, items, value_bytes, max_scan, path } = options;
    if !value_bytes.is_multiple_of(8) {
        wrong(format!("--value-bytes {value_bytes}: want a multiple of 8"));
    }
    let path = path.clone().unwrap_or_else(std::env::temp_dir);
    let store = scan::Store::new(*items as u64, *value_bytes as usize, &path).map_err(|error| match error {
        scan::Error::TooMany => format!("--items {items} --value-bytes {value_bytes}: {error}"),
        _ => format!("{}: {error}", path.display()),
    })?;
    service::run(common, Arc::new(Scan::new(store, *max_scan as u64)))
}

fn tpcc(options: &TpccOptions) -> Result<(), String> {
    let TpccOptions { common, warehouses, orders, seed, max_udp_answer } = options;
    let orders = *orders as u64;
    if !(ORDERS_MIN..=ORDERS_MAX).contains(&orders) {
        wrong(format!("--orders {orders}: want {ORDERS_MIN} to {ORDERS_MAX}"));
    }
    let scale = Scale::new(*warehouses, orders);
    let database: Database = populate(scale, *seed).map_err(|error| {
        format!(
            "--warehouses {warehouses} --orders {orders}: the kernel refuses the addresses (see ulimit -v and vm.overcommit_memory): {error}"
        )
    })?;
    service::run(common, Arc::new(Server::new(database, *max_udp_answer)))
}

fn vsearch(options: &VsearchOptions) -> Result<(), String> {
    let VsearchOptions { common, items, dimensions, file, lists, probes, max_udp_answer } = options;
    let Ok(count) = u32::try_from(*items) else { wrong(format!("--items {items}: want at most {}", u32::MAX)) };
    let lists = lists.unwrap_or_else(|| usual_lists(count));
    if lists > LISTS_MAX.min(*items) {
        wrong(format!("--lists {lists}: want 1 to {}", LISTS_MAX.min(*items)));
    }
    let probes = probes.unwrap_or(lists.min(PROBES));
    let most = service::REQUEST_MAX - service::NUMBER;
    if *max_udp_answer > most {
        wrong(format!("--max-udp-answer {max_udp_answer}: an answer has at most {most} bytes over UDP"));
    }
    if probes > lists {
        wrong(format!("--probes {probes}: there are {lists} lists"));
    }
    let vectors = match file {
        Some(path) => {
            let vectors = Vectors::of_file(path).map_err(|error| format!("--file {}: {error}", path.display()))?;
            match vectors.count() {
                Some(has) if has < *items as u64 => {
                    return Err(format!("--file {} has {has} vectors: give less --items", path.display()));
                }
                _ => vectors,
            }
        }
        None => Vectors::made(*dimensions as usize),
    };
    let index = Index::new(&vectors, count, lists, vsearch::cells::threads()).map_err(|error| match (&error, file) {
        (Error::Read(_), Some(path)) => format!("--file {}: {error}", path.display()),
        _ => format!("--items {items}: {error}"),
    })?;
    service::run(common, Arc::new(vsearch::server::Server::new(index, probes, *max_udp_answer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_says_what_the_help_says() {
        let mut command = Arguments::command();
        command.build();
        let see = "farshore(1), farshore-bench(1)";
        farshore_manual::check(env!("CARGO_MANIFEST_DIR"), "farshore-serve", &command, farshore_manual::Parts::Sections, see);
    }
}
