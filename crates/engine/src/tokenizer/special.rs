//! Finding special tokens in text, before anything else looks at it.

use std::collections::HashMap;

/// The tokens that are looked for as a whole.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    /// By first byte, longest first, so that the longest match at the leftmost place wins.
    by_first_byte: HashMap<u8, Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    text: Box<[u8]>,
    id: u32,
    /// Structure rather than text: only recognised where special tokens are allowed.
    structural: bool,
}

/// A stretch of text, or a token found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

impl SpecialTokens {
    pub(super) fn insert(&mut self, text: &[u8], id: u32, structural: bool) {
        // What is not UTF-8 cannot occur in text.
        let (Some(&first), Ok(_)) = (text.first(), std::str::from_utf8(text)) else {
            return;
        };
        let entries = self.by_first_byte.entry(first).or_default();
        let place = entries.partition_point(|entry| entry.text.len() >= text.len());
        entries.insert(
            place,
            Entry {
                text: text.into(),
                id,
                structural,
            },
        );
    }

    /// The token with exactly this text.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        let entries = self.by_first_byte.get(text.as_bytes().first()?)?;
        entries
            .iter()
            .find(|entry| *entry.text == *text.as_bytes())
            .map(|entry| entry.id)
    }

    /// Whether a structural token begins `text`, or could if more text followed.
    pub(super) fn structure_may_start(&self, text: &str) -> bool {
        let text = text.as_bytes();
        let entries = text.first().and_then(|first| self.by_first_byte.get(first));
        entries.is_some_and(|entries| {
            let begins = |entry: &Entry| text.starts_with(&entry.text) || entry.text.starts_with(text);
            entries.iter().any(|entry| entry.structural && begins(entry))
        })
    }

    /// Cuts `text` at the tokens in it; structural tokens count only when `parse_special` is set.
    pub(super) fn partition<'t>(&self, text: &'t str, parse_special: bool, mut part: impl FnMut(Part<'t>)) {
        let bytes = text.as_bytes();
        let (mut at, mut done) = (0, 0);
        while at < bytes.len() {
            let entries = self.by_first_byte.get(&bytes[at]).map_or(&[][..], Vec::as_slice);
            let found = entries
                .iter()
                .find(|entry| (parse_special || !entry.structural) && bytes[at..].starts_with(&entry.text));
            let Some(entry) = found else {
                at += 1;
                continue;
            };
            if done < at {
                part(Part::Text(&text[done..at]));
            }
            part(Part::Token(entry.id));
            at += entry.text.len();
            done = at;
        }
        if done < bytes.len() {
            part(Part::Text(&text[done..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str, parse_special: bool) -> Vec<Part<'_>> {
        let mut tokens = SpecialTokens::default();
        tokens.insert(b"<a>", 1, true);
        tokens.insert(b"<a>>", 2, true);
        tokens.insert("é".as_bytes(), 3, false);
        tokens.insert(b"", 4, true);
        tokens.insert(b"\xff", 5, true);
        let mut parts = Vec::new();
        tokens.partition(text, parse_special, |part| parts.push(part));
        parts
    }

    #[test]
    fn the_longest_match_wins() {
        assert_eq!(
            parts("x<a>>y<a>", true),
            [Part::Text("x"), Part::Token(2), Part::Text("y"), Part::Token(1)]
        );
    }

    #[test]
    fn structure_is_text_unless_allowed() {
        assert_eq!(parts("<a>é", false), [Part::Text("<a>"), Part::Token(3)]);
        assert_eq!(parts("<a>é", true), [Part::Token(1), Part::Token(3)]);
        assert!(parts("", true).is_empty());
    }
}
