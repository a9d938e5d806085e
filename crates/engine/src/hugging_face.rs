//! How is a Hugging Face folder read?
//!
//! As the GGUF file that a converter would make of it: `config.json` and the tokenizer's files become metadata in memory,
//! the tensors stay where they are in mapped `.safetensors` files and get the names that GGUF gives them. Whatever comes
//! after, from checking shapes to loading weights, is the same for both formats. Three things a converter changes in the
//! numbers themselves are left to the reader: rows of query and key weights are not permuted, experts lie apart, and the
//! norms of some families lack the one that is added to them.

mod config;
mod error;
mod shards;
mod tokenizer;

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::Error;
use crate::gguf::{GgmlType, Gguf, GgufWriter};

pub use error::FolderError;

/// Opens a model: a GGUF file, or a folder with `config.json`, `.safetensors` files and `tokenizer.json`.
pub fn open_model(path: &Path) -> Result<Gguf, Error> {
    if path.is_dir() {
        Ok(open_folder(path)?)
    } else {
        Ok(Gguf::open(path)?)
    }
}

fn open_folder(folder: &Path) -> Result<Gguf, FolderError> {
    let config = config::Config::read(folder)?;
    let mut header = GgufWriter::new();
    let family = config.describe(&mut header)?;
    tokenizer::describe(folder, &config, &mut header)?;
    let shards = shards::Shards::open(folder)?;
    let tensors = shards.tensors(family.family(), config.ties_embeddings(family))?;
    if let Some(factors) = config.rope_factors()? {
        let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        header.tensor("rope_freqs.weight", &[factors.len()], GgmlType::F32, &bytes);
    }
    let file = Gguf::with_files(header.to_bytes(), shards.files, tensors);
    file.map_err(|source| FolderError::Contents {
        folder: folder.to_owned(),
        source: Box::new(source),
    })
}

/// Reads a JSON file that must be there.
fn read_json<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T, FolderError> {
    optional_json(folder, name)?.ok_or_else(|| FolderError::NoFile {
        folder: folder.to_owned(),
        name: name.to_owned(),
    })
}

/// Reads a JSON file, if it is there.
fn optional_json<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, FolderError> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(&path).map_err(|source| FolderError::Read {
        path: path.clone(),
        source,
    })?;
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|source| FolderError::Json { path, source })
}
