//! The machine, for readers of the numbers: what /proc and /sys tell. Nothing here fails: what cannot be found out stays empty.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, makedev, minor, stat};

use crate::result::Machine;

/// Settings of the kernel that bear on results, and where they are.
const SETTINGS: [(&str, &str); 10] = [
    ("swappiness", "/proc/sys/vm/swappiness"),
    ("page-cluster", "/proc/sys/vm/page-cluster"),
    ("overcommit_memory", "/proc/sys/vm/overcommit_memory"),
    ("transparent_hugepage", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("zswap", "/sys/module/zswap/parameters/enabled"),
    ("swap_readahead", "/sys/kernel/mm/swap/vma_ra_enabled"),
    ("lru_gen", "/sys/kernel/mm/lru_gen/enabled"),
    ("cpufreq_governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("guest_halt_poll_ns", "/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
    ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
];

/// Describes the machine, with what is below `directory`.
#[must_use]
pub fn describe(directory: &Path) -> Machine {
    let name = rustix::system::uname();
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    let mount = mount_of(&text("/proc/self/mountinfo"), &directory.to_string_lossy()).unwrap_or_default();
    let cpuinfo = text("/proc/cpuinfo");
    Machine {
        host: name.nodename().to_string_lossy().into_owned(),
        kernel: name.release().to_string_lossy().into_owned(),
        cpu: cpu_of(&cpuinfo).unwrap_or_else(|| name.machine().to_string_lossy().into_owned()),
        cpus: std::thread::available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX)),
        memory_bytes: memory_of(&text("/proc/meminfo")).unwrap_or(0),
        nodes: nodes(),
        hypervisor: hypervisor(&cpuinfo),
        disk: disk(&directory, &mount),
        directory: directory.to_string_lossy().into_owned(),
        filesystem: mount.filesystem,
        settings: settings(),
        other_swap: swaps_of(&text("/proc/swaps")),
        load: text("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
    }
}

/// A name for directories of results: `2cpu-epyc-linux-6.18`. Lower case letters, digits, dashes and dots.
#[must_use]
pub fn slug(machine: &Machine) -> String {
    let version = machine.kernel.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default();
    let kernel: Vec<&str> = version.split('.').take(2).collect();
    let words = [&format!("{}cpu", machine.cpus), &short_cpu(&machine.cpu), "linux", &kernel.join(".")].join("-");
    let plain =
        words.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect::<String>();
    plain.split('-').filter(|word| !word.is_empty()).collect::<Vec<&str>>().join("-")
}

/// A processor's model without its maker, its clock, and what else says nothing.
fn short_cpu(model: &str) -> String {
    let model = model.replace("(R)", " ").replace("(TM)", " ").replace("(tm)", " ");
    let model = model.split('@').next().unwrap_or_default();
    let dull = |word: &str| {
        let word = word.to_lowercase();
        let made_by = ["amd", "intel", "cpu", "processor", "gen", "with"].contains(&word.as_str());
        made_by || word.ends_with("-core") || word.ends_with("th") && word.starts_with(|c: char| c.is_ascii_digit())
    };
    model.split_whitespace().filter(|word| !dull(word)).take(3).collect::<Vec<&str>>().join("-")
}

/// A file's text without the end of its last line; empty if it cannot be read.
fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map(|text| text.trim_end().to_string()).unwrap_or_default()
}

/// The value of the first line `name: value`.
fn field<'text>(text: &'text str, name: &str) -> Option<&'text str> {
    let value = |line: &'text str| line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    text.lines().find_map(value).filter(|value| !value.is_empty())
}

/// The processor's model from /proc/cpuinfo.
fn cpu_of(cpuinfo: &str) -> Option<String> {
    ["model name", "Model", "cpu model", "cpu"].iter().find_map(|name| field(cpuinfo, name)).map(str::to_string)
}

/// RAM in bytes from /proc/meminfo.
fn memory_of(meminfo: &str) -> Option<u64> {
    field(meminfo, "MemTotal")?.strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Swap areas from /proc/swaps: `/swapfile (file, 2048 MiB)`.
fn swaps_of(swaps: &str) -> Vec<String> {
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let (path, kind, kib) = (words.next()?, words.next()?, words.next()?.parse::<u64>().ok()?);
        Some(format!("{} ({kind}, {} MiB)", unescape(path), kib >> 10))
    };
    swaps.lines().skip(1).filter_map(area).collect()
}

fn nodes() -> u32 {
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let nodes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count();
    u32::try_from(nodes).unwrap_or(u32::MAX).max(1)
}

/// Under what this kernel runs; empty on bare metal.
fn hypervisor(cpuinfo: &str) -> String {
    let xen = text("/sys/hypervisor/type");
    let flags = field(cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let clocks = text("/sys/devices/system/clocksource/clocksource0/available_clocksource");
    let product = ["sys_vendor", "product_name"].map(|name| text(Path::new("/sys/class/dmi/id").join(name)));
    hypervisor_of(&xen, flags, &clocks, &product)
}

/// The same from what was read: the kind by /sys/hypervisor or the clocks that only guests have, and the product by DMI.
fn hypervisor_of(xen: &str, flag: bool, clocks: &str, product: &[String]) -> String {
    let by_clock = [("kvm-clock", "KVM"), ("hyperv", "Hyper-V"), ("xen", "Xen")];
    let kind = match by_clock.iter().find(|(clock, _)| clocks.contains(clock)) {
        _ if xen == "xen" => "Xen",
        _ if !xen.is_empty() => xen,
        Some((_, kind)) => kind,
        None if flag => "yes",
        None => return String::new(),
    };
    let product = product.join(" ");
    let product = product.trim();
    if product.is_empty() { kind.into() } else { format!("{kind} ({product})") }
}

fn settings() -> BTreeMap<String, String> {
    let values = SETTINGS.iter().map(|(name, path)| ((*name).to_string(), chosen(&text(path))));
    let mitigations = ("mitigations".to_string(), mitigations_of(&text("/proc/cmdline")));
    values.filter(|(_, value)| !value.is_empty()).chain([mitigations]).collect()
}

/// What is chosen of `always [madvise] never`; `on` or `off` for the kernel's `Y` and `N`.
fn chosen(value: &str) -> String {
    match value.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some((chosen, _)) => chosen.into(),
        None if value == "Y" || value == "true" => "on".into(),
        None if value == "N" || value == "false" => "off".into(),
        None => value.into(),
    }
}

/// What the kernel's command line says of mitigations: `mitigations=off`, and the older words for single ones.
fn mitigations_of(cmdline: &str) -> String {
    let single = ["nopti", "nospectre_v1", "nospectre_v2", "spectre_v2", "retbleed", "spec_store_bypass_disable", "mds", "l1tf"];
    let said = cmdline.split_whitespace().filter_map(|word| match word.split_once('=') {
        Some(("mitigations", value)) => Some(value),
        Some((name, _)) if single.contains(&name) => Some(word),
        None if single.contains(&word) => Some(word),
        _ => None,
    });
    let said: Vec<&str> = said.collect();
    if said.is_empty() { "default".into() } else { said.join(" ") }
}

/// What is mounted somewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Mount {
    filesystem: String,
    /// A path of a device for most, else any word.
    source: String,
}

/// The mount that `path` is on, from /proc/self/mountinfo.
fn mount_of(mountinfo: &str, path: &str) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = unescape(place.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        let mount = Mount { filesystem: kind.next()?.into(), source: unescape(kind.next()?) };
        Path::new(path).starts_with(&point).then_some((point.len(), mount))
    });
    // Of equal ones the last covers the others.
    mounts.max_by_key(|(length, _)| *length).map(|(_, mount)| mount)
}

/// Undoes the kernel's `\040` for a space.
fn unescape(word: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(word.to_string(), |word, (code, plain)| word.replace(code, plain))
}

/// The block device below `directory` and its model; where no device can be told, what is mounted.
fn disk(directory: &Path, mount: &Mount) -> String {
    // btrfs, overlay and others have device numbers of no device: there the mounted path may be one.
    let numbers = [stat(directory).map(|found| found.st_dev), stat(mount.source.as_str()).map(|found| found.st_rdev)];
    numbers
        .into_iter()
        .flatten()
        .find_map(|number| disk_of(Path::new("/sys/dev/block"), number))
        .unwrap_or_else(|| mount.source.clone())
}

/// The device with this number, by what is in `/sys/dev/block`.
fn disk_of(block: &Path, number: Dev) -> Option<String> {
    let entry = block.join(format!("{}:{}", major(number), minor(number))).canonicalize().ok()?;
    // A partition is a directory in its disk's.
    let disk = if entry.join("partition").exists() { entry.parent()?.to_path_buf() } else { entry };
    let name = disk.file_name()?.to_string_lossy().into_owned();
    let mut below: Vec<PathBuf> =
        fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    below.sort();
    if !below.is_empty() {
        let below: Vec<String> = below.iter().filter_map(|path| disk_of(block, number_of(&text(path.join("dev")))?)).collect();
        return Some(format!("{name} on {}", below.join(", ")));
    }
    let model = [text(disk.join("device/vendor")), text(disk.join("device/model"))].map(|word| word.trim().to_string());
    // A vendor that is a number is one of PCI's.
    let model: Vec<&str> = model.iter().map(String::as_str).filter(|word| !word.is_empty() && !word.starts_with("0x")).collect();
    Some(if model.is_empty() { name } else { format!("{name} ({})", model.join(" ")) })
}

/// `254:0`.
fn number_of(text: &str) -> Option<Dev> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn this_machine() {
        let machine = describe(&std::env::temp_dir());
        assert!(!machine.kernel.is_empty() && !machine.cpu.is_empty() && !machine.filesystem.is_empty(), "{machine:?}");
        assert!(machine.cpus > 0 && machine.memory_bytes > 1 << 20 && machine.nodes > 0, "{machine:?}");
        assert!(machine.settings.contains_key("mitigations") && machine.settings.contains_key("swappiness"), "{machine:?}");
        // What is not there has no device, but a mount.
        assert!(!describe(Path::new("/nowhere/at/all")).kernel.is_empty());
        assert_eq!(describe(Path::new("/proc")).filesystem, "proc");
    }

    #[test]
    fn names_of_directories() {
        let slug = |cpus, cpu: &str, kernel: &str| {
            super::slug(&Machine { cpus, cpu: cpu.into(), kernel: kernel.into(), ..Machine::default() })
        };
        assert_eq!(slug(2, "AMD EPYC", "6.18.44-fc-v657"), "2cpu-epyc-linux-6.18");
        assert_eq!(slug(128, "AMD EPYC 7763 64-Core Processor", "5.15.0-91-generic"), "128cpu-epyc-7763-linux-5.15");
        assert_eq!(slug(8, "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz", "6.1"), "8cpu-core-i7-1165g7-linux-6.1");
        assert_eq!(slug(32, "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "6.8.0"), "32cpu-xeon-platinum-8375c-linux-6.8");
        assert_eq!(slug(4, "Größe/x", "7-rc1"), "4cpu-gr-e-x-linux-7");
        assert_eq!(slug(1, "", ""), "1cpu-linux");
    }

    #[test]
    fn processors_and_memory() {
        let x86 =
            "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC 7763 64-Core Processor\nflags\t\t: fpu hypervisor lahf_lm\n";
        assert_eq!(cpu_of(x86).as_deref(), Some("AMD EPYC 7763 64-Core Processor"));
        assert_eq!(cpu_of("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
        assert_eq!(memory_of("MemTotal:       24684092 kB\nMemFree:  1 kB\n"), Some(24_684_092 << 10));
        assert_eq!(memory_of("MemFree:  1 kB\n"), None);
    }

    #[test]
    fn hypervisors() {
        let product = |words: [&str; 2]| words.map(str::to_string);
        assert_eq!(hypervisor_of("", true, "tsc kvm-clock", &product(["", ""])), "KVM");
        assert_eq!(hypervisor_of("", true, "kvm-clock tsc", &product(["Amazon EC2", "m5.large"])), "KVM (Amazon EC2 m5.large)");
        assert_eq!(hypervisor_of("xen", true, "xen tsc", &product(["", ""])), "Xen");
        assert_eq!(hypervisor_of("", true, "tsc", &product(["VMware, Inc.", "VMware7,1"])), "yes (VMware, Inc. VMware7,1)");
        assert_eq!(hypervisor_of("", false, "tsc hpet", &product(["LENOVO", "20XW"])), "");
    }

    #[test]
    fn settings_in_words() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!((chosen("N").as_str(), chosen("true").as_str(), chosen("60").as_str()), ("off", "on", "60"));
        assert_eq!(mitigations_of("quiet mitigations=auto,nosmt root=/dev/vda"), "auto,nosmt");
        assert_eq!(mitigations_of("nopti spectre_v2=off"), "nopti spectre_v2=off");
        assert_eq!(mitigations_of("quiet"), "default");
    }

    #[test]
    fn swap_areas() {
        let swaps =
            "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/sda2 partition\t8388604\t0\t-2\n/a\\040b file 2097148 12 5\n";
        assert_eq!(swaps_of(swaps), ["/dev/sda2 (partition, 8191 MiB)", "/a b (file, 2047 MiB)"]);
        assert!(swaps_of("Filename Type Size Used Priority\n").is_empty());
    }

    #[test]
    fn mounts() {
        let info = "27 1 254:0 / / rw,relatime - ext4 /dev/root rw,discard\n\
                    25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n\
                    40 27 0:40 /sub /mnt/my\\040disk rw shared:1 master:2 - btrfs /dev/sdb1 rw\n\
                    41 27 0:41 / /mnt rw - overlay overlay rw\n";
        let of = |path| mount_of(info, path).map(|mount| (mount.filesystem, mount.source));
        assert_eq!(of("/var/tmp"), Some(("ext4".into(), "/dev/root".into())));
        assert_eq!(of("/dev/shm/x"), Some(("tmpfs".into(), "tmpfs".into())));
        assert_eq!(of("/dev/shmx"), Some(("ext4".into(), "/dev/root".into())));
        assert_eq!(of("/mnt/my disk/a"), Some(("btrfs".into(), "/dev/sdb1".into())));
        assert_eq!(of("/mnt/other"), Some(("overlay".into(), "overlay".into())));
        assert_eq!(mount_of("", "/"), None);
    }

    #[test]
    fn disks_partitions_and_what_lies_on_others() -> std::io::Result<()> {
        let sys = tempfile::tempdir()?;
        let block = sys.path().join("dev/block");
        fs::create_dir_all(&block)?;
        let device = |path: &str, number: &str| -> std::io::Result<PathBuf> {
            let path = sys.path().join(path);
            fs::create_dir_all(&path)?;
            fs::write(path.join("dev"), number)?;
            symlink(&path, block.join(number))?;
            Ok(path)
        };
        let nvme = device("devices/nvme0n1", "259:0")?;
        fs::create_dir_all(nvme.join("device"))?;
        fs::write(nvme.join("device/model"), "Samsung SSD 980   \n")?;
        fs::write(nvme.join("device/vendor"), "0x144d\n")?;
        let partition = device("devices/nvme0n1/nvme0n1p2", "259:2")?;
        fs::write(partition.join("partition"), "2\n")?;
        let mapped = device("devices/dm-0", "253:0")?;
        fs::create_dir_all(mapped.join("slaves"))?;
        symlink(&partition, mapped.join("slaves/nvme0n1p2"))?;
        device("devices/vda", "254:0")?;

        let name = |major, minor| disk_of(&block, makedev(major, minor));
        assert_eq!(name(259, 0).as_deref(), Some("nvme0n1 (Samsung SSD 980)"));
        assert_eq!(name(259, 2).as_deref(), Some("nvme0n1 (Samsung SSD 980)"));
        assert_eq!(name(253, 0).as_deref(), Some("dm-0 on nvme0n1 (Samsung SSD 980)"));
        assert_eq!(name(254, 0).as_deref(), Some("vda"));
        assert_eq!(name(0, 45), None);
        Ok(())
    }
}
