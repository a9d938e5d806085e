//! What neighbours lend each other just before ranking.

use std::fmt;
use std::str::FromStr;

use crate::error::PolicyError;
use crate::text;

/// Smoothing of the utility over neighbouring positions; the running utility itself is not changed.
///
/// A window of width k, odd, reaches (k − 1) / 2 positions to either side; evicted positions in it count for nothing.
/// Text: `none`, `max7`, `avg9`, `pad5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Smoothing {
    /// The utility as it is (the paper).
    None,
    /// The largest utility in a window of this width.
    Max(u32),
    /// The mean utility of the entries held in a window of this width.
    Average(u32),
    /// The sum of the utilities in a window of this width, divided by the width: what is missing counts as 0, and so do
    /// the positions that [`Protect::recent`](crate::Protect::recent) keeps anyway (`SnapKV`'s pooling, arXiv 2404.14469).
    Padded(u32),
}

impl Smoothing {
    pub(crate) fn validate(self) -> Result<(), PolicyError> {
        match self {
            Smoothing::Max(width) | Smoothing::Average(width) | Smoothing::Padded(width)
                if width % 2 == 0 || !(3..=255).contains(&width) =>
            {
                Err(text::bad_value("kernel", &self.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Writes the smoothed utility of every row to `scratch.values`.
    pub(crate) fn apply(self, positions: &[u32], utility: &[f32], recent_from: u32, scratch: &mut SmoothingScratch) {
        let width = match self {
            Smoothing::None => 1,
            Smoothing::Max(width) | Smoothing::Average(width) | Smoothing::Padded(width) => width,
        };
        let reach = width / 2;
        let SmoothingScratch { order, sorted, values } = scratch;
        // Rows are not in the order of positions once freed rows have been reused.
        order.clear();
        order.extend(
            positions
                .iter()
                .enumerate()
                .map(|(row, &position)| (position, row as u32)),
        );
        order.sort_unstable();
        sorted.clear();
        let padded = matches!(self, Smoothing::Padded(_));
        sorted.extend(order.iter().map(|&(position, row)| {
            if padded && position >= recent_from {
                0.0
            } else {
                utility[row as usize]
            }
        }));
        values.clear();
        values.resize(utility.len(), 0.0);
        let (mut first, mut end) = (0, 0);
        for &(position, row) in order.iter() {
            while order[first].0 < position.saturating_sub(reach) {
                first += 1;
            }
            while end < order.len() && order[end].0 <= position.saturating_add(reach) {
                end += 1;
            }
            let window = &sorted[first..end];
            values[row as usize] = match self {
                Smoothing::Average(_) => window.iter().sum::<f32>() / window.len() as f32,
                Smoothing::Padded(_) => window.iter().sum::<f32>() / width as f32,
                _ => window.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            };
        }
    }
}

/// Buffers of the smoothing, kept between steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct SmoothingScratch {
    order: Vec<(u32, u32)>,
    sorted: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

impl fmt::Display for Smoothing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Smoothing::None => formatter.write_str("none"),
            Smoothing::Max(width) => write!(formatter, "max{width}"),
            Smoothing::Average(width) => write!(formatter, "avg{width}"),
            Smoothing::Padded(width) => write!(formatter, "pad{width}"),
        }
    }
}

impl FromStr for Smoothing {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text == "none" {
            return Ok(Smoothing::None);
        }
        let width = |prefix: &str| {
            text.strip_prefix(prefix)
                .and_then(|digits| text::whole32("kernel", digits).ok())
        };
        let smoothing = width("max")
            .map(Smoothing::Max)
            .or_else(|| width("avg").map(Smoothing::Average))
            .or_else(|| width("pad").map(Smoothing::Padded));
        smoothing.ok_or_else(|| text::bad_value("kernel", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smoothed(smoothing: Smoothing, positions: &[u32], utility: &[f32]) -> Vec<f32> {
        let mut scratch = SmoothingScratch::default();
        smoothing.apply(positions, utility, 9, &mut scratch);
        scratch.values
    }

    #[test]
    fn windows_are_over_positions_not_rows() {
        // Positions 0, 1, 2 are neighbours; 9 is alone; rows are in another order.
        let (positions, utility) = ([2, 9, 0, 1], [3.0, 10.0, 1.0, 8.0]);
        assert_eq!(smoothed(Smoothing::None, &positions, &utility), utility);
        assert_eq!(smoothed(Smoothing::Max(3), &positions, &utility), [8.0, 10.0, 8.0, 8.0]);
        assert_eq!(
            smoothed(Smoothing::Average(3), &positions, &utility),
            [5.5, 10.0, 4.5, 4.0]
        );
        // Position 9 is recent here, and lends nothing.
        assert_eq!(
            smoothed(Smoothing::Padded(3), &positions, &utility),
            [11.0 / 3.0, 0.0, 3.0, 4.0]
        );
    }

    #[test]
    fn a_plain_twin_agrees() {
        // Distinct positions with gaps, in no order.
        let positions: Vec<u32> = (0..60).map(|row| row * 37 % 61 * 3 / 2).collect();
        let utility: Vec<f32> = (0..60).map(|row| (row * row % 17) as f32).collect();
        let recent_from = 80;
        for width in [3, 5, 9, 255] {
            let of = |kind: fn(u32) -> Smoothing| {
                let mut scratch = SmoothingScratch::default();
                kind(width).apply(&positions, &utility, recent_from, &mut scratch);
                scratch.values
            };
            let (largest, average, padded) = (of(Smoothing::Max), of(Smoothing::Average), of(Smoothing::Padded));
            for (row, &position) in positions.iter().enumerate() {
                let near = |&(&other, _): &(&u32, &f32)| other.abs_diff(position) <= width / 2;
                let window: Vec<(u32, f32)> = positions
                    .iter()
                    .zip(&utility)
                    .filter(near)
                    .map(|(&other, &utility)| (other, utility))
                    .collect();
                let sum: f32 = window.iter().map(|entry| entry.1).sum();
                let past: f32 = window
                    .iter()
                    .filter(|entry| entry.0 < recent_from)
                    .map(|entry| entry.1)
                    .sum();
                let close = |found: f32, expected: f32| assert!((found - expected).abs() < 1e-4, "width {width}");
                close(largest[row], window.iter().map(|entry| entry.1).fold(0.0, f32::max));
                close(average[row], sum / window.len() as f32);
                close(padded[row], past / width as f32);
            }
        }
    }

    #[test]
    fn widths_are_odd() {
        for (text, good) in [
            ("max7", true),
            ("avg255", true),
            ("max8", false),
            ("avg1", false),
            ("avg257", false),
            ("pad5", true),
            ("pad4", false),
        ] {
            assert_eq!(text.parse::<Smoothing>().unwrap().validate().is_ok(), good, "{text}");
        }
        assert!("max".parse::<Smoothing>().is_err());
        assert!("median3".parse::<Smoothing>().is_err());
    }
}
