//! Makes GGUF files, for tests and tools.

use std::path::Path;

use super::{DEFAULT_ALIGNMENT, GgmlType, GgufError};

/// Collects metadata and tensors and writes them as one file.
///
/// It writes what it is told: neither duplicate keys nor data of the wrong length are noticed here, so that tests can
/// make damaged files with it. Reading the result with [`super::Gguf`] is the check.
///
/// ```
/// use inertiakv::gguf::{GgmlType, Gguf, GgufWriter};
/// let mut writer = GgufWriter::new();
/// writer.string("general.architecture", "llama").u32("llama.block_count", 2);
/// writer.tensor("output_norm.weight", &[4], GgmlType::F32, &[0; 16]);
/// let file = Gguf::from_bytes(writer.to_bytes())?;
/// assert_eq!(file.require::<u32>("llama.block_count")?, 2);
/// # Ok::<(), inertiakv::gguf::GgufError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    metadata: Vec<Entry>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Entry {
    key: String,
    value_type: u32,
    value: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    dimensions: Vec<u64>,
    kind: u32,
    /// Where the description says the data is; the place it gets when absent.
    offset: Option<u64>,
    data: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: DEFAULT_ALIGNMENT,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufWriter {
    /// An empty version 3 file with the default alignment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the version number in the header; the layout stays that of versions 2 and 3.
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// Sets and records the alignment of tensor data, a power of two.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = alignment as usize;
        self.u32("general.alignment", alignment)
    }

    /// Adds an unsigned integer.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// Adds a float.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// Adds a boolean.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, 7, &[u8::from(value)])
    }

    /// Adds a string.
    pub fn string(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::with_capacity(8 + value.len());
        push_string(&mut bytes, value.as_bytes());
        self.raw(key, 8, &bytes)
    }

    /// Adds an array of strings, given as bytes or text.
    pub fn strings(&mut self, key: &str, values: &[impl AsRef<[u8]>]) -> &mut Self {
        let mut bytes = array_head(8, values.len());
        for value in values {
            push_string(&mut bytes, value.as_ref());
        }
        self.raw(key, 9, &bytes)
    }

    /// Adds an array of integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let mut bytes = array_head(5, values.len());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    /// Adds an array of floats.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        let mut bytes = array_head(6, values.len());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    /// Adds a value given as its type number and bytes, for what the other methods do not offer.
    pub fn raw(&mut self, key: &str, value_type: u32, value: &[u8]) -> &mut Self {
        self.metadata.push(Entry {
            key: key.to_owned(),
            value_type,
            value: value.to_vec(),
        });
        self
    }

    /// Removes every entry with this key.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|entry| entry.key != key);
        self
    }

    /// Adds a tensor with its dimensions (innermost first) and encoded data.
    pub fn tensor(&mut self, name: &str, dimensions: &[usize], kind: GgmlType, data: &[u8]) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dimensions: dimensions.iter().map(|&dimension| dimension as u64).collect(),
            kind: kind.id(),
            offset: None,
            data: data.to_vec(),
        });
        self
    }

    /// Adds a tensor description without data: any shape, any type number, any offset.
    pub fn describe_tensor(&mut self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            dimensions: dimensions.to_vec(),
            kind,
            offset: Some(offset),
            data: Vec::new(),
        });
        self
    }

    /// Removes every tensor with this name.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for Entry { key, value_type, value } in &self.metadata {
            push_string(&mut file, key.as_bytes());
            file.extend(value_type.to_le_bytes());
            file.extend(value);
        }
        let mut place = 0;
        for Tensor {
            name,
            dimensions,
            kind,
            offset,
            data,
        } in &self.tensors
        {
            push_string(&mut file, name.as_bytes());
            file.extend((dimensions.len() as u32).to_le_bytes());
            file.extend(dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.unwrap_or(place as u64).to_le_bytes());
            place = (place + data.len()).next_multiple_of(self.alignment);
        }
        for Tensor { data, .. } in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(data);
        }
        file
    }

    /// Writes the file.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        let path = path.as_ref();
        std::fs::write(path, self.to_bytes()).map_err(|source| GgufError::Write {
            path: path.to_owned(),
            source,
        })
    }
}

fn push_string(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
}

fn array_head(element_type: u32, len: usize) -> Vec<u8> {
    let mut bytes = element_type.to_le_bytes().to_vec();
    bytes.extend((len as u64).to_le_bytes());
    bytes
}
