//! `farshore bench`: becomes the command `farshore-bench`, with the same process id, descriptors, signals and environment.
//!
//! It is this build's own if it can be: the one beside this command, where both are built and installed. What is measured is
//! this command in any case, whose path goes along as the first word.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use farshore_command::CALLER;
use farshore_command::refusal::{NOT_EXECUTABLE, Refusal};

use crate::args::BenchArgs;
use crate::{program, run};

/// The command's file name.
const NAME: &str = "farshore-bench";

/// Becomes the command. Returns only when it cannot.
///
/// # Errors
/// It is not there (127), or it cannot be executed (126).
pub fn bench(arguments: &BenchArgs) -> Result<u8, Refusal> {
    let farshore = std::env::current_exe()
        .map_err(|error| Refusal::failed(format!("cannot find out where this command is ({error}): is /proc mounted?")))?;
    let path = find(&farshore, std::env::var_os("PATH").as_deref())?;
    let caller = [OsStr::new(CALLER), farshore.as_os_str()].into_iter().collect::<OsString>();
    let words: Vec<OsString> = [NAME.into(), caller].into_iter().chain(arguments.words.iter().cloned()).collect();
    run::execute(&path, &words, std::env::vars_os())
}

/// Beside `farshore`, which is a path without symbolic links, or else in the directories of `path`.
fn find(farshore: &Path, path: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    let beside = farshore.with_file_name(NAME);
    match program::executable(&beside) {
        Ok(()) => return Ok(beside),
        // One that is there and broken is told, not passed over for that of another build.
        Err(refusal) if refusal.status == NOT_EXECUTABLE => return Err(refusal),
        Err(_) => {}
    }
    // A relative directory of PATH is a place where others may have put something for us.
    let folders = path.map(std::env::split_paths).into_iter().flatten().filter(|folder| folder.is_absolute());
    let found = folders.map(|folder| folder.join(NAME)).find(|candidate| program::executable(candidate).is_ok());
    found.ok_or_else(|| {
        Refusal::not_found(format!(
            "'farshore bench' is a command of its own, {NAME}, which is neither at '{}' nor in PATH: 'make build' builds both, 'make install' installs both",
            beside.display()
        ))
    })
}
