//! The share of its time that a program may lose to faults: `5%`.

use crate::error::ConfigError;
use crate::size::Size;
use crate::text::serde_as_text;
use std::fmt;
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

serde_as_text!(Slowdown);

/// What the machine has for a program that no limit was given: its RAM, or what the control group may have, if that is less.
pub fn machine_memory() -> Option<Size> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let all = line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10;
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_matches('/').to_owned();
    // A group may have no more than those that it is in.
    let folders = std::path::Path::new(&path).ancestors();
    let limits = folders.filter_map(|folder| {
        let file = std::path::Path::new("/sys/fs/cgroup").join(folder).join("memory.max");
        std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    Some(Size(limits.fold(all, u64::min) & !4095))
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
}
