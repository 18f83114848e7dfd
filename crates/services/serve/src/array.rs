//! An array: index to value. The least that a service with far memory can be.
//!
//! A request is two little-endian words of 8 bytes, a number of the client's own and an index; the answer is that number and the [value](numbers::value)
//! of the index. [`messages`] has how they travel, and what happens to a request of another length, or for an index that there is not.
//!
//! An item has `--item-bytes`, all of which are read for each request: see [`numbers`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farshore_uthread::net::Datagram;

use crate::memory::Region;
use crate::messages;
use crate::numbers::{self, WORD, word};
use crate::service::{Connections, Service, Stream};

/// Bytes of a request, and of its answer.
pub const MESSAGE: usize = 2 * WORD;

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
            item.iter().zip(numbers::words(index as u64, item_words)).for_each(|(place, word)| place.store(word, Relaxed));
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
        let sum = self.get(word(request, 1))?;
        let mut answer = *request;
        answer[WORD..].copy_from_slice(&sum.to_le_bytes());
        Some(answer)
    }
}

impl Service for Array {
    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connection(&self, stream: &Stream) -> io::Result<()> {
        messages::connection(stream, |request| self.answer(request))
    }

    fn datagram(&self, datagram: Datagram<'_>) {
        messages::datagram(datagram, |request| self.answer(request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::value;

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
