//! Datagrams: each begins with 8 bytes, four big-endian numbers: the request's own, which of its datagrams this is, how many there are, and 0.
//!
//! A request is one datagram. Its answer is cut into datagrams of at most [`DATAGRAM_MAX`] bytes, which carry the request's number.

/// Bytes of the header.
pub const HEADER: usize = 8;
/// The longest datagram that is sent.
pub const DATAGRAM_MAX: usize = 1400;
const PIECE: usize = DATAGRAM_MAX - HEADER;
/// The longest answer: datagrams are counted in 16 bits.
pub const ANSWER_MAX: usize = u16::MAX as usize * PIECE;

/// The number and the text of a request. `None`: it is none, or has more than one datagram.
pub fn request(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (header, text) = datagram.split_at_checked(HEADER)?;
    let total = u16::from_be_bytes([header[4], header[5]]);
    (total == 1).then(|| (u16::from_be_bytes([header[0], header[1]]), text))
}

/// How many datagrams an answer of so many bytes takes.
pub fn count(answer: usize) -> usize {
    answer.div_ceil(PIECE).max(1)
}

/// Makes datagram number `at` of the answer to request `id`. Its bytes are the first of `into`, so many as are returned.
pub fn datagram(id: u16, answer: &[u8], at: usize, into: &mut [u8; DATAGRAM_MAX]) -> usize {
    let piece = &answer[at * PIECE..answer.len().min((at + 1) * PIECE)];
    for (place, number) in [id, at as u16, count(answer.len()) as u16, 0].into_iter().enumerate() {
        into[place * 2..place * 2 + 2].copy_from_slice(&number.to_be_bytes());
    }
    into[HEADER..HEADER + piece.len()].copy_from_slice(piece);
    HEADER + piece.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_and_numbers() {
        assert!(request(b"\0\x01\0\0\0\x01\0").is_none());
        assert!(request(b"\0\x01\0\0\0\x02\0\0get a\r\n").is_none());
        assert_eq!(request(b"\x01\x02\0\0\0\x01\0\0get a\r\n"), Some((0x102, &b"get a\r\n"[..])));
        let answer: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
        assert_eq!(count(answer.len()), 3);
        let mut all: Vec<u8> = Vec::new();
        for at in 0..3 {
            let mut into = [0; DATAGRAM_MAX];
            let length = datagram(7, &answer, at, &mut into);
            assert_eq!(into[..8], [0, 7, 0, at as u8, 0, 3, 0, 0]);
            all.extend(&into[8..length]);
        }
        assert_eq!(all, answer);
    }
}
