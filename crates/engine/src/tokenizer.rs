//! Which numbers does the model read for this text? Tokenizers from GGUF metadata.
//!
//! Two families: byte-level BPE (`tokenizer.ggml.model` is `gpt2`; merge rules, and a named way of cutting text into
//! words) and sentencepiece (`llama`; scores, spaces written as U+2581, bytes where there is no token). Special tokens
//! are recognised only where the caller allows it, so that a user's text cannot end its own turn.

mod byte_level;
mod hash;
pub(crate) mod keys;
mod merge;
mod pretokenizer;
mod sentence_piece;
mod special;
mod stream;
mod vocabulary;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::gguf::{Gguf, GgufError};

use byte_level::ByteLevel;
use sentence_piece::{SentencePiece, unmark_spaces};
use special::{Part, SpecialTokens};
pub use stream::StreamDecoder;
pub(crate) use vocabulary::ByteAlphabet;
use vocabulary::{RawTokens, TokenBytes, TokenKind};

const MODEL: &str = "tokenizer.ggml.model";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";

/// Metadata keys of further tokens that end a turn or a document.
const END_KEYS: [&str; 6] = [
    EOS,
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Texts of tokens that end a turn or a document whatever the metadata says: files often name only one of several.
const END_TEXTS: [&str; 14] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// Texts that end a turn only when the file marks them as control tokens; as plain text they are ordinary mark-up.
const END_CONTROL_TEXTS: [&str; 4] = ["</s>", "<eos>", "[EOS]", "<reponame>"];

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages are the documentation, the fields their blanks")]
pub enum TokenizerError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("metadata key `{key}` is missing, so the file has no complete tokenizer; convert the model again")]
    MissingKey { key: String },
    #[error("the tokenizer's vocabulary is empty; the file is damaged")]
    Empty,
    #[error("metadata key `{key}` has no usable rule, so text would fall apart into bytes; convert the model again")]
    NoMerges { key: &'static str },
    #[error("metadata key `{key}` has {count} entries, more than any model; the file is damaged")]
    TooMany { key: String, count: usize },
    #[error("metadata key `{key}` has {found} entries for {expected} tokens; the file is damaged")]
    Lengths { key: String, found: usize, expected: usize },
    #[error("metadata key `{key}` names token {id}, but there are only {tokens}; the file is damaged")]
    OutsideVocabulary { key: String, id: u32, tokens: usize },
    #[error("the pattern `{pattern}` that this model splits text by cannot be used; choose another model")]
    Pattern {
        pattern: String,
        source: Box<fancy_regex::Error>,
    },
    #[error("metadata key `{key}` is `{value}`, which is not known; the file is newer than this program")]
    UnknownValue { key: &'static str, value: String },
    #[error("tokenizers of type `{name}` are not supported (`gpt2` and `llama` are); choose another model")]
    UnknownModel { name: String },
    #[error(
        "the way this model splits text, `{name}`, is not known: guessing would give it wrong tokens; choose another \
         model or ask for `{name}` to be added"
    )]
    UnknownPreTokenizer { name: String },
}

impl TokenizerError {
    fn lengths(key: &str, found: usize, expected: usize) -> Self {
        Self::Lengths {
            key: key.to_owned(),
            found,
            expected,
        }
    }
}

/// A stretch of text to encode and whether special tokens in it are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'t> {
    /// The text.
    pub text: &'t str,
    /// Whether control tokens spelled out in it become those tokens (templates) or stay text (what users write).
    pub parse_special: bool,
}

/// Turns text into tokens and back. Clones share everything.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    bytes: TokenBytes,
    kinds: Vec<TokenKind>,
    special: SpecialTokens,
    model: Model,
    bos: Option<u32>,
    eos: Option<u32>,
    ends: BTreeSet<u32>,
    adds_bos: bool,
    space_prefix: SpacePrefix,
}

/// Which runs of text get a space in front, as the vocabulary writes it; [`keys`] explains all but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpacePrefix {
    Never,
    First,
    Always,
    Prepended,
    /// As sentencepiece and GGUF have it: at the beginning and after structure, but not after a token that is text.
    Sentence,
}

impl SpacePrefix {
    fn read(file: &Gguf, adds_by_default: bool) -> Result<Self, TokenizerError> {
        let Some(named) = file.optional::<&str>(keys::SPACE_PREFIX)? else {
            let adds = file
                .optional("tokenizer.ggml.add_space_prefix")?
                .unwrap_or(adds_by_default);
            return Ok(if adds { Self::Sentence } else { Self::Never });
        };
        match named {
            keys::NEVER => Ok(Self::Never),
            keys::FIRST => Ok(Self::First),
            keys::ALWAYS => Ok(Self::Always),
            keys::PREPENDED => Ok(Self::Prepended),
            other => Err(TokenizerError::UnknownValue {
                key: keys::SPACE_PREFIX,
                value: other.to_owned(),
            }),
        }
    }
}

enum Model {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocabulary", &self.vocabulary())
            .field("bos", &self.inner.bos)
            .field("eos_tokens", &self.inner.ends)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer a model file describes.
    pub fn from_gguf(file: &Gguf) -> Result<Self, TokenizerError> {
        let name: &str = file
            .optional(MODEL)?
            .ok_or_else(|| TokenizerError::MissingKey { key: MODEL.to_owned() })?;
        let mut raw = RawTokens::read(file)?;
        mark_ends_as_control(&mut raw);
        let mut bytes = TokenBytes::default();
        let (model, adds_bos_by_default, adds_space_by_default) = match name {
            "gpt2" => {
                let model = ByteLevel::read(file, &raw, &mut bytes)?;
                let adds_bos = model.words.adds_bos;
                (Model::ByteLevel(Box::new(model)), adds_bos, false)
            }
            "llama" => {
                let model = SentencePiece::read(file, &raw, &mut bytes)?;
                (Model::SentencePiece(Box::new(model)), true, true)
            }
            other => return Err(TokenizerError::UnknownModel { name: other.to_owned() }),
        };
        let mut special = SpecialTokens::default();
        for (id, (text, kind)) in raw.texts.iter().zip(&raw.kinds).enumerate() {
            match kind {
                TokenKind::Control | TokenKind::Unknown => special.insert(text, id as u32, true),
                TokenKind::UserDefined if matches!(model, Model::SentencePiece(_)) => {
                    special.insert(&unmark_spaces(text), id as u32, false);
                }
                TokenKind::UserDefined => special.insert(text, id as u32, false),
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => {}
            }
        }
        let mut ends = BTreeSet::new();
        for key in END_KEYS {
            ends.extend(token_key(file, key, raw.texts.len())?);
        }
        for id in file.numbers(keys::ENDS)?.unwrap_or_default() {
            ends.extend(inside(keys::ENDS, id as u32, raw.texts.len())?);
        }
        ends.extend(
            END_TEXTS
                .iter()
                .chain(&END_CONTROL_TEXTS)
                .filter_map(|text| special.find(text)),
        );
        let bos = token_key(file, BOS, raw.texts.len())?;
        let adds_bos = file
            .optional("tokenizer.ggml.add_bos_token")?
            .unwrap_or(adds_bos_by_default);
        if adds_bos && bos.is_none() {
            tracing::warn!("the file asks for a BOS token but does not name one ({BOS}): none is added");
        }
        Ok(Self {
            inner: Arc::new(Inner {
                bytes,
                kinds: raw.kinds,
                special,
                model,
                bos,
                eos: token_key(file, EOS, raw.texts.len())?,
                ends,
                adds_bos: adds_bos && bos.is_some(),
                space_prefix: SpacePrefix::read(file, adds_space_by_default)?,
            }),
        })
    }

    /// The tokens of a text, without BOS. Control tokens spelled out in it are recognised if `parse_special` is set,
    /// and are ordinary text otherwise.
    #[must_use]
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        self.encode_segments(&[Segment { text, parse_special }])
    }

    /// The tokens of consecutive segments as one text: text runs on over their borders, but no control token does.
    #[must_use]
    pub fn encode_segments(&self, segments: &[Segment<'_>]) -> Vec<u32> {
        self.encode_parts(segments, String::push_str)
    }

    /// Breaks up every control token spelled out in `text`, and every beginning of one at its end, with `mark`, which
    /// must not occur in it. [`Tokenizer::encode_marked`] is the other half.
    pub(crate) fn mark_control(&self, text: &str, mark: char) -> String {
        let mut broken = String::with_capacity(text.len());
        for (at, character) in text.char_indices() {
            broken.push(character);
            if self.inner.special.structure_may_start(&text[at..]) {
                broken.push(mark);
            }
        }
        broken
    }

    /// Encodes with control tokens recognised, except those that `mark` breaks up; the marks are left out.
    pub(crate) fn encode_marked(&self, text: &str, mark: char) -> Vec<u32> {
        self.encode_parts(
            &[Segment {
                text,
                parse_special: true,
            }],
            |run, text| run.extend(text.split(mark)),
        )
    }

    fn encode_parts(&self, segments: &[Segment<'_>], append: impl Fn(&mut String, &str)) -> Vec<u32> {
        let mut tokens = Vec::new();
        let mut run = String::new();
        let mut follows_text = false;
        for segment in segments {
            self.inner
                .special
                .partition(segment.text, segment.parse_special, |part| match part {
                    Part::Text(text) => append(&mut run, text),
                    Part::Token(id) => {
                        self.encode_run(&run, follows_text, &mut tokens);
                        run.clear();
                        tokens.push(id);
                        follows_text = self.is_text(id);
                    }
                });
        }
        self.encode_run(&run, follows_text, &mut tokens);
        tokens
    }

    /// A run follows a special token or begins the text: both may be where a space prefix goes.
    fn encode_run(&self, run: &str, follows_text: bool, tokens: &mut Vec<u32>) {
        if run.is_empty() {
            return;
        }
        match &self.inner.model {
            Model::ByteLevel(model) => model.encode(run, tokens),
            Model::SentencePiece(model) => {
                let is_first = tokens.is_empty();
                let with_space = match self.inner.space_prefix {
                    SpacePrefix::Never => false,
                    SpacePrefix::First => is_first && !run.starts_with(' '),
                    SpacePrefix::Always => !run.starts_with(' '),
                    SpacePrefix::Prepended => true,
                    SpacePrefix::Sentence => !follows_text,
                };
                model.encode(run, with_space, tokens);
            }
        }
    }

    /// The text of tokens, without control tokens; broken characters become U+FFFD. Where the vocabulary puts a space
    /// before every text, that space is taken off, so that a text survives the round trip; a continuation, which has
    /// no such space, is decoded by [`Tokenizer::stream`].
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        let text = self.join(tokens.iter().copied().filter(|&token| self.is_text(token)));
        match text.strip_prefix(' ') {
            Some(stripped) if self.inner.space_prefix != SpacePrefix::Never => stripped.to_owned(),
            _ => text,
        }
    }

    /// The text of tokens with control tokens spelled out, for people who look at prompts.
    #[must_use]
    pub fn decode_special(&self, tokens: &[u32]) -> String {
        self.join(tokens.iter().copied())
    }

    fn join(&self, tokens: impl Iterator<Item = u32>) -> String {
        let bytes: Vec<u8> = tokens.flat_map(|token| self.token_bytes(token)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A decoder for tokens that come one by one.
    #[must_use]
    pub fn stream(&self) -> StreamDecoder {
        StreamDecoder::new(self.clone())
    }

    /// The bytes a token stands for, not necessarily whole characters; the name of a control token. Empty for a number
    /// outside the vocabulary (models may have more logits than tokens).
    #[must_use]
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.inner.bytes.of(token)
    }

    /// Whether a token is structure, not text. Numbers outside the vocabulary are not.
    #[must_use]
    pub fn is_control(&self, token: u32) -> bool {
        matches!(
            self.inner.kinds.get(token as usize),
            Some(TokenKind::Control | TokenKind::Unknown)
        )
    }

    /// Whether a token shows up in decoded text.
    fn is_text(&self, token: u32) -> bool {
        matches!(
            self.inner.kinds.get(token as usize),
            Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte)
        )
    }

    /// The special token spelled like this, if the vocabulary has it.
    #[must_use]
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.inner.special.find(text)
    }

    /// The token a text begins with, if the file names one; see [`Tokenizer::with_bos`].
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// Whether the model expects its input to begin with the BOS token.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.inner.adds_bos
    }

    /// The end-of-text token the file names. Generation ends at any of [`Tokenizer::eos_tokens`].
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// Every token that ends a turn or a text.
    #[must_use]
    pub fn eos_tokens(&self) -> &BTreeSet<u32> {
        &self.inner.ends
    }

    /// Whether a token ends a turn or a text.
    #[must_use]
    pub fn is_eos(&self, token: u32) -> bool {
        self.inner.ends.contains(&token)
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.inner.bytes.len()
    }

    /// Puts the BOS token in front if the model expects one and it is not there yet (templates often write it). Of
    /// several at the front one is left.
    #[must_use]
    pub fn with_bos(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let Some(bos) = self.inner.bos.filter(|_| self.inner.adds_bos) else {
            return tokens;
        };
        let present = tokens.iter().take_while(|&&token| token == bos).count();
        if present == 0 {
            tokens.insert(0, bos);
        } else {
            tokens.drain(..present - 1);
        }
        tokens
    }
}

/// Files sometimes mark a well-known end token as ordinary text; it must not come out of text, nor be shown.
fn mark_ends_as_control(raw: &mut RawTokens<'_>) {
    for (text, kind) in raw.texts.iter().zip(&mut raw.kinds) {
        if *kind != TokenKind::Control && END_TEXTS.iter().any(|end| end.as_bytes() == *text) {
            *kind = TokenKind::Control;
        }
    }
}

fn token_key(file: &Gguf, key: &str, tokens: usize) -> Result<Option<u32>, TokenizerError> {
    match file.optional::<u32>(key)? {
        Some(id) => inside(key, id, tokens),
        None => Ok(None),
    }
}

fn inside(key: &str, id: u32, tokens: usize) -> Result<Option<u32>, TokenizerError> {
    if (id as usize) < tokens {
        return Ok(Some(id));
    }
    Err(TokenizerError::OutsideVocabulary {
        key: key.to_owned(),
        id,
        tokens,
    })
}
