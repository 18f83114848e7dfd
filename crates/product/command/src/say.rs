//! What servers of ours say: lines on stderr, and amounts as people read them.

use std::io::Write;

/// A line on stderr, by one write, so that lines of several processes do not mix. Where it is closed, nobody reads it.
pub fn tell(text: &str) {
    let line = format!("farshore: {}\n", farshore_config::plain(text));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Bytes, for people: `8 GiB`, `1.5 GiB`.
#[must_use]
pub fn amount(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift != 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn amounts_are_short() {
        for (bytes, text) in
            [(0, "0 bytes"), (4096, "4 KiB"), (3 << 29, "1.5 GiB"), (8 << 30, "8 GiB"), (u64::MAX, "16777215.9 TiB")]
        {
            assert_eq!(super::amount(bytes), text);
        }
    }
}
