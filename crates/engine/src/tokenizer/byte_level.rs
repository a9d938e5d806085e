//! Byte-level BPE: tokens are byte strings, joined by ranked merge rules.

use std::hash::BuildHasherDefault;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::gguf::Gguf;

use super::hash::FastMap;
use super::merge::{Join, Merger, Piece};
use super::pretokenizer::PreTokenizer;
use super::vocabulary::{ByteAlphabet, MOST_ENTRIES, RawTokens, TokenBytes, TokenKind};
use super::{TokenizerError, keys};

const MERGES: &str = "tokenizer.ggml.merges";

/// Byte-level BPE. Tokens are known by their bytes; texts that only occur inside merge rules get numbers above the
/// vocabulary.
pub(super) struct ByteLevel {
    pub(super) words: PreTokenizer,
    /// Whether characters are composed first.
    composes: bool,
    /// Tokens by their bytes, for words taken whole.
    tokens: FastMap<Box<[u8]>, u32>,
    merges: FastMap<(u32, u32), Join>,
    byte_tokens: [u32; 256],
    vocabulary: u32,
    /// Bytes of the numbers above the vocabulary.
    intermediate: TokenBytes,
}

impl ByteLevel {
    pub(super) fn read(file: &Gguf, raw: &RawTokens<'_>, bytes: &mut TokenBytes) -> Result<Self, TokenizerError> {
        let words = PreTokenizer::of(file)?;
        let rules = file
            .strings(MERGES)?
            .ok_or_else(|| TokenizerError::MissingKey { key: MERGES.to_owned() })?;
        let rule_count = rules.size_hint().1.unwrap_or(0);
        if rule_count > MOST_ENTRIES {
            return Err(TokenizerError::TooMany {
                key: MERGES.to_owned(),
                count: rule_count,
            });
        }
        let alphabet = ByteAlphabet::new();
        let vocabulary = raw.texts.len() as u32;
        let mut tokens: FastMap<Box<[u8]>, u32> =
            FastMap::with_capacity_and_hasher(raw.texts.len(), BuildHasherDefault::default());
        let mut decoded = Vec::new();
        for (id, (text, kind)) in raw.texts.iter().zip(&raw.kinds).enumerate() {
            if *kind != TokenKind::Normal {
                bytes.push(if *kind == TokenKind::Unused { b"" } else { text });
                continue;
            }
            decoded.clear();
            let pure = alphabet.decode(text, &mut decoded);
            bytes.push(&decoded);
            // A token with characters outside the alphabet can be produced by the model but not by any text.
            if pure {
                tokens.insert(decoded.as_slice().into(), id as u32);
            }
        }
        let mut intermediate = TokenBytes::default();
        let mut number = |text: &[u8]| -> u32 {
            if let Some(&known) = tokens.get(text) {
                return known;
            }
            let new = vocabulary + intermediate.len() as u32;
            intermediate.push(text);
            tokens.insert(text.into(), new);
            new
        };
        let byte_tokens = std::array::from_fn(|byte| number(&[byte as u8]));
        let mut merges = FastMap::with_capacity_and_hasher(rule_count, BuildHasherDefault::default());
        for (rank, rule) in rules.enumerate() {
            // The space between the two sides; a side is never empty, so it is not the first byte.
            let Some(space) = rule.iter().skip(1).position(|&byte| byte == b' ') else {
                continue;
            };
            let (left, right) = (&rule[..=space], &rule[space + 2..]);
            decoded.clear();
            let mut pure = alphabet.decode(left, &mut decoded);
            let middle = decoded.len();
            pure &= alphabet.decode(right, &mut decoded);
            if pure && middle < decoded.len() {
                let pair = (number(&decoded[..middle]), number(&decoded[middle..]));
                let join = Join {
                    rank: rank as u32,
                    token: number(&decoded),
                };
                merges.entry(pair).or_insert(join);
            }
        }
        if merges.is_empty() {
            return Err(TokenizerError::NoMerges { key: MERGES });
        }
        Ok(Self {
            words,
            composes: file.optional(keys::COMPOSES)?.unwrap_or(false),
            tokens,
            merges,
            byte_tokens,
            vocabulary,
            intermediate,
        })
    }

    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let composed: String;
        let text = if self.composes && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            composed = text.nfc().collect();
            &composed
        } else {
            text
        };
        Merger::with_local(|merger| {
            self.words
                .split(text, |word| self.encode_word(word.as_bytes(), merger, out));
        });
    }

    fn encode_word(&self, word: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        if self.words.whole_words
            && let Some(&token) = self.tokens.get(word)
            && token < self.vocabulary
        {
            out.push(token);
            return;
        }
        let pieces = word.iter().enumerate().map(|(start, &byte)| Piece {
            start,
            end: start + 1,
            token: self.byte_tokens[usize::from(byte)],
        });
        let join = |left: Piece, right: Piece| self.merges.get(&(left.token, right.token)).copied();
        merger.merge(pieces, join, |piece| {
            if piece.token < self.vocabulary {
                out.push(piece.token);
            } else {
                // Not a token itself: byte by byte, leaving out bytes the vocabulary has no token for.
                let bytes = self.intermediate.of(piece.token - self.vocabulary);
                let tokens = bytes.iter().map(|&byte| self.byte_tokens[usize::from(byte)]);
                out.extend(tokens.filter(|&token| token < self.vocabulary));
            }
        });
    }
}
