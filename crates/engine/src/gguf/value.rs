//! Metadata values and their typed readings.

use std::ops::Range;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the file format's own types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    /// Elements stay in the file until they are asked for ([`super::Gguf::strings`], [`super::Gguf::numbers`]).
    Array(Array),
}

/// An array that was checked but not copied: where it lies and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub(super) element: ValueType,
    pub(super) len: usize,
    pub(super) bytes: Range<usize>,
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Type tag of a value in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    pub(super) fn from_id(id: u32) -> Option<Self> {
        const IN_ORDER: [ValueType; 13] = [
            ValueType::U8,
            ValueType::I8,
            ValueType::U16,
            ValueType::I16,
            ValueType::U32,
            ValueType::I32,
            ValueType::F32,
            ValueType::Bool,
            ValueType::String,
            ValueType::Array,
            ValueType::U64,
            ValueType::I64,
            ValueType::F64,
        ];
        IN_ORDER.get(usize::try_from(id).ok()?).copied()
    }

    /// Bytes of one value; for strings and arrays the fewest it can take.
    pub(super) fn least_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    /// Several of them, in words for an error message.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::U8 | Self::I8 | Self::U16 | Self::I16 | Self::U32 | Self::I32 | Self::U64 | Self::I64 => "integers",
            Self::F32 | Self::F64 => "floats",
            Self::Bool => "booleans",
            Self::String => "strings",
            Self::Array => "arrays",
        }
    }
}

impl Value {
    /// What kind of value it is, in words for an error message.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            _ => "an integer",
        }
    }

    /// The value as an integer, when it is one.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }
}

/// A type a metadata value can be read as. Integers of any width convert when the number fits; nothing else converts.
pub trait FromValue<'a>: Sized {
    /// What the reader expected, in words for an error message.
    const EXPECTED: &'static str;

    /// The reading, or nothing when the value is of another kind or does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl FromValue<'_> for u32 {
    const EXPECTED: &'static str = "an integer from 0 to 4294967295";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_integer().and_then(|number| number.try_into().ok())
    }
}

impl FromValue<'_> for usize {
    const EXPECTED: &'static str = "an integer that is not negative";

    fn from_value(value: &Value) -> Option<Self> {
        value.as_integer().and_then(|number| number.try_into().ok())
    }
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a float";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(number) => Some(number),
            Value::F64(number) => Some(number as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a boolean";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        }
    }
}
