//! What is compared, and what is to be reached.

use serde::Serialize;

use Against::{LlamaCpp, Ours};
use Quantity::{Decode, PeakMemory, Prefill};

/// The models that there are targets for, by their names in the catalog.
pub(super) const MODELS: [&str; 2] = [SMOLLM2, QWEN];

const SMOLLM2: &str = "smollm2-135m";
const QWEN: &str = "qwen2.5-coder-0.5b";

const FULL: &str = "full";
const INERTIA: &str = "inertia:ratio=0.9";
const SCORE_FREE: &str = "score-free:ratio=0.9";
/// Scores every step and has a budget that no sequence here reaches.
const INERTIA_UNBOUNDED: &str = "inertia:tokens=1000000";

/// Prompt tokens before decoding "at short context".
const SHORT: usize = 16;

/// One prefill with llama.cpp beyond this takes minutes: such points get one round, and none in a quick run.
const DEEP: usize = 4096;

/// Tokens that are decoded, and more of them where a few percent count: six turns of `bench`, in which each of three methods
/// follows each other one as often.
const DECODED_TOKENS: usize = 32;
const DECODED_TOKENS_AGAINST_OURS: usize = 192;

/// All points, in the order they are measured: neighbours share what they compare with.
#[rustfmt::skip]
const POINTS: &[Point] = &[
    Point { model: SMOLLM2, quantity: Prefill, context: 512, method: FULL, against: LlamaCpp, target: 1.7 },
    Point { model: SMOLLM2, quantity: Prefill, context: 2048, method: FULL, against: LlamaCpp, target: 2.5 },
    Point { model: SMOLLM2, quantity: Prefill, context: 4096, method: FULL, against: LlamaCpp, target: 3.0 },
    Point { model: SMOLLM2, quantity: Decode, context: SHORT, method: FULL, against: LlamaCpp, target: 1.15 },
    Point { model: SMOLLM2, quantity: Decode, context: 4096, method: FULL, against: LlamaCpp, target: 2.0 },
    Point { model: SMOLLM2, quantity: Decode, context: 4096, method: INERTIA, against: LlamaCpp, target: 3.2 },
    Point { model: SMOLLM2, quantity: Decode, context: 8000, method: INERTIA, against: LlamaCpp, target: 5.5 },
    Point { model: SMOLLM2, quantity: Decode, context: 4096, method: INERTIA, against: Ours(SCORE_FREE), target: 0.97 },
    Point { model: SMOLLM2, quantity: Decode, context: 4096, method: INERTIA_UNBOUNDED, against: Ours(FULL), target: 0.97 },
    Point { model: QWEN, quantity: Prefill, context: 512, method: FULL, against: LlamaCpp, target: 1.6 },
    Point { model: QWEN, quantity: Prefill, context: 2048, method: FULL, against: LlamaCpp, target: 2.0 },
    Point { model: QWEN, quantity: Prefill, context: 4096, method: FULL, against: LlamaCpp, target: 2.0 },
    Point { model: QWEN, quantity: PeakMemory, context: 4096, method: FULL, against: LlamaCpp, target: 1.15 },
    Point { model: QWEN, quantity: Decode, context: SHORT, method: FULL, against: LlamaCpp, target: 1.15 },
    Point { model: QWEN, quantity: Decode, context: 4096, method: FULL, against: LlamaCpp, target: 1.5 },
    Point { model: QWEN, quantity: Decode, context: 4096, method: INERTIA, against: LlamaCpp, target: 1.7 },
    Point { model: QWEN, quantity: Decode, context: 16_000, method: INERTIA, against: LlamaCpp, target: 3.2 },
    Point { model: QWEN, quantity: Decode, context: 4096, method: INERTIA, against: Ours(SCORE_FREE), target: 0.97 },
    Point { model: QWEN, quantity: Decode, context: 4096, method: INERTIA_UNBOUNDED, against: Ours(FULL), target: 0.97 },
];

/// One comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    pub(super) model: &'static str,
    pub(super) quantity: Quantity,
    /// Tokens of the prompt.
    pub(super) context: usize,
    /// How we keep the cache; llama.cpp keeps all of it.
    pub(super) method: &'static str,
    pub(super) against: Against,
    /// Ours divided by theirs: at least this, or at most for memory.
    pub(super) target: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Quantity {
    /// Tokens per second while the prompt is read.
    Prefill,
    /// Tokens per second of decoding after it.
    Decode,
    /// Most resident memory of the process that reads the prompt.
    PeakMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Against {
    LlamaCpp,
    /// Our own speed with another method.
    Ours(&'static str),
}

impl Point {
    /// The points of some models; a quick run leaves the deep ones out.
    pub(super) fn of(models: &[&str], quick: bool) -> Vec<Point> {
        POINTS
            .iter()
            .filter(|point| models.contains(&point.model) && !(quick && point.is_deep()))
            .copied()
            .collect()
    }

    pub(super) fn is_deep(&self) -> bool {
        self.context > DEEP
    }

    /// How often the point is measured when most are measured `rounds` times. Memory does not vary.
    pub(super) fn rounds(&self, rounds: usize) -> usize {
        if self.is_deep() || self.quantity == PeakMemory {
            1
        } else {
            rounds
        }
    }

    /// Tokens that are decoded.
    pub(super) fn decoded_tokens(&self) -> usize {
        match self.against {
            LlamaCpp => DECODED_TOKENS,
            Ours(_) => DECODED_TOKENS_AGAINST_OURS,
        }
    }

    pub(super) fn is_met_by(&self, ratio: f64) -> bool {
        if self.quantity == PeakMemory {
            ratio <= self.target
        } else {
            ratio >= self.target
        }
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        let quantity = match self.quantity {
            Prefill => "prefill",
            Decode => "decode at",
            PeakMemory => "peak memory, prompt of",
        };
        let against = match self.against {
            LlamaCpp => String::new(),
            Ours(method) => format!(" against {method}"),
        };
        let method = if self.quantity == Decode {
            format!(", {}", self.method)
        } else {
            String::new()
        };
        format!(
            "{quantity} {}{method}{against}",
            crate::table::grouped(self.context as u64)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{MODELS, POINTS, Point};

    #[test]
    fn a_quick_run_has_no_deep_point() {
        let quick = Point::of(&MODELS, true);
        assert_eq!(quick.len(), POINTS.len() - 2);
        assert!(quick.iter().all(|point| point.context <= 4096));
        assert!(
            Point::of(&MODELS[..1], false)
                .iter()
                .all(|point| point.model == MODELS[0])
        );
    }

    #[test]
    fn memory_is_met_from_below_and_speed_from_above() {
        for point in POINTS {
            let memory = point.name().starts_with("peak memory");
            assert!(point.is_met_by(point.target));
            assert_eq!(point.is_met_by(point.target * 2.0), !memory, "{}", point.name());
        }
    }

    #[test]
    fn names_are_unique_within_a_model() {
        for (index, point) in POINTS.iter().enumerate() {
            let same = |other: &Point| other.model == point.model && other.name() == point.name();
            assert!(!POINTS[..index].iter().any(same), "{}", point.name());
        }
    }
}
