//! The share of its time that a program may lose to faults: `5%`.

use crate::error::ConfigError;
use crate::size::Size;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The smallest memory limit that is chosen where the user names none: below it, text and stacks, which no limit counts, are most of a
/// program.
pub const MEMORY_MIN_CHOSEN: Size = Size::mib(16);
const VALID: &str = "write a percentage above 0 and below 100, such as 5% or 0.5%";

/// How much longer a program may take than it would without faults, in hundredths of a per cent: above 0 %, below 100 %.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slowdown(u32);

impl Slowdown {
    /// In millionths.
    pub const fn ppm(self) -> u32 {
        self.0 * 100
    }
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:02}", self.0 / 100, self.0 % 100);
        f.pad(&format!("{}%", text.trim_end_matches('0').trim_end_matches('.')))
    }
}

impl FromStr for Slowdown {
    type Err = ConfigError;
    fn from_str(value: &str) -> Result<Slowdown, ConfigError> {
        let wrong = |why: &str| ConfigError::value("slowdown", value, why);
        let number = value.strip_suffix('%').unwrap_or(value).trim_end();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b'-') {
            return Err(wrong(VALID));
        }
        let percent: f64 = number.parse().map_err(|_| wrong(VALID))?;
        let hundredths = (percent * 100.0).round();
        match percent {
            _ if percent <= 0.0 => Err(wrong("no program is run in less memory without any loss; write more than 0, such as 5%")),
            _ if percent >= 100.0 || hundredths >= 10_000.0 => Err(wrong("it must be below 100%, such as 5%")),
            _ if hundredths < 1.0 => Err(wrong("it must be at least 0.01%")),
            _ => Ok(Slowdown(hundredths as u32)),
        }
    }
}

impl serde::Serialize for Slowdown {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Slowdown {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Slowdown, D::Error> {
        /// A text, or a number of per cent, as on the command line.
        struct Percent;
        impl serde::de::Visitor<'_> for Percent {
            type Value = Slowdown;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a percentage above 0 and below 100, such as \"5%\" or 5")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Slowdown, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Slowdown, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Slowdown, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Slowdown, E> {
                self.visit_str(&number.to_string())
            }
        }
        from.deserialize_any(Percent)
    }
}

/// What the machine has for a program that no limit was given: its RAM, or what the control group may have, if that is less.
pub fn machine_memory() -> Option<Size> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let all = line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(Size(group_limit(&groups, Path::new("/sys/fs/cgroup")).map_or(all, |limit| limit.min(all)) & !4095))
}

/// The smallest limit of the control groups that a process is in: of version 2, and of version 1, which may be beside it. `groups`: its
/// `/proc/self/cgroup`; `root`: where control groups are mounted.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            // "No limit" is a number there too, of many exabytes.
            some if some.split(',').any(|it| it == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        // A group may have no more than those that it is in. In a container the root is the group itself, whatever its path is called.
        let folders = Path::new(path.trim_matches('/')).ancestors();
        folders.filter_map(|folder| std::fs::read_to_string(mount.join(folder).join(file)).ok()?.trim().parse().ok()).collect()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_shows_and_refuses_the_rest() {
        for (text, ppm, shown) in [
            ("5%", 50_000, "5%"),
            ("5", 50_000, "5%"),
            ("0.5%", 5_000, "0.5%"),
            ("12.25 %", 122_500, "12.25%"),
            ("99.99%", 999_900, "99.99%"),
        ] {
            let read: Slowdown = text.parse().unwrap();
            assert_eq!((read.ppm(), read.to_string().as_str()), (ppm, shown), "{text}");
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        for (text, why) in [
            ("", "percentage"),
            ("%", "percentage"),
            ("five", "percentage"),
            ("nan", "percentage"),
            ("inf", "percentage"),
            ("1e1", "percentage"),
            ("5%%", "percentage"),
            ("1.2.3", "percentage"),
            ("0", "more than 0"),
            ("0%", "more than 0"),
            ("-5%", "more than 0"),
            ("0.001%", "at least 0.01%"),
            ("100%", "below 100%"),
            ("99.999%", "below 100%"),
            ("1000%", "below 100%"),
        ] {
            let error = text.parse::<Slowdown>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn the_machine_has_memory() {
        assert!(machine_memory().is_some_and(|size| size >= Size::mib(64)), "{:?}", machine_memory());
    }
    #[test]
    fn the_smallest_limit_of_both_versions_counts() {
        let root = std::env::temp_dir().join(format!("farshore-groups-{}", std::process::id()));
        let write = |at: &str, text: &str| {
            let file = root.join(at);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("memory.max", "max\n");
        write("a/memory.max", "5000000\n");
        write("a/b/memory.max", "max\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/c/memory.limit_in_bytes", "3000000\n");
        write("memory/c/d/memory.limit_in_bytes", "4000000\n");
        let limit = |groups: &str| group_limit(groups, &root);
        assert_eq!(limit("0::/a/b\n"), Some(5_000_000), "an outer group of version 2");
        assert_eq!(limit("12:cpu,cpuacct:/c/d\n5:hugetlb,memory:/c/d\n0::/\n"), Some(3_000_000), "an outer group of version 1");
        assert_eq!(limit("5:memory:/c/d\n0::/a\n"), Some(3_000_000), "the smaller of the two");
        assert_eq!(limit("5:memory:/docker/0123\n"), Some(9_223_372_036_854_771_712), "a path of outside of the container");
        assert_eq!(limit("0::/\n"), None, "no limit");
        assert_eq!(limit("3:memoryless:/c\n\nbroken\n"), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
