//! The tokens of a model: their bytes, what kind each is, and where they come from in the file.

use crate::gguf::Gguf;

use super::TokenizerError;

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";

/// More tokens or merge rules than any model has; with fewer, all numbers fit in 32 bits.
pub(super) const MOST_ENTRIES: usize = 1 << 24;

/// The mark sentencepiece writes for a space, U+2581.
pub(super) const SPACE_MARK: &str = "\u{2581}";

/// What a token is for. The numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// Ordinary text.
    Normal,
    /// The stand-in for what has no token.
    Unknown,
    /// Structure, such as the end of a turn: never text.
    Control,
    /// Text that is kept whole before anything else is split.
    UserDefined,
    /// A hole in the numbering.
    Unused,
    /// One raw byte.
    Byte,
}

impl TokenKind {
    fn from_number(number: f64) -> Self {
        match number as i64 {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            // 0 is "undefined" in the format; what is not known is taken as text, as everywhere.
            _ => Self::Normal,
        }
    }
}

/// Token texts as the file has them, with their kinds.
pub(super) struct RawTokens<'a> {
    pub(super) texts: Vec<&'a [u8]>,
    pub(super) kinds: Vec<TokenKind>,
}

impl<'a> RawTokens<'a> {
    pub(super) fn read(file: &'a Gguf) -> Result<Self, TokenizerError> {
        let missing = |key: &str| TokenizerError::MissingKey { key: key.to_owned() };
        let texts: Vec<&[u8]> = file.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?.collect();
        if texts.is_empty() {
            return Err(TokenizerError::Empty);
        }
        if texts.len() > MOST_ENTRIES {
            return Err(TokenizerError::TooMany {
                key: TOKENS.to_owned(),
                count: texts.len(),
            });
        }
        let kinds = match file.numbers(TOKEN_TYPES)? {
            None => {
                tracing::warn!("the file does not say which tokens are special ({TOKEN_TYPES}): all are taken as text");
                vec![TokenKind::Normal; texts.len()]
            }
            Some(numbers) if numbers.len() == texts.len() => numbers.into_iter().map(TokenKind::from_number).collect(),
            Some(numbers) => return Err(TokenizerError::lengths(TOKEN_TYPES, numbers.len(), texts.len())),
        };
        Ok(Self { texts, kinds })
    }
}

/// The bytes every token stands for, in one allocation.
#[derive(Debug, Default)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    pub(super) fn push(&mut self, token: &[u8]) {
        self.bytes.extend(token);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; nothing for a number outside the vocabulary.
    pub(super) fn of(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.bytes[start..end]
    }
}

/// The printable stand-ins byte-level vocabularies write for bytes: printable bytes stand for themselves, the others
/// for the characters from U+0100 on, in order.
pub(crate) struct ByteAlphabet {
    byte_of: [Option<u8>; Self::LAST + 1],
}

impl ByteAlphabet {
    /// The last character used: 68 bytes are not printable.
    const LAST: usize = 0x100 + 67;

    pub(crate) fn new() -> Self {
        let mut byte_of = [None; Self::LAST + 1];
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
                byte_of[usize::from(byte)] = Some(byte);
            } else {
                byte_of[next] = Some(byte);
                next += 1;
            }
        }
        Self { byte_of }
    }

    /// The character that stands for a byte.
    pub(crate) fn character(byte: u8) -> char {
        let alphabet = Self::new();
        let code = alphabet.byte_of.iter().position(|&entry| entry == Some(byte));
        code.and_then(|code| char::from_u32(code as u32))
            .expect("every byte has a character below U+0144")
    }

    /// Appends what a token text stands for. Characters outside the alphabet stand for themselves (some vocabularies
    /// have such tokens); returns whether there were none.
    pub(super) fn decode(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        let Ok(text) = std::str::from_utf8(text) else {
            out.extend(text);
            return false;
        };
        let mut pure = true;
        for character in text.chars() {
            if let Some(byte) = self.byte_of.get(character as usize).copied().flatten() {
                out.push(byte);
            } else {
                pure = false;
                out.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        pure
    }
}

/// The byte a sentencepiece byte token such as `<0x0A>` stands for.
pub(super) fn byte_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let &[high, low] = digits else { return None };
    let digit = |character: u8| char::from(character).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let alphabet = ByteAlphabet::new();
        for byte in 0..=u8::MAX {
            let mut out = Vec::new();
            assert!(alphabet.decode(ByteAlphabet::character(byte).to_string().as_bytes(), &mut out));
            assert_eq!(out, [byte]);
        }
        assert_eq!(ByteAlphabet::character(b' '), 'Ġ');
        assert_eq!(ByteAlphabet::character(b'\n'), 'Ċ');
    }

    #[test]
    fn foreign_characters_stand_for_themselves() {
        let mut out = Vec::new();
        assert!(!ByteAlphabet::new().decode("Ġ▁x".as_bytes(), &mut out));
        assert_eq!(out, " ▁x".as_bytes());
        let mut out = Vec::new();
        assert!(!ByteAlphabet::new().decode(b"\xff\xfe", &mut out));
        assert_eq!(out, b"\xff\xfe");
    }

    #[test]
    fn byte_tokens_are_recognised_strictly() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        for text in [&b"<0x0>"[..], b"<0x+A>", b"<0x0AB>", b"0x0A", b"<0xGG>", b""] {
            assert_eq!(byte_token(text), None, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn tokens_outside_the_vocabulary_have_no_bytes() {
        let mut tokens = TokenBytes::default();
        tokens.push(b"a");
        tokens.push(b"");
        tokens.push(b"bc");
        assert_eq!(
            [
                tokens.of(0),
                tokens.of(1),
                tokens.of(2),
                tokens.of(3),
                tokens.of(u32::MAX)
            ],
            [&b"a"[..], b"", b"bc", b"", b""]
        );
    }
}
