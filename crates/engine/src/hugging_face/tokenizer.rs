//! What do the tokenizer's files say, in the words of GGUF metadata?
//!
//! Two kinds of `tokenizer.json` are understood: byte-level BPE, and BPE over characters that falls back to bytes, which
//! is what sentencepiece models become. How text is cut and where a space goes in front has no name there, as it has in
//! GGUF; it is kept under keys of our own (`tokenizer::keys`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::config::{Config, TokenIds};
use super::{FolderError, optional_json, read_json};
use crate::gguf::GgufWriter;
use crate::tokenizer::keys;

/// Kinds of tokens, as the format numbers them.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// `tokenizer.json`.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are those of the file")]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// Newer files write the two sides apart.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Apart(String, String),
    Joined(String),
}

impl Merge {
    fn sides(&self) -> Option<(&str, &str)> {
        match self {
            Self::Apart(left, right) => Some((left, right)),
            Self::Joined(rule) => rule.split_once(' '),
        }
    }
}

/// `tokenizer_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    add_bos_token: Option<bool>,
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    chat_template: Option<Value>,
}

/// `generation_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Generation {
    eos_token_id: Option<TokenIds>,
}

/// Writes vocabulary, rules, special tokens and template.
pub(super) fn describe(folder: &Path, config: &Config, header: &mut GgufWriter) -> Result<(), FolderError> {
    let file: TokenizerFile = read_json(folder, "tokenizer.json")?;
    let settings: Settings = optional_json(folder, "tokenizer_config.json")?.unwrap_or_default();
    let generation: Generation = optional_json(folder, "generation_config.json")?.unwrap_or_default();
    file.describe(header)?;

    let find = |token: &Option<Value>| file.id_of(text_of(token.as_ref()?)?);
    let first = |ids: &Option<TokenIds>| ids.as_ref()?.as_slice().first().copied();
    let bos = find(&settings.bos_token).or(first(&config.bos_token_id));
    let eos = find(&settings.eos_token).or(first(&config.eos_token_id));
    for (key, id) in [("bos", bos), ("eos", eos)] {
        if let Some(id) = id {
            header.u32(&format!("tokenizer.ggml.{key}_token_id"), id);
        }
    }
    let ends: Vec<i32> = [&generation.eos_token_id, &config.eos_token_id]
        .into_iter()
        .flatten()
        .flat_map(|ids| ids.as_slice().iter().map(|&id| id as i32))
        .collect();
    header.i32s(keys::ENDS, &ends);
    let adds_bos = match &file.post_processor {
        Some(processor) => bos.is_some() && begins_with_special(processor),
        None => settings.add_bos_token.unwrap_or(false),
    };
    header.bool("tokenizer.ggml.add_bos_token", adds_bos);
    if let Some(template) = chat_template(folder, &settings)? {
        header.string("tokenizer.chat_template", &template);
    }
    Ok(())
}

impl TokenizerFile {
    fn describe(&self, header: &mut GgufWriter) -> Result<(), FolderError> {
        let model = &self.model;
        if model.kind.as_deref().unwrap_or("BPE") != "BPE" {
            let kind = model.kind.as_deref().unwrap_or_default();
            return Err(unsupported(format!("its model is `{kind}`, not BPE")));
        }
        let affix = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        if affix(&model.continuing_subword_prefix) || affix(&model.end_of_word_suffix) {
            return Err(unsupported("it marks the parts of words"));
        }
        let steps = steps(self.pre_tokenizer.as_ref(), "pretokenizers");
        let is_byte_level = steps.iter().any(|step| step["type"] == "ByteLevel");
        let (texts, kinds) = self.vocabulary(is_byte_level)?;
        header
            .strings("tokenizer.ggml.tokens", &texts)
            .i32s("tokenizer.ggml.token_type", &kinds);
        let sides: Vec<(&str, &str)> = model.merges.iter().filter_map(Merge::sides).collect();
        if sides.len() != model.merges.len() {
            return Err(unsupported("a merge rule has not two sides"));
        }
        if is_byte_level {
            let (patterns, composes) = (word_patterns(&steps)?, self.byte_level_normalizer()?);
            let rules: Vec<String> = sides.iter().map(|(left, right)| format!("{left} {right}")).collect();
            header
                .string("tokenizer.ggml.model", "gpt2")
                .strings("tokenizer.ggml.merges", &rules)
                .strings(keys::PATTERNS, &patterns)
                .bool(keys::WHOLE_WORDS, model.ignore_merges)
                .bool(keys::COMPOSES, composes);
            return Ok(());
        }
        if !model.byte_fallback {
            return Err(unsupported("it is neither byte-level nor falls back to bytes"));
        }
        let (prefix, splits) = self.spaces(&steps)?;
        let flat: Vec<&str> = sides.iter().flat_map(|&(left, right)| [left, right]).collect();
        header
            .string("tokenizer.ggml.model", "llama")
            .strings(keys::MERGE_SIDES, &flat)
            .string(keys::SPACE_PREFIX, prefix)
            .bool(keys::SPLITS_WORDS, splits)
            .bool(keys::WHOLE_WORDS, model.ignore_merges);
        Ok(())
    }

    /// Texts and kinds of all tokens in order; holes in the numbering are unused.
    fn vocabulary(&self, is_byte_level: bool) -> Result<(Vec<String>, Vec<i32>), FolderError> {
        let vocabulary: BTreeMap<String, u32> = serde_json::from_value(self.model.vocab.clone())
            .map_err(|_| unsupported("its vocabulary is not a map from texts to numbers"))?;
        let added = self.added_tokens.iter().map(|token| token.id);
        let last = vocabulary.values().copied().chain(added).max();
        let length = last.map_or(0, |last| last as usize + 1);
        if length > vocabulary.len() + self.added_tokens.len() + (1 << 20) {
            return Err(unsupported("its numbers leave too many holes"));
        }
        let mut texts = vec![String::new(); length];
        let mut kinds = vec![UNUSED; length];
        for (text, id) in vocabulary {
            let is_byte = !is_byte_level && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
            kinds[id as usize] = if is_byte {
                BYTE
            } else if self.model.unk_token.as_deref() == Some(&text) {
                UNKNOWN
            } else {
                NORMAL
            };
            texts[id as usize] = text;
        }
        for token in &self.added_tokens {
            if token.lstrip || token.rstrip || token.single_word {
                let what = format!(
                    "the added token `{}` takes spaces or word borders with it",
                    token.content
                );
                return Err(unsupported(what));
            }
            kinds[token.id as usize] = if token.special { CONTROL } else { USER_DEFINED };
            texts[token.id as usize].clone_from(&token.content);
        }
        Ok((texts, kinds))
    }

    fn id_of(&self, text: &str) -> Option<u32> {
        let added = self.added_tokens.iter().find(|token| token.content == text);
        added
            .map(|token| token.id)
            .or_else(|| u32::try_from(self.model.vocab.get(text)?.as_u64()?).ok())
    }

    /// Whether characters are composed (NFC) before anything else.
    fn byte_level_normalizer(&self) -> Result<bool, FolderError> {
        let mut composes = false;
        for step in steps(self.normalizer.as_ref(), "normalizers") {
            match step["type"].as_str() {
                Some("NFC") => composes = true,
                other => return Err(unsupported_step("normalizer", other)),
            }
        }
        Ok(composes)
    }

    /// Where a space goes in front, and whether text is split before spaces.
    fn spaces(&self, steps: &[&Value]) -> Result<(&'static str, bool), FolderError> {
        let mut prefix = keys::NEVER;
        let mut marks = false;
        for step in self::steps(self.normalizer.as_ref(), "normalizers") {
            match step["type"].as_str() {
                Some("Prepend") if step["prepend"] == "▁" => prefix = keys::PREPENDED,
                Some("Replace") if step["pattern"]["String"] == " " && step["content"] == "▁" => marks = true,
                other => return Err(unsupported_step("normalizer", other)),
            }
        }
        let mut splits = false;
        for step in steps {
            match step["type"].as_str() {
                // Nothing is left to split at.
                Some("Split") if marks && step["pattern"]["String"] == " " => {}
                Some("Metaspace") if step["replacement"] == "▁" => {
                    marks = true;
                    splits = step["split"].as_bool().unwrap_or(true);
                    let adds = step["add_prefix_space"].as_bool().unwrap_or(true);
                    prefix = match step["prepend_scheme"].as_str() {
                        Some("first") => keys::FIRST,
                        Some("always") => keys::ALWAYS,
                        None if adds => keys::ALWAYS,
                        Some("never") | None => keys::NEVER,
                        other => return Err(unsupported_step("prepend_scheme", other)),
                    };
                }
                other => return Err(unsupported_step("pre_tokenizer", other)),
            }
        }
        if !marks {
            return Err(unsupported("it does not mark spaces"));
        }
        Ok((prefix, splits))
    }
}

/// The steps of a sequence, or the one step that there is.
fn steps<'a>(value: Option<&'a Value>, members: &str) -> Vec<&'a Value> {
    match value {
        None | Some(Value::Null) => Vec::new(),
        Some(sequence) if sequence["type"] == "Sequence" => {
            let members = sequence[members].as_array();
            members
                .into_iter()
                .flatten()
                .flat_map(|step| steps(Some(step), ""))
                .collect()
        }
        Some(step) => vec![step],
    }
}

/// The patterns that text is cut by, one after the other.
fn word_patterns(steps: &[&Value]) -> Result<Vec<String>, FolderError> {
    let mut patterns = Vec::new();
    for step in steps {
        match step["type"].as_str() {
            Some("Split") => {
                let (behavior, inverted) = (step["behavior"].as_str(), step["invert"] == true);
                // What a pattern that matches everything does not match is not there to be removed.
                if !matches!((behavior, inverted), (Some("Isolated"), _) | (Some("Removed"), true)) {
                    return Err(unsupported_step("Split", behavior));
                }
                match (step["pattern"]["Regex"].as_str(), step["pattern"]["String"].as_str()) {
                    (Some(regex), _) => patterns.push(regex.to_owned()),
                    (None, Some(text)) => patterns.push(fancy_regex::escape(text).into_owned()),
                    (None, None) => return Err(unsupported("it splits at what is neither text nor pattern")),
                }
            }
            Some("Digits") => {
                let single = step["individual_digits"] == true;
                patterns.push(if single { r"\p{N}" } else { r"\p{N}+" }.to_owned());
            }
            Some("ByteLevel") => {
                if step["add_prefix_space"] == true {
                    return Err(unsupported("it puts a space before every text"));
                }
                if step["use_regex"].as_bool().unwrap_or(true) {
                    patterns.push(keys::BYTE_LEVEL_PATTERN.to_owned());
                }
            }
            other => return Err(unsupported_step("pre_tokenizer", other)),
        }
    }
    Ok(patterns)
}

/// Whether the template of a single text starts with a special token.
fn begins_with_special(processor: &Value) -> bool {
    let templates = steps(Some(processor), "processors");
    templates
        .iter()
        .any(|step| step["type"] == "TemplateProcessing" && step["single"][0].get("SpecialToken").is_some())
}

/// `chat_template.jinja`, or what `tokenizer_config.json` has: one template, or several with names.
fn chat_template(folder: &Path, settings: &Settings) -> Result<Option<String>, FolderError> {
    let path = folder.join("chat_template.jinja");
    if path.exists() {
        let read = std::fs::read_to_string(&path);
        return read.map(Some).map_err(|source| FolderError::Read { path, source });
    }
    Ok(match &settings.chat_template {
        Some(Value::String(template)) => Some(template.clone()),
        Some(Value::Array(named)) => named
            .iter()
            .find(|template| template["name"] == "default")
            .and_then(|template| template["template"].as_str())
            .map(str::to_owned),
        _ => None,
    })
}

/// The text of a token that is written alone or with how it is matched.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

fn unsupported(what: impl Into<String>) -> FolderError {
    FolderError::Tokenizer { what: what.into() }
}

fn unsupported_step(place: &str, kind: Option<&str>) -> FolderError {
    unsupported(format!("its {place} is `{}`", kind.unwrap_or("of no type")))
}
