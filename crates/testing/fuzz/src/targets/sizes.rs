//! A size, or a time: the same text is given to both. Compared with exact decimal arithmetic on the digits.

use super::{reads_back, text};
use farshore_config::{Size, Time};

/// Reads the input as a size and as a time.
pub fn run(input: &[u8]) {
    let text = text(input);
    let size = reads_back::<Size>(&text);
    assert_eq!(size.map(Size::bytes), size_of(&text), "{text:?}");
    let time = reads_back::<Time>(&text);
    assert_eq!(time.map(Time::ns), time_of(&text), "{text:?}");
}

/// The bytes that `text` says, as the documents have it: digits, perhaps a point and digits, a unit.
fn size_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (fraction, rest) = digits(rest);
            (Some(fraction).filter(|f| !f.is_empty())?, rest)
        }
        None => ("", rest),
    };
    let doublings = match rest.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" if fraction.is_empty() => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    if whole.is_empty() {
        return None;
    }
    // A number of this length would take a minute to double, and is too large anyhow.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 20 {
        return None;
    }
    let mut decimal: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|digit| digit - b'0').collect();
    for _ in 0..doublings {
        double(&mut decimal);
    }
    let whole = &decimal[..decimal.len() - fraction.len()];
    whole.iter().try_fold(0_u64, |sum, &digit| sum.checked_mul(10)?.checked_add(u64::from(digit)))
}

/// The nanoseconds that `text` says: digits and a unit.
fn time_of(text: &str) -> Option<u64> {
    let (number, unit) = digits(text.trim());
    let factor: u64 = match unit.trim_start() {
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1_000,
        "ns" => 1,
        _ => return None,
    };
    let number = number.chars().try_fold(None, |sum: Option<u64>, digit| {
        let digit = u64::from(u32::from(digit) - u32::from('0'));
        Some(Some(sum.unwrap_or(0).checked_mul(10)?.checked_add(digit)?))
    })??;
    number.checked_mul(factor)
}

/// The digits in front, and the rest.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Twice a number of decimal digits, the highest first.
fn double(decimal: &mut Vec<u8>) {
    let mut carry = 0;
    for digit in decimal.iter_mut().rev() {
        let twice = *digit * 2 + carry;
        (*digit, carry) = (twice % 10, twice / 10);
    }
    if carry > 0 {
        decimal.insert(0, carry);
    }
}
