//! What processes that are gone have left behind is found and taken down.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::owner::{self, Life, Owner, Run};
use super::{IN_WORK, RUN, Record, Thing, directory, undo};
use crate::targets::{swap, tools};

/// Takes down what runs of this user's that were killed have left behind: for root, all that is in the journals in
/// `/run/farshore-bench`; for every user, work directories in `directory`. What living processes and other users have is left alone.
/// Returns what it did and what it could not do: one line each.
#[must_use]
pub fn clean_up_after_others(directory: &Path) -> Vec<String> {
    let mut said = Vec::new();
    if rustix::process::geteuid().is_root() && Path::new(RUN).exists() {
        match owner::open_run(Path::new(RUN)) {
            Ok(run) => clean_up_journals(&run, &mut said),
            Err(why) => said.push(why),
        }
    }
    clean_up_directories(directory, &mut said);
    said
}

fn clean_up_journals(run: &Run, said: &mut Vec<String>) {
    let _lock = match run.lock() {
        Ok(lock) => lock,
        Err(why) => return said.push(why),
    };
    run.remove_unfinished();
    for (file, mut record) in run.records() {
        let pid = record.owner.pid;
        match record.owner.life() {
            Life::Alive => continue,
            Life::Unknown => {
                said.push(format!("'{}' is of process {pid} in another container: it was left as it is", file.display()));
                continue;
            }
            Life::Dead => {}
        }
        if locked_elsewhere(&record) {
            continue;
        }
        take_down(&mut record, said);
        // What is still there stays noted, for the next start.
        let kept = if record.things.is_empty() {
            fs::remove_file(&file).map_err(|error| format!("cannot remove '{}' ({})", file.display(), tools::reason(&error)))
        } else {
            super::write_record(&file, &record)
        };
        said.extend(kept.err());
    }
}

/// Whether a living process, which we cannot see, holds the work directory.
fn locked_elsewhere(record: &Record) -> bool {
    record.things.iter().any(|thing| match thing {
        Thing::Directory { path } => {
            directory::open(path).ok().flatten().is_some_and(|opened| directory::is_locked(opened.as_fd()))
        }
        _ => false,
    })
}

/// Undoes a record's things: what is left of them stays in it.
fn take_down(record: &mut Record, said: &mut Vec<String>) {
    let pid = record.owner.pid;
    if !record.owner.is_of_this_boot() {
        record.things.retain(Thing::outlives_the_boot);
    }
    let (left, problems) =
        undo::undo_all(&record.things, |what| said.push(format!("left behind by process {pid}, and removed: {what}")));
    said.extend(problems.into_iter().map(|why| format!("left behind by process {pid}, and still there: {why}")));
    record.things = left;
}

fn clean_up_directories(directory: &Path, said: &mut Vec<String>) {
    let Ok(directory) = fs::canonicalize(directory) else { return };
    // What is refused there was never made there either.
    if directory::trust(&directory).is_err() {
        return;
    }
    for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
        let Some(named) = owner::read_directory_name(&entry.file_name()) else { continue };
        let path = directory.join(entry.file_name());
        // Another user's is not opened.
        let Ok(Some(opened)) = directory::open(&path) else { continue };
        if let Some(mut record) = abandoned(&path, &opened, named) {
            take_down(&mut record, said);
        }
    }
}

/// What there is to undo of a work directory, if its process is gone: the directory itself, processes that were noted in it, and swap
/// files in it that are on though no journal tells of them any more. While `opened` is, nobody else takes it for abandoned.
fn abandoned(path: &Path, opened: &OwnedFd, named: Owner) -> Option<Record> {
    if directory::is_locked(opened.as_fd()) {
        return None;
    }
    let mut things = vec![Thing::Directory { path: path.to_path_buf() }];
    let owner = match read_in_work(opened) {
        Some(record) => {
            things.extend(record.things.into_iter().filter(|thing| matches!(thing, Thing::Process { .. })));
            record.owner
        }
        None => named,
    };
    if owner.life() == Life::Alive {
        return None;
    }
    let on = swap::active().unwrap_or_default().into_iter().map(|area| area.path);
    things.extend(on.filter(|area| area.parent() == Some(path)).map(|path| Thing::Swap { path, device: None }));
    Some(Record { owner, kernel: false, things })
}

/// The journal in a work directory: of users other than root.
fn read_in_work(opened: &OwnedFd) -> Option<Record> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = fs::File::from(rustix::fs::openat(opened, IN_WORK, flags, Mode::empty()).ok()?);
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}
