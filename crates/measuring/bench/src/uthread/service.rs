//! The server and the generator of one comparison: their command lines.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farshore_load::rates::{Goal, Rates};
use farshore_load::size::Bytes;

use super::args::{Mode, Percent, Transport, UthreadArgs, Wait, What};
use super::cores::{self, Split};
use super::memcached::{self, Memcached};
use super::told::PATIENCE_NS;
use crate::measure::Served;

/// A warm-up round is not longer.
const SHORT_SECONDS: f64 = 1.0;
/// Sockets of the generator over UDP.
const SOCKETS: u32 = 16;
/// Connections that a server takes beyond those of two runs of the generator: it may not have seen yet that those of the last one have ended.
const SPARE_CONNECTIONS: u32 = 16;
/// A memcached gets so many times the memory of its values: none must be thrown away.
const ROOM: u64 = 2;
/// A B-tree so many: pages are not full, and small values have keys that count.
const TREE_ROOM: u64 = 3;
/// TPC-C grows while it is measured.
const GROWTH: u64 = 6;
/// Bytes of a warehouse.
const WAREHOUSE: u64 = 100 << 20;
/// Bytes of a vector of `vsearch`, as the server stores it.
const VECTOR: u64 = 524;
/// The index of `vsearch` is made from a sample, which lies in memory meanwhile.
const INDEX_ROOM: u64 = 2;
/// Requests of `scan`, as Adios has them for RocksDB. The figures there are those of the GETs.
const MIX: &str = "get=99,scan=1";
/// A rate has missed the target if it did so many times in a row. A burst of another program must not end the search at a rate that is far too low;
/// and the first try after the fill misses often, because what is asked for most is not local yet.
const TRIES: u32 = 3;
/// After so long a request gives way with `preempt`: Shinjuku's and Concord's interval, which Adios sets DiLOS-P to.
const SLICE: &str = "5us";
/// Keys of `kv`.
const KEYS: &str = "zipf:0.99";

/// What all runs of a call have in common.
#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    /// The service.
    pub what: What,
    /// `farshore-serve`.
    pub serve: PathBuf,
    /// How requests travel.
    pub transport: Transport,
    /// Its data, in bytes.
    pub data_bytes: u64,
    /// How much of it may be local.
    pub share: Percent,
    /// Bytes of an item of `array`.
    pub item_bytes: u16,
    /// Bytes of a value of `kv` and `scan`.
    pub value_size: u32,
    /// Requests that the server has under way at most.
    pub unithreads: u32,
    /// Requests under way in a closed loop, and TCP connections.
    pub outstanding: u32,
    /// Seconds of load before it counts.
    pub warmup: f64,
    /// Servers of ours record what the time of requests goes to.
    pub breakdown: bool,
    /// Who has which cores.
    pub split: Split,
}

/// How the server is asked.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Load {
    /// So many requests are under way always: the figure is how many are answered a second.
    Closed(u32),
    /// So many come a second: the figure is the 99.9th percentile of the latency.
    Open(f64),
    /// At rate after rate: the figure is the highest one with the latency that is wanted.
    Search(Rates, Goal),
}

/// One comparison: the same load for each of several modes.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// What is the same everywhere.
    pub setting: Setting,
    /// For its name: what of it this is.
    pub title: String,
    /// The modes, one for each target.
    pub modes: Vec<Mode>,
    /// The load.
    pub load: Load,
    /// Measured seconds.
    pub seconds: f64,
}

impl Setting {
    /// As the options say.
    #[must_use]
    pub fn new(arguments: &UthreadArgs, serve: PathBuf, split: Split) -> Setting {
        Setting {
            what: arguments.what,
            serve,
            transport: arguments.transport,
            data_bytes: arguments.data.0,
            share: arguments.share,
            item_bytes: arguments.item_bytes,
            value_size: arguments.value_size,
            unithreads: arguments.unithreads,
            outstanding: arguments.outstanding,
            warmup: arguments.warmup,
            breakdown: arguments.breakdown,
            split,
        }
    }

    /// Keys, items of the array, warehouses, or vectors.
    #[must_use]
    pub fn items(&self) -> u64 {
        match self.what {
            What::Kv | What::Scan => self.data_bytes / u64::from(self.value_size),
            What::Tpcc => self.data_bytes / WAREHOUSE,
            What::Vsearch => self.data_bytes / VECTOR,
            What::Array | What::Switch => self.data_bytes / u64::from(self.item_bytes),
        }
    }

    /// What it must hold at most, in bytes: the values of a memcached have keys, headers and an index besides.
    #[must_use]
    pub fn swap_bytes(&self) -> u64 {
        let room = match self.what {
            What::Kv => ROOM,
            What::Scan => TREE_ROOM,
            What::Tpcc => GROWTH,
            What::Vsearch => INDEX_ROOM,
            What::Array | What::Switch => 1,
        };
        self.data_bytes.saturating_mul(room)
    }

    fn server(&self, mode: Mode) -> Vec<OsString> {
        if mode.wait.is_memcached() {
            let udp = self.transport == Transport::Udp;
            return memcached::words(mode.workers, (self.swap_bytes(), self.items()), self.most_connections(), udp);
        }
        // Adios, DiLOS and threads serve a request until it ends or waits; DiLOS-P takes the worker from it: Adios, §3 and §5.
        let (wait, slice) = match mode.wait {
            Wait::Preempt => (Wait::Busy, SLICE),
            Wait::Swap | Wait::Zram => (Wait::Block, "never"),
            wait => (wait, "never"),
        };
        let mut words = vec![
            format!("--wait={}", wait.name()),
            format!("--workers={}", mode.workers),
            format!("--unithreads={}", self.unithreads),
            format!("--max-connections={}", self.most_connections()),
            "--listen=127.0.0.1:0".into(),
            "--udp=127.0.0.1:0".into(),
        ];
        words.push(format!("--slice={slice}"));
        words.extend(mode.own_replies.then(|| "--replies=own".into()));
        words.extend(mode.in_turn.then(|| "--dispatch=round-robin".into()));
        match self.what {
            What::Kv => words.push(format!("--memory={}", self.data_bytes.saturating_mul(ROOM))),
            What::Scan => {
                words.push(format!("--items={}", self.items()));
                words.push(format!("--value-bytes={}", self.value_size));
            }
            What::Tpcc => words.push(format!("--warehouses={}", self.items())),
            What::Vsearch => words.push(format!("--items={}", self.items())),
            What::Array | What::Switch => {
                words.push(format!("--items={}", self.items()));
                words.push(format!("--item-bytes={}", self.item_bytes));
            }
        }
        words.push(if self.split.server.is_empty() {
            "--no-pin".into()
        } else {
            format!("--cores={}", cores::list(&self.split.server))
        });
        let service = [self.serve.clone().into_os_string(), self.what.name().into()];
        service.into_iter().chain(words.into_iter().map(OsString::from)).collect()
    }

    fn connections(&self) -> u32 {
        match self.transport {
            Transport::Udp => SOCKETS,
            Transport::Tcp => self.outstanding,
        }
    }

    fn most_connections(&self) -> u32 {
        2 * self.connections() + SPARE_CONNECTIONS
    }

    /// Options of each run of the generator.
    fn options(&self, seed: u64) -> Vec<String> {
        let mut words = vec![
            format!("--items={}", self.items()),
            format!("--connections={}", self.connections()),
            format!("--seed={seed}"),
            format!("--timeout={PATIENCE_NS}ns"),
        ];
        match self.what {
            What::Kv => words.extend([format!("--keys={KEYS}"), format!("--value-size={}", self.value_size)]),
            What::Scan => words.push(format!("--mix={MIX}")),
            What::Array | What::Tpcc | What::Vsearch | What::Switch => {}
        }
        if self.split.generator.is_empty() {
            // It would take the processor from the server.
            words.push("--spin=0s".into());
        }
        words
    }

    /// How a server is filled that does not fill itself: a run of its own, so that the measured one begins at a known time.
    fn fill(&self) -> Option<Vec<String>> {
        let short = ["--fill", "--closed=1", "--warmup=0", "--seconds=0.01"].map(String::from);
        (self.what == What::Kv).then(|| self.options(1).into_iter().chain(short).collect())
    }
}

impl Comparison {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> String {
        format!("uthread {}, {}, {}", self.setting.what.name(), Bytes(self.setting.data_bytes), self.title)
    }

    /// What is run for the mode with this index, in `directory`, with `generator` for `farshore-load`. `number` is the round's, 0 the warm-up's.
    #[must_use]
    pub fn program(&self, generator: &Path, directory: &Path, number: u32, index: usize) -> Served {
        let setting = &self.setting;
        let short = |seconds: f64| if number == 0 { seconds.min(SHORT_SECONDS) } else { seconds };
        let told = directory.join("generator.json");
        let mut options = setting.options(u64::from(number.max(1)));
        // To warm up nothing has to be found.
        let load = match self.load {
            Load::Search(rates, _) if number == 0 => Load::Open(rates.low),
            load => load,
        };
        options.extend(match load {
            Load::Closed(count) => vec![format!("--closed={count}")],
            Load::Open(rate) => vec![format!("--rate={rate}")],
            Load::Search(rates, goal) => vec![format!("--sweep={rates}"), format!("--target={goal}"), format!("--tries={TRIES}")],
        });
        options.push(format!("--warmup={}", short(setting.warmup)));
        options.push(format!("--seconds={}", short(self.seconds)));
        options.push(format!("--json={}", told.display()));
        let mode = self.modes.get(index);
        let recorded = mode.filter(|mode| setting.breakdown && !mode.wait.is_memcached());
        let breakdown = recorded.map(|_| directory.join("requests.csv"));
        let mut server = mode.map(|mode| setting.server(*mode)).unwrap_or_default();
        server.extend(breakdown.iter().map(|path| OsString::from(format!("--breakdown={}", path.display()))));
        let memcached = || Memcached { ports: directory.join("ports"), cores: setting.split.server.clone() };
        Served {
            server,
            breakdown: breakdown.map(|path| (path, short(self.seconds))),
            memcached: mode.is_some_and(|mode| mode.wait.is_memcached()).then(memcached),
            search: matches!(load, Load::Search(..)),
            generator: generator.to_path_buf(),
            service: setting.what.name(),
            transport: setting.transport.name(),
            fill: setting.fill(),
            options,
            warmup: Duration::from_secs_f64(short(setting.warmup)),
            told,
            cores: setting.split.generator.clone(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::uthread::args::Modes;

    pub fn setting(what: What) -> Setting {
        Setting {
            what,
            serve: "/here/farshore-serve".into(),
            transport: Transport::Udp,
            data_bytes: 64 << 20,
            share: Percent(20.0),
            item_bytes: 64,
            value_size: 1024,
            unithreads: 1024,
            outstanding: 256,
            warmup: 2.0,
            breakdown: false,
            split: Split { server: vec![0], generator: vec![1] },
        }
    }

    fn comparison(what: What, load: Load) -> Comparison {
        let modes = ["yield:1", "swap:8", "yield-rr:2", "memcached:4", "zram:8", "busy:1", "preempt:1", "yield-own:1"]
            .map(|text| text.parse::<Modes>().unwrap().0[0])
            .to_vec();
        Comparison { setting: setting(what), title: "x".into(), modes, load, seconds: 5.0 }
    }

    fn has(words: &[OsString], word: &str) -> bool {
        words.iter().any(|other| other == word)
    }

    #[test]
    fn each_mode_has_its_server() {
        let array = comparison(What::Array, Load::Closed(256));
        let served = |index| array.program(Path::new("/here/farshore-load"), Path::new("/d"), 3, index);
        let words = served(0).server;
        assert!(words[0] == "/here/farshore-serve" && words[1] == "array", "{words:?}");
        for word in ["--wait=yield", "--workers=1", "--items=1048576", "--item-bytes=64", "--cores=0"] {
            assert!(has(&words, word), "{word}: {words:?}");
        }
        for index in [1, 4] {
            assert!(has(&served(index).server, "--wait=block") && has(&served(index).server, "--workers=8"));
        }
        for (index, slice) in [(5, "--slice=never"), (6, "--slice=5us")] {
            assert!(has(&served(index).server, "--wait=busy") && has(&served(index).server, slice));
        }
        assert!(has(&served(7).server, "--wait=yield") && has(&served(7).server, "--replies=own"));
        assert!(!has(&served(0).server, "--replies=own"));
        assert_eq!((served(0).fill, served(0).cores), (None, vec![1]));
        let words = served(0).words();
        assert!(has(&words, "farshore-serve") && has(&words, "udp:ADDRESS") && has(&words, "--closed=256"), "{words:?}");
    }

    #[test]
    fn a_server_records_where_that_is_asked_for() {
        let mut array = comparison(What::Array, Load::Open(1000.0));
        let served = |array: &Comparison, index| array.program(Path::new("load"), Path::new("/d"), 1, index);
        assert!(served(&array, 0).breakdown.is_none());
        array.setting.breakdown = true;
        let recorded = served(&array, 5);
        assert!(has(&recorded.server, "--breakdown=/d/requests.csv"), "{:?}", recorded.server);
        assert_eq!(recorded.breakdown, Some(("/d/requests.csv".into(), 5.0)));
        assert!(served(&array, 3).breakdown.is_none(), "memcached records nothing");
    }

    #[test]
    fn an_ordered_store_fills_itself_and_is_asked_for_both() {
        let scan = comparison(What::Scan, Load::Open(1000.0));
        let served = scan.program(Path::new("load"), Path::new("/d"), 1, 0);
        assert!(has(&served.server, "scan") && has(&served.server, "--items=65536") && has(&served.server, "--value-bytes=1024"));
        let asked = ["--items=65536", "--mix=get=99,scan=1"].iter().all(|word| served.options.contains(&(*word).into()));
        assert!(asked && served.fill.is_none() && scan.setting.swap_bytes() > scan.setting.data_bytes, "{:?}", served.options);
    }

    #[test]
    fn a_database_fills_itself_and_has_room_to_grow() {
        let mut tpcc = comparison(What::Tpcc, Load::Closed(64));
        tpcc.setting.data_bytes = 512 << 20;
        let served = tpcc.program(Path::new("load"), Path::new("/d"), 1, 0);
        assert!(has(&served.server, "tpcc") && has(&served.server, "--warehouses=5"), "{:?}", served.server);
        assert!(served.options.contains(&"--items=5".into()) && served.fill.is_none());
        assert!(tpcc.setting.swap_bytes() > 4 * tpcc.setting.data_bytes);
    }

    #[test]
    fn vectors_are_as_many_as_the_data_have_room_for() {
        let vsearch = comparison(What::Vsearch, Load::Closed(64));
        let served = vsearch.program(Path::new("load"), Path::new("/d"), 1, 0);
        let items = format!("--items={}", (64 << 20) / 524);
        assert!(has(&served.server, "vsearch") && has(&served.server, &items), "{:?}", served.server);
        assert!(served.options.contains(&items) && served.fill.is_none() && vsearch.setting.swap_bytes() > 64 << 20);
    }

    #[test]
    fn a_memcached_is_one_more_server_and_requests_may_go_in_turn() {
        let kv = comparison(What::Kv, Load::Closed(256));
        let served = |index| kv.program(Path::new("load"), Path::new("/d"), 1, index);
        assert!(has(&served(2).server, "--dispatch=round-robin") && has(&served(2).server, "--wait=yield"));
        assert!(served(0).memcached.is_none() && !has(&served(0).server, "--dispatch=round-robin"));
        let real = served(3);
        assert_eq!(real.memcached, Some(Memcached { ports: "/d/ports".into(), cores: vec![0] }));
        // The same room, and the same requests.
        assert!(has(&served(0).server, "--memory=134217728") && has(&real.server, "--memory-limit=128"), "{:?}", real.server);
        assert!(has(&real.server, "--threads=4") && has(&real.words(), "memcached"));
        assert_eq!((&real.options, &real.fill), (&served(0).options, &served(0).fill));
    }

    #[test]
    fn a_search_is_the_generators() {
        let goal = "p99=1ms".parse().unwrap();
        let kv = comparison(What::Kv, Load::Search("1000..2e5".parse().unwrap(), goal));
        let served = |number| kv.program(Path::new("load"), Path::new("/d"), number, 0);
        let options = served(1).options;
        assert!(
            served(1).search
                && ["--sweep=1000..200000", "--target=p99=1ms", "--tries=3"].iter().all(|word| options.contains(&(*word).into()))
        );
        assert!(!served(0).search && served(0).options.contains(&"--rate=1000".into()));
    }

    #[test]
    fn a_memcached_is_filled_first_and_the_warm_up_is_short() {
        let kv = comparison(What::Kv, Load::Open(1000.0));
        let served = |number| kv.program(Path::new("load"), Path::new("/d"), number, 0);
        assert!(served(1).fill.is_some_and(|words| words.contains(&"--fill".into()) && words.contains(&"--items=65536".into())));
        assert!(has(&served(1).server, "--memory=134217728"));
        let options = served(2).options;
        for word in ["--keys=zipf:0.99", "--rate=1000", "--seed=2", "--seconds=5", "--warmup=2", "--json=/d/generator.json"] {
            assert!(options.contains(&word.into()), "{word}: {options:?}");
        }
        assert!(served(0).options.contains(&"--seconds=1".into()) && served(0).warmup == Duration::from_secs(1));
    }
}
