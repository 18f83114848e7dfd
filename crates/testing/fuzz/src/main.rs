//! libFuzzer around one target, which the environment names (`tools/fuzz.py` does): libFuzzer's own options and
//! files follow on the command line, and the processes that it starts itself find the target too.
#![no_main]

use farshore_fuzz::{CANARY_VARIABLE, TARGET_VARIABLE, Target, find};
use std::sync::OnceLock;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var(TARGET_VARIABLE).unwrap_or_default();
        find(&name).unwrap_or_else(|| {
            eprintln!("farshore-fuzz: {TARGET_VARIABLE}={name:?} names no target; start it by tools/fuzz.py");
            std::process::exit(2)
        })
    })
}

/// Plants the canary of the target, where one is asked for.
fn plant() {
    if std::env::var_os(CANARY_VARIABLE).is_none() {
        return;
    }
    #[cfg(feature = "canaries")]
    {
        use farshore_core::canary::{Canary, plant};
        plant(Canary::ALL.iter().find(|(name, _)| *name == chosen().name).map(|(_, canary)| *canary));
    }
    #[cfg(not(feature = "canaries"))]
    {
        eprintln!("farshore-fuzz: {CANARY_VARIABLE} is set, and no canaries are built in; start it by tools/fuzz.py --canaries");
        std::process::exit(2)
    }
}

libfuzzer_sys::fuzz_target!(init: { plant(); let _ = chosen(); }, |input: &[u8]| (chosen().run)(input));
