//! What of the machine must be as before.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farshore_bench::targets::cgroup::{self, Hierarchy};
use farshore_bench::targets::spec::Spec;
use farshore_bench::targets::{swap, tools, zram, zswap};

/// The processes of these tests' players.
pub static PLAYERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// How long anything may take in these tests, on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A picture of the machine: one line for each thing, but for what other runs of `farshore bench` have: they name it by their process.
#[derive(Debug)]
pub struct Machine(BTreeSet<String>);

impl Machine {
    /// Looks at everything that a target makes or changes, and into `directory`.
    pub fn look(directory: &Path) -> Machine {
        let mut lines = BTreeSet::new();
        for area in swap::active().unwrap_or_default() {
            lines.insert(format!("swap {} at priority {}", area.path.display(), area.priority));
        }
        for base in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"] {
            look_at_cgroups(Path::new(base), &mut lines);
        }
        let others = devices_of_others();
        for number in zram::present().into_iter().filter(|number| !others.contains(number)) {
            let size = tools::read(Path::new(&format!("/sys/block/zram{number}/disksize"))).unwrap_or_default();
            lines.insert(format!("device zram{number} of {size} bytes"));
        }
        for file in files(Path::new(zswap::PARAMETERS)) {
            lines.insert(format!("setting {} = {}", file.display(), tools::read(&file).unwrap_or_default()));
        }
        for place in [directory, Path::new("/run/farshore-bench")] {
            lines.extend(files(place).iter().map(|file| format!("file {}", file.display())));
        }
        lines.retain(|line| !is_others(line));
        Machine(lines)
    }

    /// What is there only in `self` (-) and only in `later` (+).
    pub fn difference(&self, later: &Machine) -> String {
        let mut text = String::new();
        for line in self.0.difference(&later.0) {
            let _ = write!(text, "- {line}; ");
        }
        for line in later.0.difference(&self.0) {
            let _ = write!(text, "+ {line}; ");
        }
        text
    }
}

/// zram devices have no name of their own: other runs' journals tell of them.
fn devices_of_others() -> BTreeSet<u32> {
    let journals = files(Path::new("/run/farshore-bench")).into_iter().filter(|file| is_others(&file.display().to_string()));
    let read = |file: PathBuf| serde_json::from_str::<serde_json::Value>(&tools::read(&file).ok()?).ok();
    let things = journals.filter_map(read).flat_map(|journal| journal["things"].as_array().cloned().unwrap_or_default());
    things.filter_map(|thing| u32::try_from(thing["device"]["number"].as_u64()?).ok()).collect()
}

/// Whether a line names something by a process that is neither a player of these tests nor this one.
fn is_others(line: &str) -> bool {
    let all = PLAYERS.lock().unwrap_or_else(PoisonError::into_inner);
    let names = line.split(['/', ' ', ';']).filter_map(|name| {
        let work = name.strip_prefix(".farshore-bench-").and_then(|numbers| numbers.split_once('-')).map(|(_, numbers)| numbers);
        let journal = name.strip_suffix(".json").or_else(|| name.strip_suffix(".json.new"));
        work.or(name.strip_prefix(cgroup::PREFIX)).or(journal)?.split('-').next()?.parse::<u32>().ok()
    });
    names.into_iter().any(|pid| pid != std::process::id() && !all.contains(&pid))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect()
}

/// The top's cgroups, and those of our kind wherever they are: others of the machine's may come and go. And what the top gives its children.
fn look_at_cgroups(base: &Path, lines: &mut BTreeSet<String>) {
    let control = base.join("cgroup.subtree_control");
    if let Ok(text) = tools::read(&control) {
        lines.insert(format!("cgroup setting {} = {text}", control.display()));
    }
    lines.extend(folders(base).iter().map(|path| format!("cgroup {}", path.display())));
    let mut todo = folders(base);
    while let Some(path) = todo.pop() {
        if cgroup::is_named_as_ours(&path) {
            lines.insert(format!("cgroup {}", path.display()));
        }
        todo.extend(folders(&path));
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    files(path).into_iter().filter(|path| fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())).collect()
}

/// Why a target cannot be had here; `None` if it can.
pub fn missing(target: &Spec) -> Option<String> {
    match target.kind() {
        "farshore" => farshore().err(),
        "native" | "command" => None,
        kind => missing_of_the_kernel(kind).err(),
    }
}

fn missing_of_the_kernel(kind: &str) -> Result<(), String> {
    tools::need_root("for the kernel's targets")?;
    swap::need_tools()?;
    swap::active()?;
    Hierarchy::find()?.parent()?;
    let inside = Hierarchy::find()?.base;
    if rustix::fs::statvfs(&inside).is_ok_and(|about| about.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY)) {
        return Err(format!("'{}' is read-only", inside.display()));
    }
    match kind {
        "zram" if !zram::is_loaded() && tools::find("modprobe").is_none() => Err("no zram in this kernel".to_string()),
        "zswap" => zswap::need(),
        _ => Ok(()),
    }
}

/// The `farshore` command that was built beside this test, or `$FARSHORE`.
///
/// # Errors
/// There is none, or it lacks its library.
pub fn farshore() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = this.parent().and_then(Path::parent).map(|place| place.join("farshore"));
    let command = std::env::var_os("FARSHORE").map(PathBuf::from).or(beside).filter(|file| tools::is_executable(file));
    let command = command.ok_or("no farshore was built beside this test: build all, or set FARSHORE")?;
    let tried = Command::new(&command).args(["run", "--memory", "16M", "--", "true"]).stdin(Stdio::null()).output();
    let said = tried.map(|done| String::from_utf8_lossy(&done.stderr).into_owned()).unwrap_or_default();
    if said.contains("libfarshore.so") { Err(format!("no library was built: {}", said.trim())) } else { Ok(command) }
}

/// Whether this is root.
pub fn is_root() -> bool {
    tools::need_root("").is_ok()
}

/// Lets every user make files here, as in /var/tmp.
pub fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o1777)).unwrap();
}

/// Waits for something that must come.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
