//! Sentencepiece BPE: spaces are part of the text, and the best-scored token is made first, or the best rule is followed
//! where the vocabulary comes with rules instead.

use std::hash::BuildHasherDefault;

use crate::gguf::{Gguf, Strings};

use super::hash::FastMap;
use super::merge::{Join, Merger, Piece};
use super::vocabulary::{RawTokens, SPACE_MARK, TokenBytes, TokenKind, byte_token};
use super::{TokenizerError, keys};

const SCORES: &str = "tokenizer.ggml.scores";

/// Sentencepiece BPE: the neighbours that join best are joined.
pub(super) struct SentencePiece {
    tokens: FastMap<Box<[u8]>, u32>,
    rule: Rule,
    /// Text is cut before every marked space.
    splits_words: bool,
    /// A word that is a token is taken whole.
    whole_words: bool,
    byte_tokens: [Option<u32>; 256],
}

/// Which neighbours join, and how eagerly.
enum Rule {
    /// Those whose joint text is a token; its rank, lower for better scores.
    Scores(Vec<u32>),
    /// Those of a merge rule.
    Merges(FastMap<(u32, u32), Join>),
}

/// Of a character without a token, which is in no merge rule.
const NO_TOKEN: u32 = u32::MAX;

impl SentencePiece {
    pub(super) fn read(file: &Gguf, raw: &RawTokens<'_>, bytes: &mut TokenBytes) -> Result<Self, TokenizerError> {
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
                (TokenKind::UserDefined, _) => bytes.push(&unmark_spaces(text)),
                // User-defined tokens are found beforehand, and structure must not come out of merging text.
                _ => bytes.push(text),
            }
        }
        let rule = match file.strings(keys::MERGE_SIDES)? {
            Some(sides) => Rule::Merges(merges(sides, &tokens)?),
            None => Rule::Scores(ranks(file, raw.texts.len())?),
        };
        Ok(Self {
            tokens,
            rule,
            splits_words: file.optional(keys::SPLITS_WORDS)?.unwrap_or(false),
            whole_words: file.optional(keys::WHOLE_WORDS)?.unwrap_or(false),
            byte_tokens,
        })
    }

    pub(super) fn encode(&self, text: &str, space_prefix: bool, out: &mut Vec<u32>) {
        let marked = format!("{}{text}", if space_prefix { " " } else { "" }).replace(' ', SPACE_MARK);
        if !self.splits_words {
            return self.encode_marked(&marked, out);
        }
        let mut first = 0;
        let marks = marked.match_indices(SPACE_MARK).map(|(at, _)| at).filter(|&at| at > 0);
        for end in marks.chain([marked.len()]) {
            self.encode_marked(&marked[first..end], out);
            first = end;
        }
    }

    fn encode_marked(&self, marked: &str, out: &mut Vec<u32>) {
        if self.whole_words
            && let Some(&token) = self.tokens.get(marked.as_bytes())
        {
            out.push(token);
            return;
        }
        let pieces = marked.char_indices().map(|(start, character)| {
            let end = start + character.len_utf8();
            let token = match self.rule {
                Rule::Scores(_) => None,
                Rule::Merges(_) => self.tokens.get(&marked.as_bytes()[start..end]),
            };
            let token = token.copied().unwrap_or(NO_TOKEN);
            Piece { start, end, token }
        });
        let join = |left: Piece, right: Piece| match &self.rule {
            Rule::Merges(merges) => merges.get(&(left.token, right.token)).copied(),
            Rule::Scores(ranks) => {
                let token = *self.tokens.get(&marked.as_bytes()[left.start..right.end])?;
                let rank = ranks[token as usize];
                Some(Join { rank, token })
            }
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

fn ranks(file: &Gguf, tokens: usize) -> Result<Vec<u32>, TokenizerError> {
    let scores = file
        .numbers(SCORES)?
        .ok_or_else(|| TokenizerError::MissingKey { key: SCORES.to_owned() })?;
    if scores.len() != tokens {
        return Err(TokenizerError::lengths(SCORES, scores.len(), tokens));
    }
    // Equal scores share a rank, so that the leftmost pair goes first.
    let mut order: Vec<f32> = scores.iter().map(|&score| score as f32).collect();
    order.sort_unstable_by(|a, b| b.total_cmp(a));
    order.dedup_by(|a, b| a.total_cmp(b).is_eq());
    let rank = |score: f32| order.partition_point(|better| better.total_cmp(&score).is_gt()) as u32;
    Ok(scores.iter().map(|&score| rank(score as f32)).collect())
}

fn merges(sides: Strings<'_>, tokens: &FastMap<Box<[u8]>, u32>) -> Result<FastMap<(u32, u32), Join>, TokenizerError> {
    let mut merges = FastMap::default();
    let sides: Vec<&[u8]> = sides.collect();
    for (rank, pair) in sides.as_chunks::<2>().0.iter().enumerate() {
        let [left, right] = *pair;
        // Rules over what is not a token never apply.
        if let (Some(&left), Some(&right), Some(&token)) = (
            tokens.get(left),
            tokens.get(right),
            tokens.get(&*[left, right].concat()),
        ) {
            let rank = rank as u32;
            merges.entry((left, right)).or_insert(Join { rank, token });
        }
    }
    if merges.is_empty() {
        return Err(TokenizerError::NoMerges { key: keys::MERGE_SIDES });
    }
    Ok(merges)
}

pub(super) fn unmark_spaces(text: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(text) {
        Ok(text) => text.replace(SPACE_MARK, " ").into_bytes(),
        Err(_) => text.to_vec(),
    }
}
