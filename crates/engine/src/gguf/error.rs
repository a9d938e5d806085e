//! Why a file is refused: one line each, naming what is wrong and what to do.

use std::path::PathBuf;

use super::GgmlType;

/// Why a file could not be read as GGUF, or a metadata key not as what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum GgufError {
    #[error("cannot open {path}", path = path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("this is not a GGUF file (it starts with {found}); give the path of a .gguf model")]
    NotGguf { found: String },
    #[error("this GGUF file is big-endian, which is not supported; convert it to little-endian")]
    BigEndian,
    #[error(
        "GGUF version {version} is not supported (versions 2 and 3 are); convert the model again with a current tool"
    )]
    Version { version: u32 },
    #[error(
        "the file ends too early: {what} at byte {offset} needs {needed} bytes and {left} are left; download it again"
    )]
    Truncated {
        what: String,
        offset: u64,
        needed: u64,
        left: u64,
    },
    #[error("{what} at byte {offset} claims {count} elements, more than the file can hold; the file is damaged")]
    CountTooLarge { what: String, offset: u64, count: u64 },
    #[error("{what} at byte {offset} claims a string of {length} bytes, which is too long; the file is damaged")]
    StringTooLong { what: String, offset: u64, length: u64 },
    #[error("{what} at byte {offset} is empty or not valid UTF-8; the file is damaged")]
    BadName { what: String, offset: u64 },
    #[error("metadata key `{key}` has the unknown value type {id}; the file is damaged or newer than this program")]
    UnknownValueType { key: String, id: u32 },
    #[error("metadata key `{key}` holds {value} where a boolean must be 0 or 1; the file is damaged")]
    BadBool { key: String, value: u8 },
    #[error("metadata key `{key}` holds an array of arrays, which is not supported")]
    NestedArray { key: String },
    #[error("metadata key `{key}` occurs twice; the file is damaged")]
    DuplicateKey { key: String },
    #[error("metadata key `general.alignment` is {alignment}, but must be a power of two up to 65536")]
    Alignment { alignment: u64 },
    #[error("tensor `{name}` occurs twice; the file is damaged")]
    DuplicateTensor { name: String },
    #[error("tensor `{name}` has {count} dimensions, but 1 to 4 are possible; the file is damaged")]
    DimensionCount { name: String, count: u32 },
    #[error("tensor `{name}` has a dimension of 0; the file is damaged")]
    ZeroDimension { name: String },
    #[error("tensor `{name}` is larger than any file (its dimensions are {dimensions:?}); the file is damaged")]
    TensorTooLarge { name: String, dimensions: Vec<u64> },
    #[error("tensor `{name}` has the unknown element type {id}; the file is damaged or newer than this program")]
    UnknownTensorType { name: String, id: u32 },
    #[error("tensor `{name}` has rows of {columns} elements, which {kind} cannot store in blocks of {block}")]
    RowNotBlocks {
        name: String,
        columns: usize,
        kind: GgmlType,
        block: usize,
    },
    #[error("tensor `{name}` starts at offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned {
        name: String,
        offset: u64,
        alignment: usize,
    },
    #[error(
        "tensor `{name}` needs bytes {start} to {end} of a file of {file} bytes; the download is incomplete, repeat it"
    )]
    OutsideFile {
        name: String,
        start: u64,
        end: u64,
        file: u64,
    },
    #[error("tensors `{first}` and `{second}` overlap; the file is damaged")]
    Overlap { first: String, second: String },
    #[error("metadata key `{key}` is missing; the file is not a complete model, convert it again")]
    MissingKey { key: String },
    #[error(
        "metadata key `{key}` should be {expected}, but is {found}; the file is damaged or newer than this program"
    )]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("tensor `{name}` is missing; the file is not a complete model")]
    MissingTensor { name: String },
    #[error("tensor `{name}` has type {kind}, but F32, F16 or BF16 is needed here")]
    NotFloat { name: String, kind: GgmlType },
}
