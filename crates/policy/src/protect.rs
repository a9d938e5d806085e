//! Which positions stay whatever their utility.

use crate::error::PolicyError;
use crate::ratio::Ratio;
use crate::text;

/// Protection on request; the paper's method has none.
///
/// The budget stays exact: where more is protected than fits, sinks are served first, then the recent window, then the
/// stride of the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protect {
    /// The first positions of the sequence.
    pub sinks: usize,
    /// The last positions of the sequence, the newest included.
    pub recent: usize,
    /// Static reserve (Appendix B): a share of the first budget given to sinks, recent positions and an even stride over
    /// the first prompt, a third each, rounded down; overlaps with `sinks` and `recent` are not added up.
    pub reserve: Ratio,
    /// First-eviction rescue (Appendix B): at the first eviction that removes more than half of the rows, entries ranked
    /// within the top 5 % of B by any layer's score of that step stay before all that only their utility speaks for.
    pub rescue: bool,
}

impl Protect {
    /// No protection.
    pub const NONE: Protect = Protect {
        sinks: 0,
        recent: 0,
        reserve: Ratio::ZERO,
        rescue: false,
    };
    /// The reserve called `standard`: 15 % of the budget.
    pub const STANDARD_RESERVE: Ratio = Ratio::percent(15);
    /// The reserve called `high`: 30 % of the budget.
    pub const HIGH_RESERVE: Ratio = Ratio::percent(30);

    pub(crate) fn parse_reserve(text: &str) -> Result<Ratio, PolicyError> {
        match text {
            "none" => Ok(Ratio::ZERO),
            "standard" => Ok(Protect::STANDARD_RESERVE),
            "high" => Ok(Protect::HIGH_RESERVE),
            _ => text::fraction("reserve", text),
        }
    }
}

/// What is protected in one sequence, before it is cut to the budget of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protection {
    sinks: usize,
    recent: usize,
    stride: usize,
    first_prompt: usize,
}

impl Protection {
    pub(crate) fn new(protect: &Protect, first_budget: usize, first_prompt: usize) -> Protection {
        let third = protect.reserve.share_of(first_budget) / 3;
        Protection {
            sinks: protect.sinks.max(third),
            recent: protect.recent.max(third),
            stride: third.min(first_prompt),
            first_prompt,
        }
    }

    /// At most `budget` positions of a sequence of `seen` tokens.
    pub(crate) fn guard(self, budget: usize, seen: usize) -> Guard {
        let sinks = self.sinks.min(budget);
        let recent = self.recent.min(budget - sinks);
        let stride = self.stride.min(budget - sinks - recent);
        Guard {
            sinks: clamp(sinks),
            recent_from: clamp(seen.saturating_sub(recent)),
            stride: stride as u64,
            first_prompt: self.first_prompt as u64,
        }
    }
}

fn clamp(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// The protected positions of one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guard {
    sinks: u32,
    recent_from: u32,
    stride: u64,
    first_prompt: u64,
}

impl Guard {
    /// The first of the positions that are protected as recent.
    pub(crate) fn recent_from(&self) -> u32 {
        self.recent_from
    }

    pub(crate) fn protects(&self, position: u32) -> bool {
        position < self.sinks || position >= self.recent_from || self.on_stride(position)
    }

    /// Whether the guard can be skipped for a ranking whose positions are below `seen`.
    pub(crate) fn is_empty(&self, seen: usize) -> bool {
        self.sinks == 0 && self.recent_from as usize >= seen && self.stride == 0
    }

    // The points are floor(k · first_prompt / stride) for k below stride.
    fn on_stride(&self, position: u32) -> bool {
        let position = u64::from(position);
        if self.stride == 0 || position >= self.first_prompt {
            return false;
        }
        let index = (position * self.stride).div_ceil(self.first_prompt);
        index * self.first_prompt / self.stride == position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected(protect: &Protect, budget: usize, prompt: usize, seen: usize) -> Vec<u32> {
        let guard = Protection::new(protect, budget, prompt).guard(budget, seen);
        (0..seen as u32).filter(|&position| guard.protects(position)).collect()
    }

    #[test]
    fn sinks_and_recent() {
        let protect = Protect {
            sinks: 2,
            recent: 3,
            ..Protect::NONE
        };
        assert_eq!(protected(&protect, 10, 20, 22), [0, 1, 19, 20, 21]);
        assert_eq!(protected(&protect, 4, 20, 22), [0, 1, 20, 21]);
        assert_eq!(protected(&protect, 1, 20, 22), [0]);
        assert!(protected(&Protect::NONE, 10, 20, 22).is_empty());
        assert!(Protection::new(&Protect::NONE, 10, 20).guard(10, 22).is_empty(22));
    }

    #[test]
    fn reserve_is_three_thirds() {
        let protect = Protect {
            reserve: Ratio::percent(30),
            ..Protect::NONE
        };
        // A third of 30 % of 20 is 2 sinks, 2 recent and a stride of 2 over 100 tokens, of which 0 is a sink already.
        assert_eq!(protected(&protect, 20, 100, 101), [0, 1, 50, 99, 100]);
        // The whole budget reserved stays within it.
        let all = Protect {
            reserve: Ratio::percent(100),
            ..Protect::NONE
        };
        for budget in 1..40 {
            assert!(protected(&all, budget, 100, 130).len() <= budget);
        }
    }

    #[test]
    fn stride_points_are_distinct() {
        for (prompt, stride) in [(7, 3), (100, 7), (10, 10), (5, 1)] {
            let guard = Guard {
                sinks: 0,
                recent_from: u32::MAX,
                stride,
                first_prompt: prompt,
            };
            let points = (0..prompt as u32).filter(|&position| guard.protects(position)).count();
            assert_eq!(points as u64, stride);
        }
    }
}
