//! What happens to swap files when a process ends or has limits of its own. Each test starts this program
//! again as a child that plays one part.

mod common;

use common::*;
use farshore_backend::file::{FileArray, FileOptions};
use farshore_backend::{AnyBackend, faulty::Kind};
use farshore_config::SwapSpec;
use farshore_core::seams::{Backend, IoError, PageBuf, Reads, Spaces};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PART: &str = "FARSHORE_TEST_PART";

/// A child that runs the test `name`, as `part`, in `dir`. It ignores SIGXFSZ, as evictors block all signals.
fn child(name: &str, part: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(PART, part).env("FARSHORE_TEST_DIR", dir);
    command
}

fn part() -> Option<String> {
    std::env::var(PART).ok()
}

fn specs() -> Vec<SwapSpec> {
    let dir = std::env::var("FARSHORE_TEST_DIR").unwrap();
    vec![SwapSpec::Dir(dir.clone().into()), format!("file:{dir}/swap").parse().unwrap()]
}

fn options(nameless: bool) -> FileOptions {
    FileOptions { nameless, ..FileOptions::default() }
}

fn wait_for(child: &mut Child, line: &str) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|seen| seen.contains(line)), "the child ended before it said {line:?}");
}

#[test]
fn kill_9_leaves_nothing() {
    if let Some(part) = part() {
        let array = FileArray::open(&specs(), options(part == "nameless"), &mut |_| {}).unwrap();
        let mut queue = array.queue(8).unwrap();
        let batch = pages(1, 256, 0);
        println!("ready");
        for n in 0.. {
            write::<FileArray>(&mut queue, 1 + n % 64 * 512, &batch).unwrap();
        }
    }
    // On a file system of its own, if that can be had, to see the room come back.
    let mount = Mount::tmpfs("size=256m");
    let other = Dir::new();
    let place = mount.as_ref().map_or(&other, |mount| &mount.0);
    let room = || rustix::fs::statvfs(&place.0).unwrap().f_bfree;
    let before = room();
    for part in ["nameless", "named"] {
        let mut child = child("kill_9_leaves_nothing", part, &place.0).stdout(Stdio::piped()).spawn().unwrap();
        wait_for(&mut child, "ready");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(place.names(), [""; 0], "no name while it runs");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(place.names(), [""; 0], "no name after it");
        // The kernel takes the ring down, and with it the file, a moment after the process.
        let end = Instant::now();
        while mount.is_some() && room() < before {
            assert!(end.elapsed() < Duration::from_secs(20), "the room of the swap file does not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("room came back after {:?}", end.elapsed());
    }
}

/// Sets the limit of file sizes, as `ulimit -f` does: soft and hard.
fn limit_files(current: Option<u64>, maximum: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
}

#[test]
fn the_hard_limit_of_file_sizes_is_the_space() {
    if let Some(part) = part() {
        let bytes = if part == "small" { 1 << 20 } else { 8 << 20 };
        limit_files(Some(bytes), Some(bytes));
        let mut notices = Vec::new();
        let opened = FileArray::open(&specs(), options(true), &mut |line| notices.push(line.to_owned()));
        if part == "small" {
            let error = opened.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains("ulimit -f") && error.contains("1024 KiB"), "{error}");
        } else {
            assert_eq!(opened.unwrap().capacity(), Some(2 * 4 * 512));
            assert!(notices.iter().any(|notice| notice.contains("limited to 8M")), "{notices:?}");
        }
        println!("{part} is right");
        return;
    }
    parts_are_right("the_hard_limit_of_file_sizes_is_the_space", &["small", "larger"]);
}

/// The soft one may be raised by the user, and lowered by the program while it runs: pages are written all the same.
#[test]
fn the_soft_limit_of_file_sizes_is_written_past() {
    if let Some(part) = part() {
        limit_files(Some(1 << 20), Some(8 << 20));
        let array = FileArray::open(&specs(), FileOptions { uring: part == "uring", ..options(true) }, &mut |_| {}).unwrap();
        let mut queue = array.queue(4).unwrap();
        for (current, first) in [(1 << 20, 1), (1 << 20, 1024), (4096, 3 * 1024)] {
            limit_files(Some(current), Some(8 << 20));
            let batch = pages(first, 8, 0);
            write::<FileArray>(&mut queue, first, &batch).unwrap();
            check(&array, first, &batch);
        }
        // Past the hard limit no file was made long.
        assert_eq!(write::<FileArray>(&mut queue, 5 * 1024, &pages(5 * 1024, 8, 0)), Err(IoError::Full));
        println!("{part} is right");
        return;
    }
    parts_are_right("the_soft_limit_of_file_sizes_is_written_past", &["uring", "sync"]);
}

fn parts_are_right(name: &str, parts: &[&str]) {
    for part in parts {
        let place = Dir::new();
        let output = child(name, part, &place.0).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(&format!("{part} is right")), "{output:?}");
    }
}

#[test]
fn the_variable_wraps_the_space() {
    if part().is_some() {
        match AnyBackend::open(&specs(), false, &mut |_| {}) {
            Ok(space) => {
                let faults = space.faults().expect("FARSHORE_FAULTY is set");
                let mut back = PageBuf::ZERO;
                let mut queue = space.queue(2).unwrap();
                write::<AnyBackend>(&mut queue, 1, &pages(1, 1, 0)).unwrap();
                assert_eq!(space.read(slot(1), &mut back), Err(IoError::Device(5)));
                assert_eq!(faults.injected(Kind::ReadError), 1);
                assert!(space.name().starts_with("faulty:dir:") && space.fds().count() >= 2);
                println!("wrapped");
            }
            Err(error) => println!("{error}"),
        }
        return;
    }
    let place = Dir::new();
    let said = |text: &str| {
        let mut command = child("the_variable_wraps_the_space", "wrapped", &place.0);
        let output = command.env("FARSHORE_FAULTY", text).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(said("seed=1,read_error=1").contains("wrapped"));
    assert!(said("seed=1,red_error=1").contains("FARSHORE_FAULTY: \"red_error\" is not known"));
}

#[test]
fn without_a_ring_pages_are_written_at_once_and_the_user_is_told() {
    if part().is_some() {
        // So few descriptors that there is one for a file and none for a ring: the fewest that open works with.
        for limit in 4..200 {
            setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(4096) }).unwrap();
            let mut notices = Vec::new();
            let opened = FileArray::open(&specs()[..1], options(true), &mut |line| notices.push(line.to_owned()));
            let Ok(array) = opened else { continue };
            assert!(!array.is_asynchronous());
            assert!(notices.iter().any(|notice| notice.contains("io_uring cannot be used")), "{notices:?}");
            let mut queue = array.queue(4).unwrap();
            let batch = pages(1, 300, 0);
            write::<FileArray>(&mut queue, 1, &batch).unwrap();
            check(&array, 1, &batch);
            println!("written");
            return;
        }
        panic!("no limit was enough");
    }
    let place = Dir::new();
    let name = "without_a_ring_pages_are_written_at_once_and_the_user_is_told";
    let output = child(name, "ringless", &place.0).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("written"), "{output:?}");
}
