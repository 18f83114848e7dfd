//! Settings of the kernel's that a target changes while its programs run: how they are changed, and brought back.

use std::path::Path;

use crate::journal::{Journal, Thing};
use crate::targets::{tools, zswap};

/// How many pages swap reads ahead, as a power of two.
pub const READ_AHEAD: &str = "/proc/sys/vm/page-cluster";

/// Changes a setting, and adds it to `changed` if it was another one.
///
/// # Errors
/// The kernel refuses.
pub fn change(journal: &Journal, path: &Path, value: &str, changed: &mut Vec<Thing>) -> Result<(), String> {
    let former = tools::read(path)?;
    if former == value {
        return Ok(());
    }
    let thing = Thing::Parameter { path: path.to_path_buf(), former, ours: value.to_string() };
    journal.note(thing.clone())?;
    match tools::write(path, value) {
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
/// The kernel refuses, or the file is none that a target changes.
pub fn restore(path: &Path, former: &str, ours: &str) -> Result<(), String> {
    if path.parent() != Some(Path::new(zswap::PARAMETERS)) && path != Path::new(READ_AHEAD) {
        return Err(format!("'{}' is no setting that a target changes", path.display()));
    }
    if tools::read(path)? == ours { tools::write(path, former) } else { Ok(()) }
}
