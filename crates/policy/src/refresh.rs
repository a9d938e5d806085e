//! At which decode steps scores are computed.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::text;

/// The refresh schedule; decode steps count from 1 (Eq. 6 of the paper).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refresh {
    /// The first step and every r-th after it: 1 is every step.
    Every(usize),
    /// The first step only (Score-Free).
    Once,
}

impl Refresh {
    /// Whether decode step `step` (from 1) computes scores.
    #[must_use]
    pub fn is_due(self, step: usize) -> bool {
        match self {
            Refresh::Every(interval) => step >= 1 && (step - 1).is_multiple_of(interval.max(1)),
            Refresh::Once => step == 1,
        }
    }

    pub(crate) fn validate(self) -> Result<(), PolicyError> {
        if self == Refresh::Every(0) {
            Err(text::bad_value("refresh", "0"))
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for Refresh {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refresh::Every(interval) => write!(formatter, "{interval}"),
            Refresh::Once => formatter.write_str("once"),
        }
    }
}

impl FromStr for Refresh {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text == "once" {
            return Ok(Refresh::Once);
        }
        Ok(Refresh::Every(text::whole("refresh", text)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_is_equation_six() {
        let due = |refresh: Refresh| (0..10).filter(|&step| refresh.is_due(step)).collect::<Vec<_>>();
        assert_eq!(due(Refresh::Every(1)), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(due(Refresh::Every(4)), [1, 5, 9]);
        assert_eq!(due(Refresh::Once), [1]);
    }
}
