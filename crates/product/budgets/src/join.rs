//! How a program gets into a budget, before it begins: `farshore run` opens the user's list, takes a line there, and waits until the others have
//! left room for the least that the program needs.
//!
//! # The file
//!
//! It lies in `/dev/shm`, whatever the environment says: two programs of one user must find the same one, also where one was started by a
//! login and the other by cron. Everybody may make files there, so the name may be somebody else's. What is not a regular file of
//! this user is passed over, and a name with a number that nobody could guess behind it is used in its place; the next program finds it among the names of the
//! folder, by its owner. (Two programs that find the name taken in the same twentieth of a second, and are the first, could make two.)
//!
//! The file stays when all programs have ended: a few KiB that mean nothing to the next program, since nobody has a line in it.
//!
//! It may also lose its name while programs are in it: systemd removes what a user has in `/dev/shm` when the user's last session ends. A second list
//! would give the same memory away twice. So before a list is made the user's processes are looked through for one that has such a list open, and
//! that one is used.

use crate::law::{NEED_TO_BEGIN, Share};
use crate::list::{FILE_BYTES, Hold, LINES, Line, Name, now_ms};
use farshore_config::{Options, Seat, Size};
use farshore_sys::fd::lock_byte;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{read_dir, read_link};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const FOLDER: &str = "/dev/shm";
const PAGE: u64 = 4096;
/// How long the others get to make room.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the hold is waited for.
const HOLD_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// How long another program gets that makes a list at the same time.
const OTHERS_MAKE: Duration = Duration::from_millis(50);

/// What a program asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'w> {
    /// The name of the budget.
    pub name: &'w str,
    /// How large it is to be, bytes; `None`: as large as it is.
    pub size: Option<u64>,
    /// What the program needs at least, bytes.
    pub least: u64,
    /// The process that becomes the program.
    pub pid: u32,
}

/// A family's place in the list: it has it as long as a process has the file open.
#[derive(Debug)]
pub struct Joined {
    /// The list.
    pub file: OwnedFd,
    /// Its line.
    pub line: u32,
    /// How large the budget is, bytes.
    pub size: u64,
}

/// Where the options name a budget: takes a seat there for the program that process `pid` becomes, which has it as long as the file that is returned is open
/// somewhere. The options say so from then on.
///
/// # Errors
/// As [`join`].
pub fn take_seat(options: &mut Options, pid: u32) -> Result<Option<OwnedFd>, String> {
    let least = options.least_memory().bytes();
    let Some(budget) = &mut options.budget else { return Ok(None) };
    let Joined { file, line, size } = join(Wish { name: &budget.name, size: budget.size.map(Size::bytes), least, pid })?;
    options.seat = Some(Seat { descriptor: file.as_raw_fd(), line });
    budget.size = Some(Size(size));
    Ok(Some(file))
}

/// Gets a program into a budget, with the least that it needs. Waits for others to make room.
///
/// # Errors
/// One line: there is no such budget, it has another size, there is no room in it, or the list cannot be had.
pub fn join(wish: Wish<'_>) -> Result<Joined, String> {
    join_in(Path::new(FOLDER), rustix::process::geteuid().as_raw(), wish, PATIENCE)
}

fn join_in(folder: &Path, user: u32, wish: Wish<'_>, patience: Duration) -> Result<Joined, String> {
    let file = open(folder, user)?;
    let (begun, mut line) = (Instant::now(), None);
    loop {
        match attempt(&file, &mut line, wish)? {
            Attempt::Joined { line, size } => return Ok(Joined { file, line, size }),
            Attempt::NoRoom(why) if begun.elapsed() >= patience => return Err(why),
            Attempt::NoRoom(_) => sleep(PAUSE),
        }
    }
}

enum Attempt {
    Joined {
        line: u32,
        size: u64,
    },
    /// Not yet; and why not, should it never be.
    NoRoom(String),
}

fn attempt(file: &OwnedFd, line: &mut Option<u32>, wish: Wish<'_>) -> Result<Attempt, String> {
    let Wish { name, least, pid, .. } = wish;
    let failed = |errno: Errno| match errno {
        Errno::FBIG => format!(
            "--budget {name}: the list of budgets cannot be written, since files must not become larger than this process' limit: allow {} KiB (ulimit -f)",
            FILE_BYTES.div_ceil(1024)
        ),
        errno => format!("--budget {name}: the list of budgets cannot be used ({errno})"),
    };
    let hold = hold(file, name)?;
    hold.begin().map_err(|errno| match errno {
        Errno::MEDIUMTYPE => format!(
            "--budget {name}: the list of budgets in {FOLDER} is damaged, or of another version of Farshore: end the programs that use it, and remove it"
        ),
        errno => failed(errno),
    })?;
    let number = match *line {
        Some(number) => number,
        // Under the hold: nobody takes what the line says of a family before for one of this.
        None => (0..LINES).find(|&number| lock_byte(file.as_fd(), number).is_ok()).ok_or_else(|| {
            format!("--budget {name}: {LINES} programs of this user are in budgets already: wait until one has ended")
        })?,
    };
    *line = Some(number);
    let others: Vec<Line> = hold
        .lines(Name::new(name))
        .map_err(failed)?
        .into_iter()
        .filter(|(other, _)| *other != number)
        .map(|(_, line)| line)
        .collect();
    let size = agreed(wish, &others)?;
    let least = least.div_ceil(PAGE);
    let sum = |of: fn(&Share) -> u64| others.iter().map(|line| of(&line.share)).sum::<u64>();
    let (leasts, held) = (sum(|share| share.least), sum(|share| share.held));
    let shown = |pages: u64| Size(pages * PAGE);
    let larger = others.first().map_or(String::new(), |line| format!(" ('farshore set {} budget=SIZE')", line.pid));
    if leasts + least > size {
        return Err(format!(
            "--budget {name}: it has {}, the other programs in it are never left with less than {}, and this one needs {}: make it larger{larger}, or \
             give this one a smaller --memory-min",
            shown(size),
            shown(leasts),
            shown(least)
        ));
    }
    let fits = held + least <= size;
    let share = match fits {
        true => Share { limit: least, held: least, least, wants: least, need: 0 },
        // The others see that somebody waits.
        false => Share { limit: 0, held: 0, least, wants: least, need: NEED_TO_BEGIN },
    };
    let line = Line { name: Name::new(name), size, pid, looked_ms: now_ms(), share };
    hold.write(number, &line).map_err(failed)?;
    Ok(match fits {
        true => Attempt::Joined { line: number, size: size * PAGE },
        false => Attempt::NoRoom(format!(
            "--budget {name}: it has {}, the other programs in it have {}, and they have not made room for the {} that this one needs; programs that \
             are stopped make none: try again, or make it larger{larger}",
            shown(size),
            shown(held),
            shown(least)
        )),
    })
}

/// How large the budget is, pages.
fn agreed(wish: Wish<'_>, others: &[Line]) -> Result<u64, String> {
    let Wish { name, size, .. } = wish;
    let own = size.map(|bytes| bytes / PAGE);
    let Some(first) = others.iter().min_by_key(|line| line.size) else {
        return own
            .ok_or_else(|| format!("--budget {name}: no program is in it now: say how large it is, such as --budget {name}=8G"));
    };
    match own.filter(|&own| own != first.size) {
        None => Ok(first.size),
        Some(own) => Err(format!(
            "--budget {name}={}: it has {}, and process {pid} is in it: leave the size out to join it, or change it by 'farshore set {pid} budget={}'",
            Size(own * PAGE),
            Size(first.size * PAGE),
            Size(own * PAGE),
            pid = first.pid
        )),
    }
}

fn hold<'f>(file: &'f OwnedFd, name: &str) -> Result<Hold<'f>, String> {
    let begun = Instant::now();
    loop {
        match Hold::get(file.as_fd()) {
            Ok(hold) => return Ok(hold),
            Err(Errno::AGAIN) if begun.elapsed() < HOLD_PATIENCE => sleep(PAUSE),
            Err(Errno::AGAIN) => {
                return Err(format!(
                    "--budget {name}: a program of this user has held the list of budgets for {} s: it was stopped just then, so let it go on, or end it",
                    HOLD_PATIENCE.as_secs()
                ));
            }
            Err(errno) => return Err(format!("--budget {name}: the list of budgets cannot be locked ({errno})")),
        }
    }
}

/// Opens the list of this user, or makes it.
fn open(folder: &Path, user: u32) -> Result<OwnedFd, String> {
    const TRIES: usize = 8;
    let plain = format!("farshore-budgets-{user}");
    for _ in 0..TRIES {
        if let Some(file) = find(folder, &plain, user)? {
            return Ok(file);
        }
        if let Some(file) = nameless(folder, &plain, user) {
            return Ok(file);
        }
        make(folder, &plain)?;
    }
    Err(format!(
        "--budget: a list of budgets in {} is gone as soon as it is made: who removes '{plain}' there?",
        folder.display()
    ))
}

/// The list: under its name, or else the first one of those with a number behind it.
fn find(folder: &Path, plain: &str, user: u32) -> Result<Option<OwnedFd>, String> {
    if let Some(file) = look_at(&folder.join(plain), user)? {
        return Ok(Some(file));
    }
    let prefix = format!("{plain}.");
    let entries = read_dir(folder).map_err(|why| no_folder(folder, &why.to_string()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    names.iter().find_map(|name| look_at(&folder.join(name), user).transpose()).transpose()
}

/// A list of this user that has lost its name, and that a process still has open.
fn nameless(folder: &Path, plain: &str, user: u32) -> Option<OwnedFd> {
    let device = stat(folder).ok()?.st_dev;
    // As the kernel shows it: the name that it had, and ` (deleted)`.
    let was_list = |target: &Path| {
        let rest = target.file_name().and_then(|name| name.to_str()?.strip_prefix(plain));
        target.parent() == Some(folder) && rest.is_some_and(|rest| rest.starts_with(['.', ' ']))
    };
    let is_list = |file: &OwnedFd| fstat(file).is_ok_and(|stat| stat.st_dev == device && stat.st_nlink == 0);
    let is_process = |name: &OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = read_dir("/proc").ok()?.flatten().filter(|entry| is_process(&entry.file_name()));
    // What others have open under such a name is nothing to be opened.
    let own = processes.filter(|entry| entry.metadata().is_ok_and(|process| process.uid() == user));
    let descriptors = own.filter_map(|entry| read_dir(entry.path().join("fd")).ok()).flat_map(|all| all.flatten());
    let lists = descriptors.map(|entry| entry.path()).filter(|path| read_link(path).is_ok_and(|target| was_list(&target)));
    lists.filter_map(|path| open_own(&path, user, OFlags::empty()).ok().flatten()).find(is_list)
}

/// Opens this file, if it is one of this user's. No link is followed.
fn look_at(path: &Path, user: u32) -> Result<Option<OwnedFd>, String> {
    open_own(path, user, OFlags::NOFOLLOW)
}

fn open_own(path: &Path, user: u32, how: OFlags) -> Result<Option<OwnedFd>, String> {
    let refuse = |why: String| Err(format!("--budget: the list of budgets '{}' {why}", path.display()));
    // Not to wait for what is no file.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | how;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return refuse(format!("cannot be opened ({errno})")),
        Err(_) => return Ok(None),
    };
    let stat = fstat(&file).map_err(|errno| format!("--budget: '{}': {errno}", path.display()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_uid != user {
        return Ok(None);
    }
    match stat.st_mode & 0o077 {
        0 => Ok(Some(file)),
        mode => refuse(format!("is open to others than you (mode {mode:03o}): remove it when no program of a budget runs")),
    }
}

/// Makes the file, under a name that is free.
fn make(folder: &Path, plain: &str) -> Result<(), String> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = |name: &str| rustix::fs::open(folder.join(name), flags, Mode::RUSR | Mode::WUSR).map(drop);
    let made = match make(plain) {
        Err(Errno::EXIST) => {
            let number = RandomState::new().build_hasher().finish();
            let made = make(&format!("{plain}.{number:016x}"));
            sleep(OTHERS_MAKE);
            made
        }
        made => made,
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(why) => Err(no_folder(folder, &why.to_string())),
    }
}

fn no_folder(folder: &Path, why: &str) -> String {
    format!(
        "--budget: programs of one budget meet in {}, and no file can be made there ({why}): is a tmpfs mounted there?",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::os::unix::fs::PermissionsExt as _;

    const MIB: u64 = 1 << 20;

    fn wish(name: &str, mib: Option<u64>, least: u64) -> Wish<'_> {
        Wish { name, size: mib.map(|mib| mib * MIB), least: least * MIB, pid: 4242 }
    }

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn programs_join_while_the_least_of_each_has_room() {
        let folder = tempfile::tempdir().unwrap();
        let join = |name, mib, least| join_in(folder.path(), me(), wish(name, mib, least), Duration::from_millis(50));
        let why = join("jobs", None, 16).unwrap_err();
        assert!(why.contains("no program is in it now"), "{why}");
        let one = join("jobs", Some(64), 16).unwrap();
        assert_eq!((one.line, one.size), (0, 64 * MIB));
        let two = join("jobs", None, 16).unwrap();
        assert_eq!((two.line, two.size), (1, 64 * MIB));
        let other = join("other", Some(16), 16).unwrap();
        assert_eq!(other.line, 2, "all budgets of a user are in one list");
        let why = join("jobs", Some(128), 16).unwrap_err();
        assert!(why.contains("it has 64M") && why.contains("process 4242") && why.contains("budget=128M"), "{why}");
        let why = join("jobs", Some(64), 40).unwrap_err();
        assert!(why.contains("it has 64M") && why.contains("less than 32M") && why.contains("needs 40M"), "{why}");
        // An end in whatever way closes the file: nothing else says that the program is gone.
        drop((one, two));
        let again = join("jobs", Some(8), 8).unwrap();
        assert_eq!((again.line, again.size), (0, 8 * MIB), "another size, since nobody is in it");
        assert_eq!(names(folder.path()), [format!("farshore-budgets-{}", me())]);
        drop(other);
    }

    #[test]
    fn a_program_waits_for_room_and_says_so_in_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let one = join_in(folder.path(), me(), wish("jobs", Some(64), 16), Duration::ZERO).unwrap();
        let write = |file: &OwnedFd, held: u64| {
            let hold = hold(file, "jobs").unwrap();
            let (number, mut line) = hold.lines(Name::new("jobs")).unwrap()[0];
            (line.share.limit, line.share.held) = (held, held);
            hold.write(number, &line).unwrap();
        };
        write(&one.file, 60 * MIB / PAGE);
        let why = join_in(folder.path(), me(), wish("jobs", None, 16), Duration::from_millis(30)).unwrap_err();
        assert!(why.contains("the other programs in it have 60M") && why.contains("the 16M that this one needs"), "{why}");
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| join_in(folder.path(), me(), wish("jobs", None, 16), Duration::from_secs(60)));
            let waits = || {
                let lines = hold(&one.file, "jobs").unwrap().lines(Name::new("jobs")).unwrap();
                lines.iter().any(|(_, line)| line.share.need == NEED_TO_BEGIN && line.share.held == 0 && line.share.wants == 4096)
            };
            while !waits() {
                sleep(PAUSE);
            }
            write(&one.file, 48 * MIB / PAGE);
            assert_eq!(joining.join().unwrap().unwrap().line, 1);
        });
    }

    #[test]
    fn a_list_without_a_name_is_found_while_a_program_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let join = |mib, least| join_in(folder.path(), me(), wish("jobs", mib, least), Duration::ZERO);
        let one = join(Some(64), 16).unwrap();
        let plain = folder.path().join(format!("farshore-budgets-{}", me()));
        std::fs::remove_file(&plain).unwrap();
        let two = join(None, 16).unwrap();
        assert_eq!((one.line, two.line, names(folder.path()).len()), (0, 1, 0), "there is one list");
        let found = |folder: &Path, user| nameless(folder, &format!("farshore-budgets-{}", me()), user).is_some();
        assert!(found(folder.path(), me()) && !found(folder.path(), me() + 1), "others' lists are theirs");
        assert!(!found(tempfile::tempdir().unwrap().path(), me()), "that of another folder is another one");
        drop((one, two));
        assert_eq!(join(Some(8), 8).unwrap().line, 0);
        assert_eq!(names(folder.path()).len(), 1, "nobody was in the old one");
    }

    #[test]
    fn names_that_are_taken_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join(format!("farshore-budgets-{}", me()));
        let aside = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(aside.path(), &plain).unwrap();
        let one = join_in(folder.path(), me(), wish("jobs", Some(64), 16), Duration::ZERO).unwrap();
        let two = join_in(folder.path(), me(), wish("jobs", None, 16), Duration::ZERO).unwrap();
        assert_eq!((one.line, two.line), (0, 1), "both are in the same one");
        assert_eq!((names(folder.path()).len(), std::fs::read(aside.path()).unwrap().len()), (2, 0), "no link is followed");
        drop((one, two));
        std::fs::remove_file(&plain).unwrap();
        std::fs::create_dir(&plain).unwrap();
        assert_eq!(join_in(folder.path(), me(), wish("jobs", Some(64), 16), Duration::ZERO).unwrap().line, 0);
        std::fs::remove_dir(&plain).unwrap();
        rustix::fs::mknodat(CWD, &plain, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(join_in(folder.path(), me(), wish("jobs", Some(64), 16), Duration::ZERO).unwrap().line, 0);
        assert_eq!(names(folder.path()).len(), 2, "one with a number, that all have found");
        // A file of somebody else, as far as the code can tell.
        assert!(look_at(aside.path(), me() + 1).unwrap().is_none());
    }

    #[test]
    fn a_list_that_others_may_use_or_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join(format!("farshore-budgets-{}", me()));
        let join = || join_in(folder.path(), me(), wish("jobs", Some(64), 16), Duration::ZERO).map(drop);
        std::fs::write(&plain, b"something else altogether").unwrap();
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(join().unwrap_err().contains("is damaged"));
        assert_eq!(std::fs::read(&plain).unwrap(), b"something else altogether");
        std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(join().unwrap_err().contains("mode 044"));
        std::fs::remove_file(&plain).unwrap();
        join().unwrap();
        assert_eq!(std::fs::metadata(&plain).unwrap().permissions().mode() & 0o7777, 0o600);
        let nowhere = join_in(&folder.path().join("nowhere"), me(), wish("jobs", Some(64), 16), Duration::ZERO).unwrap_err();
        assert!(nowhere.contains("tmpfs") && nowhere.contains("nowhere"), "{nowhere}");
    }
}
