//! Where do the tensors lie, and what are they called in GGUF?

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use inertiakv_kernels::mapped::MappedFile;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::{FolderError, optional_json};
use crate::config::Family;
use crate::gguf::{ForeignTensor, GgmlType};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The `.safetensors` files of a folder, mapped.
pub(super) struct Shards {
    pub(super) files: Vec<MappedFile>,
    found: Vec<Found>,
}

/// A tensor as its file describes it.
struct Found {
    name: String,
    dtype: Dtype,
    /// Outermost first.
    shape: Vec<usize>,
    file: usize,
    bytes: Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Shards {
    pub(super) fn open(folder: &Path) -> Result<Self, FolderError> {
        let index: Option<Index> = optional_json(folder, INDEX)?;
        let names: BTreeSet<&str> = match &index {
            Some(index) => index.weight_map.values().map(String::as_str).collect(),
            None if folder.join(SINGLE).exists() => BTreeSet::from([SINGLE]),
            None => {
                return Err(FolderError::NoFile {
                    folder: folder.to_owned(),
                    name: SINGLE.to_owned(),
                });
            }
        };
        let mut shards = Self {
            files: Vec::new(),
            found: Vec::new(),
        };
        for name in &names {
            let first = shards.found.len();
            shards.add(folder, name)?;
            if let Some(index) = &index {
                check_index(index, name, &shards.found[first..])?;
            }
        }
        Ok(shards)
    }

    /// Maps a file and lists its tensors. What its header says has been checked against its length then.
    fn add(&mut self, folder: &Path, name: &str) -> Result<(), FolderError> {
        let path = folder.join(name);
        // A name in an index is not a way out of the folder.
        if Path::new(name).components().count() != 1 || !path.exists() {
            return Err(FolderError::NoFile {
                folder: folder.to_owned(),
                name: name.to_owned(),
            });
        }
        let file = MappedFile::open(&path).map_err(|source| FolderError::Read {
            path: path.clone(),
            source,
        })?;
        let damaged = |error: safetensors::SafeTensorError| FolderError::Shard {
            path: path.clone(),
            reason: error.to_string(),
        };
        // Checks the whole header, the length of the file included.
        let tensors = SafeTensors::deserialize(&file).map_err(damaged)?;
        let start = file.as_ptr().addr();
        for (name, view) in tensors.iter() {
            let first = view.data().as_ptr().addr() - start;
            self.found.push(Found {
                name: name.to_owned(),
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                file: self.files.len(),
                bytes: first..first + view.data().len(),
            });
        }
        drop(tensors);
        self.files.push(file);
        Ok(())
    }

    /// The tensors under the names and in the order of dimensions that GGUF has; stacks of experts in one.
    pub(super) fn tensors(&self, family: &Family, tied: Option<bool>) -> Result<Vec<ForeignTensor>, FolderError> {
        let mut tensors = Vec::new();
        let mut stacks: BTreeMap<String, BTreeMap<usize, &Found>> = BTreeMap::new();
        let has_output = self.found.iter().any(|found| found.name.ends_with("lm_head.weight"));
        if tied == Some(false) && !has_output {
            return Err(FolderError::NoOutput);
        }
        for found in &self.found {
            match place_of(&found.name, family) {
                Place::Ignored => {}
                // Written all the same by some tools: it is the embedding once more.
                Place::Tensor(name) if name == "output.weight" && tied == Some(true) => {}
                Place::Tensor(name) => tensors.push(found.tensor(name, family.norm_offset)?),
                Place::Expert(stack, index) => {
                    stacks.entry(stack).or_default().insert(index, found);
                }
            }
        }
        for (stack, members) in stacks {
            tensors.push(stacked(&stack, &members)?);
        }
        Ok(tensors)
    }
}

impl Found {
    fn tensor(&self, name: String, norm_offset: f32) -> Result<ForeignTensor, FolderError> {
        let is_norm = name.ends_with("norm.weight");
        Ok(ForeignTensor {
            dimensions: self.shape.iter().rev().copied().collect(),
            kind: match self.dtype {
                Dtype::F32 => GgmlType::F32,
                Dtype::F16 => GgmlType::F16,
                Dtype::BF16 => GgmlType::BF16,
                other => {
                    return Err(FolderError::TensorType {
                        tensor: self.name.clone(),
                        dtype: format!("{other:?}"),
                    });
                }
            },
            places: vec![(self.file, self.bytes.clone())],
            added: if is_norm { norm_offset } else { 0.0 },
            name,
        })
    }
}

fn check_index(index: &Index, shard: &str, found: &[Found]) -> Result<(), FolderError> {
    let listed = |name: &str| index.weight_map.get(name).is_some_and(|place| place == shard);
    if let Some(stray) = found.iter().find(|found| !listed(&found.name)) {
        return Err(FolderError::NotInIndex {
            tensor: stray.name.clone(),
            shard: shard.to_owned(),
        });
    }
    let held: BTreeSet<&str> = found.iter().map(|found| found.name.as_str()).collect();
    let mut places = index.weight_map.iter();
    match places.find(|(name, place)| *place == shard && !held.contains(name.as_str())) {
        Some((name, _)) => Err(FolderError::NotInShard {
            tensor: name.clone(),
            shard: shard.to_owned(),
        }),
        None => Ok(()),
    }
}

/// Makes one tensor of the matrices of all experts.
fn stacked(name: &str, members: &BTreeMap<usize, &Found>) -> Result<ForeignTensor, FolderError> {
    let is_whole = members.keys().copied().eq(0..members.len());
    let mut members = members.values();
    let first = members.next().filter(|_| is_whole);
    let uneven = || FolderError::UnevenExperts { stack: name.to_owned() };
    let first = first.ok_or_else(uneven)?;
    let same = |member: &&&Found| member.dtype == first.dtype && member.shape == first.shape;
    if first.shape.len() != 2 || !members.clone().all(|member| same(&member)) {
        return Err(uneven());
    }
    let mut stack = first.tensor(name.to_owned(), 0.0)?;
    stack
        .places
        .extend(members.map(|member| (member.file, member.bytes.clone())));
    stack.dimensions.push(stack.places.len());
    Ok(stack)
}

/// Where a tensor goes.
enum Place {
    Tensor(String),
    /// A member of a stack.
    Expert(String, usize),
    /// Not part of the language model, or not needed.
    Ignored,
}

fn place_of(name: &str, family: &Family) -> Place {
    let is_of_images = |part: &str| name.starts_with(part) || name.starts_with(&format!("model.{part}"));
    if is_of_images("vision_tower.") || is_of_images("multi_modal_projector.") {
        return Place::Ignored;
    }
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let inner = name.strip_prefix("model.").unwrap_or(name);
    let inner = inner.strip_prefix("language_model.").unwrap_or(inner);
    let outer = match inner {
        "embed_tokens.weight" => "token_embd.weight",
        "norm.weight" => "output_norm.weight",
        "lm_head.weight" => "output.weight",
        _ => "",
    };
    if !outer.is_empty() {
        return Place::Tensor(outer.to_owned());
    }
    let in_layer = inner.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, part)) = in_layer else {
        return Place::Tensor(name.to_owned());
    };
    if part == "self_attn.rotary_emb.inv_freq" {
        return Place::Ignored;
    }
    if let Some((expert, matrix)) = part.strip_prefix("mlp.experts.").and_then(|rest| rest.split_once('.'))
        && let (Ok(expert), Some(kind)) = (expert.parse(), matrix.strip_suffix("_proj.weight"))
    {
        return Place::Expert(format!("blk.{layer}.ffn_{kind}_exps.weight"), expert);
    }
    let known = match part {
        "input_layernorm.weight" => "attn_norm.weight",
        "post_attention_layernorm.weight" if family.post_norms => "post_attention_norm.weight",
        "post_attention_layernorm.weight" | "pre_feedforward_layernorm.weight" => "ffn_norm.weight",
        "post_feedforward_layernorm.weight" => "post_ffw_norm.weight",
        "self_attn.q_norm.weight" => "attn_q_norm.weight",
        "self_attn.k_norm.weight" => "attn_k_norm.weight",
        "self_attn.q_proj.weight" => "attn_q.weight",
        "self_attn.k_proj.weight" => "attn_k.weight",
        "self_attn.v_proj.weight" => "attn_v.weight",
        "self_attn.o_proj.weight" => "attn_output.weight",
        "self_attn.q_proj.bias" => "attn_q.bias",
        "self_attn.k_proj.bias" => "attn_k.bias",
        "self_attn.v_proj.bias" => "attn_v.bias",
        "self_attn.o_proj.bias" => "attn_output.bias",
        "mlp.gate.weight" => "ffn_gate_inp.weight",
        "mlp.gate_proj.weight" => "ffn_gate.weight",
        "mlp.up_proj.weight" => "ffn_up.weight",
        "mlp.down_proj.weight" => "ffn_down.weight",
        // Unknown in GGUF too, so the error names it as the file does.
        _ => return Place::Tensor(name.to_owned()),
    };
    Place::Tensor(format!("blk.{layer}.{known}"))
}
