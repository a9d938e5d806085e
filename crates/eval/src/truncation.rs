//! Which tokens of a prompt that is too long stay?

use serde::{Deserialize, Serialize};

/// What a benchmark cuts out of a prompt that exceeds its limit. The cut is made before the chat template, so the final
/// prompt can be longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// `LongBench`: the first and the last half of the limit stay, so an odd limit loses one token more.
    Middle,
    /// `LongBench`-v2: the same, but an odd token goes to the end.
    MiddleExact,
    /// kvpress: the end of the context goes.
    End,
}

impl Truncation {
    /// The tokens that stay, in two pieces that the original decodes one by one; the second is empty if nothing was cut.
    #[must_use]
    pub fn keep<T>(self, tokens: &[T], limit: usize) -> (&[T], &[T]) {
        if tokens.len() <= limit {
            return (tokens, &[]);
        }
        let (head, tail) = match self {
            Self::Middle => (limit / 2, limit / 2),
            Self::MiddleExact => (limit / 2, limit - limit / 2),
            Self::End => (limit, 0),
        };
        (&tokens[..head], &tokens[tokens.len() - tail..])
    }
}

#[cfg(test)]
mod tests {
    use super::Truncation;

    #[test]
    fn limits_at_the_edge() {
        assert_eq!(Truncation::Middle.keep(&[1, 2, 3], 1), (&[][..], &[][..]));
        assert_eq!(Truncation::MiddleExact.keep(&[1, 2, 3], 1), (&[][..], &[3][..]));
        assert_eq!(Truncation::End.keep(&[1, 2, 3], 2), (&[1, 2][..], &[][..]));
        assert_eq!(Truncation::End.keep(&[1, 2, 3], 3), (&[1, 2, 3][..], &[][..]));
    }
}
