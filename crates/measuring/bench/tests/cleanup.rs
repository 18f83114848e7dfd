//! After every kind of end the machine is as it was before: each target, in a process of its own, which ends normally, with an error, by
//! SIGINT or by SIGKILL at several moments; then swap, cgroups, zram devices, zswap's settings and the directory are what they were.
//!
//! The process is this test program itself (`played_by_the_test`). The kernel's targets need root, and what the kernel has: else they say
//! "skipped". The tests take turns: they change what all of the machine shares.

#[path = "cleanup/machine.rs"]
mod machine;
#[path = "cleanup/play.rs"]
mod play;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farshore_bench::journal::{Journal, Thing, clean_up_after_others};
use farshore_bench::targets::spec::Spec;
use farshore_bench::targets::{swap, zram};
use machine::Machine;
use play::{NOBODY, Play, Player};

/// What each target is asked for as. `command` has a program before the program.
const TARGETS: [&str; 6] = ["native", "command:nice -n 1", "farshore", "linux-swap", "zram", "zswap"];

/// A program that needs more memory than it gets: not for zeros, which Linux does not write to swap space.
const SHORT: &str = "dd if=/dev/urandom of=/dev/null bs=40M count=3";
/// The same, until it is ended.
const ENDLESS: &str = "dd if=/dev/urandom of=/dev/null bs=40M";

static TURN: Mutex<()> = Mutex::new(());

fn my_turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the next start says of what that player left. Of others' it may clean up at the same time.
fn clean_up(directory: &Path, player: &Player) -> Vec<String> {
    let mut said = clean_up_after_others(directory);
    said.retain(|line| line.contains(&format!("left behind by process {},", player.pid())));
    said
}

/// Where swap files go in these tests. Not a file system in memory, which cannot hold them.
fn directory() -> tempfile::TempDir {
    let place = std::env::var_os("FARSHORE_SWAP_DIR").filter(|place| !place.is_empty()).unwrap_or("/var/tmp".into());
    tempfile::Builder::new().prefix("farshore-test-").tempdir_in(place).unwrap()
}

/// The targets that can be had here; of the others it is said why.
fn targets() -> Vec<&'static str> {
    let has = |target: &&str| match machine::missing(&target.parse::<Spec>().unwrap()) {
        None => true,
        Some(why) => {
            println!("skipped: {target}: {why}");
            false
        }
    };
    TARGETS.into_iter().filter(has).collect()
}

/// Whether a target leaves something in the machine, not in the directory alone, if it is killed.
fn is_the_kernels(target: &str) -> bool {
    target.parse::<Spec>().unwrap().is_the_kernels()
}

#[test]
fn a_normal_end_leaves_nothing() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets() {
        let before = Machine::look(directory.path());
        let mut player = Player::start(&Play { target, program: SHORT, ..Play::new(directory.path()) });
        player.hear("measured");
        let told = player.end();
        assert_eq!(told.error, None, "{target}");
        assert_eq!(told.wrong, [""; 0], "{target}");
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{target}");
        if target == "farshore" || is_the_kernels(target) {
            assert!(told.peak > 1 << 20 && told.peak <= (16 + 8) << 20, "{target}: its limit counted {} bytes", told.peak);
            assert!(told.fetches > 100, "{target}: {} fetches at the sample", told.fetches);
            // zswap may keep it all.
            assert!(told.pages_out > 100 || target == "zswap", "{target}: {} pages out", told.pages_out);
        }
        println!("{target}: {told:?}");
    }
}

#[test]
fn an_error_in_the_middle_leaves_nothing() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets() {
        let before = Machine::look(directory.path());
        let told = Player::start(&Play { target, program: "/nonexistent/program", ..Play::new(directory.path()) }).end();
        assert!(told.error.is_some() || !told.wrong.is_empty(), "{target}: {told:?}");
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{target}: {told:?}");
    }
}

#[test]
fn an_interrupt_leaves_nothing() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets() {
        let before = Machine::look(directory.path());
        let mut player = Player::start(&Play { target, program: ENDLESS, ..Play::new(directory.path()) });
        player.hear("running");
        player.interrupt();
        let told = player.end();
        assert_eq!(told.error.as_deref(), Some("interrupted"), "{target}");
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{target}");
    }
}

#[test]
fn an_interrupt_ends_what_takes_long() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets().into_iter().filter(|target| *target == "linux-swap") {
        let before = Machine::look(directory.path());
        let mut player = Player::start(&Play { target, program: "true", swap_bytes: 8 << 30, ..Play::new(directory.path()) });
        player.hear("opened");
        wait_for_a_file(directory.path());
        player.interrupt();
        let told = player.end();
        assert_eq!(told.error.as_deref(), Some("interrupted"));
        assert_eq!(before.difference(&Machine::look(directory.path())), "");
    }
}

/// Waits until a work directory has a swap file in it.
fn wait_for_a_file(directory: &Path) {
    let has_one = || {
        let works = std::fs::read_dir(directory).unwrap().filter_map(Result::ok);
        works.filter_map(|work| std::fs::read_dir(work.path()).ok()).any(|mut files| files.next().is_some())
    };
    machine::wait_until("a swap file", has_one);
}

#[test]
fn the_next_start_cleans_up_after_a_kill() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets() {
        for moment in ["opened", "set up", "ready", "running", "measured"] {
            let program = if moment == "measured" { "true" } else { ENDLESS };
            let before = Machine::look(directory.path());
            let mut player = Player::start(&Play { target, program, pause: moment, ..Play::new(directory.path()) });
            player.hear(moment);
            player.kill();
            let left = before.difference(&Machine::look(directory.path()));
            assert_ne!(left, "", "{target}, {moment}: a kill leaves something, or there is nothing to be tested");
            if is_the_kernels(target) && moment == "running" {
                assert!(left.contains("swap") && left.contains("cgroup"), "{target}: {left}");
            }
            let said = clean_up(directory.path(), &player);
            let context = format!("{target}, {moment}: {}", said.join("; "));
            assert!(!said.is_empty() && !said.iter().any(|line| line.contains("still there")), "{context}");
            assert_eq!(before.difference(&Machine::look(directory.path())), "", "{context}");
            assert_eq!(clean_up(directory.path(), &player), [""; 0], "{context}");
        }
    }
}

#[test]
fn a_kill_while_files_are_written_is_cleaned_up() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets().into_iter().filter(|target| *target == "linux-swap") {
        let before = Machine::look(directory.path());
        let mut player = Player::start(&Play { target, program: "true", swap_bytes: 8 << 30, ..Play::new(directory.path()) });
        player.hear("opened");
        wait_for_a_file(directory.path());
        player.kill();
        let said = clean_up(directory.path(), &player);
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{}", said.join("; "));
    }
}

#[test]
fn a_device_of_unknown_origin_is_told_and_left() {
    let _turn = my_turn();
    let directory = directory();
    if !targets().contains(&"zram") {
        return;
    }
    // Killed between the kernel's answer and the note of it.
    let mut player = Player::start(&Play { target: "zram", role: "intent", ..Play::new(directory.path()) });
    player.hear("added");
    player.kill();
    let number: u32 = player.told_number("added");
    let said = clean_up(directory.path(), &player).join("\n");
    let there = zram::present();
    std::fs::write("/sys/class/zram-control/hot_remove", number.to_string()).unwrap();
    assert!(said.contains(&format!("perhaps zram{number}")), "{said}");
    assert!(there.contains(&number), "it is not touched");
}

#[test]
fn swap_that_was_on_before_is_not_touched() {
    let _turn = my_turn();
    let directory = directory();
    if !targets().contains(&"linux-swap") {
        return;
    }
    let theirs = Theirs::make(directory.path());
    let before = Machine::look(directory.path());
    for moment in ["running", "measured"] {
        let program = if moment == "measured" { "true" } else { ENDLESS };
        let mut player = Player::start(&Play { target: "linux-swap", program, pause: moment, ..Play::new(directory.path()) });
        player.hear(moment);
        if moment == "running" {
            let on = swap::active().unwrap();
            let ours = on.iter().filter(|area| area.path != theirs.0);
            assert_eq!(ours.filter(|area| area.priority > Theirs::PRIORITY).count(), 2, "used before theirs: {on:?}");
        }
        player.kill();
        let said = clean_up(directory.path(), &player);
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{}", said.join("; "));
    }
    assert!(swap::active().unwrap().iter().any(|area| area.path == theirs.0 && area.priority == Theirs::PRIORITY));
}

/// Somebody's swap file.
struct Theirs(PathBuf);

impl Theirs {
    const PRIORITY: i32 = 200;

    fn make(directory: &Path) -> Theirs {
        let path = std::fs::canonicalize(directory).unwrap().join("theirs");
        swap::make_file(&path, 8 << 20, || false).unwrap();
        swap::on(&path, Theirs::PRIORITY).unwrap();
        Theirs(path)
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        swap::off(&self.0).unwrap();
    }
}

#[test]
fn settings_that_others_have_changed_since_are_left() {
    let _turn = my_turn();
    let directory = directory();
    if !targets().contains(&"zswap") {
        return;
    }
    let enabled = Path::new("/sys/module/zswap/parameters/enabled");
    let before = std::fs::read_to_string(enabled).unwrap();
    let mut player = Player::start(&Play { target: "zswap", program: ENDLESS, pause: "ready", ..Play::new(directory.path()) });
    player.hear("ready");
    player.kill();
    let on = std::fs::read_to_string(enabled).unwrap();
    std::fs::write(enabled, "N").unwrap();
    let said = clean_up(directory.path(), &player).join("\n");
    let left = std::fs::read_to_string(enabled).unwrap();
    std::fs::write(enabled, before.trim()).unwrap();
    assert_eq!((on.trim(), left.trim()), ("Y", "N"));
    assert!(!said.contains("zswap/parameters/enabled"), "{said}");
}

#[test]
fn what_the_kernel_ends_for_want_of_memory_is_told() {
    let _turn = my_turn();
    let directory = directory();
    for target in targets().into_iter().filter(|target| matches!(*target, "linux-swap")) {
        let before = Machine::look(directory.path());
        let play = Play { target, program: "dd if=/dev/zero of=/dev/null bs=300M count=1", ..Play::new(directory.path()) };
        let told = Player::start(&play).end();
        assert!(told.wrong.iter().any(|why| why.contains("out of memory in its cgroup")), "{target}: {told:?}");
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{target}");
    }
}

#[test]
fn two_at_once_do_not_share_the_kernel() {
    let _turn = my_turn();
    let directory = directory();
    if !targets().contains(&"linux-swap") {
        return;
    }
    let mut first =
        Player::start(&Play { target: "linux-swap", program: "true", pause: "set up", ..Play::new(directory.path()) });
    first.hear("set up");
    let second = Player::start(&Play { target: "zram", program: "true", patient: false, ..Play::new(directory.path()) }).end();
    let why = second.error.unwrap_or_default();
    assert!(why.contains(&format!("another farshore bench (process {}) is using the kernel's swap", first.pid())), "{why}");
    // What the first has is not cleaned up while it lives.
    let before = Machine::look(directory.path());
    assert_eq!(clean_up(directory.path(), &first), [""; 0]);
    assert_eq!(before.difference(&Machine::look(directory.path())), "");
    first.kill();
    assert_ne!(clean_up(directory.path(), &first), [""; 0]);
}

#[test]
fn users_have_what_needs_no_root() {
    let _turn = my_turn();
    let directory = directory();
    machine::open_to_all(directory.path());
    let user = if machine::is_root() { Some(NOBODY) } else { None };
    for target in TARGETS {
        let before = Machine::look(directory.path());
        let play = Play { target, program: SHORT, user, ..Play::new(directory.path()) };
        if is_the_kernels(target) {
            let why = Player::start(&play).end().error.unwrap_or_default();
            assert!(why.starts_with("root is needed: "), "{target}: {why}");
        } else if let Some(why) = machine::missing(&target.parse().unwrap()) {
            println!("skipped: {target}: {why}");
        } else {
            let told = Player::start(&play).end();
            assert_eq!((told.error, told.wrong), (None, Vec::new()), "{target}");
            // A kill, and a next start of the same user; another user's leaves it alone.
            let mut player = Player::start(&Play { program: ENDLESS, pause: "running", ..play });
            player.hear("running");
            player.kill();
            let left = before.difference(&Machine::look(directory.path()));
            assert_ne!(left, "", "{target}");
            if user.is_some() {
                let said = clean_up(directory.path(), &player);
                assert_eq!(before.difference(&Machine::look(directory.path())), left, "{target}: {said:?}");
            }
            let cleaner = Player::start(&Play { role: "clean", user, target, ..Play::new(directory.path()) });
            let told = cleaner.end();
            assert_eq!(told.error, None, "{target}");
        }
        assert_eq!(before.difference(&Machine::look(directory.path())), "", "{target}");
    }
}

#[test]
fn a_journal_is_undone_when_it_is_dropped() {
    let _turn = my_turn();
    let directory = directory();
    let before = Machine::look(directory.path());
    {
        let journal = Journal::open(directory.path()).unwrap();
        let path = journal.work().join("file");
        journal.note(Thing::File { path: path.clone() }).unwrap();
        std::fs::write(path, "x").unwrap();
        assert_ne!(before.difference(&Machine::look(directory.path())), "");
    }
    assert_eq!(before.difference(&Machine::look(directory.path())), "");
}

/// Not a test of its own: what the others start.
#[test]
fn played_by_the_test() {
    play::play();
}
