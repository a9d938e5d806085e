//! Which plots do measurements give?
//!
//! Plots as data: whoever draws them decides how. A heat map's numbers go from light to dark.

mod bench;

pub use bench::{BENCH_FIGURES, of_bench};

use serde::Serialize;

use crate::trace::Pair;

/// A figure, as data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name of its files.
    pub name: String,
    /// What it shows of what.
    pub title: String,
    /// What is measured, with its unit.
    pub unit: String,
    /// What is drawn.
    pub kind: Kind,
}

/// How it is drawn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One bar per label, made of the same parts.
    Bars {
        /// Names of the parts.
        parts: Vec<String>,
        /// Each with the sizes of its parts.
        bars: Vec<(String, Vec<f64>)>,
    },
    /// One line per label; a line of one point is a point.
    Lines(Lines),
    /// A number per row and column.
    Heat(Heat),
}

/// Series over a common axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lines {
    /// What is on the horizontal axis, with its unit.
    pub axis: String,
    /// Whether that axis is logarithmic; its values are above 0 then.
    pub logarithmic: bool,
    /// Each with its points.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// A grid of numbers; `None` where there is none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Heat {
    /// Labels from top to bottom.
    pub rows: Vec<String>,
    /// Labels from left to right.
    pub columns: Vec<String>,
    /// Row by row.
    pub values: Vec<Vec<Option<f64>>>,
    /// The numbers of the lightest and the darkest cell.
    pub range: (f64, f64),
}

impl Heat {
    /// Where a value lies within the range, from 0 to 1.
    #[must_use]
    pub fn share(&self, value: f64) -> f64 {
        let (low, high) = self.range;
        if high > low {
            ((value - low) / (high - low)).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

/// Two tokens at the border of the budget over some steps (the paper's Figure 4).
#[must_use]
pub fn of_pair(name: &str, model: &str, pair: &Pair) -> Figure {
    let series = |label: &str, values: &[(f64, f64)], side: fn(&(f64, f64)) -> f64| {
        let points = (1..).zip(values).map(|(step, pair)| (f64::from(step), side(pair)));
        (label.to_owned(), points.collect())
    };
    Figure {
        name: name.to_owned(),
        title: format!(
            "{model}: positions {} and {}, {} flips raw, {} smoothed",
            pair.inside, pair.outside, pair.raw_flips, pair.ema_flips
        ),
        unit: "score, greatest = 1".to_owned(),
        kind: Kind::Lines(Lines {
            axis: "decode step".to_owned(),
            logarithmic: false,
            series: vec![
                series("inside, raw", &pair.raw, |pair| pair.0),
                series("outside, raw", &pair.raw, |pair| pair.1),
                series("inside, smoothed", &pair.ema, |pair| pair.0),
                series("outside, smoothed", &pair.ema, |pair| pair.1),
            ],
        }),
    }
}
