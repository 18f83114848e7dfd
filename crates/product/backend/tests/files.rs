//! Swap files on real file systems.

mod common;

use common::*;
use farshore_backend::file::{FileArray, FileOptions};
use farshore_backend::{AnyBackend, OpenError};
use farshore_config::{Size, SwapSpec};
use farshore_core::seams::{Backend, IoError, PageBuf, Reads, Spaces, WriteQueue};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fcntl_getfl, fstat, statx};
use std::os::unix::fs::symlink;
use std::path::Path;

const ALL: [FileOptions; 4] = {
    let usual = FileOptions { direct: true, nameless: true, uring: true, partly: false };
    [
        usual,
        FileOptions { uring: false, ..usual },
        FileOptions { direct: false, ..usual },
        FileOptions { direct: false, nameless: false, uring: false, partly: false },
    ]
};

fn dir(path: &Path) -> SwapSpec {
    SwapSpec::Dir(path.into())
}

fn file(path: &Path, size: Option<Size>) -> SwapSpec {
    SwapSpec::File { path: path.into(), size }
}

fn open(specs: &[SwapSpec], options: FileOptions) -> Result<(FileArray, Vec<String>), OpenError> {
    let mut notices = Vec::new();
    FileArray::open(specs, options, &mut |line| notices.push(line.to_owned())).map(|array| (array, notices))
}

fn refused(specs: &[SwapSpec]) -> String {
    let error = open(specs, FileOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn pages_come_back_from_every_kind_of_file() {
    let place = Dir::new();
    for options in ALL {
        for n in 1..4 {
            let specs: Vec<_> = (0..n).map(|_| dir(&place.0)).collect();
            let (array, _) = open(&specs, options).unwrap();
            let mut queue = array.queue(8).unwrap();
            for (first, count) in [(1, 1), (2, 256), (511, 1), (512, 512), (1024, 100), (40_000, 3), (700, 900)] {
                let pages = pages(first, count, n);
                assert_eq!(write::<FileArray>(&mut queue, first, &pages), Ok(()));
                check(&array, first, &pages);
            }
        }
    }
}

/// A process that goes on with what it can have: the other file keeps its number, and is for the engine a space that fails.
#[test]
fn files_that_cannot_be_opened_are_left_out_if_others_can() {
    let place = Dir::new();
    let gone = place.0.join("gone");
    for uring in [true, false] {
        let options = FileOptions { uring, partly: true, ..FileOptions::default() };
        let (array, notices) = open(&[dir(&gone), dir(&place.0)], options).unwrap();
        assert!(notices.iter().any(|line| line.contains("gone") && line.ends_with("; without this one")), "{notices:?}");
        assert_eq!((array.spaces(), array.fds().count()), (2, 1 + usize::from(array.is_asynchronous())));
        let mut queue = array.queue(8).unwrap();
        // Extents go round the two: the first is the file's that is not there.
        let both = [(1, 5), (512, 5), (1030, 5), (1540, 5)].map(|(first, count)| (first, pages(first, count, 7)));
        let ends = both.each_ref().map(|(first, pages)| write::<FileArray>(&mut queue, *first, pages));
        let missing = Err(IoError::Device(2));
        assert_eq!(ends, [missing, Ok(()), missing, Ok(())]);
        check(&array, both[1].0, &both[1].1);
        check(&array, both[3].0, &both[3].1);
        assert!(array.read(slot(1), &mut PageBuf::ZERO.clone()).is_err(), "nothing was written there");
        // One that comes later takes a number of its own.
        array.add(2, &dir(&place.0), &mut |_| {}).unwrap();
        array.shut_space(0);
        array.close_space(0);
        assert_eq!(array.name_of(slot(1)), format!("dir:{}", gone.display()));
    }
    let refused = open(&[dir(&gone), dir(&gone)], FileOptions { partly: true, ..FileOptions::default() }).map(|_| ());
    assert!(matches!(refused, Err(OpenError::Missing(path)) if path == gone));
}

/// Writes that this process has made so far.
fn writes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}

#[test]
fn a_disk_is_tried_only_if_it_does_not_say_what_it_can_do() {
    let place = Dir::new();
    for direct in [true, false] {
        let before = writes();
        let (array, _) = open(&[dir(&place.0)], FileOptions { direct, ..FileOptions::default() }).unwrap();
        let tried = writes() > before;
        for fd in array.borrow() {
            let about = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).unwrap();
            let said = about.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && (1..=4096).contains(&about.stx_dio_mem_align);
            assert_eq!(tried, !(direct && said));
            assert!(!said || fcntl_getfl(fd).unwrap().contains(OFlags::DIRECT) == direct);
        }
    }
}

#[test]
fn a_file_has_no_name_and_is_the_owners_alone() {
    let place = Dir::new();
    for options in ALL {
        let specs = [dir(&place.0), file(&place.0.join("swap"), None)];
        let (array, _) = open(&specs, options).unwrap();
        assert_eq!(place.names(), [""; 0]);
        for fd in array.borrow() {
            let stat = fstat(fd).unwrap();
            assert_eq!(Mode::from_raw_mode(stat.st_mode), Mode::RUSR | Mode::WUSR);
            assert_eq!((stat.st_nlink, stat.st_size), (0, 0));
        }
        let _queue = array.queue(4).unwrap();
        let expected = if options.uring && array.is_asynchronous() { 3 } else { 2 };
        assert_eq!(array.fds().count(), expected);
        assert!(array.fds().all(|fd| fd > 100), "{:?}", array.fds().collect::<Vec<_>>());
        drop(_queue);
        assert_eq!(array.fds().count(), 2);
    }
}

#[test]
fn files_are_sparse() {
    let place = Dir::new();
    let (array, _) = open(&[dir(&place.0)], FileOptions::default()).unwrap();
    let mut queue = array.queue(1).unwrap();
    write::<FileArray>(&mut queue, 1 << 20, &pages(1 << 20, 1, 0)).unwrap();
    let stat = fstat(array.borrow().next().unwrap()).unwrap();
    assert!(stat.st_size > 4 << 30 && stat.st_blocks * 512 < 16 << 20, "{stat:?}");
    let mut back = PageBuf::ZERO;
    assert_eq!(array.read(slot(1 << 21), &mut back), Err(IoError::Short), "past the end");
}

#[test]
fn memory_file_systems_are_buffered_and_the_user_is_told() {
    if !Path::new("/dev/shm").is_dir() {
        println!("skipped: there is no /dev/shm here");
        return;
    }
    let place = Dir::below(Path::new("/dev/shm"));
    let (array, notices) = open(&[dir(&place.0)], FileOptions::default()).unwrap();
    assert!(!fcntl_getfl(array.borrow().next().unwrap()).unwrap().contains(OFlags::DIRECT));
    assert!(notices.len() == 1 && notices[0].contains("RAM") && !notices[0].contains('\n'), "{notices:?}");
    let mut queue = array.queue(4).unwrap();
    let pages = pages(1, 300, 0);
    write::<FileArray>(&mut queue, 1, &pages).unwrap();
    check(&array, 1, &pages);
}

#[test]
fn a_disk_is_used_by_direct_io() {
    let place = Dir::new();
    let (array, notices) = open(&[dir(&place.0)], FileOptions::default()).unwrap();
    let direct = fcntl_getfl(array.borrow().next().unwrap()).unwrap().contains(OFlags::DIRECT);
    if notices.iter().any(|notice| notice.contains("buffered")) {
        println!("skipped: {:?} has no direct I/O", place.0);
        assert!(!direct);
    } else {
        assert!(direct && notices.is_empty(), "{notices:?}");
    }
}

#[test]
fn bad_places_are_refused_in_one_line() {
    let place = Dir::new();
    let missing = place.0.join("missing");
    assert!(refused(&[dir(&missing)]).contains("does not exist"));
    assert!(refused(&[file(&missing.join("x"), None)]).contains("does not exist"));
    assert!(refused(&[]).contains("--swap"));

    let full = place.0.join("full");
    std::fs::write(&full, "abc").unwrap();
    assert!(refused(&[dir(&full)]).contains("not a directory"));
    assert!(refused(&[file(&full, None)]).contains("holds 3 bytes: remove it"));
    assert_eq!(std::fs::read(&full).unwrap(), b"abc");

    assert!(refused(&[file(&place.0, None)]).contains("is a directory"));
    let link = place.0.join("link");
    symlink(&full, &link).unwrap();
    assert!(refused(&[file(&link, None)]).contains("symbolic link"));
    assert!(link.is_symlink());
    assert!(refused(&[file(Path::new("/dev/null"), None)]).contains("no regular file"));

    let small = refused(&[file(&place.0.join("small"), Some(Size::mib(1)))]);
    assert!(small.contains("too small") && small.contains("2M"), "{small}");

    let empty = place.0.join("empty");
    std::fs::write(&empty, "").unwrap();
    open(&[file(&empty, None)], FileOptions::default()).unwrap();
    assert!(!empty.exists());
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if is_root() {
        println!("skipped here: root may write anywhere; a child as another user checks it");
        if !as_nobody("a_directory_of_another_user_is_refused") {
            println!("skipped: setpriv is missing, or the test program is not readable for other users");
        }
        return;
    }
    for options in ALL {
        let error = open(&[dir(Path::new("/"))], options).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("not writable"), "{error}");
    }
    assert!(refused(&[file(Path::new("/swap"), None)]).contains("not writable"));
}

/// Runs one test of this program without any privilege. `false`: that cannot be done here.
fn as_nobody(test: &str) -> bool {
    let me = std::env::current_exe().unwrap();
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&me).args(args);
        command.output()
    };
    if !run(&["--list"]).is_ok_and(|output| output.status.success()) {
        return false;
    }
    let output = run(&["--exact", test, "--nocapture"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    true
}

#[test]
fn pages_come_back_for_a_user_without_privileges() {
    if is_root() {
        if !as_nobody("pages_come_back_for_a_user_without_privileges") {
            println!("skipped: setpriv is missing, or the test program is not readable for other users");
        }
        return;
    }
    let (array, notices) = open(&[dir(Path::new("/var/tmp"))], FileOptions::default()).unwrap();
    println!("notices: {notices:?}");
    let mut queue = array.queue(8).unwrap();
    let pages = pages(1, 256, 3);
    write::<FileArray>(&mut queue, 1, &pages).unwrap();
    check(&array, 1, &pages);
}

#[test]
fn a_size_is_kept_and_beyond_it_is_full() {
    let place = Dir::new();
    let specs = [file(&place.0.join("a"), Some(Size::mib(5))), file(&place.0.join("b"), Some(Size::mib(64)))];
    for options in ALL {
        let (array, _) = open(&specs, options).unwrap();
        assert_eq!(array.capacity(), Some((2 + 32) * 512), "whole extents");
        assert_eq!((array.capacity_of(0), array.capacity_of(1)), (Some(2 * 512), Some(32 * 512)));
        assert!(array.name_of(slot(511)).ends_with("/a,size=5M") && array.name_of(slot(512)).ends_with("/b,size=64M"));
        let mut queue = array.queue(4).unwrap();
        assert_eq!(write::<FileArray>(&mut queue, 2040, &pages(2040, 8, 0)), Ok(()));
        assert_eq!(write::<FileArray>(&mut queue, 2041, &pages(2041, 8, 0)), Err(IoError::Full));
        assert_eq!(write::<FileArray>(&mut queue, u64::MAX >> 30, &pages(1, 1, 0)), Err(IoError::Full));
    }
}

#[test]
fn a_full_disk_is_full_and_what_it_holds_stays_right() {
    let Some(mount) = Mount::tmpfs("size=8m") else {
        println!("skipped: this user cannot mount a small file system");
        return;
    };
    for options in ALL {
        let (array, _) = open(&[dir(&mount.0.0)], options).unwrap();
        let mut queue = array.queue(4).unwrap();
        let mut written = Vec::new();
        let mut next = 1;
        let error = loop {
            let batch = pages(next, 255, 5);
            match write::<FileArray>(&mut queue, next, &batch) {
                Ok(()) => written.push((next, batch)),
                Err(error) => break error,
            }
            next += 256;
            assert!(next < 4096, "8M never fill");
        };
        assert_eq!(error, IoError::Full);
        assert!(written.len() >= 6);
        written.iter().for_each(|(first, batch)| check(&array, *first, batch));
        // Overwriting what is there needs no room.
        let batch = pages(1, 255, 6);
        assert_eq!(write::<FileArray>(&mut queue, 1, &batch), Ok(()));
        check(&array, 1, &batch);
    }
    // Something else has filled it before.
    std::fs::write(mount.0.0.join("hog"), vec![1; 7 << 20]).unwrap();
    let error = refused(&[dir(&mount.0.0)]);
    assert!(error.contains("full") && error.contains("KiB free"), "{error}");
}

#[test]
fn a_ring_that_is_taken_away_loses_no_write() {
    let place = Dir::new();
    let (array, _) = open(&[dir(&place.0)], FileOptions::default()).unwrap();
    if !array.is_asynchronous() {
        println!("skipped: there is no io_uring here");
        return;
    }
    let mut queue = array.queue(8).unwrap();
    let batch = pages(1, 8, 1);
    write::<FileArray>(&mut queue, 1, &batch).unwrap();
    // As a program does that closes numbers it does not know.
    let null = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the number is open, and from here on nobody needs what it stood for (that is the test).
    let mut ring = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(queue.ring_fd().unwrap()) };
    rustix::io::dup2(&null, &mut ring).unwrap();

    for n in 0..4u64 {
        // SAFETY: `batch` outlives the queue's last completion, which is reaped below.
        unsafe { queue.start_write(slot(100 + n), batch.as_ptr(), 1, n) }.unwrap();
    }
    let mut ends = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(true, &mut |tag, result| ends.push((tag, result)));
    }
    ends.sort_by_key(|(tag, _)| *tag);
    assert_eq!(ends.len(), 4);
    assert!(ends.iter().zip(0..).all(|((tag, result), n)| *tag == n && matches!(result, Err(IoError::Device(_)))), "{ends:?}");
    // From now on without the ring.
    let batch = pages(700, 600, 2);
    assert_eq!(write::<FileArray>(&mut queue, 700, &batch), Ok(()));
    check(&array, 700, &batch);
    drop(queue);
    assert!(rustix::io::fcntl_getfd(&ring).is_ok(), "the number is somebody else's: the queue must not close it");
}

#[test]
fn a_queue_is_exact_about_its_depth_and_delivers_each_write_once() {
    let place = Dir::new();
    for options in ALL {
        let (array, _) = open(&[dir(&place.0), dir(&place.0)], options).unwrap();
        let mut queue = array.queue(5).unwrap();
        let batches: Vec<_> = (0..5).map(|n| pages(1 + n * 512, 256, n)).collect();
        for (tag, batch) in (0..).zip(&batches) {
            assert_eq!(u64::from(queue.in_flight()), tag);
            // SAFETY: `batches` outlive the completions, which are reaped below.
            unsafe { queue.start_write(slot(1 + tag * 512), batch.as_ptr(), 256, tag) }.unwrap();
        }
        // SAFETY: as above.
        assert_eq!(unsafe { queue.start_write(slot(9000), batches[0].as_ptr(), 1, 9) }, Err(()));
        let mut seen = [0; 5];
        let mut left = 5;
        while left > 0 {
            queue.reap(true, &mut |tag, result| {
                assert_eq!(result, Ok(()));
                seen[tag as usize] += 1;
                left -= 1;
            });
            assert_eq!(queue.in_flight(), left);
        }
        assert_eq!(seen, [1; 5]);
        queue.reap(true, &mut |_, _| panic!("nothing is in flight"));
        (0..).zip(&batches).for_each(|(n, batch)| check(&array, 1 + n * 512, batch));
        // A queue can move to another thread, and be dropped with writes in flight.
        let batch = pages(5000, 256, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut queue = queue;
                // SAFETY: `batch` outlives the queue, whose drop waits for the completion.
                unsafe { queue.start_write(slot(5000), batch.as_ptr(), 256, 1) }.unwrap();
                queue.reap(false, &mut |_, _| {});
            });
        });
    }
}

#[test]
fn kinds_are_opened_by_name_and_mixed_ones_refused() {
    let place = Dir::new();
    let open = |specs: &[&str]| {
        let specs: Vec<SwapSpec> = specs.iter().map(|text| text.parse().unwrap()).collect();
        AnyBackend::open(&specs, false, &mut |_| {}).map_err(|error| error.to_string())
    };
    let here = format!("dir:{}", place.0.display());
    let array = open(&[&here, &here]).unwrap();
    // Two files, and the ring by which io_uring was tried out.
    assert_eq!((array.name(), array.fds().count() - array.take_rings().len()), (format!("{here} + {here}").as_str(), 2));
    assert!(matches!(open(&["ram,size=4M"]).unwrap(), AnyBackend::Ram(_)));
    assert!(matches!(open(&["delay:10us"]).unwrap(), AnyBackend::Ram(_)));
    let delayed = open(&["delay:10us,rate=1G", "delay:1us"]).unwrap();
    assert_eq!((delayed.name(), delayed.spaces()), ("delay:10us,rate=1G + delay:1us", 2));
    assert!(open(&["delay:1us", "ram"]).unwrap_err().contains("together"));
    assert!(open(&["ram", &here]).unwrap_err().contains("together"));
    assert!(open(&[&here, "delay:1us"]).unwrap_err().contains("together"));
    assert!(open(&["ram", "ram"]).unwrap_err().contains("together"));
    assert_eq!(open(&["ram:zstd,size=4M"]).unwrap().name(), "ram:zstd,size=4M");
    let pooled = open(&["ram:lz4", &here, &here]).unwrap();
    assert_eq!((pooled.name(), pooled.spaces()), (format!("ram:lz4 over {here} + {here}").as_str(), 2));
    assert!(open(&[&here, "ram:lz4"]).unwrap_err().contains("before them"));
    assert!(open(&["ram:lz4", &here, "ram:zstd"]).unwrap_err().contains("together"));
    assert!(open(&["rediss://a"]).unwrap_err().contains("not built yet"));
    assert!(open(&[]).unwrap_err().contains("--swap"));
    let mut queue = array.queue(4).unwrap();
    let batch = pages(500, 100, 0);
    write::<AnyBackend>(&mut queue, 500, &batch).unwrap();
    check(&array, 500, &batch);
}
