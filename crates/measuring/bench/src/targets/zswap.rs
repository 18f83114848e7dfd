//! zswap's settings, and how they are changed and brought back.

use std::path::{Path, PathBuf};

use crate::journal::{Journal, Thing};
use crate::targets::tools;

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
    let _ = change(journal, "compressor", COMPRESSOR, changed);
    change(journal, "enabled", "Y", changed)
}

fn change(journal: &Journal, name: &str, value: &str, changed: &mut Vec<Thing>) -> Result<(), String> {
    let former = get(name)?;
    if former == value {
        return Ok(());
    }
    let thing = Thing::Parameter { path: file(name), former, ours: value.to_string() };
    journal.note(thing.clone())?;
    match tools::write(&file(name), value) {
        Ok(()) => {
            changed.push(thing);
            Ok(())
        }
        Err(why) => {
            journal.done(&thing);
            Err(why)
        }
    }
}

/// Brings a setting back to its former value, if it still has ours.
///
/// # Errors
/// The kernel refuses, or the file is none of zswap's.
pub fn restore(path: &Path, former: &str, ours: &str) -> Result<(), String> {
    if path.parent() != Some(Path::new(PARAMETERS)) {
        return Err(format!("'{}' is no setting of zswap's", path.display()));
    }
    if tools::read(path)? == ours { tools::write(path, former) } else { Ok(()) }
}
