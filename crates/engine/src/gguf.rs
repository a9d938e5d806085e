//! What is in a model file? Reading and writing GGUF, versions 2 and 3, little-endian.
//!
//! [`Gguf`] maps the file and checks everything before it is trusted: after [`Gguf::open`] every tensor's bytes lie
//! inside the file, do not overlap and have the length their shape asks for. The checks allocate nothing larger than
//! the file itself justifies. [`GgufWriter`] makes files for tests and tools.

mod error;
mod reader;
mod types;
mod value;
mod writer;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use inertiakv_kernels::linear::WeightType;
use inertiakv_kernels::linear::encode::decode;
use inertiakv_kernels::mapped::MappedFile;

pub use error::GgufError;
use reader::Cursor;
pub use types::GgmlType;
use value::ValueType;
pub use value::{Array, FromValue, Value};
pub use writer::GgufWriter;

/// Data alignment when the file does not set `general.alignment`.
const DEFAULT_ALIGNMENT: usize = 32;
/// Fewest bytes of a metadata entry: key length, type tag, one byte of value.
const LEAST_METADATA_BYTES: usize = 8 + 4 + 1;
/// Fewest bytes of a tensor description: name length, dimension count, one dimension, type, offset.
const LEAST_TENSOR_BYTES: usize = 8 + 4 + 8 + 4 + 8;
/// Most dimensions of a tensor in the format.
const MOST_DIMENSIONS: u32 = 4;

/// What the file says about one tensor. `dimensions[0]` is the length of a row (the input features of a weight).
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    name: String,
    dimensions: Vec<usize>,
    kind: GgmlType,
    places: Vec<Place>,
    added: f32,
}

/// A run of bytes in one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    file: usize,
    bytes: Range<usize>,
}

impl TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its dimensions, innermost first: 1 to 4, none of them 0.
    #[must_use]
    pub fn dimensions(&self) -> &[usize] {
        &self.dimensions
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dimensions.iter().product()
    }

    /// Its element type.
    #[must_use]
    pub fn kind(&self) -> GgmlType {
        self.kind
    }

    /// Where its data lies, as byte offsets from the start of its file; of a stack whose matrices lie apart, the first.
    #[must_use]
    pub fn bytes(&self) -> Range<usize> {
        self.places[0].bytes.clone()
    }
}

/// A tensor that lies in another file, for [`Gguf::with_files`].
#[derive(Clone, Debug)]
pub(crate) struct ForeignTensor {
    pub(crate) name: String,
    /// Innermost first, as everywhere.
    pub(crate) dimensions: Vec<usize>,
    pub(crate) kind: GgmlType,
    /// File and bytes: one run, or one for each matrix of a stack.
    pub(crate) places: Vec<(usize, Range<usize>)>,
    /// Added to every value by [`Gguf::tensor_f32`].
    pub(crate) added: f32,
}

/// Which elements of a head the rows of query and key weights pair for rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeLayout {
    /// What GGUF converters make of the family.
    AsConverted,
    /// Always halves, as Hugging Face stores them.
    HalfSplit,
}

/// An opened, checked GGUF file.
#[derive(Debug)]
pub struct Gguf {
    /// The file itself, and those that its tensors lie in if they lie elsewhere.
    files: Vec<Source>,
    rope_layout: RopeLayout,
    version: u32,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    Owned(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Gguf {
    /// Maps and checks a file. Do not change the file while the result lives ([`MappedFile`]).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let file = MappedFile::open(path).map_err(|source| GgufError::Open {
            path: path.to_owned(),
            source,
        })?;
        Self::check(Source::Mapped(file))
    }

    /// Checks a file that is already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::check(Source::Owned(bytes))
    }

    /// What `header`, a GGUF file, says, with the tensors of other files beside its own: a model in another format, seen
    /// as the GGUF that a converter would make of it.
    pub(crate) fn with_files(
        header: Vec<u8>,
        files: Vec<MappedFile>,
        tensors: Vec<ForeignTensor>,
    ) -> Result<Self, GgufError> {
        let mut all = Self::from_bytes(header)?;
        all.rope_layout = RopeLayout::HalfSplit;
        all.files.extend(files.into_iter().map(Source::Mapped));
        for tensor in tensors {
            if all.by_name.insert(tensor.name.clone(), all.tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { name: tensor.name });
            }
            let places = tensor.places.into_iter().map(|(file, bytes)| Place {
                // After the header.
                file: file + 1,
                bytes,
            });
            all.tensors.push(TensorInfo {
                name: tensor.name,
                dimensions: tensor.dimensions,
                kind: tensor.kind,
                places: places.collect(),
                added: tensor.added,
            });
        }
        Ok(all)
    }

    fn check(source: Source) -> Result<Self, GgufError> {
        let bytes = source.bytes();
        let version = check_version(bytes)?;
        let mut cursor = Cursor::new(bytes, 8);
        let tensor_count = cursor.count(LEAST_TENSOR_BYTES, "the tensor count")?;
        let metadata_count = cursor.count(LEAST_METADATA_BYTES, "the metadata count")?;

        // Grown as entries are seen, not reserved from the count: the bound on the count is loose.
        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = cursor.key()?;
            let value = cursor.value(&key)?;
            if metadata.contains_key(&key) {
                return Err(GgufError::DuplicateKey { key });
            }
            metadata.insert(key, value);
        }
        let alignment = alignment(&metadata)?;

        let mut described = Vec::new();
        for _ in 0..tensor_count {
            described.push(describe_tensor(&mut cursor)?);
        }
        let data_start = cursor.position().next_multiple_of(alignment);
        let mut tensors = Vec::with_capacity(described.len());
        let mut by_name = HashMap::with_capacity(described.len());
        for tensor in described {
            let tensor = tensor.place(data_start, alignment, bytes.len())?;
            if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { name: tensor.name });
            }
            tensors.push(tensor);
        }
        check_overlap(&tensors)?;
        Ok(Self {
            files: vec![source],
            rope_layout: RopeLayout::AsConverted,
            version,
            metadata,
            tensors,
            by_name,
        })
    }

    /// Version of the format, 2 or 3.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Size in bytes, of all files together where there are several.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.files.iter().map(|file| file.bytes().len()).sum()
    }

    pub(crate) fn rope_layout(&self) -> RopeLayout {
        self.rope_layout
    }

    /// The bytes of the file that the metadata is in.
    fn header(&self) -> &[u8] {
        self.files[0].bytes()
    }

    fn at(&self, place: &Place) -> &[u8] {
        &self.files[place.file].bytes()[place.bytes.clone()]
    }

    /// All metadata keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The raw value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The value of a key that must be there.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?
            .ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
    }

    /// The value of a key that may be absent; a value of the wrong kind is an error all the same.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        match T::from_value(value) {
            Some(reading) => Ok(Some(reading)),
            None => Err(GgufError::WrongType {
                key: key.to_owned(),
                expected: T::EXPECTED,
                found: match value.as_integer() {
                    Some(number) => number.to_string(),
                    None => value.kind().to_owned(),
                },
            }),
        }
    }

    /// The strings of an array, as bytes (vocabularies need not be UTF-8); `None` when the key is absent.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>, GgufError> {
        let Some(array) = self.array(key, "an array of strings")? else {
            return Ok(None);
        };
        if array.element != ValueType::String {
            return Err(wrong_element(key, "an array of strings", array.element));
        }
        let cursor = Cursor::new(&self.header()[..array.bytes.end], array.bytes.start);
        Ok(Some(Strings {
            cursor,
            left: array.len,
        }))
    }

    /// The numbers of an array, integers, floats or flags, as `f64` (exact for every type but large 64-bit integers); `None`
    /// when the key is absent.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, GgufError> {
        const EXPECTED: &str = "an array of numbers";
        let Some(array) = self.array(key, EXPECTED)? else {
            return Ok(None);
        };
        let bytes = &self.header()[array.bytes.clone()];
        Ok(Some(match array.element {
            ValueType::U8 | ValueType::Bool => numbers(bytes, |raw| u8::from_le_bytes(raw).into()),
            ValueType::I8 => numbers(bytes, |raw| i8::from_le_bytes(raw).into()),
            ValueType::U16 => numbers(bytes, |raw| u16::from_le_bytes(raw).into()),
            ValueType::I16 => numbers(bytes, |raw| i16::from_le_bytes(raw).into()),
            ValueType::U32 => numbers(bytes, |raw| u32::from_le_bytes(raw).into()),
            ValueType::I32 => numbers(bytes, |raw| i32::from_le_bytes(raw).into()),
            ValueType::F32 => numbers(bytes, |raw| f32::from_le_bytes(raw).into()),
            ValueType::U64 => numbers(bytes, |raw| u64::from_le_bytes(raw) as f64),
            ValueType::I64 => numbers(bytes, |raw| i64::from_le_bytes(raw) as f64),
            ValueType::F64 => numbers(bytes, f64::from_le_bytes),
            other => return Err(wrong_element(key, EXPECTED, other)),
        }))
    }

    /// All tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The description of a tensor, if it is there.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The raw data of a tensor; of a stack whose matrices lie apart, that of the first.
    pub fn tensor_data(&self, name: &str) -> Result<&[u8], GgufError> {
        Ok(self.at(&self.existing(name)?.places[0]))
    }

    /// The raw data of matrix `index` of a stack, whose last dimension is how many there are.
    pub fn matrix_data(&self, name: &str, index: usize) -> Result<&[u8], GgufError> {
        let tensor = self.existing(name)?;
        let count = tensor.dimensions.get(2).copied().unwrap_or(1);
        match tensor.places.as_slice() {
            [all] => {
                let bytes = all.bytes.len() / count;
                Ok(self.at(all).get(index * bytes..(index + 1) * bytes).unwrap_or_default())
            }
            places => Ok(places.get(index).map_or(&[][..], |place| self.at(place))),
        }
    }

    fn existing(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name)
            .ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })
    }

    /// Lets the system drop the pages of a tensor whose data has been copied.
    pub fn release(&self, name: &str) {
        for place in self.tensor(name).into_iter().flat_map(|tensor| &tensor.places) {
            if let Source::Mapped(file) = &self.files[place.file] {
                file.release(place.bytes.clone());
            }
        }
    }

    /// The values of a small float tensor (norms, biases, rotary factors).
    pub fn tensor_f32(&self, name: &str) -> Result<Vec<f32>, GgufError> {
        let tensor = self.existing(name)?;
        let mut values = decode_floats(tensor, self.at(&tensor.places[0]))?;
        if tensor.added != 0.0 {
            for value in &mut values {
                *value += tensor.added;
            }
        }
        Ok(values)
    }

    fn array(&self, key: &str, expected: &'static str) -> Result<Option<&Array>, GgufError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(GgufError::WrongType {
                key: key.to_owned(),
                expected,
                found: other.kind().to_owned(),
            }),
        }
    }
}

fn decode_floats(tensor: &TensorInfo, data: &[u8]) -> Result<Vec<f32>, GgufError> {
    let weight_type = match tensor.kind {
        GgmlType::F32 => WeightType::F32,
        GgmlType::F16 => WeightType::F16,
        GgmlType::BF16 => WeightType::BF16,
        kind => {
            return Err(GgufError::NotFloat {
                name: tensor.name.clone(),
                kind,
            });
        }
    };
    Ok(decode(weight_type, data))
}

/// Iterator over the strings of a metadata array, as bytes.
pub struct Strings<'a> {
    cursor: Cursor<'a>,
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        // The array was walked when the file was opened. Should the mapped bytes have been changed since, the
        // iterator ends early instead of failing.
        self.cursor.string("a string").ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

/// A tensor description as stored, before its place in the file is known.
struct Described {
    name: String,
    dimensions: Vec<u64>,
    kind: GgmlType,
    offset: u64,
}

impl Described {
    fn place(self, data_start: usize, alignment: usize, file: usize) -> Result<TensorInfo, GgufError> {
        let Self {
            name,
            dimensions,
            kind,
            offset,
        } = self;
        let elements = dimensions
            .iter()
            .try_fold(1_u64, |product, &dimension| product.checked_mul(dimension));
        let too_large = || GgufError::TensorTooLarge {
            name: name.clone(),
            dimensions: dimensions.clone(),
        };
        let elements = elements
            .filter(|&count| i64::try_from(count).is_ok())
            .ok_or_else(too_large)?;
        // No dimension exceeds the product, and none is 0, so each fits when the product does.
        let elements = usize::try_from(elements).map_err(|_| too_large())?;
        let sizes: Vec<usize> = dimensions.iter().map(|&dimension| dimension as usize).collect();
        if !sizes[0].is_multiple_of(kind.block_size()) {
            let (columns, block) = (sizes[0], kind.block_size());
            return Err(GgufError::RowNotBlocks {
                name,
                columns,
                kind,
                block,
            });
        }
        let length = (elements / kind.block_size())
            .checked_mul(kind.block_bytes())
            .ok_or_else(too_large)?;
        if !offset.is_multiple_of(alignment as u64) {
            return Err(GgufError::Misaligned {
                name,
                offset,
                alignment,
            });
        }
        let start = (data_start as u64).saturating_add(offset);
        let end = start.saturating_add(length as u64);
        if end > file as u64 {
            return Err(GgufError::OutsideFile {
                name,
                start,
                end,
                file: file as u64,
            });
        }
        Ok(TensorInfo {
            name,
            dimensions: sizes,
            kind,
            places: vec![Place {
                file: 0,
                bytes: start as usize..end as usize,
            }],
            added: 0.0,
        })
    }
}

fn check_version(bytes: &[u8]) -> Result<u32, GgufError> {
    let magic = &bytes[..bytes.len().min(4)];
    if magic != b"GGUF" {
        let found = if magic.is_empty() {
            "nothing".to_owned()
        } else {
            format!("{:?}", magic.escape_ascii().to_string())
        };
        return Err(GgufError::NotGguf { found });
    }
    match Cursor::new(bytes, 4).u32("the version")? {
        version @ 2..=3 => Ok(version),
        // Small numbers written by a big-endian machine have their bytes at the other end.
        version if version != 0 && version.trailing_zeros() >= 16 => Err(GgufError::BigEndian),
        version => Err(GgufError::Version { version }),
    }
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<usize, GgufError> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let wrong = || GgufError::WrongType {
        key: "general.alignment".to_owned(),
        expected: "an integer that is not negative",
        found: value.kind().to_owned(),
    };
    let alignment = value
        .as_integer()
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(wrong)?;
    match usize::try_from(alignment) {
        Ok(usable) if usable.is_power_of_two() && usable <= 65_536 => Ok(usable),
        _ => Err(GgufError::Alignment { alignment }),
    }
}

fn describe_tensor(cursor: &mut Cursor<'_>) -> Result<Described, GgufError> {
    let name = cursor.tensor_name()?;
    let count = cursor.u32(&name)?;
    if count == 0 || count > MOST_DIMENSIONS {
        return Err(GgufError::DimensionCount { name, count });
    }
    let mut dimensions = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let dimension = cursor.u64(&name)?;
        if dimension == 0 {
            return Err(GgufError::ZeroDimension { name });
        }
        dimensions.push(dimension);
    }
    let id = cursor.u32(&name)?;
    let offset = cursor.u64(&name)?;
    match GgmlType::from_id(id) {
        Some(kind) => Ok(Described {
            name,
            dimensions,
            kind,
            offset,
        }),
        None => Err(GgufError::UnknownTensorType { name, id }),
    }
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let places = tensors
        .iter()
        .flat_map(|tensor| tensor.places.iter().map(|place| (&place.bytes, &tensor.name)));
    let mut in_order: Vec<(&Range<usize>, &String)> = places.collect();
    in_order.sort_unstable_by_key(|(bytes, _)| bytes.start);
    for pair in in_order.windows(2) {
        if pair[0].0.end > pair[1].0.start {
            return Err(GgufError::Overlap {
                first: pair[0].1.clone(),
                second: pair[1].1.clone(),
            });
        }
    }
    Ok(())
}

fn wrong_element(key: &str, expected: &'static str, element: ValueType) -> GgufError {
    let found = format!("an array of {}", element.plural());
    GgufError::WrongType {
        key: key.to_owned(),
        expected,
        found,
    }
}

fn numbers<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&raw| read(raw)).collect()
}
