//! Inputs of the formats with fields in another form: one byte for a key, one for a value. As text they would have to be
//! mended quote by quote before a mutation says anything new; so a combination of values is a few bytes away.
//!
//! An input whose first byte is none of ASCII text is of this form. The byte says nothing more.

use crate::bytes::Bytes;
use serde_json::{Map, Value};

/// What is behind the first byte of an input in this form; `None`: it is text.
pub fn of(input: &[u8]) -> Option<Bytes<'_>> {
    let (first, rest) = input.split_first()?;
    if first.is_ascii_graphic() || first.is_ascii_whitespace() { None } else { Some(Bytes(rest)) }
}

/// The words of a format.
#[derive(Clone, Debug)]
pub struct Words {
    /// Names of fields.
    keys: Vec<String>,
    /// Values without parts.
    values: Vec<Value>,
}

impl Words {
    /// These names and texts; numbers and the other values that JSON has come by themselves.
    pub fn new(keys: impl IntoIterator<Item = String>, texts: &[&str]) -> Words {
        let texts = texts.iter().map(|&text| Value::from(text));
        let small = (0..=20).map(Value::from);
        let large = [1 << 12, 1 << 26, 1 << 32, i64::MAX as u64, u64::MAX].map(Value::from);
        let other = [Value::from(-1), Value::from(0.5), Value::from(1e300), Value::Null, Value::from(true), Value::from(false)];
        Words { keys: keys.into_iter().collect(), values: texts.chain(small).chain(large).chain(other).collect() }
    }

    /// Changes fields of `object` until the bytes end: a byte for the key, one for the value (or more, if it has parts).
    pub fn change(&self, bytes: &mut Bytes<'_>, object: &mut Map<String, Value>) {
        while let Some(key) = bytes.byte() {
            let key = &self.keys[usize::from(key) % self.keys.len()];
            match self.value(bytes, 3) {
                Some(value) => object.insert(key.clone(), value),
                None => object.remove(key),
            };
        }
    }

    /// The next value; `None`: the field goes.
    fn value(&self, bytes: &mut Bytes<'_>, depth: u32) -> Option<Value> {
        let which = usize::from(bytes.byte()?) % (self.values.len() + 4);
        if let Some(value) = self.values.get(which) {
            return Some(value.clone());
        }
        let parts = if depth > 0 { bytes.byte()? % 4 } else { 0 };
        match which - self.values.len() {
            0 => None,
            1 | 2 => Some((0..parts).filter_map(|_| self.value(bytes, depth - 1)).collect()),
            _ => {
                let mut object = Map::new();
                for _ in 0..parts {
                    let key = &self.keys[usize::from(bytes.byte()?) % self.keys.len()];
                    object.extend(self.value(bytes, depth - 1).map(|value| (key.clone(), value)));
                }
                Some(Value::Object(object))
            }
        }
    }
}
