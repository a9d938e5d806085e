//! Sentencepiece BPE: spaces are part of the text, and the best-scored token is made first.

use std::hash::BuildHasherDefault;

use crate::gguf::Gguf;

use super::TokenizerError;
use super::hash::FastMap;
use super::merge::{Join, Merger, Piece};
use super::vocabulary::{RawTokens, SPACE_MARK, TokenBytes, TokenKind, byte_token};

const SCORES: &str = "tokenizer.ggml.scores";

/// Sentencepiece BPE: the neighbours whose joint token has the best score are joined.
pub(super) struct SentencePiece {
    tokens: FastMap<Box<[u8]>, u32>,
    /// Rank of each token: lower for better scores.
    ranks: Vec<u32>,
    byte_tokens: [Option<u32>; 256],
}

impl SentencePiece {
    pub(super) fn read(file: &Gguf, raw: &RawTokens<'_>, bytes: &mut TokenBytes) -> Result<Self, TokenizerError> {
        let scores = file
            .numbers(SCORES)?
            .ok_or_else(|| TokenizerError::MissingKey { key: SCORES.to_owned() })?;
        if scores.len() != raw.texts.len() {
            return Err(TokenizerError::lengths(SCORES, scores.len(), raw.texts.len()));
        }
        let mut tokens = FastMap::with_capacity_and_hasher(raw.texts.len(), BuildHasherDefault::default());
        let mut byte_tokens = [None; 256];
        for (id, (&text, kind)) in raw.texts.iter().zip(&raw.kinds).enumerate() {
            let byte = byte_token(text);
            match (kind, byte) {
                (TokenKind::Byte, Some(byte)) => {
                    bytes.push(&[byte]);
                    byte_tokens[usize::from(byte)] = Some(id as u32);
                }
                (TokenKind::Normal, _) => {
                    bytes.push(&unmark_spaces(text));
                    // Files without token types have byte tokens that look like text.
                    if let Some(byte) = byte {
                        byte_tokens[usize::from(byte)].get_or_insert(id as u32);
                    }
                    tokens.insert(text.into(), id as u32);
                }
                (TokenKind::Unused, _) => bytes.push(b""),
                // User-defined tokens are found beforehand, and structure must not come out of merging text.
                _ => bytes.push(text),
            }
        }
        // Equal scores share a rank, so that the leftmost pair goes first.
        let mut order: Vec<f32> = scores.iter().map(|&score| score as f32).collect();
        order.sort_unstable_by(|a, b| b.total_cmp(a));
        order.dedup_by(|a, b| a.total_cmp(b).is_eq());
        let rank = |score: f32| order.partition_point(|better| better.total_cmp(&score).is_gt()) as u32;
        let ranks = scores.iter().map(|&score| rank(score as f32)).collect();
        Ok(Self {
            tokens,
            ranks,
            byte_tokens,
        })
    }

    pub(super) fn encode(&self, text: &str, space_prefix: bool, out: &mut Vec<u32>) {
        let marked = format!("{}{text}", if space_prefix { " " } else { "" }).replace(' ', SPACE_MARK);
        let pieces = marked.char_indices().map(|(start, character)| Piece {
            start,
            end: start + character.len_utf8(),
            token: 0,
        });
        let join = |left: Piece, right: Piece| {
            let token = *self.tokens.get(&marked.as_bytes()[left.start..right.end])?;
            Some(Join {
                rank: self.ranks[token as usize],
                token,
            })
        };
        let emit = |piece: Piece| {
            let bytes = &marked.as_bytes()[piece.start..piece.end];
            match self.tokens.get(bytes) {
                Some(&token) => out.push(token),
                None => out.extend(bytes.iter().filter_map(|&byte| self.byte_tokens[usize::from(byte)])),
            }
        };
        Merger::with_local(|merger| merger.merge(pieces, join, emit));
    }
}

fn unmark_spaces(text: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(text) {
        Ok(text) => text.replace(SPACE_MARK, " ").into_bytes(),
        Err(_) => text.to_vec(),
    }
}
