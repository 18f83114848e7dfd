//! RAM that answers as late and as slowly as a device: `10us`, `10us,rate=100M`, `10us,rate=100M,size=8M`.
//!
//! It is there for measuring. Several such spaces make an array. Each has a rate of its own, so they are as independent of each other as devices are.

use crate::error::ConfigError;
use crate::size::Size;
use crate::time::Time;
use std::fmt;
use std::str::FromStr;

const VALID: &str = "write delay:TIME[,rate=SIZE][,size=SIZE], such as delay:10us or delay:10us,rate=100M";

/// The least rate, a second.
pub const RATE_LEAST: Size = Size::mib(1);

/// How late, how fast and how large a space in RAM is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delay {
    /// Each transfer takes this long, besides what its rate takes.
    pub time: Time,
    /// Bytes a second that the space transfers, reads and writes together, one transfer after another; `None`: as many as are asked for.
    pub rate: Option<Size>,
    /// At most; `None`: as much as the machine has RAM.
    pub size: Option<Size>,
}

impl Delay {
    /// A space whose rate and size have no bounds.
    pub const fn of(time: Time) -> Delay {
        Delay { time, rate: None, size: None }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.time)?;
        let options = [("rate", self.rate), ("size", self.size)];
        options
            .into_iter()
            .filter_map(|(name, size)| Some((name, size?)))
            .try_for_each(|(name, size)| write!(f, ",{name}={size}"))
    }
}

impl FromStr for Delay {
    type Err = ConfigError;

    /// Of what follows `delay:`.
    fn from_str(value: &str) -> Result<Delay, ConfigError> {
        let wrong = |why: &str| ConfigError::value("swap space", &format!("delay:{value}"), format!("{why}; {VALID}"));
        let mut words = value.split(',');
        let mut delay = Delay::of(words.next().unwrap_or_default().parse()?);
        for word in words {
            let (name, size) =
                word.split_once('=').ok_or_else(|| wrong("behind its time stand rate=SIZE and size=SIZE alone"))?;
            let place = match name {
                "rate" => &mut delay.rate,
                "size" => &mut delay.size,
                _ => return Err(wrong("behind its time stand rate=SIZE and size=SIZE alone")),
            };
            if place.replace(size.parse()?).is_some() {
                return Err(wrong("it says the same twice"));
            }
        }
        match delay.rate {
            Some(rate) if rate < RATE_LEAST => Err(wrong("with a rate below 1M a second, faults would wait for seconds")),
            _ => Ok(delay),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, rate, size) in [
            ("10us", None, None),
            ("10us,rate=100M", Some(Size::mib(100)), None),
            ("10us,size=8M", None, Some(Size::mib(8))),
            ("10us,rate=1G,size=8M", Some(Size::gib(1)), Some(Size::mib(8))),
        ] {
            assert_eq!(text.parse(), Ok(Delay { time: Time(10_000), rate, size }), "{text}");
            assert_eq!(text.parse::<Delay>().map(|delay| delay.to_string()), Ok(text.to_string()));
        }
        assert_eq!("0ns,size=2M,rate=4M".parse::<Delay>().map(|delay| delay.to_string()), Ok("0ns,rate=4M,size=2M".into()));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_told() {
        for (text, part) in [
            ("10us,rate=0", "below 1M"),
            ("10us,rate=1023K", "below 1M"),
            ("10us,rate=1M,rate=2M", "twice"),
            ("10us,size=8M,", "rate=SIZE"),
            ("10us,depth=8", "rate=SIZE"),
            ("10us,rate=fast", "\"fast\""),
            ("rate=1M", "time"),
            ("", "time"),
        ] {
            let error = text.parse::<Delay>().expect_err(text).to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
