//! `farshore bench`: the crate `bench` with this command as the one that its targets use.

use farshore_bench::args::BenchArgs;
use farshore_bench::run::{self, Failure};

use crate::refusal::Refusal;

/// Compares.
///
/// # Errors
/// A wrong option (125), or what could not be done (1).
pub fn bench(arguments: &BenchArgs) -> Result<u8, Refusal> {
    let farshore = std::env::current_exe()
        .map_err(|error| Refusal::failed(format!("cannot find out where this command is ({error}): is /proc mounted?")))?;
    // Without the standard library's entry the words come from the kernel.
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words = words.skip(1).map(|word| String::from_utf8_lossy(word).into_owned());
    let words = std::iter::once("farshore".to_string()).chain(words).collect();
    run::bench(arguments, &farshore, words).map_err(|failure| match failure {
        Failure::Usage(why) => Refusal::cannot_start(why),
        Failure::Failed(why) => Refusal::failed(why),
    })
}
