//! zswap's settings.

use std::path::{Path, PathBuf};

use crate::journal::{Journal, Thing};
use crate::targets::{setting, tools};

/// Where the settings are.
pub const PARAMETERS: &str = "/sys/module/zswap/parameters";
/// The compressor that is taken where the kernel has it; else the one that is set stays.
const COMPRESSOR: &str = "lz4";

fn file(name: &str) -> PathBuf {
    Path::new(PARAMETERS).join(name)
}

/// A setting's value.
///
/// # Errors
/// It cannot be read: no zswap in this kernel.
pub fn get(name: &str) -> Result<String, String> {
    tools::read(&file(name))
}

/// Refuses if this kernel has no zswap.
///
/// # Errors
/// That it has none.
pub fn need() -> Result<(), String> {
    get("enabled").map(|_| ()).map_err(|why| format!("no zswap in this kernel: {why}"))
}

/// Switches zswap on, and returns what was changed, in order.
///
/// # Errors
/// The kernel refuses. What was changed until then is in `changed`.
pub fn switch_on(journal: &Journal, changed: &mut Vec<Thing>) -> Result<(), String> {
    // Not every kernel has lz4: then the compressor that is set is compared, and told among the target's settings.
    let _ = setting::change(journal, &file("compressor"), COMPRESSOR, changed);
    setting::change(journal, &file("enabled"), "Y", changed)
}
