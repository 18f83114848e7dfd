//! zram devices of our own: added, given a size, and removed again. Devices that were there before are never written to.
//!
//! A number alone does not say whose a device is: it can be removed and given to somebody else's. The kernel's sequence number
//! of disks (`diskseq`) is never given twice until the next boot: the two together name a device.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::targets::{swap, tools};

/// Where devices are added and removed.
const CONTROL: &str = "/sys/class/zram-control";
/// The kernel's module.
pub const MODULE: &str = "zram";
/// The algorithm that is compared.
pub const ALGORITHM: &str = "lz4";
/// How long removing is tried: others, such as udev, may have it open for a moment.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Which device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Id {
    /// N of `/dev/zramN`.
    pub number: u32,
    /// The kernel's sequence number; `None` before Linux 5.15.
    pub diskseq: Option<u64>,
}

impl Id {
    /// Its folder in /sys.
    #[must_use]
    pub fn folder(self) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}", self.number))
    }

    /// Whether the device of this number is still the same.
    #[must_use]
    pub fn is_still_there(self) -> bool {
        self.folder().is_dir() && diskseq(self.number) == self.diskseq
    }
}

/// The numbers of all devices.
#[must_use]
pub fn present() -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return BTreeSet::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("zram")?.parse().ok()).collect()
}

/// Whether the kernel has zram, built in or loaded.
#[must_use]
pub fn is_loaded() -> bool {
    Path::new(CONTROL).is_dir()
}

/// Loads the module, without devices.
///
/// # Errors
/// This kernel has none.
pub fn load() -> Result<(), String> {
    let done = tools::run("modprobe", "kmod", &[MODULE, "num_devices=0"]);
    let missing = |why: String| format!("no zram: it is not built into this kernel, and cannot be loaded ({why})");
    done.map_err(missing)?;
    if is_loaded() { Ok(()) } else { Err(missing(format!("'{CONTROL}' is not there"))) }
}

/// Unloads the module again, unless somebody uses it by now.
///
/// # Errors
/// What modprobe said.
pub fn unload() -> Result<(), String> {
    if !is_loaded() || !present().is_empty() {
        return Ok(());
    }
    tools::run("modprobe", "kmod", &["-r", MODULE]).map(|_| ())
}

/// Adds a device.
///
/// # Errors
/// The kernel's.
pub fn add() -> Result<Id, String> {
    let file = Path::new(CONTROL).join("hot_add");
    let text = tools::read(&file)?;
    let number = text.parse().map_err(|_| format!("'{}' told no number of a device but {text:?}", file.display()))?;
    Ok(Id { number, diskseq: diskseq(number) })
}

fn diskseq(number: u32) -> Option<u64> {
    tools::read(Path::new(&format!("/sys/block/zram{number}/diskseq"))).ok()?.parse().ok()
}

/// Gives a new device its algorithm and size, and a swap area's head. Returns its path: below /dev, or a node in `directory` where the system
/// makes none.
///
/// # Errors
/// The kernel's, such as for an algorithm that it does not have.
pub fn configure(device: Id, bytes: u64, directory: &Path) -> Result<PathBuf, String> {
    let algorithms = tools::read(&device.folder().join("comp_algorithm"))?;
    let known = || algorithms.split_whitespace().map(|name| name.trim_matches(['[', ']']));
    if !known().any(|name| name == ALGORITHM) {
        return Err(format!("this kernel's zram has no {ALGORITHM}: it has {}", known().collect::<Vec<_>>().join(", ")));
    }
    tools::write(&device.folder().join("comp_algorithm"), ALGORITHM)?;
    tools::write(&device.folder().join("disksize"), &bytes.to_string())?;
    let path = node(device, directory)?;
    swap::make_area(&path)?;
    Ok(path)
}

/// The device's node. udev and devtmpfs make it at once; a container may have neither.
fn node(device: Id, directory: &Path) -> Result<PathBuf, String> {
    use std::os::unix::fs::MetadataExt;
    let usual = PathBuf::from(format!("/dev/zram{}", device.number));
    let file = device.folder().join("dev");
    let text = tools::read(&file)?;
    let numbers = text.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = numbers.ok_or_else(|| format!("'{}' told no numbers but {text:?}", file.display()))?;
    let wanted = rustix::fs::makedev(major, minor);
    if fs::metadata(&usual).is_ok_and(|about| about.rdev() == wanted) {
        return Ok(usual);
    }
    let own = directory.join(format!("zram{}", device.number));
    let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &own, kind, mode, wanted)
        .map_err(|error| format!("cannot make '{}' ({})", own.display(), tools::reason(&error.into())))?;
    Ok(own)
}

/// Removes a device. One that is another by now is left as it is.
///
/// # Errors
/// It is still there.
pub fn remove(device: Id) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        if !device.is_still_there() {
            return Ok(());
        }
        let removed = tools::write(&device.folder().join("reset"), "1")
            .and_then(|()| tools::write(&Path::new(CONTROL).join("hot_remove"), &device.number.to_string()));
        match removed {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Begins to look for the most memory that the device takes anew.
pub fn forget_peak(device: Id) {
    // Only a note for readers depends on it.
    let _ = tools::write(&device.folder().join("mem_used_max"), "0");
}

/// The most memory that the device has taken since then, in bytes: no limit counts it. 0 if it is not told.
#[must_use]
pub fn peak(device: Id) -> u64 {
    told(device, 4)
}

/// The memory that the device takes now, in bytes. 0 if it is not told.
#[must_use]
pub fn used(device: Id) -> u64 {
    told(device, 2)
}

/// A number of `mm_stat`, by its place.
fn told(device: Id, place: usize) -> u64 {
    let text = tools::read(&device.folder().join("mm_stat")).unwrap_or_default();
    text.split_whitespace().nth(place).and_then(|word| word.parse().ok()).unwrap_or(0)
}
