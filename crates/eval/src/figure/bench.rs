//! The paper's efficiency figures from measurements of speed.

use inertiakv::BenchRow;

use super::{Figure, Kind, Lines};

/// How many figures there are where every method they show was measured.
pub const BENCH_FIGURES: usize = 3;

/// All figures that the rows allow: Figure 3 (where the decode time goes), Figure 10 (speedup of refreshing less often)
/// and Figure 11 (throughput over the context) of the paper.
#[must_use]
pub fn of_bench(model: &str, rows: &[BenchRow]) -> Vec<Figure> {
    [composition(model, rows), speedup(model, rows), throughput(model, rows)]
        .into_iter()
        .flatten()
        .collect()
}

fn longest(rows: &[BenchRow]) -> (usize, Vec<&BenchRow>) {
    let context = rows.iter().map(|row| row.context).max().unwrap_or(0);
    (context, rows.iter().filter(|row| row.context == context).collect())
}

fn composition(model: &str, rows: &[BenchRow]) -> Option<Figure> {
    let (context, rows) = longest(rows);
    let bars = rows.iter().map(|row| {
        let share = row.share;
        let token = 1e3 / row.decode_tokens_per_second;
        let parts = [
            share.matmul,
            share.attention,
            share.scoring,
            share.eviction,
            share.other,
        ];
        (row.method.clone(), parts.map(|share| share * token).to_vec())
    });
    let bars: Vec<_> = bars.collect();
    (!bars.is_empty()).then(|| Figure {
        name: "figure-3-decode-composition".to_owned(),
        title: format!("{model}: decode time at {context} tokens"),
        unit: "ms per token".to_owned(),
        kind: Kind::Bars {
            parts: ["matmul", "attention", "scoring", "eviction", "other"]
                .map(str::to_owned)
                .to_vec(),
            bars,
        },
    })
}

/// Against the method that scores at every step; `None` if it was not measured, or nothing else.
fn speedup(model: &str, rows: &[BenchRow]) -> Option<Figure> {
    let (context, rows) = longest(rows);
    let preset = |row: &BenchRow| row.method.split(':').next().unwrap_or_default().to_owned();
    let base = rows.iter().find(|row| preset(row) == "inertia")?;
    let bars: Vec<_> = rows
        .iter()
        .filter(|row| ["inertia-lazy", "score-free"].contains(&preset(row).as_str()))
        .map(|row| {
            let speedup = row.decode_tokens_per_second / base.decode_tokens_per_second;
            (row.method.clone(), vec![speedup])
        })
        .collect();
    (!bars.is_empty()).then(|| Figure {
        name: "figure-10-lazy-speedup".to_owned(),
        title: format!("{model}: decode speed against scoring every step, {context} tokens"),
        unit: "times the speed of inertia".to_owned(),
        kind: Kind::Bars {
            parts: vec!["speedup".to_owned()],
            bars,
        },
    })
}

fn throughput(model: &str, rows: &[BenchRow]) -> Option<Figure> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let point = (row.context as f64, row.decode_tokens_per_second);
        match series.iter_mut().find(|(method, _)| *method == row.method) {
            Some((_, points)) => points.push(point),
            None => series.push((row.method.clone(), vec![point])),
        }
    }
    for (_, points) in &mut series {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    (!series.is_empty()).then(|| Figure {
        name: "figure-11-decode-throughput".to_owned(),
        title: format!("{model}: decode throughput"),
        unit: "tokens per second".to_owned(),
        kind: Kind::Lines(Lines {
            axis: "tokens of context".to_owned(),
            logarithmic: false,
            series,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::{BENCH_FIGURES, Kind, of_bench};
    use inertiakv::{BenchRow, Share};

    fn row(context: usize, method: &str, speed: f64) -> BenchRow {
        BenchRow {
            context,
            method: method.to_owned(),
            sequences: 1,
            prefill_tokens_per_second: 500.0,
            prefill_spread: [490.0, 510.0],
            decode_tokens_per_second: speed,
            decode_spread: [speed, speed],
            step_milliseconds: 1e3 / speed,
            first_step_milliseconds: 2e3 / speed,
            share: Share {
                matmul: 0.5,
                attention: 0.25,
                scoring: 0.125,
                eviction: 0.0625,
                other: 0.0625,
            },
            retained: 10,
            kv_bytes: 1,
            peak_rss_bytes: None,
        }
    }

    #[test]
    fn figures_show_the_rows() {
        let rows = [
            row(100, "inertia", 80.0),
            row(50, "inertia", 90.0),
            row(100, "inertia-lazy", 100.0),
        ];
        let figures = of_bench("m", &rows);
        assert_eq!(figures.len(), BENCH_FIGURES);
        let Kind::Bars { bars, .. } = &figures[0].kind else {
            panic!()
        };
        assert_eq!(
            bars[0],
            ("inertia".to_owned(), vec![6.25, 3.125, 1.5625, 0.78125, 0.78125])
        );
        let Kind::Bars { bars, .. } = &figures[1].kind else {
            panic!()
        };
        assert_eq!(*bars, [("inertia-lazy".to_owned(), vec![1.25])]);
        let Kind::Lines(lines) = &figures[2].kind else { panic!() };
        assert_eq!(
            lines.series[0],
            ("inertia".to_owned(), vec![(50.0, 90.0), (100.0, 80.0)])
        );
    }

    #[test]
    fn no_figure_without_its_rows() {
        assert!(of_bench("m", &[]).is_empty());
        assert_eq!(of_bench("m", &[row(100, "full", 80.0)]).len(), 2);
    }
}
