//! How is a scorer kept? As a safetensors file.
//!
//! Tensors `query` and `key`, `[64][columns]` in f32; while it can be resumed `optimiser.mean` and `optimiser.square`
//! beside them, `[parameters]`. The metadata key `inertiakv` is a JSON object that says of which model and which training
//! it is.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};

use super::optimiser::AdamW;
use super::{LearnedScorer, ScorerError, ScorerShape, TrainingRecord, WIDTH};

/// Most bytes of a file: more than the largest model's scorer takes.
const MOST_BYTES: u64 = 1 << 29;
/// The one key, so that the same content is the same bytes: several have no order in the file format.
const METADATA: &str = "inertiakv";

#[derive(Serialize, Deserialize)]
struct Metadata {
    model: String,
    #[serde(flatten)]
    shape: ScorerShape,
    training: TrainingRecord,
}

impl LearnedScorer {
    /// Reads a scorer that [`Training::save`](super::Training::save) wrote.
    ///
    /// # Errors
    /// If the file cannot be read, or is not such a scorer, whole and of finite numbers.
    pub fn load(path: &Path) -> Result<Self, ScorerError> {
        load(path).map(|(scorer, _)| scorer)
    }
}

/// The scorer of a file, and the state of its optimiser if that is there.
pub(super) fn load(path: &Path) -> Result<(LearnedScorer, Option<AdamW>), ScorerError> {
    let read = |source| ScorerError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(read)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(read)?;
    parse(&bytes).map_err(|what| ScorerError::Damaged {
        path: path.to_owned(),
        what,
    })
}

fn parse(bytes: &[u8]) -> Result<(LearnedScorer, Option<AdamW>), String> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("it has more than {} MiB", MOST_BYTES >> 20));
    }
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let metadata = header.metadata().as_ref().and_then(|metadata| metadata.get(METADATA));
    let metadata = metadata.ok_or_else(|| format!("its metadata has no `{METADATA}`"))?;
    let Metadata { model, shape, training } =
        serde_json::from_str(metadata).map_err(|error| format!("its metadata `{METADATA}`: {error}"))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let columns = |heads: usize| heads.checked_mul(shape.head_dim).ok_or("its heads are too many");
    let mut parameters = numbers(&tensors, "query", &[WIDTH, columns(shape.heads)?])?;
    parameters.extend(numbers(&tensors, "key", &[WIDTH, columns(shape.kv_heads)?])?);
    let optimiser = if tensors.names().contains(&"optimiser.mean") {
        Some(AdamW {
            mean: numbers(&tensors, "optimiser.mean", &[parameters.len()])?,
            square: numbers(&tensors, "optimiser.square", &[parameters.len()])?,
        })
    } else {
        None
    };
    let scorer = LearnedScorer {
        model,
        shape,
        parameters,
        training,
    };
    Ok((scorer, optimiser))
}

fn numbers(tensors: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let tensor = tensors.tensor(name).map_err(|error| error.to_string())?;
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        return Err(format!(
            "tensor `{name}` is {:?} {:?} instead of F32 {shape:?}",
            tensor.dtype(),
            tensor.shape()
        ));
    }
    let (words, _) = tensor.data().as_chunks::<4>();
    let numbers: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    if numbers.iter().all(|number| number.is_finite()) {
        Ok(numbers)
    } else {
        Err(format!("tensor `{name}` has numbers that are not finite"))
    }
}

pub(super) fn save(path: &Path, scorer: &LearnedScorer, optimiser: Option<&AdamW>) -> Result<(), ScorerError> {
    replace(path, &encode(scorer, optimiser)).map_err(|source| ScorerError::Write {
        path: path.to_owned(),
        source,
    })
}

fn encode(scorer: &LearnedScorer, optimiser: Option<&AdamW>) -> Vec<u8> {
    let metadata = Metadata {
        model: scorer.model.clone(),
        shape: scorer.shape,
        training: scorer.training.clone(),
    };
    let metadata = serde_json::to_string(&metadata).expect("plain strings and finite numbers");
    let (query, key) = scorer.matrices();
    let [query_columns, key_columns] = scorer.shape.columns();
    let mut parts = vec![
        ("query", vec![WIDTH, query_columns], bytes(query)),
        ("key", vec![WIDTH, key_columns], bytes(key)),
    ];
    if let Some(AdamW { mean, square }) = optimiser {
        parts.push(("optimiser.mean", vec![mean.len()], bytes(mean)));
        parts.push(("optimiser.square", vec![square.len()], bytes(square)));
    }
    let views = parts.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many numbers as the shape says");
        (*name, view)
    });
    let metadata = [(METADATA.to_owned(), metadata)].into_iter().collect();
    serialize(views, Some(metadata)).expect("names and shapes that can be written")
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Writes a file beside `path` and gives it that name when it is whole.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(".partial");
    let partial: PathBuf = path.with_file_name(name);
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    });
    if written.is_err() {
        // Half a file is of no use; that it cannot be removed is not the error to report.
        let _ = fs::remove_file(&partial);
    }
    written
}
