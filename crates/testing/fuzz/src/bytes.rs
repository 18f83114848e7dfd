//! Inputs as numbers: each draw takes a byte from the front, so that a changed byte changes one thing.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// The next byte; `None` at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// One of `choices`, by the next byte; the first at the end.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte().unwrap_or(0)) % choices.len()]
    }
}

/// Bits of one byte, taken from the low end.
#[derive(Clone, Copy, Debug)]
pub struct Bits(pub u8);

impl Bits {
    /// The next bit.
    pub fn bit(&mut self) -> bool {
        let bit = self.0 & 1;
        self.0 >>= 1;
        bit == 1
    }

    /// One of four, by the next two bits.
    pub fn of<T: Copy>(&mut self, choices: [T; 4]) -> T {
        let at = usize::from(self.0 & 3);
        self.0 >>= 2;
        choices[at]
    }
}
