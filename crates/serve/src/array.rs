//! An array: index to value. The least that a service with far memory can be.
//!
//! A request is two little-endian words of 8 bytes, a number of the client's own and an index; the answer is that number and the [`value`] of the index.
//! Over UDP each is a datagram; over TCP they follow one another, and answers come in the order of requests. A request of another length, or for an index
//! that there is not, has no answer, and ends its connection.
//!
//! An item has `--item-bytes`. The sum of its words is its value, so all of them must be read, and the client, who can compute it, sees if one was wrong.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farshore_uthread::net::Datagram;

use crate::memory::Region;
use crate::service::{BUFFER, Connections, Service, Stream};

/// Bytes of a request, and of its answer.
pub const MESSAGE: usize = 16;
const WORD: usize = size_of::<u64>();
/// Makes the values of small indexes unlike the output of a generator that was seeded with them.
const SALT: u64 = 0x6661_7273_686f_7265;

/// The value at an index: the first number of the `SplitMix64` generator with a seed made of it. As `farshore-load` knows it.
pub fn value(index: u64) -> u64 {
    mix(index ^ SALT)
}

fn mix(seed: u64) -> u64 {
    let word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// See the module's head.
#[derive(Debug)]
pub struct Array {
    words: Region<AtomicU64>,
    item_words: usize,
    connections: Connections,
}

impl Array {
    /// Of so many items, of a multiple of 8 bytes each. All of it is written.
    ///
    /// # Errors
    /// If the kernel does not give that much address space.
    pub fn new(items: usize, item_bytes: usize) -> io::Result<Array> {
        let item_words = item_bytes / WORD;
        let words: Region<AtomicU64> = Region::new(items.checked_mul(item_words).ok_or(io::ErrorKind::OutOfMemory)?)?;
        for (index, item) in words.chunks(item_words).enumerate() {
            let mut first = value(index as u64);
            for (number, word) in item.iter().enumerate().skip(1) {
                let other = mix(first ^ number as u64);
                word.store(other, Relaxed);
                first = first.wrapping_sub(other);
            }
            item[0].store(first, Relaxed);
        }
        Ok(Array { words, item_words, connections: Connections::default() })
    }

    /// The sum of an item's words.
    pub fn get(&self, index: u64) -> Option<u64> {
        let start = usize::try_from(index).ok()?.checked_mul(self.item_words)?;
        let item = self.words.get(start..start.checked_add(self.item_words)?)?;
        Some(item.iter().fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed))))
    }

    fn answer(&self, request: &[u8; MESSAGE]) -> Option<[u8; MESSAGE]> {
        let (id, index) = request.split_at(WORD);
        let sum = self.get(u64::from_le_bytes(index.try_into().ok()?))?;
        let mut answer = [0; MESSAGE];
        answer[..WORD].copy_from_slice(id);
        answer[WORD..].copy_from_slice(&sum.to_le_bytes());
        Some(answer)
    }
}

impl Service for Array {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connection(&self, stream: &Stream) -> io::Result<()> {
        let mut buffer = [0; BUFFER];
        let mut have = 0;
        loop {
            let read = stream.read(&mut buffer[have..])?;
            if read == 0 {
                return Ok(());
            }
            have += read;
            // Answers are as long as requests, and take their places.
            let (whole, _) = buffer[..have].as_chunks_mut::<MESSAGE>();
            for message in &mut *whole {
                *message = self.answer(message).ok_or(io::ErrorKind::InvalidData)?;
            }
            let used = whole.len() * MESSAGE;
            stream.write_all(&buffer[..used])?;
            buffer.copy_within(used..have, 0);
            have -= used;
        }
    }

    fn datagram(&self, mut datagram: Datagram<'_>) {
        let Some(answer) = datagram.bytes().try_into().ok().and_then(|request| self.answer(request)) else {
            return datagram.malformed();
        };
        datagram.buffer()[..MESSAGE].copy_from_slice(&answer);
        datagram.reply(MESSAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_splitmix64() {
        assert_eq!(value(SALT), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn each_item_sums_up_to_its_value() {
        for bytes in [64, 520, 4096] {
            let array = Array::new(100, bytes).unwrap();
            for index in 0..100 {
                assert_eq!(array.get(index), Some(value(index)));
            }
            assert_eq!(array.get(100), None);
            assert_eq!(array.get(u64::MAX), None);
        }
    }
}
