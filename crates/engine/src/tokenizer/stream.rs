//! Text from tokens one by one, whole characters only.

use super::Tokenizer;

/// Turns tokens into text as they come: every chunk is valid UTF-8, a character split over tokens appears when its
/// last byte has come. Control tokens give no text. Bytes that cannot become a character are replaced by U+FFFD, so
/// that the chunks together are what [`String::from_utf8_lossy`] makes of all bytes.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    pending: Vec<u8>,
}

impl StreamDecoder {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            pending: Vec::new(),
        }
    }

    /// Adds a token and returns the text that became complete, possibly none.
    pub fn push(&mut self, token: u32) -> String {
        if !self.tokenizer.is_text(token) {
            return String::new();
        }
        self.pending.extend(self.tokenizer.token_bytes(token));
        take_complete(&mut self.pending)
    }

    /// Ends the text: what is left of an unfinished character comes out as U+FFFD. The decoder can be used again.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Moves everything but an unfinished character at the end out of `bytes`.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = bytes.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(broken) = error.error_len() else {
                    let left = after.len();
                    bytes.drain(..bytes.len() - left);
                    return text;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &after[broken..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_together_are_the_lossy_text(bytes in bytes_with_characters(), cuts in prop::collection::vec(1_usize..5, 0..40)) {
            let mut pending = Vec::new();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            let mut cuts = cuts.into_iter();
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                pending.extend(head);
                text += &take_complete(&mut pending);
                prop_assert!(pending.len() < 4);
                rest = tail;
            }
            text += &String::from_utf8_lossy(&pending);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    fn bytes_with_characters() -> impl Strategy<Value = Vec<u8>> {
        let character = any::<char>().prop_map(|character| character.to_string().into_bytes());
        let stretch = prop_oneof![3 => character, 1 => prop::collection::vec(any::<u8>(), 1..4)];
        prop::collection::vec(stretch, 0..30).prop_map(|stretches| stretches.concat())
    }
}
