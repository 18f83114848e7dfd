//! Commands that are programs of their own, of which `farshore run` carries nothing: `farshore bench` becomes `farshore-bench`, `farshore node` `farshore-node`,
//! `farshore manage` and `vm` `farshore-manager`, `farshore daemon` `farshore-daemon`,
//! `farshore top`, `metrics`, `plan`, `record` and `report` become `farshore-view`, `policy` `farshore-advise`, with the same process id, descriptors, signals and environment.
//!
//! It is this build's own if it can be: the one beside this command, where all are built and installed. The path of this command goes along as
//! the first word: `farshore-bench` measures it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use farshore_command::CALLER;
use farshore_command::refusal::{NOT_EXECUTABLE, Refusal};

use crate::{program, run};

/// A command of `farshore` that is a program of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Other {
    /// The first word after `farshore`.
    pub name: &'static str,
    /// The program's file name.
    program: &'static str,
    /// Whether the program is told the name, as it has several commands.
    is_told: bool,
}

/// `farshore top`.
pub const TOP: Other = Other { name: "top", program: "farshore-view", is_told: true };
/// `farshore metrics`.
pub const METRICS: Other = Other { name: "metrics", program: "farshore-view", is_told: true };
/// `farshore node`.
pub const NODE: Other = Other { name: "node", program: "farshore-node", is_told: false };
/// `farshore manage`.
pub const MANAGE: Other = Other { name: "manage", program: "farshore-manager", is_told: true };
/// `farshore vm`.
pub const VM: Other = Other { name: "vm", program: "farshore-manager", is_told: true };
/// `farshore daemon`.
pub const DAEMON: Other = Other { name: "daemon", program: "farshore-daemon", is_told: false };
/// `farshore plan`.
pub const PLAN: Other = Other { name: "plan", program: "farshore-view", is_told: true };
/// `farshore record`.
pub const RECORD: Other = Other { name: "record", program: "farshore-view", is_told: true };
/// `farshore report`.
pub const REPORT: Other = Other { name: "report", program: "farshore-view", is_told: true };
/// `farshore policy`.
pub const POLICY: Other = Other { name: "policy", program: "farshore-advise", is_told: false };
/// `farshore bench`.
pub const BENCH: Other = Other { name: "bench", program: "farshore-bench", is_told: false };

impl Other {
    /// What the user has written for it, if this is what he asks for. clap is not asked: it would take `--` and `--help` for its own.
    pub fn asked(self, words: &[OsString]) -> Option<Vec<OsString>> {
        match words {
            [_, word, rest @ ..] if word == self.name => Some(rest.to_vec()),
            [_, help, word, rest @ ..] if help == "help" && word == self.name => {
                Some(rest.iter().cloned().chain(["--help".into()]).collect())
            }
            _ => None,
        }
    }

    /// Becomes the program. Returns only when it cannot.
    ///
    /// # Errors
    /// It is not there (127), or it cannot be executed (126).
    pub fn execute(self, words: Vec<OsString>) -> Result<u8, Refusal> {
        let farshore = std::env::current_exe()
            .map_err(|error| Refusal::failed(format!("cannot find out where this command is ({error}): is /proc mounted?")))?;
        let path = self.find(&farshore, std::env::var_os("PATH").as_deref())?;
        let caller = [OsStr::new(CALLER), farshore.as_os_str()].into_iter().collect::<OsString>();
        let name = self.is_told.then(|| self.name.into());
        let words: Vec<OsString> = [self.program.into(), caller].into_iter().chain(name).chain(words).collect();
        run::execute(&path, &words, std::env::vars_os())
    }

    /// Beside `farshore`, which is a path without symbolic links, or else in the directories of `path`.
    fn find(self, farshore: &Path, path: Option<&OsStr>) -> Result<PathBuf, Refusal> {
        let beside = farshore.with_file_name(self.program);
        match program::executable(&beside) {
            Ok(()) => return Ok(beside),
            // One that is there and broken is told, not passed over for that of another build.
            Err(refusal) if refusal.status == NOT_EXECUTABLE => return Err(refusal),
            Err(_) => {}
        }
        // A relative directory of PATH is a place where others may have put something for us.
        let folders = path.map(std::env::split_paths).into_iter().flatten().filter(|folder| folder.is_absolute());
        let found = folders.map(|folder| folder.join(self.program)).find(|candidate| program::executable(candidate).is_ok());
        found.ok_or_else(|| {
            Refusal::not_found(format!(
                "'farshore {}' is a command of its own, {}, which is neither at '{}' nor in PATH: 'make build' builds both, 'make install' installs both",
                self.name,
                self.program,
                beside.display()
            ))
        })
    }
}
