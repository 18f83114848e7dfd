//! Swap spaces that can be asked about without running there: `--device`.

use std::ops::RangeInclusive;
use std::str::FromStr;

use super::curve::Device;

/// Swap spaces with a name. `ram` and its codecs: microseconds of a page copied or unpacked. They are estimates, and nobody's measurement: another
/// processor, or bytes that compress otherwise, take another time.
const NAMED: [(&str, f64); 3] = [("ram", 1.0), ("ram:lz4", 3.0), ("ram:zstd", 12.0)];

/// What a read may take, microseconds: from less than a page takes to be copied to what would be a fault of the disk.
const READ_US: RangeInclusive<f64> = 0.01..=10e6;
/// Pages a second that a swap space may do.
const IOPS: RangeInclusive<f64> = 1.0..=1e9;

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
        let number = value.parse::<f64>().ok();
        match (name, number) {
            ("read_us", Some(number)) if READ_US.contains(&number) => device.read = number / 1e6,
            ("iops", Some(number)) if IOPS.contains(&number) => device.rate = number,
            ("read_us", _) => return Err(why(&format!("read_us={value:?} is not from 0.01 to 10000000 (10 s)"))),
            ("iops", _) => return Err(why(&format!("iops={value:?} is not from 1 to 1000000000"))),
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
        assert_eq!(parse("read_us=0.01,iops=1").map(|device| (device.read, device.rate)), Ok((0.01 / 1e6, 1.0)));
        assert_eq!(parse("read_us=1e7,iops=1e9").map(|device| (device.read, device.rate)), Ok((10.0, 1e9)));
        for (text, part) in [
            ("", "is no setting"),
            ("ram:lzo", "is no setting"),
            ("iops=5", "read_us is missing"),
            ("read_us=-1", "\"-1\" is not"),
            ("read_us=0", "read_us=\"0\" is not from 0.01"),
            ("read_us=10000001", "\"10000001\" is not"),
            ("read_us=1,iops=0.5", "iops=\"0.5\" is not from 1 "),
            ("read_us=1,iops=2e9", "\"2e9\" is not"),
            ("read_us=inf", "\"inf\" is not"),
            ("read_us=1,iops=0", "\"0\" is not"),
            ("read_us=nan", "\"nan\" is not"),
            ("read_us=1,write_us=2", "\"write_us\" is none"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(part) && told.contains("read_us=80"), "{text}: {told}");
        }
    }
}
