//! Why a folder is refused: one line each, naming what is wrong and what to do.

use std::path::PathBuf;

use crate::gguf::GgufError;

/// Why a Hugging Face folder could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum FolderError {
    #[error("{folder} has no {name}; give a folder with config.json, tokenizer.json and .safetensors files", folder = folder.display())]
    NoFile { folder: PathBuf, name: String },
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not what it should be; download it again", path = path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("models of type `{model_type}` are not supported; supported are: {supported}")]
    ModelType { model_type: String, supported: String },
    #[error("config.json has no `{key}`, without which the model cannot be run; download it again")]
    MissingKey { key: &'static str },
    #[error("this model uses {what}, which is not supported; choose a model without it")]
    Unsupported { what: String },
    #[error("{path} is damaged ({reason}); download it again", path = path.display())]
    Shard { path: PathBuf, reason: String },
    #[error(
        "model.safetensors.index.json puts tensor `{tensor}` into {shard}, which does not have it; download both again"
    )]
    NotInShard { tensor: String, shard: String },
    #[error("tensor `{tensor}` is in {shard}, but not in model.safetensors.index.json; download both again")]
    NotInIndex { tensor: String, shard: String },
    #[error(
        "tensor `{tensor}` has type {dtype}, which is not supported (F32, F16, BF16 are); choose another version of the model"
    )]
    TensorType { tensor: String, dtype: String },
    #[error("experts of `{stack}` differ in shape or type, or one is missing; download the model again")]
    UnevenExperts { stack: String },
    #[error(
        "config.json says that the output has weights of its own, but there is no `lm_head.weight`; download the model again"
    )]
    NoOutput,
    #[error("tokenizer.json is of a kind that is not supported: {what}; choose another model, or one in GGUF format")]
    Tokenizer { what: String },
    #[error("{folder} does not make a model", folder = folder.display())]
    Contents { folder: PathBuf, source: Box<GgufError> },
}
