//! Inputs of the formats with fields in another form: one byte for a key, one for a value. As text they would have to be
//! mended quote by quote before a mutation says anything new; so a combination of values is a few bytes away.
//!
//! An input whose first byte is none of ASCII text is of this form. The byte says nothing more.

use crate::bytes::Bytes;
use serde_json::{Map, Number, Value};

/// What is behind the first byte of an input in this form; `None`: it is text.
pub fn of(input: &[u8]) -> Option<Bytes<'_>> {
    let (first, rest) = input.split_first()?;
    if first.is_ascii_graphic() || first.is_ascii_whitespace() { None } else { Some(Bytes(rest)) }
}

/// The words of a format: keys it has, and texts that stand for values.
#[derive(Clone, Debug)]
pub struct Words {
    /// Names of fields.
    pub keys: Vec<String>,
    /// Values.
    pub texts: &'static [&'static str],
}

impl Words {
    /// Changes fields of `object` until the bytes end.
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
        let kind = bytes.byte()?;
        Some(match kind % 12 {
            0..=3 => self.text(bytes),
            4 | 5 => Value::Number(Number::from(bytes.byte()?)),
            6 => Value::Number(Number::from(bytes.pick(&[0, 1, 1 << 20, 1 << 32, i64::MAX as u64, u64::MAX]))),
            7 => Value::Number(bytes.pick(&[Some(-1.0), Some(0.5), Some(1e300)]).and_then(Number::from_f64)?),
            8 => Value::Bool(kind < 128),
            9 => Value::Null,
            10 if depth > 0 => (0..bytes.byte()? % 4).filter_map(|_| self.value(bytes, depth - 1)).collect(),
            11 if depth > 0 => {
                let mut object = Map::new();
                for _ in 0..bytes.byte()? % 4 {
                    let key = &self.keys[usize::from(bytes.byte()?) % self.keys.len()];
                    object.extend(self.value(bytes, depth - 1).map(|value| (key.clone(), value)));
                }
                Value::Object(object)
            }
            _ => return None,
        })
    }

    /// A text of the format, or one with a byte more.
    fn text(&self, bytes: &mut Bytes<'_>) -> Value {
        let which = bytes.byte().unwrap_or(0);
        let mut text = self.texts[usize::from(which) % self.texts.len()].to_owned();
        if usize::from(which) >= 256 / self.texts.len() * self.texts.len() {
            text.push(char::from(bytes.byte().unwrap_or(b' ')));
        }
        Value::String(text)
    }
}
