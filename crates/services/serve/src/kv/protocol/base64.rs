//! Base64, for binary keys. As memcached's: what is no base64 character is skipped, and the rest must be whole groups of four.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn value(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    })
}

/// Decodes `text` into the start of `into`, which has room for three bytes for each four. How many bytes, 0: none can be had.
pub fn decode(text: &[u8], into: &mut [u8]) -> usize {
    let known = || text.iter().filter_map(|byte| value(*byte).map(|value| (*byte, value)));
    if !known().count().is_multiple_of(4) {
        return 0;
    }
    let (mut length, mut group, mut seen, mut pad) = (0, 0u32, 0, 0);
    for (byte, value) in known() {
        group = group << 6 | u32::from(value);
        seen += 1;
        pad += usize::from(byte == b'=');
        if seen % 4 == 0 {
            let Some(place) = into.get_mut(length..length + 3) else { return 0 };
            place.copy_from_slice(&group.to_be_bytes()[1..]);
            length += 3;
            group = 0;
            match pad {
                0 => {}
                1 | 2 => return length - pad,
                _ => return 0,
            }
        }
    }
    length
}

/// Gives `bytes` in base64, four characters at a time.
pub fn encode(bytes: &[u8], mut put: impl FnMut([u8; 4])) {
    for group in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..group.len()].copy_from_slice(group);
        let all = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        let mut four = [18, 12, 6, 0].map(|shift| ALPHABET[(all >> shift) as usize & 63]);
        four[group.len() + 1..].fill(b'=');
        put(four);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (plain, coded) in [(&b"f"[..], &b"Zg=="[..]), (b"fo", b"Zm8="), (b"foo", b"Zm9v"), (b"\0\xff!foo", b"AP8hZm9v")] {
            let mut text = Vec::new();
            encode(plain, |four| text.extend(four));
            assert_eq!(text, coded);
            let mut back = [0; 16];
            let length = decode(coded, &mut back);
            assert_eq!(&back[..length], plain);
        }
        let mut into = [0; 16];
        assert_eq!(decode(b"***", &mut into), 0);
        assert_eq!(decode(b"Zm9", &mut into), 0);
        assert_eq!(decode(b"====", &mut into), 0);
        assert_eq!(decode(b"Zm*9v", &mut into), 3);
    }
}
