//! Sizes of values: each key has one, which follows from the key.

use std::fmt;
use std::str::FromStr;

use crate::work::scatter::mix2;

/// A value is at least this long: version, and a number by which it is known.
pub const LEAST: u32 = 16;
/// A value is not longer than this, as memcached has it.
const MOST: u32 = 1_000_000;

/// A distribution of sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// From the first to the second, each as often as any other.
    Uniform(u32, u32),
    /// (size, share of the keys up to and with this one).
    Some(Vec<(u32, f64)>),
}

impl Sizes {
    /// The size of the value of a key.
    #[must_use]
    pub fn of(&self, key: u64) -> usize {
        let random = mix2(0x5173, key);
        let size = match self {
            Sizes::Uniform(low, high) if low == high => *low,
            // A remainder by a u32 is one.
            Sizes::Uniform(low, high) => low + u32::try_from(random % (u64::from(high - low) + 1)).unwrap_or(0),
            Sizes::Some(sizes) => {
                #[expect(clippy::cast_precision_loss)] // 53 bits of it are enough.
                let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
                sizes.iter().find(|(_, up_to)| share < *up_to).or(sizes.last()).map_or(LEAST, |(size, _)| *size)
            }
        };
        size as usize
    }

    /// The largest.
    #[must_use]
    pub fn most(&self) -> usize {
        let most = match self {
            Sizes::Uniform(_, high) => *high,
            Sizes::Some(sizes) => sizes.iter().map(|(size, _)| *size).max().unwrap_or(LEAST),
        };
        most as usize
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid sizes {text:?}: write N, LOW..HIGH, or SIZE=SHARE,...; sizes are {LEAST} to {MOST} bytes");
        let size = |text: &str| text.parse().ok().filter(|size| (LEAST..=MOST).contains(size)).ok_or_else(wrong);
        if let Some((low, high)) = text.split_once("..") {
            let (low, high) = (size(low)?, size(high)?);
            return if low <= high { Ok(Sizes::Uniform(low, high)) } else { Err(wrong()) };
        }
        if !text.contains('=') {
            let size = size(text)?;
            return Ok(Sizes::Uniform(size, size));
        }
        let part = |part: &str| {
            let (bytes, share) = part.split_once('=').ok_or_else(wrong)?;
            let share = share.parse().ok().filter(|share: &f64| share.is_finite() && *share > 0.0).ok_or_else(wrong)?;
            Ok::<_, String>((size(bytes)?, share))
        };
        let mut parts: Vec<(u32, f64)> = text.split(',').map(part).collect::<Result<_, _>>()?;
        let all: f64 = parts.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        for (_, share) in &mut parts {
            sum += *share / all;
            *share = sum;
        }
        Ok(Sizes::Some(parts))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Uniform(low, high) if low == high => write!(f, "{low}"),
            Sizes::Uniform(low, high) => write!(f, "{low}..{high}"),
            Sizes::Some(_) => write!(f, "mixed, up to {}", self.most()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Sizes {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn each_key_has_its_size_and_all_sizes_have_their_share() {
        assert!((0..100).all(|key| sizes("64").of(key) == 64));
        let uniform = sizes("100..199");
        let (mut least, mut most, mut sum) = (usize::MAX, 0, 0);
        for size in (0..100_000).map(|key| uniform.of(key)) {
            (least, most, sum) = (least.min(size), most.max(size), sum + size);
        }
        assert_eq!((least, most), (100, 199));
        assert!(sum.abs_diff(14_950_000) < 60_000, "{sum}");
        let some = sizes("64=1,512=2,4096=1");
        let count = |size| (0..100_000).filter(|key| some.of(*key) == size).count();
        let counts = [count(64), count(512), count(4096)];
        assert!(counts[0].abs_diff(25_000) < 900 && counts[1].abs_diff(50_000) < 900, "{counts:?}");
        assert_eq!((counts.iter().sum::<usize>(), some.most()), (100_000, 4096));
    }

    #[test]
    fn what_is_no_size() {
        for text in ["", "0", "15", "1000001", "9..5", "200..100", "64=", "64=1,9", "64=0", "64=x", "64=inf"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
