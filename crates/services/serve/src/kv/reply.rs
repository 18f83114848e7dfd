//! Answers on their way out: a buffer of the caller's, and a sink that takes it when it is full.

use std::io;

use super::protocol::number::Decimal;

/// Takes the bytes of answers.
pub trait Sink {
    /// Takes all of them, and may wait for that.
    ///
    /// # Errors
    /// If it will take no more.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl Sink for Vec<u8> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// Answers, gathered. After an error some were lost, and nothing more can be sent.
#[derive(Debug)]
pub struct Replies<'b, S> {
    buffer: &'b mut [u8],
    used: usize,
    sink: S,
    sent: u64,
}

impl<'b, S: Sink> Replies<'b, S> {
    /// Gathered in `buffer`, which must not be empty.
    pub fn new(buffer: &'b mut [u8], sink: S) -> Replies<'b, S> {
        assert!(!buffer.is_empty());
        Replies { buffer, used: 0, sink, sent: 0 }
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// If the sink takes no more; so for the others.
    pub fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while bytes.len() > self.buffer.len() - self.used {
            let (now, later) = bytes.split_at(self.buffer.len() - self.used);
            self.buffer[self.used..].copy_from_slice(now);
            self.used = self.buffer.len();
            self.flush()?;
            bytes = later;
        }
        self.buffer[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        Ok(())
    }

    /// Adds a number in decimal.
    pub fn number(&mut self, number: u64) -> io::Result<()> {
        self.put(Decimal::new(number).bytes())
    }

    /// Adds a line.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.put(text.as_bytes())?;
        self.put(b"\r\n")
    }

    /// Adds `length` bytes, which `fill` writes in pieces: from where on, and to where.
    pub fn fill(&mut self, length: usize, mut fill: impl FnMut(usize, &mut [u8])) -> io::Result<()> {
        let mut at = 0;
        while at < length {
            if self.used == self.buffer.len() {
                self.flush()?;
            }
            let piece = &mut self.buffer[self.used..];
            let bytes = piece.len().min(length - at);
            fill(at, &mut piece[..bytes]);
            self.used += bytes;
            at += bytes;
        }
        Ok(())
    }

    /// Sends what there is.
    pub fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.used);
        if bytes > 0 {
            self.sent += bytes as u64;
            self.sink.send(&self.buffer[..bytes])?;
        }
        Ok(())
    }

    /// Bytes that the sink was given since this was last asked.
    pub fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// The sink, after what there is was sent.
    ///
    /// # Errors
    /// As for [`Replies::flush`].
    pub fn finish(mut self) -> io::Result<S> {
        self.flush()?;
        Ok(self.sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_goes_on() {
        let mut buffer = [0; 7];
        let mut replies = Replies::new(&mut buffer, Vec::new());
        replies.put(b"12345").unwrap();
        replies.put(b"6789012345678").unwrap();
        replies.number(42).unwrap();
        replies.fill(20, |at, piece| piece.iter_mut().enumerate().for_each(|(n, byte)| *byte = b'a' + (at + n) as u8)).unwrap();
        replies.line("!").unwrap();
        assert_eq!(replies.finish().unwrap(), b"12345678901234567842abcdefghijklmnopqrst!\r\n");
    }
}
