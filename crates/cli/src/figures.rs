//! The paper's efficiency figures, drawn from measurements: each as SVG and as PNG.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Result, anyhow};
use inertiakv::BenchRow;
use plotters::chart::{ChartBuilder, ChartContext, SeriesLabelPosition};
use plotters::coord::{CoordTranslate, Shift};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::{
    BitMapBackend, Circle, Color, DrawingArea, DrawingBackend, IntoDrawingArea, IntoSegmentedCoord, LineSeries,
    PathElement, RGBColor, Rectangle, SVGBackend, SegmentValue, Text, WHITE,
};
use plotters::style::{BLACK, FontStyle, IntoFont, register_font};

const SIZE: (u32, u32) = (900, 540);
const FONT: &str = "sans-serif";
/// Told apart also by those who do not see red and green.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x55, 0x55, 0x55),
];

/// How many figures there are where every method they show was measured.
pub(crate) const COUNT: usize = 3;

/// A figure, as data.
#[derive(Debug, PartialEq)]
pub(crate) struct Figure {
    /// Name of its files.
    name: &'static str,
    title: String,
    unit: &'static str,
    kind: Kind,
}

#[derive(Debug, PartialEq)]
enum Kind {
    /// One bar per label, made of the same parts.
    Bars {
        parts: Vec<&'static str>,
        bars: Vec<(String, Vec<f64>)>,
    },
    /// One line per label over the context.
    Lines(Vec<(String, Vec<(usize, f64)>)>),
}

/// All figures that the rows allow: Figure 3 (where the decode time goes), Figure 10 (speedup of refreshing less often)
/// and Figure 11 (throughput over the context) of the paper.
pub(crate) fn all(model: &str, rows: &[BenchRow]) -> Vec<Figure> {
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
        name: "figure-3-decode-composition",
        title: format!("{model}: decode time at {context} tokens"),
        unit: "ms per token",
        kind: Kind::Bars {
            parts: vec!["matmul", "attention", "scoring", "eviction", "other"],
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
        name: "figure-10-lazy-speedup",
        title: format!("{model}: decode speed against scoring every step, {context} tokens"),
        unit: "times the speed of inertia",
        kind: Kind::Bars {
            parts: vec!["speedup"],
            bars,
        },
    })
}

fn throughput(model: &str, rows: &[BenchRow]) -> Option<Figure> {
    let mut lines: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for row in rows {
        let point = (row.context, row.decode_tokens_per_second);
        match lines.iter_mut().find(|(method, _)| *method == row.method) {
            Some((_, points)) => points.push(point),
            None => lines.push((row.method.clone(), vec![point])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_unstable_by_key(|point| point.0);
    }
    (!lines.is_empty()).then(|| Figure {
        name: "figure-11-decode-throughput",
        title: format!("{model}: decode throughput"),
        unit: "tokens per second",
        kind: Kind::Lines(lines),
    })
}

impl Figure {
    /// Writes `<name>.svg` and `<name>.png`.
    pub(crate) fn write(&self, folder: &Path) -> Result<[PathBuf; 2]> {
        use_own_font();
        let paths = ["svg", "png"].map(|kind| folder.join(format!("{}.{kind}", self.name)));
        let named = |error: anyhow::Error| error.context(format!("cannot draw into {}", folder.display()));
        self.draw(&SVGBackend::new(&paths[0], SIZE).into_drawing_area())
            .map_err(named)?;
        self.write_png(&paths[1]).map_err(named)?;
        Ok(paths)
    }

    fn write_png(&self, path: &Path) -> Result<()> {
        let (width, height) = SIZE;
        let mut pixels = vec![0; 3 * (width * height) as usize];
        self.draw(&BitMapBackend::with_buffer(&mut pixels, SIZE).into_drawing_area())?;
        let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        Ok(writer.finish()?)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<()> {
        area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        match &self.kind {
            Kind::Bars { parts, bars } => self.draw_bars(area, parts, bars),
            Kind::Lines(lines) => self.draw_lines(area, lines),
        }
        .map_err(|error| anyhow!("{error}"))?;
        area.present().map_err(|error| anyhow!("{error}"))
    }

    fn draw_bars<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        parts: &[&str],
        bars: &[(String, Vec<f64>)],
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let highest = bars.iter().map(|(_, parts)| parts.iter().sum()).fold(0.0, f64::max);
        let labels: Vec<&str> = bars.iter().map(|(label, _)| label.as_str()).collect();
        let mut chart = self
            .builder(area)
            .build_cartesian_2d((0..labels.len()).into_segmented(), 0.0..highest * 1.25)?;
        let label = |segment: &SegmentValue<usize>| match segment {
            SegmentValue::CenterOf(index) => labels.get(*index).copied().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(labels.len())
            .x_label_formatter(&label)
            .y_desc(self.unit)
            .label_style((FONT, 15))
            .draw()?;
        for (part, name) in parts.iter().enumerate() {
            let colour = COLOURS[part % COLOURS.len()];
            let boxes = bars.iter().enumerate().map(|(index, (_, parts))| {
                let below: f64 = parts[..part].iter().sum();
                let corners = [
                    (SegmentValue::Exact(index), below),
                    (SegmentValue::Exact(index + 1), below + parts[part]),
                ];
                let mut bar = Rectangle::new(corners, colour.filled());
                bar.set_margin(0, 0, 25, 25);
                bar
            });
            let series = chart.draw_series(boxes)?;
            if parts.len() > 1 {
                series
                    .label(*name)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
            }
        }
        let totals = bars.iter().enumerate().map(|(index, (_, parts))| {
            let total: f64 = parts.iter().sum();
            let place = (SegmentValue::CenterOf(index), total + highest * 0.04);
            Text::new(format!("{total:.2}"), place, (FONT, 15).into_font())
        });
        chart.draw_series(totals)?;
        if parts.len() > 1 {
            draw_legend(&mut chart)?;
        }
        Ok(())
    }

    fn draw_lines<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        lines: &[(String, Vec<(usize, f64)>)],
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let points = || lines.iter().flat_map(|(_, points)| points);
        let highest = points().map(|point| point.1).fold(0.0, f64::max);
        let longest = points().map(|point| point.0).max().unwrap_or(1);
        let mut chart = self
            .builder(area)
            .build_cartesian_2d(0..longest + longest / 20 + 1, 0.0..highest * 1.25)?;
        chart
            .configure_mesh()
            .x_desc("tokens of context")
            .y_desc(self.unit)
            .label_style((FONT, 15))
            .draw()?;
        for (index, (label, points)) in lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, colour.filled())))?;
        }
        draw_legend(&mut chart)
    }

    fn builder<'a, 'b, B: DrawingBackend>(&self, area: &'a DrawingArea<B, Shift>) -> ChartBuilder<'a, 'b, B> {
        let mut builder = ChartBuilder::on(area);
        builder
            .caption(&self.title, (FONT, 20))
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(64);
        builder
    }
}

fn draw_legend<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font((FONT, 15))
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()
}

/// Figures look alike on every machine, also where no font is installed.
fn use_own_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Refused only for bytes that are no font.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
}

#[cfg(test)]
mod tests {
    use super::{COUNT, Kind, all};
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
        let figures = all("m", &rows);
        assert_eq!(figures.len(), COUNT);
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
        assert_eq!(lines[0], ("inertia".to_owned(), vec![(50, 90.0), (100, 80.0)]));
    }

    #[test]
    fn no_figure_without_its_rows() {
        assert!(all("m", &[]).is_empty());
        assert_eq!(all("m", &[row(100, "full", 80.0)]).len(), 2);
    }

    #[test]
    fn files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        for figure in all("m", &[row(100, "inertia", 80.0), row(100, "score-free", 100.0)]) {
            let [svg, png] = figure.write(folder.path()).unwrap();
            let svg = std::fs::read_to_string(svg).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("inertia"));
            assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG"));
        }
    }
}
