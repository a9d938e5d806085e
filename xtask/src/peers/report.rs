//! What was measured, for people and as data.

use serde::Serialize;

use super::llama::About;
use super::machine::{Machine, load_average};
use super::points::{Point, Quantity};
use crate::table::{grouped, table};

/// Both sides of a point, measured back to back.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Pair {
    /// Tokens per second, or bytes.
    pub(super) ours: f64,
    pub(super) theirs: f64,
}

/// A point and what came of it.
pub(super) struct Outcome {
    pub(super) point: Point,
    pub(super) pairs: Vec<Pair>,
    /// Whether llama.cpp ran with flash attention.
    pub(super) flash_attention: Option<bool>,
    /// Why it was not measured to the end.
    pub(super) failure: Option<String>,
}

/// A whole run.
pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) llama: &'a About,
    pub(super) threads: usize,
    pub(super) rounds: usize,
    pub(super) quick: bool,
    pub(super) outcomes: &'a [Outcome],
}

/// The numbers of a point: medians over the rounds; the ratio is that of each round's pair.
#[derive(Debug, PartialEq, Serialize)]
struct Summary {
    ours: f64,
    theirs: f64,
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    met: bool,
}

impl Outcome {
    pub(super) fn new(point: Point) -> Self {
        Self {
            point,
            pairs: Vec::new(),
            flash_attention: None,
            failure: None,
        }
    }

    fn summary(&self) -> Option<Summary> {
        if self.pairs.is_empty() {
            return None;
        }
        let ratios = || self.pairs.iter().map(|pair| pair.ours / pair.theirs);
        let ratio = median(ratios());
        Some(Summary {
            ours: median(self.pairs.iter().map(|pair| pair.ours)),
            theirs: median(self.pairs.iter().map(|pair| pair.theirs)),
            ratio,
            ratio_min: ratios().fold(f64::INFINITY, f64::min),
            ratio_max: ratios().fold(f64::NEG_INFINITY, f64::max),
            met: self.point.is_met_by(ratio),
        })
    }

    fn cells(&self) -> Vec<String> {
        let point = &self.point;
        let sign = if point.quantity == Quantity::PeakMemory {
            "≤"
        } else {
            "≥"
        };
        let mut cells = vec![point.model.to_owned(), point.name(), format!("{sign} {}", point.target)];
        match self.summary() {
            Some(summary) => cells.extend([
                amount(point.quantity, summary.ours),
                amount(point.quantity, summary.theirs),
                format!("{:.2}", summary.ratio),
                format!("{:.2}-{:.2}", summary.ratio_min, summary.ratio_max),
                self.pairs.len().to_string(),
                self.flash_attention
                    .map_or("-", |on| if on { "1" } else { "0" })
                    .to_owned(),
                if summary.met { "met" } else { "missed" }.to_owned(),
            ]),
            None => cells.extend(["-", "-", "-", "-", "0", "-", "not measured"].map(str::to_owned)),
        }
        cells
    }
}

impl Report<'_> {
    /// A page for people.
    pub(super) fn page(&self) -> String {
        let cells: Vec<Vec<String>> = self.outcomes.iter().map(Outcome::cells).collect();
        let header = [
            "model", "point", "target", "ours", "theirs", "ratio", "spread", "rounds", "-fa", "result",
        ];
        format!(
            "{}llama.cpp  {}\nbuild      {}, {}\nsettings   {} threads, KV cache f16, {}{}\n\n{}\n{}",
            self.machine.lines(),
            self.llama.found,
            self.llama.build,
            if self.llama.options.is_empty() {
                "options unknown".to_owned()
            } else {
                self.llama.options.join(" ")
            },
            self.threads,
            if self.rounds == 1 {
                "1 round".to_owned()
            } else {
                format!("{} rounds", self.rounds)
            },
            if self.quick { ", quick" } else { "" },
            table(&header, &cells, &[2, 3, 4, 5, 6, 7, 8]),
            self.notes(),
        )
    }

    /// The same as data.
    pub(super) fn json(&self) -> serde_json::Value {
        #[derive(Serialize)]
        struct Row<'a> {
            #[serde(flatten)]
            point: &'a Point,
            #[serde(flatten)]
            summary: Option<Summary>,
            flash_attention: Option<bool>,
            rounds: &'a [Pair],
            failure: Option<&'a str>,
        }

        let rows: Vec<Row> = self
            .outcomes
            .iter()
            .map(|outcome| Row {
                point: &outcome.point,
                summary: outcome.summary(),
                flash_attention: outcome.flash_attention,
                rounds: &outcome.pairs,
                failure: outcome.failure.as_deref(),
            })
            .collect();
        serde_json::json!({
            "machine": self.machine,
            "llama_cpp": self.llama,
            "threads": self.threads,
            "kv_type": "f16",
            "rounds": self.rounds,
            "quick": self.quick,
            "load_average_after": load_average(),
            "rows": rows,
        })
    }

    fn notes(&self) -> String {
        let mut notes = vec![
            "ours and theirs are medians in tokens per second (memory: MiB); the ratio is the median of the rounds' \
             ratios, the spread their least and greatest"
                .to_owned(),
        ];
        notes.extend(self.llama.remark.map(|remark| format!("llama.cpp is {remark}")));
        if self.quick {
            notes.push(
                "quick: one round, nothing deeper than 4,096 tokens, and no decoding at 4,096 with flash attention in \
                 llama.cpp: too coarse to judge a target"
                    .to_owned(),
            );
        } else if self.outcomes.iter().any(|outcome| outcome.point.is_deep()) {
            notes.push(
                "beyond 4,096 tokens there is one round, with the -fa that was better at 4,096, since a prefill of \
                 llama.cpp takes minutes there"
                    .to_owned(),
            );
        }
        let failures = self.outcomes.iter().filter_map(|outcome| {
            let failure = outcome.failure.as_ref()?;
            Some(format!(
                "{} of {}: {failure}",
                outcome.point.name(),
                outcome.point.model
            ))
        });
        notes.extend(failures);
        notes.push(format!(
            "load afterwards: {}",
            load_average().as_deref().unwrap_or("unknown")
        ));
        format!("- {}\n", notes.join("\n- "))
    }
}

fn amount(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::PeakMemory => grouped((value / f64::from(1 << 20)).round() as u64),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => grouped(value.round() as u64),
    }
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Pair, amount, median};
    use crate::peers::points::{MODELS, Point, Quantity};

    #[test]
    fn the_ratio_is_the_median_of_the_rounds() {
        let mut outcome = Outcome::new(Point::of(&MODELS, true)[0]);
        assert_eq!(outcome.summary(), None);
        assert_eq!(outcome.cells().last().unwrap(), "not measured");
        // The machine slowed down in the last round, for both.
        outcome.pairs = [(900.0, 500.0), (1000.0, 500.0), (200.0, 100.0)]
            .map(|(ours, theirs)| Pair { ours, theirs })
            .to_vec();
        let summary = outcome.summary().unwrap();
        assert_eq!((summary.ours, summary.theirs), (900.0, 500.0));
        assert_eq!((summary.ratio, summary.ratio_min, summary.ratio_max), (2.0, 1.8, 2.0));
        assert!(summary.met);
        assert_eq!(outcome.cells().len(), 10);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(median([3.0, 1.0].into_iter()), 2.0);
        assert_eq!(amount(Quantity::Decode, 12.345), "12.3");
        assert_eq!(amount(Quantity::Prefill, 1234.5), "1,235");
        assert_eq!(amount(Quantity::PeakMemory, 1_048_576_000.0), "1,000");
    }
}
