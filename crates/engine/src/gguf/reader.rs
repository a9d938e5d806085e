//! A cursor over untrusted bytes: every read is checked, nothing is allocated for a length that is not there.

use super::GgufError;
use super::value::{Array, Value, ValueType};

/// Longest metadata key the format allows.
const LONGEST_KEY: usize = 65_535;
/// Longest tensor name we accept; the format's own limit is 64 and some writers exceed it a little.
const LONGEST_NAME: usize = 256;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], GgufError> {
        if count > self.remaining() {
            return Err(GgufError::Truncated {
                what: what.to_owned(),
                offset: self.at as u64,
                needed: count as u64,
                left: self.remaining() as u64,
            });
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N, what)?);
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of items of at least `least_bytes` each, checked against what is left of the file.
    pub(super) fn count(&mut self, least_bytes: usize, what: &str) -> Result<usize, GgufError> {
        let offset = self.at as u64;
        let count = self.u64(what)?;
        if count > (self.remaining() / least_bytes) as u64 {
            return Err(GgufError::CountTooLarge {
                what: what.to_owned(),
                offset,
                count,
            });
        }
        Ok(count as usize)
    }

    /// A length-prefixed string's bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8], GgufError> {
        let offset = self.at as u64;
        let length = self.u64(what)?;
        if length > self.remaining() as u64 {
            return Err(GgufError::StringTooLong {
                what: what.to_owned(),
                offset,
                length,
            });
        }
        self.take(length as usize, what)
    }

    fn name(&mut self, what: &str, longest: usize) -> Result<String, GgufError> {
        let offset = self.at as u64;
        let bytes = self.string(what)?;
        if bytes.len() > longest {
            return Err(GgufError::StringTooLong {
                what: what.to_owned(),
                offset,
                length: bytes.len() as u64,
            });
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(GgufError::BadName {
                what: what.to_owned(),
                offset,
            }),
        }
    }

    pub(super) fn key(&mut self) -> Result<String, GgufError> {
        self.name("a metadata key", LONGEST_KEY)
    }

    pub(super) fn tensor_name(&mut self) -> Result<String, GgufError> {
        self.name("a tensor name", LONGEST_NAME)
    }

    pub(super) fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        let kind = self.value_type(key)?;
        Ok(match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            ValueType::U32 => Value::U32(self.u32(key)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            ValueType::U64 => Value::U64(self.u64(key)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            ValueType::Bool => match self.array::<1>(key)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => {
                    return Err(GgufError::BadBool {
                        key: key.to_owned(),
                        value: other,
                    });
                }
            },
            // A broken character in a licence text is no reason to refuse a model; keys and names are strict.
            ValueType::String => Value::String(String::from_utf8_lossy(self.string(key)?).into_owned()),
            ValueType::Array => Value::Array(self.array_value(key)?),
        })
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let id = self.u32(key)?;
        ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType {
            key: key.to_owned(),
            id,
        })
    }

    /// Walks an array without keeping its elements.
    fn array_value(&mut self, key: &str) -> Result<Array, GgufError> {
        let element = self.value_type(key)?;
        if element == ValueType::Array {
            return Err(GgufError::NestedArray { key: key.to_owned() });
        }
        let len = self.count(element.least_bytes(), key)?;
        let start = self.at;
        if element == ValueType::String {
            for _ in 0..len {
                self.string(key)?;
            }
        } else {
            self.take(len * element.least_bytes(), key)?;
        }
        Ok(Array {
            element,
            len,
            bytes: start..self.at,
        })
    }
}
