//! Parameters of a policy: numbers with names, which the policy registers by writing them into the head, and `farshore stat` and `farshore set` show and
//! change.
//!
//! | word of a parameter | what |
//! |---|---|
//! | 0 … 3 | its name: up to 32 bytes of `a` to `z`, `0` to `9`, `_`, `-` and `.`, the rest 0 |
//! | 4 | its value, in two's complement |
//!
//! A value that the user sets is written there by the library, and told by [`Kind::Parameter`](crate::Kind::Parameter).

use crate::{Memory, word};
use alloc::string::String;
use farshore_core::sync::Ordering;

/// Parameters that a policy can have.
pub const PARAMETERS: usize = 16;
/// Words from one to the next.
const STRIDE: usize = 8;
/// Words of a name.
const NAME_WORDS: usize = 4;
/// Bytes of a name.
pub const NAME_MAX: usize = NAME_WORDS * 8;

/// Whether it is the name of a parameter.
pub fn is_name(name: &[u8]) -> bool {
    let fine = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(byte);
    (1..=NAME_MAX).contains(&name.len()) && name.iter().all(fine)
}

fn place(index: usize) -> usize {
    word::PARAMETERS + index * STRIDE
}

/// Writes a parameter's name and value: the policy does. False: the name is none, or there are not so many.
pub fn register(memory: &Memory<'_>, index: usize, name: &str, value: i64) -> bool {
    if index >= PARAMETERS || !is_name(name.as_bytes()) {
        return false;
    }
    let mut bytes = [0; NAME_MAX];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    set(memory, index, value);
    for (n, part) in bytes.chunks_exact(8).enumerate() {
        let part: [u8; 8] = part.try_into().unwrap_or_default();
        memory.head(place(index) + n).store(u64::from_le_bytes(part), Ordering::Release);
    }
    true
}

/// The name and the value of a parameter; `None`: there is none, or its name is none.
pub fn read(memory: &Memory<'_>, index: usize) -> Option<(String, i64)> {
    let mut bytes = [0; NAME_MAX];
    for (n, part) in bytes.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&memory.head(place(index) + n).load(Ordering::Acquire).to_le_bytes());
    }
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let rest_is_empty = bytes[name.len()..].iter().all(|&byte| byte == 0);
    let name = core::str::from_utf8(name).ok().filter(|name| is_name(name.as_bytes()) && rest_is_empty)?;
    Some((name.into(), get(memory, index)))
}

/// The value of a parameter.
pub fn get(memory: &Memory<'_>, index: usize) -> i64 {
    memory.head(place(index) + NAME_WORDS).load(Ordering::Acquire) as i64
}

/// Changes the value of a parameter.
pub fn set(memory: &Memory<'_>, index: usize, value: i64) {
    memory.head(place(index) + NAME_WORDS).store(value as u64, Ordering::Release);
}
