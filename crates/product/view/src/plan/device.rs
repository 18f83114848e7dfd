//! Swap spaces that can be asked about without running there: `--device`.

use std::str::FromStr;

use super::curve::Device;

/// Swap spaces with a name. `ram` and its codecs: microseconds of a page copied or unpacked, on the processor that the book's figures are of.
const NAMED: [(&str, f64); 3] = [("ram", 1.0), ("ram:lz4", 3.0), ("ram:zstd", 12.0)];

/// A swap space that was asked about.
#[derive(Clone, PartialEq, Debug)]
pub struct Named {
    /// As the user has written it.
    pub text: String,
    /// What it can do.
    pub device: Device,
}

impl FromStr for Named {
    type Err = String;
    fn from_str(text: &str) -> Result<Named, String> {
        parse(text).map(|device| Named { text: text.into(), device })
    }
}

/// `read_us=80,iops=70000`, or a name.
fn parse(text: &str) -> Result<Device, String> {
    if let Some((_, read)) = NAMED.iter().find(|(name, _)| *name == text) {
        return Ok(Device { read: read / 1e6, rate: f64::INFINITY });
    }
    let why = |part: &str| {
        format!(
            "invalid device {text:?}, {part}: write it as read_us=80,iops=70000 (iops may be left out), or ram, ram:lz4 or ram:zstd"
        )
    };
    let mut device = Device { read: f64::NAN, rate: f64::INFINITY };
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| why(&format!("{part:?} is no setting")))?;
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        match (name, number) {
            ("read_us", Some(number)) => device.read = number / 1e6,
            ("iops", Some(number)) if number > 0.0 => device.rate = number,
            ("read_us" | "iops", _) => return Err(why(&format!("{value:?} is not a number above 0"))),
            _ => return Err(why(&format!("{name:?} is none of its settings"))),
        }
    }
    if device.read.is_nan() { Err(why("read_us is missing")) } else { Ok(device) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbers_or_names() {
        assert_eq!(parse("read_us=80,iops=70000"), Ok(Device { read: 80e-6, rate: 70_000.0 }));
        assert_eq!(parse("ram:lz4"), Ok(Device { read: 3e-6, rate: f64::INFINITY }));
        assert_eq!(parse("read_us=0").map(|device| device.read), Ok(0.0));
        for (text, part) in [
            ("", "is no setting"),
            ("ram:lzo", "is no setting"),
            ("iops=5", "read_us is missing"),
            ("read_us=-1", "\"-1\" is not"),
            ("read_us=1,iops=0", "\"0\" is not"),
            ("read_us=nan", "\"nan\" is not"),
            ("read_us=1,write_us=2", "\"write_us\" is none"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(part) && told.contains("read_us=80"), "{text}: {told}");
        }
    }
}
