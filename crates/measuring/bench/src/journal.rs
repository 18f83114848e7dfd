//! What was made is written down before it is made, so that whatever becomes of this process, the next start finds it and takes it down.
//!
//! # Protocol
//!
//! ```text
//! clean_up_after_others(dir) ─▶ Journal::open(dir) ─▶ { note(thing) ─▶ it is made ─▶ it is unmade ─▶ done(thing) } ─▶ close()
//! ```
//!
//! 1. A [`Journal`] has a *work directory* in the directory of the swap files: `.farshore-bench-UID-PID-STARTTIME-N` (the N-th journal of its
//!    process), mode 0700. All files are in it. Its name alone says whose it is: it is found even if nothing else is left, as after a power cut.
//! 2. The journal itself is a file, replaced as a whole with each change: root's is `/run/farshore-bench/PID-STARTTIME-N.json`, so that it is
//!    found whatever directory the next start is given; another user's is `journal.json` in the work directory.
//! 3. A thing is noted before it is made. Undoing a thing that is not there, or is somebody else's by now, does nothing.
//! 4. The last thing noted is the first undone. [`Journal::close`] and `Drop` undo whatever is still noted: with an error or Ctrl-C the same
//!    code takes everything down as after a kill.
//! 5. A journal is another's to undo only when its process is gone: its id is free or has another start time, or the machine was started
//!    anew since. A work directory is locked (`flock`) by its process besides, which also counts across containers that share a directory.
//! 6. Directories that others can write to are not trusted: a work directory is opened without following links, must be its user's own, and
//!    everything in it is reached from there. Root, whose swap files and programs are reached by their whole paths besides, makes none, and looks after none, where
//!    another user could put a part of that path elsewhere ([`directory::trust`]).
#![forbid(unsafe_code)]

mod directory;
mod owner;
mod recover;
mod undo;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

pub use owner::{Life, Owner};
pub use recover::clean_up_after_others;
pub use undo::Thing;

use crate::output;
use crate::targets::{cgroup, tools};

/// Where root's journals are.
const RUN: &str = "/run/farshore-bench";
/// What a work directory's name begins with.
const PREFIX: &str = ".farshore-bench-";
/// A journal in a work directory.
const IN_WORK: &str = "journal.json";
/// What the name of a journal that is being written ends with.
const NEW: &str = ".new";

/// Journals of this process so far, and names that they gave.
static JOURNALS: AtomicU32 = AtomicU32::new(1);
static NAMES: AtomicU32 = AtomicU32::new(1);

/// What a journal's file holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    owner: Owner,
    /// Whether it changes what all of the machine shares: swap, zram, zswap.
    kernel: bool,
    /// In the order in which they were noted.
    things: Vec<Thing>,
}

/// Writes down what is made, and undoes at its end what is left of it.
#[derive(Debug)]
pub struct Journal {
    file: PathBuf,
    work: PathBuf,
    stop: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    record: Record,
    /// Holds the lock on the work directory. `None`: closed.
    lock: Option<OwnedFd>,
}

impl Journal {
    /// Begins a journal, with a work directory in `directory`.
    ///
    /// # Errors
    /// The directory, or for root `/run/farshore-bench`, cannot be written to, or it is another user's, and we are root: one line.
    pub fn open(directory: &Path) -> Result<Journal, String> {
        let owner = Owner::this(JOURNALS.fetch_add(1, Ordering::Relaxed))?;
        let failed = |error: std::io::Error| {
            let why = tools::reason(&error);
            format!("cannot make a work directory in '{}' ({why}): name another one by --dir", directory.display())
        };
        // As the kernel tells it in /proc/swaps.
        let directory = fs::canonicalize(directory).map_err(failed)?;
        directory::trust(&directory)?;
        let work = directory.join(owner.directory_name());
        let root = rustix::process::geteuid().is_root();
        let file = if root { owner::open_run(Path::new(RUN))?.file(&owner) } else { work.join(IN_WORK) };
        let things = vec![Thing::Directory { path: work.clone() }];
        let record = Record { owner, kernel: false, things };
        if root {
            write_record(&file, &record)?;
        }
        let made = directory::make(&work);
        if made.is_err() && root {
            let _ = fs::remove_file(&file);
        }
        let state = Mutex::new(State { record, lock: Some(made.map_err(failed)?) });
        let journal = Journal { file, work, stop: Arc::default(), state };
        if !root {
            // From here on an error takes the directory down again.
            journal.write(&journal.state())?;
        }
        Ok(journal)
    }

    /// Lets a flag (set by Ctrl-C) end what takes long, such as writing a swap file.
    #[must_use]
    pub fn ended_by(mut self, stop: Arc<AtomicBool>) -> Journal {
        self.stop = stop;
        self
    }

    /// The work directory, by its whole path: [`crate::targets::Place::directory`].
    #[must_use]
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Whether the user wants everything to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A name for something new, which no other thing of this or of another process has: a cgroup's, a file's.
    #[must_use]
    pub fn new_name(&self) -> String {
        let owner = &self.state().record.owner;
        format!("{}{}-{}-{}", cgroup::PREFIX, owner.pid, owner.start_time, NAMES.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes down what is about to be made.
    ///
    /// # Errors
    /// The journal cannot be written: then it must not be made.
    pub fn note(&self, thing: Thing) -> Result<(), String> {
        let mut state = self.state();
        state.record.things.push(thing);
        let written = self.write(&state);
        if written.is_err() {
            state.record.things.pop();
        }
        written
    }

    /// Strikes out what is gone again.
    pub fn done(&self, thing: &Thing) {
        let mut state = self.state();
        if let Some(index) = state.record.things.iter().rposition(|noted| noted == thing) {
            state.record.things.remove(index);
        }
        // A thing that stays in the file is undone twice: that does nothing.
        let _ = self.write(&state);
    }

    /// Takes a noted thing down, and strikes it out.
    ///
    /// # Errors
    /// It is still there, and stays noted.
    pub fn undo(&self, thing: &Thing) -> Result<(), String> {
        undo::undo(thing)?;
        self.done(thing);
        Ok(())
    }

    /// Says that this process is going to change what all of the machine shares.
    ///
    /// # Errors
    /// Another one is at it: the two would spoil each other's figures, and bring back each other's settings.
    pub fn claim_kernel(&self) -> Result<(), String> {
        let run = owner::open_run(Path::new(RUN))?;
        let _lock = run.lock()?;
        let mut state = self.state();
        let busy = run
            .records()
            .into_iter()
            .find(|(_, record)| record.kernel && record.owner != state.record.owner && record.owner.life() == Life::Alive);
        if let Some((_, record)) = busy {
            let pid = record.owner.pid;
            return Err(format!("another farshore bench (process {pid}) is using the kernel's swap: wait for its end"));
        }
        state.record.kernel = true;
        self.write(&state)
    }

    /// Takes down everything that is still noted, the work directory too, and ends the journal. Returns what could not be taken down: one line
    /// each. Once it is closed, does nothing.
    pub fn close(&self) -> Vec<String> {
        let mut state = self.state();
        if state.lock.is_none() {
            return Vec::new();
        }
        let things = std::mem::take(&mut state.record.things);
        let (left, problems) = undo::undo_all(&things, |_| {});
        state.record.things = left;
        if state.record.things.is_empty() {
            // Another user's went with the work directory.
            let _ = fs::remove_file(&self.file);
        } else {
            let _ = self.write(&state);
        }
        state.lock = None;
        problems
    }

    fn write(&self, state: &State) -> Result<(), String> {
        write_record(&self.file, &state.record)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in between leaves at most a thing noted that is not there.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        for problem in self.close() {
            output::tell(&format!("bench: left behind: {problem}"));
        }
    }
}

fn write_record(file: &Path, record: &Record) -> Result<(), String> {
    let text = serde_json::to_string_pretty(record).map_err(|error| format!("the journal cannot be written ({error})"))?;
    let mut new = file.as_os_str().to_owned();
    new.push(NEW);
    let failed = |error: std::io::Error| format!("cannot write '{}' ({})", file.display(), tools::reason(&error));
    fs::write(&new, text).map_err(failed)?;
    fs::rename(&new, file).map_err(failed)
}

#[cfg(test)]
#[path = "journal/tests.rs"]
mod tests;
