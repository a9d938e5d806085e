//! Which part of the examples does one of several machines run?

use std::fmt;
use std::str::FromStr;

use crate::{EvalError, Example};

/// One of several parts of equal size, written `2/4`: the second of four.
///
/// An example belongs to a shard by its place in the list, in turns, so that every shard has its share of every task and
/// length. All machines must be given the same grid; what two of them ran nevertheless is the same unit in both, and
/// merging keeps one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 1.
    index: usize,
    /// How many there are.
    count: usize,
}

impl Shard {
    /// The examples of this part.
    #[must_use]
    pub fn of(self, examples: Vec<Example>) -> Vec<Example> {
        examples.into_iter().skip(self.index - 1).step_by(self.count).collect()
    }
}

impl FromStr for Shard {
    type Err = EvalError;

    fn from_str(text: &str) -> Result<Self, EvalError> {
        let parts = text.split_once('/').map(|(i, n)| (i.parse(), n.parse()));
        match parts {
            Some((Ok(index), Ok(count))) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err(EvalError::Setting(format!(
                "`{text}` is no shard; write `2/4` for the second of four"
            ))),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.index, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::Shard;

    #[test]
    fn shards_are_written_as_parts() {
        assert_eq!("2/4".parse::<Shard>().unwrap().to_string(), "2/4");
        for wrong in ["", "2", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/2"] {
            let error = wrong.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains("2/4"), "{wrong}: {error}");
        }
    }
}
