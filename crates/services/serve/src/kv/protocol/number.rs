//! Numbers as memcached reads and writes them: `strtol` and its kin, with white space and signs.

/// White space of the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Sign and magnitude of a number that ends where the text does or at white space. `None`: there is none, or it is too large for 64 bits.
fn scan(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let (negative, digits) = match text[start] {
        sign @ (b'-' | b'+') => (sign == b'-', &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if length == 0 || digits.get(length).is_some_and(|byte| !is_space(*byte)) {
        return None;
    }
    let mut value = 0u64;
    for digit in &digits[..length] {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some((negative, value))
}

/// `safe_strtoull`: a negative number counts only if it wraps round to one that looks positive.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, magnitude) = scan(text)?;
    let value = if negative { magnitude.wrapping_neg() } else { magnitude };
    (!negative || value < 1 << 63).then_some(value)
}

/// `safe_strtoul`: the low 32 bits of it.
pub fn unsigned32(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
}

/// `safe_strtol`: the low 32 bits of a number of 64.
pub fn signed32(text: &[u8]) -> Option<i32> {
    let (negative, magnitude) = scan(text)?;
    let value = i64::try_from(magnitude).ok()?;
    Some(if negative { -value } else { value } as i32)
}

/// A number in decimal, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    /// Of this number.
    pub fn new(mut value: u64) -> Decimal {
        let mut decimal = Decimal { digits: [b'0'; 20], start: 20 };
        loop {
            decimal.start -= 1;
            decimal.digits[decimal.start] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return decimal;
            }
        }
    }

    /// Its digits.
    pub fn bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_strtol_does() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"-0"), Some(0));
        assert_eq!(unsigned(b" +5 x"), Some(5));
        for wrong in [&b""[..], b"-", b"x", b"5x", b" "] {
            assert_eq!(unsigned(wrong), None);
            assert_eq!(signed32(wrong), None);
        }
        assert_eq!(unsigned32(b"4294967296"), Some(0));
        assert_eq!(signed32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(signed32(b"2147483648"), Some(i32::MIN));
        assert_eq!(signed32(b"-4294967295"), Some(1));
        assert_eq!(signed32(b"9223372036854775808"), None);
    }

    #[test]
    fn writes() {
        for value in [0, 7, 10, u64::MAX] {
            assert_eq!(Decimal::new(value).bytes(), value.to_string().as_bytes());
        }
    }
}
