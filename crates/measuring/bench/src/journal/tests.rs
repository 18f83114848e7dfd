use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A work directory such as a process that is gone has left: no process has this number.
fn abandoned(directory: &Path, number: u32) -> PathBuf {
    let dead = Owner { pid: 4_194_304 + 7, number, ..Owner::this(0).unwrap() };
    let path = directory.join(dead.directory_name());
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn what_is_noted_goes_with_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let (file, work);
    {
        let journal = Journal::open(directory.path()).unwrap();
        (file, work) = (journal.file.clone(), journal.work().to_path_buf());
        assert_eq!(mode(&work), 0o700);
        let thing = Thing::File { path: work.join("swap") };
        journal.note(thing.clone()).unwrap();
        fs::write(work.join("swap"), "x").unwrap();
        let record: Record = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(record.things, [Thing::Directory { path: work.clone() }, thing.clone()]);
        assert_eq!((record.owner.life(), record.kernel), (Life::Alive, false));
        journal.undo(&thing).unwrap();
        assert!(!work.join("swap").exists());
        let record: Record = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(record.things.len(), 1);
        fs::create_dir(work.join("more")).unwrap();
        fs::write(work.join("more/files"), "x").unwrap();
        assert!(clean_up_after_others(directory.path()).iter().all(|line| !line.contains(&work.display().to_string())));
        assert!(work.join("more/files").exists(), "a living process' things stay");
    }
    assert_eq!(names(directory.path()), [""; 0]);
    assert!(!file.exists());
}

#[test]
fn a_closed_journal_stays_closed() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    assert_eq!(journal.close(), [""; 0]);
    assert_eq!(journal.close(), [""; 0]);
    assert_eq!(names(directory.path()), [""; 0]);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let why = Journal::open(Path::new("/nonexistent/here")).unwrap_err();
    assert_eq!(why, "cannot make a work directory in '/nonexistent/here' (No such file or directory): name another one by --dir");
}

#[test]
fn names_are_never_given_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (Journal::open(directory.path()).unwrap(), Journal::open(directory.path()).unwrap());
    assert_ne!(one.work(), other.work());
    assert_ne!(one.file, other.file);
    assert_ne!(one.new_name(), other.new_name());
    assert!(cgroup::is_named_as_ours(&Path::new("/sys/fs/cgroup").join(one.new_name())));
}

#[test]
fn names_of_work_directories_are_read() {
    let owner = Owner::this(3).unwrap();
    assert_eq!(owner::read_directory_name(owner.directory_name().as_ref()), Some(owner));
    for wrong in [
        "",
        ".farshore-bench-",
        ".farshore-bench-1-2-3",
        ".farshore-bench-1-2-3-4-5",
        ".farshore-bench-1-2-3-x",
        ".farshore-bench-01-2-3-4",
        ".farshore-bench-+1-2-3-4",
        ".farshore-bench-1-2-3-99999999999",
        "farshore-bench-1-2-3-4",
    ] {
        assert_eq!(owner::read_directory_name(wrong.as_ref()), None, "{wrong}");
    }
}

#[test]
fn processes_are_told_from_each_other() {
    let owner = Owner::this(1).unwrap();
    assert_eq!(owner.life(), Life::Alive);
    assert_eq!(Owner { start_time: owner.start_time + 1, ..owner.clone() }.life(), Life::Dead, "the number is another's by now");
    assert_eq!(Owner { boot_id: "earlier".into(), ..owner.clone() }.life(), Life::Dead);
    assert_eq!(Owner { pid_namespace: "pid:[1]".into(), ..owner.clone() }.life(), Life::Unknown);
    // A process that has ended, and which nobody has waited for yet, is gone.
    let mut child = std::process::Command::new("sh").args(["-c", "read x"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let start_time = crate::proc::start_time(child.id()).unwrap();
    let owner = Owner { pid: child.id(), start_time, ..owner };
    assert_eq!(owner.life(), Life::Alive);
    child.kill().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while owner.life() == Life::Alive && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(owner.life(), Life::Dead);
    child.wait().unwrap();
}

#[test]
fn what_is_abandoned_is_removed_and_links_are_not_followed() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("precious"), "x").unwrap();
    let path = abandoned(directory.path(), 1);
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::write(path.join("a/b/c"), "x").unwrap();
    symlink(elsewhere.path(), path.join("a/link")).unwrap();
    symlink(elsewhere.path().join("precious"), path.join("link")).unwrap();
    let said = clean_up_after_others(directory.path());
    let all = said.join("\n");
    assert!(all.contains(&format!("removed: work directory '{}'", path.display())), "{all}");
    assert_eq!(names(directory.path()), [""; 0]);
    assert_eq!(names(elsewhere.path()), ["precious"]);
}

#[test]
fn what_is_not_ours_for_certain_is_left() {
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Somebody else's link by one of our names, to a directory of ours.
    let target = abandoned(elsewhere.path(), 9);
    let mut link = abandoned(directory.path(), 1);
    fs::remove_dir(&link).unwrap();
    symlink(&target, &link).unwrap();
    // One that others can write to, another user's, one that is locked, and an ordinary directory.
    let open = abandoned(directory.path(), 2);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let other = directory.path().join(".farshore-bench-54321-4194310-1-1");
    fs::create_dir(&other).unwrap();
    let locked = abandoned(directory.path(), 3);
    let lock = fs::File::open(&locked).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    fs::create_dir(directory.path().join("x")).unwrap();
    if rustix::process::geteuid().is_root() {
        let given = abandoned(directory.path(), 4);
        std::os::unix::fs::chown(given, Some(65534), None).unwrap();
    }
    let before = names(directory.path());
    let _ = clean_up_after_others(directory.path());
    assert_eq!(names(directory.path()), before);
    assert!(target.is_dir());
    // A file of a work directory is reached only through a directory that is ours.
    link.push("file");
    fs::write(target.join("file"), "x").unwrap();
    assert_eq!(undo::undo(&Thing::File { path: link }), Ok(None));
    assert_eq!(undo::undo(&Thing::Directory { path: directory.path().join("x") }), Ok(None));
    assert_eq!(undo::undo(&Thing::File { path: directory.path().join("x") }), Ok(None));
    assert!(target.join("file").exists());
    drop(lock);
    let _ = clean_up_after_others(directory.path());
    assert!(!locked.exists());
}

#[test]
fn things_of_others_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("setting");
    fs::write(&path, "ours").unwrap();
    let thing = Thing::Parameter { path: path.clone(), former: "theirs".into(), ours: "ours".into() };
    assert!(undo::undo(&thing).unwrap_err().contains("no setting that a target changes"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
    assert!(undo::undo(&Thing::Cgroup { path: directory.path().into() }).unwrap_err().contains("no cgroup of ours"));
    let nobody = crate::targets::zram::Id { number: 65_000, diskseq: Some(1) };
    assert_eq!(undo::undo(&Thing::Zram { device: nobody }), Ok(None));
}

#[test]
fn processes_are_ended_with_their_group() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let mut command = std::process::Command::new("sleep");
    let mut child = command.arg("1000").process_group(0).spawn().unwrap();
    let thing = Thing::process(child.id()).unwrap();
    let Thing::Process { pid, start_time } = thing else { panic!("{thing:?}") };
    let other = Thing::Process { pid, start_time: start_time + 1 };
    assert_eq!(undo::undo(&other), Ok(None), "that one is gone");
    assert!(child.try_wait().unwrap().is_none());
    journal.note(thing).unwrap();
    drop(journal);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
}

#[test]
fn after_a_restart_only_files_are_left() {
    let parameter = Thing::Parameter { path: "/x".into(), former: "N".into(), ours: "Y".into() };
    let path = PathBuf::from("/x");
    for (thing, outlives) in [
        (Thing::Directory { path: path.clone() }, true),
        (Thing::File { path: path.clone() }, true),
        (Thing::Swap { path: path.clone(), device: None }, false),
        (Thing::Cgroup { path: path.clone() }, false),
        (Thing::Process { pid: 1, start_time: 1 }, false),
        (parameter, false),
    ] {
        assert_eq!(thing.outlives_the_boot(), outlives, "{thing:?}");
        let text = serde_json::to_string(&thing).unwrap();
        assert_eq!(serde_json::from_str::<Thing>(&text).unwrap(), thing, "{text}");
    }
}

#[test]
fn the_directory_of_journals_is_ours_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let run = owner::open_run(&path).unwrap();
    assert_eq!(mode(&path), 0o700);
    let dead = Owner { pid: 4_194_304 + 7, ..Owner::this(1).unwrap() };
    let record = Record { owner: dead, kernel: true, things: Vec::new() };
    write_record(&run.file(&record.owner), &record).unwrap();
    // Names that do not fit what is in them, and what is no journal, are not read.
    fs::copy(run.file(&record.owner), path.join("1-1-1.json")).unwrap();
    fs::write(path.join("2-2-2.json"), "{").unwrap();
    assert_eq!(run.records(), [(run.file(&record.owner), record)]);
    fs::write(path.join("4194311-1-1.json.new"), "{").unwrap();
    let own = Owner::this(1).unwrap();
    fs::write(path.join(format!("{}-{}-1.json.new", own.pid, own.start_time)), "{").unwrap();
    run.remove_unfinished();
    assert_eq!(names(&path).iter().filter(|name| name.ends_with(".new")).count(), 1);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(owner::open_run(&path).unwrap_err().contains("not a directory of root's alone"));
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(owner::open_run(&link).is_err());
}
