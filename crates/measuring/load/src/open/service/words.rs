//! `array` and `scan`: see [`farshore_load::array`].

use farshore_load::array::{ARRAY_BYTES, FOUND, NOT_FOUND, SCAN, SCAN_ANSWER_BYTES, SCAN_LENGTH, array_value, scan_sum};

use crate::generator::protocol::{Checked, Header, Id, Protocol, Request};

/// `array`.
#[derive(Debug)]
pub struct Array;

/// `scan`.
#[derive(Debug)]
pub struct Scan {
    /// How many keys there are at least.
    pub items: u64,
}

impl Protocol for Array {
    fn write(&self, number: u64, request: &Request, to: &mut Vec<u8>) {
        to.extend_from_slice(&number.to_le_bytes());
        to.extend_from_slice(&request.key.to_le_bytes());
    }

    fn check(&self, number: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String> {
        let Some([id, value]) = words(bytes) else { return Ok(None) };
        let wanted = array_value(request.key);
        let checked = if id != number {
            other(number, id)
        } else if value != wanted {
            Checked::Wrong("wrong values", format!("index {}: {value:#x}, not {wanted:#x}", request.key))
        } else {
            Checked::Right
        };
        Ok(Some((ARRAY_BYTES, checked)))
    }

    fn header(&self, datagram: &[u8]) -> Option<Header> {
        header(datagram, ARRAY_BYTES)
    }
}

impl Protocol for Scan {
    fn write(&self, number: u64, request: &Request, to: &mut Vec<u8>) {
        for word in [number, u64::from(request.op), request.key] {
            to.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn check(&self, number: u64, request: &Request, bytes: &[u8]) -> Result<Option<(usize, Checked)>, String> {
        let Some([id, status, count, sum]) = words(bytes) else { return Ok(None) };
        let checked = if id == number { self.found(request, status, count, sum) } else { other(number, id) };
        Ok(Some((SCAN_ANSWER_BYTES, checked)))
    }

    fn header(&self, datagram: &[u8]) -> Option<Header> {
        header(datagram, SCAN_ANSWER_BYTES)
    }
}

impl Scan {
    fn found(&self, request: &Request, status: u64, count: u64, sum: u64) -> Checked {
        let key = request.key;
        if status == NOT_FOUND {
            let what = || format!("key {key}: does the server have the {} of --items?", self.items);
            return Checked::Wrong("keys not there", what());
        }
        if status != FOUND {
            return Checked::Wrong("requests refused", format!("key {key}: status {status}"));
        }
        // A server may have more keys than are asked for.
        let least = if request.op == SCAN { SCAN_LENGTH.min(self.items - key) } else { 1 };
        let most = if request.op == SCAN { SCAN_LENGTH } else { 1 };
        if !(least..=most).contains(&count) {
            return Checked::Wrong("wrong counts", format!("key {key}: {count} values, not {least}"));
        }
        let wanted = scan_sum(key, count);
        if sum != wanted {
            return Checked::Wrong("wrong values", format!("the {count} from key {key} on: {sum:#x}, not {wanted:#x}"));
        }
        Checked::Right
    }
}

fn other(number: u64, id: u64) -> Checked {
    Checked::Wrong("answers of other requests", format!("that of request {id}, when it was the turn of {number}"))
}

/// The words that `bytes` begin with.
fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, _) = bytes.get(..8 * N)?.as_chunks::<8>();
    Some(std::array::from_fn(|n| u64::from_le_bytes(chunks[n])))
}

fn header(datagram: &[u8], wanted: usize) -> Option<Header> {
    let [id] = words(datagram).filter(|_| datagram.len() == wanted)?;
    Some(Header { id: Id::Whole(id), part: 0, parts: 1, bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn wrong(protocol: &dyn Protocol, request: Request, words: &[u64]) -> Option<&'static str> {
        match protocol.check(9, &request, &bytes(words)) {
            Ok(Some((used, checked))) => {
                assert_eq!(used, words.len() * 8);
                if let Checked::Wrong(kind, _) = checked { Some(kind) } else { None }
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_of_the_array() {
        let request = Request { op: 0, key: 5, version: 0 };
        let mut written = Vec::new();
        Array.write(9, &request, &mut written);
        assert_eq!(written, bytes(&[9, 5]));
        let right = [9, array_value(5)];
        assert_eq!(wrong(&Array, request, &right), None);
        assert_eq!(wrong(&Array, request, &[9, array_value(6)]), Some("wrong values"));
        assert_eq!(wrong(&Array, request, &[8, array_value(5)]), Some("answers of other requests"));
        assert_eq!(Array.check(9, &request, &bytes(&right)[..15]), Ok(None));
        assert_eq!(Array.header(&bytes(&right)).map(|header| header.id), Some(Id::Whole(9)));
        assert!(Array.header(&bytes(&[9])).is_none() && Array.header(&bytes(&[9, 1, 1])).is_none());
    }

    #[test]
    fn sums_of_a_scan() {
        let scan = Scan { items: 1000 };
        let request = |op, key| Request { op, key, version: 0 };
        let mut written = Vec::new();
        scan.write(9, &request(1, 7), &mut written);
        assert_eq!(written, bytes(&[9, 1, 7]));
        assert_eq!(wrong(&scan, request(0, 7), &[9, 0, 1, array_value(7)]), None);
        assert_eq!(wrong(&scan, request(0, 7), &[9, 0, 2, scan_sum(7, 2)]), Some("wrong counts"));
        assert_eq!(wrong(&scan, request(1, 7), &[9, 0, 100, scan_sum(7, 100)]), None);
        assert_eq!(wrong(&scan, request(1, 7), &[9, 0, 99, scan_sum(7, 99)]), Some("wrong counts"));
        assert_eq!(wrong(&scan, request(1, 990), &[9, 0, 10, scan_sum(990, 10)]), None);
        assert_eq!(wrong(&scan, request(1, 990), &[9, 0, 100, scan_sum(990, 100)]), None, "it has more than asked for");
        assert_eq!(wrong(&scan, request(1, 7), &[9, 0, 100, 1]), Some("wrong values"));
        assert_eq!(wrong(&scan, request(0, 7), &[9, 1, 0, 0]), Some("keys not there"));
        assert_eq!(wrong(&scan, request(0, 7), &[9, 77, 0, 0]), Some("requests refused"));
    }
}
