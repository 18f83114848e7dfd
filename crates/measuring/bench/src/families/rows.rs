//! The rows of `families`: a program for each kind of memory. What a user knows comes first, kernels of our own writing last.
//!
//! Sizes are small, some 150 to 300 MB natively, so that the set ends in hours. To add a row: a line in [`ROWS`]. It must print what follows from all its
//! data, or check them itself, and take a few seconds natively; `about_mib` is its peak, of which memory and disk are checked before it is known.

/// A row.
#[derive(Debug)]
pub struct Row {
    /// Its name in tables.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Programs that must be there, and the packages of Debian that have them.
    pub tools: &'static [(&'static str, &'static str)],
    /// About its native peak, in MiB.
    pub about_mib: u64,
    /// What is run.
    pub what: What,
}

/// What a row runs.
#[derive(Debug)]
pub enum What {
    /// A workload, as `farshore bench` takes it.
    Workload(&'static str),
    /// A program. In words, `{}` is the directory of its file.
    Program {
        /// A module that Python must have.
        module: Option<&'static str>,
        /// Its file: name and text.
        file: (&'static str, &'static str),
        /// What is run once before: a compiler. Empty: nothing.
        first: &'static [&'static str],
        /// What is measured.
        run: &'static [&'static str],
    },
}

/// The set. Programs of tests/programs/rows are those that the tests run under Farshore, too.
pub const ROWS: &[Row] = &[
    Row {
        name: "java-g1",
        about: "JVM with G1: a million records, gone through twice",
        tools: &[("java", "default-jre-headless"), ("javac", "default-jdk-headless")],
        about_mib: 300,
        what: What::Program {
            module: None,
            file: ("Records.java", include_str!("../../../../../tests/programs/rows/Records.java")),
            first: &["javac", "-d", "{}", "{}/Records.java"],
            run: &["java", "-XX:+UseG1GC", "-Xmx600m", "-cp", "{}", "Records", "1000000"],
        },
    },
    Row {
        name: "duckdb",
        about: "DuckDB: a table in memory, made, grouped and updated",
        tools: &[("python3", "python3")],
        about_mib: 300,
        what: What::Program {
            module: Some("duckdb"),
            file: ("duckdb_rows.py", include_str!("../../../../../tests/programs/rows/duckdb_rows.py")),
            first: &[],
            run: &["python3", "{}/duckdb_rows.py", "5000000"],
        },
    },
    Row {
        name: "perl",
        about: "Perl: records with strings and arrays, gone through twice",
        tools: &[("perl", "perl"), ("env", "coreutils")],
        about_mib: 250,
        what: What::Program {
            module: None,
            file: ("records.pl", include_str!("../../../../../tests/programs/rows/records.pl")),
            first: &[],
            // A seed for its hashes: their order is another one in each run otherwise.
            run: &["env", "PERL_HASH_SEED=0", "perl", "{}/records.pl", "250000"],
        },
    },
    Row {
        name: "luajit",
        about: "LuaJIT: records with strings and tables, gone through twice",
        tools: &[("luajit", "luajit")],
        about_mib: 200,
        what: What::Program {
            module: None,
            file: ("records.lua", include_str!("../../../../../tests/programs/rows/records.lua")),
            first: &[],
            // Few names: it sweeps its strings in the order of their hashes.
            run: &["luajit", "{}/records.lua", "800000", "5000"],
        },
    },
    Row {
        name: "kv-zipf",
        about: "redis: GETs and some SETs of keys with Zipf popularity, at a fixed rate",
        tools: &[("redis-server", "redis-server")],
        about_mib: 200,
        what: What::Workload("kv --server redis --size 128M --rate 1000 --seconds 3 --warmup 1"),
    },
    Row {
        name: "tree",
        about: "a BTreeMap of Rust's with random keys: look-ups",
        tools: &[],
        about_mib: 256,
        what: What::Workload("tree --size 256M --threads 2 --seconds 3 --warmup 1"),
    },
    Row {
        name: "grid",
        about: "XSBench's unionised grid: look-ups of cross sections",
        tools: &[],
        about_mib: 192,
        what: What::Workload("grid --size 192M --threads 2 --seconds 3 --warmup 1"),
    },
    Row {
        name: "pagerank",
        about: "GAP's PageRank of a Kronecker graph",
        tools: &[],
        about_mib: 160,
        what: What::Workload("pagerank --scale 20 --threads 2 --iterations 2"),
    },
];
