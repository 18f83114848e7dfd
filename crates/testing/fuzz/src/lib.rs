//! What bytes from outside may do, as targets for coverage-guided fuzzing.
//!
//! A target is a function that takes any bytes and returns, or panics when the code under it does not do what an independent
//! description says. libFuzzer (feature `libfuzzer`, `src/main.rs`) mutates inputs and keeps those that reach new code; it is built and
//! run by `tools/fuzz.py`. Without the feature this is a plain library, whose tests pass all seeds to their targets.
//!
//! | target | input | compared with |
//! |---|---|---|
//! | `control` | what a client sends on the control socket | answers made from a general JSON reader, line by line; other cuts |
//! | `names` | names with parameters, modes, files | a grammar written down here; reads back what it displays |
//! | `node` | what an NBD client sends to a memory node, or requests | the same in other pieces; an array |
//! | `options` | JSON of `FARSHORE_OPTIONS` | limits, and that it survives JSON and TOML |
//! | `sizes` | a size or a time | exact decimal arithmetic |
//! | `stats` | counters, by their fields | reads back what it writes |
//! | `swap` | a swap spec | reads back what it displays |
//! | `toml` | a config file | what it says survives JSON and TOML |
//! | `word` | calls on a page word, two bytes each | the machine of `model_word` |
//!
//! # A new target
//!
//! 1. A file in `src/targets/` with `pub fn run(input: &[u8])`, a line in [`TARGETS`], a line in the table above.
//! 2. Seeds in `seeds/NAME/`: a few small files, among them one of each kind.
//! 3. A canary of its name (`farshore_core::canary`): a bug which takes guidance to find (a rare combination, never a single byte), and a
//!    panic or a wrong answer that `run` notices. The seeds must not show it.
//!    Where a format's parser is not ours, let the input choose fields and values (`targets/structured.rs`).
//! 4. If its input is text with words in it: `dictionaries/NAME.dict`, in libFuzzer's form.

pub mod bytes;
pub mod targets;

/// The variable that names the target for the program `farshore-fuzz`.
pub const TARGET_VARIABLE: &str = "FARSHORE_FUZZ_TARGET";

/// The variable that plants the target's canary, in a build with the feature `canaries`.
pub const CANARY_VARIABLE: &str = "FARSHORE_FUZZ_CANARY";

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its seeds, dictionary and canary.
    pub name: &'static str,
    /// Does what the bytes say, and panics when it comes out wrong.
    pub run: fn(&[u8]),
}

/// Every target, by name.
pub const TARGETS: &[Target] = &[
    Target { name: "control", run: targets::control::run },
    Target { name: "names", run: targets::names::run },
    Target { name: "node", run: targets::node::run },
    Target { name: "options", run: targets::options::run },
    Target { name: "sizes", run: targets::sizes::run },
    Target { name: "stats", run: targets::stats::run },
    Target { name: "swap", run: targets::swap::run },
    Target { name: "toml", run: targets::toml::run },
    Target { name: "word", run: targets::word::run },
];

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
